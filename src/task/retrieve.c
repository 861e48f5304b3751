/* retrieve.c: mean-pooled sentence vectors and nearest neighbours by cosine. The similarities of all pairs
 * are computed once, a row at a time; each row gives a neighbour in one direction and a candidate for every
 * column's in the other. */
#include "task/retrieve.h"
#include "base/mem.h"
#include "task/dot.h"
#include "task/line_batches.h"
#include "task/sentence.h"

#include <math.h>
#include <string.h>

enum { ROWS = 4096, SEQS = 256 };

struct neb_embedder {
    const struct neb_ready *m;
    struct neb_line_batches *pack;
    struct neb_model_input *input;
    neb_tape *tape;
    neb_buffer *out; /* F32 (2 SEQS, hidden) */
    float *host;
    struct neb_sentence *sentence; /* the folder's own way to a vector; NULL: the mean */
    float *dense;                  /* (width) */
};

static neb_status open_embedder(struct neb_embedder *e)
{
    const struct neb_ready *m = e->m;
    const struct neb_arch *a = &m->model->arch;
    if (a->kind == NEB_DECODER || !m->tok)
        return neb__fail(
            NEB_ERR_CONFIG,
            "sentence vectors need an encoder and a tokenizer; the model in %s lacks one of them",
            m->folder.path);
    int32_t longest = (int32_t)(a->max_positions < ROWS ? a->max_positions : ROWS);
    struct neb_line_batches_config c = {.tok = m->tok,
                                        .lead = a->kind == NEB_ENCODER ? neb__tok_special(m->tok, NEB_TOK_BOS)
                                                                       : -1,
                                        .max_len = longest,
                                        .rows = ROWS,
                                        .seqs = SEQS,
                                        .pad = true};
    struct neb_model_input_limits l = {.rows = {ROWS},
                                       .seqs = 2 * SEQS + ROWS / longest + 2,
                                       .prefix = (int32_t)m->model->peft.prefix_length};
    size_t bytes = (size_t)l.seqs * (size_t)a->hidden * sizeof(float);
    NEB_TRY(neb__line_batches_create(&c, &e->pack));
    NEB_TRY(neb__model_input_create(m->device, &l, &e->input));
    NEB_TRY(neb_tape_create(m->device, m->params, &e->tape));
    NEB_TRY(neb_buffer_create(m->device, bytes, &e->out));
    if (!m->cut && a->kind == NEB_ENCODER)
        NEB_TRY(neb__sentence_open(m->folder.path, a->hidden, &e->sentence));
    e->host = neb__malloc(bytes);
    e->dense = NEB_NEW_ARRAY(float, (size_t)neb__embedder_width(e));
    return e->host && e->dense ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for sentence vectors");
}

neb_status neb__embedder_open(const struct neb_ready *model, struct neb_embedder **out)
{
    struct neb_embedder *e = NEB_NEW(struct neb_embedder);
    if (!e) return neb__fail(NEB_ERR_NOMEM, "out of memory for sentence vectors");
    e->m = model;
    neb_status status = open_embedder(e);
    if (status != NEB_OK) {
        neb__embedder_close(e);
        return status;
    }
    *out = e;
    return NEB_OK;
}

void neb__embedder_close(struct neb_embedder *e)
{
    if (!e) return;
    neb_tape_destroy(e->tape);
    neb__model_input_destroy(e->input);
    neb_buffer_destroy(e->out);
    neb__line_batches_destroy(e->pack);
    neb__sentence_close(e->sentence);
    neb__free(e->dense);
    neb__free(e->host);
    neb__free(e);
}

int64_t neb__embedder_width(const struct neb_embedder *e)
{
    return e->sentence ? neb__sentence_width(e->sentence) : e->m->model->arch.hidden;
}

static void run_fn(neb_tape *t, void *arg)
{
    struct neb_embedder *e = arg;
    const struct neb_input_side *side = &neb__model_input_tensors(e->input, t)->side[0];
    neb_tensor *x = neb__model_encode(e->m->model, t, side);
    const bool first = e->sentence && neb__sentence_reads_first(e->sentence);
    neb_output(t, first ? neb_op_gather(t, x, side->first) : neb_op_mean_pool(t, x, &side->seqs), e->out,
               NEB_F32);
}

static void put_row(const float *x, int64_t n, float *out)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    double scale = sum > 0 ? 1 / sqrt(sum) : 0;
    for (int64_t i = 0; i < n; i++) out[i] = (float)((double)x[i] * scale);
}

neb_status neb__embedder_embed(struct neb_embedder *e, const char *const *lines, int n, float *out)
{
    struct neb_model_input_side side;
    const int *numbers;
    int64_t width = neb__embedder_width(e), hidden = e->m->model->arch.hidden;
    neb__line_batches_clear(e->pack);
    for (int i = 0; i < n; i++) NEB_TRY(neb__line_batches_add(e->pack, lines[i], NULL, i));
    neb__line_batches_order(e->pack, 0);
    for (int used; (used = neb__line_batches_next(e->pack, &side, &numbers)) > 0;) {
        struct neb_model_input_data data = {.sides = 1, .side = {side}};
        NEB_TRY(neb__model_input_load(e->input, &data));
        struct neb_run run = {.fn = run_fn, .arg = e, .key = neb__model_input_key(e->input)};
        NEB_TRY(neb_tape_run(e->tape, &run));
        NEB_TRY(neb_buffer_download(e->out, e->host, (size_t)used * (size_t)hidden * sizeof *e->host));
        for (int i = 0; i < used; i++) {
            const float *pooled = e->host + i * hidden;
            if (e->sentence) neb__sentence_apply(e->sentence, pooled, e->dense);
            put_row(e->sentence ? e->dense : pooled, width, out + numbers[i] * width);
        }
    }
    return NEB_OK;
}

neb_status neb__vectors_centre(float *x, int n, int64_t width)
{
    double *mean = NEB_NEW_ARRAY(double, (size_t)width);
    if (!mean) return neb__fail(NEB_ERR_NOMEM, "out of memory for comparing %d sentences", n);
    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < width; k++) mean[k] += (double)x[i * width + k] / n;
    for (int i = 0; i < n; i++) {
        for (int64_t k = 0; k < width; k++) x[i * width + k] -= (float)mean[k];
        put_row(x + i * width, width, x + i * width);
    }
    neb__free(mean);
    return NEB_OK;
}

neb_status neb__retrieve_pairs(const float *a, const float *b, int n, int64_t width,
                               struct neb_retrieval *out)
{
    float *best = neb__malloc((size_t)n * sizeof *best + 1);
    int *from = NEB_NEW_ARRAY(int, (size_t)n + 1), forth = 0, back = 0;
    if (!best || !from) {
        neb__free(best);
        neb__free(from);
        return neb__fail(NEB_ERR_NOMEM, "out of memory for comparing %d sentences", n);
    }
    for (int j = 0; j < n; j++) best[j] = -INFINITY;
    for (int i = 0; i < n; i++) {
        float top = -INFINITY;
        int nearest = -1;
        for (int j = 0; j < n; j++) {
            float dot = neb__dot(a + i * width, b + j * width, width);
            if (dot > top) top = dot, nearest = j;
            if (dot > best[j]) best[j] = dot, from[j] = i;
        }
        forth += nearest == i;
    }
    for (int j = 0; j < n; j++) back += from[j] == j;
    *out = (struct neb_retrieval){n, n ? (double)forth / n : 0, n ? (double)back / n : 0};
    neb__free(best);
    neb__free(from);
    return NEB_OK;
}
