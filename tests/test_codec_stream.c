/* test_codec_stream.c: entropy coder, token ids, top-k log-probabilities, hidden states, activations. */
#include "check.h"
#include "base/bytes.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/topk.h"
#include "codec/codec.h"
#include "codec/ints.h"
#include "codec/rans.h"
#include "codec/stream.h"

#include <math.h>
#include <string.h>

static void buckets_cover_32_bits(void **state)
{
    (void)state;
    struct neb_rng rng = {1};
    for (int i = 0; i < 200000; i++) {
        uint32_t v = i < 70000 ? (uint32_t)i : (uint32_t)(neb__rng_next(&rng) >> (32 + i % 32));
        int extra, back;
        int bucket = neb__bucket(v, &extra);
        uint32_t base = neb__bucket_base(bucket, &back);
        assert_true(bucket < NEB__SYMBOLS && extra == back && v >= base && v - base < (uint64_t)1 << extra);
    }
    for (int32_t v = -5000; v <= 5000; v++) assert_int_equal(neb__unzigzag(neb__zigzag(v)), v);
}

static void integers_round_trip(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 2, 1000, 65536, 65537, 150000};
    struct neb_buf out;
    neb__buf_init(&out, 1 << 22);
    for (int kind = 0; kind < 4; kind++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            size_t n = sizes[s];
            uint32_t *v = malloc((n + 1) * sizeof *v), *back = malloc((n + 1) * sizeof *back);
            struct neb_rng rng = {s};
            double zeros = 0;
            for (size_t i = 0; i < n; i++) {
                uint64_t x = neb__rng_next(&rng);
                v[i] = kind == 0   ? 1
                       : kind == 1 ? (uint32_t)x
                       : kind == 2 ? (uint32_t)(x >> (32 + x % 32))
                                   : x % 10 == 0;
                zeros += v[i] == 0;
            }
            neb__buf_clear(&out);
            assert_ok(neb__ints_encode(v, n, &out));
            struct neb_reader r = {out.data, out.len, false};
            assert_ok(neb__ints_decode(&r, n, back));
            assert_true(r.left == 0);
            assert_memory_equal(v, back, n * sizeof *v);
            if (kind == 0 && n > 1000) assert_true(out.len < 200); /* constants cost nothing */
            if (kind == 3 && n > 60000) { /* a coin of 10 %: 0.469 bits, within 1 % */
                double p = zeros / (double)n, h = -p * log2(p) - (1 - p) * log2(1 - p);
                assert_true((double)out.len * 8 < 1.01 * h * (double)n + 400);
            }
            free(v);
            free(back);
        }
    neb__buf_free(&out);
}

static void models_from_any_bits_are_usable(void **state)
{
    (void)state;
    struct neb_rng rng = {3};
    struct neb__model m;
    for (int i = 0; i < 20000; i++) {
        uint8_t raw[72];
        for (size_t j = 0; j < sizeof raw; j++) raw[j] = (uint8_t)(neb__rng_next(&rng) | (i % 2 ? 0x11 : 0));
        struct neb__bitr r = {raw, sizeof raw, 0, 0, false};
        if (!neb__model_read(&r, &m)) continue;
        uint32_t sum = 0;
        for (int s = 0; s < NEB__SYMBOLS; s++) sum += m.freq[s];
        assert_true(sum == 0 || sum == 1 << NEB__PROB_BITS);
        if (sum)
            for (int slot = 0; slot < 1 << NEB__PROB_BITS; slot++) {
                int s = m.symbol[slot];
                assert_true(slot >= m.start[s] && slot < m.start[s] + m.freq[s]);
            }
    }
}

