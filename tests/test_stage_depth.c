/* test_stage_depth.c: micro-batches in flight at a stage, and the memory for them. A depth for which there is none is noticed between
 * two steps: the stage goes on with the depth that it had, computes what it would have computed, and does not ask for more again. */
#include "check.h"
#include "base/mem.h"
#include "split/stage_site.h"
#include "world.h"

#include <stdio.h>
#include <string.h>

enum { MICRO = 40, DEPTH = 2 };

#define JOB                                                                                          \
    "task: mlm\nmodel: {family: bert, hidden: 32, layers: 2, heads: 2, ffn: 32, max_positions: 32, " \
    "tied: no}\n"

/* ---- a neighbour that takes everything, and whose gradients are the hidden states ------------------------------ */

static float sent[MICRO][64 * 1024];

static neb_status ready(void *arg, bool back, double wait_s)
{
    (void)arg, (void)wait_s;
    return back ? NEB_OK : neb__quiet(NEB_ERR_TIMEOUT, "not yet");
}

static size_t values(const struct neb_stage_message *m)
{
    assert_int_equal(m->parts, 1);
    assert_true((size_t)(m->part[0].rows * m->width) <= sizeof sent[0] / sizeof(float));
    return (size_t)(m->part[0].rows * m->width);
}

static neb_status give(void *arg, const struct neb_stage_message *m, const float *x)
{
    (void)arg;
    memcpy(sent[m->number], x, values(m) * sizeof *x);
    return NEB_OK;
}

static neb_status take(void *arg, const struct neb_stage_message *m, float *x)
{
    (void)arg;
    memcpy(x, sent[m->number], values(m) * sizeof *x);
    return NEB_OK;
}

static neb_status add_up(void *arg, struct neb_stage_sums *own)
{
    (void)arg;
    own->loss[0] = 1;
    return NEB_OK;
}

static const struct neb_stage_ways ways = {
    .behind = true, .ready = ready, .give = give, .take = take, .add_up = add_up};

static void open_stage(struct world *w, const char *words)
{
    char all[200];
    const struct neb_step_links links = {.stage = {.ways = &ways, .range = {0, 1}, .depth = DEPTH}};
    snprintf(all, sizeof all, "train.micro=%d %s", MICRO, words);
    world_open_linked(w, JOB, all, &links);
}

static int64_t train(struct world *w, int steps, float *out)
{
    for (int i = 0; i < steps; i++) (void)world_step(w);
    return world_values(w, "encoder.layers.0.", out);
}

/* ---- tests ------------------------------------------------------------------------------------------------ */

static void it_stays_at_its_depth(void **state)
{
    (void)state;
    struct world w;
    struct neb_device_info info;
    char words[80];
    float *want = world_room(), *got = world_room();
    open_stage(&w, "");
    const int64_t n = train(&w, 4, want);
    assert_true(n > 0);
    neb_device_get_info(neb__work_device(w.work), &info);
    const int64_t enough = info.memory_used + 4 * neb__work_slot_bytes(w.work);
    assert_true(neb__work_slot_bytes(w.work) > 0 && neb__work_free_bytes(w.work) > 0);
    world_close(&w);

    snprintf(words, sizeof words, "train.memory=%lld", (long long)enough);
    open_stage(&w, words);
    (void)train(&w, 2, got);
    assert_int_equal(neb__work_depth(w.work), DEPTH);
    const int64_t left = neb__work_free_bytes(w.work);
    assert_true(left > 0 && left < enough);
    check_log_quiet();
    assert_status(neb__work_set_depth(w.work, MICRO), NEB_ERR_NOMEM);
    check_log_restore();
    assert_int_equal(neb__work_depth(w.work), DEPTH);
    (void)train(&w, 1, got);
    assert_ok(neb__work_set_depth(w.work, DEPTH + 1));
    assert_int_equal(train(&w, 1, got), n);
    assert_int_equal(neb__work_depth(w.work), DEPTH + 1);
    world_assert_same(&w, "encoder.layers.0.", want, n);
    world_close(&w);
    free(want);
    free(got);
}

/* Each allocation on the way back fails in turn, too: either the depth is as it was, or it says that it is not. */
static void it_says_if_it_cannot_go_back(void **state)
{
    (void)state;
    struct world w;
    struct neb_device_info info;
    char words[80];
    float *want = world_room(), *got = world_room();
    int as_before = 0, gone = 0;
    open_stage(&w, "");
    const int64_t n = train(&w, 3, want);
    neb_device_get_info(neb__work_device(w.work), &info);
    snprintf(words, sizeof words, "train.memory=%lld",
             (long long)(info.memory_used + 4 * neb__work_slot_bytes(w.work)));
    world_close(&w);
    bool all = false;
    for (int64_t at = 1; !all; at++) {
        open_stage(&w, words);
        (void)train(&w, 2, got);
        check_log_quiet();
        neb__mem_fail_at(at);
        neb_status status = neb__work_set_depth(w.work, MICRO);
        all = neb__mem_count() < at;
        neb__mem_fail_at(0);
        check_log_restore();
        if (status == NEB_ERR_NOMEM) {
            as_before++;
            assert_int_equal(neb__work_depth(w.work), DEPTH);
            assert_int_equal(train(&w, 1, got), n);
            world_assert_same(&w, "encoder.layers.0.", want, n);
        } else {
            assert_status(status, NEB_ERR_STATE);
            assert_non_null(strstr(neb_last_error(), "micro-batches in flight that were there before"));
            gone++;
        }
        world_close(&w);
    }
    assert_true(as_before > 1 && gone > 1);
    free(want);
    free(got);
}

/* The memory of all slots is there before a step begins. */
static void its_memory_is_there_before_a_step(void **state)
{
    (void)state;
    struct world w;
    struct neb_device_info before, after;
    float *x = world_room();
    open_stage(&w, "");
    (void)train(&w, 3, x);
    assert_ok(neb__work_set_depth(w.work, 8));
    neb_device_get_info(neb__work_device(w.work), &before);
    (void)train(&w, 3, x);
    neb_device_get_info(neb__work_device(w.work), &after);
    assert_int_equal(after.memory_used, before.memory_used);
    world_close(&w);
    free(x);
}

/* The controller asks for what fits, and for no more where a step went on with less. */
static void the_control_learns_it(void **state)
{
    (void)state;
    struct neb_job_site sites[2] = {{.name = (char *)"a"}, {.name = (char *)"b"}};
    struct neb_job job = {.n_sites = 2};
    struct neb_stage_site s = {.job = &job, .stages = 2};
    memcpy(job.site, sites, sizeof sites);
    job.train.micro = MICRO;
    job.parallel.data = 1;
    neb__stage_control_begin(&s);
    const int begin = s.rate.depth;
    s.rate.depth = 9; /* as if the line had asked for it */
    struct neb_stage_facts f = {.slot_bytes = 100, .free_bytes = -1, .depth = begin};
    check_log_quiet();
    assert_int_equal(neb__stage_control(&s, &f), begin);
    check_log_restore();
    assert_int_equal(s.rate.most, begin);
    f.depth = begin;
    assert_int_equal(neb__stage_control(&s, &f), begin);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_stays_at_its_depth),
        cmocka_unit_test(it_says_if_it_cannot_go_back),
        cmocka_unit_test(its_memory_is_there_before_a_step),
        cmocka_unit_test(the_control_learns_it),
    };
    return cmocka_run_group_tests(tests, world_set_up, world_tear_down);
}
