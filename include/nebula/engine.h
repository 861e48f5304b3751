/* engine.h: tensors, automatic differentiation and optimizers: everything needed to write a model.
 *
 * A model is a C function that runs once a step and calls the ops below; each op computes its result and
 * appends a node to the tape, and neb_tape_run() then walks the nodes backwards. examples/own_model.c shows
 * all of it.
 *
 * Errors inside a model are sticky: an op that fails reports its error and returns NULL, every op that is
 * given NULL returns NULL, and neb_tape_run() returns the status. So a model needs no checks.
 *
 * A model function must do the same thing whenever it runs with the same `key`. It runs once without
 * computing, to plan the memory, and then for real; devices that can record replay a recording in its place.
 * It must not read values that the device computes. Values that vary from step to step go into buffers.
 *
 * Rows. Activations are packed: (rows, d), the sequences one after the other; neb_seqs says where they
 * start.
 *
 * A successful create or open owes a destroy or close. Nothing here is thread-safe; one thread drives a
 * device.
 */
#ifndef NEBULA_ENGINE_H
#define NEBULA_ENGINE_H

#include <nebula/device.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct neb_device neb_device;
typedef struct neb_buffer neb_buffer;
typedef struct neb_params neb_params;
typedef struct neb_param neb_param;
typedef struct neb_tape neb_tape;
typedef struct neb_tensor neb_tensor;
typedef struct neb_optimizer neb_optimizer;

/* ---- devices ------------------------------------------------------------------------------------------- */

/* "cpu", "auto" (cuda where it can be opened, else cpu), or the name of a plug-in such as "cuda". config NULL: F32, all
 * cores.
 *   NEB_ERR_NOTFOUND no such plug-in · NEB_ERR_VERSION another ABI · NEB_ERR_DEVICE · NEB_ERR_NOMEM ·
 *   NEB_ERR_INVALID */
NEB_API neb_status neb_device_open(const char *name, const struct neb_device_config *config,
                                   neb_device **out);
NEB_API void neb_device_close(neb_device *d); /* NULL is fine */
NEB_API neb_status neb_device_sync(neb_device *d);
NEB_API void neb_device_get_info(neb_device *d, struct neb_device_info *out);

NEB_API size_t neb_dtype_size(neb_dtype type); /* 0 for an unknown one */
NEB_API const char *neb_dtype_name(neb_dtype type);

/* ---- buffers: device memory that lives across steps ---------------------------------------------------- */

NEB_API neb_status neb_buffer_create(neb_device *d, size_t bytes, neb_buffer **out);
NEB_API void neb_buffer_destroy(neb_buffer *b);
NEB_API size_t neb_buffer_size(const neb_buffer *b);
NEB_API neb_status neb_buffer_clear(neb_buffer *b); /* zeros */
/* NEB_ERR_RANGE: more bytes than the buffer has. */
NEB_API neb_status neb_buffer_upload(neb_buffer *b, const void *host, size_t bytes);
NEB_API neb_status neb_buffer_download(const neb_buffer *b, void *host, size_t bytes);

/* ---- parameters ---------------------------------------------------------------------------------------- */

typedef enum neb_init {
    NEB_INIT_ZERO,
    NEB_INIT_ONE,
    NEB_INIT_NORMAL,  /* deviation = scale */
    NEB_INIT_UNIFORM, /* between -scale and scale */
} neb_init;

/* How a weight is cut when several processes share a layer: not at all, by its first or by its second
 * dimension. */
typedef enum neb_split { NEB_SPLIT_NONE, NEB_SPLIT_ROW, NEB_SPLIT_COLUMN } neb_split;

