/* plugin.c: finds a plug-in by its name. */
#define _GNU_SOURCE
#include "base/plugin.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Tries one folder ("": the loader's own search). `found` is set when the file exists, even if it cannot be
 * loaded. */
static void *try_open(const char *folder, size_t folder_len, const char *name, char *path, bool *found)
{
    int n = snprintf(path, NEB_PLUGIN_PATH, "%.*s%slibnebula-i-%s.so", (int)folder_len, folder,
                     folder_len ? "/" : "", name);
    if (n < 0 || n >= NEB_PLUGIN_PATH) return NULL;
    if (folder_len && access(path, R_OK)) return NULL;
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    *found = handle != NULL || folder_len > 0;
    return handle;
}

void *neb__plugin_find(const char *name, char path[NEB_PLUGIN_PATH], bool *found)
{
    const char *list = getenv("NEBULA_PLUGIN_PATH");
    void *handle = NULL;
    for (const char *p = list; p && *p && !*found;) {
        size_t len = strcspn(p, ":");
        if (len) handle = try_open(p, len, name, path, found);
        p += len + (p[len] == ':');
    }
    char exe[NEB_PLUGIN_PATH];
    ssize_t n = *found ? -1 : readlink("/proc/self/exe", exe, sizeof exe - 24);
    if (n > 0) {
        exe[n] = '\0';
        char *slash = strrchr(exe, '/');
        if (slash) *slash = '\0';
        handle = try_open(exe, strlen(exe), name, path, found);
        if (!*found) handle = try_open(exe, strlen(strcat(exe, "/../lib")), name, path, found);
        if (!*found)
            handle = try_open(exe, strlen(strcat(exe, "/nebula-i")), name, path, found); /* a package's */
    }
    if (!*found) handle = try_open("", 0, name, path, found);
    return handle;
}
