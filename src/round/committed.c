/* committed.c: the walk over the committed log: updates, applying, catching up, capturing, settling.
 *
 * The cursor walks the records that are committed and on this disk. Each cell has two versions: of theta
 * (v_app) and of the site's own state (v_site: live delta, open update). A record is applied to the parts
 * that are exactly at its version. It passes by parts that are ahead because the cell came from a snapshot or
 * a checkpoint. So replaying after a crash, following live records and filling in fetched cells are one and
 * the same walk, and the cursor may always go back.
 *
 * A cell that is more than S versions behind is fetched whole when that takes fewer bytes than the missing
 * updates, or when nobody has these any more. It is installed only under a state root that a quorum
 * reported. */
#include "round/core.h"
#include "base/mutant.h"

enum {
    HEARD_BACK = 256, /* records that are searched for an update that a peer mentions */
    CELLS_OPEN = 2,   /* cells asked of one peer at a time */
};

/* The peer has not said anything since it was asked for something: it may have left, or be cut off, without this site being told.
 * Others are asked first. */
static bool silent(const struct neb_round *r, unsigned site)
{
    const struct neb_core_peer *p = &r->peer[site];
    return p->owed && r->now - p->owed >= 2 * r->cfg.fetch_ms;
}

static void asks(struct neb_round *r, unsigned site)
{
    if (!r->peer[site].owed) r->peer[site].owed = r->now;
}

/* ---- updates ------------------------------------------------------------------------------------------- */

static bool no_cell(struct neb_round *r, const struct neb_event *ev);

/* The site that was asked says that the update is on its way. Over a thin line that may be so for minutes. If it does not come in
 * the time in which a record usually does, the next one is asked as well, and that site is believed for a shorter time. */
static void coming(struct neb_round *r, struct neb_core_update *p, unsigned site)
{
    struct neb_core_peer *from = &r->peer[site];
    if (p->coming_from != site + 1) p->coming_from = (uint16_t)(site + 1), p->coming = r->now;
    if (r->now - p->coming > neb__idle_patience(r) >> from->broken) {
        if (from->broken < 4) from->broken++;
        p->coming_from = 0;
        p->fetch_at = r->now;
        return;
    }
    p->lack &= ~neb__bit(site);
    p->fetch_from = NEB_NO_SITE;
    p->fetch_at = r->now + 2 * r->cfg.fetch_ms;
}

/* A peer answers for itself, and puts off nothing that it was not asked for. */
static void answered(struct neb_round *r, const struct neb_event *ev)
{
    struct neb_core_update *p = neb__core_update(r, &ev->hash, false);
    if (!p || p->held) return;
    bool asked = ev->site < NEB_SITES_MAX && ev->site == p->fetch_from;
    if (ev->type == NEB_EV_COMING) {
        if (asked) coming(r, p, ev->site);
        return;
    }
    if (ev->site < NEB_SITES_MAX) p->lack |= neb__bit(ev->site), p->have &= ~neb__bit(ev->site);
    if (ev->site == NEB_NO_SITE) p->looked = true;
    if (asked || ev->site == NEB_NO_SITE)
        p->fetch_at = r->now + (p->looked ? 0 : r->cfg.fetch_ms); /* ask the next one */
}

void neb__core_update_event(struct neb_round *r, const struct neb_event *ev)
{
    if (ev->type != NEB_EV_UPDATE && ev->site < NEB_SITES_MAX) r->peer[ev->site].owed = 0;
    if (ev->type == NEB_EV_NO_UPDATE && no_cell(r, ev)) return;
    if (ev->type == NEB_EV_NO_UPDATE || ev->type == NEB_EV_COMING) {
        answered(r, ev);
        return;
    }
    if (ev->update->c1 > r->cfg.cells || ev->update->site >= NEB_SITES_MAX) return;
    struct neb_core_update *p = neb__core_update(r, &ev->hash, true);
    if (!p || p->held) return;
    if (p->fetch_from < NEB_SITES_MAX)
        r->peer[p->fetch_from].owed = 0; /* who was asked for it is not silent */
    p->held = true;
    p->header = *ev->update;
    p->reject = ev->reject;
    p->norm = ev->norm;
    p->have |= neb__bit(r->self);
    p->needed = false;
    r->report_due = true;
    for (uint64_t i = r->cursor; i < r->commit && !p->used; i++) { /* the walk may need it */
        const struct neb_named *own = neb__record_of(r->log[i].record, p->header.site);
        if (own && neb__hash_equal(&own->hash, &p->hash)) p->used = true, p->index = i + 1;
    }
}

