/* test_codec.c: the ladder: every rung, sizes from 1 to a few million, kinds of data, instruction sets;
 * refusals; damaged codes; the modular rung; the lossless stage. */
#include "check.h"
#include "base/bytes.h"
#include "base/mem.h"
#include "base/rng.h"
#include "codec/codec.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum data { GAUSS, HEAVY, ZEROS, CONSTANT, DENORMAL, HUGE_VALUES, SPIKES, KINDS };

static void fill(enum data kind, size_t n, uint64_t seed, float *out)
{
    struct neb_rng r = {seed};
    for (size_t i = 0; i < n; i++) {
        double x = kind == ZEROS || kind == CONSTANT ? 0 : neb__rng_normal(&r);
        switch (kind) {
        case GAUSS: out[i] = (float)(x * 1e-3); break;
        case HEAVY: out[i] = (float)(x * x * x * exp2((double)(i / 1000 % 40) - 20)); break;
        case ZEROS: out[i] = i % 2 ? -0.0f : 0.0f; break;
        case CONSTANT: out[i] = -0.75f; break;
        case DENORMAL: out[i] = (float)(x * 1e-39); break;
        case HUGE_VALUES: out[i] = (float)fmax(fmin(x, 0.999), -0.999) * 0x1p126f; break;
        case SPIKES: out[i] = neb__rng_below(&r, 5000) ? 0.0f : (float)x; break;
        default: break;
        }
    }
}

struct work {
    float *d, *e, *r, *c, *r2, *scales;
    struct neb_buf out, out2;
};

static void work_init(struct work *w, size_t n)
{
    float **all[] = {&w->d, &w->e, &w->r, &w->c, &w->r2, &w->scales};
    for (size_t i = 0; i < 6; i++) {
        *all[i] = neb__aligned(n * sizeof(float));
        assert_non_null(*all[i]);
        memset(*all[i], 0, n * sizeof(float));
    }
    neb__buf_init(&w->out, (size_t)1 << 28);
    neb__buf_init(&w->out2, (size_t)1 << 28);
}

static void work_free(struct work *w)
{
    neb__free(w->d), neb__free(w->e), neb__free(w->r), neb__free(w->c), neb__free(w->r2),
        neb__free(w->scales);
    neb__buf_free(&w->out);
    neb__buf_free(&w->out2);
}

static double ulp(double x) /* of a float of this magnitude */
{
    float f = (float)fabs(x);
    return (double)nextafterf(f, INFINITY) - (double)f;
}

/* Returns the distance between neighbouring levels around c, as the rung defines it; 0: unknown. */
static double spacing(const struct neb_rung *rung, const float *z, size_t n, size_t i)
{
    if (rung->kind != NEB_RUNG_INT || rung->bits == 2 || rung->optimal) return 0;
    size_t cell = i / NEB_CELL * NEB_CELL, block = cell + (i - cell) / rung->block * rung->block;
    float largest = 0;
    for (size_t j = block; j < block + rung->block && j < n && j < cell + NEB_CELL; j++)
        largest = fmaxf(largest, fabsf(z[j]));
    if (largest < 0x1p-100f) return 0;
    float s = largest / (rung->bits == 8 ? 127.0f : 7.0f);
    uint32_t b;
    memcpy(&b, &s, 4);
    b = (b + 0xFFFF) & 0xFFFF0000;
    memcpy(&s, &b, 4);
    return (double)s;
}

