/* link.c: one logical connection to one peer site, made of several TLS connections.
 *
 * Loss and buffers limit a single TCP flow over a long fat pipe. Messages are therefore cut into chunks, and
 * the chunks are striped over several connections. The receiver restores the order from the chunk's index, so
 * a stripe may stall or die without the others noticing: its unacknowledged chunks go back to the queue.
 * Control messages, heartbeats and acknowledgements have their own connection, on which little ever waits.
 *
 * The session (outbox, inbox) belongs to the pair of processes, not to any connection. After a reconnect each
 * side first tells what it holds (an acknowledgement marked "resume"); the other queues everything else again
 * and goes on. A new session begins only when the peer's process has changed.
 *
 * Invariant: a link is up exactly while it has a control connection. */
#include "net/link.h"
#include "base/clamp.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <string.h>

/* Chunks of an incomplete message are acknowledged once in 1.25 MiB, at least every 0.6 s and at most every
 * 40 ms. (1.25 MiB is a little more than a stripe lets wait unread, so reading comes first.) Complete
 * messages are acknowledged at once. */
enum { ACK_BYTES = 5 << 18, ACKS_AT_ONCE = 1024 };
static const double ack_soonest = 0.04, ack_latest = 0.6;

/* ---- frames in ----------------------------------------------------------------------------------------- */

static neb_status got_ack(struct neb_peer *p, const uint8_t *body, size_t n)
{
    uint64_t delivered[NEB_PRIORITIES];
    uint32_t entries;
    bool resume;
    uint64_t before = p->out.acked_bytes;
    NEB_TRY(neb__ack_head_get(body, n, delivered, &resume, &entries));
    for (uint32_t i = 0; i < entries; i++) {
        struct neb_ack a;
        NEB_TRY(neb__ack_get(body + NEB_ACK_HEADER + (size_t)i * NEB_ACK_ENTRY, &a));
        NEB_TRY(neb__outbox_ack(&p->out, &a));
    }
    for (int i = 0; i < NEB_PRIORITIES; i++) NEB_TRY(neb__outbox_delivered(&p->out, i, delivered[i]));
    if (resume) p->resumed = true;
    if (p->out.acked_bytes != before) {
        neb__measure_acked(p, neb__now_ns());
        p->top_up = true;
    }
    neb__link_touch(p);
    return NEB_OK;
}

static neb_status got_ping(struct neb_peer *p, const uint8_t *body, size_t n)
{
    struct neb_ping ping;
    NEB_TRY(neb__ping_get(body, n, &ping));
    p->pong = (struct neb_pong){ping.number, 0, ping.time};
    p->pong_due = true; /* only one answer waits, the newest */
    p->pinged_at = neb__now_ns();
    if (neb__seconds_since(p->ping_at) > 0.5 * p->net->config.heartbeat)
        p->ping_due = true; /* it leaves in the same packet */
    if (ping.stripes > p->their_stripes) neb__net_hurry(p->net);
    p->their_stripes = ping.stripes;
    p->measure.goodput_in = (double)ping.goodput;
    neb__link_touch(p);
    return NEB_OK;
}

/* Only an answer to a ping of this connection counts, so a stale one cannot keep a dead link alive. A stale
 * answer does not break the protocol either: the peer may have owed it when the previous connection broke. */
static neb_status got_pong(struct neb_peer *p, const uint8_t *body, size_t n)
{
    struct neb_pong pong;
    int64_t now = neb__now_ns();
    NEB_TRY(neb__pong_get(body, n, &pong));
    if (pong.number > p->ping_number || pong.time > (uint64_t)now)
        return neb__quiet(NEB_ERR_PROTOCOL, "it answers a ping that was never sent");
    if ((int64_t)pong.time < p->control->opened_at) return NEB_OK;
    double rtt = (double)(now - (int64_t)pong.time) * 1e-9 - (p->version >= 3 ? pong.held * 1e-6 : 0);
    struct neb_measure *m = &p->measure;
    p->pong_at = now;
    if (rtt <= 0) return NEB_OK; /* the two clocks run at slightly different speeds */
    m->rtt = m->rtt > 0 ? 0.75 * m->rtt + 0.25 * rtt : rtt;
    if (m->rtt_min <= 0 || rtt < m->rtt_min) m->rtt_min = rtt;
    return NEB_OK;
}

