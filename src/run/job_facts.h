/* job_facts.h: what the sites of a run tell each other in words.
 *
 *   facts     what all must have in common, `key=value` lines: compared when a link comes up; what differs is named
 *   note      how a site is getting on, one JSON object: kept, so that any site can show them all
 *   refusal   why a site cannot take part: the others hear it before their first step */
#ifndef NEB_RUN_JOB_FACTS_H
#define NEB_RUN_JOB_FACTS_H

#include "base/buf.h"

#include <nebula/nebula.h>

enum {
    NEB_MSG_FACTS = 32,
    NEB_MSG_NOTE,
    NEB_MSG_REFUSAL,
    NEB_NOTE_MAX = 1024,
    NEB_FACTS_TEXT_MAX = 256 << 10
};

/* Between open and start. The text is copied. NEB_ERR_LIMIT, NEB_ERR_NOMEM */
neb_status neb__session_facts(neb_session *s, const char *text, size_t n);

/* A note for all others; sent now, and to whoever comes up later. */
neb_status neb__session_note(neb_session *s, const char *text);

/* What was last heard of member i of the roster (0, 1, …): its name, its note (ended by 0; "" nothing yet) and how old it
 * is in seconds. NEB_ERR_NOTFOUND (quiet): there are fewer members. This site itself: its own note, age 0. */
neb_status neb__session_heard(neb_session *s, uint32_t i, char name[32], char note[NEB_NOTE_MAX + 1],
                              double *age);

/* Instead of taking part: connects as the site in `folder` and tells every other one why this site cannot start. Waits for
 * them at most wait_s seconds. Its own failures are only logged: the caller has a better message already. */
void neb__session_refuse(const char *folder, const char *listen, const char *why, double wait_s);

/* --- for the driver --------------------------------------------------------------------------------------------- */
void neb__facts_peer_up(neb_session *s, uint16_t peer);
void neb__facts_peer_down(neb_session *s, uint16_t peer);
int neb__facts_peers_up(neb_session *s); /* any thread */
void neb__facts_message(neb_session *s, uint16_t peer, uint32_t kind, const uint8_t *bytes, size_t n);
void neb__facts_free(neb_session *s);

/* Appends the facts by which a job is another one, whatever else is changed while it runs: name, seed, task. Nothing where the
 * session has no facts. */
neb_status neb__facts_identity(const neb_session *s, struct neb_buf *out);

/* The first difference between two texts of facts as a sentence; false: none. `other` is the name of the other site. */
bool neb__facts_differ(const char *mine, size_t n, const char *theirs, size_t k, const char *other, char *why,
                       size_t size);

#endif
