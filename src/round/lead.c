/* lead.c: the leader's work: counting acknowledgements, closing rounds, changing the roster, ending the
 * run.
 *
 * A round on a fragment closes when every live contributor's update is durable at a quorum of voters; or
 * when its time is over and enough updates are there; or, after a grace period, with the updates there
 * are. The record names exactly the updates with a HAVE quorum that are not older than S versions, in
 * site order. Updates that this leader's checks refused are named too, with the reason: one site judges,
 * and its decision holds for all.
 *
 * Invariants: nothing is appended before a quorum holds the log with which the view began; records in flight
 * touch different cells; a roster change is appended only when everything before it is committed, and
 * nothing behind it until it is. */
#include "round/core.h"
#include "base/mutant.h"

enum {
    CATCH_UP = 600, /* permille of the budget while somebody catches up */
    PASSED_ON = 8,  /* updates that one site names and that are not here: so many are passed on at a time */
};

bool neb__lead_live(const struct neb_round *r, unsigned site)
{
    return site == r->self || (!r->peer[site].gone && r->now - r->peer[site].heard < r->cfg.contact_ms);
}

static uint64_t heard_within(const struct neb_round *r, int64_t ms)
{
    uint64_t set = neb__bit(r->self);
    for (unsigned i = 0; i < NEB_SITES_MAX; i++)
        if ((r->roster.members & neb__bit(i)) && i != r->self && r->now - r->peer[i].heard < ms)
            set |= neb__bit(i);
    return set;
}

/* After a forced eviction the holders of a prepared record's updates may be gone for good. Such a record, and
 * all behind it, could never be applied. */
static void cut_unusable(struct neb_round *r)
{
    for (uint64_t i = r->commit; i < r->head; i++) {
        const struct neb_record *rec = r->log[i].record;
        for (uint32_t k = 0; rec->type == NEB_RECORD_ROUND && k < rec->updates; k++) {
            const struct neb_core_update *p = neb__core_update(r, &rec->update[k].hash, false);
            if (rec->update[k].reject || (p && p->held)) continue;
            neb__log_cut(r, i);
            return;
        }
    }
}

/* Signs the log with which the view begins, and the votes that made it so. */
static void begin_view(struct neb_round *r)
{
    r->start = (struct neb_said){.kind = NEB_SAID_STARTS,
                                 .view = r->view,
                                 .normal = r->view,
                                 .index = r->start_index,
                                 .hash = r->start_hash};
    if (!neb__votes_hash(r->vote, r->votes, &r->start.more) || !neb__cert_say(r, &r->start))
        r->start.kind = 0;
    if (r->start.kind) neb__autograph_keep(r, &r->start);
}

void neb__lead_start(struct neb_round *r)
{
    r->state = NEB_ROUND_LEAD;
    r->normal = r->view;
    r->foreign = false;
    r->leader = r->self;
    r->ask_phase = 0;
    if (r->forced) cut_unusable(r);
    neb__prepared_replace(r, &r->best_prepared);
    r->start_index = r->told = r->head;
    r->start_hash = *neb__log_hash(r, r->head);
    r->established = false;
    r->leader_commit = r->commit;
    begin_view(r);
    r->contact = r->now;
    r->next_ping = r->now;
    r->end_since = 0;
    for (unsigned i = 0; i < NEB_SITES_MAX; i++) {
        r->peer[i].acked = 0, r->peer[i].ack_lapse = 0;
        r->peer[i].heard = r->now - r->cfg.contact_ms;
        r->peer[i].contributes = r->peer[i].clean = r->peer[i].in_view = r->peer[i].odd = false;
    }
    for (size_t i = 0; i < r->updates; i++) r->update[i].have = r->update[i].held ? neb__bit(r->self) : 0;
    for (uint32_t f = 0; f < r->cfg.fragments; f++) r->close_at[f] = 0;
    neb__sum_lead_start(r);
    memset(r->order, 0, sizeof r->order);
    r->want_class = r->cls;
}

/* ---- pings and reports --------------------------------------------------------------------------------- */

