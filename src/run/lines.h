/* lines.h (internal): the lines to the other sites as they are measured, and the updates that are on their
 * way.
 *
 * The links' thread measures and hears acknowledgements, the driver's sends and asks, the caller's tells how
 * long its steps take. So there is a lock; it is a leaf: nothing else is locked while it is held. */
#ifndef NEB_RUN_LINES_H
#define NEB_RUN_LINES_H

#include "net/net.h"
#include "run/quota.h"
#include "round/rate.h"
#include "round/round.h"

#include <pthread.h>

enum { NEB_PUSHES = 8, NEB_FLIGHTS = 512 };

/* One own update on its way: when it was pushed to the first peer, to how many it still goes. */
struct neb_update_push {
    uint64_t id;   /* 0: none */
    int64_t since; /* ns */
    double bytes;
    int left;
    bool waited; /* for a line that was down */
};

/* The bytes of an update, there once for all peers that it goes to. */
struct neb_shared {
    int refs; /* under the lines' lock */
    uint8_t bytes[];
};

/* An update that a peer has not acknowledged yet. */
struct neb_flight {
    bool used;
    uint16_t peer;
    struct neb_hash hash;
    struct neb_shared *shared;
    size_t size;
    bool asked_for;
};

/* A message of ours on its way: whether it is an update that the rate controller watches. */
struct neb_sending {
    int flight;    /* its place among the flights + 1; 0: none */
    uint64_t push; /* 0: no */
    int64_t since; /* ns */
    double bytes;
};

struct neb_lines {
    pthread_mutex_t lock;
    struct neb_line line[NEB_SITES_MAX];
    int64_t up_since[NEB_SITES_MAX];   /* ns: what was pushed before waited for the line, not on it */
    int64_t busy_until[NEB_SITES_MAX]; /* ns: the last acknowledgement of an update to this peer */
    double sum_bytes[NEB_SITES_MAX], sum_s[NEB_SITES_MAX]; /* updates acknowledged since the last decision */
    double goodput[NEB_SITES_MAX];                         /* bytes/s, of the newest update; 0: none yet */
    double sampled[NEB_SITES_MAX], sampled_out;            /* bytes/s told to the controller; 0: none yet */
    struct neb_update_push push[NEB_PUSHES];
    uint64_t next_push, current;
    struct neb_hash hash;          /* of the update `current` */
    uint64_t moved[NEB_SITES_MAX]; /* bytes_out at the last decision */
    int64_t all_until;             /* ns: when an update last reached everybody */
    double late_bytes, late_s; /* the newest that did, and how long it kept the lines busy; s 0: none since
                                    * the last decision */
    double step_s;             /* of one inner step, smoothed */
    double sent;               /* bytes of updates, for the hourly limit */
    struct neb_flight flights[NEB_FLIGHTS];
    struct {
        uint32_t cell;                       /* + 1; 0: none */
        int again;                           /* it was asked for again so many times meanwhile */
    } cells[NEB_SITES_MAX][NEB_CELLS_ASKED]; /* on their way to a peer */
};

void neb__lines_init(struct neb_lines *l);
void neb__lines_free(struct neb_lines *l);

/* A new value of an average that forgets. `before` 0: there was none. */
double neb__lines_smooth(double before, double seconds);

/* ---- what the threads tell ----------------------------------------------------------------------------- */
void neb__lines_came_up(struct neb_lines *l, uint16_t peer);
void neb__lines_measured(struct neb_lines *l, uint16_t peer, const struct neb_line *line);
void neb__lines_stepped(struct neb_lines *l, double seconds);
/* A new own update, which the rate controller watches: its pushes are counted until the last is
 * acknowledged. */
void neb__lines_watch(struct neb_lines *l, const struct neb_hash *hash, double bytes);
void neb__lines_pushed(struct neb_lines *l, const struct neb_sending *to);
void neb__lines_acked(struct neb_lines *l, const struct neb_sending *to, uint16_t peer, bool ok);

/* ---- what they ask ------------------------------------------------------------------------------------- */
struct neb_line neb__lines_get(struct neb_lines *l, uint16_t peer);
int neb__lines_up(struct neb_lines *l); /* how many lines are up */
double neb__lines_goodput(struct neb_lines *l,
                          uint16_t peer);       /* bytes/s by its newest update; 0: not known */
double neb__lines_slowest(struct neb_lines *l); /* bytes/s of the slowest that is up; 0: not known */
uint64_t neb__lines_watched(struct neb_lines *l, const struct neb_hash *hash); /* its push; 0: not watched */
/* Before a decision: the samples since the last one go to the controller; `in` gets members, rtt and step.
 * Gives the bytes of updates that were sent so far. */
double neb__lines_report(struct neb_lines *l, struct neb_rate *rate, struct neb_rate_input *in);

/* ---- updates on their way ------------------------------------------------------------------------------ */
/* The copy that is on its way to another peer, or a new one; NULL: no memory. */
struct neb_shared *neb__lines_share(struct neb_lines *l, const struct neb_hash *hash, const void *bytes,
                                    size_t n);
void neb__lines_unshare(struct neb_lines *l, struct neb_shared *shared);
/* Gives its place among the flights + 1. 0: no place is free, and the flight is not remembered. */
int neb__lines_take_off(struct neb_lines *l, const struct neb_flight *flight);
void neb__lines_land(struct neb_lines *l, int flight); /* 0: nothing */
bool neb__lines_under_way(struct neb_lines *l, uint16_t peer, const struct neb_hash *hash);
/* Whether a peer may have one more update on its way, of those that it asked for or of the others. */
bool neb__lines_has_room(struct neb_lines *l, uint16_t peer, bool asked_for);

/* ---- cells on their way -------------------------------------------------------------------------------- */
/* NEB_OK: the cell may go to the peer, and ends with neb__lines_cell_end(); NEB_ERR_EXISTS: it is on its way
 * already; NEB_ERR_LIMIT: too many are (both quiet). */
neb_status neb__lines_cell_begin(struct neb_lines *l, uint16_t peer, uint32_t cell);
void neb__lines_cell_end(struct neb_lines *l, uint16_t peer, uint32_t cell);

#endif
