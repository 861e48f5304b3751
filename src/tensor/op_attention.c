/* op_attention.c: attention over packed sequences, with or without a bias for distances, and rotary positions.
 *
 * q, k and v usually are column views of one product. Their gradients then are column views of one gradient,
 * which the backward fills completely, so it needs no clearing first. */
#include "tensor/fallback.h"
#include "tensor/relative.h"

#include <math.h>
#include <string.h>

enum { IN_Q, IN_K, IN_V, IN_STARTS_Q, IN_STARTS_K, IN_SAMPLE, INS };

static bool seqs_fit(neb_tape *t, const char *what, const struct neb_seqs *s)
{
    if (s->count < 1 || s->max_len < 1) {
        neb__tape_fail(t, NEB_ERR_SHAPE, "attention",
                       "%s has %" PRId64 " sequences of at most %" PRId64 " rows; both must be at least 1",
                       what, s->count, s->max_len);
        return false;
    }
    return neb__tape_want(t, "attention", what, s->starts, NEB_I32, s->count + 1, -1);
}

static bool attention_fits(neb_tape *t, const struct neb_attention *a, int64_t kv_heads)
{
    if (!neb__tape_want_act(t, "attention", "q", a->q, -1, -1) ||
        !neb__tape_want_act(t, "attention", "k", a->k, -1, -1) ||
        !neb__tape_want_act(t, "attention", "v", a->v, neb__tensor_rows(a->k), neb__tensor_cols(a->k)) ||
        !seqs_fit(t, "q_seqs", &a->q_seqs) || !seqs_fit(t, "k_seqs", &a->k_seqs))
        return false;
    int64_t width = neb__tensor_cols(a->q);
    if (a->heads < 1 || kv_heads < 1 || a->heads % kv_heads || width % a->heads ||
        neb__tensor_cols(a->k) != width / a->heads * kv_heads) {
        neb__tape_fail(
            t, NEB_ERR_SHAPE, "attention",
            "q has %" PRId64 " columns, k %" PRId64 ", with %" PRId64 " heads and %" PRId64
            " key heads; heads must divide q's columns, key heads must divide heads, and the head widths "
            "must agree",
            width, neb__tensor_cols(a->k), a->heads, kv_heads);
        return false;
    }
    if (a->q_seqs.count != a->k_seqs.count) {
        neb__tape_fail(t, NEB_ERR_SHAPE, "attention",
                       "%" PRId64 " query sequences do not match %" PRId64 " key sequences", a->q_seqs.count,
                       a->k_seqs.count);
        return false;
    }
    if (!(a->dropout >= 0) || a->dropout > 0.99f) {
        neb__tape_fail(t, NEB_ERR_RANGE, "attention", "dropout %g is not between 0 and 0.99",
                       (double)a->dropout);
        return false;
    }
    if (a->dropout > 0 && neb_is_training(t) &&
        !neb__tape_want(t, "attention", "q_seqs.sample", a->q_seqs.sample, NEB_I32, a->q_seqs.count, -1)) {
        neb__tape_fail(t, NEB_ERR_STATE, "attention", "dropout needs q_seqs.sample");
        return false;
    }
    return true;
}