static void tokens_round_trip(void **state)
{
    (void)state;
    static const uint32_t vocabularies[] = {1, 2, 3, 256, 32000, 250002, 1u << 30};
    struct neb_buf out;
    neb__buf_init(&out, 1 << 22);
    for (size_t k = 0; k < sizeof vocabularies / sizeof *vocabularies; k++)
        for (size_t n = 0; n < 5000; n = n * 3 + 1) {
            int32_t ids[5000], back[5000];
            struct neb_rng rng = {n};
            for (size_t i = 0; i < n; i++) ids[i] = (int32_t)neb__rng_below(&rng, vocabularies[k]);
            neb__buf_clear(&out);
            assert_ok(neb__tokens_encode(ids, n, vocabularies[k], &out));
            struct neb_stream_info info;
            assert_ok(neb__stream_peek(out.data, out.len, &info));
            assert_true(info.kind == NEB_STREAM_TOKENS && info.rows == n && info.decoded == 4 * n);
            assert_ok(neb__tokens_decode(out.data, out.len, vocabularies[k], n, back));
            assert_memory_equal(ids, back, n * sizeof *ids);
            assert_status(neb__tokens_decode(out.data, out.len, vocabularies[k], n + 1, back),
                          NEB_ERR_CORRUPT);
        }
    /* Zipf: entropy coding beats the fixed width. */
    int32_t ids[4096];
    struct neb_rng rng = {5};
    for (int i = 0; i < 4096; i++) ids[i] = (int32_t)exp(neb__rng_uniform(&rng) * log(32000)) % 32000;
    neb__buf_clear(&out);
    assert_ok(neb__tokens_encode(ids, 4096, 32000, &out));
    assert_true(out.len < 4096 * 15 / 8 * 9 / 10);
    check_log_quiet();
    ids[77] = 32000;
    size_t len = out.len;
    assert_status(neb__tokens_encode(ids, 4096, 32000, &out), NEB_ERR_INVALID);
    ids[77] = -1;
    assert_status(neb__tokens_encode(ids, 4096, 32000, &out), NEB_ERR_INVALID);
    assert_int_equal(out.len, len);
    check_log_restore();
    neb__buf_free(&out);
}

/* Finds the k most likely tokens of a row, by ascending id, with their log-probabilities. */
static void likeliest(const float *logits, int32_t vocab, int32_t k, int32_t *ids, float *logp)
{
    int32_t n = 0;
    double sum = 0;
    for (int32_t i = 0; i < vocab; i++) neb__topk_list_offer(logp, ids, k, &n, logits[i], i);
    for (int32_t i = 0; i < vocab; i++) sum += exp((double)logits[i] - (double)logp[0]);
    const float log_sum = logp[0] + (float)log(sum);
    for (int32_t j = 0; j < k; j++) logp[j] = fminf(0, logp[j] - log_sum);
    neb__topk_list_by_id(logp, ids, k);
}

