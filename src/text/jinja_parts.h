/* jinja_parts.h: what the files of the template language share. Values are JSON; NULL is undefined. Each function gives a
 * reference of its own, which the caller drops.
 *
 * There is no tree: the text is run as it is read, and a loop reads its body again, as does each call of a macro. A branch
 * that is not taken is skipped tag by tag, whatever stands in them. The part of an expression that does not run (the right
 * side of an `or` that is decided) is read with `live` false: it must be well formed, and may use anything. */
#ifndef NEB_TEXT_JINJA_PARTS_H
#define NEB_TEXT_JINJA_PARTS_H

#include "base/buf.h"

#include <jansson.h>
#include <stdbool.h>

enum {
    NEB_JINJA_DEPTH = 64,
    NEB_JINJA_ARGS = 8,
    NEB_JINJA_NAME = 64,
    NEB_JINJA_MACROS = 64,
    NEB_JINJA_LIST = 1 << 16,
    NEB_JINJA_NO_IF = 1,
    NEB_JINJA_VALUE = 64, /* bytes of a value beside its text or items, about */
    NEB_JINJA_FIELD = 160,
    NEB_JINJA_TEXT = 16 << 20
};

/* Where a macro's parameters begin, behind the bracket, and where its body does. */
struct neb_jinja_macro {
    char name[NEB_JINJA_NAME];
    size_t params, body;
    int after; /* neb_jinja.after at the body */
};

enum neb_jinja_leaving { NEB_JINJA_STAYS, NEB_JINJA_BREAK, NEB_JINJA_CONTINUE };

struct neb_jinja {
    const char *text;
    size_t n, at;
    struct neb_buf *out;
    json_t *scope[NEB_JINJA_DEPTH]; /* variables; the innermost last */
    int scopes, base;               /* base: the first one that is seen, beside scope[0] */
    struct neb_jinja_macro macro[NEB_JINJA_MACROS];
    int macros;
    enum neb_jinja_leaving leaving; /* the body of the innermost loop */
    int loops;                      /* that are running */
    int depth;                      /* of expressions and blocks */
    int64_t steps;                  /* left */
    size_t bytes, work;             /* left: of values that are made; parts that are looked at */
    int after;                      /* what the last tag does to the white space behind it */
    /* (n + 1) of the expression that begins there: behind its `if`, NEB_JINJA_NO_IF, or 0: it was not read yet */
    size_t *behind_if;
};

/* The arguments of a call: by place, or by name. */
struct neb_jinja_args {
    json_t *value[NEB_JINJA_ARGS];
    char name[NEB_JINJA_ARGS][NEB_JINJA_NAME]; /* empty: by place */
    int n;
};

/* ---- jinja.c ---- */

/* NEB_ERR_CORRUPT and NEB_ERR_UNSUPPORTED with the line in front. */
neb_status neb__jinja_malformed(const struct neb_jinja *r, const char *expected);
neb_status neb__jinja_unknown(const struct neb_jinja *r, const char *what, const char *name);
/* NEB_ERR_RANGE with the line in front. */
neb_status neb__jinja_too_much(const struct neb_jinja *r, const char *what);
/* Counts a step of the run. NEB_ERR_RANGE: there were too many. */
neb_status neb__jinja_step(struct neb_jinja *r);
json_t *neb__jinja_find(const struct neb_jinja *r, const char *name); /* a borrowed variable, or NULL */

neb_status neb__jinja_enter(struct neb_jinja *r); /* a scope of its own; owes a leave */
void neb__jinja_leave(struct neb_jinja *r);
/* NULL: undefined again. */
neb_status neb__jinja_declare(struct neb_jinja *r, const char *name, json_t *v);
/* Runs up to the tag of one of the words `until` (the end: NULL), whose rest is left to the caller. */
neb_status neb__jinja_block(struct neb_jinja *r, const char *const *until, char met[NEB_JINJA_NAME]);
/* Takes the end of a tag: `%}` or `}}`. */
neb_status neb__jinja_tag_end(struct neb_jinja *r, const char *end);
/* Writes the text up to the next tag, if `live`, and goes there. */
neb_status neb__jinja_plain_text(struct neb_jinja *r, bool live);
neb_status neb__jinja_comment(struct neb_jinja *r);
/* Behind the beginning of a tag. */
void neb__jinja_sign(struct neb_jinja *r);

/* ---- jinja_loop.c ---- */

neb_status neb__jinja_for(struct neb_jinja *r); /* behind the word `for` */

/* ---- jinja_skip.c ---- */

