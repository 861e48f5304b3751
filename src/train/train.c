/* train.c: the loop of a job on one site: step, show, measure, evaluate, checkpoint.
 *
 * Signals only set a flag that is read between steps, so a checkpoint is always of a whole step. The second signal is left
 * to its default action: the last checkpoint on disk is whole, whatever happens. */
#include "train/train.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "store/metrics.h"
#include "task/folder.h"
#include "split/split_site.h"
#include "watch/meter.h"
#include "train/resume.h"
#include "run/session.h"
#include "run/site_status.h"
#include "run/job_facts.h"
#include "watch/progress.h"

#include <nebula/nebula.h>

#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    MAX_SKIPPED = 20,
    EVAL_BATCHES = 50,
    QUORUM_SECONDS = 20,
    FIRST_SECONDS = 7 * 86400,
    TELL_SECONDS = 20,
    END_SECONDS = 900
};
static const double sample_seconds = 0.5;

struct trainer {
    const struct neb_job *job;
    struct neb_data data;
    struct neb_work *work;
    neb_session *session;        /* NULL: alone */
    struct neb_split_site *half; /* relay, tutor: this site's half; NULL: it trains the whole model */
    struct neb_ckpt_writer *writer;
    struct neb_metrics *metrics;
    struct neb_schedule schedule;
    struct neb_progress progress;
    struct neb_progress_display show;
    struct neb_meter meter;
    char checkpoints[512];
    int64_t loaded;     /* step of the checkpoint with which this site began; -1: none */
    neb_status unsaved; /* why the last checkpoint is not there */
    int skipped;        /* steps in a row */
    int64_t empty;      /* steps with nothing to predict */
    bool met_links;     /* the session was opened, or tried to be */
    int64_t decisions;  /* of the rate controller, as far as measured */
    int64_t done_ns;    /* when this site had made its own steps; 0: not yet */
};

static volatile sig_atomic_t asked_to_stop;

static void on_signal(int number)
{
    asked_to_stop = 1;
    signal(number, SIG_DFL);
}

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
    return neb__doc_fail(&job->doc, "train.schedule", "train.schedule: '%s' is none of the schedules",
                         t->schedule ? t->schedule : "");
}

static void sample(struct trainer *t, const char *state, bool now)
{
    struct neb_meter_point p = {t->progress.step, t->progress.tokens, t->show.loss,
                                neb__work_waited(t->work)};
    neb__meter_sample(&t->meter, &p, state, now);
}

/* ---- with other sites ------------------------------------------------------------------------------------------ */

