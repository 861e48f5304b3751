/* relay_visitor.c: a guest of a relay host as tests make it. Receiving gives up after 30 s. */
#include "relay_visitor.h"
#include "check.h"

#include <arpa/inet.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int visitor_dial(uint16_t port, const char *from)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons(port)}, own = {.sin_family = AF_INET};
    struct timeval limit = {30, 0};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (from) {
        assert_int_equal(inet_pton(AF_INET, from, &own.sin_addr), 1);
        assert_int_equal(bind(fd, (struct sockaddr *)&own, sizeof own), 0);
    }
    assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof sa), 0);
    return fd;
}

void visitor_flush(struct relay_visitor *v)
{
    struct neb_buf *out = neb__tls_out(v->tls);
    for (size_t at = 0; at < out->len;) {
        ssize_t n = send(v->fd, out->data + at, out->len - at, MSG_NOSIGNAL);
        if (n <= 0) break;
        at += (size_t)n;
    }
    neb__buf_clear(out);
}

static size_t pull(void *arg, uint8_t *to, size_t n)
{
    struct relay_visitor *v = arg;
    size_t left = neb__tls_record_left(v->tls);
    visitor_flush(v);
    ssize_t got = recv(v->fd, to, n < left ? n : left, 0);
    return got > 0 ? (size_t)got : 0;
}

void visitor_ask(struct relay_visitor *v, int fd, const struct neb_key *key, const struct neb_relay_ask *ask)
{
    uint8_t body[NEB_RELAY_ASK_SIZE];
    memset(v, 0, sizeof *v);
    v->fd = fd;
    assert_ok(neb__tls_context_create(key, "guest", &v->context));
    assert_ok(neb__tls_open(v->context, false, 1 << 20, pull, v, &v->tls));
    while (neb__tls_handshake(v->tls) == NEB_ERR_AGAIN) visitor_flush(v);
    neb__relay_ask_put(ask, body);
    assert_ok(neb__relay_send(v->tls, NEB_RELAY_ASK, body, sizeof body));
    visitor_flush(v);
}

neb_status visitor_hear(struct relay_visitor *v, struct neb_relay_message *m)
{
    return neb__relay_next(v->tls, &v->reader, UINT32_MAX, m);
}

void visitor_expect(struct relay_visitor *v, enum neb_relay_type type, struct neb_relay_message *m)
{
    assert_ok(visitor_hear(v, m));
    assert_int_equal(m->type, type);
}

int visitor_refused(struct relay_visitor *v)
{
    struct neb_relay_message m;
    struct neb_relay_refusal r;
    visitor_expect(v, NEB_RELAY_REFUSE, &m);
    assert_ok(neb__relay_refusal_get(m.body, m.size, &r));
    return r.code;
}

void visitor_show(struct relay_visitor *v, const uint8_t *p, size_t n)
{
    struct neb_relay_message m;
    visitor_expect(v, NEB_RELAY_WANT, &m);
    for (size_t at = 0; at < n;) {
        uint8_t body[NEB_RELAY_BODY_MAX];
        size_t piece = n - at < NEB_RELAY_SHOW_PIECE ? n - at : NEB_RELAY_SHOW_PIECE;
        body[0] = at + piece == n;
        memcpy(body + 1, p + at, piece);
        assert_ok(neb__relay_send(v->tls, NEB_RELAY_SHOW, body, piece + 1));
        visitor_flush(v);
        at += piece;
    }
}

void visitor_leave(struct relay_visitor *v)
{
    close(v->fd);
    neb__tls_close(v->tls);
    neb__tls_context_free(v->context);
}
