/* bench_codec.c: the cost of each rung, and what it saves.
 *
 * Speed: encode (with the part that is left out) and decode run on one core over ranges far larger than the
 * caches. Their speed is a ratio to memcpy of the same range, interleaved with it. zstd -1 on the fp32 bytes
 * stands beside them. Size and error are measured on Gaussian data, on heavy-tailed data and, with --real
 * FILE, on deltas captured from training (tests/data/delta.nc was made with `nebula-i bench codec-training
 * --capture FILE`).
 *
 * Error after 50 rounds: |sum of deltas - sum of decoded| / |sum of deltas|. The deltas are a fixed direction
 * plus fresh noise. The part that is left out is once kept for the next round and once lost. The entropy
 * floor of a sparse code is log2 C(chunk, kept) for the positions, one bit a sign and the entropy of the
 * magnitudes. */
#include "bench.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/opts.h"
#include "base/rng.h"
#include "codec/codec.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <zstd.h>

struct options {
    int64_t values, repeat;
    char *real, *rungs;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, values, NEB_OPT_INT, "67108864", "values",
            "size of the ranges on which speeds are measured"),
    NEB_OPT(struct options, repeat, NEB_OPT_INT, "5", NULL, "repetitions; the median counts"),
    NEB_OPT(struct options, real, NEB_OPT_TEXT, "", "file",
            "deltas from training, as a code: 2^18 values a round"),
    NEB_OPT(struct options, rungs, NEB_OPT_TEXT, "", NULL, "only rungs whose name contains this"),
    NEB_OPT_END,
};

enum { ROUNDS = 50, SMALL = 1 << 18 };

struct bench {
    struct options opt;
    struct neb_figures *figures;
    float *delta, *next; /* (values) */
    float *real;         /* (real_rounds, SMALL), or NULL */
    int real_rounds;
    struct neb_buf out;
};

static void figure(struct bench *b, const char *rung, const char *what, double v, const char *unit,
                   enum neb_figure_sense sense, double target)
{
    char name[96];
    snprintf(name, sizeof name, "%s.%s", rung, what);
    neb__figures_add(b->figures, name, v, unit, sense, target);
}

/* ---- data ---------------------------------------------------------------------------------------------- */

enum source { GAUSS, HEAVY, REAL, SOURCES };
static const char *const source_names[SOURCES] = {"gauss", "heavy", "real"};

static void fill(const struct bench *b, enum source source, int round, size_t n, float *out)
{
    struct neb_rng fresh = {(uint64_t)round * 7919 + 1}, fixed = {42};
    for (size_t i = 0; i < n; i++) {
        double x = neb__rng_normal(&fresh), y = neb__rng_normal(&fixed);
        if (source == REAL)
            out[i] = b->real[(size_t)(round % b->real_rounds) * SMALL + i];
        else if (source == GAUSS)
            out[i] = (float)(1e-3 * (x + 0.3 * y));
        else /* cubes: kurtosis 46 */
            out[i] = (float)(1e-3 * (x * x * x + 0.3 * y * y * y));
    }
}

/* A large range is a small one repeated, with other signs and scales in each chunk: drawing 2^26 normals
 * would take longer than everything else. */
static void fill_large(struct bench *b)
{
    size_t n = (size_t)b->opt.values;
    size_t first = n < SMALL * 8 ? n : SMALL * 8;
    struct neb_rng rng = {3};
    for (size_t i = 0; i < first; i++) b->delta[i] = (float)(1e-3 * neb__rng_normal(&rng));
    for (size_t i = first; i < n; i++) {
        float f = i / first % 2 ? -1.0f : 1.0f;
        b->delta[i] = b->delta[i - first] * f;
    }
    memset(b->next, 0, n * sizeof *b->next);
}

/* ---- speed --------------------------------------------------------------------------------------------- */

static void scales_for(float *scales, size_t n)
{
    for (size_t i = 0; i < n; i++) scales[i] = 5e-5f;
}

