/* student.c: the student's end of a tutor stream.
 *
 * The teacher's site knows which answers the student holds. Both add every answer, in the order of the
 * batches, as long as the cache file stays within `wan.cache`, and no answer is ever removed. So an item
 * carries exactly the answers that the student lacks, and in a later epoch it carries nothing. If the file is
 * lost or damaged, the student learns the rows concerned from their targets alone. It counts and reports
 * them. */
#include "base/bytes.h"
#include "base/log.h"
#include "base/mem.h"
#include "run/stream.h"
#include "store/keyed_file.h"
#include "split/split_site.h"
#include "split/tutor_texts.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

/* The rest of an item, behind the texts. */
struct neb_tutor_waiting {
    int64_t step;
    struct neb_buf bytes;
};

struct neb_student {
    struct neb_split_site *split;
    struct neb_keyed_file *cache; /* NULL: the job keeps no answers */
    struct neb_tutor_plan plan;
    struct neb_tutor_room room;
    int32_t targets, rows;
    int64_t step; /* the batch whose answers lie in the room; -1: no batch yet */
    int64_t cached, missing;
    struct neb_buf entry;
    struct neb_tutor_texts texts; /* distill.sequence */
    struct neb_samples samples;   /* distill.on_policy */
    int64_t judged, unfit;        /* samples that were learned from; that kept the text's own target */
    struct neb_tutor_waiting
        *wait; /* (micro) items of batches that have their targets and not yet their answers */
};

bool neb__student_keeps(const struct neb_job *job, uint64_t bytes, size_t answer)
{
    return answer <= NEB_KEYED_FILE_ENTRY_MAX &&
           bytes + NEB_STUDENT_ENTRY + answer <= (uint64_t)job->wan.cache;
}

static neb_status open_texts(struct neb_student *p, const struct neb_data *data, int32_t seqs)
{
    const struct neb_job *j = p->split->job;
    const int64_t micro = j->train.micro;
    if (!j->distill.sequence && !(j->distill.on_policy > 0)) return NEB_OK;
    p->texts.data = data;
    if (j->distill.sequence) NEB_TRY(neb__tutor_texts_init(&p->texts, data, seqs));
    if (j->distill.on_policy > 0) NEB_TRY(neb__samples_init(&p->samples, seqs));
    p->wait = NEB_NEW_ARRAY(struct neb_tutor_waiting, (size_t)micro);
    if (!p->wait) return neb__fail(NEB_ERR_NOMEM, "out of memory for %" PRId64 " items", micro);
    for (int64_t i = 0; i < micro; i++) {
        p->wait[i].step = -1;
        neb__buf_init(&p->wait[i].bytes, NEB_STREAM_ITEM_MAX);
    }
    return NEB_OK;
}

neb_status neb__student_open(struct neb_split_site *s, const struct neb_data *data, int32_t seqs,
                             int32_t targets, int32_t rows, struct neb_student **out)
{
    struct neb_student *p = NEB_NEW(struct neb_student);
    if (!p) return neb__fail(NEB_ERR_NOMEM, "out of memory for a student");
    const struct neb_tutor_shape *shape = &s->shape;
    p->split = s;
    p->step = -1;
    p->targets = targets;
    p->rows = rows;
    neb__buf_init(&p->entry, NEB_KEYED_FILE_ENTRY_MAX + 1);
    neb_status status = neb__tutor_plan_init(&p->plan, seqs);
    if (status == NEB_OK) status = open_texts(p, data, seqs);
    size_t logits = (size_t)targets * (size_t)shape->k, states = (size_t)rows * (size_t)shape->width;
    if (status == NEB_OK && shape->k) {
        p->room.ids = NEB_NEW_ARRAY(int32_t, logits);
        p->room.logits = NEB_NEW_ARRAY(float, logits);
        if (!p->room.ids || !p->room.logits) status = NEB_ERR_NOMEM;
    }
    if (status == NEB_OK && shape->width && !(p->room.hidden = NEB_NEW_ARRAY(float, states)))
        status = NEB_ERR_NOMEM;
    if (status != NEB_OK) {
        neb__student_close(p);
        return neb__fail(status, "out of memory for the answers of %d rows", targets);
    }
    *out = p;
    return NEB_OK;
}

neb_status neb__student_identity(const struct neb_split_site *s, struct neb_hash *out)
{
    char text[10000];
    const struct neb_job_distill *d = &s->job->distill;
    const char *teacher = d->teacher ? d->teacher : "";
    const char *encoder = d->encoder ? d->encoder : "";
    int n = snprintf(text, sizeof text, "%.9000s %.500s %d %d %d %u", teacher, encoder, s->shape.k,
                     s->shape.width, (int)s->job->wan.bits, s->shape.vocabulary);
    if (*s->label && n < (int)sizeof text) n += snprintf(text + n, sizeof text - (size_t)n, " %s", s->label);
    if (d->sequence && n < (int)sizeof text)
        n += snprintf(text + n, sizeof text - (size_t)n, " %.20s %" PRId64, d->sequence, d->n);
    return neb__hash(text, (size_t)n, out);
}

