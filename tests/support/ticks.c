/* ticks.c: see ticks.h. Looking more often than the others brings the clock no further: a rank that ran ahead would otherwise have
 * looks to spare, and the others' limits would pass while it does not run. */
#include "ticks.h"
#include "check.h"
#include "forked.h"
#include "group/group_internal.h"

#include <stdatomic.h>

enum { RANKS = 32 };

static struct common {
    _Atomic int64_t now;         /* ticks, from 1 */
    _Atomic int64_t seen[RANKS]; /* the last tick at which the rank has looked; 0: it has not yet */
    _Atomic int left[RANKS];
} * common;

static int own, all;
static int64_t tick_ns;

static int64_t look(void)
{
    int64_t now = atomic_load(&common->now);
    bool last = true;
    atomic_store(&common->seen[own], now);
    for (int r = 0; r < all; r++)
        last = last && (atomic_load(&common->left[r]) || atomic_load(&common->seen[r]) >= now);
    if (last) atomic_compare_exchange_strong(&common->now, &now, now + 1);
    return atomic_load(&common->now) * tick_ns;
}

void ticks_begin(int ranks, double tick_s)
{
    assert_true(ranks <= RANKS);
    all = ranks;
    tick_ns = (int64_t)(tick_s * 1e9);
    common = forked_memory(sizeof *common);
    atomic_store(&common->now, 1);
}

void ticks_end(void)
{
    forked_free(common, sizeof *common);
}

void ticks_follow(int rank)
{
    own = rank;
    neb__group_clock = look;
}

void ticks_without(int rank)
{
    atomic_store(&common->left[rank], 1);
}
