/* test_hostile.c: what strangers and liars get: refused, with a line in the log that says why, while the running links
 * notice nothing. */
#include "check.h"
#include "sites.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/mem.h"
#include "net/wire.h"
#include "seal/tls.h"

#include <arpa/inet.h>
#include <errno.h>
#include <nebula/log.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- the scene: s0 and s1 are linked and stay so ------------------------------------------------------------------ */

static struct sites sites;
static struct node nodes[3];
static atomic_int ups[3], downs[3], received;

static void on_up(void *arg, uint16_t peer, uint64_t incarnation)
{
    (void)peer, (void)incarnation;
    ups[(intptr_t)arg]++;
}

static void on_down(void *arg, uint16_t peer, neb_status why)
{
    (void)why;
    if (peer != 3) downs[(intptr_t)arg]++; /* s2 comes and goes as it likes */
}

static neb_status on_message(void *arg, struct neb_message *m)
{
    (void)arg, (void)m;
    received++;
    return NEB_OK;
}

static const struct neb_net_events events = {.peer_up = on_up, .peer_down = on_down, .message = on_message};

static char journal[1 << 16];
static pthread_mutex_t journal_lock = PTHREAD_MUTEX_INITIALIZER;

static void on_log(void *arg, neb_log_level level, const char *line)
{
    (void)arg, (void)level;
    pthread_mutex_lock(&journal_lock);
    size_t n = strlen(journal);
    if (n + strlen(line) + 2 < sizeof journal) sprintf(journal + n, "%s\n", line);
    pthread_mutex_unlock(&journal_lock);
}

static bool logged(const char *text)
{
    for (int i = 0; i < 200; i++) {
        pthread_mutex_lock(&journal_lock);
        bool there = strstr(journal, text) != NULL;
        pthread_mutex_unlock(&journal_lock);
        if (there) return true;
        sleep_ms(10);
    }
    return false;
}

static void say(void *arg)
{
    (void)arg;
    assert_ok(neb__net_send_copy(nodes[0].net, 2, NEB_ROUND, 1, "still here", 10, NULL, NULL));
}

/* The link between s0 and s1 never broke and still carries messages. */
static void assert_undisturbed(void)
{
    int before = received;
    node_call(&nodes[0], say, NULL);
    for (int i = 0; i < 500 && received == before; i++) sleep_ms(10);
    assert_int_equal(received, before + 1);
    assert_int_equal(downs[0] + downs[1], 0);
    pthread_mutex_lock(&journal_lock);
    journal[0] = 0;
    pthread_mutex_unlock(&journal_lock);
    sleep_ms(1000 - (int)(neb__now_ns() / 1000000 % 1000) +
             1); /* refusals are logged at most ten times a second */
}

static int set_up(void **state)
{
    (void)state;
    struct rlimit r = {4096, 4096};
    setrlimit(RLIMIT_NOFILE, &r);
    sites_make(&sites, 3, NULL);
    neb_log_set_sink(on_log, NULL);
    for (intptr_t i = 0; i < 2; i++) node_open(&nodes[i], sites.path[i], &events, (void *)i, NULL);
    for (int i = 0; i < 1000 && !(ups[0] && ups[1]); i++) sleep_ms(10);
    assert_true(ups[0] && ups[1]);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) node_close(&nodes[i]);
    neb_log_set_sink(NULL, NULL);
    sites_free(&sites);
    return 0;
}

/* ---- a client of our own making ---------------------------------------------------------------------------------- */

static int dial(int site)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(sites.port[site])};
    struct timeval t = {15, 0};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    assert_true(fd >= 0 && !connect(fd, (struct sockaddr *)&a, sizeof a));
    return fd;
}

/* Whether the other side closes within the time that an impolite one gets. */
static bool closed(int fd, int seconds)
{
    char b[4096];
    for (int64_t start = neb__now_ns(); neb__seconds_since(start) < seconds;) {
        struct pollfd p = {fd, POLLIN, 0};
        if (poll(&p, 1, 100) > 0) {
            ssize_t n = recv(fd, b, sizeof b, 0);
            if (n == 0 || (n < 0 && errno != EAGAIN)) return true;
        }
    }
    return false;
}

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
    c->fd = dial(site);
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
    assert_ok(neb__site_roster_load(sites.path[0], &chain));
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

