/* rows.cl: ops that move rows about: embedding, gather and scatter, mean pooling, rotary positions. */

kernel void embed(ARG(const T, t0), ARG(const T, t1), ARG(const T, t2), ARG(const int, i0), ARG(const int, i1),
                  ARG(const int, i2), ARG(T, y), long n0, long n1, long n2, long f0, long f1, long f2, long d,
                  int tables, float scale)
{
    const long r = get_global_id(1);
    const long a = AT(i0)[r] - f0;
    const long b = tables > 1 ? AT(i1)[r] - f1 : -1, c = tables > 2 ? AT(i2)[r] - f2 : -1;
    EACH(i, d)
    {
        vf v = (vf)(0.0f);
        if (a >= 0 && a < n0) v += ldt(AT(t0) + a * d, i, d);
        if (b >= 0 && b < n1) v += ldt(AT(t1) + b * d, i, d);
        if (c >= 0 && c < n2) v += ldt(AT(t2) + c * d, i, d);
        stt(AT(y) + r * d, i, d, scale * v);
    }
}

/* One group for each row of a block of rows. The group whose row is the first of its id in the block adds all rows of
 * the block with that id, in their order. Blocks follow one another on the queue, so no two groups write one value. */
ROW_KERNEL void embed_bwd(ARG(const int, ids), ARG(const T, dy), ARG(float, table), long first_row, long rows,
                          long table_rows, long first_id, long d, float scale)
{
    const long r = first_row + get_group_id(0), end = min(first_row + (long)get_num_groups(0), rows);
    const global int *id = AT(ids);
    const int mine = id[r];
    const long to = (long)mine - first_id;
    if (to < 0 || to >= table_rows) return;
    for (long e = first_row; e < r; e++)
        if (id[e] == mine) return;
    ROW(i, d)
    {
        vf sum = ldf(AT(table) + to * d, i, d);
        for (long e = r; e < end; e++)
            if (id[e] == mine) sum += scale * ldt(AT(dy) + e * d, i, d);
        stf(AT(table) + to * d, i, d, sum);
    }
}

/* Rows of `words` 4-byte or of `d` smaller values: moved as they are. */
kernel void gather(ARG(const uchar, x), ARG(uchar, y), ARG(const int, index), long rows, long d, int size)
{
    const long r = get_global_id(1), from = AT(index)[r];
    const bool in = from >= 0 && from < rows;
    for (long c = (long)get_global_id(0) * SPAN, end = min(c + SPAN, d); c < end; c++) {
        if (size == 4)
            ((global uint *)AT(y))[r * d + c] = in ? ((const global uint *)AT(x))[from * d + c] : 0;
        else if (size == 2)
            ((global ushort *)AT(y))[r * d + c] = in ? ((const global ushort *)AT(x))[from * d + c] : 0;
        else
            AT(y)[r * d + c] = in ? AT(x)[from * d + c] : 0;
    }
}

kernel void scatter(ARG(const T, x), ARG(T, y), ARG(const int, index), long rows, long d, long ldx)
{
    const long r = get_global_id(1), to = AT(index)[r];
    if (to < 0 || to >= rows) return;
    EACH(i, d) stt(AT(y) + to * d, i, d, ldt(AT(y) + to * d, i, d) + ldt(AT(x) + r * ldx, i, d));
}

kernel void pool(ARG(const T, x), ARG(T, y), ARG(const int, starts), long d)
{
    const long q = get_global_id(1), first = AT(starts)[q], end = AT(starts)[q + 1];
    EACH(i, d)
    {
        vf sum = (vf)(0.0f);
        for (long r = first; r < end; r++) sum += ldt(AT(x) + r * d, i, d);
        stt(AT(y) + q * d, i, d, end > first ? sum * (1.0f / (float)(end - first)) : (vf)(0.0f));
    }
}

kernel void pool_bwd(ARG(const T, dy), ARG(T, dx), ARG(const int, starts), int sequences, long d, int acc)
{
    const long r = get_global_id(1);
    const int q = sequence_of(AT(starts), sequences, r);
    if (q < 0 && acc) return;
    const float scale = q < 0 ? 0.0f : 1.0f / (float)(AT(starts)[q + 1] - AT(starts)[q]);
    EACH(i, d)
    {
        vf v = (vf)(0.0f);
        if (q >= 0) v = scale * ldt(AT(dy) + q * d, i, d);
        if (acc) v += ldt(AT(dx) + r * d, i, d);
        stt(AT(dx) + r * d, i, d, v);
    }
}

/* turns: (half) pairs, frequency / 2 pi as a float and what that float leaves over. position * turns is split into whole
 * turns, which do not matter, and an accurate rest. */
kernel void rope(ARG(T, x), ARG(const int, position), ARG(const float, turns), long half_size, long heads, long ldx,
                 float sign)
{
    const long r = get_global_id(1), j = get_global_id(0);
    if (j >= half_size) return;
    const float p = (float)AT(position)[r], hi = AT(turns)[2 * j], lo = AT(turns)[2 * j + 1];
    const float whole = p * hi, left = fma(p, hi, -whole);
    const float part = (whole - rint(whole)) + (left + p * lo);
    const float c = cospi(2.0f * part), s = sign * sinpi(2.0f * part);
    global T *v = AT(x) + r * ldx + j;
    for (long h = 0; h < heads; h++, v += 2 * half_size) {
        float a = LD1(v, 0), b = LD1(v, half_size);
        ST1(v, 0, a * c - b * s);
        ST1(v, half_size, b * c + a * s);
    }
}
