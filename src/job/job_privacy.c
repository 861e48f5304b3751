/* job_privacy.c: whether `privacy` fits the rest of a job. Anything that would leave a site beside the counted updates is
 * refused when the job is read. */
#include "job/job.h"

#include <string.h>

neb_status neb__job_check_privacy(const struct neb_job *j)
{
    const struct neb_job_privacy *p = &j->privacy;
    if (!strcmp(p->unit, "none")) return NEB_OK;
    if (!(p->noise > 0) && !(p->epsilon > 0))
        return neb__doc_fail(&j->doc, "privacy.epsilon",
                             "privacy: name `epsilon`, from which the noise follows, or `noise`, or both");
    if (!j->n_sites && !strcmp(p->unit, "site"))
        return neb__doc_fail(&j->doc, "privacy.unit",
                             "privacy.unit: site protects what a site sends, and this job has no `sites`");
    if (!j->n_sites) return NEB_OK;
    if (j->plan != NEB_STRATEGY_REPLICA)
        return neb__doc_fail(
            &j->doc, "privacy.unit",
            "privacy: strategy %s sends tokens or answers of a teacher by design, and no noise "
            "protects them; use strategy replica",
            neb__strategy_name(j->plan));
    if (!strcmp(j->wan.rung, "auto"))
        return neb__doc_fail(
            &j->doc, "wan.rung",
            "privacy needs a fixed wan.rung, such as int8: `auto` follows losses on this site's "
            "data, and its choice would tell of them");
    if (j->wan.clip > 0 || j->wan.noise > 0)
        return neb__doc_fail(&j->doc, j->wan.clip > 0 ? "wan.clip" : "wan.noise",
                             "wan.clip and wan.noise are not counted: leave them out beside privacy.unit");
    return NEB_OK;
}