static neb_status on_frame(void *arg, enum neb_frame_type type, const uint8_t *body, size_t n)
{
    struct neb_conn *c = arg;
    struct neb_peer *p = c->peer;
    if (c->state != NEB_CONN_READY || type == NEB_FRAME_CHAIN) return neb__greet_frame(c, type, body, n);
    switch (type) {
    case NEB_FRAME_ACK: return got_ack(p, body, n);
    case NEB_FRAME_PING: return got_ping(p, body, n);
    case NEB_FRAME_PONG: return got_pong(p, body, n);
    case NEB_FRAME_BYE: return neb__quiet(NEB_ERR_PEER, "the peer said goodbye");
    default: return neb__quiet(NEB_ERR_PROTOCOL, "unexpected frame of type %d", type);
    }
}

static neb_status on_chunk_begin(void *arg, const struct neb_chunk *chunk)
{
    struct neb_conn *c = arg;
    bool copy = neb__control_copy_is(c), control = c->role == NEB_CONN_CONTROL || copy;
    if ((chunk->priority == NEB_CONTROL) != control || (copy && chunk->size > NEB_CONTROL_COPY_MESSAGE_MAX))
        return neb__quiet(NEB_ERR_PROTOCOL, "it sent a chunk on the wrong kind of connection");
    if (chunk->priority == NEB_STREAM) c->peer->urgent_at = neb__now_ns();
    if (chunk->priority == NEB_CONTROL && chunk->size > NEB_CONTROL_MESSAGE_MAX)
        return neb__quiet(NEB_ERR_LIMIT, "a control message is too long: %" PRIu64 " bytes", chunk->size);
    return neb__inbox_begin(&c->peer->in, chunk, c->slot);
}

static uint8_t *on_chunk_place(void *arg, const struct neb_chunk *chunk)
{
    struct neb_conn *c = arg;
    return neb__inbox_place(&c->peer->in, chunk, c->slot);
}

static void ack_by(struct neb_peer *p, int64_t due)
{
    if (!p->ack_due || due < p->ack_due) p->ack_due = due;
    neb__link_touch(p);
}

static int64_t ack_pause(const struct neb_conn *c)
{
    double s = c->bytes_per_s > 0 ? ACK_BYTES / c->bytes_per_s : ack_soonest;
    return (int64_t)(1e9 * neb__clamp(s, ack_soonest, ack_latest));
}

static neb_status on_chunk_end(void *arg, const struct neb_chunk *chunk)
{
    struct neb_conn *c = arg;
    struct neb_peer *p = c->peer;
    NEB_TRY(neb__inbox_end(&p->in, chunk, c->slot));
    if (p->in.ack_count || !neb__control_copy_is(c)) ack_by(p, p->acked_at + ack_pause(c));
    if (!p->held[chunk->priority]) neb__link_deliver(p, chunk->priority);
    return NEB_OK;
}

const struct neb_framer_events neb__link_frames = {on_frame, on_chunk_begin, on_chunk_place, on_chunk_end};

/* ---- messages up --------------------------------------------------------------------------------------- */

static neb_status offer(struct neb_peer *p, struct neb_message *m)
{
    const struct neb_net_config *cfg = &p->net->config;
    if (m->kind > NEB_KIND_USER_MAX) return neb__net_stream_message(p, m);
    return cfg->events->message ? cfg->events->message(cfg->arg, m) : NEB_OK;
}

