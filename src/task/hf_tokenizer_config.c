/* hf_tokenizer_config.c: what tokenizer_config.json of a Hugging Face folder says, and whether that is done here.
 *
 * The class names a program, and the options change it. A vocabulary alone (vocab.txt, vocab.json, a SentencePiece model) is
 * cut here as the classes below cut it; another class, or an option that would give other ids, is refused by its name. A
 * tokenizer.json describes itself, but some classes overrule it with their options: a contradiction is refused. */
#include "task/hf_tokenizer.h"
#include "base/log.h"
#include "task/json_file.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* Names of classes without …Tokenizer or …TokenizerFast. */
static const char *const wordpiece[] = {
    "Bert",   "DistilBert", "Electra",   "MobileBert",         "ConvBert",          "SqueezeBert", "LayoutLM",
    "Lxmert", "RetriBert",  "DPRReader", "DPRQuestionEncoder", "DPRContextEncoder", NULL};
static const char *const byte_level[] = {"GPT2", "Roberta", "Bart",    "Longformer",
                                         "LED",  "Mvp",     "CodeGen", NULL};
static const char *const sentencepiece[] = {
    "XLMRoberta", "BertGeneration", "Llama", "CodeLlama", "Gemma",  "T5",       "MT5",
    "MBart",      "MBart50",        "Nllb",  "M2M100",    "Marian", "Reformer", NULL};
/* These have no fast twin, which would read a tokenizer.json. */
static const char *const slow_only[] = {"BertJapanese", "Phobert", "Bertweet", NULL};

/* ---- reading ---------------------------------------------------------------------------------------------------- */

/* A JSON object, or an empty one if the file is missing. model_max_length may lie beyond 64 bits. */
static neb_status load(const char *from, const char *name, json_t **out)
{
    NEB_TRY(neb__json_file(from, name, JSON_DECODE_INT_AS_REAL, out));
    if (!*out) *out = json_object();
    return *out ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for %s", name);
}

static const char *text_of(const json_t *j, const char *key, const char *fallback)
{
    const char *text = json_string_value(json_object_get(j, key));
    return text ? text : fallback;
}

neb_status neb__hf_tokenizer_config_read(const char *from, struct neb_hf_tokenizer_config *out)
{
    json_t *j;
    NEB_TRY(load(from, "tokenizer_config.json", &j));
    const json_t *extra = json_object_get(j, "extra_ids"), *start = json_object_get(j, "add_bos_token");
    *out = (struct neb_hf_tokenizer_config){
        .cased = json_is_false(json_object_get(j, "do_lower_case")),
        .legacy = json_is_true(json_object_get(j, "legacy_behaviour")),
        .separate = json_is_true(json_object_get(j, "separate_vocabs")),
        .starts = json_is_boolean(start) ? json_is_true(start) : -1,
        .sentinels = json_is_number(extra) ? json_number_value(extra) : -1,
    };
    snprintf(out->class, sizeof out->class, "%s", text_of(j, "tokenizer_class", ""));
    snprintf(out->languages, sizeof out->languages, "%s", text_of(j, "language_codes", "m2m100"));
    json_decref(j);
    return NEB_OK;
}

/* ---- judging ---------------------------------------------------------------------------------------------------- */

static neb_status refuse(const char *what, const char *value)
{
    return neb__fail(
        NEB_ERR_UNSUPPORTED,
        "tokenizer_config.json, '%s': %.60s gives other tokens than are made here; save the tokenizer with "
        "save_pretrained() of its fast class, which writes a tokenizer.json, or remove the tokenizer's files "
        "to take the weights only",
        what, value);
}

static bool is_among(const char *const *list, const char *class)
{
    const char *end = strstr(class, "Tokenizer");
    if (!end || (strcmp(end, "Tokenizer") && strcmp(end, "TokenizerFast"))) return false;
    for (; *list; list++)
        if (strlen(*list) == (size_t)(end - class) && !strncmp(class, *list, strlen(*list))) return true;
    return false;
}

