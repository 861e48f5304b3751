/* attn.cl: attention over packed sequences without the matrix of scores in memory, and its primitives for the reference.
 *
 * A work-item owns VW neighbouring queries (forward and dQ) or keys (dK and dV), one a lane, and walks through the other
 * side in chunks of eight. Eight keys of one query are one Philox counter, so a chunk draws its dropout bits at once. The
 * softmax is computed on the way: when a larger score comes, what was summed before is scaled down.
 *
 * On a GPU, AW work-items share a head and read the other side through tiles in local memory, and the head size HD is
 * known to the compiler, so that a row stays in registers. On a CPU a work-item stands alone (AW 1), reads the rows in
 * place, and the head size is an argument. */
#if AW > 1
#define TILE      (HD > 64 ? 16 : 32)
#define HEAD_SIZE HD
#define UNROLL    _Pragma("unroll")
#define hd        HD
#define TILES     local float tile_a[TILE * HD], tile_b[TILE * HD];
/* Rows first … of n, whose distance is ld; zeros after the last. */
static inline void fill_tile(local float *tile, const global T *p, long ld, long first, long n)
{
    for (int e = get_local_id(0); e < TILE * HD; e += AW) {
        const long r = first + e / HD;
        tile[e] = r < n ? LD1(p, r * ld + e % HD) : 0.0f;
    }
}
#define BOTH_TILES(p, ldp, q, ldq_, first, n)                                                                \
    if ((first) % TILE == 0) {                                                                               \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                        \
        fill_tile(tile_a, p, ldp, first, n);                                                                 \
        fill_tile(tile_b, q, ldq_, first, n);                                                                \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                        \
    }
#define ROW_OF(i, first, n, ld) (((first) % TILE + (i)) * HD)
#define VALUE_A(p, row, d)      tile_a[(row) + (d)]
#define VALUE_B(p, row, d)      tile_b[(row) + (d)]
#else
#define HEAD_SIZE 256
#define UNROLL
#define TILES
#define BOTH_TILES(p, ldp, q, ldq_, first, n)
#define ROW_OF(i, first, n, ld) (min((first) + (i), (n) - 1) * (ld))
#define VALUE_A(p, row, d)      LD1(p, (row) + (d))
#define VALUE_B(p, row, d)      LD1(p, (row) + (d))
#endif
#define ATTN_KERNEL kernel __attribute__((reqd_work_group_size(AW, 1, 1)))

#if VW == 1
#define LANE(p, i)        (p)[i]
#define SET_LANE(p, i, v) ((p)[i] = (v))
#define ANY(c)            (c)
#define LANES(first)      ((int)(first))
#else
#define LANE(p, i)        vload8(i, p)
#define SET_LANE(p, i, v) vstore8(v, i, p)
#define ANY(c)            any(c)
#define LANES(first)      ((int8)(0, 1, 2, 3, 4, 5, 6, 7) + (int)(first))
#endif

/* Rows first … first + VW - 1 of n, turned so that a lane is a row; rows after the last are 0. */
static inline void load_lanes(private float *to, const global T *p, long ld, long first, long n, float scale, int size)
{
#pragma unroll
    for (int j = 0; j < VW; j++)
#pragma unroll
        for (int d = 0; d < size; d++)
            to[d * VW + j] = first + j < n ? scale * LD1(p, (first + j) * ld + d) : 0.0f;
}
static inline void store_lanes(const private float *from, global T *p, long ld, long first, long n, int size)
{
#pragma unroll
    for (int j = 0; j < VW; j++)
        if (first + j < n)
#pragma unroll
            for (int d = 0; d < size; d++) ST1(p, (first + j) * ld + d, from[d * VW + j]);
}
static inline vf load_stat(const global float *p, long first, long n)
{
    return ldf(p, first, n);
}

