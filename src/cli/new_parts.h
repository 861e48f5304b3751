/* new_parts.h: lines of text cut into train.X to train on and valid.X that is held out. */
#ifndef NEB_CLI_NEW_PARTS_H
#define NEB_CLI_NEW_PARTS_H

#include "cli/new_text.h"

#include <stddef.h>
#include <stdio.h>

struct neb_new_parts {
    FILE *train, *valid;
    int64_t lines;
    struct neb_new_text *out; /* counts lines and bytes */
};

/* Makes DIR/text/train.ENDING and valid.ENDING. Owes a close, also after a failure. NEB_ERR_IO */
neb_status neb__new_parts_open(struct neb_new_parts *s, const char *dir, const char *ending);
void neb__new_parts_line(struct neb_new_parts *s, const char *text, size_t n);
/* Returns `status` if that is a failure; NEB_ERR_IO: something was not written; NEB_ERR_CONFIG: too few lines. */
neb_status neb__new_parts_close(struct neb_new_parts *s, neb_status status);

#endif
