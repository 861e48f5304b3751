/* own_state.c: the site's own state of the cells, into the caller's checkpoint and back at a start.
 *
 * At a start the state of a cell comes from the newest own update on disk that is newer than the caller's
 * checkpoint (the live delta is what the update decodes to, and what it left out if that was saved under the
 * update's number), else from the checkpoint, else it is theta alone. Both are states at an older version of
 * the log, brought forward by the replay.
 *
 * The site's part of a caller's checkpoint:
 *     u32 magic, u32 cells, hash of the layout (of layout and genesis, if the run has a name), u64 last k
 *     per cell: u64 version, u64 work, then its open update: hash, u64 k (0: none), u64 version, u64 work
 *     x - theta of all cells; then d of the cells that have an open update
 * Without the open update a site that comes back would not know what is its own when a record names it. */
#include "run/session.h"
#include "base/mem.h"

#include <string.h>

/* A checkpoint belongs to one model and, where runs have names, to one run. */
static neb_status state_owner(const neb_session *s, struct neb_hash *out)
{
    uint8_t both[2 * NEB_HASH_SIZE];
    *out = s->model[NEB_AGREED_LAYOUT];
    if (!*s->run) return NEB_OK;
    memcpy(both, out->b, NEB_HASH_SIZE);
    memcpy(both + NEB_HASH_SIZE, s->genesis.b, NEB_HASH_SIZE);
    return neb__hash(both, sizeof both, out);
}

enum { MAGIC = 0x334e424e, STATE_HEAD = 8 + NEB_HASH_SIZE + 8, STATE_CELL = 16 + NEB_HASH_SIZE + 24 };

/* ---- at the start -------------------------------------------------------------------------------------- */

/* Own updates up to this number are in theta or given up; later ones a start from the present state needs
 * again. */
static uint64_t settled_k(const neb_session *s)
{
    uint64_t k = s->updates.last_k;
    for (uint32_t c = 0; c < s->mirror.outer->cells; c++)
        if (s->mirror.own[c].open.k && s->mirror.own[c].open.k <= k) k = s->mirror.own[c].open.k - 1;
    return k;
}

static size_t state_size(const neb_session *s, size_t open_values)
{
    return STATE_HEAD + STATE_CELL * (size_t)s->mirror.outer->cells + 4 * (s->mirror.values + open_values);
}

static void put_cell(uint8_t *b, const struct neb_own_cell *own, uint64_t work)
{
    neb__put64(b, own->version);
    neb__put64(b + 8, work);
    memcpy(b + 16, own->open.hash.b, NEB_HASH_SIZE);
    neb__put64(b + 16 + NEB_HASH_SIZE, own->open.k);
    neb__put64(b + 24 + NEB_HASH_SIZE, own->open.b);
    neb__put64(b + 32 + NEB_HASH_SIZE, own->work_open);
}

static void get_cell(const uint8_t *b, struct neb_own_cell *own)
{
    own->version = neb__get64(b);
    own->work = neb__get64(b + 8);
    memcpy(own->open.hash.b, b + 16, NEB_HASH_SIZE);
    own->open.k = neb__get64(b + 16 + NEB_HASH_SIZE);
    own->open.b = neb__get64(b + 24 + NEB_HASH_SIZE);
    own->work_open = neb__get64(b + 32 + NEB_HASH_SIZE);
}

/* d of the open updates; one whose bytes are no longer on disk is given up, and its work stays in x. */
static neb_status restore_open(neb_session *s, const uint8_t *b, const uint8_t *end)
{
    for (uint32_t c = 0; c < s->mirror.outer->cells; c++) {
        size_t first, n = neb__outer_cell(s->mirror.outer, c, &first);
        if (!s->mirror.own[c].open.k) continue;
        if ((size_t)(end - b) < 4 * n)
            return neb__fail(NEB_ERR_CORRUPT, "the checkpoint's state is cut short");
        struct neb_update_header h;
        if (neb__update_exists(&s->updates.files, &s->mirror.own[c].open.hash)) {
            memcpy(s->mirror.d + first, b, 4 * n);
            if (neb__updates_header(&s->updates, &s->mirror.own[c].open.hash, &h))
                s->mirror.own[c].open.attempt = h.attempt;
        } else
            s->mirror.own[c].open.k = 0;
        b += 4 * n;
    }
    return b == end ? NEB_OK : neb__fail(NEB_ERR_CORRUPT, "the checkpoint's state is too long");
}

