/* job_facts.h: texts that the sites of a run exchange before they begin.
 *
 *   facts     `key=value` lines that all sites must have in common; compared when a link comes up, and the
 *             first difference is named
 *   refusal   the reason why a site cannot take part; the others hear it before their first step */
#ifndef NEB_RUN_JOB_FACTS_H
#define NEB_RUN_JOB_FACTS_H

#include "base/buf.h"

#include <nebula/nebula.h>

enum {
    NEB_MSG_FACTS = 32,
    NEB_MSG_NOTE, /* part of a status, as the version before sends it: site_status.c */
    NEB_MSG_REFUSAL,
    NEB_FACTS_TEXT_MAX = 256 << 10
};

/* A site whose facts have this line has no text: its corpora, and a tokenizer that it lacks, are not compared. */
#define NEB_FACT_TEXTLESS "(the text)=none"
/* Which layers are at which site of a pipeline: what follows from the other facts, as this release computes it. */
#define NEB_FACT_CUT "(the cut)"

/* Between open and start. The text is copied. NEB_ERR_LIMIT, NEB_ERR_NOMEM */
neb_status neb__session_facts(neb_session *s, const char *text, size_t n);

struct neb_job_site;

/* Connects as the site in `folder`, instead of taking part, and tells every other site why this one cannot
 * start. Waits for them at most wait_s seconds. Its own failures are only logged, since the caller has a
 * better message already. own: how it listens and dials. */
void neb__session_refuse(const char *folder, const struct neb_job_site *own, const char *why, double wait_s);

/* ---- for the driver ------------------------------------------------------------------------------------ */
void neb__facts_peer_up(neb_session *s, uint16_t peer);
void neb__facts_message(neb_session *s, uint16_t peer, uint32_t kind, const uint8_t *bytes, size_t n);
void neb__facts_free(neb_session *s);

struct neb_hash;
neb_status neb__facts_hash(const neb_session *s, struct neb_hash *out); /* of no facts: of nothing */

/* Appends the facts that identify a job: name, seed and task. The others may change while a run goes on.
 * Appends nothing if the session has no facts. */
neb_status neb__facts_identity(const neb_session *s, struct neb_buf *out);

/* Says the first difference between two texts of facts in a sentence; false: they agree. `other` is the name
 * of the other site. */
bool neb__facts_differ(const char *mine, size_t n, const char *theirs, size_t k, const char *other, char *why,
                       size_t size);

#endif
