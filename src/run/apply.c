/* apply.c: a record applied: theta moves by the updates that it names, and the live parameters follow by
 * edits. */
#include "run/end.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "outer/site.h"
#include "run/secure.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SNAPSHOT_EVERY = 16, SWEEP_EVERY = 8 };

static size_t cell_at(const neb_session *s, uint32_t cell, size_t *first)
{
    return neb__outer_cell(s->mirror.outer, cell, first);
}

struct neb_applying {
    uint16_t *codes;               /* (NEB_CELL) likewise */
    float *decoded[NEB_SITES_MAX]; /* (NEB_CELL) each, made when needed */
};

neb_status neb__applying_open(neb_session *s)
{
    s->applying = NEB_NEW(struct neb_applying);
    return s->applying ? NEB_OK : NEB_ERR_NOMEM;
}

void neb__applying_close(neb_session *s)
{
    for (int i = 0; s->applying && i < NEB_SITES_MAX; i++) neb__free(s->applying->decoded[i]);
    if (s->applying) neb__free(s->applying->codes);
    neb__free(s->applying);
}

struct opened {
    struct neb_buf bytes[NEB_SITES_MAX]; /* of those read back from disk */
    struct neb_codec_view view[NEB_SITES_MAX];
    struct neb_update_header header[NEB_SITES_MAX];
    uint32_t weight[NEB_SITES_MAX];
    uint16_t site[NEB_SITES_MAX];
    uint32_t n;
    /* with a rule of influence */
    uint8_t cls[NEB_SITES_MAX];
    double norm[NEB_SITES_MAX];
    float scale[NEB_SITES_MAX]; /* of the cell in hand */
    bool said;                  /* who was made shorter in this record */
    /* a secure sum: one mean in place of the updates */
    const struct neb_record *open; /* NULL: not one */
    struct neb_unmasked sum;
    struct neb_mean_length length;
};

static void close_updates(struct opened *o)
{
    for (uint32_t i = 0; i < o->n; i++) {
        neb__codec_close(&o->view[i]);
        neb__buf_free(&o->bytes[i]);
    }
    neb__unmask_close(&o->sum);
    neb__free(o);
}

/* The length of an update decides how much of it enters. That of another site's was measured when it came. */
static neb_status measure(neb_session *s, const struct neb_named *p, const struct neb_buf *b,
                          struct opened *o)
{
    const struct neb_update_header *h = &o->header[o->n];
    double norm = neb__updates_norm(&s->updates, &p->hash);
    if (norm < 0) norm = neb__session_norm(s, h, b->data);
    o->cls[o->n] = h->cls;
    o->norm[o->n] = norm;
    return isfinite(norm)
               ? NEB_OK
               : neb__fail(NEB_ERR_CORRUPT, "a committed update of site %u does not decode", p->site);
}

static neb_status open_one(neb_session *s, const struct neb_named *p, uint32_t weight, struct opened *o)
{
    uint32_t i = o->n;
    const struct neb_buf *b = neb__updates_recent(&s->updates, &p->hash);
    neb__buf_init(&o->bytes[i], neb__session_update_max(s));
    bool ok = b ? neb__update_header_get(b->data, b->len, &o->header[i]) == NEB_OK
                : neb__updates_load(&s->updates, &p->hash, &o->bytes[i], &o->header[i]);
    if (!b) b = &o->bytes[i];
    if (!ok || !neb__session_update_fits(s, &o->header[i], b->data, b->len)) {
        neb__buf_free(&o->bytes[i]);
        return neb__fail(NEB_ERR_CORRUPT, "a committed update of site %u cannot be read back", p->site);
    }
    size_t first, n = neb__mirror_range(&s->mirror, o->header[i].c0, o->header[i].c1, &first);
    neb_status status = neb__codec_open(b->data + neb__update_code_at(&o->header[i]),
                                        neb__update_code_size(&o->header[i]), NULL, n, &o->view[i]);
    if (status == NEB_OK && !s->applying->decoded[i] &&
        !(s->applying->decoded[i] = neb__aligned(NEB_CELL * sizeof(float)))) {
        neb__codec_close(&o->view[i]);
        status = neb__fail(NEB_ERR_NOMEM, "out of memory for applying a record");
    }
    if (status == NEB_OK && s->influence.on && (status = measure(s, p, b, o)) != NEB_OK)
        neb__codec_close(&o->view[i]);
    if (status != NEB_OK) {
        neb__buf_free(&o->bytes[i]);
        return status;
    }
    o->weight[i] = weight;
    o->site[i] = p->site;
    o->scale[i] = 1;
    o->n++;
    return NEB_OK;
}

