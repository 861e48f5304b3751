/* sampling.c: drawing from softmax(logits / temperature) as nebula/device.h defines it. Every column's logit
 * gets a random number that depends on seed, step, sample, position and column alone, and the largest sum
 * wins. The draw needs no state and can be repeated anywhere. The order of summation, the packing and the
 * device do not change it. */
#include "tensor/sampling.h"
#include "base/rng.h"
#include "tensor/buffer.h"

#include <math.h>

bool neb__device_has_sample(const neb_device *d)
{
    return d->ops->sample != NULL;
}

neb_status neb__sample_rows(const struct neb_sampling *how, const neb_buffer *logits, int64_t rows,
                            int64_t cols, const neb_buffer *who, neb_buffer *id)
{
    const size_t n = (size_t)rows;
    if (logits->bytes < n * (size_t)cols * sizeof(float) || who->bytes < 2 * n * 4 || id->bytes < n * 4)
        return neb__fail(NEB_ERR_RANGE,
                         "a buffer is too small to draw from %" PRId64 " rows of %" PRId64 " columns", rows,
                         cols);
    const struct neb_sample a = {.x = logits->data,
                                 .id = id->data,
                                 .sample = who->data,
                                 .position = (const int32_t *)who->data + rows,
                                 .rows = rows,
                                 .cols = cols,
                                 .temperature = how->temperature,
                                 .seed = how->seed,
                                 .op = how->op,
                                 .step = how->step,
                                 .type = NEB_F32};
    return logits->dev->ops->sample(logits->dev->ctx, &a);
}

static float race_noise(uint32_t word)
{
    float d = fminf(((float)word + 0.5f) * 0x1p-32f, 0x1.fffffep-1f);
    return -logf(-log1pf(-d));
}

int32_t neb__sample_on_host(const struct neb_sampling *how, const float *logits, int32_t cols,
                            uint32_t sample, int32_t position)
{
    const uint32_t key[2] = {how->seed, how->op};
    const float inverse = 1 / how->temperature;
    float best = -INFINITY;
    int32_t id = 0;
    uint32_t word[4]; /* for four columns */
    for (int32_t c = 0; c < cols; c++) {
        if (c % 4 == 0)
            neb__philox((uint32_t[4]){(uint32_t)c / 4, (uint32_t)position, sample, how->step}, key, word);
        const float score = logits[c] * inverse + race_noise(word[c % 4]);
        if (score > best) best = score, id = c;
    }
    return id;
}
