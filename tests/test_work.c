/* test_work.c: the steps of a job: parts on another site, held-out text, going on from a checkpoint.
 *
 * A step whose generator answers over a link is compared bit by bit with the same step in one process. */
#include "check.h"
#include "base/mem.h"
#include "task/folder.h"
#include "task/retrieve.h"
#include "task/samples.h"
#include "task/translate.h"
#include "train/resume.h"
#include "world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 6 };

/* ---- replaced-token detection -------------------------------------------------------------------------- */

#define RTD                                                                         \
    "task: rtd\nmodel: {hidden: 32, embedding: 16, layers: 1, heads: 2, ffn: 32}\n" \
    "generator: {hidden: 16, layers: 1, heads: 2, ffn: 32}\n"

#define EMBEDDINGS "train.rtd_embeddings="

static double rtd_loss(const struct neb_work_eval *e)
{
    const struct neb_objective *o = neb__objective_named("rtd");
    for (int i = 0; i < NEB_OBJECTIVE_METRICS; i++)
        if (o->metrics[i] && !strcmp(o->metrics[i], "rtd_loss")) return e->more[i];
    fail();
    return 0;
}

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
    float *generator = world_room(), *discriminator = world_room();
    memset(&mail, 0, sizeof mail);
    world_open(&both, RTD, NULL);
    for (int i = 0; i < STEPS; i++) world_step(&both);
    int64_t n = world_values(&both, "generator.", generator), m = world_values(&both, NULL, discriminator);
    world_close(&both);
    struct neb_step_links give = {.relay = {.give = post, .arg = &mail}},
                          take = {.relay = {.take = fetch, .arg = &mail}};
    world_open(&one, RTD, &give);
    assert_null(neb__work_model(one.work));
    for (int i = 0; i < STEPS; i++) world_step(&one);
    world_assert_same(&one, "generator.", generator, n);
    world_close(&one);
    assert_int_equal(mail.sent, 2 * STEPS);
    world_open(&one, RTD, &take);
    assert_null(neb__work_generator(one.work));
    for (int i = 0; i < STEPS; i++) world_step(&one);
    world_assert_same(&one, NULL, discriminator, m);
    /* nothing more was sent: the step fails and says so; a token that does not exist is refused */
    check_log_quiet();
    struct neb_work_step out;
    assert_status(neb__work_step(one.work, 1e-2f, &out), NEB_ERR_STATE);
    world_close(&one);
    mail.read = 0;
    for (int i = 0; i < 64; i++) mail.sampled[0][i] = 60;
    world_open(&one, RTD, &take);
    assert_status(neb__work_step(one.work, 1e-2f, &out), NEB_ERR_RANGE);
    check_log_restore();
    world_close(&one);
    free(generator);
    free(discriminator);
}

/* The discriminator's gradient reaches a shared table.
 * It never reaches a table to which it learns a difference. */
static void disentangled_embeddings_leave_the_generator_alone(void **state)
{
    (void)state;
    static const char *const how[] = {EMBEDDINGS "separate", EMBEDDINGS "disentangled", EMBEDDINGS "shared"};
    float *values[3];
    int64_t n = 0;
    for (int i = 0; i < 3; i++) {
        struct world w;
        world_open_words(&w, RTD, how[i]);
        for (int k = 0; k < STEPS; k++) world_step(&w);
        values[i] = world_room();
        n = world_values(&w, "generator.", values[i]);
        world_close(&w);
    }
    assert_memory_equal(values[0], values[1], (size_t)n * sizeof(float));
    assert_memory_not_equal(values[0], values[2], (size_t)n * sizeof(float));
    for (int i = 0; i < 3; i++) free(values[i]);
}

static void load(struct neb_model *m, const char *name)
{
    struct neb_model_yaml f;
    char path[300];
    int n;
    world_path(name, path);
    assert_ok(neb__model_yaml_read(path, &f));
    assert_ok(neb__folder_load(&f, m, NULL, true, &n));
    neb__model_yaml_free(&f);
}

static void save_generator(struct world *w, const char *name)
{
    struct neb_model_yaml f;
    char path[300];
    world_path(name, path);
    assert_ok(neb__model_yaml_init(&f));
    assert_ok(neb__folder_describe(&f, "mlm", &w->data.models.generator, &w->job.peft, &w->data.tok_cfg));
    assert_ok(neb__folder_write(&f, path, neb__work_generator(w->work), w->data.tok_path));
    neb__model_yaml_free(&f);
}

