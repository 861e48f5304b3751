/* train_result.c: how good the model is, and what a training leaves behind: the model's folder and its last
 * lines.
 *
 * During a replica run the outer state is evaluated, since the sites share it and it is what they export at
 * the end. */
#include "train/train_internal.h"
#include "base/clock.h"
#include "base/log.h"
#include "plan/record.h"
#include "task/folder.h"
#include "task/samples.h"
#include "watch/report.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { EVAL_BATCHES = 50, WARM_LEAST = 5 };

/* Sample outputs may take this share of the time, after the first ones. */
static const double samples_share = 0.005;

/* ---- held-out text ------------------------------------------------------------------------------------- */

/* They are for people to look at. A training goes on without them. */
static void sample_outputs(struct neb_trainer *t, char *out, size_t size)
{
    struct neb_trainer_sampling *s = &t->sampling;
    struct neb_buf b;
    int64_t start = neb__now_ns();
    if (!t->job->watch.samples || s->off || t->stage ||
        (s->at && s->took > samples_share * neb__seconds_since(s->at)))
        return;
    neb__buf_init(&b, size - 1);
    neb_status status = neb__work_samples(t->work, "valid", &b);
    if (status == NEB_OK && b.len) memcpy(out, b.data, b.len), out[b.len] = 0;
    s->off = status != NEB_OK;
    if (s->off && status != NEB_ERR_NOTFOUND && status != NEB_ERR_UNSUPPORTED)
        neb__warn("there are no sample outputs: %s", neb_last_error());
    neb__buf_free(&b);
    s->at = neb__now_ns();
    s->took = neb__seconds_since(start);
}

neb_status neb__trainer_held_out(struct neb_trainer *t, struct neb_conclusion *out)
{
    NEB_TRY(neb__ranks_eval(t, "valid", EVAL_BATCHES, &out->eval));
    sample_outputs(t, out->samples, sizeof out->samples);
    return NEB_OK;
}

/* The gateway's ranks do it, and it tells the run. */
static neb_status held_out_at_ranks(struct neb_trainer *t, bool outer, struct neb_conclusion *c)
{
    NEB_TRY(neb__gate_eval(t->gate, outer, c));
    if (outer) neb_session_loss(t->session, c->eval.loss);
    return NEB_OK;
}

/* Where ranks share the model, they get the values that are shown now. */
static neb_status show(struct neb_trainer *t, bool outer)
{
    NEB_TRY(neb__ranks_fetch(t));
    NEB_TRY(neb_session_show_outer(t->session, outer));
    NEB_TRY(neb__trainer_refresh(t, true));
    return neb__work_is_split(t->work) ? neb__ranks_share(t) : NEB_OK;
}

static neb_status held_out(struct neb_trainer *t, bool outer, struct neb_conclusion *c)
{
    if (t->gate) return held_out_at_ranks(t, outer, c);
    if (!outer) return neb__trainer_held_out(t, c);
    neb_status status = show(t, true);
    if (status == NEB_OK) status = neb__trainer_held_out(t, c);
    if (status == NEB_OK) neb_session_loss(t->session, c->eval.loss);
    neb_status back = show(t, false);
    return back != NEB_OK ? back : status;
}

static void measure_held_out(struct neb_trainer *t, const struct neb_work_eval *e)
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
    char names[17 * NEB_EVAL_LANGUAGES + 1] = "";
    for (int i = 0; i < e->languages; i++) {
        char name[64];
        snprintf(name, sizeof name, "valid/loss/%s", e->language[i].name);
        neb__metrics_put(t->metrics, t->progress.step, name, e->language[i].loss);
        size_t at = strlen(names);
        snprintf(names + at, sizeof names - at, "%s%s", i ? " " : "", e->language[i].name);
    }
    if (e->languages) neb__metrics_note(t->metrics, NEB_LANGUAGES_NOTE, names);
}

/* ", by language: de 3.2104, en 2.9876"; nothing if there is one. */
static void describe_languages(const struct neb_work_eval *e, char *out, size_t size)
{
    size_t at = 0;
    out[0] = 0;
    for (int i = 0; i < e->languages && at < size; i++) {
        int n = snprintf(out + at, size - at, "%s %s %.4f", i ? "," : "; by language:", e->language[i].name,
                         e->language[i].loss);
        at += n > 0 ? (size_t)n : size;
    }
}

/* There is no loss where the job has no such text, or the text nothing to predict, which was logged where it was
 * found. Training can go on without it. */
static neb_status without_loss(neb_status status)
{
    return status == NEB_ERR_NOTFOUND || status == NEB_ERR_RANGE ? NEB_OK : status;
}

