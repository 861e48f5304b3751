/* stream.c: numbered items, exactly once across reconnects and across crashes of either side.
 *
 * A stream rides on messages: an item is a message of priority NEB_STREAM, marks are control messages. Within
 * a session (the same two processes) messages already arrive once and in order. This file adds the protocol
 * for a process that is replaced:
 *
 *     producer  → OFFER(first item it can still send, next item)    when it opens, and in every new session
 *     consumer  → MARK(received, retained, window)                  likewise, and whenever one of them moves
 *     producer  → items received + 1, received + 2, …               as far as the window's credit goes
 *     either    → END(status, who)
 *
 * `received` is the last item that the consumer's callback has taken in this life; after a crash it is the
 * mark of its checkpoint. So MARK always names exactly the point to go on from. Items that were on their way
 * before are sent again, or dropped as known. An item leaves only when it is durable in the journal (or can
 * be remade), so a producer that crashed can never have shown an item that it does not remember.
 *
 * Mark frames: u8 op, 3 zero, u32 stream, u64 a, u64 b, u64 c. Item messages: u32 stream, u32 zero, u64
 * number, data. */
#include "net/stream.h"
#include "base/bytes.h"
#include "base/mem.h"

enum { MARK_SIZE = 32 };

/* ---- our own messages ---------------------------------------------------------------------------------- */

static neb_status tell_then(struct neb_peer *p, uint8_t op, uint32_t id, const uint64_t abc[3],
                            neb_sent_fn sent, void *arg)
{
    uint8_t *m = neb__calloc(MARK_SIZE, 1);
    if (!m) return neb__fail(NEB_ERR_NOMEM, "out of memory for a mark");
    m[0] = op;
    neb__put32(m + 4, id);
    for (int i = 0; i < 3; i++) neb__put64(m + 8 + 8 * i, abc[i]);
    neb_status status =
        neb__outbox_push(&p->out, NEB_CONTROL, NEB_KIND_STREAM_MARK, m, MARK_SIZE, true, sent, arg);
    if (status != NEB_OK) neb__free(m);
    neb__link_touch(p);
    return status;
}

neb_status neb__net_stream_tell(struct neb_peer *p, uint8_t op, uint32_t id, uint64_t a, uint64_t b,
                                uint64_t c)
{
    return tell_then(p, op, id, (const uint64_t[3]){a, b, c}, NULL, NULL);
}

struct neb_net_stream *neb__net_stream_find(struct neb_peer *p, uint32_t id, bool producing)
{
    for (struct neb_net_stream *s = p->streams; s; s = s->next)
        if (s->id == id && s->producing == producing && !s->closing) return s;
    return NULL;
}

static void drop_items(struct neb_net_stream *s)
{
    for (struct neb_stream_item *i = s->first, *next; i; i = next) {
        next = i->next;
        neb__free(i->message);
        neb__free(i);
    }
    s->first = s->last = NULL;
    s->backlog = 0;
}

void neb__net_stream_add(struct neb_net_stream *s, struct neb_stream_item *i)
{
    if (s->last)
        s->last->next = i;
    else
        s->first = i;
    s->last = i;
    if (i->message) s->backlog += i->size;
}

struct neb_stream_item *neb__net_stream_remove(struct neb_net_stream *s)
{
    struct neb_stream_item *i = s->first;
    s->first = i->next;
    if (!s->first) s->last = NULL;
    if (i->message) s->backlog -= i->size;
    return i;
}

void neb__net_stream_release(struct neb_net_stream *s)
{
    drop_items(s);
    neb__free(s->recalled);
    neb__journal_close(s->journal);
    neb__free(s->sizes);
    neb__free(s);
}

/* Takes the stream off its peer. Its memory stays until a sync in progress has ended. */
static void unlink_stream(struct neb_net_stream *s)
{
    struct neb_net_stream **at = &s->peer->streams;
    while (*at && *at != s) at = &(*at)->next;
    if (*at) *at = s->next;
    s->closing = true;
    if (s->end_sent) s->end_sent(s->end_arg, NEB_ERR_CANCELLED);
    s->end_sent = NULL;
    if (!s->sync && !s->in_callback) neb__net_stream_release(s);
}