/* The factors of the keys 8 chunk … 8 chunk + 7 for VW queries. */
static inline void keep_keys(vf keep[8], uint high, int chunk, vi query, uint sample, uint step, uint seed, uint op,
                      uint threshold)
{
    vu c0 = (vu)(high | (uint)chunk), c2 = (vu)(sample), c3 = (vu)(step);
#if VW == 1
    vu c1 = (uint)query;
#else
    vu c1 = convert_uint8(query);
#endif
    uint k0 = seed, k1 = op;
    for (int round = 0; round < 10; round++) {
        vu h0 = mul_hi((vu)(0xD2511F53u), c0), l0 = c0 * 0xD2511F53u;
        vu h1 = mul_hi((vu)(0xCD9E8D57u), c2), l1 = c2 * 0xCD9E8D57u;
        c0 = h1 ^ c1 ^ k0;
        c2 = h0 ^ c3 ^ k1;
        c1 = l1;
        c3 = l0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    const vf yes = (vf)(keep_scale(threshold)), no = (vf)(0.0f);
    keep[0] = (c0 & 0xffffu) >= threshold ? yes : no;
    keep[1] = (c0 >> 16) >= threshold ? yes : no;
    keep[2] = (c1 & 0xffffu) >= threshold ? yes : no;
    keep[3] = (c1 >> 16) >= threshold ? yes : no;
    keep[4] = (c2 & 0xffffu) >= threshold ? yes : no;
    keep[5] = (c2 >> 16) >= threshold ? yes : no;
    keep[6] = (c3 & 0xffffu) >= threshold ? yes : no;
    keep[7] = (c3 >> 16) >= threshold ? yes : no;
}

#define ATTN_SHAPE                                                                                           \
    long q_rows, int heads, int kv_heads, int head_dim, long ldq, long ldk, long ldv, long ldo, float scale, \
        int causal, uint threshold, uint op, uint first_head

#define ATTN_PLACE                                                                                           \
    const int seq = get_group_id(2), head = get_group_id(1);                                                 \
    const long q0 = AT(starts_q)[seq], nq = AT(starts_q)[seq + 1] - q0;                                      \
    const long k0 = AT(starts_k)[seq], nk = AT(starts_k)[seq + 1] - k0;                                      \
    const long block = (long)get_group_id(0) * AW * VW, mine = block + (long)get_local_id(0) * VW;

#if AW == 1
#define HEAD_ARG const int hd = head_dim;
#else
#define HEAD_ARG
#endif

ATTN_KERNEL void attn(ARG(const T, q), ARG(const T, k), ARG(const T, v), ARG(T, o), ARG(float, lse),
                      ARG(const int, starts_q), ARG(const int, starts_k), ARG(const uint, sample), ARG(const uint, ctl),
                      ATTN_SHAPE)
{
    TILES
    HEAD_ARG
    ATTN_PLACE
    if (block >= nq) return;
    const int kh = head * kv_heads / heads;
    const global T *kp = AT(k) + k0 * ldk + kh * hd, *vp = AT(v) + k0 * ldv + kh * hd;
    private float qt[HEAD_SIZE * VW], acc[HEAD_SIZE * VW];
    load_lanes(qt, AT(q) + q0 * ldq + head * hd, ldq, mine, nq, scale, hd);
#pragma unroll
    for (int d = 0; d < hd; d++) SET_LANE(acc, d, (vf)(0.0f));
    const uint who = threshold ? AT(sample)[seq] : 0, step = AT(ctl)[CTL_STEP], seed = AT(ctl)[CTL_SEED];
    const vi place = LANES(mine);
    const vi limit = min(causal ? place + (int)(nk - nq + 1) : (vi)((int)nk), (vi)((int)nk)); /* keys that a query sees */
    const long end = causal ? clamp(nk - nq + block + AW * VW, 0L, nk) : nk;
    vf top = (vf)(-INFINITY), sum = (vf)(0.0f);
    for (long j0 = 0; j0 < end; j0 += 8) {
        BOTH_TILES(kp, ldk, vp, ldv, j0, nk)
        vf s[8];
#pragma unroll
        for (int j = 0; j < 8; j++) s[j] = (vf)(0.0f);
        {
            const long r0 = ROW_OF(0, j0, nk, ldk), r1 = ROW_OF(1, j0, nk, ldk), r2 = ROW_OF(2, j0, nk, ldk),
                       r3 = ROW_OF(3, j0, nk, ldk), r4 = ROW_OF(4, j0, nk, ldk), r5 = ROW_OF(5, j0, nk, ldk),
                       r6 = ROW_OF(6, j0, nk, ldk), r7 = ROW_OF(7, j0, nk, ldk);
#pragma unroll
            for (int d = 0; d < hd; d++) {
                const vf x = LANE(qt, d);
                s[0] = fma(x, (vf)(VALUE_A(kp, r0, d)), s[0]);
                s[1] = fma(x, (vf)(VALUE_A(kp, r1, d)), s[1]);
                s[2] = fma(x, (vf)(VALUE_A(kp, r2, d)), s[2]);
                s[3] = fma(x, (vf)(VALUE_A(kp, r3, d)), s[3]);
                s[4] = fma(x, (vf)(VALUE_A(kp, r4, d)), s[4]);
                s[5] = fma(x, (vf)(VALUE_A(kp, r5, d)), s[5]);
                s[6] = fma(x, (vf)(VALUE_A(kp, r6, d)), s[6]);
                s[7] = fma(x, (vf)(VALUE_A(kp, r7, d)), s[7]);
            }
        }
        vf higher = top;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            s[j] = (int)(j0 + j) < limit ? s[j] : (vf)(-INFINITY);
            higher = fmax(higher, s[j]);
        }
        const vf base = higher == -INFINITY ? (vf)(0.0f) : higher;
        if (ANY(higher > top)) {
            const vf shrink = top == -INFINITY ? (vf)(0.0f) : vexp(top - base);
            sum *= shrink;
#pragma unroll
            for (int d = 0; d < hd; d++) SET_LANE(acc, d, LANE(acc, d) * shrink);
            top = higher;
        }
#pragma unroll
        for (int j = 0; j < 8; j++) {
            s[j] = s[j] == -INFINITY ? (vf)(0.0f) : vexp(s[j] - base);
            sum += s[j];
        }
        if (threshold) {
            vf keep[8];
            keep_keys(keep, (head + first_head) << 20, (int)(j0 / 8), place, who, step, seed, op, threshold);
#pragma unroll
            for (int j = 0; j < 8; j++) s[j] *= keep[j];
        }
        {
            const long r0 = ROW_OF(0, j0, nk, ldv), r1 = ROW_OF(1, j0, nk, ldv), r2 = ROW_OF(2, j0, nk, ldv),
                       r3 = ROW_OF(3, j0, nk, ldv), r4 = ROW_OF(4, j0, nk, ldv), r5 = ROW_OF(5, j0, nk, ldv),
                       r6 = ROW_OF(6, j0, nk, ldv), r7 = ROW_OF(7, j0, nk, ldv);
#pragma unroll
            for (int d = 0; d < hd; d++) {
                vf x = LANE(acc, d);
                x = fma(s[0], (vf)(VALUE_B(vp, r0, d)), x);
                x = fma(s[1], (vf)(VALUE_B(vp, r1, d)), x);
                x = fma(s[2], (vf)(VALUE_B(vp, r2, d)), x);
                x = fma(s[3], (vf)(VALUE_B(vp, r3, d)), x);
                x = fma(s[4], (vf)(VALUE_B(vp, r4, d)), x);
                x = fma(s[5], (vf)(VALUE_B(vp, r5, d)), x);
                x = fma(s[6], (vf)(VALUE_B(vp, r6, d)), x);
                x = fma(s[7], (vf)(VALUE_B(vp, r7, d)), x);
                SET_LANE(acc, d, x);
            }
        }
    }
    const vf inverse = sum > 0.0f ? 1.0f / sum : (vf)(0.0f);
#pragma unroll
    for (int d = 0; d < hd; d++) SET_LANE(acc, d, LANE(acc, d) * inverse);
    store_lanes(acc, AT(o) + q0 * ldo + head * hd, ldo, mine, nq, hd);
    stf(AT(lse) + (long)head * q_rows + q0, mine, nq, sum > 0.0f ? top + log(sum) : (vf)(0.0f));
}

