/* faults.c: the faults of one history, their times, and the healing at its end.
 *
 * A history draws a temper (which kinds of faults, and how often), then one fault every few hundred
 * milliseconds. Faults that destroy memory stay within the protocol's promise: they hit one site at a time,
 * and not before everybody has what that site held. */
#include "sim/world.h"

#include <string.h>

enum fault {
    CRASH,
    CRASH_ACTION,
    CRASH_DISK,
    PARTITION,
    ONE_WAY,
    CUT_LINK,
    HEAL_LINKS,
    SLOW,
    LOSS,
    DAMAGE,
    WIPE,
    ROLLBACK,
    CLOCK,
    DISK_FULL,
    SYNC_FAILS,
    JOIN,
    EVICT,
    LEAVE,
    PREEMPT,
    IMAGE,
    DISASTER,
    ORDER,
    FORGE,
    FAULTS
};

void neb__faults_plan(struct neb_sim_world *w)
{
    w->delay_ms = 2 + (int)draw(w, 60);
    w->bytes_per_ms = 20 + (int)draw(w, 1200);
    w->loss_permille = draw(w, 3) ? 0 : (int)draw(w, 80);
    w->cell_ms = draw(w, 2) ? 0 : (int)draw(w, 1200);
    w->fault_end = w->opt.happy ? 1000 : 8000 + (int64_t)draw(w, 14000);
    w->end = w->fault_end +
             (w->liars ? 50000 : (w->opt.lasting_cuts ? 40000 : 25000)); /* detours take their time */
    w->quiet = w->opt.happy;
    if (w->opt.happy) w->loss_permille = 0;
    /* A site that is killed during its very first greeting looks like one that lost its disk. */
    int64_t first = w->opt.lasting_cuts ? 4000 : 1500;
    neb__sim_later(w, w->opt.happy ? w->fault_end : first, EV_FAULT, -1);
}

static struct neb_sim_node *pick(struct neb_sim_world *w)
{
    struct neb_sim_node *n = &w->node[draw(w, (uint64_t)w->sites)];
    return n->exists && n->alive && !n->stopped ? n : NULL;
}

static bool is_voter(const struct neb_sim_world *w, const struct neb_sim_node *n)
{
    return w->roster.voters & neb__bit((unsigned)n->id);
}

/* Every site runs, votes and has applied the whole log. */
static bool all_well(struct neb_sim_world *w, uint64_t slack)
{
    for (int i = 0; i < w->sites; i++) {
        struct neb_sim_node *n = &w->node[i];
        struct neb_round_status st;
        if (!n->exists || n->stopped || !(w->roster.members & neb__bit((unsigned)i))) continue;
        if (!n->alive) return false;
        neb__round_status(n->core, &st);
        if (!st.may_vote || st.applied + slack < w->records || !st.whole || !st.caught_up) return false;
    }
    return true;
}

/* … and nothing is under way: the others have everything that one disk could lose now. */
static bool all_settled(struct neb_sim_world *w)
{
    for (int i = 0; i < w->sites; i++) {
        struct neb_round_status st;
        if (!w->node[i].alive) continue;
        neb__round_status(w->node[i].core, &st);
        if ((w->roster.members & neb__bit((unsigned)i)) && st.head != st.applied) return false;
    }
    return all_well(w, 0);
}

/* Every site that takes part has been told of the end, once there is one. */
static bool all_ended(const struct neb_sim_world *w)
{
    for (int i = 0; w->final_seen && i < w->sites; i++)
        if (w->node[i].alive && (w->roster.members & neb__bit((unsigned)i)) && !w->node[i].ended)
            return false;
    return true;
}

/* Another voter is there that can tell a site what it forgot. */
static bool others_vote(const struct neb_sim_world *w, const struct neb_sim_node *n)
{
    for (int i = 0; i < w->sites; i++)
        if (i != n->id && !w->node[i].stopped && (w->roster.voters & neb__bit((unsigned)i))) return true;
    return false;
}

