/* model_input.h: the input of a model in one step, on the device: one buffer, filled from the host in one
 * copy.
 *
 * A model input is made for the largest batch; every array has its fixed place, so addresses never change. A
 * successful create owes a destroy. The layout of a batch (struct neb_model_input_data) is that of
 * text/batch.h: packed rows, where the sequences start, the rows that enter the loss. */
#ifndef NEB_NN_MODEL_INPUT_H
#define NEB_NN_MODEL_INPUT_H

#include "base/status.h"

#include <nebula/engine.h>

/* One side of a batch, on the host. */
struct neb_model_input_side {
    int32_t rows, seqs, max_len;
    const int32_t *ids;      /* (rows) */
    const int32_t *position; /* (rows) the position that is embedded */
    const int32_t *type;     /* (rows), or NULL: 0 everywhere */
    const uint32_t *sample;  /* (rows) global sample id */
    const int32_t *starts;   /* (seqs + 1); [0] is 0, the last is rows */
    const int32_t *at;       /* (rows) place in the sequence, which counts dropout; NULL: as position */
    int32_t spare;           /* rows outside all sequences to add at the end, so that shapes repeat */
};

struct neb_model_input_data {
    int sides; /* 1 or 2: source, target */
    struct neb_model_input_side side[2];
    int32_t targets;           /* number of predictions that enter the loss */
    const int32_t *target_row; /* (targets) row of the last side, NULL: row i for prediction i */
    const int32_t *target;     /* (targets) token, class or 0/1; negative: not counted */
    const float *weight;       /* (targets) */
};

/* The largest batch. */
struct neb_model_input_limits {
    int32_t rows[2], seqs, targets; /* rows[1] 0: one side */
    int32_t prefix;                 /* length of a trained prefix (see neb_peft); 0: no prefix */
    int32_t prompt, prompt_id; /* virtual tokens before every sequence, and the first one's id; 0: none */
    int32_t positions;         /* with a prompt: that the model has */
};

/* The same on the device, as tensors of the present run. */
struct neb_input_side {
    int64_t rows, prefix_rows;
    neb_tensor *ids, *position, *type; /* I32 (rows) */
    neb_tensor *sample, *at;           /* I32 (rows): together they count dropout */
    struct neb_seqs seqs;
    neb_tensor *first; /* I32 (seqs) first row of each sequence; past the last row when it is empty */
    neb_tensor *zero;  /* I32 (seqs) zeros: the position of a pooled row */
    struct neb_seqs with_prefix; /* the keys, each sequence after its prefix */
    neb_tensor *prefix_id;       /* I32 (prefix_rows) place in the prefix; -1 for the row of a token */
    neb_tensor *prefix_row;      /* I32 (rows) row of each token among the keys */
};

struct neb_input {
    struct neb_input_side side[2];
    neb_tensor *target_row; /* I32 (targets), or NULL: predictions are the rows */
    neb_tensor *target;     /* I32 (targets) */
    neb_tensor *weight;     /* F32 (targets) */
    int64_t targets;
};

struct neb_model_input;

/* NEB_ERR_INVALID impossible limits; NEB_ERR_NOMEM, NEB_ERR_DEVICE */
neb_status neb__model_input_create(neb_device *d, const struct neb_model_input_limits *limits,
                                   struct neb_model_input **out);
void neb__model_input_destroy(struct neb_model_input *f);

/* Uploads a batch. NEB_ERR_RANGE: it exceeds the limits, or an index is out of range; nothing was uploaded
 * then. */
neb_status neb__model_input_load(struct neb_model_input *f, const struct neb_model_input_data *data);

/* The key of the run: it identifies the shapes of the batch that was loaded last. */
uint64_t neb__model_input_key(const struct neb_model_input *f);

/* Sum of the weights of the batch that was loaded last. */
double neb__model_input_weight(const struct neb_model_input *f);

/* The tensors, for use inside a model function. They are valid until the run ends. */
const struct neb_input *neb__model_input_tensors(struct neb_model_input *f, neb_tape *t);

#endif
