/* relaying.c: the members that this site reaches, directly or through others.
 *
 * The routes (round/routes.c) know the links of all members, as these sign them. Here their decisions meet the real links:
 * link states go to neighbours, relayed messages are passed on, and what is meant for this site is handled as if it had
 * come from its author directly. The core hears that a member is in reach, and whether it is far: frames get to a far
 * member, updates and cells do not. Those go from neighbour to neighbour. A new update is given on as soon as it is
 * stored, along the tree of shortest paths from its author; whoever misses one asks a neighbour that has it. */
#include "run/relaying.h"
#include "base/clock.h"
#include "base/log.h"
#include "run/job_facts.h"
#include "run/site_status.h"

#include <string.h>

static const int64_t say_after_ms = 10000;

static int64_t now_ms(void)
{
    return neb__now_ns() / 1000000;
}

neb_status neb__relaying_open(neb_session *s)
{
    struct neb_routes_config c = {
        .self = s->self, .life = s->site->incarnation, .genesis = s->genesis, .seal = neb__session_seal(s)};
    return neb__routes_create(&c, &s->routes);
}

void neb__relaying_close(neb_session *s)
{
    neb__routes_destroy(s->routes);
    s->routes = NULL;
}

/* ---- sending ------------------------------------------------------------------------------------------- */

/* A message that is dropped here is one that the protocol repeats. */
void neb__session_reach(neb_session *s, uint16_t peer, uint32_t kind, const void *bytes, size_t n)
{
    struct neb_buf b;
    unsigned next;
    if (!s->routes || neb__routes_reach(s->routes, peer) != NEB_REACH_FAR) {
        neb__session_send(s, peer, NEB_CONTROL, kind, bytes, n);
        return;
    }
    neb__buf_init(&b, NEB_RELAY_MAX);
    neb_status status = neb__routes_wrap(s->routes, now_ms(), peer, kind, bytes, n, &b, &next);
    if (status == NEB_OK) neb__session_send(s, (uint16_t)next, NEB_CONTROL, NEB_MSG_RELAYED, b.data, b.len);
    if (status != NEB_OK) neb__debug("a message to site %u was not relayed: %s", peer, neb_last_error());
    neb__buf_free(&b);
}

void neb__relaying_pass_on(neb_session *s, uint16_t from, uint16_t author, const struct neb_hash *hash,
                           const uint8_t *bytes, size_t n)
{
    struct neb_round_status st;
    if (!s->routes || !s->core) return;
    neb__round_status(s->core, &st);
    uint64_t to =
        neb__routes_children(s->routes, author, st.roster.members) & ~neb__bit(from) & ~neb__bit(author);
    for (; to; to &= to - 1) {
        uint16_t peer = (uint16_t)__builtin_ctzll(to);
        if (neb__lines_has_room(&s->lines, peer, false) && !neb__lines_under_way(&s->lines, peer, hash))
            neb__session_send_update(s, peer, hash, false, bytes, n);
    }
}

/* ---- who is reached ------------------------------------------------------------------------------------ */

static void introduce(neb_session *s, uint16_t peer)
{
    neb__session_reach(s, peer, NEB_MSG_MODEL, s->model, sizeof s->model);
    neb__facts_peer_up(s, peer);
}

/* The site was not in reach before, or its line is new. */
static void met(neb_session *s, uint16_t peer)
{
    neb__agreement_peer_up(s, peer);
    introduce(s, peer);
    neb__session_tell_peer(s, peer);
}

/* Links come up one after the other, so only a site that stays far is worth a line in the log. */
static void say(neb_session *s, uint16_t site)
{
    const struct neb_route_peer *p = &s->routes->peer[site];
    uint16_t via = (uint16_t)neb__routes_via(s->routes, site);
    if (via == NEB_NO_SITE) s->said_far &= ~neb__bit(site);
    if (via == NEB_NO_SITE || (s->said_far & neb__bit(site)) || s->routes->now - p->told_at < say_after_ms)
        return;
    s->said_far |= neb__bit(site);
    introduce(s, site); /* once more: the first time its path may not have been there yet */
    char name[NEB_NAME_SIZE], middle[NEB_NAME_SIZE];
    neb__members_name(&s->members, site, name);
    neb__members_name(&s->members, via, middle);
    neb__info("there is no line to site '%s'; it is reached through site '%s'", name, middle);
}

static void changed(neb_session *s, uint16_t site, enum neb_reach was, enum neb_reach how)
{
    bool again = was == how; /* another process of the same site */
    neb__members_set_via(&s->members, site, (uint16_t)neb__routes_via(s->routes, site));
    if (again) neb__session_feed(s, &(struct neb_event){.type = NEB_EV_PEER_DOWN, .site = site});
    if (how == NEB_REACH_LINK || (how == NEB_REACH_FAR && was != NEB_REACH_LINK)) met(s, site);
    neb__session_feed(s,
                      &(struct neb_event){.type = how == NEB_REACH_NONE ? NEB_EV_PEER_DOWN : NEB_EV_PEER_UP,
                                          .site = site,
                                          .far = how == NEB_REACH_FAR});
}

