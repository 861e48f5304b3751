/* faults.c: what goes wrong in one history, and when; and the healing at its end.
 *
 * A history draws a temper (which kinds of faults, how often), then every few hundred milliseconds one fault. Faults
 * that destroy memory are kept inside what the protocol promises to survive: one site at a time, and not before
 * everybody has what that site held. */
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
    FAULTS
};

void neb__faults_plan(struct world *w)
{
    w->delay_ms = 2 + (int)draw(w, 60);
    w->bytes_per_ms = 20 + (int)draw(w, 2000);
    w->loss_permille = draw(w, 3) ? 0 : (int)draw(w, 80);
    w->fault_end = w->opt.happy ? 1000 : 8000 + (int64_t)draw(w, 14000);
    w->end = w->fault_end + 25000;
    w->quiet = w->opt.happy;
    if (w->opt.happy) w->loss_permille = 0;
    neb__sim_later(w, w->opt.happy ? w->fault_end : 1500, EV_FAULT, -1);
}

static struct node *pick(struct world *w)
{
    struct node *n = &w->node[draw(w, (uint64_t)w->sites)];
    return n->exists && n->alive && !n->stopped ? n : NULL;
}

static bool is_voter(const struct world *w, const struct node *n)
{
    return w->roster.voters & neb__bit((unsigned)n->id);
}

/* Everybody runs, votes and has applied all there is. */
static bool all_well(struct world *w, uint64_t slack)
{
    for (int i = 0; i < w->sites; i++) {
        struct node *n = &w->node[i];
        struct neb_round_status st;
        if (!n->exists || n->stopped || !(w->roster.members & neb__bit((unsigned)i))) continue;
        if (!n->alive) return false;
        neb__round_status(n->core, &st);
        if (!st.may_vote || st.applied + slack < w->records || !st.root_known || !st.caught_up) return false;
    }
    return true;
}

/* Somebody else is there who can tell a site what it forgot. */
static bool others_vote(const struct world *w, const struct node *n)
{
    for (int i = 0; i < w->sites; i++)
        if (i != n->id && !w->node[i].stopped && (w->roster.voters & neb__bit((unsigned)i))) return true;
    return false;
}

static void damage(struct world *w, struct node *n)
{
    if (!all_well(w, 0) || n->id == w->roster.heavy || !others_vote(w, n)) return;
    static const char *const where[] = {"ledger", "mark", "p-", "cell-", "checkpoint", "residual", ""};
    uint64_t kind = draw(w, 9);
    neb__node_crash(w, n);
    w->out->damaged++;
    TRACE(w, "site %d's disk is damaged (%d)", n->id, (int)kind);
    if (kind >= 7)
        neb__simdisk_wipe(&n->disk);
    else
        (void)neb__simdisk_damage(&n->disk, where[kind]);
    w->protect_until = w->now + 6000;
}

/* The old copy comes back. Only while all the others are there to notice it. */
static void roll_back(struct world *w, struct node *n)
{
    if (!n->has_image || !all_well(w, 0) || n->id == w->roster.heavy) return;
    if (!others_vote(w, n)) return;
    neb__node_crash(w, n);
    TRACE(w, "site %d's disk is rolled back", n->id);
    w->out->damaged++;
    if (neb__simdisk_copy(&n->image, &n->disk) != NEB_OK) w->failed = NEB_ERR_NOMEM;
    memset(w->cut, 0, sizeof w->cut);
    for (int i = 0; i < w->sites; i++) w->node[i].actions_left = -1, w->node[i].disk.ops_left = -1;
    w->loss_permille = 0;
    w->protect_until = w->now + 8000;
    n->has_image = false;
}

static void partition(struct world *w)
{
    uint64_t side = draw(w, (uint64_t)1 << w->sites);
    for (int a = 0; a < w->sites; a++)
        for (int b = 0; b < w->sites; b++)
            if ((side >> a & 1) != (side >> b & 1)) w->cut[a][b] = true;
}

