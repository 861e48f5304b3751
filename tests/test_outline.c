/* test_outline.c: batches without their text. What is filled from an outline is what the packer made, as far as layers between
 * embedding and head read it. Whatever bytes come, they are refused with a message, or give a batch that keeps every promise of a
 * batch. */
#include "check.h"
#include "base/mem.h"
#include "base/rng.h"
#include "text/batch_outline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 64, MAX_LEN = 16, VOCAB = 300 };

static const enum neb_batch_kind kinds[] = {NEB_BATCH_MLM, NEB_BATCH_CAUSAL, NEB_BATCH_PAIR};

/* ---- batches as the packer makes them --------------------------------------------------------------------- */

static void row(struct neb_batch_side *s, int32_t r, int32_t from, int32_t second, uint32_t sample,
                int32_t id)
{
    s->ids[r] = id;
    s->at[r] = r - from;
    s->type[r] = r >= second;
    s->pos[r] = r >= second ? r - second : r - from;
    s->sample[r] = sample;
}

static void add(struct neb_batch_side *s, int32_t n, int32_t second, uint32_t sample, struct neb_rng *rng)
{
    const int32_t from = s->used;
    for (int32_t i = 0; i < n; i++)
        row(s, from + i, from, second ? from + second : from + n, sample,
            (int32_t)neb__rng_below(rng, VOCAB));
    s->used += n;
    s->cu_seqlens[++s->nseq_used] = s->used;
}

static void pad(struct neb_batch_side *s)
{
    int32_t q = s->nseq_used, at = s->used;
    while (at < s->tokens) {
        const int32_t n = s->tokens - at < MAX_LEN ? s->tokens - at : MAX_LEN;
        for (int32_t i = 0; i < n; i++) row(s, at + i, at, at + n, NEB_NO_SAMPLE, 0);
        s->cu_seqlens[++q] = at += n;
    }
    while (q < s->nseq) s->cu_seqlens[++q] = at;
}

static bool has_room(const struct neb_batch *b)
{
    for (int i = 0; i < b->sides; i++)
        if (b->side[i].used > b->side[i].tokens - 2 * MAX_LEN) return false;
    return true;
}

static struct neb_batch *make_batch(enum neb_batch_kind kind, uint64_t seed)
{
    const struct neb_outline_room most = neb__outline_most(kind, TOKENS, MAX_LEN);
    const int32_t rows[2] = {TOKENS, kind == NEB_BATCH_PAIR ? TOKENS + 8 : 0};
    struct neb_rng rng = {seed};
    struct neb_batch *b;
    assert_ok(neb__batch_create(kind, rows, most.seqs, TOKENS + 8, &b));
    for (int i = 0; i < b->sides; i++) {
        b->side[i].tokens = rows[i];
        b->side[i].nseq = most.seqs;
        b->side[i].max_len = MAX_LEN;
    }
    for (uint32_t sample = 7; has_room(b); sample += 3)
        for (int i = 0; i < b->sides; i++) {
            const int32_t n = 2 + (int32_t)neb__rng_below(&rng, MAX_LEN - 2);
            add(&b->side[i], n, kind == NEB_BATCH_MLM && sample % 2 ? n / 2 : 0, sample, &rng);
        }
    for (int i = 0; i < b->sides; i++) pad(&b->side[i]);
    b->loss.n = TOKENS;
    for (int32_t i = 0; i < b->side[b->sides - 1].used; i += 2) {
        b->loss.rows[b->loss.used] = i;
        b->loss.weight[b->loss.used++] = 1;
    }
    assert_ok(neb__batch_check(b, VOCAB));
    return b;
}

static struct neb_outline_head head_of(const struct neb_batch *b, int32_t batches)
{
    struct neb_outline_head h = {
        .what = NEB_OUTLINE_STEP, .kind = b->kind, .vocab = VOCAB, .batches = batches};
    h.room = (struct neb_outline_room){{b->cap_tokens[0], b->cap_tokens[1]}, b->cap_seqs, MAX_LEN};
    return h;
}

/* ---- there and back --------------------------------------------------------------------------------------- */

static void same_side(const struct neb_batch_side *a, const struct neb_batch_side *b)
{
    const size_t n = (size_t)a->tokens * sizeof *a->at;
    assert_int_equal(a->tokens, b->tokens);
    assert_int_equal(a->used, b->used);
    assert_int_equal(a->nseq, b->nseq);
    assert_int_equal(a->nseq_used, b->nseq_used);
    assert_int_equal(a->max_len, b->max_len);
    assert_memory_equal(a->at, b->at, n);
    assert_memory_equal(a->pos, b->pos, n);
    assert_memory_equal(a->type, b->type, n);
    assert_memory_equal(a->sample, b->sample, n);
    assert_memory_equal(a->cu_seqlens, b->cu_seqlens, ((size_t)a->nseq + 1) * sizeof *a->cu_seqlens);
    for (int32_t r = 0; r < b->tokens; r++) assert_int_equal(b->ids[r], 0);
}

