/* test_teachers.c: models that learn from other models: from one teacher, from several, and from values to
 * start with.
 *
 * A step whose teacher answers over a link is compared bit by bit with the same step in one process. */
#include "check.h"
#include "base/mem.h"
#include "task/folder.h"
#include "task/on_policy.h"
#include "task/teacher.h"
#include "world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 6 };

/* ---- teachers ------------------------------------------------------------------------------------------ */

static void make_teachers(void)
{
    struct world w;
    world_open(&w, WORLD_ENCODER, NULL);
    for (int i = 0; i < 20; i++) world_step(&w);
    world_save(&w, "encoder");
    world_close(&w);
    world_open(&w, WORLD_TRANSLATOR, NULL);
    for (int i = 0; i < 60; i++) world_step(&w);
    world_save(&w, "teacher");
    for (int i = 0; i < 20; i++) world_step(&w);
    world_save(&w, "second");
    world_close(&w);
    world_open(&w, WORLD_STUDENT, NULL);
    world_save(&w, "small");
    world_close(&w);
    world_open(&w, "task: mlm\ninit: {from: @/encoder}\npeft: {method: adapter}\n", NULL);
    world_save(&w, "adapted");
    world_close(&w);
    world_open(&w, "task: mlm\ninit: {from: @/encoder}\npeft: {method: prefix}\n", NULL);
    world_save(&w, "prefixed");
    world_close(&w);
    world_open_words(&w, WORLD_STUDENT, "train.max_len=16 model.max_positions=16");
    world_save(&w, "short");
    world_close(&w);
    world_pairs("train.tsv", 300, 99); /* for another tokenizer */
    world_open(&w, WORLD_TRANSLATOR "cache: @/foreign.cache\n", NULL);
    world_save(&w, "foreign");
    world_close(&w);
    world_pairs("train.tsv", 400, 1);
}

/* A teacher behind a link. */
static neb_status ask_other(void *arg, const struct neb_batch *b, struct neb_teacher_answer *out)
{
    struct neb_teacher *t = arg;
    return t->ask(t->arg, b, out);
}

/* folders: separated by commas, in world_dir. */
static struct neb_teacher open_teachers(struct world *w, const char *folders, bool logits, int k)
{
    char path[1000] = "", name[64];
    struct neb_teacher t;
    struct neb_model_input_limits limits = {.rows = {256, 256}, .seqs = 128, .targets = 256};
    for (int i = 0; neb__list_part(folders, i, name, sizeof name); i++) {
        size_t at = strlen(path);
        snprintf(path + at, sizeof path - at, "%s%s/%s", i ? ", " : "", world_dir, name);
    }
    struct neb_teacher_config c = {
        .folder = path, .logits = logits, .k = k, .threads = 2, .tok = w->data.tok, .sides = 2};
    assert_ok(neb__teacher_ensemble_open(neb__work_device(w->work), &c, &limits, &t));
    return t;
}

static void a_teacher_may_answer_over_a_link(void **state)
{
    (void)state;
    struct world here, there, helper;
    float *values = world_room();
    world_open(&here, WORLD_STUDENT "distill: {teacher: @/teacher, encoder: @/encoder, weight: 0.8}\n", NULL);
    for (int i = 0; i < STEPS; i++) world_step(&here);
    int64_t n = world_values(&here, "", values);
    world_close(&here);
    world_open(&helper, WORLD_TRANSLATOR, NULL);
    struct neb_teacher logits = open_teachers(&helper, "teacher", true, 16),
                       hidden = open_teachers(&helper, "encoder", false, 16);
    struct neb_step_links links = {.logits = {.k = logits.k, .ask = ask_other, .arg = &logits},
                                   .hidden = {.width = hidden.width, .ask = ask_other, .arg = &hidden}};
    world_open(&there, WORLD_STUDENT "distill: {weight: 0.8}\n", &links);
    for (int i = 0; i < STEPS; i++) world_step(&there);
    world_assert_same(&there, "", values, n);
    world_close(&there);
    logits.close(logits.arg);
    hidden.close(hidden.arg);
    world_close(&helper);
    free(values);
}

/* A student that learns from the teacher alone comes near it: its loss on the targets falls though it never
 * saw them, and the hidden states' loss falls, too. */
