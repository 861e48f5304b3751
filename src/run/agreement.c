/* agreement.c: whether the sites of a run train the same model by the same job, and which of them stops if not.
 *
 * Before the first record nobody can know who is right: a difference stops both sites, and each names the other. Once
 * records are committed, one site with an edited job file, or one that lies, must not stop the rest. So a site keeps a
 * hash of the model and job with which it last committed, and goes on
 *
 *     if it has committed with others since it started, or
 *     if it starts again with what it kept, and no quorum of voters says otherwise, or
 *     if the voters that do not differ can still be a quorum.
 *
 * It then does without the site that differs: messages of rounds from a site with another model are dropped until its
 * link comes up anew. */
#include "run/agreement.h"
#include "base/log.h"
#include "run/job_facts.h"
#include "run/session.h"

#include <stdio.h>
#include <string.h>

static const char kept_as[] = "agreed";

static neb_status own_hash(const neb_session *s, struct neb_hash *out)
{
    struct neb_hash facts;
    uint8_t all[(NEB_AGREED + 1) * NEB_HASH_SIZE];
    NEB_TRY(neb__facts_hash(s, &facts));
    memcpy(all, s->model, sizeof s->model);
    memcpy(all + sizeof s->model, facts.b, NEB_HASH_SIZE);
    return neb__hash(all, sizeof all, out);
}

void neb__agreement_load(neb_session *s)
{
    struct neb_buf kept;
    struct neb_hash own;
    neb__buf_init(&kept, 1024);
    bool there = neb__blob_load(&s->disk, kept_as, &kept) == NEB_OK && own_hash(s, &own) == NEB_OK;
    s->agreement.confirmed = there && kept.len == NEB_HASH_SIZE && !memcmp(kept.data, own.b, NEB_HASH_SIZE);
    s->agreement.saved = s->agreement.confirmed;
    neb__buf_free(&kept);
}

static bool has_committed(const neb_session *s)
{
    struct neb_round_status st;
    if (!s->core) return false;
    neb__round_status(s->core, &st);
    return st.commit > s->driver.found;
}

void neb__agreement_note(neb_session *s)
{
    struct neb_hash own;
    if (s->agreement.saved || !has_committed(s)) return;
    s->agreement.saved = true; /* tried once: without the file a restart is only more careful */
    if (own_hash(s, &own) != NEB_OK ||
        neb__blob_save(&s->disk, kept_as, own.b, NEB_HASH_SIZE, true) != NEB_OK)
        neb__warn("the agreement of the sites was not kept: %s", neb_last_error());
}

void neb__agreement_peer_up(neb_session *s, uint16_t peer)
{
    s->agreement.others &= ~neb__bit(peer);
    s->agreement.muted &= ~neb__bit(peer);
}

bool neb__agreement_mutes(const neb_session *s, uint16_t peer)
{
    return s->agreement.muted & neb__bit(peer);
}

/* `others` do not agree with this site. */
static bool must_stop(neb_session *s, uint64_t others)
{
    const struct neb_members roster = neb__members_roster(&s->members, NULL);
    if (!s->core || !s->driver.found) return true;
    if (neb__members_has_quorum(&roster, others)) return true;
    return !s->agreement.confirmed && !neb__members_has_quorum(&roster, roster.voters & ~others);
}

static void stop(neb_session *s, const char *why)
{
    pthread_mutex_lock(&s->lock);
    s->mismatch = NEB_ERR_CONFIG;
    pthread_mutex_unlock(&s->lock);
    neb__session_halt(s, why);
}

/* `going`: this site is not the one to stop. */
static void differs(neb_session *s, uint16_t peer, bool going, const char *why)
{
    s->agreement.others |= neb__bit(peer);
    if (!going && must_stop(s, s->agreement.others))
        stop(s, why);
    else if (neb__quota_count(s, peer, NEB_QUOTA_MODEL, 1))
        neb__warn("%s; this site goes on without it", why);
}

void neb__agreement_job(neb_session *s, uint16_t peer, const char *why)
{
    pthread_mutex_lock(&s->lock);
    bool begun = s->status.steps > 0;
    pthread_mutex_unlock(&s->lock);
    differs(s, peer, begun, why);
}

void neb__agreement_model(neb_session *s, const struct neb_item *i)
{
    static const char settings[] =
        "the job's names, the settings of the run (wan: fragments, tokens, outer_lr, "
        "outer_momentum) or versions";
    static const char *const what[NEB_AGREED] = {"the parameters' names or shapes",
                                                 "the initial values (seed or starting model)", settings};
    for (int k = 0; k < NEB_AGREED; k++) {
        if (i->size == NEB_AGREED * NEB_HASH_SIZE &&
            !memcmp(i->bytes + k * NEB_HASH_SIZE, s->model[k].b, NEB_HASH_SIZE))
            continue;
        char why[256], name[NEB_NAME_SIZE];
        neb__members_name(&s->members, i->peer, name);
        snprintf(why, sizeof why,
                 "site '%s' trains another model: %s differ; use the same job file and base model at "
                 "every site",
                 name, what[k]);
        s->agreement.muted |= neb__bit(i->peer);
        differs(s, i->peer, has_committed(s), why);
        if (!s->halted) neb__session_feed(s, &(struct neb_event){.type = NEB_EV_PEER_DOWN, .site = i->peer});
        return;
    }
}
