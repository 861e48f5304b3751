/* new_text.h: the text of a new job, cut into a part to train on and a part that is held out. */
#ifndef NEB_CLI_NEW_TEXT_H
#define NEB_CLI_NEW_TEXT_H

#include "base/status.h"

#include <stdint.h>

struct neb_new_text {
    int64_t lines, bytes;  /* to train on */
    int64_t held_out;      /* lines */
    char source[200];      /* where it comes from, for the user */
    char from[16], to[16]; /* pairs: the two languages */
};

/* Writes DIR/text/train.txt and valid.txt. file: the user's, plain or compressed; NULL: this program's own manual.
 *   NEB_ERR_CONFIG: too few lines; NEB_ERR_NOTFOUND, NEB_ERR_IO, NEB_ERR_CORRUPT, NEB_ERR_NOMEM */
neb_status neb__new_text(const char *dir, const char *file, struct neb_new_text *out);

/* The same with train.tsv and valid.tsv: pairs. langs: "en-de". file NULL: the translated messages of this machine's
 * programs, or the program's own pairs; NEB_ERR_NOTFOUND: there are none in these languages. */
neb_status neb__new_pairs(const char *dir, const char *file, const char *langs, struct neb_new_text *out);

#endif
