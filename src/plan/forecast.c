/* forecast.c: see forecast.h.
 *
 *     runs      m micro-batches of (layers + ends) and the exchanges inside them; with stages: their turns
 *     update    values of the rank's range * the time of a value; the exchange of gradients before, of parameters behind
 *               with data and zero 0 or 1 on GPUs or several machines, gradients go beside the last backward pass
 *     offload   bytes of the state over the bus, both ways at once, beside the last micro-batch */
#include "plan/forecast.h"
#include "base/log.h"
#include "base/mem.h"
#include "nn/stage.h"
#include "optim/optimizer.h"
#include "plan/measure.h"
#include "plan/trained_layers.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { STAGES_MOST = 256 };
static const double gib = 0x1p30;

struct stages {
    struct neb_arch arch;
    struct neb_stage_range range[STAGES_MOST];
    double *share; /* of each layer, of what a trained one takes */
    struct neb_rehearsal seen[STAGES_MOST];
    int64_t first; /* bytes of the first rank of all */
};

/* ---- memory --------------------------------------------------------------------------------------------------- */

/* Inner stages of a long pipeline are alike: the second one stands for them. */
static bool stands_alone(const struct neb_planner_layout *l, int p)
{
    return l->pipeline <= 4 || p < 2 || p == l->pipeline - 1;
}

/* The last copy of the model may have the largest range. */
static neb_status rehearse_stage(const struct neb_planner_order *o, const struct neb_planner_layout *l, int p,
                                 struct neb_rehearsal *out, int64_t *first)
{
    struct neb_rehearsal last;
    struct neb_layout_place place = {
        .pipeline = p, .several = o->place.near < neb__planner_ranks(l), .gpu = o->costs->stated};
    NEB_TRY(neb__planner_rehearse(o->data, l, &place, out));
    if (!p) *first = out->state + out->runs;
    if (!l->zero) return NEB_OK;
    place.data = l->data - 1;
    NEB_TRY(neb__planner_rehearse(o->data, l, &place, &last));
    if (last.state > out->state) out->state = last.state;
    if (last.runs > out->runs) out->runs = last.runs;
    return NEB_OK;
}

static neb_status rehearse(const struct neb_planner_order *o, struct neb_planner_row *row, struct stages *s)
{
    const struct neb_planner_layout *l = &row->layout;
    for (int p = 0; p < l->pipeline; p++) {
        struct neb_rehearsal *r = &s->seen[p];
        if (stands_alone(l, p))
            NEB_TRY(rehearse_stage(o, l, p, r, &s->first));
        else
            *r = s->seen[1];
        if (r->state + r->runs > row->state + row->runs) row->state = r->state, row->runs = r->runs;
    }
    const struct neb_rehearsal *first = &s->seen[0];
    const bool keeps = o->data->job->at >= 0; /* other sites read and change the whole model */
    row->memory = (double)(row->state + row->runs);
    row->first = (double)s->first;
    row->host = (keeps ? first->whole : 0) + first->offloaded;
    return NEB_OK;
}

static int together(const struct neb_planner_order *o, const struct neb_planner_layout *l)
{
    const int ranks = neb__planner_ranks(l);
    return o->place.near < ranks ? o->place.near : ranks;
}

static const char *amount(double bytes, char out[24])
{
    snprintf(out, 24, bytes < gib ? "%.1f MiB" : "%.2f GiB", bytes < gib ? bytes / 0x1p20 : bytes / gib);
    return out;
}

/* The most of `near` ranks of a machine that compute on one device. */
static int sharing(const struct neb_planner_order *o, int near)
{
    return o->place.devices > 0 ? (near - 1) / o->place.devices + 1 : 1;
}

static void judge_memory(const struct neb_planner_order *o, struct neb_planner_row *row)
{
    const struct neb_planner_place *p = &o->place;
    const int near = together(o, &row->layout), share = sharing(o, near);
    const bool away =
        row->layout.offload != NEB_OFFLOAD_NONE; /* then every process has a part of it on the host */
    const double machine =
        near * ((p->host ? row->memory : 0) + (away ? row->host : 0)) + (away ? 0 : row->host);
    char need[24], have[24];
    if (p->cap > 0 && row->memory > p->cap)
        snprintf(row->why, sizeof row->why, "a process needs %s, and train.memory is %s",
                 amount(row->memory, need), amount(p->cap, have));
    else if (!p->host && row->memory > p->device)
        snprintf(row->why, sizeof row->why, "a process needs %s, and the device has %s",
                 amount(row->memory, need), amount(p->device, have));
    else if (!p->host && share * row->memory > p->device)
        snprintf(row->why, sizeof row->why, "%d processes share a device, each needs %s, and it has %s",
                 share, amount(row->memory, need), amount(p->device, have));
    else if (machine > p->machine)
        snprintf(row->why, sizeof row->why,
                 "the %d process%s of a machine need %s of its memory, and %s are free", near,
                 near == 1 ? "" : "es", amount(machine, need), amount(p->machine, have));
    row->fits = !*row->why;
}