struct neb_param_spec {
    const char *name; /* unique; copied */
    int ndim;         /* 1 to 4 */
    int64_t shape[4]; /* global */
    neb_init init;
    float scale;
    bool no_decay; /* biases and norms */
    neb_split split;
    int64_t local_first, local_count; /* this process's part of the split dimension; count 0: all of it */
    /* Instead: up to three parts one after the other, for a weight that is made of several (q, k, v), each of
     * which is cut. */
    int parts;
    int64_t part_first[3], part_count[3];
    bool elsewhere; /* this process has nothing of it */
    bool copy;      /* another process has the same values and counts them in the norm */
    /* A weight between hidden states, which NEB_MUON takes as a matrix; not embeddings and heads. Two dimensions. */
    bool hidden;
    /* It is made of up to three matrices one below the other (q, k, v), which Muon takes apart: their rows. Where the
     * weight is cut by rows, each of them is a part. 0: one matrix. */
    int matrices;
    int64_t matrix_rows[3];
};

NEB_API neb_status neb_params_create(neb_params **out);
NEB_API void neb_params_destroy(neb_params *ps);

/* Returns NULL on an error, and neb_params_ready() then returns that error: a name that is taken or too long,
 * an impossible shape, no memory. */
NEB_API neb_param *neb_params_add(neb_params *ps, const struct neb_param_spec *spec);

/* Sets trainable for every parameter whose name matches the shell pattern; later calls win. Everything is
 * trainable at first. Only before neb_params_ready(). Returns how many matched. */
NEB_API int neb_params_trainable(neb_params *ps, const char *pattern, bool trainable);

/* Allocates the slab (trainable parameters first, in the order they were added) and fills it. Initial values
 * depend on seed and name alone. Frozen parameters get neither gradient nor optimizer memory. */
NEB_API neb_status neb_params_ready(neb_params *ps, neb_device *d, uint64_t seed);

NEB_API int neb_params_count(const neb_params *ps);
NEB_API neb_param *neb_params_at(const neb_params *ps, int i);
NEB_API neb_param *neb_params_find(const neb_params *ps, const char *name);   /* or NULL */
NEB_API int64_t neb_params_values(const neb_params *ps, bool trainable_only); /* without padding */

NEB_API const char *neb_param_name(const neb_param *p);
NEB_API int neb_param_shape(const neb_param *p, int64_t shape[4]); /* of the whole parameter; returns ndim */
NEB_API int64_t neb_param_values(const neb_param *p);
NEB_API bool neb_param_trainable(const neb_param *p);
/* Host copies, F32, n = neb_param_values(), of the whole parameter: a process that holds a part of it reads 0 for the other
 * values and writes its part only. A write also refreshes the BF16 shadow. */
NEB_API neb_status neb_param_read(const neb_param *p, float *host);
NEB_API neb_status neb_param_write(neb_param *p, const float *host);
NEB_API neb_status neb_param_read_grad(const neb_param *p, float *host); /* NEB_ERR_STATE when frozen */

/* The trainable part of the slab in device memory, F32, with padding between parameters. The WAN layer
 * captures and merges it. neb_param_offset() is the place of a parameter in the slab of a process that holds all of them. */
NEB_API float *neb_params_slab(neb_params *ps, int64_t *n);
NEB_API int64_t neb_param_offset(const neb_param *p);
/* Call it after the slab was changed from outside: it makes the BF16 shadow of [first, first + n) anew. */
NEB_API neb_status neb_params_refresh(neb_params *ps, int64_t first, int64_t n);

/* ---- the tape ------------------------------------------------------------------------------------------ */

typedef void (*neb_model_fn)(neb_tape *t, void *arg);

NEB_API neb_status neb_tape_create(neb_device *d, neb_params *ps, neb_tape **out); /* ps may be NULL */
NEB_API void neb_tape_destroy(neb_tape *t);

struct neb_run {
    neb_model_fn fn;
    void *arg;
    uint64_t key;    /* names the shapes: another key, another memory plan */
    bool grad;       /* also run backwards */
    bool train;      /* dropout is on, and label smoothing of src/nn's models */
    bool accumulate; /* gradients are added to those of the run before (further micro-batches of one step) */
    bool last;       /* the gradients are complete after this run: announce them (neb_tape_on_grad_ready) */
};

/* Plans when the key is new, then computes.
 *   NEB_ERR_SHAPE, NEB_ERR_DTYPE, NEB_ERR_INVALID
 *                       the model is wrong; the message names the layer, the op and the numbers
 *   NEB_ERR_NOMEM       the message says how much was requested; a smaller batch may fit
 *   NEB_ERR_UNSUPPORTED the device lacks an op and fallbacks are not allowed
 *   NEB_ERR_DEVICE      the device failed */
