/* alerts.h: what somebody must be told of: each alert once when it begins, and once when it ends. */
#ifndef NEB_WATCH_ALERTS_H
#define NEB_WATCH_ALERTS_H

#include "watch/view.h"

enum {
    NEB_ALERT_KINDS = 9, /* of a site; the run has two more */
    /* Every one may be on at one time, and at the next look all sites may be others: those that end are then in the list, too. */
    NEB_ALERTS = 2 * (NEB_STATUS_SITES * NEB_ALERT_KINDS + 2),
};

struct neb_alert_rules {
    double stalled; /* seconds without a commit; 0: no such alert */
    double disk;    /* bytes of room below which a disk is nearly full */
};

struct neb_alert {
    char kind[24], site[64], text[240]; /* site "": of the run */
    double since;                       /* unix seconds: it has been so */
    bool told, seen;
};

struct neb_alerts {
    struct neb_alert_rules rules;
    struct neb_alert list[NEB_ALERTS];
    int n;
    int64_t record;
    double committed;                   /* when the newest record came */
    double best[NEB_STATUS_SITES];      /* least loss of each site so far, smoothed; 0: none */
    char best_of[NEB_STATUS_SITES][64]; /* whose */
};

/* Looks at the view and calls tell(arg, alert, begins) for what has begun or ended. */
void neb__alerts_check(struct neb_alerts *a, const struct neb_view *v,
                       void (*tell)(void *arg, const struct neb_alert *alert, bool begins), void *arg);

#endif
