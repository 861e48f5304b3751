/* log.c: the replicated log of one site: appending, cutting, committing, and making it durable.
 *
 * The log in memory runs ahead of the disk. Records up to `disk_head` are on disk as they are in memory, and
 * `durable` is the content of the acked mark. A promise (an acknowledgement, a vote) is only ever made from
 * these two. At most one write is under way. It carries everything that differs, records first and then the
 * mark; when it is done, the next one starts if anything differs again.
 *
 * Invariants: commit <= head; committed entries are never cut; nothing stands behind an uncommitted roster
 * change, so an entry behind a change proves that it is committed. */
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

void neb__log_cut(struct neb_round *r, uint64_t head)
{
    while (r->head > head) entry_free(&r->log[--r->head]);
    if (r->disk_head > head) r->disk_head = head;
    if (r->cut_low > head) r->cut_low = head;
}

static bool is_change(const struct neb_record *rec)
{
    return rec->type == NEB_RECORD_ROSTER || rec->type == NEB_RECORD_FORCED;
}

bool neb__log_append(struct neb_round *r, const uint8_t *bytes, size_t n)
{
    struct neb_core_entry e = {.length = n};
    if (n > NEB_RECORD_MAX || neb__record_decode(bytes, n, &e.record) != NEB_OK) return false;
    if (e.record->index != r->head + 1 || !neb__hash_equal(&e.record->prev, neb__log_hash(r, r->head)))
        goto no;
    if (e.record->type == NEB_RECORD_ROUND && e.record->c1 > r->cfg.cells) goto no;
    if (e.record->type == NEB_RECORD_FORCED && !neb__forced_genuine(r, e.record) && !NEB_MUTANT(trust_orders))
        goto no;
    if (r->head > r->commit && is_change(r->log[r->head - 1].record)) {
        /* On this site's own disk a record behind a change proves that the change is committed. */
        if (!r->booted)
            neb__log_commit_to(r, r->head);
        else if (e.record->type != NEB_RECORD_FORCED)
            goto no; /* a forced roster does not wait for it */
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
    if (e.record->type == NEB_RECORD_FORCED && e.record->roster.epoch >= r->roster.epoch)
        r->forced = false; /* it is in the log now, and must not be there twice */
    if (e.record->type == NEB_RECORD_FORCED &&
        e.record->roster.epoch > r->roster.epoch) { /* the old quorum is gone: it counts at once */
        r->roster = e.record->roster;
        neb__core_act(r, NEB_ACT_ROSTER);
    }
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
        if (rec->type == NEB_RECORD_ROUND && rec->c0 < c1 && c0 < rec->c1) return true;
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

static bool names_as_signed(const struct neb_round *r, const struct neb_record *rec,
                            const struct neb_named *p)
{
    for (size_t i = 0; i < r->updates; i++) {
        const struct neb_core_update *u = &r->update[i];
        const struct neb_update_header *h = &u->header;
        if (!u->held || !neb__hash_equal(&u->hash, &p->hash)) continue;
        return h->site == p->site && h->k == p->k && h->b == p->b && h->weight == p->weight &&
               h->tau == p->tau && h->length == p->length && h->tokens == p->tokens && h->c0 == rec->c0 &&
               h->c1 == rec->c1;
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
        if (!names_as_signed(r, rec, &rec->update[i])) return false;
    return neb__lead_rejects_rightly(r, rec);
}

/* END needs the token target, an order, or, in a run without a target, the leader's word; FINAL needs END. */
static bool honest_end(const struct neb_round *r, const struct neb_record *rec)
{
    if (NEB_MUTANT(sign_anything)) return true;
    if (rec->type == NEB_RECORD_FINAL) return r->ending && !r->ended;
    if (rec->type != NEB_RECORD_END || rec->ordered) return true;
    return !r->cfg.token_target || r->done || r->tokens >= r->cfg.token_target;
}

static bool updates_acceptable(const struct neb_round *r, const struct neb_record *rec)
{
    for (uint32_t i = 0; i < rec->updates; i++) {
        const struct neb_named *p = &rec->update[i];
        if (!(r->roster.trains & neb__bit(p->site))) return false;
        if (p->b > rec->v || rec->v > p->b + r->cfg.staleness) return NEB_MUTANT(keep_expired);
        for (uint32_t c = rec->c0; c < rec->c1; c++)
            if (p->k <= r->lastk[c * NEB_SITES_MAX + p->site]) return false;
    }
    return true;
}

/* Whether the record follows from the records before it alone. It may only touch cells that no
 * uncommitted record touches, so the committed versions are the versions at the head. `past`: the
 * record is said to be committed. */
static bool follows(const struct neb_round *r, const struct neb_record *rec, bool past)
{
    if (rec->type == NEB_RECORD_FORCED) return neb__order_explains(r, rec, past);
    if (rec->epoch != r->roster.epoch) return false;
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

/* The roster by the committed records. The one in effect may be an operator's that is not in the log yet. */
struct neb_members neb__log_roster(const struct neb_round *r)
{
    for (uint64_t i = r->commit; i > 0; i--)
        if (is_change(r->log[i - 1].record)) return r->log[i - 1].record->roster;
    return r->cfg.roster;
}

/* Whether a record can follow the last committed one. */
static bool comes_next(struct neb_round *r, const struct neb_record *rec)
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
        if (p->site == r->self && p->k >= r->next_k) r->next_k = p->k + 1;
    }
    r->tokens = r->token_cells / r->cfg.cells;
}

void neb__log_commit_to(struct neb_round *r, uint64_t index)
{
    bool change = false;
    while (r->commit < index && r->commit < r->head) {
        const struct neb_record *rec = r->log[r->commit++].record;
        if (rec->type == NEB_RECORD_ROUND) commit_round(r, rec);
        if (is_change(rec)) r->ever |= rec->roster.members;
        if (is_change(rec) && rec->roster.epoch >= r->roster.epoch) {
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

/* ---- the disk ------------------------------------------------------------------------------------------ */

static neb_status mark_encode(const struct neb_core_promise *p, struct neb_buf *b)
{
    uint8_t h[40];
    neb__put32(h, 1);
    neb__put32(h + 4, p->incarnation);
    neb__put64(h + 8, p->view);
    neb__put64(h + 16, p->normal);
    neb__put64(h + 24, p->head);
    neb__put64(h + 32, p->commit);
    NEB_TRY(neb__buf_append(b, h, sizeof h));
    uint8_t lapses[4 * NEB_SITES_MAX];
    for (int i = 0; i < NEB_SITES_MAX; i++) neb__put32(lapses + 4 * i, p->lapse[i]);
    return neb__buf_append(b, lapses, sizeof lapses);
}

static bool mark_decode(const uint8_t *bytes, size_t n, struct neb_core_promise *p)
{
    struct neb_reader in = {bytes, n, false};
    bool ok = neb__read32(&in) == 1;
    p->incarnation = neb__read32(&in);
    p->view = neb__read64(&in);
    p->normal = neb__read64(&in);
    p->head = neb__read64(&in);
    p->commit = neb__read64(&in);
    for (int i = 0; i < NEB_SITES_MAX; i++) p->lapse[i] = neb__read32(&in);
    return ok && !in.bad && !in.left && p->normal <= p->view;
}

neb_status neb__round_first_mark(struct neb_buf *out)
{
    struct neb_core_promise p;
    memset(&p, 0, sizeof p);
    return mark_encode(&p, out);
}

/* An empty disk stays empty until the greeting is over. If records that a peer sends meanwhile were written
 * to it, a lost disk would look like one that was never lost. */
static bool stays_empty(const struct neb_round *r)
{
    return r->empty && r->state == NEB_ROUND_BOOT;
}

static void promise_now(const struct neb_round *r, struct neb_core_promise *p)
{
    bool none = stays_empty(r);
    p->view = none ? 0 : r->view;
    p->normal = none ? 0 : r->normal;
    p->head = none ? 0 : r->head;
    p->commit = none ? 0 : r->commit;
    p->incarnation = r->incarnation;
    memcpy(p->lapse, r->lapse, sizeof p->lapse);
}

static bool differs(const struct neb_round *r)
{
    const struct neb_core_promise *d = &r->durable;
    if (d->incarnation != r->incarnation || memcmp(d->lapse, r->lapse, sizeof d->lapse)) return true;
    if (stays_empty(r)) return false;
    if (r->ended && d->commit < r->final_index) return true; /* the proof of the end, for a later start */
    if (r->prepared.n &&
        (r->prepared.view != r->prepared_durable.view || r->prepared.index != r->prepared_durable.index))
        return true; /* this site may not speak of it before it is on disk */
    return r->disk_head < r->head || d->head != r->head || r->durable_epoch != r->roster.epoch ||
           d->view != r->view || d->normal != r->normal;
}

static void extras_free(struct neb_round *r)
{
    for (size_t i = 0; i < r->extras; i++) neb__free(r->extra[i].bytes);
    neb__free(r->extra);
    r->extra = NULL;
    r->extras = 0;
}

static void extra_add(struct neb_round *r, uint8_t kind, uint64_t index, struct neb_buf *b)
{
    struct neb_round_extra *e = neb__realloc(r->extra, (r->extras + 1) * sizeof *e);
    if (!e) {
        r->failed = NEB_ERR_NOMEM;
        neb__buf_free(b);
        return;
    }
    r->extra = e;
    r->extra[r->extras++] = (struct neb_round_extra){kind, index, b->data, b->len};
}

static void extra_certificate(struct neb_round *r, uint8_t kind, const struct neb_certificate *c)
{
    struct neb_buf b;
    neb__buf_init(&b, NEB_CERTIFICATE_MAX);
    if (neb__certificate_put(c, &b) != NEB_OK) r->failed = NEB_ERR_NOMEM;
    extra_add(r, kind, c->index, &b);
}

/* Certificates and words that are to be in the ledger and are not. */
static void gather_extras(struct neb_round *r, uint64_t head)
{
    extras_free(r);
    for (r->kept_writing = r->kept_saved; r->kept_writing < r->kepts; r->kept_writing++) {
        const struct neb_certificate *c = &r->kept[r->kept_writing];
        if (c->index > head) break;
        extra_certificate(r, NEB_EXTRA_CERTIFICATE, c);
    }
    r->prepared_writing = r->prepared;
    const struct neb_certificate *p = &r->prepared, *d = &r->prepared_durable;
    if (p->n && (p->view != d->view || p->index != d->index)) extra_certificate(r, NEB_EXTRA_PREPARED, p);
    for (unsigned i = 0; i < NEB_SITES_MAX; i++) {
        uint8_t w[4 + NEB_SEAL_SIZE];
        struct neb_buf b;
        if (!(r->lapse_unsaved & neb__bit(i))) continue;
        neb__put32(w, r->word[i].lapse);
        memcpy(w + 4, r->word[i].signature, NEB_SEAL_SIZE);
        neb__buf_init(&b, sizeof w);
        if (neb__buf_append(&b, w, sizeof w) != NEB_OK) r->failed = NEB_ERR_NOMEM;
        extra_add(r, NEB_EXTRA_LAPSE, i, &b);
    }
    r->lapse_writing = r->lapse_unsaved;
    r->lapse_unsaved = 0;
    memcpy(r->word_writing, r->word, sizeof r->word);
}

const struct neb_round_extra *neb__round_extras(const struct neb_round *r, size_t *count)
{
    *count = r->extras;
    return r->extra;
}

void neb__log_write(struct neb_round *r)
{
    /* A mark written before the others have told what was lost would make this disk look undamaged. */
    if (r->state == NEB_ROUND_BOOT && (r->damaged || r->forgot)) return;
    if (r->write_busy || r->state == NEB_ROUND_HALTED || r->now < r->write_retry || !differs(r)) return;
    promise_now(r, &r->writing);
    r->writing_epoch = stays_empty(r) ? r->durable_epoch : r->roster.epoch;
    struct neb_buf b;
    neb__buf_init(&b, NEB_MARK_MAX);
    struct neb_action *a = neb__core_act(r, NEB_ACT_WRITE);
    if (mark_encode(&r->writing, &b) != NEB_OK) r->failed = NEB_ERR_NOMEM;
    a->id = ++r->write_id;
    a->index = r->disk_head + 1;
    a->count = stays_empty(r) ? 0 : r->head - r->disk_head;
    a->bytes = b.data;
    a->length = b.len;
    gather_extras(r, stays_empty(r) ? 0 : r->head);
    r->write_busy = true;
    r->cut_low = r->head;
}

void neb__log_written(struct neb_round *r, uint64_t id, neb_status status)
{
    if (!r->write_busy || id != r->write_id) return;
    r->write_busy = false;
    if (status != NEB_OK) r->lapse_unsaved |= r->lapse_writing;
    if (status == NEB_ERR_NOSPACE) {
        neb__core_note(
            r, "the disk is full: this site confirms no update until there is room; training goes on");
        r->write_retry = r->now + 1000;
        return;
    }
    if (status != NEB_OK) {
        neb__core_halt(
            r, "writing the ledger failed: this site stops voting; restart it to verify what is on disk");
        return;
    }
    r->durable = r->writing;
    r->durable_epoch = r->writing_epoch; /* after a restart the site must know that a change is committed */
    r->disk_head = r->writing.head < r->cut_low ? r->writing.head : r->cut_low;
    r->kept_saved = r->kept_writing;
    r->prepared_durable = r->prepared_writing;
    memcpy(r->word_durable, r->word_writing, sizeof r->word);
    neb__view_durable(r);
}

bool neb__log_acked(const struct neb_round *r, struct neb_core_promise *out)
{
    *out = r->durable;
    if (NEB_MUTANT(view_not_durable)) promise_now(r, out);
    if (NEB_MUTANT(view_not_durable)) return true;
    out->head = r->disk_head;
    return r->durable.view == r->view && r->durable.normal == r->normal && r->durable.head >= r->disk_head &&
           r->durable.incarnation == r->incarnation &&
           r->durable.lapse[r->self] ==
               r->lapse[r->self]; /* else its word would show that it forgot, after a crash */
}

/* Versions of applied cells, and of the site's own merged state, prove commits that the mark, written
 * lazily, may not know of yet. */
static uint64_t commit_shown(const struct neb_round *r, const struct neb_round_boot *boot)
{
    uint64_t commit = 0;
    for (uint64_t i = 0; i < r->head; i++) {
        const struct neb_record *rec = r->log[i].record;
        if (rec->type != NEB_RECORD_ROUND) continue;
        for (uint32_t c = rec->c0; c < rec->c1; c++)
            if (boot->applied[c] > rec->v || boot->merged[c] > rec->v) commit = rec->index;
    }
    return commit;
}

/* A certificate from this site's own disk. It counts if its record is in the log. */
static void boot_certificate(struct neb_round *r, uint8_t kind, const uint8_t *bytes, size_t n)
{
    struct neb_reader in = {bytes, n, false};
    struct neb_certificate c;
    if (!neb__certificate_get(&in, &c) || in.left || !c.n) return;
    if (kind == NEB_EXTRA_PREPARED) {
        r->prepared = r->prepared_durable = c;
        return;
    }
    if (c.index > r->head || c.kind != neb__cert_kind(r) ||
        !neb__hash_equal(neb__log_hash(r, c.index), &c.hash))
        return;
    bool newer = !r->newest.n || c.index > r->newest.index;
    if (newer) r->newest = c;
    if (kind && newer && neb__cert_store(r, &c)) r->kept_saved = r->kepts;
}

static void boot_extras(struct neb_round *r, const struct neb_round_boot *boot)
{
    for (size_t i = 0; i < boot->extras; i++) {
        const struct neb_round_extra *e = &boot->extra[i];
        if (e->kind == NEB_EXTRA_LAPSE && e->index < NEB_SITES_MAX && e->length == 4 + NEB_SEAL_SIZE) {
            struct neb_round_frame_word *w = &r->word[e->index];
            *w = (struct neb_round_frame_word){.site = (uint8_t)e->index, .lapse = neb__get32(e->bytes)};
            memcpy(w->signature, e->bytes + 4, NEB_SEAL_SIZE);
            r->word_durable[e->index] = *w;
        } else if (e->kind != NEB_EXTRA_LAPSE)
            boot_certificate(r, e->kind, e->bytes, e->length);
    }
    if (boot->certificate) boot_certificate(r, 0, boot->certificate, boot->certificate_length);
    if (r->damaged)
        r->prepared.n = r->prepared_durable.n = 0; /* its record may be lost with the disk's end */
    neb__prepared_forget(r);                       /* another record had taken its place before this start */
}

neb_status neb__log_boot(struct neb_round *r, const struct neb_round_boot *boot)
{
    struct neb_core_promise p;
    memset(&p, 0, sizeof p);
    if (!boot->mark || !mark_decode(boot->mark, boot->mark_length, &p)) {
        memset(&p, 0, sizeof p);
        r->damaged = true;
    }
    if (boot->damaged) r->damaged = true;
    for (uint64_t i = 0; i < boot->records; i++)
        if (!neb__log_append(r, boot->record[i], boot->record_length[i])) {
            r->damaged = true;
            break;
        }
    if (r->failed != NEB_OK) return neb__fail(NEB_ERR_NOMEM, "out of memory for the ledger");
    if (r->head < p.head) r->damaged = true;
    neb__log_cut(r, r->head < p.head ? r->head : p.head);
    if (NEB_MUTANT(lose_mark) || NEB_MUTANT(vote_after_rollback)) r->damaged = false;
    if (NEB_MUTANT(lose_mark)) p.view = p.normal = 0;
    if (r->damaged) {
        /* Records before a gap may have been replaced behind it: only commits that the records prove
         * count. */
        neb__log_cut(r, r->commit);
        p.normal = 0;
        p.commit = r->commit;
    }
    r->empty = !p.view && !r->head;
    r->view = p.view;
    r->normal = p.normal;
    memcpy(r->lapse, p.lapse, sizeof r->lapse);
    r->disk_head = r->head;
    r->boot_view = r->view, r->boot_normal = r->normal, r->boot_head = r->head;
    r->durable = p;
    r->durable.head = r->head;
    r->incarnation = p.incarnation + 1;
    uint64_t shown = r->damaged ? 0 : commit_shown(r, boot);
    neb__log_commit_to(r, p.commit > shown ? p.commit : shown);
    r->durable_epoch = r->roster.epoch;
    boot_extras(r, boot);
    if (r->newest.n && r->newest.index > r->commit && !r->damaged) neb__log_commit_to(r, r->newest.index);
    neb__cert_found(r);
    r->booted = true;
    return r->failed == NEB_OK ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for the ledger");
}

/* ---- records from peers -------------------------------------------------------------------------------- */

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
                comes_next(r, rec);
    neb__free(rec);
    if (!next) {
        neb__core_note(r, "ignoring a committed record of a peer that does not follow from this site's log");
        return false;
    }
    if (!same) {
        displaced(r, w->index, view);
        neb__log_cut(r, r->commit);
        if (!neb__log_append(r, w->bytes, w->length)) return false;
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
    *m = f->proof.epoch == r->roster.epoch ? r->roster : neb__log_roster(r);
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

static void take_prepared(struct neb_round *r, const struct neb_round_frame *f)
{
    struct walk w = walk_start(f);
    while (walk_next(&w)) {
        if (w.index <= r->head) continue;
        struct neb_record *rec;
        if (w.index != r->head + 1 || neb__record_decode(w.bytes, w.length, &rec) != NEB_OK) break;
        bool waits =
            r->head > r->commit && is_change(r->log[r->head - 1].record) && rec->type != NEB_RECORD_FORCED;
        bool ok = !waits && neb__log_acceptable(r, rec);
        if (!ok && !waits)
            neb__core_note(
                r, "the leader prepared a record that does not follow from the log; not acknowledged");
        neb__free(rec);
        if (!ok || !neb__log_append(r, w.bytes, w.length)) break;
    }
}

/* Records behind the committed ones as they would follow: rounds on each cell, tokens, the end. */
struct tail {
    uint8_t rounds[64]; /* by cell, as far as counted */
    uint64_t token_cells;
    bool ending;
};

/* Whether a record can stand in a log that is taken over. A voter's word for its log is not enough: nobody may have accepted
 * what it holds. */
static bool plausible(const struct neb_round *r, const struct neb_record *rec, struct tail *t)
{
    if (NEB_MUTANT(sign_anything)) return true;
    if (rec->type == NEB_RECORD_FINAL) return r->ending || t->ending;
    if (rec->type == NEB_RECORD_END) {
        uint64_t tokens = (r->token_cells + t->token_cells) / r->cfg.cells;
        t->ending = true;
        if (rec->ordered)
            return rec->order.op == NEB_OP_END &&
                   neb__order_genuine(&rec->order, &r->cfg.genesis, &r->cfg.seal);
        return !r->cfg.token_target || r->done || tokens >= r->cfg.token_target;
    }
    if (rec->type != NEB_RECORD_ROUND) return true;
    if (rec->c1 > r->cfg.cells || rec->eta != r->cfg.eta || rec->mu != r->cfg.mu || rec->owner != NEB_NO_SITE)
        return false;
    for (uint32_t c = rec->c0; c < rec->c1; c++)
        if (c < 64 && rec->v != r->cell[c].v_log + t->rounds[c]++) return false;
    for (uint32_t i = 0; i < rec->updates; i++) {
        if (!names_as_signed(r, rec, &rec->update[i])) return false;
        if (!rec->update[i].reject)
            t->token_cells += neb__influence_tokens(&r->cfg.influence, rec, i) * (rec->c1 - rec->c0);
    }
    return true;
}

/* Whether the frame's records, up to `top`, are a chain that continues the committed part and has `hash` at `index`. */
static bool leads_to(const struct neb_round *r, const struct neb_round_frame *f, uint64_t index,
                     const struct neb_hash *hash, uint64_t top)
{
    struct walk w = walk_start(f);
    uint64_t last = r->commit;
    struct neb_hash h = *neb__log_hash(r, last);
    bool found = index <= r->commit, change = false;
    struct tail tail = {0};
    while (walk_next(&w) && w.index <= top) {
        struct neb_record *rec;
        if (w.index <= r->commit) continue;
        if (w.index != last + 1 || neb__record_decode(w.bytes, w.length, &rec) != NEB_OK) return false;
        bool fits =
            rec->index == w.index && neb__hash_equal(&rec->prev, &h) &&
            (rec->type != NEB_RECORD_ROUND || rec->c1 <= r->cfg.cells) &&
            (rec->type != NEB_RECORD_FORCED || (neb__forced_genuine(r, rec) && neb__order_in_time(r, rec))) &&
            (!change ||
             rec->type == NEB_RECORD_FORCED); /* nothing else stands behind a change without certificate */
        change = is_change(rec);
        fits = fits && plausible(r, rec, &tail);
        neb__free(rec);
        if (!fits || neb__hash(w.bytes, w.length, &h) != NEB_OK) return false;
        last = w.index;
        if (w.index == index) found = neb__hash_equal(&h, hash);
    }
    return found;
}

/* Replaces everything behind the committed part with the frame's records, if these contain `index` with `hash`. Behind that
 * record only a leader may say how its own view goes on: nobody has put its name to what another site adds. */
bool neb__log_install(struct neb_round *r, const struct neb_round_frame *f, uint64_t index,
                      const struct neb_hash *hash, bool beyond)
{
    const uint64_t top = beyond ? UINT64_MAX : index;
    if (!leads_to(r, f, index, hash, top)) return false;
    struct walk w = walk_start(f);
    uint64_t last = r->commit;
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
