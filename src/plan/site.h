/* site.h: what a job says of one of its sites: its layout, its limits and its speed.
 *
 * Read from the job's text, never from the machine. So every site that reads a job finds the same of each of them. */
#ifndef NEB_PLAN_SITE_H
#define NEB_PLAN_SITE_H

#include "plan/layout.h"

struct neb_planner_site {
    struct neb_planner_layout layout; /* threads: train.threads; 0: as many as there are */
    bool automatic; /* parallel: auto: the layout is one process, until the site has chosen */
    double memory;  /* train.memory, bytes of a process; 0: no limit */
    double speed;   /* train.speed, rows a second; 0: no limit */
    bool half;      /* it computes in bf16 */
};

/* Settings of sites[i] come before those of all sites. A value that does not parse counts as the default. */
neb_status neb__planner_site(const struct neb_job *job, int i, struct neb_planner_site *out);

#endif
