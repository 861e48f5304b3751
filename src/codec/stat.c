/* stat.c: one cell of a statistical rung: every value in about two bits, at levels that are fitted to the cell.
 *
 * A block of 64 values has a scale: its mean magnitude, in quarters of an octave. Magnitudes are counted in units of their
 * block's scale. The histogram of the cell then tells, for any width of the bins, how many bits the values take and how much
 * is left out. The cell takes the width that leaves out least of those that keep to the rung's bits. Bin 0 lies around zero;
 * bins -15 ... 15 have one level each for both signs, the mean of the values that fell into it. Width and levels go with the
 * cell. Bins go through the entropy coder, so they cost what they tell: the tails need bins of their own, but hardly any bits.
 * For normally distributed values and 2 bits this leaves out 0.30 of the norm; four fixed levels, without an entropy coder,
 * leave out 0.34 in 2 bits and a scale.
 *
 *     cell  := words u32 · width u8 (32nds of the scale) · highest bin u8 · rANS states u32 (4)
 *              · a byte for each bin from 1 on: its level, in 256ths of the bin · words · bits
 *     bits  := model of scales · of bins, then for each block that has one extra bits of its scale
 *     rANS  := for each block: scale (0: all values are zeros; else 1 + zigzag difference to the last one), then, if it has
 *              one, the bin of each value: 0, or 2 |bin| - 1 + sign
 *
 * Four rANS states take turns, so that the processor can work on four symbols at a time.
 *
 * A decoded value is one product of two floats that are exact on all machines: level times scale. All else is integers and
 * single IEEE operations. A block whose magnitudes are all below 2^-100 is coded as zeros. */
#include "codec/stat.h"
#include "codec/rans.h"
#include "base/bytes.h"
#include "base/mem.h"

#include <string.h>

enum {
    BLOCK = 64,
    BLOCKS = (int)(NEB_CELL / BLOCK),
    TOP = 15,
    UNITS = 32,           /* of the histogram and of widths, in a block's scale */
    FINE = UNITS * BLOCK, /* bins of the histogram: a magnitude is at most BLOCK times the mean */
    WIDTH_MIN = 4,
    WIDTH_MAX = 255,
    STATES = 4,
    SCALE_MIN = 27 * 4,      /* 2^-100 */
    SCALE_MAX = 252 * 4 + 3, /* below 2^126 */
    HEAD = 6 + 4 * STATES,
    IS_SCALE = 0x80, /* in the list of symbols */
};

struct neb__stat {
    float z[NEB_CELL];
    uint16_t scale[BLOCKS]; /* 0: all values are zeros */
    uint32_t fine[FINE];
    uint8_t symbol[NEB_CELL + BLOCKS];
    uint16_t words[NEB_CELL + BLOCKS];
    struct neb__model scales, bins;
};

struct neb__stat *neb__stat_create(void)
{
    return neb__aligned(sizeof(struct neb__stat));
}

void neb__stat_free(struct neb__stat *s)
{
    neb__free(s);
}

size_t neb__stat_bound(size_t n)
{
    size_t blocks = (n + BLOCK - 1) / BLOCK;
    /* A symbol takes at most 12 bits, a scale 9 more. A model has at most 65 bytes. */
    return HEAD + TOP + 2 * 65 + 2 + (n + blocks) * 3 / 2 + 2 * STATES + blocks * 9 / 8 + 2;
}

/* ---- scales and levels --------------------------------------------------------------------------------------- */

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

/* 2^(i/4) and the limits 2^((i+0.5)/4) between them, as mantissas. */
static const uint32_t scale_mantissa[4] = {0x000000, 0x1837F0, 0x3504F3, 0x5744FD};
static const uint32_t scale_limit[4] = {0x0B95C2, 0x25FED7, 0x45672A, 0x6AC0C7};

static float scale_value(int code)
{
    return float_of((uint32_t)(code >> 2) << 23 | scale_mantissa[code & 3]);
}

static int scale_code(float x) /* the nearest, x > 0 */
{
    uint32_t b = bits_of(x), mantissa = b & 0x7FFFFF;
    int code = (int)(b >> 23) * 4, i = 0;
    while (i < 4 && mantissa >= scale_limit[i]) i++;
    code += i;
    if (code < SCALE_MIN) return SCALE_MIN;
    return code > SCALE_MAX ? SCALE_MAX : code;
}

