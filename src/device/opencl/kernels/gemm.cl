/* gemm.cl: matrix products. Both factors are first copied ("packed") into panels: PA rows of op(A), PB columns of op(B),
 * the values of one k side by side, zeros to fill the last panel. So one kernel serves every transposition, type and
 * distance of rows, and its inner loop has no bounds to check. The result passes through an epilogue on its way to
 * memory: alpha, slope of an activation, bias, the old content, the pre-activation, the activation.
 *
 * On a CPU a work-item computes PA x PB values in vector registers: GV lanes, MR rows, NV vectors a row. On a GPU 256
 * work-items compute a tile of PA x PB values through local memory, KT steps of k at a time, while the next steps are on
 * their way; there the activation (ACT) and its slope (SLOPE) are known to the compiler. A product with few tiles cuts k
 * into pieces (`splits`), whose sums gemm_reduce adds in order.
 *
 * HALF: the panels' values are fp16. A row's (column's) values of a chunk of KC steps of k share a scale, the power of two
 * that brings the largest below 32. So the chunk's sum of products stays below 2^14, whatever the factors' range, and
 * what is 2^28 below the largest is the first to get lost. A chunk's products are added up in fp16, then times both scales
 * in float. KC roundings of fp16 weigh at most what rounding both factors to bf16 has cost before. Values from 2^118 on
 * may become infinite. */

#if HALF
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
typedef half PT; /* a value of a panel */
typedef half4 PT4;
/* For the largest magnitude, as bits: the factor that brings it to [16, 32), and its inverse. Both are normal numbers. NaN
 * and infinity leave the other values of their chunk finite. */
static inline uint scale_exponent(uint largest)
{
    return clamp(largest >> 23, 5u, 254u);
}
#define SCALE_DOWN(e) as_float((258u - (e)) << 23)
#define SCALE_BACK(e) as_float(((e) - 4u) << 23)
#else
typedef float PT;
typedef float4 PT4;
#endif

