/* k_attn.h: attention of one sequence and one key head at a time. Keys and values are packed once; then a
 * block of query rows is multiplied with all keys it may see, and its scores stay in the L2 cache until they
 * are used up. The backward pass computes them again from the saved log-sum-exp, so nothing of size T x T is
 * ever stored.
 *
 * Layout of a worker's scratch, in floats (Tk rounded up to NR: kp; head_dim to NR: dp; query block to MR:
 * bq):
 *   k across   kp * hd     panels of keys, width NR, depth head_dim       scores = q k^T
 *   v along    Tk * dp     panels of head_dim, width NR, depth Tk         o = p v
 *   scores     bq * kp     one block of query rows
 *   left       panels of width MR of the left operand
 * backward, besides:
 *   v across, k along, dscores bq * kp, q and do along (bq * dp), dk and dv (Tk rounded up to MR) * dp */
#ifndef NEB_CPU_K_ATTN_H
#define NEB_CPU_K_ATTN_H

#define ROUND_UP(n, to) (((n) + (to)-1) / (to) * (to))

/* Number of query rows in a block: as many whole tiles as keep the scores in a part of the L2 cache. */
INLINE int64_t attn_rows(int64_t max_k)
{
    int64_t n = 49152 / ROUND_UP(max_k > 0 ? max_k : 1, NR) / MR;
    return MR * (n < 1 ? 1 : n > 8 ? 8 : n);
}

struct neb_attn_heads { /* one sequence, one head */
    int64_t q0, k0, tq, tk, offset;
    int64_t hd, kp, dp, bq;
};

struct neb_attn_buffers {
    float *k_across, *v_along, *scores, *left, *v_across, *k_along, *dscores, *q_along, *do_along, *dk, *dv;
};

static struct neb_attn_heads heads_of(const struct neb_attn *a, int64_t seq, int64_t bq)
{
    struct neb_attn_heads h = {a->starts_q[seq],
                               a->starts_k[seq],
                               a->starts_q[seq + 1] - a->starts_q[seq],
                               a->starts_k[seq + 1] - a->starts_k[seq],
                               0,
                               a->head_dim,
                               0,
                               ROUND_UP(a->head_dim, NR),
                               bq};
    h.offset = h.tk - h.tq;
    h.kp = ROUND_UP(h.tk, NR);
    return h;
}

static float *carve(float **p, int64_t n)
{
    float *at_p = *p;
    *p += ROUND_UP(n, 16);
    return at_p;
}

/* Cuts the scratch from p on; *end is where it ends. */
static struct neb_attn_buffers buffers_of(float *p, int64_t max_k, int64_t hd, int64_t bq, int backward,
                                          float **end)
{
    struct neb_attn_buffers b = {0};
    const int64_t kp = ROUND_UP(max_k, NR), km = ROUND_UP(max_k, MR), dp = ROUND_UP(hd, NR);
    const int64_t depth = kp > hd ? kp : hd, left = bq * (depth > km ? depth : km);
    b.k_across = carve(&p, kp * hd);
    b.scores = carve(&p, bq * kp);
    b.left = carve(&p, left);
    if (!backward) {
        b.v_along = carve(&p, max_k * dp);
        *end = p;
        return b;
    }
    b.v_across = carve(&p, kp * hd);
    b.k_along = carve(&p, max_k * dp);
    b.dscores = carve(&p, bq * kp);
    b.q_along = carve(&p, bq * dp);
    b.do_along = carve(&p, bq * dp);
    b.dk = carve(&p, km * dp);
    b.dv = carve(&p, km * dp);
    *end = p;
    return b;
}

static int64_t k_attn_scratch(const struct neb_attn *a, int backward)
{
    float *end;
    float *const start = (float *)(uintptr_t)64; /* only distances from it are used */
    buffers_of(start, a->max_k, a->head_dim, attn_rows(a->max_k), backward, &end);
    return (int64_t)(((uintptr_t)end - (uintptr_t)start) / sizeof(float));
}

/* All panels of one side: `count` vectors from p0, the whole depth. */
static void pack_all(const struct neb_operand *side, int64_t count, int64_t depth, int w, float *to)
{
    for (int64_t p = 0; p < count; p += w)
        k_pack(side, p, (int)(count - p < w ? count - p : w), 0, depth, w, to + p * depth, NULL);
}

