/* stream_tokens.c: token ids, either all in ceil(log2 vocabulary) bits or entropy-coded (ints.c).
 * Vocabularies list frequent pieces first, so ids of real text have small numbers. The shorter of the two is
 * sent. */
#include "codec/stream.h"
#include "codec/bits.h"
#include "codec/ints.h"
#include "base/bytes.h"

static int width_of(uint32_t vocabulary)
{
    return vocabulary < 2 ? 1 : 32 - __builtin_clz(vocabulary - 1);
}

static neb_status encode_fixed(const int32_t *ids, size_t n, uint32_t vocabulary, struct neb_buf *out)
{
    int width = width_of(vocabulary);
    size_t size = (n * (size_t)width + 7) / 8, start;
    struct neb_stream_info info = {
        .kind = NEB_STREAM_TOKENS, .rows = n, .columns = vocabulary, .bits = width};
    NEB_TRY(neb__stream_begin(out, &info, &start));
    neb_status status = neb__buf_reserve(out, size);
    if (status != NEB_OK) {
        out->len = start;
        return status;
    }
    struct neb__bitw w = {out->data + out->len, out->data + out->len + size, 0, 0, false};
    for (size_t i = 0; i < n; i++) neb__bits_put(&w, (uint32_t)ids[i], width);
    neb__bits_end(&w);
    out->len += size;
    neb__stream_end(out, start);
    return NEB_OK;
}

neb_status neb__tokens_encode(const int32_t *ids, size_t n, uint32_t vocabulary, struct neb_buf *out)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= vocabulary)
            return neb__fail(NEB_ERR_INVALID, "token %zu is %d: not in a vocabulary of %u", i, ids[i],
                             vocabulary);
    struct neb_stream_info info = {.kind = NEB_STREAM_TOKENS, .rows = n, .columns = vocabulary};
    size_t start, fixed = (n * (size_t)width_of(vocabulary) + 7) / 8;
    NEB_TRY(neb__stream_begin(out, &info, &start));
    neb_status status = neb__ints_encode((const uint32_t *)ids, n, out);
    if (status == NEB_OK && out->len - start - NEB_STREAM_HEADER < fixed) {
        neb__stream_end(out, start);
        return NEB_OK;
    }
    out->len = start;
    if (status != NEB_OK && status != NEB_ERR_NOSPACE) return status; /* the fixed width may still fit */
    return encode_fixed(ids, n, vocabulary, out);
}

neb_status neb__tokens_decode(const uint8_t *bytes, size_t len, uint32_t vocabulary, size_t n, int32_t *ids)
{
    struct neb_stream_info info = {0};
    NEB_TRY(neb__stream_expect(bytes, len, NEB_STREAM_TOKENS, n, vocabulary, 0, &info));
    struct neb_reader r = {bytes + NEB_STREAM_HEADER, len - NEB_STREAM_HEADER, false};
    if (info.bits == 0) {
        NEB_TRY(neb__ints_decode(&r, n, (uint32_t *)ids));
        if (r.left) return neb__quiet(NEB_ERR_CORRUPT, "bytes behind the last token");
    } else {
        struct neb__bitr b = {r.p, r.left, 0, 0, false};
        if (r.left != (n * (size_t)info.bits + 7) / 8)
            return neb__quiet(NEB_ERR_CORRUPT, "tokens of a wrong size");
        for (size_t i = 0; i < n; i++) ids[i] = (int32_t)neb__bits_get(&b, info.bits);
        if (!neb__bits_done(&b)) return neb__quiet(NEB_ERR_CORRUPT, "bits behind the last token");
    }
    for (size_t i = 0; i < n; i++)
        if ((uint32_t)ids[i] >= vocabulary)
            return neb__quiet(NEB_ERR_CORRUPT, "token %zu is not in the vocabulary", i);
    return NEB_OK;
}
