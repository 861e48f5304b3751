/* codec.h: turns tensors into bytes and back. The ladder of rungs serves the updates that cross the WAN.
 *
 * A code is the coded form of a flat range of n fp32 values. It describes itself (rung, n, lengths). It is
 * cut into cells of 2^18 values, and no block crosses a cell. It decodes to the same bits on every machine.
 * With c = decode(encode(z)) the encoder also gives r = fl(z - c), the part that the code left out. The codec
 * keeps nothing between calls. The caller decides whether r is sent later.
 *
 * Values must satisfy |z| < 2^126. The codec refuses everything else (NaN, infinity). */
#ifndef NEB_CODEC_CODEC_H
#define NEB_CODEC_CODEC_H

#include "base/buf.h"
#include "base/rung_class.h"

#include <stdbool.h>

#define NEB_CELL            ((size_t)1 << 18)
#define NEB_CODEC_MAX_N     ((size_t)1 << 29) /* values in one code */
#define NEB_CODEC_HEADER    20                /* bytes */
#define NEB_CODEC_EXT_BLOCK 256               /* values that share one scale given from outside */

enum neb_rung_kind {
    NEB_RUNG_FP32,
    NEB_RUNG_BF16,
    NEB_RUNG_INT,
    NEB_RUNG_EXTERN,
    NEB_RUNG_STAT,
    NEB_RUNG_TOPK
};

struct neb_rung {
    uint8_t id; /* on the wire: never renumbered */
    const char *name;
    enum neb_rung_class cls;
    enum neb_rung_kind kind;
    uint8_t bits;   /* of one coded value; statistical: on average */
    bool optimal;   /* the scale with the least squared error instead of the largest magnitude */
    uint16_t block; /* dense: values that share a scale */
    uint16_t k;     /* sparse: values kept of 4096 */
    float bytes;    /* nominal, per value */
    float error;    /* nominal |z - c| / |z| on Gaussian data */
    bool exact;     /* leaves nothing out, so it may end a run */
    /* A round fixes the scales when it opens. Neither a job nor the rate controller may choose such a rung. */
    bool outside_scales;
};

/* The ladder: dense rungs first, each class from faithful to cheap. */
extern const struct neb_rung neb__rung_table[];
extern const int neb__rung_count;
const struct neb_rung *neb__rung_by_id(uint8_t id);         /* NULL: no such rung */
const struct neb_rung *neb__rung_by_name(const char *name); /* likewise */
const struct neb_rung *neb__rung_exact(void);               /* the first exact one */
bool neb__rung_fixed_size(
    const struct neb_rung *rung); /* rung and n fix the bytes; the lossless stage may follow */

struct neb_codec_input {
    const float *z; /* (n) */
    size_t n;       /* 1 … NEB_CODEC_MAX_N */
    /* Only for a rung with outside_scales: */
    const float *scales; /* (ceil(n / NEB_CODEC_EXT_BLOCK)), each 0 or in [2^-100, 2^118] */
    int members;         /* codes that will be summed, 1 … 127; a value stays within 127 / members */
    /* Not NULL: r comes cell by cell, so that the caller may keep it in another form. */
    const struct neb_codec_hooks *hooks;
};

struct neb_codec_hooks {
    void *arg;
    float *next; /* (NEB_CELL) room for a cell's r */
    void (*after)(void *arg, size_t first,
                  size_t n); /* the n values from `first` are coded, their r is in `next` */
};

/* Squared norms, for the quality guard. */
struct neb_codec_stats {
    double z_sq, residual_sq;
};

/* Appends the code to `out` and writes r to `next`. `next` has n values and does not overlap z; NULL: r is
 * not wanted; after an error its content is unspecified. `stats` may be NULL.
 *   NEB_OK
 *   NEB_ERR_RANGE     a value is not allowed (the message says which); out is untouched
 *   NEB_ERR_INVALID   n, members or a scale is not allowed
 *   NEB_ERR_NOSPACE   out's maximum is too small; NEB_ERR_NOMEM */
neb_status neb__codec_encode(const struct neb_rung *rung, const struct neb_codec_input *in, float *next,
                             struct neb_codec_stats *stats, struct neb_buf *out);

/* The most bytes encode can append for n values, header included. */
size_t neb__codec_bound(const struct neb_rung *rung, size_t n);

/* Reads what a code says about itself. The body is not touched, so the decoded size is known before any work.
 *   NEB_ERR_CORRUPT   not a code, or lengths that cannot be;  NEB_ERR_VERSION   another version's */
struct neb_codec_info {
    const struct neb_rung *rung;
    size_t n;        /* values it decodes to */
    size_t body;     /* bytes behind the header */
    size_t raw;      /* bytes of the body before the lossless stage */
    uint32_t scales; /* check value of the outside scales; 0: the rung has none */
};
neb_status neb__codec_peek(const uint8_t *bytes, size_t len, struct neb_codec_info *info);

/* Decodes all n values. The code must hold exactly n. `scales` is NULL unless the rung has outside_scales.
 *   NEB_ERR_CORRUPT, NEB_ERR_VERSION, NEB_ERR_NOMEM
 *   NEB_ERR_INVALID   the scales are missing or are not those of the sender
 * After an error the content of `out` is unspecified. */
neb_status neb__codec_decode(const uint8_t *bytes, size_t len, const float *scales, size_t n, float *out);

/* Decodes cell by cell. Open checks the header and undoes the lossless stage (at most info.raw bytes). A
 * successful open owes a close. `bytes` must stay valid until then. */
struct neb_codec_view {
    struct neb_codec_info info;
    const uint8_t *body;
    const float *scales;
    void *owned;
};
neb_status neb__codec_open(const uint8_t *bytes, size_t len, const float *scales, size_t n,
                           struct neb_codec_view *view);
neb_status neb__codec_cell(const struct neb_codec_view *view, size_t cell, float *out);
void neb__codec_close(struct neb_codec_view *view);
static inline size_t neb__codec_cells(size_t n)
{
    return (n + NEB_CELL - 1) / NEB_CELL;
}

/* The lossless stage. It squeezes a code in place when that saves more time at `goodput` (bytes/s) than it
 * costs here and at the receiver. The code begins at `at` and ends with the buffer. A sample decides, and
 * then the result must really be smaller. *gain: bytes saved, 0 when it does not pay. NEB_ERR_CORRUPT,
 * NEB_ERR_NOMEM. */
neb_status neb__codec_squeeze(struct neb_buf *b, size_t at, double goodput, size_t *gain);

/* Adds the values of one code to those of another, modulo 256, as a secure sum does. Both codes must be of
 * the same rung with outside_scales, of the same scales and of the same n. */
neb_status neb__codec_modular_add(uint8_t *sum, size_t sum_len, const uint8_t *bytes, size_t len);

/* Encodes and decodes a golden vector with every rung and compares the bits with those that all machines must
 * give. A machine that fails (NEB_ERR_INTERNAL) must not join a run. */
neb_status neb__codec_self_test(void);

/* The instruction set in use: "avx512", "avx2" or "plain". All give the same bits. Tests and benchmarks force
 * one with neb__codec_force(name). NULL goes back to the best one. NEB_ERR_UNSUPPORTED: this machine lacks
 * it. */
const char *neb__codec_simd(void);
neb_status neb__codec_force(const char *name);

#endif
