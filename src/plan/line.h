/* line.h: a pipeline between the sites of a job (docs/pipeline.md), foreseen: cut, memory of each stage, turns over the line, bytes.
 *
 * Every stage is rehearsed (stage.h). Its time is put together from the costs of this machine: other sites are taken to be like it, with
 * the threads, the processes and the speed that the job says for them. */
#ifndef NEB_PLAN_LINE_H
#define NEB_PLAN_LINE_H

#include "plan/plan.h"
#include "plan/stage.h"

/* What one visit of a micro-batch is at a stage. The sites are visited in their order; in a ring the first one once more at the end.
 * The last visit has the loss, and its backward comes at once. */
struct neb_line_visit {
    double forward, backward; /* seconds */
    double ahead, back;       /* seconds of a transfer to the next visit, and to the one before */
    bool returns;             /* gradients go to the one before */
};
/* Of a site. */
struct neb_line_turns {
    int depth, copies; /* micro-batches in flight; processes that each take one */
    double end;        /* seconds behind its turns: sums and update */
};

/* Seconds of a step of m micro-batches. way: seconds from site to site. visit: (sites, and one more in a ring) */
neb_status neb__planner_line_turns(const struct neb_line_visit *visit, const struct neb_line_turns *site,
                                   int sites, bool ring, int m, double way, double *seconds);

/* A row of the plan: one stage. */
struct neb_planner_line_site {
    struct neb_planner_layout layout;
    int depth;
    double memory, room; /* bytes of a process; what it may take, 0: no limit */
    double sent;         /* bytes until the job's end */
    double turn;         /* seconds of a micro-batch, forwards and backwards; 0: not measured */
};
struct neb_planner_line {
    struct neb_planner_cut cut;
    int bits;
    bool other; /* bits that the rate controller would not take on this line */
    struct neb_planner_line_site site[NEB_JOB_SITES];
    double all_bytes; /* of all sites */
};

/* "pipeline 6 + 6, int8", with the layout of the site's stage behind it; of other rows the layout. */
void neb__planner_row_text(const struct neb_planner_row *row, char *out, size_t size);

/* Adds the pipelines that the job could be: for each layout that this site may have for its stage, and 8 or 4 bits. A cut that cannot be
 * is a row with the reason. NEB_ERR_NOMEM */
neb_status neb__planner_lines(const struct neb_planner_order *o, struct neb_planned *p);

#endif
