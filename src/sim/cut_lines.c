/* cut_lines.c: lines that are cut for good, and the members that pass messages on over the others.
 *
 * The lines that are left always connect all sites, over some path. A machine sees its own links come and go, some time
 * after the line did: a link is a connection, so a line that is cut one way carries none. The production code of the
 * routes (round/routes.c, round/relay.c) runs on every machine. A frame to a site without a link becomes a relayed
 * message and travels hop by hop, over lines that lose and repeat messages like any other.
 *
 * During the faults the cuts move, members make up and repeat relayed messages, and one member may pass nothing on, as
 * long as there is a way around it. Afterwards a line that is not needed may still come and go. */
#include "sim/world.h"
#include "base/bytes.h"

#include <string.h>

enum { KIND_FRAME = 1, KIND_FORGED = 0xf0, REFRESH_MS = 1000, DETOUR_MS = 1500, NOTICE_MS = 800 };

/* ---- the graph of lines -------------------------------------------------------------------------------- */

/* A site whose process left at the end counts: the others must not need it any more. */
static bool exists(const struct neb_sim_world *w, int i)
{
    return w->node[i].exists && (!w->node[i].stopped || w->node[i].departs);
}

/* Only members can be relied on to be on a path: by the log, and by an operator's order that is on its way into it, because a
 * site that the order removes stops when it hears of it. */
static bool stands(const struct neb_sim_world *w, int i)
{
    uint64_t members = w->roster.members;
    if (w->forced && w->roster.epoch < w->force.epoch) members &= w->force.roster.members;
    return exists(w, i) && (members & neb__bit((unsigned)i));
}

static bool line(const struct neb_sim_world *w, int a, int b)
{
    bool flaps = w->flap[0] != w->flap[1] &&
                 ((a == w->flap[0] && b == w->flap[1]) || (a == w->flap[1] && b == w->flap[0]));
    return !w->never[a][b] && !w->never[b][a] && !flaps;
}

/* The sites that `first` reaches without passing through `without` (-1: none). */
static uint64_t reached(const struct neb_sim_world *w, int first, int without)
{
    uint64_t seen = neb__bit((unsigned)first), todo = seen;
    while (todo) {
        int a = __builtin_ctzll(todo);
        todo &= todo - 1;
        for (int b = 0; b < w->sites; b++) {
            uint64_t bit = neb__bit((unsigned)b);
            if (b == a || b == without || (seen & bit) || !stands(w, b) || !line(w, a, b)) continue;
            seen |= bit, todo |= bit;
        }
    }
    return seen;
}

static uint64_t standing(const struct neb_sim_world *w, int without)
{
    uint64_t all = 0;
    for (int i = 0; i < w->sites; i++)
        if (stands(w, i) && i != without) all |= neb__bit((unsigned)i);
    return all;
}

/* A site that is not a member, not yet or not any more, has a line to one. */
static bool meets_a_member(const struct neb_sim_world *w, int a)
{
    uint64_t members = standing(w, -1);
    for (int b = 0; b < w->sites; b++)
        if (b != a && (members & neb__bit((unsigned)b)) && line(w, a, b)) return true;
    return !members || stands(w, a) || !exists(w, a);
}

static bool connected(const struct neb_sim_world *w, int without)
{
    uint64_t all = standing(w, without);
    for (int i = 0; i < w->sites; i++)
        if (!meets_a_member(w, i)) return false;
    return !all || reached(w, __builtin_ctzll(all), without) == all;
}

static int one_of(struct neb_sim_world *w, uint64_t sites)
{
    for (uint64_t k = draw(w, (uint64_t)__builtin_popcountll(sites)); k; k--) sites &= sites - 1;
    return __builtin_ctzll(sites);
}

static void mend(struct neb_sim_world *w, int a, int b)
{
    w->never[a][b] = w->never[b][a] = w->cut[a][b] = w->cut[b][a] = false;
    w->flap[0] = w->flap[1] = 0;
    w->lines_changed = true;
}

/* Somebody gives the sites a new line where the last one went. */
static void keep_connected(struct neb_sim_world *w)
{
    uint64_t all = standing(w, -1), part;
    while (all && (part = reached(w, __builtin_ctzll(all), -1)) != all)
        mend(w, one_of(w, part), one_of(w, all & ~part));
    for (int i = 0; i < w->sites; i++)
        if (!meets_a_member(w, i)) mend(w, i, one_of(w, all));
    for (int i = 0; i < w->sites; i++)
        if (w->node[i].drops && !connected(w, i)) w->node[i].drops = false;
}

