/* stage.h: one stage of a pipeline between sites, rehearsed: what it takes of its device, and what it sends over the line.
 *
 * The stage goes the way of a training with neighbours that are not there: they have always sent what is awaited, and what is given to them
 * is measured as the items of the streams are. A stage has as many micro-batches in flight as it may, so each of its slots is filled. */
#ifndef NEB_PLAN_STAGE_H
#define NEB_PLAN_STAGE_H

#include "nn/stage.h"
#include "plan/rehearsal.h"

/* Where the model is cut (task/site_cut.h). */
struct neb_planner_cut {
    struct neb_stage_range range[NEB_JOB_SITES], hole;
    bool ring; /* the first site has both ends of the model: a micro-batch visits it twice */
    int sites;
};

/* The cut of the job, as a training of strategy pipeline makes it. NEB_ERR_CONFIG with what to change */
neb_status neb__planner_cut(const struct neb_data *data, struct neb_planner_cut *out);
/* "6 + 6"; a ring: "2 + 6 + 2" */
void neb__planner_cut_text(const struct neb_planner_cut *c, char *out, size_t size);

/* What a stage sends, in bytes. */
struct neb_planner_stage_sent {
    double ahead, back; /* of a step, to the stage behind and to the one before */
    double message;     /* of one micro-batch ahead, in the mean */
    double held_out;    /* of one measurement of held-out loss */
};

enum { NEB_STAGE_BITS = 4 };
extern const int neb__stage_bits[NEB_STAGE_BITS]; /* 32, 16, 8, 4 */

struct neb_planner_stage_seen {
    struct neb_rehearsal rank; /* the first rank of the site: state, runs and exchanges inside it */
    double slot;               /* bytes that a micro-batch in flight takes */
    double rows;               /* of hidden states that a micro-batch brings, in the mean */
    bool returns;              /* gradients go to the stage before */
    struct neb_planner_stage_sent sent[NEB_STAGE_BITS];
    double parameters; /* bytes of its own parameters on their way to the first site */
};

/* Of the stage of `site` with this layout. gpu: on hardware that is not here. */
neb_status neb__planner_rehearse_stage(const struct neb_data *data, const struct neb_planner_cut *cut,
                                       int site, const struct neb_planner_layout *l, int depth, bool gpu,
                                       struct neb_planner_stage_seen *out);

const struct neb_planner_stage_sent *neb__planner_stage_sent(const struct neb_planner_stage_seen *seen,
                                                             int bits);
/* Bytes that leave a site until the job's end: of its steps, held-out losses, and the parameters that pass it. seen: (sites) */
double neb__planner_stage_run_bytes(const struct neb_job *job, const struct neb_planner_stage_seen *seen,
                                    int bits, int site, int sites);

#endif
