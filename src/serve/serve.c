/* serve.c: starts, ticks and stops the server (serve.h).
 *
 * Two threads: libmicrohttpd's answers everybody, the caller's looks at the folder. They meet at one lock,
 * which neither holds while it waits for a disk or a socket. The databases are read under the history's own
 * lock.
 *
 * A look costs time in proportion to what the sites write. The next one comes after twenty times that, so a
 * large run costs at most a twentieth of a core; a small one is looked at twice a second. A long past is read in pieces, one at
 * each look.
 *
 * Connections are bounded in number and in time. libmicrohttpd drops one that is idle. One that sends a byte
 * now and then is never idle, so each must have asked its question within NEB_SERVE_REQUEST_S. One
 * address has at most half of the places, so it cannot shut the others out. */
#include "base/clamp.h"
#include "base/clock.h"
#include "base/mem.h"
#include "serve/serve_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { IDLE_S = 15, POOL = 16 << 10 };

/* A whole address is needed: 127.example.org is a name, and its owner says where it leads. */
bool neb__serve_is_local(const char *host)
{
    struct in_addr a;
    if (inet_pton(AF_INET, host, &a) == 1) return ntohl(a.s_addr) >> 24 == 127;
    return !strcmp(host, "::1") || !strcasecmp(host, "localhost");
}

/* ---- connections --------------------------------------------------------------------------------------- */

static void note_connection(void *arg, struct MHD_Connection *c, void **state,
                            enum MHD_ConnectionNotificationCode what)
{
    struct neb_serve *s = arg;
    struct neb_serve_peer *p = *state;
    pthread_mutex_lock(&s->lock);
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
        *state = p = NEB_NEW(struct neb_serve_peer);
        if (p && info) {
            *p = (struct neb_serve_peer){
                .fd = (int)info->connect_fd, .since_ns = neb__now_ns(), .next = s->peers, .back = &s->peers};
            if (s->peers) s->peers->back = &p->next;
            s->peers = p;
        }
    } else if (p) {
        if (p->back) *p->back = p->next;
        if (p->next) p->next->back = p->back;
        neb__free(p);
        *state = NULL;
    }
    pthread_mutex_unlock(&s->lock);
}

static void note_answered(void *arg, struct MHD_Connection *c, void **state,
                          enum MHD_RequestTerminationCode how)
{
    struct neb_serve *s = arg;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    (void)how;
    neb__serve_request_end(state);
    struct neb_serve_peer *p = info ? info->socket_context : NULL;
    pthread_mutex_lock(&s->lock);
    if (p) p->asked = false, p->since_ns = neb__now_ns();
    pthread_mutex_unlock(&s->lock);
}

/* The lock is held. The connection ends in libmicrohttpd's thread, as if the peer had closed it. */
static void drop_slow(struct neb_serve *s)
{
    int64_t now = neb__now_ns();
    for (struct neb_serve_peer *p = s->peers; p; p = p->next)
        if (!p->asked && now - p->since_ns > (int64_t)NEB_SERVE_REQUEST_S * 1000000000)
            (void)shutdown(p->fd, SHUT_RDWR);
}

/* ---- starting ------------------------------------------------------------------------------------------ */

static neb_status open_socket(const struct neb_serve_config *c, int *out, int *port)
{
    char service[16];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list;
    snprintf(service, sizeof service, "%d", c->port);
    int bad = getaddrinfo(c->host, service, &hints, &list);
    if (bad) return neb__fail(NEB_ERR_NET, "--host %s: %s", c->host, gai_strerror(bad));
    int fd = -1, yes = 1, e = 0;
    for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
        if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        if (fd >= 0 && !bind(fd, a->ai_addr, a->ai_addrlen) && !listen(fd, 511)) break;
        e = errno;
        if (fd >= 0) close(fd);
        fd = -1;
    }
    freeaddrinfo(list);
    if (fd < 0)
        return neb__fail(NEB_ERR_NET, "cannot listen on %s port %d: %s; give another one with --port N",
                         c->host, c->port, strerror(e));
    struct sockaddr_storage at;
    socklen_t n = sizeof at;
    *port = c->port;
    if (!getsockname(fd, (struct sockaddr *)&at, &n))
        *port = ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)&at)->sin6_port
                                               : ((struct sockaddr_in *)(void *)&at)->sin_port);
    *out = fd;
    return NEB_OK;
}

static unsigned connections_allowed(void)
{
    struct rlimit r;
    unsigned most = NEB_SERVE_CONNECTIONS;
    if (getrlimit(RLIMIT_NOFILE, &r)) return 200;
    rlim_t want = (rlim_t)most + 200;
    if (r.rlim_cur < want) {
        r.rlim_cur = r.rlim_max < want ? r.rlim_max : want;
        (void)setrlimit(RLIMIT_NOFILE, &r);
        (void)getrlimit(RLIMIT_NOFILE, &r);
    }
    if (r.rlim_cur < want) most = r.rlim_cur > 300 ? (unsigned)r.rlim_cur - 200 : 100;
    return most;
}

