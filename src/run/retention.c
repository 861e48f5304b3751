/* retention.c: what stays on this site's disk: updates as long as somebody may need them, two snapshots a
 * cell, and what happens when there is no room.
 *
 * An update may go when every voter has applied its record and both snapshots of each of its cells are newer:
 * then neither this site nor another can ever ask for it, whatever happens to one of the snapshots. Own ones
 * stay until the caller's checkpoint before the last holds what was in them. Sweeping goes up the log in
 * order and stops at the first record that is still needed. Updates that came too late for any record are
 * looked for from time to time.
 *
 * When the disk or the quota is full, an update that does not fit is not acknowledged. So no record that
 * needs it commits; training goes on. The round core tries again every second, and goes on when there is
 * room. */
#include "run/unnamed.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

enum { SAY_AGAIN_S = 30, ORPHANS_EVERY = 64, ORPHANS_MAX = 4096 };

/* Said once, again every half minute, and when it is over. */
void neb__session_full(neb_session *s, bool full, const char *what)
{
    int64_t now = neb__now_ns();
    if (!full && !s->updates.keep.full_since) return;
    if (full && (!s->updates.keep.full_since ||
                 now - s->updates.keep.full_since > (int64_t)SAY_AGAIN_S * 1000000000)) {
        neb__warn(
            "%s: no room (%s). This site acknowledges nothing until there is; training goes on. Make room in "
            "%s/run, or raise wan.ledger_quota",
            what, neb_last_error(), s->site->dir);
        s->updates.keep.full_since = now;
    }
    if (!full) {
        neb__info("there is room on the disk again: this site goes on committing");
        s->updates.keep.full_since = 0;
    }
    pthread_mutex_lock(&s->lock);
    s->status.disk_full = full;
    pthread_mutex_unlock(&s->lock);
}

neb_status neb__session_keep(neb_session *s, const struct neb_hash *hash, const void *bytes, size_t n)
{
    neb_status status = neb__update_keep(&s->updates.files, hash, bytes, n);
    if (status == NEB_ERR_NOSPACE) {
        neb__session_sweep(s);
        status = neb__update_keep(&s->updates.files, hash, bytes, n);
    }
    if (status == NEB_OK || status == NEB_ERR_NOSPACE)
        neb__session_full(s, status != NEB_OK, "an update was not stored");
    if (status == NEB_OK) neb__updates_remember(&s->updates, hash, bytes, n);
    return status;
}

/* The new snapshot takes the place of the older one. */
neb_status neb__session_snapshot(neb_session *s, const struct neb_snapshot *snap)
{
    uint64_t *v = s->updates.keep.covered[snap->cell];
    struct neb_snapshot here = *snap;
    here.slot = v[0] > v[1];
    NEB_TRY(neb__snapshot_put(&s->disk, &here));
    v[here.slot] = snap->version;
    return NEB_OK;
}

static bool covered(const neb_session *s, const struct neb_record *rec)
{
    for (uint32_t c = rec->c0; c < rec->c1; c++)
        if (s->updates.keep.covered[c][0] <= rec->v || s->updates.keep.covered[c][1] <= rec->v) return false;
    return true;
}

static bool needed_here(const neb_session *s, const struct neb_record *rec)
{
    const struct neb_named *own = neb__record_of(rec, s->self);
    if (own && own->k > s->updates.keep.saved_k[1]) return true;
    for (uint32_t c = rec->c0; c < rec->c1; c++)
        if (s->mirror.own[c].version <= rec->v) return true;
    return false;
}

struct orphans {
    const neb_session *s;
    struct neb_hash list[ORPHANS_MAX];
    int n;
    uint64_t head;
};

static bool named(const struct orphans *o, const struct neb_hash *hash)
{
    for (uint64_t i = o->s->updates.keep.swept + 1; i <= o->head; i++) {
        const struct neb_record *rec = neb__round_record(o->s->core, i);
        for (uint32_t k = 0; rec && rec->type == NEB_RECORD_ROUND && k < rec->updates; k++)
            if (neb__hash_equal(&rec->update[k].hash, hash)) return true;
    }
    return false;
}

/* Its cells are two versions on, so no record can name it any more; or its base lies ahead of the log. */
static void look_at(void *arg, const struct neb_hash *hash)
{
    struct orphans *o = arg;
    const neb_session *s = o->s;
    struct neb_update_header h;
    if (o->n == ORPHANS_MAX || !neb__updates_header(&s->updates, hash, &h) || h.c0 >= s->mirror.outer->cells)
        return;
    bool kept = h.site == s->self && h.k > s->updates.keep.saved_k[1];
    bool over = h.b + 1 < neb__round_version(s->core, h.c0) || neb__unnamed_is_ahead(s, &h);
    if (!kept && over && !named(o, hash)) o->list[o->n++] = *hash;
}

static void sweep_orphans(neb_session *s)
{
    struct neb_round_status st;
    neb__round_status(s->core, &st);
    if (st.commit < s->updates.keep.orphans_at + ORPHANS_EVERY) return;
    struct orphans *o = NEB_NEW(struct orphans);
    if (!o) return;
    s->updates.keep.orphans_at = st.commit;
    o->s = s;
    o->head = st.head;
    (void)neb__update_files_list(&s->updates.files, look_at, o);
    for (int i = 0; i < o->n; i++) (void)neb__update_remove(&s->updates.files, &o->list[i]);
    neb__free(o);
}

void neb__session_sweep(neb_session *s)
{
    uint64_t floor = neb__round_all_applied(s->core), bytes = s->updates.files.bytes;
    if (s->config.archive) return;
    sweep_orphans(s);
    while (s->updates.keep.swept < floor) {
        const struct neb_record *rec = neb__round_record(s->core, s->updates.keep.swept + 1);
        if (!rec) break;
        if (rec->type == NEB_RECORD_ROUND) {
            if (!covered(s, rec) || needed_here(s, rec)) break;
            for (uint32_t i = 0; i < rec->updates; i++)
                (void)neb__update_remove(&s->updates.files, &rec->update[i].hash);
        }
        s->updates.keep.swept++;
    }
    if (s->updates.files.bytes < bytes)
        neb__debug("updates of the records up to %" PRIu64
                   " are in every site's snapshots, or in no record: %.1f MB removed",
                   s->updates.keep.swept, (double)(bytes - s->updates.files.bytes) / 1e6);
    pthread_mutex_lock(&s->lock);
    s->status.stored = (int64_t)s->updates.files.bytes;
    pthread_mutex_unlock(&s->lock);
}
