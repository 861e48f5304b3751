/* k_elem.h: element-wise passes: copy, axpby, product, activation, bias, gated unit, dropout, column sums. */
#ifndef NEB_CPU_K_ELEM_H
#define NEB_CPU_K_ELEM_H

/* Runs `call` with the constant T bound to the run-time type, so that the inlined body is specialised for
 * it. */
#define BY_TYPE(type, call)               \
    do {                                  \
        if ((type) == NEB_F32) {          \
            const neb_dtype T = NEB_F32;  \
            call;                         \
        } else {                          \
            const neb_dtype T = NEB_BF16; \
            call;                         \
        }                                 \
    } while (0)

INLINE void copy_row(const void *src, neb_dtype from, void *dst, neb_dtype to, int64_t n)
{
    for (int64_t i = 0; i < n; i += LANES) store(dst, i, load(src, i, width(n - i), from), width(n - i), to);
}

static void k_copy2d(const void *args, const struct neb_span *s)
{
    const struct neb_copy2d *a = args;
    for (int64_t r = s->lo; r < s->hi; r++) {
        const char *src = a->src;
        char *dst = a->dst;
        if (a->src_type == a->dst_type) {
            int64_t size = a->src_type == NEB_I8 ? 1 : a->src_type == NEB_BF16 ? 2 : 4;
            memcpy(dst + r * a->ld_dst * size, src + r * a->ld_src * size, (size_t)(a->cols * size));
        } else if (a->src_type == NEB_F32) {
            copy_row(src + r * a->ld_src * 4, NEB_F32, dst + r * a->ld_dst * 2, NEB_BF16, a->cols);
        } else {
            copy_row(src + r * a->ld_src * 2, NEB_BF16, dst + r * a->ld_dst * 4, NEB_F32, a->cols);
        }
    }
}

INLINE void axpby_body(const struct neb_axpby *a, int64_t lo, int64_t hi, const neb_dtype T)
{
    const vf fa = set1(a->a), fb = set1(a->b);
    if (a->b == 0)
        for (int64_t i = lo; i < hi; i += LANES)
            store(a->y, i, fa * load(a->x, i, width(hi - i), T), width(hi - i), T);
    else
        for (int64_t i = lo; i < hi; i += LANES) {
            int w = width(hi - i);
            store(a->y, i, fa * load(a->x, i, w, T) + fb * load(a->y, i, w, T), w, T);
        }
}
static void k_axpby(const void *args, const struct neb_span *s)
{
    const struct neb_axpby *a = args;
    BY_TYPE(a->type, axpby_body(a, s->lo, s->hi, T));
}

INLINE void mul_body(const struct neb_mul *a, int64_t lo, int64_t hi, const neb_dtype T)
{
    for (int64_t i = lo; i < hi; i += LANES) {
        int w = width(hi - i);
        vf z = load(a->x, i, w, T) * load(a->y, i, w, T);
        if (a->acc) z = z + load(a->z, i, w, T);
        store(a->z, i, z, w, T);
    }
}
static void k_mul(const void *args, const struct neb_span *s)
{
    const struct neb_mul *a = args;
    BY_TYPE(a->type, mul_body(a, s->lo, s->hi, T));
}

INLINE void act_body(const struct neb_act_args *a, int64_t lo, int64_t hi, const neb_act A, const neb_dtype T)
{
    for (int64_t i = lo; i < hi; i += LANES)
        store(a->y, i, act_forward(load(a->x, i, width(hi - i), T), A), width(hi - i), T);
}
static void k_act(const void *args, const struct neb_span *s)
{
    const struct neb_act_args *a = args;
    BY_TYPE(a->type, act_body(a, s->lo, s->hi, a->act, T));
}

INLINE void act_bwd_body(const struct neb_act_args *a, int64_t lo, int64_t hi, const neb_act A,
                         const neb_dtype T)
{
    for (int64_t i = lo; i < hi; i += LANES) {
        int w = width(hi - i);
        vf d = load(a->dy, i, w, T) * act_slope(load(a->x, i, w, T), A);
        if (a->acc_dx) d = d + load(a->dx, i, w, T);
        store(a->dx, i, d, w, T);
    }
}
static void k_act_bwd(const void *args, const struct neb_span *s)
{
    const struct neb_act_args *a = args;
    BY_TYPE(a->type, act_bwd_body(a, s->lo, s->hi, a->act, T));
}

