/* k_gemm.h: the three inner parts of every matrix product (after BLIS): packing a slice of an operand into a
 * panel [depth][width] that the micro-kernel reads from front to back; the micro-kernel, MR x NR sums held in
 * registers; and merging its tile into C, with everything fused that can happen while the tile is in the L1
 * cache. */
#ifndef NEB_CPU_K_GEMM_H
#define NEB_CPU_K_GEMM_H

#if LANES == 16
#define MR 14
#define NV 2 /* vectors across a tile: MR * NV sums, NV loaded values and a factor fill 32 registers */
#elif LANES == 8
#define MR 6
#define NV 2
#else
#define MR 4
#define NV 2
#endif
#define NR (NV * LANES)

static void k_micro(int64_t kc, const float *restrict a, const float *restrict b, float *restrict out,
                    int64_t ldo)
{
    vf sum[MR][NV];
#pragma GCC unroll 16
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
        for (int j = 0; j < NV; j++) sum[i][j] = (vf){0};
    for (int64_t k = 0; k < kc; k++) {
        vf x[NV];
#pragma GCC unroll 4
        for (int j = 0; j < NV; j++) x[j] = ld(b + j * LANES);
#pragma GCC unroll 16
        for (int i = 0; i < MR; i++) {
            vf f = set1(a[i]);
#pragma GCC unroll 4
            for (int j = 0; j < NV; j++) sum[i][j] = sum[i][j] + f * x[j];
        }
        a += MR;
        b += NR;
    }
#pragma GCC unroll 16
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
        for (int j = 0; j < NV; j++) st(out + i * ldo + j * LANES, sum[i][j]);
}

/* LANES vectors of LANES values, transposed. */
INLINE void transpose(vf v[LANES])
{
#if LANES == 16
    __m512 t[16], *r = (__m512 *)v;
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int h = 0; h < 16; h += 8)
        for (int i = 0; i < 4; i++) {
            t[h + i] = _mm512_shuffle_f32x4(r[h + i], r[h + i + 4], 0x88);
            t[h + i + 4] = _mm512_shuffle_f32x4(r[h + i], r[h + i + 4], 0xdd);
        }
    for (int i = 0; i < 8; i++) {
        r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
    }
#else
    float m[LANES][LANES];
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < LANES; j++) m[j][i] = v[i][j];
    for (int i = 0; i < LANES; i++) v[i] = ld(m[i]);
#endif
}

/* One block: `have` vectors, `depth` deep, to rows of a panel of width w; `out` lanes of each row are
 * written. */
INLINE void pack_square(const void *src, int64_t ld_src, int have, int depth, int w, int out, float *panel,
                        const neb_dtype T)
{
    vf v[LANES];
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) {
        __builtin_prefetch(at(src, (i + LANES) * ld_src, T), 0,
                           3); /* rows are far apart, so the hardware foresees no stream */
        v[i] = i < have ? load(src, i * ld_src, depth, T) : (vf){0};
    }
    transpose(v);
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
        if (i < depth) store(panel, (int64_t)i * w, v[i], out, NEB_F32);
}

/* Vectors lie along k: blocks of LANES x LANES are transposed on the way. */
INLINE void pack_across(const void *src, int64_t ld_src, int count, int64_t kc, int w, float *panel,
                        const neb_dtype T)
{
    for (int p = 0; p < w; p += LANES) {
        const int have = count - p < 0       ? 0
                         : count - p < LANES ? count - p
                                             : LANES,
                  out = w - p < LANES ? w - p : LANES;
        const void *from = at(src, p * ld_src, T);
        int64_t k = 0;
        if (have == out) /* the usual case, with constant sizes */
            for (; k + LANES <= kc; k += LANES)
                pack_square(at(from, k, T), ld_src, out, LANES, w, out, panel + k * w + p, T);
        for (; k < kc; k += LANES)
            pack_square(at(from, k, T), ld_src, have, width(kc - k), w, out, panel + k * w + p, T);
    }
}

