/* prefetch.c: a ring of batches between one producer and one consumer.
 *
 * A slot goes through the states free, being filled, ready, with the consumer, and free again. Each ready
 * slot carries the stream's position after its batch, because the stream itself is already further: a
 * checkpoint needs the consumer's place, not the producer's. Invariant: taken <= made <= taken + depth - out,
 * where `out` batches are with the consumer. */
#include "text/prefetch.h"
#include "base/clock.h"
#include "base/mem.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { MAX_DEPTH = 4096, MAX_POSITION = 64 << 20 };

struct slot {
    struct neb_batch *batch;
    struct neb_buf position;
    bool ready, out;
};

struct neb_prefetch {
    struct neb_batches *stream;
    int depth;
    struct slot *slot; /* (depth) */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t made, taken;
    bool stop;
    neb_status end; /* why the producer ended */
    char why[512];
    struct neb_buf position; /* after the batch that was got last */
    double waited;
};

/* Fills one slot; no other thread uses the slot meanwhile. */
static neb_status produce(struct neb_prefetch *p, struct slot *s)
{
    NEB_TRY(neb__batches_next(p->stream, s->batch));
    neb__buf_clear(&s->position);
    return neb__batches_save(p->stream, &s->position);
}

static void *run(void *arg)
{
    struct neb_prefetch *p = arg;
    pthread_mutex_lock(&p->lock);
    while (!p->stop && p->end == NEB_OK) {
        struct slot *s = &p->slot[p->made % (uint64_t)p->depth];
        if (s->ready || s->out) {
            pthread_cond_wait(&p->changed, &p->lock);
            continue;
        }
        pthread_mutex_unlock(&p->lock);
        neb_status status = produce(p, s);
        pthread_mutex_lock(&p->lock);
        if (status == NEB_OK) {
            s->ready = true;
            p->made++;
        } else {
            p->end = status;
            snprintf(p->why, sizeof p->why, "%s", neb_last_error());
        }
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void release(struct neb_prefetch *p)
{
    for (int i = 0; i < p->depth; i++) {
        neb__batch_free(p->slot[i].batch);
        neb__buf_free(&p->slot[i].position);
    }
    neb__free(p->slot);
    neb__buf_free(&p->position);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    neb__free(p);
}

neb_status neb__prefetch_start(struct neb_batches *s, int depth, struct neb_prefetch **out)
{
    if (depth < 2 || depth > MAX_DEPTH)
        return neb__fail(NEB_ERR_INVALID, "cannot prepare %d batches ahead; 2 to %d are possible", depth,
                         MAX_DEPTH);
    struct neb_prefetch *p = NEB_NEW(struct neb_prefetch);
    struct slot *slots = NEB_NEW_ARRAY(struct slot, (size_t)depth);
    if (!p || !slots) {
        neb__free(p);
        neb__free(slots);
        return neb__fail(NEB_ERR_NOMEM, "not enough memory to prepare %d batches", depth);
    }
    p->stream = s;
    p->slot = slots;
    p->depth = depth;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    neb__buf_init(&p->position, MAX_POSITION);
    for (int i = 0; i < depth; i++) neb__buf_init(&p->slot[i].position, MAX_POSITION);
    neb_status status = neb__batches_save(s, &p->position);
    for (int i = 0; i < depth && status == NEB_OK; i++) status = neb__batches_batch(s, &p->slot[i].batch);
    if (status == NEB_OK && pthread_create(&p->thread, NULL, run, p))
        status = neb__fail(NEB_ERR_IO, "cannot start the thread that prepares batches");
    if (status != NEB_OK) {
        release(p);
        return status;
    }
    *out = p;
    return NEB_OK;
}

/* Holding the lock: until the batch with this number is made, or none is made any more. */
static neb_status await(struct neb_prefetch *p, uint64_t number)
{
    if (p->made <= number && p->end == NEB_OK) {
        int64_t start = neb__now_ns();
        while (p->made <= number && p->end == NEB_OK) pthread_cond_wait(&p->changed, &p->lock);
        p->waited += neb__seconds_since(start);
    }
    return p->made > number ? NEB_OK : p->end;
}

static neb_status ended(const struct neb_prefetch *p, neb_status status)
{
    return status == NEB_OK || status == NEB_ERR_AGAIN ? status : neb__quiet(status, "%s", p->why);
}

neb_status neb__prefetch_await(struct neb_prefetch *p, int n)
{
    pthread_mutex_lock(&p->lock);
    neb_status status = await(p, p->taken + (uint64_t)n - 1);
    pthread_mutex_unlock(&p->lock);
    return ended(p, status);
}

neb_status neb__prefetch_get(struct neb_prefetch *p, struct neb_batch **out)
{
    pthread_mutex_lock(&p->lock);
    struct slot *s = &p->slot[p->taken % (uint64_t)p->depth];
    neb_status status = await(p, p->taken);
    if (status == NEB_OK) {
        struct neb_buf t = p->position;
        p->position = s->position;
        s->position = t;
        s->ready = false;
        s->out = true;
        p->taken++;
        *out = s->batch;
    }
    pthread_mutex_unlock(&p->lock);
    return ended(p, status);
}

void neb__prefetch_done(struct neb_prefetch *p, struct neb_batch *b)
{
    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < p->depth; i++)
        if (p->slot[i].batch == b) p->slot[i].out = false;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

neb_status neb__prefetch_save(struct neb_prefetch *p, struct neb_buf *out)
{
    return neb__buf_append(out, p->position.data,
                           p->position.len); /* only get() changes it, and in the same thread */
}

double neb__prefetch_waited(const struct neb_prefetch *p)
{
    return p->waited;
}

neb_status neb__prefetch_stop(struct neb_prefetch *p)
{
    if (!p) return NEB_OK;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    neb_status status = neb__batches_restore(p->stream, p->position.data, p->position.len);
    release(p);
    return status;
}
