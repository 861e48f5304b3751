/* stream_out.c: the producing end of a stream.
 *
 * An item waits in memory until it is durable in the journal and the consumer's window has room. Beyond
 * BACKLOG bytes it waits only in the journal and is read back when its turn comes. Without a journal the
 * producer is asked to make the item again. Syncs run on a worker thread, one at a time; items wait for them
 * in groups.
 *
 * Invariants: received < cursor <= next_item. Items from received + 1 to cursor - 1 are in flight, with their
 * sizes in the ring `sizes`. Nothing above `durable` is ever sent. queue_max bounds the bytes in the link's
 * queue, whatever window and marks the consumer tells. */
#include "net/stream.h"
#include "base/bytes.h"
#include "base/log.h"
#include "base/mem.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { BACKLOG = 8 << 20 };
static const uint64_t journal_quota = (uint64_t)4 << 30;

struct neb_stream_sync {
    uv_work_t uv;
    struct neb_net_stream *stream;
    int fd, error;
    uint64_t upto;
};

/* ---- syncing ------------------------------------------------------------------------------------------- */

static void sync_run(uv_work_t *work)
{
    struct neb_stream_sync *w = work->data;
    w->error = fdatasync(w->fd) != 0;
}

static void sync_done(uv_work_t *work, int status)
{
    struct neb_stream_sync *w = work->data;
    struct neb_net_stream *s = w->stream;
    bool failed = w->error || status;
    s->sync = NULL;
    close(w->fd);
    if (s->closing) {
        neb__net_stream_release(s);
    } else if (failed) { /* never retried: the kernel may have dropped the unwritten pages */
        neb__fail(NEB_ERR_IO, "stream %u: cannot sync the journal", s->id);
        neb__net_stream_stop(s, NEB_ERR_IO);
    } else {
        s->durable = w->upto;
        if (s->producer.durable && !s->ending) s->producer.durable(s->producer.arg, s, s->durable);
    }
    neb__free(w);
}

static void start_sync(struct neb_net_stream *s)
{
    if (!s->journal || s->sync || s->durable + 1 >= s->next_item) return;
    struct neb_stream_sync *w = NEB_NEW(struct neb_stream_sync);
    if (!w) return; /* the next turn tries again */
    /* the sync gets its own descriptor, since the segment may be finished and closed meanwhile */
    *w = (struct neb_stream_sync){
        .stream = s, .fd = dup(neb__journal_fd(s->journal)), .upto = s->next_item - 1};
    w->uv.data = w;
    if (w->fd < 0 || uv_queue_work(&s->peer->net->loop, &w->uv, sync_run, sync_done)) {
        if (w->fd >= 0) close(w->fd);
        neb__free(w);
    } else {
        s->sync = w;
    }
}

/* ---- sending ------------------------------------------------------------------------------------------- */

/* The consumer and our own queue must both have room. A consumer that rewinds again and again has items sent
 * again while the same items still wait in our queue. */
static bool has_credit(const struct neb_net_stream *s, size_t size)
{
    uint64_t queued = s->peer->out.queue[NEB_STREAM].queued_bytes;
    return s->cursor - s->received - 1 < s->sizes_room &&
           (!s->in_flight || s->in_flight + size <= s->window) &&
           (!queued || queued + NEB_ITEM_HEAD + size <= s->peer->net->config.queue_max);
}

static neb_status send_message(struct neb_net_stream *s, uint8_t *message, size_t size)
{
    neb__put32(message, s->id);
    neb__put32(message + 4, 0);
    neb__put64(message + 8, s->cursor);
    neb_status status = neb__outbox_push(&s->peer->out, NEB_STREAM, NEB_KIND_STREAM_ITEM, message,
                                         NEB_ITEM_HEAD + size, true, NULL, NULL);
    if (status != NEB_OK) {
        neb__free(message);
        return status;
    }
    s->sizes[s->cursor % s->sizes_room] = size;
    s->in_flight += size;
    s->cursor++;
    neb__link_touch(s->peer);
    return NEB_OK;
}

static neb_status read_or_remake(struct neb_net_stream *s, struct neb_buf *out)
{
    if (s->journal) return neb__journal_read(s->journal, s->cursor, out);
    if (s->producer.remake) return s->producer.remake(s->producer.arg, s, s->cursor, out);
    return neb__fail(NEB_ERR_NOTFOUND, "stream %u cannot make item %" PRIu64 " again", s->id, s->cursor);
}

