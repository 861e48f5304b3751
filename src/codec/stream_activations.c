/* stream_activations.c: what crosses a cut between the layers of a model: hidden states, and their gradients.
 *
 *     body := 32 bits   the values as float · 16 bits   the values as bfloat16
 *             8 bits    for each tile of a row a bfloat16 scale · the codes of all tiles
 *             4 bits    the mean of each column as bfloat16, then the same of what the rows differ from it; a tile is
 *                       rotated before it is coded
 *
 * A tile has 128 values of one row. The last one of a row has what is left, filled with zeros to a multiple of 16 (8 bits) or
 * to 32, 64 or 128 values (4 bits). A few columns of hidden states are many
 * times as large as the others. With 8 bits they spoil their own tile alone. Four bits cannot afford that: a Walsh-Hadamard
 * transform spreads every value over its tile, which makes it nearly normally distributed, and the scale is the one of
 * least squared error. The transform is its own inverse, and an error keeps its length under it.
 *
 * Nothing is fed back: a sample does not come again, so there is nothing to correct later. Values that are not finite
 * cross with 32 and 16 bits alone; with fewer the encoder refuses them. */
#include "codec/stream.h"
#include "codec/kernels.h"
#include "base/bf16.h"
#include "base/fpmode.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

enum { TILE = 128 };
static const float rotations[] = {0.17677669529663687f, 0.125f,
                                  0.08838834764831845f}; /* 1 / sqrt(32, 64, 128) */

static size_t tiles_of(uint32_t width)
{
    return ((size_t)width + TILE - 1) / TILE;
}

/* Values of tile t of a row; and with what fills it up. */
static size_t tile_values(uint32_t width, size_t t)
{
    return t * TILE + TILE <= width ? TILE : width - t * TILE;
}

static size_t tile_room(size_t values, int bits)
{
    size_t room = 32;
    if (bits == 8) return (values + 15) / 16 * 16;
    while (room < values) room *= 2;
    return room;
}

static bool coded(int bits)
{
    return bits < 16;
}

static size_t row_bytes(uint32_t width, int bits)
{
    size_t n = 0;
    if (!coded(bits)) return width * (size_t)bits / 8;
    for (size_t t = 0; t < tiles_of(width); t++)
        n += 2 + tile_room(tile_values(width, t), bits) * (size_t)bits / 8;
    return n;
}

size_t neb__activations_size(size_t rows, uint32_t width, int bits)
{
    return NEB_STREAM_HEADER + (bits == 4 ? 2 * (size_t)width : 0) + rows * row_bytes(width, bits);
}

/* In place, orthonormal. n: 32, 64 or 128 */
static void rotate(float *x, size_t n)
{
    const float scale = rotations[n / 64];
    for (size_t half = 1; half < n; half *= 2)
        for (size_t at = 0; at < n; at += 2 * half)
            for (size_t i = at; i < at + half; i++) {
                float a = x[i], b = x[i + half];
                x[i] = a + b;
                x[i + half] = a - b;
            }
    for (size_t i = 0; i < n; i++) x[i] *= scale;
}

/* ---- as they are ------------------------------------------------------------------------------------------ */

static void copy_out(const float *x, size_t n, int bits, uint8_t *to)
{
    if (bits == 32) memcpy(to, x, n * sizeof *x);
    for (size_t i = 0; bits == 16 && i < n; i++) {
        uint16_t h = neb__bf16(x[i]);
        memcpy(to + 2 * i, &h, sizeof h);
    }
}

static void copy_in(const uint8_t *from, size_t n, int bits, float *x)
{
    if (bits == 32) memcpy(x, from, n * sizeof *x);
    for (size_t i = 0; bits == 16 && i < n; i++) {
        uint16_t h;
        memcpy(&h, from + 2 * i, sizeof h);
        x[i] = neb__bf16_value(h);
    }
}

/* ---- in tiles --------------------------------------------------------------------------------------------- */

static bool encode_tile(const float *x, const float *mean, size_t n, size_t room, int bits, uint8_t *scale,
                        uint8_t *codes)
{
    _Alignas(64) float tile[TILE] = {0};
    const struct neb__codec_kernels *k = neb__codec_kernels();
    memcpy(tile, x, n * sizeof *x);
    for (size_t i = 0; mean && i < n; i++) tile[i] -= mean[i];
    if (bits != 8) rotate(tile, room);
    if (bits == 8 || room < TILE) return k->encode_row(tile, room, bits, scale, codes);
    struct neb__pass p = {.z = tile, .n = TILE};
    return k->encode_int(&p, bits, true, scale, codes);
}

static bool decode_tile(const uint8_t *scale, const uint8_t *codes, const float *mean, size_t n, size_t room,
                        int bits, float *x)
{
    _Alignas(64) float tile[TILE];
    if (!neb__codec_kernels()->decode_row(scale, codes, room, bits, tile)) return false;
    if (bits != 8) rotate(tile, room);
    for (size_t i = 0; mean && i < n; i++) tile[i] += mean[i];
    memcpy(x, tile, n * sizeof *x);
    return true;
}

