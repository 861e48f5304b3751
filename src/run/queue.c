/* queue.c: the driver's thread finds its work here: items of the links and of the training loop, and the
 * number of steps that were made.
 *
 * Every site has a lane, and the lanes take turns. So a site that sends without pause delays the messages of
 * another by one message, not by all that wait. Within a lane items keep their order. When too many bytes of
 * a site wait, or of all sites, messages are turned away; the links hold them back and are resumed when there
 * is room. A site whose lane is empty may always have one message there. */
#include "run/driver.h"
#include "base/mem.h"
#include "run/quota.h"

#include <errno.h>
#include <time.h>

void neb__queue_init(struct neb_queue *q)
{
    pthread_condattr_t attr;
    pthread_mutex_init(&q->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&q->wake, &attr);
    pthread_condattr_destroy(&attr);
    for (int i = 0; i < NEB_LANES; i++) q->lane[i].tail = &q->lane[i].head;
    q->wake_steps = 1;
}

void neb__item_free(struct neb_item *item)
{
    if (item) neb__free(item->bytes);
    neb__free(item);
}

/* An item takes this of the limits; an empty one takes memory, too. */
static size_t cost(const struct neb_item *item)
{
    return item->size + sizeof *item;
}

/* Items of the links are in the lane of their site, all others in the last one. */
static struct neb_lane *lane_of(struct neb_queue *q, const struct neb_item *item)
{
    bool of_links =
        item->type == NEB_ITEM_MESSAGE || item->type == NEB_ITEM_PEER_UP || item->type == NEB_ITEM_PEER_DOWN;
    return &q->lane[of_links && item->peer < NEB_LANES - 1 ? item->peer : NEB_LANES - 1];
}

/* The first item of the next lane that has one; NULL: there is none. */
static struct neb_item *take_item(struct neb_queue *q)
{
    if (!q->items) return NULL;
    do q->turn = (q->turn + 1) % NEB_LANES;
    while (!q->lane[q->turn].head);
    struct neb_lane *l = &q->lane[q->turn];
    struct neb_item *item = l->head;
    l->head = item->next;
    if (!l->head) l->tail = &l->head;
    l->bytes -= cost(item);
    q->bytes -= cost(item);
    q->items--;
    return item;
}

void neb__queue_free(struct neb_queue *q)
{
    struct neb_item *i;
    while ((i = take_item(q))) neb__item_free(i);
    pthread_cond_destroy(&q->wake);
    pthread_mutex_destroy(&q->lock);
}

void neb__queue_post(struct neb_queue *q, struct neb_item *item)
{
    if (!item) return;
    item->next = NULL;
    struct neb_lane *l = lane_of(q, item);
    pthread_mutex_lock(&q->lock);
    *l->tail = item;
    l->tail = &item->next;
    l->bytes += cost(item);
    q->bytes += cost(item);
    q->items++;
    pthread_cond_signal(&q->wake);
    pthread_mutex_unlock(&q->lock);
}

bool neb__queue_admits(struct neb_queue *q, uint16_t site, bool can_hold)
{
    pthread_mutex_lock(&q->lock);
    struct neb_lane *l = &q->lane[site < NEB_LANES - 1 ? site : NEB_LANES - 1];
    bool room = !l->bytes || (l->bytes <= NEB_QUEUE_SITE && q->bytes <= NEB_QUEUE_ALL);
    bool admits = can_hold && room;
    l->stalled |= !room;
    q->stalled |= !admits;
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

/* Whether one of the lanes that turned a message away has room for it now. */
static bool has_room(struct neb_queue *q)
{
    bool any = false, room = false;
    if (q->bytes >= NEB_QUEUE_ALL / 2) return false;
    for (int i = 0; i < NEB_LANES; i++) {
        any |= q->lane[i].stalled;
        room |= q->lane[i].stalled && q->lane[i].bytes < NEB_QUEUE_SITE / 2;
    }
    for (int i = 0; room && i < NEB_LANES; i++) q->lane[i].stalled = false; /* all are offered again */
    return room || !any; /* without any: memory was short */
}

struct neb_turn neb__queue_take(struct neb_queue *q, int64_t wait_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += wait_ms / 1000;
    until.tv_nsec += wait_ms % 1000 * 1000000;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_mutex_lock(&q->lock);
    while (!q->items && q->steps < q->wake_steps && !q->closing)
        if (pthread_cond_timedwait(&q->wake, &q->lock, &until) == ETIMEDOUT) break;
    struct neb_turn turn = {.item = take_item(q), .steps = q->steps};
    turn.resume = q->stalled && has_room(q);
    if (turn.resume) q->stalled = false;
    q->steps = 0;
    turn.stop = q->closing && !turn.item;
    pthread_mutex_unlock(&q->lock);
    return turn;
}
