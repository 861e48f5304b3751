/* site.h: a site's folder: its key, its roster, its lock and its incarnation.
 *
 *     site.key      the private key (0600)
 *     site.id       the public identity, one line
 *     roster        the run's genesis and epochs (roster.h), once the site has joined a run
 *     lock          held (flock) by the process that runs as the site
 *     incarnation   how often the site was opened; a newer incarnation displaces the links of an older one
 *
 * A successful open owes a close. */
#ifndef NEB_SEAL_SITE_H
#define NEB_SEAL_SITE_H

#include "seal/key.h"
#include "seal/roster.h"

struct neb_site {
    char *dir;
    char name[NEB_NAME_SIZE];
    struct neb_key *key;
    struct neb_public public;
    uint64_t incarnation; /* grows by one with every open, durable before the open returns */
    uint64_t boot;        /* random; tells two processes of one incarnation apart (a copied folder) */
    int lock;
};

/* Makes the folder and the key. NEB_ERR_EXISTS: the folder already holds a key; NEB_ERR_INVALID: the name is
 * not valid; NEB_ERR_IO. */
neb_status neb__site_init(const char *dir, const char *name, char identity[NEB_IDENTITY_SIZE]);

/* NEB_ERR_BUSY: another process runs as this site (the message names it); NEB_ERR_NOTFOUND, NEB_ERR_AUTH,
 * NEB_ERR_CORRUPT, NEB_ERR_IO. */
neb_status neb__site_open(const char *dir, struct neb_site **out);
void neb__site_close(struct neb_site *site); /* NULL is fine */

/* Reads only the public half. Takes no lock. */
neb_status neb__site_identity(const char *dir, char name[NEB_NAME_SIZE], struct neb_public *key);
/* Reads only the key, for an operator who signs. Takes no lock. */
neb_status neb__site_key(const char *dir, struct neb_key **out);

/* The roster file of the folder. NEB_ERR_NOTFOUND: the site has not joined a run. A save is atomic and
 * durable. */
neb_status neb__site_roster_load(const char *dir, struct neb_chain **out);
neb_status neb__site_roster_save(const char *dir, const struct neb_chain *chain);

#endif
