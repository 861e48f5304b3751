/* stage.c: see stage.h.
 *
 * What is counted is what split/stage_item.c writes: 16 bytes before each item of at most 8 MiB, a frame of activations for each
 * part of a message, a table of all stages' sums behind each step in both directions. The parameters go backwards in chunks of
 * 2^20 values with 16 bytes more (split/stage_gather.c). */
#include "plan/stage.h"
#include "codec/stream.h"
#include "task/site_cut.h"
#include "tensor/params.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { HEAD = 16, PIECE = 8 << 20, CHUNK = 1 << 20, EVAL_BATCHES = 50 };

/* ---- the cut -------------------------------------------------------------------------------------------------- */

neb_status neb__planner_cut(const struct neb_data *data, struct neb_planner_cut *out)
{
    struct neb_planner_cut c = {.sites = data->job->n_sites};
    NEB_TRY(neb__site_cut(data->job, &data->models.model, c.range, &c.hole));
    c.ring = c.hole.end > 0;
    *out = c;
    return NEB_OK;
}

void neb__planner_cut_text(const struct neb_planner_cut *c, char *out, size_t size)
{
    const int64_t first = c->ring ? c->hole.first : c->range[0].end;
    int n = snprintf(out, size, "%" PRId64, first);
    for (int i = 1; i < c->sites && n > 0 && (size_t)n < size; i++)
        n += snprintf(out + n, size - (size_t)n, " + %" PRId64, c->range[i].end - c->range[i].first);
    if (c->ring && n > 0 && (size_t)n < size)
        snprintf(out + n, size - (size_t)n, " + %" PRId64, c->range[0].end - c->hole.end);
}

/* ---- neighbours that are not there ---------------------------------------------------------------------------- */

struct neighbours {
    struct neb_stage_ways ways;
    int stages;
    bool line_before, line_behind; /* neighbours in the line; a ring joins its ends, too */
    double ahead[NEB_STAGE_BITS], back[NEB_STAGE_BITS];
    double rows; /* of the messages of a step */
    int64_t messages, returned;
};

const int neb__stage_bits[NEB_STAGE_BITS] = {32, 16, 8, 4};

static double items(size_t bytes)
{
    const size_t pieces = bytes ? (bytes + PIECE - 1) / PIECE : 1;
    return (double)(bytes + HEAD * pieces);
}

/* What was sent long ago is here at once; a gradient comes when nothing else can be done. */
static neb_status ready(void *arg, bool back, double wait_s)
{
    (void)arg;
    return back && !(wait_s > 0) ? neb__quiet(NEB_ERR_TIMEOUT, "later") : NEB_OK;
}

static neb_status take(void *arg, const struct neb_stage_message *m, float *values)
{
    (void)arg, (void)m, (void)values;
    return NEB_OK;
}

static neb_status give(void *arg, const struct neb_stage_message *m, const float *values)
{
    struct neighbours *n = arg;
    (void)values;
    for (int k = 0; k < NEB_STAGE_BITS; k++) {
        size_t bytes = 0;
        for (int i = 0; i < m->parts; i++)
            bytes += neb__activations_size((size_t)m->part[i].used, (uint32_t)m->width, neb__stage_bits[k]);
        (m->back ? n->back : n->ahead)[k] += items(bytes);
    }
    for (int i = 0; i < m->parts; i++) n->rows += (double)m->part[i].used;
    n->messages++;
    n->returned += m->back;
    return NEB_OK;
}

static void add(double to[NEB_STAGE_BITS], double bytes)
{
    for (int k = 0; k < NEB_STAGE_BITS; k++) to[k] += bytes;
}

static neb_status add_up(void *arg, struct neb_stage_sums *own)
{
    struct neighbours *n = arg;
    /* of each stage, and how long its line takes */
    const double table = items((size_t)n->stages * (sizeof *own + sizeof(double)));
    if (n->line_behind) add(n->ahead, table);
    if (n->line_before) add(n->back, table);
    return NEB_OK;
}

static neb_status spread(void *arg, void *bytes, size_t size)
{
    struct neighbours *n = arg;
    const bool ring = n->ways.before && n->ways.behind && !(n->line_before && n->line_behind);
    (void)bytes;
    if (ring ? n->line_behind : n->line_before) add(ring ? n->ahead : n->back, items(size));
    return NEB_OK;
}

static neb_status give_outline(void *arg, const void *bytes, size_t size)
{
    struct neighbours *n = arg;
    (void)bytes;
    add(n->ahead, items(size));
    return NEB_OK;
}

