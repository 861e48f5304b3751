/* test_batches.c: drawing, packing, masking, positions that can be saved and replayed,
 * and batches made ahead. */
#include "check.h"
#include "words.h"
#include "base/file.h"
#include "base/mem.h"
#include "text/corpus.h"
#include "text/source_mix.h"
#include "text/prefetch.h"
#include "text/batches.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static char dir[256];
static struct neb_tok *tok;
static struct neb_set *mono, *other, *pairs;
static struct neb_vocab vocab;

static struct neb_set *build(const char *name, int lang, int lang2, int lines)
{
    char text[300], folder[300];
    struct neb_pool *pool;
    struct neb_corpus_stats stats;
    struct neb_set *set;
    snprintf(text, sizeof text, "%s/%s.txt", dir, name);
    snprintf(folder, sizeof folder, "%s/%s", dir, name);
    words_file(text, lang, lang2, lines);
    const char *paths[] = {text, NULL};
    struct neb_corpus_cfg cfg = {.paths = paths, .sides = lang2 >= 0 ? 2 : 1, .lang = {"aa", "bb"}};
    assert_ok(neb__pool_create(1, &pool));
    assert_ok(neb__corpus_tokenise(&cfg, tok, pool, folder, &stats));
    neb__pool_destroy(pool);
    assert_ok(neb__set_open(folder, &set));
    return set;
}

static int set_up(void **state)
{
    (void)state;
    check_make_dir(dir, sizeof dir);
    tok = words_tokenizer("unigram");
    neb__vocab_of(tok, &vocab);
    mono = build("mono", 0, -1, 3000);
    other = build("other", 2, -1, 300);
    pairs = build("pairs", 0, 1, 2000);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    neb__set_close(mono);
    neb__set_close(other);
    neb__set_close(pairs);
    neb__tok_close(tok);
    check_remove_dir(dir);
    return 0;
}

static struct neb_source sources[3];

static struct neb_batches_cfg config(enum neb_batch_kind kind)
{
    sources[0] = (struct neb_source){
        .set = kind == NEB_BATCH_PAIR ? pairs : mono, .lang = {0, 1}, .frame = NEB_NO_FRAME};
    sources[1] = (struct neb_source){.set = other, .lang = {2, 2}, .frame = NEB_NO_FRAME};
    sources[2] = (struct neb_source){.set = pairs, .lang = {0, 1}, .frame = NEB_NO_FRAME};
    return (struct neb_batches_cfg){.kind = kind,
                                    .seed = 11,
                                    .parts = 1,
                                    .sources = kind == NEB_BATCH_MLM      ? 3
                                               : kind == NEB_BATCH_CAUSAL ? 2
                                                                          : 1,
                                    .source = sources,
                                    .vocab = vocab,
                                    .temperature = 2,
                                    .tokens = 2048,
                                    .max_len = 128};
}

/* ---- drawing ------------------------------------------------------------------------------------------- */

static void permutations_are_permutations(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1, 2, 3, 17, 64, 1000, 4097};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        uint64_t n = sizes[k], fixed = 0;
        uint8_t *seen = calloc(n, 1);
        for (uint64_t i = 0; i < n; i++) {
            uint64_t j = neb__mix_permute(99, n, i);
            assert_true(j < n && !seen[j]);
            seen[j] = 1;
            fixed += j == i;
        }
        assert_true(n < 1000 || fixed < 10);
        free(seen);
    }
}

static void draws_follow_the_temperature_and_cover_every_epoch(void **state)
{
    (void)state;
    const int64_t counts[2] = {900, 100};
    struct neb_mix_source source[2] = {{900, 9000, 1, 0}, {100, 1000, 1, 1}};
    struct neb_mix *m;
    assert_ok(neb__mix_create(5, 2, source, 2, NEB_MIX_BY_LANGUAGE, &m));
    double want = sqrt(900) / (sqrt(900) + sqrt(100));
    assert_true(fabs(neb__mix_share(m, 0) - want) < 1.0 / 1024);
    int *drawn = calloc(1000, sizeof *drawn), n[2] = {0, 0};
    uint64_t d = 0;
    for (; n[1] < 1000; d++) { /* ten epochs of the small one */
        struct neb_pick p = neb__mix_draw(m, d);
        assert_true(p.sample >= 0 && p.sample < counts[p.source]);
        assert_int_equal(p.epoch, n[p.source] / counts[p.source]);
        drawn[p.source * 900 + p.sample]++;
        n[p.source]++;
    }
    for (int i = 900; i < 1000; i++) assert_int_equal(drawn[i], 10);
    /* any draw, asked out of order, is the same */
    struct neb_pick a = neb__mix_draw(m, 1234), b = neb__mix_draw(m, 7), c = neb__mix_draw(m, 1234);
    (void)b;
    assert_true(a.source == c.source && a.sample == c.sample && a.epoch == c.epoch);
    free(drawn);
    neb__mix_free(m);
    check_log_quiet();
    source[1].samples = 0;
    assert_status(neb__mix_create(5, 2, source, 1, NEB_MIX_BY_LANGUAGE, &m), NEB_ERR_INVALID);
    check_log_restore();
}

