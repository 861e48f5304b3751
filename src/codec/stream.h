/* stream.h: the frames of the strategies that split a job: token ids, top-k log-probabilities, hidden
 * states, activations.
 *
 * A frame describes itself. `peek` tells the decoded size before anything is decoded. The rest that a frame
 * leaves out is never sent later, so 8 bits are the default everywhere. Every encode appends to `out` and
 * leaves it as it was on an error. Every decode needs a frame of exactly the size that the caller made room
 * for.
 *
 * Statuses: encoders NEB_ERR_INVALID (a size or an id is out of range), NEB_ERR_RANGE (a value is not finite
 * or too large), NEB_ERR_NOSPACE, NEB_ERR_NOMEM; decoders NEB_ERR_CORRUPT, NEB_ERR_VERSION, NEB_ERR_NOMEM. */
#ifndef NEB_CODEC_STREAM_H
#define NEB_CODEC_STREAM_H

#include "base/buf.h"

#define NEB_STREAM_HEADER 20
#define NEB_STREAM_MAX    ((size_t)1 << 28) /* bytes a frame may decode to, and rows it may have */

enum neb_stream_kind {
    NEB_STREAM_TOKENS = 1,
    NEB_STREAM_LOGITS = 2,
    NEB_STREAM_HIDDEN = 3,
    NEB_STREAM_ACTIVATIONS = 4
};

struct neb_stream_info {
    enum neb_stream_kind kind;
    size_t rows;      /* tokens: how many */
    uint32_t columns; /* tokens, logits: size of the vocabulary; hidden, activations: width */
    int k;            /* logits: entries of a row, else 0 */
    int bits;         /* of a coded value */
    size_t decoded;   /* bytes the decoder will write, all outputs together */
};
neb_status neb__stream_peek(const uint8_t *bytes, size_t len, struct neb_stream_info *info);

/* Token ids below `vocabulary`. They have a fixed width, or are entropy-coded where that is shorter. */
neb_status neb__tokens_encode(const int32_t *ids, // (n)
                              size_t n, uint32_t vocabulary, struct neb_buf *out);
neb_status neb__tokens_decode(const uint8_t *bytes, size_t len, uint32_t vocabulary, size_t n, int32_t *ids);

/* The k most likely tokens of each row. The ids ascend in each row, and logp is at most 0. Values take 8 or 4 bits
 * between the row's least and greatest. */
struct neb_topk {
    size_t rows;
    int k; /* 1 … 256 */
    uint32_t vocabulary;
};
neb_status neb__logits_encode(const struct neb_topk *shape, int bits,
                              const int32_t *ids, // (rows, k)
                              const float *logp,  // (rows, k)
                              struct neb_buf *out);
neb_status neb__logits_decode(const uint8_t *bytes, size_t len, const struct neb_topk *shape, int32_t *ids,
                              float *logp);

/* Hidden states with one scale a token: 8, 4 or 2 bits a value. */
neb_status neb__hidden_encode(const float *x, // (rows, width)
                              size_t rows, uint32_t width, int bits, struct neb_buf *out);
neb_status neb__hidden_decode(const uint8_t *bytes, size_t len, size_t rows, uint32_t width, float *x);

/* Hidden states on their way through the layers, and their gradients: 32, 16, 8 or 4 bits a value. An encoder of 8 or 4 bits refuses
 * values that are not finite (NEB_ERR_RANGE, quiet); the others pass them on. */
neb_status neb__activations_encode(const float *x, // (rows, width)
                                   size_t rows, uint32_t width, int bits, struct neb_buf *out);
neb_status neb__activations_decode(const uint8_t *bytes, size_t len, size_t rows, uint32_t width, float *x);
size_t neb__activations_size(size_t rows, uint32_t width, int bits); /* bytes of such a frame */

/* ---- shared by the files ---- */
neb_status neb__stream_begin(struct neb_buf *out, const struct neb_stream_info *info, size_t *start);
void neb__stream_end(struct neb_buf *out, size_t start); /* fills in the length */
neb_status neb__stream_expect(const uint8_t *bytes, size_t len, enum neb_stream_kind kind, size_t rows,
                              uint32_t columns, int k, struct neb_stream_info *info);

#endif