static void top_k_of_logits(void **state)
{
    (void)state;
    enum { ROWS = 40, VOCAB = 3000, K = 16 };
    float *logits = malloc(ROWS * VOCAB * sizeof *logits), logp[ROWS * K], back[ROWS * K];
    int32_t ids[ROWS * K], ids2[ROWS * K];
    struct neb_rng rng = {7};
    for (int i = 0; i < ROWS * VOCAB; i++) logits[i] = (float)(4 * neb__rng_normal(&rng));
    for (int i = 0; i < VOCAB; i++) logits[3 * VOCAB + i] = 1.0f; /* all equal: the first k */
    for (int r = 0; r < ROWS; r++) likeliest(logits + r * VOCAB, VOCAB, K, ids + r * K, logp + r * K);
    for (int r = 0; r < ROWS; r++) {
        const float *row = logits + r * VOCAB;
        double sum = 0;
        for (int i = 0; i < VOCAB; i++) sum += exp((double)row[i]);
        for (int j = 0; j < K; j++) {
            int id = ids[r * K + j], better = 0;
            for (int i = 0; i < VOCAB; i++) better += row[i] > row[id] || (row[i] == row[id] && i < id);
            assert_true(better < K);
            assert_true(!j || id > ids[r * K + j - 1]);
            assert_true(fabs((double)logp[r * K + j] - ((double)row[id] - log(sum))) < 1e-4);
        }
    }
    struct neb_topk shape = {ROWS, K, VOCAB};
    struct neb_buf out;
    neb__buf_init(&out, 1 << 20);
    for (int bits = 4; bits <= 8; bits += 4) {
        neb__buf_clear(&out);
        assert_ok(neb__logits_encode(&shape, bits, ids, logp, &out));
        assert_true(out.len < (size_t)(ROWS * K * (12 + bits) / 8 + 200 + 4 * ROWS));
        assert_ok(neb__logits_decode(out.data, out.len, &shape, ids2, back));
        assert_memory_equal(ids, ids2, sizeof ids);
        for (int i = 0; i < ROWS * K; i++) {
            int r = i / K;
            float lo = 0, hi = -1e9f;
            for (int j = 0; j < K; j++) lo = fminf(lo, logp[r * K + j]), hi = fmaxf(hi, logp[r * K + j]);
            double step = ((double)hi - (double)lo) * 1.05 / (bits == 8 ? 255 : 15) + 0.03;
            assert_true(back[i] <= 0 && fabs((double)back[i] - (double)logp[i]) <= step);
        }
    }
    check_log_quiet();
    size_t len = out.len;
    logp[5] = NAN;
    assert_status(neb__logits_encode(&shape, 8, ids, logp, &out), NEB_ERR_RANGE);
    logp[5] = -1;
    ids[5] = ids[4];
    assert_status(neb__logits_encode(&shape, 8, ids, logp, &out), NEB_ERR_INVALID);
    assert_status(neb__logits_encode(&shape, 7, ids, logp, &out), NEB_ERR_INVALID);
    assert_int_equal(out.len, len);
    check_log_restore();
    neb__buf_free(&out);
    free(logits);
}

static void hidden_states(void **state)
{
    (void)state;
    static const uint32_t widths[] = {1, 16, 31, 64, 100, 768, 1023};
    struct neb_buf out, other;
    neb__buf_init(&out, 1 << 22);
    neb__buf_init(&other, 1 << 22);
    float *x = malloc(50 * 1023 * sizeof *x), *y = malloc(50 * 1023 * sizeof *y),
          *z = malloc(50 * 1023 * sizeof *z);
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
        for (int bits = 2; bits <= 8; bits *= 2) {
            size_t rows = 50, width = widths[w];
            struct neb_rng rng = {w};
            for (size_t i = 0; i < rows * width; i++)
                x[i] = (float)(neb__rng_normal(&rng) * exp2((double)(i / width % 20) - 10));
            memset(x, 0, width * sizeof *x);
            neb__buf_clear(&out);
            assert_ok(neb__hidden_encode(x, rows, (uint32_t)width, bits, &out));
            assert_ok(neb__hidden_decode(out.data, out.len, rows, (uint32_t)width, y));
            for (size_t r = 0; r < rows; r++) {
                float largest = 0;
                for (size_t i = 0; i < width; i++) largest = fmaxf(largest, fabsf(x[r * width + i]));
                float step = largest / (bits == 8 ? 127.0f : bits == 4 ? 7.0f : 1.5f);
                for (size_t i = 0; i < width; i++)
                    assert_true(fabsf(x[r * width + i] - y[r * width + i]) <= 0.51f * step);
            }
            static const char *const sets[] = {"plain", "avx2"};
            for (int s = 0; s < 2; s++) {
                if (neb__codec_force(sets[s]) != NEB_OK) continue;
                neb__buf_clear(&other);
                assert_ok(neb__hidden_encode(x, rows, (uint32_t)width, bits, &other));
                assert_true(other.len == out.len && !memcmp(other.data, out.data, out.len));
                assert_ok(neb__hidden_decode(out.data, out.len, rows, (uint32_t)width, z));
                assert_memory_equal(y, z, rows * width * sizeof *y);
            }
            assert_ok(neb__codec_force(NULL));
        }
    check_log_quiet();
    x[200] = NAN;
    size_t len = out.len;
    assert_status(neb__hidden_encode(x, 50, 100, 8, &out), NEB_ERR_RANGE);
    assert_int_equal(out.len, len);
    assert_status(neb__hidden_encode(x, 50, 100, 3, &out), NEB_ERR_INVALID);
    check_log_restore();
    neb__buf_free(&out);
    neb__buf_free(&other);
    free(x), free(y), free(z);
}

