/* inversion_attack.c: the attack itself, on one update, on a sum of them, and on the question whose text a token came from.
 *
 * Rows of a tied token table that stand for tokens of the text point away from the mean row: bench_inversion.c tells why. The attacker
 * ranks all tokens by that.
 *
 * Sums are made as sessions make them: codes of scales that all share, masks of the site's own and of each pair, packed to the bits that
 * the sum needs, added modulo 2^16, the own masks taken off. The scales come from a past mean that was like the present one, which is the
 * finest they can be. To name a site the attacker ranks the tokens in what each site sent alone, and says that the token is from the
 * site where it ranks highest. Of three sites chance is a third. */
#include "inversion_attack.h"
#include "base/mem.h"
#include "outer/scales.h"
#include "privacy/masks.h"
#include "privacy/noise.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { SITES = NEB_INVERSION_SITES };

void neb__inversion_free(struct neb_inversion *u)
{
    neb__free(u->d);
    neb__free(u->in);
    memset(u, 0, sizeof *u);
}

/* ---- ranks --------------------------------------------------------------------------------------------- */

struct guess {
    double score;
    int64_t token;
};

static int by_score(const void *a, const void *b)
{
    double x = ((const struct guess *)a)->score, y = ((const struct guess *)b)->score;
    return (x < y) - (x > y);
}

/* The tokens by how far their rows point away from the mean row, the most suspected first. d: (vocab, width) */
static neb_status rank(const float *d, int64_t vocab, int64_t width, struct guess *guess)
{
    double *mean = NEB_NEW_ARRAY(double, (size_t)width);
    if (!mean) return neb__fail(NEB_ERR_NOMEM, "out of memory for an attack");
    for (int64_t v = 0; v < vocab; v++)
        for (int64_t k = 0; k < width; k++) mean[k] += (double)d[v * width + k] / (double)vocab;
    for (int64_t v = 0; v < vocab; v++) {
        guess[v] = (struct guess){.token = v};
        for (int64_t k = 0; k < width; k++) guess[v].score -= mean[k] * (double)d[v * width + k];
    }
    qsort(guess, (size_t)vocab, sizeof *guess, by_score);
    neb__free(mean);
    return NEB_OK;
}

static void count(const struct guess *guess, const struct neb_inversion *u, struct neb_found *out)
{
    for (int64_t i = 0; i < u->tokens; i++) out->right += u->in[guess[i].token];
    out->guessed += (double)u->tokens;
    out->chance += (double)u->tokens * (double)u->tokens / (double)u->vocab;
}

neb_status neb__inversion_attack(const struct neb_inversion *u, struct neb_found *out)
{
    struct guess *guess = NEB_NEW_ARRAY(struct guess, (size_t)u->vocab);
    neb_status status = guess ? rank(u->d, u->vocab, u->width, guess)
                              : neb__fail(NEB_ERR_NOMEM, "out of memory for an attack");
    if (status == NEB_OK) count(guess, u, out);
    neb__free(guess);
    return status;
}

/* ---- a secure sum -------------------------------------------------------------------------------------- */

struct sum {
    size_t n;
    int bits;
    float *scale;
    uint16_t *code[SITES], *total; /* masked, as the others unpack them; their sum without the masks */
    uint8_t *packed;
    float *mean, *sent[SITES]; /* what the attacker takes them for */
    struct guess *rank[1 + 2 * SITES];
    int64_t *place[2 * SITES]; /* (vocab) place of each token in the ranks of a site: in the clear, masked */
};

static void close_sum(struct sum *s)
{
    for (int i = 0; i < SITES; i++) {
        neb__free(s->code[i]);
        neb__free(s->sent[i]);
    }
    for (int i = 0; i < 2 * SITES; i++) neb__free(s->place[i]);
    for (int i = 0; i < 1 + 2 * SITES; i++) neb__free(s->rank[i]);
    neb__free(s->scale);
    neb__free(s->total);
    neb__free(s->packed);
    neb__free(s->mean);
}

static neb_status open_sum(const struct neb_inversion *u, struct sum *s)
{
    bool ok = true;
    *s = (struct sum){.n = (size_t)(u->vocab * u->width), .bits = neb__mask_bits(SITES)};
    for (int i = 0; i < SITES; i++) {
        ok = (s->code[i] = NEB_NEW_ARRAY(uint16_t, s->n)) && ok;
        ok = (s->sent[i] = NEB_NEW_ARRAY(float, s->n)) && ok;
    }
    for (int i = 0; i < 2 * SITES; i++) ok = (s->place[i] = NEB_NEW_ARRAY(int64_t, (size_t)u->vocab)) && ok;
    for (int i = 0; i < 1 + 2 * SITES; i++)
        ok = (s->rank[i] = NEB_NEW_ARRAY(struct guess, (size_t)u->vocab)) && ok;
    ok = (s->scale = NEB_NEW_ARRAY(float, NEB_SCALES)) && ok;
    ok = (s->total = NEB_NEW_ARRAY(uint16_t, s->n)) && ok;
    ok = (s->packed = NEB_NEW_ARRAY(uint8_t, neb__packed_size(s->n, s->bits))) && ok;
    ok = (s->mean = NEB_NEW_ARRAY(float, s->n)) && ok;
    return ok ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for a secure sum");
}

