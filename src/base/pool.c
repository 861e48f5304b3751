/* pool.c: fork-join over a fixed set of threads.
 *
 * A training step makes hundreds of short parallel regions, so waking must be cheap: a worker that finished spins
 * for some microseconds on the generation counter before it sleeps on a condition variable. The caller works too.
 * Tasks are claimed from one atomic counter.
 *
 * Invariant: every worker takes part in every region exactly once: it waits until `generation` leaves the value
 * it last saw, works, and counts `active` down. The caller returns only when active is 0, so fn and arg stay valid
 * while anyone may read them, and no region starts before the last one has been left by all. */
#define _GNU_SOURCE
#include "base/pool.h"
#include "base/mem.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>

#define SPINS 4000

struct neb_pool {
    int threads; /* with the caller */
    bool rehearses;
    int started;
    pthread_t *ids;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    atomic_uint generation; /* one more per region */
    atomic_int next, active;
    atomic_bool stop;
    neb_task_fn fn;
    void *arg;
    int tasks;
    struct worker {
        struct neb_pool *pool;
        int index;
    } * workers;
};

static void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void work(struct neb_pool *p, int worker)
{
    for (;;) {
        int task = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        if (task >= p->tasks) return;
        p->fn(p->arg, task, worker);
    }
}

/* Returns false when the pool stops. */
static bool await_region(struct neb_pool *p, unsigned seen)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&p->generation, memory_order_acquire) != seen) break;
        pause_cpu();
    }
    if (atomic_load_explicit(&p->generation, memory_order_acquire) == seen) {
        pthread_mutex_lock(&p->lock);
        while (!p->stop && atomic_load(&p->generation) == seen) pthread_cond_wait(&p->wake, &p->lock);
        pthread_mutex_unlock(&p->lock);
    }
    return !p->stop;
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct neb_pool *p = w->pool;
    unsigned seen = 0;
    while (await_region(p, seen)) {
        seen++;
        work(p, w->index);
        atomic_fetch_sub_explicit(&p->active, 1, memory_order_release);
    }
    return NULL;
}

int neb__cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set)) return 1;
    int n = CPU_COUNT(&set);
    return n > 0 ? n : 1;
}

neb_status neb__pool_create(int threads, struct neb_pool **out)
{
    if (threads < 0 || threads > 1024)
        return neb__fail(NEB_ERR_INVALID, "threads: %d is not between 0 (one per core) and 1024", threads);
    if (threads == 0) threads = neb__cores();

    struct neb_pool *p = NEB_NEW(struct neb_pool);
    if (!p) return neb__fail(NEB_ERR_NOMEM, "out of memory for a thread pool");
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    p->threads = threads;
    p->ids = NEB_NEW_ARRAY(pthread_t, (size_t)threads);
    p->workers = NEB_NEW_ARRAY(struct worker, (size_t)threads);
    if (!p->ids || !p->workers) {
        neb__pool_destroy(p);
        return neb__fail(NEB_ERR_NOMEM, "out of memory for a pool of %d threads", threads);
    }
    for (int i = 1; i < threads; i++) {
        p->workers[i] = (struct worker){p, i};
        if (pthread_create(&p->ids[i], NULL, worker_main, &p->workers[i])) {
            neb__pool_destroy(p);
            return neb__fail(NEB_ERR_NOMEM, "the system refused thread %d of %d", i + 1, threads);
        }
        p->started++;
    }
    *out = p;
    return NEB_OK;
}

void neb__pool_destroy(struct neb_pool *p)
{
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    atomic_fetch_add(&p->generation, 1);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    for (int i = 1; i <= p->started; i++) pthread_join(p->ids[i], NULL);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    neb__free(p->ids);
    neb__free(p->workers);
    neb__free(p);
}

int neb__pool_threads(const struct neb_pool *p)
{
    return p->threads;
}

void neb__pool_rehearse(struct neb_pool *p)
{
    p->rehearses = true;
}

void neb__pool_run(struct neb_pool *p, neb_task_fn fn, void *arg, int tasks)
{
    if (p->rehearses) return;
    if (p->threads == 1 || tasks <= 1) {
        for (int i = 0; i < tasks; i++) fn(arg, i, 0);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    p->tasks = tasks;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    atomic_store_explicit(&p->active, p->threads - 1, memory_order_relaxed);
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add_explicit(&p->generation, 1, memory_order_release);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    work(p, 0);
    for (int spins = 0; atomic_load_explicit(&p->active, memory_order_acquire) > 0; spins++) {
        if (spins < SPINS)
            pause_cpu();
        else
            sched_yield();
    }
}
