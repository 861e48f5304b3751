/* test_nn_decode.c: generating with the cache gives the same tokens as the whole model, and beam search finds
 * the best sequence. */
#include "check.h"
#include "recorder.h"
#include "rig.h"
#include "nn/decode.h"
#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SIZES "vocab=37 hidden=32 layers=2 heads=4 ffn=48 max_positions=24 init_deviation=0.3 "

/* Returns the logits of all rows of sequences given one by one.
 * The model runs as in training, without a cache. */
static float *whole(struct rig *r, const struct neb_model_input_side *source, const int32_t *ids, int n)
{
    int32_t position[64], starts[2] = {0, n}, target[64] = {0};
    uint32_t sample[64] = {0};
    for (int i = 0; i < n; i++) position[i] = i;
    struct neb_model_input_side side = {n, 1, n, ids, position, NULL, sample, starts, NULL, 0};
    struct neb_model_input_data d = {.sides = source ? 2 : 1, .targets = n, .target = target};
    d.side[0] = source ? *source : side;
    if (source) d.side[1] = side;
    float *logits;
    assert_ok(neb__model_input_load(r->feed, &d));
    assert_ok(rig_logits(r, &logits));
    return logits;
}

static void compare(const char *family, int seq, int length, const float *got, const float *want, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!(fabsf(got[i] - want[i]) <= 1e-4f * (1 + fabsf(want[i]))))
            fail_msg("%s: sequence %d, %d tokens: logit %d is %.7g over the cache, %.7g without", family, seq,
                     length, (int)i, got[i], want[i]);
}

/* Sequences go on from others, also from longer and shorter ones. */
static void go_on_from(struct neb_decoding *d, const int32_t *from, int32_t (*all)[32], int32_t *len,
                       int seqs)
{
    int32_t old[8][32], old_len[8];
    memcpy(old, all, (size_t)seqs * sizeof *old);
    memcpy(old_len, len, (size_t)seqs * sizeof *len);
    assert_ok(neb__decoding_reorder(d, from));
    for (int s = 0; s < seqs; s++) {
        memcpy(all[s], old[from[s]], sizeof *old);
        len[s] = old_len[from[s]];
    }
}

/* Three prompts of different lengths, then tokens one by one, then two at once. In between, sequences go on
 * from one another, if no source tells them apart. */
static void check_cache(const char *family, const char *options, const char *peft)
{
    enum { SEQS = 3, STEPS = 9 };
    static const int32_t from[STEPS][SEQS] = {
        [1] = {2, 0, 2}, [2] = {2, 2, 2}, [4] = {0, 0, 1}, [6] = {1, 1, 2}};
    static const int lengths[] = {4, 1, 7, 0}, source_lengths[] = {5, 9, 2, 0};
    struct rig r;
    struct rig_batch prompts, sources;
    struct neb_decoding *d;
    int32_t all[SEQS][32], len[SEQS], counts[SEQS], flat[64];
    const float *logits;
    char text[400];
    snprintf(text, sizeof text, SIZES "%s", options);
    assert_ok(rig_open(&r, family, text, peft, 2));
    bool cross = r.model->arch.kind == NEB_ENCODER_DECODER;
    rig_batch_make(&prompts, r.model, lengths, cross ? lengths : NULL, 5);
    rig_batch_make(&sources, r.model, source_lengths, cross ? source_lengths : NULL, 50);
    struct neb_decode_limits limits = {SEQS, 20, 32, cross ? 32 : 0};
    assert_ok(neb__decoding_create(r.device, r.model, &limits, &d));
    assert_ok(neb__decoding_start(d, SEQS, cross ? &sources.data.side[0] : NULL));
    const struct neb_model_input_side *p = &prompts.data.side[0];
    for (int s = 0; s < SEQS; s++) {
        len[s] = counts[s] = lengths[s];
        memcpy(all[s], p->ids + p->starts[s], (size_t)len[s] * 4);
    }
    memcpy(flat, p->ids, (size_t)p->rows * 4);
    for (int step = 0; step < STEPS; step++) {
        assert_ok(neb__decoding_step(d, counts, flat, &logits));
        int at = 0;
        for (int s = 0; s < SEQS; s++) {
            struct neb_model_input_side one = sources.data.side[0];
            int32_t starts[2] = {0, source_lengths[s]};
            int32_t first = one.starts[s];
            one.rows = one.max_len = source_lengths[s];
            one.seqs = 1;
            one.ids += first, one.position += first, one.type += first, one.sample += first,
                one.starts = starts;
            float *want = whole(&r, cross ? &one : NULL, all[s], len[s]);
            const float *row = logits + s * 37, *last = want + (len[s] - 1) * 37;
            compare(family, s, len[s], row, last, 37);
            free(want);
        }
        if (!cross && (from[step][0] || from[step][1] || from[step][2]))
            go_on_from(d, from[step], all, len, SEQS);
        for (int s = 0; s < SEQS; s++) {
            counts[s] = step == 3 || step == 6 ? 2 : 1;
            for (int i = 0; i < counts[s]; i++)
                flat[at++] = all[s][len[s]++] = (s * 7 + step * 3 + i * 11) % 37;
        }
    }
    neb__decoding_destroy(d);
    rig_batch_free(&prompts);
    rig_batch_free(&sources);
    rig_close(&r);
}