/* The tokens of a language follow (all its tokens)^(1/temperature), however many files it is in and however long its lines are. */
static void languages_are_sampled_not_files(void **state)
{
    (void)state;
    static const int files[] = {1, 8};
    static const double temperatures[] = {1, 2, 1 / 0.7};
    for (size_t t = 0; t < 3; t++)
        for (size_t k = 0; k < 2; k++)
            for (int length = 10; length <= 40;
                 length += 30) { /* tokens of an English line; of a Swahili one: 10 */
                struct neb_mix_source source[9];
                struct neb_mix *m;
                const int n = files[k];
                double tokens[2] = {0};
                for (int i = 0; i < n; i++)
                    source[i] = (struct neb_mix_source){80000 / n, 80000 / n * length, 1, 0};
                source[n] = (struct neb_mix_source){20000, 200000, 1, 1};
                assert_ok(neb__mix_create(5, n + 1, source, temperatures[t], NEB_MIX_BY_LANGUAGE, &m));
                for (int i = 0; i <= n; i++)
                    tokens[source[i].language] +=
                        neb__mix_share(m, i) * (double)source[i].tokens / (double)source[i].samples;
                neb__mix_free(m);
                double want = pow(80000. * length / 200000, 1 / temperatures[t]), got = tokens[0] / tokens[1];
                if (fabs(got / want - 1) > 0.03)
                    fail_msg("%d files of %d tokens a line, temperature %g: %g instead of %g", n, length,
                             temperatures[t], got, want);
            }
    /* a weight multiplies; inside a language the sizes count */
    struct neb_mix_source source[3] = {{100, 1000, 2, 0}, {300, 3000, 1, 0}, {400, 4000, 1, 1}};
    struct neb_mix *m;
    assert_ok(neb__mix_create(5, 3, source, 1000, NEB_MIX_BY_LANGUAGE, &m));
    assert_true(fabs(neb__mix_share(m, 0) / neb__mix_share(m, 1) - 2. / 3) < 0.02);
    assert_true(fabs(neb__mix_share(m, 2) - 4. / 9) < 0.01);
    neb__mix_free(m);
}

/* ---- batches ------------------------------------------------------------------------------------------- */

static void batches_keep_their_promises(void **state)
{
    (void)state;
    for (int kind = NEB_BATCH_MLM; kind <= NEB_BATCH_PAIR; kind++) {
        struct neb_batches_cfg cfg = config((enum neb_batch_kind)kind);
        struct neb_batches *s;
        struct neb_batch *b;
        int shapes[64][2], n = 0;
        assert_ok(neb__batches_create(&cfg, &s));
        assert_ok(neb__batches_batch(s, &b));
        int64_t allocations = 0;
        for (int i = 0; i < 300; i++) {
            if (i == 1) neb__mem_fail_at(0); /* counts from here */
            assert_ok(neb__batches_next(s, b));
            allocations = neb__mem_count();
            assert_ok(neb__batch_check(b, vocab.size));
            int k = 0;
            while (k < n && (shapes[k][0] != b->side[0].tokens || shapes[k][1] != b->side[1].tokens)) k++;
            if (k == n) shapes[n][0] = b->side[0].tokens, shapes[n++][1] = b->side[1].tokens;
            assert_true(n <= NEB_MAX_BUCKETS);
        }
        assert_int_equal(allocations, 0);
        struct neb_batches_stats t = neb__batches_stats(s);
        double padding = (double)t.padding / (double)t.rows;
        print_message("kind %d: padding %.3f %%, %d shapes\n", kind, 100 * padding, n);
        assert_true(padding < 0.05);
        neb__batch_free(b);
        neb__batches_free(s);
    }
}

