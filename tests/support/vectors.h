/* vectors.h: files of named arrays written by tools/make_parity_vectors.py. */
#ifndef NEB_TEST_VECTORS_H
#define NEB_TEST_VECTORS_H

#include <stddef.h>
#include <stdint.h>

struct vector {
    char name[128];
    int is_int, ndim;
    uint32_t shape[4];
    size_t n;
    union { /* owned by the file */
        float *f;
        int32_t *i;
    } data;
    int used;
};

struct vectors {
    struct vector *list;
    int count;
    void *bytes;
};

/* Fails the test when the file is missing or malformed. */
void vectors_load(const char *path, struct vectors *out);
void vectors_free(struct vectors *v);
struct vector *vectors_find(const struct vectors *v, const char *name); /* NULL: none */
struct vector *vectors_need(const struct vectors *v, const char *name); /* fails the test */

#endif