/* ---- time ----------------------------------------------------------------------------------------------------- */

static double runs_of_stage(const struct stages *s, int p, const struct neb_layer_cost *c)
{
    const int64_t encoder = s->arch.kind == NEB_ENCODER_DECODER ? s->arch.layers : INT64_MAX;
    const struct neb_stage_range *r = &s->range[p];
    double sum = c->ends * neb__stage_ends(&s->arch, r);
    for (int64_t i = r->first; i < r->end; i++) sum += c->layer[i >= encoder] * s->share[i];
    return sum;
}

static double backward_of(const struct stages *s, int p, const struct neb_layer_cost *c)
{
    return runs_of_stage(s, p, c) * 2 / 3;
}

/* Of a group of ranks that are `stride` apart. They go tensor, pipeline, data (group/layout.c). */
static double exchange(const struct neb_planner_order *o, int size, int stride,
                       const struct neb_rank_traffic *t)
{
    return size > 1 ? neb__costs_exchange(neb__costs_group(o->costs, size, stride), t) : 0;
}

static int data_stride(const struct neb_planner_layout *l)
{
    return l->tensor * l->pipeline;
}

/* What stages exchange in their line besides the messages of the turns: the gradient of a table that several hold. */
static double table_sum(const struct neb_planner_order *o, const struct neb_planner_layout *l,
                        const struct neb_rehearsal *r)
{
    struct neb_rank_traffic t = r->pipeline;
    t.calls[NEB_TRAFFIC_MESSAGE] = t.bytes[NEB_TRAFFIC_MESSAGE] = 0;
    return exchange(o, 2, l->tensor * (l->pipeline - 1), &t);
}

/* What a rank that computes alone on a device takes of the time that it takes beside the others; 1: not known. */
static double alone(const struct neb_planner_order *o, const struct neb_planner_layout *l)
{
    const struct neb_layer_cost *one = NULL,
                                *all = neb__costs_layer(o->costs, 1, l->threads, neb__planner_ranks(l));
    for (int i = 0; i < o->costs->layers; i++)
        if (o->costs->layer[i].tensor == 1 && o->costs->layer[i].ranks == 1) one = &o->costs->layer[i];
    const double own = one ? one->layer[0] + one->ends : 0, beside = all ? all->layer[0] + all->ends : 0;
    return own > 0 && beside > own ? own / beside : 1;
}

static neb_status time_runs(const struct neb_planner_order *o, struct neb_planner_row *row,
                            const struct stages *s, const struct neb_layer_cost *c, int micros)
{
    const struct neb_planner_layout *l = &row->layout;
    double forward[STAGES_MOST], backward[STAGES_MOST], shared = 0;
    for (int p = 0; p < l->pipeline; p++) {
        const double within = exchange(o, l->tensor, 1, &s->seen[p].tensor) / micros;
        const double all = runs_of_stage(s, p, c) + within;
        forward[p] = all / 3;
        backward[p] = all * 2 / 3;
        row->compute_s = fmax(row->compute_s, micros * runs_of_stage(s, p, c));
        shared = fmax(shared, micros * within);
    }
    if (l->pipeline == 1) {
        row->step_s = row->compute_s + shared;
        row->exchange_s = shared;
        return NEB_OK;
    }
    const struct neb_group_cost *g = neb__costs_group(o->costs, l->pipeline, l->tensor);
    const struct neb_rehearsal *first = &s->seen[0];
    const double calls = first->pipeline.calls[NEB_TRAFFIC_MESSAGE];
    const double bytes = calls > 0 ? first->pipeline.bytes[NEB_TRAFFIC_MESSAGE] / calls : 0;
    const double message = g ? g->call[NEB_TRAFFIC_MESSAGE] + bytes * g->byte[NEB_TRAFFIC_MESSAGE] : 0;
    if (o->place.devices == 1 && sharing(o, together(o, l)) > 1)
        NEB_TRY(neb__planner_turns_sharing(forward, backward, l->pipeline, micros, message, alone(o, l),
                                           &row->step_s, &row->idle));
    else
        NEB_TRY(
            neb__planner_turns(forward, backward, l->pipeline, micros, message, &row->step_s, &row->idle));
    row->exchange_s = shared;
    return NEB_OK;
}

