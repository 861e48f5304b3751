/* prefetch.h: makes batches ahead of the trainer, in a thread of its own.
 *
 *     neb__prefetch_start(stream, 4, &p);
 *     while (neb__prefetch_get(p, &batch) == NEB_OK) { … ; neb__prefetch_done(p, batch); }
 *     neb__prefetch_stop(p);
 *
 * Between start and stop the stream belongs to the thread. A successful start owes a stop. */
#ifndef NEB_TEXT_PREFETCH_H
#define NEB_TEXT_PREFETCH_H

#include "text/batches.h"

struct neb_prefetch;

/* depth: batches held, 2 to 4096. NEB_ERR_INVALID, NEB_ERR_NOMEM, NEB_ERR_IO (no thread) */
neb_status neb__prefetch_start(struct neb_batches *s, int depth, struct neb_prefetch **out);

/* The next batch, in the stream's order; it belongs to the caller until done. After the stream has returned
 * an error (NEB_ERR_AGAIN at the end), every call returns it. */
neb_status neb__prefetch_get(struct neb_prefetch *p, struct neb_batch **out);
/* Waits until the next n batches are made, and takes none; n is at most the depth, less the batches that are not done. Fails as
 * their get would. */
neb_status neb__prefetch_await(struct neb_prefetch *p, int n);
void neb__prefetch_done(struct neb_prefetch *p, struct neb_batch *b);

/* Appends the position after the batch that was got last. A checkpoint that holds it can continue with the
 * next batch. */
neb_status neb__prefetch_save(struct neb_prefetch *p, struct neb_buf *out);

double neb__prefetch_waited(const struct neb_prefetch *p); /* seconds that get() stood waiting */

/* Ends the thread and puts the stream at the position after the batch that was got last. NULL is fine. */
neb_status neb__prefetch_stop(struct neb_prefetch *p);

#endif