static void cut_for_good(struct neb_sim_world *w, int a, int b)
{
    bool one_way = !draw(w, 4);
    w->never[a][b] = w->cut[a][b] = true;
    if (!one_way) w->never[b][a] = w->cut[b][a] = true;
    if (!connected(w, -1)) w->never[a][b] = w->never[b][a] = w->cut[a][b] = w->cut[b][a] = false;
    w->lines_changed = true;
}

void neb__cuts_plan(struct neb_sim_world *w)
{
    static const uint64_t share[] = {200, 500, 1000};
    if (!w->cfg.token_target && draw(w, 2)) w->cfg.token_target = 100 + draw(w, 1500); /* more runs end */
    uint64_t permille = share[draw(w, 3)];
    int order[SITES];
    for (int i = 0; i < w->sites; i++) order[i] = i;
    for (int i = w->sites - 1; i > 0; i--) { /* otherwise the same sites would always be in the middle */
        int k = (int)draw(w, (uint64_t)i + 1), t = order[i];
        order[i] = order[k], order[k] = t;
    }
    for (int a = 0; a < w->sites; a++)
        for (int b = 0; b < a; b++)
            if (draw(w, 1000) < permille) cut_for_good(w, order[a], order[b]);
}

void neb__cuts_join(struct neb_sim_world *w, int node)
{
    for (int i = 0; i < w->sites; i++)
        if (i != node && draw(w, 2)) cut_for_good(w, i, node);
}

void neb__cuts_only(struct neb_sim_world *w)
{
    memcpy(w->cut, w->never, sizeof w->cut);
    w->lines_changed = true;
}

/* ---- a machine's links --------------------------------------------------------------------------------- */

static bool carries(const struct neb_sim_world *w, int a, int b)
{
    return w->node[a].alive && w->node[b].alive && !w->cut[a][b] && !w->cut[b][a];
}

static bool as_it_is(const struct neb_sim_world *w, const struct neb_sim_node *n, int b)
{
    bool up = n->linked & neb__bit((unsigned)b);
    return up == carries(w, n->id, b) && (!up || n->linked_life[b] == w->node[b].life);
}

void neb__cuts_look(struct neb_sim_world *w)
{
    w->lines_changed = false;
    if (!w->opt.lasting_cuts) return;
    for (int a = 0; a < w->sites; a++)
        for (int b = 0; b < w->sites; b++) {
            struct neb_sim_node *n = &w->node[a];
            if (a == b || !n->alive || n->looks[b] || as_it_is(w, n, b)) continue;
            struct neb_sim_event *e = neb__sim_later(w, 1 + (int64_t)draw(w, NOTICE_MS), EV_LINE, a);
            if (!e) return;
            e->index = (uint64_t)b;
            n->looks[b] = true;
        }
}

static uint64_t everybody(const struct neb_sim_world *w)
{
    return ((uint64_t)1 << w->sites) - 1;
}

/* I11: a newer link state stays, and both ends of every link on a path say that it is there. */
static void check_routes(struct neb_sim_world *w, struct neb_sim_node *n)
{
    for (int i = 0; i < w->sites; i++) {
        const struct neb_route_state *s = &n->routes->state[i];
        if (s->life < n->state_life[i] || (s->life == n->state_life[i] && s->seq < n->state_seq[i]))
            neb__oracle_violated(w, "I11: site %d takes an older link state of site %d", n->id, i);
        n->state_life[i] = s->life, n->state_seq[i] = s->seq;
        const struct neb_route_peer *p = &n->routes->peer[i];
        for (int k = 0; k + 1 < p->hops; k++)
            if (!(n->routes->state[p->path[k]].links & neb__bit(p->path[k + 1])) ||
                !(n->routes->state[p->path[k + 1]].links & neb__bit(p->path[k])))
                neb__oracle_violated(w, "I11: site %d takes a path over a link that one of its ends denies",
                                     n->id);
    }
}

