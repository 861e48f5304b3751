/* meeting.c: the guest's side of a meeting at a relay host (relay_meet.c), for a program that does nothing else meanwhile.
 *
 * One socket, one TLS session, poll(2) for every wait. Each wait has a deadline; a signal does not end it. */
#include "net/relay/meeting.h"
#include "net/relay/relay_host.h"
#include "net/relay/relay_wire.h"
#include "net/link.h"
#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CONNECT_SECONDS = 10, OUT_MAX = 64 << 10 };

struct neb_meeting {
    int fd;
    struct neb_key *key;
    struct neb_tls_context *context;
    struct neb_tls *tls;
    struct neb_relay_reader reader;
    struct neb_public host;
    bool first;
    int ended; /* errno with which the socket ended; -1: the host closed it */
    int sent;
};

static int64_t deadline(double seconds)
{
    return neb__now_ns() + (int64_t)(seconds * 1e9);
}

/* False: the time is over. */
static bool wait_for(int fd, short events, int64_t until)
{
    struct pollfd p = {fd, events, 0};
    for (;;) {
        int64_t left = (until - neb__now_ns()) / 1000000;
        if (left < 0) return false;
        int n = poll(&p, 1, left > 60000 ? 60000 : (int)left + 1);
        if (n > 0) return true;
        if (n < 0 && errno != EINTR) return true; /* the next call on the socket says what is wrong */
    }
}

static size_t pull(void *arg, uint8_t *to, size_t n)
{
    struct neb_meeting *m = arg;
    ssize_t got;
    do got = recv(m->fd, to, n, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    if (got > 0) return (size_t)got;
    if (got == 0)
        m->ended = -1;
    else if (errno != EAGAIN && errno != EWOULDBLOCK)
        m->ended = errno;
    return 0;
}

static neb_status flush(struct neb_meeting *m, int64_t until)
{
    struct neb_buf *out = neb__tls_out(m->tls);
    for (size_t at = 0; at < out->len;) {
        ssize_t n = send(m->fd, out->data + at, out->len - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0) {
            at += (size_t)n;
            continue;
        }
        if (n < 0 && errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK)
            return neb__quiet(NEB_ERR_PEER, "the connection to the relay host broke: %s", strerror(errno));
        if (!wait_for(m->fd, POLLOUT, until))
            return neb__quiet(NEB_ERR_TIMEOUT, "the relay host takes nothing any more");
    }
    neb__buf_clear(out);
    return NEB_OK;
}

/* ---- connecting ---------------------------------------------------------------------------------------- */

static int try_address(const struct addrinfo *a, int64_t until)
{
    int e = 0, fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    socklen_t n = sizeof e;
    if (fd < 0) return -1;
    if (!connect(fd, a->ai_addr, a->ai_addrlen)) return fd;
    if (errno == EINPROGRESS) {
        if (!wait_for(fd, POLLOUT, until))
            e = ETIMEDOUT;
        else
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &n);
        if (!e) return fd;
        errno = e;
    }
    e = errno;
    close(fd);
    errno = e;
    return -1;
}

static neb_status dial(const struct neb_meeting_place *at, int *out)
{
    char service[8];
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *list;
    int fd = -1;
    snprintf(service, sizeof service, "%u", at->port);
    int rc = getaddrinfo(at->host, service, &hints, &list);
    if (rc)
        return neb__quiet(NEB_ERR_NET, "the relay host %s cannot be found: %s", at->host, gai_strerror(rc));
    for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next)
        fd = try_address(a, deadline(CONNECT_SECONDS));
    freeaddrinfo(list);
    if (fd < 0)
        return neb__quiet(NEB_ERR_NET, "the relay host %s:%u cannot be reached: %s", at->host, at->port,
                          strerror(errno));
    *out = fd;
    return NEB_OK;
}

static neb_status shake_hands(struct neb_meeting *m, int64_t until)
{
    for (;;) {
        neb_status status = neb__tls_handshake(m->tls), sent = flush(m, until);
        if (status == NEB_OK) return sent;
        if (status != NEB_ERR_AGAIN) {
            neb__error_prefix("this is not a relay host");
            return status;
        }
        NEB_TRY(sent);
        if (m->ended) return neb__quiet(NEB_ERR_NET, "the relay host closed the connection");
        if (!wait_for(m->fd, POLLIN, until))
            return neb__quiet(NEB_ERR_TIMEOUT, "the relay host does not answer");
    }
}

/* ---- messages ------------------------------------------------------------------------------------------ */

static neb_status refused(const struct neb_relay_message *message)
{
    struct neb_relay_refusal r;
    NEB_TRY(neb__relay_refusal_get(message->body, message->size, &r));
    neb_status status = NEB_ERR_AUTH;
    if (r.code == NEB_RELAY_REFUSE_MEETING) status = NEB_ERR_AGAIN;
    if (r.code == NEB_RELAY_REFUSE_MET) status = NEB_ERR_EXISTS;
    if (r.code == NEB_RELAY_REFUSE_GONE) status = NEB_ERR_PEER;
    return neb__quiet(status, "the relay host says: %s", r.text);
}