neb_status neb__student_start(struct neb_student *p, uint64_t mark, const char *out)
{
    char path[PATH_MAX];
    struct neb_hash of;
    if (p->split->job->wan.cache <= 0) return NEB_OK;
    if (snprintf(path, sizeof path, "%s/lessons%s.cache", out, p->split->label) >= (int)sizeof path)
        return neb__fail(NEB_ERR_INVALID, "path too long: %s", out);
    NEB_TRY(neb__student_identity(p->split, &of));
    if (p->split->job->distill.sequence) NEB_TRY(neb__tutor_texts_open(&p->texts, out, &of, mark));
    return neb__keyed_file_open(path, &of, mark, &p->cache);
}

void neb__student_close(struct neb_student *p)
{
    if (!p) return;
    neb__keyed_file_close(p->cache);
    neb__tutor_texts_free(&p->texts);
    neb__samples_free(&p->samples);
    for (int64_t i = 0; p->wait && i < p->split->job->train.micro; i++) neb__buf_free(&p->wait[i].bytes);
    neb__free(p->wait);
    neb__tutor_plan_free(&p->plan);
    neb__buf_free(&p->entry);
    neb__free(p->room.ids);
    neb__free(p->room.logits);
    neb__free(p->room.hidden);
    neb__free(p);
}

static neb_status keep(struct neb_student *p, const struct neb_tutor_seq *q, uint64_t item)
{
    size_t size = neb__tutor_item_size(&p->split->shape, q);
    if (!p->cache || !neb__student_keeps(p->split->job, neb__keyed_file_bytes(p->cache), size)) return NEB_OK;
    neb__buf_clear(&p->entry);
    NEB_TRY(neb__tutor_item_pack(&p->split->shape, q, &p->room, &p->entry));
    return neb__keyed_file_put(p->cache, &q->key, item, p->entry.data, p->entry.len);
}

/* The answer to a sequence is neither in the item nor in the cache. */
static neb_status do_without(struct neb_student *p, const struct neb_tutor_seq *q)
{
    size_t k = (size_t)p->split->shape.k;
    if (p->split->shape.width)
        return neb__fail(
            NEB_ERR_NOTFOUND,
            "%s/lessons.cache was lost or changed: it lacks a hidden state that was received before. Start "
            "the run again from this site's model (init.from)",
            p->split->job->out);
    if (!p->missing++)
        neb__warn("%s/lessons.cache was lost or changed: it lacks answers that were received before. Their "
                  "rows are learned from the targets alone",
                  p->split->job->out);
    for (size_t i = (size_t)q->first * k; i < (size_t)(q->first + q->count) * k; i++)
        p->room.ids[i] = -1, p->room.logits[i] = 0;
    return NEB_OK;
}

static neb_status recall(struct neb_student *p, const struct neb_tutor_seq *q)
{
    neb__buf_clear(&p->entry);
    neb_status status = p->cache ? neb__keyed_file_get(p->cache, &q->key, &p->entry) : NEB_ERR_NOTFOUND;
    if (status == NEB_OK)
        status = neb__tutor_item_unpack(&p->split->shape, q, p->entry.data, p->entry.len, &p->room);
    if (status == NEB_ERR_NOTFOUND || status == NEB_ERR_CORRUPT) return do_without(p, q);
    p->cached++;
    return status;
}

/* The item about a batch, without its tag. */
static neb_status next_item(struct neb_split_site *s, const struct neb_batch *b, const void **bytes,
                            size_t *n)
{
    uint64_t item;
    NEB_TRY(neb_stream_get(s->stream, -1, bytes, n, &item));
    NEB_TRY(neb__split_item_open(s, item, bytes, n));
    if (item == (uint64_t)b->step + 1) return NEB_OK;
    return neb__fail(NEB_ERR_STATE, "expected the answers to batch %" PRId64 ", got those to batch %" PRIu64,
                     b->step + 1, item);
}

/* The samples that the teacher has judged, as it sent them back. */
static neb_status take_samples(struct neb_student *p, struct neb_reader *r, struct neb_batch *b)
{
    int32_t taken;
    NEB_TRY(neb__samples_decode(&p->samples, p->split, r));
    NEB_TRY(neb__samples_apply(&p->samples, p->texts.data, b, &taken));
    p->judged += taken;
    p->unfit += p->samples.seqs - taken;
    return NEB_OK;
}

