/* lab_commands.c: see lab_commands.h.
 *
 * A site hears the same things in both cases: its folder, its address, where its results go. `nebula-i train` is given
 * them as words. A program of the user's finds them in its environment, where neb_session_open_job(), and so the Python
 * package, takes them from (job/job_environment.c). Paths there are absolute: a script may change its folder. */
#include "cli/lab_commands.h"
#include "base/mem.h"
#include "run/lab_sites.h"

#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OWN_WORDS = 20, VARIABLES = 8, VARIABLE_MAX = 64 << 10 };

void neb__lab_cache(const struct neb_job *job, char *out, size_t size)
{
    snprintf(out, size, job->cache ? "%s" : "%s/data", job->cache ? job->cache : job->out);
}

/* Cores are shared out evenly among the sites that train, unless the job says how many a site has. */
int64_t neb__lab_threads(const struct neb_job *job)
{
    int trains = 0;
    for (int i = 0; i < job->n_sites; i++) trains += job->site[i].does == NEB_ROLE_TRAIN;
    int64_t n = sysconf(_SC_NPROCESSORS_ONLN) / (trains ? trains : 1);
    if (job->train.threads) return job->train.threads;
    return n < 1 ? 1 : n;
}

void neb__site_command_free(struct neb_site_command *c)
{
    for (int i = 0; !c->borrowed && c->argv && c->argv[i]; i++) neb__free(c->argv[i]);
    for (int i = 0; c->env && c->env[i]; i++) neb__free(c->env[i]);
    if (!c->borrowed) neb__free(c->argv);
    neb__free(c->env);
}

/* Puts a text at the end of a list that has room for it. */
__attribute__((format(printf, 2, 3))) static bool word(char **list, const char *fmt, ...)
{
    char text[PATH_MAX + 64];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    while (*list) list++;
    *list = neb__strdup(text);
    return *list;
}

/* ---- nebula-i train ---------------------------------------------------------------------------------------------- */

/* Otherwise the laboratory has trained one. */
static bool has_tokenizer(const struct neb_job *job)
{
    if (job->tokenizer.file || job->tokenizer.own) return job->tokenizer.file;
    return job->init.from || job->distill.teacher || job->distill.encoder;
}

neb_status neb__lab_command_train(const struct neb_lab_plan *p, int i, struct neb_site_command *out)
{
    const struct neb_job *job = p->job;
    char dir[PATH_MAX], folder[PATH_MAX], cache[PATH_MAX];
    neb__lab_site_out(job, job->out, i, dir, sizeof dir);
    neb__lab_site_folder(job, job->out, i, folder, sizeof folder);
    neb__lab_cache(job, cache, sizeof cache);
    char **w = out->argv = NEB_NEW_ARRAY(char *, (size_t)p->n + OWN_WORDS);
    bool ok = w && word(w, "/proc/self/exe") && word(w, "train");
    for (int k = 0; ok && k < p->n; k++) ok = word(w, "%s", p->words[k]);
    ok = ok && word(w, "--site") && word(w, "%s", job->site[i].name) && (!p->apart || word(w, "--alone")) &&
         word(w, "out=%s", dir) && word(w, "cache=%s", cache) && word(w, "sites[%d].folder=%s", i, folder) &&
         word(w, "sites[%d].listen=%s:%d", i, neb__lab_address(p->lab, i, i), p->port) &&
         word(w, "sites[%d].proxy=none", i) &&
         word(w, "sites[%d].dial=none", i) && /* none is in the laboratory */
         word(w, "train.threads=%" PRId64, neb__lab_threads(job)) &&
         (has_tokenizer(job) || word(w, "tokenizer.file=%s/tokenizer.model", cache));
    return ok ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for a command");
}

/* ---- a program of the user's ------------------------------------------------------------------------------------- */

static neb_status settings_of(const struct neb_lab_plan *p, int i, const char *dir, struct neb_buf *b)
{
    NEB_TRY(neb__buf_printf(b,
                            "NEBULA_SETTINGS=out=%s\nsites[%d].folder=%s/site\nsites[%d].listen=%s:%d\n"
                            "sites[%d].proxy=none\nsites[%d].dial=none\n",
                            dir, i, dir, i, neb__lab_address(p->lab, i, i), p->port, i, i));
    for (int k = 1; k < p->n; k++) NEB_TRY(neb__buf_printf(b, "%s\n", p->words[k]));
    return neb__buf_append(b, "", 1);
}

neb_status neb__lab_command_script(const struct neb_lab_plan *p, int i, char **argv,
                                   struct neb_site_command *out)
{
    char dir[PATH_MAX], whole[PATH_MAX], job[PATH_MAX];
    struct neb_buf settings;
    neb__lab_site_out(p->job, p->job->out, i, dir, sizeof dir);
    if (!realpath(dir, whole) || !realpath(p->words[0], job))
        return neb__fail(NEB_ERR_IO, "the paths of %s and %s cannot be found out", dir, p->words[0]);
    *out = (struct neb_site_command){.argv = argv, .env = NEB_NEW_ARRAY(char *, VARIABLES), .borrowed = true};
    char **e = out->env;
    neb__buf_init(&settings, VARIABLE_MAX);
    bool ok = e && settings_of(p, i, whole, &settings) == NEB_OK && word(e, "NEBULA_JOB=%s", job) &&
              word(e, "NEBULA_SITE=%s", p->job->site[i].name) && word(e, "NEBULA_OUT=%s", whole) &&
              (getenv("OMP_NUM_THREADS") || word(e, "OMP_NUM_THREADS=%" PRId64, neb__lab_threads(p->job)));
    if (ok) {
        while (*e) e++;
        *e = neb__strdup((const char *)settings.data);
        ok = *e;
    }
    neb__buf_free(&settings);
    return ok ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for the variables of a site");
}
