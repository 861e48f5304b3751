/* far.h: the ranks of a site as children of a test, as if each were on a machine of its own. Their engine has no window: it answers
 * requests, as one between machines does. Sums are taken in rank order.
 *
 * The ranks' patience has a clock of the test's own (ticks.h). */
#ifndef NEB_TEST_FAR_H
#define NEB_TEST_FAR_H

#include "group/group.h"

/* Runs fn at `ranks` ranks, each a child of its own. Returns bits of the ranks whose fn did not return 0. Ranks that have left are
 * killed when all others have ended. */
unsigned far_ranks(int ranks, double timeout_s, int (*fn)(struct neb_group *g, void *arg), void *arg);
/* From now on the clock does not wait for this rank: it hangs or dies. */
void far_leave(void);
/* How many sums of floats this rank has begun so far; called after each, NULL: nothing is. */
int far_sums(void);
extern void (*far_on_sum)(void);
/* The most gathers that were under way at one time. */
int far_gathers(void);

#endif