/* The device's arguments, from a node. */
static struct neb_attn device_args(neb_tape *t, struct neb_node *n)
{
    neb_tensor *q = n->in[IN_Q], *k = n->in[IN_K], *v = n->in[IN_V], *o = n->out[0];
    struct neb_attn a = {.q = neb__tensor_data(t, q),
                         .k = neb__tensor_data(t, k),
                         .v = neb__tensor_data(t, v),
                         .o = neb__tensor_data(t, o),
                         .lse = neb__tensor_data(t, n->saved[0]),
                         .starts_q = neb__tensor_data(t, n->in[IN_STARTS_Q]),
                         .starts_k = neb__tensor_data(t, n->in[IN_STARTS_K]),
                         .sequences = n->i[0],
                         .max_q = n->i[1],
                         .max_k = n->i[2],
                         .heads = n->i[3],
                         .kv_heads = n->i[4],
                         .q_rows = neb__tensor_rows(q),
                         .k_rows = neb__tensor_rows(k),
                         .head_dim = neb__tensor_cols(q) / n->i[3],
                         .ldq = q->ld,
                         .ldk = k->ld,
                         .ldv = v->ld,
                         .ldo = o->ld,
                         .scale = n->f[0],
                         .causal = n->flag[0],
                         .type = q->type};
    a.drop = neb__dropout_spec(t, n->f[1], n->drop_op, n->in[IN_SAMPLE], NULL);
    a.drop.first = (uint32_t)n->i[5];
    return a;
}

/* ---- a bias for distances ------------------------------------------------------------------------------ */

void neb__relative_buckets(int64_t buckets, int64_t farthest, bool both_ways, struct neb_relative *out)
{
    const int64_t n = both_ways ? buckets / 2 : buckets, exact = n / 2;
    *out = (struct neb_relative){.both_ways = both_ways, .buckets = n};
    for (int64_t i = 0; i < exact; i++) out->from[i] = (int32_t)i;
    /* the buckets of all distances, in the arithmetic in which such models were trained */
    int64_t seen = exact - 1;
    const float ratio = (float)log((double)farthest / (double)exact);
    for (int64_t d = exact; d <= farthest && seen + 1 < n; d++) {
        const float share = logf((float)d / (float)exact) / ratio * (float)(n - exact);
        int64_t bucket = exact + (int64_t)share;
        if (bucket > n - 1) bucket = n - 1;
        while (seen < bucket) out->from[++seen] = (int32_t)d;
    }
    while (seen + 1 < n) out->from[++seen] = (int32_t)farthest;
}

bool neb__device_has_relative(const neb_device *d)
{
    return d->ops->attn_biased != NULL;
}

static struct neb_attn_bias bias_args(neb_tape *t, neb_param *table, const struct neb_relative *r)
{
    struct neb_attn_bias b = {
        .table = neb__param_master(t, table), .both_ways = r->both_ways, .buckets = r->buckets};
    memcpy(b.from, r->from, sizeof b.from);
    return b;
}

static bool relative_fits(neb_tape *t, const struct neb_attention *c, const struct neb_relative *r,
                          const neb_param *table)
{
    if (!neb__device_has_relative(t->dev)) {
        neb__tape_fail(
            t, NEB_ERR_UNSUPPORTED, "attention",
            "the device '%s' has no attention with relative positions (model.positions: relative); use "
            "train.device: cpu",
            t->dev->ops->name);
        return false;
    }
    return neb__tape_want_param(t, "attention", "table", table,
                                (r->both_ways ? 2 : 1) * r->buckets * c->heads, 1);
}

/* ---- the op -------------------------------------------------------------------------------------------- */

