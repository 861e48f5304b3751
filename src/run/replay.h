/* replay.h: a run repeated from its beginning. Genesis and ledger in one site's folder give the outer
 * state. */
#ifndef NEB_RUN_REPLAY_H
#define NEB_RUN_REPLAY_H

#include "base/hash.h"
#include "round/members.h"

struct neb_chain;

struct neb_replay {
    uint64_t records;              /* in the ledger */
    uint64_t rounds;               /* records that changed the outer state */
    uint64_t updates;              /* used by these records */
    uint64_t tokens;               /* in these updates */
    size_t values;                 /* of the outer state */
    struct neb_hash root;          /* of the outer state after the last record */
    uint64_t steps[NEB_SITES_MAX]; /* inner steps of each site that are in */
};

/* `folder` is a site's. No process may run the site meanwhile; the folder is only read. `run`: its
 * name; NULL: the only run, or the one that was written to last. `upto` is the index of the last record, 0: all.
 *   NEB_ERR_NOTFOUND  no genesis, or a record names an update that the run did not keep
 *   NEB_ERR_CORRUPT, NEB_ERR_BUSY, NEB_ERR_IO, NEB_ERR_NOMEM */
neb_status neb__run_replay(const char *folder, const char *run, uint64_t upto, struct neb_replay *out);
/* The same under this chain of rosters instead of the folder's; NULL: there is none. */
neb_status neb__run_replay_under(const struct neb_chain *chain, const char *folder, const char *run,
                                 uint64_t upto, struct neb_replay *out);

#endif
