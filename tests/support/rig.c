/* rig.c: opening and running a small model in a test. */
#include "check.h"
#include "rig.h"
#include "base/rng.h"
#include "optim/optimizer.h"
#include "optim/team.h"

#include <stdio.h>
#include <string.h>

const struct neb_layout *rig_layout;
neb_optimizer_kind rig_optimizer = NEB_ADAMW;
bool rig_sequence;
neb_dtype rig_compute = NEB_F32;

static neb_status apply(const struct neb_opt *table, void *obj, const char *options)
{
    char word[128];
    while (options && *options) {
        size_t n = strcspn(options, " ");
        snprintf(word, sizeof word, "%.*s", (int)n, options);
        char *eq = strchr(word, '=');
        if (eq) {
            *eq = 0;
            NEB_TRY(neb__opts_set(table, obj, word, eq + 1));
        }
        options += n + (options[n] == ' ');
    }
    return NEB_OK;
}

static neb_status create(struct rig *r, const struct neb_model_config *c, const struct neb_peft_config *p,
                         int stage, int stages)
{
    struct neb_stage_range range[16];
    struct neb_arch a;
    if (stages < 2) return neb__model_create(c, p, "", NULL, r->params, &r->model);
    NEB_TRY(neb__model_config_check(c, &a));
    NEB_TRY(neb__stage_cut(&a, stages, range));
    return neb__model_create_stage(c, p, &range[stage], NULL, r->params, &r->model);
}

static neb_status make_model(struct rig *r, const char *family, const char *options, const char *peft,
                             int stage, int stages)
{
    struct neb_model_config c;
    struct neb_peft_config p;
    NEB_TRY(neb__model_config_init(family, &c));
    neb_status status = neb__peft_config_init(&p);
    if (status == NEB_OK) {
        status = apply(neb__model_options, &c, options);
        if (status == NEB_OK) status = apply(neb__peft_options, &p, peft);
        if (status == NEB_OK) status = create(r, &c, &p, stage, stages);
        neb__peft_config_free(&p);
    }
    neb__model_config_free(&c);
    return status;
}

static neb_status open_parts(struct rig *r, const char *family, const char *options, const char *peft,
                             int threads, int stage, int stages)
{
    struct neb_device_config config = {.threads = threads ? threads : 2, .compute = rig_compute};
    NEB_TRY(neb_device_open("cpu", &config, &r->device));
    NEB_TRY(neb_params_create(&r->params));
    neb__ranks_team(r->params, rig_layout, rig_sequence, &r->team);
    NEB_TRY(make_model(r, family, options, peft, stage, stages));
    NEB_TRY(neb_params_ready(r->params, r->device, 7));
    NEB_TRY(neb__model_ready(r->model));
    NEB_TRY(neb_tape_create(r->device, r->params, &r->tape));
    struct neb_model_input_limits limits = {
        .rows = {64, r->model->peft.prompt ? 0 : 64}, .seqs = 8, .targets = 64};
    neb__model_input_fit(r->model, &limits);
    NEB_TRY(neb__model_input_create(r->device, &limits, &r->feed));
    struct neb_optimizer_config o = neb_optimizer_defaults();
    o.kind = rig_optimizer;
    struct neb_state_place place = {.layout = rig_layout};
    return neb__optimizer_create(r->device, r->params, &o, &place, &r->optimizer);
}

neb_status rig_open(struct rig *r, const char *family, const char *options, const char *peft, int threads)
{
    *r = (struct rig){0};
    neb_status status = open_parts(r, family, options, peft, threads, 0, 1);
    if (status != NEB_OK) rig_close(r);
    return status;
}

neb_status rig_open_stage(struct rig *r, const char *family, const char *options, const char *peft, int stage,
                          int stages)
{
    *r = (struct rig){0};
    neb_status status = open_parts(r, family, options, peft, 0, stage, stages);
    if (status != NEB_OK) rig_close(r);
    return status;
}

void rig_close(struct rig *r)
{
    neb_optimizer_destroy(r->optimizer);
    neb_tape_destroy(r->tape);
    neb__model_input_destroy(r->feed);
    neb_buffer_destroy(r->logits);
    neb__model_destroy(r->model);
    neb_params_destroy(r->params);
    neb_device_close(r->device);
    *r = (struct rig){0};
}

/* ---- batches ---------------------------------------------------------------------------------------------------- */

static int32_t *fill_side(struct neb_model_input_side *s, int32_t *at, const int *lengths, int64_t vocab,
                          uint32_t first, uint32_t salt)
{
    int32_t *ids = at, *position = at + 64, *type = at + 128, *starts = at + 256;
    uint32_t *sample = (uint32_t *)at + 192;
    starts[0] = 0;
    for (; lengths[s->seqs]; s->seqs++) {
        struct neb_rng rng = {(uint64_t)(first + (uint32_t)s->seqs) << 8 | salt};
        int n = lengths[s->seqs];
        assert_true(s->rows + n <= 64 && s->seqs < 8);
        for (int i = 0; i < n; i++, s->rows++) {
            ids[s->rows] = (int32_t)neb__rng_below(&rng, (uint64_t)vocab);
            position[s->rows] = i;
            type[s->rows] = 0;
            sample[s->rows] = first + (uint32_t)s->seqs;
        }
        starts[s->seqs + 1] = s->rows;
        if (n > s->max_len) s->max_len = n;
    }
    s->ids = ids, s->position = position, s->type = type, s->starts = starts, s->sample = sample;
    return at + 272;
}

