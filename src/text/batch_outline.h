/* batch_outline.h: batches without their text: how long each sequence is, which sample it is, where a second text begins, how many
 * predictions count. This is all that layers between embedding and head need of a batch: masks of attention, positions, counters
 * of dropout, weights. So a stage that has neither end of the model can work without the text (strategy pipeline).
 *
 * An outline is a few bytes for a sequence. It comes from another site and is read as hostile bytes. */
#ifndef NEB_TEXT_BATCH_OUTLINE_H
#define NEB_TEXT_BATCH_OUTLINE_H

#include "base/buf.h"
#include "base/bytes.h"
#include "text/batch.h"

enum neb_outline_what {
    NEB_OUTLINE_STEP = 1, /* the batches of a training step */
    NEB_OUTLINE_EVAL,     /* one batch of held-out text */
    NEB_OUTLINE_EVAL_END, /* there are no more of it, and which languages it has */
    NEB_OUTLINE_EVAL_NONE /* there is no held-out text */
};

enum { NEB_OUTLINE_NAMES = 32, NEB_OUTLINE_NAME = 16 };

/* Rows of the largest batch by side, sequences (zero-length ones included), the longest one. */
struct neb_outline_room {
    int32_t rows[2], seqs, max_len;
};

struct neb_outline_head {
    enum neb_outline_what what;
    enum neb_batch_kind kind;
    int32_t vocab; /* tokens of the vocabulary */
    struct neb_outline_room room;
    int32_t batches;
    int32_t runs;  /* EVAL: how often the batch is run */
    int32_t names; /* EVAL_END: languages */
    char name[NEB_OUTLINE_NAMES][NEB_OUTLINE_NAME];
};

/* Appends a head, and behind it each of its batches. NEB_ERR_NOSPACE, NEB_ERR_NOMEM */
neb_status neb__outline_head_write(const struct neb_outline_head *h, struct neb_buf *out);
neb_status neb__outline_batch_write(const struct neb_batch *b, struct neb_buf *out);

/* The room of the largest batch that a stream with these limits can have (batches.h). Nothing larger is believed. */
struct neb_outline_room neb__outline_most(enum neb_batch_kind kind, int64_t tokens, int64_t max_len);

/* Reads a head. most, kind: as this site's job has them.
 *   NEB_ERR_VERSION: of another release; NEB_ERR_CONFIG: of a job with other batches; NEB_ERR_CORRUPT */
neb_status neb__outline_head_read(struct neb_reader *r, enum neb_batch_kind kind,
                                  const struct neb_outline_room *most, struct neb_outline_head *out);

/* A bare batch with this room. Owes neb__batch_free(). */
neb_status neb__outline_batch_create(enum neb_batch_kind kind, const struct neb_outline_room *room,
                                     struct neb_batch **out);
/* Fills it with the next batch; it has at least the room of the head. NEB_ERR_CORRUPT: the message says what is wrong; b is then to
 * be filled again */
neb_status neb__outline_batch_read(struct neb_reader *r, const struct neb_outline_head *h,
                                   struct neb_batch *b);
/* Nothing is left. NEB_ERR_CORRUPT */
neb_status neb__outline_end_read(const struct neb_reader *r);

#endif
