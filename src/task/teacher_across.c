/* teacher_across.c: a teacher whose tokenizer is not the student's.
 *
 * A batch is in the student's tokens. They are decoded, the teacher's tokenizer cuts the same text anew, and the teacher is
 * asked about that, in the frame of its own family. Its answers are brought back to the student's rows (text/token_mass.c).
 * Translation is taught by an encoder-decoder, or by a decoder behind a prompt with the source in it; a causal student by a
 * decoder. The teacher's batches are larger than the student's, and one of the student's may take several of them.
 *
 * A sequence stays without an answer, and is learned from its targets, if it has an unknown token (its text is lost), if the
 * text that the teacher's tokens write is another one (a tokenizer that lower-cases, say), or if the teacher cannot read so
 * much. Which ones depends on the sequence alone, so answers may be cached. They are counted and reported; a teacher that
 * can answer nothing at all is refused. */
#include "base/log.h"
#include "base/mem.h"
#include "base/pool.h"
#include "task/folder.h"
#include "task/teacher.h"
#include "text/batch_pack.h"
#include "text/token_mass.h"

#include <stdio.h>
#include <string.h>

enum { WIDE = 64, LONGEST = 4096, TRIALS = 512, TEXT_MAX = 1 << 26, SOURCE_MARK = 8 };

/* A sequence in the teacher's batch. Places in `numbers` and `text`, which may move. */
struct waiting {
    size_t text, own, own_ends, its, its_ends;
    int32_t own_n, its_n;
    int32_t row;  /* of the student's answer: that of its first token */
    int32_t said; /* of the teacher's answer: that of its first token */
    bool ends;    /* the student's text ends here and is not cropped */
};

struct across {
    struct neb_teacher inner;
    const struct neb_data *data;
    struct neb_model_yaml folder;
    struct neb_tok *tok;
    const struct neb_frame *frame;
    struct neb_arch arch;
    struct neb_token_mass *mass;
    struct neb_pool *pool;
    struct neb_batch *batch; /* the teacher's */
    struct waiting *list;    /* (cap_seqs of batch) */
    int n;
    int32_t k, max_len, targets;
    bool whole;                              /* the answers are log-probabilities */
    struct neb_buf text, numbers;            /* of the waiting sequences */
    struct neb_buf own, source, target, ids; /* scratch of one */
    struct neb_token_sum *sums;              /* (threads) */
    struct neb_teacher_answer said;
    int32_t *answer; /* (targets, k) */
    float *top;
    int64_t taught, unknown, differ, too_long;
};

/* ---- a student's sequence as text ---------------------------------------------------------------------- */

/* NEB_ERR_NOTFOUND (quiet): a token is unknown. */
static neb_status decode(struct across *c, const int32_t *ids, int32_t n, struct neb_buf *out)
{
    int32_t unknown = neb__tok_special(c->data->tok, NEB_TOK_UNK);
    for (int32_t i = 0; i < n; i++)
        if (ids[i] == unknown) return neb__quiet(NEB_ERR_NOTFOUND, "an unknown token");
    neb__buf_clear(out);
    return neb__tok_decode(c->data->tok, ids, (size_t)n, out);
}

/* The texts of sequence q: c->source, c->target and the student's tokens of the target in c->own. w gets their row. */
static neb_status read_texts(struct across *c, const struct neb_batch *b, int32_t q, int32_t *loss_row,
                             struct waiting *w)
{
    const struct neb_batch_side *last = &b->side[b->sides - 1], *s = &b->side[0];
    const uint8_t *special = neb__tok_special_map(c->data->tok);
    int32_t from = *loss_row, to = from;
    while (to < b->loss.used && b->loss.rows[to] < last->cu_seqlens[q + 1]) to++;
    *loss_row = to;
    while (from < to && special[b->loss.target[from]]) from++;
    w->row = from;
    w->ends = to > from && b->loss.target[to - 1] == neb__tok_special(c->data->tok, NEB_TOK_EOS);
    w->own_n = to - from - w->ends;
    if (w->own_n < 1) return neb__quiet(NEB_ERR_NOTFOUND, "no text");
    neb__buf_clear(&c->own);
    NEB_TRY(neb__buf_append(&c->own, b->loss.target + from, (size_t)w->own_n * sizeof(int32_t)));
    NEB_TRY(decode(c, (const int32_t *)c->own.data, w->own_n, &c->target));
    if (b->sides < 2) return NEB_OK;
    return decode(c, s->ids + s->cu_seqlens[q], s->cu_seqlens[q + 1] - s->cu_seqlens[q], &c->source);
}

