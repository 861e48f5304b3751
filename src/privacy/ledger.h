/* ledger.h: what a site has spent of its privacy budget, on disk before it is spent.
 *
 * A successful open owes a close. All functions may be called from any thread. */
#ifndef NEB_PRIVACY_LEDGER_H
#define NEB_PRIVACY_LEDGER_H

#include "privacy/statement.h"

/* What is released, and how much may be spent. */
struct neb_privacy_rule {
    enum neb_privacy_unit unit;
    struct neb_privacy_step step; /* of one update (site), of one step (sample) */
    double clip, delta;
    double limit;   /* epsilon; 0: only counted */
    uint64_t block; /* sample: steps that are charged at a time; at least 1 */
};

struct neb_privacy_ledger;

/* path: a file of this run, whose folder exists. A missing one is an account without expenses.
 *   NEB_ERR_CORRUPT: damaged, so nobody knows what was spent;  NEB_ERR_CONFIG: it is of another unit
 *   NEB_ERR_RANGE, NEB_ERR_IO, NEB_ERR_NOMEM */
neb_status neb__privacy_ledger_open(const char *path, const struct neb_privacy_rule *rule,
                                    struct neb_privacy_ledger **out);
void neb__privacy_ledger_close(struct neb_privacy_ledger *l); /* NULL is fine */
/* For a job without `privacy`. NEB_ERR_CONFIG: there is an account, so the job had it before;  NEB_ERR_IO */
neb_status neb__privacy_ledger_absent(const char *path);

/* Charges n updates or steps, and notes that those of sequence number k and below are charged. On NEB_OK this is on disk.
 *   NEB_ERR_LIMIT: the budget does not allow it, and nothing is charged;  NEB_ERR_IO, NEB_ERR_NOSPACE: likewise nothing */
neb_status neb__privacy_charge(struct neb_privacy_ledger *l, uint64_t n, uint64_t k);
/* One step of unit sample: taken from a block that is charged, or a new block is. As above. */
neb_status neb__privacy_take_step(struct neb_privacy_ledger *l);
/* The log shows expenses that this file lacks: n more, beyond any limit. */
neb_status neb__privacy_admit(struct neb_privacy_ledger *l, uint64_t n, uint64_t k);

uint64_t neb__privacy_charged_k(struct neb_privacy_ledger *l);
/* As it stands now, blocks that are charged in full included. */
void neb__privacy_state(struct neb_privacy_ledger *l, struct neb_privacy_statement *out);

#endif