/* What this site trains becomes the run's: the trainable parameters, by name, where they lie. */
static neb_status open_session(struct trainer *t)
{
    struct neb_session_config c = neb__session_config(t->job, t->job->at);
    if (t->half && t->job->wan.recorded) return NEB_OK; /* a folder stands for the other site */
    NEB_TRY(neb_session_open(neb__session_folder(t->job, t->job->at), &c, &t->session));
    NEB_TRY(neb__session_check_roster(t->session, t->job, t->job->at));
    NEB_TRY(neb__session_tell_job(t->session, t->job, neb__tok_hash(t->data.tok)));
    if (t->half) return NEB_OK; /* no parameters in common: no rounds */
    neb_params *ps = neb__work_params(t->work);
    neb_device *dev = strcmp(t->job->train.device, "cpu") ? neb__work_device(t->work) : NULL;
    int64_t n;
    float *slab = neb_params_slab(ps, &n);
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

/* A run begins when all are there and agree; a site that comes back goes on alone if it must. */
static neb_status start_session(struct trainer *t, bool first)
{
    int64_t since = neb__now_ns();
    if (first) neb__info("waiting for the other sites");
    NEB_TRY(neb_session_start(t->session, first ? FIRST_SECONDS : QUORUM_SECONDS));
    neb__meter_add(&t->meter, first ? NEB_TIME_WAIT : NEB_TIME_RECOVER, neb__seconds_since(since));
    neb__meter_event(&t->meter, t->progress.step, first ? "start" : "restart", "%s after %.1f s",
                     first ? "all sites agree" : "back", neb__seconds_since(since));
    return NEB_OK;
}

/* The other sites are told when this one cannot even begin. */
static void refuse(const struct neb_job *job)
{
    const struct neb_job_site *site = &job->site[job->at];
    char why[256];
    snprintf(why, sizeof why, "%s", neb_last_error());
    neb__session_refuse(neb__session_folder(job, job->at), site->listen, why, TELL_SECONDS);
}

static neb_status merged(struct trainer *t, bool changed)
{
    int64_t n;
    neb_params_slab(neb__work_params(t->work), &n);
    return changed ? neb_params_refresh(neb__work_params(t->work), 0, n) : NEB_OK;
}

/* The session, where parameters are shared. */
static neb_session *rounds(const struct trainer *t)
{
    return t->half ? NULL : t->session;
}

/* Every decision of the rate controller goes into the metrics; what it changes is an event of the meter. */
static void measure_session(struct trainer *t, const struct neb_session_status *s)
{
    if (s->decisions == t->decisions) return;
    t->decisions = s->decisions;
    int64_t step = t->progress.step;
    neb__metrics_put(t->metrics, step, "wan/update_bytes", s->update_bytes);
    if (s->ceiling >= 0) neb__metrics_put(t->metrics, step, "wan/ceiling_bytes", s->ceiling);
}

/* Merges, and waits where the session says so; the sample is renewed meanwhile. *ended: the run is over, the parameters are
 * its result. tokens NEB_NO_STEP: no step was made. */
static neb_status meet(struct trainer *t, int64_t tokens, bool *ended)
{
    struct neb_session_status before, after;
    int64_t since = neb__now_ns();
    neb_status s;
    neb_session_get_status(t->session, &before);
    do {
        bool changed = false;
        s = neb_step_within(t->session, tokens, sample_seconds, &changed);
        NEB_TRY(merged(t, changed));
        if (s == NEB_ERR_AGAIN) sample(t, "waiting", false);
        tokens = NEB_NO_STEP;
    } while (s == NEB_ERR_AGAIN && !asked_to_stop);
    neb_session_get_status(t->session, &after);
    neb__meter_add(&t->meter, NEB_TIME_ENCODE, neb__seconds_since(since) - (after.wait_s - before.wait_s));
    measure_session(t, &after);
    *ended = s == NEB_ERR_CANCELLED;
    return *ended || s == NEB_ERR_AGAIN ? NEB_OK : s;
}

static neb_status open_trainer(struct trainer *t)
{
    NEB_TRY(neb__train_schedule(t->job, &t->schedule));
    bool alone = t->job->at < 0, shares = !alone && t->job->plan == NEB_STRATEGY_REPLICA;
    NEB_TRY(neb__data_prepare(t->job, &t->data));
    if (!alone && !shares) NEB_TRY(neb__split_open(t->job, &t->data, &t->half));
    NEB_TRY(neb__work_open(&t->data, shares ? t->job->at : 0, shares ? t->job->n_sites : 1,
                           t->half ? &t->half->links : NULL, &t->work));
    if (t->half) NEB_TRY(neb__split_share(t->half, neb__work_table(t->work)));
    t->met_links = true;
    if (!alone) NEB_TRY(open_session(t));
    snprintf(t->checkpoints, sizeof t->checkpoints, "%s/checkpoints", t->job->out);
    int keep = (int)(t->job->train.average > t->job->train.keep ? t->job->train.average : t->job->train.keep);
    NEB_TRY(neb__ckpt_writer_create(t->checkpoints, keep, &t->writer));
    neb_status s = neb__resume_load(t->work, rounds(t), t->checkpoints, &t->progress);
    if (s != NEB_OK && s != NEB_ERR_NOTFOUND) return s;
    t->loaded = s == NEB_OK ? t->progress.step : -1;
    if (s == NEB_OK) neb__info("going on from step %" PRId64, t->progress.step);
    t->metrics = neb__metrics_begin(t->job->out, s == NEB_OK ? t->progress.step : -1);
    neb__meter_begin(&t->meter, t->job, t->metrics, t->session, &neb__session_meter, t->progress.tokens);
    if (t->session) NEB_TRY(start_session(t, s != NEB_OK));
    if (t->half) {
        NEB_TRY(neb__split_start(t->half, t->session, (uint64_t)neb__work_batches(t->work), t->job->out));
        neb__meter_stream(&t->meter, t->half->stream, &t->half->readings, t->half->produces);
        sample(t, "training", true); /* tells the other half how much is wanted */
        return NEB_OK;
    }
    return merged(t, t->session != NULL);
}

static void close_trainer(struct trainer *t)
{
    neb__metrics_close(t->metrics);
    neb__ckpt_writer_close(t->writer);
    neb__split_close(t->half);
    neb_session_close(t->session);
    neb__work_close(t->work);
    neb__data_free(&t->data);
}

/* ---- the loop -------------------------------------------------------------------------------------------------- */

/* A step that was skipped for want of something to predict: its loss and norm are 0 and mean nothing. */
static bool nothing_learned(const struct neb_work_step *s)
{
    return s->skipped && isfinite(s->loss) && isfinite(s->grad_norm);
}

static void measure(struct trainer *t, const struct neb_work_step *s, double lr)
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

/* On several sites it is the outer state that counts: what they share, and what is exported. */
static neb_status held_out(struct trainer *t, bool outer, struct neb_work_eval *e)
{
    if (!outer) return neb__work_eval(t->work, "valid", EVAL_BATCHES, e);
    NEB_TRY(neb_session_show_outer(t->session, true));
    neb_status s = merged(t, true);
    if (s == NEB_OK) s = neb__work_eval(t->work, "valid", EVAL_BATCHES, e);
    if (s == NEB_OK) neb_session_loss(t->session, e->loss);
    neb_status back = neb_session_show_outer(t->session, false);
    if (back == NEB_OK) back = merged(t, true);
    return back != NEB_OK ? back : s;
}

static void measure_held_out(struct trainer *t, const struct neb_work_eval *e)
{
    const struct neb_objective *o = t->job->objective;
    neb__metrics_put(t->metrics, t->progress.step, "valid/loss", e->loss);
    neb__metrics_put(t->metrics, t->progress.step, "valid/accuracy", e->accuracy);
    for (int i = 0; i < NEB_OBJECTIVE_METRICS; i++) {
        char name[64];
        if (!o->metrics[i]) continue;
        snprintf(name, sizeof name, "valid/%s", o->metrics[i]);
        neb__metrics_put(t->metrics, t->progress.step, name, e->more[i]);
    }
}

static neb_status evaluate(struct trainer *t, bool outer)
{
    struct neb_work_eval e;
    neb_status s = held_out(t, outer, &e);
    if (s == NEB_ERR_NOTFOUND || s == NEB_ERR_RANGE)
        return NEB_OK; /* the latter was said: training needs no loss of it */
    NEB_TRY(s);
    measure_held_out(t, &e);
    char found[200], in[64] = "";
    t->job->objective->describe(&e, found, sizeof found);
    if (rounds(t)) {
        struct neb_session_status st;
        neb_session_get_status(t->session, &st);
        snprintf(in, sizeof in, ", with %" PRId64 " tokens of all sites", st.tokens);
        neb__metrics_put(t->metrics, t->progress.step, "valid/tokens", (double)st.tokens);
    }
    neb__progress_line(&t->show, "held out at step %" PRId64 ": %s%s", t->progress.step, found, in);
    return NEB_OK;
}

static neb_status save(struct trainer *t)
{
    neb__metrics_flush(t->metrics);
    if (t->half) NEB_TRY(neb__split_saving(t->half));
    NEB_TRY(neb__resume_save(t->work, rounds(t), t->writer, &t->progress));
    if (t->half) neb__split_saved(t->half, t->writer, t->progress.step, (uint64_t)neb__work_batches(t->work));
    return NEB_OK;
}

static neb_status one_step(struct trainer *t, bool *ended)
{
    int64_t start = neb__now_ns();
    float lr = neb_schedule_lr_within(&t->schedule, t->progress.step, t->progress.seconds,
                                      60 * t->job->train.minutes);
    struct neb_work_step step = {0};
    neb_status s = neb__work_step(t->work, lr, &step);
    t->skipped = s == NEB_ERR_NONFINITE ? t->skipped + 1 : 0;
    if (t->skipped >= MAX_SKIPPED)
        return neb__fail(s, "%d steps in a row were not finite: stopping; the last checkpoint is good",
                         t->skipped);
    if (s != NEB_OK && s != NEB_ERR_NONFINITE) return s;
    t->progress.step++;
    t->progress.tokens += step.tokens;
    t->progress.seconds += neb__seconds_since(start);
    if (step.empty && !t->empty++)
        neb__warn("step %" PRId64 ": nothing in its text was masked, so it changes nothing; with more "
                  "train.tokens this is rare",
                  t->progress.step);
    neb__progress_step(&t->show, t->progress.step, t->job->train.steps,
                       nothing_learned(&step) ? t->show.loss : step.loss, step.tokens, (double)lr);
    measure(t, &step, (double)lr);
    /* tokens weigh what a site has learned */
    if (rounds(t)) NEB_TRY(meet(t, step.empty ? 0 : step.tokens, ended));
    sample(t, "training", false);
    return NEB_OK;
}

/* Until the other half lets this one go on. *ended: it has ended; a request to stop is left to the loop. */
static neb_status await_other(struct trainer *t, bool *ended)
{
    int64_t since = neb__now_ns();
    neb_status s = neb__split_wait(t->half, t->job->train.micro, &asked_to_stop);
    neb__meter_add(&t->meter, NEB_TIME_WAIT, neb__seconds_since(since));
    if (t->show.tokens)
        t->progress.seconds += neb__seconds_since(since); /* the first wait is part of starting */
    if (s == NEB_ERR_CANCELLED) neb__progress_line(&t->show, "%s", neb_last_error());
    *ended = s == NEB_ERR_CANCELLED;
    return *ended || s == NEB_ERR_AGAIN ? NEB_OK : s;
}

static bool due(int64_t every, int64_t step)
{
    return every > 0 && step % every == 0;
}

/* Of two halves the fed one's clock decides: a feeding one that stopped first would leave it waiting for the next item. */
static bool finished(const struct trainer *t)
{
    const struct neb_job_train *c = &t->job->train;
    bool feeds = t->half && t->half->produces && !t->job->wan.recorded;
    bool late = c->minutes > 0 && t->progress.seconds >= 60 * c->minutes;
    return t->progress.step >= c->steps || (late && !feeds);
}

/* A site of several goes on until the run ends for all: at its leading site's last step. What everybody has learned is
 * committed then, and all hold the same model. */
static bool over(struct trainer *t, bool ended)
{
    if (ended || !finished(t)) return ended;
    if (!rounds(t)) return true;
    if (!t->done_ns && neb__session_done(t->session) == NEB_OK) t->done_ns = neb__now_ns();
    if (neb__seconds_since(t->done_ns) < END_SECONDS) return false;
    neb__warn(
        "the run did not end at the other sites within %d s: this site's model may lack their last work",
        END_SECONDS);
    return true;
}

static bool is_witness(const struct trainer *t)
{
    struct neb_session_member m[NEB_JOB_SITES];
    int n = rounds(t) ? neb_session_members(t->session, m, NEB_JOB_SITES) : 0;
    for (int i = 0; i < n; i++)
        if (m[i].self) return !m[i].trains;
    return false;
}

/* A witness votes and stores, and follows what the others learn; it makes no step. */
static neb_status attend(struct trainer *t)
{
    neb_status s = NEB_OK;
    neb__info("this site is a witness: it votes and stores, and does not train");
    while (s == NEB_OK && !asked_to_stop) {
        s = neb_session_attend(t->session, 1);
        neb__meter_sample(&t->meter, &(struct neb_meter_point){0}, "witness", false);
    }
    if (asked_to_stop) return NEB_ERR_CANCELLED;
    return s == NEB_ERR_CANCELLED ? merged(t, true) : s;
}

/* The last checkpoint, unless it is there. One that cannot be written does not keep the model from being: there may be room
 * for that, and the steps were made. */
static void save_last(struct trainer *t)
{
    struct neb_ckpt_report r;
    (void)neb__ckpt_writer_wait(t->writer);
    neb__ckpt_writer_report(t->writer, &r);
    bool there = r.last_step == t->progress.step || (!t->session && t->loaded == t->progress.step);
    if (!there) t->unsaved = save(t);
    if (!there && t->unsaved == NEB_OK) t->unsaved = neb__ckpt_writer_wait(t->writer);
}

/* Before the first step: a run that has ended takes none. */
static neb_status meet_first(struct trainer *t, bool *ended)
{
    struct neb_session_status s;
    NEB_TRY(meet(t, NEB_NO_STEP, ended));
    neb_session_get_status(t->session, &s);
    if (*ended) neb__progress_line(&t->show, "this run has ended at record %" PRId64, s.applied);
    return NEB_OK;
}

static neb_status loop(struct trainer *t)
{
    const struct neb_job_train *c = &t->job->train;
    bool ended = false;
    if (rounds(t)) NEB_TRY(meet_first(t, &ended));
    while (!over(t, ended)) {
        if (t->half) NEB_TRY(await_other(t, &ended));
        if (ended) break;
        neb_status s = asked_to_stop ? NEB_OK : one_step(t, &ended);
        if (s == NEB_ERR_CANCELLED && t->half && t->half->produces) break; /* no more is wanted */
        NEB_TRY(s);
        if (asked_to_stop) {
            NEB_TRY(save(t));
            neb__progress_line(&t->show, "stopped at step %" PRId64 "; the same command goes on from there",
                               t->progress.step);
            return neb__ckpt_writer_wait(t->writer) == NEB_OK ? NEB_ERR_CANCELLED : NEB_ERR_IO;
        }
        if (due(c->eval_every, t->progress.step)) NEB_TRY(evaluate(t, rounds(t) != NULL));
        if (due(c->save_every, t->progress.step)) NEB_TRY(save(t));
    }
    save_last(t);
    /* a fed half that must go on from an older checkpoint needs the items behind it once more */
    bool let_go = t->half && (t->unsaved == NEB_OK || t->half->produces);
    return let_go ? neb__split_finish(t->half, &asked_to_stop) : NEB_OK;
}

/* ---- the end --------------------------------------------------------------------------------------------------- */

/* The mean of the last checkpoints, as translation papers use. */
static neb_status average(struct trainer *t)
{
    int used;
    NEB_TRY(neb__resume_average(t->work, t->checkpoints, (int)t->job->train.average, &used));
    if (used) neb__progress_line(&t->show, "averaged the last %d checkpoints", used);
    return NEB_OK;
}

/* OUT is a model folder; so is OUT/generator, where an objective has one. */
static neb_status write_folder(struct trainer *t, const struct neb_model *m, const struct neb_model_config *c,
                               const char *task, const char *path)
{
    struct neb_model_yaml f;
    NEB_TRY(neb__model_yaml_init(&f));
    neb_status s = neb__folder_describe(&f, task, c, &t->job->peft, &t->data.tok_cfg);
    f.tagged = neb__data_tagged(&t->data);
    if (s == NEB_OK) s = neb__folder_write(&f, path, m, t->data.tok_path);
    neb__model_yaml_free(&f);
    return s;
}

static neb_status write_models(struct trainer *t)
{
    char path[NEB_MODEL_PATH];
    const struct neb_model *model = neb__work_model(t->work), *generator = neb__work_generator(t->work);
    if (model) NEB_TRY(write_folder(t, model, &t->data.models.model, t->job->task, t->job->out));
    snprintf(path, sizeof path, "%s/generator", t->job->out);
    if (!generator) return NEB_OK;
    return write_folder(t, generator, &t->data.models.generator, t->job->objective->generator->name, path);
}

static neb_status finish(struct trainer *t)
{
    NEB_TRY(average(t));
    NEB_TRY(evaluate(t, false));
    NEB_TRY(write_models(t));
    if (t->empty)
        neb__progress_line(&t->show, "%" PRId64 " steps had nothing to predict and changed nothing",
                           t->empty);
    neb__progress_line(&t->show,
                       "%s: %" PRId64 " steps, %" PRId64
                       " tokens in %.0f s (%.0f tokens/s, %.1f %% waiting for data)",
                       t->job->name, t->progress.step, t->progress.tokens, t->progress.seconds,
                       t->progress.seconds > 0 ? (double)t->progress.tokens / t->progress.seconds : 0,
                       t->progress.seconds > 0 ? 100 * neb__work_waited(t->work) / t->progress.seconds : 0);
    return NEB_OK;
}

/* Roots are equal at all sites that stand at the same record. */
static void report_session(struct trainer *t)
{
    struct neb_session_status s;
    struct neb_hash root;
    char hex[2 * NEB_HASH_SIZE + 1];
    neb_session_get_status(t->session, &s);
    memcpy(root.b, s.root, sizeof root.b);
    neb__hash_hex(&root, hex);
    char of[48] = "";
    if (s.root_at != s.applied) snprintf(of, sizeof of, " of record %" PRId64, s.root_at);
    neb__progress_line(&t->show,
                       "site %s: record %" PRId64 ", state root %.16s%s, %" PRId64
                       " updates sent, %.1f MB out, %.1f MB in; encoding "
                       "%.1f s, applying %.1f s, waiting %.1f s",
                       t->job->site[t->job->at].name, s.applied, hex, of, s.updates,
                       (double)s.bytes_out / 1e6, (double)s.bytes_in / 1e6, s.encode_s, s.apply_s, s.wait_s);
}

static void report_half(struct trainer *t)
{
    char text[300];
    neb__split_describe(t->half, text, sizeof text);
    neb__progress_line(&t->show, "site %s: %s", t->job->site[t->job->at].name, text);
}

/* What is ignored (nohup, a shell's background job) stays so. */
static void catch_signals(void)
{
    static const int list[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction now;
    asked_to_stop = 0;
    for (int i = 0; i < 3; i++)
        if (!sigaction(list[i], NULL, &now) && now.sa_handler != SIG_IGN) signal(list[i], on_signal);
}

/* OUT is one process's: two would remove each other's checkpoints. *lock -1: the file system locks nothing. */
static neb_status take_out(const struct neb_job *job, int *lock)
{
    char path[PATH_MAX];
    *lock = -1;
    NEB_TRY(neb__file_make_dir(job->out, 0755));
    if (snprintf(path, sizeof path, "%s/lock", job->out) >= (int)sizeof path)
        return neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", job->out);
    neb_status s = neb__file_lock(path, NEB_LOCK_FILE, lock);
    if (s == NEB_ERR_BUSY)
        return neb__fail(
            s,
            "another process trains in %s (it holds %s): wait for it or stop it, or give this one "
            "another folder with out=FOLDER",
            job->out, path);
    if (s != NEB_OK) neb__warn("%s: nothing keeps a second process out of this folder", neb_last_error());
    return NEB_OK;
}

static neb_status train(const struct neb_job *job)
{
    struct trainer t = {.job = job};
    if (job->at >= 0 && job->site[job->at].does == NEB_ROLE_TEACHER) {
        catch_signals();
        neb_status s = neb__teacher_site(job, &asked_to_stop, &t.met_links);
        if (s != NEB_OK && !t.met_links && !job->wan.recorded) refuse(job);
        return s;
    }
    neb_status s = open_trainer(&t);
    if (s != NEB_OK && job->at >= 0 && !t.met_links && !job->wan.recorded) refuse(job);
    if (s == NEB_OK) {
        catch_signals();
        neb__progress_begin(&t.show, job->name, job->train.log_every, t.progress.step);
        t.show.extra = neb__meter_line(&t.meter);
        t.show.limit_s = job->train.minutes > 0 ? fmax(1, 60 * job->train.minutes - t.progress.seconds) : 0;
        s = is_witness(&t) ? attend(&t) : loop(&t);
        neb__progress_end(&t.show);
        sample(&t, s == NEB_OK ? "evaluating" : "stopped", true);
        if (t.half) report_half(&t);
        if (rounds(&t)) report_session(&t);
        if (s == NEB_OK) s = finish(&t);
        if (s == NEB_OK && t.unsaved != NEB_OK)
            s = neb__fail(t.unsaved, "the model is in %s, its last checkpoint is not", job->out);
        if (s == NEB_OK) sample(&t, "done", true);
    }
    close_trainer(&t);
    return s;
}

neb_status neb__train_job(const struct neb_job *job)
{
    int lock;
    NEB_TRY(take_out(job, &lock));
    neb_status s = train(job);
    if (lock >= 0) close(lock);
    return s;
}
