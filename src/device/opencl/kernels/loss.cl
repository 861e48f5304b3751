/* loss.cl: the losses. Every row leaves its loss and its marks (bit i: it counts in counts[i]); loss_sum adds them to the
 * control block in a fixed order. */

static inline float loss_factor(const global float *weight, int weighted, float scale, const global uint *ctl, long r)
{
    return (weighted ? weight[r] : 1.0f) * scale * as_float(ctl[CTL_LOSS_SCALE]);
}

enum { X_TARGET = 1, X_WEIGHT = 2, X_IDS = 4, X_GRAD = 8, X_KD = 16 };

/* grad = ce_w (p - (1 - s) [target] - s / n) + kd_w (p_T - q), written over the logits. */
ROW_KERNEL void xent(ARG(T, logits), ARG(const int, target), ARG(const float, weight), ARG(const int, ids),
                     ARG(const float, teacher), ARG(const uint, ctl), ARG(float, part), ARG(uint, marks), long n, long ld,
                     long teacher_k, float ce, float smoothing, float kd, float temperature, float scale, int has)
{
    GROUP_MEMORY
    const long r = get_group_id(0);
    const int l = get_local_id(0);
    global T *x = AT(logits) + r * ld;
    const long goal = has & X_TARGET ? AT(target)[r] : -1;
    const bool off = (has & X_TARGET) && (goal < 0 || goal >= n); /* the row does not count */
    const float w = loss_factor(AT(weight), has & X_WEIGHT, scale, AT(ctl), r);
    const bool has_ce = (has & X_TARGET) && ce != 0.0f, has_kd = has & X_KD;
    const float inv_t = has_kd ? 1.0f / temperature : 1.0f;
    float top = -INFINITY;
    ROW(i, n)
    {
        vf v = ldt(x, i, n);
        top = fmax(top, HMAX(lanes_below(i, n) > 0.0f ? v : (vf)(-INFINITY)));
    }
    top = group_max(top);
    const float goal_x = goal >= 0 && !off ? LD1(x, goal) : 0.0f;
    vf s1 = (vf)(0.0f), st = (vf)(0.0f), sx = (vf)(0.0f);
    ROW(i, n)
    {
        vf v = ldt(x, i, n), in = lanes_below(i, n);
        s1 += vexp(v - top) * in;
        if (has_kd) st += vexp((v - top) * inv_t) * in;
        sx += v;
    }
    const float sum1 = group_sum(HSUM(s1)), sum_x = group_sum(HSUM(sx));
    const float all_t = group_sum(HSUM(st)), sum_t = has_kd ? all_t : 1.0f;
    float loss = 0.0f;
    if (has_ce) loss = ce * (log(sum1) + (top - (1.0f - smoothing) * goal_x - smoothing * (sum_x / (float)n)));

    const long k = has & X_IDS ? teacher_k : n;
    const global int *id = AT(ids) + r * k;
    const global float *t = AT(teacher) + r * k;
    const long given = has_kd ? k : 0; /* without a teacher the loops below are empty */
    float t_top = -INFINITY, t_sum = 0.0f, kl = 0.0f;
    for (long j = l; j < given; j += WG)
        if (!(has & X_IDS) || (id[j] >= 0 && id[j] < n)) t_top = fmax(t_top, t[j]);
    t_top = group_max(t_top);
    for (long j = l; j < given; j += WG)
        if (!(has & X_IDS) || (id[j] >= 0 && id[j] < n)) t_sum += exp((t[j] - t_top) * inv_t);
    t_sum = group_sum(t_sum);
    const float log_sum = log(t_sum), lse_t = log(sum_t);
    for (long j = l; j < given; j += WG) /* x counts from the largest logit, so that no large numbers cancel */
        if (!(has & X_IDS) || (id[j] >= 0 && id[j] < n)) {
            float log_q = (t[j] - t_top) * inv_t - log_sum, q = exp(log_q);
            if (q > 0.0f) kl += q * (log_q - (LD1(x, has & X_IDS ? id[j] : j) - top) * inv_t + lse_t);
        }
    kl = group_sum(kl);
    if (t_sum > 0.0f) loss += kd * temperature * temperature * kl;
    if (l == 0) {
        const bool counts = !(has & X_WEIGHT) || AT(weight)[r] > 0.0f;
        AT(part)[r] = off ? 0.0f : w * loss;
        AT(marks)[r] = off ? 0u : (counts ? 2u : 0u) | (counts && goal >= 0 && goal_x >= top ? 1u : 0u);
    }
    GROUP_SYNC /* all have read what is overwritten now */
    const float ce_w = has_ce ? w * ce : 0.0f, kd_w = has_kd && t_sum > 0.0f ? w * kd * temperature : 0.0f;
    const float a = ce_w / sum1, b = kd_w / sum_t, c = ce_w * smoothing / (float)n;
    const bool grad = has & X_GRAD;
    ROW(i, grad ? n : 0)
    {
        vf v = ldt(x, i, n) - top, g = vexp(v) * a - c;
        if (kd_w != 0.0f) {
            g += vexp(v * inv_t) * b;
            if (!(has & X_IDS)) g -= vexp((ldf(t, i, n) - t_top) * inv_t) * (kd_w / t_sum);
        }
        stt(x, i, n, off ? (vf)(0.0f) : g);
    }
    GROUP_SYNC
    if (l == 0 && grad && !off) {
        if (has_ce) ST1(x, goal, LD1(x, goal) - ce_w * (1.0f - smoothing));
        for (long j = 0; kd_w != 0.0f && (has & X_IDS) && j < k; j++)
            if (id[j] >= 0 && id[j] < n)
                ST1(x, id[j], LD1(x, id[j]) - kd_w * (exp((t[j] - t_top) * inv_t) / t_sum));
    }
}

