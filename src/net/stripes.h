/* stripes.h: chooses how many connections a link sends on. No I/O; the caller passes the time. */
#ifndef NEB_NET_STRIPES_H
#define NEB_NET_STRIPES_H

#include <stdbool.h>
#include <stdint.h>

struct neb_stripes {
    int target; /* the number to use now */
    int max;
    bool fixed;
    int best; /* the number that was best so far, and its goodput */
    double best_rate;
    enum { NEB_STRIPES_HOLD, NEB_STRIPES_TRY } phase;
    int64_t phase_since;  /* ns */
    int64_t settle_until; /* nothing is counted before this time, since connections start slowly */
    double bytes;         /* bytes counted in this phase */
    double busy;          /* seconds counted */
    double hold;          /* seconds until the next try, growing while tries fail */
    int direction;        /* the next try has more stripes (+1) or fewer (-1) */
    bool try_more;        /* TCP reports that something other than the line holds flows back */
    double warm;          /* busy seconds before the first one that counts */
    int64_t retry_at;     /* a stripe failed: no stripe is dialled before this time */
};

void neb__stripes_init(struct neb_stripes *s, int fixed, int max, int64_t now);
/* Reports that `bytes` were acknowledged in `seconds`, during which the queue was never empty. rtt is in
 * seconds. */
void neb__stripes_sample(struct neb_stripes *s, int64_t now, double bytes, double seconds, double rtt);

#endif
