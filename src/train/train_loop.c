/* train_loop.c: the loop of a training: step, show, measure, evaluate, checkpoint.
 *
 * The stop flag is read between steps, so a checkpoint is always of a whole step. */
#include "train/train_internal.h"
#include "base/clamp.h"
#include "base/clock.h"
#include "base/log.h"
#include "run/session.h"
#include "store/metrics.h"

#include <math.h>
#include <time.h>

enum { WARM_STEPS = 5, MAX_SKIPPED = 20, END_SECONDS = 900, SLACK_NS = 500000000, NAP_NS = 50000000 };

void neb__trainer_sample(struct neb_trainer *t, const char *state, bool now)
{
    struct neb_meter_point p = {.step = t->progress.step,
                                .tokens = t->progress.tokens,
                                .loss = t->show.loss,
                                .data_wait = neb__trainer_data_wait(t),
                                .seconds = t->progress.seconds,
                                .nonfinite = t->skipped};
    neb__meter_sample(&t->meter, &p, state, now);
}

/* Where this site is in the steps of the job: where the furthest site is. By its own steps a slow site would be in the middle of the
 * learning rate's schedule when the others are at its end. Steps that cost privacy, repeat exactly, or were given to this site or
 * another one (sites[].train.steps) are its own. */
static int64_t place(const struct neb_trainer *t)
{
    const bool alone = neb__trainer_costs(t) || neb__job_has_own_steps(t->job);
    neb_session *rounds = alone ? NULL : neb__trainer_rounds(t);
    const int64_t own = t->progress.step, run = rounds ? neb__session_run_steps(rounds) : 0;
    return run > own ? run : own;
}

/* ---- a notice ------------------------------------------------------------------------------------------ */

/* What a checkpoint takes until it is on disk, as far as one was made. */
static double save_seconds(const struct neb_trainer *t)
{
    struct neb_ckpt_report r = {0};
    if (t->writer) neb__ckpt_writer_report(t->writer, &r);
    return t->save_s + r.seconds;
}

/* Before a micro-batch: the rest of the step and a checkpoint would take longer than the machine gives. Without a step to go by
 * nobody knows, and the step is given up. */
static bool gives_up(void *trainer)
{
    const struct neb_trainer *t = trainer;
    const double left = neb__train_left(t->job);
    if (!*t->stop || isinf(left)) return false;
    double rest = t->step_s > 0 ? t->step_s - neb__seconds_since(t->step_ns) : INFINITY;
    return neb__clamp(rest, 0, INFINITY) + save_seconds(t) > left;
}

/* ---- a step -------------------------------------------------------------------------------------------- */

/* The step had nothing to predict and was skipped. Its loss and norm are 0 and mean nothing. */
static bool nothing_learned(const struct neb_work_step *s)
{
    return s->skipped && isfinite(s->loss) && isfinite(s->grad_norm);
}

static void measure(struct neb_trainer *t, const struct neb_work_step *s, double lr)
{
    if (!s->step) return;
    if (t->empty) neb__metrics_put(t->metrics, s->step, "empty_steps", (double)t->empty);
    if (nothing_learned(s)) return;
    neb__metrics_put(t->metrics, s->step, "loss", s->loss);
    neb__metrics_put(t->metrics, s->step, "grad_norm", s->grad_norm);
    neb__metrics_put(t->metrics, s->step, "lr", lr);
    neb__metrics_put(t->metrics, s->step, "tokens_per_second", neb__progress_rate(&t->show));
    if (s->parts[2] != 0) neb__metrics_put(t->metrics, s->step, "hidden_loss", s->parts[2]);
    for (int i = 0; i < NEB_OBJECTIVE_LOSSES; i++)
        if (t->job->objective->losses[i])
            neb__metrics_put(t->metrics, s->step, t->job->objective->losses[i], s->parts[i]);
}

