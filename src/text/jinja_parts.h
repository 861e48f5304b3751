/* jinja_parts.h: what the files of the template language share. Values are JSON; NULL is undefined. Each function gives a
 * reference of its own, which the caller drops.
 *
 * There is no tree: the text is run as it is read, and a loop reads its body again. What does not run (the other branch, the
 * right side of an `or` that is decided) is read with `live` false: it must be well formed, and may use anything. */
#ifndef NEB_TEXT_JINJA_PARTS_H
#define NEB_TEXT_JINJA_PARTS_H

#include "base/buf.h"

#include <jansson.h>
#include <stdbool.h>

enum { NEB_JINJA_DEPTH = 64, NEB_JINJA_ARGS = 8, NEB_JINJA_NAME = 64, NEB_JINJA_TEXT = 16 << 20 };

struct neb_jinja {
    const char *text;
    size_t n, at;
    struct neb_buf *out;
    json_t *scope[NEB_JINJA_DEPTH]; /* variables; the innermost last */
    int scopes;
    int depth;     /* of expressions and blocks */
    int64_t steps; /* left */
    int after;     /* what the last tag does to the white space behind it */
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
/* Counts a step of the run. NEB_ERR_RANGE: there were too many. */
neb_status neb__jinja_step(struct neb_jinja *r);
json_t *neb__jinja_find(const struct neb_jinja *r, const char *name); /* a borrowed variable, or NULL */

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

/* ---- jinja_calls.c ---- */

neb_status neb__jinja_filter(const struct neb_jinja *r, const char *name, json_t *v,
                             const struct neb_jinja_args *a, json_t **out);
neb_status neb__jinja_test(const struct neb_jinja *r, const char *name, const json_t *v,
                           const struct neb_jinja_args *a, bool *out);
neb_status neb__jinja_method(const struct neb_jinja *r, const char *name, json_t *v,
                             const struct neb_jinja_args *a, json_t **out);
neb_status neb__jinja_function(const struct neb_jinja *r, const char *name, const struct neb_jinja_args *a,
                               json_t **out);
/* A new text of n bytes. NEB_ERR_NOMEM, NEB_ERR_RANGE: it is too long */
neb_status neb__jinja_text(const char *p, size_t n, json_t **out);
neb_status neb__jinja_given(json_t *v, json_t **out); /* NULL: NEB_ERR_NOMEM */

#endif
