/* round.c: the round core's interface: it creates the core, takes events, hands out
 * actions and says when to wake it.
 *
 * Every event ends in progress(), which does everything that the new state makes possible, from the state
 * alone. So no code path has to remember what to trigger, and the next tick makes up for a lost message. */
#include "round/core.h"
#include "base/clamp.h"
#include "base/mutant.h"
#include "base/rng.h"

#include <stdio.h>

void neb__round_defaults(struct neb_round_config *c)
{
    if (!c->staleness) c->staleness = 1;
    if (!c->pipeline) c->pipeline = NEB_ROUND_PIPELINE;
    if (!c->nominal) c->nominal = 100;
    if (!c->drift_steps) c->drift_steps = 8 * c->nominal < 2000 ? 8 * c->nominal : 2000;
    if (!c->ping_ms) c->ping_ms = 1000;
    if (!c->elect_ms) c->elect_ms = 3000;
    if (!c->contact_ms) c->contact_ms = 5000;
    if (!c->round_ms) c->round_ms = 5000;
    if (!c->grace_ms) c->grace_ms = 10000;
    if (!c->fetch_ms) c->fetch_ms = 2000;
    if (!c->greet_ms) c->greet_ms = 3000;
    if (!c->idle_ms) c->idle_ms = 8 * (c->round_ms + c->grace_ms);
    if (!c->root_every) c->root_every = 8 * c->fragments;
}

struct neb_action *neb__core_act(struct neb_round *r, enum neb_action_type type)
{
    if (r->acts == r->act_cap) {
        size_t cap = r->act_cap ? 2 * r->act_cap : 64;
        struct neb_action *a = neb__realloc(r->act, cap * sizeof *a);
        if (!a) { /* the last action is lost, and the site stops */
            r->failed = NEB_ERR_NOMEM;
            neb__free(r->act[r->acts - 1].bytes);
            r->acts--;
        } else
            r->act = a, r->act_cap = cap;
    }
    struct neb_action *a = &r->act[r->acts++];
    memset(a, 0, sizeof *a);
    a->type = type;
    return a;
}

/* Frames carry this number, so that two rosters of one epoch do not go unnoticed. */
uint64_t neb__core_roster_id(const struct neb_members *m)
{
    return neb__mix64(m->members ^ neb__mix64(m->voters ^ neb__mix64(m->trains ^ neb__mix64(m->heavy))));
}

void neb__core_send(struct neb_round *r, unsigned to, const struct neb_round_frame *frame)
{
    if (to >= NEB_SITES_MAX || to == r->self || !r->peer[to].up) return;
    struct neb_round_frame *f = (struct neb_round_frame *)frame;
    struct neb_buf b;
    neb__buf_init(&b, NEB_ROUND_FRAME_MAX);
    f->from = r->self;
    f->epoch = r->roster.epoch;
    f->roster_id = neb__core_roster_id(&r->roster);
    f->view = r->view;
    f->commit = r->commit;
    f->lapse = r->lapse[r->self];
    if (neb__round_frame_encode(f, &b) != NEB_OK) {
        neb__buf_free(&b);
        r->failed = NEB_ERR_NOMEM;
        return;
    }
    struct neb_action *a = neb__core_act(r, NEB_ACT_SEND);
    a->site = (uint16_t)to;
    a->bytes = b.data;
    a->length = b.len;
}

/* At most once a second the same: a frame of any member may be the reason, and the log of the site is on its disk. */
void neb__core_note(struct neb_round *r, const char *text)
{
    for (int i = 0; i < NOTES; i++)
        if (r->noted[i].text == text && r->now - r->noted[i].at < 1000) return;
    r->noted[r->noted_next].text = text;
    r->noted[r->noted_next].at = r->now;
    r->noted_next = (r->noted_next + 1) % NOTES;
    neb__core_act(r, NEB_ACT_NOTE)->text = text;
}

/* Honest sites do so now and then, for a moment: after a start, or when the roster changes. */
void neb__core_doubt(struct neb_round *r, unsigned site)
{
    enum { DOUBTS = 8, DOUBT_MS = 10000 };
    struct neb_core_peer *p = &r->peer[site];
    if (r->now - p->doubted > DOUBT_MS) p->doubts = 0;
    if (!p->doubts++) p->doubted = r->now;
    if (p->doubts < DOUBTS) return;
    struct neb_action *a = neb__core_act(r, NEB_ACT_DOUBT);
    a->site = (uint16_t)site;
    a->count = (uint64_t)p->doubts;
    p->doubts = 0;
}

