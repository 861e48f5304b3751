/* device.h: the boundary between Nebula-I and a compute device, and the ABI of device plug-ins.
 *
 * A device is a `const struct neb_device_ops` of function pointers and a context. The CPU device is built in; any
 * other (CUDA, an NPU) is a shared object that exports
 *
 *     const struct neb_device_ops *neb_device_plugin(uint32_t abi);
 *
 * and returns NULL when it cannot serve that ABI version. docs/device.md explains how to write one.
 *
 * The contract
 *  - Every pointer in an argument struct points to memory of this device, unless its comment says host.
 *  - A call enqueues work on the device's one compute stream and returns; work runs in the order of the calls.
 *    A failure that shows only later is returned by the next call or by sync(). Nothing below synchronises with the
 *    host except sync(), download() and the allocation calls.
 *  - Matrices are row-major; `ld…` is the distance between rows in elements. "(a, b)" beside a pointer is its shape.
 *  - dtype F32 or BF16 is the activations' type, fixed at open(); statistics, losses, gradients of parameters and
 *    optimizer state are always F32. Weights of matrix products come in the activations' type.
 *  - Every backward call that produces the gradient of an activation has an `acc_…` flag: 0 overwrites, 1 adds to
 *    what is there. Gradients of parameters have one too (the engine clears it for the first write of a step).
 *  - Slots marked [fused] may be NULL: the engine then composes the op from the primitives if the job allows it,
 *    and refuses it otherwise. Slots marked [optional] may be NULL without loss of function.
 *  - `scratch` members: the engine asks scratch_bytes() with the arguments as they will be (pointers NULL or not as in
 *    the call, but not to be followed), and passes that much memory (256-byte aligned) to the call. Its content is
 *    undefined on entry and on exit.
 *
 * Dropout. An element is kept when its 16 random bits are >= threshold; kept values are multiplied by
 * 65536 / (65536 - threshold). The bits come from Philox4x32-10 with key {ctl->seed, op} and the counter
 *     activations:  {column / 8,                 position, sample, ctl->step}
 *     attention:    {head << 20 | key pos / 8,   query position, sample, ctl->step}
 * positions being counted inside the sequence; of the four output words, 16-bit lane j = (column or key pos) % 8 is
 * (word[j / 2] >> 16 * (j % 2)) & 0xffff. So the mask depends on neither packing nor device nor thread count.
 */
#ifndef NEBULA_DEVICE_H
#define NEBULA_DEVICE_H

#include <nebula/status.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NEB_DEVICE_ABI 1u

typedef enum neb_dtype { NEB_F32 = 0, NEB_BF16 = 1, NEB_I32 = 2, NEB_I8 = 3, NEB_DTYPES = 4 } neb_dtype;

typedef enum neb_act {
    NEB_ACT_NONE = 0,
    NEB_ACT_GELU = 1,      /* exact, with erf */
    NEB_ACT_GELU_TANH = 2, /* the tanh approximation (GPT-2) */
    NEB_ACT_SILU = 3,
    NEB_ACT_RELU = 4,
    NEB_ACT_TANH = 5,
} neb_act;

typedef enum neb_norm_kind { NEB_NORM_LAYER = 0, NEB_NORM_RMS = 1 } neb_norm_kind;

/* What a step needs to know and what it reports, in device memory. The engine uploads the first part before a step
 * and downloads the second part afterwards, one step late on an asynchronous device. */
struct neb_ctl {
    /* in */
    uint32_t step;    /* optimizer steps done + 1 */
    uint32_t seed;    /* of dropout */
    float lr;         /* learning rate of this step */
    float loss_scale; /* 1 / (sum of weights over all micro-batches and ranks) */
    float max_norm;   /* clip the global gradient norm to this; <= 0: no clipping */
    float bias1;      /* 1 - beta1^step */
    float bias2;      /* 1 - beta2^step */
    uint32_t reserved_in[9];
    /* out */
    float loss[8];      /* one accumulator per loss slot, already scaled */
    float norm2;        /* squared norm of the gradient */
    float clip;         /* factor applied to the gradient; 0 when the step was skipped */
    uint32_t nonfinite; /* not 0: a loss or the norm was NaN or infinite, and the update was skipped */
    float counts[4];    /* metrics: see the losses */
    uint32_t reserved_out[1];
}; /* 128 bytes */