/* out (m, n) (ld) = left panels x right panels; out has room for whole tiles. acc: +=. */
static void multiply(const float *left, int64_t m, const float *right, int64_t n, int64_t depth,
                     int64_t left_depth, int64_t right_depth, float *out, int64_t ldo, int acc)
{
    float tile[MR * NR];
    for (int64_t j = 0; j < n; j += NR)
        for (int64_t i = 0; i < m; i += MR) {
            float *to = out + i * ldo + j;
            if (!acc) {
                k_micro(depth, left + i * left_depth, right + j * right_depth, to, ldo);
                continue;
            }
            k_micro(depth, left + i * left_depth, right + j * right_depth, tile, NR);
            for (int r = 0; r < MR; r++)
                for (int c = 0; c < NR; c += LANES)
                    st(to + r * ldo + c, ld(to + r * ldo + c) + ld(tile + r * NR + c));
        }
}

/* Keys that query row i of the sequence may see. */
INLINE int64_t seen(const struct neb_attn_heads *h, int causal, int64_t i)
{
    if (!causal) return h->tk;
    int64_t n = h->offset + i + 1;
    return n < 0 ? 0 : n < h->tk ? n : h->tk;
}

/* row[j] *= mask(i, j) for j < n */
INLINE void drop_probs(const struct neb_dropout *d, int64_t seq, int64_t head, int64_t i, float *row,
                       int64_t n)
{
    uint16_t bits[DROP_BLOCK];
    struct neb_drop_key key = {
        {d->ctl->seed, d->op}, (d->first + (uint32_t)head) << 20, (uint32_t)i, d->sample[seq], d->ctl->step};
    const vf keep = set1(drop_keep(d->threshold));
    for (int64_t b = 0; b < n; b += DROP_BLOCK) {
        drop_bits(&key, b, bits);
        int64_t end = b + DROP_BLOCK < n ? b + DROP_BLOCK : n;
        for (int64_t j = b; j < end; j += LANES) {
            int w = width(end - j);
            store(row, j, load(row, j, w, NEB_F32) * drop_factor(bits + (j - b), d->threshold, keep), w,
                  NEB_F32);
        }
    }
}

/* Turns scores into unnormalised probabilities; keys that the query may not see get 0. Returns the sum, and
 * the maximum in *max. */
INLINE float softmax_row(float *row, int64_t n, int64_t padded, float scale, float *max)
{
    *max = n ? row_max(row, n, NEB_F32) : 0;
    float sum = n ? (float)row_exp(row, n, *max, scale, 1, NEB_F32) : 0;
    memset(row + n, 0, (size_t)(padded - n) * 4);
    return sum;
}

/* What scores get for the distance of key and query: row i of a head's scores over keys [0, n) is scaled and added to. */
struct neb_row_bias {
    const float *bias; /* (2 reach + 1), or NULL */
    float *dbias;      /* the same, or NULL */
    int64_t reach;
};

INLINE struct neb_row_bias row_bias(const struct neb_attn_aux *x, const struct neb_attn *a, int64_t seq,
                                    int64_t head)
{
    const int64_t wide = 2 * x->reach + 1;
    return (struct neb_row_bias){x->bias ? x->bias + head * wide : NULL,
                                 x->dbias ? x->dbias + (seq * a->heads + head) * wide : NULL, x->reach};
}

/* The keys before *near are farther behind the query than reach, those from *far on farther ahead. */
INLINE void row_ends(const struct neb_row_bias *b, int64_t query, int64_t n, int64_t *near, int64_t *far)
{
    const int64_t lo = query - b->reach, hi = query + b->reach + 1;
    *near = lo < 0 ? 0 : lo < n ? lo : n;
    *far = hi < *near ? *near : hi < n ? hi : n;
}

/* query: the query's position among the keys, which is before all of them if negative */
INLINE void add_bias(const struct neb_row_bias *b, int64_t query, float *row, int64_t n, float scale)
{
    int64_t near, far;
    const vf s = set1(scale), first = set1(b->bias[0]), last = set1(b->bias[2 * b->reach]);
    const int64_t shift = b->reach - query; /* key j's number is at j + shift */
    row_ends(b, query, n, &near, &far);
    for (int64_t j = 0; j < near; j += LANES)
        store(row, j, load(row, j, width(near - j), NEB_F32) * s + first, width(near - j), NEB_F32);
    for (int64_t j = near; j < far; j += LANES)
        store(row, j,
              load(row, j, width(far - j), NEB_F32) * s + load(b->bias, j + shift, width(far - j), NEB_F32),
              width(far - j), NEB_F32);
    for (int64_t j = far; j < n; j += LANES)
        store(row, j, load(row, j, width(n - j), NEB_F32) * s + last, width(n - j), NEB_F32);
}

