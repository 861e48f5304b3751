/* kernels_body.h: the implementation behind kernels.h, compiled once for each instruction set with
 * NEB__KERNELS and NEB__KERNELS_NAME defined.
 *
 * A block stays in registers or L1 and is walked twice. The first pass finds the sum and the largest
 * magnitude; the second quantises, subtracts and packs. A float becomes an integer by adding 1.5 * 2^23. The
 * low bits of the sum are the integer, and the addition itself rounds to nearest even. This needs no
 * conversion instruction and no rounding mode, so it is the same on every machine.
 *
 * Codes of b bits are packed by groups of 128/b values. Byte j of a group holds values j, j + 16, … from its
 * low bits up, so packing and unpacking are shifts of whole vectors. int8 and int4 code round(z / s) in two's
 * complement, int4 with 8 added; 2 bits code the levels -3s, -s, s, 3s as 0 … 3. A scale is a bfloat16, so
 * products of scale and code are exact in fp32. The difference z - c is exact, too, wherever c is the nearest
 * level (Sterbenz). */
#include "codec/kernels.h"
#include "codec/simd.h"

#define MAGIC      12582912.0f /* 1.5 * 2^23 */
#define MAGIC_BITS 0x4B400000u

VINLINE float from_bits(uint32_t b)
{
    float f;
    memcpy(&f, &b, 4);
    return f;
}

VINLINE uint32_t to_bits(float f)
{
    uint32_t b;
    memcpy(&b, &f, 4);
    return b;
}

VINLINE float bf16_up(float x) /* x >= 0 and far from the largest float */
{
    return from_bits((to_bits(x) + 0xFFFFu) & 0xFFFF0000u);
}

VINLINE float bf16_near(float x)
{
    uint32_t b = to_bits(x);
    return from_bits((b + 0x7FFFu + (b >> 16 & 1)) & 0xFFFF0000u);
}

VINLINE vf load_z(const struct neb__pass *p, size_t i)
{
    /* The hardware's prefetchers stop at the end of a page; this reaches beyond it. */
    __builtin_prefetch(p->z + i + 1024);
    return vload(p->z + i);
}

struct neb_code_sums {
    struct neb_vec_double z, r;
};

VINLINE void sums_out(const struct neb_code_sums *s, struct neb__pass *p)
{
    p->sq[0] += vfold_sum_double(&s->z);
    p->sq[1] += vfold_sum_double(&s->r);
}

/* Finds the level nearest to z: as a code in the low bits of each lane of *code, and as a value. */
VINLINE vf quantise(vf z, int bits, float inv, float s, _Bool clip, vu *code)
{
    const float top = bits == 8 ? 127.0f : 7.0f;
    vf t = bits == 2 ? z * vset(inv) + vset(1.5f) : z * vset(inv);
    if (clip) t = bits == 2 ? vclamp(t, 0.0f, 3.0f) : vclamp(t, -top, top);
    t = t + vset(MAGIC);
    *code = (vu)t - vsetu(bits == 4 ? MAGIC_BITS - 8 : MAGIC_BITS);
    t = t - vset(MAGIC);
    if (bits == 2) t = t + t - vset(3.0f);
    return t * vset(s);
}

/* The bits of the largest scale: 2^120, 2^124, 2^125. No encoder writes more, nor a negative scale or a NaN.
 * All products are finite up to it. */
VINLINE uint32_t most_scale(int bits)
{
    if (bits == 8) return 0x7B800000u;
    return bits == 4 ? 0x7D800000u : 0x7E000000u;
}

VINLINE int block_of(int bits) /* inlined always: the loops over a block unroll */
{
    if (bits == 8) return 256;
    return bits == 4 ? 128 : 64;
}

VINLINE float steps_of(int bits)
{
    return bits == 8 ? 127.0f : bits == 4 ? 7.0f : 3.0f;
}

VINLINE float inverse(int bits, float s)
{
    return s == 0.0f ? 0.0f : (bits == 2 ? 0.5f : 1.0f) / s;
}

