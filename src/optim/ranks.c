/* ranks.c: what the ranks of a site do together in a step of the optimizer, and for a checkpoint. */
#include "optim/optimizer.h"
#include "base/mem.h"
#include "optim/beside.h"
#include "optim/site_stage.h"
#include "optim/whole.h"
#include "tensor/masters.h"
#include "tensor/partition.h"

#include <string.h>

static neb_status sum_scatter(void *ranks, float *values, const int64_t *edge)
{
    return neb__device_sum_scatter(ranks, values, edge, NEB_F32);
}

static neb_status gather(void *ranks, void *values, const int64_t *edge, neb_dtype type, int *ticket)
{
    return neb__device_gather_begin(ranks, values, edge, type, ticket);
}

static neb_status join(void *ranks, int ticket)
{
    return neb__group_gather_join(ranks, ticket);
}

neb_status neb__ranks_partition(neb_params *ps, const struct neb_layout *layout, int zero)
{
    struct neb_group *data = neb__layout_data(layout);
    struct neb_partition_link link = {.arg = data,
                                      .rank = neb__group_rank(data),
                                      .size = neb__group_size(data),
                                      .sum_scatter = sum_scatter,
                                      .gather = gather,
                                      .join = join};
    link.ahead = neb__group_sums_beside(data) || (layout && layout->several);
    return zero < 1 || link.size < 2 ? NEB_OK : neb__params_partition(ps, zero, &link);
}

float *neb__ranks_grad(const neb_optimizer *o)
{
    return neb__partition_of_grads(o->params) ? o->params->grad : o->params->grad + o->first;
}

float *neb__ranks_values(const neb_optimizer *o)
{
    return neb__partition_of_masters(o->params) ? o->params->value : o->params->value + o->first;
}

void *neb__ranks_shadow(const neb_optimizer *o, int64_t at)
{
    uint16_t *all = o->params->shadow;
    if (!all) return NULL;
    return all + at + (neb__partition_of_values(o->params) ? 0 : o->first);
}

/* Each rank gets whole blocks of the norm. */
neb_status neb__ranks_ranges(neb_optimizer *o, int zero)
{
    struct neb_group *data = neb__layout_data(o->layout);
    int size = neb__group_size(data), rank = neb__group_rank(data);
    o->first = 0;
    o->end = o->params->trainable_values;
    if (!zero || size < 2) return NEB_OK;
    o->edge = NEB_NEW_ARRAY(int64_t, (size_t)size + 1);
    if (!o->edge) return neb__fail(NEB_ERR_NOMEM, "out of memory for the ranks' ranges");
    neb__partition_edges(o->params, size, o->edge);
    o->first = o->edge[rank];
    o->end = o->edge[rank + 1];
    return NEB_OK;
}

/* ---- a step ---------------------------------------------------------------------------------------------- */

/* Behind the runs the ranks wait for each other's sums, wherever one of them fails. A step that is not finite is so at all of
 * them, and so is what the first rank of a stage has told them. */
neb_status neb__ranks_step_over(const neb_optimizer *o, neb_status status)
{
    const bool told = o->site && neb__site_stage_told(o->site);
    if (status != NEB_OK && status != NEB_ERR_NONFINITE && !told) neb__layout_give_up(o->layout);
    return status;
}

/* Copies of a whole model meet after their runs, so they can agree. Ranks that share a model wait for each other inside a
 * run: there a rank that fails gives up the groups in which they wait. So do the ranks of a stage whose neighbours are at other
 * sites. */
neb_status neb__ranks_run_over(neb_optimizer *o, neb_status status)
{
    const struct neb_layout *l = o->layout;
    const bool stage = o->site && neb__group_size(neb__layout_world(l)) > 1;
    const bool agree =
        !stage && !neb__partition_of_grads(o->params) && neb__group_size(neb__layout_model(l)) == 1;
    /* the others wait for this rank's sums before they hear that it failed */
    if (status == NEB_OK || agree) {
        neb_status sums = neb__beside_finish(o);
        if (status == NEB_OK) status = sums;
    }
    if (stage) return neb__ranks_step_over(o, status);
    if (agree) return neb__group_agree(neb__layout_data(l), status);
    if (status != NEB_OK) neb__layout_give_up(l);
    return status;
}

