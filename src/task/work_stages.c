/* work_stages.c: one stage of a job's model at each rank of a pipeline.
 *
 * A stage has the parameters of its layers, an input for each micro-batch in flight and a place in the line of
 * stages (optim/pipeline.h). Every stage loads every batch: positions and sample numbers are needed in all of
 * them. A token table that several stages hold has the sum of their gradients in each of them, in the order of
 * the stages; so its copies stay equal. */
#include "task/work_slots.h"
#include "base/mem.h"
#include "optim/optimizer.h"
#include "optim/site_stage.h"

#include <string.h>

static struct neb_group *line(const struct neb_work *w)
{
    return neb__layout_pipeline(w->layout);
}

bool neb__work_is_staged(const struct neb_work *w)
{
    return neb__group_size(line(w)) > 1;
}

/* ---- the model -------------------------------------------------------------------------------------------- */

static neb_status ranges_of(const struct neb_work *w, struct neb_arch *a, struct neb_stage_range **out)
{
    int stages = neb__group_size(line(w));
    NEB_TRY(neb__model_config_check(&w->data->models.model, a));
    struct neb_stage_range *r = NEB_NEW_ARRAY(struct neb_stage_range, (size_t)stages);
    if (!r) return neb__fail(NEB_ERR_NOMEM, "out of memory for %d stages", stages);
    neb_status status = neb__stage_cut(a, stages, r);
    if (status == NEB_OK)
        *out = r;
    else
        neb__free(r);
    return status;
}

neb_status neb__work_make_stage(struct neb_work *w)
{
    struct neb_arch a;
    struct neb_stage_range *ranges = NULL, own = w->links.stage.range, hole = w->links.stage.hole;
    if (!neb__work_has_stage(w)) {
        NEB_TRY(ranges_of(w, &a, &ranges));
        own = ranges[neb__group_rank(line(w))];
        neb__free(ranges);
    }
    return neb__model_create_stage(&w->data->models.model, &w->job->peft, &own, &hole, w->params, &w->model);
}

/* ---- opening ---------------------------------------------------------------------------------------------- */

void neb__work_enter_slot(void *arg, int slot, const struct neb_stage_ports *at)
{
    struct neb_work *w = arg;
    struct neb_stage *s = &w->model->stage;
    w->input = w->stages->inputs[slot];
    s->in = at->in, s->in_grad = at->in_grad;
    s->out = at->out, s->out_grad = at->out_grad;
}

neb_status neb__work_make_slots(struct neb_work *w, const struct neb_model_input_limits *limits, int slots)
{
    struct neb_work_stages *s = w->stages;
    struct neb_model_input_limits l = *limits;
    l.prefix = (int32_t)w->model->peft.prefix_length;
    s->slots = slots;
    s->inputs = NEB_NEW_ARRAY(struct neb_model_input *, (size_t)s->slots);
    if (!s->inputs) return neb__fail(NEB_ERR_NOMEM, "out of memory for %d micro-batches in flight", s->slots);
    s->inputs[0] = w->input;
    for (int i = 1; i < s->slots; i++) NEB_TRY(neb__model_input_create(w->dev, &l, &s->inputs[i]));
    return neb__model_set_slots(w->model, s->slots);
}

static neb_status open_line(struct neb_work *w, const struct neb_arch *a,
                            const struct neb_stage_range *ranges, const struct neb_model_input_limits *l)
{
    int stages = neb__group_size(line(w)), holders = 0;
    int64_t rows[2] = {l->rows[0], l->rows[1]};
    size_t *bytes = NEB_NEW_ARRAY(size_t, (size_t)stages);
    neb_status status = bytes ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for %d stages", stages);
    for (int i = 0; bytes && i < stages; i++) {
        holders += neb__stage_has_table(a, &ranges[i]);
        bytes[i] = neb__stage_message(a, ranges[i].end, rows, w->dev->config.compute);
    }
    status = neb__group_agree(line(w), status);
    if (status == NEB_OK)
        status = neb__pipeline_open(line(w), w->dev, w->tape, bytes, neb__work_enter_slot, w,
                                    &w->stages->pipeline);
    neb__free(bytes);
    NEB_TRY(status);
    if (holders < 2) return NEB_OK;
    bool holds = neb__stage_has_table(a, &ranges[neb__group_rank(line(w))]);
    NEB_TRY(neb__group_split(line(w), holds, &w->stages->holders));
    if (holds && neb_param_trainable(w->model->token))
        return neb__group_attach(w->stages->holders, w->dev->ops, w->dev->ctx);
    neb__group_close(w->stages->holders);
    w->stages->holders = NULL;
    return NEB_OK;
}

