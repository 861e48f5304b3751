/* stream_in.c: the consuming end of a stream.
 *
 * The link delivers items in order. An item whose number is not the next one was sent before a rewind and
 * is dropped. Items go to the layer above one by one. Those that it cannot take now wait, within the
 * announced window and within the number of items that a producer may have under way (an empty item costs
 * memory too). */
#include "net/stream.h"
#include "base/bytes.h"
#include "base/log.h"
#include "base/mem.h"

#include <string.h>

/* Returns false when the stream is gone. */
static bool hand_over(struct neb_net_stream *s)
{
    if (s->in_callback || s->ending) return true;
    s->held = false;
    while (s->first) {
        struct neb_stream_item *i = s->first;
        s->in_callback = true;
        neb_status status = s->consumer.item(s->consumer.arg, s, i->number, i->message, i->size);
        s->in_callback = false;
        if (s->closing) { /* closed inside its callback; we must free it */
            neb__net_stream_release(s);
            return false;
        }
        if (status == NEB_ERR_AGAIN) {
            s->held = true;
            return true;
        }
        if (status != NEB_OK) {
            neb__net_stream_tell(s->peer, NEB_OP_END, s->id, (uint64_t)-status, 1, 0);
            neb__net_stream_stop(s, status);
            return false;
        }
        s->received = i->number;
        s->tell = true;
        neb__net_stream_remove(s);
        neb__free(i->message);
        neb__free(i);
    }
    return true;
}

neb_status neb__net_stream_item(struct neb_peer *p, const struct neb_message *m)
{
    if (m->size < NEB_ITEM_HEAD || neb__get32(m->data + 4))
        return neb__quiet(NEB_ERR_PROTOCOL, "malformed stream item of %zu bytes", m->size);
    struct neb_net_stream *s = neb__net_stream_find(p, neb__get32(m->data), false);
    uint64_t number = neb__get64(m->data + 8);
    size_t size = m->size - NEB_ITEM_HEAD;
    if (!s || number != s->queued + 1)
        return NEB_OK; /* the stream was closed meanwhile, or the item is from before a rewind */
    if (size > NEB_STREAM_ITEM_MAX || s->queued - s->received >= NEB_STREAM_ITEMS_OPEN ||
        (s->backlog && s->backlog + size > s->window))
        return neb__quiet(NEB_ERR_LIMIT, "stream %u: the producer sent more than the window allows", s->id);
    struct neb_stream_item *i = NEB_NEW(struct neb_stream_item);
    uint8_t *copy = NULL;
    if (i) copy = neb__malloc(size ? size : 1);
    if (!copy) {
        neb__free(i);
        return neb__fail(NEB_ERR_NOMEM, "out of memory for an item");
    }
    if (size) memcpy(copy, m->data + NEB_ITEM_HEAD, size);
    *i = (struct neb_stream_item){.number = number, .size = size, .message = copy};
    neb__net_stream_add(s, i);
    s->queued = number;
    if (!s->held) hand_over(s);
    return NEB_OK;
}

neb_status neb__net_stream_retain(struct neb_net_stream *s, uint64_t item)
{
    if (s->producing || item > s->received)
        return neb__fail(NEB_ERR_INVALID,
                         "stream %u: item %" PRIu64 " cannot be retained: only items up to %" PRIu64
                         " were received",
                         s->id, item, s->received);
    if (item > s->retained) {
        s->retained = item;
        s->tell = true;
    }
    return NEB_OK;
}

void neb__net_stream_keep(struct neb_net_stream *s, uint64_t retained)
{
    if (!s->producing && retained < s->retained) s->retained = retained;
}

void neb__net_stream_resume(struct neb_net_stream *s)
{
    s->held = false; /* the item is handed over before the loop sleeps */
}

neb_status neb__net_stream_offer(struct neb_peer *p, uint32_t id, uint64_t first)
{
    struct neb_net_stream *s = neb__net_stream_find(p, id, false);
    const struct neb_net_config *cfg = &p->net->config;
    if (!s) {
        if (cfg->events->stream_offered) cfg->events->stream_offered(cfg->arg, p->id, id);
        return NEB_OK;
    }
    if (first > s->received + 1) {
        neb__warn("stream %u: this site needs items %" PRIu64 " to %" PRIu64 ", which %s no longer has", id,
                  s->received + 1, first - 1, p->name);
        neb__net_stream_stop(s, NEB_ERR_CORRUPT);
        return NEB_OK;
    }
    s->tell = s->offered = true;
    neb__link_touch(p);
    return NEB_OK;
}

void neb__net_stream_flush_consumer(struct neb_net_stream *s)
{
    if (!s->held && s->first && !hand_over(s)) return;
    if (s->tell && s->peer->up)
        s->tell =
            neb__net_stream_tell(s->peer, NEB_OP_MARK, s->id, s->received, s->retained, s->window) != NEB_OK;
    neb__net_stream_tell_end(s);
}

neb_status neb__net_stream_open_consumer(struct neb_net *net, uint16_t peer, uint32_t stream,
                                         uint64_t retained, size_t window,
                                         const struct neb_net_stream_consumer *c, struct neb_net_stream **out)
{
    struct neb_net_stream *s;
    if (window < 1 || !c->item) return neb__fail(NEB_ERR_INVALID, "a consumer needs a window and a callback");
    NEB_TRY(neb__net_stream_new(net, peer, stream, false, &s));
    s->consumer = *c;
    s->window = window;
    s->received = s->retained = s->queued = retained;
    neb__net_stream_enlist(s);
    *out = s;
    return NEB_OK;
}