static void pairs_are_shifted_right(void **state)
{
    (void)state;
    struct neb_batches_cfg cfg = config(NEB_BATCH_PAIR);
    struct neb_batches *s;
    struct neb_batch *b;
    sources[0].frame.lead = neb__tok_lang(tok, "bb");
    cfg.once = 1;
    assert_ok(neb__batches_create(&cfg, &s));
    assert_ok(neb__batches_batch(s, &b));
    uint8_t seen[2000] = {0};
    int64_t total = 0;
    neb_status status;
    while ((status = neb__batches_next(s, b)) == NEB_OK) {
        assert_ok(neb__batch_check(b, vocab.size));
        for (int32_t q = 0; q < b->side[0].nseq_used; q++) {
            int32_t from = b->side[0].cu_seqlens[q], to = b->side[1].cu_seqlens[q], ids[200];
            uint32_t sample = b->side[0].sample[from];
            assert_true(sample < 2000 && !seen[sample]++);
            total++;
            int32_t n = neb__set_length(pairs, sample, 0), m = neb__set_length(pairs, sample, 1);
            assert_int_equal(b->side[0].ids[from], sources[0].frame.lead);
            assert_ok(neb__set_copy(pairs, sample, 0, 0, n, ids));
            assert_memory_equal(b->side[0].ids + from + 1, ids, (size_t)n * 4);
            assert_int_equal(b->side[0].ids[from + 1 + n], vocab.eos);
            assert_int_equal(b->side[1].ids[to], vocab.bos);
            assert_ok(neb__set_copy(pairs, sample, 1, 0, m, ids));
            assert_memory_equal(b->side[1].ids + to + 1, ids, (size_t)m * 4);
            assert_memory_equal(b->loss.target + to, ids, (size_t)m * 4);
            assert_int_equal(b->loss.target[to + m], vocab.eos);
            assert_int_equal(b->side[0].lang[from], 0);
            assert_int_equal(b->side[1].lang[to], 1);
        }
    }
    assert_status(status, NEB_ERR_AGAIN);
    assert_true(total + neb__batches_stats(s).skipped == neb__set_count(pairs));
    neb__batch_free(b);
    neb__batches_free(s);
}

struct masked {
    int n;
    int32_t rows[200], ids[200], targets[200];
};

/* The masking of each sample. It must not depend on how the sample was packed. */
static void collect(int32_t tokens, int64_t parts, struct masked *out, int limit)
{
    struct neb_batches_cfg cfg = config(NEB_BATCH_MLM);
    cfg.tokens = tokens;
    cfg.parts = parts;
    for (cfg.part = 0; cfg.part < parts; cfg.part++) {
        struct neb_batches *s;
        struct neb_batch *b;
        assert_ok(neb__batches_create(&cfg, &s));
        assert_ok(neb__batches_batch(s, &b));
        for (int i = 0; i < 12; i++) {
            assert_ok(neb__batches_next(s, b));
            const struct neb_batch_side *side = &b->side[0];
            for (int32_t k = 0; k < b->loss.used; k++) {
                int32_t r = b->loss.rows[k];
                if (side->sample[r] >= (uint32_t)limit) continue;
                struct masked *m = &out[side->sample[r]];
                m->rows[m->n] = side->at[r];
                m->ids[m->n] = side->ids[r];
                m->targets[m->n++] = b->loss.target[k];
                assert_int_equal(b->original[r], b->loss.target[k]);
            }
        }
        neb__batch_free(b);
        neb__batches_free(s);
    }
}

static void masks_belong_to_the_sample_not_to_the_packing(void **state)
{
    (void)state;
    enum { LIMIT = 300 };
    struct masked *a = calloc(LIMIT, sizeof *a), *b = calloc(LIMIT, sizeof *b);
    collect(4096, 1, a, LIMIT);
    collect(2048, 3, b, LIMIT);
    for (int i = 0; i < LIMIT; i++) assert_memory_equal(&a[i], &b[i], sizeof a[i]);
    free(a);
    free(b);
}

