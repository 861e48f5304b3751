/* codec.c: the format of a code: header, cells, checks.
 *
 *     header (20 bytes) := 'N' 'C' · version u8 · rung u8 · values u32 · body bytes u32 · body bytes before
 *                          the lossless stage u32 · check value of the outside scales u32 (0 for other rungs)
 *     body              := of fixed size: the cells, each of a length that follows from its number of values
 *                          else (sparse, statistical): length of each cell u32, then the cells
 *
 * A body that is shorter than its length before the lossless stage went through that stage. Nothing else
 * marks it. Rung and n fix the length before that stage, or bound it where cells have a length; such cells went through
 * an entropy coder and never through that stage. So a header tells the most that a receiver will ever have to hold. A header that says something else
 * is refused.
 *
 * All arithmetic that must give the same bits everywhere runs in the strict floating-point mode
 * (base/fpmode.h). */
#include "codec/codec.h"
#include "codec/dense.h"
#include "codec/lossless.h"
#include "codec/sparse.h"
#include "codec/stat.h"
#include "base/bytes.h"
#include "base/fpmode.h"
#include "base/mem.h"
#include "base/rng.h"

#include <string.h>

enum { VERSION = 1, STREAM_FROM = 1 << 21 /* values: larger results are written around the caches */ };

static size_t cell_values(size_t n, size_t cell)
{
    size_t left = n - cell * NEB_CELL;
    return left < NEB_CELL ? left : NEB_CELL;
}

bool neb__rung_fixed_size(const struct neb_rung *rung)
{
    return rung->kind != NEB_RUNG_TOPK && rung->kind != NEB_RUNG_STAT;
}

static size_t cell_bound(const struct neb_rung *rung, size_t n)
{
    if (neb__rung_fixed_size(rung)) return neb__dense_size(rung, n);
    return 4 + (rung->kind == NEB_RUNG_STAT ? neb__stat_bound(n) : neb__sparse_bound(rung, n));
}

static size_t body_bound(const struct neb_rung *rung, size_t n) /* exact for a rung of fixed size */
{
    size_t whole = n / NEB_CELL, rest = n % NEB_CELL;
    return whole * cell_bound(rung, NEB_CELL) + (rest ? cell_bound(rung, rest) : 0);
}

size_t neb__codec_bound(const struct neb_rung *rung, size_t n)
{
    return NEB_CODEC_HEADER + body_bound(rung, n);
}

/* ---- outside scales ------------------------------------------------------------------------------------ */

static size_t scale_count(size_t n)
{
    return (n + NEB_CODEC_EXT_BLOCK - 1) / NEB_CODEC_EXT_BLOCK;
}

static uint32_t scales_check(const float *scales, size_t n)
{
    uint64_t h = n;
    for (size_t i = 0; i < scale_count(n); i++) {
        uint32_t b;
        memcpy(&b, &scales[i], 4);
        h = neb__mix64(h ^ b);
    }
    return (uint32_t)h | 1; /* never 0 */
}

static neb_status scales_valid(const float *scales, size_t n)
{
    if (!scales) return neb__fail(NEB_ERR_INVALID, "rung int8x needs the scales of the round");
    for (size_t i = 0; i < scale_count(n); i++)
        if (!(scales[i] == 0.0f || (scales[i] >= 0x1p-100f && scales[i] <= 0x1p118f)))
            return neb__fail(NEB_ERR_INVALID, "scale %zu is %g: must be 0 or in [2^-100, 2^118]", i,
                             (double)scales[i]);
    return NEB_OK;
}

/* ---- encoding ------------------------------------------------------------------------------------------ */

static neb_status refuse_value(const struct neb_codec_input *in)
{
    for (size_t i = 0; i < in->n; i++) {
        if (in->z[i] < 0x1p126f && in->z[i] > -0x1p126f) continue;
        return neb__fail(NEB_ERR_RANGE, "value %zu of %zu cannot be coded: %g", i, in->n, (double)in->z[i]);
    }
    return neb__fail(NEB_ERR_INTERNAL, "the kernels refused a value, but all values are in range");
}

