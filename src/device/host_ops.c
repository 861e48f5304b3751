/* host_ops.c: primitives that a plug-in lacks, computed on the host.
 *
 * A plug-in in the making says NEB_DEVICE_HOST_PRIMITIVES in its flags. Each primitive that it leaves NULL is then run
 * here: its operands are copied to the host, the CPU device computes, and the results are copied back. That is slow, but
 * it is right: a device with nothing but memory and copies trains a model and passes the conformance suite, and its author
 * replaces one slot after the other by a real one.
 *
 * Operands are copied as whole ranges: for a matrix with a distance between its rows that includes the gaps, which come
 * back unchanged. Ranges that overlap (in place, or columns of one matrix) are one range. host_wrap.c makes the table. */
#include "device/host_ops.h"
#include "base/mem.h"
#include "base/status.h"
#include "tensor/narrow.h"

#include <string.h>

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
    const struct neb_host_ops *h;
    neb_status status; /* the first error */
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

static bool begins_inside(const struct operand *o, const struct operand *range)
{
    return range->device <= o->device && o->device < range->device + range->bytes;
}

/* Makes every range as large as those that begin inside it. */
static void join_ranges(struct borrowed *b)
{
    for (bool grew = true; grew;) {
        grew = false;
        for (int i = 0; i < b->n; i++)
            for (int j = 0; j < b->n; j++) {
                const size_t end = (size_t)(b->op[i].device - b->op[j].device) + b->op[i].bytes;
                if (!begins_inside(&b->op[i], &b->op[j]) || end <= b->op[j].bytes) continue;
                b->op[j].bytes = end;
                grew = true;
            }
    }
}

/* The operand whose memory has this one's: itself, or the first one with the lowest address. */
static struct operand *owner_of(struct borrowed *b, int i)
{
    struct operand *owner = &b->op[i];
    for (int j = 0; j < b->n; j++) {
        struct operand *o = &b->op[j];
        if (begins_inside(owner, o) && (o->device < owner->device || o < owner)) owner = o;
    }
    return owner;
}

static neb_status fetch(struct borrowed *b)
{
    const struct neb_host_ops *h = b->h;
    join_ranges(b);
    for (int i = 0; i < b->n; i++) {
        struct operand *o = &b->op[i], *owner = owner_of(b, i);
        if (!owner->host) {
            owner->host = neb__malloc(owner->bytes);
            if (!owner->host)
                return neb__fail(NEB_ERR_NOMEM, "out of memory: %zu bytes of an operand", owner->bytes);
            NEB_TRY(h->plugin->download(h->ctx, owner->host, owner->device, owner->bytes));
        }
        if (o->how == OUT) owner->how = OUT;
        char *here = owner->host + (o->device - owner->device);
        memcpy(o->field, &here, sizeof here);
    }
    return NEB_OK;
}

static neb_status give_back(struct borrowed *b, neb_status status)
{
    const struct neb_host_ops *h = b->h;
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

static void use_attn(struct borrowed *b, struct neb_attn *a, enum how results)
{
    const size_t size = neb__dtype_size(a->type);
    const int64_t q = a->heads * a->head_dim, k = a->kv_heads * a->head_dim;
    use(b, &a->q, strided(a->q_rows, q, a->ldq), size, IN);
    use(b, &a->k, strided(a->k_rows, k, a->ldk), size, IN);
    use(b, &a->v, strided(a->k_rows, k, a->ldv), size, IN);
    use(b, &a->o, strided(a->q_rows, q, a->ldo), size, results);
    use(b, &a->lse, a->heads * a->q_rows, 4, results);
    use(b, &a->starts_q, a->sequences + 1, 4, IN);
    use(b, &a->starts_k, a->sequences + 1, 4, IN);
    use_dropout(b, &a->drop, a->sequences, 0);
}

static void use_bias(struct borrowed *b, struct neb_attn_bias *x, int64_t heads)
{
    const int64_t n = (x->both_ways ? 2 : 1) * x->buckets * heads;
    use(b, &x->table, n, 4, IN);
    use(b, &x->dtable, n, 4, OUT);
}

static void of_attn_biased(struct borrowed *b, struct neb_attn_biased *x)
{
    use_attn(b, &x->a, OUT);
    use_bias(b, &x->bias, x->a.heads);
}

static void of_attn_biased_bwd(struct borrowed *b, struct neb_attn_biased_bwd *x)
{
    const struct neb_attn *a = &x->b.f;
    const size_t size = neb__dtype_size(a->type);
    const int64_t q = a->heads * a->head_dim, k = a->kv_heads * a->head_dim;
    use_attn(b, &x->b.f, IN);
    use(b, &x->b.d_o, strided(a->q_rows, q, a->ldo), size, IN);
    use(b, &x->b.dq, strided(a->q_rows, q, a->ldq), size, OUT);
    use(b, &x->b.dk, strided(a->k_rows, k, a->ldk), size, OUT);
    use(b, &x->b.dv, strided(a->k_rows, k, a->ldv), size, OUT);
    use_bias(b, &x->bias, a->heads);
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
static neb_status end_of(const struct neb_host_ops *h, const struct neb_update *a, int64_t *end)
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

static void of_update(struct borrowed *b, struct neb_update *a)
{
    int64_t end = 0;
    if (a->n_segments > 0) b->status = end_of(b->h, a, &end);
    use(b, &a->param, end, 4, OUT);
    use(b, &a->m, end, 4, OUT);
    use(b, &a->v, end, 4, OUT);
    use(b, &a->grad, end, 4, IN);
    use(b, &a->shadow, end, 2, OUT);
    use(b, &a->segments, a->n_segments, sizeof *a->segments, IN);
    use(b, &a->ctl, 1, sizeof(struct neb_ctl), IN);
}

/* ---- the slots ---- */

#define HOSTED(slot, type)                                              \
    neb_status neb__hosted_##slot(void *ctx, const struct type *args)   \
    {                                                                   \
        struct borrowed b = {.h = ctx, .status = NEB_OK};               \
        struct type a = *args;                                          \
        of_##slot(&b, &a);                                              \
        neb_status status = b.status == NEB_OK ? fetch(&b) : b.status;  \
        if (status == NEB_OK) status = neb__cpu_ops.slot(b.h->cpu, &a); \
        return give_back(&b, status);                                   \
    }
NEB_HOSTED_SLOTS(HOSTED)
