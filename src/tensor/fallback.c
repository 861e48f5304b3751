/* fallback.c: every fused slot as a composition of primitives. Read it next to device.h: it defines what the
 * fused kernels must compute. It spends memory freely. */
#include "tensor/fallback.h"

/* All calls of one composition belong to one tick, so the memory behind the arguments stays alive
 * throughout. */
#define COMPOSE(t, body)               \
    do {                               \
        (t)->hold++;                   \
        neb_status compose_s = (body); \
        (t)->hold--;                   \
        return compose_s;              \
    } while (0)

static void *temp(neb_tape *t, int64_t values, neb_dtype type)
{
    return neb__tape_temp(t, values * (int64_t)neb_dtype_size(type));
}

/* ---- linear -------------------------------------------------------------------------------------------- */

static neb_status linear(neb_tape *t, const struct neb_linear *a)
{
    bool keep = a->act != NEB_ACT_NONE;
    void *pre = a->y;
    if (keep) pre = a->pre ? a->pre : temp(t, a->rows * a->ldy, a->type);
    struct neb_gemm g = {.a = a->x,
                         .b = a->w,
                         .c = pre,
                         .m = a->rows,
                         .n = a->out,
                         .k = a->in,
                         .lda = a->ldx,
                         .ldb = a->in,
                         .ldc = a->ldy,
                         .batch = 1,
                         .trans_b = 1,
                         .alpha = a->alpha,
                         .beta = (float)a->acc_y,
                         .type = a->type,
                         .c_type = a->type};
    NEB_TRY(NEB_CALL(t, gemm, &g));
    if (a->bias) {
        struct neb_bias b = {.y = pre,
                             .bias = a->bias,
                             .rows = a->rows,
                             .cols = a->out,
                             .type = a->type,
                             .bias_type = a->type};
        NEB_TRY(NEB_CALL(t, bias, &b));
    }
    if (!keep) return NEB_OK;
    struct neb_act_args f = {.x = pre, .y = a->y, .n = a->rows * a->ldy, .act = a->act, .type = a->type};
    return NEB_CALL(t, act, &f);
}

neb_status neb__reference_linear(neb_tape *t, const struct neb_linear *a)
{
    COMPOSE(t, linear(t, a));
}

static neb_status linear_dx(neb_tape *t, const struct neb_linear_bwd *a)
{
    bool through = a->x_act != NEB_ACT_NONE;
    void *raw = through ? temp(t, a->rows * a->lddx, a->type) : a->dx;
    struct neb_gemm g = {.a = a->g,
                         .b = a->w,
                         .c = raw,
                         .m = a->rows,
                         .n = a->in,
                         .k = a->out,
                         .lda = a->ldg,
                         .ldb = a->in,
                         .ldc = a->lddx,
                         .batch = 1,
                         .alpha = a->alpha,
                         .beta = through ? 0 : (float)a->acc_dx,
                         .type = a->type,
                         .c_type = a->type};
    NEB_TRY(NEB_CALL(t, gemm, &g));
    if (through) {
        struct neb_act_args f = {.x = a->x_pre,
                                 .dy = raw,
                                 .dx = a->dx,
                                 .n = a->rows * a->lddx,
                                 .act = a->x_act,
                                 .acc_dx = a->acc_dx,
                                 .type = a->type};
        NEB_TRY(NEB_CALL(t, act_bwd, &f));
    }
    if (!a->dx_colsum) return NEB_OK;
    struct neb_colsum c = {.x = a->dx,
                           .out = a->dx_colsum,
                           .rows = a->rows,
                           .cols = a->in,
                           .ldx = a->lddx,
                           .acc = a->acc_dx_colsum,
                           .type = a->type};
    return NEB_CALL(t, colsum, &c);
}

static neb_status linear_bwd(neb_tape *t, const struct neb_linear_bwd *a)
{
    if (a->dx) NEB_TRY(linear_dx(t, a));
    if (a->dw) {
        struct neb_gemm g = {.a = a->g,
                             .b = a->x,
                             .c = a->dw,
                             .m = a->out,
                             .n = a->in,
                             .k = a->rows,
                             .lda = a->ldg,
                             .ldb = a->ldx,
                             .ldc = a->in,
                             .batch = 1,
                             .trans_a = 1,
                             .alpha = a->alpha,
                             .beta = (float)a->acc_dw,
                             .type = a->type,
                             .c_type = NEB_F32};
        NEB_TRY(NEB_CALL(t, gemm, &g));
    }
    if (!a->db) return NEB_OK;
    struct neb_colsum c = {.x = a->g,
                           .out = a->db,
                           .rows = a->rows,
                           .cols = a->out,
                           .ldx = a->ldg,
                           .acc = a->acc_db,
                           .type = a->type};
    return NEB_CALL(t, colsum, &c);
}

