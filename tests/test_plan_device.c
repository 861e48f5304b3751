/* test_plan_device.c: the planner for ranks that share a device: its memory, as its allocator counts it, and its speed. */
#include "check.h"
#include "base/mem.h"
#include "device/device.h"
#include "fake_gpu.h"
#include "forked.h"
#include "plan/measure.h"
#include "plan/plan.h"
#include "world.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#define ENCODER \
    "task: mlm\nmodel: {family: bert, hidden: 64, layers: 3, heads: 4, ffn: 128, max_positions: 32}\n"

/* A device with an allocator such as that of GPUs: multiples of 512 bytes, from 1 MiB on of 2 MiB. It holds some work memory. */
static int64_t held;
static size_t size_of[64];
static char blocks[64];

static neb_status alloc_rounding(void *ctx, size_t bytes, void **out)
{
    (void)ctx;
    const size_t unit = bytes >= 1 << 20 ? 2 << 20 : 512;
    for (int i = 0; i < 64; i++)
        if (!size_of[i]) {
            held += (int64_t)(size_of[i] = (bytes + unit - 1) / unit * unit);
            *out = &blocks[i];
            return NEB_OK;
        }
    return NEB_ERR_NOMEM;
}

static void free_rounding(void *ctx, void *p)
{
    (void)ctx;
    const ptrdiff_t i = (char *)p - blocks;
    held -= (int64_t)size_of[i];
    size_of[i] = 0;
}

static void info_rounding(void *ctx, struct neb_device_info *out)
{
    (void)ctx;
    *out = (struct neb_device_info){.memory_used = held};
}

static void close_nothing(void *ctx)
{
    (void)ctx;
}

static int64_t used(neb_device *d)
{
    struct neb_device_info info;
    neb_device_get_info(d, &info);
    return info.memory_used;
}

static void a_rehearsal_rounds_as_the_allocator_does(void **state)
{
    (void)state;
    static struct neb_device_ops ops;
    neb_device *cpu;
    assert_ok(neb_device_open("cpu", &(struct neb_device_config){.threads = 1, .compute = NEB_F32}, &cpu));
    ops = *cpu->ops;
    ops.alloc = alloc_rounding, ops.free = free_rounding, ops.info = info_rounding, ops.close = close_nothing;
    held = 96 << 20;
    neb_device *d = NEB_NEW(struct neb_device);
    assert_non_null(d);
    *d = *cpu;
    d->ops = &ops;
    d->table = NULL;
    assert_ok(neb__device_rehearse(d));
    assert_true(held == 96 << 20 && used(d) == held);
    const size_t sizes[] = {1, 512, 513, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, (4 << 20) + 7};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *real = NULL, *rehearsed = NULL;
        assert_ok(alloc_rounding(NULL, sizes[i], &real));
        assert_ok(d->ops->alloc(d->ctx, sizes[i], &rehearsed));
        assert_true(used(d) == held);
        d->ops->free(d->ctx, rehearsed);
        free_rounding(NULL, real);
        assert_true(used(d) == 96 << 20);
    }
    d->ops->close(d->ctx);
    neb__free(d->table);
    neb__free(d);
    neb_device_close(cpu);
}

/* Hardware that is not here: a GPU's units and work memory, and the scratch of its kernels as the CUDA sources have it. */
static void a_stated_gpu_has_its_units(void **state)
{
    (void)state;
    struct world w;
    struct neb_rehearsal cpu, gpu;
    const struct neb_planner_layout l = {.data = 1, .tensor = 1, .pipeline = 1, .threads = 1};
    neb_device *d;
    assert_ok(neb_device_open("cpu", &(struct neb_device_config){.threads = 1, .compute = NEB_BF16}, &d));
    assert_ok(neb__device_state_gpu(d));
    assert_ok(neb__device_rehearse(d));
    assert_string_equal(d->ops->name, "cuda");
    assert_true(used(d) == 96 << 20);
    const struct {
        size_t bytes;
        int64_t takes;
    } sizes[] = {
        {1, 512}, {513, 1024}, {(1 << 20) - 1, 1 << 20}, {1 << 20, 2 << 20}, {(2 << 20) + 1, 4 << 20}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *p = NULL;
        assert_ok(d->ops->alloc(d->ctx, sizes[i].bytes, &p));
        assert_int_equal(used(d) - (96 << 20), sizes[i].takes);
        d->ops->free(d->ctx, p);
    }
    const struct neb_linear_bwd lin = {.rows = 100, .in = 65, .out = 64, .type = NEB_BF16};
    assert_int_equal(d->ops->scratch_bytes(d->ctx, NEB_SLOT_LINEAR_BWD, &lin), 512 + 256);
    const struct neb_norm_bwd norm = {.rows = 7, .d = 64};
    assert_int_equal(d->ops->scratch_bytes(d->ctx, NEB_SLOT_NORM_BWD, &norm), 132 * 3 * 2 * 64 * 4);
    struct neb_attn_bwd attn = {
        .f = {.q_rows = 256, .heads = 4, .head_dim = 64, .max_k = 64, .type = NEB_BF16}};
    assert_int_equal(d->ops->scratch_bytes(d->ctx, NEB_SLOT_ATTN_BWD, &attn), 4096);
    attn.f.max_k = 256;
    assert_int_equal(d->ops->scratch_bytes(d->ctx, NEB_SLOT_ATTN_BWD, &attn), 4096 + 256 * 4 * 64 * 4);
    const struct neb_linear_xent xent = {.rows = 300, .in = 64, .classes = 100, .type = NEB_BF16};
    assert_int_equal(d->ops->scratch_bytes(d->ctx, NEB_SLOT_LINEAR_XENT, &xent), 300 * 128 * 2 + 1536);
    neb_device_close(d);

    world_open_words(&w, ENCODER, "");
    assert_ok(neb__planner_rehearse(&w.data, &l, &(struct neb_layout_place){0}, &cpu));
    assert_ok(neb__planner_rehearse(&w.data, &l, &(struct neb_layout_place){.gpu = true}, &gpu));
    assert_true(gpu.state + gpu.runs > 96 << 20 && cpu.state + cpu.runs < 96 << 20);
    assert_int_equal(gpu.values, cpu.values);
    world_close(&w);
}

