/* lab_summary.h: the end of a run in the laboratory. */
#ifndef NEB_CLI_LAB_SUMMARY_H
#define NEB_CLI_LAB_SUMMARY_H

#include "job/job.h"
#include "watch/status.h"

/* Prints throughput, bytes and where the time went, a line a site, writes OUT/report.html and says what to run next. Sites
 * that are programs of the user's have no measurements: their last status is printed instead. */
neb_status neb__lab_summary(const struct neb_job *job, bool scripts);

/* The last status that site i wrote, of its training or of its session; false: none. */
bool neb__lab_status(const struct neb_job *job, int i, struct neb_status_file *out);

#endif
