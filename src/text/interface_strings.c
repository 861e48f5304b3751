/* interface_strings.c: reads the catalogues of packages and divides their strings into training and held-out pairs.
 *
 * The catalogues of a package are visited in the order of their paths, so the files are the same on every machine that
 * has the same packages. A pair belongs to training, validation or test by the hash of its normalised English, in every
 * language alike. A training pair whose translation normalises to that of a held-out pair is left out. */
#include "text/interface_strings.h"
#include "text/catalogue.h"
#include "text/debian_package.h"
#include "text/interface_text.h"
#include "text/text_set.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_PAIRS = 1 << 22,
    MAX_TEXTS = 1 << 30,
    MAX_FILES = 1 << 14,
    LEAST_WORDS = 3,
    MAX_WORDS = 20,
    HELD_OUT = 30
};
enum part { TRAIN, VALID, TEST };

struct pair {
    size_t english, translated;     /* into texts */
    uint64_t form, translated_form; /* hashes of the normalised sentences */
    enum part part;
};

struct strings {
    const struct neb_help_cfg *cfg;
    struct neb_help_stats *stats;
    char packages[PATH_MAX];
    struct neb_text_set english_done; /* sentences that english already has */
    struct neb_buf english;           /* en.train.txt */
    /* of one language */
    struct neb_buf texts; /* null-terminated sentences */
    struct pair *pair;
    size_t pairs, cap;
    char **file;
    int files;
};

/* ---- reading ------------------------------------------------------------------------------------------- */

static enum part part_of(uint64_t form, int words)
{
    uint64_t h = (form >> 8) % HELD_OUT;
    if (words < LEAST_WORDS || h > 1) return TRAIN;
    return h ? VALID : TEST;
}

static neb_status keep_text(struct strings *s, const char *text, size_t *at)
{
    *at = s->texts.len;
    return neb__buf_append(&s->texts, text, strlen(text) + 1);
}

static neb_status on_message(void *arg, const char *english, const char *translation)
{
    struct strings *s = arg;
    char a[NEB_INTERFACE_TEXT], b[NEB_INTERFACE_TEXT], form[NEB_INTERFACE_FORM];
    struct pair p;
    if (!neb__interface_tidy(english, a) || !neb__interface_tidy(translation, b) || !strcmp(a, b))
        return NEB_OK;
    int words = neb__interface_normalise(a, form);
    p.form = neb__text_hash(form);
    p.part = part_of(p.form, words);
    int translated_words = neb__interface_normalise(b, form);
    p.translated_form = neb__text_hash(form);
    if (!words || !translated_words || words > MAX_WORDS || translated_words > 2 * MAX_WORDS) return NEB_OK;
    if (s->pairs == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 16384;
        struct pair *more = cap > MAX_PAIRS ? NULL : neb__realloc(s->pair, cap * sizeof *more);
        if (!more) return neb__fail(NEB_ERR_NOMEM, "out of memory for %zu pairs of strings", cap);
        s->pair = more;
        s->cap = cap;
    }
    NEB_TRY(keep_text(s, a, &p.english));
    NEB_TRY(keep_text(s, b, &p.translated));
    s->pair[s->pairs++] = p;
    return NEB_OK;
}

static bool is_catalogue(const char *path, const char *lang)
{
    char place[96];
    size_t n = strlen(path);
    snprintf(place, sizeof place, "/%.31s/LC_MESSAGES/", lang);
    return n > 3 && !strcmp(path + n - 3, ".mo") && strstr(path, place);
}

