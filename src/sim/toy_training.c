/* toy_training.c: the training of a simulated site, and how the core's actions change it, with the
 * production store and arithmetic.
 *
 * Every inner step adds small random integers to the live delta. The toy's codec rounds to multiples of four
 * (the rest stays), or sends everything at the end. The site's own state is kept relative to theta, so the
 * production capture and merge functions run on exact integers, with zero vectors in theta's place. After a
 * multiplication by a factor (a discount) the toy rounds to an integer and drops the rest. */
#include "sim/world.h"
#include "base/bytes.h"
#include "base/mutant.h"
#include "outer/site.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const float zero[WIDTH];

/* ---- the toy codec ------------------------------------------------------------------------------------- */

const struct neb_toy_rung *neb__toy_rung(uint8_t id)
{
    static const struct neb_toy_rung table[] = {
        [RUNG_COARSE] = {.unit = 4, .blurred = true, .scale = 1},
        [RUNG_EXACT] = {.unit = 1, .scale = 1},
        [RUNG_SPARSE] = {.unit = 1, .largest = true, .blurred = true, .scale = 1},
        [RUNG_BOMB] = {.unit = 4, .blurred = true, .scale = 1e38f},
        [RUNG_BAD] = {.unit = 4, .blurred = true, .scale = 1, .reject = NEB_REJECT_NORM},
    };
    bool known = id < sizeof table / sizeof *table && table[id].unit;
    return &table[known ? id : RUNG_COARSE];
}

static void toy_encode(const float *z, const struct neb_toy_rung *rung, uint8_t *out)
{
    int big = 0;
    for (int i = 1; i < WIDTH; i++)
        if (fabsf(z[i]) > fabsf(z[big])) big = i;
    for (int i = 0; i < WIDTH; i++) {
        float q = rung->largest && i != big ? 0 : truncf(z[i] / (float)rung->unit);
        neb__put32(out + 4 * i, (uint32_t)(int32_t)q);
    }
}

/* Decodes the values of one cell; returns the factor for applying them. */
float neb__toy_decode(const uint8_t *bytes, size_t n, const struct neb_update_header *h, uint32_t cell,
                      float out[WIDTH])
{
    const struct neb_toy_rung *rung = neb__toy_rung(h->rung);
    size_t at = NEB_UPDATE_HEADER_SIZE + (size_t)(cell - h->c0) * 4 * WIDTH;
    for (int i = 0; i < WIDTH; i++) {
        int32_t q = at + 4 * WIDTH <= n ? (int32_t)neb__get32(bytes + at + 4 * i) : 0;
        out[i] = (float)(rung->unit * q);
    }
    return rung->scale;
}

double neb__toy_norm(const uint8_t *bytes, size_t n, const struct neb_update_header *h)
{
    double sum = 0;
    for (uint32_t c = h->c0; c < h->c1; c++) {
        float v[WIDTH], scale = neb__toy_decode(bytes, n, h, c, v);
        double norm = scale * neb__site_norm(v, WIDTH);
        sum += norm * norm;
    }
    return sqrt(sum);
}

bool neb__node_load(struct neb_sim_node *n, const struct neb_hash *hash, struct neb_buf *b,
                    struct neb_update_header *h)
{
    neb__buf_clear(b);
    return neb__update_load(&n->updates, hash, b) == NEB_OK &&
           neb__update_header_get(b->data, b->len, h) == NEB_OK;
}

/* ---- the core's actions on it -------------------------------------------------------------------------- */

/* The hook between capture and encode, on integers: one cell's values to send. z gets the values for later sums. */
/* Noise of a private site. It need not be secret here, and must be the same for the same seed. */
static void blur(float *z, size_t n, double sigma, struct neb_rng *rng)
{
    const double unit = 1.0 / 9007199254740992.0; /* 2^-53 */
    for (size_t i = 0; i < n; i++) {              /* Box and Muller; the second deviate is not used */
        double a = (double)((neb__rng_next(rng) >> 11) + 1) * unit,
               b = (double)(neb__rng_next(rng) >> 11) * unit;
        z[i] += (float)(sigma * sqrt(-2 * log(a)) * cos(6.283185307179586 * b));
    }
}

