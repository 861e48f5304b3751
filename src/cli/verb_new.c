/* verb_new.c: `nebula-i new FOLDER`: a job that runs as it stands, to begin with and to change.
 *
 * The folder gets a job file with comments (src/cli/new), text, a key for each site and one sealed roster with addresses on
 * this machine. So `nebula-i lab job.yaml` runs all sites at once, and `nebula-i train job.yaml --site NAME` runs one of
 * them. Sites that move to other machines get a roster with other addresses (docs/sessions.md). */
#define _GNU_SOURCE
#include "cli/verb.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "cli/new_files.h"
#include "cli/new_text.h"
#include "run/lab_sites.h"
#include "seal/site.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { SITES_MAX = 16, LIST_MAX = 1024, FILE_MAX = 1 << 20, VOCAB_LEAST = 300, VOCAB_MOST = 2000 };

struct options {
    char *task, *sites, *witness, *text, *langs;
    int64_t port;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, task, NEB_OPT_TEXT, "causal", NULL,
            "what the model learns; torch: a PyTorch script",
            NEB_OPT_CHOICE("mlm", "causal", "translate", "torch")),
    NEB_OPT(struct options, sites, NEB_OPT_TEXT, "a,b", NULL, "their names"),
    NEB_OPT(
        struct options, witness, NEB_OPT_TEXT, "", NULL,
        "one more site that votes and stores but does not train, so that two others survive the loss of one"),
    NEB_OPT(struct options, text, NEB_OPT_TEXT, "", NULL,
            "train on this file, a sentence or paragraph a line (translate: pairs, a tab between the two)"),
    NEB_OPT(struct options, langs, NEB_OPT_TEXT, "en-de", NULL, "translate: from and to"),
    NEB_OPT(struct options, port, NEB_OPT_INT, "7100", NULL,
            "of the first site on this machine; the next ones follow", NEB_OPT_RANGE(1, 65535 - SITES_MAX)),
    NEB_OPT_END,
};

struct new_job {
    const struct options *o;
    const char *dir;
    char list[LIST_MAX];         /* the names, each ended by 0 */
    const char *site[SITES_MAX]; /* into list */
    int sites, witness;          /* witness: its place, or -1 */
    struct neb_new_text text;
};

/* ---- names ------------------------------------------------------------------------------------------------------- */

static neb_status add_site(struct new_job *j, const char *name)
{
    if (j->sites == SITES_MAX)
        return neb__fail(NEB_ERR_CONFIG, "more than %d sites: name fewer, and add others to the job file",
                         SITES_MAX);
    if (!neb__name_valid(name, strlen(name)))
        return neb__fail(NEB_ERR_CONFIG, "'%s': a site's name is 1 to 31 characters of a-z, 0-9 and -", name);
    for (int i = 0; i < j->sites; i++)
        if (!strcmp(j->site[i], name)) return neb__fail(NEB_ERR_CONFIG, "two sites are named '%s'", name);
    static const char *const taken[] = {"out", "text", "roster"};
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        if (!strcmp(name, taken[i]))
            return neb__fail(NEB_ERR_CONFIG, "a site cannot be named '%s': the job has a folder of that name",
                             name);
    j->site[j->sites++] = name;
    return NEB_OK;
}

static neb_status name_sites(struct new_job *j)
{
    char *rest = j->list, *name;
    if (snprintf(j->list, sizeof j->list, "%s", j->o->sites) >= (int)sizeof j->list)
        return neb__fail(NEB_ERR_CONFIG, "--sites is too long");
    while ((name = strsep(&rest, ","))) NEB_TRY(add_site(j, name));
    j->witness = -1;
    if (!j->o->witness) return NEB_OK;
    j->witness = j->sites;
    return add_site(j, j->o->witness);
}

