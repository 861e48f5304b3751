/* history.h: the past of a run, for who comes later: a bounded number of points for each value of each site,
 * and the newest events.
 *
 * A site that writes here has a database, and its whole past is read from that, once, and then what is new.
 * Of a site elsewhere only its status is heard; its past begins when the watching began. One thread updates;
 * any thread may ask. */
#ifndef NEB_WATCH_HISTORY_H
#define NEB_WATCH_HISTORY_H

#include "base/buf.h"
#include "watch/view.h"

#include <stdint.h>

struct neb_history;

enum {
    NEB_HISTORY_POINTS = 2048,
    NEB_HISTORY_EVENTS = 2000,
    NEB_HISTORY_ROWS = 50000,     /* that one question reads from a database */
    NEB_HISTORY_CATCH_UP = 200000 /* that one update reads from all of them */
};

/* NEB_ERR_NOMEM */
neb_status neb__history_create(struct neb_history **out);
void neb__history_free(struct neb_history *h); /* NULL is fine */

/* Takes in what is new since the last call. A database that cannot be read now is tried again. A long past is read in several
 * calls, so that others are answered in between. NEB_ERR_AGAIN (quiet): there is more; NEB_ERR_NOMEM */
neb_status neb__history_update(struct neb_history *h, const struct neb_view *v);

/* What a caller asks for. */
struct neb_history_query {
    char site[64];   /* "": all */
    char name[64];   /* of one value; "": all */
    double from, to; /* unix seconds; to 0: until now */
    int points;      /* at most, of each value */
};
/* Reads `name=value&…` as a URL has it. NEB_ERR_INVALID: the message says what is allowed */
neb_status neb__history_query_read(const char *key, const char *value, struct neb_history_query *q);

/* Appends JSON: {"sites": {NAME: {VALUE: {"t": […], "v": […], "low": […], "high": […]}}}}. A narrow range is read
 * exactly from the database, where there is one. NEB_ERR_NOMEM, NEB_ERR_NOSPACE */
neb_status neb__history_json(struct neb_history *h, const struct neb_history_query *q, struct neb_buf *out);

/* Appends JSON: {"next": N, "events": [{"n", "site", "time", "step", "kind", "text", "mood"}, …]}, those behind the
 * first `after`, the newest NEB_HISTORY_EVENTS at most. */
neb_status neb__history_events_json(struct neb_history *h, int64_t after, struct neb_buf *out);
int64_t neb__history_events(struct neb_history *h); /* how many there were */

/* A note of the run, from the first database that has it. Owes a neb__free(). NULL: there is none */
char *neb__history_note(struct neb_history *h, const char *key);

/* good, bad, slow or plain: how an event is shown, here and in the report. */
const char *neb__event_mood(const char *kind, const char *text);

#endif
