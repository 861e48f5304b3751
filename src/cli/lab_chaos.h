/* lab_chaos.h: faults in a laboratory, one after the other, drawn from a seed. */
#ifndef NEB_CLI_LAB_CHAOS_H
#define NEB_CLI_LAB_CHAOS_H

#include "cli/lab_processes.h"

enum { NEB_CHAOS_KINDS = 7 };

struct neb_chaos_fault {
    double from, to; /* seconds since the sites were started */
    double lasts;    /* seconds, by the plan */
    int kind, site;
    bool failed; /* it is in the plan and could not be made: it does not count */
};

struct neb_chaos;

extern const char *const neb__chaos_names[NEB_CHAOS_KINDS];

/* A fault every `every` seconds. kinds: names, separated by commas; NULL: all that this machine allows; the others are told.
 * folder[i]: where site i writes. Call it before the sites' commands are made. Owes a free, which takes the sites' disks away.
 *   NEB_ERR_CONFIG (a kind that does not exist, or not here), NEB_ERR_NOMEM, NEB_ERR_IO */
neb_status neb__chaos_create(struct neb_lab *lab, double every, uint64_t seed, const char *kinds,
                             char *const *folder, struct neb_chaos **out);
void neb__chaos_free(struct neb_chaos *c);

/* Whether every word of kinds is the name of a fault. NEB_ERR_CONFIG */
neb_status neb__chaos_check(const char *kinds);

/* When the sites have ended: their files are where they would be without disks of their own. */
void neb__chaos_unmount(struct neb_chaos *c);

/* Adds to a site's command what some faults need in its environment. NEB_ERR_NOMEM */
neb_status neb__chaos_prepare(const struct neb_chaos *c, int site, struct neb_site_command *command);

/* Carries out what is due; to be called often. Without effect on a site that has ended. A fault waits until the site that was
 * killed last trains again (trains(arg, site)): else faults that come faster than a site starts would be the end of the run. */
void neb__chaos_tick(struct neb_chaos *c, struct neb_lab_processes *sites,
                     bool (*trains)(void *arg, int site), void *arg);

/* The faults so far; the list is valid until the next tick. */
int neb__chaos_faults(const struct neb_chaos *c, const struct neb_chaos_fault **list);

#endif
