/* oracle.c: an observer that sees everything and checks the invariants of the protocol after every
 * event.
 *
 *   I1  two sites that hold an index as committed hold the same record
 *   I2  a named update was durable at a quorum of voters before its record was sent
 *   I3  an update is consumed at most once, at a version not more than S above its base
 *   I4  theta, m and versions are a function of genesis and the records
 *   I5  per site and cell: inner updates = delta + own committed + dropped
 *   I6  theta and m change only by a committed record
 *   I7  at most one open update per site and cell, one update per (site, sequence)
 *   I8  a site that may have forgotten a promise does not vote
 *   I9  epochs only grow, one roster per epoch
 *   I10 after the faults end, rounds (of secure sums: with a result) commit within a bound, and every site that is connected to the others through
 *       any path of members follows, and has its own work in a record (if somebody trains, and a liar does not keep
 *       those that begin later out: too_few_began())
 *   I11 a relayed message is delivered once, and only if its author sent it (cut_lines.c)
 *
 * The oracle keeps its own books: it knows what every update decodes to from the moment it was
 * captured, replays the committed records into a reference state of its own, and remembers
 * every promise that left a site. */
#include "sim/world.h"
#include "base/mem.h"
#include "round/frame.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* From the run's last record until everybody has ended: the leader's patience and a little more. */
enum { TOLD_MS = 17000 };

/* Without the liars fewer sites are left to vouch for cells, and others replay updates instead. */
static int64_t told_ms(const struct neb_sim_world *w)
{
    return w->liars ? 2 * TOLD_MS : TOLD_MS;
}

void neb__oracle_violated(struct neb_sim_world *w, const char *fmt, ...)
{
    if (w->failed != NEB_OK) return;
    va_list ap;
    va_start(ap, fmt);
    int n = snprintf(w->out->violation, sizeof w->out->violation, "at %lld ms: ", (long long)w->now);
    vsnprintf(w->out->violation + n, sizeof w->out->violation - (size_t)n, fmt, ap);
    va_end(ap);
    w->failed = NEB_ERR_INTERNAL;
}

struct neb_sim_update_fact *neb__oracle_fact(struct neb_sim_world *w, const struct neb_hash *hash)
{
    for (size_t i = w->facts; i-- > 0;)
        if (neb__hash_equal(&w->fact[i].hash, hash)) return &w->fact[i];
    return NULL;
}

void neb__oracle_captured(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_update_header *h,
                          const struct neb_hash *hash, const uint8_t *bytes, const float (*r)[WIDTH])
{
    for (size_t i = 0; i < w->facts; i++)
        if (w->fact[i].header.site == h->site && w->fact[i].header.k == h->k)
            neb__oracle_violated(w, "I7: site %d uses sequence %llx for two updates", n->id,
                                 (unsigned long long)h->k);
    if (w->facts == w->fact_cap) {
        size_t cap = w->fact_cap ? 2 * w->fact_cap : 64;
        struct neb_sim_update_fact *f = neb__realloc(w->fact, cap * sizeof *f);
        if (!f) {
            w->failed = NEB_ERR_NOMEM;
            return;
        }
        w->fact = f, w->fact_cap = cap;
    }
    struct neb_sim_update_fact *f = &w->fact[w->facts++];
    memset(f, 0, sizeof *f);
    f->hash = *hash;
    f->header = *h;
    size_t length = NEB_UPDATE_HEADER_SIZE + h->length;
    f->norm = neb__toy_norm(bytes, length, h);
    for (uint32_t c = h->c0; c < h->c1; c++) {
        f->before[c] = n->books[c];
        f->scale = neb__toy_decode(bytes, length, h, c, f->decoded[c]);
        memcpy(f->r[c], r[c - h->c0], sizeof f->r[c]);
        memcpy(f->z[c], n->own[c].u, sizeof f->z[c]);
        if (n->was_away[c] && h->tau > 2 * w->cfg.nominal + 2 * (uint32_t)n->away_steps[c] + 2)
            neb__oracle_violated(w, "settle: site %d was away and sends %u steps of cell %u undiscounted",
                                 n->id, h->tau, c);
        n->was_away[c] = false;
    }
}

