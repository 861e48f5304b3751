/* relay_folder.h: the folder of a relay host: its key, `rosters`, and `status`, which `nebula-i relay --show` prints. */
#ifndef NEB_CLI_RELAY_FOLDER_H
#define NEB_CLI_RELAY_FOLDER_H

#include "net/relay/relay_host.h"
#include "seal/site.h"

#include <limits.h>

neb_status neb__relay_path(const char *folder, const char *name, char out[PATH_MAX]);
neb_status neb__relay_folder_make(const char *folder); /* with a key, if they are missing */
/* The same, and opens it. A successful open owes a neb__site_close(). */
neb_status neb__relay_folder_open(const char *folder, struct neb_site **out);
void neb__relay_write_status(const char *folder, struct neb_relay_host *h);

/* A relay host inside a process that does something else, such as a witness. */
struct neb_relay_beside;

/* Listens on `listen` (HOST:PORT) with the key of `folder`, and serves the members of the roster file alone, also when that changes.
 * Strangers may meet there. A successful start owes a stop; its status is written every two seconds. */
neb_status neb__relay_beside_start(const char *listen, const char *folder, const char *roster,
                                   struct neb_relay_beside **out);
void neb__relay_beside_stop(struct neb_relay_beside *b); /* NULL is fine */

#endif