/* r = fl(z - c); |z - (c + r)| <= 1 ulp; exact where c is the nearest level. */
static void check_residual(const struct neb_rung *rung, const struct work *w, const float *z, size_t n)
{
    size_t every = n > 100000 ? 61 : 1; /* spacing() looks at a block for each */
    for (size_t i = 0; i < n; i++) {
        float want = z[i] - w->c[i];
        if (memcmp(&want, &w->r[i], 4))
            fail_msg("%s: r[%zu] = %a, not %a - %a", rung->name, i, (double)w->r[i], (double)z[i],
                     (double)w->c[i]);
        long double miss = fabsl((long double)z[i] - ((long double)w->c[i] + (long double)w->r[i]));
        assert_true(miss <= (long double)ulp(fmax(fabs((double)z[i]), fabs((double)w->c[i]))));
        if (i % every) continue;
        double step = spacing(rung, z, n, i);
        if (step > 0) {
            assert_true(fabs((double)z[i] - (double)w->c[i]) <= step * (0.5 + 1e-5));
            if (fabs((double)z[i] - (double)w->c[i]) <= 0.5 * step) assert_true(miss == 0);
        }
        if (rung->kind == NEB_RUNG_FP32) assert_true(w->c[i] == z[i]);
        if (rung->kind == NEB_RUNG_BF16) assert_true(miss == 0);
    }
}

static void check_one(const struct neb_rung *rung, struct work *w, size_t n, enum data kind)
{
    fill(kind, n, 11 + n, w->d);
    for (size_t i = 0; i <= n / NEB_CODEC_EXT_BLOCK; i++) w->scales[i] = i % 7 == 3 ? 0.0f : 2.5e-5f;
    struct neb_codec_input in = {w->d, n, w->scales, 3, NULL};
    struct neb_codec_stats stats;
    struct neb_codec_info info;
    neb__buf_clear(&w->out);
    assert_ok(neb__codec_encode(rung, &in, w->r, &stats, &w->out));
    assert_true(w->out.len <= neb__codec_bound(rung, n));
    assert_ok(neb__codec_peek(w->out.data, w->out.len, &info));
    assert_true(info.rung == rung && info.n == n && info.raw == w->out.len - NEB_CODEC_HEADER);
    memset(w->c, 0x7F, n * sizeof *w->c);
    assert_ok(neb__codec_decode(w->out.data, w->out.len, w->scales, n, w->c));
    double zsq = 0, rsq = 0;
    for (size_t i = 0; i < n; i++) {
        zsq += (double)w->d[i] * (double)w->d[i];
        rsq += (double)w->r[i] * (double)w->r[i];
    }
    check_residual(rung, w, w->d, n);
    if (kind == GAUSS) {
        assert_true(fabs(stats.z_sq - zsq) <= 1e-3 * zsq);
        assert_true(fabs(stats.residual_sq - rsq) <= 1e-3 * rsq + 1e-30);
    }
}

static void every_rung_size_and_kind(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 2, 15, 16, 17, 63, 64, 65, 127, 129, 255, 257, 4095, 4096, 4097, 10007};
    struct work w;
    work_init(&w, 16384);
    for (int r = 0; r < neb__rung_count; r++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (int kind = 0; kind < KINDS; kind++)
                check_one(&neb__rung_table[r], &w, sizes[s], (enum data)kind);
    work_free(&w);
}

static void several_cells(void **state)
{
    (void)state;
    static const size_t sizes[] = {NEB_CELL - 1, NEB_CELL, NEB_CELL + 1, 2 * NEB_CELL + 4097, 2500001};
    static const char *const names[] = {"fp32",  "bf16",  "int8",    "int4",      "stat2",
                                        "int2e", "int8x", "sparse2", "sparse1.k8"};
    struct work w;
    work_init(&w, 2500001 + 64);
    for (size_t r = 0; r < sizeof names / sizeof *names; r++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            check_one(neb__rung_by_name(names[r]), &w, sizes[s], s % 2 ? GAUSS : HEAVY);
            /* One cell alone gives the same bits as all of them. */
            struct neb_codec_view v;
            assert_ok(neb__codec_open(w.out.data, w.out.len, w.scales, sizes[s], &v));
            size_t last = neb__codec_cells(sizes[s]) - 1, start = last * NEB_CELL;
            assert_ok(neb__codec_cell(&v, last, w.r2));
            assert_memory_equal(w.r2, w.c + start, (sizes[s] - start) * sizeof(float));
            check_log_quiet();
            assert_status(neb__codec_cell(&v, last + 1, w.r2), NEB_ERR_INVALID);
            check_log_restore();
            neb__codec_close(&v);
        }
    work_free(&w);
}

