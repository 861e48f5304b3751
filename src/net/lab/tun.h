/* tun.h (inside the laboratory): a network namespace with one TUN device in it. */
#ifndef NEB_NET_LAB_TUN_H
#define NEB_NET_LAB_TUN_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct neb_tun {
    int fd; /* the device: packets of the site come out, packets for it go in */
    int ns; /* the namespace */
};

/* Makes the calling process root of a new user namespace, its user and group unchanged, and moves it to a new network
 * namespace with loopback alone: coming back to one that belongs to others would not be allowed. NEB_ERR_UNSUPPORTED. */
neb_status neb__userns_enter(void);

/* The calling thread's network namespace, for coming back. */
neb_status neb__netns_self(int *out);
neb_status neb__netns_enter(int ns);

/* A new namespace with loopback and the device `wan0` up, address `ip`/24 (host order). The calling thread stays where
 * it was. Both descriptors are close-on-exec. Owes a close of both. NEB_ERR_UNSUPPORTED: not allowed here. */
neb_status neb__tun_open(uint32_t ip, int mtu, bool offload, struct neb_tun *out);

#endif
