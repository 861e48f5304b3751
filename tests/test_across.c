/* test_across.c: teachers and students with different tokenizers: what each token writes, where the probability mass goes, and
 * training with it.
 *
 * The masses of a small case are worked out by hand; on real cuts of random texts, sums and the case of one tokenizer are
 * checked. */
#include "check.h"
#include "base/mem.h"
#include "split/tutor_texts.h"
#include "task/teacher.h"
#include "task/translate.h"
#include "text/batch_pack.h"
#include "text/token_mass.h"
#include "world.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- masses -------------------------------------------------------------------------------------------- */

static struct neb_tok *wordpieces(const char *pieces)
{
    struct neb_tok *tok;
    char text[1000];
    struct neb_tok_cfg cfg = {.cased = 1};
    snprintf(text, sizeof text, "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n%s", pieces);
    assert_ok(neb__tok_open_bytes(text, strlen(text), 1, &cfg, &tok));
    return tok;
}

enum { TK = 4, SK = 8, OWN_FIRST = 5 };

/* The student's mass of a piece in a row of answers; 0: not among them. */
static float mass_of(const struct neb_tok *tok, const char *piece, const int32_t *ids, const float *logits)
{
    int32_t id = neb__tok_id(tok, piece);
    assert_true(id >= 0);
    for (int i = 0; i < SK; i++)
        if (ids[i] == id) return expf(logits[i]);
    return 0;
}

/* student: tea|##cher spoke      teacher: t|##each|##er spoke */
static void masses_follow_the_text(void **state)
{
    (void)state;
    struct neb_tok *own = wordpieces("tea\n##cher\nspoke\nt\n##ch\nteam\n##m\nto\n"),
                   *its = wordpieces("t\n##each\n##er\nspoke\n##eam\nto\n##e\n##etm\n");
    struct neb_token_mass *m;
    struct neb_buf text;
    int32_t a[8], b[8], own_ids[3] = {5, 6, 7}, its_ids[4] = {5, 6, 7, 8};
    assert_ok(neb__token_mass_make(own, its, &m));
    neb__buf_init(&text, 1000);
    assert_ok(neb__surfaces_join(neb__token_mass_own(m), own_ids, 3, &text, a));
    assert_int_equal(text.len, 14);
    assert_memory_equal(text.data, " teacher spoke", 14);
    size_t first = text.len;
    assert_ok(neb__surfaces_join(neb__token_mass_teachers(m), its_ids, 4, &text, b));
    assert_int_equal(text.len, 2 * first);
    assert_memory_equal(text.data, text.data + first, first);
    assert_int_equal(a[1], 4);
    assert_int_equal(b[1], 2);
    struct neb_token_cuts cuts = {(const char *)text.data, own_ids, a, its_ids, b, 3, 4};
    const int32_t eos = neb__tok_special(its, NEB_TOK_EOS);
    /* t, to, spoke, end | ##each, ##eam, ##etm, end | ##er … | spoke … | end … */
    int32_t said[5 * TK] = {5, 10, 8, eos, 6, 9, 12, eos, 7, eos, -1, -1, 8, eos, -1, -1, eos, 8, -1, -1};
    float p[5 * TK] = {.6f, .2f, .1f, .1f, .5f, .3f, .1f, .1f, .9f, .1f,
                       1,   1,   .7f, .3f, 1,   1,   .8f, .2f, 1,   1},
                l[5 * TK];
    for (int i = 0; i < 5 * TK; i++) l[i] = logf(p[i]) + 3;
    struct neb_token_says says = {.ids = said, .logits = l, .k = TK};
    int32_t sum_ids[NEB_TOKEN_MASS_HOPS * TK], ids[SK];
    float sum_p[NEB_TOKEN_MASS_HOPS * TK], logits[SK];
    struct neb_token_sum sum = {sum_ids, sum_p, 0};
    neb__token_mass_row(m, &cuts, &says, 0, &sum, SK, ids, logits);
    /* `t` goes on: ##each is the text's (tea…), ##eam makes team, ##etm and the end make t */
    assert_true(fabsf(mass_of(own, "tea", ids, logits) - .6f * .5f) < 1e-5f);
    assert_true(fabsf(mass_of(own, "team", ids, logits) - .6f * .3f) < 1e-5f);
    assert_true(fabsf(mass_of(own, "t", ids, logits) - .6f * (.1f + .1f)) < 1e-5f);
    assert_true(fabsf(mass_of(own, "to", ids, logits) - .2f) < 1e-5f);
    assert_true(fabsf(mass_of(own, "spoke", ids, logits) - .1f) < 1e-5f);
    assert_true(fabsf(mass_of(own, "[SEP]", ids, logits) - .1f) < 1e-5f);
    neb__token_mass_row(m, &cuts, &says, 1, &sum, SK, ids, logits);
    /* behind `tea` only ##each (then ##er: the text's) and ##eam are possible, ##etm is not; ##each and then the end: `ch` */
    assert_true(fabsf(mass_of(own, "##cher", ids, logits) - .5f * .9f) < 1e-5f);
    assert_true(fabsf(mass_of(own, "##ch", ids, logits) - .5f * .1f) < 1e-5f);
    assert_true(fabsf(mass_of(own, "##m", ids, logits) - .3f) < 1e-5f);
    assert_int_equal(sum.n, 3);
    neb__token_mass_row(m, &cuts, &says, 3, &sum, SK, ids, logits);
    assert_true(fabsf(mass_of(own, "[SEP]", ids, logits) - .8f) < 1e-5f);
    assert_true(fabsf(mass_of(own, "spoke", ids, logits) - .2f) < 1e-5f);
    neb__buf_free(&text);
    neb__token_mass_free(m);
    neb__tok_close(own);
    neb__tok_close(its);
}