static void an_outline_gives_the_batch_without_its_text(void **state)
{
    (void)state;
    for (size_t k = 0; k < 3; k++) {
        const struct neb_outline_room most = neb__outline_most(kinds[k], TOKENS, MAX_LEN);
        struct neb_batch *b[3], *got;
        struct neb_outline_head h;
        struct neb_buf item;
        neb__buf_init(&item, 1 << 20);
        for (int i = 0; i < 3; i++) b[i] = make_batch(kinds[k], 11 * k + (uint64_t)i);
        h = head_of(b[0], 3);
        assert_ok(neb__outline_head_write(&h, &item));
        for (int i = 0; i < 3; i++) assert_ok(neb__outline_batch_write(b[i], &item));
        struct neb_reader r = {item.data, item.len, false};
        assert_ok(neb__outline_head_read(&r, kinds[k], &most, &h));
        assert_int_equal(h.batches, 3);
        assert_int_equal(h.vocab, VOCAB);
        assert_ok(neb__outline_batch_create(kinds[k], &h.room, &got));
        for (int i = 0; i < 3; i++) {
            assert_ok(neb__outline_batch_read(&r, &h, got));
            for (int s = 0; s < got->sides; s++) same_side(&b[i]->side[s], &got->side[s]);
            assert_int_equal(got->loss.used, b[i]->loss.used);
            assert_true(neb__batch_check_value(got) == neb__batch_check_value(b[i]));
            assert_ok(neb__batch_check(got, 1));
        }
        assert_ok(neb__outline_end_read(&r));
        for (int i = 0; i < 3; i++) neb__batch_free(b[i]);
        neb__batch_free(got);
        neb__buf_free(&item);
    }
}

static void the_end_of_held_out_text_names_languages(void **state)
{
    (void)state;
    const struct neb_outline_room most = neb__outline_most(NEB_BATCH_CAUSAL, TOKENS, MAX_LEN);
    struct neb_outline_head h = {.what = NEB_OUTLINE_EVAL_END,
                                 .kind = NEB_BATCH_CAUSAL,
                                 .vocab = 5,
                                 .room = {{TOKENS}, 4, MAX_LEN},
                                 .names = 2,
                                 .name = {"de", "e\033n"}},
                            got;
    struct neb_buf item;
    neb__buf_init(&item, 4096);
    assert_ok(neb__outline_head_write(&h, &item));
    struct neb_reader r = {item.data, item.len, false};
    assert_ok(neb__outline_head_read(&r, NEB_BATCH_CAUSAL, &most, &got));
    assert_int_equal(got.names, 2);
    assert_string_equal(got.name[0], "de");
    assert_string_equal(got.name[1], "e?n"); /* nothing that a terminal would obey */
    item.data[item.len - 15] = 27;
    r = (struct neb_reader){item.data, item.len, false};
    check_log_quiet();
    assert_status(neb__outline_head_read(&r, NEB_BATCH_CAUSAL, &most, &got), NEB_ERR_CORRUPT);
    check_log_restore();
    neb__buf_free(&item);
}

/* ---- hostile bytes ---------------------------------------------------------------------------------------- */

/* What a site without text does with an item. Returns whether it took it. */
static bool take(enum neb_batch_kind kind, const uint8_t *bytes, size_t n)
{
    const struct neb_outline_room most = neb__outline_most(kind, TOKENS, MAX_LEN);
    struct neb_reader r = {bytes, n, false};
    struct neb_outline_head h;
    struct neb_batch *b = NULL;
    neb_status status = neb__outline_head_read(&r, kind, &most, &h);
    if (status == NEB_OK) assert_ok(neb__outline_batch_create(kind, &h.room, &b));
    for (int32_t i = 0; status == NEB_OK && i < h.batches; i++) {
        status = neb__outline_batch_read(&r, &h, b);
        if (status == NEB_OK) assert_ok(neb__batch_check(b, 1));
    }
    if (status == NEB_OK) status = neb__outline_end_read(&r);
    if (status != NEB_OK)
        assert_true(status == NEB_ERR_CORRUPT || status == NEB_ERR_CONFIG || status == NEB_ERR_VERSION);
    neb__batch_free(b);
    return status == NEB_OK;
}