/* The parameters fitted, so it is the activations of a batch that do not. */
static neb_status too_large(const struct neb_trainer *t)
{
    const struct neb_job_train *c = &t->job->train;
    if (t->stage && t->work && neb__work_depth(t->work) > 1)
        return neb__fail(NEB_ERR_NOMEM,
                         "there is no memory for a step with %d micro-batches in flight: make wan.depth or "
                         "train.tokens (%" PRId64 ") smaller, or set model.recompute: yes",
                         neb__work_depth(t->work), c->tokens);
    return neb__fail(NEB_ERR_NOMEM,
                     "there is no memory for a step: make train.tokens (%" PRId64
                     ") smaller and train.micro (%" PRId64
                     ") larger by the same factor, which learns the same, or set model.recompute: yes",
                     c->tokens, c->micro);
}

/* With train.speed a step takes at least the time of its tokens. A little time that was lost before, by merging or at a
 * checkpoint, is made up for; more is not, or a site that was stopped would train faster than it may. */
static void keep_speed(struct neb_trainer *t, int64_t start, int64_t tokens)
{
    if (!(t->job->train.speed > 0) || t->stage) return; /* a stage keeps to it in every turn */
    if (t->pace_ns < start - SLACK_NS) t->pace_ns = start - SLACK_NS;
    t->pace_ns += (int64_t)(1e9 * (double)tokens / t->job->train.speed);
    neb__ranks_busy(t, true);
    while (!*t->stop && neb__now_ns() < t->pace_ns) {
        int64_t left = t->pace_ns - neb__now_ns();
        struct timespec moment = {.tv_nsec = neb__clamp(left, 0, NAP_NS)};
        nanosleep(&moment, NULL);
    }
    neb__ranks_busy(t, false);
}

/* The time that a stage has waited and coded in the step belongs to the meter; then bits and depth follow the line. */
static void tell_stage(struct neb_trainer *t)
{
    struct neb_stage_facts facts;
    if (t->gate)
        neb__gate_facts(t->gate, &facts);
    else
        neb__stage_facts_of(t->work, &facts);
    const struct neb_site_stage_times now = facts.times;
    neb__meter_add(&t->meter, NEB_TIME_WAIT, now.idle - t->told.idle);
    neb__meter_add(&t->meter, NEB_TIME_ENCODE, t->stage->code_s - t->told_code);
    t->told = now;
    t->told_code = t->stage->code_s;
    t->depth = neb__stage_control(t->stage, &facts);
    if (t->gate) neb__gate_set_depth(t->gate, t->depth);
}

static neb_status one_step(struct neb_trainer *t, bool *ended)
{
    int64_t start = neb__now_ns();
    double recovered = neb__gate_recovered(t->gate);
    float lr =
        neb_schedule_lr_within(&t->schedule, place(t), t->progress.seconds, 60 * t->job->train.minutes);
    struct neb_work_step step = {0};
    t->step_ns = start;
    neb_status status = neb__ranks_step(t, lr, &step);
    if (status == NEB_ERR_NOMEM) return too_large(t);
    if (status == NEB_OK) t->step_s = fmax(neb__seconds_since(start), 0.8 * t->step_s);
    t->skipped = status == NEB_ERR_NONFINITE ? t->skipped + 1 : 0;
    if (t->skipped >= MAX_SKIPPED)
        return neb__fail(status, "stopping: %d steps in a row were not finite; the last checkpoint is good",
                         t->skipped);
    if (status != NEB_OK && status != NEB_ERR_NONFINITE) return status;
    if (t->stage) tell_stage(t);
    keep_speed(t, start, step.tokens);
    t->progress.step++;
    t->progress.tokens += step.tokens;
    t->progress.seconds += neb__seconds_since(start) - (neb__gate_recovered(t->gate) - recovered);
    if (t->progress.step == t->began.step + WARM_STEPS) t->warm = t->progress;
    if (step.empty && !t->empty++)
        neb__warn("step %" PRId64 " changes nothing, because no token of its text was masked; a larger "
                  "train.tokens makes this rare",
                  t->progress.step);
    neb__progress_step(&t->show, t->progress.step, t->job->train.steps,
                       nothing_learned(&step) ? t->show.loss : step.loss, step.tokens, (double)lr);
    measure(t, &step, (double)lr);
    /* the tokens say how much this site's update weighs */
    if (neb__trainer_rounds(t)) NEB_TRY(neb__trainer_meet(t, step.empty ? 0 : step.tokens, ended));
    neb__trainer_sample(t, "training", false);
    return NEB_OK;
}

