/* mirror.c: the memory of the mirror, and the meeting of live parameters and rounds in neb_step(): see
 * mirror.h. */
#include "run/mirror.h"
#include "base/mem.h"

neb_status neb__mirror_open(struct neb_mirror *m)
{
    for (int i = 0; i < 3; i++)
        if (!(m->work[i] = neb__aligned(NEB_CELL * sizeof(float)))) return NEB_ERR_NOMEM;
    m->own = NEB_NEW_ARRAY(struct neb_own_cell, (m->values + NEB_CELL - 1) / NEB_CELL);
    if (!m->own) return NEB_ERR_NOMEM;
    NEB_TRY(neb__captures_open(m));
    return neb__device_copies_open(m);
}

void neb__mirror_close(struct neb_mirror *m)
{
    size_t cells = (m->values + NEB_CELL - 1) / NEB_CELL;
    neb__device_copies_close(m); /* before the edits whose values it may be reading */
    for (size_t c = 0; m->own && c < cells; c++) neb__edits_free(&m->own[c]);
    neb__free(m->own);
    neb__captures_close(m);
    neb__outer_destroy(m->outer);
    for (int i = 0; i < 3; i++) neb__free(m->work[i]);
    neb__free(m->shown);
    for (int i = 0; i < m->n_slices; i++) neb__free((char *)(uintptr_t)m->slices[i].param.name);
    neb__free(m->slices);
}

size_t neb__mirror_range(const struct neb_mirror *m, uint32_t c0, uint32_t c1, size_t *first)
{
    size_t last, n = neb__outer_cell(m->outer, c1 - 1, &last);
    neb__outer_cell(m->outer, c0, first);
    return last + n - *first;
}

/* Notes what was changed, from the first to the last value. */
static void touch(struct neb_mirror *m, uint32_t cell)
{
    size_t first, n = neb__outer_cell(m->outer, cell, &first);
    bool none = m->touched_first == m->touched_end;
    if (none || first < m->touched_first) m->touched_first = first;
    if (none || first + n > m->touched_end) m->touched_end = first + n;
}

/* Beside the training not all edits may have arrived yet, unless it is to wait. */
static neb_status merge_cell(struct neb_mirror *m, uint32_t cell, bool wait, struct neb_exchange *out)
{
    uint32_t n;
    NEB_TRY(m->side ? neb__device_copies_merge(m, cell, wait, &n)
                    : neb__edits_apply(m, cell, m->work[2], &n));
    m->edits -= n;
    out->merges += n > 0;
    if (n) touch(m, cell);
    return NEB_OK;
}

neb_status neb__mirror_merge(struct neb_mirror *m, bool wait, struct neb_exchange *out)
{
    for (uint32_t c = 0; m->edits && c < m->outer->cells; c++)
        if (m->own[c].edits && !(m->capture_taken && c >= m->snap_c0 && c < m->snap_c1))
            NEB_TRY(merge_cell(m, c, wait, out));
    return NEB_OK;
}

static bool edits_wait(const struct neb_mirror *m, uint32_t c0, uint32_t c1)
{
    for (uint32_t c = c0; c < c1; c++)
        if (m->own[c].edits) return true;
    return false;
}

/* Into d, which is free: the cells have no open update, and their edits were carried out. */
static neb_status take_copy(struct neb_mirror *m)
{
    size_t first, n = neb__mirror_range(m, m->snap_c0, m->snap_c1, &first);
    NEB_TRY(m->side ? neb__device_copies_capture(m, first, n) : neb__mirror_read(m, first, n, m->d + first));
    m->capture_taken = true;
    m->capture_told = false;
    m->tokens_taken = m->tokens_now, m->steps_taken = m->steps_now;
    m->tokens_now = m->steps_now = 0;
    return NEB_OK;
}

bool neb__mirror_idle(const struct neb_mirror *m)
{
    bool under_way = m->capture_taken && !m->capture_told;
    return !m->edits && !under_way && (!m->capture_wanted || m->capture_taken);
}

bool neb__mirror_held(const struct neb_mirror *m)
{
    return m->on_request && !m->asked;
}

neb_status neb__mirror_exchange(struct neb_mirror *m, bool wait, struct neb_exchange *out)
{
    bool under_way = m->capture_taken && !m->capture_told;
    neb_status status = neb__mirror_merge(m, wait, out);
    if (status == NEB_OK && m->capture_wanted && !m->capture_taken &&
        !edits_wait(m, m->snap_c0, m->snap_c1)) {
        status = take_copy(m);
        under_way = status == NEB_OK;
    }
    if (status == NEB_OK && under_way) status = neb__device_copies_captured(m, wait, &out->copy_taken);
    if (out->copy_taken) m->capture_told = true;
    return status;
}
