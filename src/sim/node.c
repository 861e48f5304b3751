/* node.c: one simulated machine: carries out the core's actions with the production store and arithmetic, and trains
 * a toy.
 *
 * The toy: every inner step adds small random integers to the live delta. Its codec rounds to multiples of four (the
 * rest is the residual), or sends everything at the end. What a site holds of its own is kept relative to theta, so the
 * production capture and merge functions run on exact integers, with zero vectors in theta's place: a bfloat16 holds
 * integers, and what it leaves out of a larger one is an integer. Where a factor comes in (the sparse class's feedback, a
 * discount), the toy rounds the residual to an integer that a bfloat16 holds and drops the rest.
 *
 * Starting is what a real driver does: open the ledger, load the newest snapshot of each cell, then the site's own
 * state from the newest of its stored parcels or from the checkpoint, create the core and let it walk the log. */
#include "sim/world.h"
#include "base/bytes.h"
#include "base/mem.h"
#include "base/mutant.h"
#include "outer/site.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const float zero[WIDTH];

/* ---- the residual ---------------------------------------------------------------------------------------------- */

void neb__own_residual(const struct own *o, float out[WIDTH])
{
    neb__site_widen(o->e, WIDTH, out);
}

/* Towards zero, to an integer that a bfloat16 holds. */
static void whole(float *e)
{
    for (int i = 0; i < WIDTH; i++) {
        uint32_t bits;
        e[i] = truncf(e[i]);
        memcpy(&bits, &e[i], 4);
        bits &= 0xffff0000u;
        memcpy(&e[i], &bits, 4);
    }
}

/* The residual as the next parcel takes it up; what decays is dropped once that parcel is in. */
static void taken_up(const struct own *o, bool sparse, float out[WIDTH])
{
    neb__own_residual(o, out);
    for (int i = 0; sparse && i < WIDTH; i++) out[i] *= NEB_SPARSE_FEEDBACK;
    whole(out);
}

/* ---- the toy codec -------------------------------------------------------------------------------------------- */

static void toy_encode(const float *z, uint8_t rung, uint8_t *out)
{
    int big = 0;
    for (int i = 1; i < WIDTH; i++)
        if (fabsf(z[i]) > fabsf(z[big])) big = i;
    for (int i = 0; i < WIDTH; i++) {
        float q = rung == RUNG_EXACT ? z[i] : rung == RUNG_SPARSE ? (i == big ? z[i] : 0) : truncf(z[i] / 4);
        neb__put32(out + 4 * i, (uint32_t)(int32_t)q);
    }
}

/* Values of one cell; returns what they are multiplied by when applied. */
float neb__toy_decode(const uint8_t *bytes, size_t n, const struct neb_parcel *h, uint32_t cell,
                      float out[WIDTH])
{
    size_t at = NEB_PARCEL_SIZE + (size_t)(cell - h->c0) * 4 * WIDTH;
    for (int i = 0; i < WIDTH; i++) {
        int32_t q = at + 4 * WIDTH <= n ? (int32_t)neb__get32(bytes + at + 4 * i) : 0;
        out[i] = (float)(h->rung == RUNG_EXACT || h->rung == RUNG_SPARSE ? q : 4 * q);
    }
    return h->rung == RUNG_BOMB ? 1e38f : 1.0f;
}

double neb__toy_norm(const uint8_t *bytes, size_t n, const struct neb_parcel *h)
{
    double sum = 0;
    for (uint32_t c = h->c0; c < h->c1; c++) {
        float v[WIDTH], scale = neb__toy_decode(bytes, n, h, c, v);
        double norm = scale * neb__site_norm(v, WIDTH);
        sum += norm * norm;
    }
    return sqrt(sum);
}

/* ---- events into the core, actions out of it ------------------------------------------------------------------ */

static void act(struct world *w, struct node *n, const struct neb_action *a);

static void feed(struct world *w, struct node *n, struct neb_event *ev)
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
        struct event *t = neb__sim_later(w, wake > w->now ? wake - w->now : 1, EV_TICK, n->id);
        if (t) n->tick_at = t->at;
    }
}

static bool load(struct node *n, const struct neb_hash *hash, struct neb_buf *b, struct neb_parcel *h)
{
    neb__buf_clear(b);
    return neb__payload_load(&n->payloads, hash, b) == NEB_OK &&
           neb__parcel_get(b->data, b->len, h) == NEB_OK;
}