/* The lives of a site belong to its key. Nothing that was signed with the old one can come again. */
static void heed_keys(neb_session *s)
{
    for (uint16_t i = 0; i < NEB_SITES_MAX; i++) {
        struct neb_public key;
        if (!neb__members_key(&s->members, i, &key)) continue;
        if ((s->routed & neb__bit(i)) && !neb__public_equal(&key, &s->routed_key[i]))
            neb__routes_forget(s->routes, i);
        s->routed |= neb__bit(i);
        s->routed_key[i] = key;
    }
}

/* Carries out what the routes say. */
static void follow(neb_session *s)
{
    struct neb_buf b;
    unsigned site;
    enum neb_reach was, how;
    heed_keys(s);
    neb__routes_members(s->routes, neb__members_present(&s->members));
    while (!s->halted && neb__routes_changed(s->routes, &site, &was, &how))
        changed(s, (uint16_t)site, was, how);
    neb__buf_init(&b, NEB_SITES_MAX * NEB_LINK_STATE_SIZE);
    while (neb__routes_tell(s->routes, &site, &b))
        neb__session_send(s, (uint16_t)site, NEB_CONTROL, NEB_MSG_LINK_STATES, b.data, b.len);
    neb__buf_free(&b);
    for (uint16_t i = 0; i < NEB_SITES_MAX; i++) { /* a path may lead through another member now */
        neb__members_set_via(&s->members, i, (uint16_t)neb__routes_via(s->routes, i));
        say(s, i);
    }
    if (!s->core) return;
    neb__round_set_between(s->core, neb__routes_between(s->routes));
    neb__round_set_observers(s->core, neb__members_observers(&s->members));
}

void neb__relaying_link(neb_session *s, uint16_t peer, bool up)
{
    if (!s->routes) { /* streams alone: nobody is reached through others */
        if (up) met(s, peer);
        return;
    }
    neb__routes_link(s->routes, now_ms(), peer, up);
    follow(s);
}

void neb__relaying_turn(neb_session *s)
{
    if (!s->routes) return;
    bool due = now_ms() >= neb__routes_wake(s->routes);
    if (!due && s->routes->members == neb__members_present(&s->members)) return; /* at most turns */
    neb__routes_tick(s->routes, now_ms());
    follow(s);
}

/* ---- receiving ----------------------------------------------------------------------------------------- */

/* What members say to each other over any distance. Updates, cells and questions about them stay between neighbours. */
static bool may_be_relayed(uint32_t kind)
{
    return kind == NEB_MSG_FRAME || kind == NEB_MSG_MODEL || kind == NEB_MSG_FACTS ||
           kind == NEB_MSG_REFUSAL || kind == NEB_MSG_STATUS || kind == NEB_MSG_NOTE ||
           kind == NEB_MSG_SUM_KEYS || kind == NEB_MSG_SUM_OFFER || kind == NEB_MSG_SUM_REVEAL;
}

static void relayed(neb_session *s, const struct neb_item *i)
{
    struct neb_relayed m;
    switch (neb__routes_take(s->routes, now_ms(), i->peer, i->bytes, i->size, &m)) {
    case NEB_RELAY_DELIVER:
        if (may_be_relayed(m.kind))
            neb__session_message(s, &(struct neb_item){.type = NEB_ITEM_MESSAGE,
                                                       .peer = m.author,
                                                       .kind = m.kind,
                                                       .bytes = (uint8_t *)m.bytes,
                                                       .size = m.n});
        break;
    case NEB_RELAY_FORWARD:
        neb__session_send(s, m.next, NEB_CONTROL, NEB_MSG_RELAYED, i->bytes, i->size);
        break;
    case NEB_RELAY_IGNORE: break;
    case NEB_RELAY_FORGED: neb__session_refused(s, i->peer, NEB_QUOTA_RELAYED, 1); break;
    case NEB_RELAY_LIMITED: neb__session_refused(s, m.author, NEB_QUOTA_RELAYED, 1); break;
    }
}

void neb__relaying_message(neb_session *s, const struct neb_item *i)
{
    if (!s->routes) return;
    if (i->kind == NEB_MSG_RELAYED) {
        relayed(s, i);
        return;
    }
    if (!neb__routes_hear(s->routes, now_ms(), i->peer, i->bytes, i->size))
        neb__session_refused(s, i->peer, NEB_QUOTA_RELAYED, 1);
    follow(s);
}
