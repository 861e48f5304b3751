/* stage_rate.h: how many bits a value between two stages takes, and how many micro-batches are in flight.
 *
 * Pure: numbers go in, a decision and its reason come out; it knows no clock, no socket, no bytes. Each site decides for
 * what it sends and for its own slots. */
#ifndef NEB_SPLIT_STAGE_RATE_H
#define NEB_SPLIT_STAGE_RATE_H

#include <stdbool.h>

struct neb_stage_rate_config {
    int bits, depth; /* chosen by hand; 0: follow the line */
    int behind;      /* stages behind this one */
    int micro;       /* micro-batches of a step */
    bool
        careful; /* memory is limited, and what a slot takes is not known before the first step: begin with one */
};

/* Measured since the last decision. A value that is not known is 0. */
struct neb_stage_rate_sample {
    double turn;    /* seconds that a micro-batch takes here, forwards and backwards */
    double rtt;     /* seconds to the next stage and back; 0: it is not connected */
    double line;    /* bytes/s towards the neighbours, of the slowest that was full lately */
    double bytes;   /* of a micro-batch's message at 8 bits */
    double further; /* seconds that a micro-batch is on the lines behind the next stage, there and back, … */
    int unknown;    /* … without so many of them, which count as the next line does */
    int room;       /* most slots that fit into memory */
};

struct neb_stage_rate {
    struct neb_stage_rate_config config;
    int bits, depth;
    double line_s;    /* on the next line, there and back; 0: not known */
    int most;         /* … and no more than this; 0: that is not known */
    char reason[200]; /* of the last change; "" until there is one */
};

/* There is no memory for more than this depth, from now on. */
void neb__stage_rate_cap(struct neb_stage_rate *r, int depth);
void neb__stage_rate_init(struct neb_stage_rate *r, const struct neb_stage_rate_config *c);

/* True: bits or depth changed, and `reason` says why. A value that is negative or not finite counts as 0. */
bool neb__stage_rate_step(struct neb_stage_rate *r, const struct neb_stage_rate_sample *in);

#endif
