/* safetensors.h: tensors in the format of Hugging Face: u64 length of a JSON header, the header, the data.
 *
 * Reading maps the file and trusts nothing: every name, type, shape and offset is checked before it is shown,
 * and a header of more than 32 MiB is refused. A successful open owes a close. */
#ifndef NEB_STORE_SAFETENSORS_H
#define NEB_STORE_SAFETENSORS_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { NEB_ST_RANK = 8 };

/* name in the file, bytes of one element */
#define NEB_ST_TYPES(X) \
    X(BOOL, 1)          \
    X(U8, 1)            \
    X(I8, 1)            \
    X(F8_E5M2, 1)       \
    X(F8_E4M3, 1)       \
    X(I16, 2)           \
    X(U16, 2)           \
    X(F16, 2)           \
    X(BF16, 2)          \
    X(I32, 4)           \
    X(U32, 4)           \
    X(F32, 4)           \
    X(F64, 8)           \
    X(I64, 8)           \
    X(U64, 8)

enum neb_st_type {
#define NEB__X(name, size) NEB_ST_##name,
    NEB_ST_TYPES(NEB__X)
#undef NEB__X
        NEB_ST_TYPE_COUNT
};

const char *neb__st_type_name(enum neb_st_type t);
size_t neb__st_type_size(enum neb_st_type t);

struct neb_st_tensor {
    const char *name;
    enum neb_st_type type;
    int rank;
    int64_t shape[NEB_ST_RANK];
    const void *data;
    uint64_t size; /* bytes: the product of the shape and the type's size */
};

struct neb_st;

/*   NEB_ERR_NOTFOUND, NEB_ERR_IO, NEB_ERR_NOMEM
 *   NEB_ERR_CORRUPT: not a safetensors file, or a header that contradicts itself or the file; the message
 *   says where */
neb_status neb__st_open(const char *path, struct neb_st **out);
neb_status neb__st_open_bytes(const void *p, size_t n, struct neb_st **out); /* not copied, must stay */
void neb__st_close(struct neb_st *st);                                       /* NULL is fine */

int neb__st_count(const struct neb_st *st);
const struct neb_st_tensor *neb__st_at(const struct neb_st *st, int i); /* in the order of the data */
const struct neb_st_tensor *neb__st_find(const struct neb_st *st, const char *name); /* or NULL */
const char *neb__st_meta(const struct neb_st *st, const char *key); /* of __metadata__, or NULL */

/* All elements as fp32.
 *   NEB_ERR_DTYPE: not F32, F16, BF16 or F64
 *   NEB_ERR_CORRUPT: the file was shortened since it was opened, or cannot be read there */
neb_status neb__st_to_f32(const struct neb_st_tensor *t, float *out); // (elements)

/* Writes the whole file, atomically and durably. meta: key, value, …, NULL; or NULL. `format: pt` is
 * added, which transformers asks for. `mode`: of the file; a run's own files are 0600.
 *   NEB_ERR_INVALID: a name twice, a size that is not the shape's; NEB_ERR_NOSPACE, NEB_ERR_IO, NEB_ERR_NOMEM
 */
neb_status neb__st_write(const char *path, const struct neb_st_tensor *list, int n, const char *const *meta,
                         mode_t mode);

/* The same for tensors that are not in memory all at once. `make` gives the bytes of tensor i of the list, whose `data`
 * is not read, to `put` in pieces of any size. NEB_ERR_INVALID: they were not as many as its size. */
typedef neb_status (*neb_st_put)(void *sink, const void *bytes, size_t n);
typedef neb_status (*neb_st_make)(void *arg, int i, neb_st_put put, void *sink);
neb_status neb__st_write_made(const char *path, const struct neb_st_tensor *list, int n,
                              const char *const *meta, mode_t mode, neb_st_make make, void *arg);

/* The tensor's pages need not stay in memory: reading it again reads the file. */
void neb__st_forget(const struct neb_st *st, const struct neb_st_tensor *t);

#endif
