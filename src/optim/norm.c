/* norm.c: the norm of the gradient of all ranks, block by block.
 *
 * Blocks are numbered over the trainable parameters of the whole slab, in its order. Every rank writes the sums
 * of the blocks that it counts and 0 for the others. Adding 0 changes no bit, so summing the lists over the
 * ranks gives each block's own sum, and the list is then added up in one order. The step's losses, counts and
 * non-finite flag travel in the same list.
 *
 * A device with memory of its own adds up its range by itself, in an order that depends on the sizes alone, and the
 * ranks add up these sums: the norm repeats itself under a layout, and differs between layouts in the last bits. */
#include "optim/optimizer.h"
#include "base/mem.h"

#include <string.h>

enum { LOSSES = 8, COUNTS = 4, RESULTS = LOSSES + COUNTS + 1, BLOCK = NEB_SUMSQ_BLOCK };

static int64_t blocks_of(int64_t values)
{
    return (values + BLOCK - 1) / BLOCK;
}

neb_status neb__norm_make(const neb_params *ps, bool host, struct neb_norm_plan *out)
{
    struct neb_norm_plan n = {.host = host, .run = NEB_NEW_ARRAY(struct neb_norm_run, (size_t)ps->count)};
    int64_t most = 1;
    for (int i = 0; n.run && i < ps->count; i++) {
        const neb_param *p = ps->list[i];
        if (!p->trainable) continue;
        int64_t here = blocks_of(p->values);
        if (p->counted && p->values)
            n.run[n.runs++] = (struct neb_norm_run){p->offset, p->values, n.blocks, here, p->parts > 0};
        if (here > most) most = here;
        n.blocks += blocks_of(p->whole_values);
    }
    n.sums = NEB_NEW_ARRAY(double, (size_t)n.blocks + RESULTS);
    n.scratch = NEB_NEW_ARRAY(double, (size_t)most);
    *out = n;
    if (n.run && n.sums && n.scratch) return NEB_OK;
    return neb__fail(NEB_ERR_NOMEM, "out of memory for the norm of %d parameters", ps->count);
}

void neb__norm_free(struct neb_norm_plan *n)
{
    neb__free(n->run);
    neb__free(n->sums);
    neb__free(n->scratch);
}

neb_status neb__norm_blocks(neb_optimizer *o)
{
    struct neb_norm_plan *plan = &o->norm;
    neb_device *d = o->dev;
    memset(plan->sums, 0, ((size_t)plan->blocks + RESULTS) * sizeof *plan->sums);
    for (int i = 0; i < plan->runs; i++) {
        const struct neb_norm_run *r = &plan->run[i];
        int64_t first = r->first > o->first ? r->first : o->first;
        int64_t end = r->first + r->n < o->end ? r->first + r->n : o->end;
        if (first >= end) continue;
        int64_t at = (first - r->first) / BLOCK;
        double *sums = r->cut ? plan->scratch : plan->sums + r->block + at;
        struct neb_sumsq q = {.x = neb__ranks_grad(o) + (first - o->first),
                              .n = end - first,
                              .scratch = o->scratch,
                              .blocks = sums};
        NEB_TRY(d->ops->sumsq(d->ctx, &q));
        for (int64_t b = 0; r->cut && b < blocks_of(end - first); b++) plan->sums[r->block] += sums[b];
    }
    return NEB_OK;
}

/* Ranks of one copy of the model: they have different parameters; only the last stage has losses, and the ranks
 * of a stage have the same. */
static neb_status add_up_model(neb_optimizer *o, double *results)
{
    const struct neb_layout *l = o->layout;
    double *v = o->norm.sums, flag = results[LOSSES + COUNTS];
    struct neb_group *model = neb__layout_model(l);
    if (neb__group_size(model) == 1) return NEB_OK;
    if (neb__group_rank(neb__layout_tensor(l))) memset(results, 0, RESULTS * sizeof *results);
    results[LOSSES + COUNTS] = flag;
    return neb__group_sum_doubles(model, v, o->norm.blocks + RESULTS);
}