static void toy_hook(struct neb_sim_world *w, const struct neb_action *a, bool blurred, float *z, float *sent)
{
    float bound;
    for (int v = 0; v < WIDTH; v++) z[v] = truncf(z[v]);
    memcpy(sent, z, WIDTH * sizeof *z);
    memcpy(&bound, &a->bound, sizeof bound);
    /* A part of the bound for each cell keeps the whole update within the bound. */
    (void)neb__site_clip(sent, WIDTH, (double)bound / (a->c1 - a->c0));
    if (blurred) blur(sent, WIDTH, 2, &w->rng);
    for (int v = 0; v < WIDTH; v++) sent[v] = truncf(sent[v]);
}

static uint8_t choose_rung(struct neb_sim_world *w, const struct neb_action *a)
{
    static const uint8_t of_class[NEB_RUNG_CLASSES] = {[NEB_DENSE] = RUNG_COARSE, [NEB_SPARSE] = RUNG_SPARSE};
    if (a->exact) return RUNG_EXACT;
    if (!draw(w, 60)) return draw(w, 2) ? RUNG_BAD : RUNG_BOMB;
    return of_class[a->cls];
}

static void keep_update(struct neb_sim_node *n, const struct neb_update_header *h,
                        const struct neb_hash *hash, float d[][WIDTH], float r[][WIDTH])
{
    for (uint32_t c = h->c0; c < h->c1; c++) {
        struct neb_sim_own *o = &n->own[c];
        uint8_t tagged[8 + 4 * WIDTH];
        char name[32];
        o->open = (struct neb_boot_update){.hash = *hash, .k = h->k, .b = h->b, .attempt = h->attempt};
        memcpy(o->d, d[c - h->c0], sizeof o->d);
        o->work_open = o->work;
        neb__put64(tagged, h->k);
        memcpy(tagged + 8, r[c - h->c0], 4 * WIDTH);
        snprintf(name, sizeof name, "residual-%u", c);
        (void)neb__blob_save(&n->disk.disk, name, tagged, sizeof tagged,
                             false); /* it may be lost, because it is tagged */
    }
}

void neb__toy_capture(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_action *a)
{
    struct neb_update_header h = {.site = (uint16_t)n->id,
                                  .c0 = a->c0,
                                  .c1 = a->c1,
                                  .k = a->k,
                                  .b = a->version,
                                  .tau = a->tau,
                                  .weight = 1 + (uint32_t)n->id % 3,
                                  .cls = a->cls};
    h.tokens = (uint64_t)h.tau * h.weight;
    uint8_t bytes[NEB_UPDATE_HEADER_SIZE + CELLS_MAX * 4 * WIDTH];
    float d[CELLS_MAX][WIDTH], z[WIDTH], sent[WIDTH], r[CELLS_MAX][WIDTH], got[WIDTH];
    bool empty = a->exact || a->last;
    h.rung = choose_rung(w, a);
    const struct neb_toy_rung *rung = neb__toy_rung(h.rung);
    bool blurred = w->private && rung->blurred;
    h.length = (a->c1 - a->c0) * 4 * WIDTH;
    if (a->attempt) h.kind = NEB_UPDATE_MASKED, h.attempt = a->attempt, empty = false;
    for (uint32_t c = a->c0; c < a->c1; c++) {
        struct neb_sim_own *o = &n->own[c];
        uint32_t i = c - a->c0;
        if (o->open.k)
            neb__oracle_violated(w, "I7: site %d captures cell %u with update %llx open", n->id, c,
                                 (unsigned long long)o->open.k);
        memcpy(d[i], o->u, sizeof d[i]);
        if (neb__site_delta(d[i], zero, WIDTH)) empty = false;
        memcpy(z, d[i], sizeof z);
        toy_hook(w, a, blurred, z, sent);
        toy_encode(sent, rung, bytes + NEB_UPDATE_HEADER_SIZE + i * 4 * WIDTH);
        neb__toy_decode(bytes, sizeof bytes, &h, c, got);
        for (int v = 0; v < WIDTH; v++) r[i][v] = blurred ? 0 : z[v] - got[v];
    }
    struct neb_sim_event *ev = neb__sim_later(w, 1 + (int64_t)draw(w, 10), EV_CAPTURED, n->id);
    if (!ev) return;
    neb_status use = a->attempt ? neb__toy_sums_use(w, n, a) : NEB_OK;
    if (use != NEB_OK) {
        TRACE(w, "site %d cannot contribute to attempt %u: %s", n->id, a->attempt,
              use == NEB_ERR_STATE ? "no" : "later");
        ev->update = h;
        ev->status = use;
        return;
    }
    const struct neb_seal seal = neb__sim_seal(n);
    if (neb__update_header_sign(&h, bytes + NEB_UPDATE_HEADER_SIZE, &w->cfg.genesis, &seal) != NEB_OK)
        w->failed = NEB_ERR_NOMEM;
    neb__update_header_put(&h, bytes);
    size_t size = NEB_UPDATE_HEADER_SIZE + h.length;
    ev->update = h;
    ev->empty = empty;
    if (empty || neb__hash(bytes, size, &ev->hash) != NEB_OK) return;
    struct neb_hash hash = ev->hash;
    neb__oracle_captured(w, n, &h, &hash, bytes, r);
    neb_status status = neb__update_save(&n->updates, &hash, bytes, size);
    ev->status = status;
    if (status != NEB_OK) return;
    neb__oracle_durable(w, n, &hash);
    n->last_k = h.k;
    TRACE(w, "site %d captures %llx of cells %u-%u at %llu, %u steps, rung %u", n->id,
          (unsigned long long)h.k, h.c0, h.c1, (unsigned long long)h.b, h.tau, h.rung);
    keep_update(n, &h, &hash, d, r);
}