/* What is left of the sums of gradients behind the backward pass of the last micro-batch: at least that of the last bucket. */
static double sums_behind(const struct neb_planner_order *o, const struct neb_planner_layout *l,
                          const struct neb_rehearsal *r, double last_backward)
{
    const struct neb_group_cost *g = l->data > 1 ? neb__costs_group(o->costs, l->data, data_stride(l)) : NULL;
    const double sums = exchange(o, l->data, data_stride(l), &r->data),
                 asked = (double)o->data->job->parallel.bucket / sizeof(float);
    const double bucket = asked > 0 ? asked : o->place.host ? NEB_SUM_BUCKET : NEB_SUM_BUCKET_GPU;
    const bool gpu_team = !o->place.host && l->tensor > 1;
    if (!g || !g->beside || l->zero > 1 || l->pipeline > 1 || gpu_team) return sums;
    const double share = fmin(1, bucket / fmax(1, (double)r->here));
    return fmax(sums * share, sums - last_backward * (1 - share));
}

static void time_update(const struct neb_planner_order *o, struct neb_planner_row *row,
                        const struct stages *s, const struct neb_layer_cost *c)
{
    const struct neb_planner_layout *l = &row->layout;
    double slowest = 0;
    for (int p = 0; p < l->pipeline; p++) {
        const struct neb_rehearsal *r = &s->seen[p];
        const double range = (double)r->here / (l->zero ? l->data : 1);
        const double moved = sums_behind(o, l, r, backward_of(s, p, c)) + table_sum(o, l, r) +
                             exchange(o, l->pipeline * l->tensor, 1, &r->model);
        const double bus = r->offloaded * o->costs->bus;
        const double update = c->update * range;
        if (update + moved + bus <= slowest) continue;
        slowest = update + moved + bus;
        row->update_s = update + bus;
    }
    row->exchange_s += slowest - row->update_s;
    row->step_s += slowest;
}

static bool measured(const struct neb_planner_order *o, const struct neb_planner_row *row,
                     const struct neb_layer_cost **c)
{
    const struct neb_planner_layout *l = &row->layout;
    const int sizes[] = {l->data, l->tensor, l->pipeline, l->pipeline * l->tensor};
    *c = neb__costs_layer(o->costs, l->tensor, l->threads, neb__planner_ranks(l));
    for (int i = 0; i < 4; i++)
        if (sizes[i] > 1 && !neb__costs_group(o->costs, sizes[i], 1)) return false;
    return *c != NULL;
}

static neb_status find_shares(const struct neb_data *data, struct stages *s)
{
    const int64_t n = neb__stage_layers(&s->arch);
    s->share = NEB_NEW_ARRAY(double, (size_t)n);
    return s->share ? neb__trained_layers(data, s->share, n)
                    : neb__fail(NEB_ERR_NOMEM, "out of memory for a plan");
}

neb_status neb__planner_forecast(const struct neb_planner_order *o, struct neb_planner_row *row,
                                 double *tokens, int64_t *values)
{
    struct neb_planner_layout *l = &row->layout;
    const struct neb_job *job = o->data->job;
    struct stages *s = NULL;
    const struct neb_layer_cost *cost;
    if (neb__planner_layout_check(job, l) != NEB_OK) {
        const char *why = strstr(neb_last_error(), ": parallel");
        snprintf(row->why, sizeof row->why, "%.239s", why ? why + 2 : neb_last_error());
        return NEB_OK;
    }
    if (l->pipeline > STAGES_MOST) return NEB_OK;
    if (!(s = NEB_NEW(struct stages))) return neb__fail(NEB_ERR_NOMEM, "out of memory for a plan");
    const bool before = neb__log_hush(true);
    neb_status status = neb__model_config_check(&o->data->models.model, &s->arch);
    if (status == NEB_OK) status = neb__stage_cut(&s->arch, l->pipeline, s->range);
    if (status == NEB_OK) status = rehearse(o, row, s);
    if (status == NEB_OK) status = find_shares(o->data, s);
    neb__log_hush(before);
    if (status != NEB_OK) {
        snprintf(row->why, sizeof row->why, "%.239s", neb_last_error());
        neb__free(s->share);
        neb__free(s);
        return status == NEB_ERR_NOMEM ? status : NEB_OK;
    }
    *tokens = s->seen[0].tokens;
    *values = s->seen[0].values;
    judge_memory(o, row);
    row->timed = measured(o, row, &cost);
    if (!row->timed && row->fits)
        snprintf(row->why, sizeof row->why, "it fits, but its time was not measured (%s)",
                 neb__planner_ranks(l) > 1 ? "the processes could not be started" : "no device");
    if (row->timed) {
        const int micros = (int)((job->train.micro + l->data - 1) / l->data);
        status = time_runs(o, row, s, cost, micros);
        if (status == NEB_OK) time_update(o, row, s, cost);
        row->tokens_s = row->step_s > 0 ? *tokens / row->step_s : 0;
    }
    row->fits &= row->timed; /* what is rejected does not say that it could be taken */
    neb__free(s->share);
    neb__free(s);
    return status;
}
