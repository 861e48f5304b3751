/* wan_turns.h: two runs at once that take turns of a second, for machines whose speed changes from minute to
 * minute. */
#ifndef NEB_WAN_TURNS_H
#define NEB_WAN_TURNS_H

#include <sys/types.h>

enum { NEB_TURNS_MAX = 2048 };

/* Turn i, of run i % 2, began at `at[i]` and ended at `at[i + 1]`: seconds since 1970, as in the sites'
 * metrics. */
struct neb_turns {
    double at[NEB_TURNS_MAX + 1];
    int n;
};

/* For `seconds` the training processes below a[0] run while those below a[1] are stopped, then the other way
 * round. At the end all of them run. */
void neb__take_turns(const pid_t a[2], double seconds, struct neb_turns *out);

/* The run's own seconds between t0 and t1. */
double neb__bbr_turns_of(const struct neb_turns *t, int run, double t0, double t1);

#endif