/* `why` is the proof: a certificate that contradicts what this site has committed; NULL: none is needed. */
void neb__core_halt_by(struct neb_round *r, const char *text, const struct neb_certificate *why)
{
    struct neb_buf b;
    if (r->state == NEB_ROUND_HALTED) return;
    r->state = NEB_ROUND_HALTED;
    snprintf(r->halt_text, sizeof r->halt_text, "%s", text);
    neb__buf_init(&b, NEB_CERTIFICATE_MAX);
    if (why && neb__certificate_put(why, &b) != NEB_OK) r->failed = NEB_ERR_NOMEM;
    struct neb_action *a = neb__core_act(r, NEB_ACT_HALT);
    a->text = r->halt_text;
    a->bytes = b.data;
    a->length = b.len;
}

void neb__core_halt(struct neb_round *r, const char *text)
{
    neb__core_halt_by(r, text, NULL);
}

uint32_t neb__core_fragment_first(const struct neb_round *r, uint32_t f)
{
    return (uint32_t)((uint64_t)f * r->cfg.cells / r->cfg.fragments);
}

bool neb__core_leads(const struct neb_round *r)
{
    return r->state == NEB_ROUND_LEAD;
}

bool neb__core_gives(const struct neb_round *r, unsigned site)
{
    const struct neb_core_peer *p = &r->peer[site];
    return site != r->self && p->up && !p->far && (r->roster.members & neb__bit(site));
}

void neb__round_set_between(struct neb_round *r, bool between)
{
    r->between = between;
}

void neb__round_set_observers(struct neb_round *r, uint64_t sites)
{
    r->observers = sites;
}

void neb__round_destroy(struct neb_round *r)
{
    if (!r) return;
    r->commit = 0;
    neb__log_cut(r, 0);
    for (size_t i = r->act_next; i < r->acts; i++) neb__free(r->act[i].bytes);
    neb__free(r->act_bytes);
    neb__free(r->act);
    neb__free(r->log);
    neb__free(r->lastk);
    neb__free(r->newest_b);
    neb__free(r->cell);
    neb__free(r->close_at);
    neb__free(r->capturing);
    neb__free(r->sum);
    neb__free(r->update);
    for (unsigned i = 0; i < NEB_SITES_MAX; i++) neb__free(r->peer[i].acks);
    neb__free(r->kept);
    for (size_t i = 0; i < r->extras; i++) neb__free(r->extra[i].bytes);
    neb__free(r->extra);
    neb__free(r);
}

static neb_status boot_cells(struct neb_round *r, const struct neb_round_boot *boot)
{
    for (uint32_t c = 0; c < r->cfg.cells; c++) {
        struct neb_core_cell *cell = &r->cell[c];
        cell->v_app = boot->applied[c];
        cell->v_site = boot->merged[c];
        cell->open = boot->open[c];
        cell->base = -(int64_t)boot->work[c];
        cell->captured = boot->work_after ? -(int64_t)boot->work_after[c] : 0;
        cell->fetch_from = r->self;
        if (cell->open.k > r->own_k) r->own_k = cell->open.k;
        if (cell->open.k >= r->next_k) r->next_k = cell->open.k + 1;
    }
    /* The fragments take turns, so that an interval is filled evenly instead of with one burst. */
    for (uint32_t f = 0; f < r->cfg.fragments; f++)
        for (uint32_t c = neb__core_fragment_first(r, f); c < neb__core_fragment_first(r, f + 1); c++)
            r->cell[c].since =
                -(int64_t)((uint64_t)r->cfg.nominal * (r->cfg.fragments - 1 - f) / r->cfg.fragments);
    return neb__log_boot(r, boot);
}

