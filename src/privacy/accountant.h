/* accountant.h: how much a sequence of noisy releases tells at most, as (epsilon, delta).
 *
 * The account is kept as Rényi divergences at fixed orders. Those of releases that follow each other add up, so an
 * account is a list of sums. docs/privacy.md explains what the numbers mean. */
#ifndef NEB_PRIVACY_ACCOUNTANT_H
#define NEB_PRIVACY_ACCOUNTANT_H

#include "base/status.h"

enum { NEB_RDP_ORDERS = 170 };

/* One kind of release. */
struct neb_privacy_step {
    double noise; /* deviation of the noise, as a multiple of the clip; above 0 */
    double rate;  /* probability with which a sample takes part, in (0, 1]; 1: everything does */
};

struct neb_rdp {
    double at[NEB_RDP_ORDERS]; /* the divergence at each order */
};

double neb__rdp_order(int i);
/* Of one release. NEB_ERR_RANGE: noise or rate is not allowed. */
neb_status neb__rdp_of(const struct neb_privacy_step *step, struct neb_rdp *out);
/* a += count * b */
void neb__rdp_add(struct neb_rdp *a, const struct neb_rdp *b, double count);
/* The least epsilon that the account allows with this delta, in (0, 1). */
double neb__rdp_epsilon(const struct neb_rdp *a, double delta);

/* `count` releases of one kind. NEB_ERR_RANGE: a number is not allowed. */
neb_status neb__privacy_epsilon(const struct neb_privacy_step *step, double count, double delta, double *out);
/* The least noise with which `count` releases cost at most epsilon. NEB_ERR_RANGE: also if no noise below 1e6 does. */
neb_status neb__privacy_noise(double epsilon, double rate, double count, double delta, double *out);

#endif
