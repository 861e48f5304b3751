/* proxy_dial.h: one connection through a proxy, for a program that does nothing else meanwhile. */
#ifndef NEB_NET_PROXY_DIAL_H
#define NEB_NET_PROXY_DIAL_H

#include "net/way.h"

/* A connected socket, which the caller closes. NEB_ERR_NET, NEB_ERR_PROTOCOL, NEB_ERR_INVALID, NEB_ERR_TIMEOUT; not logged. */
neb_status neb__proxy_dial(const struct neb_proxy *p, const char *host, uint16_t port, double seconds,
                           int *fd);

#endif
