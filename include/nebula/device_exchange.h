/* device_exchange.h: the arguments of the slots by which processes exchange the memory of their devices. Part of
 * nebula/device.h, which states the rules.
 *
 * Processes that compute together form a team of ranks. Each of them opens one end of it: a comm. The program
 * brings the id that the first rank made to the others. All ranks make the same exchanges in the same order; an
 * exchange is work of the compute stream like any other, and a recording may contain it. Afterwards all ranks have
 * the same bits of what they share. */
#ifndef NEBULA_DEVICE_EXCHANGE_H
#define NEBULA_DEVICE_EXCHANGE_H

#include <nebula/device_types.h>
#include <nebula/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What this process could open a comm with. */
struct neb_comm_facts {
    char library[48]; /* "NCCL 2.30.7" */
    uint64_t version; /* ranks with different versions do not understand each other */
    uint64_t device;  /* a number of this device that no other one in the world has */
    int shares;       /* 1: ranks may compute on one device; `sharing` says what they need */
    char sharing[160];
};

struct neb_comm_id {
    unsigned char bytes[256];
};

struct neb_comm_place {
    int rank, size;
    struct neb_comm_id id;
    double timeout_s; /* for the others to come */
};

enum neb_exchange_op {
    NEB_EXCHANGE_SUM,         /* every rank gets the sums */
    NEB_EXCHANGE_SUM_SCATTER, /* rank r gets the sums of [edge[r], edge[r + 1]); the rest is undefined afterwards */
    NEB_EXCHANGE_GATHER,    /* rank r has [edge[r], edge[r + 1]); every rank gets all */
    NEB_EXCHANGE_BROADCAST, /* every rank gets those of rank `peer` */
    NEB_EXCHANGE_SEND,      /* to rank `peer`, which receives as many */
    NEB_EXCHANGE_RECEIVE,
};

struct neb_comm_exchange {
    enum neb_exchange_op op;
    void *values; /* n of `type`, in place */
    int64_t n;
    const int64_t
        *edge; /* (ranks + 1), in values; host, not read after the call; NULL where it is not needed */
    int peer;
    neb_dtype type; /* F32 or BF16; copies: any */
};

/* How far this rank's stream is. An exchange that has begun and not ended waits for others, or moves bytes. */
struct neb_comm_state {
    uint64_t begun, ended;
    neb_status status; /* not NEB_OK: the comm has failed */
    char why[160];
};

#ifdef __cplusplus
}
#endif
#endif
