/* split_site.c: marks, waiting and ending of a split job; the items of `relay`.
 *
 *     relay item   u32 tag of the run (split_identity.c), u32 check value of the batch, a frame with the
 *                  token ids drawn at the masked rows (codec/stream.h); then, if embeddings are shared, every
 *                  so many batches the generator's token table (codec/codec.h, int8)
 *
 * Waiting happens between steps and nowhere else, so a site that is asked to stop while it waits still stands
 * at a whole step. The receiving site releases an item only when two checkpoints on disk cover it. If the
 * newest one turns out to be damaged, the one before it still finds the items it needs. */
#include "split/split_site.h"
#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "base/mem.h"
#include "codec/codec.h"
#include "codec/stream.h"
#include "run/stream.h"
#include "task/teacher.h"

#include <stdio.h>
#include <string.h>

enum { ITEM_HEAD = 4, FINISH_SECONDS = 10, LONELY_SECONDS = 60 };
static const double slice = 0.2; /* seconds between two looks at the stop flag */

/* ---- relay --------------------------------------------------------------------------------------------- */

static bool snapshot_due(const struct neb_split_site *s, const struct neb_batch *b)
{
    return s->table && b->step % neb__split_code(s)->snapshot == 0;
}

static neb_status put_table(struct neb_split_site *s)
{
    struct neb_codec_input in = {.z = s->values, .n = (size_t)neb_param_values(s->table)};
    size_t before = s->item.len;
    NEB_TRY(neb_param_read(s->table, s->values));
    NEB_TRY(neb__codec_encode(neb__rung_by_name("int8"), &in, NULL, NULL, &s->item));
    s->table_bytes += s->item.len - before;
    return NEB_OK;
}

static neb_status take_table(struct neb_split_site *s, const struct neb_reader *r)
{
    s->table_bytes += r->left;
    NEB_TRY(neb__codec_decode(r->p, r->left, NULL, (size_t)neb_param_values(s->table), s->values));
    return neb_param_write(s->table, s->values);
}

neb_status neb__split_share(struct neb_split_site *s, neb_param *table)
{
    if (!table) return NEB_OK;
    size_t n = (size_t)neb_param_values(table), most = neb__codec_bound(neb__rung_by_name("int8"), n);
    if (most > NEB_STREAM_ITEM_MAX / 2)
        return neb__doc_fail(&s->job->doc, "train.rtd_embeddings",
                             "train.rtd_embeddings: a table of %zu values is too large to send; use "
                             "'separate', which sends no table",
                             n);
    s->values = NEB_NEW_ARRAY(float, n);
    if (!s->values) return neb__fail(NEB_ERR_NOMEM, "out of memory for a table of %zu values", n);
    s->table = table;
    return NEB_OK;
}

static neb_status give(void *arg, const struct neb_batch *b, const int32_t *sampled)
{
    struct neb_split_site *s = arg;
    uint8_t check[ITEM_HEAD];
    int32_t *chosen = NEB_NEW_ARRAY(int32_t, (size_t)b->loss.n + 1), n = 0;
    if (!chosen) return neb__fail(NEB_ERR_NOMEM, "out of memory for %d tokens", b->loss.n);
    for (int32_t i = 0; i < b->loss.n; i++)
        if (b->loss.weight[i] > 0) chosen[n++] = sampled[i];
    neb__put32(check, neb__batch_check_value(b));
    neb_status status = neb__split_item_begin(s);
    if (status == NEB_OK) status = neb__buf_append(&s->item, check, ITEM_HEAD);
    if (status == NEB_OK && n) status = neb__tokens_encode(chosen, (size_t)n, s->shape.vocabulary, &s->item);
    neb__free(chosen);
    if (status == NEB_OK && snapshot_due(s, b)) status = put_table(s);
    if (status == NEB_OK)
        status = neb_stream_put(s->stream, (uint64_t)b->step + 1, s->item.data, s->item.len, -1);
    s->rows += n;
    return status;
}

