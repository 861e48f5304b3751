/* relay_guest.c: one connection to a relay host, from the TLS handshake to what it asks for.
 *
 *     TLS → ASKING → (SHOWING → CHECKING)? → STANDING                    a member that can be called
 *                                          → CALLING → JOINING → JOINED  a member that calls
 *                                          → JOINING → JOINED            a member that answers
 *                  → MEETING                                             a stranger
 *
 * The session is read record by record, never beyond one (neb__tls_record_left()): behind JOINED the socket carries bytes of
 * another session, which is none of ours. For the same reason nothing but JOINED's own record may be under way to a guest when
 * its pair begins.
 *
 * A guest that closes, errs or is late is closed once. Its memory is freed when libuv has released the handle, so every loop
 * below looks at `state` after each step. */
#include "net/relay/relay_host_internal.h"
#include "net/link.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void on_poll(uv_poll_t *handle, int status, int events);

static void complain(struct neb_relay_host *h, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void complain(struct neb_relay_host *h, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    neb__log_limited(&h->log, fmt, ap);
    va_end(ap);
}

/* ---- coming and going ---------------------------------------------------------------------------------- */

bool neb__guest_is_stranger(const struct neb_guest *g)
{
    return !g->member && g->state != NEB_GUEST_MEETING && g->state != NEB_GUEST_CLOSED;
}

/* Drops one stranger of the most crowded network when there are too many. A random one goes: the oldest would always be the
 * one that has almost finished. */
static void make_room(struct neb_relay_host *h)
{
    struct neb_guest *drop = NULL;
    int most = 0, equals = 0, count = 0;
    for (const struct neb_guest *g = h->guests; g; g = g->next) count += neb__guest_is_stranger(g);
    if (count <= NEB_GUESTS_STRANGERS) return;
    for (struct neb_guest *g = h->guests; g; g = g->next) {
        int same = 0;
        if (!neb__guest_is_stranger(g)) continue;
        for (struct neb_guest *o = h->guests; o; o = o->next)
            same += neb__guest_is_stranger(o) && o->network == g->network;
        if (same > most) most = same, equals = 0;
        if (same == most && neb__rng_below(&h->rng, (uint64_t)++equals) == 0) drop = g;
    }
    complain(h, "%d connections have not proved a member's key yet: dropping one from %s", count,
             drop->remote);
    h->counts.refused++;
    neb__guest_close(drop);
}

static int connections_of(const struct neb_relay_run *r)
{
    int n = 0;
    for (const struct neb_relay_member *m = r->members; m; m = m->next) n += m->connections;
    return n;
}

/* All places are taken: a run whose roster a guest showed gives one up, the run with the most. Anybody can make such runs; those of
 * the operator's files lose nothing. False: there is none with many. */
static bool crowd_out(struct neb_relay_host *h)
{
    enum { FEW = 8 };
    const struct neb_relay_run *most = NULL;
    struct neb_guest *drop = NULL;
    int equals = 0;
    for (const struct neb_relay_run *r = h->runs; r; r = r->next)
        if (r->shown && connections_of(r) > (most ? connections_of(most) : FEW)) most = r;
    for (struct neb_guest *g = h->guests; most && g; g = g->next)
        if (g->run == most && g->member && neb__rng_below(&h->rng, (uint64_t)++equals) == 0) drop = g;
    if (!drop) return false;
    complain(h, "all %d connections are taken: dropping one of run %.8s…, which has %d", h->guests_max,
             most->name, connections_of(most));
    neb__guest_close(drop);
    return true;
}

/* The source of the session: never more than the present record, and not for ever. */
static size_t pull(void *arg, uint8_t *to, size_t n)
{
    struct neb_guest *g = arg;
    size_t left = neb__tls_record_left(g->tls);
    ssize_t got;
    if (g->pulled >= NEB_GUEST_TURN) return 0;
    do got = recv(g->fd, to, n < left ? n : left, 0);
    while (got < 0 && errno == EINTR);
    if (got > 0) {
        g->pulled += (size_t)got;
        return (size_t)got;
    }
    if (got == 0)
        g->ended = -1;
    else if (errno != EAGAIN && errno != EWOULDBLOCK)
        g->ended = errno;
    return 0;
}

void neb__guest_open(struct neb_relay_host *h, int fd, const struct sockaddr *sa, socklen_t n)
{
    char host[46] = "?", port[8] = "?";
    bool room = h->guest_count < h->guests_max || crowd_out(h);
    struct neb_guest *g = room ? NEB_NEW(struct neb_guest) : NULL;
    if (!g || neb__tls_open(h->tls, true, NEB_GUEST_OUT_MAX, pull, g, &g->tls) != NEB_OK ||
        uv_poll_init(&h->loop, &g->poll, fd)) {
        complain(h, "cannot take a connection: %s", g ? neb_last_error() : "too many, or out of memory");
        if (g) neb__tls_close(g->tls);
        neb__free(g);
        close(fd);
        return;
    }
    g->poll.data = g;
    g->host = h;
    g->fd = fd;
    g->since = neb__now_ns();
    g->network = neb__net_network(sa);
    neb__buf_init(&g->shown, NEB_GUEST_SHOW_MAX);
    getnameinfo(sa, n, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(g->remote, sizeof g->remote, sa->sa_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
    neb__conn_socket_options(fd, NULL);
    g->next = h->guests;
    if (g->next) g->next->prev = g;
    h->guests = g;
    h->guest_count++;
    neb__guest_watch(g, UV_READABLE);
    make_room(h);
}

static void on_closed(uv_handle_t *handle)
{
    struct neb_guest *g = handle->data;
    close(g->fd);
    neb__tls_close(g->tls);
    neb__buf_free(&g->shown);
    neb__free(g);
}

void neb__guest_close(struct neb_guest *g)
{
    struct neb_relay_host *h = g->host;
    if (g->state == NEB_GUEST_CLOSED) return;
    enum neb_guest_state was = g->state;
    g->state = NEB_GUEST_CLOSED;
    if (g->prev)
        g->prev->next = g->next;
    else
        h->guests = g->next;
    if (g->next) g->next->prev = g->prev;
    h->guest_count--;
    if (g->member) {
        g->run->used_at = neb__now_ns();
        g->member->connections--;
        if (g->member->standing == g) g->member->standing = NULL;
    }
    neb__shown_gone(g);
    uv_poll_stop(&g->poll);
    uv_close((uv_handle_t *)&g->poll, on_closed);
    if (was == NEB_GUEST_MEETING) neb__meet_gone(g);
    if (g->joint) neb__joint_close(g->joint, "one of the two is gone");
}

void neb__guest_watch(struct neb_guest *g, int events)
{
    if (g->state == NEB_GUEST_CLOSED || g->polling == events) return;
    g->polling = events;
    if (events)
        uv_poll_start(&g->poll, events, on_poll);
    else
        uv_poll_stop(&g->poll);
}

/* ---- saying -------------------------------------------------------------------------------------------- */

void neb__guest_enter(struct neb_guest *g, enum neb_guest_state state)
{
    g->state = state;
    g->since = neb__now_ns();
}

static void flush(struct neb_guest *g)
{
    struct neb_buf *out = neb__tls_out(g->tls);
    while (g->out_at < out->len) {
        ssize_t n = send(g->fd, out->data + g->out_at, out->len - g->out_at, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            neb__guest_watch(g, UV_READABLE | UV_WRITABLE);
            return;
        }
        if (n <= 0) {
            neb__guest_close(g);
            return;
        }
        g->out_at += (size_t)n;
    }
    neb__buf_clear(out);
    g->out_at = 0;
    neb__guest_watch(g, UV_READABLE);
    if (g->state == NEB_GUEST_PARTING) {
        shutdown(g->fd,
                 SHUT_WR); /* the guest closes when it has read the refusal; the clock waits for that */
    } else if (g->state == NEB_GUEST_JOINING) {
        neb__guest_enter(g, NEB_GUEST_JOINED);
        neb__guest_watch(g, 0);
        neb__joint_begin(g->joint);
    }
}

neb_status neb__guest_say(struct neb_guest *g, enum neb_relay_type type, const void *body, size_t n)
{
    neb_status status = neb__relay_send(g->tls, type, body, n);
    if (status != NEB_OK)
        neb__guest_close(g);
    else
        flush(g);
    return g->state == NEB_GUEST_CLOSED ? NEB_ERR_PEER : status;
}

void neb__guest_refuse(struct neb_guest *g, enum neb_relay_refuse_code code, const char *fmt, ...)
{
    char text[NEB_RELAY_TEXT_MAX + 1];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    g->host->counts.refused++;
    if (g->state == NEB_GUEST_MEETING) neb__meet_gone(g);
    /* A member that is not there, or a quota, is everyday: quotas are logged where they are first reached. */
    if (code == NEB_RELAY_REFUSE_VERSION || code == NEB_RELAY_REFUSE_RUN || code == NEB_RELAY_REFUSE_KEY ||
        code == NEB_RELAY_REFUSE_PROTOCOL)
        complain(g->host, "refused %s: %s", g->remote, text);
    if (neb__relay_send_refusal(g->tls, code, text) != NEB_OK) {
        neb__guest_close(g);
        return;
    }
    neb__guest_enter(g, NEB_GUEST_PARTING);
    flush(g);
}

/* ---- asking -------------------------------------------------------------------------------------------- */

static bool take_quota(struct neb_guest *g)
{
    struct neb_relay_member *m = g->member;
    const struct neb_relay_limits *l = &g->host->limits;
    if (m->connections < l->member_connections) {
        m->connections++;
        return true;
    }
    g->member = NULL;
    if (!m->told_connections)
        neb__warn("member %u of run %.8s… has all of its %" PRId64 " connections; further ones are refused",
                  m->id, g->run->name, l->member_connections);
    m->told_connections = true;
    neb__guest_refuse(g, NEB_RELAY_REFUSE_QUOTA, "this member has %d connections here already",
                      m->connections);
    return false;
}

static void stand(struct neb_guest *g)
{
    struct neb_guest *before = g->member->standing;
    g->member->standing = g;
    neb__guest_enter(g, NEB_GUEST_STANDING);
    g->ping_at = g->pong_at = g->since;
    if (before) neb__guest_close(before); /* its newest connection is the one that lives */
    neb__debug("member %u of run %.8s… stands here, from %s", g->member->id, g->run->name, g->remote);
    neb__guest_say(g, NEB_RELAY_HERE, NULL, 0);
}

static struct neb_relay_member *find_called(struct neb_guest *g)
{
    for (struct neb_relay_member *m = g->run->members; m; m = m->next)
        if (m->id == g->ask.peer && m->standing) return m;
    return NULL;
}

/* Each call wakes the called member, which then dials. So calls have buckets as large as what may be joined, of the caller and of the run. */
static bool may_call(struct neb_guest *g)
{
    const struct neb_relay_limits *l = &g->host->limits;
    double own = (double)l->member_connections, all = (double)l->run_connections;
    int64_t now = neb__now_ns();
    if (!neb__relay_within_burst(&g->member->calls, own, own / NEB_CALL_REFILL, now)) {
        if (!g->member->told_calls)
            neb__warn("member %u of run %.8s… calls more than %.0f times a second: further calls are refused",
                      g->member->id, g->run->name, own / NEB_CALL_REFILL);
        g->member->told_calls = true;
        neb__guest_refuse(g, NEB_RELAY_REFUSE_QUOTA, "this member calls too often; wait a few seconds");
        return false;
    }
    if (!neb__relay_within_burst(&g->run->calls, all, all / NEB_CALL_REFILL, now)) {
        if (!g->run->told_calls)
            neb__warn("run %.8s… calls more than %.0f times a second: further calls are refused",
                      g->run->name, all / NEB_CALL_REFILL);
        g->run->told_calls = true;
        neb__guest_refuse(g, NEB_RELAY_REFUSE_QUOTA, "this run calls too often; wait a few seconds");
        return false;
    }
    return true;
}

/* Asked by a call and, since many calls may wait together, once more by each answer. */
static bool has_room(struct neb_guest *g)
{
    int64_t most = g->host->limits.run_connections;
    if (g->run->joints < most) return true;
    if (!g->run->told_connections)
        neb__warn("run %.8s… has all of its %" PRId64 " pairs; further calls are refused", g->run->name,
                  most);
    g->run->told_connections = true;
    neb__guest_refuse(g, NEB_RELAY_REFUSE_QUOTA, "this run has %d pairs of connections here already",
                      g->run->joints);
    return false;
}

static void call(struct neb_guest *g)
{
    struct neb_relay_member *m = find_called(g);
    uint8_t body[NEB_RELAY_RING_SIZE];
    if (!m) {
        neb__guest_refuse(g, NEB_RELAY_REFUSE_ABSENT, "member %u does not stand here", g->ask.peer);
        return;
    }
    if (!has_room(g) || !may_call(g)) return;
    if (neb__random_bytes(&g->ticket, sizeof g->ticket) != NEB_OK) {
        neb__guest_close(g);
        return;
    }
    g->called = m->id;
    neb__guest_enter(g, NEB_GUEST_CALLING);
    struct neb_relay_ring ring = {g->ticket, g->member->id};
    neb__relay_ring_put(&ring, body);
    neb__guest_say(m->standing, NEB_RELAY_RING, body, sizeof body);
}

/* The ticket is a random number that only the called member was told, and only that member may use it. */
static void answer(struct neb_guest *g)
{
    struct neb_guest *caller = g->host->guests;
    while (caller && (caller->state != NEB_GUEST_CALLING || caller->ticket != g->ask.ticket ||
                      caller->run != g->run || caller->called != g->member->id))
        caller = caller->next;
    if (!caller) {
        neb__guest_refuse(g, NEB_RELAY_REFUSE_TICKET, "nobody waits for this answer, or no longer");
        return;
    }
    if (!has_room(g)) return;
    if (neb__joint_create(caller, g) != NEB_OK) {
        neb__guest_refuse(g, NEB_RELAY_REFUSE_QUOTA, "the relay host has no room for another pair");
        return;
    }
    neb__guest_enter(caller, NEB_GUEST_JOINING);
    neb__guest_enter(g, NEB_GUEST_JOINING);
    if (neb__guest_say(caller, NEB_RELAY_JOINED, NULL, 0) == NEB_OK)
        neb__guest_say(g, NEB_RELAY_JOINED, NULL, 0);
}

void neb__guest_serve(struct neb_guest *g)
{
    struct neb_relay_host *h = g->host;
    neb__guest_watch(g, UV_READABLE);
    g->run = neb__relay_run_find(h, &g->ask.run);
    if (!g->run || g->run->chain->epoch < g->ask.epoch) {
        if (g->state == NEB_GUEST_CHECKING) {
            neb__guest_refuse(g, NEB_RELAY_REFUSE_RUN, "the roster that was shown is another one");
            return;
        }
        if (!neb__shown_may(g)) return;
        neb__guest_enter(g, NEB_GUEST_SHOWING);
        neb__guest_say(g, NEB_RELAY_WANT, NULL, 0);
        return;
    }
    g->member = neb__relay_run_member(g->run, &g->key);
    if (!g->member) {
        neb__guest_refuse(g, NEB_RELAY_REFUSE_KEY,
                          "the key is not a member's in epoch %" PRIu64 " of this run's roster",
                          g->run->chain->epoch);
        return;
    }
    if (!take_quota(g)) return;
    if (g->ask.what == NEB_RELAY_STAND)
        stand(g);
    else if (g->ask.what == NEB_RELAY_CALL)
        call(g);
    else
        answer(g);
}

static void got_ask(struct neb_guest *g, const struct neb_relay_message *m)
{
    neb_status status = neb__relay_ask_get(m->body, m->size, &g->ask);
    if (status == NEB_ERR_VERSION)
        neb__guest_refuse(g, NEB_RELAY_REFUSE_VERSION, "%s", neb_last_error());
    else if (status != NEB_OK)
        neb__guest_refuse(g, NEB_RELAY_REFUSE_PROTOCOL, "%s", neb_last_error());
    else if (g->ask.what == NEB_RELAY_MEET)
        neb__meet_ask(g);
    else
        neb__guest_serve(g);
}

static void got_show(struct neb_guest *g, const struct neb_relay_message *m)
{
    if (neb__buf_append(&g->shown, m->body + 1, m->size - 1) != NEB_OK) {
        neb__guest_refuse(g, NEB_RELAY_REFUSE_RUN, "a roster of more than %d bytes cannot be shown",
                          NEB_GUEST_SHOW_MAX);
        return;
    }
    if (m->body[0]) neb__shown_check(g);
}

/* ---- events -------------------------------------------------------------------------------------------- */

static const uint32_t allowed[NEB_GUEST_CLOSED + 1] = {
    [NEB_GUEST_ASKING] = 1u << NEB_RELAY_ASK,
    [NEB_GUEST_SHOWING] = 1u << NEB_RELAY_SHOW,
    [NEB_GUEST_STANDING] = 1u << NEB_RELAY_PING | 1u << NEB_RELAY_PONG,
    [NEB_GUEST_MEETING] = 1u << NEB_RELAY_SAY,
};

/* Once a second: sealing an answer costs more than asking for it. */
static void answer_ping(struct neb_guest *g)
{
    int64_t now = neb__now_ns();
    if (g->ponged_at && now - g->ponged_at < 1000000000) return;
    g->ponged_at = now;
    neb__guest_say(g, NEB_RELAY_PONG, NULL, 0);
}

static void got_message(struct neb_guest *g, const struct neb_relay_message *m)
{
    switch (m->type) {
    case NEB_RELAY_ASK: got_ask(g, m); return;
    case NEB_RELAY_SHOW: got_show(g, m); return;
    case NEB_RELAY_SAY: neb__meet_say(g, m->body, m->size); return;
    case NEB_RELAY_PING: answer_ping(g); return;
    default: g->pong_at = neb__now_ns();
    }
}

static bool reads_messages(const struct neb_guest *g)
{
    return g->state == NEB_GUEST_ASKING || g->state == NEB_GUEST_SHOWING || g->state == NEB_GUEST_STANDING ||
           g->state == NEB_GUEST_CALLING || g->state == NEB_GUEST_MEETING;
}

static void shake_hands(struct neb_guest *g)
{
    neb_status status = neb__tls_handshake(g->tls);
    if (status == NEB_OK) {
        neb__tls_peer(g->tls, &g->key);
        neb__guest_enter(g, NEB_GUEST_ASKING);
    } else if (status != NEB_ERR_AGAIN) {
        complain(g->host, "refused a connection from %s: %s", g->remote, neb_last_error());
        g->host->counts.refused++;
    }
    flush(g);
    if (status != NEB_OK && status != NEB_ERR_AGAIN) neb__guest_close(g);
}

static void read_guest(struct neb_guest *g)
{
    struct neb_relay_message m;
    g->pulled = 0;
    if (g->state == NEB_GUEST_TLS) shake_hands(g);
    while (reads_messages(g)) {
        neb_status status = neb__relay_next(g->tls, &g->reader, allowed[g->state], &m);
        if (status == NEB_OK) {
            got_message(g, &m);
            continue;
        }
        if (status == NEB_ERR_PROTOCOL && g->state != NEB_GUEST_STANDING)
            neb__guest_refuse(g, NEB_RELAY_REFUSE_PROTOCOL, "%s", neb_last_error());
        else if (status != NEB_ERR_AGAIN)
            neb__guest_close(g);
        break;
    }
    if (g->state == NEB_GUEST_PARTING) { /* whatever it still says is dropped */
        ssize_t got = recv(g->fd, NULL, 1 << 20, MSG_TRUNC);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) g->ended = -1;
    }
    if (g->ended && g->state != NEB_GUEST_JOINED) neb__guest_close(g);
}

static void on_poll(uv_poll_t *handle, int status, int events)
{
    struct neb_guest *g = handle->data;
    if (g->state == NEB_GUEST_JOINED) {
        neb__joint_event(g, status < 0 ? UV_READABLE : events);
        return;
    }
    if (status < 0) {
        neb__guest_close(g);
        return;
    }
    if (events & UV_READABLE) read_guest(g);
    if ((events & UV_WRITABLE) && g->state != NEB_GUEST_CLOSED && g->state != NEB_GUEST_JOINED) flush(g);
}

/* ---- the clock ----------------------------------------------------------------------------------------- */

static bool is_late(const struct neb_guest *g, int64_t now)
{
    double in_state = (double)(now - g->since) * 1e-9;
    switch (g->state) {
    case NEB_GUEST_JOINED: return false;
    case NEB_GUEST_STANDING: return (double)(now - g->pong_at) * 1e-9 > 3 * NEB_GUEST_PING_SECONDS;
    case NEB_GUEST_MEETING: return in_state > g->host->limits.meeting_seconds;
    case NEB_GUEST_PARTING: return in_state > 2;
    default: return in_state > NEB_GUEST_SECONDS;
    }
}

void neb__guest_tick(struct neb_relay_host *h, int64_t now)
{
    for (struct neb_guest *g = h->guests, *next; g; g = next) {
        next = g->next;
        if (is_late(g, now)) {
            if (g->state == NEB_GUEST_CALLING)
                neb__guest_refuse(g, NEB_RELAY_REFUSE_ABSENT, "member %u does not answer", g->called);
            else if (g->state == NEB_GUEST_MEETING)
                neb__guest_refuse(g, NEB_RELAY_REFUSE_GONE, "the time of this meeting is over");
            else
                neb__guest_close(g);
            next = h->guests; /* closing one may have closed others */
            continue;
        }
        if (g->state == NEB_GUEST_STANDING &&
            now - g->ping_at > (int64_t)NEB_GUEST_PING_SECONDS * 1000000000) {
            g->ping_at = now;
            if (neb__guest_say(g, NEB_RELAY_PING, NULL, 0) != NEB_OK) next = h->guests;
        }
    }
}
