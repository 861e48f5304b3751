/* bytes.h: little-endian fields, and a reader for bytes that come from outside.
 *
 * A reader never runs past its end: after the first field that does not fit, `bad` is set and every further read
 * gives zeros. So a parser reads all its fields first and checks `bad` once. */
#ifndef NEB_BASE_BYTES_H
#define NEB_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline void neb__put16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v, p[1] = (uint8_t)(v >> 8);
}

static inline void neb__put32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(v >> (8 * i));
}

static inline void neb__put64(uint8_t *p, uint64_t v)
{
    for (int i = 0; i < 8; i++) p[i] = (uint8_t)(v >> (8 * i));
}

static inline uint16_t neb__get16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static inline uint32_t neb__get32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t neb__get64(const uint8_t *p)
{
    return neb__get32(p) | (uint64_t)neb__get32(p + 4) << 32;
}

struct neb_reader {
    const uint8_t *p;
    size_t left;
    bool bad;
};

/* The next n bytes, or NULL (and bad) when fewer are left. */
static inline const uint8_t *neb__read(struct neb_reader *r, size_t n)
{
    if (r->bad || n > r->left) {
        r->bad = true;
        return NULL;
    }
    const uint8_t *p = r->p;
    r->p += n;
    r->left -= n;
    return p;
}

static inline uint8_t neb__read8(struct neb_reader *r)
{
    const uint8_t *p = neb__read(r, 1);
    return p ? *p : 0;
}

static inline uint16_t neb__read16(struct neb_reader *r)
{
    const uint8_t *p = neb__read(r, 2);
    return p ? neb__get16(p) : 0;
}

static inline uint32_t neb__read32(struct neb_reader *r)
{
    const uint8_t *p = neb__read(r, 4);
    return p ? neb__get32(p) : 0;
}

static inline uint64_t neb__read64(struct neb_reader *r)
{
    const uint8_t *p = neb__read(r, 8);
    return p ? neb__get64(p) : 0;
}

#endif
