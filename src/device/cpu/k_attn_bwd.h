/* k_attn_bwd.h: attention's backward, and the softmax and dropout primitives that the reference attention is
 * composed of. */
#ifndef NEB_CPU_K_ATTN_BWD_H
#define NEB_CPU_K_ATTN_BWD_H

/* One row of the scores of one head. */
struct neb_dscore {
    const struct neb_attn *a;
    int64_t seq, head, i, n; /* query i of the sequence sees n keys */
    float lse, d_sum;
    float scale, times; /* of the scores, of their gradients */
};

/* Scores become p · mask (for dv), dscores become p (dp · mask - D) · times. */
INLINE void dscore_row(const struct neb_dscore *r, float *p, float *ds)
{
    const struct neb_attn *a = r->a;
    uint16_t bits[DROP_BLOCK] = {0};
    const uint32_t threshold = a->drop.threshold;
    struct neb_drop_key key = {{0}, (a->drop.first + (uint32_t)r->head) << 20, (uint32_t)r->i, 0, 0};
    if (threshold) {
        key.key[0] = a->drop.ctl->seed, key.key[1] = a->drop.op;
        key.sample = a->drop.sample[r->seq], key.step = a->drop.ctl->step;
    }
    const vf scale = set1(r->scale), times = set1(r->times), shift = set1(r->lse), sum = set1(r->d_sum),
             keep = set1(drop_keep(threshold));
    for (int64_t b = 0; b < r->n; b += DROP_BLOCK) {
        if (threshold) drop_bits(&key, b, bits);
        int64_t end = b + DROP_BLOCK < r->n ? b + DROP_BLOCK : r->n;
        for (int64_t j = b; j < end; j += LANES) {
            int w = width(end - j);
            vf prob = vexp(load(p, j, w, NEB_F32) * scale - shift), dp = load(ds, j, w, NEB_F32);
            vf mask = keep;
            if (threshold) mask = drop_factor(bits + (j - b), threshold, keep);
            store(ds, j, prob * (dp * mask - sum) * times, w, NEB_F32);
            store(p, j, prob * mask, w, NEB_F32);
        }
    }
}

/* The same for scores with a bias, whose gradient is that of the scores before the scale. */
INLINE void dscore_row_biased(struct neb_dscore *r, const struct neb_row_bias *bias, int64_t query, float *p,
                              float *ds)
{
    const vf scale = set1(r->scale);
    add_bias(bias, query, p, r->n, r->scale);
    r->scale = r->times = 1;
    dscore_row(r, p, ds);
    if (bias->dbias) sum_bias(bias, query, ds, r->n);
    for (int64_t j = 0; j < r->n; j += LANES)
        store(ds, j, load(ds, j, width(r->n - j), NEB_F32) * scale, width(r->n - j), NEB_F32);
}

/* D = sum over columns of do · o, of one head of one row. */
INLINE float grad_dot(const struct neb_attn_bwd *g, int64_t row, int64_t head)
{
    const struct neb_attn *a = &g->f;
    const int64_t base = row * a->ldo + head * a->head_dim;
    vf sum = {0};
    for (int64_t c = 0; c < a->head_dim; c += LANES) {
        int w = width(a->head_dim - c);
        sum = sum + load(g->d_o, base + c, w, a->type) * load(a->o, base + c, w, a->type);
    }
    return hsum(sum);
}

