/* test_tutor_item.c: answers as items and in the cache. They come back as they were sent, to the bits of the
 * codec. Damage in either is an error and nothing else. The cache's content is a function of the mark with
 * which it is opened. */
#include "check.h"
#include "base/bytes.h"
#include "base/mem.h"
#include "base/rng.h"
#include "store/keyed_file.h"
#include "split/split_site.h"
#include "split/tutor_item.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { SEQS = 9, ROWS = 96, K = 6, WIDTH = 20, VOCAB = 500 };

/* ---- a batch of pairs, as the packer makes them -------------------------------------------------------- */

static struct neb_batch *make_batch(uint64_t seed)
{
    struct neb_batch *b;
    struct neb_rng r = {seed};
    assert_ok(neb__batch_create(NEB_BATCH_PAIR, (const int32_t[2]){ROWS, ROWS}, SEQS + 2, ROWS, &b));
    for (int i = 0; i < 2; i++) {
        struct neb_batch_side *s = &b->side[i];
        s->tokens = ROWS;
        s->nseq = SEQS + 2;
        s->nseq_used = SEQS;
        for (int q = 0; q < SEQS; q++) {
            int32_t n = 1 + (int32_t)neb__rng_below(&r, 10);
            for (int32_t k = 0; k < n; k++) s->ids[s->used++] = (int32_t)neb__rng_below(&r, VOCAB);
            s->cu_seqlens[q + 1] = s->used;
        }
        s->cu_seqlens[SEQS + 1] = s->cu_seqlens[SEQS + 2] = ROWS;
    }
    b->loss.n = ROWS;
    for (int32_t i = 0; i < b->side[1].used; i++) {
        b->loss.rows[i] = i;
        b->loss.weight[i] = 1;
        b->loss.used++;
    }
    return b;
}

static void make_answers(uint64_t seed, int32_t *ids, float *logits, float *hidden)
{
    struct neb_rng r = {seed};
    for (int i = 0; i < ROWS; i++)
        for (int k = 0; k < K; k++) {
            ids[i * K + k] = (int32_t)((uint64_t)(K - k) * 80 -
                                       neb__rng_below(&r, 80)); /* descending: any order will do */
            logits[i * K + k] = (float)neb__rng_uniform(&r) * 12 - 3;
        }
    for (int i = 0; i < ROWS * WIDTH; i++) hidden[i] = (float)neb__rng_uniform(&r) - 0.5f;
}

static const struct neb_tutor_shape shape = {K, WIDTH, VOCAB};
static const struct neb_tutor_code all = {K, 8, 8};
static int32_t ids[ROWS * K], got_ids[ROWS * K];
static float logits[ROWS * K], hidden[ROWS * WIDTH], got_logits[ROWS * K], got_hidden[ROWS * WIDTH];
static const struct neb_tutor_room room = {got_ids, got_logits, got_hidden};

static void encode(struct neb_tutor_plan *p, const struct neb_batch *b, unsigned here, struct neb_buf *out)
{
    struct neb_teacher_answer a = {.ids = ids, .logits = logits}, h = {.hidden = hidden};
    assert_ok(neb__tutor_plan_init(p, SEQS + 2));
    assert_ok(neb__tutor_plan_make(p, b));
    assert_int_equal(p->seqs, SEQS);
    for (int q = 0; q < SEQS; q++) p->seq[q].here = here >> q & 1;
    neb__buf_init(out, 1 << 20);
    assert_ok(neb__tutor_item_encode(&shape, &all, p, &a, &h, out));
}

/* Compares with a row of the original: the same tokens, each logit within a step of the quantiser. */
static void check_row(int32_t row)
{
    float most = -INFINITY, least = INFINITY;
    for (int k = 0; k < K; k++)
        most = fmaxf(most, logits[row * K + k]), least = fminf(least, logits[row * K + k]);
    for (int k = 0; k < K; k++) {
        int at = 0;
        while (at < K && ids[row * K + at] != got_ids[row * K + k]) at++;
        assert_true(at < K);
        assert_true(fabsf(got_logits[row * K + k] - (logits[row * K + at] - most)) <
                    (most - least) / 200 + 0.06f);
    }
}