/* Sites that can be asked. */
static uint64_t in_reach(const struct neb_round *r)
{
    uint64_t set = 0;
    for (unsigned i = 0; i < NEB_SITES_MAX; i++)
        if (neb__core_gives(r, i)) set |= neb__bit(i);
    return set;
}

/* The next peer to ask: first the sites that are said to have it, then all that did not say no; those that are silent last. */
static unsigned next_holder(const struct neb_round *r, const struct neb_core_update *p, unsigned after)
{
    for (int pass = 0; pass < 4; pass++)
        for (unsigned i = 1; i <= NEB_SITES_MAX; i++) {
            unsigned s = (after + i) % NEB_SITES_MAX;
            if (!neb__core_gives(r, s) || silent(r, s) != (pass >= 2)) continue;
            if (pass % 2 ? !(p->lack & neb__bit(s)) : (p->have & ~p->lack & neb__bit(s)) != 0) return s;
        }
    return NEB_NO_SITE;
}

/* Goes back to the oldest record that this cell still needs. */
static void rewind_for(struct neb_round *r, const struct neb_core_cell *cell)
{
    r->whole = false;
    r->root_at = 0;
    while (r->cursor && cell->v_app < cell->v_cur) {
        const struct neb_record *rec = r->log[--r->cursor].record;
        if (rec->type != NEB_RECORD_ROUND) continue;
        for (uint32_t c = rec->c0; c < rec->c1; c++) r->cell[c].v_cur--;
    }
}

static void start_fetching(struct neb_round *r, struct neb_core_cell *cell)
{
    cell->fetching = true;
    cell->fetch_tries = 0;
    cell->fetch_at = r->now;
    cell->asked = cell->refused = 0;
}

/* Nobody could give the cell: its updates are tried for a while. */
static void stop_fetching(struct neb_round *r, struct neb_core_cell *cell)
{
    if (r->applying || r->installing || r->rooting) return;
    cell->fetching = false;
    cell->replay_until = r->now + 20 * r->cfg.fetch_ms;
    rewind_for(r, cell);
}

static void count_untrusted(struct neb_round *r)
{
    if (r->now - r->untrusted_at < r->cfg.fetch_ms) return; /* several at once are one */
    r->untrusted++;
    r->untrusted_at = r->now;
}

/* The cell is of the last record, so nobody has a newer one. It may only be that others have to get there, to sign. */
static bool waits_for_root(struct neb_round *r, struct neb_core_cell *cell)
{
    if (!r->ended || !cell->cell_index || cell->cell_index < r->final_index || NEB_MUTANT(cells_in_vain))
        return false;
    count_untrusted(r);
    cell->fetch_at = r->now + 2 * r->cfg.fetch_ms;
    return true;
}

/* Cells came, and too few sites have signed a root: those that could are behind, too. What one cell shows holds for all of them, and
 * each is large, so none is asked for again before updates were tried. */
static bool roots_in_vain(struct neb_round *r)
{
    enum { IN_VAIN = 3 };
    if (r->untrusted < IN_VAIN || r->applying || r->installing || r->rooting) return false;
    for (uint32_t c = 0; c < r->cfg.cells; c++)
        if (r->cell[c].fetching) stop_fetching(r, &r->cell[c]);
    r->untrusted = 0;
    r->replay_all = r->now + 20 * r->cfg.fetch_ms;
    return true;
}

/* The next peer to ask for a cell: one that has not said since the last turn that it cannot give it, and that is not silent; else
 * one that is silent; else anybody; last, those that have said goodbye. A neighbour that catches up itself says no at once every
 * time, and one that works hard to give what it was asked for may be silent: if the first were asked again and again, the second
 * would never be. */
static unsigned next_giver(const struct neb_round *r, const struct neb_core_cell *cell,
                           const uint8_t open[NEB_SITES_MAX])
{
    for (int turn = 0; turn < 5; turn++)
        for (unsigned i = 1; i <= NEB_SITES_MAX; i++) {
            unsigned s = (cell->fetch_from + i) % NEB_SITES_MAX;
            const bool no = cell->refused & neb__bit(s), gone = r->peer[s].gone;
            if (!neb__core_gives(r, s) || gone != (turn == 4)) continue;
            if (!gone && (silent(r, s) != turn % 2 || no != turn / 2)) continue;
            bool busy = open[s] >= CELLS_OPEN || (cell->asked & neb__bit(s));
            if (!busy || NEB_MUTANT(ask_cells_again)) return s;
        }
    return NEB_NO_SITE;
}

