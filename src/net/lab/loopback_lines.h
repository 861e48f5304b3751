/* loopback_lines.h (inside the laboratory): the laboratory of a machine that allows no namespaces. */
#ifndef NEB_NET_LAB_LOOPBACK_LINES_H
#define NEB_NET_LAB_LOOPBACK_LINES_H

#include "net/lab/lab.h"
#include "net/lab/packet_path.h"

struct neb_relay;

/* Owes a stop. NEB_ERR_BUSY: somebody else listens on one of the ports. */
neb_status neb__relay_start(const struct neb_lab_config *cfg, struct neb_relay **out);
void neb__relay_stop(struct neb_relay *r); /* NULL is fine */
const char *neb__relay_address(struct neb_relay *r, int viewer, int site);
struct neb_wire *neb__relay_lock(struct neb_relay *r);
void neb__relay_unlock(struct neb_relay *r);
double neb__relay_cpu_seconds(struct neb_relay *r);

#endif