/* ---- the teacher's sequence ---------------------------------------------------------------------------- */

static neb_status add(struct neb_buf *ids, int32_t id)
{
    return id < 0 ? NEB_OK : neb__buf_append(ids, &id, sizeof id);
}

static int32_t count(const struct neb_buf *ids)
{
    return (int32_t)(ids->len / sizeof(int32_t));
}

/* Cuts the target as the teacher does and lays both cuts side by side.
 *   NEB_ERR_NOTFOUND (quiet): they write different texts */
static neb_status align(struct across *c, const char *target, size_t n, struct waiting *w)
{
    const size_t numbers = c->numbers.len, text = c->text.len, step = sizeof(int32_t);
    c->ids.len = 0;
    NEB_TRY(neb__tok_encode_side(c->tok, 1, target, n, &c->ids));
    w->its_n = count(&c->ids);
    w->own = numbers;
    w->own_ends = w->own + (size_t)w->own_n * step;
    w->its = w->own_ends + ((size_t)w->own_n + 1) * step;
    w->its_ends = w->its + (size_t)w->its_n * step;
    w->text = text;
    NEB_TRY(neb__buf_reserve(&c->numbers, (2 * ((size_t)w->own_n + (size_t)w->its_n) + 2) * step));
    uint8_t *at = c->numbers.data;
    memcpy(at + w->own, c->own.data, (size_t)w->own_n * step);
    if (w->its_n) memcpy(at + w->its, c->ids.data, (size_t)w->its_n * step);
    neb_status status = neb__surfaces_join(neb__token_mass_own(c->mass), (int32_t *)(at + w->own), w->own_n,
                                           &c->text, (int32_t *)(at + w->own_ends));
    const size_t length = c->text.len - text;
    if (status == NEB_OK)
        status = neb__surfaces_join(neb__token_mass_teachers(c->mass), (int32_t *)(at + w->its), w->its_n,
                                    &c->text, (int32_t *)(at + w->its_ends));
    bool same = status == NEB_OK && c->text.len - text == 2 * length &&
                !memcmp(c->text.data + text, c->text.data + text + length, length);
    c->text.len = text + (same ? length : 0);
    if (status == NEB_OK && !same) return neb__quiet(NEB_ERR_NOTFOUND, "another text");
    if (status == NEB_OK) c->numbers.len += (2 * ((size_t)w->own_n + (size_t)w->its_n) + 2) * step;
    return status;
}

/* Behind a prompt a word begins with a space. A tokenizer that adds one itself gets the text without. */
static neb_status align_target(struct across *c, struct waiting *w, bool behind)
{
    neb_status status = NEB_ERR_NOTFOUND;
    if (behind) {
        neb__buf_clear(&c->source); /* the prompt is encoded by now */
        NEB_TRY(neb__buf_append(&c->source, " ", 1));
        NEB_TRY(neb__buf_append(&c->source, c->target.data, c->target.len));
        status = align(c, (const char *)c->source.data, c->source.len, w);
    }
    if (status == NEB_ERR_NOTFOUND) status = align(c, (const char *)c->target.data, c->target.len, w);
    return status;
}

