/* prompted.h: a decoder answers lines behind a prompt, as a translator does: sentences in, their answers out. */
#ifndef NEB_TASK_PROMPTED_H
#define NEB_TASK_PROMPTED_H

#include "task/folder.h"

struct neb_prompted_config {
    const char *prompt; /* with {source}, behind which nothing is said; stays the caller's */
    int32_t beams, results;
    int32_t max_new; /* tokens of an answer */
};

struct neb_prompted;

/* The model stays the caller's. Owes a close. NEB_ERR_CONFIG: it is not a decoder with a tokenizer; NEB_ERR_NOMEM … */
neb_status neb__prompted_open(const struct neb_ready *model, const struct neb_prompted_config *c,
                              struct neb_prompted **out);
void neb__prompted_close(struct neb_prompted *p); /* NULL is fine */

/* The tokens that the model reads: its start token, and the prompt with the line in it (int32_t, appended). */
neb_status neb__prompted_tokens(const struct neb_tok *tok, const char *prompt, const char *line, size_t n,
                                struct neb_buf *out);

/* n lines. An answer ends at an end token (the tokenizer's, those of generation_config.json, that of the folder's chat template)
 * or at the line's end. out (n, results): owned texts, set only on success; NULL: there are fewer. A line for which the model
 * has no room has the answer "". */
neb_status neb__prompted_answer(struct neb_prompted *p, const char *const *lines, int n, char **out);

#endif