void neb__net_stream_stop(struct neb_net_stream *s, neb_status why)
{
    if (s->closing) return;
    s->in_callback = true; /* the callback may close the stream */
    if (s->producing && s->producer.ended && !s->ending) s->producer.ended(s->producer.arg, s, why);
    if (!s->producing && s->consumer.ended && !s->ending) s->consumer.ended(s->consumer.arg, s, why);
    s->in_callback = false;
    if (!s->closing)
        unlink_stream(s);
    else if (!s->sync)
        neb__net_stream_release(s);
}

/* ---- both ---------------------------------------------------------------------------------------------- */

neb_status neb__net_stream_message(struct neb_peer *p, const struct neb_message *m)
{
    if (m->kind == NEB_KIND_STREAM_ITEM && m->priority == NEB_STREAM) return neb__net_stream_item(p, m);
    if (m->kind != NEB_KIND_STREAM_MARK || m->priority != NEB_CONTROL || m->size != MARK_SIZE)
        return neb__quiet(NEB_ERR_PROTOCOL, "unknown message of kind %#x", m->kind);
    uint32_t id = neb__get32(m->data + 4);
    uint64_t a = neb__get64(m->data + 8), b = neb__get64(m->data + 16), c = neb__get64(m->data + 24);
    struct neb_net_stream *s;
    switch (m->data[0]) {
    case NEB_OP_OFFER: return neb__net_stream_offer(p, id, a);
    case NEB_OP_MARK:
        return (s = neb__net_stream_find(p, id, true)) ? neb__net_stream_mark(s, a, b, c) : NEB_OK;
    case NEB_OP_END: /* b says who ended it: 1 the consumer, 0 the producer */
        s = neb__net_stream_find(p, id, b == 1);
        if (s) neb__net_stream_stop(s, a <= 26 ? (neb_status) - (int)a : NEB_ERR_PEER);
        return NEB_OK;
    default: return neb__quiet(NEB_ERR_PROTOCOL, "unknown stream mark");
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
    while (p->streams) neb__net_stream_stop(p->streams, NEB_ERR_PEER);
}

/* Returns false while it cannot tell the end yet. */
bool neb__net_stream_tell_end(struct neb_net_stream *s)
{
    if (!s->ending || !s->peer->up || (!s->producing && !s->offered) || (s->producing && s->tell))
        return false;
    uint64_t what[3] = {(uint64_t)-s->why, !s->producing, 0};
    if (tell_then(s->peer, NEB_OP_END, s->id, what, s->end_sent, s->end_arg) != NEB_OK) return false;
    s->end_sent = NULL;
    unlink_stream(s);
    return true;
}

/* Callbacks may open and close streams. So after each callback the list is searched again for a stream that
 * had no turn. */
void neb__net_stream_flush(struct neb_peer *p)
{
    uint32_t round = ++p->stream_round;
    for (;;) {
        struct neb_net_stream *s = p->streams;
        while (s && s->round == round) s = s->next;
        if (!s) return;
        s->round = round;
        if (s->producing)
            neb__net_stream_flush_producer(s);
        else
            neb__net_stream_flush_consumer(s);
    }
}

neb_status neb__net_stream_new(struct neb_net *net, uint16_t peer, uint32_t id, bool producing,
                               struct neb_net_stream **out)
{
    struct neb_peer *p = neb__peer_find(net, peer);
    if (!p) return neb__fail(NEB_ERR_NOTFOUND, "no member %u", peer);
    if (neb__net_stream_find(p, id, producing))
        return neb__fail(NEB_ERR_EXISTS, "stream %u with %s is already open", id, p->name);
    struct neb_net_stream *s = NEB_NEW(struct neb_net_stream);
    if (!s) return neb__fail(NEB_ERR_NOMEM, "out of memory for a stream");
    s->peer = p;
    s->id = id;
    s->producing = producing;
    s->tell = true;
    *out = s;
    return NEB_OK;
}

void neb__net_stream_enlist(struct neb_net_stream *s)
{
    s->next = s->peer->streams;
    s->peer->streams = s;
    neb__link_touch(s->peer);
}

void neb__net_stream_close(struct neb_net_stream *s)
{
    if (s && !s->closing) unlink_stream(s);
}

/* A consumer tells its end only when the producer's end is known to be open. A producer that is just starting
 * again would miss the message and wait for ever. */
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
