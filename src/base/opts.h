/* opts.h: options as one table. From the table come the defaults, the parser of command-line arguments, the
 * environment variables, the help text and the documentation.
 *
 *     struct cfg { int64_t steps; double lr; bool quick; char *out; };
 *     static const struct neb_opt table[] = {
 *         NEB_OPT(struct cfg, steps, NEB_OPT_INT, "100", "steps", "how long to train"),
 *         NEB_OPT(struct cfg, lr, NEB_OPT_REAL, "1e-3", NULL, "peak learning rate"),
 *         NEB_OPT_END,
 *     };
 *
 * neb__opts_init() gives every field its default and owes a neb__opts_free() (strings are owned copies). */
#ifndef NEB_BASE_OPTS_H
#define NEB_BASE_OPTS_H

#include "base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum neb_opt_type {
    NEB_OPT_NONE,
    NEB_OPT_BOOL,  /* bool: yes/no, true/false, 1/0; alone on a command line: yes */
    NEB_OPT_INT,   /* int64_t */
    NEB_OPT_REAL,  /* double, finite */
    NEB_OPT_TEXT,  /* char *, owned; default "" means NULL; with another one an empty value changes nothing */
    NEB_OPT_BYTES, /* int64_t; 10, 64k, 16MiB, 1.5G */
    NEB_OPT_TIME,  /* double seconds; 250ms, 5, 5s, 2m, 1h */
    NEB_OPT_RATE,  /* double bits per second; 10mbit, 1gbit, 500kbit */
    NEB_OPT_SHARE, /* double in [0, 1]; 0.001, 0.1% */
};

struct neb_opt {
    const char *name; /* on a command line with - for _ */
    enum neb_opt_type type;
    size_t offset;
    const char *fallback; /* the default, as text */
    const char *unit;     /* or NULL */
    const char *help;
};

#define NEB_OPT(type_, field, kind, fallback_, unit_, help_)          \
    {                                                                 \
#field, kind, offsetof(type_, field), fallback_, unit_, help_ \
    }
#define NEB_OPT_END \
    {               \
        0           \
    }

neb_status neb__opts_init(const struct neb_opt *table, void *obj);
void neb__opts_free(const struct neb_opt *table, void *obj);

/* NEB_ERR_CONFIG names the option, the value and what is allowed; for an unknown name the nearest known one. The
 * field is unchanged then. */
neb_status neb__opts_set(const struct neb_opt *table, void *obj, const char *name, const char *value);

/* The same without a word of its own: NEB_ERR_NOTFOUND no such option; NEB_ERR_CONFIG and *why: what is allowed. */
neb_status neb__opts_try(const struct neb_opt *table, void *obj, const char *name, const char *value,
                         const char **why);

/* Fields whose variable PREFIX_NAME (upper case) is set. */
neb_status neb__opts_env(const struct neb_opt *table, void *obj, const char *prefix);

/* --name value, --name=value, --flag, --no-flag; `--` ends the options. Other arguments are moved to the front of
 * argv, their number goes to *positional. */
neb_status neb__opts_args(const struct neb_opt *table, void *obj, int argc, char **argv, int *positional);

/* The same over several tables, each with its object; ended by a NULL table. */
struct neb_opt_set {
    const struct neb_opt *table;
    void *obj;
};
neb_status neb__opts_args_of(const struct neb_opt_set *sets, int argc, char **argv, int *positional);

void neb__opts_help(const struct neb_opt *table, FILE *to);

/* Appends every field as a line `name: value` behind `indent`, such as a YAML file is read from. Texts without a value and
 * fields that have their default are left out. NEB_ERR_NOSPACE, NEB_ERR_NOMEM; NEB_ERR_INVALID: a text with a line end */
neb_status neb__opts_write(const struct neb_opt *table, const void *obj, const char *indent,
                           struct neb_buf *out);

/* Levenshtein distance, letters compared without case: for "did you mean". */
int neb__edit_distance(const char *a, const char *b);

#endif
