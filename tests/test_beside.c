/* test_beside.c: copies of a model on several machines add up their gradients during the backward pass, and gather parameters before
 * they are read. The bits are those of exchanges that are waited for, and of ranks on one machine; a rank that fails, dies or hangs
 * in the middle of them is named. GPUs do the same inside their recordings. */
#include "optim/beside.h"
#include "check.h"
#include "fake_gpu.h"
#include "far.h"
#include "forked.h"
#include "group/pretend.h"
#include "optim/optimizer.h"
#include "tensor/partition.h"

#include <nebula/log.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    RANKS = 3,
    MICROS = 6,
    ROWS = 6,
    WIDE = 96,
    LAYERS = 6,
    WORDS = 60,
    STEPS = 5, /* the third one is recorded */
    BUCKET = 5000,
    TIMEOUT = 25
};

struct net {
    neb_device *dev;
    neb_params *ps;
    neb_tape *tape;
    neb_optimizer *opt;
    neb_param *table, *w[LAYERS], *b[LAYERS], *unused;
    neb_buffer *ids, *target;
};

struct micro {
    struct net *net;
    int sample;
    bool fails, half; /* half: the last layers are not reached */
};

/* The table is used at both ends: its gradient is the last one. */
static void model(neb_tape *t, void *arg)
{
    const struct micro *m = arg;
    const struct net *n = m->net;
    neb_param *table = n->table;
    neb_tensor *ids = neb_input(t, n->ids, NEB_I32, 1, (int64_t[]){ROWS});
    neb_tensor *target = neb_input(t, n->target, NEB_I32, 1, (int64_t[]){ROWS});
    neb_tensor *x = neb_op_embed(t, 1, &table, &ids, 1);
    for (int i = 0; i < (m->half ? LAYERS / 2 : LAYERS); i++)
        x = neb_op_add(t, x, neb_op_linear(t, x, n->w[i], n->b[i], NEB_ACT_GELU));
    struct neb_target_spec goal = {.target = target};
    struct neb_loss_spec loss = {0};
    neb_loss_linear_xent(t, x, n->table, NULL, &goal, &loss);
}

static neb_status load(void *arg)
{
    const struct micro *m = arg;
    int32_t id[ROWS], target[ROWS];
    if (m->fails) return neb__fail(NEB_ERR_IO, "this micro-batch cannot be read");
    for (int i = 0; i < ROWS; i++) {
        id[i] = (m->sample * 37 + i * 11) % WORDS;
        target[i] = (id[i] * 7 + 3) % WORDS;
    }
    NEB_TRY(neb_buffer_upload(m->net->ids, id, sizeof id));
    return neb_buffer_upload(m->net->target, target, sizeof target);
}

static neb_param *add(neb_params *ps, const char *name, int ndim, int64_t rows, int64_t cols)
{
    return neb_params_add(
        ps, &(struct neb_param_spec){
                .name = name, .ndim = ndim, .shape = {rows, cols}, .init = NEB_INIT_NORMAL, .scale = 0.05f});
}

struct trial {
    int zero;
    bool behind, half;
    bool gpu, graphs, late; /* late: sums are made in the join */
    bool tiny;              /* a bucket has one value */
    bool shared, unsized;   /* all ranks compute on one GPU; no size of a bucket is named */
    bool changes;           /* one of the later steps adds up behind its runs */
    bool breaks;            /* a recording of the rank that is hurt fails */
    int hurt;               /* the rank that is, or -1 */
    int how;                /* a signal, or 0: it fails */
    int at;                 /* … when it has begun this many sums, of one step */
    int early; /* sums that the first rank had begun before its last backward pass was over, in the last step */
    int all;   /* … and altogether */
    int launches;
    int gathers;     /* at most so many were under way at once */
    int64_t room[2]; /* bytes of the arena: of a step, of a run that does not go backwards */
    float norm[STEPS];
    float result[]; /* the first rank's parameters */
};

static struct trial *present;
static struct neb_layout layout;
static int seen; /* sums begun when the tape made its last call */

static void beat(void *g)
{
    neb__group_beat(g);
    seen = present && present->gpu ? fake_gpu_beside() : far_sums();
}

/* A CPU that behaves like a GPU. */
static void become_gpu(struct net *n, struct neb_group *g, const struct trial *x)
{
    static struct neb_device_ops ops;
    fake_library.device = x->shared ? 0 : neb__group_rank(g);
    fake_library.records = true;
    fake_library.late = x->late;
    fake_library.breaks = x->breaks && neb__group_rank(g) == x->hurt;
    fake_gpu_wrap(n->dev, &ops);
}

