/* score.c: BLEU (Papineni et al. 2002) and chrF (Popović 2015), counted as sacreBLEU counts them.
 *
 * An n-gram is identified by a 64-bit hash. The n-grams of a text are a sorted array of hashes, so counting
 * matches is a walk over two arrays. BLEU clips the count of a hypothesis' n-gram by its largest count in any
 * one reference, and uses the reference length nearest to the hypothesis'. chrF uses, per sentence, the
 * reference with the best score. */
#include "text/score.h"
#include "base/clamp.h"
#include "text/score_words.h"
#include "base/mem.h"
#include "base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHARS = 6 };

/* Hashes of a text's units: words or characters. */
struct units {
    uint64_t *h; /* owned */
    size_t n, cap;
};

static neb_status push(struct units *u, uint64_t h)
{
    if (u->n == u->cap) {
        size_t cap = u->cap ? 2 * u->cap : 256;
        uint64_t *p = neb__realloc(u->h, cap * sizeof *p);
        if (!p) return neb__fail(NEB_ERR_NOMEM, "out of memory for %zu n-grams", cap);
        u->h = p;
        u->cap = cap;
    }
    u->h[u->n++] = h;
    return NEB_OK;
}

static neb_status push_word(struct units *u, const int32_t *c, size_t n)
{
    uint64_t h = 0;
    for (size_t i = 0; i < n; i++) h = neb__mix64(h ^ (uint64_t)c[i]);
    return push(u, h);
}

/* chrF++ splits off one mark of punctuation at the end of a word, else at its start. */
static neb_status push_chrf_word(struct units *u, const int32_t *c, size_t n)
{
    static const char marks[] = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
    bool last = c[n - 1] < 128 && strchr(marks, (char)c[n - 1]),
         first = c[0] < 128 && strchr(marks, (char)c[0]);
    size_t cut = n;
    if (n > 1 && first) cut = 1;
    if (n > 1 && last) cut = n - 1;
    NEB_TRY(push_word(u, c, cut));
    return cut < n ? push_word(u, c + cut, n - cut) : NEB_OK;
}

static neb_status words_of(const struct neb_chars *t, bool chrf, struct units *u)
{
    u->n = 0;
    for (size_t i = 0, from = 0; i <= t->n; i++) {
        if (i < t->n && !neb__chars_is_space(t->c[i])) continue;
        if (i > from)
            NEB_TRY(chrf ? push_chrf_word(u, t->c + from, i - from) : push_word(u, t->c + from, i - from));
        from = i + 1;
    }
    return NEB_OK;
}

static neb_status chars_of(const struct neb_chars *t, struct units *u)
{
    u->n = 0;
    for (size_t i = 0; i < t->n; i++)
        if (!neb__chars_is_space(t->c[i])) NEB_TRY(push_word(u, t->c + i, 1));
    return NEB_OK;
}

static int by_hash(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static neb_status grams_of(const struct units *u, size_t order, struct units *out)
{
    out->n = 0;
    for (size_t i = 0; i + order <= u->n; i++) {
        uint64_t h = order;
        for (size_t k = 0; k < order; k++) h = neb__mix64(h ^ u->h[i + k]);
        NEB_TRY(push(out, h));
    }
    if (out->n) qsort(out->h, out->n, sizeof *out->h, by_hash);
    return NEB_OK;
}

static size_t count_in(const struct units *sorted, uint64_t h)
{
    size_t low = 0, high = sorted->n, n = 0;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (sorted->h[mid] < h)
            low = mid + 1;
        else
            high = mid;
    }
    while (low + n < sorted->n && sorted->h[low + n] == h) n++;
    return n;
}

/* Matches of the hypothesis' n-grams, each clipped by the largest count in any reference. */
static int64_t clipped(const struct units *hyp, const struct units *refs, int n)
{
    int64_t matches = 0;
    for (size_t i = 0; i < hyp->n;) {
        size_t mine = 1, most = 0;
        while (i + mine < hyp->n && hyp->h[i + mine] == hyp->h[i]) mine++;
        for (int r = 0; r < n; r++) {
            size_t k = count_in(&refs[r], hyp->h[i]);
            most = k > most ? k : most;
        }
        matches += (int64_t)(mine < most ? mine : most);
        i += mine;
    }
    return matches;
}