static void do_write(struct world *w, struct node *n, const struct neb_action *a)
{
    const uint8_t *record[256];
    size_t length[256];
    uint64_t count = a->count;
    const uint8_t **rec = count > 256 ? neb__calloc(count, sizeof *rec) : record;
    size_t *len = count > 256 ? neb__calloc(count, sizeof *len) : length;
    for (uint64_t i = 0; i < count; i++) rec[i] = neb__round_record_bytes(n->core, a->index + i, &len[i]);
    struct neb_ledger_batch b = {.first = a->index,
                                 .count = count,
                                 .record = rec,
                                 .length = len,
                                 .head = a->index + count - 1,
                                 .mark = a->bytes,
                                 .mark_length = a->length};
    neb_status s = neb__ledger_append(&n->ledger, &b);
    if (rec != record) neb__free(rec), neb__free(len);
    struct event *ev = neb__sim_later(w, 1 + (int64_t)draw(w, 15), EV_WRITTEN, n->id);
    if (ev) ev->id = a->id, ev->status = s;
}

/* What one cell sends: the hook between capture and encode, on integers. z gets what stays for later sums. */
static void toy_hook(struct world *w, const struct neb_action *a, float *z, float *sent)
{
    float bound;
    for (int v = 0; v < WIDTH; v++) z[v] = truncf(z[v]);
    memcpy(sent, z, WIDTH * sizeof *z);
    memcpy(&bound, &a->bound, sizeof bound);
    (void)neb__site_clip(sent, WIDTH,
                         (double)bound / (a->c1 - a->c0)); /* so the whole parcel keeps the bound */
    if (w->private && !a->dense) neb__site_noise(sent, WIDTH, 2, &w->rng);
    for (int v = 0; v < WIDTH; v++) sent[v] = truncf(sent[v]);
}

static uint8_t toy_rung(struct world *w, const struct neb_action *a)
{
    if (a->dense) return RUNG_EXACT;
    if (!draw(w, 60)) return draw(w, 2) ? RUNG_BAD : RUNG_BOMB;
    return a->cls == NEB_CLASS_SPARSE ? RUNG_SPARSE : RUNG_COARSE;
}

static void keep_parcel(struct node *n, const struct neb_parcel *h, const struct neb_hash *hash,
                        float d[][WIDTH], float r[][WIDTH])
{
    for (uint32_t c = h->c0; c < h->c1; c++) {
        struct own *o = &n->own[c];
        uint8_t tagged[8 + 4 * WIDTH];
        char name[32];
        o->open = (struct neb_boot_parcel){*hash, h->k, h->b};
        memcpy(o->d, d[c - h->c0], sizeof o->d);
        o->work_open = o->work;
        neb__put64(tagged, h->k);
        memcpy(tagged + 8, r[c - h->c0], 4 * WIDTH);
        snprintf(name, sizeof name, "residual-%u", c);
        (void)neb__blob_save(&n->disk.disk, name, tagged, sizeof tagged,
                             false); /* may be lost: it is tagged */
    }
}

