/* test_work.c: a job's steps: parts of it that live elsewhere, knowledge from other models, where parameters start.
 *
 * Two things that must be the same are compared bit by bit: a step whose generator or teacher answers over a link, and
 * the same step with all of it in one place. */
#include "check.h"
#include "base/mem.h"
#include "task/folder.h"
#include "task/tutor.h"
#include "task/retrieve.h"
#include "task/work.h"
#include "train/resume.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 6, MAX_VALUES = 1 << 17 };
static char dir[200];

/* ---- a small world ---------------------------------------------------------------------------------------------- */

static void write_pairs(const char *name, int lines, unsigned seed)
{
    static const char *const words[][12] = {
        {"a", "red", "dog", "sees", "the", "green", "tree", "two", "men", "run", "here", "now"},
        {"ein", "roter", "hund", "sieht", "den", "grünen", "baum", "zwei", "leute", "rennen", "hier",
         "jetzt"}};
    char path[300];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < lines; i++) {
        int n = 3 + (int)(seed >> 16) % 6;
        unsigned start = seed;
        for (int side = 0; side < 2; side++) {
            seed = start;
            for (int k = 0; k < n; k++) {
                seed = seed * 1103515245 + 12345;
                fprintf(f, "%s%s", k ? " " : "", words[side][(seed >> 16) % 12]);
            }
            fputs(side ? "\n" : "\t", f);
        }
        seed += 7;
    }
    fclose(f);
}

struct world {
    struct neb_job job;
    struct neb_data data;
    struct neb_work *work;
};