neb_status neb__reference_linear_bwd(neb_tape *t, const struct neb_linear_bwd *a)
{
    COMPOSE(t, linear_bwd(t, a));
}

/* ---- residual and norm --------------------------------------------------------------------------------- */

static neb_status add_dropped(neb_tape *t, const void *x, void *onto, int64_t rows, int64_t d, neb_dtype type,
                              const struct neb_dropout *drop)
{
    if (drop->threshold) {
        struct neb_dropout_args a = {
            .x = x, .y = onto, .rows = rows, .cols = d, .acc = 1, .drop = *drop, .type = type};
        return NEB_CALL(t, dropout, &a);
    }
    struct neb_axpby a = {.x = x, .y = onto, .n = rows * d, .a = 1, .b = 1, .type = type};
    return NEB_CALL(t, axpby, &a);
}

static neb_status norm_residual(neb_tape *t, const struct neb_norm *a)
{
    struct neb_axpby copy = {.x = a->residual, .y = a->s, .n = a->rows * a->d, .a = 1, .type = a->type};
    NEB_TRY(NEB_CALL(t, axpby, &copy));
    NEB_TRY(add_dropped(t, a->x, a->s, a->rows, a->d, a->type, &a->drop));
    if (!a->y) return NEB_OK;
    struct neb_norm n = *a;
    n.x = a->s;
    n.residual = NULL;
    n.s = NULL;
    n.drop = (struct neb_dropout){0};
    return NEB_CALL(t, norm, &n);
}

neb_status neb__reference_norm_residual(neb_tape *t, const struct neb_norm *a)
{
    COMPOSE(t, norm_residual(t, a));
}

static neb_status norm_residual_bwd(neb_tape *t, const struct neb_norm_bwd *a)
{
    int64_t n = a->rows * a->d;
    if (a->dy) {
        struct neb_norm_bwd b = *a;
        b.ds_in = NULL;
        b.dx = NULL;
        b.drop = (struct neb_dropout){0};
        b.ds = a->ds_in ? temp(t, n, a->type) : a->ds;
        b.scratch = neb__tape_scratch(t, NEB_SLOT_NORM_BWD, &b);
        NEB_TRY(NEB_CALL(t, norm_bwd, &b));
        if (a->ds_in) {
            struct neb_axpby in = {.x = a->ds_in, .y = b.ds, .n = n, .a = 1, .b = 1, .type = a->type};
            struct neb_axpby out = {.x = b.ds, .y = a->ds, .n = n, .a = 1, .type = a->type};
            NEB_TRY(NEB_CALL(t, axpby, &in));
            NEB_TRY(NEB_CALL(t, axpby, &out));
        }
    } else if (a->ds != a->ds_in) {
        struct neb_axpby out = {.x = a->ds_in, .y = a->ds, .n = n, .a = 1, .type = a->type};
        NEB_TRY(NEB_CALL(t, axpby, &out));
    }
    if (!a->dx) return NEB_OK;
    struct neb_dropout_args d = {.x = a->ds,
                                 .y = a->dx,
                                 .rows = a->rows,
                                 .cols = a->d,
                                 .acc = a->acc_dx,
                                 .drop = a->drop,
                                 .type = a->type};
    return NEB_CALL(t, dropout, &d);
}

neb_status neb__reference_norm_residual_bwd(neb_tape *t, const struct neb_norm_bwd *a)
{
    COMPOSE(t, norm_residual_bwd(t, a));
}

/* ---- attention: all queries against all keys, the softmax leaving only pairs of one sequence ----------- */

static const void *at(const void *p, int64_t values, neb_dtype type)
{
    return (const char *)p + values * (int64_t)neb_dtype_size(type);
}

/* score (heads, q_rows, k_rows) = scale * a b^T per head, in F32; b's heads are shared by groups of a's. */
static neb_status head_products(neb_tape *t, const struct neb_attn *a, const void *x, int64_t ldx,
                                const void *y, int64_t ldy, float scale, float *score)
{
    int64_t group = a->heads / a->kv_heads;
    for (int64_t h = 0; h < a->heads; h++) {
        struct neb_gemm g = {.a = at(x, h * a->head_dim, a->type),
                             .b = at(y, h / group * a->head_dim, a->type),
                             .c = score + h * a->q_rows * a->k_rows,
                             .m = a->q_rows,
                             .n = a->k_rows,
                             .k = a->head_dim,
                             .lda = ldx,
                             .ldb = ldy,
                             .ldc = a->k_rows,
                             .batch = 1,
                             .trans_b = 1,
                             .alpha = scale,
                             .type = a->type,
                             .c_type = NEB_F32};
        NEB_TRY(NEB_CALL(t, gemm, &g));
    }
    return NEB_OK;
}

