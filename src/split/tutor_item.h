/* tutor_item.h: a teacher's answers to one batch as an item of a stream, and the form in which a student
 * keeps them.
 *
 * An answer depends on its sequence alone, not on the sequences that were packed with it. So a hash of the
 * tokens that the teacher reads names the sequence, and the answer to one that comes again in a later epoch
 * need not be sent again. */
#ifndef NEB_SPLIT_TUTOR_ITEM_H
#define NEB_SPLIT_TUTOR_ITEM_H

#include "store/keyset.h"
#include "task/step_links.h"

#include "base/buf.h"
#include "base/bytes.h"

/* The largest answers that can be sent; the same at both sites. */
struct neb_tutor_shape {
    int32_t k;     /* logits in a row; 0: answers have no logits */
    int32_t width; /* of hidden states; 0: answers have no hidden states */
    uint32_t vocabulary;
};

/* How the next item is coded. Only the sender needs it, since items describe themselves. */
struct neb_tutor_code {
    int32_t k;       /* logits of a row that are sent: the likeliest ones, at most the shape's k */
    int bits;        /* of a logit, 8 or 4 */
    int hidden_bits; /* 8, 4 or 2 */
};

struct neb_tutor_seq {
    struct neb_keyset_key key;
    int32_t first, count; /* places in the batch's loss rows */
    int32_t row, rows;    /* of side 0 */
    bool here;            /* in the item */
};

/* The sequences of one batch. A successful init owes a free. */
struct neb_tutor_plan {
    struct neb_tutor_seq *seq; /* (room) */
    int32_t seqs, room;
    uint32_t check; /* of all ids: both sites must have drawn the same batch */
    bool judged;    /* its answers are log-probabilities, and stay so */
};
neb_status neb__tutor_plan_init(struct neb_tutor_plan *p, int32_t seqs);
void neb__tutor_plan_free(struct neb_tutor_plan *p);
neb_status neb__tutor_plan_make(struct neb_tutor_plan *p, const struct neb_batch *b);

/* Returns the next frame of an item (codec/stream.h); its header tells its length.
 * NULL: the item is cut off. */
const uint8_t *neb__tutor_item_frame(struct neb_reader *r, size_t *n);

/* Bytes that a sequence's answer takes in the cache file. */
size_t neb__tutor_item_size(const struct neb_tutor_shape *s, const struct neb_tutor_seq *q);

/* Appends an item with the answers of the sequences that are `here`. logits, hidden: as far as the shape has
 * them.
 *   NEB_ERR_RANGE: the teacher gave a value that is not finite; NEB_ERR_NOSPACE, NEB_ERR_NOMEM */
neb_status neb__tutor_item_encode(const struct neb_tutor_shape *s, const struct neb_tutor_code *code,
                                  const struct neb_tutor_plan *p, const struct neb_teacher_answer *logits,
                                  const struct neb_teacher_answer *hidden, struct neb_buf *out);

/* A student's memory for the answers to a batch: (loss rows, k), (rows of side 0, width). */
struct neb_tutor_room {
    int32_t *ids;
    float *logits, *hidden;
};

/* Reads an item: sets `here` and fills the places of those sequences. If fewer than k logits were sent, ids
 * of -1 follow.
 *   NEB_ERR_CONFIG: the item is about another batch; NEB_ERR_CORRUPT, NEB_ERR_NOMEM */
neb_status neb__tutor_item_decode(const struct neb_tutor_shape *s, struct neb_tutor_plan *p,
                                  const uint8_t *bytes, size_t n, const struct neb_tutor_room *room);

/* One sequence's answer as it lies in the cache.
 * pack appends it to `out`; unpack puts it into its places. NEB_ERR_CORRUPT */
neb_status neb__tutor_item_pack(const struct neb_tutor_shape *s, const struct neb_tutor_seq *q,
                                const struct neb_tutor_room *room, struct neb_buf *out);
neb_status neb__tutor_item_unpack(const struct neb_tutor_shape *s, const struct neb_tutor_seq *q,
                                  const uint8_t *bytes, size_t n, const struct neb_tutor_room *room);

#endif