static uint64_t applied_by_all(const struct neb_round *r)
{
    uint64_t least = r->whole ? r->cursor : 0;
    for (unsigned i = 0; i < NEB_SITES_MAX; i++)
        if ((r->roster.voters & neb__bit(i)) && i != r->self && r->peer[i].applied < least)
            least = r->peer[i].applied;
    return least;
}

void neb__lead_budget(struct neb_round *r, uint32_t permille)
{
    if (permille == r->budget_now) return;
    r->budget_now = permille;
    neb__core_act(r, NEB_ACT_BUDGET)->count = permille;
}

/* The updates that wait for a record. Those that exist for certain come first. Of those that a site only names, few are
 * passed on: they may not exist, and the others would take this site for the one that names them. */
static void list_updates(struct neb_round *r, struct neb_round_frame *f)
{
    uint8_t named[NEB_SITES_MAX] = {0};
    for (int held = 1; held >= 0; held--)
        for (size_t i = 0; i < r->updates && f->items < NEB_ROUND_FRAME_LIST; i++) {
            const struct neb_core_update *p = &r->update[i];
            if (p->used || p->held != held) continue;
            if (!held && p->by < NEB_SITES_MAX && named[p->by] == PASSED_ON) continue;
            if (!held && p->by < NEB_SITES_MAX) named[p->by]++;
            f->item[f->items].hash = p->hash;
            f->item[f->items++].holders = p->have;
        }
}

/* The newest certificate of the first phase that the peer can use: it may lack the records of newer ones, and need this one to
 * get on. */
static void prepare(struct neb_round *r, const struct neb_core_peer *p, struct neb_certificate *out)
{
    struct neb_certificate c;
    *out = r->prepared;
    if (out->n && p->acked < out->index && p->acked >= r->start_index && neb__acks_prepared(r, p->acked, &c))
        *out = c;
}

/* What the peer needs to believe this leader: the certificate of the last commit, and the votes for this view. */
static void prove(struct neb_round *r, unsigned to, struct neb_round_frame *f)
{
    struct neb_core_peer *p = &r->peer[to];
    f->proof.n = f->prepared.n = 0;
    f->saids = 0;
    if (p->commit < r->newest.index &&
        (p->proved != r->newest.index || r->now - p->proved_at >= r->cfg.ping_ms)) {
        f->proof = r->newest;
        p->proved = r->newest.index;
        p->proved_at = r->now;
    }
    f->prepared = r->best_prepared;
    if (p->in_view) prepare(r, p, &f->prepared);
    if (p->in_view || !r->start.kind) return;
    f->said[f->saids++] = r->start;
    for (int i = 0; i < r->votes; i++) f->said[f->saids++] = r->vote[i];
}

void neb__lead_ping(struct neb_round *r)
{
    if (r->root_at) neb__root_own(r, r->root_at, &r->cur_root);
    struct neb_round_frame f = {.type = NEB_ROUND_FRAME_PING,
                                .normal = r->normal,
                                .head = r->told,
                                .start = r->start_index,
                                .hash = r->start_hash,
                                .applied = r->floor,
                                .number = r->budget_now,
                                .item = r->items_out};
    bool proof = neb__core_quorum(r, heard_within(r, r->cfg.elect_ms / 2)) ||
                 (!r->established && r->now - r->contact < r->cfg.elect_ms / 2);
    bool all = r->cursor >= r->commit && neb__core_caught_up(r);
    /* After the end the others go when this site has everything; for a site that is behind it then needs their signatures. */
    if (r->ended && !neb__lead_acknowledged(r)) all = all && neb__root_signed(r, r->final_index);
    bool begun =
        r->established && r->newest.index >= r->start_index; /* it has a certificate of that log, too */
    f.flags = (uint8_t)((proof ? NEB_FLAG_PROOF : 0) | (r->ending ? NEB_FLAG_DENSE : 0) |
                        (all ? NEB_FLAG_HAS_ALL : 0) | (neb__root_needed(r) ? NEB_FLAG_ROOTS : 0) |
                        (all && r->ended && neb__lead_acknowledged(r) ? NEB_FLAG_ALL_HAVE : 0) |
                        (begun ? NEB_FLAG_BEGUN : 0));
    list_updates(r, &f);
    f.cert = r->certs_out;
    for (unsigned i = 0; i < NEB_SITES_MAX; i++) {
        if (i == r->self || !(r->roster.members & neb__bit(i))) continue;
        /* a site that catches up needs the signatures, and so does one that must see that it is wrong */
        neb__root_certify(r, &f, r->peer[i].rootless || r->peer[i].odd);
        neb__lapses_tell(r, i, &f);
        prove(r, i, &f);
        neb__core_send(r, i, &f);
    }
    r->next_ping = r->now + r->cfg.ping_ms;
}

