/* host_ops.c: primitives that a plug-in lacks, computed on the host.
 *
 * A plug-in in the making says NEB_DEVICE_HOST_PRIMITIVES in its flags. Each primitive that it leaves NULL is then run
 * here: its operands are copied to the host, the CPU device computes, and the results are copied back. That is slow, but
 * it is right: a device with nothing but memory and copies trains a model and passes the conformance suite, and its author
 * replaces one slot after the other by a real one.
 *
 * The device's table is wrapped. A slot of the plug-in is reached through a trampoline that unwraps the context. Operands
 * are copied as whole ranges: for a matrix with a distance between its rows that includes the gaps, which come back
 * unchanged. The same address given twice (in place) is one range. Recording is switched off, because it allows no
 * copies to the host. */
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "device/device.h"
#include "tensor/narrow.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

struct neb_host_ops {
    struct neb_device_ops table; /* what the program sees */
    const struct neb_device_ops *plugin;
    void *ctx; /* the plug-in's */
    void *cpu; /* an open CPU device */
};

/* ---- operands ---- */

enum { MOST = 32 };
enum how { IN, OUT }; /* OUT is copied in both directions: not every op writes all of a range */

struct operand {
    char *device, *host;
    size_t bytes;
    enum how how;
    void **field; /* of the arguments' copy */
};

struct borrowed {
    struct neb_host_ops *h;
    int n;
    struct operand op[MOST];
};

/* `field` is the address of a pointer in the copy of the arguments; NULL pointers and empty ranges are left alone. */
static void use(struct borrowed *b, const void *field, int64_t values, size_t size, enum how how)
{
    void *p;
    memcpy(&p, field, sizeof p);
    if (!p || values <= 0 || b->n == MOST) return;
    b->op[b->n++] = (struct operand){p, NULL, (size_t)values * size, how, (void **)(uintptr_t)field};
}

static int64_t strided(int64_t rows, int64_t cols, int64_t ld)
{
    return rows > 0 ? (rows - 1) * ld + cols : 0;
}

/* An operand that begins at the same address as an earlier one shares its memory. */
static struct operand *twin_of(struct borrowed *b, int i)
{
    for (int j = 0; j < i; j++)
        if (b->op[j].device == b->op[i].device && b->op[j].host) return &b->op[j];
    return NULL;
}

static neb_status fetch(struct borrowed *b)
{
    struct neb_host_ops *h = b->h;
    for (int i = 0; i < b->n; i++)
        for (int j = 0; j < b->n; j++)
            if (b->op[i].device == b->op[j].device && b->op[i].bytes < b->op[j].bytes)
                b->op[i].bytes = b->op[j].bytes;
    for (int i = 0; i < b->n; i++) {
        struct operand *o = &b->op[i], *twin = twin_of(b, i);
        if (twin) {
            if (o->how == OUT) twin->how = OUT;
            memcpy(o->field, &twin->host, sizeof twin->host);
            continue;
        }
        o->host = neb__malloc(o->bytes);
        if (!o->host) return neb__fail(NEB_ERR_NOMEM, "out of memory: %zu bytes of an operand", o->bytes);
        NEB_TRY(h->plugin->download(h->ctx, o->host, o->device, o->bytes));
        memcpy(o->field, &o->host, sizeof o->host);
    }
    return NEB_OK;
}

static neb_status give_back(struct borrowed *b, neb_status status)
{
    struct neb_host_ops *h = b->h;
    for (int i = 0; i < b->n; i++) {
        struct operand *o = &b->op[i];
        if (o->host && o->how == OUT && status == NEB_OK)
            status = h->plugin->upload(h->ctx, o->device, o->host, o->bytes);
        neb__free(o->host);
    }
    return status;
}

static void use_dropout(struct borrowed *b, const struct neb_dropout *d, int64_t samples, int64_t positions)
{
    if (!d->threshold) return;
    use(b, &d->sample, samples, 4, IN);
    use(b, &d->position, positions, 4, IN);
    use(b, &d->ctl, 1, sizeof(struct neb_ctl), IN);
}

