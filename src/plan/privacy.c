/* privacy.c: see privacy.h. The noise of an update has a deviation in every value, so its length grows with the square root of
 * their number, while the update itself is at most as long as the clip. Sites average their updates, which takes the square root of
 * their number off. A step of unit sample averages as many samples. */
#include "plan/privacy.h"
#include "plan/wan.h"
#include "privacy/accountant.h"

#include <math.h>
#include <string.h>

static neb_status count_samples(const struct neb_data *data, double *out)
{
    struct neb_batches *s;
    NEB_TRY(neb__data_samples(data, &s));
    *out = (double)neb__batches_samples(s);
    neb__batches_free(s);
    return NEB_OK;
}

neb_status neb__planner_privacy(const struct neb_data *data, double values, struct neb_planner_privacy *out)
{
    const struct neb_job *j = data->job;
    const struct neb_job_privacy *c = &j->privacy;
    struct neb_planner_privacy p = {.asked = strcmp(c->unit, "none") != 0, .delta = c->delta, .rate = 1};
    *out = p;
    if (!p.asked) return NEB_OK;
    p.site = !strcmp(c->unit, "site");
    p.releases = p.site ? ceil((double)j->train.steps / (double)j->wan.interval) + 1 : (double)j->train.steps;
    double together = fmax(1, neb__wan_sites(j));
    if (!p.site) {
        double samples;
        NEB_TRY(count_samples(data, &samples));
        p.rate = fmin(1, (double)c->samples / fmax(1, samples));
        together = (double)c->samples * (double)c->samples;
    }
    p.noise = c->noise;
    if (!(p.noise > 0)) NEB_TRY(neb__privacy_noise(c->epsilon, p.rate, p.releases, c->delta, &p.noise));
    NEB_TRY(
        neb__privacy_epsilon(&(struct neb_privacy_step){p.noise, p.rate}, p.releases, c->delta, &p.epsilon));
    p.ratio = p.noise * sqrt(values / together);
    p.usable = !p.site || p.ratio <= 1;
    *out = p;
    return NEB_OK;
}