neb_status neb__round_create(const struct neb_round_config *c, const struct neb_round_boot *boot,
                             struct neb_round **out)
{
    if (!c->cells || !c->fragments || c->fragments > c->cells || c->fragments > NEB_FRAGMENTS_MAX ||
        c->self >= NEB_SITES_MAX || !neb__members_valid(&c->roster))
        return neb__fail(NEB_ERR_INVALID, "round: not a valid run: %u cells in %u fragments, site %u",
                         c->cells, c->fragments, c->self);
    struct neb_round *r = NEB_NEW(struct neb_round);
    if (!r) return neb__fail(NEB_ERR_NOMEM, "out of memory for the round core");
    r->cfg = *c;
    neb__round_defaults(&r->cfg);
    r->usual = r->cfg;
    r->self = c->self;
    r->roster = c->roster;
    r->ever = c->roster.members;
    r->leader = r->sync_from = NEB_NO_SITE;
    r->next_k = 1;
    r->budget = r->budget_now = 1000;
    r->bound = c->bound;
    r->cls = c->cls;
    r->interval = r->cfg.nominal;
    r->cell = NEB_NEW_ARRAY(struct neb_core_cell, c->cells);
    r->lastk = NEB_NEW_ARRAY(uint64_t, (size_t)c->cells * NEB_SITES_MAX);
    r->newest_b = NEB_NEW_ARRAY(uint64_t, (size_t)c->cells * NEB_SITES_MAX);
    r->close_at = NEB_NEW_ARRAY(int64_t, c->fragments);
    r->capturing = NEB_NEW_ARRAY(bool, c->fragments);
    if (c->secure) r->sum = NEB_NEW_ARRAY(struct neb_core_sum, c->fragments);
    r->act = NEB_NEW_ARRAY(struct neb_action, 64);
    r->act_cap = 64;
    for (int i = 0; i < NEB_SITES_MAX; i++) r->peer[i].heard = r->peer[i].chain = INT64_MIN / 4;
    neb_status status = NEB_OK;
    if (!r->cell || !r->lastk || !r->newest_b || !r->close_at || !r->capturing || !r->act ||
        (c->secure && !r->sum))
        status = neb__fail(NEB_ERR_NOMEM, "out of memory for %u cells", c->cells);
    if (status == NEB_OK) status = boot_cells(r, boot);
    if (status != NEB_OK) {
        neb__round_destroy(r);
        return status;
    }
    r->state = NEB_ROUND_BOOT;
    r->greet_phase = 0; /* starts with the first tick */
    *out = r;
    return NEB_OK;
}

/* ---- events -------------------------------------------------------------------------------------------- */

void neb__core_conflict(struct neb_round *r)
{
    if (r->conflict) return;
    r->conflict = true; /* until the operators agree on the next epoch */
    neb__core_note(
        r, "another site has a different roster of the same epoch, so two contradicting evictions were "
           "forced; nothing is committed until `nebula-i adopt` names the right one");
}

static void peer_event(struct neb_round *r, unsigned site, bool up, bool far)
{
    if (site >= NEB_SITES_MAX || site == r->self) return;
    bool lost = up && far && r->peer[site].up; /* only its line: the site is still there */
    r->peer[site].up = up;
    r->peer[site].far = far;
    for (uint32_t c = 0; c < r->cfg.cells; c++) r->cell[c].asked &= ~neb__bit(site); /* lost with the link */
    if (!up || lost) return;
    r->peer[site].gone = false;
    r->leader_left = false;
    /* It comes back behind the end and may lack it: those that have everything wait for it from now on, once. */
    if (r->final_since && !(r->final_waited & neb__bit(site)) && !NEB_MUTANT(wait_once)) {
        r->final_waited |= neb__bit(site);
        r->final_since = r->now;
    }
    r->peer[site].owed = 0;
    r->peer[site].roots_at = r->commit;
    r->peer[site].applied = 0; /* it may have come back with an empty disk */
    memset(r->peer[site].knows, 0, sizeof r->peer[site].knows);
    r->peer[site].commit = 0;
    r->peer[site].log_first = 0; /* the answer was lost with the link */
    r->peer[site].in_view = false;
    if (r->state == NEB_ROUND_BOOT) r->greet_at = r->now;
    if (far) return;
    for (uint32_t c = 0; c < r->cfg.cells; c++) {
        const struct neb_core_cell *cell = &r->cell[c];
        if (!cell->open.k || (c && r->cell[c - 1].open.k == cell->open.k)) continue;
        struct neb_action *a = neb__core_act(r, NEB_ACT_PUSH);
        a->site = (uint16_t)site;
        a->hash = cell->open.hash;
    }
}

