/* log_take.c: records from peers: committed ones, which a certificate covers; those that a leader prepares; and whole logs that
 * are taken over, at the beginning of a view or after a start.
 *
 * Nothing is touched before a frame is shown to fit: a liar's frame must not cut what was acknowledged. */
#include "round/core.h"
#include "base/mutant.h"

struct walk {
    struct neb_reader in;
    uint64_t index; /* of the record in hand */
    uint32_t left, length;
    const uint8_t *bytes;
};

static bool walk_next(struct walk *w)
{
    if (!w->left) return false;
    w->left--;
    w->index++;
    w->length = neb__read32(&w->in);
    w->bytes = neb__read(&w->in, w->length);
    return w->bytes != NULL;
}

static struct walk walk_start(const struct neb_round_frame *f)
{
    struct walk w = {{f->blob, f->blob_length, false}, f->number - 1, f->records, 0, NULL};
    return w;
}

static bool same_as_here(const struct neb_round *r, const struct walk *w)
{
    const struct neb_core_entry *e = w->index <= r->head ? &r->log[w->index - 1] : NULL;
    return e && e->length == w->length && !memcmp(e->bytes, w->bytes, w->length);
}

/* A certified record takes the place of one that this site may have acknowledged in its present view. Another acknowledgement
 * there would make this site look like the liar, so it waits for the next view; a record of a newer view brings one. A site
 * that is starting may yet trust its disk and keep its lapse, so it leaves the view at once. */
static void displaced(struct neb_round *r, uint64_t index, uint64_t view)
{
    if (index > r->head || index > r->durable.head || r->durable.normal != r->view || view > r->view) return;
    neb__core_note(r, "a quorum certified another record than the one that this site acknowledged; this site "
                      "takes it, and waits for the next view");
    if (r->state == NEB_ROUND_BOOT)
        r->view++;
    else
        r->leaves_view = true;
}

/* The log has a forced roster, made in `view`, that this site had not heard of, or that the view which it had joined began without. That
 * view is higher; what this site signs there from now on would be of another log. */
static void leave_old_view(struct neb_round *r, uint64_t view)
{
    bool takes_part = r->state == NEB_ROUND_LEAD || r->leader != NEB_NO_SITE;
    if (r->state == NEB_ROUND_BOOT)
        neb__view_greet(r); /* the answers so far were judged without it */
    else if (takes_part && view < r->view)
        r->leaves_view = true;
}

/* Takes the record in hand, which is committed. It may displace records that were acknowledged, so nothing is touched before
 * it is shown to fit. False: the rest of the frame is of no use. */
static bool take_one(struct neb_round *r, const struct walk *w)
{
    bool same = same_as_here(r, w);
    struct neb_record *rec;
    if (same && w->index <= r->commit) return true;
    if (w->index != r->commit + 1 || neb__record_decode(w->bytes, w->length, &rec) != NEB_OK) return false;
    uint64_t view = rec->view;
    bool next = rec->index == w->index && neb__hash_equal(&rec->prev, neb__log_hash(r, r->commit)) &&
                neb__log_comes_next(r, rec);
    neb__free(rec);
    if (!next) {
        neb__core_note(r, "ignoring a committed record of a peer that does not follow from this site's log");
        return false;
    }
    if (!same) {
        const uint32_t forced = r->forced_epoch;
        const bool joined = neb__view_joined(r);
        displaced(r, w->index, view);
        neb__log_cut(r, r->commit);
        if (!neb__log_append(r, w->bytes, w->length)) return false;
        if (r->forced_epoch != forced || (joined && !neb__view_joined(r))) leave_old_view(r, view);
    }
    if (view > r->normal) r->normal = view;
    neb__log_commit_to(r, w->index);
    return true;
}

/* A run that began before there were certificates takes the records before its first one on a member's word. */
static void take_old(struct neb_round *r, const struct neb_round_frame *f)
{
    struct walk w = walk_start(f);
    if (r->cfg.quorum != NEB_QUORUM_OLD || r->newest.n || f->proof.n) return;
    while (walk_next(&w) && w.index <= f->commit && take_one(r, &w)) continue;
}

