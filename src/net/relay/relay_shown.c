/* relay_shown.c: rosters that guests show: who may, how they are checked, and which of them go.
 *
 * Anybody can make a roster that names this host, so each step is bounded:
 *
 *     asking     a network (/24, /64) may show NEB_SHOWS_PER_MINUTE rosters
 *     checking   a chain has thousands of signatures. A thread beside the loop checks them, one chain at a time, so that pairs go
 *                on meanwhile. The guest waits in NEB_GUEST_CHECKING; nothing is read from it.
 *     keeping    limits.rosters of them, an eighth of that of one network. When there is no room the one goes that nobody has used for
 *                longest, and never one whose members are connected. A run that went is shown again when a member comes. */
#include "net/relay/relay_host_internal.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>

/* One chain on its way through the thread. */
struct neb_roster_check {
    uv_work_t work;
    struct neb_relay_host *host;
    struct neb_guest *guest; /* NULL: it has gone */
    struct neb_buf bytes;
    struct neb_chain *chain;
    neb_status status;
    char text[128];
};

/* ---- room ---------------------------------------------------------------------------------------------- */

static bool names_this_host(const struct neb_relay_host *h, const struct neb_roster *r)
{
    for (uint32_t i = 0; i < r->count; i++)
        for (int a = 0; a < r->members[i].addresses; a++) {
            struct neb_relay_address relay;
            if (neb__address_relay(r->members[i].address[a], &relay) &&
                neb__public_equal(&relay.key, &h->public))
                return true;
        }
    return false;
}

static bool is_in_use(const struct neb_relay_host *h, const struct neb_relay_run *r)
{
    for (const struct neb_guest *g = h->guests; g; g = g->next)
        if (g->run == r) return true;
    return false;
}

/* Of those that guests showed; `network` 0: from anywhere. */
static struct neb_relay_run *longest_unused(struct neb_relay_host *h, uint64_t network)
{
    struct neb_relay_run *found = NULL;
    for (struct neb_relay_run *r = h->runs; r; r = r->next)
        if (r->shown && (!network || r->network == network) && (!found || r->used_at < found->used_at) &&
            !is_in_use(h, r))
            found = r;
    return found;
}

static neb_status make_room(struct neb_relay_host *h, uint64_t network)
{
    int64_t shown = 0, own = 0, most = h->limits.rosters, share = most / 8 > 0 ? most / 8 : 1;
    for (const struct neb_relay_run *r = h->runs; r; r = r->next) {
        shown += r->shown;
        own += r->shown && r->network == network;
    }
    if (own < share && shown < most) return NEB_OK;
    struct neb_relay_run *old = longest_unused(h, own >= share ? network : 0);
    if (!old)
        return neb__quiet(NEB_ERR_LIMIT,
                          "this relay host has taken %" PRId64 " rosters%s and takes no more; its operator "
                          "can give it this one as a file",
                          own >= share ? own : shown, own >= share ? " from this network" : "");
    neb__info("run %.8s… was not used for longest: its roster makes room for another", old->name);
    neb__relay_run_drop(h, old);
    return NEB_OK;
}

static neb_status may_take(struct neb_relay_host *h, const struct neb_chain *chain, const struct neb_guest *g)
{
    if (!neb__roster_by_key(&chain->now, &g->key))
        return neb__quiet(NEB_ERR_AUTH, "the key is not a member's in the roster that was shown");
    if (neb__relay_run_find(h, &chain->genesis_hash)) return NEB_OK;
    if (!h->limits.rosters)
        return neb__quiet(
            NEB_ERR_AUTH,
            "this relay host serves only rosters that its operator gave it (nebula-i relay --roster)");
    if (!names_this_host(h, &chain->now))
        return neb__quiet(NEB_ERR_AUTH,
                          "the roster does not name this relay host; no member's address has its key");
    return make_room(h, g->network);
}

