/* rehearsal.c: see rehearsal.h. A run's memory is that of the largest shape which the text has brought so far, so several
 * batches are drawn, as a training draws them. */
#include "plan/rehearsal.h"
#include "task/work.h"
#include "tensor/params.h"

#include <math.h>
#include <nebula/engine.h>
#include <string.h>

enum { BATCHES = 24, STEPS_LEAST = 3, STEPS_MOST = 24 };

static struct neb_rank_traffic minus(struct neb_rank_traffic a, const struct neb_rank_traffic *b,
                                     double steps)
{
    for (int k = 0; k < NEB_TRAFFIC_KINDS; k++) {
        a.calls[k] = (a.calls[k] - b->calls[k]) / steps;
        a.bytes[k] = (a.bytes[k] - b->bytes[k]) / steps;
    }
    return a;
}

static void read_traffic(const struct neb_layout *l, struct neb_rank_traffic out[4])
{
    struct neb_group *const groups[] = {l->data, l->tensor, l->pipeline, l->model};
    for (int i = 0; i < 4; i++) out[i] = neb__group_traffic(groups[i]);
}

static int steps_of(const struct neb_job *job)
{
    const int64_t n = BATCHES / (job->train.micro > 0 ? job->train.micro : 1);
    return (int)fmin(fmax((double)n, STEPS_LEAST), STEPS_MOST);
}

static neb_status make_steps(struct neb_work *w, const struct neb_layout *l, int steps,
                             struct neb_rehearsal *out)
{
    struct neb_work_step step;
    struct neb_rank_traffic before[4], after[4];
    double tokens = 0;
    read_traffic(l, before);
    for (int i = 0; i < steps; i++) {
        NEB_TRY(neb__work_step(w, 1e-4f, &step));
        tokens += (double)step.tokens;
    }
    read_traffic(l, after);
    out->tokens = tokens / steps;
    struct neb_rank_traffic *const to[] = {&out->data, &out->tensor, &out->pipeline, &out->model};
    for (int i = 0; i < 4; i++) *to[i] = minus(after[i], &before[i], steps);
    return NEB_OK;
}

static void read_memory(struct neb_work *w, const struct neb_planner_layout *l, struct neb_rehearsal *out)
{
    struct neb_work_memory m;
    const neb_params *ps = neb__work_params(w);
    const bool half = neb__work_device(w)->config.compute == NEB_BF16;
    neb__work_memory(w, &m);
    out->state = m.state;
    out->runs = m.runs;
    out->values = m.values;
    out->here = ps->trainable_values;
    out->whole = neb__work_is_split(w) ? 4.0 * (double)ps->whole_all : 0;
    const double ranks = l->zero ? l->data : 1;
    if (l->offload) out->offloaded = 8 * (double)ps->trainable_values / ranks;
    if (l->offload == NEB_OFFLOAD_OPTIMIZER && half) out->offloaded += 4 * (double)ps->all_values;
}

static neb_status go(struct neb_work *work, const struct neb_layout *layout, const struct neb_job *job,
                     const struct neb_rehearsal_links *x, struct neb_rehearsal *r)
{
    const int steps = steps_of(job);
    if (x && !x->then) return NEB_OK;
    NEB_TRY(make_steps(work, layout, steps, r));
    return x ? x->then(x->arg, work, steps) : NEB_OK;
}

neb_status neb__planner_rehearse_linked(const struct neb_data *data, const struct neb_planner_layout *l,
                                        const struct neb_layout_place *place,
                                        const struct neb_rehearsal_links *x, struct neb_rehearsal *out)
{
    struct neb_planner_job copy;
    struct neb_layout layout;
    struct neb_work *work = NULL;
    struct neb_rehearsal r = {0};
    neb__planner_job(data, l, &copy);
    copy.job.train.memory = 0;
    copy.job.train.speed = 0;
    if (x) copy.job.plan = NEB_STRATEGY_PIPELINE;
    NEB_TRY(neb__layout_pretend(&(struct neb_layout_sizes){l->data, l->pipeline, l->tensor}, place, true,
                                &layout));
    neb_status status = neb__work_open_ranks(&copy.data, 0, 1, x ? x->links : NULL, &layout, &work);
    if (status == NEB_OK) status = go(work, &layout, &copy.job, x, &r);
    if (status == NEB_OK) read_memory(work, l, &r);
    neb__work_close(work);
    neb__layout_unpretend(&layout);
    if (status == NEB_OK) *out = r;
    return status;
}

neb_status neb__planner_rehearse(const struct neb_data *data, const struct neb_planner_layout *l,
                                 const struct neb_layout_place *place, struct neb_rehearsal *out)
{
    return neb__planner_rehearse_linked(data, l, place, NULL, out);
}

neb_status neb__planner_rehearse_all(const struct neb_data *data, const struct neb_planner_layout *l,
                                     struct neb_rehearsal *out)
{
    struct neb_rehearsal most = {0}, r;
    for (int p = 0; p < l->pipeline; p++) {
        NEB_TRY(neb__planner_rehearse(data, l, &(struct neb_layout_place){.pipeline = p}, &r));
        if (!p || r.state + r.runs > most.state + most.runs) most = r;
    }
    *out = most;
    return NEB_OK;
}