/* The same bytes, residuals and decoded bits from every instruction set,
 * also with flush-to-zero switched on. */
static void instruction_sets_agree(void **state)
{
    (void)state;
    static const char *const names[] = {"avx512", "avx2"};
    const size_t n = 3 * 4096 + 333;
    struct work w;
    work_init(&w, 16384);
    for (int r = 0; r < neb__rung_count; r++)
        for (int kind = 0; kind < KINDS; kind++) {
            assert_ok(neb__codec_force("plain"));
            check_one(&neb__rung_table[r], &w, n, (enum data)kind);
            struct neb_codec_input in = {w.d, n, w.scales, 3, NULL};
            for (int s = 0; s < 2; s++) {
                if (neb__codec_force(names[s]) != NEB_OK) continue;
                assert_string_equal(neb__codec_simd(), names[s]);
                neb__buf_clear(&w.out2);
#if defined(__x86_64__)
                unsigned csr = _mm_getcsr();
                _mm_setcsr(csr | 0x8040 | 0x2000); /* flush to zero, denormals are zero, round down */
#endif
                neb_status enc = neb__codec_encode(&neb__rung_table[r], &in, w.r2, NULL, &w.out2);
                assert_ok(enc);
                assert_memory_equal(w.r2, w.r, n * sizeof(float));
                assert_ok(neb__codec_decode(w.out2.data, w.out2.len, w.scales, n, w.r2));
#if defined(__x86_64__)
                assert_true((_mm_getcsr() & 0xE040) == ((csr | 0x8040 | 0x2000) & 0xE040));
                _mm_setcsr(csr);
#endif
                assert_int_equal(w.out2.len, w.out.len);
                assert_memory_equal(w.out2.data, w.out.data, w.out.len);
                assert_memory_equal(w.r2, w.c, n * sizeof(float));
            }
        }
    assert_ok(neb__codec_force(NULL));
    assert_status(neb__codec_force("mmx"), NEB_ERR_UNSUPPORTED);
    work_free(&w);
}

static void self_test_on_every_instruction_set(void **state)
{
    (void)state;
    static const char *const names[] = {"plain", "avx2", "avx512"};
    for (int i = 0; i < 3; i++)
        if (neb__codec_force(names[i]) == NEB_OK) assert_ok(neb__codec_self_test());
    assert_ok(neb__codec_force(NULL));
    int64_t held = neb__mem_held();
    check_log_quiet();
    for (int64_t at = 1;; at++) {
        neb__mem_fail_at(at);
        neb_status status = neb__codec_self_test();
        bool done = neb__mem_count() < at;
        neb__mem_fail_at(0);
        if (done) break;
        assert_status(status, NEB_ERR_NOMEM);
        assert_true(neb__mem_held() == held);
    }
    check_log_restore();
}

/* The sparse class keeps exactly the largest, among equals the first. */
static void sparse_keeps_the_largest(void **state)
{
    (void)state;
    struct work w;
    work_init(&w, 8192);
    const struct neb_rung *rung = neb__rung_by_name("sparse4");
    for (int kind = 0; kind < 4; kind++) {
        struct neb_rng rng = {(uint64_t)kind};
        for (int i = 0; i < 8192; i++) {
            double x = neb__rng_normal(&rng);
            if (kind == 1) x = rint(x * 2);             /* many equals */
            if (kind == 2) x = i % 100 ? x * 1e-12 : x; /* fewer large ones than kept */
            if (kind == 3) x *= i < 4096 ? 1e-6 : 1e6;  /* the guess from the chunk before fails */
            w.d[i] = (float)x;
        }
        struct neb_codec_input in = {.z = w.d, .n = 8192};
        neb__buf_clear(&w.out);
        assert_ok(neb__codec_encode(rung, &in, w.r, NULL, &w.out));
        assert_ok(neb__codec_decode(w.out.data, w.out.len, NULL, 8192, w.c));
        for (int chunk = 0; chunk < 2; chunk++) {
            const float *d = w.d + chunk * 4096, *c = w.c + chunk * 4096;
            int kept = 0;
            for (int i = 0; i < 4096; i++) kept += c[i] != 0;
            assert_int_equal(kept, 64);
            for (int i = 0; i < 4096; i++) {
                int before = 0; /* how many come first in the order of choice */
                for (int j = 0; j < 4096; j++) {
                    float a = fabsf(d[j]), b = fabsf(d[i]);
                    before += a > b || (a == b && j < i);
                }
                assert_int_equal(c[i] != 0, before < 64);
                if (c[i] != 0) assert_true(signbit(c[i]) == signbit(d[i]));
            }
        }
    }
    work_free(&w);
}