static void pausing(struct neb_round *r)
{
    bool drifted = r->cfg.drift_pause && r->steps - r->last_commit_step >= (int64_t)r->cfg.drift_steps;
    bool pause = drifted || r->ending || r->state == NEB_ROUND_HALTED;
    if (pause == r->paused) return;
    r->paused = pause;
    neb__core_act(r, pause ? NEB_ACT_PAUSE : NEB_ACT_RESUME);
}

/* No other member is in reach that has not said goodbye. */
static bool alone(const struct neb_round *r)
{
    for (unsigned s = 0; s < NEB_SITES_MAX; s++)
        if (s != r->self && (r->roster.members & neb__bit(s)) && r->peer[s].up && !r->peer[s].gone)
            return false;
    return true;
}

/* Whether nobody needs this site's data any more. The leader makes sure that everybody in reach has
 * everything. The others must stay until the leader itself has everything. If it dies before, another one has to be elected and to
 * make sure of it, unless nobody else is there. */
static bool dispensable(const struct neb_round *r)
{
    if (NEB_MUTANT(end_at_once)) return true;
    if (neb__core_leads(r)) return neb__lead_acknowledged(r);
    if (r->leader == NEB_NO_SITE) return r->leader_left && alone(r);
    bool waits = r->between && !r->all_have && !NEB_MUTANT(middle_goes);
    return (r->leader_has_all && !waits) ||
           (!r->peer[r->leader].up && (alone(r) || NEB_MUTANT(go_with_the_leader)));
}

/* A thin line may take as long to bring the last updates as the end was allowed to take. */
static int64_t patience(const struct neb_round *r)
{
    return r->end_ms > 6 * r->cfg.contact_ms ? r->end_ms : 6 * r->cfg.contact_ms;
}

/* The disk itself proves that the run has ended, and holds all of its result. Nobody has to be asked, and
 * nobody has to be told: this site votes no more. */
static bool found_ended(const struct neb_round *r)
{
    if (r->state != NEB_ROUND_BOOT || r->damaged || r->forgot || !r->whole) return false;
    for (uint32_t c = 0; c < r->cfg.cells; c++)
        if (r->cell[c].fetching || r->cell[c].v_app != r->cell[c].v_log) return false;
    return r->durable.commit >= r->final_index;
}

/* The leader tells everybody of the end, and who goes on its word believes that it did. A leader that lies may have told a quorum
 * only. So a site that goes shows the last records with their certificate to all that it reaches. Its goodbye keeps those that
 * still lack something from asking it first, while the leader has it and waits for them. */
static void pass_on_the_end(struct neb_round *r)
{
    enum { LAST = 16 };
    uint64_t first = r->final_index > LAST ? r->final_index - LAST + 1 : 1;
    if (r->state == NEB_ROUND_BOOT || neb__core_leads(r) || NEB_MUTANT(go_in_silence)) return;
    for (uint64_t i = first; i < r->final_index; i++) /* a frame ends with a change of the roster */
        if (neb__record_is_change(r->log[i - 1].record)) first = i + 1;
    for (unsigned i = 0; i < NEB_SITES_MAX; i++) {
        if (i == r->self || !r->peer[i].up || r->peer[i].gone || !(r->roster.members & neb__bit(i))) continue;
        if (i != r->leader) neb__log_send(r, i, first, r->final_index);
        neb__core_send(r, i, &(struct neb_round_frame){.type = NEB_ROUND_FRAME_GOODBYE});
    }
}

/* The run is over for this site when it has applied everything and nobody needs it any more. */
static void ending(struct neb_round *r)
{
    if (!r->ended || r->paused_end || r->cursor < r->final_index) return;
    if (r->whole && r->root_at < r->final_index) return; /* everybody compares the last root */
    bool found = found_ended(r);
    if (!found && !neb__core_caught_up(r)) return;
    if (!r->final_since) r->final_since = r->now;
    bool kept = r->durable.commit >= r->final_index; /* a start after this one finds the end on its disk */
    bool needed = !found && !dispensable(r);
    if ((needed || !(found || kept)) && r->now < r->final_since + patience(r)) return;
    if (needed)
        neb__core_note(
            r, "the run is over, but a member still lacks something of its result; this site has waited for "
               "it long enough, and goes; to complete that member, start both again");
    r->paused_end = true;
    if (neb__core_leads(r)) neb__lead_ping(r); /* who waits for the others hears that they have everything */
    pass_on_the_end(r);
    neb__core_act(r, NEB_ACT_ENDED)->count = needed;
}

