/* restore.c: a site begins, or begins again.
 *
 * The outer state comes from the newest undamaged snapshot of each cell; the records above are replayed by the core. The
 * site's own state of a cell comes from the newest own update on disk that is newer than the caller's checkpoint (the live
 * delta is what the update decodes to, and what it left out if that was saved under the update's number), else from the
 * checkpoint, else it is theta alone. Both are states at an older version of the log, brought forward by the replay.
 *
 * The site's part of a caller's checkpoint:
 *     u32 magic, u32 cells, hash of the layout, u64 last k
 *     per cell: u64 version, u64 work, then its open update: hash, u64 k (0: none), u64 version, u64 work in it
 *     x - theta of all cells; then d of the cells that have an open update
 * Without the open update a site that comes back would not know what is its own when a record names it. */
#include "run/session.h"
#include "base/file.h"
#include "base/mem.h"
#include "outer/arith.h"

#include <stdio.h>
#include <string.h>

enum {
    MAGIC = 0x334e424e,
    STATE_HEAD = 8 + NEB_HASH_SIZE + 8,
    STATE_CELL = 16 + NEB_HASH_SIZE + 24,
    MAX_UPDATES = 1 << 16
};

struct found {
    struct neb_hash *all;
    int n, cap;
};

static void one_update(void *arg, const struct neb_hash *name)
{
    struct found *f = arg;
    if (f->n == f->cap && f->cap < MAX_UPDATES) {
        int cap = f->cap ? f->cap * 2 : 64;
        struct neb_hash *all = neb__realloc(f->all, (size_t)cap * sizeof *all);
        if (!all) return;
        f->all = all;
        f->cap = cap;
    }
    if (f->n < f->cap) f->all[f->n++] = *name;
}

/* ---- outer state ----------------------------------------------------------------------------------------------- */

/* The initial values, and whether they are those that the site keeps: once it has begun, the parameters hold something else.
 * A checkpoint made before the first record is a beginning, too, and so is a ledger that lost its records. */
static neb_status initial(neb_session *s, const struct neb_ledger_found *log, float *theta, bool *kept,
                          struct neb_hash *root)
{
    bool begun = log->records || log->damaged || s->loaded.len;
    neb_status st = begun ? neb__genesis_load(s, theta, root) : NEB_ERR_NOTFOUND;
    *kept = st == NEB_OK;
    return st == NEB_ERR_NOTFOUND ? neb__session_read_x(s, 0, s->values, theta) : st;
}

static neb_status restore_outer(neb_session *s, const struct neb_ledger_found *log)
{
    bool kept = false;
    struct neb_hash root, *now = &s->model[NEB_AGREED_VALUES];
    float *theta = neb__malloc(s->values * sizeof *theta);
    if (!theta) return neb__fail(NEB_ERR_NOMEM, "out of memory for the outer state");
    neb_status st = initial(s, log, theta, &kept, &root);
    if (st == NEB_OK) st = neb__outer_create((uint32_t)NEB_CELL, theta, s->values, &s->outer);
    neb__free(theta);
    NEB_TRY(st);
    NEB_TRY(neb__outer_root(s->outer, now));
    if (kept && !neb__hash_equal(&root, now)) return neb__genesis_damaged(s);
    if (!kept && !log->records && !s->loaded.len) NEB_TRY(neb__genesis_keep(s));
    for (uint32_t c = 0; c < s->outer->cells; c++) {
        size_t first, n = neb__outer_cell(s->outer, c, &first);
        struct neb_snapshot snap = {.cell = c, .values = n, .theta = s->work[0], .m = s->work[1]};
        uint64_t older;
        if (neb__snapshot_load(&s->disk, &snap, &older) != NEB_OK) continue;
        s->covered[c][snap.slot] = snap.version;
        s->covered[c][!snap.slot] = older;
        NEB_TRY(neb__outer_install(s->outer, c, snap.version, snap.theta, snap.m));
    }
    return NEB_OK;
}

/* ---- own state ------------------------------------------------------------------------------------------------- */

/* Own updates up to this number are in theta or given up; later ones a start from the present state needs again. */
static uint64_t settled_k(const neb_session *s)
{
    uint64_t k = s->last_k;
    for (uint32_t c = 0; c < s->outer->cells; c++)
        if (s->own[c].open.k && s->own[c].open.k <= k) k = s->own[c].open.k - 1;
    return k;
}

