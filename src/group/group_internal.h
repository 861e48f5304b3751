/* group_internal.h: a group's state, shared by the files of this folder.
 *
 *     group.c   opening, splitting, closing; each operation's way: nothing, shared memory or the engine
 *     load.c    the plug-in
 *     window.c  operations of ranks on one machine, through shared memory
 *     wait.c    operations of ranks on several machines, through the engine's requests
 *     rollcall.c  which of these ranks is stuck
 *     beside.c  sums and gathers of such ranks that go on while they compute
 *     channel.c messages between neighbours that nobody waits to send
 *     on_device.c, exchange_watch.c  values in the memory of devices
 */
#ifndef NEB_GROUP_GROUP_INTERNAL_H
#define NEB_GROUP_GROUP_INTERNAL_H

#include "group/group.h"

#include <nebula/device.h>
#include <stdatomic.h>

struct neb_window;
struct neb_roll;

/* The device of this rank, where its memory is not the host's (on_device.c). */
struct neb_group_device {
    const struct neb_device_ops *ops; /* NULL: not attached, or the CPU */
    void *ctx, *comm;                 /* comm NULL: values go through `stage` */
    void *stage;                      /* host */
    size_t stage_bytes;
    bool shared; /* two ranks or more compute on one device */
    /* exchange_watch.c: */
    struct neb_group *next;
    bool watched;
    uint64_t seen, *beats; /* (ranks) of the others, when the present exchange last made progress … */
    int64_t since;         /* … at this time */
};

enum { NEB_GATHERS = 4 };

/* Sums that were begun and not joined, in the order of all ranks (beside.c). */
struct neb_rank_sums {
    struct neb_rank_sum *list; /* [first, begun) are under way, [begun, n) wait for their turn */
    int first, begun, n, room;
    neb_status status; /* of those that were under way */
};

struct neb_group {
    const struct neb_group_engine *engine; /* NULL: one rank */
    void *ctx;
    struct neb_window *window; /* NULL: the ranks are on several machines */
    struct neb_roll *roll;     /* of the group of all ranks, if they are on several machines */
    int rank, size;
    double timeout_s;
    int unhurried;            /* how many things are under way for which this rank waits without a limit */
    atomic_bool broken;       /* an operation failed: none is tried again */
    char why[120];            /* it is broken; "": not known */
    struct neb_group *parent; /* of a split */
    struct neb_group *parts; /* of the group of all ranks: all that were split off, here and further down … */
    struct neb_group *next; /* … one behind the other: a beat counts in all of them */
    struct neb_group_device device;
    struct neb_rank_sums sums;
    void *gathers[NEB_GATHERS]; /* under way; ticket - 1 is the place */
};

/* group.c: the time by which patience is measured, ns. Tests have one of their own. */
extern int64_t (*neb__group_clock)(void);
double neb__group_since(int64_t ns); /* seconds */
/* All ranks of the site. */
const struct neb_group *neb__group_site(const struct neb_group *g);
neb_status neb__group_gather_bytes(struct neb_group *g, void *bytes, const int64_t *edge);

/* pretend.c: counts a sum of n values that ranks share out. */
bool neb__group_pretended(const struct neb_group *g);
neb_status neb__pretend_scatter(struct neb_group *g, int64_t n);

/* load.c */
neb_status neb__group_load(const struct neb_group_engine **out);

/* window.c. `memory` is zeroed, neb__window_bytes() long and seen by all ranks. */
size_t neb__window_bytes(int size);
neb_status neb__window_open(struct neb_group *g, void *memory);
void neb__window_close(struct neb_window *w);
void neb__window_beat(struct neb_group *g);
void neb__window_busy(struct neb_group *g, bool busy);
void neb__window_give_up(struct neb_group *g);
neb_status neb__window_barrier(struct neb_group *g);
/* Waits for rank `rank` until it has counted to `least`. */
neb_status neb__window_await(struct neb_group *g, int rank, const _Atomic uint64_t *count, uint64_t least);
neb_status neb__window_reduce(struct neb_group *g, void *values, int64_t n, neb_group_type type,
                              neb_group_op op);
neb_status neb__window_sum_scatter(struct neb_group *g, float *values, const int64_t *edge);
neb_status neb__window_gather(struct neb_group *g, void *bytes, const int64_t *edge);
neb_status neb__window_broadcast(struct neb_group *g, void *bytes, size_t n, int root);
neb_status neb__window_send(struct neb_group *g, const void *bytes, size_t n, int to);
neb_status neb__window_receive(struct neb_group *g, void *bytes, size_t n, int from);

/* For exchange_watch.c: what can be seen of a rank. */
struct neb_rank_facts {
    uint64_t beat, exchanges;
    bool busy, alive;
};
struct neb_rank_facts neb__window_facts(const struct neb_group *g, int rank);
void neb__window_publish(struct neb_group *g, uint64_t exchanges); /* how many this rank has begun */
int neb__window_given_up(const struct neb_group *g);               /* the rank, or -1 */
neb_status neb__window_lost(struct neb_group *g, int rank, const char *how);

/* exchange_watch.c */
neb_status neb__exchange_watch(struct neb_group *g);
void neb__exchange_unwatch(struct neb_group *g);
void neb__exchanges_abort(void); /* those of all groups: nobody waits for a rank that is lost */

/* rollcall.c. NULL: nothing happens. A beat answers questions of others. neb__roll_missing() writes the numbers of the ranks that have
 * not answered the last question, and returns how many they are. */
neb_status neb__roll_open(struct neb_group *g);
void neb__roll_close(struct neb_roll *roll);
void neb__roll_beat(struct neb_roll *roll);
void neb__roll_ask(struct neb_roll *roll);
int neb__roll_missing(const struct neb_roll *roll, char *names, size_t size);

/* beside.c: what is under way gets on. */
void neb__beside_advance(struct neb_group *g);
void neb__beside_free(struct neb_group *g);

/* wait.c: the operations through the engine. Each waits until its request is over, at most the timeout. */
neb_status neb__wait_reduce(struct neb_group *g, void *values, int64_t n, neb_group_type type,
                            neb_group_op op);
neb_status neb__wait_gather(struct neb_group *g, void *bytes, const int64_t *edge);
bool neb__wait_gathers_at_once(const struct neb_group *g, const int64_t *edge); /* one request is enough */
neb_status neb__wait_broadcast(struct neb_group *g, void *bytes, size_t n, int root);
neb_status neb__wait_send(struct neb_group *g, const void *bytes, size_t n, int to);
neb_status neb__wait_receive(struct neb_group *g, void *bytes, size_t n, int from);
neb_status neb__wait_request(struct neb_group *g, void *request, const char *what);

#endif
