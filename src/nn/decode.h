/* decode.h: generating text: a decoder runs token by token over cached keys and values, by greedy, sampled or
 * beam search.
 *
 * A successful create owes a destroy. A decoding works on a model whose parameters are ready. It may exist
 * while the same parameters are trained; it uses the values they have at a start, so a caller that changes
 * them must start again. On a device that packs weights, the decoder's weights exist twice as long as the
 * decoding lives. */
#ifndef NEB_NN_DECODE_H
#define NEB_NN_DECODE_H

#include "nn/model.h"

struct neb_decode_limits {
    int32_t seqs;        /* sequences at once, all beams counted */
    int32_t max_len;     /* of a sequence, prompt included; at most the model's max_positions */
    int32_t prompt_rows; /* tokens of all prompts together, all beams counted */
    int32_t source_rows; /* encoder-decoder: tokens of all sources together */
};

struct neb_decoding;

/* NEB_ERR_CONFIG the limits do not fit the model; NEB_ERR_UNSUPPORTED an encoder; NEB_ERR_NOMEM */
neb_status neb__decoding_create(neb_device *d, struct neb_model *m, const struct neb_decode_limits *limits,
                                struct neb_decoding **out);
void neb__decoding_destroy(struct neb_decoding *d);

int64_t neb__decoding_vocab(const struct neb_decoding *d);
int neb__decoding_shapes(const struct neb_decoding *d); /* shapes met so far; each has a plan that is kept */

/* ---- single runs (the searches below consist of them) ------------------------------------- */

/* Begins with `seqs` empty sequences. An encoder-decoder encodes the source's sequences, and sequence s reads
 * source s / (seqs / source->seqs). NEB_ERR_RANGE: beyond the limits. */
neb_status neb__decoding_start(struct neb_decoding *d, int32_t seqs,
                               const struct neb_model_input_side *source);

/* The same for sequences that stay short, so that less of the cache is moved. */
neb_status neb__decoding_start_short(struct neb_decoding *d, int32_t seqs, int32_t max_len,
                                     const struct neb_model_input_side *source);

/* Appends counts[s] >= 1 tokens to each sequence s (ids: packed) and gives the logits after the last token of
 * each: (seqs, vocab), host memory, valid until the next call. NEB_ERR_RANGE: a sequence would become longer
 * than max_len. */
neb_status neb__decoding_step(struct neb_decoding *d, const int32_t *counts, const int32_t *ids,
                              const float **logits);

/* The same with the k likeliest next tokens of each sequence, likeliest first, instead of all logits. Valid
 * until the next call. */
struct neb_best_tokens {
    float *logit;  /* (seqs, k) */
    int32_t *id;   /* (seqs, k); -1: no further token */
    float *logsum; /* (seqs) log of the sum of all exponentials: logit - logsum is the log-probability */
};
neb_status neb__decoding_step_best(struct neb_decoding *d, const int32_t *counts, const int32_t *ids,
                                   int32_t k, struct neb_best_tokens *out);

/* The same in two calls. The device works between them, so the host can work on another decoding. */
neb_status neb__decoding_ask(struct neb_decoding *d, const int32_t *counts, const int32_t *ids, int32_t k);
neb_status neb__decoding_answer(struct neb_decoding *d, struct neb_best_tokens *out);

/* The slot `best` on the host, for a device without it: logits (rows, vocab) to out's arrays. */
void neb__topk_on_host(const float *logits, int32_t rows, int64_t vocab, int32_t k,
                       struct neb_best_tokens *out);

/* Sequence s continues from sequence from[s], as that one was before the call. */
neb_status neb__decoding_reorder(struct neb_decoding *d, const int32_t *from);

/* ---- searches ------------------------------------------------------------------------------------------ */

struct neb_search {
    int32_t max_new;      /* tokens to add, at most */
    const int32_t *most;  /* (prompts) a limit for each prompt, up to max_new; NULL: max_new. Copied */
    int32_t eos;          /* token that ends a sequence; negative: no token does */
    const uint8_t *ends;  /* (vocab) 1: this token ends a sequence, too; NULL. It stays the caller's */
    int32_t beams;        /* 0 or 1: greedy or sampled */
    int32_t results;      /* of each prompt, best first, at most `beams`; 0: 1 */
    float length_penalty; /* beams: a finished sequence scores log p / length^this; 1 usually, 0: log p */
    float temperature;    /* 0: the likeliest token */
    int32_t top_k;        /* sampling: draw from the k likeliest; 0: from all */
    uint64_t seed;
    int32_t never; /* with `bans`: a token that is never chosen */
    bool bans;
    float *
        logp; /* (prompts, max_new) log-probabilities of the chosen tokens; only without beams and temperature */
};

/* Continues `count` prompts: prompt i is prompt[starts[i]] … prompt[starts[i + 1] - 1], at least one token
 * (of an encoder-decoder: its start token). out is (count, results, max_new); lengths (count, results) give the
 * tokens written, without the end token; -1 behind the first: fewer results were found. */
neb_status neb__decoding_generate(struct neb_decoding *d, const struct neb_search *how,
                                  const struct neb_model_input_side *source, int32_t count,
                                  const int32_t *prompt, const int32_t *starts, int32_t *out,
                                  int32_t *lengths);

/* The same step by step, so that two searches (each with its own decoding) can take turns: the device runs
 * one while the host weighs the candidates of the other. out and lengths are filled when *done. A successful
 * begin owes an end. */
struct neb_searching;
neb_status neb__search_begin(struct neb_decoding *d, const struct neb_search *how,
                             const struct neb_model_input_side *source, int32_t count, const int32_t *prompt,
                             const int32_t *starts, int32_t *out, int32_t *lengths,
                             struct neb_searching **search);
neb_status neb__search_step(struct neb_searching *s, bool *done);
void neb__search_end(struct neb_searching *s); /* NULL is fine */

#endif