/* [lead] source </s> [tail] and start [first] target. */
static neb_status frame_pair(struct across *c, const struct neb_batch *b, int32_t q, struct neb_buf side[2],
                             struct waiting *w, int32_t *from)
{
    char lang[2][NEB_LANG_SIZE];
    struct neb_frame_tokens f;
    for (int i = 0; i < 2; i++)
        neb__data_teachers_lang(c->data, b->side[i].lang[b->side[i].cu_seqlens[q]], lang[i]);
    NEB_TRY(neb__frame_find(c->frame, c->tok, lang[0], lang[1], &f));
    NEB_TRY(add(&side[0], f.lead));
    NEB_TRY(neb__tok_encode_side(c->tok, 0, (const char *)c->source.data, c->source.len, &side[0]));
    NEB_TRY(add(&side[0], neb__tok_special(c->tok, NEB_TOK_EOS)));
    NEB_TRY(add(&side[0], f.tail));
    NEB_TRY(align_target(c, w, false));
    NEB_TRY(add(&side[1], f.start >= 0 ? f.start : neb__tok_special(c->tok, NEB_TOK_BOS)));
    NEB_TRY(add(&side[1], f.first));
    *from = f.first >= 0;
    return NEB_OK;
}

/* <s> [prompt]. */
static neb_status frame_single(struct across *c, struct neb_buf *side, struct waiting *w, int32_t *from)
{
    const char *prompt = c->data->job->distill.prompt, *mark = prompt ? strstr(prompt, "{source}") : NULL;
    int32_t start = neb__tok_special(c->tok, NEB_TOK_BOS);
    NEB_TRY(add(side, start >= 0 ? start : neb__tok_special(c->tok, NEB_TOK_EOS)));
    bool prompted = c->data->job->objective->sides == 2;
    if (prompted) {
        struct neb_buf text;
        neb__buf_init(&text, TEXT_MAX);
        neb_status status = neb__buf_append(&text, prompt, (size_t)(mark - prompt));
        if (status == NEB_OK) status = neb__buf_append(&text, c->source.data, c->source.len);
        if (status == NEB_OK) status = neb__buf_append(&text, mark + SOURCE_MARK, strlen(mark + SOURCE_MARK));
        if (status == NEB_OK) status = neb__tok_encode(c->tok, (const char *)text.data, text.len, side);
        neb__buf_free(&text);
        NEB_TRY(status);
    }
    *from = count(side) - 1;
    return align_target(c, w, prompted);
}

/* Puts a framed sequence into the teacher's batch. */
static neb_status enqueue(struct across *c, struct neb_buf side[2], struct waiting *w, int32_t from)
{
    struct neb_batch *b = c->batch;
    const int last = b->sides - 1;
    struct neb_buf predicted;
    neb__buf_init(&predicted, TEXT_MAX);
    neb_status status = neb__buf_append(&predicted, c->ids.data, c->ids.len);
    if (status == NEB_OK) status = add(&predicted, neb__tok_special(c->tok, NEB_TOK_EOS));
    if (status == NEB_OK) status = neb__buf_append(&side[last], c->ids.data, c->ids.len);
    struct neb_batch_seq seq = {.ids = {(int32_t *)side[0].data, (int32_t *)side[1].data},
                                .n = {count(&side[0]), count(&side[1])},
                                .from = from,
                                .target = (int32_t *)predicted.data};
    w->said = b->loss.used;
    if (status == NEB_OK) neb__batch_pack_add(b, &seq);
    if (status == NEB_OK) c->list[c->n++] = *w;
    neb__buf_free(&predicted);
    return status;
}

/* Undoes align() for a sequence that does not go into this batch. */
static void forget(struct across *c, const struct waiting *w)
{
    c->numbers.len = w->own;
    c->text.len = w->text;
}

static neb_status place(struct across *c, const struct neb_batch *b, int32_t q, struct waiting *w,
                        struct neb_buf side[2])
{
    const int last = c->batch->sides - 1;
    int32_t from = 0;
    for (int i = 0; i < 2; i++) side[i].len = 0;
    NEB_TRY(last ? frame_pair(c, b, q, side, w, &from) : frame_single(c, &side[0], w, &from));
    int32_t rows[2] = {count(&side[0]), count(&side[1])};
    rows[last] += w->its_n;
    if (rows[0] > c->max_len || rows[1] > c->max_len) {
        forget(c, w);
        return neb__quiet(NEB_ERR_RANGE, "too long");
    }
    if (!neb__batch_pack_fits(c->batch, rows[0], rows[1], w->its_n + 1, c->max_len)) {
        forget(c, w);
        return neb__quiet(NEB_ERR_AGAIN, "full");
    }
    return enqueue(c, side, w, from);
}

/* ---- back to the student's rows ------------------------------------------------------------------------ */