static neb_tensor *attend(neb_tape *t, const struct neb_attention *c, const struct neb_relative *relative,
                          neb_param *table)
{
    int64_t kv_heads = c->kv_heads ? c->kv_heads : c->heads;
    if (!attention_fits(t, c, kv_heads)) return NULL;
    if (relative && !relative_fits(t, c, relative, table)) return NULL;
    neb_tensor *o = neb__tensor_new2(t, c->q->type, neb__tensor_rows(c->q), neb__tensor_cols(c->q));
    neb_tensor *lse = neb__tensor_new2(t, NEB_F32, c->heads, neb__tensor_rows(c->q));
    if (t->failed != NEB_OK) return NULL;
    struct neb_node n = {.in = {c->q, c->k, c->v, c->q_seqs.starts, c->k_seqs.starts,
                                c->dropout > 0 && neb_is_training(t) ? c->q_seqs.sample : NULL},
                         .out = {o},
                         .saved = {lse}};
    n.i[0] = c->q_seqs.count, n.i[1] = c->q_seqs.max_len, n.i[2] = c->k_seqs.max_len;
    n.i[3] = c->heads, n.i[4] = kv_heads, n.i[5] = c->first_head;
    n.f[0] = c->scale != 0 ? c->scale : 1.0f / sqrtf((float)(neb__tensor_cols(c->q) / c->heads));
    n.f[1] = c->dropout;
    n.flag[0] = c->causal;
    n.drop_op = c->dropout > 0 ? neb__tape_drop_op(t) : 0;
    struct neb_attn a = device_args(t, &n);
    if (relative) {
        struct neb_attn_biased x = {a, bias_args(t, table, relative)};
        x.a.scratch = neb__tape_scratch(t, NEB_SLOT_ATTN_BIASED, &x);
        if (t->failed != NEB_OK || NEB_CALL(t, attn_biased, &x) != NEB_OK) return NULL;
        if (neb__tape_wants_grad(t) && table->trainable) o->needs_grad = true;
    } else {
        a.scratch = neb__tape_scratch(t, NEB_SLOT_ATTN, &a);
        if (NEB_FUSED(t, attn, &a) != NEB_OK) return NULL;
    }
    struct neb_node *r = neb__tape_record(t, NEB_OPCODE_attention, INS, n.in, 1, &o);
    if (r) {
        r->saved[0] = lse;
        for (int i = 0; i < 6; i++) r->i[i] = n.i[i];
        r->f[0] = n.f[0], r->f[1] = n.f[1], r->flag[0] = n.flag[0], r->drop_op = n.drop_op;
        r->param[0] = table;
        r->arg = (void *)(uintptr_t)relative;
    }
    return t->failed == NEB_OK ? o : NULL;
}

neb_tensor *neb_op_attention(neb_tape *t, const struct neb_attention *c)
{
    return attend(t, c, NULL, NULL);
}

neb_tensor *neb__op_attention_relative(neb_tape *t, const struct neb_attention *c,
                                       const struct neb_relative *relative, neb_param *table)
{
    return neb__tape_require(t, "attention", "table", table) ? attend(t, c, relative, table) : NULL;
}

/* True when the inputs with this root are disjoint column views that cover all of it. */
static bool tiles(neb_tensor *const *x, const neb_tensor *root)
{
    int64_t cols = 0;
    size_t seen[3];
    int n = 0;
    for (int i = 0; i < 3; i++) {
        if (x[i]->root != root) continue;
        if (neb__tensor_rows(x[i]) != neb__tensor_rows(root) || x[i]->ld != root->ld) return false;
        for (int j = 0; j < n; j++)
            if (seen[j] == x[i]->offset) return false;
        seen[n++] = x[i]->offset;
        cols += neb__tensor_cols(x[i]);
    }
    return cols == neb__tensor_cols(root);
}

neb_status neb__backward_attention(neb_tape *t, struct neb_node *n)
{
    neb_tensor **x = n->in;
    bool direct[3];
    for (int i = 0; i < 3; i++)
        direct[i] = x[i]->root->needs_grad && x[i]->root->grad < 0 && tiles(x, x[i]->root);
    void *d[3];
    int temp[3] = {-1, -1, -1};
    for (int i = 0; i < 3; i++) {
        neb_tensor *root = x[i]->root;
        if (!root->needs_grad)
            d[i] = neb__tape_temp(t, neb__tensor_rows(x[i]) * x[i]->ld * (int64_t)neb_dtype_size(x[i]->type));
        else if (!direct[i])
            d[i] = neb__grad_overwrite(t, x[i], &temp[i]);
        else
            d[i] = root->grad < 0 ? neb__grad_new(t, x[i]) : neb__tensor_grad(t, x[i]);
        if (t->failed != NEB_OK) return t->failed;
    }
    struct neb_attn_bwd b = {
        .f = device_args(t, n), .d_o = neb__tensor_grad(t, n->out[0]), .dq = d[0], .dk = d[1], .dv = d[2]};
    if (n->arg) {
        struct neb_attn_biased_bwd y = {b, bias_args(t, n->param[0], n->arg)};
        y.bias.dtable = neb__param_grad(t, n->param[0], &y.bias.acc_dtable);
        y.b.scratch = neb__tape_scratch(t, NEB_SLOT_ATTN_BIASED_BWD, &y);
        if (t->failed != NEB_OK) return t->failed;
        NEB_TRY(NEB_CALL(t, attn_biased_bwd, &y));
    } else {
        b.scratch = neb__tape_scratch(t, NEB_SLOT_ATTN_BWD, &b);
        if (t->failed != NEB_OK) return t->failed;
        NEB_TRY(NEB_FUSED(t, attn_bwd, &b));
    }
    for (int i = 0; i < 3; i++) NEB_TRY(neb__grad_add(t, x[i], temp[i]));
    return NEB_OK;
}

