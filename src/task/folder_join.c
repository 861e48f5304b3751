/* folder_join.c: the parts that the stages of a pipeline have written become one model folder.
 *
 * Each site writes model-0000k-of-0000n.safetensors (folder_values.c) beside model.yaml; sites that have the tokenizer write that, too.
 * The files are mapped, and tensors go from the maps into the new file. All parts must be of one run and one step, and have every
 * parameter of the model exactly once. */
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "store/safetensors.h"
#include "task/folder.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

enum { PARTS = 64 };

struct joining {
    struct neb_st *part[PARTS];
    int parts;
    struct neb_model_yaml yaml;
    char tokenizer[NEB_MODEL_PATH + 300]; /* a file; "": none was found */
    struct neb_st_tensor *list;
    struct neb_st **of; /* (n) the file of each tensor */
    int n;
};

void neb__folder_part_name(const char *path, int number, int parts, char *out, size_t size)
{
    snprintf(out, size, "%s/model-%05d-of-%05d.safetensors", path, number, parts);
}

static bool is_part(const char *name, int *number, int *parts)
{
    int end = 0;
    return sscanf(name, "model-%5d-of-%5d.safetensors%n", number, parts, &end) == 2 && end && !name[end];
}

void neb__folder_other_parts(const char *path, int number, int parts)
{
    DIR *d = opendir(path);
    int k, n;
    if (!d) return;
    for (struct dirent *e; (e = readdir(d));)
        if (is_part(e->d_name, &k, &n) && (k != number || n != parts))
            neb__warn(
                "%s/%.100s is not of this run's cut: remove it, or nebula-i export --join refuses the folder",
                path, e->d_name);
    closedir(d);
}

/* The one part of a folder. */
static neb_status find_part(const char *path, int *number, int *parts)
{
    DIR *d = opendir(path);
    int found = 0;
    if (!d) return neb__fail(NEB_ERR_NOTFOUND, "%s: no such folder", path);
    for (struct dirent *e; (e = readdir(d));) {
        int k, n;
        if (!is_part(e->d_name, &k, &n)) continue;
        *number = k, *parts = n;
        found++;
    }
    closedir(d);
    if (found == 1) return NEB_OK;
    return neb__fail(
        NEB_ERR_CONFIG,
        "%s has %d files model-00001-of-0000n.safetensors: name the folders `out` of the sites of one "
        "pipeline, which have one each",
        path, found);
}

static bool has_notes(const struct neb_st *st)
{
    return neb__st_meta(st, "run") && neb__st_meta(st, "step");
}

/* Both have their notes. */
static bool same_run(const struct neb_st *a, const struct neb_st *b)
{
    return !strcmp(neb__st_meta(a, "run"), neb__st_meta(b, "run")) &&
           !strcmp(neb__st_meta(a, "step"), neb__st_meta(b, "step"));
}

static neb_status add_part(struct joining *j, const char *path)
{
    char file[NEB_MODEL_PATH + 64];
    int number = 0, parts = 0;
    NEB_TRY(find_part(path, &number, &parts));
    if (!j->parts) j->parts = parts;
    if (parts != j->parts || parts < 1 || parts > PARTS || number < 1 || number > parts)
        return neb__fail(NEB_ERR_CONFIG, "%s has part %d of %d, other folders have parts of %d", path, number,
                         parts, j->parts);
    if (j->part[number - 1])
        return neb__fail(NEB_ERR_CONFIG, "%s has part %d of %d, and so has another folder", path, number,
                         parts);
    neb__folder_part_name(path, number, parts, file, sizeof file);
    NEB_TRY(neb__st_open(file, &j->part[number - 1]));
    const struct neb_st *st = j->part[number - 1], *other = NULL;
    if (!has_notes(st))
        return neb__fail(NEB_ERR_CONFIG,
                         "%s does not say of which run and step it is: it is no part of a pipeline's model",
                         file);
    for (int i = 0; i < parts; i++)
        if (i != number - 1 && j->part[i]) other = j->part[i];
    if (!other || same_run(st, other)) return NEB_OK;
    return neb__fail(NEB_ERR_CONFIG,
                     "%s is of run %.24s at step %.24s, other parts are of run %.24s at step %.24s", file,
                     neb__st_meta(st, "run"), neb__st_meta(st, "step"), neb__st_meta(other, "run"),
                     neb__st_meta(other, "step"));
}

/* What the model is, from the first folder that has its tokenizer, else from any. */
static neb_status read_yaml(struct joining *j, const char *path)
{
    struct neb_model_yaml f;
    if (*j->tokenizer) return NEB_OK;
    NEB_TRY(neb__model_yaml_read(path, &f));
    neb__model_yaml_free(&j->yaml);
    j->yaml = f;
    if (f.tokenizer) snprintf(j->tokenizer, sizeof j->tokenizer, "%s/%s", path, f.tokenizer);
    return NEB_OK;
}

