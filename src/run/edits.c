/* edits.c: what rounds do to the live parameters, left for the caller's thread to carry out; and the parameters as
 * one flat vector.
 *
 * The vector has the parameters in the order of their names, so that sites of different frameworks need not register them
 * in the same order. */
#include "run/session.h"
#include "tensor/device.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

static void add(neb_session *s, uint32_t cell, struct neb_edit *e)
{
    struct neb_own_cell *own = &s->own[cell];
    pthread_mutex_lock(&s->lock);
    if (!own->edits) own->last = &own->edits;
    *own->last = e;
    own->last = &e->next;
    s->edits++;
    pthread_mutex_unlock(&s->lock);
}

neb_status neb__edit_add(neb_session *s, uint32_t cell, enum neb_edit_type type, float gamma,
                         const float *value)
{
    size_t first, n = neb__outer_cell(s->outer, cell, &first);
    struct neb_edit *e = neb__malloc(sizeof *e + n * sizeof *value);
    if (!e) return neb__fail(NEB_ERR_NOMEM, "out of memory for merging cell %u", cell);
    float *copy = (float *)(e + 1);
    memcpy(copy, value, n * sizeof *value);
    *e = (struct neb_edit){.type = type, .gamma = gamma, .value = copy};
    add(s, cell, e);
    return NEB_OK;
}

neb_status neb__edit_d(neb_session *s, uint32_t cell)
{
    size_t first;
    struct neb_edit *e = neb__malloc(sizeof *e);
    if (!e) return neb__fail(NEB_ERR_NOMEM, "out of memory for merging cell %u", cell);
    (void)neb__outer_cell(s->outer, cell, &first);
    *e = (struct neb_edit){.type = NEB_EDIT_ADD, .value = s->d + first};
    add(s, cell, e);
    return NEB_OK;
}

/* On the cell's values from `at` on, which have it all or not at all. */
static void carry_out(const struct neb_edit *e, size_t at, float *restrict x, size_t n)
{
    if (at < e->done) return;
    const float *restrict v = e->value + at;
    float gamma = e->gamma;
    switch (e->type) {
    case NEB_EDIT_ADD:
        for (size_t i = 0; i < n; i++) x[i] += v[i];
        break;
    case NEB_EDIT_SET: memcpy(x, v, n * sizeof *x); break;
    case NEB_EDIT_SHRINK:
        for (size_t i = 0; i < n; i++) x[i] = v[i] + gamma * (x[i] - v[i]);
        break;
    }
}

void neb__edits_on_copy(const struct neb_own_cell *own, float *x, size_t n)
{
    for (const struct neb_edit *e = own->edits; e; e = e->next)
        carry_out(e, e->done, x + e->done, n - e->done);
}

void neb__edits_free(struct neb_own_cell *own)
{
    while (own->edits) {
        struct neb_edit *e = own->edits;
        own->edits = e->next;
        neb__free(e);
    }
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
    memcpy(write ? p->values + at : flat, write ? flat : p->values + at, bytes);
    return NEB_OK;
}

/* Parameters in plain host memory are changed where they are, the others by way of `scratch`. When one of them fails, what
 * the ones before it have is not done again. */
static neb_status apply_to(const struct neb_session_slice *p, const struct neb_own_cell *own, size_t first,
                           size_t n, float *scratch)
{
    size_t from = first > p->first ? first : p->first;
    size_t to = first + n < p->first + p->count ? first + n : p->first + p->count;
    bool plain = !p->param.read && !p->param.device;
    float *x = plain ? p->param.values + (from - p->first) : scratch;
    if (!plain) NEB_TRY(copy(&p->param, from - p->first, to - from, x, false));
    for (const struct neb_edit *e = own->edits; e; e = e->next) carry_out(e, from - first, x, to - from);
    if (!plain) NEB_TRY(copy(&p->param, from - p->first, to - from, x, true));
    for (struct neb_edit *e = own->edits; e; e = e->next)
        if (e->done < to - first) e->done = to - first;
    return NEB_OK;
}

neb_status neb__edits_apply(neb_session *s, uint32_t cell, float *scratch, uint32_t *n)
{
    struct neb_own_cell *own = &s->own[cell];
    size_t first, values = neb__outer_cell(s->outer, cell, &first);
    for (int i = 0; i < s->n_slices; i++) {
        const struct neb_session_slice *p = &s->slices[i];
        if (p->first < first + values && first < p->first + p->count)
            NEB_TRY(apply_to(p, own, first, values, scratch));
    }
    *n = 0;
    for (const struct neb_edit *e = own->edits; e; e = e->next) ++*n;
    neb__edits_free(own);
    return NEB_OK;
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

neb_status neb__session_arrange(neb_session *s, struct neb_hash *layout)
{
    struct neb_hasher h;
    neb_status st = NEB_OK;
    size_t first = 0;
    NEB_TRY(neb__hasher_init(&h));
    if (s->n_slices) qsort(s->slices, (size_t)s->n_slices, sizeof *s->slices, by_name);
    for (int i = 0; st == NEB_OK && i < s->n_slices; i++) {
        s->slices[i].first = first;
        first += s->slices[i].count;
        st = hash_slice(&h, &s->slices[i]);
    }
    neb_status last = neb__hasher_final(&h, st == NEB_OK ? layout : NULL);
    return st != NEB_OK ? st : last;
}

static neb_status each(neb_session *s, size_t first, size_t n, float *flat, bool write)
{
    for (int i = 0; i < s->n_slices && n; i++) {
        const struct neb_session_slice *p = &s->slices[i];
        if (first >= p->first + p->count || first < p->first) continue;
        size_t at = first - p->first, k = p->count - at < n ? p->count - at : n;
        NEB_TRY(copy(&p->param, at, k, flat, write));
        flat += k;
        first += k;
        n -= k;
    }
    return NEB_OK;
}

neb_status neb__session_read_x(neb_session *s, size_t first, size_t n, float *out)
{
    return each(s, first, n, out, false);
}

neb_status neb__session_write_x(neb_session *s, size_t first, size_t n, const float *in)
{
    return each(s, first, n, (float *)(uintptr_t)in, true);
}
