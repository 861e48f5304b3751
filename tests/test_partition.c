/* test_partition.c: ranks that share out the state of a training. The bits are those of ranks that hold all of it, the memory
 * is what the layout promises, and a rank that fails inside a step does not leave the others waiting. */
#include "base/mem.h"
#include "check.h"
#include "fake_gpu.h"
#include "forked.h"
#include "optim/optimizer.h"
#include "optim/whole.h"
#include "tensor/matrices.h"
#include "tensor/partition.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 8, WIDE = 272, LAYERS = 7, WORDS = 700, STEPS = 3, RANKS = 3 };

struct net {
    neb_device *dev;
    neb_params *ps;
    neb_tape *tape;
    neb_optimizer *opt;
    neb_param *table, *w[LAYERS], *b[LAYERS], *unused;
    neb_buffer *ids, *target;
    int32_t id[ROWS];
    int sample; /* which micro-batch */
};

/* The last layer's weight is the table of the first: its gradient has contributions at both ends. */
static void model(neb_tape *t, void *arg)
{
    struct net *n = arg;
    neb_tensor *ids = neb_input(t, n->ids, NEB_I32, 1, (int64_t[]){ROWS});
    neb_tensor *target = neb_input(t, n->target, NEB_I32, 1, (int64_t[]){ROWS});
    neb_tensor *x = neb_op_embed(t, 1, &n->table, &ids, 1);
    for (int i = 0; i < LAYERS; i++)
        x = neb_op_add(t, x, neb_op_linear(t, x, n->w[i], n->b[i], NEB_ACT_GELU));
    struct neb_target_spec goal = {.target = target};
    struct neb_loss_spec loss = {0};
    neb_loss_linear_xent(t, x, n->table, NULL, &goal, &loss);
}

static neb_status load(void *arg)
{
    struct net *n = arg;
    int32_t target[ROWS];
    for (int i = 0; i < ROWS; i++) {
        n->id[i] = (n->sample * 37 + i * 11) % WORDS;
        target[i] = (n->id[i] * 7 + 3) % WORDS;
    }
    NEB_TRY(neb_buffer_upload(n->ids, n->id, sizeof n->id));
    return neb_buffer_upload(n->target, target, sizeof target);
}

static neb_param *add(neb_params *ps, const char *name, int ndim, int64_t rows, int64_t cols)
{
    struct neb_param_spec s = {
        .name = name, .ndim = ndim, .shape = {rows, cols}, .init = NEB_INIT_NORMAL, .scale = 0.05f};
    s.hidden = ndim == 2 && strstr(name, "layers");
    if (s.hidden) s.matrices = 2, s.matrix_rows[0] = 100, s.matrix_rows[1] = rows - 100;
    return neb_params_add(ps, &s);
}

static struct neb_layout layout; /* of this process */
static neb_optimizer_kind kind = NEB_ADAMW;

/* Where the ranks compute, and how these devices exchange values. */
enum { ON_CPU, BY_LIBRARY, THROUGH_HOST };
static int where;
static neb_dtype compute = NEB_F32;

static neb_status open_net(struct net *n, struct neb_group *g, int zero)
{
    char name[64];
    struct neb_optimizer_config c = neb_optimizer_defaults();
    c.max_norm = 0.01f; /* clips */
    c.kind = kind;
    struct neb_device_config one = {.threads = 1, .compute = compute};
    static struct neb_device_ops fake;
    NEB_TRY(neb_device_open("cpu", &one, &n->dev));
    if (where != ON_CPU) fake_gpu_wrap(n->dev, &fake);
    fake_library.missing = where == THROUGH_HOST;
    fake_library.device = neb__group_rank(g);
    NEB_TRY(neb__group_attach(g, n->dev->ops, n->dev->ctx));
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
    layout = (struct neb_layout){.world = g, .data = g};
    if (kind == NEB_MUON) NEB_TRY(neb__params_take_matrices(n->ps, NULL));
    NEB_TRY(neb__ranks_partition(n->ps, &layout, zero));
    NEB_TRY(neb_params_ready(n->ps, n->dev, 1));
    NEB_TRY(neb_tape_create(n->dev, n->ps, &n->tape));
    neb_tape_poison(n->tape, true);
    struct neb_state_place place = {.layout = &layout, .zero = zero};
    NEB_TRY(neb__optimizer_create(n->dev, n->ps, &c, &place, &n->opt));
    NEB_TRY(neb_buffer_create(n->dev, sizeof n->id, &n->ids));
    return neb_buffer_create(n->dev, sizeof n->id, &n->target);
}

