/* secure.c: sums that nobody can take apart: the records by which sites agree on them (docs/privacy.md).
 *
 * With cfg.secure the updates of a run are masked: of use in a sum only. An attempt at a sum of one fragment goes through the log:
 *
 *     OPEN        the contributors, with the keys and the hashes of seeds that each of them offered
 *     SURVIVORS   the masked updates that a quorum has: exactly these are in the sum
 *     RESULT      a ROUND with the same updates and a seed of each contributor: the sum can be unmasked and is applied
 *     VOID        behind SURVIVORS a ROUND whose updates are consumed and dropped; before it a record of its own, and the updates
 *                 are discarded: their work stays where it is
 *
 * Members reveal shares of seeds only when SURVIVORS is committed, and then of one seed a contributor: of its own mask if its update is
 * in the sum, of its pair key if not. Whoever knew both could unmask its update alone. Behind SURVIVORS an attempt is never tried again
 * with other updates: the difference of two sums is an update.
 *
 * Thresholds. Of n sites that train f may lie: a third of the others, at least one. Honest members reveal one share a contributor and
 * liars two, so at most n + f; with 2t > n + f nobody gets t of both. A sum has at least max(3, t, f + 2) updates, and all of them
 * hold work: a site without a step since its last update has nothing that could hide another's.
 *
 * The core knows names, hashes and seeds, never masks: the driver makes offers and updates, gathers shares and computes sums.
 *
 * Invariant: a fragment has at most one attempt under way, and its version stands still meanwhile. */
#include "round/core.h"
#include "base/mutant.h"

struct neb_core_sum *neb__sum_of(const struct neb_round *r, uint32_t c0)
{
    for (uint32_t f = 0; r->sum && f < r->cfg.fragments; f++)
        if (neb__core_fragment_first(r, f) == c0) return &r->sum[f];
    return NULL;
}

static int liars(int sites)
{
    return sites > 6 ? (sites - 1) / 3 : 1;
}

int neb__sum_threshold(int sites)
{
    return (sites + liars(sites)) / 2 + 1;
}

int neb__sum_least(int sites)
{
    int t = neb__sum_threshold(sites), least = liars(sites) + 2;
    if (NEB_MUTANT(low_threshold)) return 2;
    if (least < t) least = t;
    return least < 3 ? 3 : least;
}

static int training(const struct neb_round *r)
{
    return __builtin_popcountll(r->roster.trains);
}

uint16_t neb__sum_next(uint16_t attempt)
{
    return attempt == UINT16_MAX ? 1 : (uint16_t)(attempt + 1);
}

static uint16_t next_attempt(const struct neb_core_sum *s)
{
    return neb__sum_next(s->attempt);
}

static const struct neb_record *open_of(const struct neb_round *r, const struct neb_core_sum *s)
{
    return s->open ? r->log[s->open - 1].record : NULL;
}

bool neb__round_attempt(const struct neb_round *r, uint32_t c0, struct neb_round_attempt *out)
{
    const struct neb_core_sum *s = neb__sum_of(r, c0);
    if (!s) return false;
    *out = (struct neb_round_attempt){s->open, s->survivors, s->attempt};
    return true;
}

bool neb__sum_is_over(const struct neb_round *r, const struct neb_update_header *h)
{
    const struct neb_core_sum *s = neb__sum_of(r, h->c0);
    if (!s || h->kind != NEB_UPDATE_MASKED) return false;
    if (h->attempt == s->attempt) return !s->open;
    return (uint16_t)(s->attempt - h->attempt) < 0x8000;
}

/* ---- what may stand in the log ------------------------------------------------------------------------- */

static bool opens_rightly(const struct neb_round *r, const struct neb_core_sum *s,
                          const struct neb_record *rec)
{
    if (s->open || rec->attempt != next_attempt(s)) return false;
    if (rec->threshold != neb__sum_threshold(training(r))) return false;
    if ((int)rec->contributors < neb__sum_least(training(r))) return false;
    for (uint32_t i = 0; i < rec->contributors; i++)
        if (!(r->roster.trains & neb__bit(rec->contributor[i].site))) return false;
    return true;
}

/* An update without a step in it hides nobody else's: a sum of it and one other is that other. */
static bool holds_nothing(uint32_t tau)
{
    return !tau && !NEB_MUTANT(sum_of_nothing);
}