/* If the part that is left out stays for the next round, all rounds together have sent the sum of all deltas,
 * except the part that is still left. */
static void what_is_left_out_loses_nothing(void **state)
{
    (void)state;
    const size_t n = 20000;
    struct work w;
    work_init(&w, n + 64);
    double *sum = calloc(n, sizeof *sum), *sent = calloc(n, sizeof *sent);
    static const char *const names[] = {"int8", "int4", "stat2", "int2", "int2e", "sparse2"};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        const struct neb_rung *rung = neb__rung_by_name(names[k]);
        memset(w.e, 0, n * sizeof(float));
        memset(sum, 0, n * sizeof *sum);
        memset(sent, 0, n * sizeof *sent);
        for (int round = 0; round < 20; round++) {
            fill(GAUSS, n, 100 + (uint64_t)round, w.d);
            for (size_t i = 0; i < n; i++) w.r2[i] = w.d[i] + w.e[i];
            struct neb_codec_input in = {.z = w.r2, .n = n};
            neb__buf_clear(&w.out);
            assert_ok(neb__codec_encode(rung, &in, w.e, NULL, &w.out));
            assert_ok(neb__codec_decode(w.out.data, w.out.len, NULL, n, w.c));
            for (size_t i = 0; i < n; i++) sum[i] += (double)w.d[i], sent[i] += (double)w.c[i];
        }
        for (size_t i = 0; i < n; i++) assert_true(fabs(sum[i] - sent[i] - (double)w.e[i]) < 1e-7);
    }
    free(sum);
    free(sent);
    work_free(&w);
}

static void refuses_what_cannot_be_coded(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY, 0x1p126f, -FLT_MAX};
    static const size_t where[] = {0, 17, 4096, 9998, 9999};
    const size_t n = 10000;
    struct work w;
    work_init(&w, n + 64);
    for (size_t i = 0; i <= n / NEB_CODEC_EXT_BLOCK; i++) w.scales[i] = 1.0f;
    check_log_quiet();
    for (int r = 0; r < neb__rung_count; r++)
        for (int b = 0; b < 5; b++)
            for (int at = 0; at < 5; at++) {
                fill(GAUSS, n, 5, w.d);
                w.d[where[at]] = bad[b];
                struct neb_codec_input in = {w.d, n, w.scales, 1, NULL};
                neb__buf_clear(&w.out);
                assert_ok(neb__buf_append(&w.out, "abc", 3));
                assert_status(neb__codec_encode(&neb__rung_table[r], &in, w.r, NULL, &w.out), NEB_ERR_RANGE);
                assert_int_equal(w.out.len, 3);
            }
    fill(GAUSS, n, 5, w.d);
    w.d[77] = 3e38f;
    struct neb_codec_input in = {w.d, n, NULL, 1, NULL};
    assert_status(neb__codec_encode(neb__rung_by_name("int8"), &in, w.r, NULL, &w.out), NEB_ERR_RANGE);
    assert_non_null(strstr(neb_last_error(), "value 77"));
    in.n = 0;
    assert_status(neb__codec_encode(neb__rung_by_name("int8"), &in, w.r, NULL, &w.out), NEB_ERR_INVALID);
    in.n = 10;
    assert_status(neb__codec_encode(neb__rung_by_name("int8x"), &in, w.r, NULL, &w.out), NEB_ERR_INVALID);
    struct neb_buf small;
    neb__buf_init(&small, 29);
    assert_status(neb__codec_encode(neb__rung_by_name("int8"), &in, w.r, NULL, &small), NEB_ERR_NOSPACE);
    neb__buf_free(&small);
    check_log_restore();
    work_free(&w);
}

