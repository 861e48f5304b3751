/* match.c: see match.h. Lines are read in dense batches, as sentence vectors are (retrieve.c); the hidden states of all rows come
 * to the host, where a pair of sentences is a product of two small matrices. */
#include "task/match.h"
#include "base/mem.h"
#include "task/dot.h"
#include "task/line_batches.h"
#include "task/sentence.h"

#include <math.h>
#include <string.h>

enum { ROWS = 2048, SEQS = 128 };

struct neb_matcher {
    const struct neb_ready *m;
    struct neb_line_batches *pack;
    struct neb_model_input *input;
    neb_tape *tape;
    neb_buffer *out; /* F32 (ROWS, width) */
    float *host;
    const float *weights; /* of the layers; NULL: none */
    neb_buffer *mixed;    /* F32 (sequences, width) */
    float *host_mixed;
    struct neb_sentence *sentence; /* the folder's own way to a vector; NULL: the mean */
};

static int32_t most_seqs(const struct neb_matcher *c)
{
    const int64_t longest = c->m->model->arch.max_positions < ROWS ? c->m->model->arch.max_positions : ROWS;
    return (int32_t)(2 * SEQS + ROWS / longest + 2);
}

static neb_status open_matcher(struct neb_matcher *c)
{
    const struct neb_ready *m = c->m;
    const struct neb_arch *a = &m->model->arch;
    if (a->kind == NEB_DECODER || !m->tok)
        return neb__fail(
            NEB_ERR_CONFIG,
            "comparing sentences needs an encoder and a tokenizer; the model in %s lacks one of them",
            m->folder.path);
    int32_t longest = (int32_t)(a->max_positions < ROWS ? a->max_positions : ROWS);
    struct neb_line_batches_config b = {.tok = m->tok,
                                        .lead = a->kind == NEB_ENCODER ? neb__tok_special(m->tok, NEB_TOK_BOS)
                                                                       : -1,
                                        .max_len = longest,
                                        .rows = ROWS,
                                        .seqs = SEQS,
                                        .pad = true};
    struct neb_model_input_limits l = {
        .rows = {ROWS}, .seqs = most_seqs(c), .prefix = (int32_t)m->model->peft.prefix_length};
    size_t bytes = ROWS * (size_t)a->hidden * sizeof(float);
    if (!m->cut && a->kind == NEB_ENCODER)
        NEB_TRY(neb__sentence_open(m->folder.path, a->hidden, &c->sentence));
    NEB_TRY(neb__line_batches_create(&b, &c->pack));
    NEB_TRY(neb__model_input_create(m->device, &l, &c->input));
    NEB_TRY(neb_tape_create(m->device, m->params, &c->tape));
    NEB_TRY(neb_buffer_create(m->device, bytes, &c->out));
    c->host = neb__malloc(bytes);
    return c->host ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for hidden states");
}

neb_status neb__matcher_open(const struct neb_ready *model, struct neb_matcher **out)
{
    struct neb_matcher *c = NEB_NEW(struct neb_matcher);
    if (!c) return neb__fail(NEB_ERR_NOMEM, "out of memory for comparing sentences");
    c->m = model;
    neb_status status = open_matcher(c);
    if (status != NEB_OK) {
        neb__matcher_close(c);
        return status;
    }
    *out = c;
    return NEB_OK;
}

void neb__matcher_close(struct neb_matcher *c)
{
    if (!c) return;
    neb_tape_destroy(c->tape);
    neb__model_input_destroy(c->input);
    neb_buffer_destroy(c->out);
    neb_buffer_destroy(c->mixed);
    neb__sentence_close(c->sentence);
    neb__free(c->host_mixed);
    neb__line_batches_destroy(c->pack);
    neb__free(c->host);
    neb__free(c);
}

int64_t neb__matcher_width(const struct neb_matcher *c)
{
    return c->m->model->arch.hidden;
}

