/* metrics.h: a run's measurements in SQLite (DIR/metrics.sqlite) and in a TensorBoard event file beside
 * it.
 *
 * Metrics never stop training. After the first failure one warning is logged and the calls answer its status;
 * values that can still be written are written. A run that could not open its metrics has none: put, note,
 * event, flush and each take NULL and do nothing. A successful open owes a close. One thread at a time.
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
/* For a run: logs one warning and answers NULL when the metrics cannot be opened. */
struct neb_metrics *neb__metrics_begin(const char *dir, int64_t resumed_at);
neb_status neb__metrics_put(struct neb_metrics *m, int64_t step, const char *name, double value);
neb_status neb__metrics_note(struct neb_metrics *m, const char *key, const char *text);

neb_status neb__metrics_event(struct neb_metrics *m, int64_t step, const char *kind, const char *text);

/* The driver of a run calls it at least every second; put() does it on its own every 256 values. */
neb_status neb__metrics_flush(struct neb_metrics *m);
neb_status neb__metrics_close(struct neb_metrics *m); /* NULL is fine */

/* Calls fn for every value of a metric, in the order of steps; fn answers 0 to stop.
 * NEB_ERR_NOTFOUND: no such metric. */
neb_status neb__metrics_each(struct neb_metrics *m, const char *name,
                             int (*fn)(void *arg, int64_t step, double time, double value), void *arg);

/* Opens DIR/metrics.sqlite for reading, also while a run writes it. NEB_ERR_NOTFOUND (quiet);
 * NEB_ERR_CORRUPT, NEB_ERR_VERSION (the database has another format) */
neb_status neb__metrics_read(const char *dir, struct neb_metrics **out);

/* Calls fn for every event in the order they happened; fn answers 0 to stop. */
neb_status neb__metrics_events(struct neb_metrics *m,
                               int (*fn)(void *arg, int64_t step, double time, const char *kind,
                                         const char *text),
                               void *arg);
/* For a reader that comes again: values of the steps `after` < step <= `until` in their order, at most `most` of them.
 * Values of work that was lost, beyond the step from which a later process went on, are left out: time goes forward.
 * NEB_ERR_NOTFOUND (quiet): there are none */
neb_status neb__metrics_range(struct neb_metrics *m, const char *name, int64_t after, int64_t until,
                              int64_t most, int (*fn)(void *arg, int64_t step, double time, double value),
                              void *arg);
/* Events whose id is above `after`, in the order of their ids. The text is as it was stored: it may quote another site. */
neb_status neb__metrics_events_after(struct neb_metrics *m, int64_t after,
                                     int (*fn)(void *arg, int64_t id, int64_t step, double time,
                                               const char *kind, const char *text),
                                     void *arg);
int64_t neb__metrics_starts(struct neb_metrics *m); /* how often the run was started; 0: not known */
/* When its first process began, in unix seconds: two runs differ in it, two copies of one run do not. 0: none */
double neb__metrics_began(struct neb_metrics *m);
/* Copies the newest note with this key to out, cut to size. NEB_ERR_NOTFOUND (quiet) */
neb_status neb__metrics_get_note(struct neb_metrics *m, const char *key, char *out, size_t size);

#endif