/* all: theta is due; else only the own state is, and for that the own update is enough, if it is still
 * there. */
static neb_status open_updates(neb_session *s, const struct neb_record *rec, bool all, struct opened **out)
{
    struct opened *o = NEB_NEW(struct opened);
    uint32_t weight[NEB_SITES_MAX];
    if (!o) return neb__fail(NEB_ERR_NOMEM, "out of memory for applying a record");
    neb__influence_weights(&s->influence, rec, weight);
    for (uint32_t i = 0; i < rec->updates; i++) {
        const struct neb_named *p = &rec->update[i];
        if (p->reject || rec->attempt ||
            (!all && (p->site != s->self || !neb__update_exists(&s->updates.files, &p->hash))))
            continue;
        neb_status status = open_one(s, p, weight[i], o);
        if (status != NEB_OK) {
            close_updates(o);
            return status;
        }
    }
    *out = o;
    return NEB_OK;
}

/* ---- secure sums --------------------------------------------------------------------------------------- */

struct finding {
    neb_session *s;
    struct neb_buf *read; /* one that is not in memory */
};

static const struct neb_buf *find_update(void *arg, const struct neb_hash *hash)
{
    struct finding *f = arg;
    struct neb_update_header h;
    const struct neb_buf *b = neb__updates_recent(&f->s->updates, hash);
    return b || !neb__updates_load(&f->s->updates, hash, f->read, &h) ? b : f->read;
}

/* decoded[0] becomes the mean of the cell in hand, decoded[1] what the own codes in it stand for. */
static neb_status open_sum(neb_session *s, const struct neb_record *rec, struct opened **out)
{
    struct neb_applying *a = s->applying;
    struct opened *o = NEB_NEW(struct opened);
    if (!a->codes) a->codes = neb__malloc(NEB_CELL * sizeof *a->codes);
    for (int i = 0; i < 2; i++)
        if (!a->decoded[i]) a->decoded[i] = neb__aligned(NEB_CELL * sizeof(float));
    if (!o || !a->codes || !a->decoded[0] || !a->decoded[1]) {
        neb__free(o);
        return neb__fail(NEB_ERR_NOMEM, "out of memory for applying a record");
    }
    neb__buf_init(&o->bytes[0], neb__session_update_max(s));
    struct finding f = {s, &o->bytes[0]};
    o->open = neb__sums_open_record(s, rec);
    neb_status status = o->open ? neb__unmask_open(s->mirror.outer, &s->influence, &s->genesis, o->open, rec,
                                                   find_update, &f, &o->sum)
                                : neb__fail(NEB_ERR_CORRUPT, "a sum without its OPEN record");
    if (status != NEB_OK) {
        neb__buf_free(&o->bytes[0]);
        neb__free(o);
        return status;
    }
    neb__mean_length(rec, o->sum.norm, &o->length);
    o->n = 1;
    o->weight[0] = 1;
    o->site[0] = NEB_NO_SITE;
    *out = o;
    return NEB_OK;
}

static void decode_sum(neb_session *s, struct opened *o, uint32_t cell)
{
    size_t first, n = cell_at(s, cell, &first);
    neb__unmask_cell(&o->sum, s->mirror.outer, cell, s->applying->decoded[0]);
    if (s->mirror.own[cell].open.k)
        neb__unmask_own(s, &o->sum, o->open, cell, s->mirror.d + first, n, s->applying->codes,
                        s->applying->decoded[1]);
    else
        memset(s->applying->decoded[1], 0, n * sizeof(float));
}