/* Reports the updates that this site holds and the records it has applied; to the leader also
 * its acknowledgement of the log. */
void neb__core_report(struct neb_round *r, unsigned to)
{
    struct neb_core_promise mine;
    bool stable = neb__log_acked(r, &mine);
    struct neb_round_frame f = {.type = NEB_ROUND_FRAME_REPORT,
                                .normal = mine.normal,
                                .head = mine.head,
                                .applied = r->cursor,
                                .item = r->items_out};
    f.hash = *neb__log_hash(r, mine.head);
    if (r->root_at) neb__root_own(r, r->root_at, &r->cur_root);
    const struct neb_core_root *at = r->root_at ? neb__root_find(r, r->root_at, &r->cur_root) : NULL;
    if (at && (at->agree & neb__bit(r->self))) {
        f.start = at->index;
        f.root = at->root;
        memcpy(f.signature, at->signature[r->self], NEB_SEAL_SIZE);
    }
    bool clean = true;
    for (uint32_t c = 0; c < r->cfg.cells; c++) clean = clean && r->cell[c].clean;
    bool trains = (r->roster.trains & neb__bit(r->self)) && neb__core_caught_up(r);
    f.flags =
        (uint8_t)((trains ? NEB_FLAG_CONTRIBUTES : 0) | (clean ? NEB_FLAG_CLEAN : 0) |
                  (r->whole ? NEB_FLAG_WHOLE : 0) | (stable && neb__view_joined(r) ? NEB_FLAG_NORMAL : 0) |
                  (r->done ? NEB_FLAG_DONE : 0));
    neb__lapses_tell(r, to, &f);
    neb__acks_report(r, &f);
    if (r->newest.n && r->newest.index > r->leader_commit) f.proof = r->newest;
    for (size_t i = 0; i < r->updates && f.items < NEB_ROUND_FRAME_LIST; i++) {
        if (r->update[i].used || !r->update[i].held) continue;
        f.item[f.items].hash = r->update[i].hash;
        f.item[f.items++].holders = neb__bit(r->self);
    }
    r->report_due = false;
    neb__core_send(r, to, &f);
}

void neb__lead_report(struct neb_round *r, unsigned from, const struct neb_round_frame *f)
{
    struct neb_core_peer *p = &r->peer[from];
    if (r->state != NEB_ROUND_LEAD || f->view != r->view) return;
    p->heard = r->now;
    p->commit = f->commit;
    p->gone = false;
    p->contributes = f->flags & NEB_FLAG_CONTRIBUTES;
    p->clean = f->flags & NEB_FLAG_CLEAN;
    p->done = f->flags & NEB_FLAG_DONE;
    p->applied = f->flags & NEB_FLAG_WHOLE ? f->applied : 0;
    bool mine = f->head <= r->head && neb__hash_equal(neb__log_hash(r, f->head), &f->hash);
    if ((f->flags & NEB_FLAG_NORMAL) && mine &&
        (!p->in_view || f->head > p->acked || f->lapse > p->ack_lapse))
        p->acked = f->head, p->ack_lapse = f->lapse;
    p->in_view = (f->flags & NEB_FLAG_NORMAL) && mine;
    neb__acks_heard(r, from, f);
    (void)neb__cert_take(r, &f->proof);
    neb__root_lacks(r, from, !(f->flags & NEB_FLAG_WHOLE));
    if (f->start) neb__root_reported(r, from, f);
    uint64_t refused = 0;
    for (int i = 0; i < f->items; i++) {
        struct neb_core_update *pl = neb__core_update_heard(r, from, &f->item[i].hash, &refused);
        if (pl) pl->have |= neb__bit(from);
    }
    neb__core_refused(r, from, refused);
}

/* ---- appending ----------------------------------------------------------------------------------------- */

