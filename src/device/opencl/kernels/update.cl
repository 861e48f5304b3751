/* update.cl: the gradient's norm, clipping and the parameter update: one pass over the slab each. */

/* The sum of squares of each block of 65536 values; the order depends on nothing but the device's kind. */
ROW_KERNEL void sumsq(ARG(const float, x), ARG(float, part), long n)
{
    GROUP_MEMORY
    const long b = get_group_id(0), first = b * 65536, end = min(first + 65536, n);
    float total = 0.0f;
    for (long s = first; s < end; s += WG * VW * 32) {
        vf sum = (vf)(0.0f);
        const long last = min(s + WG * VW * 32, end);
        for (long i = s + (long)get_local_id(0) * VW; i < last; i += WG * VW) {
            vf v = ldf(AT(x), i, last);
            sum += v * v;
        }
        total += HSUM(sum);
    }
    total = group_sum(total);
    if (get_local_id(0) == 0) AT(part)[b] = total;
}

ROW_KERNEL void sumsq_add(ARG(const float, part), ARG(float, ctl), long blocks)
{
    GROUP_MEMORY
    struct exact e = {0.0f, 0.0f};
    for (long b = get_local_id(0); b < blocks; b += WG) exact_add(&e, AT(part)[b]);
    const float sum = group_sum(exact_value(e));
    if (get_local_id(0) == 0) AT(ctl)[CTL_NORM2] += sum;
}

kernel void clip(ARG(float, ctl))
{
    global float *c = AT(ctl);
    global uint *u = (global uint *)c;
    uint bad = u[CTL_NONFINITE];
    for (int i = 0; i < 8; i++)
        if (!isfinite(c[CTL_LOSS + i])) bad = 1u;
    if (!isfinite(c[CTL_NORM2])) bad = 1u;
    const float norm = sqrt(c[CTL_NORM2]);
    c[CTL_CLIP] = c[CTL_MAX_NORM] > 0.0f && norm > c[CTL_MAX_NORM] ? c[CTL_MAX_NORM] / norm : 1.0f;
    if (bad) u[CTL_NONFINITE] = bad, c[CTL_CLIP] = 0.0f;
}

struct segment {
    long offset, n;
    float decay, lr_scale;
};

/* Bits of `has`: 1 m, 2 v, 4 shadow. */
kernel void update(ARG(float, param), ARG(float, m), ARG(float, v), ARG(const float, grad), ARG(ushort, shadow),
                   ARG(const uchar, segments), ARG(const float, ctl), int n_segments, long n, float beta1,
                   float beta2, float eps, int has)
{
    const global struct segment *g = (const global struct segment *)AT(segments);
    const global float *c = AT(ctl);
    if (((const global uint *)c)[CTL_NONFINITE]) return;
    const long lo = g[0].offset + (long)get_global_id(0) * SPAN, hi = min(lo + SPAN, g[0].offset + n);
    int a = 0, b = n_segments; /* the first segment that ends after lo */
    while (a < b) {
        int mid = (a + b) / 2;
        if (g[mid].offset + g[mid].n <= lo)
            a = mid + 1;
        else
            b = mid;
    }
    const float clip = c[CTL_CLIP], i1 = 1.0f / c[CTL_BIAS1], i2 = 1.0f / c[CTL_BIAS2];
    for (; a < n_segments && g[a].offset < hi; a++) {
        const long end = min(hi, g[a].offset + g[a].n);
        const float lr = c[CTL_LR] * g[a].lr_scale, decay = g[a].decay;
        for (long i = max(lo, g[a].offset); i < end; i += VW) {
            vf d = clip * ldf(AT(grad), i, end), p = ldf(AT(param), i, end);
            if (has & 2) {
                vf first = beta1 * ldf(AT(m), i, end) + (1.0f - beta1) * d;
                vf second = beta2 * ldf(AT(v), i, end) + (1.0f - beta2) * (d * d);
                stf(AT(m), i, end, first);
                stf(AT(v), i, end, second);
                d = first * i1 / (sqrt(second * i2) + eps);
            } else if (has & 1) {
                d = beta1 * ldf(AT(m), i, end) + d;
                stf(AT(m), i, end, d);
            }
            p -= lr * (d + decay * p);
            stf(AT(param), i, end, p);
            if (!(has & 4)) continue;
#if VW == 1
            AT(shadow)[i] = to_bf16(p);
#else
            float t[8];
            vstore8(p, 0, t);
            for (int j = 0; j < 8 && i + j < end; j++) AT(shadow)[i + j] = to_bf16(t[j]);
#endif
        }
    }
}
