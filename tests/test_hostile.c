/* test_hostile.c: what liars get who speak our TLS: refused, with a line in the log that says why, while the running links
 * notice nothing. */
#include "check.h"
#include "scene.h"
#include "base/bytes.h"
#include "net/wire.h"
#include "seal/tls.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- a client of our own making ---------------------------------------------------------------------------------- */

struct caller {
    int fd;
    struct neb_tls_context *ctx;
    struct neb_tls *tls;
    uint8_t raw[1 << 16]; /* everything it sent, as on the wire */
    size_t raw_len;
};

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

/* A proper TLS handshake with any key. */
static void call(struct caller *c, int site, const struct neb_key *key)
{
    memset(c, 0, sizeof *c);
    c->fd = scene_dial(site);
    assert_ok(neb__tls_context_create(key, "caller", &c->ctx));
    assert_ok(neb__tls_open(c->ctx, false, 1 << 20, hear, c, &c->tls));
    for (;;) {
        neb_status s = neb__tls_handshake(c->tls);
        push_out(c);
        if (s == NEB_OK) return;
        assert_int_equal(s, NEB_ERR_AGAIN);
        assert_true(await_bytes(c));
    }
}

static void say_raw(struct caller *c, const void *p, size_t n)
{
    assert_ok(neb__tls_write(c->tls, p, n));
    push_out(c);
}

static void hang_up(struct caller *c)
{
    close(c->fd);
    neb__tls_close(c->tls);
    neb__tls_context_free(c->ctx);
}

static void say_frame(struct caller *c, enum neb_frame_type type, const void *body, size_t n)
{
    uint8_t head[NEB_FRAME_HEADER];
    neb__frame_header(head, type, (uint32_t)n);
    say_raw(c, head, sizeof head);
    if (n) say_raw(c, body, n);
}

/* Reads frames until a REFUSE; its code. 0: closed without one. */
static int hear_refusal(struct caller *c)
{
    static uint8_t plain[65536];
    size_t have = 0, got;
    for (;;) {
        neb_status s = neb__tls_read(c->tls, plain + have, sizeof plain - have, &got);
        if (s == NEB_OK) {
            have += got;
            for (size_t at = 0; at + NEB_FRAME_HEADER + 2 <= have;) {
                if (plain[at + 4] == NEB_FRAME_REFUSE) return neb__get16(plain + at + NEB_FRAME_HEADER);
                at += NEB_FRAME_HEADER + neb__get32(plain + at);
            }
        } else if (s == NEB_ERR_AGAIN) {
            if (!await_bytes(c)) return 0;
        } else {
            return 0;
        }
    }
}