static void use_loss(struct borrowed *b, const struct neb_loss *l, int64_t rows)
{
    use(b, &l->weight, rows, 4, IN);
    use(b, &l->ctl, 1, sizeof(struct neb_ctl), OUT);
}

/* ---- the operands of each primitive ---- */

static void of_widen(struct borrowed *b, struct neb_widen *a)
{
    use(b, &a->w.code, (int64_t)neb__narrow_code_bytes(a->w.kind, a->rows, a->cols), 1, IN);
    use(b, &a->w.scale, (int64_t)neb__narrow_scale_bytes(a->w.kind, a->rows, a->cols), 1, IN);
    use(b, &a->out, a->rows * a->cols, neb__dtype_size(a->type), OUT);
}

static void of_gemm(struct borrowed *b, struct neb_gemm *a)
{
    const size_t size = neb__dtype_size(a->type);
    const int64_t more = a->batch - 1;
    use(b, &a->a,
        more * a->stride_a + (a->trans_a ? strided(a->k, a->m, a->lda) : strided(a->m, a->k, a->lda)), size,
        IN);
    use(b, &a->b,
        more * a->stride_b + (a->trans_b ? strided(a->n, a->k, a->ldb) : strided(a->k, a->n, a->ldb)), size,
        IN);
    use(b, &a->c, more * a->stride_c + strided(a->m, a->n, a->ldc), neb__dtype_size(a->c_type), OUT);
}

static void of_copy2d(struct borrowed *b, struct neb_copy2d *a)
{
    use(b, &a->src, strided(a->rows, a->cols, a->ld_src), neb__dtype_size(a->src_type), IN);
    use(b, &a->dst, strided(a->rows, a->cols, a->ld_dst), neb__dtype_size(a->dst_type), OUT);
}

static void of_axpby(struct borrowed *b, struct neb_axpby *a)
{
    use(b, &a->x, a->n, neb__dtype_size(a->type), IN);
    use(b, &a->y, a->n, neb__dtype_size(a->type), OUT);
}

static void of_mul(struct borrowed *b, struct neb_mul *a)
{
    use(b, &a->x, a->n, neb__dtype_size(a->type), IN);
    use(b, &a->y, a->n, neb__dtype_size(a->type), IN);
    use(b, &a->z, a->n, neb__dtype_size(a->type), OUT);
}

static void of_act(struct borrowed *b, struct neb_act_args *a)
{
    const size_t size = neb__dtype_size(a->type);
    use(b, &a->x, a->n, size, IN);
    use(b, &a->y, a->n, size, OUT);
    use(b, &a->dy, a->n, size, IN);
    use(b, &a->dx, a->n, size, OUT);
}
#define of_act_bwd of_act

static void of_bias(struct borrowed *b, struct neb_bias *a)
{
    use(b, &a->y, a->rows * a->cols, neb__dtype_size(a->type), OUT);
    use(b, &a->bias, a->cols, neb__dtype_size(a->bias_type), IN);
}

static void of_colsum(struct borrowed *b, struct neb_colsum *a)
{
    use(b, &a->x, strided(a->rows, a->cols, a->ldx), neb__dtype_size(a->type), IN);
    use(b, &a->out, a->cols, 4, OUT);
}

static void of_swiglu(struct borrowed *b, struct neb_swiglu *a)
{
    const size_t size = neb__dtype_size(a->type);
    use(b, &a->x, a->rows * 2 * a->n, size, IN);
    use(b, &a->y, a->rows * a->n, size, OUT);
    use(b, &a->dy, a->rows * a->n, size, IN);
    use(b, &a->dx, a->rows * 2 * a->n, size, OUT);
}
#define of_swiglu_bwd of_swiglu