/* Vectors lie across k: rows are copied. */
INLINE void pack_along(const void *src, int64_t ld_src, int count, int64_t kc, int w, float *panel,
                       float *sum, const neb_dtype T)
{
    for (int p = 0; p < w; p += LANES) {
        int have = count - p < 0 ? 0 : count - p < LANES ? count - p : LANES;
        int out = w - p < LANES ? w - p : LANES;
        vf total = {0};
        for (int64_t k = 0; k < kc; k++) {
            vf v = have ? load(src, k * ld_src + p, have, T) : (vf){0};
            total = total + v;
            store(panel, k * w + p, v, out, NEB_F32);
        }
        if (sum && have) store(sum, p, load(sum, p, have, NEB_F32) + total, have, NEB_F32);
    }
}

INLINE void pack_body(const struct neb_operand *side, int64_t p0, int count, int64_t k0, int64_t kc, int w,
                      float *panel, float *sum, const neb_dtype T)
{
    if (side->straight)
        pack_along(at(side->data, k0 * side->ld + p0, T), side->ld, count, kc, w, panel, sum, T);
    else
        pack_across(at(side->data, p0 * side->ld + k0, T), side->ld, count, kc, w, panel, T);
}
/* Values of a narrow weight pass through a small buffer in the L1 cache. */
INLINE void pack_narrow(const struct neb_operand *side, int64_t p0, int count, int64_t k0, int64_t kc, int w,
                        float *panel)
{
    enum { DEEP = 64 };
    const struct neb_narrow *from = side->data;
    float room[NR * DEEP] __attribute__((aligned(64)));
    for (int64_t k = 0; side->straight && k < kc; k++) {
        widen_piece(from, side->ld, k0 + k, p0, count, panel + k * w);
        for (int i = count; i < w; i++) panel[k * w + i] = 0;
    }
    for (int64_t k = 0; !side->straight && k < kc; k += DEEP) {
        const int deep = kc - k < DEEP ? (int)(kc - k) : DEEP;
        for (int i = 0; i < count; i++) widen_piece(from, side->ld, p0 + i, k0 + k, deep, room + i * DEEP);
        pack_across(room, DEEP, count, deep, w, panel + k * w, NEB_F32);
    }
}

static void k_pack(const struct neb_operand *side, int64_t p0, int count, int64_t k0, int64_t kc, int w,
                   float *panel, float *sum)
{
    if (side->type == NEB_I8)
        pack_narrow(side, p0, count, k0, kc, NR, panel);
    else if (w == MR)
        BY_TYPE(side->type, pack_body(side, p0, count, k0, kc, MR, panel, sum, T));
    else
        BY_TYPE(side->type, pack_body(side, p0, count, k0, kc, NR, panel, sum, T));
}

INLINE void merge_body(const struct neb_epilogue *e, const float *tile, int64_t i, int64_t j, int rows,
                       int cols, int first, int last, const neb_act A, const neb_act XA, const neb_dtype T)
{
    const vf alpha = set1(e->alpha);
    for (int c = 0; c < cols; c += LANES) {
        int w = width(cols - c);
        vf bias = last && e->bias ? load(e->bias, j + c, w, e->bias_type) : (vf){0}, sum = {0};
        for (int r = 0; r < rows; r++) {
            int64_t at_c = (i + r) * e->ldc + j + c;
            vf v = alpha * ld(tile + r * NR + c);
            if (XA != NEB_ACT_NONE && last) {
                if (!first) v = v + load(e->c, at_c, w, T);
                v = v * act_slope(load(e->x_pre, at_c, w, T), XA);
                if (first && e->acc) v = v + load(e->c, at_c, w, T);
            } else if (!first || e->acc) {
                v = v + load(e->c, at_c, w, T);
            }
            if (last) {
                v = v + bias;
                if (e->pre) store(e->pre, at_c, v, w, T);
                v = act_forward(v, A);
            }
            sum = sum + v;
            store(e->c, at_c, v, w, T);
        }
        if (last && e->colsum) store(e->colsum, j + c, load(e->colsum, j + c, w, NEB_F32) + sum, w, NEB_F32);
    }
}

/* The plain case, which most tiles take, is compiled separately; the others decide at run time. */
static void k_merge(const struct neb_epilogue *e, const float *tile, int64_t i, int64_t j, int rows, int cols,
                    int first, int last)
{
    const neb_act none = NEB_ACT_NONE;
    if (e->type == NEB_F32 && (!last || (e->act == none && e->x_act == none)))
        merge_body(e, tile, i, j, rows, cols, first, last, none, none, NEB_F32);
    else
        merge_body(e, tile, i, j, rows, cols, first, last, e->act, e->x_act, e->type);
}

#endif
