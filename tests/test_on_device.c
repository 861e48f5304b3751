/* test_on_device.c: exchanges of values in the memory of devices: by the devices' own library, through the host, and in
 * host memory. Ranks whose devices cannot work together are refused at every rank; a rank that does not come to an
 * exchange is named. */
#include "check.h"
#include "fake_gpu.h"
#include "forked.h"
#include "group/on_device.h"

#include <nebula/engine.h>
#include <nebula/log.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 3, N = 70000, HOST = 0, STAGED, LIBRARY };

struct trial {
    int way;
    bool refused[RANKS];
    char why[RANKS][400];
};

static neb_status open_as(struct neb_group *g, int way, neb_device **d, struct neb_device_ops *ops)
{
    struct neb_device_config one = {.threads = 1};
    NEB_TRY(neb_device_open("cpu", &one, d));
    fake_library.missing = way == STAGED;
    if (fake_library.device < 0) fake_library.device = neb__group_rank(g);
    if (way != HOST) fake_gpu_wrap(*d, ops);
    return neb__group_attach(g, (*d)->ops, (*d)->ctx);
}

static uint16_t half(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return (uint16_t)(u >> 16);
}

/* What rank r has at place i: small integers, which bf16 holds exactly, too. */
static float value(int r, int64_t i)
{
    return (float)((i * 7 + r * 3) % 11);
}

static void fill(void *v, neb_dtype type, int rank)
{
    for (int64_t i = 0; i < N; i++) {
        if (type == NEB_F32)
            ((float *)v)[i] = value(rank, i);
        else
            ((uint16_t *)v)[i] = half(value(rank, i));
    }
}

static bool holds(const void *v, neb_dtype type, int64_t i, float want)
{
    return type == NEB_F32 ? ((const float *)v)[i] == want : ((const uint16_t *)v)[i] == half(want);
}

static float sum(int64_t i)
{
    float s = 0;
    for (int r = 0; r < RANKS; r++) s += value(r, i);
    return s;
}

static bool all_exchanges(struct neb_group *g, neb_dtype type, void *v)
{
    const int64_t edge[] = {0, 4, 50002, N};
    const int rank = neb__group_rank(g);
    bool good = true;
    fill(v, type, rank);
    good &= neb__device_sum(g, v, N, type) == NEB_OK;
    for (int64_t i = 0; good && i < N; i++) good = holds(v, type, i, sum(i));
    fill(v, type, rank);
    good = good && neb__device_sum_scatter(g, v, edge, type) == NEB_OK;
    for (int64_t i = edge[rank]; good && i < edge[rank + 1]; i++) good = holds(v, type, i, sum(i));
    fill(v, type, rank);
    good = good && neb__device_gather(g, v, edge, type) == NEB_OK;
    for (int r = 0; r < RANKS; r++)
        for (int64_t i = edge[r]; good && i < edge[r + 1]; i++) good = holds(v, type, i, value(r, i));
    fill(v, type, rank);
    good = good && neb__device_broadcast(g, v, N, type, 1) == NEB_OK;
    for (int64_t i = 0; good && i < N; i++) good = holds(v, type, i, value(1, i));
    return good;
}

static int exchange_at_rank(struct neb_group *g, void *arg)
{
    static struct neb_device_ops ops;
    const struct trial *x = arg;
    neb_device *d = NULL;
    void *v = NULL;
    fake_library.device = -1;
    if (open_as(g, x->way, &d, &ops) != NEB_OK || neb__group_staged(g) != (x->way == STAGED)) return 1;
    bool good = d->ops->alloc(d->ctx, N * sizeof(float), &v) == NEB_OK;
    good = good && all_exchanges(g, NEB_F32, v) && all_exchanges(g, NEB_BF16, v);
    good = good && fake_gpu_exchanges() == (x->way == LIBRARY ? 8 : 0);
    d->ops->free(d->ctx, v);
    neb__group_detach(g);
    neb_device_close(d);
    return !good;
}

static void values_arrive(void **state)
{
    (void)state;
    struct trial *x = forked_memory(sizeof *x);
    fake_gpu_prepare(RANKS, N * sizeof(float));
    for (x->way = HOST; x->way <= LIBRARY; x->way++)
        assert_int_equal(forked_ranks(RANKS, 20, exchange_at_rank, x), 0);
    fake_gpu_end();
    forked_free(x, sizeof *x);
}

/* ---- refusals ------------------------------------------------------------------------------------------------ */

static void note_refusal(struct neb_group *g, struct trial *x, neb_status status)
{
    int rank = neb__group_rank(g);
    x->refused[rank] = status != NEB_OK;
    snprintf(x->why[rank], sizeof x->why[rank], "%s", neb_last_error());
}