static void of_embed(struct borrowed *b, struct neb_embed *a)
{
    const size_t size = neb__dtype_size(a->type);
    for (int t = 0; t < a->tables && t < 3; t++) {
        use(b, &a->table[t], a->table_rows[t] * a->d, size, IN);
        use(b, &a->d_table[t], a->table_rows[t] * a->d, 4, OUT);
        use(b, &a->ids[t], a->rows, 4, IN);
    }
    use(b, &a->y, a->rows * a->d, size, OUT);
    use(b, &a->dy, a->rows * a->d, size, IN);
}
#define of_embed_bwd of_embed

static void of_gather_rows(struct borrowed *b, struct neb_rows *a)
{
    const size_t size = neb__dtype_size(a->type);
    use(b, &a->x, a->rows * a->d, size, IN);
    use(b, &a->y, a->n * a->d, size, OUT);
    use(b, &a->index, a->n, 4, IN);
}

static void of_scatter_rows(struct borrowed *b, struct neb_rows *a)
{
    const size_t size = neb__dtype_size(a->type);
    use(b, &a->x, strided(a->n, a->d, a->ldx ? a->ldx : a->d), size, IN);
    use(b, &a->y, a->rows * a->d, size, OUT);
    use(b, &a->index, a->n, 4, IN);
}

static void of_pool(struct borrowed *b, struct neb_pool_args *a)
{
    const size_t size = neb__dtype_size(a->type);
    use(b, &a->x, a->rows * a->d, size, IN);
    use(b, &a->y, a->sequences * a->d, size, OUT);
    use(b, &a->dy, a->sequences * a->d, size, IN);
    use(b, &a->dx, a->rows * a->d, size, OUT);
    use(b, &a->starts, a->sequences + 1, 4, IN);
}
#define of_pool_bwd of_pool

static void of_rope(struct borrowed *b, struct neb_rope *a)
{
    use(b, &a->x, strided(a->rows, a->heads * a->head_dim, a->ldx), neb__dtype_size(a->type), OUT);
    use(b, &a->position, a->rows, 4, IN);
}

static void of_dropout(struct borrowed *b, struct neb_dropout_args *a)
{
    use(b, &a->x, a->rows * a->cols, neb__dtype_size(a->type), IN);
    use(b, &a->y, a->rows * a->cols, neb__dtype_size(a->type), OUT);
    use_dropout(b, &a->drop, a->rows, a->rows);
}

static void of_attn_softmax(struct borrowed *b, struct neb_attn_softmax *a)
{
    const int64_t n = a->heads * a->q_rows * a->k_rows;
    use(b, &a->score, n, 4, OUT);
    use(b, &a->prob, n, 4, IN);
    use(b, &a->dscore, n, 4, OUT);
    use(b, &a->lse, a->heads * a->q_rows, 4, OUT);
    use(b, &a->starts_q, a->sequences + 1, 4, IN);
    use(b, &a->starts_k, a->sequences + 1, 4, IN);
}
#define of_attn_softmax_bwd of_attn_softmax

static void of_attn_dropout(struct borrowed *b, struct neb_attn_dropout *a)
{
    use(b, &a->prob, a->heads * a->q_rows * a->k_rows, 4, OUT);
    use(b, &a->starts_q, a->sequences + 1, 4, IN);
    use(b, &a->starts_k, a->sequences + 1, 4, IN);
    use_dropout(b, &a->drop, a->sequences, 0);
}

static void of_norm(struct borrowed *b, struct neb_norm *a)
{
    const size_t size = neb__dtype_size(a->type);
    const int64_t n = a->rows * a->d;
    use(b, &a->x, n, size, IN);
    use(b, &a->residual, n, size, IN);
    use(b, &a->gamma, a->d, 4, IN);
    use(b, &a->beta, a->d, 4, IN);
    use(b, &a->s, n, size, OUT);
    use(b, &a->y, n, size, OUT);
    use(b, &a->mean, a->rows, 4, OUT);
    use(b, &a->rstd, a->rows, 4, OUT);
    use_dropout(b, &a->drop, a->rows, a->rows);
}