static void a_student_learns_from_its_teachers(void **state)
{
    (void)state;
    struct world w;
    struct neb_work_eval before, after;
    struct neb_work_step out, first = {0};
    world_open(
        &w, WORLD_STUDENT "distill: {teacher: @/teacher, encoder: @/encoder, weight: 1, hidden_loss: mse}\n",
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
    world_close(&w);
}

enum { VOCAB = 60 }; /* or fewer */

/* The distribution of a row over the vocabulary, as a student reads it:
 * a token that is not named has the probability 0. */
static void dense(const struct neb_teacher *t, const struct neb_teacher_answer *said, int32_t row,
                  double out[VOCAB])
{
    double sum = 0;
    memset(out, 0, VOCAB * sizeof *out);
    for (int32_t j = 0; j < t->k; j++) {
        int32_t id = said->ids[row * t->k + j];
        if (id < 0) continue;
        assert_true(id < VOCAB && out[id] == 0);
        sum += out[id] = exp(said->logits[row * t->k + j]);
    }
    for (int v = 0; v < VOCAB; v++) out[v] /= sum;
}

/* The mean of several distributions, cut to its k likeliest tokens. */
static void mean_of(double (*p)[VOCAB], int n, int32_t k, double out[VOCAB])
{
    double sum = 0;
    for (int v = 0; v < VOCAB; v++) {
        out[v] = 0;
        for (int i = 0; i < n; i++) out[v] += p[i][v] / n;
    }
    for (int v = 0; v < VOCAB; v++) {
        int larger = 0;
        for (int u = 0; u < VOCAB; u++) larger += fabs(out[u]) > fabs(out[v]);
        if (larger >= k) out[v] = -out[v];
    }
    for (int v = 0; v < VOCAB; v++) sum += out[v] = out[v] > 0 ? out[v] : 0;
    for (int v = 0; v < VOCAB; v++) out[v] /= sum;
}

/* Several teachers give the mean of their answers,
 * over a whole vocabulary and over the likeliest few tokens. */
static void several_teachers_answer_as_one(void **state)
{
    (void)state;
    struct world w;
    struct neb_batches *stream;
    struct neb_batch *b;
    world_open(&w, WORLD_TRANSLATOR, NULL);
    assert_ok(neb__data_stream(&w.data, "train", 0, 1, &stream));
    assert_ok(neb__batches_batch(stream, &b));
    for (int k = 4; k <= VOCAB; k += VOCAB - 4) { /* a few, all */
        struct neb_teacher one[2] = {open_teachers(&w, "teacher", true, k),
                                     open_teachers(&w, "second", true, k)};
        struct neb_teacher both = open_teachers(&w, "teacher,second", true, k);
        struct neb_teacher thrice = open_teachers(&w, "second,teacher,second", true, k);
        double apart = 0;
        for (int batch = 0; batch < 3; batch++) {
            struct neb_teacher_answer said[2], together, weighted;
            assert_ok(neb__batches_next(stream, b));
            for (int i = 0; i < 2; i++) assert_ok(one[i].ask(one[i].arg, b, &said[i]));
            assert_ok(both.ask(both.arg, b, &together));
            assert_ok(thrice.ask(thrice.arg, b, &weighted));
            assert_true(both.k == one[0].k && (k == 4 ? both.k == k : both.k > 40));
            for (int32_t row = 0; row < b->loss.used; row++) {
                double p[3][VOCAB], want[VOCAB], got[VOCAB];
                for (int i = 0; i < 2; i++) dense(&one[i], &said[i], row, p[i]);
                memcpy(p[2], p[1], sizeof p[2]);
                mean_of(p, 2, both.k, want);
                dense(&both, &together, row, got);
                for (int v = 0; v < VOCAB; v++) {
                    apart = fmax(apart, fabs(p[0][v] - p[1][v]));
                    if (fabs(got[v] - want[v]) > 1e-5)
                        fail_msg("k %d, row %d, token %d: %g, not %g", k, row, v, got[v], want[v]);
                }
                mean_of(p, 3, both.k, want);
                dense(&thrice, &weighted, row, got);
                for (int v = 0; v < VOCAB; v++) assert_true(fabs(got[v] - want[v]) <= 1e-5);
            }
        }
        assert_true(apart > 0.05); /* else the mean would test nothing */
        for (int i = 0; i < 2; i++) one[i].close(one[i].arg);
        both.close(both.arg);
        thrice.close(thrice.arg);
    }
    neb__batch_free(b);
    neb__batches_free(stream);
    world_close(&w);
    /* a job that names a list */
    world_open(&w, WORLD_STUDENT "distill: {teacher: [@/teacher, @/second], weight: 1}\n", NULL);
    struct neb_work_step out, first = {0};
    for (int i = 0; i < 150; i++) {
        assert_ok(neb__work_step(w.work, 1e-2f, &out));
        if (!i) first = out;
    }
    assert_true(out.parts[0] < 0.1 * first.parts[0]);
    world_close(&w);
}

#define FOUR  "@/teacher, @/teacher, @/teacher, @/teacher, "
#define EIGHT FOUR FOUR

/* A folder says the kind of its model, and the task must need that kind. */
static void a_start_of_another_kind_is_refused(void **state)
{
    (void)state;
    static const char *const wrong[][2] = {{"causal", "encoder"}, {"causal", "teacher"}, {"mlm", "teacher"}};
    char path[300], says[80];
    struct neb_job j;
    snprintf(path, sizeof path, "%s/other.yaml", world_dir);
    check_log_quiet();
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        FILE *f = fopen(path, "w");
        fprintf(f, "task: %s\ninit:\n  from: %s/%s\n", wrong[i][0], world_dir, wrong[i][1]);
        fclose(f);
        snprintf(says, sizeof says, ":3: task %s needs a model of kind", wrong[i][0]);
        assert_status(neb__job_read(path, NULL, 0, &j), NEB_ERR_CONFIG);
        if (!strstr(neb_last_error(), says)) fail_msg("%s, expected: %s", neb_last_error(), says);
    }
    check_log_restore();
}