/* Both models of the job, read from their folders, measure the same on held-out text as before they were
 * written. A discriminator that starts from a folder has the embeddings of that folder, whatever its
 * generator's table is. */
static void folders_hold_what_was_measured(void **state)
{
    (void)state;
    static const char *const how[] = {EMBEDDINGS "separate", EMBEDDINGS "disentangled", EMBEDDINGS "shared"};
    float *table = world_room(), *sum = world_room(), *base = world_room();
    for (int i = 0; i < 3; i++) {
        struct world w;
        struct neb_work_eval before, after;
        world_open_words(&w, RTD, how[i]);
        for (int k = 0; k < 4 * STEPS; k++) world_step(&w);
        assert_ok(neb__work_eval(w.work, "valid", 0, &before));
        world_save(&w, "found");
        save_generator(&w, "found/generator");
        world_close(&w);
        world_open_words(&w, RTD, how[i]);
        load(neb__work_generator(w.work), "found/generator");
        load(neb__work_model(w.work), "found");
        assert_ok(neb__work_eval(w.work, "valid", 0, &after));
        assert_float_equal(after.loss, before.loss, 1e-5);
        for (int k = 0; k < NEB_OBJECTIVE_METRICS; k++)
            assert_float_equal(after.more[k], before.more[k], 1e-5);
        struct neb_model *m = neb__work_model(w.work);
        assert_ok(neb_param_read(m->token, table));
        if (m->token_base) assert_ok(neb_param_read(m->token_base, base));
        for (int64_t k = 0; m->token_base && k < neb_param_values(m->token); k++) table[k] += base[k];
        world_close(&w);
        if (i != 1) continue;
        world_open_words(&w, "task: rtd\ninit: {from: @/found}\ngenerator: {hidden: 16, ffn: 32}\n", how[i]);
        m = neb__work_model(w.work);
        assert_ok(neb_param_read(m->token, sum));
        assert_ok(neb_param_read(m->token_base, base));
        for (int64_t k = 0; k < neb_param_values(m->token); k++)
            assert_float_equal(sum[k] + base[k], table[k], 1e-5);
        world_close(&w);
    }
    free(table);
    free(sum);
    free(base);
}

/* `peft` holds for each of the two models. */
static void both_models_train_what_was_chosen(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, RTD "peft: {method: frozen, train: \"encoder.*\"}\n", NULL);
    neb_params *ps = neb__work_params(w.work);
    for (int i = 0; i < neb_params_count(ps); i++) {
        const neb_param *p = neb_params_at(ps, i);
        const char *name = neb_param_name(p);
        if (!strncmp(name, "generator.", 10)) name += 10;
        if (neb_param_trainable(p) != !strncmp(name, "encoder.", 8))
            fail_msg("%s is %strained", neb_param_name(p), neb_param_trainable(p) ? "" : "not ");
    }
    world_close(&w);
}

/* ---- held-out text ------------------------------------------------------------------------------------- */

/* Held-out text of two kinds, one after the other: a few batches give the same loss as all of them. */
static void some_batches_stand_for_all(void **state)
{
    (void)state;
    struct world w;
    struct neb_work_eval all, some, more;
    char path[300];
    world_pairs("valid.tsv", 100, 77777);
    snprintf(path, sizeof path, "%s/valid.tsv", world_dir);
    FILE *f = fopen(path, "a");
    assert_non_null(f);
    for (int i = 0; i < 100; i++) fputs("now now now now now\ttree tree tree tree tree\n", f);
    fclose(f);
    world_open(&w, WORLD_TRANSLATOR, NULL);
    for (int i = 0; i < 60; i++) world_step(&w);
    assert_ok(neb__work_eval(w.work, "valid", 0, &all));
    assert_ok(neb__work_eval(w.work, "valid", all.batches / 2, &some));
    assert_ok(neb__work_eval(w.work, "valid", all.batches + 3, &more));
    assert_int_equal(some.batches, all.batches / 2);
    assert_int_equal(more.batches, all.batches);
    assert_true(more.loss == all.loss);
    if (fabs(some.loss / all.loss - 1) > 0.1) fail_msg("%g for %g", some.loss, all.loss);
    world_close(&w);
    world_pairs("valid.tsv", 40, 77777);
}

