/* cpu.h: the CPU device's context and what its op families share. */
#ifndef NEB_CPU_CPU_H
#define NEB_CPU_CPU_H

#include "base/pool.h"
#include "base/status.h"
#include "device/cpu/kernels.h"
#include "device/device.h"

#include <stdbool.h>

/* Work memory that grows to the largest need and is kept: one block for the packed panels of matrix products,
 * one for ops (which may call a product while they use theirs). */
enum neb_cpu_work { NEB_WORK_GEMM, NEB_WORK_OP, NEB_WORK_COUNT };

struct neb_cpu {
    struct neb_pool *pool;
    const struct neb_cpu_kernels *k;
    neb_dtype compute;
    int64_t limit, used, peak; /* bytes; limit 0: no limit */
    bool rehearses;            /* memory is reserved, not taken */
    struct {
        void *p;
        size_t bytes;
    } work[NEB_WORK_COUNT];
    struct { /* rope's cosines and sines, [position][half] each */
        float *cosine, *sine;
        int64_t positions, half;
        float base;
        struct neb_rope_scale scale;
    } rope;
};

/* At least `bytes`, 256-byte aligned, content undefined; valid until the next call for the same use. */
neb_status neb__cpu_work(struct neb_cpu *c, enum neb_cpu_work use, size_t bytes, void **out);
neb_status neb__cpu_alloc(void *dev, size_t bytes, void **out);
void neb__cpu_free(void *dev, void *p);

/* Runs the kernel over [0, n) in pieces of `grain`; the pieces don't depend on the number of threads. */
void neb__cpu_range(struct neb_cpu *c, neb_kernel fn, const void *args, int64_t n, int64_t grain, void *aux);

/* Number of rows that a piece needs for about 16 thousand values. */
static inline int64_t neb__cpu_rows(int64_t row_values)
{
    int64_t n = 16384 / (row_values > 0 ? row_values : 1);
    return n > 1 ? n : 1;
}

neb_status neb__cpu_check_type(const char *op, neb_dtype type);              /* F32 or BF16 */
neb_status neb__cpu_check_drop(const char *op, const struct neb_dropout *d); /* threshold below 65536 */

/* ---- matrix products (gemm.c) ---- */
struct neb_product {
    struct neb_operand a,
        b; /* A (m, k) and B (k, n): element (row of A | column of B, k) as neb_operand says */
    int64_t m, n, k;
    struct neb_epilogue e; /* e.colsum: the final array; e.acc_colsum below */
    int acc_colsum;
    float *a_sum; /* (m) (+)= sums of A over k, for a straight A; or NULL */
    int acc_a_sum;
    const float *b_packed; /* B's panels, all of k deep, one after the other; then b is not read. Or NULL */
};
neb_status neb__cpu_product(struct neb_cpu *c, const struct neb_product *p);
int64_t neb__cpu_packed_bytes(void *dev, int64_t out, int64_t in, neb_dtype type);

/* ---- the slots, by family ---- */
/* clang-format off */
#define NEB_CPU_SLOTS(X) \
    X(gemm, neb_gemm) X(copy2d, neb_copy2d) X(axpby, neb_axpby) X(mul, neb_mul) X(act, neb_act_args) \
    X(act_bwd, neb_act_args) X(bias, neb_bias) X(colsum, neb_colsum) X(swiglu, neb_swiglu) \
    X(swiglu_bwd, neb_swiglu) X(embed, neb_embed) X(embed_bwd, neb_embed) X(gather_rows, neb_rows) \
    X(scatter_rows, neb_rows) X(pool, neb_pool_args) X(pool_bwd, neb_pool_args) X(rope, neb_rope) \
    X(dropout, neb_dropout_args) X(attn_softmax, neb_attn_softmax) X(attn_softmax_bwd, neb_attn_softmax) \
    X(attn_dropout, neb_attn_dropout) X(norm, neb_norm) X(norm_bwd, neb_norm_bwd) X(xent, neb_xent) \
    X(bce, neb_bce) X(mse, neb_pair_loss) X(cosine, neb_pair_loss) X(sumsq, neb_sumsq) X(clip, neb_clip) \
    X(update, neb_update) X(linear, neb_linear) X(linear_bwd, neb_linear_bwd) X(attn, neb_attn) \
    X(attn_bwd, neb_attn_bwd) X(linear_xent, neb_linear_xent) X(best, neb_best) X(pack_linear, neb_pack_linear) \
    X(attn_listed, neb_attn_listed) X(sample, neb_sample) X(widen, neb_widen) \
    X(linear_narrow, neb_linear_narrow) X(linear_narrow_bwd, neb_linear_narrow_bwd) \
    X(attn_biased, neb_attn_biased) X(attn_biased_bwd, neb_attn_biased_bwd)
/* clang-format on */
#define NEB__X(slot, args) neb_status neb__cpu_##slot(void *dev, const struct args *a);
NEB_CPU_SLOTS(NEB__X)
#undef NEB__X

/* loss.c: the loss of rows of which each process has some classes. */
neb_status neb__cpu_class_loss(struct neb_cpu *c, struct neb_class_rows *a,
                               const struct neb_class_share *share);

#endif
