/* actions.c: the core's actions carried out, or handed to the file that does it: own updates are made in
 * capture.c, records applied in apply.c, updates and cells of peers handled in peer_updates.c and
 * peer_cells.c. */
#include "run/peer_cells.h"
#include "run/secure.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdio.h>

static void do_root(neb_session *s, const struct neb_action *a)
{
    struct neb_event ev = {.type = NEB_EV_ROOT, .index = a->index};
    if (neb__outer_root(s->mirror.outer, &ev.root) != NEB_OK)
        neb__session_halt(s, "out of memory for the state root");
    else
        neb__session_feed(s, &ev);
}

static void do_settle(neb_session *s, const struct neb_action *a)
{
    float gamma = (float)((double)a->num / (double)a->den);
    for (uint32_t c = a->c0; c < a->c1; c++) {
        size_t first;
        (void)neb__outer_cell(s->mirror.outer, c, &first);
        if (neb__edit_add(&s->mirror, c, NEB_EDIT_SHRINK, gamma, s->mirror.outer->theta + first) != NEB_OK)
            neb__session_halt(s, "out of memory for settling");
    }
    neb__info("this site's late work (cells %u to %u of the parameters) enters with factor %.3f: the longer "
              "it was away, the less its old work counts",
              a->c0, a->c1 - 1, (double)gamma);
    neb__news_add(s, "scaled", "this site's late work enters with factor %.3f: it was away too long",
                  (double)gamma);
}

/* Kept without a sync: without it a start only needs the others once more. */
static void keep_certificate(neb_session *s, const struct neb_action *a)
{
    if (neb__blob_save(&s->disk, "certificate", a->bytes, a->length, false) != NEB_OK)
        neb__log(NEB_LOG_DEBUG, "the newest certificate was not kept: %s", neb_last_error());
}

/* Two signatures of a site contradict each other. They stay in the folder: anybody who knows the roster can check them. */
static void convicted(neb_session *s, const struct neb_action *a)
{
    char name[NEB_NAME_SIZE], file[32];
    snprintf(file, sizeof file, "guilt-%u", a->site);
    neb__members_name(&s->members, a->site, name);
    bool kept = neb__blob_save(&s->disk, file, a->bytes, a->length, true) == NEB_OK;
    if (!neb__quota_count(s, a->site, NEB_QUOTA_GUILT, 1)) return;
    neb__news_add(s, "named", "%s is proven to lie: it signed statements that contradict each other", name);
    neb__log(NEB_LOG_ERROR,
             "site '%s' is proven to lie: it signed statements that contradict each other (%s%s): remove "
             "it from the run "
             "(nebula-i order FOLDER evict %s)",
             name, kept ? "run/" : "not kept, ", file, name);
}

/* The certificate that contradicts this site's ledger stays in the folder, beside the ledger that it contradicts. */
static void halt(neb_session *s, const struct neb_action *a)
{
    if (a->length && neb__blob_save(&s->disk, "contradiction", a->bytes, a->length, true) != NEB_OK)
        neb__warn("the proof that there are two histories was not kept: %s", neb_last_error());
    neb__session_halt(s, a->text);
}

static void do_write(neb_session *s, const struct neb_action *a)
{
    size_t count = (size_t)a->count;
    const uint8_t **record = NEB_NEW_ARRAY(const uint8_t *, count);
    size_t *length = NEB_NEW_ARRAY(size_t, count);
    struct neb_event ev = {.type = NEB_EV_WRITTEN, .id = a->id, .status = NEB_ERR_NOMEM};
    size_t extras;
    const struct neb_round_extra *more = neb__round_extras(s->core, &extras);
    struct neb_ledger_extra *extra = NEB_NEW_ARRAY(struct neb_ledger_extra, extras + 1);
    for (size_t i = 0; extra && i < extras; i++)
        extra[i] = (struct neb_ledger_extra){more[i].kind, more[i].index, more[i].bytes, more[i].length};
    if (record && length && extra) {
        for (size_t i = 0; i < count; i++)
            record[i] = neb__round_record_bytes(s->core, a->index + i, &length[i]);
        struct neb_ledger_batch b = {.first = a->index,
                                     .count = a->count,
                                     .record = record,
                                     .length = length,
                                     .extra = extra,
                                     .extras = extras,
                                     .head = a->index + a->count - 1,
                                     .mark = a->bytes,
                                     .mark_length = a->length};
        ev.status = neb__ledger_append(&s->ledger, &b);
        if (ev.status == NEB_OK || ev.status == NEB_ERR_NOSPACE)
            neb__session_full(s, ev.status != NEB_OK, "a record was not stored");
    }
    neb__free(record);
    neb__free(length);
    neb__free(extra);
    neb__session_feed(s, &ev);
}

