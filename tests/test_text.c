/* test_text.c: tokenizers and the building of a corpus. */
#include "check.h"
#include "words.h"
#include "base/file.h"
#include "base/mem.h"
#include "text/corpus.h"
#include "text/help_pages.h"
#include "text/help_pages_parse.h"
#include "text/line_reader.h"
#include "text/shard.h"
#include "text/sp_shim.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char dir[256];

static const char *in(const char *name)
{
    static char path[8][400];
    static int at;
    at = (at + 1) % 8;
    snprintf(path[at], sizeof path[at], "%s/%s", dir, name);
    return path[at];
}

static int set_up(void **state)
{
    (void)state;
    check_make_dir(dir, sizeof dir);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    check_remove_dir(dir);
    return 0;
}

/* ---- tokenizers ---------------------------------------------------------------------------------------- */

static void sentencepiece_round_trips(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++) {
        struct neb_tok *tok = words_tokenizer(t ? "bpe" : "unigram");
        assert_int_equal(neb__tok_special(tok, NEB_TOK_PAD), 0);
        assert_int_equal(neb__tok_special(tok, NEB_TOK_UNK), 1);
        assert_int_equal(neb__tok_special(tok, NEB_TOK_BOS), 2);
        assert_int_equal(neb__tok_special(tok, NEB_TOK_EOS), 3);
        assert_int_equal(neb__tok_special(tok, NEB_TOK_MASK), 4);
        assert_int_equal(neb__tok_lang(tok, "aa"), 5);
        assert_int_equal(neb__tok_lang(tok, "cc"), 7);
        assert_int_equal(neb__tok_lang(tok, "dd"), -1);
        assert_true(neb__tok_special_map(tok)[7] && !neb__tok_special_map(tok)[9]);
        for (uint64_t i = 0; i < 100; i++) {
            char text[1024];
            size_t n = words_sentence((int)i % 3, 1000 + i, 0, text, sizeof text);
            struct neb_buf ids, back;
            neb__buf_init(&ids, 1 << 20);
            neb__buf_init(&back, 1 << 20);
            assert_ok(neb__tok_encode(tok, text, n, &ids));
            assert_true(ids.len / 4 > 3 && ids.len / 4 < n);
            assert_ok(neb__tok_decode(tok, (const int32_t *)(void *)ids.data, ids.len / 4, &back));
            assert_int_equal(back.len, n);
            assert_memory_equal(back.data, text, n);
            neb__buf_free(&ids);
            neb__buf_free(&back);
        }
        struct neb_buf out;
        neb__buf_init(&out, 1000);
        int32_t ids[3] = {2, 5, 3}, wild[1] = {neb__tok_vocab(tok)};
        assert_ok(neb__tok_decode(tok, ids, 3, &out));
        assert_int_equal(out.len, 0); /* control tokens are not text */
        check_log_quiet();
        assert_status(neb__tok_decode(tok, wild, 1, &out), NEB_ERR_RANGE);
        check_log_restore();
        assert_ok(neb__tok_encode(tok, "\xFF\xFE\xC3", 3, &out)); /* not UTF-8 */
        neb__buf_free(&out);
        neb__tok_close(tok);
    }
}

static int next_line(void *arg, const char **text, size_t *n)
{
    static char line[1024];
    int *i = arg;
    *n = words_sentence(*i % 3, (uint64_t)*i, 0, line, sizeof line);
    *text = line;
    return ++*i <= 300;
}

