/* test_dial.c: addresses that do not work. The tests count how often each is tried, and that all of them are.
 * A resolver in this file knows the names that they use. */
#include "check.h"
#include "sites.h"
#include "base/clock.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static atomic_int asked, up;

/* ---- a resolver ---------------------------------------------------------------------------------------- */

enum { OTHER_FAMILY = 99 }; /* no socket of this family can be made */

struct answer {
    struct addrinfo info;
    struct sockaddr_in sa;
};

static struct addrinfo *answer(const char *address, const char *service, struct addrinfo *next)
{
    struct answer *a = calloc(1, sizeof *a);
    a->sa.sin_family = address ? AF_INET : OTHER_FAMILY;
    a->sa.sin_port = htons((uint16_t)atoi(service));
    if (address) inet_pton(AF_INET, address, &a->sa.sin_addr);
    a->info = (struct addrinfo){.ai_family = a->sa.sin_family,
                                .ai_socktype = SOCK_STREAM,
                                .ai_addr = (struct sockaddr *)&a->sa,
                                .ai_addrlen = sizeof a->sa,
                                .ai_next = next};
    return &a->info;
}

/* Replaces the C library's function, for the names of these tests. All other requests are for numeric
 * addresses. */
__attribute__((visibility("default"))) int getaddrinfo(const char *node, const char *service,
                                                       const struct addrinfo *hints, struct addrinfo **out)
{
    (void)hints;
    bool ours = strstr(node, ".test") != NULL;
    asked += ours;
    if (!strcmp(node, "nobody.test")) return EAI_NONAME;
    if (!strcmp(node, "nowhere.test"))
        *out = answer(NULL, service, NULL);
    else if (!strcmp(node, "several.test"))
        *out = answer(NULL, service, answer("127.0.0.9", service, answer("127.0.0.1", service, NULL)));
    else
        *out = answer(node, service, NULL);
    return 0;
}

__attribute__((visibility("default"))) void freeaddrinfo(struct addrinfo *list)
{
    for (struct addrinfo *next; list; list = next) {
        next = list->ai_next;
        free(list);
    }
}

/* ---- s0 dials s1 --------------------------------------------------------------------------------------- */

static void on_up(void *arg, uint16_t peer, uint64_t incarnation)
{
    (void)arg, (void)peer, (void)incarnation;
    up++;
}

static const struct neb_net_events events = {.peer_up = on_up};
static char listen_at[64];

static void listen_here(struct neb_net_config *c)
{
    c->listen = listen_at;
}

/* Makes sites in which s1 has this host as its address and listens on 127.0.0.1. */
static void open_sites(struct sites *s, struct node n[2], const char *host)
{
    struct neb_chain *chain, *named;
    sites_make(s, 2, NULL);
    assert_ok(neb__site_roster_load(s->path[0], &chain));
    snprintf(chain->now.members[1].address[0], NEB_ADDRESS_SIZE, "%s:%u", host, s->port[1]);
    assert_ok(neb__chain_create(&chain->operator_key, NULL, 0, &chain->now, &named));
    for (int i = 0; i < 2; i++) assert_ok(neb__site_roster_save(s->path[i], named));
    neb__chain_free(chain);
    neb__chain_free(named);
    snprintf(listen_at, sizeof listen_at, "127.0.0.1:%u", s->port[1]);
    asked = up = 0;
    node_open(&n[1], s->path[1], &events, NULL, listen_here);
    node_open(&n[0], s->path[0], &events, NULL, NULL);
}

static void close_sites(struct sites *s, struct node n[2])
{
    node_close(&n[0]);
    node_close(&n[1]);
    sites_free(s);
}

/* The wait doubles: attempts come after 0.1 s, 0.2 s, 0.4 s… and not ten times a second. */
static void test_ever_later(void **state)
{
    (void)state;
    static const char hosts[2][16] = {"nobody.test", "nowhere.test"};
    for (int i = 0; i < 2; i++) {
        struct sites s;
        struct node n[2];
        open_sites(&s, n, hosts[i]);
        int64_t start = neb__now_ns();
        while (neb__seconds_since(start) < 3 || (asked < 2 && neb__seconds_since(start) < 120)) sleep_ms(10);
        assert_in_range(asked, 2, 10 + (int)neb__seconds_since(start));
        assert_int_equal(up, 0);
        close_sites(&s, n);
    }
}

/* A name has several addresses: the first cannot be used here, and nobody listens on the second. */
static void test_each_in_turn(void **state)
{
    (void)state;
    struct sites s;
    struct node n[2];
    open_sites(&s, n, "several.test");
    for (int64_t start = neb__now_ns(); up < 2 && neb__seconds_since(start) < 120;) sleep_ms(10);
    assert_int_equal(up, 2);
    close_sites(&s, n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ever_later),
                                       cmocka_unit_test(test_each_in_turn)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
