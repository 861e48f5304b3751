/* edits.c: what rounds do to the live parameters, left for the caller's thread to carry out. */
#include "run/mirror.h"
#include "base/mem.h"

#include <string.h>

static void add(struct neb_mirror *m, uint32_t cell, struct neb_edit *e)
{
    struct neb_own_cell *own = &m->own[cell];
    pthread_mutex_lock(m->lock);
    if (!own->edits) own->last = &own->edits;
    *own->last = e;
    own->last = &e->next;
    m->edits++;
    pthread_mutex_unlock(m->lock);
}

neb_status neb__edit_add(struct neb_mirror *m, uint32_t cell, enum neb_edit_type type, float gamma,
                         const float *value)
{
    size_t first, n = neb__outer_cell(m->outer, cell, &first);
    struct neb_edit *e = neb__malloc(sizeof *e + n * sizeof *value);
    if (!e) return neb__fail(NEB_ERR_NOMEM, "out of memory for merging cell %u", cell);
    float *copy = (float *)(e + 1);
    memcpy(copy, value, n * sizeof *value);
    *e = (struct neb_edit){.type = type, .gamma = gamma, .value = copy};
    add(m, cell, e);
    return NEB_OK;
}

neb_status neb__edit_d(struct neb_mirror *m, uint32_t cell)
{
    size_t first;
    struct neb_edit *e = neb__malloc(sizeof *e);
    if (!e) return neb__fail(NEB_ERR_NOMEM, "out of memory for merging cell %u", cell);
    (void)neb__outer_cell(m->outer, cell, &first);
    *e = (struct neb_edit){.type = NEB_EDIT_ADD, .value = m->d + first};
    add(m, cell, e);
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

/* Parameters in plain host memory are changed where they are, the others by way of `scratch`. When one of
 * them fails, what the ones before it have is not done again. */
static neb_status apply_to(const struct neb_session_slice *p, const struct neb_own_cell *own, size_t first,
                           size_t n, float *scratch)
{
    size_t from = first > p->first ? first : p->first;
    size_t to = first + n < p->first + p->count ? first + n : p->first + p->count;
    bool plain = !p->param.read && !p->param.device;
    float *x = plain ? p->param.values + (from - p->first) : scratch;
    if (!plain) NEB_TRY(neb__param_read(&p->param, from - p->first, to - from, x));
    for (const struct neb_edit *e = own->edits; e; e = e->next) carry_out(e, from - first, x, to - from);
    if (!plain) NEB_TRY(neb__param_write(&p->param, from - p->first, to - from, x));
    for (struct neb_edit *e = own->edits; e; e = e->next)
        if (e->done < to - first) e->done = to - first;
    return NEB_OK;
}

neb_status neb__edits_apply(struct neb_mirror *m, uint32_t cell, float *scratch, uint32_t *n)
{
    struct neb_own_cell *own = &m->own[cell];
    size_t first, values = neb__outer_cell(m->outer, cell, &first);
    for (int i = 0; i < m->n_slices; i++) {
        const struct neb_session_slice *p = &m->slices[i];
        if (p->first < first + values && first < p->first + p->count)
            NEB_TRY(apply_to(p, own, first, values, scratch));
    }
    *n = 0;
    for (const struct neb_edit *e = own->edits; e; e = e->next) ++*n;
    neb__edits_free(own);
    return NEB_OK;
}
