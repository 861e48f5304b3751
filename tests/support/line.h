/* line.h: a rate controller's driver on a simulated line: the decisions it gets, and what became of its updates. */
#ifndef NEB_TEST_LINE_H
#define NEB_TEST_LINE_H

#include "base/rng.h"
#include "round/rate.h"

struct line {
    struct neb_rate *rate;
    struct neb_rate_input in;
    struct neb_rate_config c;
    double values;
    int late, late_in_a_row, most_in_a_row, changes, holds, class_changes;
    double sent, seconds;
    struct neb_rate_decision d;
};

/* Of a group of tests: the table that a driver makes from the codec's ladder. The rung for modular sums is not one to choose
 * freely. */
int line_table(void **state);
struct neb_rate_config line_config(void);

void line_open(struct line *s, const struct neb_rate_config *c,
               int peers); /* owes a neb__rate_destroy(s->rate) */

/* One interval on an egress of `egress` bytes/s; measurements are off by up to `noise`. */
void line_round(struct line *s, double egress, double noise, struct neb_rng *rng);

double mbit(double x); /* in bytes/s */

#endif
