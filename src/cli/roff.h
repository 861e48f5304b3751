/* roff.h: text as the source of a man page, in the macros of man(7). */
#ifndef NEB_CLI_ROFF_H
#define NEB_CLI_ROFF_H

#include <stdio.h>

/* The first lines of a page. `number`: of the manual's section */
void neb__roff_title(FILE *to, const char *page, int number);
void neb__roff_section(FILE *to, const char *name);
void neb__roff_subsection(FILE *to, const char *name);

/* Prose: `this` becomes bold, an empty line begins a paragraph. It ends with a line's end. */
void neb__roff_text(FILE *to, const char *text);

/* A command: words that begin with - become bold, words in capitals italic. `lead` comes first, in bold. */
void neb__roff_usage(FILE *to, const char *lead, const char *words);
void neb__roff_break(FILE *to); /* between two commands: the second begins a line */

/* A command, or a term, whose explanation is the text behind it. */
void neb__roff_item(FILE *to, const char *lead, const char *words);

#endif