/* Carries out what the routes say. */
static void pump(struct neb_sim_world *w, struct neb_sim_node *n)
{
    struct neb_buf b;
    unsigned site;
    enum neb_reach was, how;
    uint64_t life = n->life;
    neb__routes_members(n->routes, everybody(w));
    while (n->alive && n->life == life && neb__routes_changed(n->routes, &site, &was, &how)) {
        TRACE(w, "site %d reaches site %u: %d via %d", n->id, site, (int)how,
              (int)neb__routes_via(n->routes, site));
        if (was == how) neb__node_reach(w, n, site, NEB_REACH_NONE);
        if (n->alive && n->life == life) neb__node_reach(w, n, site, how);
    }
    if (!n->alive || n->life != life) return;
    neb__buf_init(&b, NEB_SITES_MAX * NEB_LINK_STATE_SIZE);
    while (neb__routes_tell(n->routes, &site, &b))
        neb__sim_send(w, n->id, (int)site, EV_STATES, &(struct neb_sim_event){0}, b.data, b.len);
    neb__buf_free(&b);
    check_routes(w, n);
    neb__round_set_between(n->core, neb__routes_between(n->routes));
    int64_t wake = neb__routes_wake(n->routes);
    if (n->routes_at > w->now && wake >= n->routes_at) return;
    struct neb_sim_event *e = neb__sim_later(w, wake > w->now ? wake - w->now : 1, EV_ROUTES, n->id);
    if (e) n->routes_at = e->at;
}

/* A machine has noticed that a line, or the machine at its other end, is not what it was. */
static void notice(struct neb_sim_world *w, struct neb_sim_node *n, int b)
{
    uint64_t bit = neb__bit((unsigned)b), life = n->life;
    n->looks[b] = false;
    if (as_it_is(w, n, b)) return;
    if (n->linked & bit) {
        n->linked &= ~bit;
        w->bulk[n->id][b] = 0;
        neb__routes_link(n->routes, w->now, (unsigned)b, false);
        pump(w, n);
    }
    if (!n->alive || n->life != life || !carries(w, n->id, b)) return;
    n->linked |= bit;
    n->linked_life[b] = w->node[b].life;
    neb__routes_link(n->routes, w->now, (unsigned)b, true);
    pump(w, n);
}

void neb__cuts_start(struct neb_sim_world *w, struct neb_sim_node *n)
{
    struct neb_routes_config c = {.self = (uint16_t)n->id,
                                  .life = n->life,
                                  .genesis = w->cfg.genesis,
                                  .seal = neb__sim_seal(n),
                                  .refresh_ms = REFRESH_MS,
                                  .detour_ms = DETOUR_MS};
    if (neb__routes_create(&c, &n->routes) != NEB_OK) w->failed = NEB_ERR_NOMEM;
    memset(n->looks, 0, sizeof n->looks);
    memset(n->state_life, 0, sizeof n->state_life);
    memset(n->state_seq, 0, sizeof n->state_seq);
    n->linked = 0;
    n->routes_at = 0;
    w->lines_changed = true;
    neb__sim_later(w, 1, EV_ROUTES, n->id);
}

void neb__cuts_stop(struct neb_sim_node *n)
{
    neb__routes_destroy(n->routes);
    n->routes = NULL;
    n->linked = 0;
}

/* ---- messages ------------------------------------------------------------------------------------------ */

void neb__cuts_send(struct neb_sim_world *w, struct neb_sim_node *n, unsigned to, const uint8_t *bytes,
                    size_t length)
{
    struct neb_buf b;
    unsigned next;
    if (n->linked & neb__bit(to)) {
        neb__sim_send(w, n->id, (int)to, EV_FRAME, &(struct neb_sim_event){0}, bytes, length);
        return;
    }
    neb__buf_init(&b, NEB_RELAY_MAX);
    if (neb__routes_wrap(n->routes, w->now, to, KIND_FRAME, bytes, length, &b, &next) == NEB_OK)
        neb__sim_send(w, n->id, (int)next, EV_RELAY, &(struct neb_sim_event){0}, b.data, b.len);
    neb__buf_free(&b);
}

void neb__cuts_pass_on(struct neb_sim_world *w, struct neb_sim_node *n, int from, unsigned author,
                       const struct neb_hash *hash)
{
    struct neb_round_status st;
    neb__round_status(n->core, &st);
    uint64_t to = neb__routes_children(n->routes, author, st.roster.members) & ~neb__bit((unsigned)from);
    for (; to; to &= to - 1) neb__node_push(w, n, (unsigned)__builtin_ctzll(to), hash);
}

static void relay(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_sim_event *ev)
{
    struct neb_relayed m;
    switch (neb__routes_take(n->routes, w->now, (unsigned)ev->from, ev->bytes, ev->length, &m)) {
    case NEB_RELAY_DELIVER:
        if (m.kind == KIND_FORGED)
            neb__oracle_violated(w, "I11: site %d takes what site %u never sent", n->id, m.author);
        if (ev->index)
            neb__oracle_violated(w, "I11: site %d takes a message of site %u a second time", n->id, m.author);
        neb__buf_clear(&w->tape);
        if (!w->healed && neb__buf_append(&w->tape, ev->bytes, ev->length) == NEB_OK) w->tape_to = n->id;
        neb__node_frame(w, n, m.author, m.bytes, m.n);
        break;
    case NEB_RELAY_FORWARD:
        if (n->drops) break;
        w->out->relayed++;
        neb__sim_send(w, n->id, m.next, EV_RELAY, &(struct neb_sim_event){.index = ev->index}, ev->bytes,
                      ev->length);
        break;
    default: break;
    }
}

