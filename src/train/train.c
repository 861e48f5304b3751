/* train.c: a training from its job to its end: opening, signals, closing.
 *
 * A signal only sets a flag, which the loop reads between steps. A second signal has its default action and
 * ends the process. Nothing is lost by that, because the last checkpoint on disk is whole. Batch systems and clouds often give
 * notice of a pre-emption several times over: a scheduler signals the step and its processes, a terminal hangs up. What
 * comes within a few seconds is the same notice, unless somebody types it. */
#include "train/train.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "privacy/ledger.h"
#include "run/session.h"
#include "run/site_status.h"
#include "train/gate_channel.h"
#include "train/launch.h"
#include "train/plan_here.h"
#include "train/train_internal.h"

#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- signals ------------------------------------------------------------------------------------------- */

enum { RANK_LOSSES = 3, NOTICE_S = 4 };

static volatile sig_atomic_t asked_to_stop; /* by this signal; 0: not yet */
static _Atomic int64_t asked_ns;            /* when */

/* The launcher takes any other signal of a rank for a lost rank, and reports its own instead. */
int neb__train_signal(void)
{
    return asked_to_stop && neb__group_started() ? SIGINT : asked_to_stop;
}

/* The time comes first: whatever sees the request, a handler on another thread too, sees when it came. */
static void ask(int number)
{
    asked_ns = neb__now_ns();
    asked_to_stop = number;
}

void neb__train_ask(void)
{
    if (!asked_to_stop) ask(SIGTERM);
}

double neb__train_left(const struct neb_job *job)
{
    if (!asked_to_stop || !(job->train.notice > 0)) return INFINITY;
    return job->train.notice - neb__seconds_since(asked_ns);
}

/* At a soft limit of processor time the kernel sends SIGXCPU every second of it, which may be many times a second of a
 * clock. It stays one notice. */
static void on_signal(int number)
{
    if (!asked_to_stop) {
        ask(number);
        return;
    }
    if (number == SIGXCPU || (number != SIGINT && neb__seconds_since(asked_ns) < NOTICE_S)) return;
    signal(number, SIG_DFL);
    raise(number); /* when this handler has returned */
}

/* A signal that is ignored (nohup, a shell's background job) stays ignored. */
static void catch_signals(void)
{
    /* SIGUSR1: also by way of mpirun; SIGUSR2, SIGXCPU: batch systems, before a job's time is over */
    static const int list[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU};
    struct sigaction now;
    asked_to_stop = 0;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (!sigaction(list[i], NULL, &now) && now.sa_handler != SIG_IGN) signal(list[i], on_signal);
}

/* ---- opening and closing ------------------------------------------------------------------------------- */

neb_status neb__train_schedule(const struct neb_job *job, struct neb_schedule *out)
{
    static const char *const names[] = {"constant", "linear", "cosine", "inverse-sqrt", "wsd"};
    const struct neb_job_train *t = &job->train;
    for (int i = 0; i < 5; i++)
        if (t->schedule && !strcmp(t->schedule, names[i])) {
            *out = (struct neb_schedule){.kind = (neb_schedule_kind)i,
                                         .peak = (float)t->lr,
                                         .floor = (float)t->floor,
                                         .warmup = t->warmup >= 0 ? t->warmup : t->steps / 20,
                                         .total = t->steps,
                                         .decay = (float)t->decay_share};
            return neb_schedule_check(out);
        }
    return neb__doc_fail(&job->doc, "train.schedule", "train.schedule: no schedule is called '%s'",
                         t->schedule ? t->schedule : "");
}

/* The first rank makes the tokenizer and tokenises; the others find the result. */
static neb_status prepare_data(struct neb_trainer *t)
{
    neb_status status = NEB_OK;
    neb__group_busy(t->ranks, true);
    if (neb__trainer_leads(t)) status = neb__data_prepare(t->job, &t->data);
    status = neb__group_agree(t->ranks, status);
    if (status == NEB_OK) {
        if (!neb__trainer_leads(t)) status = neb__data_prepare(t->job, &t->data);
        status = neb__group_agree(t->ranks, status); /* the next operations are of other groups */
    }
    neb__group_busy(t->ranks, false);
    return status;
}

