/* plan.c: placing allocations of known lifetime in one arena.
 *
 * The method is greedy by size: it places the largest allocation first, each at the lowest offset that fits
 * between the placed allocations whose lifetimes overlap its own. On transformers the result is within a few
 * percent of the lower bound, which is the largest sum of bytes alive at one tick. */
#include "tensor/plan.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

void neb__life_reset(struct neb_lifetimes *l)
{
    l->n = 0;
    l->tick = 0;
}

void neb__life_free(struct neb_lifetimes *l)
{
    neb__free(l->list);
    *l = (struct neb_lifetimes){0};
}

int neb__life_add(struct neb_lifetimes *l, size_t bytes)
{
    if (l->n == l->cap) {
        int cap = l->cap ? l->cap * 2 : 256;
        struct neb_alloc *list = neb__realloc(l->list, (size_t)cap * sizeof *list);
        if (!list) return -1;
        l->list = list;
        l->cap = cap;
    }
    l->list[l->n] =
        (struct neb_alloc){.bytes = (bytes + 255) & ~(size_t)255, .birth = l->tick, .death = l->tick};
    return l->n++;
}

struct order {
    size_t bytes;
    int index;
};

static int larger_first(const void *a, const void *b)
{
    const struct order *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return x->index - y->index;
}

static bool together(const struct neb_alloc *a, const struct neb_alloc *b)
{
    return a->birth <= b->death && b->birth <= a->death;
}

/* `placed` holds the indices placed so far, sorted by offset. */
static size_t lowest_fit(const struct neb_alloc *list, const int *placed, int n, const struct neb_alloc *a)
{
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        const struct neb_alloc *b = &list[placed[i]];
        if (!together(a, b)) continue;
        if (b->offset >= at + a->bytes) break;
        if (b->offset + b->bytes > at) at = b->offset + b->bytes;
    }
    return at;
}

static void insert_sorted(const struct neb_alloc *list, int *placed, int n, int index)
{
    int i = n;
    for (; i > 0 && list[placed[i - 1]].offset > list[index].offset; i--) placed[i] = placed[i - 1];
    placed[i] = index;
}

static neb_status bound(const struct neb_lifetimes *l, size_t *out)
{
    size_t *change = NEB_NEW_ARRAY(size_t, (size_t)l->tick + 2), now = 0, most = 0;
    if (!change) return NEB_ERR_NOMEM;
    for (int i = 0; i < l->n; i++) {
        change[l->list[i].birth] += l->list[i].bytes;
        change[l->list[i].death + 1] -=
            l->list[i].bytes; /* modular arithmetic: the running sum never wraps */
    }
    for (int i = 0; i < l->tick + 2; i++) {
        now += change[i];
        if (now > most) most = now;
    }
    neb__free(change);
    *out = most;
    return NEB_OK;
}

neb_status neb__plan_make(const struct neb_lifetimes *l, uint64_t key, struct neb_plan **out)
{
    size_t n = (size_t)l->n;
    struct neb_plan *p = NEB_NEW(struct neb_plan);
    struct order *order = NEB_NEW_ARRAY(struct order, n);
    int *placed = NEB_NEW_ARRAY(int, n);
    struct neb_alloc *list = NEB_NEW_ARRAY(struct neb_alloc, n);
    if (!p || !order || !placed || !list || bound(l, &p->lower_bound) != NEB_OK) {
        neb__free(p);
        neb__free(order);
        neb__free(placed);
        neb__free(list);
        return neb__fail(NEB_ERR_NOMEM, "out of memory while planning %d allocations", l->n);
    }
    if (n) memcpy(list, l->list, n * sizeof *list);
    for (int i = 0; i < l->n; i++) order[i] = (struct order){list[i].bytes, i};
    qsort(order, n, sizeof *order, larger_first);
    for (int i = 0; i < l->n; i++) {
        struct neb_alloc *a = &list[order[i].index];
        a->offset = lowest_fit(list, placed, i, a);
        insert_sorted(list, placed, i, order[i].index);
        if (a->offset + a->bytes > p->bytes) p->bytes = a->offset + a->bytes;
        p->unplanned += a->bytes;
    }
    neb__free(order);
    neb__free(placed);
    p->key = key;
    p->list = list;
    p->n = l->n;
    *out = p;
    return NEB_OK;
}

void neb__plan_free(struct neb_plan *p)
{
    if (!p) return;
    neb__free(p->list);
    neb__free(p->contributions);
    neb__free(p->units.list);
    neb__free(p);
}
