/* data_sets.c: see data_sets.h.
 *
 * A set that is made here lies in a folder of the cache whose name is a hash of all that its tokens depend on: the bytes of the
 * text (data_files.h), the tokenizer, the limits. The file `text` in it names where the text was. Text that is gone since is not
 * missed as long as its set is there. Sets that this job does not use stay, because a cache may have several jobs; they are named
 * whenever a new one is made. */
#include "task/data_sets.h"
#include "base/file.h"
#include "base/log.h"
#include "task/data_files.h"
#include "text/corpus.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME = 16, NAMED = 6 };

/* ---- prepared sets ------------------------------------------------------------------------------------- */

bool neb__data_is_prepared(const struct neb_job_data *c)
{
    struct stat st;
    return !stat(c->file, &st) && S_ISDIR(st.st_mode);
}

/* The place of a corpus in the job, for messages. */
static neb_status wrong(const struct neb_data *d, const struct neb_job_data *c, const char *why)
{
    char path[32];
    snprintf(path, sizeof path, "data[%d]", (int)(c - d->job->data));
    return neb__doc_fail(&d->job->doc, path, "corpus %s: %s", c->file, why);
}

static neb_status other_tokenizer(const struct neb_data *d, const struct neb_job_data *c,
                                  const struct neb_set_info *info)
{
    char why[1400], theirs[2 * NEB_HASH_SIZE + 1], ours[2 * NEB_HASH_SIZE + 1];
    neb__hash_hex(&info->tokenizer, theirs);
    neb__hash_hex(neb__tok_hash(d->tok), ours);
    snprintf(
        why, sizeof why,
        "it was tokenised with another tokenizer (%.12s) than this job has (%.12s, %s): name that one as "
        "tokenizer.file, or tokenise the text anew with `nebula-i corpus tokenise --tokenizer %s --out "
        "FOLDER TEXT`",
        theirs, ours, d->tok_path, d->tok_path);
    return wrong(d, c, why);
}

static neb_status check_prepared(const struct neb_data *d, const struct neb_job_data *c,
                                 const struct neb_set *set)
{
    const struct neb_set_info *info = neb__set_info(set);
    if (!neb__hash_equal(&info->tokenizer, neb__tok_hash(d->tok))) return other_tokenizer(d, c, info);
    if (info->sides == 2 && !neb__data_is_pair(c))
        return wrong(d, c, "it is a set of pairs: give both languages, such as lang: en-de");
    if (info->sides == 1 && neb__data_is_pair(c))
        return wrong(d, c, "it is a set of single texts, and the job has pairs of two languages there");
    for (int i = 0; i < info->sides; i++) {
        char lang[NEB_LANG_SIZE], why[160];
        neb__data_lang_of(c, i, lang);
        if (!*lang || !*info->lang[i] || !strcmp(lang, info->lang[i])) continue;
        snprintf(why, sizeof why, "it was tokenised as language '%s', and the job says '%s'", info->lang[i],
                 lang);
        return wrong(d, c, why);
    }
    return NEB_OK;
}

static neb_status open_prepared(struct neb_data *d, const struct neb_job_data *c, struct neb_set **out)
{
    struct neb_set *set;
    if (!neb__set_finished(c->file))
        return wrong(d, c,
                     "a folder, and no token set (set.neb is missing); `nebula-i corpus tokenise` makes one");
    if (c->second) return wrong(d, c, "a token set has both sides in one folder: leave out `second`");
    if (c->copies > 1)
        return wrong(d, c, "copies are cut anew while text is tokenised: give the text, or leave them out");
    if (c->flip && neb__tok_has_sides(d->tok))
        return wrong(d, c, "this tokenizer cuts sources and targets differently: `flip` needs the text");
    NEB_TRY(neb__set_open(c->file, &set));
    neb_status status = check_prepared(d, c, set);
    if (status != NEB_OK)
        neb__set_close(set);
    else
        *out = set;
    return status;
}

/* ---- sets of the cache --------------------------------------------------------------------------------- */

neb_status neb__data_there(const struct neb_data *d, const struct neb_job_data *c)
{
    struct neb_data_files files;
    if (neb__data_is_prepared(c)) return NEB_OK;
    neb_status status = neb__data_files_find(c, &files);
    if (status == NEB_OK) neb__data_files_free(&files);
    return status == NEB_ERR_NOTFOUND && neb__data_content_known(d->dir, c) ? NEB_OK : status;
}

