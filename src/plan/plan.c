/* plan.c: see plan.h. */
#include "plan/plan.h"
#include "base/mem.h"
#include "base/log.h"
#include "plan/forecast.h"
#include "plan/line.h"
#include "plan/measure.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS_MOST = 4096, COUNTS_MOST = 16, ZERO_MOST = 3 };

int neb__planner_rank_counts(const struct neb_planner_place *place, int *out, int most)
{
    int n = 0;
    if (place->exactly) {
        out[n++] = place->slots;
        return n;
    }
    for (int r = 1; r < place->slots && n < most - 1; r *= 2) out[n++] = r;
    out[n++] = place->slots;
    return n;
}

/* ---- candidates ----------------------------------------------------------------------------------------------- */

neb_status neb__planner_add(struct neb_planned *p, const struct neb_planner_layout *l,
                            struct neb_planner_row **out)
{
    struct neb_planner_row *row = neb__realloc(p->row, (size_t)(p->rows + 1) * sizeof *row);
    if (!row) return neb__fail(NEB_ERR_NOMEM, "out of memory for %d layouts", p->rows + 1);
    p->row = row;
    *out = &row[p->rows++];
    **out = (struct neb_planner_row){.layout = *l};
    return NEB_OK;
}

static neb_status add(struct neb_planned *p, const struct neb_planner_layout *l)
{
    struct neb_planner_row *row;
    return p->rows < ROWS_MOST ? neb__planner_add(p, l, &row) : NEB_OK;
}

/* The ways of sharing the state. State on the host saves a device's memory: on the CPU it would save nothing. */
static neb_status add_states(struct neb_planned *p, struct neb_planner_layout l, bool host)
{
    const int zeros = l.data > 1 ? ZERO_MOST : 0;
    for (l.zero = 0; l.zero <= zeros; l.zero++)
        for (int kind = 0; kind <= (host ? 0 : NEB_OFFLOAD_OPTIMIZER); kind++) {
            l.offload = (enum neb_offload_kind)kind;
            NEB_TRY(add(p, &l));
        }
    return NEB_OK;
}

static neb_status add_of_ranks(struct neb_planned *p, const struct neb_planner_order *o, int ranks)
{
    const struct neb_job *job = o->data->job;
    const int near = o->place.near < ranks ? o->place.near : ranks;
    for (int t = 1; t <= ranks; t++)
        for (int pipe = 1; ranks % t == 0 && pipe <= ranks / t; pipe++) {
            if (ranks / t % pipe || (t > near && t > 1))
                continue; /* a team exchanges too much for a network */
            struct neb_planner_layout l = {.data = ranks / t / pipe,
                                           .tensor = t,
                                           .pipeline = pipe,
                                           .threads = neb__planner_threads(job, near)};
            NEB_TRY(add_states(p, l, o->place.host));
            l.sequence = true;
            if (t > 1) NEB_TRY(add(p, &l));
        }
    return NEB_OK;
}

static neb_status candidates(struct neb_planned *p, const struct neb_planner_order *o)
{
    int counts[COUNTS_MOST];
    const int n = neb__planner_rank_counts(&o->place, counts, COUNTS_MOST);
    if (o->only) return add(p, o->only);
    for (int i = 0; i < n; i++) NEB_TRY(add_of_ranks(p, o, counts[i]));
    return NEB_OK;
}

/* ---- the end of the job --------------------------------------------------------------------------------------- */

static neb_status to_the_end(const struct neb_planner_order *o, const struct neb_planned *p,
                             struct neb_planner_row *row)
{
    const struct neb_job *job = o->data->job;
    double steps = (double)job->train.steps;
    if (job->train.minutes > 0 && row->step_s > 0) steps = 60 * job->train.minutes / row->step_s;
    if (job->n_sites < 2 || job->plan != NEB_STRATEGY_REPLICA) {
        row->total_s = steps * row->step_s;
        return NEB_OK;
    }
    NEB_TRY(neb__wan_replica(job, &o->line, (double)p->values, row->step_s, steps, &row->wan));
    row->total_s = steps * row->step_s;
    row->cost = row->wan.bytes * o->price;
    row->cost_all = row->cost * row->wan.sites;
    return NEB_OK;
}

