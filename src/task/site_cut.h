/* site_cut.h: where a model is cut between the sites of a pipeline, and which of them need the text. */
#ifndef NEB_TASK_SITE_CUT_H
#define NEB_TASK_SITE_CUT_H

#include "job/job.h"
#include "nn/stage.h"

/* range: one for each site. hole: layers inside the first one's that are at the other sites; end 0: there is none.
 *   NEB_ERR_CONFIG with what to change */
neb_status neb__site_cut(const struct neb_job *j, const struct neb_model_config *model,
                         struct neb_stage_range *range, struct neb_stage_range *hole);

/* This process's site cannot do its part without the text of the job: it has the embedding or the loss, or the job is no
 * pipeline between sites. */
bool neb__site_needs_text(const struct neb_job *j);

#endif