static neb_status take_texts(struct neb_student *p, struct neb_reader *r, struct neb_batch *b)
{
    if (neb__read32(r) != neb__batch_check_value(b))
        return neb__fail(NEB_ERR_CONFIG,
                         "the teacher's site has drawn another batch: data, tokenizer, seed, train.tokens, "
                         "train.max_len and train.mask must be the same at both sites");
    NEB_TRY(neb__tutor_texts_plan(&p->texts, b));
    NEB_TRY(neb__tutor_texts_decode(&p->texts, r));
    NEB_TRY(neb__tutor_texts_keep(&p->texts, (uint64_t)b->step + 1));
    return neb__tutor_texts_apply(&p->texts, b);
}

neb_status neb__student_retarget(void *arg, struct neb_batch *b)
{
    struct neb_split_site *s = arg;
    struct neb_student *p = s->student;
    struct neb_tutor_waiting *w = &p->wait[b->step % s->job->train.micro];
    const void *bytes;
    size_t n;
    NEB_TRY(next_item(s, b, &bytes, &n));
    struct neb_reader r = {bytes, n, false};
    b->judged = s->samples && neb__on_policy_judged(s->job, b->step);
    if (b->judged)
        NEB_TRY(take_samples(p, &r, b));
    else if (s->job->distill.sequence)
        NEB_TRY(take_texts(p, &r, b));
    neb__buf_clear(&w->bytes);
    NEB_TRY(neb__buf_append(&w->bytes, r.p, r.left));
    w->step = b->step;
    return NEB_OK;
}

/* A sample never comes again, so its answer is not kept; it must be in the item. */
static neb_status take_answer(struct neb_student *p, const struct neb_tutor_seq *q, uint64_t item)
{
    if (!p->plan.judged) return q->here ? keep(p, q, item) : recall(p, q);
    return q->here ? NEB_OK
                   : neb__fail(NEB_ERR_CORRUPT, "site '%s' did not judge a sample of batch %" PRIu64,
                               p->split->other, item);
}

static neb_status fetch(struct neb_student *p, const struct neb_batch *b)
{
    struct neb_split_site *s = p->split;
    const void *bytes;
    size_t n;
    uint64_t item;
    if (b->loss.n > p->targets || b->side[0].tokens > p->rows)
        return neb__fail(NEB_ERR_RANGE, "a batch of %d rows is larger than the largest that was planned for",
                         b->loss.n);
    if (p->wait) {
        const struct neb_tutor_waiting *w = &p->wait[b->step % s->job->train.micro];
        if (w->step != b->step)
            return neb__fail(NEB_ERR_INTERNAL, "batch %" PRId64 " was not given its targets", b->step + 1);
        bytes = w->bytes.data, n = w->bytes.len, item = (uint64_t)b->step + 1;
    } else {
        NEB_TRY(next_item(s, b, &bytes, &n));
        item = (uint64_t)b->step + 1;
    }
    NEB_TRY(neb__tutor_plan_make(&p->plan, b));
    NEB_TRY(neb__tutor_item_decode(&s->shape, &p->plan, bytes, n, &p->room));
    for (int32_t q = 0; q < p->plan.seqs; q++) NEB_TRY(take_answer(p, &p->plan.seq[q], item));
    size_t k = (size_t)s->shape.k;
    /* rows that belong to no sequence have no answer */
    for (size_t i = (size_t)b->loss.used * k; i < (size_t)b->loss.n * k; i++)
        p->room.ids[i] = -1, p->room.logits[i] = 0;
    s->rows += b->loss.used;
    p->step = b->step;
    return NEB_OK;
}

neb_status neb__student_ask(void *arg, const struct neb_batch *b, struct neb_teacher_answer *out)
{
    struct neb_student *p = ((struct neb_split_site *)arg)->student;
    if (p->step != b->step) NEB_TRY(fetch(p, b));
    *out = (struct neb_teacher_answer){p->room.ids, p->room.logits, p->room.hidden};
    return NEB_OK;
}

int32_t neb__student_targets(const struct neb_student *p)
{
    return p->targets;
}

neb_status neb__student_sync(struct neb_student *p)
{
    if (p->texts.file) NEB_TRY(neb__keyed_file_sync(p->texts.file));
    return p->cache ? neb__keyed_file_sync(p->cache) : NEB_OK;
}

void neb__student_describe(const struct neb_student *p, char *out, size_t size)
{
    int n = snprintf(out, size,
                     "; %" PRId64 " sequences from the cache of %.1f MB, %" PRId64 " without an answer",
                     p->cached, p->cache ? (double)neb__keyed_file_bytes(p->cache) / 1e6 : 0.0, p->missing);
    if (p->split->samples && n > 0 && (size_t)n < size)
        n +=
            snprintf(out + n, size - (size_t)n,
                     "; %" PRId64 " own samples judged, %" PRId64 " targets kept there", p->judged, p->unfit);
    if (p->split->job->distill.sequence && n > 0 && (size_t)n < size)
        snprintf(out + n, size - (size_t)n,
                 "; %" PRId64 " targets by the teacher, %" PRId64 " of the text's own, %" PRId64
                 " that did not fit",
                 p->texts.taken, p->texts.gold, p->texts.unfit);
}