static neb_status start_daemon(struct neb_serve *s)
{
    const struct neb_serve_config *c = &s->config;
    struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)(uintptr_t)c->key},
        {MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)(uintptr_t)c->certificate},
        {MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)(uintptr_t) "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2"},
        {MHD_OPTION_END, 0, NULL}};
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC;
    unsigned most = connections_allowed();
    int fd = -1;
    if (!c->certificate) tls[0].option = MHD_OPTION_END;
    if (c->certificate) flags |= MHD_USE_TLS;
    NEB_TRY(open_socket(c, &fd, &s->port));
    s->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, neb__serve_answer, s, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
        most, MHD_OPTION_PER_IP_CONNECTION_LIMIT, most / 2, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_S,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)POOL, MHD_OPTION_NOTIFY_CONNECTION, note_connection, s,
        MHD_OPTION_NOTIFY_COMPLETED, note_answered, s, MHD_OPTION_ARRAY, tls, MHD_OPTION_END);
    if (s->daemon) return NEB_OK;
    close(fd);
    return neb__fail(NEB_ERR_NET, "cannot serve the page%s",
                     c->certificate ? "; are the site's key and certificate for the page damaged?" : "");
}

neb_status neb__serve_start(const struct neb_serve_config *config, struct neb_serve **out)
{
    if (!config->token && !neb__serve_is_local(config->host))
        return neb__fail(NEB_ERR_INVALID,
                         "--host %s lets other machines look: give --token WORD or NEBULA_WATCH_TOKEN, which "
                         "they then need",
                         config->host);
    if (config->orders && !config->certificate && !neb__serve_is_local(config->host))
        return neb__fail(
            NEB_ERR_INVALID,
            "--orders and --host %s: the word for orders must not cross the network unprotected; give "
            "--tls FOLDER of a site, or use ssh -L",
            config->host);
    struct neb_serve *s = NEB_NEW(struct neb_serve);
    if (!s) return neb__fail(NEB_ERR_NOMEM, "out of memory for the server");
    s->config = *config;
    pthread_mutex_init(&s->lock, NULL);
    neb_status status = neb__door_open(s);
    if (status == NEB_OK) status = neb__view_create(&s->view);
    if (status == NEB_OK) status = neb__view_create(&s->next);
    if (status == NEB_OK) status = neb__history_create(&s->history);
    if (status == NEB_OK) status = start_daemon(s);
    if (status != NEB_OK) {
        neb__serve_stop(s);
        return status;
    }
    *out = s;
    return NEB_OK;
}

int neb__serve_port(const struct neb_serve *s)
{
    return s->port;
}

const struct neb_view *neb__serve_view(const struct neb_serve *s)
{
    return s->view;
}

struct neb_history *neb__serve_history(struct neb_serve *s)
{
    return s->history;
}

/* ---- looking ------------------------------------------------------------------------------------------- */

static double unix_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double neb__serve_tick(struct neb_serve *s)
{
    const char *folder = s->config.folder;
    double cpu = neb__thread_cpu(), changed = neb__view_changed(s->view, folder);
    if (changed > s->changed || changed < s->changed) {
        (void)neb__view_look(s->next, folder);
        s->changed = changed;
    } else {
        neb__view_judge(s->next, unix_now());
    }
    pthread_mutex_lock(&s->lock);
    neb__view_copy(s->view, s->next);
    pthread_mutex_unlock(&s->lock);
    /* this thread alone changes the view */
    bool more = neb__history_update(s->history, s->view) == NEB_ERR_AGAIN;
    pthread_mutex_lock(&s->lock);
    neb__serve_tell(s);
    neb__serve_wake(s);
    drop_slow(s);
    pthread_mutex_unlock(&s->lock);
    s->cost = neb__thread_cpu() - cpu;
    return more ? 0.5 : neb__clamp(20 * s->cost, 0.5, 10);
}

void neb__serve_stop(struct neb_serve *s)
{
    if (!s) return;
    if (s->daemon) {
        pthread_mutex_lock(&s->lock);
        s->stopping = true; /* every stream is due */
        neb__serve_wake(s);
        pthread_mutex_unlock(&s->lock);
        MHD_stop_daemon(s->daemon);
    }
    json_decref(s->status);
    neb__free(s->whole);
    neb__free(s->change);
    neb__history_free(s->history);
    neb__view_free(s->view);
    neb__view_free(s->next);
    pthread_mutex_destroy(&s->lock);
    neb__free(s);
}
