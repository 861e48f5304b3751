/* verb_plan.c: `nebula-i plan JOB.yaml`: the layouts that the site could have, before anything is trained. */
#include "cli/plan_print.h"
#include "cli/verb.h"
#include "plan/hardware.h"
#include "plan/record.h"
#include "train/plan_here.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct options {
    char *site, *wan, *scale, *price;
    bool json, again;
    int64_t ranks, top;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, site, NEB_OPT_TEXT, "", NULL, "which of the job's sites this is"),
    NEB_OPT(struct options, wan, NEB_OPT_TEXT, "", NULL,
            "the line between sites: rate and round trip, such as 100mbit,50ms"),
    NEB_OPT(struct options, price, NEB_OPT_TEXT, "", NULL, "of what leaves a site, such as 0.08/GB"),
    NEB_OPT(struct options, scale, NEB_OPT_TEXT, "", NULL,
            "hardware that is not here, from stated constants, such as 1024xh200"),
    NEB_OPT(struct options, ranks, NEB_OPT_INT, "0", NULL,
            "the most processes; 0: one for each core, device or task of Slurm",
            NEB_OPT_RANGE(0, NEB_JOB_RANKS)),
    NEB_OPT(struct options, top, NEB_OPT_INT, "5", NULL, "layouts to show", NEB_OPT_RANGE(1, 1000)),
    NEB_OPT(struct options, again, NEB_OPT_BOOL, "no", NULL, "measure again what was measured before"),
    NEB_OPT(struct options, json, NEB_OPT_BOOL, "no", NULL, "for programs"),
    NEB_OPT_END,
};

/* "0.08/GB" becomes the price of a byte. */
static neb_status read_price(const char *text, double *out)
{
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"/GB", 1e9}, {"/GiB", 0x1p30}, {"/TB", 1e12}, {"/TiB", 0x1p40}, {"/MB", 1e6}};
    char *end;
    *out = 0;
    if (!text) return NEB_OK;
    const double price = strtod(text, &end);
    for (size_t i = 0; end != text && isfinite(price) && price >= 0 && i < sizeof units / sizeof *units; i++)
        if (!strcmp(end, units[i].name)) {
            *out = price / units[i].bytes;
            return NEB_OK;
        }
    return neb__fail(NEB_ERR_CONFIG, "--price %s: name a number and a unit, such as 0.08/GB", text);
}

static neb_status plan(const struct options *o, const struct neb_job *job)
{
    struct neb_data data;
    struct neb_planner_costs costs;
    struct neb_planned made = {0};
    struct neb_planner_order order = {.data = &data, .costs = &costs, .lines = true};
    struct neb_planner_words words = {.plan = &made, .order = &order, .shown = (int)o->top, .json = o->json};
    NEB_TRY(read_price(o->price, &order.price));
    if (o->wan) NEB_TRY(neb__wan_line_read(o->wan, &order.line));
    NEB_TRY(neb__data_prepare_plan(job, &data));
    neb_status status = neb__data_wanted(&data, "a plan", "run nebula-i plan at a site that has it");
    if (status == NEB_OK)
        status = o->scale ? neb__hardware_scale(o->scale, &data, &order.place, &costs)
                          : neb__planner_find_place(job, (int)o->ranks, &order.place);
    if (status == NEB_OK && !o->scale)
        status = neb__planner_find_costs(&data, &order.place, o->again, &costs);
    if (status == NEB_OK) status = neb__planner_make(&order, &made);
    if (status == NEB_OK) status = neb__planner_privacy(&data, (double)made.values, &words.privacy);
    if (status == NEB_OK && job->n_sites > 1)
        status = neb__planner_strategy_here(&data, &order.place, &made, &words.strategy);
    if (status == NEB_OK) neb__planner_print(&words);
    if (status == NEB_OK && !o->scale) status = neb__planner_record(job->out, &made);
    neb__planner_free(&made);
    neb__data_free(&data);
    return status;
}

static neb_status run(struct neb_call *c)
{
    const struct options *o = c->options;
    struct neb_job job;
    NEB_TRY(neb__job_read_as(c->words[0], o->site, c->words + 1, c->n - 1, &job));
    neb_status status = o->site ? neb__job_at(&job, o->site) : NEB_OK;
    if (status == NEB_OK) status = neb__planner_is_probe() ? neb__planner_probe(&job) : plan(o, &job);
    neb__job_free(&job);
    return status;
}

const struct neb_verb neb__verb_plan = {
    .name = "plan",
    .args =
        "JOB.yaml [--site NAME] [--wan LINE] [--price P/GB] [--scale NxKIND] [--json] [section.key=value …]",
    .help = "which layout suits a job: memory, time, bytes and cost, foreseen",
    .about =
        "Memory is exact: each layout is rehearsed without computing. Time comes from one measured layer and "
        "measured\n"
        "exchanges, which are kept beside the job's text. `parallel: auto` in a job takes the first layout.",
    .options = {{table, 0}},
    .size = sizeof(struct options),
    .least = 1,
    .missing = "give a job file",
    .most = NEB_ANY_NUMBER,
    .run = run,
};