static neb_status open_net(struct net *n, struct neb_group *g, const struct trial *x)
{
    char name[32];
    struct neb_optimizer_config c = neb_optimizer_defaults();
    c.max_norm = 0.01f; /* clips */
    NEB_TRY(neb_device_open("cpu", &(struct neb_device_config){.threads = 1}, &n->dev));
    if (x->gpu) become_gpu(n, g, x);
    NEB_TRY(neb_params_create(&n->ps));
    n->table = add(n->ps, "embed.weight", 2, WORDS, WIDE);
    for (int i = 0; i < LAYERS; i++) {
        snprintf(name, sizeof name, "layers.%d.weight", i);
        n->w[i] = add(n->ps, name, 2, WIDE, WIDE);
        snprintf(name, sizeof name, "layers.%d.bias", i);
        n->b[i] = add(n->ps, name, 1, WIDE, 1);
    }
    n->unused = add(n->ps, "unused", 1, 1000, 1);
    neb_params_trainable(n->ps, "layers.2.*", false);
    NEB_TRY(neb__group_attach(g, n->dev->ops, n->dev->ctx));
    if (layout.data != g) layout = (struct neb_layout){.world = g, .data = g};
    NEB_TRY(neb__ranks_partition(n->ps, &layout, x->zero));
    NEB_TRY(neb_params_ready(n->ps, n->dev, 1));
    NEB_TRY(neb_tape_create(n->dev, n->ps, &n->tape));
    neb__tape_on_call(n->tape, beat, g);
    neb_tape_graphs(n->tape, x->graphs);
    struct neb_state_place place = {.layout = &layout, .zero = x->zero, .sums = x->unsized ? 0 : BUCKET};
    if (x->tiny) place.sums = 1;
    NEB_TRY(neb__optimizer_create(n->dev, n->ps, &c, &place, &n->opt));
    NEB_TRY(neb_buffer_create(n->dev, ROWS * sizeof(int32_t), &n->ids));
    return neb_buffer_create(n->dev, ROWS * sizeof(int32_t), &n->target);
}

static void close_net(struct net *n)
{
    neb_buffer_destroy(n->ids);
    neb_buffer_destroy(n->target);
    neb_optimizer_destroy(n->opt);
    neb_tape_destroy(n->tape);
    neb_params_destroy(n->ps);
    neb_device_close(n->dev);
}

static neb_status one_step(struct net *n, struct neb_group *g, const struct trial *x, int step, float *norm)
{
    struct micro all[MICROS];
    struct neb_micro m[MICROS];
    struct neb_step_info info;
    const int rank = neb__group_rank(g);
    for (int i = 0; i < MICROS; i++) {
        all[i] = (struct micro){n, step * MICROS + i, .half = x->half && i == MICROS - 1};
        all[i].fails = rank == x->hurt && !x->how && !x->breaks && step && i >= RANKS;
        m[i] = (struct neb_micro){load, i % RANKS == rank ? model : NULL, &all[i], 1 + all[i].half, ROWS};
    }
    NEB_TRY(neb_train_step(n->opt, n->tape, m, MICROS, 1e-2f, 1, NULL, &info));
    *norm = info.grad_norm;
    return NEB_OK;
}

static neb_status rooms(struct net *n, int64_t *room)
{
    struct neb_memory memory;
    struct micro m = {n, 0, .half = false};
    neb_tape_memory(n->tape, &memory);
    room[0] = memory.planned;
    NEB_TRY(neb_tape_run(n->tape, &(struct neb_run){.fn = model, .arg = &m, .key = 9}));
    neb_tape_memory(n->tape, &memory);
    room[1] = memory.planned;
    return NEB_OK;
}

static int train(struct neb_group *g, void *arg)
{
    struct net n = {0};
    struct trial *x = present = arg;
    const bool first = !neb__group_rank(g);
    if (open_net(&n, g, x) != NEB_OK) return 1;
    for (int i = 0; i < STEPS; i++) {
        float norm;
        neb__beside_behind(n.opt, x->behind || (x->changes && i == STEPS - 2));
        const int before = x->gpu ? fake_gpu_beside() : far_sums();
        if (one_step(&n, g, x, i, &norm) != NEB_OK) return 2;
        if (!first) continue;
        x->norm[i] = norm;
        x->early = seen - before;
        x->all = (x->gpu ? fake_gpu_beside() : far_sums()) - before;
    }
    if (first) x->launches = fake_gpu_launches();
    int64_t room[2];
    if (rooms(&n, room) != NEB_OK) return 3;
    if (first) memcpy(x->room, room, sizeof room);
    if (first) x->gathers = far_gathers();
    float *to = first ? x->result : NULL;
    if (x->zero == 3) return neb__ranks_exchange_values(&layout, n.ps, true, false, to) != NEB_OK;
    if (first) memcpy(to, n.ps->value, (size_t)n.ps->all_values * sizeof *to);
    return 0;
}

