/* source_mix.c: draws samples from several sources by quota, not by independent random choices.
 *
 * Draws come in cycles of fixed length. In a cycle every source has a fixed quota (largest remainders of its
 * share), and a keyed permutation says which draw of the cycle belongs to which source. So the number of
 * draws that a source had before draw d follows from d alone, and with it the epoch and the place in that
 * epoch. A second keyed permutation over the source's samples turns the place into a sample. Independent
 * random choices would need the whole history for that.
 *
 * The permutation is a balanced Feistel network of four rounds over the next even power of two, applied until
 * the result lies inside the range (Black and Rogaway 2002). So shuffling a billion samples takes no
 * memory. */
#include "text/source_mix.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

uint64_t neb__mix_permute(uint64_t key, uint64_t n, uint64_t i)
{
    int half = 1;
    while (half < 32 && (uint64_t)1 << 2 * half < n) half++;
    uint64_t mask = ((uint64_t)1 << half) - 1;
    do {
        uint64_t left = i >> half, right = i & mask;
        for (uint64_t round = 0; round < 4; round++) {
            uint64_t next = left ^ (neb__mix64(key + neb__mix64(right << 3 | round)) & mask);
            left = right;
            right = next;
        }
        i = left << half | right;
    } while (i >= n);
    return i;
}

struct neb_mix {
    uint64_t seed, cycle; /* cycle: draws in one */
    int sources;
    int64_t *count;
    uint32_t *quota, *seen;
    /* the present cycle */
    uint64_t at;
    int32_t *who;    /* (cycle) source */
    uint32_t *which; /* (cycle) how many draws of that source came before in this cycle */
};

/* Computes quotas that sum to the cycle; each source gets at least one. */
static void divide(struct neb_mix *m, const double *share, double *rest)
{
    uint64_t given = 0;
    for (int s = 0; s < m->sources; s++) {
        double exact = share[s] * (double)m->cycle;
        m->quota[s] = exact < 1 ? 1 : (uint32_t)exact;
        rest[s] = exact - m->quota[s];
        given += m->quota[s];
    }
    while (given != m->cycle) {
        int best = -1;
        for (int s = 0; s < m->sources; s++) {
            if (given > m->cycle && m->quota[s] < 2) continue;
            if (best < 0 || (given < m->cycle ? rest[s] > rest[best] : rest[s] < rest[best])) best = s;
        }
        int up = given < m->cycle ? 1 : -1;
        m->quota[best] += (uint32_t)up;
        rest[best] -= up;
        given += (uint64_t)(int64_t)up;
    }
}

/* A draw from a source gives tokens / samples tokens, so `weight * samples` draws give tokens in proportion to its size, and
 * (the language's tokens)^(1/temperature - 1) brings the language as a whole to its share. */
static double share_of(const struct neb_mix_source *source, int n, int s, double temperature,
                       enum neb_mix_rule rule)
{
    const struct neb_mix_source *a = &source[s];
    double tokens = 0;
    if (rule == NEB_MIX_BY_SOURCE) return a->weight * pow((double)a->samples, 1 / temperature);
    for (int i = 0; i < n; i++)
        if (source[i].language == a->language) tokens += (double)source[i].tokens;
    return a->weight * (double)a->samples * pow(tokens, 1 / temperature - 1);
}

static neb_status shares(const struct neb_mix_source *source, int n, double temperature,
                         enum neb_mix_rule rule, double *out)
{
    double sum = 0;
    for (int s = 0; s < n; s++) {
        const struct neb_mix_source *a = &source[s];
        if (a->samples <= 0 || a->tokens <= 0 || !(a->weight > 0) || !isfinite(a->weight))
            return neb__fail(NEB_ERR_INVALID,
                             "cannot draw from source %d with %" PRId64 " samples of %" PRId64
                             " tokens and weight %g; all must be positive",
                             s, a->samples, a->tokens, a->weight);
        out[s] = share_of(source, n, s, temperature, rule);
        sum += out[s];
    }
    for (int s = 0; s < n; s++) out[s] /= sum;
    return NEB_OK;
}

static neb_status reserve(struct neb_mix *m, size_t n)
{
    m->count = NEB_NEW_ARRAY(int64_t, n);
    m->quota = NEB_NEW_ARRAY(uint32_t, n);
    m->seen = NEB_NEW_ARRAY(uint32_t, n);
    m->who = NEB_NEW_ARRAY(int32_t, m->cycle);
    m->which = NEB_NEW_ARRAY(uint32_t, m->cycle);
    return m->count && m->quota && m->seen && m->who && m->which ? NEB_OK : NEB_ERR_NOMEM;
}

neb_status neb__mix_create(uint64_t seed, int sources, const struct neb_mix_source *source,
                           double temperature, enum neb_mix_rule rule, struct neb_mix **out)
{
    if (sources < 1 || sources > 4096 || !(temperature > 0))
        return neb__fail(NEB_ERR_INVALID,
                         "cannot draw from %d sources with temperature %g; 1 to 4096 sources and a positive "
                         "temperature are needed",
                         sources, temperature);
    size_t n = (size_t)sources;
    struct neb_mix *m = NEB_NEW(struct neb_mix);
    double *share = NEB_NEW_ARRAY(double, 2 * n);
    neb_status status = m && share ? NEB_OK : NEB_ERR_NOMEM;
    if (status == NEB_OK) {
        m->seed = seed;
        m->sources = sources;
        m->cycle = sources * 16 > 1024 ? (uint64_t)sources * 16 : 1024;
        m->at = UINT64_MAX;
        status = reserve(m, n);
    }
    if (status != NEB_OK) neb__fail(status, "not enough memory to draw from %d sources", sources);
    if (status == NEB_OK) status = shares(source, sources, temperature, rule, share);
    if (status == NEB_OK) {
        for (int s = 0; s < sources; s++) m->count[s] = source[s].samples;
        divide(m, share, share + n);
        *out = m;
    } else {
        neb__mix_free(m);
    }
    neb__free(share);
    return status;
}

void neb__mix_free(struct neb_mix *m)
{
    if (!m) return;
    neb__free(m->count);
    neb__free(m->quota);
    neb__free(m->seen);
    neb__free(m->who);
    neb__free(m->which);
    neb__free(m);
}

static void make_cycle(struct neb_mix *m, uint64_t cycle)
{
    uint64_t slot = 0;
    for (int s = 0; s < m->sources; s++)
        for (uint32_t k = 0; k < m->quota[s]; k++, slot++)
            m->who[neb__mix_permute(neb__mix64(m->seed) ^ neb__mix64(cycle), m->cycle, slot)] = s;
    memset(m->seen, 0, (size_t)m->sources * sizeof *m->seen);
    for (uint64_t i = 0; i < m->cycle; i++) m->which[i] = m->seen[m->who[i]]++;
    m->at = cycle;
}

struct neb_pick neb__mix_draw(struct neb_mix *m, uint64_t draw)
{
    uint64_t cycle = draw / m->cycle, place = draw % m->cycle;
    if (cycle != m->at) make_cycle(m, cycle);
    struct neb_pick p = {.source = m->who[place]};
    uint64_t before = cycle * m->quota[p.source] + m->which[place], n = (uint64_t)m->count[p.source];
    p.epoch = (int64_t)(before / n);
    uint64_t key = neb__mix64(m->seed + neb__mix64((uint64_t)p.source << 40 ^ (uint64_t)p.epoch));
    p.sample = (int64_t)neb__mix_permute(key, n, before % n);
    return p;
}

double neb__mix_share(const struct neb_mix *m, int source)
{
    return (double)m->quota[source] / (double)m->cycle;
}
