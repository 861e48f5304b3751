/* metrics.h: what a run measured, into SQLite (DIR/metrics.sqlite) and a TensorBoard event file beside it.
 *
 * Metrics never stop training: after the first failure one warning is logged and the calls answer its status; what
 * can still be written is. A run that could not open them has none: put, note, event, flush and each take NULL and do
 * nothing. A successful open owes a close. One thread at a time.
 *
 *   run     (id, started, resumed_at)                             one row a start
 *   metric  (id, name)
 *   value   (metric, step, run, time, value)  key (metric, step)  a step done again replaces the value
 *   note    (run, key, text)                                      the job, versions, the machine
 *   event   (id, run, step, time, kind, text)                     what happened: links, waiting, choices */
#ifndef NEB_STORE_METRICS_H
#define NEB_STORE_METRICS_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

struct neb_metrics;

/* resumed_at: the step that training goes on from, or -1.
 *   NEB_ERR_IO, NEB_ERR_CORRUPT (not a database), NEB_ERR_NOSPACE, NEB_ERR_NOMEM */
neb_status neb__metrics_open(const char *dir, int64_t resumed_at, struct neb_metrics **out);
/* For a run: NULL, and one warning, when they cannot be opened. */
struct neb_metrics *neb__metrics_begin(const char *dir, int64_t resumed_at);
neb_status neb__metrics_put(struct neb_metrics *m, int64_t step, const char *name, double value);
neb_status neb__metrics_note(struct neb_metrics *m, const char *key, const char *text);

neb_status neb__metrics_event(struct neb_metrics *m, int64_t step, const char *kind, const char *text);

/* Called at least every second by whoever drives the run; put() does it on its own every 256 values. */
neb_status neb__metrics_flush(struct neb_metrics *m);
neb_status neb__metrics_close(struct neb_metrics *m); /* NULL is fine */

/* Calls fn for every value of a metric, by step; fn answers 0 to stop. NEB_ERR_NOTFOUND: no such metric. */
neb_status neb__metrics_each(struct neb_metrics *m, const char *name,
                             int (*fn)(void *arg, int64_t step, double time, double value), void *arg);

/* Opens DIR/metrics.sqlite for reading, also while a run writes it. NEB_ERR_NOTFOUND (quiet); NEB_ERR_CORRUPT,
 * NEB_ERR_VERSION (of a version that stores something else) */
neb_status neb__metrics_read(const char *dir, struct neb_metrics **out);

/* The events in the order they happened; fn answers 0 to stop. */
neb_status neb__metrics_events(struct neb_metrics *m,
                               int (*fn)(void *arg, int64_t step, double time, const char *kind,
                                         const char *text),
                               void *arg);
/* The newest note with this key, into out (cut to size); NEB_ERR_NOTFOUND (quiet). */
neb_status neb__metrics_get_note(struct neb_metrics *m, const char *key, char *out, size_t size);

#endif