int64_t neb__matcher_vector(const struct neb_matcher *c)
{
    return c->sentence ? neb__sentence_width(c->sentence) : neb__matcher_width(c);
}

void neb__line_states_free(struct neb_line_states *s)
{
    neb__free(s->token);
    neb__free(s->sentence);
    neb__free(s->mixed);
    *s = (struct neb_line_states){0};
}

/* ---- reading ------------------------------------------------------------------------------------------- */

neb_status neb__matcher_mix(struct neb_matcher *c, const float *weights)
{
    const size_t bytes = (size_t)most_seqs(c) * (size_t)neb__matcher_width(c) * sizeof(float);
    c->weights = weights;
    c->host_mixed = neb__malloc(bytes);
    if (!c->host_mixed) return neb__fail(NEB_ERR_NOMEM, "out of memory for sentence vectors");
    return neb_buffer_create(c->m->device, bytes, &c->mixed);
}

/* A mean over tokens and a mix of layers may change places: each layer's mean is taken, and they are mixed. */
static neb_tensor *mix_layers(struct neb_matcher *c, neb_tape *t, const struct neb_input_side *side)
{
    struct neb_model *m = c->m->model;
    neb_tensor *x = neb__stack_run(m, &m->encoder, t, &(struct neb_stack_run){.side = side});
    neb_tensor *sum = neb_op_scale(t, neb_op_mean_pool(t, x, &side->seqs), c->weights[0]);
    for (int64_t i = 0; i < m->encoder.count; i++) {
        x = neb__stack_run(
            m, &m->encoder, t,
            &(struct neb_stack_run){.side = side, .first = i, .end = i + 1, .x = i ? x : NULL});
        neb_tensor *mean = neb_op_mean_pool(t, x, &side->seqs);
        sum = neb_op_add(t, sum, neb_op_scale(t, mean, c->weights[i + 1]));
    }
    neb_output(t, sum, c->mixed, NEB_F32);
    return x;
}

static void run_fn(neb_tape *t, void *arg)
{
    struct neb_matcher *c = arg;
    const struct neb_input_side *side = &neb__model_input_tensors(c->input, t)->side[0];
    neb_tensor *x = c->weights ? mix_layers(c, t, side) : neb__model_encode(c->m->model, t, side);
    neb_output(t, x, c->out, NEB_F32);
}

static void scale(float *x, int64_t width)
{
    double sum = 0;
    for (int64_t i = 0; i < width; i++) sum += (double)x[i] * (double)x[i];
    const double by = sum > 0 ? 1 / sqrt(sum) : 0;
    for (int64_t i = 0; i < width; i++) x[i] = (float)((double)x[i] * by);
}

static neb_status take_mixed(const struct neb_matcher *c, int seq, struct neb_line_states *s)
{
    const size_t width = (size_t)neb__matcher_width(c);
    if (!c->weights) return NEB_OK;
    s->mixed = NEB_NEW_ARRAY(float, width);
    if (!s->mixed) return neb__fail(NEB_ERR_NOMEM, "out of memory for sentence vectors");
    memcpy(s->mixed, c->host_mixed + (size_t)seq * width, width * sizeof *s->mixed);
    return NEB_OK;
}

/* The vector of the whole line, from its tokens' hidden states. */
static neb_status make_vector(const struct neb_matcher *c, struct neb_line_states *s)
{
    const int64_t width = neb__matcher_width(c);
    const int32_t rows = c->sentence && neb__sentence_reads_first(c->sentence) ? 1 : s->n;
    for (int32_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i++) s->sentence[i] += s->token[r * width + i] / (float)rows;
    if (c->sentence) {
        float *dense = NEB_NEW_ARRAY(float, (size_t)neb__sentence_width(c->sentence));
        if (!dense) return neb__fail(NEB_ERR_NOMEM, "out of memory for sentence vectors");
        neb__sentence_apply(c->sentence, s->sentence, dense);
        neb__free(s->sentence);
        s->sentence = dense;
    }
    scale(s->sentence, neb__matcher_vector(c));
    return NEB_OK;
}

