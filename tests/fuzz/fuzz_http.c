/* fuzz_http.c: any bytes as what a client sends to the server of the live page, which asks for a token and takes orders. The
 * answer, if there is one, is HTTP. Without the token or its cookie nothing but /healthz is told, without the word for orders none
 * is given, and a server that was talked to still answers: every 64th time it is asked. */
#include "base/mem.h"
#include "serve/serve_internal.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char token[] = "the-token-of-this-test", cookie[] = "the-cookie-of-this-test",
                  word[] = "the-word-for-orders";
static bool ordered;

static neb_status give(void *arg, const char *order, const char *value)
{
    (void)arg, (void)order, (void)value;
    ordered = true;
    return NEB_OK;
}

static json_t *list(void *arg)
{
    (void)arg;
    return json_pack("{s:[]}", "orders");
}

static void end_request(void *arg, struct MHD_Connection *c, void **state,
                        enum MHD_RequestTerminationCode how)
{
    (void)arg, (void)c, (void)how;
    neb__serve_request_end(state);
}

static struct neb_serve *start(void)
{
    static const struct neb_serve_orders orders = {.give = give, .list = list};
    static struct neb_serve s = {.config = {.token = token, .orders = &orders, .order_word = word}};
    snprintf(s.cookie, sizeof s.cookie, "%s", cookie);
    pthread_mutex_init(&s.lock, NULL);
    if (neb__view_create(&s.view) != NEB_OK || neb__history_create(&s.history) != NEB_OK) abort();
    s.view->n = 1;
    neb__serve_tell(&s);
    s.daemon =
        MHD_start_daemon(MHD_USE_NO_LISTEN_SOCKET | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC, 0, NULL, NULL,
                         neb__serve_answer, &s, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)16 << 10,
                         MHD_OPTION_NOTIFY_COMPLETED, end_request, NULL, MHD_OPTION_END);
    if (!s.daemon) abort();
    return &s;
}

static size_t talk(struct neb_serve *s, const uint8_t *data, size_t size, char *out, size_t room)
{
    static const struct sockaddr_in nobody = {.sin_family = AF_INET};
    int ends[2];
    size_t got = 0;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends)) abort();
    if (send(ends[0], data, size, MSG_NOSIGNAL) < 0) size = 0;
    shutdown(ends[0], SHUT_WR);
    if (MHD_add_connection(s->daemon, ends[1], (const struct sockaddr *)&nobody, sizeof nobody) != MHD_YES)
        abort();
    for (int i = 0; i < 8; i++) {
        MHD_run(s->daemon);
        ssize_t n = recv(ends[0], out + got, room - got, 0);
        if (n == 0) break;
        if (n > 0) got += (size_t)n;
    }
    close(ends[0]);
    bool streams = s->n_streams;
    if (streams) {
        pthread_mutex_lock(&s->lock);
        s->stopping = true;
        neb__serve_wake(s);
        pthread_mutex_unlock(&s->lock);
    }
    for (int i = 0; i < (streams ? 3 : 1); i++) MHD_run(s->daemon);
    s->stopping = false;
    return got;
}

static bool holds(const uint8_t *data, size_t size, const char *what)
{
    size_t n = strlen(what);
    for (size_t i = 0; i + n <= size; i++)
        if (!memcmp(data + i, what, n)) return true;
    return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct neb_serve *s;
    static unsigned turn;
    static char answer[64 << 10];
    if (!s) s = start();
    if (size > 32 << 10) return 0;
    size_t n = talk(s, data, size, answer, sizeof answer);
    if (n && (n < 12 || memcmp(answer, "HTTP/1.", 7))) abort();
    bool told = n && !memcmp(answer + 8, " 200", 4);
    if (told && !holds(data, size, token) && !holds(data, size, cookie) && !holds(data, size, "/healthz"))
        abort();
    if (ordered && !holds(data, size, word)) abort();
    ordered = false;
    s->wrong = 0;
    if (turn++ % 64) return 0;
    static const char well[] = "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    n = talk(s, (const uint8_t *)well, sizeof well - 1, answer, sizeof answer);
    if (n < 12 || memcmp(answer, "HTTP/1.1 200", 12)) abort();
    return 0;
}