static neb_status open_work(struct neb_trainer *t)
{
    const struct neb_job *j = t->job;
    int64_t share = 0, shares = 1; /* of the text: the sites of a replica run divide it */
    NEB_TRY(prepare_data(t));
    if (j->at >= 0 && j->plan == NEB_STRATEGY_REPLICA)
        neb__job_share(j, &share, &shares);
    else if (j->at >= 0 && j->plan == NEB_STRATEGY_PIPELINE)
        NEB_TRY(neb__stage_site_open(j, &t->data, t->stop, &t->stage));
    else if (j->at >= 0)
        NEB_TRY(neb__split_open(j, &t->data, &t->split));
    const struct neb_step_links *links = t->split ? &t->split->links : NULL;
    neb__gate_lend_stage(t);
    if (t->stage) links = &t->stage->links;
    NEB_TRY(neb__work_open_ranks(&t->data, share, shares, links, t->ranks ? &t->layout : NULL, &t->work));
    NEB_TRY(neb__work_open_private(t->work));
    NEB_TRY(neb__work_collect(t->work));
    return t->split ? neb__split_share(t->split, neb__work_table(t->work)) : NEB_OK;
}

/* Goes on from the newest checkpoint, if there is one. */
static neb_status resume(struct neb_trainer *t)
{
    const struct neb_job_train *c = &t->job->train;
    snprintf(t->checkpoints, sizeof t->checkpoints, "%s/checkpoints", t->job->out);
    int keep = (int)(c->average > c->keep ? c->average : c->keep);
    if (neb__trainer_leads(t)) NEB_TRY(neb__ckpt_writer_create(t->checkpoints, keep, &t->writer));
    neb_status status = neb__resume_load(t->work, neb__trainer_rounds(t), t->checkpoints, &t->progress);
    if (status != NEB_OK && status != NEB_ERR_NOTFOUND) return status;
    t->loaded = status == NEB_OK ? t->progress.step : -1;
    if (status == NEB_OK) neb__info("going on from step %" PRId64, t->progress.step);
    return NEB_OK;
}

/* The other ranks: the same checkpoint, nothing of the site's. */
static neb_status join_first(struct neb_trainer *t)
{
    NEB_TRY(neb__group_agree(t->ranks, NEB_OK));
    NEB_TRY(neb__group_agree(t->ranks, resume(t)));
    return neb__ranks_compare(t);
}

static void waits(void *trainer)
{
    neb__trainer_waits(trainer);
}

/* A stage waits for another site, and its own ranks must live meanwhile. */
static neb_status stage_waits(void *trainer)
{
    struct neb_trainer *t = trainer;
    neb__trainer_waits(t);
    return t->gate ? neb__gate_alive(t->gate) : NEB_OK;
}

double neb__trainer_data_wait(const struct neb_trainer *t)
{
    return t->gate ? neb__gate_waited(t->gate) : neb__work_waited(t->work);
}

/* What the job left to the program stands in the log and, once, in the report. */
static void say_settings(struct neb_trainer *t)
{
    struct neb_settled list[NEB_SETTLED_MAX];
    int n = neb__job_settled(t->job, list);
    for (int i = 0; i < n; i++) {
        neb__info("%s is %s: %s", list[i].key, list[i].value, list[i].why);
        if (t->loaded < 0)
            neb__meter_event(&t->meter, t->progress.step, "chosen", "%s %s: %s", list[i].key, list[i].value,
                             list[i].why);
    }
}

static void begin_metrics(struct neb_trainer *t)
{
    t->metrics = neb__metrics_begin(t->job->out, t->loaded);
    neb__meter_begin(&t->meter, t->job, t->metrics, t->session, &neb__session_meter, t->progress.tokens);
    neb__meter_model(&t->meter, t->facts.trainable);
    say_settings(t);
}

/* The marks of the checkpoint before the one that was loaded. */
static bool older_marks(const struct neb_trainer *t, struct neb_stage_marks *out)
{
    int64_t steps[64];
    int n = neb__ckpt_list(t->checkpoints, steps, 64), at = n;
    while (at > 0 && steps[at - 1] >= t->loaded) at--;
    if (!at) return false;
    const bool before = neb__log_hush(true);
    neb_status status = neb__resume_bytes(t->checkpoints, steps[at - 1], out, sizeof *out);
    neb__log_hush(before);
    return status == NEB_OK;
}

static neb_status start_stage(struct neb_trainer *t)
{
    struct neb_stage_marks marks, older;
    bool resumes = t->loaded >= 0, has_older = false;
    if (resumes) NEB_TRY(neb__resume_bytes(t->checkpoints, t->loaded, &marks, sizeof marks));
    if (resumes) has_older = older_marks(t, &older);
    NEB_TRY(neb__stage_site_start(t->stage, t->session, resumes ? &marks : NULL, has_older ? &older : NULL,
                                  t->loaded, t->job->out));
    t->stage->idle = stage_waits;
    t->stage->idle_arg = t;
    neb__meter_stream(&t->meter, NULL, &t->stage->readings, true);
    return NEB_OK;
}

