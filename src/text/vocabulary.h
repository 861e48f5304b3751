/* vocabulary.h: the pieces of a vocabulary, numbered from 0; a piece is found by its text. */
#ifndef NEB_TEXT_VOCABULARY_H
#define NEB_TEXT_VOCABULARY_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

enum { NEB_VOCABULARY_MAX = 1 << 22 };

struct neb_vocabulary {
    char *text;      /* null-terminated, one after the other */
    uint32_t *start; /* (size) into text; UINT32_MAX: not there yet */
    int32_t *table;  /* (mask + 1) open addressing: piece, or -1 */
    uint32_t mask, used;
    int32_t size;
};

/* For up to `size` pieces of `bytes` bytes in all, their terminators counted. A successful init owes a free.
 * NEB_ERR_CORRUPT: more than NEB_VOCABULARY_MAX, or too many bytes; NEB_ERR_NOMEM */
neb_status neb__vocabulary_init(struct neb_vocabulary *p, size_t size, size_t bytes);
void neb__vocabulary_free(struct neb_vocabulary *p);

/* Gives number `id` this text. Among equal texts, a search finds the one added first. */
void neb__vocabulary_put(struct neb_vocabulary *p, int32_t id, const char *text, size_t n);
int32_t neb__vocabulary_id(const struct neb_vocabulary *p, const char *text, size_t n); /* or -1 */
const char *neb__vocabulary_text(const struct neb_vocabulary *p, int32_t id);           /* or NULL */

#endif