void neb__oracle_durable(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_hash *hash)
{
    struct neb_sim_update_fact *f = neb__oracle_fact(w, hash);
    if (f && !n->disk.dead) f->durable |= neb__bit((unsigned)n->id);
}

void neb__oracle_prepared(struct neb_sim_world *w, struct neb_sim_node *n, uint64_t index)
{
    const struct neb_record *rec = neb__round_record(n->core, index);
    struct neb_round_status st;
    neb__round_status(n->core, &st);
    if (neb__sim_lies(w, n->id)) return;
    uint8_t names =
        w->cfg.secure ? NEB_RECORD_SURVIVORS : NEB_RECORD_ROUND; /* a RESULT repeats what SURVIVORS named */
    if (!rec || rec->view != st.view || rec->type != names) return;
    for (uint32_t i = 0; i < rec->updates; i++) {
        struct neb_sim_update_fact *f = neb__oracle_fact(w, &rec->update[i].hash);
        if (!f || !neb__members_has_quorum(&st.roster, f->durable))
            neb__oracle_violated(
                w, "I2: site %d prepares record %llu with an update of site %u that is durable at %llx only",
                n->id, (unsigned long long)index, rec->update[i].site,
                f ? (unsigned long long)f->durable : 0);
    }
}

void neb__oracle_sends(struct neb_sim_world *w, struct neb_sim_node *n, const uint8_t *bytes, size_t length)
{
    static _Thread_local struct neb_round_frame_item items[NEB_ROUND_FRAME_LIST];
    static _Thread_local struct neb_round_frame_cert certs[NEB_ROUND_FRAME_CERTS];
    struct neb_round_frame f;
    if (neb__sim_lies(w, n->id)) return;
    if (!length || (bytes[0] != NEB_ROUND_FRAME_VOTE && bytes[0] != NEB_ROUND_FRAME_REPORT)) return;
    if (neb__round_frame_decode(bytes, length, items, certs, &f) != NEB_OK) {
        neb__oracle_violated(w, "site %d sends a frame that cannot be read", n->id);
        return;
    }
    if (f.type == NEB_ROUND_FRAME_REPORT && !(f.flags & NEB_FLAG_NORMAL)) return;
    if (f.lapse > n->promised.lapse) {
        n->promised.lapse = f.lapse;
        n->promised.view = n->promised.ack_view = n->promised.ack_head = 0;
    }
    uint64_t view = f.type == NEB_ROUND_FRAME_VOTE ? f.number : f.view;
    if (view < n->promised.view)
        neb__oracle_violated(w, "I8: site %d speaks for view %llu after it promised %llu", n->id,
                             (unsigned long long)view, (unsigned long long)n->promised.view);
    bool forgot = f.normal < n->promised.ack_view ||
                  (f.normal == n->promised.ack_view && f.head < n->promised.ack_head && !w->liars);
    if (forgot)
        neb__oracle_violated(w, "I8: site %d forgot that it acknowledged %llu in view %llu; now (%llu, %llu)",
                             n->id, (unsigned long long)n->promised.ack_head,
                             (unsigned long long)n->promised.ack_view, (unsigned long long)f.normal,
                             (unsigned long long)f.head);
    n->promised.view = view;
    if (f.type == NEB_ROUND_FRAME_REPORT) n->promised.ack_view = f.view, n->promised.ack_head = f.head;
}

/* ---- the books ----------------------------------------------------------------------------------------- */

