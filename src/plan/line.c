/* line.c: see line.h. */
#include "plan/line.h"
#include "base/log.h"
#include "base/mem.h"
#include "plan/measure.h"
#include "plan/site.h"
#include "plan/strategy.h"
#include "plan/trained_layers.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double goodput = 0.92, too_slow = 1.1, mib = 0x1p20;
enum { KEPT = 192 };

/* What was rehearsed is kept: rows differ in one site's layout, or in bits alone. */
struct lines {
    const struct neb_planner_order *o;
    struct neb_planner_job job; /* strategy pipeline */
    struct neb_arch arch;
    struct neb_planner_cut cut;
    double *share; /* of each layer, of what a trained one takes */
    struct neb_planner_site said[NEB_JOB_SITES];
    int own; /* this site; -1: the job was read as none */
    struct {
        int site, depth;
        struct neb_planner_layout layout;
        struct neb_planner_stage_seen seen;
    } kept[KEPT];
    int n_kept;
};

/* One row while it is made. */
struct draft {
    struct neb_planner_row *row;
    struct neb_planner_line *line;
    struct neb_planner_stage_seen seen[NEB_JOB_SITES];
};

/* ---- memory --------------------------------------------------------------------------------------------------- */

static bool same_layout(const struct neb_planner_layout *a, const struct neb_planner_layout *b)
{
    return a->data == b->data && a->tensor == b->tensor && a->zero == b->zero && a->offload == b->offload &&
           a->threads == b->threads;
}

static neb_status see(struct lines *x, int site, const struct neb_planner_layout *l, int depth,
                      struct neb_planner_stage_seen *out)
{
    for (int i = 0; i < x->n_kept; i++)
        if (x->kept[i].site == site && x->kept[i].depth == depth && same_layout(&x->kept[i].layout, l)) {
            *out = x->kept[i].seen;
            return NEB_OK;
        }
    const bool before = neb__log_hush(true);
    neb_status status =
        neb__planner_rehearse_stage(&x->job.data, &x->cut, site, l, depth, x->o->costs->stated, out);
    neb__log_hush(before);
    NEB_TRY(status);
    if (x->n_kept == KEPT) return NEB_OK;
    x->kept[x->n_kept].site = site;
    x->kept[x->n_kept].depth = depth;
    x->kept[x->n_kept].layout = *l;
    x->kept[x->n_kept++].seen = *out;
    return NEB_OK;
}

static double memory_of(const struct neb_planner_stage_seen *s)
{
    return (double)(s->rank.state + s->rank.runs);
}

/* Hardware that is not here is that of every site; so is this machine, if it is none of them. */
static bool is_like_here(const struct lines *x, int site)
{
    return site == x->own || x->own < 0 || x->o->costs->stated;
}

/* What a process of the site may take; 0: nobody says. */
static double room_of(const struct lines *x, int site)
{
    const struct neb_planner_place *p = &x->o->place;
    if (!is_like_here(x, site)) return x->said[site].memory;
    if (site != x->own && x->said[site].memory > 0) return x->said[site].memory;
    double room = p->cap > 0 ? p->cap : HUGE_VAL;
    if (!p->host) room = fmin(room, p->device);
    return isfinite(room) ? room : 0;
}

/* ---- time ----------------------------------------------------------------------------------------------------- */

/* Measured for this layout, or made of what one process was measured to take. */
static bool cost_of(const struct lines *x, const struct neb_planner_layout *l, struct neb_layer_cost *out)
{
    const struct neb_planner_costs *c = x->o->costs;
    const int ranks = neb__planner_ranks(l),
              threads = l->threads ? l->threads : neb__planner_threads(x->o->data->job, ranks);
    const struct neb_layer_cost *found = neb__costs_layer(c, l->tensor, threads, ranks);
    for (int i = 0; !found && i < c->layers; i++)
        if (c->layer[i].tensor == 1 && (c->layer[i].ranks == 1 || c->stated)) found = &c->layer[i];
    if (!found) return false;
    double part = found->tensor == l->tensor ? 1 : 1.0 / l->tensor;
    if (found->threads > 0 && threads > 0 && !c->stated) part *= (double)found->threads / threads;
    *out = *found;
    for (int i = 0; i < NEB_STACKS; i++) out->layer[i] *= part;
    out->ends *= part;
    return true;
}

/* Seconds of a micro-batch at a visit. */
struct turn {
    double forward, backward;
};