void neb__link_deliver(struct neb_peer *p, enum neb_priority priority)
{
    struct neb_in *in;
    p->held[priority] = false;
    while ((in = neb__inbox_peek(&p->in, priority))) {
        struct neb_message m = {p->id, priority, in->kind, in->data, in->size};
        neb_status status = offer(p, &m);
        in->data = m.data; /* NULL: the callback took it */
        if (status == NEB_ERR_AGAIN) {
            p->held[priority] = true;
            return;
        }
        if (status != NEB_OK) {
            neb__warn("dropping %s: its message of kind %u was not accepted: %s", p->name, m.kind,
                      neb_status_text(status));
            neb__link_down(p, status);
            return;
        }
        neb__inbox_pop(&p->in, priority);
        ack_by(p, 1);
    }
}

uint8_t *neb__message_take(struct neb_message *m)
{
    uint8_t *data = m->data;
    m->data = NULL;
    return data;
}

/* ---- frames out ---------------------------------------------------------------------------------------- */

/* A chunk's frame is exactly four full TLS records. The header and the beginning of the payload share the
 * first. */
neb_status neb__link_write_chunk(struct neb_conn *c, const struct neb_chunk *chunk, const uint8_t *payload)
{
    uint8_t first[NEB_TLS_RECORD];
    const size_t head = NEB_FRAME_HEADER + NEB_CHUNK_HEADER;
    size_t n = chunk->length < sizeof first - head ? chunk->length : sizeof first - head;
    neb__frame_header(first, NEB_FRAME_CHUNK, NEB_CHUNK_HEADER + chunk->length);
    neb__chunk_put(chunk, first + NEB_FRAME_HEADER);
    if (n) memcpy(first + head, payload, n);
    NEB_TRY(neb__conn_write(c, first, head + n));
    return neb__conn_write(c, payload + n, chunk->length - n);
}

static neb_status write_acks(struct neb_conn *c, bool resume)
{
    struct neb_peer *p = c->peer;
    static _Thread_local struct neb_ack acks[ACKS_AT_ONCE];
    static _Thread_local uint8_t body[NEB_ACK_HEADER + NEB_ACK_ENTRY * ACKS_AT_ONCE];
    uint64_t delivered[NEB_PRIORITIES];
    for (int i = 0; i < NEB_PRIORITIES; i++) delivered[i] = p->in.queue[i].delivered;
    uint32_t n = neb__inbox_take_acks(&p->in, acks, ACKS_AT_ONCE);
    bool last = p->in.ack_count == 0;
    neb__ack_head_put(delivered, resume && last, n, body);
    for (uint32_t i = 0; i < n; i++)
        neb__ack_put(&acks[i], body + NEB_ACK_HEADER + (size_t)i * NEB_ACK_ENTRY);
    NEB_TRY(neb__conn_frame(c, NEB_FRAME_ACK, body, NEB_ACK_HEADER + (size_t)n * NEB_ACK_ENTRY));
    if (last) {
        p->ack_due = 0;
        p->acked_at = neb__now_ns();
        p->in.progress = false;
        if (resume) p->resume_due = false;
    }
    return NEB_OK;
}

static neb_status write_ping(struct neb_conn *c)
{
    struct neb_peer *p = c->peer;
    uint8_t body[NEB_PING_SIZE];
    p->ping_due = false;
    p->ping_at = neb__now_ns();
    struct neb_ping ping = {++p->ping_number, (uint32_t)neb__bbr_turns_stripes(p), (uint64_t)p->ping_at,
                            (uint64_t)p->measure.goodput, neb__outbox_bytes(&p->out)};
    neb__ping_put(&ping, body);
    return neb__conn_frame(c, NEB_FRAME_PING, body, sizeof body);
}

static neb_status write_pong(struct neb_conn *c)
{
    uint8_t body[NEB_PONG_SIZE];
    struct neb_peer *p = c->peer;
    p->pong_due = false;
    if (p->version >= 3) p->pong.held = (uint32_t)((neb__now_ns() - p->pinged_at) / 1000);
    neb__pong_put(&p->pong, body);
    return neb__conn_frame(c, NEB_FRAME_PONG, body, sizeof body);
}

