/* conn.c: one TLS connection on a non-blocking socket.
 *
 * Data is pulled, not pushed: the connection asks its link for more only when the socket has taken
 * everything. With TCP_NOTSENT_LOWAT the socket itself takes no more than pace.c allows. So the link chooses
 * late what goes next (which priority, which stripe), and a stripe that stalls holds little back.
 *
 * neb__conn_close() closes a connection once. Its memory is freed when libuv has released the handle. Every
 * callback may close it, so the loops below check `state` after each. */
#include "net/link.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { WRITES_PER_TURN = 16, USER_TIMEOUT_MS = 8000 };

static void on_poll(uv_poll_t *handle, int status, int events);
static size_t pull(void *arg, uint8_t *to, size_t n);

/* Failures are ignored: an older kernel that lacks one of these options still works, only less well. */
void neb__conn_socket_options(int fd, const char *congestion)
{
    int one = 1, timeout = USER_TIMEOUT_MS, idle = 2, count = 4;
    const char *cc = congestion ? congestion : "bbr";
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, sizeof timeout);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, cc, (socklen_t)strlen(cc));
}

static bool differ(double a, double b)
{
    return a > 1.1 * b || b > 1.1 * a;
}

/* The socket takes data while less than TCP_NOTSENT_LOWAT waits unsent. It becomes writable again at half of
 * that. */
static void set_tide(struct neb_conn *c, int bytes)
{
    if (bytes == c->tide) return;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, sizeof bytes);
    c->tide = bytes;
}

void neb__conn_unsent(struct neb_conn *c, int bytes, int low)
{
    if (!differ(bytes, c->unsent) && !differ(low, c->unsent_low)) return;
    c->unsent = bytes;
    c->unsent_low = low;
    set_tide(c, c->blocked ? 2 * low : bytes);
}

/* Setting SO_SNDBUF stops the kernel from growing the buffer, unless SO_BUF_LOCK (since Linux 5.15) hands
 * that back. We set a size only if the kernel has that option. */
void neb__conn_room(struct neb_conn *c, int bytes)
{
#ifdef SO_BUF_LOCK
    int has = 0, half = bytes / 2, unlocked = 0;
    socklen_t n = sizeof has;
    if (getsockopt(c->fd, SOL_SOCKET, SO_SNDBUF, &has, &n) || has >= bytes || bytes < c->room + c->room / 8)
        return;
    if (setsockopt(c->fd, SOL_SOCKET, SO_BUF_LOCK, &unlocked, sizeof unlocked)) return;
    setsockopt(c->fd, SOL_SOCKET, SO_SNDBUF, &half, sizeof half);
    setsockopt(c->fd, SOL_SOCKET, SO_BUF_LOCK, &unlocked, sizeof unlocked);
    c->room = bytes;
#else
    (void)c, (void)bytes;
#endif
}

neb_status neb__conn_open(struct neb_net *net, int fd, bool dialled, struct neb_conn **out)
{
    struct neb_conn *c = NEB_NEW(struct neb_conn);
    neb_status status = c ? neb__tls_open(net->tls, !dialled, NEB_CONN_OUT_MAX, pull, c, &c->tls)
                          : neb__fail(NEB_ERR_NOMEM, "out of memory for a connection");
    if (status != NEB_OK || uv_poll_init(&net->loop, &c->poll, fd)) {
        if (c) neb__tls_close(c->tls);
        neb__free(c);
        close(fd);
        return status != NEB_OK ? status : neb__fail(NEB_ERR_NET, "cannot watch a socket for events");
    }
    c->poll.data = c;
    c->net = net;
    c->fd = fd;
    c->dialled = dialled;
    c->state = dialled ? NEB_CONN_CONNECTING : NEB_CONN_TLS;
    c->opened_at = neb__now_ns();
    c->slot = -1;
    neb__framer_init(&c->framer, &neb__link_frames, c, net->skip, NEB_SKIP);
    neb__conn_socket_options(fd, net->congestion);
    neb__conn_unsent(c, 64 << 10, 32 << 10);
    c->next = net->conns;
    if (c->next) c->next->prev = c;
    net->conns = c;
    c->polling = UV_READABLE | (dialled ? UV_WRITABLE : 0);
    uv_poll_start(&c->poll, c->polling, on_poll);
    neb__net_hurry(net);
    *out = c;
    return NEB_OK;
}

static void on_closed(uv_handle_t *handle)
{
    struct neb_conn *c = handle->data;
    close(c->fd);
    neb__framer_free(&c->framer);
    neb__tls_close(c->tls);
    neb__free(c->tunnel);
    neb__free(c->talk);
    neb__free(c);
}