/* dQ, and for dK and dV the sums delta = dO · O. */
ATTN_KERNEL void attn_dq(ARG(const T, q), ARG(const T, k), ARG(const T, v), ARG(const T, o), ARG(const float, lse),
                         ARG(const int, starts_q), ARG(const int, starts_k), ARG(const uint, sample), ARG(const uint, ctl),
                         ARG(const T, d_o), ARG(T, dq), ARG(float, delta), ATTN_SHAPE)
{
    TILES
    HEAD_ARG
    ATTN_PLACE
    if (block >= nq) return;
    const int kh = head * kv_heads / heads;
    const global T *kp = AT(k) + k0 * ldk + kh * hd, *vp = AT(v) + k0 * ldv + kh * hd;
    private float qt[HEAD_SIZE * VW], dt[HEAD_SIZE * VW], acc[HEAD_SIZE * VW];
    vf sum = (vf)(0.0f);
    load_lanes(acc, AT(o) + q0 * ldo + head * hd, ldo, mine, nq, 1.0f, hd);
    load_lanes(dt, AT(d_o) + q0 * ldo + head * hd, ldo, mine, nq, 1.0f, hd);
#pragma unroll
    for (int d = 0; d < hd; d++) {
        sum += LANE(acc, d) * LANE(dt, d);
        SET_LANE(acc, d, (vf)(0.0f));
    }
    stf(AT(delta) + (long)head * q_rows + q0, mine, nq, sum);
    load_lanes(qt, AT(q) + q0 * ldq + head * hd, ldq, mine, nq, scale, hd);
    const vf log_sum = load_stat(AT(lse) + (long)head * q_rows + q0, mine, nq);
    const uint who = threshold ? AT(sample)[seq] : 0, step = AT(ctl)[CTL_STEP], seed = AT(ctl)[CTL_SEED];
    const vi place = LANES(mine);
    const vi limit = min(causal ? place + (int)(nk - nq + 1) : (vi)((int)nk), (vi)((int)nk));
    const long end = causal ? clamp(nk - nq + block + AW * VW, 0L, nk) : nk;
    for (long j0 = 0; j0 < end; j0 += 8) {
        BOTH_TILES(kp, ldk, vp, ldv, j0, nk)
        vf keep[8];
#pragma unroll
        for (int j = 0; j < 8; j++) keep[j] = (vf)(1.0f);
        if (threshold) keep_keys(keep, (head + first_head) << 20, (int)(j0 / 8), place, who, step, seed, op, threshold);
#pragma unroll
        for (int half_chunk = 0; half_chunk < 8; half_chunk += 4) {
            vf s0 = (vf)(0.0f), s1 = s0, s2 = s0, s3 = s0, p0 = s0, p1 = s0, p2 = s0, p3 = s0;
            const long a0 = ROW_OF(half_chunk, j0, nk, ldk), a1 = ROW_OF(half_chunk + 1, j0, nk, ldk),
                       a2 = ROW_OF(half_chunk + 2, j0, nk, ldk), a3 = ROW_OF(half_chunk + 3, j0, nk, ldk);
            const long b0 = ROW_OF(half_chunk, j0, nk, ldv), b1 = ROW_OF(half_chunk + 1, j0, nk, ldv),
                       b2 = ROW_OF(half_chunk + 2, j0, nk, ldv), b3 = ROW_OF(half_chunk + 3, j0, nk, ldv);
#pragma unroll
            for (int d = 0; d < hd; d++) {
                const vf x = LANE(qt, d), y = LANE(dt, d);
                s0 = fma(x, (vf)(VALUE_A(kp, a0, d)), s0);
                s1 = fma(x, (vf)(VALUE_A(kp, a1, d)), s1);
                s2 = fma(x, (vf)(VALUE_A(kp, a2, d)), s2);
                s3 = fma(x, (vf)(VALUE_A(kp, a3, d)), s3);
                p0 = fma(y, (vf)(VALUE_B(vp, b0, d)), p0);
                p1 = fma(y, (vf)(VALUE_B(vp, b1, d)), p1);
                p2 = fma(y, (vf)(VALUE_B(vp, b2, d)), p2);
                p3 = fma(y, (vf)(VALUE_B(vp, b3, d)), p3);
            }
            const int j = (int)j0 + half_chunk;
#define DS(i, s, p)                                                                                          \
    (j + i < limit ? vexp(s - log_sum) * (p * keep[half_chunk + i] - sum) * scale : (vf)(0.0f))
            s0 = DS(0, s0, p0), s1 = DS(1, s1, p1), s2 = DS(2, s2, p2), s3 = DS(3, s3, p3);
#undef DS
#pragma unroll
            for (int d = 0; d < hd; d++) {
                vf x = LANE(acc, d);
                x = fma(s0, (vf)(VALUE_A(kp, a0, d)), x);
                x = fma(s1, (vf)(VALUE_A(kp, a1, d)), x);
                x = fma(s2, (vf)(VALUE_A(kp, a2, d)), x);
                x = fma(s3, (vf)(VALUE_A(kp, a3, d)), x);
                SET_LANE(acc, d, x);
            }
        }
    }
    store_lanes(acc, AT(dq) + q0 * ldq + head * hd, ldq, mine, nq, hd);
}

