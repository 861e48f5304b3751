/* waits.c: what a site waits for, by the state of its core: for whom, for what, and how many bytes are missing.
 *
 * Nothing here changes the core. The order of the questions is that of a site's life: it greets, it needs a
 * leader, it lacks parts of the state, it stands at its drift limit, the run ends. */
#include "round/core.h"

static uint64_t others(const struct neb_round *r, uint64_t sites)
{
    return sites & r->roster.members & ~neb__bit(r->self);
}

static uint64_t connected(const struct neb_round *r)
{
    uint64_t set = neb__bit(r->self);
    for (unsigned i = 0; i < NEB_SITES_MAX; i++)
        if (r->peer[i].up && !r->peer[i].gone) set |= neb__bit(i);
    return set;
}

/* The voters that are not there; if all are, those that have not agreed yet. */
static uint64_t missing_voters(const struct neb_round *r, uint64_t agreed)
{
    uint64_t away = others(r, r->roster.voters & ~connected(r));
    return away ? away : others(r, r->roster.voters & ~agreed);
}

/* Cells of the outer state that are fetched whole. */
static bool lacks_cells(const struct neb_round *r, struct neb_round_wait *out)
{
    uint64_t n = 0;
    for (uint32_t c = 0; c < r->cfg.cells; c++) {
        if (!r->cell[c].fetching) continue;
        n++;
        out->sites |= r->cell[c].asked;
    }
    if (!n) return false;
    out->what = NEB_WAIT_CELLS;
    out->bytes = n * r->cfg.cell_bytes;
    if (!out->sites) out->sites = others(r, r->roster.members & ~connected(r));
    if (!out->sites) out->sites = others(r, r->roster.members);
    return true;
}

/* Updates that committed records name and that are not here. */
static bool lacks_updates(struct neb_round *r, struct neb_round_wait *out)
{
    for (uint64_t i = r->cursor; i < r->commit; i++) {
        const struct neb_record *rec = r->log[i].record;
        for (uint32_t k = 0; rec->type == NEB_RECORD_ROUND && k < rec->updates; k++) {
            const struct neb_named *u = &rec->update[k];
            const struct neb_core_update *p = neb__core_update(r, &u->hash, false);
            if (u->reject || (p && p->held) || u->site == r->self) continue;
            bool asked = p && p->fetch_from != NEB_NO_SITE;
            out->bytes += u->length;
            out->sites |= others(r, neb__bit(asked ? p->fetch_from : u->site));
        }
    }
    if (!out->bytes) return false;
    out->what = NEB_WAIT_UPDATES;
    if (!out->sites) out->sites = others(r, r->roster.members); /* the author has left the run */
    return true;
}

/* Sites that train and whose update for the next record of the fragment the leader does not have. */
static uint64_t owes_update(const struct neb_round *r, uint32_t c0)
{
    uint64_t here = 0;
    for (size_t i = 0; i < r->updates; i++) {
        const struct neb_update_header *h = &r->update[i].header;
        if (r->update[i].held && !r->update[i].used && h->c0 == c0 && h->site < NEB_SITES_MAX)
            here |= neb__bit(h->site);
    }
    return others(r, r->roster.trains & ~here);
}

static uint64_t awaited_for_a_round(const struct neb_round *r)
{
    uint64_t set = 0;
    if (!neb__core_leads(r)) return others(r, neb__bit(r->leader));
    for (uint32_t f = 0; f < r->cfg.fragments; f++) set |= owes_update(r, neb__core_fragment_first(r, f));
    return set;
}

static uint64_t awaited_at_the_end(const struct neb_round *r)
{
    uint64_t set = 0;
    if (!neb__core_leads(r)) return others(r, neb__bit(r->leader));
    for (unsigned s = 0; s < NEB_SITES_MAX; s++)
        if ((r->roster.trains & neb__bit(s)) && !(r->peer[s].clean && neb__lead_live(r, s)))
            set |= neb__bit(s);
    return others(r, set);
}

static uint64_t awaited_after_the_end(const struct neb_round *r)
{
    uint64_t set = 0;
    if (!neb__core_leads(r)) return others(r, neb__bit(r->leader));
    for (unsigned s = 0; s < NEB_SITES_MAX; s++)
        if (r->peer[s].applied < r->final_index && (neb__lead_live(r, s) || r->peer[s].up))
            set |= neb__bit(s);
    return others(r, set);
}

static bool has_leader(const struct neb_round *r)
{
    return neb__core_leads(r) ? r->established : r->state == NEB_ROUND_FOLLOW && r->leader < NEB_SITES_MAX;
}

void neb__round_waits(struct neb_round *r, struct neb_round_wait *out)
{
    *out = (struct neb_round_wait){.what = NEB_WAIT_NOTHING, .ms = -1};
    if (r->state == NEB_ROUND_HALTED || r->paused_end) return;
    if (r->state == NEB_ROUND_BOOT) {
        out->what = NEB_WAIT_BEGIN;
        out->sites = missing_voters(r, r->greeted | r->greet_any);
    } else if (lacks_cells(r, out) || lacks_updates(r, out)) {
        return;
    } else if (r->ended) {
        out->what = NEB_WAIT_TOLD;
        out->sites = has_leader(r) ? awaited_after_the_end(r) : missing_voters(r, r->voted);
    } else if (!has_leader(r)) {
        out->what = NEB_WAIT_LEADER;
        out->sites = missing_voters(r, r->voted);
    } else if (r->ending) {
        out->what = NEB_WAIT_LAST;
        out->sites = awaited_at_the_end(r);
        if (r->end_ms) out->ms = r->ending_since + r->end_ms - r->now;
        if (r->end_ms && out->ms < 0) out->ms = 0;
    } else if (r->paused) {
        out->what = NEB_WAIT_ROUND;
        out->sites = awaited_for_a_round(r);
    }
}