VINLINE float block_error(const vf *z, int vectors, int bits, float s)
{
    vf sum = vset(0.0f);
    float inv = inverse(bits, s);
    for (int i = 0; i < vectors; i++) {
        vu code;
        vf r = z[i] - quantise(z[i], bits, inv, s, 1, &code);
        sum += r * r;
    }
    return vfold_sum(sum);
}

/* Searches the scale of least squared error in steps of a quarter of an octave, then an eighth to both sides
 * of the best. */
VINLINE float optimal_scale(const vf *z, int vectors, int bits, float largest)
{
    static const float quarter[4] = {1.0f, 0.840896415f, 0.707106781f, 0.594603558f};
    float best = largest, least = block_error(z, vectors, bits, largest), octave = 1.0f;
    for (int j = 1; j < 12; j++) {
        if (j % 4 == 0) octave *= 0.5f;
        float s = bf16_near(largest * (quarter[j % 4] * octave)), e = block_error(z, vectors, bits, s);
        if (e < least) least = e, best = s;
    }
    float centre = best;
    for (int j = 0; j < 2; j++) {
        float s = bf16_near(centre * (j ? 1.0905077f : 0.9170040f));
        if (s > largest) continue;
        float e = block_error(z, vectors, bits, s);
        if (e < least) least = e, best = s;
    }
    return best;
}

/* Two bits need no search. The best scale of normally distributed values assigns the levels, and least
 * squares fit the scale to them. The result comes within half a hundredth of the least error, also for heavy
 * tails. */
VINLINE float fitted_scale(const vf *z, int vectors, vf zsq, float largest)
{
    float s = 0.498f * __builtin_sqrtf(vfold_sum(zsq) / (float)(16 * vectors));
    if (!(s > 0.0f && s <= largest)) s = largest; /* the squares may have over- or underflowed */
    vf zq = vset(0), qq = vset(0);
    float inv = inverse(2, s);
    for (int i = 0; i < vectors; i++) {
        vf t = vclamp(z[i] * vset(inv) + vset(1.5f), 0.0f, 3.0f) + vset(MAGIC);
        t = t - vset(MAGIC);
        vf q = t + t - vset(3.0f);
        zq += z[i] * q;
        qq += q * q;
    }
    s = bf16_near(vfold_sum(zq) / vfold_sum(qq));
    return s > 0.0f && s <= largest ? s : largest;
}

VINLINE _Bool encode_blocks(struct neb__pass *p, int bits, _Bool optimal, _Bool stream, uint8_t *scales,
                            uint8_t *codes)
{
    const int block = block_of(bits), vectors = block / 16, each = 8 / bits;
    struct neb_code_sums all = {0};
    for (size_t at = 0; at < p->n; at += (size_t)block) {
        vf z[16], zsq = vset(0), rsq = vset(0);
        vu max = vsetu(0);
        for (int i = 0; i < vectors; i++) {
            z[i] = load_z(p, at + 16 * (size_t)i);
            max = vmaxu(max, vabs(z[i]));
            zsq += z[i] * z[i];
        }
        uint32_t largest = vfold_max(max);
        if (largest >= NEB__LIMIT_BITS) return 0;
        float s = largest < NEB__TINY_BITS ? 0.0f : bf16_up(from_bits(largest) / steps_of(bits));
        if (optimal && s != 0.0f)
            s = bits == 2 ? fitted_scale(z, vectors, zsq, s) : optimal_scale(z, vectors, bits, s);
        float inv = inverse(bits, s);
        uint32_t sbits = to_bits(s);
        scales[0] = (uint8_t)(sbits >> 16), scales[1] = (uint8_t)(sbits >> 24);
        scales += 2;
        for (int i = 0; i < vectors; i += each) {
            vu packed = vsetu(0);
            for (int j = 0; j < each; j++) {
                vu code;
                vf r = z[i + j] - quantise(z[i + j], bits, inv, s, optimal, &code);
                packed |= code << (j * bits);
                rsq += r * r;
                if (p->next) vput(p->next + at + 16 * (size_t)(i + j), r, stream);
            }
            vstore8(codes, packed);
            codes += 16;
        }
        vadd_double(&all.z, zsq);
        vadd_double(&all.r, rsq);
    }
    sums_out(&all, p);
    return 1;
}

