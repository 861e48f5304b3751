/* stripes.h: how many connections a link should send on. No I/O, no clock of its own. */
#ifndef NEB_NET_STRIPES_H
#define NEB_NET_STRIPES_H

#include <stdbool.h>
#include <stdint.h>

struct neb_stripes {
    int target; /* the present answer */
    int max;
    bool fixed;
    int best; /* the number that was best so far, and its goodput */
    double best_rate;
    enum { NEB_STRIPES_HOLD, NEB_STRIPES_TRY } phase;
    int64_t phase_since;  /* ns */
    int64_t settle_until; /* nothing is counted before: connections start slowly */
    double bytes;         /* counted in this phase */
    double busy;          /* seconds counted */
    double hold;          /* seconds until the next try, growing while tries fail */
    int direction;        /* of the next try: +1 more, -1 fewer */
    bool try_more;        /* told by TCP: flows are held back by something other than the line */
    double warm;          /* busy seconds before anything counted */
    int64_t retry_at;     /* a stripe failed: none is dialled before */
};

void neb__stripes_init(struct neb_stripes *s, int fixed, int max, int64_t now);
/* `bytes` were acknowledged in `seconds` during which the queue was never empty; rtt in seconds. */
void neb__stripes_sample(struct neb_stripes *s, int64_t now, double bytes, double seconds, double rtt);

#endif
