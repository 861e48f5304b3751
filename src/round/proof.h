/* proof.h: whether a site's own signed statements convict it of lying. A session asks while the run goes on, an audit asks
 * again years later: both look at the same rules. */
#ifndef NEB_ROUND_PROOF_H
#define NEB_ROUND_PROOF_H

#include "round/certificate.h"

enum { NEB_PROOF_SAID_MAX = NEB_ROUND_VOTERS_MAX + 1 }; /* a start and its votes */

/* What a proof is judged by: the run, and the log of who judges. */
struct neb_court {
    const struct neb_hash *genesis;
    const struct neb_seal *seal;
    enum neb_quorum_rule quorum;
    uint64_t head;                                                /* records in the log */
    const struct neb_hash *(*hash)(const void *, uint64_t index); /* of the record, 1 to head */
    bool (*roster)(const void *, uint32_t epoch, struct neb_members *out);
    uint32_t (*forced)(const void *,
                       uint64_t index); /* epoch of the last forced roster up to here; 0: none */
    /* an operator allowed a shorter log than the best of the votes, with that forced epoch */
    bool (*may_cut)(const void *, const struct neb_said *start, uint32_t forced);
    const void *log; /* the first argument of these */
};

bool neb__said_is_ack(const struct neb_said *s);
/* Whether the second contradicts the first; signatures are not looked at. */
bool neb__said_contradict(const struct neb_court *c, const struct neb_said *a, const struct neb_said *b);
bool neb__said_low_vote(const struct neb_court *c, const struct neb_said *ack, const struct neb_said *vote);
/* The site that the statements convict, signatures checked; or NEB_NO_SITE. */
unsigned neb__proof_convicts(const struct neb_court *c, const struct neb_said *said, int n);

#endif