static bool survives_rightly(const struct neb_round *r, const struct neb_core_sum *s,
                             const struct neb_record *rec)
{
    const struct neb_record *open = open_of(r, s);
    if (!open || s->survivors || rec->attempt != s->attempt || rec->epoch != open->epoch) return false;
    if ((int)rec->updates < neb__sum_least(training(r))) return false;
    for (uint32_t i = 0; i < rec->updates; i++) {
        const struct neb_named *p = &rec->update[i];
        if (!neb__record_contributor(open, p->site) || p->reject || p->b != rec->v || holds_nothing(p->tau))
            return false;
    }
    return true;
}

/* The seed that may be revealed of a contributor, and nothing else. */
const struct neb_hash *neb__sum_seed_hash(const struct neb_record *survivors, const struct neb_contributor *c)
{
    return neb__record_of(survivors, c->site) ? &c->own : &c->pair;
}

bool neb__sum_seeds_right(const struct neb_record *open, const struct neb_record *survivors,
                          const uint8_t (*seed)[NEB_SEED_SIZE], uint32_t seeds)
{
    struct neb_hash h;
    if (seeds != open->contributors) return false;
    for (uint32_t i = 0; i < seeds; i++)
        if (neb__hash(seed[i], NEB_SEED_SIZE, &h) != NEB_OK ||
            !neb__hash_equal(&h, neb__sum_seed_hash(survivors, &open->contributor[i])))
            return false;
    return true;
}

bool neb__sum_repeats(const struct neb_record *a, const struct neb_record *b)
{
    const uint8_t reject = neb__record_is_void(b) ? NEB_REJECT_VOID : NEB_REJECT_NONE;
    if (b->v != a->v || b->c1 != a->c1 || b->mode != a->mode || b->eta != a->eta || b->mu != a->mu ||
        b->cls != a->cls || b->owner != NEB_NO_SITE || a->updates != b->updates)
        return false;
    for (uint32_t i = 0; i < a->updates; i++) {
        const struct neb_named *p = &a->update[i], *q = &b->update[i];
        if (p->site != q->site || p->k != q->k || p->b != q->b || p->weight != q->weight ||
            p->tau != q->tau || p->length != q->length || p->tokens != q->tokens || q->reject != reject ||
            !neb__hash_equal(&p->hash, &q->hash))
            return false;
    }
    return true;
}

/* RESULT or VOID: what SURVIVORS named, all of it, once. */
static bool ends_rightly(const struct neb_round *r, const struct neb_core_sum *s,
                         const struct neb_record *rec)
{
    if (!s->survivors || rec->attempt != s->attempt) return false;
    const struct neb_record *who = r->log[s->survivors - 1].record;
    if (!neb__sum_repeats(who, rec)) return false;
    return neb__record_is_void(rec) || NEB_MUTANT(any_seeds) ||
           neb__sum_seeds_right(open_of(r, s), who, (const uint8_t(*)[NEB_SEED_SIZE])rec->seed, rec->seeds);
}

bool neb__sum_follows(const struct neb_round *r, const struct neb_record *rec)
{
    const struct neb_core_sum *s = neb__sum_of(r, rec->c0);
    if (!s || !neb__round_is_fragment(r, rec->c0, rec->c1)) return false;
    for (uint32_t c = rec->c0; c < rec->c1; c++)
        if (r->cell[c].v_log != rec->v) return false;
    switch (rec->type) {
    case NEB_RECORD_OPEN: return opens_rightly(r, s, rec);
    case NEB_RECORD_SURVIVORS: return survives_rightly(r, s, rec);
    case NEB_RECORD_VOID: return s->open && !s->survivors && rec->attempt == s->attempt;
    default: return ends_rightly(r, s, rec);
    }
}

void neb__sum_goes_on(const struct neb_record *rec, bool *open)
{
    if (rec->type == NEB_RECORD_OPEN) *open = true;
    if (rec->type == NEB_RECORD_VOID || rec->type == NEB_RECORD_ROUND) *open = false;
}

void neb__sum_committed(struct neb_round *r, const struct neb_record *rec)
{
    struct neb_core_sum *s = neb__sum_of(r, rec->c0);
    if (!s) return;
    if (rec->type == NEB_RECORD_OPEN) {
        s->open = rec->index, s->attempt = rec->attempt;
    } else if (rec->type == NEB_RECORD_SURVIVORS) {
        s->survivors = rec->index;
        for (uint32_t i = 0; i < rec->updates; i++) {
            struct neb_core_update *p = neb__core_update(r, &rec->update[i].hash, true);
            if (p && NEB_MUTANT(ask_before_looking) && !p->held) p->needed = true, p->fetch_at = r->now;
            if (p && r->booted) neb__core_look_for(r, p); /* at a start the walk looks for those it needs */
        }
    } else {
        s->open = s->survivors = 0;
        s->seeds_for = 0;
    }
    s->since = 0;
}