/* A model numbered as XLM-R's file is (<unk> 0, <s> 1, </s> 2, no <pad>), read with fairseq's numbers. */
static void xlmr_numbers_are_shifted(void **state)
{
    (void)state;
    const char *kv[] = {"model_type", "unigram",     "vocab_size", "100", "hard_vocab_limit",
                        "false",      "minloglevel", "2",          NULL};
    char error[NEB_SP_ERROR];
    struct neb_buf model, a, b, back;
    struct neb_tok *plain, *shifted;
    int i = 0;
    neb__buf_init(&model, 1 << 22);
    neb__buf_init(&a, 1 << 16);
    neb__buf_init(&b, 1 << 16);
    neb__buf_init(&back, 1 << 16);
    assert_ok(neb__sp_train(kv, next_line, &i, &model, error));
    struct neb_tok_cfg cfg = {.layout = NEB_TOK_XLMR};
    assert_ok(neb__tok_open_bytes(model.data, model.len, 0, NULL, &plain));
    assert_ok(neb__tok_open_bytes(model.data, model.len, 0, &cfg, &shifted));
    int32_t n = neb__tok_vocab(shifted);
    assert_false(neb__hash_equal(neb__tok_hash(plain), neb__tok_hash(shifted)));
    assert_int_equal(n, neb__tok_vocab(plain) + 2);
    const int32_t want[NEB_TOK_SPECIALS] = {1, 3, 0, 2, n - 1};
    for (int k = 0; k < NEB_TOK_SPECIALS; k++)
        assert_int_equal(neb__tok_special(shifted, (enum neb_special)k), want[k]);
    assert_string_equal(neb__tok_piece(shifted, 0), "<s>");
    assert_string_equal(neb__tok_piece(shifted, 1), "<pad>");
    assert_string_equal(neb__tok_piece(shifted, n - 1), "<mask>");
    assert_int_equal(neb__tok_id(shifted, "<unk>"), 3);
    const char *text = "lumtar venkor \xE4\xB8\xAD";
    assert_ok(neb__tok_encode(plain, text, strlen(text), &a));
    assert_ok(neb__tok_encode(shifted, text, strlen(text), &b));
    assert_int_equal(a.len, b.len);
    for (size_t k = 0; k < a.len / 4; k++) {
        int32_t x = ((int32_t *)(void *)a.data)[k], y = ((int32_t *)(void *)b.data)[k];
        assert_int_equal(y, x ? x + 1 : 3); /* the Chinese character is unknown */
    }
    assert_ok(neb__tok_decode(shifted, (int32_t *)(void *)b.data, b.len / 4, &back));
    assert_memory_equal(back.data, text, 13);
    neb__tok_close(plain);
    neb__tok_close(shifted);
    neb__buf_free(&model), neb__buf_free(&a), neb__buf_free(&b), neb__buf_free(&back);
}

static void broken_models_are_refused(void **state)
{
    (void)state;
    struct neb_tok *tok;
    check_log_quiet();
    assert_status(neb__tok_open_bytes("not a model", 11, 0, NULL, &tok), NEB_ERR_CORRUPT);
    assert_status(neb__tok_open_bytes("[PAD]\n[UNK]\nx\n", 14, 1, NULL, &tok), NEB_ERR_CORRUPT);
    assert_non_null(strstr(neb_last_error(), "start"));
    assert_status(neb__tok_open(in("absent.model"), NULL, &tok), NEB_ERR_NOTFOUND);
    struct neb_tok_train cfg = {.type = "ngram", .vocab = 10};
    assert_status(neb__tok_train(&cfg, NULL, NULL, NULL), NEB_ERR_CONFIG);
    check_log_restore();
}

static void assert_pieces(const struct neb_tok *tok, const char *text, const char *want)
{
    struct neb_buf ids, got;
    neb__buf_init(&ids, 1 << 20);
    neb__buf_init(&got, 1 << 20);
    assert_ok(neb__tok_encode(tok, text, strlen(text), &ids));
    for (size_t i = 0; i < ids.len / 4; i++)
        assert_ok(neb__buf_printf(&got, "%s%s", i ? " " : "",
                                  neb__tok_piece(tok, ((int32_t *)(void *)ids.data)[i])));
    assert_ok(neb__buf_append(&got, "", 1));
    assert_string_equal((char *)got.data, want);
    neb__buf_free(&ids);
    neb__buf_free(&got);
}

