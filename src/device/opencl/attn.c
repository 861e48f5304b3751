/* attn.c: attention: kernels/attn.cl without the matrix of scores, kernels/attn_ref.cl the primitives over it. */
#include "opencl.h"

enum { LARGEST_HEAD = 256 };

/* A GPU's kernels are compiled for the head size; a CPU's take it as an argument. */
static uint32_t variant_of(const struct neb_ocl *dev, const struct neb_attn *a)
{
    return (a->type == NEB_BF16) | (dev->cpu ? 0 : (uint32_t)a->head_dim << 1);
}

static neb_status check(struct neb_ocl *dev, const char *op, const struct neb_attn *a)
{
    NEB_TRY(neb__ocl_type(dev, op, a->type));
    if (a->head_dim < 1 || a->head_dim > LARGEST_HEAD)
        return neb__ocl_fail(dev, NEB_ERR_UNSUPPORTED,
                             "opencl: %s: heads of %lld values; at most %d are possible", op,
                             (long long)a->head_dim, LARGEST_HEAD);
    if (a->kv_heads < 1 || a->heads % a->kv_heads)
        return neb__ocl_fail(dev, NEB_ERR_SHAPE, "opencl: %s: %lld heads share %lld heads of keys", op,
                             (long long)a->heads, (long long)a->kv_heads);
    return NEB_OK;
}

static void dropout_args(struct neb_ocl_launch *l, const struct neb_attn *a)
{
    const bool drops = a->drop.threshold > 0;
    neb__ocl_ptr(l, drops ? a->drop.sample : NULL, 4);
    neb__ocl_ptr(l, drops ? a->drop.ctl : NULL, 4);
}

static void shape_args(struct neb_ocl_launch *l, const struct neb_attn *a)
{
    neb__ocl_long(l, a->q_rows);
    neb__ocl_int(l, (int)a->heads);
    neb__ocl_int(l, (int)a->kv_heads);
    neb__ocl_int(l, (int)a->head_dim);
    neb__ocl_long(l, a->ldq);
    neb__ocl_long(l, a->ldk);
    neb__ocl_long(l, a->ldv);
    neb__ocl_long(l, a->ldo);
    neb__ocl_float(l, a->scale);
    neb__ocl_int(l, a->causal);
    neb__ocl_uint(l, a->drop.threshold);
    neb__ocl_uint(l, a->drop.op);
    neb__ocl_uint(l, a->drop.first);
}

static neb_status run(struct neb_ocl_launch *l, const struct neb_attn *a, int64_t longest, int64_t heads)
{
    const struct neb_ocl_cut *c = &l->dev->cut;
    return neb__ocl_run_groups(l, neb__ocl_ceil(longest, (int64_t)c->aw * c->vw), heads, a->sequences, c->aw,
                               1);
}

/* Zeros in the rows of x that belong to no sequence. */
static neb_status clear_outside(struct neb_ocl *dev, const struct neb_attn *a, void *x, const int32_t *starts,
                                int64_t rows, int64_t cols, int64_t ld)
{
    struct neb_ocl_launch l = neb__ocl_begin(dev, NEB_OCL_ATTN, variant_of(dev, a), "attn_outside");
    neb__ocl_ptr(&l, x, neb__ocl_size(a->type));
    neb__ocl_ptr(&l, starts, 4);
    neb__ocl_int(&l, (int)a->sequences);
    neb__ocl_long(&l, rows);
    neb__ocl_long(&l, cols);
    neb__ocl_long(&l, ld);
    return neb__ocl_run_each(&l, cols, rows);
}

neb_status neb__ocl_attn(void *ctx, const struct neb_attn *a)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    const size_t size = neb__ocl_size(a->type);
    NEB_TRY(check(dev, "attn", a));
    NEB_TRY(clear_outside(dev, a, a->o, a->starts_q, a->q_rows, a->heads * a->head_dim, a->ldo));
    struct neb_ocl_launch l = neb__ocl_begin(dev, NEB_OCL_ATTN, variant_of(dev, a), "attn");
    neb__ocl_ptr(&l, a->q, size);
    neb__ocl_ptr(&l, a->k, size);
    neb__ocl_ptr(&l, a->v, size);
    neb__ocl_ptr(&l, a->o, size);
    neb__ocl_ptr(&l, a->lse, 4);
    neb__ocl_ptr(&l, a->starts_q, 4);
    neb__ocl_ptr(&l, a->starts_k, 4);
    dropout_args(&l, a);
    shape_args(&l, a);
    return run(&l, a, a->max_q, a->heads);
}

static neb_status grad_q(struct neb_ocl *dev, const struct neb_attn_bwd *b)
{
    const struct neb_attn *a = &b->f;
    const size_t size = neb__ocl_size(a->type);
    struct neb_ocl_launch l = neb__ocl_begin(dev, NEB_OCL_ATTN, variant_of(dev, a), "attn_dq");
    neb__ocl_ptr(&l, a->q, size);
    neb__ocl_ptr(&l, a->k, size);
    neb__ocl_ptr(&l, a->v, size);
    neb__ocl_ptr(&l, a->o, size);
    neb__ocl_ptr(&l, a->lse, 4);
    neb__ocl_ptr(&l, a->starts_q, 4);
    neb__ocl_ptr(&l, a->starts_k, 4);
    dropout_args(&l, a);
    neb__ocl_ptr(&l, b->d_o, size);
    neb__ocl_ptr(&l, b->dq, size);
    neb__ocl_ptr(&l, b->scratch, 4);
    shape_args(&l, a);
    return run(&l, a, a->max_q, a->heads);
}

