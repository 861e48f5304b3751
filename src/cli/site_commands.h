/* site_commands.h: the commands behind `--`, one for all sites or one for each, a lone `:` between them. */
#ifndef NEB_CLI_SITE_COMMANDS_H
#define NEB_CLI_SITE_COMMANDS_H

#include "base/status.h"

/* Cuts argv (ended by NULL) at each lone `:`, in place, and sets out[i] for every site. NEB_ERR_CONFIG: an empty command, or
 * another number of them than 1 or `sites`. */
neb_status neb__site_commands(char **argv, int sites, char **out[]);

#endif
