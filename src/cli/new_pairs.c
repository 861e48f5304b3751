/* new_pairs.c: pairs of sentences for a new translation job.
 *
 * Without a file of the user's they are the translated messages of the programs that this machine has: gettext's
 * catalogues in /usr/share/locale. A system may come without them (many containers do). Then the program's own pairs serve,
 * a hundred and more in English and German: few, but enough to see everything work. */
#include "cli/new_text.h"
#include "base/buf.h"
#include "base/mem.h"
#include "cli/new_files.h"
#include "cli/new_parts.h"
#include "text/catalogue.h"
#include "text/interface_text.h"
#include "text/line_reader.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAIRS_MAX = 40000, PAIRS_LEAST = 1500, SIDE_MOST = 80, TEXT_MAX = 32 << 20 };

/* ---- this machine's catalogues ----------------------------------------------------------------------------------- */

struct found {
    struct neb_buf text; /* "english \t translation \0" … */
    size_t *at;          /* of every pair; (PAIRS_MAX) */
    int n;
};

static int words(const char *s)
{
    int n = 0;
    for (bool inside = false; *s; s++) {
        if (*s != ' ' && !inside) n++;
        inside = *s != ' ';
    }
    return n;
}

static neb_status one_message(void *arg, const char *english, const char *translation)
{
    struct found *f = arg;
    char a[NEB_INTERFACE_TEXT], b[NEB_INTERFACE_TEXT];
    if (f->n == PAIRS_MAX) return NEB_OK;
    if (!neb__interface_tidy(english, a) || !neb__interface_tidy(translation, b)) return NEB_OK;
    if (strlen(a) > SIDE_MOST || strlen(b) > SIDE_MOST || words(a) < 2 || !strcmp(a, b)) return NEB_OK;
    f->at[f->n] = f->text.len;
    NEB_TRY(neb__buf_printf(&f->text, "%s\t%s", a, b));
    NEB_TRY(neb__buf_append(&f->text, "", 1));
    f->n++;
    return NEB_OK;
}

/* A catalogue that cannot be read is left out: there are others. */
static neb_status read_catalogues(struct found *f, const char *language)
{
    char dir[PATH_MAX], path[PATH_MAX];
    struct dirent **list;
    snprintf(dir, sizeof dir, "/usr/share/locale/%s/LC_MESSAGES", language);
    int n = scandir(dir, &list, NULL, alphasort); /* in a fixed order: the same machine gives the same text */
    neb_status status = NEB_OK;
    for (int i = 0; i < n; i++) {
        size_t k = strlen(list[i]->d_name);
        if (status == NEB_OK && k > 3 && !strcmp(list[i]->d_name + k - 3, ".mo") &&
            snprintf(path, sizeof path, "%s/%s", dir, list[i]->d_name) < (int)sizeof path)
            status = neb__catalogue_read(path, one_message, f);
        if (status != NEB_ERR_NOMEM) status = NEB_OK;
        free(list[i]);
    }
    if (n >= 0) free(list);
    return status;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* In order, so that a sentence that several programs have stands there once. */
static neb_status write_found(struct neb_new_parts *s, const struct found *f)
{
    const char **line = NEB_NEW_ARRAY(const char *, (size_t)f->n + 1);
    if (!line) return neb__fail(NEB_ERR_NOMEM, "out of memory for %d pairs", f->n);
    for (int i = 0; i < f->n; i++) line[i] = (const char *)f->text.data + f->at[i];
    qsort(line, (size_t)f->n, sizeof *line, by_text);
    for (int i = 0; i < f->n; i++) {
        size_t english = strcspn(line[i], "\t") + 1;
        if (i && !strncmp(line[i - 1], line[i], english)) continue;
        neb__new_parts_line(s, line[i], strlen(line[i]));
    }
    neb__free(line);
    return NEB_OK;
}

/* *enough: they were written. */
static neb_status write_catalogues(struct neb_new_parts *s, bool *enough)
{
    struct found f = {.at = NEB_NEW_ARRAY(size_t, PAIRS_MAX)};
    neb__buf_init(&f.text, TEXT_MAX);
    neb_status status =
        f.at ? read_catalogues(&f, s->out->to) : neb__fail(NEB_ERR_NOMEM, "out of memory for pairs");
    *enough = status == NEB_OK && f.n >= PAIRS_LEAST;
    if (*enough) {
        snprintf(s->out->source, sizeof s->out->source, "the translated messages in /usr/share/locale/%s",
                 s->out->to);
        status = write_found(s, &f);
    }
    neb__buf_free(&f.text);
    neb__free(f.at);
    return status;
}

/* ---- the program's own, and a file --------------------------------------------------------------------------------- */

static neb_status write_own(struct neb_new_parts *s)
{
    const struct neb_new_file *f = neb__new_file("pairs.tsv");
    if (strcmp(s->out->from, "en") || strcmp(s->out->to, "de"))
        return neb__fail(NEB_ERR_NOTFOUND,
                         "this machine has no translated messages from en to %s; give pairs of your own with "
                         "--text FILE, or take --langs en-de",
                         s->out->to);
    snprintf(s->out->source, sizeof s->out->source, "nebula-i itself");
    for (const char *p = f->bytes; p < f->end;) {
        const char *stop = memchr(p, '\n', (size_t)(f->end - p));
        size_t n = (size_t)((stop ? stop : f->end) - p);
        if (n) neb__new_parts_line(s, p, n);
        p += n + 1;
    }
    return NEB_OK;
}

static neb_status write_file(struct neb_new_parts *s, const char *file)
{
    struct neb_line_reader *r;
    const char *line;
    size_t n;
    snprintf(s->out->source, sizeof s->out->source, "%s", file);
    NEB_TRY(neb__line_reader_open(file, &r));
    neb_status status;
    while ((status = neb__line_reader_next(r, &line, &n)) == NEB_OK) {
        if (!n) continue;
        if (!memchr(line, '\t', n)) {
            status =
                neb__fail(NEB_ERR_CONFIG, "%s:%lld: no tab; a line is a sentence, a tab and its translation",
                          file, (long long)neb__line_reader_number(r));
            break;
        }
        neb__new_parts_line(s, line, n);
    }
    neb__line_reader_close(r);
    return status == NEB_ERR_AGAIN ? NEB_OK : status;
}

static neb_status set_languages(const char *langs, struct neb_new_text *out)
{
    if (sscanf(langs, "%15[a-z]-%15[a-z]", out->from, out->to) == 2 &&
        strlen(out->from) + strlen(out->to) + 1 == strlen(langs))
        return NEB_OK;
    return neb__fail(NEB_ERR_CONFIG, "--langs '%s': it reads FROM-TO, such as en-de", langs);
}

neb_status neb__new_pairs(const char *dir, const char *file, const char *langs, struct neb_new_text *out)
{
    struct neb_new_parts s = {.out = out};
    bool enough = false;
    *out = (struct neb_new_text){0};
    NEB_TRY(set_languages(langs, out));
    neb_status status = neb__new_parts_open(&s, dir, "tsv");
    if (status == NEB_OK && file) status = write_file(&s, file);
    if (status == NEB_OK && !file && !strcmp(out->from, "en")) status = write_catalogues(&s, &enough);
    if (status == NEB_OK && !file && !enough) status = write_own(&s);
    return neb__new_parts_close(&s, status);
}
