/* pool.h: the one thread pool of a process.
 *
 * A successful create owes a destroy. `run` calls fn(arg, task, worker) for every task in [0, tasks), on the
 * calling thread (worker 0) and the pool's threads (workers 1…), and returns when all are done. Any worker may get
 * any task, so a task must write only what belongs to it. One `run` at a time; a task must not call `run`. */
#ifndef NEB_BASE_POOL_H
#define NEB_BASE_POOL_H

#include "base/status.h"

struct neb_pool;

typedef void (*neb_task_fn)(void *arg, int task, int worker);

/* threads 0: one per core this process may use. NEB_ERR_NOMEM; NEB_ERR_INVALID: threads < 0 or > 1024. */
neb_status neb__pool_create(int threads, struct neb_pool **out);
void neb__pool_destroy(struct neb_pool *pool); /* NULL is fine */
int neb__pool_threads(const struct neb_pool *pool);
void neb__pool_run(struct neb_pool *pool, neb_task_fn fn, void *arg, int tasks);

/* From now on run() returns at once and no task runs: for rehearsals of what a program takes, not of what it computes. */
void neb__pool_rehearse(struct neb_pool *pool);

int neb__cores(void); /* cores this process may use */

#endif
