/* at_exit.c: sessions that are still open when their process exits.
 *
 * exit() runs handlers while every other thread goes on, the one registered last first. OpenSSL's handler frees
 * what the links' thread works with. A session uses OpenSSL before its threads start, so OpenSSL's handler is
 * registered by then. Ours is registered after it and therefore runs before it: it stops the threads of every
 * open session, which says goodbye to the other sites, and leaves the memory to the system. The training loop's
 * own thread may still be in neb_step(), so nothing is freed.
 *
 * A child made by fork() has a copy of the list and none of the threads: it leaves the sessions alone. _exit()
 * and signals run no handlers, and need none. */
#include "run/session.h"

#include <stdlib.h>
#include <unistd.h>

/* `lock` is held while a session is being closed, so that a process that exits meanwhile waits for it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static neb_session *open_sessions;
static _Atomic pid_t owner; /* 0: the handler is not registered yet */
static bool exiting;

static void stop_all(void)
{
    if (owner != getpid()) return;
    pthread_mutex_lock(&lock);
    exiting = true;
    for (neb_session *s = open_sessions; s; s = s->next_open) neb__session_stop(s);
    pthread_mutex_unlock(&lock);
}

/* The lock is held. A child that opens sessions of its own inherits the handler, not the parent's sessions. */
static bool take_over(void)
{
    if (owner == getpid()) return true;
    if (!owner && atexit(stop_all)) return false;
    open_sessions = NULL;
    owner = getpid();
    return true;
}

neb_status neb__exit_watch(neb_session *s)
{
    pthread_mutex_lock(&lock);
    bool watched = take_over() && !exiting;
    if (watched) {
        s->next_open = open_sessions;
        open_sessions = s;
    }
    pthread_mutex_unlock(&lock);
    return watched ? NEB_OK : neb__fail(NEB_ERR_STATE, "a session cannot start while the process exits");
}

static void forget(const neb_session *s)
{
    neb_session **at = &open_sessions;
    while (*at && *at != s) at = &(*at)->next_open;
    if (*at) *at = s->next_open;
}

bool neb__exit_close_begin(neb_session *s)
{
    if (s->pid != getpid()) return false;
    pthread_mutex_lock(&lock);
    if (!exiting) {
        forget(s);
        return true;
    }
    pthread_mutex_unlock(&lock);
    return false;
}

void neb__exit_close_end(void)
{
    pthread_mutex_unlock(&lock);
}