static double relative_error(const float *x, const float *y, size_t n)
{
    double d = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        d += pow((double)x[i] - (double)y[i], 2);
        all += pow((double)x[i], 2);
    }
    return sqrt(d / all);
}

/* Hidden states have a few columns that are many times as large as the others. */
static void fill_activations(float *x, size_t rows, size_t width)
{
    struct neb_rng rng = {width};
    for (size_t i = 0; i < rows * width; i++)
        x[i] = (float)(neb__rng_normal(&rng) * (i % width % 100 == 7 ? 20 : 1));
}

static void activations(void **state)
{
    (void)state;
    static const size_t widths[] = {1, 16, 31, 64, 100, 128, 200, 768};
    enum { ROWS = 20 };
    static float x[ROWS * 768], y[ROWS * 768], z[ROWS * 768];
    struct neb_buf out, other;
    neb__buf_init(&out, 1 << 22);
    neb__buf_init(&other, 1 << 22);
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
        for (int bits = 4; bits <= 32; bits *= 2) {
            const size_t width = widths[w], n = ROWS * width;
            fill_activations(x, ROWS, width);
            neb__buf_clear(&out);
            assert_ok(neb__activations_encode(x, ROWS, (uint32_t)width, bits, &out));
            assert_int_equal(out.len, neb__activations_size(ROWS, (uint32_t)width, bits));
            assert_ok(neb__activations_decode(out.data, out.len, ROWS, (uint32_t)width, y));
            const double most[] = {[4] = 0.16, [8] = 0.03, [16] = 0.004, [32] = 0};
            if (relative_error(x, y, n) > most[bits])
                fail_msg("width %zu, %d bits: an error of %.4f", width, bits, relative_error(x, y, n));
            if (neb__codec_force("plain") != NEB_OK) continue;
            neb__buf_clear(&other);
            assert_ok(neb__activations_encode(x, ROWS, (uint32_t)width, bits, &other));
            assert_true(other.len == out.len && !memcmp(other.data, out.data, out.len));
            assert_ok(neb__activations_decode(out.data, out.len, ROWS, (uint32_t)width, z));
            assert_memory_equal(y, z, n * sizeof *y);
            assert_ok(neb__codec_force(NULL));
        }
    /* without the rotation the large columns would spoil four bits */
    fill_activations(x, ROWS, 768);
    neb__buf_clear(&out);
    neb__buf_clear(&other);
    assert_ok(neb__activations_encode(x, ROWS, 768, 4, &out));
    assert_ok(neb__activations_decode(out.data, out.len, ROWS, 768, y));
    assert_ok(neb__hidden_encode(x, ROWS, 768, 4, &other));
    assert_ok(neb__hidden_decode(other.data, other.len, ROWS, 768, z));
    assert_true(relative_error(x, y, ROWS * 768) < 0.5 * relative_error(x, z, ROWS * 768));
    assert_true(out.len < ROWS * 768 * 4.16 / 8 + 2 * 768 + NEB_STREAM_HEADER);
    /* what all rows have in common takes no bits */
    for (size_t i = 0; i < (size_t)ROWS * 768; i++) x[i] = (float)(i % 768 % 13) * 8;
    neb__buf_clear(&out);
    assert_ok(neb__activations_encode(x, ROWS, 768, 4, &out));
    assert_ok(neb__activations_decode(out.data, out.len, ROWS, 768, y));
    assert_true(relative_error(x, y, ROWS * 768) < 1e-6);
    /* what is not finite crosses as it is, or not at all */
    x[5] = NAN;
    for (int bits = 4; bits <= 32; bits *= 2) {
        neb__buf_clear(&out);
        neb_status status = neb__activations_encode(x, 2, 100, bits, &out);
        assert_status(status, bits < 16 ? NEB_ERR_RANGE : NEB_OK);
        assert_int_equal(out.len, bits < 16 ? 0 : neb__activations_size(2, 100, bits));
        if (bits < 16) continue;
        assert_ok(neb__activations_decode(out.data, out.len, 2, 100, y));
        assert_true(isnan(y[5]) && isfinite(y[6]));
        assert_status(neb__activations_decode(out.data, out.len, 2, 101, y), NEB_ERR_CORRUPT);
        assert_status(neb__activations_decode(out.data, out.len - 1, 2, 100, y), NEB_ERR_CORRUPT);
    }
    neb__buf_free(&out);
    neb__buf_free(&other);
}

