/* teacher.c: the teacher on this site.
 *
 * Its body runs once over the batch and leaves the predicted rows (or all rows, for hidden states) in a
 * buffer. Logits over the vocabulary are then made a chunk of rows at a time, so that their memory does not
 * grow with the batch. The device chooses the k likeliest of each row, so that only they are copied. If it
 * cannot, or if k is large, the host chooses (base/topk.h). */
#include "task/teacher.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/topk.h"
#include "task/folder.h"
#include "tensor/packed.h"

#include <math.h>
#include <string.h>

/* Rows of a chunk. A small chunk stays in the caches; a large one has fewer waits for an asynchronous device.
 * The host sorts faster when k is above DEVICE_K. */
enum { CHUNK = 256, LARGE_CHUNK = 2048, DEVICE_K = 64 };

struct teacher {
    struct neb_ready model;
    struct neb_pool *pool;
    struct neb_model_input *input;
    neb_tape *tape;
    neb_buffer *rows,
        *logits; /* F32 (targets or rows, hidden); (chunk, vocab), or the best of them (tensor/packed.h) */
    bool wants_logits, on_device, logp;
    int32_t k, targets, chunk, at; /* at: first row of the present chunk */
    int64_t vocab, width;
    float *host; /* (chunk, vocab), or all hidden states */
    int32_t *ids;
    float *top;
};

struct neb_model_input_data neb__model_input_of(const struct neb_batch *b)
{
    struct neb_model_input_data d = {.sides = b->sides,
                                     .targets = b->loss.n,
                                     .target_row = b->loss.rows,
                                     .target = b->loss.target,
                                     .weight = b->loss.weight};
    for (int i = 0; i < b->sides; i++) {
        const struct neb_batch_side *s = &b->side[i];
        d.side[i] = (struct neb_model_input_side){.rows = s->tokens,
                                                  .seqs = s->nseq,
                                                  .max_len = s->max_len,
                                                  .ids = s->ids,
                                                  .position = s->pos,
                                                  .at = s->at,
                                                  .type = s->type,
                                                  .sample = s->sample,
                                                  .starts = s->cu_seqlens};
    }
    return d;
}

/* ---- model functions ----------------------------------------------------------------------------------- */

static void run_body(neb_tape *t, void *arg)
{
    struct teacher *c = arg;
    const struct neb_input *in = neb__model_input_tensors(c->input, t);
    neb_tensor *x = c->wants_logits ? neb__model_run(c->model.model, t, in)
                                    : neb__model_encode(c->model.model, t, &in->side[0]);
    if (c->wants_logits && in->target_row) x = neb_op_gather(t, x, in->target_row);
    neb_output(t, x, c->rows, NEB_F32);
}

static void run_head(neb_tape *t, void *arg)
{
    struct teacher *c = arg;
    int64_t shape[2] = {c->chunk, c->width};
    size_t offset = (size_t)c->at * (size_t)c->width * sizeof(float);
    neb_tensor *x = neb_op_convert(t, neb_input_at(t, c->rows, offset, NEB_F32, 2, shape));
    x = neb__model_logits(c->model.model, t, x, NULL, NULL);
    if (c->on_device)
        neb__output_best(t, x, c->k, c->logits);
    else
        neb_output(t, x, c->logits, NEB_F32);
}

static neb_status run(struct teacher *c, neb_model_fn fn, uint64_t key)
{
    struct neb_run r = {.fn = fn, .arg = c, .key = key};
    return neb_tape_run(c->tape, &r);
}

/* ---- the k likeliest ----------------------------------------------------------------------------------- */

static float log_sum(const float *x, int64_t n)
{
    float most = -INFINITY;
    double sum = 0;
    for (int64_t i = 0; i < n; i++) most = fmaxf(most, x[i]);
    for (int64_t i = 0; i < n; i++) sum += exp((double)(x[i] - most));
    return most + (float)log(sum);
}

static void subtract(float *x, int32_t n, float by)
{
    for (int32_t i = 0; i < n; i++) x[i] -= by;
}

static void choose_row(void *arg, int task, int worker)
{
    struct teacher *c = arg;
    (void)worker;
    const float *row = c->host + (int64_t)task * c->vocab;
    float *top = c->top + (int64_t)(c->at + task) * c->k;
    int32_t *ids = c->ids + (int64_t)(c->at + task) * c->k;
    neb__topk_heap_clear(top, ids, c->k);
    for (int32_t v = 0; v < c->vocab; v++) neb__topk_heap_offer(top, ids, c->k, row[v], v);
    neb__topk_zero_empty(top, ids, c->k);
    if (c->logp) subtract(top, c->k, log_sum(row, c->vocab));
}