void neb__oracle_checkpoint(struct neb_sim_world *w, struct neb_sim_node *n)
{
    if (n->checkpoint_id + 2 > n->saved_cap) {
        uint64_t cap = n->saved_cap ? 2 * n->saved_cap : 16;
        void *p = neb__realloc(n->saved, cap * sizeof *n->saved);
        if (!p) {
            w->failed = NEB_ERR_NOMEM;
            return;
        }
        n->saved = p, n->saved_cap = cap;
    }
    memcpy(n->saved[++n->checkpoint_id], n->books, sizeof n->books);
}

void neb__oracle_restored(struct neb_sim_world *w, struct neb_sim_node *n, uint32_t c,
                          const struct neb_hash *update, uint64_t checkpoint, bool residual)
{
    struct neb_sim_books *b = &n->books[c];
    static const struct neb_sim_books nothing;
    const struct neb_sim_update_fact *f = update ? neb__oracle_fact(w, update) : NULL;
    const struct neb_sim_books *from = &nothing;
    if (f)
        from = &f->before[c];
    else if (checkpoint)
        from = &n->saved[checkpoint][c];
    for (int i = 0; i < WIDTH; i++) {
        b->committed[i] = from->committed[i];
        b->dropped[i] =
            from->dropped[i] + b->total[i] - from->total[i]; /* the crash lost the work since then */
        if (f) b->dropped[i] += (int64_t)(f->z[c][i] - f->decoded[c][i] - (residual ? f->r[c][i] : 0));
    }
    n->was_away[c] = false;
}

static void see_commits(struct neb_sim_world *w, struct neb_sim_node *n);

void neb__oracle_see(struct neb_sim_world *w, struct neb_sim_node *n)
{
    see_commits(w, n);
}

void neb__oracle_merged(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_record *rec,
                        uint32_t c, bool known)
{
    see_commits(w, n);
    if (w->forked || neb__sim_lies(w, n->id)) return;
    const struct neb_named *p = neb__record_of(rec, (unsigned)n->id);
    const struct neb_sim_update_fact *f = neb__oracle_fact(w, &p->hash);
    if (!f || w->failed != NEB_OK) return;
    struct neb_sim_books *b = &n->books[c];
    bool dropped = p->reject || (w->nonfinite[rec->index - 1] >> c & 1);
    for (int i = 0; i < WIDTH; i++) {
        if (!dropped) b->committed[i] += (int64_t)f->decoded[c][i];
        if (dropped && known) b->dropped[i] += (int64_t)f->decoded[c][i];
        if (!known) b->dropped[i] = b->total[i] - b->committed[i]; /* everything uncommitted is lost */
    }
    n->was_away[c] = false;
}

/* ---- the committed history ----------------------------------------------------------------------------- */

static bool grow(struct neb_sim_world *w)
{
    if (w->records < w->record_cap) return true;
    uint64_t cap = w->record_cap ? 2 * w->record_cap : 64;
    struct neb_hash *r = neb__realloc(w->record, cap * sizeof *r);
    if (r) w->record = r;
    uint64_t *f = neb__realloc(w->nonfinite, cap * sizeof *f);
    if (f) w->nonfinite = f;
    struct neb_hash *l = neb__realloc(w->leaf, (cap + 1) * CELLS_MAX * sizeof *l);
    if (l) w->leaf = l;
    if (!r || !f || !l) {
        w->failed = NEB_ERR_NOMEM;
        return false;
    }
    w->record_cap = cap;
    return true;
}

