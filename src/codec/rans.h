/* rans.h: static entropy coding of small symbols (rANS) and the bucket code that turns integers into them. */
#ifndef NEB_CODEC_RANS_H
#define NEB_CODEC_RANS_H

#include "codec/bits.h"

#define NEB__SYMBOLS    64
#define NEB__PROB_BITS  12
#define NEB__RANS_START 0x10000u

/* How likely each symbol is, in 4096ths. The encoder makes it from counts, the decoder from bits. */
struct neb__model {
    uint16_t freq[NEB__SYMBOLS], start[NEB__SYMBOLS];
    uint8_t symbol[1 << NEB__PROB_BITS]; /* decoder: which symbol owns a slot */
};

/* Writes the model to w and fills freq and start. Counts may be all zero: no symbol can be coded then. */
void neb__model_write(const uint32_t counts[NEB__SYMBOLS], struct neb__bitw *w, struct neb__model *m);
/* Fills all of m. False: no encoder writes these bits. */
bool neb__model_read(struct neb__bitr *r, struct neb__model *m);

/* Codes a list of symbols, last first, so that the decoder gets them in order. `p` begins at the end of the
 * words and moves down, by at most one word a symbol. */
struct neb__ransw {
    uint32_t state;
    uint16_t *p;
};

static inline void neb__rans_put(struct neb__ransw *w, const struct neb__model *m, int symbol)
{
    uint32_t freq = m->freq[symbol], x = w->state;
    if (x >= (uint64_t)freq << (32 - NEB__PROB_BITS)) {
        *--w->p = (uint16_t)x;
        x >>= 16;
    }
    w->state = (x / freq << NEB__PROB_BITS) + x % freq + m->start[symbol];
}

struct neb__ransr {
    uint32_t state;
    const uint8_t *p; /* words, little-endian */
    size_t left;      /* words */
    bool bad;
};

static inline int neb__rans_get(struct neb__ransr *r, const struct neb__model *m)
{
    uint32_t slot = r->state & ((1u << NEB__PROB_BITS) - 1);
    int symbol = m->symbol[slot];
    r->state = m->freq[symbol] * (r->state >> NEB__PROB_BITS) + slot - m->start[symbol];
    if (r->state < NEB__RANS_START) {
        if (!r->left) {
            r->bad = true;
            r->state |= NEB__RANS_START;
            return symbol;
        }
        r->state = r->state << 16 | r->p[0] | (uint32_t)r->p[1] << 8;
        r->p += 2;
        r->left--;
    }
    return symbol;
}

static inline bool neb__rans_done(const struct neb__ransr *r)
{
    return !r->bad && r->left == 0 && r->state == NEB__RANS_START;
}

/* Buckets 0 and 1 stand for themselves. From 2 on there are two buckets an octave, and the rest of the bits
 * is sent as it is. 64 buckets cover 32 bits. */
static inline int neb__bucket(uint32_t v, int *extra)
{
    if (v < 2) {
        *extra = 0;
        return (int)v;
    }
    int top = 31 - __builtin_clz(v);
    *extra = top - 1;
    return 2 * top + (int)(v >> (top - 1) & 1);
}

static inline uint32_t neb__bucket_base(int bucket, int *extra)
{
    if (bucket < 2) {
        *extra = 0;
        return (uint32_t)bucket;
    }
    int top = bucket / 2;
    *extra = top - 1;
    return (2u + (uint32_t)(bucket & 1)) << (top - 1);
}

static inline uint32_t neb__zigzag(int32_t v)
{
    return (uint32_t)v << 1 ^ (uint32_t)(v >> 31);
}

static inline int32_t neb__unzigzag(uint32_t v)
{
    return (int32_t)(v >> 1) ^ -(int32_t)(v & 1);
}

#endif
