/* loopback_lines.c: shaped lines made of loopback connections (mode relay), for machines that do not allow
 * namespaces.
 *
 * Site i has the address 127.77.i.i (counted from 1) and sees site j as 127.77.i.j. This process listens
 * there on every port of the laboratory. For each connection it makes one from 127.77.j.i to 127.77.j.j, so
 * the service of site j sees site i under the address that it knows. Bytes read on one side are cut into
 * pieces as long as a TCP segment's payload. Each piece travels through the packet path as a packet of that
 * size with headers would, and is written on the other side when it arrives.
 *
 * A piece of a byte stream can be neither lost nor overtaken, so there is no loss and no reordering. If a
 * queue is full we stop reading (the sender's own TCP then waits), and a line that is down holds its pieces.
 * Connections open faster than over a real line, by one round trip.
 *
 * Invariant: a connection's `pieces` counts its pieces inside the packet path and in the two waiting lists. A
 * connection is freed when it is dead and that count is zero.
 */
#define _GNU_SOURCE
#include "net/lab/loopback_lines.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    HEADERS = 52, /* bytes, for a TCP segment with timestamps */
    LISTENERS = 1024,
    CONNECTIONS = 1024, /* open at once; more wait to be accepted */
    WINDOW = 16 << 20,  /* bytes of one direction on the way or not yet taken by the receiver */
    QUANTUM = 200000    /* ns between two rounds, at least */
};

struct piece {
    struct piece *next;
    struct connection *c;
    int way;          /* 0: from the client to the service */
    uint32_t len, at; /* len 0: the end of the stream */
    uint8_t data[];
};

struct way {
    int from, to;
    struct piece *head, *tail; /* arrived, not yet written */
    int64_t on_the_way;
    bool ended, closed; /* nothing more to read; nothing more to write */
};

struct connection {
    struct connection *next;
    int fd[2]; /* client, service */
    bool connected, dead;
    int pieces;
    struct way way[2];
};

struct listener {
    int fd, viewer, site;
    uint16_t port;
};

struct neb_loopback {
    int sites, mtu, listeners, connections;
    struct listener *listener;
    struct connection *first;
    struct pollfd *fds;
    struct neb_packet_path *path;
    char (*address)[40]; /* (sites, sites) */
    int wake;
    atomic_bool stop;
    pthread_t thread;
    pthread_mutex_t lock;
};

/* ---- connections --------------------------------------------------------------------------------------- */

static void bury(struct connection *c)
{
    struct linger now = {.l_onoff = 1,
                         .l_linger = 0}; /* a reset tells the other end that this was not a normal end */
    if (c->dead) return;
    c->dead = true;
    for (int i = 0; i < 2; i++) {
        if (!(c->way[0].closed && c->way[1].closed))
            setsockopt(c->fd[i], SOL_SOCKET, SO_LINGER, &now, sizeof now);
        close(c->fd[i]);
        while (c->way[i].head) {
            struct piece *p = c->way[i].head;
            c->way[i].head = p->next;
            c->pieces--;
            neb__free(p);
        }
    }
}

/* Frees the connections that nothing points to any more. */
static void sweep(struct neb_loopback *r)
{
    for (struct connection **at = &r->first; *at;) {
        struct connection *c = *at;
        if (c->dead && !c->pieces) {
            *at = c->next;
            r->connections--;
            neb__free(c);
        } else {
            at = &c->next;
        }
    }
}

static struct sockaddr_in socket_address(const char *text, uint16_t port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, text, &a.sin_addr);
    return a;
}

/* Connects to the service, from the address under which the service knows the client's site. */
static int dial(struct neb_loopback *r, int from, int to, uint16_t port)
{
    struct sockaddr_in own = socket_address(r->address[to * r->sites + from], 0);
    struct sockaddr_in service = socket_address(r->address[to * r->sites + to], port);
    int s = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1;
    if (s < 0) return -1;
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (bind(s, (struct sockaddr *)&own, sizeof own) == 0 &&
        (connect(s, (struct sockaddr *)&service, sizeof service) == 0 || errno == EINPROGRESS))
        return s;
    close(s);
    return -1;
}