/* The last part of the folder's path if it can stand in a job file, else the task. */
static void name_of(const struct new_job *j, char out[64])
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s", j->dir);
    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--) path[n - 1] = 0;
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    bool fits = *base && strlen(base) < 64;
    for (const char *c = base; fits && *c; c++) fits = isalnum((unsigned char)*c) || *c == '-' || *c == '_';
    snprintf(out, 64, "%s", fits && isalpha((unsigned char)*base) ? base : j->o->task);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static neb_status empty_folder(const char *dir)
{
    struct dirent *d;
    bool empty = true;
    NEB_TRY(neb__file_make_dir(dir, 0755));
    DIR *list = opendir(dir);
    if (!list) return neb__fail(NEB_ERR_IO, "%s: %s", dir, strerror(errno));
    while (empty && (d = readdir(list))) empty = !strcmp(d->d_name, ".") || !strcmp(d->d_name, "..");
    closedir(list);
    return empty ? NEB_OK
                 : neb__fail(NEB_ERR_EXISTS, "%s is not empty; name a folder that does not exist yet", dir);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type;
    return at->level ? remove(path) : 0;
}

/* The folder was empty before, so after a failure it is again: the next try is not refused. */
static void empty_again(const char *dir)
{
    if (nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS))
        neb__warn("%s: not everything in it could be removed", dir);
}

static neb_status append_sites(const struct new_job *j, struct neb_buf *b)
{
    for (int i = 0; i < j->sites; i++)
        NEB_TRY(neb__buf_printf(b,
                                i == j->witness ? "  - {name: %s, role: witness}      # votes and stores\n"
                                                : "  - {name: %s}\n",
                                j->site[i]));
    return NEB_OK;
}

/* About one piece for 200 bytes of text, in hundreds. */
static int64_t vocab_of(const struct new_job *j)
{
    int64_t n = j->text.bytes / 200 / 100 * 100;
    if (n < VOCAB_LEAST) return VOCAB_LEAST;
    return n > VOCAB_MOST ? VOCAB_MOST : n;
}

/* Appends the value of @KEY@; false: there is no such key. */
static bool append_value(const struct new_job *j, const char *key, size_t n, struct neb_buf *b,
                         neb_status *status)
{
    char name[64], number[32], count[32];
    name_of(j, name);
    snprintf(number, sizeof number, "%lld", (long long)vocab_of(j));
    snprintf(count, sizeof count, "%d", j->sites);
    const struct {
        const char *key, *value;
    } list[] = {{"NAME", name},   {"VOCAB", number},      {"FIRST", j->site[0]},
                {"COUNT", count}, {"FROM", j->text.from}, {"TO", j->text.to}};
    if (n == 5 && !memcmp(key, "SITES", n)) {
        *status = append_sites(j, b);
        return true;
    }
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (strlen(list[i].key) == n && !memcmp(list[i].key, key, n)) {
            *status = neb__buf_printf(b, "%s", list[i].value);
            return true;
        }
    return false;
}

/* @SITES@ stands for whole lines, so the end of its own line is left out. */
static neb_status fill_in(const struct new_job *j, const struct neb_new_file *f, struct neb_buf *b)
{
    neb_status status = NEB_OK;
    for (const char *p = f->bytes; status == NEB_OK && p < f->end;) {
        const char *at = memchr(p, '@', (size_t)(f->end - p));
        if (!at) return neb__buf_append(b, p, (size_t)(f->end - p));
        status = neb__buf_append(b, p, (size_t)(at - p));
        const char *stop = memchr(at + 1, '@', (size_t)(f->end - at - 1));
        p = at + 1;
        if (status == NEB_OK && stop && append_value(j, at + 1, (size_t)(stop - at - 1), b, &status)) {
            p = stop + 1;
            if (!memcmp(at, "@SITES@\n", 8)) p++;
        } else if (status == NEB_OK) {
            status = neb__buf_append(b, "@", 1);
        }
    }
    return status;
}

static neb_status write_as(const struct new_job *j, const char *template, const char *name)
{
    char path[PATH_MAX];
    struct neb_buf b;
    neb__buf_init(&b, FILE_MAX);
    snprintf(path, sizeof path, "%s/%s", j->dir, name);
    neb_status status = fill_in(j, neb__new_file(template), &b);
    if (status == NEB_OK) status = neb__file_replace(path, b.data, b.len, 0644);
    neb__buf_free(&b);
    return status;
}

/* ---- keys and roster --------------------------------------------------------------------------------------------- */

static void folder_of(const struct neb_job *job, const char *dir, int site, char *out, size_t size)
{
    snprintf(out, size, "%s/%s", dir, job->site[site].name);
}