static void masking_has_berts_shares(void **state)
{
    (void)state;
    struct neb_batches_cfg cfg = config(NEB_BATCH_MLM);
    struct neb_batches *s;
    struct neb_batch *b;
    double rows = 0, masked = 0, kept = 0, covered = 0;
    assert_ok(neb__batches_create(&cfg, &s));
    assert_ok(neb__batches_batch(s, &b));
    for (int i = 0; i < 200; i++) {
        assert_ok(neb__batches_next(s, b));
        for (int32_t r = 0; r < b->side[0].used; r++) rows += !vocab.special[b->original[r]];
        masked += b->loss.used;
        for (int32_t k = 0; k < b->loss.used; k++) {
            int32_t id = b->side[0].ids[b->loss.rows[k]];
            assert_false(vocab.special[b->loss.target[k]]);
            assert_true(id == vocab.mask || !vocab.special[id]);
            kept += id == b->loss.target[k];
            covered += id == vocab.mask;
        }
    }
    assert_true(fabs(masked / rows - 0.15) < 0.003);
    assert_true(fabs(kept / masked - 0.1) < 0.02 && fabs(covered / masked - 0.8) < 0.02);

    /* the discriminator's side */
    int32_t n = b->side[0].tokens, *input = malloc((size_t)n * 4), *label = malloc((size_t)n * 4);
    int32_t *sampled = malloc((size_t)b->loss.n * 4);
    float *weight = malloc((size_t)n * 4);
    for (int32_t k = 0; k < b->loss.n; k++) sampled[k] = k % 2 ? b->loss.target[k] : 9 + k % 100;
    assert_ok(neb__batch_rtd(b, sampled, vocab.special, input, label, weight));
    int32_t labels = 0, want = 0;
    for (int32_t r = 0; r < n; r++) {
        assert_int_equal(label[r], input[r] != b->original[r]);
        assert_true((weight[r] != 0) == (r < b->side[0].used && !vocab.special[b->original[r]]));
        labels += label[r];
    }
    for (int32_t k = 0; k < b->loss.used; k++) want += sampled[k] != b->loss.target[k];
    assert_true(labels == want && labels > 0);
    sampled[0] = -1;
    check_log_quiet();
    assert_status(neb__batch_rtd(b, sampled, vocab.special, input, label, weight), NEB_ERR_RANGE);
    check_log_restore();
    free(input);
    free(label);
    free(sampled);
    free(weight);
    neb__batch_free(b);
    neb__batches_free(s);
}

static void joined_pairs_restart_positions(void **state)
{
    (void)state;
    struct neb_batches_cfg cfg = config(NEB_BATCH_MLM);
    struct neb_batches *s;
    struct neb_batch *b;
    int joined = 0;
    cfg.source = &sources[2];
    cfg.sources = 1;
    assert_ok(neb__batches_create(&cfg, &s));
    assert_ok(neb__batches_batch(s, &b));
    assert_ok(neb__batches_next(s, b));
    const struct neb_batch_side *side = &b->side[0];
    for (int32_t r = 1; r < side->used; r++)
        if (side->type[r] == 1 && side->type[r - 1] == 0) {
            assert_int_equal(side->pos[r], 0);
            assert_true(side->at[r] > 0 && b->original[r - 1] == vocab.eos);
            assert_true(side->lang[r] == 1 && side->lang[r - 1] == 0);
            joined++;
        }
    assert_int_equal(joined, side->nseq_used);
    neb__batch_free(b);
    neb__batches_free(s);
}

/* All parts together have the samples of one single part, each exactly once. */
static void parts_divide_the_samples(void **state)
{
    (void)state;
    struct neb_batches_cfg cfg = config(NEB_BATCH_MLM);
    uint8_t seen[4000] = {0};
    cfg.parts = 4;
    cfg.max_len = 512; /* no pair is left out */
    for (cfg.part = 0; cfg.part < 4; cfg.part++) {
        struct neb_batches *s;
        struct neb_batch *b;
        assert_ok(neb__batches_create(&cfg, &s));
        assert_ok(neb__batches_batch(s, &b));
        for (int i = 0; i < 8; i++) {
            assert_ok(neb__batches_next(s, b));
            for (int32_t q = 0; q < b->side[0].nseq_used; q++) {
                uint32_t id = b->side[0].sample[b->side[0].cu_seqlens[q]];
                assert_int_equal(id % 4, cfg.part);
                if (id < sizeof seen) assert_true(!seen[id]++);
            }
        }
        neb__batch_free(b);
        neb__batches_free(s);
    }
    for (int i = 0; i < 200; i++) assert_int_equal(seen[i], 1);
}

