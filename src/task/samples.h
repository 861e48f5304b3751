/* samples.h: what a model makes of a few held-out texts, for people to read: translations beside their references, filled masks,
 * continuations. */
#ifndef NEB_TASK_SAMPLES_H
#define NEB_TASK_SAMPLES_H

#include "base/buf.h"
#include "task/work.h"

/* Appends a few lines for each of the first texts with this use, always the same ones. A few forward passes over a few
 * sequences: the cost does not grow with the text.
 *   NEB_ERR_NOTFOUND     (quiet) there is no such text
 *   NEB_ERR_UNSUPPORTED  (quiet) the objective predicts no tokens, or this process has only a part of the model
 *   NEB_ERR_NOMEM … */
neb_status neb__work_samples(struct neb_work *w, const char *use, struct neb_buf *out);

/* The slot `sample` of objectives that predict tokens (task/work_internal.h). */
neb_status neb__sample_tokens(struct neb_work *w, const struct neb_batch *b, struct neb_buf *out);

#endif
