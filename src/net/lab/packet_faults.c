/* packet_faults.c: loss, bursts, jitter, reordering and corruption as functions of a seed.
 *
 * Whether the k-th packet of a line is lost depends only on (seed, line, k); the jitter at time t depends
 * only on (seed, line, t). The state is the packet count and, for bursts, one bit. So two runs that send the
 * same packets lose the same ones.
 *
 * Bursts follow Gilbert and Elliott: in the bad state everything is lost. A packet ends that state with
 * probability 1/L (mean length L), and enters it with the probability that gives the requested share of lost
 * packets.
 *
 * Jitter interpolates between normally distributed points, one every few deviations of time. So the delay
 * wanders as it does when queues elsewhere on the path fill and drain, and packets sent together stay
 * together. (If the order is kept, independent noise per packet would raise the mean delay towards the
 * noise's maximum.) Interpolation loses a third of the points' variance on average, so the points are drawn
 * with deviation sqrt(3/2).
 */
#include "net/lab/packet_faults.h"
#include "base/clamp.h"
#include "base/rng.h"

#include <math.h>

#define SPREAD  1.2247448713915890 /* sqrt(3/2) */
#define EXTREME 3.0                /* points stay within this many deviations */

enum purpose { LOSS, BURST, REORDER, CORRUPT, JITTER };

static uint64_t bits(const struct neb_packet_faults *c, enum purpose what, uint64_t k)
{
    return neb__mix64(neb__mix64(c->key + (uint64_t)what * 0x9E3779B97F4A7C15u) ^ neb__mix64(k));
}

static bool happens(const struct neb_packet_faults *c, enum purpose what, double share)
{
    return share > 0 && (double)(bits(c, what, c->count) >> 11) * 0x1p-53 < share;
}

void neb__packet_faults_init(struct neb_packet_faults *c, uint64_t seed, int from, int to)
{
    *c =
        (struct neb_packet_faults){.key = neb__mix64(seed ^ neb__mix64((uint64_t)from << 32 | (uint64_t)to))};
}

static bool burst(struct neb_packet_faults *c, const struct neb_lab_line *line)
{
    if (!(line->burst_loss > 0)) {
        c->bursting = false;
        return false;
    }
    double length = line->burst_length > 0 ? line->burst_length : 8, leave = 1 / length;
    double enter = line->burst_loss < 1 ? leave * line->burst_loss / (1 - line->burst_loss) : 1;
    if (line->burst_loss >= 1) return true;
    c->bursting = c->bursting ? !happens(c, BURST, leave) : happens(c, BURST, enter);
    return c->bursting;
}

static double point(const struct neb_packet_faults *c, int64_t k)
{
    struct neb_rng r = {bits(c, JITTER, (uint64_t)k)};
    double x = neb__rng_normal(&r);
    return neb__clamp(x, -EXTREME, EXTREME);
}

/* Returns the seconds above or below the line's delay. */
static double wander(const struct neb_packet_faults *c, double jitter, int64_t now)
{
    int64_t step = (int64_t)(jitter * 8e9);
    if (step < 10000000) step = 10000000;
    int64_t k = now / step;
    double u = (double)(now % step) / (double)step;
    return jitter * SPREAD * ((1 - u) * point(c, k) + u * point(c, k + 1));
}

void neb__packet_faults_draw(struct neb_packet_faults *c, const struct neb_lab_line *line, int64_t now,
                             struct neb_fate *out)
{
    c->count++;
    bool in_burst = burst(c, line);
    out->lost = happens(c, LOSS, line->loss) || in_burst;
    out->corrupt = happens(c, CORRUPT, line->corrupt);
    out->held = happens(c, REORDER, line->reorder);
    double delay = line->delay;
    if (line->jitter > 0) delay += wander(c, line->jitter, now);
    out->delay = delay > 0 ? (int64_t)(delay * 1e9 + 0.5) : 0;
}

int64_t neb__packet_faults_least_delay(const struct neb_lab_line *line)
{
    double least = line->delay - line->jitter * SPREAD * EXTREME;
    return least > 0 ? (int64_t)(least * 1e9) : 0;
}
