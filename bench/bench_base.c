/* bench_base.c: the cost of the foundations: an empty parallel region, SHA-256, memcpy. */
#include "bench.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/pool.h"

#include <string.h>

enum { REPEAT = 15, REGIONS = 2000 };

static void nothing(void *arg, int task, int worker)
{
    (void)arg, (void)task, (void)worker;
}

static double region_us(struct neb_pool *pool)
{
    int64_t start = neb__now_ns();
    for (int i = 0; i < REGIONS; i++) neb__pool_run(pool, nothing, NULL, neb__pool_threads(pool));
    return neb__seconds_since(start) / REGIONS * 1e6;
}

static int run(int argc, char **argv)
{
    bool json = neb__bench_json(&argc, argv);
    const size_t n = 64 << 20;
    struct neb_pool *pool = NULL;
    uint8_t *a = neb__aligned(n), *b = neb__aligned(n);
    struct neb_figures *f = neb__figures_begin("base", json);
    if (!a || !b || !f || neb__pool_create(0, &pool) != NEB_OK) return 1;
    memset(a, 1, n);
    memset(b, 2, n);

    double region[REPEAT], copy[REPEAT], sha[REPEAT];
    for (int r = 0; r < REPEAT; r++) {
        struct neb_hash h;
        region[r] = region_us(pool);
        int64_t t = neb__now_ns();
        memcpy(b, a, n);
        copy[r] = (double)n / neb__seconds_since(t) / 1e9;
        t = neb__now_ns();
        neb__hash(b, n / 8, &h);
        sha[r] = (double)n / 8 / neb__seconds_since(t) / 1e9;
    }
    neb__figures_add(f, "pool.region", neb__figures_median(region, REPEAT), "us", NEB_AT_MOST, 20);
    neb__figures_add(f, "memcpy", neb__figures_median(copy, REPEAT), "GB/s", NEB_REPORT, 0);
    neb__figures_add(f, "sha256", neb__figures_median(sha, REPEAT), "GB/s", NEB_REPORT, 0);
    neb__pool_destroy(pool);
    neb__free(a);
    neb__free(b);
    return neb__figures_end(f);
}

const struct neb_bench neb__bench_base = {"base", "thread pool, hash and copy rates", run, NULL};