static void reference_apply(struct neb_sim_world *w, const struct neb_record *rec, uint32_t c,
                            uint64_t *stayed)
{
    float value[SITES][WIDTH];
    const float *values[SITES];
    uint32_t weight[SITES], k = 0;
    for (uint32_t i = 0; i < rec->updates; i++) {
        const struct neb_sim_update_fact *f = neb__oracle_fact(w, &rec->update[i].hash);
        if (!f || rec->update[i].reject) continue;
        for (int v = 0; v < WIDTH; v++) value[k][v] = f->decoded[c][v] * f->scale;
        values[k] = value[k];
        weight[k++] = rec->update[i].weight;
    }
    struct neb_outer_step step = {.mode =
                                      rec->mode == NEB_MODE_AVERAGE ? NEB_OUTER_AVERAGE : NEB_OUTER_NESTEROV,
                                  .updates = k,
                                  .weight = weight,
                                  .values = values};
    memcpy(&step.eta, &rec->eta, 4);
    memcpy(&step.mu, &rec->mu, 4);
    bool finite;
    neb__outer_apply(w->reference, c, &step, &finite);
    if (!finite) *stayed |= (uint64_t)1 << c;
    struct neb_hash *leaf = &w->leaf[w->reference->version[c] * CELLS_MAX + c];
    if (neb__outer_leaf(w->reference, c, leaf) != NEB_OK) w->failed = NEB_ERR_NOMEM;
}

static void first_round(struct neb_sim_world *w, const struct neb_record *rec)
{
    w->rounds++;
    w->last_round = w->now;
    for (uint32_t i = 0; i < rec->updates; i++) {
        const struct neb_named *p = &rec->update[i];
        const struct neb_sim_update_fact *f = neb__oracle_fact(w, &p->hash);
        if (!f || f->header.site != p->site || f->header.k != p->k || f->header.b != p->b) {
            neb__oracle_violated(w, "I3: record %llu names an update of site %u that nobody captured",
                                 (unsigned long long)rec->index, p->site);
            return;
        }
        if (w->healed) w->named |= neb__bit(p->site);
        if (p->b > rec->v || rec->v > p->b + w->cfg.staleness)
            neb__oracle_violated(w, "I3: record %llu uses an update of version %llu at version %llu",
                                 (unsigned long long)rec->index, (unsigned long long)p->b,
                                 (unsigned long long)rec->v);
        if (w->bound > 0 && !w->cfg.secure && f->norm > w->bound && !p->reject)
            neb__oracle_violated(w, "bound: record %llu uses an update of norm %g, the bound is %g",
                                 (unsigned long long)rec->index, f->norm, (double)w->bound);
        for (uint32_t c = rec->c0; c < rec->c1; c++) {
            if (p->k <= w->lastk[c][p->site])
                neb__oracle_violated(w, "I3: record %llu consumes update %llx of site %u again",
                                     (unsigned long long)rec->index, (unsigned long long)p->k, p->site);
            w->lastk[c][p->site] = p->k;
        }
    }
    for (uint32_t c = rec->c0; c < rec->c1; c++) {
        if (w->reference->version[c] != rec->v)
            neb__oracle_violated(w, "I4: record %llu expects version %llu of cell %u, it is %llu",
                                 (unsigned long long)rec->index, (unsigned long long)rec->v, c,
                                 (unsigned long long)w->reference->version[c]);
        reference_apply(w, rec, c, &w->nonfinite[rec->index - 1]);
    }
}

/* I9: an order in a record was given, once, by somebody who may give it. */
static void check_order(struct neb_sim_world *w, const struct neb_record *rec)
{
    const struct neb_order *o = rec->order;
    if (o->op == NEB_OP_LEAVE) {
        if (o->site >= SITES || !w->node[o->site].leaving)
            neb__oracle_violated(w, "I9: site %u was removed as if it had asked for it", o->site);
        return;
    }
    for (int i = 0; i < w->orders; i++) {
        if (memcmp(&w->issued[i].order.signature, o->signature, NEB_SEAL_SIZE)) continue;
        if (w->issued[i].done)
            neb__oracle_violated(w, "I9: record %llu carries out an order (%u) a second time",
                                 (unsigned long long)rec->index, o->op);
        w->issued[i].done = true;
        return;
    }
    neb__oracle_violated(w, "I9: record %llu carries out an order (%u) that nobody gave",
                         (unsigned long long)rec->index, o->op);
}

