/* test_private_ranks.c: private steps (privacy.unit: sample) by several ranks. With the same keys they give the bits of one process,
 * under every layout that is allowed; a step that is repeated gives the same bits and the same mark; ranks that draw different samples, or of
 * which one fails, make no step. */
#include "check.h"
#include "far.h"
#include "forked.h"
#include "optim/optimizer.h"
#include "privacy/ledger.h"
#include "privacy/step_noise.h"
#include "tensor/params.h"
#include "world.h"

#include <string.h>

enum { STEPS = 4, MOST = 1 << 17, PATIENCE = 600 /* s: no rank is late */ };

#define JOB                                                                                          \
    "task: mlm\nmodel: {family: bert, hidden: 32, layers: 2, heads: 2, ffn: 32, max_positions: 32, " \
    "dropout: 0.1}\n"                                                                                \
    "privacy: {unit: sample, epsilon: 0, noise: 0.7, samples: 20, delta: 1e-3}\n"

/* What a trial shows, in memory that its ranks share. */
struct trial {
    struct world *w;
    int wrong_key;    /* 1 + the rank that has another key; 0: none */
    int without_key;  /* likewise one that has no key */
    int64_t n;        /* values */
    int64_t steps[8]; /* made, by rank */
    neb_status last[8];
    struct neb_hash mark[STEPS];
    float value[MOST];
};

static struct neb_step_key key_of(int step)
{
    struct neb_step_key k;
    memset(k.b, 17 * step + 3, sizeof k.b);
    return k;
}

static neb_status make_steps(struct neb_work *work, int rank, struct trial *x)
{
    for (int i = 0; i < STEPS; i++) {
        struct neb_work_step out;
        struct neb_step_key key = key_of(i);
        if (x->wrong_key == rank + 1) key.b[5] ^= 1;
        if (x->without_key != rank + 1) neb__work_set_key(work, &key);
        NEB_TRY(neb__work_step(work, 1e-2f, &out));
        x->steps[rank]++;
        if (!rank) x->mark[i] = out.mark;
    }
    return NEB_OK;
}

static neb_status try_out(struct neb_group *g, struct trial *x)
{
    struct neb_layout layout = {.world = g, .data = g};
    struct neb_work *work;
    const int rank = neb__group_rank(g);
    NEB_TRY(neb__work_open_ranks(&x->w->data, 0, 1, NULL, g ? &layout : NULL, &work));
    neb_status status = neb__work_open_private(work);
    if (status == NEB_OK) status = make_steps(work, rank, x);
    if (status == NEB_OK && !rank) {
        const neb_params *ps = neb__work_params(work);
        x->n = ps->trainable_values;
        if (x->n <= MOST) memcpy(x->value, ps->value, (size_t)x->n * sizeof *x->value);
    }
    x->last[rank] = status;
    neb__work_close(work);
    return NEB_OK;
}

static int at_rank(struct neb_group *g, void *arg)
{
    return try_out(g, arg) != NEB_OK;
}

typedef unsigned run_ranks(int ranks, double timeout_s, int (*fn)(struct neb_group *g, void *arg), void *arg);

static struct trial *trained_by(run_ranks *run, int ranks, const char *words)
{
    struct trial *x = forked_memory(sizeof *x);
    struct world w;
    world_open_words(&w, JOB, words);
    x->w = &w;
    if (ranks == 1)
        assert_ok(try_out(NULL, x));
    else
        assert_int_equal(0, run(ranks, PATIENCE, at_rank, x));
    for (int r = 0; r < ranks; r++) {
        assert_status(x->last[r], NEB_OK);
        assert_int_equal(STEPS, x->steps[r]);
    }
    assert_true(x->n > 1000 && x->n <= MOST);
    world_close(&w);
    return x;
}

static struct trial *trained(int ranks, const char *words)
{
    return trained_by(forked_ranks, ranks, words);
}

static void assert_equal_trials(const struct trial *a, const struct trial *b, const char *what)
{
    assert_int_equal(a->n, b->n);
    for (int i = 0; i < STEPS; i++)
        if (!neb__hash_equal(&a->mark[i], &b->mark[i]))
            fail_msg("%s: another result in step %d", what, i + 1);
    for (int64_t i = 0; i < a->n; i++)
        if (memcmp(&a->value[i], &b->value[i], sizeof *a->value))
            fail_msg("%s: value %lld is %.9g, not %.9g", what, (long long)i, (double)b->value[i],
                     (double)a->value[i]);
}

