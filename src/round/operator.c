/* operator.c: orders in the core: which of them hold, how they become records, and
 * the two that take effect at once.
 *
 * An order holds in one epoch, behind the record it names, until the next order is in the log. A copy that
 * turns up later does nothing. The leader writes a record that carries the order, and every voter checks
 * it again before acknowledging.
 *
 * FORCE is for a quorum that is gone for good. It takes effect at once, at every site whose committed
 * log ends at the named record. A site that has committed more refuses, because the order's author did
 * not know of that. ADOPT chooses between two histories, which only two contradicting FORCEs can make:
 * sites of the other history stop.
 *
 * The operators of a run may change: an order of the old ones names the set of the new ones. At each place of the log an order
 * must be signed by the set in force there, or by a later one. So who has an old key orders nothing behind that record. An order that
 * comes in must be signed by the newest set that the site knows, which may be ahead of the log. */
#include "round/core.h"
#include "base/mutant.h"

static bool in_log(const struct neb_round *r, const struct neb_order *o)
{
    return o->index <= r->head && neb__hash_equal(neb__log_hash(r, o->index), &o->head);
}

/* Whether the order held when the log ended at `head`. */
static bool held_at(const struct neb_round *r, const struct neb_order *o, uint64_t head)
{
    if (o->epoch != r->roster.epoch || o->index > head || !in_log(r, o) || !neb__order_may(o, &r->roster))
        return false;
    for (uint64_t i = o->index; i < head; i++)
        if (r->log[i].record->ordered && !NEB_MUTANT(repeat_orders)) return false;
    return true;
}

uint64_t neb__order_operators(const struct neb_round *r, uint64_t head)
{
    for (uint64_t i = head < r->head ? head : r->head; i > 0; i--) {
        const struct neb_record *rec = r->log[i - 1].record;
        if (rec->type == NEB_RECORD_ORDER && rec->order->op == NEB_OP_OPERATORS) return rec->order->value;
    }
    return r->cfg.operators;
}

/* The old operators sign for the new ones, who are the newest already. */
bool neb__order_holds(const struct neb_round *r, const struct neb_order *o)
{
    uint64_t set = o->op == NEB_OP_OPERATORS ? neb__order_operators(r, r->head) : NEB_OPERATORS_NEWEST;
    return held_at(r, o, r->head) && neb__order_genuine(o, &r->cfg.genesis, &r->cfg.seal, set);
}

/* A survivor's key may have been replaced since it signed, so only the place of its past orders is
 * checked. */
static bool signed_then(const struct neb_round *r, const struct neb_record *rec, bool past)
{
    const struct neb_order *o = rec->order;
    bool survivors = o->signer != NEB_BY_OPERATOR && o->op != NEB_OP_LEAVE;
    return (past && survivors) ||
           neb__order_genuine(o, &r->cfg.genesis, &r->cfg.seal, neb__order_operators(r, rec->index - 1));
}

/* An order behind this one can be checked only by who knows the new operators. */
static bool names_operators(const struct neb_round *r, const struct neb_record *rec)
{
    const struct neb_seal *seal = &r->cfg.seal;
    return rec->order->value > neb__order_operators(r, rec->index - 1) && seal->has_operators &&
           seal->has_operators(seal->arg, rec->order->value);
}

/* Under `byzantine` no voter may have a second vote: two sites could decide, and one of them may lie. */
static bool fair(const struct neb_round *r, const struct neb_members *m)
{
    return r->cfg.quorum != NEB_QUORUM_BYZANTINE || m->heavy == NEB_NO_SITE;
}

/* A site that has committed more than the author of a forced roster knew of refuses the order, and so the record that carries
 * it. Who has accepted the order may have learned of more since. */
bool neb__order_in_time(const struct neb_round *r, const struct neb_record *rec)
{
    const struct neb_order *o = rec->order;
    return o->op == NEB_OP_ADOPT || o->index >= r->commit || neb__members_equal(&r->roster, &rec->roster) ||
           NEB_MUTANT(force_any_head);
}