static void set_paused(neb_session *s, bool paused)
{
    pthread_mutex_lock(&s->lock);
    s->paused = paused;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void end_here(neb_session *s)
{
    set_paused(s, true);
    s->driver.ends = true;
}

static void do_discard(neb_session *s, const struct neb_action *a)
{
    for (uint32_t c = a->c0; c < a->c1; c++)
        if (s->mirror.own[c].open.k == a->k) s->mirror.own[c].open.k = 0;
}

/* This site is no longer a member: it stops, by its own wish or by an operator's. */
static void removed(neb_session *s)
{
    if (s->driver.leaves)
        end_here(s);
    else
        neb__session_halt(s, "the operator removed this site from the run");
}

static void roster_changed(neb_session *s)
{
    struct neb_round_status st;
    neb__round_status(s->core, &st);
    bool was = neb__members_roster(&s->members, NULL).members & neb__bit(s->self);
    bool is = st.roster.members & neb__bit(s->self);
    if (was && !is) removed(s); /* a site that is not admitted yet was never a member */
}

void neb__session_heed_chain(neb_session *s)
{
    if (s->core && !(neb__members_present(&s->members) & neb__bit(s->self))) removed(s);
}

void neb__session_do(neb_session *s, const struct neb_action *a)
{
    switch (a->type) {
    case NEB_ACT_SEND: neb__session_reach(s, a->site, NEB_MSG_FRAME, a->bytes, a->length); break;
    case NEB_ACT_WRITE: do_write(s, a); break;
    case NEB_ACT_CAPTURE: neb__session_want_capture(s, a); break;
    case NEB_ACT_PUSH: neb__session_push(s, a->site, &a->hash, false); break;
    case NEB_ACT_FETCH:
        if (a->site == NEB_NO_SITE)
            neb__session_look_for(s, &a->hash);
        else
            neb__session_send(s, a->site, NEB_CONTROL, NEB_MSG_GET, a->hash.b, NEB_HASH_SIZE);
        break;
    case NEB_ACT_APPLY: neb__session_apply(s, a); break;
    case NEB_ACT_ROOT: do_root(s, a); break;
    case NEB_ACT_DISCARD: do_discard(s, a); break;
    case NEB_ACT_SETTLE: do_settle(s, a); break;
    case NEB_ACT_FETCH_CELL: neb__session_ask_cell(s, a->site, a->cell); break;
    case NEB_ACT_INSTALL: neb__session_install(s, a); break;
    case NEB_ACT_PAUSE: set_paused(s, true); break;
    case NEB_ACT_RESUME: set_paused(s, false); break;
    case NEB_ACT_ENDED: end_here(s); break;
    case NEB_ACT_HALT: halt(s, a); break;
    case NEB_ACT_NOTE: neb__info("%s", a->text); break;
    case NEB_ACT_REFUSED: neb__session_refused(s, a->site, NEB_QUOTA_WANTED, a->count); break;
    case NEB_ACT_DOUBT: neb__session_refused(s, a->site, NEB_QUOTA_CLAIMS, a->count); break;
    case NEB_ACT_GUILTY: convicted(s, a); break;
    case NEB_ACT_CERTIFICATE: keep_certificate(s, a); break;
    case NEB_ACT_ROSTER: roster_changed(s); break;
    case NEB_ACT_OFFER: neb__sums_offer(s, a); break;
    case NEB_ACT_REVEAL: neb__sums_reveal(s, a->index); break;
    case NEB_ACT_BUDGET: break;  /* publish() takes it from the status */
    case NEB_ACT_COMBINE: break; /* owners are not asked for: cfg.owners is false */
    }
}
