/* hf_config_keys.c: which keys a config.json may have, and values of one type.
 *
 * A key that is not known here may change what is computed: it is refused by its name unless it says nothing (null, false,
 * an empty list). Each family lists the keys of its class in transformers 4 and 5. Those that its base class writes into
 * every file change nothing here and are listed once below. A value of another type is refused, since it is anyone's guess
 * whether "no" or 0 means false. */
#include "task/hf.h"

#include <jansson.h>
#include <string.h>

/* Keys of every class: what is stored how, training, generation, housekeeping. A family checks those that matter to it. */
static const char *const common[] = {"vocab_size",
                                     "model_type",
                                     "architectures",
                                     "is_encoder_decoder",
                                     "tie_word_embeddings",
                                     "tie_encoder_decoder",
                                     "pad_token_id",
                                     "bos_token_id",
                                     "eos_token_id",
                                     "sep_token_id",
                                     "cls_token_id",
                                     "mask_token_id",
                                     "unk_token_id",
                                     "decoder_start_token_id",
                                     "use_cache",
                                     "torch_dtype",
                                     "dtype",
                                     "transformers_version",
                                     "_name_or_path",
                                     "name_or_path",
                                     "_commit_hash",
                                     "auto_map",
                                     "attn_implementation",
                                     "_attn_implementation",
                                     "_attn_implementation_autoset",
                                     "unsloth_version",
                                     "unsloth_fixed",
                                     "sentence_transformers",
                                     "id2label",
                                     "label2id",
                                     "num_labels",
                                     "_num_labels",
                                     "problem_type",
                                     "finetuning_task",
                                     "task_specific_params",
                                     "tokenizer_class",
                                     "return_dict",
                                     "use_return_dict",
                                     "output_past",
                                     "output_attentions",
                                     "output_hidden_states",
                                     "output_scores",
                                     "return_dict_in_generate",
                                     "chunk_size_feed_forward",
                                     "gradient_checkpointing",
                                     "use_bfloat16",
                                     "torchscript",
                                     "xla_device",
                                     "tf_legacy_loss",
                                     "initializer_range",
                                     "prefix",
                                     "max_length",
                                     "max_new_tokens",
                                     "min_length",
                                     "do_sample",
                                     "early_stopping",
                                     "num_beams",
                                     "num_beam_groups",
                                     "diversity_penalty",
                                     "temperature",
                                     "top_k",
                                     "top_p",
                                     "typical_p",
                                     "repetition_penalty",
                                     "length_penalty",
                                     "no_repeat_ngram_size",
                                     "encoder_no_repeat_ngram_size",
                                     "bad_words_ids",
                                     "num_return_sequences",
                                     "forced_bos_token_id",
                                     "forced_eos_token_id",
                                     "remove_invalid_values",
                                     "renormalize_logits",
                                     "exponential_decay_length_penalty",
                                     "suppress_tokens",
                                     "begin_suppress_tokens"};

neb_status neb__hf_refuse(const char *key, const char *what)
{
    return neb__fail(NEB_ERR_UNSUPPORTED, "config.json, '%.60s': %s", key, what);
}

static neb_status wrong(const char *key, const char *what)
{
    return neb__fail(NEB_ERR_CORRUPT, "config.json, '%s': %s", key, what);
}

static bool is_one_of(const char *key, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(key, list[i])) return true;
    return false;
}

bool neb__hf_says_nothing(const json_t *v)
{
    return !v || json_is_null(v) || json_is_false(v) || (json_is_object(v) && !json_object_size(v)) ||
           (json_is_array(v) && !json_array_size(v));
}

neb_status neb__hf_known_keys(const json_t *j, const char *const *list, size_t n)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)j, key, value)
    {
        if (neb__hf_says_nothing(value)) continue;
        if (!strcmp(key, "quantization_config"))
            return neb__hf_refuse(key, "quantised weights cannot be imported");
        if (!is_one_of(key, common, sizeof common / sizeof *common) && !is_one_of(key, list, n))
            return neb__hf_refuse(key, "is not known here and may change what is computed");
    }
    return NEB_OK;
}

/* ---- values ------------------------------------------------------------------------------------------------- */

neb_status neb__hf_whole(const json_t *j, const char *key, int64_t fallback, int64_t *out)
{
    const json_t *v = json_object_get(j, key);
    if ((!v || json_is_null(v)) && fallback >= 0) {
        *out = fallback;
        return NEB_OK;
    }
    if (!json_is_integer(v)) return wrong(key, v ? "is not a whole number" : "is missing");
    json_int_t x = json_integer_value(v);
    if (x < 0 || x > INT32_MAX) return wrong(key, "is out of range");
    *out = x;
    return NEB_OK;
}

neb_status neb__hf_real(const json_t *j, const char *key, double fallback, double *out)
{
    const json_t *v = json_object_get(j, key);
    if (v && !json_is_null(v) && !json_is_number(v)) return wrong(key, "is not a number");
    *out = json_is_number(v) ? json_number_value(v) : fallback;
    return NEB_OK;
}

neb_status neb__hf_flag(const json_t *j, const char *key, bool fallback, bool *out)
{
    const json_t *v = json_object_get(j, key);
    if (v && !json_is_null(v) && !json_is_boolean(v)) return wrong(key, "is neither true nor false");
    *out = json_is_boolean(v) ? json_is_true(v) : fallback;
    return NEB_OK;
}

neb_status neb__hf_only(const json_t *j, const char *key, bool value)
{
    bool is;
    NEB_TRY(neb__hf_flag(j, key, value, &is));
    if (is == value) return NEB_OK;
    return neb__hf_refuse(key, is ? "true is not supported for this kind of model"
                                  : "false is not supported for this kind of model");
}

neb_status neb__hf_text(const json_t *j, const char *key, const char **out)
{
    const json_t *v = json_object_get(j, key);
    if (v && !json_is_null(v) && !json_is_string(v)) return wrong(key, "is not a text");
    *out = json_string_value(v);
    return NEB_OK;
}

static bool is_token(const json_t *v)
{
    return json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) <= INT32_MAX;
}

neb_status neb__hf_token(const json_t *j, const char *key, int64_t *out)
{
    const json_t *v = json_object_get(j, key), *first = v;
    bool bad = false;
    if (json_is_array(v)) first = json_array_get(v, 0);
    for (size_t i = 0; json_is_array(v) && i < json_array_size(v); i++)
        bad |= !is_token(json_array_get(v, i));
    *out = -1;
    if (neb__hf_says_nothing(v) && !json_is_false(v)) return NEB_OK;
    if (json_is_integer(v) && json_integer_value(v) == -1) return NEB_OK; /* as old Llamas say it */
    if (bad || !is_token(first)) return wrong(key, "is not the number of a token");
    *out = json_integer_value(first);
    return NEB_OK;
}