/* The site may go on alone, or may have been made to by an order that is on its way into the log. Then nobody else has what it
 * committed alone, and nobody can tell it what it forgot. */
static bool may_survive(const struct neb_sim_world *w, const struct neb_sim_node *n)
{
    for (int i = 0; i < w->rosters; i++)
        if (w->known[i].heavy == n->id) return true;
    for (int i = 0; i < w->orders; i++) {
        const struct neb_order *o = &w->issued[i].order;
        if (o->op == NEB_OP_SURVIVOR && o->site == n->id) return true;
    }
    uint64_t stay = w->roster.voters; /* two removals that are under way may leave one voter, too */
    for (int i = 0; i < w->sites; i++)
        if (w->node[i].going) stay &= ~neb__bit((unsigned)i);
    return !(stay & ~neb__bit((unsigned)n->id));
}

static void damage(struct neb_sim_world *w, struct neb_sim_node *n)
{
    if (w->hurt || !all_well(w, 0) || may_survive(w, n) || !others_vote(w, n)) return;
    static const char *const where[] = {"ledger", "mark", "p-", "cell-", "checkpoint", "residual", ""};
    uint64_t kind = draw(w, 7);
    neb__node_crash(w, n);
    w->out->damaged++;
    TRACE(w, "site %d's disk is damaged (%d)", n->id, (int)kind);
    (void)neb__simdisk_damage(&n->disk, where[kind]);
    w->hurt = true;
    w->protect_until = w->now + 6000;
}

/* Every voter has got through its first greeting. One that was killed in it looks to the others like one that lost its disk. */
static bool all_began(const struct neb_sim_world *w)
{
    for (int i = 0; i < w->sites; i++)
        if (is_voter(w, &w->node[i]) && !w->node[i].stopped && !w->node[i].began) return false;
    return true;
}

/* A folder is lost, at any time, and a fresh one takes its place, as at a first start. The others' disks must
 * be enough to recover, because they may crash, too. */
static void wipe(struct neb_sim_world *w, struct neb_sim_node *n)
{
    if (!all_began(w)) return;
    /* The others may hold a forced order in memory only; it would then have to be given again. */
    if (w->hurt || w->disaster || !others_vote(w, n) || may_survive(w, n)) return;
    /* A site that was removed never makes up for its loss. The next empty folder would find it there, and two of them know
     * nothing of the roster that removed it. */
    if (!(w->roster.members & neb__bit((unsigned)n->id))) return;
    neb__node_crash(w, n);
    w->out->damaged++;
    TRACE(w, "site %d's folder is lost", n->id);
    neb__simdisk_wipe(&n->disk);
    neb__node_format(w, n);
    w->hurt = true;
    for (int i = 0; i < w->sites; i++)
        if (!draw(w, 2) && w->node[i].alive) neb__node_crash(w, &w->node[i]);
}

/* An old copy of the disk comes back, but only while all the others are there to notice it. */
static void roll_back(struct neb_sim_world *w, struct neb_sim_node *n)
{
    if (w->hurt || !n->has_image || !all_well(w, 0) || may_survive(w, n)) return;
    if (!others_vote(w, n)) return;
    neb__node_crash(w, n);
    TRACE(w, "site %d's disk is rolled back", n->id);
    w->out->damaged++;
    if (neb__simdisk_copy(&n->image, &n->disk) != NEB_OK) w->failed = NEB_ERR_NOMEM;
    neb__cuts_only(w);
    for (int i = 0; i < w->sites; i++) w->node[i].actions_left = -1, w->node[i].disk.ops_left = -1;
    w->loss_permille = 0;
    w->protect_until = w->now + 8000;
    w->hurt = true;
    n->has_image = false;
}

