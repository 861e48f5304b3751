/* config.h: a model as a table of options, and the checked form that the layers read.
 *
 *     struct neb_model_config c;
 *     neb__model_config_init("gpt2", &c);                 owes a neb__model_config_free()
 *     neb__opts_set(neb__model_options, &c, "hidden", "256");
 *     struct neb_arch a;
 *     neb__model_config_check(&c, &a);
 *
 * The options come from job files, the command line or code. The layers read struct neb_arch: names have
 * become enums, zeros have become the values they stand for, and every number is known to be possible. */
#ifndef NEB_NN_CONFIG_H
#define NEB_NN_CONFIG_H

#include "base/nearest.h"
#include "base/opts.h"

#include <nebula/engine.h>

struct neb_model_config {
    char *kind;
    int64_t vocab, hidden, layers, decoder_layers, heads, kv_heads, head_dim, ffn, embedding, max_positions,
        types;
    char *positions, *norm, *norm_place, *activation, *head, *pooling;
    double norm_eps, rope_base, rope_factor, rope_low, rope_high, dropout, attention_dropout, label_smoothing,
        init_deviation;
    int64_t rope_original, relative_buckets, relative_distance, classes;
    bool qkv_bias, qk_norm, attention_scale, head_scale;
    bool embedding_norm, embedding_scale, embedding_delta, bias, tied, head_bias, residual_init, recompute;
};

extern const struct neb_opt neb__model_options[];

enum neb_model_kind { NEB_ENCODER, NEB_DECODER, NEB_ENCODER_DECODER };
enum neb_positions {
    NEB_POSITIONS_NONE,
    NEB_POSITIONS_LEARNED,
    NEB_POSITIONS_SINUSOIDAL,
    NEB_POSITIONS_ROPE,
    NEB_POSITIONS_FAIRSEQ, /* sinusoids with fairseq's wavelengths, counted from 2 (M2M100, NLLB) */
    NEB_POSITIONS_RELATIVE /* a learned number for the distance of two tokens, added to their score (T5) */
};
enum neb_head { NEB_HEAD_NONE, NEB_HEAD_TOKENS, NEB_HEAD_RTD, NEB_HEAD_CLASS };

/* A table of sines and cosines, computed and not trained. */
static inline bool neb__positions_computed(enum neb_positions p)
{
    return p == NEB_POSITIONS_SINUSOIDAL || p == NEB_POSITIONS_FAIRSEQ;
}

struct neb_arch {
    enum neb_model_kind kind;
    enum neb_positions positions;
    enum neb_head head;
    neb_norm_kind norm;
    neb_act act;
    bool swiglu, pre_norm, mean_pooling; /* swiglu: the feed-forward has a gate, with SiLU … */
    bool gelu_gate;                      /* … or with tanh-GELU (geglu) */
    int64_t vocab, hidden, layers, decoder_layers, heads, kv_heads, head_dim, ffn, embedding, max_positions,
        types, classes, relative_buckets, relative_distance;
    struct neb_rope_scale rope_scale;
    float eps, rope_base, dropout, attention_dropout, smoothing, deviation;
    bool qkv_bias, qk_norm, attention_scale, head_scale;
    bool embedding_norm, embedding_scale, embedding_delta, bias, tied, head_bias, residual_init, recompute;
};

#define NEB_MODEL_FAMILIES \
    "bert, xlm-r, electra, gpt2, llama, gemma, transformer, marian, m2m100, bart, mbart, t5, t5-v1.1"

/* Whether there is such a family. If not, hint has the nearest one. */
bool neb__model_family(const char *name, char hint[NEB_HINT]);

/* Sets every option's default, then the family's values. NULL or "": no family. A family never sets a size, except ELECTRA's narrow
 * embedding.
 *   NEB_ERR_CONFIG no such family; NEB_ERR_NOMEM */
neb_status neb__model_config_init(const char *family, struct neb_model_config *out);
void neb__model_config_free(struct neb_model_config *c);

/* True: two options do not fit together. `option` is the one to change, `why` a sentence that has its value. Every option
 * by itself must be allowed. The vocabulary, which a job leaves to its data, is not looked at. */
struct neb_model_misfit {
    const char *option;
    char why[160];
};
bool neb__model_config_misfit(const struct neb_model_config *c, struct neb_model_misfit *out);

/* The message of NEB_ERR_CONFIG names the option, its value and the allowed values. */
neb_status neb__model_config_check(const struct neb_model_config *c, struct neb_arch *out);

/* ---- which parts of a model are trained ---------------------------------------------------------------- */

struct neb_peft_config {
    char *method; /* comma-separated */
    int64_t lora_rank;
    double lora_alpha, lora_dropout;
    char *lora_on;
    bool lora_dora;
    char *ia3_on, *ia3_in;
    int64_t adapter_size;
    char *adapter_after;
    int64_t prefix_length, prompt_length;
    char *train, *freeze;
    char *frozen; /* how frozen weights of the layers are kept */
};

extern const struct neb_opt neb__peft_options[];

struct neb_peft {
    bool full, frozen, lora, adapter, bias, prefix, ia3,
        prompt; /* full: everything is trained, nothing added */
    bool dora;  /* lora with the lengths of rows */
    int64_t lora_rank, adapter_size, prefix_length, prompt_length; /* 0 where the method is off */
    float lora_scale, lora_dropout;                                /* scale = alpha / rank */
    bool adapter_after_attention;
    neb_narrow_kind keep; /* frozen weights of the layers; NEB_WIDE: as all others */
    const char *lora_on, *ia3_on, *ia3_in, *train,
        *freeze; /* pointers into the config: comma-separated patterns, or NULL */
};

neb_status neb__peft_config_init(struct neb_peft_config *out); /* owes a free */
void neb__peft_config_free(struct neb_peft_config *c);
neb_status neb__peft_config_check(const struct neb_peft_config *c, struct neb_peft *out); /* NEB_ERR_CONFIG */

/* The i-th part of a comma-separated list, without blanks around it; false after the last. It reports no
 * error: a part that is longer than the space is cut, and no pattern matches it then. */
bool neb__list_part(const char *list, int i, char *out, size_t size);

#endif
