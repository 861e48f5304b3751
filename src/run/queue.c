/* queue.c: the driver's thread finds its work here: items of the links and of the training loop, and the
 * number of steps that were made.
 *
 * When too many bytes wait, messages are turned away; the links hold them back and are resumed when there is
 * room. */
#include "run/driver.h"
#include "base/mem.h"

#include <errno.h>
#include <time.h>

enum { QUEUE_MAX = 256 << 20 };

void neb__queue_init(struct neb_queue *q)
{
    pthread_condattr_t attr;
    pthread_mutex_init(&q->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&q->wake, &attr);
    pthread_condattr_destroy(&attr);
    q->tail = &q->head;
    q->wake_steps = 1;
}

void neb__item_free(struct neb_item *item)
{
    if (item) neb__free(item->bytes);
    neb__free(item);
}

void neb__queue_free(struct neb_queue *q)
{
    while (q->head) {
        struct neb_item *i = q->head;
        q->head = i->next;
        neb__item_free(i);
    }
    pthread_cond_destroy(&q->wake);
    pthread_mutex_destroy(&q->lock);
}

/* An item takes this of QUEUE_MAX; an empty one takes memory, too. */
static size_t cost(const struct neb_item *item)
{
    return item->size + sizeof *item;
}

void neb__queue_post(struct neb_queue *q, struct neb_item *item)
{
    if (!item) return;
    item->next = NULL;
    pthread_mutex_lock(&q->lock);
    *q->tail = item;
    q->tail = &item->next;
    q->bytes += cost(item);
    pthread_cond_signal(&q->wake);
    pthread_mutex_unlock(&q->lock);
}

bool neb__queue_admits(struct neb_queue *q, bool can_hold)
{
    pthread_mutex_lock(&q->lock);
    bool admits = can_hold && q->bytes <= QUEUE_MAX;
    if (!admits) q->stalled = true;
    pthread_mutex_unlock(&q->lock);
    return admits;
}

void neb__queue_stall(struct neb_queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->stalled = true;
    pthread_mutex_unlock(&q->lock);
}

void neb__queue_step(struct neb_queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->steps++;
    if (q->steps >= q->wake_steps) pthread_cond_signal(&q->wake);
    pthread_mutex_unlock(&q->lock);
}

void neb__queue_wake_at(struct neb_queue *q, uint64_t steps)
{
    pthread_mutex_lock(&q->lock);
    q->wake_steps = steps;
    pthread_mutex_unlock(&q->lock);
}

void neb__queue_close(struct neb_queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->closing = true;
    pthread_cond_broadcast(&q->wake);
    pthread_mutex_unlock(&q->lock);
}

struct neb_turn neb__queue_take(struct neb_queue *q, int64_t wait_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += wait_ms / 1000;
    until.tv_nsec += wait_ms % 1000 * 1000000;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_mutex_lock(&q->lock);
    while (!q->head && q->steps < q->wake_steps && !q->closing)
        if (pthread_cond_timedwait(&q->wake, &q->lock, &until) == ETIMEDOUT) break;
    struct neb_turn turn = {.item = q->head, .steps = q->steps};
    if (q->head) {
        q->bytes -= cost(q->head);
        q->head = q->head->next;
        if (!q->head) q->tail = &q->head;
    }
    turn.resume = q->stalled && q->bytes < QUEUE_MAX / 2;
    if (turn.resume) q->stalled = false;
    q->steps = 0;
    turn.stop = q->closing && !turn.item;
    pthread_mutex_unlock(&q->lock);
    return turn;
}