/* Levels of the bins in units of a scale. Each is an integer of 20 bits over 2^13: exact. */
static void make_levels(int width, int top, const uint8_t *fraction, float level[TOP + 1])
{
    level[0] = 0;
    for (int j = 1; j <= top; j++) level[j] = (float)((j * 256 - 128 + fraction[j - 1]) * width) * 0x1p-13f;
}

/* The values of a block's symbols. A level that the block cannot have had stays finite. */
static void make_values(const float level[TOP + 1], int top, float scale, float value[2 * TOP + 1])
{
    value[0] = 0;
    for (int j = 1; j <= top; j++) {
        float v = level[j] * scale;
        if (!(v < 0x1.fffffep125f)) v = 0x1.fffffep125f;
        value[2 * j - 1] = v;
        value[2 * j] = -v;
    }
}

/* ---- fitting ------------------------------------------------------------------------------------------------- */

/* The mean magnitude of m values, in 16 sums that are added up in one order. */
static float mean_magnitude(const float *z, int m)
{
    float sum[16] = {0}, all = 0;
    int at = 0;
    for (; at + 16 <= m; at += 16)
        for (int i = 0; i < 16; i++) sum[i] += float_of(bits_of(z[at + i]) & 0x7FFFFFFF) * (1.0f / BLOCK);
    for (int i = 0; at + i < m; i++) sum[i] += float_of(bits_of(z[at + i]) & 0x7FFFFFFF) * (1.0f / BLOCK);
    for (int i = 0; i < 16; i++) all += sum[i];
    return all * ((float)BLOCK / (float)m);
}

static void measure_block(struct neb__stat *s, size_t at, int m)
{
    const float *z = s->z + at;
    uint32_t largest = 0;
    for (int i = 0; i < m; i++) {
        uint32_t b = bits_of(z[i]) & 0x7FFFFFFF;
        largest = b > largest ? b : largest;
    }
    s->scale[at / BLOCK] = 0;
    if (largest < NEB__TINY_BITS) return;
    const int code = scale_code(mean_magnitude(z, m));
    const float units = (float)UNITS / scale_value(code);
    s->scale[at / BLOCK] = (uint16_t)code;
    int32_t fine[BLOCK];
    for (int i = 0; i < m; i++) {
        float y = float_of(bits_of(z[i]) & 0x7FFFFFFF) * units;
        y = y < (float)(FINE - 1) ? y : (float)(FINE - 1);
        fine[i] = (int32_t)y;
    }
    for (int i = 0; i < m; i++) s->fine[fine[i]]++;
}

/* log2 of n in 65536ths, n > 0, within 0.01. */
static uint64_t log_of(uint32_t n)
{
    const int whole = 31 - __builtin_clz(n);
    const uint64_t m = ((uint64_t)n << 16 >> whole) - 65536;
    return ((uint64_t)whole << 16) + m + (m * (65536 - m) >> 16) * 22713 / 65536;
}

static int bin_of_fine(int f, int width)
{
    int j = (2 * f + 1 + width) / (2 * width);
    return j < TOP ? j : TOP;
}

/* What bins of this width cost, in 65536ths of a bit, and what they leave out, in squares of half a unit. */
static void try_width(const struct neb__stat *s, int width, uint64_t *bits, uint64_t *error)
{
    uint32_t count[TOP + 1] = {0}, n = 0;
    *bits = *error = 0;
    for (int f = 0; f < FINE; f++) {
        if (!s->fine[f]) continue;
        const int j = bin_of_fine(f, width);
        const int64_t off = 2 * f + 1 - 2 * (int64_t)j * width;
        count[j] += s->fine[f];
        *error += (uint64_t)(off * off) * s->fine[f];
    }
    for (int j = 0; j <= TOP; j++) n += count[j];
    if (!n) return;
    *bits = n * log_of(n) + ((uint64_t)(n - count[0]) << 16); /* the signs */
    for (int j = 0; j <= TOP; j++)
        if (count[j]) *bits -= count[j] * log_of(count[j]);
}

