/* batch.h: the data of one step: sequences packed into rows, on the host.
 *
 * A side has `tokens` rows. The sequences lie one after the other: sequence s has the rows from cu_seqlens[s]
 * up to cu_seqlens[s+1], which is excluded. A bucket fixes every count that a shape depends on, so the engine
 * meets few shape signatures:
 *
 *     tokens   rows, padding included             nseq    sequences, zero-length ones included
 *     loss.n   rows that may enter the loss       max_len no sequence is longer
 *
 * The rows after the first `used` hold padding (id `pad`, sample NEB_NO_SAMPLE, weight 0). They form
 * sequences of their own of at most max_len rows, after the real ones; zero-length sequences follow. So every
 * row is in exactly one sequence, cu_seqlens[nseq] == tokens, and no kernel needs a special case for padding.
 * In a translation batch target sequence s belongs to source sequence s. A padding sequence of the target may
 * have a zero-length source, over which attention gives zeros.
 *
 * Dropout is counted by (sample, at), so a row keeps its dropout bits in any packing. A sample id is the
 * number of the draw that chose the sample, over all ranks. The same text drawn again in the next epoch has
 * another id. */
#ifndef NEB_TEXT_BATCH_H
#define NEB_TEXT_BATCH_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NEB_NO_SAMPLE 0xFFFFFFFFu

enum neb_batch_kind {
    NEB_BATCH_MLM,    /* one side; the loss rows are the masked ones; pairs are joined (TLM) */
    NEB_BATCH_CAUSAL, /* one side; every row predicts the next token */
    NEB_BATCH_PAIR, /* translation: side[0] source, side[1] target shifted right; loss on the target's rows */
};

struct neb_batch_side {
    int32_t tokens, used;    /* rows; real ones */
    int32_t nseq, nseq_used; /* sequences; real ones */
    int32_t max_len;
    int32_t *ids;        /* (tokens) */
    int32_t *at;         /* (tokens) place in its sequence: with `sample` the counter of dropout */
    int32_t *pos;        /* (tokens) position to embed: as `at`, but 0 again at a pair's second text */
    int32_t *type;       /* (tokens) 0, or 1 in the second text of a joined pair */
    int32_t *lang;       /* (tokens) index of the language in the stream's list */
    uint32_t *sample;    /* (tokens) global sample id, low 32 bits */
    int32_t *cu_seqlens; /* (nseq + 1) */
};

struct neb_loss_rows {
    int32_t n, used; /* fixed count; those with a weight */
    int32_t *rows;   /* (n) row of the side; where unused: 0 */
    int32_t *target; /* (n) token id; where unused: 0 */
    float *weight;   /* (n) 1, or 0 where unused */
};

struct neb_batch {
    enum neb_batch_kind kind;
    int64_t step;
    int sides;
    struct neb_batch_side side[2];
    struct neb_loss_rows loss; /* of the last side */
    int32_t *original;         /* (side[0].tokens) MLM: the ids before masking */
    bool judged;               /* its targets are a student's own samples (task/on_policy.h) */
    bool bare;      /* only its outline is known (batch_outline.h): ids are 0, and there are no loss rows */
    uint32_t check; /* bare: its check value, as those say who have the text */

    /* what was reserved at creation: the largest bucket */
    int32_t cap_tokens[2], cap_seqs, cap_loss;
    void *memory;
};

/* Reserves room for the largest bucket; nothing is allocated later. Owes a free. tokens[1] is 0 for one side.
 *   NEB_ERR_INVALID: a size is not positive or beyond 2^28; NEB_ERR_NOMEM */
neb_status neb__batch_create(enum neb_batch_kind kind, const int32_t tokens[2], int32_t seqs, int32_t loss,
                             struct neb_batch **out);
void neb__batch_free(struct neb_batch *b); /* NULL is fine */

/* Replaced-token detection: makes the discriminator's input. `sampled` (loss.n) holds the generator's choices
 * at the loss rows. input gets the original ids with the choices put in; label is 1 for rows whose token
 * changed; weight is 1 for every row that is neither padding nor a special token.
 *   NEB_ERR_STATE: not an MLM batch; NEB_ERR_RANGE: a sampled id is negative */
neb_status neb__batch_rtd(const struct neb_batch *b, const int32_t *sampled, // (loss.n)
                          const uint8_t *special, // (vocab) 1 for tokens that are never masked
                          int32_t *input,         // (side[0].tokens)
                          int32_t *label,         // (side[0].tokens)
                          float *weight);         // (side[0].tokens)

/* Returns a check value of everything that a model reads of a batch: two sites have drawn the same one. That of a bare batch is
 * what it was told. */
uint32_t neb__batch_check_value(const struct neb_batch *b);

/* batch_pack.c: gives sequences of a translation batch other targets: texts (nseq_used) of tokens without special ones; n 0: the sequence keeps
 * its own. What stands around a target (start, language, end) stays. A target that is too long, or that would leave no room
 * for the own ones of the sequences behind it, is not taken; *taken says how many were. NEB_ERR_NOMEM: b is unchanged */
struct neb_batch_target {
    const int32_t *ids;
    int32_t n;
};
neb_status neb__batch_retarget(struct neb_batch *b, const struct neb_batch_target *texts,
                               const uint8_t *special, int32_t eos, int32_t pad, int32_t *taken);

/* Tokens in front of the text of target q of a translation batch: its start, and its language if the model has one. */
int32_t neb__batch_lead(const struct neb_batch *b, int32_t q, const uint8_t *special, int32_t eos);
/* The same for a CAUSAL batch: the last texts[q].n tokens of sequence q become others, the rest stays.
 *   NEB_ERR_RANGE: more tokens than the sequence has behind its first; b is unchanged */
neb_status neb__batch_continue(struct neb_batch *b, const struct neb_batch_target *texts);

/* Checks every promise made above; for tests and after changes of a packer. The message of NEB_ERR_INTERNAL
 * names the broken one. */
neb_status neb__batch_check(const struct neb_batch *b, int32_t vocab);

#endif
