/* tokenizer_json_step.c: the steps of a tokenizer.json. A step that is not known, or an option that would give
 * other ids, is refused by its name. */
#include "text/tokenizer_json_parts.h"
#include "base/mem.h"

#include <string.h>

enum { DEPTH = 8 };

struct kind_row {
    const char *type;
    enum neb_tj_stage stage;
    enum neb_tj_kind kind;
};

static const struct kind_row kinds[] = {
    {"NFC", NEB_TJ_NORMALIZER, NEB_TJ_NFC},
    {"NFD", NEB_TJ_NORMALIZER, NEB_TJ_NFD},
    {"NFKC", NEB_TJ_NORMALIZER, NEB_TJ_NFKC},
    {"NFKD", NEB_TJ_NORMALIZER, NEB_TJ_NFKD},
    {"Lowercase", NEB_TJ_NORMALIZER, NEB_TJ_LOWER},
    {"StripAccents", NEB_TJ_NORMALIZER, NEB_TJ_STRIP_ACCENTS},
    {"Strip", NEB_TJ_NORMALIZER, NEB_TJ_STRIP},
    {"Replace", NEB_TJ_NORMALIZER, NEB_TJ_REPLACE},
    {"Prepend", NEB_TJ_NORMALIZER, NEB_TJ_PREPEND},
    {"Nmt", NEB_TJ_NORMALIZER, NEB_TJ_NMT},
    {"Precompiled", NEB_TJ_NORMALIZER, NEB_TJ_CHARSMAP},
    {"BertNormalizer", NEB_TJ_NORMALIZER, NEB_TJ_BERT_NORMALIZER},
    {"BertPreTokenizer", NEB_TJ_PRE_TOKENIZER, NEB_TJ_BERT_SPLIT},
    {"ByteLevel", NEB_TJ_PRE_TOKENIZER, NEB_TJ_BYTE_LEVEL},
    {"Metaspace", NEB_TJ_PRE_TOKENIZER, NEB_TJ_METASPACE},
    {"Whitespace", NEB_TJ_PRE_TOKENIZER, NEB_TJ_WHITESPACE},
    {"WhitespaceSplit", NEB_TJ_PRE_TOKENIZER, NEB_TJ_WHITESPACE_SPLIT},
    {"Split", NEB_TJ_PRE_TOKENIZER, NEB_TJ_SPLIT},
    {"Punctuation", NEB_TJ_PRE_TOKENIZER, NEB_TJ_PUNCTUATION},
    {"Digits", NEB_TJ_PRE_TOKENIZER, NEB_TJ_DIGITS},
    {"CharDelimiterSplit", NEB_TJ_PRE_TOKENIZER, NEB_TJ_DELIMITER},
    {"ByteLevel", NEB_TJ_DECODER, NEB_TJ_BYTE_LEVEL},
    {"Metaspace", NEB_TJ_DECODER, NEB_TJ_METASPACE},
    {"Replace", NEB_TJ_DECODER, NEB_TJ_REPLACE},
    {"ByteFallback", NEB_TJ_DECODER, NEB_TJ_BYTE_FALLBACK},
    {"Fuse", NEB_TJ_DECODER, NEB_TJ_FUSE},
    {"Strip", NEB_TJ_DECODER, NEB_TJ_STRIP_DECODER},
    {"WordPiece", NEB_TJ_DECODER, NEB_TJ_WORDPIECE_DECODER},
    {"BPEDecoder", NEB_TJ_DECODER, NEB_TJ_SUFFIX_DECODER},
};

static const char *const stages[] = {"normalizer", "pre_tokenizer", "decoder"};
static const char *const lists[] = {"normalizers", "pretokenizers", "decoders"};

/* ---- values of JSON ------------------------------------------------------------------------------------ */

