/* proxy_dial.c: connects to a proxy and has it connect further, waiting with poll(2), each wait with the same deadline. The
 * bytes behind the proxy's answer stay in the socket (MSG_PEEK), as in tunnel.c. */
#include "net/proxy_dial.h"
#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct dial {
    const struct neb_proxy *proxy;
    int64_t until;
    int fd;
};

static neb_status broken(const struct dial *d, const char *why)
{
    return neb__quiet(NEB_ERR_NET, "the proxy %s:%u: %s", d->proxy->host, d->proxy->port, why);
}

static neb_status await(const struct dial *d, short events)
{
    struct pollfd p = {d->fd, events, 0};
    for (;;) {
        int64_t left = (d->until - neb__now_ns()) / 1000000;
        if (left <= 0)
            return neb__quiet(NEB_ERR_TIMEOUT, "the proxy %s:%u does not answer", d->proxy->host,
                              d->proxy->port);
        int n = poll(&p, 1, (int)left);
        if (n > 0) return NEB_OK;
        if (n < 0 && errno != EINTR) return broken(d, strerror(errno));
    }
}

static neb_status connect_one(struct dial *d, const struct addrinfo *a)
{
    int e = 0;
    socklen_t n = sizeof e;
    d->fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (d->fd < 0) return broken(d, strerror(errno));
    if (connect(d->fd, a->ai_addr, a->ai_addrlen) && errno != EINPROGRESS) return broken(d, strerror(errno));
    NEB_TRY(await(d, POLLOUT));
    getsockopt(d->fd, SOL_SOCKET, SO_ERROR, &e, &n);
    return e ? broken(d, strerror(e)) : NEB_OK;
}

static neb_status reach(struct dial *d)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    char service[8];
    snprintf(service, sizeof service, "%u", d->proxy->port);
    int e = getaddrinfo(d->proxy->host, service, &hints, &list);
    if (e) return broken(d, gai_strerror(e));
    neb_status status = NEB_ERR_NET;
    for (const struct addrinfo *a = list; a && status != NEB_OK; a = a->ai_next) {
        status = connect_one(d, a);
        if (status != NEB_OK && d->fd >= 0) close(d->fd);
        if (status != NEB_OK) d->fd = -1;
    }
    freeaddrinfo(list);
    return status;
}

static neb_status send_all(const struct dial *d, const uint8_t *p, size_t n)
{
    while (n) {
        ssize_t sent = send(d->fd, p, n, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN && errno != EINTR) return broken(d, strerror(errno));
        if (sent < 0) NEB_TRY(await(d, POLLOUT));
        if (sent > 0) p += sent, n -= (size_t)sent;
    }
    return NEB_OK;
}

static neb_status talk(const struct dial *d, struct neb_proxy_talk *t)
{
    for (;;) {
        uint8_t bytes[1024];
        size_t used = 0;
        NEB_TRY(send_all(d, t->out, t->out_len));
        t->out_len = 0;
        NEB_TRY(await(d, POLLIN));
        ssize_t n = recv(d->fd, bytes, sizeof bytes, MSG_PEEK);
        if (n == 0) return broken(d, "it closed the connection instead of an answer");
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (n < 0) return broken(d, strerror(errno));
        neb_status status = neb__proxy_take(t, bytes, (size_t)n, &used);
        if (status != NEB_OK && status != NEB_ERR_AGAIN) return status;
        if (used && recv(d->fd, bytes, used, 0) != (ssize_t)used) return broken(d, "bytes were lost");
        if (status == NEB_OK) return NEB_OK;
    }
}

neb_status neb__proxy_dial(const struct neb_proxy *p, const char *host, uint16_t port, double seconds,
                           int *fd)
{
    struct dial d = {.proxy = p, .until = neb__now_ns() + (int64_t)(seconds * 1e9), .fd = -1};
    struct neb_proxy_talk t;
    NEB_TRY(neb__proxy_ask(&t, p, host, port));
    neb_status status = reach(&d);
    if (status == NEB_OK) status = talk(&d, &t);
    if (status == NEB_OK)
        *fd = d.fd;
    else if (d.fd >= 0)
        close(d.fd);
    return status;
}