/* A code with any byte changed gives an error or finite values, nothing else. */
static void damage_is_harmless(void **state)
{
    (void)state;
    const size_t n = 300;
    struct work w;
    work_init(&w, 1024);
    fill(HEAVY, n, 9, w.d);
    for (int i = 0; i < 4; i++) w.scales[i] = 1e-3f;
    for (int r = 0; r < neb__rung_count; r++) {
        struct neb_codec_input in = {w.d, n, w.scales, 1, NULL};
        neb__buf_clear(&w.out);
        assert_ok(neb__codec_encode(&neb__rung_table[r], &in, NULL, NULL, &w.out));
        for (size_t len = 0; len < w.out.len; len++) /* every truncation */
            assert_true(neb__codec_decode(w.out.data, len, w.scales, n, w.c) != NEB_OK);
        assert_status(neb__codec_decode(w.out.data, w.out.len, w.scales, n - 1, w.c), NEB_ERR_CORRUPT);
        for (size_t at = 0; at < w.out.len; at++)
            for (int v = 0; v < 256; v += at < NEB_CODEC_HEADER ? 1 : 15) {
                uint8_t old = w.out.data[at];
                w.out.data[at] = (uint8_t)v;
                if (neb__codec_decode(w.out.data, w.out.len, w.scales, n, w.c) == NEB_OK)
                    for (size_t i = 0; i < n; i++) assert_true(isfinite(w.c[i]));
                w.out.data[at] = old;
            }
    }
    work_free(&w);
}

/* Codes of several sites, hidden by masks that cancel, add up to the code of the sum. */
static void modular_sums(void **state)
{
    (void)state;
    enum { SITES = 3, LEN = 5000 };
    const struct neb_rung *rung = neb__rung_by_name("int8x");
    struct work w;
    work_init(&w, LEN + 64);
    double want[LEN] = {0};
    uint8_t mask_sum[LEN] = {0};
    struct neb_rng rng = {8};
    for (int i = 0; i <= LEN / NEB_CODEC_EXT_BLOCK; i++) w.scales[i] = 1e-4f * (float)(1 + i % 3);
    for (int site = 0; site < SITES; site++) {
        fill(GAUSS, LEN, 40 + (uint64_t)site, w.d);
        w.d[123] = 50.0f; /* far outside: clipped, the rest stays in the residual */
        struct neb_codec_input in = {w.d, LEN, w.scales, SITES, NULL};
        struct neb_buf *out = site ? &w.out2 : &w.out;
        neb__buf_clear(out);
        assert_ok(neb__codec_encode(rung, &in, w.r, NULL, out));
        assert_ok(neb__codec_decode(out->data, out->len, w.scales, LEN, w.c));
        assert_true(w.r[123] > 49.9f);
        for (int i = 0; i < LEN; i++) {
            want[i] += (double)w.c[i];
            uint8_t mask = (uint8_t)(site == SITES - 1 ? 256u - mask_sum[i] : neb__rng_below(&rng, 256));
            mask_sum[i] = (uint8_t)(mask_sum[i] + mask);
            out->data[NEB_CODEC_HEADER + i] = (uint8_t)(out->data[NEB_CODEC_HEADER + i] + mask);
        }
        if (site) assert_ok(neb__codec_modular_add(w.out.data, w.out.len, w.out2.data, w.out2.len));
    }
    assert_ok(neb__codec_decode(w.out.data, w.out.len, w.scales, LEN, w.c));
    for (int i = 0; i < LEN; i++) assert_true(fabs((double)w.c[i] - want[i]) < 1e-9);
    check_log_quiet();
    w.scales[3] *= 2;
    assert_status(neb__codec_decode(w.out.data, w.out.len, w.scales, LEN, w.c), NEB_ERR_INVALID);
    assert_status(neb__codec_decode(w.out.data, w.out.len, NULL, LEN, w.c), NEB_ERR_INVALID);
    w.out2.data[16] ^= 2;
    assert_status(neb__codec_modular_add(w.out.data, w.out.len, w.out2.data, w.out2.len), NEB_ERR_INVALID);
    check_log_restore();
    work_free(&w);
}

