/* split_rate.c: fits a split job to its line. Once a second it measures, asks stream_rate.c and carries out
 * the answer.
 *
 * The receiving site measures how many items it takes while it does not wait, and how long it waits. It tells
 * both to the other site in its status. The sending site adds what it sees of the line. Every choice can be
 * fixed by hand, and a record (`wan.recorded`) is always made with the most faithful one. A teacher has no
 * steps of its own, so it also stops at the last item that the student will ask for. The ladder, from
 * faithful to cheap:
 *
 *     tutor   top_k logits of 8 bits, hidden states of 8 bits · 4 and 4 bits · half of the logits, states of
 *             2 bits · a quarter of the logits
 *     relay   embeddings, where they are shared, every 100 batches · 200 · 400 · 800
 *
 * A row always has at least four logits (or top_k, if that is less). */
#include "split/split_site.h"
#include "base/clock.h"
#include "base/log.h"
#include "run/session.h"
#include "run/site_status.h"
#include "run/stream.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SNAPSHOT = 100, LEAST_K = 4, LEVELS = 4 };
static const double period = 1, heard_within = 3.5, fresh = 2;

/* ---- the ladder ---------------------------------------------------------------------------------------- */

static int32_t fewer(int32_t k, int shift)
{
    int32_t least = k < LEAST_K ? k : LEAST_K;
    return k >> shift > least ? k >> shift : least;
}

static struct neb_split_code tutor_level(const struct neb_split_site *s, int level)
{
    static const int logit_bits[LEVELS] = {8, 4, 4, 4}, state_bits[LEVELS] = {8, 4, 2, 2},
                     shift[LEVELS] = {0, 0, 1, 2};
    int by_hand = (int)s->job->wan.bits;
    struct neb_split_code c = {
        .tutor = {fewer(s->shape.k, shift[level]), logit_bits[level], state_bits[level]}};
    if (by_hand) c.tutor.bits = by_hand == 4 ? 4 : 8, c.tutor.hidden_bits = by_hand;
    return c;
}

/* Nominal bytes of a row of a batch. A gap between two ids takes about ten bits,
 * and the scales of a row take four bytes. */
static double tutor_bytes(const struct neb_split_site *s, const struct neb_tutor_code *c)
{
    double predicted = s->job->objective->masks ? s->job->train.mask : 1;
    double logits = s->shape.k ? c->k * (1.25 + c->bits / 8.0) + 4 : 0;
    double states = s->shape.width ? s->shape.width * c->hidden_bits / 8.0 + 4 : 0;
    double texts = s->job->distill.sequence ? 4 : 0; /* of a token, packed */
    return predicted * logits + states + texts;
}

static void name_code(const struct neb_split_site *s, const struct neb_tutor_code *c, char *out, size_t size)
{
    char logits[24] = "", states[24] = "";
    if (s->shape.k) snprintf(logits, sizeof logits, "top %d, %d bits", c->k, c->bits);
    if (s->shape.width) snprintf(states, sizeof states, "states of %d bits", c->hidden_bits);
    snprintf(out, size, "%s%s%s", logits, *logits && *states ? "; " : "", states);
}

static void tutor_ladder(struct neb_split_site *s, struct neb_stream_rate_config *c)
{
    int levels = s->job->wan.bits || s->job->wan.recorded ? 1 : LEVELS;
    for (int i = 0; i < levels; i++) {
        struct neb_split_code code = tutor_level(s, i);
        struct neb_stream_rate_rung *rung = &c->rung[c->rungs];
        name_code(s, &code.tutor, rung->name, sizeof rung->name);
        if (c->rungs && !strcmp(rung->name, rung[-1].name)) continue;
        rung->bytes = tutor_bytes(s, &code.tutor);
        s->code[c->rungs++] = code;
    }
}

/* A masked token takes about 12 bits, a value of the table 8. */
static void relay_ladder(struct neb_split_site *s, struct neb_stream_rate_config *c)
{
    const struct neb_job *j = s->job;
    int levels = j->wan.snapshot || j->wan.recorded || !s->table ? 1 : LEVELS;
    double tokens = 1.5 * j->train.mask * (double)j->train.tokens;
    for (int i = 0; i < levels; i++) {
        int64_t every = (j->wan.snapshot ? j->wan.snapshot : SNAPSHOT) << i;
        struct neb_stream_rate_rung *rung = &c->rung[c->rungs];
        s->code[c->rungs++] = (struct neb_split_code){.snapshot = every};
        if (s->table)
            snprintf(rung->name, sizeof rung->name, "embeddings every %lld", (long long)every);
        else
            snprintf(rung->name, sizeof rung->name, "tokens");
        rung->bytes = tokens + (s->table ? (double)neb_param_values(s->table) / (double)every : 0);
    }
}