/* ---- positions ----------------------------------------------------------------------------------------- */

static void assert_same_batch(const struct neb_batch *a, const struct neb_batch *b)
{
    assert_true(a->step == b->step && a->side[0].tokens == b->side[0].tokens && a->loss.used == b->loss.used);
    for (int s = 0; s < a->sides; s++) {
        size_t n = (size_t)a->side[s].tokens * 4;
        assert_memory_equal(a->side[s].ids, b->side[s].ids, n);
        assert_memory_equal(a->side[s].sample, b->side[s].sample, n);
        assert_memory_equal(a->side[s].cu_seqlens, b->side[s].cu_seqlens, ((size_t)a->side[s].nseq + 1) * 4);
    }
    assert_memory_equal(a->loss.target, b->loss.target, (size_t)a->loss.n * 4);
}

static void a_saved_position_and_a_replayed_one_are_equal(void **state)
{
    (void)state;
    for (int kind = NEB_BATCH_MLM; kind <= NEB_BATCH_PAIR; kind++) {
        struct neb_batches_cfg cfg = config((enum neb_batch_kind)kind);
        struct neb_batches *s, *t;
        struct neb_batch *a, *b;
        struct neb_buf saved, again;
        neb__buf_init(&saved, 1 << 20);
        neb__buf_init(&again, 1 << 20);
        assert_ok(neb__batches_create(&cfg, &s));
        assert_ok(neb__batches_create(&cfg, &t));
        assert_ok(neb__batches_batch(s, &a));
        assert_ok(neb__batches_batch(s, &b));
        for (int i = 0; i < 50; i++) {
            for (int k = 0; k < 1 + i % 3; k++) assert_ok(neb__batches_next(s, a));
            neb__buf_clear(&saved);
            assert_ok(neb__batches_save(s, &saved));
            if (i % 2) {
                assert_ok(neb__batches_restore(t, saved.data, saved.len));
            } else {
                assert_ok(neb__batches_seek(t, neb__batches_step(s)));
                neb__buf_clear(&again);
                assert_ok(neb__batches_save(t, &again));
                assert_int_equal(again.len, saved.len);
                assert_memory_equal(again.data, saved.data, saved.len);
            }
            assert_ok(neb__batches_next(s, a));
            assert_ok(neb__batches_next(t, b));
            assert_same_batch(a, b);
        }
        assert_ok(neb__batches_seek(t, 3)); /* backwards */
        assert_int_equal(neb__batches_step(t), 3);
        neb__batch_free(a);
        neb__batch_free(b);
        neb__batches_free(s);
        neb__batches_free(t);
        neb__buf_free(&saved);
        neb__buf_free(&again);
    }
}

/* A position of a version that sampled corpora goes on with the draws of that version. */
static void an_old_position_brings_its_own_shares(void **state)
{
    (void)state;
    struct neb_batches_cfg cfg = config(NEB_BATCH_MLM);
    struct neb_batches *old, *now;
    struct neb_batch *a, *b;
    struct neb_buf saved, again;
    struct neb_hash print;
    char text[1200], hex[2 * NEB_HASH_SIZE + 1];
    neb__buf_init(&saved, 1 << 20);
    neb__buf_init(&again, 1 << 20);
    sources[0].language = sources[1].language = 3;
    cfg.rule = NEB_MIX_BY_SOURCE;
    assert_ok(neb__batches_create(&cfg, &old));
    cfg.rule = NEB_MIX_BY_LANGUAGE;
    assert_ok(neb__batches_create(&cfg, &now));
    assert_ok(neb__batches_batch(old, &a));
    assert_ok(neb__batches_batch(now, &b));
    for (int i = 0; i < 3; i++) assert_ok(neb__batches_next(old, a));
    assert_ok(neb__batches_save(old, &saved));
    /* its bytes, as that version wrote them */
    assert_int_equal(saved.data[8], 1);
    int at = snprintf(text, sizeof text, "%d 11 0/1 3 2048 128 512 2 %.17g 0 %d\n", (int)NEB_BATCH_MLM, 0.15,
                      (int)vocab.size);
    for (int i = 0; i < 3; i++) {
        const struct neb_set *set = sources[i].set;
        neb__hash_hex(&neb__set_info(set)->tokenizer, hex);
        at += snprintf(text + at, sizeof text - (size_t)at, "%d %d %d 1 0 -1 %s\n", (int)neb__set_count(set),
                       (int)neb__set_tokens(set, 0), (int)neb__set_tokens(set, 1), hex);
    }
    assert_ok(neb__hash(text, (size_t)at, &print));
    assert_memory_equal(saved.data + 12, print.b, NEB_HASH_SIZE);

    for (int i = 0; i < 2; i++) assert_ok(neb__batches_next(now, b));
    assert_ok(neb__batches_restore(now, saved.data, saved.len));
    assert_ok(neb__batches_save(now, &again));
    assert_int_equal(again.len, saved.len);
    assert_memory_equal(again.data, saved.data, saved.len);
    for (int i = 0; i < 40; i++) {
        assert_ok(neb__batches_next(old, a));
        assert_ok(neb__batches_next(now, b));
        assert_same_batch(a, b);
    }
    neb__batches_free(now);
    assert_ok(neb__batches_create(&cfg, &now)); /* a new position of other languages is refused */
    neb__buf_clear(&again);
    assert_ok(neb__batches_save(now, &again));
    assert_int_equal(again.data[8], 2);
    neb__batches_free(now);
    sources[2].language = 3;
    assert_ok(neb__batches_create(&cfg, &now));
    check_log_quiet();
    assert_status(neb__batches_restore(now, again.data, again.len), NEB_ERR_CONFIG);
    check_log_restore();
    neb__batch_free(a);
    neb__batch_free(b);
    neb__batches_free(old);
    neb__batches_free(now);
    neb__buf_free(&saved);
    neb__buf_free(&again);
}