/* Whether the operator has forced a newer roster since, which is not in the log yet. A site that accepted the older order may have
 * acknowledged its record, which then stays in the log and decides nothing. If this site has the newer one's record, a quorum of that
 * roster may have committed it: a log without it must not take its place. */
bool neb__order_superseded(const struct neb_round *r, const struct neb_record *rec)
{
    return r->forced && rec->roster.epoch < r->roster.epoch && rec->roster.epoch > neb__log_roster(r).epoch &&
           in_log(r, rec->order) && !NEB_MUTANT(close_orders);
}

/* Who acknowledges the new key of a site takes no more updates under the old one. */
static bool renews(const struct neb_round *r, const struct neb_record *rec, bool past)
{
    const struct neb_seal *seal = &r->cfg.seal;
    const struct neb_order *o = rec->order;
    return rec->ordered && o->op == NEB_OP_REKEY && (r->roster.members & neb__bit(o->site)) &&
           neb__members_renews(&r->roster, &rec->roster) &&
           (past || (seal->has_epoch && seal->has_epoch(seal->arg, o->value)));
}

/* Whether a record that is not a round follows from the log before it and from its order. */
bool neb__order_explains(const struct neb_round *r, const struct neb_record *rec, bool past)
{
    const struct neb_order *o = rec->order;
    struct neb_members next;
    if (rec->type == NEB_RECORD_FORCED)
        return (o->op == NEB_OP_FORCE || o->op == NEB_OP_ADOPT) && o->signer == NEB_BY_OPERATOR &&
               neb__members_equal(&o->roster, &rec->roster) && rec->epoch == rec->roster.epoch &&
               rec->epoch >= r->roster.epoch && (in_log(r, o) || NEB_MUTANT(force_any_head)) &&
               (past || (fair(r, &rec->roster) && neb__order_in_time(r, rec))) &&
               neb__order_genuine(o, &r->cfg.genesis, &r->cfg.seal, neb__order_operators(r, r->commit));
    if (rec->ordered && (!held_at(r, o, rec->index - 1) || !signed_then(r, rec, past))) return false;
    switch (rec->type) {
    case NEB_RECORD_ROSTER:
        if (renews(r, rec, past)) return true;
        if (!neb__members_follows(&r->roster, &rec->roster) || !(past || fair(r, &rec->roster))) return false;
        if (rec->ordered)
            return neb__order_roster(o, &r->roster, &next) && neb__members_equal(&next, &rec->roster);
        next = rec->roster; /* without an order: a member that has caught up gets its vote */
        if (!past && (next.voters & ~r->roster.voters & r->observers) && !NEB_MUTANT(promote_observers))
            return false;
        return next.members == r->roster.members && next.trains == r->roster.trains &&
               next.heavy == r->roster.heavy && (next.voters & r->roster.voters) == r->roster.voters;
    case NEB_RECORD_ORDER:
        if (o->op == NEB_OP_OPERATORS) return names_operators(r, rec);
        return o->op == NEB_OP_BUDGET || o->op == NEB_OP_BOUND;
    case NEB_RECORD_END: return !r->ending && (!rec->ordered || o->op == NEB_OP_END);
    case NEB_RECORD_CLASS: return rec->tokens != r->cls;
    default: return true;
    }
}

/* The owner of a stolen key has a new one. Whatever number a thief has used under the old one, the site's updates are counted
 * anew from here. What was made before could then count twice, so an update must be made at the versions of now or later; those
 * under the old key that are here are worth nothing. The owner goes on with its own numbers. */