static uint64_t bits_of_width(const struct neb__stat *s, int width)
{
    uint64_t bits, error;
    try_width(s, width, &bits, &error);
    return bits;
}

/* The least width that keeps to `most` bits; of it and larger ones, the one that leaves out least. Narrow bins clip the
 * tails. */
static int choose_width(const struct neb__stat *s, uint64_t most)
{
    int lo = WIDTH_MIN, hi = WIDTH_MAX;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (bits_of_width(s, mid) <= most)
            hi = mid;
        else
            lo = mid + 1;
    }
    int best = lo;
    uint64_t least = UINT64_MAX;
    for (int width = lo; width <= WIDTH_MAX; width += width / 6 + 1) {
        uint64_t bits, error;
        try_width(s, width, &bits, &error);
        if (error >= least) continue;
        least = error;
        best = width;
    }
    return best;
}

/* ---- a cell to bytes ----------------------------------------------------------------------------------------- */

struct fitted {
    int width, top, symbols;
    uint8_t fraction[TOP];
    uint32_t scales[NEB__SYMBOLS], bins[NEB__SYMBOLS]; /* how often each symbol occurs */
};

/* The symbols of a block. The first loop has no branches, so that a compiler can do many at a time. */
static void assign(struct neb__stat *s, size_t at, int m, struct fitted *f)
{
    const float bins = (float)UNITS / (float)f->width / scale_value(s->scale[at / BLOCK]);
    const float *z = s->z + at;
    uint8_t *to = s->symbol + f->symbols;
    for (int i = 0; i < m; i++) {
        const uint32_t b = bits_of(z[i]);
        float y = float_of(b & 0x7FFFFFFF) * bins + 0.5f;
        y = y < (float)TOP ? y : (float)TOP;
        const int32_t j = (int32_t)y;
        to[i] = (uint8_t)(2 * j - (j > 0) + (int32_t)(b >> 31 & (uint32_t)(j > 0)));
    }
    for (int i = 0; i < m; i++) f->bins[to[i]]++;
    f->symbols += m;
}

/* The level of each bin, from the histogram: where in the bin its values lie on average. The last bin has no end, and its
 * level stays inside. */
static void fit_levels(const struct neb__stat *s, struct fitted *f)
{
    uint64_t count[TOP + 1] = {0}, sum[TOP + 1] = {0};
    const int width = f->width;
    for (int i = 0; i < FINE; i++) {
        if (!s->fine[i]) continue;
        const int j = bin_of_fine(i, width);
        int64_t inside = (int64_t)(2 * i + 1 - (2 * j - 1) * width) * 128 / width; /* in 256ths */
        if (inside < 0) inside = 0;
        if (inside > 255) inside = 255;
        count[j] += s->fine[i];
        sum[j] += (uint64_t)inside * s->fine[i];
    }
    for (int j = 1; j <= TOP; j++) {
        f->fraction[j - 1] = (uint8_t)(count[j] ? (sum[j] + count[j] / 2) / count[j] : 128);
        if (f->bins[2 * j - 1] || f->bins[2 * j]) f->top = j;
    }
}

static uint32_t scale_step(const struct neb__stat *s, size_t block, int *last)
{
    uint32_t step = 1 + neb__zigzag(s->scale[block] - *last);
    *last = s->scale[block];
    return step;
}

static void quantise(struct neb__stat *s, size_t n, struct fitted *f)
{
    int last = SCALE_MIN, extra;
    for (size_t at = 0; at < n; at += BLOCK) {
        const bool empty = !s->scale[at / BLOCK];
        const int symbol = empty ? 0 : neb__bucket(scale_step(s, at / BLOCK, &last), &extra);
        s->symbol[f->symbols++] = (uint8_t)(symbol | IS_SCALE);
        f->scales[symbol]++;
        if (!empty) assign(s, at, n - at < BLOCK ? (int)(n - at) : BLOCK, f);
    }
    fit_levels(s, f);
}

