/* plugin.h: plug-ins are shared objects named libnebula-i-NAME.so. They are searched in $NEBULA_PLUGIN_PATH
 * (folders separated by ':'), in the executable's folder, in ../lib and ../lib/nebula-i beside it, and in the
 * folders of the system's loader. */
#ifndef NEB_BASE_PLUGIN_H
#define NEB_BASE_PLUGIN_H

#include <stdbool.h>

enum { NEB_PLUGIN_PATH = 1024 };

/* Returns the library's handle and its path. NULL and `found`: there is such a file, but it cannot be loaded
 * (dlerror() says why). NULL and not `found`: there is none. */
void *neb__plugin_find(const char *name, char path[NEB_PLUGIN_PATH], bool *found);

#endif