static void rekey(struct neb_round *r, const struct neb_record *rec)
{
    unsigned site = rec->order->site;
    for (uint32_t c = 0; c < r->cfg.cells; c++) {
        r->lastk[c * NEB_SITES_MAX + site] = 0;
        r->newest_b[c * NEB_SITES_MAX + site] = r->cell[c].v_log;
    }
    for (size_t i = 0; i < r->updates; i++)
        if (r->update[i].held && !r->update[i].used && r->update[i].header.site == site)
            r->update[i].outdated = true;
    r->rekeyed |= neb__bit(site);
    if (site != r->self) return;
    r->rekey_index = rec->index;
    r->rekey_all = r->spoke;
    r->next_k = r->own_k + 1 > r->first_k ? r->own_k + 1 : r->first_k;
}

void neb__order_committed(struct neb_round *r, const struct neb_record *rec)
{
    if (rec->type == NEB_RECORD_CLASS) r->cls = (uint8_t)rec->tokens;
    if (rec->type == NEB_RECORD_ROSTER && rec->ordered && rec->order->op == NEB_OP_REKEY) rekey(r, rec);
    if (rec->type != NEB_RECORD_ORDER) return;
    if (rec->order->op == NEB_OP_BUDGET) r->budget = (uint32_t)rec->order->value;
    if (rec->order->op == NEB_OP_BOUND) r->bound = (uint32_t)rec->order->value;
}

/* ---- counting at once ---------------------------------------------------------------------------------- */

uint32_t neb__order_forced_until(const struct neb_round *r, uint32_t epoch)
{
    uint32_t last = r->forced && r->force.roster.epoch <= epoch ? r->force.roster.epoch : 0;
    for (uint64_t i = r->forced_index; i > 0; i--) {
        const struct neb_record *rec = r->log[i - 1].record;
        if (rec->type == NEB_RECORD_FORCED && rec->roster.epoch <= epoch && rec->roster.epoch > last)
            last = rec->roster.epoch;
    }
    return last;
}

/* To everybody, or to a site that knows an older roster (`hears`: what it sent). It cannot learn of the order from committed records if
 * that is not one, or if it has committed another one in its place; then it says so. */
void neb__order_pass_on(struct neb_round *r, unsigned to, const struct neb_round_frame *hears)
{
    struct neb_round_frame f = {.type = NEB_ROUND_FRAME_FORCE};
    const uint64_t index = r->forced_index;
    const bool other = hears && index <= hears->commit && hears->epoch < neb__log_forced(r, index);
    if (r->forced)
        f.order = r->force;
    else if (index && (index > r->commit || other))
        f.order = *r->log[index - 1].record->order;
    if (f.order.op) neb__core_send(r, to, &f);
}

/* The other site has another roster of this epoch. Only two contradicting orders of the operator make such a thing. The order
 * behind this one is sent; the other site's comes likewise. */
void neb__order_show(struct neb_round *r, unsigned to)
{
    struct neb_round_frame f = {.type = NEB_ROUND_FRAME_FORCE};
    if (r->now - r->peer[to].shown < r->cfg.ping_ms / 2) return;
    r->peer[to].shown = r->now;
    if (r->forced) f.order = r->force;
    for (uint64_t i = r->head; i > 0 && !f.order.op; i--) {
        const struct neb_record *rec = r->log[i - 1].record;
        if (rec->type == NEB_RECORD_FORCED && rec->roster.epoch == r->roster.epoch) f.order = *rec->order;
    }
    if (f.order.op) neb__core_send(r, to, &f);
}

/* Whether the order can take effect here. False: the record it names is not in this log,
 * or this log has committed more. */
static bool reach(struct neb_round *r, const struct neb_order *o, unsigned from)
{
    bool adopt = o->op == NEB_OP_ADOPT;
    if (o->index <= r->commit && !in_log(r, o)) {
        if (adopt)
            neb__core_halt(r, "the operator adopted another history than this site's: move this site's "
                              "ledger away and start the site again; it will catch up");
        else
            neb__core_note(r,
                           "an operator's order names a record that is not in this site's history; refused");
        return false;
    }
    if (!in_log(r, o)) {
        r->awaited = *o;
        neb__log_ask(r, from, r->commit + 1, true);
        neb__core_note(r,
                       "an operator's order names a record that this site does not have yet; asking for it");
        return false;
    }
    if (!adopt && o->index < r->commit) {
        neb__core_note(
            r, "refusing an operator's order: this site has committed more than its author knew of; sign it "
               "again with this site's head (nebula-i status)");
        return false;
    }
    return true;
}

