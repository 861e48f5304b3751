/* teacher.c: the loop of a teacher's site.
 *
 * It trains nothing and keeps no checkpoint: the stream's journal says how far it came. The batches up to
 * there decide which answers the student holds (student.c). So after a restart it draws them again, without
 * asking the teachers. */
#include "base/clock.h"
#include "base/console.h"
#include "base/log.h"
#include "base/mem.h"
#include "task/sequencer.h"
#include "task/teacher.h"
#include "run/stream.h"
#include "split/split_site.h"
#include "split/tutor_texts.h"
#include "base/bytes.h"
#include "watch/meter.h"
#include "run/session.h"
#include "run/site_status.h"

#include <stdio.h>
#include <string.h>

enum { SHOW_SECONDS = 20, START_SECONDS = 20 };

struct teacher {
    const struct neb_job *job;
    struct neb_data data;
    struct neb_split_site *split;
    neb_device *device;
    struct neb_teacher logits, hidden;
    neb_session *session;
    struct neb_batches *stream;
    struct neb_batch *batch;
    struct neb_tutor_plan plan;
    struct neb_sequencer *sequencer; /* distill.sequence */
    struct neb_tutor_texts texts;
    struct neb_samples samples; /* distill.on_policy: of the present batch, if it is judged */
    uint32_t drawn;             /* check value of the batch before it got other targets */
    struct neb_keyset held;     /* by the student */
    uint64_t held_bytes;
    struct neb_metrics *metrics;
    struct neb_meter meter;
    int64_t start_ns, shown_ns, batches, tokens;
};

/* ---- opening ------------------------------------------------------------------------------------------- */

static neb_status open_teachers(struct teacher *t)
{
    const struct neb_job *j = t->job;
    const struct neb_batch *b = t->batch;
    struct neb_model_input_limits l = {
        .rows = {b->cap_tokens[0], b->cap_tokens[1]}, .seqs = b->cap_seqs, .targets = b->cap_loss};
    struct neb_teacher_config c = {.k = t->split->shape.k,
                                   .threads = (int)j->train.threads,
                                   .tok = t->data.tok,
                                   .data = &t->data,
                                   .sides = j->objective->sides,
                                   .max_len = j->train.max_len};
    struct neb_device_config d = {.compute = strcmp(j->train.dtype, "bf16") ? NEB_F32 : NEB_BF16,
                                  .threads = (int)j->train.threads,
                                  .deterministic = j->train.deterministic,
                                  .tf32 = 1};
    NEB_TRY(neb_device_open(j->train.device, &d, &t->device));
    c.folder = j->distill.teacher;
    c.logits = true;
    c.logp = j->distill.on_policy > 0;
    if (c.folder && c.k) NEB_TRY(neb__teacher_ensemble_open(t->device, &c, &l, &t->logits));
    if (j->distill.sequence) {
        NEB_TRY(neb__sequencer_open(t->device, &t->data, &t->sequencer));
        NEB_TRY(neb__tutor_texts_init(&t->texts, &t->data, b->cap_seqs));
    }
    c.folder = j->distill.encoder;
    c.logits = false;
    if (c.folder) NEB_TRY(neb__teacher_open(t->device, &c, &l, &t->hidden));
    if (c.folder && t->hidden.width != t->split->shape.width)
        return neb__doc_fail(&j->doc, "distill.width",

                             "distill.width is %d, but the hidden states of %s have a width of %d",
                             t->split->shape.width, c.folder, t->hidden.width);
    return NEB_OK;
}

static void sample(struct teacher *t, const char *state, bool now)
{
    struct neb_meter_point p = {.step = t->batches, .tokens = t->tokens};
    neb__meter_sample(&t->meter, &p, state, now);
}

static void waits(void *teacher)
{
    sample(teacher, "waiting", false);
}

/* The samples that the journal's answers are about are not wanted again, once those answers are on disk. */
static neb_status start_samples(struct teacher *t)
{
    struct neb_stream_status st;
    NEB_TRY(neb_stream_sync(t->split->stream, -1));
    neb_stream_get_status(t->split->stream, &st);
    NEB_TRY(neb__samples_init(&t->samples, t->batch->cap_seqs));
    return neb__split_start_samples(t->split->samples, t->session, st.last);
}