enum chain { CHAIN_BROKEN, CHAIN_FITS, CHAIN_OTHER };

/* Whether the record may stand where it does: a change of the roster needs a certificate of its own, so nothing but a forced
 * roster follows it. *open: the record before was a change. */
static bool chain_link(const struct neb_round *r, const struct neb_record *rec, uint32_t epoch, bool *open,
                       struct neb_members *m)
{
    bool forced = neb__forced_genuine(r, rec), ok = !*open || forced;
    if (forced && rec->roster.epoch == epoch) *m = rec->roster;
    *open = rec->type == NEB_RECORD_ROSTER;
    return ok;
}

/* Whether this site's log behind its last commit, up to the frame's first record, and then the frame's records lead to the
 * certified one; *m becomes the roster that must have signed it. `changes`: they may change the roster on the way. CHAIN_OTHER: they lead there from another record in place of
 * the last commit. */
static enum chain follow_chain(const struct neb_round *r, const struct neb_round_frame *f, bool changes,
                               struct neb_members *m)
{
    struct walk w = walk_start(f);
    uint64_t last = r->commit;
    bool other = false, open = false;
    const bool in_effect = f->proof.epoch == r->roster.epoch && !neb__log_before_force(r, r->commit);
    *m = in_effect ? r->roster : neb__log_roster(r); /* a forced roster commits nothing without its record */
    for (; last + 1 < f->number && last < r->head; last++)
        if (!chain_link(r, r->log[last].record, f->proof.epoch, &open, m) && !changes) return CHAIN_BROKEN;
    struct neb_hash h = *neb__log_hash(r, last);
    while (walk_next(&w) && w.index <= f->proof.index) {
        struct neb_record *rec;
        if (w.index <= r->commit) continue;
        if (w.index != last + 1 || neb__record_decode(w.bytes, w.length, &rec) != NEB_OK) return CHAIN_BROKEN;
        bool fits = rec->index == w.index && (chain_link(r, rec, f->proof.epoch, &open, m) || changes);
        bool linked = neb__hash_equal(&rec->prev, &h);
        neb__free(rec);
        other |= !linked && last == r->commit;
        if (!fits || (!linked && !other) || neb__hash(w.bytes, w.length, &h) != NEB_OK) return CHAIN_BROKEN;
        last = w.index;
    }
    if (last != f->proof.index || !neb__hash_equal(&h, &f->proof.hash)) return CHAIN_BROKEN;
    return other ? CHAIN_OTHER : CHAIN_FITS;
}

/* Takes the records that the frame's certificate covers. */
static void take_certified(struct neb_round *r, unsigned from, const struct neb_round_frame *f)
{
    const struct neb_certificate *c = &f->proof;
    struct neb_members m;
    struct walk w = walk_start(f);
    const uint64_t before = r->commit;
    if (!c->n) return;
    if (c->index <= r->commit || c->index < f->number || c->index >= f->number + f->records) {
        (void)neb__cert_take(r, c);
        return;
    }
    enum chain chain = follow_chain(r, f, false, &m);
    if (chain == CHAIN_BROKEN && f->number > r->commit + 1)
        neb__log_ask(r, from, r->commit + 1, true); /* it goes on from another record */
    bool valid = chain != CHAIN_BROKEN && neb__cert_valid_under(r, c, &m);
    if (chain != CHAIN_BROKEN && !valid) neb__core_doubt(r, from);
    if (!valid) return;
    if (chain == CHAIN_OTHER) {
        neb__cert_two_histories(r, c);
        return;
    }
    neb__cert_remembers(r, c);
    neb__log_commit_to(r, f->number - 1);
    while (walk_next(&w) && w.index <= c->index && take_one(r, &w)) continue;
    if (r->commit >= c->index) neb__cert_keep(r, c);
    neb__prepared_replace(r, &(struct neb_certificate){.n = 0});
    if (r->commit > before && f->commit > r->commit)
        neb__log_ask(r, from, r->commit + 1, true); /* more chunks follow */
}

