/* device_compute.h: the arguments of the slots that compute forward and backward: primitives, norms, linear
 * layers and attention. Part of nebula/device.h, which states the rules. */
#ifndef NEBULA_DEVICE_COMPUTE_H
#define NEBULA_DEVICE_COMPUTE_H

#include <nebula/device_types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- primitives ---------------------------------------------------------------------------------------- */

/* C = alpha * op(A) op(B) + beta * C, for each of `batch` matrices. op(A) is (m, k), op(B) (k, n). C is F32
 * or of A's type. */
struct neb_gemm {
    const void *a, *b;
    void *c;
    int64_t m, n, k, lda, ldb, ldc;
    int64_t batch, stride_a, stride_b, stride_c; /* batch >= 1 */
    int trans_a, trans_b;                        /* 1: stored as (k, m), (n, k) */
    float alpha, beta;
    neb_dtype type, c_type;
};

/* dst = src over (rows, cols), converting between types. Types F32, BF16; or equal types. */
struct neb_copy2d {
    const void *src;
    void *dst;
    int64_t rows, cols, ld_src, ld_dst;
    neb_dtype src_type, dst_type;
};

/* y = a * x + b * y; y is not read when b is 0 */
struct neb_axpby {
    const void *x;
    void *y;
    int64_t n;
    float a, b;
    neb_dtype type;
};

/* z = x * y, or z += x * y */
struct neb_mul {
    const void *x, *y;
    void *z;
    int64_t n;
    int acc;
    neb_dtype type;
};

/* Forward: y = act(x). Backward: dx (+)= dy * act'(x). */
struct neb_act_args {
    const void *x;  /* (n) pre-activation */
    void *y;        /* (n) forward only */
    const void *dy; /* (n) backward only */
    void *dx;       /* (n) backward only; may be dy */
    int64_t n;
    neb_act act;
    int acc_dx;
    neb_dtype type;
};

/* y[r, c] += bias[c]. */
struct neb_bias {
    void *y; /* (rows, cols) */
    const void *bias;
    int64_t rows, cols;
    neb_dtype type, bias_type;
};

/* out[c] (+)= sum over r of x[r, c]; out is F32. */
struct neb_colsum {
    const void *x; /* (rows, cols) */
    float *out;
    int64_t rows, cols, ldx;
    int acc;
    neb_dtype type;
};

/* Gated unit: y = silu(x[:, :n]) * x[:, n:] over x (rows, 2n). Backward: dx (rows, 2n) from dy (rows, n). */
struct neb_swiglu {
    const void *x;
    void *y;        /* (rows, n) forward */
    const void *dy; /* (rows, n) backward */
    void *dx;       /* (rows, 2n) backward */
    int64_t rows, n;
    neb_dtype type;
};

/* y = sum over tables of table[ids]. Backward: each d_table[ids[r]] += dy[r] (F32; the caller has cleared it
 * when needed). For every id the rows are summed in increasing r, so the bits are the same every time. Ids
 * outside [first, first + table_rows) give zeros forward and nothing backward. */
struct neb_embed {
    int tables;            /* 1 to 3 */
    const void *table[3];  /* (table_rows, d) in the activations' type; forward */
    float *d_table[3];     /* backward; NULL: not wanted */
    const int32_t *ids[3]; /* (rows) */
    int64_t table_rows[3];
    int64_t first[3]; /* id of the table's first row: a part of a table that several processes share */
    int64_t rows, d;
    float scale;    /* y = scale * sum */
    void *y;        /* (rows, d) forward */
    const void *dy; /* (rows, d) backward */
    void *scratch;
    neb_dtype type;
};

/* y[r] = x[index[r]] for r in [0, n); an index outside [0, rows) gives zeros. Backward (scatter):
 * dx[index[r]] += dy[r]; indices are distinct or out of range. */
struct neb_rows {
    const void *x;        /* gather: (rows, d); scatter: (n, d) */
    void *y;              /* gather: (n, d);    scatter: (rows, d) */
    const int32_t *index; /* (n) */
    int64_t n, rows, d;
    neb_dtype type;
    int64_t ldx; /* scatter: distance between the rows of x; 0: d */
};

