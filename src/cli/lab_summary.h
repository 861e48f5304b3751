/* lab_summary.h: the end of a run in the laboratory. */
#ifndef NEB_CLI_LAB_SUMMARY_H
#define NEB_CLI_LAB_SUMMARY_H

#include "job/job.h"

/* Prints throughput, bytes and where the time went, a line a site, and writes OUT/report.html. */
neb_status neb__lab_summary(const struct neb_job *job);

#endif
