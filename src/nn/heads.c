/* heads.c: the heads on top of the last hidden states: token prediction, replaced-token detection,
 * classification.
 *
 * Token prediction works on gathered rows only (the masked ones of an encoder), and its loss is the fused
 * linear+cross-entropy, so logits of a whole vocabulary are never stored. The output weight is the token
 * table when tied. Encoders first transform the rows to the width of the embeddings (BERT, ELECTRA). */
#include "nn/model.h"
#include "tensor/team.h"

#include <math.h>

/* ---- building ------------------------------------------------------------------------------------------ */

static void build_tokens(struct neb_builder *b, struct neb_model *m)
{
    const struct neb_arch *a = b->arch;
    if (a->kind == NEB_ENCODER) {
        m->head.transform = neb__lin_build(
            b, &(struct neb_lin_spec){
                   "transform", a->hidden, a->embedding, a->deviation, a->bias, NEB_SPLIT_NONE, {0}, {0}});
        m->head.norm = neb__norm_build(b, "norm", a->embedding);
    }
    m->head.weight = a->tied ? m->token
                             : neb__builder_matrix(b, "weight", a->vocab, a->embedding, NEB_INIT_NORMAL,
                                                   a->deviation, NEB_SPLIT_ROW);
    if (a->head_bias) m->head.bias = neb__builder_vector(b, "bias", a->vocab, NEB_INIT_ZERO, NEB_SPLIT_ROW);
}

void neb__head_build(struct neb_builder *b, struct neb_model *m)
{
    const struct neb_arch *a = b->arch;
    size_t mark = neb__builder_enter(b, "head");
    int64_t outputs = a->head == NEB_HEAD_RTD ? 1 : a->classes;
    if (a->head == NEB_HEAD_TOKENS) build_tokens(b, m);
    if (a->head == NEB_HEAD_RTD || a->head == NEB_HEAD_CLASS) {
        m->head.pool = neb__lin_build(
            b, &(struct neb_lin_spec){
                   "pool", a->hidden, a->hidden, a->deviation, a->bias, NEB_SPLIT_NONE, {0}, {0}});
        m->head.out = neb__lin_build(
            b, &(struct neb_lin_spec){
                   "out", a->hidden, outputs, a->deviation, a->bias, NEB_SPLIT_NONE, {0}, {0}});
    }
    /* LoRA's dropout counts by rows of the sequences; a head works on gathered rows. */
    m->head.transform.lora_dropout = m->head.pool.lora_dropout = m->head.out.lora_dropout = 0;
    neb__builder_leave(b, mark);
}

/* ---- running ------------------------------------------------------------------------------------------- */

static neb_tensor *token_rows(struct neb_model *m, neb_tape *t, neb_tensor *x, neb_tensor *rows)
{
    if (rows) x = neb_op_gather(t, x, rows);
    if (m->arch.head_scale) x = neb_op_scale(t, x, 1 / sqrtf((float)m->arch.hidden));
    if (!m->head.transform.weight) return x;
    x = neb__lin_run(t, &m->head.transform, x, NEB_ACT_GELU);
    return neb__norm_run(t, &m->head.norm, x);
}

static neb_tensor *class_logits(struct neb_model *m, neb_tape *t, neb_tensor *x,
                                const struct neb_input_side *side)
{
    x = m->arch.mean_pooling ? neb_op_mean_pool(t, x, &side->seqs) : neb_op_gather(t, x, side->first);
    x = neb__lin_run(t, &m->head.pool, x, NEB_ACT_TANH);
    if (m->arch.dropout > 0) {
        neb_set_rows(t, side->seqs.sample, side->zero);
        x = neb_op_dropout(t, x, m->arch.dropout);
    }
    return neb__lin_run(t, &m->head.out, x, NEB_ACT_NONE);
}

static neb_tensor *rtd_logits(struct neb_model *m, neb_tape *t, neb_tensor *x)
{
    return neb__lin_run(t, &m->head.out, neb__lin_run(t, &m->head.pool, x, NEB_ACT_GELU), NEB_ACT_NONE);
}

neb_tensor *neb__model_logits(struct neb_model *m, neb_tape *t, neb_tensor *x,
                              const struct neb_input_side *side, neb_tensor *rows)
{
    neb_push(t, "%shead", m->prefix);
    switch (m->arch.head) {
    case NEB_HEAD_TOKENS:
        x = neb_op_linear(t, token_rows(m, t, x, rows), m->head.weight, m->head.bias, NEB_ACT_NONE);
        x = neb__op_gather_columns(t, x, m->arch.vocab);
        if (m->outputs < m->arch.vocab) x = neb_op_copy(t, neb_op_columns(t, x, 0, m->outputs));
        break;
    case NEB_HEAD_RTD: x = rtd_logits(m, t, rows ? neb_op_gather(t, x, rows) : x); break;
    case NEB_HEAD_CLASS: x = class_logits(m, t, x, side); break;
    case NEB_HEAD_NONE: break;
    }
    neb_pop(t);
    return x;
}

/* Smoothing is used in training only; evaluation measures the likelihood of the targets. */
static struct neb_target_spec targets_of(const struct neb_model *m, const neb_tape *t,
                                         const struct neb_input *in, const struct neb_soft_targets *teacher)
{
    struct neb_target_spec s = {.target = in->target,
                                .smoothing = neb_is_training(t) ? m->arch.smoothing : 0};
    if (!teacher) return s;
    s.ce = teacher->ce;
    s.kd = teacher->kd;
    s.temperature = teacher->temperature;
    s.teacher_ids = teacher->ids;
    s.teacher_logits = teacher->logits;
    s.judged = teacher->judged;
    s.beta = teacher->beta;
    return s;
}

void neb__model_loss(struct neb_model *m, neb_tape *t, neb_tensor *x, const struct neb_input *in,
                     const struct neb_soft_targets *teacher)
{
    struct neb_loss_spec loss = {.weight = in->weight, .slot = m->loss_slot};
    struct neb_target_spec target = targets_of(m, t, in, teacher);
    const struct neb_input_side *side = &in->side[m->arch.kind == NEB_ENCODER_DECODER];
    if (!neb__stage_is_last(&m->arch, &m->stage.range)) return;
    neb_push(t, "%shead", m->prefix);
    switch (m->arch.head) {
    case NEB_HEAD_TOKENS:
        neb_loss_linear_xent(t, token_rows(m, t, x, in->target_row), m->head.weight, m->head.bias, &target,
                             &loss);
        break;
    case NEB_HEAD_RTD:
        neb_loss_bce(t, rtd_logits(m, t, in->target_row ? neb_op_gather(t, x, in->target_row) : x),
                     in->target, &loss);
        break;
    case NEB_HEAD_CLASS: neb_loss_xent(t, class_logits(m, t, x, side), &target, &loss); break;
    case NEB_HEAD_NONE: break;
    }
    neb_pop(t);
}