static void of_norm_bwd(struct borrowed *b, struct neb_norm_bwd *a)
{
    const size_t size = neb__dtype_size(a->type);
    const int64_t n = a->rows * a->d;
    use(b, &a->s, n, size, IN);
    use(b, &a->dy, n, size, IN);
    use(b, &a->ds_in, n, size, IN);
    use(b, &a->gamma, a->d, 4, IN);
    use(b, &a->mean, a->rows, 4, IN);
    use(b, &a->rstd, a->rows, 4, IN);
    use(b, &a->ds, n, size, OUT);
    use(b, &a->dx, n, size, OUT);
    use(b, &a->dgamma, a->d, 4, OUT);
    use(b, &a->dbeta, a->d, 4, OUT);
    use_dropout(b, &a->drop, a->rows, a->rows);
}

static void of_xent(struct borrowed *b, struct neb_xent *a)
{
    const int64_t k = a->t.teacher_ids ? a->t.teacher_k : a->classes;
    use(b, &a->logits, strided(a->rows, a->classes, a->ld), neb__dtype_size(a->type), OUT);
    use(b, &a->t.target, a->rows, 4, IN);
    use(b, &a->t.teacher_ids, a->rows * k, 4, IN);
    use(b, &a->t.teacher_logits, a->rows * k, 4, IN);
    use_loss(b, &a->loss, a->rows);
}

static void of_bce(struct borrowed *b, struct neb_bce *a)
{
    use(b, &a->x, a->rows, neb__dtype_size(a->type), IN);
    use(b, &a->target, a->rows, 4, IN);
    use(b, &a->dx, a->rows, neb__dtype_size(a->type), OUT);
    use_loss(b, &a->loss, a->rows);
}

static void of_mse(struct borrowed *b, struct neb_pair_loss *a)
{
    const size_t size = neb__dtype_size(a->type);
    use(b, &a->x, a->rows * a->d, size, IN);
    use(b, &a->y, a->rows * a->d, size, IN);
    use(b, &a->dx, a->rows * a->d, size, OUT);
    use(b, &a->dy, a->rows * a->d, size, OUT);
    use_loss(b, &a->loss, a->rows);
}
#define of_cosine of_mse

static void of_sumsq(struct borrowed *b, struct neb_sumsq *a)
{
    use(b, &a->x, a->n, 4, IN);
    use(b, &a->ctl, 1, sizeof(struct neb_ctl), OUT);
    use(b, &a->blocks, (a->n + NEB_SUMSQ_BLOCK - 1) / NEB_SUMSQ_BLOCK, 8, OUT);
}

static void of_clip(struct borrowed *b, struct neb_clip *a)
{
    use(b, &a->ctl, 1, sizeof(struct neb_ctl), OUT);
}

/* How far the slabs reach, the segments say, and those are on the device. */
static neb_status end_of(struct neb_host_ops *h, const struct neb_update *a, int64_t *end)
{
    const size_t bytes = (size_t)a->n_segments * sizeof *a->segments;
    struct neb_segment *s = neb__malloc(bytes);
    if (!s) return neb__fail(NEB_ERR_NOMEM, "out of memory: %zu bytes of segments", bytes);
    neb_status status = h->plugin->download(h->ctx, s, a->segments, bytes);
    *end = 0;
    for (int64_t i = 0; status == NEB_OK && i < a->n_segments; i++)
        if (s[i].offset + s[i].n > *end) *end = s[i].offset + s[i].n;
    neb__free(s);
    return status;
}

/* ---- the slots ---- */