neb_status neb__work_open_stages(struct neb_work *w, const struct neb_model_input_limits *limits,
                                 neb_status before)
{
    struct neb_arch a;
    struct neb_stage_range *ranges = NULL;
    neb_status status = before;
    if (status == NEB_OK && !(w->stages = NEB_NEW(struct neb_work_stages)))
        status = neb__fail(NEB_ERR_NOMEM, "out of memory for a stage");
    if (status == NEB_OK)
        status = neb__work_make_slots(w, limits, neb__group_size(line(w)) - neb__group_rank(line(w)));
    if (status == NEB_OK) status = ranges_of(w, &a, &ranges);
    status = neb__group_agree(line(w), status);
    if (status != NEB_OK) {
        neb__free(ranges);
        return status;
    }
    status = open_line(w, &a, ranges, limits);
    neb__free(ranges);
    if (status == NEB_OK) w->opt->pipeline = w->stages->pipeline;
    return status;
}

void neb__work_close_stages(struct neb_work *w)
{
    struct neb_work_stages *s = w->stages;
    if (!s) return;
    neb__pipeline_close(s->pipeline);
    neb__site_stage_close(s->site);
    neb__group_close(s->holders);
    for (int i = 1; s->inputs && i < s->slots; i++) neb__model_input_destroy(s->inputs[i]);
    if (s->inputs) w->input = s->inputs[0];
    neb__free(s->inputs);
    neb__free(s);
    w->stages = NULL;
}

/* ---- steps ------------------------------------------------------------------------------------------------ */

static neb_status add_up_table(void *arg, float *gradients, int64_t n)
{
    struct neb_work *w = arg;
    const neb_param *token = w->model->token;
    if (!w->stages->holders || token->offset + token->values > n) return NEB_OK;
    return neb__device_sum(w->stages->holders, gradients + token->offset, token->values, NEB_F32);
}

const struct neb_reduce *neb__work_reduce(struct neb_work *w, struct neb_reduce *space)
{
    if (!w->stages || w->stages->site) return NULL;
    *space = (struct neb_reduce){.grads = add_up_table, .arg = w};
    return space;
}

void neb__work_stage_times(const struct neb_work *w, double *all_s, double *idle_s)
{
    *all_s = *idle_s = 0;
    if (w->stages && w->stages->pipeline) neb__pipeline_times(w->stages->pipeline, all_s, idle_s);
}

/* ---- held-out text ---------------------------------------------------------------------------------------- */

neb_status neb__work_stage_eval(struct neb_work *w, const struct neb_run *run)
{
    if (!w->stages) return neb_tape_run(w->tape, run);
    if (!w->stages->site) return neb__pipeline_forward(w->stages->pipeline, run);
    w->stages->evaluates = true;
    neb_status status = neb__site_stage_forward(w->stages->site, run);
    w->stages->evaluates = false;
    return status;
}

void neb__work_stage_first_input(struct neb_work *w)
{
    if (w->stages) w->input = w->stages->inputs[0];
    if (w->stages && w->stages->site) neb__site_stage_begin_eval(w->stages->site);
}

/* The last stage has the losses. */
neb_status neb__work_stage_sums(struct neb_work *w, struct neb_eval_sums *sums)
{
    if (neb__work_has_stage(w)) return neb__site_stage_spread(w->stages->site, sums, sizeof *sums);
    return neb__group_broadcast(line(w), sums, sizeof *sums, neb__group_size(line(w)) - 1);
}