/* text: the job's own lines, on top of what all of these have. */
static void open_world(struct world *w, const char *text, const struct neb_links *links)
{
    char path[300];
    snprintf(path, sizeof path, "%s/job.yaml", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(
        f,
        "out: %s/out\n"
        "tokenizer: {vocab: 60}\n"
        "data:\n  - {file: %s/train.tsv, lang: en-de}\n  - {file: %s/valid.tsv, lang: en-de, use: valid}\n"
        "train: {steps: 100, tokens: 128, max_len: 32, lr: 1e-2, clip: 0, threads: 1, micro: 2}\n",
        dir, dir, dir);
    for (const char *c = text; *c; c++)
        if (*c == '@')
            fputs(dir, f);
        else
            fputc(*c, f);
    fclose(f);
    assert_ok(neb__job_read(path, NULL, 0, &w->job));
    assert_ok(neb__data_prepare(&w->job, &w->data));
    assert_ok(neb__work_open(&w->data, 0, 1, links, &w->work));
}

static void close_world(struct world *w)
{
    neb__work_close(w->work);
    neb__data_free(&w->data);
    neb__job_free(&w->job);
}

static double step(struct world *w)
{
    struct neb_work_step out;
    assert_ok(neb__work_step(w->work, 1e-2f, &out));
    return out.loss;
}

/* The values of every parameter whose name starts with `prefix` (NULL: with none of the known ones). */
static int64_t values_of(struct world *w, const char *prefix, float *out)
{
    neb_params *ps = neb__work_params(w->work);
    int64_t n = 0;
    for (int i = 0; i < neb_params_count(ps); i++) {
        const neb_param *p = neb_params_at(ps, i);
        bool of_generator = !strncmp(neb_param_name(p), "generator.", 10);
        if (prefix ? strncmp(neb_param_name(p), prefix, strlen(prefix)) != 0 : of_generator) continue;
        assert_true(n + neb_param_values(p) <= MAX_VALUES);
        assert_ok(neb_param_read(p, out + n));
        n += neb_param_values(p);
    }
    return n;
}

static float *room(void)
{
    float *p = malloc(MAX_VALUES * sizeof *p);
    assert_non_null(p);
    return p;
}

static void assert_same(struct world *w, const char *prefix, const float *want, int64_t n)
{
    float *got = room();
    assert_int_equal(values_of(w, prefix, got), n);
    assert_memory_equal(got, want, (size_t)n * sizeof *got);
    free(got);
}

/* ---- replaced-token detection ----------------------------------------------------------------------------------- */

#define RTD                                                                         \
    "task: rtd\nmodel: {hidden: 32, embedding: 16, layers: 1, heads: 2, ffn: 32}\n" \
    "generator: {hidden: 16, layers: 1, heads: 2, ffn: 32}\n"

struct mail {
    int32_t sampled[64][64];
    int64_t step[64];
    int sent, read;
};

static neb_status post(void *arg, const struct neb_batch *b, const int32_t *sampled)
{
    struct mail *m = arg;
    assert_true(b->loss.n <= 64 && m->sent < 64);
    m->step[m->sent] = b->step;
    memcpy(m->sampled[m->sent++], sampled, (size_t)b->loss.n * sizeof *sampled);
    return NEB_OK;
}

static neb_status fetch(void *arg, const struct neb_batch *b, int32_t *sampled)
{
    struct mail *m = arg;
    if (m->read >= m->sent) return neb__fail(NEB_ERR_STATE, "nothing was sent");
    assert_int_equal(m->step[m->read], b->step);
    memcpy(sampled, m->sampled[m->read++], (size_t)b->loss.n * sizeof *sampled);
    return NEB_OK;
}

static void generator_and_discriminator_may_live_apart(void **state)
{
    (void)state;
    static struct mail mail;
    struct world both, one;
    float *generator = room(), *discriminator = room();
    memset(&mail, 0, sizeof mail);
    open_world(&both, RTD, NULL);
    for (int i = 0; i < STEPS; i++) step(&both);
    int64_t n = values_of(&both, "generator.", generator), m = values_of(&both, NULL, discriminator);
    close_world(&both);
    struct neb_links give = {.relay = {.give = post, .arg = &mail}},
                     take = {.relay = {.take = fetch, .arg = &mail}};
    open_world(&one, RTD, &give);
    assert_null(neb__work_model(one.work));
    for (int i = 0; i < STEPS; i++) step(&one);
    assert_same(&one, "generator.", generator, n);
    close_world(&one);
    assert_int_equal(mail.sent, 2 * STEPS);
    open_world(&one, RTD, &take);
    assert_null(neb__work_generator(one.work));
    for (int i = 0; i < STEPS; i++) step(&one);
    assert_same(&one, NULL, discriminator, m);
    check_log_quiet(); /* nothing more was sent: the step says so; a token that does not exist is refused */
    struct neb_work_step out;
    assert_status(neb__work_step(one.work, 1e-2f, &out), NEB_ERR_STATE);
    close_world(&one);
    mail.read = 0;
    for (int i = 0; i < 64; i++) mail.sampled[0][i] = 60;
    open_world(&one, RTD, &take);
    assert_status(neb__work_step(one.work, 1e-2f, &out), NEB_ERR_RANGE);
    check_log_restore();
    close_world(&one);
    free(generator);
    free(discriminator);
}

/* The discriminator's gradient reaches a shared table, but never one to which it learns a difference. */
static void disentangled_embeddings_leave_the_generator_alone(void **state)
{
    (void)state;
    static const char *const how[] = {"separate", "disentangled", "shared"};
    float *values[3];
    int64_t n = 0;
    for (int i = 0; i < 3; i++) {
        struct world w;
        open_world(&w, RTD, NULL);
        close_world(&w);
        char path[300], word[64];
        char *words[] = {word};
        snprintf(path, sizeof path, "%s/job.yaml", dir);
        snprintf(word, sizeof word, "train.rtd_embeddings=%s", how[i]);
        assert_ok(neb__job_read(path, words, 1, &w.job));
        assert_ok(neb__data_prepare(&w.job, &w.data));
        assert_ok(neb__work_open(&w.data, 0, 1, NULL, &w.work));
        for (int k = 0; k < STEPS; k++) step(&w);
        values[i] = room();
        n = values_of(&w, "generator.", values[i]);
        close_world(&w);
    }
    assert_memory_equal(values[0], values[1], (size_t)n * sizeof(float));
    assert_memory_not_equal(values[0], values[2], (size_t)n * sizeof(float));
    for (int i = 0; i < 3; i++) free(values[i]);
}

/* ---- knowledge -------------------------------------------------------------------------------------------------- */

static const char encoder_job[] =
    "task: mlm\nmodel: {family: bert, hidden: 32, layers: 2, heads: 2, ffn: 32, max_positions: 32}\n";
static const char translator_job[] = "task: translate\nmodel: {hidden: 32, layers: 1, heads: 2, ffn: 32}\n";

static void save_world(struct world *w, const char *name)
{
    struct neb_folder f;
    char path[300];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_ok(neb__folder_init(&f));
    assert_ok(neb__folder_describe(&f, w->job.task, &w->job.model, &w->job.peft, &w->data.tok_cfg));
    assert_ok(neb__folder_write(&f, path, neb__work_model(w->work), w->data.tok_path));
    neb__folder_free(&f);
}

static void make_teachers(void)
{
    struct world w;
    open_world(&w, encoder_job, NULL);
    for (int i = 0; i < 20; i++) step(&w);
    save_world(&w, "encoder");
    close_world(&w);
    open_world(&w, translator_job, NULL);
    for (int i = 0; i < 60; i++) step(&w);
    save_world(&w, "teacher");
    close_world(&w);
}

/* A teacher behind a link. */
static neb_status ask_other(void *arg, const struct neb_batch *b, struct neb_lesson *out)
{
    struct neb_tutor *t = arg;
    return t->ask(t->arg, b, out);
}

static struct neb_tutor open_tutor(struct world *w, const char *folder, bool logits)
{
    char path[300];
    struct neb_tutor t;
    struct neb_feed_limits limits = {.rows = {256, 256}, .seqs = 128, .targets = 256};
    snprintf(path, sizeof path, "%s/%s", dir, folder);
    struct neb_tutor_config c = {
        .folder = path, .logits = logits, .k = 16, .threads = 1, .tok = w->data.tok, .sides = 2};
    assert_ok(neb__tutor_open(neb__work_device(w->work), &c, &limits, &t));
    return t;
}

#define STUDENT "task: translate\nmodel: {hidden: 16, layers: 1, heads: 2, ffn: 32}\n"

static void a_teacher_may_answer_over_a_link(void **state)
{
    (void)state;
    struct world here, there, helper;
    float *values = room();
    open_world(&here, STUDENT "distill: {teacher: @/teacher, encoder: @/encoder, weight: 0.8}\n", NULL);
    for (int i = 0; i < STEPS; i++) step(&here);
    int64_t n = values_of(&here, "", values);
    close_world(&here);
    open_world(&helper, translator_job, NULL);
    struct neb_tutor logits = open_tutor(&helper, "teacher", true),
                     hidden = open_tutor(&helper, "encoder", false);
    struct neb_links links = {.logits = {.k = logits.k, .ask = ask_other, .arg = &logits},
                              .hidden = {.width = hidden.width, .ask = ask_other, .arg = &hidden}};
    open_world(&there, STUDENT "distill: {weight: 0.8}\n", &links);
    for (int i = 0; i < STEPS; i++) step(&there);
    assert_same(&there, "", values, n);
    close_world(&there);
    logits.close(logits.arg);
    hidden.close(hidden.arg);
    close_world(&helper);
    free(values);
}

/* With the teacher alone to learn from, the student comes near it: its loss on the targets falls though it never saw
 * them, and the hidden states' loss falls, too. */
static void a_student_learns_from_its_teachers(void **state)
{
    (void)state;
    struct world w;
    struct neb_work_eval before, after;
    struct neb_work_step out, first = {0};
    open_world(&w, STUDENT "distill: {teacher: @/teacher, encoder: @/encoder, weight: 1, hidden_loss: mse}\n",
               NULL);
    assert_ok(neb__work_eval(w.work, "valid", 0, &before));
    for (int i = 0; i < 150; i++) {
        assert_ok(neb__work_step(w.work, 1e-2f, &out));
        if (!i) first = out;
    }
    assert_ok(neb__work_eval(w.work, "valid", 0, &after));
    assert_true(after.loss < before.loss - 0.5);
    assert_true(out.parts[0] < 0.1 * first.parts[0]);
    assert_true(out.parts[2] < 0.5 * first.parts[2] && first.parts[2] > 0);
    close_world(&w);
}

/* Held-out text of two kinds, one behind the other: some batches of it tell what all of them tell. */
static void some_batches_stand_for_all(void **state)
{
    (void)state;
    struct world w;
    struct neb_work_eval all, some, more;
    char path[300];
    write_pairs("valid.tsv", 100, 77777);
    snprintf(path, sizeof path, "%s/valid.tsv", dir);
    FILE *f = fopen(path, "a");
    assert_non_null(f);
    for (int i = 0; i < 100; i++) fputs("now now now now now\ttree tree tree tree tree\n", f);
    fclose(f);
    open_world(&w, translator_job, NULL);
    for (int i = 0; i < 60; i++) step(&w);
    assert_ok(neb__work_eval(w.work, "valid", 0, &all));
    assert_ok(neb__work_eval(w.work, "valid", all.batches / 2, &some));
    assert_ok(neb__work_eval(w.work, "valid", all.batches + 3, &more));
    assert_int_equal(some.batches, all.batches / 2);
    assert_int_equal(more.batches, all.batches);
    assert_true(more.loss == all.loss);
    if (fabs(some.loss / all.loss - 1) > 0.1) fail_msg("%g for %g", some.loss, all.loss);
    close_world(&w);
    write_pairs("valid.tsv", 40, 77777);
}

static void teachers_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    static const char *const wrong[][2] = {
        {"distill: {teacher: @/encoder}\n", "cannot teach this task"},
        {"distill: {encoder: @/nowhere}\n", "nowhere"},
        {"tokenizer: {vocab: 50}\ndistill: {teacher: @/teacher}\n", "stands there twice"},
    };
    check_log_quiet();
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct world w;
        char path[300], text[1000];
        int at = 0;
        open_world(&w, translator_job, NULL);
        close_world(&w);
        snprintf(path, sizeof path, "%s/job.yaml", dir);
        FILE *f = fopen(path, "a");
        for (const char *c = wrong[i][0]; *c; c++)
            at += *c == '@' ? snprintf(text + at, sizeof text - (size_t)at, "%s", dir) : (text[at] = *c, 1);
        text[at] = 0;
        fputs(text, f);
        fclose(f);
        int64_t held = neb__mem_held();
        neb_status s = neb__job_read(path, NULL, 0, &w.job);
        if (s == NEB_OK) {
            s = neb__data_prepare(&w.job, &w.data);
            if (s == NEB_OK) {
                s = neb__work_open(&w.data, 0, 1, NULL, &w.work);
                assert_true(s != NEB_OK);
                neb__data_free(&w.data);
            }
            neb__job_free(&w.job);
        }
        assert_true(s != NEB_OK);
        if (!strstr(neb_last_error(), wrong[i][1]))
            fail_msg("%s, expected: %s", neb_last_error(), wrong[i][1]);
        assert_int_equal(neb__mem_held(), held);
    }
    check_log_restore();
}

