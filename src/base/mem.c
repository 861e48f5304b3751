/* mem.c: malloc with a failure switch and a balance.
 *
 * All blocks come from malloc/posix_memalign, so free() releases each of them and the sanitizers see them. The
 * counters are relaxed atomics: an allocation on a hot path is a defect anyway. */
#include "base/mem.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static atomic_llong made, held, fail_at;

static int refuse(void)
{
    long long n = atomic_fetch_add_explicit(&made, 1, memory_order_relaxed) + 1;
    return n == atomic_load_explicit(&fail_at, memory_order_relaxed);
}

static void *balance(void *p)
{
    if (p) atomic_fetch_add_explicit(&held, 1, memory_order_relaxed);
    return p;
}

void *neb__malloc(size_t n)
{
    return refuse() ? NULL : balance(malloc(n ? n : 1));
}

void *neb__calloc(size_t count, size_t size)
{
    if (size && count > SIZE_MAX / size) return NULL;
    return refuse() ? NULL : balance(calloc(count ? count : 1, size ? size : 1));
}

void *neb__realloc(void *p, size_t n)
{
    if (!p) return neb__malloc(n);
    return refuse() ? NULL : realloc(p, n ? n : 1);
}

void *neb__aligned(size_t n)
{
    void *p = NULL;
    if (refuse() || posix_memalign(&p, 64, n ? n : 64)) return NULL;
    return balance(p);
}

char *neb__strdup(const char *s)
{
    size_t n = strlen(s) + 1;
    char *p = neb__malloc(n);
    return p ? memcpy(p, s, n) : NULL;
}

void neb__free(void *p)
{
    if (p) atomic_fetch_sub_explicit(&held, 1, memory_order_relaxed);
    free(p);
}

void neb__mem_fail_at(int64_t n)
{
    atomic_store(&made, 0);
    atomic_store(&fail_at, n);
}

int64_t neb__mem_count(void)
{
    return atomic_load(&made);
}

int64_t neb__mem_held(void)
{
    return atomic_load(&held);
}
