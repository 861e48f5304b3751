/* strategy.c: see strategy.h. All sites must come to the same strategy, so `auto` looks only at what the job says for all of
 * them: sites[].train.memory, else train.memory. */
#include "plan/strategy.h"
#include "base/log.h"
#include "base/opts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct neb_opt memory_table[] = {
    NEB_OPT_VALUE("memory", NEB_OPT_BYTES, "0", NULL, "of a device"), NEB_OPT_END};

static int64_t memory_at(const struct neb_job *job, const char *path)
{
    int64_t bytes = 0;
    for (int i = 0; i < job->doc.n; i++)
        if (!strcmp(job->doc.list[i].path, path) &&
            neb__opts_set(memory_table, &bytes, "memory", job->doc.list[i].value) != NEB_OK)
            bytes = 0;
    return bytes;
}

/* 0: no site has a limit. */
static double least_room(const struct neb_job *job, int *site)
{
    const double common = (double)memory_at(job, "train.memory");
    double least = 0;
    for (int i = 0; i < job->n_sites; i++) {
        char path[48];
        snprintf(path, sizeof path, "sites[%d].train.memory", i);
        const double own = (double)memory_at(job, path), here = own > 0 ? own : common;
        if (here > 0 && (!(least > 0) || here < least)) least = here, *site = i;
    }
    return least;
}

bool neb__planner_strategy_open(const struct neb_job *job)
{
    int site;
    if (strcmp(job->strategy, "auto") || job->n_sites < 2 || job->plan != NEB_STRATEGY_REPLICA) return false;
    for (int i = 0; i < job->n_sites; i++)
        if (job->site[i].does != NEB_ROLE_TRAIN) return false;
    return least_room(job, &site) > 0;
}

neb_status neb__planner_strategy(const struct neb_data *data, const struct neb_planner_place *place,
                                 bool machine, struct neb_planner_strategy *out)
{
    const struct neb_job *job = data->job;
    struct neb_planner_strategy s = {.site = -1};
    struct neb_planned plan;
    const struct neb_planner_costs none = {0};
    const struct neb_planner_layout own = neb__planner_layout_of(job);
    struct neb_planner_order o = {.data = data, .costs = &none, .place = *place};
    o.place.cap = 0;
    if (!job->parallel.automatic) o.only = &own;
    NEB_TRY(neb__planner_make(&o, &plan));
    s.needs = HUGE_VAL;
    for (int i = 0; i < plan.rows; i++)
        if (plan.row[i].memory > 0) s.needs = fmin(s.needs, plan.row[i].memory);
    neb__planner_free(&plan);
    s.room = least_room(job, &s.site);
    if (!(s.room > 0)) s.room = HUGE_VAL;
    const double here = place->host ? place->machine : place->device;
    if (machine && here < s.room) s.room = here, s.site = -1;
    s.fits = s.needs <= s.room;
    *out = s;
    return NEB_OK;
}

neb_status neb__planner_stages(const struct neb_data *data, double *bytes)
{
    const struct neb_planner_layout l = {.data = 1, .tensor = 1, .pipeline = data->job->n_sites};
    if (data->job->site[0].layers > 0) return NEB_ERR_UNSUPPORTED;
    const bool before = neb__log_hush(true);
    neb_status status = NEB_OK;
    for (int i = 0; status == NEB_OK && i < l.pipeline; i++) {
        struct neb_rehearsal r;
        status = neb__planner_rehearse(data, &l, &(struct neb_layout_place){.pipeline = i}, &r);
        if (status == NEB_OK) bytes[i] = (double)(r.state + r.runs);
    }
    neb__log_hush(before);
    return status;
}
