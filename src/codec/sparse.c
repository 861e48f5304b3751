/* sparse.c: one cell of a sparse rung. It keeps the k largest of every chunk of 4096 values, each in 1 to 4
 * bits.
 *
 * The chosen positions are sent as gaps. If they fall anywhere with equal chance, a set of k of 4096 costs
 * log2 C(4096, k) bits (7.36 a position for k = 64), and independent gaps in their true distribution cost
 * 7.43. Positions that cluster, as in embeddings, cost less, because the distribution is measured. A value is
 * a sign and one of 1, 2, 4 or 8 equally spaced magnitudes between a lowest and a highest level. Least
 * squares fit both levels to the chunk. They are sent in sixteenths of an octave, as differences. The levels
 * are made of sums and products in fp32 with one rounding each, so they are the same on all machines.
 *
 *     cell  := words u16 · flags u8 (bit 0: chunks say how many they keep) · rANS state u32 · words · bits
 *     bits  := model of gaps · of magnitudes · of levels, then for each chunk [count, 7 bits; 9 where
 *              k >= 128] and, if it keeps any, extra bits of its levels, then for each position extra bits of
 *              the gap and the sign
 *     rANS  := for each chunk that keeps any: lowest level (zigzag difference to the last chunk's),
 *              highest - lowest (not for 1 bit), then for each position its gap and (not for 1 bit) its
 *              magnitude
 *
 * The choice is exact: the k largest, and among equals the lowest positions. A threshold guessed from the
 * chunk before collects a few candidates, which are then ranked. A guess that catches too few is replaced by
 * one from a histogram. Both ways find the same values. A chunk of only zeros or of magnitudes below 2^-100
 * keeps nothing. */
#include "codec/sparse.h"
#include "codec/rans.h"
#include "base/bytes.h"
#include "base/clamp.h"
#include "base/mem.h"

#include <string.h>

enum {
    CHUNKS = (int)(NEB_CELL / NEB__CHUNK),
    MOST_KEPT = 256,           /* at most 500: the words of a cell are counted in 16 bits */
    LEVEL_MIN = 27 * 16,       /* 2^-100 */
    LEVEL_MAX = 252 * 16 + 15, /* just below 2^126 */
    CELL_HEADER = 7,
    WORDS = CHUNKS * (2 * MOST_KEPT + 2),
};

struct chunk {
    int kept;
    int lo, hi; /* levels */
    uint16_t gap[MOST_KEPT];
    uint8_t magnitude[MOST_KEPT], negative[MOST_KEPT];
};

struct neb__sparse {
    float z[NEB__CHUNK], pad[NEB__CHUNK];
    uint16_t candidate[NEB__CHUNK], kept[MOST_KEPT + 1];
    uint32_t rank[NEB__CHUNK + 16];
    uint16_t histogram[NEB__CHUNK];
    uint16_t words[WORDS];
    struct chunk chunk[CHUNKS];
    struct neb__model gap, magnitude, level;
};

struct neb__sparse *neb__sparse_create(void)
{
    return neb__aligned(sizeof(struct neb__sparse));
}

void neb__sparse_free(struct neb__sparse *s)
{
    neb__free(s);
}

static int quota(const struct neb_rung *rung, size_t n) /* values kept of a chunk of n */
{
    return (int)((rung->k * n + NEB__CHUNK - 1) / NEB__CHUNK);
}

static int count_bits(const struct neb_rung *rung)
{
    return rung->k < 128 ? 7 : 9;
}

size_t neb__sparse_bound(const struct neb_rung *rung, size_t n)
{
    size_t chunks = (n + NEB__CHUNK - 1) / NEB__CHUNK;
    /* A symbol takes at most 12 bits and a gap 11 extra ones. Three models take 65 bytes each. */
    return CELL_HEADER + 2 + 3 * 65 + chunks * (8 + (size_t)rung->k * 5);
}

/* ---- levels -------------------------------------------------------------------------------------------- */

static uint32_t bits_of(float f)
{
    uint32_t b;
    memcpy(&b, &f, 4);
    return b;
}

