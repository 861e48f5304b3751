/* relay_host.c: the node of a relay host: its loop, its listening socket, its clock and what it says about itself.
 *
 * Everybody may connect. A guest that has not proved a member's key yet is a stranger: it has one of NEB_GUESTS_STRANGERS
 * places for ten seconds, and when all are taken, one from the most crowded network goes. Members have quotas of their own
 * (relay_rosters.c), so that strangers take nothing from them and one run takes nothing from another. */
#define _GNU_SOURCE /* accept4 */
#include "net/relay/relay_host_internal.h"
#include "net/link.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { TICK_MS = 500, LOOK_TICKS = 4, TELL_SECONDS = 60, ACCEPTS_PER_TURN = 32 };

/* ---- accepting ----------------------------------------------------------------------------------------- */

static void on_listener(uv_poll_t *handle, int status, int events);

/* Who waits in the listening socket would wake the loop for nothing until a descriptor is free: the clock looks again. */
static void rest(struct neb_relay_host *h)
{
    if (!h->told_full) neb__warn("no more connections can be taken: %s (see ulimit -n)", strerror(errno));
    h->told_full = h->resting = true;
    uv_poll_stop(&h->listener);
}

static void wake_listener(struct neb_relay_host *h)
{
    if (h->resting) uv_poll_start(&h->listener, UV_READABLE, on_listener);
    h->resting = false;
}

static void on_listener(uv_poll_t *handle, int status, int events)
{
    struct neb_relay_host *h = handle->data;
    (void)status, (void)events;
    for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
        struct sockaddr_storage sa;
        socklen_t n = sizeof sa;
        int fd = accept4(h->listen_fd, (struct sockaddr *)&sa, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) rest(h);
            return;
        }
        neb__guest_open(h, fd, (struct sockaddr *)&sa, n);
    }
}

/* Port 0, which no roster has, is allowed here: the system chooses one. */
static bool split(const char *address, char host[NEB_ADDRESS_SIZE], uint16_t *port)
{
    const char *colon = strrchr(address, ':');
    char with_one[NEB_ADDRESS_SIZE];
    if (neb__address_split(address, host, port)) return true;
    if (!colon || strcmp(colon, ":0") || strlen(address) >= sizeof with_one) return false;
    snprintf(with_one, sizeof with_one, "%.*s:1", (int)(colon - address), address);
    if (!neb__address_split(with_one, host, port)) return false;
    *port = 0;
    return true;
}

static neb_status listen_on(struct neb_relay_host *h, const char *address)
{
    char host[NEB_ADDRESS_SIZE], service[8];
    uint16_t port;
    struct addrinfo hints = {.ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM}, *list;
    struct sockaddr_storage sa;
    socklen_t n = sizeof sa;
    if (!split(address, host, &port))
        return neb__fail(NEB_ERR_CONFIG, "cannot listen on '%s': an address must read HOST:PORT", address);
    snprintf(service, sizeof service, "%u", port);
    int rc = getaddrinfo(host, service, &hints, &list);
    if (rc) return neb__fail(NEB_ERR_NET, "cannot listen on %s: %s", address, gai_strerror(rc));
    int e = neb__net_bind(list, &h->listen_fd);
    freeaddrinfo(list);
    if (e)
        return neb__fail(NEB_ERR_NET,
                         "the relay host cannot listen on %s: %s; choose another address with --listen",
                         address, strerror(e));
    if (!getsockname(h->listen_fd, (struct sockaddr *)&sa, &n) &&
        !getnameinfo((struct sockaddr *)&sa, n, NULL, 0, service, sizeof service, NI_NUMERICSERV))
        h->port = (uint16_t)strtoul(service, NULL, 10);
    if (uv_poll_init(&h->loop, &h->listener, h->listen_fd))
        return neb__fail(NEB_ERR_NET, "cannot watch the listening socket");
    h->listener.data = h;
    uv_poll_start(&h->listener, UV_READABLE, on_listener);
    return NEB_OK;
}

/* ---- the clock ----------------------------------------------------------------------------------------- */

static void count(struct neb_relay_host *h)
{
    struct neb_relay_counts now = {.cpu = neb__thread_cpu()};
    for (struct neb_relay_run *r = h->runs; r; r = r->next) now.runs++;
    for (struct neb_joint *j = h->joints; j; j = j->next) now.pairs++;
    for (struct neb_guest *g = h->guests; g; g = g->next) {
        now.standing += g->state == NEB_GUEST_STANDING;
        now.meetings += g->state == NEB_GUEST_MEETING;
        now.strangers += neb__guest_is_stranger(g);
    }
    uv_mutex_lock(&h->lock);
    now.bytes = h->counts.bytes, now.joined = h->counts.joined, now.refused = h->counts.refused;
    h->counts = now;
    uv_mutex_unlock(&h->lock);
}

/* One line a minute, if anything was passed on. */
static void tell(struct neb_relay_host *h, int64_t now)
{
    const struct neb_relay_counts *c = &h->counts;
    if (c->bytes == h->told_bytes || now - h->told_at < (int64_t)TELL_SECONDS * 1000000000) return;
    neb__info("%u runs, %u members stand here, %u pairs joined; %.1f MB passed on (%.1f in the last minute), "
              "%.2f s "
              "of processor time",
              c->runs, c->standing, c->pairs, (double)c->bytes * 1e-6,
              (double)(c->bytes - h->told_bytes) * 1e-6, c->cpu);
    h->told_bytes = c->bytes;
    h->told_at = now;
}