void neb__order_force(struct neb_round *r, const struct neb_order *o, unsigned from)
{
    if (o->op != NEB_OP_FORCE && o->op != NEB_OP_ADOPT) return;
    if (o->signer != NEB_BY_OPERATOR ||
        !neb__order_genuine(o, &r->cfg.genesis, &r->cfg.seal, NEB_OPERATORS_NEWEST))
        return;
    if (o->epoch == r->roster.epoch && !neb__members_equal(&o->roster, &r->roster)) neb__core_conflict(r);
    if (o->epoch <= r->roster.epoch) return;
    if (r->conflict && o->op == NEB_OP_FORCE) {
        neb__core_note(r, "refusing a forced roster: two rosters contradict each other, and only `nebula-i "
                          "adopt` can choose");
        return;
    }
    if (!fair(r, &o->roster)) {
        neb__core_note(r,
                       "refusing a forced roster: with `quorum: byzantine` no site may have a second vote");
        return;
    }
    if (!NEB_MUTANT(force_any_head) && !reach(r, o, from)) return;
    if (!(o->roster.members & neb__bit(r->self))) {
        neb__core_halt(r, "the operator removed this site from the run");
        return;
    }
    neb__log_commit_to(r, o->index < r->head ? o->index : r->head); /* its author had seen it committed */
    r->roster = o->roster;
    r->ever |= o->roster.members;
    r->forced = true;
    r->force = *o;
    r->forced_epoch = o->roster.epoch;
    r->conflict = false;
    r->awaited.op = 0;
    for (unsigned i = 0; from == NEB_NO_SITE && i < NEB_SITES_MAX; i++)
        if (r->roster.members & neb__bit(i)) neb__order_pass_on(r, i, NULL);
    neb__core_act(r, NEB_ACT_ROSTER);
    if (r->state == NEB_ROUND_BOOT)
        neb__view_greet(r);
    else /* the present view is the old roster's: what this site signs there would be in the new one's name */
        neb__view_follow(r, r->view + 1);
}

/* An order names a record that was not here. The order is as good as a certificate for it. */
void neb__order_log(struct neb_round *r, const struct neb_round_frame *f)
{
    struct neb_order o = r->awaited;
    if (!o.op || !f->number || !f->records || (r->conflict && o.op != NEB_OP_ADOPT)) return;
    if (in_log(r, &o) || neb__log_take_ordered(r, f, &o)) {
        r->awaited.op = 0;
        neb__order_force(r, &o, NEB_NO_SITE);
    }
}

/* ---- becoming a record --------------------------------------------------------------------------------- */

void neb__lead_request(struct neb_round *r, const struct neb_order *o)
{
    int slot = -1;
    for (int i = ORDERS - 1; i >= 0; i--) {
        if (!r->order[i].op) slot = i;
        if (r->order[i].op == o->op && r->order[i].site == o->site) slot = i; /* the newer one counts */
        if (r->order[i].op == o->op && r->order[i].site == o->site) break;
    }
    if (slot < 0) return;
    if (!neb__order_holds(r, o)) {
        neb__core_note(
            r, "an order was refused: not signed by who may, or the log or the roster went on since; look at "
               "`nebula-i status` and sign it again");
        return;
    }
    r->order[slot] = *o;
}

