/* work_site.c: one stage of a job's model, with the other stages at other sites.
 *
 * As with ranks, every stage loads every batch: positions, sequences and sample numbers are needed in all of them. A site
 * without the text has them from the stage before (work_outline.c). Rows of padding do not cross a cut. Gradients cross back as far as parameters are trained before the cut: with a frozen body that
 * may be nowhere, and then a stage before the first trained parameter makes no backward at all. */
#include "base/mem.h"
#include "optim/optimizer.h"
#include "optim/site_stage.h"
#include "task/init_from.h"
#include "task/memory_check.h"
#include "task/work_slots.h"

#include <math.h>
#include <string.h>

bool neb__work_has_stage(const struct neb_work *w)
{
    return w->links.stage.ways != NULL;
}

bool neb__work_param_here(const neb_param *p)
{
    return !p->elsewhere;
}

/* ---- what crosses ----------------------------------------------------------------------------------------- */

static void fill(const struct neb_work *w, const struct neb_batch *b, int64_t layer,
                 struct neb_stage_message *m)
{
    bool sides[2];
    neb__stage_crossing(&w->model->arch, layer, sides);
    m->check = neb__batch_check_value(b);
    for (int i = 1; i >= 0; i--) { /* the decoder's rows come first */
        if (!sides[i]) continue;
        const struct neb_batch_side *s = &b->side[i];
        m->part[m->parts].rows = s->tokens;
        m->part[m->parts++].used = s->used;
    }
}

static bool comes_twice(const struct neb_work *w)
{
    return w->links.stage.hole.end > w->links.stage.hole.first;
}

/* The cut over which hidden states come here, and the one over which they go. */
static int64_t first_cut(const struct neb_work *w)
{
    return comes_twice(w) ? w->links.stage.hole.end : w->links.stage.range.first;
}

static int64_t last_cut(const struct neb_work *w)
{
    return comes_twice(w) ? w->links.stage.hole.first : w->links.stage.range.end;
}

static neb_status shape(void *work, void *run, struct neb_stage_message *before,
                        struct neb_stage_message *behind)
{
    const struct neb_work *w = work;
    const struct neb_work_part *p = run;
    fill(w, p->batch, first_cut(w), before);
    fill(w, p->batch, last_cut(w), behind);
    return NEB_OK;
}

/* Whether a parameter of the layers before `end` is trained. */
static neb_status trains_before(const struct neb_work *w, int64_t end, bool *out)
{
    struct neb_model *m = NULL;
    neb_params *ps = NULL;
    struct neb_stage_range range = {0, end};
    *out = false;
    if (!end) return NEB_OK;
    NEB_TRY(neb_params_create(&ps));
    neb_status status = neb__model_create_stage(&w->data->models.model, &w->job->peft, &range, NULL, ps, &m);
    for (int i = 0; status == NEB_OK && i < ps->count; i++)
        *out |= ps->list[i]->trainable && !ps->list[i]->elsewhere;
    neb__model_destroy(m);
    neb_params_destroy(ps);
    return status;
}

/* ---- opening ---------------------------------------------------------------------------------------------- */

static size_t message_bytes(const struct neb_work *w, int64_t layer,
                            const struct neb_model_input_limits *limits)
{
    const int64_t rows[2] = {limits->rows[0], limits->rows[1]};
    return neb__stage_message(&w->model->arch, layer, rows, w->dev->config.compute);
}

/* The slot behind the others is that of the second visit. */
static void enter(void *work, int slot, const struct neb_stage_ports *at)
{
    struct neb_work *w = work;
    struct neb_stage *s = &w->model->stage;
    const struct neb_stage_links *l = &w->links.stage;
    const bool second = comes_twice(w) && slot == w->stages->slots - 1;
    neb__work_enter_slot(w, slot, at);
    if (comes_twice(w))
        s->range = second ? (struct neb_stage_range){l->hole.end, l->range.end}
                          : (struct neb_stage_range){l->range.first, l->hole.first};
    if (second && w->stages->evaluates) w->input = w->stages->inputs[0];
}