static void close_net(struct net *n)
{
    neb_buffer_destroy(n->ids);
    neb_buffer_destroy(n->target);
    neb_optimizer_destroy(n->opt);
    neb_tape_destroy(n->tape);
    neb_params_destroy(n->ps);
    neb__layout_detach(&layout);
    neb_device_close(n->dev);
}

/* ---- equal bits ---------------------------------------------------------------------------------------------- */

struct trial {
    int zero, micros;          /* micro-batches of all ranks together */
    double held;               /* bytes that the first rank's state took, before the first run */
    int64_t part;              /* the first rank's */
    int64_t trainable, values; /* of the slab */
    int64_t room;              /* bytes of the arena */
    float norm[STEPS];
    float result[]; /* the first rank's parameters */
};

static neb_status one_step(struct net *n, struct neb_group *g, struct trial *x, int step)
{
    struct net copy[16];
    struct neb_micro m[16];
    struct neb_step_info info;
    for (int i = 0; i < x->micros; i++) {
        copy[i] = *n;
        copy[i].sample = step * x->micros + i;
        m[i] = (struct neb_micro){load, i % RANKS == neb__group_rank(g) ? model : NULL, &copy[i], 1, ROWS};
    }
    NEB_TRY(neb_train_step(n->opt, n->tape, m, x->micros, 1e-2f, 1, NULL, &info));
    x->norm[step] = info.grad_norm;
    return NEB_OK;
}

static double used(neb_device *d)
{
    struct neb_device_info info;
    neb_device_get_info(d, &info);
    return (double)info.memory_used;
}

static neb_status try_out(struct net *n, struct neb_group *g, struct trial *x)
{
    NEB_TRY(open_net(n, g, x->zero));
    struct trial here = {.micros = x->micros};
    here.held = used(n->dev);
    for (int i = 0; i < STEPS; i++) NEB_TRY(one_step(n, g, &here, i));
    struct neb_memory memory;
    neb_tape_memory(n->tape, &memory);
    const bool first = !neb__group_rank(g);
    const bool shared = neb__partition_of_masters(n->ps);
    if (shared) NEB_TRY(neb__ranks_exchange_values(&layout, n->ps, true, false, first ? x->result : NULL));
    if (!first) return NEB_OK;
    x->held = here.held;
    x->room = memory.planned;
    memcpy(x->norm, here.norm, sizeof here.norm);
    int64_t edge[RANKS + 1];
    neb__partition_edges(n->ps, RANKS, edge);
    x->part = edge[1];
    x->trainable = n->ps->trainable_values;
    x->values = n->ps->all_values;
    if (!shared) memcpy(x->result, n->ps->value, (size_t)x->values * sizeof *x->result);
    return NEB_OK;
}

static int train(struct neb_group *g, void *arg)
{
    struct net n = {0};
    neb_status status = try_out(&n, g, arg);
    close_net(&n);
    return status != NEB_OK;
}

enum { ROOM = 64 << 20 };

static struct trial *trained(int zero, int micros)
{
    struct trial *x = forked_memory(ROOM);
    x->zero = zero;
    x->micros = micros;
    assert_int_equal(forked_ranks(RANKS, 20, train, x), 0);
    assert_true(x->norm[0] > 0.01f);
    return x;
}

static void compare_bits(void)
{
    struct trial *data = trained(0, RANKS);
    for (int zero = 1; zero <= 3; zero++) {
        struct trial *x = trained(zero, RANKS);
        assert_memory_equal(x->norm, data->norm, sizeof x->norm);
        assert_int_equal(x->values, data->values);
        assert_memory_equal(x->result, data->result, (size_t)x->values * sizeof(float));
        forked_free(x, ROOM);
    }
    forked_free(data, ROOM);
}

/* With zero a rank has whole matrices; without, the ranks deal them out. */
static void has_equal_bits_with_muon(void **state)
{
    (void)state;
    kind = NEB_MUON;
    compare_bits();
    kind = NEB_ADAMW;
}