static void teachers_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    static const char *const wrong[][2] = {
        {"distill: {teacher: @/encoder}\n", "cannot teach this task"},
        {"distill: {encoder: @/nowhere}\n", "nowhere"},
        {"distill: {teacher: [@/teacher, @/nowhere]}\n", "nowhere"},
        {"distill: {teacher: [@/teacher, @/encoder]}\n", "cannot teach this task"},
        {"distill: {teacher: [" EIGHT EIGHT "@/second]}\n", "at most 16 teachers"},
        {"distill: {teacher: @/short}\n", "16 positions"},
        {"distill: {encoder: @/short}\n", "16 positions"},
        {"init: {from: @/adapted}\n", "adapters"},
        {"init: {from: @/prefixed}\n", "prefixes"},
        {"init: {from: [@/teacher, @/nowhere]}\n", "nowhere"},
        {"init: {from: [@/teacher, @/encoder], match: \"embed.*,encoder.*\"}\n",
         "not have the same parameters"},
        {"init: {from: [@/teacher, @/small]}\n", "in the folder"},
        {"init: {from: [@/teacher, @/foreign]}\n", "not have the same tokenizer"},
        {"tokenizer: {vocab: 50}\ndistill: {teacher: @/teacher}\n",
         "the key 'tokenizer' stands already in line 2"},
    };
    check_log_quiet();
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct world w;
        char path[300], text[1000];
        int at = 0;
        world_open(&w, WORLD_TRANSLATOR, NULL);
        world_close(&w);
        snprintf(path, sizeof path, "%s/job.yaml", world_dir);
        FILE *f = fopen(path, "a");
        for (const char *c = wrong[i][0]; *c; c++)
            at += *c == '@' ? snprintf(text + at, sizeof text - (size_t)at, "%s", world_dir)
                            : (text[at] = *c, 1);
        text[at] = 0;
        fputs(text, f);
        fclose(f);
        int64_t held = neb__mem_held();
        neb_status status = neb__job_read(path, NULL, 0, &w.job);
        if (status == NEB_OK) {
            status = neb__data_prepare(&w.job, &w.data);
            if (status == NEB_OK) {
                status = neb__work_open(&w.data, 0, 1, NULL, &w.work);
                assert_true(status != NEB_OK);
                neb__data_free(&w.data);
            }
            neb__job_free(&w.job);
        }
        assert_true(status != NEB_OK);
        if (!strstr(neb_last_error(), wrong[i][1]))
            fail_msg("%s, expected: %s", neb_last_error(), wrong[i][1]);
        assert_int_equal(neb__mem_held(), held);
    }
    check_log_restore();
}

/* ---- rows of padding ----------------------------------------------------------------------------------- */

struct drawn {
    int64_t tokens, padding;
    int32_t vocab;
};

static neb_status count_drawn(void *arg, const struct neb_batch *b, const struct neb_samples *s)
{
    (void)b;
    struct drawn *d = arg;
    const int32_t *ids = (const int32_t *)s->ids.data;
    for (size_t i = 0; i < s->ids.len / sizeof *ids; i++, d->tokens++) d->padding += ids[i] >= d->vocab;
    return NEB_OK;
}

/* An imported model's table may have more rows than the tokenizer has tokens. Here nearly all are such rows: a student draws
 * none of them into its samples, and a teacher names none in its judgement. */