static void note_samples(struct neb_trainer *t, const char *samples)
{
    char text[NEB_TRAINER_SAMPLES + 64];
    if (!*samples) return;
    snprintf(text, sizeof text, "after step %" PRId64 "\n\n%s", t->progress.step, samples);
    neb__metrics_note(t->metrics, "samples", text);
}

static void show_held_out(struct neb_trainer *t, const struct neb_conclusion *c)
{
    const struct neb_work_eval *e = &c->eval;
    measure_held_out(t, e);
    note_samples(t, c->samples);
    char found[200], in[64] = "", apart[40 * NEB_EVAL_LANGUAGES];
    describe_languages(e, apart, sizeof apart);
    t->job->objective->describe(e, found, sizeof found);
    if (neb__trainer_rounds(t)) {
        struct neb_session_status st;
        neb_session_get_status(t->session, &st);
        snprintf(in, sizeof in, ", with %" PRId64 " tokens of all sites", st.tokens);
        neb__metrics_put(t->metrics, t->progress.step, "valid/tokens", (double)st.tokens);
    }
    neb__progress_line(&t->show, "held out at step %" PRId64 ": %s%s%s", t->progress.step, found, in, apart);
}

neb_status neb__trainer_evaluate(struct neb_trainer *t, bool outer)
{
    struct neb_conclusion c = {0};
    neb_status status = held_out(t, outer, &c);
    if (status == NEB_OK) show_held_out(t, &c);
    return without_loss(status);
}

/* ---- the model ----------------------------------------------------------------------------------------- */

/* A successful call owes a free. */
static neb_status describe_folder(const struct neb_trainer *t, const struct neb_model_config *c,
                                  const char *task, struct neb_model_yaml *f)
{
    NEB_TRY(neb__model_yaml_init(f));
    neb_status status = neb__folder_describe(f, task, c, &t->job->peft, &t->data.tok_cfg);
    f->tagged = neb__data_tagged(&t->data);
    if (status == NEB_OK && t->data.frame)
        status = neb__model_yaml_set_frame(f, neb__frame_name(t->data.frame));
    if (status != NEB_OK) neb__model_yaml_free(f);
    return status;
}

static neb_status write_folder(struct neb_trainer *t, const struct neb_model *m,
                               const struct neb_model_config *c, const char *task, const char *path)
{
    struct neb_model_yaml f;
    NEB_TRY(describe_folder(t, c, task, &f));
    neb_status status = neb__folder_write(&f, path, m, t->data.tok_path);
    neb__model_yaml_free(&f);
    return status;
}

/* OUT is a model folder. OUT/generator is another one if the objective has a generator. */
static neb_status write_models(struct neb_trainer *t)
{
    char path[NEB_MODEL_PATH];
    const struct neb_model *model = neb__work_model(t->work), *generator = neb__work_generator(t->work);
    if (model) NEB_TRY(write_folder(t, model, &t->data.models.model, t->job->task, t->job->out));
    snprintf(path, sizeof path, "%s/generator", t->job->out);
    if (!generator) return NEB_OK;
    return write_folder(t, generator, &t->data.models.generator, t->job->objective->generator->name, path);
}

/* Beside the checkpoints: the model can be had from the parts of all sites, also where nobody has room for the whole, or the last
 * gathering does not come to its end. */
static neb_status write_part(struct neb_trainer *t, struct neb_folder_part *part)
{
    struct neb_model_yaml f;
    const bool has_tokenizer = t->data.tok != NULL;
    NEB_TRY(neb__stage_site_part(t->stage, t->progress.step, part));
    NEB_TRY(describe_folder(t, &t->data.models.model, t->job->task, &f));
    neb_status status = neb__folder_write_part(&f, t->job->out, neb__work_model(t->work),
                                               has_tokenizer ? t->data.tok_path : NULL, part);
    neb__model_yaml_free(&f);
    return status;
}

static neb_status conclude_stage(struct neb_trainer *t)
{
    struct neb_folder_part part = {0};
    char path[NEB_MODEL_PATH + 48];
    neb_status written = write_part(t, &part);
    if (!t->job->wan.gather) return written;
    if (written != NEB_OK)
        neb__warn("this site's part of the model is not written; the model is gathered without it");
    NEB_TRY(neb__stage_site_gather(t->stage, t->work));
    if (!neb__stage_site_has_model(t->stage)) return NEB_OK;
    NEB_TRY(write_models(t));
    if (written != NEB_OK) return NEB_OK;
    neb__folder_part_name(t->job->out, part.number, part.parts, path, sizeof path);
    (void)unlink(path); /* the whole has it */
    return NEB_OK;
}