static void attn_bwd_block(const struct neb_attn_bwd *g, const struct neb_attn_heads *h,
                           const struct neb_attn_buffers *b, const struct neb_row_bias *bias, int64_t seq,
                           int64_t head, int64_t i0, int64_t rows)
{
    const struct neb_attn *a = &g->f;
    const neb_dtype T = a->type;
    const int64_t top = seen(h, a->causal, i0 + rows - 1), wide = ROUND_UP(top, NR);
    const int64_t q_at = (h->q0 + i0) * a->ldq + head * h->hd, o_at = (h->q0 + i0) * a->ldo + head * h->hd;
    struct neb_operand q = {at(a->q, q_at, T), a->ldq, 0, T}, d_o = {at(g->d_o, o_at, T), a->ldo, 0, T};
    pack_all(&q, rows, h->hd, MR, b->left);
    multiply(b->left, rows, b->k_across, top, h->hd, h->hd, h->hd, b->scores, h->kp, 0);
    pack_all(&d_o, rows, h->hd, MR, b->left);
    multiply(b->left, rows, b->v_across, top, h->hd, h->hd, h->hd, b->dscores, h->kp, 0);
    for (int64_t r = 0; r < rows; r++) {
        const int64_t n = seen(h, a->causal, i0 + r), row = h->q0 + i0 + r;
        float *p = b->scores + r * h->kp, *ds = b->dscores + r * h->kp;
        struct neb_dscore d = {
            a,        seq,     head, i0 + r, n, a->lse[head * a->q_rows + row], grad_dot(g, row, head),
            a->scale, a->scale};
        if (bias->bias)
            dscore_row_biased(&d, bias, h->offset + i0 + r, p, ds);
        else
            dscore_row(&d, p, ds);
        memset(p + n, 0, (size_t)(wide - n) * 4);
        memset(ds + n, 0, (size_t)(wide - n) * 4);
    }
    q.straight = d_o.straight = 1;
    pack_all(&q, h->hd, rows, NR, b->q_along);
    pack_all(&d_o, h->hd, rows, NR, b->do_along);
    struct neb_operand p = {b->scores, h->kp, 1, NEB_F32}, ds = {b->dscores, h->kp, 1, NEB_F32};
    pack_all(&p, top, rows, MR, b->left);
    multiply(b->left, top, b->do_along, h->hd, rows, rows, rows, b->dv, h->dp, 1);
    pack_all(&ds, top, rows, MR, b->left);
    multiply(b->left, top, b->q_along, h->hd, rows, rows, rows, b->dk, h->dp, 1);
    ds.straight = 0;
    pack_all(&ds, rows, top, MR, b->left);
    float tile[MR * NR];
    for (int64_t c = 0; c < h->hd; c += NR)
        for (int64_t r = 0; r < rows; r += MR) {
            k_micro(top, b->left + r * top, b->k_along + c * h->tk, tile, NR);
            for (int64_t t = 0; t < MR && r + t < rows; t++)
                copy_row(tile + t * NR, NEB_F32, at(g->dq, q_at + (r + t) * a->ldq + c, T), T,
                         h->hd - c < NR ? h->hd - c : NR);
        }
}

static void k_attn_bwd(const void *args, const struct neb_span *s)
{
    const struct neb_attn_bwd *g = args;
    const struct neb_attn *a = &g->f;
    const struct neb_attn_aux *x = s->aux;
    const neb_dtype T = a->type;
    const int64_t group = a->heads / a->kv_heads, bq = attn_rows(a->max_k);
    float *end;
    struct neb_attn_buffers b =
        buffers_of(x->scratch + s->worker * x->per_worker, a->max_k, a->head_dim, bq, 1, &end);
    for (int64_t t = s->lo; t < s->hi; t++) {
        const int64_t seq = t / a->kv_heads, kh = t % a->kv_heads;
        struct neb_attn_heads h = heads_of(a, seq, bq);
        const int64_t k_at = h.k0 * a->ldk + kh * h.hd, v_at = h.k0 * a->ldv + kh * h.hd;
        struct neb_operand k = {at(a->k, k_at, T), a->ldk, 0, T}, v = {at(a->v, v_at, T), a->ldv, 0, T};
        pack_all(&k, h.tk, h.hd, NR, b.k_across);
        pack_all(&v, h.tk, h.hd, NR, b.v_across);
        k.straight = 1;
        pack_all(&k, h.hd, h.tk, NR, b.k_along);
        memset(b.dk, 0, (size_t)(ROUND_UP(h.tk, MR) * h.dp) * 4);
        memset(b.dv, 0, (size_t)(ROUND_UP(h.tk, MR) * h.dp) * 4);
        for (int64_t head = kh * group; head < (kh + 1) * group; head++) {
            const struct neb_row_bias bias = row_bias(x, a, seq, head);
            for (int64_t i = 0; i < h.tq; i += bq)
                attn_bwd_block(g, &h, &b, &bias, seq, head, i, h.tq - i < bq ? h.tq - i : bq);
        }
        for (int64_t j = 0; j < h.tk; j++) {
            copy_row(b.dk + j * h.dp, NEB_F32, at(g->dk, k_at + j * a->ldk, T), T, h.hd);
            copy_row(b.dv + j * h.dp, NEB_F32, at(g->dv, v_at + j * a->ldv, T), T, h.hd);
        }
    }
}

