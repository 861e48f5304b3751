/* stage_rate.c: see stage_rate.h.
 *
 * While a micro-batch is away, its stage works on others: each line on its way takes a round trip and a transfer in each direction, and
 * every stage behind takes its turn. So
 *
 *     in flight = stages from here on + ceil((round trips + transfers) / turn)
 *
 * keep a stage busy, where a turn is one forward and one backward. A stage measures its own line; those behind it say how long they take
 * with the sums of each step, since no two lines need be alike. More would cost memory and gain nothing; more than a
 * step has cannot be.
 *
 * Eight bits are the rule. The line is too slow for them when a message takes longer than a turn, for then the stages wait
 * for the line, however deep they are. Four bits halve that. They are taken when 8 take more than 1.1 turns, and given up
 * when 8 would take less than 0.8, so that a line between the two does not make them change all the time. */
#include "split/stage_rate.h"

#include <math.h>
#include <stdio.h>

static const double too_slow = 1.1, fast_enough = 0.8;

static double known(double x)
{
    return isfinite(x) && x > 0 ? x : 0;
}

static int clamped(double x, int low, int high)
{
    if (high < low) high = low;
    if (!(x > low)) return low;
    return x < high ? (int)x : high;
}

void neb__stage_rate_init(struct neb_stage_rate *r, const struct neb_stage_rate_config *c)
{
    *r = (struct neb_stage_rate){.config = *c, .bits = c->bits ? c->bits : 8};
    r->depth = c->depth ? c->depth : clamped(c->behind + 2, 1, c->micro);
    if (!c->behind || (c->careful && !c->depth)) r->depth = 1;
}

void neb__stage_rate_cap(struct neb_stage_rate *r, int depth)
{
    r->most = r->depth = depth;
}

static int wanted_bits(const struct neb_stage_rate *r, double turn, double line, double bytes)
{
    if (r->config.bits) return r->config.bits;
    if (!(turn > 0 && line > 0)) return r->bits;
    double turns = bytes / line / turn;
    if (r->bits == 8 && turns > too_slow) return 4;
    return r->bits == 4 && turns < fast_enough ? 8 : r->bits;
}

bool neb__stage_rate_step(struct neb_stage_rate *r, const struct neb_stage_rate_sample *in)
{
    const struct neb_stage_rate_config *c = &r->config;
    double turn = known(in->turn), rtt = known(in->rtt), line = known(in->line), bytes = known(in->bytes);
    if (!(turn > 0)) return false;
    int bits = wanted_bits(r, turn, line, bytes), depth = r->depth;
    double transfer = line > 0 ? bytes * bits / 8 / line : 0;
    if (c->behind && rtt > 0) r->line_s = rtt + 2 * transfer;
    if (c->behind && !c->depth && rtt > 0) {
        double away = r->line_s * (1 + in->unknown) + known(in->further);
        depth = clamped(c->behind + 1 + ceil(away / turn), 1, c->micro);
        if (in->room > 0 && depth > in->room) depth = in->room;
        if (r->most > 0 && depth > r->most) depth = r->most;
    }
    if (bits == r->bits && depth == r->depth) return false;
    if (bits != r->bits)
        snprintf(r->reason, sizeof r->reason,
                 "%d bits, %d in flight: with 8 bits a message takes %.0f ms on a line of %.1f Mbit/s, a "
                 "turn %.0f ms",
                 bits, depth, 1e3 * bytes / line, line * 8e-6, 1e3 * turn);
    else
        snprintf(
            r->reason, sizeof r->reason,
            "%d bits, %d in flight: a round trip takes %.0f ms, a transfer %.0f ms, the lines behind the "
            "next site %.0f ms, a turn %.0f ms",
            bits, depth, 1e3 * rtt, 1e3 * transfer, 1e3 * (known(in->further) + r->line_s * in->unknown),
            1e3 * turn);
    r->bits = bits;
    r->depth = depth;
    return true;
}
