/* rate.h: the rate controller. It chooses a rung and the number of inner steps between
 * rounds, or sends nothing this time.
 *
 * Pure: numbers in, a decision and its reason out; no clock, no socket, no bytes. One instance a site (each
 * sender picks its own rung; updates describe themselves). It knows rungs only from the table it is given.
 *
 * Two limits enclose the choice. The line is the ceiling,
 *
 *     bytes of an update <= 0.9 * T * min(U / c_out, D_j / c_in),
 *
 * and never more than the egress the job allows. Quality is the floor: a rung is acceptable while the part it
 * leaves out stays below a multiple of the part it sends, and the held-out loss of the outer state does not
 * rise. Between them `prefer` decides.
 *
 *     create … for each interval: neb__rate_decide(); then report what was seen: neb__rate_sample() for
 *     traffic, neb__rate_sent() for the update, neb__rate_quality() for the code, neb__rate_loss() when the
 *     outer state was evaluated. A successful create owes a destroy. */
#ifndef NEB_ROUND_RATE_H
#define NEB_ROUND_RATE_H

#include "base/rung_class.h"
#include "base/status.h"

#include <stdbool.h>

#define NEB_RATE_PEERS 64

enum neb_rate_prefer { NEB_PREFER_COST, NEB_PREFER_QUALITY };

struct neb_rate_rung {
    int id;
    const char *name;
    enum neb_rung_class cls;
    double bytes; /* nominal, per value */
    double error; /* nominal |z - c| / |z|, below 1 */
};

struct neb_rate_config {
    const struct neb_rate_rung *rungs; /* each class from faithful to cheap; must outlive the controller */
    int rung_count;
    enum neb_rung_class cls; /* to begin with */
    bool keep_class;         /* the job chose it: never propose another */
    enum neb_rate_prefer prefer;
    double max_bytes_per_hour; /* egress; 0: no limit */
    int h;                     /* nominal inner steps between two rounds of a fragment */
    int fragments;
    int pipeline;  /* records that may be prepared at a time */
    double values; /* in one update of the largest fragment */
    bool owners;   /* updates go to owners: 2(N-1)/N copies instead of N-1 */
    double residual
        [NEB_RUNG_CLASSES]; /* the guard's limit of |left out| / |sent|: dense, sparse; 0: 0.8 and 7 */
    double loss_slack;      /* how far the held-out loss may be above its best, relative; 0: 0.01 */
    bool no_guard;          /* for experiments: any rung is acceptable */
    int force; /* id of a rung to use whatever the line says (the guard may still refuse it); 0: none */
};

/* Measurements of an interval. */
struct neb_rate_input {
    double step;     /* seconds of one inner step */
    double overhead; /* encode + decode + fsync, seconds */
    double rtt;      /* seconds, to the farthest member */
    int members;     /* N, this site included; 1: nobody to send to */
    double share;    /* of the line that updates may use; 0: all of it */
};

enum neb_rate_kind {
    NEB_RATE_SEND,
    NEB_RATE_HOLD,  /* nothing acceptable fits: train on, ask again; send at most `probe` bytes, to measure */
    NEB_RATE_CLASS, /* propose a record that changes to `cls` (momentum 0); hold until it commits */
};

struct neb_rate_decision {
    enum neb_rate_kind kind;
    const struct neb_rate_rung *rung; /* SEND: the rung; else NULL */
    enum neb_rung_class cls;
    int h;
    double bytes;   /* SEND: expected size of the update */
    double ceiling; /* bytes this interval can carry; infinite before the first measurement */
    /* HOLD: bytes worth sending to learn the line. SEND: > 0 when the line is not known to carry the
     * update. */
    double probe;
    char reason[256]; /* one sentence */
};

struct neb_rate;

/* NEB_ERR_INVALID: a field is out of range or the class has no rung. NEB_ERR_NOMEM. */
neb_status neb__rate_create(const struct neb_rate_config *config, struct neb_rate **out);
void neb__rate_destroy(struct neb_rate *r); /* NULL is fine */

void neb__rate_decide(struct neb_rate *r, const struct neb_rate_input *in, struct neb_rate_decision *out);

/* The rung for an update that must go out whatever the line says: the cheapest acceptable one of the class,
 * or the most faithful one if none is acceptable. */
const struct neb_rate_rung *neb__rate_fallback(const struct neb_rate *r);

/* Goodput in bytes/s over a period in which the queue was never empty: of this site's egress (peer < 0), or
 * of the ingress of peer 0 … 63. 0 means that nothing moved although there was something to send. One sample
 * an interval: the driver averages within it. Samples that are negative or not finite are ignored. */
void neb__rate_sample(struct neb_rate *r, int peer, double goodput);
void neb__rate_peer_gone(struct neb_rate *r, int peer);

/* Reports the update of the last decision: its real size, and how long it kept the line busy. Waiting behind
 * the update before it does not count, nor does the round trip of its acknowledgement. Returns whether it
 * exceeded what its interval carried. */
bool neb__rate_sent(struct neb_rate *r, double bytes, double seconds);

/* Norms of an update coded with `rung`: of its delta, and of the part that the code left out. */
void neb__rate_quality(struct neb_rate *r, int rung, double delta, double residual);

/* Held-out loss of the outer state; a value that is not finite counts as harm. */
void neb__rate_loss(struct neb_rate *r, double loss);

/* A class-change record committed. */
void neb__rate_class_changed(struct neb_rate *r, enum neb_rung_class cls);

#endif