static size_t state_size(const neb_session *s, size_t open_values)
{
    return STATE_HEAD + STATE_CELL * (size_t)s->outer->cells + 4 * (s->values + open_values);
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
    for (uint32_t c = 0; c < s->outer->cells; c++) {
        size_t first, n = neb__outer_cell(s->outer, c, &first);
        if (!s->own[c].open.k) continue;
        if ((size_t)(end - b) < 4 * n)
            return neb__fail(NEB_ERR_CORRUPT, "the checkpoint's state is cut short");
        if (neb__update_exists(&s->updates, &s->own[c].open.hash))
            memcpy(s->d + first, b, 4 * n);
        else
            s->own[c].open.k = 0;
        b += 4 * n;
    }
    return b == end ? NEB_OK : neb__fail(NEB_ERR_CORRUPT, "the checkpoint's state is too long");
}

/* From the caller's checkpoint: the open updates, and x = theta + u. */
static neb_status restore_checkpoint(neb_session *s, float *u)
{
    uint32_t cells = s->outer->cells;
    if (!s->loaded.len) return NEB_OK;
    const uint8_t *b = s->loaded.data, *end = b + s->loaded.len;
    if (s->loaded.len < state_size(s, 0) || neb__get32(b) != MAGIC || neb__get32(b + 4) != cells ||
        memcmp(b + 8, s->model[NEB_AGREED_LAYOUT].b, NEB_HASH_SIZE))
        return neb__fail(NEB_ERR_CONFIG, "the checkpoint's state is of another model or another version");
    s->checkpoint_k = s->last_k = neb__get64(b + 8 + NEB_HASH_SIZE);
    b += STATE_HEAD;
    for (uint32_t c = 0; c < cells; c++, b += STATE_CELL) get_cell(b, &s->own[c]);
    memcpy(u, b, 4 * s->values);
    NEB_TRY(restore_open(s, b + 4 * s->values, end));
    s->saved_k[0] = s->saved_k[1] = settled_k(s);
    return NEB_OK;
}

/* Only the header, unverified: enough to tell whether the rest is worth reading. */
static bool read_header(neb_session *s, const struct neb_hash *hash, struct neb_update_header *h)
{
    uint8_t head[NEB_UPDATE_HEADER_SIZE];
    uint64_t size;
    return neb__update_head(&s->updates, hash, head, sizeof head, &size) == NEB_OK &&
           neb__update_header_get(head, (size_t)size, h) == NEB_OK;
}

/* One own update, newer than the checkpoint: the cells for which it is the newest so far. */
static neb_status restore_update(neb_session *s, const struct neb_hash *hash, uint64_t *newest, float *u)
{
    struct neb_buf b;
    struct neb_update_header h;
    if (!read_header(s, hash, &h) || h.site != s->self || h.k <= s->checkpoint_k || h.c1 > s->outer->cells)
        return NEB_OK;
    bool newer = false;
    for (uint32_t c = h.c0; c < h.c1; c++) newer |= h.k > newest[c];
    if (!newer) return NEB_OK;
    neb__buf_init(&b, (size_t)1 << 31);
    if (neb__update_load(&s->updates, hash, &b) != NEB_OK) { /* damaged: as if it were not there */
        neb__buf_free(&b);
        return NEB_OK;
    }
    if (h.k > s->last_k) s->last_k = h.k;
    size_t first, n = neb__session_range(s, h.c0, h.c1, &first);
    struct neb_codec_view view;
    float *left = neb__malloc(n * sizeof *left);
    neb_status st = left ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for restoring");
    if (st != NEB_OK || neb__codec_open(b.data + NEB_UPDATE_HEADER_SIZE, b.len - NEB_UPDATE_HEADER_SIZE, NULL,
                                        n, &view) != NEB_OK) {
        neb__free(left);
        neb__buf_free(&b);
        return st; /* damaged: as if it were not there */
    }
    neb__left_out_restore(s, h.c0, h.c1, h.k, left);
    for (uint32_t c = h.c0; st == NEB_OK && c < h.c1; c++) {
        if (h.k <= newest[c]) continue;
        newest[c] = h.k;
        size_t at, k = neb__outer_cell(s->outer, c, &at);
        st = neb__codec_cell(&view, c - h.c0, u + at);
        for (size_t i = 0; i < k; i++) u[at + i] += left[at - first + i];
        memcpy(s->d + at, u + at, k * sizeof *u);
        s->own[c] = (struct neb_own_cell){
            .version = h.b, .open = {*hash, h.k, h.b}, .work = h.tau, .work_open = h.tau};
    }
    neb__codec_close(&view);
    neb__free(left);
    neb__buf_free(&b);
    return st;
}