/* The probabilities in the compute type, for products with activations. */
static neb_status narrow(neb_tape *t, const float *from, int64_t n, neb_dtype type, const void **out)
{
    if (type == NEB_F32) {
        *out = from;
        return NEB_OK;
    }
    void *to = temp(t, n, type);
    struct neb_copy2d c = {.src = from,
                           .dst = to,
                           .rows = 1,
                           .cols = n,
                           .ld_src = n,
                           .ld_dst = n,
                           .src_type = NEB_F32,
                           .dst_type = type};
    *out = to;
    return NEB_CALL(t, copy2d, &c);
}

static neb_status probabilities(neb_tape *t, const struct neb_attn *a, float *lse, float *score)
{
    NEB_TRY(head_products(t, a, a->q, a->ldq, a->k, a->ldk, a->scale, score));
    struct neb_attn_softmax s = {.score = score,
                                 .lse = lse,
                                 .starts_q = a->starts_q,
                                 .starts_k = a->starts_k,
                                 .sequences = a->sequences,
                                 .heads = a->heads,
                                 .q_rows = a->q_rows,
                                 .k_rows = a->k_rows,
                                 .causal = a->causal};
    return NEB_CALL(t, attn_softmax, &s);
}

static neb_status drop_scores(neb_tape *t, const struct neb_attn *a, float *p)
{
    if (!a->drop.threshold) return NEB_OK;
    struct neb_attn_dropout d = {.prob = p,
                                 .starts_q = a->starts_q,
                                 .starts_k = a->starts_k,
                                 .sequences = a->sequences,
                                 .heads = a->heads,
                                 .q_rows = a->q_rows,
                                 .k_rows = a->k_rows,
                                 .drop = a->drop};
    return NEB_CALL(t, attn_dropout, &d);
}

static neb_status attn(neb_tape *t, const struct neb_attn *a)
{
    int64_t plane = a->q_rows * a->k_rows, group = a->heads / a->kv_heads;
    float *score = temp(t, a->heads * plane, NEB_F32);
    NEB_TRY(probabilities(t, a, a->lse, score));
    NEB_TRY(drop_scores(t, a, score));
    const void *p;
    NEB_TRY(narrow(t, score, a->heads * plane, a->type, &p));
    for (int64_t h = 0; h < a->heads; h++) {
        struct neb_gemm g = {.a = at(p, h * plane, a->type),
                             .b = at(a->v, h / group * a->head_dim, a->type),
                             .c = (void *)at(a->o, h * a->head_dim, a->type),
                             .m = a->q_rows,
                             .n = a->head_dim,
                             .k = a->k_rows,
                             .lda = a->k_rows,
                             .ldb = a->ldv,
                             .ldc = a->ldo,
                             .batch = 1,
                             .alpha = 1,
                             .type = a->type,
                             .c_type = a->type};
        NEB_TRY(NEB_CALL(t, gemm, &g));
    }
    return NEB_OK;
}

neb_status neb__reference_attn(neb_tape *t, const struct neb_attn *a)
{
    COMPOSE(t, attn(t, a));
}

/* out (k_rows, head) (+)= p^T x per head, p (heads, q_rows, k_rows): the gradients of keys and values. */
static neb_status key_gradient(neb_tape *t, const struct neb_attn *a, const void *p, const void *x,
                               int64_t ldx, float alpha, void *out, int64_t ld_out)
{
    int64_t plane = a->q_rows * a->k_rows, group = a->heads / a->kv_heads;
    for (int64_t h = 0; h < a->heads; h++) {
        struct neb_gemm g = {.a = at(p, h * plane, a->type),
                             .b = at(x, h * a->head_dim, a->type),
                             .c = (void *)at(out, h / group * a->head_dim, a->type),
                             .m = a->k_rows,
                             .n = a->head_dim,
                             .k = a->q_rows,
                             .lda = a->k_rows,
                             .ldb = ldx,
                             .ldc = ld_out,
                             .batch = 1,
                             .trans_a = 1,
                             .alpha = alpha,
                             .beta = h % group ? 1 : 0,
                             .type = a->type,
                             .c_type = a->type};
        NEB_TRY(NEB_CALL(t, gemm, &g));
    }
    return NEB_OK;
}

