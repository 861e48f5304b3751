/* fuzz_codec_stream.c: the decoders of stream frames (token ids, top-k log-probabilities, hidden states) and of lists
 * of integers, at the size the frame claims if that is small. What decodes must be within its promises. */
#include "base/mem.h"
#include "codec/ints.h"
#include "codec/stream.h"

#include <math.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 1 << 20 }; /* bytes */

static void tokens(const uint8_t *data, size_t size, const struct neb_stream_info *info)
{
    static int32_t ids[MOST / 4];
    if (neb__tokens_decode(data, size, info->columns, info->rows, ids) != NEB_OK) return;
    for (size_t i = 0; i < info->rows; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= info->columns) abort();
}

static void logits(const uint8_t *data, size_t size, const struct neb_stream_info *info)
{
    static int32_t ids[MOST / 8];
    static float logp[MOST / 8];
    struct neb_topk shape = {info->rows, info->k, info->columns};
    if (neb__logits_decode(data, size, &shape, ids, logp) != NEB_OK) return;
    for (size_t i = 0; i < info->rows * (size_t)info->k; i++) {
        if (ids[i] < 0 || (uint32_t)ids[i] >= info->columns || !(logp[i] <= 0) || !isfinite(logp[i])) abort();
        if (i % (size_t)info->k && ids[i] <= ids[i - 1]) abort();
    }
}

static void hidden(const uint8_t *data, size_t size, const struct neb_stream_info *info)
{
    static float x[MOST / 4];
    if (neb__hidden_decode(data, size, info->rows, info->columns, x) != NEB_OK) return;
    for (size_t i = 0; i < info->rows * info->columns; i++)
        if (!isfinite(x[i])) abort();
}

static void activations(const uint8_t *data, size_t size, const struct neb_stream_info *info)
{
    static float x[MOST / 4];
    (void)neb__activations_decode(data, size, info->rows, info->columns, x); /* any bits are values */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct neb_stream_info info;
    int64_t held = neb__mem_held();
    if (neb__stream_peek(data, size, &info) == NEB_OK) {
        if (info.decoded > MOST) return 0;
        if (info.kind == NEB_STREAM_TOKENS) tokens(data, size, &info);
        if (info.kind == NEB_STREAM_LOGITS) logits(data, size, &info);
        if (info.kind == NEB_STREAM_HIDDEN) hidden(data, size, &info);
        if (info.kind == NEB_STREAM_ACTIVATIONS) activations(data, size, &info);
    } else if (size > 2) {
        static uint32_t v[1 << 16];
        struct neb_reader r = {data + 2, size - 2, false};
        neb__ints_decode(&r, (size_t)(data[0] | data[1] << 8), v);
    }
    if (neb__mem_held() != held) abort();
    return 0;
}
