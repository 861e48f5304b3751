/* bits.h: a stream of bits, least significant first.
 *
 * The owner of a writer checks its space beforehand. `put` never writes past `end`; it only notes in `full`
 * that it would have. The reader gives zeros behind the end and notes that in `bad`, so callers read first
 * and check once. */
#ifndef NEB_CODEC_BITS_H
#define NEB_CODEC_BITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct neb__bitw {
    uint8_t *p, *end;
    uint64_t acc;
    int held; /* bits in acc, below 8 between calls */
    bool full;
};

static inline void neb__bits_put(struct neb__bitw *w, uint32_t v, int bits) /* v < 2^bits, bits <= 32 */
{
    w->acc |= (uint64_t)v << w->held;
    w->held += bits;
    if (w->end - w->p >= 8) { /* the usual way: write eight bytes at once; later calls overwrite the rest */
        memcpy(w->p, &w->acc, 8);
        w->p += w->held >> 3;
        w->acc >>= w->held & ~7;
        w->held &= 7;
        return;
    }
    while (w->held >= 8) {
        if (w->p < w->end)
            *w->p++ = (uint8_t)w->acc;
        else
            w->full = true;
        w->acc >>= 8;
        w->held -= 8;
    }
}

static inline void neb__bits_end(struct neb__bitw *w) /* fills the last byte with zeros */
{
    if (w->held) neb__bits_put(w, 0, 8 - w->held);
}

struct neb__bitr {
    const uint8_t *p;
    size_t left;
    uint64_t acc;
    int held;
    bool bad;
};

static inline uint32_t neb__bits_get(struct neb__bitr *r, int bits) /* bits <= 32 */
{
    if (r->held < bits && r->left >= 4) {
        uint32_t next;
        memcpy(&next, r->p, 4);
        r->acc |= (uint64_t)next << r->held;
        r->p += 4;
        r->left -= 4;
        r->held += 32;
    }
    while (r->held < bits) {
        if (r->left) {
            r->acc |= (uint64_t)*r->p++ << r->held;
            r->left--;
        } else {
            r->bad = true;
        }
        r->held += 8;
    }
    uint32_t v = (uint32_t)(r->acc & (((uint64_t)1 << bits) - 1));
    r->acc >>= bits;
    r->held -= bits;
    return v;
}

/* True when nothing but the zeros that fill the last byte is left. */
static inline bool neb__bits_done(const struct neb__bitr *r)
{
    return !r->bad && r->left == 0 && r->held < 8 && r->acc == 0;
}

#endif