/* With one tokenizer for both, a row of the answer is the teacher's own. */
static void one_tokenizer_changes_nothing(void **state)
{
    (void)state;
    struct neb_tok *tok = wordpieces("tea\n##cher\nspoke\nt\n##ch\nteam\n##m\nto\n");
    struct neb_token_mass *m;
    struct neb_buf text;
    int32_t ends[4], ids[3] = {5, 6, 7}, said[4 * TK], got[SK], sum_ids[NEB_TOKEN_MASS_HOPS * TK];
    float l[4 * TK], logits[SK], sum_p[NEB_TOKEN_MASS_HOPS * TK];
    struct neb_token_sum sum = {sum_ids, sum_p, 0};
    assert_ok(neb__token_mass_make(tok, tok, &m));
    neb__buf_init(&text, 1000);
    assert_ok(neb__surfaces_join(neb__token_mass_own(m), ids, 3, &text, ends));
    struct neb_token_cuts cuts = {(const char *)text.data, ids, ends, ids, ends, 3, 3};
    static const int32_t row[TK] = {5, 7, 8, 12};
    for (int j = 0; j < 4; j++)
        for (int i = 0; i < TK; i++)
            said[j * TK + i] = row[i] + (j == 1 && i == 0), l[j * TK + i] = (float)(i * i) * .1f;
    struct neb_token_says says = {.ids = said, .logits = l, .k = TK};
    for (int32_t r = 0; r < 4; r++) {
        neb__token_mass_row(m, &cuts, &says, r, &sum, SK, got, logits);
        float all = 0;
        for (int i = 0; i < TK; i++) all += expf(l[r * TK + i]);
        for (int i = 0; i < TK; i++) {
            int at = 0;
            while (at < SK && got[at] != said[r * TK + i]) at++;
            assert_true(at < SK && fabsf(logits[at] - (l[r * TK + i] - logf(all))) < 1e-5f);
        }
        assert_int_equal(sum.n, TK);
    }
    neb__buf_free(&text);
    neb__token_mass_free(m);
    neb__tok_close(tok);
}