/* The expected values come from transformers' BertTokenizer (version 5.22) with the same vocabulary. */
static void wordpiece_cuts_like_bert(void **state)
{
    (void)state;
    static const char vocab[] =
        "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nun\n##aff\n##able\nrunning\n,\n.\n!\ncafe\nuber\n"
        "中\n国\n##ing\nrun\n##s\na\n##b\n'\n$\nı\n";
    struct neb_tok *tok;
    assert_ok(neb__tok_open_bytes(vocab, sizeof vocab - 1, 1, NULL, &tok));
    assert_int_equal(neb__tok_special(tok, NEB_TOK_BOS), 2);
    assert_pieces(tok, "The unaffable RUNNING, runs!", "the un ##aff ##able running , run ##s !");
    assert_pieces(tok, "Café  Über\tthe\x01.", "cafe uber the .");
    assert_pieces(tok, "the中国runs", "the 中 国 run ##s");
    assert_pieces(tok, "xyz the\xC2\xA0$ab'", "[UNK] the $ a ##b '");
    assert_pieces(tok,
                  "un\xFF"
                  "aff \xE2\x80\x8B the",
                  "un ##aff the");
    assert_pieces(tok, "", "");
    char word[300];
    memset(word, 'a', 299);
    word[299] = 0;
    assert_pieces(tok, word, "[UNK]");
    struct neb_buf out;
    neb__buf_init(&out, 1000);
    int32_t ids[] = {2, 5, 6, 7, 8, 11, 3};
    assert_ok(neb__tok_decode(tok, ids, 7, &out));
    assert_memory_equal(out.data, "the unaffable .", 15);
    neb__buf_free(&out);
    neb__tok_close(tok);
}

/* ---- corpora ------------------------------------------------------------------------------------------- */

static void a_corpus_is_the_same_for_any_number_of_threads(void **state)
{
    (void)state;
    struct neb_tok *tok = words_tokenizer("unigram");
    words_file(in("pairs.tsv"), 0, 1, 1500);
    FILE *f = fopen(in("pairs.tsv"), "a");
    fprintf(f, "no tab here\n\tempty first\nlum\tlum tar ven kor sil mar del pon\n");
    fclose(f);
    const char *paths[] = {in("pairs.tsv"), NULL};
    struct neb_corpus_cfg cfg = {.paths = paths, .sides = 2, .lang = {"aa", "bb"}, .max_ratio = 6};
    struct neb_corpus_stats stats;
    struct neb_set *set[2];
    for (int t = 0; t < 2; t++) {
        struct neb_pool *pool;
        assert_ok(neb__pool_create(t ? 3 : 1, &pool));
        assert_ok(neb__corpus_tokenise(&cfg, tok, pool, in(t ? "c3" : "c1"), &stats));
        neb__pool_destroy(pool);
        assert_ok(neb__set_open(in(t ? "c3" : "c1"), &set[t]));
    }
    assert_true(stats.lines == 1503 && stats.no_tab == 1 && stats.empty == 1 && stats.too_uneven >= 1);
    assert_true(stats.samples == neb__set_count(set[0]) && stats.samples == neb__set_count(set[1]));
    for (int64_t i = 0; i < stats.samples; i++)
        for (int s = 0; s < 2; s++) {
            int32_t a[512], b[512], n = neb__set_length(set[0], i, s);
            assert_int_equal(n, neb__set_length(set[1], i, s));
            assert_ok(neb__set_copy(set[0], i, s, 0, n, a));
            assert_ok(neb__set_copy(set[1], i, s, 0, n, b));
            assert_memory_equal(a, b, (size_t)n * 4);
        }
    neb__set_close(set[0]);
    neb__set_close(set[1]);
    neb__tok_close(tok);
}

static void long_texts_are_divided_and_files_must_match(void **state)
{
    (void)state;
    struct neb_tok *tok = words_tokenizer("bpe");
    struct neb_pool *pool;
    struct neb_corpus_stats stats;
    struct neb_set *set;
    assert_ok(neb__pool_create(1, &pool));
    words_file(in("m1"), 0, -1, 60);
    words_file(in("m2"), 1, -1, 61);
    const char *one[] = {in("m1"), NULL}, *two[] = {in("m2"), NULL};
    struct neb_corpus_cfg cfg = {.paths = one, .sides = 1, .max_tokens = 10};
    assert_ok(neb__corpus_tokenise(&cfg, tok, pool, in("mono"), &stats));
    assert_ok(neb__set_open(in("mono"), &set));
    assert_true(neb__set_count(set) > 120);
    for (int64_t i = 0; i < neb__set_count(set); i++)
        assert_in_range(neb__set_length(set, i, 0), 5, 10); /* evenly: no tail of one token */
    neb__set_close(set);
    cfg = (struct neb_corpus_cfg){.paths = one, .paths2 = two, .sides = 2};
    check_log_quiet();
    assert_status(neb__corpus_tokenise(&cfg, tok, pool, in("two"), &stats), NEB_ERR_CONFIG);
    assert_non_null(strstr(neb_last_error(), "different numbers of lines"));
    assert_status(neb__set_open(in("two"), &set), NEB_ERR_NOTFOUND);
    cfg = (struct neb_corpus_cfg){.paths = one, .sides = 2}; /* without tabs */
    assert_status(neb__corpus_tokenise(&cfg, tok, pool, in("two"), &stats), NEB_ERR_CONFIG);
    check_log_restore();
    neb__pool_destroy(pool);
    neb__tok_close(tok);
}