static neb_status take(void *arg, const struct neb_batch *b, int32_t *sampled)
{
    struct neb_split_site *s = arg;
    const void *bytes;
    size_t size, n = 0;
    uint64_t item;
    NEB_TRY(neb_stream_get(s->stream, -1, &bytes, &size, &item));
    NEB_TRY(neb__split_item_open(s, item, &bytes, &size));
    for (int32_t i = 0; i < b->loss.n; i++) n += b->loss.weight[i] > 0;
    if (item != (uint64_t)b->step + 1 || size < ITEM_HEAD || neb__get32(bytes) != neb__batch_check_value(b))
        return neb__fail(NEB_ERR_CONFIG,
                         "site '%s' has drawn another batch %" PRIu64
                         ": data, tokenizer, seed, train.tokens, "
                         "train.max_len, train.micro and train.mask must be the same at both sites",
                         s->other, item);
    int32_t *chosen = NEB_NEW_ARRAY(int32_t, n + 1);
    if (!chosen) return neb__fail(NEB_ERR_NOMEM, "out of memory for %zu tokens", n);
    struct neb_reader r = {(const uint8_t *)bytes + ITEM_HEAD, size - ITEM_HEAD, false};
    const uint8_t *frame = n ? neb__tutor_item_frame(&r, &size) : NULL;
    neb_status status = NEB_OK;
    if (frame)
        status = neb__tokens_decode(frame, size, s->shape.vocabulary, n, chosen);
    else if (n)
        status = neb__fail(NEB_ERR_CORRUPT, "item %" PRIu64 " from site '%s' is cut off", item, s->other);
    if (status == NEB_OK && r.left)
        status = s->table ? take_table(s, &r)
                          : neb__fail(NEB_ERR_CORRUPT, "item %" PRIu64 " from site '%s' is too long", item,
                                      s->other);
    for (int32_t i = 0, at = 0; status == NEB_OK && i < b->loss.n; i++)
        sampled[i] = b->loss.weight[i] > 0 ? chosen[at++] : 0;
    neb__free(chosen);
    s->rows += (int64_t)n;
    return status;
}

/* ---- opening ------------------------------------------------------------------------------------------- */

/* number: of several teachers. */
static neb_status find_other(struct neb_split_site *s, int number)
{
    static const enum neb_site_role facing[] = {[NEB_ROLE_GENERATOR] = NEB_ROLE_DISCRIMINATOR,
                                                [NEB_ROLE_DISCRIMINATOR] = NEB_ROLE_GENERATOR,
                                                [NEB_ROLE_TEACHER] = NEB_ROLE_STUDENT,
                                                [NEB_ROLE_STUDENT] = NEB_ROLE_TEACHER};
    int found = 0;
    for (int i = 0; i < s->job->n_sites; i++)
        if (s->job->site[i].does == facing[s->role] && found++ == number) s->other = s->job->site[i].name;
    if (found == 1 || (s->role == NEB_ROLE_STUDENT && s->other)) return NEB_OK;
    return neb__doc_fail(&s->job->doc, "sites", "strategy %s needs one %s site; the job has %d",
                         neb__strategy_name(s->job->plan), neb__role_name(facing[s->role]), found);
}

static neb_status make_shape(struct neb_split_site *s, const struct neb_data *data)
{
    const struct neb_job *j = s->job;
    const struct neb_job_distill *d = &j->distill;
    s->shape = (struct neb_tutor_shape){.vocabulary = (uint32_t)neb__tok_vocab(data->tok)};
    const bool text_alone = d->sequence && d->weight == 0 && !(d->on_policy > 0);
    if (d->teacher && !text_alone) s->shape.k = (int32_t)d->top_k;
    if (d->encoder) s->shape.width = (int32_t)d->width;
    if (j->plan != NEB_STRATEGY_TUTOR) return NEB_OK;
    if (!d->teacher && !d->encoder)
        return neb__doc_fail(
            &j->doc, "distill",
            "strategy tutor: set distill.teacher or distill.encoder to a model folder at the teacher's "
            "site");
    if (d->encoder && d->width < 1)
        return neb__doc_fail(
            &j->doc, "distill.width",
            "strategy tutor: set distill.width to the width of the hidden states of distill.encoder; "
            "this site cannot read it from the folder, which is at the teacher's site");
    if (s->shape.k > 256 || (uint32_t)s->shape.k > s->shape.vocabulary)
        return neb__doc_fail(
            &j->doc, "distill.top_k",
            "distill.top_k over a stream must be at most 256 and at most the vocabulary's size");
    return NEB_OK;
}