static void cache_equals_whole(void **state)
{
    (void)state;
    check_cache("gpt2", "", NULL);
    check_cache("llama", "kv_heads=2", NULL);
    check_cache("transformer", "", NULL);
    check_cache("marian", "norm_place=pre recompute=yes", NULL);
    check_cache("t5", "relative_buckets=8 relative_distance=10 head_dim=6", NULL);
    check_cache("llama", "kv_heads=2 positions=relative relative_buckets=6 relative_distance=9", NULL);
}

static void a_prefix_lies_in_the_cache(void **state)
{
    (void)state;
    check_cache("gpt2", "", "method=prefix prefix_length=5");
    check_cache("llama", "kv_heads=2", "method=prefix prefix_length=3");
    check_cache("gpt2", "", "method=prompt prompt_length=2");
    check_cache("llama", "kv_heads=2", "method=prompt prompt_length=3");
    check_cache("transformer", "", "method=prefix,lora prefix_length=4");
}

/* The best tokens are those of the logits, whether the device or the host finds them. They follow the
 * weights: a start makes everything again that a decoding keeps of these. */
static void best_tokens_follow_the_weights(void **state)
{
    (void)state;
    enum { SEQS = 3, K = 5, VOCAB = 37 };
    struct rig r;
    struct neb_decoding *d;
    struct neb_decode_limits limits = {SEQS, 20, 32, 0};
    const int32_t counts[SEQS] = {2, 1, 3}, ids[] = {4, 9, 30, 2, 2, 17};
    float before[SEQS * K], host[SEQS * (2 * K + 1)], *values = NULL;
    const float *logits;
    struct neb_best_tokens got, want = {host, (int32_t *)(host + SEQS * K), host + 2 * SEQS * K};
    assert_ok(rig_open(&r, "gpt2", SIZES, NULL, 2));
    assert_ok(neb__decoding_create(r.device, r.model, &limits, &d));
    for (int round = 0; round < 2; round++) {
        assert_ok(neb__decoding_start(d, SEQS, NULL));
        assert_ok(neb__decoding_step(d, counts, ids, &logits));
        neb__topk_on_host(logits, SEQS, VOCAB, K, &want);
        assert_ok(neb__decoding_start(d, SEQS, NULL));
        assert_ok(neb__decoding_step_best(d, counts, ids, K, &got));
        assert_memory_equal(got.id, want.id, sizeof(int32_t) * SEQS * K);
        assert_memory_equal(got.logit, want.logit, sizeof(float) * SEQS * K);
        for (int s = 0; s < SEQS; s++) assert_float_equal(got.logsum[s], want.logsum[s], 1e-5);
        if (round) break;
        memcpy(before, got.logit, sizeof before);
        neb_param *w = r.model->decoder.layers[0].ffn.in.weight;
        values = calloc(32 * 48, sizeof *values);
        assert_non_null(values);
        for (int i = 0; i < 32 * 48; i++) values[i] = (float)(i % 7) * 0.1f;
        assert_ok(neb_param_write(w, values));
    }
    assert_memory_not_equal(before, got.logit, sizeof before);
    float *whole_logits = whole(&r, NULL, ids, 2);
    for (int j = 0; j < K; j++)
        assert_true(fabsf(whole_logits[VOCAB + got.id[j]] - got.logit[j]) <=
                    1e-4f * (1 + fabsf(got.logit[j])));
    free(whole_logits);
    free(values);
    neb__decoding_destroy(d);
    rig_close(&r);
}