static neb_status speed(struct bench *b, const struct neb_rung *rung)
{
    size_t n = (size_t)b->opt.values;
    int repeat = (int)b->opt.repeat;
    double enc[32], dec[32], copy[32];
    struct neb_codec_input in = {.z = b->delta, .n = n, .members = 1};
    float *scales = NULL;
    if (rung->outside_scales) {
        size_t count = n / NEB_CODEC_EXT_BLOCK + 1;
        if (!(scales = neb__malloc(count * sizeof *scales))) return NEB_ERR_NOMEM;
        scales_for(scales, count);
        in.scales = scales;
    }
    neb_status status = NEB_OK;
    for (int r = -1; status == NEB_OK && r < repeat; r++) { /* the first one warms up */
        neb__buf_clear(&b->out);
        int64_t t = neb__now_ns();
        memcpy(b->next, b->delta, n * sizeof(float));
        double base = neb__seconds_since(t);
        t = neb__now_ns();
        status = neb__codec_encode(rung, &in, b->next, NULL, &b->out);
        double encode = neb__seconds_since(t);
        t = neb__now_ns();
        if (status == NEB_OK) status = neb__codec_decode(b->out.data, b->out.len, scales, n, b->next);
        double decode = neb__seconds_since(t);
        if (r >= 0) enc[r] = base / encode, dec[r] = base / decode, copy[r] = (double)n * 4 / base * 1e-9;
    }
    neb__free(scales);
    if (status != NEB_OK) return status;
    bool fast = !strcmp(rung->name, "int8") || !strcmp(rung->name, "int4");
    bool sparse2 = !strcmp(rung->name, "sparse2");
    figure(b, rung->name, "encode", neb__figures_median(enc, repeat), "memcpy",
           fast || sparse2 ? NEB_AT_LEAST : NEB_REPORT, fast ? 0.45 : 0.2);
    figure(b, rung->name, "decode", neb__figures_median(dec, repeat), "memcpy",
           fast ? NEB_AT_LEAST : NEB_REPORT, 0.8);
    double gbs = neb__figures_median(copy, repeat);
    figure(b, rung->name, "encode_rate", neb__figures_median(enc, repeat) * gbs, "GB/s", NEB_REPORT, 0);
    figure(b, rung->name, "decode_rate", neb__figures_median(dec, repeat) * gbs, "GB/s", NEB_REPORT, 0);
    return NEB_OK;
}

/* zstd -1 on the fp32 bytes, as the simplest alternative. */
static neb_status speed_zstd(struct bench *b)
{
    size_t n = (size_t)b->opt.values / 4 * sizeof(float), cap = ZSTD_compressBound(n), len = 0;
    double enc[32], dec[32], copy[32];
    neb__buf_clear(&b->out);
    uint8_t *packed = neb__malloc(cap);
    if (!packed) return NEB_ERR_NOMEM;
    int repeat = b->opt.repeat > 3 ? 3 : (int)b->opt.repeat;
    for (int r = 0; r < repeat; r++) {
        int64_t t = neb__now_ns();
        memcpy(b->next, b->delta, n);
        copy[r] = neb__seconds_since(t);
        t = neb__now_ns();
        len = ZSTD_compress(packed, cap, b->delta, n, 1);
        enc[r] = copy[r] / neb__seconds_since(t);
        t = neb__now_ns();
        ZSTD_decompress(b->next, n, packed, len);
        dec[r] = copy[r] / neb__seconds_since(t);
        copy[r] = (double)n / copy[r] * 1e-9;
    }
    neb__free(packed);
    figure(b, "memcpy", "rate", neb__figures_median(copy, repeat), "GB/s", NEB_REPORT, 0);
    figure(b, "zstd1", "encode", neb__figures_median(enc, repeat), "memcpy", NEB_REPORT, 0);
    figure(b, "zstd1", "decode", neb__figures_median(dec, repeat), "memcpy", NEB_REPORT, 0);
    figure(b, "zstd1", "gauss.compression", (double)n / (double)len, "x", NEB_REPORT, 0);
    return NEB_OK;
}

/* ---- size and error ------------------------------------------------------------------------------------ */

static double norm(const float *a, const float *b, size_t n) /* |a - b|, b may be NULL */
{
    double s = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)a[i] - (b ? (double)b[i] : 0);
        s += d * d;
    }
    return sqrt(s);
}

static double log2_choose(double n, double k)
{
    return (lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)) / log(2);
}

