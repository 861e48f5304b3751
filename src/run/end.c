/* end.c: the bounded end of a run at one site: how long it may take, how its last updates are coded, and what
 * they leave out.
 *
 * After END every site makes one last update of each fragment. The whole rest of its work, sent exactly, would
 * take 4 bytes a value: on a thin line longer than the training before. So the last update takes the rung that
 * fits into two bounds, and what it leaves out is dropped when the run ends:
 *
 *     wan.end_bytes     what a site sends, to all peers together. 0: four times what a round has cost
 *     wan.end_seconds   from END to FINAL. 0: as long as four rounds have taken, and at least ten seconds
 *
 * Of the rungs that fit, the cheapest with an error of at most a hundredth is taken; if there is none, the most
 * faithful. The seconds are shared with round trips and with the other sites' updates, so a site plans with a
 * part of them. The leader ends the run when all last updates are in, or when the seconds are over.
 *
 * Both bounds decide only what this site sends and how long this leader waits. Every site ends with theta after
 * the FINAL record, so all have one model. */
#include "run/end.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

static const double few = 4, least_s = 10, planned = 0.6, good_error = 0.01, slack = 1.1, head = 1024;

/* The last update of a fragment. */
struct last {
    bool made;     /* or there was nothing to send */
    size_t values; /* 0: nothing was sent */
    double left;   /* share of the work, as a norm, that it leaves out */
};

struct neb_end {
    int64_t round_at[NEB_CAPTURES]; /* ns: when a record of this fragment was last applied; 0: not yet */
    double round_s;                 /* between two of them, smoothed; 0: not known */
    double per_value;               /* bytes of an update per value, smoothed; 0: none was made */
    double packed;  /* these bytes by those that the rung nominally takes, smoothed; 0: likewise */
    double allowed; /* bytes per value of the last update under way */
    int64_t since;  /* ns: when END was seen; 0: the run goes on */
    struct neb_end_state state;
    struct last last[NEB_CAPTURES];
    bool reported;
};

neb_status neb__end_open(neb_session *s)
{
    s->end = NEB_NEW(struct neb_end);
    if (!s->end) return NEB_ERR_NOMEM;
    s->end->state.bounded = !s->config.end || strcmp(s->config.end, "keep");
    return NEB_OK;
}

void neb__end_close(neb_session *s)
{
    neb__free(s->end);
    s->end = NULL;
}

void neb__end_get(const neb_session *s, struct neb_end_state *out)
{
    *out = s->end ? s->end->state : (struct neb_end_state){0};
}

/* ---- what a round is ----------------------------------------------------------------------------------- */

static uint32_t fragment_of(const neb_session *s, uint32_t c0)
{
    uint32_t cells = s->mirror.outer->cells, f = 0;
    while (f + 1 < s->fragments && (uint64_t)(f + 1) * cells / s->fragments <= c0) f++;
    return f;
}

void neb__end_round_seen(neb_session *s, uint32_t c0)
{
    struct neb_end *e = s->end;
    int64_t now = neb__now_ns(), *at = &e->round_at[fragment_of(s, c0)];
    if (*at) e->round_s = neb__lines_smooth(e->round_s, (double)(now - *at) * 1e-9);
    *at = now;
}

static int peers_of(neb_session *s)
{
    int n = __builtin_popcountll(neb__members_roster(&s->members, NULL).members) - 1;
    return n > 0 ? n : 1;
}

/* ---- what the last updates leave out -------------------------------------------------------------------- */

/* All fragments weigh the same: they are about equally large. */
static double left_out(const neb_session *s)
{
    double sum = 0;
    for (uint32_t f = 0; f < s->fragments; f++) {
        const struct last *l = &s->end->last[f];
        double left = l->made ? l->left : 1;
        sum += left * left;
    }
    return sqrt(sum / s->fragments);
}

static void last_made(neb_session *s, uint32_t c0, size_t values, double left)
{
    s->end->last[fragment_of(s, c0)] = (struct last){true, values, left};
    s->end->state.dropped = left_out(s);
}

void neb__end_update_made(neb_session *s, const struct neb_update_header *h,
                          const struct neb_codec_stats *stats, bool last)
{
    struct neb_end *e = s->end;
    size_t first, values = neb__mirror_range(&s->mirror, h->c0, h->c1, &first);
    double bytes = NEB_UPDATE_HEADER_SIZE + (double)h->length, each = bytes / (double)values;
    if (!last) {
        e->per_value = neb__lines_smooth(e->per_value, each);
        e->packed = neb__lines_smooth(e->packed, fmin(each / (double)neb__rung_by_id(h->rung)->bytes, 1));
        return;
    }
    e->state.sent += bytes * peers_of(s);
    last_made(s, h->c0, values, stats->z_sq > 0 ? sqrt(stats->residual_sq / stats->z_sq) : 0);
}