/* Where the rows of an activation come from, for dropout; and whether there is dropout. */
struct neb_dropout {
    uint32_t threshold;      /* of 65536; 0: none, and the rest is not read */
    uint32_t op;             /* which dropout of the model this is */
    const uint32_t *sample;  /* (rows) global sample id of each row; for attention (sequences) */
    const int32_t *position; /* (rows) position of each row in its sequence; for attention unused */
    const struct neb_ctl *ctl;
};

/* ---- primitives --------------------------------------------------------------------------------------------- */

/* C = alpha * op(A) op(B) + beta * C, for each of `batch` matrices. op(A) is (m, k), op(B) (k, n). C is F32 or of
 * A's type. */
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

/* y = a * x + b * y (+ nothing read of y when b is 0) */
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

/* y = sum over tables of table[ids]. Backward: each d_table[ids[r]] += dy[r] (F32; the caller has cleared it when
 * needed), the rows summed in increasing r for every id: the same bits every time. Ids outside [0, table_rows) give
 * zeros forward and nothing backward. */
struct neb_embed {
    int tables;            /* 1 to 3 */
    const void *table[3];  /* (table_rows, d) in the activations' type; forward */
    float *d_table[3];     /* backward; NULL: not wanted */
    const int32_t *ids[3]; /* (rows) */
    int64_t table_rows[3];
    int64_t rows, d;
    float scale;    /* of the sum; with it, y = scale * sum */
    void *y;        /* (rows, d) forward */
    const void *dy; /* (rows, d) backward */
    void *scratch;
    neb_dtype type;
};

/* y[r] = x[index[r]] for r in [0, n); an index outside [0, rows) gives zeros. Backward (scatter): dx[index[r]] +=
 * dy[r]; indices are distinct or out of range. */
struct neb_rows {
    const void *x;        /* gather: (rows, d); scatter: (n, d) */
    void *y;              /* gather: (n, d);    scatter: (rows, d) */
    const int32_t *index; /* (n) */
    int64_t n, rows, d;
    neb_dtype type;
    int64_t ldx; /* scatter: distance between the rows of x; 0: d */
};

/* Mean over each sequence: y (sequences, d) from x (rows, d); an empty sequence gives zeros. Backward: dx (+)= dy /
 * length, for all rows of all sequences; other rows untouched (acc) or 0. */
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

/* Rotates pairs (j, j + head_dim / 2) of every head by position * base^(-2 j / head_dim) (the Llama layout), in place. `inverse` turns back: the backward. */
struct neb_rope {
    void *x;                 /* (rows, heads * head_dim), ldx */
    const int32_t *position; /* (rows) */
    int64_t rows, heads, head_dim, ldx;
    float base;
    int inverse;
    neb_dtype type;
};

/* x is set to 0 where dropped and scaled where kept: y = drop(x). Its own backward, with dy for x. */
struct neb_dropout_args {
    const void *x;
    void *y; /* may be x */
    int64_t rows, cols;
    int acc; /* 1: y += drop(x) */
    struct neb_dropout drop;
    neb_dtype type;
};

/* Softmax over the keys a query may see, for the reference attention: score (heads, q_rows, k_rows), F32, in place.
 * A query sees a key of the same sequence (and, if causal, q_offset + its position >= the key's position, where
 * q_offset = that sequence's key length - query length); others get 0. With `prob` and `dscore`, the backward:
 * dscore = prob * (dscore - sum(prob * dscore)), in place. Dropout on probabilities is separate (attn_dropout). */
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

/* ---- losses ------------------------------------------------------------------------------------------------- */

