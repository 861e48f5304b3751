/* stream.c: numbered items, exactly once across reconnects and across crashes of either side.
 *
 * A stream rides on messages: an item is a message of priority NEB_STREAM, marks are control messages. Within a session
 * (the same two processes) messages already arrive once and in order; what is added here is what happens when a process is
 * replaced:
 *
 *     producer  → OFFER(first item it can still send, next item)        when it opens, and in every new session
 *     consumer  → MARK(received, retained, window)                      likewise, and whenever one of them moves
 *     producer  → items received + 1, received + 2, …                   as far as the window's credit goes
 *     either    → END(status, who)
 *
 * `received` is what the consumer's callback has taken in this life; after a crash it is the mark of its checkpoint. So
 * MARK always names exactly the point to go on from; what was on its way before is sent again or dropped as known. An item
 * leaves only when it is durable in the journal (or can be remade): a producer that crashed can never have shown an item it
 * does not remember. Syncing runs on a worker thread, one at a time; items wait for it in groups.
 *
 * Mark frames: u8 op, 3 zero, u32 stream, u64 a, u64 b, u64 c. Item messages: u32 stream, u32 zero, u64 number, data. */
#include "net/link.h"
#include "net/journal.h"
#include "base/bytes.h"
#include "base/log.h"
#include "base/mem.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { OP_OFFER = 1, OP_MARK = 2, OP_END = 3, MARK_SIZE = 32, ITEM_HEAD = 16 };
enum { BACKLOG = 8 << 20 };
static const uint64_t journal_quota = (uint64_t)4 << 30;

struct item {
    struct item *next;
    uint64_t number;
    size_t size;
    uint8_t *message; /* ITEM_HEAD + size bytes; NULL: only in the journal */
};

struct sync_work {
    uv_work_t uv;
    struct neb_net_stream *stream;
    int fd, error;
    uint64_t upto;
};

struct neb_net_stream {
    struct neb_net_stream *next;
    struct neb_peer *peer;
    uint32_t id;
    bool producing, attached, full, closing;
    bool tell;    /* a mark (or offer) is to be sent */
    bool offered; /* consumer: the producer's end was open in this session */
    bool ending;  /* consumer: wants to tell the end, with `why` */
    neb_status why;
    neb_sent_fn end_sent;
    void *end_arg;
    struct neb_net_stream_producer producer;
    struct neb_net_stream_consumer consumer;
    struct neb_journal *journal;
    struct item *first, *last; /* producer: unsent, in order, the newest ones; consumer: not yet taken in */
    uint64_t backlog;          /* bytes in them */
    uint64_t received, retained, window;
    /* producer */
    uint64_t next_item, cursor; /* to produce; to send */
    uint64_t durable;
    uint64_t *sizes; /* of items in flight, a ring */
    uint64_t sizes_room, in_flight;
    struct sync_work *sync;
    uint8_t *recalled; /* an item fetched again that waits for credit */
    size_t recalled_size;
    uint64_t recalled_item;
    /* consumer */
    uint64_t queued; /* the newest item in the list or taken in */
    bool held;
    bool in_callback;
    uint32_t round;
};

/* ---- messages of our own ----------------------------------------------------------------------------------------- */

static neb_status tell_then(struct neb_peer *p, uint8_t op, uint32_t id, const uint64_t abc[3],
                            neb_sent_fn sent, void *arg)
{
    uint8_t *m = neb__calloc(MARK_SIZE, 1);
    if (!m) return neb__fail(NEB_ERR_NOMEM, "out of memory for a mark");
    m[0] = op;
    neb__put32(m + 4, id);
    for (int i = 0; i < 3; i++) neb__put64(m + 8 + 8 * i, abc[i]);
    neb_status s =
        neb__outbox_push(&p->out, NEB_CONTROL, NEB_KIND_STREAM_MARK, m, MARK_SIZE, true, sent, arg);
    if (s != NEB_OK) neb__free(m);
    neb__link_touch(p);
    return s;
}