/* Pairs that are joined have both languages in every batch. Each row counts for one of them. */
static void text_with_nothing_to_predict_has_no_loss(void **state)
{
    (void)state;
    struct world w;
    struct neb_work_eval e;
    char path[300];
    snprintf(path, sizeof path, "%s/valid.tsv", world_dir);
    FILE *f = fopen(path, "w"); /* no token is masked */
    assert_non_null(f);
    fputs("a\tein\n", f);
    fclose(f);
    world_open(&w, WORLD_ENCODER, NULL);
    w.job.train.mask = 1e-9;
    check_log_quiet();
    assert_status(neb__work_eval(w.work, "valid", 0, &e), NEB_ERR_RANGE);
    check_log_restore();
    assert_non_null(strstr(neb_last_error(), "use: valid has no token to predict"));
    world_close(&w);
    world_pairs("valid.tsv", 40, 77777);
}

static char *samples_of(struct world *w)
{
    struct neb_buf b;
    neb__buf_init(&b, 1 << 16);
    assert_ok(neb__work_samples(w->work, "valid", &b));
    assert_ok(neb__buf_append(&b, "", 1));
    return (char *)b.data;
}

static int lines_with(const char *text, const char *label)
{
    int n = 0;
    for (const char *l = text; l; l = strchr(l, '\n'), l = l ? l + 1 : NULL)
        n += !strncmp(l, label, strlen(label));
    return n;
}

/* The value behind the label of the first line that has it. */
static void first_line(const char *text, const char *label, char *out, size_t size)
{
    const char *at = strstr(text, label);
    assert_non_null(at);
    snprintf(out, size, "%.*s", (int)strcspn(at + 13, "\n"), at + 13);
}

/* The share of the words of a text that another one has, too. */
static double known_words(const char *text, const char *among)
{
    int all = 0, known = 0;
    for (const char *w = text; *w; w += strspn(w, " ")) {
        char word[64];
        size_t n = strcspn(w, " ");
        snprintf(word, sizeof word, "%.*s", (int)n, w);
        all++;
        known += strstr(among, word) != NULL;
        w += n;
    }
    return all ? (double)known / all : 0;
}

/* The samples of a model that has learned have the right words; they change no bit of the training. */
static void samples_show_what_was_learned(void **state)
{
    (void)state;
    static const struct {
        const char *job, *label, *reference;
    } kinds[] = {{WORLD_TRANSLATOR, "translation", "reference"}, {WORLD_ENCODER, "filled", "text"}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct world w, other;
        float *values = world_room();
        char made[512], wanted[512];
        world_open(&w, kinds[i].job, NULL);
        world_open(&other, kinds[i].job, NULL);
        char *before = samples_of(&w), *again = samples_of(&w);
        assert_string_equal(before, again); /* the likeliest tokens of the same texts */
        assert_int_equal(lines_with(before, kinds[i].label), 3);
        assert_int_equal(lines_with(before, kinds[i].reference), 3);
        for (int k = 0; k < STEPS; k++) world_step(&w), world_step(&other);
        int64_t n = world_values(&other, NULL, values);
        world_assert_same(&w, NULL, values, n); /* one was sampled, the other not */
        for (int k = 0; k < 300; k++) world_step(&w);
        char *after = samples_of(&w);
        assert_string_not_equal(before, after);
        first_line(after, kinds[i].label, made, sizeof made);
        first_line(after, kinds[i].reference, wanted, sizeof wanted);
        if (known_words(made, wanted) < 0.5) fail_msg("'%s' for '%s'", made, wanted);
        world_close(&w);
        world_close(&other);
        neb__free(before), neb__free(again), neb__free(after);
        free(values);
    }
}

/* Label smoothing belongs to training: held-out text is measured without it. */
static void held_out_text_is_not_smoothed(void **state)
{
    (void)state;
    static const char *const how[] = {"model.label_smoothing=0.2", "model.label_smoothing=0"};
    struct neb_work_eval found[2];
    double loss[2];
    for (int i = 0; i < 2; i++) {
        struct world w;
        world_open_words(&w, WORLD_TRANSLATOR, how[i]);
        assert_ok(neb__work_eval(w.work, "valid", 0, &found[i]));
        loss[i] = world_step(&w);
        world_close(&w);
    }
    assert_true(loss[0] != loss[1]);
    assert_true(found[0].loss == found[1].loss);
}

