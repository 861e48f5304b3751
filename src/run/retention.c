/* retention.c: what stays on this site's disk: updates as long as somebody may need them, two snapshots a cell, and what
 * happens when there is no room.
 *
 * An update (update) may go when every voter has applied its record and both snapshots of each of its cells are newer:
 * then neither this site nor another can ever ask for it, whatever happens to one of the snapshots. Own ones stay until
 * the caller's checkpoint before the last holds what was in them. Sweeping goes up the log in order and stops at the first
 * record that is still needed. Updates that came too late for any record are looked for from time to time.
 *
 * Between its arrival and its record an update stays in memory, too, as it was made or checked: applying it needs neither the
 * disk nor another hash. What does not fit there any more is read back and checked.
 *
 * A full disk or quota: what does not fit is not acknowledged, so no record that needs it commits; training goes on. The
 * round core tries again every second, and so it goes on when there is room. */
#include "run/session.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

enum { SAY_AGAIN_S = 30, ORPHANS_EVERY = 64, ORPHANS_MAX = 256 };

/* Said once, again every half minute, and when it is over. */
void neb__session_full(neb_session *s, bool full, const char *what)
{
    int64_t now = neb__now_ns();
    if (!full && !s->full_since) return;
    if (full && (!s->full_since || now - s->full_since > (int64_t)SAY_AGAIN_S * 1000000000)) {
        neb__warn(
            "%s: no room (%s). This site acknowledges nothing until there is; training goes on. Make room in "
            "%s/run, or raise wan.ledger_quota",
            what, neb_last_error(), s->site->dir);
        s->full_since = now;
    }
    if (!full) {
        neb__info("there is room on the disk again: this site goes on committing");
        s->full_since = 0;
    }
    pthread_mutex_lock(&s->lock);
    s->status.disk_full = full;
    pthread_mutex_unlock(&s->lock);
}

/* ---- in memory --------------------------------------------------------------------------------------------------- */

static struct neb_recent *find(neb_session *s, const struct neb_hash *hash)
{
    for (int i = 0; i < NEB_RECENT; i++)
        if (s->recent[i].bytes.len && neb__hash_equal(&s->recent[i].hash, hash)) return &s->recent[i];
    return NULL;
}

/* An empty place, or that of the oldest; room for n bytes within the limit. */
static struct neb_recent *place(neb_session *s, size_t n)
{
    struct neb_recent *free = NULL;
    size_t held = n;
    for (int i = 0; i < NEB_RECENT; i++) {
        held += s->recent[i].bytes.cap;
        if (!s->recent[i].bytes.len && (!free || s->recent[i].bytes.cap > free->bytes.cap))
            free = &s->recent[i];
    }
    if (!free) free = &s->recent[s->next_recent++ % NEB_RECENT];
    for (int i = 0; held > NEB_RECENT_BYTES && i < NEB_RECENT; i++) {
        struct neb_buf *b = &s->recent[s->next_recent++ % NEB_RECENT].bytes;
        held -= b->cap;
        neb__buf_free(b);
    }
    return held > NEB_RECENT_BYTES ? NULL : free;
}

static void remember(neb_session *s, const struct neb_hash *hash, const void *bytes, size_t n)
{
    struct neb_recent *r = find(s, hash) ? NULL : place(s, n);
    if (!r) return;
    if (!r->bytes.data) neb__buf_init(&r->bytes, NEB_RECENT_BYTES);
    neb__buf_clear(&r->bytes);
    if (neb__buf_append(&r->bytes, bytes, n) != NEB_OK) neb__buf_clear(&r->bytes);
    r->hash = *hash;
}

const struct neb_buf *neb__session_recent(neb_session *s, const struct neb_hash *hash)
{
    const struct neb_recent *r = find(s, hash);
    return r ? &r->bytes : NULL;
}

void neb__session_forget(neb_session *s, const struct neb_hash *hash)
{
    struct neb_recent *r = find(s, hash);
    if (r) neb__buf_clear(&r->bytes);
}

/* ---- on disk ----------------------------------------------------------------------------------------------------- */