static neb_status tell(struct neb_peer *p, uint8_t op, uint32_t id, uint64_t a, uint64_t b, uint64_t c)
{
    return tell_then(p, op, id, (const uint64_t[3]){a, b, c}, NULL, NULL);
}

static struct neb_net_stream *find(struct neb_peer *p, uint32_t id, bool producing)
{
    for (struct neb_net_stream *s = p->streams; s; s = s->next)
        if (s->id == id && s->producing == producing && !s->closing) return s;
    return NULL;
}

static void drop_items(struct neb_net_stream *s)
{
    for (struct item *i = s->first, *next; i; i = next) {
        next = i->next;
        neb__free(i->message);
        neb__free(i);
    }
    s->first = s->last = NULL;
    s->backlog = 0;
}

static void add_item(struct neb_net_stream *s, struct item *i)
{
    if (s->last)
        s->last->next = i;
    else
        s->first = i;
    s->last = i;
    if (i->message) s->backlog += i->size;
}

static struct item *remove_item(struct neb_net_stream *s)
{
    struct item *i = s->first;
    s->first = i->next;
    if (!s->first) s->last = NULL;
    if (i->message) s->backlog -= i->size;
    return i;
}

static void release(struct neb_net_stream *s)
{
    drop_items(s);
    neb__free(s->recalled);
    neb__journal_close(s->journal);
    neb__free(s->sizes);
    neb__free(s);
}

/* Takes it off its peer; its memory waits for a sync in progress. */
static void unlink_stream(struct neb_net_stream *s)
{
    struct neb_net_stream **at = &s->peer->streams;
    while (*at && *at != s) at = &(*at)->next;
    if (*at) *at = s->next;
    s->closing = true;
    if (s->end_sent) s->end_sent(s->end_arg, NEB_ERR_CANCELLED);
    s->end_sent = NULL;
    if (!s->sync && !s->in_callback) release(s);
}

static void end(struct neb_net_stream *s, neb_status why)
{
    if (s->closing) return;
    s->in_callback = true; /* it may close the stream */
    if (s->producing && s->producer.ended && !s->ending) s->producer.ended(s->producer.arg, s, why);
    if (!s->producing && s->consumer.ended && !s->ending) s->consumer.ended(s->consumer.arg, s, why);
    s->in_callback = false;
    if (!s->closing)
        unlink_stream(s);
    else if (!s->sync)
        release(s);
}

/* ---- producer ---------------------------------------------------------------------------------------------------- */

static void sync_run(uv_work_t *work)
{
    struct sync_work *w = work->data;
    w->error = fdatasync(w->fd) != 0;
}

static void sync_done(uv_work_t *work, int status)
{
    struct sync_work *w = work->data;
    struct neb_net_stream *s = w->stream;
    bool failed = w->error || status;
    s->sync = NULL;
    close(w->fd);
    if (s->closing) {
        release(s);
    } else if (failed) { /* never tried again: what the kernel lost it may have forgotten by now */
        neb__fail(NEB_ERR_IO, "stream %u: syncing the journal failed", s->id);
        end(s, NEB_ERR_IO);
    } else {
        s->durable = w->upto;
        if (s->producer.durable && !s->ending) s->producer.durable(s->producer.arg, s, s->durable);
    }
    neb__free(w);
}

static void start_sync(struct neb_net_stream *s)
{
    if (!s->journal || s->sync || s->durable + 1 >= s->next_item) return;
    struct sync_work *w = NEB_NEW(struct sync_work);
    if (!w) return; /* tried again at the next turn */
    /* a descriptor of its own: the segment may be finished and forgotten meanwhile */
    *w = (struct sync_work){.stream = s, .fd = dup(neb__journal_fd(s->journal)), .upto = s->next_item - 1};
    w->uv.data = w;
    if (w->fd < 0 || uv_queue_work(&s->peer->net->loop, &w->uv, sync_run, sync_done)) {
        if (w->fd >= 0) close(w->fd);
        neb__free(w);
    } else {
        s->sync = w;
    }
}