/* A cell is large: over a slow line it takes far longer than a question. So a peer is asked for few cells at
 * a time, and never again for one that it may still be sending. */
static void ask_for_cell(struct neb_round *r, uint32_t c, uint8_t open[NEB_SITES_MAX])
{
    struct neb_core_cell *cell = &r->cell[c];
    unsigned s = next_giver(r, cell, open);
    if (s == NEB_NO_SITE) return;
    if (cell->refused & neb__bit(s)) cell->refused = 0; /* all have said no: the next turn */
    if (!cell->asked) cell->asked_at = r->now;
    cell->last_at = r->now;
    cell->fetch_from = (uint16_t)s;
    cell->asked |= neb__bit(s);
    if (cell->cell_index) count_untrusted(r);
    cell->cell_index = 0;
    cell->fetch_at = r->now + (NEB_MUTANT(ask_cells_again) ? 1 : 4) * r->cfg.fetch_ms;
    cell->fetch_tries++;
    asks(r, s);
    open[s]++;
    struct neb_action *a = neb__core_act(r, NEB_ACT_FETCH_CELL);
    a->site = (uint16_t)s;
    a->cell = c;
}

static void fetch_cells(struct neb_round *r)
{
    uint8_t open[NEB_SITES_MAX] = {0};
    bool any = false;
    if (!NEB_MUTANT(cells_in_vain) && roots_in_vain(r)) return;
    int64_t patience = 2 * r->cell_ms > 8 * r->cfg.fetch_ms ? 2 * r->cell_ms : 8 * r->cfg.fetch_ms;
    for (uint32_t c = 0; c < r->cfg.cells; c++) {
        struct neb_core_cell *cell = &r->cell[c];
        any |= cell->fetching;
        if (r->now >=
            cell->asked_at + patience) { /* who did not give it has its next turn behind the others */
            cell->refused |= NEB_MUTANT(ask_the_gone) ? 0 : cell->asked;
            cell->asked = 0;
        }
        for (uint64_t left = cell->asked; left; left &= left - 1) {
            unsigned s = (unsigned)__builtin_ctzll(left);
            if (open[s] < CELLS_OPEN) open[s]++;
        }
    }
    for (int again = 0; any && again < 2; again++) /* first the cells that nobody was asked for */
        for (uint32_t c = 0; c < r->cfg.cells; c++) {
            struct neb_core_cell *cell = &r->cell[c];
            if (!cell->fetching || r->now < cell->fetch_at || (cell->asked != 0) != again) continue;
            if (waits_for_root(r, cell)) continue;
            int most = 2 + 2 * __builtin_popcountll(r->roster.members);
            if (cell->fetch_tries > most && !cell->asked)
                stop_fetching(r, cell);
            else
                ask_for_cell(r, c, open);
        }
}

void neb__round_cell_name(uint32_t cell, struct neb_hash *out)
{
    memset(out, 0, sizeof *out);
    memcpy(out->b, "nebula cell", 11);
    neb__put32(out->b + NEB_HASH_SIZE - 4, cell);
}

/* Whether `ev` says that a peer cannot give a cell; then the next one is asked. */
static bool no_cell(struct neb_round *r, const struct neb_event *ev)
{
    struct neb_hash name;
    uint32_t c = neb__get32(ev->hash.b + NEB_HASH_SIZE - 4);
    neb__round_cell_name(c, &name);
    if (!neb__hash_equal(&name, &ev->hash)) return false;
    if (c >= r->cfg.cells || ev->site >= NEB_SITES_MAX || !(r->cell[c].asked & neb__bit(ev->site)))
        return true;
    r->cell[c].asked &= ~neb__bit(ev->site);
    r->cell[c].refused |= neb__bit(ev->site);
    r->cell[c].fetch_at = r->now + r->cfg.fetch_ms;
    return true;
}