/* ---- what the driver is asked for ---------------------------------------------------------------------- */

/* The open update belongs to an attempt that is over, and no record behind it will tell: its work stays in the live model, and
 * the next attempt may have it at once. */
static void give_up(struct neb_round *r, const struct neb_core_sum *s, uint32_t c0, uint32_t c1)
{
    for (uint32_t c = c0; c < c1; c++) {
        struct neb_core_cell *cell = &r->cell[c];
        if (!cell->open.k || cell->v_site != cell->v_log || cell->open.b != cell->v_log) continue;
        if (s->open && cell->open.attempt == s->attempt) continue;
        struct neb_action *a = neb__core_act(r, NEB_ACT_DISCARD);
        a->c0 = c, a->c1 = c + 1;
        a->k = cell->open.k;
        cell->open.k = 0;
        cell->since = r->steps - (int64_t)r->interval;
    }
}

/* An offer for the next attempt; a site that cannot take part in the present one makes it at once, and so tells that it does not. */
static void offer(struct neb_round *r, struct neb_core_sum *s, uint32_t c0, uint32_t c1)
{
    const struct neb_core_cell *cell = &r->cell[c0];
    uint16_t attempt = next_attempt(s);
    if (s->open && s->unable != s->attempt) return;
    for (uint32_t c = c0; c < c1; c++)
        if (r->cell[c].fetching || r->cell[c].away || r->cell[c].v_app != r->cell[c].v_log) return;
    if (s->offered == attempt && s->offered_version == cell->v_log) return;
    s->offered = attempt, s->offered_version = cell->v_log;
    struct neb_action *a = neb__core_act(r, NEB_ACT_OFFER);
    a->c0 = c0, a->c1 = c1;
    a->version = cell->v_log;
    a->attempt = attempt;
}

static void reveal(struct neb_round *r, struct neb_core_sum *s)
{
    uint64_t index = s->survivors;
    if (NEB_MUTANT(reveal_early) && !index && s->open) /* on a record that nobody has certified */
        for (uint64_t i = r->commit; i < r->head; i++)
            if (r->log[i].record->type == NEB_RECORD_SURVIVORS && neb__sum_of(r, r->log[i].record->c0) == s)
                index = i + 1;
    if (!index || s->revealed == index || r->disk_head < index) return;
    s->revealed = index;
    neb__core_act(r, NEB_ACT_REVEAL)->index = index;
}

void neb__sum_tick(struct neb_round *r)
{
    if (!r->sum || r->state == NEB_ROUND_BOOT || r->ended) return;
    bool trains = r->roster.trains & neb__bit(r->self);
    for (uint32_t f = 0; f < r->cfg.fragments; f++) {
        uint32_t c0 = neb__core_fragment_first(r, f), c1 = neb__core_fragment_first(r, f + 1);
        struct neb_core_sum *s = &r->sum[f];
        if (!r->capturing[f]) give_up(r, s, c0, c1);
        if (trains && r->durable.incarnation == r->incarnation) offer(r, s, c0, c1);
        if (trains) reveal(r, s);
    }
}

/* A site that has made no step since its last update of the fragment contributes nothing; at the end it is through. */
bool neb__sum_idles(struct neb_round *r, uint32_t c0, uint32_t c1)
{
    if (!holds_nothing((uint32_t)(r->steps - r->cell[c0].base))) return false;
    for (uint32_t c = c0; r->ending && c < c1; c++) {
        if (!r->cell[c].clean) r->report_due = true;
        r->cell[c].clean = true;
    }
    return true;
}

/* Whether an update of the fragment may be captured now: this site contributes to the attempt under way, and has not yet. */
bool neb__sum_captures(const struct neb_round *r, uint32_t f)
{
    const struct neb_core_sum *s = &r->sum[f];
    const struct neb_record *open = open_of(r, s);
    return open && !s->survivors && s->unable != s->attempt && s->captured != s->attempt &&
           neb__record_contributor(open, r->self) && open->index <= r->disk_head;
}

