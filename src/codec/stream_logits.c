/* stream_logits.c: the k most likely tokens of each position, for distillation.
 *
 * Ids ascend, so a row's set costs its gaps and no order. Values are log-probabilities. They are already
 * normalised over the whole vocabulary, so the student also knows the mass of the rest. They are linear
 * between the row's greatest and least in 255 or 15 steps. Both ends are bfloat16; the least is rounded down,
 * the greatest up (but not above 0).
 *
 *     body := gaps (ints.c): first id, then differences - 1 · for each row greatest, least (bfloat16) ·
 *             codes (8 bits, or 4 with the first of a pair low; a row starts at a byte) */
#include "codec/stream.h"
#include "codec/ints.h"
#include "base/bytes.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

static const float lowest = -65536.0f;

static size_t row_bytes(int k, int bits)
{
    return bits == 8 ? (size_t)k : ((size_t)k + 1) / 2;
}

static float bf16_value(uint16_t h)
{
    uint32_t b = (uint32_t)h << 16;
    float f;
    memcpy(&f, &b, 4);
    return f;
}

static uint16_t bf16_toward(float x, bool away_from_zero) /* x <= 0 */
{
    uint32_t b;
    memcpy(&b, &x, 4);
    return (uint16_t)((b + (away_from_zero ? 0xFFFFu : 0)) >> 16);
}

/* ---- coding ------------------------------------------------------------------------------------------------- */

static neb_status make_gaps(const struct neb_topk *shape, const int32_t *ids, const float *logp,
                            uint32_t *gaps)
{
    for (size_t r = 0; r < shape->rows; r++) {
        int64_t last = -1;
        for (int j = 0; j < shape->k; j++) {
            size_t i = r * (size_t)shape->k + (size_t)j;
            if (ids[i] <= last || (uint32_t)ids[i] >= shape->vocabulary)
                return neb__fail(NEB_ERR_INVALID, "row %zu: ids must ascend below %u", r, shape->vocabulary);
            if (!(logp[i] <= 0 && logp[i] >= lowest))
                return neb__fail(NEB_ERR_RANGE, "row %zu: log-probability %g is not in [%g, 0]", r,
                                 (double)logp[i], (double)lowest);
            gaps[i] = (uint32_t)(ids[i] - last - 1);
            last = ids[i];
        }
    }
    return NEB_OK;
}

static void encode_row(const float *logp, int k, int bits, uint8_t *ends, uint8_t *codes)
{
    float hi = logp[0], lo = logp[0], steps = bits == 8 ? 255.0f : 15.0f;
    for (int j = 1; j < k; j++) {
        hi = logp[j] > hi ? logp[j] : hi;
        lo = logp[j] < lo ? logp[j] : lo;
    }
    uint16_t top = bf16_toward(hi, false), bottom = bf16_toward(lo, true);
    neb__put16(ends, top);
    neb__put16(ends + 2, bottom);
    hi = bf16_value(top);
    float width = hi - bf16_value(bottom), scale = width > 0 ? steps / width : 0;
    memset(codes, 0, row_bytes(k, bits));
    for (int j = 0; j < k; j++) {
        float t = (hi - logp[j]) * scale + 0.5f;
        int q;
        if (t < 0)
            q = 0;
        else if (t >= steps)
            q = (int)steps;
        else
            q = (int)t;
        if (bits == 8)
            codes[j] = (uint8_t)q;
        else
            codes[j / 2] = (uint8_t)(codes[j / 2] | q << (j % 2 * 4));
    }
}

neb_status neb__logits_encode(const struct neb_topk *shape, int bits, const int32_t *ids, const float *logp,
                              struct neb_buf *out)
{
    struct neb_stream_info info = {.kind = NEB_STREAM_LOGITS,
                                   .rows = shape->rows,
                                   .columns = shape->vocabulary,
                                   .k = shape->k,
                                   .bits = bits};
    size_t start = out->len, n = shape->rows * (size_t)(shape->k > 0 ? shape->k : 0);
    size_t codes = shape->rows * row_bytes(shape->k > 0 ? shape->k : 0, bits);
    NEB_TRY(neb__stream_begin(out, &info, &start));
    uint32_t *gaps = neb__malloc(n * sizeof *gaps);
    neb_status status = gaps ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "no memory for %zu ids", n);
    if (status == NEB_OK) status = make_gaps(shape, ids, logp, gaps);
    if (status == NEB_OK) status = neb__ints_encode(gaps, n, out);
    if (status == NEB_OK) status = neb__buf_reserve(out, 4 * shape->rows + codes);
    neb__free(gaps);
    if (status != NEB_OK) {
        out->len = start;
        return status;
    }
    uint8_t *ends = out->data + out->len, *code = ends + 4 * shape->rows;
    for (size_t r = 0; r < shape->rows; r++)
        encode_row(logp + r * (size_t)shape->k, shape->k, bits, ends + 4 * r,
                   code + r * row_bytes(shape->k, bits));
    out->len += 4 * shape->rows + codes;
    neb__stream_end(out, start);
    return NEB_OK;
}

neb_status neb__logits_decode(const uint8_t *bytes, size_t len, const struct neb_topk *shape, int32_t *ids,
                              float *logp)
{
    struct neb_stream_info info = {0};
    NEB_TRY(
        neb__stream_expect(bytes, len, NEB_STREAM_LOGITS, shape->rows, shape->vocabulary, shape->k, &info));
    struct neb_reader r = {bytes + NEB_STREAM_HEADER, len - NEB_STREAM_HEADER, false};
    size_t k = (size_t)shape->k;
    NEB_TRY(neb__ints_decode(&r, shape->rows * k, (uint32_t *)ids));
    const uint8_t *ends = neb__read(&r, 4 * shape->rows);
    const uint8_t *codes = neb__read(&r, shape->rows * row_bytes(shape->k, info.bits));
    if (r.bad || r.left) return neb__quiet(NEB_ERR_CORRUPT, "log-probabilities of a wrong size");
    float steps = info.bits == 8 ? 255.0f : 15.0f;
    for (size_t row = 0; row < shape->rows; row++) {
        float hi = bf16_value(neb__get16(ends + 4 * row)), lo = bf16_value(neb__get16(ends + 4 * row + 2));
        if (!(hi <= 0 && lo <= hi && lo >= 2 * lowest))
            return neb__quiet(NEB_ERR_CORRUPT, "row %zu: impossible log-probabilities", row);
        const uint8_t *code = codes + row * row_bytes(shape->k, info.bits);
        int64_t last = -1;
        for (size_t j = 0; j < k; j++) {
            int q = info.bits == 8 ? code[j] : code[j / 2] >> (j % 2 * 4) & 15;
            last += (int64_t)(uint32_t)ids[row * k + j] + 1;
            if (last >= shape->vocabulary)
                return neb__quiet(NEB_ERR_CORRUPT, "row %zu: id beyond the vocabulary", row);
            ids[row * k + j] = (int32_t)last;
            logp[row * k + j] = hi - (hi - lo) * ((float)q / steps);
        }
    }
    return NEB_OK;
}