/* z becomes the part that is left out. */
static void subtract(struct neb__stat *s, size_t n, const struct fitted *f)
{
    float level[TOP + 1], value[2 * TOP + 1];
    const uint8_t *symbol = s->symbol;
    make_levels(f->width, f->top, f->fraction, level);
    for (size_t at = 0; at < n; at += BLOCK) {
        symbol++;
        if (!s->scale[at / BLOCK]) continue;
        make_values(level, f->top, scale_value(s->scale[at / BLOCK]), value);
        for (size_t i = at; i < n && i < at + BLOCK; i++) s->z[i] -= value[*symbol++];
    }
}

static size_t write_cell(struct neb__stat *s, size_t n, const struct fitted *f, uint8_t *out)
{
    uint8_t side[2 * 65];
    struct neb__bitw models = {side, side + sizeof side, 0, 0, false};
    neb__model_write(f->scales, &models, &s->scales);
    neb__model_write(f->bins, &models, &s->bins);

    const size_t room = sizeof s->words / sizeof *s->words;
    struct neb__ransw w = {0, s->words + room};
    uint32_t state[STATES];
    for (int i = 0; i < STATES; i++) state[i] = NEB__RANS_START;
    for (int i = f->symbols - 1; i >= 0; i--) {
        const uint8_t symbol = s->symbol[i];
        w.state = state[i % STATES];
        neb__rans_put(&w, symbol & IS_SCALE ? &s->scales : &s->bins, symbol & (IS_SCALE - 1));
        state[i % STATES] = w.state;
    }
    const size_t words = (size_t)(s->words + room - w.p);
    neb__put32(out, (uint32_t)words);
    out[4] = (uint8_t)f->width;
    out[5] = (uint8_t)f->top;
    for (int i = 0; i < STATES; i++) neb__put32(out + 6 + 4 * i, state[i]);
    memcpy(out + HEAD, f->fraction, (size_t)f->top);
    uint8_t *p = out + HEAD + f->top;
    for (size_t i = 0; i < words; i++) neb__put16(p + 2 * i, w.p[i]);
    p += 2 * words;

    const size_t whole = (size_t)(models.p - side);
    memcpy(p, side, whole); /* their last bits share a byte with the bits that follow */
    struct neb__bitw bits = {p + whole, out + neb__stat_bound(n), models.acc, models.held, false};
    int last = SCALE_MIN, extra;
    for (size_t b = 0; b < (n + BLOCK - 1) / BLOCK; b++) {
        if (!s->scale[b]) continue;
        const uint32_t step = scale_step(s, b, &last);
        neb__bucket(step, &extra);
        if (extra) neb__bits_put(&bits, step & ((1u << extra) - 1), extra);
    }
    neb__bits_end(&bits);
    return (size_t)(bits.p - out);
}

/* All of the cell's values, to s->z. */
static bool take(struct neb__stat *s, struct neb__pass *p)
{
    const struct neb__codec_kernels *kernels = neb__codec_kernels();
    float pad[16] __attribute__((aligned(64))) = {0}, last[16] __attribute__((aligned(64)));
    const size_t whole = p->n & ~(size_t)15;
    struct neb__pass part = {.z = p->z, .n = whole, .sq = {p->sq[0], p->sq[1]}};
    if (whole && kernels->take(&part, s->z) >= NEB__LIMIT_BITS) return false;
    if (whole < p->n) {
        memcpy(pad, p->z + whole, (p->n - whole) * sizeof *pad);
        part.z = pad;
        part.n = 16;
        if (kernels->take(&part, last) >= NEB__LIMIT_BITS) return false;
        memcpy(s->z + whole, last, (p->n - whole) * sizeof *last);
    }
    memcpy(p->sq, part.sq, sizeof p->sq);
    return true;
}

static void give(struct neb__stat *s, struct neb__pass *p)
{
    const struct neb__codec_kernels *kernels = neb__codec_kernels();
    const size_t whole = p->n & ~(size_t)15;
    struct neb__pass part = {
        .z = p->z, .n = whole, .next = p->next, .stream = p->stream, .sq = {p->sq[0], p->sq[1]}};
    if (whole) kernels->flush(&part, s->z);
    for (size_t i = whole; i < p->n; i++) part.sq[1] += (double)s->z[i] * (double)s->z[i];
    if (p->next) memcpy(p->next + whole, s->z + whole, (p->n - whole) * sizeof *s->z);
    memcpy(p->sq, part.sq, sizeof p->sq);
}

