/* capture.c: the site's own updates. The training loop is asked for a copy of x; the copy becomes d = x -
 * theta, and d becomes an update on disk.
 *
 * The delta d of open updates is a flat vector beside theta and m: 12 bytes a parameter. The code leaves a
 * part of d out, and that part stays in x. A coarse copy of it goes to disk (left_out.c) for a site that
 * loses its x. */
#include "run/end.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "outer/site.h"
#include "run/secure.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The driver's alone. */
struct neb_captures {
    struct neb_action now;                  /* the one under way, if capturing */
    struct neb_action behind[NEB_CAPTURES]; /* those that wait for it */
    int n;
    bool capturing;
    uint32_t weight; /* tokens per inner step, when steps were last made; 0: none since the start */
    struct {
        uint32_t c0;
        int times;
    } flushed[NEB_CAPTURES]; /* by fragment: updates since the end was ordered */
};

enum { FLUSHES = 4 };

neb_status neb__captures_open(struct neb_mirror *m)
{
    m->captures = NEB_NEW(struct neb_captures);
    return m->captures ? NEB_OK : NEB_ERR_NOMEM;
}

void neb__captures_close(struct neb_mirror *m)
{
    neb__free(m->captures);
    m->captures = NULL;
}

/* Asks neb_step() for a copy of the cells of the next capture; one at a time. */
static void next_capture(neb_session *s)
{
    struct neb_mirror *m = &s->mirror;
    struct neb_captures *all = m->captures;
    if (all->capturing || !all->n) return;
    all->capturing = true;
    all->now = all->behind[0];
    memmove(all->behind, all->behind + 1, (size_t)--all->n * sizeof *all->behind);
    pthread_mutex_lock(&s->lock);
    m->snap_c0 = all->now.c0;
    m->snap_c1 = all->now.c1;
    m->capture_wanted = true;
    m->capture_taken = false;
    pthread_cond_broadcast(&s->changed); /* a training loop that waits takes the copy while it waits */
    pthread_mutex_unlock(&s->lock);
}

void neb__session_want_capture(neb_session *s, const struct neb_action *a)
{
    struct neb_captures *all = s->mirror.captures;
    if (all->n == NEB_CAPTURES) {
        neb__session_halt(s, "more captures than fragments");
        return;
    }
    all->behind[all->n++] = *a;
    next_capture(s);
}

/* The length of an own update, as the other sites measure it: all judge it by the bound of the run, which an order may
 * lower while it is on its way, and by a robust rule. Who judges otherwise refuses the record. */
static double own_length(neb_session *s, const struct neb_update_header *h, const struct neb_hash *hash)
{
    double norm = neb__session_norm(s, h, s->updates.made.data);
    neb__updates_set_norm(&s->updates, hash, norm);
    return norm;
}

static void captured(neb_session *s, const struct neb_update_header *h, const struct neb_hash *hash,
                     bool empty, neb_status status)
{
    struct neb_event ev = {.type = NEB_EV_CAPTURED, .update = h, .empty = empty, .status = status};
    if (hash) ev.hash = *hash;
    if (hash && status == NEB_OK) ev.norm = own_length(s, h, hash);
    pthread_mutex_lock(&s->lock);
    s->mirror.capture_wanted = s->mirror.capture_taken = false;
    pthread_mutex_unlock(&s->lock);
    s->mirror.captures->capturing = false;
    neb__session_feed(s, &ev);
    next_capture(s);
}

/* ---- coding -------------------------------------------------------------------------------------------- */

/* Each cell's residual, the part that the code left out, goes to its file while the cell is in the cache. */
struct coding {
    neb_session *s;
    const float *clipped; /* d of all cells, made shorter for the bound; NULL: d itself is coded */
    size_t first;         /* value of the first cell */
    bool exact;           /* nothing is left */
};

static void cell_coded(void *arg, size_t at, size_t n)
{
    struct coding *c = arg;
    neb_session *s = c->s;
    float *r = s->mirror.work[0];
    if ((c->exact && !c->clipped) || neb__session_private(s)) return;
    if (c->clipped) /* the part that was cut off is sent later */
        for (size_t i = 0; i < n; i++) r[i] += s->mirror.d[c->first + at + i] - c->clipped[at + i];
    neb__left_out_add(&s->updates.left_out, r, n);
}

