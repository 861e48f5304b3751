/* watch_loop.c: looks, tells, sleeps; ends in order when a signal asks for it. */
#include "cli/watch_loop.h"

#include <math.h>
#include <signal.h>
#include <time.h>

static volatile sig_atomic_t ended;

static void end(int signal)
{
    (void)signal;
    ended = 1;
}

static void catch_signals(void)
{
    const struct sigaction a = {.sa_handler = end};
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGHUP, &a, NULL);
}

static void sleep_for(double seconds)
{
    struct timespec t = {.tv_sec = (time_t)seconds, .tv_nsec = (long)(fmod(seconds, 1) * 1e9)};
    nanosleep(&t, NULL); /* a signal ends it */
}

neb_status neb__watch_serve(struct neb_serve *s, const struct neb_watch_options *o)
{
    (void)o;
    catch_signals();
    while (!ended) sleep_for(neb__serve_tick(s));
    return NEB_OK;
}