neb_status neb__session_keep(neb_session *s, const struct neb_hash *hash, const void *bytes, size_t n)
{
    neb_status st = neb__update_keep(&s->updates, hash, bytes, n);
    if (st == NEB_ERR_NOSPACE) {
        neb__session_sweep(s);
        st = neb__update_keep(&s->updates, hash, bytes, n);
    }
    if (st == NEB_OK || st == NEB_ERR_NOSPACE) neb__session_full(s, st != NEB_OK, "an update was not stored");
    if (st == NEB_OK) remember(s, hash, bytes, n);
    return st;
}

/* In place of the older one. */
neb_status neb__session_snapshot(neb_session *s, const struct neb_snapshot *snap)
{
    uint64_t *v = s->covered[snap->cell];
    struct neb_snapshot here = *snap;
    here.slot = v[0] > v[1];
    NEB_TRY(neb__snapshot_put(&s->disk, &here));
    v[here.slot] = snap->version;
    return NEB_OK;
}

static bool covered(const neb_session *s, const struct neb_record *rec)
{
    for (uint32_t c = rec->c0; c < rec->c1; c++)
        if (s->covered[c][0] <= rec->v || s->covered[c][1] <= rec->v) return false;
    return true;
}

static bool needed_here(const neb_session *s, const struct neb_record *rec)
{
    const struct neb_named *own = neb__record_of(rec, s->self);
    if (own && own->k > s->saved_k[1]) return true;
    for (uint32_t c = rec->c0; c < rec->c1; c++)
        if (s->own[c].version <= rec->v) return true;
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
    for (uint64_t i = o->s->swept + 1; i <= o->head; i++) {
        const struct neb_record *rec = neb__round_record(o->s->core, i);
        for (uint32_t k = 0; rec && rec->type == NEB_RECORD_ROUND && k < rec->updates; k++)
            if (neb__hash_equal(&rec->update[k].hash, hash)) return true;
    }
    return false;
}

/* Its cells are two versions on: no record can name it any more. */
static void look_at(void *arg, const struct neb_hash *hash)
{
    struct orphans *o = arg;
    const neb_session *s = o->s;
    struct neb_update_header h;
    uint8_t head[NEB_UPDATE_HEADER_SIZE];
    uint64_t size;
    if (o->n == ORPHANS_MAX || neb__update_head(&s->updates, hash, head, sizeof head, &size) != NEB_OK ||
        neb__update_header_get(head, (size_t)size, &h) != NEB_OK || h.c0 >= s->outer->cells)
        return;
    bool kept = h.site == s->self && h.k > s->saved_k[1];
    if (!kept && h.b + 1 < neb__round_version(s->core, h.c0) && !named(o, hash)) o->list[o->n++] = *hash;
}

static void sweep_orphans(neb_session *s)
{
    struct neb_round_status st;
    neb__round_status(s->core, &st);
    if (st.commit < s->orphans_at + ORPHANS_EVERY) return;
    struct orphans *o = NEB_NEW(struct orphans);
    if (!o) return;
    s->orphans_at = st.commit;
    o->s = s;
    o->head = st.head;
    (void)neb__update_files_list(&s->updates, look_at, o);
    for (int i = 0; i < o->n; i++) (void)neb__update_remove(&s->updates, &o->list[i]);
    neb__free(o);
}

void neb__session_sweep(neb_session *s)
{
    uint64_t floor = neb__round_all_applied(s->core), bytes = s->updates.bytes;
    if (s->config.archive) return;
    sweep_orphans(s);
    while (s->swept < floor) {
        const struct neb_record *rec = neb__round_record(s->core, s->swept + 1);
        if (!rec) break;
        if (rec->type == NEB_RECORD_ROUND) {
            if (!covered(s, rec) || needed_here(s, rec)) break;
            for (uint32_t i = 0; i < rec->updates; i++)
                (void)neb__update_remove(&s->updates, &rec->update[i].hash);
        }
        s->swept++;
    }
    if (s->updates.bytes < bytes)
        neb__debug("updates of the records up to %" PRIu64
                   " are in every site's snapshots, or in no record: %.1f MB removed",
                   s->swept, (double)(bytes - s->updates.bytes) / 1e6);
    pthread_mutex_lock(&s->lock);
    s->status.stored = (int64_t)s->updates.bytes;
    pthread_mutex_unlock(&s->lock);
}
