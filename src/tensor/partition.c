/* partition.c: units of the slab, gradients of which each rank keeps a range, and parameters of which each rank
 * has a range (partition.h). */
#include "tensor/partition.h"
#include "base/mem.h"
#include "base/rng.h"
#include "tensor/tape.h"

#include <string.h>

enum { SMALL = 1 << 16 }; /* values; neighbours without a layer form units of at most this size */

static int64_t aligned(int64_t n)
{
    return (n + NEB_PARAM_ALIGN - 1) / NEB_PARAM_ALIGN * NEB_PARAM_ALIGN;
}

/* The edge of a block that is nearest to value `at`, which lies in p or in the gap behind it. */
static int64_t nearest(const neb_param *p, int64_t at)
{
    int64_t blocks = (at - p->offset + NEB_SUMSQ_BLOCK / 2) / NEB_SUMSQ_BLOCK;
    int64_t end = aligned(p->values), edge = blocks * NEB_SUMSQ_BLOCK;
    if (edge < p->values) return p->offset + edge;
    /* behind the last block, or at its beginning, if that is nearer */
    int64_t last = (p->values - 1) / NEB_SUMSQ_BLOCK * NEB_SUMSQ_BLOCK;
    return p->offset + (at - p->offset - last < end - (at - p->offset) ? last : end);
}

/* `part` of the `whole` values of p, with the gap behind it, lie before the edge. Values of a matrix stay together. */
static int64_t edge_in(const neb_param *p, int64_t part, int64_t whole)
{
    if (p->taken_as_matrix) return p->offset + (part < whole - part ? 0 : aligned(p->values));
    return nearest(p, p->offset + (int64_t)((double)part / (double)whole * (double)aligned(p->values)));
}

/* The members of a team must share out the same matrices, though their parts of them may differ in size. So the slab is
 * measured in values of whole parameters. */
void neb__partition_edges(const neb_params *ps, int size, int64_t *edge)
{
    int64_t all = 0, before = 0;
    int r = 1;
    for (int i = 0; i < ps->count; i++)
        if (ps->list[i]->trainable && ps->list[i]->values) all += aligned(ps->list[i]->whole_values);
    edge[0] = 0;
    for (int i = 0; i < ps->count; i++) {
        const neb_param *p = ps->list[i];
        if (!p->trainable || !p->values) continue;
        const int64_t whole = aligned(p->whole_values);
        for (; r < size && all / size * r < before + whole; r++)
            edge[r] = edge_in(p, all / size * r - before, whole);
        before += whole;
    }
    for (; r <= size; r++) edge[r] = ps->trainable_values;
}

neb_status neb__params_partition(neb_params *ps, int level, const struct neb_partition_link *link)
{
    if (ps->ready || ps->partition)
        return neb__fail(NEB_ERR_STATE, "parameters are shared out among ranks once, before they are ready");
    struct neb_partition *x = NEB_NEW(struct neb_partition);
    if (x) x->edge = NEB_NEW_ARRAY(int64_t, (size_t)link->size + 1);
    if (x) x->cut = NEB_NEW_ARRAY(int64_t, (size_t)link->size + 1);
    if (x) x->frozen = NEB_NEW_ARRAY(int64_t, (size_t)link->size + 1);
    if (!x || !x->edge || !x->cut || !x->frozen) {
        neb__partition_free(x);
        return neb__fail(NEB_ERR_NOMEM, "out of memory for the ranges of %d ranks", link->size);
    }
    x->level = level;
    x->link = *link;
    ps->partition = x;
    return NEB_OK;
}

void neb__partition_free(struct neb_partition *x)
{
    if (!x) return;
    neb__free(x->edge);
    neb__free(x->cut);
    neb__free(x->frozen);
    neb__free(x->unit);
    neb__free(x->reads.list);
    neb__free(x);
}

/* ---- units ------------------------------------------------------------------------------------------------- */

/* Length of the name up to the layer's number ("encoder.layers.3"); 0: it belongs to no layer. */
static size_t layer_of(const char *name)
{
    for (const char *at = name; at; at = strchr(at, '.')) {
        if (*at == '.') at++;
        size_t digits = strspn(at, "0123456789");
        if (digits && (at[digits] == '.' || !at[digits])) return (size_t)(at - name) + digits;
    }
    return 0;
}

static bool same_unit(const neb_param *a, const neb_param *b, int64_t first)
{
    size_t n = layer_of(a->name), m = layer_of(b->name);
    if (n || m) return n == m && !memcmp(a->name, b->name, n);
    return b->offset + neb__param_slab_values(b) - first <= SMALL;
}

