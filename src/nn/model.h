/* model.h: encoders, decoders and encoder-decoders from a config.
 *
 *     neb__model_create(&config, &peft, "", params, &m);    adds the parameters; owes a destroy
 *     neb_params_ready(params, device, seed);
 *     neb__model_ready(m);                                    fills the tables that are computed, not drawn
 *     ... in a model function:
 *         const struct neb_input *in = neb__model_input_tensors(input, t);
 *         neb__model_loss(m, t, neb__model_run(m, t, in), in, NULL);
 *
 * A model runs at most once in a run of the tape, because recomputed layers keep their arguments in the
 * model. docs/models.md lists the parameters' names. */
#ifndef NEB_NN_MODEL_H
#define NEB_NN_MODEL_H

#include "nn/layer.h"
#include "nn/stage.h"

/* An encoder or a decoder with its input embedding. */
struct neb_stack {
    const char *name; /* "encoder", "decoder" */
    neb_param *position, *type;
    neb_param *relative_table; /* (buckets, heads) in one dimension, read by all layers; or NULL */
    struct neb_relative relative;
    struct neb_norm_layer embed_norm;
    struct neb_lin project; /* embedding → hidden, where they differ */
    struct neb_layer *layers;
    struct neb_layer_call *calls; /* (slots of the tape, layers) */
    int64_t count;
    struct neb_norm_layer norm; /* after the last layer; pre-norm only */
};

struct neb_model {
    struct neb_arch arch;
    struct neb_peft peft;
    char prefix[64];
    neb_params *params;
    int loss_slot;                     /* slot to which neb__model_loss() adds; 0 */
    int64_t outputs;                   /* columns of its logits: vocab, or the number of tokens if smaller */
    neb_param *token;                  /* (vocab, embedding) */
    neb_param *prompt;                 /* (prompt length, embedding), ids from vocab on; or NULL */
    neb_param *token_base;             /* another model's table, to which `token` is a difference; or NULL */
    struct neb_stack encoder, decoder; /* count 0: absent */
    struct neb_stage stage;            /* the part of the model that runs here */
    int slots;                         /* of the tape, for which there is room in `calls` */
    struct {
        struct neb_lin transform; /* encoders: hidden → embedding */
        struct neb_norm_layer norm;
        neb_param *weight, *bias; /* tokens: (vocab, embedding), (vocab) or NULL */
        struct neb_lin pool, out; /* rtd, class */
    } head;
};

/* prefix begins every name ("" or such as "generator."). embeddings: the model whose token table is used
 * instead of an own one, or NULL. The configs are not needed afterwards, except the strings that peft's check
 * kept pointers to.
 *   NEB_ERR_CONFIG  names option, value and allowed values; also for a pattern that matches nothing
 *   NEB_ERR_NOMEM */
neb_status neb__model_create(const struct neb_model_config *config, const struct neb_peft_config *peft,
                             const char *prefix, const struct neb_model *embeddings, neb_params *params,
                             struct neb_model **out);
/* The stage that has layers [range->first, range->end), without those of `hole` (or NULL), and what belongs to them. All parameters of the model are
 * added; those of other stages have no values here. */
neb_status neb__model_create_stage(const struct neb_model_config *config, const struct neb_peft_config *peft,
                                   const struct neb_stage_range *range, const struct neb_stage_range *hole,
                                   neb_params *params, struct neb_model **out);
/* The model runs on a tape with so many slots (tensor/slot.h). NEB_ERR_NOMEM */
neb_status neb__model_set_slots(struct neb_model *m, int slots);
/* Makes only the frozen token table of such a model, for when the model itself is at another site. It serves
 * as `embeddings`. */
neb_status neb__model_create_table(const struct neb_model_config *config, const char *prefix,
                                   neb_params *params, struct neb_model **out);
void neb__model_destroy(struct neb_model *m);

/* The token table may have more rows than there are tokens (imported tables are often rounded up). Logits
 * leave these rows out, so none of them is ever chosen. */