static neb_status take_line(const struct neb_matcher *c, int32_t from, int32_t n, struct neb_line_states *s)
{
    const int64_t width = neb__matcher_width(c);
    const size_t values = (size_t)n * (size_t)width;
    s->token = neb__malloc(values * sizeof *s->token + 1);
    s->sentence = NEB_NEW_ARRAY(float, (size_t)width);
    if (!s->token || !s->sentence) return neb__fail(NEB_ERR_NOMEM, "out of memory for hidden states");
    s->n = n;
    memcpy(s->token, c->host + from * width, values * sizeof *s->token);
    NEB_TRY(make_vector(c, s));
    for (int32_t r = 0; r < n; r++) scale(s->token + r * width, width);
    return NEB_OK;
}

static neb_status read_lines(struct neb_matcher *c, const char *const *lines, int n,
                             struct neb_line_states *out)
{
    struct neb_model_input_side side;
    const int *numbers;
    neb__line_batches_clear(c->pack);
    for (int i = 0; i < n; i++) NEB_TRY(neb__line_batches_add(c->pack, lines[i], NULL, i));
    neb__line_batches_order(c->pack, 0);
    for (int used; (used = neb__line_batches_next(c->pack, &side, &numbers)) > 0;) {
        struct neb_model_input_data data = {.sides = 1, .side = {side}};
        NEB_TRY(neb__model_input_load(c->input, &data));
        struct neb_run run = {.fn = run_fn, .arg = c, .key = neb__model_input_key(c->input)};
        NEB_TRY(neb_tape_run(c->tape, &run));
        const size_t values = (size_t)side.starts[used] * (size_t)neb__matcher_width(c);
        NEB_TRY(neb_buffer_download(c->out, c->host, values * sizeof *c->host));
        if (c->weights)
            NEB_TRY(neb_buffer_download(c->mixed, c->host_mixed,
                                        (size_t)used * (size_t)neb__matcher_width(c) * sizeof(float)));
        for (int i = 0; i < used; i++) NEB_TRY(take_mixed(c, i, &out[numbers[i]]));
        for (int i = 0; i < used; i++)
            NEB_TRY(take_line(c, side.starts[i], side.starts[i + 1] - side.starts[i], &out[numbers[i]]));
    }
    return NEB_OK;
}

neb_status neb__matcher_read(struct neb_matcher *c, const char *const *lines, int n,
                             struct neb_line_states *out)
{
    memset(out, 0, (size_t)n * sizeof *out);
    neb_status status = read_lines(c, lines, n, out);
    for (int i = 0; status != NEB_OK && i < n; i++) neb__line_states_free(&out[i]);
    return status;
}

/* ---- comparing ----------------------------------------------------------------------------------------- */

/* The mean over the text's tokens of a of their similarity to the nearest token of b. */
static double nearest(const struct neb_line_states *a, const struct neb_line_states *b, int64_t width)
{
    double sum = 0;
    for (int32_t i = 1; i + 1 < a->n; i++) {
        float best = -1;
        for (int32_t j = 0; j < b->n; j++) {
            const float dot = neb__dot(a->token + i * width, b->token + j * width, width);
            best = dot > best ? dot : best;
        }
        sum += (double)best;
    }
    return sum / (a->n - 2);
}

struct neb_match neb__match_tokens(const struct neb_line_states *hyp, const struct neb_line_states *ref,
                                   int64_t width)
{
    if (hyp->n < 3 || ref->n < 3) return (struct neb_match){0};
    const double p = nearest(hyp, ref, width), r = nearest(ref, hyp, width);
    return (struct neb_match){p, r, p + r != 0 ? 2 * p * r / (p + r) : 0};
}

double neb__match_sentences(const struct neb_line_states *a, const struct neb_line_states *b, int64_t vector)
{
    return (double)neb__dot(a->sentence, b->sentence, vector);
}
