/* k_sample.h: one column of a row, drawn by the race of nebula/device.h. Random numbers, their logarithms and
 * the scores are computed for four vectors at a time. Only a vector with a score above the best so far is
 * searched lane by lane. */
#ifndef NEB_CPU_K_SAMPLE_H
#define NEB_CPU_K_SAMPLE_H

#define RACE_BLOCK (LANES * 4) /* columns for which LANES counters give random words */

/* -log(-log(1 - d)) for d = (word + 1/2) / 2^32. For small d, where the winners lie, a series replaces the
 * inner logarithm. */
INLINE vf race_noise(vu word)
{
    vf d = (__builtin_convertvector(word, vf) + set1(0.5f)) * set1(0x1p-32f);
    d = vmin(set1(0x1.fffffep-1f), d);
    vf p = set1(1.0f / 6);
    p = p * d + set1(1.0f / 5);
    p = p * d + set1(1.0f / 4);
    p = p * d + set1(1.0f / 3);
    p = p * d + set1(1.0f / 2);
    p = p * d + set1(1.0f);
    return -vlog(pick(d < set1(1.0f / 16), p * d, -vlog(set1(1.0f) - d)));
}

INLINE int32_t sample_row(const struct neb_sample *a, int64_t r, const neb_dtype T)
{
    const void *x = at(a->x, r * a->cols, T);
    const struct neb_drop_key key = {{a->seed, a->op}, 0, (uint32_t)a->position[r], a->sample[r], a->step};
    const vf inverse = set1(1 / a->temperature);
    float best = -__builtin_inff();
    int32_t id = 0;
    for (int64_t first = 0; first < a->cols; first += RACE_BLOCK) {
        uint32_t word[RACE_BLOCK];
        philox_words(&key, (uint32_t)(first / 4), word);
        for (int64_t i = first; i < first + RACE_BLOCK && i < a->cols; i += LANES) {
            const int n = width(a->cols - i);
            const vf score = load(x, i, n, T) * inverse + race_noise(*(const vu_mem *)(word + (i - first)));
            if (__builtin_expect(!any_above(score, set1(best)), 1)) continue;
            for (int j = 0; j < n; j++)
                if (score[j] > best) best = score[j], id = (int32_t)(i + j);
        }
    }
    return id;
}

static void k_sample(const void *args, const struct neb_span *s)
{
    const struct neb_sample *a = args;
    for (int64_t r = s->lo; r < s->hi; r++) BY_TYPE(a->type, a->id[r] = sample_row(a, r, T));
}

#endif
