/* hf_token_numbers.c: which tokens an imported config.json names.
 *
 * token_numbers.json lies in the model folder: pad_token_id, bos_token_id, eos_token_id (one, several or null) and
 * decoder_start_token_id, as far as config.json had them. Nothing here needs it. An export writes these numbers again; where there are
 * none it takes the tokenizer's, and null for a token that the tokenizer does not have. */
#include "task/hf.h"
#include "base/file.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_JSON = 64 << 20 };

static const char file[] = "token_numbers.json";
static const char *const keys[] = {"pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"};
enum { KEYS = sizeof keys / sizeof *keys };

static neb_status read_json(const char *folder, const char *name, json_t **out)
{
    char path[NEB_MODEL_PATH + 64];
    struct neb_buf text;
    json_error_t e;
    neb__buf_init(&text, MAX_JSON);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    neb_status status = neb__file_read_plain(path, &text);
    json_t *j = status == NEB_OK ? json_loadb((const char *)text.data, text.len, 0, &e) : NULL;
    neb__buf_free(&text);
    NEB_TRY(status);
    if (!json_is_object(j)) {
        json_decref(j);
        return neb__fail(NEB_ERR_CORRUPT, "%s: %s", path, j ? "not a JSON object" : e.text);
    }
    *out = j;
    return NEB_OK;
}

/* The keys of `from` that name tokens, as an object. */
static neb_status pick(const json_t *from, json_t **out)
{
    int64_t unused;
    for (int i = 0; i < KEYS; i++) NEB_TRY(neb__hf_token(from, keys[i], &unused));
    json_t *j = json_object();
    bool bad = !j;
    for (int i = 0; i < KEYS; i++) {
        json_t *v = json_object_get(from, keys[i]);
        if (json_is_integer(v) && json_integer_value(v) < 0) v = json_null();
        if (v) bad |= json_object_set(j, keys[i], v) != 0;
    }
    if (bad) {
        json_decref(j);
        return neb__fail(NEB_ERR_NOMEM, "out of memory for %s", file);
    }
    *out = j;
    return NEB_OK;
}

neb_status neb__hf_token_numbers_bring(const char *from, const char *to)
{
    char path[NEB_MODEL_PATH + 64];
    json_t *config, *j = NULL;
    NEB_TRY(read_json(from, "config.json", &config));
    neb_status status = pick(config, &j);
    json_decref(config);
    NEB_TRY(status);
    char *text = json_dumps(j, JSON_INDENT(2));
    json_decref(j);
    snprintf(path, sizeof path, "%s/%s", to, file);
    status = text ? neb__file_replace(path, text, strlen(text), 0644)
                  : neb__fail(NEB_ERR_NOMEM, "out of memory for %s", file);
    free(text); /* jansson's own */
    return status;
}

neb_status neb__hf_token_numbers_read(const char *folder, const struct neb_tok *tok, json_t **out)
{
    static const enum neb_special special[] = {NEB_TOK_PAD, NEB_TOK_BOS, NEB_TOK_EOS};
    char path[NEB_MODEL_PATH + 64];
    json_t *mine = NULL, *j = NULL;
    snprintf(path, sizeof path, "%s/%s", folder, file);
    if (!access(path, F_OK)) NEB_TRY(read_json(folder, file, &mine));
    neb_status status = pick(mine, &j);
    json_decref(mine);
    NEB_TRY(status);
    bool bad = false;
    for (int i = 0; i < 3; i++) {
        const int32_t id = tok ? neb__tok_special(tok, special[i]) : -1;
        if (json_object_get(j, keys[i])) continue;
        bad |= json_object_set_new(j, keys[i], id < 0 ? json_null() : json_integer(id)) != 0;
    }
    if (bad) {
        json_decref(j);
        return neb__fail(NEB_ERR_NOMEM, "out of memory for the numbers of tokens");
    }
    *out = j;
    return NEB_OK;
}
