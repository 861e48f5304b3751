/* stream_rate.h: how a feeding site keeps the fed one busy: how far it may be ahead, and how much of an item crosses.
 *
 * Pure: numbers in, a decision and its reason out; no clock, no socket, no bytes. The feeding site of `relay` or `tutor` asks
 * once a second; the fed one takes the window alone, for its own queue. */
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
    double bytes; /* nominal, of one item: only ratios count */
};

struct neb_stream_rate_config {
    struct neb_stream_rate_rung rung[NEB_STREAM_RATE_RUNGS]; /* from faithful to cheap */
    int rungs;                                               /* 1: chosen by hand */
    int64_t window;                                          /* chosen by hand; 0: follows the line */
    int64_t least;                                           /* what a step needs, twice */
};

/* Measured since the last decision. */
struct neb_stream_rate_sample {
    double seconds;
    double items;      /* that reached the fed site */
    double item_bytes; /* of an item put lately, mean; 0: none was */
    double rtt;        /* seconds */
    double
        line; /* bytes/s, measured just now while something always waited to be sent; 0: nothing waited, so unknown */
    double need;    /* items/s that the fed site takes while it does not wait; 0: not known */
    double starved; /* share of the time that the fed site waited for items */
    double credit;  /* share of the time that this one waited for credit */
};

struct neb_stream_rate {
    struct neb_stream_rate_config config;
    int64_t window; /* batches that the feeding site may be ahead */
    int rung;
    char reason[200]; /* of the last change; "" before the first */

    double need, boost, trip[NEB_STREAM_RATE_TRIPS];
    int trips, settle, quiet, hold, probe;
};

void neb__stream_rate_init(struct neb_stream_rate *r, const struct neb_stream_rate_config *c);

/* True: window or rung changed, `reason` says why. Values that are not finite or negative count as 0. */
bool neb__stream_rate_step(struct neb_stream_rate *r, const struct neb_stream_rate_sample *in);

#endif