void rig_batch_make(struct rig_batch *b, const struct neb_model *m, const int *lengths,
                    const int *target_lengths, uint32_t first)
{
    *b = (struct rig_batch){.memory = calloc(1024, 4)};
    struct neb_model_input_data *d = &b->data;
    const struct neb_arch *a = &m->arch;
    int32_t *at = fill_side(&d->side[0], b->memory, lengths, a->vocab, first, 1);
    d->sides = 1;
    if (target_lengths) {
        at = fill_side(&d->side[1], at, target_lengths, a->vocab, first, 2);
        d->sides = 2;
    }
    const struct neb_model_input_side *last = &d->side[d->sides - 1];
    int32_t *target = at, *row = at + 64, n = a->head == NEB_HEAD_CLASS ? last->seqs : last->rows;
    float *weight = (float *)(at + 128);
    int64_t classes = a->head == NEB_HEAD_RTD ? 2 : a->head == NEB_HEAD_CLASS ? a->classes : a->vocab;
    bool masked = a->kind == NEB_ENCODER && a->head == NEB_HEAD_TOKENS;
    for (int32_t i = 0; i < n; i++) {
        int32_t seq_row = a->head == NEB_HEAD_CLASS ? last->starts[i] : i;
        struct neb_rng rng = {(uint64_t)last->sample[seq_row] << 16 | (uint64_t)last->position[seq_row] << 4 |
                              3};
        if (masked && last->position[i] % 3) continue; /* every third row is predicted */
        row[d->targets] = i;
        target[d->targets] = (int32_t)neb__rng_below(&rng, (uint64_t)classes);
        weight[d->targets++] = 1;
    }
    d->target = target;
    d->weight = weight;
    d->target_row = masked ? row : NULL;
}

void rig_batch_free(struct rig_batch *b)
{
    free(b->memory);
}

/* ---- running ---------------------------------------------------------------------------------------------------- */

static void loss_fn(neb_tape *t, void *arg)
{
    struct rig *r = arg;
    const struct neb_input *in = neb__model_input_tensors(r->feed, t);
    neb__model_loss(r->model, t, neb__model_run(r->model, t, in), in, NULL);
}

static void logits_fn(neb_tape *t, void *arg)
{
    struct rig *r = arg;
    const struct neb_input *in = neb__model_input_tensors(r->feed, t);
    neb_tensor *x = neb__model_run(r->model, t, in);
    const struct neb_input_side *side = &in->side[r->model->arch.kind == NEB_ENCODER_DECODER];
    x = neb__model_logits(r->model, t, x, side, in->target_row);
    int64_t shape[4] = {0};
    neb_tensor_shape(x, shape);
    r->logit_rows = shape[0];
    r->logit_cols = shape[1];
    neb_output(t, x, r->logits, NEB_F32);
}

neb_status rig_run(struct rig *r, bool grad, bool train, uint32_t seed, double *loss)
{
    struct neb_ctl ctl = {
        .step = 1, .seed = seed, .loss_scale = (float)(1.0 / neb__model_input_weight(r->feed))};
    struct neb_run run = {
        .fn = loss_fn, .arg = r, .key = neb__model_input_key(r->feed), .grad = grad, .train = train};
    NEB_TRY(neb_tape_begin_step(r->tape, &ctl));
    NEB_TRY(neb_tape_run(r->tape, &run));
    NEB_TRY(neb_tape_end_step(r->tape, true, &ctl));
    *loss = ctl.loss[0];
    return NEB_OK;
}

neb_status rig_logits(struct rig *r, float **out)
{
    struct neb_run run = {.fn = logits_fn, .arg = r, .key = neb__model_input_key(r->feed)};
    if (!r->logits) NEB_TRY(neb_buffer_create(r->device, 64 * 1024 * sizeof(float), &r->logits));
    NEB_TRY(neb_tape_run(r->tape, &run));
    size_t bytes = (size_t)(r->logit_rows * r->logit_cols) * sizeof(float);
    *out = malloc(bytes + 1);
    return neb_buffer_download(r->logits, *out, bytes);
}

neb_status rig_step(struct rig *r, float lr, uint32_t seed, float *loss)
{
    struct neb_micro micro = {.fn = loss_fn,
                              .arg = r,
                              .key = neb__model_input_key(r->feed),
                              .weight = neb__model_input_weight(r->feed)};
    struct neb_step_info info;
    NEB_TRY(neb_train_step(r->optimizer, r->tape, &micro, 1, lr, seed, NULL, &info));
    *loss = info.loss[0];
    return NEB_OK;
}