static int share_one_gpu(struct neb_group *g, void *arg)
{
    static struct neb_device_ops ops;
    neb_device *d = NULL;
    fake_library.device = neb__group_rank(g) / 2; /* 0, 0, 1 */
    fake_library.shares = 0;
    neb_log_set_level(NEB_LOG_NONE);
    note_refusal(g, arg, open_as(g, LIBRARY, &d, &ops));
    return 0;
}

static int differ_in_version(struct neb_group *g, void *arg)
{
    static struct neb_device_ops ops;
    neb_device *d = NULL;
    fake_library.device = -1;
    fake_library.version = 22800 + neb__group_rank(g);
    neb_log_set_level(NEB_LOG_NONE);
    note_refusal(g, arg, open_as(g, LIBRARY, &d, &ops));
    return 0;
}

static int differ_in_kind(struct neb_group *g, void *arg)
{
    static struct neb_device_ops ops;
    neb_device *d = NULL;
    fake_library.device = -1;
    neb_log_set_level(NEB_LOG_NONE);
    note_refusal(g, arg, open_as(g, neb__group_rank(g) == 1 ? HOST : LIBRARY, &d, &ops));
    return 0;
}

static void refused_everywhere(int (*fn)(struct neb_group *, void *), const char *words)
{
    struct trial *x = forked_memory(sizeof *x);
    assert_int_equal(forked_ranks(RANKS, 20, fn, x), 0);
    for (int r = 0; r < RANKS; r++) {
        assert_true(x->refused[r]);
        if (!strstr(x->why[r], words)) fail_msg("rank %d: '%s' lacks '%s'", r, x->why[r], words);
    }
    forked_free(x, sizeof *x);
}

static void devices_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    fake_gpu_prepare(RANKS, 64);
    refused_everywhere(share_one_gpu, "ranks 0 and 1 of this group of 3 compute on the same GPU");
    refused_everywhere(share_one_gpu, "buy another one");
    refused_everywhere(differ_in_version, "different versions of NCCL");
    refused_everywhere(differ_in_kind, "rank 1 on the CPU");
    fake_gpu_end();
}

/* ---- a rank that does not come ------------------------------------------------------------------------------- */

struct lost {
    char why[200];
    _Atomic int done;
};

/* The first two ranks begin an exchange; the last one hangs, and its process lives. */
static int one_hangs(struct neb_group *g, void *arg)
{
    static struct neb_device_ops ops;
    struct lost *x = arg;
    float v[8] = {0};
    neb_device *d = NULL;
    fake_library.device = -1;
    neb_log_set_level(NEB_LOG_NONE);
    if (open_as(g, LIBRARY, &d, &ops) != NEB_OK) return 1;
    if (neb__group_rank(g) == RANKS - 1) {
        while (x->done < RANKS - 1) nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        _exit(0);
    }
    neb_status status = neb__device_sum(g, v, 8, NEB_F32);
    bool good = status == NEB_ERR_PEER && neb__group_broken(g) && neb__group_sum(g, v, 8) == NEB_ERR_PEER;
    if (!neb__group_rank(g)) snprintf(x->why, sizeof x->why, "%s", neb__group_why(g));
    x->done++;
    neb__group_detach(g);
    neb_device_close(d);
    return !good;
}

static void a_rank_that_does_not_come_is_named(void **state)
{
    (void)state;
    struct lost *x = forked_memory(sizeof *x);
    fake_gpu_prepare(RANKS, 64);
    assert_int_equal(forked_ranks(RANKS, 1, one_hangs, x), 0);
    if (!strstr(x->why, "rank 2 of 3")) fail_msg("'%s' does not name the rank", x->why);
    fake_gpu_end();
    forked_free(x, sizeof *x);
}

/* A rank that is late but makes progress is waited for, longer than the timeout. */
static int one_is_late(struct neb_group *g, void *arg)
{
    static struct neb_device_ops ops;
    float v[8] = {1};
    neb_device *d = NULL;
    (void)arg;
    fake_library.device = -1;
    if (open_as(g, LIBRARY, &d, &ops) != NEB_OK) return 1;
    for (int i = 0; neb__group_rank(g) == 1 && i < 60; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
        neb__group_beat(g);
    }
    bool good = neb__device_sum(g, v, 8, NEB_F32) == NEB_OK && v[0] == RANKS;
    neb__group_detach(g);
    neb_device_close(d);
    return !good;
}

static void a_rank_that_is_late_is_awaited(void **state)
{
    (void)state;
    fake_gpu_prepare(RANKS, 64);
    assert_int_equal(forked_ranks(RANKS, 1, one_is_late, NULL), 0);
    fake_gpu_end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_arrive),
        cmocka_unit_test(devices_that_do_not_fit_are_refused),
        cmocka_unit_test(a_rank_that_does_not_come_is_named),
        cmocka_unit_test(a_rank_that_is_late_is_awaited),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