#define PRIMITIVES(X)                     \
    X(gemm, neb_gemm)                     \
    X(copy2d, neb_copy2d)                 \
    X(axpby, neb_axpby)                   \
    X(mul, neb_mul)                       \
    X(act, neb_act_args)                  \
    X(act_bwd, neb_act_args)              \
    X(bias, neb_bias)                     \
    X(colsum, neb_colsum)                 \
    X(swiglu, neb_swiglu)                 \
    X(swiglu_bwd, neb_swiglu)             \
    X(embed, neb_embed)                   \
    X(embed_bwd, neb_embed)               \
    X(gather_rows, neb_rows)              \
    X(scatter_rows, neb_rows)             \
    X(pool, neb_pool_args)                \
    X(pool_bwd, neb_pool_args)            \
    X(rope, neb_rope)                     \
    X(dropout, neb_dropout_args)          \
    X(attn_softmax, neb_attn_softmax)     \
    X(attn_softmax_bwd, neb_attn_softmax) \
    X(attn_dropout, neb_attn_dropout)     \
    X(norm, neb_norm)                     \
    X(norm_bwd, neb_norm_bwd)             \
    X(xent, neb_xent)                     \
    X(bce, neb_bce)                       \
    X(mse, neb_pair_loss)                 \
    X(cosine, neb_pair_loss)              \
    X(sumsq, neb_sumsq)                   \
    X(clip, neb_clip)                     \
    X(widen, neb_widen)
#define OTHERS(X)                       \
    X(norm_residual, neb_norm)          \
    X(norm_residual_bwd, neb_norm_bwd)  \
    X(linear, neb_linear)               \
    X(linear_bwd, neb_linear_bwd)       \
    X(attn, neb_attn)                   \
    X(attn_bwd, neb_attn_bwd)           \
    X(linear_xent, neb_linear_xent)     \
    X(best, neb_best)                   \
    X(pack_linear, neb_pack_linear)     \
    X(attn_listed, neb_attn_listed)     \
    X(sample, neb_sample)               \
    X(muon, neb_muon_args)              \
    X(linear_narrow, neb_linear_narrow) \
    X(linear_narrow_bwd, neb_linear_narrow_bwd)

#define HOSTED(slot, type)                                              \
    static neb_status hosted_##slot(void *ctx, const struct type *args) \
    {                                                                   \
        struct borrowed b = {.h = ctx};                                 \
        struct type a = *args;                                          \
        of_##slot(&b, &a);                                              \
        neb_status status = fetch(&b);                                  \
        if (status == NEB_OK) status = neb__cpu_ops.slot(b.h->cpu, &a); \
        return give_back(&b, status);                                   \
    }
PRIMITIVES(HOSTED)

static neb_status hosted_update(void *ctx, const struct neb_update *args)
{
    struct borrowed b = {.h = ctx};
    struct neb_update a = *args;
    int64_t end = 0;
    if (a.n_segments <= 0) return NEB_OK;
    NEB_TRY(end_of(b.h, args, &end));
    use(&b, &a.param, end, 4, OUT);
    use(&b, &a.m, end, 4, OUT);
    use(&b, &a.v, end, 4, OUT);
    use(&b, &a.grad, end, 4, IN);
    use(&b, &a.shadow, end, 2, OUT);
    use(&b, &a.segments, a.n_segments, sizeof *a.segments, IN);
    use(&b, &a.ctl, 1, sizeof(struct neb_ctl), IN);
    neb_status status = fetch(&b);
    if (status == NEB_OK) status = neb__cpu_ops.update(b.h->cpu, &a);
    return give_back(&b, status);
}

#define DIRECT(slot, type)                                              \
    static neb_status direct_##slot(void *ctx, const struct type *args) \
    {                                                                   \
        const struct neb_host_ops *h = ctx;                             \
        return h->plugin->slot(h->ctx, args);                           \
    }
PRIMITIVES(DIRECT)
DIRECT(update, neb_update)
OTHERS(DIRECT)

/* ---- the slots without an argument struct ---- */

