/* stream_hidden.c: hidden states with one scale a token. The activations of one token share a magnitude,
 * columns do not.
 *
 *     body := for each row a bfloat16 scale · for each row its codes, packed as in kernels_body.h, the last
 *             group filled with zeros */
#include "codec/stream.h"
#include "codec/kernels.h"
#include "base/bytes.h"
#include "base/fpmode.h"
#include "base/mem.h"

#include <string.h>

static size_t group(int bits) /* values packed together */
{
    return 128 / (size_t)bits;
}

static size_t padded(uint32_t width, int bits)
{
    return (width + group(bits) - 1) / group(bits) * group(bits);
}

neb_status neb__hidden_encode(const float *x, size_t rows, uint32_t width, int bits, struct neb_buf *out)
{
    struct neb_stream_info info = {.kind = NEB_STREAM_HIDDEN, .rows = rows, .columns = width, .bits = bits};
    size_t start;
    NEB_TRY(neb__stream_begin(out, &info, &start));
    size_t wide = padded(width, bits), row_bytes = wide * (size_t)bits / 8, body = rows * (2 + row_bytes),
           r = 0;
    float *row = neb__aligned(wide * sizeof *row);
    neb_status status =
        row ? neb__buf_reserve(out, body) : neb__fail(NEB_ERR_NOMEM, "no memory for a row of %u", width);
    if (status == NEB_OK) {
        const struct neb__codec_kernels *k = neb__codec_kernels();
        uint8_t *scales = out->data + out->len, *codes = scales + 2 * rows;
        struct neb_fpmode mode = neb__fp_strict();
        memset(row, 0, wide * sizeof *row);
        for (; r < rows; r++) {
            memcpy(row, x + r * width, width * sizeof *row);
            if (!k->encode_row(row, wide, bits, scales + 2 * r, codes + r * row_bytes)) break;
        }
        neb__fp_restore(mode);
        if (r < rows)
            status = neb__fail(NEB_ERR_RANGE, "hidden state %zu has a value that cannot be coded", r);
    }
    neb__free(row);
    if (status != NEB_OK) {
        out->len = start;
        return status;
    }
    out->len += body;
    neb__stream_end(out, start);
    return NEB_OK;
}

neb_status neb__hidden_decode(const uint8_t *bytes, size_t len, size_t rows, uint32_t width, float *x)
{
    struct neb_stream_info info = {0};
    NEB_TRY(neb__stream_expect(bytes, len, NEB_STREAM_HIDDEN, rows, width, 0, &info));
    size_t wide = padded(width, info.bits), row_bytes = wide * (size_t)info.bits / 8;
    if (len - NEB_STREAM_HEADER != rows * (2 + row_bytes))
        return neb__quiet(NEB_ERR_CORRUPT, "hidden states of a wrong size");
    float *row = neb__aligned(wide * sizeof *row);
    if (!row) return neb__fail(NEB_ERR_NOMEM, "no memory for a row of %u", width);
    const uint8_t *scales = bytes + NEB_STREAM_HEADER, *codes = scales + 2 * rows;
    struct neb_fpmode mode = neb__fp_strict();
    bool ok = true;
    for (size_t r = 0; ok && r < rows; r++) {
        ok = neb__codec_kernels()->decode_row(scales + 2 * r, codes + r * row_bytes, wide, info.bits, row);
        if (ok) memcpy(x + r * width, row, width * sizeof *row);
    }
    neb__fp_restore(mode);
    neb__free(row);
    return ok ? NEB_OK : neb__quiet(NEB_ERR_CORRUPT, "hidden states with an impossible scale");
}
