/* selftest.c: a golden vector for the arithmetic of the codec.
 *
 * The values are made from integers alone. They include denormals, -0, ties, values near the limit and a wide
 * range of exponents. They go through every rung, and the codes, the decoded values and r (the part left out)
 * are hashed. A compiler, a library's rounding mode or a machine that computes anything else gives another
 * hash. Then this process must not join a run, because its outer state would drift from the others'. The test
 * takes about a millisecond. */
#include "codec/codec.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/rng.h"

#include <string.h>

enum { N = 2 * 4096 + 37 };

static const char golden[] = "74c5e65ea8698ae4211ee5a302dfbf7be78b6fb51e0fcefc9b49edb84188e05f";

/* Values within an ulp of the middle between two levels, in blocks whose scale has a rounded inverse. A fused
 * multiply-add, or any other rounding of z / s, gives another code for them. */
static uint32_t near_tie(int i, uint64_t x)
{
    const float s = 0.0118408203125f; /* 97 * 2^-13, a bfloat16 */
    float v = i == 0 ? 127.0f * s : ((float)(x % 126) + 0.5f) * s;
    uint32_t bits;
    memcpy(&bits, &v, 4);
    return i == 0 ? bits : (bits + (uint32_t)(x >> 20) % 3 - 1) | (uint32_t)(x >> 30 & 1) << 31;
}

static void fill(float *out, uint64_t seed)
{
    static const uint32_t special[] = {0x80000000, 0x00000001, 0x807FFFFF, 0x00800000, 0x3F000000, 0x3F800000,
                                       0xBFC00000, 0x40200000, 0x0D7FFFFF, 0x0D800000, 0x8D800001};
    struct neb_rng rng = {seed};
    for (int i = 0; i < N; i++) {
        uint64_t x = neb__rng_next(&rng);
        uint32_t bits = (uint32_t)(x & 0x807FFFFF) | (uint32_t)(115 + (x >> 40) % 12) << 23;
        if (i >= 4096 && i < 4096 + 512)
            bits = (uint32_t)(x & 0x807FFFFF) | 0x7E000000u; /* just below 2^126 */
        if (i >= 2048 && i < 3072) bits = near_tie(i % 64, x);
        if (i >= 6000 && i < 6512) bits = (uint32_t)(x & 0x800FFFFF); /* denormals */
        if (i % 61 == 7) bits = special[(x >> 33) % (sizeof special / sizeof *special)];
        memcpy(&out[i], &bits, 4);
    }
}

static neb_status one_rung(const struct neb_rung *rung, float *work, struct neb_buf *out,
                           struct neb_hasher *hasher)
{
    float *delta = work, *next = work + N, *decoded = work + 2 * N, *scales = work + 3 * N;
    for (int i = 0; i <= N / NEB_CODEC_EXT_BLOCK; i++)
        scales[i] = i % 5 == 4 ? 0.0f : 0.0009765625f * (float)(i + 1);
    struct neb_codec_input in = {.z = delta, .n = N, .members = 2, .scales = scales};
    neb__buf_clear(out);
    NEB_TRY(neb__codec_encode(rung, &in, next, NULL, out));
    NEB_TRY(neb__codec_decode(out->data, out->len, scales, N, decoded));
    NEB_TRY(neb__hasher_update(hasher, out->data, out->len));
    NEB_TRY(neb__hasher_update(hasher, decoded, N * sizeof *decoded));
    return neb__hasher_update(hasher, next, N * sizeof *next);
}

neb_status neb__codec_self_test(void)
{
    struct neb_hasher hasher;
    struct neb_buf out;
    struct neb_hash hash;
    char hex[2 * NEB_HASH_SIZE + 1];
    float *work = neb__aligned((3 * N + N / NEB_CODEC_EXT_BLOCK + 1) * sizeof *work);
    if (!work) return neb__fail(NEB_ERR_NOMEM, "no memory for the codec's self-test");
    neb__buf_init(&out, 1 << 20);
    neb_status status = neb__hasher_init(&hasher);
    if (status == NEB_OK) {
        fill(work, 2026);
        for (int i = 0; status == NEB_OK && i < neb__rung_count; i++)
            status = one_rung(&neb__rung_table[i], work, &out, &hasher);
        neb_status f = neb__hasher_final(&hasher, status == NEB_OK ? &hash : NULL);
        if (status == NEB_OK) status = f;
    }
    neb__buf_free(&out);
    neb__free(work);
    if (status != NEB_OK) return status;
    neb__hash_hex(&hash, hex);
    if (!strcmp(hex, golden)) return NEB_OK;
    return neb__fail(
        NEB_ERR_INTERNAL,
        "the codec's arithmetic gives other bits here (%s): this machine or build cannot join a run", hex);
}
