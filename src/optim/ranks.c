/* ranks.c: what the ranks of a site do together in a step of the optimizer, and for a checkpoint. */
#include "optim/optimizer.h"
#include "base/mem.h"
#include "tensor/partition.h"

#include <math.h>
#include <string.h>

static neb_status sum_scatter(void *ranks, float *values, const int64_t *edge)
{
    return neb__group_sum_scatter(ranks, values, edge);
}

neb_status neb__ranks_partition(neb_params *ps, struct neb_group *ranks, int zero)
{
    struct neb_partition_link link = {ranks, neb__group_rank(ranks), neb__group_size(ranks), sum_scatter};
    return zero < 2 || link.size < 2 ? NEB_OK : neb__params_partition(ps, zero, &link);
}

float *neb__ranks_grad(const neb_optimizer *o)
{
    return o->params->partition ? o->params->grad : o->params->grad + o->first;
}

/* Each rank gets whole blocks of the norm. */
neb_status neb__ranks_ranges(neb_optimizer *o, int zero)
{
    int64_t n = o->params->trainable_values, blocks = (n + NEB_SUMSQ_BLOCK - 1) / NEB_SUMSQ_BLOCK;
    int size = neb__group_size(o->ranks), rank = neb__group_rank(o->ranks);
    o->first = 0;
    o->end = n;
    if (!zero || size < 2) return NEB_OK;
    o->edge = NEB_NEW_ARRAY(int64_t, (size_t)size + 1);
    o->blocks = NEB_NEW_ARRAY(double, (size_t)blocks);
    if (!o->edge || !o->blocks) return neb__fail(NEB_ERR_NOMEM, "out of memory for the ranks' ranges");
    neb__partition_edges(n, size, o->edge);
    o->first = o->edge[rank];
    o->end = o->edge[rank + 1];
    return NEB_OK;
}

/* ---- a step ---------------------------------------------------------------------------------------------- */

static neb_status norm(neb_optimizer *o, struct neb_ctl *ctl)
{
    neb_device *d = o->dev;
    struct neb_sumsq q = {.x = neb__ranks_grad(o),
                          .n = o->end - o->first,
                          .ctl = ctl,
                          .scratch = o->scratch,
                          .blocks = o->edge ? o->blocks + o->first / NEB_SUMSQ_BLOCK : NULL};
    if (q.n) NEB_TRY(d->ops->sumsq(d->ctx, &q));
    if (!o->edge) return NEB_OK;
    int64_t edge[NEB_GROUP_RANKS + 1], n = 0;
    for (int r = 0; r <= neb__group_size(o->ranks); r++)
        edge[r] = n = (o->edge[r] + NEB_SUMSQ_BLOCK - 1) / NEB_SUMSQ_BLOCK;
    NEB_TRY(neb__group_gather_doubles(o->ranks, o->blocks, edge));
    double sum = 0;
    for (int64_t b = 0; b < n; b++) sum += o->blocks[b];
    ctl->norm2 += (float)sum;
    return NEB_OK;
}

/* A value that is not finite at one rank makes all of them skip the step. */
static neb_status add_up_results(struct neb_group *g, struct neb_ctl *c)
{
    double v[12];
    int64_t bad = c->nonfinite;
    for (int i = 0; i < 8; i++) v[i] = (double)c->loss[i];
    for (int i = 0; i < 4; i++) v[8 + i] = (double)c->counts[i];
    NEB_TRY(neb__group_sum_doubles(g, v, 12));
    NEB_TRY(neb__group_max(g, &bad, 1));
    for (int i = 0; i < 8; i++) c->loss[i] = (float)v[i];
    for (int i = 0; i < 4; i++) c->counts[i] = (float)v[8 + i];
    c->nonfinite = (uint32_t)bad;
    return NEB_OK;
}

/* The ranks have exchanged the same buckets in the same order. */
static neb_status compare_order(struct neb_group *g, struct neb_partition *x)
{
    int64_t v[2] = {(int64_t)(x->order >> 2)};
    v[1] = -v[0];
    x->order = 0;
    NEB_TRY(neb__group_max(g, v, 2));
    if (v[0] == -v[1]) return NEB_OK;
    return neb__fail(NEB_ERR_INTERNAL,
                     "the ranks did not add up the same gradients: their micro-batches run different models");
}

neb_status neb__ranks_reduce(neb_optimizer *o, neb_tape *t)
{
    neb_params *ps = o->params;
    if (neb__group_size(o->ranks) > 1) {
        if (ps->partition)
            NEB_TRY(compare_order(o->ranks, ps->partition)); /* the sums are there */
        else if (o->edge)
            NEB_TRY(neb__group_sum_scatter(o->ranks, ps->grad, o->edge));
        else
            NEB_TRY(neb__group_sum(o->ranks, ps->grad, ps->trainable_values));
        NEB_TRY(add_up_results(o->ranks, t->ctl));
    }
    return norm(o, t->ctl);
}

neb_status neb__ranks_gather(neb_optimizer *o)
{
    if (!o->edge) return NEB_OK;
    NEB_TRY(neb__group_gather(o->ranks, o->params->value, o->edge));
    return neb_params_refresh(o->params, 0, o->params->trainable_values);
}

/* ---- checkpoints ----------------------------------------------------------------------------------------- */

neb_status neb__ranks_collect(const neb_optimizer *o, const float *own, float *all)
{
    size_t bytes = (size_t)(o->end - o->first) * sizeof *own;
    if (neb__group_rank(o->ranks)) return neb__group_send(o->ranks, own, bytes, 0);
    memcpy(all + o->first, own, bytes);
    for (int r = 1; r < neb__group_size(o->ranks); r++)
        NEB_TRY(neb__group_receive(o->ranks, all + o->edge[r],
                                   (size_t)(o->edge[r + 1] - o->edge[r]) * sizeof *all, r));
    return NEB_OK;
}
