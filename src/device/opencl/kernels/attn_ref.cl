/* attn_ref.cl: the primitives of the reference attention, over a matrix of scores in memory: one group a query. */

/* Keys [*first, *first + count) of all k_rows that query r sees. */
static inline long visible(const global int *starts_q, const global int *starts_k, int sequences, long r, int causal, long *first,
                    int *seq)
{
    const int i = sequence_of(starts_q, sequences, r);
    *seq = i;
    *first = 0;
    if (i < 0) return 0;
    const long nq = starts_q[i + 1] - starts_q[i], nk = starts_k[i + 1] - starts_k[i];
    *first = starts_k[i];
    return causal ? clamp(nk - nq + (r - starts_q[i]) + 1, 0L, nk) : nk;
}

ROW_KERNEL void attn_softmax(ARG(float, score), ARG(float, lse), ARG(const int, starts_q), ARG(const int, starts_k),
                             int sequences, long q_rows, long k_rows, int causal, int want_lse)
{
    GROUP_MEMORY
    const long r = get_group_id(0), h = get_group_id(1);
    global float *row = AT(score) + (h * q_rows + r) * k_rows;
    long first;
    int seq;
    const long n = visible(AT(starts_q), AT(starts_k), sequences, r, causal, &first, &seq);
    float top = -INFINITY, sum = 0.0f;
    for (long j = get_local_id(0); j < n; j += WG) top = fmax(top, row[first + j]);
    top = group_max(top);
    for (long j = get_local_id(0); j < n; j += WG) sum += exp(row[first + j] - top);
    sum = group_sum(sum);
    const float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
    for (long j = get_local_id(0); j < k_rows; j += WG) {
        const bool in = j >= first && j < first + n;
        row[j] = in ? exp(row[j] - top) * inverse : 0.0f;
    }
    if (want_lse && get_local_id(0) == 0) AT(lse)[h * q_rows + r] = n > 0 ? top + log(sum) : 0.0f;
}

ROW_KERNEL void attn_softmax_bwd(ARG(const float, prob), ARG(float, dscore), ARG(const int, starts_q),
                                 ARG(const int, starts_k), int sequences, long q_rows, long k_rows, int causal)
{
    GROUP_MEMORY
    const long r = get_group_id(0), h = get_group_id(1), at = (h * q_rows + r) * k_rows;
    const global float *p = AT(prob) + at;
    global float *d = AT(dscore) + at;
    long first;
    int seq;
    const long n = visible(AT(starts_q), AT(starts_k), sequences, r, causal, &first, &seq);
    float dot_sum = 0.0f;
    for (long j = get_local_id(0); j < n; j += WG) dot_sum += p[first + j] * d[first + j];
    dot_sum = group_sum(dot_sum);
    for (long j = get_local_id(0); j < k_rows; j += WG)
        d[j] = j >= first && j < first + n ? p[j] * (d[j] - dot_sum) : 0.0f;
}

ROW_KERNEL void attn_dropout(ARG(float, prob), ARG(const int, starts_q), ARG(const int, starts_k), ARG(const uint, sample),
                             ARG(const uint, ctl), int sequences, long q_rows, long k_rows, uint threshold, uint op,
                             uint first_head)
{
    const long r = get_group_id(0), h = get_group_id(1);
    global float *p = AT(prob) + (h * q_rows + r) * k_rows;
    long first;
    int seq;
    const long n = visible(AT(starts_q), AT(starts_k), sequences, r, 0, &first, &seq);
    if (seq < 0) return;
    const uint where = (uint)(r - AT(starts_q)[seq]), who = AT(sample)[seq];
    for (long i = (long)get_local_id(0) * VW; i < n; i += WG * VW) {
        vf keep = keep_columns((uint)(h + first_head) << 20, i, where, who, AT(ctl)[CTL_STEP], AT(ctl)[CTL_SEED], op,
                               threshold);
        stf(p + first, i, n, ldf(p + first, i, n) * keep);
    }
}
