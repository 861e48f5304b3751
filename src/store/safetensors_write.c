/* safetensors_write.c: writing safetensors files.
 *
 * Tensors are laid out by falling element size, so that every one is aligned to its own element when the
 * header's length is a multiple of eight (spaces fill it up, as in the reference implementation). */
#include "store/safetensors.h"
#include "store/whole_file.h"
#include "base/bytes.h"
#include "base/mem.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static neb_status check(const struct neb_st_tensor *t)
{
    uint64_t bytes = neb__st_type_size(t->type);
    if (!t->name || !bytes || t->rank < 0 || t->rank > NEB_ST_RANK || !strcmp(t->name, "__metadata__"))
        return neb__fail(NEB_ERR_INVALID, "tensor '%.60s' has no usable name, type or rank",
                         t->name ? t->name : "");
    for (int i = 0; i < t->rank; i++)
        if (t->shape[i] < 0 || __builtin_mul_overflow(bytes, (uint64_t)t->shape[i], &bytes))
            bytes = UINT64_MAX;
    if (bytes != t->size || bytes > INT64_MAX)
        return neb__fail(NEB_ERR_INVALID, "tensor '%.60s': %" PRIu64 " bytes do not fit its shape", t->name,
                         t->size);
    return NEB_OK;
}

static int by_element(const void *x, const void *y)
{
    const struct neb_st_tensor *a = *(const struct neb_st_tensor *const *)x,
                               *b = *(const struct neb_st_tensor *const *)y;
    size_t p = neb__st_type_size(a->type), q = neb__st_type_size(b->type);
    if (p != q) return p > q ? -1 : 1;
    return strcmp(a->name, b->name);
}

static neb_status add_entry(json_t *header, const struct neb_st_tensor *t, uint64_t at)
{
    json_t *shape = json_array();
    for (int i = 0; i < t->rank; i++) json_array_append_new(shape, json_integer(t->shape[i]));
    json_t *entry = json_pack("{s:s, s:o, s:[I,I]}", "dtype", neb__st_type_name(t->type), "shape", shape,
                              "data_offsets", (json_int_t)at, (json_int_t)(at + t->size));
    if (json_object_get(header, t->name)) {
        json_decref(entry);
        return neb__fail(NEB_ERR_INVALID, "two tensors are called '%.60s'", t->name);
    }
    if (!entry || json_object_set_new(header, t->name, entry))
        return neb__fail(NEB_ERR_INVALID, "tensor name '%.60s' is not UTF-8, or there is no memory", t->name);
    return NEB_OK;
}

/* The header's text, filled up to a multiple of eight; release with free(). */
static neb_status make_header(const struct neb_st_tensor *const *order, int n, const char *const *meta,
                              char **out)
{
    json_t *header = json_object(), *notes = json_object();
    uint64_t at = 0;
    neb_status status = NEB_OK;
    json_object_set_new(notes, "format", json_string("pt"));
    for (; meta && meta[0]; meta += 2) json_object_set_new(notes, meta[0], json_string(meta[1]));
    json_object_set_new(header, "__metadata__", notes);
    for (int i = 0; i < n && status == NEB_OK; i++) {
        status = add_entry(header, order[i], at);
        at += order[i]->size;
    }
    if (status == NEB_OK && !(*out = json_dumps(header, JSON_COMPACT)))
        status = neb__fail(NEB_ERR_NOMEM, "no memory for a header");
    json_decref(header);
    return status;
}

/* Where the bytes of the tensors come from. */
struct maker {
    const struct neb_st_tensor *list;
    neb_st_make make; /* NULL: from the tensors themselves */
    void *arg;
};

static neb_status put(void *sink, const void *bytes, size_t n)
{
    return neb__whole_file_write(sink, bytes, n);
}

static neb_status write_tensor(struct neb_whole_file *f, const struct neb_st_tensor *t, const struct maker *m)
{
    const uint64_t before = f->written;
    if (!m->make) return neb__whole_file_write(f, t->data, t->size);
    NEB_TRY(m->make(m->arg, (int)(t - m->list), put, f));
    if (f->written - before == t->size) return NEB_OK;
    return neb__fail(NEB_ERR_INVALID, "tensor '%.60s': %" PRIu64 " bytes were given instead of %" PRIu64,
                     t->name, f->written - before, t->size);
}

static neb_status write_all(struct neb_whole_file *f, const char *header,
                            const struct neb_st_tensor *const *order, int n, const struct maker *m)
{
    size_t len = strlen(header), fill = (8 - len % 8) % 8;
    uint8_t head[8];
    neb__put64(head, len + fill);
    NEB_TRY(neb__whole_file_write(f, head, 8));
    NEB_TRY(neb__whole_file_write(f, header, len));
    NEB_TRY(neb__whole_file_write(f, "        ", fill));
    for (int i = 0; i < n; i++) NEB_TRY(write_tensor(f, order[i], m));
    return NEB_OK;
}

neb_status neb__st_write(const char *path, const struct neb_st_tensor *list, int n, const char *const *meta,
                         mode_t mode)
{
    return neb__st_write_made(path, list, n, meta, mode, NULL, NULL);
}

neb_status neb__st_write_made(const char *path, const struct neb_st_tensor *list, int n,
                              const char *const *meta, mode_t mode, neb_st_make make, void *arg)
{
    const struct maker m = {list, make, arg};
    for (int i = 0; i < n; i++) NEB_TRY(check(&list[i]));
    const struct neb_st_tensor **order = NEB_NEW_ARRAY(const struct neb_st_tensor *, (size_t)n);
    if (!order) return neb__fail(NEB_ERR_NOMEM, "no memory to write %d tensors", n);
    for (int i = 0; i < n; i++) order[i] = &list[i];
    qsort(order, (size_t)n, sizeof *order, by_element);
    char *header = NULL;
    struct neb_whole_file f;
    neb_status status = make_header(order, n, meta, &header);
    if (status == NEB_OK && (status = neb__whole_file_create(path, mode, &f)) == NEB_OK) {
        status = write_all(&f, header, order, n, &m);
        if (status == NEB_OK)
            status = neb__whole_file_commit(&f);
        else
            neb__whole_file_abandon(&f);
    }
    free(header);
    neb__free(order);
    return status;
}