/* ---- where parameters start ------------------------------------------------------------------------------------- */

static void lora_comes_along_merged(void **state)
{
    (void)state;
    struct world w;
    struct neb_work_eval with, without, merged;
    open_world(&w, "task: mlm\ninit: {from: @/encoder}\npeft: {method: lora, lora_on: \"encoder.*\"}\n",
               NULL);
    assert_ok(neb__work_eval(w.work, "valid", 0, &without));
    for (int i = 0; i < 30; i++) step(&w);
    assert_ok(neb__work_eval(w.work, "valid", 0, &with));
    assert_true(fabs(with.loss - without.loss) > 2e-3);
    save_world(&w, "tuned");
    close_world(&w);
    open_world(&w, "task: mlm\ninit: {from: @/tuned}\n", NULL);
    assert_ok(neb__work_eval(w.work, "valid", 0, &merged));
    assert_true(fabs(merged.loss - with.loss) < 2e-5);
    close_world(&w);
}

/* A translation model whose encoder starts from a BERT-like one computes, in it, what that one did. */
static void an_encoder_starts_from_another(void **state)
{
    (void)state;
    struct world w;
    struct neb_ready old;
    open_world(&w,
               "task: translate\ninit: {from: @/encoder}\npeft: {method: adapter, train: \"decoder.*\"}\n",
               NULL);
    struct neb_model *m = neb__work_model(w.work);
    char path[300];
    snprintf(path, sizeof path, "%s/encoder", dir);
    assert_ok(neb__ready_open(path, "none", neb__work_device(w.work), &old));
    assert_int_equal(m->encoder.count, 2);
    assert_int_equal(m->arch.hidden, 32);
    float *a = room(), *b = room();
    static const char *const names[] = {"embed.token.weight", "encoder.layers.1.ffn.in.weight"};
    for (int i = 0; i < 2; i++) {
        neb_param *p = neb_params_find(neb__work_params(w.work), names[i]);
        assert_non_null(p);
        assert_false(neb_param_trainable(p));
        assert_ok(neb_param_read(p, a));
        assert_ok(neb_param_read(neb_params_find(old.params, names[i]), b));
        assert_memory_equal(a, b, (size_t)neb_param_values(p) * sizeof *a);
    }
    assert_ok(neb_param_read(m->encoder.position, a)); /* positions: those and the first segment's row */
    assert_ok(neb_param_read(old.model->encoder.position, b));
    float *segment = b + 32 * 32;
    assert_ok(neb_param_read(old.model->encoder.type, segment));
    for (int i = 0; i < 32 * 32; i++) assert_true(a[i] == b[i] + segment[i % 32]);
    assert_true(step(&w) > 0);
    neb__ready_close(&old);
    close_world(&w);
    free(a);
    free(b);
}

