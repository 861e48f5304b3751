/* log.c: the replicated log of one site: appending, cutting, checking, committing. (log_disk.c makes it durable, log_take.c takes
 * records from peers, log_ask.c asks for them.)
 *
 * Invariants: commit <= head; committed entries are never cut; nothing but a forced roster stands behind an uncommitted
 * roster change, so any other entry behind a change proves that it is committed. */
#include "round/core.h"
#include "base/mutant.h"

const struct neb_hash *neb__log_hash(const struct neb_round *r, uint64_t index)
{
    return index && index <= r->head ? &r->log[index - 1].hash : &r->cfg.genesis;
}

static void entry_free(struct neb_core_entry *e)
{
    neb__free(e->bytes);
    neb__free(e->record);
}

/* A forced roster stays in effect when another log takes the place of its record. The next leader writes it again, or the log would go
 * on in an epoch that nothing in it explains. */
static void keep_force(struct neb_round *r, const struct neb_record *rec)
{
    if (rec->type != NEB_RECORD_FORCED || !neb__members_equal(&rec->roster, &r->roster)) return;
    r->forced = true;
    r->force = *rec->order;
}

static uint64_t last_forced(const struct neb_round *r, uint64_t head)
{
    uint64_t i = head < r->forced_index ? head : r->forced_index;
    while (i && r->log[i - 1].record->type != NEB_RECORD_FORCED) i--;
    return i;
}

void neb__log_cut(struct neb_round *r, uint64_t head)
{
    for (uint64_t i = r->head; i > head && i > r->commit; i--) keep_force(r, r->log[i - 1].record);
    while (r->head > head) entry_free(&r->log[--r->head]);
    r->forced_index = last_forced(r, head);
    if (r->disk_head > head) r->disk_head = head;
    if (r->cut_low > head) r->cut_low = head;
}

uint32_t neb__log_forced(const struct neb_round *r, uint64_t head)
{
    uint64_t i = last_forced(r, head);
    return i ? r->log[i - 1].record->roster.epoch : 0;
}

bool neb__log_before_force(const struct neb_round *r, uint64_t head)
{
    return r->forced_epoch > neb__log_forced(r, head) && !NEB_MUTANT(views_over_force);
}

/* A forced roster is in the log now. From here on the log is of the view in which its record was made, however high the view of
 * the old roster was that it was of before. */
static void force_in_log(struct neb_round *r, const struct neb_record *rec)
{
    r->forced_index = rec->index;
    if (r->normal > rec->view && !NEB_MUTANT(views_over_force)) r->normal = rec->view;
    if (rec->roster.epoch > r->forced_epoch) r->forced_epoch = rec->roster.epoch;
    if (rec->roster.epoch < r->roster.epoch) return;
    r->forced = false; /* it must not be there twice */
    if (rec->roster.epoch == r->roster.epoch) return;
    r->roster = rec->roster; /* the old quorum is gone: it counts at once */
    neb__core_act(r, NEB_ACT_ROSTER);
}

bool neb__log_append(struct neb_round *r, const uint8_t *bytes, size_t n)
{
    struct neb_core_entry e = {.length = n};
    if (n > NEB_RECORD_MAX || neb__record_decode(bytes, n, &e.record) != NEB_OK) return false;
    if (e.record->index != r->head + 1 || !neb__hash_equal(&e.record->prev, neb__log_hash(r, r->head)))
        goto no;
    if (neb__record_has_cells(e.record) && e.record->c1 > r->cfg.cells) goto no;
    if (e.record->type == NEB_RECORD_FORCED && !neb__forced_genuine(r, e.record) && !NEB_MUTANT(trust_orders))
        goto no;
    if (r->head > r->commit && neb__record_is_change(r->log[r->head - 1].record)) {
        /* On this site's own disk a record behind a change proves that the change is committed. A forced roster does not
         * wait for it, and proves nothing. */
        const bool waits = e.record->type != NEB_RECORD_FORCED;
        if (waits && r->booted) goto no;
        if (waits || (!r->booted && NEB_MUTANT(close_orders))) neb__log_commit_to(r, r->head);
    }
    if (r->head == r->log_cap) {
        uint64_t cap = r->log_cap ? 2 * r->log_cap : 64;
        struct neb_core_entry *log = neb__realloc(r->log, cap * sizeof *log);
        if (!log) goto nomem;
        r->log = log, r->log_cap = cap;
    }
    e.bytes = neb__malloc(n);
    if (!e.bytes || neb__hash(bytes, n, &e.hash) != NEB_OK) goto nomem;
    memcpy(e.bytes, bytes, n);
    r->log[r->head++] = e;
    if (e.record->type == NEB_RECORD_FORCED) force_in_log(r, e.record);
    return true;
nomem:
    r->failed = NEB_ERR_NOMEM;
no:
    entry_free(&e);
    return false;
}

