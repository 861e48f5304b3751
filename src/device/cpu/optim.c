/* optim.c: gradient norm, clipping, parameter update. */
#include "device/cpu/cpu.h"

#include <math.h>

enum { BLOCK = NEB_SUMSQ_BLOCK };

neb_status neb__cpu_sumsq(void *dev, const struct neb_sumsq *a)
{
    struct neb_cpu *c = dev;
    const int64_t blocks = (a->n + BLOCK - 1) / BLOCK;
    void *p = a->blocks;
    if (!p) NEB_TRY(neb__cpu_work(c, NEB_WORK_OP, (size_t)blocks * sizeof(double), &p));
    neb__cpu_range(c, c->k->sumsq, a, a->n, BLOCK, p);
    if (a->blocks) return NEB_OK;
    double sum = 0;
    for (int64_t b = 0; b < blocks; b++) sum += ((const double *)p)[b];
    a->ctl->norm2 += (float)sum;
    return NEB_OK;
}

neb_status neb__cpu_clip(void *dev, const struct neb_clip *a)
{
    (void)dev;
    struct neb_ctl *ctl = a->ctl;
    for (int i = 0; i < 8; i++)
        if (!isfinite(ctl->loss[i])) ctl->nonfinite = 1;
    if (!isfinite(ctl->norm2)) ctl->nonfinite = 1;
    float norm = sqrtf(ctl->norm2);
    ctl->clip = ctl->max_norm > 0 && norm > ctl->max_norm ? ctl->max_norm / norm : 1;
    if (ctl->nonfinite) ctl->clip = 0;
    return NEB_OK;
}

neb_status neb__cpu_update(void *dev, const struct neb_update *a)
{
    struct neb_cpu *c = dev;
    if (a->v && !a->m)
        return neb__fail(NEB_ERR_INVALID, "cpu: update: second moments are given without first moments");
    if (a->ctl->nonfinite || a->n_segments <= 0) return NEB_OK;
    int64_t end = 0;
    for (int64_t i = 0; i < a->n_segments; i++)
        if (a->segments[i].offset + a->segments[i].n > end) end = a->segments[i].offset + a->segments[i].n;
    neb__cpu_range(c, c->k->update, a, end, BLOCK, NULL);
    return NEB_OK;
}
