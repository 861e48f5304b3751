/* test_team.c: ranks that share the layers of a model (tensor parallelism) learn what one process learns, with the same
 * dropout; a checkpoint goes from one layout to another and back with the same bits; a rank that computes a NaN makes
 * all skip the step; heads that cannot be shared out are refused. */
#include "check.h"
#include "forked.h"
#include "rig.h"
#include "optim/optimizer.h"
#include "optim/whole.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { RANKS = 2, STEPS = 100, VALUES = 1 << 16 };

#define SIZES "vocab=53 hidden=32 layers=2 heads=4 ffn=64 max_positions=16 init_deviation=0.1 "

static const int lengths[] = {9, 4, 12, 1, 0};
static const int targets[] = {3, 8, 5, 2, 0};

/* A training, and its result in the coordinates of the whole model. */
struct trial {
    const char *family, *options, *peft;
    int steps;
    int64_t n;
    float loss[STEPS];
    float x[VALUES], m[VALUES], v[VALUES];
    float again[3][VALUES]; /* x, m, v after they were loaded and collected again */
    int poisoned;           /* rank that gets a NaN before the last step; -1: none */
    const char *expected;   /* in the message that refuses it */
};

static neb_status train(struct rig *r, struct trial *x, int rank)
{
    struct rig_batch b;
    for (int i = 0; i < x->steps; i++) {
        rig_batch_make(&b, r->model, lengths, r->model->arch.kind == NEB_ENCODER_DECODER ? targets : NULL,
                       1 + (uint32_t)i % 5);
        neb_status status = neb__model_input_load(r->feed, &b.data);
        if (i == x->steps - 1 && rank == x->poisoned) r->params->grad[0] = r->params->value[0] = NAN;
        float loss = 0;
        if (status == NEB_OK) status = rig_step(r, 1e-3f, 3, &loss);
        if (!rank) x->loss[i] = loss;
        rig_batch_free(&b);
        NEB_TRY(status);
    }
    return NEB_OK;
}

/* Parameters and moments of all ranks, at the first one. */
static neb_status collect(struct rig *r, float *x, float *m, float *v)
{
    NEB_TRY(neb__pieces_collect(rig_layout, r->params, true, r->params->value, x));
    return neb_optimizer_save(r->optimizer, m, v);
}

static neb_status run(struct trial *x, int rank)
{
    struct rig r;
    char all[400];
    snprintf(all, sizeof all, SIZES "%s", x->options);
    NEB_TRY(rig_open(&r, x->family, all, x->peft, 1));
    r.optimizer->config.max_norm = 0.05f; /* clips */
    neb_status status = r.params->whole_trainable <= VALUES ? train(&r, x, rank) : NEB_ERR_NOSPACE;
    x->n = r.params->whole_trainable;
    if (status == NEB_OK) status = collect(&r, rank ? NULL : x->x, rank ? NULL : x->m, rank ? NULL : x->v);
    rig_close(&r);
    return status;
}

static int at_rank(struct neb_group *g, void *arg)
{
    static struct neb_layout layout;
    layout = (struct neb_layout){.world = g, .tensor = g, .model = g};
    rig_layout = &layout;
    return run(arg, neb__group_rank(g)) != NEB_OK;
}

static struct trial *trial(const char *family, const char *options, const char *peft)
{
    struct trial *x = forked_memory(sizeof *x);
    *x = (struct trial){.family = family, .options = options, .peft = peft, .steps = STEPS, .poisoned = -1};
    return x;
}

static double distance(const float *a, const float *b, int64_t n)
{
    double difference = 0, length = 0;
    for (int64_t i = 0; i < n; i++) {
        difference += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        length += (double)a[i] * (double)a[i];
    }
    return sqrt(difference / length);
}

