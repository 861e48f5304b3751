/* privacy.h: what a job's `privacy` will cost, by the accountant. */
#ifndef NEB_PLAN_PRIVACY_H
#define NEB_PLAN_PRIVACY_H

#include "task/data.h"

struct neb_planner_privacy {
    bool asked, site; /* site: unit site, else unit sample */
    double epsilon, delta, noise, rate, releases;
    double ratio; /* length of the noise in the mean update over that of an update; unit sample: of a step */
    bool usable;  /* the update can be seen through the noise */
};

/* values: trained parameters. asked is false where the job has no `privacy`. NEB_ERR_RANGE: no noise keeps to the budget */
neb_status neb__planner_privacy(const struct neb_data *data, double values, struct neb_planner_privacy *out);

#endif