static void partition(struct neb_sim_world *w)
{
    uint64_t side = draw(w, (uint64_t)1 << w->sites);
    for (int a = 0; a < w->sites; a++)
        for (int b = 0; b < w->sites; b++)
            if ((side >> a & 1) != (side >> b & 1)) w->cut[a][b] = true;
    w->lines_changed = true;
}

static void cut_line(struct neb_sim_world *w, bool both)
{
    uint64_t a = draw(w, (uint64_t)w->sites), b = draw(w, (uint64_t)w->sites);
    if (a == b) return;
    w->cut[a][b] = true;
    if (both) w->cut[b][a] = true;
    w->lines_changed = true;
    if (draw(w, 2)) { /* the driver noticed */
        if (w->node[a].alive) neb__node_peer(w, &w->node[a], (unsigned)b, false);
        if (both && w->node[b].alive) neb__node_peer(w, &w->node[b], (unsigned)a, false);
    }
}

static void mend_lines(struct neb_sim_world *w)
{
    neb__cuts_only(w);
    for (int a = 0; a < w->sites; a++)
        for (int b = 0; b < w->sites; b++)
            if (a != b && w->node[a].alive && w->node[b].exists)
                neb__node_peer(w, &w->node[a], (unsigned)b, true);
}

static void join(struct neb_sim_world *w)
{
    if (w->sites >= SITES - 1 || w->opt.sites > SITES - 4) return;
    struct neb_sim_node *via = pick(w), *n = &w->node[w->sites];
    if (!via) return;
    w->sites++;
    neb__node_create(w, n);
    if (w->opt.lasting_cuts) neb__cuts_join(w, n->id);
    TRACE(w, "site %d is admitted", n->id);
    neb__node_order(
        w, via,
        neb__sim_order(
            w, via,
            (struct neb_order){.op = NEB_OP_ADMIT, .site = (uint16_t)n->id, .flags = draw(w, 5) ? 1 : 0}));
    for (int i = 0; i < w->sites - 1; i++)
        if (w->node[i].alive) neb__node_peer(w, &w->node[i], (unsigned)n->id, true);
    neb__sim_later(w, 300, EV_START, n->id);
}

static void retire(struct neb_sim_world *w, struct neb_sim_node *n, uint32_t op)
{
    struct neb_sim_node *via = op == NEB_OP_LEAVE ? n : pick(w);
    if (!via || w->roster.heavy != NEB_NO_SITE || __builtin_popcountll(w->roster.trains) < 3) return;
    if (is_voter(w, n) && __builtin_popcountll(w->roster.voters) < 3) return;
    TRACE(w, "site %d is to go (%u)", n->id, op);
    n->going = true;
    if (op == NEB_OP_LEAVE) {
        n->leaving = true;
        neb__node_ask(w, n, op, 0);
    } else
        neb__node_order(
            w, via, neb__sim_order(w, via, (struct neb_order){.op = (uint8_t)op, .site = (uint16_t)n->id}));
}

/* Every remaining site has the present epoch on its disk. Only then may a removed site be switched off. */
static bool all_know(struct neb_sim_world *w)
{
    for (int i = 0; i < w->sites; i++) {
        struct neb_sim_node *n = &w->node[i];
        struct neb_round_status st;
        if (!(w->roster.voters & neb__bit((unsigned)i)) || n->stopped) continue;
        if (!n->alive) return false;
        neb__round_status(n->core, &st);
        if (st.roster.epoch < w->roster.epoch || st.durable_epoch < w->roster.epoch) return false;
    }
    return true;
}

/* A voter that is up to date and stays, so it can tell the others what they lack. */
static struct neb_sim_node *up_to_date(struct neb_sim_world *w)
{
    for (int i = 0; i < w->sites; i++) {
        struct neb_sim_node *n = &w->node[i];
        struct neb_round_status st;
        if (!n->alive || n->stopped || n->going || !is_voter(w, n)) continue;
        neb__round_status(n->core, &st);
        if (st.may_vote && st.applied == w->records && st.whole && st.caught_up) return n;
    }
    return NULL;
}

