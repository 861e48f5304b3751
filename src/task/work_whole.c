/* work_whole.c: the whole model where several ranks share its parameters.
 *
 * The first rank has a copy of all values in host memory: always where other sites read and change it, else
 * while it is needed. Whatever needs whole parameters (the session with the
 * other sites, checkpoints, export) reads and changes that copy; collecting brings it up to date, distributing
 * gives every rank its part of it. A step makes the copy old. Where every rank has the whole model, the slab
 * itself serves. */
#include "task/work_internal.h"
#include "base/mem.h"
#include "optim/optimizer.h"
#include "optim/whole.h"
#include "tensor/masters.h"
#include "tensor/partition.h"

#include <string.h>

bool neb__work_gathers(const struct neb_work *w)
{
    return neb__partition_of_values(w->params);
}

bool neb__work_shares_masters(const struct neb_work *w)
{
    return neb__partition_of_masters(w->params);
}

bool neb__work_is_split(const struct neb_work *w)
{
    return neb__group_size(neb__layout_model(w->layout)) > 1 || neb__work_shares_masters(w);
}

static bool is_first(const struct neb_work *w)
{
    return !neb__group_rank(neb__layout_world(w->layout));
}

static neb_status need_whole(struct neb_work *w)
{
    if (!neb__work_is_split(w) || !is_first(w) || w->whole) return NEB_OK;
    w->whole = NEB_NEW_ARRAY(float, (size_t)w->params->whole_all);
    if (w->whole) return NEB_OK;
    return neb__fail(NEB_ERR_NOMEM,
                     "out of memory for the %" PRId64 " values of the whole model at its first rank",
                     w->params->whole_all);
}

/* The session registers its memory. That of a stage has no parameters. */
static bool keeps_whole(const struct neb_work *w)
{
    return w->job->at >= 0 && !neb__work_has_stage(w);
}

neb_status neb__work_make_whole(struct neb_work *w)
{
    return keeps_whole(w) && !neb__device_rehearses(w->dev) ? need_whole(w) : NEB_OK;
}

void neb__work_forget(struct neb_work *w)
{
    w->params->whole = NULL;
    if (keeps_whole(w)) return;
    neb__free(w->whole);
    w->whole = NULL;
}

/* ---- parameters that are gathered ------------------------------------------------------------------------------ */

/* The slab of this rank's copy of the model, at the first rank of the data group: where the whole slab is the
 * same, that one; *own: memory to be freed. */
static neb_status slab_here(struct neb_work *w, float **here, float **own)
{
    const neb_params *ps = w->params;
    *here = *own = NULL;
    if (neb__group_rank(neb__layout_data(w->layout))) return NEB_OK;
    if (neb__group_size(neb__layout_model(w->layout)) == 1) {
        *here = w->whole;
        return NEB_OK;
    }
    *here = *own = NEB_NEW_ARRAY(float, (size_t)ps->all_values);
    if (*own) return NEB_OK;
    return neb__fail(NEB_ERR_NOMEM,
                     "out of memory for the %" PRId64 " values of this rank's part of the model",
                     ps->all_values);
}

static neb_status collect_gathered(struct neb_work *w)
{
    float *here, *own;
    neb_status status = neb__group_agree(neb__layout_world(w->layout), slab_here(w, &here, &own));
    if (status == NEB_OK) status = neb__ranks_exchange_values(w->layout, w->params, true, false, here);
    if (status == NEB_OK && own) status = neb__pieces_collect(w->layout, w->params, false, own, w->whole);
    neb__free(own);
    return status;
}

static neb_status distribute_gathered(struct neb_work *w)
{
    float *here, *own;
    neb_status status = neb__group_agree(neb__layout_world(w->layout), slab_here(w, &here, &own));
    if (status == NEB_OK && own)
        status = neb__pieces_distribute_first(w->layout, w->params, true, w->whole, own);
    if (status == NEB_OK) status = neb__ranks_exchange_values(w->layout, w->params, false, true, here);
    if (status == NEB_OK) status = neb__ranks_copies(w->layout, w->params, true);
    neb__free(own);
    return status;
}

/* ---- where a device has the values ------------------------------------------------------------------------------ */

