/* autograph.c: leaders sign the logs of their views.
 *
 * Only its leader writes in a view. If nobody could tell what it wrote, a leader could give two sites two records at one index,
 * and a certificate of each, from two views, would name nobody who lied. So a leader shows its own signature of each record, once
 * that is on its disk, and a voter takes a record from it only with that: its autograph. The newest autograph of each view is on
 * disk before the site acknowledges the record. It goes with a vote for the next view. If two voters have two logs of one view,
 * the candidate sees both autographs, and their author is convicted (proof.c). If two histories come to light later, everybody
 * shows what it has kept. */
#include "round/core.h"
#include "base/mutant.h"

enum { FORGED = 4 }; /* signatures of a frame that may be wrong before the others are not looked at */

bool neb__autograph_needed(const struct neb_round *r)
{
    return r->cfg.quorum != NEB_QUORUM_OLD && !NEB_MUTANT(trust_records);
}

/* The leader's signature in the frame for its last record, which has this hash; NULL: none. */
const struct neb_said *neb__autograph_of(const struct neb_round *r, const struct neb_round_frame *f,
                                         uint64_t last, const struct neb_hash *hash)
{
    for (int i = 0; i < f->saids; i++) {
        const struct neb_said *s = &f->said[i];
        if (s->kind == NEB_SAID_HOLDS && s->site == f->from && s->view == f->view && s->index == last &&
            s->epoch == r->roster.epoch && s->site == neb__view_leader_of(s->view) &&
            neb__hash_equal(&s->hash, hash) && neb__said_genuine(s, &r->cfg.genesis, &r->cfg.seal))
            return s;
    }
    return NULL;
}

/* The statement was checked. One is kept of each view: a later one contains what an earlier one says. That of the newest view is
 * the note of every write; the last one of a view goes into the ledger when there is one of another view. */
void neb__autograph_keep(struct neb_round *r, const struct neb_said *s)
{
    unsigned at = r->autographs % AUTOGRAPHS;
    const unsigned newest = (r->autographs + AUTOGRAPHS - 1) % AUTOGRAPHS;
    bool same = r->autographs && r->autograph[newest].view == s->view && r->autograph[newest].site == s->site;
    if (same && r->autograph[newest].kind == s->kind && r->autograph[newest].index == s->index) return;
    if (same)
        at = newest;
    else if (r->autographs++ && r->booted)
        r->autograph_unsaved |= (uint32_t)1 << newest;
    r->autograph[at] = *s;
}

static bool by_leader(const struct neb_said *s)
{
    return (s->kind == NEB_SAID_HOLDS || s->kind == NEB_SAID_STARTS) &&
           s->site == neb__view_leader_of(s->view);
}

/* Only voters lead views: others would fill with views of their own what is kept of leaders. */
static bool genuine(const struct neb_round *r, const struct neb_said *s)
{
    struct neb_members m;
    return neb__roster_of(r, s->epoch, &m) && (m.voters & neb__bit(s->site)) &&
           neb__said_genuine(s, &r->cfg.genesis, &r->cfg.seal);
}

/* This site's log is of view `normal`: its leader's signature goes with the vote. */
void neb__autograph_vote(const struct neb_round *r, uint64_t normal, struct neb_round_frame *vote)
{
    for (unsigned i = 0; i < AUTOGRAPHS; i++)
        if (r->autograph[i].kind && r->autograph[i].view == normal) {
            vote->said[vote->saids++] = r->autograph[i];
            return;
        }
}

/* … and with the log that is given to a site that starts. A candidate that took the best log has the signature from a vote. */
void neb__autograph_log(const struct neb_round *r, struct neb_round_frame *log)
{
    const int before = log->saids;
    if (r->normal) neb__autograph_vote(r, r->normal, log);
    for (unsigned i = 0; r->normal && log->saids == before && i < VOTES_KEPT; i++)
        if (r->heard_vote[i].view == r->normal && by_leader(&r->heard_vote[i]))
            log->said[log->saids++] = r->heard_vote[i];
}

/* Whether the log in the frame may be one of the view `normal`: its leader has signed it, or a certificate shows that a quorum was in that
 * view or above. Anybody could name a view. */
bool neb__autograph_backs(struct neb_round *r, const struct neb_round_frame *f, uint64_t normal)
{
    struct neb_members m;
    if (!neb__autograph_needed(r) || !normal || (r->newest.n && r->newest.view >= normal)) return true;
    if (f->proof.n && f->proof.view >= normal && neb__roster_of(r, f->proof.epoch, &m) &&
        neb__cert_valid_under(r, &f->proof, &m))
        return true;
    for (int i = 0, forged = 0; i < f->saids && forged < FORGED; i++) {
        const struct neb_said *s = &f->said[i];
        if (s->view != normal || !by_leader(s)) continue;
        if (genuine(r, s)) {
            neb__guilt_vote(r, s, false);
            return true;
        }
        forged++; /* each takes time to check */
    }
    return false;
}

/* A voter shows the autograph of its log. */
void neb__autograph_heard(struct neb_round *r, const struct neb_said *s, bool shown)
{
    if (!by_leader(s) || !genuine(r, s)) return;
    (void)neb__guilt_compare(r, s);
    neb__guilt_vote(r, s, shown);
}

/* Two histories have come to light: the statements that are kept of leaders, newest first, and of voters go to everybody. One of
 * them may contradict what another site has. */
void neb__autograph_show(const struct neb_round *r, struct neb_round_frame *f)
{
    enum { SHOWN = NEB_ROUND_FRAME_SAID - VOTES_KEPT };
    for (unsigned i = 1; i <= SHOWN && i <= r->autographs; i++)
        f->said[f->saids++] = r->autograph[(r->autographs - i) % AUTOGRAPHS];
    for (unsigned i = 0; i < VOTES_KEPT; i++)
        if (r->heard_vote[i].kind) f->said[f->saids++] = r->heard_vote[i];
}

void neb__autograph_shown(struct neb_round *r, const struct neb_round_frame *f)
{
    for (int i = 0; i < f->saids; i++)
        if (f->said[i].kind == NEB_SAID_VOTES)
            neb__guilt_vote_shown(r, &f->said[i]);
        else
            neb__autograph_heard(r, &f->said[i], true);
}
