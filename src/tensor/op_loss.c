/* op_loss.c: the ends of a model. A loss computes its value and the gradient of its input in one go, during
 * the forward. The backward starts there, so a loss leaves no node on the tape. */
#include "tensor/fallback.h"
#include "tensor/team.h"

static bool loss_fits(neb_tape *t, const char *op, const struct neb_loss_spec *l, int64_t rows)
{
    if (t->failed != NEB_OK) return false;
    if (t->in_recompute) {
        neb__tape_fail(t, NEB_ERR_STATE, op,
                       "a loss cannot stand inside a recomputed block; compute it outside");
        return false;
    }
    if (l->slot < 0 || l->slot > 7) {
        neb__tape_fail(t, NEB_ERR_INVALID, op, "loss slot %d is not between 0 and 7", l->slot);
        return false;
    }
    return !l->weight || neb__tape_want(t, op, "weight", l->weight, NEB_F32, rows, 1);
}

static struct neb_loss loss_args(neb_tape *t, const struct neb_loss_spec *l)
{
    return (struct neb_loss){.ctl = t->ctl,
                             .weight = neb__tensor_data(t, l->weight),
                             .scale = l->scale != 0 ? l->scale : 1,
                             .slot = l->slot};
}

/* The model's own samples: only some devices know their loss. */
static bool judged_fit(neb_tape *t, const char *op, const struct neb_target_spec *s)
{
    if (!(t->dev->ops->flags & NEB_DEVICE_JUDGED))
        neb__tape_fail(
            t, NEB_ERR_UNSUPPORTED, op,
            "device %s has no divergence for a model's own samples (distill.on_policy); train on the "
            "device cpu, or leave it out",
            t->dev->ops->name);
    else if (!s->teacher_ids || neb__tensor_cols(s->teacher_ids) > NEB_JUDGED_MAX || s->ce != 0 ||
             !(s->beta >= 0 && s->beta <= 1))
        neb__tape_fail(
            t, NEB_ERR_INVALID, op,
            "a model's own samples are judged by the ids of at most %d tokens a row, with ce 0 and "
            "beta from 0 to 1",
            NEB_JUDGED_MAX);
    return t->failed == NEB_OK;
}

static bool targets_fit(neb_tape *t, const char *op, const struct neb_target_spec *s, int64_t rows,
                        int64_t classes)
{
    if (s->target && !neb__tape_want(t, op, "target", s->target, NEB_I32, rows, 1)) return false;
    if (!s->target && !(s->kd > 0)) {
        neb__tape_fail(t, NEB_ERR_INVALID, op, "there are neither targets nor a teacher; give at least one");
        return false;
    }
    if (!(s->smoothing >= 0) || s->smoothing >= 1 || !(s->temperature >= 0) || !(s->kd >= 0) ||
        !(s->ce >= 0)) {
        neb__tape_fail(
            t, NEB_ERR_RANGE, op,
            "smoothing %g must be in [0, 1), and temperature %g, kd %g and ce %g must not be negative",
            (double)s->smoothing, (double)s->temperature, (double)s->kd, (double)s->ce);
        return false;
    }
    if (s->kd == 0) return true;
    int64_t k = s->teacher_ids ? neb__tensor_cols(s->teacher_ids) : classes;
    if (s->teacher_ids && !neb__tape_want(t, op, "teacher_ids", s->teacher_ids, NEB_I32, rows, -1))
        return false;
    if (!s->teacher_logits) {
        neb__tape_fail(t, NEB_ERR_INVALID, op, "distillation (kd > 0) needs teacher logits");
        return false;
    }
    return neb__tape_want(t, op, "teacher_logits", s->teacher_logits, NEB_F32, rows, k) &&
           (!s->judged || judged_fit(t, op, s));
}

static struct neb_targets target_args(neb_tape *t, const struct neb_target_spec *s)
{
    bool teacher = s->kd > 0;
    struct neb_targets a = {.target = neb__tensor_data(t, s->target),
                            .ce = s->ce,
                            .smoothing = s->smoothing,
                            .kd = s->kd,
                            .temperature = s->temperature > 0 ? s->temperature : 1};
    if (!s->target)
        a.ce = 0;
    else if (s->ce == 0 && !teacher)
        a.ce = 1;
    if (teacher) {
        a.teacher_ids = neb__tensor_data(t, s->teacher_ids);
        a.teacher_logits = neb__tensor_data(t, s->teacher_logits);
        a.teacher_k = neb__tensor_cols(s->teacher_logits);
        a.judged = s->judged;
        a.beta = s->beta;
    }
    return a;
}

