/* line.c: see line.h. */
#include "line.h"
#include "check.h"
#include "codec/codec.h"

#include <math.h>
#include <string.h>

static struct neb_rate_rung rungs[64];
static int rung_count;

int line_table(void **state)
{
    (void)state;
    rung_count = 0;
    for (int i = 0; i < neb__rung_count; i++) {
        const struct neb_rung *k = &neb__rung_table[i];
        if (k->outside_scales) continue;
        assert_true(rung_count < (int)(sizeof rungs / sizeof *rungs));
        rungs[rung_count++] =
            (struct neb_rate_rung){k->id, k->name, k->cls, (double)k->bytes, (double)k->error};
    }
    return 0;
}

struct neb_rate_config line_config(void)
{
    return (struct neb_rate_config){.rungs = rungs,
                                    .rung_count = rung_count,
                                    .h = 32,
                                    .fragments = 4,
                                    .pipeline = 4,
                                    .values = 25e6,
                                    .prefer = NEB_PREFER_QUALITY};
}

void line_open(struct line *s, const struct neb_rate_config *c, int peers)
{
    memset(s, 0, sizeof *s);
    assert_ok(neb__rate_create(c, &s->rate));
    s->in = (struct neb_rate_input){.step = 0.25, .overhead = 0.05, .rtt = 0.04, .members = peers + 1};
    s->values = c->values;
    s->c = *c;
}

/* How long an update may keep the line busy if captures come every slot, each fragment's round is over before its next one and
 * no more records than allowed are prepared at a time. */
static double time_for_sending(const struct line *s, int h)
{
    double slot = h * s->in.step / s->c.fragments;
    double round = s->c.fragments * slot - s->in.overhead - 2 * s->in.rtt;
    double log = s->c.pipeline * slot - s->in.overhead - s->in.rtt;
    return s->in.overhead > slot ? 0 : fmax(0, fmin(slot, fmin(round, log)));
}

void line_round(struct line *s, double egress, double noise, struct neb_rng *rng)
{
    const struct neb_rate_rung *before = s->d.rung;
    int h = s->d.h;
    neb__rate_decide(s->rate, &s->in, &s->d);
    assert_in_range(strlen(s->d.reason), 11, sizeof s->d.reason - 2); /* there, and not cut off */
    assert_true(s->d.h >= 16 && s->d.h <= 128);
    double copies = s->in.members - 1, interval = s->d.h * s->in.step / 4, t = time_for_sending(s, s->d.h);
    double seen = egress * (1 + noise * (2 * neb__rng_uniform(rng) - 1));
    s->seconds += interval;
    if (s->d.kind != NEB_RATE_SEND) {
        s->holds++;
        s->late_in_a_row = 0;
        if (s->d.kind == NEB_RATE_CLASS) {
            s->class_changes++;
            neb__rate_class_changed(s->rate, s->d.cls);
        } else {
            neb__rate_sample(s->rate, -1, seen); /* the probe */
        }
        return;
    }
    double bytes = s->values * s->d.rung->bytes, took = egress > 0 ? bytes * copies / egress : 1e9;
    assert_true(s->d.bytes <= s->d.ceiling * (1 + 1e-9));
    s->changes += before && (before != s->d.rung || h != s->d.h);
    neb__rate_sample(s->rate, -1, seen);
    s->sent += bytes * copies;
    if (neb__rate_sent(s->rate, bytes, took) != (took > t)) fail_msg("late or not: %g s of %g s", took, t);
    s->late_in_a_row = took > t ? s->late_in_a_row + 1 : 0;
    s->late += took > t;
    s->most_in_a_row = s->late_in_a_row > s->most_in_a_row ? s->late_in_a_row : s->most_in_a_row;
}

double mbit(double x)
{
    return x * 1e6 / 8;
}