/* Mean over each sequence: y (sequences, d) from x (rows, d); an empty sequence gives zeros. Backward: dx
 * (+)= dy / length, for all rows of all sequences; other rows stay untouched (acc) or become 0. */
struct neb_pool_args {
    const void *x;
    void *y;
    const void *dy;
    void *dx;
    const int32_t *starts; /* (sequences + 1) */
    int64_t sequences, rows, d;
    int acc_dx;
    neb_dtype type;
};

/* Stretches wavelengths, for texts longer than those a model was trained on. A pair with the frequency f has the
 * wavelength w = 2 pi / f. Where w > original / low, f is divided by factor; where w < original / high, f stays;
 * between them f is mixed: m f + (1 - m) f / factor with m = (original / w - low) / (high - low) (Llama 3.1).
 * original 0: every f is divided. factor 0: none is. */
struct neb_rope_scale {
    float factor, low, high, original;
};

/* Rotates pairs (j, j + head_dim / 2) of every head by position * f, f = base^(-2 j / head_dim) (the Llama
 * layout), in place. `inverse` rotates back, which is the backward. */
struct neb_rope {
    void *x;                 /* (rows, heads * head_dim), ldx */
    const int32_t *position; /* (rows) */
    int64_t rows, heads, head_dim, ldx;
    float base;
    int inverse;
    neb_dtype type;
    struct neb_rope_scale scale;
};

/* y = drop(x): 0 where dropped, scaled where kept. It is its own backward, with dy for x. */
struct neb_dropout_args {
    const void *x;
    void *y; /* may be x */
    int64_t rows, cols;
    int acc; /* 1: y += drop(x) */
    struct neb_dropout drop;
    neb_dtype type;
};

/* Softmax over the keys a query may see, for the reference attention: score (heads, q_rows, k_rows), F32, in
 * place. A query sees the keys of its own sequence; if causal, only those with q_offset + the query's
 * position >= the key's position, where q_offset = that sequence's key length - query length. Other keys get
 * 0. With `prob` and `dscore` it is the backward: dscore = prob * (dscore - sum(prob * dscore)), in place.
 * Dropout on probabilities is separate (attn_dropout). */
struct neb_attn_softmax {
    float *score;                       /* forward: in place */
    const float *prob;                  /* backward */
    float *dscore;                      /* backward: in place */
    float *lse;                         /* (heads, q_rows) forward: log of the sum of exponentials, or NULL */
    const int32_t *starts_q, *starts_k; /* (sequences + 1) */
    int64_t sequences, heads, q_rows, k_rows;
    int causal;
};

/* prob (heads, q_rows, k_rows) *= mask, F32, in place. */
struct neb_attn_dropout {
    float *prob;
    const int32_t *starts_q, *starts_k;
    int64_t sequences, heads, q_rows, k_rows;
    struct neb_dropout drop;
};

/* ---- norms and fused slots ----------------------------------------------------------------------------- */

/* s = residual + drop(x);  y = norm(s) * gamma + beta.   All variants come from leaving parts out:
 *   residual NULL: s = x (s is then not written, no dropout);   y NULL: only s.
 * LayerNorm saves mean and rstd, RMSNorm rstd. */
struct neb_norm {
    neb_norm_kind kind;
    const void *x, *residual;  /* (rows, d) */
    const float *gamma, *beta; /* (d); beta may be NULL */
    void *s;                   /* (rows, d) */
    void *y;                   /* (rows, d) */
    float *mean, *rstd;        /* (rows) */
    int64_t rows, d;
    float eps;
    struct neb_dropout drop;
    neb_dtype type;
};

/* ds = ds_in + (gradient through the norm);  dx = drop(ds). */
struct neb_norm_bwd {
    neb_norm_kind kind;
    const void *s;     /* (rows, d) input of the norm */
    const void *dy;    /* (rows, d); NULL when the forward had no y */
    const void *ds_in; /* (rows, d) gradient that reaches s another way, or NULL; may be ds itself */
    const float *gamma, *mean, *rstd;
    void *ds;              /* (rows, d) */
    void *dx;              /* (rows, d), only with dropout; else NULL: dx equals ds */
    float *dgamma, *dbeta; /* (d) or NULL */
    int acc_dgamma, acc_dbeta, acc_dx;
    int64_t rows, d;
    struct neb_dropout drop;
    void *scratch;
    neb_dtype type;
};

