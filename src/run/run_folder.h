/* run_folder.h: where a site's folder keeps a run.
 *
 *     FOLDER/run/NAME/     ledger, updates, snapshots and initial values of the run NAME
 *     FOLDER/run/          the same of the only run, where the roster was sealed by a version that had no names,
 *                          or the caller of neb_session_open() gives none
 *     FOLDER/run/status.json, FOLDER/run/orders/    of the site, whatever run it is in */
#ifndef NEB_RUN_RUN_FOLDER_H
#define NEB_RUN_RUN_FOLDER_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

enum { NEB_RUN_NAME_SIZE = 64 }; /* of a run's name, with its end */

/* The folder of a run. name: "" for a run without one. Characters that do not belong into a file's name are written as %XX.
 * NEB_ERR_INVALID: the path is too long. */
neb_status neb__run_folder(const char *site, const char *name, char *out, size_t size);

/* Whether the site's folder holds another run than the named one. */
bool neb__run_folder_has_other(const char *site, const char *name);

/* The folder of the run `name`; NULL: of the only run, or of the one that was written to last.
 * NEB_ERR_NOTFOUND: there is none. */
neb_status neb__run_folder_find(const char *site, const char *name, char *out, size_t size);

/* Calls fn with the folder and the name of each run that has a name, in the order of the folders. A name may hold any bytes. */
typedef void neb_run_fn(void *arg, const char *folder, const char *name);
void neb__run_folder_each(const char *site, neb_run_fn *fn, void *arg);

#endif