/* Makes a copy of d if the run's bound makes it shorter or this site's privacy changes it; else *out is
 * NULL. */
static neb_status clip(neb_session *s, size_t first, size_t n, float **out)
{
    *out = NULL;
    bool private = neb__session_private(s);
    const struct neb_action *capture = &s->mirror.captures->now;
    if (!capture->bound && !private) return NEB_OK;
    float *z = neb__malloc(n * sizeof *z);
    if (!z) return neb__fail(NEB_ERR_NOMEM, "out of memory for the run's bound");
    memcpy(z, s->mirror.d + first, n * sizeof *z);
    neb_status status = private ? neb__session_privatize(s, z, n) : NEB_OK;
    bool shorter = capture->bound && neb__session_clip(capture, z, n);
    if (status == NEB_OK && (shorter || private))
        *out = z;
    else
        neb__free(z);
    return status;
}

/* Codes d of the update's cells, or z in its place, behind a header's room. */
static neb_status encode_with(neb_session *s, const struct neb_rung *rung, const struct neb_update_header *h,
                              const float *z, struct neb_codec_stats *stats, struct neb_buf *out)
{
    struct coding c = {.s = s, .exact = rung->exact, .clipped = z};
    size_t n = neb__mirror_range(&s->mirror, h->c0, h->c1, &c.first);
    struct neb_codec_hooks hooks = {.arg = &c, .next = s->mirror.work[0], .after = cell_coded};
    struct neb_codec_input in = {.z = z ? z : s->mirror.d + c.first, .n = n, .hooks = &hooks};
    neb__buf_clear(out);
    neb__left_out_begin(&s->updates.left_out, h->k);
    neb_status status = neb__buf_reserve(out, neb__update_code_at(h));
    if (status == NEB_OK) {
        out->len = neb__update_code_at(h);
        status = neb__codec_encode(rung, &in, NULL, stats, out);
    }
    return status;
}

/* The last update is coded again, by a coarser rung, until it is short enough. */
static neb_status code_until_short(neb_session *s, const struct neb_update_header *h, const float *z,
                                   const struct neb_rung **rung, struct neb_codec_stats *stats,
                                   struct neb_buf *out)
{
    const bool last = s->mirror.captures->now.last;
    size_t gain, first, n = neb__mirror_range(&s->mirror, h->c0, h->c1, &first);
    for (bool again = true; *rung && again;) {
        *stats = (struct neb_codec_stats){0};
        NEB_TRY(encode_with(s, *rung, h, z, stats, out));
        NEB_TRY(neb__codec_squeeze(out, neb__update_code_at(h), neb__lines_slowest(&s->lines), &gain));
        again = last && neb__end_exceeds(s, n, out->len);
        if (again) *rung = neb__end_rung(s, *rung);
    }
    return NEB_OK;
}

/* Codes and packs d. *rung: as it was chosen; NULL: nothing is sent this time. The noise is drawn once: a rung that is chosen by the length
 * of an earlier code tells of the noise in that one, too, and the update is charged for one. */
static neb_status code(neb_session *s, const struct neb_update_header *h, const struct neb_rung **rung,
                       struct neb_codec_stats *stats, struct neb_buf *out)
{
    const struct neb_action *capture = &s->mirror.captures->now;
    size_t first, n = neb__mirror_range(&s->mirror, h->c0, h->c1, &first);
    float *z;
    if (capture->last)
        *rung = neb__end_rung(s, NULL);
    else
        *rung =
            capture->exact ? s->exact : neb__session_choose(s, h->tau, s->paused || neb__fixed_pace_is_on(s));
    if (!*rung) return NEB_OK;
    NEB_TRY(clip(s, first, n, &z));
    neb_status status = code_until_short(s, h, z, rung, stats, out);
    neb__free(z);
    return status;
}

/* At the end a site sends until nothing is left. The rule of influence may let only a part of an update in, so the number of
 * attempts is limited, and what is left then stays out. */
static bool has_flushed(neb_session *s, const struct neb_action *a)
{
    struct neb_captures *all = s->mirror.captures;
    if (!a->exact || !s->influence.on) return false;
    int i = 0;
    while (i < NEB_CAPTURES - 1 && all->flushed[i].times && all->flushed[i].c0 != a->c0) i++;
    all->flushed[i].c0 = a->c0;
    return all->flushed[i].times++ >= FLUSHES;
}

