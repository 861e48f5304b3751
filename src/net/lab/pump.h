/* pump.h (inside the laboratory): the thread between the devices and the packet path. */
#ifndef NEB_NET_LAB_PUMP_H
#define NEB_NET_LAB_PUMP_H

#include "net/lab/lab.h"
#include "net/lab/tun.h"
#include "net/lab/packet_path.h"

struct neb_pump;

#define NEB_LAB_SUBNET 0x0a4d0000u /* 10.77.0.0/24: site i has .(i + 1) */

/* Keeps `tun` (cfg->sites of them) but does not own it. Success owes a stop. */
neb_status neb__pump_start(const struct neb_lab_config *cfg, const struct neb_tun *tun,
                           struct neb_pump **out);
void neb__pump_stop(struct neb_pump *p);

/* Returns the packet path, locked against the thread until unlock. */
struct neb_packet_path *neb__pump_lock(struct neb_pump *p);
void neb__pump_unlock(struct neb_pump *p);
double neb__pump_cpu_seconds(struct neb_pump *p);

#endif
