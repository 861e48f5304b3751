/* tensor.c: tensors of a run: memory, views, checks; and the frame around each device call.
 *
 * Tensors live in chunks that are kept from run to run, so their addresses never change and a step allocates
 * nothing. The memory of a tensor is the n-th allocation of the run, at the offset that the plan gave it. */
#include "tensor/tape.h"
#include "base/log.h"
#include "base/mem.h"
#include "tensor/narrow.h"
#include "tensor/partition.h"

#include <stdio.h>
#include <string.h>

enum { CHUNK = 512 };

/* ---- tensors ------------------------------------------------------------------------------------------- */

static neb_tensor *blank(neb_tape *t)
{
    if (t->n_tensors == t->n_chunks * CHUNK) {
        neb_tensor **chunks = neb__realloc(t->chunks, (size_t)(t->n_chunks + 1) * sizeof *chunks);
        if (chunks) t->chunks = chunks;
        neb_tensor *chunk = chunks ? NEB_NEW_ARRAY(neb_tensor, CHUNK) : NULL;
        if (!chunk) {
            neb__tape_fail(t, NEB_ERR_NOMEM, "tensor", "out of memory after %d tensors", t->n_tensors);
            return NULL;
        }
        t->chunks[t->n_chunks++] = chunk;
    }
    neb_tensor *x = &t->chunks[t->n_tensors / CHUNK][t->n_tensors % CHUNK];
    t->n_tensors++;
    *x = (neb_tensor){.alloc = -1, .grad = -1, .root = x};
    return x;
}

int neb__tape_take(neb_tape *t, size_t bytes)
{
    int id = neb__life_add(&t->life, bytes);
    if (id < 0) {
        neb__tape_fail(t, NEB_ERR_NOMEM, "arena", "out of memory after %d allocations", t->life.n);
        return -1;
    }
    if (!t->dry && (id >= t->plan->n || t->plan->list[id].bytes != t->life.list[id].bytes)) {
        t->failed = neb__quiet(NEB_ERR_AGAIN, "allocation %d is not as planned", id);
        return -1;
    }
    return id;
}

char *neb__tape_address(neb_tape *t, int alloc)
{
    struct neb_alloc *a = &t->life.list[alloc];
    a->death = t->life.tick;
    if (t->dry) return (char *)4096; /* not NULL, and never dereferenced */
    if (t->life.tick > t->plan->list[alloc].death)
        t->failed = neb__quiet(NEB_ERR_AGAIN, "allocation %d is used longer than planned", alloc);
    return t->arena + t->plan->list[alloc].offset;
}

neb_tensor *neb__tensor_new(neb_tape *t, neb_dtype type, int ndim, const int64_t *shape)
{
    if (t->failed != NEB_OK) return NULL;
    neb_tensor *x = blank(t);
    if (!x) return NULL;
    x->type = type;
    x->ndim = ndim;
    for (int i = 0; i < ndim; i++) x->shape[i] = shape[i];
    x->ld = neb__tensor_cols(x);
    x->alloc = neb__tape_take(t, (size_t)neb__tensor_count(x) * neb_dtype_size(type));
    return x->alloc < 0 ? NULL : x;
}

neb_tensor *neb__tensor_fixed(neb_tape *t, neb_dtype type, int ndim, const int64_t *shape, const void *memory)
{
    neb_tensor *x = t->failed == NEB_OK ? blank(t) : NULL;
    if (!x) return NULL;
    x->type = type;
    x->ndim = ndim;
    for (int i = 0; i < ndim; i++) x->shape[i] = shape[i];
    x->ld = neb__tensor_cols(x);
    x->fixed = (char *)(uintptr_t)memory;
    return x;
}

neb_tensor *neb__tensor_new2(neb_tape *t, neb_dtype type, int64_t rows, int64_t cols)
{
    return neb__tensor_new(t, type, 2, (int64_t[]){rows, cols});
}

neb_tensor *neb__tensor_new1(neb_tape *t, neb_dtype type, int64_t n)
{
    return neb__tensor_new(t, type, 1, &n);
}

neb_tensor *neb__tensor_alias(neb_tape *t, neb_tensor *x)
{
    neb_tensor *y = t->failed == NEB_OK ? blank(t) : NULL;
    if (!y) return NULL;
    *y = *x;
    y->root = x->root;
    y->uses = 0;
    y->pre = NULL;
    y->act = NEB_ACT_NONE;
    y->bias = NULL;
    return y;
}

