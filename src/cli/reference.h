/* reference.h: what holds for the whole program, beside its verbs: exit statuses, options before the verb, environment, files.
 *
 * Each is one table. The program takes its exit statuses from it, and `nebula-i manual` makes the man pages and the tables of
 * docs/manual.md from it. */
#ifndef NEB_CLI_REFERENCE_H
#define NEB_CLI_REFERENCE_H

#include "base/status.h"

enum neb_exit {
    NEB_EXIT_DONE = 0,
    NEB_EXIT_FAILED = 1,
    NEB_EXIT_USAGE = 2,
    NEB_EXIT_UNANSWERED = 3,
    NEB_EXIT_REFUSED = 4,
    NEB_EXIT_DAMAGED = 5,
    NEB_EXIT_NO_ROOM = 6,
    NEB_EXIT_NOT_FINITE = 7,
    NEB_EXIT_IN_USE = 8,
    NEB_EXIT_SIGNAL = 128, /* and the signal's number */
};

/* The exit status of a program that ends with `status`. */
int neb__exit_of(neb_status status);

/* Ended by a row without a name. The text may hold `words` as the program prints them or the user types them. */
struct neb_reference_row {
    const char *name, *text;
};
extern const struct neb_reference_row neb__reference_options[], neb__reference_exits[],
    neb__reference_environment[], neb__reference_files[];

#endif
