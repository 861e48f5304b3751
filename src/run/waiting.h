/* waiting.h (internal): the note that says for whom and for what this site waits.
 *
 * Whoever waits in the caller's name says so with neb__waiting_begin(), or in its stream. The driver's thread
 * finds out why, from the core, the lines and the streams, keeps the note up to date and prints it once. So
 * nothing that waits has a message of its own. All of it is under the session's lock. */
#ifndef NEB_RUN_WAITING_H
#define NEB_RUN_WAITING_H

#include "round/round.h"

#include <nebula/nebula.h>

/* The reasons besides those of the core (enum neb_wait). */
enum neb_wait_beside {
    NEB_WAIT_JOB = 32, /* another site must say that it runs the same job */
    NEB_WAIT_TARGET,   /* the others still train */
    NEB_WAIT_ITEMS,    /* a stream: the next items */
    NEB_WAIT_CREDIT,   /* a stream: the other site has no room for more items */
    NEB_WAIT_KEPT,     /* a stream: the other site must have its items in a checkpoint */
    NEB_WAIT_FINISH,   /* a stream: the other site must hear that this one is done */
    NEB_WAIT_BYE,      /* this site is done; a connected one still takes in the end */
};

enum neb_waiter {
    NEB_WAITER_NONE,
    NEB_WAITER_START, /* neb_session_start() */
    NEB_WAITER_STEP,  /* neb_step(): paused */
    NEB_WAITER_IDLE,  /* neb_step_within() without steps */
    NEB_WAITER_CLOSE, /* neb_session_close(): for sites that lack the end */
};

/* How fast a count grows, from one look to another. */
struct neb_growth {
    int64_t value, at; /* ns */
    double rate;       /* a second */
};

struct neb_waiting {
    /* said by the caller's thread */
    enum neb_waiter who;
    bool inside;  /* it waits right now; else it was told to come back */
    int64_t seen; /* ns: when it last waited */
    /* the note: found by the driver */
    int what;      /* enum neb_wait or neb_wait_beside; NEB_WAIT_NOTHING: this site does not wait */
    int64_t since; /* ns: this site waits */
    int64_t same;  /* ns: … for the same reason */
    int64_t last;  /* ns: when it last waited */
    uint64_t said; /* bits of the reasons that were said as a line since then */
    char for_whom[96], text[280];
    int64_t bytes;  /* left; below 0: not known */
    double seconds; /* left; below 0: not known */
    /* the driver's alone */
    int64_t looked; /* ns */
    struct neb_growth tokens, received;
};

/* The lock is held. `again`: the caller is told to come back. */
void neb__waiting_begin(neb_session *s, enum neb_waiter who);
void neb__waiting_end(neb_session *s, bool again);

/* On the driver's thread, once a turn; `busy` is held. */
void neb__waiting_look(neb_session *s);

/* Sets what a status has of it; the lock is held. */
void neb__waiting_status(const neb_session *s, struct neb_session_status *out);

#endif