/* An operator's order names a record as committed. Takes the frame's records if they lead to it. */
bool neb__log_take_ordered(struct neb_round *r, const struct neb_round_frame *f, const struct neb_order *o)
{
    struct neb_round_frame named = *f;
    struct neb_members m;
    struct walk w = walk_start(f);
    named.proof = (struct neb_certificate){.index = o->index, .hash = o->head};
    if (!f->number || o->index <= r->commit || o->index < f->number || o->index >= f->number + f->records)
        return false;
    if (follow_chain(r, &named, true, &m) != CHAIN_FITS) return false;
    neb__log_commit_to(r, f->number - 1);
    while (walk_next(&w) && w.index <= o->index && take_one(r, &w)) continue;
    return r->commit >= o->index;
}

static void take_committed(struct neb_round *r, unsigned from, const struct neb_round_frame *f)
{
    take_old(r, f);
    take_certified(r, from, f);
    if (r->normal > r->view) r->view = r->normal;
}

/* The leader's signature of the frame's last record, whose index goes to *last; NULL: none. */
static const struct neb_said *signed_last(const struct neb_round *r, const struct neb_round_frame *f,
                                          uint64_t *last)
{
    struct walk w = walk_start(f), at = w;
    struct neb_hash h;
    while (walk_next(&w)) at = w;
    *last = at.index;
    return at.bytes && neb__hash(at.bytes, at.length, &h) == NEB_OK ? neb__autograph_of(r, f, *last, &h)
                                                                    : NULL;
}

static void take_prepared(struct neb_round *r, const struct neb_round_frame *f)
{
    struct walk w = walk_start(f);
    uint64_t last, before = r->head;
    const struct neb_said *by_leader = signed_last(r, f, &last);
    if (last <= r->head) return;
    if (!by_leader && neb__autograph_needed(r)) {
        neb__core_note(r, "the leader does not sign a record that it prepared; not acknowledged");
        return;
    }
    if (by_leader) (void)neb__guilt_compare(r, by_leader);
    while (walk_next(&w)) {
        if (w.index <= r->head) continue;
        struct neb_record *rec;
        if (w.index != r->head + 1 || neb__record_decode(w.bytes, w.length, &rec) != NEB_OK) break;
        bool waits = r->head > r->commit && neb__record_is_change(r->log[r->head - 1].record) &&
                     rec->type != NEB_RECORD_FORCED;
        bool ok = !waits && neb__log_of_view(r, rec) && neb__log_acceptable(r, rec);
        if (!ok && !waits)
            neb__core_note(
                r, "the leader prepared a record that does not follow from the log; not acknowledged");
        neb__free(rec);
        if (!ok || !neb__log_append(r, w.bytes, w.length)) break;
    }
    if (by_leader && r->head > before) neb__autograph_keep(r, by_leader);
}

/* Records behind the committed ones as they would follow: rounds on each cell, tokens, the end. */
struct tail {
    uint8_t rounds[64]; /* by cell, as far as counted */
    uint64_t token_cells;
    bool ending;
    bool open[NEB_FRAGMENTS_MAX]; /* secure sums under way, by fragment */
};

static struct tail tail_start(const struct neb_round *r)
{
    struct tail t = {0};
    for (uint32_t f = 0; r->sum && f < r->cfg.fragments; f++) t.open[f] = r->sum[f].open;
    return t;
}

/* The end of a run needs the end of every sum: a retry with other contributors would show what one of them sent. */
static bool may_end(const struct neb_round *r, const struct tail *t)
{
    for (uint32_t f = 0; r->sum && f < r->cfg.fragments; f++)
        if (t->open[f] && !NEB_MUTANT(final_over_open)) return false;
    return r->ending || t->ending;
}

/* Whether a record can stand in a log that is taken over. A voter's word for its log is not enough: nobody may have accepted
 * what it holds. */