bool neb__log_touched(const struct neb_round *r, uint32_t c0, uint32_t c1)
{
    for (uint64_t i = r->commit; i < r->head; i++) {
        const struct neb_record *rec = r->log[i].record;
        if (neb__record_has_cells(rec) && rec->c0 < c1 && c0 < rec->c1) return true;
    }
    return false;
}

/* Whether the run has reached its end by the records before the head. */
static bool ending_by_log(const struct neb_round *r)
{
    for (uint64_t i = r->commit; i < r->head; i++)
        if (r->log[i].record->type == NEB_RECORD_END) return true;
    return r->ending;
}

bool neb__log_names_as_signed(const struct neb_round *r, const struct neb_record *rec,
                              const struct neb_named *p)
{
    for (size_t i = 0; i < r->updates; i++) {
        const struct neb_core_update *u = &r->update[i];
        const struct neb_update_header *h = &u->header;
        if (!u->held || !neb__hash_equal(&u->hash, &p->hash)) continue;
        return !u->outdated && h->site == p->site && h->k == p->k && h->b == p->b && h->weight == p->weight &&
               h->tau == p->tau && h->length == p->length && h->tokens == p->tokens && h->c0 == rec->c0 &&
               h->c1 == rec->c1 && h->attempt == rec->attempt;
    }
    return true; /* not here: others hold it */
}

/* Whether this voter can put its name to the record: the arithmetic is that of the genesis, and updates are named as their
 * authors signed them. */
static bool honest_round(const struct neb_round *r, const struct neb_record *rec)
{
    if (NEB_MUTANT(sign_anything)) return true;
    if (rec->eta != r->cfg.eta || rec->mu != r->cfg.mu || rec->owner != NEB_NO_SITE) return false;
    bool average = ending_by_log(r) || neb__lead_median_tau(rec) > 2 * r->cfg.nominal;
    if (rec->mode != (average ? NEB_MODE_AVERAGE : NEB_MODE_NESTEROV)) return false;
    for (uint32_t i = 0; i < rec->updates; i++)
        if (!neb__log_names_as_signed(r, rec, &rec->update[i])) return false;
    return neb__lead_rejects_rightly(r, rec);
}

/* END needs the token target, an order, or, in a run without a target, the leader's word; FINAL needs END. */
static bool honest_end(const struct neb_round *r, const struct neb_record *rec)
{
    if (NEB_MUTANT(sign_anything)) return true;
    if (rec->type == NEB_RECORD_FINAL) return r->ending && !r->ended && !neb__sum_under_way(r);
    if (rec->type != NEB_RECORD_END || rec->ordered) return true;
    return !r->cfg.token_target || r->done || r->tokens >= r->cfg.token_target;
}

/* Whether an update with this number may have been in a record already, or was made under a key that was replaced. */
bool neb__log_counted(const struct neb_round *r, uint32_t cell, unsigned site, uint64_t k, uint64_t b)
{
    size_t at = cell * (size_t)NEB_SITES_MAX + site;
    return k <= r->lastk[at] || b < r->newest_b[at];
}

static bool updates_acceptable(const struct neb_round *r, const struct neb_record *rec)
{
    for (uint32_t i = 0; i < rec->updates; i++) {
        const struct neb_named *p = &rec->update[i];
        if (!(r->roster.trains & neb__bit(p->site))) return false;
        if (p->b > rec->v || rec->v > p->b + r->cfg.staleness) return NEB_MUTANT(keep_expired);
        for (uint32_t c = rec->c0; c < rec->c1; c++)
            if (neb__log_counted(r, c, p->site, p->k, p->b)) return false;
    }
    return true;
}

/* The records of a sum. What SURVIVORS names is checked as a round's updates are; RESULT and VOID repeat it. */
static bool sum_follows(const struct neb_round *r, const struct neb_record *rec, bool past)
{
    if ((!past && neb__log_touched(r, rec->c0, rec->c1)) || rec->c1 > r->cfg.cells) return false;
    if (!neb__sum_follows(r, rec)) return false;
    if (rec->type != NEB_RECORD_SURVIVORS) return true;
    return updates_acceptable(r, rec) && (past || honest_round(r, rec));
}

/* Whether the record follows from the records before it alone. It may only touch cells that no
 * uncommitted record touches, so the committed versions are the versions at the head. `past`: the
 * record is said to be committed. */