static neb_status check_input(const struct neb_rung *rung, const struct neb_codec_input *in)
{
    if (in->n < 1 || in->n > NEB_CODEC_MAX_N)
        return neb__fail(NEB_ERR_INVALID, "a code holds 1 to %zu values, not %zu", NEB_CODEC_MAX_N, in->n);
    if (!rung->outside_scales) return NEB_OK;
    if (in->members < 1 || in->members > 127)
        return neb__fail(NEB_ERR_INVALID, "1 to 127 members can share a modular sum, not %d", in->members);
    return scales_valid(in->scales, in->n);
}

/* Memory of the encoders whose cells have a length. */
struct work {
    struct neb__sparse *sparse;
    struct neb__stat *stat;
};

static neb_status make_work(const struct neb_rung *rung, struct work *w)
{
    *w = (struct work){0};
    if (rung->kind == NEB_RUNG_TOPK && !(w->sparse = neb__sparse_create()))
        return neb__fail(NEB_ERR_NOMEM, "no memory for the sparse encoder");
    if (rung->kind == NEB_RUNG_STAT && !(w->stat = neb__stat_create()))
        return neb__fail(NEB_ERR_NOMEM, "no memory for the statistical encoder");
    return NEB_OK;
}

static bool encode_variable(const struct neb_rung *rung, const struct work *w, struct neb__pass *p,
                            uint8_t *out, size_t *size)
{
    if (w->stat) return neb__stat_encode(w->stat, rung, p, out, size);
    return neb__sparse_encode(w->sparse, rung, p, out, size);
}

/* Writes the cells from `body` on; *len: bytes written. False: a value is not allowed. */
static bool encode_cells(const struct neb_rung *rung, const struct neb_codec_input *in,
                         const struct work *work, float *next, struct neb_codec_stats *stats, uint8_t *body,
                         size_t *len)
{
    const bool fixed = neb__rung_fixed_size(rung);
    size_t cells = neb__codec_cells(in->n), at = fixed ? 0 : 4 * cells;
    struct neb__pass p = {.stream = next && (uintptr_t)next % 64 == 0};
    for (size_t c = 0; c < cells; c++) {
        size_t start = c * NEB_CELL, size = 0;
        p.n = cell_values(in->n, c);
        p.z = in->z + start;
        p.next = next ? next + start : NULL;
        if (in->hooks) p.next = in->hooks->next;
        const float *scales = in->scales ? in->scales + start / NEB_CODEC_EXT_BLOCK : NULL;
        if (!fixed) {
            if (!encode_variable(rung, work, &p, body + at, &size)) return false;
            neb__put32(body + 4 * c, (uint32_t)size);
        } else {
            int limit = rung->outside_scales ? 127 / in->members : 0;
            if (!neb__dense_encode(rung, &p, scales, limit, body + at)) return false;
            size = neb__dense_size(rung, p.n);
        }
        at += size;
        if (in->hooks) in->hooks->after(in->hooks->arg, start, p.n);
    }
    *stats = (struct neb_codec_stats){p.sq[0], p.sq[1]};
    *len = at;
    return true;
}

neb_status neb__codec_encode(const struct neb_rung *rung, const struct neb_codec_input *in, float *next,
                             struct neb_codec_stats *stats, struct neb_buf *out)
{
    struct neb_codec_stats local;
    struct work work;
    size_t len = 0;
    NEB_TRY(check_input(rung, in));
    NEB_TRY(neb__buf_reserve(out, neb__codec_bound(rung, in->n)));
    NEB_TRY(make_work(rung, &work));
    uint8_t *header = out->data + out->len;
    struct neb_fpmode mode = neb__fp_strict();
    bool ok = encode_cells(rung, in, &work, next, &local, header + NEB_CODEC_HEADER, &len);
    neb__fp_restore(mode);
    neb__sparse_free(work.sparse);
    neb__stat_free(work.stat);
    if (!ok) return refuse_value(in);

