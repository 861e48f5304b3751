/* train_sites.c: a training and its session with the other sites.
 *
 * With strategy replica the sites share all trainable parameters: the loop meets the session after every
 * step, and the session changes the parameters when a record is committed. The sites of a split job (relay,
 * tutor, pipeline) have no parameters in common. Their session serves the stream alone, so they never meet it. */
#include "train/train_internal.h"
#include "base/clock.h"
#include "base/log.h"
#include "run/job_facts.h"
#include "run/session.h"
#include "run/site_status.h"

#include <stdio.h>
#include <string.h>

enum { QUORUM_SECONDS = 20, FIRST_SECONDS = 7 * 86400, TELL_SECONDS = 20 };
static const double sample_seconds = 0.5;

/* ---- opening ------------------------------------------------------------------------------------------- */

/* Registers the trainable parameters by name, at the place where they lie. */
static neb_status register_params(struct neb_trainer *t)
{
    neb_params *ps = neb__work_params(t->work);
    bool host = neb__work_slab_on_host(t->work) || neb__work_is_split(t->work);
    neb_device *dev = host ? NULL : neb__work_device(t->work);
    int64_t n;
    float *slab = neb__work_slab(t->work, &n);
    for (int i = 0; i < neb_params_count(ps); i++) {
        const neb_param *p = neb_params_at(ps, i);
        if (!neb_param_trainable(p)) continue;
        struct neb_session_param q = {
            .name = neb_param_name(p), .values = slab + neb_param_offset(p), .device = dev};
        q.ndim = neb_param_shape(p, q.shape);
        NEB_TRY(neb_session_register(t->session, &q));
    }
    return NEB_OK;
}

/* The session has a copy of the parameters, which a step makes old. */
static bool keeps_apart(const struct neb_trainer *t)
{
    return t->gate || neb__work_is_split(t->work);
}

/* A split job's sites have different models. */
static neb_status tell_job(struct neb_trainer *t, const struct neb_hash *tokenizer)
{
    struct neb_hash own;
    const struct neb_hash *frozen = t->gate ? neb__gate_frozen(t->gate) : NULL;
    bool any = false;
    if (!t->gate) NEB_TRY(neb__work_frozen_hash(t->work, &any, &own));
    if (any) frozen = &own;
    const bool textless = t->gate ? neb__gate_textless(t->gate) : t->data.textless;
    return neb__session_tell_job(t->session, t->job, tokenizer, t->split ? NULL : frozen, textless,
                                 t->stage ? t->stage->place.cut : NULL);
}

neb_status neb__trainer_open_session(struct neb_trainer *t)
{
    struct neb_session_config c = neb__session_config(t->job, t->job->at);
    if (t->split && t->job->wan.recorded) return NEB_OK; /* a folder stands for the other site */
    NEB_TRY(neb_session_open(neb__session_folder(t->job, t->job->at), &c, &t->session));
    neb__session_on_request(t->session, keeps_apart(t));
    if (t->job->settings.outer_lr) neb__session_keep_outer(t->session);
    NEB_TRY(neb__session_check_roster(t->session, t->job, t->job->at));
    const struct neb_hash *tokenizer = t->gate       ? neb__gate_tokenizer(t->gate)
                                       : t->data.tok ? neb__tok_hash(t->data.tok)
                                                     : NULL;
    NEB_TRY(tell_job(t, tokenizer));
    NEB_TRY(neb__trainer_set_privacy(t));
    if (t->gate && !t->stage) return neb__gate_register(t->gate, t->session);
    return t->split || t->stage ? NEB_OK : register_params(t);
}

static void idle_at_start(void *trainer)
{
    neb__trainer_sample(trainer, "waiting", false);
}

