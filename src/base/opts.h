/* opts.h: options as one table. From the table come the defaults, the parser of command-line arguments, the
 * check of every value, the help text and the documentation.
 *
 *     struct cfg { int64_t steps; double lr; bool quick; char *dtype; };
 *     static const struct neb_opt table[] = {
 *         NEB_OPT(struct cfg, steps, NEB_OPT_INT, "100", "steps", "how long to train", NEB_OPT_RANGE(1, 1e12)),
 *         NEB_OPT(struct cfg, lr, NEB_OPT_REAL, "1e-3", NULL, "peak learning rate", NEB_OPT_ABOVE(0, 10)),
 *         NEB_OPT(struct cfg, quick, NEB_OPT_BOOL, "no", NULL, "leave out the slow part"),
 *         NEB_OPT(struct cfg, dtype, NEB_OPT_TEXT, "f32", NULL, "of activations", NEB_OPT_CHOICE("f32", "bf16")),
 *         NEB_OPT_END,
 *     };
 *
 * A value is checked against its choices or its range at the place where it is set, so a wrong one is reported with the
 * file and line that it comes from. Only what two options say together is left to check in code.
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

/* Bounds of a number, both allowed unless a flag says otherwise. Infinite: none. */
struct neb_opt_range {
    double low, high;
    bool low_open, high_open; /* the bound itself is not allowed */
    bool or_zero;             /* 0 is allowed, too */
    bool or_auto;             /* the word `auto`, too: NEB_OPT_AUTO; low is not negative */
};
enum { NEB_OPT_AUTO = -1 }; /* value of a number that is left to the program */

struct neb_opt {
    const char *name; /* on a command line with - for _ */
    enum neb_opt_type type;
    size_t offset;
    const char *fallback; /* the default, as text */
    const char *unit;     /* or NULL */
    const char *help;
    const char *const *choices;        /* words or whole numbers, ended by NULL; or NULL: any value */
    const struct neb_opt_range *range; /* or NULL: any number */
};

/* Behind the help text may stand one of the limits below. NEB_OPT_AS: the option has another name than the field;
 * NEB_OPT_VALUE: the object is the value itself. */
#define NEB_OPT(type_, field, ...)           NEB_OPT_AS(type_, field, #field, __VA_ARGS__)
#define NEB_OPT_AS(type_, field, name_, ...) NEB_OPT_ROW(offsetof(type_, field), name_, __VA_ARGS__)
#define NEB_OPT_VALUE(name_, ...)            NEB_OPT_ROW(0, name_, __VA_ARGS__)
#define NEB_OPT_ROW(offset_, name_, kind, fallback_, unit_, ...)                              \
    {                                                                                         \
        .name = name_, .type = kind, .offset = offset_, .fallback = fallback_, .unit = unit_, \
        .help = __VA_ARGS__                                                                   \
    }
#define NEB_OPT_CHOICE(...)          \
    .choices = (const char *const[]) \
    {                                \
        __VA_ARGS__, NULL            \
    }
#define NEB_OPT_LIMITS(...)                \
    .range = &(const struct neb_opt_range) \
    {                                      \
        __VA_ARGS__                        \
    }
#define NEB_OPT_RANGE(low_, high_)   NEB_OPT_LIMITS(.low = low_, .high = high_)
#define NEB_OPT_ABOVE(low_, high_)   NEB_OPT_LIMITS(.low = low_, .high = high_, .low_open = true)
#define NEB_OPT_BELOW(low_, high_)   NEB_OPT_LIMITS(.low = low_, .high = high_, .high_open = true)
#define NEB_OPT_ZERO_OR(low_, high_) NEB_OPT_LIMITS(.low = low_, .high = high_, .or_zero = true)
#define NEB_OPT_AUTO_OR(low_, high_) NEB_OPT_LIMITS(.low = low_, .high = high_, .or_auto = true)
#define NEB_OPT_END \
    {               \
        0           \
    }

neb_status neb__opts_init(const struct neb_opt *table, void *obj);
void neb__opts_free(const struct neb_opt *table, void *obj);

/* NEB_ERR_CONFIG names the option, the value and what is allowed; for an unknown name the nearest known one. The
 * field is unchanged then. */
neb_status neb__opts_set(const struct neb_opt *table, void *obj, const char *name, const char *value);

/* The same without a message: NEB_ERR_NOTFOUND no such option; NEB_ERR_CONFIG and `why` says what is allowed. */
enum { NEB_OPT_WHY = 240 };
neb_status neb__opts_try(const struct neb_opt *table, void *obj, const char *name, const char *value,
                         char why[NEB_OPT_WHY]);

/* Whether every field has an allowed value, for an object whose fields code has set. NEB_ERR_CONFIG as neb__opts_set(). */
neb_status neb__opts_check(const struct neb_opt *table, const void *obj);

/* Position of the field's value among the choices of its option, as an enum may number them; -1: not one of them. */
int neb__opts_choice(const struct neb_opt *table, const void *obj, const char *name);

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
/* One option's line behind its name: its choices, what it means, its default, its range. */
void neb__opts_help_of(const struct neb_opt *o, FILE *to);

/* Appends every field as a line `name: value` behind `indent`, which a YAML file may hold. Leaves out texts without a value
 * and fields that have their default. NEB_ERR_NOSPACE, NEB_ERR_NOMEM; NEB_ERR_INVALID: a text with a line end */
neb_status neb__opts_write(const struct neb_opt *table, const void *obj, const char *indent,
                           struct neb_buf *out);

#endif
