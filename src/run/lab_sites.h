/* lab_sites.h: folders, keys and a roster for all sites of a job on one machine. */
#ifndef NEB_RUN_LAB_SITES_H
#define NEB_RUN_LAB_SITES_H

#include "job/job.h"

/* DIR/NAME/site for every site of the job, with a key and the roster of one run of them; address[i]:
 * HOST:PORT of site i. What is there already stays, so a run can go on.
 *   NEB_ERR_CONFIG  DIR holds a run of other sites or addresses: what to do is said; NEB_ERR_IO, NEB_ERR_NOMEM */
neb_status neb__lab_sites_make(const struct neb_job *job, const char *dir, char *const *address);

/* Where site i keeps its key and roster, and what it writes. */
void neb__lab_site_folder(const struct neb_job *job, const char *dir, int site, char *out, size_t size);
void neb__lab_site_out(const struct neb_job *job, const char *dir, int site, char *out, size_t size);

#endif