static void items_carry_answers(void **state)
{
    (void)state;
    struct neb_batch *b = make_batch(1);
    struct neb_tutor_plan p, q;
    struct neb_buf item;
    make_answers(2, ids, logits, hidden);
    for (unsigned here = 0; here < 1u << SEQS; here += 37) {
        encode(&p, b, here, &item);
        memset(got_ids, 0xff, sizeof got_ids);
        assert_ok(neb__tutor_plan_init(&q, SEQS + 2));
        assert_ok(neb__tutor_plan_make(&q, b));
        assert_ok(neb__tutor_item_decode(&shape, &q, item.data, item.len, &room));
        if (!here) assert_int_equal(item.len, 8 + 2);
        for (int s = 0; s < SEQS; s++) {
            const struct neb_tutor_seq *seq = &q.seq[s];
            assert_int_equal(seq->here, here >> s & 1);
            assert_int_equal(seq->count, b->side[1].cu_seqlens[s + 1] - b->side[1].cu_seqlens[s]);
            assert_int_equal(seq->rows, b->side[0].cu_seqlens[s + 1] - b->side[0].cu_seqlens[s]);
            for (int32_t i = seq->first; i < seq->first + seq->count; i++) {
                if (seq->here) check_row(i);
                if (!seq->here) assert_int_equal(got_ids[i * K], -1);
            }
            for (int32_t i = seq->row * WIDTH; seq->here && i < (seq->row + seq->rows) * WIDTH; i++)
                assert_true(fabsf(got_hidden[i] - hidden[i]) < 0.01f);
        }
        neb__buf_free(&item);
        neb__tutor_plan_free(&p);
        neb__tutor_plan_free(&q);
    }
    neb__batch_free(b);
}

/* A teacher with another tokenizer gives some rows fewer logits, and some none. */
static void rows_may_be_uneven(void **state)
{
    (void)state;
    struct neb_batch *b = make_batch(1);
    struct neb_tutor_plan p, q;
    struct neb_buf item;
    make_answers(5, ids, logits, hidden);
    for (int r = 0; r < ROWS; r++)
        for (int k = 0; k < K; k++)
            if ((r + k) % K >= r % (K + 1)) ids[r * K + k] = -1;
    encode(&p, b, ~0u, &item);
    memset(got_ids, 0x7f, sizeof got_ids);
    assert_ok(neb__tutor_plan_init(&q, SEQS + 2));
    assert_ok(neb__tutor_plan_make(&q, b));
    assert_ok(neb__tutor_item_decode(&shape, &q, item.data, item.len, &room));
    for (int r = 0; r < b->loss.used; r++) {
        int want = 0, got = 0;
        for (int k = 0; k < K; k++) {
            want += ids[r * K + k] >= 0;
            got += got_ids[r * K + k] >= 0;
            int at = 0;
            while (at < K && ids[r * K + at] != got_ids[r * K + k]) at++;
            assert_true(at < K);
        }
        assert_int_equal(want, got);
    }
    check_log_quiet();
    for (size_t cut = 0; cut < item.len; cut++)
        assert_true(neb__tutor_item_decode(&shape, &q, item.data, cut, &room) != NEB_OK);
    check_log_restore();
    neb__buf_free(&item);
    neb__tutor_plan_free(&p);
    neb__tutor_plan_free(&q);
    neb__batch_free(b);
}

/* On a thin line only the likeliest tokens are sent.
 * The other places are marked as empty, in the cache, too. */