static float float_of(uint32_t b)
{
    float f;
    memcpy(&f, &b, 4);
    return f;
}

/* 2^(i/16) and the limits 2^((i+0.5)/16) between them, as mantissas. */
static const uint32_t level_mantissa[16] = {0x000000, 0x05AAC3, 0x0B95C2, 0x11C3D3, 0x1837F0, 0x1EF532,
                                            0x25FED7, 0x2D583F, 0x3504F3, 0x3D08A4, 0x45672A, 0x4E248C,
                                            0x5744FD, 0x60CCDF, 0x6AC0C7, 0x75257D};
static const uint32_t level_limit[16] = {0x02CD87, 0x08980F, 0x0EA43A, 0x14F4F0, 0x1B8D3A, 0x227043,
                                         0x29A15B, 0x3123F6, 0x38FBAF, 0x412C4D, 0x49B9BE, 0x52A81E,
                                         0x5BFBB8, 0x65B907, 0x6FE4BA, 0x7A83B3};

static float level_value(int code)
{
    return float_of((uint32_t)(code >> 4) << 23 | level_mantissa[code & 15]);
}

static int level_code(float x) /* the nearest, x > 0 */
{
    uint32_t b = bits_of(x), mantissa = b & 0x7FFFFF;
    int code = (int)(b >> 23) * 16, i = 0;
    while (i < 16 && mantissa >= level_limit[i]) i++;
    code += i;
    return (int)neb__clamp_int(code, LEVEL_MIN, LEVEL_MAX);
}

static void levels(int lo, int hi, int bits, float out[8])
{
    int count = 1 << (bits - 1);
    float a = level_value(lo), width = level_value(hi) - a;
    out[0] = a;
    for (int j = 1; j < count; j++) out[j] = a + width * ((float)j / (float)(count - 1));
}

/* ---- choosing ------------------------------------------------------------------------------------------ */

/* A threshold that at least k magnitudes exceed, or 0. */
static uint32_t threshold_from_histogram(struct neb__sparse *s, size_t n, int k)
{
    memset(s->histogram, 0, sizeof s->histogram);
    for (size_t i = 0; i < n; i++) s->histogram[(bits_of(s->z[i]) & 0x7FFFFFFF) >> 19]++;
    int have = 0, bin = NEB__CHUNK;
    while (have < k && bin > 0) have += s->histogram[--bin];
    return bin > 0 ? ((uint32_t)bin << 19) - 1 : 0;
}

/* Writes the positions of the k largest nonzero magnitudes of s->z to s->kept, ascending, and returns their
 * number. s->z has n values, padded to a multiple of 16 with zeros. *guess: a threshold to try, updated for
 * the next chunk. */
static int choose(struct neb__sparse *s, size_t n, int k, uint32_t *guess)
{
    const struct neb__codec_kernels *kernels = neb__codec_kernels();
    size_t padded = (n + 15) & ~(size_t)15;
    uint32_t above = *guess;
    int found = kernels->collect(s->z, padded, above, NEB__CHUNK, s->candidate);
    if (found < k && above) {
        above = threshold_from_histogram(s, n, k);
        found = kernels->collect(s->z, padded, above, NEB__CHUNK, s->candidate);
    }
    if (found <= k) {
        *guess = above;
        memcpy(s->kept, s->candidate, (size_t)found * sizeof *s->kept);
        return found;
    }
    uint32_t largest = 0;
    memset(s->rank + (found & ~15), 0, 16 * sizeof *s->rank);
    for (int i = 0; i < found; i++) {
        s->rank[i] = bits_of(s->z[s->candidate[i]]) & 0x7FFFFFFF;
        largest = s->rank[i] > largest ? s->rank[i] : largest;
    }
    uint32_t least = kernels->nth(s->rank, found, k, above + 1, largest);
    int larger = 0, kept = 0;
    for (int i = 0; i < found; i++) larger += s->rank[i] > least;
    int equals = k - larger;
    for (int i = 0; i < found; i++) {
        int equal = s->rank[i] == least && equals > 0;
        equals -= equal;
        s->kept[kept] =
            s->candidate[i]; /* the next one overwrites it unless it stays: no branch to mispredict */
        kept += (s->rank[i] > least) | equal;
    }
    *guess = bits_of(0.93f * float_of(least));
    return kept;
}