void neb__end_nothing_sent(neb_session *s, uint32_t c0, bool dropped)
{
    last_made(s, c0, 0, dropped ? 1 : 0);
}

/* ---- the end ------------------------------------------------------------------------------------------- */

static double step_seconds(neb_session *s)
{
    pthread_mutex_lock(&s->lines.lock);
    double step = s->lines.step_s;
    pthread_mutex_unlock(&s->lines.lock);
    return step;
}

static double auto_seconds(neb_session *s)
{
    double round = s->end->round_s > 0 ? s->end->round_s : (double)s->config.interval * step_seconds(s);
    return fmax(few * round, least_s);
}

/* A run that ends before its first update has no round to compare with: an update of int8 stands for four. */
static double auto_bytes(neb_session *s)
{
    double each = s->end->per_value > 0 ? few * s->end->per_value : (double)neb__rung_by_name("int8")->bytes;
    return (each * (double)s->mirror.values + head * s->fragments) * peers_of(s);
}

void neb__end_begin(neb_session *s)
{
    struct neb_end *e = s->end;
    if (e->since) return;
    e->since = neb__now_ns();
    if (!e->state.bounded) return;
    e->state.seconds = s->config.end_seconds > 0 ? s->config.end_seconds : auto_seconds(s);
    e->state.bytes = s->config.end_bytes > 0 ? s->config.end_bytes : auto_bytes(s);
    neb__round_set_end(s->core, (int64_t)(1000 * e->state.seconds));
    neb__info("the run ends: last updates may take %.0f s (wan.end_seconds) and %.2f MB of this site "
              "(wan.end_bytes); the rest is dropped",
              e->state.seconds, e->state.bytes / 1e6);
}

/* Bytes that may go to one peer for each value that is not in a last update yet. */
static double allowed_per_value(neb_session *s)
{
    const struct neb_end *e = s->end;
    double bytes = fmax(e->state.bytes - e->state.sent, 0) / peers_of(s);
    double slowest = neb__lines_slowest(&s->lines);
    double left = planned * e->state.seconds - neb__seconds_since(e->since);
    if (slowest > 0) bytes = fmin(bytes, fmax(left, 0) * slowest);
    size_t values = s->mirror.values;
    for (uint32_t f = 0; f < s->fragments; f++) values -= e->last[f].values;
    return bytes / (double)(values ? values : s->mirror.values);
}

/* packed: how much less than nominal a code takes. */
static const struct neb_rung *best_within(double per_value, double packed, const struct neb_rung *below)
{
    const struct neb_rung *best = NULL;
    for (int i = 0; i < neb__rung_count; i++) {
        const struct neb_rung *r = &neb__rung_table[i];
        if (r->outside_scales || packed * (double)r->bytes > per_value) continue;
        if (below && r->bytes >= below->bytes) continue;
        bool good = (double)r->error <= good_error, was_good = best && (double)best->error <= good_error;
        bool better = !best || (good && was_good ? r->bytes < best->bytes : r->error < best->error);
        if (better) best = r;
    }
    return best;
}

/* The lossless stage packs updates, so codes are first expected as small as they have been. If that was wrong,
 * the second try expects their nominal size. */
const struct neb_rung *neb__end_rung(neb_session *s, const struct neb_rung *tried)
{
    struct neb_end *e = s->end;
    neb__end_begin(s);
    e->allowed = allowed_per_value(s);
    const struct neb_rung *rung = best_within(e->allowed, e->packed > 0 && !tried ? e->packed : 1, tried);
    if (rung) neb__debug("last update: %s", rung->name);
    return rung;
}

bool neb__end_exceeds(const neb_session *s, size_t values, size_t bytes)
{
    return (double)bytes > slack * s->end->allowed * (double)values;
}

void neb__end_report(neb_session *s)
{
    struct neb_end *e = s->end;
    if (!e->since || e->reported) return;
    e->reported = true;
    for (uint32_t c = 0; c < s->mirror.outer->cells; c++) /* it came too late for the last record */
        if (s->mirror.own[c].open.k) e->last[fragment_of(s, c)].left = 1;
    bool trains = neb__members_roster(&s->members, NULL).trains & neb__bit(s->self);
    e->state.dropped = e->state.bounded && trains ? left_out(s) : 0;
    double took = neb__seconds_since(e->since);
    if (!e->state.bounded)
        neb__info("the end took %.1f s; everything is in", took);
    else
        neb__info(
            "the end took %.1f s; this site sent %.2f MB for it, and %.1f %% of its last work (as a norm) "
            "is dropped",
            took, e->state.sent / 1e6, 100 * e->state.dropped);
}