/* A frozen layer that a pattern does not name by number was measured as it is, which is its forward alone. */
static double forward_of(const struct lines *x, double share, bool returns)
{
    return returns || share < 1 || x->o->costs->stated ? 1.0 / 3 : 1;
}

/* returns: gradients come back to these layers. */
static struct turn runs_of(const struct lines *x, const struct neb_stage_range *r, bool returns,
                           const struct neb_layer_cost *c)
{
    const int64_t encoder = x->arch.kind == NEB_ENCODER_DECODER ? x->arch.layers : INT64_MAX;
    const double ends = c->ends * neb__stage_ends(&x->arch, r);
    struct turn sum = {ends / 3, returns ? ends * 2 / 3 : 0};
    for (int64_t i = r->first; i < r->end; i++) {
        const double layer = c->layer[i >= encoder], forward = forward_of(x, x->share[i], returns);
        sum.forward += layer * forward;
        if (returns) sum.backward += layer * (x->share[i] - forward);
    }
    return sum;
}

static struct neb_stage_range range_of(const struct lines *x, int visit)
{
    const struct neb_planner_cut *c = &x->cut;
    if (!c->ring || visit % c->sites) return c->range[visit];
    return visit ? (struct neb_stage_range){c->hole.end, c->range[0].end}
                 : (struct neb_stage_range){0, c->hole.first};
}

static double exchange(const struct lines *x, int size, int stride, const struct neb_rank_traffic *t)
{
    const struct neb_group_cost *g = size > 1 ? neb__costs_group(x->o->costs, size, stride) : NULL;
    return g ? neb__costs_exchange(g, t) : 0;
}

/* Gradients come back from the next visit, or the loss is here. */
static bool has_backward(const struct lines *x, const struct draft *d, int visit)
{
    const int last = x->cut.sites - 1 + x->cut.ring;
    return visit == last || d->seen[(visit + 1) % x->cut.sites].returns;
}

/* train.speed is a pace that a site keeps: a third of it forwards, the rest backwards, which is also that of all of a second visit. */
static void keep_pace(double whole, bool second, struct turn *t)
{
    const double all = t->forward + t->backward;
    if (second && all > 0) {
        const double slower = fmax(1, whole * 2 / 3 / all);
        *t = (struct turn){t->forward * slower, t->backward * slower};
    } else if (!second) {
        t->forward = fmax(t->forward, whole / 3);
        if (t->backward > 0) t->backward = fmax(t->backward, whole * 2 / 3);
    }
}

static struct turn turn_of(const struct lines *x, const struct draft *d, int visit,
                           const struct neb_layer_cost *c)
{
    const int site = visit % x->cut.sites;
    const struct neb_planner_layout *l = &d->line->site[site].layout;
    const struct neb_planner_stage_seen *seen = &d->seen[site];
    const struct neb_stage_range r = range_of(x, visit);
    const bool returns = has_backward(x, d, visit);
    const double share = fmax(1, ceil((double)x->job.job.train.micro / l->data));
    const double within = exchange(x, l->tensor, 1, &seen->rank.tensor) / share, speed = x->said[site].speed;
    struct turn t = runs_of(x, &r, returns, c);
    t.forward += returns ? within / 3 : within;
    t.backward += returns ? within * 2 / 3 : 0;
    if (speed > 0) keep_pace(seen->rows / speed, visit == x->cut.sites, &t);
    return t;
}

static double end_of(const struct lines *x, const struct neb_planner_layout *l,
                     const struct neb_planner_stage_seen *seen, const struct neb_layer_cost *c)
{
    return c->update * (double)seen->rank.here / (l->zero ? l->data : 1) +
           exchange(x, l->data, l->tensor, &seen->rank.data) + exchange(x, l->tensor, 1, &seen->rank.model);
}

static double transfer(const struct lines *x, double bytes)
{
    return x->o->line.rate > 0 ? bytes / (goodput * x->o->line.rate / 8) : 0;
}

static int behind(const struct lines *x, int site)
{
    return x->cut.sites - 1 - site + x->cut.ring;
}

/* As the rate controller (split/stage_rate.c) answers this line. */
static int wanted_depth(const struct lines *x, int site, double turn, double message)
{
    const struct neb_job *j = &x->job.job;
    const int after = behind(x, site);
    double depth = after + 2;
    if (!after) return 1;
    if (j->wan.depth > 0) return (int)j->wan.depth;
    if (turn > 0 && x->o->line.rtt > 0)
        depth = after + 1 + ceil(after * (x->o->line.rtt + 2 * transfer(x, message)) / turn);
    return (int)fmax(1, fmin(depth, (double)j->train.micro));
}