/* Gives line i of the set as text. */
static void line_of(const struct neb_set *set, const struct neb_tok *tok, int64_t i, struct neb_buf *out)
{
    int32_t ids[512], n = neb__set_length(set, i, 0);
    assert_ok(neb__set_copy(set, i, 0, 0, n, ids));
    neb__buf_clear(out);
    assert_ok(neb__tok_decode(tok, ids, (size_t)n, out));
}

static void copies_are_cut_in_other_ways(void **state)
{
    (void)state;
    enum { LINES = 300, COPIES = 3 };
    struct neb_tok *tok = words_tokenizer("bpe");
    struct neb_pool *pool;
    struct neb_corpus_stats stats;
    struct neb_set *set[3];
    struct neb_buf first, other;
    neb__buf_init(&first, 1 << 16);
    neb__buf_init(&other, 1 << 16);
    words_file(in("once"), 0, -1, LINES);
    const char *paths[] = {in("once"), NULL};
    const double share[] = {0, 0.3, 0.3};
    for (int k = 0; k < 3; k++) { /* the third on other threads */
        char name[16];
        snprintf(name, sizeof name, "vary%d", k);
        struct neb_corpus_cfg cfg = {.paths = paths, .sides = 1, .copies = COPIES, .vary = share[k]};
        assert_ok(neb__pool_create(k == 2 ? 3 : 1, &pool));
        assert_ok(neb__corpus_tokenise(&cfg, tok, pool, in(name), &stats));
        neb__pool_destroy(pool);
        assert_ok(neb__set_open(in(name), &set[k]));
        assert_int_equal(neb__set_count(set[k]), COPIES * LINES);
    }
    int differ = 0, copies_differ = 0;
    for (int64_t i = 0; i < COPIES * LINES; i++) {
        int32_t a[512], b[512], c[512], n = neb__set_length(set[0], i, 0), m = neb__set_length(set[1], i, 0),
                                        o = neb__set_length(set[1], i % LINES + LINES, 0);
        assert_ok(neb__set_copy(set[0], i, 0, 0, n, a));
        assert_ok(neb__set_copy(set[0], i % LINES, 0, 0, neb__set_length(set[0], i % LINES, 0), b));
        assert_int_equal(n,
                         neb__set_length(set[0], i % LINES, 0)); /* nothing left out: SentencePiece's own */
        assert_memory_equal(a, b, (size_t)n * 4);
        assert_ok(neb__set_copy(set[1], i, 0, 0, m, b));
        assert_int_equal(m, neb__set_length(set[2], i, 0));
        assert_ok(neb__set_copy(set[2], i, 0, 0, m, c));
        assert_memory_equal(b, c, (size_t)m * 4);
        differ += m != n || memcmp(a, b, (size_t)n * 4) != 0;
        assert_ok(neb__set_copy(set[1], i % LINES + LINES, 0, 0, o, c));
        copies_differ += i >= 2 * LINES && (m != o || memcmp(b, c, (size_t)o * 4) != 0);
        line_of(set[0], tok, i % LINES, &first);
        line_of(set[1], tok, i, &other);
        assert_true(first.len == other.len && !memcmp(first.data, other.data, first.len));
    }
    assert_true(differ > LINES && differ <= 2 * LINES && copies_differ > LINES / 2);
    for (int k = 0; k < 3; k++) neb__set_close(set[k]);
    neb__buf_free(&first);
    neb__buf_free(&other);
    neb__tok_close(tok);
}

