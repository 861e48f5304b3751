/* stage.h: a model cut into stages, which run one behind the other.
 *
 * The layers of a model are numbered, the encoder's before the decoder's. A stage has the layers [first, end).
 * An embedding belongs to the first layer of its stack, the norm of a stack to its last layer, the head to the
 * last layer of all. So a stage knows from its range alone which parameters are its own.
 *
 * A cut inside the encoder is crossed by the stream of source rows; a cut between encoder and decoder by the
 * encoder's output; a cut inside a decoder by its stream and, if there is an encoder, by the encoder's output
 * behind it. All of them have `hidden` columns. */
#ifndef NEB_NN_STAGE_H
#define NEB_NN_STAGE_H

#include "nn/config.h"

struct neb_model;

struct neb_stage_range {
    int64_t first, end;
};

/* Where a stage's tensors come from and where they go in the present run; a channel between ranks, or a stream
 * between sites. NULL at the ends of the model. The gradients are only needed in training. */
struct neb_stage {
    struct neb_stage_range range;
    struct neb_stage_range
        hole; /* layers inside the range that are elsewhere; the range of a run is one of the two sides */
    neb_buffer *in, *in_grad;   /* read; written by the backward */
    neb_buffer *out, *out_grad; /* written; read by the backward */
};

int64_t neb__stage_layers(const struct neb_arch *a); /* of both stacks */

bool neb__stage_has_layer(const struct neb_stage *s, int64_t layer);

/* Cuts a model into stages of nearly equal work: the slowest stage is as fast as it can be. `range` has one
 * entry a stage. NEB_ERR_CONFIG: there are fewer layers than stages; the message has the numbers */
neb_status neb__stage_cut(const struct neb_arch *a, int stages, struct neb_stage_range *range);

/* What a stage is cut for. */
struct neb_stage_room {
    double speed, bytes; /* beside the others; of memory, 0: no limit */
};
/* The same for stages that differ: the slowest one is as fast as it can be, and each stays within its bytes. Where that cannot be, the one
 * that is furthest above is as near as it can be. layer_bytes: (layers). The first stage has at least `least` layers.
 * *most: time of the slowest stage, or 1e30 and more where one is above its bytes. range NULL: only that.
 *   NEB_ERR_CONFIG, NEB_ERR_NOMEM */
neb_status neb__stage_cut_for(const struct neb_arch *a, int64_t first, int64_t end, int stages, int64_t least,
                              const struct neb_stage_room *room, const double *layer_bytes,
                              struct neb_stage_range *range, double *most);
/* Of layers [first, end) at a stage: as `most` above. */
double neb__stage_strain(const struct neb_arch *a, const struct neb_stage_range *r,
                         const struct neb_stage_room *room, const double *layer_bytes);

/* The part of the work of the model's ends (embeddings, head) that a stage with these layers has: 0 to 1. */
double neb__stage_ends(const struct neb_arch *a, const struct neb_stage_range *r);
/* Multiplications of the forward pass for a row of the batch: of one layer (cross: of a decoder behind an encoder) and of the ends. */
double neb__stage_layer_work(const struct neb_arch *a, bool cross);
double neb__stage_ends_work(const struct neb_arch *a);

/* What a stage of a model with this architecture holds. */
bool neb__stage_has_encoder_start(const struct neb_arch *a, const struct neb_stage_range *r);
bool neb__stage_has_decoder_start(const struct neb_arch *a, const struct neb_stage_range *r);
bool neb__stage_is_last(const struct neb_arch *a, const struct neb_stage_range *r);
/* Whether the token table is among its parameters. Several stages may have it: those with an embedding, and
 * the last one if its output is tied to the table. */
bool neb__stage_has_table(const struct neb_arch *a, const struct neb_stage_range *r);

/* Rows of each side that cross the cut before layer `layer`. A message has the decoder's rows first. */
void neb__stage_crossing(const struct neb_arch *a, int64_t layer, bool sides[2]);
/* Bytes of the largest message there: rows of the largest batch by side. */
size_t neb__stage_message(const struct neb_arch *a, int64_t layer, const int64_t rows[2], neb_dtype type);

#endif