/* Copies of the model: they have different losses, and with zero different ranges of the norm. */
static neb_status add_up_copies(neb_optimizer *o, double *results)
{
    struct neb_group *data = neb__layout_data(o->layout);
    if (o->edge) return neb__group_sum_doubles(data, o->norm.sums, o->norm.blocks + RESULTS);
    return neb__group_sum_doubles(data, results, RESULTS);
}

double neb__norm_here(const neb_optimizer *o)
{
    double sum = 0;
    for (int64_t b = 0; o->norm.host && b < o->norm.blocks; b++) sum += o->norm.sums[b];
    return o->norm.host ? sum : -1;
}

neb_status neb__norm_reduce(neb_optimizer *o, struct neb_ctl *c)
{
    double *results = o->norm.sums + o->norm.blocks;
    NEB_TRY(neb__norm_blocks(o));
    for (int i = 0; i < LOSSES; i++) results[i] = (double)c->loss[i];
    for (int i = 0; i < COUNTS; i++) results[LOSSES + i] = (double)c->counts[i];
    results[LOSSES + COUNTS] = c->nonfinite;
    if (neb__group_size(neb__layout_world(o->layout)) > 1) {
        NEB_TRY(add_up_copies(o, results));
        NEB_TRY(add_up_model(o, results));
        for (int i = 0; i < LOSSES; i++) c->loss[i] = (float)results[i];
        for (int i = 0; i < COUNTS; i++) c->counts[i] = (float)results[LOSSES + i];
        c->nonfinite = results[LOSSES + COUNTS] > 0;
    }
    c->norm2 += (float)neb__norm_here(o);
    return NEB_OK;
}

/* ---- on a device ------------------------------------------------------------------------------------------- */

/* The sums of squares of what is here and counted. Parameters that lie side by side are taken together: the gaps
 * between them hold zeros. */
static neb_status sum_here(neb_optimizer *o, struct neb_ctl *c)
{
    const struct neb_norm_plan *plan = &o->norm;
    neb_device *d = o->dev;
    for (int i = 0; i < plan->runs;) {
        int64_t first = plan->run[i].first, end = first;
        for (; i < plan->runs && plan->run[i].first - end < NEB_PARAM_ALIGN; i++)
            end = plan->run[i].first + plan->run[i].n;
        if (first < o->first) first = o->first;
        if (end > o->end) end = o->end;
        if (first >= end) continue;
        struct neb_sumsq q = {
            .x = neb__ranks_grad(o) + (first - o->first), .n = end - first, .ctl = c, .scratch = o->scratch};
        NEB_TRY(d->ops->sumsq(d->ctx, &q));
    }
    return NEB_OK;
}

/* Losses, norm² and counts lie together. The factor of the clip, between them, is computed afterwards. The flag is an
 * integer; that it survives is of no importance, because a loss or a norm that is not finite stays so in a sum. */
static neb_status add_results(struct neb_group *g, struct neb_ctl *c)
{
    const int64_t n =
        (int64_t)((offsetof(struct neb_ctl, counts) - offsetof(struct neb_ctl, loss)) / sizeof(float));
    return neb__device_sum(g, c->loss, n + COUNTS, NEB_F32);
}

/* In a copy of the model the first rank of the last stage has the results; the ranks of a stage have the same. */
static neb_status drop_results(neb_optimizer *o, struct neb_ctl *c)
{
    neb_device *d = o->dev;
    if (!neb__group_rank(neb__layout_tensor(o->layout))) return NEB_OK;
    NEB_TRY(d->ops->fill(d->ctx, c->loss, 0, sizeof c->loss));
    return d->ops->fill(d->ctx, c->counts, 0, sizeof c->counts);
}

neb_status neb__norm_on_device(neb_optimizer *o, struct neb_ctl *c)
{
    struct neb_group *data = neb__layout_data(o->layout), *model = neb__layout_model(o->layout);
    /* copies of the model that have all gradients have the same norm: it is not added up */
    if (o->edge) NEB_TRY(sum_here(o, c));
    NEB_TRY(add_results(data, c));
    if (!o->edge) NEB_TRY(sum_here(o, c));
    if (neb__group_size(model) == 1) return NEB_OK;
    NEB_TRY(drop_results(o, c));
    return add_results(model, c);
}