void neb__core_fetch_tick(struct neb_round *r)
{
    for (size_t i = 0; i < r->updates; i++) {
        struct neb_core_update *p = &r->update[i];
        if (p->held || r->now < p->fetch_at || !(p->needed || (p->have && !p->unwanted))) continue;
        if (p->fetch_from != NEB_NO_SITE) p->lack |= neb__bit(p->fetch_from); /* it did not answer */
        unsigned s = next_holder(r, p, p->fetch_from == NEB_NO_SITE ? r->self : p->fetch_from);
        p->fetch_at = r->now + r->cfg.fetch_ms;
        if (s == NEB_NO_SITE) {
            p->vain = in_reach(r) && !NEB_MUTANT(wait_for_silent); /* else there was nobody to ask */
            p->lack = 0;
            p->fetch_from = NEB_NO_SITE;
            continue;
        }
        p->fetch_from = (uint16_t)s;
        asks(r, s);
        struct neb_action *a = neb__core_act(r, NEB_ACT_FETCH);
        a->site = (uint16_t)s;
        a->hash = p->hash;
    }
    fetch_cells(r);
}

/* ---- cells --------------------------------------------------------------------------------------------- */

static void install_if_trusted(struct neb_round *r, uint32_t c)
{
    struct neb_core_cell *cell = &r->cell[c];
    if (r->applying || r->installing || r->rooting || !cell->cell_index || cell->cell_index > r->commit ||
        cell->cell_index > r->disk_head || cell->cell_version <= cell->v_app)
        return;
    bool wrong, trusted = neb__root_trusted(r, cell->cell_index, &cell->cell_root, &wrong);
    if (wrong && !NEB_MUTANT(trust_any_cell))
        cell->cell_index = 0, cell->fetch_at = r->now + r->cfg.fetch_ms / 4; /* it may be asked again */
    if (!trusted && !NEB_MUTANT(trust_any_cell)) return;
    struct neb_action *a = neb__core_act(r, NEB_ACT_INSTALL);
    a->cell = c;
    a->version = cell->cell_version;
    a->index = cell->cell_index;
    cell->cell_index = 0;
    r->installing = true; /* one thing at a time: a cell's content must be certain */
}

void neb__core_cell_event(struct neb_round *r, const struct neb_event *ev)
{
    if (ev->cell >= r->cfg.cells) return;
    struct neb_core_cell *cell = &r->cell[ev->cell];
    bool answer = ev->site == cell->fetch_from && (cell->asked & neb__bit(ev->site));
    if (ev->site < NEB_SITES_MAX) r->peer[ev->site].owed = 0;
    int64_t took = answer ? r->now - cell->last_at : 0;
    r->cell_ms = took > r->cell_ms * 7 / 8 ? took : r->cell_ms * 7 / 8;
    if (ev->site < NEB_SITES_MAX) cell->asked &= ~neb__bit(ev->site);
    if (cell->fetching)
        cell->fetch_at = r->now + 2 * r->cfg.fetch_ms; /* time for its root to become trusted */
    cell->cell_index = 0;                              /* the driver keeps one, the last that came */
    /* Whoever has answered has had its turn, also with a cell: a liar's useless ones must not keep the others from theirs. */
    if (ev->site < NEB_SITES_MAX) cell->refused |= neb__bit(ev->site);
    if (ev->version <= cell->v_app) return; /* the peer's is not newer */
    cell->cell_root = ev->root;
    cell->cell_index = ev->index;
    cell->cell_version = ev->version;
    install_if_trusted(r, ev->cell);
}

void neb__core_installed(struct neb_round *r, const struct neb_event *ev)
{
    r->installing = false;
    r->untrusted = 0;
    if (ev->cell >= r->cfg.cells || ev->version <= r->cell[ev->cell].v_app) return;
    struct neb_core_cell *cell = &r->cell[ev->cell];
    cell->fetching = false;
    cell->v_app = ev->version;
    rewind_for(r, cell);
}

bool neb__core_caught_up(const struct neb_round *r)
{
    if (r->state == NEB_ROUND_BOOT) return false;
    for (uint32_t c = 0; c < r->cfg.cells; c++)
        if (r->cell[c].fetching || r->cell[c].away) return false;
    return true;
}

/* ---- applying ------------------------------------------------------------------------------------------ */

void neb__core_look_for(struct neb_round *r, struct neb_core_update *p)
{
    if (p->needed || p->held) return;
    p->needed = true;
    p->lack = 0;                                /* who asked this site for it may have got it since */
    p->fetch_at = r->now + r->cfg.fetch_ms / 2; /* it may be on its way */
    struct neb_action *a = neb__core_act(r, NEB_ACT_FETCH);
    a->hash = p->hash;
    a->site = NEB_NO_SITE; /* first look on this site's disk */
}