/* This rank's slab on the host: its own memory there, or a copy of the device's, which is to be freed. */
static neb_status slab_on_host(struct neb_work *w, int64_t n, bool fill, float **here, float **own)
{
    neb_params *ps = w->params;
    *here = ps->value;
    *own = NULL;
    NEB_TRY(neb__work_settle(w));
    if (neb__work_slab_on_host(w)) return NEB_OK;
    *here = *own = NEB_NEW_ARRAY(float, (size_t)n);
    if (!*own)
        return neb__fail(NEB_ERR_NOMEM,
                         "out of memory for the %" PRId64 " values of this rank's part of the model", n);
    return fill ? neb__masters_get(ps, 0, *own, n) : NEB_OK;
}

static neb_status collect_split(struct neb_work *w)
{
    float *here = NULL, *own = NULL;
    neb_status status = neb__group_agree(neb__layout_world(w->layout),
                                         slab_on_host(w, w->params->all_values, true, &here, &own));
    if (status == NEB_OK) status = neb__pieces_collect(w->layout, w->params, false, here, w->whole);
    neb__free(own);
    return status;
}

static neb_status distribute_split(struct neb_work *w)
{
    neb_params *ps = w->params;
    float *here = NULL, *own = NULL;
    neb_status status = neb__group_agree(neb__layout_world(w->layout),
                                         slab_on_host(w, ps->trainable_values, false, &here, &own));
    if (status == NEB_OK) status = neb__pieces_distribute(w->layout, ps, true, w->whole, here);
    if (status == NEB_OK && own) status = neb__masters_put(ps, 0, own, ps->trainable_values);
    neb__free(own);
    return status;
}

/* Where every rank has the whole model. */
static neb_status distribute_copy(struct neb_work *w)
{
    neb_params *ps = w->params;
    struct neb_group *data = neb__layout_data(w->layout);
    if (!neb__masters_on_host(ps))
        return neb__device_broadcast(data, ps->value, ps->trainable_values, NEB_F32, 0);
    NEB_TRY(neb__work_settle(w));
    return neb__group_broadcast(data, ps->value, (size_t)ps->trainable_values * sizeof *ps->value, 0);
}

/* ---- the whole model ------------------------------------------------------------------------------------------- */

/* The slab of a process that has the whole stage alone: the parameters of other stages take no room. */
static int64_t stage_place(const neb_param *p, int64_t at)
{
    const int64_t n = p->elsewhere || !p->trainable ? 0 : neb__param_slab_whole(p);
    return at + (n + NEB_PARAM_ALIGN - 1) / NEB_PARAM_ALIGN * NEB_PARAM_ALIGN;
}

int64_t neb__work_place_behind(const struct neb_work *w, const neb_param *p, int64_t *at)
{
    if (neb__work_has_stage(w)) return stage_place(p, *at);
    *at = p->whole_offset;
    return *at + (p->trainable ? neb__param_slab_whole(p) : 0);
}

int64_t neb__work_slab_values(const struct neb_work *w)
{
    int64_t n = 0;
    if (!neb__work_has_stage(w)) return w->params->whole_trainable;
    for (int i = 0; i < w->params->count; i++) n = stage_place(w->params->list[i], n);
    return n;
}

/* A stage that ranks share out. */
static bool shares_stage(const struct neb_work *w)
{
    return neb__work_has_stage(w) && neb__group_size(neb__layout_model(w->layout)) > 1;
}

/* Between the slab of the whole model and that of the stage. */
static void move_moments(const struct neb_work *w, float *whole, float *stage, bool out)
{
    int64_t at = 0;
    for (int i = 0; i < w->params->count; i++) {
        const neb_param *p = w->params->list[i];
        const int64_t end = stage_place(p, at), n = end - at;
        const size_t bytes = n ? (size_t)neb__param_slab_whole(p) * sizeof *whole : 0;
        if (bytes)
            memcpy(out ? stage + at : whole + p->whole_offset, out ? whole + p->whole_offset : stage + at,
                   bytes);
        at = end;
    }
}

neb_status neb__work_save_moments(struct neb_work *w, float *m, float *v)
{
    if (!shares_stage(w) || !m) return neb_optimizer_save(w->opt, m, v);
    const size_t n = (size_t)w->params->whole_trainable;
    float *all[2] = {NEB_NEW_ARRAY(float, n), NEB_NEW_ARRAY(float, n)};
    /* the others wait to lend theirs: a rank that cannot go on gives up the group */
    neb_status status =
        all[0] && all[1] ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for %zu moments", n);
    if (status != NEB_OK) neb__layout_give_up(w->layout);
    if (status == NEB_OK) status = neb_optimizer_save(w->opt, all[0], all[1]);
    memset(m, 0, (size_t)neb__work_slab_values(w) * sizeof *m);
    memset(v, 0, (size_t)neb__work_slab_values(w) * sizeof *v);
    if (status == NEB_OK) move_moments(w, all[0], m, true);
    if (status == NEB_OK) move_moments(w, all[1], v, true);
    neb__free(all[0]);
    neb__free(all[1]);
    return status;
}