static neb_status list_files(struct strings *s, const char *folder, const char *lang, int depth)
{
    DIR *d = depth > 16 ? NULL : opendir(folder);
    neb_status status = NEB_OK;
    for (struct dirent *e; d && status == NEB_OK && (e = readdir(d));) {
        char path[PATH_MAX];
        if (e->d_name[0] == '.' || snprintf(path, sizeof path, "%s/%s", folder, e->d_name) >= PATH_MAX)
            continue;
        if (e->d_type == DT_DIR) status = list_files(s, path, lang, depth + 1);
        if (e->d_type == DT_DIR || !is_catalogue(path, lang)) continue;
        char *copy = s->files < MAX_FILES ? neb__strdup(path) : NULL;
        if (!copy) status = neb__fail(NEB_ERR_NOMEM, "out of memory for the names of catalogues");
        if (copy) s->file[s->files++] = copy;
    }
    if (d) closedir(d);
    return status;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void forget_files(struct strings *s)
{
    while (s->files) neb__free(s->file[--s->files]);
}

static neb_status read_package(struct strings *s, const char *package, const char *lang)
{
    char folder[PATH_MAX];
    NEB_TRY(neb__debian_package(s->packages, package));
    if (snprintf(folder, sizeof folder, "%s/%s", s->packages, package) >= (int)sizeof folder)
        return neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", s->packages);
    NEB_TRY(list_files(s, folder, lang, 0));
    qsort(s->file, (size_t)s->files, sizeof *s->file, by_name);
    for (int i = 0; i < s->files; i++)
        if (neb__catalogue_read(s->file[i], on_message, s) == NEB_ERR_NOMEM)
            return NEB_ERR_NOMEM; /* one that is damaged was named, and the others count */
    if (!s->files) neb__warn("the package %s has no strings in the language %s", package, lang);
    forget_files(s);
    return NEB_OK;
}

/* The next of the names in *from, LANG replaced; false: no more. A package's name has lower case and dashes. */
static bool next_package(const char **from, const char *lang, char *out, size_t size)
{
    size_t n = strcspn(*from, ",");
    if (!n) return false;
    const char *place = strstr(*from, "LANG");
    bool replaced = place && place < *from + n;
    size_t head = replaced ? (size_t)(place - *from) : n;
    snprintf(out, size, "%.*s%s%.*s", (int)head, *from, replaced ? lang : "",
             replaced ? (int)(n - head - 4) : 0, replaced ? place + 4 : "");
    for (char *c = out + head; *c; c++) *c = *c == '_' ? '-' : (char)tolower((unsigned char)*c);
    *from += n + ((*from)[n] == ',');
    return true;
}

static neb_status read_language(struct strings *s, const char *from, const char *lang)
{
    char package[PATH_MAX];
    s->pairs = 0;
    neb__buf_clear(&s->texts);
    while (next_package(&from, lang, package, sizeof package)) NEB_TRY(read_package(s, package, lang));
    if (!s->pairs) return neb__fail(NEB_ERR_CONFIG, "the packages have no strings in the language %s", lang);
    return NEB_OK;
}

/* ---- writing ------------------------------------------------------------------------------------------- */

static const char *text_at(const struct strings *s, size_t at)
{
    return (const char *)s->texts.data + at;
}

static neb_status save(const struct strings *s, const char *name, const struct neb_buf *text)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s", s->cfg->out, name) >= (int)sizeof path)
        return neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", s->cfg->out);
    return neb__file_replace(path, text->data ? (const void *)text->data : "", text->len, 0644);
}

/* Adds a sentence to a training text unless it is there. */
static neb_status add_sentence(struct neb_buf *out, struct neb_text_set *done, const char *text,
                               int64_t *count)
{
    if (neb__text_set_has(done, neb__text_hash(text))) return NEB_OK;
    NEB_TRY(neb__text_set_add(done, neb__text_hash(text)));
    ++*count;
    return neb__buf_printf(out, "%s\n", text);
}

/* Training pairs: each once by the normalised forms of both sides. Held-out pairs: each once by that of the English. */
static bool is_new(const struct pair *p, const struct neb_text_set *done, uint64_t *key)
{
    *key = p->part == TRAIN ? (p->form ^ (p->translated_form * 3)) | 1 : p->form;
    return !neb__text_set_has(done, *key);
}

struct outputs {
    struct neb_buf pairs[3]; /* by part */
    struct neb_buf text;     /* of the language */
    struct neb_text_set held, done, sentences;
};