void neb__toy_close(struct neb_sim_own *o)
{
    o->open.k = 0;
    memset(o->d, 0, sizeof o->d);
}

/* The site's own update is in a record. As in a session, the decoded update is taken out of the live state.
 * If the update was rejected, is gone or is private, nothing of it stays. */
static void take(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_named *p, uint32_t c)
{
    struct neb_sim_own *o = &n->own[c];
    float got[WIDTH], *decoded = NULL;
    struct neb_update_header h;
    struct neb_buf b;
    neb__buf_init(&b, 1 << 20);
    const struct neb_sim_update_fact *f = neb__oracle_fact(w, &p->hash);
    if (!p->reject && neb__update_exists(&n->updates, &p->hash)) {
        if (!neb__node_load(n, &p->hash, &b, &h)) n->disk.dead = true; /* damaged: start anew */
        if (!n->disk.dead) neb__toy_decode(b.data, b.len, &h, c, got), decoded = got;
    }
    neb__buf_free(&b);
    if (n->disk.dead || !f) return;
    if (w->private && neb__toy_rung(f->header.rung)->blurred) decoded = NULL;
    for (int i = 0; i < WIDTH && !decoded; i++) /* everything that was not sent */
        n->books[c].dropped[i] += (int64_t)(o->d[i] - f->decoded[c][i]);
    neb__site_take(o->d, zero, decoded, WIDTH);
    for (int i = 0; i < WIDTH; i++) o->u[i] += o->d[i]; /* the edit */
    o->work -= o->work_open;
}

static void merge_own(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_record *rec,
                      uint32_t c)
{
    struct neb_sim_own *o = &n->own[c];
    const struct neb_named *p = neb__record_of(rec, (unsigned)n->id);
    bool known = p && o->open.k == p->k && neb__hash_equal(&o->open.hash, &p->hash);
    if (known) {
        take(w, n, p, c);
        if (n->disk.dead) return;
    } else if (p) {
        memset(o->u, 0, sizeof o->u);
        o->work = 0;
    }
    const char *kind = known ? "known" : "unknown";
    if (known && p->reject) kind = "rejected";
    if (p)
        TRACE(w, "site %d merges its update %llx in cell %u at %llu: %s", n->id, (unsigned long long)p->k, c,
              (unsigned long long)rec->v, kind);
    if (p) neb__toy_close(o);
    if (p) neb__oracle_merged(w, n, rec, c, known);
    o->version = rec->v + 1;
}

