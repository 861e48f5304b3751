/* node.c: one simulated machine. It carries out the core's actions (toy_training.c has their effects on the
 * site's training) and brings the core its events: frames, updates, cells, finished writes, time.
 *
 * The start (node_life.c) does what a real driver does: it opens the ledger, loads the newest snapshot of
 * each cell, then the site's own state from the newest of its stored updates or from the checkpoint, creates
 * the core and lets it walk the log. */
#include "sim/world.h"
#include "base/mem.h"
#include "base/mutant.h"
#include "round/frame.h"

#include <string.h>

/* ---- events into the core, actions out of it ----------------------------------------------------------- */

static void act(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_action *a);

static void feed(struct neb_sim_world *w, struct neb_sim_node *n, struct neb_event *ev)
{
    if (!n->alive) return;
    ev->now = w->now + n->clock_skew;
    struct neb_round_status before, after;
    neb__round_status(n->core, &before);
    if (neb__round_event(n->core, ev) != NEB_OK) w->failed = NEB_ERR_NOMEM;
    neb__round_status(n->core, &after);
    if (after.state == NEB_ROUND_LEAD)
        for (uint64_t i = before.head + 1; i <= after.head; i++) neb__oracle_prepared(w, n, i);
    if (after.view != before.view) w->out->views++;
    if (after.state == NEB_ROUND_LEAD && !w->out->led_ms) w->out->led_ms = w->now;
    uint64_t life = n->life;
    struct neb_action a;
    while (n->alive && n->life == life && neb__round_next(n->core, &a)) {
        act(w, n, &a);
        if (n->life != life || !n->alive) return;
        if (n->disk.dead || (n->actions_left > 0 && --n->actions_left == 0)) {
            neb__node_crash(w, n);
            return;
        }
    }
    int64_t wake = neb__round_wake(n->core) - n->clock_skew;
    if (wake < n->tick_at || n->tick_at <= w->now) {
        struct neb_sim_event *t = neb__sim_later(w, wake > w->now ? wake - w->now : 1, EV_TICK, n->id);
        if (t) n->tick_at = t->at;
    }
}

void neb__node_feed(struct neb_sim_world *w, struct neb_sim_node *n, struct neb_event *ev)
{
    feed(w, n, ev);
}

static void do_write(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_action *a)
{
    const uint8_t *record[256];
    size_t length[256];
    uint64_t count = a->count;
    const uint8_t **rec = count > 256 ? neb__calloc(count, sizeof *rec) : record;
    size_t *len = count > 256 ? neb__calloc(count, sizeof *len) : length;
    for (uint64_t i = 0; i < count; i++) rec[i] = neb__round_record_bytes(n->core, a->index + i, &len[i]);
    size_t extras;
    const struct neb_round_extra *more = neb__round_extras(n->core, &extras);
    struct neb_ledger_extra extra[128];
    for (size_t i = 0; i < extras && i < 128; i++)
        extra[i] = (struct neb_ledger_extra){more[i].kind, more[i].index, more[i].bytes, more[i].length};
    struct neb_ledger_batch b = {.first = a->index,
                                 .count = count,
                                 .record = rec,
                                 .length = len,
                                 .extra = extra,
                                 .extras = extras < 128 ? extras : 128,
                                 .head = a->index + count - 1,
                                 .mark = a->bytes,
                                 .mark_length = a->length};
    neb_status status = neb__ledger_append(&n->ledger, &b);
    if (rec != record) neb__free(rec), neb__free(len);
    struct neb_sim_event *ev = neb__sim_later(w, 1 + (int64_t)draw(w, 15), EV_WRITTEN, n->id);
    if (ev) ev->id = a->id, ev->status = status;
}

void neb__node_push(struct neb_sim_world *w, struct neb_sim_node *n, unsigned to, const struct neb_hash *hash)
{
    struct neb_buf b;
    struct neb_update_header h;
    neb__buf_init(&b, 1 << 20);
    struct neb_sim_event what = {.hash = *hash};
    if (neb__node_load(n, hash, &b, &h))
        neb__sim_send(w, n->id, (int)to, EV_UPDATE, &what, b.data, b.len);
    else
        neb__sim_send(w, n->id, (int)to, neb__round_asked(n->core, to, hash) ? EV_COMING : EV_NONE, &what,
                      NULL, 0);
    neb__buf_free(&b);
}