static void cut_line(struct world *w, bool both)
{
    uint64_t a = draw(w, (uint64_t)w->sites), b = draw(w, (uint64_t)w->sites);
    if (a == b) return;
    w->cut[a][b] = true;
    if (both) w->cut[b][a] = true;
    if (draw(w, 2)) { /* the driver noticed */
        if (w->node[a].alive) neb__node_peer(w, &w->node[a], (unsigned)b, false);
        if (both && w->node[b].alive) neb__node_peer(w, &w->node[b], (unsigned)a, false);
    }
}

static void mend_lines(struct world *w)
{
    memset(w->cut, 0, sizeof w->cut);
    for (int a = 0; a < w->sites; a++)
        for (int b = 0; b < w->sites; b++)
            if (a != b && w->node[a].alive && w->node[b].exists)
                neb__node_peer(w, &w->node[a], (unsigned)b, true);
}

static void join(struct world *w)
{
    if (w->sites >= SITES - 1 || w->opt.sites > SITES - 4) return;
    struct node *via = pick(w), *n = &w->node[w->sites];
    if (!via) return;
    w->sites++;
    neb__node_create(w, n);
    TRACE(w, "site %d is admitted", n->id);
    neb__node_operator(w, via, NEB_OP_ADMIT, (unsigned)n->id, draw(w, 5) ? 1 : 0);
    for (int i = 0; i < w->sites - 1; i++)
        if (w->node[i].alive) neb__node_peer(w, &w->node[i], (unsigned)n->id, true);
    neb__sim_later(w, 300, EV_START, n->id);
}

static void retire(struct world *w, struct node *n, uint32_t op)
{
    struct node *via = op == NEB_OP_LEAVE ? n : pick(w);
    if (!via || w->roster.heavy != NEB_NO_SITE || __builtin_popcountll(w->roster.trains) < 3) return;
    if (is_voter(w, n) && __builtin_popcountll(w->roster.voters) < 3) return;
    TRACE(w, "site %d is to go (%u)", n->id, op);
    neb__node_operator(w, via, op, (unsigned)n->id, 0);
}

/* Every remaining site has the present epoch on its disk: only then may a removed one be switched off. */
static bool all_know(struct world *w)
{
    for (int i = 0; i < w->sites; i++) {
        struct node *n = &w->node[i];
        struct neb_round_status st;
        if (!(w->roster.voters & neb__bit((unsigned)i)) || n->stopped) continue;
        if (!n->alive) return false;
        neb__round_status(n->core, &st);
        if (st.roster.epoch < w->roster.epoch || st.durable_epoch < w->roster.epoch) return false;
    }
    return true;
}

/* Most voters burn down; an operator goes on with what is left. */
static void disaster(struct world *w)
{
    if (w->forced || !all_well(w, 0) || w->roster.heavy != NEB_NO_SITE || w->now > w->fault_end - 3000)
        return;
    struct neb_members left = w->roster;
    int keep = 1, voters = __builtin_popcountll(w->roster.voters);
    struct node *one = NULL;
    if (voters <= keep) return;
    for (int i = 0; i < w->sites; i++) {
        struct node *n = &w->node[i];
        uint64_t bit = neb__bit((unsigned)i);
        if (!(left.members & bit) || n->stopped) continue;
        if ((left.voters & bit) && keep-- > 0) {
            one = n;
            continue;
        }
        if (!(left.voters & bit)) continue;
        left.members &= ~bit, left.voters &= ~bit, left.trains &= ~bit;
        n->stopped = true;
        neb__node_crash(w, n);
    }
    if (!one || !(left.trains & left.members)) left.trains |= left.voters;
    left.epoch += 2; /* one for a change that may be under way */
    w->forced = true;
    w->forced_roster = left;
    TRACE(w, "disaster: only %llx of the voters are left", (unsigned long long)left.voters);
    memset(w->cut, 0, sizeof w->cut);
    w->protect_until = w->now + 5000;
    neb__node_force(w, one, &left);
}