static neb_status get_text(const json_t *j, const char *key, const char *fallback, char **out)
{
    const char *text = json_string_value(json_object_get(j, key));
    if (!text) text = fallback;
    if (!text) return neb__fail(NEB_ERR_CORRUPT, "tokenizer.json: '%s' is missing or is not a text", key);
    *out = neb__strdup(text);
    return *out ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for a tokenizer");
}

static bool get_bool(const json_t *j, const char *key, bool fallback)
{
    const json_t *v = json_object_get(j, key);
    return json_is_boolean(v) ? json_is_true(v) : fallback;
}

/* {"String": …} or {"Regex": …} */
static neb_status get_pattern(const json_t *j, struct neb_tj_step *s)
{
    const json_t *p = json_object_get(j, "pattern");
    const char *regex = json_string_value(json_object_get(p, "Regex"));
    if (regex) return neb__regex_create(regex, &s->regex);
    return get_text(p, "String", NULL, &s->text);
}

static neb_status get_behavior(const json_t *j, const char *fallback, struct neb_tj_step *s)
{
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                                        "Contiguous"};
    const char *text = json_string_value(json_object_get(j, "behavior"));
    if (!text) text = fallback;
    for (int i = 0; i < 5; i++)
        if (!strcmp(text, names[i])) {
            s->behavior = (enum neb_tj_behavior)i;
            return NEB_OK;
        }
    return neb__fail(NEB_ERR_UNSUPPORTED, "tokenizer.json: behavior '%.40s' is not supported", text);
}

/* ---- one step ------------------------------------------------------------------------------------------ */

static neb_status read_bert(const json_t *j, struct neb_tj_step *s)
{
    s->flag[0] = get_bool(j, "clean_text", true);
    s->flag[1] = get_bool(j, "handle_chinese_chars", true);
    s->flag[3] = get_bool(j, "lowercase", true);
    s->flag[2] = get_bool(j, "strip_accents", s->flag[3]);
    return NEB_OK;
}

static neb_status read_metaspace(const json_t *j, struct neb_tj_step *s)
{
    static const char *const names[] = {"never", "first", "always"};
    const char *scheme = json_string_value(json_object_get(j, "prepend_scheme"));
    if (!scheme) scheme = get_bool(j, "add_prefix_space", true) ? "always" : "never";
    int i = 0;
    while (i < 3 && strcmp(scheme, names[i])) i++;
    if (i == 3)
        return neb__fail(NEB_ERR_UNSUPPORTED, "tokenizer.json: prepend_scheme '%.40s' is not supported",
                         scheme);
    s->prepend = (enum neb_tj_prepend)i;
    s->flag[0] = get_bool(j, "split", true);
    NEB_TRY(get_text(j, "replacement", "\xE2\x96\x81", &s->text));
    return *s->text ? NEB_OK : neb__fail(NEB_ERR_CORRUPT, "tokenizer.json: Metaspace has no replacement");
}