static neb_status open_links(struct teacher *t)
{
    const struct neb_job *j = t->job;
    struct neb_session_config c = neb__session_config(j, j->at);
    if (!j->wan.recorded) {
        NEB_TRY(neb_session_open(neb__session_folder(j, j->at), &c, &t->session));
        NEB_TRY(neb__session_check_roster(t->session, j, j->at));
        NEB_TRY(neb__session_tell_job(t->session, j, neb__tok_hash(t->data.tok), NULL, false, NULL));
    }
    t->metrics = neb__metrics_begin(j->out, -1);
    neb__meter_begin(&t->meter, j, t->metrics, t->session, &neb__session_meter, 0);
    if (t->session) NEB_TRY(neb__session_start(t->session, START_SECONDS, waits, t));
    NEB_TRY(neb__split_start(t->split, t->session, 0, t->job->out));
    if (t->session) t->split->idle = waits, t->split->idle_arg = t;
    neb__meter_stream(&t->meter, t->split->stream, &t->split->readings, true);
    return t->split->samples ? start_samples(t) : NEB_OK;
}

static neb_status open_all(struct teacher *t)
{
    NEB_TRY(neb__data_prepare(t->job, &t->data));
    NEB_TRY(neb__split_open(t->job, &t->data, &t->split));
    neb_status status = neb__data_stream(&t->data, "train", 0, 1, &t->stream);
    if (status == NEB_ERR_NOTFOUND)
        return neb__doc_fail(&t->job->doc, "data", "no corpus to teach from (use: train)");
    NEB_TRY(status);
    NEB_TRY(neb__batches_batch(t->stream, &t->batch));
    NEB_TRY(neb__tutor_plan_init(&t->plan, t->batch->cap_seqs));
    NEB_TRY(open_teachers(t));
    t->held_bytes = NEB_STUDENT_FILE;
    return open_links(t);
}

static void close_all(struct teacher *t)
{
    neb__meter_end(&t->meter);
    neb__metrics_close(t->metrics);
    neb__split_close(t->split);
    neb_session_close(t->session);
    if (t->logits.close) t->logits.close(t->logits.arg);
    if (t->hidden.close) t->hidden.close(t->hidden.arg);
    neb__sequencer_close(t->sequencer);
    neb_device_close(t->device);
    neb__keyset_free(&t->held);
    neb__tutor_texts_free(&t->texts);
    neb__samples_free(&t->samples);
    neb__tutor_plan_free(&t->plan);
    neb__batch_free(t->batch);
    neb__batches_free(t->stream);
    neb__data_free(&t->data);
}

/* ---- teaching ------------------------------------------------------------------------------------------ */

/* Translates the sources of sequences `list`, all of one pair of languages. */
static neb_status translate(struct teacher *t, const int32_t *list, int n, char **lines, char **texts)
{
    const struct neb_batch_side *side = t->batch->side;
    const int64_t each = t->job->distill.n;
    const int32_t q = list[0];
    NEB_TRY(neb__sequencer_translate(t->sequencer, side[0].lang[side[0].cu_seqlens[q]],
                                     side[1].lang[side[1].cu_seqlens[q]], (const char *const *)lines, n,
                                     texts));
    neb_status status = NEB_OK;
    for (int i = 0; i < n; i++) {
        if (status == NEB_OK) status = neb__tutor_texts_set(&t->texts, list[i], texts + i * each, each);
        for (int64_t k = 0; k < each; k++) neb__free(texts[i * each + k]);
    }
    return status;
}

static neb_status source_of(const struct teacher *t, int32_t q, char **out)
{
    const struct neb_batch_side *s = &t->batch->side[0];
    struct neb_buf text;
    neb__buf_init(&text, 1 << 20);
    neb_status status = neb__tok_decode(t->data.tok, s->ids + s->cu_seqlens[q],
                                        (size_t)(s->cu_seqlens[q + 1] - s->cu_seqlens[q]), &text);
    if (status == NEB_OK) status = neb__buf_append(&text, "", 1);
    if (status == NEB_OK)
        *out = (char *)text.data;
    else
        neb__buf_free(&text);
    return status;
}

static bool same_languages(const struct neb_batch *b, int32_t p, int32_t q)
{
    for (int i = 0; i < 2; i++)
        if (b->side[i].lang[b->side[i].cu_seqlens[p]] != b->side[i].lang[b->side[i].cu_seqlens[q]])
            return false;
    return true;
}