static bool encode_int(struct neb__pass *p, int bits, bool optimal, uint8_t *scales, uint8_t *codes)
{
    bool ok;
    if (bits == 8 && !optimal)
        ok = p->stream ? encode_blocks(p, 8, 0, 1, scales, codes) : encode_blocks(p, 8, 0, 0, scales, codes);
    else if (bits == 4 && !optimal)
        ok = p->stream ? encode_blocks(p, 4, 0, 1, scales, codes) : encode_blocks(p, 4, 0, 0, scales, codes);
    else if (bits == 2 && !optimal)
        ok = encode_blocks(p, 2, 0, p->stream, scales, codes);
    else if (bits == 8)
        ok = encode_blocks(p, 8, 1, p->stream, scales, codes);
    else if (bits == 4)
        ok = encode_blocks(p, 4, 1, p->stream, scales, codes);
    else
        ok = encode_blocks(p, 2, 1, p->stream, scales, codes);
    vstream_end();
    return ok;
}

static bool encode_extern(struct neb__pass *p, const float *scales, int limit, uint8_t *codes)
{
    struct neb_code_sums all = {0};
    vu max = vsetu(0);
    for (size_t at = 0; at < p->n; at += 16) {
        float s = scales[at / NEB_CODEC_EXT_BLOCK], inv = s == 0.0f ? 0.0f : 1.0f / s;
        vf z = load_z(p, at);
        max = vmaxu(max, vabs(z));
        /* A scale far too small for z makes this product infinite. The clamp takes it to the limit. */
        vf t = vclamp(z * vset(inv), -(float)limit, (float)limit) + vset(MAGIC);
        vf r = z - (t - vset(MAGIC)) * vset(s);
        vstore8(codes + at, (vu)t - vsetu(MAGIC_BITS));
        if (p->next) vput(p->next + at, r, p->stream);
        vadd_double(&all.z, z * z);
        vadd_double(&all.r, r * r);
    }
    sums_out(&all, p);
    vstream_end();
    return vfold_max(max) < NEB__LIMIT_BITS;
}

static bool encode_fp32(struct neb__pass *p, uint8_t *codes)
{
    struct neb_code_sums all = {0};
    vu max = vsetu(0);
    for (size_t at = 0; at < p->n; at += 16) {
        vf z = load_z(p, at);
        max = vmaxu(max, vabs(z));
        memcpy(codes + 4 * at, &z, sizeof z);
        if (p->next) vput(p->next + at, vset(0), p->stream);
        vadd_double(&all.z, z * z);
    }
    sums_out(&all, p);
    vstream_end();
    return vfold_max(max) < NEB__LIMIT_BITS;
}

static bool encode_bf16(struct neb__pass *p, uint8_t *codes)
{
    struct neb_code_sums all = {0};
    vu max = vsetu(0);
    for (size_t at = 0; at < p->n; at += 16) {
        vf z = load_z(p, at);
        max = vmaxu(max, vabs(z));
        vu b = (vu)z, half = (b + 0x7FFFu + (b >> 16 & 1)) >> 16;
        vstore16(codes + 2 * at, half);
        vf r = z - (vf)(half << 16);
        if (p->next) vput(p->next + at, r, p->stream);
        vadd_double(&all.z, z * z);
        vadd_double(&all.r, r * r);
    }
    sums_out(&all, p);
    vstream_end();
    return vfold_max(max) < NEB__LIMIT_BITS;
}

static uint32_t take(struct neb__pass *p, float *z)
{
    struct neb_code_sums all = {0};
    vf zsq = vset(0);
    vu max = vsetu(0);
    for (size_t at = 0; at < p->n; at += 16) {
        vf v = load_z(p, at);
        max = vmaxu(max, vabs(v));
        vstore(z + at, v);
        zsq += v * v;
    }
    vadd_double(&all.z, zsq);
    sums_out(&all, p);
    return vfold_max(max);
}

