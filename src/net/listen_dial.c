/* listen_dial.c: the listening socket, and dialling. Every connection that comes in is a stranger until it is greeted
 * as a peer (strangers.c). */
#define _GNU_SOURCE /* accept4 */
#include "net/link.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ACCEPTS_PER_TURN = 32 };

void neb__net_stranger_log(struct neb_net *net, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    neb__log_limited(&net->log, fmt, ap);
    va_end(ap);
}

void neb__net_name_address(struct neb_conn *c, const struct sockaddr *sa, socklen_t n)
{
    char host[46] = "?", port[8] = "?";
    c->network = neb__net_network(sa);
    getnameinfo(sa, n, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(c->remote, sizeof c->remote, sa->sa_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

/* ---- accepting ----------------------------------------------------------------------------------------- */

static void on_listener(uv_poll_t *handle, int status, int events)
{
    struct neb_net *net = handle->data;
    (void)status, (void)events;
    for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
        struct sockaddr_storage sa;
        socklen_t n = sizeof sa;
        struct neb_conn *c;
        int fd = accept4(net->listen_fd, (struct sockaddr *)&sa, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
                neb__net_stranger_log(net, "cannot accept a connection: %s", strerror(errno));
            return;
        }
        if (neb__conn_open(net, fd, false, &c) != NEB_OK) continue;
        neb__net_name_address(c, (struct sockaddr *)&sa, n);
        neb__strangers_admit(c);
    }
}

/* Says which address, why not, and what to change. */
static neb_status cannot_listen(const char *address, int e)
{
    if (e == EADDRINUSE)
        return neb__fail(NEB_ERR_NET,
                         "cannot listen on %s: another process uses this address; stop it, or give this site "
                         "another one with sites[].listen in the job file",
                         address);
    if (e == EADDRNOTAVAIL)
        return neb__fail(
            NEB_ERR_NET,
            "cannot listen on %s: this machine does not have that address; behind a router or NAT, "
            "say which one it has with sites[].listen in the job file, such as 0.0.0.0:PORT",
            address);
    if (e == EACCES)
        return neb__fail(NEB_ERR_NET,
                         "cannot listen on %s: ports below 1024 are for the system; choose a larger one with "
                         "sites[].listen in the job file, and the same in the roster",
                         address);
    return neb__fail(NEB_ERR_NET, "cannot listen on %s: %s", address, strerror(e));
}

int neb__net_bind(const struct addrinfo *list, int *out)
{
    int fd = -1, one = 1, e = 0;
    for (const struct addrinfo *a = list; a; a = a->ai_next) {
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd < 0) continue;
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (!bind(fd, a->ai_addr, a->ai_addrlen) && !listen(fd, 1024)) break;
        e = errno;
        close(fd);
        fd = -1;
    }
    if (fd < 0) return e ? e : EADDRNOTAVAIL;
    *out = fd;
    return 0;
}

neb_status neb__net_listen(struct neb_net *net)
{
    char host[NEB_ADDRESS_SIZE], service[8];
    uint16_t port;
    const char *address = net->listen;
    const struct neb_member *me = neb__roster_by_id(&net->chain->now, net->self);
    struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_ADDRCONFIG, .ai_socktype = SOCK_STREAM}, *list;
    if (!address) address = neb__member_direct(me, 0);
    if (!address) return NEB_OK; /* this site only dials */
    if (!neb__address_split(address, host, &port))
        return neb__fail(NEB_ERR_CONFIG, "cannot listen on '%s': an address must read HOST:PORT", address);
    snprintf(service, sizeof service, "%u", port);
    hints.ai_flags = AI_PASSIVE;
    int rc = getaddrinfo(host, service, &hints, &list);
    if (rc) return neb__fail(NEB_ERR_NET, "cannot listen on %s: %s", address, gai_strerror(rc));
    int e = neb__net_bind(list, &net->listen_fd);
    freeaddrinfo(list);
    if (e) return cannot_listen(address, e);
    if (uv_poll_init(&net->loop, &net->listener, net->listen_fd)) {
        close(net->listen_fd);
        net->listen_fd = -1;
        return neb__fail(NEB_ERR_NET, "cannot watch the listening socket");
    }
    net->listener.data = net;
    uv_poll_start(&net->listener, UV_READABLE, on_listener);
    return NEB_OK;
}

/* ---- dialling ------------------------------------------------------------------------------------------ */

void neb__net_dial_trouble(struct neb_peer *p, const char *fmt, ...)
{
    char text[sizeof p->trouble];
    va_list ap;
    if (!p) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!strcmp(text, p->trouble)) return;
    memcpy(p->trouble, text, sizeof text);
    neb__warn("cannot reach %s: %s", p->name, text);
}

static void dial_failed(struct neb_peer *p, enum neb_conn_role role, const char *why)
{
    neb__debug("cannot reach %s: %s", p->name, why);
    if (role == NEB_CONN_CONTROL)
        neb__link_unreachable(p);
    else
        p->stripes.retry_at = neb__now_ns() + NEB_STRIPE_RETRY_NS;
}