/* Muon divides by the norm of its momentum: what sums of another order change is relatively larger. */
static void learns_the_same(const char *family, const char *options, const char *peft)
{
    struct trial *one = trial(family, options, peft), *shared = trial(family, options, peft);
    assert_ok(run(one, 0));
    assert_int_equal(forked_ranks(RANKS, 20, at_rank, shared), 0);
    assert_int_equal(one->n, shared->n);
    /* another mask of a dropout would show in the first loss */
    assert_true(fabsf(one->loss[1] - shared->loss[1]) < 1e-4f * fabsf(one->loss[1]));
    double d = distance(one->x, shared->x, one->n);
    if (!(d < (rig_optimizer == NEB_MUON ? 1e-4 : 1e-5)))
        fail_msg("%s %s: the parameters differ by %g", family, options, d);
    assert_true(distance(one->m, shared->m, one->n) < 1e-2);
    forked_free(one, sizeof *one);
    forked_free(shared, sizeof *shared);
}

/* Rows that are shared as well: the same sums, in another order. */
static void shared_rows_learn_the_same(void **state)
{
    (void)state;
    rig_sequence = true;
    learns_the_same("gpt2", "dropout=0.1 attention_dropout=0.2", NULL);
    learns_the_same("llama", "kv_heads=2 dropout=0.1", NULL);
    learns_the_same("transformer", "dropout=0.1 label_smoothing=0.1", NULL);
    learns_the_same("bert", "recompute=yes dropout=0.1", "method=lora,adapter,prefix lora_on=*");
    rig_sequence = false;
}

static void all_families_learn_the_same(void **state)
{
    (void)state;
    learns_the_same("gpt2", "dropout=0.1 attention_dropout=0.2", NULL);
    learns_the_same("llama", "kv_heads=2 dropout=0.1", NULL);
    learns_the_same("bert", "dropout=0.1 attention_dropout=0.1", NULL);
    learns_the_same("transformer", "dropout=0.1 label_smoothing=0.1", NULL);
    learns_the_same("gpt2", "recompute=yes dropout=0.1", "method=lora,adapter,prefix lora_on=*");
    learns_the_same("llama", "kv_heads=2", "method=lora lora_on=*.attention.q,*.attention.v,*.ffn.up");
}

/* Each member has rows or columns of the matrices that are orthogonalised as a whole: q, k, v, gate, up and the others. */
static void matrices_are_put_together_for_muon(void **state)
{
    (void)state;
    rig_optimizer = NEB_MUON;
    learns_the_same("llama", "kv_heads=2 dropout=0.1", NULL);
    learns_the_same("transformer", "dropout=0.1", NULL);
    rig_optimizer = NEB_ADAMW;
}

/* ---- checkpoints ------------------------------------------------------------------------------------------- */

static neb_status load_and_collect(struct trial *x, bool first)
{
    struct rig r;
    char all[400];
    snprintf(all, sizeof all, SIZES "%s", x->options);
    NEB_TRY(rig_open(&r, x->family, all, x->peft, 1));
    neb_status status = neb__pieces_take(r.params, true, x->x, r.params->value);
    if (status == NEB_OK) status = neb_optimizer_load(r.optimizer, 5, x->m, x->v);
    if (status == NEB_OK)
        status =
            collect(&r, first ? x->again[0] : NULL, first ? x->again[1] : NULL, first ? x->again[2] : NULL);
    rig_close(&r);
    return status;
}

static int again_at_rank(struct neb_group *g, void *arg)
{
    static struct neb_layout layout;
    layout = (struct neb_layout){.world = g, .tensor = g, .model = g};
    rig_layout = &layout;
    return load_and_collect(arg, !neb__group_rank(g)) != NEB_OK;
}

static void checkpoints_fit_layouts(void)
{
    struct trial *x = trial("llama", "kv_heads=2", NULL);
    x->steps = 5;
    assert_int_equal(forked_ranks(RANKS, 20, at_rank, x), 0);
    const float *was[] = {x->x, x->m, x->v};
    for (int ranks = 1; ranks <= 2; ranks++) {
        memset(x->again, 0xff, sizeof x->again);
        if (ranks == 1)
            assert_ok(load_and_collect(x, true));
        else
            assert_int_equal(forked_ranks(ranks, 20, again_at_rank, x), 0);
        for (int i = 0; i < 3; i++) assert_memory_equal(was[i], x->again[i], (size_t)x->n * sizeof(float));
    }
    forked_free(x, sizeof *x);
}

