/* json_file.c: see json_file.h. */
#include "task/json_file.h"
#include "base/buf.h"
#include "base/file.h"
#include "job/model_yaml.h"

#include <stdio.h>
#include <unistd.h>

enum { MOST = 64 << 20 };

neb_status neb__json_file(const char *folder, const char *name, size_t flags, json_t **out)
{
    char path[NEB_MODEL_PATH + 300];
    struct neb_buf text;
    json_error_t e;
    *out = NULL;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (access(path, F_OK)) return NEB_OK;
    neb__buf_init(&text, MOST);
    neb_status status = neb__file_read_plain(path, &text);
    if (status == NEB_OK) {
        json_t *j = json_loadb((const char *)text.data, text.len, flags, &e);
        if (json_is_object(j))
            *out = j;
        else
            status = neb__fail(NEB_ERR_CORRUPT, "%s, line %d: %s", path, j ? 1 : e.line,
                               j ? "not an object" : e.text);
        if (status != NEB_OK) json_decref(j);
    }
    neb__buf_free(&text);
    return status;
}
