/* job_facts.h: what the sites of a run tell each other in words.
 *
 *   facts     what all must have in common, `key=value` lines: compared when a link comes up; what differs is named
 *   refusal   why a site cannot take part: the others hear it before their first step */
#ifndef NEB_RUN_JOB_FACTS_H
#define NEB_RUN_JOB_FACTS_H

#include "base/buf.h"

#include <nebula/nebula.h>

enum {
    NEB_MSG_FACTS = 32,
    NEB_MSG_NOTE, /* of the version before, beside NEB_MSG_STATUS: site_status.c */
    NEB_MSG_REFUSAL,
    NEB_FACTS_TEXT_MAX = 256 << 10
};

/* Between open and start. The text is copied. NEB_ERR_LIMIT, NEB_ERR_NOMEM */
neb_status neb__session_facts(neb_session *s, const char *text, size_t n);

/* Instead of taking part: connects as the site in `folder` and tells every other one why this site cannot start. Waits for
 * them at most wait_s seconds. Its own failures are only logged: the caller has a better message already. */
void neb__session_refuse(const char *folder, const char *listen, const char *why, double wait_s);

/* --- for the driver --------------------------------------------------------------------------------------------- */
void neb__facts_peer_up(neb_session *s, uint16_t peer);
void neb__facts_message(neb_session *s, uint16_t peer, uint32_t kind, const uint8_t *bytes, size_t n);
void neb__facts_free(neb_session *s);

/* Appends the facts by which a job is another one, whatever else is changed while it runs: name, seed, task. Nothing where the
 * session has no facts. */
neb_status neb__facts_identity(const neb_session *s, struct neb_buf *out);

/* The first difference between two texts of facts as a sentence; false: none. `other` is the name of the other site. */
bool neb__facts_differ(const char *mine, size_t n, const char *theirs, size_t k, const char *other, char *why,
                       size_t size);

#endif
