/* actions.c: the core's actions carried out on disk, and outer state. Own updates are made in
 * capture.c; here records are applied, theta and the site's own state move, and updates and cells come and go. */
#include "run/session.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "outer/site.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { CELL_HEAD = 28, SNAPSHOT_EVERY = 16, SWEEP_EVERY = 8 };

static size_t cell_at(const neb_session *s, uint32_t cell, size_t *first)
{
    return neb__outer_cell(s->outer, cell, first);
}

size_t neb__session_range(const neb_session *s, uint32_t c0, uint32_t c1, size_t *first)
{
    size_t last, n = cell_at(s, c1 - 1, &last);
    cell_at(s, c0, first);
    return last + n - *first;
}

size_t neb__session_update_max(const neb_session *s)
{
    return NEB_UPDATE_HEADER_SIZE + neb__codec_bound(s->exact, s->values) + 1024;
}

static bool load(neb_session *s, const struct neb_hash *hash, struct neb_buf *b, struct neb_update_header *h)
{
    neb__buf_clear(b);
    return neb__update_load(&s->updates, hash, b) == NEB_OK &&
           neb__update_header_get(b->data, b->len, h) == NEB_OK;
}

/* An update that says of itself what it must: cells of this model, as many values as they have. */
static bool fits(const neb_session *s, const struct neb_update_header *h, const uint8_t *bytes, size_t n)
{
    struct neb_codec_info info;
    size_t first;
    return h->c0 < h->c1 && h->c1 <= s->outer->cells && n == NEB_UPDATE_HEADER_SIZE + (size_t)h->length &&
           neb__codec_peek(bytes + NEB_UPDATE_HEADER_SIZE, n - NEB_UPDATE_HEADER_SIZE, &info) == NEB_OK &&
           info.n == neb__session_range(s, h->c0, h->c1, &first);
}

/* ---- apply and merge ------------------------------------------------------------------------------------------- */

struct opened {
    struct neb_buf bytes[NEB_SITES_MAX]; /* of those read back from disk */
    struct neb_codec_view view[NEB_SITES_MAX];
    struct neb_update_header header[NEB_SITES_MAX];
    uint32_t weight[NEB_SITES_MAX];
    uint16_t site[NEB_SITES_MAX];
    uint32_t n;
};

static void close_updates(struct opened *o)
{
    for (uint32_t i = 0; i < o->n; i++) {
        neb__codec_close(&o->view[i]);
        neb__buf_free(&o->bytes[i]);
    }
    neb__free(o);
}

static neb_status open_one(neb_session *s, const struct neb_named *p, struct opened *o)
{
    uint32_t i = o->n;
    const struct neb_buf *b = neb__session_recent(s, &p->hash);
    neb__buf_init(&o->bytes[i], neb__session_update_max(s));
    bool ok = b ? neb__update_header_get(b->data, b->len, &o->header[i]) == NEB_OK
                : load(s, &p->hash, &o->bytes[i], &o->header[i]);
    if (!b) b = &o->bytes[i];
    if (!ok || !fits(s, &o->header[i], b->data, b->len)) {
        neb__buf_free(&o->bytes[i]);
        return neb__fail(NEB_ERR_CORRUPT, "a committed update of site %u cannot be read back", p->site);
    }
    size_t first, n = neb__session_range(s, o->header[i].c0, o->header[i].c1, &first);
    neb_status st = neb__codec_open(b->data + NEB_UPDATE_HEADER_SIZE, b->len - NEB_UPDATE_HEADER_SIZE, NULL,
                                    n, &o->view[i]);
    if (st == NEB_OK && !s->decoded[i] && !(s->decoded[i] = neb__aligned(NEB_CELL * sizeof(float)))) {
        neb__codec_close(&o->view[i]);
        st = neb__fail(NEB_ERR_NOMEM, "out of memory for applying a record");
    }
    if (st != NEB_OK) {
        neb__buf_free(&o->bytes[i]);
        return st;
    }
    o->weight[i] = p->weight;
    o->site[i] = p->site;
    o->n++;
    return NEB_OK;
}

