/* vocabulary.c: a vocabulary's texts in one block, with an open-addressing table of their numbers over it.
 * The table is at most half full, so every search ends. */
#include "text/vocabulary.h"
#include "base/mem.h"

#include <string.h>

neb_status neb__vocabulary_init(struct neb_vocabulary *p, size_t size, size_t bytes)
{
    *p = (struct neb_vocabulary){0};
    if (size > NEB_VOCABULARY_MAX || bytes > UINT32_MAX / 2)
        return neb__fail(NEB_ERR_CORRUPT, "a vocabulary of %zu pieces, %zu bytes, is too large", size, bytes);
    uint32_t slots = 16;
    while (slots < 2 * size) slots *= 2;
    p->mask = slots - 1;
    p->text = neb__malloc(bytes + 1);
    p->start = NEB_NEW_ARRAY(uint32_t, size + 1);
    p->table = NEB_NEW_ARRAY(int32_t, slots);
    if (!p->text || !p->start || !p->table) {
        neb__vocabulary_free(p);
        return neb__fail(NEB_ERR_NOMEM, "out of memory for a vocabulary of %zu pieces", size);
    }
    memset(p->start, 0xFF, (size + 1) * sizeof *p->start);
    memset(p->table, 0xFF, slots * sizeof *p->table);
    p->size = (int32_t)size;
    return NEB_OK;
}

void neb__vocabulary_free(struct neb_vocabulary *p)
{
    neb__free(p->text);
    neb__free(p->start);
    neb__free(p->table);
    *p = (struct neb_vocabulary){0};
}

static uint32_t hash_bytes(const char *text, size_t n)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++) h = (h ^ (uint8_t)text[i]) * 16777619u;
    return h ^ h >> 15;
}

int32_t neb__vocabulary_id(const struct neb_vocabulary *p, const char *text, size_t n)
{
    for (uint32_t at = hash_bytes(text, n) & p->mask;; at = (at + 1) & p->mask) {
        int32_t id = p->table[at];
        if (id < 0) return -1;
        const char *known = p->text + p->start[id];
        if (strlen(known) == n && !memcmp(known, text, n)) return id; /* the text may contain zero bytes */
    }
}

void neb__vocabulary_put(struct neb_vocabulary *p, int32_t id, const char *text, size_t n)
{
    p->start[id] = p->used;
    memcpy(p->text + p->used, text, n);
    p->text[p->used + n] = 0;
    p->used += (uint32_t)n + 1;
    if (neb__vocabulary_id(p, text, n) >= 0) return;
    uint32_t at = hash_bytes(text, n) & p->mask;
    while (p->table[at] >= 0) at = (at + 1) & p->mask;
    p->table[at] = id;
}

const char *neb__vocabulary_text(const struct neb_vocabulary *p, int32_t id)
{
    return id >= 0 && id < p->size && p->start[id] != UINT32_MAX ? p->text + p->start[id] : NULL;
}