/* dst[panel][kk][p] = op(src)(panel * P + p, kk); with `across` the source's rows run along k. */
#if VW == 1
kernel __attribute__((reqd_work_group_size(32, 8, 1))) void pack(ARG(const T, src), ARG(float, dst), long rows, long k,
                                                                 long k_padded, long ld, int P, int across)
{
    local float tile[32][33];
    const int lx = get_local_id(0), ly = get_local_id(1);
    const long i0 = (long)get_group_id(0) * 32, k0 = (long)get_group_id(1) * 32;
    for (int y = ly; y < 32; y += 8) {
        if (across) { /* lx runs along k */
            const long i = i0 + y, kk = k0 + lx;
            tile[lx][y] = i < rows && kk < k ? LD1(AT(src), i * ld + kk) : 0.0f;
        } else {
            const long i = i0 + lx, kk = k0 + y;
            tile[y][lx] = i < rows && kk < k ? LD1(AT(src), kk * ld + i) : 0.0f;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const long i = i0 + lx;
    for (int y = ly; y < 32; y += 8)
        if (k0 + y < k_padded) AT(dst)[(i / P * k_padded + k0 + y) * P + i % P] = tile[y][lx];
}

#if HALF
/* scale[panel][chunk][p] */
kernel __attribute__((reqd_work_group_size(32, 8, 1))) void pack_half(ARG(const T, src), ARG(half, dst), ARG(float, scale),
                                                                      long rows, long k, long k_padded, long ld, int P,
                                                                      int across)
{
    local float tile[32][33];
    const int lx = get_local_id(0), ly = get_local_id(1);
    const long i0 = (long)get_group_id(0) * 32, k0 = (long)get_group_id(1) * 32;
    for (int y = ly; y < 32; y += 8) {
        const long i = i0 + (across ? y : lx), kk = k0 + (across ? lx : y);
        const float v = i < rows && kk < k ? LD1(AT(src), across ? i * ld + kk : kk * ld + i) : 0.0f;
        tile[across ? lx : y][across ? y : lx] = v;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const long i = i0 + lx, panel = i / P, p = i % P;
    for (int c = 0; c < 32 && k0 + c < k_padded; c += KC) {
        uint largest = 0;
        for (int y = c; y < c + KC; y++) largest = max(largest, as_uint(tile[y][lx]) & 0x7fffffffu);
        const uint e = scale_exponent(largest);
        if (ly == 0) AT(scale)[(panel * (k_padded / KC) + (k0 + c) / KC) * P + p] = SCALE_BACK(e);
        for (int y = c + ly; y < c + KC; y += 8)
            vstore_half_rte(tile[y][lx] * SCALE_DOWN(e), (panel * k_padded + k0 + y) * P + p, AT(dst));
    }
}
#endif
#else
kernel void pack(ARG(const T, src), ARG(float, dst), long rows, long k, long k_padded, long ld, int P, int across)
{
    const long panel = get_global_id(0), k0 = (long)get_global_id(1) * 64, k1 = min(k0 + 64, k_padded);
    const long first = panel * P, n = min((long)P, rows - first);
    global float *to = AT(dst) + panel * k_padded * P;
    if (!across) {
        for (long kk = k0; kk < k1; kk++)
            for (long p = 0; p < P; p += 8) {
                vf v = kk < k && p < n ? ldt(AT(src) + kk * ld + first, p, n) : (vf)(0.0f);
                stf(to + kk * P, p, P, v);
            }
        return;
    }
    for (long kk = k0; kk < k1; kk += 8) {
        for (long p = 0; p < P; p++) {
            float t[8];
            vf v = p < n && kk < k ? ldt(AT(src) + (first + p) * ld, kk, k) : (vf)(0.0f);
            vstore8(v, 0, t);
            for (int j = 0; j < 8 && kk + j < k1; j++) to[(kk + j) * P + p] = t[j];
        }
    }
}

#if HALF
/* The KC values of row p from kk on; 0 outside of [0, n) and [0, k). */
static inline void load_chunk(const global T *src, long p, long n, long kk, long k, long ld, int across, float *out)
{
    if (across) {
        for (int j = 0; j < KC; j += 8)
            vstore8(p < n && kk + j < k ? ldt(src + p * ld, kk + j, k) : (vf)(0.0f), 0, out + j);
    } else {
        for (int j = 0; j < KC; j++) out[j] = p < n && kk + j < k ? LD1(src, (kk + j) * ld + p) : 0.0f;
    }
}

/* scale[panel][chunk][p] */
kernel void pack_half(ARG(const T, src), ARG(half, dst), ARG(float, scale), long rows, long k, long k_padded, long ld,
                      int P, int across)
{
    const long panel = get_global_id(0), k0 = (long)get_global_id(1) * 64, k1 = min(k0 + 64, k_padded);
    const long first = panel * P, n = min((long)P, rows - first);
    global half *to = AT(dst) + panel * k_padded * P;
    global float *back = AT(scale) + panel * (k_padded / KC) * P;
    for (long kk = k0; kk < k1; kk += KC)
        for (long p = 0; p < P; p++) {
            float t[KC];
            uint largest = 0;
            load_chunk(AT(src) + (across ? first * ld : first), p, n, kk, k, ld, across, t);
            for (int j = 0; j < KC; j++) largest = max(largest, as_uint(t[j]) & 0x7fffffffu);
            const uint e = scale_exponent(largest);
            for (int j = 0; j < KC; j++) vstore_half_rte(t[j] * SCALE_DOWN(e), (kk + j) * P + p, to);
            back[kk / KC * P + p] = SCALE_BACK(e);
        }
}
#endif
#endif

#ifdef PA
/* Bits of `has`: 1 bias, 2 pre, 4 the bias is bf16. T is the type of c, pre and x_pre. */
#define EPILOGUE                                                                                             \
    ARG(T, c), ARG(const uchar, bias), ARG(T, pre), ARG(const T, x_pre), long m, long n, long ldc, float alpha, \
        float beta, int act, int slope, int has

static inline vf load_bias(const global uchar *raw, long col, long n, int is_bf16)
{
#if VW == 1
    return is_bf16 ? from_bf16(((const global ushort *)raw)[col]) : ((const global float *)raw)[col];
#else
    if (!is_bf16) return ldf((const global float *)raw, col, n);
    float t[8];
    for (int j = 0; j < 8; j++) t[j] = col + j < n ? from_bf16(((const global ushort *)raw)[col + j]) : 0.0f;
    return vload8(0, t);
#endif
}

/* Writes VW neighbouring results; col < n. */
#define EMIT(row, col, value, act_, slope_)                                                                                \
    do {                                                                                                     \
        const long at_ = (row) * ldc;                                                                        \
        vf v_ = alpha * (value);                                                                             \
        if (slope_) v_ *= act_slope(ldt(AT(x_pre) + at_, col, n), slope_);                                   \
        if (has & 1) v_ += load_bias(AT(bias), col, n, has & 4);                                             \
        if (beta != 0.0f) v_ += beta * ldt(AT(c) + at_, col, n);                                             \
        if (has & 2) stt(AT(pre) + at_, col, n, v_);                                                         \
        if (act_) v_ = act_forward(v_, act_);                                                               \
        stt(AT(c) + at_, col, n, v_);                                                                        \
    } while (0)

#if HALF
#define SCALES , ARG(const float, a_scale), ARG(const float, b_scale)
#else
#define SCALES
#endif

#if VW == 8
#if GV == 16
typedef float16 gv;
#define LOAD_GV(p)     vload16(0, p)
#define STORE_GV(v, p) vstore16(v, 0, p)
#define FLOAT_GV(v)    convert_float16(v)
#else
typedef float8 gv;
#define LOAD_GV(p)     vload8(0, p)
#define STORE_GV(v, p) vstore8(v, 0, p)
#define FLOAT_GV(v)    convert_float8(v)
#endif

/* sum[r][v] += a's value r times b's vector v, for `steps` steps of k. PV is the vectors' type. */
#define MULTIPLY(PV, sum, ap, bp, steps)                                                                       \
    for (long s_ = 0; s_ < (steps); s_++) {                                                                    \
        PV col_[NV];                                                                                           \
        _Pragma("unroll") for (int v = 0; v < NV; v++) col_[v] = LOAD_GV((bp) + s_ * PB + v * GV);             \
        _Pragma("unroll") for (int r = 0; r < MR; r++)                                                         \
        {                                                                                                      \
            const PV x_ = (PV)((ap)[s_ * PA + r]);                                                             \
            _Pragma("unroll") for (int v = 0; v < NV; v++) sum[r][v] = fma(x_, col_[v], sum[r][v]);            \
        }                                                                                                      \
    }

#if HALF && GV == 16
typedef half16 hv;
#elif HALF
typedef half8 hv;
#endif

kernel __attribute__((reqd_work_group_size(1, 1, 1))) void gemm(ARG(const PT, a), ARG(const PT, b) SCALES, long k,
                                                                long panels, EPILOGUE)
{
    const long jp = get_global_id(0), all = (m + PA - 1) / PA, first = (long)get_global_id(1) * panels,
               last = min(first + panels, all);
    const global PT *bp = AT(b) + jp * k * PB;
    for (long ip = first; ip < last; ip++) {
        const global PT *ap = AT(a) + ip * k * PA;
        gv acc[MR][NV];
#pragma unroll
        for (int r = 0; r < MR; r++)
#pragma unroll
            for (int v = 0; v < NV; v++) acc[r][v] = (gv)(0.0f);
#if HALF
        for (long kk = 0; kk < k; kk += KC) {
            const global float *as = AT(a_scale) + (ip * k + kk) / KC * PA, *bs = AT(b_scale) + (jp * k + kk) / KC * PB;
            hv sum[MR][NV];
#pragma unroll
            for (int r = 0; r < MR; r++)
#pragma unroll
                for (int v = 0; v < NV; v++) sum[r][v] = (hv)(0.0h);
            MULTIPLY(hv, sum, ap + kk * PA, bp + kk * PB, KC)
#pragma unroll
            for (int v = 0; v < NV; v++) {
                const gv scale = LOAD_GV(bs + v * GV);
#pragma unroll
                for (int r = 0; r < MR; r++)
                    acc[r][v] = fma(FLOAT_GV(sum[r][v]) * scale, (gv)(as[r]), acc[r][v]);
            }
        }
#else
        MULTIPLY(gv, acc, ap, bp, k)
#endif
        float out[PA * PB]; /* a loop over memory: the epilogue's code is there once */
#pragma unroll
        for (int r = 0; r < MR; r++)
#pragma unroll
            for (int v = 0; v < NV; v++) STORE_GV(acc[r][v], out + r * PB + v * GV);
        for (int r = 0; r < MR && ip * PA + r < m; r++)
            for (long at = jp * PB; at < min((jp + 1) * PB, n); at += 8)
                EMIT(ip * PA + r, at, vload8(0, out + r * PB + (at - jp * PB)), act, slope);
    }
}
#else
#define RM (PA / 16) /* rows and columns of one work-item */
#define RN (PB / 16)
#define LA (KT * PA / 1024) /* loads of four values, of one work-item */
#define LB (KT * PB / 1024)

kernel __attribute__((reqd_work_group_size(16, 16, 1))) void gemm(ARG(const PT, a), ARG(const PT, b) SCALES,
                                                                  ARG(float, part), long k, long per_split, int splits,
                                                                  EPILOGUE)
{
    local PT4 ta[2][KT * PA / 4], tb[2][KT * PB / 4];
    const int lx = get_local_id(0), ly = get_local_id(1), l = ly * 16 + lx;
    const long ip = get_group_id(1), jp = get_group_id(0), split = get_group_id(2);
    const long k0 = split * per_split, k1 = min(k0 + per_split, k);
    const global PT4 *ga = (const global PT4 *)(AT(a) + (ip * k + k0) * PA);
    const global PT4 *gb = (const global PT4 *)(AT(b) + (jp * k + k0) * PB);
    float4 acc[RM][RN / 4];
    PT4 na[LA], nb[LB];
#if HALF /* KT is KC */
    const global float *as = AT(a_scale) + (ip * k + k0) / KC * PA + ly * 4;
    const global float *bs = AT(b_scale) + (jp * k + k0) / KC * PB + lx * 4;
    half4 sum[RM][RN / 4];
#define SUM sum
#else
#define SUM acc
#endif
#pragma unroll
    for (int r = 0; r < RM; r++)
#pragma unroll
        for (int v = 0; v < RN / 4; v++) acc[r][v] = (float4)(0.0f);
#pragma unroll
    for (int i = 0; i < LA; i++) ta[0][l + 256 * i] = ga[l + 256 * i];
#pragma unroll
    for (int i = 0; i < LB; i++) tb[0][l + 256 * i] = gb[l + 256 * i];
    barrier(CLK_LOCAL_MEM_FENCE);
    int now = 0;
    for (long kk = k0; kk < k1; kk += KT) {
        const bool more = kk + KT < k1;
        ga += KT * PA / 4;
        gb += KT * PB / 4;
        if (more) {
#pragma unroll
            for (int i = 0; i < LA; i++) na[i] = ga[l + 256 * i];
#pragma unroll
            for (int i = 0; i < LB; i++) nb[i] = gb[l + 256 * i];
        }
#if HALF
#pragma unroll
        for (int r = 0; r < RM; r++)
#pragma unroll
            for (int v = 0; v < RN / 4; v++) sum[r][v] = (half4)(0.0h);
#endif
#pragma unroll
        for (int s = 0; s < KT; s++) {
            PT4 x[RM / 4], y[RN / 4];
#pragma unroll
            for (int i = 0; i < RM / 4; i++) x[i] = ta[now][s * (PA / 4) + i * 16 + ly];
#pragma unroll
            for (int i = 0; i < RN / 4; i++) y[i] = tb[now][s * (PB / 4) + i * 16 + lx];
#pragma unroll
            for (int i = 0; i < RM / 4; i++)
#pragma unroll
                for (int v = 0; v < RN / 4; v++) {
                    SUM[4 * i][v] = fma((PT4)(x[i].x), y[v], SUM[4 * i][v]);
                    SUM[4 * i + 1][v] = fma((PT4)(x[i].y), y[v], SUM[4 * i + 1][v]);
                    SUM[4 * i + 2][v] = fma((PT4)(x[i].z), y[v], SUM[4 * i + 2][v]);
                    SUM[4 * i + 3][v] = fma((PT4)(x[i].w), y[v], SUM[4 * i + 3][v]);
                }
        }
#if HALF
#pragma unroll
        for (int v = 0; v < RN / 4; v++) {
            const float4 scale = vload4(0, bs + v * 64);
#pragma unroll
            for (int r = 0; r < RM; r++)
                acc[r][v] = fma(convert_float4(sum[r][v]) * scale, (float4)(as[r / 4 * 64 + r % 4]), acc[r][v]);
        }
        as += PA;
        bs += PB;
#endif
        if (more) {
#pragma unroll
            for (int i = 0; i < LA; i++) ta[1 - now][l + 256 * i] = na[i];
#pragma unroll
            for (int i = 0; i < LB; i++) tb[1 - now][l + 256 * i] = nb[i];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        now = 1 - now;
    }
    if (splits > 1) { /* whole tiles: part is (splits, padded m, padded n) */
        const long pm = (long)get_num_groups(1) * PA, pn = (long)get_num_groups(0) * PB;
        global float *to = AT(part) + split * pm * pn;
#pragma unroll
        for (int r = 0; r < RM; r++)
#pragma unroll
            for (int v = 0; v < RN / 4; v++)
                vstore4(acc[r][v], 0, to + (ip * PA + r / 4 * 64 + ly * 4 + r % 4) * pn + jp * PB + v * 64 + lx * 4);
        return;
    }
#pragma unroll
    for (int r = 0; r < RM; r++) {
        const long row = ip * PA + r / 4 * 64 + ly * 4 + r % 4;
        if (row >= m) continue;
#pragma unroll
        for (int v = 0; v < RN / 4; v++) {
            const long col = jp * PB + v * 64 + lx * 4;
            if (col < n) EMIT(row, col, acc[r][v].x, ACT, SLOPE);
            if (col + 1 < n) EMIT(row, col + 1, acc[r][v].y, ACT, SLOPE);
            if (col + 2 < n) EMIT(row, col + 2, acc[r][v].z, ACT, SLOPE);
            if (col + 3 < n) EMIT(row, col + 3, acc[r][v].w, ACT, SLOPE);
        }
    }
}

kernel void gemm_reduce(ARG(const float, part), long pm, long pn, int splits, EPILOGUE)
{
    const long col = get_global_id(0), row = get_global_id(1);
    if (col >= n || row >= m) return;
    float sum = 0.0f;
    for (int s = 0; s < splits; s++) sum += AT(part)[(s * pm + row) * pn + col];
    EMIT(row, col, sum, act, slope);
}
#endif
#endif
