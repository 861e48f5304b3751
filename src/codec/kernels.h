/* kernels.h: the inner loops of the codec, one table for each instruction set.
 *
 * kernels_body.h holds the only implementation. It works on 16-lane vectors. kernels_plain.c, kernels_avx2.c
 * and kernels_avx512.c compile it with their flags. Every operation is one IEEE operation per element, and
 * every sum has 16 lanes that are folded in one order, so the three give the same bits. A test compares them.
 * All counts are multiples of the block: callers pad the last one. A code, here, is that of one value. */
#ifndef NEB_CODEC_KERNELS_H
#define NEB_CODEC_KERNELS_H

#include "codec/codec.h"

#define NEB__LIMIT_BITS 0x7E800000u /* 2^126: larger magnitudes, infinities and NaNs are refused */
#define NEB__TINY_BITS  0x0D800000u /* 2^-100: a block whose largest magnitude is below is coded as zeros */

struct neb__pass {
    const float *z; /* (n) */
    size_t n;
    float *next;  /* (n), or NULL */
    bool stream;  /* next is 64-byte aligned and not needed soon: write around the caches */
    double sq[2]; /* the squares of z and of r are added to these */
};

struct neb__codec_kernels {
    const char *name;
    /* Quantises blocks: bf16 scales (little-endian, one a block) and packed codes. False: a value is not
     * allowed. */
    bool (*encode_int)(struct neb__pass *p, int bits, bool optimal, uint8_t *scales, uint8_t *codes);
    bool (*encode_extern)(struct neb__pass *p, const float *scales, int limit, uint8_t *codes);
    bool (*encode_fp32)(struct neb__pass *p, uint8_t *codes); /* n a multiple of 16, as below */
    bool (*encode_bf16)(struct neb__pass *p, uint8_t *codes);
    /* Copies z and returns its largest magnitude (as bits); adds to sq[0]. */
    uint32_t (*take)(struct neb__pass *p, float *z);
    /* Finds the positions (ascending) of magnitudes above `above`. Returns their number, or cap + 1 for more
     * than `cap`. */
    int (*collect)(const float *z, size_t n, uint32_t above, int cap, uint16_t *at);
    /* Returns the k-th largest of n magnitudes, which lies in [lo, hi]. Zeros fill v to a multiple of 16, and
     * m below likewise. */
    uint32_t (*nth)(const uint32_t *v, int n, int k, uint32_t lo, uint32_t hi);
    /* j is the integer in [0, top] nearest to (m - lo) * scale. fit_sums gives the sums of j, j^2, j m;
     * assign gives j. */
    void (*fit_sums)(const float *m, int n, float lo, float scale, float top, float out[3]);
    void (*assign)(const float *m, int n, float lo, float scale, float top, uint8_t *j);
    /* Ends a sparse chunk: next <- z, its squares to sq[1]. */
    void (*flush)(struct neb__pass *p, const float *z);

    /* One scale for all n values (a multiple of 128 / bits). False: a value is not allowed, a scale is
     * impossible. */
    bool (*encode_row)(const float *x, size_t n, int bits, uint8_t *scale, uint8_t *codes);
    bool (*decode_row)(const uint8_t *scale, const uint8_t *codes, size_t n, int bits, float *x);

    bool (*decode_int)(const uint8_t *scales, const uint8_t *codes, int bits, size_t n, bool stream,
                       float *out);
    void (*decode_extern)(const float *scales, const uint8_t *codes, size_t n, bool stream, float *out);
    bool (*decode_fp32)(const uint8_t *codes, size_t n, bool stream, float *out);
    bool (*decode_bf16)(const uint8_t *codes, size_t n, bool stream, float *out);
};

extern const struct neb__codec_kernels neb__codec_kernels_plain, neb__codec_kernels_avx2,
    neb__codec_kernels_avx512;
const struct neb__codec_kernels *neb__codec_kernels(void); /* the one in use */

static inline size_t neb__int_block(int bits) /* values that share a scale */
{
    if (bits == 8) return 256;
    return bits == 4 ? 128 : 64;
}

#endif