static neb_status check_refs(int n)
{
    if (n >= 1 && n <= NEB_SCORE_REFS) return NEB_OK;
    return neb__fail(NEB_ERR_INVALID, "%d references given; 1 to %d are possible", n, NEB_SCORE_REFS);
}

/* ---- BLEU ---------------------------------------------------------------------------------------------- */

void neb__bleu_init(struct neb_bleu *b, enum neb_word_split split, bool lower)
{
    *b = (struct neb_bleu){.split = split, .lower = lower};
}

static neb_status bleu_words(const struct neb_bleu *b, const char *text, struct neb_chars *t, struct units *u)
{
    NEB_TRY(neb__chars_decode(t, text, b->lower));
    NEB_TRY(neb__chars_split(t, b->split));
    return words_of(t, false, u);
}

/* word[0] is the hypothesis, then the references; likewise gram. */
static neb_status bleu_count(struct neb_bleu *b, const struct units *word, struct units *gram, int n)
{
    struct neb_bleu sum = *b;
    for (size_t order = 1; order <= NEB_BLEU_ORDER; order++) {
        for (int i = 0; i <= n; i++) NEB_TRY(grams_of(&word[i], order, &gram[i]));
        sum.total[order - 1] += (int64_t)gram[0].n;
        sum.match[order - 1] += clipped(&gram[0], gram + 1, n);
    }
    int64_t len = (int64_t)word[0].n, best = (int64_t)word[1].n;
    for (int i = 2; i <= n; i++) {
        int64_t k = (int64_t)word[i].n, d = llabs(k - len), e = llabs(best - len);
        if (d < e || (d == e && k < best)) best = k;
    }
    sum.hyp_len += len;
    sum.ref_len += best;
    *b = sum;
    return NEB_OK;
}

neb_status neb__bleu_add(struct neb_bleu *b, const char *hyp, const char *const *refs, int n)
{
    NEB_TRY(check_refs(n));
    struct neb_chars t = {0};
    struct units word[NEB_SCORE_REFS + 1] = {{0}}, gram[NEB_SCORE_REFS + 1] = {{0}};
    neb_status status = bleu_words(b, hyp, &t, &word[0]);
    for (int i = 0; i < n && status == NEB_OK; i++) status = bleu_words(b, refs[i], &t, &word[i + 1]);
    if (status == NEB_OK) status = bleu_count(b, word, gram, n);
    for (int i = 0; i <= n; i++) neb__free(word[i].h), neb__free(gram[i].h);
    neb__chars_free(&t);
    return status;
}

double neb__bleu_brevity(const struct neb_bleu *b)
{
    if (b->hyp_len >= b->ref_len) return 1;
    return b->hyp_len ? exp(1 - (double)b->ref_len / (double)b->hyp_len) : 0;
}

double neb__bleu_score(const struct neb_bleu *b)
{
    double logs = 0, smooth = 1;
    bool any = false;
    for (int n = 0; n < NEB_BLEU_ORDER; n++) any |= b->match[n] > 0;
    if (!any) return 0;
    for (int n = 0; n < NEB_BLEU_ORDER; n++) {
        if (!b->total[n]) return 0; /* log of zero */
        double p = (double)b->match[n];
        if (!b->match[n]) p = 1 / (smooth *= 2);
        logs += log(100 * p / (double)b->total[n]);
    }
    return neb__bleu_brevity(b) * exp(logs / NEB_BLEU_ORDER);
}