static neb_status attn_bwd(neb_tape *t, const struct neb_attn_bwd *b)
{
    const struct neb_attn *a = &b->f;
    int64_t plane = a->q_rows * a->k_rows, all = a->heads * plane, group = a->heads / a->kv_heads;
    float *prob = temp(t, all, NEB_F32), *dropped = temp(t, all, NEB_F32), *ds = temp(t, all, NEB_F32);
    NEB_TRY(probabilities(t, a, NULL, prob));
    struct neb_axpby copy = {.x = prob, .y = dropped, .n = all, .a = 1, .type = NEB_F32};
    NEB_TRY(NEB_CALL(t, axpby, &copy));
    NEB_TRY(drop_scores(t, a, dropped));
    const void *p, *s;
    NEB_TRY(narrow(t, dropped, all, a->type, &p));
    NEB_TRY(key_gradient(t, a, p, b->d_o, a->ldo, 1, b->dv, a->ldv));
    NEB_TRY(head_products(t, a, b->d_o, a->ldo, a->v, a->ldv, 1, ds));
    NEB_TRY(drop_scores(t, a, ds));
    struct neb_attn_softmax f = {.prob = prob,
                                 .dscore = ds,
                                 .starts_q = a->starts_q,
                                 .starts_k = a->starts_k,
                                 .sequences = a->sequences,
                                 .heads = a->heads,
                                 .q_rows = a->q_rows,
                                 .k_rows = a->k_rows,
                                 .causal = a->causal};
    NEB_TRY(NEB_CALL(t, attn_softmax_bwd, &f));
    NEB_TRY(narrow(t, ds, all, a->type, &s));
    NEB_TRY(key_gradient(t, a, s, a->q, a->ldq, a->scale, b->dk, a->ldk));
    for (int64_t h = 0; h < a->heads; h++) {
        struct neb_gemm g = {.a = at(s, h * plane, a->type),
                             .b = at(a->k, h / group * a->head_dim, a->type),
                             .c = (void *)at(b->dq, h * a->head_dim, a->type),
                             .m = a->q_rows,
                             .n = a->head_dim,
                             .k = a->k_rows,
                             .lda = a->k_rows,
                             .ldb = a->ldk,
                             .ldc = a->ldq,
                             .batch = 1,
                             .alpha = a->scale,
                             .type = a->type,
                             .c_type = a->type};
        NEB_TRY(NEB_CALL(t, gemm, &g));
    }
    return NEB_OK;
}

neb_status neb__reference_attn_bwd(neb_tape *t, const struct neb_attn_bwd *b)
{
    COMPOSE(t, attn_bwd(t, b));
}

/* ---- linear and cross-entropy -------------------------------------------------------------------------- */

static neb_status linear_xent(neb_tape *t, const struct neb_linear_xent *a)
{
    void *logits = temp(t, a->rows * a->classes, a->type);
    struct neb_linear l = {.x = a->x,
                           .w = a->w,
                           .bias = a->bias,
                           .y = logits,
                           .rows = a->rows,
                           .in = a->in,
                           .out = a->classes,
                           .ldx = a->in,
                           .ldy = a->classes,
                           .alpha = 1,
                           .type = a->type};
    NEB_TRY(linear(t, &l));
    struct neb_xent x = {.logits = logits,
                         .rows = a->rows,
                         .classes = a->classes,
                         .ld = a->classes,
                         .want_grad = a->want_grad,
                         .t = a->t,
                         .loss = a->loss,
                         .type = a->type};
    NEB_TRY(NEB_CALL(t, xent, &x));
    if (!a->want_grad) return NEB_OK;
    struct neb_linear_bwd b = {.g = logits,
                               .x = a->x,
                               .w = a->w,
                               .dx = a->dx,
                               .dw = a->dw,
                               .db = a->db,
                               .rows = a->rows,
                               .in = a->in,
                               .out = a->classes,
                               .ldg = a->classes,
                               .ldx = a->in,
                               .lddx = a->in,
                               .acc_dw = a->acc_dw,
                               .acc_db = a->acc_db,
                               .alpha = 1,
                               .type = a->type};
    return linear_bwd(t, &b);
}

neb_status neb__reference_linear_xent(neb_tape *t, const struct neb_linear_xent *a)
{
    COMPOSE(t, linear_xent(t, a));
}
