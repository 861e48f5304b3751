/* distill.c: a teacher's answers, brought to the device and into the loss.
 *
 * All of a batch's answers lie in three buffers made for the largest batch. The rows of the hidden states
 * carry hidden_weight * (weight of the batch's targets) / (real rows), so that one normalisation serves both
 * losses and hidden_weight means the same for every batch. */
#include "task/distill.h"
#include "base/mem.h"
#include "task/teacher.h"
#include "tensor/device.h"

#include <string.h>

struct neb_distill {
    const struct neb_job_distill *how;
    struct neb_teacher logits, hidden;
    bool own_logits, own_hidden; /* opened here: closed here */
    neb_buffer *ids, *top, *states, *weight;
    float *host_weight; /* (rows) */
    struct neb_lin project;
    struct neb_soft_targets teacher;
    int32_t rows, targets; /* room */
    bool judged;           /* the present batch's targets are the student's own samples */
};

/* ---- creating ------------------------------------------------------------------------------------------ */

static neb_status open_teachers(struct neb_distill *d, const struct neb_data *data,
                                const struct neb_step_links *links, neb_device *device,
                                const struct neb_model_input_limits *limits)
{
    const struct neb_job_distill *j = d->how;
    struct neb_teacher_config c = {.k = (int32_t)j->top_k,
                                   .threads = (int)data->job->train.threads,
                                   .tok = data->tok,
                                   .data = data,
                                   .sides = data->job->objective->sides,
                                   .max_len = data->job->train.max_len};
    if (links) d->logits = links->logits, d->hidden = links->hidden;
    if (!d->logits.ask && j->teacher) {
        c.folder = j->teacher;
        c.logits = true;
        NEB_TRY(neb__teacher_ensemble_open(device, &c, limits, &d->logits));
        d->own_logits = true;
    }
    if (!d->hidden.ask && j->encoder) {
        c.folder = j->encoder;
        c.logits = false;
        NEB_TRY(neb__teacher_open(device, &c, limits, &d->hidden));
        d->own_hidden = true;
    }
    return NEB_OK;
}

static neb_status check(const struct neb_distill *d, const struct neb_model *student)
{
    if (d->logits.ask && (d->logits.k < 1 || student->arch.head != NEB_HEAD_TOKENS))
        return neb__fail(
            NEB_ERR_CONFIG,
            "distill.teacher: the model does not predict tokens, so it cannot learn a teacher's");
    if (d->hidden.ask && (d->hidden.width < 1 || student->arch.kind == NEB_DECODER))
        return neb__fail(
            NEB_ERR_CONFIG,
            "distill.encoder: the student is a decoder; only an encoder can learn hidden states");
    return NEB_OK;
}

static neb_status make_room(struct neb_distill *d, neb_device *device)
{
    size_t kept = (size_t)d->targets * (size_t)d->logits.k;
    if (d->logits.ask) {
        NEB_TRY(neb_buffer_create(device, kept * sizeof(int32_t), &d->ids));
        NEB_TRY(neb_buffer_create(device, kept * sizeof(float), &d->top));
    }
    if (!d->hidden.ask) return NEB_OK;
    d->host_weight = NEB_NEW_ARRAY(float, (size_t)d->rows);
    if (!d->host_weight) return neb__fail(NEB_ERR_NOMEM, "out of memory for %d rows", d->rows);
    NEB_TRY(neb_buffer_create(device, (size_t)d->rows * sizeof(float), &d->weight));
    size_t states = (size_t)d->rows * (size_t)d->hidden.width * sizeof(float);
    NEB_TRY(neb_buffer_create(device, states, &d->states));
    return neb_buffer_clear(d->states);
}

/* The student learns the projection, but it is not part of its model: its name begins with distill. */
static void add_projection(struct neb_distill *d, neb_params *params, const struct neb_model *student)
{
    struct neb_peft none = {.full = true};
    struct neb_builder b = {.params = params, .arch = &student->arch, .peft = &none, .path = "distill."};
    d->project = neb__lin_build(&b, &(struct neb_lin_spec){"project",
                                                           student->arch.hidden,
                                                           d->hidden.width,
                                                           student->arch.deviation,
                                                           true,
                                                           NEB_SPLIT_NONE,
                                                           {0},
                                                           {0}});
}

neb_status neb__distill_create(const struct neb_job *job, const struct neb_data *data,
                               const struct neb_step_links *links, neb_device *device,
                               const struct neb_model_input_limits *limits, neb_params *params,
                               const struct neb_model *student, struct neb_distill **out)
{
    bool linked = links && (links->logits.ask || links->hidden.ask);
    *out = NULL;
    if (job->distill.sequence && !(links && links->retarget))
        return neb__doc_fail(
            &job->doc, "distill.sequence",
            "distill.sequence: the teacher translates at a site of its own; give the job a site with role "
            "teacher and one with role student (`nebula-i lab` runs both here), or leave it out");
    if (job->distill.on_policy > 0 && !(links && links->sampled))
        return neb__doc_fail(
            &job->doc, "distill.on_policy",
            "distill.on_policy: the teacher judges at a site of its own; give the job a site with role "
            "teacher and one with role student (`nebula-i lab` runs both here), or leave it out");
    if (job->distill.on_policy > 0 && !(device->ops->flags & NEB_DEVICE_JUDGED))
        return neb__doc_fail(
            &job->doc, "train.device",
            "train.device: device %s has no divergence for a student's own samples; train the "
            "student on the device cpu, or leave out distill.on_policy",
            device->ops->name);
    if (!linked && links && links->retarget) return NEB_OK; /* text alone */
    if (!linked && !job->distill.teacher && !job->distill.encoder) return NEB_OK;
    struct neb_distill *d = NEB_NEW(struct neb_distill);
    if (!d) return neb__fail(NEB_ERR_NOMEM, "out of memory for distillation");
    d->how = &job->distill;
    d->rows = limits->rows[0];
    d->targets = limits->targets;
    neb_status status = open_teachers(d, data, links, device, limits);
    if (status == NEB_OK) status = check(d, student);
    if (status == NEB_OK) status = make_room(d, device);
    if (status != NEB_OK) {
        neb__distill_destroy(d);
        return status;
    }
    if (d->hidden.ask) add_projection(d, params, student);
    *out = d;
    return NEB_OK;
}