/* ---- fitting ------------------------------------------------------------------------------------------- */

/* Finds the lowest and the highest of top + 1 equally spaced levels for n magnitudes (filled to a multiple of
 * 16 with zeros). Each of three rounds assigns every magnitude to its nearest level and fits the line through
 * them. */
static void fit(const float *m, int n, int bits, float *lo_out, float *hi_out)
{
    float top = (float)((1 << (bits - 1)) - 1), count = (float)n, sum = 0, lo = m[0], max = m[0];
    for (int i = 0; i < n; i++) {
        sum += m[i];
        lo = m[i] < lo ? m[i] : lo;
        max = m[i] > max ? m[i] : max;
    }
    float mean = sum / count, hi = lo + (float)bits * (mean - lo);
    if (hi > max) hi = max;
    for (int round = 0; round < 3 && top > 0 && hi > lo; round++) {
        float s[3]; /* of j, j^2, j m */
        neb__codec_kernels()->fit_sums(m, n, lo, top / (hi - lo), top, s);
        float det = count * s[1] - s[0] * s[0];
        float slope = (count * s[2] - s[0] * sum) / det, start = (sum - slope * s[0]) / count;
        if (!(det > 0) || !(slope > 0) || !(start > 0) || !(slope < max) || !(start <= max)) break;
        lo = start;
        hi = start + slope * top;
    }
    *lo_out = top > 0 ? lo : mean;
    *hi_out = hi;
}

/* Codes the kept values of s->z into c and subtracts the coded values from s->z. */
static void quantise(struct neb__sparse *s, int bits, struct chunk *c)
{
    float m[MOST_KEPT] = {0}, lo, hi, level[8];
    for (int i = 0; i < c->kept; i++) m[i] = float_of(bits_of(s->z[s->kept[i]]) & 0x7FFFFFFF);
    fit(m, c->kept, bits, &lo, &hi);
    c->lo = level_code(lo);
    c->hi = level_code(hi);
    if (c->hi < c->lo || bits == 1) c->hi = c->lo;
    levels(c->lo, c->hi, bits, level);
    int top = (1 << (bits - 1)) - 1, last = -1;
    float width = level[top] - level[0];
    neb__codec_kernels()->assign(m, c->kept, level[0], width > 0 ? (float)top / width : 0, (float)top,
                                 c->magnitude);
    for (int i = 0; i < c->kept; i++) {
        float *z = &s->z[s->kept[i]];
        uint32_t sign = bits_of(*z) & 0x80000000u;
        *z -= float_of(bits_of(level[c->magnitude[i]]) | sign);
        c->negative[i] = (uint8_t)(sign >> 31);
        c->gap[i] = (uint16_t)(s->kept[i] - last - 1);
        last = s->kept[i];
    }
}

/* ---- a cell to bytes ----------------------------------------------------------------------------------- */

struct counts {
    uint32_t gap[NEB__SYMBOLS], magnitude[NEB__SYMBOLS], level[NEB__SYMBOLS];
};

static void count(const struct neb__sparse *s, int chunks, int bits, struct counts *n)
{
    int last = LEVEL_MIN, extra;
    memset(n, 0, sizeof *n);
    for (int i = 0; i < chunks; i++) {
        const struct chunk *c = &s->chunk[i];
        if (!c->kept) continue;
        n->level[neb__bucket(neb__zigzag(c->lo - last), &extra)]++;
        last = c->lo;
        if (bits > 1) n->level[neb__bucket((uint32_t)(c->hi - c->lo), &extra)]++;
        for (int j = 0; j < c->kept; j++) {
            n->gap[neb__bucket(c->gap[j], &extra)]++;
            if (bits > 1) n->magnitude[c->magnitude[j]]++;
        }
    }
}

static void put_extra(struct neb__bitw *w, uint32_t v)
{
    int extra;
    neb__bucket(v, &extra);
    if (extra) neb__bits_put(w, v & ((1u << extra) - 1), extra);
}