static int next_word(void *arg, const char **text, size_t *n)
{
    static const char *const lines[] = {"the old house", "the other horse", "a house of the horse"};
    int *i = arg;
    *text = lines[*i % 3];
    *n = strlen(*text);
    return ++*i <= 60;
}

/* Copies without dropout are cut as the tokenizer cuts the text itself, or they are refused. */
static void copies_of_what_bpe_does_not_cut(void **state)
{
    (void)state;
    static const char text[] = "the \xE6\xBC\xA2 house\n", line[] = "the \xE6\xBC\xA2 house";
    struct neb_buf model, own;
    struct neb_tok *tok;
    struct neb_pool *pool;
    struct neb_set *set;
    struct neb_corpus_stats stats;
    int i = 0;
    const char *paths[] = {in("han"), NULL};
    struct neb_corpus_cfg cfg = {.paths = paths, .sides = 1, .copies = 2};
    assert_ok(neb__file_replace(paths[0], text, strlen(text), 0644));
    assert_ok(neb__pool_create(1, &pool));
    neb__buf_init(&model, 1 << 22);
    neb__buf_init(&own, 1 << 12);
    struct neb_tok_train bytes = {.type = "bpe", .vocab = 300, .coverage = 1, .byte_fallback = 1};
    assert_ok(neb__tok_train(&bytes, next_word, &i, &model));
    assert_ok(neb__tok_open_bytes(model.data, model.len, 0, NULL, &tok));
    assert_ok(neb__tok_encode(tok, line, strlen(line), &own));
    assert_ok(neb__corpus_tokenise(&cfg, tok, pool, in("bytes"), &stats));
    assert_ok(neb__set_open(in("bytes"), &set));
    for (int copy = 0; copy < 2; copy++) {
        int32_t ids[64], n = neb__set_length(set, copy, 0);
        assert_int_equal((size_t)n * sizeof *ids, own.len);
        assert_ok(neb__set_copy(set, copy, 0, 0, n, ids));
        assert_memory_equal(ids, own.data, own.len);
    }
    neb__set_close(set);
    neb__tok_close(tok);
    neb__buf_free(&model);
    neb__buf_free(&own);
    check_log_quiet();
    tok = words_tokenizer("unigram");
    assert_status(neb__corpus_tokenise(&cfg, tok, pool, in("unigram"), &stats), NEB_ERR_CONFIG);
    assert_non_null(strstr(neb_last_error(), "tokenizer.type: bpe"));
    neb__tok_close(tok);
    check_log_restore();
    neb__pool_destroy(pool);
}

static void line_feed_spreads_over_files(void **state)
{
    (void)state;
    struct neb_line_feed *feed;
    FILE *f = fopen(in("f1"), "w");
    for (int i = 0; i < 1000; i++) fprintf(f, "line %d\n", i);
    fclose(f);
    assert_ok(neb__file_replace(in("f2"), "a\tb\n", 4, 0644));
    const char *paths[] = {in("f1"), in("f2"), NULL}, *text;
    size_t n;
    int lines = 0, last = -1;
    assert_ok(neb__line_feed_create(paths, 200, &feed));
    while (lines < 100 && neb__line_feed_next(feed, &text, &n)) {
        char line[32];
        snprintf(line, sizeof line, "%.*s", (int)n, text);
        last = atoi(line + 5);
        lines++;
    }
    assert_int_equal(lines, 100);
    assert_int_equal(last, 999); /* spread over the whole file */
    assert_true(neb__line_feed_next(feed, &text, &n) && n == 1 && *text == 'a');
    assert_true(neb__line_feed_next(feed, &text, &n) && n == 1 && *text == 'b');
    assert_false(neb__line_feed_next(feed, &text, &n));
    assert_ok(neb__line_feed_status(feed));
    neb__line_feed_free(feed);
}

/* ---- help pages ---------------------------------------------------------------------------------------- */

static neb_status join_paragraphs(void *arg, const char *id, const char *text)
{
    return neb__buf_printf(arg, "%s=%s|", id, text);
}