/* all: theta is due; else only the own state is, and for that the own update is enough, if it is still there. */
static neb_status open_updates(neb_session *s, const struct neb_record *rec, bool all, struct opened **out)
{
    struct opened *o = NEB_NEW(struct opened);
    if (!o) return neb__fail(NEB_ERR_NOMEM, "out of memory for applying a record");
    for (uint32_t i = 0; i < rec->updates; i++) {
        const struct neb_named *p = &rec->update[i];
        if (p->reject || (!all && (p->site != s->self || !neb__update_exists(&s->updates, &p->hash))))
            continue;
        neb_status st = open_one(s, p, o);
        if (st != NEB_OK) {
            close_updates(o);
            return st;
        }
    }
    *out = o;
    return NEB_OK;
}

static neb_status decode_cell(neb_session *s, struct opened *o, uint32_t cell)
{
    for (uint32_t i = 0; i < o->n; i++)
        NEB_TRY(neb__codec_cell(&o->view[i], cell - o->header[i].c0, s->decoded[i]));
    return NEB_OK;
}

/* work[0] gets what theta moved by. */
static void apply_theta(neb_session *s, const struct neb_record *rec, struct opened *o, uint32_t cell)
{
    struct neb_outer_step step = {.mode =
                                      rec->mode == NEB_MODE_AVERAGE ? NEB_OUTER_AVERAGE : NEB_OUTER_NESTEROV,
                                  .updates = o->n,
                                  .weight = o->weight,
                                  .values = (const float *const *)s->decoded,
                                  .moved = s->work[0]};
    memcpy(&step.eta, &rec->eta, 4);
    memcpy(&step.mu, &rec->mu, 4);
    bool finite = true;
    neb__outer_apply(s->outer, cell, &step, &finite);
    if (!finite)
        neb__warn("record %" PRIu64 ": cell %u would not be finite and stays as it was", rec->index, cell);
}

/* The site's own side of a record: an edit for x. work[0] holds what theta moved by. */
static neb_status merge_own(neb_session *s, const struct neb_record *rec, struct opened *o, uint32_t cell)
{
    struct neb_own_cell *own = &s->own[cell];
    const struct neb_named *p = neb__record_of(rec, s->self);
    bool known = p && own->open.k == p->k && neb__hash_equal(&own->open.hash, &p->hash);
    size_t first, n = cell_at(s, cell, &first);
    const float *decoded = NULL;
    for (uint32_t i = 0; i < o->n; i++)
        if (o->site[i] == s->self) decoded = s->decoded[i];
    own->version = rec->v + 1;
    if (p && !known) { /* named with an update that this site no longer knows: start from theta */
        own->open.k = 0;
        return neb__edit_add(s, cell, NEB_EDIT_SET, 0, s->outer->theta + first);
    }
    if (!known) return neb__edit_add(s, cell, NEB_EDIT_ADD, 0, s->work[0]);
    if (neb__session_private(s)) decoded = NULL; /* what was not told is dropped */
    neb__site_take(s->d + first, s->work[0], decoded, n);
    own->open.k = 0;
    return neb__edit_d(s, cell);
}

static void keep_snapshot(neb_session *s, uint32_t cell)
{
    size_t first, n = cell_at(s, cell, &first);
    struct neb_snapshot snap = {
        cell, s->outer->version[cell], n, s->outer->theta + first, s->outer->m + first, 0};
    if (neb__session_snapshot(s, &snap) != NEB_OK)
        neb__warn("no snapshot of cell %u: %s; the last one stays", cell, neb_last_error());
}

