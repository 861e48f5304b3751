/* norm.c: LayerNorm and RMSNorm. The parameter gradients are column sums over all rows. Each of a fixed
 * number of row blocks leaves its own sums, which are then added in order, so the bits do not depend on the
 * thread count. */
#include "device/cpu/cpu.h"

#include <string.h>

enum { BLOCKS = 32 };

neb_status neb__cpu_norm(void *dev, const struct neb_norm *a)
{
    struct neb_cpu *c = dev;
    NEB_TRY(neb__cpu_check_type("norm", a->type));
    NEB_TRY(neb__cpu_check_drop("norm", &a->drop));
    neb__cpu_range(c, c->k->norm, a, a->rows, neb__cpu_rows(a->d), NULL);
    return NEB_OK;
}

static neb_status add_blocks(void *dev, const float *sums, int64_t blocks, int64_t d, int acc, float *out)
{
    struct neb_colsum sum = {sums, out, blocks, d, d, acc, NEB_F32};
    return out ? neb__cpu_colsum(dev, &sum) : NEB_OK;
}

neb_status neb__cpu_norm_bwd(void *dev, const struct neb_norm_bwd *a)
{
    struct neb_cpu *c = dev;
    NEB_TRY(neb__cpu_check_type("norm_bwd", a->type));
    NEB_TRY(neb__cpu_check_drop("norm_bwd", &a->drop));
    const int64_t grain = (a->rows + BLOCKS - 1) / BLOCKS, blocks = grain ? (a->rows + grain - 1) / grain : 0;
    struct neb_norm_sums sums = {NULL, NULL};
    if (a->dy && (a->dgamma || a->dbeta)) {
        void *p;
        NEB_TRY(neb__cpu_work(c, NEB_WORK_OP, (size_t)(2 * BLOCKS * a->d) * sizeof(float), &p));
        sums.dgamma = a->dgamma ? (float *)p : NULL;
        sums.dbeta = a->dbeta ? (float *)p + BLOCKS * a->d : NULL;
    }
    neb__cpu_range(c, c->k->norm_bwd, a, a->rows, grain ? grain : 1, &sums);
    NEB_TRY(add_blocks(dev, sums.dgamma, blocks, a->d, a->acc_dgamma, a->dy ? a->dgamma : NULL));
    return add_blocks(dev, sums.dbeta, blocks, a->d, a->acc_dbeta, a->dy ? a->dbeta : NULL);
}
