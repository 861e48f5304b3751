/* warm_start.c: see warm_start.h. */
#include "warm_start.h"
#include "base/mem.h"
#include "train/resume.h"

#include <stdio.h>

enum { RISE = 100, SAY = 100 };

void neb__warm_plan(struct neb_warm_start *w, int64_t steps, int64_t more, double lr)
{
    w->steps = steps;
    w->schedule = (struct neb_schedule){.kind = NEB_COSINE,
                                        .peak = (float)lr,
                                        .floor = (float)(0.1 * lr),
                                        .warmup = steps < RISE ? steps : RISE,
                                        .total = steps + more};
}

void neb__warm_free(struct neb_warm_start *w)
{
    neb__free(w->x);
    neb__free(w->m);
    neb__free(w->v);
    *w = (struct neb_warm_start){0};
}

neb_status neb__warm_steps(const struct neb_warm_start *w, struct neb_work *work, int64_t from, int64_t to,
                           int64_t *tokens)
{
    for (int64_t i = from; i < to; i++) {
        struct neb_work_step info;
        NEB_TRY(neb__work_step(work, neb_schedule_lr(&w->schedule, i), &info));
        if (tokens) *tokens += info.tokens;
        if (i < w->steps && i % SAY == SAY - 1)
            fprintf(stderr, "  synchronous step %d: loss %.3f\n", (int)i + 1, info.loss);
    }
    return NEB_OK;
}

static neb_status make_room(struct neb_warm_start *w, struct neb_work *work)
{
    int64_t slab;
    if (w->n) return NEB_OK;
    size_t n = (size_t)neb__resume_values(work);
    neb_params_slab(neb__work_params(work), &slab);
    w->x = neb__aligned(n * sizeof(float));
    w->m = neb__aligned((size_t)slab * sizeof(float));
    w->v = neb__aligned((size_t)slab * sizeof(float));
    if (!w->x || !w->m || !w->v) return neb__fail(NEB_ERR_NOMEM, "no memory for %zu values", n);
    w->n = n;
    return NEB_OK;
}

neb_status neb__warm_make(struct neb_warm_start *w, struct neb_work *work)
{
    NEB_TRY(make_room(w, work));
    NEB_TRY(neb__warm_steps(w, work, 0, w->steps, NULL));
    NEB_TRY(neb__work_read_params(work, w->x));
    return neb_optimizer_save(neb__work_optimizer(work), w->m, w->v);
}

neb_status neb__warm_load(const struct neb_warm_start *w, struct neb_work *work)
{
    NEB_TRY(neb__work_write_params(work, w->x));
    return neb_optimizer_load(neb__work_optimizer(work), w->steps, w->m, w->v);
}