static neb_status apply_record(neb_session *s, const struct neb_record *rec)
{
    struct opened *o = NULL;
    bool any_theta = false, any_own = false;
    for (uint32_t c = rec->c0; c < rec->c1; c++) {
        any_theta |= neb__round_applies(s->core, rec->index, c);
        any_own |= neb__round_merges(s->core, rec->index, c);
    }
    if (!any_theta && !any_own) return NEB_OK;
    NEB_TRY(open_updates(s, rec, any_theta, &o));
    neb_status st = NEB_OK;
    for (uint32_t c = rec->c0; st == NEB_OK && c < rec->c1; c++) {
        bool theta = neb__round_applies(s->core, rec->index, c),
             site = neb__round_merges(s->core, rec->index, c);
        size_t first, n = cell_at(s, c, &first);
        if (!theta && !site) continue;
        st = decode_cell(s, o, c);
        if (st == NEB_OK && theta)
            apply_theta(s, rec, o, c);
        else
            memset(s->work[0], 0, n * sizeof(float));
        /* If the site's own state is newer than its snapshot of theta, x = theta + u moves along as theta catches up. */
        if (st == NEB_OK)
            st = site ? merge_own(s, rec, o, c) : neb__edit_add(s, c, NEB_EDIT_ADD, 0, s->work[0]);
        if (st == NEB_OK && theta && s->outer->version[c] % SNAPSHOT_EVERY == c % SNAPSHOT_EVERY)
            keep_snapshot(s, c);
    }
    close_updates(o);
    for (uint32_t i = 0; i < rec->updates; i++) neb__session_forget(s, &rec->update[i].hash);
    if (st == NEB_OK && rec->index % SWEEP_EVERY == 0) neb__session_sweep(s);
    return st;
}

static void do_apply(neb_session *s, const struct neb_action *a)
{
    const struct neb_record *rec = neb__round_record(s->core, a->index);
    int64_t start = neb__now_ns();
    struct neb_event ev = {.type = NEB_EV_APPLIED, .index = a->index};
    neb_status st = rec ? apply_record(s, rec) : NEB_ERR_INTERNAL;
    if (st != NEB_OK) {
        char why[200];
        snprintf(why, sizeof why, "record %" PRIu64 " could not be applied: %.120s; start the site again",
                 a->index, neb_last_error());
        neb__session_halt(s, why);
        return;
    }
    neb__session_took(&s->apply_took, neb__seconds_since(start));
    pthread_mutex_lock(&s->lock);
    s->status.apply_s += neb__seconds_since(start);
    s->status.driver_cpu_s = neb__thread_cpu();
    pthread_mutex_unlock(&s->lock);
    neb__session_feed(s, &ev);
}

static void do_root(neb_session *s, const struct neb_action *a)
{
    struct neb_event ev = {.type = NEB_EV_ROOT, .index = a->index};
    if (neb__outer_root(s->outer, &ev.root) != NEB_OK)
        neb__session_halt(s, "out of memory for the state root");
    else
        neb__session_feed(s, &ev);
}

static void do_settle(neb_session *s, const struct neb_action *a)
{
    float gamma = (float)((double)a->num / (double)a->den);
    for (uint32_t c = a->c0; c < a->c1; c++) {
        size_t first;
        (void)cell_at(s, c, &first);
        if (neb__edit_add(s, c, NEB_EDIT_SHRINK, gamma, s->outer->theta + first) != NEB_OK)
            neb__session_halt(s, "out of memory for settling");
    }
    neb__info("late work of cells %u to %u enters with factor %.3f", a->c0, a->c1 - 1, (double)gamma);
}

/* ---- updates and cells of peers --------------------------------------------------------------------------------- */