/* ---- unusual steps ------------------------------------------------------------------------------------- */

static void a_step_may_have_many_micro_batches(void **state)
{
    (void)state;
    struct world w;
    world_open_words(&w, WORLD_ENCODER, "train.micro=150");
    for (int i = 0; i < 2; i++) assert_true(world_step(&w) > 0);
    world_close(&w);
}

/* If few tokens are masked, some batches have no masked token.
 * Such a step is counted, changes nothing and ends nothing. */
static void a_step_may_have_nothing_to_predict(void **state)
{
    (void)state;
    struct world w;
    struct neb_work_step out;
    struct neb_work_eval e;
    int empty = 0;
    float *values = world_room();
    world_open_words(&w, WORLD_ENCODER, "train.mask=0.01 train.tokens=32 train.micro=1");
    for (int i = 0; i < 40; i++) {
        int64_t n = world_values(&w, "", values);
        assert_ok(neb__work_step(w.work, 1e-2f, &out));
        assert_true(out.step == i + 1 && out.empty == out.skipped &&
                    (out.empty ? out.loss == 0 : out.loss > 0));
        if (out.empty) world_assert_same(&w, "", values, n);
        empty += out.empty;
    }
    assert_true(empty > 0 && empty < 40);
    world_close(&w);
    free(values);
    world_open_words(&w, RTD, "train.mask=0.01 train.tokens=32 train.micro=1");
    for (int i = 0; i < 10; i++) assert_true(isfinite(world_step(&w)));
    assert_ok(neb__work_eval(w.work, "valid", 0, &e));
    assert_true(isfinite(e.loss) && rtd_loss(&e) > 0 && e.rows > 0 && e.rows < e.batches);
    world_close(&w);
}

/* ---- translations -------------------------------------------------------------------------------------- */

enum { LINES = 5 };
static const char *const lines[LINES] = {"a dog sees the tree", "now", "two men run here now a red dog",
                                         "the red dog", "green"};

/* `batch` lines at a time; owned texts. */
static void translate(const struct neb_ready *m, int beams, int batch, char *out[LINES])
{
    struct neb_translate_config c = {.beams = beams, .batch = batch, .max_len = 256, .length_penalty = 1};
    struct neb_translator *t;
    assert_ok(neb__translator_open(m, &c, &t));
    assert_ok(neb__translator_translate(t, lines, LINES, out));
    neb__translator_close(t);
}

/* A model that has learned nothing does not know when to end,
 * so its translations are as long as they may be. */
static void batches_change_no_translation(void **state)
{
    (void)state;
    static const int beams[] = {1, 2, 4};
    struct world w;
    struct neb_ready m;
    char path[300];
    world_open_words(&w, WORLD_TRANSLATOR, "model.max_positions=100");
    for (int i = 0; i < 2; i++) world_step(&w);
    world_save(&w, "untrained");
    world_path("untrained", path);
    assert_ok(neb__ready_open(path, NULL, neb__work_device(w.work), &m));
    for (int k = 0; k < 3; k++) {
        char *alone[LINES], *together[LINES];
        translate(&m, beams[k], 1, alone);
        translate(&m, beams[k], LINES, together);
        for (int i = 0; i < LINES; i++) {
            assert_string_equal(alone[i], together[i]);
            neb__free(alone[i]);
            neb__free(together[i]);
        }
    }
    neb__ready_close(&m);
    world_close(&w);
}

/* Copies a model to another folder with MORE rows in its table than its tokenizer has tokens. Each added row
 * is three times some token's row, so it is likelier wherever that token is likely. */
enum { MORE = 9 };

