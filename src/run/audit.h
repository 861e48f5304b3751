/* audit.h: a run checked from one site's folder by somebody who trusts nobody in it.
 *
 * The genesis and the chain of rosters are all that the auditor must know. Signatures, certificates, orders, updates and what
 * sites say of their privacy are checked against them. The folder is only read. A successful run owes a free. */
#ifndef NEB_RUN_AUDIT_H
#define NEB_RUN_AUDIT_H

#include "privacy/statement.h"
#include "round/record.h"
#include "run/run_folder.h"
#include "seal/roster.h"

enum { NEB_AUDIT_PROBLEMS = 64, NEB_AUDIT_TEXT = 200 };

struct neb_audit_site {
    bool member; /* in any epoch */
    char name[NEB_NAME_SIZE];
    uint64_t named, rejected; /* updates that records name; those of them that are not used */
    uint64_t seen;            /* … that are in the folder, so that their signatures could be checked */
    uint64_t steps, tokens, keys;
    uint64_t silent; /* seen, without a statement of privacy, although earlier ones had one */
    struct neb_privacy_sum privacy;
    enum neb_privacy_unit unit;
    bool guilty; /* a proof lies in the folder */
};

struct neb_audit {
    char run[NEB_RUN_NAME_SIZE];
    struct neb_hash genesis; /* of the run */
    struct neb_hash head;    /* hash of the last record */
    uint64_t records, rounds, rosters, forced, orders, epochs;
    uint64_t certificates, certified; /* valid ones; the last record that one of them covers */
    uint64_t rejected;
    bool ended;
    bool replayed; /* all updates are there: the state was computed again */
    struct neb_hash root;
    struct neb_audit_site site[NEB_SITES_MAX];
    uint64_t problems; /* all of them */
    char problem[NEB_AUDIT_PROBLEMS][NEB_AUDIT_TEXT];
};

/* roster: a file with the chain that the auditor trusts; NULL: that of the folder. run: its name; NULL: the only or last one.
 * NEB_OK: the audit was made, whatever it found.
 *   NEB_ERR_NOTFOUND, NEB_ERR_CORRUPT, NEB_ERR_AUTH (the roster), NEB_ERR_BUSY, NEB_ERR_IO, NEB_ERR_NOMEM */
neb_status neb__run_audit(const char *folder, const char *roster, const char *run, struct neb_audit **out);

/* The members with which a run's log begins, by its chain of rosters. */
neb_status neb__members_at_beginning(const struct neb_chain *chain, struct neb_members *out);

#endif
