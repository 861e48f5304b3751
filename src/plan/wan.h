/* wan.h: what crosses the line between sites, foreseen.
 *
 * With strategy replica the controller of src/round/rate.c is asked for every interval of the run, on a line that carries what
 * is stated. With strategy pipeline every token's activations cross the cut, and their gradients come back. */
#ifndef NEB_PLAN_WAN_H
#define NEB_PLAN_WAN_H

#include "job/job.h"

struct neb_wan_line {
    double rate, rtt; /* bits a second each way, seconds; rate 0: not stated */
};

/* "100mbit,50ms". NEB_ERR_CONFIG */
neb_status neb__wan_line_read(const char *text, struct neb_wan_line *out);

struct neb_wan_forecast {
    int sites;         /* that train; below 2: nothing crosses */
    double bytes;      /* that leave one site until the job's end */
    double step_bytes; /* of that, in the mean of a step */
    double interval;   /* H at the end */
    char rung[16];     /* most used */
    char reason[256];  /* of the controller's last decision */
    double held;       /* share of the intervals in which the line was too thin for any update */
};

/* values: trained parameters. Of a site whose steps take step_s. */
neb_status neb__wan_replica(const struct neb_job *job, const struct neb_wan_line *line, double values,
                            double step_s, double steps, struct neb_wan_forecast *out);

/* What a line carries of a pipeline between the sites (plan/line.h has its steps and its bytes). */
struct neb_wan_pipeline {
    double bits;          /* of a value with its scales */
    double line_tokens_s; /* that the line carries: 0.92 line / (hidden bits) */
    double tokens_s;      /* the smaller of that and of what the sites compute */
    double replica_tokens_s;
};

/* tokens_s: what one site alone trains. */
void neb__wan_pipeline(const struct neb_job *job, const struct neb_wan_line *line, int sites, double tokens_s,
                       int bits, struct neb_wan_pipeline *out);

int neb__wan_sites(const struct neb_job *job); /* that train */

#endif
