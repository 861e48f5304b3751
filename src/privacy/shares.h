/* shares.h: a secret in n pieces, of which any t give it back and t - 1 tell nothing (Shamir 1979). */
#ifndef NEB_PRIVACY_SHARES_H
#define NEB_PRIVACY_SHARES_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

enum { NEB_SECRET_SIZE = 32, NEB_SHARE_SIZE = 33, NEB_SHARES_MAX = 64 };

struct neb_share {
    uint16_t x; /* whose it is: from 1 on */
    uint8_t y[NEB_SHARE_SIZE];
};

/* Makes a share for each share[i].x. The x differ and are not 0; 1 <= t <= n <= NEB_SHARES_MAX.
 * NEB_ERR_INVALID, NEB_ERR_NOMEM, NEB_ERR_IO (no random numbers) */
neb_status neb__shares_deal(const uint8_t secret[NEB_SECRET_SIZE], int t, int n, struct neb_share *share);
/* The secret that t shares give. NEB_ERR_CORRUPT: none, or two of one place; NEB_ERR_NOMEM. Whether it is the one that was
 * dealt, a hash must tell. */
neb_status neb__shares_join(const struct neb_share *share, int t, uint8_t secret[NEB_SECRET_SIZE]);

#endif
