/* test_device_cpu.c: the CPU device in all its instruction sets through the conformance suite; the same bits for every
 * thread count; masks that depend on neither packing nor threads; bad arguments; memory limits; plug-ins. */
#include "check.h"
#include "base/hash.h"
#include "base/mem.h"
#include "device/conform.h"
#include "device/device.h"

#include <nebula/engine.h>
#include <nebula/log.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SANITIZED 0
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#undef SANITIZED
#define SANITIZED 1
#endif
#endif

static const char *const sets[] = {"avx512", "avx2", "plain"};

/* NULL when this processor doesn't have the instruction set. */
static neb_device *open_set(const char *isa, neb_dtype type, int threads)
{
    neb_device *d = NULL;
    struct neb_device_config config = {.compute = type, .threads = threads, .isa = isa};
    check_log_quiet();
    neb_status status = neb_device_open("cpu", &config, &d);
    check_log_restore();
    if (status == NEB_ERR_UNSUPPORTED) return NULL;
    assert_ok(status);
    return d;
}

static void conforms(neb_dtype type)
{
    for (int i = 0; i < 3; i++)
        for (int threads = 1; threads <= 3; threads += 2) {
            if (SANITIZED && threads != 1 + 2 * (i % 2)) continue; /* slow there: one thread count each */
            neb_device *d = open_set(sets[i], type, threads);
            if (!d) continue;
            struct neb_conform_result r;
            assert_ok(neb__conform_run(d, NULL, (uint64_t)(10 + threads), stderr, &r));
            assert_int_equal(r.failures, 0);
            assert_int_equal(r.skipped, 0);
            assert_true(r.checks > 1000);
            neb_device_close(d);
        }
}

static void test_conforms_f32(void **state)
{
    (void)state;
    conforms(NEB_F32);
}

static void test_conforms_bf16(void **state)
{
    (void)state;
    conforms(NEB_BF16);
}

/* The suite must notice a device that is wrong: one whose product forgets beta, and one that writes too far. */
static neb_status gemm_without_beta(void *dev, const struct neb_gemm *a)
{
    struct neb_gemm g = *a;
    g.beta = 0;
    return neb__cpu_ops.gemm(dev, &g);
}

static neb_status act_too_far(void *dev, const struct neb_act_args *a)
{
    neb_status status = neb__cpu_ops.act(dev, a);
    ((uint8_t *)a->y)[(size_t)a->n * 4] = 0;
    return status;
}

static void test_suite_notices(void **state)
{
    (void)state;
    neb_device *d = open_set(NULL, NEB_F32, 1);
    struct neb_device_ops ops = *d->ops;
    const struct neb_device_ops *right = d->ops;
    struct neb_conform_result r;
    d->ops = &ops;
    ops.gemm = gemm_without_beta;
    assert_ok(neb__conform_run(d, "gemm", 1, NULL, &r));
    assert_true(r.failures > 0);
    ops = *right;
    ops.act = act_too_far;
    assert_ok(neb__conform_run(d, "act", 1, NULL, &r));
    assert_true(r.failures > 0);
    ops = *right;
    ops.linear_xent = NULL;
    assert_ok(neb__conform_run(d, "linear_xent", 1, NULL, &r));
    assert_true(r.skipped > 0 && r.failures == 0);
    check_log_quiet();
    assert_status(neb__conform_run(d, "no such case", 1, NULL, &r), NEB_ERR_NOTFOUND);
    check_log_restore();
    d->ops = right;
    neb_device_close(d);
}

