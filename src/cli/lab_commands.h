/* lab_commands.h: the command of each site of a laboratory: `nebula-i train`, or a program of the user's. */
#ifndef NEB_CLI_LAB_COMMANDS_H
#define NEB_CLI_LAB_COMMANDS_H

#include "job/job.h"
#include "net/lab/lab.h"

struct neb_site_command {
    char **argv;   /* ended by NULL */
    char **env;    /* variables beside those of this process, ended by NULL; NULL: none */
    bool borrowed; /* argv belongs to the caller */
};

/* What a laboratory's sites have in common. */
struct neb_lab_plan {
    const struct neb_job *job;
    struct neb_lab *lab;
    char **words; /* the job file and what the command line changes; n of them */
    int n, port;
    bool apart; /* every site trains alone */
};

/* Each makes the command of site i and owes a free, whatever it returns. NEB_ERR_NOMEM; NEB_ERR_IO: no absolute path. */
neb_status neb__lab_command_train(const struct neb_lab_plan *p, int i, struct neb_site_command *out);
neb_status neb__lab_command_script(const struct neb_lab_plan *p, int i, char **argv,
                                   struct neb_site_command *out);
void neb__site_command_free(struct neb_site_command *c);

void neb__lab_cache(const struct neb_job *job, char *out, size_t size); /* the folder of the tokens */
int64_t neb__lab_threads(const struct neb_job *job);                    /* of a site */

#endif
