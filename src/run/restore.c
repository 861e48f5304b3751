/* restore.c: a site begins, or begins again.
 *
 * The outer state comes from the newest undamaged snapshot of each cell; the records above are replayed by
 * the core. The site's own state is own_state.c's. */
#include "run/audit.h"
#include "run/relaying.h"
#include "run/end.h"
#include "run/peer_cells.h"
#include "run/secure.h"
#include "run/unnamed.h"
#include "base/clamp.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "outer/arith.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { MAX_UPDATES = 1 << 16 };

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

/* ---- outer state --------------------------------------------------------------------------------------- */

/* The initial values, and whether they are those that the site keeps: once it has begun, the parameters hold
 * something else. A checkpoint made before the first record is a beginning, too, and so is a ledger that lost
 * its records. */
static neb_status initial(neb_session *s, const struct neb_ledger_found *log, float *theta, bool *kept,
                          struct neb_hash *root)
{
    bool begun = log->records || log->damaged || s->loaded.len;
    neb_status status = begun ? neb__genesis_load(s, theta, root) : NEB_ERR_NOTFOUND;
    *kept = status == NEB_OK;
    return status == NEB_ERR_NOTFOUND ? neb__mirror_read(&s->mirror, 0, s->mirror.values, theta) : status;
}

static neb_status restore_outer(neb_session *s, const struct neb_ledger_found *log)
{
    bool kept = false;
    struct neb_hash root, *now = &s->model[NEB_AGREED_VALUES];
    float *theta = neb__malloc(s->mirror.values * sizeof *theta);
    if (!theta) return neb__fail(NEB_ERR_NOMEM, "out of memory for the outer state");
    neb_status status = initial(s, log, theta, &kept, &root);
    if (status == NEB_OK)
        status = neb__outer_create((uint32_t)NEB_CELL, theta, s->mirror.values, &s->mirror.outer);
    neb__free(theta);
    NEB_TRY(status);
    NEB_TRY(neb__outer_root(s->mirror.outer, now));
    if (kept && !neb__hash_equal(&root, now)) return neb__genesis_damaged(s);
    if (!kept && !log->records && !s->loaded.len) NEB_TRY(neb__genesis_keep(s));
    if (s->influence.on) NEB_TRY(neb__outer_keep_norms(s->mirror.outer));
    for (uint32_t c = 0; c < s->mirror.outer->cells; c++) {
        size_t first, n = neb__outer_cell(s->mirror.outer, c, &first);
        struct neb_snapshot snap = {
            .cell = c, .values = n, .theta = s->mirror.work[0], .m = s->mirror.work[1]};
        struct neb_norms norms;
        if (s->influence.on) snap.more = &norms, snap.more_size = sizeof norms;
        uint64_t older;
        if (neb__snapshot_load(&s->disk, &snap, &older) != NEB_OK) continue;
        s->updates.keep.covered[c][snap.slot] = snap.version;
        s->updates.keep.covered[c][!snap.slot] = older;
        NEB_TRY(neb__outer_install(s->mirror.outer, c, snap.version, snap.theta, snap.m,
                                   s->influence.on ? &norms : NULL));
    }
    return NEB_OK;
}

/* ---- the core ------------------------------------------------------------------------------------------ */

struct beginning {
    struct neb_members members;
    bool over,
        changed; /* changed: other members or operators since; a site's new key alone is no such change */
};

/* The roster with which the log begins: the last one that was signed before there was a record to name. */
static void begin(void *arg, uint64_t epoch, uint64_t head, const struct neb_roster *r)
{
    struct beginning *b = arg;
    struct neb_members m = {.epoch = (uint32_t)epoch, .heavy = NEB_NO_SITE};
    b->over |= head != 0;
    for (uint32_t i = 0; i < r->count; i++) {
        const struct neb_member *p = &r->members[i];
        m.members |= neb__bit(p->id);
        if (p->votes) m.voters |= neb__bit(p->id);
        if (!(p->flags & NEB_MEMBER_WITNESS)) m.trains |= neb__bit(p->id);
        if (p->votes > 1) m.heavy = p->id;
    }
    if (b->over) m.epoch = b->members.epoch;
    b->changed |= b->over && !neb__members_equal(&m, &b->members);
    if (!b->over) b->members = m;
}

static void operators_since(void *arg, uint64_t epoch, uint64_t head, const struct neb_operators *set)
{
    struct beginning *b = arg;
    (void)epoch, (void)set;
    b->changed |= head != 0;
}