static neb_status check_all_here(const struct joining *j)
{
    for (int i = 0; i < j->parts; i++)
        if (!j->part[i])
            return neb__fail(NEB_ERR_NOTFOUND, "part %d of %d is missing: name the folders of all sites",
                             i + 1, j->parts);
    return NEB_OK;
}

/* The tensor of a parameter, which is in one part. */
static neb_status find_tensor(struct joining *j, const char *name, const neb_param *p)
{
    const struct neb_st_tensor *t = NULL;
    int64_t shape[4] = {0};
    for (int i = 0; i < j->parts; i++) {
        const struct neb_st_tensor *here = neb__st_find(j->part[i], name);
        if (here && t) return neb__fail(NEB_ERR_CONFIG, "two parts have the parameter '%s'", name);
        if (here) t = here, j->of[j->n] = j->part[i];
    }
    if (!t) return neb__fail(NEB_ERR_NOTFOUND, "no part has the parameter '%s'", name);
    bool fits = neb_param_shape(p, shape) == t->rank;
    for (int i = 0; fits && i < t->rank; i++) fits = shape[i] == t->shape[i];
    if (!fits)
        return neb__fail(NEB_ERR_SHAPE, "the parameter '%s' has another shape than model.yaml says", name);
    if (t->type != NEB_ST_F32 && t->type != NEB_ST_F16 && t->type != NEB_ST_BF16)
        return neb__fail(NEB_ERR_DTYPE, "the parameter '%s' has type %s, which no part has", name,
                         neb__st_type_name(t->type));
    j->list[j->n++] = *t;
    return NEB_OK;
}

static neb_status list_all(struct joining *j, const struct neb_model *m)
{
    const size_t n = (size_t)neb_params_count(m->params);
    j->list = NEB_NEW_ARRAY(struct neb_st_tensor, n);
    j->of = NEB_NEW_ARRAY(struct neb_st *, n);
    if (!j->list || !j->of) return neb__fail(NEB_ERR_NOMEM, "out of memory for %zu parameters", n);
    for (size_t i = 0; i < n; i++) {
        const neb_param *p = neb_params_at(m->params, (int)i);
        const char *name = neb__folder_name(m, p);
        if (name) NEB_TRY(find_tensor(j, name, p));
    }
    return NEB_OK;
}

static neb_status make(void *arg, int i, neb_st_put put, void *sink)
{
    const struct joining *j = arg;
    NEB_TRY(put(sink, j->list[i].data, j->list[i].size));
    neb__st_forget(j->of[i], &j->list[i]);
    return NEB_OK;
}

/* The names and shapes of all parameters: none has memory. */
static neb_status list_of_model(struct joining *j)
{
    neb_params *ps = NULL;
    struct neb_model *m = NULL;
    NEB_TRY(neb_params_create(&ps));
    neb_status status = neb__model_create(&j->yaml.model, &j->yaml.peft, "", NULL, ps, &m);
    if (status == NEB_OK) status = list_all(j, m);
    neb__model_destroy(m);
    neb_params_destroy(ps);
    return status;
}

static neb_status join(struct joining *j, const char *const *from, int n, const char *to)
{
    char file[NEB_MODEL_PATH + 32];
    for (int i = 0; i < n; i++) NEB_TRY(add_part(j, from[i]));
    NEB_TRY(check_all_here(j));
    for (int i = 0; i < n; i++) NEB_TRY(read_yaml(j, from[i]));
    NEB_TRY(list_of_model(j));
    NEB_TRY(neb__folder_begin(&j->yaml, to, *j->tokenizer ? j->tokenizer : NULL));
    snprintf(file, sizeof file, "%s/model.safetensors", to);
    NEB_TRY(neb__st_write_made(file, j->list, j->n, NULL, 0600, make, j));
    return neb__model_yaml_write(&j->yaml, to);
}

neb_status neb__folder_join(const char *const *from, int n, const char *to)
{
    struct joining j = {0};
    if (strlen(to) >= NEB_MODEL_PATH)
        return neb__fail(NEB_ERR_INVALID, "the path of a model folder is longer than %d bytes",
                         NEB_MODEL_PATH - 1);
    neb_status status = join(&j, from, n, to);
    for (int i = 0; i < PARTS; i++) neb__st_close(j.part[i]);
    neb__model_yaml_free(&j.yaml);
    neb__free(j.list);
    neb__free(j.of);
    return status;
}
