/* session_capture.c: the site's own parcels: a copy of x is asked of the training loop, becomes d = x - theta, and d + e a
 * parcel on disk.
 *
 * The residual e and the delta d of open parcels are flat vectors beside theta and m: 16 bytes a parameter. The next
 * residual r is not kept: it is computed again when the parcel is in. A copy of r goes to disk without a sync, tagged with
 * the parcel's number. */
#include "train/session.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "outer/site.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Asks neb_step() for a copy of the cells of the next capture; one at a time. */
static void next_capture(neb_session *s)
{
    if (s->capturing || !s->n_captures) return;
    s->capturing = true;
    s->capture = s->captures[0];
    memmove(s->captures, s->captures + 1, (size_t)--s->n_captures * sizeof *s->captures);
    pthread_mutex_lock(&s->lock);
    s->snap_c0 = s->capture.c0;
    s->snap_c1 = s->capture.c1;
    s->capture_wanted = true;
    s->capture_taken = false;
    pthread_cond_broadcast(&s->changed); /* a training loop that waits takes the copy while it waits */
    pthread_mutex_unlock(&s->lock);
}

void neb__session_want_capture(neb_session *s, const struct neb_action *a)
{
    if (s->n_captures == NEB_CAPTURES) {
        neb__session_halt(s, "more captures than fragments");
        return;
    }
    s->captures[s->n_captures++] = *a;
    next_capture(s);
}

static void captured(neb_session *s, const struct neb_parcel *h, const struct neb_hash *hash, bool empty,
                     neb_status st)
{
    struct neb_event ev = {.type = NEB_EV_CAPTURED, .parcel = h, .empty = empty, .status = st};
    if (hash) ev.hash = *hash;
    pthread_mutex_lock(&s->lock);
    s->capture_wanted = s->capture_taken = false;
    pthread_mutex_unlock(&s->lock);
    s->capturing = false;
    neb__session_feed(s, &ev);
    next_capture(s);
}

static void save_residual(neb_session *s, const struct neb_parcel *h, const float *r)
{
    size_t first, at = 0;
    for (uint32_t c = h->c0; c < h->c1; c++) {
        size_t n = neb__outer_cell(s->outer, c, &first);
        uint8_t *tagged = neb__malloc(8 + 4 * n);
        if (!tagged) return;
        char name[32];
        neb__put64(tagged, h->k);
        memcpy(tagged + 8, r + at, 4 * n);
        snprintf(name, sizeof name, "residual-%u", c);
        (void)neb__blob_save(&s->disk, name, tagged, 8 + 4 * n, false); /* may be lost: it is tagged */
        neb__free(tagged);
        at += n;
    }
}

/* Codes d + e of [first, first + n) behind a header's room. */
static neb_status encode_with(neb_session *s, const struct neb_rung *rung, size_t first, size_t n, float *r,
                              struct neb_codec_stats *stats, struct neb_buf *out)
{
    struct neb_codec_input in = {.delta = s->d + first,
                                 .residual = s->e + first,
                                 .n = n,
                                 .feedback = neb__session_feedback(rung->cls)};
    bool clipped = neb__session_clip(&s->capture, &in, s->snap);
    NEB_TRY(neb__buf_reserve(out, NEB_PARCEL_SIZE));
    out->len = NEB_PARCEL_SIZE;
    NEB_TRY(neb__codec_encode(rung, &in, r, stats, out));
    for (size_t i = 0; clipped && i < n; i++) /* what was cut off is sent later */
        r[i] += s->d[first + i] + in.feedback * s->e[first + i] - s->snap[i];
    return NEB_OK;
}

/* At the end of a run in the sparse class: its residual is many deltas long and old; sent at once it would undo what was
 * learned. Its norm is logged instead. */
static void drop_residual(neb_session *s, size_t first, size_t n)
{
    double norm = neb__site_norm(s->e + first, n);
    if (norm > 0) neb__info("the end: a sparse residual of norm %.3g is dropped", norm);
    memset(s->e + first, 0, n * sizeof *s->e);
}

/* snap holds x of the cells; d = x - theta goes to s->d; header and code to `out`. *empty: there is nothing to send.
 * NEB_ERR_AGAIN: the rate controller holds. */
