/* lossless.c: zstd on the body of a code, where it pays.
 *
 * Quantised values have unequal frequencies (4-bit values of Gaussian data: 3.4 bits), so an entropy stage
 * saves 5 to 20 %. The line decides whether that is worth the time. squeeze() packs a sample and measures the
 * time for each byte saved. It goes on only if the line would need longer for these bytes. A sparse or statistical code
 * is at its entropy already, so squeeze() leaves it alone.
 *
 * zstd allocates through base/mem.h. */
#define ZSTD_STATIC_LINKING_ONLY /* custom allocators */
#include "codec/lossless.h"
#include "codec/codec.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/mem.h"

#include <string.h>
#include <zstd.h>
#include <zstd_errors.h>

enum { LEVEL = 1, SAMPLE = 256 << 10 };

static void *allocate(void *opaque, size_t n)
{
    (void)opaque;
    return neb__malloc(n);
}

static void release(void *opaque, void *p)
{
    (void)opaque;
    neb__free(p);
}

static const ZSTD_customMem memory = {allocate, release, NULL};

neb_status neb__lossless_pack(const uint8_t *in, size_t n, size_t cap, uint8_t *out, size_t *len)
{
    ZSTD_CCtx *ctx = ZSTD_createCCtx_advanced(memory);
    if (!ctx) return neb__fail(NEB_ERR_NOMEM, "no memory for the lossless stage");
    size_t got = ZSTD_compressCCtx(ctx, out, cap, in, n, LEVEL);
    ZSTD_freeCCtx(ctx);
    if (ZSTD_isError(got) && ZSTD_getErrorCode(got) != ZSTD_error_dstSize_tooSmall)
        return neb__fail(NEB_ERR_NOMEM, "the lossless stage failed: %s", ZSTD_getErrorName(got));
    *len = ZSTD_isError(got) ? 0 : got;
    return NEB_OK;
}

neb_status neb__lossless_unpack(const uint8_t *in, size_t len, size_t n, uint8_t *out)
{
    ZSTD_DCtx *ctx = ZSTD_createDCtx_advanced(memory);
    if (!ctx) return neb__fail(NEB_ERR_NOMEM, "no memory for the lossless stage");
    size_t got = ZSTD_decompressDCtx(ctx, out, n, in, len);
    ZSTD_freeDCtx(ctx);
    if (ZSTD_isError(got)) {
        bool memory_error = ZSTD_getErrorCode(got) == ZSTD_error_memory_allocation;
        return neb__quiet(memory_error ? NEB_ERR_NOMEM : NEB_ERR_CORRUPT, "lossless stage: %s",
                          ZSTD_getErrorName(got));
    }
    if (got != n) return neb__quiet(NEB_ERR_CORRUPT, "lossless stage: %zu bytes instead of %zu", got, n);
    return NEB_OK;
}

/* Seconds saved on the line for each second spent packing here and unpacking there, judged on the first bytes
 * of the body. Unpacking takes about half as long as packing. */
static neb_status worth(const uint8_t *body, size_t n, double goodput, uint8_t *scratch, double *ratio)
{
    size_t sample = n < SAMPLE ? n : SAMPLE, len = 0;
    int64_t start = neb__now_ns();
    NEB_TRY(neb__lossless_pack(body, sample, sample - 1, scratch, &len));
    double spent = 1.5 * neb__seconds_since(start) + 1e-9;
    *ratio = len ? (double)(sample - len) / goodput / spent : 0;
    return NEB_OK;
}

neb_status neb__codec_squeeze(struct neb_buf *b, size_t at, double goodput, size_t *gain)
{
    struct neb_codec_info info;
    uint8_t *code = b->data + at;
    NEB_TRY(neb__codec_peek(code, b->len - at, &info));
    *gain = 0;
    if (!neb__rung_fixed_size(info.rung) || info.body != info.raw || info.body < 64 || !(goodput > 0))
        return NEB_OK;
    uint8_t *body = code + NEB_CODEC_HEADER, *packed = neb__malloc(info.body);
    if (!packed) return neb__fail(NEB_ERR_NOMEM, "no memory for the lossless stage (%zu bytes)", info.body);
    double ratio = 0;
    size_t len = 0;
    neb_status status = worth(body, info.body, goodput, packed, &ratio);
    if (status == NEB_OK && ratio > 1)
        status = neb__lossless_pack(body, info.body, info.body - 1, packed, &len);
    if (status == NEB_OK && len) {
        memcpy(body, packed, len);
        neb__put32(code + 8, (uint32_t)len);
        b->len = at + NEB_CODEC_HEADER + len;
        *gain = info.body - len;
    }
    neb__free(packed);
    return status;
}
