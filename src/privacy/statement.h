/* statement.h: what a site says about its privacy in every update: 64 bytes between the header and the code, signed with
 * both. An audit adds the statements of a log up again. */
#ifndef NEB_PRIVACY_STATEMENT_H
#define NEB_PRIVACY_STATEMENT_H

#include "privacy/accountant.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum neb_privacy_unit {
    NEB_PRIVACY_NONE,
    NEB_PRIVACY_SITE,   /* noise on every update: it hides the whole data of a site */
    NEB_PRIVACY_SAMPLE, /* noise in every step: it hides one sample */
};
const char *neb__privacy_unit_name(enum neb_privacy_unit unit);

enum { NEB_PRIVACY_STATEMENT_SIZE = 64 };

struct neb_privacy_statement {
    enum neb_privacy_unit unit;
    struct neb_privacy_step step; /* of one update (site), of one step (sample) */
    double clip;
    double epsilon, delta, limit; /* spent with this update; limit 0: none */
    uint64_t count;               /* updates or steps that are charged so far, over all starts of the site */
};

void neb__privacy_statement_put(const struct neb_privacy_statement *s,
                                uint8_t out[NEB_PRIVACY_STATEMENT_SIZE]);
/* The bytes are hostile. NEB_ERR_CORRUPT (quiet). */
neb_status neb__privacy_statement_get(const uint8_t *in, size_t n, struct neb_privacy_statement *out);

/* Adds up the statements of one site in the order of its updates. */
struct neb_privacy_sum {
    struct neb_rdp spent;
    uint64_t count, updates;
    double epsilon, delta;        /* as it follows from the statements */
    double said;                  /* the highest epsilon that it stated */
    double limit;                 /* the newest one stated */
    bool understated;             /* a statement says less than the ones up to it cost */
    bool beyond;                  /* a statement exceeds its own limit */
    bool fell;                    /* a count is less than one before it, or lacks an update (unit site) */
    struct neb_privacy_step last; /* whose divergences are kept */
    struct neb_rdp one;
};
neb_status neb__privacy_sum_add(struct neb_privacy_sum *sum, const struct neb_privacy_statement *s);

#endif