static void make_units(neb_params *ps, bool trainable)
{
    struct neb_partition *x = ps->partition;
    const neb_param *before = NULL;
    for (int i = 0; i < ps->count; i++) {
        neb_param *p = ps->list[i];
        if (p->trainable != trainable) continue;
        if (!before || !same_unit(before, p, x->unit[x->units - 1].first))
            x->unit[x->units++] =
                (struct neb_unit){.first = p->offset, .trainable = trainable, .bucket = -1, .gathered = -1};
        p->unit = x->units - 1;
        x->unit[p->unit].end = p->offset + aligned(neb__param_slab_values(p));
        before = p;
    }
}

/* ---- parameters -------------------------------------------------------------------------------------------- */

bool neb__partition_of_grads(const neb_params *ps)
{
    return ps->partition && ps->partition->level > 1;
}

bool neb__partition_of_values(const neb_params *ps)
{
    return ps->partition && ps->partition->level > 2;
}

bool neb__partition_of_masters(const neb_params *ps)
{
    return ps->partition && ps->partition->masters;
}

int64_t neb__partition_held(const neb_params *ps)
{
    const struct neb_held *h = ps->partition->held;
    return h[1].at + h[1].end - h[1].first;
}

/* Equal parts; the slab's gaps and ends are multiples of NEB_PARAM_ALIGN. */
static void cut_frozen(const neb_params *ps, struct neb_partition *x)
{
    int64_t n = (ps->all_values - ps->trainable_values) / NEB_PARAM_ALIGN;
    for (int r = 0; r <= x->link.size; r++)
        x->frozen[r] = ps->trainable_values + n * r / x->link.size * NEB_PARAM_ALIGN;
    x->held[0] = (struct neb_held){x->first, x->end, 0};
    if (x->level < 3) {
        x->held[1] = (struct neb_held){ps->trainable_values, ps->all_values, x->end - x->first};
        return;
    }
    x->held[1] = (struct neb_held){x->frozen[x->link.rank], x->frozen[x->link.rank + 1], x->end - x->first};
}

/* The ranks' ranges inside a unit. */
static void cut_unit(struct neb_partition *x, const struct neb_unit *u, const int64_t *edge)
{
    for (int r = 0; r <= x->link.size; r++) {
        int64_t at = edge[r] > u->first ? edge[r] : u->first;
        x->cut[r] = (at < u->end ? at : u->end) - u->first;
    }
}

static neb_status join(struct neb_partition *x, struct neb_unit *u)
{
    const int ticket = u->ticket;
    u->ticket = 0;
    return x->link.join(x->link.arg, ticket);
}

static void forget_units(struct neb_partition *x)
{
    for (int i = 0; i < NEB_UNITS_KEPT; i++) x->recent[i] = -1;
    for (int u = 0; u < x->units; u++) x->unit[u].gathered = -1;
    x->read = x->reads.n = 0;
    x->last = -1;
}

/* What a run that was broken off has begun: its memory is given to others now. */
static void end_gathers(struct neb_partition *x)
{
    for (int u = 0; u < x->units; u++)
        if (x->unit[u].ticket) (void)join(x, &x->unit[u]);
}

/* Puts the unit in front of those that are remembered; the oldest one is forgotten. */
static void remember(struct neb_partition *x, int unit)
{
    int i = 0;
    while (i < NEB_UNITS_KEPT - 1 && x->recent[i] != unit) i++;
    if (x->recent[i] >= 0 && x->recent[i] != unit) x->unit[x->recent[i]].gathered = -1;
    for (; i > 0; i--) x->recent[i] = x->recent[i - 1];
    x->recent[0] = unit;
}

size_t neb__partition_width(const neb_params *ps)
{
    return ps->shadow ? sizeof(uint16_t) : sizeof(float);
}

