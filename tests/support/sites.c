#include "check.h"
#include "sites.h"
#include "base/mem.h"
#include "run/influence.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

void sleep_ms(int ms)
{
    struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

/* Below the ports that the system gives to outgoing connections: one of those could take it before it is listened on. Every
 * process begins elsewhere, so that tests side by side do not meet. */
uint16_t free_port(void)
{
    static uint16_t last;
    for (int i = 0; i < 1000; i++) {
        last = last ? (uint16_t)(last + 1) : (uint16_t)(10000 + (unsigned)getpid() * 37 % 20000);
        if (last >= 30000) last = 10000;
        struct sockaddr_in a = {
            .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(last)};
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        bool ok = fd >= 0 && !bind(fd, (struct sockaddr *)&a, sizeof a);
        if (fd >= 0) close(fd);
        if (ok) return last;
    }
    fail_msg("no free port");
    return 0;
}

void sites_make(struct sites *s, int count, const char *host)
{
    struct neb_member members[SITES_MAX];
    char identity[NEB_IDENTITY_SIZE], name[NEB_NAME_SIZE], ops[256];
    struct neb_public operator_key;
    struct neb_chain *chain;
    memset(s, 0, sizeof *s);
    memset(members, 0, sizeof members);
    check_make_dir(s->dir, sizeof s->dir);
    s->count = count;
    for (int i = 0; i < count; i++) {
        struct neb_member *m = &members[i];
        snprintf(s->path[i], sizeof s->path[i], "%s/s%d", s->dir, i);
        snprintf(name, sizeof name, "s%d", i);
        assert_ok(neb__site_init(s->path[i], name, identity));
        assert_ok(neb__site_identity(s->path[i], m->name, &m->key));
        s->port[i] = free_port();
        m->votes = 1;
        m->addresses = 1;
        snprintf(m->address[0], NEB_ADDRESS_SIZE, "%s:%u", host ? host : "127.0.0.1", s->port[i]);
    }
    snprintf(ops, sizeof ops, "%s/ops", s->dir);
    assert_ok(neb__site_init(ops, "ops", identity));
    assert_ok(neb__site_identity(ops, name, &operator_key));
    assert_ok(
        neb__chain_create(&operator_key, NULL, 0, &(struct neb_roster){members, (uint32_t)count}, &chain));
    for (int i = 0; i < count; i++) assert_ok(neb__site_roster_save(s->path[i], chain));
    neb__chain_free(chain);
}

void sites_move(struct sites *s, const char *const *hosts)
{
    struct neb_chain *chain, *moved;
    assert_ok(neb__site_roster_load(s->path[0], &chain));
    for (int i = 0; i < s->count; i++)
        snprintf(chain->now.members[i].address[0], NEB_ADDRESS_SIZE, "%s:7400", hosts[i]);
    assert_ok(neb__chain_create(&chain->operator_key, NULL, 0, &chain->now, &moved));
    for (int i = 0; i < s->count; i++) assert_ok(neb__site_roster_save(s->path[i], moved));
    neb__chain_free(chain);
    neb__chain_free(moved);
}

void sites_address(struct sites *s, const char *const (*address)[2])
{
    struct neb_chain *chain, *made;
    assert_ok(neb__site_roster_load(s->path[0], &chain));
    for (int i = 0; i < s->count; i++) {
        struct neb_member *m = &chain->now.members[i];
        m->addresses = 0;
        for (int k = 0; k < 2; k++)
            if (address[i][k] && *address[i][k])
                snprintf(m->address[m->addresses++], NEB_ADDRESS_SIZE, "%s", address[i][k]);
    }
    assert_ok(neb__chain_create(&chain->operator_key, NULL, 0, &chain->now, &made));
    for (int i = 0; i < s->count; i++) assert_ok(neb__site_roster_save(s->path[i], made));
    neb__chain_free(chain);
    neb__chain_free(made);
}

void sites_hide(struct sites *s, int hidden)
{
    struct neb_chain *chain, *made;
    assert_ok(neb__site_roster_load(s->path[0], &chain));
    for (int i = 0; i < hidden; i++) chain->now.members[i].addresses = 0;
    assert_ok(neb__chain_create(&chain->operator_key, NULL, 0, &chain->now, &made));
    for (int i = 0; i < s->count; i++) assert_ok(neb__site_roster_save(s->path[i], made));
    neb__chain_free(chain);
    neb__chain_free(made);
}

void sites_rule(struct sites *s, const char *rule)
{
    struct neb_chain *chain, *ruled;
    struct neb_fact fact;
    assert_ok(neb__site_roster_load(s->path[0], &chain));
    assert_ok(neb__influence_fact(rule, chain->now.count, &fact));
    assert_ok(neb__chain_create(&chain->operator_key, &fact, 1, &chain->now, &ruled));
    for (int i = 0; i < s->count; i++) assert_ok(neb__site_roster_save(s->path[i], ruled));
    neb__chain_free(chain);
    neb__chain_free(ruled);
}

void sites_free(struct sites *s)
{
    check_remove_dir(s->dir);
}

void sites_sign(const struct sites *s, const struct neb_chain *chain, const struct neb_roster *r,
                struct neb_buf *out)
{
    struct neb_hash head = {{0}};
    struct neb_key *key;
    char ops[256];
    snprintf(ops, sizeof ops, "%s/ops", s->dir);
    assert_ok(neb__site_key(ops, &key));
    neb__buf_init(out, 1 << 20);
    const struct neb_key *signers[] = {key};
    assert_ok(neb__chain_propose(chain, NEB_EPOCH_EVICT, 0, &head, r, signers, 1, out));
    neb__key_free(key);
}

void sites_epoch(struct sites *s, int from, const char *drop, const char *add, struct neb_buf *out)
{
    struct neb_member members[SITES_MAX + 1];
    struct neb_roster r = {members, 0};
    struct neb_chain *chain;
    assert_ok(neb__site_roster_load(s->path[from], &chain));
    for (uint32_t i = 0; i < chain->now.count; i++)
        if (!drop || strcmp(chain->now.members[i].name, drop)) members[r.count++] = chain->now.members[i];
    if (add) {
        memset(&members[r.count], 0, sizeof *members);
        assert_ok(neb__site_identity(add, members[r.count].name, &members[r.count].key));
        r.count++;
    }
    sites_sign(s, chain, &r, out);
    neb__chain_free(chain);
}

void node_open(struct node *n, const char *dir, const struct neb_net_events *events, void *arg,
               void (*tune)(struct neb_net_config *c))
{
    struct neb_net_config cfg = NEB_NET_CONFIG;
    assert_ok(neb__site_open(dir, &n->site));
    cfg.site = n->site;
    cfg.events = events;
    cfg.arg = arg;
    if (tune) tune(&cfg);
    assert_ok(neb__net_open(&cfg, &n->net));
    assert_ok(neb__net_start(n->net));
}

void node_close(struct node *n)
{
    neb__net_close(n->net);
    neb__site_close(n->site);
    n->net = NULL;
    n->site = NULL;
}

struct call {
    void (*fn)(void *arg);
    void *arg;
    pthread_mutex_t lock;
    pthread_cond_t done;
    bool is_done;
};

static void run_call(void *arg)
{
    struct call *c = arg;
    c->fn(c->arg);
    pthread_mutex_lock(&c->lock);
    c->is_done = true;
    pthread_cond_signal(&c->done);
    pthread_mutex_unlock(&c->lock);
}

void node_call(struct node *n, void (*fn)(void *arg), void *arg)
{
    struct call c = {fn, arg, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false};
    assert_ok(neb__net_post(n->net, run_call, &c));
    pthread_mutex_lock(&c.lock);
    while (!c.is_done) pthread_cond_wait(&c.done, &c.lock);
    pthread_mutex_unlock(&c.lock);
}
