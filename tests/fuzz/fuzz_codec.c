/* fuzz_codec.c: the decoder of codes. Decoded values must be finite, as many as the header
 * says, and the same bits with another instruction set. The first byte chooses the scales of the receiver. */
#include "base/mem.h"
#include "codec/codec.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 1 << 19 }; /* values: two cells */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static float a[MOST], b[MOST], scales[MOST / NEB_CODEC_EXT_BLOCK];
    struct neb_codec_info info;
    if (size < 1) return 0;
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) scales[i] = data[0] % 3 ? 0.25f : 0.0f;
    data++, size--;
    if (neb__codec_peek(data, size, &info) != NEB_OK || info.n > MOST) return 0;
    int64_t held = neb__mem_held();
    neb__codec_force(NULL);
    neb_status status = neb__codec_decode(data, size, scales, info.n, a);
    neb__codec_force("plain");
    if (neb__codec_decode(data, size, scales, info.n, b) != status || neb__mem_held() != held) abort();
    if (status != NEB_OK) return 0;
    if (memcmp(a, b, info.n * sizeof *a)) abort();
    for (size_t i = 0; i < info.n; i++)
        if (!isfinite(a[i])) abort();
    return 0;
}