neb_status neb__work_open_site(struct neb_work *w, const struct neb_model_input_limits *limits)
{
    const struct neb_stage_links *l = &w->links.stage;
    const int copies = neb__group_size(neb__layout_data(w->layout));
    struct neb_site_stage_config c = {.ways = l->ways,
                                      .layout = w->layout,
                                      .before_bytes = message_bytes(w, first_cut(w), limits),
                                      .behind_bytes = message_bytes(w, last_cut(w), limits),
                                      .twice = comes_twice(w),
                                      .width = w->model->arch.hidden,
                                      .speed = w->job->train.speed,
                                      .enter = enter,
                                      .shape = shape,
                                      .arg = w};
    int depth = l->ways->behind ? l->depth : copies; /* the last stage: one for each copy */
    NEB_TRY(trains_before(w, first_cut(w), &c.gradients_out));
    NEB_TRY(trains_before(w, last_cut(w), &c.gradients_in));
    c.gradients_in = c.gradients_in && l->ways->behind;
    c.forward_only = l->ways->behind && !c.gradients_in;
    w->stages = NEB_NEW(struct neb_work_stages);
    if (!w->stages) return neb__fail(NEB_ERR_NOMEM, "out of memory for a stage");
    w->stages->limits = *limits;
    NEB_TRY(neb__work_make_slots(w, limits, (depth + copies - 1) / copies + c.twice));
    NEB_TRY(neb__site_stage_open(w->dev, w->tape, &c, depth, &w->stages->site));
    w->opt->site = w->stages->site;
    return neb__work_open_outlines(w, limits);
}

neb_status neb__work_frozen_elsewhere(struct neb_work *w, float *whole, bool *have)
{
    return neb__init_frozen(w->job, w->model, whole, have);
}

/* ---- depth ------------------------------------------------------------------------------------------------ */

int neb__work_depth(const struct neb_work *w)
{
    return w->stages && w->stages->site ? neb__site_stage_depth(w->stages->site) : 0;
}

int64_t neb__work_slot_bytes(const struct neb_work *w)
{
    struct neb_device_info info;
    neb_device_get_info(w->dev, &info);
    return w->stages && w->stages->slots ? (info.memory_used - w->opened) / w->stages->slots : 0;
}

/* A machine is left a tenth of what it has free. */
int64_t neb__work_free_bytes(const struct neb_work *w)
{
    struct neb_device_info info;
    neb_device_get_info(w->dev, &info);
    const double used = (double)info.memory_used, cap = (double)w->job->train.memory;
    double left = cap > 0 ? cap - used : HUGE_VAL;
    if (!strcmp(w->dev->ops->name, "cpu"))
        left = fmin(left, 0.9 * neb__memory_of_host() / neb__group_size(neb__layout_world(w->layout)));
    else if (info.memory_total > 0)
        left = fmin(left, (double)info.memory_total - used);
    return isfinite(left) ? (int64_t)fmax(0, left) : -1;
}

/* The first input stays. */
static neb_status make_inputs(struct neb_work *w, int depth)
{
    struct neb_work_stages *s = w->stages;
    const int copies = neb__group_size(neb__layout_data(w->layout));
    if (s->inputs) w->input = s->inputs[0];
    for (int i = 1; s->inputs && i < s->slots; i++) neb__model_input_destroy(s->inputs[i]);
    neb__free(s->inputs);
    s->inputs = NULL;
    return neb__work_make_slots(w, &s->limits, (depth + copies - 1) / copies + comes_twice(w));
}

neb_status neb__work_set_depth(struct neb_work *w, int depth)
{
    struct neb_work_stages *s = w->stages;
    const int before = neb__work_depth(w);
    if (!s || !s->site || !w->links.stage.ways->behind || depth == before) return NEB_OK;
    neb_status status = make_inputs(w, depth);
    if (status == NEB_OK) status = neb__site_stage_set_depth(s->site, depth);
    if (status != NEB_ERR_NOMEM) return status;
    neb_status back = make_inputs(w, before);
    if (back == NEB_ERR_NOMEM)
        return neb__fail(NEB_ERR_STATE, "no memory for the %d micro-batches in flight that were there before",
                         before);
    return back == NEB_OK ? status : back;
}

neb_status neb__work_resize_site(struct neb_work *w, const struct neb_model_input_limits *limits)
{
    struct neb_work_stages *s = w->stages;
    struct neb_model_input_limits l = *limits;
    const int slots = s->slots;
    for (int i = 0; i < slots; i++) neb__model_input_destroy(s->inputs[i]);
    neb__free(s->inputs);
    s->inputs = NULL;
    w->input = NULL;
    s->limits = *limits;
    neb__model_input_fit(w->model, &l);
    NEB_TRY(neb__model_input_create(w->dev, &l, &w->input));
    NEB_TRY(neb__work_make_slots(w, limits, slots));
    return neb__site_stage_resize(s->site, message_bytes(w, first_cut(w), limits),
                                  message_bytes(w, last_cut(w), limits));
}

void neb__work_site_times(const struct neb_work *w, struct neb_site_stage_times *out)
{
    *out = (struct neb_site_stage_times){0};
    if (w->stages && w->stages->site) neb__site_stage_times(w->stages->site, out);
}
