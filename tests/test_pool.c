/* test_pool.c: every task runs exactly once, whatever the number of threads; also under TSan. */
#include "check.h"
#include "base/mem.h"
#include "base/pool.h"

#include <string.h>

static void mark(void *arg, int task, int worker)
{
    (void)worker;
    ((int *)arg)[task]++;
}

static void every_task_once(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 5; threads++) {
        struct neb_pool *pool;
        assert_ok(neb__pool_create(threads, &pool));
        assert_int_equal(neb__pool_threads(pool), threads);
        int hits[257];
        for (int round = 0; round < 300; round++) {
            int tasks = round % 257;
            memset(hits, 0, sizeof hits);
            neb__pool_run(pool, mark, hits, tasks);
            for (int i = 0; i < 257; i++) assert_int_equal(hits[i], i < tasks);
        }
        neb__pool_destroy(pool);
    }
}

static void bad_counts_and_no_memory(void **state)
{
    (void)state;
    struct neb_pool *pool = NULL;
    int64_t held = neb__mem_held();
    check_log_quiet();
    assert_status(neb__pool_create(-1, &pool), NEB_ERR_INVALID);
    assert_status(neb__pool_create(5000, &pool), NEB_ERR_INVALID);
    for (int i = 1; i <= 3; i++) {
        neb__mem_fail_at(i);
        assert_status(neb__pool_create(2, &pool), NEB_ERR_NOMEM);
        assert_int_equal(neb__mem_held(), held);
    }
    neb__mem_fail_at(0);
    check_log_restore();
    assert_null(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_task_once),
        cmocka_unit_test(bad_counts_and_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