void *neb__tensor_data(neb_tape *t, neb_tensor *x)
{
    if (!x) return NULL;
    char *base = x->alloc >= 0 ? neb__tape_address(t, x->alloc) : x->fixed;
    return base + x->offset;
}

/* The values of a parameter of which each rank has a part. */
static void *gathered(neb_tape *t, neb_param *p)
{
    int64_t offset;
    int id = neb__partition_gather(t, p, &offset);
    return id < 0 ? NULL : neb__tape_address(t, id) + (size_t)offset * neb__partition_width(t->params);
}

bool neb__param_direct(const neb_tape *t, const neb_param *p)
{
    return p->narrow == NEB_NARROW_BF16 && neb_compute_type(t) == NEB_BF16;
}

/* A weight in few bits is read by products alone. */
static bool is_narrow(neb_tape *t, const neb_param *p)
{
    if (!p || !p->narrow) return false;
    neb__tape_fail(t, NEB_ERR_UNSUPPORTED, "parameter", "'%s' is kept in few bits, which only products read",
                   p->name);
    return true;
}

const float *neb__param_master(neb_tape *t, neb_param *p)
{
    const neb_params *ps = t->params;
    if (is_narrow(t, p)) return NULL;
    if (p && neb__partition_of_values(ps) && !ps->shadow) return gathered(t, p);
    if (!p) return NULL;
    if (!ps->masters.on_host && !neb__partition_of_masters(ps)) return ps->value + p->offset;
    if (p->vector >= 0) return t->params->masters.vectors + p->vector;
    neb__tape_fail(t, NEB_ERR_UNSUPPORTED, "parameter",
                   "'%s' is read in F32, but masters elsewhere leave only parameters of one dimension in F32",
                   p->name);
    return NULL;
}

const void *neb__param_working(neb_tape *t, neb_param *p)
{
    if (p && neb__param_direct(t, p)) return neb__narrow_of(p).code;
    if (!p || is_narrow(t, p)) return NULL;
    if (neb__partition_of_values(t->params)) return gathered(t, p);
    return t->params->shadow ? (const void *)((uint16_t *)t->params->shadow + p->offset)
                             : t->params->value + p->offset;
}

neb_tensor *neb_input_at(neb_tape *t, neb_buffer *b, size_t offset, neb_dtype type, int ndim,
                         const int64_t *shape)
{
    if (t->failed != NEB_OK) return NULL;
    size_t size = neb_dtype_size(type);
    if (!b || !size || ndim < 1 || ndim > 4 || b->dev != t->dev) {
        neb__tape_fail(
            t, size ? NEB_ERR_INVALID : NEB_ERR_DTYPE, "input",
            "an input needs a buffer of this device, a known dtype and 1 to 4 dimensions (given: dtype %d, "
            "%d dimensions)",
            (int)type, ndim);
        return NULL;
    }
    size_t room = offset <= b->bytes ? (b->bytes - offset) / size : 0;
    for (int i = 0; i < ndim; i++) {
        if (shape[i] < 1 || (size_t)shape[i] > room) {
            neb__tape_fail(t, NEB_ERR_SHAPE, "input",
                           "dimension %d is %" PRId64
                           ", but the buffer has %zu bytes and the input starts at offset %zu",
                           i, shape[i], b->bytes, offset);
            return NULL;
        }
        room /= (size_t)shape[i];
    }
    return neb__tensor_fixed(t, type, ndim, shape, (char *)b->data + offset);
}

neb_tensor *neb_input(neb_tape *t, neb_buffer *b, neb_dtype type, int ndim, const int64_t *shape)
{
    return neb_input_at(t, b, 0, type, ndim, shape);
}

int64_t neb__tensor_rows(const neb_tensor *x)
{
    return x->shape[0];
}

int64_t neb__tensor_cols(const neb_tensor *x)
{
    int64_t n = 1;
    for (int i = 1; i < x->ndim; i++) n *= x->shape[i];
    return n;
}

int64_t neb__tensor_count(const neb_tensor *x)
{
    return neb__tensor_rows(x) * neb__tensor_cols(x);
}