/* ---- primitives: score (heads, q_rows, k_rows); the piece is a range of (head, query row) ---- */

/* Which sequence row r belongs to, or -1. */
INLINE int64_t sequence_of(const int32_t *starts, int64_t sequences, int64_t r)
{
    int64_t lo = 0, hi = sequences;
    while (lo < hi) {
        int64_t mid = (lo + hi) / 2;
        if (starts[mid + 1] <= r)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < sequences && starts[lo] <= r ? lo : -1;
}

/* The keys [first, first + return value) that query row r sees; `seq` and its position in it are set too. */
INLINE int64_t keys_of(const int32_t *starts_q, const int32_t *starts_k, int64_t sequences, int causal,
                       int64_t r, int64_t *seq, int64_t *pos, int64_t *first)
{
    *seq = sequence_of(starts_q, sequences, r);
    *first = *pos = 0;
    if (*seq < 0) return 0;
    *pos = r - starts_q[*seq];
    *first = starts_k[*seq];
    struct neb_attn_heads h = {0};
    h.tk = starts_k[*seq + 1] - *first;
    h.offset = h.tk - (starts_q[*seq + 1] - starts_q[*seq]);
    return seen(&h, causal, *pos);
}

static void k_attn_softmax(const void *args, const struct neb_span *s)
{
    const struct neb_attn_softmax *a = args;
    for (int64_t i = s->lo; i < s->hi; i++) {
        float *row = a->score + i * a->k_rows, max = 0;
        int64_t seq, pos, first;
        int64_t n =
            keys_of(a->starts_q, a->starts_k, a->sequences, a->causal, i % a->q_rows, &seq, &pos, &first);
        memset(row, 0, (size_t)first * 4);
        float sum = softmax_row(row + first, n, a->k_rows - first, 1.0f, &max);
        if (a->lse) a->lse[i] = n ? max + __builtin_logf(sum) : -__builtin_inff();
        const vf inv = set1(n ? 1 / sum : 0);
        for (int64_t j = 0; j < n; j += LANES)
            store(row, first + j, inv * load(row, first + j, width(n - j), NEB_F32), width(n - j), NEB_F32);
    }
}

static void k_attn_softmax_bwd(const void *args, const struct neb_span *s)
{
    const struct neb_attn_softmax *a = args;
    for (int64_t i = s->lo; i < s->hi; i++) {
        const float *p = a->prob + i * a->k_rows;
        float *d = a->dscore + i * a->k_rows;
        int64_t seq, pos, first;
        int64_t n =
            keys_of(a->starts_q, a->starts_k, a->sequences, a->causal, i % a->q_rows, &seq, &pos, &first);
        memset(d, 0, (size_t)first * 4);
        memset(d + first + n, 0, (size_t)(a->k_rows - first - n) * 4);
        vf sum = {0};
        for (int64_t j = first; j < first + n; j += LANES) {
            int w = width(first + n - j);
            sum = sum + load(p, j, w, NEB_F32) * load(d, j, w, NEB_F32);
        }
        const vf total = set1(hsum(sum));
        for (int64_t j = first; j < first + n; j += LANES) {
            int w = width(first + n - j);
            store(d, j, load(p, j, w, NEB_F32) * (load(d, j, w, NEB_F32) - total), w, NEB_F32);
        }
    }
}

static void k_attn_dropout(const void *args, const struct neb_span *s)
{
    const struct neb_attn_dropout *a = args;
    for (int64_t i = s->lo; i < s->hi; i++) {
        int64_t seq, pos, first;
        int64_t n = keys_of(a->starts_q, a->starts_k, a->sequences, 0, i % a->q_rows, &seq, &pos, &first);
        if (n) drop_probs(&a->drop, seq, i / a->q_rows, pos, a->prob + i * a->k_rows + first, n);
    }
}

#endif