/* Seconds of the tokens of one step: the sites of a replica make theirs at the same time. */
static double pace(const struct neb_planner_row *r)
{
    return r->line ? r->step_s * r->line->cut.sites : r->step_s;
}

/* Fast ones first; of equal ones those with fewer processes, then those that need less. */
static int faster(const void *a, const void *b)
{
    const struct neb_planner_row *x = a, *y = b;
    const int good = y->fits && y->timed, better = x->fits && x->timed;
    if (better != good) return good - better;
    const bool a_other = x->line && x->line->other, b_other = y->line && y->line->other;
    if (better && a_other != b_other) return a_other - b_other;
    if (better && pace(x) != pace(y)) return pace(x) < pace(y) ? -1 : 1;
    if (x->fits != y->fits) return y->fits - x->fits;
    if (neb__planner_ranks(&x->layout) != neb__planner_ranks(&y->layout))
        return neb__planner_ranks(&x->layout) - neb__planner_ranks(&y->layout);
    return (x->memory > y->memory) - (x->memory < y->memory);
}

/* All layouts of the whole model at this site. */
static neb_status whole_models(const struct neb_planner_order *o, struct neb_planned *p)
{
    NEB_TRY(candidates(p, o));
    for (int i = 0; i < p->rows; i++) NEB_TRY(neb__planner_forecast(o, &p->row[i], &p->tokens, &p->values));
    for (int i = 0; i < p->rows; i++)
        if (p->row[i].fits && p->row[i].timed) NEB_TRY(to_the_end(o, p, &p->row[i]));
    return NEB_OK;
}

/* Where no layout of the whole model was looked at. */
static neb_status look_at_model(const struct neb_planner_order *o, struct neb_planned *p)
{
    const struct neb_planner_layout one = {.data = 1, .tensor = 1, .pipeline = 1};
    struct neb_planner_job copy;
    struct neb_rehearsal seen;
    if (p->values) return NEB_OK;
    neb__planner_job(o->data, &one, &copy);
    copy.job.plan = NEB_STRATEGY_REPLICA;
    const bool before = neb__log_hush(true);
    neb_status status = neb__planner_rehearse(&copy.data, &one, &(struct neb_layout_place){0}, &seen);
    neb__log_hush(before);
    if (status != NEB_OK) return status == NEB_ERR_NOMEM ? status : NEB_OK; /* each row says what is wrong */
    p->tokens = seen.tokens;
    p->values = seen.values;
    return NEB_OK;
}

neb_status neb__planner_make(const struct neb_planner_order *o, struct neb_planned *out)
{
    struct neb_planned p = {0};
    const enum neb_strategy plan = o->data->job->plan;
    neb_status status = plan == NEB_STRATEGY_PIPELINE ? NEB_OK : whole_models(o, &p);
    if (status == NEB_OK && (plan == NEB_STRATEGY_PIPELINE || (o->lines && plan == NEB_STRATEGY_REPLICA)))
        status = neb__planner_lines(o, &p);
    if (status == NEB_OK) status = look_at_model(o, &p);
    for (int i = 0; i < p.rows; i++) p.fit += p.row[i].fits && p.row[i].timed;
    if (status != NEB_OK) {
        neb__planner_free(&p);
        return status;
    }
    if (p.rows) qsort(p.row, (size_t)p.rows, sizeof *p.row, faster);
    *out = p;
    return NEB_OK;
}

void neb__planner_free(struct neb_planned *p)
{
    for (int i = 0; i < p->rows; i++) neb__free(p->row[i].line);
    neb__free(p->row);
    *p = (struct neb_planned){0};
}
