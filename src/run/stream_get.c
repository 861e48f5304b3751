/* stream_get.c: the consuming end.
 *
 * The links' thread takes items in ahead of the loop, as many as `items` and `bytes` allow. Further items
 * wait in the links' window, and those beyond it at the producer. So the loop waits only when the producer or
 * the line is slower than it. */
#include "run/stream.h"
#include "base/mem.h"

#include <string.h>

/* ---- on the links' thread ------------------------------------------------------------------------------ */

static neb_status on_item(void *arg, struct neb_net_stream *links, uint64_t item, const uint8_t *data,
                          size_t size)
{
    neb_stream *st = arg;
    (void)links;
    pthread_mutex_lock(&st->lock);
    bool full =
        st->waiting && (st->waiting >= st->config.items || st->waiting_bytes + size > st->config.bytes);
    st->held = full;
    pthread_mutex_unlock(&st->lock);
    struct neb_entry *e = full ? NULL : neb__malloc(sizeof *e + size);
    if (!e) return full ? NEB_ERR_AGAIN : NEB_ERR_NOMEM;
    *e = (struct neb_entry){.item = item, .size = size};
    if (size) memcpy(e->data, data, size);
    pthread_mutex_lock(&st->lock);
    *st->tail = e;
    st->tail = &e->next;
    st->waiting++;
    st->waiting_bytes += size;
    st->received = item;
    pthread_cond_broadcast(&st->changed);
    pthread_mutex_unlock(&st->lock);
    return NEB_OK;
}

static void on_ended(void *arg, struct neb_net_stream *links, neb_status why)
{
    neb_stream *st = arg;
    (void)links;
    st->links = NULL;
    pthread_mutex_lock(&st->lock);
    st->ended = true;
    st->why = why;
    pthread_cond_broadcast(&st->changed);
    pthread_mutex_unlock(&st->lock);
}

const struct neb_net_stream_consumer neb__stream_consumer = {.item = on_item, .ended = on_ended};

static void resume(void *arg)
{
    neb_stream *st = arg;
    if (st->links) neb__net_stream_resume(st->links);
}

/* ---- on the loop's ------------------------------------------------------------------------------------- */

static neb_status must_consume(const neb_stream *st)
{
    return st->config.produce ? neb__fail(NEB_ERR_STATE, "this is the producing end of a stream") : NEB_OK;
}

static neb_status get_folder(neb_stream *st, const void **bytes, size_t *n, uint64_t *item)
{
    neb__buf_clear(&st->read);
    neb_status status = neb__journal_read(st->journal, st->last + 1, &st->read);
    if (status == NEB_ERR_NOTFOUND)
        return neb__quiet(NEB_ERR_CANCELLED, "%s ends after item %" PRIu64, st->name, st->last);
    NEB_TRY(status);
    *item = st->received = ++st->last;
    *bytes = st->read.data;
    *n = st->read.len;
    st->bytes += *n;
    return NEB_OK;
}

/* The lock is held. */
static void take_first(neb_stream *st)
{
    struct neb_entry *e = st->head;
    st->head = e->next;
    if (!st->head) st->tail = &st->head;
    st->waiting--;
    st->waiting_bytes -= e->size;
    st->last = e->item;
    st->bytes += e->size;
    st->current = e;
}

neb_status neb_stream_get(neb_stream *st, double wait_s, const void **bytes, size_t *n, uint64_t *item)
{
    NEB_TRY(must_consume(st));
    if (st->journal) return get_folder(st, bytes, n, item);
    int64_t until = neb__stream_until(wait_s);
    neb__free(st->current);
    st->current = NULL;
    neb_status status = NEB_OK;
    pthread_mutex_lock(&st->lock);
    while (!st->head && !st->ended && status == NEB_OK)
        if (!neb__stream_wait(st, NEB_WAIT_ITEMS, until))
            status = neb__quiet(NEB_ERR_TIMEOUT, "nothing after item %" PRIu64 " from site '%s' in time",
                                st->last, st->name);
    if (status != NEB_ERR_TIMEOUT) neb__stream_goes_on(st);
    if (status == NEB_OK && !st->head) status = neb__stream_over(st);
    bool room = false;
    if (status == NEB_OK) {
        take_first(st);
        room = st->held;
        if (room) st->held = false;
    }
    pthread_mutex_unlock(&st->lock);
    if (room) (void)neb__net_post(st->session->net, resume, st);
    if (status != NEB_OK) return status;
    *bytes = st->current->data;
    *n = st->current->size;
    *item = st->current->item;
    return NEB_OK;
}