static neb_status restore_own(neb_session *s, const struct found *f)
{
    float *u = NEB_NEW_ARRAY(float, s->values);
    uint64_t *newest = NEB_NEW_ARRAY(uint64_t, s->outer->cells);
    neb_status st =
        u && newest ? restore_checkpoint(s, u) : neb__fail(NEB_ERR_NOMEM, "out of memory for restoring");
    if (st == NEB_OK &&
        !s->loaded.len) /* no checkpoint: the site stands at theta, wherever the snapshots are */
        for (uint32_t c = 0; c < s->outer->cells; c++) s->own[c].version = s->outer->version[c];
    for (int i = 0; st == NEB_OK && i < f->n; i++) st = restore_update(s, &f->all[i], newest, u);
    for (size_t i = 0; st == NEB_OK && i < s->values; i++) u[i] += s->outer->theta[i];
    if (st == NEB_OK) st = neb__session_write_x(s, 0, s->values, u);
    neb__free(u);
    neb__free(newest);
    return st;
}

/* ---- the core -------------------------------------------------------------------------------------------------- */

struct beginning {
    struct neb_members members;
    bool over;
};

/* The roster with which the log begins: the last one that was signed before there was a record to name. */
static void begin(void *arg, uint64_t epoch, uint64_t head, const struct neb_roster *r)
{
    struct beginning *b = arg;
    struct neb_members m = {.epoch = (uint32_t)epoch, .heavy = NEB_NO_SITE};
    b->over |= head != 0;
    if (b->over) return;
    for (uint32_t i = 0; i < r->count; i++) {
        const struct neb_member *p = &r->members[i];
        m.members |= neb__bit(p->id);
        if (p->votes) m.voters |= neb__bit(p->id);
        if (!(p->flags & NEB_MEMBER_WITNESS)) m.trains |= neb__bit(p->id);
        if (p->votes > 1) m.heavy = p->id;
    }
    b->members = m;
}

/* It may not change under a run: kept beside the ledger, and compared. */
static neb_status first_roster(neb_session *s)
{
    struct beginning b = {0};
    uint8_t now[NEB_MEMBERS_SIZE];
    struct neb_buf kept;
    NEB_TRY(neb__chain_walk(neb__net_roster(s->net), begin, &b));
    s->members = b.members;
    neb__members_bytes(&b.members, now);
    neb__buf_init(&kept, 1024);
    neb_status st = neb__blob_load(&s->disk, "beginning", &kept);
    if (st == NEB_OK && (kept.len != sizeof now || memcmp(kept.data, now, sizeof now)))
        st = neb__fail(NEB_ERR_CONFIG,
                       "the roster was changed by hand after the run began: members come and go by "
                       "`nebula-i order`; give the site its old file again (nebula-i adopt)");
    else if (st == NEB_ERR_NOTFOUND)
        st = neb__blob_save(&s->disk, "beginning", now, sizeof now, true);
    neb__buf_free(&kept);
    return st;
}

static struct neb_round_config core_config(neb_session *s)
{
    const struct neb_chain *chain = neb__net_roster(s->net);
    struct neb_round_config c = {0};
    neb__round_defaults(&c);
    c.self = s->self;
    c.genesis = s->genesis = chain->genesis_hash;
    c.roster = s->members;
    c.cells = s->outer->cells;
    c.fragments = s->fragments;
    c.nominal = (uint32_t)s->config.interval;
    int64_t drift = 8 * s->config.interval < 2000 ? 2000 : 8 * s->config.interval;
    c.drift_steps = (uint32_t)(s->config.drift_steps > 0 ? s->config.drift_steps : drift);
    c.drift_pause = s->config.drift_wait;
    c.token_target = s->config.token_target;
    memcpy(&c.eta, &s->config.outer_lr, 4);
    memcpy(&c.mu, &s->config.outer_momentum, 4);
    c.cell_bytes = 8 * NEB_CELL;
    c.promote = true;
    c.cls = s->cls;
    if (s->config.round_ms > 0) c.round_ms = s->config.round_ms;
    c.seed = s->site->boot;
    c.seal = neb__session_seal(s);
    return c;
}

