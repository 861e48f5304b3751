/* lab_compare.h: a run with faults beside the same run without. */
#ifndef NEB_CLI_LAB_COMPARE_H
#define NEB_CLI_LAB_COMPARE_H

#include "cli/lab_chaos.h"
#include "job/job.h"
#include "watch/report.h"

/* One of the two runs. An all-zero one is empty; read and measured it owes a free. */
struct neb_lab_arm {
    double seconds; /* from the start of the sites to the end of the last */
    double tokens;  /* of all sites, committed */
    struct {
        double t, tokens; /* committed so far; t: seconds since the sites were started */
    } first, last;        /* commits that were seen */
    double looked;        /* when */
    enum { NEB_ROOT_ONE, NEB_ROOT_UNKNOWN, NEB_ROOT_DIFFERENT } root; /* of the sites' states */
    struct neb_series trained, loss; /* tokens of all sites over time; loss over these tokens */
    bool held_out;                   /* the loss is that of held-out text, else of the sites' own batches */
};

/* For a tick: notes what is committed by now. */
void neb__lab_arm_watch(struct neb_lab_arm *a, const struct neb_job *job, double now);

/* Reads what the sites of the job left in job->out. NEB_ERR_NOMEM, NEB_ERR_CORRUPT */
neb_status neb__lab_arm_read(const struct neb_job *job, struct neb_lab_arm *out);
void neb__lab_arm_free(struct neb_lab_arm *a);

struct neb_lab_pair {
    const struct neb_job *job; /* for the sites' names */
    const struct neb_lab_arm *calm, *chaos;
    const struct neb_chaos_fault *fault; /* (faults) */
    int faults;
};

/* Prints both runs, the faults and the goodput (useful tokens a second against the run without faults), writes the page PATH
 * and, if json is not NULL, prints the figures there as JSON. */
neb_status neb__lab_compare(const struct neb_lab_pair *p, const char *path, FILE *json);

#endif
