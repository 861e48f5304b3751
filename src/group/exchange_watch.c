/* exchange_watch.c: a thread that sees when an exchange of devices does not end.
 *
 * The main thread cannot see it: it has enqueued the exchange long ago and waits for the device, or has gone on. The
 * device counts the exchanges that it has begun and ended. Every half second this thread looks at these counts and
 * writes the first one where the other ranks of the machine can read it. An exchange that makes no progress for the
 * group's timeout waits for a rank that has not begun it. If that rank's host makes progress (its beat moves), the
 * patience begins anew; if not, it is stuck or gone, and is named. Meanwhile this thread beats for its own rank, in all of its groups:
 * who waits for another one is not stuck.
 *
 * Then the communicators are aborted, by a thread of its own, since an abort may hang, too. That ends the kernels that
 * wait, and the main thread finds its groups broken. A process whose main thread does not come back within GRACE
 * seconds is ended: mpirun and the gateway do the rest. */
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "group/group_internal.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LOOK_MS = 500, GRACE = 15, EXIT_LOST = 75 /* NEB_EXIT_RANK_LOST */ };

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread, ender;
    bool running, stop, ending;
    int64_t ending_since;
    struct neb_group *list; /* those whose devices exchange by themselves */
} watch = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

/* ---- ending ------------------------------------------------------------------------------------------------ */

static void *end_all(void *arg)
{
    (void)arg;
    for (struct neb_group *g = watch.list; g; g = g->device.next)
        g->device.ops->comm_abort(g->device.ctx, g->device.comm);
    return NULL;
}

static void abort_all(void)
{
    if (watch.ending || !watch.list) return;
    watch.ending = true;
    watch.ending_since = neb__now_ns();
    if (pthread_create(&watch.ender, NULL, end_all, NULL)) _exit(EXIT_LOST);
}

static _Thread_local bool watches; /* this is the watching thread */

void neb__exchanges_abort(void)
{
    if (watches) {
        abort_all(); /* it has the lock */
        return;
    }
    pthread_mutex_lock(&watch.lock);
    abort_all();
    pthread_mutex_unlock(&watch.lock);
}

/* ---- looking ----------------------------------------------------------------------------------------------- */

/* Grows whenever the exchange gets on: here, or because another rank has come to it. */
static uint64_t progress(const struct neb_group *g, const struct neb_comm_state *s)
{
    uint64_t sum = s->begun + s->ended;
    for (int r = 0; g->window && r < g->size; r++)
        if (r != g->rank) sum += neb__window_facts(g, r).exchanges;
    return sum;
}

static void begin_patience(struct neb_group *g, const struct neb_comm_state *s)
{
    g->device.seen = progress(g, s);
    g->device.since = neb__now_ns();
    for (int r = 0; g->window && r < g->size; r++) g->device.beats[r] = neb__window_facts(g, r).beat;
}

static void say_stuck(struct neb_group *g)
{
    snprintf(g->why, sizeof g->why, "rank %d of %d has waited %.0f s in an exchange of the GPUs",
             neb__group_site(g)->rank, neb__group_site(g)->size, g->timeout_s);
    neb__group_break(g);
    neb__fail(NEB_ERR_PEER,
              "%s: a rank, a GPU or the line between them is stuck (look at the rank whose log does not "
              "say this)",
              g->why);
}

/* An exchange has made no progress for long. */
static void find_stuck(struct neb_group *g, const struct neb_comm_state *s)
{
    int late = -1;
    for (int r = 0; g->window && r < g->size; r++) {
        struct neb_rank_facts f = neb__window_facts(g, r);
        if (r == g->rank || f.exchanges >= s->begun) continue;
        if (f.alive && (f.beat != g->device.beats[r] || f.busy)) { /* it comes */
            begin_patience(g, s);
            return;
        }
        if (late < 0) late = r;
    }
    char how[96];
    snprintf(how, sizeof how, "has not come to an exchange of the GPUs for %.0f s: it is stuck or gone",
             g->timeout_s);
    if (late >= 0)
        neb__window_lost(g, late, how);
    else
        say_stuck(g);
}