/* A mean that is far longer than those before it enters as if it were not, and so does the own part in it. */
static void shorten_mean(neb_session *s, const struct neb_record *rec, struct opened *o, uint32_t cell)
{
    const struct neb_norm_rule rule = {s->influence.clip, s->influence.bound};
    size_t first, n = cell_at(s, cell, &first);
    neb__norms_scales(&s->mirror.outer->norms[cell], &rule, &o->length.step, &o->length.scale);
    for (int i = 0; i < 2; i++) neb__norms_shorten(s->applying->decoded[i], n, o->length.scale);
    if (!o->said && o->length.scale < 1)
        neb__info("record %" PRIu64
                  ": the mean of the secure sum is %.3g long and enters with factor %.3g, since the rule of "
                  "the roster allows no more",
                  rec->index, o->length.norm, (double)o->length.scale);
    o->said = true;
}

/* ---- a cell -------------------------------------------------------------------------------------------- */

static neb_status decode_cell(neb_session *s, struct opened *o, uint32_t cell)
{
    if (o->open) {
        decode_sum(s, o, cell);
        return NEB_OK;
    }
    for (uint32_t i = 0; i < o->n; i++)
        NEB_TRY(neb__codec_cell(&o->view[i], cell - o->header[i].c0, s->applying->decoded[i]));
    return NEB_OK;
}

/* Makes the decoded values of a cell as short as the rule says. The own update is then subtracted from the live parameters
 * as it entered, so what was cut off stays there. */
static void shorten(neb_session *s, const struct neb_record *rec, struct opened *o,
                    const struct neb_norm_step *lengths, bool enough, uint32_t cell)
{
    const struct neb_norm_rule rule = {s->influence.clip, s->influence.bound};
    size_t first, n = cell_at(s, cell, &first);
    neb__norms_scales(&s->mirror.outer->norms[cell], &rule, lengths, o->scale);
    for (uint32_t i = 0; i < o->n; i++) {
        if (!enough) o->scale[i] = 0;
        neb__norms_shorten(s->applying->decoded[i], n, o->scale[i]);
        if (!o->said && o->scale[i] < 1)
            neb__session_scaled(s, rec->index, o->site[i], o->norm[i], o->scale[i]);
    }
    o->said = true;
}

/* work[0] gets what theta moved by. */
static void apply_theta(neb_session *s, const struct neb_record *rec, struct opened *o, uint32_t cell)
{
    const struct neb_norm_step lengths = {o->n, o->site, o->cls, o->norm};
    struct neb_outer_step step = {.mode =
                                      rec->mode == NEB_MODE_AVERAGE ? NEB_OUTER_AVERAGE : NEB_OUTER_NESTEROV,
                                  .updates = o->n,
                                  .weight = o->weight,
                                  .values = (const float *const *)s->applying->decoded,
                                  .moved = s->mirror.work[0],
                                  .combine = s->influence.combine,
                                  .liars = s->influence.liars};
    if (s->influence.on && o->open) {
        step.norm = &o->length.step;
        step.scale = &o->length.scale;
        shorten_mean(s, rec, o, cell);
    } else if (s->influence.on) {
        step.norm = &lengths;
        step.scale = o->scale;
        shorten(s, rec, o, &lengths, neb__outer_enough(&step), cell);
    }
    memcpy(&step.eta, &rec->eta, 4);
    memcpy(&step.mu, &rec->mu, 4);
    bool finite = true;
    neb__outer_apply(s->mirror.outer, cell, &step, &finite);
    if (!finite)
        neb__warn("record %" PRIu64 ": cell %u would not be finite and stays as it was", rec->index, cell);
}

/* The site's own side of a record: an edit for x. work[0] holds what theta moved by. */
static neb_status merge_own(neb_session *s, const struct neb_record *rec, struct opened *o, uint32_t cell)
{
    struct neb_own_cell *own = &s->mirror.own[cell];
    const struct neb_named *p = neb__record_of(rec, s->self);
    bool known = p && own->open.k == p->k && neb__hash_equal(&own->open.hash, &p->hash);
    size_t first, n = cell_at(s, cell, &first);
    const float *decoded = NULL;
    for (uint32_t i = 0; i < o->n; i++)
        if (o->site[i] == s->self) decoded = s->applying->decoded[i];
    if (o->open) decoded = s->applying->decoded[1];
    own->version = rec->v + 1;
    if (p && !known) { /* named with an update that this site no longer knows: start from theta */
        own->open.k = 0;
        return neb__edit_add(&s->mirror, cell, NEB_EDIT_SET, 0, s->mirror.outer->theta + first);
    }
    if (!known) return neb__edit_add(&s->mirror, cell, NEB_EDIT_ADD, 0, s->mirror.work[0]);
    if (neb__session_private(s)) decoded = NULL; /* what was not told is dropped */
    neb__site_take(s->mirror.d + first, s->mirror.work[0], decoded, n);
    own->open.k = 0;
    return neb__edit_d(&s->mirror, cell);
}