static void checkpoints_fit_every_layout(void **state)
{
    (void)state;
    checkpoints_fit_layouts();
    rig_optimizer = NEB_MUON;
    checkpoints_fit_layouts();
    rig_optimizer = NEB_ADAMW;
}

/* ---- what goes wrong --------------------------------------------------------------------------------------- */

static int poisoned_at_rank(struct neb_group *g, void *arg)
{
    static struct neb_layout layout;
    layout = (struct neb_layout){.world = g, .tensor = g, .model = g};
    rig_layout = &layout;
    return run(arg, neb__group_rank(g)) != NEB_ERR_NONFINITE;
}

static void a_nan_at_one_rank_skips_the_step_at_all(void **state)
{
    (void)state;
    struct trial *x = trial("gpt2", "", NULL);
    x->steps = 3;
    x->poisoned = 1;
    check_log_quiet();
    assert_int_equal(forked_ranks(RANKS, 20, poisoned_at_rank, x), 0);
    check_log_restore();
    forked_free(x, sizeof *x);
}

static int refused_at_rank(struct neb_group *g, void *arg)
{
    static struct neb_layout layout;
    struct trial *x = arg;
    layout = (struct neb_layout){.world = g, .tensor = g, .model = g};
    rig_layout = &layout;
    return run(x, neb__group_rank(g)) != NEB_ERR_CONFIG || !strstr(neb_last_error(), x->expected);
}

static void what_cannot_be_shared_is_refused(void **state)
{
    (void)state;
    static const char *const bad[][2] = {{"hidden=36 heads=3", "heads is 3, which 2 processes"},
                                         {"heads=4 kv_heads=1", "kv_heads is 1, which 2"},
                                         {"ffn=65", "ffn is 65, which 2"}};
    check_log_quiet();
    for (int i = 0; i < 3; i++) {
        struct trial *x = trial("llama", bad[i][0], NULL);
        x->expected = bad[i][1];
        assert_int_equal(forked_ranks(RANKS, 20, refused_at_rank, x), 0);
        forked_free(x, sizeof *x);
    }
    check_log_restore();
}

/* ---- classes ------------------------------------------------------------------------------------------------- */

struct exchanges {
    int64_t rows[8];
    int n;
};

static neb_status note(void *arg, struct neb_class_sums *sums, int64_t n)
{
    struct exchanges *e = arg;
    (void)sums;
    assert_true(e->n < 8);
    e->rows[e->n++] = n;
    return NEB_OK;
}

/* One member has a class more than the other, and its chunks of logits hold fewer rows. */
static void members_exchange_the_same_rows(void **state)
{
    (void)state;
    enum { ROWS = 4096, CLASSES = 16384 };
    static float x[ROWS], w[CLASSES + 1];
    static int32_t target[ROWS];
    struct exchanges seen[2] = {0};
    struct neb_device_config config = {.threads = 1};
    neb_device *d;
    assert_ok(neb_device_open("cpu", &config, &d));
    for (int r = 0; r < 2; r++) {
        struct neb_ctl ctl = {.loss_scale = 1};
        struct neb_class_share share = {r * CLASSES, 2 * CLASSES + 1, r, 2, &seen[r], note};
        struct neb_linear_xent a = {.x = x,
                                    .w = w,
                                    .rows = ROWS,
                                    .in = 1,
                                    .classes = CLASSES + r,
                                    .t = {.target = target, .ce = 1},
                                    .loss = {.ctl = &ctl, .scale = 1},
                                    .type = NEB_F32,
                                    .share = &share};
        assert_ok(d->ops->linear_xent(d->ctx, &a));
    }
    neb_device_close(d);
    assert_true(seen[0].n > 1);
    assert_memory_equal(&seen[0], &seen[1], sizeof seen[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_families_learn_the_same),
        cmocka_unit_test(matrices_are_put_together_for_muon),
        cmocka_unit_test(shared_rows_learn_the_same),
        cmocka_unit_test(checkpoints_fit_every_layout),
        cmocka_unit_test(a_nan_at_one_rank_skips_the_step_at_all),
        cmocka_unit_test(what_cannot_be_shared_is_refused),
        cmocka_unit_test(members_exchange_the_same_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