static void hostile_and_foreign_positions_are_refused(void **state)
{
    (void)state;
    struct neb_batches_cfg cfg = config(NEB_BATCH_MLM);
    struct neb_batches *s, *t;
    struct neb_batch *b;
    struct neb_buf saved;
    neb__buf_init(&saved, 1 << 20);
    assert_ok(neb__batches_create(&cfg, &s));
    cfg.seed++;
    assert_ok(neb__batches_create(&cfg, &t));
    assert_ok(neb__batches_batch(s, &b));
    assert_ok(neb__batches_next(s, b));
    assert_ok(neb__batches_save(s, &saved));
    check_log_quiet();
    assert_status(neb__batches_restore(t, saved.data, saved.len), NEB_ERR_CONFIG);
    for (size_t n = 0; n < saved.len; n++) assert_true(neb__batches_restore(s, saved.data, n) != NEB_OK);
    for (size_t i = 0; i < saved.len; i++) { /* any answer, no crash, and the stream still works */
        saved.data[i] ^= 0x80;
        neb__batches_restore(s, saved.data, saved.len);
        saved.data[i] ^= 0x80;
    }
    check_log_restore();
    assert_ok(neb__batches_restore(s, saved.data, saved.len));
    assert_ok(neb__batches_next(s, b));
    assert_ok(neb__batch_check(b, vocab.size));
    neb__batch_free(b);
    neb__batches_free(s);
    neb__batches_free(t);
    neb__buf_free(&saved);
}

static void wrong_sources_are_refused(void **state)
{
    (void)state;
    struct neb_batches_cfg cfg = config(NEB_BATCH_PAIR);
    struct neb_batches *s;
    check_log_quiet();
    sources[0].set = mono;
    assert_status(neb__batches_create(&cfg, &s), NEB_ERR_CONFIG);
    cfg = config(NEB_BATCH_MLM);
    cfg.vocab.size = 50;
    assert_status(neb__batches_create(&cfg, &s), NEB_ERR_CONFIG);
    cfg = config(NEB_BATCH_MLM);
    cfg.part = 1;
    assert_status(neb__batches_create(&cfg, &s), NEB_ERR_INVALID);
    cfg = config(NEB_BATCH_PAIR);
    cfg.max_len = 8; /* few sentences are that short, and no long one is */
    sources[0].frame.lead = 5;
    assert_ok(neb__batches_create(&cfg, &s));
    neb__batches_free(s);
    check_log_restore();
}

/* ---- ahead --------------------------------------------------------------------------------------------- */

