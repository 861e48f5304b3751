/* rate_guard.c: which rungs and which H do no harm.
 *
 * The ratio of norms: left out / sent. If a code leaves out `error` of a delta's norm, it sends
 * sqrt(1 - error^2) of it. A rung that was never used is guessed at 1.4 times that ratio, because the part
 * that waits in the live model is spread more evenly than a fresh delta (measured: 1.2 to 1.5 times). From
 * there the measured ratio counts, smoothed over a few updates. The limit is 0.8 for dense rungs. It is 7 for
 * sparse ones, between 32 and 16 of 4096 values, where a run loses 1 % and 2 %. Above the limit the code
 * delays more than it delivers: the rung is refused for 64, 256, … 4096 intervals, and with it all less
 * faithful ones of its class.
 *
 * Held-out loss. Two evaluations in a row above the best by more than the slack are harm, and so is one
 * that is not finite or far above. A stretched H goes back first, to half of what it was, but not below
 * half of nominal. If H was not stretched, the rung in use is refused, unless it is the most faithful
 * one. Under `prefer: cost` H grows by a quarter octave after two harmless evaluations, up to 4 times
 * nominal: no evidence, no growth. */
#include "round/rate_guard.h"

#include <math.h>
#include <stdio.h>

static const double default_residual[NEB_RUNG_CLASSES] = {[NEB_DENSE] = 0.8, [NEB_SPARSE] = 7},
                    default_slack = 0.01, far_above = 0.10;

void neb__guard_init(struct neb__guard *g, const struct neb_rate_config *c)
{
    *g = (struct neb__guard){.c = c, .best_loss = INFINITY, .h = c->h};
    for (int i = 0; i < NEB_RATE_RUNGS; i++) g->rung[i].ratio = -1;
}

void neb__guard_tick(struct neb__guard *g)
{
    g->now++;
    if (g->now > g->note_until) g->note[0] = 0;
}

static double limit(const struct neb__guard *g, int rung)
{
    enum neb_rung_class cls = g->c->rungs[rung].cls;
    return g->c->residual[cls] > 0 ? g->c->residual[cls] : default_residual[cls];
}

/* |left out| / |sent| of a delta of norm `delta`. */
static double left_of_sent(double delta, double residual)
{
    double sent = delta * delta - residual * residual;
    if (residual == 0) return 0;
    return sent > 0 ? residual / sqrt(sent) : INFINITY;
}

static double expected_ratio(const struct neb__guard *g, int rung)
{
    const struct neb_rate_rung *k = &g->c->rungs[rung];
    if (g->rung[rung].seen) return g->rung[rung].ratio;
    return 1.4 * left_of_sent(1, k->error);
}

bool neb__guard_accepts(const struct neb__guard *g, int rung)
{
    if (g->c->no_guard) return true;
    const struct neb_rate_rung *k = &g->c->rungs[rung];
    for (int i = 0; i <= rung; i++) /* a refusal holds for all less faithful ones, too */
        if (g->c->rungs[i].cls == k->cls && g->rung[i].refused_until > g->now) return false;
    if (g->c->force == k->id && !g->rung[rung].seen)
        return true; /* the job forces it: judged by what it does */
    return expected_ratio(g, rung) <= limit(g, rung);
}

int neb__guard_h(const struct neb__guard *g)
{
    return (int)g->h;
}

static void refuse(struct neb__guard *g, int rung)
{
    int strikes = g->rung[rung].strikes < 3 ? g->rung[rung].strikes : 3;
    g->rung[rung].refused_until = g->now + (64L << 2 * strikes);
    g->rung[rung].strikes++;
    g->rung[rung].seen = 0; /* when its time is over it gets another chance, from the guess */
    g->rung[rung].ratio = -1;
}

void neb__guard_ratio(struct neb__guard *g, int rung, double delta, double residual)
{
    if (g->c->no_guard) return;
    double ratio = left_of_sent(delta, residual);
    if (isnan(ratio)) ratio = INFINITY;
    double old = expected_ratio(g, rung);
    g->rung[rung].ratio = isinf(ratio) ? limit(g, rung) * 2 : 0.5 * old + 0.5 * ratio;
    g->rung[rung].seen++;
    if (g->rung[rung].ratio <= limit(g, rung)) return;
    g->note_until = g->now + 4;
    snprintf(g->note, sizeof g->note, "%s refused, as it leaves out %.2g times what it sends",
             g->c->rungs[rung].name, g->rung[rung].ratio);
    refuse(g, rung);
}

static bool most_faithful(const struct neb__guard *g, int rung)
{
    for (int i = 0; i < rung; i++)
        if (g->c->rungs[i].cls == g->c->rungs[rung].cls) return false;
    return true;
}

static void harm(struct neb__guard *g, int rung, int h, double loss)
{
    g->worse = g->fine = 0;
    g->note_until = g->now + 4;
    if (h > g->c->h || rung < 0 || most_faithful(g, rung)) {
        g->h = fmax(fmin(g->h, h) / 2, (g->c->h + 1) / 2);
        g->h_hold = g->now + (16L << (g->h_strikes < 6 ? g->h_strikes : 6));
        g->h_strikes++;
        snprintf(g->note, sizeof g->note, "back to %d steps, as the held-out loss rose to %.4g from %.4g",
                 (int)g->h, loss, g->best_loss);
    } else {
        snprintf(g->note, sizeof g->note, "%s refused, as the held-out loss rose to %.4g from %.4g",
                 g->c->rungs[rung].name, loss, g->best_loss);
        refuse(g, rung);
    }
}

void neb__guard_loss(struct neb__guard *g, int rung, int h, double loss)
{
    double slack = g->c->loss_slack > 0 ? g->c->loss_slack : default_slack;
    if (g->c->no_guard) return;
    double above = loss - g->best_loss, size = fmax(fabs(g->best_loss), 1e-12);
    if (!isfinite(loss) || (isfinite(g->best_loss) && above > far_above * size)) {
        harm(g, rung, h, loss);
        return;
    }
    if (isfinite(g->best_loss) && above > slack * size) {
        g->fine = 0;
        if (++g->worse >= 2) harm(g, rung, h, loss);
        return;
    }
    g->worse = 0;
    g->best_loss = fmin(g->best_loss, loss);
    if (++g->fine >= 2 && g->c->prefer == NEB_PREFER_COST && g->now >= g->h_hold) {
        g->fine = 0;
        g->h = fmin(g->h * 1.189207115, 4.0 * g->c->h);
    }
}