/* What the losses below share: row r counts weight[r] (1 if NULL) * scale * ctl->loss_scale; the sum is added to
 * ctl->loss[slot]; its gradient goes to d…. A non-finite sum sets ctl->nonfinite. */
struct neb_loss {
    struct neb_ctl *ctl;
    const float *weight; /* (rows) or NULL */
    float scale;
    int slot;
};

/* Cross-entropy and distillation over rows of logits:
 *   ce * [ (1 - smoothing) * -log p[target] + smoothing * mean over classes of -log p ]
 *   + kd * T^2 * KL(teacher || student), both at temperature T,
 * the teacher given by top-k logits (renormalised over the k; ids outside [0, classes) are left out) or by dense
 * logits. A target outside [0, classes): the whole row counts 0, its gradient is 0. NULL targets: all rows count.
 * counts[0] += rows whose largest logit is the target's, counts[1] += rows counted (weight > 0). */
struct neb_targets {
    const int32_t *target; /* (rows); NULL when ce is 0 */
    float ce, smoothing;
    float kd, temperature;       /* kd 0: no teacher */
    const int32_t *teacher_ids;  /* (rows, teacher_k) */
    const float *teacher_logits; /* (rows, teacher_k); dense: (rows, classes) with teacher_ids NULL */
    int64_t teacher_k;
};

/* On logits (rows, classes), which are overwritten with their gradient when want_grad. */
struct neb_xent {
    void *logits;
    int64_t rows, classes, ld;
    int want_grad;
    struct neb_targets t;
    struct neb_loss loss;
    neb_dtype type;
};

/* Binary cross-entropy with logits x (rows), target 0 or 1, target < 0 counts 0. dx (rows) or NULL.
 * counts[0] += rows on the right side, counts[1] += rows counted, counts[2] += of those with target 1,
 * counts[3] += right ones with target 1. */
struct neb_bce {
    const void *x;
    const int32_t *target;
    void *dx;
    int64_t rows;
    int acc_dx;
    struct neb_loss loss;
    neb_dtype type;
};

/* MSE: mean over columns of (x - y)^2 per row. Cosine: 1 - x·y / (|x| |y|) per row, 1 with gradient 0 when either is the
 * zero vector. dx, dy may be NULL. */
struct neb_pair_loss {
    const void *x, *y; /* (rows, d) */
    void *dx, *dy;
    int64_t rows, d;
    int acc_dx, acc_dy;
    struct neb_loss loss;
    neb_dtype type;
};

/* ---- norms and fused slots ---------------------------------------------------------------------------------- */

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

/* y = act(x w^T + bias), or y += with `acc_y` (then act is NONE). `pre` takes the pre-activation when not NULL. */
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
    const void *packed; /* what pack_linear made of w, which is then not read; or NULL */
};

/* A weight laid out as the device's products read it: for a weight that stays as it is over many products of few rows. The
 * result of a product has the same bits with it as without. */
struct neb_pack_linear {
    const void *w; /* (out, in) */
    void *packed;  /* packed_bytes() */
    int64_t out, in;
    neb_dtype type;
};

/* The k largest values of each row, the largest first, of equal ones the lower column first; and the log of the sum of the
 * exponentials of all. Columns beyond those there are: -1, with -inf. A row with a NaN: any columns. */
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
 * of equal ones the lower. `word` is number column % 4 of what Philox4x32-10 gives with the key {seed, op} and the counter
 * {column / 4, position, sample, step}: so the draw depends on neither packing nor device, but for the last bits of the
 * scores. A column with -inf or NaN is never drawn while there is another. */
struct neb_sample {
    const void *x;           /* (rows, cols) */
    int32_t *id;             /* (rows) */
    const uint32_t *sample;  /* (rows) global sample id */
    const int32_t *position; /* (rows) in its sequence */
    int64_t rows, cols;
    float temperature;       /* > 0 */
    uint32_t seed, op, step; /* host: a recording keeps them. A sample id that is drawn once needs no step */
    neb_dtype type;
};

