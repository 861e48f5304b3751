/* verb_privacy.c: `nebula-i privacy`: what a setting will cost, before anything is trained.
 *
 *     nebula-i privacy epsilon --noise 1.1 --rounds 14063 --sample-rate 0.00427 --delta 1e-5
 *     nebula-i privacy noise --epsilon 8 --rounds 1000 --sample-rate 0.01 --delta 1e-5
 *
 * The number stands alone on the standard output. Explanations go to the standard error. */
#include "cli/verb.h"
#include "privacy/accountant.h"

#include <math.h>
#include <stdio.h>

struct options {
    double noise, epsilon, rounds, rate, delta, values, sites;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, noise, NEB_OPT_REAL, "0", NULL,
            "epsilon: deviation of the noise, as a multiple of the clip"),
    NEB_OPT(struct options, epsilon, NEB_OPT_REAL, "0", NULL, "noise: what may be spent"),
    NEB_OPT(struct options, rounds, NEB_OPT_REAL, "1", NULL,
            "releases: steps of a site (unit: sample) or sweeps over the model (unit: site)"),
    NEB_OPT_AS(struct options, rate, "sample-rate", NEB_OPT_REAL, "1", NULL,
               "probability with which a sample takes part in a step; 1 for unit: site"),
    NEB_OPT(struct options, delta, NEB_OPT_REAL, "1e-5", NULL, "the probability that epsilon does not hold"),
    NEB_OPT(struct options, values, NEB_OPT_REAL, "0", NULL,
            "noise: parameters of the model; says how the noise compares with an update"),
    NEB_OPT(struct options, sites, NEB_OPT_REAL, "1", NULL, "noise: sites whose updates are averaged"),
    NEB_OPT_END,
};

static neb_status epsilon(struct neb_call *c)
{
    const struct options *o = c->options;
    double cost;
    NEB_TRY(neb__privacy_epsilon(&(struct neb_privacy_step){o->noise, o->rate}, o->rounds, o->delta, &cost));
    printf("%.6g\n", cost);
    return NEB_OK;
}

static void compare(const struct options *o, double noise)
{
    double ratio = noise * sqrt(o->values / fmax(1, o->sites));
    const char *advice = "";
    if (ratio > 1)
        advice = ": for unit: site that is too much to learn from; protect samples instead (privacy.unit: "
                 "sample), or train fewer values (peft)";
    fprintf(stderr,
            "with %.0f values and %.0f sites the noise in the mean update is %.3g times as long as an update "
            "may be%s\n",
            o->values, fmax(1, o->sites), ratio, advice);
}

static neb_status noise(struct neb_call *c)
{
    const struct options *o = c->options;
    double least;
    NEB_TRY(neb__privacy_noise(o->epsilon, o->rate, o->rounds, o->delta, &least));
    double digits = pow(10, 5 - floor(log10(least))); /* what is printed must be enough, too */
    printf("%.6g\n", ceil(least * digits) / digits);
    if (o->values > 0) compare(o, least);
    return NEB_OK;
}

static const struct neb_verb parts[] = {
    {.name = "epsilon",
     .args = "--noise Z --rounds N [--sample-rate Q] [--delta D]",
     .help = "what a setting will cost",
     .run = epsilon},
    {.name = "noise",
     .args = "--epsilon E --rounds N [--sample-rate Q] [--delta D]",
     .help = "the least noise that keeps to a budget",
     .run = noise},
    {0},
};

const struct neb_verb neb__verb_privacy = {
    .name = "privacy",
    .args = "",
    .help = "what a privacy setting costs, or needs",
    .options = {{table, 0}},
    .size = sizeof(struct options),
    .parts = parts,
};