static void put_bits(const struct neb__sparse *s, int chunks, const struct neb_rung *rung, bool counted,
                     struct neb__bitw *w)
{
    int last = LEVEL_MIN, bits = rung->bits;
    for (int i = 0; i < chunks; i++) {
        const struct chunk *c = &s->chunk[i];
        if (counted) neb__bits_put(w, (uint32_t)c->kept, count_bits(rung));
        if (!c->kept) continue;
        put_extra(w, neb__zigzag(c->lo - last));
        last = c->lo;
        if (bits > 1) put_extra(w, (uint32_t)(c->hi - c->lo));
        for (int j = 0; j < c->kept; j++) {
            int extra;
            uint32_t gap = c->gap[j];
            neb__bucket(gap, &extra);
            neb__bits_put(w, (gap & ((1u << extra) - 1)) | (uint32_t)c->negative[j] << extra, extra + 1);
        }
    }
    neb__bits_end(w);
}

static void put_symbols(const struct neb__sparse *s, int chunks, int bits, struct neb__ransw *w)
{
    int extra;
    for (int i = chunks - 1; i >= 0; i--) {
        const struct chunk *c = &s->chunk[i];
        if (!c->kept) continue;
        for (int j = c->kept - 1; j >= 0; j--) {
            if (bits > 1) neb__rans_put(w, &s->magnitude, c->magnitude[j]);
            neb__rans_put(w, &s->gap, neb__bucket(c->gap[j], &extra));
        }
        int before = i - 1;
        while (before >= 0 && !s->chunk[before].kept) before--;
        int last = before >= 0 ? s->chunk[before].lo : LEVEL_MIN;
        if (bits > 1) neb__rans_put(w, &s->level, neb__bucket((uint32_t)(c->hi - c->lo), &extra));
        neb__rans_put(w, &s->level, neb__bucket(neb__zigzag(c->lo - last), &extra));
    }
}

static size_t write_cell(struct neb__sparse *s, const struct neb_rung *rung, int chunks, bool counted,
                         uint8_t *out)
{
    struct counts n;
    uint8_t side[3 * 65];
    struct neb__bitw models = {side, side + sizeof side, 0, 0, false};
    count(s, chunks, rung->bits, &n);
    neb__model_write(n.gap, &models, &s->gap);
    neb__model_write(n.magnitude, &models, &s->magnitude);
    neb__model_write(n.level, &models, &s->level);

    struct neb__ransw r = {NEB__RANS_START, s->words + WORDS};
    put_symbols(s, chunks, rung->bits, &r);
    size_t words = (size_t)(s->words + WORDS - r.p);
    neb__put16(out, (uint16_t)words);
    out[2] = counted;
    neb__put32(out + 3, r.state);
    uint8_t *p = out + CELL_HEADER;
    for (size_t i = 0; i < words; i++) neb__put16(p + 2 * i, r.p[i]);
    p += 2 * words;

    /* The models go first. Their last bits share a byte with the bits that follow. */
    size_t whole = (size_t)(models.p - side);
    memcpy(p, side, whole);
    struct neb__bitw w = {p + whole, out + neb__sparse_bound(rung, (size_t)chunks * NEB__CHUNK), models.acc,
                          models.held, false};
    put_bits(s, chunks, rung, counted, &w);
    return (size_t)(w.p - out);
}

