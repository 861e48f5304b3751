/* device_copies.c: rounds and parameters on a device, without holding the training up.
 *
 * A capture is a copy on the device, in its place among the training's work; from there it goes to the host
 * on the side stream while training goes on, and the driver hears of it when it has arrived. A merge is the
 * other way round: the values of an edit go to a stage on the device, and once they are there a later
 * neb_step() adds them to the parameters in the training's own stream. Neither waits for the host. d is
 * memory that such copies can use.
 *
 * A stage holds the first edit of one cell; further edits of the cell follow when it is carried out. An edit
 * without a stage, or a copy without room on the device, goes the plain way (edits.c): slower, with the same
 * result. All of it runs on the caller's thread, the session's lock held.
 *
 * Invariant: while an edit of a cell is not carried out, no copy of that cell is begun, since the edit's
 * values may lie where the copy would go. */
#include "run/mirror.h"
#include "base/log.h"
#include "base/mem.h"
#include "tensor/device.h"

#include <string.h>

enum { STAGES = 16 };

struct stage {
    struct neb_edit *edit; /* NULL: free */
    uint32_t cell;
    uint64_t fence; /* 0: the values are there */
};

struct neb_device_copies {
    neb_device *device;
    float *snapshot; /* on the device */
    size_t room;
    float *values; /* on the device: NEB_CELL for each stage */
    struct stage stage[STAGES];
    uint64_t fence; /* of the copy under way; 0: none */
};

/* The one device that holds all parameters, if it has a side stream. */
static neb_device *common_device(const struct neb_mirror *m)
{
    neb_device *d = m->n_slices ? m->slices[0].param.device : NULL;
    for (int i = 0; i < m->n_slices; i++)
        if (m->slices[i].param.device != d || m->slices[i].param.read) return NULL;
    return d && d->ops->side_download && d->ops->host_alloc ? d : NULL;
}

neb_status neb__device_copies_open(struct neb_mirror *m)
{
    neb_device *d = common_device(m);
    struct neb_device_copies *side = d ? NEB_NEW(struct neb_device_copies) : NULL;
    void *pinned = NULL, *values = NULL;
    size_t bytes = m->values * sizeof(float);
    if (side && d->ops->host_alloc(d->ctx, bytes, &pinned) == NEB_OK &&
        d->ops->alloc(d->ctx, STAGES * NEB_CELL * sizeof(float), &values) == NEB_OK) {
        *side = (struct neb_device_copies){.device = d, .values = values};
        m->side = side;
        m->d = memset(pinned, 0, bytes);
        return NEB_OK;
    }
    if (d) neb__warn("no room for copies beside the training: rounds will hold it up a little");
    if (pinned) d->ops->host_free(d->ctx, pinned);
    neb__free(side);
    m->d = neb__malloc(bytes);
    if (m->d) memset(m->d, 0, bytes); /* the pages are there before the first round */
    return m->d ? NEB_OK : NEB_ERR_NOMEM;
}

void neb__device_copies_close(struct neb_mirror *m)
{
    struct neb_device_copies *side = m->side;
    if (!side) {
        neb__free(m->d);
        return;
    }
    neb_device *d = side->device;
    if (side->fence) d->ops->fence_wait(d->ctx, side->fence);
    for (int i = 0; i < STAGES; i++)
        if (side->stage[i].edit && side->stage[i].fence) d->ops->fence_wait(d->ctx, side->stage[i].fence);
    if (side->snapshot) d->ops->free(d->ctx, side->snapshot);
    d->ops->free(d->ctx, side->values);
    d->ops->host_free(d->ctx, m->d);
    neb__free(side);
    m->side = NULL;
}

/* ---- captures ------------------------------------------------------------------------------------------ */

static neb_status ensure_room(struct neb_device_copies *side, size_t n)
{
    neb_device *d = side->device;
    if (n <= side->room) return NEB_OK;
    if (side->snapshot) d->ops->free(d->ctx, side->snapshot);
    side->snapshot = NULL;
    side->room = 0;
    NEB_TRY(d->ops->alloc(d->ctx, n * sizeof(float), (void **)&side->snapshot));
    side->room = n;
    return NEB_OK;
}

/* The parts of the parameters that make up [first, first + n) of the flat vector, one after the other. */
static neb_status gather(struct neb_mirror *m, size_t first, size_t n, float *out)
{
    const neb_device *d = m->side->device;
    for (int i = 0; i < m->n_slices; i++) {
        const struct neb_session_slice *p = &m->slices[i];
        size_t from = first > p->first ? first : p->first;
        size_t to = first + n < p->first + p->count ? first + n : p->first + p->count;
        if (from < to)
            NEB_TRY(d->ops->copy(d->ctx, out + (from - first), p->param.values + (from - p->first),
                                 (to - from) * sizeof *out));
    }
    return NEB_OK;
}