/* An acknowledgement that is nearly due leaves now, since a separate wake-up here and at the peer would cost
 * more than it is worth. It also leaves when something else wakes the peer anyway. */
static bool ack_is_due(const struct neb_peer *p)
{
    int64_t now = neb__now_ns();
    if (!p->ack_due) return false;
    return p->in.progress || p->in.ack_count >= 64 || p->ack_due - now <= (now - p->acked_at) / 3 ||
           (p->in.ack_count && neb__conn_waiting(p->control));
}

/* While data comes in, the answer to a ping may wait for the next acknowledgement or for our own next ping.
 * It says how long it waited. */
static bool pong_is_due(const struct neb_peer *p)
{
    if (!p->pong_due) return false;
    return p->version < 3 || p->ping_due || ack_is_due(p) || !neb__link_is_calm(p) ||
           neb__seconds_since(p->acked_at) > p->net->config.heartbeat;
}

/* Returns false when nothing more is to be written. */
static bool fill_control(struct neb_conn *c, neb_status *s)
{
    struct neb_peer *p = c->peer;
    if (pong_is_due(p))
        *s = write_pong(c);
    else if (p->ping_due)
        *s = write_ping(c);
    else if (p->resume_due)
        *s = write_acks(c, true);
    else if (ack_is_due(p))
        *s = write_acks(c, false);
    else
        return false;
    return true;
}

static bool fill_chunk(struct neb_conn *c, neb_status *s)
{
    struct neb_peer *p = c->peer;
    struct neb_chunk chunk;
    const uint8_t *payload;
    if (!p->resumed) return false;
    if (c->role == NEB_CONN_STRIPE && !neb__bbr_turns_may_send(c)) return false;
    if (!neb__outbox_pick(&p->out, c->slot, &chunk, &payload)) {
        if (c->role == NEB_CONN_STRIPE) p->measure.dry = true;
        return false;
    }
    p->sent_at[chunk.priority] = neb__now_ns();
    if (chunk.priority == NEB_STREAM) p->urgent_at = p->sent_at[NEB_STREAM];
    *s = neb__link_write_chunk(c, &chunk, payload);
    if (*s == NEB_OK && chunk.priority == NEB_CONTROL) neb__control_copy_send(p, &chunk, payload);
    return true;
}

void neb__link_fill(struct neb_conn *c)
{
    neb_status status = neb__greet_fill(c);
    while (status == NEB_OK && neb__conn_waiting(c) < NEB_CONN_BATCH) {
        if (c->role == NEB_CONN_CONTROL && fill_control(c, &status)) continue;
        if (!fill_chunk(c, &status)) break;
    }
    if (status == NEB_OK) return;
    neb__link_detach(c, status);
    neb__conn_close(c);
}

void neb__link_touch(struct neb_peer *p)
{
    p->dirty = true;
}

bool neb__link_is_calm(const struct neb_peer *p)
{
    return !p->streams && (!p->urgent_at || neb__seconds_since(p->urgent_at) > 10);
}

/* ---- coming and going ---------------------------------------------------------------------------------- */

struct neb_peer *neb__peer_find(const struct neb_net *net, uint16_t id)
{
    for (struct neb_peer *p = net->peers; p; p = p->next)
        if (p->id == id) return p;
    return NULL;
}

int neb__peer_stripes(const struct neb_peer *p)
{
    int n = 0;
    for (int i = 0; i < NEB_CONTROL_COPY; i++) n += p->stripe[i] && p->stripe[i]->state == NEB_CONN_READY;
    return n ? n : 1;
}