/* ---- beams --------------------------------------------------------------------------------------------- */

enum { WORDS = 4, LONGEST = 3, EOS = 0 };

static double log_prob(const float *logits, int n, int token)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += exp(logits[i]);
    return logits[token] - log(sum);
}

/* Finds the best sequence by trying all of up to LONGEST tokens. */
static double brute_force(struct rig *r, float penalty, int32_t *best, int32_t *best_len)
{
    double top = -INFINITY;
    for (int code = 0; code < WORDS * WORDS * WORDS; code++) {
        int32_t ids[1 + LONGEST] = {1, code % WORDS, code / WORDS % WORDS, code / WORDS / WORDS};
        float *logits = whole(r, NULL, ids, LONGEST);
        double score = 0;
        int n = 0, scored = 0;
        for (bool ended = false; n < LONGEST && !ended; scored++) {
            score += log_prob(logits + n * WORDS, WORDS, ids[n + 1]);
            ended = ids[n + 1] == EOS;
            n += !ended;
        }
        score /= pow(scored, penalty);
        if (score > top) {
            top = score;
            *best_len = n;
            memcpy(best, ids + 1, (size_t)n * 4);
        }
        free(logits);
    }
    return top;
}

static void beams_find_the_best(void **state)
{
    (void)state;
    struct rig r;
    struct neb_decoding *d;
    struct neb_decode_limits limits = {64, 8, 64, 0};
    int32_t prompt[] = {1}, starts[] = {0, 1}, out[LONGEST], len, want[LONGEST], want_len;
    assert_ok(
        rig_open(&r, "gpt2", "vocab=4 hidden=16 layers=1 heads=2 max_positions=8 init_deviation=1", NULL, 2));
    assert_ok(neb__decoding_create(r.device, r.model, &limits, &d));
    for (int i = 0; i < 3; i++) {
        struct neb_search how = {
            .max_new = LONGEST, .eos = EOS, .beams = 64, .length_penalty = 0.5f * (float)i};
        brute_force(&r, how.length_penalty, want, &want_len);
        assert_ok(neb__decoding_generate(d, &how, NULL, 1, prompt, starts, out, &len));
        assert_int_equal(len, want_len);
        assert_memory_equal(out, want, (size_t)len * 4);
    }
    neb__decoding_destroy(d);
    rig_close(&r);
}

/* Wider beams never find a worse sequence here than greedy. Prompts do not disturb each other. Sampling with
 * the same seed repeats. */
static void searches_agree(void **state)
{
    (void)state;
    struct rig r;
    struct neb_decoding *d;
    struct neb_decode_limits limits = {12, 24, 48, 0};
    int32_t prompt[] = {3, 9, 1, 30, 2, 5}, starts[] = {0, 2, 3, 6}, all[3 * 10], one[10], again[3 * 10];
    int32_t lengths[3], len;
    assert_ok(rig_open(&r, "llama", SIZES, NULL, 2));
    assert_ok(neb__decoding_create(r.device, r.model, &limits, &d));
    struct neb_search ways[] = {{.max_new = 10, .eos = -1},
                                {.max_new = 10, .eos = 7, .beams = 4, .length_penalty = 1},
                                {.max_new = 10, .eos = -1, .temperature = 1, .top_k = 1}};
    for (int w = 0; w < 3; w++) {
        assert_ok(neb__decoding_generate(d, &ways[w], NULL, 3, prompt, starts, all, lengths));
        for (int i = 0; i < 3; i++) {
            int32_t alone[2] = {0, starts[i + 1] - starts[i]};
            assert_ok(neb__decoding_generate(d, &ways[w], NULL, 1, prompt + starts[i], alone, one, &len));
            assert_int_equal(len, lengths[i]);
            assert_memory_equal(one, all + i * 10, (size_t)len * 4);
        }
    }
    struct neb_search sample = {.max_new = 10, .eos = -1, .temperature = 1, .seed = 4};
    assert_ok(neb__decoding_generate(d, &sample, NULL, 3, prompt, starts, all, lengths));
    assert_ok(neb__decoding_generate(d, &sample, NULL, 3, prompt, starts, again, lengths));
    assert_memory_equal(all, again, sizeof all);
    sample.seed = 5;
    assert_ok(neb__decoding_generate(d, &sample, NULL, 3, prompt, starts, again, lengths));
    assert_memory_not_equal(all, again, sizeof all);
    neb__decoding_destroy(d);
    rig_close(&r);
}

