/* completion.h: scripts with which a shell completes nebula-i's verbs, options, values and job keys. */
#ifndef NEB_CLI_COMPLETION_H
#define NEB_CLI_COMPLETION_H

#include "base/opts.h"
#include "cli/verb.h"

void neb__completion_bash(FILE *to);
void neb__completion_zsh(FILE *to);
void neb__completion_fish(FILE *to);

/* --- between the three ------------------------------------------------------------------------------------ */

/* Whose options a call of the verb takes: each part's, or the verb's own. */
bool neb__completion_by_part(const struct neb_verb *v);
void neb__completion_option(const struct neb_opt *o, FILE *to); /* its name, - for _ */

/* Calls `each` for the options that every call takes: "-h", "--help", what it does. `first`: those before a verb, too. */
void neb__completion_globals(bool first,
                             void (*each)(const char *brief, const char *full, const char *help, FILE *to),
                             FILE *to);

/* Calls `each` for every option of a verb or a part. */
void neb__completion_options(const struct neb_verb *v, void (*each)(const struct neb_opt *o, void *arg),
                             void *arg);
/* Calls `each` for every key of a job file that belongs to no list. */
void neb__completion_keys(void (*each)(const char *section, const struct neb_opt *o, void *arg), void *arg);

#endif
