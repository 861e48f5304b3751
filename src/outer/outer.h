/* outer.h: the outer state: theta and momentum in cells, a version and a hash per cell, one root over all.
 * A successful create owes a destroy. */
#ifndef NEB_OUTER_OUTER_H
#define NEB_OUTER_OUTER_H

#include "base/hash.h"
#include "outer/norms.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NEB_PROOF_MAX 32 /* levels of the hash tree */

struct neb_outer {
    uint32_t cells;
    uint32_t width; /* values in a full cell; the last one may be shorter */
    size_t values;
    float *theta, *m;        /* (values) */
    uint64_t *version;       /* (cells) */
    struct neb_hash *leaf;   /* (cells); that of a stale cell is old */
    bool *stale;             /* (cells) */
    float *scratch;          /* (2 * width) */
    struct neb_norms *norms; /* (cells); NULL: the run has no rule of influence, and no hash covers them */
};

/* Copies `theta`; m and the versions are 0. NEB_ERR_NOMEM, NEB_ERR_INVALID, NEB_ERR_RANGE (theta is not
 * finite). */
neb_status neb__outer_create(uint32_t width, const float *theta, size_t values, struct neb_outer **out);
void neb__outer_destroy(struct neb_outer *o);                                    /* NULL is fine */
size_t neb__outer_cell(const struct neb_outer *o, uint32_t cell, size_t *first); /* number of values in it */

/* From now on the lengths of updates are part of the state. Before the first record. NEB_ERR_NOMEM */
neb_status neb__outer_keep_norms(struct neb_outer *o);

enum neb_outer_mode { NEB_OUTER_NESTEROV = 0, NEB_OUTER_AVERAGE = 1 };

struct neb_outer_step {
    enum neb_outer_mode mode;
    float eta, mu;
    uint32_t updates;
    const uint32_t *weight;     /* (updates) */
    const float *const *values; /* (updates) decoded values of this cell, in record order */
    float *moved;               /* (values of the cell) theta' - theta goes here; NULL: not wanted */
    /* with a rule of influence; else zero */
    uint8_t combine, liars;           /* round/influence.h: how the values become one */
    const struct neb_norm_step *norm; /* the lengths of the updates, or NULL */
    const float *scale;               /* (updates) the factors by which `values` were made shorter */
};

/* Applies one record to one cell and adds 1 to its version. *finite false: theta and m stayed as they were.
 * They also stay when the record has no updates. */
void neb__outer_apply(struct neb_outer *o, uint32_t cell, const struct neb_outer_step *step, bool *finite);

/* Whether so many updates are enough for the rule: 2 * liars + 1 if the values are not just averaged. Else the record
 * moves nothing. */
bool neb__outer_enough(const struct neb_outer_step *step);

/* Replaces a cell by a fetched or stored one. `norms`: NULL if the run has none. NEB_ERR_RANGE: a value is not finite. */
neb_status neb__outer_install(struct neb_outer *o, uint32_t cell, uint64_t version, const float *theta,
                              const float *m, const struct neb_norms *norms);

/* The hash of a cell's content, and the root over all cells. Both hash the cells that have changed first.
 * NEB_ERR_NOMEM */
neb_status neb__outer_leaf(struct neb_outer *o, uint32_t cell, struct neb_hash *out);
neb_status neb__outer_root(struct neb_outer *o, struct neb_hash *out);

/* Gives the hashes beside the path from the cell's leaf to the root; *n: their number. */
neb_status neb__outer_prove(struct neb_outer *o, uint32_t cell, struct neb_hash path[NEB_PROOF_MAX], int *n);
/* Computes the root from a cell's content and its path. NEB_ERR_CORRUPT: the path does not fit a tree of
 * `cells`. */
neb_status neb__outer_proved(uint32_t cells, uint32_t cell, uint64_t version, const float *theta,
                             const float *m, size_t values, const struct neb_norms *norms,
                             const struct neb_hash *path, int n, struct neb_hash *root);

#endif