static void fewer_logits(void **state)
{
    (void)state;
    enum { FEW = 2 };
    static const struct neb_tutor_code thin = {FEW, 4, 2}, none = {0, 8, 8}, more = {K + 1, 8, 8};
    static const struct neb_tutor_shape narrow = {FEW - 1, WIDTH, VOCAB};
    struct neb_batch *b = make_batch(1);
    struct neb_tutor_plan p;
    struct neb_buf item, entry;
    struct neb_teacher_answer a = {.ids = ids, .logits = logits}, h = {.hidden = hidden};
    make_answers(2, ids, logits, hidden);
    encode(&p, b, 0x1ff, &item);
    size_t whole = item.len;
    neb__buf_clear(&item);
    assert_ok(neb__tutor_item_encode(&shape, &thin, &p, &a, &h, &item));
    assert_true(item.len < whole * 2 / 3); /* rows of 20 are padded */
    assert_ok(neb__tutor_item_decode(&shape, &p, item.data, item.len, &room));
    for (int32_t row = 0; row < b->loss.used; row++) {
        for (int k = 0; k < FEW; k++) {
            int at = 0, above = 0;
            while (at < K && ids[row * K + at] != got_ids[row * K + k]) at++;
            assert_true(at < K);
            for (int j = 0; j < K; j++) above += logits[row * K + j] > logits[row * K + at];
            assert_true(above < FEW);
        }
        for (int k = FEW; k < K; k++) assert_int_equal(got_ids[row * K + k], -1);
    }
    neb__buf_init(&entry, 1 << 20);
    for (int s = 0; s < SEQS; s++) {
        neb__buf_clear(&entry);
        assert_ok(neb__tutor_item_pack(&shape, &p.seq[s], &room, &entry));
        assert_ok(neb__tutor_item_unpack(&shape, &p.seq[s], entry.data, entry.len, &room));
    }
    check_log_quiet();
    assert_status(neb__tutor_item_decode(&narrow, &p, item.data, item.len, &room), NEB_ERR_CORRUPT);
    assert_status(neb__tutor_item_encode(&shape, &none, &p, &a, &h, &item), NEB_ERR_INVALID);
    assert_status(neb__tutor_item_encode(&shape, &more, &p, &a, &h, &item), NEB_ERR_INVALID);
    check_log_restore();
    neb__buf_free(&entry);
    neb__buf_free(&item);
    neb__tutor_plan_free(&p);
    neb__batch_free(b);
}

/* The name of a sequence depends on what the teacher reads of it, not on where it is packed. */
static void names(void **state)
{
    (void)state;
    struct neb_batch *a = make_batch(5), *b = make_batch(5);
    struct neb_tutor_plan p, q;
    assert_ok(neb__tutor_plan_init(&p, SEQS + 2));
    assert_ok(neb__tutor_plan_init(&q, SEQS + 2));
    assert_ok(neb__tutor_plan_make(&p, a));
    b->side[0].ids[b->side[0].cu_seqlens[3]] ^= 1;
    assert_ok(neb__tutor_plan_make(&q, b));
    assert_int_not_equal(p.check, q.check);
    for (int s = 0; s < SEQS; s++) assert_int_equal(!memcmp(&p.seq[s].key, &q.seq[s].key, NEB_KEY), s != 3);
    b->side[0].ids[b->side[0].cu_seqlens[3]] ^= 1;
    b->side[1].ids[b->side[1].cu_seqlens[4]] ^= 1;
    assert_ok(neb__tutor_plan_make(&q, b));
    for (int s = 0; s < SEQS; s++) assert_int_equal(!memcmp(&p.seq[s].key, &q.seq[s].key, NEB_KEY), s != 4);
    neb__tutor_plan_free(&p);
    neb__tutor_plan_free(&q);
    neb__batch_free(a);
    neb__batch_free(b);
}

static void hostile_items(void **state)
{
    (void)state;
    struct neb_batch *b = make_batch(1), *other = make_batch(3);
    struct neb_tutor_plan p, q;
    struct neb_buf item;
    make_answers(2, ids, logits, hidden);
    encode(&p, b, 0x155, &item);
    assert_ok(neb__tutor_plan_init(&q, SEQS + 2));
    check_log_quiet();
    assert_ok(neb__tutor_plan_make(&q, other));
    assert_status(neb__tutor_item_decode(&shape, &q, item.data, item.len, &room), NEB_ERR_CONFIG);
    assert_ok(neb__tutor_plan_make(&q, b));
    for (size_t n = 0; n < item.len; n++) { /* an exact copy, so that a sanitizer sees a byte too far */
        uint8_t *cut = neb__malloc(n + 1);
        memcpy(cut, item.data, n);
        assert_true(neb__tutor_item_decode(&shape, &q, cut, n, &room) != NEB_OK);
        neb__free(cut);
    }
    struct neb_rng r = {9};
    for (int i = 0; i < 3000; i++) { /* whatever comes out, no id is outside the vocabulary */
        size_t at = (size_t)neb__rng_below(&r, item.len);
        uint8_t old = item.data[at];
        item.data[at] ^= (uint8_t)(1 + neb__rng_below(&r, 255));
        memset(got_ids, 0, sizeof got_ids);
        if (neb__tutor_item_decode(&shape, &q, item.data, item.len, &room) == NEB_OK)
            for (int k = 0; k < ROWS * K; k++) assert_true(got_ids[k] >= 0 && got_ids[k] < VOCAB);
        item.data[at] = old;
    }
    logits[3] = NAN;
    struct neb_teacher_answer a = {.ids = ids, .logits = logits}, h = {.hidden = hidden};
    neb__buf_clear(&item);
    assert_status(neb__tutor_item_encode(&shape, &all, &p, &a, &h, &item), NEB_ERR_RANGE);
    check_log_restore();
    neb__buf_free(&item);
    neb__tutor_plan_free(&p);
    neb__tutor_plan_free(&q);
    neb__batch_free(b);
    neb__batch_free(other);
}

