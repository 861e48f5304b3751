/* manual.h: the man pages: one of the program, one of each verb, one of the job file. */
#ifndef NEB_CLI_MANUAL_H
#define NEB_CLI_MANUAL_H

#include "cli/verb.h"

void neb__manual_program(FILE *to);                        /* nebula-i(1) */
void neb__manual_verb(const struct neb_verb *v, FILE *to); /* nebula-i-VERB(1) */
void neb__manual_job(FILE *to);                            /* nebula-i-job(5) */

/* The tables of reference.h as Markdown, as docs/manual.md has them. */
void neb__manual_tables(FILE *to);

#endif