/* The entropy of the decoded values of a sparse code, in bits. */
static double entropy_floor(const float *x, size_t n)
{
    double floor_bits = 0, count[8] = {0}, total = 0;
    for (size_t at = 0; at < n; at += 4096) {
        float level[8];
        int levels = 0, kept = 0;
        size_t m = n - at < 4096 ? n - at : 4096;
        for (size_t i = at; i < at + m; i++) {
            if (x[i] == 0) continue;
            int j = 0;
            while (j < levels && level[j] != fabsf(x[i])) j++;
            if (j == levels && levels < 8) level[levels++] = fabsf(x[i]);
            kept++;
        }
        for (size_t i = at; i < at + m; i++) {
            if (x[i] == 0) continue;
            int below = 0; /* its rank among the levels is its symbol */
            for (int j = 0; j < levels; j++) below += level[j] < fabsf(x[i]);
            count[below]++;
        }
        total += kept;
        floor_bits += log2_choose((double)m, kept) + kept;
    }
    for (int j = 0; j < 8; j++)
        if (count[j] > 0) floor_bits -= count[j] * log2(count[j] / total);
    return floor_bits;
}

struct fifty {
    double bytes, once, with, without, floor_bits;
};

/* Fifty rounds of n = SMALL values. */
static neb_status fifty_rounds(struct bench *b, const struct neb_rung *rung, enum source source,
                               struct fifty *out)
{
    float *mem = neb__aligned(7 * SMALL * sizeof(float)), *scales = neb__malloc(SMALL / 256 * sizeof(float));
    if (!mem || !scales) {
        neb__free(mem);
        neb__free(scales);
        return NEB_ERR_NOMEM;
    }
    memset(mem, 0, 7 * SMALL * sizeof(float));
    float *d = mem, *e = d + SMALL, *r = e + SMALL, *c = r + SMALL, *sum = c + SMALL, *fed = sum + SMALL,
          *plain = fed + SMALL;
    scales_for(scales, SMALL / 256);
    neb_status status = NEB_OK;
    for (int round = 0; status == NEB_OK && round < ROUNDS; round++) {
        fill(b, source, round, SMALL, d);
        for (int i = 0; i < SMALL; i++) e[i] += d[i];
        for (int mode = 0; status == NEB_OK && mode < 2;
             mode++) { /* 0: the part left out is lost; 1: it is kept for the next round */
            struct neb_codec_input in = {
                .z = mode ? e : d, .n = SMALL, .scales = rung->outside_scales ? scales : NULL, .members = 1};
            neb__buf_clear(&b->out);
            status = neb__codec_encode(rung, &in, r, NULL, &b->out);
            if (status == NEB_OK) status = neb__codec_decode(b->out.data, b->out.len, in.scales, SMALL, c);
            if (status != NEB_OK) break;
            float *into = mode ? fed : plain;
            for (int i = 0; i < SMALL; i++) into[i] += c[i];
            if (mode) memcpy(e, r, SMALL * sizeof *e);
            if (!mode && !round) {
                out->bytes = (double)b->out.len;
                out->once = norm(d, c, SMALL) / norm(d, NULL, SMALL);
                out->floor_bits = rung->cls == NEB_SPARSE ? entropy_floor(c, SMALL) : 0;
            }
        }
        for (int i = 0; i < SMALL; i++) sum[i] += d[i];
    }
    out->with = norm(sum, fed, SMALL) / norm(sum, NULL, SMALL);
    out->without = norm(sum, plain, SMALL) / norm(sum, NULL, SMALL);
    neb__free(mem);
    neb__free(scales);
    return status;
}

static neb_status quality(struct bench *b, const struct neb_rung *rung, enum source source)
{
    struct fifty f = {0};
    NEB_TRY(fifty_rounds(b, rung, source, &f));
    char what[64];
    const char *src = source_names[source];
    bool sparse2 = !strcmp(rung->name, "sparse2") && source == GAUSS;
    snprintf(what, sizeof what, "%s.compression", src);
    figure(b, rung->name, what, 4.0 * SMALL / f.bytes, "x", NEB_REPORT, 0);
    if (sparse2) figure(b, rung->name, "compression", 4.0 * SMALL / f.bytes, "x", NEB_AT_LEAST, 200);
    if (rung->cls == NEB_SPARSE) {
        snprintf(what, sizeof what, "%s.over_floor", src);
        figure(b, rung->name, what, f.bytes * 8 / f.floor_bits, "floor", sparse2 ? NEB_AT_MOST : NEB_REPORT,
               1.05);
    }
    snprintf(what, sizeof what, "%s.error", src);
    figure(b, rung->name, what, f.once, "", NEB_REPORT, 0);
    snprintf(what, sizeof what, "%s.error50", src);
    figure(b, rung->name, what, f.without, "", NEB_REPORT, 0);
    snprintf(what, sizeof what, "%s.error50_kept", src);
    figure(b, rung->name, what, f.with, "", NEB_REPORT, 0);
    return NEB_OK;
}

