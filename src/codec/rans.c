/* rans.c: the models of the entropy coder.
 *
 * The coder uses asymmetric numeral systems (Duda, 2013) in range form: 32-bit state, 16-bit words, static
 * probabilities of 12 bits. A model crosses the wire as a float-like guess of each symbol's frequency: 1 bit
 * present, 4 bits exponent, 3 bits mantissa. Both sides make the exact frequencies from these guesses by the
 * same integer steps. An error of 6 % in a frequency costs a thousandth of a bit a symbol. A byte less in the
 * model is worth more than that.
 *
 *     model := count of symbols (7 bits), then for each: 0, or 1 exponent(4) mantissa(3) */
#include "codec/rans.h"

#include <string.h>

enum { TOTAL = 1 << NEB__PROB_BITS };

static uint32_t guess_value(int exponent, int mantissa)
{
    uint32_t v = (uint32_t)(8 + mantissa) << exponent >> 3;
    return v ? v : 1;
}

/* Scales the guesses to a sum of exactly TOTAL. No symbol is lost, and the most frequent symbol takes the
 * rest. */
static void normalise(const uint32_t guess[NEB__SYMBOLS], struct neb__model *m)
{
    uint32_t sum = 0, made = 0;
    int most = 0;
    for (int i = 0; i < NEB__SYMBOLS; i++) sum += guess[i];
    for (int i = 0; i < NEB__SYMBOLS; i++) {
        uint32_t f = sum ? (uint32_t)((uint64_t)guess[i] * TOTAL / sum) : 0;
        m->freq[i] = (uint16_t)(guess[i] && !f ? 1 : f);
        made += m->freq[i];
        if (m->freq[i] > m->freq[most]) most = i;
    }
    if (sum && made <= TOTAL) m->freq[most] = (uint16_t)(m->freq[most] + TOTAL - made);
    for (; made > TOTAL; made--) {
        for (int i = 0; i < NEB__SYMBOLS; i++)
            if (m->freq[i] > m->freq[most]) most = i;
        m->freq[most]--;
    }
    uint32_t start = 0;
    for (int i = 0; i < NEB__SYMBOLS; i++) {
        m->start[i] = (uint16_t)start;
        start += m->freq[i];
    }
}

void neb__model_write(const uint32_t counts[NEB__SYMBOLS], struct neb__bitw *w, struct neb__model *m)
{
    uint32_t guess[NEB__SYMBOLS] = {0};
    uint64_t sum = 0;
    int n = 0;
    for (int i = 0; i < NEB__SYMBOLS; i++) {
        sum += counts[i];
        if (counts[i]) n = i + 1;
    }
    neb__bits_put(w, (uint32_t)n, 7);
    for (int i = 0; i < n; i++) {
        if (!counts[i]) {
            neb__bits_put(w, 0, 1);
            continue;
        }
        uint32_t v = (uint32_t)(((uint64_t)counts[i] * TOTAL + sum / 2) / sum);
        if (!v) v = 1;
        int exponent = 31 - __builtin_clz(v), mantissa = (int)(v << 3 >> exponent & 7);
        neb__bits_put(w, 1u | (uint32_t)exponent << 1 | (uint32_t)mantissa << 5, 8);
        guess[i] = guess_value(exponent, mantissa);
    }
    normalise(guess, m);
}

bool neb__model_read(struct neb__bitr *r, struct neb__model *m)
{
    uint32_t guess[NEB__SYMBOLS] = {0};
    uint32_t n = neb__bits_get(r, 7);
    if (n > NEB__SYMBOLS) return false;
    for (uint32_t i = 0; i < n; i++) {
        if (!neb__bits_get(r, 1)) continue;
        int exponent = (int)neb__bits_get(r, 4), mantissa = (int)neb__bits_get(r, 3);
        guess[i] = guess_value(exponent, mantissa);
    }
    normalise(guess, m);
    memset(m->symbol, 0, sizeof m->symbol); /* in an empty model every slot gives symbol 0 of frequency 0 */
    for (int i = 0; i < NEB__SYMBOLS; i++) memset(m->symbol + m->start[i], i, m->freq[i]);
    return !r->bad;
}
