/* view.h: a run as one looks at it from outside: what `nebula-i status`, the live page, the terminal page,
 * /metrics, the alerts and the report say of the sites is made here, once.
 *
 * A view is read from the folders that sites write. FOLDER may be the OUT of a site (with all sites as this
 * one sees them), a site's own folder, or a folder that holds the OUT of several sites, as `nebula-i lab`
 * makes it. Where a site writes into one of the folders itself, its own words count; else those that another
 * site has heard.
 *
 * A site that writes here is believed. The words of a site elsewhere are shown as its words. They decide nothing that concerns
 * the run: not its end, its forecast, its loss, nor whether the state roots agree. */
#ifndef NEB_WATCH_VIEW_H
#define NEB_WATCH_VIEW_H

#include "base/status.h"
#include "watch/status.h"

#include <limits.h>
#include <stdbool.h>

/* How a site is. The order is that of concern: a later one is worse. */
enum neb_health {
    NEB_HEALTH_UNKNOWN, /* nothing was heard of it yet */
    NEB_HEALTH_GOOD,
    NEB_HEALTH_DONE,    /* it has ended in order */
    NEB_HEALTH_WAITING, /* for other sites */
    NEB_HEALTH_LATE,    /* it is silent */
    NEB_HEALTH_GONE,    /* its process is not there, or nobody reaches it */
    NEB_HEALTH_HALTED,  /* it cannot go on */
};
const char *neb__health_name(enum neb_health h);

struct neb_view_site {
    struct neb_site_status st;
    enum neb_health health;
    double silent;         /* seconds since anything new came from it */
    char shown[96];        /* its state in a few words */
    bool root_differs;     /* it says another root than a site here has after the same record */
    char folder[PATH_MAX]; /* where it writes its metrics; "": not here */
};

/* A line as one of its two sites sees it. */
struct neb_view_line {
    int from, to;     /* places in `site`; `from` is the one that measures */
    bool up, relayed; /* relayed: through a relay host */
    double rtt_ms, goodput_bps, goodput_in_bps, loss, silent_s;
    double out_bps, in_bps; /* now: since the view before; below 0: not known */
    int64_t sent, received; /* bytes */
    char via[64];           /* the member through which it goes; "": directly */
};

enum { NEB_VIEW_LINES = NEB_STATUS_SITES * (NEB_STATUS_SITES - 1) };

struct neb_view {
    char job[64], strategy[16], self[64]; /* self: "" where several sites write */
    int64_t written;                      /* unix seconds, of the newest file */
    double now, made; /* unix seconds: when it was looked at; of the newest file, exactly */
    int n, n_lines;
    struct neb_status_log log;
    struct neb_view_site site[NEB_STATUS_SITES];
    struct neb_view_line *line; /* room for NEB_VIEW_LINES */
    /* of the whole run */
    int64_t tokens, target; /* committed by all sites, or trained; that end it, 0: none */
    double tokens_per_second, loss, seconds_left; /* loss 0: none; seconds_left below 0: not known */
    double progress;                              /* 0 to 1; below 0: not known */
    int64_t record;
    bool roots_agree, ended; /* roots: no two sites that write here have different ones after one record */
    int roots;               /* sites that take part in the comparison, and agree */
    double sent, fp32;       /* bytes: sent by all sites; that fp32 gradients at every step would have been */
};

/* Makes a view without sites. Owes a neb__view_free(). NEB_ERR_NOMEM */
neb_status neb__view_create(struct neb_view **out);
void neb__view_free(struct neb_view *v);
void neb__view_copy(struct neb_view *to, const struct neb_view *from);

/* Looks at the folder. Rates of lines are taken from what `v` held before.
 *   NEB_ERR_NOTFOUND: no site writes there (quiet); NEB_ERR_CORRUPT, NEB_ERR_NOMEM */
neb_status neb__view_look(struct neb_view *v, const char *folder);

/* A time that changes when a file of the folder does, so that a look can be saved. */
double neb__view_changed(const struct neb_view *v, const char *folder);

/* Works out health, words and sums of the sites in v at the time `now`; neb__view_look() does it. */
void neb__view_judge(struct neb_view *v, double now);

int neb__view_find(const struct neb_view *v, const char *name); /* -1: no such site */

struct json_t;
/* The documented object of `status --json` and /api/v1/status. NULL: out of memory. */
struct json_t *neb__view_json(const struct neb_view *v);

/* Appends the numbers in the text format of Prometheus. NEB_ERR_NOMEM */
struct neb_buf;
neb_status neb__view_prometheus(const struct neb_view *v, struct neb_buf *out);

#endif