/* This site has the text, so no stage needs to be told of its batches here. */
static void make_neighbours(const struct neb_planner_cut *c, int site, struct neighbours *n)
{
    const bool first = !site, last = site == c->sites - 1, next = site + 1 < c->sites;
    *n = (struct neighbours){.stages = c->sites, .line_before = !first, .line_behind = !last};
    n->ways = (struct neb_stage_ways){.arg = n,
                                      .before = c->ring || !first,
                                      .behind = c->ring || !last,
                                      .ready = ready,
                                      .take = take,
                                      .give = give,
                                      .add_up = add_up,
                                      .spread = spread,
                                      .outlines_out = next && (c->ring || site + 2 < c->sites),
                                      .give_outline = give_outline};
}

/* ---- the rehearsal -------------------------------------------------------------------------------------------- */

/* What the first site wants: with init.from it finds frozen ones by itself. */
static double own_parameters(const struct neb_job *job, const neb_params *ps)
{
    const bool all = !strcmp(job->peft.method, "full") || !job->init.from;
    double bytes = items(0); /* the end */
    for (int i = 0; i < ps->count; i++) {
        const neb_param *p = ps->list[i];
        if (p->elsewhere || (!p->trainable && !all)) continue;
        const double n = (double)neb_param_values(p);
        bytes += sizeof(float) * n + 2 * HEAD * ceil(n / CHUNK);
    }
    return bytes;
}

struct going {
    const struct neb_job *job;
    struct neighbours *n;
    struct neb_planner_stage_seen *out;
};

/* Behind the steps: what they have sent, and a measurement of held-out loss. */
static neb_status behind_steps(void *arg, struct neb_work *w, int steps)
{
    struct going *g = arg;
    struct neb_work_eval e;
    struct neb_planner_stage_seen *o = g->out;
    const struct neighbours at = *g->n;
    o->rows = at.messages ? at.rows / (double)at.messages : 0;
    o->returns = at.returned > 0;
    (void)neb__work_eval(w, "valid", EVAL_BATCHES, &e); /* nothing is computed, so its loss is none */
    for (int k = 0; k < NEB_STAGE_BITS; k++) {
        struct neb_planner_stage_sent *x = &o->sent[k];
        const int64_t ahead = at.messages - at.returned;
        *x = (struct neb_planner_stage_sent){.ahead = at.ahead[k] / steps, .back = at.back[k] / steps};
        x->message = ahead ? at.ahead[k] / (double)ahead : at.returned ? at.back[k] / (double)at.returned : 0;
        x->held_out = g->n->ahead[k] - at.ahead[k] + g->n->back[k] - at.back[k];
    }
    o->slot = (double)neb__work_slot_bytes(w);
    o->parameters = g->job->wan.gather ? own_parameters(g->job, neb__work_params(w)) : 0;
    return NEB_OK;
}

neb_status neb__planner_rehearse_stage(const struct neb_data *data, const struct neb_planner_cut *cut,
                                       int site, const struct neb_planner_layout *l, int depth, bool gpu,
                                       struct neb_planner_stage_seen *out)
{
    struct neighbours n;
    struct neb_planner_stage_seen seen = {0};
    struct neb_rehearsal last;
    struct going g = {.job = data->job, .n = &n, .out = &seen};
    make_neighbours(cut, site, &n);
    struct neb_step_links links = {.stage = {.ways = &n.ways, .range = cut->range[site], .depth = depth}};
    if (!site) links.stage.hole = cut->hole;
    const struct neb_rehearsal_links x = {&links, behind_steps, &g};
    struct neb_layout_place place = {.gpu = gpu};
    NEB_TRY(neb__planner_rehearse_linked(data, l, &place, &x, &seen.rank));
    if (l->zero) { /* the last copy may have the largest range; it follows the first one, so it makes no steps here */
        place.data = l->data - 1;
        NEB_TRY(neb__planner_rehearse_linked(data, l, &place,
                                             &(struct neb_rehearsal_links){&links, NULL, NULL}, &last));
        if (last.state > seen.rank.state) seen.rank.state = last.state;
    }
    *out = seen;
    return NEB_OK;
}

/* ---- bytes ---------------------------------------------------------------------------------------------------- */

const struct neb_planner_stage_sent *neb__planner_stage_sent(const struct neb_planner_stage_seen *seen,
                                                             int bits)
{
    int k = 0;
    while (k < NEB_STAGE_BITS - 1 && neb__stage_bits[k] > bits) k++;
    return &seen->sent[k];
}

double neb__planner_stage_run_bytes(const struct neb_job *job, const struct neb_planner_stage_seen *seen,
                                    int bits, int site, int sites)
{
    const struct neb_planner_stage_sent *x = neb__planner_stage_sent(&seen[site], bits);
    const double steps = (double)job->train.steps, every = (double)job->train.eval_every;
    const double measured = 1 + (every > 0 ? floor(steps / every) : 0);
    double bytes = steps * (x->ahead + x->back) + measured * x->held_out;
    for (int i = site; site && i < sites; i++) bytes += seen[i].parameters;
    return bytes;
}