/* ---- rotary positions ---------------------------------------------------------------------------------- */

neb_tensor *neb_op_rope(neb_tape *t, neb_tensor *x, neb_tensor *position, int64_t heads, float base)
{
    return neb_op_rope_scaled(t, x, position, heads, base, NULL);
}

neb_tensor *neb_op_rope_scaled(neb_tape *t, neb_tensor *x, neb_tensor *position, int64_t heads, float base,
                               const struct neb_rope_scale *scale)
{
    const struct neb_rope_scale none = {0};
    if (!scale) scale = &none;
    if (!neb__tape_want_act(t, "rope", "x", x, -1, -1) ||
        !neb__tape_want(t, "rope", "position", position, NEB_I32, neb__tensor_rows(x), -1))
        return NULL;
    if (heads < 1 || neb__tensor_cols(x) % (2 * heads) || !(base > 1) || x->uses) {
        neb__tape_fail(
            t, NEB_ERR_SHAPE, "rope",
            "x has %" PRId64 " columns for %" PRId64
            " heads, base %g; heads must have an even width, base must exceed 1, and no other op may read x",
            neb__tensor_cols(x), heads, (double)base);
        return NULL;
    }
    neb_tensor *y = neb__tensor_alias(t, x);
    if (!y) return NULL;
    struct neb_rope a = {.x = neb__tensor_data(t, x),
                         .position = neb__tensor_data(t, position),
                         .rows = neb__tensor_rows(x),
                         .heads = heads,
                         .head_dim = neb__tensor_cols(x) / heads,
                         .ldx = x->ld,
                         .base = base,
                         .type = x->type,
                         .scale = *scale};
    if (NEB_CALL(t, rope, &a) != NEB_OK) return NULL;
    struct neb_node *n = neb__tape_record(t, NEB_OPCODE_rope, 2, (neb_tensor *[]){x, position}, 1, &y);
    if (n) {
        n->i[0] = heads;
        n->i[1] = (int64_t)scale->original;
        n->f[0] = base;
        n->f[1] = scale->factor, n->f[2] = scale->low, n->f[3] = scale->high;
    }
    return t->failed == NEB_OK ? y : NULL;
}

neb_status neb__backward_rope(neb_tape *t, struct neb_node *n)
{
    neb_tensor *x = n->in[0], *position = n->in[1];
    struct neb_rope a = {.x = neb__grad_own(t, x),
                         .position = neb__tensor_data(t, position),
                         .rows = neb__tensor_rows(x),
                         .heads = n->i[0],
                         .head_dim = neb__tensor_cols(x) / n->i[0],
                         .ldx = x->ld,
                         .base = n->f[0],
                         .inverse = 1,
                         .type = x->type,
                         .scale = {n->f[1], n->f[2], n->f[3], (float)n->i[1]}};
    return a.x ? NEB_CALL(t, rope, &a) : t->failed;
}