/* A run begins when all sites are there and agree. A site that comes back may have to go on alone. */
neb_status neb__trainer_start_session(struct neb_trainer *t, bool first)
{
    struct neb_session_status s;
    int64_t since = neb__now_ns();
    NEB_TRY(neb__session_start(t->session, first ? FIRST_SECONDS : QUORUM_SECONDS, idle_at_start, t));
    neb_session_get_status(t->session, &s);
    double waited = neb__seconds_since(since);
    if (s.ended) {
        neb__meter_event(&t->meter, t->progress.step, "restart", "the run has ended");
    } else if (first) {
        neb__meter_add(&t->meter, NEB_TIME_WAIT, waited);
        neb__meter_event(&t->meter, t->progress.step, "start", "all sites agree after %.1f s", waited);
    } else {
        neb__meter_add(&t->meter, NEB_TIME_RECOVER, waited);
        neb__meter_event(&t->meter, t->progress.step, "restart", "back after %.1f s", waited);
    }
    return NEB_OK;
}

void neb__trainer_refuse(const struct neb_job *job)
{
    const struct neb_job_site *site = &job->site[job->at];
    char why[256];
    snprintf(why, sizeof why, "%s", neb_last_error());
    neb__session_refuse(neb__session_folder(job, job->at), site, why, TELL_SECONDS);
}

/* ---- rounds -------------------------------------------------------------------------------------------- */

neb_session *neb__trainer_rounds(const struct neb_trainer *t)
{
    return t->split || t->stage ? NULL : t->session;
}

neb_status neb__trainer_refresh(struct neb_trainer *t, bool changed)
{
    int64_t n;
    if (t->gate || neb__work_is_split(t->work))
        return NEB_OK; /* the ranks do it when they get their values */
    neb_params_slab(neb__work_params(t->work), &n);
    return changed ? neb_params_refresh(neb__work_params(t->work), 0, n) : NEB_OK;
}

/* Every decision of the rate controller goes into the metrics.
 * The meter notes an event when one changes something. */
static void measure_session(struct neb_trainer *t, const struct neb_session_status *s)
{
    if (s->decisions == t->decisions) return;
    t->decisions = s->decisions;
    int64_t step = t->progress.step;
    neb__metrics_put(t->metrics, step, "wan/update_bytes", s->update_bytes);
    if (s->ceiling >= 0) neb__metrics_put(t->metrics, step, "wan/ceiling_bytes", s->ceiling);
}

/* Shows for whom and for what this site waits. */
void neb__trainer_waits(struct neb_trainer *t)
{
    struct neb_session_status s;
    neb_session_get_status(t->session, &s);
    neb__trainer_sample(t, "waiting", false);
    if (s.waiting_s > 0) neb__progress_waits(&t->show, s.note);
}

/* The parameters come to where the session reads and changes them, if it may. */
static neb_status bring(struct neb_trainer *t)
{
    if (!keeps_apart(t) || !neb__session_asks(t->session)) return NEB_OK;
    return t->gate ? neb__gate_fetch(t->gate) : neb__ranks_fetch(t);
}

/* What the session has changed goes to all ranks. all: that may be anything. */
static neb_status pass_on(struct neb_trainer *t, bool changed, bool all)
{
    size_t first, n;
    if (!changed) return NEB_OK;
    if (!t->gate) return neb__ranks_share(t);
    neb__session_touched(t->session, &first, &n);
    if (all) return neb__gate_share_all(t->gate);
    return n ? neb__gate_share(t->gate, first, n) : NEB_OK;
}