static neb_status gather_sums(void *tape, struct neb_class_sums *every, int64_t n)
{
    const neb_tape *t = tape;
    const struct neb_team *m = t->params->team;
    enum { WORDS = sizeof *every / sizeof(int32_t) };
    int64_t edge[NEB_TEAM_MEMBERS + 1];
    if (!n) return NEB_OK;
    for (int r = 0; r <= m->size; r++) edge[r] = n * WORDS * r;
    return m->exchange(m->arg, NEB_TEAM_GATHER, every, n * WORDS * m->size, edge, NEB_I32);
}

static const struct neb_class_share *share_classes(neb_tape *t, const neb_param *w,
                                                   const struct neb_target_spec *target,
                                                   struct neb_class_share *out)
{
    if (target->kd > 0 || !target->target)
        neb__tape_fail(t, NEB_ERR_UNSUPPORTED, "linear_xent",
                       "a teacher's logits are compared in one process: processes that share the vocabulary "
                       "(parallel.tensor) cannot do it");
    out->first = w->part_first[0];
    out->total = w->global[0];
    out->rank = t->params->team->rank;
    out->ranks = t->params->team->size;
    out->gather = gather_sums;
    return out;
}

/* Each member has the gradient that comes from its own classes. */
static neb_status add_up_dx(neb_tape *t, const struct neb_linear_xent *a)
{
    const struct neb_team *m = t->params->team;
    return neb__tape_called(
        t, t->dry ? NEB_OK : m->exchange(m->arg, NEB_TEAM_SUM, a->dx, a->rows * a->in, NULL, a->type));
}

void neb_loss_linear_xent(neb_tape *t, neb_tensor *x, neb_param *w, neb_param *b,
                          const struct neb_target_spec *target, const struct neb_loss_spec *loss)
{
    const char *op = "linear_xent";
    if (!neb__tape_want_act(t, op, "x", x, -1, -1) ||
        !neb__tape_want_param(t, op, "weight", w, -1, neb__tensor_cols(x)) ||
        (b && !neb__tape_want_param(t, op, "bias", b, w->shape[0], 1)) ||
        !loss_fits(t, op, loss, neb__tensor_rows(x)) ||
        !targets_fit(t, op, target, neb__tensor_rows(x), w->shape[0]))
        return;
    if (!neb__tensor_contiguous(x)) {
        neb__tape_fail(t, NEB_ERR_SHAPE, op, "x is a column view; make it contiguous first (neb_op_copy)");
        return;
    }
    neb__tensor_use(x);
    int temp = -1;
    struct neb_linear_xent a = {.x = neb__tensor_data(t, x),
                                .w = neb__param_working(t, w),
                                .bias = neb__param_working(t, b),
                                .rows = neb__tensor_rows(x),
                                .in = neb__tensor_cols(x),
                                .classes = w->shape[0],
                                .want_grad = neb__tape_wants_grad(t),
                                .t = target_args(t, target),
                                .loss = loss_args(t, loss),
                                .type = x->type};
    if (a.want_grad) {
        a.dx = neb__grad_overwrite(t, x, &temp);
        a.dw = neb__param_grad(t, w, &a.acc_dw);
        a.db = neb__param_grad(t, b, &a.acc_db);
    }
    struct neb_class_share share = {.arg = t};
    if (w->parts) a.share = share_classes(t, w, target, &share);
    a.scratch = neb__tape_scratch(t, NEB_SLOT_LINEAR_XENT, &a);
    if (t->failed != NEB_OK) return;
    neb_status status = w->parts ? NEB_CALL(t, linear_xent, &a) : NEB_FUSED(t, linear_xent, &a);
    if (status != NEB_OK || (a.share && a.dx && add_up_dx(t, &a) != NEB_OK)) return;
    neb__grad_add(t, x, temp);
}