/* Takes the chain over. */
static neb_status take(struct neb_relay_host *h, struct neb_chain *chain, const struct neb_guest *g)
{
    struct neb_relay_run *r = neb__relay_run_find(h, &chain->genesis_hash);
    uint64_t before = r ? r->chain->epoch : 0;
    bool is_new = !r;
    neb_status status = may_take(h, chain, g);
    if (status != NEB_OK) {
        neb__chain_free(chain);
        return status;
    }
    NEB_TRY(neb__relay_run_add(h, chain, &r));
    if (is_new) {
        r->shown = true;
        r->network = g->network;
        neb__info("serving run %.8s… (%u members), whose roster a member showed", r->name,
                  r->chain->now.count);
    }
    if (r->shown && (is_new || r->chain->epoch > before)) neb__relay_run_keep(h, r);
    return NEB_OK;
}

/* ---- checking ------------------------------------------------------------------------------------------ */

static void check(uv_work_t *work)
{
    struct neb_roster_check *c = work->data;
    c->status = neb__chain_decode(c->bytes.data, c->bytes.len, &c->chain);
    if (c->status != NEB_OK) snprintf(c->text, sizeof c->text, "%.100s", neb_last_error());
    OPENSSL_thread_stop(); /* libuv's threads end with the process, and would keep what OpenSSL holds for them */
}

static void next_check(struct neb_relay_host *h);

static void checked(uv_work_t *work, int canceled)
{
    struct neb_roster_check *c = work->data;
    struct neb_relay_host *h = c->host;
    struct neb_guest *g = c->guest;
    (void)canceled; /* nobody does */
    h->check = NULL;
    if (!g) {
        neb__chain_free(c->chain);
    } else {
        g->check = NULL;
        if (c->status != NEB_OK)
            neb__guest_refuse(g, NEB_RELAY_REFUSE_RUN, "the roster that was shown is not valid: %s", c->text);
        else if (take(h, c->chain, g) != NEB_OK)
            neb__guest_refuse(g, NEB_RELAY_REFUSE_RUN, "%s", neb_last_error());
        else
            neb__guest_serve(g);
    }
    neb__buf_free(&c->bytes);
    neb__free(c);
    next_check(h);
}

/* False: another guest has shown the same meanwhile, or the check cannot begin; either way this guest has its answer. */
static bool begin(struct neb_guest *g)
{
    struct neb_relay_host *h = g->host;
    const struct neb_relay_run *r = neb__relay_run_find(h, &g->ask.run);
    if (r && r->chain->epoch >= g->ask.epoch) {
        neb__guest_serve(g);
        return false;
    }
    struct neb_roster_check *c = NEB_NEW(struct neb_roster_check);
    if (!c) {
        neb__guest_close(g);
        return false;
    }
    *c = (struct neb_roster_check){.work = {.data = c}, .host = h, .guest = g, .bytes = g->shown};
    neb__buf_init(&g->shown, NEB_GUEST_SHOW_MAX);
    if (uv_queue_work(&h->loop, &c->work, check, checked)) {
        neb__buf_free(&c->bytes);
        neb__free(c);
        neb__guest_close(g);
        return false;
    }
    h->check = g->check = c;
    return true;
}

/* The guest that has waited for longest. */
static struct neb_guest *who_waits(const struct neb_relay_host *h)
{
    struct neb_guest *found = NULL;
    for (struct neb_guest *g = h->guests; g; g = g->next)
        if (g->state == NEB_GUEST_CHECKING && !g->check && (!found || g->since < found->since)) found = g;
    return found;
}

static void next_check(struct neb_relay_host *h)
{
    struct neb_guest *g = NULL;
    while (!h->check && !atomic_load(&h->stopping) && (g = who_waits(h)) && !begin(g)) {}
}

void neb__shown_check(struct neb_guest *g)
{
    neb__guest_enter(g, NEB_GUEST_CHECKING);
    neb__guest_watch(g, 0);
    next_check(g->host);
}

void neb__shown_gone(struct neb_guest *g)
{
    if (g->check) g->check->guest = NULL;
    g->check = NULL;
}

bool neb__shown_may(struct neb_guest *g)
{
    struct neb_relay_host *h = g->host;
    bool tell;
    if (neb__relay_within_rate(h->shows, g->network, NEB_SHOWS_PER_MINUTE, &tell)) return true;
    if (tell) neb__warn("%s shows too many rosters: further ones are refused", g->remote);
    neb__guest_refuse(g, NEB_RELAY_REFUSE_QUOTA,
                      "too many rosters were shown from this network; wait a minute and try again");
    return false;
}
