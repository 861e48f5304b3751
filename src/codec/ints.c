/* ints.c: lists of integers whose distribution is measured, not assumed.
 *
 * Each integer becomes a bucket and its remaining bits. There are two buckets an octave; they are rANS-coded
 * with the block's own frequencies. The remaining bits are sent as they are. So small numbers, gaps and
 * frequency-sorted ids get short codes without any parameter.
 *
 *     block (up to 65536 integers) := words u32 · bytes of bits u32 · rANS state u32 · words u16… ·
 *                                     bits (the model, then the extra bits of each integer) */
#include "codec/ints.h"
#include "codec/rans.h"
#include "base/mem.h"

#include <string.h>

enum { BLOCK = 1 << 16, HEADER = 12 };

struct work {
    struct neb__model model;
    uint16_t words[BLOCK];
    uint8_t bits[BLOCK * 4 + 128]; /* at most 30 extra bits each, and the model */
};

static neb_status encode_block(struct work *w, const uint32_t *v, size_t n, struct neb_buf *out)
{
    uint32_t counts[NEB__SYMBOLS] = {0};
    int extra;
    for (size_t i = 0; i < n; i++) counts[neb__bucket(v[i], &extra)]++;
    struct neb__bitw bits = {w->bits, w->bits + sizeof w->bits, 0, 0, false};
    neb__model_write(counts, &bits, &w->model);
    for (size_t i = 0; i < n; i++) {
        neb__bucket(v[i], &extra);
        if (extra) neb__bits_put(&bits, v[i] & ((1u << extra) - 1), extra);
    }
    neb__bits_end(&bits);
    struct neb__ransw rans = {NEB__RANS_START, w->words + BLOCK};
    for (size_t i = n; i-- > 0;) neb__rans_put(&rans, &w->model, neb__bucket(v[i], &extra));

    size_t words = (size_t)(w->words + BLOCK - rans.p), size = (size_t)(bits.p - w->bits);
    NEB_TRY(neb__buf_reserve(out, HEADER + 2 * words + size));
    uint8_t *p = out->data + out->len;
    neb__put32(p, (uint32_t)words);
    neb__put32(p + 4, (uint32_t)size);
    neb__put32(p + 8, rans.state);
    for (size_t i = 0; i < words; i++) neb__put16(p + HEADER + 2 * i, rans.p[i]);
    memcpy(p + HEADER + 2 * words, w->bits, size);
    out->len += HEADER + 2 * words + size;
    return NEB_OK;
}

neb_status neb__ints_encode(const uint32_t *v, size_t n, struct neb_buf *out)
{
    struct work *w = neb__malloc(sizeof *w);
    if (!w) return neb__fail(NEB_ERR_NOMEM, "no memory to encode integers");
    size_t start = out->len;
    neb_status status = NEB_OK;
    for (size_t at = 0; status == NEB_OK && at < n; at += BLOCK)
        status = encode_block(w, v + at, n - at < BLOCK ? n - at : BLOCK, out);
    if (status != NEB_OK) out->len = start;
    neb__free(w);
    return status;
}

static bool decode_block(struct neb_reader *r, struct neb__model *model, size_t n, uint32_t *v)
{
    size_t words = neb__read32(r), size = neb__read32(r);
    uint32_t start = neb__read32(r); /* one read a statement: a list has no fixed order */
    const uint8_t *coded = neb__read(r, 2 * words);
    struct neb__ransr rans = {start, coded, words, false};
    struct neb__bitr bits = {neb__read(r, size), size, 0, 0, false};
    if (r->bad || words > n || rans.state < NEB__RANS_START || !neb__model_read(&bits, model)) return false;
    for (size_t i = 0; i < n; i++) {
        int extra;
        v[i] = neb__bucket_base(neb__rans_get(&rans, model), &extra);
        if (extra) v[i] += neb__bits_get(&bits, extra);
    }
    return neb__rans_done(&rans) && neb__bits_done(&bits);
}

neb_status neb__ints_decode(struct neb_reader *r, size_t n, uint32_t *v)
{
    struct neb__model *model = neb__malloc(sizeof *model);
    if (!model) return neb__fail(NEB_ERR_NOMEM, "no memory to decode integers");
    bool ok = true;
    for (size_t at = 0; ok && at < n; at += BLOCK)
        ok = decode_block(r, model, n - at < BLOCK ? n - at : BLOCK, v + at);
    neb__free(model);
    return ok ? NEB_OK : neb__quiet(NEB_ERR_CORRUPT, "damaged list of integers");
}
