/* doc.h: a YAML file as a flat list of (path, value, line), to be bound to option tables.
 *
 *     model:                         model.hidden  "256"       line 2
 *       hidden: 256                  data[0].file  "a.txt"     line 4
 *     data:
 *       - file: a.txt
 *
 * A list of plain values becomes one value, joined with commas. So a job file, `key=value` on the command line and an
 * option's default all go through the same parser, and a wrong one is answered with file, line and nearest key. */
#ifndef NEB_BASE_DOC_H
#define NEB_BASE_DOC_H

#include "base/opts.h"

struct neb_doc_entry {
    char *path, *value;
    int line; /* 0: from the command line */
    bool used;
};

struct neb_doc {
    char *file;
    struct neb_doc_entry *list;
    int n, cap;
};

/* Owes a neb__doc_free(). NEB_ERR_NOTFOUND, NEB_ERR_IO; NEB_ERR_CONFIG: not YAML, or too large or deep, with the line;
 * NEB_ERR_NOMEM */
neb_status neb__doc_read(const char *file, struct neb_doc *out);
neb_status neb__doc_parse(const char *name, const char *text, size_t n, struct neb_doc *out);
void neb__doc_free(struct neb_doc *d);

/* `path=value`, as on a command line; replaces or appends. NEB_ERR_CONFIG: no '=' */
neb_status neb__doc_override(struct neb_doc *d, const char *assignment);

/* Number of items of the list at `path`. */
int neb__doc_items(const struct neb_doc *d, const char *path);
const char *neb__doc_get(struct neb_doc *d, const char *path); /* or NULL; marks it used */

/* Sets every field of `obj` whose path is `prefix` + '.' + name (or the name alone with prefix ""), and refuses other
 * keys directly under it. Keys that are sections or lists of their own must be in `others` (NULL-terminated) or NULL. */
neb_status neb__doc_bind(struct neb_doc *d, const char *prefix, const struct neb_opt *table, void *obj,
                         const char *const *others);

/* Whether `path` is a section, or a list of sections. One without keys is either. NEB_ERR_CONFIG: it is a plain value, or the
 * other of the two. */
neb_status neb__doc_section(struct neb_doc *d, const char *path, bool list);

/* Copies every field of one object to another that has its defaults. */
neb_status neb__doc_copy(const struct neb_opt *table, const void *from, void *to);

/* An error with the line of `path` in front, or with the file alone. */
neb_status neb__doc_fail(const struct neb_doc *d, const char *path, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* NEB_ERR_CONFIG for the first entry that nobody bound. */
neb_status neb__doc_all_used(const struct neb_doc *d);

#endif