/* A linear layer, attention with dropout and a norm: the bits of every result, for several thread counts. */
static void hash_work(int threads, struct neb_hash *out)
{
    enum { ROWS = 150, D = 96, OUT = 130, HEADS = 4 };
    neb_device *d = open_set(NULL, NEB_F32, threads);
    float *x, *w, *y, *dw, *o, *lse, *qkv;
    struct {
        void **p;
        size_t n;
    } want[] = {{(void **)&x, ROWS * D},      {(void **)&w, OUT * D},  {(void **)&y, ROWS * OUT},
                {(void **)&dw, OUT * D},      {(void **)&o, ROWS * D}, {(void **)&lse, HEADS * ROWS},
                {(void **)&qkv, 3 * ROWS * D}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        assert_ok(d->ops->alloc(d->ctx, want[i].n * 4, want[i].p));
        struct neb_rng rng = {i};
        for (size_t j = 0; j < want[i].n; j++) ((float *)*want[i].p)[j] = (float)neb__rng_normal(&rng);
    }
    struct neb_ctl ctl = {.step = 7, .seed = 99};
    const int32_t starts[] = {0, 40, 41, ROWS};
    const uint32_t sample[] = {5, 6, 7};
    struct neb_linear f = {.x = x,
                           .w = w,
                           .y = y,
                           .rows = ROWS,
                           .in = D,
                           .out = OUT,
                           .ldx = D,
                           .ldy = OUT,
                           .act = NEB_ACT_GELU,
                           .alpha = 1};
    struct neb_linear_bwd b = {.g = y,
                               .x = x,
                               .w = w,
                               .dw = dw,
                               .rows = ROWS,
                               .in = D,
                               .out = OUT,
                               .ldg = OUT,
                               .ldx = D,
                               .lddx = D,
                               .alpha = 1};
    struct neb_attn a = {.q = qkv,
                         .k = qkv + D,
                         .v = qkv + 2 * D,
                         .o = o,
                         .lse = lse,
                         .starts_q = starts,
                         .starts_k = starts,
                         .sequences = 3,
                         .q_rows = ROWS,
                         .k_rows = ROWS,
                         .max_q = ROWS,
                         .max_k = ROWS,
                         .heads = HEADS,
                         .kv_heads = HEADS,
                         .head_dim = D / HEADS,
                         .ldq = 3 * D,
                         .ldk = 3 * D,
                         .ldv = 3 * D,
                         .ldo = D,
                         .scale = 0.2f,
                         .causal = 1,
                         .drop = {9000, 3, sample, NULL, &ctl, 0}};
    assert_ok(d->ops->linear(d->ctx, &f));
    assert_ok(d->ops->linear_bwd(d->ctx, &b));
    assert_ok(d->ops->attn(d->ctx, &a));
    struct neb_hasher h;
    assert_ok(neb__hasher_init(&h));
    for (size_t i = 2; i < 6; i++) assert_ok(neb__hasher_update(&h, *want[i].p, want[i].n * 4));
    assert_ok(neb__hasher_final(&h, out));
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) d->ops->free(d->ctx, *want[i].p);
    struct neb_device_info info;
    neb_device_get_info(d, &info);
    assert_true(info.memory_peak > 0);
    neb_device_close(d);
}

static void test_same_bits(void **state)
{
    (void)state;
    struct neb_hash one, other;
    hash_work(1, &one);
    for (int threads = 1; threads <= 5; threads++) {
        hash_work(threads, &other);
        assert_true(neb__hash_equal(&one, &other));
    }
}

/* Products that are packed in slices, in bands and both ways at once: some elements against double precision. */
static void check_product(neb_device *d, int64_t m, int64_t n, int64_t k, int trans_a, int trans_b)
{
    float *a, *b, *c, *sums;
    assert_ok(d->ops->alloc(d->ctx, (size_t)(m * k) * 4, (void **)&a));
    assert_ok(d->ops->alloc(d->ctx, (size_t)(n * k) * 4, (void **)&b));
    assert_ok(d->ops->alloc(d->ctx, (size_t)(m * n) * 4, (void **)&c));
    assert_ok(d->ops->alloc(d->ctx, (size_t)m * 4, (void **)&sums));
    for (int64_t i = 0; i < m * k; i++) a[i] = (float)(int32_t)(i * 2654435761u % 1000) / 500 - 1;
    for (int64_t i = 0; i < n * k; i++) b[i] = (float)(int32_t)(i * 2246822519u % 1000) / 500 - 1;
    if (trans_a && !trans_b) { /* as a layer's dw, with db */
        struct neb_linear_bwd g = {.g = a,
                                   .x = b,
                                   .dw = c,
                                   .db = sums,
                                   .rows = k,
                                   .in = n,
                                   .out = m,
                                   .ldg = m,
                                   .ldx = n,
                                   .lddx = n,
                                   .alpha = 1};
        assert_ok(d->ops->linear_bwd(d->ctx, &g));
    } else {
        struct neb_gemm g = {a, b, c,       m,       n, k, trans_a ? m : k, trans_b ? k : n, n, 1, 0,
                             0, 0, trans_a, trans_b, 1, 0, NEB_F32,         NEB_F32};
        assert_ok(d->ops->gemm(d->ctx, &g));
    }
    for (int64_t s = 0; s < 300; s++) {
        const int64_t i = s == 0 ? m - 1 : s * 7919 % m, j = s == 0 ? n - 1 : s * 104729 % n;
        double want = 0, sum = 0;
        for (int64_t x = 0; x < k; x++) {
            double left = trans_a ? a[x * m + i] : a[i * k + x];
            want += left * (trans_b ? b[j * k + x] : b[x * n + j]);
            sum += left;
        }
        assert_true(fabs(c[i * n + j] - want) < 1e-3 * sqrt((double)k));
        if (trans_a && !trans_b) assert_true(fabs(sums[i] - sum) < 1e-3 * sqrt((double)k));
    }
    d->ops->free(d->ctx, a), d->ops->free(d->ctx, b), d->ops->free(d->ctx, c), d->ops->free(d->ctx, sums);
}