static bool follows(const struct neb_round *r, const struct neb_record *rec, bool past)
{
    if (rec->type == NEB_RECORD_FORCED) return neb__order_explains(r, rec, past);
    if (rec->epoch != r->roster.epoch) return false;
    if (neb__record_has_cells(rec) && (r->cfg.secure || rec->attempt || rec->type != NEB_RECORD_ROUND))
        return sum_follows(r, rec, past);
    if (rec->type == NEB_RECORD_ROUND) {
        if ((!past && neb__log_touched(r, rec->c0, rec->c1)) || rec->c1 > r->cfg.cells) return false;
        for (uint32_t c = rec->c0; c < rec->c1; c++)
            if (r->cell[c].v_log != rec->v) return false;
        return updates_acceptable(r, rec) && (past || honest_round(r, rec));
    }
    if (!past && !honest_end(r, rec)) return false;
    if (rec->type == NEB_RECORD_ROSTER && rec->index != r->commit + 1 && !NEB_MUTANT(roster_any_time))
        return false;
    return neb__order_explains(r, rec, past);
}

bool neb__log_acceptable(struct neb_round *r, const struct neb_record *rec)
{
    return rec->view <= r->view && follows(r, rec, false);
}

/* Whether the record bears the view in which its leader prepared it. Only the log with which the view began has others. Voters take
 * nothing else from a leader, so the view of a record tells whose it is. */
bool neb__log_of_view(const struct neb_round *r, const struct neb_record *rec)
{
    return rec->view == r->view || rec->index <= r->start_index;
}

/* The roster by the committed records. The one in effect may be an operator's that is not in the log yet. */
struct neb_members neb__log_roster(const struct neb_round *r)
{
    for (uint64_t i = r->commit; i > 0; i--)
        if (neb__record_is_change(r->log[i - 1].record)) return r->log[i - 1].record->roster;
    return r->cfg.roster;
}

/* Whether a record can follow the last committed one. */
bool neb__log_comes_next(struct neb_round *r, const struct neb_record *rec)
{
    const struct neb_members now = r->roster;
    if (r->commit && rec->view < r->log[r->commit - 1].record->view) return false;
    if (rec->view > r->view + NEB_VIEW_LEAP) return false;
    if (rec->epoch < now.epoch) r->roster = neb__log_roster(r);
    bool ok = follows(r, rec, true);
    r->roster = now;
    return ok;
}

static void commit_round(struct neb_round *r, const struct neb_record *rec)
{
    for (uint32_t c = rec->c0; c < rec->c1; c++) {
        struct neb_core_cell *cell = &r->cell[c];
        cell->v_log = rec->v + 1;
        if (cell->v_log > cell->v_site + r->cfg.staleness) cell->away = true;
        for (uint32_t i = 0; i < rec->updates; i++)
            r->lastk[c * NEB_SITES_MAX + rec->update[i].site] = rec->update[i].k;
    }
    for (uint32_t i = 0; i < rec->updates; i++) {
        const struct neb_named *p = &rec->update[i];
        if (!p->reject)
            r->token_cells += neb__influence_tokens(&r->cfg.influence, rec, i) * (rec->c1 - rec->c0);
        struct neb_core_update *pl = neb__core_update(r, &p->hash, false);
        if (pl) pl->used = true, pl->index = rec->index;
        if (p->site != r->self) continue;
        if (p->k >= r->next_k) r->next_k = p->k == UINT64_MAX ? p->k : p->k + 1;
        if (r->spoke && p->k >> 48 > r->lapse[r->self])
            neb__core_note(
                r, "a record names an update in this site's name that it did not make, and with a "
                   "number so high that none of its own can follow: somebody else has its key; get a "
                   "new one (nebula-i site rekey; the operator: nebula-i order FOLDER rekey REQUEST)");
    }
    r->tokens = r->token_cells / r->cfg.cells;
}

void neb__log_commit_to(struct neb_round *r, uint64_t index)
{
    bool change = false;
    while (r->commit < index && r->commit < r->head) {
        const struct neb_record *rec = r->log[r->commit++].record;
        if (rec->type == NEB_RECORD_ROUND) commit_round(r, rec);
        if (neb__record_has_cells(rec)) neb__sum_committed(r, rec);
        if (neb__record_is_change(rec)) r->ever |= rec->roster.members;
        if (neb__record_is_change(rec) && rec->roster.epoch >= r->roster.epoch) {
            r->roster = rec->roster;
            r->forced = false;
            change = true;
        }
        if (rec->type == NEB_RECORD_END) r->ending = true;
        if (rec->type == NEB_RECORD_FINAL) r->ended = true, r->final_index = rec->index;
        neb__order_committed(r, rec);
    }
    if (change) neb__core_act(r, NEB_ACT_ROSTER);
}