static void widen(const char *from, const char *to, neb_device *device)
{
    struct neb_ready m;
    struct neb_model *wide;
    neb_params *params;
    char path[2][300], tokenizer[400];
    world_path(from, path[0]);
    world_path(to, path[1]);
    assert_ok(neb__ready_open(path[0], NULL, device, &m));
    m.folder.model.vocab += MORE;
    assert_ok(neb_params_create(&params));
    assert_ok(neb__model_create(&m.folder.model, &m.folder.peft, "", NULL, params, &wide));
    assert_ok(neb_params_ready(params, device, 1));
    for (int i = 0; i < neb_params_count(params); i++) {
        neb_param *p = neb_params_at(params, i), *old = neb_params_find(m.params, neb_param_name(p));
        int64_t n = neb_param_values(old), width = m.model->arch.embedding;
        float *values = calloc((size_t)neb_param_values(p), sizeof *values);
        assert_non_null(values);
        assert_ok(neb_param_read(old, values));
        for (int64_t k = n; p == wide->token && k < neb_param_values(p); k++)
            values[k] = 3 * values[k - n + 10 * width];
        assert_ok(neb_param_write(p, values));
        free(values);
    }
    snprintf(tokenizer, sizeof tokenizer, "%s/%s", path[0], m.folder.tokenizer);
    assert_ok(neb__folder_write(&m.folder, path[1], wide, tokenizer));
    neb__model_destroy(wide);
    neb_params_destroy(params);
    neb__ready_close(&m);
}

/* Rows of a table that belong to no token are never chosen:
 * in a translation, by a teacher or by a generator. */
static void rows_without_a_token_are_never_chosen(void **state)
{
    (void)state;
    struct world w;
    struct neb_ready m[2];
    char path[2][300];
    world_open(&w, WORLD_TRANSLATOR, NULL);
    for (int i = 0; i < 10 * STEPS; i++) world_step(&w);
    world_save(&w, "narrow");
    widen("narrow", "wide", neb__work_device(w.work));
    world_path("narrow", path[0]);
    world_path("wide", path[1]);
    for (int i = 0; i < 2; i++) assert_ok(neb__ready_open(path[i], NULL, neb__work_device(w.work), &m[i]));
    assert_int_equal(m[1].model->arch.vocab, m[0].model->arch.vocab + MORE);
    for (int beams = 1; beams <= 4; beams += 3) {
        char *out[2][LINES];
        for (int i = 0; i < 2; i++) translate(&m[i], beams, 3, out[i]);
        for (int i = 0; i < LINES; i++) {
            assert_string_equal(out[0][i], out[1][i]);
            neb__free(out[0][i]);
            neb__free(out[1][i]);
        }
    }
    for (int i = 0; i < 2; i++) neb__ready_close(&m[i]);
    world_close(&w);
    float *values = world_room();
    world_open(&w, WORLD_STUDENT "distill: {teacher: @/narrow, weight: 1}\n", NULL);
    for (int i = 0; i < STEPS; i++) world_step(&w);
    int64_t n = world_values(&w, "", values);
    world_close(&w);
    world_open(&w, WORLD_STUDENT "distill: {teacher: @/wide, weight: 1}\n", NULL);
    for (int i = 0; i < STEPS; i++) world_step(&w);
    world_assert_same(&w, "", values, n);
    world_close(&w);
    free(values);
    world_open(&w, WORLD_ENCODER, NULL);
    world_save(&w, "narrow");
    widen("narrow", "wide", neb__work_device(w.work));
    world_close(&w);
    world_open_words(&w, "task: rtd\ninit: {from: @/wide}\ngenerator: {hidden: 16, embedding: 32, ffn: 32}\n",
                     EMBEDDINGS "shared");
    struct neb_work_eval e;
    for (int i = 0; i < STEPS; i++) world_step(&w);
    assert_ok(neb__work_eval(w.work, "valid", 0, &e));
    assert_true(rtd_loss(&e) > 0);
    world_close(&w);
}

/* ---- going on ------------------------------------------------------------------------------------------ */

static void save_here(struct world *w, const char *folder, int64_t step_number)
{
    struct neb_ckpt_writer *writer;
    struct neb_progress p = {.step = step_number};
    assert_ok(neb__ckpt_writer_create(folder, 1, &writer));
    assert_ok(neb__resume_save(w->work, NULL, writer, &p, NULL, NULL));
    assert_ok(neb__ckpt_writer_close(writer));
}

/* A run that is stopped anywhere and goes on from its checkpoint has the same bits as one that was not
 * stopped: parameters, moments (they show in the next parameters), data and dropout. The test draws points at
 * random and compares two further steps at each. */