static double norm_of(struct neb_sim_world *w, const struct neb_hash *hash)
{
    const struct neb_sim_update_fact *f = neb__oracle_fact(w, hash);
    return f && f->header.kind != NEB_UPDATE_MASKED ? f->norm : 0;
}

/* Nobody can judge a masked update. */
static uint8_t judge(const struct neb_update_header *h)
{
    if (h->kind == NEB_UPDATE_MASKED) return NEB_REJECT_NONE;
    return neb__toy_rung(h->rung)->reject;
}

static void look(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_hash *hash)
{
    struct neb_buf b;
    struct neb_sim_event *ev = neb__sim_later(w, 1, EV_STORED, n->id);
    if (!ev) return;
    neb__buf_init(&b, 1 << 20);
    ev->hash = *hash;
    ev->status = neb__node_load(n, hash, &b, &ev->update) ? NEB_OK : NEB_ERR_NOTFOUND;
    ev->from = -1;
    neb__buf_free(&b);
}

/* At the end of the run a process goes away. The others must not need it; only sites that are not there at all may. With
 * lasting cuts a site that has just been given its line back is not there yet: links notice a line some time later, and the
 * others hear of them later still. */
enum { LINKS_MS = 4000 };

/* `impatient`: it has waited long enough for somebody who still lacks something, who may have had a fault all the time. Those that
 * go then must have waited behind the last fault. */
static bool may_depart(struct neb_sim_world *w, struct neb_sim_node *n, bool impatient)
{
    if (!w->healed || !draw(w, 4)) return false;
    if (impatient && w->now < w->healed_at + 6 * w->cfg.contact_ms) return false;
    if (w->opt.lasting_cuts && w->now < w->healed_at + LINKS_MS) return false;
    for (int i = 0; i < w->sites; i++) {
        const struct neb_sim_node *o = &w->node[i];
        bool member = w->roster.members & neb__bit((unsigned)i);
        if (o->exists && !o->stopped && member && (!o->alive || w->now < o->started + 4000)) return false;
    }
    return w->roster.members & neb__bit((unsigned)n->id);
}

