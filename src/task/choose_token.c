/* choose_token.c: the next token from the logits of a model.
 *
 * Order: the repetition penalty lowers tokens that the text contains already (Keskar et al. 2019), the temperature
 * divides, top_k keeps the likeliest k, top_p the likeliest ones that together have that probability (Holtzman et
 * al. 2020), then one is drawn. Temperature 0 takes the likeliest.
 *
 * Tokens that top_p cannot reach are not sorted: of n tokens, those below (1 - top_p) / n have less than 1 - top_p
 * together, so the others suffice. */
#include "task/choose_token.h"
#include "base/mem.h"

#include <math.h>
#include <stdlib.h>

struct neb_token_candidate {
    double value;
    int32_t id;
};

neb_status neb__token_chooser_init(struct neb_token_chooser *c)
{
    c->list = NEB_NEW_ARRAY(struct neb_token_candidate, (size_t)c->vocab);
    c->seen = NEB_NEW_ARRAY(uint8_t, (size_t)c->vocab);
    if (c->list && c->seen) return NEB_OK;
    neb__token_chooser_free(c);
    return neb__fail(NEB_ERR_NOMEM, "out of memory for a vocabulary of %d", (int)c->vocab);
}

void neb__token_chooser_free(struct neb_token_chooser *c)
{
    neb__free(c->list);
    neb__free(c->seen);
    c->list = NULL;
    c->seen = NULL;
}

static double penalised(const struct neb_token_chooser *c, float logit, int32_t id)
{
    const double x = (double)logit;
    if (c->absent[id]) return -INFINITY;
    if (c->repetition == 1 || !c->seen[id]) return x;
    return x > 0 ? x / c->repetition : x * c->repetition;
}

static int32_t likeliest(const struct neb_token_chooser *c, const float *logits)
{
    int32_t best = 0;
    double most = -INFINITY;
    for (int32_t i = 0; i < c->vocab; i++) {
        const double x = penalised(c, logits[i], i);
        if (x > most) most = x, best = i;
    }
    return best;
}

static int likelier(const void *a, const void *b)
{
    const struct neb_token_candidate *x = a, *y = b;
    if (x->value != y->value) return x->value < y->value ? 1 : -1;
    return x->id < y->id ? -1 : 1;
}

/* Fills the list with the tokens that can be drawn, sorted; gives their number. *mass: the sum of all exponentials,
 * where the likeliest token's is 1. */
static int32_t candidates(struct neb_token_chooser *c, const float *logits, double *mass)
{
    double top = -INFINITY, all = 0;
    int32_t n = 0;
    for (int32_t i = 0; i < c->vocab; i++) {
        const double x = penalised(c, logits[i], i) / c->temperature;
        c->list[i] = (struct neb_token_candidate){x, i};
        if (x > top) top = x;
    }
    for (int32_t i = 0; i < c->vocab; i++) all += exp(c->list[i].value - top);
    /* with top_k the mass of the k counts, not of all: nothing is left out then */
    const double least = c->top_k ? -INFINITY : top + log(all * (1 - c->top_p) / c->vocab);
    for (int32_t i = 0; i < c->vocab; i++)
        if (c->list[i].value >= least) c->list[n++] = c->list[i];
    qsort(c->list, (size_t)n, sizeof *c->list, likelier);
    *mass = all;
    return n;
}

/* How many of the n sorted candidates take part in the draw; their values become probabilities, up to a factor. */
static int32_t keep(struct neb_token_chooser *c, int32_t n, double all)
{
    const double top = c->list[0].value;
    double sum = 0, listed = 0;
    int32_t kept = 0;
    if (c->top_k && c->top_k < n) n = (int32_t)c->top_k;
    for (int32_t i = 0; i < n; i++) listed += c->list[i].value = exp(c->list[i].value - top);
    if (c->top_k) all = listed;
    while (kept < n && (kept == 0 || sum < c->top_p * all)) sum += c->list[kept++].value;
    return kept;
}

static int32_t drawn(struct neb_token_chooser *c, const float *logits)
{
    double all, sum = 0, at;
    int32_t n = candidates(c, logits, &all);
    n = keep(c, n, all);
    for (int32_t i = 0; i < n; i++) sum += c->list[i].value;
    at = neb__rng_uniform(&c->rng) * sum;
    for (int32_t i = 0; i + 1 < n; i++)
        if ((at -= c->list[i].value) < 0) return c->list[i].id;
    return c->list[n - 1].id;
}

int32_t neb__token_choose(struct neb_token_chooser *c, const float *logits)
{
    return c->temperature > 0 ? drawn(c, logits) : likeliest(c, logits);
}
