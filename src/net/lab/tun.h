/* tun.h (inside the laboratory): a network namespace with one TAP device in it. */
#ifndef NEB_NET_LAB_TUN_H
#define NEB_NET_LAB_TUN_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct neb_tun {
    int fd; /* the device: packets of the site come out, packets for it go in */
    int ns; /* the namespace */
};

/* Makes the calling process root of a new user namespace, with its user and group unchanged, and moves it to
 * a new network namespace that has only loopback, since it could not return to a namespace that belongs to
 * others. NEB_ERR_UNSUPPORTED. */
neb_status neb__userns_enter(void);

/* Opens the calling thread's network namespace, to return to it later. */
neb_status neb__netns_self(int *out);
neb_status neb__netns_enter(int ns);

/* Makes a new namespace in which loopback and the device `wan0` are up, with address `ip`/24 (host order).
 * The calling thread stays in its own. Both descriptors are close-on-exec, and the caller owes a close of
 * both. NEB_ERR_UNSUPPORTED: not allowed here. */
neb_status neb__tun_open(uint32_t ip, int mtu, bool offload, struct neb_tun *out);

#endif
