/* replay.h: a run repeated from its beginning: genesis and ledger of one site's folder give the outer
 * state. */
#ifndef NEB_RUN_REPLAY_H
#define NEB_RUN_REPLAY_H

#include "base/hash.h"
#include "round/members.h"

struct neb_replay {
    uint64_t records;              /* in the ledger */
    uint64_t rounds;               /* of those that changed the outer state */
    uint64_t updates;              /* used by them */
    uint64_t tokens;               /* in these */
    size_t values;                 /* of the outer state */
    struct neb_hash root;          /* of the outer state after the last record */
    uint64_t steps[NEB_SITES_MAX]; /* inner steps of each site that are in */
};

/* folder: a site's. No process may be the site meanwhile; nothing is changed there. upto: index of the last
 * record, 0: all.
 *   NEB_ERR_NOTFOUND  no genesis, or an update that a record names is no longer there (the run did not keep them)
 *   NEB_ERR_CORRUPT, NEB_ERR_BUSY, NEB_ERR_IO, NEB_ERR_NOMEM */
neb_status neb__run_replay(const char *folder, uint64_t upto, struct neb_replay *out);

#endif
