/* gate_channel.h: the channel between a site's gateway and its first rank: a socket of this machine.
 *
 * The gateway makes a folder that only its user can enter, with the socket and a secret of this start, and names it in
 * the environment of the ranks. The first rank shows the secret. Then the folder is gone. Both ends are one
 * program, so messages are plain structs; a length is checked all the same. */
#ifndef NEB_TRAIN_GATE_CHANNEL_H
#define NEB_TRAIN_GATE_CHANNEL_H

#include "base/status.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

enum { NEB_GATE_SECRET = 32 };

struct neb_gate_channel {
    int fd;       /* -1: nobody is there */
    int listener; /* the gateway's, until the rank is there; else -1 */
    char dir[PATH_MAX];
    unsigned char secret[NEB_GATE_SECRET];
};

/* The gateway: makes the folder and sets the environment for the ranks. Owes a close. */
neb_status neb__gate_channel_offer(struct neb_gate_channel *c);
/* Takes the rank's connection if it is there. *there: it is, and it knew the secret. */
neb_status neb__gate_channel_accept(struct neb_gate_channel *c, bool *there);

/* Whether a gateway started this process. */
bool neb__gate_channel_offered(void);
/* The first rank. NEB_ERR_NOTFOUND: the folder is not here, so this is another machine than the gateway's */
neb_status neb__gate_channel_connect(struct neb_gate_channel *c);
void neb__gate_channel_close(struct neb_gate_channel *c);

/* All of the bytes. pass: a descriptor that goes along, or -1. NEB_ERR_PEER (quiet): the other end is gone */
neb_status neb__gate_channel_send(struct neb_gate_channel *c, const void *bytes, size_t n, int pass);
/* The same of many bytes to an end that may have stopped: calls turn(arg) some times a second while there is no room. */
neb_status neb__gate_channel_send_many(struct neb_gate_channel *c, const void *bytes, size_t n,
                                       neb_status (*turn)(void *), void *arg);
/* Calls turn(arg) some times a second while it waits; an error of turn() is returned. passed NULL: no descriptor is
 * expected; else *passed is one, or -1. */
neb_status neb__gate_channel_receive(struct neb_gate_channel *c, void *bytes, size_t n, int *passed,
                                     neb_status (*turn)(void *), void *arg);

#endif
