/* privacy_job.c: the rule that a job's `privacy` means for a session with unit site. */
#include "base/log.h"
#include "job/job.h"
#include "run/session.h"

#include <math.h>

/* A sweep more than the steps need: the end of a run sends once again. */
static double sweeps_of(const struct neb_job *j)
{
    return ceil((double)j->train.steps / (double)j->wan.interval) + 1;
}

neb_status neb__session_site_rule(const struct neb_job *j, struct neb_privacy_rule *out)
{
    const struct neb_job_privacy *c = &j->privacy;
    double sweeps = sweeps_of(j), noise = c->noise, cost;
    if (!(noise > 0)) NEB_TRY(neb__privacy_noise(c->epsilon, 1, sweeps, c->delta, &noise));
    NEB_TRY(neb__privacy_epsilon(&(struct neb_privacy_step){noise, 1}, sweeps, c->delta, &cost));
    neb__info(
        "privacy: %.0f sweeps over the model will cost epsilon %.4g at delta %.3g with noise %.4g times the "
        "clip",
        sweeps, cost, c->delta, noise);
    if (c->epsilon > 0 && cost > c->epsilon)
        return neb__doc_fail(
            &j->doc, "privacy.noise",
            "privacy: %.0f sweeps with noise %.4g would cost epsilon %.4g, more than %.4g; leave "
            "`noise` out, or exchange less often (wan.interval)",
            sweeps, noise, cost, c->epsilon);
    *out = (struct neb_privacy_rule){.unit = NEB_PRIVACY_SITE,
                                     .step = {noise, 1},
                                     .clip = c->clip,
                                     .delta = c->delta,
                                     .limit = c->epsilon,
                                     .block = 1};
    return NEB_OK;
}
