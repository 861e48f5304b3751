/* rate.h: the rate controller: which rung, how many inner steps between rounds, or nothing at all this time.
 *
 * Pure: numbers in, a decision and its reason out; no clock, no socket, no bytes. One instance a site (each sender
 * picks its own rung; updates describe themselves). It knows rungs only as the table it is given.
 *
 * Two limits enclose the choice. The line is the ceiling: bytes of an update <= 0.9 * T * min(U / c_out, D_j / c_in),
 * and never more than the egress the job allows. Quality is the floor: a rung is acceptable while its residual stays
 * below a multiple of the delta and the held-out loss of the outer state does not rise. Between them `prefer` decides.
 *
 *     create … for each interval: neb__rate_decide(); then report what was seen: neb__rate_sample() for traffic,
 *     neb__rate_sent() for the update, neb__rate_quality() for the code, neb__rate_loss() when the outer state was
 *     evaluated. A successful create owes a destroy. */
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
    double values; /* of one update: the largest fragment */
    bool owners;   /* updates go to owners: 2(N-1)/N copies instead of N-1 */
    double residual
        [NEB_RUNG_CLASSES]; /* the guard: most left out / sent; 0: 0.8 for dense, 7 for sparse rungs */
    double loss_slack;      /* how far the held-out loss may be above its best, relative; 0: 0.01 */
    bool no_guard;          /* for experiments: any rung is acceptable */
    int force; /* id of a rung to use whatever the line says (the guard may still refuse it); 0: none */
};

/* What an interval is made of, measured. */
struct neb_rate_input {
    double step;     /* seconds of one inner step */
    double overhead; /* encode + decode + fsync, seconds */
    double rtt;      /* seconds, to the farthest member */
    int members;     /* N, this site included; 1: nobody to send to */
    double share;    /* of the line that updates may use; 0: all of it */
};

enum neb_rate_kind {
    NEB_RATE_SEND,
    NEB_RATE_HOLD, /* nothing acceptable fits: train on, ask again; send no more than `probe` bytes to measure */
    NEB_RATE_CLASS, /* propose a record that changes to `cls` (momentum 0); until it commits, hold */
};

struct neb_rate_decision {
    enum neb_rate_kind kind;
    const struct neb_rate_rung *rung; /* SEND: the rung; else NULL */
    enum neb_rung_class cls;
    int h;
    double bytes;   /* SEND: expected size of the update */
    double ceiling; /* bytes this interval can carry; infinite before the first measurement */
    double
        probe; /* HOLD: bytes worth sending to learn the line; SEND: > 0 when this update is larger than what
                       the line is known to carry */
    char reason[200]; /* one sentence */
};

struct neb_rate;

/* NEB_ERR_INVALID: a field is out of range or the class has no rung. NEB_ERR_NOMEM. */
neb_status neb__rate_create(const struct neb_rate_config *config, struct neb_rate **out);
void neb__rate_destroy(struct neb_rate *r); /* NULL is fine */

void neb__rate_decide(struct neb_rate *r, const struct neb_rate_input *in, struct neb_rate_decision *out);

/* What to send when something must be sent whatever the line says: the cheapest acceptable rung of the class, or its most
 * faithful one where none is acceptable. */
const struct neb_rate_rung *neb__rate_fallback(const struct neb_rate *r);

/* Goodput in bytes/s over a period in which the queue was never empty: of this site's egress (peer < 0) or of what
 * peer 0 … 63 can take in. 0: nothing moved although there was something to send. One sample an interval: the
 * driver averages within it. Not finite or negative: ignored. */
void neb__rate_sample(struct neb_rate *r, int peer, double goodput);
void neb__rate_peer_gone(struct neb_rate *r, int peer);

/* The update of the last decision: its real size and for how long it kept the line busy (neither waiting behind the
 * update before it nor the round trip of its acknowledgement count). Returns whether it exceeded what its interval carried. */
bool neb__rate_sent(struct neb_rate *r, double bytes, double seconds);

/* |delta| of an update coded with `rung`, and of what the code left out. */
void neb__rate_quality(struct neb_rate *r, int rung, double delta, double residual);

/* Held-out loss of the outer state; not finite counts as harm. */
void neb__rate_loss(struct neb_rate *r, double loss);

/* A class-change record committed. */
void neb__rate_class_changed(struct neb_rate *r, enum neb_rung_class cls);

#endif