void neb__model_set_outputs(struct neb_model *m, int64_t tokens);

/* A row of such a table: Vaswani et al. 2017, with the sines in the first half of the columns and the cosines in the
 * second. fairseq's last wavelength is exactly 10000, and its first position is the third row. */
void neb__sinusoid_row(enum neb_positions kind, int64_t row, int64_t d, float *out); // (d)

/* After neb_params_ready(): writes sinusoidal tables and DoRA's lengths. */
neb_status neb__model_ready(struct neb_model *m);

/* Sets what an input of this model has before its sequences: a prefix, a prompt. */
void neb__model_input_fit(const struct neb_model *m, struct neb_model_input_limits *limits);

/* The last hidden states (rows of the last side, hidden). NULL: this is not the last stage. */
neb_tensor *neb__model_run(struct neb_model *m, neb_tape *t, const struct neb_input *in);

/* The two parts of an encoder-decoder: encode gives the memory (source rows, hidden), decode runs target rows
 * over it. For a decoder alone memory is NULL. */
neb_tensor *neb__model_encode(struct neb_model *m, neb_tape *t, const struct neb_input_side *side);
neb_tensor *neb__model_decode(struct neb_model *m, neb_tape *t, const struct neb_input_side *side,
                              neb_tensor *memory, const struct neb_input_side *memory_side);

/* A distillation adds these to the targets of the input; see struct neb_target_spec. */
struct neb_soft_targets {
    float ce, kd, temperature;
    neb_tensor *ids, *logits;
    bool judged; /* the targets are the model's own samples */
    float beta;
};

/* Adds the weighted loss of the model's head over the input's targets to slot loss_slot: tokens (with label
 * smoothing while training), rtd, class. teacher: only for tokens; NULL: no teacher. The head is in the last
 * stage; nothing happens in the others. */
void neb__model_loss(struct neb_model *m, neb_tape *t, neb_tensor *x, const struct neb_input *in,
                     const struct neb_soft_targets *teacher);

/* Logits: tokens at `rows` (I32 (n); NULL: all) → (n, outputs); rtd → (rows, 1); class → (sequences,
 * classes). */
neb_tensor *neb__model_logits(struct neb_model *m, neb_tape *t, neb_tensor *x,
                              const struct neb_input_side *side, neb_tensor *rows);

/* internal to nn */

/* Shared by all layers of a stack. */
struct neb_stack_run {
    const struct neb_input_side *side, *memory_side;
    neb_tensor *memory;
    const struct neb_layer_cache *caches; /* (layers) or NULL */
    const struct neb_cache_input *at;
    int64_t first, end; /* layers; the norm follows the last one of the stack */
    neb_tensor *x;      /* input of layer `first`; NULL: the embedding, first is 0 */
};
neb_tensor *neb__stack_run(struct neb_model *m, struct neb_stack *s, neb_tape *t,
                           const struct neb_stack_run *r);
neb_tensor *neb__stage_run(struct neb_model *m, neb_tape *t, const struct neb_input *in);
neb_tensor *neb__model_decode_cached(struct neb_model *m, neb_tape *t, const struct neb_input_side *side,
                                     const struct neb_layer_cache *caches, const struct neb_cache_input *at);
/* DoRA's lengths (dora.c): whether a parameter has them; those of the weights as they are now, on the host or of a
 * parameter. b NULL: zero. */
bool neb__dora_is_length(const char *name);
void neb__dora_lengths(const float *w, const float *a, const float *b, float scale, int64_t rows, int64_t in,
                       int64_t rank, float *out);
neb_status neb__dora_fill(struct neb_model *m, neb_param *p);
neb_status neb__dora_fill_all(struct neb_model *m);
void neb__head_build(struct neb_builder *b, struct neb_model *m);
neb_status neb__peft_apply(struct neb_model *m, const struct neb_builder *b);

#endif