/* Backward of linear, given g = gradient of (x w^T + bias), that is, after the activation's own backward:
 *   dx (+)= alpha * g w, times x_act'(x_pre) when x_act is not NONE (x was act(x_pre) and nobody else reads x);
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

/* Variable-length attention over packed sequences: sequence i has query rows starts_q[i] … starts_q[i + 1] - 1 and
 * key rows starts_k[i] … . Head h of a row stands at column h * head_dim; query head h reads key head
 * h * kv_heads / heads. Causal: see neb_attn_softmax. A query without keys gives zeros, and so do rows of no sequence. */
struct neb_attn {
    const void *q, *k, *v;
    void *o;
    float *lse;                                      /* (heads, q_rows) */
    const int32_t *starts_q, *starts_k;              /* (sequences + 1) */
    int64_t sequences, q_rows, k_rows, max_q, max_k; /* max: upper bounds of the lengths, known to the host */
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
    void *dq, *dk, *dv; /* ldq, ldk, ldv; overwritten. Rows of no sequence: 0 */
    void *scratch;
};

/* Attention of single queries, each over keys and values of its own choice: query r reads rows key[r * max_k] …
 * key[r * max_k + count[r] - 1] of k and v, in this order. Queries may share rows; next to one another, they had better. */
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

/* x w^T + bias → cross-entropy and distillation, chunk by chunk; logits are never kept. With want_grad the
 * gradients are computed in the same call: dx (overwritten; NULL: not wanted), dw (+)=, db (+)=. */
struct neb_linear_xent {
    const void *x;    /* (rows, in) */
    const void *w;    /* (classes, in) */
    const void *bias; /* (classes) or NULL */
    void *dx;         /* (rows, in) */
    float *dw, *db;
    int64_t rows, in, classes;
    int want_grad, acc_dw, acc_db;
    struct neb_targets t;
    struct neb_loss loss;
    void *scratch;
    neb_dtype type;
};

/* ---- optimizer ---------------------------------------------------------------------------------------------- */

/* A piece of the parameter slab with its own settings. In device memory, in increasing order of offset. */
struct neb_segment {
    int64_t offset, n; /* in values */
    float decay;       /* weight decay */
    float lr_scale;
};

/* norm2 of the gradient over [0, n) is added to ctl->norm2 in an order that does not depend on the thread count. */
struct neb_sumsq {
    const float *x;
    int64_t n;
    struct neb_ctl *ctl;
    void *scratch;
};

/* From ctl->norm2, losses and max_norm: ctl->clip and ctl->nonfinite. nonfinite is set (never cleared) when norm2 or
 * a loss is not finite; clip = 0 when it is set, else max_norm / norm if max_norm > 0 and norm > max_norm, else 1. */
struct neb_clip {
    struct neb_ctl *ctl;
};

/* AdamW (decoupled decay) or SGD with momentum over all segments; g is multiplied by ctl->clip, and nothing at all
 * changes when ctl->nonfinite. With r = lr * lr_scale:
 *   AdamW  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
 *          p -= r ((m / bias1) / (sqrt(v / bias2) + eps) + decay p)
 *   SGD    m = beta1 m + g;  p -= r (m + decay p);  without momentum g stands for m
 * lr, bias corrections from ctl. `shadow` (BF16 copy of param) is written when not
 * NULL. */
struct neb_update {
    float *param, *m, *v; /* v NULL: SGD; m NULL too: SGD without momentum */
    const float *grad;
    void *shadow;
    const struct neb_segment *segments; /* device */
    int64_t n_segments, n;              /* n: values covered, from the first offset to the last end */
    float beta1, beta2, eps;            /* SGD: beta1 is the momentum */
    const struct neb_ctl *ctl;
};

/* ---- the table ---------------------------------------------------------------------------------------------- */