/* Without a group a device may take the norm of the whole slab in its own way. */
static neb_status norm_alone(neb_optimizer *o, struct neb_ctl *ctl)
{
    neb_device *d = o->dev;
    struct neb_sumsq q = {
        .x = o->params->grad, .n = o->params->trainable_values, .ctl = ctl, .scratch = o->scratch};
    return d->ops->sumsq(d->ctx, &q);
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

/* Each rank of a team has worked on some of the rows. */
static neb_status add_partial(neb_optimizer *o)
{
    const neb_params *ps = o->params;
    for (int i = 0; i < ps->count; i++) {
        const neb_param *p = ps->list[i];
        if (p->partial && p->trainable)
            NEB_TRY(neb__device_sum(neb__layout_tensor(o->layout), ps->grad + p->offset, p->values, NEB_F32));
    }
    return NEB_OK;
}

neb_status neb__ranks_reduce(neb_optimizer *o, neb_tape *t)
{
    neb_params *ps = o->params;
    struct neb_group *data = neb__layout_data(o->layout);
    const bool alone = neb__group_size(neb__layout_world(o->layout)) == 1;
    if (!o->norm.host && alone) return norm_alone(o, t->ctl);
    if (o->added_up) return neb__norm_reduce(o, t->ctl); /* private_step.c, on the host */
    NEB_TRY(add_partial(o));
    if (neb__partition_of_grads(ps))
        NEB_TRY(compare_order(data, ps->partition)); /* the sums are there */
    else if (neb__beside_take(o))
        ; /* so are they */
    else if (o->edge)
        NEB_TRY(neb__device_sum_scatter(data, ps->grad, o->edge, NEB_F32));
    else
        NEB_TRY(neb__device_sum(data, ps->grad, ps->trainable_values, NEB_F32));
    return o->norm.host ? neb__norm_reduce(o, t->ctl) : neb__norm_on_device(o, t->ctl);
}

neb_status neb__ranks_copies(const struct neb_layout *l, neb_params *ps, bool shadow)
{
    struct neb_group *data = neb__layout_data(l);
    const struct neb_partition *x = ps->partition;
    if (!ps->shadow) return NEB_OK;
    /* what all ranks hold is counted once */
    NEB_TRY(neb__masters_own_copies(ps, x->level > 2 || !neb__group_rank(data), shadow));
    if (x->level < 3) NEB_TRY(neb__device_gather(data, ps->shadow, x->edge, NEB_BF16));
    return neb__device_sum(data, ps->masters.vectors, ps->masters.vector_values, NEB_F32);
}

neb_status neb__ranks_gather(neb_optimizer *o)
{
    neb_params *ps = o->params;
    struct neb_group *data = neb__layout_data(o->layout);
    if (!o->edge) return NEB_OK;
    if (neb__partition_of_masters(ps))
        return neb__ranks_copies(o->layout, ps, false); /* the update made its own */
    if (neb__masters_on_host(ps)) {
        NEB_TRY(neb__masters_settle(ps));
        NEB_TRY(neb__group_gather(data, ps->value, o->edge));
    } else {
        NEB_TRY(neb__device_gather(data, ps->value, o->edge, NEB_F32));
    }
    return neb_params_refresh(ps, 0, ps->trainable_values);
}

/* ---- checkpoints ----------------------------------------------------------------------------------------- */

/* The ranges of all copies of the model, at the ranks of the first copy. */
static neb_status collect_ranges(const neb_optimizer *o, const float *own, float *here)
{
    struct neb_group *data = neb__layout_data(o->layout);
    size_t bytes = (size_t)(o->end - o->first) * sizeof *own;
    if (neb__group_rank(data)) return neb__group_send(data, own, bytes, 0);
    memcpy(here + o->first, own, bytes);
    for (int r = 1; o->edge && r < neb__group_size(data); r++)
        NEB_TRY(neb__group_receive(data, here + o->edge[r],
                                   (size_t)(o->edge[r + 1] - o->edge[r]) * sizeof *here, r));
    return NEB_OK;
}

neb_status neb__ranks_collect(const neb_optimizer *o, const float *own, float *whole)
{
    const struct neb_layout *l = o->layout;
    const bool split = neb__group_size(neb__layout_model(l)) > 1;
    const bool first_copy = !neb__group_rank(neb__layout_data(l));
    if (!split && !o->edge) {
        if (whole) memcpy(whole, own, (size_t)(o->end - o->first) * sizeof *own);
        return NEB_OK;
    }
    if (!split) return collect_ranges(o, own, whole);
    size_t bytes = (size_t)o->params->trainable_values * sizeof *own;
    float *here = o->edge && first_copy ? neb__malloc(bytes ? bytes : 1) : NULL;
    neb_status status = NEB_OK;
    if (o->edge && first_copy && !here)
        status = neb__fail(NEB_ERR_NOMEM, "out of memory for %zu bytes of an optimizer's state", bytes);
    status = neb__group_agree(neb__layout_world(l), status);
    if (status == NEB_OK && o->edge) status = collect_ranges(o, own, here);
    if (status == NEB_OK) status = neb__pieces_collect(l, o->params, true, o->edge ? here : own, whole);
    neb__free(here);
    return status;
}

/* A rank's range to the first one, or from there, by way of `host`. */
static neb_status exchange_own(struct neb_group *data, const neb_params *ps, bool collect,
                               const struct neb_held *h, float *host)
{
    neb_device *d = ps->dev;
    float *own = ps->value + h->at;
    size_t bytes = (size_t)(h->end - h->first) * sizeof *own;
    if (!bytes) return NEB_OK;
    if (collect) NEB_TRY(d->ops->download(d->ctx, host, own, bytes));
    if (neb__group_rank(data))
        NEB_TRY(collect ? neb__group_send(data, host, bytes, 0) : neb__group_receive(data, host, bytes, 0));
    return collect ? NEB_OK : d->ops->upload(d->ctx, own, host, bytes);
}

/* One of a rank's ranges at a time. */
static neb_status exchange_held(struct neb_group *data, const neb_params *ps, bool collect,
                                const int64_t *edge, const struct neb_held *h, float *here)
{
    if (neb__group_rank(data)) {
        float *host = NEB_NEW_ARRAY(float, (size_t)(h->end - h->first) + 1);
        if (!host) return neb__fail(NEB_ERR_NOMEM, "out of memory for this rank's part of the parameters");
        neb_status status = exchange_own(data, ps, collect, h, host);
        neb__free(host);
        return status;
    }
    NEB_TRY(exchange_own(data, ps, collect, h, here + h->first));
    for (int r = 1; r < neb__group_size(data); r++) {
        float *at = here + edge[r];
        size_t n = (size_t)(edge[r + 1] - edge[r]) * sizeof *at;
        NEB_TRY(collect ? neb__group_receive(data, at, n, r) : neb__group_send(data, at, n, r));
    }
    return NEB_OK;
}

static neb_status exchange_values(struct neb_group *data, const neb_params *ps, bool collect, bool trainable,
                                  float *here)
{
    const struct neb_partition *x = ps->partition;
    NEB_TRY(exchange_held(data, ps, collect, x->edge, &x->held[0], here));
    if (trainable) return NEB_OK;
    if (x->level > 2) return exchange_held(data, ps, collect, x->frozen, &x->held[1], here);
    return neb__group_rank(data) ? NEB_OK
                                 : exchange_own(data, ps, collect, &x->held[1], here + x->held[1].first);
}

/* The first rank waits for each of the others in turn, for a checkpoint without a limit: a rank that fails tells it. */
neb_status neb__ranks_exchange_values(const struct neb_layout *l, neb_params *ps, bool collect,
                                      bool trainable, float *here)
{
    neb_status status = exchange_values(neb__layout_data(l), ps, collect, trainable, here);
    if (status != NEB_OK) neb__layout_give_up(l);
    return status;
}
