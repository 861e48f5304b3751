/* test_strangers.c: peers that never get as far as a greeting: other protocols, other TLS, certificates of
 * all kinds, silent connections, and a server that is not the one that was dialled. Each is refused, with a
 * line in the log that says why, while the running links notice nothing. */
#include "caller.h"
#include "check.h"
#include "scene.h"
#include "net/link.h"
#include "seal/tls.h"

#include <arpa/inet.h>
#include <errno.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void test_plaintext(void **state)
{
    (void)state;
    static const char words[][32] = {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "SSH-2.0-OpenSSH_9\r\n",
                                     "NEBULA-I\1\0\1\0"};
    for (int i = 0; i < 3; i++) {
        int fd = scene_dial(0);
        send(fd, words[i], sizeof words[i], MSG_NOSIGNAL);
        assert_true(scene_closed(fd, 60));
        close(fd);
    }
    assert_true(scene_logged("refused a connection from 127.0.0.1"));
    scene_assert_undisturbed();
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

/* Returns whether s0 lets this OpenSSL client get as far as exchanging data. */
static bool tls_accepted(SSL_CTX *ctx)
{
    int fd = scene_dial(0);
    SSL *ssl = SSL_new(ctx);
    char byte;
    SSL_set_fd(ssl, fd);
    bool ok = SSL_connect(ssl) == 1; /* in TLS 1.3 the server's verdict on the client comes later */
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

/* OpenSSL encodes a certificate from its parts when it sends it for the first time. So a part that was
 * changed after the key was accepted is sent as changed. */
static void refused_certificate(EVP_PKEY *key, void (*spoil)(X509 *x), const char *why)
{
    X509 *x = self_signed(key);
    SSL_CTX *ctx = plain_client(TLS1_3_VERSION, key, x, NULL);
    SSL_CTX_set_mode(ctx, SSL_MODE_NO_AUTO_CHAIN);
    spoil(x);
    assert_false(tls_accepted(ctx));
    X509_free(x);
    if (!scene_logged(why)) fail_msg("no line with '%s' in: %s", why, scene_journal);
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
    scene_assert_undisturbed();
}

static void test_other_tls(void **state)
{
    (void)state;
    EVP_PKEY *ec = EVP_EC_gen("P-256"), *ed = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
    X509 *ec_cert = self_signed(ec), *ed_cert = self_signed(ed);
    assert_false(tls_accepted(plain_client(TLS1_2_VERSION, NULL, NULL, NULL)));
    assert_true(scene_logged("unsupported protocol"));
    assert_false(tls_accepted(plain_client(TLS1_2_VERSION, ed, ed_cert, NULL)));
    assert_false(tls_accepted(plain_client(TLS1_3_VERSION, NULL, NULL, NULL)));     /* no certificate */
    assert_false(tls_accepted(plain_client(TLS1_3_VERSION, ec, ec_cert, NULL)));    /* another kind of key */
    assert_false(tls_accepted(plain_client(TLS1_3_VERSION, ed, ed_cert, ec_cert))); /* a chain */
    X509_free(ec_cert), X509_free(ed_cert);
    EVP_PKEY_free(ec), EVP_PKEY_free(ed);
    scene_assert_undisturbed();
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

/* 1000 connections stay silent; a member still gets in meanwhile. */
static void test_half_open(void **state)
{
    (void)state;
    enum { MANY = 1000 };
    static int fd[MANY];
    for (int i = 0; i < MANY; i++) fd[i] = scene_dial(0);
    assert_true(scene_logged("connections wait to be greeted"));
    node_open(&scene_nodes[2], scene_sites.path[2], &scene_events, (void *)2, NULL);
    for (int i = 0; i < 6000 && scene_ups[2] < 2; i++) sleep_ms(10);
    assert_int_equal(scene_ups[2], 2);
    scene_assert_undisturbed();
    int open = 0;
    for (int i = 0; i < MANY; i++) {
        char byte;
        ssize_t n = recv(fd[i], &byte, 1, MSG_DONTWAIT);
        open += n < 0 && errno == EAGAIN;
    }
    assert_true(open <= 128);
    for (int i = 0; i < MANY; i++) close(fd[i]);
    node_close(&scene_nodes[2]);
    scene_assert_undisturbed();
}

/* Somebody else answers at a member's address: the dialler finds another key and goes away. */
static void test_wrong_server(void **state)
{
    (void)state;
    struct sites other;
    struct node n;
    sites_make(&other, 2, NULL);
    /* a node of another run with another key now has s2's address */
    struct neb_net_config cfg = NEB_NET_CONFIG;
    char listen[64];
    snprintf(listen, sizeof listen, "127.0.0.1:%u", scene_sites.port[2]);
    assert_ok(neb__site_open(other.path[0], &n.site));
    cfg.site = n.site;
    cfg.events = &scene_events;
    cfg.listen = listen;
    assert_ok(neb__net_open(&cfg, &n.net));
    assert_ok(neb__net_start(n.net));
    assert_true(scene_logged("refused"));
    sleep_ms(300);
    node_close(&n);
    sites_free(&other);
    scene_assert_undisturbed();
}

/* Dials s0 from 127.x.y.1; each pair x, y is a network of its own. */
static int dial_from(unsigned x, unsigned y)
{
    struct sockaddr_in a = {.sin_family = AF_INET}, to = a;
    a.sin_addr.s_addr = htonl(127u << 24 | x << 16 | y << 8 | 1);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(scene_sites.port[0]);
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct timeval t = {15, 0};
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    assert_true(fd >= 0 && !bind(fd, (struct sockaddr *)&a, sizeof a));
    assert_true(!connect(fd, (struct sockaddr *)&to, sizeof to));
    return fd;
}

static void look(void *arg)
{
    int *waiting = arg;
    *waiting = 0;
    for (struct neb_conn *c = scene_nodes[0].net->conns; c; c = c->next)
        *waiting += !c->dialled && c->state != NEB_CONN_READY;
}

static void count_proved(void *arg)
{
    int *n = arg;
    *n = 0;
    for (struct neb_conn *c = scene_nodes[0].net->conns; c; c = c->next)
        *n += c->class == NEB_STRANGER_MEMBER && c->state == NEB_CONN_GREETING;
}

/* 500 connections from as many networks come while a member greets over a slow line: behind its TCP
 * connection, behind its TLS handshake, behind its HELLO. Each time more come than there are slots. The
 * member stays. */
static void test_flood_from_many_networks(void **state)
{
    (void)state;
    enum { MANY = 500 };
    static int fd[MANY];
    struct caller c = {.fd = scene_dial(0)}; /* the roster's network */
    struct neb_key *key = caller_key(2);
    struct neb_hello h = caller_hello();
    uint8_t body[NEB_HELLO_SIZE], plain[2 * NEB_FRAME_HEADER + NEB_HELLO_SIZE];
    neb__hello_put(&h, body);
    for (int wave = 0; wave < 3; wave++) {
        for (int i = 0; i < MANY; i++) fd[i] = dial_from((unsigned)(1 + wave), (unsigned)i % 250);
        int waiting = MANY;
        for (int i = 0; i < 6000 && waiting > NEB_STRANGERS_MAX + NEB_STRANGERS_RESERVED; i++) {
            node_call(&scene_nodes[0], look, &waiting);
            sleep_ms(10);
        }
        assert_true(waiting <= NEB_STRANGERS_MAX + NEB_STRANGERS_RESERVED);
        if (wave == 0) caller_shake(&c, key);
        if (wave == 1) caller_say(&c, NEB_FRAME_HELLO, body, sizeof body);
        for (int i = 0; i < MANY; i++) close(fd[i]);
    }
    for (size_t have = 0, got; have < sizeof plain; have += got)
        assert_true(caller_hear(&c, plain + have, sizeof plain - have, &got));
    assert_int_equal(plain[NEB_FRAME_HEADER + NEB_HELLO_SIZE + 4], NEB_FRAME_WELCOME);
    caller_hang_up(&c);
    neb__key_free(key);
    scene_assert_undisturbed();
}

/* A key that is proved has slots of its own, wherever its site is; but not any number of them. */
static void test_roster_key_from_anywhere(void **state)
{
    (void)state;
    enum { MANY = 300 };
    static int fd[MANY];
    static struct caller again[NEB_GREETINGS_PER_KEY + 8];
    struct caller c = {.fd = dial_from(9, 9)};
    struct neb_key *key = caller_key(2);
    caller_shake(&c, key);
    for (int i = 0; i < MANY; i++) fd[i] = dial_from(8, (unsigned)i % 250);
    assert_true(scene_logged("connections wait to be greeted"));
    assert_false(scene_closed(c.fd, 1));
    for (int i = 0; i < MANY; i++) close(fd[i]);
    int open = 0;
    for (int i = 0; i < NEB_GREETINGS_PER_KEY + 8; i++) caller_dial(&again[i], 0, key);
    for (int i = 0; i < 6000 && open < NEB_GREETINGS_PER_KEY; i++, sleep_ms(10))
        node_call(&scene_nodes[0], count_proved, &open);
    assert_int_equal(open, NEB_GREETINGS_PER_KEY);
    for (int i = 0; i < NEB_GREETINGS_PER_KEY + 8; i++) caller_hang_up(&again[i]);
    caller_hang_up(&c);
    neb__key_free(key);
    scene_assert_undisturbed();
}

static uint64_t network_of(const char *text)
{
    struct sockaddr_in in = {.sin_family = AF_INET};
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6};
    if (inet_pton(AF_INET, text, &in.sin_addr) == 1) return neb__net_network((struct sockaddr *)&in);
    assert_int_equal(inet_pton(AF_INET6, text, &in6.sin6_addr), 1);
    return neb__net_network((struct sockaddr *)&in6);
}

/* An IPv6 /64 counts as one sender, and so does an IPv4 /24 in either way of writing it. */
static void test_networks(void **state)
{
    (void)state;
    assert_true(network_of("2001:db8:1:2::1") == network_of("2001:db8:1:2:ffff:ffff:ffff:ffff"));
    assert_true(network_of("2001:db8:1:2::1") != network_of("2001:db8:1:3::1"));
    assert_true(network_of("192.0.2.1") == network_of("192.0.2.255"));
    assert_true(network_of("192.0.2.1") == network_of("::ffff:192.0.2.7"));
    assert_true(network_of("192.0.2.1") != network_of("192.0.3.1"));
    assert_true(network_of("0.0.1.0") != network_of("::1"));
}

/* Somebody else answers at a member's address. It must not learn which run it was called for. */
static void test_nothing_is_said_to_a_wrong_server(void **state)
{
    (void)state;
    struct neb_key *key;
    struct caller c;
    assert_ok(neb__key_create(&key));
    caller_answer(&c, scene_sites.port[2], key); /* s0 or s1 dials s2 */
    uint8_t plain[NEB_FRAME_HEADER + NEB_HELLO_SIZE];
    struct neb_hello h;
    for (size_t have = 0, got; have < sizeof plain; have += got)
        assert_true(caller_hear(&c, plain + have, sizeof plain - have, &got));
    assert_int_equal(plain[4], NEB_FRAME_HELLO);
    assert_ok(neb__hello_get(plain + NEB_FRAME_HEADER, NEB_HELLO_SIZE, &h));
    static const struct neb_hello zero;
    const struct neb_hello known = caller_hello();
    assert_memory_equal(h.run_id, zero.run_id, sizeof h.run_id);
    assert_memory_equal(&h.genesis, &zero.genesis, sizeof h.genesis);
    assert_memory_equal(&h.head, &zero.head, sizeof h.head);
    assert_true(h.epoch == 0 && memcmp(known.run_id, zero.run_id, sizeof known.run_id));
    caller_hang_up(&c);
    neb__key_free(key);
    scene_assert_undisturbed();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plaintext),
        cmocka_unit_test(test_other_tls),
        cmocka_unit_test(test_malformed_certificate),
        cmocka_unit_test(test_malformed_certificate_sent),
        cmocka_unit_test(test_half_open),
        cmocka_unit_test(test_wrong_server),
        cmocka_unit_test(test_flood_from_many_networks),
        cmocka_unit_test(test_roster_key_from_anywhere),
        cmocka_unit_test(test_networks),
        cmocka_unit_test(test_nothing_is_said_to_a_wrong_server),
    };
    return cmocka_run_group_tests(tests, scene_set_up, scene_tear_down);
}
