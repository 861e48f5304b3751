/* train_privacy.c: the privacy rule of a training, and where it is counted.
 *
 * The session keeps the account of a site in its run's folder, beside the log that can prove it too low. A training without a
 * session keeps it in OUT. For unit site the noise follows from the job alone; for unit sample from the data, too,
 * which the work knows. */
#include "base/log.h"
#include "run/session.h"
#include "train/train_internal.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* The noise of a mean update, beside the longest one that there may be. */
static void say_ratio(const struct neb_trainer *t, double noise)
{
    int trains = 0;
    for (int i = 0; i < t->job->n_sites; i++) trains += t->job->site[i].does == NEB_ROLE_TRAIN;
    double values = (double)(t->work ? neb__work_slab_values(t->work) : 0);
    double ratio = noise * sqrt(values / (trains > 0 ? trains : 1));
    if (ratio > 1)
        neb__warn(
            "privacy.unit: site: in the mean of %d sites the noise is %.3g times as long as an update may "
            "be; "
            "the model will hardly learn. It takes about %.2g sites until both are alike; unit: sample needs "
            "far less noise",
            trains, ratio, trains * ratio * ratio);
}

neb_status neb__trainer_set_privacy(struct neb_trainer *t)
{
    struct neb_privacy_rule rule;
    if (!strcmp(t->job->privacy.aggregate, "secure")) NEB_TRY(neb__session_set_secure(t->session));
    if (!strcmp(t->job->privacy.unit, "none")) return NEB_OK;
    if (!strcmp(t->job->privacy.unit, "site")) {
        NEB_TRY(neb__session_site_rule(t->job, &rule));
        say_ratio(t, rule.step.noise);
    } else if (t->gate || !neb__work_privacy(t->work, &rule)) {
        return neb__doc_fail(
            &t->job->doc, "privacy.unit",
            "privacy.unit: sample works in one process of a site: leave out `parallel` and give the "
            "process all cores (train.threads), or let several sites of one process each train");
    }
    return neb__session_set_privacy(t->session, &rule);
}

neb_status neb__trainer_open_account(struct neb_trainer *t)
{
    struct neb_privacy_rule rule;
    char path[PATH_MAX];
    const bool counted = neb__work_privacy(t->work, &rule);
    if (t->session) {
        if (counted) neb__work_charge(t->work, neb__session_privacy_ledger(t->session));
        return NEB_OK;
    }
    if (snprintf(path, sizeof path, "%s/privacy", t->job->out) >= (int)sizeof path)
        return neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", t->job->out);
    if (!counted) return neb__privacy_ledger_absent(path);
    NEB_TRY(neb__privacy_ledger_open(path, &rule, &t->privacy));
    neb__work_charge(t->work, t->privacy);
    return NEB_OK;
}