/* The caller's checkpoint gives the open updates, and x = theta + u. */
static neb_status restore_checkpoint(neb_session *s, float *u)
{
    uint32_t cells = s->mirror.outer->cells;
    if (!s->loaded.len) return NEB_OK;
    const uint8_t *b = s->loaded.data, *end = b + s->loaded.len;
    struct neb_hash owner;
    NEB_TRY(state_owner(s, &owner));
    if (s->loaded.len < state_size(s, 0) || neb__get32(b) != MAGIC || neb__get32(b + 4) != cells ||
        memcmp(b + 8, owner.b, NEB_HASH_SIZE))
        return neb__fail(NEB_ERR_CONFIG,
                         "the checkpoint is of another run, another model or another version: give this "
                         "run an `out` of its own (out=FOLDER)");
    s->updates.checkpoint_k = s->updates.last_k = neb__get64(b + 8 + NEB_HASH_SIZE);
    b += STATE_HEAD;
    for (uint32_t c = 0; c < cells; c++, b += STATE_CELL) get_cell(b, &s->mirror.own[c]);
    memcpy(u, b, 4 * s->mirror.values);
    NEB_TRY(restore_open(s, b + 4 * s->mirror.values, end));
    s->updates.keep.saved_k[0] = s->updates.keep.saved_k[1] = settled_k(s);
    return NEB_OK;
}

/* One own update, newer than the checkpoint: the cells for which it is the newest so far. */
static neb_status restore_update(neb_session *s, const struct neb_hash *hash, uint64_t *newest, float *u)
{
    struct neb_buf b;
    struct neb_update_header h;
    if (!neb__updates_header(&s->updates, hash, &h) || h.site != s->self || h.k <= s->updates.checkpoint_k ||
        h.c1 > s->mirror.outer->cells || h.kind == NEB_UPDATE_MASKED)
        return NEB_OK; /* what is masked cannot be read back */
    bool newer = false;
    for (uint32_t c = h.c0; c < h.c1; c++) newer |= h.k > newest[c];
    if (!newer) return NEB_OK;
    neb__buf_init(&b, (size_t)1 << 31);
    if (neb__update_load(&s->updates.files, hash, &b) != NEB_OK) { /* damaged: as if it were not there */
        neb__buf_free(&b);
        return NEB_OK;
    }
    if (h.k > s->updates.last_k) s->updates.last_k = h.k;
    size_t first, n = neb__mirror_range(&s->mirror, h.c0, h.c1, &first);
    struct neb_codec_view view;
    float *left = neb__malloc(n * sizeof *left);
    neb_status status = left ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for restoring");
    if (status != NEB_OK || neb__codec_open(b.data + neb__update_code_at(&h), neb__update_code_size(&h), NULL,
                                            n, &view) != NEB_OK) {
        neb__free(left);
        neb__buf_free(&b);
        return status; /* damaged: as if it were not there */
    }
    neb__left_out_restore(s, h.c0, h.c1, h.k, left);
    for (uint32_t c = h.c0; status == NEB_OK && c < h.c1; c++) {
        if (h.k <= newest[c]) continue;
        newest[c] = h.k;
        size_t at, k = neb__outer_cell(s->mirror.outer, c, &at);
        status = neb__codec_cell(&view, c - h.c0, u + at);
        for (size_t i = 0; i < k; i++) u[at + i] += left[at - first + i];
        memcpy(s->mirror.d + at, u + at, k * sizeof *u);
        s->mirror.own[c] = (struct neb_own_cell){
            .version = h.b, .open = {.hash = *hash, .k = h.k, .b = h.b}, .work = h.tau, .work_open = h.tau};
    }
    neb__codec_close(&view);
    neb__free(left);
    neb__buf_free(&b);
    return status;
}

