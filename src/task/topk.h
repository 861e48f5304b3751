/* topk.h: the k largest of a row, in a heap whose root is the least of them; a row enters it only a few times. */
#ifndef NEB_TASK_TOPK_H
#define NEB_TASK_TOPK_H

#include <math.h>
#include <stdint.h>

static inline void neb_best_clear(float *top, int32_t *ids, int32_t k)
{
    for (int32_t j = 0; j < k; j++) top[j] = -INFINITY, ids[j] = -1;
}

static inline void neb_best_offer(float *top, int32_t *ids, int32_t k, float value, int32_t id)
{
    if (!(value > top[0])) return;
    int32_t i = 0;
    for (;;) { /* the root's place sinks until value fits */
        int32_t least = 2 * i + 1;
        if (least + 1 < k && top[least + 1] < top[least]) least++;
        if (least >= k || !(top[least] < value)) break;
        top[i] = top[least], ids[i] = ids[least];
        i = least;
    }
    top[i] = value, ids[i] = id;
}

/* Places that nothing came to: id -1, value 0. */
static inline void neb_best_finish(float *top, const int32_t *ids, int64_t n)
{
    for (int64_t j = 0; j < n; j++)
        if (ids[j] < 0) top[j] = 0;
}

#endif