neb_status neb__device_copies_capture(struct neb_mirror *m, size_t first, size_t n)
{
    struct neb_device_copies *side = m->side;
    const neb_device *d = side->device;
    if (ensure_room(side, n) != NEB_OK) return neb__mirror_read(m, first, n, m->d + first);
    NEB_TRY(gather(m, first, n, side->snapshot));
    return d->ops->side_download(d->ctx, m->d + first, side->snapshot, n * sizeof(float), &side->fence);
}

neb_status neb__device_copies_captured(struct neb_mirror *m, bool wait, bool *done)
{
    struct neb_device_copies *side = m->side;
    const neb_device *d = side ? side->device : NULL;
    int arrived = 1;
    if (d && side->fence && wait) NEB_TRY(d->ops->fence_wait(d->ctx, side->fence));
    if (d && side->fence && !wait) NEB_TRY(d->ops->fence_done(d->ctx, side->fence, &arrived));
    if (arrived && d) side->fence = 0;
    *done = arrived;
    return NEB_OK;
}

/* ---- merges -------------------------------------------------------------------------------------------- */

static float *stage_values(const struct neb_device_copies *side, int i)
{
    return side->values + (size_t)i * NEB_CELL;
}

/* The stage of a cell's first edit, its copy begun if there was none yet; -1: all stages are taken. */
static neb_status find_stage(struct neb_mirror *m, uint32_t cell, struct neb_edit *e, int *out)
{
    struct neb_device_copies *side = m->side;
    const neb_device *d = side->device;
    int at = -1;
    size_t first, n = neb__outer_cell(m->outer, cell, &first);
    for (int i = STAGES - 1; i >= 0; i--) {
        if (!side->stage[i].edit) at = i;
        if (side->stage[i].edit == e) {
            *out = i;
            return NEB_OK;
        }
    }
    *out = at;
    if (at < 0) return NEB_OK;
    uint64_t fence = 0;
    float *to = stage_values(side, at);
    if (e->value == m->d + first)
        NEB_TRY(d->ops->side_upload(d->ctx, to, e->value, n * sizeof *to, &fence));
    else
        NEB_TRY(d->ops->upload(d->ctx, to, e->value, n * sizeof *to));
    side->stage[at] = (struct stage){e, cell, fence};
    return NEB_OK;
}

static neb_status change(const neb_device *d, const struct neb_edit *e, const float *value, float *x,
                         size_t n)
{
    struct neb_axpby add = {.x = value, .y = x, .n = (int64_t)n, .a = 1, .b = 1, .type = NEB_F32};
    if (e->type == NEB_EDIT_SET) return d->ops->copy(d->ctx, x, value, n * sizeof *x);
    if (e->type == NEB_EDIT_SHRINK) { /* v + gamma * (x - v) */
        add.a = 1 - e->gamma;
        add.b = e->gamma;
    }
    return d->ops->axpby(d->ctx, &add);
}

static neb_status carry_out(struct neb_mirror *m, const struct stage *stage, const float *value)
{
    size_t first, n = neb__outer_cell(m->outer, stage->cell, &first);
    for (int i = 0; i < m->n_slices; i++) {
        const struct neb_session_slice *p = &m->slices[i];
        size_t from = first > p->first ? first : p->first;
        size_t to = first + n < p->first + p->count ? first + n : p->first + p->count;
        if (from >= to || from - first < stage->edit->done) continue;
        NEB_TRY(change(m->side->device, stage->edit, value + (from - first),
                       p->param.values + (from - p->first), to - from));
        stage->edit->done = to - first;
    }
    return NEB_OK;
}

neb_status neb__device_copies_merge(struct neb_mirror *m, uint32_t cell, bool wait, uint32_t *n)
{
    struct neb_own_cell *own = &m->own[cell];
    const neb_device *d = m->side->device;
    for (*n = 0; own->edits; ++*n) {
        struct neb_edit *e = own->edits;
        int i, arrived = 1;
        NEB_TRY(find_stage(m, cell, e, &i));
        if (i < 0) { /* nothing of this cell is on its way: the plain way is open */
            uint32_t more = 0;
            if (wait) NEB_TRY(neb__edits_apply(m, cell, m->work[2], &more));
            *n += more;
            return NEB_OK;
        }
        struct stage *stage = &m->side->stage[i];
        if (stage->fence && wait) NEB_TRY(d->ops->fence_wait(d->ctx, stage->fence));
        if (stage->fence && !wait) NEB_TRY(d->ops->fence_done(d->ctx, stage->fence, &arrived));
        if (!arrived) return NEB_OK;
        NEB_TRY(carry_out(m, stage, stage_values(m->side, i)));
        stage->edit = NULL;
        own->edits = e->next;
        neb__free(e);
    }
    return NEB_OK;
}
