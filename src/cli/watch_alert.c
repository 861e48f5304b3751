/* watch_alert.c: see watch_alert.h. A command is a process, an address is served by a thread of its own, a few at one time: an
 * address that does not answer must not keep the page waiting, nor the alerts after it for ever. */
#include "cli/watch_alert.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/printable.h"

#include <jansson.h>
#include <netdb.h>
#include <openssl/bio.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { AT_ONE_TIME = 8, PATIENCE_S = 10 };

extern char **environ;

/* ---- a command ------------------------------------------------------------------------------------------------- */

static void run_command(const char *command)
{
    char sh[] = "sh", c[] = "-c", *copy = strdup(command);
    char *argv[] = {sh, c, copy, NULL};
    pid_t pid;
    signal(SIGCHLD, SIG_IGN); /* nobody asks how it ended */
    int bad = copy ? posix_spawn(&pid, "/bin/sh", NULL, NULL, argv, environ) : 1;
    if (bad) neb__warn("the alert's command cannot be started: %s", strerror(bad));
    free(copy);
}

/* ---- an address ------------------------------------------------------------------------------------------------ */

struct delivery {
    char *url, *body;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int under_way;

/* http[s]://HOST[:PORT][/PATH], HOST may be [ADDRESS]. False: it is not. `at` is HOST[:PORT] as it stands. */
static bool split_url(const char *url, bool *tls, char at[256], char host[256], char port[8],
                      const char **path)
{
    *tls = !strncmp(url, "https://", 8);
    url += *tls ? 8 : 7;
    size_t n = strcspn(url, "/?#");
    if (!n || n >= 250 || memchr(url, '@', n)) return false;
    *path = url[n] == '/' ? url + n : "/";
    snprintf(at, 256, "%.*s", (int)n, url);
    const char *end = *at == '[' ? strchr(at, ']') : at + strcspn(at, ":");
    if (!end || strlen(*end == ']' ? end + 1 : end) > 6) return false;
    snprintf(host, 256, "%.*s", (int)(end - at - (*at == '[')), at + (*at == '['));
    if (*end == ']') end++;
    snprintf(port, 8, "%s", *tls ? "443" : "80");
    if (*end == ':') snprintf(port, 8, "%s", end + 1);
    return *host && (!*end || *end == ':');
}

/* Whatever the other end does, no call on the socket takes longer than PATIENCE_S. */
static int connect_to(const char *host, const char *port)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    const struct timeval patience = {.tv_sec = PATIENCE_S};
    struct addrinfo *list;
    int fd = -1;
    if (getaddrinfo(host, port, &hints, &list)) return -1;
    for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (fd < 0) continue;
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience); /* of connect(), too */
        if (!connect(fd, a->ai_addr, a->ai_addrlen)) break;
        close(fd);
        fd = -1;
    }
    freeaddrinfo(list);
    return fd;
}

/* Takes fd over. NULL: it is not who it should be, or does not answer. */
static BIO *dial(bool tls, const char *host, int fd, SSL_CTX **ctx)
{
    SSL *ssl = NULL;
    BIO *socket = BIO_new_socket(fd, BIO_CLOSE), *b = NULL;
    if (!socket) close(fd);
    if (!socket || !tls) return socket;
    *ctx = SSL_CTX_new(TLS_client_method());
    if (*ctx && SSL_CTX_set_default_verify_paths(*ctx)) {
        SSL_CTX_set_verify(*ctx, SSL_VERIFY_PEER, NULL);
        b = BIO_new_ssl(*ctx, 1);
    }
    if (b) BIO_get_ssl(b, &ssl);
    bool named = ssl && SSL_set1_host(ssl, host) && SSL_set_tlsext_host_name(ssl, host);
    socket = b ? BIO_push(b, socket) : socket;
    if (named && BIO_do_handshake(socket) > 0) return socket;
    BIO_free_all(socket);
    return NULL;
}

static bool post(const struct delivery *d, char *why, size_t size)
{
    char at[256], host[256], port[8], head[1400], answer[64] = "";
    const char *path;
    bool tls, ok = false;
    SSL_CTX *ctx = NULL;
    snprintf(why, size, "it is not an address");
    if (!split_url(d->url, &tls, at, host, port, &path) || strlen(path) > 900) return false;
    int fd = connect_to(host, port);
    BIO *b = fd >= 0 ? dial(tls, host, fd, &ctx) : NULL;
    int n = snprintf(head, sizeof head,
                     "POST %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: nebula-i/%s\r\nContent-Type: "
                     "application/json\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
                     path, at, NEB_VERSION, strlen(d->body));
    snprintf(why, size, "no connection");
    if (b) {
        snprintf(why, size, "it does not answer");
        if (BIO_write(b, head, n) == n && BIO_write(b, d->body, (int)strlen(d->body)) > 0)
            n = BIO_read(b, answer, sizeof answer - 1);
        ok = !strncmp(answer, "HTTP/1.", 7) && answer[8] == ' ' && answer[9] == '2';
        answer[strcspn(answer, "\r\n")] = 0;
        neb__text_clean(answer);
        if (!ok && *answer) snprintf(why, size, "it answers '%s'", answer);
    }
    BIO_free_all(b);
    SSL_CTX_free(ctx);
    return ok;
}

static void *deliver(void *arg)
{
    struct delivery *d = arg;
    char why[128];
    if (!post(d, why, sizeof why)) neb__warn("an alert did not reach its address: %s", why);
    free(d->url);
    free(d->body);
    neb__free(d);
    pthread_mutex_lock(&lock);
    under_way--;
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void send_to_address(const char *url, const char *body)
{
    struct delivery *d = NEB_NEW(struct delivery);
    pthread_t thread;
    pthread_mutex_lock(&lock);
    bool room = d && under_way < AT_ONE_TIME;
    if (room) under_way++;
    pthread_mutex_unlock(&lock);
    if (room) *d = (struct delivery){strdup(url), strdup(body)};
    if (room && d->url && d->body && !pthread_create(&thread, NULL, deliver, d)) {
        pthread_detach(thread);
        return;
    }
    neb__warn("an alert is not sent: the ones before are still on their way");
    if (room) {
        free(d->url);
        free(d->body);
        pthread_mutex_lock(&lock);
        under_way--;
        pthread_mutex_unlock(&lock);
    }
    neb__free(d);
}

/* ---- both ------------------------------------------------------------------------------------------------------ */

void neb__watch_alert(const char *to, const char *job, const struct neb_alert *a, bool begins)
{
    const char *state = begins ? "begins" : "ends";
    json_t *o = json_pack("{s:s, s:s, s:s, s:s, s:s, s:f}", "alert", a->kind, "site", a->site, "state", state,
                          "text", a->text, "job", job, "since", a->since);
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    if (begins)
        neb__warn("alert: %s", a->text);
    else
        neb__info("alert is over: %s", a->text);
    if (!text || !to || !*to) {
        free(text);
        return;
    }
    if (!strncmp(to, "http://", 7) || !strncmp(to, "https://", 8)) {
        send_to_address(to, text);
    } else {
        setenv("NEBULA_ALERT", a->kind, 1);
        setenv("NEBULA_ALERT_SITE", a->site, 1);
        setenv("NEBULA_ALERT_STATE", state, 1);
        setenv("NEBULA_ALERT_TEXT", a->text, 1);
        setenv("NEBULA_ALERT_JSON", text, 1);
        run_command(to);
    }
    free(text);
}
