/* audit_sums.h (internal): the records of secure sums (round/secure.c), as an audit judges them. */
#ifndef NEB_RUN_AUDIT_SUMS_H
#define NEB_RUN_AUDIT_SUMS_H

#include "round/record.h"
#include "run/mirror.h"

struct neb_audit_sums {
    struct neb_audit_sum {
        uint32_t c0;
        const struct neb_record *open, *survivors; /* of the attempt under way; NULL: none yet */
        uint16_t attempt;                          /* the last one that was opened */
        uint64_t v;                                /* version of the cells behind it */
    } of[NEB_CAPTURES];
    int fragments;
};

/* The next record of the log, and the roster of its time. Returns what is wrong with it, or NULL. Records must last as long as the sums. */
const char *neb__audit_sums_add(struct neb_audit_sums *s, const struct neb_record *rec,
                                const struct neb_members *roster);

#endif