static neb_status create_core(neb_session *s, const struct neb_ledger_found *found)
{
    size_t cells = s->outer->cells;
    uint64_t *merged = NEB_NEW_ARRAY(uint64_t, cells), *work = NEB_NEW_ARRAY(uint64_t, cells);
    uint64_t *after = NEB_NEW_ARRAY(uint64_t, cells);
    struct neb_boot_update *open = NEB_NEW_ARRAY(struct neb_boot_update, cells);
    const uint8_t **record = NEB_NEW_ARRAY(const uint8_t *, found->records + 1);
    neb_status st = NEB_ERR_NOMEM;
    if (merged && work && after && open && record) {
        for (size_t c = 0; c < cells; c++) {
            const struct neb_own_cell *own = &s->own[c];
            merged[c] = own->version, work[c] = own->work, open[c] = own->open;
            after[c] = own->open.k && own->work > own->work_open ? own->work - own->work_open : 0;
        }
        for (uint64_t i = 0; i < found->records; i++) record[i] = found->bytes.data + found->at[i];
        struct neb_round_boot boot = {.damaged = found->damaged,
                                      .mark = found->mark_length ? found->bytes.data + found->mark_at : NULL,
                                      .mark_length = found->mark_length,
                                      .record = record,
                                      .record_length = found->size,
                                      .records = found->records,
                                      .applied = s->outer->version,
                                      .merged = merged,
                                      .open = open,
                                      .work = work,
                                      .work_after = after};
        struct neb_round_config c = core_config(s);
        st = neb__round_create(&c, &boot, &s->core);
    }
    neb__free(merged);
    neb__free(work);
    neb__free(after);
    neb__free(open);
    neb__free(record);
    return st == NEB_ERR_NOMEM ? neb__fail(st, "out of memory for the ledger") : st;
}

static neb_status open_disk(neb_session *s)
{
    char dir[512];
    snprintf(dir, sizeof dir, "%s/run", s->site->dir);
    NEB_TRY(neb__file_make_dir(dir, 0700));
    NEB_TRY(neb__disk_open(dir, &s->disk));
    struct neb_buf mark;
    neb__buf_init(&mark, NEB_MARK_MAX);
    neb_status st = neb__round_first_mark(&mark);
    if (st == NEB_OK) st = neb__ledger_create(&s->disk, mark.data, mark.len);
    neb__buf_free(&mark);
    if (st != NEB_OK && st != NEB_ERR_EXISTS) return st;
    return neb__update_files_open(&s->disk, (uint64_t)s->config.ledger_quota, &s->updates);
}

static neb_status make_memory(neb_session *s)
{
    for (int i = 0; i < 3; i++)
        if (!(s->work[i] = neb__aligned(NEB_CELL * sizeof(float)))) return NEB_ERR_NOMEM;
    size_t cells = (s->values + NEB_CELL - 1) / NEB_CELL;
    neb__buf_init(&s->made, neb__session_update_max(s));
    neb__buf_init(&s->residuals, neb__session_update_max(s));
    s->own = NEB_NEW_ARRAY(struct neb_own_cell, cells);
    s->fetched = NEB_NEW_ARRAY(struct neb_fetched_cell, cells);
    s->covered = neb__calloc(cells, sizeof *s->covered);
    int64_t fragments = s->config.fragments > 0 ? s->config.fragments : 8;
    if (fragments > NEB_CAPTURES) fragments = NEB_CAPTURES;
    s->fragments = (uint32_t)(fragments < (int64_t)cells ? fragments : (int64_t)cells);
    bool room = s->own && s->fetched && s->covered;
    return room ? neb__device_copies_open(s) : NEB_ERR_NOMEM;
}

/* The core hears of the updates on disk that a record may still name; others it asks for when it needs them. */
static void offer(neb_session *s, const struct neb_hash *hash)
{
    struct neb_buf b;
    struct neb_update_header h;
    if (!read_header(s, hash, &h) || h.c1 > s->outer->cells || h.b + 1 < neb__round_version(s->core, h.c0))
        return;
    neb__buf_init(&b, (size_t)1 << 31);
    if (neb__update_load(&s->updates, hash, &b) == NEB_OK)
        neb__session_feed(
            s, &(struct neb_event){.type = NEB_EV_UPDATE,
                                   .update = &h,
                                   .hash = *hash,
                                   .norm = neb__session_norm(s, &h, b.data + NEB_UPDATE_HEADER_SIZE)});
    neb__buf_free(&b);
}

static neb_status restore_all(neb_session *s, const struct neb_ledger_found *log)
{
    struct found f = {0};
    s->cls = (uint8_t)(s->fixed ? s->fixed->cls : NEB_DENSE);
    NEB_TRY(first_roster(s));
    neb__session_keys(s);
    NEB_TRY(restore_outer(s, log));
    neb_status st = neb__update_files_list(&s->updates, one_update, &f);
    if (st == NEB_OK) st = restore_own(s, &f);
    if (st == NEB_OK) st = create_core(s, log);
    if (st == NEB_OK) st = neb__session_rate_open(s);
    for (int i = 0; st == NEB_OK && i < f.n; i++) offer(s, &f.all[i]);
    neb__free(f.all);
    return st;
}