/* ---- equal bits ---------------------------------------------------------------------------------------------- */

enum { ROOM = 4 << 20 };

static struct trial *new_trial(int zero, bool behind)
{
    struct trial *x = forked_memory(ROOM);
    x->zero = zero;
    x->behind = behind;
    x->hurt = -1;
    return x;
}

static void same(const struct trial *a, const struct trial *b)
{
    assert_memory_equal(a->norm, b->norm, sizeof a->norm);
    assert_memory_equal(a->result, b->result, ROOM - sizeof *a);
    assert_true(a->norm[0] > 0.01f);
}

static void compare(bool half)
{
    struct trial *near = new_trial(0, false);
    near->half = half;
    assert_int_equal(forked_ranks(RANKS, 60, train, near), 0);
    for (int zero = 0; zero < 2; zero++) {
        for (int behind = 0; behind < 2; behind++) {
            struct trial *x = new_trial(zero, behind);
            x->half = half;
            assert_int_equal(far_ranks(RANKS, TIMEOUT, train, x), 0);
            same(near, x);
            assert_true(behind ? x->early == 0 : x->early > 3);
            assert_true(x->all > x->early); /* the table comes last */
            forked_free(x, ROOM);
        }
    }
    forked_free(near, ROOM);
}

static void sums_beside_are_the_same_bits(void **state)
{
    (void)state;
    compare(false);
    compare(true); /* the last micro-batch of one rank does not reach all layers */
}

/* A rehearsal of the first rank of three takes the same memory. */
static void rehearse(const struct trial *real, bool several)
{
    struct net n = {0};
    float norm;
    int64_t room[2];
    struct trial x = {.zero = 3, .hurt = -1};
    const struct neb_layout_sizes three = {RANKS, 1, 1};
    assert_ok(neb__layout_pretend(&three, &(struct neb_layout_place){.several = several}, false, &layout));
    assert_ok(open_net(&n, layout.data, &x));
    assert_ok(one_step(&n, layout.data, &x, 0, &norm));
    assert_ok(rooms(&n, room));
    assert_memory_equal(room, real->room, sizeof room);
    close_net(&n);
    neb__layout_unpretend(&layout);
    layout = (struct neb_layout){0};
}

static void parameters_are_gathered_ahead(void **state)
{
    (void)state;
    struct trial *near = new_trial(3, false), *x = new_trial(3, false);
    assert_int_equal(forked_ranks(RANKS, 60, train, near), 0);
    assert_int_equal(far_ranks(RANKS, TIMEOUT, train, x), 0);
    same(near, x);
    assert_int_equal(x->gathers, 1 + NEB_UNITS_AHEAD);
    rehearse(near, false);
    rehearse(x, true);
    /* two layers more are in memory at a time; a step holds as many without that, where it turns back */
    const int64_t layer = (WIDE + 1) * WIDE * (int64_t)sizeof(float);
    assert_true(x->room[1] > near->room[1] + layer);
    for (int i = 0; i < 2; i++) assert_true(x->room[i] <= near->room[i] + NEB_UNITS_AHEAD * layer + 4096);
    forked_free(near, ROOM);
    forked_free(x, ROOM);
}

/* ---- GPUs ---------------------------------------------------------------------------------------------------- */

static struct trial *on_gpus(int zero, bool behind, bool graphs, bool late, bool half)
{
    struct trial *x = new_trial(zero, behind);
    x->gpu = true;
    x->graphs = graphs;
    x->late = late;
    x->half = half;
    assert_int_equal(forked_ranks(RANKS, 60, train, x), 0);
    return x;
}

/* Against sums of the whole slab behind the backward pass, with nothing recorded. */
static void compare_on_gpus(int zero, bool half)
{
    struct trial *old = on_gpus(zero, true, false, false, half);
    assert_int_equal(old->all, 0);
    assert_int_equal(old->launches, 0);
    for (int way = 0; way < 6; way++) {
        const bool graphs = way % 2, late = way / 2 == 1, behind = way / 2 == 2;
        struct trial *x = on_gpus(zero, behind, graphs, late, half);
        same(old, x);
        /* the two micro-batches of each of the last three steps */
        assert_int_equal(x->launches, graphs ? 6 : 0);
        if (behind)
            assert_int_equal(x->all, 0);
        else
            assert_true(x->all > 10 && (graphs || (x->early > 3 && x->early < x->all)));
        forked_free(x, ROOM);
    }
    struct trial *x = new_trial(zero, false);
    x->gpu = x->graphs = x->changes = true;
    x->half = half;
    assert_int_equal(forked_ranks(RANKS, 60, train, x), 0);
    same(old, x);
    forked_free(x, ROOM);
    forked_free(old, ROOM);
}