static void k_bias(const void *args, const struct neb_span *s)
{
    const struct neb_bias *a = args;
    for (int64_t r = s->lo; r < s->hi; r++)
        for (int64_t i = 0; i < a->cols; i += LANES) {
            int w = width(a->cols - i);
            int64_t e = r * a->cols + i;
            store(a->y, e, load(a->y, e, w, a->type) + load(a->bias, i, w, a->bias_type), w, a->type);
        }
}

/* The columns lo … hi - 1. Blocks of rows are summed first, because the rounding error of a sum grows with
 * the number of successive additions. */
static void k_colsum(const void *args, const struct neb_span *s)
{
    const struct neb_colsum *a = args;
    enum { BLOCK = 64 };
    for (int64_t c = s->lo; c < s->hi; c += LANES) {
        int w = width(s->hi - c);
        vf total = {0};
        for (int64_t r0 = 0; r0 < a->rows; r0 += BLOCK) {
            int64_t r1 = r0 + BLOCK < a->rows ? r0 + BLOCK : a->rows;
            vf sum = {0};
            for (int64_t r = r0; r < r1; r++) sum = sum + load(a->x, r * a->ldx + c, w, a->type);
            total = total + sum;
        }
        if (a->acc) total = total + load(a->out, c, w, NEB_F32);
        store(a->out, c, total, w, NEB_F32);
    }
}

INLINE void swiglu_body(const struct neb_swiglu *a, int64_t lo, int64_t hi, const neb_dtype T)
{
    for (int64_t r = lo; r < hi; r++)
        for (int64_t i = 0; i < a->n; i += LANES) {
            int w = width(a->n - i);
            vf gate = load(a->x, r * 2 * a->n + i, w, T), up = load(a->x, r * 2 * a->n + a->n + i, w, T);
            store(a->y, r * a->n + i, act_forward(gate, NEB_ACT_SILU) * up, w, T);
        }
}
static void k_swiglu(const void *args, const struct neb_span *s)
{
    const struct neb_swiglu *a = args;
    BY_TYPE(a->type, swiglu_body(a, s->lo, s->hi, T));
}

INLINE void swiglu_bwd_body(const struct neb_swiglu *a, int64_t lo, int64_t hi, const neb_dtype T)
{
    const vf one = set1(1.0f);
    for (int64_t r = lo; r < hi; r++)
        for (int64_t i = 0; i < a->n; i += LANES) {
            int w = width(a->n - i);
            int64_t e = r * 2 * a->n + i;
            vf gate = load(a->x, e, w, T), up = load(a->x, e + a->n, w, T),
               dy = load(a->dy, r * a->n + i, w, T);
            vf sig = vsigmoid(gate);
            store(a->dx, e, dy * up * (sig * (one + gate * (one - sig))), w, T);
            store(a->dx, e + a->n, dy * (gate * sig), w, T);
        }
}
static void k_swiglu_bwd(const void *args, const struct neb_span *s)
{
    const struct neb_swiglu *a = args;
    BY_TYPE(a->type, swiglu_bwd_body(a, s->lo, s->hi, T));
}

INLINE void dropout_body(const struct neb_dropout_args *a, int64_t lo, int64_t hi, const neb_dtype T)
{
    uint16_t bits[DROP_BLOCK];
    const vf keep = set1(drop_keep(a->drop.threshold));
    for (int64_t r = lo; r < hi; r++) {
        struct neb_drop_key key = drop_row(&a->drop, r);
        for (int64_t b = 0; b < a->cols; b += DROP_BLOCK) {
            drop_bits(&key, b, bits);
            int64_t end = b + DROP_BLOCK < a->cols ? b + DROP_BLOCK : a->cols;
            for (int64_t i = b; i < end; i += LANES) {
                int w = width(end - i);
                int64_t e = r * a->cols + i;
                vf y = load(a->x, e, w, T) * drop_factor(bits + (i - b), a->drop.threshold, keep);
                if (a->acc) y = y + load(a->y, e, w, T);
                store(a->y, e, y, w, T);
            }
        }
    }
}
static void k_dropout(const void *args, const struct neb_span *s)
{
    const struct neb_dropout_args *a = args;
    BY_TYPE(a->type, dropout_body(a, s->lo, s->hi, T));
}

#endif