/* Makes room for the answers to the largest batch that is drawn. */
static neb_status open_student(struct neb_split_site *s, const struct neb_data *data)
{
    struct neb_batches *stream;
    struct neb_batch *b;
    neb_status status = neb__data_stream(data, "train", 0, 1, &stream);
    if (status == NEB_ERR_NOTFOUND)
        return neb__doc_fail(&s->job->doc, "data", "no corpus to train on (use: train)");
    NEB_TRY(status);
    status = neb__batches_batch(stream, &b);
    neb__batches_free(stream);
    NEB_TRY(status);
    status = neb__student_open(s, data, b->cap_seqs, b->cap_loss, b->cap_tokens[0], &s->student);
    neb__batch_free(b);
    struct neb_teacher t = {.ask = neb__student_ask, .arg = s};
    s->links.logits = s->links.hidden = t;
    s->links.logits.k = s->shape.k;
    s->links.hidden.width = s->shape.width;
    if (s->job->distill.sequence || s->job->distill.on_policy > 0)
        s->links.retarget = neb__student_retarget, s->links.retarget_arg = s;
    if (!s->shape.k) s->links.logits.ask = NULL;
    if (!s->shape.width) s->links.hidden.ask = NULL;
    return status;
}

/* Several teachers: each has its files. */
static neb_status name_files(struct neb_split_site *s)
{
    const struct neb_job *j = s->job;
    const char *teacher = s->produces ? j->site[j->at].name : s->other;
    int n = 0;
    if (neb__split_teachers(j) > 1) snprintf(s->label, sizeof s->label, ".%.60s", teacher);
    if (j->wan.recorded)
        n = snprintf(s->record, sizeof s->record, *s->label ? "%s/%s" : "%s", j->wan.recorded, teacher);
    return n < (int)sizeof s->record ? NEB_OK
                                     : neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", j->wan.recorded);
}

static neb_status open_all(struct neb_split_site *s, const struct neb_data *data, int number)
{
    NEB_TRY(find_other(s, number));
    NEB_TRY(make_shape(s, data));
    NEB_TRY(name_files(s));
    if (s->role == NEB_ROLE_GENERATOR) s->links.relay = (struct neb_relay_ends){.give = give, .arg = s};
    if (s->role == NEB_ROLE_DISCRIMINATOR) s->links.relay = (struct neb_relay_ends){.take = take, .arg = s};
    NEB_TRY(s->role == NEB_ROLE_STUDENT ? open_student(s, data) : neb__split_identify(s, data));
    return s->job->distill.on_policy > 0 && s->job->plan == NEB_STRATEGY_TUTOR
               ? neb__split_open_samples(s, data)
               : NEB_OK;
}

static neb_status open_end(const struct neb_job *job, const struct neb_data *data, int number,
                           struct neb_split_site **out)
{
    struct neb_split_site *s = NEB_NEW(struct neb_split_site);
    if (!s) return neb__fail(NEB_ERR_NOMEM, "out of memory for a split job");
    s->job = job;
    s->role = job->site[job->at].does;
    s->produces = s->role == NEB_ROLE_GENERATOR || s->role == NEB_ROLE_TEACHER;
    neb__buf_init(&s->item, NEB_STREAM_ITEM_MAX);
    neb_status status = open_all(s, data, number);
    if (status != NEB_OK) {
        neb__split_close(s);
        return status;
    }
    *out = s;
    return NEB_OK;
}

int neb__split_teachers(const struct neb_job *job)
{
    int n = 0;
    for (int i = 0; i < job->n_sites; i++) n += job->site[i].does == NEB_ROLE_TEACHER;
    return n;
}

