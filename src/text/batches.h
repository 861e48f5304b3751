/* batches.h: makes batches from token sets, in an order that is a pure function of (configuration, part,
 * step).
 *
 * The draws of a mix are dealt out to `parts` (the ranks of all sites that share the data): part p takes
 * draws p, p + parts, …; a site with data of its own has parts = its ranks. Draws are packed into batches
 * first-fit over a short queue. The position is small and can be saved. Without it, `seek` finds the same
 * place from the beginning by looking at lengths only. Successful creates owe their free. */
#ifndef NEB_TEXT_BATCHES_H
#define NEB_TEXT_BATCHES_H

#include "base/buf.h"
#include "text/batch.h"
#include "text/frame.h"
#include "text/shard.h"
#include "text/source_mix.h"
#include "text/tokenizer.h"

enum { NEB_MAX_BUCKETS = 8 };

struct neb_vocab {
    int32_t size, pad, bos, eos, mask;
    const uint8_t *special; /* (size) 1: never masked, never drawn as a random token */
};
void neb__vocab_of(const struct neb_tok *tok, struct neb_vocab *out);

struct neb_source {
    const struct neb_set *set;     /* not owned */
    double weight;                 /* 0: 1 */
    int flip;                      /* a pair's sides are exchanged: de-en from an en-de set */
    int language;                  /* for sampling: equal numbers are one language; 0: one of its own */
    int lang[2];                   /* index of each side's language, for neb_batch_side.lang */
    struct neb_frame_tokens frame; /* PAIR: special tokens around the texts; NEB_NO_FRAME: a </s>, <s> b */
};

struct neb_batches_cfg {
    enum neb_batch_kind kind;
    uint64_t seed;
    int64_t part, parts;
    int sources;
    const struct neb_source *source; /* copied */
    struct neb_vocab vocab;          /* special is not owned */
    double temperature;              /* of the languages' shares (source_mix.h); 0: 1 */
    enum neb_mix_rule rule;          /* a position that was saved by the other one brings its own */
    int once;                        /* every sample once, in file order: for evaluation */
    int32_t tokens;                  /* rows of the largest bucket; PAIR: of the source */
    int32_t max_len;                 /* longest sequence, special tokens included */
    int32_t max_seqs;                /* sequences of a batch; 0: tokens / 4 */
    double mask_share;               /* MLM; 0: 0.15 */
    double keep_share,
        random_share; /* shares of the masked tokens: left unchanged, replaced; both 0: 0.1 each; < 0: none */
};

struct neb_batches;

/*   NEB_ERR_INVALID, NEB_ERR_CONFIG: a set's kind or vocabulary does not fit; NEB_ERR_NOMEM */
neb_status neb__batches_create(const struct neb_batches_cfg *cfg, struct neb_batches **out);
void neb__batches_free(struct neb_batches *s); /* NULL is fine */

/* A batch with room for the largest bucket of this stream. */
neb_status neb__batches_batch(const struct neb_batches *s, struct neb_batch **out);

/* Fills the next batch.
 *   NEB_ERR_AGAIN: the end (only with `once`; not logged); NEB_ERR_CORRUPT: a set is damaged;
 *   NEB_ERR_CONFIG: no sample is short enough */
neb_status neb__batches_next(struct neb_batches *s, struct neb_batch *b);

/* For a stream with `once`: its samples, over all sources; and a batch of the sample `at` alone. salt: chooses its masks.
 *   NEB_ERR_AGAIN (quiet): too long to be used;  NEB_ERR_CORRUPT */
int64_t neb__batches_samples(const struct neb_batches *s);
neb_status neb__batches_one(struct neb_batches *s, int64_t at, uint64_t salt, struct neb_batch *b);

int64_t neb__batches_step(const struct neb_batches *s); /* batches made so far */

/* Goes to the place before batch `step`: forwards from here if possible, else from the beginning. */
neb_status neb__batches_seek(struct neb_batches *s, int64_t step);

/* Save appends the position; restore reads it back, and with it the rule of the shares. NEB_ERR_CONFIG: it was saved by a stream that is set up
 * differently (the message says what to compare); NEB_ERR_CORRUPT. On an error the stream is unchanged. */
neb_status neb__batches_save(const struct neb_batches *s, struct neb_buf *out);
neb_status neb__batches_restore(struct neb_batches *s, const void *bytes, size_t n);

/* Rows and padding rows over all batches so far, and the share of each source in the draws used. */
struct neb_batches_stats {
    int64_t rows, padding, samples, skipped;
};
struct neb_batches_stats neb__batches_stats(const struct neb_batches *s);

#endif