/* I9: no site acts under a roster that is neither in the log nor the operator's. */
static void check_roster(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_members *roster)
{
    for (int i = 0; i < w->rosters; i++)
        if (neb__members_equal(&w->known[i], roster)) return;
    neb__oracle_violated(w, "I9: site %d acts under a roster of epoch %u that nobody made", n->id,
                         roster->epoch);
}

static void first_commit(struct neb_sim_world *w, struct neb_sim_node *n, uint64_t index,
                         const struct neb_hash *hash)
{
    const struct neb_record *rec = neb__round_record(n->core, index);
    if (!grow(w)) return;
    w->record[w->records] = *hash;
    w->nonfinite[w->records++] = 0;
    w->out->records = w->records;
    TRACE(w, "record %llu type %u by site %d: cells %u-%u v %llu, %u updates", (unsigned long long)index,
          rec->type, n->id, rec->c0, rec->c1, (unsigned long long)rec->v, rec->updates);
    if (rec->type == NEB_RECORD_ROUND) first_round(w, rec);
    if (w->cfg.secure && neb__record_has_cells(rec)) neb__toy_sums_committed(w, rec);
    if (rec->ordered) check_order(w, rec);
    if (rec->type == NEB_RECORD_ORDER && rec->order->op == NEB_OP_BOUND) {
        uint32_t bits = (uint32_t)rec->order->value;
        memcpy(&w->bound, &bits, 4);
    }
    for (unsigned s = 0; s < SITES; s++)
        if ((w->observers & neb__bit(s)) && neb__record_of(rec, s))
            neb__oracle_violated(w, "I9: record %llu names an update of an observer",
                                 (unsigned long long)index);
    if (rec->type == NEB_RECORD_ROSTER || rec->type == NEB_RECORD_FORCED) {
        if ((rec->roster.voters | rec->roster.trains) & w->observers)
            neb__oracle_violated(w, "I9: record %llu lets an observer vote or train",
                                 (unsigned long long)index);
        if (rec->roster.epoch <= w->roster.epoch)
            neb__oracle_violated(w, "I9: epoch %u follows epoch %u", rec->roster.epoch, w->roster.epoch);
        w->roster = rec->roster;
        w->out->epochs++;
        if (w->rosters < 64) w->known[w->rosters++] = rec->roster;
    }
    if (rec->type == NEB_RECORD_END) w->end_seen = true, w->end_at = w->now;
    if (rec->type == NEB_RECORD_FINAL && !w->final_seen) {
        w->final_seen = true;
        w->final_at = w->now;
        if (w->end < w->now + told_ms(w) + 1000)
            w->end = w->now + told_ms(w) + 1000; /* long enough to see which sites are told */
    }
}

static bool has_record(struct neb_sim_node *n, uint64_t index, const struct neb_hash *hash)
{
    size_t length;
    struct neb_hash h;
    const uint8_t *bytes = neb__round_record_bytes(n->core, index, &length);
    return bytes && neb__hash(bytes, length, &h) == NEB_OK && neb__hash_equal(&h, hash);
}

/* A site stopped at a certificate of another history. It must not turn out to be of this one. */
static void check_claim(struct neb_sim_world *w, struct neb_sim_node *n, uint64_t commit)
{
    if (!w->claim_index || commit < w->claim_index || !w->records) return;
    if (has_record(n, w->claim_index, &w->claim) && has_record(n, w->records, &w->record[w->records - 1]))
        neb__oracle_violated(w, "a site stopped at a certificate of record %llu, which follows from its log",
                             (unsigned long long)w->claim_index);
}