static void do_capture(struct world *w, struct node *n, const struct neb_action *a)
{
    struct neb_parcel h = {.site = (uint16_t)n->id,
                           .c0 = a->c0,
                           .c1 = a->c1,
                           .k = a->k,
                           .b = a->version,
                           .tau = a->tau,
                           .weight = 1 + (uint32_t)n->id % 3,
                           .cls = a->cls};
    h.tokens = (uint64_t)h.tau * h.weight;
    uint8_t bytes[NEB_PARCEL_SIZE + CELLS_MAX * 4 * WIDTH];
    float d[CELLS_MAX][WIDTH], z[WIDTH], sent[WIDTH], r[CELLS_MAX][WIDTH], got[WIDTH];
    bool empty = a->dense, sparse = a->cls == NEB_CLASS_SPARSE;
    h.rung = toy_rung(w, a);
    h.length = (a->c1 - a->c0) * 4 * WIDTH;
    for (uint32_t c = a->c0; c < a->c1; c++) {
        struct own *o = &n->own[c];
        uint32_t i = c - a->c0;
        if (o->open.k)
            neb__violated(w, "I7: site %d captures cell %u with parcel %llx open", n->id, c,
                          (unsigned long long)o->open.k);
        memcpy(d[i], o->u, sizeof d[i]);
        if (neb__site_delta(d[i], zero, o->e, WIDTH)) empty = false;
        taken_up(o, sparse, z);
        for (int v = 0; v < WIDTH; v++) z[v] += d[i][v];
        toy_hook(w, a, z, sent);
        toy_encode(sent, h.rung, bytes + NEB_PARCEL_SIZE + i * 4 * WIDTH);
        neb__toy_decode(bytes, sizeof bytes, &h, c, got);
        for (int v = 0; v < WIDTH; v++) r[i][v] = w->private && !a->dense ? 0 : z[v] - got[v];
        whole(r[i]); /* what a restart finds */
    }
    struct event *ev = neb__sim_later(w, 1 + (int64_t)draw(w, 10), EV_CAPTURED, n->id);
    if (!ev) return;
    const struct neb_seal seal = neb__sim_seal(n);
    if (neb__parcel_sign(&h, bytes + NEB_PARCEL_SIZE, &w->cfg.genesis, &seal) != NEB_OK)
        w->failed = NEB_ERR_NOMEM;
    neb__parcel_put(&h, bytes);
    size_t size = NEB_PARCEL_SIZE + h.length;
    ev->parcel = h;
    ev->empty = empty;
    if (empty || neb__hash(bytes, size, &ev->hash) != NEB_OK) return;
    struct neb_hash hash = ev->hash;
    neb__oracle_captured(w, n, &h, &hash, bytes, r);
    neb_status s = neb__payload_save(&n->payloads, &hash, bytes, size);
    ev->status = s;
    if (s != NEB_OK) return;
    neb__oracle_durable(w, n, &hash);
    n->last_k = h.k;
    TRACE(w, "site %d captures %llx of cells %u-%u at %llu, %u steps, rung %u", n->id,
          (unsigned long long)h.k, h.c0, h.c1, (unsigned long long)h.b, h.tau, h.rung);
    keep_parcel(n, &h, &hash, d, r);
}

static void close_parcel(struct own *o)
{
    o->open.k = 0;
    memset(o->d, 0, sizeof o->d);
}

/* The own parcel is in: as in a session, the next residual is computed again from what the parcel decodes to. Of a rejected
 * one, of one that is gone and of a private one nothing is kept back. */
static void take(struct world *w, struct node *n, const struct neb_named *p, uint32_t c)
{
    struct own *o = &n->own[c];
    float was[WIDTH], e[WIDTH], got[WIDTH], *decoded = NULL;
    struct neb_parcel h;
    struct neb_buf b;
    neb__buf_init(&b, 1 << 20);
    const struct parcel_fact *f = neb__fact(w, &p->hash);
    if (!p->reject && neb__payload_exists(&n->payloads, &p->hash)) {
        if (!load(n, &p->hash, &b, &h)) n->disk.dead = true; /* damaged: start anew */
        if (!n->disk.dead) neb__toy_decode(b.data, b.len, &h, c, got), decoded = got;
    }
    neb__buf_free(&b);
    if (n->disk.dead || !f) return;
    if (w->private && f->header.rung != RUNG_EXACT) decoded = NULL;
    neb__own_residual(o, was);
    taken_up(o, f->header.cls == NEB_CLASS_SPARSE, e);
    for (int i = 0; i < WIDTH; i++) /* what decays, or all that was not told */
        n->books[c].dropped[i] += (int64_t)(decoded ? was[i] - e[i] : o->d[i] + was[i] - f->decoded[c][i]);
    neb__site_narrow(e, WIDTH, o->e);
    neb__site_take(o->d, o->e, zero, decoded, 1, WIDTH);
    for (int i = 0; i < WIDTH; i++) o->u[i] += o->d[i]; /* the edit */
    o->work -= o->work_open;
}

static void merge_own(struct world *w, struct node *n, const struct neb_record *rec, uint32_t c)
{
    struct own *o = &n->own[c];
    const struct neb_named *p = neb__record_of(rec, (unsigned)n->id);
    bool known = p && o->open.k == p->k && neb__hash_equal(&o->open.hash, &p->hash);
    if (known) {
        take(w, n, p, c);
        if (n->disk.dead) return;
    } else if (p) {
        memset(o->u, 0, sizeof o->u);
        memset(o->e, 0, sizeof o->e);
        o->work = 0;
    }
    if (p)
        TRACE(w, "site %d merges its parcel %llx in cell %u at %llu: %s", n->id, (unsigned long long)p->k, c,
              (unsigned long long)rec->v, known ? p->reject ? "rejected" : "known" : "unknown");
    if (p) close_parcel(o);
    if (p) neb__oracle_merged(w, n, rec, c, known);
    o->version = rec->v + 1;
}