/* Each prompt has a limit of its own, and finds what a search for so many tokens finds. */
static void each_prompt_has_its_limit(void **state)
{
    (void)state;
    enum { MOST = 10 };
    struct rig r;
    struct neb_decoding *d;
    struct neb_decode_limits limits = {12, 24, 48, 0};
    int32_t prompt[] = {3, 9, 1, 30, 2, 5}, starts[] = {0, 2, 3, 6}, all[3 * MOST], one[MOST];
    int32_t lengths[3], len, most[] = {4, MOST, 1};
    struct neb_search ways[] = {{.max_new = MOST, .eos = -1},
                                {.max_new = MOST, .eos = 7, .beams = 4, .length_penalty = 1},
                                {.max_new = MOST, .eos = 7, .beams = 2, .length_penalty = 0.5f}};
    assert_ok(rig_open(&r, "llama", SIZES, NULL, 2));
    assert_ok(neb__decoding_create(r.device, r.model, &limits, &d));
    for (int w = 0; w < 3; w++) {
        struct neb_search how = ways[w];
        how.most = most;
        assert_ok(neb__decoding_generate(d, &how, NULL, 3, prompt, starts, all, lengths));
        how.most = NULL;
        for (int i = 0; i < 3; i++) {
            int32_t alone[2] = {0, starts[i + 1] - starts[i]};
            how.max_new = most[i];
            assert_ok(neb__decoding_generate(d, &how, NULL, 1, prompt + starts[i], alone, one, &len));
            assert_int_equal(len, lengths[i]);
            assert_memory_equal(one, all + i * MOST, (size_t)len * 4);
        }
    }
    most[1] = MOST + 1;
    ways[0].most = most;
    check_log_quiet();
    assert_status(neb__decoding_generate(d, &ways[0], NULL, 3, prompt, starts, all, lengths),
                  NEB_ERR_INVALID);
    check_log_restore();
    neb__decoding_destroy(d);
    rig_close(&r);
}

/* If runs are recorded, padded sources of many sizes share a handful of them.
 * The sequences found are the same. */
enum { BATCHES = 16, SOURCES = 3, NEW = 9 };

static void translate_all(const char *peft, bool record, int32_t *out, int32_t *lengths, int *shapes)
{
    struct rig r;
    struct neb_decoding *d[2];
    struct neb_searching *search[2] = {NULL, NULL};
    struct neb_decode_limits limits = {SOURCES * 4, 24, SOURCES * 4, 200};
    struct neb_search how = {.max_new = NEW, .eos = 7, .length_penalty = 1};
    int32_t prompt[SOURCES] = {1, 1, 1}, starts[SOURCES + 1] = {0, 1, 2, 3};
    assert_ok(rig_open(&r, "transformer", SIZES, peft, 2));
    if (record) recorder_take(r.device);
    for (int i = 0; i < 2; i++) assert_ok(neb__decoding_create(r.device, r.model, &limits, &d[i]));
    for (int b = 0, busy = 1; busy;) { /* two searches take turns */
        busy = 0;
        for (int i = 0; i < 2; i++) {
            bool done = false;
            if (search[i]) assert_ok(neb__search_step(search[i], &done));
            if (done) neb__search_end(search[i]);
            if (done) search[i] = NULL;
            if (!search[i] && b < BATCHES) {
                struct rig_batch sources;
                const int n[] = {1 + b, 20 - b, 3 + b % 4, 0};
                how.beams = b % 3 ? 4 : 2; /* the wider search makes more room, elsewhere */
                rig_batch_make(&sources, r.model, n, n, (uint32_t)b * 10);
                assert_ok(neb__search_begin(d[i], &how, &sources.data.side[0], SOURCES, prompt, starts,
                                            out + b * SOURCES * NEW, lengths + b * SOURCES, &search[i]));
                rig_batch_free(&sources);
                b++;
            }
            busy = busy || search[i];
        }
    }
    *shapes = neb__decoding_shapes(d[0]);
    for (int i = 0; i < 2; i++) neb__decoding_destroy(d[i]);
    rig_close(&r);
}

