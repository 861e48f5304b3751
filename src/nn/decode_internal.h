/* decode_internal.h: what decode_create.c (memory), decode.c (runs) and beam_reorder.c (beams that continue
 * from one another) share. */
#ifndef NEB_NN_DECODE_INTERNAL_H
#define NEB_NN_DECODE_INTERNAL_H

#include "nn/decode.h"
#include "tensor/device.h"

/* Arrays in one buffer of I32; the ones from REORDER on are used by moves only. */
enum neb_decode_array {
    IDS,
    POSITION,
    INDEX,
    LAST,
    Q_STARTS,
    K_STARTS,
    CROSS_Q,
    COUNT,
    KEY,
    REORDER,
    MOVE_TO,
    ARRAYS
};

struct neb_decoding {
    neb_device *device;
    struct neb_model *model;
    struct neb_decode_limits limits; /* with the prompt */
    int32_t prompt;                  /* virtual tokens that every sequence begins with */
    neb_tape *tape;
    struct neb_layer_cache *caches; /* (decoder layers) */
    neb_buffer *ints, *logits;
    neb_buffer *best;  /* (seqs, k) values, (seqs, k) tokens, (seqs) log-sums */
    float *host_best;  /* the same */
    uint64_t fence;    /* of the copy that is on its way there */
    int32_t best_room; /* the k it has room for */
    int32_t k;         /* of the present run; 0: logits are wanted */
    int32_t *host;     /* the content of ints */
    float *host_logits;
    size_t at[ARRAYS], int_bytes;
    int64_t room; /* rows of one run, at most */
    struct neb_model_input *source;

    /* the present sequences */
    int32_t seqs, sources, rows;
    int32_t prefix, max; /* rows of the prefix; rows of a sequence in the cache, prefix included */
    int32_t *len;        /* (limits.seqs) */
    /* (seqs, max) the row at each place of a sequence; 0: not written yet. With moved rows it is the number
     * of the row; with listed rows it is 1 + the index of the row in the cache. */
    uint32_t *born, *old_born;
    uint32_t births;
    int32_t moves;      /* rows of the present move, padded */
    bool listed;        /* the device reads listed rows, so no row is moved */
    bool scattered;     /* listed: some sequence has rows outside its own part of the cache */
    int32_t *top;       /* (limits.seqs) listed: places of a sequence's own part that have been written */
    bool single;        /* the run appends one token to each */
    bool steady;        /* runs are recorded: few shapes */
    int32_t source_len; /* bound of the sources' lengths */

    /* of the present run */
    struct neb_input_side side;
    struct neb_cache_input input;
};

/* Bytes of a row's keys (or values) in one layer's cache. */
static inline size_t neb__decoding_row_bytes(const struct neb_decoding *d)
{
    const struct neb_arch *a = &d->model->arch;
    return (size_t)(a->kv_heads * a->head_dim) * neb_dtype_size(d->device->config.compute);
}

/* An array of the present run as a tensor. */
neb_tensor *neb__decoding_ints(struct neb_decoding *d, neb_tape *t, enum neb_decode_array a, int64_t n);
neb_status neb__decoding_run(struct neb_decoding *d, neb_model_fn fn, uint64_t key);

/* With listed rows: puts every sequence's rows into its own part again, in order, with zeros after them. */
neb_status neb__decoding_settle(struct neb_decoding *d);

#endif