neb_status neb__work_load_moments(struct neb_work *w, int64_t step, const float *m, const float *v)
{
    if (!shares_stage(w)) return neb_optimizer_load(w->opt, step, m, v);
    const size_t n = (size_t)w->params->whole_trainable;
    float *all[2] = {NEB_NEW_ARRAY(float, n), NEB_NEW_ARRAY(float, n)};
    neb_status status =
        all[0] && all[1] ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for %zu moments", n);
    if (status == NEB_OK) move_moments(w, all[0], (float *)(uintptr_t)m, false);
    if (status == NEB_OK) move_moments(w, all[1], (float *)(uintptr_t)v, false);
    if (status == NEB_OK) status = neb_optimizer_load(w->opt, step, all[0], all[1]);
    neb__free(all[0]);
    neb__free(all[1]);
    return status;
}

static bool is_saved(const struct neb_work *w, const neb_param *p)
{
    return !neb__param_left_out(p) && (!neb__work_has_stage(w) || !p->elsewhere);
}

float *neb__work_whole(struct neb_work *w, int64_t *n)
{
    neb_params *ps = w->params;
    *n = ps->whole_all;
    if (ps->whole) return w->whole; /* collected from the ranks of this stage */
    if (!w->whole) w->whole = NEB_NEW_ARRAY(float, (size_t)ps->whole_all);
    for (int i = 0; w->whole && i < ps->count; i++)
        if (is_saved(w, ps->list[i]) &&
            neb_param_read(ps->list[i], w->whole + ps->list[i]->whole_offset) != NEB_OK)
            return NULL;
    return w->whole;
}

void neb__work_have_whole(struct neb_work *w)
{
    w->params->whole = w->whole;
}

float *neb__work_slab(struct neb_work *w, int64_t *n)
{
    if (!w->whole) return neb_params_slab(w->params, n);
    *n = w->params->whole_trainable;
    return w->whole;
}

neb_status neb__work_collect(struct neb_work *w)
{
    if (!neb__work_is_split(w)) return NEB_OK;
    NEB_TRY(neb__group_agree(neb__layout_world(w->layout), need_whole(w)));
    if (neb__work_shares_masters(w))
        NEB_TRY(collect_gathered(w));
    else
        NEB_TRY(collect_split(w));
    w->params->whole = w->whole;
    return NEB_OK;
}

neb_status neb__work_distribute(struct neb_work *w)
{
    neb_params *ps = w->params;
    if (neb__work_shares_masters(w)) {
        NEB_TRY(distribute_gathered(w));
        ps->whole = w->whole;
        return NEB_OK;
    }
    if (neb__work_is_split(w)) {
        NEB_TRY(distribute_split(w));
        ps->whole = w->whole;
    } else {
        NEB_TRY(distribute_copy(w));
    }
    return neb_params_refresh(ps, 0, ps->trainable_values);
}

bool neb__work_lacks_whole(const struct neb_work *w)
{
    return neb__work_is_split(w) && is_first(w) && !w->params->whole;
}

int64_t neb__work_kept_values(const struct neb_work *w)
{
    int64_t n = 0;
    for (int i = 0; i < w->params->count; i++)
        if (is_saved(w, w->params->list[i])) n += w->params->list[i]->whole_values;
    return n;
}

neb_status neb__work_read_params(struct neb_work *w, float *out)
{
    for (int i = 0; i < w->params->count; i++) {
        if (!is_saved(w, w->params->list[i])) continue;
        NEB_TRY(neb_param_read(w->params->list[i], out));
        out += w->params->list[i]->whole_values;
    }
    return NEB_OK;
}

neb_status neb__work_write_params(struct neb_work *w, const float *values)
{
    NEB_TRY(need_whole(w));
    for (int i = 0; i < w->params->count; i++) {
        neb_param *p = w->params->list[i];
        if (!is_saved(w, p)) continue;
        NEB_TRY(neb_param_write(p, values));
        if (w->whole) memcpy(w->whole + p->whole_offset, values, (size_t)p->whole_values * sizeof *values);
        values += p->whole_values;
    }
    w->params->whole = w->whole;
    return NEB_OK;
}
