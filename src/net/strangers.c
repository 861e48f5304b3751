/* strangers.c: connections that are not greeted yet, and which of them goes when there are too many.
 *
 * Everybody can connect, so waiting connections must be limited, and a flood of them must not keep members
 * out. A connection waits in one of three classes, each with its own slots, so that none takes the place of
 * another:
 *
 *     roster key       the TLS handshake has proved the key of a member: NEB_GREETINGS_PER_KEY slots a key
 *     roster network   it comes from the network of a member's address, or from where a member was linked
 *                      before: NEB_STRANGERS_RESERVED slots together
 *     other            NEB_STRANGERS_MAX slots together
 *
 * A network is a /24 (IPv4) or a /64 (IPv6): the least that one sender usually has whole. When a class is
 * full, one connection of its most crowded network goes. A random one goes: under a flood from very many
 * networks the oldest would always be the one that has almost finished its handshake. Established links never
 * compete with strangers. */
#include "net/link.h"
#include "base/bytes.h"

#include <netinet/in.h>
#include <string.h>

/* Source addresses are never multicast (ff00::/8), so networks of IPv4 can have those numbers. */
static const uint64_t ipv4 = (uint64_t)0xff << 56;

static uint64_t big_endian(const uint8_t *b, int n)
{
    uint64_t v = 0;
    for (int i = 0; i < n; i++) v = v << 8 | b[i];
    return v;
}

uint64_t neb__net_network(const struct sockaddr *sa)
{
    if (sa->sa_family == AF_INET)
        return ipv4 |
               big_endian((const uint8_t *)&((const struct sockaddr_in *)(const void *)sa)->sin_addr, 3);
    if (sa->sa_family != AF_INET6) return 0;
    const struct in6_addr *a = &((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(a)) return ipv4 | big_endian(a->s6_addr + 12, 3);
    return big_endian(a->s6_addr, 8);
}

void neb__strangers_learn(struct neb_peer *p, const struct neb_member *m)
{
    memset(p->home, 0, sizeof p->home);
    for (int i = 0; i < m->addresses; i++) {
        char host[NEB_ADDRESS_SIZE];
        uint16_t port;
        struct sockaddr_in in = {.sin_family = AF_INET};
        struct sockaddr_in6 in6 = {.sin6_family = AF_INET6};
        if (!neb__address_split(m->address[i], host, &port)) continue;
        if (!uv_inet_pton(AF_INET, host, &in.sin_addr))
            p->home[i] = neb__net_network((const struct sockaddr *)&in);
        else if (!uv_inet_pton(AF_INET6, host, &in6.sin6_addr))
            p->home[i] = neb__net_network((const struct sockaddr *)&in6);
    }
}

static bool is_home(const struct neb_net *net, uint64_t network)
{
    for (const struct neb_peer *p = net->peers; p; p = p->next) {
        if (p->linked_from == network) return true;
        for (int i = 0; i < NEB_ADDRESSES_MAX; i++)
            if (p->home[i] == network) return true;
    }
    return false;
}

static bool is_stranger(const struct neb_conn *c)
{
    return !c->dialled && c->state != NEB_CONN_READY && c->state != NEB_CONN_PARKED &&
           c->state != NEB_CONN_CLOSED;
}

/* Picks one connection of the class from its most crowded network, or with a key: of that key. */
static struct neb_conn *one_to_drop(struct neb_net *net, enum neb_stranger_class class,
                                    const struct neb_public *key, int *count)
{
    struct neb_conn *drop = NULL;
    int most = 0, equals = 0;
    *count = 0;
    for (struct neb_conn *c = net->conns; c; c = c->next) {
        struct neb_public own;
        if (!is_stranger(c) || c->class != class) continue;
        if (key) neb__tls_peer(c->tls, &own);
        if (key && !neb__public_equal(&own, key)) continue;
        int same = 0;
        ++*count;
        for (struct neb_conn *d = net->conns; !key && d; d = d->next)
            same += is_stranger(d) && d->class == class && d->network == c->network;
        if (same > most) most = same, equals = 0;
        if (same == most && neb__rng_below(&net->jitter, (uint64_t)++equals) == 0) drop = c;
    }
    return drop;
}

static void make_room(struct neb_net *net, enum neb_stranger_class class, const struct neb_public *key,
                      int max)
{
    int count;
    struct neb_conn *drop = one_to_drop(net, class, key, &count);
    if (count <= max) return;
    neb__net_stranger_log(net, "%d connections wait to be greeted: dropping one from %s", count,
                          drop->remote);
    net->dropped++;
    neb__conn_close(drop);
}

void neb__strangers_admit(struct neb_conn *c)
{
    bool home =
        c->stand || is_home(c->net, c->network); /* a relay host lets members in, and this site dialled it */
    c->class = home ? NEB_STRANGER_NEAR : NEB_STRANGER_OTHER;
    make_room(c->net, c->class, NULL, home ? NEB_STRANGERS_RESERVED : NEB_STRANGERS_MAX);
}

void neb__strangers_proved(struct neb_conn *c)
{
    struct neb_public key;
    neb__tls_peer(c->tls, &key);
    if (c->dialled || !neb__roster_by_key(&c->net->chain->now, &key)) return;
    c->class = NEB_STRANGER_MEMBER;
    make_room(c->net, c->class, &key, NEB_GREETINGS_PER_KEY);
}
