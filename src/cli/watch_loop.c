/* watch_loop.c: looks, tells, sleeps; ends in order when a signal asks for it. */
#include "cli/watch_loop.h"
#include "base/mem.h"
#include "cli/watch_alert.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

static volatile sig_atomic_t ended;

static void end(int signal)
{
    (void)signal;
    ended = 1;
}

void neb__watch_catch_signals(void)
{
    const struct sigaction a = {.sa_handler = end};
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGHUP, &a, NULL);
}

bool neb__watch_ended(void)
{
    return ended;
}

static void sleep_for(double seconds)
{
    struct timespec t = {.tv_sec = (time_t)seconds, .tv_nsec = (long)(fmod(seconds, 1) * 1e9)};
    nanosleep(&t, NULL); /* a signal ends it */
}

struct telling {
    const char *to, *job;
};

static void tell(void *arg, const struct neb_alert *alert, bool begins)
{
    const struct telling *t = arg;
    neb__watch_alert(t->to, t->job, alert, begins);
}

neb_status neb__watch_serve(struct neb_serve *s, const struct neb_watch_options *o,
                            struct neb_watch_orders *orders)
{
    struct neb_alerts *alerts = NEB_NEW(struct neb_alerts);
    if (!alerts) return neb__fail(NEB_ERR_NOMEM, "out of memory for the alerts");
    const char *to = o->alert && *o->alert ? o->alert : getenv("NEBULA_WATCH_ALERT");
    alerts->rules = (struct neb_alert_rules){.stalled = o->stalled, .disk = (double)o->disk};
    neb__watch_catch_signals();
    while (!ended) {
        double wait = neb__serve_tick(s);
        const struct neb_view *v = neb__serve_view(s);
        struct telling t = {to, v->job};
        if (v->n) neb__alerts_check(alerts, v, tell, &t);
        neb__watch_orders_look(orders);
        sleep_for(wait);
    }
    neb__free(alerts);
    return NEB_OK;
}