static void say_left(neb_session *s, const struct neb_action *a)
{
    size_t first, n = neb__mirror_range(&s->mirror, a->c0, a->c1, &first);
    double left = neb__site_norm(s->mirror.d + first, n);
    if (left > 0)
        neb__warn(
            "the run ends: work of length %.3g in cells %u to %u did not enter in %d updates, and stays out",
            left, a->c0, a->c1 - 1, FLUSHES);
}

/* Charges the coded update and signs it. *empty: the budget is spent, as if there were nothing to send. */
static neb_status finish_update(neb_session *s, struct neb_update_header *h, struct neb_buf *out, bool *empty)
{
    neb_status charged = neb__session_privacy_release(s, h, out->data + NEB_UPDATE_HEADER_SIZE);
    if (charged == NEB_ERR_LIMIT) {
        *empty = true;
        if (s->mirror.captures->now.last) neb__end_nothing_sent(s, h->c0, true);
        return NEB_OK;
    }
    NEB_TRY(charged);
    h->length = (uint32_t)(out->len - NEB_UPDATE_HEADER_SIZE);
    const struct neb_seal seal = neb__session_seal(s);
    NEB_TRY(neb__update_header_sign(h, out->data + NEB_UPDATE_HEADER_SIZE, &s->genesis, &seal));
    neb__update_header_put(h, out->data);
    return NEB_OK;
}

/* On entry d holds x of the cells; it becomes x - theta. Header and code go to `out`. *empty: there is
 * nothing to send. NEB_ERR_AGAIN: the rate controller holds. */
static neb_status encode(neb_session *s, struct neb_update_header *h, struct neb_codec_stats *stats,
                         struct neb_buf *out, bool *empty)
{
    *empty = true;
    for (uint32_t c = h->c0; c < h->c1; c++) {
        size_t first, n = neb__outer_cell(s->mirror.outer, c, &first);
        neb__edits_on_copy(&s->mirror.own[c], s->mirror.d + first, n);
        if (neb__site_delta(s->mirror.d + first, s->mirror.outer->theta + first, n)) *empty = false;
    }
    if (!*empty && has_flushed(s, &s->mirror.captures->now)) {
        say_left(s, &s->mirror.captures->now);
        *empty = true;
    }
    if (s->secure) { /* also a delta of nothing: the sum needs this site's masks */
        *empty = false;
        NEB_TRY(neb__sums_mask(s, h, s->mirror.captures->now.index, out));
        return finish_update(s, h, out, empty);
    }
    const struct neb_rung *rung = NULL;
    bool last = s->mirror.captures->now.last;
    if (!*empty) NEB_TRY(code(s, h, &rung, stats, out));
    if (!rung && last) neb__end_nothing_sent(s, h->c0, !*empty);
    if (!rung && (*empty || last)) { /* there is nothing to send, or the end has no room for it */
        *empty = true;
        return NEB_OK;
    }
    if (!rung) return NEB_ERR_AGAIN;
    h->rung = rung->id;
    h->cls = (uint8_t)rung->cls;
    return finish_update(s, h, out, empty);
}

/* The update stays in `made` until the next one: the pushes that follow take it from there. */
static neb_status make_update(neb_session *s, struct neb_update_header *h, struct neb_hash *hash, bool *empty)
{
    struct neb_codec_stats stats = {0};
    s->updates.made_hash = (struct neb_hash){{0}};
    NEB_TRY(encode(s, h, &stats, &s->updates.made, empty));
    if (*empty) return NEB_OK;
    NEB_TRY(neb__hash(s->updates.made.data, s->updates.made.len, hash));
    NEB_TRY(neb__session_keep(s, hash, s->updates.made.data, s->updates.made.len));
    s->updates.made_hash = *hash;
    if (!s->secure) neb__left_out_end(&s->updates.left_out, &s->disk, h->c0);
    neb__session_coded(s, neb__rung_by_id(h->rung), hash, (double)s->updates.made.len, &stats);
    neb__end_update_made(s, h, &stats, s->mirror.captures->now.last);
    return NEB_OK;
}

