/* match.h: how near two sentences are to an encoder: token by token (BERTScore, Zhang et al. 2020) and as a whole. */
#ifndef NEB_TASK_MATCH_H
#define NEB_TASK_MATCH_H

#include "task/folder.h"

/* What an encoder makes of a line. */
struct neb_line_states {
    float
        *token; /* (n, width) hidden states scaled to length 1, the special tokens at both ends among them */
    float *
        sentence; /* (vector) their mean before that, or what the folder says (sentence.h), scaled to length 1 */
    float *
        mixed; /* (width) the mean of all layers with their weights, not scaled; NULL: there are no weights */
    int32_t n;
};
void neb__line_states_free(struct neb_line_states *s); /* zeros are fine */

struct neb_matcher;

/* The model stays the caller's; it needs an encoder and a tokenizer. Owes a close. */
neb_status neb__matcher_open(const struct neb_ready *model, struct neb_matcher **out);
void neb__matcher_close(struct neb_matcher *m); /* NULL is fine */
int64_t neb__matcher_width(const struct neb_matcher *m);
int64_t neb__matcher_vector(const struct neb_matcher *m); /* width of sentence vectors */

/* From now on lines also get `mixed`. weights (layers + 1): of the embedding, then of each layer; they stay the caller's. */
neb_status neb__matcher_mix(struct neb_matcher *m, const float *weights);

/* out (n): owned, set only on success. A line longer than the model reads is cut. */
neb_status neb__matcher_read(struct neb_matcher *m, const char *const *lines, int n,
                             struct neb_line_states *out);

struct neb_match {
    double precision, recall, f1;
};
/* Every token is matched with the most similar one of the other line. Special tokens may be matched, but do not count. A line
 * without text matches nothing: all three are 0. */
struct neb_match neb__match_tokens(const struct neb_line_states *hyp, const struct neb_line_states *ref,
                                   int64_t width);
double neb__match_sentences(const struct neb_line_states *a, const struct neb_line_states *b, int64_t vector);

#endif