    header[0] = 'N', header[1] = 'C', header[2] = VERSION, header[3] = rung->id;
    neb__put32(header + 4, (uint32_t)in->n);
    neb__put32(header + 8, (uint32_t)len);
    neb__put32(header + 12, (uint32_t)len);
    neb__put32(header + 16, rung->outside_scales ? scales_check(in->scales, in->n) : 0);
    out->len += NEB_CODEC_HEADER + len;
    if (stats) *stats = local;
    return NEB_OK;
}

/* ---- decoding ------------------------------------------------------------------------------------------ */

neb_status neb__codec_peek(const uint8_t *bytes, size_t len, struct neb_codec_info *info)
{
    if (len < NEB_CODEC_HEADER || bytes[0] != 'N' || bytes[1] != 'C')
        return neb__quiet(NEB_ERR_CORRUPT, "not a code: the codec's header is missing");
    if (bytes[2] != VERSION)
        return neb__quiet(NEB_ERR_VERSION, "code of version %d, this program reads %d", bytes[2], VERSION);
    struct neb_codec_info i = {.rung = neb__rung_by_id(bytes[3]),
                               .n = neb__get32(bytes + 4),
                               .body = neb__get32(bytes + 8),
                               .raw = neb__get32(bytes + 12),
                               .scales = neb__get32(bytes + 16)};
    if (!i.rung) return neb__quiet(NEB_ERR_CORRUPT, "code of an unknown rung %d", bytes[3]);
    if (i.n < 1 || i.n > NEB_CODEC_MAX_N || i.body != len - NEB_CODEC_HEADER || i.body > i.raw)
        return neb__quiet(NEB_ERR_CORRUPT, "code with impossible lengths");
    size_t bound = body_bound(i.rung, i.n);
    if (neb__rung_fixed_size(i.rung) ? i.raw != bound : i.raw > bound || i.body != i.raw)
        return neb__quiet(NEB_ERR_CORRUPT, "code of rung %s: a body of %zu bytes cannot hold %zu values",
                          i.rung->name, i.raw, i.n);
    if (i.rung->outside_scales != (i.scales != 0))
        return neb__quiet(NEB_ERR_CORRUPT, "code of rung %s with a wrong check value of the scales",
                          i.rung->name);
    *info = i;
    return NEB_OK;
}

static neb_status check_cells(const struct neb_codec_view *v) /* the table of lengths */
{
    size_t cells = neb__codec_cells(v->info.n);
    uint64_t sum = 4 * (uint64_t)cells;
    if (v->info.raw < sum) return neb__quiet(NEB_ERR_CORRUPT, "the code ends inside its table of cells");
    for (size_t c = 0; c < cells; c++) sum += neb__get32(v->body + 4 * c);
    if (sum != v->info.raw)
        return neb__quiet(NEB_ERR_CORRUPT, "the code's cells do not add up to its length");
    return NEB_OK;
}

neb_status neb__codec_open(const uint8_t *bytes, size_t len, const float *scales, size_t n,
                           struct neb_codec_view *view)
{
    struct neb_codec_view v = {.scales = scales};
    NEB_TRY(neb__codec_peek(bytes, len, &v.info));
    if (v.info.n != n)
        return neb__quiet(NEB_ERR_CORRUPT, "code of %zu values where %zu are expected", v.info.n, n);
    if (v.info.rung->outside_scales) {
        NEB_TRY(scales_valid(scales, n));
        if (scales_check(scales, n) != v.info.scales)
            return neb__quiet(NEB_ERR_INVALID, "the code was made with other scales than this round's");
    }
    v.body = bytes + NEB_CODEC_HEADER;
    if (v.info.body != v.info.raw) {
        v.owned = neb__malloc(v.info.raw);
        if (!v.owned) return neb__fail(NEB_ERR_NOMEM, "no memory to unpack a code (%zu bytes)", v.info.raw);
        neb_status status = neb__lossless_unpack(v.body, v.info.body, v.info.raw, v.owned);
        if (status != NEB_OK) {
            neb__free(v.owned);
            return status;
        }
        v.body = v.owned;
    }
    if (!neb__rung_fixed_size(v.info.rung))
        NEB_TRY(check_cells(&v)); /* no close: such a code is never packed */
    *view = v;
    return NEB_OK;
}

