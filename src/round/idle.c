/* idle.c: leaders that are there and commit nothing, or nothing of use.
 *
 * A leader that answers and proposes nothing, because it lies or because something in it is broken, would keep its place for
 * ever: everybody hears it. So each voter watches whether the log gets on while there is something to commit: a record that
 * waits for its quorum, an update that a record could name, the last record of a run that ends, the leader's own log,
 * which it does not show, or a committed record that it keeps back. If nothing is committed for long, the voter no longer counts as hearing a leader. It asks the
 * others, and answers them when they ask, and does not vote for that site again.
 *
 * Voters judge on their own, at different times, and a quorum of them must have judged at one time. So a judgement outlives the
 * leader's next election, which a liar could win as often as it likes, and lasts six times as long as it took. Voters that
 * judge anew again and again are without a judgement for a seventh of the time each: seven voters at most, so there is a moment at
 * which all of those that a quorum needs have judged. It ends early when something is committed or another site leads.
 *
 * How long is long depends on the run: a round over thin lines may take minutes. The limit is at least twice the longest time
 * between two commits of late, and at most three times the one that a run begins with. A wrong judgement costs an election.
 *
 * A leader of secure sums may also end one attempt after the other in VOID: records are committed, and no sum comes. So a leader under
 * which several attempts of a fragment ended so, without a RESULT of anybody's between them, is judged, too. Voters count in the same log, so
 * they judge at about the same time. Commits do not end this judgement, or the liar could come back at once: only time does. Drop-outs
 * make honest leaders look the same. Judged sites therefore always leave a quorum of others; if they would not, all but the last are forgiven.
 * A record's leader is that of its view, since voters take no other record from a leader (neb__log_of_view()). The certificate that covers
 * it may be a later leader's, who found the record in its log, or shows it to a site that was kept in the dark. */
#include "round/core.h"
#include "base/mutant.h"

#include <string.h>

enum {
    JUDGED = 6, /* times as long as a judgement takes, it lasts */
    VOIDS = 4   /* attempts in a row; a liar that makes one less gives a RESULT now and then */
};

static bool could_be_named(const struct neb_round *r, const struct neb_core_update *p)
{
    const struct neb_update_header *h = &p->header;
    if (!p->held || p->used || p->outdated || h->c1 > r->cfg.cells || h->site >= NEB_SITES_MAX) return false;
    if (h->kind != (r->cfg.secure ? NEB_UPDATE_MASKED : NEB_UPDATE_DELTA)) return false;
    if (!(r->roster.trains & neb__bit(h->site))) return false;
    for (uint32_t c = h->c0; c < h->c1; c++) {
        uint64_t v = r->cell[c].v_log;
        if (h->b > v || v > h->b + r->cfg.staleness || neb__log_counted(r, c, h->site, h->k, h->b))
            return false;
    }
    return true;
}

/* A rule that leaves out what differs most needs several sites' updates of a fragment: until then a leader rightly waits. */
static bool record_waits(const struct neb_round *r, uint32_t first)
{
    uint64_t sites = 0;
    for (size_t i = 0; i < r->updates; i++)
        if (r->update[i].header.c0 == first && could_be_named(r, &r->update[i]))
            sites |= neb__bit(r->update[i].header.site);
    return sites && __builtin_popcountll(sites) >= neb__lead_enough(r);
}

static bool work_waits(const struct neb_round *r)
{
    if (r->ended) return false;
    if (r->state == NEB_ROUND_SYNC || r->head > r->commit || r->leader_commit != r->commit || r->ending)
        return true;
    if (neb__sum_waits(r)) return true;
    for (uint32_t f = 0; f < r->cfg.fragments; f++)
        if (record_waits(r, neb__core_fragment_first(r, f))) return true;
    return false;
}

int64_t neb__idle_patience(const struct neb_round *r)
{
    int64_t usual = 2 * r->commit_gap > r->cfg.idle_ms ? 2 * r->commit_gap : r->cfg.idle_ms;
    return usual < 3 * r->cfg.idle_ms ? usual : 3 * r->cfg.idle_ms;
}

/* A leader that is silent is another matter: elections deal with it. */
static bool heard(const struct neb_round *r)
{
    bool follows = r->state == NEB_ROUND_FOLLOW || r->state == NEB_ROUND_SYNC;
    return follows && r->leader != NEB_NO_SITE && r->now - r->leader_heard < r->cfg.elect_ms;
}