NEB_API neb_status neb_tape_run(neb_tape *t, const struct neb_run *run);

/* Set the step's numbers before its first run, and get them after its last (see struct neb_ctl).
 * neb_tape_end_step() gives the newest results that have arrived; on an asynchronous device these are the
 * previous step's, unless `wait`. step is 0 when no results have arrived yet. */
NEB_API neb_status neb_tape_begin_step(neb_tape *t, const struct neb_ctl *in);
NEB_API neb_status neb_tape_end_step(neb_tape *t, bool wait, struct neb_ctl *out);

/* Compose ops that the device lacks from primitives, with one warning each, instead of refusing them. */
NEB_API void neb_tape_allow_fallback(neb_tape *t, bool allow);
/* Fill the arena with NaNs before each run, so that a model which reads values it never wrote is noticed. */
NEB_API void neb_tape_poison(neb_tape *t, bool on);
/* Record and replay where the device can (default yes). */
NEB_API void neb_tape_graphs(neb_tape *t, bool on);

/* Called during the backward of the last micro-batch, as soon as a parameter's gradient is complete
 * (enqueued). */
typedef void (*neb_grad_ready_fn)(void *arg, neb_param *p);
NEB_API void neb_tape_on_grad_ready(neb_tape *t, neb_grad_ready_fn fn, void *arg);

struct neb_memory {
    int64_t planned;     /* bytes of the arena for the key of the last run */
    int64_t lower_bound; /* the most bytes that live at one moment: no plan can be smaller */
    int64_t unplanned;   /* bytes of the step if no memory were reused */
    int allocations;
};
NEB_API void neb_tape_memory(const neb_tape *t, struct neb_memory *out);

