/* clock.h: monotonic time for measuring and for timers; never part of a safety decision. */
#ifndef NEB_BASE_CLOCK_H
#define NEB_BASE_CLOCK_H

#include <stdint.h>

int64_t neb__now_ns(void);     /* monotonic */
double neb__thread_cpu(void);  /* seconds of processor time that the calling thread has used */
double neb__process_cpu(void); /* … that all threads of the process have */

static inline double neb__seconds_since(int64_t start_ns)
{
    return (double)(neb__now_ns() - start_ns) * 1e-9;
}

#endif