/* With a limit a stage takes as many slots as there is room for. */
static neb_status settle_depth(struct lines *x, struct draft *d, int site, double turn)
{
    struct neb_planner_line_site *s = &d->line->site[site];
    struct neb_planner_stage_seen *seen = &d->seen[site];
    const double message = neb__planner_stage_sent(seen, d->line->bits)->message;
    s->depth = wanted_depth(x, site, turn, message);
    if (s->room > 0 && !x->job.job.wan.depth && seen->slot > 0) {
        const double more = floor((s->room - memory_of(seen)) / seen->slot);
        s->depth = (int)fmax(1, fmin(s->depth, s->layout.data * (1 + fmax(0, more))));
    }
    NEB_TRY(see(x, site, &s->layout, s->depth, seen));
    s->memory = memory_of(seen);
    return NEB_OK;
}

static neb_status time_row(struct lines *x, struct draft *d)
{
    struct neb_line_visit visit[NEB_JOB_SITES + 1];
    struct neb_line_turns turns[NEB_JOB_SITES];
    const struct neb_planner_cut *c = &x->cut;
    struct neb_planner_row *row = d->row;
    for (int v = 0; v < c->sites + c->ring; v++) {
        const int s = v % c->sites;
        struct neb_planner_line_site *site = &d->line->site[s];
        const struct neb_planner_stage_sent *sent = neb__planner_stage_sent(&d->seen[s], d->line->bits);
        struct neb_layer_cost cost;
        if (!cost_of(x, &site->layout, &cost)) return NEB_OK;
        const struct turn turn = turn_of(x, d, v, &cost);
        const double takes = transfer(x, sent->message);
        visit[v] =
            (struct neb_line_visit){turn.forward, turn.backward, takes, takes, v && d->seen[s].returns};
        turns[s] = (struct neb_line_turns){site->depth, site->layout.data,
                                           end_of(x, &site->layout, &d->seen[s], &cost)};
        row->compute_s =
            fmax(row->compute_s, (double)x->job.job.train.micro * site->turn / site->layout.data);
        row->update_s = fmax(row->update_s, turns[s].end);
    }
    NEB_TRY(neb__planner_line_turns(visit, turns, c->sites, c->ring, (int)x->job.job.train.micro,
                                    x->o->line.rtt / 2, &row->step_s));
    row->exchange_s = fmax(0, row->step_s - row->compute_s - row->update_s);
    row->idle = row->step_s > 0 ? fmax(0, 1 - (row->compute_s + row->update_s) / row->step_s) : 0;
    row->tokens_s = row->step_s > 0 ? d->seen[0].rank.tokens / row->step_s : 0;
    row->timed = true;
    return NEB_OK;
}

/* ---- a row ---------------------------------------------------------------------------------------------------- */

static void judge(const struct lines *x, struct draft *d)
{
    const struct neb_planner_place *p = &x->o->place;
    struct neb_planner_row *row = d->row;
    for (int i = 0; i < x->cut.sites && !*row->why; i++) {
        const struct neb_planner_line_site *s = &d->line->site[i];
        const double all = s->memory * neb__planner_ranks(&s->layout);
        const char *name = x->job.job.site[i].name;
        if (s->room > 0 && s->memory > s->room)
            snprintf(
                row->why, sizeof row->why,
                "site %s: its stage needs %.1f MiB of a process, which has %.1f MiB; give it fewer layers "
                "(sites[].layers), train.tokens or wan.depth",
                name, s->memory / mib, s->room / mib);
        else if (is_like_here(x, i) && p->host && all > p->machine)
            snprintf(row->why, sizeof row->why, "site %s: its stage needs %.1f MiB, and %.1f MiB are free",
                     name, all / mib, p->machine / mib);
    }
    row->fits = !*row->why;
    if (row->fits && !row->timed)
        snprintf(row->why, sizeof row->why, "it fits, but its time was not measured");
    row->fits &= row->timed; /* what is rejected does not say that it could be taken */
}

