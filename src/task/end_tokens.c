/* end_tokens.c: which tokens end a text.
 *
 * A model that converses often has several: the end of a turn, of a message to a tool, of the text. Its
 * generation_config.json lists them; older folders list them in config.json, and then the list is written here as transformers
 * would. */
#include "task/end_tokens.h"
#include "base/file.h"
#include "job/model_yaml.h"
#include "task/json_file.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char settings[] = "generation_config.json", key[] = "eos_token_id";

/* One number, or a list of them. */
static neb_status read_list(const json_t *v, const char *folder, int32_t vocab, struct neb_end_tokens *out)
{
    struct neb_end_tokens made = {.n = 0};
    const size_t n = json_is_array(v) ? json_array_size(v) : v && !json_is_null(v);
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_is_array(v) ? json_array_get(v, i) : v;
        const json_int_t id = json_integer_value(one);
        if (!json_is_integer(one) || id < 0 || id > INT32_MAX)
            return neb__fail(NEB_ERR_CORRUPT, "%s/%s, '%s': not the number of a token, nor a list of such",
                             folder, settings, key);
        if (id >= vocab) continue; /* a token that this model does not have */
        if (made.n == NEB_END_TOKENS)
            return neb__fail(NEB_ERR_RANGE, "%s/%s, '%s': more than %d tokens", folder, settings, key,
                             NEB_END_TOKENS);
        made.id[made.n++] = (int32_t)id;
    }
    *out = made;
    return NEB_OK;
}

neb_status neb__end_tokens_read(const char *folder, int32_t vocab, struct neb_end_tokens *out)
{
    json_t *j;
    NEB_TRY(neb__json_file(folder, settings, 0, &j));
    neb_status status = read_list(json_object_get(j, key), folder, vocab, out);
    json_decref(j);
    return status;
}

static neb_status write_list(const json_t *list, const char *to)
{
    char path[NEB_MODEL_PATH + 64];
    json_t *j = json_pack("{s:b, s:O}", "_from_model_config", 1, key, list);
    char *text = j ? json_dumps(j, JSON_INDENT(2)) : NULL;
    json_decref(j);
    if (!text) return neb__fail(NEB_ERR_NOMEM, "out of memory for %s", settings);
    snprintf(path, sizeof path, "%s/%s", to, settings);
    neb_status status = neb__file_replace(path, text, strlen(text), 0644);
    free(text); /* jansson's own */
    return status;
}

neb_status neb__end_tokens_bring(const char *from, const char *to)
{
    json_t *j;
    struct neb_end_tokens all;
    NEB_TRY(neb__json_file(to, settings, 0, &j)); /* it was copied */
    if (j) {
        json_decref(j);
        return NEB_OK;
    }
    NEB_TRY(neb__json_file(from, "config.json", 0, &j));
    const json_t *list = json_object_get(j, key);
    neb_status status = NEB_OK;
    if (list && !json_is_null(list)) status = read_list(list, from, INT32_MAX, &all);
    if (status == NEB_OK && list && !json_is_null(list)) status = write_list(list, to);
    json_decref(j);
    return status;
}
