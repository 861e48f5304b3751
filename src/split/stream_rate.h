/* stream_rate.h: how a sending site keeps the receiving one busy: how far it may be ahead, and how its items
 * are coded.
 *
 * Pure: numbers go in, a decision and its reason come out; it knows no clock, no socket, no bytes. The
 * sending site of `relay` or `tutor` asks once a second. The receiving one uses the window alone, for its own
 * queue. */
#ifndef NEB_SPLIT_STREAM_RATE_H
#define NEB_SPLIT_STREAM_RATE_H

#include <stdbool.h>
#include <stdint.h>

enum {
    NEB_STREAM_RATE_RUNGS = 6,
    NEB_STREAM_RATE_WINDOW = 32,
    NEB_STREAM_RATE_WINDOW_MAX = 2048,
    NEB_STREAM_RATE_TRIPS = 16
};

struct neb_stream_rate_rung {
    char name[40];
    double bytes; /* nominal size of an item: only ratios count */
};

struct neb_stream_rate_config {
    struct neb_stream_rate_rung rung[NEB_STREAM_RATE_RUNGS]; /* from faithful to cheap */
    int rungs;                                               /* 1: chosen by hand */
    int64_t window;                                          /* chosen by hand; 0: follows the line */
    int64_t least;                                           /* twice the batches of a step */
};

/* Measured since the last decision. */
struct neb_stream_rate_sample {
    double seconds;
    double items;      /* that reached the receiving site */
    double item_bytes; /* mean size of the items put lately; 0: nothing was put */
    double rtt;        /* seconds */
    double line;       /* bytes/s, measured while something always waited to be sent; 0: not known */
    double need;       /* items/s that the receiving site takes while it does not wait; 0: not known */
    double starved;    /* share of the time that the receiving site waited for items */
    double credit;     /* share of the time that the sending site waited for credit */
};

struct neb_stream_rate {
    struct neb_stream_rate_config config;
    int64_t window; /* batches that the sending site may be ahead */
    int rung;
    char reason[200]; /* of the last change; "" until there is one */

    double need, boost, trip[NEB_STREAM_RATE_TRIPS];
    int trips, settle, quiet, hold, probe;
};

void neb__stream_rate_init(struct neb_stream_rate *r, const struct neb_stream_rate_config *c);

/* True: window or rung changed, and `reason` says why. A value that is negative or not finite counts as 0. */
bool neb__stream_rate_step(struct neb_stream_rate *r, const struct neb_stream_rate_sample *in);

#endif
