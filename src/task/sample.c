/* sample.c: drawing from softmax(logits) by inverting the distribution: one uniform number a row, Philox keyed by seed and
 * counted by (row's place, sample), so it needs no state and repeats anywhere. A row costs one exponential a token; rows
 * are shared out over the pool, so the host's part of a step stays small beside the device's. */
#include "task/sample.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/rng.h"

#include <math.h>
#include <string.h>

struct neb_sampler {
    struct neb_sampler_config c;
    struct neb_pool *pool;
    int32_t vocab;
    float *logits;
    int32_t *sampled, *input, *label;
    float *weight;
    const struct neb_batch *batch; /* being drawn for */
};

static neb_status make_room(struct neb_sampler *s)
{
    size_t rows = (size_t)s->c.rows, masked = (size_t)s->c.masked;
    if (s->c.draws) {
        s->logits = neb__malloc(masked * (size_t)s->vocab * sizeof *s->logits);
        if (!s->logits)
            return neb__fail(NEB_ERR_NOMEM, "out of memory for the logits of %d rows", s->c.masked);
        NEB_TRY(neb__pool_create(s->c.threads, &s->pool));
    }
    s->sampled = NEB_NEW_ARRAY(int32_t, masked);
    s->input = NEB_NEW_ARRAY(int32_t, rows);
    s->label = NEB_NEW_ARRAY(int32_t, rows);
    s->weight = NEB_NEW_ARRAY(float, rows);
    if (!s->sampled || !s->input || !s->label || !s->weight)
        return neb__fail(NEB_ERR_NOMEM, "out of memory for a sampler of %d rows", s->c.rows);
    return NEB_OK;
}

neb_status neb__sampler_create(const struct neb_sampler_config *c, struct neb_sampler **out)
{
    struct neb_sampler *s = NEB_NEW(struct neb_sampler);
    if (!s) return neb__fail(NEB_ERR_NOMEM, "out of memory for a sampler");
    s->c = *c;
    s->vocab = neb__tok_vocab(c->tok);
    neb_status status = make_room(s);
    if (status != NEB_OK) {
        neb__sampler_free(s);
        return status;
    }
    *out = s;
    return NEB_OK;
}

void neb__sampler_free(struct neb_sampler *s)
{
    if (!s) return;
    neb__pool_destroy(s->pool);
    neb__free(s->logits);
    neb__free(s->sampled);
    neb__free(s->input);
    neb__free(s->label);
    neb__free(s->weight);
    neb__free(s);
}

int32_t *neb__sampler_room(struct neb_sampler *s)
{
    return s->sampled;
}

/* The logits become their exponentials; the token at which their sum passes u of the whole. */
static int32_t invert(float *x, int32_t n, double u)
{
    float top = -INFINITY;
    for (int32_t v = 0; v < n; v++) top = x[v] > top ? x[v] : top;
    double sum = 0;
    for (int32_t v = 0; v < n; v++) {
        x[v] = expf(x[v] - top);
        sum += (double)x[v];
    }
    double left = u * sum;
    int32_t last = 0;
    for (int32_t v = 0; v < n; v++) {
        if (x[v] > 0) last = v; /* rounding may leave a rest: then the last possible one */
        left -= (double)x[v];
        if (left < 0) return v;
    }
    return last;
}

static void draw_row(void *arg, int task, int worker)
{
    struct neb_sampler *s = arg;
    const struct neb_batch *b = s->batch;
    const struct neb_side *side = &b->side[0];
    (void)worker;
    s->sampled[task] = 0;
    if (!(b->loss.weight[task] > 0)) return;
    int32_t row = b->loss.rows[task];
    uint32_t key[2] = {s->c.seed, 0x5a3b1e01u}, r[4];
    neb__philox((uint32_t[4]){0, (uint32_t)side->at[row], side->sample[row], 0}, key, r);
    double u = ((double)r[0] + (double)(r[1] >> 11) * 0x1p-21) * 0x1p-32;
    s->sampled[task] = invert(s->logits + (size_t)task * (size_t)s->vocab, s->vocab, u);
}

static neb_status fits(const struct neb_sampler *s, const struct neb_batch *b)
{
    if (b->loss.n <= s->c.masked && b->side[0].tokens <= s->c.rows) return NEB_OK;
    return neb__fail(NEB_ERR_RANGE, "a batch of %d rows, %d masked; the sampler has room for %d and %d",
                     b->side[0].tokens, b->loss.n, s->c.rows, s->c.masked);
}

neb_status neb__sampler_draw(struct neb_sampler *s, const struct neb_batch *b, const neb_buffer *logits,
                             int32_t **sampled)
{
    NEB_TRY(fits(s, b));
    NEB_TRY(neb_buffer_download(logits, s->logits, (size_t)b->loss.n * (size_t)s->vocab * sizeof *s->logits));
    s->batch = b;
    neb__pool_run(s->pool, draw_row, s, b->loss.n);
    *sampled = s->sampled;
    return NEB_OK;
}

neb_status neb__sampler_replace(struct neb_sampler *s, const struct neb_batch *b, const int32_t *sampled,
                                float total, struct neb_feed_data *feed)
{
    const struct neb_side *side = &b->side[0];
    NEB_TRY(fits(s, b));
    for (int32_t i = 0; i < b->loss.n; i++) /* a peer may have sent them */
        if (b->loss.weight[i] > 0 && (sampled[i] < 0 || sampled[i] >= s->vocab))
            return neb__fail(NEB_ERR_RANGE, "token %d at masked row %d is not in the vocabulary of %d",
                             sampled[i], i, s->vocab);
    NEB_TRY(neb__batch_rtd(b, sampled, neb__tok_special_map(s->c.tok), s->input, s->label, s->weight));
    double rows = 0;
    for (int32_t i = 0; i < side->tokens; i++) rows += (double)s->weight[i];
    for (int32_t i = 0; i < side->tokens; i++) s->weight[i] *= rows > 0 ? (float)((double)total / rows) : 0;
    feed->side[0].ids = s->input;
    feed->targets = side->tokens;
    feed->target_row = NULL;
    feed->target = s->label;
    feed->weight = s->weight;
    return NEB_OK;
}