int64_t neb__split_rate_begin(struct neb_split_site *s)
{
    struct neb_stream_rate_config c = {.window = s->job->wan.window, .least = 2 * s->job->train.micro};
    if (!s->produces) {
        c.rungs = 1;
        c.rung[0].bytes = 1;
    } else if (s->job->plan == NEB_STRATEGY_TUTOR) {
        tutor_ladder(s, &c);
    } else {
        relay_ladder(s, &c);
    }
    neb__stream_rate_init(&s->rate, &c);
    snprintf(s->readings.rung, sizeof s->readings.rung, "%s", c.rung[0].name);
    s->readings.window = s->rate.window;
    s->readings.until = (uint64_t)(s->job->train.steps * s->job->train.micro);
    return s->rate.window;
}

const struct neb_split_code *neb__split_code(const struct neb_split_site *s)
{
    return &s->code[s->rate.rung];
}

/* ---- measuring ----------------------------------------------------------------------------------------- */

/* Reads the receiving site's status. A peer wrote it, so it may hold anything. */
static void hear(struct neb_split_site *s, struct neb_stream_rate_sample *out)
{
    struct neb_site_status st;
    if (!neb__session_heard(s->stream->session, s->other, &st)) return;
    if (st.until > 0 && s->role == NEB_ROLE_TEACHER) neb__stream_limit(s->stream, (uint64_t)st.until);
    if (st.age >= heard_within) return;
    out->need = st.takes;
    out->starved = st.starved;
}

/* Measures the period that ends now. False: the sites are not connected, so nothing can be concluded. */
static bool look(struct neb_split_site *s, double seconds, struct neb_stream_rate_sample *out)
{
    struct neb_stream_status st;
    struct neb_line line;
    neb_stream_get_status(s->stream, &st);
    double items = (double)(st.last - s->seen.last), bytes = (double)(st.bytes - s->seen.bytes),
           waited = st.wait_s - s->seen.wait_s;
    if (items > 0) s->item_bytes = bytes / items;
    *out = (struct neb_stream_rate_sample){
        .seconds = seconds, .items = (double)(st.received - s->seen.received), .item_bytes = s->item_bytes};
    s->seen = st;
    if (s->produces) hear(s, out);
    if (!st.linked) return false;
    neb__session_line(s->stream->session, s->stream->peer, &line);
    out->rtt = line.rtt;
    if (line.goodput_age >= 0 && line.goodput_age < fresh) out->line = line.goodput_out / 8;
    if (s->produces) {
        out->credit = waited / seconds;
        return true;
    }
    double busy = seconds - waited;
    s->readings.starved = fmin(1, waited / seconds);
    if (items > 0 && busy > 1e-3) s->readings.takes = items / busy;
    out->need = s->readings.takes;
    return true;
}

/* The first period begins with the first item. */
static void begin_period(struct neb_split_site *s)
{
    uint64_t first = s->seen.last;
    neb_stream_get_status(s->stream, &s->seen);
    s->looked_ns = neb__now_ns();
    s->begun = s->seen.last > first;
    if (!s->begun) s->seen.last = first;
}

void neb__split_regulate(struct neb_split_site *s)
{
    struct neb_stream_rate_sample in;
    double seconds = neb__seconds_since(s->looked_ns);
    if (s->job->wan.recorded) return;
    if (s->role == NEB_ROLE_TEACHER && s->stream->limit == UINT64_MAX)
        hear(s, &in); /* the student may have said how many items it wants */
    if (!s->begun) {
        begin_period(s);
        return;
    }
    if (seconds < period) return;
    s->looked_ns = neb__now_ns();
    if (!look(s, seconds, &in) || !neb__stream_rate_step(&s->rate, &in)) return;
    neb__stream_window(s->stream, s->rate.window);
    s->readings.window = s->rate.window;
    if (!s->produces) return;
    const char *rung = s->rate.config.rung[s->rate.rung].name;
    if (strcmp(s->readings.rung, rung)) neb__info("%s", s->rate.reason);
    snprintf(s->readings.rung, sizeof s->readings.rung, "%s", rung);
    snprintf(s->readings.why, sizeof s->readings.why, "%s", s->rate.reason);
}
