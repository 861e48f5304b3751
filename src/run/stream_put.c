/* stream_put.c: the producing end.
 *
 * put() numbers and copies an item, and returns. The links' thread writes the journal, syncs it in groups and
 * sends. Credit is the bound: at most `items` items go beyond those that the consumer has received. */
#include "run/stream.h"
#include "base/log.h"
#include "base/mem.h"

#include <string.h>

/* ---- on the links' thread ------------------------------------------------------------------------------ */

static struct neb_entry *first_waiting(neb_stream *st)
{
    pthread_mutex_lock(&st->lock);
    struct neb_entry *e = st->head;
    st->posted = e != NULL;
    pthread_mutex_unlock(&st->lock);
    return e;
}

static void remove_first(neb_stream *st)
{
    pthread_mutex_lock(&st->lock);
    struct neb_entry *e = st->head;
    st->head = e->next;
    if (!st->head) st->tail = &st->head;
    st->waiting--;
    st->waiting_bytes -= e->size;
    pthread_cond_broadcast(&st->changed);
    pthread_mutex_unlock(&st->lock);
    neb__free(e);
}

static void over(neb_stream *st, neb_status why)
{
    pthread_mutex_lock(&st->lock);
    st->ended = true;
    st->why = why;
    pthread_cond_broadcast(&st->changed);
    pthread_mutex_unlock(&st->lock);
}

static void hand_over(void *arg)
{
    neb_stream *st = arg;
    for (struct neb_entry *e; st->links && (e = first_waiting(st));) {
        uint64_t item;
        neb_status status = neb__net_stream_produce(st->links, e->data, e->size, &item);
        if (status == NEB_ERR_AGAIN) return; /* the journal's quota: `ready` comes back here */
        if (status == NEB_OK && item != e->item)
            status = neb__fail(NEB_ERR_INTERNAL, "item %" PRIu64 " became item %" PRIu64, e->item, item);
        if (status != NEB_OK) {
            over(st, status);
            return;
        }
        remove_first(st);
    }
}

static void on_ready(void *arg, struct neb_net_stream *links)
{
    (void)links;
    hand_over(arg);
}

static void on_mark(uint64_t *mark, neb_stream *st, uint64_t item)
{
    pthread_mutex_lock(&st->lock);
    *mark = item;
    pthread_cond_broadcast(&st->changed);
    pthread_mutex_unlock(&st->lock);
}

static void on_received(void *arg, struct neb_net_stream *links, uint64_t item)
{
    (void)links;
    on_mark(&((neb_stream *)arg)->received, arg, item);
}

static void on_durable(void *arg, struct neb_net_stream *links, uint64_t item)
{
    (void)links;
    on_mark(&((neb_stream *)arg)->durable, arg, item);
}

static void on_retained(void *arg, struct neb_net_stream *links, uint64_t item)
{
    (void)links;
    on_mark(&((neb_stream *)arg)->retained, arg, item);
}

static void on_ended(void *arg, struct neb_net_stream *links, neb_status why)
{
    (void)links;
    neb_stream *st = arg;
    st->links = NULL;
    over(st, why);
}

const struct neb_net_stream_producer neb__stream_producer = {.ready = on_ready,
                                                             .received = on_received,
                                                             .durable = on_durable,
                                                             .retained = on_retained,
                                                             .ended = on_ended};

/* ---- on the loop's ------------------------------------------------------------------------------------- */

static neb_status must_produce(const neb_stream *st)
{
    return st->config.produce ? NEB_OK : neb__fail(NEB_ERR_STATE, "this is the consuming end of a stream");
}

static neb_status put_folder(neb_stream *st, const void *bytes, size_t n)
{
    NEB_TRY(neb__journal_append(st->journal, bytes, n));
    st->last = st->durable = st->received = neb__journal_next(st->journal) - 1;
    st->bytes += n;
    return NEB_OK;
}

/* The lock is held. */
static neb_status wait_for_credit(neb_stream *st, int64_t until)
{
    while (!st->ended && st->last >= st->received + (uint64_t)st->config.items)
        if (!neb__stream_wait(st, NEB_WAIT_CREDIT, until))
            return neb__quiet(NEB_ERR_TIMEOUT,
                              "no credit: site '%s' has received item %" PRIu64 " of %" PRIu64, st->name,
                              st->received, st->last);
    neb__stream_goes_on(st);
    return st->ended ? neb__stream_over(st) : NEB_OK;
}