static void rows_of_padding_are_neither_drawn_nor_judged(void **state)
{
    (void)state;
    enum { TABLE = 1024 };
    struct world w;
    struct neb_own_sampler *sampler;
    struct neb_batches *stream;
    struct neb_batch *b;
    struct neb_teacher_answer said;
    world_open(&w, WORLD_TRANSLATOR, NULL);
    neb__work_close(w.work);
    w.data.models.model.vocab = TABLE;
    assert_ok(neb__work_open(&w.data, 0, 1, NULL, &w.work));
    w.job.distill.on_policy = 1; /* for the sampler alone: a work of one site refuses it */
    w.job.distill.lag = 1;
    struct drawn drawn = {.vocab = neb__tok_vocab(w.data.tok)};
    assert_true(drawn.vocab <= VOCAB && neb__work_model(w.work)->arch.vocab == TABLE);
    world_save(&w, "padded");
    assert_ok(neb__own_sampler_open(&w.data, neb__work_device(w.work), neb__work_model(w.work), 0, &sampler));
    for (int i = 0; i < 3; i++) assert_ok(neb__own_sampler_step(sampler, count_drawn, &drawn));
    neb__own_sampler_close(sampler);
    assert_true(drawn.tokens > 50);
    assert_int_equal(drawn.padding, 0);

    struct neb_teacher t = open_teachers(&w, "padded", true, 16);
    assert_ok(neb__data_stream(&w.data, "train", 0, 1, &stream));
    assert_ok(neb__batches_batch(stream, &b));
    assert_ok(neb__batches_next(stream, b));
    assert_ok(t.ask(t.arg, b, &said));
    assert_true(t.k == 16 && b->loss.used > 0);
    for (int32_t i = 0; i < b->loss.used * t.k; i++) assert_in_range(said.ids[i], 0, drawn.vocab - 1);
    t.close(t.arg);
    neb__batch_free(b);
    neb__batches_free(stream);
    world_close(&w);
}

/* ---- where parameters start ---------------------------------------------------------------------------- */

static void lora_comes_along_merged(void **state)
{
    (void)state;
    struct world w;
    struct neb_work_eval with, without, merged;
    world_open(&w, "task: mlm\ninit: {from: @/encoder}\npeft: {method: lora, lora_on: \"encoder.*\"}\n",
               NULL);
    assert_ok(neb__work_eval(w.work, "valid", 0, &without));
    for (int i = 0; i < 30; i++) world_step(&w);
    assert_ok(neb__work_eval(w.work, "valid", 0, &with));
    assert_true(fabs(with.loss - without.loss) > 2e-3);
    world_save(&w, "tuned");
    world_close(&w);
    world_open(&w, "task: mlm\ninit: {from: @/tuned}\n", NULL);
    assert_ok(neb__work_eval(w.work, "valid", 0, &merged));
    assert_true(fabs(merged.loss - with.loss) < 2e-5);
    world_close(&w);
}

/* A model may start from a folder with adapters if it has them, too,
 * or if it takes nothing that they changed. */
static void adapters_come_along_as_adapters(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, "task: mlm\ninit: {from: @/adapted}\npeft: {method: adapter}\n", NULL);
    world_close(&w);
    world_open(&w, WORLD_TRANSLATOR "init: {from: @/adapted, match: \"embed.*\"}\n", NULL);
    world_close(&w);
}

/* A start from several folders takes the mean of each value. */
static void a_mean_of_several_is_started_from(void **state)
{
    (void)state;
    struct world w;
    float *a = world_room(), *b = world_room(), *mean = world_room();
    world_open(&w, "task: translate\ninit: {from: @/teacher}\n", NULL);
    int64_t n = world_values(&w, "", a);
    world_close(&w);
    world_open(&w, "task: translate\ninit: {from: @/second}\n", NULL);
    assert_int_equal(world_values(&w, "", b), n);
    assert_memory_not_equal(a, b, (size_t)n * sizeof *a);
    world_close(&w);
    world_open(&w, "task: translate\ninit: {from: [@/teacher, @/second, @/second]}\n", NULL);
    assert_int_equal(world_values(&w, "", mean), n);
    for (int64_t i = 0; i < n; i++)
        if (fabsf(mean[i] - (a[i] + 2 * b[i]) / 3) > 1e-6f * (1 + fabsf(mean[i])))
            fail_msg("value %d: %g, not the mean of %g and twice %g", (int)i, mean[i], a[i], b[i]);
    world_close(&w);
    free(a);
    free(b);
    free(mean);
}