/* Begins to gather the unit. */
static neb_status fetch(neb_tape *t, struct neb_unit *u)
{
    const neb_params *ps = t->params;
    struct neb_partition *x = ps->partition;
    const struct neb_held *h = &x->held[u->trainable ? 0 : 1];
    const size_t w = neb__partition_width(ps);
    const char *own = ps->shadow ? ps->shadow : (const void *)ps->value;
    char *to = neb__tape_address(t, u->gathered);
    if (u->ticket) NEB_TRY(join(x, u)); /* it was forgotten, and nobody has read it */
    int64_t first = u->first > h->first ? u->first : h->first, end = u->end < h->end ? u->end : h->end;
    if (first < end)
        NEB_TRY(t->dev->ops->copy(t->dev->ctx, to + (size_t)(first - u->first) * w,
                                  own + (size_t)(h->at + (first - h->first)) * w, (size_t)(end - first) * w));
    cut_unit(x, u, u->trainable ? x->edge : x->frozen);
    x->order = neb__mix64(x->order + (uint64_t)(u - x->unit) + 0x10001);
    return x->link.gather(x->link.arg, to, x->cut, ps->shadow ? NEB_BF16 : NEB_F32, &u->ticket);
}

/* The unit has memory, and its gather is begun. */
static neb_status want(neb_tape *t, int unit)
{
    struct neb_partition *x = t->params->partition;
    struct neb_unit *u = &x->unit[unit];
    remember(x, unit);
    if (u->gathered >= 0) return NEB_OK;
    u->gathered = neb__tape_take(t, (size_t)(u->end - u->first) * neb__partition_width(t->params));
    if (u->gathered < 0) return t->failed;
    return t->dry ? NEB_OK : neb__tape_done(t, fetch(t, u));
}

static neb_status note(neb_tape *t, int unit)
{
    struct neb_partition *x = t->params->partition;
    struct neb_unit_order *o = &x->reads;
    if (x->last == unit) return NEB_OK;
    x->last = unit;
    x->read++;
    if (!t->dry || x->coming) return NEB_OK;
    if (o->n == o->room) {
        const int room = o->room ? 2 * o->room : 64;
        int *list = neb__realloc(o->list, (size_t)room * sizeof *list);
        if (!list) return neb__tape_fail(t, NEB_ERR_NOMEM, "parameter", "out of memory for %d units", room);
        o->list = list;
        o->room = room;
    }
    o->list[o->n++] = unit;
    return NEB_OK;
}

static neb_status want_coming(neb_tape *t)
{
    const struct neb_partition *x = t->params->partition;
    for (int i = x->read; x->coming && i < x->coming->n && i < x->read + NEB_UNITS_AHEAD; i++)
        NEB_TRY(want(t, x->coming->list[i]));
    return NEB_OK;
}

int neb__partition_gather(neb_tape *t, neb_param *p, int64_t *offset)
{
    struct neb_partition *x = t->params->partition;
    struct neb_unit *u = &x->unit[p->unit];
    if (t->failed != NEB_OK) return -1;
    *offset = p->offset - u->first;
    if (x->ahead && note(t, p->unit) != NEB_OK) return -1;
    if (want(t, p->unit) != NEB_OK || want_coming(t) != NEB_OK) return -1;
    if (!t->dry && neb__tape_done(t, join(x, u)) != NEB_OK) return -1;
    return u->gathered;
}

struct neb_unit_order neb__partition_take_order(neb_params *ps)
{
    struct neb_unit_order o = {0};
    if (!ps || !ps->partition) return o;
    o = ps->partition->reads;
    ps->partition->reads = (struct neb_unit_order){0};
    return o;
}

void neb__partition_expect(neb_params *ps, const struct neb_unit_order *coming)
{
    if (ps && ps->partition) ps->partition->coming = coming && coming->n ? coming : NULL;
}

neb_status neb__partition_place(neb_params *ps)
{
    struct neb_partition *x = ps->partition;
    if (!x) return NEB_OK;
    x->unit = NEB_NEW_ARRAY(struct neb_unit, (size_t)ps->count);
    if (!x->unit) return neb__fail(NEB_ERR_NOMEM, "out of memory for the units of %d parameters", ps->count);
    make_units(ps, true);
    make_units(ps, false);
    neb__partition_edges(ps, x->link.size, x->edge);
    x->first = x->edge[x->link.rank];
    x->end = x->edge[x->link.rank + 1];
    /* masters on the host are all there */
    x->masters = x->level > 2 || (ps->dev->config.compute == NEB_BF16 && !ps->masters.wanted);
    cut_frozen(ps, x);
    x->ahead = x->level > 2 && x->link.ahead && !strcmp(ps->dev->ops->name, "cpu");
    return NEB_OK;
}

/* ---- gradients --------------------------------------------------------------------------------------------- */