static neb_status grad_kv(struct neb_ocl *dev, const struct neb_attn_bwd *b, const char *kernel, void *out)
{
    const struct neb_attn *a = &b->f;
    const size_t size = neb__ocl_size(a->type);
    struct neb_ocl_launch l = neb__ocl_begin(dev, NEB_OCL_ATTN, variant_of(dev, a), kernel);
    neb__ocl_ptr(&l, a->q, size);
    neb__ocl_ptr(&l, a->k, size);
    neb__ocl_ptr(&l, a->v, size);
    neb__ocl_ptr(&l, a->lse, 4);
    neb__ocl_ptr(&l, a->starts_q, 4);
    neb__ocl_ptr(&l, a->starts_k, 4);
    dropout_args(&l, a);
    neb__ocl_ptr(&l, b->d_o, size);
    neb__ocl_ptr(&l, out, size);
    neb__ocl_ptr(&l, b->scratch, 4);
    shape_args(&l, a);
    return run(&l, a, a->max_k, a->kv_heads);
}

neb_status neb__ocl_attn_bwd(void *ctx, const struct neb_attn_bwd *b)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    const struct neb_attn *a = &b->f;
    const int64_t cols_q = a->heads * a->head_dim, cols_k = a->kv_heads * a->head_dim;
    NEB_TRY(check(dev, "attn_bwd", a));
    if (a->q_rows > 0 && !b->scratch)
        return neb__ocl_fail(dev, NEB_ERR_INVALID, "opencl: attn_bwd: scratch memory is missing");
    NEB_TRY(clear_outside(dev, a, b->dq, a->starts_q, a->q_rows, cols_q, a->ldq));
    NEB_TRY(clear_outside(dev, a, b->dk, a->starts_k, a->k_rows, cols_k, a->ldk));
    NEB_TRY(clear_outside(dev, a, b->dv, a->starts_k, a->k_rows, cols_k, a->ldv));
    NEB_TRY(grad_q(dev, b)); /* leaves delta for the others */
    NEB_TRY(grad_kv(dev, b, "attn_dk", b->dk));
    return grad_kv(dev, b, "attn_dv", b->dv);
}

neb_status neb__ocl_attn_softmax(void *ctx, const struct neb_attn_softmax *a)
{
    struct neb_ocl_launch l = neb__ocl_begin(neb__ocl(ctx), NEB_OCL_ATTN_REF, 0, "attn_softmax");
    neb__ocl_ptr(&l, a->score, 4);
    neb__ocl_ptr(&l, a->lse, 4);
    neb__ocl_ptr(&l, a->starts_q, 4);
    neb__ocl_ptr(&l, a->starts_k, 4);
    neb__ocl_int(&l, (int)a->sequences);
    neb__ocl_long(&l, a->q_rows);
    neb__ocl_long(&l, a->k_rows);
    neb__ocl_int(&l, a->causal);
    neb__ocl_int(&l, a->lse != NULL);
    return neb__ocl_run_rows(&l, a->q_rows, a->heads);
}

neb_status neb__ocl_attn_softmax_bwd(void *ctx, const struct neb_attn_softmax *a)
{
    struct neb_ocl_launch l = neb__ocl_begin(neb__ocl(ctx), NEB_OCL_ATTN_REF, 0, "attn_softmax_bwd");
    neb__ocl_ptr(&l, a->prob, 4);
    neb__ocl_ptr(&l, a->dscore, 4);
    neb__ocl_ptr(&l, a->starts_q, 4);
    neb__ocl_ptr(&l, a->starts_k, 4);
    neb__ocl_int(&l, (int)a->sequences);
    neb__ocl_long(&l, a->q_rows);
    neb__ocl_long(&l, a->k_rows);
    neb__ocl_int(&l, a->causal);
    return neb__ocl_run_rows(&l, a->q_rows, a->heads);
}

neb_status neb__ocl_attn_dropout(void *ctx, const struct neb_attn_dropout *a)
{
    if (!a->drop.threshold) return NEB_OK;
    struct neb_ocl_launch l = neb__ocl_begin(neb__ocl(ctx), NEB_OCL_ATTN_REF, 0, "attn_dropout");
    neb__ocl_ptr(&l, a->prob, 4);
    neb__ocl_ptr(&l, a->starts_q, 4);
    neb__ocl_ptr(&l, a->starts_k, 4);
    neb__ocl_ptr(&l, a->drop.sample, 4);
    neb__ocl_ptr(&l, a->drop.ctl, 4);
    neb__ocl_int(&l, (int)a->sequences);
    neb__ocl_long(&l, a->q_rows);
    neb__ocl_long(&l, a->k_rows);
    neb__ocl_uint(&l, a->drop.threshold);
    neb__ocl_uint(&l, a->drop.op);
    neb__ocl_uint(&l, a->drop.first);
    return neb__ocl_run_rows(&l, a->q_rows, a->heads);
}
