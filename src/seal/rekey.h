/* rekey.h: a site gets a new key, and proves with both that it asked for it itself.
 *
 *     1. neb__rekey_request()   at the site: makes site.key.next, writes a request that both keys sign
 *     2. neb__rekey_check()     at the operator's: the request is this member's; the operator signs the epoch with the new key
 *     3. neb__rekey_take()      at the site: the roster has the new key, so it becomes the site's
 *
 * The operator's signature stays necessary. If a member could replace its key alone, a liar could sign two epochs of one number and
 * split the run. */
#ifndef NEB_SEAL_REKEY_H
#define NEB_SEAL_REKEY_H

#include "seal/roster.h"

/* A record of the run's log that the site has seen committed. The epoch with the new key names it, so that everybody knows the
 * run had begun before. index 0: there is none. */
struct neb_rekey_head {
    uint64_t index;
    struct neb_hash hash;
};

/* The folder must have a roster. A next key that is there already is used again. `out` gets one line of text.
 *   NEB_ERR_NOTFOUND: the site has not joined a run; NEB_ERR_IO, NEB_ERR_AUTH, NEB_ERR_NOMEM */
neb_status neb__rekey_request(const char *dir, const struct neb_rekey_head *head, struct neb_buf *out);

/* The text is hostile. `roster` gets a copy of the chain's newest roster with the new key; owes neb__roster_free(). `head`: as
 * the site said.
 *   NEB_ERR_CORRUPT: not a request; NEB_ERR_AUTH: of another run, of nobody in the roster, or not signed by both keys */
neb_status neb__rekey_check(const char *text, size_t n, const struct neb_chain *chain,
                            struct neb_roster *roster, struct neb_rekey_head *head);

/* Whether a member already has the key that the request asks for: `site`. */
bool neb__rekey_taken(const char *text, size_t n, const struct neb_chain *chain, uint16_t *site);

/* If the roster names the site with its next key, that key becomes the site's, and the old one is gone. Else nothing changes.
 * No process may run the site meanwhile. */
neb_status neb__rekey_take(const char *dir, const struct neb_chain *chain, bool *taken);

#endif