static void lossless_stage_pays_or_stays_away(void **state)
{
    (void)state;
    const size_t n = 300000;
    struct work w;
    size_t gain;
    work_init(&w, n + 64);
    fill(GAUSS, n, 3, w.d);
    struct neb_codec_input in = {.z = w.d, .n = n};
    assert_ok(neb__codec_encode(neb__rung_by_name("int4"), &in, w.r, NULL, &w.out));
    size_t before = w.out.len;
    assert_ok(neb__codec_decode(w.out.data, w.out.len, NULL, n, w.c));
    assert_ok(neb__codec_squeeze(&w.out, 0, 1e15, &gain)); /* on a line that fast it is not worth it */
    assert_true(gain == 0 && w.out.len == before);
    assert_ok(neb__codec_squeeze(&w.out, 0, 1e3, &gain));
    assert_true(gain > before / 20 && w.out.len == before - gain);
    assert_ok(neb__codec_decode(w.out.data, w.out.len, NULL, n, w.r2));
    assert_memory_equal(w.r2, w.c, n * sizeof(float));
    size_t again;
    assert_ok(neb__codec_squeeze(&w.out, 0, 1e3, &again)); /* squeezed already */
    assert_true(again == 0);
    for (size_t at = 0; at < w.out.len; at += 997) { /* damage inside */
        w.out.data[at] ^= 0x55;
        neb_status status = neb__codec_decode(w.out.data, w.out.len, NULL, n, w.r2);
        assert_true(status == NEB_OK || status == NEB_ERR_CORRUPT || status == NEB_ERR_VERSION);
        w.out.data[at] ^= 0x55;
    }
    for (int64_t at = 1; at <= 8; at++) { /* failing allocations */
        int64_t held = neb__mem_held();
        check_log_quiet();
        neb__mem_fail_at(at);
        neb_status status = neb__codec_decode(w.out.data, w.out.len, NULL, n, w.r2);
        bool failed = neb__mem_count() >= at;
        neb__mem_fail_at(0);
        check_log_restore();
        assert_status(status, failed ? NEB_ERR_NOMEM : NEB_OK);
        assert_true(neb__mem_held() == held);
    }
    neb__buf_clear(&w.out);
    assert_ok(neb__codec_encode(neb__rung_by_name("sparse2"), &in, w.r, NULL, &w.out));
    assert_ok(neb__codec_squeeze(&w.out, 0, 1e3, &gain));
    assert_true(gain == 0);
    work_free(&w);
}

static void sparse_size_is_near_its_floor(void **state)
{
    (void)state;
    const size_t n = NEB_CELL;
    struct work w;
    work_init(&w, n);
    fill(GAUSS, n, 77, w.d);
    struct neb_codec_input in = {.z = w.d, .n = n};
    assert_ok(neb__codec_encode(neb__rung_by_name("sparse2"), &in, w.r, NULL, &w.out));
    assert_true((double)(n * 4) / (double)w.out.len >= 200);
    /* 64 of 4096 positions: log2 C = 471.1 bits; signs 64; magnitudes at most 64. */
    assert_true((double)w.out.len * 8 <= 1.05 * (471.1 + 128) * (double)(n / 4096));
    work_free(&w);
}