static bool has_credit(const struct neb_net_stream *s, size_t size)
{
    return s->cursor - s->received - 1 < s->sizes_room && (!s->in_flight || s->in_flight + size <= s->window);
}

static neb_status send_message(struct neb_net_stream *s, uint8_t *message, size_t size)
{
    neb__put32(message, s->id);
    neb__put32(message + 4, 0);
    neb__put64(message + 8, s->cursor);
    neb_status status = neb__outbox_push(&s->peer->out, NEB_STREAM, NEB_KIND_STREAM_ITEM, message,
                                         ITEM_HEAD + size, true, NULL, NULL);
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

/* An item that is not in memory (any more): from the journal, or made again. */
static neb_status recall(struct neb_net_stream *s, uint8_t **message, size_t *size)
{
    struct neb_buf b;
    neb__buf_init(&b, ITEM_HEAD + NEB_STREAM_ITEM_MAX);
    static const uint8_t room[ITEM_HEAD];
    neb_status status = neb__buf_append(&b, room, ITEM_HEAD);
    if (status == NEB_OK)
        status = s->journal ? neb__journal_read(s->journal, s->cursor, &b)
                 : s->producer.remake
                     ? s->producer.remake(s->producer.arg, s, s->cursor, &b)
                     : neb__fail(NEB_ERR_NOTFOUND, "stream %u cannot make item %" PRIu64 " again", s->id,
                                 s->cursor);
    if (status != NEB_OK) {
        neb__buf_free(&b);
        return status;
    }
    *message = b.data;
    *size = b.len - ITEM_HEAD;
    return NEB_OK;
}

static void forget_recalled(struct neb_net_stream *s)
{
    neb__free(s->recalled);
    s->recalled = NULL;
}

/* The next item to send, in memory: the first of the list, or `recalled`. */
static neb_status prepare_item(struct neb_net_stream *s, size_t *size)
{
    while (s->first && s->first->number < s->cursor) { /* known to the consumer already */
        struct item *i = remove_item(s);
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
            struct item *i = remove_item(s);
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

static neb_status got_mark(struct neb_net_stream *s, uint64_t received, uint64_t retained, uint64_t window)
{
    if (retained > received || received >= s->next_item || window < 1) {
        neb__warn("stream %u: %s has item %" PRIu64 ", but item %" PRIu64
                  " is the next to be made here: this site has "
                  "forgotten items",
                  s->id, s->peer->name, received, s->next_item);
        tell(s->peer, OP_END, s->id, (uint64_t)-NEB_ERR_CORRUPT, 0, 0);
        end(s, NEB_ERR_CORRUPT);
        return NEB_OK;
    }
    if (s->ending) return NEB_OK;
    s->window = window;
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
        return neb__fail(NEB_ERR_LIMIT, "stream %u: an item of %zu bytes", s->id, size);
    uint64_t limit = s->window > BACKLOG ? s->window : BACKLOG;
    bool crowded = s->backlog + s->in_flight + size > limit && (s->backlog || s->in_flight);
    if (s->journal ? neb__journal_bytes(s->journal) > journal_quota : crowded) {
        s->full = true;
        return neb__quiet(NEB_ERR_AGAIN, "stream %u: %" PRIu64 " bytes wait for %s", s->id, s->backlog,
                          s->peer->name);
    }
    struct item *i = NEB_NEW(struct item);
    uint8_t *message = i && !crowded ? neb__malloc(ITEM_HEAD + size) : NULL;
    neb_status status =
        !i || (!crowded && !message) ? neb__fail(NEB_ERR_NOMEM, "out of memory for an item") : NEB_OK;
    if (status == NEB_OK && s->journal) status = neb__journal_append(s->journal, data, size);
    if (status != NEB_OK) {
        neb__free(message);
        neb__free(i);
        return status;
    }
    if (message && size) memcpy(message + ITEM_HEAD, data, size);
    *i = (struct item){.number = s->next_item, .size = size, .message = message};
    add_item(s, i);
    if (!s->journal) s->durable = s->next_item;
    *item = s->next_item++;
    neb__link_touch(s->peer);
    return NEB_OK;
}

uint64_t neb__net_stream_next(const struct neb_net_stream *s)
{
    return s->next_item;
}

uint64_t neb__net_stream_durable(const struct neb_net_stream *s)
{
    return s->durable;
}

/* ---- consumer ---------------------------------------------------------------------------------------------------- */

/* False: the stream is gone. */
static bool hand_over(struct neb_net_stream *s)
{
    if (s->in_callback || s->ending) return true;
    s->held = false;
    while (s->first) {
        struct item *i = s->first;
        s->in_callback = true;
        neb_status status = s->consumer.item(s->consumer.arg, s, i->number, i->message, i->size);
        s->in_callback = false;
        if (s->closing) { /* closed inside its callback, which left the memory to us */
            release(s);
            return false;
        }
        if (status == NEB_ERR_AGAIN) {
            s->held = true;
            return true;
        }
        if (status != NEB_OK) {
            tell(s->peer, OP_END, s->id, (uint64_t)-status, 1, 0);
            end(s, status);
            return false;
        }
        s->received = i->number;
        s->tell = true;
        remove_item(s);
        neb__free(i->message);
        neb__free(i);
    }
    return true;
}

static neb_status got_item(struct neb_peer *p, const struct neb_message *m)
{
    if (m->size < ITEM_HEAD || neb__get32(m->data + 4))
        return neb__quiet(NEB_ERR_PROTOCOL, "a stream item of %zu bytes", m->size);
    struct neb_net_stream *s = find(p, neb__get32(m->data), false);
    uint64_t number = neb__get64(m->data + 8);
    size_t size = m->size - ITEM_HEAD;
    if (!s || number != s->queued + 1)
        return NEB_OK; /* of a stream closed meanwhile, or from before a rewind */
    if (size > NEB_STREAM_ITEM_MAX || (s->backlog && s->backlog + size > s->window))
        return neb__quiet(NEB_ERR_LIMIT, "stream %u: more than its window", s->id);
    struct item *i = NEB_NEW(struct item);
    uint8_t *copy = i ? neb__malloc(size ? size : 1) : NULL;
    if (!copy) {
        neb__free(i);
        return neb__fail(NEB_ERR_NOMEM, "out of memory for an item");
    }
    if (size) memcpy(copy, m->data + ITEM_HEAD, size);
    *i = (struct item){.number = number, .size = size, .message = copy};
    add_item(s, i);
    s->queued = number;
    if (!s->held) hand_over(s);
    return NEB_OK;
}

neb_status neb__net_stream_retain(struct neb_net_stream *s, uint64_t item)
{
    if (s->producing || item > s->received)
        return neb__fail(NEB_ERR_INVALID,
                         "stream %u: item %" PRIu64 " cannot be retained, %" PRIu64 " is the last received",
                         s->id, item, s->received);
    if (item > s->retained) {
        s->retained = item;
        s->tell = true;
    }
    return NEB_OK;
}

void neb__net_stream_resume(struct neb_net_stream *s)
{
    s->held = false; /* handed over before the loop sleeps */
}

/* ---- both -------------------------------------------------------------------------------------------------------- */

static neb_status got_offer(struct neb_peer *p, uint32_t id, uint64_t first)
{
    struct neb_net_stream *s = find(p, id, false);
    const struct neb_net_config *cfg = &p->net->config;
    if (!s) {
        if (cfg->events->stream_offered) cfg->events->stream_offered(cfg->arg, p->id, id);
        return NEB_OK;
    }
    if (first > s->received + 1) {
        neb__warn("stream %u: %s has forgotten items %" PRIu64 " to %" PRIu64 ", which this site needs", id,
                  p->name, s->received + 1, first - 1);
        end(s, NEB_ERR_CORRUPT);
        return NEB_OK;
    }
    s->tell = s->offered = true;
    neb__link_touch(p);
    return NEB_OK;
}

neb_status neb__net_stream_message(struct neb_peer *p, const struct neb_message *m)
{
    if (m->kind == NEB_KIND_STREAM_ITEM && m->priority == NEB_STREAM) return got_item(p, m);
    if (m->kind != NEB_KIND_STREAM_MARK || m->priority != NEB_CONTROL || m->size != MARK_SIZE)
        return neb__quiet(NEB_ERR_PROTOCOL, "a message of kind %#x", m->kind);
    uint32_t id = neb__get32(m->data + 4);
    uint64_t a = neb__get64(m->data + 8), b = neb__get64(m->data + 16), c = neb__get64(m->data + 24);
    struct neb_net_stream *s;
    switch (m->data[0]) {
    case OP_OFFER: return got_offer(p, id, a);
    case OP_MARK: return (s = find(p, id, true)) ? got_mark(s, a, b, c) : NEB_OK;
    case OP_END: /* b: who ended it: 1 the consumer, 0 the producer */
        s = find(p, id, b == 1);
        if (s) end(s, a <= 26 ? (neb_status) - (int)a : NEB_ERR_PEER);
        return NEB_OK;
    default: return neb__quiet(NEB_ERR_PROTOCOL, "an unknown mark");
    }
}

void neb__net_stream_peer_up(struct neb_peer *p, bool new_session)
{
    for (struct neb_net_stream *s = p->streams; s && new_session; s = s->next) {
        s->attached = s->offered = false;
        s->in_flight = 0;
        s->tell = true;
    }
}

void neb__net_stream_peer_gone(struct neb_peer *p)
{
    while (p->streams) end(p->streams, NEB_ERR_PEER);
}

/* False: not yet. */
static bool tell_end(struct neb_net_stream *s)
{
    if (!s->ending || !s->peer->up || (!s->producing && !s->offered) || (s->producing && s->tell))
        return false;
    uint64_t what[3] = {(uint64_t)-s->why, !s->producing, 0};
    if (tell_then(s->peer, OP_END, s->id, what, s->end_sent, s->end_arg) != NEB_OK) return false;
    s->end_sent = NULL;
    unlink_stream(s);
    return true;
}

static void flush_producer(struct neb_net_stream *s)
{
    if (s->tell && s->peer->up) {
        uint64_t first = s->journal           ? neb__journal_first(s->journal)
                         : s->producer.remake ? s->retained + 1
                                              : s->cursor;
        s->tell = tell(s->peer, OP_OFFER, s->id, first, s->next_item, 0) != NEB_OK;
    }
    if (s->ending) {
        tell_end(s);
        return;
    }
    start_sync(s);
    neb_status status = send_items(s);
    if (status != NEB_OK && status != NEB_ERR_NOMEM) {
        end(s, status);
        return;
    }
    uint64_t limit = s->window > BACKLOG ? s->window : BACKLOG;
    if (s->full && s->backlog + s->in_flight <= limit / 2 &&
        (!s->journal || neb__journal_bytes(s->journal) <= journal_quota)) {
        s->full = false;
        if (s->producer.ready) s->producer.ready(s->producer.arg, s);
    }
}

static void flush_consumer(struct neb_net_stream *s)
{
    if (!s->held && s->first && !hand_over(s)) return;
    if (s->tell && s->peer->up)
        s->tell = tell(s->peer, OP_MARK, s->id, s->received, s->retained, s->window) != NEB_OK;
    tell_end(s);
}

/* Callbacks may open and close streams, so after each the list is looked at anew for one that had no turn. */
void neb__net_stream_flush(struct neb_peer *p)
{
    uint32_t round = ++p->stream_round;
    for (;;) {
        struct neb_net_stream *s = p->streams;
        while (s && s->round == round) s = s->next;
        if (!s) return;
        s->round = round;
        if (s->producing)
            flush_producer(s);
        else
            flush_consumer(s);
    }
}

static neb_status open_stream(struct neb_net *net, uint16_t peer, uint32_t id, bool producing,
                              struct neb_net_stream **out)
{
    struct neb_peer *p = neb__peer_find(net, peer);
    if (!p) return neb__fail(NEB_ERR_NOTFOUND, "no member %u", peer);
    if (find(p, id, producing))
        return neb__fail(NEB_ERR_EXISTS, "stream %u with %s is open already", id, p->name);
    struct neb_net_stream *s = NEB_NEW(struct neb_net_stream);
    if (!s) return neb__fail(NEB_ERR_NOMEM, "out of memory for a stream");
    s->peer = p;
    s->id = id;
    s->producing = producing;
    s->tell = true;
    *out = s;
    return NEB_OK;
}

static void enlist(struct neb_net_stream *s)
{
    s->next = s->peer->streams;
    s->peer->streams = s;
    neb__link_touch(s->peer);
}

neb_status neb__net_stream_open_producer(struct neb_net *net, uint16_t peer, uint32_t stream, bool journal,
                                         uint64_t next, const struct neb_net_stream_producer *p,
                                         struct neb_net_stream **out)
{
    struct neb_net_stream *s;
    char dir[PATH_MAX], name[NEB_NAME_SIZE + 16];
    if (next < 1) return neb__fail(NEB_ERR_INVALID, "items are numbered from 1");
    NEB_TRY(open_stream(net, peer, stream, true, &s));
    s->producer = *p;
    s->next_item = next;
    s->sizes_room = 4096;
    s->sizes = NEB_NEW_ARRAY(uint64_t, s->sizes_room);
    neb_status status = s->sizes ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for a stream");
    snprintf(name, sizeof name, "%s-%u", s->peer->name, stream);
    if (snprintf(dir, sizeof dir, "%s/streams", net->config.site->dir) >= (int)sizeof dir)
        status = neb__fail(NEB_ERR_INVALID, "path too long");
    if (status == NEB_OK && journal) status = neb__journal_open(dir, name, next, &s->journal);
    if (status == NEB_OK && s->journal && neb__journal_next(s->journal) < next)
        status = neb__fail(NEB_ERR_CORRUPT,
                           "stream %u: item %" PRIu64 " is to come, but the journal ends before %" PRIu64,
                           stream, next, neb__journal_next(s->journal));
    if (status != NEB_OK) {
        release(s);
        return status;
    }
    if (s->journal) s->next_item = neb__journal_next(s->journal);
    s->durable = s->next_item -
                 1; /* what an open journal holds has been read back, and is synced with its next item */
    s->cursor = s->next_item;
    enlist(s);
    *out = s;
    return NEB_OK;
}

neb_status neb__net_stream_open_consumer(struct neb_net *net, uint16_t peer, uint32_t stream,
                                         uint64_t retained, size_t window,
                                         const struct neb_net_stream_consumer *c, struct neb_net_stream **out)
{
    struct neb_net_stream *s;
    if (window < 1 || !c->item) return neb__fail(NEB_ERR_INVALID, "a consumer needs a window and a callback");
    NEB_TRY(open_stream(net, peer, stream, false, &s));
    s->consumer = *c;
    s->window = window;
    s->received = s->retained = s->queued = retained;
    enlist(s);
    *out = s;
    return NEB_OK;
}

void neb__net_stream_close(struct neb_net_stream *s)
{
    if (s && !s->closing) unlink_stream(s);
}

/* A consumer's end is told only when the producer's end is known to be open: a producer that is just starting again would
 * not hear it, and wait for ever. */
neb_status neb__net_stream_end(struct neb_net_stream *s, neb_status why, neb_sent_fn sent, void *arg)
{
    if (s->closing) return neb__fail(NEB_ERR_STATE, "stream %u has ended", s->id);
    s->ending = true;
    s->why = why;
    s->end_sent = sent;
    s->end_arg = arg;
    neb__link_touch(s->peer);
    return NEB_OK;
}