static void test_large_products(void **state)
{
    (void)state;
    neb_device *d = open_set(NULL, NEB_F32, 2);
    check_product(d, 30, 2500, 3000, 0, 1);  /* B in slices */
    check_product(d, 900, 30, 3000, 0, 0);   /* bands */
    check_product(d, 500, 2600, 2900, 1, 0); /* bands, B in slices, sums of A */
    check_product(d, 300, 310, 24000, 0, 0); /* k in slices */
    check_product(d, 90, 100, 70000, 1, 0);
    neb_device_close(d);
}

/* One sample alone, or behind another in a packed batch: its mask is the same. */
static void test_mask_and_packing(void **state)
{
    (void)state;
    enum { T = 21, D = 70, BEFORE = 13 };
    static float alone[T * D], packed[(BEFORE + T) * D], ones[(BEFORE + T) * D];
    int32_t position[BEFORE + T];
    uint32_t sample[BEFORE + T];
    for (int i = 0; i < (BEFORE + T) * D; i++) ones[i] = 1;
    for (int r = 0; r < BEFORE + T; r++) {
        position[r] = r < BEFORE ? r : r - BEFORE;
        sample[r] = r < BEFORE ? 1 : 42;
    }
    struct neb_ctl ctl = {.step = 3, .seed = 8};
    for (int i = 0; i < 3; i++) {
        neb_device *d = open_set(sets[i], NEB_F32, 1 + i);
        if (!d) continue;
        struct neb_dropout_args a = {
            ones, alone, T, D, 0, {20000, 5, sample + BEFORE, position + BEFORE, &ctl, 0}, NEB_F32};
        struct neb_dropout_args b = {ones,   packed, BEFORE + T, D, 0, {20000, 5, sample, position, &ctl, 0},
                                     NEB_F32};
        assert_ok(d->ops->dropout(d->ctx, &a));
        assert_ok(d->ops->dropout(d->ctx, &b));
        assert_memory_equal(alone, packed + BEFORE * D, sizeof alone);
        neb_device_close(d);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    neb_device *d = NULL;
    check_log_quiet();
    assert_status(neb_device_open("cpu", &(struct neb_device_config){.isa = "mmx"}, &d), NEB_ERR_CONFIG);
    assert_status(neb_device_open("cpu", &(struct neb_device_config){.index = 1}, &d), NEB_ERR_NOTFOUND);
    assert_status(neb_device_open("cpu", &(struct neb_device_config){.compute = NEB_I8}, &d), NEB_ERR_DTYPE);
    assert_status(neb_device_open("cpu", &(struct neb_device_config){.threads = -1}, &d), NEB_ERR_INVALID);
    assert_status(neb_device_open("cpu", &(struct neb_device_config){.memory_limit = -1}, &d),
                  NEB_ERR_INVALID);
    assert_status(neb_device_open("../evil", NULL, &d), NEB_ERR_INVALID);
    assert_status(neb_device_open("nosuchdevice", NULL, &d), NEB_ERR_NOTFOUND);
    assert_null(d);
    assert_ok(neb_device_open("cpu", &(struct neb_device_config){.memory_limit = 1 << 20, .threads = 1}, &d));
    void *p, *q;
    assert_ok(d->ops->alloc(d->ctx, 600 << 10, &p));
    assert_int_equal((uintptr_t)p % 256, 0);
    assert_status(d->ops->alloc(d->ctx, 600 << 10, &q), NEB_ERR_NOMEM);
    assert_non_null(strstr(neb_last_error(), "limit"));
    assert_status(d->ops->alloc(d->ctx, SIZE_MAX - 10, &q), NEB_ERR_NOMEM);
    float one = 1;
    struct neb_ctl ctl = {0};
    assert_status(d->ops->axpby(d->ctx, &(struct neb_axpby){&one, &one, 1, 1, 0, NEB_I32}), NEB_ERR_DTYPE);
    assert_status(
        d->ops->act(d->ctx, &(struct neb_act_args){.x = &one, .y = &one, .n = 1, .act = (neb_act)77}),
        NEB_ERR_INVALID);
    assert_status(d->ops->rope(d->ctx, &(struct neb_rope){.x = &one, .rows = 1, .heads = 1, .head_dim = 3}),
                  NEB_ERR_SHAPE);
    assert_status(d->ops->mse(d->ctx, &(struct neb_pair_loss){.loss = {&ctl, NULL, 1, 9}}), NEB_ERR_INVALID);
    assert_status(d->ops->attn(d->ctx, &(struct neb_attn){.heads = 3, .kv_heads = 2}), NEB_ERR_SHAPE);
    struct neb_dropout_args drop = {&one, &one, 1, 1, 0, {.threshold = 65536}, NEB_F32};
    assert_status(d->ops->dropout(d->ctx, &drop), NEB_ERR_INVALID);
    d->ops->free(d->ctx, p);
    /* work memory counts too: a product that needs more than the limit says so, and the device lives on */
    static float big[1024 * 600];
    struct neb_gemm g = {big, big, big, 600, 600, 600, 600, 600,     600,    1,
                         0,   0,   0,   0,   0,   1,   0,   NEB_F32, NEB_F32};
    assert_status(d->ops->gemm(d->ctx, &g), NEB_ERR_NOMEM);
    check_log_restore();
    g.m = g.n = g.k = 10;
    assert_ok(d->ops->gemm(d->ctx, &g));
    neb_device_close(d);
}

/* Every allocation of opening and of the first calls fails once; nothing leaks. */
static void test_allocations_fail(void **state)
{
    (void)state;
    static float x[64 * 64];
    int64_t held = neb__mem_held();
    check_log_quiet();
    for (int64_t n = 1;; n++) {
        neb_device *d = NULL;
        neb__mem_fail_at(n);
        neb_status status = neb_device_open("cpu", &(struct neb_device_config){.threads = 2}, &d);
        struct neb_gemm g = {x, x, x, 64, 64, 64, 64, 64, 64, 1, 0, 0, 0, 0, 0, 1, 0, NEB_F32, NEB_F32};
        if (status == NEB_OK) status = d->ops->gemm(d->ctx, &g);
        neb__mem_fail_at(0);
        neb_device_close(d);
        assert_int_equal(neb__mem_held(), held);
        if (status == NEB_OK) break;
        assert_int_equal(status, NEB_ERR_NOMEM);
        assert_true(n < 20);
    }
    check_log_restore();
}

static void test_plugins(void **state)
{
    (void)state;
    neb_device *d = NULL;
    setenv("NEBULA_PLUGIN_PATH", "/nowhere:" NEB_TEST_PLUGINS, 1);
    assert_ok(neb_device_open("dummy", &(struct neb_device_config){.threads = 1}, &d));
    struct neb_device_info info;
    neb_device_get_info(d, &info);
    assert_string_equal(info.description, "a dummy");
    neb_device_close(d);
    d = NULL;
    check_log_quiet();
    /* the dummy says why it refuses, through the host's callback */
    assert_status(neb_device_open("dummy", &(struct neb_device_config){.index = 3}, &d), NEB_ERR_NOTFOUND);
    assert_non_null(strstr(neb_last_error(), "the dummy has no device 3"));
    assert_status(neb_device_open("dummy_old", NULL, &d), NEB_ERR_VERSION);
    assert_non_null(strstr(neb_last_error(), "rebuild the plug-in"));
    assert_status(neb_device_open("dummy_small", NULL, &d), NEB_ERR_VERSION);
    assert_status(neb_device_open("dummy_holes", NULL, &d), NEB_ERR_UNSUPPORTED);
    assert_non_null(strstr(neb_last_error(), "gemm"));
    assert_status(neb_device_open("dummy_empty", NULL, &d), NEB_ERR_UNSUPPORTED);
    assert_status(neb_device_open("dummy_text", NULL, &d), NEB_ERR_UNSUPPORTED);
    check_log_restore();
    assert_null(d);
}

/* The log of neb_device_open("auto"): its last line. */
static void keep_line(void *arg, neb_log_level level, const char *line)
{
    (void)level;
    snprintf(arg, 300, "%s", line);
}

static void open_auto(const char *plugin, char *description, size_t size)
{
    char dir[200], link[260], file[400];
    neb_device *d = NULL;
    struct neb_device_info info;
    check_make_dir(dir, sizeof dir);
    snprintf(link, sizeof link, "%s/libnebula-i-cuda.so", dir);
    snprintf(file, sizeof file, "%s/libnebula-i-%s.so", NEB_TEST_PLUGINS, plugin);
    assert_int_equal(symlink(file, link), 0);
    setenv("NEBULA_PLUGIN_PATH", dir, 1);
    assert_ok(neb_device_open("auto", &(struct neb_device_config){.threads = 1}, &d));
    neb_device_get_info(d, &info);
    snprintf(description, size, "%s", info.description);
    neb_device_close(d);
    check_remove_dir(dir);
}

/* A plug-in that cannot be used is no error: the CPU takes its place, and one line says why. */
static void test_auto(void **state)
{
    (void)state;
    char line[300] = "", device[128];
    neb_log_set_sink(keep_line, line);
    open_auto("dummy_old", device, sizeof device);
    neb_log_set_sink(NULL, NULL);
    assert_string_not_equal(device, "a dummy");
    assert_non_null(strstr(line, "device auto: computing on the CPU, because the GPU cannot be used: "));
    assert_non_null(strstr(line, "rebuild the plug-in"));
    open_auto("dummy", device, sizeof device);
    assert_string_equal(device, "a dummy");
}

/* ---- a plug-in in the making ---- */

static void *called_with;

static neb_status note_muon(void *dev, const struct neb_muon_args *a)
{
    (void)a;
    called_with = dev;
    return NEB_OK;
}

static neb_status note_facts(void *dev, struct neb_comm_facts *out)
{
    (void)out;
    called_with = dev;
    return NEB_OK;
}

static neb_status note_exchange(void *dev, void *comm, const struct neb_comm_exchange *x)
{
    (void)comm, (void)x;
    called_with = dev;
    return NEB_OK;
}

/* Where the host helps out, the plug-in's own slots still get its own context, whatever its number is. */
static void test_wrapped_slots(void **state)
{
    (void)state;
    neb_device *d = NULL;
    struct neb_comm_facts facts;
    assert_int_equal(neb_device_open("cpu", NULL, &d), NEB_OK);
    struct neb_device_ops ops = *d->ops;
    void *own = d->ctx;
    ops.name = "made";
    ops.flags = NEB_DEVICE_HOST_PRIMITIVES;
    ops.muon = note_muon;
    ops.comm_facts = note_facts;
    ops.exchange = note_exchange;
    d->ops = &ops;
    d->config.index = 1;
    assert_int_equal(neb__host_ops_wrap(d), NEB_OK);
    assert_ptr_not_equal(d->ctx, own);
    assert_int_equal(d->ops->muon(d->ctx, &(struct neb_muon_args){0}), NEB_OK);
    assert_ptr_equal(called_with, own);
    called_with = NULL;
    assert_int_equal(d->ops->comm_facts(d->ctx, &facts), NEB_OK);
    assert_ptr_equal(called_with, own);
    called_with = NULL;
    assert_int_equal(d->ops->exchange(d->ctx, NULL, &(struct neb_comm_exchange){0}), NEB_OK);
    assert_ptr_equal(called_with, own);
    neb_device_close(d);
}

/* A plug-in that exchanges values has all slots for it, or none. */
static void test_exchange_slots(void **state)
{
    (void)state;
#define AT(slot) offsetof(struct neb_device_ops, slot)
    const size_t at[] = {AT(comm_facts), AT(comm_id),    AT(comm_open), AT(exchange),
                         AT(comm_state), AT(comm_abort), AT(comm_close)};
#undef AT
    const int n = sizeof at / sizeof *at;
    void (*const some)(void) = (void (*)(void))note_facts; /* the loader only looks for holes */
    neb_device *d = NULL;
    assert_ok(neb_device_open("cpu", NULL, &d));
    check_log_quiet();
    for (int missing = 0; missing <= n; missing++) {
        struct neb_device_ops ops = *d->ops;
        for (int i = 0; i < n; i++)
            if (i != missing) memcpy((char *)&ops + at[i], (const void *)&some, sizeof some);
        assert_status(neb__device_check_ops(&ops, "here"), missing < n ? NEB_ERR_UNSUPPORTED : NEB_OK);
    }
    struct neb_device_ops half = *d->ops;
    memcpy(&half.exchange_beside, (const void *)&some, sizeof some);
    assert_status(neb__device_check_ops(&half, "here"), NEB_ERR_UNSUPPORTED); /* it could never be joined */
    check_log_restore();
    neb_device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conforms_f32),   cmocka_unit_test(test_conforms_bf16),
        cmocka_unit_test(test_suite_notices),  cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_large_products), cmocka_unit_test(test_mask_and_packing),
        cmocka_unit_test(test_refusals),       cmocka_unit_test(test_allocations_fail),
        cmocka_unit_test(test_wrapped_slots),  cmocka_unit_test(test_exchange_slots),
        cmocka_unit_test(test_plugins),        cmocka_unit_test(test_auto),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
