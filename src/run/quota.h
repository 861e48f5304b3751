/* quota.h (internal): what one member may make this site hold, and what was refused to whom.
 *
 * docs/trust.md states the quotas. A refusal is logged once for each site and kind, counted, and shown in the
 * status. Counting has a lock of its own, which is a leaf: every thread refuses. */
#ifndef NEB_RUN_QUOTA_H
#define NEB_RUN_QUOTA_H

#include "round/round.h"

#include <nebula/nebula.h>
#include <pthread.h>

enum {
    NEB_CELLS_ASKED = 8,        /* cells on their way to one site */
    NEB_CELL_AGAIN = 16,        /* times that a cell which is on its way may be asked for again */
    NEB_UPDATES_SENT = 16,      /* updates on their way to one site, asked for by it; as many pushed to it */
    NEB_UPDATES_UNNAMED = 4,    /* updates of one site for one fragment that no record names, on disk */
    NEB_UPDATES_AHEAD = 2,      /* versions that the base of an update may be ahead of the log here */
    NEB_QUEUE_SITE = 32 << 20,  /* bytes of one site's messages that wait for the driver */
    NEB_QUEUE_ALL = 256 << 20,  /* … of all sites; a site may always have one message there */
    NEB_BULK_WINDOW = 32 << 20, /* bytes of unfinished cells that one site may have here */
    NEB_SENT_BYTES = 128 << 20, /* … and their bytes; one may always go */
};

/* X(name, what, sentence): `what` is counted in the status, the sentence stands in the log. */
#define NEB_QUOTA_KINDS(X)                                                                        \
    X(WANTED, "names", "it names more updates than it may that nobody can give")                  \
    X(CELLS, "cells", "it asks for more cells than may be on their way to it")                    \
    X(UPDATES, "updates", "it signs more updates than may wait for a record")                     \
    X(AHEAD, "bases", "it sends updates that are ahead of the log")                               \
    X(FRAGMENT, "fragments", "it sends updates that are not of one fragment")                     \
    X(FOREIGN, "signatures",                                                                      \
      "it sends updates that are malformed, not signed by their author, or do not decode")        \
    X(QUEUE, "messages", "it does not take in what it is sent, so messages for it are dropped")   \
    X(MODEL, "models", "it trains another model or job")                                          \
    X(RELAYED, "relays",                                                                          \
      "it passes on messages that their authors did not sign, or has more passed on than it may") \
    X(CLAIMS, "claims", "it says what its site or a quorum would have had to sign")               \
    X(GUILT, "proofs", "its own signatures prove that it lies")

enum neb_quota_kind {
#define NEB__X(name, what, sentence) NEB_QUOTA_##name,
    NEB_QUOTA_KINDS(NEB__X)
#undef NEB__X
        NEB_QUOTAS
};

struct neb_quotas {
    pthread_mutex_t lock;
    uint64_t refused[NEB_SITES_MAX][NEB_QUOTAS];
};

void neb__quotas_init(struct neb_quotas *q);
void neb__quotas_free(struct neb_quotas *q);
/* n messages or requests of a site were refused. The first returns whether these are the first of that kind;
 * the second also logs the sentence of the kind then. */
bool neb__quota_count(neb_session *s, uint16_t site, enum neb_quota_kind kind, uint64_t n);
void neb__session_refused(neb_session *s, uint16_t site, enum neb_quota_kind kind, uint64_t n);
/* How many in all; `text` says whose and what: `c: 412 cells, 3 updates`. */
uint64_t neb__session_refusals(neb_session *s, char *text, size_t size);

#endif