/* The most tokens of a pair whose texts share a sequence, <s> a </s> b </s>; 0: each text is a sequence of
 * its own. */
static int32_t limit_together(const struct neb_data *d, const struct neb_job_data *c)
{
    return d->job->objective->joins_pairs && neb__data_is_pair(c) ? (int32_t)d->job->train.max_len - 3 : 0;
}

/* What the tokens depend on beside the text. */
static int settings_of(const struct neb_data *d, const struct neb_job_data *c, char *text, size_t size)
{
    char tok[2 * NEB_HASH_SIZE + 1];
    neb__hash_hex(neb__tok_hash(d->tok), tok);
    int n = snprintf(text, size, "%s|%" PRId64 "|%d", tok, d->job->train.max_len, neb__data_is_pair(c));
    if (neb__tok_has_sides(d->tok) && c->flip) n += snprintf(text + n, size - (size_t)n, "|flip");
    if (limit_together(d, c)) n += snprintf(text + n, size - (size_t)n, "|%d", limit_together(d, c));
    if (c->copies > 1)
        n += snprintf(text + n, size - (size_t)n, "|%" PRId64 "|%g", c->copies, d->job->tokenizer.dropout);
    return n;
}

static neb_status folder_of(const struct neb_data *d, const char *text, size_t n, char *out, size_t size)
{
    struct neb_hash h;
    char hex[2 * NEB_HASH_SIZE + 1];
    NEB_TRY(neb__hash(text, n, &h));
    neb__hash_hex(&h, hex);
    snprintf(out, size, "%s/%.*s", d->dir, NAME, hex);
    return NEB_OK;
}

/* The set that an older version made, which went by the path, size and time of the text. False: there is none. */
static bool older_set(const struct neb_data *d, const struct neb_job_data *c, char *out, size_t size)
{
    char text[2048];
    int n = settings_of(d, c, text, sizeof text);
    for (int i = 0; i < 2; i++) {
        const char *file = i ? c->second : c->file;
        struct stat st;
        if (!file) continue;
        if (stat(file, &st)) return false;
        n += snprintf(text + n, sizeof text - (size_t)n, "|%.400s|%lld|%lld", file, (long long)st.st_size,
                      (long long)st.st_mtime);
        if ((size_t)n >= sizeof text) return false;
    }
    return folder_of(d, text, (size_t)n, out, size) == NEB_OK && neb__set_finished(out);
}

/* A folder name that changes when anything changes that the tokens depend on. */
static neb_status set_name(const struct neb_data *d, const struct neb_job_data *c, char *out, size_t size,
                           bool *gone)
{
    struct neb_hash h;
    char text[512] = "2|", hex[2 * NEB_HASH_SIZE + 1];
    int n = 2 + settings_of(d, c, text + 2, sizeof text - 2);
    if (c->second) n += snprintf(text + n, sizeof text - (size_t)n, "|two");
    neb_status status = neb__data_content(d->dir, c, &h, gone);
    if (status != NEB_OK) return neb__fail(status, "%s", neb_last_error());
    neb__hash_hex(&h, hex);
    n += snprintf(text + n, sizeof text - (size_t)n, "|%s", hex);
    return folder_of(d, text, (size_t)n, out, size);
}

static neb_status tokenise(const struct neb_data *d, const struct neb_job_data *c,
                           const struct neb_data_files *f, struct neb_pool *pool, const char *dir)
{
    char lang[2][NEB_LANG_SIZE], note[700], name[300];
    neb__data_lang_of(c, 0, lang[0]);
    neb__data_lang_of(c, 1, lang[1]);
    struct neb_corpus_cfg cfg = {.paths = (const char *const *)f->path[0],
                                 .paths2 = (const char *const *)f->path[1],
                                 .sides = neb__data_is_pair(c) ? 2 : 1,
                                 .flip = c->flip,
                                 .lang = {lang[0], lang[1]},
                                 .max_tokens = (int32_t)d->job->train.max_len - 2,
                                 .max_both = limit_together(d, c),
                                 .copies = c->copies,
                                 .vary = d->job->tokenizer.dropout};
    struct neb_corpus_stats stats;
    if (f->n > 1)
        neb__info("tokenising %s: %d files", c->file, f->n);
    else
        neb__info("tokenising %s", c->file);
    NEB_TRY(neb__corpus_tokenise(&cfg, d->tok, pool, dir, &stats));
    neb__info("%s: %" PRId64 " samples, %" PRId64 " tokens; left out: %" PRId64 " empty, %" PRId64
              " too long",
              c->file, stats.samples, stats.tokens[0] + stats.tokens[1], stats.empty, stats.too_long);
    snprintf(name, sizeof name, "%.298s\n", c->file);
    snprintf(note, sizeof note, "%s/text", dir);
    return neb__file_replace(note, name, strlen(name), 0600);
}

