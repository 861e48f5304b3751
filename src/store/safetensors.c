/* safetensors.c: reading hostile safetensors files.
 *
 *     u64 n | n bytes of JSON | data
 *     {"__metadata__": {"k": "v"}, "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, …}
 *
 * The rules are those of the reference implementation. Offsets are relative to the data. Sorted, they must
 * follow each other without gap or overlap from 0 to the end of the file, and each length must fit its shape.
 * Sums and products are checked against overflow before they are used. */
#include "store/safetensors.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/map_guard.h"
#include "base/mem.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_HEADER = 32 << 20, MAX_TENSORS = 1 << 20 };

static const struct {
    const char *name;
    size_t size;
} types[NEB_ST_TYPE_COUNT] = {
#define NEB__X(name, size) {#name, size},
    NEB_ST_TYPES(NEB__X)
#undef NEB__X
};

const char *neb__st_type_name(enum neb_st_type t)
{
    return t < NEB_ST_TYPE_COUNT ? types[t].name : "?";
}

size_t neb__st_type_size(enum neb_st_type t)
{
    return t < NEB_ST_TYPE_COUNT ? types[t].size : 0;
}

struct neb_st {
    void *map; /* NULL: the bytes are the caller's */
    size_t length;
    const uint8_t *data;
    uint64_t data_size;
    json_t *header; /* owns the names */
    struct neb_st_tensor *tensor;
    int n;
};

static neb_status bad(const char *name, const char *what)
{
    return neb__fail(NEB_ERR_CORRUPT, "safetensors header, '%.60s': %s", name, what);
}

static neb_status read_type(const char *name, const json_t *value, enum neb_st_type *out)
{
    const char *text = json_string_value(value);
    for (int t = 0; text && t < NEB_ST_TYPE_COUNT; t++)
        if (!strcmp(types[t].name, text)) {
            *out = (enum neb_st_type)t;
            return NEB_OK;
        }
    return bad(name, text ? "unknown dtype" : "no dtype");
}

static neb_status read_shape(const char *name, const json_t *value, struct neb_st_tensor *t)
{
    if (!json_is_array(value) || json_array_size(value) > NEB_ST_RANK)
        return bad(name, "no shape, or too many axes");
    uint64_t bytes = types[t->type].size;
    t->rank = (int)json_array_size(value);
    for (int i = 0; i < t->rank; i++) {
        const json_t *v = json_array_get(value, (size_t)i);
        json_int_t d = json_integer_value(v);
        if (!json_is_integer(v) || d < 0) return bad(name, "a shape is not made of numbers >= 0");
        if (__builtin_mul_overflow(bytes, (uint64_t)d, &bytes) || bytes > INT64_MAX)
            return bad(name, "too large");
        t->shape[i] = d;
    }
    t->size = bytes;
    return NEB_OK;
}

static neb_status read_offsets(const struct neb_st *st, const char *name, const json_t *value,
                               struct neb_st_tensor *t)
{
    const json_t *a = json_array_get(value, 0), *b = json_array_get(value, 1);
    if (json_array_size(value) != 2 || !json_is_integer(a) || !json_is_integer(b))
        return bad(name, "no data_offsets");
    json_int_t from = json_integer_value(a), to = json_integer_value(b);
    if (from < 0 || to < from || (uint64_t)to > st->data_size)
        return bad(name, "data_offsets outside the file");
    if ((uint64_t)(to - from) != t->size) return bad(name, "data_offsets do not fit the shape");
    t->data = st->data + from;
    return NEB_OK;
}

static neb_status read_tensor(struct neb_st *st, const char *name, const json_t *value)
{
    struct neb_st_tensor *t = &st->tensor[st->n];
    if (!json_is_object(value)) return bad(name, "not an object");
    t->name = name;
    NEB_TRY(read_type(name, json_object_get(value, "dtype"), &t->type));
    NEB_TRY(read_shape(name, json_object_get(value, "shape"), t));
    NEB_TRY(read_offsets(st, name, json_object_get(value, "data_offsets"), t));
    st->n++;
    return NEB_OK;
}

static int by_place(const void *x, const void *y)
{
    const struct neb_st_tensor *a = x, *b = y;
    if (a->data != b->data) return (const uint8_t *)a->data < (const uint8_t *)b->data ? -1 : 1;
    return (a->size > b->size) - (a->size < b->size); /* empty ones share their place */
}

static neb_status check_coverage(const struct neb_st *st)
{
    const uint8_t *at = st->data;
    for (int i = 0; i < st->n; i++) {
        if (st->tensor[i].data != (const void *)at)
            return bad(st->tensor[i].name, "overlaps or leaves a gap");
        at += st->tensor[i].size;
    }
    if (at != st->data + st->data_size)
        return neb__fail(NEB_ERR_CORRUPT,
                         "not a valid safetensors file: there are bytes behind the last tensor");
    return NEB_OK;
}

static neb_status check_meta(const json_t *meta)
{
    const char *key;
    json_t *value;
    if (!json_is_object(meta)) return bad("__metadata__", "not an object");
    json_object_foreach((json_t *)(uintptr_t)meta, key, value)
    {
        if (!json_is_string(value)) return bad(key, "the metadata is not text");
    }
    return NEB_OK;
}

