/* relay_rate.c: how often a network (a /24, a /64) may do what strangers may do, and a member or a run may call: buckets.
 *
 * A table has room for NEB_RATE_NETWORKS of them. The one that was unused for longest makes room for a new one; its bucket is
 * full again by then, unless more networks than that try within a minute. */
#include "net/relay/relay_host_internal.h"
#include "base/clamp.h"
#include "base/clock.h"

static struct neb_network_rate *rate_of(struct neb_network_rate *table, uint64_t network, double per_minute)
{
    struct neb_network_rate *oldest = table;
    for (int i = 0; i < NEB_RATE_NETWORKS; i++) {
        if (table[i].at && table[i].network == network) return &table[i];
        if (table[i].at < oldest->at) oldest = &table[i];
    }
    *oldest = (struct neb_network_rate){.network = network, .level = per_minute};
    return oldest;
}

bool neb__relay_within_rate(struct neb_network_rate *table, uint64_t network, double per_minute, bool *tell)
{
    struct neb_network_rate *r = rate_of(table, network, per_minute);
    int64_t now = neb__now_ns();
    *tell = false;
    if (r->at)
        r->level = neb__clamp(r->level + per_minute * (double)(now - r->at) * 1e-9 / 60, 0, per_minute);
    r->at = now;
    if (r->level >= per_minute / 2) r->told = false;
    if (r->level >= 1) {
        r->level -= 1;
        return true;
    }
    *tell = !r->told;
    r->told = true;
    return false;
}

bool neb__relay_within_burst(struct neb_relay_bucket *b, double burst, double per_second, int64_t now)
{
    b->level = b->at ? neb__clamp(b->level + per_second * (double)(now - b->at) * 1e-9, 0, burst) : burst;
    b->at = now;
    if (b->level < 1) return false;
    b->level -= 1;
    return true;
}