neb_status neb__own_state_restore(neb_session *s, const struct neb_hash *updates, int n)
{
    float *u = NEB_NEW_ARRAY(float, s->mirror.values);
    uint64_t *newest = NEB_NEW_ARRAY(uint64_t, s->mirror.outer->cells);
    neb_status status =
        u && newest ? restore_checkpoint(s, u) : neb__fail(NEB_ERR_NOMEM, "out of memory for restoring");
    if (status == NEB_OK &&
        !s->loaded.len) /* no checkpoint: the site stands at theta, wherever the snapshots are */
        for (uint32_t c = 0; c < s->mirror.outer->cells; c++)
            s->mirror.own[c].version = s->mirror.outer->version[c];
    for (int i = 0; status == NEB_OK && i < n; i++) status = restore_update(s, &updates[i], newest, u);
    for (size_t i = 0; status == NEB_OK && i < s->mirror.values; i++) u[i] += s->mirror.outer->theta[i];
    if (status == NEB_OK) status = neb__mirror_write(&s->mirror, 0, s->mirror.values, u);
    neb__free(u);
    neb__free(newest);
    return status;
}

/* ---- into the caller's checkpoint ---------------------------------------------------------------------- */

static neb_status write_x(neb_session *s, uint8_t *b)
{
    for (uint32_t c = 0; c < s->mirror.outer->cells; c++) {
        size_t first, n = neb__outer_cell(s->mirror.outer, c, &first);
        float *x = s->mirror.work[2];
        NEB_TRY(neb__mirror_read(&s->mirror, first, n, x));
        pthread_mutex_lock(&s->lock);
        neb__edits_on_copy(&s->mirror.own[c], x, n);
        pthread_mutex_unlock(&s->lock);
        for (size_t i = 0; i < n; i++) x[i] -= s->mirror.outer->theta[first + i];
        memcpy(b + 4 * first, x, 4 * n);
    }
    return NEB_OK;
}

/* Between two events of the driver everything fits together. *n: how long it became. */
static neb_status write_state(neb_session *s, uint8_t *out, size_t *n)
{
    uint8_t *b = out;
    struct neb_hash owner;
    NEB_TRY(state_owner(s, &owner));
    neb__put32(b, MAGIC);
    neb__put32(b + 4, s->mirror.outer->cells);
    memcpy(b + 8, owner.b, NEB_HASH_SIZE);
    neb__put64(b + 8 + NEB_HASH_SIZE, s->updates.last_k);
    b += STATE_HEAD;
    pthread_mutex_lock(&s->lock);
    int64_t steps = s->status.steps; /* the core may not have heard of the last ones */
    pthread_mutex_unlock(&s->lock);
    for (uint32_t c = 0; c < s->mirror.outer->cells; c++, b += STATE_CELL)
        put_cell(b, &s->mirror.own[c], (uint64_t)(steps - neb__round_base(s->core, c)));
    NEB_TRY(write_x(s, b));
    b += 4 * s->mirror.values;
    for (uint32_t c = 0; c < s->mirror.outer->cells; c++) {
        size_t first, values = neb__outer_cell(s->mirror.outer, c, &first);
        if (!s->mirror.own[c].open.k) continue;
        memcpy(b, s->mirror.d + first, 4 * values);
        b += 4 * values;
    }
    *n = (size_t)(b - out);
    return NEB_OK;
}

neb_status neb_session_save(neb_session *s, void *out, size_t *n)
{
    if (!s->mirror.outer) return neb__fail(NEB_ERR_STATE, "a session has no state before it starts");
    size_t need = state_size(s, s->mirror.values); /* at most: every cell has an open update */
    if (!out) {
        *n = need;
        return NEB_OK;
    }
    if (*n < need) return neb__fail(NEB_ERR_NOSPACE, "the state needs %zu bytes, %zu are there", need, *n);
    pthread_mutex_lock(&s->busy);
    neb_status status = write_state(s, out, n);
    s->updates.keep.saved_k[1] = s->updates.keep.saved_k[0]; /* the one before is certainly on disk by now */
    s->updates.keep.saved_k[0] = settled_k(s);
    pthread_mutex_unlock(&s->busy);
    return status;
}
