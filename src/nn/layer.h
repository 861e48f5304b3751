/* layer.h: the pieces a transformer is made of: how each is built (names, shapes, splits) and how it runs.
 *
 * Every product of an activation with a weight goes through neb__lin_run(). LoRA, DoRA and IA3 are added there and nowhere
 * else, and so is what processes that share a weight exchange (tensor/team.h). */
#ifndef NEB_NN_LAYER_H
#define NEB_NN_LAYER_H

#include "nn/config.h"
#include "nn/model_input.h"
#include "tensor/relative.h"

/* ---- building: names are paths; a builder is at one path ------------------------------------------- */

enum { NEB_PATH = 160 };

struct neb_builder {
    neb_params *params;
    const struct neb_arch *arch;
    const struct neb_peft *peft;
    char path[NEB_PATH]; /* ends in a dot, or is empty */
    size_t root;         /* length of the model's own prefix in path */
    int first;           /* parameters that were in the set before this model's */
    bool elsewhere;      /* the parameters that are added now belong to another stage */
    bool copy;           /* … are those of another stage, too */
    bool some_rows;      /* … work on some of the rows, where a team shares them (tensor/team.h) */
    int lora_layers, ia3_layers;
    const int64_t *parts; /* of the weight that is built now; NULL: one */
    bool hidden;          /* the weight that is built now stands between hidden states */
};

/* The path becomes path + name + ".". Returns the old length, which neb__builder_leave() restores. */
size_t neb__builder_enter(struct neb_builder *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void neb__builder_leave(struct neb_builder *b, size_t mark);

/* split: how processes that share the model cut it. */
neb_param *neb__builder_matrix(struct neb_builder *b, const char *name, int64_t rows, int64_t cols,
                               neb_init init, float scale, neb_split split);
neb_param *neb__builder_vector(struct neb_builder *b, const char *name, int64_t n, neb_init init,
                               neb_split split);
/* How many of n heads are here. */
int64_t neb__builder_share(const struct neb_builder *b, int64_t n);

/* ---- linear and norm ----------------------------------------------------------------------------------- */

/* LoRA of one of the matrices that a weight is made of: its outputs are columns [first, first + count). */
struct neb_lora_part {
    const char *name;
    neb_param *a, *b; /* (rank, in), (count, rank) or NULL */
    neb_param *m;     /* (count) DoRA's lengths, or NULL */
    neb_param *ia3;   /* (count) factors of the outputs, or NULL */
    int64_t first, count;
};

struct neb_lin {
    neb_param *weight, *bias;    /* (out, in), (out) or NULL */
    neb_param *lora_a, *lora_b;  /* (rank, in), (out, rank) or NULL */
    neb_param *lora_m;           /* (out) DoRA's lengths, or NULL */
    neb_param *ia3_in, *ia3_out; /* (in), (out): factors, or NULL */
    struct neb_lora_part part[3];
    float lora_scale, lora_dropout;
    neb_split split;
};

struct neb_lin_spec {
    const char *name;
    int64_t in, out;
    float deviation;
    bool bias;
    neb_split split;
    int64_t parts
        [3]; /* by rows: outputs of the matrices that this one is made of, each of which is cut; 0: one */
    const char *names[3]; /* of these matrices, where patterns may choose one of them */
};

struct neb_lin neb__lin_build(struct neb_builder *b, const struct neb_lin_spec *spec);
/* The same without an activation, where only a sum without dropout reads the result, which a recomputed block returns:
 * then it is not computed once more in the backward. */
bool neb__lin_may_be_unread(const struct neb_lin *l);
neb_tensor *neb__lin_run_unread(neb_tape *t, const struct neb_lin *l, neb_tensor *x);
/* Nothing but x w^T. */
bool neb__lin_is_product(const struct neb_lin *l);
neb_tensor *neb__lin_run(neb_tape *t, const struct neb_lin *l, neb_tensor *x, neb_act act);

struct neb_norm_layer {
    neb_param *gamma, *beta;
    neb_norm_kind kind;
    float eps;
};

struct neb_norm_layer neb__norm_build(struct neb_builder *b, const char *name, int64_t n);
neb_tensor *neb__norm_run(neb_tape *t, const struct neb_norm_layer *n, neb_tensor *x);

/* The matrices that a weight of a layer is made of, by its name without .weight: q, k and v of ….attention.qkv. How many;
 * 0: it is one matrix. */
struct neb_weight_part {
    const char *name;
    int64_t rows;
};
int neb__weight_parts(const struct neb_arch *a, const char *stem, struct neb_weight_part out[3]);

/* ---- sublayers ----------------------------------------------------------------------------------------- */

struct neb_adapter { /* down NULL: no adapter */
    struct neb_lin down, up;
};

struct neb_attn_layer {
    struct neb_lin qkv;   /* self: rows of q, k, v one after the other */
    struct neb_lin q, kv; /* cross */
    struct neb_lin out;
    struct neb_norm_layer norm;
    struct neb_norm_layer q_norm, k_norm; /* self: of each head, before rope; gamma NULL: none */
    struct neb_adapter adapter;
    neb_param *prefix_key, *prefix_value; /* (prefix length, kv_heads * head_dim) or NULL */
};

struct neb_ffn_layer {
    struct neb_lin in, out; /* swiglu: in has 2 ffn rows, gate first */
    struct neb_norm_layer norm;
    struct neb_adapter adapter;
};

struct neb_layer {
    const struct neb_arch *arch;
    struct neb_attn_layer attention, cross;
    struct neb_ffn_layer ffn;
    bool has_cross, causal;
    int64_t heads, kv_heads, first_head; /* those that are here */
};

void neb__layer_build(struct neb_builder *b, bool has_cross, bool causal, struct neb_layer *out);

/* For decoding token by token: the keys and values that a layer keeps from run to run, and the places of this
 * run's rows (nn/decode.h). */
struct neb_layer_cache {
    neb_buffer *key, *value; /* (cache rows, kv_heads * head_dim) */
    neb_buffer *cross;       /* (source rows, 2 kv_heads * head_dim) keys and values of the memory, or NULL */
};

struct neb_cache_input {
    int64_t rows, source_rows;
    neb_tensor *index;              /* I32 (new rows) their place in the cache; -1: not kept */
    struct neb_seqs q_seqs, k_seqs; /* new rows over all cached ones */
    neb_tensor *key, *count; /* not NULL: each new row over the cached rows it lists (tensor/packed.h) */
    struct neb_seqs cross_q, cross_k;
};

/* Inputs of a layer besides x. Must stay valid until the run ends when layers are recomputed. */
struct neb_layer_call {
    const struct neb_layer *layer;
    const struct neb_input_side *side;
    const struct neb_input_side *memory_side; /* cross attention */
    neb_tensor *memory;
    const struct neb_relative *relative; /* of self attention; NULL: none */
    neb_param *relative_table;
    int number;
    int64_t shared_rows;                 /* that a team shares; 0: every member has all */
    const struct neb_layer_cache *cache; /* NULL: none */
    const struct neb_cache_input *at;
};

/* neb_block_fn: x (rows, hidden) → (rows, hidden). */
neb_tensor *neb__layer_run(neb_tape *t, void *call, neb_tensor *x);

#endif