static void bring_back(void *arg, int task, int worker)
{
    struct across *c = arg;
    const struct waiting *w = &c->list[task];
    const uint8_t *numbers = c->numbers.data;
    struct neb_token_cuts cuts = {.text = (const char *)c->text.data + w->text,
                                  .own = (const int32_t *)(numbers + w->own),
                                  .own_ends = (const int32_t *)(numbers + w->own_ends),
                                  .its = (const int32_t *)(numbers + w->its),
                                  .its_ends = (const int32_t *)(numbers + w->its_ends),
                                  .own_n = w->own_n,
                                  .its_n = w->its_n};
    const int64_t k = c->inner.k;
    struct neb_token_says says = {c->said.ids + w->said * k, c->said.logits + w->said * k, (int32_t)k,
                                  c->whole};
    for (int32_t i = 0; i < w->own_n + w->ends; i++) {
        int64_t at = (int64_t)(w->row + i) * c->k;
        neb__token_mass_row(c->mass, &cuts, &says, i, &c->sums[worker], c->k, c->answer + at, c->top + at);
    }
}

/* Asks the teacher about what waits. */
static neb_status flush(struct across *c)
{
    if (c->n) {
        int32_t pad = neb__tok_special(c->tok, NEB_TOK_PAD);
        neb__batch_pack_end(c->batch, pad >= 0 ? pad : neb__tok_special(c->tok, NEB_TOK_EOS), c->max_len);
        NEB_TRY(c->inner.ask(c->inner.arg, c->batch, &c->said));
        neb__pool_run(c->pool, bring_back, c, c->n);
    }
    c->n = 0;
    neb__buf_clear(&c->text);
    neb__buf_clear(&c->numbers);
    neb__batch_pack_begin(c->batch);
    return NEB_OK;
}

/* ---- asking -------------------------------------------------------------------------------------------- */

static neb_status refuse_deaf(const struct across *c)
{
    int64_t tried = c->unknown + c->differ + c->too_long;
    if (c->taught || tried < TRIALS) return NEB_OK;
    return neb__fail(NEB_ERR_CONFIG,
                     "the teacher in %s could answer none of the first %" PRId64 " sequences (%" PRId64
                     " with unknown tokens, %" PRId64
                     " whose text its tokenizer changes, such as capital letters, %" PRId64
                     " too long for it): give the student a tokenizer and text that it can read",
                     c->folder.path, tried, c->unknown, c->differ, c->too_long);
}

static neb_status ask_about(struct across *c, const struct neb_batch *b, int32_t q, int32_t *loss_row,
                            struct neb_buf side[2])
{
    struct waiting w = {0};
    neb_status status = read_texts(c, b, q, loss_row, &w);
    if (status == NEB_ERR_NOTFOUND) {
        c->unknown++;
        return refuse_deaf(c);
    }
    if (status == NEB_OK) status = place(c, b, q, &w, side);
    if (status == NEB_ERR_AGAIN) {
        NEB_TRY(flush(c));
        *loss_row = w.row; /* the texts are read again: a prompt has taken their place */
        while (*loss_row > 0 && b->loss.rows[*loss_row - 1] >= b->side[b->sides - 1].cu_seqlens[q])
            --*loss_row;
        NEB_TRY(read_texts(c, b, q, loss_row, &w));
        status = place(c, b, q, &w, side);
    }
    if (status == NEB_OK) {
        c->taught++;
        return NEB_OK;
    }
    if (status == NEB_ERR_NOTFOUND)
        c->differ++;
    else if (status == NEB_ERR_RANGE || status == NEB_ERR_AGAIN)
        c->too_long++;
    else
        return status;
    return refuse_deaf(c);
}