/* ---- going on ---------------------------------------------------------------------------------------------------- */

static void save_here(struct world *w, const char *folder, int64_t step_number)
{
    struct neb_ckpt_writer *writer;
    struct neb_progress p = {.step = step_number};
    assert_ok(neb__ckpt_writer_create(folder, 1, &writer));
    assert_ok(neb__resume_save(w->work, NULL, writer, &p));
    assert_ok(neb__ckpt_writer_close(writer));
}

/* A run that is stopped anywhere and goes on from its checkpoint has the bits of one that was not: parameters, moments (they
 * show in the next parameters), data and dropout. Points are drawn; at each, two further steps are compared. */
static void check_resuming(const char *job, int points)
{
    enum { LENGTH = 60 };
    struct world w;
    struct neb_hash after[LENGTH + 1];
    float *values = room();
    bool saved[LENGTH + 1] = {false};
    unsigned seed = 12345;
    for (int i = 0; i < points;) {
        seed = seed * 1103515245 + 12345;
        int at = (int)(seed >> 16) % (LENGTH - 2);
        i += !saved[at];
        saved[at] = true;
    }
    char folder[300];
    open_world(&w, job, NULL);
    for (int i = 0; i <= LENGTH; i++) {
        int64_t n = values_of(&w, "", values);
        assert_ok(neb__hash(values, (size_t)n * sizeof *values, &after[i]));
        snprintf(folder, sizeof folder, "%s/stop-%d", dir, i);
        if (saved[i]) save_here(&w, folder, i);
        if (i < LENGTH) step(&w);
    }
    close_world(&w);
    for (int i = 0; i < LENGTH; i++) {
        struct neb_progress p;
        struct neb_hash now;
        if (!saved[i]) continue;
        snprintf(folder, sizeof folder, "%s/stop-%d", dir, i);
        open_world(&w, job, NULL);
        assert_ok(neb__resume_load(w.work, NULL, folder, &p));
        assert_int_equal(p.step, i);
        for (int k = 0; k <= 2; k++) {
            int64_t n = values_of(&w, "", values);
            assert_ok(neb__hash(values, (size_t)n * sizeof *values, &now));
            if (!neb__hash_equal(&now, &after[i + k]))
                fail_msg("stopped at step %d: other bits %d steps later", i, k);
            if (k < 2) step(&w);
        }
        close_world(&w);
    }
    free(values);
}