static void keep_snapshot(neb_session *s, uint32_t cell)
{
    size_t first, n = cell_at(s, cell, &first);
    struct neb_snapshot snap = {.cell = cell,
                                .version = s->mirror.outer->version[cell],
                                .values = n,
                                .theta = s->mirror.outer->theta + first,
                                .m = s->mirror.outer->m + first};
    if (s->influence.on) snap.more = &s->mirror.outer->norms[cell], snap.more_size = sizeof(struct neb_norms);
    if (neb__session_snapshot(s, &snap) != NEB_OK)
        neb__warn("no snapshot of cell %u: %s; the last one stays", cell, neb_last_error());
}

static void say_rejected(neb_session *s, const struct neb_record *rec)
{
    for (uint32_t i = 0; i < rec->updates; i++)
        if (rec->update[i].reject == NEB_REJECT_NORM)
            neb__session_rejected(s, rec->index, rec->update[i].site);
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
    /* Of a sum that theta already has, only the own part is due; its scales are gone, so all of it is taken out. */
    bool sum = rec->attempt && !neb__record_is_void(rec);
    NEB_TRY(sum && any_theta ? open_sum(s, rec, &o) : open_updates(s, rec, any_theta, &o));
    neb_status status = NEB_OK;
    for (uint32_t c = rec->c0; status == NEB_OK && c < rec->c1; c++) {
        bool theta = neb__round_applies(s->core, rec->index, c),
             site = neb__round_merges(s->core, rec->index, c);
        size_t first, n = cell_at(s, c, &first);
        if (!theta && !site) continue;
        status = decode_cell(s, o, c);
        if (status == NEB_OK && theta)
            apply_theta(s, rec, o, c);
        else
            memset(s->mirror.work[0], 0, n * sizeof(float));
        /* The site's own state may be newer than its snapshot of theta: x moves along as theta catches up. */
        if (status == NEB_OK)
            status = site ? merge_own(s, rec, o, c)
                          : neb__edit_add(&s->mirror, c, NEB_EDIT_ADD, 0, s->mirror.work[0]);
        if (status == NEB_OK && theta && s->mirror.outer->version[c] % SNAPSHOT_EVERY == c % SNAPSHOT_EVERY)
            keep_snapshot(s, c);
    }
    close_updates(o);
    for (uint32_t i = 0; i < rec->updates; i++) neb__updates_forget(&s->updates, &rec->update[i].hash);
    if (status == NEB_OK && any_theta) {
        say_rejected(s, rec);
        neb__session_capped(s, rec);
        neb__end_round_seen(s, rec->c0);
    }
    if (status == NEB_OK && rec->index % SWEEP_EVERY == 0) neb__session_sweep(s);
    return status;
}

void neb__session_apply(neb_session *s, const struct neb_action *a)
{
    const struct neb_record *rec = neb__round_record(s->core, a->index);
    int64_t start = neb__now_ns();
    struct neb_event ev = {.type = NEB_EV_APPLIED, .index = a->index};
    neb_status status = rec ? apply_record(s, rec) : NEB_ERR_INTERNAL;
    if (status != NEB_OK) {
        char why[200];
        snprintf(why, sizeof why, "record %" PRIu64 " could not be applied: %.120s; start the site again",
                 a->index, neb_last_error());
        neb__session_halt(s, why);
        return;
    }
    neb__session_apply_took(s, neb__seconds_since(start));
    pthread_mutex_lock(&s->lock);
    s->status.apply_s += neb__seconds_since(start);
    s->mirror.rounds += rec->updates > 0;
    s->status.driver_cpu_s = neb__thread_cpu();
    pthread_mutex_unlock(&s->lock);
    neb__session_feed(s, &ev);
}