static void apply_theta(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_record *rec,
                        uint32_t c)
{
    float value[SITES][WIDTH];
    const float *values[SITES];
    uint32_t weight[SITES], k = 0;
    struct neb_buf b;
    neb__buf_init(&b, 1 << 20);
    bool ok = true;
    for (uint32_t i = 0; i < rec->updates && ok; i++) {
        struct neb_update_header h;
        if (rec->update[i].reject) continue;
        ok = neb__node_load(n, &rec->update[i].hash, &b, &h);
        if (!ok) break;
        float scale = neb__toy_decode(b.data, b.len, &h, c, value[k]);
        for (int v = 0; v < WIDTH; v++) value[k][v] *= scale;
        values[k] = value[k];
        weight[k++] = rec->update[i].weight;
    }
    neb__buf_free(&b);
    if (!ok) { /* the update was damaged after it was announced: restart and fetch it */
        n->disk.dead = true;
        return;
    }
    struct neb_outer_step step = {.mode =
                                      rec->mode == NEB_MODE_AVERAGE ? NEB_OUTER_AVERAGE : NEB_OUTER_NESTEROV,
                                  .updates = k,
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

static void snapshot(struct neb_sim_world *w, struct neb_sim_node *n, uint32_t c)
{
    struct neb_snapshot s = {.cell = c,
                             .version = n->outer->version[c],
                             .values = WIDTH,
                             .theta = n->outer->theta + c * WIDTH,
                             .m = n->outer->m + c * WIDTH};
    (void)neb__snapshot_save(&n->disk.disk, &s);
    /* Removes updates that every voter has applied and both snapshots cover. */
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
        for (uint32_t k = 0; covered && k < rec->updates; k++)
            (void)neb__update_remove(&n->updates, &rec->update[k].hash);
    }
}

void neb__toy_apply(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_action *a)
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
    struct neb_sim_event *ev = neb__sim_later(w, (int64_t)draw(w, 10), EV_APPLIED, n->id);
    if (ev) ev->index = a->index;
}

void neb__toy_root(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_action *a)
{
    struct neb_sim_event *ev = neb__sim_later(w, (int64_t)draw(w, 10), EV_ROOT, n->id);
    if (!ev) return;
    ev->index = a->index;
    if (neb__outer_root(n->outer, &ev->root) != NEB_OK) w->failed = NEB_ERR_NOMEM;
}

void neb__toy_settle(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_action *a)
{
    w->out->settled++;
    TRACE(w, "site %d settles cell %u: %llu/%llu", n->id, a->c0, (unsigned long long)a->num,
          (unsigned long long)a->den);
    for (uint32_t c = a->c0; c < a->c1; c++) {
        struct neb_sim_own *o = &n->own[c];
        float u[WIDTH], gamma = (float)((double)a->num / (double)a->den);
        memcpy(u, o->u, sizeof u);
        for (int i = 0; i < WIDTH; i++) {
            o->u[i] = truncf(gamma * o->u[i]);
            n->books[c].dropped[i] += (int64_t)(u[i] - o->u[i]);
        }
        o->work = o->work * a->num / a->den;
        n->was_away[c] = false;
    }
}

void neb__toy_install(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_action *a)
{
    bool same = n->fetched[a->cell].version == a->version && n->fetched[a->cell].index == a->index;
    const float *theta = n->fetched[a->cell].theta, *m = n->fetched[a->cell].m;
    TRACE(w, "site %d installs cell %u at version %llu of record %llu", n->id, a->cell,
          (unsigned long long)a->version, (unsigned long long)a->index);
    /* The cell goes to disk first: the updates it replaces may never come to this site, and one day this
     * site may be the only one left. */
    struct neb_snapshot s = {
        .cell = a->cell, .version = a->version, .values = WIDTH, .theta = (float *)theta, .m = (float *)m};
    same = same && neb__snapshot_save(&n->disk.disk, &s) == NEB_OK;
    if (same && neb__outer_install(n->outer, a->cell, a->version, theta, m, NULL) == NEB_OK)
        w->out->cells_fetched++;
    struct neb_event ev = {.type = NEB_EV_INSTALLED, .cell = a->cell, .version = n->outer->version[a->cell]};
    ev.now = w->now + n->clock_skew;
    (void)neb__round_event(n->core, &ev);
}