static void a_token_without_a_surface_is_found(void **state)
{
    (void)state;
    struct neb_tok *tok = wordpieces("tea\n##cher\n");
    struct neb_surfaces *s;
    struct neb_buf text;
    int32_t ends[3], ids[2] = {5, 1};
    size_t n;
    assert_ok(neb__surfaces_make(tok, &s));
    neb__buf_init(&text, 100);
    assert_status(neb__surfaces_join(s, ids, 2, &text, ends), NEB_ERR_NOTFOUND);
    neb__surface_of(s, -1, &n);
    assert_int_equal(n, 0);
    neb__surface_of(s, 1 << 20, &n);
    assert_int_equal(n, 0);
    assert_int_equal(neb__surface_longest(s, " teacher", 8), 5);
    assert_int_equal(neb__surface_longest(s, "cher", 4), 6);
    assert_int_equal(neb__surface_longest(s, "x", 1), -1);
    assert_int_equal(neb__surface_longest(s, "", 0), -1);
    neb__buf_free(&text);
    neb__surfaces_free(s);
    neb__tok_close(tok);
}

/* ---- packing ------------------------------------------------------------------------------------------- */

static void packed_batches_keep_their_promises(void **state)
{
    (void)state;
    enum { LEN = 12, VOCAB = 50 };
    const int32_t rows[2] = {64, 96};
    struct neb_batch *b;
    int32_t ids[LEN];
    assert_ok(neb__batch_create(NEB_BATCH_PAIR, rows, neb__batch_pack_seqs(16, 96, LEN), 96, &b));
    for (int i = 0; i < LEN; i++) ids[i] = i + 3;
    for (unsigned seed = 1; seed < 60; seed++) {
        int n = 0;
        unsigned r = seed * 2654435761u;
        neb__batch_pack_begin(b);
        for (;; n++) {
            r = r * 1103515245 + 12345;
            int32_t a = 1 + (int32_t)(r >> 16) % LEN, c = 1 + (int32_t)(r >> 20) % LEN,
                    from = (int32_t)(r >> 24) % c;
            struct neb_batch_seq seq = {
                .ids = {ids, ids}, .n = {a, c}, .from = from, .target = ids, .sample = (uint32_t)n};
            if (n >= (int)(seed % 20) || !neb__batch_pack_fits(b, a, c, c - from, LEN)) break;
            neb__batch_pack_add(b, &seq);
        }
        neb__batch_pack_end(b, 0, LEN);
        assert_int_equal(b->side[0].nseq_used, n);
        assert_ok(neb__batch_check(b, VOCAB));
    }
    neb__batch_free(b);
}

/* ---- training ------------------------------------------------------------------------------------------ */

#define FOREIGN "cache: @/foreign.cache\n"

static void make_teachers(void)
{
    struct world w;
    world_open_words(&w, WORLD_TRANSLATOR FOREIGN, "tokenizer.vocab=90 tokenizer.type=bpe");
    for (int i = 0; i < 80; i++) world_step(&w);
    world_save(&w, "foreign");
    world_close(&w);
    world_open(&w, WORLD_TRANSLATOR, NULL);
    for (int i = 0; i < 80; i++) world_step(&w);
    world_save(&w, "alike");
    world_close(&w);
}

/* A student that learns from a teacher with another tokenizer alone: its loss on targets that it never saw falls. */
static void a_student_learns_across_tokenizers(void **state)
{
    (void)state;
    struct world w;
    struct neb_work_eval before, after;
    make_teachers();
    world_open_words(&w, WORLD_STUDENT "distill: {teacher: @/foreign, weight: 1}\n", "tokenizer.own=yes");
    assert_ok(neb__work_eval(w.work, "valid", 0, &before));
    for (int i = 0; i < 150; i++) world_step(&w);
    assert_ok(neb__work_eval(w.work, "valid", 0, &after));
    if (!(after.loss < before.loss - 0.5)) fail_msg("%g is not below %g", after.loss, before.loss);
    world_close(&w);
}

/* Teachers with the student's tokenizer and with others may answer as one. */
static void teachers_of_both_kinds(void **state)
{
    (void)state;
    struct world w;
    world_open_words(&w, WORLD_STUDENT "distill: {teacher: [@/alike, @/foreign], weight: 1}\n",
                     "tokenizer.own=yes");
    double first = world_step(&w), last = 0;
    for (int i = 0; i < 60; i++) last = world_step(&w);
    assert_true(last < first);
    world_close(&w);
}