static void is_close(const struct trial *a, const struct trial *b)
{
    const double most = compute == NEB_F32 ? 1e-5 : 1e-3; /* a value may be rounded the other way */
    double difference = 0, length = 0;
    assert_int_equal(a->values, b->values);
    for (int64_t i = 0; i < a->values; i++) {
        double d = (double)a->result[i] - (double)b->result[i];
        difference += d * d;
        length += (double)a->result[i] * (double)a->result[i];
    }
    assert_true(sqrt(difference / length) < most);
}

static void has_equal_bits(void **state)
{
    (void)state;
    compare_bits();
    compute = NEB_BF16;
    compare_bits();
    compute = NEB_F32;
}

/* Several micro-batches a rank are added up in another order. */
static void stays_close(void **state)
{
    (void)state;
    struct trial *data = trained(0, 4 * RANKS), *x = trained(3, 4 * RANKS);
    is_close(data, x);
    forked_free(data, ROOM);
    forked_free(x, ROOM);
}

/* Devices with memory of their own take the norm in their own way. */
static void compare_devices(void)
{
    struct trial *cpu = trained(0, RANKS);
    const float near = compute == NEB_F32 ? 1e-4f : 1e-2f;
    fake_gpu_prepare(RANKS, 4 << 20);
    for (int zero = 0; zero <= 3; zero++) {
        where = BY_LIBRARY;
        struct trial *x = trained(zero, RANKS);
        where = THROUGH_HOST;
        struct trial *y = trained(zero, RANKS);
        is_close(cpu, x);
        is_close(cpu, y);
        for (int i = 0; i < STEPS; i++) assert_true(fabsf(x->norm[i] / cpu->norm[i] - 1) < near);
        forked_free(x, ROOM);
        forked_free(y, ROOM);
    }
    where = ON_CPU;
    fake_gpu_end();
    forked_free(cpu, ROOM);
}

static void devices_learn_the_same(void **state)
{
    (void)state;
    compare_devices();
    compute = NEB_BF16;
    compare_devices();
    compute = NEB_F32;
}

/* ---- memory -------------------------------------------------------------------------------------------------- */

/* The ranges are whole blocks of the norm: the first rank's is known. */
static void holds_its_part(void **state)
{
    (void)state;
    int64_t room[4], unit = WIDE * (WIDE + 1) * 4, table = WORDS * WIDE * 4;
    compute = NEB_BF16;
    for (int zero = 0; zero <= 3; zero++) {
        struct trial *x = trained(zero, RANKS);
        double n = (double)x->trainable, part = (double)x->part, frozen = (double)(x->values - x->trainable);
        double formula[] = {18 * n + 6 * frozen, 6 * n + 12 * part + 6 * frozen,
                            2 * n + 16 * part + 6 * frozen, 18 * part + 6 * frozen / RANKS};
        const double stage = zero ? 4 << 20 : 0; /* masters on their way; stated, as the buckets are */
        if (!(fabs((x->held - stage) / formula[zero] - 1) < 0.03))
            fail_msg("bf16, zero %d: %g bytes instead of %g", zero, x->held - stage, formula[zero]);
        forked_free(x, ROOM);
    }
    compute = NEB_F32;
    for (int zero = 0; zero <= 3; zero++) {
        struct trial *x = trained(zero, RANKS);
        double n = (double)x->trainable, part = (double)x->part, frozen = (double)(x->values - x->trainable);
        double formula[] = {16 * n + 4 * frozen, 8 * n + 8 * part + 4 * frozen,
                            4 * n + 12 * part + 4 * frozen, 16 * part + 4 * frozen / RANKS};
        assert_true(fabs(x->held / formula[zero] - 1) < 0.03);
        room[zero] = x->room;
        forked_free(x, ROOM);
    }
    /* buckets of the tied table and a layer; at most NEB_UNITS_KEPT units, one of them the table */
    assert_in_range(room[2], room[0], room[0] + table + 2 * unit);
    assert_in_range(room[3], room[2], room[2] + table + NEB_UNITS_KEPT * unit);
}

/* ---- failing --------------------------------------------------------------------------------------------------- */

static neb_status refuse(void *arg)
{
    (void)arg;
    return NEB_ERR_IO;
}

struct failure {
    int zero;
    bool late; /* behind the run, in the update */
};

static neb_status refuse_grads(void *arg, float *slab, int64_t n)
{
    (void)slab, (void)n;
    return *(const bool *)arg ? NEB_ERR_IO : NEB_OK;
}

/* The last rank cannot load its micro-batch, or not make its update; the others must not wait for it until the time is
 * over. A trainer's ranks meet behind the step. */
