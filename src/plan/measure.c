/* measure.c: see measure.h. Times are medians: a machine that does other things as well has outliers, and a training has
 * them, too. */
#include "plan/measure.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/pool.h"
#include "optim/optimizer.h"
#include "plan/trained_layers.h"
#include "task/work.h"
#include "tensor/buffer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MANY_LAYERS = 4, TURNS_LEAST = 5, TURNS_MOST = 15, MICROS_MOST = 4, ARMS = 3 };
enum { SMALL = 256, LARGE = 1 << 20, CALLS = 200, LARGE_CALLS = 7 }; /* values; calls */
static const double turns_s = 3;

int neb__planner_threads(const struct neb_job *job, int ranks)
{
    const int cores = neb__cores();
    if (job->train.threads) return (int)job->train.threads;
    return cores > ranks ? cores / ranks : 1;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, by_value);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

/* ---- layers --------------------------------------------------------------------------------------------------- */

struct arm { /* the model with some of its layers */
    struct neb_planner_job copy;
    char train[NEB_PATTERNS], freeze[NEB_PATTERNS]; /* … of any layer */
    struct neb_layout layout;
    struct neb_work *work;
    double layers[NEB_STACKS];
    double runs[TURNS_MOST], update[TURNS_MOST]; /* of one micro-batch; of a step */
    double values;
};

static neb_status open_arm(struct arm *a, const struct neb_data *data, const struct neb_planner_layout *l,
                           const int64_t layers[NEB_STACKS])
{
    neb__planner_job(data, l, &a->copy);
    struct neb_model_config *m = &a->copy.data.models.model;
    m->layers = layers[0];
    if (m->kind && !strcmp(m->kind, "encoder-decoder")) m->decoder_layers = layers[1];
    if (a->copy.job.train.micro > MICROS_MOST) a->copy.job.train.micro = MICROS_MOST;
    a->copy.job.train.memory = 0;
    a->copy.job.init.from = NULL; /* the values do not matter */
    struct neb_peft_config *peft = &a->copy.job.peft;
    if (neb__patterns_of_any_layer(peft->train, true, a->train)) peft->train = a->train;
    if (neb__patterns_of_any_layer(peft->freeze, false, a->freeze)) peft->freeze = a->freeze;
    for (int s = 0; s < NEB_STACKS; s++) a->layers[s] = (double)layers[s];
    NEB_TRY(neb__layout_pretend(&(struct neb_layout_sizes){1, 1, l->tensor}, &(struct neb_layout_place){0},
                                false, &a->layout));
    NEB_TRY(neb__work_open_ranks(&a->copy.data, 0, 1, NULL, &a->layout, &a->work));
    neb__work_optimizer(a->work)->timed = true;
    a->values = (double)neb__work_params(a->work)->trainable_values;
    return NEB_OK;
}

static void close_arm(struct arm *a)
{
    neb__work_close(a->work);
    if (a->layout.world) neb__layout_unpretend(&a->layout);
}

/* Partial sums of a rank that computes alone may be anything. */
static neb_status turn(struct arm *a, int i)
{
    struct neb_work_step step;
    neb_optimizer *o = neb__work_optimizer(a->work);
    const double before = o->runs_s;
    const int64_t since = neb__now_ns();
    neb_status status = neb__work_step(a->work, 1e-6f, &step);
    if (status != NEB_OK && status != NEB_ERR_NONFINITE) return status;
    NEB_TRY(neb_device_sync(neb__work_device(a->work)));
    const double all = neb__seconds_since(since), runs = o->runs_s - before;
    if (i >= 0) a->runs[i] = runs / (double)a->copy.job.train.micro, a->update[i] = fmax(0, all - runs);
    return NEB_OK;
}

/* All ranks make as many turns: the slowest one says when it is enough. */
static neb_status take_turns(struct arm *arm, struct neb_group *world, int *turns)
{
    int64_t since = 0;
    for (int i = -1; i < TURNS_MOST; i++) { /* the first plans, and counts for nothing */
        for (int k = 0; k < ARMS; k++) {
            if (!arm[k].work) continue;
            NEB_TRY(neb__group_barrier(world));
            NEB_TRY(neb__group_agree(world, turn(&arm[k], i)));
        }
        if (i < 0) since = neb__now_ns();
        *turns = i + 1;
        int64_t enough = i + 1 >= TURNS_LEAST && neb__seconds_since(since) > turns_s;
        NEB_TRY(neb__group_max(world, &enough, 1));
        if (enough) break;
    }
    return NEB_OK;
}