/* This site's own signature shows that it has forgotten a promise: it asks the others before it votes again. */
static void heed_forgetting(struct neb_round *r)
{
    bool forgets = r->forgets && !r->forgot;
    r->proven = r->proven || r->forgets;
    r->forgets = false;
    if (!forgets) return;
    neb__core_note(
        r,
        "this site has signed a record that is not on its disk: the disk is an old copy; asking the others "
        "for what is missing");
    r->forgot = true;
    if (r->state != NEB_ROUND_BOOT) neb__view_greet(r);
}

static void progress(struct neb_round *r)
{
    if (r->state == NEB_ROUND_HALTED) {
        pausing(r);
        return;
    }
    heed_forgetting(r);
    if (r->ending && !r->ending_since) r->ending_since = r->now;
    neb__idle_tick(r);
    neb__view_tick(r);
    neb__order_leave_tick(r);
    neb__lead_tick(r);
    neb__lead_progress(r);
    neb__log_write(r);
    neb__core_apply_progress(r);
    neb__sum_tick(r);
    neb__core_capture_due(r);
    neb__core_fetch_tick(r);
    neb__core_updates_prune(r);
    bool follows = r->state == NEB_ROUND_FOLLOW && r->leader != NEB_NO_SITE;
    if (r->report_due && follows) neb__core_report(r, r->leader);
    ending(r);
    pausing(r);
}

neb_status neb__round_event(struct neb_round *r, const struct neb_event *ev)
{
    if (ev->now - r->now > r->cfg.elect_ms) neb__log_slept(r);
    if (ev->now > r->now) r->now = ev->now;
    if (r->state == NEB_ROUND_BOOT && !r->greet_phase) neb__view_greet(r);
    if (r->state != NEB_ROUND_HALTED) switch (ev->type) {
        case NEB_EV_TICK: break;
        case NEB_EV_PEER_UP: peer_event(r, ev->site, true, ev->far); break;
        case NEB_EV_PEER_DOWN: peer_event(r, ev->site, false, false); break;
        case NEB_EV_FRAME: neb__core_frame(r, ev->site, ev->bytes, ev->length); break;
        case NEB_EV_WRITTEN: neb__log_written(r, ev->id, ev->status); break;
        case NEB_EV_STEP: r->steps += (int64_t)ev->count; break;
        case NEB_EV_CAPTURED: neb__core_captured(r, ev); break;
        case NEB_EV_UPDATE:
        case NEB_EV_NO_UPDATE:
        case NEB_EV_COMING: neb__core_update_event(r, ev); break;
        case NEB_EV_UNWANTED: neb__core_unwanted(r, &ev->hash, ev->site); break;
        case NEB_EV_APPLIED: neb__core_applied(r, ev); break;
        case NEB_EV_ROOT: neb__root_computed(r, ev); break;
        case NEB_EV_CELL: neb__core_cell_event(r, ev); break;
        case NEB_EV_INSTALLED: neb__core_installed(r, ev); break;
        case NEB_EV_OPERATOR: neb__order_event(r, ev); break;
        case NEB_EV_RESULT: break;
        case NEB_EV_OFFER:
        case NEB_EV_SEEDS: neb__sum_event(r, ev); break;
        }
    progress(r);
    return r->failed;
}

bool neb__round_next(struct neb_round *r, struct neb_action *out)
{
    neb__free(r->act_bytes);
    r->act_bytes = NULL;
    if (r->act_next == r->acts) {
        r->act_next = r->acts = 0;
        return false;
    }
    *out = r->act[r->act_next++];
    r->act_bytes = out->bytes;
    return true;
}

