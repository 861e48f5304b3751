/* conform_targets.h: targets and teachers for the cases of xent and linear_xent, and their reference. */
#ifndef NEB_DEVICE_CONFORM_TARGETS_H
#define NEB_DEVICE_CONFORM_TARGETS_H

#include "device/conform.h"

struct neb_cf_targets {
    struct neb_targets t; /* device pointers */
    int32_t *target, *ids;
    struct neb_cf_t teacher;
    struct neb_cf_t weight;
    struct neb_loss loss;
    struct neb_ctl host;
};

struct neb_cf_targets neb__cf_make_targets(struct neb_cf *c, int64_t rows, int64_t classes);

/* One row: returns the loss and adds to the counts in *want. grad has room for 2 * classes; the gradient is
 * its first half. */
double neb__cf_xent_row(const struct neb_cf_targets *g, int64_t r, const double *x, int64_t classes,
                        double *grad, struct neb_ctl *want);

/* Checks that losses, counts and nonfinite are as expected and that the input part is untouched. */
void neb__cf_check_ctl(struct neb_cf *c, const struct neb_ctl *dev, const struct neb_ctl *want);

#endif
