/* elementwise.cl: element-wise passes: conversion, weights in few bits, axpby, products, activations, bias, gated unit, dropout. */

kernel void convert(ARG(uchar, src), ARG(uchar, dst), long rows, long cols, long ld_src, long ld_dst, int from, int to)
{
    const long r = get_global_id(1);
    if (r >= rows) return;
    /* types of neb_dtype: 0 F32, 1 BF16, 2 I32, 3 I8 */
    const global uchar *s = AT(src);
    global uchar *d = AT(dst);
    for (long c = (long)get_global_id(0) * SPAN, end = min(c + SPAN, cols); c < end; c++) {
        const long i = r * ld_src + c, o = r * ld_dst + c;
        if (from == 3)
            d[o] = s[i];
        else if (from == 0 && to == 1)
            ((global ushort *)d)[o] = to_bf16(((const global float *)s)[i]);
        else if (from == 1 && to == 0)
            ((global float *)d)[o] = from_bf16(((const global ushort *)s)[i]);
        else if (from == 1)
            ((global ushort *)d)[o] = ((const global ushort *)s)[i];
        else
            ((global uint *)d)[o] = ((const global uint *)s)[i];
    }
}

constant float nf4_levels[16] = {
    -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f, -0.18477343022823334f,
    -0.09105003625154495f, 0.0f, 0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
    0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f};

/* A value of a weight in few bits; kinds of neb_narrow_kind: 1 BF16, 2 INT8, 3 NF4 (nebula/device_narrow.h). */
float narrow_value(const global uchar *code, const global uchar *scale, long cols, int kind, long r, long c)
{
    if (kind == 1) return from_bf16(((const global ushort *)code)[r * cols + c]);
    if (kind == 2) return (float)((const global char *)code)[r * cols + c] * ((const global float *)scale)[r];
    const long block = r * ((cols + 63) / 64) + c / 64;
    const uint byte = code[block * 32 + c % 32];
    return nf4_levels[byte >> (c % 64 < 32 ? 0 : 4) & 15] * from_bf16(((const global ushort *)scale)[block]);
}

kernel void widen(ARG(uchar, code), ARG(uchar, scale), ARG(uchar, out), long rows, long cols, int kind, int to)
{
    const long r = get_global_id(1);
    if (r >= rows) return;
    for (long c = (long)get_global_id(0) * SPAN, end = min(c + SPAN, cols); c < end; c++) {
        const float v = narrow_value(AT(code), AT(scale), cols, kind, r, c);
        if (to == 1)
            ((global ushort *)AT(out))[r * cols + c] = to_bf16(v);
        else
            ((global float *)AT(out))[r * cols + c] = v;
    }
}

kernel void axpby(ARG(const T, x), ARG(T, y), long n, float a, float b)
{
    EACH(i, n)
    {
        vf v = a * ldt(AT(x), i, n);
        if (b != 0.0f) v += b * ldt(AT(y), i, n);
        stt(AT(y), i, n, v);
    }
}

kernel void mul(ARG(const T, x), ARG(const T, y), ARG(T, z), long n, int acc)
{
    EACH(i, n)
    {
        vf v = ldt(AT(x), i, n) * ldt(AT(y), i, n);
        if (acc) v += ldt(AT(z), i, n);
        stt(AT(z), i, n, v);
    }
}

kernel void act(ARG(const T, x), ARG(T, y), long n, int kind)
{
    EACH(i, n) stt(AT(y), i, n, act_forward(ldt(AT(x), i, n), kind));
}

kernel void act_bwd(ARG(const T, x), ARG(const T, dy), ARG(T, dx), long n, int kind, int acc)
{
    EACH(i, n)
    {
        vf d = ldt(AT(dy), i, n) * act_slope(ldt(AT(x), i, n), kind);
        if (acc) d += ldt(AT(dx), i, n);
        stt(AT(dx), i, n, d);
    }
}