static neb_status ask(void *arg, const struct neb_batch *b, struct neb_teacher_answer *out)
{
    struct across *c = arg;
    struct neb_buf side[2];
    int32_t loss_row = 0;
    if (b->loss.n > c->targets)
        return neb__fail(NEB_ERR_RANGE, "a batch of %d rows is larger than the largest that was announced",
                         b->loss.n);
    for (int64_t i = 0; i < (int64_t)b->loss.n * c->k; i++) c->answer[i] = -1, c->top[i] = 0;
    for (int i = 0; i < 2; i++) neb__buf_init(&side[i], TEXT_MAX);
    c->n = 0;
    neb_status status = flush(c);
    for (int32_t q = 0; status == NEB_OK && q < b->side[0].nseq_used; q++)
        status = ask_about(c, b, q, &loss_row, side);
    if (status == NEB_OK) status = flush(c);
    for (int i = 0; i < 2; i++) neb__buf_free(&side[i]);
    *out = (struct neb_teacher_answer){.ids = c->answer, .logits = c->top};
    return status;
}

/* ---- opening ------------------------------------------------------------------------------------------- */

static void close_across(void *arg)
{
    struct across *c = arg;
    if (c->taught || c->unknown || c->differ || c->too_long)
        neb__info("the teacher in %s, with a tokenizer of its own, answered %" PRId64
                  " sequences; left to their targets: %" PRId64 " with unknown tokens, %" PRId64
                  " whose text its tokenizer changes, %" PRId64 " too long",
                  c->folder.path, c->taught, c->unknown, c->differ, c->too_long);
    if (c->inner.close) c->inner.close(c->inner.arg);
    for (int i = 0; c->sums && i < neb__pool_threads(c->pool); i++) {
        neb__free(c->sums[i].ids);
        neb__free(c->sums[i].p);
    }
    neb__free(c->sums);
    neb__pool_destroy(c->pool);
    neb__token_mass_free(c->mass);
    neb__batch_free(c->batch);
    neb__tok_close(c->tok);
    neb__model_yaml_free(&c->folder);
    struct neb_buf *bufs[] = {&c->text, &c->numbers, &c->own, &c->source, &c->target, &c->ids};
    for (size_t i = 0; i < sizeof bufs / sizeof *bufs; i++) neb__buf_free(bufs[i]);
    neb__free(c->list);
    neb__free(c->answer);
    neb__free(c->top);
    neb__free(c);
}

static neb_status fits(struct across *c, const struct neb_teacher_config *cfg)
{
    const struct neb_job *j = c->data->job;
    const char *prompt = j->distill.prompt;
    NEB_TRY(neb__model_config_check(&c->folder.model, &c->arch));
    bool decoder = c->arch.kind == NEB_DECODER;
    if (j->objective->masks)
        return neb__doc_fail(
            &j->doc, "distill.teacher",
            "the teacher in %s has another tokenizer than the student, so the masked places are others: "
            "task %s needs the teacher's (tokenizer.file)",
            cfg->folder, j->task);
    if (c->arch.head != NEB_HEAD_TOKENS || c->arch.kind == NEB_ENCODER || (cfg->sides == 1 && !decoder))
        return neb__fail(NEB_ERR_CONFIG, "the model in %s cannot teach this task: it was trained for %s",
                         cfg->folder, c->folder.task ? c->folder.task : "another");
    if (decoder && cfg->sides == 2 && (!prompt || !strstr(prompt, "{source}")))
        return neb__doc_fail(
            &j->doc, "distill.prompt",
            "distill.prompt: the teacher in %s is a decoder; say what it reads before a translation, with "
            "{source} in it, such as 'English: {source} German:'",
            cfg->folder);
    if (neb__tok_special(c->tok, NEB_TOK_EOS) < 0)
        return neb__fail(NEB_ERR_CONFIG, "the tokenizer in %s has no end token", cfg->folder);
    return NEB_OK;
}

/* longest: sequence of the student; 0: not known. */
static neb_status make_batch(struct across *c, int64_t longest, const struct neb_model_input_limits *l,
                             struct neb_model_input_limits *out)
{
    bool single = c->arch.kind == NEB_DECODER;
    int64_t most = longest > 0 ? 4 * longest + 64
                               : LONGEST; /* another tokenizer may need more tokens, a prompt has some */
    if (c->arch.max_positions > 0 && c->arch.max_positions < most) most = c->arch.max_positions;
    c->max_len = (int32_t)most;
    int32_t least = c->max_len > 64 ? c->max_len : 64;
    int32_t rows[2] = {2 * l->rows[0], 2 * l->rows[1]};
    if (single) rows[0] += 2 * rows[1], rows[1] = 0;
    for (int i = 0; i < 2 - single; i++)
        if (rows[i] < least) rows[i] = least;
    int32_t larger = rows[0] > rows[1] ? rows[0] : rows[1];
    *out = (struct neb_model_input_limits){.rows = {rows[0], rows[1]},
                                           .seqs = neb__batch_pack_seqs(l->seqs, larger, c->max_len),
                                           .targets = rows[!single]};
    return neb__batch_create(single ? NEB_BATCH_CAUSAL : NEB_BATCH_PAIR, rows, out->seqs, out->targets,
                             &c->batch);
}

