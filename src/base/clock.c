/* clock.c: the monotonic clock, and the processor time of a thread. */
#include "base/clock.h"

#include <time.h>

int64_t neb__now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static double seconds_of(clockid_t clock)
{
    struct timespec ts;
    clock_gettime(clock, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

double neb__thread_cpu(void)
{
    return seconds_of(CLOCK_THREAD_CPUTIME_ID);
}

double neb__process_cpu(void)
{
    return seconds_of(CLOCK_PROCESS_CPUTIME_ID);
}