static void any_number_of_ranks_gives_the_bits_of_one(void **state)
{
    (void)state;
    static const struct {
        int ranks;
        const char *words;
    } layouts[] = {{2, "parallel.data=2 train.micro=1"},
                   {3, "parallel.data=3"},
                   {2, "parallel.data=2 parallel.zero=1"},
                   {4, "parallel.data=4 parallel.zero=1"}};
    struct trial *one = trained(1, "train.micro=1");
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        struct trial *x = trained(layouts[i].ranks, layouts[i].words);
        assert_equal_trials(one, x, layouts[i].words);
        forked_free(x, sizeof *x);
    }
    for (int zero = 0; zero < 2; zero++) { /* ranks on several machines */
        struct trial *x =
            trained_by(far_ranks, 3, zero ? "parallel.data=3 parallel.zero=1" : "parallel.data=3");
        assert_equal_trials(one, x, zero ? "far, zero 1" : "far");
        forked_free(x, sizeof *x);
    }
    struct trial *again = trained(1, "train.threads=2"); /* a step that is made again */
    assert_equal_trials(one, again, "made again");
    forked_free(again, sizeof *again);
    struct trial *other = trained(1, "seed=7"); /* other sums under the same keys: other marks */
    for (int i = 0; i < STEPS; i++) assert_false(neb__hash_equal(&one->mark[i], &other->mark[i]));
    forked_free(other, sizeof *other);
    struct trial *muon = trained(1, "train.optimizer=muon"),
                 *muons = trained(2, "train.optimizer=muon parallel.data=2");
    assert_equal_trials(muon, muons, "Muon");
    forked_free(muon, sizeof *muon);
    forked_free(muons, sizeof *muons);
    forked_free(one, sizeof *one);
}

/* Another draw at one rank would count a sample twice. A rank that fails does not leave the others waiting. */
static void ranks_that_do_not_agree_make_no_step(void **state)
{
    (void)state;
    struct world w;
    for (int way = 0; way < 2; way++) {
        struct trial *x = forked_memory(sizeof *x);
        world_open_words(&w, JOB, "parallel.data=2");
        x->w = &w;
        x->wrong_key = way ? 0 : 2;
        x->without_key = way ? 2 : 0;
        check_log_quiet();
        assert_int_equal(0, forked_ranks(2, PATIENCE, at_rank, x));
        check_log_restore();
        for (int r = 0; r < 2; r++) {
            assert_int_equal(0, x->steps[r]);
            assert_status(x->last[r], way ? NEB_ERR_STATE : NEB_ERR_UNSUPPORTED);
        }
        world_close(&w);
        forked_free(x, sizeof *x);
    }
}

/* A key serves for one step. */
static void a_step_needs_a_key_of_its_own(void **state)
{
    (void)state;
    struct world w;
    struct neb_work_step out;
    const struct neb_step_key key = key_of(0);
    world_open(&w, JOB, NULL);
    assert_ok(neb__work_open_private(w.work));
    check_log_quiet();
    assert_status(neb__work_step(w.work, 1e-2f, &out), NEB_ERR_STATE);
    neb__work_set_key(w.work, &key);
    assert_ok(neb__work_step(w.work, 1e-2f, &out));
    assert_status(neb__work_step(w.work, 1e-2f, &out), NEB_ERR_STATE);
    check_log_restore();
    world_close(&w);
}

/* Keys, draws and noise follow from the step's key, and no two of them are alike. */
static void keys_differ_in_everything(void **state)
{
    (void)state;
    struct neb_step_key secret = key_of(0), salt = key_of(1), other = key_of(2), a, b, c;
    struct neb_hash digest[2] = {{{1}}, {{2}}}, root, swapped, mark;
    assert_ok(neb__step_key_of(&secret, &salt, &a));
    assert_ok(neb__step_key_of(&secret, &salt, &b));
    assert_memory_equal(&a, &b, sizeof a);
    assert_ok(neb__step_key_of(&secret, &other, &b));
    assert_ok(neb__step_key_of(&other, &salt, &c));
    assert_memory_not_equal(&a, &b, sizeof a);
    assert_memory_not_equal(&a, &c, sizeof a);
    assert_ok(neb__step_root(&a, digest, 2, &root));
    assert_ok(neb__step_mark(&a, digest, 2, &mark));
    assert_false(neb__hash_equal(&root, &mark));
    assert_ok(neb__step_root(&a, (struct neb_hash[]){digest[1], digest[0]}, 2, &swapped));
    assert_false(neb__hash_equal(&root, &swapped));

    struct neb_noise *noise;
    int64_t v[4][64] = {{0}};
    assert_ok(neb__noise_create(1e6, &noise));
    assert_ok(neb__step_noise(noise, &root, 0, v[0], 64));
    assert_ok(neb__step_noise(noise, &root, 0, v[1], 64));
    assert_ok(neb__step_noise(noise, &root, 1, v[2], 64));
    assert_ok(neb__step_noise(noise, &swapped, 0, v[3], 64));
    neb__noise_free(noise);
    assert_memory_equal(v[0], v[1], sizeof v[0]);
    for (int k = 2; k < 4; k++)
        for (int i = 0; i < 64; i++) assert_true(v[0][i] != v[k][i] || !v[0][i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_ranks_gives_the_bits_of_one),
        cmocka_unit_test(ranks_that_do_not_agree_make_no_step),
        cmocka_unit_test(a_step_needs_a_key_of_its_own),
        cmocka_unit_test(keys_differ_in_everything),
    };
    return cmocka_run_group_tests(tests, world_set_up, world_tear_down);
}
