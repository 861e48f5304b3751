/* driver.h (internal): the driver's thread: its queue of items, and the events that wait for the core.
 *
 * Every thread may put something into the queue, so the queue has a lock. It is a leaf: nothing else is
 * locked while it is held. Everything else here is the driver's alone, or read between two of its events (see
 * session.h). */
#ifndef NEB_RUN_DRIVER_H
#define NEB_RUN_DRIVER_H

#include "round/members.h"

#include <nebula/nebula.h>
#include <pthread.h>

enum neb_item_type {
    NEB_ITEM_MESSAGE,
    NEB_ITEM_PEER_UP,
    NEB_ITEM_PEER_DOWN,
    NEB_ITEM_SNAPSHOT, /* neb_step() has copied the cells that a capture wants */
    NEB_ITEM_OPERATOR,
    NEB_ITEM_FINISHED, /* this site makes no more steps */
    NEB_ITEM_LOSS,     /* held-out loss of the outer state */
    NEB_ITEM_FORK,     /* two rosters are signed for one epoch */
};

struct neb_item {
    struct neb_item *next;
    enum neb_item_type type;
    uint16_t peer;
    uint32_t kind, op;
    double value;
    uint8_t *bytes;
    size_t size;
};

enum { NEB_LANES = NEB_SITES_MAX + 1 };
struct neb_lane {
    struct neb_item *head, **tail;
    size_t bytes; /* that its items take */
    bool stalled; /* a message was turned away */
};

struct neb_queue {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct neb_lane lane[NEB_LANES];
    int turn;            /* the lane whose item was taken last */
    size_t items, bytes; /* of all lanes */
    bool stalled;        /* a message was turned away: the links wait to be resumed */
    uint64_t steps;      /* inner steps that the core has not heard of */
    uint64_t wake_steps; /* so many of them wake the driver at once; fewer wait for its next turn */
    bool closing;
};

/* The driver finds this at its turn. */
struct neb_turn {
    struct neb_item *item; /* or NULL */
    uint64_t steps;        /* made since the last turn */
    bool resume;           /* there is room again for messages that were turned away */
    bool stop;             /* the session is being closed, and nothing is left to do */
};

void neb__queue_init(struct neb_queue *q);
void neb__queue_free(struct neb_queue *q);
void neb__queue_post(struct neb_queue *q, struct neb_item *item); /* NULL is ignored */
/* True if a message of the site may come in. If not, or if it cannot be held, the links are resumed later. */
bool neb__queue_admits(struct neb_queue *q, uint16_t site, bool can_hold);
void neb__queue_stall(struct neb_queue *q);
void neb__queue_step(struct neb_queue *q);
void neb__queue_wake_at(struct neb_queue *q, uint64_t steps);
void neb__queue_close(struct neb_queue *q);
/* Waits for something to do, at most so many milliseconds. */
struct neb_turn neb__queue_take(struct neb_queue *q, int64_t wait_ms);
void neb__item_free(struct neb_item *item);

struct neb_pending_event;

/* finish.c */
struct neb_finishing {
    int64_t since;       /* ns: when this site had made its steps; 0: it has not */
    int64_t alone_since; /* ns: since when only sites that are away have not made theirs */
    int64_t said_at;     /* ns: when the log was told for whom this site waits */
    bool told;           /* the core knows that all have made theirs */
};

struct neb_driver {
    struct neb_queue queue;
    pthread_t thread;
    bool runs; /* under the session's lock */
    bool feeding;
    struct neb_pending_event *pending, **pending_last; /* events that wait for the actions before them */
    uint64_t found;                                    /* committed when this process began */
    bool ends;                     /* the session has ended once its last status is told */
    bool found_end;                /* the run had ended then; under the session's lock */
    bool leaves;                   /* asked to be removed from the run */
    int64_t orders_at, removed_at; /* ns: when orders.c looks again; when a removal was seen */
    int64_t lines_at;              /* ns: when the lines were last looked at */
    struct neb_finishing finishing;
};

/* driver.c */
struct neb_event;
/* Gives the event to the core, now or after the actions that are under way. */
void neb__session_feed(neb_session *s, struct neb_event *ev);
void *neb__session_driver(void *session);
void neb__session_halt(neb_session *s, const char *why);

/* messages.c: a message of a peer, on the driver's thread */
void neb__session_message(neb_session *s, const struct neb_item *i);

#endif
