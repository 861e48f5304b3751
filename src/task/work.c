/* work.c: models, data and optimizer of a job, opened together and given out.
 *
 * The objective makes the models (its row's steps), as far as the links leave them to this site. All
 * parameters are added before the slab is made. Values from a folder (`init`) come in right after it. They
 * are the model's, never the generator's. */
#include "task/work_internal.h"
#include "base/bytes.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/pool.h"
#include "optim/optimizer.h"
#include "optim/team.h"
#include "tensor/masters.h"
#include "task/init_from.h"
#include "task/memory_check.h"
#include "tensor/device.h"
#include "tensor/matrices.h"
#include "tensor/narrow.h"
#include "tensor/tape.h"

#include <stdio.h>
#include <string.h>

/* ---- opening ------------------------------------------------------------------------------------------- */

/* The ranks of one machine share its cores. */
static int threads_of(const struct neb_work *w)
{
    int ranks = neb__group_near(neb__layout_world(w->layout)), cores = neb__cores();
    if (w->job->train.threads || ranks == 1) return (int)w->job->train.threads;
    return cores > ranks ? cores / ranks : 1;
}

/* All ranks make this call: one that has no device tells the others. */
static neb_status open_device(struct neb_work *w)
{
    const struct neb_job_train *t = &w->job->train;
    struct neb_group *world = neb__layout_world(w->layout);
    struct neb_device_config c = {.compute = strcmp(t->dtype, "bf16") ? NEB_F32 : NEB_BF16,
                                  .threads = threads_of(w),
                                  .deterministic = t->deterministic,
                                  .memory_limit = t->memory,
                                  .index = neb__group_place_near(world),
                                  .spread = neb__group_size(world) > 1,
                                  .tf32 = 1};
    NEB_TRY(neb__group_agree(world, neb_device_open(t->device, &c, &w->dev)));
    const bool dry = w->layout && w->layout->dry;
    if (dry && w->layout->gpu && neb__work_on_host(w)) NEB_TRY(neb__device_state_gpu(w->dev));
    if (dry) NEB_TRY(neb__device_rehearse(w->dev));
    return neb__layout_attach(w->layout, w->dev->ops, w->dev->ctx);
}

/* Exchanges inside a run that go through the host cannot be recorded. */
static bool can_record(const struct neb_work *w)
{
    const struct neb_job_parallel *p = &w->job->parallel;
    return !neb__layout_staged(w->layout) || (p->zero < 2 && p->tensor == 1);
}

static bool uses_muon(const struct neb_work *w)
{
    return !strcmp(w->job->train.optimizer, "muon");
}

static neb_dtype muon_type(const struct neb_work *w)
{
    const struct neb_job_train *t = &w->job->train;
    return strcmp(strcmp(t->muon_dtype, "auto") ? t->muon_dtype : t->dtype, "bf16") ? NEB_F32 : NEB_BF16;
}

static neb_status make_ready(struct neb_work *w)
{
    if (uses_muon(w)) NEB_TRY(neb__params_take_matrices(w->params, w->job->train.muon_also));
    NEB_TRY(neb__ranks_partition(w->params, w->layout, (int)w->job->parallel.zero));
    if (!strcmp(w->job->parallel.offload, "optimizer")) NEB_TRY(neb__params_offload(w->params));
    const bool from = w->job->init.from && w->model;
    if (from && !w->model->peft.dora)
        neb__params_await(w->params); /* lengths are those of the first weights */
    NEB_TRY(neb_params_ready(w->params, w->dev, (uint64_t)w->job->seed));
    if (w->model) NEB_TRY(neb__model_ready(w->model));
    if (w->generator) NEB_TRY(neb__model_ready(w->generator));
    if (from) NEB_TRY(neb__init_from(w->job, w->model));
    return from ? neb__params_fill_rest(w->params) : NEB_OK;
}