/* Two bits a value whatever the data, unless it has less to tell, and the entropy of the symbols in them. */
static void statistical_size_is_near_its_floor(void **state)
{
    (void)state;
    const struct neb_rung *rung = neb__rung_by_name("stat2");
    const size_t n = NEB_CELL;
    struct work w;
    work_init(&w, n + 64);
    for (int kind = GAUSS; kind <= HEAVY; kind++) {
        struct neb_codec_input in = {.z = w.d, .n = n};
        struct neb_codec_stats stats;
        fill((enum data)kind, n, 12, w.d);
        neb__buf_clear(&w.out);
        assert_ok(neb__codec_encode(rung, &in, w.r, &stats, &w.out));
        assert_true((double)w.out.len * 8 < 2.02 * (double)n);
        assert_true(sqrt(stats.residual_sq / stats.z_sq) < 0.32);
        if (kind == HEAVY) continue;
        /* The entropy of bins: values of one sign and bin are equal in all blocks of one scale. */
        assert_ok(neb__codec_decode(w.out.data, w.out.len, NULL, n, w.c));
        double count[64] = {0}, bits = 0;
        for (size_t i = 0; i < n; i++) {
            double level = 0;
            for (size_t j = i / 64 * 64; j < i / 64 * 64 + 64;
                 j++) /* the least magnitude of the block is its unit */
                if (w.c[j] != 0 && (level == 0 || fabs((double)w.c[j]) < level)) level = fabs((double)w.c[j]);
            count[w.c[i] == 0 ? 0 : 2 * (int)rint(fabs((double)w.c[i]) / level) - (w.c[i] < 0)]++;
        }
        for (int i = 0; i < 64; i++)
            if (count[i] > 0) bits -= count[i] * log2(count[i] / (double)n);
        assert_true((double)w.out.len * 8 < 1.03 * (bits + 2 * (double)n / 64)); /* two bits a scale */
    }
    /* A run of zeros costs next to nothing. */
    memset(w.d, 0, n * sizeof(float));
    struct neb_codec_input none = {.z = w.d, .n = n};
    neb__buf_clear(&w.out);
    assert_ok(neb__codec_encode(rung, &none, w.r, NULL, &w.out));
    assert_true(w.out.len < 100);
    work_free(&w);
}

static void rungs_are_found(void **state)
{
    (void)state;
    for (int i = 0; i < neb__rung_count; i++) {
        assert_ptr_equal(neb__rung_by_id(neb__rung_table[i].id), &neb__rung_table[i]);
        assert_ptr_equal(neb__rung_by_name(neb__rung_table[i].name), &neb__rung_table[i]);
        double bytes =
            (double)(neb__codec_bound(&neb__rung_table[i], NEB_CELL) - NEB_CODEC_HEADER) / (double)NEB_CELL;
        if (neb__rung_fixed_size(&neb__rung_table[i]))
            assert_true(fabs(bytes - (double)neb__rung_table[i].bytes) < 1e-3 * bytes + 1e-4);
    }
    assert_null(neb__rung_by_id(0));
    assert_null(neb__rung_by_name("int3"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rungs_are_found),
        cmocka_unit_test(every_rung_size_and_kind),
        cmocka_unit_test(several_cells),
        cmocka_unit_test(instruction_sets_agree),
        cmocka_unit_test(self_test_on_every_instruction_set),
        cmocka_unit_test(sparse_keeps_the_largest),
        cmocka_unit_test(what_is_left_out_loses_nothing),
        cmocka_unit_test(refuses_what_cannot_be_coded),
        cmocka_unit_test(damage_is_harmless),
        cmocka_unit_test(modular_sums),
        cmocka_unit_test(lossless_stage_pays_or_stays_away),
        cmocka_unit_test(sparse_size_is_near_its_floor),
        cmocka_unit_test(statistical_size_is_near_its_floor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