static neb_status open_trainer(struct neb_trainer *t)
{
    NEB_TRY(neb__train_schedule(t->job, &t->schedule));
    NEB_TRY(neb__group_agree(t->ranks, open_work(t)));
    t->met_links = true;
    if (!neb__trainer_leads(t) || t->gate_end) return join_first(t);
    neb_status status = t->job->at >= 0 ? neb__trainer_open_session(t) : NEB_OK;
    NEB_TRY(neb__group_agree(t->ranks, status));
    NEB_TRY(neb__group_agree(t->ranks, resume(t)));
    NEB_TRY(neb__ranks_compare(t));
    neb__trainer_find_facts(t);
    begin_metrics(t);
    if (t->session) {
        neb__ranks_busy(t, true);
        neb_status started = neb__trainer_start_session(t, t->loaded < 0);
        neb__ranks_busy(t, false);
        NEB_TRY(started);
        NEB_TRY(neb__ranks_share(t));
    }
    NEB_TRY(neb__trainer_open_account(t));
    if (t->stage) return start_stage(t);
    if (!t->split) return neb__trainer_refresh(t, t->session != NULL);
    NEB_TRY(neb__split_start(t->split, t->session, (uint64_t)neb__work_batches(t->work), t->job->out));
    if (t->session) t->split->idle = waits, t->split->idle_arg = t;
    neb__meter_stream(&t->meter, t->split->stream, &t->split->readings, t->split->produces);
    neb__trainer_sample(t, "training", true); /* tells the other site how many items are wanted */
    return NEB_OK;
}

/* The gateway: the ranks have model, data and checkpoint; this process has the site's part of the run. */
static neb_status open_gateway(struct neb_trainer *t)
{
    const struct neb_job *j = t->job;
    NEB_TRY(neb__train_schedule(j, &t->schedule));
    snprintf(t->checkpoints, sizeof t->checkpoints, "%s/checkpoints", j->out);
    NEB_TRY(neb__gate_open(t));
    if (j->at >= 0 && j->plan == NEB_STRATEGY_PIPELINE)
        NEB_TRY(neb__stage_site_open_at(j, &t->place, t->stop, &t->stage));
    t->met_links = true;
    if (j->at >= 0) NEB_TRY(neb__trainer_open_session(t));
    if (neb__trainer_rounds(t) && t->loaded >= 0)
        NEB_TRY(neb__resume_session(t->session, t->checkpoints, t->loaded));
    begin_metrics(t);
    neb__gate_begin(t->gate);
    if (!t->session) return neb__trainer_open_account(t);
    if (t->stage) {
        NEB_TRY(neb__trainer_start_session(t, t->loaded < 0));
        return start_stage(t);
    }
    NEB_TRY(neb__gate_fetch(t->gate)); /* the first start reads the initial values */
    NEB_TRY(neb__trainer_start_session(t, t->loaded < 0));
    NEB_TRY(neb__trainer_open_account(t));
    return neb__gate_share_all(t->gate);
}

/* What `nebula-i plan` foresees, as the device's allocator shows it. */
static void say_memory(const struct neb_trainer *t)
{
    struct neb_work_memory m;
    if (!t->work) return;
    neb__work_memory(t->work, &m);
    neb__debug("this process holds %" PRId64 " bytes of its device: %" PRId64 " of state, %" PRId64
               " for runs",
               m.state + m.runs, m.state, m.runs);
}

static void close_trainer(struct neb_trainer *t)
{
    say_memory(t);
    neb__gate_close(t->gate);
    neb__gate_leave(t);
    neb__meter_end(&t->meter);
    neb__metrics_close(t->metrics);
    neb__ckpt_writer_close(t->writer);
    neb__split_close(t->split);
    neb__stage_site_close(t->stage);
    neb_session_close(t->session);
    neb__work_close(t->work);
    neb__privacy_ledger_close(t->privacy);
    neb__step_key_wipe(&t->key);
    neb__layout_close(&t->layout);
    neb__data_free(&t->data);
}

/* Keeps other processes out of OUT: two would remove each other's checkpoints.
 * *lock -1: the file system cannot lock. */