static void act(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_action *a)
{
    struct neb_sim_event what = {.hash = a->hash, .cell = a->cell};
    switch (a->type) {
    case NEB_ACT_SEND:
        neb__oracle_sends(w, n, a->bytes, a->length);
        if (w->opt.lasting_cuts)
            neb__cuts_send(w, n, a->site, a->bytes, a->length);
        else if (neb__sim_lies(w, n->id) && !w->healed)
            neb__liar_sends(w, n, a->site, a->bytes, a->length);
        else if (w->idlers && neb__sim_lies(w, n->id) && a->bytes[0] == NEB_ROUND_FRAME_LOG)
            break; /* it leads, and proposes nothing */
        else if (w->botchers && neb__sim_lies(w, n->id) &&
                 neb__liar_botches(w, n, a->site, a->bytes, a->length))
            break;
        else
            neb__sim_send(w, n->id, a->site, EV_FRAME, &what, a->bytes, a->length);
        break;
    case NEB_ACT_WRITE: do_write(w, n, a); break;
    case NEB_ACT_CAPTURE: neb__toy_capture(w, n, a); break;
    case NEB_ACT_PUSH: neb__node_push(w, n, a->site, &a->hash); break;
    case NEB_ACT_FETCH:
        if (a->site == NEB_NO_SITE)
            look(w, n, &a->hash);
        else
            neb__sim_send(w, n->id, a->site, EV_GET, &what, NULL, 0);
        break;
    case NEB_ACT_APPLY: neb__toy_apply(w, n, a); break;
    case NEB_ACT_ROOT: neb__toy_root(w, n, a); break;
    case NEB_ACT_DISCARD:
        for (uint32_t c = a->c0; c < a->c1; c++)
            if (n->own[c].open.k == a->k) neb__toy_close(&n->own[c]);
        TRACE(w, "site %d discards %llx", n->id, (unsigned long long)a->k);
        break;
    case NEB_ACT_SETTLE: neb__toy_settle(w, n, a); break;
    case NEB_ACT_FETCH_CELL:
        TRACE(w, "site %d asks site %d for cell %u", n->id, a->site, a->cell);
        neb__sim_send(w, n->id, a->site, EV_GETCELL, &what, NULL, 0);
        break;
    case NEB_ACT_INSTALL: neb__toy_install(w, n, a); break;
    case NEB_ACT_PAUSE: n->paused = true; break;
    case NEB_ACT_RESUME: n->paused = false; break;
    case NEB_ACT_ENDED:
        n->ended = true;
        n->departs = may_depart(w, n, a->count);
        TRACE(w, "site %d ends%s", n->id, n->departs ? " and goes" : "");
        break;
    case NEB_ACT_HALT:
        TRACE(w, "site %d halts: %s", n->id, a->text);
        if (w->liars && a->length) neb__oracle_contradicted(w, n, a->bytes, a->length);
        if (w->liars && !neb__sim_lies(w, n->id) && !w->forked && !strstr(a->text, "writing the ledger"))
            neb__oracle_violated(w, "honest site %d halts without a proof: %s", n->id, a->text);
        /* two histories have two states, and a liar may have deceived itself */
        if (strstr(a->text, "state root") && !w->forked && !neb__sim_lies(w, n->id))
            neb__oracle_violated(w, "I4: site %d halts: %s", n->id, a->text);
        n->halted = true;
        break;
    case NEB_ACT_NOTE: TRACE(w, "site %d: %s", n->id, a->text); break;
    case NEB_ACT_REFUSED: TRACE(w, "site %d: site %d names too many updates", n->id, a->site); break;
    case NEB_ACT_DOUBT: TRACE(w, "site %d doubts site %d", n->id, a->site); break;
    case NEB_ACT_GUILTY: neb__oracle_convicted(w, n, a->site); break;
    case NEB_ACT_CERTIFICATE:
        (void)neb__blob_save(&n->disk.disk, "certificate", a->bytes, a->length, false);
        break;
    case NEB_ACT_OFFER: neb__toy_sums_offer(w, n, a); break;
    case NEB_ACT_REVEAL: neb__toy_sums_reveal(w, n, a->index); break;
    case NEB_ACT_ROSTER:
    case NEB_ACT_BUDGET:
    case NEB_ACT_COMBINE: break;
    }
}

/* ---- events of the machine ----------------------------------------------------------------------------- */

static void step(struct neb_sim_world *w, struct neb_sim_node *n)
{
    neb__sim_later(w, n->step_ms + (int64_t)draw(w, (uint64_t)n->step_ms), EV_STEP, n->id);
    struct neb_round_status st;
    neb__round_status(n->core, &st);
    if (n->paused || n->halted || !(st.roster.trains & neb__bit((unsigned)n->id))) return;
    for (uint32_t c = 0; c < w->cfg.cells; c++) {
        for (int i = 0; i < WIDTH; i++) {
            int v = (int)draw(w, 7) - 3;
            n->own[c].u[i] += (float)v;
            n->books[c].total[i] += v;
        }
        n->own[c].work++;
        n->away_steps[c]++;
    }
    if (!draw(w, 40)) neb__node_checkpoint(w, n);
    feed(w, n, &(struct neb_event){.type = NEB_EV_STEP, .count = 1});
}

static void update_arrives(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_sim_event *ev)
{
    struct neb_update_header h;
    const struct neb_seal seal = neb__sim_seal(n);
    if (neb__update_header_get(ev->bytes, ev->length, &h) != NEB_OK ||
        !neb__update_header_genuine(&h, ev->bytes + NEB_UPDATE_HEADER_SIZE, &w->cfg.genesis, &seal))
        return;
    int64_t wait = 1 + (int64_t)draw(w, 10) + (NEB_MUTANT(have_before_durable) ? 500 : 0);
    struct neb_sim_event *done = neb__sim_later(w, wait, EV_STORED, n->id);
    if (!done) return;
    done->hash = ev->hash;
    done->update = h;
    done->from = ev->from;
    if (NEB_MUTANT(have_before_durable)) {
        done->bytes = neb__malloc(ev->length);
        memcpy(done->bytes, ev->bytes, ev->length);
        done->length = ev->length;
        feed(w, n,
             &(struct neb_event){.type = NEB_EV_UPDATE,
                                 .update = &h,
                                 .hash = ev->hash,
                                 .reject = judge(&h),
                                 .norm = norm_of(w, &ev->hash)});
        return;
    }
    if (!neb__update_exists(&n->updates, &ev->hash))
        done->status = neb__update_save(&n->updates, &ev->hash, ev->bytes, ev->length);
    if (done->status == NEB_OK) neb__oracle_durable(w, n, &ev->hash);
}