static void accept_one(struct neb_loopback *r, const struct listener *l)
{
    int on = 1, fd = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    struct connection *c = NEB_NEW(struct connection);
    int other = c ? dial(r, l->viewer, l->site, l->port) : -1;
    if (other < 0) {
        struct linger now = {.l_onoff = 1, .l_linger = 0};
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
        close(fd);
        neb__free(c);
        return;
    }
    *c = (struct connection){.next = r->first, .fd = {fd, other}};
    c->way[0] = (struct way){.from = l->viewer, .to = l->site};
    c->way[1] = (struct way){.from = l->site, .to = l->viewer};
    r->first = c;
    r->connections++;
}

/* ---- bytes --------------------------------------------------------------------------------------------- */

static void write_out(struct connection *c, int way)
{
    struct way *w = &c->way[way];
    while (w->head && !c->dead && !w->closed && (way == 1 || c->connected)) {
        struct piece *p = w->head;
        ssize_t n = p->len ? send(c->fd[!way], p->data + p->at, p->len - p->at, MSG_NOSIGNAL) : 0;
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (n < 0) {
            bury(c);
            return;
        }
        p->at += (uint32_t)n;
        if (p->at < p->len) return;
        if (!p->len) {
            w->closed = true;
            shutdown(c->fd[!way], SHUT_WR);
        }
        w->on_the_way -= p->len;
        w->head = p->next;
        if (!w->head) w->tail = NULL;
        c->pieces--;
        neb__free(p);
    }
    if (c->way[0].closed && c->way[1].closed) bury(c);
}

static void arrived(void *arg, const struct neb_path_packet *packet, int64_t at)
{
    struct piece *p = packet->ref;
    struct connection *c = p->c;
    (void)arg, (void)at;
    if (c->dead) {
        c->pieces--;
        neb__free(p);
        return;
    }
    struct way *w = &c->way[p->way];
    *(w->tail ? &w->tail->next : &w->head) = p;
    w->tail = p;
    write_out(c, p->way);
}

static void dropped(void *arg, const struct neb_path_packet *packet, enum neb_packet_drop why)
{
    struct piece *p = packet->ref;
    struct connection *c = p->c;
    (void)arg, (void)why;
    c->pieces--;
    neb__free(p);
    bury(c); /* a stream with a hole in it must not go on */
}

static bool may_read(struct neb_loopback *r, const struct connection *c, int way)
{
    const struct way *w = &c->way[way];
    return !c->dead && !w->ended && (way == 0 || c->connected) && w->on_the_way < WINDOW &&
           neb__packet_path_room(r->path, w->from, w->to) >= 1500;
}

static void read_in(struct neb_loopback *r, struct connection *c, int way, int64_t now)
{
    struct way *w = &c->way[way];
    size_t most = (size_t)r->mtu - HEADERS;
    for (int i = 0; i < 64 && may_read(r, c, way); i++) {
        struct piece *p = neb__malloc(sizeof *p + most);
        if (!p) return;
        ssize_t n = recv(c->fd[way], p->data, most, 0);
        if (n < 0) {
            neb__free(p);
            if (errno != EAGAIN && errno != EINTR) bury(c);
            return;
        }
        p->next = NULL;
        p->c = c;
        p->way = way;
        p->len = (uint32_t)n;
        p->at = 0;
        w->ended = n == 0;
        w->on_the_way += n;
        c->pieces++;
        neb__packet_path_send(r->path, now, w->from, w->to, (uint32_t)n + HEADERS, p, 0);
    }
}