static neb_status lock_out(const struct neb_job *job, int *lock)
{
    char path[PATH_MAX];
    *lock = -1;
    NEB_TRY(neb__file_make_dir(job->out, 0700));
    if (snprintf(path, sizeof path, "%s/lock", job->out) >= (int)sizeof path)
        return neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", job->out);
    neb_status status = neb__file_lock(path, NEB_LOCK_FILE, lock);
    if (status == NEB_ERR_BUSY)
        return neb__fail(
            status,
            "another process trains in %s (it holds %s): wait for it or stop it, or give this one "
            "another folder with out=FOLDER",
            job->out, path);
    if (status != NEB_OK)
        neb__warn("%s: nothing keeps a second process out of this folder", neb_last_error());
    return NEB_OK;
}

/* ---- running ------------------------------------------------------------------------------------------- */

static void begin_progress(struct neb_trainer *t)
{
    const struct neb_job *job = t->job;
    struct neb_session_status s = {0};
    neb__progress_begin(&t->show, job->name, job->train.log_every, t->progress.step);
    t->show.extra = neb__meter_line(&t->meter);
    t->show.limit_s = job->train.minutes > 0 ? fmax(1, 60 * job->train.minutes - t->progress.seconds) : 0;
    if (!neb__trainer_rounds(t)) return;
    neb_session_get_status(t->session, &s);
    t->show.reached = t->show.first_reached = (double)s.tokens;
    t->show.target = job->wan.tokens;
}

static neb_status run(struct neb_trainer *t)
{
    const struct neb_job *job = t->job;
    if (!t->gate) catch_signals();
    t->began = t->progress;
    begin_progress(t);
    neb_status status = neb__trainer_is_witness(t) ? neb__trainer_attend(t) : neb__trainer_loop(t);
    neb__progress_end(&t->show);
    neb__trainer_sample(t, status == NEB_OK ? "evaluating" : "stopped", true);
    const bool gathers = status == NEB_OK && t->stage; /* what crosses at the end counts, too */
    if (!gathers) neb__trainer_report(t);
    NEB_TRY(status);
    status = neb__trainer_finish(t);
    if (gathers) neb__trainer_report(t);
    NEB_TRY(status);
    if (t->stage) NEB_TRY(neb__stage_site_finish(t->stage));
    if (t->unsaved != NEB_OK)
        return neb__fail(t->unsaved, "the model is in %s, its last checkpoint is not", job->out);
    neb__trainer_sample(t, "done", true);
    neb__trainer_say_next(t);
    return NEB_OK;
}

/* Signals reach all ranks; the first one reads its flag between steps and tells the others. */
static neb_status follow(struct neb_trainer *t)
{
    catch_signals();
    return neb__ranks_follow(t);
}

/* Tells the other sites why this one cannot begin, if it failed before it opened its session. */
static void refuse(const struct neb_trainer *t)
{
    bool ours = neb__trainer_leads(t) && !t->gate_end;
    if (ours && t->job->at >= 0 && !t->met_links && !t->job->wan.recorded) neb__trainer_refuse(t->job);
}

/* The first rank of a gateway. Its channel comes before everything that can fail. */
static neb_status train_for_gateway(struct neb_trainer *t, neb_status status)
{
    catch_signals();
    neb_status connected = neb__gate_connect(t);
    status = neb__group_agree(t->ranks, status != NEB_OK ? status : connected);
    if (status == NEB_OK) status = open_trainer(t);
    return neb__gate_serve(t, status);
}

static bool serves_gateway(const struct neb_group *ranks)
{
    return neb__gate_channel_offered() && neb__group_started() && !neb__group_rank(ranks);
}

static neb_status train(const struct neb_job *job, struct neb_group *ranks)
{
    struct neb_trainer t = {.job = job, .ranks = ranks, .stop = &asked_to_stop};
    const struct neb_job_parallel *p = &job->parallel;
    bool by_gateway = neb__gate_channel_offered() && neb__group_started();
    neb_status status = neb__layout_open(ranks, (int)p->data, (int)p->pipeline, (int)p->tensor, &t.layout);
    if (serves_gateway(ranks)) {
        status = train_for_gateway(&t, status);
        neb__ranks_end(&t);
        close_trainer(&t);
        return status;
    }
    if (by_gateway) status = neb__group_agree(ranks, status); /* the first rank opens its channel */
    if (status == NEB_OK) status = open_trainer(&t);
    if (status != NEB_OK)
        refuse(&t);
    else if (neb__trainer_leads(&t))
        status = run(&t);
    else
        status = follow(&t);
    neb__ranks_end(&t);
    close_trainer(&t);
    return status;
}

