/* strategy.c: see strategy.h. */
#include "plan/strategy.h"
#include "base/log.h"
#include "plan/site.h"

#include <math.h>
#include <string.h>

static char the_cpu[] = "cpu", whole_values[] = "f32", half_values[] = "bf16";

bool neb__planner_strategy_limited(const struct neb_job *job)
{
    struct neb_planner_site s;
    for (int i = 0; i < job->n_sites; i++)
        if (neb__planner_site(job, i, &s) == NEB_OK && s.memory > 0) return true;
    return false;
}

bool neb__planner_strategy_open(const struct neb_job *job)
{
    if (strcmp(job->strategy, "auto") || job->n_sites < 2 || job->plan != NEB_STRATEGY_REPLICA) return false;
    for (int i = 0; i < job->n_sites; i++)
        if (job->site[i].does != NEB_ROLE_TRAIN) return false;
    return true;
}

bool neb__planner_can_be_cut(const struct neb_job *job)
{
    const char *positions = job->model.positions;
    if (!job->objective->stages || job->distill.teacher || job->distill.encoder) return false;
    if (strcmp(job->privacy.unit, "none") || strcmp(job->peft.frozen, "f32")) return false;
    return job->train.minutes <= 0 && job->train.average < 2 && (!positions || strcmp(positions, "relative"));
}

/* Some corpus belongs to one site: the batches of the others may have other shapes. */
static bool texts_differ(const struct neb_job *job)
{
    for (int i = 0; i < job->n_data; i++)
        if (job->data[i].site) return true;
    return false;
}

static neb_status needs_at(const struct neb_data *data, const struct neb_planner_site *s, double *out)
{
    struct neb_planner_job copy;
    struct neb_planner_layout l = s->layout;
    struct neb_rehearsal seen;
    l.threads = 1; /* a device's work memory grows with its threads */
    neb__planner_job(data, &l, &copy);
    copy.job.train.device = the_cpu;
    copy.job.train.dtype = s->half ? half_values : whole_values;
    copy.job.plan = NEB_STRATEGY_REPLICA;
    const bool before = neb__log_hush(true);
    neb_status status = neb__planner_rehearse_all(&copy.data, &l, &seen);
    neb__log_hush(before);
    if (status != NEB_OK) return neb__fail(status, "%s", neb_last_error());
    *out = (double)(seen.state + (texts_differ(data->job) ? 0 : seen.runs));
    return NEB_OK;
}

/* The site whose room is the smallest part of what it needs. */
neb_status neb__planner_strategy(const struct neb_data *data, struct neb_planner_strategy *out)
{
    struct neb_planner_strategy least = {.room = HUGE_VAL, .site = -1, .fits = true};
    for (int i = 0; i < data->job->n_sites; i++) {
        struct neb_planner_site s;
        double needs;
        NEB_TRY(neb__planner_site(data->job, i, &s));
        if (!(s.memory > 0)) continue;
        NEB_TRY(needs_at(data, &s, &needs));
        if (least.site >= 0 && s.memory / needs >= least.room / least.needs) continue;
        least = (struct neb_planner_strategy){needs, s.memory, i, needs <= s.memory, true};
    }
    *out = least;
    return NEB_OK;
}

/* Infinite: no layout of the whole model was looked at, or each was refused before. */
static double least_of(const struct neb_planned *p)
{
    double least = HUGE_VAL;
    for (int i = 0; i < p->rows; i++)
        if (!p->row[i].line && p->row[i].memory > 0) least = fmin(least, p->row[i].memory);
    return least;
}

/* Of the layouts that this site may have, the one that needs least. */
static neb_status least_here(const struct neb_data *data, const struct neb_planner_place *place,
                             double *needs)
{
    struct neb_planner_job copy;
    struct neb_planned plan;
    const struct neb_planner_costs none = {0};
    const struct neb_planner_layout own = neb__planner_layout_of(data->job);
    neb__planner_job(data, &own, &copy);
    copy.job.plan = NEB_STRATEGY_REPLICA;
    struct neb_planner_order o = {.data = &copy.data, .costs = &none, .place = *place};
    o.place.cap = 0;
    if (!data->job->parallel.automatic && !place->exactly) o.only = &own;
    NEB_TRY(neb__planner_make(&o, &plan));
    *needs = least_of(&plan);
    neb__planner_free(&plan);
    return NEB_OK;
}

neb_status neb__planner_strategy_here(const struct neb_data *data, const struct neb_planner_place *place,
                                      const struct neb_planned *made, struct neb_planner_strategy *out)
{
    const double room = place->host ? place->machine : place->device;
    struct neb_planner_strategy s;
    double needs = made ? least_of(made) : HUGE_VAL;
    NEB_TRY(neb__planner_strategy(data, &s));
    if (!isfinite(needs)) NEB_TRY(least_here(data, place, &needs));
    if (isfinite(needs) && (!s.known || (s.fits && room / needs < s.room / s.needs)))
        s = (struct neb_planner_strategy){needs, room, -1, needs <= room, true};
    *out = s;
    return NEB_OK;
}
