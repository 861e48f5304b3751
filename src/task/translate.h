/* translate.h: sentences in, their translations out, with a model folder that was trained for it. */
#ifndef NEB_TASK_TRANSLATE_H
#define NEB_TASK_TRANSLATE_H

#include "task/folder.h"

struct neb_translate_config {
    int64_t beams, batch, max_len;
    double length_penalty;
    char *from, *to;
    bool scores;
    int64_t results; /* translations of a line, best first, at most `beams`; 0: 1 */
};

extern const struct neb_opt neb__translate_options[];

struct neb_translator;

/* The model stays the caller's. Owes a close.
 *   NEB_ERR_CONFIG: it does not translate, or not into `to`; NEB_ERR_NOMEM … */
neb_status neb__translator_open(const struct neb_ready *model, const struct neb_translate_config *c,
                                struct neb_translator **out);
void neb__translator_close(struct neb_translator *t); /* NULL is fine */

/* n lines of any lengths; a line longer than the model can read is cut, with a warning. An empty line's
 * translation is empty. out (n, results): owned texts, set only on success; NULL behind a line's first: there is
 * no further one. */
neb_status neb__translator_translate(struct neb_translator *t, const char *const *lines, int n, char **out);

#endif