/* The training loop hears of it at its next neb_step(). */
static void say_nonfinite(neb_session *s)
{
    const struct neb_mirror *m = &s->mirror;
    const struct neb_action *a = &m->captures->now;
    size_t first, n = neb__mirror_range(m, a->c0, a->c1, &first), bad = 0;
    while (bad < n && isfinite(m->d[first + bad])) bad++;
    const char *name = "?";
    for (int i = 0; i < m->n_slices; i++)
        if (first + bad >= m->slices[i].first) name = m->slices[i].param.name;
    pthread_mutex_lock(&s->lock);
    snprintf(s->why, sizeof s->why,
             "parameter '%.150s' is not finite: nothing of it was sent; go back to the last checkpoint",
             name);
    s->nonfinite = true;
    pthread_mutex_unlock(&s->lock);
}

/* Gives this site's weight in the newest record that names it. If none does, gives the weight of any site, so
 * that the work counts as the others' does. */
static uint32_t weight_by_log(const neb_session *s)
{
    struct neb_round_status st;
    uint32_t any = 0;
    neb__round_status(s->core, &st);
    for (uint64_t i = st.commit; i > 0; i--) {
        const struct neb_record *rec = neb__round_record(s->core, i);
        const struct neb_named *own = rec ? neb__record_of(rec, s->self) : NULL;
        if (own) return own->weight;
        if (rec && rec->updates && !any) any = rec->update[0].weight;
    }
    return any;
}

/* Gives the tokens per inner step. Captures may follow each other without a step: the fragments at the end of
 * the run, a wait at the drift limit, a start. Each of them then weighs as much as the steps before them. */
static uint32_t weigh(neb_session *s)
{
    struct neb_captures *all = s->mirror.captures;
    pthread_mutex_lock(&s->lock);
    int64_t tokens = s->mirror.tokens_taken, steps = s->mirror.steps_taken;
    pthread_mutex_unlock(&s->lock);
    if (steps > 0)
        all->weight = tokens / steps > 0 ? (uint32_t)(tokens / steps) : 1;
    else if (!all->weight)
        all->weight = weight_by_log(s);
    return all->weight ? all->weight : 1;
}

void neb__session_snapshot_taken(neb_session *s)
{
    const struct neb_action *a = &s->mirror.captures->now;
    int64_t start = neb__now_ns();
    struct neb_update_header h = {
        .site = s->self, .c0 = a->c0, .c1 = a->c1, .k = a->k, .b = a->version, .tau = a->tau};
    struct neb_hash hash;
    bool empty = false;
    h.before = neb__session_privacy_before(s);
    h.weight = weigh(s);
    h.tokens = (uint64_t)h.tau * h.weight;
    struct neb_round_status st;
    neb__round_status(s->core, &st);
    h.epoch = st.roster.epoch;
    for (uint32_t c = a->c0; c < a->c1; c++) /* a round came in between: later, against the new theta */
        if (s->mirror.own[c].version != a->version || s->mirror.own[c].open.k) {
            captured(s, &h, NULL, false, NEB_ERR_AGAIN);
            return;
        }
    neb_status status = make_update(s, &h, &hash, &empty);
    if (status == NEB_ERR_RANGE) {
        neb__warn("a parameter is not finite: cells %u to %u are not sent", a->c0, a->c1 - 1);
        say_nonfinite(s);
        status = s->secure ? NEB_ERR_STATE : NEB_OK; /* the others must not wait for its masks */
        empty = !s->secure;
    }
    if (status == NEB_OK && !empty) {
        s->updates.last_k = h.k;
        for (uint32_t c = a->c0; c < a->c1; c++) {
            s->mirror.own[c].open =
                (struct neb_boot_update){.hash = hash, .k = h.k, .b = h.b, .attempt = h.attempt};
            s->mirror.own[c].work_open = h.tau;
        }
    }
    neb__session_encode_took(s, neb__seconds_since(start));
    pthread_mutex_lock(&s->lock);
    s->status.encode_s += neb__seconds_since(start);
    s->status.driver_cpu_s = neb__thread_cpu();
    s->status.updates += status == NEB_OK && !empty;
    pthread_mutex_unlock(&s->lock);
    captured(s, &h, empty ? NULL : &hash, empty, status);
}