/* Whether fetching the cell takes fewer bytes than the updates it needs to reach the committed version. */
static bool cheaper_whole(struct neb_round *r, uint32_t c)
{
    uint64_t sum = 0, last = r->commit < r->cursor + 64 ? r->commit : r->cursor + 64;
    for (uint64_t i = r->cursor; i < last; i++) {
        const struct neb_record *rec = r->log[i].record;
        if (rec->type != NEB_RECORD_ROUND || c < rec->c0 || c >= rec->c1 || rec->v < r->cell[c].v_app)
            continue;
        for (uint32_t k = 0; k < rec->updates; k++) {
            struct neb_core_update *p = neb__core_update(r, &rec->update[k].hash, true);
            if (!p || p->held || rec->update[k].reject) continue;
            p->used = true, p->index = rec->index;
            neb__core_look_for(r, p);
            if (p->looked) sum += rec->update[k].length / (rec->c1 - rec->c0);
        }
    }
    return sum > r->cfg.cell_bytes;
}

/* Every peer that could give it says that it does not have it. One that says nothing may have left. */
static bool unobtainable(const struct neb_round *r, const struct neb_core_update *p)
{
    const uint64_t up = in_reach(r);
    return up && !(up & ~p->lack);
}

static bool have_updates(struct neb_round *r, const struct neb_record *rec, bool *hopeless)
{
    bool all = true;
    for (uint32_t i = 0; i < rec->updates; i++) {
        if (rec->update[i].reject) continue;
        struct neb_core_update *p = neb__core_update(r, &rec->update[i].hash, true);
        if (!p) return false;
        p->used = true;
        p->index = rec->index;
        if (p->held) continue;
        all = false;
        neb__core_look_for(r, p);
        if (unobtainable(r, p) || p->vain) *hopeless = true;
    }
    return all;
}

static void look_if_whole(struct neb_round *r)
{
    r->whole = true;
    for (uint32_t c = 0; c < r->cfg.cells && r->whole; c++) r->whole = r->cell[c].v_app == r->cell[c].v_cur;
}

static void pass(struct neb_round *r, const struct neb_record *rec)
{
    r->cursor++;
    if (rec->type == NEB_RECORD_ROUND) {
        for (uint32_t c = rec->c0; c < rec->c1; c++) r->cell[c].v_cur++;
        look_if_whole(r);
    } else if (r->root_at && r->root_at == r->cursor - 1)
        r->root_at = r->cursor; /* this record leaves the state as it is */
}

/* Returns false when the walk must wait. */
static bool walk_round(struct neb_round *r, const struct neb_record *rec)
{
    bool theta = false, site = false;
    for (uint32_t c = rec->c0; c < rec->c1; c++) {
        struct neb_core_cell *cell = &r->cell[c];
        if (!cell->fetching && cell->v_app == rec->v) {
            bool far = cell->v_log > cell->v_app + r->cfg.staleness && r->now >= cell->replay_until &&
                       r->now >= r->replay_all;
            if (far && cheaper_whole(r, c)) start_fetching(r, cell);
        }
        theta |= !cell->fetching && cell->v_app == rec->v;
        site |= cell->v_site == rec->v;
    }
    bool hopeless = false;
    if (theta && !have_updates(r, rec, &hopeless)) {
        if (!hopeless) return false;
        for (uint32_t c = rec->c0; c < rec->c1; c++)
            if (r->cell[c].v_app == rec->v) start_fetching(r, &r->cell[c]);
        for (uint32_t i = 0; i < rec->updates; i++) {
            struct neb_core_update *p = neb__core_update(r, &rec->update[i].hash, false);
            if (p) p->lack = 0, p->fetch_from = NEB_NO_SITE, p->vain = false;
        }
        theta = false;
    }
    if (!theta && !site) {
        pass(r, rec);
        return true;
    }
    neb__core_act(r, NEB_ACT_APPLY)->index = rec->index;
    r->applying = true;
    return false;
}