/* The meter takes samples while the session waits. */
neb_status neb__trainer_meet(struct neb_trainer *t, int64_t tokens, bool *ended)
{
    struct neb_session_status before, after;
    int64_t since = neb__now_ns();
    double recovered = neb__gate_recovered(t->gate);
    neb_status status;
    if (!t->gate) NEB_TRY(neb__work_settle(t->work));
    neb_session_get_status(t->session, &before);
    do {
        bool changed = false;
        NEB_TRY(bring(t));
        status = neb_step_within(t->session, tokens, sample_seconds, &changed);
        NEB_TRY(neb__trainer_refresh(t, changed));
        NEB_TRY(pass_on(t, changed, status == NEB_ERR_CANCELLED));
        if (status == NEB_ERR_AGAIN) NEB_TRY(neb__ranks_idle(t));
        if (status == NEB_ERR_AGAIN) neb__trainer_waits(t);
        tokens = NEB_NO_STEP;
    } while (status == NEB_ERR_AGAIN && !*t->stop);
    neb_session_get_status(t->session, &after);
    double elsewhere = after.wait_s - before.wait_s + neb__gate_recovered(t->gate) - recovered;
    neb__meter_add(&t->meter, NEB_TIME_ENCODE, neb__seconds_since(since) - elsewhere);
    measure_session(t, &after);
    t->show.reached = (double)after.tokens;
    if (status == NEB_ERR_CANCELLED && after.dropped > 0)
        neb__meter_event(&t->meter, t->progress.step, "dropped",
                         "%.1f %% of this site's last work is not in the model", 100 * after.dropped);
    *ended = status == NEB_ERR_CANCELLED;
    return *ended || status == NEB_ERR_AGAIN ? NEB_OK : status;
}

/* No step is made: the parameters stay up to date where they were registered. */
static neb_status attend(struct neb_trainer *t, double seconds)
{
    neb__session_on_request(t->session, false);
    neb_status status = neb_session_attend(t->session, seconds);
    neb__session_on_request(t->session, keeps_apart(t));
    return status;
}

neb_status neb__trainer_await_round(struct neb_trainer *t, bool *ended)
{
    int64_t since = neb__now_ns();
    NEB_TRY(t->gate ? neb__gate_fetch(t->gate) : neb__ranks_fetch(t));
    neb_status status = attend(t, sample_seconds);
    *ended = status == NEB_ERR_CANCELLED;
    NEB_TRY(pass_on(t, true, *ended));
    if (!*ended) NEB_TRY(neb__ranks_idle(t));
    neb__meter_add(&t->meter, NEB_TIME_WAIT, neb__seconds_since(since));
    neb__trainer_sample(t, "waiting", false);
    NEB_TRY(neb__trainer_refresh(t, true));
    return *ended || status == NEB_ERR_AGAIN ? NEB_OK : status;
}

/* If the run has ended already, this site makes no step. */
neb_status neb__trainer_meet_first(struct neb_trainer *t, bool *ended)
{
    struct neb_session_status s;
    NEB_TRY(neb__trainer_meet(t, NEB_NO_STEP, ended));
    neb_session_get_status(t->session, &s);
    if (*ended) neb__progress_line(&t->show, "this run has ended at record %" PRId64, s.applied);
    return NEB_OK;
}

/* ---- witnesses ----------------------------------------------------------------------------------------- */

bool neb__trainer_is_witness(const struct neb_trainer *t)
{
    struct neb_session_member m[NEB_JOB_SITES];
    int n = neb__trainer_rounds(t) ? neb_session_members(t->session, m, NEB_JOB_SITES) : 0;
    for (int i = 0; i < n; i++)
        if (m[i].self) return !m[i].trains;
    return false;
}

/* A witness votes and stores. An observer does not even vote. Both follow what the others learn and make no step. */
neb_status neb__trainer_attend(struct neb_trainer *t)
{
    neb_status status = NEB_OK;
    bool observes = neb__session_observes(t->session);
    const char *role = observes ? "observer" : "witness";
    neb__info(
        observes
            ? "this site is an observer: it follows the run and gets its model, and neither votes nor trains"
            : "this site is a witness: it votes and stores, and does not train");
    while (status == NEB_OK && !*t->stop) {
        status = attend(t, 1);
        neb__meter_sample(&t->meter, &(struct neb_meter_point){0}, role, false);
    }
    if (*t->stop) return NEB_ERR_CANCELLED;
    if (status != NEB_ERR_CANCELLED) return status;
    NEB_TRY(neb__trainer_refresh(t, true));
    return pass_on(t, true, true);
}