/* An answer is the same whatever was packed with its sequence. */
static void answers_depend_on_the_sequence_alone(void **state)
{
    (void)state;
    struct world w;
    char folder[300];
    struct neb_teacher t;
    struct neb_teacher_answer a;
    world_open(&w, WORLD_STUDENT, NULL);
    world_path("foreign", folder);
    struct neb_batches *stream, *samples;
    struct neb_batch *b, *one;
    assert_ok(neb__data_stream(&w.data, "train", 0, 1, &stream));
    assert_ok(neb__batches_batch(stream, &b));
    assert_ok(neb__data_samples(&w.data, &samples));
    assert_ok(neb__batches_batch(samples, &one));
    struct neb_model_input_limits limits = {
        .rows = {b->cap_tokens[0], b->cap_tokens[1]}, .seqs = b->cap_seqs, .targets = b->cap_loss};
    struct neb_teacher_config c = {.folder = folder,
                                   .logits = true,
                                   .k = 8,
                                   .threads = 2,
                                   .tok = w.data.tok,
                                   .data = &w.data,
                                   .sides = 2,
                                   .max_len = 32};
    assert_ok(neb__teacher_open(neb__work_device(w.work), &c, &limits, &t));
    assert_ok(neb__batches_next(stream, b));
    assert_ok(t.ask(t.arg, b, &a));
    int32_t n = b->side[1].cu_seqlens[1], ids[32 * 8], answered = 0;
    float logits[32 * 8];
    assert_true(n <= 32);
    memcpy(ids, a.ids, (size_t)n * 8 * sizeof *ids);
    memcpy(logits, a.logits, (size_t)n * 8 * sizeof *logits);
    for (int32_t i = 0; i < n; i++) answered += ids[i * 8] >= 0 || ids[i * 8 + 7] >= 0;
    assert_true(answered > n / 2);
    bool found = false;
    for (int64_t i = 0; !found && i < neb__batches_samples(samples); i++) {
        assert_ok(neb__batches_one(samples, i, 0, one));
        found = one->side[1].used == n && one->side[0].used == b->side[0].cu_seqlens[1] &&
                !memcmp(one->side[1].ids, b->side[1].ids, (size_t)n * sizeof *ids) &&
                !memcmp(one->side[0].ids, b->side[0].ids, (size_t)one->side[0].used * sizeof *ids);
    }
    assert_true(found);
    assert_ok(t.ask(t.arg, one, &a));
    assert_memory_equal(a.ids, ids, (size_t)n * 8 * sizeof *ids);
    for (int32_t i = 0; i < 8 * n; i++) assert_true(fabsf(a.logits[i] - logits[i]) < 1e-4f);
    t.close(t.arg);
    neb__batch_free(b);
    neb__batch_free(one);
    neb__batches_free(stream);
    neb__batches_free(samples);
    world_close(&w);
}

/* A decoder teaches translation behind a prompt; a causal student learns from a decoder. */
static void decoders_teach(void **state)
{
    (void)state;
    struct world w;
    char path[300];
    const char *gpt =
        "task: causal\nmodel: {family: gpt2, hidden: 32, layers: 1, heads: 2, ffn: 32, max_positions: 128}\n"
        "cache: @/gpt.cache\n";
    world_path("train.txt", path);
    FILE *f = fopen(path, "w");
    for (int i = 0; i < 300; i++)
        fprintf(f, "a red dog sees the green tree\nein roter hund sieht den baum\n");
    fclose(f);
    char data[800];
    snprintf(data, sizeof data,
             "data[0].file=%s data[0].lang=de data[1].file=%s data[1].lang=de tokenizer.vocab=70", path,
             path);
    world_open_words(&w, gpt, data);
    for (int i = 0; i < 30; i++) world_step(&w);
    world_save(&w, "gpt");
    world_close(&w);
    world_open_words(&w,
                     WORLD_STUDENT "distill: {teacher: @/gpt, weight: 0.5, prompt: \"en: {source} de:\"}\n",
                     "tokenizer.own=yes");
    for (int i = 0; i < 3; i++) assert_true(isfinite(world_step(&w)));
    world_close(&w);
}