static int fails_alone(struct neb_group *g, void *arg)
{
    struct net n = {0};
    struct neb_step_info info;
    const struct failure *f = arg;
    if (open_net(&n, g, f->zero) != NEB_OK) return 1;
    bool last = neb__group_rank(g) == RANKS - 1, late = last && f->late;
    struct neb_micro m = {last && !f->late ? refuse : load, model, &n, 1, ROWS};
    struct neb_reduce reduce = {.grads = refuse_grads, .arg = &late};
    neb_status status = neb_train_step(n.opt, n.tape, &m, 1, 1e-2f, 1, &reduce, &info);
    status = neb__group_agree(g, status);
    close_net(&n);
    return status != (last || (f->zero < 2 && !f->late) ? NEB_ERR_IO : NEB_ERR_PEER);
}

static void ends_together(void **state)
{
    (void)state;
    struct failure f;
    fake_gpu_prepare(RANKS, 4 << 20);
    for (int i = 0; i < 8; i++) { /* by the time limit it would hang */
        f = (struct failure){i / 2, i % 2};
        assert_int_equal(forked_ranks(RANKS, 1e9, fails_alone, &f), 0);
        where = BY_LIBRARY;
        assert_int_equal(forked_ranks(RANKS, 1e9, fails_alone, &f), 0);
        where = ON_CPU;
    }
    fake_gpu_end();
}

/* The last rank has no memory to lend its parameters from. */
static int cannot_lend(struct neb_group *g, void *arg)
{
    struct net n = {0};
    if (open_net(&n, g, *(const int *)arg) != NEB_OK) return 1;
    const bool last = neb__group_rank(g) == RANKS - 1;
    float *here = calloc((size_t)n.ps->all_values, sizeof *here);
    neb__mem_fail_at(last ? 1 : 0);
    neb_status status = neb__ranks_exchange_values(&layout, n.ps, true, false, here);
    neb__mem_fail_at(0);
    const bool told = status == (last ? NEB_ERR_NOMEM : NEB_ERR_PEER);
    free(here);
    status = neb__group_agree(g, status);
    close_net(&n);
    return status == NEB_OK || ((last || !neb__group_rank(g)) && !told);
}

static void nobody_waits_for_values_that_cannot_come(void **state)
{
    (void)state;
    int zero = 3;
    check_log_quiet();
    assert_int_equal(forked_ranks(RANKS, 1e9, cannot_lend, &zero), 0);
    check_log_restore();
}

/* Ranks that share one model bring its pieces together at the first one, and back. One of them has no memory for the list of its
 * pieces. */
static int cannot_list(struct neb_group *g, void *arg)
{
    struct net n = {0};
    const int rank = neb__group_rank(g), poor = *(const int *)arg % RANKS;
    const bool collect = *(const int *)arg < RANKS;
    if (open_net(&n, g, 0) != NEB_OK) return 1;
    const struct neb_layout one = {.world = g, .model = g};
    float *whole = calloc((size_t)n.ps->whole_all, sizeof *whole);
    neb__mem_fail_at(rank == poor ? 1 : 0);
    neb_status status = collect ? neb__pieces_collect(&one, n.ps, false, n.ps->value, whole)
                                : neb__pieces_distribute_first(&one, n.ps, false, whole, n.ps->value);
    neb__mem_fail_at(0);
    const bool told = status == (rank == poor ? NEB_ERR_NOMEM : NEB_ERR_PEER);
    free(whole);
    close_net(&n);
    return (rank == poor || !rank || !poor) && !told; /* the first rank may be done with the others before */
}

static void nobody_waits_for_pieces_that_cannot_come(void **state)
{
    (void)state;
    check_log_quiet();
    for (int poor = 0; poor < 2 * RANKS; poor++)
        assert_int_equal(forked_ranks(RANKS, 1e9, cannot_list, &poor), 0);
    check_log_restore();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(has_equal_bits),
                                       cmocka_unit_test(has_equal_bits_with_muon),
                                       cmocka_unit_test(stays_close),
                                       cmocka_unit_test(devices_learn_the_same),
                                       cmocka_unit_test(holds_its_part),
                                       cmocka_unit_test(ends_together),
                                       cmocka_unit_test(nobody_waits_for_values_that_cannot_come),
                                       cmocka_unit_test(nobody_waits_for_pieces_that_cannot_come)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