/* Translates what is in nobody's file: all sequences with the languages of the first such one, then of the next. */
static neb_status translate_lacking(struct teacher *t)
{
    struct neb_tutor_texts *x = &t->texts;
    const size_t room = (size_t)x->seqs + 1;
    int32_t *list = NEB_NEW_ARRAY(int32_t, room);
    char **lines = NEB_NEW_ARRAY(char *, room);
    char **texts = NEB_NEW_ARRAY(char *, room *(size_t)t->job->distill.n);
    neb_status status =
        list && lines && texts ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for %d sentences", x->seqs);
    for (int32_t first = 0; status == NEB_OK && first < x->seqs; first++) {
        int n = 0;
        if (!x->seq[first].here || x->seq[first].n) continue;
        for (int32_t q = first; status == NEB_OK && q < x->seqs; q++) {
            if (!x->seq[q].here || x->seq[q].n || !same_languages(t->batch, first, q)) continue;
            status = source_of(t, q, &lines[n]);
            if (status == NEB_OK) list[n++] = q;
        }
        if (status == NEB_OK) status = translate(t, list, n, lines, texts);
        for (int i = 0; i < n; i++) neb__free(lines[i]);
    }
    neb__free(list);
    neb__free(lines);
    neb__free(texts);
    return status;
}

/* Gives the batch the targets that the student will give it. */
static neb_status retarget(struct teacher *t)
{
    struct neb_stream_status st;
    neb_stream_get_status(t->split->stream, &st);
    uint64_t item = (uint64_t)t->batch->step + 1;
    NEB_TRY(neb__tutor_texts_plan(&t->texts, t->batch));
    NEB_TRY(translate_lacking(t));
    NEB_TRY(neb__tutor_texts_keep(&t->texts, item > st.last ? item : st.last));
    return neb__tutor_texts_apply(&t->texts, t->batch);
}

/* Finds the sequences of the next batch that the student lacks. It holds them from then on, if they fit. */
static neb_status plan_next(struct teacher *t, int32_t *lacking)
{
    *lacking = 0;
    NEB_TRY(neb__batches_next(t->stream, t->batch));
    t->drawn = neb__batch_check_value(t->batch);
    t->batch->judged = t->split->samples && neb__on_policy_judged(t->job, t->batch->step);
    if (t->batch->judged) return NEB_OK; /* samples: nothing of them is kept */
    if (t->sequencer) NEB_TRY(retarget(t));
    NEB_TRY(neb__tutor_plan_make(&t->plan, t->batch));
    for (int32_t q = 0; q < t->plan.seqs; q++) {
        struct neb_tutor_seq *seq = &t->plan.seq[q];
        size_t size = neb__tutor_item_size(&t->split->shape, seq);
        seq->here = !neb__keyset_find(&t->held, &seq->key);
        *lacking += seq->here;
        if (!seq->here || !neb__student_keeps(t->job, t->held_bytes, size)) continue;
        NEB_TRY(neb__keyset_add(&t->held, &seq->key, 1));
        t->held_bytes += NEB_STUDENT_ENTRY + size;
    }
    return NEB_OK;
}

/* In front of the answers: the batch as it was drawn, and its texts. */
static neb_status put_texts(struct teacher *t)
{
    uint8_t drawn[4];
    neb__put32(drawn, t->drawn);
    NEB_TRY(neb__buf_append(&t->split->item, drawn, sizeof drawn));
    return neb__tutor_texts_encode(&t->texts, &t->split->item);
}

/* Waits for the student's samples, as long as it wants answers. */
static neb_status await_samples(struct teacher *t, const volatile sig_atomic_t *stop)
{
    for (;;) {
        neb_status status = neb__stream_ready(t->split->samples->stream, 1, 0.2);
        if (status != NEB_ERR_TIMEOUT) return status;
        NEB_TRY(neb__split_wait(t->split, 1, stop)); /* CANCELLED: the student has finished */
        if (*stop) return neb__quiet(NEB_ERR_AGAIN, "asked to stop");
        if (t->session) waits(t);
    }
}

/* The student's own targets, which its site gets back with the answers. */
static neb_status judge_next(struct teacher *t, const volatile sig_atomic_t *stop, int32_t *lacking)
{
    int32_t taken;
    NEB_TRY(await_samples(t, stop));
    NEB_TRY(neb__samples_take(t->split->samples, t->batch, &t->samples));
    NEB_TRY(neb__samples_apply(&t->samples, &t->data, t->batch, &taken));
    NEB_TRY(neb__tutor_plan_make(&t->plan, t->batch));
    for (int32_t q = 0; q < t->plan.seqs; q++) t->plan.seq[q].here = true;
    *lacking = t->plan.seqs;
    return NEB_OK;
}

