/* help_pages_parse.h: the paragraphs of one HTML page, with the ids by which translations of the page are
 * aligned. */
#ifndef NEB_TEXT_HELP_PAGES_PARSE_H
#define NEB_TEXT_HELP_PAGES_PARSE_H

#include "base/status.h"

#include <stddef.h>

/* Called for every paragraph or heading that has an id; text is one line of UTF-8 without white space at its
 * ends. Anything but NEB_OK ends the reading. */
typedef neb_status (*neb_paragraph_fn)(void *arg, const char *id, const char *text);

/* NEB_ERR_NOTFOUND, NEB_ERR_IO, NEB_ERR_LIMIT (more than 16 MiB), NEB_ERR_CORRUPT (not HTML), NEB_ERR_NOMEM,
 * and any status that fn returned. */
neb_status neb__help_page(const char *path, neb_paragraph_fn fn, void *arg);
neb_status neb__help_page_bytes(const char *html, size_t n, neb_paragraph_fn fn, void *arg);

#endif