/* dK (want_k) or dV of VW keys: the lanes are keys, and all queries of all heads of their group pass by. */
#define DKV_ARGS                                                                                             \
    ARG(const T, q), ARG(const T, k), ARG(const T, v), ARG(const float, lse), ARG(const int, starts_q),      \
        ARG(const int, starts_k), ARG(const uint, sample), ARG(const uint, ctl), ARG(const T, d_o), ARG(T, out), \
        ARG(const float, delta), ATTN_SHAPE

#define DKV_BODY(want_k)                                                                                     \
    TILES                                                                                                    \
    HEAD_ARG                                                                                                 \
    ATTN_PLACE                                                                                               \
    if (block >= nk) return;                                                                                 \
    const int group = heads / kv_heads;                                                                      \
    private float kt[HEAD_SIZE * VW], vt[HEAD_SIZE * VW], acc[HEAD_SIZE * VW];                               \
    load_lanes(kt, AT(k) + k0 * ldk + head * hd, ldk, mine, nk, scale, hd);                                  \
    if (want_k) load_lanes(vt, AT(v) + k0 * ldv + head * hd, ldv, mine, nk, 1.0f, hd);                       \
    UNROLL for (int d = 0; d < hd; d++) SET_LANE(acc, d, (vf)(0.0f));                                               \
    const uint who = threshold ? AT(sample)[seq] : 0, step = AT(ctl)[CTL_STEP], seed = AT(ctl)[CTL_SEED];    \
    const vi place = LANES(mine);                                                                            \
    long begin = causal ? block - (nk - nq) : 0; /* the first query that sees one of these keys */           \
    begin = max(begin, 0L) / 32 * 32;                                                                        \
    for (int h = head * group; h < (head + 1) * group; h++) {                                                \
        const global T *qp = AT(q) + q0 * ldq + h * hd, *dp = AT(d_o) + q0 * ldo + h * hd;                   \
        const global float *ls = AT(lse) + (long)h * q_rows + q0, *de = AT(delta) + (long)h * q_rows + q0;   \
        for (long i0 = begin; i0 < nq; i0 += 4) {                                                            \
            BOTH_TILES(qp, ldq, dp, ldo, i0, nq)                                                             \
            vf s0 = (vf)(0.0f), s1 = s0, s2 = s0, s3 = s0, p0 = s0, p1 = s0, p2 = s0, p3 = s0;               \
            const long a0 = ROW_OF(0, i0, nq, ldq), a1 = ROW_OF(1, i0, nq, ldq), a2 = ROW_OF(2, i0, nq, ldq),  \
                       a3 = ROW_OF(3, i0, nq, ldq);                                                          \
            const long b0 = ROW_OF(0, i0, nq, ldo), b1 = ROW_OF(1, i0, nq, ldo), b2 = ROW_OF(2, i0, nq, ldo),  \
                       b3 = ROW_OF(3, i0, nq, ldo);                                                          \
            UNROLL for (int d = 0; d < hd; d++) {                                                                   \
                const vf x = LANE(kt, d);                                                                    \
                s0 = fma(x, (vf)(VALUE_A(qp, a0, d)), s0);                                                   \
                s1 = fma(x, (vf)(VALUE_A(qp, a1, d)), s1);                                                   \
                s2 = fma(x, (vf)(VALUE_A(qp, a2, d)), s2);                                                   \
                s3 = fma(x, (vf)(VALUE_A(qp, a3, d)), s3);                                                   \
                if (want_k) {                                                                                \
                    const vf y = LANE(vt, d);                                                                \
                    p0 = fma(y, (vf)(VALUE_B(dp, b0, d)), p0);                                               \
                    p1 = fma(y, (vf)(VALUE_B(dp, b1, d)), p1);                                               \
                    p2 = fma(y, (vf)(VALUE_B(dp, b2, d)), p2);                                               \
                    p3 = fma(y, (vf)(VALUE_B(dp, b3, d)), p3);                                               \
                }                                                                                            \
            }                                                                                                \
            s0 = DKV_TERM(0, s0, p0, want_k), s1 = DKV_TERM(1, s1, p1, want_k);                              \
            s2 = DKV_TERM(2, s2, p2, want_k), s3 = DKV_TERM(3, s3, p3, want_k);                              \
            UNROLL for (int d = 0; d < hd; d++) {                                                                   \
                vf x = LANE(acc, d);                                                                         \
                x = fma(s0, (vf)(want_k ? VALUE_A(qp, a0, d) : VALUE_B(dp, b0, d)), x);                      \
                x = fma(s1, (vf)(want_k ? VALUE_A(qp, a1, d) : VALUE_B(dp, b1, d)), x);                      \
                x = fma(s2, (vf)(want_k ? VALUE_A(qp, a2, d) : VALUE_B(dp, b2, d)), x);                      \
                x = fma(s3, (vf)(want_k ? VALUE_A(qp, a3, d) : VALUE_B(dp, b3, d)), x);                      \
                SET_LANE(acc, d, x);                                                                         \
            }                                                                                                \
        }                                                                                                    \
    }                                                                                                        \
    store_lanes(acc, AT(out) + k0 * (want_k ? ldk : ldv) + head * hd, want_k ? ldk : ldv, mine, nk, hd);