/* From the arms' medians: arm 0 has one layer of each stack, arm s + 1 has more of stack s. */
static void solve(struct arm *arm, int turns, struct neb_layer_cost *out)
{
    const double one = median(arm[0].runs, turns);
    double layers = 0;
    int last = 0;
    for (int s = 0; s < NEB_STACKS; s++) {
        struct arm *a = &arm[s + 1];
        out->layer[s] = 0;
        if (!arm[0].layers[s]) continue;
        if (a->work) {
            last = s + 1;
            out->layer[s] = fmax(0, (median(a->runs, turns) - one) / (a->layers[s] - arm[0].layers[s]));
        } else {
            out->layer[s] = s ? out->layer[0] : one; /* a stack of one layer: its ends count with it */
        }
        layers += out->layer[s] * arm[0].layers[s];
    }
    out->ends = fmax(0, one - layers);
    out->update = arm[last].values > 0 ? median(arm[last].update, turns) / arm[last].values : 0;
}

static neb_status open_arms(struct arm *arm, const struct neb_data *data, const struct neb_planner_layout *l)
{
    const struct neb_model_config *m = &data->models.model;
    const bool both = m->kind && !strcmp(m->kind, "encoder-decoder");
    const int64_t all[NEB_STACKS] = {m->layers,
                                     both ? (m->decoder_layers ? m->decoder_layers : m->layers) : 0};
    const int64_t one[NEB_STACKS] = {1, both};
    NEB_TRY(open_arm(&arm[0], data, l, one));
    for (int s = 0; s < NEB_STACKS; s++) {
        int64_t some[NEB_STACKS] = {one[0], one[1]};
        if (all[s] < 2) continue;
        some[s] = all[s] < MANY_LAYERS ? all[s] : MANY_LAYERS;
        NEB_TRY(open_arm(&arm[s + 1], data, l, some));
    }
    return NEB_OK;
}

neb_status neb__planner_measure_layers(const struct neb_data *data, struct neb_group *world, int tensor,
                                       int threads, struct neb_layer_cost *out)
{
    const struct neb_planner_layout l = {.data = 1, .tensor = tensor, .pipeline = 1, .threads = threads};
    struct arm *arm = NEB_NEW_ARRAY(struct arm, ARMS);
    neb_status status = arm ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for measuring a layer");
    int turns = 0;
    const bool before = neb__log_hush(true);
    if (status == NEB_OK) status = open_arms(arm, data, &l);
    status = neb__group_agree(world, status);
    if (status == NEB_OK) status = take_turns(arm, world, &turns);
    neb__log_hush(before);
    if (status == NEB_OK) {
        *out = (struct neb_layer_cost){.tensor = tensor, .threads = threads, .ranks = neb__group_size(world)};
        solve(arm, turns, out);
    }
    for (int i = 0; arm && i < ARMS; i++) close_arm(&arm[i]);
    neb__free(arm);
    return status;
}

/* ---- exchanges ------------------------------------------------------------------------------------------------ */

struct exchange {
    struct neb_group *group;
    neb_device *dev;
    bool on_host, far; /* the device is the host's; not all ranks are on one machine */
    float *values;     /* of the device */
    float *host;
    int64_t *edge; /* (ranks + 1) */
};

/* A message between stages, as optim/stage_ways.c sends it: from device to device where they do that by themselves. Else on one
 * machine nothing but a word goes from rank to rank, since both see the bytes; a device of its own copies them down and up. */
static neb_status send(const struct exchange *x, int64_t n, int peer)
{
    neb_device *d = x->dev;
    const size_t bytes = (size_t)n * sizeof *x->values;
    if (neb__device_sends(x->group)) {
        NEB_TRY(neb__device_send_begin(x->group, x->values, bytes, peer));
        return neb__device_send_join(x->group);
    }
    if (!x->on_host) NEB_TRY(d->ops->download(d->ctx, x->host, x->values, bytes));
    return neb__group_send(x->group, x->host, x->far ? bytes : 8, peer);
}