static void apply_theta(struct world *w, struct node *n, const struct neb_record *rec, uint32_t c)
{
    float value[SITES][WIDTH];
    const float *values[SITES];
    uint32_t weight[SITES], k = 0;
    struct neb_buf b;
    neb__buf_init(&b, 1 << 20);
    bool ok = true;
    for (uint32_t i = 0; i < rec->parcels && ok; i++) {
        struct neb_parcel h;
        if (rec->parcel[i].reject) continue;
        ok = load(n, &rec->parcel[i].hash, &b, &h);
        if (!ok) break;
        float scale = neb__toy_decode(b.data, b.len, &h, c, value[k]);
        for (int v = 0; v < WIDTH; v++) value[k][v] *= scale;
        values[k] = value[k];
        weight[k++] = rec->parcel[i].weight;
    }
    neb__buf_free(&b);
    if (!ok) { /* the payload was damaged after it was announced: start anew and fetch it */
        n->disk.dead = true;
        return;
    }
    struct neb_outer_step step = {.mode =
                                      rec->mode == NEB_MODE_AVERAGE ? NEB_OUTER_AVERAGE : NEB_OUTER_NESTEROV,
                                  .parcels = k,
                                  .weight = weight,
                                  .values = values};
    memcpy(&step.eta, &rec->eta, 4);
    memcpy(&step.mu, &rec->mu, 4);
    bool finite;
    neb__outer_apply(n->outer, c, &step, &finite);
    if (NEB_MUTANT(apply_twice) && !draw(w, 20)) {
        n->outer->version[c]--;
        neb__outer_apply(n->outer, c, &step, &finite);
    }
}

static void snapshot(struct world *w, struct node *n, uint32_t c)
{
    struct neb_snapshot s = {
        c, n->outer->version[c], WIDTH, n->outer->theta + c * WIDTH, n->outer->m + c * WIDTH, 0};
    (void)neb__snapshot_save(&n->disk.disk, &s);
    /* Payloads that every voter applied and both snapshots cover may go. */
    uint64_t floor = neb__round_all_applied(n->core);
    float t[WIDTH], m[WIDTH];
    uint64_t older[CELLS_MAX];
    for (uint32_t i = 0; i < w->cfg.cells; i++) {
        struct neb_snapshot x = {.cell = i, .values = WIDTH, .theta = t, .m = m};
        if (neb__snapshot_load(&n->disk.disk, &x, &older[i]) != NEB_OK) older[i] = 0;
    }
    for (uint64_t i = floor > 12 ? floor - 12 : 1; i <= floor; i++) {
        const struct neb_record *rec = neb__round_record(n->core, i);
        if (!rec || rec->type != NEB_RECORD_ROUND) continue;
        bool covered = true;
        for (uint32_t k = rec->c0; k < rec->c1; k++) covered = covered && older[k] > rec->v;
        for (uint32_t k = 0; covered && k < rec->parcels; k++)
            (void)neb__payload_remove(&n->payloads, &rec->parcel[k].hash);
    }
}

static void do_apply(struct world *w, struct node *n, const struct neb_action *a)
{
    const struct neb_record *rec = neb__round_record(n->core, a->index);
    for (uint32_t c = rec->c0; c < rec->c1 && !n->disk.dead; c++) {
        bool theta = neb__round_applies(n->core, a->index, c), site = neb__round_merges(n->core, a->index, c);
        if (theta) apply_theta(w, n, rec, c);
        if (n->disk.dead) return;
        if (site) merge_own(w, n, rec, c);
        if (theta && !draw(w, 4)) snapshot(w, n, c);
    }
    if (n->disk.dead) return;
    struct event *ev = neb__sim_later(w, (int64_t)draw(w, 10), EV_APPLIED, n->id);
    if (ev) ev->index = a->index;
}

static void do_root(struct world *w, struct node *n, const struct neb_action *a)
{
    struct event *ev = neb__sim_later(w, (int64_t)draw(w, 10), EV_ROOT, n->id);
    if (!ev) return;
    ev->index = a->index;
    if (neb__outer_root(n->outer, &ev->root) != NEB_OK) w->failed = NEB_ERR_NOMEM;
}