/* Takes ownership of `rec`. */
void neb__lead_propose(struct neb_round *r, struct neb_record *rec)
{
    if (!rec) {
        r->failed = NEB_ERR_NOMEM;
        return;
    }
    rec->epoch = r->roster.epoch;
    rec->view = r->view;
    rec->index = r->head + 1;
    rec->prev = *neb__log_hash(r, r->head);
    struct neb_buf b;
    neb__buf_init(&b, NEB_RECORD_MAX);
    bool ok = neb__log_acceptable(r, rec) && neb__record_encode(rec, &b) == NEB_OK &&
              neb__log_append(r, b.data, b.len);
    neb__free(rec);
    neb__buf_free(&b);
    (void)ok; /* the others are told of it when it is on disk */
}

/* Sends the others what is on disk since the last time, with this leader's signature. */
static void tell(struct neb_round *r)
{
    uint64_t reach = neb__acks_reach(r), first = r->told + 1;
    if (reach < first) return;
    r->told = reach;
    for (unsigned i = 0; i < NEB_SITES_MAX; i++)
        if (i != r->self && (r->roster.members & neb__bit(i))) neb__log_send(r, i, first, reach);
}

/* The index that must be acknowledged before `index` commits. Records before a forced roster commit
 * together with it: a site that knew of their commit and not of the roster's would refuse the
 * operator's order after a crash. */
static uint64_t together_with(const struct neb_round *r, uint64_t index)
{
    for (uint64_t i = r->head; i > index; i--)
        if (r->log[i - 1].record->type == NEB_RECORD_FORCED) return i;
    return index;
}

static void count_acks(struct neb_round *r)
{
    struct neb_certificate c;
    if (r->conflict) return;
    if (!r->established)
        r->established = neb__core_quorum(r, neb__acks_of(r, NEB_SAID_HOLDS, r->start_index));
    if (!r->established || r->forced) return;
    uint64_t before = r->commit, prepared = r->prepared.index;
    neb__acks_prepare(r);
    for (uint64_t i = r->commit + 1; i <= r->head; i = r->commit + 1) {
        uint64_t needed = together_with(r, i);
        bool certified = neb__acks_certificate(r, needed, &c);
        if (!certified && !NEB_MUTANT(ignore_quorum)) break;
        neb__log_commit_to(r, needed); /* one at a time: a roster change counts for the records behind it */
        if (certified) neb__cert_keep(r, &c);
    }
    /* A commit that this site found on its disk may have no certificate here. */
    if (r->newest.index < r->start_index && r->start_index <= r->commit &&
        neb__acks_certificate(r, r->start_index, &c))
        neb__cert_keep(r, &c);
    if (r->commit != before || r->prepared.index != prepared) neb__lead_ping(r);
}

/* ---- closing a round ----------------------------------------------------------------------------------- */

static bool eligible(const struct neb_round *r, const struct neb_core_update *p, uint32_t c0, uint32_t c1)
{
    const struct neb_update_header *h = &p->header;
    uint64_t v = r->cell[c0].v_log;
    if (!p->held || p->used || p->outdated || h->c0 != c0 || h->c1 != c1 || h->kind != NEB_UPDATE_DELTA)
        return false;
    if (!(r->roster.trains & neb__bit(h->site)) || !neb__core_quorum(r, p->have)) return false;
    if (h->b > v || v > h->b + r->cfg.staleness) return NEB_MUTANT(keep_expired) && h->b <= v;
    for (uint32_t c = c0; c < c1; c++)
        if (neb__log_counted(r, c, h->site, h->k, h->b)) return false;
    return true;
}

uint32_t neb__lead_median_tau(const struct neb_record *rec)
{
    uint32_t tau[NEB_SITES_MAX], n = 0;
    for (uint32_t i = 0; i < rec->updates; i++) {
        uint32_t t = rec->update[i].tau, j = n++;
        for (; j && tau[j - 1] > t; j--) tau[j] = tau[j - 1];
        tau[j] = t;
    }
    return n ? tau[n / 2] : 0;
}