static void check_resuming(const char *job, int points)
{
    enum { LENGTH = 60 };
    struct world w;
    struct neb_hash after[LENGTH + 1];
    float *values = world_room();
    bool saved[LENGTH + 1] = {false};
    unsigned seed = 12345;
    for (int i = 0; i < points;) {
        seed = seed * 1103515245 + 12345;
        int at = (int)(seed >> 16) % (LENGTH - 2);
        i += !saved[at];
        saved[at] = true;
    }
    char folder[300];
    world_open(&w, job, NULL);
    for (int i = 0; i <= LENGTH; i++) {
        int64_t n = world_values(&w, "", values);
        assert_ok(neb__hash(values, (size_t)n * sizeof *values, &after[i]));
        snprintf(folder, sizeof folder, "%s/stop-%d", world_dir, i);
        if (saved[i]) save_here(&w, folder, i);
        if (i < LENGTH) world_step(&w);
    }
    world_close(&w);
    for (int i = 0; i < LENGTH; i++) {
        struct neb_progress p;
        struct neb_hash now;
        if (!saved[i]) continue;
        snprintf(folder, sizeof folder, "%s/stop-%d", world_dir, i);
        world_open(&w, job, NULL);
        assert_ok(neb__resume_load(w.work, NULL, folder, &p));
        assert_int_equal(p.step, i);
        for (int k = 0; k <= 2; k++) {
            int64_t n = world_values(&w, "", values);
            assert_ok(neb__hash(values, (size_t)n * sizeof *values, &now));
            if (!neb__hash_equal(&now, &after[i + k]))
                fail_msg("stopped at step %d: other bits %d steps later", i, k);
            if (k < 2) world_step(&w);
        }
        world_close(&w);
    }
    free(values);
}

static void going_on_changes_no_bit(void **state)
{
    (void)state;
    check_resuming(WORLD_TRANSLATOR, 25);
    check_resuming(RTD, 25);
}

static void a_checkpoint_of_another_model_is_refused(void **state)
{
    (void)state;
    struct world w;
    struct neb_progress p;
    char folder[300];
    snprintf(folder, sizeof folder, "%s/other", world_dir);
    world_open(&w, WORLD_TRANSLATOR, NULL);
    save_here(&w, folder, 0);
    world_close(&w);
    world_open(&w, WORLD_STUDENT, NULL);
    check_log_quiet();
    assert_status(neb__resume_load(w.work, NULL, folder, &p), NEB_ERR_CONFIG);
    check_log_restore();
    world_close(&w);
}

/* ---- retrieval ----------------------------------------------------------------------------------------- */

/* Sentence i and its translation share a direction of their own.
 * All sentences of a language share another one. */
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
    assert_ok(neb__retrieve_pairs(a, b, N, WIDTH, &r));
    assert_true(r.forth < 0.5);
    assert_ok(neb__vectors_centre(a, N, WIDTH));
    assert_ok(neb__vectors_centre(b, N, WIDTH));
    assert_ok(neb__retrieve_pairs(a, b, N, WIDTH, &r));
    assert_int_equal(r.n, N);
    assert_true(r.forth == 1 && r.back == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(centring_removes_the_language),
        cmocka_unit_test(generator_and_discriminator_may_live_apart),
        cmocka_unit_test(disentangled_embeddings_leave_the_generator_alone),
        cmocka_unit_test(folders_hold_what_was_measured),
        cmocka_unit_test(both_models_train_what_was_chosen),
        cmocka_unit_test(some_batches_stand_for_all),
        cmocka_unit_test(text_with_nothing_to_predict_has_no_loss),
        cmocka_unit_test(samples_show_what_was_learned),
        cmocka_unit_test(held_out_text_is_not_smoothed),
        cmocka_unit_test(a_step_may_have_many_micro_batches),
        cmocka_unit_test(a_step_may_have_nothing_to_predict),
        cmocka_unit_test(batches_change_no_translation),
        cmocka_unit_test(rows_without_a_token_are_never_chosen),
        cmocka_unit_test(going_on_changes_no_bit),
        cmocka_unit_test(a_checkpoint_of_another_model_is_refused),
    };
    return cmocka_run_group_tests(tests, world_set_up, world_tear_down);
}