static void batches_made_ahead_are_the_same(void **state)
{
    (void)state;
    struct neb_batches_cfg cfg = config(NEB_BATCH_MLM);
    struct neb_batches *s, *t, *u;
    struct neb_batch *a, *b;
    struct neb_prefetch *p;
    struct neb_buf saved;
    neb__buf_init(&saved, 1 << 20);
    assert_ok(neb__batches_create(&cfg, &s));
    assert_ok(neb__batches_create(&cfg, &t));
    assert_ok(neb__batches_create(&cfg, &u));
    assert_ok(neb__batches_batch(s, &a));
    assert_ok(neb__prefetch_start(t, 3, &p));
    for (int i = 0; i < 60; i++) {
        assert_ok(neb__batches_next(s, a));
        assert_ok(neb__prefetch_get(p, &b));
        assert_same_batch(a, b);
        neb__prefetch_done(p, b);
    }
    assert_ok(neb__prefetch_save(p, &saved)); /* the consumer's place, although the thread is further on */
    assert_ok(neb__batches_restore(u, saved.data, saved.len));
    assert_int_equal(neb__batches_step(u), 60);
    assert_ok(neb__prefetch_stop(p));
    assert_int_equal(neb__batches_step(t), 60);
    assert_ok(neb__batches_next(s, a));
    struct neb_batch *c;
    assert_ok(neb__batches_batch(u, &c));
    assert_ok(neb__batches_next(u, c));
    assert_same_batch(a, c);
    assert_ok(neb__batches_next(t, c));
    assert_same_batch(a, c);
    neb__batch_free(a);
    neb__batch_free(c);
    neb__buf_free(&saved);
    neb__batches_free(s);
    neb__batches_free(t);
    neb__batches_free(u);
}

static void the_end_comes_through_the_thread(void **state)
{
    (void)state;
    struct neb_batches_cfg cfg = config(NEB_BATCH_MLM);
    struct neb_batches *s;
    struct neb_prefetch *p;
    struct neb_batch *b;
    int64_t samples = 0;
    cfg.once = 1;
    assert_ok(neb__batches_create(&cfg, &s));
    assert_ok(neb__prefetch_start(s, 2, &p));
    neb_status status;
    while ((status = neb__prefetch_get(p, &b)) == NEB_OK) {
        samples += b->side[0].nseq_used;
        neb__prefetch_done(p, b);
    }
    assert_status(status, NEB_ERR_AGAIN);
    assert_status(neb__prefetch_get(p, &b), NEB_ERR_AGAIN);
    assert_ok(neb__prefetch_stop(p));
    assert_true(samples + neb__batches_stats(s).skipped ==
                neb__set_count(mono) + neb__set_count(other) + neb__set_count(pairs));
    neb__batches_free(s);
}

static void failing_allocations_in_set_up(void **state)
{
    (void)state;
    struct neb_batches_cfg cfg = config(NEB_BATCH_MLM);
    int64_t held = neb__mem_held();
    check_log_quiet();
    for (int64_t k = 1;; k++) {
        struct neb_batches *s;
        struct neb_prefetch *p;
        neb__mem_fail_at(k);
        neb_status status = neb__batches_create(&cfg, &s);
        if (status == NEB_OK) {
            status = neb__prefetch_start(s, 2, &p);
            if (status == NEB_OK) neb__prefetch_stop(p);
            neb__batches_free(s);
        }
        neb__mem_fail_at(0);
        assert_int_equal(neb__mem_held(), held);
        if (status == NEB_OK) break;
        assert_status(status, NEB_ERR_NOMEM);
    }
    check_log_restore();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(permutations_are_permutations),
        cmocka_unit_test(draws_follow_the_temperature_and_cover_every_epoch),
        cmocka_unit_test(languages_are_sampled_not_files),
        cmocka_unit_test(an_old_position_brings_its_own_shares),
        cmocka_unit_test(batches_keep_their_promises),
        cmocka_unit_test(pairs_are_shifted_right),
        cmocka_unit_test(masks_belong_to_the_sample_not_to_the_packing),
        cmocka_unit_test(masking_has_berts_shares),
        cmocka_unit_test(joined_pairs_restart_positions),
        cmocka_unit_test(parts_divide_the_samples),
        cmocka_unit_test(a_saved_position_and_a_replayed_one_are_equal),
        cmocka_unit_test(hostile_and_foreign_positions_are_refused),
        cmocka_unit_test(wrong_sources_are_refused),
        cmocka_unit_test(batches_made_ahead_are_the_same),
        cmocka_unit_test(the_end_comes_through_the_thread),
        cmocka_unit_test(failing_allocations_in_set_up),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