static neb_status parse(struct neb_st *st, const uint8_t *p, size_t n)
{
    uint64_t header = n >= 8 ? neb__get64(p) : UINT64_MAX;
    if (n < 8 || header > n - 8)
        return neb__fail(NEB_ERR_CORRUPT, "not a safetensors file: the header does not fit");
    if (header > MAX_HEADER)
        return neb__fail(NEB_ERR_CORRUPT, "a safetensors header of %" PRIu64 " bytes is too large", header);
    json_error_t e;
    st->data = p + 8 + header;
    st->data_size = n - 8 - header;
    st->header = json_loadb((const char *)p + 8, header, JSON_REJECT_DUPLICATES, &e);
    if (!st->header)
        return neb__fail(NEB_ERR_CORRUPT, "safetensors header: %s at byte %d", e.text, e.position);
    size_t entries = json_object_size(st->header);
    if (!json_is_object(st->header) || entries > MAX_TENSORS)
        return neb__fail(NEB_ERR_CORRUPT, "safetensors header: not an object, or more than %d tensors",
                         MAX_TENSORS);
    st->tensor = NEB_NEW_ARRAY(struct neb_st_tensor, entries);
    if (!st->tensor) return neb__fail(NEB_ERR_NOMEM, "no memory for %zu tensors", entries);
    const char *key;
    json_t *value;
    json_object_foreach(st->header, key, value)
    {
        NEB_TRY(strcmp(key, "__metadata__") ? read_tensor(st, key, value) : check_meta(value));
    }
    qsort(st->tensor, (size_t)st->n, sizeof *st->tensor, by_place);
    return check_coverage(st);
}

neb_status neb__st_open_bytes(const void *p, size_t n, struct neb_st **out)
{
    struct neb_st *st = NEB_NEW(struct neb_st);
    if (!st) return neb__fail(NEB_ERR_NOMEM, "no memory for a safetensors file");
    neb_status status = parse(st, p, n);
    if (status != NEB_OK) {
        neb__st_close(st);
        return status;
    }
    *out = st;
    return NEB_OK;
}

neb_status neb__st_open(const char *path, struct neb_st **out)
{
    struct stat info = {.st_size = 0};
    int fd;
    NEB_TRY(neb__file_open_plain(path, &fd));
    if (fstat(fd, &info)) info.st_size = 0;
    size_t n = info.st_size > 0 ? (size_t)info.st_size : 0;
    neb__map_guard_prepare();
    void *map = n ? mmap(NULL, n, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    int e = errno;
    close(fd);
    if (!n) return neb__fail(NEB_ERR_CORRUPT, "%s is empty", path);
    if (map == MAP_FAILED) return neb__fail(NEB_ERR_IO, "cannot map %s: %s", path, strerror(e));
    neb_status status = neb__st_open_bytes(map, n, out);
    if (status != NEB_OK) {
        neb__error_prefix("%s", path);
        munmap(map, n);
        return status;
    }
    (*out)->map = map;
    (*out)->length = n;
    return NEB_OK;
}

void neb__st_close(struct neb_st *st)
{
    if (!st) return;
    json_decref(st->header);
    neb__free(st->tensor);
    if (st->map) munmap(st->map, st->length);
    neb__free(st);
}

void neb__st_forget(const struct neb_st *st, const struct neb_st_tensor *t)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)t->data, to = from + t->size;
    if (!st->map || to / page <= from / page + 1) return;
    const uintptr_t first = (from / page + 1) * page; /* neighbours share the pages at the ends */
    madvise((void *)first, to / page * page - first, MADV_DONTNEED);
}

int neb__st_count(const struct neb_st *st)
{
    return st->n;
}

const struct neb_st_tensor *neb__st_at(const struct neb_st *st, int i)
{
    return i >= 0 && i < st->n ? &st->tensor[i] : NULL;
}

const struct neb_st_tensor *neb__st_find(const struct neb_st *st, const char *name)
{
    for (int i = 0; i < st->n; i++)
        if (!strcmp(st->tensor[i].name, name)) return &st->tensor[i];
    return NULL;
}

const char *neb__st_meta(const struct neb_st *st, const char *key)
{
    return json_string_value(json_object_get(json_object_get(st->header, "__metadata__"), key));
}

/* ---- elements as fp32 ---------------------------------------------------------------------------------- */

static float from_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static float half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3FF;
    if (exponent == 31) return from_bits(sign | 0x7F800000 | fraction << 13);
    if (exponent) return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
    float f = ldexpf((float)fraction, -24);
    return sign ? -f : f;
}

static neb_status to_f32(const struct neb_st_tensor *t, float *out)
{
    const uint8_t *p = t->data; /* may be unaligned: the header may have any length */
    size_t n = t->size / neb__st_type_size(t->type);
    for (size_t i = 0; i < n; i++) {
        double d;
        uint64_t bits;
        switch (t->type) {
        case NEB_ST_F32: out[i] = from_bits(neb__get32(p + 4 * i)); break;
        case NEB_ST_BF16: out[i] = from_bits((uint32_t)neb__get16(p + 2 * i) << 16); break;
        case NEB_ST_F16: out[i] = half_to_float(neb__get16(p + 2 * i)); break;
        case NEB_ST_F64:
            bits = neb__get64(p + 8 * i);
            memcpy(&d, &bits, sizeof d);
            out[i] = (float)d;
            break;
        default:
            return neb__fail(NEB_ERR_DTYPE,
                             "tensor '%.60s' has type %s; only F32, F16, BF16 and F64 can be read as fp32",
                             t->name, neb__st_type_name(t->type));
        }
    }
    return NEB_OK;
}

neb_status neb__st_to_f32(const struct neb_st_tensor *t, float *out)
{
    struct neb_map_guard guard;
    neb__map_guard_begin(&guard, t->data, t->size);
    neb_status status = to_f32(t, out);
    if (neb__map_guard_end(&guard) || status != NEB_OK) return status;
    return neb__fail(NEB_ERR_CORRUPT, "tensor '%.60s': its file was shortened meanwhile, or its disk failed",
                     t->name);
}