neb_status neb__members_at_beginning(const struct neb_chain *chain, struct neb_members *out)
{
    struct beginning b = {0};
    NEB_TRY(neb__chain_walk(chain, begin, &b));
    *out = b.members;
    return NEB_OK;
}

/* A site that an order admitted to this run has no other run in its folder. Elsewhere the orders were those of an earlier
 * run: this one would begin with members that have come and gone since. */
static neb_status begin_here(const neb_session *s, bool changed)
{
    if (!changed || !neb__run_folder_has_other(s->site->dir, s->run)) return NEB_OK;
    return neb__fail(
        NEB_ERR_CONFIG,
        "orders have changed the roster of %s in an earlier run, so no new run begins with it: seal one "
        "with the same keys (nebula-i roster add, seal) and take it with `nebula-i roster join FILE %s "
        "--replace` at every site",
        s->site->dir, s->site->dir);
}

/* It may not change under a run: kept beside the ledger, and compared. */
static neb_status first_roster(neb_session *s)
{
    struct beginning b = {0};
    uint8_t now[NEB_MEMBERS_SIZE + NEB_HASH_SIZE]; /* a run with a name: also its genesis */
    size_t n = *s->run ? sizeof now : NEB_MEMBERS_SIZE;
    struct neb_buf kept;
    NEB_TRY(neb__chain_walk(neb__net_roster(s->net), begin, &b));
    NEB_TRY(neb__chain_walk_operators(neb__net_roster(s->net), operators_since, &b));
    neb__members_set_roster(&s->members, &b.members, NEB_NO_SITE);
    neb__members_bytes(&b.members, now);
    memcpy(now + NEB_MEMBERS_SIZE, s->genesis.b, NEB_HASH_SIZE);
    neb__buf_init(&kept, 1024);
    neb_status status = neb__blob_load(&s->disk, "beginning", &kept);
    if (status == NEB_OK && (kept.len != n || memcmp(kept.data, now, n)))
        status = neb__fail(NEB_ERR_CONFIG,
                           "the roster was changed by hand after the run began: members come and go by "
                           "`nebula-i order`; give the site its old file again (nebula-i adopt)");
    else if (status == NEB_ERR_NOTFOUND)
        status = begin_here(s, b.changed) == NEB_OK ? neb__blob_save(&s->disk, "beginning", now, n, true)
                                                    : NEB_ERR_CONFIG;
    neb__buf_free(&kept);
    return status;
}

static struct neb_round_config core_config(neb_session *s)
{
    struct neb_round_config c = {0};
    neb__round_defaults(&c);
    c.self = s->self;
    c.genesis = s->genesis;
    c.roster = neb__members_roster(&s->members, NULL);
    c.cells = s->mirror.outer->cells;
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
    c.end_drop = strcmp(s->config.end, "keep") != 0;
    c.influence = s->influence;
    c.quorum = s->quorum;
    c.secure = s->secure;
    c.cls = (uint8_t)(s->fixed ? s->fixed->cls : NEB_DENSE);
    if (s->config.round_ms > 0) c.round_ms = s->config.round_ms;
    c.seed = s->site->boot;
    c.seal = neb__session_seal(s);
    c.operators = neb__session_first_operators(s);
    return c;
}

/* Whether the own update that cell c waits for was signed with a key that this site has no longer. */
static bool is_former(neb_session *s, const struct neb_boot_update *open, size_t c)
{
    const struct neb_seal seal = neb__session_seal(s);
    struct neb_update_header h;
    struct neb_buf b;
    if (!open[c].k || !neb__members_rekeyed(&s->members, s->self)) return false;
    if (c && open[c - 1].k == open[c].k && neb__hash_equal(&open[c - 1].hash, &open[c].hash))
        return open[c - 1].former;
    neb__buf_init(&b, (size_t)1 << 31);
    bool read = neb__update_load(&s->updates.files, &open[c].hash, &b) == NEB_OK &&
                neb__update_header_get(b.data, b.len, &h) == NEB_OK;
    bool former =
        read && !neb__update_header_genuine(&h, b.data + NEB_UPDATE_HEADER_SIZE, &s->genesis, &seal);
    neb__buf_free(&b);
    return former;
}