/* The leader has committed more and does not give it: others have it, too. */
static void ask_others(struct neb_round *r)
{
    if (r->leader_commit <= r->commit) return;
    for (unsigned i = 0; i < NEB_SITES_MAX; i++)
        if (i != r->leader && (r->roster.members & neb__bit(i))) neb__log_ask(r, i, r->commit + 1, true);
}

/* Time counts while the leader is heard. A leader that falls silent for a moment, or has itself elected once more, gains nothing:
 * only a commit, another leader, or nothing to commit begins the count anew; so does the end of a judgement. */
static void count_time(struct neb_round *r)
{
    int64_t passed = r->now - r->idle_at;
    if (passed > r->cfg.elect_ms) passed = r->cfg.elect_ms; /* this process slept */
    r->idle_at = r->now;
    bool there = heard(r), over = r->idle && r->now >= r->idle_until;
    bool other = r->state == NEB_ROUND_LEAD || (there && r->leader != r->idle_leader);
    if (other || over || (there && !work_waits(r)))
        r->busy_ms = 0, r->idle = false;
    else if (there)
        r->busy_ms += passed;
    if (there) r->idle_leader = r->leader;
}

static bool is_judged_for_voids(const struct neb_round *r, unsigned site)
{
    return site < NEB_SITES_MAX && r->now < r->void_until[site];
}

static void judge_for_voids(struct neb_round *r, unsigned site)
{
    uint64_t others = r->roster.voters & ~neb__bit(site), left = others;
    if (!neb__core_quorum(r, others) || NEB_MUTANT(void_for_ever)) return; /* nobody could take its place */
    for (unsigned i = 0; i < NEB_SITES_MAX; i++)
        if (is_judged_for_voids(r, i)) left &= ~neb__bit(i);
    if (!neb__core_quorum(r, left)) memset(r->void_until, 0, sizeof r->void_until);
    r->void_until[site] = r->now + JUDGED * neb__idle_patience(r);
    if (!heard(r) || r->leader != site) return;
    neb__core_note(r, "the leading site ends one secure sum after the other without a result; looking for "
                      "another one to lead");
    r->elect_at = r->now;
}

static void count_end(struct neb_round *r, const struct neb_record *rec)
{
    unsigned by = neb__view_leader_of(rec->view);
    struct neb_core_sum *s = neb__record_has_cells(rec) ? neb__sum_of(r, rec->c0) : NULL;
    bool empty = rec->type == NEB_RECORD_VOID || neb__record_is_void(rec);
    if (s && rec->type == NEB_RECORD_ROUND && !empty) memset(s->voids, 0, sizeof s->voids);
    if (s && empty && by < NEB_SITES_MAX && s->voids[by] < VOIDS) s->voids[by]++;
}

/* Counts the ends of attempts among the records that are newly committed. */
static void count_voids(struct neb_round *r)
{
    for (uint64_t i = r->idle_commit; i < r->commit; i++) count_end(r, r->log[i].record);
    for (uint32_t f = 0; r->sum && f < r->cfg.fragments; f++)
        for (unsigned by = 0; by < NEB_SITES_MAX; by++) {
            if (r->sum[f].voids[by] < VOIDS) continue;
            r->sum[f].voids[by] = 0;
            judge_for_voids(r, by);
        }
}

void neb__idle_tick(struct neb_round *r)
{
    if (r->commit != r->idle_commit) {
        int64_t took = r->busy_ms;
        if (r->idle_commit) count_voids(r);
        if (r->idle_commit) r->commit_gap = took > r->commit_gap * 7 / 8 ? took : r->commit_gap * 7 / 8;
        r->idle_commit = r->commit;
        r->busy_ms = 0;
        r->idle = false;
    }
    count_time(r);
    if (r->idle) ask_others(r);
    if (r->idle || r->busy_ms < neb__idle_patience(r) || NEB_MUTANT(keep_idle)) return;
    neb__core_note(
        r, "the leading site commits nothing although there are updates; looking for another one to lead");
    r->idle = true;
    r->idle_until =
        r->now + (NEB_MUTANT(judge_briefly) ? 4 * r->cfg.elect_ms : JUDGED * neb__idle_patience(r));
    r->elect_at = r->now;
}

bool neb__idle_leader(const struct neb_round *r, unsigned site)
{
    return (r->idle && site == r->idle_leader) || is_judged_for_voids(r, site);
}