neb_status neb__peer_add(struct neb_net *net, const struct neb_member *m)
{
    struct neb_peer *p = NEB_NEW(struct neb_peer);
    if (!p) return neb__fail(NEB_ERR_NOMEM, "out of memory for a peer");
    p->net = net;
    p->id = m->id;
    memcpy(p->name, m->name, sizeof p->name);
    p->key = m->key;
    neb__strangers_learn(p, m);
    p->backoff = p->call_backoff = net->config.dial_min;
    p->patience = net->config.greet;
    p->down_at = neb__now_ns();
    neb__outbox_init(&p->out, net->config.window); /* the HELLO brings the peer's own windows */
    neb__inbox_init(&p->in, net->config.window);
    neb__stripes_init(&p->stripes, net->config.stripes, net->config.stripes_max, neb__now_ns());
    p->next = net->peers;
    net->peers = p;
    return NEB_OK;
}

void neb__peer_remove(struct neb_peer *p, neb_status why)
{
    struct neb_peer **at = &p->net->peers;
    neb__link_down(p, why);
    if (p->making) neb__conn_close(p->making);
    if (p->calling) neb__conn_close(p->calling);
    p->making = p->calling = NULL;
    for (struct neb_conn *c = p->net->conns; c; c = c->next)
        if (c->peer == p) c->peer = NULL;
    neb__net_stream_peer_gone(p);
    while (*at != p) at = &(*at)->next;
    *at = p->next;
    neb__outbox_free(&p->out, why == NEB_ERR_CANCELLED ? why : NEB_ERR_PEER);
    neb__inbox_free(&p->in);
    neb__free(p);
}

static void drop_stripe(struct neb_peer *p, int i)
{
    struct neb_conn *c = p->stripe[i];
    p->stripe[i] = NULL;
    neb__outbox_requeue(&p->out, i);
    neb__inbox_drop_slot(&p->in, i);
    if (c) neb__conn_close(c);
}

static void drop_connections(struct neb_peer *p)
{
    struct neb_conn *c = p->control;
    p->control = NULL;
    if (c) neb__conn_close(c);
    for (int i = 0; i < NEB_STRIPES_MAX; i++)
        if (p->stripe[i]) drop_stripe(p, i);
    neb__outbox_requeue(&p->out, NEB_SLOT_CONTROL);
    neb__inbox_drop_slot(&p->in, NEB_SLOT_CONTROL);
    p->resumed = false;
}

/* The first dial comes soon after a good link broke; each further one waits twice as long, up to dial_max.
 * The jitter keeps sites from dialling in step. */
static void schedule_dial(struct neb_peer *p)
{
    const struct neb_net_config *cfg = &p->net->config;
    double wait = p->backoff * (0.5 + neb__net_jitter(p->net));
    p->dial_at = neb__now_ns() + (int64_t)(wait * 1e9);
    neb__net_hurry(p->net);
    p->backoff = p->backoff * 2 < cfg->dial_max ? p->backoff * 2 : cfg->dial_max;
}

void neb__link_unreachable(struct neb_peer *p)
{
    p->address++;
    schedule_dial(p);
}

void neb__link_uncallable(struct neb_peer *p)
{
    const struct neb_net_config *cfg = &p->net->config;
    p->call_turn++;
    p->call_at = neb__now_ns() + (int64_t)(p->call_backoff * (0.5 + neb__net_jitter(p->net)) * 1e9);
    p->call_backoff = p->call_backoff * 2 < cfg->dial_max ? p->call_backoff * 2 : cfg->dial_max;
    neb__net_hurry(p->net);
}

/* A direct path that breaks again soon is not sought again at once. */
static void leave_direct(struct neb_peer *p)
{
    if (!p->control || p->control->stand) return;
    bool lasted = neb__seconds_since(p->path_at) > 6 * p->net->config.dial_max;
    p->brief = lasted ? 0 : p->brief + (p->brief < 3);
}

static int64_t seek_direct_at(const struct neb_peer *p)
{
    double wait =
        p->brief ? (1 << (p->brief - 1)) * p->net->config.dial_max * (0.5 + neb__net_jitter(p->net)) : 0;
    return neb__now_ns() + (int64_t)(wait * 1e9);
}