struct mark {
    neb_stream *st;
    uint64_t item;
};

static void retain(void *arg)
{
    struct mark *m = arg;
    if (m->st->links) (void)neb__net_stream_retain(m->st->links, m->item);
    neb__free(m);
}

neb_status neb_stream_retain(neb_stream *st, uint64_t item)
{
    NEB_TRY(must_consume(st));
    if (item > st->last)
        return neb__fail(NEB_ERR_INVALID,
                         "a checkpoint cannot cover item %" PRIu64 ": item %" PRIu64 " was got last", item,
                         st->last);
    if (item <= st->retained) return NEB_OK;
    st->retained = item;
    if (st->journal) return NEB_OK;
    struct mark *m = NEB_NEW(struct mark);
    if (!m) return neb__fail(NEB_ERR_NOMEM, "out of memory for a mark");
    *m = (struct mark){st, item};
    neb_status status = neb__net_post(st->session->net, retain, m);
    if (status != NEB_OK) neb__free(m);
    return status;
}

/* The links' thread alone: the answer may come after the stream was closed. */
struct neb_notice {
    neb_stream *st;
};

static void finished(void *arg, neb_status status)
{
    struct neb_notice *notice = arg;
    neb_stream *st = notice->st;
    (void)status;
    neb__free(notice);
    if (!st) return;
    st->notice = NULL;
    pthread_mutex_lock(&st->lock);
    st->told = true;
    pthread_cond_broadcast(&st->changed);
    pthread_mutex_unlock(&st->lock);
}

void neb__stream_forget_notice(neb_stream *st)
{
    if (st->notice) st->notice->st = NULL;
    st->notice = NULL;
}

static neb_status end_links(neb_stream *st)
{
    struct neb_net_stream *links = st->links;
    if (!links) {
        st->told = true;
        return NEB_OK;
    }
    struct neb_notice *notice = NEB_NEW(struct neb_notice);
    if (!notice) return neb__fail(NEB_ERR_NOMEM, "out of memory for the end of a stream");
    notice->st = st;
    neb_status status = neb__net_stream_end(links, NEB_OK, finished, notice);
    if (status != NEB_OK) {
        neb__free(notice);
        return status;
    }
    st->links = NULL;
    st->notice = notice;
    return NEB_OK;
}

neb_status neb_stream_finish(neb_stream *st, double wait_s)
{
    NEB_TRY(must_consume(st));
    if (st->journal) return NEB_OK;
    int64_t until = neb__stream_until(wait_s);
    NEB_TRY(neb__stream_call(st, end_links));
    neb_status status = NEB_OK;
    pthread_mutex_lock(&st->lock);
    while (st->head) { /* taken in ahead, not wanted any more */
        struct neb_entry *e = st->head;
        st->head = e->next;
        neb__free(e);
    }
    st->tail = &st->head;
    st->waiting = 0;
    st->waiting_bytes = 0;
    st->ended = true;
    while (!st->told && status == NEB_OK)
        if (!neb__stream_wait(st, NEB_WAIT_FINISH, until))
            status = neb__quiet(NEB_ERR_TIMEOUT, "site '%s' could not be told that stream %u is finished",
                                st->name, st->config.number);
    neb__stream_goes_on(st);
    pthread_mutex_unlock(&st->lock);
    return status;
}
