/* lab_sites.h: folders, keys and a roster for all sites of a job on one machine. */
#ifndef NEB_RUN_LAB_SITES_H
#define NEB_RUN_LAB_SITES_H

#include "job/job.h"

/* Makes DIR/NAME/site for every site of the job, with a key and the roster of one run of them. address[i] is
 * HOST:PORT of site i. Keys and rosters that are there already stay, so a run can go on.
 *   NEB_ERR_CONFIG  DIR holds a run of other sites or addresses; the message says what to do
 *   NEB_ERR_INVALID (the path is too long), NEB_ERR_IO, NEB_ERR_NOMEM */
neb_status neb__lab_sites_make(const struct neb_job *job, const char *dir, char *const *address);

/* Site i keeps its key and roster in the first folder, and writes its results to the second. */
void neb__lab_site_folder(const struct neb_job *job, const char *dir, int site, char *out, size_t size);
void neb__lab_site_out(const struct neb_job *job, const char *dir, int site, char *out, size_t size);

#endif