static void see_commits(struct neb_sim_world *w, struct neb_sim_node *n)
{
    struct neb_round_status st;
    if (neb__sim_lies(w, n->id)) return;
    neb__round_status(n->core, &st);
    if (w->forked) {
        check_claim(w, n, st.commit);
        return;
    }
    for (uint64_t i = n->seen_commit + 1; i <= st.commit && w->failed == NEB_OK; i++) {
        size_t length;
        struct neb_hash h;
        const uint8_t *bytes = neb__round_record_bytes(n->core, i, &length);
        if (!bytes || neb__hash(bytes, length, &h) != NEB_OK) {
            neb__oracle_violated(w, "site %d holds commit %llu without its record", n->id,
                                 (unsigned long long)i);
            return;
        }
        bool other = i <= w->records && !neb__hash_equal(&w->record[i - 1], &h);
        if (other && w->liars && !w->opt.byzantine) { /* one history, or proof */
            TRACE(w, "site %d has another history from record %llu on", n->id, (unsigned long long)i);
            w->forked = true;
            return;
        }
        if (other)
            neb__oracle_violated(w, "I1: site %d holds another record %llu than the committed one", n->id,
                                 (unsigned long long)i);
        if (i == w->records + 1) first_commit(w, n, i, &h);
        n->seen_commit = i;
    }
    if (st.roster.epoch < n->seen_epoch)
        neb__oracle_violated(w, "I9: site %d went from epoch %llu back to %u", n->id,
                             (unsigned long long)n->seen_epoch, st.roster.epoch);
    if (st.roster.epoch != n->seen_epoch || !n->seen_epoch) check_roster(w, n, &st.roster);
    n->seen_epoch = st.roster.epoch;
}

/* The certificate may be for a record that nobody has committed yet. Then the record that takes its place must be another. */
void neb__oracle_contradicted(struct neb_sim_world *w, struct neb_sim_node *n, const uint8_t *bytes,
                              size_t length)
{
    struct neb_reader in = {bytes, length, false};
    struct neb_certificate c;
    const struct neb_seal seal = neb__sim_seal(n);
    if (neb__sim_lies(w, n->id) || w->forked)
        return; /* the two histories are known, and this site may be of either */
    bool valid = neb__certificate_get(&in, &c) && !in.left &&
                 neb__certificate_valid(&c, &w->roster, w->cfg.quorum, &w->cfg.genesis, &seal);
    bool same = valid && c.index <= w->records && neb__hash_equal(&w->record[c.index - 1], &c.hash);
    if (!valid || same) return; /* that is no proof */
    if (w->opt.byzantine)
        neb__oracle_violated(w, "I1: site %d has a certificate of another record %llu", n->id,
                             (unsigned long long)c.index);
    TRACE(w, "site %d has a certificate of another history at record %llu", n->id,
          (unsigned long long)c.index);
    if (c.index > w->records) w->claim_index = c.index, w->claim = c.hash;
    w->forked = true;
}

/* A site has proof that another one lied. */
void neb__oracle_convicted(struct neb_sim_world *w, struct neb_sim_node *n, unsigned guilty)
{
    if (neb__sim_lies(w, n->id)) return;
    TRACE(w, "site %d has proof that site %u lied", n->id, guilty);
    w->out->convicted++;
    w->convicted |= neb__bit(guilty);
    if (!neb__sim_lies(w, (int)guilty))
        neb__oracle_violated(w, "site %d convicts honest site %u", n->id, guilty);
}

void neb__oracle_check(struct neb_sim_world *w, struct neb_sim_node *n)
{
    if (!n->alive || w->failed != NEB_OK || neb__sim_lies(w, n->id)) return;
    see_commits(w, n);
    if (w->forked) return;
    for (uint32_t c = 0; c < w->cfg.cells && w->failed == NEB_OK; c++) {
        const struct neb_sim_own *o = &n->own[c];
        const struct neb_sim_books *b = &n->books[c];
        for (int i = 0; i < WIDTH; i++) {
            int64_t left = b->total[i] - b->committed[i] - b->dropped[i];
            if ((int64_t)o->u[i] != left)
                neb__oracle_violated(w, "I5: site %d cell %u value %d: delta %g, but %lld are left of %lld",
                                     n->id, c, i, (double)o->u[i], (long long)left, (long long)b->total[i]);
        }
        uint64_t v = n->outer->version[c];
        struct neb_hash leaf;
        if (neb__outer_leaf(n->outer, c, &leaf) != NEB_OK) w->failed = NEB_ERR_NOMEM;
        if (v > w->reference->version[c])
            neb__oracle_violated(w, "I6: site %d has version %llu of cell %u, committed is %llu", n->id,
                                 (unsigned long long)v, c, (unsigned long long)w->reference->version[c]);
        else if (!neb__hash_equal(&leaf, &w->leaf[v * CELLS_MAX + c]))
            neb__oracle_violated(w, "I4: site %d has other bits in cell %u at version %llu", n->id, c,
                                 (unsigned long long)v);
        if (o->version + w->cfg.staleness < neb__round_version(n->core, c) && !n->was_away[c])
            n->was_away[c] = true, n->away_steps[c] = 0;
    }
}

