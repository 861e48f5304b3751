/* jinja.h: the part of the template language Jinja in which Hugging Face folders say how a conversation becomes a text:
 * loops, conditions, macros, variables, expressions, the usual filters, tests and methods of texts. A template is a stranger's
 * program: what it uses and this part lacks is refused by its name, and its steps, depth, memory and output are limited. */
#ifndef NEB_TEXT_JINJA_H
#define NEB_TEXT_JINJA_H

#include "base/buf.h"

struct json_t;

/* Appends the template's output to `out`. variables: a JSON object; a name that it lacks is undefined. White space
 * around tags is as chat templates expect it (trim_blocks and lstrip_blocks).
 *   NEB_ERR_UNSUPPORTED names what is not known here, with the line; NEB_ERR_CORRUPT: the template is not well formed
 *   NEB_ERR_INVALID: the template itself refuses (raise_exception), with its words; NEB_ERR_RANGE: it takes too much
 *   NEB_ERR_NOMEM */
neb_status neb__jinja_render(const char *text, size_t n, const struct json_t *variables, struct neb_buf *out);

#endif