void neb__link_down(struct neb_peer *p, neb_status why)
{
    bool was = p->up;
    p->up = false;
    leave_direct(p);
    drop_connections(p);
    if (!was) return;
    p->backoff = p->call_backoff = p->net->config.dial_min;
    p->down_at = neb__now_ns();
    p->call_at = 0;
    schedule_dial(p);
    neb__info("link to %s is down: %s", p->name, neb_status_text(why));
    if (p->net->config.events->peer_down) p->net->config.events->peer_down(p->net->config.arg, p->id, why);
}

void neb__link_detach(struct neb_conn *c, neb_status status)
{
    struct neb_peer *p = c->peer;
    bool told = c->state == NEB_CONN_GREETING && status == NEB_ERR_AUTH; /* the refusal has been logged */
    if (c->state != NEB_CONN_READY && !c->dialled && status != NEB_ERR_PEER && status != NEB_ERR_TIMEOUT &&
        !told)
        neb__net_stranger_log(c->net, "refused a connection from %s: %s", c->remote, neb_last_error());
    else if (c->stand && !c->talk && !told && p && (status == NEB_ERR_PROTOCOL || status == NEB_ERR_AUTH))
        neb__net_stranger_log(c->net, "%s breaks the protocol, or the relay host %s alters its bytes: %s",
                              p->name, c->stand->goal, neb_last_error());
    else if (c->state == NEB_CONN_READY && (status == NEB_ERR_PROTOCOL || status == NEB_ERR_LIMIT))
        neb__net_stranger_log(c->net, "%s breaks the protocol: %s", p ? p->name : c->remote,
                              neb_last_error());
    else
        neb__debug("the connection to %s ended: %s", c->remote, neb_last_error());
    if (c->talk) neb__stand_lost(c, neb_last_error());
    if (!p) return;
    if (p->control == c) {
        neb__link_down(p, status);
    } else if (p->making == c) {
        p->making = NULL;
        neb__link_unreachable(p);
    } else if (p->calling == c) {
        p->calling = NULL;
        neb__link_uncallable(p);
    } else if (c->role == NEB_CONN_STRIPE && p->stripe[c->stripe] == c) {
        drop_stripe(p, c->stripe);
        p->stripes.retry_at = neb__now_ns() + NEB_STRIPE_RETRY_NS;
        neb__net_hurry(p->net);
        neb__link_touch(p);
    }
}

static neb_status attach_stripe(struct neb_conn *c)
{
    struct neb_peer *p = c->peer;
    if (!p->up || c->token != p->token)
        return neb__quiet(NEB_ERR_AUTH, "a stripe belongs to a link that is gone");
    if (p->stripe[c->stripe] != c) {
        if (p->stripe[c->stripe]) drop_stripe(p, c->stripe);
        p->stripe[c->stripe] = c;
    }
    c->slot = c->stripe;
    c->round_trip_at = neb__now_ns();
    c->state = NEB_CONN_READY;
    c->framer.allowed = 1u << NEB_FRAME_CHUNK;
    neb__link_touch(p);
    return NEB_OK;
}

static bool same_process(const struct neb_peer *p, const struct neb_hello *h)
{
    return p->boot == h->boot && p->incarnation == h->incarnation;
}

/* ---- another path -------------------------------------------------------------------------------------- */

/* Two connections that were made at the same time, one by each side: both sides keep that of the lower id. */
static bool is_preferred(const struct neb_conn *c)
{
    bool lower_is_us = c->net->self < c->peer->id;
    return c->dialled == lower_is_us;
}

static bool crossed(const struct neb_peer *p, const struct neb_conn *c)
{
    const struct neb_conn *now = p->control;
    return !now->stand == !c->stand && now->dialled != c->dialled && neb__seconds_since(p->path_at) < 3;
}

/* The link goes on over another connection: directly instead of through a relay host, or the other way round. Unacknowledged
 * chunks are sent again, as after a reconnect, but nobody above hears of it. The peer gets to know of the change from the new
 * connection, a little later or earlier than we did. The old ones stay open until then, so that it does not take their end for
 * the link's. */