bool neb__stat_encode(struct neb__stat *s, const struct neb_rung *rung, struct neb__pass *p, uint8_t *out,
                      size_t *len)
{
    struct fitted f = {0};
    const size_t n = p->n;
    if (!take(s, p)) return false;
    memset(s->fine, 0, sizeof s->fine);
    for (size_t at = 0; at < n; at += BLOCK) measure_block(s, at, n - at < BLOCK ? (int)(n - at) : BLOCK);
    /* A scale costs about two bits. */
    f.width = choose_width(s, ((uint64_t)n * rung->bits << 16) - ((uint64_t)n * 2 << 16) / BLOCK);
    quantise(s, n, &f);
    subtract(s, n, &f);
    give(s, p);
    *len = write_cell(s, n, &f, out);
    return true;
}

/* ---- bytes to a cell ----------------------------------------------------------------------------------------- */

struct reader {
    struct neb__ransr rans; /* its state is that of the symbol in hand */
    uint32_t state[STATES];
    uint32_t turn;
    struct neb__bitr bits;
    struct neb__model scales, bins;
};

static inline int next_symbol(struct reader *r, const struct neb__model *m)
{
    uint32_t *state = &r->state[r->turn++ % STATES];
    r->rans.state = *state;
    int symbol = neb__rans_get(&r->rans, m);
    *state = r->rans.state;
    return symbol;
}

static bool read_scale(struct reader *r, int *last, bool *empty)
{
    int extra, symbol = next_symbol(r, &r->scales);
    *empty = symbol == 0;
    if (*empty) return true;
    uint32_t step = neb__bucket_base(symbol, &extra);
    if (extra > 16) return false;
    if (extra) step += neb__bits_get(&r->bits, extra);
    if (step > 2 * SCALE_MAX) return false;
    *last += neb__unzigzag(step - 1);
    return *last >= SCALE_MIN && *last <= SCALE_MAX;
}

static bool read_block(struct reader *r, int top, const float value[2 * TOP + 1], size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) {
        int symbol = next_symbol(r, &r->bins);
        if (symbol > 2 * top) return false;
        out[i] = value[symbol];
    }
    return !r->rans.bad;
}

static bool done(const struct reader *r)
{
    for (int i = 0; i < STATES; i++)
        if (r->state[i] != NEB__RANS_START) return false;
    return !r->rans.bad && !r->rans.left && neb__bits_done(&r->bits);
}

bool neb__stat_decode(const uint8_t *bytes, size_t len, size_t n, float *out)
{
    struct neb_reader head = {bytes, len, false};
    struct reader r = {.turn = 0};
    float level[TOP + 1], value[2 * TOP + 1];
    const size_t words = neb__read32(&head);
    const int width = neb__read8(&head), top = neb__read8(&head);
    for (int i = 0; i < STATES; i++) r.state[i] = neb__read32(&head);
    for (int i = 0; i < STATES; i++)
        if (r.state[i] < NEB__RANS_START) return false;
    if (head.bad || top > TOP || width < WIDTH_MIN || words > head.left / 2) return false;
    const uint8_t *fraction = neb__read(&head, (size_t)top), *coded = neb__read(&head, 2 * words);
    if (head.bad) return false;
    r.rans = (struct neb__ransr){0, coded, words, false};
    r.bits = (struct neb__bitr){head.p, head.left, 0, 0, false};
    if (!neb__model_read(&r.bits, &r.scales) || !neb__model_read(&r.bits, &r.bins)) return false;
    make_levels(width, top, fraction, level);
    int last = SCALE_MIN;
    for (size_t at = 0; at < n; at += BLOCK) {
        const size_t m = n - at < BLOCK ? n - at : BLOCK;
        bool empty;
        if (!read_scale(&r, &last, &empty)) return false;
        if (empty) {
            memset(out + at, 0, m * sizeof *out);
            continue;
        }
        make_values(level, top, scale_value(last), value);
        if (!read_block(&r, top, value, m, out + at)) return false;
    }
    return done(&r);
}