/* y = act(x w^T + bias), or y += with `acc_y` (then act is NONE). `pre` takes the pre-activation when not
 * NULL. */
struct neb_linear {
    const void *x;    /* (rows, in), ldx */
    const void *w;    /* (out, in) */
    const void *bias; /* (out) in the activations' type, or NULL */
    void *y;          /* (rows, out), ldy */
    void *pre;        /* (rows, out) or NULL; same ld as y */
    int64_t rows, in, out, ldx, ldy;
    neb_act act;
    int acc_y;
    float alpha; /* factor of x w^T, 1 normally */
    void *scratch;
    neb_dtype type;
    const void *packed; /* w as pack_linear packed it (w is then not read), or NULL */
};

/* Backward of linear, given g = gradient of (x w^T + bias), so after the activation's own backward:
 *   dx (+)= alpha * g w, times x_act'(x_pre) when x_act is not NONE (x is act(x_pre), read by no other op);
 *   dx_colsum (+)= column sums of that dx (bias gradient of the layer that made x);
 *   dw (+)= alpha * g^T x;   db (+)= column sums of g.
 * Each of dx, dx_colsum, dw, db may be NULL. */
struct neb_linear_bwd {
    const void *g;     /* (rows, out), ldg */
    const void *x;     /* (rows, in), ldx */
    const void *w;     /* (out, in) */
    void *dx;          /* (rows, in), lddx */
    const void *x_pre; /* (rows, in), lddx; with x_act */
    neb_act x_act;
    float *dx_colsum; /* (in) */
    float *dw;        /* (out, in) */
    float *db;        /* (out) */
    int64_t rows, in, out, ldg, ldx, lddx;
    int acc_dx, acc_dx_colsum, acc_dw, acc_db;
    float alpha;
    void *scratch;
    neb_dtype type;
};

/* Variable-length attention over packed sequences: sequence i has query rows starts_q[i] … starts_q[i + 1] -
 * 1 and key rows starts_k[i] … . Head h of a row stands at column h * head_dim; query head h reads key head h
 * * kv_heads / heads. Causal: see neb_attn_softmax. A query without keys gives zeros, and so do rows outside
 * all sequences. */
struct neb_attn {
    const void *q, *k, *v;
    void *o;
    float *lse;                                      /* (heads, q_rows) */
    const int32_t *starts_q, *starts_k;              /* (sequences + 1) */
    int64_t sequences, q_rows, k_rows, max_q, max_k; /* max: upper bounds of the lengths, known on the host */
    int64_t heads, kv_heads, head_dim, ldq, ldk, ldv, ldo;
    float scale;
    int causal;
    struct neb_dropout drop; /* sample is (sequences) */
    void *scratch;
    neb_dtype type;
};

struct neb_attn_bwd {
    struct neb_attn f;  /* as forward, o and lse being inputs */
    const void *d_o;    /* (q_rows, …), ldo */
    void *dq, *dk, *dv; /* ldq, ldk, ldv; overwritten. Rows outside all sequences: 0 */
    void *scratch;
};

/* A learned number for the distance of a key and a query, which is added to scale * q k^T (T5). The distance d is the key's
 * position - (q_offset + the query's position), with the q_offset of neb_attn_softmax. Distance d <= 0 is in bucket b, the last one
 * with from[b] <= -d. Distance d > 0 is in bucket buckets + b, the last one with from[b] <= d, if both_ways; else it counts as 0. */
enum { NEB_BIAS_BUCKETS = 128 };
struct neb_attn_bias {
    const float *table; /* (buckets, heads), with both_ways (2 buckets, heads) */
    float *dtable;      /* backward: the same shape, or NULL: not wanted */
    int acc_dtable;
    int both_ways;
    int64_t buckets;                /* 1 to NEB_BIAS_BUCKETS */
    int32_t from[NEB_BIAS_BUCKETS]; /* from[0] is 0, and none is below the one before */
};

struct neb_attn_biased {
    struct neb_attn a;
    struct neb_attn_bias bias;
};

struct neb_attn_biased_bwd {
    struct neb_attn_bwd b;
    struct neb_attn_bias bias;
};

#ifdef __cplusplus
}
#endif
#endif