/* dx *= act'(pre), over rows with a distance between them */
kernel void slope_rows(ARG(const T, pre), ARG(T, dx), long rows, long cols, long ld, int kind)
{
    const long at = get_global_id(1) * ld;
    EACH(i, cols)
    stt(AT(dx) + at, i, cols, ldt(AT(dx) + at, i, cols) * act_slope(ldt(AT(pre) + at, i, cols), kind));
}

kernel void bias(ARG(T, y), ARG(const uchar, b), long cols, int bias_bf16)
{
    const long at = get_global_id(1) * cols;
    const global uchar *raw = AT(b);
    EACH(i, cols)
    {
#if VW == 1
        vf add = bias_bf16 ? from_bf16(((const global ushort *)raw)[i]) : ((const global float *)raw)[i];
#else
        float t[8];
        for (int j = 0; j < 8; j++) {
            t[j] = 0.0f;
            if (i + j < cols)
                t[j] = bias_bf16 ? from_bf16(((const global ushort *)raw)[i + j]) : ((const global float *)raw)[i + j];
        }
        vf add = vload8(0, t);
#endif
        stt(AT(y) + at, i, cols, ldt(AT(y) + at, i, cols) + add);
    }
}

kernel void swiglu(ARG(const T, x), ARG(T, y), long n)
{
    const long r = get_global_id(1);
    const global T *gate = AT(x) + r * 2 * n, *up = gate + n;
    EACH(i, n)
    {
        vf g = ldt(gate, i, n);
        stt(AT(y) + r * n, i, n, g * vsigmoid(g) * ldt(up, i, n));
    }
}

kernel void swiglu_bwd(ARG(const T, x), ARG(const T, dy), ARG(T, dx), long n)
{
    const long r = get_global_id(1);
    const global T *gate = AT(x) + r * 2 * n, *up = gate + n;
    global T *d_gate = AT(dx) + r * 2 * n, *d_up = d_gate + n;
    EACH(i, n)
    {
        vf g = ldt(gate, i, n), u = ldt(up, i, n), d = ldt(AT(dy) + r * n, i, n), s = vsigmoid(g);
        stt(d_gate, i, n, d * u * (s * (1.0f + g * (1.0f - s))));
        stt(d_up, i, n, d * (g * s));
    }
}

kernel void dropout(ARG(const T, x), ARG(T, y), ARG(const uint, sample), ARG(const int, position),
                    ARG(const uint, ctl), long cols, uint threshold, uint op, int acc)
{
    const long r = get_global_id(1), at = r * cols;
    const uint who = threshold ? AT(sample)[r] : 0, where = threshold ? (uint)AT(position)[r] : 0;
    EACH(i, cols)
    {
        vf v = ldt(AT(x) + at, i, cols);
        if (threshold) v *= keep_columns(0, i, where, who, AT(ctl)[CTL_STEP], AT(ctl)[CTL_SEED], op, threshold);
        if (acc) v += ldt(AT(y) + at, i, cols);
        stt(AT(y) + at, i, cols, v);
    }
}

/* ---- column sums: first over blocks of rows into `part` (blocks, cols), then over the blocks ---- */

kernel void colsum_part(ARG(const T, x), ARG(float, part), long rows, long cols, long ldx, long per_block)
{
    const long b = get_global_id(1), first = b * per_block, end = min(first + per_block, rows);
    for (long c = (long)get_global_id(0) * COLS, last = min(c + COLS, cols); c < last; c += VW) {
        vf sum = (vf)(0.0f);
        for (long r = first; r < end; r++) sum += ldt(AT(x) + r * ldx, c, cols);
        stf(AT(part) + b * cols, c, cols, sum);
    }
}

kernel void colsum_add(ARG(const float, part), ARG(float, out), long blocks, long cols, int acc)
{
    for (long c = (long)get_global_id(0) * COLS, last = min(c + COLS, cols); c < last; c += VW) {
        vf sum = (vf)(0.0f);
        for (long b = 0; b < blocks; b++) sum += ldf(AT(part) + b * cols, c, cols);
        if (acc) sum += ldf(AT(out), c, cols);
        stf(AT(out), c, cols, sum);
    }
}