static void settle_if_due(struct neb_round *r)
{
    for (uint32_t c = 0; c < r->cfg.cells; c++) {
        struct neb_core_cell *cell = &r->cell[c];
        install_if_trusted(r, c);
        if (!cell->away || cell->fetching || cell->v_app != cell->v_log || cell->v_site != cell->v_log)
            continue;
        cell->away = false;
        int64_t work = r->steps - cell->base, fair = 2 * (int64_t)r->cfg.nominal;
        if (work <= fair || NEB_MUTANT(no_settle)) continue;
        struct neb_action *a = neb__core_act(r, NEB_ACT_SETTLE);
        a->c0 = c, a->c1 = c + 1;
        a->num = (uint64_t)fair, a->den = (uint64_t)work;
        cell->base = r->steps - fair;
    }
}

void neb__core_apply_progress(struct neb_round *r)
{
    uint64_t last = r->commit < r->disk_head ? r->commit : r->disk_head;
    while (!r->applying && !r->installing && !r->rooting) {
        if (!r->whole) look_if_whole(r);
        if (neb__root_wanted(r)) {
            neb__core_act(r, NEB_ACT_ROOT)->index = r->cursor;
            r->rooting = true;
            return;
        }
        if (r->cursor >= last) break;
        const struct neb_record *rec = r->log[r->cursor].record;
        if (rec->type != NEB_RECORD_ROUND)
            pass(r, rec);
        else if (!walk_round(r, rec))
            break;
    }
    if (!r->applying && !r->rooting) settle_if_due(r);
}

/* No record may name the open update any more: it is discarded, and its work is in the next one. */
static void discard_if_expired(struct neb_round *r, uint32_t c)
{
    struct neb_core_cell *cell = &r->cell[c];
    uint64_t last = cell->open.b + (r->cfg.secure ? 0 : r->cfg.staleness);
    if (!cell->open.k || cell->v_site <= last) return;
    struct neb_action *a = neb__core_act(r, NEB_ACT_DISCARD);
    a->c0 = c, a->c1 = c + 1;
    a->k = cell->open.k;
    cell->open.k = 0;
}

static void merged(struct neb_round *r, const struct neb_record *rec, uint32_t c)
{
    struct neb_core_cell *cell = &r->cell[c];
    const struct neb_named *own = neb__record_of(rec, r->self);
    cell->v_site++;
    if (!r->cfg.end_drop) cell->clean = false;
    if (own) {
        bool known = cell->open.k == own->k && neb__hash_equal(&cell->open.hash, &own->hash);
        if (known && r->cfg.end_drop) cell->clean = cell->exact;
        cell->base = known ? cell->captured : r->steps;
        cell->open.k = 0;
    } else
        discard_if_expired(r, c);
}

void neb__core_applied(struct neb_round *r, const struct neb_event *ev)
{
    if (!r->applying || ev->index != r->cursor + 1) return;
    const struct neb_record *rec = r->log[r->cursor].record;
    r->applying = false;
    for (uint32_t c = rec->c0; c < rec->c1; c++) {
        struct neb_core_cell *cell = &r->cell[c];
        if (!cell->fetching && cell->v_app == rec->v) cell->v_app++;
        if (cell->v_site == rec->v) merged(r, rec, c);
    }
    pass(r, rec);
    r->last_commit_step = r->steps;
    r->report_due = true;
}

/* ---- capturing ----------------------------------------------------------------------------------------- */

static bool capture_ready(const struct neb_round *r, uint32_t c0, uint32_t c1)
{
    for (uint32_t c = c0; c < c1; c++) {
        const struct neb_core_cell *cell = &r->cell[c];
        if (cell->open.k || cell->fetching || cell->away || cell->v_app != cell->v_log) return false;
        if (cell->v_site != cell->v_app || cell->v_app != r->cell[c0].v_app) return false;
    }
    return true;
}

/* Nobody takes an update under a key that was replaced. Its work is still in x and goes with the next one. */
static void drop_outdated(struct neb_round *r)
{
    for (uint32_t c = 0; c < r->cfg.cells; c++) {
        struct neb_core_cell *cell = &r->cell[c];
        if (!cell->open.k || !(cell->open.former || r->rekey_all)) continue;
        struct neb_action *a = neb__core_act(r, NEB_ACT_DISCARD);
        a->c0 = c, a->c1 = c + 1;
        a->k = cell->open.k;
        cell->open.k = 0;
    }
    r->rekey_index = 0;
}

