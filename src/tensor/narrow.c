/* narrow.c: coding frozen weights in 16, 8 or 4 bits, and where they lie (narrow.h).
 *
 * INT8 has a scale a row: the largest magnitude divided by 127, rounded to 16 significant bits. Then a code times
 * its scale is exact, the largest code is 127 again, and coding a second time changes nothing. NF4 has a scale for
 * each 64 values: the largest magnitude as BF16; its value is level -1 or 1, which gives the scale back. The codes
 * come from divisions and comparisons alone, which IEEE 754 fixes to the bit. */
#include "tensor/narrow.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/status.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum {
    ALIGN = 256,
    TASK_ROWS = 64,
    MANY = 1 << 22 /* values from which on threads are worth their start */
};

static const float levels[16] = NEB_NF4_LEVELS;
static const float smallest = 0x1p-100f; /* rows below it are zeros: their scales would lose bits */

/* ---- arithmetic -------------------------------------------------------------------------------------------- */

static float from_half(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* x is finite; rounds to nearest even. */
static uint16_t to_half(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* The largest magnitude; not finite if one of the values is not. */
static float largest(const float *x, int64_t n)
{
    float most = 0, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        const float a = fabsf(x[i]);
        most = a > most ? a : most;
        sum += x[i] - x[i]; /* NaN for NaN and infinity */
    }
    return isfinite(sum) ? most : INFINITY;
}

static float int8_scale(float most)
{
    const float exact = most / 127.0f;
    uint32_t bits;
    memcpy(&bits, &exact, sizeof bits);
    bits = (bits + 0x80) & ~UINT32_C(0xff);
    float x;
    memcpy(&x, &bits, sizeof x);
    return most < smallest ? 0 : x;
}

static void encode_int8(const float *x, int64_t n, float scale, int8_t *out)
{
    if (!(scale > 0)) {
        memset(out, 0, (size_t)n);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        float q = x[i] / scale;
        q = q + (q < 0 ? -0.5f : 0.5f);
        out[i] = (int8_t)(int)q;
    }
}

/* The nearest level of x from -1 to 1: as many as the middles between neighbours that lie below x. */
static uint8_t nearest_level(float x)
{
    int q = 0;
    for (int i = 0; i < 15; i++) q += x > 0.5f * (levels[i] + levels[i + 1]);
    return (uint8_t)q;
}

/* n <= NEB_NF4_BLOCK values. */
static void encode_block(const float *x, int64_t n, float scale, uint8_t *out)
{
    memset(out, 0, NEB_NF4_BLOCK / 2);
    for (int64_t i = 0; i < n; i++) {
        const uint8_t q = scale > 0 ? nearest_level(x[i] / scale) : 7;
        out[i % 32] |= (uint8_t)(q << (i < 32 ? 0 : 4));
    }
}

static neb_status not_finite(void)
{
    return neb__fail(NEB_ERR_RANGE, "a frozen weight has a value that is not finite, or too large to code");
}

static neb_status encode_row(neb_narrow_kind kind, const float *x, int64_t cols, uint8_t *code,
                             uint8_t *scale)
{
    const int64_t width = kind == NEB_NARROW_NF4 ? NEB_NF4_BLOCK : cols;
    for (int64_t at = 0; at < cols; at += width) {
        const int64_t n = cols - at < width ? cols - at : width, block = at / NEB_NF4_BLOCK;
        const float most = largest(x + at, n), step = int8_scale(most);
        const uint16_t half = most < smallest ? 0 : to_half(most < INFINITY ? most : 0);
        if (!isfinite(most) || !isfinite(from_half(half))) return NEB_ERR_RANGE;
        if (kind == NEB_NARROW_INT8) {
            memcpy(scale, &step, sizeof step);
            encode_int8(x, cols, step, (int8_t *)code);
        } else if (kind == NEB_NARROW_NF4) {
            memcpy(scale + (size_t)block * sizeof half, &half, sizeof half);
            encode_block(x + at, n, from_half(half), code + (size_t)block * (NEB_NF4_BLOCK / 2));
        } else {
            for (int64_t i = 0; i < cols; i++) {
                const uint16_t h = to_half(x[i]);
                memcpy(code + (size_t)i * sizeof h, &h, sizeof h);
            }
        }
    }
    return NEB_OK;
}

static neb_status encode_rows(neb_narrow_kind kind, int64_t rows, int64_t cols, const float *values,
                              void *code, void *scale)
{
    const size_t c = neb__narrow_code_bytes(kind, 1, cols), s = neb__narrow_scale_bytes(kind, 1, cols);
    for (int64_t r = 0; r < rows; r++)
        NEB_TRY(encode_row(kind, values + r * cols, cols, (uint8_t *)code + (size_t)r * c,
                           (uint8_t *)scale + (size_t)r * s));
    return NEB_OK;
}

/* Rows are independent of each other, so threads may share them. */
struct encoding {
    neb_narrow_kind kind;
    int64_t rows, cols;
    const float *values;
    uint8_t *code, *scale;
    atomic_bool failed;
};

static void encode_task(void *arg, int task, int worker)
{
    struct encoding *e = arg;
    const int64_t first = (int64_t)task * TASK_ROWS, left = e->rows - first;
    const size_t c = neb__narrow_code_bytes(e->kind, 1, e->cols),
                 s = neb__narrow_scale_bytes(e->kind, 1, e->cols);
    (void)worker;
    const neb_status status =
        encode_rows(e->kind, left < TASK_ROWS ? left : TASK_ROWS, e->cols, e->values + first * e->cols,
                    e->code + (size_t)first * c, e->scale + (size_t)first * s);
    if (status != NEB_OK) atomic_store(&e->failed, true);
}

neb_status neb__narrow_encode(neb_narrow_kind kind, int64_t rows, int64_t cols, const float *values,
                              void *code, void *scale)
{
    struct neb_pool *pool;
    struct encoding e = {kind, rows, cols, values, code, scale, false};
    if (rows * cols < MANY) {
        const neb_status status = encode_rows(kind, rows, cols, values, code, scale);
        return status == NEB_OK ? NEB_OK : not_finite();
    }
    NEB_TRY(neb__pool_create(0, &pool));
    neb__pool_run(pool, encode_task, &e, (int)((rows + TASK_ROWS - 1) / TASK_ROWS));
    neb__pool_destroy(pool);
    /* one message, however many threads have seen it */
    return atomic_load(&e.failed) ? not_finite() : NEB_OK;
}

static void decode_row(neb_narrow_kind kind, int64_t cols, const uint8_t *code, const uint8_t *scale,
                       float *out)
{
    float step = 0;
    uint16_t half;
    if (kind == NEB_NARROW_INT8) memcpy(&step, scale, sizeof step);
    for (int64_t i = 0; i < cols; i++) {
        if (kind == NEB_NARROW_INT8) {
            out[i] = (float)(int8_t)code[i] * step;
        } else if (kind == NEB_NARROW_NF4) {
            const int64_t block = i / NEB_NF4_BLOCK, at = i % NEB_NF4_BLOCK;
            memcpy(&half, scale + (size_t)block * sizeof half, sizeof half);
            out[i] = levels[code[block * 32 + at % 32] >> (at < 32 ? 0 : 4) & 15] * from_half(half);
        } else {
            memcpy(&half, code + (size_t)i * sizeof half, sizeof half);
            out[i] = from_half(half);
        }
    }
}

void neb__narrow_decode(neb_narrow_kind kind, int64_t rows, int64_t cols, const void *code, const void *scale,
                        float *out)
{
    const size_t c = neb__narrow_code_bytes(kind, 1, cols), s = neb__narrow_scale_bytes(kind, 1, cols);
    for (int64_t r = 0; r < rows; r++)
        decode_row(kind, cols, (const uint8_t *)code + (size_t)r * c, (const uint8_t *)scale + (size_t)r * s,
                   out + r * cols);
}

/* ---- parameters -------------------------------------------------------------------------------------------- */

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

size_t neb__narrow_bytes(neb_narrow_kind kind, int64_t rows, int64_t cols)
{
    return aligned(neb__narrow_code_bytes(kind, rows, cols)) +
           aligned(neb__narrow_scale_bytes(kind, rows, cols));
}

static size_t bytes_of(const neb_param *p)
{
    return p->narrow ? neb__narrow_bytes(p->narrow, p->shape[0], p->shape[1]) : 0;
}

neb_status neb__param_make_narrow(neb_param *p, neb_narrow_kind kind)
{
    if (p->set->ready || p->trainable)
        return neb__fail(NEB_ERR_STATE, "parameter '%s' is trained or in use: it cannot be coded", p->name);
    if (p->ndim != 2) return neb__fail(NEB_ERR_SHAPE, "parameter '%s' is no matrix", p->name);
    if (p->parts || p->elsewhere)
        return neb__fail(
            NEB_ERR_UNSUPPORTED,
            "peft.frozen: '%s' is shared out among ranks, and a weight in few bits must be whole; "
            "use peft.frozen: f32, or parallel.data and parallel.zero instead of parallel.tensor "
            "and parallel.pipeline",
            p->name);
    p->narrow = kind;
    return NEB_OK;
}

neb_status neb__narrow_alloc(neb_params *ps)
{
    size_t all = 0;
    for (int i = 0; i < ps->count; i++) {
        ps->list[i]->narrow_at = all;
        all += bytes_of(ps->list[i]);
    }
    if (!all) return NEB_OK;
    if (!ps->dev->ops->widen)
        return neb__fail(
            NEB_ERR_UNSUPPORTED,
            "device '%s' lacks the op widen, which weights in few bits need; use peft.frozen: f32",
            ps->dev->ops->name);
    return ps->dev->ops->alloc(ps->dev->ctx, all, (void **)&ps->narrow);
}

void neb__narrow_free(neb_params *ps)
{
    if (ps->narrow) ps->dev->ops->free(ps->dev->ctx, ps->narrow);
    ps->narrow = NULL;
}

struct neb_narrow neb__narrow_of(const neb_param *p)
{
    const uint8_t *code = p->set->narrow + p->narrow_at;
    const size_t n = aligned(neb__narrow_code_bytes(p->narrow, p->shape[0], p->shape[1]));
    return (struct neb_narrow){code, p->narrow == NEB_NARROW_BF16 ? NULL : code + n, p->narrow};
}

neb_status neb__narrow_write(neb_param *p, const float *host)
{
    neb_device *d = p->set->dev;
    const size_t bytes = bytes_of(p),
                 code = aligned(neb__narrow_code_bytes(p->narrow, p->shape[0], p->shape[1]));
    uint8_t *room = neb__calloc(1, bytes);
    if (!room) return neb__fail(NEB_ERR_NOMEM, "out of memory for the code of '%s'", p->name);
    neb_status status = neb__narrow_encode(p->narrow, p->shape[0], p->shape[1], host, room, room + code);
    if (status != NEB_OK) neb__error_prefix("%s", p->name);
    if (status == NEB_OK) status = d->ops->upload(d->ctx, p->set->narrow + p->narrow_at, room, bytes);
    neb__free(room);
    p->coded = status == NEB_OK;
    return status;
}

bool neb__narrow_takes(const neb_param *p)
{
    return p->narrow == NEB_NARROW_BF16;
}

neb_status neb__narrow_put(neb_param *p, const void *bf16)
{
    const uint8_t *x = bf16;
    neb_device *d = p->set->dev;
    unsigned bad = 0;
    for (int64_t i = 0; i < p->values; i++) {
        uint16_t h; /* a file's header may have any length, so its values lie anywhere */
        memcpy(&h, x + (size_t)i * sizeof h, sizeof h);
        bad |= (h & 0x7f80) == 0x7f80;
    }
    if (bad) {
        neb_status status = not_finite();
        neb__error_prefix("%s", p->name);
        return status;
    }
    p->coded = true;
    return d->ops->upload(d->ctx, p->set->narrow + p->narrow_at, x, (size_t)p->values * sizeof(uint16_t));
}

/* The code of p on the host, owned by the caller. */
static neb_status fetch(const neb_param *p, uint8_t **out)
{
    neb_device *d = p->set->dev;
    const size_t bytes = bytes_of(p);
    uint8_t *room = neb__malloc(bytes);
    if (!room) return neb__fail(NEB_ERR_NOMEM, "out of memory for the code of '%s'", p->name);
    neb_status status = d->ops->download(d->ctx, room, p->set->narrow + p->narrow_at, bytes);
    if (status != NEB_OK)
        neb__free(room);
    else
        *out = room;
    return status;
}

neb_status neb__narrow_read(const neb_param *p, float *host)
{
    uint8_t *room = NULL;
    NEB_TRY(fetch(p, &room));
    const size_t code = aligned(neb__narrow_code_bytes(p->narrow, p->shape[0], p->shape[1]));
    neb__narrow_decode(p->narrow, p->shape[0], p->shape[1], room, room + code, host);
    neb__free(room);
    return NEB_OK;
}

neb_status neb__narrow_hash(const neb_param *p, struct neb_hasher *h)
{
    uint8_t *room = NULL;
    NEB_TRY(fetch(p, &room));
    neb_status status = neb__hasher_update(h, room, bytes_of(p));
    neb__free(room);
    return status;
}