/* ---- checkpoints --------------------------------------------------------------------------------------- */

static int64_t last_saved(struct neb_trainer *t)
{
    struct neb_ckpt_report r;
    if (t->gate) return neb__gate_saved_step(t->gate);
    neb__ckpt_writer_report(t->writer, &r);
    return r.last_step;
}

static neb_status write_checkpoint(struct neb_trainer *t)
{
    struct neb_stage_marks marks = {0};
    struct neb_resume_member member = {.session = neb__trainer_rounds(t)};
    bool takes_part = member.session || t->stage;
    neb__metrics_flush(t->metrics);
    if (t->gate && !t->stage) return neb__gate_save(t->gate, member.session ? &member : NULL, &t->progress);
    if (t->split) NEB_TRY(neb__split_saving(t->split));
    if (t->stage) {
        NEB_TRY(neb__stage_site_saving(t->stage, &marks));
        member.bytes = &marks;
        member.n = sizeof marks;
    }
    if (t->gate) {
        NEB_TRY(neb__gate_save(t->gate, &member, &t->progress));
        neb__stage_site_saved(t->stage, last_saved(t), t->progress.step, &marks);
        return NEB_OK;
    }
    neb__ranks_busy(t, true);
    neb_status status =
        neb__resume_save(t->work, takes_part ? &member : NULL, t->writer, &t->progress, neb__ranks_save, t);
    neb__ranks_busy(t, false);
    NEB_TRY(status);
    if (t->split)
        neb__split_saved(t->split, t->writer, t->progress.step, (uint64_t)neb__work_batches(t->work));
    if (t->stage) neb__stage_site_saved(t->stage, last_saved(t), t->progress.step, &marks);
    return NEB_OK;
}

static neb_status save(struct neb_trainer *t)
{
    const int64_t start = neb__now_ns();
    neb_status status = write_checkpoint(t);
    if (status == NEB_OK) t->save_s = neb__seconds_since(start);
    return status;
}

/* Waits until the checkpoint that was made last is on disk. */
static neb_status wait_saved(struct neb_trainer *t)
{
    const struct neb_resume_member member = {.session = neb__trainer_rounds(t)};
    if (!t->gate) return neb__ckpt_writer_wait(t->writer);
    return neb__gate_saved(t->gate, member.session ? &member : NULL, &t->progress);
}

/* Writes the last checkpoint unless it is there. If that fails, the model is written all the same: the steps
 * were made, and there may be room for the model. */
static void save_last(struct neb_trainer *t)
{
    (void)wait_saved(t);
    bool there = last_saved(t) == t->progress.step || (!t->session && t->loaded == t->progress.step);
    if (!there) t->unsaved = save(t);
    if (!there && t->unsaved == NEB_OK) t->unsaved = wait_saved(t);
}

/* The notice is too short for a checkpoint. The last one is whole, also if the next is broken off. */
static neb_status leave_at_once(struct neb_trainer *t)
{
    int64_t saved = last_saved(t) > t->loaded ? last_saved(t) : t->loaded;
    neb__progress_end(&t->show);
    neb__progress_line(&t->show,
                       "stopped after step %" PRId64
                       " without a checkpoint, which takes %.1f s and would not "
                       "be done within train.notice; the same command goes on from step %" PRId64,
                       t->progress.step, save_seconds(t), saved < 0 ? 0 : saved);
    return NEB_ERR_CANCELLED;
}