void neb__sum_captured(struct neb_round *r, uint32_t f, neb_status status)
{
    struct neb_core_sum *s = &r->sum[f];
    if (status == NEB_OK) s->captured = s->attempt;
    if (status == NEB_ERR_STATE) s->unable = s->attempt;
}

void neb__sum_event(struct neb_round *r, const struct neb_event *ev)
{
    if (ev->type == NEB_EV_OFFER) {
        struct neb_core_sum *s = neb__sum_of(r, ev->cell);
        if (!s || ev->site >= NEB_SITES_MAX || ev->attempt != next_attempt(s)) return;
        s->offer[ev->site] = (struct neb_core_offer){
            .attempt = ev->attempt, .version = ev->version, .shared = ev->count, .entry = *ev->offer};
        return;
    }
    for (uint32_t f = 0; r->sum && f < r->cfg.fragments; f++) {
        struct neb_core_sum *s = &r->sum[f];
        if (!s->survivors || s->survivors != ev->index) continue;
        uint32_t n = open_of(r, s)->contributors;
        s->seeds_for = ev->index;
        s->broken = ev->status != NEB_OK || ev->length != n * (size_t)NEB_SEED_SIZE;
        if (!s->broken) memcpy(s->seed, ev->bytes, ev->length);
    }
}

/* ---- the leader ---------------------------------------------------------------------------------------- */

/* The sites that are waited for: they train, are in reach and, at the end, have something left to send. */
static uint64_t expected(const struct neb_round *r, uint32_t c0)
{
    uint64_t set = 0;
    for (unsigned i = 0; i < NEB_SITES_MAX; i++) {
        bool contributes = i == r->self ? neb__core_caught_up(r) : r->peer[i].contributes;
        bool clean = r->ending && (i == r->self ? r->cell[c0].clean : r->peer[i].clean);
        if ((r->roster.trains & neb__bit(i)) && neb__lead_live(r, i) && contributes && !clean)
            set |= neb__bit(i);
    }
    return set;
}

static bool all_sent(const struct neb_round *r, uint32_t c0)
{
    return r->ending && !expected(r, c0);
}

/* At the end too few sites are left with work that could hide each other's. */
bool neb__sum_too_few_left(const struct neb_round *r)
{
    for (uint32_t f = 0; f < r->cfg.fragments; f++)
        if (__builtin_popcountll(expected(r, neb__core_fragment_first(r, f))) >= neb__sum_least(training(r)))
            return false;
    return r->sum && r->ending;
}

/* With how many of the set this site has not shared, or they not with it: whoever deals badly to several is found here, not those. */
static int lacking(const struct neb_core_sum *s, uint64_t set, unsigned site)
{
    uint64_t lacks = set & ~neb__bit(site) & ~s->offer[site].shared;
    for (unsigned i = 0; i < NEB_SITES_MAX; i++)
        if (i != site && (set & neb__bit(i)) && !(s->offer[i].shared & neb__bit(site))) lacks |= neb__bit(i);
    return __builtin_popcountll(lacks);
}

/* The greatest set that is found quickly of sites that have shared with each other, of those in `among`. */
static uint64_t offered(const struct neb_round *r, const struct neb_core_sum *s, uint64_t v, uint64_t among)
{
    uint64_t set = 0;
    for (unsigned i = 0; i < NEB_SITES_MAX; i++)
        if ((r->roster.trains & among & neb__bit(i)) && s->offer[i].attempt == next_attempt(s) &&
            s->offer[i].version == v)
            set |= neb__bit(i);
    for (;;) {
        unsigned worst = NEB_NO_SITE;
        int most = 0;
        for (unsigned i = 0; i < NEB_SITES_MAX; i++) {
            if (!(set & neb__bit(i))) continue;
            int lacks = lacking(s, set, i);
            if (lacks > most) most = lacks, worst = i;
        }
        if (worst == NEB_NO_SITE) return set;
        set &= ~neb__bit(worst);
    }
}

static bool waited(struct neb_round *r, struct neb_core_sum *s, int64_t ms)
{
    if (!s->since) s->since = r->now ? r->now : 1;
    return r->now >= s->since + ms;
}

/* The sites whose frames could come now. Whoever has no link is not waited for if the others are enough: an update that does not come
 * costs nothing but its place in this sum. */
static uint64_t linked(const struct neb_round *r)
{
    uint64_t set = neb__bit(r->self);
    for (unsigned i = 0; i < NEB_SITES_MAX; i++)
        if (r->peer[i].up) set |= neb__bit(i);
    return set;
}

