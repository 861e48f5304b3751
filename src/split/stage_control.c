/* stage_control.c: fits a stage to its lines. Between steps, at most once a second, it measures, asks stage_rate.c and
 * carries out the answer. A depth for which there is no memory is not tried. */
#include "base/clamp.h"
#include "base/clock.h"
#include "base/log.h"
#include "run/session.h"
#include "run/stream.h"
#include "split/stage_site.h"

#include <stdio.h>

static const double period = 1, fresh = 10;

void neb__stage_control_begin(struct neb_stage_site *s)
{
    struct neb_stage_rate_config c = {.bits = (int)s->job->wan.bits,
                                      .depth = (int)s->job->wan.depth,
                                      .behind = s->stages - 1 - s->stage + s->place.ring,
                                      .micro = (int)s->job->train.micro,
                                      .careful = s->job->train.memory > 0};
    neb__stage_rate_init(&s->rate, &c);
    s->bits = s->rate.bits;
    snprintf(s->readings.rung, sizeof s->readings.rung, "int%d", s->bits);
    if (s->bits > 8) snprintf(s->readings.rung, sizeof s->readings.rung, s->bits == 16 ? "bf16" : "fp32");
    s->readings.window = s->rate.depth;
    s->looked_ns = neb__now_ns();
}

static void look(const struct neb_stage_site *s, struct neb_stage_rate_sample *out)
{
    static const enum neb_stage_way ways[] = {NEB_AHEAD_OUT, NEB_BACK_OUT};
    for (int i = 0; i < 2; i++) {
        const neb_stream *st = s->end[ways[i]].stream;
        struct neb_line line;
        if (!st) continue;
        neb__session_line(st->session, st->peer, &line);
        if (!line.up) continue;
        if (ways[i] == NEB_AHEAD_OUT) out->rtt = line.rtt;
        double rate = line.goodput_age >= 0 && line.goodput_age < fresh ? line.goodput_out / 8 : 0;
        if (rate > 0 && (!(out->line > 0) || rate < out->line)) out->line = rate;
    }
}

/* The lines behind the next stage: that of the last one joins it to the first where the line is a ring. */
static void add_lines(const struct neb_stage_site *s, struct neb_stage_rate_sample *out)
{
    for (int k = s->stage + 1; k < s->stages - !s->place.ring; k++) {
        out->further += s->line_s[k];
        out->unknown += !(s->line_s[k] > 0);
    }
}

/* Slots that fit into the memory that is free; 0: it is not known. */
static int room(const struct neb_stage_site *s, const struct neb_stage_facts *f)
{
    if (f->free_bytes < 0 || f->slot_bytes <= 0 || f->depth < 1) return 0;
    const int64_t more = f->free_bytes / f->slot_bytes * s->job->parallel.data;
    return f->depth + (int)neb__clamp_int(more, 0, s->job->train.micro);
}

/* The step went on with fewer in flight than it was told: there was no memory for more, and there will be none. */
static void learn_room(struct neb_stage_site *s, const struct neb_stage_facts *f)
{
    if (f->depth < 1 || f->depth >= s->rate.depth || !s->rate.config.behind) return;
    neb__warn("no memory for %d micro-batches in flight: %d it is, as before", s->rate.depth, f->depth);
    neb__stage_rate_cap(&s->rate, f->depth);
    s->readings.window = s->rate.depth;
}

void neb__stage_facts_of(struct neb_work *w, struct neb_stage_facts *out)
{
    *out = (struct neb_stage_facts){.slot_bytes = neb__work_slot_bytes(w),
                                    .free_bytes = neb__work_free_bytes(w),
                                    .depth = neb__work_depth(w)};
    neb__work_site_times(w, &out->times);
}

int neb__stage_control(struct neb_stage_site *s, const struct neb_stage_facts *f)
{
    const struct neb_site_stage_times now = f->times;
    struct neb_stage_rate_sample in = {.bytes = s->item_bytes, .room = room(s, f)};
    neb__stage_site_count(s);
    learn_room(s, f);
    if (neb__seconds_since(s->looked_ns) < period) return s->rate.depth;
    int64_t micros = now.micros - s->seen.micros;
    if (micros > 0)
        in.turn = (now.forward - s->seen.forward + now.backward - s->seen.backward) / (double)micros;
    s->seen = now;
    s->looked_ns = neb__now_ns();
    look(s, &in);
    add_lines(s, &in);
    if (!neb__stage_rate_step(&s->rate, &in)) return s->rate.depth;
    neb__info("%s", s->rate.reason);
    snprintf(s->readings.why, sizeof s->readings.why, "%s", s->rate.reason);
    s->bits = s->rate.bits;
    if (s->bits <= 8) snprintf(s->readings.rung, sizeof s->readings.rung, "int%d", s->bits);
    s->readings.window = s->rate.depth;
    return s->rate.depth;
}