static neb_status receive(const struct exchange *x, int64_t n, int peer)
{
    neb_device *d = x->dev;
    const size_t bytes = (size_t)n * sizeof *x->values;
    if (neb__device_sends(x->group)) {
        NEB_TRY(neb__device_receive(x->group, x->values, bytes, peer));
        return d->ops->sync(d->ctx);
    }
    NEB_TRY(neb__group_receive(x->group, x->host, x->far ? bytes : 8, peer));
    if (!x->on_host) NEB_TRY(d->ops->upload(d->ctx, x->values, x->host, bytes));
    return d->ops->sync(d->ctx);
}

/* There and back: two messages. */
static neb_status message(const struct exchange *x, int64_t n)
{
    const int rank = neb__group_rank(x->group), last = neb__group_size(x->group) - 1, peer = rank ^ 1;
    if (peer > last) return NEB_OK;
    if (!(rank & 1)) NEB_TRY(send(x, n, peer));
    NEB_TRY(receive(x, n, peer));
    return rank & 1 ? send(x, n, peer) : NEB_OK;
}

static neb_status exchange(const struct exchange *x, enum neb_traffic_kind kind, int64_t n)
{
    const int size = neb__group_size(x->group);
    for (int r = 0; r <= size; r++) x->edge[r] = n * r / size;
    switch (kind) {
    case NEB_TRAFFIC_SUM: NEB_TRY(neb__device_sum(x->group, x->values, n, NEB_F32)); break;
    case NEB_TRAFFIC_SCATTER: NEB_TRY(neb__device_sum_scatter(x->group, x->values, x->edge, NEB_F32)); break;
    case NEB_TRAFFIC_GATHER: NEB_TRY(neb__device_gather(x->group, x->values, x->edge, NEB_F32)); break;
    default: return message(x, n);
    }
    return neb_device_sync(x->dev);
}

static neb_status time_calls(const struct exchange *x, enum neb_traffic_kind kind, int64_t n, int calls,
                             double *out)
{
    double took[CALLS];
    for (int i = -1; i < calls; i++) {
        const int64_t since = neb__now_ns();
        NEB_TRY(exchange(x, kind, n));
        if (i >= 0) took[i] = neb__seconds_since(since);
    }
    *out = median(took, calls);
    return NEB_OK;
}

static neb_status time_all(const struct exchange *x, struct neb_group_cost *out)
{
    for (int k = 0; k < NEB_TRAFFIC_KINDS; k++) {
        double small, large;
        NEB_TRY(time_calls(x, (enum neb_traffic_kind)k, SMALL, CALLS, &small));
        NEB_TRY(time_calls(x, (enum neb_traffic_kind)k, LARGE, LARGE_CALLS, &large));
        const double messages = k == NEB_TRAFFIC_MESSAGE ? 2 : 1;
        out->call[k] = small / messages;
        out->byte[k] = fmax(0, (large - small) / messages / (4.0 * (LARGE - SMALL)));
        if (k == NEB_TRAFFIC_MESSAGE && x->on_host && !x->far) out->byte[k] = 0; /* nothing is copied */
    }
    return NEB_OK;
}

neb_status neb__planner_measure_group(struct neb_group *g, neb_device *dev, struct neb_group_cost *out)
{
    struct exchange x = {.group = g,
                         .dev = dev,
                         .on_host = !strcmp(dev->ops->name, "cpu"),
                         .far = neb__group_near(g) < neb__group_size(g)};
    NEB_TRY(neb__group_attach(g, dev->ops, dev->ctx));
    x.edge = NEB_NEW_ARRAY(int64_t, (size_t)neb__group_size(g) + 1);
    x.host = NEB_NEW_ARRAY(float, LARGE);
    neb_status status = x.edge && x.host
                            ? dev->ops->alloc(dev->ctx, LARGE * sizeof(float), (void **)&x.values)
                            : neb__fail(NEB_ERR_NOMEM, "out of memory for measuring exchanges");
    if (status == NEB_OK) status = dev->ops->fill(dev->ctx, x.values, 0, LARGE * sizeof(float));
    status = neb__group_agree(g, status);
    if (status == NEB_OK) {
        *out = (struct neb_group_cost){.size = neb__group_size(g),
                                       .stride = 1,
                                       .beside = neb__device_sums_beside(g) && !neb__device_shared(g)};
        status = time_all(&x, out);
    }
    if (x.values) dev->ops->free(dev->ctx, x.values);
    neb__group_detach(g);
    neb__free(x.host);
    neb__free(x.edge);
    return status;
}

