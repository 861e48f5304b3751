/* fuzz_codec.c: codes. Decoded values must be finite, as many as the header says, and the same bits with another
 * instruction set. The first byte chooses the scales of the receiver.
 *
 * Bytes that are no code are values: the first byte chooses the rung, and the others are floats. They must be refused or
 * coded, by every instruction set to the same bytes; and the code must decode to the values less the part left out. */
#include "base/mem.h"
#include "codec/codec.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 1 << 19 /* values: two cells */, CODED = 1 << 13 };

static float a[MOST], b[MOST], scales[MOST / NEB_CODEC_EXT_BLOCK];

static void decode(const uint8_t *data, size_t size, const struct neb_codec_info *info)
{
    int64_t held = neb__mem_held();
    neb__codec_force(NULL);
    neb_status status = neb__codec_decode(data, size, scales, info->n, a);
    neb__codec_force("plain");
    if (neb__codec_decode(data, size, scales, info->n, b) != status || neb__mem_held() != held) abort();
    if (status != NEB_OK) return;
    if (memcmp(a, b, info->n * sizeof *a)) abort();
    for (size_t i = 0; i < info->n; i++)
        if (!isfinite(a[i])) abort();
}

static void check_code(const struct neb_rung *rung, const struct neb_buf *code, const float *z,
                       const float *left, size_t n)
{
    if (code->len > neb__codec_bound(rung, n)) abort();
    if (neb__codec_decode(code->data, code->len, scales, n, a) != NEB_OK) abort();
    for (size_t i = 0; i < n; i++) {
        float r = z[i] - a[i];
        if (memcmp(&r, &left[i], sizeof r)) abort();
    }
}

static void encode(uint8_t choice, const uint8_t *data, size_t size)
{
    static float z[CODED], left[2][CODED];
    const struct neb_rung *rung = &neb__rung_table[choice % neb__rung_count];
    const size_t n = size / sizeof *z < CODED ? size / sizeof *z : CODED;
    struct neb_codec_input in = {.z = z, .n = n, .scales = scales, .members = 1};
    struct neb_buf code[2];
    neb_status status[2];
    if (!n) return;
    memcpy(z, data, n * sizeof *z);
    for (int i = 0; i < 2; i++) {
        neb__buf_init(&code[i], 1 << 20);
        neb__codec_force(i ? "plain" : NULL);
        status[i] = neb__codec_encode(rung, &in, left[i], NULL, &code[i]);
    }
    if (status[0] != status[1]) abort();
    if (status[0] == NEB_OK) {
        if (code[0].len != code[1].len || memcmp(code[0].data, code[1].data, code[0].len)) abort();
        if (memcmp(left[0], left[1], n * sizeof *z)) abort();
        check_code(rung, &code[0], z, left[0], n);
    }
    for (int i = 0; i < 2; i++) neb__buf_free(&code[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct neb_codec_info info;
    if (size < 1) return 0;
    const uint8_t choice = data[0];
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) scales[i] = choice % 3 ? 0.25f : 0.0f;
    data++, size--;
    if (neb__codec_peek(data, size, &info) != NEB_OK)
        encode(choice, data, size);
    else if (info.n <= MOST)
        decode(data, size, &info);
    return 0;
}