static void cached_form(void **state)
{
    (void)state;
    struct neb_batch *b = make_batch(1);
    struct neb_tutor_plan p;
    struct neb_buf item, entry;
    make_answers(2, ids, logits, hidden);
    encode(&p, b, 0x1ff, &item);
    assert_ok(neb__tutor_item_decode(&shape, &p, item.data, item.len, &room));
    static int32_t back_ids[ROWS * K];
    static float back_logits[ROWS * K], back_hidden[ROWS * WIDTH];
    const struct neb_tutor_room back = {back_ids, back_logits, back_hidden};
    neb__buf_init(&entry, 1 << 20);
    for (int s = 0; s < SEQS; s++) {
        neb__buf_clear(&entry);
        assert_ok(neb__tutor_item_pack(&shape, &p.seq[s], &room, &entry));
        assert_int_equal(entry.len, neb__tutor_item_size(&shape, &p.seq[s]));
        assert_ok(neb__tutor_item_unpack(&shape, &p.seq[s], entry.data, entry.len, &back));
        check_log_quiet();
        assert_status(neb__tutor_item_unpack(&shape, &p.seq[s], entry.data, entry.len - 1, &back),
                      NEB_ERR_CORRUPT);
        check_log_restore();
    }
    size_t used = (size_t)b->loss.used * K;
    assert_memory_equal(back_ids, got_ids, used * sizeof *back_ids);
    assert_memory_equal(back_logits, got_logits, used * sizeof *back_logits);
    assert_memory_equal(back_hidden, got_hidden, (size_t)b->side[0].used * WIDTH * sizeof *back_hidden);
    neb__buf_free(&entry);
    neb__buf_free(&item);
    neb__tutor_plan_free(&p);
    neb__batch_free(b);
}

/* ---- the file ------------------------------------------------------------------------------------------ */

enum { ENTRIES = 3000 };

static struct neb_keyset_key key_of(uint64_t i)
{
    struct neb_hash h;
    struct neb_keyset_key k;
    assert_ok(neb__hash(&i, sizeof i, &h));
    memcpy(k.b, h.b, NEB_KEY);
    return k;
}

static void check_entries(struct neb_keyed_file *c, uint64_t upto)
{
    struct neb_buf b;
    neb__buf_init(&b, 1 << 20);
    for (uint64_t i = 0; i < ENTRIES; i++) {
        struct neb_keyset_key k = key_of(i);
        neb__buf_clear(&b);
        neb_status want = i / 10 <= upto ? NEB_OK : NEB_ERR_NOTFOUND;
        assert_status(neb__keyed_file_get(c, &k, &b), want);
        if (want != NEB_OK) continue;
        assert_int_equal(b.len, i % 97);
        for (size_t n = 0; n < b.len; n++) assert_int_equal(b.data[n], (uint8_t)(i + n));
    }
    neb__buf_free(&b);
}

static void cache_keeps_what_the_mark_covers(void **state)
{
    (void)state;
    char dir[200], path[300];
    struct neb_keyed_file *c;
    struct neb_hash of = {{1}}, other = {{2}};
    uint8_t bytes[100];
    check_make_dir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/cache", dir);
    assert_ok(neb__keyed_file_open(path, &of, 0, &c));
    uint64_t size = neb__keyed_file_bytes(c);
    for (uint64_t i = 0; i < ENTRIES; i++) {
        struct neb_keyset_key k = key_of(i);
        for (size_t n = 0; n < i % 97; n++) bytes[n] = (uint8_t)(i + n);
        assert_ok(neb__keyed_file_put(c, &k, i / 10, bytes, i % 97));
        size += 32 + i % 97; /* both sites of tutor count with these */
        assert_int_equal(neb__keyed_file_bytes(c), size);
        assert_ok(neb__keyed_file_put(c, &k, i / 10, "x", 1)); /* there already */
    }
    struct neb_keyset_key k = key_of(ENTRIES);
    check_log_quiet();
    assert_status(neb__keyed_file_put(c, &k, 0, "x", 1), NEB_ERR_INVALID);
    check_log_restore();
    assert_ok(neb__keyed_file_sync(c));
    check_entries(c, ENTRIES);
    neb__keyed_file_close(c);
    static const uint64_t marks[] = {ENTRIES, 250, 250, 13, 0};
    for (size_t i = 0; i < 5; i++) { /* with a smaller mark each time, the file is cut */
        assert_ok(neb__keyed_file_open(path, &of, marks[i], &c));
        check_entries(c, marks[i]);
        neb__keyed_file_close(c);
    }
    check_log_quiet();
    assert_ok(neb__keyed_file_open(path, &other, ENTRIES, &c)); /* of another teacher: begun anew */
    struct neb_keyset_key first = key_of(0);
    struct neb_buf b;
    neb__buf_init(&b, 1 << 20);
    assert_status(neb__keyed_file_get(c, &first, &b), NEB_ERR_NOTFOUND);
    neb__buf_free(&b);
    neb__keyed_file_close(c);
    check_log_restore();
    check_remove_dir(dir);
}