/* This site judges by its own computation; the record makes that a decision for all. */
uint8_t neb__lead_judged(const struct neb_round *r, const struct neb_core_update *p)
{
    float bound;
    memcpy(&bound, &r->bound, sizeof bound);
    if (p->reject || !r->bound || NEB_MUTANT(ignore_bound)) return p->reject;
    return p->norm > bound ? NEB_REJECT_NORM : NEB_REJECT_NONE;
}

/* By the rule of the run some updates are too long beside the others of their record. */
static void judge_lengths(const struct neb_round *r, struct neb_core_update *const by_site[NEB_SITES_MAX],
                          struct neb_record *rec)
{
    double norm[NEB_SITES_MAX] = {0};
    uint32_t at[NEB_SITES_MAX], n = 0;
    bool out[NEB_SITES_MAX];
    for (uint32_t i = 0; i < rec->updates; i++) {
        if (rec->update[i].reject) continue;
        at[n] = i;
        norm[n++] = by_site[rec->update[i].site]->norm;
    }
    neb__influence_outliers(&r->cfg.influence, norm, n, out);
    for (uint32_t i = 0; i < n; i++)
        if (out[i]) rec->update[at[i]].reject = NEB_REJECT_NORM;
}

bool neb__lead_rejects_rightly(const struct neb_round *r, const struct neb_record *rec)
{
    struct neb_core_update *by_site[NEB_SITES_MAX] = {0};
    struct neb_record *own = neb__record_new(rec->updates);
    bool known = own != NULL, right = true;
    for (uint32_t i = 0; known && i < rec->updates; i++) {
        struct neb_core_update *p = neb__core_update((struct neb_round *)r, &rec->update[i].hash, false);
        known = p && p->held && rec->update[i].site < NEB_SITES_MAX;
        if (!known) break;
        by_site[rec->update[i].site] = p;
        own->update[i] = rec->update[i];
        own->update[i].reject = neb__lead_judged(r, p);
    }
    if (known) judge_lengths(r, by_site, own);
    for (uint32_t i = 0; known && i < rec->updates; i++)
        right = right && own->update[i].reject == rec->update[i].reject;
    neb__free(own);
    return right;
}

void neb__lead_name(struct neb_round *r, uint32_t c0, uint32_t c1,
                    struct neb_core_update *const by_site[NEB_SITES_MAX], int n, uint16_t attempt)
{
    struct neb_record *rec = neb__record_new((uint32_t)n);
    if (!rec) {
        r->failed = NEB_ERR_NOMEM;
        return;
    }
    rec->type = attempt ? NEB_RECORD_SURVIVORS : NEB_RECORD_ROUND;
    rec->attempt = attempt;
    rec->c0 = c0, rec->c1 = c1;
    rec->v = r->cell[c0].v_log;
    rec->eta = r->cfg.eta, rec->mu = r->cfg.mu;
    rec->cls = r->cls;
    n = 0;
    for (unsigned s = 0; s < NEB_SITES_MAX; s++) {
        const struct neb_core_update *p = by_site[s];
        if (!p) continue;
        if (p->header.cls == NEB_SPARSE) rec->cls = NEB_SPARSE; /* captured before the class changed */
        rec->update[n++] = (struct neb_named){(uint16_t)s,      neb__lead_judged(r, p), p->header.k,
                                              p->header.b,      p->header.weight,       p->header.tau,
                                              p->header.length, p->header.tokens,       p->hash};
    }
    judge_lengths(r, by_site, rec);
    bool average = r->ending || neb__lead_median_tau(rec) > 2 * r->cfg.nominal;
    rec->mode = average ? NEB_MODE_AVERAGE : NEB_MODE_NESTEROV;
    neb__lead_propose(r, rec);
}

/* A record with fewer updates would move nothing by the run's rule. At the end it is made all the same: what does not enter
 * is then known. */
int neb__lead_enough(const struct neb_round *r)
{
    if (r->cfg.secure) return neb__sum_least(__builtin_popcountll(r->roster.trains));
    return r->cfg.influence.combine == NEB_COMBINE_MEAN || r->ending ? 0 : 2 * r->cfg.influence.liars + 1;
}

