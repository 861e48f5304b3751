/* train_privacy.c: the privacy rule of a training, and where it is counted.
 *
 * The session keeps the account of a site in its run's folder, beside the log that can prove it too low. A training without a
 * session keeps it in OUT. For unit site the noise follows from the job alone; for unit sample from the number of samples, too,
 * which the work knows, or the ranks of a gateway.
 *
 * A step of unit sample is charged by the process that has the account: the gateway, the first of ranks that were started by hand, or the only
 * process. The ranks have no account. What they make again after a loss must be the same (gate_private.c). */
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

bool neb__trainer_costs(const struct neb_trainer *t)
{
    return !strcmp(t->job->privacy.unit, "sample") &&
           (t->gate || (t->work && neb__work_privacy(t->work, NULL)));
}

static neb_status sample_rule(const struct neb_trainer *t, struct neb_privacy_rule *out)
{
    if (t->gate) return neb__work_sample_rule(t->job, neb__gate_samples(t->gate), out);
    if (neb__work_privacy(t->work, out)) return NEB_OK;
    return neb__fail(NEB_ERR_INTERNAL, "the samples of a private training are not known");
}

neb_status neb__trainer_set_privacy(struct neb_trainer *t)
{
    struct neb_privacy_rule rule;
    if (!strcmp(t->job->privacy.aggregate, "secure")) NEB_TRY(neb__session_set_secure(t->session));
    if (!strcmp(t->job->privacy.unit, "none")) return NEB_OK;
    if (!strcmp(t->job->privacy.unit, "site")) {
        NEB_TRY(neb__session_site_rule(t->job, &rule));
        say_ratio(t, rule.step.noise);
    } else {
        NEB_TRY(sample_rule(t, &rule));
    }
    return neb__session_set_privacy(t->session, &rule);
}

neb_status neb__trainer_open_account(struct neb_trainer *t)
{
    struct neb_privacy_rule rule;
    char path[PATH_MAX];
    const bool counted = neb__trainer_costs(t);
    if (t->session) {
        if (counted) t->account = neb__session_privacy_ledger(t->session);
        return NEB_OK;
    }
    if (snprintf(path, sizeof path, "%s/privacy", t->job->out) >= (int)sizeof path)
        return neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", t->job->out);
    if (!counted) return neb__privacy_ledger_absent(path);
    NEB_TRY(sample_rule(t, &rule));
    NEB_TRY(neb__privacy_ledger_open(path, &rule, &t->privacy));
    t->account = t->privacy;
    return NEB_OK;
}

neb_status neb__trainer_charge(struct neb_trainer *t)
{
    if (!t->account) return NEB_OK;
    neb_status status = neb__privacy_take_step(t->account);
    if (status == NEB_ERR_LIMIT) return neb__fail(status, "%s", neb_last_error());
    NEB_TRY(status);
    if (t->gate) return NEB_OK; /* it makes the key */
    NEB_TRY(neb__step_key_new(&t->key));
    t->keyed = true;
    return NEB_OK;
}
