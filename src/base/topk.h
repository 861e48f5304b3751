/* topk.h: the k largest values of a row, with their ids. Values are offered one after the other. Nearly all
 * of them are no larger than the k-th best so far, which costs one comparison. Two forms keep the best:
 *
 *     list   best first, the lower id first among equals. A new value moves the smaller ones down. For a
 *            small k
 *     heap   the least at the root, the others in the heap's order. A new value sinks from the root. Among
 *            equals the heap's shape decides which one stays. For any k
 *
 * One does not stand in for the other: a loss sums what a heap holds in the heap's order, so that order is
 * part of the result. */
#ifndef NEB_BASE_TOPK_H
#define NEB_BASE_TOPK_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

/* ---- list ---------------------------------------------------------------------------------------------- */

static inline bool neb__topk_before(float value, int32_t id, float other, int32_t other_id)
{
    return value > other || (value == other && id < other_id);
}

/* *n of the k places are taken. The first k values enter whatever they are. */
static inline void neb__topk_list_offer(float *top, int32_t *ids, int32_t k, int32_t *n, float value,
                                        int32_t id)
{
    if (*n == k && !neb__topk_before(value, id, top[k - 1], ids[k - 1])) return;
    int32_t at = *n < k ? (*n)++ : k - 1;
    for (; at > 0 && neb__topk_before(value, id, top[at - 1], ids[at - 1]); at--)
        top[at] = top[at - 1], ids[at] = ids[at - 1];
    top[at] = value, ids[at] = id;
}

/* Puts a list in the order of its ids. */
static inline void neb__topk_list_by_id(float *top, int32_t *ids, int32_t n)
{
    for (int32_t i = 1; i < n; i++) {
        const float value = top[i];
        const int32_t id = ids[i];
        int32_t at = i;
        for (; at > 0 && ids[at - 1] > id; at--) top[at] = top[at - 1], ids[at] = ids[at - 1];
        top[at] = value, ids[at] = id;
    }
}

/* ---- heap ---------------------------------------------------------------------------------------------- */

static inline void neb__topk_heap_clear(float *top, int32_t *ids, int32_t k)
{
    for (int32_t i = 0; i < k; i++) top[i] = -INFINITY, ids[i] = -1;
}

static inline void neb__topk_heap_offer(float *top, int32_t *ids, int32_t k, float value, int32_t id)
{
    if (!(value > top[0])) return;
    int32_t at = 0;
    for (;;) { /* the root's place sinks until value fits */
        int32_t least = 2 * at + 1;
        if (least + 1 < k && top[least + 1] < top[least]) least++;
        if (least >= k || !(top[least] < value)) break;
        top[at] = top[least], ids[at] = ids[least];
        at = least;
    }
    top[at] = value, ids[at] = id;
}

/* Places that no value came to: id -1, value 0. n: all places of one or several rows. */
static inline void neb__topk_zero_empty(float *top, const int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0) top[i] = 0;
}

#endif