static void count_bytes(const struct lines *x, struct draft *d)
{
    const struct neb_job *j = &x->job.job;
    struct neb_planner_row *row = d->row;
    const int n = x->cut.sites;
    double gathered = 0, most = 0;
    for (int i = 0; i < n; i++) {
        struct neb_planner_line_site *s = &d->line->site[i];
        s->sent = neb__planner_stage_run_bytes(j, d->seen, d->line->bits, i, n);
        d->line->all_bytes += s->sent;
        most = fmax(most, s->sent);
        if (i) gathered += d->seen[i].parameters;
    }
    const double steps = fmax(1, (double)j->train.steps);
    row->wan.sites = n;
    row->wan.bytes = x->own >= 0 ? d->line->site[x->own].sent : most;
    row->wan.step_bytes = row->wan.bytes / steps;
    row->wan.interval = 1;
    snprintf(row->wan.rung, sizeof row->wan.rung, d->line->bits > 8 ? "fp%d" : "int%d", d->line->bits);
    row->total_s = steps * row->step_s + transfer(x, gathered);
    row->cost = row->wan.bytes * x->o->price;
    row->cost_all = d->line->all_bytes * x->o->price;
}

/* 8 bits are the rule, and 4 where the line is too slow for them. */
static bool is_other(const struct lines *x, const struct draft *d)
{
    const struct neb_planner_line_site *s = &d->line->site[0];
    if (x->job.job.wan.bits) return false;
    const bool slow =
        s->turn > 0 && transfer(x, neb__planner_stage_sent(&d->seen[0], 8)->message) > too_slow * s->turn;
    return d->line->bits == 8 ? slow : !slow;
}

/* Of all its visits. */
static double turns_of_site(const struct lines *x, const struct draft *d, int site)
{
    struct neb_layer_cost cost;
    double sum = 0;
    if (!cost_of(x, &d->line->site[site].layout, &cost)) return 0;
    for (int v = site; v < x->cut.sites + x->cut.ring; v += x->cut.sites) {
        const struct turn t = turn_of(x, d, v, &cost);
        sum += t.forward + t.backward;
    }
    return sum;
}

/* All stages are seen before one is timed: whether a stage has a backward is up to the one behind it. */
static neb_status fill(struct lines *x, struct draft *d)
{
    for (int i = 0; i < x->cut.sites; i++) {
        struct neb_planner_line_site *s = &d->line->site[i];
        s->layout = i == x->own || x->o->costs->stated ? d->row->layout : x->said[i].layout;
        s->room = room_of(x, i);
        NEB_TRY(see(x, i, &s->layout, 1, &d->seen[i]));
    }
    for (int i = 0; i < x->cut.sites; i++) {
        struct neb_planner_line_site *s = &d->line->site[i];
        s->turn = turns_of_site(x, d, i);
        NEB_TRY(settle_depth(x, d, i, s->turn));
        if (i == (x->own > 0 ? x->own : 0)) {
            d->row->state = d->seen[i].rank.state;
            d->row->runs = d->seen[i].rank.runs;
            d->row->memory = d->row->first = s->memory;
        }
    }
    d->line->other = is_other(x, d);
    NEB_TRY(time_row(x, d));
    judge(x, d);
    count_bytes(x, d);
    return NEB_OK;
}

static neb_status add(struct lines *x, struct neb_planned *p, const struct neb_planner_layout *l, int bits)
{
    struct neb_planner_row *row;
    struct draft *d = NEB_NEW(struct draft);
    struct neb_planner_line *line = NEB_NEW(struct neb_planner_line);
    neb_status status = d && line ? neb__planner_add(p, l, &row)
                                  : neb__fail(NEB_ERR_NOMEM, "out of memory for a pipeline between sites");
    if (status != NEB_OK) {
        neb__free(line);
        neb__free(d);
        return status;
    }
    *line = (struct neb_planner_line){.cut = x->cut, .bits = bits};
    row->line = line;
    d->row = row;
    d->line = line;
    if (neb__planner_layout_check(&x->job.job, l) != NEB_OK) {
        const char *why = strstr(neb_last_error(), ": parallel");
        snprintf(row->why, sizeof row->why, "%.239s", why ? why + 2 : neb_last_error());
    } else if (x->cut.ring && (x->own <= 0 || x->o->costs->stated) && l->data > 1) {
        snprintf(row->why, sizeof row->why,
                 "the first site has both ends of the model: one copy of its stage");
    } else {
        status = fill(x, d);
        if (status != NEB_OK) snprintf(row->why, sizeof row->why, "%.239s", neb_last_error());
    }
    neb__free(d);
    return status == NEB_ERR_NOMEM ? status : NEB_OK;
}

/* ---- all rows ------------------------------------------------------------------------------------------------- */

