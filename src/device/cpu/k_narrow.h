/* k_narrow.h: values of narrow weights (nebula/device_narrow.h): a piece of a row at a time, for products, which
 * pack them into panels like any other operand, and for widening. */
#ifndef NEB_CPU_K_NARROW_H
#define NEB_CPU_K_NARROW_H

typedef int8_t vb __attribute__((vector_size(LANES)));
typedef int8_t vb_mem __attribute__((vector_size(LANES), aligned(1), may_alias));
typedef uint8_t vc __attribute__((vector_size(LANES)));
typedef uint8_t vc_mem __attribute__((vector_size(LANES), aligned(1), may_alias));

static const float nf4_levels[16] __attribute__((aligned(64))) = NEB_NF4_LEVELS;

INLINE void widen_int8(const int8_t *code, float scale, int n, float *out)
{
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        st(out + i, __builtin_convertvector(__builtin_convertvector(*(const vb_mem *)(code + i), vi), vf) *
                        set1(scale));
    for (; i < n; i++) out[i] = (float)code[i] * scale;
}

/* The levels of LANES codes below 16. */
INLINE vf nf4_values(vi code)
{
#if LANES == 16
    return (vf)_mm512_permutexvar_ps((__m512i)code, _mm512_load_ps(nf4_levels));
#elif LANES == 8
    const __m256 low = _mm256_permutevar8x32_ps(_mm256_load_ps(nf4_levels), (__m256i)code),
                 high = _mm256_permutevar8x32_ps(_mm256_load_ps(nf4_levels + 8), (__m256i)code);
    return pick(code > 7, (vf)high, (vf)low);
#else
    vf v;
    for (int i = 0; i < LANES; i++) v[i] = nf4_levels[code[i]];
    return v;
#endif
}

/* n codes of one half of a block. */
INLINE void widen_nf4(const uint8_t *code, int shift, float scale, int n, float *out)
{
    int i = 0;
    for (; i + LANES <= n; i += LANES) {
        const vi bytes = __builtin_convertvector(*(const vc_mem *)(code + i), vi);
        st(out + i, nf4_values((bytes >> shift) & 15) * set1(scale));
    }
    for (; i < n; i++) out[i] = nf4_levels[code[i] >> shift & 15] * scale;
}

/* Columns [first, first + n) of a row of w, which has `cols`. */
INLINE void widen_piece(const struct neb_narrow *w, int64_t cols, int64_t row, int64_t first, int n,
                        float *out)
{
    if (w->kind == NEB_NARROW_INT8) {
        widen_int8((const int8_t *)w->code + row * cols + first, ((const float *)w->scale)[row], n, out);
        return;
    }
    if (w->kind == NEB_NARROW_BF16) {
        for (int i = 0; i < n; i += LANES) {
            const int m = width(n - i);
            store(out, i, load(w->code, row * cols + first + i, m, NEB_BF16), m, NEB_F32);
        }
        return;
    }
    const int64_t blocks = (cols + NEB_NF4_BLOCK - 1) / NEB_NF4_BLOCK, half = NEB_NF4_BLOCK / 2;
    const uint8_t *code = (const uint8_t *)w->code + row * blocks * half;
    const uint16_t *scale = (const uint16_t *)w->scale + row * blocks;
    for (int done = 0, m; done < n; done += m) {
        const int64_t at = first + done, block = at / NEB_NF4_BLOCK, in = at % half;
        m = n - done < (int)(half - in) ? n - done : (int)(half - in);
        widen_nf4(code + block * half + in, at % NEB_NF4_BLOCK < half ? 0 : 4, scalar_from_bf16(scale[block]),
                  m, out + done);
    }
}

static void k_widen(const void *args, const struct neb_span *s)
{
    const struct neb_widen *a = args;
    enum { PIECE = 512 };
    float room[PIECE];
    for (int64_t r = s->lo; r < s->hi; r++)
        for (int64_t c = 0; c < a->cols; c += PIECE) {
            const int n = a->cols - c < PIECE ? (int)(a->cols - c) : PIECE;
            widen_piece(&a->w, a->cols, r, c, n, room);
            for (int i = 0; i < n; i += LANES)
                store(a->out, r * a->cols + c + i, load(room, i, width(n - i), NEB_F32), width(n - i),
                      a->type);
        }
}

#endif