/* Brings the device's choice for the first n rows of the chunk. */
static neb_status fetch_best(struct teacher *c, int32_t n)
{
    const size_t all = (size_t)c->chunk * (size_t)c->k, kept = (size_t)n * (size_t)c->k;
    float *top = c->top + (int64_t)c->at * c->k;
    int32_t *ids = c->ids + (int64_t)c->at * c->k;
    const size_t sums = c->logp ? (size_t)c->chunk : 0; /* they lie behind the ids */
    NEB_TRY(neb_buffer_download(c->logits, c->host, (2 * all + sums) * sizeof *c->host));
    memcpy(top, c->host, kept * sizeof *top);
    memcpy(ids, c->host + all, kept * sizeof *ids);
    neb__topk_zero_empty(top, ids, (int64_t)kept);
    for (int32_t i = 0; c->logp && i < n; i++)
        subtract(top + (int64_t)i * c->k, c->k, c->host[2 * all + (size_t)i]);
    return NEB_OK;
}

static neb_status choose_on_host(struct teacher *c, int32_t n)
{
    NEB_TRY(neb_buffer_download(c->logits, c->host, (size_t)n * (size_t)c->vocab * sizeof *c->host));
    neb__pool_run(c->pool, choose_row, c, n);
    return NEB_OK;
}

static neb_status ask_logits(struct teacher *c, int32_t targets, struct neb_teacher_answer *out)
{
    for (c->at = 0; c->at < targets; c->at += c->chunk) {
        int32_t n = targets - c->at < c->chunk ? targets - c->at : c->chunk;
        NEB_TRY(run(c, run_head, 2 + (uint64_t)c->at)); /* the offset is part of what was planned */
        NEB_TRY(c->on_device ? fetch_best(c, n) : choose_on_host(c, n));
    }
    *out = (struct neb_teacher_answer){.ids = c->ids, .logits = c->top};
    return NEB_OK;
}

static neb_status ask(void *arg, const struct neb_batch *b, struct neb_teacher_answer *out)
{
    struct teacher *c = arg;
    struct neb_model_input_data d = neb__model_input_of(b);
    if (!c->wants_logits) d.sides = 1, d.targets = 0;
    NEB_TRY(neb__model_input_load(c->input, &d));
    NEB_TRY(run(c, run_body, neb__model_input_key(c->input) | 1ull << 63));
    if (c->wants_logits) return ask_logits(c, d.targets, out);
    size_t n = (size_t)b->side[0].tokens * (size_t)c->width * sizeof *c->host;
    NEB_TRY(neb_buffer_download(c->rows, c->host, n));
    *out = (struct neb_teacher_answer){.hidden = c->host};
    return NEB_OK;
}

/* ---- opening ------------------------------------------------------------------------------------------- */

static neb_status fits(const struct teacher *c, const struct neb_teacher_config *cfg)
{
    const struct neb_arch *a = &c->model.model->arch;
    if (!c->model.tok || !neb__hash_equal(neb__tok_hash(c->model.tok), neb__tok_hash(cfg->tok)))
        return neb__fail(
            NEB_ERR_CONFIG,
            "the teacher in %s has another tokenizer than the student; set tokenizer.file to the "
            "teacher's",
            cfg->folder);
    if ((a->positions == NEB_POSITIONS_LEARNED || neb__positions_computed(a->positions)) &&
        a->max_positions < cfg->max_len)
        return neb__fail(NEB_ERR_CONFIG,
                         "the teacher in %s knows %" PRId64 " positions; train.max_len is %" PRId64,
                         cfg->folder, a->max_positions, cfg->max_len);
    if (cfg->logits && (a->head != NEB_HEAD_TOKENS || (a->kind == NEB_ENCODER_DECODER) != (cfg->sides == 2)))
        return neb__fail(NEB_ERR_CONFIG, "the model in %s cannot teach this task: it was trained for %s",
                         cfg->folder, c->model.folder.task ? c->model.folder.task : "another");
    if (!cfg->logits && a->kind == NEB_DECODER)
        return neb__fail(NEB_ERR_CONFIG, "the model in %s has no encoder to learn hidden states from",
                         cfg->folder);
    return NEB_OK;
}

