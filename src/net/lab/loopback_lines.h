/* loopback_lines.h (inside the laboratory): mode relay, for a machine that does not allow namespaces. */
#ifndef NEB_NET_LAB_LOOPBACK_LINES_H
#define NEB_NET_LAB_LOOPBACK_LINES_H

#include "net/lab/lab.h"
#include "net/lab/packet_path.h"

struct neb_loopback;

/* Success owes a stop. NEB_ERR_BUSY: another process listens on one of the ports. */
neb_status neb__loopback_start(const struct neb_lab_config *cfg, struct neb_loopback **out);
void neb__loopback_stop(struct neb_loopback *r); /* NULL is fine */
const char *neb__loopback_address(struct neb_loopback *r, int viewer, int site);
struct neb_packet_path *neb__loopback_lock(struct neb_loopback *r);
void neb__loopback_unlock(struct neb_loopback *r);
double neb__loopback_cpu_seconds(struct neb_loopback *r);

#endif