static bool plausible(const struct neb_round *r, const struct neb_record *rec, struct tail *t)
{
    if (NEB_MUTANT(sign_anything)) return true;
    if (rec->type == NEB_RECORD_FINAL) return may_end(r, t);
    const struct neb_core_sum *sum = neb__record_has_cells(rec) ? neb__sum_of(r, rec->c0) : NULL;
    if (sum) neb__sum_goes_on(rec, &t->open[sum - r->sum]);
    if (rec->type == NEB_RECORD_END) {
        uint64_t tokens = (r->token_cells + t->token_cells) / r->cfg.cells;
        t->ending = true;
        if (rec->ordered)
            return rec->order->op == NEB_OP_END &&
                   neb__order_genuine(rec->order, &r->cfg.genesis, &r->cfg.seal,
                                      neb__order_operators(r, r->commit));
        return !r->cfg.token_target || r->done || tokens >= r->cfg.token_target;
    }
    if (rec->type >= NEB_RECORD_OPEN) return r->cfg.secure && rec->c1 <= r->cfg.cells;
    if (rec->type != NEB_RECORD_ROUND) return true;
    if (rec->c1 > r->cfg.cells || rec->eta != r->cfg.eta || rec->mu != r->cfg.mu || rec->owner != NEB_NO_SITE)
        return false;
    for (uint32_t c = rec->c0; c < rec->c1; c++)
        if (c < 64 && rec->v != r->cell[c].v_log + t->rounds[c]++) return false;
    for (uint32_t i = 0; i < rec->updates; i++) {
        if (!neb__log_names_as_signed(r, rec, &rec->update[i])) return false;
        if (!rec->update[i].reject)
            t->token_cells += neb__influence_tokens(&r->cfg.influence, rec, i) * (rec->c1 - rec->c0);
    }
    return true;
}

static bool forced_fits(const struct neb_round *r, const struct neb_record *rec)
{
    return neb__forced_genuine(r, rec) && (neb__order_in_time(r, rec) || neb__order_superseded(r, rec));
}

/* Whether the frame's records, up to `top`, are a chain that continues the committed part and has `hash` at `index`. */
static bool leads_to(const struct neb_round *r, const struct neb_round_frame *f, uint64_t index,
                     const struct neb_hash *hash, uint64_t top)
{
    struct walk w = walk_start(f);
    uint64_t last = r->commit;
    struct neb_hash h = *neb__log_hash(r, last);
    bool found = index <= r->commit, change = false;
    struct tail tail = tail_start(r);
    while (walk_next(&w) && w.index <= top) {
        struct neb_record *rec;
        if (w.index <= r->commit) continue;
        if (w.index != last + 1 || neb__record_decode(w.bytes, w.length, &rec) != NEB_OK) return false;
        bool fits =
            rec->index == w.index && neb__hash_equal(&rec->prev, &h) &&
            (rec->type != NEB_RECORD_ROUND || rec->c1 <= r->cfg.cells) &&
            (rec->type != NEB_RECORD_FORCED || forced_fits(r, rec)) &&
            (!change ||
             rec->type == NEB_RECORD_FORCED); /* nothing else stands behind a change without certificate */
        change = neb__record_is_change(rec);
        fits = fits && plausible(r, rec, &tail) && (w.index <= index || neb__log_of_view(r, rec));
        neb__free(rec);
        if (!fits || neb__hash(w.bytes, w.length, &h) != NEB_OK) return false;
        last = w.index;
        if (w.index == index) found = neb__hash_equal(&h, hash);
    }
    return found;
}

bool neb__log_leads_to(const struct neb_round *r, const struct neb_round_frame *f, uint64_t index,
                       const struct neb_hash *hash)
{
    return leads_to(r, f, index, hash, index);
}

