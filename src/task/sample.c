/* sample.c: drawing from softmax(logits) by the Gumbel trick: the largest of logit + noise is a draw, and the noise is
 * Philox keyed by seed and counted by (token, row's place, sample), so it needs no state and repeats anywhere. */
#include "task/sample.h"
#include "base/mem.h"
#include "base/rng.h"

#include <math.h>
#include <string.h>

struct neb_sampler {
    const struct neb_tok *tok;
    int32_t vocab, rows, masked;
    uint32_t seed;
    float *logits;
    int32_t *sampled, *input, *label;
    float *weight;
};

neb_status neb__sampler_create(const struct neb_tok *tok, int32_t rows, int32_t masked, uint32_t seed,
                               struct neb_sampler **out)
{
    struct neb_sampler *s = NEB_NEW(struct neb_sampler);
    if (!s) return neb__fail(NEB_ERR_NOMEM, "out of memory for a sampler");
    s->tok = tok;
    s->vocab = neb__tok_vocab(tok);
    s->rows = rows;
    s->masked = masked;
    s->seed = seed;
    s->logits = neb__malloc((size_t)masked * (size_t)s->vocab * sizeof *s->logits);
    s->sampled = NEB_NEW_ARRAY(int32_t, (size_t)masked);
    s->input = NEB_NEW_ARRAY(int32_t, (size_t)rows);
    s->label = NEB_NEW_ARRAY(int32_t, (size_t)rows);
    s->weight = NEB_NEW_ARRAY(float, (size_t)rows);
    if (!s->logits || !s->sampled || !s->input || !s->label || !s->weight) {
        neb__sampler_free(s);
        return neb__fail(NEB_ERR_NOMEM, "out of memory for a sampler of %d rows", masked);
    }
    *out = s;
    return NEB_OK;
}

void neb__sampler_free(struct neb_sampler *s)
{
    if (!s) return;
    neb__free(s->logits);
    neb__free(s->sampled);
    neb__free(s->input);
    neb__free(s->label);
    neb__free(s->weight);
    neb__free(s);
}

static int32_t draw(const struct neb_sampler *s, const float *logits, uint32_t sample, uint32_t place)
{
    int32_t best = 0;
    float most = -INFINITY;
    uint32_t key[2] = {s->seed, 0x5a3b1e01u}, r[4];
    for (int32_t v = 0; v < s->vocab; v++) {
        if (v % 4 == 0) neb__philox((uint32_t[4]){(uint32_t)v / 4, place, sample, 0}, key, r);
        float u = ((float)(r[v % 4] >> 8) + 0.5f) * 0x1p-24f;
        float x = logits[v] - logf(-logf(u));
        if (x > most) most = x, best = v;
    }
    return best;
}

neb_status neb__sampler_replace(struct neb_sampler *s, const struct neb_batch *b, const neb_buffer *logits,
                                float total, struct neb_feed_data *feed)
{
    const struct neb_side *side = &b->side[0];
    if (b->loss.n > s->masked || side->tokens > s->rows)
        return neb__fail(NEB_ERR_RANGE, "a batch of %d rows, %d masked; the sampler has room for %d and %d",
                         side->tokens, b->loss.n, s->rows, s->masked);
    NEB_TRY(neb_buffer_download(logits, s->logits, (size_t)b->loss.n * (size_t)s->vocab * sizeof *s->logits));
    for (int32_t i = 0; i < b->loss.n; i++) {
        int32_t row = b->loss.rows[i];
        s->sampled[i] = b->loss.weight[i] > 0 ? draw(s, s->logits + (size_t)i * (size_t)s->vocab,
                                                     side->sample[row], (uint32_t)side->at[row])
                                              : 0;
    }
    NEB_TRY(neb__batch_rtd(b, s->sampled, neb__tok_special_map(s->tok), s->input, s->label, s->weight));
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