/* The answers of several ends become those of one teacher. */
static neb_status mix_ends(struct neb_split_site *first)
{
    struct neb_teacher members[NEB_JOB_SITES];
    double weights[NEB_JOB_SITES];
    const struct neb_job *j = first->job;
    int n = 0;
    for (struct neb_split_site *s = first; s; s = s->next) {
        for (int i = 0; i < j->n_sites; i++)
            if (!strcmp(j->site[i].name, s->other)) weights[n] = j->site[i].weight;
        members[n++] = s->links.logits;
    }
    NEB_TRY(neb__teacher_mix_open(members, weights, n, (int)j->train.threads,
                                  neb__student_targets(first->student), &first->mix));
    first->links.logits = first->mix;
    first->links.logits.close = NULL;
    return NEB_OK;
}

neb_status neb__split_open(const struct neb_job *job, const struct neb_data *data,
                           struct neb_split_site **out)
{
    struct neb_split_site *first = NULL, **last = &first;
    const int ends = job->site[job->at].does == NEB_ROLE_STUDENT ? neb__split_teachers(job) : 1;
    neb_status status = NEB_OK;
    for (int i = 0; status == NEB_OK && i < ends; i++) {
        status = open_end(job, data, i, last);
        if (status == NEB_OK) last = &(*last)->next;
    }
    if (status == NEB_OK && first && first->next) status = mix_ends(first);
    if (status != NEB_OK) {
        neb__split_close(first);
        return status;
    }
    *out = first;
    return NEB_OK;
}

void neb__split_close(struct neb_split_site *s)
{
    if (!s) return;
    if (s->mix.close) s->mix.close(s->mix.arg);
    neb__split_close(s->next);
    neb__split_close(s->samples);
    neb_stream_close(s->stream);
    neb__student_close(s->student);
    neb__buf_free(&s->item);
    neb__free(s->values);
    neb__free(s);
}

/* Another job of the same sites has another number, and so a journal of its own. */
uint32_t neb__split_number(const struct neb_split_site *s)
{
    uint32_t crc = neb__crc32c(0, s->job->name, strlen(s->job->name));
    if (s->sampling) crc ^= 0x5a5a;
    return 1 + (crc ^ (uint32_t)s->job->plan) % 65535;
}

/* A record must have enough batches for the steps. If minutes end the training, it may have fewer. */
static neb_status check_record(const struct neb_split_site *s)
{
    const struct neb_job_train *t = &s->job->train;
    if (s->produces || !s->stream->journal || t->minutes > 0) return NEB_OK;
    uint64_t held = neb__journal_next(s->stream->journal) - 1, wanted = (uint64_t)(t->steps * t->micro);
    if (held >= wanted) return NEB_OK;
    return neb__doc_fail(&s->job->doc, "wan.recorded",
                         "wan.recorded: %s holds %" PRIu64 " batches, but %" PRId64 " steps need %" PRIu64,
                         s->record, held, t->steps, wanted);
}

neb_status neb__split_start(struct neb_split_site *s, neb_session *session, uint64_t mark, const char *out)
{
    int64_t window = neb__split_rate_begin(s);
    struct neb_stream_config c = {.site = s->other,
                                  .number = neb__split_number(s),
                                  .produce = s->produces,
                                  .mark = mark,
                                  .items = window,
                                  .bytes = 64 << 20};
    if (*s->record) c.site = NULL, c.folder = s->record;
    s->saved[0].mark = s->saved[1].mark = mark;
    NEB_TRY(neb__split_run_begin(s, c.number, mark));
    if (s->student) NEB_TRY(neb__student_start(s->student, mark, out));
    NEB_TRY(neb_stream_open(session, &c, &s->stream));
    NEB_TRY(check_record(s));
    neb_stream_get_status(s->stream, &s->seen);
    if (s->samples && s->student) NEB_TRY(neb__split_start_samples(s->samples, session, mark));
    return s->next ? neb__split_start(s->next, session, mark, out) : NEB_OK;
}

/* ---- between the steps --------------------------------------------------------------------------------- */

/* The session says for whom and for what this site waits; its loop shows it. */
static void idle(struct neb_split_site *s)
{
    if (s->idle) s->idle(s->idle_arg);
}

bool neb__split_repeats(struct neb_split_site *s, uint64_t next)
{
    struct neb_stream_status st;
    neb_stream_get_status(s->stream, &st);
    return s->produces && next <= st.last;
}

