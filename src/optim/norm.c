/* norm.c: the norm of the gradient of all ranks, block by block.
 *
 * Blocks are numbered over the trainable parameters of the whole slab, in its order. Every rank writes the sums
 * of the blocks that it counts and 0 for the others. Adding 0 changes no bit, so summing the lists over the
 * ranks gives each block's own sum, and the list is then added up in one order. The step's losses, counts and
 * non-finite flag travel in the same list. */
#include "optim/optimizer.h"
#include "base/mem.h"

#include <string.h>

enum { LOSSES = 8, COUNTS = 4, RESULTS = LOSSES + COUNTS + 1, BLOCK = NEB_SUMSQ_BLOCK };

static int64_t blocks_of(int64_t values)
{
    return (values + BLOCK - 1) / BLOCK;
}

neb_status neb__norm_make(const neb_params *ps, struct neb_norm_plan *out)
{
    struct neb_norm_plan n = {.run = NEB_NEW_ARRAY(struct neb_norm_run, (size_t)ps->count)};
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

neb_status neb__norm_reduce(neb_optimizer *o, struct neb_ctl *c)
{
    double *results = o->norm.sums + o->norm.blocks, sum = 0;
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
    for (int64_t b = 0; b < o->norm.blocks; b++) sum += o->norm.sums[b];
    c->norm2 += (float)sum;
    return NEB_OK;
}
