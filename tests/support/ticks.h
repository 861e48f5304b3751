/* ticks.h: a clock for the patience of ranks that are children of a test.
 *
 * It goes on by a tick when every rank that is well has looked at it since the tick before. So a rank that the machine lets wait stops the
 * clock: no rank is late, however busy the machine is, and a limit of many seconds passes in a moment. */
#ifndef NEB_TEST_TICKS_H
#define NEB_TEST_TICKS_H

/* Before the children are made, and after they have ended. */
void ticks_begin(int ranks, double tick_s);
void ticks_end(void);
/* In a child: from now on the patience of its group is measured by this clock. */
void ticks_follow(int rank);
/* The clock does not wait for this rank any more: it hangs, dies or has ended. */
void ticks_without(int rank);

#endif
