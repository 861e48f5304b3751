/* line_batches.h: lines of text as batches for a model that is used, not trained by a job: translating,
 * embedding, classifying.
 *
 *     neb__line_batches_add(p, "a text", NULL, 0); …        the lines, each with a number of its own
 *     neb__line_batches_order(p, 0);                         by length (dense batches), or shuffled by a seed
 *     while ((n = neb__line_batches_next(p, &side, &numbers))) …
 *
 * A successful create owes a destroy. */
#ifndef NEB_TASK_LINE_BATCHES_H
#define NEB_TASK_LINE_BATCHES_H

#include "nn/model_input.h"
#include "text/tokenizer.h"

struct neb_line_batches_config {
    const struct neb_tok *tok;
    int32_t lead;    /* token in front, or -1: none */
    int32_t tail;    /* token behind the first </s>; 0 or -1: none */
    int32_t max_len; /* of a sequence, special tokens included; longer ones are cut */
    int32_t rows;    /* of a batch; at least max_len */
    int32_t seqs;    /* sequences of a batch */
    bool pad;        /* every batch has all rows and 2 * seqs sequences: padding fills its end */
};

struct neb_line_batches;

neb_status neb__line_batches_create(const struct neb_line_batches_config *c, struct neb_line_batches **out);
void neb__line_batches_destroy(struct neb_line_batches *p); /* NULL is fine */

/* [lead] text </s> [tail] [second </s>]. If two texts are too long together, the longer one is cut. NEB_ERR_NOMEM */
neb_status neb__line_batches_add(struct neb_line_batches *p, const char *text, const char *second,
                                 int number);
void neb__line_batches_clear(struct neb_line_batches *p);

/* seed 0: by length. Begins from the first. */
void neb__line_batches_order(struct neb_line_batches *p, uint64_t seed);

/* The next batch: how many real sequences it has, 0 at the end. side and numbers stay the pack's until the
 * next call. */
int neb__line_batches_next(struct neb_line_batches *p, struct neb_model_input_side *side,
                           const int **numbers);

int neb__line_batches_count(const struct neb_line_batches *p);
int64_t neb__line_batches_cut(const struct neb_line_batches *p); /* lines that were too long */

#endif