void neb__session_push(neb_session *s, uint16_t peer, const struct neb_hash *hash, bool asked_for)
{
    struct neb_buf b;
    struct neb_update_header h;
    if (!asked_for && neb__hash_equal(hash, &s->made_hash)) { /* just made: no need to read it back */
        neb__session_send_update(s, peer, hash, false, s->made.data, s->made.len);
        return;
    }
    if (asked_for && neb__session_under_way(s, peer, hash)) { /* a slow line: not a second time over it */
        neb__session_send(s, peer, NEB_CONTROL, NEB_MSG_COMING, hash->b, NEB_HASH_SIZE);
        return;
    }
    neb__buf_init(&b, neb__session_update_max(s));
    if (!load(s, hash, &b, &h))
        neb__session_send(s, peer, NEB_CONTROL, NEB_MSG_NONE, hash->b, NEB_HASH_SIZE);
    else
        neb__session_send_update(s, peer, hash, asked_for, b.data, b.len);
    neb__buf_free(&b);
}

static void have(neb_session *s, const struct neb_update_header *h, const struct neb_hash *hash, double norm)
{
    neb__session_feed(s,
                      &(struct neb_event){.type = NEB_EV_UPDATE, .update = h, .hash = *hash, .norm = norm});
}

void neb__session_update(neb_session *s, uint16_t peer, const uint8_t *bytes, size_t n)
{
    struct neb_update_header h;
    struct neb_hash hash;
    if (neb__update_header_get(bytes, n, &h) != NEB_OK || !fits(s, &h, bytes, n)) {
        neb__warn("site %u sent an update that is none: ignored", peer);
        return;
    }
    const struct neb_seal seal = neb__session_seal(s);
    if (!neb__update_header_genuine(&h, bytes + NEB_UPDATE_HEADER_SIZE, &s->genesis, &seal)) {
        neb__warn("site %u sent an update in the name of site %u that this one did not sign: ignored", peer,
                  h.site);
        return;
    }
    /* Once in a record it would have to be applied, by everybody. */
    double norm = neb__session_norm(s, &h, bytes + NEB_UPDATE_HEADER_SIZE);
    if (!isfinite(norm)) {
        neb__warn("site %u sent an update of site %u that does not decode: ignored", peer, h.site);
        return;
    }
    neb_status st = neb__hash(bytes, n, &hash);
    if (st == NEB_OK && !neb__update_exists(&s->updates, &hash)) st = neb__session_keep(s, &hash, bytes, n);
    if (st == NEB_OK)
        have(s, &h, &hash, norm);
    else if (st != NEB_ERR_NOSPACE)
        neb__warn("an update of site %u was not kept: %s", h.site, neb_last_error());
}

static void look(neb_session *s, const struct neb_hash *hash)
{
    struct neb_buf b;
    struct neb_update_header h;
    neb__buf_init(&b, neb__session_update_max(s));
    bool found = load(s, hash, &b, &h) && fits(s, &h, b.data, b.len);
    if (found) have(s, &h, hash, neb__session_norm(s, &h, b.data + NEB_UPDATE_HEADER_SIZE));
    neb__buf_free(&b);
    if (!found)
        neb__session_feed(s,
                          &(struct neb_event){.type = NEB_EV_NO_UPDATE, .site = NEB_NO_SITE, .hash = *hash});
}

void neb__session_serve_cell(neb_session *s, uint16_t peer, uint32_t cell)
{
    struct neb_round_status st;
    struct neb_hash path[NEB_PROOF_MAX];
    int steps;
    neb__round_status(s->core, &st);
    if (cell >= s->outer->cells || !st.whole || neb__outer_prove(s->outer, cell, path, &steps) != NEB_OK) {
        struct neb_hash name;
        neb__round_cell_name(cell, &name);
        neb__session_send(s, peer, NEB_CONTROL, NEB_MSG_NONE, name.b, NEB_HASH_SIZE);
        return;
    }
    size_t first, n = cell_at(s, cell, &first), size = CELL_HEAD + 8 * n + (size_t)steps * NEB_HASH_SIZE;
    uint8_t *b = neb__malloc(size);
    if (!b) return;
    neb__put32(b, cell);
    neb__put64(b + 4, s->outer->version[cell]);
    neb__put64(b + 12, st.applied);
    neb__put32(b + 20, (uint32_t)n);
    neb__put32(b + 24, (uint32_t)steps);
    memcpy(b + CELL_HEAD, s->outer->theta + first, 4 * n);
    memcpy(b + CELL_HEAD + 4 * n, s->outer->m + first, 4 * n);
    memcpy(b + CELL_HEAD + 8 * n, path, (size_t)steps * NEB_HASH_SIZE);
    neb__session_send(s, peer, NEB_BULK, NEB_MSG_CELL, b, size);
    neb__free(b);
}

