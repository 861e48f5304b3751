/* catalogue.h: the translated strings of a program: one compiled message catalogue of gettext (a .mo file). */
#ifndef NEB_TEXT_CATALOGUE_H
#define NEB_TEXT_CATALOGUE_H

#include "base/status.h"

#include <stddef.h>

/* Called for every message that has a translation: the English string without its context, and the translation. Of a
 * message with plural forms: the first form of each. Both are valid UTF-8. Anything but NEB_OK ends the reading. */
typedef neb_status (*neb_message_fn)(void *arg, const char *english, const char *translation);

/* NEB_ERR_NOTFOUND, NEB_ERR_IO, NEB_ERR_CORRUPT (not a catalogue, or it points outside itself), NEB_ERR_NOSPACE
 * (more than 64 MiB), NEB_ERR_NOMEM, and any status that fn returned. */
neb_status neb__catalogue_read(const char *path, neb_message_fn fn, void *arg);
neb_status neb__catalogue_read_bytes(const void *bytes, size_t n, neb_message_fn fn, void *arg);

#endif