static neb_status wait_for(struct neb_split_site *s, int64_t n, const volatile sig_atomic_t *stop,
                           struct neb_split_site *first)
{
    for (;;) {
        neb__split_regulate(s);
        neb_status status = neb__stream_ready(s->stream, n, slice);
        if (status != NEB_ERR_TIMEOUT) return status;
        if (*stop) return neb__quiet(NEB_ERR_AGAIN, "asked to stop");
        idle(first);
    }
}

neb_status neb__split_wait(struct neb_split_site *s, int64_t n, const volatile sig_atomic_t *stop)
{
    for (struct neb_split_site *end = s; end; end = end->next) NEB_TRY(wait_for(end, n, stop, s));
    return NEB_OK;
}

neb_status neb__split_saving(struct neb_split_site *s)
{
    if (s->produces) return neb_stream_sync(s->stream, -1);
    if (s->samples) NEB_TRY(neb_stream_sync(s->samples->stream, -1));
    for (struct neb_split_site *end = s; end && end->student; end = end->next)
        NEB_TRY(neb__student_sync(end->student));
    return NEB_OK;
}

void neb__split_saved(struct neb_split_site *s, struct neb_ckpt_writer *writer, int64_t step, uint64_t mark)
{
    struct neb_ckpt_report r;
    if (s->produces) return;
    neb__ckpt_writer_report(writer, &r);
    /* put() has waited for the checkpoint before this one.
     * If that one is on disk, items up to saved[0].mark are covered twice. */
    for (; s; s = s->next) {
        if (r.last_step >= s->saved[1].step) (void)neb_stream_retain(s->stream, s->saved[0].mark);
        s->saved[0] = s->saved[1];
        s->saved[1].step = step;
        s->saved[1].mark = mark;
    }
}

neb_status neb__split_finish(struct neb_split_site *s, const volatile sig_atomic_t *stop)
{
    struct neb_stream_status st;
    neb_stream_get_status(s->stream, &st);
    if (!s->produces) {
        (void)neb_stream_retain(s->stream, st.last);
        neb_status end = neb_stream_finish(s->stream, st.linked ? FINISH_SECONDS : LONELY_SECONDS);
        if (end == NEB_ERR_TIMEOUT)
            neb__warn("site '%s' could not be told that this site has finished; stop it there by hand if it "
                      "goes on",
                      s->other);
        if (end != NEB_ERR_TIMEOUT && end != NEB_OK) return end;
        return s->next ? neb__split_finish(s->next, stop) : NEB_OK;
    }
    for (;;) {
        neb_status end = neb_stream_drain(s->stream, slice);
        if (end != NEB_ERR_TIMEOUT) return end;
        if (*stop) return neb__quiet(NEB_ERR_CANCELLED, "stopped before site '%s' had every item", s->other);
        idle(s);
    }
}

void neb__split_describe(struct neb_split_site *s, char *out, size_t size)
{
    struct neb_stream_status st;
    neb_stream_get_status(s->stream, &st);
    double bytes = (double)(st.bytes - s->table_bytes);
    double each = s->rows > 0 ? bytes / (double)s->rows : 0;
    const char *rows = s->job->plan == NEB_STRATEGY_RELAY ? "masked tokens" : "rows";
    const char *awaited = s->produces ? "credit" : "items";
    int n = snprintf(out, size,
                     "%s: %" PRIu64 " items, %.2f MB, %.3f bytes for each of %" PRId64
                     " %s, %.1f s waiting for %s",
                     neb__role_name(s->role), st.last, bytes / 1e6, each, s->rows, rows, st.wait_s, awaited);
    if (s->table && n > 0 && (size_t)n < size)
        snprintf(out + n, size - (size_t)n, "; %.2f MB of embeddings", (double)s->table_bytes / 1e6);
    if (s->student && n > 0 && (size_t)n < size) neb__student_describe(s->student, out + n, size - (size_t)n);
    size_t used = strlen(out);
    if (!s->next || used + 40 > size) return;
    used += (size_t)snprintf(out + used, size - used, "; from %.30s ", s->next->other);
    if (used < size) neb__split_describe(s->next, out + used, size - used);
}