/* What no folder has begins with the same values beside one folder and beside the mean of two, in few bits as well. */
static void what_a_mean_lacks_is_drawn(void **state)
{
    (void)state;
    struct world w;
    float *one = world_room(), *mean = world_room();
    world_open(&w, "task: translate\ninit: {from: @/encoder}\npeft: {method: adapter, frozen: int8}\n", NULL);
    const int64_t n = world_values(&w, "decoder.", one);
    world_close(&w);
    assert_true(n > 1000);
    world_open(&w,
               "task: translate\ninit: {from: [@/encoder, @/encoder]}\n"
               "peft: {method: adapter, frozen: int8}\n",
               NULL);
    assert_int_equal(world_values(&w, "decoder.", mean), n);
    for (int64_t i = 0; i < n; i++) assert_true(mean[i] == one[i]);
    world_close(&w);
    free(one);
    free(mean);
}

/* A translation model whose encoder starts from a BERT-like one computes the same hidden states in it. */
static void an_encoder_starts_from_another(void **state)
{
    (void)state;
    struct world w;
    struct neb_ready old;
    world_open(&w,
               "task: translate\ninit: {from: @/encoder}\npeft: {method: adapter, train: \"decoder.*\"}\n",
               NULL);
    struct neb_model *m = neb__work_model(w.work);
    char path[300];
    snprintf(path, sizeof path, "%s/encoder", world_dir);
    assert_ok(neb__ready_open(path, "none", neb__work_device(w.work), &old));
    assert_int_equal(m->encoder.count, 2);
    assert_int_equal(m->arch.hidden, 32);
    float *a = world_room(), *b = world_room();
    static const char *const names[] = {"embed.token.weight", "encoder.layers.1.ffn.in.weight"};
    for (int i = 0; i < 2; i++) {
        neb_param *p = neb_params_find(neb__work_params(w.work), names[i]);
        assert_non_null(p);
        assert_false(neb_param_trainable(p));
        assert_ok(neb_param_read(p, a));
        assert_ok(neb_param_read(neb_params_find(old.params, names[i]), b));
        assert_memory_equal(a, b, (size_t)neb_param_values(p) * sizeof *a);
    }
    assert_ok(neb_param_read(m->encoder.position, a)); /* the folder's plus the first segment's row */
    assert_ok(neb_param_read(old.model->encoder.position, b));
    float *segment = b + 32 * 32;
    assert_ok(neb_param_read(old.model->encoder.type, segment));
    for (int i = 0; i < 32 * 32; i++) assert_true(a[i] == b[i] + segment[i % 32]);
    assert_true(world_step(&w) > 0);
    neb__ready_close(&old);
    world_close(&w);
    free(a);
    free(b);
}

static float rounded(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Positions that are kept in BF16 alone are rounded when the segment is in them, and not before. */
static void a_folded_segment_is_rounded_once(void **state)
{
    (void)state;
    enum { ROW = 32, VALUES = 32 * ROW };
    struct world w;
    struct neb_ready old;
    neb_device *cpu;
    char path[300];
    world_path("encoder", path);
    assert_ok(neb_device_open("cpu", NULL, &cpu));
    assert_ok(neb__ready_open(path, "none", cpu, &old));
    world_open_words(&w,
                     "task: translate\ninit: {from: @/encoder}\n"
                     "peft: {method: adapter, train: \"decoder.*\", frozen: bf16}\n",
                     "train.dtype=bf16");
    float *a = world_room(), *b = world_room(), *segment = b + VALUES;
    assert_ok(neb_param_read(neb__work_model(w.work)->encoder.position, a));
    assert_ok(neb_param_read(old.model->encoder.position, b));
    assert_ok(neb_param_read(old.model->encoder.type, segment));
    for (int i = 0; i < VALUES; i++) assert_true(a[i] == rounded(b[i] + segment[i % ROW]));
    world_close(&w);
    neb__ready_close(&old);
    neb_device_close(cpu);
    free(a);
    free(b);
}

static int set_up(void **state)
{
    int failed = world_set_up(state);
    make_teachers();
    return failed;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_teacher_may_answer_over_a_link),
        cmocka_unit_test(a_student_learns_from_its_teachers),
        cmocka_unit_test(several_teachers_answer_as_one),
        cmocka_unit_test(a_start_of_another_kind_is_refused),
        cmocka_unit_test(teachers_that_do_not_fit_are_refused),
        cmocka_unit_test(rows_of_padding_are_neither_drawn_nor_judged),
        cmocka_unit_test(lora_comes_along_merged),
        cmocka_unit_test(adapters_come_along_as_adapters),
        cmocka_unit_test(a_mean_of_several_is_started_from),
        cmocka_unit_test(what_a_mean_lacks_is_drawn),
        cmocka_unit_test(a_folded_segment_is_rounded_once),
        cmocka_unit_test(an_encoder_starts_from_another),
    };
    return cmocka_run_group_tests(tests, set_up, world_tear_down);
}