/* ---- strangers --------------------------------------------------------------------------------------------------- */

static void test_plaintext(void **state)
{
    (void)state;
    static const char words[][32] = {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "SSH-2.0-OpenSSH_9\r\n",
                                     "NEBULA-I\1\0\1\0"};
    for (int i = 0; i < 3; i++) {
        int fd = dial(0);
        send(fd, words[i], sizeof words[i], MSG_NOSIGNAL);
        assert_true(closed(fd, 12));
        close(fd);
    }
    assert_true(logged("refused a connection from 127.0.0.1"));
    assert_undisturbed();
}

static SSL_CTX *plain_client(int version, EVP_PKEY *key, X509 *certificate, X509 *second)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_min_proto_version(ctx, version);
    SSL_CTX_set_max_proto_version(ctx, version);
    SSL_CTX_set_verify(ctx, SSL_VERIFY_NONE, NULL);
    if (certificate) {
        assert_int_equal(SSL_CTX_use_certificate(ctx, certificate), 1);
        assert_int_equal(SSL_CTX_use_PrivateKey(ctx, key), 1);
    }
    if (second) assert_int_equal(SSL_CTX_add1_chain_cert(ctx, second), 1);
    return ctx;
}

/* Whether s0 lets this OpenSSL client get as far as exchanging data. */
static bool tls_accepted(SSL_CTX *ctx)
{
    int fd = dial(0);
    SSL *ssl = SSL_new(ctx);
    char byte;
    SSL_set_fd(ssl, fd);
    bool ok = SSL_connect(ssl) == 1; /* in TLS 1.3 the server's verdict on the client comes behind this */
    if (ok) {
        int n = SSL_read(ssl, &byte, 1);
        ok = n > 0 || SSL_get_error(ssl, n) == SSL_ERROR_WANT_READ;
    }
    SSL_free(ssl);
    SSL_CTX_free(ctx);
    ERR_clear_error();
    close(fd);
    return ok;
}

static X509 *self_signed(EVP_PKEY *key)
{
    X509 *x = X509_new();
    X509_set_version(x, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
    X509_gmtime_adj(X509_getm_notBefore(x), 0);
    X509_gmtime_adj(X509_getm_notAfter(x), 3600);
    X509_set_pubkey(x, key);
    X509_sign(x, key, EVP_PKEY_is_a(key, "ED25519") ? NULL : EVP_sha256());
    return x;
}

/* A certificate that this library never encoded before is encoded from its parts when it is sent: so a part that was
 * changed after the key was accepted goes over the wire. */
static void refused_certificate(EVP_PKEY *key, void (*spoil)(X509 *x), const char *why)
{
    X509 *x = self_signed(key);
    SSL_CTX *ctx = plain_client(TLS1_3_VERSION, key, x, NULL);
    SSL_CTX_set_mode(ctx, SSL_MODE_NO_AUTO_CHAIN);
    spoil(x);
    assert_false(tls_accepted(ctx));
    X509_free(x);
    if (!logged(why)) fail_msg("no line with '%s' in: %s", why, journal);
}

static void spoil_structure(X509 *x)
{
    X509_getm_notBefore(x)->type = V_ASN1_OCTET_STRING;
}

static void spoil_key(X509 *x)
{
    X509_get0_pubkey_bitstr(x)->length = 31;
}

static void spoil_size(X509 *x)
{
    static unsigned char text[60] = "x";
    memset(text, 'x', sizeof text);
    for (int i = 0; i < 200; i++)
        X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "O", MBSTRING_ASC, text, sizeof text, -1, 0);
}

static void test_malformed_certificate_sent(void **state)
{
    (void)state;
    EVP_PKEY *key = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
    refused_certificate(key, spoil_structure, "TLS handshake: malformed certificate");
    refused_certificate(key, spoil_key, "TLS handshake: certificate verify failed");
    refused_certificate(key, spoil_size, "TLS handshake: excessive message size");
    EVP_PKEY_free(key);
    assert_undisturbed();
}

