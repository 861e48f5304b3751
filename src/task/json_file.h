/* json_file.h: JSON objects beside a model, in files of strangers. */
#ifndef NEB_TASK_JSON_FILE_H
#define NEB_TASK_JSON_FILE_H

#include "base/status.h"

#include <jansson.h>

/* The object in FOLDER/NAME, read with these flags of json_loadb(); *out NULL: there is no such file. The caller gives it back with
 * json_decref(). NEB_ERR_CORRUPT: it is not an object */
neb_status neb__json_file(const char *folder, const char *name, size_t flags, json_t **out);

#endif