static int64_t sooner(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int64_t neb__round_wake(const struct neb_round *r)
{
    int64_t at = r->now + r->cfg.ping_ms;
    if (r->state == NEB_ROUND_HALTED) return INT64_MAX;
    if (r->state == NEB_ROUND_BOOT) at = sooner(at, r->greet_phase == 3 ? r->sync_at : r->greet_at);
    if (r->state == NEB_ROUND_SYNC || r->state == NEB_ROUND_ELECT) at = sooner(at, r->sync_at);
    if (r->state == NEB_ROUND_ELECT) at = sooner(at, r->ask_end);
    if (r->state == NEB_ROUND_FOLLOW || r->state == NEB_ROUND_SYNC) at = sooner(at, r->elect_at);
    if (r->state == NEB_ROUND_LEAD) at = sooner(at, r->next_ping);
    for (size_t i = 0; i < r->updates; i++)
        if (r->update[i].needed) at = sooner(at, r->update[i].fetch_at);
    return at > r->now ? at : r->now + 1;
}

/* ---- looking inside ------------------------------------------------------------------------------------ */

void neb__round_status(const struct neb_round *r, struct neb_round_status *out)
{
    *out = (struct neb_round_status){
        .state = r->state,
        .view = r->view,
        .normal_view = r->normal,
        .head = r->head,
        .durable = r->disk_head,
        .commit = r->commit,
        .applied = r->cursor,
        .tokens = r->tokens,
        .incarnation = r->incarnation,
        .lapse = r->lapse[r->self],
        .durable_epoch = r->durable_epoch,
        .paused = r->paused,
        .ending = r->ending,
        .ended = r->ended,
        .leader = r->leader,
        .may_vote = r->state != NEB_ROUND_BOOT && r->state != NEB_ROUND_HALTED,
        .whole = r->whole,
        .root_at = r->root_at,
        .caught_up = neb__core_caught_up(r),
        .root = r->cur_root,
        .commit_hash = *neb__log_hash(r, r->commit),
        .roster = r->roster,
        .budget = r->budget_now,
        .bound = r->bound,
        .cls = r->cls,
        .certified = r->newest.n ? r->newest.index : 0,
    };
}

const struct neb_record *neb__round_record(const struct neb_round *r, uint64_t index)
{
    return index && index <= r->head ? r->log[index - 1].record : NULL;
}

const uint8_t *neb__round_record_bytes(const struct neb_round *r, uint64_t index, size_t *length)
{
    if (!index || index > r->head) return NULL;
    *length = r->log[index - 1].length;
    return r->log[index - 1].bytes;
}

bool neb__round_applies(const struct neb_round *r, uint64_t index, uint32_t cell)
{
    const struct neb_record *rec = neb__round_record(r, index);
    return rec && cell < r->cfg.cells && !r->cell[cell].fetching && r->cell[cell].v_app == rec->v;
}

bool neb__round_merges(const struct neb_round *r, uint64_t index, uint32_t cell)
{
    const struct neb_record *rec = neb__round_record(r, index);
    return rec && cell < r->cfg.cells && r->cell[cell].v_site == rec->v;
}

int64_t neb__round_base(const struct neb_round *r, uint32_t cell)
{
    return cell < r->cfg.cells ? r->cell[cell].base : r->steps;
}

uint64_t neb__round_version(const struct neb_round *r, uint32_t cell)
{
    return r->cell[cell].v_log;
}

uint64_t neb__round_all_applied(const struct neb_round *r)
{
    return r->floor;
}

/* Two sites may have different times: none of them is part of a safety decision. A vote takes one round trip, and so does a
 * greeting; an update or a cell takes one and its own time. */
void neb__round_set_line(struct neb_round *r, int64_t rtt_ms)
{
    enum { RTT_MAX = 30000 };
    const struct neb_round_config *u = &r->usual;
    int64_t rtt = neb__clamp_int(rtt_ms, 0, RTT_MAX);
    r->cfg.elect_ms = neb__clamp_int(4 * rtt, u->elect_ms, INT64_MAX);
    r->cfg.contact_ms = neb__clamp_int(6 * rtt, u->contact_ms, INT64_MAX);
    r->cfg.greet_ms = neb__clamp_int(4 * rtt, u->greet_ms, INT64_MAX);
    r->cfg.fetch_ms = neb__clamp_int(3 * rtt, u->fetch_ms, INT64_MAX);
}

void neb__round_set_end(struct neb_round *r, int64_t ms)
{
    r->end_ms = r->cfg.end_drop ? ms : 0;
}

void neb__round_set_interval(struct neb_round *r, uint32_t steps)
{
    r->interval = steps ? steps : r->cfg.nominal;
}