/* Sites that the log has removed are switched off for good, after some time in which they must be fenced. */
static void sweep(struct world *w)
{
    for (int i = 0; i < w->sites; i++) {
        struct node *n = &w->node[i];
        bool member = w->roster.members & neb__bit((unsigned)i);
        n->was_member |= member;
        if (!n->exists || n->stopped || member || !n->was_member || draw(w, 4) || !all_know(w)) continue;
        n->stopped = true;
        neb__node_crash(w, n);
    }
}

static void one_fault(struct world *w, enum fault f, struct node *n)
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
    case ROLLBACK: roll_back(w, n); break;
    case CLOCK: n->clock_skew += (int64_t)draw(w, 20000); break;
    case DISK_FULL: n->disk.full = !n->disk.full; break;
    case SYNC_FAILS: n->disk.fail_sync = true; break;
    case JOIN: join(w); break;
    case EVICT: retire(w, n, NEB_OP_EVICT); break;
    case LEAVE: retire(w, n, NEB_OP_LEAVE); break;
    case PREEMPT:
        neb__node_checkpoint(w, n);
        neb__node_crash(w, n);
        break;
    case IMAGE: n->has_image = neb__simdisk_copy(&n->disk, &n->image) == NEB_OK; break;
    case DISASTER: disaster(w); break;
    case FAULTS: break;
    }
}

void neb__faults_heal(struct world *w)
{
    w->quiet = w->healed = true;
    w->loss_permille = 0;
    w->rounds_healed = w->rounds;
    TRACE(w, "all is healed");
    for (int i = 0; i < w->sites; i++) {
        struct node *n = &w->node[i];
        n->disk.full = n->disk.fail_sync = false;
        n->disk.ops_left = -1;
        n->actions_left = -1;
        n->step_ms = 40 + (int64_t)draw(w, 60);
        if (n->exists && !n->alive && !n->stopped) neb__sim_later(w, 500, EV_START, i);
    }
    mend_lines(w);
}

/* The operator repeats the order until it is in the log. */
static void insist(struct world *w)
{
    if (!w->forced || w->roster.epoch >= w->forced_roster.epoch) return;
    for (int i = 0; i < w->sites; i++)
        if (w->node[i].alive && (w->forced_roster.voters & neb__bit((unsigned)i)))
            neb__node_force(w, &w->node[i], &w->forced_roster);
}

void neb__fault(struct world *w)
{
    insist(w);
    if (w->now >= w->fault_end) {
        if (!w->healed) neb__faults_heal(w);
        sweep(w);
        bool flowing = w->end_seen ? w->final_seen : w->rounds > w->rounds_healed + 2;
        if (flowing && all_well(w, 1)) w->end = w->now; /* all promises are kept: no need to watch longer */
        neb__sim_later(w, 700, EV_FAULT, -1);
        return;
    }
    neb__sim_later(w, 100 + (int64_t)draw(w, 1200), EV_FAULT, -1);
    sweep(w);
    struct node *n = pick(w);
    static const uint8_t weight[FAULTS] = {
        [CRASH] = 6,    [CRASH_ACTION] = 8, [CRASH_DISK] = 8, [PARTITION] = 4,  [ONE_WAY] = 4,
        [CUT_LINK] = 4, [HEAL_LINKS] = 9,   [SLOW] = 2,       [LOSS] = 2,       [DAMAGE] = 4,
        [ROLLBACK] = 4, [CLOCK] = 1,        [DISK_FULL] = 2,  [SYNC_FAILS] = 2, [JOIN] = 2,
        [EVICT] = 2,    [LEAVE] = 1,        [PREEMPT] = 2,    [IMAGE] = 4,      [DISASTER] = 2};
    if (!n || w->now < w->protect_until) return;
    uint64_t sum = 0, at;
    for (int i = 0; i < FAULTS; i++) sum += weight[i];
    at = draw(w, sum);
    int f = 0;
    while (at >= weight[f]) at -= weight[f++];
    TRACE(w, "fault %d at site %d", f, n->id);
    one_fault(w, (enum fault)f, n);
}
