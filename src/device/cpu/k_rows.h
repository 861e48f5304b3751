/* k_rows.h: ops that move rows about: embedding, gather and scatter, mean pooling, rotary positions. */
#ifndef NEB_CPU_K_ROWS_H
#define NEB_CPU_K_ROWS_H

INLINE void embed_body(const struct neb_embed *a, int64_t lo, int64_t hi, const neb_dtype T)
{
    const vf scale = set1(a->scale);
    for (int64_t r = lo; r < hi; r++) {
        const void *from[3];
        int n = 0;
        for (int t = 0; t < a->tables; t++) {
            int64_t id = a->ids[t][r] - a->first[t];
            if (id >= 0 && id < a->table_rows[t]) from[n++] = at(a->table[t], id * a->d, T);
        }
        for (int64_t i = 0; i < a->d; i += LANES) {
            int w = width(a->d - i);
            vf y = {0};
            for (int t = 0; t < n; t++) y = y + load(from[t], i, w, T);
            store(a->y, r * a->d + i, scale * y, w, T);
        }
    }
}
static void k_embed(const void *args, const struct neb_span *s)
{
    const struct neb_embed *a = args;
    BY_TYPE(a->type, embed_body(a, s->lo, s->hi, T));
}

/* The columns lo … hi - 1 of all rows, in order of increasing row, so no two pieces touch the same value. */
static void k_embed_bwd(const void *args, const struct neb_span *s)
{
    const struct neb_embed *a = args;
    const vf scale = set1(a->scale);
    for (int64_t r = 0; r < a->rows; r++)
        for (int t = 0; t < a->tables; t++) {
            int64_t id = a->ids[t][r] - a->first[t];
            if (!a->d_table[t] || id < 0 || id >= a->table_rows[t]) continue;
            float *to = a->d_table[t] + id * a->d;
            for (int64_t i = s->lo; i < s->hi; i += LANES) {
                int w = width(s->hi - i);
                vf d = load(to, i, w, NEB_F32) + scale * load(a->dy, r * a->d + i, w, a->type);
                store(to, i, d, w, NEB_F32);
            }
        }
}

static void k_gather(const void *args, const struct neb_span *s)
{
    const struct neb_rows *a = args;
    size_t bytes = (size_t)a->d * (a->type == NEB_F32 || a->type == NEB_I32 ? 4
                                   : a->type == NEB_BF16                    ? 2
                                                                            : 1);
    for (int64_t r = s->lo; r < s->hi; r++) {
        char *to = (char *)a->y + (size_t)r * bytes;
        int64_t from = a->index[r];
        if (from >= 0 && from < a->rows)
            memcpy(to, (const char *)a->x + (size_t)from * bytes, bytes);
        else
            memset(to, 0, bytes);
    }
}

INLINE void scatter_body(const struct neb_rows *a, int64_t lo, int64_t hi, const neb_dtype T)
{
    const int64_t ldx = a->ldx ? a->ldx : a->d;
    for (int64_t r = lo; r < hi; r++) {
        int64_t to = a->index[r];
        if (to < 0 || to >= a->rows) continue;
        for (int64_t i = 0; i < a->d; i += LANES) {
            int w = width(a->d - i);
            store(a->y, to * a->d + i, load(a->y, to * a->d + i, w, T) + load(a->x, r * ldx + i, w, T), w, T);
        }
    }
}
static void k_scatter(const void *args, const struct neb_span *s)
{
    const struct neb_rows *a = args;
    BY_TYPE(a->type, scatter_body(a, s->lo, s->hi, T));
}

INLINE void pool_body(const struct neb_pool_args *a, int64_t lo, int64_t hi, const neb_dtype T)
{
    for (int64_t q = lo; q < hi; q++) {
        int64_t first = a->starts[q], end = a->starts[q + 1];
        vf scale = set1(end > first ? 1.0f / (float)(end - first) : 0.0f);
        for (int64_t i = 0; i < a->d; i += LANES) {
            int w = width(a->d - i);
            vf sum = {0};
            for (int64_t r = first; r < end; r++) sum = sum + load(a->x, r * a->d + i, w, T);
            store(a->y, q * a->d + i, sum * scale, w, T);
        }
    }
}
static void k_pool(const void *args, const struct neb_span *s)
{
    const struct neb_pool_args *a = args;
    BY_TYPE(a->type, pool_body(a, s->lo, s->hi, T));
}

INLINE void pool_bwd_body(const struct neb_pool_args *a, int64_t lo, int64_t hi, const neb_dtype T)
{
    for (int64_t q = lo; q < hi; q++) {
        int64_t first = a->starts[q], end = a->starts[q + 1];
        vf scale = set1(end > first ? 1.0f / (float)(end - first) : 0.0f);
        for (int64_t r = first; r < end; r++)
            for (int64_t i = 0; i < a->d; i += LANES) {
                int w = width(a->d - i);
                vf d = scale * load(a->dy, q * a->d + i, w, T);
                if (a->acc_dx) d = d + load(a->dx, r * a->d + i, w, T);
                store(a->dx, r * a->d + i, d, w, T);
            }
    }
}
static void k_pool_bwd(const void *args, const struct neb_span *s)
{
    const struct neb_pool_args *a = args;
    BY_TYPE(a->type, pool_bwd_body(a, s->lo, s->hi, T));
}

INLINE void rope_body(const struct neb_rope *a, const struct neb_rope_table *t, int64_t lo, int64_t hi,
                      const neb_dtype T)
{
    const int64_t half = a->head_dim / 2;
    const vf sign = set1(a->inverse ? -1.0f : 1.0f);
    for (int64_t r = lo; r < hi; r++) {
        const float *cosine = t->cosine + a->position[r] * half, *sine = t->sine + a->position[r] * half;
        for (int64_t h = 0; h < a->heads; h++) {
            int64_t base = r * a->ldx + h * a->head_dim;
            for (int64_t i = 0; i < half; i += LANES) {
                int w = width(half - i);
                vf x = load(a->x, base + i, w, T), y = load(a->x, base + half + i, w, T);
                vf c = load(cosine, i, w, NEB_F32), n = sign * load(sine, i, w, NEB_F32);
                store(a->x, base + i, x * c - y * n, w, T);
                store(a->x, base + half + i, y * c + x * n, w, T);
            }
        }
    }
}
static void k_rope(const void *args, const struct neb_span *s)
{
    const struct neb_rope *a = args;
    BY_TYPE(a->type, rope_body(a, s->aux, s->lo, s->hi, T));
}

#endif
