/* masters.h (internal): where the F32 values of the parameters lie.
 *
 * Usually all of them lie in the device's memory, and ops read them there. A device that computes in BF16 reads
 * its BF16 copy instead (the shadow), except for the vectors of norms. So the masters may be in the host's memory:
 * the device then keeps the shadow and, in F32, a copy of the parameters of one dimension (the vectors). Only the
 * optimizer reads and writes the masters (optim/offload.c). */
#ifndef NEB_TENSOR_MASTERS_H
#define NEB_TENSOR_MASTERS_H

#include "tensor/params.h"

/* The masters go to the host where the device computes in BF16. Before neb_params_ready(). */
neb_status neb__params_offload(neb_params *ps);

neb_status neb__masters_alloc(neb_params *ps);
void neb__masters_free(neb_params *ps);

/* Values [at, at + n) of the slab, from and to host memory. */
neb_status neb__masters_put(neb_params *ps, int64_t at, const float *host, int64_t n);
neb_status neb__masters_get(const neb_params *ps, int64_t at, float *host, int64_t n);
/* The copies that ops read, of values [at, at + n). */
neb_status neb__masters_refresh(neb_params *ps, int64_t at, int64_t n);
/* The masters of values [at, at + n), which are at `from` on the device, go to the vectors. */
neb_status neb__masters_keep_vectors(neb_params *ps, int64_t at, int64_t n, const float *from);

/* Where ranks share out the masters: this rank's part of the vectors, zeros for the others, and with `shadow` of the
 * BF16 copy. The ranks then add up the vectors and gather the copy. frozen: also of the frozen parameters. */
neb_status neb__masters_own_copies(neb_params *ps, bool frozen, bool shadow);

/* Masters on the host are up to date after this. */
neb_status neb__masters_settle(const neb_params *ps);
/* Whether neb_params_slab() is host memory although the parameters belong to a device. */
bool neb__masters_on_host(const neb_params *ps);

#endif