static neb_status teach_one(struct teacher *t, const volatile sig_atomic_t *stop)
{
    struct neb_split_site *s = t->split;
    struct neb_teacher_answer logits = {0}, hidden = {0};
    int32_t lacking;
    NEB_TRY(plan_next(t, &lacking));
    if (t->batch->judged) NEB_TRY(judge_next(t, stop, &lacking));
    if (lacking && s->shape.k) NEB_TRY(t->logits.ask(t->logits.arg, t->batch, &logits));
    if (lacking && s->shape.width) NEB_TRY(t->hidden.ask(t->hidden.arg, t->batch, &hidden));
    NEB_TRY(neb__split_item_begin(s));
    if (t->batch->judged)
        NEB_TRY(neb__samples_encode(&t->samples, s, &s->item));
    else if (t->sequencer)
        NEB_TRY(put_texts(t));
    NEB_TRY(
        neb__tutor_item_encode(&s->shape, &neb__split_code(s)->tutor, &t->plan, &logits, &hidden, &s->item));
    NEB_TRY(neb_stream_put(s->stream, (uint64_t)t->batch->step + 1, s->item.data, s->item.len, -1));
    bool changed;
    struct neb_stream_status st;
    neb_stream_get_status(s->stream, &st);
    if (s->samples) neb__samples_done(s->samples, st.received);
    s->rows += t->batch->loss.used;
    t->batches = t->batch->step + 1;
    t->tokens += t->batch->side[0].used + (t->batch->sides > 1 ? t->batch->side[1].used : 0);
    return t->session ? neb_step(t->session, 0, &changed) : NEB_OK;
}

static neb_status catch_up(struct teacher *t)
{
    struct neb_stream_status st;
    int32_t lacking;
    neb_stream_get_status(t->split->stream, &st);
    if (st.last) neb__info("going on after batch %" PRIu64, st.last);
    if (t->sequencer) {
        struct neb_hash of;
        NEB_TRY(neb__student_identity(t->split, &of));
        NEB_TRY(neb__tutor_texts_open(&t->texts, t->job->out, &of, st.last));
    }
    if (t->job->wan.cache <= 0) return neb__batches_seek(t->stream, (int64_t)st.last);
    for (uint64_t i = 0; i < st.last; i++) NEB_TRY(plan_next(t, &lacking));
    return NEB_OK;
}

static void show(struct teacher *t, bool now)
{
    char text[300], line[500];
    bool quiet = !neb__log_shows(NEB_LOG_INFO);
    if (!now && (quiet || neb__seconds_since(t->shown_ns) < SHOW_SECONDS)) return;
    t->shown_ns = neb__now_ns();
    neb__split_describe(t->split, text, sizeof text);
    snprintf(line, sizeof line, "%s  %s; %.0f tokens/s", t->job->name, text,
             (double)t->tokens / neb__seconds_since(t->start_ns));
    neb__status_clean(line);
    neb__console_line(line);
}

static neb_status loop(struct teacher *t, const volatile sig_atomic_t *stop)
{
    NEB_TRY(catch_up(t));
    t->start_ns = t->shown_ns = neb__now_ns();
    int64_t made = 0, most = t->job->wan.recorded ? t->job->train.steps * t->job->train.micro : INT64_MAX;
    for (neb_status status; made < most; made++) {
        int64_t since = neb__now_ns();
        status = neb__split_wait(t->split, 1, stop);
        neb__meter_add(&t->meter, NEB_TIME_WAIT, neb__seconds_since(since));
        if (status == NEB_OK) status = teach_one(t, stop);
        if (status == NEB_ERR_CANCELLED) break; /* the student has finished */
        if (status == NEB_ERR_AGAIN) return NEB_ERR_CANCELLED;
        NEB_TRY(status);
        sample(t, "teaching", false);
        show(t, false);
    }
    sample(t, "done", true);
    show(t, true);
    return NEB_OK;
}

neb_status neb__teacher_site(const struct neb_job *job, const volatile sig_atomic_t *stop, bool *met_links)
{
    struct teacher t = {.job = job};
    neb_status status = open_all(&t);
    *met_links = t.session != NULL;
    if (status == NEB_OK) status = loop(&t, stop);
    close_all(&t);
    return status;
}