static void w_close(void *ctx)
{
    struct neb_host_ops *h = ctx;
    h->plugin->close(h->ctx);
    neb__cpu_ops.close(h->cpu);
    neb__free(h);
}
static void w_info(void *ctx, struct neb_device_info *out)
{
    const struct neb_host_ops *h = ctx;
    h->plugin->info(h->ctx, out);
}
static neb_status w_alloc(void *ctx, size_t bytes, void **out)
{
    const struct neb_host_ops *h = ctx;
    return h->plugin->alloc(h->ctx, bytes, out);
}
static void w_free(void *ctx, void *p)
{
    const struct neb_host_ops *h = ctx;
    h->plugin->free(h->ctx, p);
}
static neb_status w_host_alloc(void *ctx, size_t bytes, void **out)
{
    const struct neb_host_ops *h = ctx;
    return h->plugin->host_alloc(h->ctx, bytes, out);
}
static void w_host_free(void *ctx, void *p)
{
    const struct neb_host_ops *h = ctx;
    h->plugin->host_free(h->ctx, p);
}
static neb_status w_upload(void *ctx, void *dst, const void *src, size_t bytes)
{
    const struct neb_host_ops *h = ctx;
    return h->plugin->upload(h->ctx, dst, src, bytes);
}
static neb_status w_download(void *ctx, void *dst, const void *src, size_t bytes)
{
    const struct neb_host_ops *h = ctx;
    return h->plugin->download(h->ctx, dst, src, bytes);
}
static neb_status w_copy(void *ctx, void *dst, const void *src, size_t bytes)
{
    const struct neb_host_ops *h = ctx;
    return h->plugin->copy(h->ctx, dst, src, bytes);
}
static neb_status w_fill(void *ctx, void *dst, uint8_t byte, size_t bytes)
{
    const struct neb_host_ops *h = ctx;
    return h->plugin->fill(h->ctx, dst, byte, bytes);
}
static neb_status w_sync(void *ctx)
{
    const struct neb_host_ops *h = ctx;
    return h->plugin->sync(h->ctx);
}
static neb_status w_side_download(void *ctx, void *dst, const void *src, size_t bytes, uint64_t *fence)
{
    const struct neb_host_ops *h = ctx;
    return h->plugin->side_download(h->ctx, dst, src, bytes, fence);
}
static neb_status w_side_upload(void *ctx, void *dst, const void *src, size_t bytes, uint64_t *fence)
{
    const struct neb_host_ops *h = ctx;
    return h->plugin->side_upload(h->ctx, dst, src, bytes, fence);
}
static neb_status w_fence_done(void *ctx, uint64_t fence, int *done)
{
    const struct neb_host_ops *h = ctx;
    return h->plugin->fence_done(h->ctx, fence, done);
}
static neb_status w_fence_wait(void *ctx, uint64_t fence)
{
    const struct neb_host_ops *h = ctx;
    return h->plugin->fence_wait(h->ctx, fence);
}
static neb_status w_fence_join(void *ctx, uint64_t fence)
{
    const struct neb_host_ops *h = ctx;
    return h->plugin->fence_join(h->ctx, fence);
}
static int64_t w_scratch_bytes(void *ctx, enum neb_slot slot, const void *args)
{
    const struct neb_host_ops *h = ctx;
    return h->plugin->scratch_bytes ? h->plugin->scratch_bytes(h->ctx, slot, args) : 0;
}
static int64_t w_packed_bytes(void *ctx, int64_t out, int64_t in, neb_dtype type)
{
    const struct neb_host_ops *h = ctx;
    return h->plugin->packed_bytes(h->ctx, out, in, type);
}