neb_status neb__session_restore(neb_session *s)
{
    NEB_TRY(neb__arith_self_test());
    NEB_TRY(neb__codec_self_test());
    if (make_memory(s) != NEB_OK)
        return neb__fail(NEB_ERR_NOMEM, "out of memory for a model of %zu values", s->values);
    NEB_TRY(open_disk(s));
    struct neb_ledger_found log;
    neb_status st = neb__ledger_open(&s->disk, &s->ledger, &log);
    if (st == NEB_ERR_IO)
        return neb__fail(
            st,
            "the ledger in %s/run cannot be read: start again; a file that is lost for good can be "
            "moved away, and the other sites tell this one what was in it",
            s->site->dir);
    NEB_TRY(st);
    st = restore_all(s, &log);
    neb__ledger_found_free(&log);
    return st;
}

void neb__session_release(neb_session *s)
{
    size_t cells = (s->values + NEB_CELL - 1) / NEB_CELL;
    neb__device_copies_close(s); /* before the edits whose values it may be reading */
    for (size_t c = 0; s->own && c < cells; c++) neb__edits_free(&s->own[c]);
    for (size_t c = 0; s->fetched && c < cells; c++) neb__free(s->fetched[c].theta);
    neb__round_destroy(s->core);
    neb__outer_destroy(s->outer);
    if (s->disk.ops) neb__disk_close(&s->disk);
    for (int i = 0; i < 3; i++) neb__free(s->work[i]);
    for (int i = 0; i < NEB_SITES_MAX; i++) neb__free(s->decoded[i]);
    neb__buf_free(&s->made);
    neb__buf_free(&s->residuals);
    for (int i = 0; i < NEB_RECENT; i++) neb__buf_free(&s->recent[i].bytes);
    neb__free(s->own);
    neb__free(s->fetched);
    neb__free(s->covered);
}

/* ---- into the caller's checkpoint ------------------------------------------------------------------------------ */

static neb_status write_x(neb_session *s, uint8_t *b)
{
    for (uint32_t c = 0; c < s->outer->cells; c++) {
        size_t first, n = neb__outer_cell(s->outer, c, &first);
        float *x = s->work[2];
        NEB_TRY(neb__session_read_x(s, first, n, x));
        pthread_mutex_lock(&s->lock);
        neb__edits_on_copy(&s->own[c], x, n);
        pthread_mutex_unlock(&s->lock);
        for (size_t i = 0; i < n; i++) x[i] -= s->outer->theta[first + i];
        memcpy(b + 4 * first, x, 4 * n);
    }
    return NEB_OK;
}

/* Between two events of the driver everything fits together. *n: how long it became. */
static neb_status write_state(neb_session *s, uint8_t *out, size_t *n)
{
    uint8_t *b = out;
    neb__put32(b, MAGIC);
    neb__put32(b + 4, s->outer->cells);
    memcpy(b + 8, s->model[NEB_AGREED_LAYOUT].b, NEB_HASH_SIZE);
    neb__put64(b + 8 + NEB_HASH_SIZE, s->last_k);
    b += STATE_HEAD;
    pthread_mutex_lock(&s->lock);
    int64_t steps = s->status.steps; /* the core may not have heard of the last ones */
    pthread_mutex_unlock(&s->lock);
    for (uint32_t c = 0; c < s->outer->cells; c++, b += STATE_CELL)
        put_cell(b, &s->own[c], (uint64_t)(steps - neb__round_base(s->core, c)));
    NEB_TRY(write_x(s, b));
    b += 4 * s->values;
    for (uint32_t c = 0; c < s->outer->cells; c++) {
        size_t first, values = neb__outer_cell(s->outer, c, &first);
        if (!s->own[c].open.k) continue;
        memcpy(b, s->d + first, 4 * values);
        b += 4 * values;
    }
    *n = (size_t)(b - out);
    return NEB_OK;
}

neb_status neb_session_save(neb_session *s, void *out, size_t *n)
{
    if (!s->outer) return neb__fail(NEB_ERR_STATE, "a session has no state before it starts");
    size_t need = state_size(s, s->values); /* at most: every cell has an open update */
    if (!out) {
        *n = need;
        return NEB_OK;
    }
    if (*n < need) return neb__fail(NEB_ERR_NOSPACE, "the state needs %zu bytes, %zu are there", need, *n);
    pthread_mutex_lock(&s->busy);
    neb_status st = write_state(s, out, n);
    s->saved_k[1] = s->saved_k[0]; /* the one before is certainly on disk by now */
    s->saved_k[0] = settled_k(s);
    pthread_mutex_unlock(&s->busy);
    return st;
}
