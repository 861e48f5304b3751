/* score.h: BLEU and chrF of translations, equal to sacreBLEU's (Post 2018).
 *
 *     struct neb_bleu b;
 *     neb__bleu_init(&b, NEB_WORDS_13A, false);
 *     for each sentence: neb__bleu_add(&b, hypothesis, references, number of references);
 *     double score = neb__bleu_score(&b);
 *
 * Texts are UTF-8, null-terminated; bytes that are not UTF-8 count as U+FFFD. There is nothing to free. */
#ifndef NEB_TEXT_SCORE_H
#define NEB_TEXT_SCORE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum neb_word_split {
    NEB_WORDS_SPACE, /* at white space: BLEU-4 of text that is tokenised already, as papers report it */
    NEB_WORDS_13A,   /* mteval-v13a, sacreBLEU's default */
    NEB_WORDS_INTL,  /* mteval-v14 international */
    NEB_WORDS_ZH,    /* each Chinese character is a word; the rest as 13a */
    NEB_WORDS_CHAR,  /* each character is a word */
};

/* "none", "13a", "intl", "zh", "char". NEB_ERR_CONFIG */
neb_status neb__chars_split_parse(const char *name, enum neb_word_split *out);

enum { NEB_BLEU_ORDER = 4, NEB_CHRF_ORDERS = 8, NEB_SCORE_REFS = 16 };

struct neb_bleu {
    enum neb_word_split split;
    bool lower;
    int64_t match[NEB_BLEU_ORDER], total[NEB_BLEU_ORDER], hyp_len, ref_len;
};

void neb__bleu_init(struct neb_bleu *b, enum neb_word_split split, bool lower);
/* NEB_ERR_INVALID: no reference or more than NEB_SCORE_REFS; NEB_ERR_NOMEM. On an error b is unchanged. */
neb_status neb__bleu_add(struct neb_bleu *b, const char *hyp, const char *const *refs, int n);
double neb__bleu_score(const struct neb_bleu *b); /* 0 to 100; exponential smoothing */
double neb__bleu_brevity(const struct neb_bleu *b);
void neb__bleu_sum(struct neb_bleu *b,
                   const struct neb_bleu *more); /* adds `more` to b: the counts of both texts together */

/* The 95 % interval of the score of n sentences, from 1000 resamplings (Koehn 2004); each[i] holds sentence i
 * alone. */
void neb__bleu_interval(const struct neb_bleu *each, int n, double *low, double *high);

struct neb_chrf {
    int words; /* word order: 0 chrF, 2 chrF++ */
    bool lower;
    int64_t hyp[NEB_CHRF_ORDERS], ref[NEB_CHRF_ORDERS], match[NEB_CHRF_ORDERS];
};

void neb__chrf_init(struct neb_chrf *c, int words, bool lower); /* words: 0 to 2 */
neb_status neb__chrf_add(struct neb_chrf *c, const char *hyp, const char *const *refs, int n);
double neb__chrf_score(const struct neb_chrf *c); /* 0 to 100 */

#endif