static neb_status w_comm_facts(void *ctx, struct neb_comm_facts *out)
{
    const struct neb_host_ops *h = ctx;
    return h->plugin->comm_facts(h->ctx, out);
}
static neb_status w_comm_id(void *ctx, struct neb_comm_id *out)
{
    const struct neb_host_ops *h = ctx;
    return h->plugin->comm_id(h->ctx, out);
}
static neb_status w_comm_open(void *ctx, const struct neb_comm_place *place, void **comm)
{
    const struct neb_host_ops *h = ctx;
    return h->plugin->comm_open(h->ctx, place, comm);
}
static neb_status w_exchange(void *ctx, void *comm, const struct neb_comm_exchange *x)
{
    const struct neb_host_ops *h = ctx;
    return h->plugin->exchange(h->ctx, comm, x);
}
static neb_status w_comm_state(void *ctx, void *comm, struct neb_comm_state *out)
{
    const struct neb_host_ops *h = ctx;
    return h->plugin->comm_state(h->ctx, comm, out);
}
static void w_comm_abort(void *ctx, void *comm)
{
    const struct neb_host_ops *h = ctx;
    h->plugin->comm_abort(h->ctx, comm);
}
static void w_comm_close(void *ctx, void *comm)
{
    const struct neb_host_ops *h = ctx;
    h->plugin->comm_close(h->ctx, comm);
}

/* ---- wrapping ---- */

/* A slot that is not wrapped would be called with a context that is not the plug-in's. */
_Static_assert(sizeof(void *) != 8 || sizeof(struct neb_device_ops) == 632,
               "the device's table changed: wrap the new slot here, then put the new size");

static void fill_table(struct neb_host_ops *h, char *missing, size_t size)
{
    const struct neb_device_ops *p = h->plugin;
    struct neb_device_ops *t = &h->table;
    size_t n = 0;
    *t = *p;
    t->size = sizeof *t;
    t->close = w_close, t->info = w_info, t->alloc = w_alloc, t->free = w_free;
    t->upload = w_upload, t->download = w_download, t->copy = w_copy, t->fill = w_fill, t->sync = w_sync;
    t->graph_begin = NULL, t->graph_end = NULL, t->graph_launch = NULL, t->graph_free = NULL;
    t->scratch_bytes = w_scratch_bytes;
    if (p->host_alloc) t->host_alloc = w_host_alloc, t->host_free = w_host_free;
    if (p->side_download) {
        t->side_download = w_side_download, t->side_upload = w_side_upload;
        t->fence_done = w_fence_done, t->fence_wait = w_fence_wait, t->fence_join = w_fence_join;
    }
    if (p->packed_bytes) t->packed_bytes = w_packed_bytes;
    if (p->exchange) {
        t->comm_facts = w_comm_facts, t->comm_id = w_comm_id, t->comm_open = w_comm_open;
        t->exchange = w_exchange, t->comm_state = w_comm_state;
        t->comm_abort = w_comm_abort, t->comm_close = w_comm_close;
    }
#define PRIMITIVE(slot, type)                          \
    t->slot = p->slot ? direct_##slot : hosted_##slot; \
    if (!p->slot && n < size) n += (size_t)snprintf(missing + n, size - n, " %s", #slot);
    PRIMITIVES(PRIMITIVE)
    PRIMITIVE(update, neb_update)
#undef PRIMITIVE
#define OTHER(slot, type) \
    if (p->slot) t->slot = direct_##slot;
    OTHERS(OTHER)
#undef OTHER
}

neb_status neb__host_ops_wrap(struct neb_device *d)
{
    char missing[600] = "";
    struct neb_host_ops *h = NEB_NEW(struct neb_host_ops);
    if (!h) return neb__fail(NEB_ERR_NOMEM, "out of memory for device '%s'", d->ops->name);
    struct neb_device_config cpu = d->config;
    cpu.memory_limit = 0;
    cpu.index = 0; /* the number is the plug-in's */
    neb_status status = neb__cpu_ops.open(&cpu, &h->cpu);
    if (status != NEB_OK) {
        neb__free(h);
        return status;
    }
    h->plugin = d->ops;
    h->ctx = d->ctx;
    fill_table(h, missing, sizeof missing);
    if (missing[0])
        neb__warn("device '%s' lacks primitives; the host computes them, with copies in both directions:%s",
                  d->ops->name, missing);
    d->ops = &h->table;
    d->ctx = h;
    return NEB_OK;
}