/* Makes a connection of the socket and gives it to the peer. `fd` is taken over, even when that fails. */
static struct neb_conn *begin(struct neb_peer *p, int fd, enum neb_conn_role role, int stripe)
{
    struct neb_conn *c;
    uint64_t token = p->token;
    if (role == NEB_CONN_CONTROL && neb__random_bytes(&token, sizeof token) != NEB_OK) {
        dial_failed(p, role, neb_last_error());
        close(fd);
        return NULL;
    }
    if (neb__conn_open(p->net, fd, true, &c) != NEB_OK) {
        dial_failed(p, role, neb_last_error());
        return NULL;
    }
    c->peer = p;
    c->role = role;
    c->stripe = (uint8_t)stripe;
    c->token = token;
    if (role == NEB_CONN_CONTROL)
        p->making = c;
    else
        p->stripe[stripe] = c;
    neb__patience_dialled(c);
    return c;
}

/* The control connection fixes the address; the stripes are dialled to the same one. With a proxy it is the proxy's. */
static void connect_to(struct neb_peer *p, const struct sockaddr *sa, socklen_t n, enum neb_conn_role role,
                       int stripe)
{
    int fd = socket(sa->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || (connect(fd, sa, n) && errno != EINPROGRESS)) {
        dial_failed(p, role, strerror(errno));
        if (fd >= 0) close(fd);
        return;
    }
    struct neb_conn *c = begin(p, fd, role, stripe);
    if (!c) return;
    neb__net_name_address(c, sa, n);
    if (!p->by_proxy) return;
    c->network = 0; /* the proxy's says nothing about the peer */
    if (neb__tunnel_open(c, p->goal) == NEB_OK) return;
    neb__net_dial_trouble(p, "%s", neb_last_error());
    neb__link_detach(c, NEB_ERR_INVALID);
    neb__conn_close(c);
}

static void dial_by_command(struct neb_peer *p, enum neb_conn_role role, int stripe)
{
    char host[NEB_ADDRESS_SIZE];
    uint16_t port;
    struct neb_dial_command *d;
    int fd;
    neb_status status = neb__address_split(p->goal, host, &port)
                            ? neb__dial_command_start(p->net, p->id, host, port, &fd, &d)
                            : neb__quiet(NEB_ERR_INVALID, "not an address");
    if (status != NEB_OK) {
        neb__net_dial_trouble(p, "%s", neb_last_error());
        dial_failed(p, role, neb_last_error());
        return;
    }
    struct neb_conn *c = begin(p, fd, role, stripe);
    if (!c) {
        neb__dial_command_left(d, true);
        return;
    }
    c->by_command = d;
    snprintf(c->remote, sizeof c->remote, "%.40s, by a command", p->goal);
}

static const struct addrinfo *nth(const struct addrinfo *list, int n)
{
    int count = 0;
    for (const struct addrinfo *a = list; a; a = a->ai_next) count++;
    for (n %= count; n > 0; n--) list = list->ai_next;
    return list;
}

void neb__net_resolved(struct neb_peer *p, int error, const struct addrinfo *list, int turn)
{
    p->resolving = false;
    if (error || !list) {
        const char *why = error ? gai_strerror(error) : "the name has no address";
        if (p->by_proxy) neb__net_dial_trouble(p, "the proxy's name %s: %s", p->net->way.proxy.host, why);
        dial_failed(p, NEB_CONN_CONTROL, why);
    } else if ((!p->control || p->control->stand) && !p->making) {
        const struct addrinfo *a = nth(list, turn);
        connect_to(p, a->ai_addr, a->ai_addrlen, NEB_CONN_CONTROL, 0);
    }
}

static void resolve(struct neb_peer *p, const char *address, int turn)
{
    char host[NEB_ADDRESS_SIZE];
    uint16_t port;
    if (!neb__address_split(address, host, &port)) {
        dial_failed(p, NEB_CONN_CONTROL, "not an address");
        return;
    }
    p->resolving = true;
    if (neb__lookup_start(p, host, port, turn) == NEB_OK) return;
    p->resolving = false;
    dial_failed(p, NEB_CONN_CONTROL, neb_last_error());
}

/* The next of the member's own addresses; every time around, the next address of its name. */
static void dial_next(struct neb_peer *p, const struct neb_member *m)
{
    const struct neb_way *w = &p->net->way;
    char host[NEB_ADDRESS_SIZE] = "", gate[NEB_ADDRESS_SIZE + 16];
    uint16_t port = 0;
    int count = neb__member_directs(m), turn = p->address / count;
    snprintf(p->goal, sizeof p->goal, "%s", neb__member_direct(m, p->address % count));
    if (w->command.n) {
        dial_by_command(p, NEB_CONN_CONTROL, 0);
        return;
    }
    p->by_proxy = neb__address_split(p->goal, host, &port) && neb__way_uses_proxy(w, host);
    snprintf(gate, sizeof gate, strchr(w->proxy.host, ':') ? "[%s]:%u" : "%s:%u", w->proxy.host,
             w->proxy.port);
    resolve(p, p->by_proxy ? gate : p->goal, turn);
}

void neb__net_dial(struct neb_peer *p, enum neb_conn_role role, int stripe)
{
    const struct neb_member *m = neb__roster_by_id(&p->net->chain->now, p->id);
    struct sockaddr_storage sa;
    socklen_t n = sizeof sa;
    if (role == NEB_CONN_STRIPE) {
        if (p->control->stand)
            neb__stand_call(p, role, stripe);
        else if (p->control->by_command)
            dial_by_command(p, role, stripe);
        else if (!getpeername(p->control->fd, (struct sockaddr *)&sa, &n))
            connect_to(p, (struct sockaddr *)&sa, n, role, stripe);
    } else if (m && neb__member_directs(m)) {
        dial_next(p, m);
    }
}
