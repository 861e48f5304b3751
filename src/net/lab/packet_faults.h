/* packet_faults.h (inside the laboratory): decides the fate of the k-th packet of a line. */
#ifndef NEB_NET_LAB_PACKET_FAULTS_H
#define NEB_NET_LAB_PACKET_FAULTS_H

#include "net/lab/lab.h"

struct neb_packet_faults {
    uint64_t key, count; /* packets so far */
    bool bursting;
};

struct neb_fate {
    bool lost, corrupt, held;
    int64_t delay; /* ns on the line, jitter included */
};

void neb__packet_faults_init(struct neb_packet_faults *c, uint64_t seed, int from, int to);

/* Decides for the next packet, which enters the line at `now` (ns). */
void neb__packet_faults_draw(struct neb_packet_faults *c, const struct neb_lab_line *line, int64_t now,
                             struct neb_fate *out);

/* Returns the least time (ns) that a packet takes over the line. */
int64_t neb__packet_faults_least_delay(const struct neb_lab_line *line);

#endif
