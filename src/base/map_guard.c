/* map_guard.c: see map_guard.h.
 *
 * The kernel sends SIGBUS to the thread that reads, at the instruction that reads. The handler looks for a guard of that thread
 * around the address, puts a page of zeros there, notes it in the guard and returns: the instruction is made once more and
 * succeeds. Nothing is jumped over, so locks and the stack of the reader stay as they are. A SIGBUS without a guard, or one that a
 * process sent, goes to whoever handled it before, and by default ends the process as ever. Others may have taken the signal over
 * since, so it is asked for anew with each file; a handler that calls ours, and is called by it, is left at its second turn. */
#define _GNU_SOURCE
#include "base/map_guard.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

static _Thread_local struct neb_map_guard *innermost;
static _Thread_local volatile sig_atomic_t passing; /* on to another handler */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction slots[2]; /* of `before`; changed under the lock, and never the one in use */
static _Atomic(const struct sigaction *) before; /* who handled the signal before us */
static uintptr_t page;

/* Whether the address is guarded and has a page now. mmap() is a plain system call here, safe in a handler. */
static bool repair(const void *address)
{
    struct neb_map_guard *g = innermost;
    const char *p = address;
    while (g && (p < g->map || p >= g->map + g->length)) g = g->outer;
    if (!g) return false;
    void *at = (void *)((uintptr_t)p & ~(page - 1));
    if (mmap(at, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) return false;
    g->lost = 1;
    return true;
}

static void on_bus(int number, siginfo_t *info, void *context)
{
    const bool sent = info->si_code <= 0; /* by kill() and the like: there is no address */
    if (!sent && repair(info->si_addr)) return;
    const struct sigaction *old = atomic_load(&before);
    const bool again = passing;
    passing = 1;
    if (!again && old->sa_flags & SA_SIGINFO)
        old->sa_sigaction(number, info, context);
    else if (!again && old->sa_handler != SIG_DFL && old->sa_handler != SIG_IGN)
        old->sa_handler(number);
    else if (!sent || again || old->sa_handler == SIG_DFL) {
        signal(number, SIG_DFL); /* the instruction is made once more, and the process ends by it */
        if (sent) raise(number);
    }
    passing = 0;
}

void neb__map_guard_prepare(void)
{
    struct sigaction now, ours = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK};
    sigemptyset(&ours.sa_mask);
    pthread_mutex_lock(&lock);
    page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const bool known = !sigaction(SIGBUS, NULL, &now);
    const bool is_ours = known && now.sa_flags & SA_SIGINFO && now.sa_sigaction == on_bus;
    if (known && !is_ours) {
        struct sigaction *free_slot = atomic_load(&before) == &slots[0] ? &slots[1] : &slots[0];
        *free_slot = now;
        atomic_store(&before, free_slot);
        sigaction(SIGBUS, &ours, NULL);
    }
    pthread_mutex_unlock(&lock);
}

void neb__map_guard_begin(struct neb_map_guard *g, const void *map, size_t length)
{
    g->map = map;
    g->length = length;
    g->lost = 0;
    g->outer = innermost;
    innermost = g;
    atomic_signal_fence(memory_order_seq_cst);
}

bool neb__map_guard_end(struct neb_map_guard *g)
{
    atomic_signal_fence(memory_order_seq_cst);
    innermost = g->outer;
    return !g->lost;
}
