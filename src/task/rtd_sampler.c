/* rtd_sampler.c: the generator's choices, and the question to the discriminator. The device draws
 * (tensor/sampling.h): sample ids and positions go up, one id a masked row comes down. If it cannot, the
 * logits come down and the pool draws by the same rule. */
#include "task/rtd_sampler.h"
#include "base/mem.h"
#include "base/pool.h"
#include "tensor/sampling.h"

struct neb_sampler {
    struct neb_sampler_config c;
    int32_t vocab;
    neb_buffer *who, *id; /* the device draws: (masked) samples and positions; choices */
    uint32_t *host_who;
    struct neb_pool *pool; /* the host draws */
    float *logits;
    int32_t *sampled, *input, *label;
    float *weight;
    const struct neb_batch *batch; /* being drawn for */
};

static neb_status make_room(struct neb_sampler *s)
{
    size_t rows = (size_t)s->c.rows, masked = (size_t)s->c.masked;
    if (s->c.draws && neb__device_has_sample(s->c.dev)) {
        NEB_TRY(neb_buffer_create(s->c.dev, masked * 2 * sizeof *s->host_who, &s->who));
        NEB_TRY(neb_buffer_create(s->c.dev, masked * sizeof *s->sampled, &s->id));
        s->host_who = NEB_NEW_ARRAY(uint32_t, masked * 2);
        if (!s->host_who)
            return neb__fail(NEB_ERR_NOMEM, "out of memory for a sampler of %d rows", s->c.rows);
    } else if (s->c.draws) {
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
    neb_buffer_destroy(s->who);
    neb_buffer_destroy(s->id);
    neb__free(s->host_who);
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

/* A sample id stands for one drawing of a text: nothing needs to be told apart by step. */
static struct neb_sampling how(const struct neb_sampler *s)
{
    return (struct neb_sampling){.seed = s->c.seed, .op = 0x5a3b1e01u, .temperature = 1};
}

static void draw_row(void *arg, int task, int worker)
{
    struct neb_sampler *s = arg;
    const struct neb_batch_side *side = &s->batch->side[0];
    const struct neb_sampling h = how(s);
    (void)worker;
    if (!(s->batch->loss.weight[task] > 0)) return;
    int32_t row = s->batch->loss.rows[task];
    s->sampled[task] = neb__sample_on_host(&h, s->logits + (size_t)task * (size_t)s->vocab, s->vocab,
                                           side->sample[row], side->at[row]);
}

static neb_status draw_on_host(struct neb_sampler *s, const struct neb_batch *b, const neb_buffer *logits)
{
    NEB_TRY(neb_buffer_download(logits, s->logits, (size_t)b->loss.n * (size_t)s->vocab * sizeof *s->logits));
    s->batch = b;
    neb__pool_run(s->pool, draw_row, s, b->loss.n);
    return NEB_OK;
}

static neb_status draw_on_device(struct neb_sampler *s, const struct neb_batch *b, const neb_buffer *logits)
{
    const struct neb_batch_side *side = &b->side[0];
    const size_t n = (size_t)b->loss.n;
    const struct neb_sampling h = how(s);
    for (size_t i = 0; i < n; i++) {
        const bool counts = b->loss.weight[i] > 0;
        s->host_who[i] = counts ? side->sample[b->loss.rows[i]] : 0;
        s->host_who[n + i] = counts ? (uint32_t)side->at[b->loss.rows[i]] : 0;
    }
    NEB_TRY(neb_buffer_upload(s->who, s->host_who, 2 * n * sizeof *s->host_who));
    NEB_TRY(neb__sample_rows(&h, logits, b->loss.n, s->vocab, s->who, s->id));
    return neb_buffer_download(s->id, s->sampled, n * sizeof *s->sampled);
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
    if (b->loss.n > 0) NEB_TRY(s->who ? draw_on_device(s, b, logits) : draw_on_host(s, b, logits));
    for (int32_t i = 0; i < b->loss.n; i++)
        if (!(b->loss.weight[i] > 0)) s->sampled[i] = 0;
    *sampled = s->sampled;
    return NEB_OK;
}

neb_status neb__sampler_replace(struct neb_sampler *s, const struct neb_batch *b, const int32_t *sampled,
                                float total, struct neb_model_input_data *input)
{
    const struct neb_batch_side *side = &b->side[0];
    NEB_TRY(fits(s, b));
    for (int32_t i = 0; i < b->loss.n; i++) /* a peer may have sent them */
        if (b->loss.weight[i] > 0 && (sampled[i] < 0 || sampled[i] >= s->vocab))
            return neb__fail(NEB_ERR_RANGE, "token %d at masked row %d is not in the vocabulary of %d",
                             sampled[i], i, s->vocab);
    NEB_TRY(neb__batch_rtd(b, sampled, neb__tok_special_map(s->c.tok), s->input, s->label, s->weight));
    double rows = 0;
    for (int32_t i = 0; i < side->tokens; i++) rows += (double)s->weight[i];
    for (int32_t i = 0; i < side->tokens; i++) s->weight[i] *= rows > 0 ? (float)((double)total / rows) : 0;
    input->side[0].ids = s->input;
    input->targets = side->tokens;
    input->target_row = NULL;
    input->target = s->label;
    input->weight = s->weight;
    return NEB_OK;
}