/* A part of a hidden state is the same in all rows. It would take bits from what tells them apart. */
static bool take_means(const float *x, size_t rows, uint32_t width, float *mean, uint8_t *to)
{
    for (uint32_t c = 0; c < width; c++) {
        double sum = 0;
        for (size_t r = 0; r < rows; r++) sum += (double)x[r * width + c];
        uint16_t h = neb__bf16((float)(rows ? sum / (double)rows : 0));
        mean[c] = neb__bf16_value(h);
        if (!isfinite(mean[c])) return false;
        memcpy(to + 2 * (size_t)c, &h, sizeof h);
    }
    return true;
}

static bool read_means(const uint8_t *from, uint32_t width, float *mean)
{
    for (uint32_t c = 0; c < width; c++) {
        uint16_t h;
        memcpy(&h, from + 2 * (size_t)c, sizeof h);
        mean[c] = neb__bf16_value(h);
        if (!isfinite(mean[c])) return false;
    }
    return true;
}

static bool encode_tiles(const float *x, const float *mean, size_t rows, uint32_t width, int bits,
                         uint8_t *body)
{
    const size_t tiles = tiles_of(width);
    uint8_t *scale = body, *code = body + 2 * rows * tiles;
    for (size_t r = 0; r < rows; r++)
        for (size_t t = 0; t < tiles; t++, scale += 2) {
            size_t n = tile_values(width, t), room = tile_room(n, bits);
            if (!encode_tile(x + r * width + t * TILE, mean ? mean + t * TILE : NULL, n, room, bits, scale,
                             code))
                return false;
            code += room * (size_t)bits / 8;
        }
    return true;
}

static bool decode_tiles(const uint8_t *body, const float *mean, size_t rows, uint32_t width, int bits,
                         float *x)
{
    const size_t tiles = tiles_of(width);
    const uint8_t *scale = body, *code = body + 2 * rows * tiles;
    for (size_t r = 0; r < rows; r++)
        for (size_t t = 0; t < tiles; t++, scale += 2) {
            size_t n = tile_values(width, t), room = tile_room(n, bits);
            if (!decode_tile(scale, code, mean ? mean + t * TILE : NULL, n, room, bits,
                             x + r * width + t * TILE))
                return false;
            code += room * (size_t)bits / 8;
        }
    return true;
}

/* ---- frames ----------------------------------------------------------------------------------------------- */

neb_status neb__activations_encode(const float *x, size_t rows, uint32_t width, int bits, struct neb_buf *out)
{
    struct neb_stream_info info = {
        .kind = NEB_STREAM_ACTIVATIONS, .rows = rows, .columns = width, .bits = bits};
    size_t start, body = neb__activations_size(rows, width, bits) - NEB_STREAM_HEADER;
    NEB_TRY(neb__stream_begin(out, &info, &start));
    neb_status status = neb__buf_reserve(out, body ? body : 1);
    if (status == NEB_OK && !coded(bits)) copy_out(x, rows * width, bits, out->data + out->len);
    float *mean = bits == 4 ? neb__malloc(width * sizeof *mean) : NULL;
    if (status == NEB_OK && bits == 4 && !mean)
        status = neb__fail(NEB_ERR_NOMEM, "no memory for a row of %u", width);
    if (status == NEB_OK && coded(bits)) {
        struct neb_fpmode mode = neb__fp_strict();
        uint8_t *to = out->data + out->len;
        bool ok = !mean || take_means(x, rows, width, mean, to);
        ok = ok && encode_tiles(x, mean, rows, width, bits, to + (mean ? 2 * (size_t)width : 0));
        neb__fp_restore(mode);
        if (!ok) status = neb__quiet(NEB_ERR_RANGE, "a hidden state or a gradient is not finite");
    }
    neb__free(mean);
    if (status != NEB_OK) {
        out->len = start;
        return status;
    }
    out->len += body;
    neb__stream_end(out, start);
    return NEB_OK;
}

neb_status neb__activations_decode(const uint8_t *bytes, size_t len, size_t rows, uint32_t width, float *x)
{
    struct neb_stream_info info = {0};
    NEB_TRY(neb__stream_expect(bytes, len, NEB_STREAM_ACTIVATIONS, rows, width, 0, &info));
    if (len != neb__activations_size(rows, width, info.bits))
        return neb__quiet(NEB_ERR_CORRUPT, "activations of a wrong size");
    const uint8_t *body = bytes + NEB_STREAM_HEADER;
    if (!coded(info.bits)) {
        copy_in(body, rows * width, info.bits, x);
        return NEB_OK;
    }
    float *mean = info.bits == 4 ? neb__malloc(width * sizeof *mean) : NULL;
    if (info.bits == 4 && !mean) return neb__fail(NEB_ERR_NOMEM, "no memory for a row of %u", width);
    struct neb_fpmode mode = neb__fp_strict();
    bool ok = !mean || read_means(body, width, mean);
    ok = ok && decode_tiles(body + (mean ? 2 * (size_t)width : 0), mean, rows, width, info.bits, x);
    neb__fp_restore(mode);
    neb__free(mean);
    return ok ? NEB_OK : neb__quiet(NEB_ERR_CORRUPT, "activations with an impossible scale");
}