static neb_status read_options(const json_t *j, enum neb_tj_stage stage, struct neb_tj_step *s)
{
    switch (s->kind) {
    case NEB_TJ_STRIP:
        s->flag[0] = get_bool(j, "strip_left", true);
        s->flag[1] = get_bool(j, "strip_right", true);
        return NEB_OK;
    case NEB_TJ_REPLACE: NEB_TRY(get_pattern(j, s)); return get_text(j, "content", NULL, &s->by);
    case NEB_TJ_PREPEND: return get_text(j, "prepend", NULL, &s->text);
    case NEB_TJ_CHARSMAP: {
        const char *map = json_string_value(json_object_get(j, "precompiled_charsmap"));
        if (!map)
            return neb__fail(NEB_ERR_CORRUPT, "tokenizer.json: Precompiled has no precompiled_charsmap");
        return neb__charsmap_load(map, &s->map);
    }
    case NEB_TJ_BERT_NORMALIZER: return read_bert(j, s);
    case NEB_TJ_BYTE_LEVEL:
        s->flag[0] = stage == NEB_TJ_PRE_TOKENIZER && get_bool(j, "add_prefix_space", true);
        s->flag[1] = get_bool(j, "use_regex", true);
        return NEB_OK;
    case NEB_TJ_METASPACE: return read_metaspace(j, s);
    case NEB_TJ_SPLIT:
        s->flag[0] = get_bool(j, "invert", false);
        NEB_TRY(get_behavior(j, "", s));
        return get_pattern(j, s);
    case NEB_TJ_PUNCTUATION: return get_behavior(j, "Isolated", s);
    case NEB_TJ_DIGITS:
        s->behavior = get_bool(j, "individual_digits", false) ? NEB_TJ_ISOLATED : NEB_TJ_CONTIGUOUS;
        return NEB_OK;
    case NEB_TJ_DELIMITER: s->behavior = NEB_TJ_REMOVED; return get_text(j, "delimiter", NULL, &s->text);
    case NEB_TJ_STRIP_DECODER:
        s->number[0] = json_integer_value(json_object_get(j, "start"));
        s->number[1] = json_integer_value(json_object_get(j, "stop"));
        return get_text(j, "content", " ", &s->text);
    case NEB_TJ_WORDPIECE_DECODER:
        s->flag[0] = get_bool(j, "cleanup", true);
        return get_text(j, "prefix", "##", &s->text);
    case NEB_TJ_SUFFIX_DECODER: return get_text(j, "suffix", "</w>", &s->text);
    case NEB_TJ_WHITESPACE:
        /* \w of Rust's regex: letters, marks, digits, connectors, joiners, circled letters */
        return neb__regex_create(
            "[\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24B6}-\\x{24E9}\\x{200C}\\x{200D}]+|"
            "[^\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24B6}-\\x{24E9}\\x{200C}\\x{200D}\\s]+",
            &s->regex);
    default: return NEB_OK;
    }
}

static neb_status read_step(enum neb_tj_stage stage, const json_t *j, int depth, struct neb_tj_steps *out)
{
    const char *type = json_string_value(json_object_get(j, "type"));
    if (!type) return neb__fail(NEB_ERR_CORRUPT, "tokenizer.json: a step of '%s' has no type", stages[stage]);
    if (!strcmp(type, "Sequence")) {
        const json_t *list = json_object_get(j, lists[stage]);
        if (!json_is_array(list) || depth == DEPTH)
            return neb__fail(NEB_ERR_CORRUPT, "tokenizer.json: a Sequence of '%s' has no list or is too deep",
                             stages[stage]);
        for (size_t i = 0; i < json_array_size(list); i++)
            NEB_TRY(read_step(stage, json_array_get(list, i), depth + 1, out));
        return NEB_OK;
    }
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (kinds[i].stage != stage || strcmp(kinds[i].type, type)) continue;
        if (out->n == NEB_TJ_STEPS)
            return neb__fail(NEB_ERR_CORRUPT, "tokenizer.json: '%s' has more than %d steps", stages[stage],
                             NEB_TJ_STEPS);
        struct neb_tj_step *s = &out->step[out->n++];
        s->kind = kinds[i].kind;
        return read_options(j, stage, s);
    }
    return neb__fail(NEB_ERR_UNSUPPORTED, "tokenizer.json: the %s '%.40s' is not supported", stages[stage],
                     type);
}

neb_status neb__tj_steps_read(enum neb_tj_stage stage, const json_t *j, struct neb_tj_steps *out)
{
    if (!j || json_is_null(j)) return NEB_OK;
    return read_step(stage, j, 0, out);
}

void neb__tj_steps_free(struct neb_tj_steps *s)
{
    for (int i = 0; i < s->n; i++) {
        neb__free(s->step[i].text);
        neb__free(s->step[i].by);
        neb__regex_free(s->step[i].regex);
        neb__charsmap_free(s->step[i].map);
    }
    s->n = 0;
}