/* Takes the mean of the last checkpoints, as translation papers do. */
neb_status neb__trainer_conclude(struct neb_trainer *t, struct neb_conclusion *out)
{
    struct neb_work_memory m;
    neb__work_memory(t->work, &m);
    out->memory = m.state + m.runs;
    NEB_TRY(neb__resume_average(t->work, t->checkpoints, (int)t->job->train.average, &out->averaged));
    if (neb__work_is_split(t->work) && !neb__work_lacks_whole(t->work)) NEB_TRY(neb__ranks_share(t));
    t->sampling.at = 0; /* those of the result are wanted in any case */
    out->evaluated = neb__trainer_held_out(t, out);
    NEB_TRY(without_loss(out->evaluated));
    NEB_TRY(neb__ranks_fetch(t));
    return t->stage ? conclude_stage(t) : write_models(t);
}

/* What nebula-i plan or parallel: auto has foreseen, beside what came. */
static void compare_with_plan(struct neb_trainer *t, const struct neb_conclusion *c)
{
    const struct neb_planner_layout l = neb__planner_layout_of(t->job);
    struct neb_planner_figures foreseen, measured = {-1, (double)c->memory, -1};
    struct neb_session_status s = {0};
    const double steps = (double)(t->progress.step - t->began.step);
    char text[512], name[128] = "";
    const int bits = t->stage ? t->stage->bits : 0;
    const int n =
        bits ? snprintf(name, sizeof name, bits > 8 ? "a stage, fp%d, " : "a stage, int%d, ", bits) : 0;
    if (neb__planner_recorded(t->job->out, &l, bits, &foreseen) != NEB_OK || steps < 1) return;
    const bool warm = t->warm.step > t->began.step && t->progress.step >= t->warm.step + WARM_LEAST;
    const struct neb_progress *from = warm ? &t->warm : &t->began;
    measured.step_s = (t->progress.seconds - from->seconds) / (double)(t->progress.step - from->step);
    if (neb__trainer_rounds(t)) neb_session_get_status(t->session, &s);
    if (neb__trainer_rounds(t) && t->loaded < 0) measured.wan_bytes = (double)s.bytes_out / steps;
    if (t->stage && t->loaded < 0)
        measured.wan_bytes =
            (t->stage->end[NEB_AHEAD_OUT].all_bytes + t->stage->end[NEB_BACK_OUT].all_bytes) / steps;
    neb__planner_compare(&foreseen, &measured, text, sizeof text);
    neb__planner_layout_text(&l, name + n, sizeof name - (size_t)n);
    neb__metrics_note(t->metrics, NEB_PLAN_NOTE, text);
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        neb__progress_line(&t->show, "%s: %s", name, line);
    }
}

neb_status neb__trainer_finish(struct neb_trainer *t)
{
    struct neb_conclusion c = {.evaluated = NEB_ERR_NOTFOUND};
    bool concluded = t->stage && t->stage->done; /* by an earlier start */
    if (!concluded) NEB_TRY(t->gate ? neb__gate_conclude(t->gate, &c) : neb__trainer_conclude(t, &c));
    if (t->stage) neb__stage_site_count(t->stage);
    if (!concluded) compare_with_plan(t, &c);
    if (c.averaged) neb__progress_line(&t->show, "averaged the last %d checkpoints", c.averaged);
    if (c.evaluated == NEB_OK) show_held_out(t, &c);
    if (t->empty)
        neb__progress_line(&t->show, "%" PRId64 " steps had nothing to predict and changed nothing",
                           t->empty);
    const struct neb_progress *p = &t->progress;
    double rate = 0, waiting = 0;
    if (p->seconds > 0) {
        rate = (double)p->tokens / p->seconds;
        waiting = 100 * neb__trainer_data_wait(t) / p->seconds;
    }
    neb__progress_line(&t->show,
                       "%s: %" PRId64 " steps, %" PRId64
                       " tokens in %.0f s (%.0f tokens/s, %.1f %% waiting for data)",
                       t->job->name, p->step, p->tokens, p->seconds, rate, waiting);
    return NEB_OK;
}

/* ---- what crossed the line ----------------------------------------------------------------------------- */

/* Sites that stand at the same record have the same root. */
static void report_session(struct neb_trainer *t)
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

static void report_split(struct neb_trainer *t)
{
    char text[400];
    struct neb_stage_facts facts = {0};
    if (t->stage && t->gate)
        neb__gate_facts(t->gate, &facts);
    else if (t->stage)
        neb__stage_facts_of(t->work, &facts);
    if (t->stage)
        neb__stage_site_describe(t->stage, &facts.times, text, sizeof text);
    else
        neb__split_describe(t->split, text, sizeof text);
    neb__progress_line(&t->show, "site %s: %s", t->job->site[t->job->at].name, text);
}

void neb__trainer_report(struct neb_trainer *t)
{
    if (t->split || t->stage) report_split(t);
    if (neb__trainer_rounds(t)) report_session(t);
}
