/* lab_disk.h: a folder of a laboratory's site on a disk of its own, which can be full and have room again.
 * A successful open owes a close. */
#ifndef NEB_CLI_LAB_DISK_H
#define NEB_CLI_LAB_DISK_H

#include "base/status.h"

#include <stdbool.h>

/* Gives this process mounts of its own: what is mounted from now on ends with it and the sites, however they end, and only they
 * see it. NEB_ERR_UNSUPPORTED (quiet): it may not. */
neb_status neb__lab_disk_alone(void);

/* Puts a disk in memory under the folder, which exists; what was in it comes along.
 *   NEB_ERR_UNSUPPORTED (quiet)  this process may not mount
 *   NEB_ERR_IO, NEB_ERR_NOMEM    the folder is as it was */
neb_status neb__lab_disk_open(const char *folder);
/* Takes the disk away; its files are in the folder then. */
neb_status neb__lab_disk_close(const char *folder);

/* full: no byte more fits. */
neb_status neb__lab_disk_full(const char *folder, bool full);

#endif