/* Two ranks of one device need both their memory of it; with a device each they fit. */
static void ranks_of_one_device_share_its_memory(void **state)
{
    (void)state;
    struct world w;
    struct neb_rehearsal r;
    const struct neb_planner_layout l = {.data = 2, .tensor = 1, .pipeline = 1, .threads = 1};
    const struct neb_planner_costs none = {0};
    world_open_words(&w, ENCODER, "");
    assert_ok(neb__planner_rehearse_all(&w.data, &l, &r));
    for (int devices = 1; devices <= 2; devices++) {
        struct neb_planned p;
        struct neb_planner_order o = {.data = &w.data,
                                      .costs = &none,
                                      .only = &l,
                                      .place = {.slots = 2,
                                                .near = 2,
                                                .devices = devices,
                                                .machine = HUGE_VAL,
                                                .device = 1.5 * (double)(r.state + r.runs)}};
        assert_ok(neb__planner_make(&o, &p));
        assert_false(
            p.row[0]
                .fits); /* nothing was measured: who reads the rejected ones must not take it for one that could be had */
        assert_non_null(strstr(p.row[0].why, devices == 1 ? "2 processes share a device" : "it fits, but"));
        neb__planner_free(&p);
    }
    world_close(&w);
}

/* What the ranks of a group are measured with. */
static int measures(struct neb_group *g, void *arg)
{
    static struct neb_device_ops ops;
    struct neb_group_cost cost;
    neb_device *d;
    const bool sends = *(const bool *)arg;
    if (neb_device_open("cpu", &(struct neb_device_config){.threads = 1, .compute = NEB_F32}, &d) != NEB_OK)
        return 1;
    fake_library.missing = !sends;
    fake_library.records = true;
    fake_library.device = neb__group_rank(g);
    fake_gpu_wrap(d, &ops);
    if (neb__planner_measure_group(g, d, &cost) != NEB_OK) return 2;
    neb_device_close(d);
    return (fake_gpu_beside() > 0) != sends || !(cost.call[NEB_TRAFFIC_MESSAGE] > 0) || cost.beside != sends;
}

/* A message between stages is measured the way it goes: from device to device, where they can. */
static void messages_are_measured_as_they_are_sent(void **state)
{
    (void)state;
    fake_gpu_prepare(2, (size_t)64 << 20); /* a letter has a sixteenth */
    for (int sends = 0; sends < 2; sends++) {
        bool way = sends;
        assert_int_equal(forked_ranks(2, 60, measures, &way), 0);
    }
    fake_gpu_end();
}

/* One device: where a stage that works alone is twice as fast, nobody's waiting costs anything; where it is not faster, the turns are
 * those of stages with a device each. */
static void stages_on_one_device_share_its_speed(void **state)
{
    (void)state;
    const double forward[] = {1, 2, 1}, backward[] = {2, 3, 2};
    double seconds, idle, apart, apart_idle;
    for (int m = 1; m <= 8; m *= 2) {
        assert_ok(neb__planner_turns(forward, backward, 3, m, 0.25, &apart, &apart_idle));
        assert_ok(neb__planner_turns_sharing(forward, backward, 3, m, 0.25, 1, &seconds, &idle));
        assert_true(fabs(seconds - apart) < 1e-6);
        assert_true(fabs(idle - apart_idle) < 1e-6);
        assert_ok(neb__planner_turns_sharing(forward, backward, 2, m, 0, 0.5, &seconds, &idle));
        assert_true(fabs(seconds - 0.5 * m * (1 + 2 + 2 + 3)) < 1e-6); /* the work of both, without a gap */
    }
}

/* A stage that takes next to nothing ends its turns, however late they begin. */
static void a_stage_without_work_ends_its_turns(void **state)
{
    (void)state;
    const double times[] = {1e-13, 1};
    double seconds, idle;
    assert_ok(neb__planner_turns_sharing(times, times, 2, 64, 0, 0.5, &seconds, &idle));
    assert_true(fabs(seconds - 64) < 1e-6); /* the other one works alone, twice as fast */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rehearsal_rounds_as_the_allocator_does),
        cmocka_unit_test(ranks_of_one_device_share_its_memory),
        cmocka_unit_test(a_stated_gpu_has_its_units),
        cmocka_unit_test(messages_are_measured_as_they_are_sent),
        cmocka_unit_test(stages_on_one_device_share_its_speed),
        cmocka_unit_test(a_stage_without_work_ends_its_turns),
    };
    return cmocka_run_group_tests(tests, world_set_up, world_tear_down);
}