static void look(struct neb_group *g)
{
    struct neb_comm_state s = {0};
    if (g->broken || g->device.ops->comm_state(g->device.ctx, g->device.comm, &s) != NEB_OK) return;
    if (s.status != NEB_OK) {
        snprintf(g->why, sizeof g->why, "rank %d of %d cannot exchange values any more: %.60s",
                 neb__group_site(g)->rank, neb__group_site(g)->size, s.why);
        neb__group_break(g);
        neb__fail(s.status, "%s", g->why);
        return;
    }
    if (g->window) neb__window_publish(g, s.begun);
    const bool waits = s.begun > s.ended;
    if (!waits || progress(g, &s) != g->device.seen) {
        begin_patience(g, &s);
        if (!waits) return;
    }
    for (struct neb_group *x = watch.list; x; x = x->device.next)
        if (x->window) neb__window_beat(x);
    struct neb_group *all = g;
    while (all->parent) all = all->parent;
    if (all->window) neb__window_beat(all);
    int gone = g->window ? neb__window_given_up(g) : -1;
    if (gone >= 0 && gone != g->rank)
        neb__window_lost(g, gone, "does not answer; another rank has given it up");
    else if (neb__seconds_since(g->device.since) > g->timeout_s)
        find_stuck(g, &s);
}

static void *watching(void *arg)
{
    (void)arg;
    watches = true;
    pthread_mutex_lock(&watch.lock);
    while (!watch.stop) {
        struct timespec at;
        clock_gettime(CLOCK_REALTIME, &at);
        at.tv_nsec += LOOK_MS * 1000000L;
        at.tv_sec += at.tv_nsec / 1000000000L;
        at.tv_nsec %= 1000000000L;
        pthread_cond_timedwait(&watch.changed, &watch.lock, &at);
        for (struct neb_group *g = watch.list; g && !watch.stop && !watch.ending; g = g->device.next) look(g);
        if (!watch.stop && watch.ending && neb__seconds_since(watch.ending_since) > GRACE) {
            neb__log(NEB_LOG_ERROR, "the device does not come back: this process ends");
            _exit(EXIT_LOST);
        }
    }
    pthread_mutex_unlock(&watch.lock);
    return NULL;
}

/* ---- the list ---------------------------------------------------------------------------------------------- */

neb_status neb__exchange_watch(struct neb_group *g)
{
    g->device.beats = NEB_NEW_ARRAY(uint64_t, (size_t)g->size);
    if (!g->device.beats) return neb__fail(NEB_ERR_NOMEM, "out of memory for a group of ranks");
    neb_status status = NEB_OK;
    pthread_mutex_lock(&watch.lock);
    begin_patience(g, &(struct neb_comm_state){0});
    g->device.next = watch.list;
    watch.list = g;
    g->device.watched = true;
    if (!watch.running) {
        watch.stop = false;
        if (pthread_create(&watch.thread, NULL, watching, NULL))
            status = neb__fail(NEB_ERR_NOMEM,
                               "the thread that watches the exchanges of the ranks cannot be started");
        else
            watch.running = true;
    }
    pthread_mutex_unlock(&watch.lock);
    return status;
}

static void end_thread(void)
{
    watch.stop = true;
    pthread_cond_signal(&watch.changed);
    pthread_mutex_unlock(&watch.lock);
    pthread_join(watch.thread, NULL);
    pthread_mutex_lock(&watch.lock);
    watch.running = false;
}

void neb__exchange_unwatch(struct neb_group *g)
{
    if (!g->device.watched) return;
    pthread_mutex_lock(&watch.lock); /* from here to the list's change no other end begins */
    bool ending = watch.ending;
    if (ending) {
        pthread_mutex_unlock(&watch.lock);
        pthread_join(watch.ender, NULL); /* the watching thread sees that it does not take for ever */
        pthread_mutex_lock(&watch.lock);
    }
    struct neb_group **at = &watch.list;
    while (*at && *at != g) at = &(*at)->device.next;
    if (*at) *at = g->device.next;
    if (ending) watch.list = NULL; /* all are aborted: no other one is to be joined for */
    if (!watch.list && watch.running) end_thread();
    if (!watch.list) watch.ending = false;
    pthread_mutex_unlock(&watch.lock);
    neb__free(g->device.beats);
    g->device.beats = NULL;
    g->device.watched = false;
}