static neb_status add_bits(struct lines *x, struct neb_planned *p, const struct neb_planner_layout *l)
{
    const int fixed = (int)x->job.job.wan.bits;
    NEB_TRY(add(x, p, l, fixed ? fixed : 8));
    return fixed ? NEB_OK : add(x, p, l, 4);
}

/* Copies of a stage, and ranks that share its layers. */
static neb_status add_of_ranks(struct lines *x, struct neb_planned *p, int ranks)
{
    const struct neb_planner_place *at = &x->o->place;
    const int near = at->near < ranks ? at->near : ranks;
    for (int t = 1; t <= near; t++) {
        if (ranks % t) continue;
        struct neb_planner_layout l = {.data = ranks / t,
                                       .tensor = t,
                                       .pipeline = 1,
                                       .threads = neb__planner_threads(x->o->data->job, near)};
        for (l.zero = 0; l.zero <= (l.data > 1 ? 1 : 0); l.zero++) NEB_TRY(add_bits(x, p, &l));
    }
    return NEB_OK;
}

static neb_status add_all(struct lines *x, struct neb_planned *p)
{
    const struct neb_job *j = x->o->data->job;
    int counts[16];
    if (x->o->only) return add_bits(x, p, x->o->only);
    if (!x->o->costs->stated && (!j->parallel.automatic || x->own < 0)) {
        const struct neb_planner_layout own = neb__planner_layout_of(j);
        return add_bits(x, p, &own);
    }
    const int n = neb__planner_rank_counts(&x->o->place, counts, 16);
    for (int i = 0; i < n; i++) NEB_TRY(add_of_ranks(x, p, counts[i]));
    return NEB_OK;
}

static neb_status cut_model(struct lines *x)
{
    const int64_t n = neb__stage_layers(&x->arch);
    NEB_TRY(neb__planner_cut(&x->job.data, &x->cut));
    x->share = NEB_NEW_ARRAY(double, (size_t)n);
    return x->share ? neb__trained_layers(&x->job.data, x->share, n)
                    : neb__fail(NEB_ERR_NOMEM, "out of memory for a pipeline between sites");
}

neb_status neb__planner_lines(const struct neb_planner_order *o, struct neb_planned *p)
{
    const struct neb_job *j = o->data->job;
    const struct neb_planner_layout own = neb__planner_layout_of(j);
    struct neb_planner_row *row;
    if (j->n_sites < 2 || !neb__planner_can_be_cut(j)) return NEB_OK;
    struct lines *x = NEB_NEW(struct lines);
    if (!x) return neb__fail(NEB_ERR_NOMEM, "out of memory for a pipeline between sites");
    x->o = o;
    x->own = j->at;
    neb__planner_job(o->data, &own, &x->job);
    x->job.job.plan = NEB_STRATEGY_PIPELINE;
    const bool before = neb__log_hush(true);
    neb_status status = neb__model_config_check(&o->data->models.model, &x->arch);
    for (int i = 0; status == NEB_OK && i < j->n_sites; i++) status = neb__planner_site(j, i, &x->said[i]);
    const neb_status cut = status == NEB_OK ? cut_model(x) : status;
    neb__log_hush(before);
    if (cut == NEB_ERR_NOMEM) status = cut;
    if (status == NEB_OK && cut == NEB_OK) {
        status = add_all(x, p);
    } else if (status == NEB_OK) { /* without a line it is one of no cut */
        status = neb__planner_add(p, &own, &row);
        if (status == NEB_OK) snprintf(row->why, sizeof row->why, "%.239s", neb_last_error());
        if (status == NEB_OK) row->uncut = true;
    }
    neb__free(x->share);
    neb__free(x);
    return status;
}

/* ---- words ---------------------------------------------------------------------------------------------------- */

void neb__planner_row_text(const struct neb_planner_row *row, char *out, size_t size)
{
    char layout[96], cut[64];
    neb__planner_layout_text(&row->layout, layout, sizeof layout);
    if (!row->line) {
        snprintf(out, size, "%s%s", row->uncut ? "pipeline, " : "", layout);
        return;
    }
    const struct neb_planner_line *l = row->line;
    neb__planner_cut_text(&l->cut, cut, sizeof cut);
    const bool alone = neb__planner_ranks(&row->layout) == 1;
    snprintf(out, size, "pipeline %s, %s%d%s%s", cut, l->bits > 8 ? "fp" : "int", l->bits, alone ? "" : ", ",
             alone ? "" : layout);
}