/* A copy beside the job, to be given to sites elsewhere. */
static neb_status copy_roster(const struct new_job *j)
{
    char path[PATH_MAX];
    struct neb_chain *chain;
    snprintf(path, sizeof path, "%s/%s", j->dir, j->site[0]);
    NEB_TRY(neb__site_roster_load(path, &chain));
    snprintf(path, sizeof path, "%s/roster", j->dir);
    neb_status status = neb__chain_write(chain, path, 0644);
    neb__chain_free(chain);
    return status;
}

static neb_status make_sites(const struct new_job *j)
{
    char path[PATH_MAX], text[SITES_MAX][32], *address[SITES_MAX];
    struct neb_job job;
    snprintf(path, sizeof path, "%s/job.yaml", j->dir);
    for (int i = 0; i < j->sites; i++) {
        address[i] = text[i];
        snprintf(text[i], sizeof text[i], "127.0.0.1:%d", (int)j->o->port + i);
    }
    NEB_TRY(neb__job_read(path, NULL, 0, &job));
    neb_status status = neb__sites_make(&job, j->dir, folder_of, address);
    neb__job_free(&job);
    return status == NEB_OK ? copy_roster(j) : status;
}

/* ---- the verb ---------------------------------------------------------------------------------------------------- */

static bool is(const struct new_job *j, const char *task)
{
    return !strcmp(j->o->task, task);
}

static neb_status make(struct new_job *j)
{
    char template[32];
    snprintf(template, sizeof template, "%s.yaml", j->o->task);
    NEB_TRY(is(j, "translate") ? neb__new_pairs(j->dir, j->o->text, j->o->langs, &j->text)
                               : neb__new_text(j->dir, j->o->text, &j->text));
    NEB_TRY(write_as(j, template, "job.yaml"));
    if (is(j, "torch")) NEB_TRY(write_as(j, "train.py", "train.py"));
    return make_sites(j);
}

/* As one word of a shell. */
static void print_for_shell(const char *text)
{
    bool plain = true;
    for (const char *c = text; *c; c++) plain &= isalnum((unsigned char)*c) || strchr("/._-", *c);
    if (!plain) putchar('\'');
    for (const char *c = text; *c; c++)
        if (*c == '\'')
            printf("'\\''");
        else
            putchar(*c);
    if (!plain) putchar('\'');
}

static void say(const struct new_job *j)
{
    bool script = is(j, "torch");
    printf("%s: job.yaml%s, text (%lld %s to train on and %lld held out, from %s),\n", j->dir,
           script ? " and train.py" : "", (long long)j->text.lines,
           is(j, "translate") ? "pairs" : "paragraphs", (long long)j->text.held_out, j->text.source);
    printf("keys of %d sites and their roster. Next, all sites on this machine, a slow line between them:\n",
           j->sites);
    printf("  cd ");
    print_for_shell(j->dir);
    printf(" && nebula-i lab job.yaml%s\n", script ? " -- python3 train.py" : "");
    printf("or each site in a terminal of its own, in that folder:\n");
    for (int i = 0; i < j->sites; i++)
        if (script)
            printf("  NEBULA_JOB=job.yaml NEBULA_SITE=%s NEBULA_OUT=out-%s python3 train.py\n", j->site[i],
                   j->site[i]);
        else
            printf("  nebula-i train job.yaml --site %s out=out-%s\n", j->site[i], j->site[i]);
    if (script) printf("train.py needs the Python packages torch and nebula_i (docs/python.md).\n");
}

static neb_status run(struct neb_call *c)
{
    struct new_job j = {.o = c->options, .dir = c->words[0]};
    NEB_TRY(name_sites(&j));
    if (strlen(j.dir) > PATH_MAX - 200) return neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", j.dir);
    NEB_TRY(empty_folder(j.dir));
    neb_status status = make(&j);
    if (status == NEB_OK)
        say(&j);
    else
        empty_again(j.dir);
    return status;
}

const struct neb_verb neb__verb_new = {
    .name = "new",
    .args = "FOLDER [--task TASK] [--sites a,b] [--text FILE]",
    .help = "a folder with a job that runs as it stands",
    .about = "Makes FOLDER with a job file to change, text, keys for all sites and their roster, and prints "
             "what to\n"
             "run next. Without --text it trains on text that every machine has.",
    .options = {{table, 0}},
    .size = sizeof(struct options),
    .least = 1,
    .missing = "name the folder to make",
    .most = 1,
    .run = run,
};