enum neb_slot { /* for scratch_bytes */
                NEB_SLOT_EMBED_BWD,
                NEB_SLOT_NORM_BWD,
                NEB_SLOT_LINEAR,
                NEB_SLOT_LINEAR_BWD,
                NEB_SLOT_ATTN,
                NEB_SLOT_ATTN_BWD,
                NEB_SLOT_LINEAR_XENT,
                NEB_SLOT_SUMSQ,
};

/* What a plug-in may call back: it cannot see the program's internals. Both functions may be called from any thread
 * and outlive the device. `fail` words an error for neb_last_error(), logs it, and returns the status it was given;
 * `log` takes a neb_log_level (nebula/log.h) and one line. */
struct neb_device_host {
    neb_status (*fail)(neb_status status, const char *message);
    void (*log)(int level, const char *line);
};

struct neb_device_config {
    neb_dtype compute;                  /* activations: F32 or BF16 */
    int threads;                        /* CPU: 0 = one per core */
    int index;                          /* which device of this kind */
    int64_t memory_limit;               /* bytes; 0: the device's own size. A hard cap */
    int deterministic;                  /* 1: the same bits every time, whatever it costs */
    int tf32;                           /* 1: F32 products may use TF32 */
    const char *isa;                    /* CPU: "avx512", "avx2", "plain"; NULL: the best this machine has */
    const struct neb_device_host *host; /* set by the loader; NULL: a plug-in keeps its messages to itself */
};

struct neb_device_info {
    char description[128];
    int64_t memory_total, memory_used, memory_peak;
    int asynchronous; /* calls return before the work is done */
};

struct neb_device_ops {
    uint32_t abi;     /* NEB_DEVICE_ABI */
    uint32_t size;    /* sizeof(struct neb_device_ops) */
    const char *name; /* "cpu", "cuda" */

    neb_status (*open)(const struct neb_device_config *config, void **dev);
    void (*close)(void *dev);
    void (*info)(void *dev, struct neb_device_info *out);

    /* Memory, 256-byte aligned, not cleared. NEB_ERR_NOMEM says what was asked and what is held. */
    neb_status (*alloc)(void *dev, size_t bytes, void **out);
    void (*free)(void *dev, void *p);
    /* Host memory that copies fast to and from the device. [optional] */
    neb_status (*host_alloc)(void *dev, size_t bytes, void **out);
    void (*host_free)(void *dev, void *p);
    /* upload returns when `src` (host) may be reused; the copy takes its place in the stream. download waits for
     * the stream and for the copy. */
    neb_status (*upload)(void *dev, void *dst, const void *src, size_t bytes);
    neb_status (*download)(void *dev, void *dst, const void *src, size_t bytes);
    neb_status (*copy)(void *dev, void *dst, const void *src, size_t bytes); /* both on the device */
    neb_status (*fill)(void *dev, void *dst, uint8_t byte, size_t bytes);
    neb_status (*sync)(void *dev);

    /* Asynchronous copies to and from host_alloc memory on a side stream: they start when everything enqueued so
     * far is done, do not hold the compute stream up, and are complete when `fence_done` says so (1 done, 0 not
     * yet) or after fence_wait. `fence_join` makes the compute stream wait for it. [optional, all or none] */
    neb_status (*side_download)(void *dev, void *dst, const void *src, size_t bytes, uint64_t *fence);
    neb_status (*side_upload)(void *dev, void *dst, const void *src, size_t bytes, uint64_t *fence);
    neb_status (*fence_done)(void *dev, uint64_t fence, int *done);
    neb_status (*fence_wait)(void *dev, uint64_t fence);
    neb_status (*fence_join)(void *dev, uint64_t fence);

    /* Recording a sequence of calls once and replaying it. Between begin and end no call may allocate, upload,
     * download or sync. [optional, all or none] */
    neb_status (*graph_begin)(void *dev);
    neb_status (*graph_end)(void *dev, void **graph);
    neb_status (*graph_launch)(void *dev, void *graph);
    void (*graph_free)(void *dev, void *graph);

    int64_t (*scratch_bytes)(void *dev, enum neb_slot slot, const void *args); /* [optional]: NULL means 0 */