static void misfits_are_refused(void **state)
{
    (void)state;
    static const char *const wrong[][2] = {
        {WORLD_STUDENT "distill: {teacher: @/gpt}\n", "distill.prompt: the teacher in"},
        {WORLD_STUDENT "distill: {teacher: @/gpt, prompt: \"no mark\"}\n", "distill.prompt: the teacher in"},
        {WORLD_ENCODER "distill: {teacher: @/foreign}\n", "masked places are others"},
        {WORLD_STUDENT "distill: {encoder: @/foreign, width: 32}\n", "another tokenizer"},
    };
    check_log_quiet();
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct world w;
        char path[300], own[] = "tokenizer.own=yes", *words[] = {own};
        world_open(&w, wrong[i][0][6] == 'm' ? WORLD_ENCODER : WORLD_STUDENT, NULL);
        world_close(&w);
        world_path("job.yaml", path);
        FILE *f = fopen(path, "a");
        for (const char *c = strstr(wrong[i][0], "distill"); *c; c++)
            if (*c == '@')
                fputs(world_dir, f);
            else
                fputc(*c, f);
        fclose(f);
        int64_t held = neb__mem_held();
        assert_ok(neb__job_read(path, words, 1, &w.job));
        assert_ok(neb__data_prepare(&w.job, &w.data));
        assert_true(neb__work_open(&w.data, 0, 1, NULL, &w.work) != NEB_OK);
        if (!strstr(neb_last_error(), wrong[i][1]))
            fail_msg("%s, expected: %s", neb_last_error(), wrong[i][1]);
        neb__data_free(&w.data);
        neb__job_free(&w.job);
        assert_int_equal(neb__mem_held(), held);
    }
    check_log_restore();
}

/* ---- translations -------------------------------------------------------------------------------------- */

/* Of several results the first is the one that is found alone; the others are other ones, none better than the one before. */
static void several_translations_of_a_line(void **state)
{
    (void)state;
    enum { LINES = 3, MANY = 4 };
    struct world w;
    struct neb_ready m;
    char folder[300];
    world_open(&w, WORLD_STUDENT, NULL);
    world_path("alike", folder);
    assert_ok(neb__ready_open(folder, NULL, neb__work_device(w.work), &m));
    struct neb_translate_config c = {.beams = MANY, .batch = 2, .max_len = 30, .length_penalty = 1};
    struct neb_translator *t;
    const char *lines[LINES] = {"a red dog", "", "two men run here now"};
    char *one[LINES], *many[LINES * MANY];
    assert_ok(neb__translator_open(&m, &c, &t));
    assert_ok(neb__translator_translate(t, lines, LINES, one));
    neb__translator_close(t);
    c.results = MANY;
    assert_ok(neb__translator_open(&m, &c, &t));
    assert_ok(neb__translator_translate(t, lines, LINES, many));
    neb__translator_close(t);
    for (int i = 0; i < LINES; i++) {
        int others = 0;
        assert_string_equal(one[i], many[i * MANY]);
        for (int k = 1; k < MANY; k++)
            others += many[i * MANY + k] && strcmp(many[i * MANY + k], one[i]) != 0;
        assert_true(i == 1 ? !others : others > 0);
        neb__free(one[i]);
        for (int k = 0; k < MANY; k++) neb__free(many[i * MANY + k]);
    }
    c.results = MANY + 1;
    check_log_quiet();
    assert_status(neb__translator_open(&m, &c, &t), NEB_ERR_CONFIG);
    check_log_restore();
    neb__ready_close(&m);
    world_close(&w);
}

