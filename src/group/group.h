/* group.h: the ranks of a site, and the operations that they do together.
 *
 * A rank is one process of a site. Ranks on one machine exchange values through memory that they share; sums
 * are taken in the order of the ranks, so they have the same bits every time. Ranks on several machines use
 * the engine that joined them (MPI). A group of one rank needs neither, and its operations do nothing.
 *
 * No operation waits for ever. A rank counts up its beat whenever it makes progress. A rank that waits for
 * another one looks at that rank's beat, and gives up when it has not moved for `timeout_s`: the message names
 * the rank, and the group is broken from then on. One thread makes all calls of a group, in the same order at
 * every rank. */
#ifndef NEB_GROUP_GROUP_H
#define NEB_GROUP_GROUP_H

#include "base/status.h"

#include <nebula/group.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NEB_GROUP_RANKS = 1024 };

struct neb_group;

/* A group of this process alone. */
neb_status neb__group_self(struct neb_group **out);
/* The group of all processes that were started together with this one.
 *   NEB_ERR_NOTFOUND  the plug-in is missing; the message says what to install
 *   NEB_ERR_VERSION, NEB_ERR_UNSUPPORTED, NEB_ERR_NOMEM */
neb_status neb__group_join(double timeout_s, struct neb_group **out);
/* The same with an engine that is already there. */
neb_status neb__group_with(const struct neb_group_engine *engine, double timeout_s, struct neb_group **out);
/* The ranks that give the same colour, in their present order. Owes its own close, before that of `g`. */
neb_status neb__group_split(struct neb_group *g, int color, struct neb_group **out);
void neb__group_close(struct neb_group *g); /* NULL is fine */

int neb__group_rank(const struct neb_group *g); /* NULL: 0 */
int neb__group_size(const struct neb_group *g); /* NULL: 1 */
/* Whether they are on several machines, where nobody sees another one's beat. */
bool neb__group_far(const struct neb_group *g);
/* How many of them are on this machine, and this rank's number among these. */
int neb__group_near(const struct neb_group *g);
int neb__group_place_near(const struct neb_group *g);
/* Whether mpirun or srun started this process together with others. */
bool neb__group_started(void);

/* The number of this rank among all ranks of the site. */
int neb__group_site_rank(const struct neb_group *g);

/* This rank makes progress, in this group and in all others of the site. Long computations call it, so that
 * nobody takes them for a hang. */
void neb__group_beat(struct neb_group *g);

/* This rank begins, or has ended, something that may take any time (waiting for another site, tokenising).
 * Until then the others wait for it without a limit, as long as its process lives. Ranks on several machines
 * cannot see that: there it is this rank that waits without a limit, so all of them must call it. */
void neb__group_busy(struct neb_group *g, bool busy);

/* This rank is about to wait, or has waited, for one that may be busy: on several machines it does so without a limit. The others go
 * on looking at its beat, so it is found if it is stopped while it waits. */
void neb__group_unhurried(struct neb_group *g, bool on);

/* ---- operations: g may be NULL, a group of one ----------------------------------------------------------- */

/* Every rank gets the sum, or the largest, of all ranks' values. */
neb_status neb__group_sum(struct neb_group *g, float *values, int64_t n);
neb_status neb__group_sum_doubles(struct neb_group *g, double *values, int64_t n);
neb_status neb__group_max(struct neb_group *g, int64_t *values, int64_t n);
/* Rank r gets the sum of the values [edge[r], edge[r + 1]); its other values are undefined afterwards. */
neb_status neb__group_sum_scatter(struct neb_group *g, float *values, const int64_t *edge);
/* Rank r has the values [edge[r], edge[r + 1]); afterwards every rank has all of them. */
neb_status neb__group_gather(struct neb_group *g, float *values, const int64_t *edge);
neb_status neb__group_gather_doubles(struct neb_group *g, double *values, const int64_t *edge);
/* Every rank gets the root's bytes. */
neb_status neb__group_broadcast(struct neb_group *g, void *bytes, size_t n, int root);
neb_status neb__group_barrier(struct neb_group *g);
/* From one rank to another; the other one receives as many bytes. */
neb_status neb__group_send(struct neb_group *g, const void *bytes, size_t n, int to);
neb_status neb__group_receive(struct neb_group *g, void *bytes, size_t n, int from);

/* Sums beside other work: begun here, and got on by every beat. The values are the sums after the join. Until then no rank reads or
 * writes them; all ranks begin the same sums in the same order. neb__group_sums_beside(): whether they get on by themselves
 * before the join. They do between machines. On one machine they would take the cores that compute. */
bool neb__group_sums_beside(const struct neb_group *g);
neb_status neb__group_sum_begin(struct neb_group *g, float *values, int64_t n);
neb_status neb__group_sum_join(struct neb_group *g);

/* A gather of bytes beside other work, in the same way. Nobody touches `bytes` before the join. *ticket 0: it is over already. */
neb_status neb__group_gather_begin(struct neb_group *g, void *bytes, const int64_t *edge, int *ticket);
neb_status neb__group_gather_join(struct neb_group *g, int ticket);

/* The worst status of all ranks. The ranks that are well say which rank is not. */
neb_status neb__group_agree(struct neb_group *g, neb_status status);

/* This rank cannot go on, in the middle of operations that the others expect. They end at once and name it. */
void neb__group_give_up(struct neb_group *g);

bool neb__group_broken(const struct neb_group *g); /* a rank was lost */
neb_status neb__group_usable(
    const struct neb_group *g); /* NEB_ERR_PEER: it is broken; the message names the rank */
const char *neb__group_why(const struct neb_group *g); /* names the rank; "": not known, or not broken */
void neb__group_break(struct neb_group *g); /* a rank cannot be trusted: no operation is tried again */
/* Ends all processes of the group. */
void neb__group_abort(struct neb_group *g, int code);

#endif
