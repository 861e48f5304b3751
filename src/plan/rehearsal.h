/* rehearsal.h: what one rank of a layout takes of its device, and what it exchanges, found by going its way without
 * computing.
 *
 * The rank opens the job's model, optimizer and text as a training does and makes some steps, on a device that computes nothing
 * (tensor/device.h) among ranks that are not there (group/pretend.h). So the figures are those of the training's own code: the
 * state, the plans of activations, buckets and gathered layers, recomputation, the slots of a pipeline, the ring of an
 * offloaded state. */
#ifndef NEB_PLAN_REHEARSAL_H
#define NEB_PLAN_REHEARSAL_H

#include "plan/layout.h"
#include "task/work.h"

struct neb_rehearsal {
    int64_t state, runs;  /* bytes of the device: before the first run, and what the runs take */
    int64_t values, here; /* trained parameters of the whole model, and of this rank */
    double whole;         /* bytes of the host for a copy of all values, which the first rank keeps */
    double offloaded;     /* bytes of the host for an offloaded state */
    double tokens;        /* of a step of the site */
    struct neb_rank_traffic data, tensor, pipeline, model; /* of a step, in each direction of the layout */
};

/* Of the rank at `place`. NEB_ERR_CONFIG: the layout does not fit the model; NEB_ERR_UNSUPPORTED, NEB_ERR_NOMEM */
neb_status neb__planner_rehearse(const struct neb_data *data, const struct neb_planner_layout *l,
                                 const struct neb_layout_place *place, struct neb_rehearsal *out);

/* The same with links to other sites. `then` is called behind the steps, before the memory is read; NULL: the rank opens everything
 * and makes no step. */
struct neb_rehearsal_links {
    const struct neb_step_links *links;
    neb_status (*then)(void *arg, struct neb_work *w, int steps);
    void *arg;
};
neb_status neb__planner_rehearse_linked(const struct neb_data *data, const struct neb_planner_layout *l,
                                        const struct neb_layout_place *place,
                                        const struct neb_rehearsal_links *x, struct neb_rehearsal *out);

/* The largest needs of all ranks. The stages of a pipeline differ; copies of the model, and ranks that share a layer, are
 * alike up to a block. */
neb_status neb__planner_rehearse_all(const struct neb_data *data, const struct neb_planner_layout *l,
                                     struct neb_rehearsal *out);

#endif
