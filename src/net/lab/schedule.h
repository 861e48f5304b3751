/* schedule.h (inside the laboratory): what the schedule makes of a line at a time. */
#ifndef NEB_NET_LAB_SCHEDULE_H
#define NEB_NET_LAB_SCHEDULE_H

#include "net/lab/lab.h"

/* The first moment (ns after the start) behind `t` at which some event begins or ends; INT64_MAX: none. */
int64_t neb__schedule_next(const struct neb_lab_event *events, int n, int64_t t);

/* `line` with every event that holds at `t` applied, later ones over earlier ones. */
void neb__schedule_apply(const struct neb_lab_event *events, int n, int64_t t, int from, int to,
                         struct neb_lab_line *line);

#endif