void neb__cuts_event(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_sim_event *ev)
{
    switch (ev->kind) {
    case EV_STATES:
        (void)neb__routes_hear(n->routes, w->now, (unsigned)ev->from, ev->bytes, ev->length);
        break;
    case EV_RELAY: relay(w, n, ev); return;
    case EV_LINE: notice(w, n, (int)ev->index); return;
    default: neb__routes_tick(n->routes, w->now); break;
    }
    pump(w, n);
}

/* ---- faults -------------------------------------------------------------------------------------------- */

/* A member tells a neighbour something in the name of a third one. */
static void make_up(struct neb_sim_world *w, struct neb_sim_node *n)
{
    uint8_t b[NEB_RELAY_HEAD + 2 + 8 + NEB_SEAL_SIZE] = {1, 2};
    int to = (int)draw(w, (uint64_t)w->sites), as = (int)draw(w, (uint64_t)w->sites);
    struct neb_sim_node *victim = &w->node[to];
    if (as == n->id || as == to || to == n->id || !victim->alive) return;
    neb__put16(b + 2, (uint16_t)as);
    neb__put64(b + 4, w->node[as].life);
    neb__put64(b + 12, 1 + draw(w, 5000));
    neb__put64(b + 20, victim->life);
    neb__put32(b + 36, KIND_FORGED);
    b[NEB_RELAY_HEAD] = (uint8_t)n->id;
    b[NEB_RELAY_HEAD + 1] = (uint8_t)to;
    neb__sim_send(w, n->id, to, EV_RELAY, &(struct neb_sim_event){0}, b, sizeof b);
}

static void send_again(struct neb_sim_world *w, struct neb_sim_node *n)
{
    if (w->tape.len && n->id != w->tape_to)
        neb__sim_send(w, n->id, w->tape_to, EV_RELAY, &(struct neb_sim_event){.index = 1}, w->tape.data,
                      w->tape.len);
}

/* Other lines are cut for good from now on: paths change. */
static void move_cuts(struct neb_sim_world *w)
{
    int a = (int)draw(w, (uint64_t)w->sites), b = (int)draw(w, (uint64_t)w->sites);
    if (a == b) return;
    w->never[a][b] = w->never[b][a] = w->cut[a][b] = w->cut[b][a] = false;
    int c = (int)draw(w, (uint64_t)w->sites), d = (int)draw(w, (uint64_t)w->sites);
    if (c != d) cut_for_good(w, c, d);
    w->lines_changed = true;
}

static void start_dropping(struct neb_sim_world *w, struct neb_sim_node *n)
{
    for (int i = 0; i < w->sites; i++) w->node[i].drops = false;
    n->drops = draw(w, 4) && connected(w, n->id);
}

void neb__cuts_fault(struct neb_sim_world *w)
{
    keep_connected(w);
    struct neb_sim_node *n = &w->node[draw(w, (uint64_t)w->sites)];
    uint64_t kind = draw(w, 12);
    if (!n->alive || w->now < w->protect_until) return;
    if (kind < 2) make_up(w, n);
    if (kind == 2 || kind == 3) send_again(w, n);
    if (kind == 4) move_cuts(w);
    if (kind == 5) start_dropping(w, n);
}

void neb__cuts_heal(struct neb_sim_world *w)
{
    if (draw(w, 2)) move_cuts(w);
    keep_connected(w);
    neb__cuts_only(w);
}

void neb__cuts_watch(struct neb_sim_world *w)
{
    if (w->flap[0] != w->flap[1]) {
        w->flap[0] = w->flap[1] = 0;
        neb__cuts_only(w);
    } else if (!draw(w, 4) && w->sites > 2) {
        int a = (int)draw(w, (uint64_t)w->sites), b = (int)draw(w, (uint64_t)w->sites);
        w->flap[0] = a, w->flap[1] = b;
        if (a != b && !w->never[a][b] && connected(w, -1)) {
            w->cut[a][b] = w->cut[b][a] = true;
            w->lines_changed = true;
        } else
            w->flap[0] = w->flap[1] = 0;
    }
    keep_connected(w);
}