/* Gets an item that is not in memory, or no longer: from the journal, or by making it again. */
static neb_status recall(struct neb_net_stream *s, uint8_t **message, size_t *size)
{
    struct neb_buf b;
    neb__buf_init(&b, NEB_ITEM_HEAD + NEB_STREAM_ITEM_MAX);
    static const uint8_t room[NEB_ITEM_HEAD];
    neb_status status = neb__buf_append(&b, room, NEB_ITEM_HEAD);
    if (status == NEB_OK) status = read_or_remake(s, &b);
    if (status != NEB_OK) {
        neb__buf_free(&b);
        return status;
    }
    *message = b.data;
    *size = b.len - NEB_ITEM_HEAD;
    return NEB_OK;
}

static void forget_recalled(struct neb_net_stream *s)
{
    neb__free(s->recalled);
    s->recalled = NULL;
}

/* Brings the next item to send into memory: the first of the list, or `recalled`. */
static neb_status prepare_item(struct neb_net_stream *s, size_t *size)
{
    while (s->first && s->first->number < s->cursor) { /* the consumer already has it */
        struct neb_stream_item *i = neb__net_stream_remove(s);
        neb__free(i->message);
        neb__free(i);
    }
    if (s->first && s->first->number == s->cursor && s->first->message) {
        *size = s->first->size;
        return NEB_OK;
    }
    if (s->recalled && s->recalled_item != s->cursor) forget_recalled(s);
    if (!s->recalled) {
        NEB_TRY(recall(s, &s->recalled, &s->recalled_size));
        s->recalled_item = s->cursor;
    }
    *size = s->recalled_size;
    return NEB_OK;
}

static neb_status send_items(struct neb_net_stream *s)
{
    while (s->attached && s->cursor < s->next_item && s->cursor <= s->durable) {
        size_t size;
        NEB_TRY(prepare_item(s, &size));
        if (!has_credit(s, size)) return NEB_OK;
        uint8_t *message = s->recalled;
        s->recalled = NULL;
        if (!message) {
            struct neb_stream_item *i = neb__net_stream_remove(s);
            message = i->message;
            neb__free(i);
        }
        NEB_TRY(send_message(s, message, size));
    }
    return NEB_OK;
}

static void rewind_to(struct neb_net_stream *s, uint64_t received)
{
    s->received = received;
    s->cursor = received + 1;
    s->in_flight = 0;
}

neb_status neb__net_stream_mark(struct neb_net_stream *s, uint64_t received, uint64_t retained,
                                uint64_t window)
{
    if (retained > received || received >= s->next_item || window < 1) {
        neb__warn("stream %u: %s already has item %" PRIu64 ", but this site would make item %" PRIu64
                  " next: this site has lost items",
                  s->id, s->peer->name, received, s->next_item);
        neb__net_stream_tell(s->peer, NEB_OP_END, s->id, (uint64_t)-NEB_ERR_CORRUPT, 0, 0);
        neb__net_stream_stop(s, NEB_ERR_CORRUPT);
        return NEB_OK;
    }
    if (s->ending) return NEB_OK;
    const uint64_t most = s->peer->net->config.queue_max;
    s->window = window < most ? window : most;
    uint64_t before = s->received;
    bool first = !s->attached;
    s->tell |= first; /* the consumer may have opened after the first offer */
    if (!s->attached || received < s->received || received >= s->cursor) {
        rewind_to(s, received);
        s->attached = true;
    }
    while (s->received < received) s->in_flight -= s->sizes[++s->received % s->sizes_room];
    if ((first || received != before) && s->producer.received)
        s->producer.received(s->producer.arg, s, received);
    if (retained > s->retained) {
        s->retained = retained;
        if (s->journal) neb__journal_retain(s->journal, retained);
        if (s->producer.retained) s->producer.retained(s->producer.arg, s, retained);
    }
    return NEB_OK;
}