static neb_status make_set(struct neb_data *d, const struct neb_job_data *c, bool gone, struct neb_pool *pool,
                           const char *dir)
{
    struct neb_data_files files;
    neb_status status = neb__data_files_find(c, &files);
    if (gone)
        return neb__fail(NEB_ERR_NOTFOUND,
                         "%s, and it was not tokenised for this tokenizer and train.max_len before: bring "
                         "the text back",
                         neb_last_error());
    NEB_TRY(status);
    status = tokenise(d, c, &files, pool, dir);
    neb__data_files_free(&files);
    return status;
}

/* dir: of the set, (640). *made: it was made just now. */
static neb_status open_own(struct neb_data *d, const struct neb_job_data *c, struct neb_pool *pool, int *lock,
                           char *dir, struct neb_set **out, bool *made)
{
    bool gone = false;
    if (older_set(d, c, dir, 640)) return neb__set_open(dir, out);
    NEB_TRY(set_name(d, c, dir, 640, &gone));
    if (!neb__set_finished(dir)) {
        NEB_TRY(neb__data_lock(d, lock));
        if (!neb__set_finished(dir)) {
            NEB_TRY(make_set(d, c, gone, pool, dir));
            *made = true;
        }
    }
    if (gone) neb__info("the text of corpus %s is not here; its tokens are, in %s", c->file, dir);
    return neb__set_open(dir, out);
}

/* ---- sets that nobody asks for ------------------------------------------------------------------------- */

static bool is_set_name(const char *name)
{
    return strlen(name) == NAME && strspn(name, "0123456789abcdef") == NAME;
}

/* Where the text was from which a set was made. */
static void text_of(const char *dir, char *out, size_t size)
{
    char path[1000];
    snprintf(path, sizeof path, "%.900s/text", dir);
    FILE *f = fopen(path, "r");
    if (!f || !fgets(out, (int)size, f)) snprintf(out, size, "an unknown text");
    out[strcspn(out, "\n")] = 0;
    if (f) fclose(f);
}

static void name_unused(const struct neb_data *d, const char (*used)[NAME + 1], int n)
{
    DIR *folder = opendir(d->dir);
    int found = 0;
    for (struct dirent *e; folder && (e = readdir(folder));) {
        char dir[900], text[300];
        int i = 0;
        while (i < n && strcmp(used[i], e->d_name)) i++;
        snprintf(dir, sizeof dir, "%s/%s", d->dir, e->d_name);
        if (i < n || !is_set_name(e->d_name) || !neb__set_finished(dir)) continue;
        if (++found > NAMED) continue;
        text_of(dir, text, sizeof text);
        neb__info("%s holds tokens that this job does not use (of %s): remove it if no other job does", dir,
                  text);
    }
    if (found > NAMED) neb__info("… and %d more of them in %s", found - NAMED, d->dir);
    if (folder) closedir(folder);
}

neb_status neb__data_open_sets(struct neb_data *d, struct neb_pool *pool, int *lock)
{
    char used[NEB_JOB_DATA][NAME + 1];
    int n = 0;
    bool made = false;
    for (int i = 0; i < d->job->n_data; i++) {
        const struct neb_job_data *c = &d->job->data[i];
        char dir[640];
        if (!neb__job_has(d->job, c)) continue;
        if (neb__data_is_prepared(c)) {
            NEB_TRY(open_prepared(d, c, &d->set[i]));
            continue;
        }
        NEB_TRY(open_own(d, c, pool, lock, dir, &d->set[i], &made));
        snprintf(used[n++], NAME + 1, "%s", strrchr(dir, '/') + 1);
    }
    if (made) name_unused(d, used, n);
    return NEB_OK;
}
