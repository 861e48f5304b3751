/* read_wakeup.c: decides when a stripe is read.
 *
 * Data comes in packet by packet, and a wake-up for each packet would cost more than all other work; on a
 * slow line even a wake-up for each chunk would. Nothing can be done with less than a whole chunk, so a
 * stripe asks (SO_RCVLOWAT) to be woken when the missing bytes of one chunk have arrived. Within a long
 * message of round data or bulk state it asks for several chunks: as many as come in `patience`, at most an
 * eighth of the receive buffer. On a fast line that is still too often, for SO_RCVLOWAT cannot be large there
 * without closing TCP's window. So a stripe that brings CLOCK_BYTES in CLOCK_MS is not watched; it is read
 * again when that time has passed.
 *
 * A stream item must not wait behind such patience, so it is short while a link has streams, or had one
 * lately. The control connection and the control copy connection are read at once.
 *
 * Expected data may come on another stripe, or stall. So every tick also reads what has arrived in the
 * sockets. */
#include "net/link.h"
#include "base/clamp.h"
#include "base/clock.h"

#include <sys/socket.h>

enum {
    CLOCK_MS = 4,
    CLOCK_CALM_MS = 12,
    CLOCK_BYTES = 96 << 10,
    WAKE_MAX = 1 << 20,
    WAKE_MAX_URGENT = 128 << 10
};

static const double patience_calm = 0.5, patience_urgent = 0.02;

static double patience(const struct neb_peer *p)
{
    return neb__link_is_calm(p) ? patience_calm : patience_urgent;
}

/* Unread bytes shrink TCP's window. The receive buffer must therefore hold them and a line's worth more. The
 * kernel makes the buffer as large as SO_RCVLOWAT once asked for, and leaves it so. */
static void make_room(struct neb_conn *c)
{
    int n = 4 * WAKE_MAX, room = 0;
    socklen_t size = sizeof room;
    if (c->wake_at) return;
    setsockopt(c->fd, SOL_SOCKET, SO_RCVLOWAT, &n, sizeof n);
    getsockopt(c->fd, SOL_SOCKET, SO_RCVBUF, &room, &size);
    c->wake_max = (int)neb__clamp_int(room / 8, WAKE_MAX_URGENT, WAKE_MAX);
}

static void wake_at(struct neb_conn *c, size_t bytes)
{
    make_room(c);
    size_t most = neb__link_is_calm(c->peer) ? (size_t)c->wake_max : WAKE_MAX_URGENT;
    int n = (int)neb__clamp_size(bytes, 1, most);
    if (n == c->wake_at) return;
    c->wake_at = n;
    setsockopt(c->fd, SOL_SOCKET, SO_RCVLOWAT, &n, sizeof n);
}

/* Returns how many stripes bring data at the same time; if there are two, they may be taking turns. */
static int width(const struct neb_peer *p)
{
    int n = neb__peer_stripes(p);
    return n > 2 ? n : 1;
}

enum { FRAME = NEB_FRAME_HEADER + NEB_CHUNK_HEADER };

/* Returns how many bytes of the message this stripe may bring behind the present chunk: full chunks, and the
 * end of the message. */
static size_t more(const struct neb_conn *c)
{
    const struct neb_chunk *k = &c->framer.chunk;
    uint64_t at = ((uint64_t)k->index + (c->framer.state == NEB_FRAMER_PAYLOAD ? 1 : 2)) * NEB_CHUNK,
             most = (uint64_t)(c->bytes_per_s * patience(c->peer) / NEB_CHUNK);
    if (k->priority < NEB_ROUND || at >= k->size) return 0;
    uint64_t n = (k->size - at) / NEB_CHUNK / (uint64_t)width(c->peer), tail = (k->size - at) % NEB_CHUNK;
    if (n > most || width(c->peer) > 1 || !tail) return (n < most ? n : most) * (FRAME + NEB_CHUNK);
    return n * (FRAME + NEB_CHUNK) + FRAME + tail;
}

static size_t missing(const struct neb_conn *c)
{
    size_t plain = neb__framer_missing(&c->framer);
    if (!plain && neb__tls_record_is_full(c->tls) && (plain = neb__framer_next_chunk(&c->framer)))
        plain += FRAME;
    if (plain) plain += more(c);
    return neb__tls_missing(c->tls, plain);
}

static void on_read_timer(uv_timer_t *timer)
{
    struct neb_net *net = timer->data;
    net->read_timer_on = false;
    neb__conn_read_by_clock(net);
}

void neb__conn_plan_read(struct neb_conn *c, size_t got)
{
    if (c->role != NEB_CONN_STRIPE || c->state != NEB_CONN_READY || neb__control_copy_is(c)) return;
    int64_t now = neb__now_ns();
    c->bytes_per_s = (double)got * 1e9 / (double)(now - c->read_at + 1000);
    c->read_at = now;
    bool more = got >= NEB_READ_MAX; /* most likely more is there already */
    c->by_clock = !more && c->bytes_per_s * CLOCK_MS * 1e-3 >= CLOCK_BYTES;
    wake_at(c, c->by_clock || more ? 1 : missing(c));
    neb__conn_watch(c, c->polling & UV_WRITABLE);
    if (!c->by_clock || c->net->read_timer_on) return;
    c->net->read_timer_on = true;
    uv_timer_start(&c->net->read_timer, on_read_timer, neb__link_is_calm(c->peer) ? CLOCK_CALM_MS : CLOCK_MS,
                   0);
}

void neb__conn_read_by_clock(struct neb_net *net)
{
    struct neb_conn *c, *next;
    for (c = net->conns; c; c = next) {
        next = c->next;
        if (!c->by_clock || c->state == NEB_CONN_CLOSED) continue;
        c->by_clock = false;
        size_t got = neb__conn_read(c);
        if (c->state != NEB_CONN_CLOSED) neb__conn_plan_read(c, got);
    }
}

/* Returns true while the expected data may still come within its patience. */
static bool is_early(const struct neb_conn *c, int64_t now)
{
    return width(c->peer) == 1 && (double)(now - c->read_at) * 1e-9 < patience(c->peer);
}

void neb__conn_read_waiting(struct neb_net *net, bool all)
{
    int64_t now = neb__now_ns();
    struct neb_conn *c, *next;
    for (c = net->conns; c; c = next) {
        next = c->next;
        if (c->wake_at <= 1 || c->state != NEB_CONN_READY || (!all && is_early(c, now))) continue;
        size_t got = neb__conn_read(c);
        if (got)
            neb__conn_plan_read(c, got);
        else if (c->state == NEB_CONN_READY)
            wake_at(c, 1); /* the next byte begins something new */
    }
}

void neb__conn_read_others(struct neb_conn *c)
{
    struct neb_peer *p = c->role == NEB_CONN_STRIPE && c->state == NEB_CONN_READY ? c->peer : NULL;
    for (int i = 0; p && i < NEB_CONTROL_COPY; i++) {
        struct neb_conn *other = p->stripe[i];
        if (!other || other == c || other->state != NEB_CONN_READY || other->wake_at <= 1) continue;
        size_t got = neb__conn_read(other);
        if (got) neb__conn_plan_read(other, got);
        if (c->state != NEB_CONN_READY) return;
    }
}