void neb__distill_destroy(struct neb_distill *d)
{
    if (!d) return;
    if (d->own_logits && d->logits.close) d->logits.close(d->logits.arg);
    if (d->own_hidden && d->hidden.close) d->hidden.close(d->hidden.arg);
    neb_buffer_destroy(d->ids);
    neb_buffer_destroy(d->top);
    neb_buffer_destroy(d->states);
    neb_buffer_destroy(d->weight);
    neb__free(d->host_weight);
    neb__free(d);
}

/* ---- a step -------------------------------------------------------------------------------------------- */

static neb_status load_hidden(struct neb_distill *d, const struct neb_batch *b)
{
    const struct neb_batch_side *s = &b->side[0];
    struct neb_teacher_answer answer = {0};
    NEB_TRY(d->hidden.ask(d->hidden.arg, b, &answer));
    if (!answer.hidden) return neb__fail(NEB_ERR_STATE, "the teacher did not give hidden states");
    float each = (float)(d->how->hidden_weight * b->loss.used / (s->used ? s->used : 1));
    for (int32_t r = 0; r < s->tokens; r++) d->host_weight[r] = r < s->used ? each : 0;
    NEB_TRY(neb_buffer_upload(d->weight, d->host_weight, (size_t)s->tokens * sizeof(float)));
    return neb_buffer_upload(d->states, answer.hidden,
                             (size_t)s->used * (size_t)d->hidden.width * sizeof(float));
}

neb_status neb__distill_load(struct neb_distill *d, const struct neb_batch *b)
{
    if (b->loss.n > d->targets || b->side[0].tokens > d->rows)
        return neb__fail(NEB_ERR_RANGE, "a batch of %d rows is larger than the largest that was announced",
                         b->loss.n);
    d->judged = b->judged;
    if (d->hidden.ask) NEB_TRY(load_hidden(d, b));
    if (!d->logits.ask) return NEB_OK;
    struct neb_teacher_answer answer = {0};
    size_t n = (size_t)b->loss.n * (size_t)d->logits.k;
    NEB_TRY(d->logits.ask(d->logits.arg, b, &answer));
    if (!answer.ids || !answer.logits) return neb__fail(NEB_ERR_STATE, "the teacher did not give logits");
    NEB_TRY(neb_buffer_upload(d->ids, answer.ids, n * sizeof(int32_t)));
    return neb_buffer_upload(d->top, answer.logits, n * sizeof(float));
}

static void learn_hidden(struct neb_distill *d, neb_tape *t, neb_tensor *x, const struct neb_input_side *side)
{
    int64_t shape[2] = {side->rows, d->hidden.width};
    neb_push(t, "distill");
    neb_tensor *y = neb__lin_run(t, &d->project, x, NEB_ACT_NONE);
    neb_tensor *states = neb_op_convert(t, neb_input(t, d->states, NEB_F32, 2, shape));
    struct neb_loss_spec loss = {.weight = neb_input(t, d->weight, NEB_F32, 1, shape),
                                 .slot = NEB_DISTILL_SLOT};
    if (strcmp(d->how->hidden_loss, "mse"))
        neb_loss_cosine(t, y, states, &loss);
    else
        neb_loss_mse(t, y, states, &loss);
    neb_pop(t);
}

void neb__distill_run(struct neb_distill *d, struct neb_model *student, neb_tape *t,
                      const struct neb_input *in)
{
    bool encoder = student->arch.kind != NEB_DECODER, decoder = student->arch.kind != NEB_ENCODER;
    neb_tensor *memory = encoder ? neb__model_encode(student, t, &in->side[0]) : NULL, *x = memory;
    if (d->hidden.ask) learn_hidden(d, t, memory, &in->side[0]);
    if (decoder) x = neb__model_decode(student, t, &in->side[encoder], memory, encoder ? &in->side[0] : NULL);
    int64_t shape[2] = {in->targets, d->logits.k};
    if (d->logits.ask)
        d->teacher = (struct neb_soft_targets){.ce = (float)(1 - d->how->weight),
                                               .kd = (float)d->how->weight,
                                               .temperature = (float)d->how->temperature,
                                               .ids = neb_input(t, d->ids, NEB_I32, 2, shape),
                                               .logits = neb_input(t, d->top, NEB_F32, 2, shape)};
    if (d->logits.ask && d->judged)
        d->teacher.ce = 0, d->teacher.kd = 1, d->teacher.judged = true, d->teacher.beta = (float)d->how->beta;
    neb__model_loss(student, t, x, in, d->logits.ask ? &d->teacher : NULL);
}
