/* vectors.c: reads "NEBVEC1" files; see tools/make_parity_vectors.py for the format. */
#include "check.h"
#include "vectors.h"
#include "base/bytes.h"

#include <stdio.h>
#include <string.h>

enum { MAX_VECTORS = 400 };

static void parse(struct neb_reader *r, struct vector *v)
{
    size_t length = neb__read16(r);
    const uint8_t *name = neb__read(r, length);
    assert_true(name && length < sizeof v->name);
    memcpy(v->name, name, length);
    v->is_int = neb__read8(r);
    v->ndim = neb__read8(r);
    assert_in_range(v->ndim, 1, 4);
    v->n = 1;
    for (int i = 0; i < v->ndim; i++) v->n *= v->shape[i] = neb__read32(r);
    const uint8_t *p = neb__read(r, v->n * 4);
    assert_non_null(p);
    v->data.f = malloc(v->n * 4 + 1);
    memcpy(v->data.f, p, v->n * 4);
}

void vectors_load(const char *path, struct vectors *out)
{
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("cannot open %s", path);
    fseek(f, 0, SEEK_END);
    size_t size = (size_t)ftell(f);
    rewind(f);
    uint8_t *bytes = malloc(size);
    assert_int_equal(fread(bytes, 1, size, f), size);
    fclose(f);
    assert_memory_equal(bytes, "NEBVEC1\n", 8);
    *out = (struct vectors){.list = calloc(MAX_VECTORS, sizeof *out->list), .bytes = bytes};
    struct neb_reader r = {.p = bytes + 8, .left = size - 8};
    while (r.left) {
        assert_true(out->count < MAX_VECTORS);
        parse(&r, &out->list[out->count++]);
    }
}

void vectors_free(struct vectors *v)
{
    for (int i = 0; i < v->count; i++) free(v->list[i].data.f);
    free(v->list);
    free(v->bytes);
}

struct vector *vectors_find(const struct vectors *v, const char *name)
{
    for (int i = 0; i < v->count; i++)
        if (!strcmp(v->list[i].name, name)) {
            v->list[i].used = 1;
            return &v->list[i];
        }
    return NULL;
}

struct vector *vectors_need(const struct vectors *v, const char *name)
{
    struct vector *x = vectors_find(v, name);
    if (!x) fail_msg("no '%s' in the recorded vectors", name);
    return x;
}