bool neb__sparse_encode(struct neb__sparse *s, const struct neb_rung *rung, struct neb__pass *p, uint8_t *out,
                        size_t *len)
{
    const struct neb__codec_kernels *kernels = neb__codec_kernels();
    int chunks = (int)((p->n + NEB__CHUNK - 1) / NEB__CHUNK);
    bool counted = false;
    uint32_t guess = 0x7F000000u; /* nothing exceeds it, so the first chunk asks the histogram */
    for (int i = 0; i < chunks; i++) {
        size_t at = (size_t)i * NEB__CHUNK, n = p->n - at < NEB__CHUNK ? p->n - at : NEB__CHUNK;
        struct neb__pass part = {
            p->z + at, n, p->next ? p->next + at : NULL, p->stream, {p->sq[0], p->sq[1]}};
        if (n % 16) { /* the kernels see multiples of 16 */
            part.n = (n + 15) & ~(size_t)15;
            memset(s->pad + n, 0, (part.n - n) * sizeof *s->pad);
            part.z = memcpy(s->pad, part.z, n * sizeof *s->pad);
            part.next = NULL;
        }
        uint32_t largest = kernels->take(&part, s->z);
        if (largest >= NEB__LIMIT_BITS) return false;
        struct chunk *c = &s->chunk[i];
        int k = quota(rung, n);
        c->kept = largest < NEB__TINY_BITS ? 0 : choose(s, n, k, &guess);
        if (c->kept) quantise(s, rung->bits, c);
        counted |= c->kept != k;
        kernels->flush(&part, s->z);
        if (p->next && !part.next) memcpy(p->next + at, s->z, n * sizeof *s->z);
        memcpy(p->sq, part.sq, sizeof p->sq);
    }
    *len = write_cell(s, rung, chunks, counted, out);
    return true;
}

/* ---- bytes to a cell ----------------------------------------------------------------------------------- */

struct reader {
    struct neb__bitr bits;
    struct neb__ransr rans;
    struct neb__model gap, magnitude, level;
};

static uint32_t get_number(struct reader *r, const struct neb__model *m)
{
    int extra;
    uint32_t base = neb__bucket_base(neb__rans_get(&r->rans, m), &extra);
    return extra ? base + neb__bits_get(&r->bits, extra) : base;
}

static bool read_chunk(struct reader *r, int bits, int kept, size_t n, int *last, float *out)
{
    float level[8];
    uint32_t step = get_number(r, &r->level), width = bits > 1 ? get_number(r, &r->level) : 0;
    if (step > 2 * LEVEL_MAX || width > LEVEL_MAX) return false;
    int lo = *last + neb__unzigzag(step), hi = lo + (int)width;
    if (lo < LEVEL_MIN || hi > LEVEL_MAX) return false;
    *last = lo;
    levels(lo, hi, bits, level);
    int top = (1 << (bits - 1)) - 1;
    size_t at = 0;
    for (int i = 0; i < kept; i++) {
        at += get_number(r, &r->gap);
        if (at >= n) return false;
        int j = bits > 1 ? neb__rans_get(&r->rans, &r->magnitude) : 0;
        if (j > top) return false;
        out[at++] = neb__bits_get(&r->bits, 1) ? -level[j] : level[j];
    }
    return !r->bits.bad && !r->rans.bad;
}

bool neb__sparse_decode(const struct neb_rung *rung, const uint8_t *bytes, size_t len, size_t n, float *out)
{
    struct neb_reader head = {bytes, len, false};
    size_t words = neb__read16(&head);
    int flags = neb__read8(&head);
    uint32_t start = neb__read32(&head); /* one read a statement: a list has no fixed order */
    const uint8_t *coded = neb__read(&head, 2 * words);
    struct reader r;
    r.rans = (struct neb__ransr){start, coded, words, false};
    if (head.bad || flags > 1 || r.rans.state < NEB__RANS_START) return false;
    r.bits = (struct neb__bitr){head.p, head.left, 0, 0, false};
    if (!neb__model_read(&r.bits, &r.gap) || !neb__model_read(&r.bits, &r.magnitude) ||
        !neb__model_read(&r.bits, &r.level))
        return false;
    memset(out, 0, n * sizeof *out);
    int last = LEVEL_MIN;
    for (size_t at = 0; at < n; at += NEB__CHUNK) {
        size_t m = n - at < NEB__CHUNK ? n - at : NEB__CHUNK;
        int kept = quota(rung, m);
        if (flags) {
            int told = (int)neb__bits_get(&r.bits, count_bits(rung));
            if (told > kept) return false;
            kept = told;
        }
        if (kept && !read_chunk(&r, rung->bits, kept, m, &last, out + at)) return false;
    }
    return neb__rans_done(&r.rans) && neb__bits_done(&r.bits);
}