/* Names for messages and for dropout: ops between push and pop belong to this scope. Scopes nest. */
NEB_API void neb_push(neb_tape *t, const char *fmt, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;
NEB_API void neb_pop(neb_tape *t);

NEB_API bool neb_is_training(const neb_tape *t);
NEB_API neb_dtype neb_compute_type(const neb_tape *t);
NEB_API int neb_tensor_shape(const neb_tensor *x, int64_t shape[4]); /* returns ndim; 0 for NULL */

/* ---- inputs and outputs -------------------------------------------------------------------------------- */

/* A buffer seen as a tensor. No gradient flows into it. */
NEB_API neb_tensor *neb_input(neb_tape *t, neb_buffer *b, neb_dtype type, int ndim, const int64_t *shape);
/* The same with a byte offset into the buffer (a multiple of the element size). */
NEB_API neb_tensor *neb_input_at(neb_tape *t, neb_buffer *b, size_t offset, neb_dtype type, int ndim,
                                 const int64_t *shape);
/* Copies x into the buffer as `type` (F32 or x's own). */
NEB_API void neb_output(neb_tape *t, neb_tensor *x, neb_buffer *b, neb_dtype type);
/* An F32 input in the compute type. No gradient flows through it. */
NEB_API neb_tensor *neb_op_convert(neb_tape *t, neb_tensor *x);
/* A parameter as a tensor in the compute type. The one place where a layer gets its weights. */
NEB_API neb_tensor *neb_weight(neb_tape *t, neb_param *p);

/* Packed sequences. */
struct neb_seqs {
    neb_tensor *starts; /* I32 (count + 1) */
    neb_tensor *sample; /* I32 (count) global sample ids; NULL when there is no attention dropout */
    int64_t count, max_len;
};

/* Sets the sample and position of each row, I32 (rows) each. Dropout on activations needs them; call this
 * before the first dropout. */
NEB_API void neb_set_rows(neb_tape *t, neb_tensor *sample, neb_tensor *position);

/* ---- ops ----------------------------------------------------------------------------------------------- */

/* scale * (tables[0][ids[0]] + …), 1 to 3 tables (vocabulary, d); ids I32 (rows) → (rows, d). */
NEB_API neb_tensor *neb_op_embed(neb_tape *t, int n, neb_param *const *tables, neb_tensor *const *ids,
                                 float scale);

/* act(x w^T + b): x (rows, in), w (out, in), b (out) or NULL → (rows, out). */
NEB_API neb_tensor *neb_op_linear(neb_tape *t, neb_tensor *x, neb_param *w, neb_param *b, neb_act act);
/* y + alpha * x w^T, in y's memory, so no other op may read y. */
NEB_API neb_tensor *neb_op_linear_onto(neb_tape *t, neb_tensor *y, neb_tensor *x, neb_param *w, float alpha);
/* a (m, k) times b (k, n), or b (n, k) with trans_b → (m, n). */
NEB_API neb_tensor *neb_op_matmul(neb_tape *t, neb_tensor *a, neb_tensor *b, bool trans_b);

NEB_API neb_tensor *neb_op_norm(neb_tape *t, neb_tensor *x, neb_param *gamma, neb_param *beta,
                                neb_norm_kind kind, float eps);
/* s = residual + dropout(x, p); returns norm(s); *s_out = s (s_out may be NULL when s is not needed). */
NEB_API neb_tensor *neb_op_norm_residual(neb_tape *t, neb_tensor *x, neb_tensor *residual, neb_param *gamma,
                                         neb_param *beta, neb_norm_kind kind, float eps, float p,
                                         neb_tensor **s_out);
NEB_API neb_tensor *neb_op_residual(neb_tape *t, neb_tensor *x, neb_tensor *residual, float p);
NEB_API neb_tensor *neb_op_dropout(neb_tape *t, neb_tensor *x, float p);

NEB_API neb_tensor *neb_op_add(neb_tape *t, neb_tensor *a, neb_tensor *b);
NEB_API neb_tensor *neb_op_mul(neb_tape *t, neb_tensor *a, neb_tensor *b);
NEB_API neb_tensor *neb_op_scale(neb_tape *t, neb_tensor *x, float factor);
NEB_API neb_tensor *neb_op_act(neb_tape *t, neb_tensor *x, neb_act act);
NEB_API neb_tensor *neb_op_swiglu(neb_tape *t, neb_tensor *x); /* (rows, 2n) → (rows, n) */
NEB_API neb_tensor *neb_op_stop_gradient(neb_tape *t, neb_tensor *x);

/* Views: no copy. Columns of a (rows, d); rows of anything; another shape of a contiguous tensor. */
NEB_API neb_tensor *neb_op_columns(neb_tape *t, neb_tensor *x, int64_t first, int64_t count);
NEB_API neb_tensor *neb_op_rows_of(neb_tape *t, neb_tensor *x, int64_t first, int64_t count);
NEB_API neb_tensor *neb_op_reshape(neb_tape *t, neb_tensor *x, int ndim, const int64_t *shape);
/* A column view as a contiguous tensor of its own. */
NEB_API neb_tensor *neb_op_copy(neb_tape *t, neb_tensor *x);
/* Adds row r of x (n, d) to row index[r] of the buffer, seen as (rows, d) of x's type, and returns that view:
 * a cache that grows from run to run. Indices are distinct; a row whose index is out of range is not added.
 * No gradient. */
NEB_API neb_tensor *neb_op_add_rows(neb_tape *t, neb_tensor *x, neb_tensor *index, neb_buffer *b,
                                    int64_t rows);

/* Gather: rows of x by index, I32 (n) → (n, d). Scatter: back, (n, d) → (rows, d), other rows 0. An index out
 * of range gives zeros, or is not scattered. Indices of a scatter, and of a gather with a gradient, must be
 * distinct: the CPU refuses duplicates, and a GPU would lose some of their sums (neb_op_embed adds up rows of
 * a parameter that occur several times). */
NEB_API neb_tensor *neb_op_gather(neb_tape *t, neb_tensor *x, neb_tensor *index);
NEB_API neb_tensor *neb_op_scatter(neb_tape *t, neb_tensor *x, neb_tensor *index, int64_t rows);
NEB_API neb_tensor *neb_op_mean_pool(neb_tape *t, neb_tensor *x,
                                     const struct neb_seqs *seqs); /* → (count, d) */

/* Works in x's memory, so no other op may read x. */
NEB_API neb_tensor *neb_op_rope(neb_tape *t, neb_tensor *x, neb_tensor *position, int64_t heads, float base);
/* The same with stretched wavelengths; scale NULL: none. scale->original is a whole number. */
NEB_API neb_tensor *neb_op_rope_scaled(neb_tape *t, neb_tensor *x, neb_tensor *position, int64_t heads,
                                       float base, const struct neb_rope_scale *scale);

struct neb_attention {
    neb_tensor *q, *k,
        *v; /* (q rows, heads * head_dim), (k rows, kv_heads * head_dim) twice; may be column views */
    struct neb_seqs q_seqs, k_seqs;
    int64_t heads, kv_heads; /* kv_heads 0: as heads */
    float scale;             /* 0: 1 / sqrt(head_dim) */
    bool causal;
    float dropout;
    int64_t first_head; /* of all heads, where several processes share them out: decides the dropout's bits */
};
NEB_API neb_tensor *neb_op_attention(neb_tape *t, const struct neb_attention *a);

/* Runs fn(t, arg, x) and keeps none of its intermediate results; the backward runs it again. `arg` must stay
 * valid until neb_tape_run() returns. */
typedef neb_tensor *(*neb_block_fn)(neb_tape *t, void *arg, neb_tensor *x);
NEB_API neb_tensor *neb_op_recompute(neb_tape *t, neb_block_fn fn, void *arg, neb_tensor *x);

/* ---- losses: each adds scale * weighted sum * ctl.loss_scale to ctl.loss[slot] and starts its own backward
 * ---- */

struct neb_loss_spec {
    neb_tensor *weight; /* F32 (rows), or NULL: every row counts 1 */
    float scale;        /* 0 means 1 */
    int slot;           /* 0 to 7 */
};

struct neb_target_spec {
    neb_tensor *target; /* I32 (rows); negative: not counted */
    float smoothing;
    float ce;                   /* weight of the cross-entropy; 0 means 1 without a teacher, off with one */
    float kd;                   /* weight of the distillation part */
    float temperature;          /* 0 means 1 */
    neb_tensor *teacher_ids;    /* I32 (rows, k), or NULL: dense teacher */
    neb_tensor *teacher_logits; /* F32 (rows, k) or (rows, classes) */
    /* The targets are the model's own samples, and teacher_logits (with ids) log-probabilities: kd weighs the generalised
     * Jensen-Shannon divergence at `beta` (0: KL(teacher || model), 1: KL(model || teacher)) in place of the KL at a temperature, and
     * ce is 0. A device that cannot do it refuses. */
    bool judged;
    float beta;
};

/* Logits x w^T + b are never stored; w may be tied to an embedding. */
NEB_API void neb_loss_linear_xent(neb_tape *t, neb_tensor *x, neb_param *w, neb_param *b,
                                  const struct neb_target_spec *target, const struct neb_loss_spec *loss);
NEB_API void neb_loss_xent(neb_tape *t, neb_tensor *logits, const struct neb_target_spec *target,
                           const struct neb_loss_spec *loss);
NEB_API void neb_loss_bce(neb_tape *t, neb_tensor *x, neb_tensor *target,
                          const struct neb_loss_spec *loss); /* x (rows) or (rows, 1) */
NEB_API void neb_loss_mse(neb_tape *t, neb_tensor *x, neb_tensor *y, const struct neb_loss_spec *loss);
NEB_API void neb_loss_cosine(neb_tape *t, neb_tensor *x, neb_tensor *y, const struct neb_loss_spec *loss);

/* ---- optimizer ----------------------------------------------------------------------------------------- */

typedef enum neb_optimizer_kind {
    NEB_ADAMW,
    NEB_SGD,
    NEB_MUON, /* matrices between hidden states: orthogonalised momentum; all other parameters: AdamW */
} neb_optimizer_kind;

struct neb_optimizer_config {
    neb_optimizer_kind kind;
    float beta1, beta2, eps; /* SGD: beta1 is the momentum */
    float decay;
    float max_norm; /* clip the global norm to this; 0: no clipping */
    /* Muon only */
    float muon_momentum;
    neb_dtype muon_type; /* of its products: F32 or BF16 */
    const char *
        muon_also; /* further matrices, as shell patterns separated by commas; NULL: none. Read at creation */
};

/* The defaults: AdamW 0.9, 0.999, 1e-8, decay 0.01, max_norm 1; Muon 0.95, F32. */
NEB_API struct neb_optimizer_config neb_optimizer_defaults(void);
/* The message of NEB_ERR_CONFIG names the impossible number. */
NEB_API neb_status neb_optimizer_create(neb_device *d, neb_params *ps, const struct neb_optimizer_config *c,
                                        neb_optimizer **out);
NEB_API void neb_optimizer_destroy(neb_optimizer *o);
NEB_API int64_t neb_optimizer_step_count(const neb_optimizer *o);
/* First and second moments, in the layout of the slab, host memory; for checkpoints. Either may be NULL. A matrix that Muon
 * takes has its momentum in the first and zeros in the second. */
NEB_API neb_status neb_optimizer_save(const neb_optimizer *o, float *m, float *v);
NEB_API neb_status neb_optimizer_load(neb_optimizer *o, int64_t step, const float *m, const float *v);

/* One micro-batch. `load` (may be NULL) puts its data into the buffers just before `fn` runs. fn NULL: another
 * process of the site runs it, and only its weight counts here. */
struct neb_micro {
    neb_status (*load)(void *arg);
    neb_model_fn fn;
    void *arg;
    uint64_t key;
    double weight; /* sum of the loss weights of this micro-batch, for the normalisation */
};

/* Sums over the ranks of a site: `host` for counts, `grads` for the gradient slab, before clipping. NULL: one
 * rank. */
struct neb_reduce {
    neb_status (*host)(void *arg, double *values, int n);
    neb_status (*grads)(void *arg, float *slab, int64_t n); /* device memory */
    void *arg;
};

struct neb_step_info {
    int64_t step; /* the step these numbers belong to; 0: no step yet */
    float loss[8];
    float grad_norm; /* before clipping */
    bool skipped;    /* the parameters did not change: a value was not finite, or all weights were 0 */
    float counts[4];
};

/* Runs forward and backward of all micro-batches, reduction, clipping and update. When all weights (of all
 * ranks) are 0 there is nothing to learn: the step is counted and changes nothing.
 *   NEB_ERR_RANGE      the weights sum to less than 0, or are not finite
 *   NEB_ERR_NONFINITE  a loss or the norm was not finite; the update was skipped and the parameters are as
 *                      before (reported one step late on an asynchronous device); the run can go on
 *   and those of neb_tape_run() */
NEB_API neb_status neb_train_step(neb_optimizer *o, neb_tape *t, const struct neb_micro *micros, int n,
                                  float lr, uint32_t seed, const struct neb_reduce *reduce,
                                  struct neb_step_info *info);

typedef enum neb_schedule_kind {
    NEB_CONSTANT,
    NEB_LINEAR,
    NEB_COSINE,
    NEB_INVERSE_SQRT,
    NEB_WSD, /* warm-up, stable, linear decay over the last `decay` part */
} neb_schedule_kind;

struct neb_schedule {
    neb_schedule_kind kind;
    float peak, floor;     /* learning rates; floor is where linear, cosine and WSD end */
    int64_t warmup, total; /* in steps, or in tokens: one unit for both and for `at` */
    float decay;           /* WSD: share of total, 0.1 to 0.2 usually */
};

NEB_API neb_status neb_schedule_check(const struct neb_schedule *s);
NEB_API float neb_schedule_lr(const struct neb_schedule *s, int64_t at);

/* The same for a run that time may end before `total`. The total then is the number of steps that fit into
 * `limit_s`, estimated from the first `at` steps, which took `seconds`. So the rate has fallen to its end
 * when the time is over. limit_s 0: no limit. */
NEB_API float neb_schedule_lr_within(const struct neb_schedule *s, int64_t at, double seconds,
                                     double limit_s);

#ifdef __cplusplus
}
#endif
#endif
