/* gate_life.h: whether the first rank, a process of this machine, still does something.
 *
 * An evaluation, a checkpoint or an export may take any time, so no limit of time fits them. But a process that works
 * uses the CPU, also while it waits for a disk or a GPU; one that is stopped or hangs does not. */
#ifndef NEB_TRAIN_GATE_LIFE_H
#define NEB_TRAIN_GATE_LIFE_H

#include <stdint.h>

struct neb_gate_life {
    int pid;        /* 0: not known */
    int64_t looked; /* when */
    int64_t moved;  /* when it had last used the CPU */
    uint64_t used;  /* ticks */
};

/* The process at the other end of the socket. */
void neb__gate_life_begin(struct neb_gate_life *l, int socket);
/* Seconds since the process used the CPU; 0: it does, or nothing is known of it. Looks once a second. */
double neb__gate_life_still(struct neb_gate_life *l);
/* An order begins: what was before does not count. */
void neb__gate_life_reset(struct neb_gate_life *l);

#endif