/* What query i0 + i adds, for every key of the lanes: p, dropped (dV), or p (dp, dropped, - delta) scale (dK). */
static inline vf dkv_term(int want_k, long i, long nq, long nk, vi place, vf s, vf p, const global float *ls,
                   const global float *de, int causal, float scale, uint high, long first_key, uint who, uint step,
                   uint seed, uint op, uint threshold)
{
    if (i >= nq) return (vf)(0.0f);
    const int sees = causal ? (int)min(nk, nk - nq + i + 1) : (int)nk;
    const vf prob = place < sees ? vexp(s - ls[i]) : (vf)(0.0f);
    vf keep = (vf)(1.0f);
    if (threshold) keep = keep_columns(high, first_key, (uint)i, who, step, seed, op, threshold);
    return want_k ? prob * (p * keep - de[i]) * scale : prob * keep;
}
#define DKV_TERM(i, s, p, want_k)                                                                            \
    dkv_term(want_k, i0 + i, nq, nk, place, s, p, ls, de, causal, scale, (h + first_head) << 20, mine, who,  \
             step, seed, op, threshold)

ATTN_KERNEL void attn_dk(DKV_ARGS)
{
    DKV_BODY(1)
}
ATTN_KERNEL void attn_dv(DKV_ARGS)
{
    DKV_BODY(0)
}

/* Zeros in the rows that belong to no sequence. */
kernel void attn_outside(ARG(T, x), ARG(const int, starts), int sequences, long rows, long cols, long ld)
{
    const long r = get_global_id(1);
    if (r >= rows || (sequences > 0 && r >= AT(starts)[0] && r < AT(starts)[sequences])) return;
    EACH(i, cols) stt(AT(x) + r * ld, i, cols, (vf)(0.0f));
}
