/* lab_summary.h: the end of a run in the laboratory. */
#ifndef NEB_CLI_LAB_SUMMARY_H
#define NEB_CLI_LAB_SUMMARY_H

#include "job/job.h"
#include "watch/report.h"
#include "watch/status.h"

/* Prints throughput, bytes and where the time went, a line a site, writes OUT/report.html and says what to run next. Sites
 * that are programs of the user's have no measurements: their last status is printed instead. */
neb_status neb__lab_summary(const struct neb_job *job, bool scripts);

/* Reads what all sites of the job measured. Owes a free of *r, also after a failure. */
neb_status neb__lab_report(const struct neb_job *job, struct neb_report *r);

/* The last status that site i wrote, of its training or of its session; false: none. */
bool neb__lab_status(const struct neb_job *job, int i, struct neb_status_file *out);
/* When it was written, by this machine's clock (unix seconds), whatever clock the site has; 0: there is none. */
double neb__lab_status_time(const struct neb_job *job, int i);

#endif