static void test_other_tls(void **state)
{
    (void)state;
    EVP_PKEY *ec = EVP_EC_gen("P-256"), *ed = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
    X509 *ec_cert = self_signed(ec), *ed_cert = self_signed(ed);
    assert_false(tls_accepted(plain_client(TLS1_2_VERSION, NULL, NULL, NULL)));
    assert_true(logged("unsupported protocol"));
    assert_false(tls_accepted(plain_client(TLS1_2_VERSION, ed, ed_cert, NULL)));
    assert_false(tls_accepted(plain_client(TLS1_3_VERSION, NULL, NULL, NULL)));     /* no certificate */
    assert_false(tls_accepted(plain_client(TLS1_3_VERSION, ec, ec_cert, NULL)));    /* another kind of key */
    assert_false(tls_accepted(plain_client(TLS1_3_VERSION, ed, ed_cert, ec_cert))); /* a chain */
    X509_free(ec_cert), X509_free(ed_cert);
    EVP_PKEY_free(ec), EVP_PKEY_free(ed);
    assert_undisturbed();
}

static void test_malformed_certificate(void **state)
{
    (void)state;
    EVP_PKEY *ed = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
    X509 *x = self_signed(ed);
    struct neb_public key;
    uint8_t *der = NULL;
    int n = i2d_X509(x, &der);
    assert_ok(neb__tls_certificate_key(der, (size_t)n, &key));
    for (int i = 0; i < n; i++) assert_true(neb__tls_certificate_key(der, (size_t)i, &key) != NEB_OK);
    der[0] = 0x31;
    assert_status(neb__tls_certificate_key(der, (size_t)n, &key), NEB_ERR_AUTH);
    OPENSSL_free(der);
    X509_free(x);
    EVP_PKEY_free(ed);
}

static void test_wrong_greeting(void **state)
{
    (void)state;
    char path[300];
    struct neb_key *stranger, *member;
    struct neb_hello h = proper_hello(), v = h;
    assert_ok(neb__key_create(&stranger));
    snprintf(path, sizeof path, "%s/site.key", sites.path[2]);
    assert_ok(neb__key_load(path, &member));

    assert_int_equal(refusal_of(stranger, &h), NEB_REFUSE_KEY);
    assert_true(logged("the key is not valid in epoch 0 of the roster"));
    v = h, v.run_id[0] ^= 1;
    assert_int_equal(refusal_of(member, &v), NEB_REFUSE_RUN);
    assert_true(logged("it belongs to another run"));
    v = h, v.genesis.b[0] ^= 1;
    assert_int_equal(refusal_of(member, &v), NEB_REFUSE_GENESIS);
    v = h, v.version_min = NEB_WIRE_VERSION + 1, v.version_max = 9; /* refused */
    assert_int_equal(refusal_of(member, &v), NEB_REFUSE_VERSION);
    assert_true(logged("speaks versions 4 to 9"));
    v = h, v.head.b[0] ^= 1; /* another roster for the same epoch */
    assert_int_equal(refusal_of(member, &v), NEB_REFUSE_FORK);
    v = h, v.role = NEB_ROLE_STRIPE; /* a stripe of no link */
    assert_int_equal(refusal_of(member, &v), NEB_REFUSE_TOKEN);
    neb__key_free(stranger);
    neb__key_free(member);
    assert_undisturbed();
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
    snprintf(path, sizeof path, "%s/site.key", sites.path[2]);
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
    assert_undisturbed();
}