/* The other way: the gradients of the scores of one row are added to those of the distances. */
INLINE void sum_bias(const struct neb_row_bias *b, int64_t query, const float *ds, int64_t n)
{
    int64_t near, far;
    vf first = {0}, last = {0};
    const int64_t shift = b->reach - query;
    row_ends(b, query, n, &near, &far);
    for (int64_t j = 0; j < near; j += LANES) first = first + load(ds, j, width(near - j), NEB_F32);
    for (int64_t j = near; j < far; j += LANES)
        store(b->dbias, j + shift,
              load(b->dbias, j + shift, width(far - j), NEB_F32) + load(ds, j, width(far - j), NEB_F32),
              width(far - j), NEB_F32);
    for (int64_t j = far; j < n; j += LANES) last = last + load(ds, j, width(n - j), NEB_F32);
    b->dbias[0] += hsum(first);
    b->dbias[2 * b->reach] += hsum(last);
}

static void attn_block(const struct neb_attn *a, const struct neb_attn_heads *h,
                       const struct neb_attn_buffers *b, const struct neb_row_bias *bias, int64_t seq,
                       int64_t head, int64_t i0, int64_t rows)
{
    const float scale = bias->bias ? 1 : a->scale;
    const neb_dtype T = a->type;
    const int64_t top = seen(h, a->causal, i0 + rows - 1), wide = ROUND_UP(top, NR);
    struct neb_operand q = {at(a->q, (h->q0 + i0) * a->ldq + head * h->hd, T), a->ldq, 0, T};
    float inv[8 * MR];
    pack_all(&q, rows, h->hd, MR, b->left);
    multiply(b->left, rows, b->k_across, top, h->hd, h->hd, h->hd, b->scores, h->kp, 0);
    for (int64_t r = 0; r < rows; r++) {
        float *row = b->scores + r * h->kp, max;
        int64_t n = seen(h, a->causal, i0 + r);
        if (bias->bias) add_bias(bias, h->offset + i0 + r, row, n, a->scale);
        float sum = softmax_row(row, n, wide, scale, &max);
        inv[r] = sum > 0 || sum != sum ? 1 / sum : 0;
        a->lse[head * a->q_rows + h->q0 + i0 + r] = n ? max * scale + __builtin_logf(sum) : -__builtin_inff();
        if (a->drop.threshold) drop_probs(&a->drop, seq, head, i0 + r, row, n);
    }
    struct neb_operand p = {b->scores, h->kp, 0, NEB_F32};
    pack_all(&p, rows, top, MR, b->left);
    float tile[MR * NR];
    for (int64_t c = 0; c < h->hd; c += NR)
        for (int64_t r = 0; r < rows; r += MR) {
            k_micro(top, b->left + r * top, b->v_along + c * h->tk, tile, NR);
            for (int64_t t = 0; t < MR && r + t < rows; t++)
                for (int64_t x = 0; x < NR && c + x < h->hd; x += LANES) {
                    int64_t to = (h->q0 + i0 + r + t) * a->ldo + head * h->hd + c + x;
                    int64_t left = h->hd - c - x < NR - x ? h->hd - c - x : NR - x;
                    store(a->o, to, ld(tile + t * NR + x) * set1(inv[r + t]), width(left), T);
                }
        }
}

#include "device/cpu/k_attn_few.h"

/* One task: a sequence and a key head, with all query heads that read it. */
static void k_attn(const void *args, const struct neb_span *s)
{
    const struct neb_attn *a = args;
    const struct neb_attn_aux *x = s->aux;
    const int64_t group = a->heads / a->kv_heads, bq = attn_rows(a->max_k);
    float *end;
    struct neb_attn_buffers b =
        buffers_of(x->scratch + s->worker * x->per_worker, a->max_k, a->head_dim, bq, 0, &end);
    for (int64_t t = s->lo; t < s->hi; t++) {
        const int64_t seq = t / a->kv_heads, kh = t % a->kv_heads;
        struct neb_attn_heads h = heads_of(a, seq, bq);
        if (h.tq <= 0) continue;
        if (h.tq <= FEW_ROWS) {
            for (int64_t head = kh * group; head < (kh + 1) * group; head++) {
                const struct neb_row_bias bias = row_bias(x, a, seq, head);
                attn_few(a, &h, &bias, b.scores, seq, head);
            }
            continue;
        }
        struct neb_operand k = {at(a->k, h.k0 * a->ldk + kh * h.hd, a->type), a->ldk, 0, a->type};
        struct neb_operand v = {at(a->v, h.k0 * a->ldv + kh * h.hd, a->type), a->ldv, 1, a->type};
        pack_all(&k, h.tk, h.hd, NR, b.k_across);
        pack_all(&v, h.hd, h.tk, NR, b.v_along);
        for (int64_t head = kh * group; head < (kh + 1) * group; head++) {
            const struct neb_row_bias bias = row_bias(x, a, seq, head);
            for (int64_t i = 0; i < h.tq; i += bq)
                attn_block(a, &h, &b, &bias, seq, head, i, h.tq - i < bq ? h.tq - i : bq);
        }
    }
}

#endif