static void try_close(struct neb_round *r, uint32_t f)
{
    if (r->cfg.secure) {
        neb__sum_lead(r, f);
        return;
    }
    uint32_t c0 = neb__core_fragment_first(r, f), c1 = neb__core_fragment_first(r, f + 1);
    if (neb__log_touched(r, c0, c1)) return;
    struct neb_core_update *by_site[NEB_SITES_MAX] = {0};
    int ready = 0, alive = 0, missing = 0;
    for (size_t i = 0; i < r->updates; i++)
        if (eligible(r, &r->update[i], c0, c1)) {
            struct neb_core_update **at = &by_site[r->update[i].header.site];
            if (!*at) ready++;
            if (!*at || (*at)->header.k < r->update[i].header.k) *at = &r->update[i];
        }
    for (unsigned s = 0; s < NEB_SITES_MAX; s++) {
        bool mine = s == r->self;
        bool contributes = mine ? neb__core_caught_up(r) : r->peer[s].contributes;
        bool clean = r->ending && (mine ? r->cell[c0].clean : r->peer[s].clean);
        if (!(r->roster.trains & neb__bit(s)) || !neb__lead_live(r, s) || !contributes || clean) continue;
        alive++;
        missing += !by_site[s];
    }
    if (!ready) {
        r->close_at[f] = 0;
        return;
    }
    if (!r->close_at[f]) r->close_at[f] = r->now;
    int least = alive == 2 ? 2 : alive / 2 + 1, enough = neb__lead_enough(r);
    if (least < enough) least = enough;
    bool late = r->now >= r->close_at[f] + r->cfg.round_ms && ready >= least;
    bool very_late = r->now >= r->close_at[f] + r->cfg.round_ms + r->cfg.grace_ms && ready >= enough;
    bool over = neb__end_over(r) && ready >= enough;
    if ((missing || ready < enough) && !late && !very_late && !over) return;
    r->close_at[f] = 0;
    neb__lead_name(r, c0, c1, by_site, ready, 0);
}

/* ---- roster and end ------------------------------------------------------------------------------------ */

static bool change(struct neb_round *r, struct neb_members next)
{
    next.epoch = r->roster.epoch + 1;
    if (!neb__members_follows(&r->roster, &next)) return false;
    struct neb_record *rec = neb__record_new(0);
    if (rec) rec->type = NEB_RECORD_ROSTER, rec->roster = next;
    neb__lead_propose(r, rec);
    return true;
}

static bool try_promote(struct neb_round *r)
{
    if (!r->cfg.promote || r->roster.heavy != NEB_NO_SITE) return false;
    if (__builtin_popcountll(r->roster.voters) >= NEB_ROUND_VOTERS_MAX) return false;
    for (unsigned s = 0; s < NEB_SITES_MAX; s++) {
        uint64_t bit = neb__bit(s);
        if (s == r->self || !(r->roster.members & bit) || (r->roster.voters & bit) || !neb__lead_live(r, s))
            continue;
        if ((r->observers & bit) && !NEB_MUTANT(promote_observers)) continue;
        if (r->peer[s].acked < r->commit || r->peer[s].applied + 2 < r->commit) continue;
        struct neb_members next = r->roster;
        next.voters |= bit;
        if (change(r, next)) return true;
    }
    return false;
}

/* No site that trains and is in reach has anything left to send. *everybody: all
 * sites that train are in reach. */
static bool all_clean(const struct neb_round *r, bool *everybody)
{
    *everybody = true;
    for (unsigned s = 0; s < NEB_SITES_MAX; s++) {
        if (!(r->roster.trains & neb__bit(s))) continue;
        if (s == r->self) {
            for (uint32_t c = 0; c < r->cfg.cells; c++)
                if (!r->cell[c].clean) return false;
        } else if (!neb__lead_live(r, s))
            *everybody = false;
        else if (!r->peer[s].clean)
            return false;
    }
    return true;
}

/* A connected member counts as well, even if nothing was heard from it for a while:
 * its line may have just come back. */
bool neb__lead_acknowledged(const struct neb_round *r)
{
    for (unsigned s = 0; s < NEB_SITES_MAX; s++) {
        const struct neb_core_peer *p = &r->peer[s];
        if (s == r->self || !(r->roster.members & neb__bit(s)) || p->applied >= r->final_index) continue;
        if (neb__lead_live(r, s) || (p->up && !p->gone)) return false;
    }
    return true;
}

