/* tunnel.c: a connection that a proxy makes for us. Between TCP's connect and TLS it sends what proxy.c says and reads the
 * proxy's answer, and nothing behind it: bytes are looked at in the socket first (MSG_PEEK) and taken when they are known
 * to be the proxy's. The connection has the time of any other (patience.c), so a proxy that never answers costs no more. */
#include "net/link.h"
#include "base/mem.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

struct neb_tunnel {
    struct neb_proxy_talk talk;
    size_t sent; /* bytes of talk.out */
};

neb_status neb__tunnel_open(struct neb_conn *c, const char *goal)
{
    char host[NEB_ADDRESS_SIZE];
    uint16_t port;
    if (!neb__address_split(goal, host, &port)) return neb__quiet(NEB_ERR_INVALID, "not an address");
    struct neb_tunnel *t = NEB_NEW(struct neb_tunnel);
    if (!t) return neb__quiet(NEB_ERR_NOMEM, "out of memory for a proxy");
    neb_status status = neb__proxy_ask(&t->talk, &c->net->way.proxy, host, port);
    if (status == NEB_OK)
        c->tunnel = t;
    else
        neb__free(t);
    return status;
}

static neb_status broken(const struct neb_conn *c, const char *why)
{
    const struct neb_proxy *p = &c->net->way.proxy;
    return neb__quiet(NEB_ERR_NET, "the proxy %s:%u %s", p->host, p->port, why);
}

static neb_status send_rest(struct neb_conn *c, struct neb_tunnel *t)
{
    while (t->sent < t->talk.out_len) {
        ssize_t n = send(c->fd, t->talk.out + t->sent, t->talk.out_len - t->sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return NEB_ERR_AGAIN;
        if (n <= 0) return broken(c, strerror(errno));
        t->sent += (size_t)n;
    }
    t->sent = t->talk.out_len = 0;
    return NEB_OK;
}

/* NEB_ERR_AGAIN: the socket is empty. */
static neb_status take_some(struct neb_conn *c, struct neb_tunnel *t)
{
    uint8_t bytes[1024];
    size_t used = 0;
    ssize_t n = recv(c->fd, bytes, sizeof bytes, MSG_PEEK);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return neb__quiet(NEB_ERR_AGAIN, "the proxy has not answered");
    if (n < 0) return broken(c, strerror(errno));
    if (n == 0) return broken(c, "closed the connection instead of an answer");
    neb_status status = neb__proxy_take(&t->talk, bytes, (size_t)n, &used);
    if (status != NEB_OK && status != NEB_ERR_AGAIN) return status;
    if (used && recv(c->fd, bytes, used, 0) != (ssize_t)used) return broken(c, "lost bytes");
    return status;
}

neb_status neb__tunnel_go_on(struct neb_conn *c)
{
    struct neb_tunnel *t = c->tunnel;
    for (;;) {
        neb_status status = send_rest(c, t);
        neb__conn_watch(c, status == NEB_ERR_AGAIN);
        if (status != NEB_OK) return status;
        status = take_some(c, t);
        if (status == NEB_OK) {
            neb__free(t);
            c->tunnel = NULL;
            return NEB_OK;
        }
        if (status != NEB_ERR_AGAIN || !t->talk.out_len) return status;
    }
}