/* A quorum of these voters has applied everything. */
static bool has_all(const struct neb_round *r, uint64_t voters)
{
    struct neb_members left = r->roster;
    uint64_t have = 0;
    left.voters = voters;
    for (unsigned s = 0; s < NEB_SITES_MAX; s++)
        if (s == r->self ? r->whole && r->cursor >= r->commit : r->peer[s].applied >= r->commit)
            have |= neb__bit(s);
    return neb__members_has_quorum(&left, have & voters);
}

static struct neb_record *word(const struct neb_round *r, const struct neb_order *o)
{
    struct neb_record *rec = neb__record_new(0);
    if (!rec) return NULL;
    rec->ordered = true;
    *rec->order = *o;
    rec->tokens = r->tokens;
    if (o->op == NEB_OP_END)
        rec->type = NEB_RECORD_END;
    else if (neb__order_roster(o, &r->roster, &rec->roster))
        rec->type = NEB_RECORD_ROSTER;
    else
        rec->type = NEB_RECORD_ORDER;
    return rec;
}

bool neb__lead_orders(struct neb_round *r)
{
    for (int i = 0; i < ORDERS; i++) {
        struct neb_order o = r->order[i];
        if (!o.op) continue;
        bool removal = o.op == NEB_OP_LEAVE || o.op == NEB_OP_EVICT;
        if (removal && !has_all(r, r->roster.voters & ~neb__bit(o.site)))
            continue; /* that site may have the only copy */
        r->order[i].op = 0;
        uint64_t head = r->head;
        neb__lead_propose(r, word(r, &o));
        if (r->head != head) return true;
    }
    if (r->want_class == r->cls || r->ending) return false;
    struct neb_record *rec = neb__record_new(0);
    if (rec) rec->type = NEB_RECORD_CLASS, rec->tokens = r->want_class;
    neb__lead_propose(r, rec);
    return true;
}

/* ---- from the driver ----------------------------------------------------------------------------------- */

static void ask_leader(struct neb_round *r, const struct neb_order *o)
{
    if (neb__core_leads(r))
        neb__lead_request(r, o);
    else
        neb__core_send(r, r->leader, &(struct neb_round_frame){.type = NEB_ROUND_FRAME_REQUEST, .order = *o});
}

/* A leaving site signs its own removal again and again until it is in the log, because the epoch may
 * change. */
void neb__order_leave_tick(struct neb_round *r)
{
    if (!r->leaving || r->now < r->leave_at || !(r->roster.members & neb__bit(r->self))) return;
    r->leave_at = r->now + r->cfg.ping_ms;
    struct neb_order o = {.op = NEB_OP_LEAVE,
                          .signer = r->self,
                          .site = r->self,
                          .epoch = r->roster.epoch,
                          .index = r->commit,
                          .head = *neb__log_hash(r, r->commit)};
    if (neb__order_sign(&o, &r->cfg.genesis, &r->cfg.seal) == NEB_OK) ask_leader(r, &o);
}

static void goodbye(struct neb_round *r)
{
    for (unsigned i = 0; i < NEB_SITES_MAX; i++)
        if (r->roster.members & neb__bit(i))
            neb__core_send(r, i, &(struct neb_round_frame){.type = NEB_ROUND_FRAME_GOODBYE});
    r->state = NEB_ROUND_HALTED; /* silent from here on; its promises are on disk */
}

void neb__order_event(struct neb_round *r, const struct neb_event *ev)
{
    if (ev->op == NEB_OP_GOODBYE) goodbye(r);
    if (ev->op == NEB_OP_DONE) r->done = true;
    if (ev->op == NEB_OP_CLASS && ev->count < NEB_RUNG_CLASSES) r->want_class = (uint8_t)ev->count;
    if (ev->op == NEB_OP_LEAVE && !ev->order) r->leaving = true;
    if (!ev->order) return;
    if (ev->order->op == NEB_OP_FORCE || ev->order->op == NEB_OP_ADOPT)
        neb__order_force(r, ev->order, NEB_NO_SITE);
    else
        ask_leader(r, ev->order);
}
