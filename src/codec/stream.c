/* stream.c: the header of a stream frame.
 *
 *     header (20 bytes) := 'N' 'S' · version u8 · kind u8 · rows u32 · columns u32 · k u16 · bits u8 · 0 ·
 *                          body bytes u32
 *
 * In a frame of tokens, bits is the width of an id, or 0 for entropy-coded ids. */
#include "codec/stream.h"
#include "base/bytes.h"

#include <string.h>

enum { VERSION = 1 };

/* Bytes that all outputs take together; SIZE_MAX: a limit is broken. */
static size_t decoded_size(const struct neb_stream_info *i)
{
    if (i->rows > NEB_STREAM_MAX || !i->columns || i->columns > (1u << 30)) return SIZE_MAX;
    size_t size = SIZE_MAX;
    switch (i->kind) {
    case NEB_STREAM_TOKENS:
        if (!i->k && i->bits >= 0 && i->bits <= 30) size = i->rows * 4;
        break;
    case NEB_STREAM_LOGITS:
        if (i->k >= 1 && i->k <= 256 && (uint32_t)i->k <= i->columns && (i->bits == 8 || i->bits == 4))
            size = i->rows * (size_t)i->k * 8;
        break;
    case NEB_STREAM_HIDDEN:
        if (!i->k && i->columns <= (1u << 20) && (i->bits == 8 || i->bits == 4 || i->bits == 2))
            size = i->rows * i->columns * 4;
        break;
    case NEB_STREAM_ACTIVATIONS:
        if (!i->k && i->columns <= (1u << 20) &&
            (i->bits == 32 || i->bits == 16 || i->bits == 8 || i->bits == 4))
            size = i->rows * i->columns * 4;
        break;
    }
    return size <= NEB_STREAM_MAX ? size : SIZE_MAX;
}

neb_status neb__stream_peek(const uint8_t *bytes, size_t len, struct neb_stream_info *info)
{
    if (len < NEB_STREAM_HEADER || bytes[0] != 'N' || bytes[1] != 'S')
        return neb__quiet(NEB_ERR_CORRUPT, "not a stream frame");
    if (bytes[2] != VERSION)
        return neb__quiet(NEB_ERR_VERSION, "stream frame of version %d, this program reads %d", bytes[2],
                          VERSION);
    struct neb_stream_info i = {.rows = neb__get32(bytes + 4),
                                .columns = neb__get32(bytes + 8),
                                .k = neb__get16(bytes + 12),
                                .bits = bytes[14]};
    if (bytes[3] < NEB_STREAM_TOKENS || bytes[3] > NEB_STREAM_ACTIVATIONS || bytes[15])
        return neb__quiet(NEB_ERR_CORRUPT, "stream frame of unknown kind %d", bytes[3]);
    i.kind = (enum neb_stream_kind)bytes[3];
    i.decoded = decoded_size(&i);
    if (i.decoded == SIZE_MAX || neb__get32(bytes + 16) != len - NEB_STREAM_HEADER)
        return neb__quiet(NEB_ERR_CORRUPT, "stream frame with impossible sizes");
    *info = i;
    return NEB_OK;
}

neb_status neb__stream_expect(const uint8_t *bytes, size_t len, enum neb_stream_kind kind, size_t rows,
                              uint32_t columns, int k, struct neb_stream_info *info)
{
    struct neb_stream_info i = {0};
    NEB_TRY(neb__stream_peek(bytes, len, &i));
    if (i.kind != kind || i.rows != rows || i.columns != columns || i.k != k)
        return neb__quiet(NEB_ERR_CORRUPT,
                          "stream frame of %zu rows, %u columns, k %d where %zu, %u, %d are expected", i.rows,
                          i.columns, i.k, rows, columns, k);
    *info = i;
    return NEB_OK;
}

neb_status neb__stream_begin(struct neb_buf *out, const struct neb_stream_info *info, size_t *start)
{
    if (decoded_size(info) == SIZE_MAX)
        return neb__fail(NEB_ERR_INVALID, "a stream frame cannot hold %zu rows of %u columns (k %d, %d bits)",
                         info->rows, info->columns, info->k, info->bits);
    uint8_t h[NEB_STREAM_HEADER] = {'N', 'S', VERSION, (uint8_t)info->kind};
    neb__put32(h + 4, (uint32_t)info->rows);
    neb__put32(h + 8, info->columns);
    neb__put16(h + 12, (uint16_t)info->k);
    h[14] = (uint8_t)info->bits;
    size_t at = out->len;
    NEB_TRY(neb__buf_append(out, h, sizeof h));
    *start = at;
    return NEB_OK;
}

void neb__stream_end(struct neb_buf *out, size_t start)
{
    neb__put32(out->data + start + 16, (uint32_t)(out->len - start - NEB_STREAM_HEADER));
}
