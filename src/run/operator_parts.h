/* operator_parts.h (internal): whether a set of operators signed an order. */
#ifndef NEB_RUN_OPERATOR_PARTS_H
#define NEB_RUN_OPERATOR_PARTS_H

#include "round/order.h"
#include "seal/operators.h"

/* `p` is what they sign, as neb_seal.by_operators gets it. Every signature that the order has must hold. */
bool neb__operators_signed(const struct neb_operators *set, const char *purpose, const void *p, size_t n,
                           const struct neb_order *o);

#endif
