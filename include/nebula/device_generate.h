/* device_generate.h: the arguments of the optional slots for generating text and for drawing from logits.
 * Part of nebula/device.h, which states the rules. */
#ifndef NEBULA_DEVICE_GENERATE_H
#define NEBULA_DEVICE_GENERATE_H

#include <nebula/device_types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Lays a weight out as the device's products read it. This pays for a weight that stays unchanged over many
 * products of few rows. A product has the same bits with the packed weight as without. */
struct neb_pack_linear {
    const void *w; /* (out, in) */
    void *packed;  /* packed_bytes() */
    int64_t out, in;
    neb_dtype type;
};

/* The k largest values of each row, the largest first (among equal values the lower column first), and the
 * log of the sum of all exponentials. When a row has fewer than k columns, the rest get id -1 and value -inf.
 * A row with a NaN may give any columns. */
struct neb_best {
    const void *x; /* (rows, cols) */
    float *value;  /* (rows, k) */
    int32_t *id;   /* (rows, k) */
    float *lse;    /* (rows) or NULL */
    int64_t rows, cols;
    int k; /* 1 to 4096 */
    neb_dtype type;
};

/* One column of each row, drawn from softmax(x / temperature): the one with the largest
 *     x / temperature - log(-log(1 - d)),   d = min((word + 1/2) / 2^32, 1 - 2^-24) as a float,
 * and among equal ones the lower column. `word` is word number column % 4 of Philox4x32-10 with the key
 * {seed, op} and the counter {column / 4, position, sample, step}. So the draw depends on neither packing nor
 * device, except for the last bits of the scores. A column with -inf or NaN is drawn only when there is no
 * other. */
struct neb_sample {
    const void *x;           /* (rows, cols) */
    int32_t *id;             /* (rows) */
    const uint32_t *sample;  /* (rows) global sample id */
    const int32_t *position; /* (rows) in its sequence */
    int64_t rows, cols;
    float temperature;       /* > 0 */
    uint32_t seed, op, step; /* host: a recording keeps them. Samples that are drawn only once need no step */
    neb_dtype type;
};

/* Attention of single queries, each over its own list of keys and values: query r reads rows key[r * max_k] …
 * key[r * max_k + count[r] - 1] of k and v, in this order. Queries may share rows; sharing is fastest between
 * neighbouring queries. */
struct neb_attn_listed {
    const void *q, *k, *v;
    void *o;
    const int32_t *key;   /* (q_rows, max_k) */
    const int32_t *count; /* (q_rows) from 0 to max_k; 0: the result is 0 */
    int64_t q_rows, k_rows, max_k;
    int64_t heads, kv_heads, head_dim, ldq, ldk, ldv, ldo;
    float scale;
    neb_dtype type;
};

#ifdef __cplusplus
}
#endif
#endif