/* So many voters burn down that the rest cannot form a quorum. An operator goes on with the sites that are
 * left: one voter that has everything, and whose disk is not about to fail, and perhaps others that do not. */
static void disaster(struct neb_sim_world *w)
{
    struct neb_sim_node *one = up_to_date(w);
    struct neb_members left = w->roster;
    int voters = __builtin_popcountll(w->roster.voters);
    if (w->disaster || !one || one->sync_failed || voters < 2 || w->roster.heavy != NEB_NO_SITE ||
        w->now > w->fault_end - 3000)
        return;
    /* Together with `one` they stay below a quorum. */
    int others = (int)draw(w, (uint64_t)neb__members_quorum(&w->roster) - 1);
    for (int i = 0; i < w->sites; i++) {
        struct neb_sim_node *n = &w->node[i];
        uint64_t bit = neb__bit((unsigned)i);
        if (!(left.voters & bit) || n == one || (!n->stopped && others-- > 0)) continue;
        left.members &= ~bit, left.voters &= ~bit, left.trains &= ~bit;
        n->stopped = true;
        neb__node_crash(w, n);
    }
    if (!(left.trains & left.members)) left.trains |= left.voters;
    TRACE(w, "disaster: only %llx of the voters are left", (unsigned long long)left.voters);
    neb__cuts_only(w);
    for (int i = 0; i < w->sites; i++) {
        struct neb_sim_node *n = &w->node[i];
        n->actions_left = -1, n->disk.ops_left = -1, n->disk.fail_sync = false;
    }
    w->protect_until = w->now + 6000;
    w->disaster = w->now;
    w->force.roster = left;
}

/* A remaining voter whose log holds everything that was committed anywhere. It may still be waiting
 * for others before it takes part. */
static struct neb_sim_node *furthest(struct neb_sim_world *w)
{
    for (int i = 0; i < w->sites; i++) {
        struct neb_sim_node *n = &w->node[i];
        struct neb_round_status st;
        uint64_t bit = neb__bit((unsigned)i);
        if (!n->alive || n->stopped || !(w->force.roster.voters & w->roster.voters & bit)) continue;
        neb__round_status(n->core, &st);
        if (st.commit >= w->records) return n;
    }
    return NULL;
}

/* The operator looks at the remaining sites once they have come to rest, and names the highest
 * commit among them; once more, if one of them turns out to have committed more. The order is
 * repeated until it is in the log. */
static void insist(struct neb_sim_world *w)
{
    if (!w->disaster || w->now < w->disaster + 1500) return;
    bool open = !w->forced || w->roster.epoch < w->force.epoch;
    struct neb_sim_node *one = open ? furthest(w) : NULL;
    if (one && (!w->forced || w->force.index < w->records)) {
        struct neb_members left = w->force.roster;
        left.members &= w->roster.members, left.voters &= w->roster.voters; /* without sites that have left */
        left.trains &= w->roster.members;
        if (!(left.trains & left.members)) left.trains |= left.voters;
        left.epoch = (w->forced ? w->force.epoch : w->roster.epoch + 1) + 1; /* a change may be under way */
        const struct neb_order *o = neb__sim_order(
            w, one, (struct neb_order){.op = NEB_OP_FORCE, .epoch = left.epoch, .roster = left});
        if (o) w->force = *o, w->forced = true;
    }
    if (!w->forced || !open) return;
    for (int i = 0; i < w->sites; i++)
        if (w->node[i].alive && (w->force.roster.voters & neb__bit((unsigned)i)))
            neb__node_order(w, &w->node[i], &w->force);
}

/* Sites that the log has removed are switched off for good, after some time in which they must be fenced.
 * Sites in the roster of an operator's order that is on its way into the log stay on. */