static void damaged_cache(void **state)
{
    (void)state;
    char dir[200], path[300];
    struct neb_keyed_file *c;
    struct neb_hash of = {{1}};
    struct neb_rng r = {4};
    check_make_dir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/cache", dir);
    check_log_quiet();
    for (int round = 0; round < 60; round++) {
        unlink(path);
        assert_ok(neb__keyed_file_open(path, &of, 0, &c));
        for (uint64_t i = 0; i < 40; i++) {
            struct neb_keyset_key k = key_of(i);
            assert_ok(neb__keyed_file_put(c, &k, i, &i, sizeof i));
        }
        uint64_t size = neb__keyed_file_bytes(c), at = neb__rng_below(&r, size);
        neb__keyed_file_close(c);
        FILE *f = fopen(path, "r+");
        assert_non_null(f);
        if (round % 2) {
            assert_int_equal(ftruncate(fileno(f), (off_t)at), 0);
        } else {
            fseek(f, (long)at, SEEK_SET);
            fputc((int)neb__rng_below(&r, 256), f);
        }
        fclose(f);
        assert_ok(neb__keyed_file_open(path, &of, 40, &c)); /* the rest is right, and more can be put */
        for (uint64_t i = 0; i < 40; i++) {
            struct neb_buf b;
            struct neb_keyset_key k = key_of(i);
            neb__buf_init(&b, 1 << 20);
            neb_status status = neb__keyed_file_get(c, &k, &b);
            assert_true(status == NEB_OK || status == NEB_ERR_NOTFOUND || status == NEB_ERR_CORRUPT);
            if (status == NEB_OK) assert_memory_equal(b.data, &i, sizeof i);
            neb__buf_free(&b);
        }
        struct neb_keyset_key k = key_of(100);
        assert_ok(neb__keyed_file_put(c, &k, ~(uint64_t)0, "more", 4));
        neb__keyed_file_close(c);
    }
    check_log_restore();
    check_remove_dir(dir);
}

/* ---- a student's samples ------------------------------------------------------------------------------- */

static void make_samples(struct neb_samples *s, uint64_t seed, int32_t longest)
{
    struct neb_rng r = {seed};
    assert_ok(neb__samples_init(s, SEQS));
    s->seqs = SEQS;
    for (int q = 0; q < SEQS; q++) {
        s->n[q] = (int32_t)neb__rng_below(&r, (uint64_t)longest + 1);
        for (int32_t i = 0; i < s->n[q]; i++) {
            int32_t id = (int32_t)neb__rng_below(&r, VOCAB);
            assert_ok(neb__buf_append(&s->ids, &id, sizeof id));
        }
    }
}