static neb_status create_core(neb_session *s, const struct neb_ledger_found *found)
{
    size_t cells = s->mirror.outer->cells;
    uint64_t *merged = NEB_NEW_ARRAY(uint64_t, cells), *work = NEB_NEW_ARRAY(uint64_t, cells);
    uint64_t *after = NEB_NEW_ARRAY(uint64_t, cells);
    struct neb_boot_update *open = NEB_NEW_ARRAY(struct neb_boot_update, cells);
    const uint8_t **record = NEB_NEW_ARRAY(const uint8_t *, found->records + 1);
    struct neb_round_extra *extra = NEB_NEW_ARRAY(struct neb_round_extra, found->extras + 1);
    struct neb_buf newest;
    neb_status status = NEB_ERR_NOMEM;
    neb__buf_init(&newest, 2 * NEB_CERTIFICATE_MAX);
    if (neb__blob_load(&s->disk, "certificate", &newest) != NEB_OK) neb__buf_clear(&newest);
    for (size_t i = 0; extra && i < found->extras; i++)
        extra[i] = (struct neb_round_extra){found->extra[i].kind, found->extra[i].index,
                                            (uint8_t *)found->extra[i].bytes, found->extra[i].length};
    if (merged && work && after && open && record && extra) {
        for (size_t c = 0; c < cells; c++) {
            const struct neb_own_cell *own = &s->mirror.own[c];
            merged[c] = own->version, work[c] = own->work, open[c] = own->open;
            open[c].former = is_former(s, open, c);
            after[c] = own->open.k && own->work > own->work_open ? own->work - own->work_open : 0;
        }
        for (uint64_t i = 0; i < found->records; i++) record[i] = found->bytes.data + found->at[i];
        struct neb_round_boot boot = {.damaged = found->damaged,
                                      .mark = found->mark_length ? found->bytes.data + found->mark_at : NULL,
                                      .mark_length = found->mark_length,
                                      .record = record,
                                      .record_length = found->size,
                                      .records = found->records,
                                      .extra = extra,
                                      .extras = found->extras,
                                      .certificate = newest.len ? newest.data : NULL,
                                      .certificate_length = newest.len,
                                      .applied = s->mirror.outer->version,
                                      .merged = merged,
                                      .open = open,
                                      .work = work,
                                      .work_after = after};
        struct neb_round_config c = core_config(s);
        status = neb__round_create(&c, &boot, &s->core);
        if (status == NEB_OK) status = neb__relaying_open(s);
    }
    neb__free(merged);
    neb__free(work);
    neb__free(after);
    neb__free(open);
    neb__free(record);
    neb__free(extra);
    neb__buf_free(&newest);
    return status == NEB_ERR_NOMEM ? neb__fail(status, "out of memory for the ledger") : status;
}

static neb_status open_disk(neb_session *s)
{
    char dir[PATH_MAX];
    NEB_TRY(neb__run_folder(s->site->dir, "", dir, sizeof dir));
    NEB_TRY(neb__file_make_dir(dir, 0700));
    NEB_TRY(neb__run_folder(s->site->dir, s->run, dir, sizeof dir));
    NEB_TRY(neb__file_make_dir(dir, 0700));
    NEB_TRY(neb__disk_open(dir, &s->disk));
    NEB_TRY(neb__session_privacy_open(s, dir));
    struct neb_buf mark;
    neb__buf_init(&mark, NEB_MARK_MAX);
    neb_status status = neb__round_first_mark(&mark);
    if (status == NEB_OK) status = neb__ledger_create(&s->disk, mark.data, mark.len);
    neb__buf_free(&mark);
    if (status != NEB_OK && status != NEB_ERR_EXISTS) return status;
    return neb__update_files_open(&s->disk, (uint64_t)s->config.ledger_quota, &s->updates.files);
}

static size_t cells_of(const neb_session *s)
{
    return (s->mirror.values + NEB_CELL - 1) / NEB_CELL;
}

static neb_status make_memory(neb_session *s)
{
    size_t cells = cells_of(s);
    int64_t fragments = s->config.fragments > 0 ? s->config.fragments : 8;
    s->fragments = (uint32_t)neb__clamp_int(fragments, 0, neb__clamp_int((int64_t)cells, 0, NEB_CAPTURES));
    NEB_TRY(neb__updates_open(&s->updates, cells, neb__session_update_max(s)));
    NEB_TRY(neb__fetched_open(s, cells));
    NEB_TRY(neb__applying_open(s));
    NEB_TRY(neb__end_open(s));
    return neb__mirror_open(&s->mirror);
}

/* The core hears of the updates on disk that a record may still name; others it asks for when it needs
 * them. */