bool neb__end_over(const struct neb_round *r)
{
    return r->ending && r->end_ms > 0 && r->now >= r->ending_since + r->end_ms;
}

/* Voters that have made all their steps. With a token target a leader cannot end the run before it on its own word. */
static uint64_t done_voters(const struct neb_round *r)
{
    uint64_t set = r->done ? neb__bit(r->self) : 0;
    for (unsigned s = 0; s < NEB_SITES_MAX; s++)
        if (r->peer[s].done && neb__lead_live(r, s)) set |= neb__bit(s);
    return set;
}

static bool try_end(struct neb_round *r)
{
    bool everybody = false;
    bool in = r->ending && all_clean(r, &everybody), over = neb__end_over(r);
    if (!in && neb__sum_too_few_left(r)) in = true;
    if (r->ended || (r->ending && (r->commit != r->head || !(in || over)))) return false;
    if (r->ending && neb__sum_under_way(r)) return false; /* every attempt ends: the leader makes it void */
    bool done = r->done && (!r->cfg.token_target || neb__core_quorum(r, done_voters(r)));
    bool reached = done || (r->cfg.token_target && r->tokens >= r->cfg.token_target);
    if (!r->ending && !reached) return false;
    /* Sites that come back shortly after the end may still contribute their last work. */
    if (r->ending && !r->end_since) r->end_since = r->now;
    if (r->ending && !everybody && !over && r->now < r->end_since + 2 * r->cfg.contact_ms) return false;
    struct neb_record *rec = neb__record_new(0);
    if (rec) rec->type = r->ending ? NEB_RECORD_FINAL : NEB_RECORD_END, rec->tokens = r->tokens;
    neb__lead_propose(r, rec);
    return true;
}

void neb__lead_progress(struct neb_round *r)
{
    if (r->state != NEB_ROUND_LEAD) return;
    tell(r);
    count_acks(r);
    if (!(r->roster.voters & neb__bit(r->self))) { /* the last commit removed this leader */
        neb__lead_ping(r);
        neb__view_follow(r, r->view);
        return;
    }
    if (!r->established || r->conflict || r->ended) return;
    bool drained = r->commit == r->head;
    if (r->forced) {
        struct neb_record *rec = neb__record_new(0);
        if (rec)
            rec->type = NEB_RECORD_FORCED, rec->roster = r->roster, rec->ordered = true,
            *rec->order = r->force;
        r->forced = false;
        neb__lead_propose(r, rec);
        return;
    }
    if ((drained || NEB_MUTANT(roster_any_time)) && (neb__lead_orders(r) || try_promote(r))) return;
    if (r->head - r->commit >= r->cfg.pipeline) return;
    if (!drained && !neb__record_has_cells(r->log[r->head - 1].record)) return;
    bool over = neb__end_over(r); /* then the updates that are there go in, and nobody is waited for */
    if (drained && !over && try_end(r)) return;
    for (uint32_t f = 0; f < r->cfg.fragments && r->head - r->commit < r->cfg.pipeline; f++) try_close(r, f);
    if (over && r->head == r->commit) try_end(r);
}

/* A live member lacks cells: the lines should carry those first. */
static bool someone_catches_up(const struct neb_round *r)
{
    if (r->ending) return false;
    for (unsigned s = 0; s < NEB_SITES_MAX; s++)
        if (s != r->self && (r->roster.members & neb__bit(s)) && neb__lead_live(r, s) && r->peer[s].rootless)
            return true;
    return false;
}

void neb__lead_tick(struct neb_round *r)
{
    if (r->state != NEB_ROUND_LEAD) return;
    if (neb__core_quorum(r, heard_within(r, r->cfg.contact_ms / 2))) r->contact = r->now;
    /* After the end the others go one by one; the leader stays for those that still catch up. */
    if (!r->ended && r->now - r->contact >= r->cfg.contact_ms) {
        neb__core_note(
            r, "this site reaches too few others to lead the rounds and stops leading; training goes on");
        neb__view_follow(r, r->view);
        return;
    }
    r->floor = applied_by_all(r);
    neb__lead_budget(r, someone_catches_up(r) ? r->budget * CATCH_UP / 1000 : r->budget);
    if (r->now >= r->next_ping) neb__lead_ping(r);
}