static void paragraphs_of_a_page(void **state)
{
    (void)state;
    static const char html[] =
        "<html><body><p id='menu'>outside</p><div id=\"DisplayArea\"><h1 id='hd_1'>A&nbsp; <b>title</b></h1>"
        "<p id='par_1'>\n One <span hidden='true' id='MACx'>Mac</span><span hidden='true' "
        "id='defaultx'>Ctrl</span>"
        " two<br>three &amp; caf\xC3\xA9 </p><p>no id</p><div><p id='par_2'>  </p><p "
        "id='par_3'>x<</p></div></div>"
        "<p id='after'>outside</p></body>";
    struct neb_buf out;
    neb__buf_init(&out, 4096);
    assert_ok(neb__help_page_bytes(html, sizeof html - 1, join_paragraphs, &out));
    assert_ok(neb__buf_append(&out, "", 1));
    assert_string_equal((char *)out.data, "hd_1=A title|par_1=One Ctrl two three & caf\xC3\xA9|par_3=x<|");
    neb__buf_clear(&out);
    assert_ok(neb__help_page_bytes("<p id=a>b</p>", 13, join_paragraphs, &out)); /* no text area */
    assert_int_equal(out.len, 0);
    neb__buf_free(&out);
}

/* Unpacked packages with made-up pages are aligned, deduplicated and held out, and the training has nothing
 * of the test. */
static void pages_are_aligned_and_held_out(void **state)
{
    (void)state;
    static const char *const roots[2] = {"pk/libreoffice-help-en-us/usr/share/libreoffice/help/en-US/text/a",
                                         "pk/libreoffice-help-de/usr/share/libreoffice/help/de/text/a"};
    for (int l = 0; l < 2; l++) {
        assert_ok(neb__file_make_dir(in(roots[l]), 0755));
        for (int page = 0; page < 200; page++) {
            char path[500], text[1024];
            snprintf(path, sizeof path, "%s/%d.html", in(roots[l]), page);
            FILE *f = fopen(path, "w");
            fprintf(f, "<div id=DisplayArea><p id=same>Common %s</p><p id=equal>LibreOffice</p>",
                    l ? "de" : "en");
            for (int i = 0; i < 5; i++) {
                words_sentence(l, (uint64_t)(page * 5 + i), 6, text, sizeof text);
                fprintf(f, "<p id=par_%d>%s</p>", i, text);
            }
            if (l) fprintf(f, "<p id=only_de>allein</p>");
            fclose(f);
        }
    }
    struct neb_help_cfg cfg = {.langs = {"en", "de"}, .n = 2, .out = in("help"), .packages = in("pk")};
    struct neb_help_stats t;
    assert_ok(neb__help_corpus(&cfg, &t));
    assert_true(t.test[1] > 5 && t.valid[1] > 5 && t.train[1] > 800);
    /* 1000 paragraphs; the common one is held out, so it counts once in test,
     * once in valid and not in training */
    assert_int_equal(t.train[1] + t.valid[1] + t.test[1], 1000 + 2);
    struct neb_line_reader *train, *test;
    const char *a, *b;
    size_t n, m;
    assert_ok(neb__line_reader_open(in("help/en-de.test.tsv"), &test));
    while (neb__line_reader_next(test, &a, &n) == NEB_OK) {
        assert_non_null(memchr(a, '\t', n));
        assert_ok(neb__line_reader_open(in("help/en-de.train.tsv"), &train));
        while (neb__line_reader_next(train, &b, &m) == NEB_OK) assert_false(n == m && !memcmp(a, b, n));
        neb__line_reader_close(train);
    }
    neb__line_reader_close(test);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sentencepiece_round_trips),
        cmocka_unit_test(xlmr_numbers_are_shifted),
        cmocka_unit_test(broken_models_are_refused),
        cmocka_unit_test(wordpiece_cuts_like_bert),
        cmocka_unit_test(a_corpus_is_the_same_for_any_number_of_threads),
        cmocka_unit_test(long_texts_are_divided_and_files_must_match),
        cmocka_unit_test(copies_are_cut_in_other_ways),
        cmocka_unit_test(copies_of_what_bpe_does_not_cut),
        cmocka_unit_test(line_feed_spreads_over_files),
        cmocka_unit_test(paragraphs_of_a_page),
        cmocka_unit_test(pages_are_aligned_and_held_out),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
