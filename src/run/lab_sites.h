/* lab_sites.h: folders, keys and a roster for all sites of a job on one machine. */
#ifndef NEB_RUN_LAB_SITES_H
#define NEB_RUN_LAB_SITES_H

#include "job/job.h"

/* The folder of a site below `dir`. */
typedef void neb_site_folder_fn(const struct neb_job *job, const char *dir, int site, char *out, size_t size);

/* Makes the folder of every site of the job, with a key and the roster of one run of them. address[i] is
 * HOST:PORT of site i, or several addresses with blanks between them. The parents of the folders exist. Keys and rosters that are there already stay, so a run can go on.
 *   NEB_ERR_CONFIG  DIR holds a run of other sites or addresses; the message says what to do
 *   NEB_ERR_INVALID (the path is too long), NEB_ERR_IO, NEB_ERR_NOMEM */
neb_status neb__sites_make(const struct neb_job *job, const char *dir, neb_site_folder_fn *folder_of,
                           char *const *address);

/* In the laboratory site i keeps its key and roster in the first folder, and writes its results to the second. */
void neb__lab_site_folder(const struct neb_job *job, const char *dir, int site, char *out, size_t size);
void neb__lab_site_out(const struct neb_job *job, const char *dir, int site, char *out, size_t size);

#endif
