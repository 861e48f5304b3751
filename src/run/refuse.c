/* refuse.c: a site that cannot take part says so to the others. They then neither wait for it nor begin
 * without it. It needs links alone, no ledger and no parameters. */
#include "base/clock.h"
#include "base/log.h"
#include "job/job.h"
#include "net/net.h"
#include "seal/site.h"
#include "run/job_facts.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

struct refusal {
    struct neb_net *net;
    char why[200];
    pthread_mutex_t lock;
    uint32_t told;
};

static void told(void *arg, neb_status status)
{
    struct refusal *r = arg;
    pthread_mutex_lock(&r->lock);
    r->told += status == NEB_OK;
    pthread_mutex_unlock(&r->lock);
}

static void peer_up(void *arg, uint16_t peer, uint64_t incarnation)
{
    struct refusal *r = arg;
    (void)incarnation;
    if (neb__net_send_copy(r->net, peer, NEB_CONTROL, NEB_MSG_REFUSAL, r->why, strlen(r->why), told, r) !=
        NEB_OK)
        neb__warn("site %u was not told why this site cannot start: %s", peer, neb_last_error());
}

static void peer_down(void *arg, uint16_t peer, neb_status why)
{
    (void)arg, (void)peer, (void)why;
}

static neb_status message(void *arg, struct neb_message *m)
{
    (void)arg, (void)m;
    return NEB_OK; /* this site leaves: messages of others are dropped */
}

static void wait_until_told(struct refusal *r, uint32_t peers, double wait_s)
{
    int64_t since = neb__now_ns();
    for (uint32_t n = 0; n < peers && neb__seconds_since(since) < wait_s;) {
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
        pthread_mutex_lock(&r->lock);
        n = r->told;
        pthread_mutex_unlock(&r->lock);
    }
}

void neb__session_refuse(const char *folder, const struct neb_job_site *own, const char *why, double wait_s)
{
    static const struct neb_net_events events = {
        .peer_up = peer_up, .peer_down = peer_down, .message = message};
    struct refusal r = {.lock = PTHREAD_MUTEX_INITIALIZER};
    struct neb_net_config cfg = NEB_NET_CONFIG;
    struct neb_site *site;
    snprintf(r.why, sizeof r.why, "%s", why);
    if (neb__site_open(folder, &site) != NEB_OK) return;
    cfg.site = site;
    cfg.listen = own->listen;
    cfg.proxy = own->proxy;
    cfg.dial = own->dial;
    cfg.environment = true;
    cfg.events = &events;
    cfg.arg = &r;
    if (neb__net_open(&cfg, &r.net) == NEB_OK) {
        neb__info("telling the other sites that this one cannot start");
        uint32_t peers = neb__net_roster(r.net)->now.count - 1;
        if (neb__net_start(r.net) == NEB_OK) wait_until_told(&r, peers, wait_s);
        neb__net_close(r.net);
    }
    neb__site_close(site);
}