/* Both ends make the same targets from the same texts; what is cut off or changed on the way is refused. */
static void texts_become_targets_at_both_ends(void **state)
{
    (void)state;
    struct world w;
    struct neb_batches *stream[2];
    struct neb_batch *b[2];
    struct neb_tutor_texts t[2];
    struct neb_buf item;
    char said[2][40] = {"ein roter hund", "zwei leute rennen hier jetzt"}, *texts[2] = {said[0], said[1]};
    world_open(&w, WORLD_STUDENT, NULL);
    for (int i = 0; i < 2; i++) {
        assert_ok(neb__data_stream(&w.data, "train", 0, 1, &stream[i]));
        assert_ok(neb__batches_batch(stream[i], &b[i]));
        assert_ok(neb__tutor_texts_init(&t[i], &w.data, b[i]->cap_seqs));
    }
    neb__buf_init(&item, 1 << 20);
    for (int step = 0; step < 20; step++) {
        for (int i = 0; i < 2; i++) {
            assert_ok(neb__batches_next(stream[i], b[i]));
            assert_ok(neb__tutor_texts_plan(&t[i], b[i]));
        }
        for (int32_t q = 0; q < t[0].seqs; q++) assert_ok(neb__tutor_texts_set(&t[0], q, texts, 2));
        neb__buf_clear(&item);
        assert_ok(neb__tutor_texts_encode(&t[0], &item));
        check_log_quiet();
        for (size_t cut = 0; !step && cut < item.len; cut++) {
            struct neb_reader r = {item.data, cut, false};
            assert_ok(neb__tutor_texts_plan(&t[1], b[1]));
            assert_true(neb__tutor_texts_decode(&t[1], &r) != NEB_OK);
        }
        for (size_t at = 0; !step && at < item.len; at++) { /* any answer but a crash */
            struct neb_reader r = {item.data, item.len, false};
            item.data[at] ^= 0x55;
            assert_ok(neb__tutor_texts_plan(&t[1], b[1]));
            (void)neb__tutor_texts_decode(&t[1], &r);
            item.data[at] ^= 0x55;
        }
        check_log_restore();
        struct neb_reader r = {item.data, item.len, false};
        assert_ok(neb__tutor_texts_plan(&t[1], b[1]));
        assert_ok(neb__tutor_texts_decode(&t[1], &r));
        assert_int_equal(r.left, 0);
        uint32_t before = neb__batch_check_value(b[0]);
        for (int i = 0; i < 2; i++) {
            assert_ok(neb__tutor_texts_apply(&t[i], b[i]));
            assert_ok(neb__batch_check(b[i], neb__tok_vocab(w.data.tok)));
        }
        assert_true(neb__batch_check_value(b[0]) != before);
        assert_int_equal(neb__batch_check_value(b[0]), neb__batch_check_value(b[1]));
    }
    assert_true(t[0].taken > 0 && t[0].gold == 0);
    struct neb_buf text;
    neb__buf_init(&text, 1000);
    assert_ok(neb__tok_decode(w.data.tok, b[1]->side[1].ids, (size_t)b[1]->side[1].cu_seqlens[1], &text));
    assert_ok(neb__buf_append(&text, "", 1));
    assert_true(!strcmp((char *)text.data, said[0]) || !strcmp((char *)text.data, said[1]));
    neb__buf_free(&text);
    neb__buf_free(&item);
    for (int i = 0; i < 2; i++) {
        neb__tutor_texts_free(&t[i]);
        neb__batch_free(b[i]);
        neb__batches_free(stream[i]);
    }
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masses_follow_the_text),
        cmocka_unit_test(one_tokenizer_changes_nothing),
        cmocka_unit_test(a_token_without_a_surface_is_found),
        cmocka_unit_test(packed_batches_keep_their_promises),
        cmocka_unit_test(a_student_learns_across_tokenizers),
        cmocka_unit_test(teachers_of_both_kinds),
        cmocka_unit_test(answers_depend_on_the_sequence_alone),
        cmocka_unit_test(decoders_teach),
        cmocka_unit_test(misfits_are_refused),
        cmocka_unit_test(several_translations_of_a_line),
        cmocka_unit_test(texts_become_targets_at_both_ends),
    };
    return cmocka_run_group_tests(tests, world_set_up, world_tear_down);
}