static neb_status save_and_stop(struct neb_trainer *t)
{
    if (save_seconds(t) > neb__train_left(t->job) && last_saved(t) != t->progress.step)
        return leave_at_once(t);
    NEB_TRY(save(t));
    neb__progress_end(&t->show);
    neb__progress_line(&t->show, "stopped at step %" PRId64 "; the same command goes on from there",
                       t->progress.step);
    return wait_saved(t) == NEB_OK ? NEB_ERR_CANCELLED : NEB_ERR_IO;
}

/* A stage that waits for its neighbours in a step, or in an evaluation, is at no place for a checkpoint. It needs none:
 * the next start goes on from the last one, and the neighbours' journals have the rest. */
static neb_status stop_in_step(struct neb_trainer *t)
{
    (void)wait_saved(t);
    int64_t saved = last_saved(t) > t->loaded ? last_saved(t) : t->loaded;
    neb__progress_end(&t->show);
    neb__progress_line(&t->show, "stopped in step %" PRId64 "; the same command goes on from step %" PRId64,
                       t->progress.step + 1, saved < 0 ? 0 : saved);
    return NEB_ERR_CANCELLED;
}

/* Text that can no longer be read ends a training between two steps. A site of several processes ends without a checkpoint of this
 * place: its ranks find the damage at different times. */
static neb_status leave_without_text(struct neb_trainer *t, neb_status why)
{
    if (t->gate || t->stage || neb__group_size(t->ranks) > 1) return why;
    save_last(t);
    neb__progress_end(&t->show);
    if (t->unsaved == NEB_OK)
        neb__progress_line(&t->show,
                           "stopped at step %" PRId64
                           ": text cannot be read (see the error above); with the text in order, the same "
                           "command goes on from there",
                           t->progress.step);
    return why;
}

/* A checkpoint is due to make room elsewhere. */
static bool wants_save(const struct neb_trainer *t)
{
    return neb__gate_wants_save(t->gate) || (t->stage && neb__stage_site_wants_save(t->stage));
}

/* ---- the end ------------------------------------------------------------------------------------------- */

/* With train.minutes the receiving site's clock decides. A sending site that stopped first would leave the
 * other one waiting for the next item. */
static bool finished(const struct neb_trainer *t)
{
    const struct neb_job_train *c = &t->job->train;
    bool sends = t->split && t->split->produces && !t->job->wan.recorded;
    bool late = c->minutes > 0 && t->progress.seconds >= 60 * c->minutes;
    return place(t) >= c->steps || (late && !sends) || t->spent;
}

static bool has_fixed_pace(const struct neb_trainer *t)
{
    return t->job->wan.merge_after >= 0;
}

/* A run of fixed pace makes its steps and no more. Once every round is merged, the other sites have made theirs, too,
 * and the run may end. Every step of a private training costs, so such a site waits without a step, too. */
static neb_status await_end(struct neb_trainer *t, bool *ended)
{
    if ((!has_fixed_pace(t) && !neb__trainer_costs(t)) || !neb__trainer_rounds(t)) return NEB_OK;
    while (!*ended && !*t->stop) {
        bool ready = !has_fixed_pace(t) || neb__session_settled(t->session);
        if (!t->done_ns && ready && neb__session_done(t->session) == NEB_OK) t->done_ns = neb__now_ns();
        NEB_TRY(neb__trainer_await_round(t, ended));
    }
    return *ended ? NEB_OK : save_and_stop(t);
}

/* In a replica run every site goes on until the run ends for all of them, at the leading site's last step. By
 * then the work of all sites is committed, and they hold the same model. */
static bool over(struct neb_trainer *t, bool ended)
{
    if (ended || !finished(t)) return ended;
    if (!neb__trainer_rounds(t) || has_fixed_pace(t) || neb__trainer_costs(t)) return true;
    if (!t->done_ns && neb__session_done(t->session) == NEB_OK) t->done_ns = neb__now_ns();
    if (neb__seconds_since(t->done_ns) < END_SECONDS) return false;
    neb__warn(
        "the run did not end at the other sites within %d s: this site's model may lack their last work",
        END_SECONDS);
    return true;
}

/* A receiving site whose last checkpoint is missing does not end the stream: when it goes on from an older
 * one, it needs the items after that once more. */