static void gpus_add_up_inside_recordings(void **state)
{
    (void)state;
    fake_gpu_prepare(RANKS, 1 << 20);
    for (int zero = 0; zero < 2; zero++)
        for (int half = 0; half < 2; half++) compare_on_gpus(zero, half);
    fake_gpu_end();
}

/* Beside each other's backward pass nothing is won. */
static void ranks_of_one_gpu_add_up_behind(void **state)
{
    (void)state;
    fake_gpu_prepare(RANKS, 1 << 20);
    for (int i = 0; i < 4; i++) {
        struct trial *x = new_trial(0, false);
        x->gpu = true, x->shared = i / 2, x->unsized = i % 2;
        assert_int_equal(forked_ranks(RANKS, 60, train, x), 0);
        assert_int_equal(x->all > 0, !(x->shared && x->unsized));
        forked_free(x, ROOM);
    }
    fake_gpu_end();
}

static int is_refused(struct neb_group *g, void *arg)
{
    struct net n = {0};
    neb_log_set_level(NEB_LOG_NONE);
    const neb_status status = open_net(&n, g, arg);
    return status != NEB_ERR_CONFIG || !strstr(neb_last_error(), "parallel.bucket: 4 bytes would cut");
}

/* Billions of sums would not fit into any recording. */
static void buckets_of_next_to_nothing_are_refused(void **state)
{
    (void)state;
    fake_gpu_prepare(RANKS, 1 << 20);
    struct trial *x = new_trial(0, false);
    x->gpu = x->tiny = true;
    assert_int_equal(forked_ranks(RANKS, 60, is_refused, x), 0);
    forked_free(x, ROOM);
    fake_gpu_end();
}

/* ---- a rank that is lost ------------------------------------------------------------------------------------- */

static void hurt_here(void)
{
    const struct trial *x = present;
    if (!x || far_sums() != x->at) return;
    far_leave();
    raise(x->how);
    for (;;) pause();
}

/* The well ranks name the one that was hurt. */
static int loses_one(struct neb_group *g, void *arg)
{
    struct net n = {0};
    const struct trial *x = arg;
    float norm;
    neb_status status = NEB_OK;
    present = NULL;
    if (open_net(&n, g, x) != NEB_OK) return 1;
    if (neb__group_rank(g) == x->hurt && x->how) present = arg, far_on_sum = hurt_here;
    neb_log_set_level(NEB_LOG_NONE);
    for (int i = 0; status == NEB_OK && i < STEPS; i++) status = one_step(&n, g, x, i, &norm);
    if (!x->how && neb__group_rank(g) == x->hurt) return status != NEB_ERR_IO;
    if (!x->how) return status != NEB_ERR_IO || !strstr(neb_last_error(), "rank 1 of 3 failed");
    return status != NEB_ERR_PEER || !strstr(neb__group_why(g), "rank 1 of 3 stuck or gone");
}

static void a_rank_lost_in_the_sums_is_named(void **state)
{
    (void)state;
    static const int ways[] = {SIGKILL, SIGSTOP, 0, SIGKILL, SIGSTOP};
    for (int i = 0; i < 5; i++) {
        struct trial *x = new_trial(i < 3 ? i % 2 : 3, false);
        x->hurt = 1;
        x->how = ways[i];
        x->at = 5; /* four are under way, and the others have begun theirs */
        assert_int_equal(far_ranks(RANKS, TIMEOUT, loses_one, x), x->how ? 1u << x->hurt : 0);
        forked_free(x, ROOM);
    }
}

/* A rank that fails between two runs, or while it records, makes its sums: nobody waits for them in vain. */
static void a_gpu_that_fails_is_named(void **state)
{
    (void)state;
    fake_gpu_prepare(RANKS, 1 << 20);
    for (int i = 0; i < 4; i++) {
        struct trial *x = new_trial(i % 2, false);
        x->gpu = x->graphs = true;
        x->hurt = 1;
        x->breaks = i > 1;
        assert_int_equal(forked_ranks(RANKS, TIMEOUT, loses_one, x), 0);
        forked_free(x, ROOM);
    }
    fake_gpu_end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_beside_are_the_same_bits),
        cmocka_unit_test(parameters_are_gathered_ahead),
        cmocka_unit_test(a_rank_lost_in_the_sums_is_named),
        cmocka_unit_test(gpus_add_up_inside_recordings),
        cmocka_unit_test(ranks_of_one_gpu_add_up_behind),
        cmocka_unit_test(a_gpu_that_fails_is_named),
        cmocka_unit_test(buckets_of_next_to_nothing_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