static void show(struct neb_sim_world *w)
{
    for (int i = 0; i < w->sites; i++) {
        struct neb_sim_node *n = &w->node[i];
        struct neb_round_status st = {0};
        if (n->alive) neb__round_status(n->core, &st);
        TRACE(w,
              "site %d: alive %d stopped %d state %d view %llu normal %llu head %llu disk %llu commit %llu "
              "applied %llu "
              "lapse %u paused %d caught up %d root %llu epoch %u trains %llx voters %llx",
              i, n->alive, n->stopped, st.state, (unsigned long long)st.view,
              (unsigned long long)st.normal_view, (unsigned long long)st.head, (unsigned long long)st.durable,
              (unsigned long long)st.commit, (unsigned long long)st.applied, st.lapse, st.paused,
              st.caught_up, (unsigned long long)st.root_at, st.roster.epoch,
              (unsigned long long)st.roster.trains, (unsigned long long)st.roster.voters);
        for (uint32_t c = 0; n->alive && c < w->cfg.cells; c++)
            TRACE(w, "   cell %u: committed %llu theta %llu own %llu open %llx of %llu", c,
                  (unsigned long long)neb__round_version(n->core, c),
                  (unsigned long long)n->outer->version[c], (unsigned long long)n->own[c].version,
                  (unsigned long long)n->own[c].open.k, (unsigned long long)n->own[c].open.b);
        for (uint64_t k = st.commit ? st.commit : 1; n->alive && k <= st.head; k++) {
            const struct neb_record *rec = neb__round_record(n->core, k);
            const struct neb_order *o = rec->ordered ? rec->order : NULL;
            TRACE(w, "   record %llu: type %u, view %llu, epoch %u, roster of epoch %u, order %u at %llu",
                  (unsigned long long)k, rec->type, (unsigned long long)rec->view, rec->epoch,
                  rec->roster.epoch, o ? o->op : 0, (unsigned long long)(o ? o->index : 0));
        }
    }
}

uint64_t neb__oracle_shut_out(const struct neb_sim_world *w)
{
    uint64_t out = 0;
    for (unsigned i = 0; w->opt.lasting_cuts && i < (unsigned)w->sites; i++)
        if (!w->node[i].stopped && (w->roster.trains & w->roster.members & ~w->named & neb__bit(i)))
            out |= neb__bit(i);
    return out;
}

/* The empty ROUND of a secure sum is no round: it takes work and gives none. */
bool neb__oracle_gets_on(const struct neb_sim_world *w)
{
    return w->cfg.secure ? w->out->sums > w->sums_healed : w->rounds > w->rounds_healed;
}

/* Whether the honest voters that have begun are no quorum, and the others cannot begin without a liar's answer. An empty disk of a run that
 * has begun may be a lost one, and who lost it may have made a quorum with the liar: nobody left would know what they committed.
 * So no rule could let these sites begin, and nothing is promised until the liar answers or the operator decides. */