/* Between host and device; 0 where they are one. */
static neb_status measure_bus(neb_device *dev, double *out)
{
    const size_t bytes = (size_t)LARGE * 4;
    void *host = NULL, *there = NULL;
    *out = 0;
    if (!strcmp(dev->ops->name, "cpu")) return NEB_OK;
    neb_status status = neb__host_alloc(dev, bytes, &host);
    if (status == NEB_OK) status = dev->ops->alloc(dev->ctx, bytes, &there);
    double took[LARGE_CALLS];
    for (int i = -1; status == NEB_OK && i < LARGE_CALLS; i++) {
        const int64_t since = neb__now_ns();
        status = dev->ops->upload(dev->ctx, there, host, bytes);
        if (status == NEB_OK) status = dev->ops->sync(dev->ctx);
        if (i >= 0) took[i] = neb__seconds_since(since);
    }
    if (status == NEB_OK) *out = median(took, LARGE_CALLS) / (double)bytes;
    if (there) dev->ops->free(dev->ctx, there);
    neb__host_free(dev, host);
    return status;
}

/* All groups of so many ranks, `stride` apart, at the same time. */
static neb_status measure_apart(struct neb_group *world, neb_device *dev, int n, int stride,
                                struct neb_planner_costs *costs)
{
    const int rank = neb__group_rank(world), color = rank / (n * stride) * stride + rank % stride;
    struct neb_group *part = NULL;
    struct neb_group_cost cost = {0};
    neb_status status = n < neb__group_size(world) ? neb__group_split(world, color, &part) : NEB_OK;
    if (status == NEB_OK) status = neb__planner_measure_group(part ? part : world, dev, &cost);
    cost.stride = stride;
    if (status == NEB_OK) neb__costs_add_group(costs, &cost);
    neb__group_close(part);
    return neb__group_agree(world, status);
}

static neb_status measure_groups(const struct neb_job *job, struct neb_group *world,
                                 struct neb_planner_costs *costs)
{
    struct neb_device_config c = {.compute = strcmp(job->train.dtype, "bf16") ? NEB_F32 : NEB_BF16,
                                  .threads = neb__planner_threads(job, neb__group_near(world)),
                                  .index = neb__group_place_near(world),
                                  .spread = neb__group_size(world) > 1};
    neb_device *dev = NULL;
    const int ranks = neb__group_size(world);
    const bool before = neb__log_hush(true);
    neb_status status = neb__group_agree(world, neb_device_open(job->train.device, &c, &dev));
    neb__log_hush(before);
    NEB_TRY(status);
    struct neb_device_info info;
    neb_device_get_info(dev, &info);
    snprintf(costs->device, sizeof costs->device, "%s", info.description);
    status = neb__group_agree(world, measure_bus(dev, &costs->bus));
    for (int n = 2; status == NEB_OK && n <= ranks; n++)
        for (int stride = 1; status == NEB_OK && n * stride <= ranks; stride++)
            if (ranks % (n * stride) == 0) status = measure_apart(world, dev, n, stride, costs);
    neb_device_close(dev);
    return status;
}

/* ---- all ------------------------------------------------------------------------------------------------------ */

neb_status neb__planner_measure(const struct neb_data *data, struct neb_group *world,
                                struct neb_planner_costs *costs)
{
    const int ranks = neb__group_size(world),
              threads = neb__planner_threads(data->job, neb__group_near(world));
    for (int t = 1; t <= ranks; t++) {
        const struct neb_planner_layout l = {.data = 1, .tensor = t, .pipeline = 1};
        struct neb_layer_cost cost;
        if (ranks % t || (t > 1 && neb__planner_layout_check(data->job, &l) != NEB_OK)) continue;
        neb_status status = neb__planner_measure_layers(data, world, t, threads, &cost);
        if (t > 1 && status == NEB_ERR_UNSUPPORTED) continue; /* the device cannot share layers out */
        NEB_TRY(status);
        neb__costs_add_layer(costs, &cost);
    }
    return measure_groups(data->job, world, costs);
}
