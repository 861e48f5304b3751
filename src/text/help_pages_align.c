/* help_pages_align.c: aligns the help pages of several languages paragraph by paragraph.
 *
 * Pages are visited in the order of their names in the first language. A unit is one paragraph id of one page
 * with its text in every language that has it. A hash of its path decides whether a page is for training,
 * validation or test. Texts that occur more than once (menu names, "Note") are kept once. A text that occurs
 * in a held-out pair is left out of training, on either side, so training never sees a test sentence. */
#include "text/help_pages.h"
#include "text/help_pages_parse.h"
#include "text/text_set.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"

#include <dirent.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_PAGES = 1 << 16, MAX_UNITS = 1 << 22, MAX_TEXTS = 1 << 30, MAX_PARAGRAPH = 2000, HELD_OUT = 40 };
enum part { TRAIN, VALID, TEST };

struct unit {
    uint32_t page;
    uint64_t id;                   /* hash of the element's id */
    uint32_t text[NEB_HELP_LANGS]; /* into texts, 0: not there */
};

struct work {
    const struct neb_help_cfg *cfg;
    struct neb_help_stats *stats;
    char root[NEB_HELP_LANGS][PATH_MAX];
    char **page;
    int pages, page_cap;
    struct unit *unit;
    size_t units, unit_cap;
    struct neb_buf texts; /* null-terminated; the first byte is unused */
    /* the page being read */
    int lang;
    uint32_t at;
    size_t first; /* its first unit */
};

static neb_status no_memory(void)
{
    return neb__fail(NEB_ERR_NOMEM, "out of memory for the help pages");
}

/* ---- reading ------------------------------------------------------------------------------------------- */

static neb_status add_page(struct work *w, const char *relative)
{
    if (w->pages == w->page_cap) {
        int cap = w->page_cap ? 2 * w->page_cap : 4096;
        char **list = cap > MAX_PAGES ? NULL : neb__realloc(w->page, (size_t)cap * sizeof *list);
        if (!list) return no_memory();
        w->page = list;
        w->page_cap = cap;
    }
    char *copy = neb__strdup(relative);
    if (!copy) return no_memory();
    w->page[w->pages++] = copy;
    return NEB_OK;
}

static neb_status list_pages(struct work *w, const char *relative, int depth)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s", w->root[0], relative) >= (int)sizeof path || depth > 16)
        return NEB_OK;
    DIR *d = opendir(path);
    neb_status status = NEB_OK;
    for (struct dirent *e; d && status == NEB_OK && (e = readdir(d));) {
        char below[PATH_MAX];
        size_t n = strlen(e->d_name);
        if (e->d_name[0] == '.') continue;
        if (snprintf(below, sizeof below, "%s%s%s", relative, *relative ? "/" : "", e->d_name) >=
            (int)sizeof below)
            continue;
        status = n > 5 && !strcmp(e->d_name + n - 5, ".html") ? add_page(w, below)
                                                              : list_pages(w, below, depth + 1);
    }
    if (d) closedir(d);
    return status;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static struct unit *find_unit(struct work *w, uint64_t id)
{
    for (size_t i = w->first; i < w->units; i++)
        if (w->unit[i].id == id) return &w->unit[i];
    return NULL;
}

static neb_status new_unit(struct work *w, uint64_t id, struct unit **out)
{
    if (w->units == w->unit_cap) {
        size_t cap = w->unit_cap ? 2 * w->unit_cap : 16384;
        struct unit *list = cap > MAX_UNITS ? NULL : neb__realloc(w->unit, cap * sizeof *list);
        if (!list) return no_memory();
        w->unit = list;
        w->unit_cap = cap;
    }
    *out = &w->unit[w->units++];
    **out = (struct unit){.page = w->at, .id = id};
    return NEB_OK;
}

static neb_status on_paragraph(void *arg, const char *id, const char *text)
{
    struct work *w = arg;
    size_t n = strlen(text);
    if (n < 2 || n > MAX_PARAGRAPH) return NEB_OK;
    struct unit *u = find_unit(w, neb__text_hash(id));
    if (!u && w->lang) return NEB_OK; /* no first-language text to pair it with */
    if (!u) NEB_TRY(new_unit(w, neb__text_hash(id), &u));
    if (u->text[w->lang]) return NEB_OK; /* the id occurs twice on the page; the first counts */
    u->text[w->lang] = (uint32_t)w->texts.len;
    return neb__buf_append(&w->texts, text, n + 1);
}

static neb_status read_pages(struct work *w)
{
    char path[2 * PATH_MAX];
    for (w->at = 0; w->at < (uint32_t)w->pages; w->at++) {
        w->first = w->units;
        for (w->lang = 0; w->lang < w->cfg->n; w->lang++) {
            snprintf(path, sizeof path, "%s/%s", w->root[w->lang], w->page[w->at]);
            struct stat st;
            if (!stat(path, &st)) NEB_TRY(neb__help_page(path, on_paragraph, w));
        }
    }
    return NEB_OK;
}

/* ---- writing ------------------------------------------------------------------------------------------- */

static enum part part_of(const struct work *w, const struct unit *u)
{
    uint64_t h = neb__text_hash(w->page[u->page]) >> 8;
    if (h % HELD_OUT == 0) return TEST;
    return h % HELD_OUT == 1 ? VALID : TRAIN;
}

static const char *text_of(const struct work *w, const struct unit *u, int lang)
{
    return u->text[lang] ? (const char *)w->texts.data + u->text[lang] : NULL;
}