    /* primitives: all required */
    neb_status (*gemm)(void *dev, const struct neb_gemm *);
    neb_status (*copy2d)(void *dev, const struct neb_copy2d *);
    neb_status (*axpby)(void *dev, const struct neb_axpby *);
    neb_status (*mul)(void *dev, const struct neb_mul *);
    neb_status (*act)(void *dev, const struct neb_act_args *);
    neb_status (*act_bwd)(void *dev, const struct neb_act_args *);
    neb_status (*bias)(void *dev, const struct neb_bias *);
    neb_status (*colsum)(void *dev, const struct neb_colsum *);
    neb_status (*swiglu)(void *dev, const struct neb_swiglu *);
    neb_status (*swiglu_bwd)(void *dev, const struct neb_swiglu *);
    neb_status (*embed)(void *dev, const struct neb_embed *);
    neb_status (*embed_bwd)(void *dev, const struct neb_embed *);
    neb_status (*gather_rows)(void *dev, const struct neb_rows *);
    neb_status (*scatter_rows)(void *dev, const struct neb_rows *);
    neb_status (*pool)(void *dev, const struct neb_pool_args *);
    neb_status (*pool_bwd)(void *dev, const struct neb_pool_args *);
    neb_status (*rope)(void *dev, const struct neb_rope *);
    neb_status (*dropout)(void *dev, const struct neb_dropout_args *);
    neb_status (*attn_softmax)(void *dev, const struct neb_attn_softmax *);
    neb_status (*attn_softmax_bwd)(void *dev, const struct neb_attn_softmax *);
    neb_status (*attn_dropout)(void *dev, const struct neb_attn_dropout *);
    neb_status (*norm)(void *dev, const struct neb_norm *); /* residual NULL: the primitive */
    neb_status (*norm_bwd)(void *dev,
                           const struct neb_norm_bwd *); /* ds_in NULL, no dropout: the primitive */
    neb_status (*xent)(void *dev, const struct neb_xent *);
    neb_status (*bce)(void *dev, const struct neb_bce *);
    neb_status (*mse)(void *dev, const struct neb_pair_loss *);
    neb_status (*cosine)(void *dev, const struct neb_pair_loss *);
    neb_status (*sumsq)(void *dev, const struct neb_sumsq *);
    neb_status (*clip)(void *dev, const struct neb_clip *);
    neb_status (*update)(void *dev,
                         const struct neb_update *); /* multi-tensor, fused: one pass over the slab */

    /* fused slots */
    neb_status (*norm_residual)(void *dev, const struct neb_norm *); /* [fused] with residual, dropout */
    neb_status (*norm_residual_bwd)(void *dev, const struct neb_norm_bwd *); /* [fused] */
    neb_status (*linear)(void *dev, const struct neb_linear *);              /* [fused] */
    neb_status (*linear_bwd)(void *dev, const struct neb_linear_bwd *);      /* [fused] */
    neb_status (*attn)(void *dev, const struct neb_attn *);                  /* [fused] */
    neb_status (*attn_bwd)(void *dev, const struct neb_attn_bwd *);          /* [fused] */
    neb_status (*linear_xent)(void *dev, const struct neb_linear_xent *);    /* [fused] */

    /* for generating text */
    neb_status (*best)(void *dev, const struct neb_best *); /* [optional]: found by the host in its stead */
    /* [optional, both or none] */
    int64_t (*packed_bytes)(void *dev, int64_t out, int64_t in, neb_dtype type);
    neb_status (*pack_linear)(void *dev, const struct neb_pack_linear *);
    neb_status (*attn_listed)(void *dev,
                              const struct neb_attn_listed *); /* [optional]: rows are moved instead */

    /* for replaced-token detection */
    neb_status (*sample)(void *dev,
                         const struct neb_sample *); /* [optional]: drawn by the host in its stead */
};

typedef const struct neb_device_ops *(*neb_device_plugin_fn)(uint32_t abi);

#ifdef __cplusplus
}
#endif
#endif
