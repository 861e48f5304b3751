/* topk_host.c: the likeliest tokens from logits on the host, for a device that cannot choose them. */
#include "nn/decode.h"
#include "base/topk.h"

#include <math.h>

static float log_sum(const float *x, int64_t n, float top)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)expf(x[i] - top);
    return top + (float)log(sum);
}

static void best_of_row(const float *x, int64_t vocab, int32_t k, float *logit, int32_t *id)
{
    int32_t n = 0;
    for (int64_t i = 0; i < vocab; i++) neb__topk_list_offer(logit, id, k, &n, x[i], (int32_t)i);
    for (; n < k; n++) logit[n] = -INFINITY, id[n] = -1;
}

void neb__topk_on_host(const float *logits, int32_t rows, int64_t vocab, int32_t k,
                       struct neb_best_tokens *out)
{
    for (int64_t r = 0; r < rows; r++) {
        const float *x = logits + r * vocab;
        best_of_row(x, vocab, k, out->logit + r * k, out->id + r * k);
        out->logsum[r] = log_sum(x, vocab, out->logit[r * k]);
    }
}