void neb__partition_reset(neb_tape *t, const int *contributions)
{
    neb_params *ps = t->params;
    struct neb_partition *x = ps ? ps->partition : NULL;
    if (!x) return;
    end_gathers(x);
    forget_units(x);
    if (!t->run->grad || x->level < 2) return;
    for (int u = 0; u < x->units; u++) {
        x->unit[u].bucket = -1;
        x->unit[u].left = 0;
        x->unit[u].touched = false;
    }
    for (int i = 0; i < ps->count; i++) {
        ps->list[i]->written = false; /* every micro-batch has buckets of its own */
        if (contributions && contributions[i]) x->unit[ps->list[i]->unit].left++;
    }
}

float *neb__partition_grad(neb_tape *t, neb_param *p)
{
    struct neb_unit *u = &t->params->partition->unit[p->unit];
    if (u->bucket < 0) u->bucket = neb__tape_take(t, (size_t)(u->end - u->first) * sizeof(float));
    if (u->bucket < 0) return NULL;
    u->touched = true;
    return (float *)neb__tape_address(t, u->bucket) + (p->offset - u->first);
}

/* The norm reads the gaps between parameters, too; parameters that no op reached have gradient 0. */
static neb_status clear_rest(neb_tape *t, const struct neb_unit *u, float *bucket)
{
    neb_params *ps = t->params;
    neb_device *d = t->dev;
    for (int i = 0; i < ps->count; i++) {
        const neb_param *p = ps->list[i];
        if (&ps->partition->unit[p->unit] != u) continue;
        int64_t from = p->offset + (p->written ? p->values : 0), to = p->offset + aligned(p->values);
        size_t bytes = (size_t)(to - from) * sizeof(float);
        if (bytes) NEB_TRY(d->ops->fill(d->ctx, bucket + (from - u->first), 0, bytes));
    }
    return NEB_OK;
}

/* This rank's part of the unit, in values of the slab. Empty: *end <= *first. */
static void own_part(const struct neb_partition *x, const struct neb_unit *u, int64_t *first, int64_t *end)
{
    *first = u->first > x->first ? u->first : x->first;
    *end = u->end < x->end ? u->end : x->end;
}

/* Adds the bucket's sum to this rank's range; the first micro-batch overwrites it. */
static neb_status keep(neb_tape *t, const struct neb_unit *u, const float *bucket)
{
    neb_params *ps = t->params;
    const struct neb_partition *x = ps->partition;
    int64_t first, end;
    own_part(x, u, &first, &end);
    if (first >= end) return NEB_OK;
    struct neb_axpby a = {.x = bucket + (first - u->first),
                          .y = ps->grad + (first - x->first),
                          .n = end - first,
                          .a = 1,
                          .b = t->run->accumulate ? 1 : 0,
                          .type = NEB_F32};
    if (t->run->accumulate) return t->dev->ops->axpby(t->dev->ctx, &a);
    return t->dev->ops->copy(t->dev->ctx, a.y, a.x, (size_t)a.n * sizeof(float));
}

static neb_status add_up(neb_tape *t, struct neb_unit *u)
{
    struct neb_partition *x = t->params->partition;
    float *bucket = (float *)neb__tape_address(t, u->bucket);
    NEB_TRY(clear_rest(t, u, bucket));
    cut_unit(x, u, x->edge);
    x->order = neb__mix64(x->order + (uint64_t)(u - x->unit) + 1);
    NEB_TRY(x->link.sum_scatter(x->link.arg, bucket, x->cut));
    return keep(t, u, bucket);
}

neb_status neb__partition_announce(neb_tape *t)
{
    struct neb_partition *x = t->params ? t->params->partition : NULL;
    for (int i = 0; x && x->level > 1 && t->failed == NEB_OK && i < x->units; i++) {
        struct neb_unit *u = &x->unit[i];
        if (!u->touched) continue;
        u->touched = false;
        if (t->dry)
            neb__tape_address(t, u->bucket); /* alive until here: this may have been the last contribution */
        else if (!u->left)
            NEB_TRY(add_up(t, u));
    }
    return t->failed;
}

neb_status neb__partition_finish(neb_tape *t)
{
    neb_params *ps = t->params;
    const struct neb_partition *x = ps->partition;
    for (int i = 0; !t->dry && i < x->units; i++) {
        const struct neb_unit *u = &x->unit[i];
        int64_t first, end;
        own_part(x, u, &first, &end);
        if (!u->trainable || u->bucket >= 0 || first >= end || t->run->accumulate) continue;
        NEB_TRY(t->dev->ops->fill(t->dev->ctx, ps->grad + (first - x->first), 0,
                                  (size_t)(end - first) * sizeof(float)));
    }
    return NEB_OK;
}