/* A second process of a site that is connected: an older incarnation, and a copy of the folder. */
static void test_second_process(void **state)
{
    (void)state;
    char path[300];
    struct neb_key *key;
    struct neb_hello h = proper_hello();
    struct neb_site *site = NULL;
    assert_status(neb__site_open(sites.path[1], &site), NEB_ERR_BUSY);
    snprintf(path, sizeof path, "%s/site.key", sites.path[1]);
    assert_ok(neb__key_load(path, &key));
    h.incarnation = 0;
    assert_int_equal(refusal_of(key, &h), NEB_REFUSE_INCARNATION);
    assert_true(logged("older than"));
    h.incarnation = nodes[1].site->incarnation;
    assert_int_equal(refusal_of(key, &h), NEB_REFUSE_INCARNATION);
    assert_true(logged("its site folder was copied"));
    neb__key_free(key);
    assert_undisturbed();
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
        assert_true(closed(c.fd, 5));
        hang_up(&c);
    }
    assert_true(logged("a frame of type"));
    struct caller c; /* truncated: half a greeting, then gone */
    uint8_t body[NEB_HELLO_SIZE] = {0};
    call(&c, 0, key);
    neb__frame_header(body, NEB_FRAME_HELLO, NEB_HELLO_SIZE);
    say_raw(&c, body, 100);
    hang_up(&c);
    call(&c, 0, key); /* garbage below TLS, after a good handshake */
    memset(body, 0xa5, sizeof body);
    send(c.fd, body, sizeof body, MSG_NOSIGNAL);
    assert_true(closed(c.fd, 5));
    hang_up(&c);
    neb__key_free(key);
    assert_undisturbed();
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
    snprintf(path, sizeof path, "%s/site.key", sites.path[2]);
    assert_ok(neb__key_load(path, &member));
    call(&c, 0, member);
    neb__hello_put(&h, body);
    say_frame(&c, NEB_FRAME_HELLO, body, sizeof body);
    sleep_ms(100);
    int fd = dial(0);
    assert_int_equal(send(fd, c.raw, c.raw_len, MSG_NOSIGNAL), (ssize_t)c.raw_len);
    assert_true(closed(fd, 12));
    close(fd);
    hang_up(&c);
    neb__key_free(member);
    assert_undisturbed();
}

/* 1000 connections that say nothing; a member still gets in meanwhile. */
static void test_half_open(void **state)
{
    (void)state;
    enum { MANY = 1000 };
    static int fd[MANY];
    for (int i = 0; i < MANY; i++) fd[i] = dial(0);
    assert_true(logged("connections wait to be greeted"));
    node_open(&nodes[2], sites.path[2], &events, (void *)2, NULL);
    for (int i = 0; i < 1000 && ups[2] < 2; i++) sleep_ms(10);
    assert_int_equal(ups[2], 2);
    assert_undisturbed();
    int open = 0;
    for (int i = 0; i < MANY; i++) {
        char byte;
        ssize_t n = recv(fd[i], &byte, 1, MSG_DONTWAIT);
        open += n < 0 && errno == EAGAIN;
    }
    assert_true(open <= 128);
    for (int i = 0; i < MANY; i++) close(fd[i]);
    node_close(&nodes[2]);
    assert_undisturbed();
}

/* Somebody else answers at a member's address: the dialler finds another key and goes away. */
static void test_wrong_server(void **state)
{
    (void)state;
    struct sites other;
    struct node n;
    sites_make(&other, 2, NULL);
    /* s2's address is now held by a node of another run with another key */
    struct neb_net_config cfg = NEB_NET_CONFIG;
    char listen[64];
    snprintf(listen, sizeof listen, "127.0.0.1:%u", sites.port[2]);
    assert_ok(neb__site_open(other.path[0], &n.site));
    cfg.site = n.site;
    cfg.events = &events;
    cfg.listen = listen;
    assert_ok(neb__net_open(&cfg, &n.net));
    assert_ok(neb__net_start(n.net));
    assert_true(logged("refused"));
    sleep_ms(300);
    node_close(&n);
    sites_free(&other);
    assert_undisturbed();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plaintext),
        cmocka_unit_test(test_other_tls),
        cmocka_unit_test(test_malformed_certificate),
        cmocka_unit_test(test_malformed_certificate_sent),
        cmocka_unit_test(test_wrong_greeting),
        cmocka_unit_test(test_version_negotiated),
        cmocka_unit_test(test_second_process),
        cmocka_unit_test(test_bad_frames),
        cmocka_unit_test(test_replay),
        cmocka_unit_test(test_half_open),
        cmocka_unit_test(test_wrong_server),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
