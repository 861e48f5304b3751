/* job_privacy.c: whether `privacy` fits the rest of a job. Anything that would leave a site beside the counted updates is
 * refused when the job is read. */
#include "job/job.h"

#include <string.h>

static int sites_that_train(const struct neb_job *j)
{
    int n = 0;
    for (int i = 0; i < j->n_sites; i++) n += j->site[i].does != NEB_ROLE_WITNESS;
    return n;
}

/* Whether a secure sum is possible at all, and whether it would hide anything. */
static neb_status check_secure(const struct neb_job *j)
{
    static const char key[] = "privacy.aggregate";
    const int sites = sites_that_train(j);
    if (strcmp(j->privacy.aggregate, "secure")) return NEB_OK;
    if (!j->n_sites)
        return neb__doc_fail(&j->doc, key,
                             "privacy.aggregate: secure hides a site's updates among those of others, and "
                             "this job has no `sites`");
    if (j->plan != NEB_STRATEGY_REPLICA)
        return neb__doc_fail(
            &j->doc, key,
            "privacy.aggregate: strategy %s sends data from one site to another, and there is no sum "
            "in which it could hide; use strategy replica",
            neb__strategy_name(j->plan));
    if (sites < 3)
        return neb__doc_fail(
            &j->doc, key,
            "privacy.aggregate: secure needs three sites that train, and there are %d: of a sum of two "
            "updates each site takes off its own and has the other's",
            sites);
    if (strstr(j->wan.influence, "trimmed") || strstr(j->wan.influence, "median"))
        return neb__doc_fail(
            &j->doc, "wan.influence",
            "privacy.aggregate: secure shows only the sum of the updates, and wan.influence: %s must see "
            "every one of them; leave one of the two out",
            j->wan.influence);
    if (strcmp(j->wan.rung, "auto") && strcmp(j->wan.rung, "int8x"))
        return neb__doc_fail(
            &j->doc, "wan.rung",
            "privacy.aggregate: secure sums integers of scales that all sites share (int8x), and wan.rung "
            "is %s; leave it out",
            j->wan.rung);
    if (!strcmp(j->privacy.unit, "site"))
        return neb__doc_fail(
            &j->doc, "privacy.unit",
            "privacy.unit: site and aggregate: secure do not work together yet; use unit: sample, or one "
            "of the two");
    if (j->wan.merge_after >= 0 || !strcmp(j->wan.end, "keep"))
        return neb__doc_fail(
            &j->doc, j->wan.merge_after >= 0 ? "wan.merge_after" : "wan.end",
            "privacy.aggregate: secure cannot promise when a sum is there, nor send the last work "
            "exactly: leave out wan.merge_after and wan.end: keep");
    if (j->wan.clip > 0 || j->wan.noise > 0)
        return neb__doc_fail(
            &j->doc, j->wan.clip > 0 ? "wan.clip" : "wan.noise",
            "wan.clip and wan.noise change updates after their scales are settled: leave them out beside "
            "privacy.aggregate: secure");
    return NEB_OK;
}

neb_status neb__job_check_privacy(const struct neb_job *j)
{
    const struct neb_job_privacy *p = &j->privacy;
    const bool secure = !strcmp(p->aggregate, "secure");
    NEB_TRY(check_secure(j));
    if (!strcmp(p->unit, "none")) return NEB_OK;
    if (!(p->noise > 0) && !(p->epsilon > 0))
        return neb__doc_fail(&j->doc, "privacy.epsilon",
                             "privacy: name `epsilon`, from which the noise follows, or `noise`, or both");
    if (!j->n_sites && !strcmp(p->unit, "site"))
        return neb__doc_fail(&j->doc, "privacy.unit",
                             "privacy.unit: site protects what a site sends, and this job has no `sites`");
    if (!j->n_sites) return NEB_OK;
    if (j->plan != NEB_STRATEGY_REPLICA)
        return neb__doc_fail(&j->doc, "privacy.unit",
                             "privacy: strategy %s sends tokens, hidden states or answers of a teacher by "
                             "design, and no noise "
                             "protects them; use strategy replica",
                             neb__strategy_name(j->plan));
    if (!strcmp(j->wan.rung, "auto") && !secure)
        return neb__doc_fail(
            &j->doc, "wan.rung",
            "privacy needs a fixed wan.rung, such as int8: `auto` follows losses on this site's "
            "data, and its choice would tell of them");
    if (j->wan.clip > 0 || j->wan.noise > 0)
        return neb__doc_fail(&j->doc, j->wan.clip > 0 ? "wan.clip" : "wan.noise",
                             "wan.clip and wan.noise are not counted: leave them out beside privacy.unit");
    return NEB_OK;
}
