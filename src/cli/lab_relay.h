/* lab_relay.h: a relay host in a laboratory, at a site of its own behind those of the job. */
#ifndef NEB_CLI_LAB_RELAY_H
#define NEB_CLI_LAB_RELAY_H

#include "net/lab/lab.h"
#include "seal/roster.h"

#define NEB_LAB_RELAY_NAME "relay-host"

struct neb_lab_relay {
    int site, handle, log;
    char place[64];                 /* where it listens */
    char folder[1024];              /* OUT/relay-host */
    char address[NEB_ADDRESS_SIZE]; /* for rosters */
};

/* Makes its folder and key below `out` if they are missing. NEB_ERR_IO, NEB_ERR_INVALID: the path is too long */
neb_status neb__lab_relay_init(struct neb_lab_relay *r, struct neb_lab *lab, int site, int port,
                               const char *out);
/* A success owes an end. */
neb_status neb__lab_relay_start(struct neb_lab_relay *r, struct neb_lab *lab);
void neb__lab_relay_end(struct neb_lab_relay *r, struct neb_lab *lab);

#endif