/* Samples come back as they were sent. Damaged ones are refused, or are samples of such a vocabulary and length. */
static void samples_travel(void **state)
{
    (void)state;
    struct neb_job job = {.train.max_len = 40};
    const struct neb_split_site at = {.job = &job, .other = "b", .shape = shape};
    struct neb_samples sent, got;
    struct neb_buf bytes;
    struct neb_rng r = {3};
    neb__buf_init(&bytes, 1 << 20);
    make_samples(&sent, 1, 40);
    assert_ok(neb__samples_init(&got, SEQS));
    assert_ok(neb__samples_encode(&sent, &at, &bytes));
    struct neb_reader whole = {bytes.data, bytes.len, false};
    assert_ok(neb__samples_decode(&got, &at, &whole));
    assert_int_equal(whole.left, 0);
    assert_int_equal(got.seqs, SEQS);
    assert_memory_equal(got.n, sent.n, SEQS * sizeof *sent.n);
    assert_int_equal(got.ids.len, sent.ids.len);
    assert_memory_equal(got.ids.data, sent.ids.data, sent.ids.len);
    check_log_quiet();
    for (int round = 0; round < 3000; round++) {
        uint8_t copy[4096];
        size_t n = round % 3 ? bytes.len : (size_t)neb__rng_below(&r, bytes.len);
        memcpy(copy, bytes.data, n);
        for (int k = 0; n && round % 3 && k < 1 + round % 4; k++)
            copy[neb__rng_below(&r, n)] = (uint8_t)neb__rng_below(&r, 256);
        struct neb_reader reader = {copy, n, false};
        if (neb__samples_decode(&got, &at, &reader) != NEB_OK) continue;
        size_t tokens = 0;
        for (int q = 0; q < got.seqs; q++) {
            assert_in_range(got.n[q], 0, 40);
            tokens += (size_t)got.n[q];
        }
        assert_int_equal(got.ids.len, tokens * sizeof(int32_t));
        for (size_t i = 0; i < tokens; i++) assert_in_range(((const int32_t *)got.ids.data)[i], 0, VOCAB - 1);
    }
    check_log_restore();
    neb__samples_free(&sent);
    neb__samples_free(&got);
    neb__buf_free(&bytes);
}

/* The share is kept in every stretch, none of the first batches is judged, and the counts follow the judged ones. */
static void judged_batches(void **state)
{
    (void)state;
    const double shares[] = {0, 0.05, 0.3, 0.5, 1};
    for (int i = 0; i < 5; i++) {
        struct neb_job job = {.train.micro = 2, .distill = {.on_policy = shares[i], .lag = 5}};
        uint64_t judged = 0;
        assert_int_equal(neb__on_policy_lag(&job), 10);
        for (int64_t n = 0; n < 2000; n++) {
            assert_int_equal(neb__on_policy_before(&job, n), judged);
            if (neb__on_policy_judged(&job, n)) judged++;
            if (n < 10) assert_int_equal(judged, 0);
            const double wanted = n < 10 ? 0 : (double)(n - 9) * shares[i];
            assert_true((double)judged > wanted - 1.001 && (double)judged < wanted + 0.001);
        }
    }
}

/* A causal text keeps its first tokens and its length; every row predicts the next token. */
static void continued_texts(void **state)
{
    (void)state;
    struct neb_batch *b;
    assert_ok(neb__batch_create(NEB_BATCH_CAUSAL, (const int32_t[2]){16, 0}, 4, 16, &b));
    struct neb_batch_side *s = &b->side[0];
    for (int32_t i = 0; i < 9; i++) s->ids[i] = 100 + i, b->loss.rows[i] = i, b->loss.target[i] = 101 + i;
    s->used = b->loss.used = 9, s->nseq_used = 2;
    s->cu_seqlens[1] = 5, s->cu_seqlens[2] = 9;
    const int32_t new_ids[] = {7, 8, 9};
    const struct neb_batch_target texts[] = {{new_ids, 2}, {new_ids + 2, 1}},
                                  wrong[] = {{new_ids, 2}, {new_ids, 4}};
    check_log_quiet();
    assert_int_equal(neb__batch_continue(b, wrong), NEB_ERR_RANGE);
    check_log_restore();
    assert_int_equal(s->ids[3], 103);
    assert_ok(neb__batch_continue(b, texts));
    assert_memory_equal(s->ids, ((const int32_t[]){100, 101, 102, 7, 8, 105, 106, 107, 9}),
                        9 * sizeof(int32_t));
    assert_memory_equal(b->loss.target, ((const int32_t[]){101, 102, 7, 8, 105, 106, 107, 9, 109}),
                        9 * sizeof(int32_t));
    neb__batch_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(items_carry_answers), cmocka_unit_test(rows_may_be_uneven),
        cmocka_unit_test(fewer_logits),        cmocka_unit_test(names),
        cmocka_unit_test(hostile_items),       cmocka_unit_test(cached_form),
        cmocka_unit_test(damaged_cache),       cmocka_unit_test(cache_keeps_what_the_mark_covers),
        cmocka_unit_test(samples_travel),      cmocka_unit_test(judged_batches),
        cmocka_unit_test(continued_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
