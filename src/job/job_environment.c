/* job_environment.c: a job as the environment completes it.
 *
 * `nebula-i lab JOB -- COMMAND` starts COMMAND once a site and tells it by variables who it is:
 *
 *     NEBULA_JOB        the job file
 *     NEBULA_SITE       the site's name
 *     NEBULA_SETTINGS   `section.key=value`, one a line: its folder, its address, and what the command line changed
 *     NEBULA_OUT        the folder for what the site writes
 *
 * The settings are those of NEBULA_SITE and hold for that site alone. They come last: folder and address of the
 * laboratory must win over those in the file. */
#include "job/job.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { SETTINGS_MAX = 256 };

neb_status neb__job_names(const char **file, const char **site)
{
    if (!*file) *file = getenv("NEBULA_JOB");
    if (!*site) *site = getenv("NEBULA_SITE");
    if (*file && *site) return NEB_OK;
    return neb__fail(NEB_ERR_CONFIG,
                     "no %s is given, and %s is not set: name it, or start this program with "
                     "`nebula-i lab JOB.yaml -- COMMAND`, which sets it for every site",
                     *file ? "site" : "job file", *file ? "NEBULA_SITE" : "NEBULA_JOB");
}

/* Cuts `text` into its lines, in place; NEB_ERR_LIMIT. */
static neb_status lines_of(char *text, char **out, int *n)
{
    char *rest;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        if (*n == SETTINGS_MAX)
            return neb__fail(NEB_ERR_LIMIT, "NEBULA_SETTINGS has more than %d lines", SETTINGS_MAX);
        out[(*n)++] = line;
    }
    return NEB_OK;
}

neb_status neb__job_read_as(const char *file, const char *site, char *const *words, int n,
                            struct neb_job *out)
{
    const char *who = getenv("NEBULA_SITE"), *settings = getenv("NEBULA_SETTINGS");
    if (!site || !who || !settings || strcmp(site, who)) return neb__job_read(file, words, n, out);
    int all = n;
    char *text = neb__strdup(settings), **list = NEB_NEW_ARRAY(char *, (size_t)n + SETTINGS_MAX);
    neb_status status = text && list ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for the settings");
    for (int i = 0; status == NEB_OK && i < n; i++) list[i] = words[i];
    int more = 0;
    if (status == NEB_OK) status = lines_of(text, list + n, &more);
    all += more;
    if (status == NEB_OK) status = neb__job_read(file, list, all, out);
    neb__free(list);
    neb__free(text);
    return status;
}