/* A code with any byte changed or cut off anywhere gives a status, nothing else.
 * So does any failing allocation. */
static void damage_and_lack_of_memory(void **state)
{
    (void)state;
    enum { ROWS = 5, K = 4, VOCAB = 50, WIDTH = 33 };
    int32_t ids[ROWS * K], tokens[30];
    float logp[ROWS * K], x[ROWS * WIDTH], y[ROWS * WIDTH];
    for (int i = 0; i < ROWS * K; i++) ids[i] = i % K * 11 + i / K, logp[i] = -0.1f * (float)(i % 7);
    for (int i = 0; i < 30; i++) tokens[i] = i * i % VOCAB;
    for (int i = 0; i < ROWS * WIDTH; i++) x[i] = (float)(i % 19) - 9;
    struct neb_topk shape = {ROWS, K, VOCAB};
    struct neb_buf out;
    neb__buf_init(&out, 1 << 16);
    check_log_quiet();
    for (int kind = 0; kind < 3; kind++) {
        for (int64_t at = 1;; at++) {
            int64_t held = neb__mem_held();
            neb__buf_free(&out);
            neb__buf_init(&out, 1 << 16);
            neb__mem_fail_at(at);
            neb_status status = kind == 0   ? neb__tokens_encode(tokens, 30, VOCAB, &out)
                                : kind == 1 ? neb__logits_encode(&shape, 8, ids, logp, &out)
                                            : neb__hidden_encode(x, ROWS, WIDTH, 4, &out);
            bool reached = neb__mem_count() >= at;
            neb__mem_fail_at(0);
            if (!reached) {
                assert_ok(status);
                break;
            }
            assert_status(status, NEB_ERR_NOMEM);
            assert_int_equal(out.len, 0);
            neb__buf_free(&out);
            assert_true(neb__mem_held() <= held);
        }
        for (size_t at = 0; at <= out.len; at++)
            for (int v = 0; v < 256; v += 3) {
                size_t len = v ? out.len : at; /* v = 0: cut the code here instead of changing a byte */
                uint8_t old = at < out.len ? out.data[at] : 0;
                if (v && at == out.len) continue;
                if (v) out.data[at] = (uint8_t)v;
                neb_status status = kind == 0   ? neb__tokens_decode(out.data, len, VOCAB, 30, tokens)
                                    : kind == 1 ? neb__logits_decode(out.data, len, &shape, ids, logp)
                                                : neb__hidden_decode(out.data, len, ROWS, WIDTH, y);
                if (v) out.data[at] = old;
                assert_true(status == NEB_OK || status == NEB_ERR_CORRUPT || status == NEB_ERR_VERSION);
                if (!v && at < out.len) assert_true(status != NEB_OK);
                if (status == NEB_OK && kind == 2)
                    for (int i = 0; i < ROWS * WIDTH; i++) assert_true(isfinite(y[i]));
                if (status == NEB_OK && kind == 1)
                    for (int i = 0; i < ROWS * K; i++) assert_true(ids[i] < VOCAB && isfinite(logp[i]));
            }
    }
    check_log_restore();
    neb__buf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buckets_cover_32_bits),
        cmocka_unit_test(integers_round_trip),
        cmocka_unit_test(models_from_any_bits_are_usable),
        cmocka_unit_test(tokens_round_trip),
        cmocka_unit_test(top_k_of_logits),
        cmocka_unit_test(hidden_states),
        cmocka_unit_test(activations),
        cmocka_unit_test(damage_and_lack_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
