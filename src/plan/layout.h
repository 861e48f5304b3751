/* layout.h: a layout as the planner writes it, and the job that it makes of another one. */
#ifndef NEB_PLAN_LAYOUT_H
#define NEB_PLAN_LAYOUT_H

#include "group/pretend.h"
#include "task/data.h"

enum neb_offload_kind { NEB_OFFLOAD_NONE, NEB_OFFLOAD_MOMENTS, NEB_OFFLOAD_OPTIMIZER };

struct neb_planner_layout {
    int data, tensor, pipeline, zero;
    bool sequence;
    enum neb_offload_kind offload;
    int threads; /* of each rank; 0: as the job says */
};

int neb__planner_ranks(const struct neb_planner_layout *l);
const char *neb__planner_offload_name(enum neb_offload_kind k);
/* "data 2, zero 1"; "one process" */
void neb__planner_layout_text(const struct neb_planner_layout *l, char *out, size_t size);
/* The layout that the job asks for, at this site. */
struct neb_planner_layout neb__planner_layout_from(const struct neb_job_parallel *p);
struct neb_planner_layout neb__planner_layout_of(const struct neb_job *job);

/* Makes it the job's. */
void neb__planner_set_layout(struct neb_job *job, const struct neb_planner_layout *l);

/* A copy of the job with this layout, and of its data over that copy. Both share all memory with the originals, which must
 * outlive them; they are not freed. */
struct neb_planner_job {
    struct neb_job job;
    struct neb_data data;
};
void neb__planner_job(const struct neb_data *data, const struct neb_planner_layout *l,
                      struct neb_planner_job *out);
/* job_parallel.c's word about it, without a line in the log. */
neb_status neb__planner_layout_check(const struct neb_job *job, const struct neb_planner_layout *l);

#endif
