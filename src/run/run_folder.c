/* run_folder.c: see run_folder.h. A run's name comes from a job file and may hold anything, so it is written in a way that
 * stays inside the folder and has one meaning: letters, digits, `-`, `_` and `.` as they are, anything else as %XX. A name
 * that begins like something else in the folder has its first character written so. */
#include "run/run_folder.h"

#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { WRITTEN_MAX = 3 * NEB_RUN_NAME_SIZE };

static bool is_plain(const char *name, const char *c)
{
    static const char *const taken[] = {".", "orders", "status.json"};
    for (size_t i = 0; c == name && i < sizeof taken / sizeof *taken; i++)
        if (!strncmp(name, taken[i], strlen(taken[i]))) return false;
    return isalnum((unsigned char)*c) || strchr("-_.", *c);
}

static void written_as(const char *name, char out[WRITTEN_MAX])
{
    for (const char *c = name; *c && c < name + NEB_RUN_NAME_SIZE - 1; c++)
        if (is_plain(name, c))
            *out++ = *c;
        else
            out += snprintf(out, 4, "%%%02X", (unsigned char)*c);
    *out = 0;
}

static void name_of(const char *written, char out[NEB_RUN_NAME_SIZE])
{
    size_t n = 0;
    for (unsigned code; *written && n + 1 < NEB_RUN_NAME_SIZE; written++) {
        bool coded = *written == '%' && sscanf(written + 1, "%2x", &code) == 1;
        out[n++] = coded ? (char)code : *written;
        for (int i = 0; coded && i < 2 && written[1]; i++) written++;
    }
    out[n] = 0;
}

neb_status neb__run_folder(const char *site, const char *name, char *out, size_t size)
{
    char written[WRITTEN_MAX];
    written_as(name, written);
    if (snprintf(out, size, *written ? "%s/run/%s" : "%s/run", site, written) >= (int)size)
        return neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", site);
    return NEB_OK;
}

/* ---- runs that are there ----------------------------------------------------------------------------------------- */

static bool has_ledger(const char *folder, struct stat *st)
{
    char path[PATH_MAX];
    return snprintf(path, sizeof path, "%s/ledger", folder) < (int)sizeof path && !stat(path, st);
}

void neb__run_folder_each(const char *site, neb_run_fn *fn, void *arg)
{
    char dir[PATH_MAX], path[PATH_MAX], name[NEB_RUN_NAME_SIZE];
    struct dirent **list;
    struct stat st;
    if (snprintf(dir, sizeof dir, "%s/run", site) >= (int)sizeof dir) return;
    int n = scandir(dir, &list, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        name_of(list[i]->d_name, name);
        if (list[i]->d_name[0] != '.' &&
            snprintf(path, sizeof path, "%s/%s", dir, list[i]->d_name) < (int)sizeof path &&
            has_ledger(path, &st))
            fn(arg, path, name);
        free(list[i]);
    }
    if (n >= 0) free(list);
}

struct others {
    const char *name;
    bool found;
};

static void look_for_other(void *arg, const char *folder, const char *name)
{
    struct others *o = arg;
    (void)folder;
    o->found |= strcmp(name, o->name) != 0;
}

bool neb__run_folder_has_other(const char *site, const char *name)
{
    struct others o = {.name = name};
    neb__run_folder_each(site, look_for_other, &o);
    return o.found;
}

struct newest {
    struct timespec when;
    char path[PATH_MAX];
};

static bool later(struct timespec a, struct timespec b)
{
    return a.tv_sec > b.tv_sec || (a.tv_sec == b.tv_sec && a.tv_nsec > b.tv_nsec);
}

static void look_for_newest(void *arg, const char *folder, const char *name)
{
    struct newest *n = arg;
    struct stat st;
    (void)name;
    if (!has_ledger(folder, &st) || (*n->path && !later(st.st_mtim, n->when))) return;
    n->when = st.st_mtim;
    snprintf(n->path, sizeof n->path, "%s", folder);
}

neb_status neb__run_folder_find(const char *site, const char *name, char *out, size_t size)
{
    struct stat st;
    NEB_TRY(neb__run_folder(site, name ? name : "", out, size));
    if (has_ledger(out, &st)) return NEB_OK;
    if (name)
        return neb__fail(NEB_ERR_NOTFOUND, "%s holds no run '%s' (nebula-i site runs %s)", site, name, site);
    struct newest n = {0};
    neb__run_folder_each(site, look_for_newest, &n);
    if (!*n.path)
        return neb__fail(NEB_ERR_NOTFOUND, "%s/run holds no ledger: this site has not begun a run", site);
    snprintf(out, size, "%s", n.path);
    return NEB_OK;
}