static struct neb_hello proper_hello(void)
{
    struct neb_hello h = {
        .version_min = 1, .version_max = 1, .incarnation = 1000, .boot = 77, .token = 5, .chunk = NEB_CHUNK};
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

static int refusal_of(const struct neb_key *key, const struct neb_hello *h)
{
    struct caller c;
    uint8_t body[NEB_HELLO_SIZE];
    call(&c, 0, key);
    neb__hello_put(h, body);
    say_frame(&c, NEB_FRAME_HELLO, body, sizeof body);
    int code = hear_refusal(&c);
    hang_up(&c);
    return code;
}

/* ---- what it says ------------------------------------------------------------------------------------------------- */

static void test_wrong_greeting(void **state)
{
    (void)state;
    char path[300];
    struct neb_key *stranger, *member;
    struct neb_hello h = proper_hello(), v = h;
    assert_ok(neb__key_create(&stranger));
    snprintf(path, sizeof path, "%s/site.key", scene_sites.path[2]);
    assert_ok(neb__key_load(path, &member));

    assert_int_equal(refusal_of(stranger, &h), NEB_REFUSE_KEY);
    assert_true(scene_logged("the key is not valid in epoch 0 of the roster"));
    v = h, v.run_id[0] ^= 1;
    assert_int_equal(refusal_of(member, &v), NEB_REFUSE_RUN);
    assert_true(scene_logged("it belongs to another run"));
    v = h, v.genesis.b[0] ^= 1;
    assert_int_equal(refusal_of(member, &v), NEB_REFUSE_GENESIS);
    v = h, v.version_min = NEB_WIRE_VERSION + 1, v.version_max = 9; /* refused */
    assert_int_equal(refusal_of(member, &v), NEB_REFUSE_VERSION);
    assert_true(scene_logged("speaks versions 4 to 9"));
    v = h, v.head.b[0] ^= 1; /* another roster for the same epoch */
    assert_int_equal(refusal_of(member, &v), NEB_REFUSE_FORK);
    v = h, v.role = NEB_ROLE_STRIPE; /* a stripe of no link */
    assert_int_equal(refusal_of(member, &v), NEB_REFUSE_TOKEN);
    neb__key_free(stranger);
    neb__key_free(member);
    scene_assert_undisturbed();
}

/* A version range that includes ours is agreed on: the greeting goes on to WELCOME. */
static void test_version_negotiated(void **state)
{
    (void)state;
    struct caller c;
    struct neb_key *member;
    char path[300];
    uint8_t body[NEB_HELLO_SIZE + 40], plain[4096];
    struct neb_hello h = proper_hello();
    size_t got, have = 0;
    h.version_max = 7;
    snprintf(path, sizeof path, "%s/site.key", scene_sites.path[2]);
    assert_ok(neb__key_load(path, &member));
    call(&c, 0, member);
    memset(body, 0x5a, sizeof body); /* and fields that a later version appends are skipped */
    neb__hello_put(&h, body);
    say_frame(&c, NEB_FRAME_HELLO, body, sizeof body);
    while (have < 2 * NEB_FRAME_HEADER + NEB_HELLO_SIZE) {
        neb_status s = neb__tls_read(c.tls, plain + have, sizeof plain - have, &got);
        if (s == NEB_OK) {
            have += got;
            continue;
        }
        assert_int_equal(s, NEB_ERR_AGAIN);
        assert_true(await_bytes(&c));
    }
    assert_int_equal(plain[4], NEB_FRAME_HELLO);
    assert_int_equal(plain[NEB_FRAME_HEADER + NEB_HELLO_SIZE + 4], NEB_FRAME_WELCOME);
    hang_up(&c);
    neb__key_free(member);
    scene_assert_undisturbed();
}

/* A second process of a site that is connected: an older incarnation, and a copy of the folder. */
static void test_second_process(void **state)
{
    (void)state;
    char path[300];
    struct neb_key *key;
    struct neb_hello h = proper_hello();
    struct neb_site *site = NULL;
    assert_status(neb__site_open(scene_sites.path[1], &site), NEB_ERR_BUSY);
    snprintf(path, sizeof path, "%s/site.key", scene_sites.path[1]);
    assert_ok(neb__key_load(path, &key));
    h.incarnation = 0;
    assert_int_equal(refusal_of(key, &h), NEB_REFUSE_INCARNATION);
    assert_true(scene_logged("older than"));
    h.incarnation = scene_nodes[1].site->incarnation;
    assert_int_equal(refusal_of(key, &h), NEB_REFUSE_INCARNATION);
    assert_true(scene_logged("its site folder was copied"));
    neb__key_free(key);
    scene_assert_undisturbed();
}

static void test_bad_frames(void **state)
{
    (void)state;
    struct neb_key *key;
    assert_ok(neb__key_create(&key));
    static const struct {
        uint32_t length;
        uint8_t type, zero;
    } heads[] = {{0xffffffff, NEB_FRAME_HELLO, 0},
                 {5, NEB_FRAME_HELLO, 0},
                 {NEB_HELLO_MAX + 1, NEB_FRAME_HELLO, 0},
                 {100, NEB_FRAME_CHUNK, 0},
                 {0, NEB_FRAME_WELCOME, 0},
                 {192, NEB_FRAME_HELLO, 1},
                 {8, 200, 0},
                 {300000, NEB_FRAME_CHAIN, 0}};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        struct caller c;
        uint8_t head[NEB_FRAME_HEADER];
        call(&c, 0, key);
        neb__frame_header(head, heads[i].type, heads[i].length);
        head[5] = heads[i].zero;
        say_raw(&c, head, sizeof head);
        assert_true(scene_closed(c.fd, 5));
        hang_up(&c);
    }
    assert_true(scene_logged("a frame of type"));
    struct caller c; /* truncated: half a greeting, then gone */
    uint8_t body[NEB_HELLO_SIZE] = {0};
    call(&c, 0, key);
    neb__frame_header(body, NEB_FRAME_HELLO, NEB_HELLO_SIZE);
    say_raw(&c, body, 100);
    hang_up(&c);
    call(&c, 0, key); /* garbage below TLS, after a good handshake */
    memset(body, 0xa5, sizeof body);
    send(c.fd, body, sizeof body, MSG_NOSIGNAL);
    assert_true(scene_closed(c.fd, 5));
    hang_up(&c);
    neb__key_free(key);
    scene_assert_undisturbed();
}

/* What a member once sent, sent again by somebody else: worthless without the keys of that connection. */
static void test_replay(void **state)
{
    (void)state;
    char path[300];
    struct caller c;
    struct neb_key *member;
    uint8_t body[NEB_HELLO_SIZE];
    struct neb_hello h = proper_hello();
    snprintf(path, sizeof path, "%s/site.key", scene_sites.path[2]);
    assert_ok(neb__key_load(path, &member));
    call(&c, 0, member);
    neb__hello_put(&h, body);
    say_frame(&c, NEB_FRAME_HELLO, body, sizeof body);
    sleep_ms(100);
    int fd = scene_dial(0);
    assert_int_equal(send(fd, c.raw, c.raw_len, MSG_NOSIGNAL), (ssize_t)c.raw_len);
    assert_true(scene_closed(fd, 12));
    close(fd);
    hang_up(&c);
    neb__key_free(member);
    scene_assert_undisturbed();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong_greeting), cmocka_unit_test(test_version_negotiated),
        cmocka_unit_test(test_second_process), cmocka_unit_test(test_bad_frames),
        cmocka_unit_test(test_replay),
    };
    return cmocka_run_group_tests(tests, scene_set_up, scene_tear_down);
}