static int32_t larger(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

/* The largest batch of any stream of the job: evaluation uses the same input. A site without text hears of it later
 * (work_outline.c). */
static neb_status largest(struct neb_work *w, struct neb_model_input_limits *l)
{
    static const char *const uses[] = {"train", "valid", "test"};
    if (!neb__work_has_text(w)) {
        const int sides = w->job->objective->sides;
        *l = (struct neb_model_input_limits){.rows = {1, sides > 1}, .seqs = 1};
        return NEB_OK;
    }
    for (int i = 0; i < 3; i++) {
        struct neb_batches *s;
        struct neb_batch *b;
        neb_status found = neb__data_stream(w->data, uses[i], 0, 1, &s);
        if (found == NEB_ERR_NOTFOUND) continue;
        NEB_TRY(found);
        neb_status made = neb__batches_batch(s, &b);
        neb__batches_free(s);
        NEB_TRY(made);
        for (int k = 0; k < 2; k++) l->rows[k] = larger(l->rows[k], b->cap_tokens[k]);
        l->seqs = larger(l->seqs, b->cap_seqs);
        l->targets = larger(l->targets, b->cap_loss);
        neb__batch_free(b);
    }
    return NEB_OK;
}

static neb_status make_inputs(struct neb_work *w, struct neb_model_input_limits l)
{
    neb__model_input_fit(w->model ? w->model : w->generator, &l);
    NEB_TRY(neb__model_input_create(w->dev, &l, &w->input));
    return w->steps->make_inputs ? w->steps->make_inputs(w, &l) : NEB_OK;
}

static neb_status make_optimizer(struct neb_work *w)
{
    const struct neb_job_train *t = &w->job->train;
    struct neb_optimizer_config c = {.kind = uses_muon(w) ? NEB_MUON : NEB_ADAMW,
                                     .beta1 = (float)t->beta1,
                                     .beta2 = (float)t->beta2,
                                     .eps = 1e-8f,
                                     .decay = (float)t->weight_decay,
                                     .max_norm = (float)t->clip,
                                     .muon_momentum = (float)t->muon_momentum,
                                     .muon_type = muon_type(w)};
    struct neb_state_place place = {.layout = w->layout,
                                    .zero = (int)w->job->parallel.zero,
                                    .sums = (w->job->parallel.bucket + 3) / 4,
                                    .offload = strcmp(w->job->parallel.offload, "none") != 0};
    return neb__optimizer_create(w->dev, w->params, &c, &place, &w->opt);
}

static neb_status make_stream(struct neb_work *w)
{
    neb_status status = NEB_OK;
    if (neb__work_has_text(w)) status = neb__data_stream(w->data, "train", w->part, w->parts, &w->stream);
    if (status == NEB_ERR_NOTFOUND)
        return neb__doc_fail(&w->job->doc, "data", "no corpus to train on (use: train)");
    NEB_TRY(status);
    size_t runs = (size_t)w->job->train.micro * NEB_WORK_RUNS;
    w->pieces = NEB_NEW_ARRAY(struct neb_work_part, runs);
    w->micros = NEB_NEW_ARRAY(struct neb_micro, runs);
    if (!w->pieces || !w->micros)
        return neb__fail(NEB_ERR_NOMEM, "out of memory for %zu micro-batches", runs);
    return NEB_OK;
}

/* A rank that computes for long is not stuck: it says so after each call of the device. */
static void beat(void *ranks)
{
    neb__group_beat(ranks);
}

/* An exchange inside a recording would wait for a rank that is gone. */
static neb_status has_all_ranks(void *ranks)
{
    return neb__group_usable(ranks);
}

static neb_status open_all(struct neb_work *w, struct neb_model_input_limits *l)
{
    NEB_TRY(open_device(w));
    NEB_TRY(neb_params_create(&w->params));
    neb__ranks_team(w->params, w->layout, w->job->parallel.sequence, &w->team);
    NEB_TRY(w->steps->make_models(w));
    NEB_TRY(make_stream(w));
    NEB_TRY(largest(w, l));
    if (w->model)
        NEB_TRY(neb__distill_create(w->job, w->data, &w->links, w->dev, l, w->params, w->model, &w->distill));
    if (!neb__device_rehearses(w->dev))
        NEB_TRY(neb__memory_check(w->job, w->params, w->dev, neb__work_on_host(w)));
    NEB_TRY(make_ready(w));
    NEB_TRY(make_inputs(w, *l));
    NEB_TRY(neb_tape_create(w->dev, w->params, &w->tape));
    neb_tape_allow_fallback(w->tape, w->job->train.fallback);
    if (!can_record(w)) neb_tape_graphs(w->tape, false);
    if (neb__layout_world(w->layout)) {
        neb__tape_on_call(w->tape, beat, neb__layout_world(w->layout));
        neb__tape_ask_first(w->tape, has_all_ranks, neb__layout_world(w->layout));
    }
    NEB_TRY(neb__work_make_whole(w));
    NEB_TRY(make_optimizer(w));
    struct neb_device_info info;
    neb_device_get_info(w->dev, &info);
    w->opened = info.memory_used;
    return NEB_OK;
}

neb_status neb__work_open(const struct neb_data *data, int64_t part, int64_t parts,
                          const struct neb_step_links *links, struct neb_work **out)
{
    return neb__work_open_ranks(data, part, parts, links, NULL, out);
}

neb_status neb__work_open_ranks(const struct neb_data *data, int64_t part, int64_t parts,
                                const struct neb_step_links *links, const struct neb_layout *layout,
                                struct neb_work **out)
{
    struct neb_work *w = NEB_NEW(struct neb_work);
    if (!w) return neb__fail(NEB_ERR_NOMEM, "out of memory for a job");
    w->job = data->job;
    w->data = data;
    w->steps = data->job->objective->steps;
    w->part = part;
    w->parts = parts;
    w->layout = layout;
    if (links) w->links = *links;
    struct neb_model_input_limits l = {0};
    neb_status status = open_all(w, &l);
    if (neb__work_is_staged(w)) status = neb__work_open_stages(w, &l, status);
    if (status == NEB_OK && neb__work_has_stage(w)) status = neb__work_open_site(w, &l);
    if (status != NEB_OK) {
        neb__work_close(w);
        return status;
    }
    *out = w;
    return NEB_OK;
}

void neb__work_close(struct neb_work *w)
{
    if (!w) return;
    neb__prefetch_stop(w->ahead);
    neb__buf_free(&w->before);
    neb__free(w->load);
    neb__work_close_private(w);
    neb__batches_free(w->stream);
    if (w->steps->close) w->steps->close(w);
    neb__own_sampler_close(w->sampler);
    neb__distill_destroy(w->distill);
    neb__work_close_outlines(w);
    neb__work_close_stages(w);
    neb__model_input_destroy(w->input);
    neb_optimizer_destroy(w->opt);
    neb_tape_destroy(w->tape);
    neb__model_destroy(w->model);
    neb__model_destroy(w->generator);
    neb_params_destroy(w->params);
    neb__layout_detach(w->layout);
    neb_device_close(w->dev);
    neb__free(w->whole);
    neb__free(w->pieces);
    neb__free(w->micros);
    neb__free(w);
}

/* ---- parts --------------------------------------------------------------------------------------------- */

neb_params *neb__work_params(struct neb_work *w)
{
    return w->params;
}

bool neb__work_on_host(const struct neb_work *w)
{
    return !strcmp(w->dev->ops->name, "cpu");
}

bool neb__work_slab_on_host(const struct neb_work *w)
{
    return neb__work_on_host(w) || neb__masters_on_host(w->params);
}

neb_status neb__work_settle(struct neb_work *w)
{
    return neb__masters_settle(w->params);
}

neb_status neb__work_values(struct neb_work *w, int64_t at, float *host, int64_t n)
{
    return neb__masters_get(w->params, at, host, n);
}

neb_status neb__work_put_values(struct neb_work *w, int64_t at, const float *host, int64_t n)
{
    return neb__masters_put(w->params, at, host, n);
}

void neb__work_memory(struct neb_work *w, struct neb_work_memory *out)
{
    struct neb_device_info info;
    neb_device_get_info(w->dev, &info);
    *out =
        (struct neb_work_memory){w->opened, info.memory_used - w->opened, neb_params_values(w->params, true)};
}

neb_device *neb__work_device(struct neb_work *w)
{
    return w->dev;
}

const char *neb__work_optimizer_name(const struct neb_work *w)
{
    return w->job->train.optimizer;
}

neb_optimizer *neb__work_optimizer(struct neb_work *w)
{
    return w->opt;
}

struct neb_model *neb__work_model(struct neb_work *w)
{
    return w->model;
}

struct neb_model *neb__work_generator(struct neb_work *w)
{
    return w->generator;
}

neb_param *neb__work_table(struct neb_work *w)
{
    return w->table;
}

double neb__work_waited(const struct neb_work *w)
{
    return w->ahead ? neb__prefetch_waited(w->ahead) : 0;
}

static neb_status hash_narrow(const neb_params *ps, struct neb_hash *out)
{
    struct neb_hasher h;
    NEB_TRY(neb__hasher_init(&h));
    neb_status status = NEB_OK;
    for (int i = 0; status == NEB_OK && i < ps->count; i++)
        if (neb__param_left_out(ps->list[i])) status = neb__narrow_hash(ps->list[i], &h);
    neb_status f = neb__hasher_final(&h, status == NEB_OK ? out : NULL);
    return status != NEB_OK ? status : f;
}

/* Frozen weights stay as they are, so they are hashed once. */
neb_status neb__work_frozen_hash(struct neb_work *w, bool *any, struct neb_hash *out)
{
    *any = false;
    for (int i = 0; i < w->params->count; i++) *any = *any || neb__param_left_out(w->params->list[i]);
    if (*any && !w->frozen_hashed) {
        NEB_TRY(hash_narrow(w->params, &w->frozen));
        w->frozen_hashed = true;
    }
    *out = w->frozen;
    return NEB_OK;
}

neb_status neb__work_identity(struct neb_work *w, struct neb_hash *out)
{
    struct neb_hasher h;
    struct neb_hash frozen;
    bool any;
    NEB_TRY(neb__work_frozen_hash(w, &any, &frozen));
    NEB_TRY(neb__hasher_init(&h));
    neb_status status = any ? neb__hasher_update(&h, &frozen, sizeof frozen) : NEB_OK;
    for (int i = 0; status == NEB_OK && i < neb_params_count(w->params); i++) {
        const neb_param *p = neb_params_at(w->params, i);
        int64_t shape[4] = {0};
        int n = neb_param_shape(p, shape);
        char text[320];
        int len = snprintf(text, sizeof text, "%s %d %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %d\n",
                           neb_param_name(p), n, shape[0], n > 1 ? shape[1] : 0, n > 2 ? shape[2] : 0,
                           n > 3 ? shape[3] : 0, neb_param_trainable(p));
        status = neb__hasher_update(&h, text, (size_t)len);
    }
    if (status == NEB_OK && neb__work_has_stage(w))
        status = neb__hasher_update(&h, &w->links.stage.range, 2 * sizeof w->links.stage.range);
    neb_status f = neb__hasher_final(&h, status == NEB_OK ? out : NULL);
    return status != NEB_OK ? status : f;
}

/* Without text: how many batches went into steps. A site may get the text, or lose it, between two starts: both kinds of
 * position tell the number. */
static const char bare_position[8] = "NEBBARE";
enum { BARE_POSITION = 16, STEP_IN_POSITION = 12 + NEB_HASH_SIZE }; /* the latter: batches.c */

static bool is_bare(const void *bytes, size_t n)
{
    return n == BARE_POSITION && !memcmp(bytes, bare_position, sizeof bare_position);
}

static neb_status read_batches(const void *bytes, size_t n, int64_t *out)
{
    const size_t at = is_bare(bytes, n) ? sizeof bare_position : STEP_IN_POSITION;
    const uint64_t batches = n >= at + 8 ? neb__get64((const uint8_t *)bytes + at) : UINT64_MAX;
    *out = (int64_t)batches;
    return batches <= INT64_MAX ? NEB_OK : neb__fail(NEB_ERR_CORRUPT, "the saved data position is damaged");
}

neb_status neb__work_save_position(struct neb_work *w, struct neb_buf *out)
{
    uint8_t b[BARE_POSITION];
    if (neb__work_has_text(w))
        return w->ahead ? neb__prefetch_save(w->ahead, out) : neb__batches_save(w->stream, out);
    memcpy(b, bare_position, sizeof bare_position);
    neb__put64(b + sizeof bare_position, (uint64_t)w->batches);
    return neb__buf_append(out, b, sizeof b);
}

static neb_status return_to(struct neb_work *w, const void *bytes, size_t n)
{
    int64_t batches;
    if (neb__work_has_text(w) && !is_bare(bytes, n)) {
        NEB_TRY(neb__batches_restore(w->stream, bytes, n));
        w->batches = neb__batches_step(w->stream);
        return NEB_OK;
    }
    NEB_TRY(read_batches(bytes, n, &batches));
    if (neb__work_has_text(w)) NEB_TRY(neb__batches_seek(w->stream, batches));
    w->batches = batches;
    return NEB_OK;
}

neb_status neb__work_load_position(struct neb_work *w, const void *bytes, size_t n)
{
    if (w->ahead) {
        neb_status status = neb__prefetch_stop(w->ahead);
        w->ahead = NULL;
        NEB_TRY(status);
    }
    neb__own_sampler_close(w->sampler);
    w->sampler = NULL;
    return return_to(w, bytes, n);
}

int64_t neb__work_batches(const struct neb_work *w)
{
    return w->batches;
}