static void leave_path(struct neb_peer *p)
{
    struct neb_conn *old = p->control;
    leave_direct(p);
    p->control = NULL;
    neb__conn_park(old);
    for (int i = 0; i < NEB_STRIPES_MAX; i++) {
        struct neb_conn *c = p->stripe[i];
        if (!c) continue;
        if (c->state == NEB_CONN_READY) {
            p->stripe[i] = NULL;
            neb__conn_park(c);
        }
        drop_stripe(p, i);
    }
    drop_connections(p); /* the rest: what is in flight on the control connection */
    p->measure.rtt = p->measure.rtt_min = 0;
}

static void say_path(const struct neb_conn *c, const char *how)
{
    const struct neb_peer *p = c->peer;
    neb__info("link to %s is up (%s%s, start %" PRIu64 " of that site%s)", p->name,
              c->stand ? "through the relay host " : "", c->stand ? c->stand->goal : c->remote,
              p->incarnation, how);
}

static neb_status attach_control(struct neb_conn *c)
{
    struct neb_peer *p = c->peer;
    bool first = !p->boot, fresh = !same_process(p, &c->theirs), change = false;
    if (p->making == c) p->making = NULL;
    if (p->calling == c) p->calling = NULL;
    if (p->up && !fresh && crossed(p, c) && !is_preferred(c))
        return neb__quiet(NEB_ERR_PEER, "the link has another connection already");
    if (p->up && !fresh && (!p->control->stand != !c->stand || crossed(p, c))) {
        change = true;
        leave_path(p);
    } else if (p->up) {
        neb__info("%s connected again: dropping its older link", p->name);
        neb__link_down(p, NEB_ERR_PEER);
    }
    p->control = c;
    p->path_at = neb__now_ns();
    p->linked_from = c->network;
    p->token = c->token;
    p->incarnation = c->theirs.incarnation;
    p->boot = c->theirs.boot;
    p->version = c->theirs.version_max < NEB_WIRE_VERSION ? c->theirs.version_max : NEB_WIRE_VERSION;
    c->slot = NEB_SLOT_CONTROL;
    c->state = NEB_CONN_READY;
    c->framer.allowed = 1u << NEB_FRAME_PING | 1u << NEB_FRAME_PONG | 1u << NEB_FRAME_ACK |
                        1u << NEB_FRAME_CHUNK | 1u << NEB_FRAME_BYE | 1u << NEB_FRAME_CHAIN;
    p->up = true;
    neb__net_hurry(p->net);
    p->backoff = p->call_backoff = p->net->config.dial_min;
    if (c->stand) p->dial_at = seek_direct_at(p);
    neb__patience_linked(c);
    p->trouble[0] = 0;
    p->dial_quiet = false;
    p->reconnects += !first;
    p->pong_at = neb__now_ns();
    p->ping_due = p->resume_due = true;
    p->pong_due = false; /* it would answer a ping of the previous connection */
    for (int i = 0; i < NEB_PRIORITIES; i++) p->out.queue[i].window = c->theirs.window[i];
    if (fresh) {
        neb__inbox_new_session(&p->in);
        neb__outbox_new_session(&p->out);
        memset(p->held, 0, sizeof p->held);
    }
    NEB_TRY(neb__inbox_ack_all(&p->in));
    const char *how = fresh ? ", a new process" : ", resumed";
    if (first) how = "";
    if (change) how = ", on another path";
    say_path(c, how);
    if (p->net->config.events->peer_up && !change)
        p->net->config.events->peer_up(p->net->config.arg, p->id, p->incarnation);
    if (p->control == c) neb__net_stream_peer_up(p, fresh);
    neb__link_touch(p);
    return p->control == c ? NEB_OK : NEB_ERR_PEER;
}

neb_status neb__link_attach(struct neb_conn *c)
{
    return c->role == NEB_CONN_CONTROL ? attach_control(c) : attach_stripe(c);
}
