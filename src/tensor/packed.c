/* packed.c: weights kept in the layout of the device's products, attention over listed rows, the outputs of a
 * search.
 *
 * A tape has at most one copy per parameter, found by the parameter's number. A copy carries the generation
 * in which it was made. Changed weights begin a new generation, and an older copy is made anew in the same
 * memory. Training never reads copies: they belong to a tape, and only a tape that was told to keep them has
 * any. */
#include "tensor/packed.h"
#include "base/mem.h"
#include "tensor/tape.h"

#include <math.h>

void neb__tape_keep_packed(neb_tape *t, bool on)
{
    t->keep_packed = on && t->dev->ops->pack_linear;
}

void neb__tape_weights_changed(neb_tape *t)
{
    t->packed.generation++;
}

void neb__tape_free_packed(neb_tape *t)
{
    for (int i = 0; i < t->packed.count; i++)
        if (t->packed.list[i].data) t->dev->ops->free(t->dev->ctx, t->packed.list[i].data);
    neb__free(t->packed.list);
    t->packed.list = NULL;
    t->packed.count = 0;
}

static struct neb_packed *entry_of(neb_tape *t, const neb_param *w)
{
    if (!t->packed.list) {
        t->packed.list = NEB_NEW_ARRAY(struct neb_packed, (size_t)t->params->count);
        if (!t->packed.list) return NULL;
        t->packed.count = t->params->count;
    }
    return &t->packed.list[w->number];
}

const void *neb__packed_weight(neb_tape *t, neb_param *w)
{
    if (!t->keep_packed || t->dry || t->failed != NEB_OK || neb__param_left_out(w)) return NULL;
    const struct neb_device_ops *ops = t->dev->ops;
    struct neb_packed *p = entry_of(t, w);
    if (!p) {
        neb__tape_fail(t, NEB_ERR_NOMEM, "linear", "out of memory for the list of packed weights");
        return NULL;
    }
    if (p->data && p->generation == t->packed.generation) return p->data;
    struct neb_pack_linear a = {.w = neb__param_working(t, w),
                                .out = w->shape[0],
                                .in = w->values / w->shape[0],
                                .type = t->params->shadow ? NEB_BF16 : NEB_F32};
    neb_status status = NEB_OK;
    if (!p->data)
        status =
            ops->alloc(t->dev->ctx, (size_t)ops->packed_bytes(t->dev->ctx, a.out, a.in, a.type), &p->data);
    a.packed = p->data;
    if (status == NEB_OK) status = ops->pack_linear(t->dev->ctx, &a);
    if (neb__tape_done(t, status) != NEB_OK) return NULL;
    p->generation = t->packed.generation;
    return p->data;
}

bool neb__tape_records(const neb_device *d)
{
    return d->ops->graph_begin != NULL;
}

int neb__tape_plans(const neb_tape *t)
{
    int n = 0;
    for (const struct neb_plan *p = t->plans; p; p = p->next) n++;
    return n;
}

bool neb__device_has_topk(const neb_device *d)
{
    return d->ops->best != NULL;
}

void neb__output_best(neb_tape *t, neb_tensor *x, int k, neb_buffer *b)
{
    if (!neb__tape_want_act(t, "best", "x", x, -1, -1)) return;
    const int64_t rows = neb__tensor_rows(x);
    const size_t bytes = (size_t)rows * (2 * (size_t)(k > 0 ? k : 0) + 1) * 4;
    if (k < 1 || !b || b->bytes < bytes || !neb__tensor_contiguous(x)) {
        neb__tape_fail(t, NEB_ERR_SHAPE, "best",
                       "finding the %d largest of each of %" PRId64
                       " rows needs k >= 1, a contiguous tensor and a buffer of %zu bytes",
                       k, rows, bytes);
        return;
    }
    neb__tensor_use(x);
    struct neb_best a = {.x = neb__tensor_data(t, x),
                         .value = b->data,
                         .rows = rows,
                         .cols = neb__tensor_cols(x),
                         .k = k,
                         .type = x->type};
    a.id = (int32_t *)(a.value + rows * k);
    a.lse = (float *)(a.id + rows * k);
    NEB_CALL(t, best, &a);
}

bool neb__device_has_listed(const neb_device *d)
{
    return d->ops->attn_listed != NULL;
}

neb_tensor *neb__op_attention_listed(neb_tape *t, const struct neb_attention *a, neb_tensor *key,
                                     neb_tensor *count)
{
    const int64_t kv_heads = a->kv_heads ? a->kv_heads : a->heads;
    if (!neb__tape_want_act(t, "attention", "q", a->q, -1, -1) ||
        !neb__tape_want_act(t, "attention", "k", a->k, -1, -1) ||
        !neb__tape_want_act(t, "attention", "v", a->v, neb__tensor_rows(a->k), neb__tensor_cols(a->k)) ||
        !neb__tape_want(t, "attention", "key", key, NEB_I32, neb__tensor_rows(a->q), -1) ||
        !neb__tape_want(t, "attention", "count", count, NEB_I32, neb__tensor_rows(a->q), 1))
        return NULL;
    const int64_t width = neb__tensor_cols(a->q);
    neb_tensor *o = neb__tensor_new2(t, a->q->type, neb__tensor_rows(a->q), width);
    if (!o) return NULL;
    neb__tensor_use(a->q);
    struct neb_attn_listed l = {.q = neb__tensor_data(t, a->q),
                                .k = neb__tensor_data(t, a->k),
                                .v = neb__tensor_data(t, a->v),
                                .o = neb__tensor_data(t, o),
                                .key = neb__tensor_data(t, key),
                                .count = neb__tensor_data(t, count),
                                .q_rows = neb__tensor_rows(a->q),
                                .k_rows = neb__tensor_rows(a->k),
                                .max_k = neb__tensor_cols(key),
                                .heads = a->heads,
                                .kv_heads = kv_heads,
                                .head_dim = width / a->heads,
                                .ldq = a->q->ld,
                                .ldk = a->k->ld,
                                .ldv = a->v->ld,
                                .ldo = o->ld,
                                .scale = a->scale != 0 ? a->scale : 1.0f / sqrtf((float)(width / a->heads)),
                                .type = a->q->type};
    return NEB_CALL(t, attn_listed, &l) == NEB_OK ? o : NULL;
}