static neb_status make_room(struct across *c, const struct neb_teacher_config *cfg, int32_t targets)
{
    const size_t kept = (size_t)targets * (size_t)c->k, each = NEB_TOKEN_MASS_HOPS * (size_t)c->inner.k;
    NEB_TRY(neb__pool_create(cfg->threads, &c->pool));
    const int threads = neb__pool_threads(c->pool);
    c->targets = targets;
    c->list = NEB_NEW_ARRAY(struct waiting, (size_t)c->batch->cap_seqs);
    c->answer = NEB_NEW_ARRAY(int32_t, kept + 1);
    c->top = NEB_NEW_ARRAY(float, kept + 1);
    c->sums = NEB_NEW_ARRAY(struct neb_token_sum, (size_t)threads);
    bool ok = c->list && c->answer && c->top && c->sums;
    for (int i = 0; ok && i < threads; i++) {
        c->sums[i].ids = NEB_NEW_ARRAY(int32_t, each);
        c->sums[i].p = NEB_NEW_ARRAY(float, each);
        ok = c->sums[i].ids && c->sums[i].p;
    }
    return ok ? NEB_OK
              : neb__fail(NEB_ERR_NOMEM, "out of memory for the answers of a teacher at %d rows", targets);
}

static neb_status open_across(struct across *c, neb_device *device, const struct neb_teacher_config *cfg,
                              const struct neb_model_input_limits *limits)
{
    struct neb_teacher_config inner = *cfg;
    struct neb_model_input_limits l;
    NEB_TRY(neb__folder_tokenizer(&c->folder, &c->tok));
    NEB_TRY(fits(c, cfg));
    if (c->arch.kind == NEB_ENCODER_DECODER) NEB_TRY(neb__folder_frame(&c->folder, &c->frame));
    NEB_TRY(neb__token_mass_make(cfg->tok, c->tok, &c->mass));
    NEB_TRY(make_batch(c, cfg->max_len, limits, &l));
    inner.tok = c->tok;
    inner.data = NULL;
    inner.sides = c->batch->sides;
    inner.max_len = c->max_len;
    inner.k = cfg->k > WIDE ? cfg->k : WIDE;
    NEB_TRY(neb__teacher_open(device, &inner, &l, &c->inner));
    c->k = cfg->k;
    c->whole = cfg->logp;
    neb__info("the teacher in %s has another tokenizer than the student: it is asked about the same text in "
              "its own tokens",
              cfg->folder);
    return make_room(c, cfg, limits->targets);
}

neb_status neb__teacher_across_open(neb_device *device, const struct neb_teacher_config *cfg,
                                    const struct neb_model_input_limits *limits, struct neb_teacher *out)
{
    struct across *c = NEB_NEW(struct across);
    if (!c) return neb__fail(NEB_ERR_NOMEM, "out of memory for a teacher");
    struct neb_buf *bufs[] = {&c->text, &c->numbers, &c->own, &c->source, &c->target, &c->ids};
    for (size_t i = 0; i < sizeof bufs / sizeof *bufs; i++) neb__buf_init(bufs[i], TEXT_MAX);
    c->data = cfg->data;
    neb_status status = neb__model_yaml_read(cfg->folder, &c->folder);
    if (status == NEB_OK) status = open_across(c, device, cfg, limits);
    if (status != NEB_OK) {
        close_across(c);
        return status;
    }
    *out = (struct neb_teacher){.k = c->k, .ask = ask, .close = close_across, .arg = c};
    return NEB_OK;
}
