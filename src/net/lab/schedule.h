/* schedule.h (inside the laboratory): applies the schedule to a line at a given time. */
#ifndef NEB_NET_LAB_SCHEDULE_H
#define NEB_NET_LAB_SCHEDULE_H

#include "net/lab/lab.h"

/* Returns the first time (ns from the start) behind `t` at which some event begins or ends; INT64_MAX:
 * never. */
int64_t neb__schedule_next(const struct neb_lab_event *events, int n, int64_t t);

/* Applies to `line` every event that holds at `t`, later ones over earlier ones. */
void neb__schedule_apply(const struct neb_lab_event *events, int n, int64_t t, int from, int to,
                         struct neb_lab_line *line);

#endif
