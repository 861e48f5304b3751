/* test_cuda.c: what the conformance suite cannot see of the CUDA device: the memory cap, copies beside the computation,
 * recordings. Without a usable GPU it says so in one line and passes; that the plug-in loads and refuses cleanly is
 * then all there is to check. */
#include "check.h"
#include "tensor/device.h"

#include <nebula/engine.h>
#include <nebula/log.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static neb_device *open_with(int64_t limit)
{
    neb_device *d = NULL;
    struct neb_device_config config = {.compute = NEB_F32, .memory_limit = limit};
    setenv("NEBULA_PLUGIN_PATH", NEB_TEST_CUDA, 1);
    neb_log_set_level(NEB_LOG_NONE);
    neb_status status = neb_device_open("cuda", &config, &d);
    neb_log_set_level(NEB_LOG_WARN);
    if (status == NEB_OK) return d;
    static int said;
    if (!said++) printf("%s; skipped: the memory cap, side copies and recordings\n", neb_last_error());
    assert_true(status == NEB_ERR_NOTFOUND ||
                status == NEB_ERR_UNSUPPORTED); /* nothing else is a clean refusal */
    return NULL;
}

static void test_memory_cap(void **state)
{
    (void)state;
    const size_t mib = 1 << 20, limit = 512 * mib;
    void *held[64] = {0}, *p;
    int n = 0;
    neb_device *d = open_with((int64_t)limit);
    if (!d) return;
    neb_log_set_level(NEB_LOG_NONE);
    while (n < 64 && d->ops->alloc(d->ctx, 64 * mib, &held[n]) == NEB_OK) n++;
    assert_in_range(n, 4, 7); /* the device's own workspace counts too */
    assert_non_null(strstr(neb_last_error(), "cannot allocate 64.0 MiB"));
    assert_int_equal(d->ops->alloc(d->ctx, 64 * mib, &p), NEB_ERR_NOMEM);
    struct neb_device_info info;
    neb_device_get_info(d, &info);
    assert_true(info.memory_used <= (int64_t)limit && info.memory_peak <= (int64_t)limit);
    d->ops->free(d->ctx, held[--n]); /* what was freed serves the next request, whole or in another size */
    assert_int_equal(d->ops->alloc(d->ctx, 64 * mib, &held[n++]), NEB_OK);
    d->ops->free(d->ctx, held[--n]);
    assert_int_equal(d->ops->alloc(d->ctx, 16 * mib, &p), NEB_OK);
    d->ops->free(d->ctx, p);
    while (n > 0) d->ops->free(d->ctx, held[--n]);
    neb_log_set_level(NEB_LOG_WARN);
    neb_device_close(d);
}

enum { N = 1 << 20 };

static void test_side_copies(void **state)
{
    (void)state;
    neb_device *d = open_with(0);
    if (!d) return;
    const struct neb_device_ops *ops = d->ops;
    float *x, *y, *from, *to;
    uint64_t fence;
    int done = 0;
    assert_int_equal(ops->alloc(d->ctx, N * 4, (void **)&x), NEB_OK);
    assert_int_equal(ops->alloc(d->ctx, N * 4, (void **)&y), NEB_OK);
    assert_int_equal(ops->host_alloc(d->ctx, N * 4, (void **)&from), NEB_OK);
    assert_int_equal(ops->host_alloc(d->ctx, N * 4, (void **)&to), NEB_OK);
    for (int round = 0; round < 100; round++) { /* more rounds than there are fences in the ring */
        for (int i = 0; i < N; i += 4099) from[i] = (float)(i + round);
        assert_int_equal(ops->side_upload(d->ctx, x, from, N * 4, &fence), NEB_OK);
        assert_int_equal(ops->fence_join(d->ctx, fence), NEB_OK);
        struct neb_axpby twice = {.x = x, .y = y, .n = N, .a = 2, .type = NEB_F32};
        assert_int_equal(ops->axpby(d->ctx, &twice), NEB_OK);
        assert_int_equal(ops->side_download(d->ctx, to, y, N * 4, &fence), NEB_OK);
        assert_int_equal(ops->fence_wait(d->ctx, fence), NEB_OK);
        assert_int_equal(ops->fence_done(d->ctx, fence, &done), NEB_OK);
        assert_int_equal(done, 1);
        for (int i = 0; i < N; i += 4099) assert_true(to[i] == 2 * (float)(i + round));
    }
    neb_log_set_level(NEB_LOG_NONE);
    assert_int_equal(ops->fence_wait(d->ctx, fence + 1), NEB_ERR_INVALID);
    neb_log_set_level(NEB_LOG_WARN);
    ops->host_free(d->ctx, from);
    ops->host_free(d->ctx, to);
    ops->free(d->ctx, x);
    ops->free(d->ctx, y);
    neb_device_close(d);
}

static void test_recording(void **state)
{
    (void)state;
    neb_device *d = open_with(0);
    if (!d) return;
    const struct neb_device_ops *ops = d->ops;
    float *x, host[256];
    void *graph = NULL, *p;
    struct neb_axpby add;
    assert_int_equal(ops->alloc(d->ctx, sizeof host, (void **)&x), NEB_OK);
    for (int i = 0; i < 256; i++) host[i] = 1;
    assert_int_equal(ops->upload(d->ctx, x, host, sizeof host), NEB_OK);
    add = (struct neb_axpby){.x = x, .y = x, .n = 256, .a = 1, .b = 1, .type = NEB_F32};
    assert_int_equal(ops->graph_begin(d->ctx), NEB_OK);
    assert_int_equal(ops->axpby(d->ctx, &add), NEB_OK);
    neb_log_set_level(NEB_LOG_NONE);
    assert_int_equal(ops->alloc(d->ctx, 1024, &p), NEB_ERR_STATE); /* refused, and the recording goes on */
    assert_int_equal(ops->upload(d->ctx, x, host, sizeof host), NEB_ERR_STATE);
    assert_int_equal(ops->download(d->ctx, host, x, sizeof host), NEB_ERR_STATE);
    assert_int_equal(ops->sync(d->ctx), NEB_ERR_STATE);
    neb_log_set_level(NEB_LOG_WARN);
    assert_int_equal(ops->graph_end(d->ctx, &graph), NEB_OK);
    for (int i = 0; i < 5; i++) assert_int_equal(ops->graph_launch(d->ctx, graph), NEB_OK);
    assert_int_equal(ops->download(d->ctx, host, x, sizeof host), NEB_OK);
    for (int i = 0; i < 256; i++) assert_true(host[i] == 32);
    ops->graph_free(d->ctx, graph);
    ops->free(d->ctx, x);
    neb_device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_cap),
        cmocka_unit_test(test_side_copies),
        cmocka_unit_test(test_recording),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