/* Collects every text of the held-out pages. */
static neb_status collect_held_out(const struct work *w, struct neb_text_set *held)
{
    for (size_t i = 0; i < w->units; i++) {
        if (part_of(w, &w->unit[i]) == TRAIN) continue;
        for (int l = 0; l < w->cfg->n; l++) {
            const char *t = text_of(w, &w->unit[i], l);
            if (t) NEB_TRY(neb__text_set_add(held, neb__text_hash(t)));
        }
    }
    return NEB_OK;
}

static neb_status save(const struct work *w, const char *name, const struct neb_buf *text)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s", w->cfg->out, name) >= (int)sizeof path)
        return neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", w->cfg->out);
    return neb__file_replace(path, text->data ? (const void *)text->data : "", text->len, 0644);
}

static neb_status write_pairs(const struct work *w, int lang, enum part part, const struct neb_text_set *held,
                              int64_t *count)
{
    static const char *const part_names[] = {"train", "valid", "test"};
    struct neb_buf out;
    struct neb_text_set done = {0};
    neb_status status = NEB_OK;
    neb__buf_init(&out, MAX_TEXTS);
    for (size_t i = 0; i < w->units && status == NEB_OK; i++) {
        const struct unit *u = &w->unit[i];
        const char *a = text_of(w, u, 0), *b = text_of(w, u, lang);
        if (!a || !b || part_of(w, u) != part || !strcmp(a, b)) continue; /* equal: not translated */
        uint64_t pair = neb__text_pair_hash(a, b);
        if (neb__text_set_has(&done, pair)) continue;
        if (part == TRAIN &&
            (neb__text_set_has(held, neb__text_hash(a)) || neb__text_set_has(held, neb__text_hash(b))))
            continue;
        status = neb__text_set_add(&done, pair);
        if (status == NEB_OK) status = neb__buf_printf(&out, "%s\t%s\n", a, b);
        ++*count;
    }
    char name[64];
    snprintf(name, sizeof name, "%s-%s.%s.tsv", w->cfg->langs[0], w->cfg->langs[lang], part_names[part]);
    if (status == NEB_OK) status = save(w, name, &out);
    neb__text_set_free(&done);
    neb__buf_free(&out);
    return status;
}

static neb_status write_texts(const struct work *w, int lang, const struct neb_text_set *held)
{
    struct neb_buf out;
    struct neb_text_set done = {0};
    neb_status status = NEB_OK;
    neb__buf_init(&out, MAX_TEXTS);
    for (size_t i = 0; i < w->units && status == NEB_OK; i++) {
        const char *t = text_of(w, &w->unit[i], lang);
        if (!t || part_of(w, &w->unit[i]) != TRAIN || neb__text_set_has(held, neb__text_hash(t)) ||
            neb__text_set_has(&done, neb__text_hash(t)))
            continue;
        status = neb__text_set_add(&done, neb__text_hash(t));
        if (status == NEB_OK) status = neb__buf_printf(&out, "%s\n", t);
        w->stats->texts[lang]++;
    }
    char name[64];
    snprintf(name, sizeof name, "%s.train.txt", w->cfg->langs[lang]);
    if (status == NEB_OK) status = save(w, name, &out);
    neb__text_set_free(&done);
    neb__buf_free(&out);
    return status;
}

static neb_status write_all(const struct work *w)
{
    struct neb_text_set held = {0};
    neb_status status = collect_held_out(w, &held);
    for (int l = 0; l < w->cfg->n && status == NEB_OK; l++) {
        status = write_texts(w, l, &held);
        if (status == NEB_OK && l) status = write_pairs(w, l, TRAIN, &held, &w->stats->train[l]);
        if (status == NEB_OK && l) status = write_pairs(w, l, VALID, &held, &w->stats->valid[l]);
        if (status == NEB_OK && l) status = write_pairs(w, l, TEST, &held, &w->stats->test[l]);
    }
    neb__text_set_free(&held);
    return status;
}

static neb_status gather(struct work *w)
{
    char packages[PATH_MAX];
    if (snprintf(packages, sizeof packages, "%s%s", w->cfg->packages ? w->cfg->packages : w->cfg->out,
                 w->cfg->packages ? "" : "/packages") >= (int)sizeof packages)
        return neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", w->cfg->out);
    NEB_TRY(neb__file_make_dir(w->cfg->out, 0755));
    for (int l = 0; l < w->cfg->n; l++) NEB_TRY(neb__help_pages(packages, w->cfg->langs[l], w->root[l]));
    NEB_TRY(neb__buf_append(&w->texts, "", 1));
    NEB_TRY(list_pages(w, "", 0));
    if (!w->pages) return neb__fail(NEB_ERR_CONFIG, "there are no help pages in %s", w->root[0]);
    qsort(w->page, (size_t)w->pages, sizeof *w->page, by_name);
    NEB_TRY(read_pages(w));
    return write_all(w);
}

neb_status neb__help_corpus(const struct neb_help_cfg *cfg, struct neb_help_stats *stats)
{
    if (cfg->n < 2 || cfg->n > NEB_HELP_LANGS)
        return neb__fail(NEB_ERR_CONFIG, "%d languages given; 2 to %d are possible", cfg->n, NEB_HELP_LANGS);
    *stats = (struct neb_help_stats){{0}, {0}, {0}, {0}};
    struct work *w = NEB_NEW(struct work);
    if (!w) return no_memory();
    w->cfg = cfg;
    w->stats = stats;
    neb__buf_init(&w->texts, MAX_TEXTS);
    neb_status status = gather(w);
    for (int i = 0; i < w->pages; i++) neb__free(w->page[i]);
    neb__free(w->page);
    neb__free(w->unit);
    neb__buf_free(&w->texts);
    neb__free(w);
    return status;
}