static void do_settle(struct world *w, struct node *n, const struct neb_action *a)
{
    w->out->settled++;
    TRACE(w, "site %d settles cell %u: %llu/%llu", n->id, a->c0, (unsigned long long)a->num,
          (unsigned long long)a->den);
    for (uint32_t c = a->c0; c < a->c1; c++) {
        struct own *o = &n->own[c];
        float u[WIDTH], was[WIDTH], e[WIDTH], gamma = (float)((double)a->num / (double)a->den);
        memcpy(u, o->u, sizeof u);
        neb__own_residual(o, was);
        (void)neb__site_fade(o->e, gamma, WIDTH);
        neb__own_residual(o, e);
        whole(e);
        neb__site_narrow(e, WIDTH, o->e);
        for (int i = 0; i < WIDTH; i++) {
            o->u[i] = truncf(gamma * o->u[i]);
            n->books[c].dropped[i] += (int64_t)(u[i] - o->u[i]) + (int64_t)(was[i] - e[i]);
        }
        o->work = o->work * a->num / a->den;
        n->was_away[c] = false;
    }
}

static void do_install(struct world *w, struct node *n, const struct neb_action *a)
{
    bool same = n->fetched[a->cell].version == a->version && n->fetched[a->cell].index == a->index;
    const float *theta = n->fetched[a->cell].theta, *m = n->fetched[a->cell].m;
    TRACE(w, "site %d installs cell %u at version %llu of record %llu", n->id, a->cell,
          (unsigned long long)a->version, (unsigned long long)a->index);
    /* On disk first: the payloads it replaces may never come to this site, and one day it may be the only one left. */
    struct neb_snapshot s = {a->cell, a->version, WIDTH, (float *)theta, (float *)m, 0};
    same = same && neb__snapshot_save(&n->disk.disk, &s) == NEB_OK;
    if (same && neb__outer_install(n->outer, a->cell, a->version, theta, m) == NEB_OK)
        w->out->cells_fetched++;
    struct neb_event ev = {.type = NEB_EV_INSTALLED, .cell = a->cell, .version = n->outer->version[a->cell]};
    ev.now = w->now + n->clock_skew;
    (void)neb__round_event(n->core, &ev);
}

static void push(struct world *w, struct node *n, unsigned to, const struct neb_hash *hash)
{
    struct neb_buf b;
    struct neb_parcel h;
    neb__buf_init(&b, 1 << 20);
    struct event what = {.hash = *hash};
    if (load(n, hash, &b, &h))
        neb__sim_send(w, n->id, (int)to, EV_PAYLOAD, &what, b.data, b.len);
    else
        neb__sim_send(w, n->id, (int)to, EV_NONE, &what, NULL, 0);
    neb__buf_free(&b);
}

static double norm_of(struct world *w, const struct neb_hash *hash)
{
    const struct parcel_fact *f = neb__fact(w, hash);
    return f ? f->norm : 0;
}

static uint8_t judge(const struct neb_parcel *h)
{
    return h->rung == RUNG_BAD ? NEB_REJECT_NORM : NEB_REJECT_NONE;
}

static void look(struct world *w, struct node *n, const struct neb_hash *hash)
{
    struct neb_buf b;
    struct event *ev = neb__sim_later(w, 1, EV_STORED, n->id);
    if (!ev) return;
    neb__buf_init(&b, 1 << 20);
    ev->hash = *hash;
    ev->status = load(n, hash, &b, &ev->parcel) ? NEB_OK : NEB_ERR_NOTFOUND;
    ev->from = -1;
    neb__buf_free(&b);
}

/* At its end a process goes away. The others must not need it; only those who are not there at all may. */
static bool may_depart(struct world *w, struct node *n)
{
    if (!w->healed || !draw(w, 4)) return false;
    for (int i = 0; i < w->sites; i++) {
        const struct node *o = &w->node[i];
        bool member = w->roster.members & neb__bit((unsigned)i);
        if (o->exists && !o->stopped && member && (!o->alive || w->now < o->started + 4000)) return false;
    }
    return w->roster.members & neb__bit((unsigned)n->id);
}

