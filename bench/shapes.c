/* shapes.c: models, random batches and the training step of the benchmark's shapes. Batches have full
 * sequences, so other frameworks can run the same work without padding. */
#include "tensor/tape.h"
#include "shapes.h"
#include "base/mem.h"
#include "base/rng.h"
#include "nn/model_input.h"
#include "nn/model.h"

#include <stdio.h>
#include <string.h>

const struct neb_shape neb__shapes[] = {
    {"mlm-mini", "bert", 4, 0, 256, 4, 1024, 8000, 128, 32, 0.55},
    {"mlm-base", "bert", 12, 0, 768, 12, 3072, 32000, 128, 8, 0.75},
    {"gpt2-124m", "gpt2", 12, 0, 768, 12, 3072, 50304, 512, 2, 0.75},
    {"mt-mini", "transformer", 3, 3, 256, 4, 1024, 8000, 32, 64, 0.55},
    {0},
};

const struct neb_shape neb__tiny_shapes[] = {
    {"mlm-tiny", "bert", 2, 0, 64, 2, 256, 500, 32, 8, 0},
    {0},
};

const struct neb_shape neb__gpu_shapes[] = {
    {"gpt2-124m", "gpt2", 12, 0, 768, 12, 3072, 50257, 1024, 32, 0},
    {"mlm-base", "bert", 12, 0, 768, 12, 3072, 30522, 128, 256, 0},
    {"mt-base", "transformer", 6, 6, 512, 8, 2048, 32000, 64, 512, 0},
    {0},
};

struct neb_shape_run {
    neb_device *device;
    neb_params *params;
    struct neb_model *model;
    struct neb_model_input *feed;
    neb_tape *tape;
    neb_optimizer *optimizer;
    int64_t step; /* of the last loss */
    double lr, grad_norm;
    int micros;
};

const struct neb_shape *neb__shape_find(const struct neb_shape *list, const char *name)
{
    for (const struct neb_shape *s = list; s->name; s++)
        if (!strcmp(s->name, name)) return s;
    return NULL;
}

static int sides(const struct neb_shape *s)
{
    return s->decoder_layers ? 2 : 1;
}

static bool masked(const struct neb_shape *s)
{
    return !strcmp(s->family, "bert");
}

/* A masked LM predicts 15 % of its rows. */
static int64_t scored(const struct neb_shape *s)
{
    const int64_t rows = s->batch * s->seq;
    return masked(s) ? rows * 15 / 100 : rows;
}

int64_t neb__shape_tokens(const struct neb_shape *s)
{
    return s->batch * s->seq * sides(s);
}

double neb__shape_flops(const struct neb_shape *s)
{
    const double rows = (double)(s->batch * s->seq), d = (double)s->hidden, T = (double)s->seq;
    const double layer = 4 * d * d + 2 * d * (double)s->ffn, attention = 12 * d * T * rows;
    const double head =
        6 * d * (double)s->vocab * (double)scored(s) + (masked(s) ? 6 * d * d * (double)scored(s) : 0);
    double flops = head + 6 * rows * (double)s->layers * layer;
    if (s->decoder_layers)
        return flops + 6 * rows * (double)s->decoder_layers * (layer + 4 * d * d) +
               (double)s->layers * attention + (double)s->decoder_layers * 1.5 * attention;
    return flops + (double)s->layers * attention * (masked(s) ? 1 : 0.5);
}

static neb_status set(struct neb_model_config *c, const char *name, double value)
{
    char text[40];
    snprintf(text, sizeof text, "%.10g", value);
    return neb__opts_set(neb__model_options, c, name, text);
}

static neb_status build_model(const struct neb_shape *s, const struct neb_shape_options *o,
                              struct neb_shape_run *r)
{
    struct neb_model_config c;
    struct neb_peft_config peft;
    NEB_TRY(neb__model_config_init(s->family, &c));
    neb_status status = neb__peft_config_init(&peft);
    if (status != NEB_OK) {
        neb__model_config_free(&c);
        return status;
    }
    const struct {
        const char *name;
        double value;
    } numbers[] = {{"vocab", (double)s->vocab},   {"hidden", (double)s->hidden},
                   {"layers", (double)s->layers}, {"heads", (double)s->heads},
                   {"ffn", (double)s->ffn},       {"max_positions", (double)s->seq},
                   {"dropout", o->dropout},       {"attention_dropout", o->attention_dropout}};
    for (size_t i = 0; status == NEB_OK && i < sizeof numbers / sizeof *numbers; i++)
        status = set(&c, numbers[i].name, numbers[i].value);
    if (status == NEB_OK && s->decoder_layers) status = set(&c, "decoder_layers", (double)s->decoder_layers);
    c.recompute = o->recompute;
    if (status == NEB_OK) status = neb_params_create(&r->params);
    if (status == NEB_OK) status = neb__model_create(&c, &peft, "", NULL, r->params, &r->model);
    neb__peft_config_free(&peft);
    neb__model_config_free(&c);
    NEB_TRY(status);
    NEB_TRY(neb_params_ready(r->params, r->device, 1));
    return neb__model_ready(r->model);
}