static void sweep(struct neb_sim_world *w)
{
    uint64_t members = w->roster.members;
    if (w->disaster && (!w->forced || w->roster.epoch < w->force.epoch)) members |= w->force.roster.members;
    for (int i = 0; i < w->sites; i++) {
        struct neb_sim_node *n = &w->node[i];
        bool member = members & neb__bit((unsigned)i);
        n->was_member |= member;
        if (!n->exists || n->stopped || member || !n->was_member || draw(w, 4) || !all_know(w)) continue;
        n->stopped = true;
        neb__node_crash(w, n);
    }
}

/* Orders a budget, a norm bound, now and then the end, or the survivor of two sites. */
static void order(struct neb_sim_world *w, struct neb_sim_node *n)
{
    struct neb_order o = {.op = NEB_OP_BUDGET, .value = 1 + draw(w, 1000)};
    float bound = (float)(20 + draw(w, 400));
    uint32_t bits;
    memcpy(&bits, &bound, 4);
    uint64_t kind = draw(w, 16);
    if (kind >= 12) {
        neb__node_ask(w, n, NEB_OP_CLASS, draw(w, 2));
        return;
    }
    if (kind < 4) o = (struct neb_order){.op = NEB_OP_BOUND, .value = draw(w, 4) ? bits : 0};
    if (kind == 4 && !draw(w, 4)) o = (struct neb_order){.op = NEB_OP_END};
    if (kind == 5 && __builtin_popcountll(w->roster.voters) == 2 && !w->hurt)
        o = (struct neb_order){.op = NEB_OP_SURVIVOR,
                               .site = w->roster.heavy == NEB_NO_SITE
                                           ? (uint16_t)__builtin_ctzll(w->roster.voters)
                                           : NEB_NO_SITE};
    neb__node_order(w, n, neb__sim_order(w, n, o));
}

/* Sends everybody an update in another site's name. */
static void forge_update(struct neb_sim_world *w, struct neb_sim_node *n)
{
    uint8_t bytes[NEB_UPDATE_HEADER_SIZE + CELLS_MAX * 4 * WIDTH] = {0};
    uint32_t c1 = w->cfg.cells / w->cfg.fragments; /* the cells of the first fragment */
    struct neb_update_header h = {.site = (uint16_t)draw(w, (uint64_t)w->sites),
                                  .c1 = c1,
                                  .k = UINT64_MAX / 2 + draw(w, 1000),
                                  .b = neb__round_version(n->core, 0),
                                  .tau = 6,
                                  .weight = 1,
                                  .tokens = 6,
                                  .length = c1 * 4 * WIDTH};
    neb__update_header_put(&h, bytes);
    struct neb_sim_event what = {.from = 0};
    if (neb__hash(bytes, NEB_UPDATE_HEADER_SIZE + h.length, &what.hash) != NEB_OK) return;
    TRACE(w, "site %d sends an update as if it were site %u", n->id, h.site);
    for (int i = 0; i < w->sites; i++)
        if (i != n->id)
            neb__sim_send(w, n->id, i, EV_UPDATE, &what, bytes, NEB_UPDATE_HEADER_SIZE + h.length);
}

/* False orders: nobody gave them, or they were given at another time or for
 * another history. All must be ignored. */
