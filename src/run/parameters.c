/* parameters.c: the live parameters as one flat vector.
 *
 * The vector has the parameters in the order of their names, so that sites of different frameworks need not
 * register them in the same order. */
#include "run/mirror.h"
#include "base/bytes.h"
#include "base/mem.h"
#include "tensor/device.h"

#include <stdlib.h>
#include <string.h>

neb_status neb__mirror_register(struct neb_mirror *m, const struct neb_session_param *p)
{
    if (!p->name || (!p->values && (!p->read || !p->write)) || p->ndim < 1 || p->ndim > 4)
        return neb__fail(NEB_ERR_SHAPE, "a parameter needs a name, values and 1 to 4 dimensions");
    size_t n = 1;
    for (int i = 0; i < p->ndim; i++) {
        if (p->shape[i] < 1 || n > ((size_t)1 << 40) / (size_t)p->shape[i])
            return neb__fail(NEB_ERR_SHAPE, "parameter '%s': dimension %d is %" PRId64, p->name, i,
                             p->shape[i]);
        n *= (size_t)p->shape[i];
    }
    if (p->first || (p->count && (size_t)p->count != n))
        return neb__fail(NEB_ERR_UNSUPPORTED, "parameter '%s': a site of one process holds all of it",
                         p->name);
    for (int i = 0; i < m->n_slices; i++)
        if (!strcmp(m->slices[i].param.name, p->name))
            return neb__fail(NEB_ERR_EXISTS, "two parameters '%s'", p->name);
    struct neb_session_slice *list = neb__realloc(m->slices, (size_t)(m->n_slices + 1) * sizeof *list);
    if (list) m->slices = list;
    char *name = list ? neb__strdup(p->name) : NULL;
    if (!name) return neb__fail(NEB_ERR_NOMEM, "out of memory for parameter '%s'", p->name);
    m->slices[m->n_slices] = (struct neb_session_slice){*p, m->values, n};
    m->slices[m->n_slices++].param.name = name;
    m->values += n;
    return NEB_OK;
}

neb_status neb_values_read(void *values, int64_t first, int64_t n, float *out)
{
    const struct neb_values *v = values;
    neb_status status = NEB_ERR_INTERNAL;
    if (v->at) {
        memcpy(out, v->at + first, (size_t)n * sizeof *out);
        return NEB_OK;
    }
    v->read(v->arg, first, n, out, &status);
    return status == NEB_OK ? NEB_OK
                            : neb__quiet(status, "reading a parameter's values failed, or was interrupted");
}

neb_status neb_values_write(void *values, int64_t first, int64_t n, const float *in)
{
    const struct neb_values *v = values;
    neb_status status = NEB_ERR_INTERNAL;
    if (v->at) {
        memcpy(v->at + first, in, (size_t)n * sizeof *in);
        return NEB_OK;
    }
    v->write(v->arg, first, n, in, &status);
    return status == NEB_OK ? NEB_OK
                            : neb__quiet(status, "writing a parameter's values failed, or was interrupted");
}

static int by_name(const void *a, const void *b)
{
    const struct neb_session_slice *p = a, *q = b;
    return strcmp(p->param.name, q->param.name);
}

static neb_status hash_slice(struct neb_hasher *h, const struct neb_session_slice *p)
{
    NEB_TRY(neb__hasher_update(h, p->param.name, strlen(p->param.name) + 1));
    for (int i = 0; i < p->param.ndim; i++) {
        uint8_t dim[8];
        neb__put64(dim, (uint64_t)p->param.shape[i]);
        NEB_TRY(neb__hasher_update(h, dim, sizeof dim));
    }
    return neb__hasher_update(h, "", 1);
}

neb_status neb__mirror_arrange(struct neb_mirror *m, struct neb_hash *layout)
{
    struct neb_hasher h;
    neb_status status = NEB_OK;
    size_t first = 0;
    NEB_TRY(neb__hasher_init(&h));
    if (m->n_slices) qsort(m->slices, (size_t)m->n_slices, sizeof *m->slices, by_name);
    for (int i = 0; status == NEB_OK && i < m->n_slices; i++) {
        m->slices[i].first = first;
        first += m->slices[i].count;
        status = hash_slice(&h, &m->slices[i]);
    }
    neb_status last = neb__hasher_final(&h, status == NEB_OK ? layout : NULL);
    return status != NEB_OK ? status : last;
}

static neb_status copy(const struct neb_session_param *p, size_t at, size_t n, float *flat, bool write)
{
    const neb_device *d = p->device;
    size_t bytes = n * sizeof *flat;
    if (p->read)
        return (write ? p->write(p->arg, (int64_t)at, (int64_t)n, flat)
                      : p->read(p->arg, (int64_t)at, (int64_t)n, flat));
    if (d && write) return d->ops->upload(d->ctx, p->values + at, flat, bytes);
    if (d) return d->ops->download(d->ctx, flat, p->values + at, bytes);
    if (write)
        memcpy(p->values + at, flat, bytes);
    else
        memcpy(flat, p->values + at, bytes);
    return NEB_OK;
}

neb_status neb__param_read(const struct neb_session_param *p, size_t at, size_t n, float *out)
{
    return copy(p, at, n, out, false);
}

neb_status neb__param_write(const struct neb_session_param *p, size_t at, size_t n, const float *in)
{
    return copy(p, at, n, (float *)(uintptr_t)in, true);
}

static neb_status each(const struct neb_mirror *m, size_t first, size_t n, float *flat, bool write)
{
    for (int i = 0; i < m->n_slices && n; i++) {
        const struct neb_session_slice *p = &m->slices[i];
        if (first >= p->first + p->count || first < p->first) continue;
        size_t at = first - p->first, k = p->count - at < n ? p->count - at : n;
        NEB_TRY(copy(&p->param, at, k, flat, write));
        flat += k;
        first += k;
        n -= k;
    }
    return NEB_OK;
}

neb_status neb__mirror_read(const struct neb_mirror *m, size_t first, size_t n, float *out)
{
    return each(m, first, n, out, false);
}

neb_status neb__mirror_write(const struct neb_mirror *m, size_t first, size_t n, const float *in)
{
    return each(m, first, n, (float *)(uintptr_t)in, true);
}