static neb_status refuse_if(const json_t *config, const char *key, bool value)
{
    const json_t *v = json_object_get(config, key);
    return json_is_boolean(v) && json_is_true(v) == value ? refuse(key, value ? "true" : "false") : NEB_OK;
}

static neb_status check_wordpiece(const json_t *config)
{
    const bool lower = !json_is_false(json_object_get(config, "do_lower_case"));
    NEB_TRY(refuse_if(config, "strip_accents", !lower));
    NEB_TRY(refuse_if(config, "tokenize_chinese_chars", false));
    NEB_TRY(refuse_if(config, "do_basic_tokenize", false));
    const json_t *list = json_object_get(config, "never_split");
    return json_array_size(list) ? refuse("never_split", "a list") : NEB_OK;
}

static bool ends(const char *text, const char *with)
{
    const size_t n = strlen(text), m = strlen(with);
    return n >= m && !strcmp(text + n - m, with);
}

static neb_status check_vocabulary(const json_t *config, const char *class, const char *file)
{
    const bool words = !strcmp(file, "vocab.txt"), bytes = !strcmp(file, "vocab.json");
    const char *const *known = words ? wordpiece : bytes ? byte_level : sentencepiece;
    if (*class && !is_among(known, class)) return refuse("tokenizer_class", class);
    if (words) return check_wordpiece(config);
    if (bytes) return refuse_if(config, "add_prefix_space", true);
    return ends(file, ".model") ? refuse_if(config, "add_prefix_space", false) : NEB_OK;
}

/* An option of the class that is not what the file does. */
static neb_status compare(const json_t *config, const char *key, const json_t *part, const char *theirs)
{
    const json_t *a = json_object_get(config, key), *b = json_object_get(part, theirs);
    if (!json_is_boolean(a) || !json_is_boolean(b) || json_is_true(a) == json_is_true(b)) return NEB_OK;
    return refuse(key, json_is_true(a) ? "true, which tokenizer.json contradicts,"
                                       : "false, which tokenizer.json contradicts,");
}

static bool is_type(const json_t *part, const char *type)
{
    return !strcmp(text_of(part, "type", ""), type);
}

static neb_status check_json(const char *from, const json_t *config, const char *class)
{
    json_t *j;
    const bool before = neb__log_hush(true);
    neb_status status = load(from, "tokenizer.json", &j);
    neb__log_hush(before);
    if (status != NEB_OK) return NEB_OK; /* whoever opens it says so */
    const json_t *normalizer = json_object_get(j, "normalizer"), *cut = json_object_get(j, "pre_tokenizer");
    if ((!*class || is_among(wordpiece, class)) && is_type(normalizer, "BertNormalizer")) {
        status = compare(config, "do_lower_case", normalizer, "lowercase");
        if (status == NEB_OK)
            status = compare(config, "tokenize_chinese_chars", normalizer, "handle_chinese_chars");
        const char *accents =
            json_is_boolean(json_object_get(normalizer, "strip_accents")) ? "strip_accents" : "lowercase";
        if (status == NEB_OK) status = compare(config, "strip_accents", normalizer, accents);
    }
    const json_t *list = json_object_get(cut, "pretokenizers");
    if (status == NEB_OK && is_among(byte_level, class) && is_type(cut, "ByteLevel"))
        status = compare(config, "add_prefix_space", cut, "add_prefix_space");
    for (size_t i = 0; status == NEB_OK && is_among(byte_level, class) && i < json_array_size(list); i++)
        if (is_type(json_array_get(list, i), "ByteLevel"))
            status = compare(config, "add_prefix_space", json_array_get(list, i), "add_prefix_space");
    json_decref(j);
    return status;
}

neb_status neb__hf_tokenizer_config_check(const char *from, const char *file)
{
    json_t *config;
    NEB_TRY(load(from, "tokenizer_config.json", &config));
    const char *class = text_of(config, "tokenizer_class", "");
    neb_status status = NEB_OK;
    if (is_among(slow_only, class))
        status = refuse("tokenizer_class", class);
    else if (!strcmp(file, "tokenizer.json"))
        status = check_json(from, config, class);
    else
        status = check_vocabulary(config, class, file);
    json_decref(config);
    return status;
}