static neb_status end_stream(struct neb_trainer *t)
{
    if (!t->split) return NEB_OK;
    if (t->unsaved != NEB_OK && !t->split->produces) return NEB_OK;
    return neb__split_finish(t->split, t->stop);
}

/* ---- the loop ------------------------------------------------------------------------------------------ */

/* Waits until the other site of a split job lets this one go on. *ended: the other site has ended. A request
 * to stop returns NEB_OK, since the loop handles it. */
static neb_status await_other(struct neb_trainer *t, bool *ended)
{
    int64_t since = neb__now_ns();
    const int64_t micro = t->job->train.micro;
    if (neb__split_repeats(t->split, (uint64_t)(neb__work_batches(t->work) + micro))) return NEB_OK;
    neb_status status = neb__split_wait(t->split, micro, t->stop);
    neb__meter_add(&t->meter, NEB_TIME_WAIT, neb__seconds_since(since));
    if (t->show.tokens)
        t->progress.seconds += neb__seconds_since(since); /* the first wait is part of starting */
    if (status == NEB_ERR_CANCELLED) neb__progress_line(&t->show, "%s", neb_last_error());
    *ended = status == NEB_ERR_CANCELLED;
    return *ended || status == NEB_ERR_AGAIN ? NEB_OK : status;
}

static bool due(int64_t every, int64_t step)
{
    return every > 0 && step % every == 0;
}

/* The stages of a pipeline evaluate together, behind a certain step. A checkpoint between the step and its evaluation would make
 * the next start leave it out, and its neighbours wait for it. */
static bool stops_here(const struct neb_trainer *t, bool evaluates)
{
    return *t->stop && !(t->stage && evaluates);
}

/* A request to stop that comes while a stage waits for its neighbours, or for its journals, ends it where it is. */
static neb_status or_stopped(struct neb_trainer *t, neb_status status)
{
    return status == NEB_ERR_AGAIN && t->stage && *t->stop ? stop_in_step(t) : status;
}

neb_status neb__trainer_loop(struct neb_trainer *t)
{
    const struct neb_job_train *c = &t->job->train;
    bool ended = false;
    if (c->notice > 0 && t->work && !t->split) (void)neb__work_may_give_up(t->work, gives_up, t);
    if (neb__trainer_rounds(t)) NEB_TRY(neb__trainer_meet_first(t, &ended));
    while (!over(t, ended)) {
        if (t->split) NEB_TRY(await_other(t, &ended));
        if (ended) break;
        if (t->stage && *t->stop) return or_stopped(t, save_and_stop(t));
        neb_status status = *t->stop ? NEB_OK : one_step(t, &ended);
        if (status == NEB_ERR_CANCELLED && t->split && t->split->produces) break; /* no more is wanted */
        if (status == NEB_ERR_LIMIT && neb__trainer_rounds(t)) { /* the run goes on, with the others' work */
            t->spent = true;
            continue;
        }
        if (status == NEB_ERR_CANCELLED && t->work && neb__work_gave_up(t->work)) status = NEB_OK;
        if (status != NEB_OK && t->work && neb__work_text_failed(t->work))
            return leave_without_text(t, status);
        NEB_TRY(or_stopped(t, status));
        bool evaluates = due(c->eval_every, t->progress.step);
        if (stops_here(t, evaluates)) return or_stopped(t, save_and_stop(t));
        if (evaluates) {
            neb__ranks_busy(t, true);
            status = neb__trainer_evaluate(t, neb__trainer_rounds(t) != NULL);
            neb__ranks_busy(t, false);
            if (status == NEB_ERR_CORRUPT) return leave_without_text(t, status);
            NEB_TRY(or_stopped(t, status));
        }
        if (t->stage && *t->stop) return or_stopped(t, save_and_stop(t));
        if (due(c->save_every, t->progress.step) || wants_save(t)) NEB_TRY(or_stopped(t, save(t)));
    }
    NEB_TRY(await_end(t, &ended));
    save_last(t);
    return end_stream(t);
}