static bool too_few_began(const struct neb_sim_world *w)
{
    uint64_t began = 0, honest = 0;
    for (int i = 0; i < w->sites; i++) {
        uint64_t bit = neb__bit((unsigned)i);
        if (!(w->roster.voters & bit) || neb__sim_lies(w, i) || w->node[i].stopped) continue;
        honest |= bit;
        if (w->node[i].began) began |= bit;
    }
    if (!w->liars || w->opt.byzantine || !w->records || neb__members_has_quorum(&w->roster, began))
        return false;
    for (unsigned i = 0; i < (unsigned)w->sites; i++)
        if ((honest & ~began & neb__bit(i)) && neb__members_remembers(&w->roster, i, began)) return false;
    return honest != began;
}

/* Whether the sites that are left can make a round at all. */
static bool nobody_trains(const struct neb_sim_world *w)
{
    int trains = __builtin_popcountll(w->roster.trains & w->roster.members);
    return w->cfg.secure ? trains < 3 : !trains;
}

static bool is_behind(const struct neb_sim_world *w, const struct neb_round_status *st)
{
    uint64_t near = w->cfg.secure ? 12 : 4; /* a secure sum has three records */
    return st->commit + near < w->records || st->applied + near < st->commit;
}

/* A site that has come late catches up over a thin line: it is given a second more, fifteen times. */
bool neb__oracle_waits(struct neb_sim_world *w)
{
    enum { SECONDS = 15 };
    if (w->failed != NEB_OK || w->final_seen || w->waited == SECONDS) return false;
    for (int i = 0; i < w->sites; i++) {
        const struct neb_sim_node *n = &w->node[i];
        struct neb_round_status st;
        if (!n->alive || n->stopped || neb__sim_lies(w, i)) continue;
        neb__round_status(n->core, &st);
        if (!(w->roster.members & neb__bit((unsigned)i)) || !st.may_vote || !is_behind(w, &st)) continue;
        w->waited++;
        w->end += 1000;
        return true;
    }
    return false;
}

void neb__oracle_end(struct neb_sim_world *w)
{
    if (w->opt.trace) show(w);
    if (w->failed != NEB_OK) return;
    if (w->forked && !w->convicted)
        neb__oracle_violated(
            w, "I1: two honest sites hold two histories, and nobody has proof of who made them");
    if (w->forked) return;
    if (w->cfg.secure) neb__toy_sums_end(w);
    if (!w->end_seen && neb__oracle_shut_out(w))
        neb__oracle_violated(w, "I10: no record has named an update of sites %llx since the faults ended",
                             (unsigned long long)neb__oracle_shut_out(w));
    if (too_few_began(w)) {
        w->out->unbegun++;
        return;
    }
    if (!neb__oracle_gets_on(w) && !w->end_seen && !nobody_trains(w))
        neb__oracle_violated(w, "I10: no round was committed in %lld ms after the faults ended",
                             (long long)(w->now - w->fault_end));
    int64_t since = w->end_at > w->fault_end ? w->end_at : w->fault_end;
    if (w->end_seen && !w->final_seen && w->now - since > (w->liars ? 40000 : 15000))
        neb__oracle_violated(w, "I10: the run reached its end but was not finished");
    for (int i = 0; i < w->sites; i++) {
        struct neb_sim_node *n = &w->node[i];
        struct neb_round_status st;
        if (!n->exists || n->stopped || !(w->roster.members & neb__bit((unsigned)i)) || neb__sim_lies(w, i))
            continue;
        if (!n->alive) {
            neb__oracle_violated(w, "I10: site %d is not running", i);
            return;
        }
        if (w->final_seen && !n->ended && w->now - (w->final_at > since ? w->final_at : since) > told_ms(w))
            neb__oracle_violated(w, "I10: the run is over, but site %d was not told", i);
        neb__round_status(n->core, &st);
        if (is_behind(w, &st) || !st.may_vote)
            neb__oracle_violated(w, "I10: site %d (state %d) committed %llu and applied %llu of %llu records",
                                 i, st.state, (unsigned long long)st.commit, (unsigned long long)st.applied,
                                 (unsigned long long)w->records);
    }
}
