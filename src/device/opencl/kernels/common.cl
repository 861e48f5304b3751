/* common.cl: what all kernels share. It is put before every other file.
 *
 * One source serves CPUs and GPUs. VW is the number of values that a work-item handles at once, WG the number of
 * work-items that share a row. A CPU gets VW 8 and WG 1: explicit vectors, and no barrier. A GPU gets VW 1 and WG 128:
 * neighbouring work-items read neighbouring values, and sums over a row go through local memory. SPAN is the number of
 * values that a work-item of an element-wise kernel walks through.
 *
 * T is the type in which activations are stored: float, or bf16 in a ushort. Arithmetic is float everywhere.
 *
 * OpenCL 1.2 has no pointers into buffers on the host, so every array comes as a buffer and an offset: ARG declares the
 * two, AT gives the pointer. */
#define ARG(type, name) global type *name##_base, const long name##_first
#define AT(name)        (name##_base + name##_first)

typedef uint ctl_word; /* struct neb_ctl as 32 words */
enum { CTL_STEP = 0, CTL_SEED = 1, CTL_LR = 2, CTL_LOSS_SCALE = 3, CTL_MAX_NORM = 4, CTL_BIAS1 = 5, CTL_BIAS2 = 6 };
enum { CTL_LOSS = 16, CTL_NORM2 = 24, CTL_CLIP = 25, CTL_NONFINITE = 26, CTL_COUNTS = 27 };

#if VW == 1
typedef float vf;
typedef int vi;
typedef uint vu;
#define AS_VF(x) as_float(x)
#define AS_VU(x) as_uint(x)
#define TO_VF(x) ((float)(x))
#define HSUM(v)  (v)
#define HMAX(v)  (v)
#else
typedef float8 vf;
typedef int8 vi;
typedef uint8 vu;
#define AS_VF(x) as_float8(x)
#define AS_VU(x) as_uint8(x)
#define TO_VF(x) convert_float8(x)
static inline float hsum8(float8 v)
{
    float4 a = v.lo + v.hi;
    float2 b = a.lo + a.hi;
    return b.x + b.y;
}
static inline float hmax8(float8 v)
{
    float4 a = fmax(v.lo, v.hi);
    float2 b = fmax(a.lo, a.hi);
    return fmax(b.x, b.y);
}
#define HSUM(v) hsum8(v)
#define HMAX(v) hmax8(v)
#endif

/* ---- loads and stores: n is the first index that must not be touched; a load gives 0 there ---- */