static void forge(struct neb_sim_world *w, struct neb_sim_node *n)
{
    struct neb_round_status st;
    if (!draw(w, 4)) {
        forge_update(w, n);
        return;
    }
    neb__round_status(n->core, &st);
    struct neb_order o = {.signer = NEB_BY_OPERATOR,
                          .epoch = st.roster.epoch + 2,
                          .index = st.commit,
                          .head = st.commit_hash,
                          .roster = st.roster};
    o.op = NEB_OP_FORCE;
    o.roster.epoch = o.epoch;
    o.roster.members = o.roster.voters = o.roster.trains = neb__bit((unsigned)n->id);
    o.roster.heavy = NEB_NO_SITE;
    uint64_t kind = draw(w, 4);
    if (kind == 0) o.op = NEB_OP_ADOPT;
    if (kind == 1) { /* signed, but for another history */
        o.head.b[draw(w, NEB_HASH_SIZE)] ^= 1;
        neb__sim_sign(w, &o);
    }
    if (kind == 2) o = (struct neb_order){.op = NEB_OP_EVICT, .epoch = st.roster.epoch, .site = st.leader};
    if (kind == 2) o.index = st.commit, o.head = st.commit_hash, o.signer = NEB_BY_OPERATOR;
    if (kind == 2 && draw(w, 2))
        o.signer = (uint16_t)n->id, neb__sim_sign(w, &o); /* by a site that may not give it */
    if (kind == 3 && w->orders)
        o = w->issued[draw(w, (uint64_t)w->orders)].order; /* an old order once more */
    if (kind == 3 && o.op == NEB_OP_FORCE) return;
    TRACE(w, "site %d gets a false order (%d)", n->id, (int)kind);
    neb__node_order(w, n, &o);
}

/* Faults that, together with a liar, are more than the protocol promises to bear, or that take votes away. */
static bool beyond_a_liar(enum fault f)
{
    return f == DAMAGE || f == WIPE || f == ROLLBACK || f == DISASTER || f == EVICT || f == LEAVE ||
           f == ORDER || f == FORGE || f == JOIN;
}

static void one_fault(struct neb_sim_world *w, enum fault f, struct neb_sim_node *n)
{
    switch (f) {
    case CRASH: neb__node_crash(w, n); break;
    case CRASH_ACTION: n->actions_left = 1 + (int)draw(w, 60); break;
    case CRASH_DISK: n->disk.ops_left = 1 + (int64_t)draw(w, 60); break;
    case PARTITION: partition(w); break;
    case ONE_WAY: cut_line(w, false); break;
    case CUT_LINK: cut_line(w, true); break;
    case HEAL_LINKS: mend_lines(w); break;
    case SLOW: n->step_ms = 30 + (int64_t)draw(w, 400); break;
    case LOSS: w->loss_permille = (int)draw(w, 200); break;
    case DAMAGE: damage(w, n); break;
    case WIPE: wipe(w, n); break;
    case ROLLBACK: roll_back(w, n); break;
    case CLOCK: n->clock_skew += (int64_t)draw(w, 20000); break;
    case DISK_FULL: n->disk.full = !n->disk.full; break;
    case SYNC_FAILS: n->disk.fail_sync = n->sync_failed = true; break;
    case JOIN: join(w); break;
    case EVICT: retire(w, n, NEB_OP_EVICT); break;
    case LEAVE: retire(w, n, NEB_OP_LEAVE); break;
    case PREEMPT:
        neb__node_checkpoint(w, n);
        if (draw(w, 4)) neb__node_ask(w, n, NEB_OP_GOODBYE, 0);
        neb__node_crash(w, n);
        break;
    case ORDER: order(w, n); break;
    case FORGE: forge(w, n); break;
    case IMAGE: n->has_image = neb__simdisk_copy(&n->disk, &n->image) == NEB_OK; break;
    case DISASTER: disaster(w); break;
    case FAULTS: break;
    }
}

