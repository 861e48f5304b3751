/* caller.c: see caller.h. */
#include "caller.h"
#include "check.h"
#include "scene.h"
#include "base/bytes.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void push_out(struct caller *c)
{
    struct neb_buf *out = neb__tls_out(c->tls);
    if (out->len && c->raw_len + out->len <= sizeof c->raw) {
        memcpy(c->raw + c->raw_len, out->data, out->len);
        c->raw_len += out->len;
    }
    if (out->len) send(c->fd, out->data, out->len, MSG_NOSIGNAL);
    neb__buf_clear(out);
}

static size_t hear(void *arg, uint8_t *to, size_t n)
{
    struct caller *c = arg;
    ssize_t got = recv(c->fd, to, n, MSG_DONTWAIT);
    return got > 0 ? (size_t)got : 0;
}

/* False: the other side has closed. */
static bool await_bytes(struct caller *c)
{
    uint8_t byte;
    return recv(c->fd, &byte, 1, MSG_PEEK) > 0;
}

static void shake(struct caller *c, const struct neb_key *key, bool server)
{
    assert_ok(neb__tls_context_create(key, "caller", &c->ctx));
    assert_ok(neb__tls_open(c->ctx, server, 1 << 20, hear, c, &c->tls));
    for (;;) {
        neb_status status = neb__tls_handshake(c->tls);
        push_out(c);
        if (status == NEB_OK) return;
        assert_int_equal(status, NEB_ERR_AGAIN);
        assert_true(await_bytes(c));
    }
}

void caller_shake(struct caller *c, const struct neb_key *key)
{
    shake(c, key, false);
}

void caller_dial(struct caller *c, int site, const struct neb_key *key)
{
    memset(c, 0, sizeof *c);
    c->fd = scene_dial(site);
    caller_shake(c, key);
}

void caller_answer(struct caller *c, uint16_t port, const struct neb_key *key)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct timeval t = {30, 0};
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    assert_true(!bind(listener, (struct sockaddr *)&a, sizeof a) && !listen(listener, 8));
    memset(c, 0, sizeof *c);
    c->fd = accept(listener, NULL, NULL);
    assert_true(c->fd >= 0);
    close(listener);
    setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    shake(c, key, true);
}

void caller_hang_up(struct caller *c)
{
    close(c->fd);
    neb__tls_close(c->tls);
    neb__tls_context_free(c->ctx);
}

void caller_say_raw(struct caller *c, const void *p, size_t n)
{
    assert_ok(neb__tls_write(c->tls, p, n));
    push_out(c);
}

void caller_say(struct caller *c, enum neb_frame_type type, const void *body, size_t n)
{
    uint8_t head[NEB_FRAME_HEADER];
    neb__frame_header(head, type, (uint32_t)n);
    caller_say_raw(c, head, sizeof head);
    if (n) caller_say_raw(c, body, n);
}

void caller_message(struct caller *c, enum neb_priority priority, uint64_t number, uint32_t kind,
                    const void *bytes, size_t n)
{
    uint8_t body[NEB_CHUNK_HEADER + 64];
    struct neb_chunk chunk = {
        .priority = (uint8_t)priority, .kind = kind, .message = number, .size = n, .length = (uint32_t)n};
    assert_true(n <= sizeof body - NEB_CHUNK_HEADER);
    neb__chunk_put(&chunk, body);
    memcpy(body + NEB_CHUNK_HEADER, bytes, n);
    caller_say(c, NEB_FRAME_CHUNK, body, NEB_CHUNK_HEADER + n);
}

bool caller_hear(struct caller *c, uint8_t *to, size_t room, size_t *got)
{
    for (;;) {
        neb_status status = neb__tls_read(c->tls, to, room, got);
        if (status == NEB_OK) return true;
        if (status != NEB_ERR_AGAIN || !await_bytes(c)) return false;
    }
}

int caller_refusal(struct caller *c)
{
    static uint8_t plain[1 << 20];
    size_t have = 0, got;
    while (caller_hear(c, plain + have, sizeof plain - have, &got)) {
        have += got;
        for (size_t at = 0; at + NEB_FRAME_HEADER + 2 <= have;) {
            if (plain[at + 4] == NEB_FRAME_REFUSE) return neb__get16(plain + at + NEB_FRAME_HEADER);
            at += NEB_FRAME_HEADER + neb__get32(plain + at);
        }
    }
    return 0;
}

struct neb_hello caller_hello(void)
{
    struct neb_hello h = {.version_min = 1,
                          .version_max = NEB_WIRE_VERSION,
                          .incarnation = 1000,
                          .boot = 77,
                          .token = 5,
                          .chunk = NEB_CHUNK};
    struct neb_chain *chain;
    assert_ok(neb__site_roster_load(scene_sites.path[0], &chain));
    memcpy(h.run_id, chain->run_id, NEB_RUN_ID_SIZE);
    h.genesis = chain->genesis_hash;
    h.epoch = chain->epoch;
    h.head = chain->head;
    for (int i = 0; i < NEB_PRIORITIES; i++) h.window[i] = 1 << 20;
    neb__chain_free(chain);
    return h;
}

struct neb_key *caller_key(int site)
{
    struct neb_key *key;
    assert_ok(neb__site_key(scene_sites.path[site], &key));
    return key;
}

static void say_hello(struct caller *c, const struct neb_key *key, const struct neb_hello *h)
{
    uint8_t body[NEB_HELLO_SIZE];
    caller_dial(c, 0, key);
    neb__hello_put(h, body);
    caller_say(c, NEB_FRAME_HELLO, body, sizeof body);
}

int caller_refused(const struct neb_key *key, const struct neb_hello *h)
{
    struct caller c;
    say_hello(&c, key, h);
    int code = caller_refusal(&c);
    caller_hang_up(&c);
    return code;
}

void caller_greet(struct caller *c, const struct neb_key *key, const struct neb_hello *h)
{
    uint8_t plain[2 * NEB_FRAME_HEADER + NEB_HELLO_SIZE];
    say_hello(c, key, h);
    for (size_t have = 0, got; have < sizeof plain; have += got)
        assert_true(caller_hear(c, plain + have, sizeof plain - have, &got));
    assert_int_equal(plain[4], NEB_FRAME_HELLO);
    assert_int_equal(plain[NEB_FRAME_HEADER + NEB_HELLO_SIZE + 4], NEB_FRAME_WELCOME);
}

void caller_link(struct caller *c, const struct neb_key *key, const struct neb_hello *h)
{
    uint8_t ack[NEB_ACK_HEADER] = {1}; /* has received nothing; to be sent what there is */
    caller_greet(c, key, h);
    caller_say(c, NEB_FRAME_WELCOME, NULL, 0);
    if (h->role == NEB_CONN_CONTROL) caller_say(c, NEB_FRAME_ACK, ack, sizeof ack);
}