static void serve_connection(struct neb_loopback *r, struct connection *c, const struct pollfd fds[2],
                             int64_t now)
{
    if (!c->connected && fds[1].revents) {
        int e = 0;
        socklen_t n = sizeof e;
        getsockopt(c->fd[1], SOL_SOCKET, SO_ERROR, &e, &n);
        c->connected = e == 0;
        if (e) bury(c);
    }
    for (int way = 0; way < 2; way++) {
        if (!c->dead && fds[!way].revents & (POLLOUT | POLLERR)) write_out(c, way);
        if (!c->dead && fds[way].revents & (POLLIN | POLLHUP | POLLERR)) read_in(r, c, way, now);
    }
}

/* ---- the thread ---------------------------------------------------------------------------------------- */

/* Polls each side only for what it may do now. POLLHUP and POLLERR come unasked, so a side that may do
 * nothing is left out (a negative descriptor). */
static int gather(struct neb_loopback *r)
{
    int n = 0;
    r->fds[n++] = (struct pollfd){.fd = r->wake, .events = POLLIN};
    for (int i = 0; i < r->listeners; i++)
        r->fds[n++] =
            (struct pollfd){.fd = r->connections < CONNECTIONS ? r->listener[i].fd : -1, .events = POLLIN};
    for (struct connection *c = r->first; c; c = c->next)
        for (int side = 0; side < 2; side++) {
            short events = may_read(r, c, side) ? POLLIN : 0;
            if (c->way[!side].head || (side == 1 && !c->connected)) events |= POLLOUT;
            r->fds[n++] = (struct pollfd){.fd = events && !c->dead ? c->fd[side] : -1, .events = events};
        }
    return n;
}

static void turn(struct neb_loopback *r, int n)
{
    int64_t now = neb__now_ns();
    neb__packet_path_advance(r->path, now);
    int at = 1 + r->listeners;
    for (struct connection *c = r->first; c && at + 1 < n + 1; c = c->next, at += 2)
        if (!c->dead) serve_connection(r, c, &r->fds[at], now);
    for (int i = 0; i < r->listeners; i++)
        if (r->fds[1 + i].revents) accept_one(r, &r->listener[i]);
    sweep(r);
}

static void *carry(void *arg)
{
    struct neb_loopback *r = arg;
    prctl(PR_SET_NAME, "nebula-wan");
    prctl(PR_SET_TIMERSLACK, 1);
    while (!atomic_load_explicit(&r->stop, memory_order_relaxed)) {
        pthread_mutex_lock(&r->lock);
        int n = gather(r);
        int64_t next = neb__packet_path_next(r->path), now = neb__now_ns();
        pthread_mutex_unlock(&r->lock);
        int64_t left = next - now;
        struct timespec wait = {0, 0}, rest = {0, QUANTUM};
        if (left > 0) wait = (struct timespec){.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};
        if (ppoll(r->fds, (nfds_t)n, next == INT64_MAX ? NULL : &wait, NULL) < 0) continue;
        if (r->fds[0].revents) {
            uint64_t count;
            (void)!read(r->wake, &count, sizeof count);
        }
        pthread_mutex_lock(&r->lock);
        turn(r, n);
        pthread_mutex_unlock(&r->lock);
        nanosleep(&rest, NULL);
    }
    return NULL;
}

/* ---- life ---------------------------------------------------------------------------------------------- */

static neb_status listen_on(struct neb_loopback *r, int viewer, int site, uint16_t port)
{
    struct sockaddr_in a = socket_address(r->address[viewer * r->sites + site], port);
    int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return neb__fail(NEB_ERR_IO, "cannot make a socket: %s", strerror(errno));
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, 128)) {
        int e = errno;
        close(fd);
        return neb__fail(e == EADDRINUSE ? NEB_ERR_BUSY : NEB_ERR_IO, "mode relay cannot listen on %s:%d: %s",
                         r->address[viewer * r->sites + site], port, strerror(e));
    }
    r->listener[r->listeners++] = (struct listener){fd, viewer, site, port};
    return NEB_OK;
}

