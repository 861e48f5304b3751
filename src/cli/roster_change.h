/* roster_change.h (internal): `nebula-i roster`, the parts that change a sealed roster. */
#ifndef NEB_CLI_ROSTER_CHANGE_H
#define NEB_CLI_ROSTER_CHANGE_H

#include "cli/verb.h"
#include "seal/roster.h"

#include <limits.h>

struct neb_roster_options {
    char *operator_, *job, *head, *influence, *quorum;
    int64_t votes, threshold;
    bool witness, learner, observer, force, replace;
};

neb_status neb__roster_admit(struct neb_call *call);
neb_status neb__roster_evict(struct neb_call *call);
neb_status neb__roster_rekey(struct neb_call *call);
neb_status neb__roster_operators(struct neb_call *call);

/* Shared by all parts. A member from an identity or folder, and addresses; the options say its role. */
neb_status neb__roster_member(const struct neb_roster_options *o, int argc, char **argv,
                              struct neb_member *m);
/* FILE, or the folder of a site that has joined; `file` gets the file's path. Success owes a neb__chain_free(). */
neb_status neb__roster_open(const char *path, char file[PATH_MAX], struct neb_chain **out);
void neb__roster_print_hash(const char *label, const struct neb_hash *h);

#endif