static void lead_open(struct neb_round *r, struct neb_core_sum *s, uint32_t c0, uint32_t c1)
{
    uint64_t v = r->cell[c0].v_log, in_reach = expected(r, c0), set = offered(r, s, v, in_reach),
             missing = in_reach & linked(r) & ~set;
    int n = __builtin_popcountll(set);
    if (neb__end_over(r) || n < neb__sum_least(training(r)) || all_sent(r, c0)) {
        s->since = 0;
        return;
    }
    bool late = waited(r, s, r->cfg.round_ms);
    if (missing && !late) return;
    struct neb_record *rec = neb__record_new_sum(0, (uint32_t)n, 0);
    if (rec) {
        rec->type = NEB_RECORD_OPEN;
        rec->c0 = c0, rec->c1 = c1, rec->v = v;
        rec->attempt = next_attempt(s);
        rec->threshold = (uint16_t)neb__sum_threshold(training(r));
        n = 0;
        for (unsigned i = 0; i < NEB_SITES_MAX; i++)
            if (set & neb__bit(i)) rec->contributor[n++] = s->offer[i].entry;
    }
    s->since = 0;
    neb__lead_propose(r, rec);
}

static void propose_void(struct neb_round *r, struct neb_core_sum *s, uint32_t c0, uint32_t c1)
{
    struct neb_record *rec = neb__record_new(0);
    if (rec) {
        rec->type = NEB_RECORD_VOID;
        rec->c0 = c0, rec->c1 = c1, rec->v = r->cell[c0].v_log;
        rec->attempt = s->attempt;
    }
    s->since = 0;
    neb__core_note(r, "too few updates came for a secure sum: the next attempt begins; nothing is lost");
    neb__lead_propose(r, rec);
}

static bool eligible(const struct neb_round *r, const struct neb_core_sum *s, const struct neb_core_update *p,
                     uint32_t c0)
{
    const struct neb_update_header *h = &p->header;
    if (!p->held || p->used || h->c0 != c0 || h->kind != NEB_UPDATE_MASKED || h->attempt != s->attempt)
        return false;
    return h->b == r->cell[c0].v_log && !holds_nothing(h->tau) &&
           neb__record_contributor(open_of(r, s), h->site) && neb__core_quorum(r, p->have);
}

/* The sites that have offered themselves for the next attempt: they are out of the present one. */
static uint64_t out_of(const struct neb_round *r, const struct neb_core_sum *s)
{
    uint64_t set = s->unable == s->attempt ? neb__bit(r->self) : 0;
    for (unsigned i = 0; i < NEB_SITES_MAX; i++)
        if (s->offer[i].attempt == next_attempt(s) && s->offer[i].version == open_of(r, s)->v)
            set |= neb__bit(i);
    return set;
}

static void lead_survivors(struct neb_round *r, struct neb_core_sum *s, uint32_t f, uint32_t c0, uint32_t c1)
{
    struct neb_core_update *by_site[NEB_SITES_MAX] = {0};
    const struct neb_record *open = open_of(r, s);
    uint64_t came = 0, may_come = 0, all = 0;
    for (size_t i = 0; i < r->updates; i++)
        if (eligible(r, s, &r->update[i], c0)) {
            by_site[r->update[i].header.site] = &r->update[i];
            came |= neb__bit(r->update[i].header.site);
        }
    for (uint32_t i = 0; i < open->contributors; i++) all |= neb__bit(open->contributor[i].site);
    may_come = expected(r, c0) & all & ~came & ~out_of(r, s);
    int least = neb__sum_least(training(r)), ready = __builtin_popcountll(came);
    bool hopeless = ready + __builtin_popcountll(may_come) < least;
    /* Those that are here and those that are out of this attempt could make another one without the sites that are waited for. */
    bool better = ready < least && __builtin_popcountll(came | (expected(r, c0) & out_of(r, s))) >= least;
    if (!hopeless && !better) s->since = 0;
    if ((hopeless || better) && waited(r, s, r->cfg.round_ms + r->cfg.grace_ms)) {
        propose_void(r, s, c0, c1);
        return;
    }
    if (open->epoch != r->roster.epoch || neb__end_over(r) || all_sent(r, c0)) {
        propose_void(r, s, c0, c1);
        return;
    }
    if (ready && !r->close_at[f]) r->close_at[f] = r->now;
    bool late = ready && r->now >= r->close_at[f] + r->cfg.round_ms;
    if (ready < least || ((may_come & linked(r)) && !late)) return;
    r->close_at[f] = 0;
    neb__lead_name(r, c0, c1, by_site, ready, s->attempt);
}