static neb_status listen_everywhere(struct neb_loopback *r, const struct neb_lab_config *cfg)
{
    int n = cfg->sites;
    if (!cfg->ports)
        return neb__fail(NEB_ERR_CONFIG,
                         "mode relay must know the TCP ports that the sites use: set `ports`");
    if (n * (n - 1) * cfg->ports > LISTENERS)
        return neb__fail(
            NEB_ERR_LIMIT,
            "mode relay with %d sites and %d ports needs more than %d listeners; use fewer sites or ports", n,
            cfg->ports, LISTENERS);
    for (int i = 0; i < n * n; i++)
        snprintf(r->address[i], sizeof r->address[i], "127.77.%d.%d", i / n + 1, i % n + 1);
    for (int i = 0; i < n * n; i++)
        for (int k = 0; i / n != i % n && k < cfg->ports; k++)
            NEB_TRY(listen_on(r, i / n, i % n, cfg->port[k]));
    return NEB_OK;
}

static void release(struct neb_loopback *r)
{
    for (struct connection *c = r->first; c; c = c->next) bury(c);
    neb__packet_path_destroy(r->path); /* its pieces come back through drop() */
    sweep(r);
    for (int i = 0; i < r->listeners; i++) close(r->listener[i].fd);
    if (r->wake >= 0) close(r->wake);
    pthread_mutex_destroy(&r->lock);
    neb__free(r->address);
    neb__free(r->listener);
    neb__free(r->fds);
    neb__free(r);
}

static neb_status prepare(struct neb_loopback *r, const struct neb_lab_config *cfg)
{
    struct neb_path_sink sink = {arrived, dropped, r};
    size_t n = (size_t)cfg->sites;
    r->sites = cfg->sites;
    r->mtu = cfg->mtu;
    r->listener = NEB_NEW_ARRAY(struct listener, LISTENERS);
    r->fds = NEB_NEW_ARRAY(struct pollfd, 1 + LISTENERS + 2 * (CONNECTIONS + LISTENERS));
    r->address = neb__calloc(n * n, sizeof *r->address);
    if (!r->listener || !r->fds || !r->address)
        return neb__fail(NEB_ERR_NOMEM, "out of memory for loopback lines");
    NEB_TRY(neb__packet_path_create(cfg, &sink, neb__now_ns(), true, &r->path));
    NEB_TRY(listen_everywhere(r, cfg));
    r->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return r->wake >= 0 ? NEB_OK : neb__fail(NEB_ERR_IO, "cannot make an eventfd: %s", strerror(errno));
}

neb_status neb__loopback_start(const struct neb_lab_config *cfg, struct neb_loopback **out)
{
    struct neb_loopback *r = NEB_NEW(struct neb_loopback);
    if (!r) return neb__fail(NEB_ERR_NOMEM, "out of memory for loopback lines");
    r->wake = -1;
    pthread_mutex_init(&r->lock, NULL);
    neb_status status = prepare(r, cfg);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int e = status == NEB_OK ? pthread_create(&r->thread, NULL, carry, r) : 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (e) status = neb__fail(NEB_ERR_IO, "cannot start the thread of mode relay: %s", strerror(e));
    if (status != NEB_OK) {
        release(r);
        return status;
    }
    *out = r;
    return NEB_OK;
}

void neb__loopback_stop(struct neb_loopback *r)
{
    if (!r) return;
    atomic_store(&r->stop, true);
    neb__loopback_lock(r);
    neb__loopback_unlock(r);
    pthread_join(r->thread, NULL);
    release(r);
}

const char *neb__loopback_address(struct neb_loopback *r, int viewer, int site)
{
    return r->address[viewer * r->sites + site];
}

struct neb_packet_path *neb__loopback_lock(struct neb_loopback *r)
{
    pthread_mutex_lock(&r->lock);
    return r->path;
}

void neb__loopback_unlock(struct neb_loopback *r)
{
    uint64_t one = 1;
    pthread_mutex_unlock(&r->lock);
    (void)!write(r->wake, &one, sizeof one);
}

double neb__loopback_cpu_seconds(struct neb_loopback *r)
{
    clockid_t clock;
    struct timespec t;
    if (pthread_getcpuclockid(r->thread, &clock) || clock_gettime(clock, &t)) return 0;
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