static void stored(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_sim_event *ev)
{
    if (ev->bytes && neb__update_save(&n->updates, &ev->hash, ev->bytes, ev->length) == NEB_OK)
        neb__oracle_durable(w, n, &ev->hash);
    struct neb_event in = {
        .type = NEB_EV_UPDATE, .update = &ev->update, .hash = ev->hash, .reject = judge(&ev->update)};
    in.norm = norm_of(w, &ev->hash);
    if (ev->status != NEB_OK)
        in.type = NEB_EV_NO_UPDATE, in.site = ev->from < 0 ? NEB_NO_SITE : (uint16_t)ev->from;
    if (ev->status == NEB_OK && ev->from >= 0 && w->opt.lasting_cuts)
        neb__cuts_pass_on(w, n, ev->from, ev->update.site, &ev->hash);
    feed(w, n, &in);
}

static void serve_cell(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_sim_event *ev)
{
    struct neb_round_status st;
    struct neb_hash path[NEB_PROOF_MAX];
    int steps;
    neb__round_status(n->core, &st);
    uint32_t c = ev->cell;
    if (!st.whole || neb__outer_prove(n->outer, c, path, &steps) != NEB_OK) {
        TRACE(w, "site %d has no cell %u for site %d", n->id, c, ev->from);
        struct neb_sim_event none = {.cell = c};
        neb__round_cell_name(c, &none.hash);
        neb__sim_send(w, n->id, ev->from, EV_NONE, &none, NULL, 0);
        return;
    }
    uint8_t b[8 * WIDTH + 4 + NEB_HASH_SIZE * 8];
    memcpy(b, n->outer->theta + c * WIDTH, 4 * WIDTH);
    memcpy(b + 4 * WIDTH, n->outer->m + c * WIDTH, 4 * WIDTH);
    if (!w->opt.happy && !draw(w, 5)) b[0] ^= 1; /* a bad memory chip */
    memcpy(b + 8 * WIDTH, path, (size_t)steps * NEB_HASH_SIZE);
    struct neb_sim_event what = {.cell = c, .version = n->outer->version[c], .index = st.applied};
    neb__sim_send(w, n->id, ev->from, EV_CELL, &what, b, 8 * WIDTH + (size_t)steps * NEB_HASH_SIZE);
}

static void cell_arrives(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_sim_event *ev)
{
    uint32_t c = ev->cell;
    float theta[WIDTH], m[WIDTH];
    struct neb_hash path[8], root;
    int steps = (int)((ev->length - 8 * WIDTH) / NEB_HASH_SIZE);
    memcpy(theta, ev->bytes, sizeof theta);
    memcpy(m, ev->bytes + 4 * WIDTH, sizeof m);
    memcpy(path, ev->bytes + 8 * WIDTH, (size_t)steps * NEB_HASH_SIZE);
    if (neb__outer_proved(w->cfg.cells, c, ev->version, theta, m, WIDTH, NULL, path, steps, &root) != NEB_OK)
        return;
    TRACE(w, "site %d gets cell %u at version %llu of record %llu from site %d", n->id, c,
          (unsigned long long)ev->version, (unsigned long long)ev->index, ev->from);
    n->fetched[c].version = ev->version;
    n->fetched[c].index = ev->index;
    memcpy(n->fetched[c].theta, theta, sizeof theta);
    memcpy(n->fetched[c].m, m, sizeof m);
    feed(w, n,
         &(struct neb_event){.type = NEB_EV_CELL,
                             .site = (uint16_t)ev->from,
                             .cell = c,
                             .version = ev->version,
                             .index = ev->index,
                             .root = root});
}