void neb__bleu_sum(struct neb_bleu *b, const struct neb_bleu *more)
{
    for (int n = 0; n < NEB_BLEU_ORDER; n++) {
        b->match[n] += more->match[n];
        b->total[n] += more->total[n];
    }
    b->hyp_len += more->hyp_len;
    b->ref_len += more->ref_len;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void neb__bleu_interval(const struct neb_bleu *each, int n, double *low, double *high)
{
    enum { DRAWS = 1000 };
    double score[DRAWS];
    struct neb_rng rng = {12345};
    for (int d = 0; d < DRAWS; d++) {
        struct neb_bleu sum = {0};
        for (int i = 0; i < n; i++) neb__bleu_sum(&sum, &each[neb__rng_below(&rng, (uint64_t)n)]);
        score[d] = neb__bleu_score(&sum);
    }
    qsort(score, DRAWS, sizeof *score, by_value);
    *low = score[DRAWS / 40];
    *high = score[DRAWS - 1 - DRAWS / 40];
}

/* ---- chrF ---------------------------------------------------------------------------------------------- */

void neb__chrf_init(struct neb_chrf *c, int words, bool lower)
{
    *c = (struct neb_chrf){.words = (int)neb__clamp_int(words, 0, 2), .lower = lower};
}

double neb__chrf_score(const struct neb_chrf *c)
{
    double precision = 0, recall = 0;
    int orders = 0;
    for (int i = 0; i < CHARS + c->words; i++) {
        if (!c->hyp[i] || !c->ref[i]) continue;
        precision += (double)c->match[i] / (double)c->hyp[i];
        recall += (double)c->match[i] / (double)c->ref[i];
        orders++;
    }
    if (!orders || precision + recall == 0) return 0;
    precision /= orders;
    recall /= orders;
    return 100 * 5 * precision * recall / (4 * precision + recall); /* beta 2 */
}

struct side {
    struct units chars, words;
};

static neb_status chrf_side(const struct neb_chrf *c, const char *text, struct neb_chars *t, struct side *out)
{
    NEB_TRY(neb__chars_decode(t, text, c->lower));
    NEB_TRY(chars_of(t, &out->chars));
    return words_of(t, true, &out->words);
}

static neb_status chrf_compare(const struct side *hyp, const struct side *ref, struct units gram[2],
                               struct neb_chrf *out)
{
    for (int i = 0; i < CHARS + out->words; i++) {
        bool chars = i < CHARS;
        size_t order = chars ? (size_t)i + 1 : (size_t)(i - CHARS) + 1;
        NEB_TRY(grams_of(chars ? &hyp->chars : &hyp->words, order, &gram[0]));
        NEB_TRY(grams_of(chars ? &ref->chars : &ref->words, order, &gram[1]));
        out->hyp[i] =
            gram[1].n ? (int64_t)gram[0].n : 0; /* without n-grams in the reference, no hits are expected */
        out->ref[i] = (int64_t)gram[1].n;
        out->match[i] = clipped(&gram[0], &gram[1], 1);
    }
    return NEB_OK;
}

neb_status neb__chrf_add(struct neb_chrf *c, const char *hyp, const char *const *refs, int n)
{
    NEB_TRY(check_refs(n));
    struct neb_chars t = {0};
    struct side h = {{0}, {0}}, r = {{0}, {0}};
    struct units gram[2] = {{0}, {0}};
    struct neb_chrf best = {0};
    double best_score = -1;
    neb_status status = chrf_side(c, hyp, &t, &h);
    for (int i = 0; i < n && status == NEB_OK; i++) {
        struct neb_chrf one;
        neb__chrf_init(&one, c->words, c->lower);
        status = chrf_side(c, refs[i], &t, &r);
        if (status == NEB_OK) status = chrf_compare(&h, &r, gram, &one);
        if (status == NEB_OK && neb__chrf_score(&one) > best_score) {
            best_score = neb__chrf_score(&one);
            best = one;
        }
    }
    for (int i = 0; i < NEB_CHRF_ORDERS && status == NEB_OK; i++) {
        c->hyp[i] += best.hyp[i];
        c->ref[i] += best.ref[i];
        c->match[i] += best.match[i];
    }
    neb__free(h.chars.h), neb__free(h.words.h), neb__free(r.chars.h), neb__free(r.words.h);
    neb__free(gram[0].h), neb__free(gram[1].h);
    neb__chars_free(&t);
    return status;
}