static void act(struct world *w, struct node *n, const struct neb_action *a)
{
    struct event what = {.hash = a->hash, .cell = a->cell};
    switch (a->type) {
    case NEB_ACT_SEND:
        neb__oracle_sends(w, n, a->bytes, a->length);
        neb__sim_send(w, n->id, a->site, EV_FRAME, &what, a->bytes, a->length);
        break;
    case NEB_ACT_WRITE: do_write(w, n, a); break;
    case NEB_ACT_CAPTURE: do_capture(w, n, a); break;
    case NEB_ACT_PUSH: push(w, n, a->site, &a->hash); break;
    case NEB_ACT_FETCH:
        if (a->site == NEB_NO_SITE)
            look(w, n, &a->hash);
        else
            neb__sim_send(w, n->id, a->site, EV_GET, &what, NULL, 0);
        break;
    case NEB_ACT_APPLY: do_apply(w, n, a); break;
    case NEB_ACT_ROOT: do_root(w, n, a); break;
    case NEB_ACT_DISCARD:
        for (uint32_t c = a->c0; c < a->c1; c++)
            if (n->own[c].open.k == a->k) close_parcel(&n->own[c]);
        TRACE(w, "site %d discards %llx", n->id, (unsigned long long)a->k);
        break;
    case NEB_ACT_SETTLE: do_settle(w, n, a); break;
    case NEB_ACT_FETCH_CELL: neb__sim_send(w, n->id, a->site, EV_GETCELL, &what, NULL, 0); break;
    case NEB_ACT_INSTALL: do_install(w, n, a); break;
    case NEB_ACT_PAUSE: n->paused = true; break;
    case NEB_ACT_RESUME: n->paused = false; break;
    case NEB_ACT_ENDED:
        n->ended = true;
        n->departs = may_depart(w, n);
        TRACE(w, "site %d ends%s", n->id, n->departs ? " and goes" : "");
        break;
    case NEB_ACT_HALT:
        TRACE(w, "site %d halts: %s", n->id, a->text);
        if (strstr(a->text, "state root")) neb__violated(w, "I4: site %d halts: %s", n->id, a->text);
        n->halted = true;
        break;
    case NEB_ACT_NOTE: TRACE(w, "site %d: %s", n->id, a->text); break;
    case NEB_ACT_ROSTER:
    case NEB_ACT_BUDGET:
    case NEB_ACT_COMBINE: break;
    }
}

/* ---- events of the machine ------------------------------------------------------------------------------------ */

static void step(struct world *w, struct node *n)
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

static void payload_arrives(struct world *w, struct node *n, const struct event *ev)
{
    struct neb_parcel h;
    const struct neb_seal seal = neb__sim_seal(n);
    if (neb__parcel_get(ev->bytes, ev->length, &h) != NEB_OK ||
        !neb__parcel_genuine(&h, ev->bytes + NEB_PARCEL_SIZE, &w->cfg.genesis, &seal))
        return;
    int64_t wait = 1 + (int64_t)draw(w, 10) + (NEB_MUTANT(have_before_durable) ? 500 : 0);
    struct event *done = neb__sim_later(w, wait, EV_STORED, n->id);
    if (!done) return;
    done->hash = ev->hash;
    done->parcel = h;
    done->from = ev->from;
    if (NEB_MUTANT(have_before_durable)) {
        done->bytes = neb__malloc(ev->length);
        memcpy(done->bytes, ev->bytes, ev->length);
        done->length = ev->length;
        feed(w, n,
             &(struct neb_event){.type = NEB_EV_PAYLOAD,
                                 .parcel = &h,
                                 .hash = ev->hash,
                                 .reject = judge(&h),
                                 .norm = norm_of(w, &ev->hash)});
        return;
    }
    if (!neb__payload_exists(&n->payloads, &ev->hash))
        done->status = neb__payload_save(&n->payloads, &ev->hash, ev->bytes, ev->length);
    if (done->status == NEB_OK) neb__oracle_durable(w, n, &ev->hash);
}

static void stored(struct world *w, struct node *n, const struct event *ev)
{
    if (ev->bytes && neb__payload_save(&n->payloads, &ev->hash, ev->bytes, ev->length) == NEB_OK)
        neb__oracle_durable(w, n, &ev->hash);
    struct neb_event in = {
        .type = NEB_EV_PAYLOAD, .parcel = &ev->parcel, .hash = ev->hash, .reject = judge(&ev->parcel)};
    in.norm = norm_of(w, &ev->hash);
    if (ev->status != NEB_OK)
        in.type = NEB_EV_NO_PAYLOAD, in.site = ev->from < 0 ? NEB_NO_SITE : (uint16_t)ev->from;
    feed(w, n, &in);
}