void neb__session_cell(neb_session *s, uint16_t peer, const uint8_t *bytes, size_t size)
{
    struct neb_reader r = {bytes, size, false};
    uint32_t cell = neb__read32(&r);
    uint64_t version = neb__read64(&r), index = neb__read64(&r);
    uint32_t values = neb__read32(&r), steps = neb__read32(&r);
    size_t first;
    if (r.bad || cell >= s->outer->cells || values != cell_at(s, cell, &first) || steps > NEB_PROOF_MAX ||
        r.left != 8 * (size_t)values + steps * NEB_HASH_SIZE) {
        neb__warn("site %u sent a cell that is none: ignored", peer);
        return;
    }
    /* What is kept is what the core hears of next: a cell without a proof must not take the place of one with. */
    float *theta = neb__malloc(8 * (size_t)values);
    if (!theta) return;
    memcpy(theta, r.p, 8 * (size_t)values);
    struct neb_hash path[NEB_PROOF_MAX], root;
    memcpy(path, r.p + 8 * (size_t)values, steps * NEB_HASH_SIZE);
    if (neb__outer_proved(s->outer->cells, cell, version, theta, theta + values, values, path, (int)steps,
                          &root) != NEB_OK) {
        neb__free(theta);
        return;
    }
    struct neb_fetched_cell *f = &s->fetched[cell];
    neb__free(f->theta);
    *f = (struct neb_fetched_cell){.version = version, .index = index, .theta = theta, .m = theta + values};
    neb__session_feed(s, &(struct neb_event){.type = NEB_EV_CELL,
                                             .site = peer,
                                             .cell = cell,
                                             .version = version,
                                             .index = index,
                                             .root = root});
}

static void do_install(neb_session *s, const struct neb_action *a)
{
    struct neb_fetched_cell *f = &s->fetched[a->cell];
    size_t first, n = cell_at(s, a->cell, &first);
    if (f->theta && f->version == a->version && f->index == a->index) {
        for (size_t i = 0; i < n; i++) s->work[1][i] = f->theta[i] - s->outer->theta[first + i];
        /* On disk first: the updates it replaces may never come to this site. */
        struct neb_snapshot snap = {a->cell, a->version, n, f->theta, f->m, 0};
        if (neb__session_snapshot(s, &snap) != NEB_OK)
            neb__warn("cell %u was fetched but not kept: %s; it will be fetched again", a->cell,
                      neb_last_error());
        else if (neb__outer_install(s->outer, a->cell, a->version, f->theta, f->m) == NEB_OK &&
                 neb__edit_add(s, a->cell, NEB_EDIT_ADD, 0, s->work[1]) != NEB_OK)
            neb__session_halt(s, "out of memory for catching up");
        neb__free(f->theta);
        f->theta = NULL;
    }
    neb__session_feed(s, &(struct neb_event){.type = NEB_EV_INSTALLED,
                                             .cell = a->cell,
                                             .version = s->outer->version[a->cell]});
}

/* ---- the log --------------------------------------------------------------------------------------------------- */

