/* link_sides.h: the two sides of the link benchmark: our own nodes, and iperf3. */
#ifndef NEB_BENCH_LINK_SIDES_H
#define NEB_BENCH_LINK_SIDES_H

#include "net/lab/lab.h"
#include "seal/roster.h"

#include <stdint.h>

enum { NEB_BENCH_DELAYS_MAX = 1024 };

/* Whole seconds, as iperf3 takes them. */
struct neb_link_plan {
    double warm, time, control;
    const struct neb_link_host *host; /* the two reach each other through it; NULL: directly */
};

/* A relay host in a site of the laboratory. A successful start owes an end. */
struct neb_link_host {
    struct neb_key *key;
    char place[64], address[NEB_ADDRESS_SIZE];
    int handle;
};
neb_status neb__link_host_start(struct neb_lab *lab, int site, struct neb_link_host *host);
void neb__link_host_end(struct neb_lab *lab, struct neb_link_host *host);

enum neb_bench_phase { NEB_BENCH_WARMING, NEB_BENCH_MEASURING, NEB_BENCH_PROBING, NEB_BENCH_OVER };

/* Shared by the processes of one measurement. */
struct neb_link_result {
    volatile enum neb_bench_phase phase;
    double seconds;
    uint64_t bytes;
    int stripes;
    double cpu;      /* seconds, of both ends */
    double host_cpu; /* of the relay host */
    int delays;
    double delay[NEB_BENCH_DELAYS_MAX];
    double loss;
};

/* Runs two nodes of ours; site 0 sends to site 1. `r` lies in memory that processes share. 0: success. */
int neb__link_run(struct neb_lab *lab, const struct neb_link_plan *plan, int stripes,
                  struct neb_link_result *r);

/* Runs iperf3 the same way. All 0: it could not run (perhaps it is not installed). */
struct neb_iperf_result {
    double bps, cpu; /* payload in bits per second; CPU seconds of both its ends per GB */
};
struct neb_iperf_result neb__iperf_run(struct neb_lab *lab, const struct neb_link_plan *plan, int streams);

#endif
