/* norm.cl: LayerNorm and RMSNorm with residual and dropout: one group a row; mean and variance in two passes. */

ROW_KERNEL void norm(ARG(const T, x), ARG(const T, residual), ARG(const float, gamma), ARG(const float, beta), ARG(T, s),
                     ARG(T, y), ARG(float, mean), ARG(float, rstd), ARG(const uint, sample), ARG(const int, position),
                     ARG(const uint, ctl), long d, float eps, int layer, int has, uint threshold, uint op)
{
    /* bits of `has`: 1 residual, 2 y, 4 beta, 8 mean */
    GROUP_MEMORY
    const long r = get_group_id(0);
    const global T *in = AT(x) + r * d;
    if (has & 1) {
        global T *sum = AT(s) + r * d;
        const uint who = threshold ? AT(sample)[r] : 0, where = threshold ? (uint)AT(position)[r] : 0;
        ROW(i, d)
        {
            vf v = ldt(in, i, d);
            if (threshold) v *= keep_columns(0, i, where, who, AT(ctl)[CTL_STEP], AT(ctl)[CTL_SEED], op, threshold);
            stt(sum, i, d, ldt(AT(residual) + r * d, i, d) + v);
        }
        in = sum; /* each work-item reads below what it wrote itself */
    }
    vf sum_x = (vf)(0.0f);
    if (layer)
        ROW(i, d) sum_x += ldt(in, i, d);
    const float m = group_sum(HSUM(sum_x)) / (float)d;
    vf sq = (vf)(0.0f);
    ROW(i, d)
    {
        vf v = (ldt(in, i, d) - m) * lanes_below(i, d);
        sq += v * v;
    }
    const float k = 1.0f / sqrt(group_sum(HSUM(sq)) / (float)d + eps);
    if (!(has & 2)) return;
    if (get_local_id(0) == 0) {
        if (has & 8) AT(mean)[r] = m;
        AT(rstd)[r] = k;
    }
    ROW(i, d)
    {
        vf v = (ldt(in, i, d) - m) * k * ldf(AT(gamma), i, d);
        if (has & 4) v += ldf(AT(beta), i, d);
        stt(AT(y) + r * d, i, d, v);
    }
}

/* With xh = (s - mean) rstd and g = dy gamma: ds = ds_in + rstd (g - mean(g) - xh mean(g xh)); RMS without mean(g).
 * dx (+)= drop(ds). Bits of `has`: 1 dy, 2 ds_in, 4 dx, 8 acc_dx. */
ROW_KERNEL void norm_bwd(ARG(const T, s), ARG(const T, dy), ARG(const T, ds_in), ARG(const float, gamma),
                         ARG(const float, mean), ARG(const float, rstd), ARG(T, ds), ARG(T, dx), ARG(const uint, sample),
                         ARG(const int, position), ARG(const uint, ctl), long d, int layer, int has, uint threshold,
                         uint op)
{
    GROUP_MEMORY
    const long r = get_group_id(0), at = r * d;
    float m = 0.0f, k = 0.0f;
    vf sum_g = (vf)(0.0f), sum_gx = (vf)(0.0f);
    if (has & 1) {
        m = layer ? AT(mean)[r] : 0.0f;
        k = AT(rstd)[r];
        ROW(i, d)
        {
            vf g = ldt(AT(dy) + at, i, d) * ldf(AT(gamma), i, d);
            sum_g += g;
            sum_gx += g * ((ldt(AT(s) + at, i, d) - m) * k);
        }
    }
    const float all_g = group_sum(HSUM(sum_g)) / (float)d, mean_g = layer ? all_g : 0.0f;
    const float mean_gx = group_sum(HSUM(sum_gx)) / (float)d;
    const uint who = threshold ? AT(sample)[r] : 0, where = threshold ? (uint)AT(position)[r] : 0;
    ROW(i, d)
    {
        vf v = (vf)(0.0f);
        if (has & 1) {
            vf g = ldt(AT(dy) + at, i, d) * ldf(AT(gamma), i, d);
            v = k * (g - mean_g - (ldt(AT(s) + at, i, d) - m) * k * mean_gx);
        }
        if (has & 2) v += ldt(AT(ds_in) + at, i, d);
        stt(AT(ds) + at, i, d, v);
        if (!(has & 4)) continue;
#if BF16
        v = ldt(AT(ds) + at, i, d); /* as stored */
#endif
        if (threshold) v *= keep_columns(0, i, where, who, AT(ctl)[CTL_STEP], AT(ctl)[CTL_SEED], op, threshold);
        if (has & 8) v += ldt(AT(dx) + at, i, d);
        stt(AT(dx) + at, i, d, v);
    }
}

/* The column sums of dy xh and of dy over blocks of rows: part is (2, blocks, d). */
kernel void norm_cols(ARG(const T, s), ARG(const T, dy), ARG(const float, mean), ARG(const float, rstd),
                      ARG(float, part), long rows, long d, long per_block, long blocks, int layer)
{
    const long b = get_global_id(1), first = b * per_block, end = min(first + per_block, rows);
    for (long c = (long)get_global_id(0) * COLS, last = min(c + COLS, d); c < last; c += VW) {
        vf gamma = (vf)(0.0f), beta = (vf)(0.0f);
        for (long r = first; r < end; r++) {
            vf g = ldt(AT(dy) + r * d, c, d);
            const float m = layer ? AT(mean)[r] : 0.0f;
            gamma += g * ((ldt(AT(s) + r * d, c, d) - m) * AT(rstd)[r]);
            beta += g;
        }
        stf(AT(part) + b * d, c, d, gamma);
        stf(AT(part) + (blocks + b) * d, c, d, beta);
    }
}