static neb_status scales_of(const struct neb_inversion *site, struct sum *s)
{
    struct neb_outer *outer;
    if (s->n > (size_t)NEB_SCALES * NEB_SCALE_BLOCK)
        return neb__fail(NEB_ERR_RANGE, "the token table is larger than a cell");
    NEB_TRY(neb__outer_create((uint32_t)(NEB_SCALES * NEB_SCALE_BLOCK), s->mean, s->n, &outer));
    for (size_t k = 0; k < s->n; k++)
        for (int i = 0; i < SITES; i++) outer->m[k] += site[i].d[k] / SITES;
    neb__outer_scales(outer, 0, 0.9f, s->scale);
    neb__outer_destroy(outer);
    return NEB_OK;
}

/* What each site sends, and what all of it adds up to. */
static neb_status make_sum(const struct neb_inversion *site, struct sum *s)
{
    uint8_t own[SITES][NEB_MASK_KEY], pair[NEB_MASK_KEY];
    NEB_TRY(scales_of(site, s));
    for (int i = 0; i < SITES; i++) {
        NEB_TRY(neb__secret_random(own[i], NEB_MASK_KEY));
        neb__codes_make(site[i].d, s->scale, 1, s->n, s->code[i]);
        NEB_TRY(neb__mask_add(own[i], 0, false, s->code[i], s->n));
    }
    for (int i = 0; i < SITES; i++)
        for (int j = i + 1; j < SITES; j++) {
            NEB_TRY(neb__secret_random(pair, NEB_MASK_KEY));
            NEB_TRY(neb__mask_add(pair, 0, false, s->code[i], s->n));
            NEB_TRY(neb__mask_add(pair, 0, true, s->code[j], s->n));
        }
    for (int i = 0; i < SITES; i++) {
        neb__packed_put(s->code[i], s->n, s->bits, s->packed);
        neb__packed_get(s->packed, s->n, s->bits, s->code[i]);
        neb__packed_add(s->packed, s->n, s->bits, s->total);
        neb__codes_values(s->code[i], s->bits, s->scale, 1, s->n, s->sent[i]);
    }
    for (int i = 0; i < SITES; i++) NEB_TRY(neb__mask_add(own[i], 0, true, s->total, s->n));
    neb__codes_values(s->total, s->bits, s->scale, 1.0f / SITES, s->n, s->mean);
    return NEB_OK;
}

/* ---- whose it is --------------------------------------------------------------------------------------- */

static neb_status rank_all(const struct neb_inversion *site, struct sum *s)
{
    const int64_t vocab = site->vocab, width = site->width;
    NEB_TRY(rank(s->mean, vocab, width, s->rank[0]));
    for (int i = 0; i < 2 * SITES; i++) {
        const float *d = i < SITES ? site[i].d : s->sent[i - SITES];
        NEB_TRY(rank(d, vocab, width, s->rank[1 + i]));
        for (int64_t k = 0; k < vocab; k++) s->place[i][s->rank[1 + i][k].token] = k;
    }
    return NEB_OK;
}

/* The site whose ranks, of those from `first` on, have the token highest. */
static int named(const struct sum *s, int first, int64_t token)
{
    int best = 0;
    for (int i = 1; i < SITES; i++)
        if (s->place[first + i][token] < s->place[first + best][token]) best = i;
    return best;
}

neb_status neb__inversion_sum(const struct neb_inversion site[NEB_INVERSION_SITES],
                              struct neb_inversion_sums *out)
{
    struct neb_inversion all = {.vocab = site->vocab, .width = site->width};
    struct sum s;
    neb_status status = open_sum(site, &s);
    all.in = NEB_NEW_ARRAY(uint8_t, (size_t)site->vocab);
    if (status == NEB_OK && !all.in) status = neb__fail(NEB_ERR_NOMEM, "out of memory for a secure sum");
    for (int64_t v = 0; status == NEB_OK && v < all.vocab; v++) {
        for (int i = 0; i < SITES; i++) all.in[v] |= site[i].in[v];
        all.tokens += all.in[v];
    }
    if (status == NEB_OK) status = make_sum(site, &s);
    if (status == NEB_OK) status = rank_all(site, &s);
    if (status == NEB_OK) count(s.rank[0], &all, &out->sum);
    for (int64_t k = 0; status == NEB_OK && k < all.tokens; k++) {
        const int64_t token = s.rank[0][k].token;
        int owners = 0, owner = 0;
        for (int i = 0; i < SITES; i++)
            if (site[i].in[token]) owner = i, owners++;
        if (owners != 1) continue;
        out->plain.right += named(&s, 0, token) == owner;
        out->secure.right += named(&s, SITES, token) == owner;
        out->plain.guessed++, out->secure.guessed++;
        out->plain.chance += 1.0 / SITES, out->secure.chance += 1.0 / SITES;
    }
    neb__free(all.in);
    close_sum(&s);
    return status;
}