/* The lossless stage after a dense rung: bytes saved on a slow line. */
static neb_status squeezed(struct bench *b, const struct neb_rung *rung)
{
    struct neb_codec_input in = {.z = b->delta, .n = SMALL * 4};
    size_t gain = 0;
    neb__buf_clear(&b->out);
    if (b->opt.values < (int64_t)in.n) return NEB_OK;
    NEB_TRY(neb__codec_encode(rung, &in, b->next, NULL, &b->out));
    size_t before = b->out.len;
    NEB_TRY(neb__codec_squeeze(&b->out, 0, 1e5, &gain));
    figure(b, rung->name, "squeeze", (double)gain / (double)before, "saved", NEB_REPORT, 0);
    return NEB_OK;
}

/* ---- all of it ----------------------------------------------------------------------------------------- */

/* A code that holds one round or more of SMALL values. */
static neb_status load_real(struct bench *b)
{
    struct neb_buf raw;
    struct neb_codec_info info = {0};
    if (!b->opt.real) return NEB_OK;
    neb__buf_init(&raw, (size_t)1 << 30);
    neb_status status = neb__file_read(b->opt.real, &raw);
    if (status == NEB_OK) status = neb__codec_peek(raw.data, raw.len, &info);
    b->real_rounds = (int)(info.n / SMALL);
    if (status == NEB_OK && !b->real_rounds)
        status = neb__fail(NEB_ERR_INVALID, "%s holds less than one round of %d values", b->opt.real, SMALL);
    if (status == NEB_OK && !(b->real = neb__aligned(info.n * sizeof(float)))) status = NEB_ERR_NOMEM;
    if (status == NEB_OK) status = neb__codec_decode(raw.data, raw.len, NULL, info.n, b->real);
    neb__buf_free(&raw);
    return status;
}

static neb_status measure(struct bench *b)
{
    NEB_TRY(load_real(b));
    fill_large(b);
    NEB_TRY(speed_zstd(b));
    for (int i = 0; i < neb__rung_count; i++) {
        const struct neb_rung *rung = &neb__rung_table[i];
        if (b->opt.rungs && !strstr(rung->name, b->opt.rungs)) continue;
        NEB_TRY(speed(b, rung));
        for (int s = GAUSS; s < SOURCES; s++)
            if (s != REAL || b->real) NEB_TRY(quality(b, rung, (enum source)s));
        if (rung->kind == NEB_RUNG_INT) NEB_TRY(squeezed(b, rung));
    }
    return NEB_OK;
}

static int run(int argc, char **argv)
{
    struct bench b = {0};
    int positional = 0;
    bool json = neb__bench_json(&argc, argv);
    if (neb__opts_init(table, &b.opt) != NEB_OK) return 1;
    if (neb__opts_args(table, &b.opt, argc, argv, &positional) != NEB_OK || positional || b.opt.repeat < 1 ||
        b.opt.repeat > 32 || b.opt.values < SMALL) {
        neb__opts_help(table, stderr);
        neb__opts_free(table, &b.opt);
        return 2;
    }
    size_t bytes = (size_t)b.opt.values * sizeof(float);
    b.delta = neb__aligned(bytes);
    b.next = neb__aligned(bytes);
    b.figures = neb__figures_begin("codec", json);
    neb__buf_init(&b.out, bytes + (1 << 20));
    int status = 1;
    if (!b.delta || !b.next || !b.figures)
        fprintf(stderr, "nebula-i bench codec: no memory for %zu bytes; try --values\n", 3 * bytes);
    else if (measure(&b) == NEB_OK)
        status = 0;
    if (b.figures) neb__figures_end(b.figures);
    neb__buf_free(&b.out);
    neb__free(b.real);
    neb__free(b.next);
    neb__free(b.delta);
    neb__opts_free(table, &b.opt);
    return status;
}

const struct neb_bench neb__bench_codec = {"codec", "each rung: size, error, speed against memcpy", run,
                                           table};