static neb_status train_in_ranks(const struct neb_job *job)
{
    struct neb_group *ranks;
    NEB_TRY(neb__ranks_join(job, &ranks));
    int lock = -1;
    bool locks = !neb__group_rank(ranks) && !serves_gateway(ranks);
    neb_status status = locks ? lock_out(job, &lock) : NEB_OK;
    status = neb__group_agree(ranks, status);
    if (status == NEB_OK) status = train(job, ranks);
    if (lock >= 0) close(lock);
    if (neb__group_broken(ranks)) neb__ranks_say_lost(ranks);
    if (neb__group_broken(ranks)) neb__group_abort(ranks, NEB_EXIT_RANK_LOST); /* also those that hang */
    neb__group_close(ranks);
    return status;
}

static neb_status teach(const struct neb_job *job)
{
    struct neb_trainer t = {.job = job};
    catch_signals();
    neb_status status = neb__teacher_site(job, &asked_to_stop, &t.met_links);
    if (status != NEB_OK)
        refuse(&t);
    else
        neb__trainer_say_taught(job);
    return status;
}

/* *lost: the site has a stage, and lost its ranks over it; *saved: its newest checkpoint. */
static neb_status gateway_once(const struct neb_job *job, bool *lost, int64_t *saved)
{
    struct neb_trainer t = {.job = job, .stop = &asked_to_stop};
    neb_status status = open_gateway(&t);
    if (status == NEB_OK)
        status = run(&t);
    else if (!neb__gate_lost(t.gate))
        refuse(&t);
    *lost = t.stage && neb__gate_lost(t.gate) && !asked_to_stop;
    if (*lost) *saved = neb__gate_saved_step(t.gate);
    if (*lost)
        neb__warn("a rank was lost (%s): the site starts again, from step %" PRId64, neb__gate_why(t.gate),
                  *saved < 0 ? 0 : *saved);
    close_trainer(&t);
    return status;
}

/* This process is the gateway, and starts the ranks. A stage that has lost its ranks needs what came since its checkpoint from its
 * neighbours once more, as if the site had been killed: they wait for it meanwhile. */
static neb_status train_by_ranks(const struct neb_job *job)
{
    int64_t saved = -1, before = -1;
    int lock, losses = 0;
    bool lost;
    NEB_TRY(lock_out(job, &lock));
    catch_signals();
    neb_status status;
    do {
        lost = false;
        status = gateway_once(job, &lost, &saved);
        losses = saved > before ? 1 : losses + 1;
        before = saved;
        if (lost && losses >= RANK_LOSSES)
            status = neb__fail(NEB_ERR_PEER,
                               "ranks were lost %d times without a new checkpoint in between; see "
                               "%s/ranks/*.log and the lines above",
                               RANK_LOSSES, job->out);
    } while (lost && losses < RANK_LOSSES);
    if (lock >= 0) close(lock);
    return status;
}

/* Ranks get the layout with their command. */
static neb_status settle_layout(struct neb_job *job)
{
    if (!job->parallel.automatic) return NEB_OK;
    if (neb__group_started())
        return neb__fail(NEB_ERR_CONFIG, "parallel: auto chooses how many processes there are, and these "
                                         "were started by hand: start one, which "
                                         "starts the others, or give the layout that nebula-i plan names");
    return neb__planner_choose(job);
}

static neb_status train_job(const struct neb_job *job)
{
    int lock;
    if (neb__launch_needed(job)) return train_by_ranks(job);
    if (job->at < 0 || job->site[job->at].does != NEB_ROLE_TEACHER) return train_in_ranks(job);
    NEB_TRY(lock_out(job, &lock));
    neb_status status = teach(job);
    if (lock >= 0) close(lock);
    return status;
}

/* Ranks get what the gateway has found with their command. */
static neb_status take_settings(struct neb_job *job)
{
    const bool is_rank = neb__gate_channel_offered() && neb__group_started();
    if (job->at < 0 || job->wan.recorded || is_rank) return NEB_OK;
    NEB_TRY(neb__session_check_folder(job, job->at));
    return neb__session_settings(job, job->at);
}

neb_status neb__train_job(struct neb_job *job)
{
    if (neb__planner_is_probe()) return neb__planner_probe(job);
    NEB_TRY(take_settings(job));
    NEB_TRY(settle_layout(job));
    neb__planner_question_pipeline(job);
    if (neb__launch_needed(job)) NEB_TRY(neb__job_take_settings(job));
    return train_job(job);
}