static void going_on_changes_no_bit(void **state)
{
    (void)state;
    check_resuming(translator_job, 25);
    check_resuming(RTD, 25);
}

static void a_checkpoint_of_another_model_is_refused(void **state)
{
    (void)state;
    struct world w;
    struct neb_progress p;
    char folder[300];
    snprintf(folder, sizeof folder, "%s/other", dir);
    open_world(&w, translator_job, NULL);
    save_here(&w, folder, 0);
    close_world(&w);
    open_world(&w, STUDENT, NULL);
    check_log_quiet();
    assert_status(neb__resume_load(w.work, NULL, folder, &p), NEB_ERR_CONFIG);
    check_log_restore();
    close_world(&w);
}

static int set_up(void **state)
{
    (void)state;
    check_make_dir(dir, sizeof dir);
    write_pairs("train.tsv", 400, 1);
    write_pairs("valid.tsv", 40, 77777);
    make_teachers();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    check_remove_dir(dir);
    return 0;
}

/* ---- retrieval -------------------------------------------------------------------------------------------------- */

/* Sentence i and its translation share a direction of their own; each language has one in common with itself. */
static void centring_removes_the_language(void **state)
{
    (void)state;
    enum { N = 4, WIDTH = 6 };
    float a[N * WIDTH] = {0}, b[N * WIDTH] = {0};
    struct neb_retrieval r;
    for (int i = 0; i < N; i++) {
        a[i * WIDTH + i] = b[i * WIDTH + i] = 0.1f;
        a[i * WIDTH + 4] = 1;
        b[i * WIDTH + 5] = 1;
        a[i * WIDTH + 1] += 0.2f; /* a hub: the nearest of everything */
        if (i == 1) b[i * WIDTH + 1] = 0.3f;
    }
    assert_ok(neb__retrieve(a, b, N, WIDTH, &r));
    assert_true(r.forth < 0.5);
    assert_ok(neb__centre(a, N, WIDTH));
    assert_ok(neb__centre(b, N, WIDTH));
    assert_ok(neb__retrieve(a, b, N, WIDTH, &r));
    assert_int_equal(r.n, N);
    assert_true(r.forth == 1 && r.back == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(centring_removes_the_language),
        cmocka_unit_test(generator_and_discriminator_may_live_apart),
        cmocka_unit_test(disentangled_embeddings_leave_the_generator_alone),
        cmocka_unit_test(a_teacher_may_answer_over_a_link),
        cmocka_unit_test(a_student_learns_from_its_teachers),
        cmocka_unit_test(some_batches_stand_for_all),
        cmocka_unit_test(teachers_that_do_not_fit_are_refused),
        cmocka_unit_test(lora_comes_along_merged),
        cmocka_unit_test(an_encoder_starts_from_another),
        cmocka_unit_test(going_on_changes_no_bit),
        cmocka_unit_test(a_checkpoint_of_another_model_is_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
