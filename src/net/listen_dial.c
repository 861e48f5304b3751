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

enum { LOG_LINES_PER_SECOND = 10, ACCEPTS_PER_TURN = 32 };

void neb__net_stranger_log(struct neb_net *net, const char *fmt, ...)
{
    char line[512];
    int64_t second = neb__now_ns() / 1000000000;
    if (second != net->log_second) {
        if (net->log_left_out) neb__warn("%d more refusals were not logged", net->log_left_out);
        net->log_second = second;
        net->log_lines = net->log_left_out = 0;
    }
    if (net->log_lines++ >= LOG_LINES_PER_SECOND) {
        net->log_left_out++;
        return;
    }
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    neb__warn("%s", line);
}

static void name_address(struct neb_conn *c, const struct sockaddr *sa, socklen_t n)
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
        name_address(c, (struct sockaddr *)&sa, n);
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

static neb_status bind_first(const char *address, const struct addrinfo *list, int *out)
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
    if (fd < 0) return cannot_listen(address, e);
    *out = fd;
    return NEB_OK;
}

neb_status neb__net_listen(struct neb_net *net)
{
    char host[NEB_ADDRESS_SIZE], service[8];
    uint16_t port;
    const char *address = net->listen;
    const struct neb_member *me = neb__roster_by_id(&net->chain->now, net->self);
    struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_ADDRCONFIG, .ai_socktype = SOCK_STREAM}, *list;
    if (!address && me->addresses) address = me->address[0];
    if (!address) return NEB_OK; /* this site only dials */
    if (!neb__address_split(address, host, &port))
        return neb__fail(NEB_ERR_CONFIG, "cannot listen on '%s': an address must read HOST:PORT", address);
    snprintf(service, sizeof service, "%u", port);
    hints.ai_flags = AI_PASSIVE;
    int rc = getaddrinfo(host, service, &hints, &list);
    if (rc) return neb__fail(NEB_ERR_NET, "cannot listen on %s: %s", address, gai_strerror(rc));
    neb_status status = bind_first(address, list, &net->listen_fd);
    freeaddrinfo(list);
    NEB_TRY(status);
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

static void dial_failed(struct neb_peer *p, enum neb_conn_role role, const char *why)
{
    neb__debug("cannot reach %s: %s", p->name, why);
    if (role == NEB_CONN_CONTROL)
        neb__link_unreachable(p);
    else
        p->stripes.retry_at = neb__now_ns() + NEB_STRIPE_RETRY_NS;
}

/* The control connection fixes the address; the stripes are dialled to the same one. */
static void connect_to(struct neb_peer *p, const struct sockaddr *sa, socklen_t n, enum neb_conn_role role,
                       int stripe)
{
    struct neb_conn *c;
    uint64_t token = p->token;
    int fd = socket(sa->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || (connect(fd, sa, n) && errno != EINPROGRESS)) {
        dial_failed(p, role, strerror(errno));
        if (fd >= 0) close(fd);
        return;
    }
    if (role == NEB_CONN_CONTROL && neb__random_bytes(&token, sizeof token) != NEB_OK) {
        dial_failed(p, role, neb_last_error());
        close(fd);
        return;
    }
    if (neb__conn_open(p->net, fd, true, &c) != NEB_OK) {
        dial_failed(p, role, neb_last_error());
        return;
    }
    name_address(c, sa, n);
    c->peer = p;
    c->role = role;
    c->stripe = (uint8_t)stripe;
    c->token = token;
    if (role == NEB_CONN_CONTROL)
        p->making = c;
    else
        p->stripe[stripe] = c;
    neb__patience_dialled(c);
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
        dial_failed(p, NEB_CONN_CONTROL, error ? gai_strerror(error) : "the name has no address");
    } else if (!p->control && !p->making) {
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

void neb__net_dial(struct neb_peer *p, enum neb_conn_role role, int stripe)
{
    const struct neb_member *m = neb__roster_by_id(&p->net->chain->now, p->id);
    struct sockaddr_storage sa;
    socklen_t n = sizeof sa;
    if (role == NEB_CONN_STRIPE) {
        if (!getpeername(p->control->fd, (struct sockaddr *)&sa, &n))
            connect_to(p, (struct sockaddr *)&sa, n, role, stripe);
    } else if (m && m->addresses) {
        resolve(p, m->address[p->address % m->addresses], p->address / m->addresses);
    }
}