kernel void bce(ARG(const T, x), ARG(const int, target), ARG(const float, weight), ARG(T, dx), ARG(const uint, ctl),
                ARG(float, part), ARG(uint, marks), long rows, float scale, int has)
{
    /* bits of `has`: 1 dx, 2 weight, 4 acc_dx */
    const long r = get_global_id(0);
    if (r >= rows) return;
    float d = 0.0f, loss = 0.0f;
    uint mark = 0;
    const int goal = AT(target)[r];
    if (goal >= 0) {
        const float v = LD1(AT(x), r), y = goal > 0 ? 1.0f : 0.0f;
        const float w = loss_factor(AT(weight), has & 2, scale, AT(ctl), r);
        const float e = exp(-fabs(v)), p = v > 0.0f ? 1.0f / (1.0f + e) : e / (1.0f + e);
        loss = w * ((v > 0.0f ? v : 0.0f) - v * y + log1p(e));
        if (v != v) loss = v;
        d = w * (p - y);
        const bool right = (v > 0.0f) == (goal > 0);
        if (!(has & 2) || AT(weight)[r] > 0.0f)
            mark = (right ? 1u : 0u) | 2u | (goal > 0 ? 4u : 0u) | (right && goal > 0 ? 8u : 0u);
    }
    if (has & 1) ST1(AT(dx), r, d + (has & 4 ? LD1(AT(dx), r) : 0.0f));
    AT(part)[r] = loss;
    AT(marks)[r] = mark;
}

/* Mean squared error (cosine 0) or 1 - cosine of the rows of x and y. With c = x·y / (|x| |y|) the gradient of 1 - c is
 * -(y / (|x| |y|) - c x / |x|²). Bits of `has`: 1 dx, 2 weight, 4 dy, 8 acc_dx, 16 acc_dy. */
ROW_KERNEL void pair_loss(ARG(const T, x), ARG(const T, y), ARG(const float, weight), ARG(T, dx), ARG(T, dy),
                          ARG(const uint, ctl), ARG(float, part), ARG(uint, marks), long d, float scale, int has,
                          int cosine)
{
    GROUP_MEMORY
    const long r = get_group_id(0), at = r * d;
    const float w = loss_factor(AT(weight), has & 2, scale, AT(ctl), r);
    vf vxx = (vf)(0.0f), vyy = (vf)(0.0f), vxy = (vf)(0.0f);
    ROW(i, d)
    {
        vf a = ldt(AT(x) + at, i, d), b = ldt(AT(y) + at, i, d);
        if (cosine) {
            vxx += a * a, vyy += b * b, vxy += a * b;
        } else {
            vxx += (a - b) * (a - b);
        }
    }
    const float xx = group_sum(HSUM(vxx)), yy = group_sum(HSUM(vyy)), xy = group_sum(HSUM(vxy));
    float own_x, own_y, other, loss;
    if (cosine) {
        const float norm = sqrt(xx) * sqrt(yy), inv = norm == 0.0f ? 0.0f : 1.0f / norm, c = xy * inv;
        loss = w * (1.0f - c);
        own_x = xx > 0.0f ? w * c / xx : 0.0f, own_y = yy > 0.0f ? w * c / yy : 0.0f, other = -w * inv;
    } else {
        loss = w * xx / (float)d;
        own_x = own_y = 2.0f * w / (float)d, other = -own_x;
    }
    if (get_local_id(0) == 0) AT(part)[r] = loss, AT(marks)[r] = 0;
    ROW(i, d)
    {
        vf a = ldt(AT(x) + at, i, d), b = ldt(AT(y) + at, i, d);
        if (has & 1) {
            vf v = own_x * a + other * b;
            if (has & 8) v += ldt(AT(dx) + at, i, d);
            stt(AT(dx) + at, i, d, v);
        }
        if (has & 4) {
            vf v = own_y * b + other * a;
            if (has & 16) v += ldt(AT(dy) + at, i, d);
            stt(AT(dy) + at, i, d, v);
        }
    }
}

/* One group adds all rows. */
ROW_KERNEL void loss_sum(ARG(const float, part), ARG(const uint, marks), ARG(float, ctl), long rows, int slot)
{
    GROUP_MEMORY
    struct exact e = {0.0f, 0.0f};
    float n[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (long r = get_local_id(0); r < rows; r += WG) {
        const uint m = AT(marks)[r];
        exact_add(&e, AT(part)[r]);
        for (int i = 0; i < 4; i++) n[i] += (float)(m >> i & 1u);
    }
    const float sum = group_sum(exact_value(e));
    for (int i = 0; i < 4; i++) n[i] = group_sum(n[i]);
    if (get_local_id(0) == 0) {
        global float *c = AT(ctl);
        c[CTL_LOSS + slot] += sum;
        for (int i = 0; i < 4; i++) c[CTL_COUNTS + i] += n[i];
        if (!isfinite(sum)) ((global uint *)c)[CTL_NONFINITE] = 1u;
    }
}