static neb_status make_room(struct teacher *c, neb_device *device,
                            const struct neb_model_input_limits *limits)
{
    struct neb_model_input_limits l = *limits;
    struct neb_device_info info;
    neb__model_input_fit(c->model.model, &l);
    if (!c->wants_logits) l.rows[1] = 0, l.targets = 0;
    c->on_device = c->wants_logits && neb__device_has_topk(device) && c->k <= DEVICE_K && 2 * c->k < c->vocab;
    neb_device_get_info(device, &info);
    c->chunk = c->on_device && info.asynchronous && l.targets > CHUNK ? LARGE_CHUNK : CHUNK;
    size_t chunk = (size_t)c->chunk,
           rows = c->wants_logits ? ((size_t)l.targets + chunk - 1) / chunk * chunk : (size_t)l.rows[0];
    size_t logits = chunk * (size_t)(c->on_device ? 2 * c->k + 1 : c->vocab),
           kept = (size_t)l.targets * (size_t)c->k;
    c->host = neb__malloc((c->wants_logits ? logits : rows * (size_t)c->width) * sizeof *c->host);
    c->ids = NEB_NEW_ARRAY(int32_t, kept ? kept : 1);
    c->top = NEB_NEW_ARRAY(float, kept ? kept : 1);
    if (!c->host || !c->ids || !c->top)
        return neb__fail(NEB_ERR_NOMEM, "out of memory for a teacher of %zu rows", rows);
    NEB_TRY(neb__model_input_create(device, &l, &c->input));
    NEB_TRY(neb_buffer_create(device, rows * (size_t)c->width * sizeof(float), &c->rows));
    NEB_TRY(neb_buffer_clear(c->rows));
    if (c->wants_logits) NEB_TRY(neb_buffer_create(device, logits * sizeof(float), &c->logits));
    return neb_tape_create(device, c->model.params, &c->tape);
}

static void close_teacher(void *arg)
{
    struct teacher *c = arg;
    neb_tape_destroy(c->tape);
    neb__model_input_destroy(c->input);
    neb_buffer_destroy(c->rows);
    neb_buffer_destroy(c->logits);
    neb__ready_close(&c->model);
    neb__pool_destroy(c->pool);
    neb__free(c->host);
    neb__free(c->ids);
    neb__free(c->top);
    neb__free(c);
}

static neb_status open_teacher(struct teacher *c, neb_device *device, const struct neb_teacher_config *cfg,
                               const struct neb_model_input_limits *limits)
{
    NEB_TRY(neb__ready_open(cfg->folder, cfg->logits ? NULL : "none", device, &c->model));
    NEB_TRY(fits(c, cfg));
    c->vocab = c->model.model->outputs;
    c->width = c->model.model->arch.hidden;
    c->k = cfg->k < c->vocab ? cfg->k : (int32_t)c->vocab;
    NEB_TRY(neb__pool_create(cfg->threads, &c->pool));
    return make_room(c, device, limits);
}

static neb_status same_tokenizer(const struct neb_teacher_config *cfg, bool *same)
{
    struct neb_model_yaml f;
    struct neb_tok *tok = NULL;
    NEB_TRY(neb__model_yaml_read(cfg->folder, &f));
    neb_status status =
        f.tokenizer
            ? neb__folder_tokenizer(&f, &tok)
            : neb__fail(NEB_ERR_CONFIG,
                        "the teacher in %s has no tokenizer, so it cannot read the student's text: import it "
                        "again with its tokenizer's files",
                        cfg->folder);
    if (status == NEB_OK) *same = neb__hash_equal(neb__tok_hash(tok), neb__tok_hash(cfg->tok));
    neb__tok_close(tok);
    neb__model_yaml_free(&f);
    return status;
}

neb_status neb__teacher_open(neb_device *device, const struct neb_teacher_config *cfg,
                             const struct neb_model_input_limits *limits, struct neb_teacher *out)
{
    bool same = true;
    if (cfg->logits && cfg->data) NEB_TRY(same_tokenizer(cfg, &same));
    if (!same) return neb__teacher_across_open(device, cfg, limits, out);
    struct teacher *c = NEB_NEW(struct teacher);
    if (!c) return neb__fail(NEB_ERR_NOMEM, "out of memory for a teacher");
    c->wants_logits = cfg->logits;
    c->logp = cfg->logits && cfg->logp;
    neb_status status = open_teacher(c, device, cfg, limits);
    if (status != NEB_OK) {
        close_teacher(c);
        return status;
    }
    *out = (struct neb_teacher){.k = cfg->logits ? c->k : 0,
                                .width = cfg->logits ? 0 : (int32_t)c->width,
                                .ask = ask,
                                .close = close_teacher,
                                .arg = c};
    return NEB_OK;
}