static void offer(neb_session *s, const struct neb_hash *hash)
{
    struct neb_buf b;
    struct neb_update_header h;
    if (!neb__updates_header(&s->updates, hash, &h) || h.c0 >= h.c1 || h.c1 > s->mirror.outer->cells ||
        h.b + 1 < neb__round_version(s->core, h.c0))
        return;
    if (h.site != s->self && neb__unnamed_add(s, &h, hash) != NEB_OK) return;
    neb__buf_init(&b, (size_t)1 << 31);
    if (neb__update_load(&s->updates.files, hash, &b) == NEB_OK)
        neb__session_feed(s, &(struct neb_event){.type = NEB_EV_UPDATE,
                                                 .update = &h,
                                                 .hash = *hash,
                                                 .norm = neb__session_norm(s, &h, b.data)});
    neb__buf_free(&b);
}

void neb__session_keep_outer(neb_session *s)
{
    s->keeps_outer = true;
}

/* With another outer step than its log's a site would refuse the records that it has, and the others it. */
static void keep_outer(neb_session *s, const struct neb_ledger_found *log)
{
    const float asked = s->config.outer_lr;
    for (uint64_t i = log->records; s->keeps_outer && i > 0; i--) {
        struct neb_record *rec;
        float has = 0;
        if (neb__record_decode(log->bytes.data + log->at[i - 1], log->size[i - 1], &rec) != NEB_OK) continue;
        if (rec->type == NEB_RECORD_ROUND || rec->type == NEB_RECORD_SURVIVORS)
            memcpy(&has, &rec->eta, sizeof has);
        neb__free(rec);
        if (!(has > 0 && has <= 2)) continue;
        s->config.outer_lr = has;
        break;
    }
    if (s->config.outer_lr < asked || s->config.outer_lr > asked)
        neb__info("wan.outer_lr stays %g, with which this run began; the job as it is now would mean %g",
                  (double)s->config.outer_lr, (double)asked);
}

static neb_status restore_all(neb_session *s, const struct neb_ledger_found *log)
{
    struct found f = {0};
    keep_outer(s, log);
    NEB_TRY(first_roster(s));
    const uint64_t trains = neb__members_roster(&s->members, NULL).trains;
    if (s->secure && __builtin_popcountll(trains) < 3)
        return neb__fail(
            NEB_ERR_CONFIG,
            "privacy.aggregate: secure needs three sites that train, and the roster has %d: of a sum of two "
            "updates each site takes off its own and has the other's",
            __builtin_popcountll(trains));
    NEB_TRY(neb__session_influence_load(s));
    NEB_TRY(neb__quorum_read(neb__net_roster(s->net), &s->quorum));
    neb__members_learn(&s->members, neb__net_roster(s->net));
    NEB_TRY(restore_outer(s, log));
    neb_status status = neb__update_files_list(&s->updates.files, one_update, &f);
    if (status == NEB_OK) status = neb__own_state_restore(s, f.all, f.n);
    if (status == NEB_OK) status = create_core(s, log);
    if (status == NEB_OK) status = neb__sums_open(s);
    if (status == NEB_OK) status = neb__session_rate_open(s);
    for (int i = 0; status == NEB_OK && i < f.n; i++) offer(s, &f.all[i]);
    neb__free(f.all);
    return status;
}

neb_status neb__session_restore(neb_session *s)
{
    NEB_TRY(neb__arith_self_test());
    NEB_TRY(neb__codec_self_test());
    if (make_memory(s) != NEB_OK)
        return neb__fail(NEB_ERR_NOMEM, "out of memory for a model of %zu values", s->mirror.values);
    NEB_TRY(open_disk(s));
    struct neb_ledger_found log;
    neb_status status = neb__ledger_open(&s->disk, &s->ledger, &log);
    if (status == NEB_ERR_IO)
        return neb__fail(
            status,
            "the ledger in %s/run%s%s cannot be read: start again; a file that is lost for good can be "
            "moved away, and the other sites tell this one what was in it",
            s->site->dir, *s->run ? "/" : "", s->run);
    NEB_TRY(status);
    status = restore_all(s, &log);
    neb__ledger_found_free(&log);
    return status;
}

void neb__session_release(neb_session *s)
{
    neb__relaying_close(s);
    neb__round_destroy(s->core);
    neb__fetched_close(s, cells_of(s));
    neb__sums_close(s);
    neb__applying_close(s);
    neb__end_close(s);
    neb__updates_close(&s->updates);
    neb__unnamed_free(s);
    neb__mirror_close(&s->mirror);
    neb__session_privacy_close(s);
    if (s->disk.ops) neb__disk_close(&s->disk);
}