static void serve_cell(struct world *w, struct node *n, const struct event *ev)
{
    struct neb_round_status st;
    struct neb_hash path[NEB_PROOF_MAX];
    int steps;
    neb__round_status(n->core, &st);
    uint32_t c = ev->cell;
    if (!st.whole || neb__outer_prove(n->outer, c, path, &steps) != NEB_OK) return;
    uint8_t b[8 * WIDTH + 4 + NEB_HASH_SIZE * 8];
    memcpy(b, n->outer->theta + c * WIDTH, 4 * WIDTH);
    memcpy(b + 4 * WIDTH, n->outer->m + c * WIDTH, 4 * WIDTH);
    if (!w->opt.happy && !draw(w, 5)) b[0] ^= 1; /* a bad memory chip */
    memcpy(b + 8 * WIDTH, path, (size_t)steps * NEB_HASH_SIZE);
    struct event what = {.cell = c, .version = n->outer->version[c], .index = st.applied};
    neb__sim_send(w, n->id, ev->from, EV_CELL, &what, b, 8 * WIDTH + (size_t)steps * NEB_HASH_SIZE);
}

static void cell_arrives(struct world *w, struct node *n, const struct event *ev)
{
    uint32_t c = ev->cell;
    float theta[WIDTH], m[WIDTH];
    struct neb_hash path[8], root;
    int steps = (int)((ev->length - 8 * WIDTH) / NEB_HASH_SIZE);
    memcpy(theta, ev->bytes, sizeof theta);
    memcpy(m, ev->bytes + 4 * WIDTH, sizeof m);
    memcpy(path, ev->bytes + 8 * WIDTH, (size_t)steps * NEB_HASH_SIZE);
    if (neb__outer_proved(w->cfg.cells, c, ev->version, theta, m, WIDTH, path, steps, &root) != NEB_OK)
        return;
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

void neb__node_event(struct world *w, struct node *n, const struct event *ev)
{
    struct neb_event in = {.site = (uint16_t)ev->from,
                           .id = ev->id,
                           .index = ev->index,
                           .status = ev->status,
                           .hash = ev->hash,
                           .root = ev->root,
                           .parcel = &ev->parcel,
                           .empty = ev->empty,
                           .bytes = ev->bytes,
                           .length = ev->length,
                           .cell = ev->cell};
    switch (ev->kind) {
    case EV_FRAME: in.type = NEB_EV_FRAME; break;
    case EV_TICK: in.type = NEB_EV_TICK; break;
    case EV_WRITTEN: in.type = NEB_EV_WRITTEN; break;
    case EV_CAPTURED:
        in.type = NEB_EV_CAPTURED;
        in.norm = norm_of(w, &ev->hash);
        break;
    case EV_APPLIED: in.type = NEB_EV_APPLIED; break;
    case EV_ROOT: in.type = NEB_EV_ROOT; break;
    case EV_NONE: in.type = NEB_EV_NO_PAYLOAD; break;
    case EV_PAYLOAD: payload_arrives(w, n, ev); break;
    case EV_GET: push(w, n, (unsigned)ev->from, &ev->hash); break;
    case EV_GETCELL: serve_cell(w, n, ev); break;
    case EV_CELL: cell_arrives(w, n, ev); break;
    case EV_STORED: stored(w, n, ev); break;
    case EV_STEP: step(w, n); break;
    case EV_START:
    case EV_FAULT: break;
    }
    if (in.type) feed(w, n, &in);
    if (n->alive && n->disk.dead) neb__node_crash(w, n);
    if (n->alive && n->departs) {
        neb__oracle_check(w, n);
        n->stopped = true;
        neb__node_crash(w, n);
    }
    if (n->alive && n->halted) neb__node_crash(w, n); /* a supervisor starts it again */
}

void neb__node_order(struct world *w, struct node *n, const struct neb_order *o)
{
    if (o) feed(w, n, &(struct neb_event){.type = NEB_EV_OPERATOR, .order = o});
}

void neb__node_ask(struct world *w, struct node *n, uint32_t op, uint64_t count)
{
    feed(w, n, &(struct neb_event){.type = NEB_EV_OPERATOR, .op = op, .count = count});
}

void neb__node_peer(struct world *w, struct node *n, unsigned site, bool up)
{
    feed(w, n, &(struct neb_event){.type = up ? NEB_EV_PEER_UP : NEB_EV_PEER_DOWN, .site = (uint16_t)site});
}