static neb_status encode(neb_session *s, struct neb_parcel *h, float *r, struct neb_codec_stats *stats,
                         struct neb_buf *out, bool *empty)
{
    size_t first, n = neb__session_range(s, h->c0, h->c1, &first), at = 0;
    for (uint32_t c = h->c0; c < h->c1; c++) {
        size_t cell_first, k = neb__outer_cell(s->outer, c, &cell_first);
        neb__edits_on_copy(&s->own[c], s->snap + at, k);
        at += k;
    }
    if (s->capture.dense && s->cls == NEB_CLASS_SPARSE) drop_residual(s, first, n);
    bool zero = true;
    for (size_t i = 0; i < n; i++) {
        s->d[first + i] = s->snap[i] - s->outer->theta[first + i];
        zero = zero && s->d[first + i] == 0 && s->e[first + i] == 0;
    }
    *empty = zero;
    if (zero) return NEB_OK;
    const struct neb_rung *rung = s->capture.dense ? s->exact : neb__session_choose(s, h->tau, s->paused);
    if (!rung) return NEB_ERR_AGAIN;
    NEB_TRY(encode_with(s, rung, first, n, r, stats, out));
    h->rung = rung->id;
    h->cls = rung->cls == NEB_SPARSE ? NEB_CLASS_SPARSE : NEB_CLASS_DENSE;
    h->length = (uint32_t)(out->len - NEB_PARCEL_SIZE);
    const struct neb_seal seal = neb__session_seal(s);
    NEB_TRY(neb__parcel_sign(h, out->data + NEB_PARCEL_SIZE, &s->genesis, &seal));
    neb__parcel_put(h, out->data);
    return NEB_OK;
}

static neb_status make_parcel(neb_session *s, struct neb_parcel *h, struct neb_hash *hash, bool *empty)
{
    size_t first, n = neb__session_range(s, h->c0, h->c1, &first);
    struct neb_buf b;
    neb__buf_init(&b, neb__session_payload_max(s));
    float *r = neb__malloc(n * sizeof *r);
    struct neb_codec_stats stats = {0};
    neb_status st =
        r ? encode(s, h, r, &stats, &b, empty) : neb__fail(NEB_ERR_NOMEM, "out of memory for encoding");
    if (st == NEB_OK && !*empty) st = neb__hash(b.data, b.len, hash);
    if (st == NEB_OK && !*empty) st = neb__session_keep(s, hash, b.data, b.len);
    if (st == NEB_OK && !*empty) {
        save_residual(s, h, r);
        neb__session_coded(s, neb__rung_by_id(h->rung), hash, (double)b.len, &stats);
    }
    neb__free(r);
    neb__buf_free(&b);
    return st;
}

/* For the training loop, which hears of it at its next neb_step(). */
static void say_nonfinite(neb_session *s)
{
    size_t first, n = neb__session_range(s, s->capture.c0, s->capture.c1, &first), bad = 0;
    while (bad < n && isfinite(s->snap[bad])) bad++;
    const char *name = "?";
    for (int i = 0; i < s->n_slices; i++)
        if (first + bad >= s->slices[i].first) name = s->slices[i].param.name;
    pthread_mutex_lock(&s->lock);
    snprintf(s->why, sizeof s->why,
             "parameter '%.150s' is not finite: nothing of it was sent; go back to the last checkpoint",
             name);
    s->nonfinite = true;
    pthread_mutex_unlock(&s->lock);
}

void neb__session_snapshot_taken(neb_session *s)
{
    const struct neb_action *a = &s->capture;
    int64_t start = neb__now_ns();
    struct neb_parcel h = {
        .site = s->self, .c0 = a->c0, .c1 = a->c1, .k = a->k, .b = a->version, .tau = a->tau};
    struct neb_hash hash;
    bool empty = false;
    pthread_mutex_lock(&s->lock);
    int64_t steps = s->steps_now > 0 ? s->steps_now : 1;
    h.weight = (uint32_t)(s->tokens_now / steps > 0 ? s->tokens_now / steps : 1);
    s->tokens_now = s->steps_now = 0;
    pthread_mutex_unlock(&s->lock);
    h.tokens = (uint64_t)h.tau * h.weight;
    struct neb_round_status st;
    neb__round_status(s->core, &st);
    h.epoch = st.roster.epoch;
    for (uint32_t c = a->c0; c < a->c1; c++) /* a round came in between: later, against the new theta */
        if (s->own[c].version != a->version || s->own[c].open.k) {
            captured(s, &h, NULL, false, NEB_ERR_AGAIN);
            return;
        }
    neb_status status = make_parcel(s, &h, &hash, &empty);
    if (status == NEB_ERR_RANGE) {
        neb__warn("a parameter is not finite: nothing was sent of cells %u to %u", a->c0, a->c1 - 1);
        say_nonfinite(s);
        status = NEB_OK;
        empty = true;
    }
    if (status == NEB_OK && !empty) {
        s->last_k = h.k;
        for (uint32_t c = a->c0; c < a->c1; c++) {
            s->own[c].open = (struct neb_boot_parcel){hash, h.k, h.b};
            s->own[c].work_open = h.tau;
        }
    }
    neb__session_took(&s->encode_took, neb__seconds_since(start));
    pthread_mutex_lock(&s->lock);
    s->status.encode_s += neb__seconds_since(start);
    s->status.driver_cpu_s = neb__thread_cpu();
    s->status.parcels += status == NEB_OK && !empty;
    pthread_mutex_unlock(&s->lock);
    captured(s, &h, empty ? NULL : &hash, empty, status);
}