static int collect(const float *z, size_t n, uint32_t above, int cap, uint16_t *at)
{
    int found = 0;
    for (size_t i = 0; i < n; i += 16) {
        uint32_t mask = vabove(vabs(vload(z + i)), above);
        while (mask) {
            if (found == cap) return cap + 1;
            at[found++] = (uint16_t)(i + (size_t)__builtin_ctz(mask));
            mask &= mask - 1;
        }
    }
    return found;
}

static uint32_t nth(const uint32_t *v, int n, int k, uint32_t lo, uint32_t hi)
{
    while (lo < hi) { /* the answer lies in [lo, hi]: it is the largest t that k of them reach */
        uint32_t mid = lo + (hi - lo + 1) / 2;
        int reached = 0;
        for (int i = 0; i < n; i += 16) {
            vu x;
            memcpy(&x, v + i, sizeof x);
            reached += __builtin_popcount(vabove(x, mid - 1));
        }
        if (reached >= k)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

/* The nearest of 0 … top for each magnitude. The zeros that fill the last vector give 0. */
VINLINE vf nearest(vf m, float lo, float scale, float top)
{
    return vclamp((m - vset(lo)) * vset(scale), 0.0f, top) + vset(MAGIC);
}

static void fit_sums(const float *m, int n, float lo, float scale, float top, float out[3])
{
    vf sj = vset(0), sjj = vset(0), sjm = vset(0);
    for (int i = 0; i < n; i += 16) {
        vf x = vload(m + i), j = nearest(x, lo, scale, top) - vset(MAGIC);
        sj += j;
        sjj += j * j;
        sjm += j * x;
    }
    out[0] = vfold_sum(sj);
    out[1] = vfold_sum(sjj);
    out[2] = vfold_sum(sjm);
}

static void assign(const float *m, int n, float lo, float scale, float top, uint8_t *j)
{
    for (int i = 0; i < n; i += 16) vstore8(j + i, (vu)nearest(vload(m + i), lo, scale, top));
}

static void flush(struct neb__pass *p, const float *z)
{
    vf rsq = vset(0);
    for (size_t at = 0; at < p->n; at += 16) {
        vf r = vload(z + at);
        rsq += r * r;
        if (p->next) vput(p->next + at, r, p->stream);
    }
    struct neb_vec_double wide = {0};
    vadd_double(&wide, rsq);
    p->sq[1] += vfold_sum_double(&wide);
    vstream_end();
}

VINLINE _Bool decode_blocks(const uint8_t *scales, const uint8_t *codes, int bits, size_t n, _Bool stream,
                            float *out)
{
    const int block = block_of(bits), each = 8 / bits;
    const uint32_t most = most_scale(bits);
    for (size_t at = 0; at < n; at += (size_t)block, scales += 2) {
        uint32_t sbits = (uint32_t)scales[0] << 16 | (uint32_t)scales[1] << 24;
        float s = from_bits(sbits);
        if (sbits > most) return 0;
        for (int i = 0; i < block; i += 16 * each, codes += 16) {
            if (bits == 8) {
                vput(out + at + i, vfloat(vload8s(codes)) * vset(s), stream);
                continue;
            }
            vu wide = vload8u(codes);
            for (int j = 0; j < each; j++) {
                vi q = (vi)(wide >> (j * bits) & (bits == 4 ? 15u : 3u));
                q = bits == 4 ? q - 8 : q + q - 3;
                vput(out + at + i + 16 * j, vfloat(q) * vset(s), stream);
            }
        }
    }
    return 1;
}

static bool decode_int(const uint8_t *scales, const uint8_t *codes, int bits, size_t n, bool stream,
                       float *out)
{
    bool ok;
    if (bits == 8)
        ok = stream ? decode_blocks(scales, codes, 8, n, 1, out) : decode_blocks(scales, codes, 8, n, 0, out);
    else if (bits == 4)
        ok = stream ? decode_blocks(scales, codes, 4, n, 1, out) : decode_blocks(scales, codes, 4, n, 0, out);
    else
        ok = stream ? decode_blocks(scales, codes, 2, n, 1, out) : decode_blocks(scales, codes, 2, n, 0, out);
    vstream_end();
    return ok;
}

static void decode_extern(const float *scales, const uint8_t *codes, size_t n, bool stream, float *out)
{
    for (size_t at = 0; at < n; at += 16)
        vput(out + at, vfloat(vload8s(codes + at)) * vset(scales[at / NEB_CODEC_EXT_BLOCK]), stream);
    vstream_end();
}

static bool decode_fp32(const uint8_t *codes, size_t n, bool stream, float *out)
{
    vu max = vsetu(0);
    for (size_t at = 0; at < n; at += 16) {
        vf v;
        memcpy(&v, codes + 4 * at, sizeof v);
        max = vmaxu(max, vabs(v));
        vput(out + at, v, stream);
    }
    vstream_end();
    return vfold_max(max) < NEB__LIMIT_BITS;
}

static bool decode_bf16(const uint8_t *codes, size_t n, bool stream, float *out)
{
    vu max = vsetu(0);
    for (size_t at = 0; at < n; at += 16) {
        vf v = (vf)(vload16(codes + 2 * at) << 16);
        max = vmaxu(max, vabs(v));
        vput(out + at, v, stream);
    }
    vstream_end();
    return vfold_max(max) <= NEB__LIMIT_BITS; /* a value just below the limit may round up to it */
}

static bool encode_row(const float *x, size_t n, int bits, uint8_t *scale, uint8_t *codes)
{
    const int each = 8 / bits;
    vu most = vsetu(0);
    for (size_t at = 0; at < n; at += 16) most = vmaxu(most, vabs(vload(x + at)));
    uint32_t max = vfold_max(most);
    if (max >= NEB__LIMIT_BITS) return false;
    float s = max < NEB__TINY_BITS ? 0.0f : bf16_up(from_bits(max) / steps_of(bits)), inv = inverse(bits, s);
    uint32_t sbits = to_bits(s);
    scale[0] = (uint8_t)(sbits >> 16), scale[1] = (uint8_t)(sbits >> 24);
    for (size_t at = 0; at < n; codes += 16) {
        vu packed = vsetu(0);
        for (int j = 0; j < each; j++, at += 16) {
            vu code;
            quantise(vload(x + at), bits, inv, s, 0, &code);
            packed |= code << (j * bits);
        }
        vstore8(codes, packed);
    }
    return true;
}

static bool decode_row(const uint8_t *scale, const uint8_t *codes, size_t n, int bits, float *x)
{
    uint32_t sbits = (uint32_t)scale[0] << 16 | (uint32_t)scale[1] << 24;
    if (sbits > most_scale(bits)) return false;
    for (size_t at = 0; at < n; codes += 16) {
        if (bits == 8) {
            vstore(x + at, vfloat(vload8s(codes)) * vset(from_bits(sbits)));
            at += 16;
            continue;
        }
        vu wide = vload8u(codes);
        for (int j = 0; j < 8 / bits; j++, at += 16) {
            vi q = (vi)(wide >> (j * bits) & (bits == 4 ? 15u : 3u));
            q = bits == 4 ? q - 8 : q + q - 3;
            vstore(x + at, vfloat(q) * vset(from_bits(sbits)));
        }
    }
    return true;
}

const struct neb__codec_kernels NEB__KERNELS = {
    .name = NEB__KERNELS_NAME,
    .encode_int = encode_int,
    .encode_extern = encode_extern,
    .encode_fp32 = encode_fp32,
    .encode_bf16 = encode_bf16,
    .take = take,
    .collect = collect,
    .nth = nth,
    .fit_sums = fit_sums,
    .assign = assign,
    .flush = flush,
    .encode_row = encode_row,
    .decode_row = decode_row,
    .decode_int = decode_int,
    .decode_extern = decode_extern,
    .decode_fp32 = decode_fp32,
    .decode_bf16 = decode_bf16,
};