/* The rest of a tag that ends with `%}` (end: '%') or `}}` ('}'). */
neb_status neb__jinja_skip_tag(struct neb_jinja *r, char end);
/* As neb__jinja_block, but nothing runs. */
neb_status neb__jinja_skip_block(struct neb_jinja *r, const char *const *until, char met[NEB_JINJA_NAME]);
/* Behind `{% raw`: up to the end of `{% endraw %}`; the text between goes to `out`, unless that is NULL. */
neb_status neb__jinja_raw(struct neb_jinja *r, struct neb_buf *out);

/* ---- jinja_macro.c ---- */

/* Behind the word `macro`. */
neb_status neb__jinja_define(struct neb_jinja *r);
const struct neb_jinja_macro *neb__jinja_macro(const struct neb_jinja *r, const char *name); /* or NULL */
struct neb_jinja_args;
neb_status neb__jinja_call(struct neb_jinja *r, const struct neb_jinja_macro *m,
                           const struct neb_jinja_args *a, json_t **out);

/* ---- jinja_expression.c ---- */

void neb__jinja_space(struct neb_jinja *r);
bool neb__jinja_take(struct neb_jinja *r, const char *sign);      /* a sign that stands here */
bool neb__jinja_take_word(struct neb_jinja *r, const char *word); /* a whole word */
neb_status neb__jinja_name(struct neb_jinja *r, char out[NEB_JINJA_NAME]);
neb_status neb__jinja_expression(struct neb_jinja *r, bool live, json_t **out);
/* Without `a if b else c`: the `if` of a loop belongs to the loop. */
neb_status neb__jinja_plain_expression(struct neb_jinja *r, bool live, json_t **out);
bool neb__jinja_true(const json_t *v);
/* As `{{ v }}` shows it. */
neb_status neb__jinja_print(const json_t *v, struct neb_buf *out);

/* ---- jinja_limits.c ---- */

/* NEB_ERR_RANGE: the template has taken all that it may. */
neb_status neb__jinja_spend(struct neb_jinja *r, size_t bytes);      /* of values that it makes */
neb_status neb__jinja_spend_list(struct neb_jinja *r, size_t items); /* that have their bytes already */
neb_status neb__jinja_work(struct neb_jinja *r, size_t parts);       /* of values that are looked at */
neb_status neb__jinja_look(struct neb_jinja *r,
                           const json_t *v); /* at a text, or at one part of something else */
/* NEB_ERR_RANGE, too: there are lists and tables in more than `most` others. */
neb_status neb__jinja_check_depth(struct neb_jinja *r, const json_t *v, int most);
/* As json_equal(), with limits. */
neb_status neb__jinja_equal(struct neb_jinja *r, const json_t *a, const json_t *b, bool *same);

/* ---- jinja_lists.c ---- */

/* What a loop goes through: items of a list, keys of a table, characters of a text, nothing of the undefined.
 * NEB_ERR_UNSUPPORTED: something else */
neb_status neb__jinja_list(struct neb_jinja *r, const json_t *v, json_t **out);
/* A table's pairs, in their order or in that of their keys. */
neb_status neb__jinja_pairs(struct neb_jinja *r, const json_t *v, bool sorted, json_t **out);
neb_status neb__jinja_range(struct neb_jinja *r, const struct neb_jinja_args *a, json_t **out);
/* list[from:to:step], and the same of a text's characters; a part that is NULL is not given. */
neb_status neb__jinja_slice(struct neb_jinja *r, const json_t *v, json_t *const part[3], json_t **out);
/* The filters that make a list from a list: items, dictsort, list, map, select, reject, selectattr, rejectattr, reverse,
 * unique. *known false: another name. */
neb_status neb__jinja_list_filter(struct neb_jinja *r, const char *name, json_t *v,
                                  const struct neb_jinja_args *a, bool *known, json_t **out);

/* ---- jinja_calls.c ---- */

/* An argument by its place or its name; NULL: not given. Borrowed. */
json_t *neb__jinja_arg(const struct neb_jinja_args *a, int place, const char *name);

neb_status neb__jinja_filter(struct neb_jinja *r, const char *name, json_t *v, const struct neb_jinja_args *a,
                             json_t **out);
neb_status neb__jinja_test(struct neb_jinja *r, const char *name, const json_t *v,
                           const struct neb_jinja_args *a, bool *out);
neb_status neb__jinja_method(struct neb_jinja *r, const char *name, json_t *v, const struct neb_jinja_args *a,
                             json_t **out);
neb_status neb__jinja_function(struct neb_jinja *r, const char *name, const struct neb_jinja_args *a,
                               json_t **out);
/* A new text of n bytes. NEB_ERR_NOMEM, NEB_ERR_RANGE: it is too long */
neb_status neb__jinja_text(struct neb_jinja *r, const char *p, size_t n, json_t **out);
neb_status neb__jinja_given(json_t *v, json_t **out); /* NULL: NEB_ERR_NOMEM */

#endif