static neb_status write_pair(struct strings *s, struct outputs *o, const struct pair *p, int lang)
{
    const char *a = text_at(s, p->english), *b = text_at(s, p->translated);
    int64_t *const counts[] = {&s->stats->train[lang], &s->stats->valid[lang], &s->stats->test[lang]};
    uint64_t key;
    if (p->part == TRAIN && neb__text_set_has(&o->held, p->translated_form)) return NEB_OK;
    if (!is_new(p, &o->done, &key)) return NEB_OK;
    NEB_TRY(neb__text_set_add(&o->done, key));
    ++*counts[p->part];
    NEB_TRY(neb__buf_printf(&o->pairs[p->part], "%s\t%s\n", a, b));
    if (p->part != TRAIN) return NEB_OK;
    NEB_TRY(add_sentence(&s->english, &s->english_done, a, &s->stats->texts[0]));
    return add_sentence(&o->text, &o->sentences, b, &s->stats->texts[lang]);
}

static neb_status save_language(const struct strings *s, const struct outputs *o, int lang)
{
    static const char *const part_names[] = {"train", "valid", "test"};
    char name[96];
    for (int part = TRAIN; part <= TEST; part++) {
        snprintf(name, sizeof name, "en-%.31s.%s.tsv", s->cfg->langs[lang], part_names[part]);
        NEB_TRY(save(s, name, &o->pairs[part]));
    }
    snprintf(name, sizeof name, "%.31s.train.txt", s->cfg->langs[lang]);
    return save(s, name, &o->text);
}

static neb_status divide(struct strings *s, struct outputs *o, int lang)
{
    for (size_t i = 0; i < s->pairs; i++)
        if (s->pair[i].part != TRAIN) NEB_TRY(neb__text_set_add(&o->held, s->pair[i].translated_form));
    for (size_t i = 0; i < s->pairs; i++) NEB_TRY(write_pair(s, o, &s->pair[i], lang));
    return save_language(s, o, lang);
}

static neb_status write_language(struct strings *s, int lang)
{
    struct outputs o = {0};
    for (int part = TRAIN; part <= TEST; part++) neb__buf_init(&o.pairs[part], MAX_TEXTS);
    neb__buf_init(&o.text, MAX_TEXTS);
    neb_status status = divide(s, &o, lang);
    for (int part = TRAIN; part <= TEST; part++) neb__buf_free(&o.pairs[part]);
    neb__buf_free(&o.text);
    neb__text_set_free(&o.held);
    neb__text_set_free(&o.done);
    neb__text_set_free(&o.sentences);
    return status;
}

static neb_status gather(struct strings *s, const char *from)
{
    const struct neb_help_cfg *cfg = s->cfg;
    if (snprintf(s->packages, sizeof s->packages, "%s%s", cfg->packages ? cfg->packages : cfg->out,
                 cfg->packages ? "" : "/packages") >= (int)sizeof s->packages)
        return neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", cfg->out);
    NEB_TRY(neb__file_make_dir(cfg->out, 0755));
    for (int l = 1; l < cfg->n; l++) {
        NEB_TRY(read_language(s, from, cfg->langs[l]));
        NEB_TRY(write_language(s, l));
    }
    return save(s, "en.train.txt", &s->english);
}

neb_status neb__interface_corpus(const struct neb_help_cfg *cfg, const char *from,
                                 struct neb_help_stats *stats)
{
    if (cfg->n < 2 || cfg->n > NEB_HELP_LANGS || strcmp(cfg->langs[0], "en") != 0)
        return neb__fail(NEB_ERR_CONFIG,
                         "strings are translated from English: give \"en\" and one or more languages");
    *stats = (struct neb_help_stats){{0}, {0}, {0}, {0}};
    struct strings *s = NEB_NEW(struct strings);
    if (s) s->file = NEB_NEW_ARRAY(char *, MAX_FILES);
    if (!s || !s->file) {
        neb__free(s);
        return neb__fail(NEB_ERR_NOMEM, "out of memory for the strings");
    }
    s->cfg = cfg;
    s->stats = stats;
    neb__buf_init(&s->texts, MAX_TEXTS);
    neb__buf_init(&s->english, MAX_TEXTS);
    neb_status status = gather(s, from && *from ? from : NEB_INTERFACE_PACKAGES);
    forget_files(s);
    neb__free(s->file);
    neb__free(s->pair);
    neb__text_set_free(&s->english_done);
    neb__buf_free(&s->texts);
    neb__buf_free(&s->english);
    neb__free(s);
    return status;
}