bool neb__tensor_contiguous(const neb_tensor *x)
{
    return x->ld == neb__tensor_cols(x) || neb__tensor_rows(x) == 1;
}

bool neb__tensor_is_whole(const neb_tensor *x)
{
    return x->offset == x->root->offset && x->ld == x->root->ld &&
           neb__tensor_count(x) == neb__tensor_count(x->root);
}

int neb_tensor_shape(const neb_tensor *x, int64_t shape[4])
{
    if (!x) return 0;
    memcpy(shape, x->shape, sizeof x->shape);
    return x->ndim;
}

bool neb__tape_require(neb_tape *t, const char *op, const char *what, const void *x)
{
    if (t->failed == NEB_OK && !x) neb__tape_fail(t, NEB_ERR_INVALID, op, "%s is NULL", what);
    return t->failed == NEB_OK;
}

bool neb__tape_want(neb_tape *t, const char *op, const char *what, const neb_tensor *x, neb_dtype type,
                    int64_t rows, int64_t cols)
{
    if (!neb__tape_require(t, op, what, x)) return false;
    if (x->type != type) {
        neb__tape_fail(t, NEB_ERR_DTYPE, op, "%s is %s; it must be %s", what, neb_dtype_name(x->type),
                       neb_dtype_name(type));
        return false;
    }
    if ((rows >= 0 && neb__tensor_rows(x) != rows) || (cols >= 0 && neb__tensor_cols(x) != cols)) {
        char want[64] = "any";
        if (rows >= 0 && cols >= 0)
            snprintf(want, sizeof want, "(%" PRId64 ", %" PRId64 ")", rows, cols);
        else if (rows >= 0)
            snprintf(want, sizeof want, "%" PRId64 " rows", rows);
        else if (cols >= 0)
            snprintf(want, sizeof want, "%" PRId64 " columns", cols);
        neb__tape_fail(t, NEB_ERR_SHAPE, op, "%s is (%" PRId64 ", %" PRId64 "), %s needed", what,
                       neb__tensor_rows(x), neb__tensor_cols(x), want);
        return false;
    }
    return true;
}

bool neb__tape_want_act(neb_tape *t, const char *op, const char *what, const neb_tensor *x, int64_t rows,
                        int64_t cols)
{
    return neb__tape_want(t, op, what, x, neb_compute_type(t), rows, cols);
}

/* ---- calls --------------------------------------------------------------------------------------------- */

neb_status neb__tape_done(neb_tape *t, neb_status status)
{
    if (t->failed == NEB_OK && status != NEB_OK) {
        t->failed = status;
        if (*t->scope) neb__error_prefix("%s", t->scope);
    }
    return t->failed;
}

neb_status neb__tape_called(neb_tape *t, neb_status status)
{
    if (!t->hold) t->life.tick++;
    if (t->on_call && !t->dry) t->on_call(t->on_call_arg);
    return neb__tape_done(t, status);
}

void *neb__tape_temp(neb_tape *t, int64_t bytes)
{
    if (t->failed != NEB_OK || bytes <= 0) return NULL;
    int id = neb__tape_take(t, (size_t)bytes);
    return id < 0 ? NULL : neb__tape_address(t, id);
}

void *neb__tape_scratch(neb_tape *t, enum neb_slot slot, const void *args)
{
    const struct neb_device_ops *ops = t->dev->ops;
    return ops->scratch_bytes ? neb__tape_temp(t, ops->scratch_bytes(t->dev->ctx, slot, args)) : NULL;
}

bool neb__tape_use_reference(neb_tape *t, bool has, const char *slot)
{
    if (t->force_reference) return true;
    if (has) return false;
    if (!t->fallback) {
        neb__tape_fail(t, NEB_ERR_UNSUPPORTED, slot,
                       "device '%s' lacks this op; allow fallbacks (train.fallback: yes, or "
                       "neb_tape_allow_fallback()) to compose it from others",
                       t->dev->ops->name);
        return false;
    }
    uint32_t bit = 1;
    for (const char *c = slot; *c; c++) bit = bit * 31 + (uint8_t)*c;
    bit = UINT32_C(1) << (bit >> 7 & 31);
    if (!(t->warned & bit))
        neb__warn("device '%s' lacks the op %s; it is composed from primitives, which is slower",
                  t->dev->ops->name, slot);
    t->warned |= bit;
    return true;
}