static void do_write(neb_session *s, const struct neb_action *a)
{
    size_t count = (size_t)a->count;
    const uint8_t **record = NEB_NEW_ARRAY(const uint8_t *, count);
    size_t *length = NEB_NEW_ARRAY(size_t, count);
    struct neb_event ev = {.type = NEB_EV_WRITTEN, .id = a->id, .status = NEB_ERR_NOMEM};
    if (record && length) {
        for (size_t i = 0; i < count; i++)
            record[i] = neb__round_record_bytes(s->core, a->index + i, &length[i]);
        struct neb_ledger_batch b = {.first = a->index,
                                     .count = a->count,
                                     .record = record,
                                     .length = length,
                                     .head = a->index + a->count - 1,
                                     .mark = a->bytes,
                                     .mark_length = a->length};
        ev.status = neb__ledger_append(&s->ledger, &b);
        if (ev.status == NEB_OK || ev.status == NEB_ERR_NOSPACE)
            neb__session_full(s, ev.status != NEB_OK, "a record was not stored");
    }
    neb__free(record);
    neb__free(length);
    neb__session_feed(s, &ev);
}

static void set_paused(neb_session *s, bool paused, bool ended)
{
    pthread_mutex_lock(&s->lock);
    s->paused = paused;
    s->ended = s->ended || ended;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void do_discard(neb_session *s, const struct neb_action *a)
{
    for (uint32_t c = a->c0; c < a->c1; c++)
        if (s->own[c].open.k == a->k) s->own[c].open.k = 0;
}

/* Removed by the log: this site stops, as it wished itself or as an operator did. */
static void roster_changed(neb_session *s)
{
    struct neb_round_status st;
    neb__round_status(s->core, &st);
    if (st.roster.members & neb__bit(s->self)) return;
    pthread_mutex_lock(&s->lock);
    bool was = s->members.members & neb__bit(s->self);
    pthread_mutex_unlock(&s->lock);
    if (!was) return; /* not admitted yet */
    if (s->leaves)
        set_paused(s, true, true);
    else
        neb__session_halt(s, "the operator removed this site from the run");
}

void neb__session_do(neb_session *s, const struct neb_action *a)
{
    switch (a->type) {
    case NEB_ACT_SEND: neb__session_send(s, a->site, NEB_CONTROL, NEB_MSG_FRAME, a->bytes, a->length); break;
    case NEB_ACT_WRITE: do_write(s, a); break;
    case NEB_ACT_CAPTURE: neb__session_want_capture(s, a); break;
    case NEB_ACT_PUSH: neb__session_push(s, a->site, &a->hash, false); break;
    case NEB_ACT_FETCH:
        if (a->site == NEB_NO_SITE)
            look(s, &a->hash);
        else
            neb__session_send(s, a->site, NEB_CONTROL, NEB_MSG_GET, a->hash.b, NEB_HASH_SIZE);
        break;
    case NEB_ACT_APPLY: do_apply(s, a); break;
    case NEB_ACT_ROOT: do_root(s, a); break;
    case NEB_ACT_DISCARD: do_discard(s, a); break;
    case NEB_ACT_SETTLE: do_settle(s, a); break;
    case NEB_ACT_FETCH_CELL: {
        uint8_t cell[4];
        neb__put32(cell, a->cell);
        neb__session_send(s, a->site, NEB_CONTROL, NEB_MSG_GET_CELL, cell, sizeof cell);
        break;
    }
    case NEB_ACT_INSTALL: do_install(s, a); break;
    case NEB_ACT_PAUSE: set_paused(s, true, false); break;
    case NEB_ACT_RESUME: set_paused(s, false, false); break;
    case NEB_ACT_ENDED: set_paused(s, true, true); break;
    case NEB_ACT_HALT: neb__session_halt(s, a->text); break;
    case NEB_ACT_NOTE: neb__info("%s", a->text); break;
    case NEB_ACT_ROSTER: roster_changed(s); break;
    case NEB_ACT_BUDGET: break;  /* publish() takes it from the status */
    case NEB_ACT_COMBINE: break; /* owners are not asked for: cfg.owners is false */
    }
}