uint32_t neb__log_frame_forced(const struct neb_round *r, const struct neb_round_frame *f, uint64_t index)
{
    struct walk w = walk_start(f);
    uint32_t last = neb__log_forced(r, index < r->commit ? index : r->commit);
    while (walk_next(&w) && w.index <= index) {
        struct neb_record *rec;
        if (w.index <= r->commit || neb__record_decode(w.bytes, w.length, &rec) != NEB_OK) continue;
        if (neb__forced_genuine(r, rec)) last = rec->roster.epoch;
        neb__free(rec);
    }
    return last;
}

/* Replaces everything behind the committed part with the frame's records, if these contain `index` with `hash`. Behind that
 * record only a leader may say how its own view goes on: nobody has put its name to what another site adds. */
bool neb__log_install(struct neb_round *r, const struct neb_round_frame *f, uint64_t index,
                      const struct neb_hash *hash, bool beyond)
{
    uint64_t last = 0;
    const struct neb_said *by_leader = beyond ? signed_last(r, f, &last) : NULL;
    if (last <= index) by_leader = NULL; /* the start of the view says that much */
    const uint64_t top = beyond && (by_leader || !neb__autograph_needed(r)) ? UINT64_MAX : index;
    if (!leads_to(r, f, index, hash, top)) return false;
    if (by_leader) neb__autograph_keep(r, by_leader);
    struct walk w = walk_start(f);
    last = r->commit;
    while (walk_next(&w) && w.index <= top) {
        if (w.index <= r->commit) continue;
        last = w.index;
        if (same_as_here(r, &w)) continue;
        neb__log_cut(r, w.index - 1);
        if (!neb__log_append(r, w.bytes, w.length))
            return false; /* also behind a change that waits for its certificate */
    }
    neb__log_cut(r, last > r->commit ? last : r->commit);
    return true;
}

/* How this site's log behind the committed part differs from the frame's. *last: the frame's last record. */
static bool differs_from(const struct neb_round *r, const struct neb_round_frame *f, uint64_t *last)
{
    struct walk w = walk_start(f);
    bool other = false;
    *last = f->number - 1;
    while (walk_next(&w)) {
        other |= w.index > r->commit && w.index <= r->head && !same_as_here(r, &w);
        *last = w.index;
    }
    return other;
}

/* Within its view a leader's log only grows. Nothing that this site has acknowledged under its present lapse may go, so a site
 * whose lapse is not new leaves the view instead. A new lapse makes older acknowledgements void: what depends on them, the
 * leader had when it wrote that lapse down. */
bool neb__log_reconcile(struct neb_round *r, const struct neb_round_frame *f)
{
    uint64_t last;
    if (!f->number || f->number > r->commit + 1) return false;
    bool other = differs_from(r, f, &last), shorter = last < r->head;
    if ((other || shorter) && !r->fresh) {
        neb__core_note(
            r, "the leader's log is another one than this site's in the same view; this site waits for the "
               "next view");
        r->leaves_view = true;
        return false;
    }
    if ((other || shorter) && (r->leader_head == UINT64_MAX || last < r->leader_head)) return false;
    if (last > r->sync_index && !signed_last(r, f, &last) && neb__autograph_needed(r)) return false;
    return neb__log_install(r, f, r->sync_index, &r->sync_hash, true);
}

void neb__log_frame(struct neb_round *r, unsigned from, const struct neb_round_frame *f)
{
    uint64_t was = r->view;
    neb__log_answered(r, from, f->number);
    if (f->number) take_committed(r, from, f);
    if (r->state == NEB_ROUND_HALTED) return;
    bool leaves = r->leaves_view && r->view == was;
    r->leaves_view = false;
    if (leaves) {
        neb__view_follow(r, r->view + 1);
        return;
    }
    if (r->view != was && r->state != NEB_ROUND_BOOT) neb__view_follow(r, r->view);
    if (r->state == NEB_ROUND_FOLLOW && from == r->leader && f->view == r->view && neb__view_joined(r)) {
        take_prepared(r, f);
        (void)neb__cert_take(r, &f->proof);
    } else
        neb__view_tail(r, from, f);
    if (r->leaves_view) neb__view_follow(r, r->view + 1);
    r->leaves_view = false;
}