static inline float from_bf16(ushort h)
{
    return as_float((uint)h << 16);
}
static inline ushort to_bf16(float f)
{
    uint u = as_uint(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (ushort)(u >> 16 | 0x40u); /* a NaN stays one */
    return (ushort)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

#if BF16
typedef ushort T;
#define LD1(p, i)    from_bf16((p)[i])
#define ST1(p, i, v) ((p)[i] = to_bf16(v))
#else
typedef float T;
#define LD1(p, i)    ((p)[i])
#define ST1(p, i, v) ((p)[i] = (v))
#endif

#if VW == 1
static inline vf ldf(const global float *p, long i, long n)
{
    return i < n ? p[i] : 0.0f;
}
static inline void stf(global float *p, long i, long n, vf v)
{
    if (i < n) p[i] = v;
}
static inline vf ldt(const global T *p, long i, long n)
{
    return i < n ? LD1(p, i) : 0.0f;
}
static inline void stt(global T *p, long i, long n, vf v)
{
    if (i < n) ST1(p, i, v);
}
#else
static inline vf ldf(const global float *p, long i, long n)
{
    if (i + 8 <= n) return vload8(0, p + i);
    float t[8];
    for (int j = 0; j < 8; j++) t[j] = i + j < n ? p[i + j] : 0.0f;
    return vload8(0, t);
}
static inline void stf(global float *p, long i, long n, vf v)
{
    if (i + 8 <= n) {
        vstore8(v, 0, p + i);
        return;
    }
    float t[8];
    vstore8(v, 0, t);
    for (int j = 0; j < 8 && i + j < n; j++) p[i + j] = t[j];
}
#if BF16
static inline vf ldt(const global T *p, long i, long n)
{
    if (i + 8 <= n) return as_float8(convert_uint8(vload8(0, p + i)) << 16);
    float t[8];
    for (int j = 0; j < 8; j++) t[j] = i + j < n ? from_bf16(p[i + j]) : 0.0f;
    return vload8(0, t);
}
static inline void stt(global T *p, long i, long n, vf v)
{
    vu u = as_uint8(v);
    vi nan = (u & 0x7fffffffu) > 0x7f800000u;
    vu r = select((u + 0x7fffu + (u >> 16 & 1u)) >> 16, u >> 16 | 0x40u, nan);
    if (i + 8 <= n) {
        vstore8(convert_ushort8(r), 0, p + i);
        return;
    }
    uint t[8];
    vstore8(r, 0, t);
    for (int j = 0; j < 8 && i + j < n; j++) p[i + j] = (ushort)t[j];
}
#else
#define ldt ldf
#define stt stf
#endif
#endif

/* 1 in the lanes of i … that are below n, else 0 */
static inline vf lanes_below(long i, long n)
{
#if VW == 1
    return i < n ? 1.0f : 0.0f;
#else
    return select((vf)(0.0f), (vf)(1.0f), (int8)(0, 1, 2, 3, 4, 5, 6, 7) < (int8)((int)min(n - i, (long)8)));
#endif
}

/* The values of this work-item in an element-wise kernel over n values, VW at a time. */
#define EACH(i, n)                                                                                           \
    for (long i = (long)get_global_id(0) * SPAN, i##_end = min(i + SPAN, (long)(n)); i < i##_end; i += VW)

/* The values of this work-item in a row of n that WG work-items share. */
#define ROW(i, n) for (long i = (long)get_local_id(0) * VW; i < (n); i += WG * VW)

/* ---- sums over the work-items of a group, in a fixed order. They have barriers, so kernels call them outside of all
 * conditions: not every compiler is right about a barrier in a branch, even if all work-items take it. They are always
 * inlined: where all calls pass one array, pocl 3.1 puts its address into a function that is not, and then all its
 * threads share that one array. ---- */

#if WG == 1
#define GROUP_MEMORY
#define GROUP_SYNC
#define group_sum(v) (v)
#define group_max(v) (v)
#else
#define GROUP_MEMORY local float group_memory[WG];
#define GROUP_SYNC   barrier(CLK_GLOBAL_MEM_FENCE);
#define group_sum(v) group_sum_in(v, group_memory)
#define group_max(v) group_max_in(v, group_memory)
#define WHOLE        __attribute__((always_inline))
#if SUBGROUPS
/* Each subgroup reduces its values in registers; their results meet in local memory once. */
#ifdef cl_khr_subgroups
#pragma OPENCL EXTENSION cl_khr_subgroups : enable
#endif
#ifdef cl_intel_subgroups
#pragma OPENCL EXTENSION cl_intel_subgroups : enable
#endif
#define GROUP_REDUCE(name, reduce, join)                                                                      \
    WHOLE static inline float name(float v, local float *tmp)                                                 \
    {                                                                                                         \
        v = reduce(v);                                                                                        \
        if (get_sub_group_local_id() == 0) tmp[get_sub_group_id()] = v;                                       \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                         \
        v = tmp[0];                                                                                           \
        for (uint i = 1; i < get_num_sub_groups(); i++) v = join(v, tmp[i]);                                  \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                         \
        return v;                                                                                             \
    }
#define PLUS(a, b) ((a) + (b))
GROUP_REDUCE(group_sum_in, sub_group_reduce_add, PLUS)
GROUP_REDUCE(group_max_in, sub_group_reduce_max, fmax)
#else
WHOLE static inline float group_sum_in(float v, local float *tmp)
{
    const int l = get_local_id(0);
    tmp[l] = v;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int s = WG / 2; s > 0; s >>= 1) {
        if (l < s) tmp[l] += tmp[l + s];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    v = tmp[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    return v;
}
WHOLE static inline float group_max_in(float v, local float *tmp)
{
    const int l = get_local_id(0);
    tmp[l] = v;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int s = WG / 2; s > 0; s >>= 1) {
        if (l < s) tmp[l] = fmax(tmp[l], tmp[l + s]);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    v = tmp[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    return v;
}
#endif
#endif
#define ROW_KERNEL kernel __attribute__((reqd_work_group_size(WG, 1, 1)))

/* A sum that keeps the error of its additions (Neumaier). A NaN or an infinity stays. */
struct exact {
    float sum, low;
};
static inline void exact_add(struct exact *e, float v)
{
    float t = e->sum + v;
    e->low += fabs(e->sum) >= fabs(v) ? (e->sum - t) + v : (v - t) + e->sum;
    e->sum = t;
}
static inline float exact_value(struct exact e)
{
    float v = e.sum + e.low;
    return isfinite(e.sum) ? v : e.sum;
}

/* ---- functions: the same polynomials as on the CPU device, so that the devices differ by roundings only ---- */

static inline vf vexp(vf x)
{
    const float magic = 12582912.0f;
    vf c = fmin((vf)(88.37626f), fmax((vf)(-87.33654f), x));
    vf t = fma(c, (vf)(1.44269504f), (vf)(magic)), n = t - magic;
    vf r = fma(n, (vf)(-0.693359375f), c);
    r = fma(n, (vf)(2.12194440e-4f), r);
    vf p = (vf)(1.9875691500e-4f);
    p = fma(p, r, (vf)(1.3981999507e-3f));
    p = fma(p, r, (vf)(8.3334519073e-3f));
    p = fma(p, r, (vf)(4.1665795894e-2f));
    p = fma(p, r, (vf)(1.6666665459e-1f));
    p = fma(p, r, (vf)(5.0000001201e-1f));
    vf y = fma(p, r * r, r + 1.0f) * AS_VF((AS_VU(t) + (127u - 0x4B400000u)) << 23);
    return x != x ? x : y; /* fmin and fmax lose a NaN */
}

static inline vf vtanh(vf v)
{
    vf x = fmin((vf)(7.90531110763549805f), fmax((vf)(-7.90531110763549805f), v)), s = x * x;
    vf p = (vf)(-2.76076847742355e-16f);
    p = fma(p, s, (vf)(2.00018790482477e-13f));
    p = fma(p, s, (vf)(-8.60467152213735e-11f));
    p = fma(p, s, (vf)(5.12229709037114e-08f));
    p = fma(p, s, (vf)(1.48572235717979e-05f));
    p = fma(p, s, (vf)(6.37261928875436e-04f));
    p = fma(p, s, (vf)(4.89352455891786e-03f));
    vf q = (vf)(1.19825839466702e-06f);
    q = fma(q, s, (vf)(1.18534705686654e-04f));
    q = fma(q, s, (vf)(2.26843463243900e-03f));
    q = fma(q, s, (vf)(4.89352518554385e-03f));
    return v != v ? v : x * p / q;
}

static inline vf verf(vf v)
{
    vf x = fmin((vf)(4.0f), fmax((vf)(-4.0f), v)), s = x * x;
    vf p = (vf)(-2.72614225801306e-10f);
    p = fma(p, s, (vf)(2.77068142495902e-08f));
    p = fma(p, s, (vf)(-2.10102402082508e-06f));
    p = fma(p, s, (vf)(-5.69250639462346e-05f));
    p = fma(p, s, (vf)(-7.34990630326855e-04f));
    p = fma(p, s, (vf)(-2.95459980854025e-03f));
    p = fma(p, s, (vf)(-1.60960333262415e-02f));
    vf q = (vf)(-1.45660718464996e-05f);
    q = fma(q, s, (vf)(-2.13374055278905e-04f));
    q = fma(q, s, (vf)(-1.68282697438203e-03f));
    q = fma(q, s, (vf)(-7.37332916720468e-03f));
    q = fma(q, s, (vf)(-1.42647390514189e-02f));
    return v != v ? v : x * p / q;
}

static inline vf vsigmoid(vf x)
{
    return 1.0f / (1.0f + vexp(-x));
}

enum { ACT_NONE, ACT_GELU, ACT_GELU_TANH, ACT_SILU, ACT_RELU, ACT_TANH };
#define GELU_C  0.7978845608028654f
#define GELU_K  0.044715f
#define RSQRT_2 0.7071067811865476f

static inline vf act_forward(vf x, int act)
{
    switch (act) {
    case ACT_GELU: return 0.5f * x * (1.0f + verf(x * RSQRT_2));
    case ACT_GELU_TANH: return x * vsigmoid(2 * GELU_C * (x + GELU_K * (x * x * x)));
    case ACT_SILU: return x * vsigmoid(x);
    case ACT_RELU: return x < 0.0f ? (vf)(0.0f) : x;
    case ACT_TANH: return vtanh(x);
    default: return x;
    }
}

static inline vf act_slope(vf x, int act)
{
    switch (act) {
    case ACT_GELU: return 0.5f * (1.0f + verf(x * RSQRT_2)) + x * (0.3989422804014327f * vexp(-0.5f * x * x));
    case ACT_GELU_TANH: {
        vf s = vsigmoid(2 * GELU_C * (x + GELU_K * (x * x * x)));
        return s + x * s * (1.0f - s) * (2 * GELU_C * (1.0f + 3 * GELU_K * (x * x)));
    }
    case ACT_SILU: {
        vf s = vsigmoid(x);
        return s * (1.0f + x * (1.0f - s));
    }
    case ACT_RELU: return x > 0.0f ? (vf)(1.0f) : (vf)(0.0f);
    case ACT_TANH: {
        vf t = vtanh(x);
        return 1.0f - t * t;
    }
    default: return (vf)(1.0f);
    }
}

/* ---- dropout: Philox4x32-10, nebula/device.h has the counters ---- */

static inline uint4 philox(uint c0, uint c1, uint c2, uint c3, uint k0, uint k1)
{
    for (int round = 0; round < 10; round++) {
        uint h0 = mul_hi(0xD2511F53u, c0), l0 = 0xD2511F53u * c0;
        uint h1 = mul_hi(0xCD9E8D57u, c2), l1 = 0xCD9E8D57u * c2;
        c0 = h1 ^ c1 ^ k0;
        c2 = h0 ^ c3 ^ k1;
        c1 = l1;
        c3 = l0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (uint4)(c0, c1, c2, c3);
}

static inline uint lane_bits(uint4 w, int lane)
{
    uint word = lane < 4 ? (lane < 2 ? w.x : w.y) : (lane < 6 ? w.z : w.w);
    return word >> 16 * (lane & 1) & 0xffffu;
}

static inline float keep_scale(uint threshold)
{
    return 65536.0f / (float)(65536u - threshold);
}

/* The factors of the VW columns from `col` on: 0 where dropped. `high` is ORed to the counter's first word. */
static inline vf keep_columns(uint high, long col, uint position, uint sample, uint step, uint seed, uint op, uint threshold)
{
    uint4 w = philox(high | (uint)(col / 8), position, sample, step, seed, op);
    float keep = keep_scale(threshold);
#if VW == 1
    return lane_bits(w, (int)(col % 8)) >= threshold ? keep : 0.0f;
#else
    uint8 bits = (uint8)(w.x & 0xffffu, w.x >> 16, w.y & 0xffffu, w.y >> 16, w.z & 0xffffu, w.z >> 16, w.w & 0xffffu,
                         w.w >> 16);
    return select((vf)(0.0f), (vf)(keep), bits >= threshold);
#endif
}

/* The last i with starts[i] <= r, or -1 outside all `n` sequences; empty sequences are passed over. */
static inline int sequence_of(const global int *starts, int n, long r)
{
    if (n <= 0 || r < starts[0] || r >= starts[n]) return -1;
    int lo = 0, hi = n; /* starts[lo] <= r < starts[hi] */
    while (hi - lo > 1) {
        int mid = (lo + hi) / 2;
        if (starts[mid] <= r)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}