void neb__conn_watch(struct neb_conn *c, bool writable)
{
    int events = (c->by_clock ? 0 : UV_READABLE) | (writable ? UV_WRITABLE : 0);
    if (c->state == NEB_CONN_CLOSED || c->state == NEB_CONN_PARKED || c->polling == events) return;
    c->polling = events;
    if (events)
        uv_poll_start(&c->poll, events, on_poll);
    else
        uv_poll_stop(&c->poll);
}

size_t neb__conn_waiting(const struct neb_conn *c)
{
    return neb__tls_out(c->tls)->len - c->out_at;
}

/* Returns 1: everything is sent; 0: the socket is full; -1: it is broken. */
static int flush(struct neb_conn *c)
{
    struct neb_buf *out = neb__tls_out(c->tls);
    while (c->out_at < out->len) {
        ssize_t n = send(c->fd, out->data + c->out_at, out->len - c->out_at, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
        if (n <= 0) return -1;
        c->out_at += (size_t)n;
    }
    neb__buf_clear(out);
    c->out_at = 0;
    return 1;
}

void neb__conn_close(struct neb_conn *c)
{
    if (c->state == NEB_CONN_CLOSED) return;
    if (c->state == NEB_CONN_READY || c->state == NEB_CONN_GREETING) neb__tls_goodbye(c->tls);
    if (c->state != NEB_CONN_CONNECTING) flush(c);
    if (c->by_command) {
        shutdown(c->fd, SHUT_RDWR); /* the command reads the end at once */
        neb__dial_command_left(c->by_command, c->state == NEB_CONN_READY);
    }
    c->state = NEB_CONN_CLOSED;
    if (c->prev)
        c->prev->next = c->next;
    else
        c->net->conns = c->next;
    if (c->next) c->next->prev = c->prev;
    uv_poll_stop(&c->poll);
    uv_close((uv_handle_t *)&c->poll, on_closed);
}

/* Closes a connection that ended by itself or by the peer's fault, and tells its link. */
static void end(struct neb_conn *c, neb_status status)
{
    if (c->state == NEB_CONN_CLOSED) return;
    neb__link_detach(c, status);
    neb__conn_close(c);
}

static void end_errno(struct neb_conn *c, int e)
{
    neb_status status =
        e == ETIMEDOUT || e == EHOSTUNREACH || e == ENETUNREACH ? NEB_ERR_TIMEOUT : NEB_ERR_PEER;
    end(c, neb__quiet(status, "%s", strerror(e)));
}

neb_status neb__conn_write(struct neb_conn *c, const void *p, size_t n)
{
    return neb__tls_write(c->tls, p, n);
}

neb_status neb__conn_frame(struct neb_conn *c, enum neb_frame_type type, const void *body, size_t n)
{
    uint8_t small[NEB_FRAME_HEADER + 512];
    neb__frame_header(small, type, (uint32_t)n);
    if (n <= 512) {
        if (n) memcpy(small + NEB_FRAME_HEADER, body, n);
        return neb__conn_write(c, small, NEB_FRAME_HEADER + n);
    }
    NEB_TRY(neb__conn_write(c, small, NEB_FRAME_HEADER));
    return neb__conn_write(c, body, n);
}

void neb__conn_pump(struct neb_conn *c)
{
    set_tide(c, c->unsent);
    for (int i = 0; c->state != NEB_CONN_CLOSED && c->state != NEB_CONN_CONNECTING; i++) {
        int sent = flush(c);
        if (sent < 0) {
            end_errno(c, errno);
            return;
        }
        c->blocked = !sent;
        if (!sent || i == WRITES_PER_TURN) {
            set_tide(c, 2 * c->unsent_low);
            neb__conn_watch(c, true);
            return;
        }
        if (c->state == NEB_CONN_READY) neb__link_fill(c);
        neb_status status = c->state == NEB_CONN_GREETING ? neb__greet_fill(c) : NEB_OK;
        if (status != NEB_OK) end(c, status);
        if (c->state == NEB_CONN_CLOSED) return;
        if (!neb__conn_waiting(c)) {
            neb__conn_watch(c, false);
            return;
        }
    }
}

static void take_plaintext(struct neb_conn *c)
{
    while (c->state != NEB_CONN_CLOSED) {
        uint8_t *p;
        size_t n, got;
        neb__framer_want(&c->framer, &p, &n);
        neb_status status = neb__tls_read(c->tls, p, n, &got);
        if (status == NEB_OK) status = neb__framer_got(&c->framer, got);
        if (status == NEB_ERR_AGAIN) return;
        if (status != NEB_OK) {
            end(c, status);
            return;
        }
    }
}

neb_status neb__conn_renew(struct neb_conn *c, bool dialled)
{
    struct neb_tls *fresh;
    NEB_TRY(neb__tls_open(c->net->tls, !dialled, NEB_CONN_OUT_MAX, pull, c, &fresh));
    neb__tls_close(c->tls);
    c->tls = fresh;
    c->out_at = 0;
    c->dialled = dialled;
    c->state = NEB_CONN_TLS;
    c->opened_at = neb__now_ns();
    return NEB_OK;
}

void neb__conn_park(struct neb_conn *c)
{
    c->peer = NULL;
    c->state = NEB_CONN_PARKED;
    c->opened_at = neb__now_ns();
    c->polling = 0;
    uv_poll_stop(&c->poll);
}

static void shake_hands(struct neb_conn *c)
{
    neb_status status = neb__tls_handshake(c->tls);
    if (status == NEB_OK) {
        c->state = NEB_CONN_GREETING;
        status = neb__greet_begin(c);
    }
    if (status == NEB_ERR_AGAIN) status = NEB_OK;
    if (status != NEB_OK) {
        flush(c); /* sends the alert */
        end(c, status);
    }
}

/* Passes ciphertext from the socket to TLS, within this turn's limit. A short read has most likely emptied
 * the socket. */
static size_t pull(void *arg, uint8_t *to, size_t n)
{
    struct neb_conn *c = arg;
    ssize_t got;
    if (c->drained || c->taken >= NEB_READ_MAX) return 0;
    if (c->state == NEB_CONN_RELAY) { /* bytes of another session may follow this one */
        size_t left = neb__tls_record_left(c->tls);
        if (n > left) n = left;
    }
    do got = recv(c->fd, to, n, 0);
    while (got < 0 && errno == EINTR);
    c->drained = got < (ssize_t)n;
    if (got > 0) {
        c->taken += (size_t)got;
        return (size_t)got;
    }
    if (got == 0)
        c->ended = -1;
    else if (errno != EAGAIN && errno != EWOULDBLOCK)
        c->ended = errno;
    return 0;
}

static void talk(struct neb_conn *c)
{
    neb_status status = neb__stand_talk(c);
    if (status == NEB_OK || status == NEB_ERR_AGAIN) return;
    flush(c);
    end(c, status);
}

size_t neb__conn_read(struct neb_conn *c)
{
    c->taken = 0;
    c->drained = false;
    if (c->state == NEB_CONN_RELAY) talk(c);
    if (c->state == NEB_CONN_TLS) shake_hands(c);
    if (c->state == NEB_CONN_GREETING || c->state == NEB_CONN_READY) take_plaintext(c);
    if (c->state != NEB_CONN_CLOSED && c->ended > 0) end_errno(c, c->ended);
    if (c->state != NEB_CONN_CLOSED && c->ended)
        end(c, neb__quiet(NEB_ERR_PEER, "the peer closed the connection"));
    if (c->state == NEB_CONN_CLOSED) return 0;
    if (neb__conn_waiting(c) && !c->blocked) neb__conn_pump(c);
    return c->state != NEB_CONN_CLOSED ? c->taken : 0;
}

static void begin_tls(struct neb_conn *c)
{
    c->state = c->talk ? NEB_CONN_RELAY : NEB_CONN_TLS;
    neb__conn_watch(c, false);
    if (c->talk)
        talk(c);
    else
        shake_hands(c);
    neb__conn_pump(c);
}

static void ask_proxy(struct neb_conn *c)
{
    neb_status status = neb__tunnel_go_on(c);
    if (status == NEB_OK) begin_tls(c);
    if (status == NEB_OK || status == NEB_ERR_AGAIN) return;
    neb__net_dial_trouble(c->peer, "%s", neb_last_error());
    end(c, status);
}

static void connected(struct neb_conn *c)
{
    int e = 0;
    socklen_t n = sizeof e;
    getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &e, &n);
    if (e && c->tunnel)
        neb__net_dial_trouble(c->peer, "the proxy %s:%u cannot be reached: %s", c->net->way.proxy.host,
                              c->net->way.proxy.port, strerror(e));
    if (e) {
        end_errno(c, e);
        return;
    }
    if (!c->tunnel) {
        begin_tls(c);
        return;
    }
    c->state = NEB_CONN_PROXY;
    ask_proxy(c);
}

static void on_poll(uv_poll_t *handle, int status, int events)
{
    struct neb_conn *c = handle->data;
    if (c->state == NEB_CONN_CONNECTING) {
        connected(c);
        return;
    }
    if (c->state == NEB_CONN_PROXY) {
        ask_proxy(c);
        return;
    }
    if (status < 0) { /* libuv has stopped watching; the peer's last bytes may still be readable */
        int e = 0;
        socklen_t n = sizeof e;
        neb__conn_read(c);
        if (c->state == NEB_CONN_CLOSED) return;
        getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &e, &n);
        end_errno(c, e ? e : ECONNRESET);
        return;
    }
    size_t got = events & UV_READABLE ? neb__conn_read(c) : 0;
    if (got) neb__conn_plan_read(c, got);
    if ((events & UV_WRITABLE) && c->state != NEB_CONN_CLOSED) neb__conn_pump(c);
    if (got) neb__conn_read_others(c);
}