/* Random tokens; the arrays live in one block of host memory only until they are uploaded. */
static neb_status load_batch(const struct neb_shape *s, struct neb_model_input *feed)
{
    const int32_t rows = (int32_t)(s->batch * s->seq), targets = (int32_t)scored(s);
    int32_t *memory = neb__malloc(sizeof(int32_t) * (size_t)(6 * rows + 3 * targets + s->batch + 1));
    if (!memory) return neb__fail(NEB_ERR_NOMEM, "out of memory for a batch of %d rows", rows);
    int32_t *ids[2] = {memory, memory + rows}, *position = memory + 2 * rows, *sample = memory + 3 * rows;
    int32_t *type = memory + 4 * rows, *order = memory + 5 * rows, *target = memory + 6 * rows,
            *starts = target + targets;
    float *weight = (float *)(starts + s->batch + 1);
    struct neb_rng rng = {7};
    for (int32_t i = 0; i < rows; i++) {
        ids[0][i] = (int32_t)neb__rng_below(&rng, (uint64_t)s->vocab);
        ids[1][i] = (int32_t)neb__rng_below(&rng, (uint64_t)s->vocab);
        position[i] = i % (int32_t)s->seq;
        sample[i] = i / (int32_t)s->seq;
        type[i] = 0;
    }
    for (int64_t i = 0; i <= s->batch; i++) starts[i] = (int32_t)(i * s->seq);
    for (int32_t i = 0; i < targets; i++) {
        order[i] = (int32_t)((int64_t)i * rows / targets); /* spread over the batch */
        target[i] = (int32_t)neb__rng_below(&rng, (uint64_t)s->vocab);
        weight[i] = 1;
    }
    struct neb_model_input_data data = {.sides = sides(s),
                                        .targets = targets,
                                        .target = target,
                                        .weight = weight,
                                        .target_row = masked(s) ? order : NULL};
    for (int i = 0; i < sides(s); i++)
        data.side[i] = (struct neb_model_input_side){.rows = rows,
                                                     .seqs = (int32_t)s->batch,
                                                     .max_len = (int32_t)s->seq,
                                                     .ids = ids[i],
                                                     .position = position,
                                                     .type = type,
                                                     .sample = (const uint32_t *)sample,
                                                     .starts = starts};
    neb_status status = neb__model_input_load(feed, &data);
    neb__free(memory);
    return status;
}

static neb_status build(const struct neb_shape *s, const struct neb_shape_options *o, struct neb_shape_run *r)
{
    const int32_t rows = (int32_t)(s->batch * s->seq);
    struct neb_model_input_limits limits = {.rows = {rows, s->decoder_layers ? rows : 0},
                                            .seqs = (int32_t)s->batch,
                                            .targets = (int32_t)scored(s)};
    struct neb_optimizer_config optimizer = neb_optimizer_defaults();
    struct neb_device_config config = {
        .threads = o->threads, .compute = o->compute, .deterministic = o->deterministic};
    NEB_TRY(neb_device_open(o->device ? o->device : "cpu", &config, &r->device));
    NEB_TRY(build_model(s, o, r));
    NEB_TRY(neb__model_input_create(r->device, &limits, &r->feed));
    NEB_TRY(load_batch(s, r->feed));
    NEB_TRY(neb_tape_create(r->device, r->params, &r->tape));
    neb_tape_graphs(r->tape, !o->no_graphs);
    if (o->reference) neb__tape_force_reference(r->tape, true);
    r->lr = o->lr;
    r->micros = o->micro > 1 ? o->micro : 1;
    optimizer.kind = o->optimizer;
    optimizer.muon_type = o->compute;
    return neb_optimizer_create(r->device, r->params, &optimizer, &r->optimizer);
}

neb_status neb__shape_create(const struct neb_shape *s, const struct neb_shape_options *o,
                             struct neb_shape_run **out)
{
    if (o->micro > NEB_SHAPE_MICROS)
        return neb__fail(NEB_ERR_INVALID, "at most %d micro-batches a step", NEB_SHAPE_MICROS);
    struct neb_shape_run *r = NEB_NEW(struct neb_shape_run);
    if (!r) return neb__fail(NEB_ERR_NOMEM, "out of memory for %s", s->name);
    neb_status status = build(s, o, r);
    if (status != NEB_OK) {
        neb__shape_destroy(r);
        return status;
    }
    *out = r;
    return NEB_OK;
}

void neb__shape_destroy(struct neb_shape_run *r)
{
    if (!r) return;
    neb_optimizer_destroy(r->optimizer);
    neb_tape_destroy(r->tape);
    neb__model_input_destroy(r->feed);
    neb__model_destroy(r->model);
    neb_params_destroy(r->params);
    neb_device_close(r->device);
    neb__free(r);
}

static void loss_fn(neb_tape *t, void *arg)
{
    struct neb_shape_run *r = arg;
    const struct neb_input *in = neb__model_input_tensors(r->feed, t);
    neb__model_loss(r->model, t, neb__model_run(r->model, t, in), in, NULL);
}

neb_status neb__shape_step(struct neb_shape_run *r, float *loss)
{
    struct neb_micro micro[NEB_SHAPE_MICROS];
    struct neb_step_info info;
    for (int i = 0; i < r->micros; i++)
        micro[i] = (struct neb_micro){.fn = loss_fn,
                                      .arg = r,
                                      .key = neb__model_input_key(r->feed),
                                      .weight = neb__model_input_weight(r->feed)};
    NEB_TRY(neb_train_step(r->optimizer, r->tape, micro, r->micros, (float)r->lr, 1, NULL, &info));
    *loss = info.loss[0];
    r->grad_norm = (double)info.grad_norm;
    r->step = info.step;
    return NEB_OK;
}

double neb__shape_grad_norm(const struct neb_shape_run *r)
{
    return r->grad_norm;
}

int64_t neb__shape_loss_step(const struct neb_shape_run *r)
{
    return r->step;
}

neb_params *neb__shape_params(struct neb_shape_run *r)
{
    return r->params;
}

neb_device *neb__shape_device(struct neb_shape_run *r)
{
    return r->device;
}

void neb__shape_memory(struct neb_shape_run *r, struct neb_memory *out)
{
    neb_tape_memory(r->tape, out);
}