void neb__codec_close(struct neb_codec_view *view)
{
    neb__free(view->owned);
    view->owned = NULL;
}

static bool decode_cell(const struct neb_codec_view *v, size_t cell, bool stream, float *out)
{
    const struct neb_rung *rung = v->info.rung;
    size_t n = cell_values(v->info.n, cell);
    if (neb__rung_fixed_size(rung)) {
        const float *scales = v->scales ? v->scales + cell * (NEB_CELL / NEB_CODEC_EXT_BLOCK) : NULL;
        return neb__dense_decode(rung, v->body + cell * neb__dense_size(rung, NEB_CELL), scales, n, stream,
                                 out);
    }
    size_t at = 4 * neb__codec_cells(v->info.n);
    for (size_t c = 0; c < cell; c++) at += neb__get32(v->body + 4 * c);
    const size_t len = neb__get32(v->body + 4 * cell);
    if (rung->kind == NEB_RUNG_STAT) return neb__stat_decode(v->body + at, len, n, out);
    return neb__sparse_decode(rung, v->body + at, len, n, out);
}

neb_status neb__codec_cell(const struct neb_codec_view *view, size_t cell, float *out)
{
    if (cell >= neb__codec_cells(view->info.n))
        return neb__fail(NEB_ERR_INVALID, "cell %zu of a code with %zu cells", cell,
                         neb__codec_cells(view->info.n));
    struct neb_fpmode mode = neb__fp_strict();
    bool ok = decode_cell(view, cell, false, out);
    neb__fp_restore(mode);
    return ok ? NEB_OK : neb__quiet(NEB_ERR_CORRUPT, "the code is damaged in cell %zu", cell);
}

neb_status neb__codec_decode(const uint8_t *bytes, size_t len, const float *scales, size_t n, float *out)
{
    struct neb_codec_view v;
    NEB_TRY(neb__codec_open(bytes, len, scales, n, &v));
    bool stream = n >= STREAM_FROM && (uintptr_t)out % 64 == 0, ok = true;
    size_t cells = neb__codec_cells(n), c = 0;
    struct neb_fpmode mode = neb__fp_strict();
    for (; ok && c < cells; c++) ok = decode_cell(&v, c, stream, out + c * NEB_CELL);
    neb__fp_restore(mode);
    neb__codec_close(&v);
    return ok ? NEB_OK : neb__quiet(NEB_ERR_CORRUPT, "the code is damaged in cell %zu", c - 1);
}

neb_status neb__codec_modular_add(uint8_t *sum, size_t sum_len, const uint8_t *bytes, size_t len)
{
    struct neb_codec_info a = {0}, b = {0};
    NEB_TRY(neb__codec_peek(sum, sum_len, &a));
    NEB_TRY(neb__codec_peek(bytes, len, &b));
    if (!a.rung->outside_scales || b.rung != a.rung || a.n != b.n || a.scales != b.scales ||
        a.body != a.raw || b.body != b.raw)
        return neb__fail(NEB_ERR_INVALID, "only codes of rung int8x with the same scales can be added");
    for (size_t i = 0; i < a.n; i++)
        sum[NEB_CODEC_HEADER + i] = (uint8_t)(sum[NEB_CODEC_HEADER + i] + bytes[NEB_CODEC_HEADER + i]);
    return NEB_OK;
}