static neb_status next(struct neb_meeting *m, uint32_t allowed, int64_t until, struct neb_relay_message *out)
{
    for (;;) {
        neb_status status = neb__relay_next(m->tls, &m->reader, allowed | 1u << NEB_RELAY_REFUSE, out);
        if (status == NEB_OK) return out->type == NEB_RELAY_REFUSE ? refused(out) : NEB_OK;
        if (status != NEB_ERR_AGAIN) return status;
        if (m->ended) return neb__quiet(NEB_ERR_PEER, "the relay host closed the connection");
        if (!wait_for(m->fd, POLLIN, until))
            return neb__quiet(NEB_ERR_TIMEOUT, "nothing came from the other one in time");
    }
}

static neb_status enter(struct neb_meeting *m, const struct neb_meeting_place *at, const uint8_t *id,
                        double seconds)
{
    struct neb_relay_ask ask = {NEB_RELAY_VERSION_MIN, NEB_RELAY_VERSION, NEB_RELAY_MEET, {{0}}, 0, 0, 0};
    uint8_t body[NEB_RELAY_ASK_SIZE];
    struct neb_relay_message message;
    NEB_TRY(neb__key_create(&m->key));
    NEB_TRY(neb__tls_context_create(m->key, "guest", &m->context));
    NEB_TRY(neb__tls_open(m->context, false, OUT_MAX, pull, m, &m->tls));
    if (m->fd < 0) NEB_TRY(dial(at, &m->fd));
    int64_t soon = deadline(CONNECT_SECONDS); /* addresses that do not answer have had their own time */
    neb__conn_socket_options(m->fd, NULL);
    NEB_TRY(shake_hands(m, soon));
    neb__tls_peer(m->tls, &m->host);
    if (at->key && !neb__public_equal(at->key, &m->host))
        return neb__quiet(NEB_ERR_AUTH,
                          "another machine than the relay host answers at %s:%u: its key is not the one "
                          "that was given",
                          at->host, at->port);
    memcpy(ask.run.b, id, NEB_MEETING_ID_SIZE);
    neb__relay_ask_put(&ask, body);
    NEB_TRY(neb__relay_send(m->tls, NEB_RELAY_ASK, body, sizeof body));
    NEB_TRY(flush(m, soon));
    NEB_TRY(next(m, 1u << NEB_RELAY_JOINED, deadline(seconds), &message));
    m->first = message.size && message.body[0];
    return NEB_OK;
}

neb_status neb__meeting_open(const struct neb_meeting_place *at, const uint8_t id[NEB_MEETING_ID_SIZE],
                             double seconds, struct neb_meeting **out)
{
    struct neb_meeting *m = NEB_NEW(struct neb_meeting);
    if (!m) {
        if (at->fd > 0) close(at->fd);
        return neb__fail(NEB_ERR_NOMEM, "out of memory for a meeting");
    }
    m->fd = at->fd > 0 ? at->fd : -1;
    neb_status status = enter(m, at, id, seconds);
    if (status != NEB_OK) {
        neb__meeting_close(m);
        return status;
    }
    *out = m;
    return NEB_OK;
}

bool neb__meeting_is_first(const struct neb_meeting *m)
{
    return m->first;
}

void neb__meeting_key(const struct neb_meeting *m, struct neb_public *out)
{
    *out = m->host;
}

neb_status neb__meeting_send(struct neb_meeting *m, const void *p, size_t n)
{
    if (!n || n > NEB_MEETING_MESSAGE_MAX || m->sent >= NEB_MEETING_MESSAGES)
        return neb__fail(NEB_ERR_LIMIT, "a meeting has at most %d messages of 1 to %d bytes from each side",
                         NEB_MEETING_MESSAGES, NEB_MEETING_MESSAGE_MAX);
    m->sent++;
    NEB_TRY(neb__relay_send(m->tls, NEB_RELAY_SAY, p, n));
    return flush(m, deadline(CONNECT_SECONDS));
}

neb_status neb__meeting_receive(struct neb_meeting *m, double seconds, uint8_t out[NEB_MEETING_MESSAGE_MAX],
                                size_t *n)
{
    struct neb_relay_message message;
    NEB_TRY(next(m, 1u << NEB_RELAY_SAY, deadline(seconds), &message));
    memcpy(out, message.body, message.size);
    *n = message.size;
    return NEB_OK;
}

void neb__meeting_close(struct neb_meeting *m)
{
    if (!m) return;
    if (m->tls && m->fd >= 0) {
        neb__tls_goodbye(m->tls);
        flush(m, neb__now_ns());
    }
    if (m->fd >= 0) close(m->fd);
    neb__tls_close(m->tls);
    neb__tls_context_free(m->context);
    neb__key_free(m->key);
    neb__free(m);
}