/* In memory of exactly its size, so that a byte read too far is noticed. */
static bool take_copy(enum neb_batch_kind kind, const uint8_t *bytes, size_t n)
{
    uint8_t *copy = malloc(n ? n : 1);
    assert_non_null(copy);
    memcpy(copy, bytes, n);
    const bool took = take(kind, copy, n);
    free(copy);
    return took;
}

static void hostile_items_are_refused_or_keep_all_promises(void **state)
{
    (void)state;
    check_log_quiet();
    for (size_t k = 0; k < 3; k++) {
        struct neb_batch *b = make_batch(kinds[k], 5);
        const struct neb_outline_head h = head_of(b, 2);
        struct neb_buf item;
        neb__buf_init(&item, 1 << 20);
        assert_ok(neb__outline_head_write(&h, &item));
        for (int i = 0; i < 2; i++) assert_ok(neb__outline_batch_write(b, &item));
        const int64_t held = neb__mem_held();
        assert_true(take_copy(kinds[k], item.data, item.len));
        for (size_t cut = 0; cut < item.len; cut++) assert_false(take_copy(kinds[k], item.data, cut));
        for (size_t at = 0; at + 4 <= item.len; at += 4) {
            const uint32_t v = neb__get32(item.data + at);
            const uint32_t other[] = {0, 1, v + 1, v - 1, 2 * v, 1u << 30, INT32_MAX, 1u << 31, UINT32_MAX};
            for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
                neb__put32(item.data + at, other[i]);
                (void)take_copy(kinds[k], item.data, item.len);
            }
            neb__put32(item.data + at, v);
        }
        assert_int_equal(neb__mem_held(), held);
        neb__buf_free(&item);
        neb__batch_free(b);
    }
    check_log_restore();
}

/* One word of a good item is changed: the message names what is wrong. */
static void the_message_says_what_is_wrong(void **state)
{
    (void)state;
    static const struct {
        int word;
        uint32_t value;
        const char *says;
    } cases[] = {
        {0, 2, "use the same release"},
        {1, 9, "unknown kind"},
        {2, NEB_BATCH_PAIR, "another `task`"},
        {3, 0, "a vocabulary"},
        {4, TOKENS + 8, "train.tokens must be the same"},
        {5, 8, "train.tokens must be the same"},
        {6, 1 << 20, "train.tokens must be the same"},
        {7, MAX_LEN + 1, "train.max_len must be the same"},
        {8, 0, "counts that cannot be"},
        {9, 1, "counts that cannot be"},
        {10, 1, "counts that cannot be"},
        {12, TOKENS, "more predictions"},
        {13, 1, "more sequences than there is room"},
        {14, 0, "more sequences than there is room"},
        {15, TOKENS + 1, "more rows than there is room"},
        {15, 8, "more rows than it has"},
        {16, NEB_NO_SAMPLE, "a sequence of no sample"},
        {17, 0, "empty or too long"},
        {17, MAX_LEN + 1, "empty or too long"},
    };
    struct neb_batch *b = make_batch(NEB_BATCH_CAUSAL, 3);
    const struct neb_outline_head h = head_of(b, 1);
    struct neb_buf item;
    neb__buf_init(&item, 1 << 20);
    assert_ok(neb__outline_head_write(&h, &item));
    assert_ok(neb__outline_batch_write(b, &item));
    check_log_quiet();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t *at = item.data + 4 * (size_t)cases[i].word;
        const uint32_t v = neb__get32(at);
        neb__put32(at, cases[i].value);
        assert_false(take(NEB_BATCH_CAUSAL, item.data, item.len));
        if (!strstr(neb_last_error(), cases[i].says))
            fail_msg("word %d: '%s' and not '%s'", cases[i].word, neb_last_error(), cases[i].says);
        neb__put32(at, v);
    }
    neb__put32(item.data + 13 * 4,
               (uint32_t)b->side[0].nseq_used); /* all sequences are real, and yet rows are left */
    assert_false(take(NEB_BATCH_CAUSAL, item.data, item.len));
    assert_non_null(strstr(neb_last_error(), "no room for its padding"));
    neb__put32(item.data + 13 * 4, (uint32_t)b->side[0].nseq);
    assert_ok(neb__buf_append(&item, "x", 1));
    assert_false(take(NEB_BATCH_CAUSAL, item.data, item.len));
    assert_non_null(strstr(neb_last_error(), "bytes behind its end"));
    check_log_restore();
    neb__buf_free(&item);
    neb__batch_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_outline_gives_the_batch_without_its_text),
        cmocka_unit_test(the_end_of_held_out_text_names_languages),
        cmocka_unit_test(hostile_items_are_refused_or_keep_all_promises),
        cmocka_unit_test(the_message_says_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