void neb_loss_xent(neb_tape *t, neb_tensor *logits, const struct neb_target_spec *target,
                   const struct neb_loss_spec *loss)
{
    const char *op = "xent";
    if (!neb__tape_want_act(t, op, "logits", logits, -1, -1) ||
        !loss_fits(t, op, loss, neb__tensor_rows(logits)) ||
        !targets_fit(t, op, target, neb__tensor_rows(logits), neb__tensor_cols(logits)))
        return;
    neb__tensor_use(logits);
    /* the device overwrites the logits with their gradient, so it works on a copy, which becomes the
     * gradient */
    int temp = -1;
    int64_t rows = neb__tensor_rows(logits), classes = neb__tensor_cols(logits);
    void *d = neb__tape_wants_grad(t) ? neb__grad_overwrite(t, logits, &temp) : NULL;
    bool want_grad = d != NULL;
    if (!d) d = neb__tape_temp(t, rows * logits->ld * (int64_t)neb_dtype_size(logits->type));
    if (t->failed != NEB_OK) return;
    struct neb_copy2d c = {.src = neb__tensor_data(t, logits),
                           .dst = d,
                           .rows = rows,
                           .cols = classes,
                           .ld_src = logits->ld,
                           .ld_dst = logits->ld,
                           .src_type = logits->type,
                           .dst_type = logits->type};
    if (neb__tape_done(t, t->dry ? NEB_OK : t->dev->ops->copy2d(t->dev->ctx, &c)) != NEB_OK) return;
    struct neb_xent a = {.logits = d,
                         .rows = rows,
                         .classes = classes,
                         .ld = logits->ld,
                         .want_grad = want_grad,
                         .t = target_args(t, target),
                         .loss = loss_args(t, loss),
                         .type = logits->type};
    if (NEB_CALL(t, xent, &a) == NEB_OK) neb__grad_add(t, logits, temp);
}

void neb_loss_bce(neb_tape *t, neb_tensor *x, neb_tensor *target, const struct neb_loss_spec *loss)
{
    if (!neb__tape_want_act(t, "bce", "x", x, -1, 1) || !loss_fits(t, "bce", loss, neb__tensor_rows(x)) ||
        !neb__tape_want(t, "bce", "target", target, NEB_I32, neb__tensor_rows(x), 1))
        return;
    if (!neb__tensor_contiguous(x)) {
        neb__tape_fail(t, NEB_ERR_SHAPE, "bce", "x is a column view; make it contiguous first (neb_op_copy)");
        return;
    }
    neb__tensor_use(x);
    struct neb_bce a = {.x = neb__tensor_data(t, x),
                        .target = neb__tensor_data(t, target),
                        .rows = neb__tensor_rows(x),
                        .loss = loss_args(t, loss),
                        .type = x->type};
    if (neb__tape_wants_grad(t)) a.dx = neb__grad_out(t, x, &a.acc_dx);
    if (t->failed == NEB_OK) NEB_CALL(t, bce, &a);
}

static bool pair_args(neb_tape *t, const char *op, neb_tensor *x, neb_tensor *y,
                      const struct neb_loss_spec *loss, struct neb_pair_loss *a)
{
    if (!neb__tape_want_act(t, op, "x", x, -1, -1) ||
        !neb__tape_want_act(t, op, "y", y, neb__tensor_rows(x), neb__tensor_cols(x)) ||
        !loss_fits(t, op, loss, neb__tensor_rows(x)))
        return false;
    if (!neb__tensor_contiguous(x) || !neb__tensor_contiguous(y)) {
        neb__tape_fail(t, NEB_ERR_SHAPE, op,
                       "an input is a column view; make it contiguous first (neb_op_copy)");
        return false;
    }
    neb__tensor_use(x);
    neb__tensor_use(y);
    *a = (struct neb_pair_loss){.x = neb__tensor_data(t, x),
                                .y = neb__tensor_data(t, y),
                                .rows = neb__tensor_rows(x),
                                .d = neb__tensor_cols(x),
                                .loss = loss_args(t, loss),
                                .type = x->type};
    if (neb__tape_wants_grad(t)) {
        a->dx = neb__grad_out(t, x, &a->acc_dx);
        a->dy = neb__grad_out(t, y, &a->acc_dy);
    }
    return t->failed == NEB_OK;
}

void neb_loss_mse(neb_tape *t, neb_tensor *x, neb_tensor *y, const struct neb_loss_spec *loss)
{
    struct neb_pair_loss a;
    if (pair_args(t, "mse", x, y, loss, &a)) NEB_CALL(t, mse, &a);
}

void neb_loss_cosine(neb_tape *t, neb_tensor *x, neb_tensor *y, const struct neb_loss_spec *loss)
{
    struct neb_pair_loss a;
    if (pair_args(t, "cosine", x, y, loss, &a)) NEB_CALL(t, cosine, &a);
}