void neb__faults_heal(struct neb_sim_world *w)
{
    w->quiet = true;
    w->loss_permille = w->opt.happy || draw(w, 3) ? 0 : 40; /* lines are never perfect */
    w->rounds_healed = w->rounds, w->sums_healed = w->out->sums;
    TRACE(w, "all is healed");
    const uint64_t mixed = neb__mix64(w->opt.seed ^ 0x1d1e); /* no draw: the other seeds keep their history */
    const uint64_t stay = mixed % 8;
    w->idlers = w->liars && stay < 2;
    w->botchers = w->liars && stay == 2;
    w->voiders = w->liars && w->cfg.secure && stay == 3;
    w->false_opens = w->voiders && mixed / 8 % 2;
    if (w->voiders) w->end += 40000; /* it takes some attempts until they are judged */
    bool stays = w->idlers || w->botchers || w->voiders;
    for (int i = 0; i < w->sites; i++)
        if (neb__sim_lies(w, i) && !stays) {
            w->node[i].stopped = true;
            neb__node_crash(w, &w->node[i]);
        }
    for (int i = 0; i < w->sites; i++) {
        struct neb_sim_node *n = &w->node[i];
        n->disk.full = n->disk.fail_sync = false;
        n->disk.ops_left = -1;
        n->actions_left = -1;
        n->step_ms = 40 + (int64_t)draw(w, 60);
        if (n->exists && !n->alive && !n->stopped) neb__sim_later(w, 500, EV_START, i);
    }
    mend_lines(w);
    if (w->opt.lasting_cuts) neb__cuts_heal(w);
    for (int i = 0; i < w->sites; i++)
        for (int k = 0; k < w->sites; k++)
            if (neb__sim_lies(w, k) && !stays && w->node[i].alive)
                neb__node_peer(w, &w->node[i], (unsigned)k, false);
    /* From here on processes that have ended go away, and everybody knows which sites are in reach. */
    w->healed = true;
    w->healed_at = w->now;
}

static void note_begun(struct neb_sim_world *w)
{
    struct neb_round_status st;
    for (int i = 0; i < w->sites; i++) {
        if (!w->node[i].alive) continue;
        neb__round_status(w->node[i].core, &st);
        w->node[i].began |= st.may_vote;
    }
}

void neb__faults_strike(struct neb_sim_world *w)
{
    insist(w);
    note_begun(w);
    bool settled = all_settled(w);
    if (settled && w->settled) w->hurt = false; /* twice in a row: everything that was told is on disk */
    w->settled = settled;
    if (w->now >= w->fault_end) {
        if (!w->healed) neb__faults_heal(w);
        sweep(w);
        if (w->opt.lasting_cuts) neb__cuts_watch(w);
        bool rounds = w->rounds > w->rounds_healed + 2 && neb__oracle_gets_on(w);
        bool flowing = w->end_seen ? w->final_seen : rounds && !neb__oracle_shut_out(w);
        /* All promises are kept: no need to watch longer. A write that failed just before the healing is told behind it. */
        if (flowing && w->now > w->healed_at && all_well(w, 1) && all_ended(w)) w->end = w->now;
        neb__sim_later(w, 700, EV_FAULT, -1);
        return;
    }
    neb__sim_later(w, 100 + (int64_t)draw(w, 1200), EV_FAULT, -1);
    sweep(w);
    if (w->opt.lasting_cuts) neb__cuts_fault(w);
    neb__liar_strikes(w);
    struct neb_sim_node *n = pick(w);
    static const uint8_t weight[FAULTS] = {
        [CRASH] = 6,    [CRASH_ACTION] = 8, [CRASH_DISK] = 8, [PARTITION] = 4,  [ONE_WAY] = 4,
        [CUT_LINK] = 4, [HEAL_LINKS] = 9,   [SLOW] = 2,       [LOSS] = 2,       [DAMAGE] = 4,
        [ROLLBACK] = 4, [CLOCK] = 1,        [DISK_FULL] = 2,  [SYNC_FAILS] = 2, [JOIN] = 2,
        [EVICT] = 2,    [LEAVE] = 1,        [PREEMPT] = 3,    [IMAGE] = 4,      [DISASTER] = 4,
        [ORDER] = 4,    [FORGE] = 3,        [WIPE] = 4};
    if (!n || w->now < w->protect_until) return;
    uint64_t sum = 0, at;
    for (int i = 0; i < FAULTS; i++) sum += weight[i];
    at = draw(w, sum);
    int f = 0;
    while (at >= weight[f]) at -= weight[f++];
    TRACE(w, "fault %d at site %d", f, n->id);
    if (w->liars && beyond_a_liar((enum fault)f)) return;
    one_fault(w, (enum fault)f, n);
}