/* A ROUND with the updates of SURVIVORS and, for a RESULT, the seeds. */
static void propose_end(struct neb_round *r, struct neb_core_sum *s, bool empty)
{
    const struct neb_record *who = r->log[s->survivors - 1].record;
    uint32_t seeds = empty ? 0 : open_of(r, s)->contributors;
    struct neb_record *rec = neb__record_new_sum(who->updates, 0, seeds);
    if (rec) {
        rec->type = NEB_RECORD_ROUND;
        rec->c0 = who->c0, rec->c1 = who->c1, rec->v = who->v;
        rec->mode = who->mode, rec->cls = who->cls;
        rec->eta = who->eta, rec->mu = who->mu;
        rec->attempt = who->attempt;
        memcpy(rec->update, who->update, who->updates * sizeof *who->update);
        for (uint32_t i = 0; i < rec->updates; i++)
            rec->update[i].reject = empty ? NEB_REJECT_VOID : NEB_REJECT_NONE;
        memcpy(rec->seed, s->seed, seeds * (size_t)NEB_SEED_SIZE);
    }
    if (empty)
        neb__core_note(
            r,
            "a secure sum cannot be unmasked, since too few sites reveal their shares: the updates in it are "
            "given up");
    neb__lead_propose(r, rec);
}

/* Long enough for a site to start again, and shorter than a leader may be idle. */
static int64_t patience(const struct neb_round *r)
{
    int64_t ms = 4 * (r->cfg.round_ms + r->cfg.grace_ms);
    return ms < r->cfg.idle_ms / 2 ? ms : r->cfg.idle_ms / 2;
}

static void lead_result(struct neb_round *r, struct neb_core_sum *s)
{
    bool here = s->seeds_for == s->survivors;
    if (here && !s->broken)
        propose_end(r, s, false);
    else if ((here && s->broken) || neb__end_over(r) || waited(r, s, patience(r)))
        propose_end(r, s, true);
}

void neb__sum_lead(struct neb_round *r, uint32_t f)
{
    uint32_t c0 = neb__core_fragment_first(r, f), c1 = neb__core_fragment_first(r, f + 1);
    struct neb_core_sum *s = &r->sum[f];
    if (neb__log_touched(r, c0, c1)) return;
    if (!s->open)
        lead_open(r, s, c0, c1);
    else if (!s->survivors)
        lead_survivors(r, s, f, c0, c1);
    else
        lead_result(r, s);
}

bool neb__sum_under_way(const struct neb_round *r)
{
    for (uint32_t f = 0; r->sum && f < r->cfg.fragments; f++) {
        bool open = r->sum[f].open;
        for (uint64_t i = r->commit; !NEB_MUTANT(final_over_open) && i < r->head; i++)
            if (r->log[i].record->c0 == neb__core_fragment_first(r, f))
                neb__sum_goes_on(r->log[i].record, &open);
        if (open) return true;
    }
    return false;
}

/* Whether a leader could go on with a sum, as far as a follower knows: it has the offers, or too few contributors are left, or it must
 * bring an end about. Updates that wait are seen elsewhere. */
bool neb__sum_waits(const struct neb_round *r)
{
    int least = neb__sum_least(training(r));
    for (uint32_t f = 0; r->sum && f < r->cfg.fragments; f++) {
        const struct neb_core_sum *s = &r->sum[f];
        const struct neb_record *open = open_of(r, s);
        uint64_t all = 0;
        if (s->survivors) return true;
        uint64_t v = r->cell[neb__core_fragment_first(r, f)].v_log;
        if (!open && __builtin_popcountll(offered(r, s, v, UINT64_MAX)) >= least) return true;
        for (uint32_t i = 0; open && i < open->contributors; i++) all |= neb__bit(open->contributor[i].site);
        if (open && (s->captured == s->attempt || __builtin_popcountll(all & ~out_of(r, s)) < least))
            return true;
    }
    return false;
}

void neb__sum_lead_start(struct neb_round *r)
{
    for (uint32_t f = 0; r->sum && f < r->cfg.fragments; f++) r->sum[f].since = 0;
}