static void recorded_runs_find_the_same(void **state)
{
    static const char *const peft[] = {NULL, "method=prefix prefix_length=3"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        int32_t out[2][BATCHES * SOURCES * NEW] = {{0}}, lengths[2][BATCHES * SOURCES];
        int shapes[2];
        for (int j = 0; j < 2; j++) translate_all(peft[i], j, out[j], lengths[j], &shapes[j]);
        assert_memory_equal(lengths[0], lengths[1], sizeof lengths[0]);
        for (int s = 0; s < BATCHES * SOURCES; s++)
            assert_memory_equal(out[0] + s * NEW, out[1] + s * NEW, (size_t)lengths[0][s] * 4);
        assert_true(recorder_launches() > BATCHES * NEW / 2);
        assert_true(shapes[1] < shapes[0]);
    }
}

/* ---- bad input ----------------------------------------------------------------------------------------- */

static void refusals(void **state)
{
    (void)state;
    struct rig r;
    struct neb_decoding *d;
    const float *logits;
    int32_t one = 1, many = 30, ids[32] = {0}, starts[] = {0, 0}, out[4], len;
    struct neb_decode_limits limits = {2, 24, 48, 0};
    assert_ok(rig_open(&r, "gpt2", SIZES, NULL, 2));
    check_log_quiet();
    limits.max_len = 25;
    assert_status(neb__decoding_create(r.device, r.model, &limits, &d), NEB_ERR_CONFIG);
    limits.max_len = 24;
    limits.source_rows = 3;
    assert_status(neb__decoding_create(r.device, r.model, &limits, &d), NEB_ERR_CONFIG);
    limits.source_rows = 0;
    assert_ok(neb__decoding_create(r.device, r.model, &limits, &d));
    assert_status(neb__decoding_start(d, 3, NULL), NEB_ERR_RANGE);
    assert_ok(neb__decoding_start(d, 1, NULL));
    assert_status(neb__decoding_step(d, &many, ids, &logits), NEB_ERR_RANGE);
    assert_ok(neb__decoding_step(d, &one, ids, &logits));
    assert_status(neb__decoding_reorder(d, &one), NEB_ERR_RANGE);
    struct neb_search how = {.max_new = 4, .eos = -1};
    assert_status(neb__decoding_generate(d, &how, NULL, 1, ids, starts, out, &len), NEB_ERR_INVALID);
    neb__decoding_destroy(d);
    rig_close(&r);
    assert_ok(rig_open(&r, "bert", SIZES, NULL, 2));
    assert_status(neb__decoding_create(r.device, r.model, &limits, &d), NEB_ERR_UNSUPPORTED);
    check_log_restore();
    rig_close(&r);
}

static neb_status whole_life(void)
{
    struct rig r;
    struct neb_decoding *d = NULL;
    struct neb_decode_limits limits = {4, 24, 48, 0};
    struct neb_search how = {.max_new = 3, .eos = -1, .beams = 2};
    int32_t prompt[] = {3, 9}, starts[] = {0, 2}, out[3], len;
    NEB_TRY(rig_open(&r, "gpt2", SIZES, NULL, 1));
    neb_status status = neb__decoding_create(r.device, r.model, &limits, &d);
    if (status == NEB_OK) status = neb__decoding_generate(d, &how, NULL, 1, prompt, starts, out, &len);
    neb__decoding_destroy(d);
    rig_close(&r);
    return status;
}

static void every_allocation_fails_once(void **state)
{
    (void)state;
    assert_ok(whole_life());
    int64_t held = neb__mem_held();
    check_log_quiet();
    for (int64_t n = 1;; n++) {
        neb__mem_fail_at(n);
        neb_status status = whole_life();
        bool reached = neb__mem_count() >= n;
        neb__mem_fail_at(0);
        assert_int_equal(neb__mem_held(), held);
        assert_true(status == NEB_OK || status == NEB_ERR_NOMEM);
        if (!reached) break;
    }
    check_log_restore();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(cache_equals_whole),
                                       cmocka_unit_test(a_prefix_lies_in_the_cache),
                                       cmocka_unit_test(best_tokens_follow_the_weights),
                                       cmocka_unit_test(beams_find_the_best),
                                       cmocka_unit_test(searches_agree),
                                       cmocka_unit_test(each_prompt_has_its_limit),
                                       cmocka_unit_test(recorded_runs_find_the_same),
                                       cmocka_unit_test(refusals),
                                       cmocka_unit_test(every_allocation_fails_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