void neb__node_event(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_sim_event *ev)
{
    struct neb_event in = {.site = (uint16_t)ev->from,
                           .id = ev->id,
                           .index = ev->index,
                           .status = ev->status,
                           .hash = ev->hash,
                           .root = ev->root,
                           .update = &ev->update,
                           .empty = ev->empty,
                           .bytes = ev->bytes,
                           .length = ev->length,
                           .cell = ev->cell};
    switch (ev->kind) {
    case EV_FRAME: in.type = NEB_EV_FRAME; break;
    case EV_TICK:
        in.type = NEB_EV_TICK;
        neb__toy_sums_turn(w, n);
        break;
    case EV_SUM: neb__toy_sums_message(w, n, ev); break;
    case EV_WRITTEN: in.type = NEB_EV_WRITTEN; break;
    case EV_CAPTURED:
        in.type = NEB_EV_CAPTURED;
        in.reject = judge(&ev->update);
        in.norm = norm_of(w, &ev->hash);
        break;
    case EV_APPLIED: in.type = NEB_EV_APPLIED; break;
    case EV_ROOT: in.type = NEB_EV_ROOT; break;
    case EV_NONE: in.type = NEB_EV_NO_UPDATE; break;
    case EV_COMING: in.type = NEB_EV_COMING; break;
    case EV_UPDATE: update_arrives(w, n, ev); break;
    case EV_GET: neb__node_push(w, n, (unsigned)ev->from, &ev->hash); break;
    case EV_GETCELL: serve_cell(w, n, ev); break;
    case EV_CELL: cell_arrives(w, n, ev); break;
    case EV_STORED: stored(w, n, ev); break;
    case EV_STEP: step(w, n); break;
    case EV_PEER:
        neb__node_peer(w, n, (unsigned)ev->from, w->node[ev->from].alive && !w->cut[ev->from][n->id]);
        break;
    case EV_STATES:
    case EV_RELAY:
    case EV_LINE:
    case EV_ROUTES: neb__cuts_event(w, n, ev); break;
    case EV_START:
    case EV_FAULT: break;
    }
    if (in.type && n->alive) feed(w, n, &in);
    if (n->alive && n->disk.dead) neb__node_crash(w, n);
    if (n->alive && n->departs) {
        neb__oracle_check(w, n);
        n->stopped = true;
        neb__node_crash(w, n);
    }
    if (n->alive && n->halted) neb__node_crash(w, n); /* a supervisor starts it again */
}

void neb__node_order(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_order *o)
{
    if (o) feed(w, n, &(struct neb_event){.type = NEB_EV_OPERATOR, .order = o});
}

void neb__node_ask(struct neb_sim_world *w, struct neb_sim_node *n, uint32_t op, uint64_t count)
{
    feed(w, n, &(struct neb_event){.type = NEB_EV_OPERATOR, .op = op, .count = count});
}

/* With lasting cuts a machine sees by itself which links are up: cut_lines.c. */
void neb__node_peer(struct neb_sim_world *w, struct neb_sim_node *n, unsigned site, bool up)
{
    if (w->opt.lasting_cuts) return;
    feed(w, n, &(struct neb_event){.type = up ? NEB_EV_PEER_UP : NEB_EV_PEER_DOWN, .site = (uint16_t)site});
}

void neb__node_reach(struct neb_sim_world *w, struct neb_sim_node *n, unsigned site, enum neb_reach how)
{
    feed(w, n,
         &(struct neb_event){.type = how == NEB_REACH_NONE ? NEB_EV_PEER_DOWN : NEB_EV_PEER_UP,
                             .site = (uint16_t)site,
                             .far = how == NEB_REACH_FAR});
}

void neb__node_frame(struct neb_sim_world *w, struct neb_sim_node *n, unsigned from, const uint8_t *bytes,
                     size_t length)
{
    feed(w, n,
         &(struct neb_event){.type = NEB_EV_FRAME, .site = (uint16_t)from, .bytes = bytes, .length = length});
}
