/* rate_guard.h: the quality guard, the floor under the rate controller's choice. */
#ifndef NEB_ROUND_RATE_GUARD_H
#define NEB_ROUND_RATE_GUARD_H

#include "round/rate.h"

#define NEB_RATE_RUNGS 64

struct neb__guard {
    const struct neb_rate_config *c;
    long now; /* decisions so far */
    struct {
        double ratio; /* |r| / |d|, smoothed; negative: not seen */
        int seen;
        long refused_until;
        int strikes;
    } rung[NEB_RATE_RUNGS];
    double best_loss; /* infinite: none yet */
    int worse, fine;  /* evaluations in a row above the slack, or not */
    double h;         /* the largest H there is evidence for */
    long h_hold;      /* H does not grow before this decision */
    int h_strikes;
    char note[80]; /* its last action, for the reasons of the next few decisions; "" when quiet */
    long note_until;
};

void neb__guard_init(struct neb__guard *g, const struct neb_rate_config *c);
void neb__guard_tick(struct neb__guard *g); /* a new interval begins */
bool neb__guard_accepts(const struct neb__guard *g, int rung);
int neb__guard_h(const struct neb__guard *g);
void neb__guard_ratio(struct neb__guard *g, int rung, double delta, double residual);
/* rung < 0: nothing was being sent. */
void neb__guard_loss(struct neb__guard *g, int rung, int h, double loss);

#endif
