/* conform.h: the suite that every device must pass, through its table of slots alone. Results are compared
 * with plain references in double precision. Shapes are random; size 1 and sizes that are not a multiple of a
 * vector's width are among them. All memory of a case is filled with NaNs before it, which reveals reads of
 * unwritten values and writes past the end. */
#ifndef NEB_DEVICE_CONFORM_H
#define NEB_DEVICE_CONFORM_H

#include "base/rng.h"
#include "device/device.h"

#include <stdbool.h>
#include <stdio.h>

struct neb_conform_result {
    int cases, checks, failures, skipped; /* skipped: fused slots the device doesn't have */
};

/* Runs all groups, or the one named `only`. Failures are written to `report` (NULL: nowhere). The status says
 * whether the suite could run; *out holds the verdict. */
neb_status neb__conform_run(struct neb_device *d, const char *only, uint64_t seed, FILE *report,
                            struct neb_conform_result *out);

/* The same with two cases a group and small shapes, for a device that is simulated. */
neb_status neb__conform_run_tiny(struct neb_device *d, const char *only, uint64_t seed, FILE *report,
                                 struct neb_conform_result *out);

/* ---- for the groups ---- */

enum { NEB_CF_BLOCKS = 96 };

struct neb_cf_block { /* a piece of device memory */
    size_t offset, bytes;
};

struct neb_cf {
    const struct neb_device_ops *ops;
    void *dev;
    neb_dtype type; /* of activations */
    struct neb_rng rng;
    const char *group;
    FILE *report;
    struct neb_conform_result *result;
    bool case_failed;
    char shape[160]; /* of the present case, for messages */
    uint8_t *arena;  /* device */
    uint8_t *mirror; /* host, the same size */
    size_t used, room;
    bool tiny; /* small shapes, few cases */
    struct neb_cf_block blocks[NEB_CF_BLOCKS];
    int n_blocks;
    double *host;
    size_t host_used;
};

/* A tensor: device memory, and the same values (after rounding to the type) for the reference. */
struct neb_cf_t {
    void *p;
    double *v;
    int64_t n;
    neb_dtype type;
};

double *neb__cf_doubles(struct neb_cf *c, int64_t n);                                      /* zeroed */
struct neb_cf_t neb__cf_random(struct neb_cf *c, int64_t n, neb_dtype type, double scale); /* normal */
struct neb_cf_t neb__cf_values(struct neb_cf *c, int64_t n, neb_dtype type, const double *v);
struct neb_cf_t neb__cf_poison(struct neb_cf *c, int64_t n, neb_dtype type);
/* Poisoned, or random when it will be added to. */
struct neb_cf_t neb__cf_target(struct neb_cf *c, int64_t n, neb_dtype type, int acc);
void *neb__cf_raw(struct neb_cf *c, const void *host, size_t bytes);
int32_t *neb__cf_ints(struct neb_cf *c, const int32_t *v, int64_t n);
struct neb_ctl *neb__cf_ctl(struct neb_cf *c, const struct neb_ctl *host);
struct neb_ctl neb__cf_read_ctl(struct neb_cf *c, const struct neb_ctl *dev);
void *neb__cf_scratch(struct neb_cf *c, enum neb_slot slot,
                      const void *args); /* NULL when no scratch is needed */

void neb__cf_shape(struct neb_cf *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Returns false and counts a failure when the call did not succeed. */
bool neb__cf_ok(struct neb_cf *c, neb_status s);
/* Checks that every value is near `want`: the allowed error is a fraction of the largest magnitude in `want`
 * (at least `floor`). */
void neb__cf_near(struct neb_cf *c, const char *what, const struct neb_cf_t *t, const double *want,
                  double floor);
/* The same, but value i may differ by that fraction of size[i]. */
void neb__cf_near_each(struct neb_cf *c, const char *what, const struct neb_cf_t *t, const double *want,
                       const double *size);
void neb__cf_near1(struct neb_cf *c, const char *what, double got, double want, double floor);
void neb__cf_true(struct neb_cf *c, const char *what, bool ok);

int64_t neb__cf_dim(struct neb_cf *c, int64_t max); /* often 1 or near a power of two */
int neb__cf_below(struct neb_cf *c, int n);
double neb__cf_mask(const struct neb_ctl *ctl, uint32_t threshold, uint32_t op, uint32_t c0, int lane,
                    uint32_t position, uint32_t sample);
double neb__cf_act(double x, neb_act act);
double neb__cf_slope(double x, neb_act act);

/* Samples and positions of the rows of packed sequences, for dropout. */
struct neb_cf_seqs {
    int64_t sequences, rows, longest;
    int32_t *starts; /* host (sequences + 1) */
    uint32_t *sample;
    int32_t *position;
    const int32_t *d_starts;
    const uint32_t *d_sample, *d_seq_sample; /* per row; per sequence */
    const int32_t *d_position;
};
struct neb_cf_seqs neb__cf_seqs(struct neb_cf *c, int64_t sequences, int64_t longest, int64_t padding);

typedef void (*neb_cf_fn)(struct neb_cf *c);
struct neb_cf_case {
    const char *name;
    neb_cf_fn fn;
    int repeat;
};
extern const struct neb_cf_case neb__cf_basic[], neb__cf_rows[], neb__cf_loss[], neb__cf_fused[],
    neb__cf_pick[], neb__cf_attn[], neb__cf_narrow[], neb__cf_muon[];

#endif
