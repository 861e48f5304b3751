/* plan.h (internal): turns the lifetimes of allocations into offsets. */
#ifndef NEB_TENSOR_PLAN_H
#define NEB_TENSOR_PLAN_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One allocation of a run: alive from tick `birth` to tick `death`, both included. */
struct neb_alloc {
    size_t bytes; /* a multiple of 256 */
    int birth, death;
    int refs; /* gradients: how many tensors share it */
    size_t offset;
};

struct neb_lifetimes {
    struct neb_alloc *list;
    int n, cap;
    int tick;
};

/* The units of parameters that a run reads (partition.h), in order; one that is read several times in a row stands there once. */
struct neb_unit_order {
    int *list, n, room;
};

/* The plan of one key, and its recording once made. */
struct neb_plan {
    struct neb_plan *next;
    uint64_t key;
    struct neb_alloc *list;
    int n;
    size_t bytes, lower_bound, unplanned;
    int *contributions;          /* per parameter: contributions to its gradient */
    struct neb_unit_order units; /* that are gathered ahead; none: nothing is */
    int runs;
    void *graph;
    bool sums; /* the recording adds up gradients (tape.h) */
};

void neb__life_reset(struct neb_lifetimes *l);
void neb__life_free(struct neb_lifetimes *l);
/* A new allocation, alive now. Returns its number, or -1 when memory runs out. */
int neb__life_add(struct neb_lifetimes *l, size_t bytes);

/* Gives every allocation an offset so that no two that are alive together overlap. NEB_ERR_NOMEM. */
neb_status neb__plan_make(const struct neb_lifetimes *l, uint64_t key, struct neb_plan **out);
void neb__plan_free(struct neb_plan *p);

#endif
