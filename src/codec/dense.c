/* dense.c: one cell of a dense rung.
 *
 *     fp32, bf16      the values, little-endian
 *     int8, int4, 2-bit   one bfloat16 scale a block (256, 128, 64 values), then the codes of all blocks
 *     int8x           the codes; both sides know their scales from outside
 *
 * The codes here are those of single values. The last block is filled with zeros, so that the kernels only
 * see whole blocks, and the filled block is stored whole. fp32, bf16 and int8x store only the values, because
 * there each value stands for itself. The wire is little-endian, and so are the supported machines. */
#include "codec/dense.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the codec reads and writes floats in place");

static size_t unit(const struct neb_rung *rung) /* the kernels step by it */
{
    bool blocks = rung->kind == NEB_RUNG_INT || rung->kind == NEB_RUNG_EXTERN;
    return blocks ? rung->block : 16;
}

size_t neb__dense_size(const struct neb_rung *rung, size_t n)
{
    if (rung->kind != NEB_RUNG_INT) return n * rung->bits / 8;
    size_t blocks = (n + rung->block - 1) / rung->block;
    return blocks * (2 + (size_t)rung->block * rung->bits / 8);
}

static bool encode_whole(const struct neb_rung *rung, struct neb__pass *p, const float *scales, int limit,
                         uint8_t *out_scales, uint8_t *codes)
{
    const struct neb__codec_kernels *k = neb__codec_kernels();
    switch (rung->kind) {
    case NEB_RUNG_FP32: return k->encode_fp32(p, codes);
    case NEB_RUNG_BF16: return k->encode_bf16(p, codes);
    case NEB_RUNG_INT: return k->encode_int(p, rung->bits, rung->optimal, out_scales, codes);
    case NEB_RUNG_EXTERN: return k->encode_extern(p, scales, limit, codes);
    default: return false;
    }
}

bool neb__dense_encode(const struct neb_rung *rung, struct neb__pass *p, const float *scales, int limit,
                       uint8_t *out)
{
    size_t step = unit(rung), n = p->n, whole = n / step * step, rest = n - whole;
    size_t blocks = rung->kind == NEB_RUNG_INT ? (n + step - 1) / step : 0;
    uint8_t *codes = out + 2 * blocks;
    struct neb__pass part = *p;
    part.n = whole;
    if (whole && !encode_whole(rung, &part, scales, limit, out, codes)) return false;
    memcpy(p->sq, part.sq, sizeof p->sq);
    if (!rest) return true;

    float z[256] = {0}, next[256];
    uint8_t code[256 * 4];
    memcpy(z, p->z + whole, rest * sizeof *z);
    struct neb__pass last = {.z = z, .n = step, .next = next};
    size_t at = whole * rung->bits / 8, size = (rung->kind == NEB_RUNG_INT ? step : rest) * rung->bits / 8;
    const float *tail_scales = scales ? scales + whole / step : NULL;
    if (!encode_whole(rung, &last, tail_scales, limit, out + 2 * (blocks ? blocks - 1 : 0), code))
        return false;
    memcpy(codes + at, code, size);
    /* last.sq would count the zeros behind, too, and int2 has no level at zero. */
    for (size_t i = 0; i < rest; i++) {
        p->sq[0] += (double)z[i] * (double)z[i];
        p->sq[1] += (double)next[i] * (double)next[i];
    }
    if (p->next) memcpy(p->next + whole, next, rest * sizeof *next);
    return true;
}

static bool decode_whole(const struct neb_rung *rung, const uint8_t *in_scales, const uint8_t *codes,
                         const float *scales, size_t n, bool stream, float *out)
{
    const struct neb__codec_kernels *k = neb__codec_kernels();
    switch (rung->kind) {
    case NEB_RUNG_FP32: return k->decode_fp32(codes, n, stream, out);
    case NEB_RUNG_BF16: return k->decode_bf16(codes, n, stream, out);
    case NEB_RUNG_INT: return k->decode_int(in_scales, codes, rung->bits, n, stream, out);
    case NEB_RUNG_EXTERN: k->decode_extern(scales, codes, n, stream, out); return true;
    default: return false;
    }
}

bool neb__dense_decode(const struct neb_rung *rung, const uint8_t *bytes, const float *scales, size_t n,
                       bool stream, float *out)
{
    size_t step = unit(rung), whole = n / step * step, rest = n - whole;
    size_t blocks = rung->kind == NEB_RUNG_INT ? (n + step - 1) / step : 0;
    const uint8_t *codes = bytes + 2 * blocks;
    if (whole && !decode_whole(rung, bytes, codes, scales, whole, stream, out)) return false;
    if (!rest) return true;

    float last[256];
    uint8_t code[256 * 4] = {0};
    size_t at = whole * rung->bits / 8, size = (rung->kind == NEB_RUNG_INT ? step : rest) * rung->bits / 8;
    memcpy(code, codes + at, size);
    const float *tail_scales = scales ? scales + whole / step : NULL;
    const uint8_t *tail = bytes + 2 * (blocks ? blocks - 1 : 0);
    if (!decode_whole(rung, tail, code, tail_scales, step, false, last)) return false;
    memcpy(out + whole, last, rest * sizeof *last);
    return true;
}