static neb_status enqueue(neb_stream *st, struct neb_entry *e, int64_t until)
{
    pthread_mutex_lock(&st->lock);
    neb_status status = wait_for_credit(st, until);
    bool post = status == NEB_OK && !st->posted;
    if (status == NEB_OK) {
        *st->tail = e;
        st->tail = &e->next;
        st->waiting++;
        st->waiting_bytes += e->size;
        st->last = e->item;
        st->bytes += e->size;
        st->posted = true;
    }
    pthread_mutex_unlock(&st->lock);
    return post ? neb__net_post(st->session->net, hand_over, st) : status;
}

neb_status neb_stream_put(neb_stream *st, uint64_t item, const void *bytes, size_t n, double wait_s)
{
    NEB_TRY(must_produce(st));
    if (item <= st->last) return NEB_OK; /* only this thread moves `last` */
    if (item != st->last + 1)
        return neb__fail(NEB_ERR_INVALID, "item %" PRIu64 " was put, but item %" PRIu64 " comes next", item,
                         st->last + 1);
    if (n > NEB_STREAM_ITEM_MAX)
        return neb__fail(NEB_ERR_LIMIT, "an item of %zu bytes is larger than %zu", n,
                         (size_t)NEB_STREAM_ITEM_MAX);
    if (st->journal) return put_folder(st, bytes, n);
    struct neb_entry *e = neb__malloc(sizeof *e + n);
    if (!e) return neb__fail(NEB_ERR_NOMEM, "out of memory for an item of %zu bytes", n);
    *e = (struct neb_entry){.item = item, .size = n};
    if (n) memcpy(e->data, bytes, n);
    neb_status status = enqueue(st, e, neb__stream_until(wait_s));
    if (status != NEB_OK && st->last != item) neb__free(e);
    return status;
}

static neb_status wait_mark(neb_stream *st, const uint64_t *mark, double wait_s)
{
    int64_t until = neb__stream_until(wait_s);
    neb_status status = NEB_OK;
    pthread_mutex_lock(&st->lock);
    while (status == NEB_OK && *mark < st->last && !st->ended)
        if (!neb__stream_wait(st, NEB_WAIT_KEPT, until))
            status = neb__quiet(NEB_ERR_TIMEOUT, "only item %" PRIu64 " of %" PRIu64 " is done in time",
                                *mark, st->last);
    if (status != NEB_ERR_TIMEOUT) neb__stream_goes_on(st);
    if (status == NEB_OK && *mark < st->last) status = neb__stream_over(st);
    pthread_mutex_unlock(&st->lock);
    return status;
}

neb_status neb_stream_sync(neb_stream *st, double wait_s)
{
    NEB_TRY(must_produce(st));
    if (st->journal) return NEB_OK;
    neb_status status = wait_mark(st, &st->durable, wait_s);
    return status == NEB_ERR_CANCELLED ? NEB_OK
                                       : status; /* the consumer has finished: nothing is owed to it */
}

static neb_status end_links(neb_stream *st)
{
    if (!st->links) return NEB_OK;
    struct neb_net_stream *links = st->links;
    st->links = NULL;
    return neb__net_stream_end(links, NEB_OK, NULL, NULL);
}

neb_status neb_stream_drain(neb_stream *st, double wait_s)
{
    NEB_TRY(must_produce(st));
    if (st->journal) return NEB_OK;
    neb_status status = wait_mark(st, &st->retained, wait_s);
    if (status == NEB_ERR_CANCELLED) return NEB_OK;
    return status == NEB_OK ? neb__stream_call(st, end_links) : status;
}

static neb_status allow(neb_stream *st)
{
    if (st->links) neb__net_stream_allow(st->links, st->asked);
    return NEB_OK;
}

neb_status neb__stream_allow(neb_stream *st, uint64_t bytes)
{
    NEB_TRY(must_produce(st));
    st->asked = bytes;
    return st->journal ? NEB_OK : neb__stream_call(st, allow);
}

static neb_status recall(neb_stream *st)
{
    if (!st->links) return neb__quiet(NEB_ERR_NOTFOUND, "the stream with site '%s' has ended", st->name);
    return neb__net_stream_recall(st->links, st->asked, &st->read);
}

neb_status neb__stream_recall(neb_stream *st, uint64_t item, const uint8_t **bytes, size_t *n)
{
    NEB_TRY(must_produce(st));
    neb__buf_clear(&st->read);
    st->asked = item;
    NEB_TRY(st->journal ? neb__journal_read(st->journal, item, &st->read) : neb__stream_call(st, recall));
    *bytes = st->read.data;
    *n = st->read.len;
    return NEB_OK;
}