void neb__core_capture_due(struct neb_round *r)
{
    if (r->rekey_index && r->cursor >= r->rekey_index) drop_outdated(r);
    if (r->next_k == UINT64_MAX) return; /* a thief has used up the numbers; a new key brings new ones */
    if (r->durable.incarnation != r->incarnation) return; /* sequence numbers start with it */
    if (r->state == NEB_ROUND_BOOT || r->applying || r->ended || r->now < r->capture_retry ||
        !(r->roster.trains & neb__bit(r->self)))
        return;
    /* A checkpoint that was made between a merge and the discard behind it brings the update back at a start. */
    for (uint32_t c = 0; c < r->cfg.cells && !NEB_MUTANT(keep_open); c++) discard_if_expired(r, c);
    for (uint32_t f = 0; f < r->cfg.fragments; f++) {
        uint32_t c0 = neb__core_fragment_first(r, f), c1 = neb__core_fragment_first(r, f + 1);
        struct neb_core_cell *cell = &r->cell[c0];
        /* A paused site makes no steps: its work must go out, or nothing would ever end the pause. */
        bool due = r->steps - cell->since >= (int64_t)r->interval || (r->paused && r->steps > cell->base);
        if (r->ending) due = !cell->clean;
        if (r->cfg.secure && !neb__sum_captures(r, f)) due = false;
        if (r->capturing[f] || !capture_ready(r, c0, c1)) continue;
        if (r->cfg.secure && neb__sum_idles(r, c0, c1)) due = false;
        if (!due) continue;
        struct neb_action *a = neb__core_act(r, NEB_ACT_CAPTURE);
        a->c0 = c0, a->c1 = c1;
        a->k = r->own_k = r->next_k++;
        a->version = cell->v_app;
        a->tau = (uint32_t)(r->steps - cell->base);
        a->exact = r->ending && !r->cfg.end_drop;
        a->last = r->ending && r->cfg.end_drop;
        a->cls = r->ending ? NEB_DENSE : r->cls;
        a->bound = r->bound;
        if (r->cfg.secure) a->index = r->sum[f].open, a->attempt = r->sum[f].attempt;
        r->capturing[f] = true;
        for (uint32_t c = c0; c < c1; c++) {
            r->cell[c].since = r->cell[c].captured = r->steps;
            r->cell[c].exact = r->ending;
        }
    }
}

uint64_t neb__round_steps_left(const struct neb_round *r)
{
    int64_t least = r->last_commit_step + (int64_t)r->cfg.drift_steps - r->steps;
    if (least < 1) least = INT64_MAX;
    for (uint32_t f = 0; f < r->cfg.fragments; f++) {
        uint32_t c0 = neb__core_fragment_first(r, f), c1 = neb__core_fragment_first(r, f + 1);
        int64_t left = r->cell[c0].since + (int64_t)r->interval - r->steps;
        bool may = capture_ready(r, c0, c1) && (!r->cfg.secure || neb__sum_captures(r, f));
        if (left < 1) left = r->capturing[f] || !may ? INT64_MAX : 1;
        least = left < least ? left : least;
    }
    return (uint64_t)least;
}

void neb__core_captured(struct neb_round *r, const struct neb_event *ev)
{
    for (uint32_t f = 0; f < r->cfg.fragments; f++) {
        uint32_t c0 = neb__core_fragment_first(r, f), c1 = neb__core_fragment_first(r, f + 1);
        if (!r->capturing[f] || ev->update->c0 != c0) continue;
        r->capturing[f] = false;
        if (r->cfg.secure) neb__sum_captured(r, f, ev->status);
        for (uint32_t c = c0; c < c1; c++) {
            r->cell[c].clean = ev->empty && r->cell[c].exact;
            if (ev->empty || ev->status != NEB_OK) continue;
            r->cell[c].open = (struct neb_boot_update){
                .hash = ev->hash, .k = ev->update->k, .b = ev->update->b, .attempt = ev->update->attempt};
        }
    }
    r->report_due = true;
    if (ev->status != NEB_OK && ev->status != NEB_ERR_AGAIN) r->capture_retry = r->now + 1000; /* disk full */
    if (ev->empty || ev->status != NEB_OK) return;
    neb__core_update_event(r, ev);
    for (unsigned s = 0; s < NEB_SITES_MAX; s++) {
        if (!neb__core_gives(r, s)) continue;
        struct neb_action *a = neb__core_act(r, NEB_ACT_PUSH);
        a->site = (uint16_t)s;
        a->hash = ev->hash;
    }
}