static void on_tick(uv_timer_t *timer)
{
    struct neb_relay_host *h = timer->data;
    int64_t now = neb__now_ns();
    if (++h->ticks % LOOK_TICKS == 0) neb__relay_rosters_look(h);
    neb__guest_tick(h, now);
    neb__joint_tick(h, now);
    wake_listener(h);
    count(h);
    tell(h, now);
}

static void on_wake(uv_async_t *handle)
{
    struct neb_relay_host *h = handle->data;
    if (atomic_load(&h->stopping)) uv_stop(&h->loop);
}

/* ---- open, run, close ---------------------------------------------------------------------------------- */

static neb_status init_loop(struct neb_relay_host *h)
{
    if (uv_loop_init(&h->loop)) return neb__fail(NEB_ERR_NOMEM, "cannot make an event loop");
    if (uv_async_init(&h->loop, &h->wake, on_wake)) {
        uv_loop_close(&h->loop);
        return neb__fail(NEB_ERR_NOMEM, "cannot make an event loop");
    }
    h->loop_ready = true;
    uv_timer_init(&h->loop, &h->tick);
    uv_timer_init(&h->loop, &h->clock);
    h->wake.data = h->tick.data = h->clock.data = h;
    uv_timer_start(&h->tick, on_tick, TICK_MS, TICK_MS);
    return NEB_OK;
}

static bool may_be_rate(double bits)
{
    return bits == 0 || (bits >= 1e6 && bits < 1e15);
}

/* A pair has two sockets and four ends of pipes. */
static int most_guests(void)
{
    enum { OTHER_FILES = 64, LEAST = 32, FILES_EACH = 3 };
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) || files.rlim_cur >= NEB_GUESTS_MAX * FILES_EACH + OTHER_FILES)
        return NEB_GUESTS_MAX;
    int most = ((int)files.rlim_cur - OTHER_FILES) / FILES_EACH;
    return most > LEAST ? most : LEAST;
}

static neb_status init_host(struct neb_relay_host *h)
{
    const struct neb_relay_limits *l = &h->limits;
    if (l->run_connections < 1 || l->member_connections < 2 || !(l->idle > 0) || l->meetings < 0 ||
        l->rosters < 0)
        return neb__fail(NEB_ERR_CONFIG, "a limit of the relay host is out of range");
    if (!may_be_rate(l->run_rate) || !may_be_rate(l->member_rate))
        return neb__fail(NEB_ERR_CONFIG, "a rate of the relay host is at least 1 Mbit/s, or 0: no limit");
    neb__key_public(h->config.key, &h->public);
    NEB_TRY(neb__random_bytes(&h->rng.state, sizeof h->rng.state));
    NEB_TRY(neb__tls_context_create(h->config.key, h->config.name ? h->config.name : "relay", &h->tls));
    NEB_TRY(init_loop(h));
    NEB_TRY(neb__relay_rosters_load(h));
    return listen_on(h, h->config.listen);
}

neb_status neb__relay_host_open(const struct neb_relay_host_config *config, struct neb_relay_host **out)
{
    struct neb_relay_host *h = NEB_NEW(struct neb_relay_host);
    if (!h) return neb__fail(NEB_ERR_NOMEM, "out of memory for a relay host");
    h->config = *config;
    h->limits = config->limits;
    h->listen_fd = -1;
    h->guests_max = most_guests();
    h->told_at = neb__now_ns();
    uv_mutex_init(&h->lock);
    neb_status status = init_host(h);
    if (status != NEB_OK) {
        neb__relay_host_close(h);
        return status;
    }
    *out = h;
    return NEB_OK;
}

/* splice() to a socket that the other end has closed raises SIGPIPE, and has no flag against it. */
neb_status neb__relay_host_run(struct neb_relay_host *h)
{
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, NULL);
    if (!atomic_load(&h->stopping)) uv_run(&h->loop, UV_RUN_DEFAULT);
    return NEB_OK;
}

static void thread_main(void *arg)
{
    neb__relay_host_run(arg);
}

neb_status neb__relay_host_start(struct neb_relay_host *h)
{
    if (uv_thread_create(&h->thread, thread_main, h))
        return neb__fail(NEB_ERR_NOMEM, "cannot start the relay host's thread");
    h->threaded = true;
    return NEB_OK;
}

void neb__relay_host_stop(struct neb_relay_host *h)
{
    atomic_store(&h->stopping, true);
    uv_async_send(&h->wake);
}

bool neb__relay_host_is_stopping(const struct neb_relay_host *h)
{
    return atomic_load(&h->stopping);
}

static void close_handle(uv_handle_t *handle, void *arg)
{
    (void)arg;
    if (!uv_is_closing(handle)) uv_close(handle, NULL);
}

void neb__relay_host_close(struct neb_relay_host *h)
{
    if (!h) return;
    if (h->threaded) {
        neb__relay_host_stop(h);
        uv_thread_join(&h->thread);
    }
    if (h->loop_ready) {
        while (h->guests) neb__guest_close(h->guests);
        uv_walk(&h->loop, close_handle, NULL);
        while (uv_run(&h->loop, UV_RUN_DEFAULT)) {}
        uv_loop_close(&h->loop);
    }
    if (h->listen_fd >= 0) close(h->listen_fd);
    neb__relay_rosters_free(h);
    neb__tls_context_free(h->tls);
    uv_mutex_destroy(&h->lock);
    neb__free(h);
}

uint16_t neb__relay_host_port(const struct neb_relay_host *h)
{
    return h->port;
}

void neb__relay_host_counts(struct neb_relay_host *h, struct neb_relay_counts *out)
{
    uv_mutex_lock(&h->lock);
    *out = h->counts;
    uv_mutex_unlock(&h->lock);
}