neb_status neb__net_stream_produce(struct neb_net_stream *s, const void *data, size_t size, uint64_t *item)
{
    if (!s->producing || s->closing) return neb__fail(NEB_ERR_STATE, "not the producing end of a stream");
    if (size > NEB_STREAM_ITEM_MAX || (s->window && size > s->window))
        return neb__fail(NEB_ERR_LIMIT, "stream %u: an item of %zu bytes is too long", s->id, size);
    uint64_t limit = s->window > BACKLOG ? s->window : BACKLOG;
    bool crowded = s->backlog + s->in_flight + size > limit && (s->backlog || s->in_flight);
    if (s->journal ? neb__journal_bytes(s->journal) > s->quota : crowded) {
        s->full = true;
        return neb__quiet(NEB_ERR_AGAIN, "stream %u: %" PRIu64 " bytes wait for %s", s->id, s->backlog,
                          s->peer->name);
    }
    struct neb_stream_item *i = NEB_NEW(struct neb_stream_item);
    uint8_t *message = i && !crowded ? neb__malloc(NEB_ITEM_HEAD + size) : NULL;
    neb_status status =
        !i || (!crowded && !message) ? neb__fail(NEB_ERR_NOMEM, "out of memory for an item") : NEB_OK;
    if (status == NEB_OK && s->journal) status = neb__journal_append(s->journal, data, size);
    if (status != NEB_OK) {
        neb__free(message);
        neb__free(i);
        return status;
    }
    if (message && size) memcpy(message + NEB_ITEM_HEAD, data, size);
    *i = (struct neb_stream_item){.number = s->next_item, .size = size, .message = message};
    neb__net_stream_add(s, i);
    if (!s->journal) s->durable = s->next_item;
    *item = s->next_item++;
    neb__link_touch(s->peer);
    return NEB_OK;
}

uint64_t neb__net_stream_next(const struct neb_net_stream *s)
{
    return s->next_item;
}

void neb__net_stream_allow(struct neb_net_stream *s, uint64_t bytes)
{
    if (bytes > s->quota) s->quota = bytes;
    neb__link_touch(s->peer);
}

neb_status neb__net_stream_recall(const struct neb_net_stream *s, uint64_t item, struct neb_buf *out)
{
    if (!s->journal) return neb__quiet(NEB_ERR_NOTFOUND, "stream %u has no journal", s->id);
    return neb__journal_read(s->journal, item, out);
}

/* Returns the first item that this end can still send. */
static uint64_t first_available(const struct neb_net_stream *s)
{
    if (s->journal) return neb__journal_first(s->journal);
    return s->producer.remake ? s->retained + 1 : s->cursor;
}

void neb__net_stream_flush_producer(struct neb_net_stream *s)
{
    if (s->tell && s->peer->up) {
        uint64_t first = first_available(s);
        s->tell = neb__net_stream_tell(s->peer, NEB_OP_OFFER, s->id, first, s->next_item, 0) != NEB_OK;
    }
    if (s->ending) {
        neb__net_stream_tell_end(s);
        return;
    }
    start_sync(s);
    neb_status status = send_items(s);
    if (status != NEB_OK && status != NEB_ERR_NOMEM) {
        neb__net_stream_stop(s, status);
        return;
    }
    uint64_t limit = s->window > BACKLOG ? s->window : BACKLOG;
    if (s->full && s->backlog + s->in_flight <= limit / 2 &&
        (!s->journal || neb__journal_bytes(s->journal) <= s->quota)) {
        s->full = false;
        if (s->producer.ready) s->producer.ready(s->producer.arg, s);
    }
}

neb_status neb__net_stream_open_producer(struct neb_net *net, uint16_t peer, uint32_t stream, bool journal,
                                         uint64_t next, const struct neb_net_stream_producer *p,
                                         struct neb_net_stream **out)
{
    struct neb_net_stream *s;
    char dir[PATH_MAX], name[NEB_NAME_SIZE + 16];
    if (next < 1) return neb__fail(NEB_ERR_INVALID, "items are numbered from 1");
    NEB_TRY(neb__net_stream_new(net, peer, stream, true, &s));
    s->producer = *p;
    s->next_item = next;
    s->quota = journal_quota;
    s->sizes_room = NEB_STREAM_ITEMS_OPEN;
    s->sizes = NEB_NEW_ARRAY(uint64_t, s->sizes_room);
    neb_status status = s->sizes ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for a stream");
    snprintf(name, sizeof name, "%s-%u", s->peer->name, stream);
    if (snprintf(dir, sizeof dir, "%s/streams", net->config.site->dir) >= (int)sizeof dir)
        status = neb__fail(NEB_ERR_INVALID, "path too long");
    if (status == NEB_OK && journal) status = neb__journal_open(dir, name, next, &s->journal);
    if (status == NEB_OK && s->journal && neb__journal_next(s->journal) < next)
        status =
            neb__fail(NEB_ERR_CORRUPT,
                      "stream %u: item %" PRIu64 " comes next, but the journal ends before item %" PRIu64,
                      stream, next, neb__journal_next(s->journal));
    if (status != NEB_OK) {
        neb__net_stream_release(s);
        return status;
    }
    if (s->journal) s->next_item = neb__journal_next(s->journal);
    s->durable = s->next_item -
                 1; /* items in an open journal have been read back, and are synced with its next item */
    s->cursor = s->next_item;
    neb__net_stream_enlist(s);
    *out = s;
    return NEB_OK;
}
