/* greeting.c: what a site does before it takes part, and what others then remember of it.
 *
 * A site that starts asks the others before it votes. If enough sites answer to meet every
 * quorum it may have been part of, it takes a new lapse number and the best log, theirs or its own.
 * Acknowledgements and votes given under an older lapse no longer count, so a forgotten promise is harmless.
 * If too few answer in time, its disk is undamaged, and nobody remembers more of it than it does itself, it
 * trusts its disk. An empty disk is trusted only while nobody has known this site before.
 *
 * That a site forgot something needs proof where it has a log to stand by: a signature of the site itself (a lapse, a statement). An
 * empty disk has none, so anybody's word is enough to doubt it, and a certificate or a record that has come is proof. The member that
 * remembers may be the only one in reach, and may have lost the certificate in a crash: whoever did not believe it would vote twice.
 * A liar can say it, too. So a doubt without proof ends where enough voters have promised nothing themselves (nobody_began()). */
#include "round/core.h"
#include "base/mutant.h"
#include "base/rng.h"

static void greet_send(struct neb_round *r)
{
    struct neb_round_frame f = {.type = NEB_ROUND_FRAME_HELLO,
                                .nonce = r->greet_nonce,
                                .phase = (uint8_t)r->greet_phase,
                                .number = r->greet_lapse,
                                .normal = r->normal,
                                .head = r->head,
                                .start = r->incarnation};
    if (r->greet_phase == 2) memcpy(f.signature, r->greet_signature, NEB_SEAL_SIZE);
    for (unsigned i = 0; i < NEB_SITES_MAX; i++)
        if (i != r->self && (r->roster.members & neb__bit(i))) neb__core_send(r, i, &f);
    r->greet_at = r->now + r->cfg.ping_ms / 2;
}

static void greet_phase(struct neb_round *r, int phase)
{
    r->greet_phase = phase;
    r->greeted = 0;
    r->greet_nonce = neb__mix64(r->cfg.seed ^ ++r->greetings); /* no older answer fits */
    r->best.view = r->best.normal = r->best.head = 0;
    r->best.unforced = false;
    r->best.site = NEB_NO_SITE;
    greet_send(r);
}

void neb__view_greet(struct neb_round *r)
{
    r->state = NEB_ROUND_BOOT;
    r->greet_any = 0;
    r->ask_phase = 0;
    r->leader = NEB_NO_SITE;
    r->greet_end = r->now + r->cfg.greet_ms;
    greet_phase(r, 1);
}

/* The number of this life's first update: 16 bits lapse, 16 bits incarnation, 32 bits counter. A lapse that is new makes it new.
 * A disk that is trusted may be an old copy, whose next life has been lived: a site that only made updates and promised nothing
 * left nobody a signature to be reminded by. So there the counter begins anywhere in its lower half. */
static uint64_t first_number(const struct neb_round *r, bool new_lapse)
{
    uint64_t count = new_lapse || NEB_MUTANT(count_from_one) ? 1 : 1 + (neb__mix64(r->cfg.seed ^ 0x6b) >> 33);
    return (uint64_t)r->lapse[r->self] << 48 | (uint64_t)(r->incarnation & 0xffff) << 32 | count;
}

/* `lapse`: a number that enough others have stored; or, when the disk is trusted, the
 * highest one that others told of. */
static void greet_done(struct neb_round *r, uint32_t lapse)
{
    uint64_t view = r->best.view > r->view ? r->best.view : r->view;
    if (lapse > r->lapse[r->self]) neb__prepared_forget(r);
    if (lapse > r->lapse[r->self]) r->lapse[r->self] = lapse;
    if (lapse == r->greet_lapse && lapse > r->word[r->self].lapse) {
        r->word[r->self] = (struct neb_round_frame_word){.site = (uint8_t)r->self, .lapse = lapse};
        memcpy(r->word[r->self].signature, r->greet_signature, NEB_SEAL_SIZE);
        r->lapse_unsaved |= neb__bit(r->self);
    }
    uint64_t k = r->first_k = first_number(r, lapse && lapse == r->greet_lapse);
    if (NEB_MUTANT(reuse_sequence)) k = 1, r->next_k = 1;
    if (k > r->next_k) r->next_k = k;
    r->damaged = r->forgot = r->proven = r->begins = false;
    r->spoke = true;
    r->foreign = true; /* until its leader has been heard */
    r->fresh = lapse && lapse == r->greet_lapse;
    r->leader_head = UINT64_MAX;
    neb__view_follow(r, view);
    neb__view_campaign(r);
}

/* Whether the sites that answered meet every quorum this site may have been part of: of the roster in effect,
 * and of a change at the head of the log, which may be committed. */
static bool greeted_enough(const struct neb_round *r)
{
    const struct neb_record *last = r->head > r->commit ? r->log[r->head - 1].record : NULL;
    if (!neb__members_remembers(&r->roster, r->self, r->greeted)) return false;
    return !last || last->type != NEB_RECORD_ROSTER || last->roster.epoch <= r->roster.epoch ||
           neb__members_remembers(&last->roster, r->self, r->greeted);
}

/* Enough sites answered: take the best log if it is better than this site's. */
static void greet_enough(struct neb_round *r)
{
    if (r->greet_phase == 1) {
        r->greet_lapse = (r->greet_known > r->lapse[r->self] ? r->greet_known : r->lapse[r->self]) + 1;
        if (r->greet_lapse > neb__lapse_limit(&r->cfg.seal, r->self, false)) {
            neb__core_halt(r,
                           "the starts that this site's key is good for are used up, by 32,768 starts or by "
                           "somebody who has the key: give the site a new one (nebula-i site rekey)");
            return;
        }
        if (neb__lapse_sign(&r->cfg.genesis, &r->cfg.seal, r->self, r->greet_lapse, r->greet_signature) !=
                NEB_OK &&
            r->cfg.quorum != NEB_QUORUM_OLD)
            return;
        if (r->greet_end < r->now + r->cfg.greet_ms) r->greet_end = r->now + r->cfg.greet_ms;
        greet_phase(r, 2); /* a site that can get a new lapse need not trust its disk */
        return;
    }
    const bool own = neb__log_before_force(r, r->head);
    bool better = own != r->best.unforced
                      ? own
                      : r->best.normal > r->normal || (r->best.normal == r->normal && r->best.head > r->head);
    if (!better || r->best.site == NEB_NO_SITE) {
        greet_done(r, r->greet_lapse);
        return;
    }
    r->greet_phase = 3;
    r->sync_from = r->best.site;
    r->sync_index = r->best.head;
    r->sync_hash = r->best.hash;
    r->sync_normal = r->best.normal;
    r->sync_at = 0;
}

static void hello(struct neb_round *r, unsigned from, const struct neb_round_frame *f)
{
    struct neb_core_peer *p = &r->peer[from];
    struct neb_core_promise mine;
    bool stable = neb__log_acked(r, &mine);
    if (f->phase == 2 && f->number > r->lapse[from] &&
        !neb__lapse_take(r, from, (uint32_t)f->number, f->signature) && r->cfg.quorum == NEB_QUORUM_OLD)
        r->lapse[from] = (uint32_t)f->number;
    if (!stable || (f->phase == 2 && r->durable.lapse[from] < f->number)) {
        p->hello_nonce = f->nonce; /* answered once it is durable */
        p->hello_lapse = f->phase == 2 ? (uint32_t)f->number : 0;
        return;
    }
    struct neb_round_frame a = {.type = NEB_ROUND_FRAME_HELLO_OK, .nonce = f->nonce, .phase = f->phase};
    a.flags = (uint8_t)((r->damaged || r->forgot ? 0 : NEB_FLAG_INTACT) | (p->forgot ? NEB_FLAG_FORGOT : 0));
    a.normal = mine.normal;
    if (neb__log_before_force(r, mine.head)) a.flags |= NEB_FLAG_UNFORCED;
    a.head = mine.head;
    a.hash = *neb__log_hash(r, mine.head);
    a.number = r->durable.lapse[from]; /* a number in memory only would be forgotten in a crash */
    if (r->word_durable[from].lapse == a.number)
        memcpy(a.signature, r->word_durable[from].signature, NEB_SEAL_SIZE);
    memset(p->knows, 0, sizeof p->knows);
    neb__lapses_tell(r, from, &a);
    p->hello_nonce = 0;
    neb__core_send(r, from, &a);
}

/* An empty disk belongs to a first start, or it was lost. It was lost if others know a lapse number of this
 * site although it has asked for none, or if there is a view that cannot exist without this site's vote. */
static bool lost(const struct neb_round *r, const struct neb_round_frame *f, bool own)
{
    const struct neb_members *first = &r->cfg.roster;
    bool given = own && f->number && !r->lapse[r->self];
    bool voted = f->normal && !neb__members_has_quorum(first, first->voters & ~neb__bit(r->self));
    return r->empty && f->phase == 1 && !r->greet_lapse && (given || voted) && !NEB_MUTANT(trust_empty_disk);
}

/* Others know a lapse of this site or say that its disk was lost, or it was killed in its first greeting. If enough voters to meet every
 * quorum that this site may have been part of have promised nothing themselves, there was no such quorum. (One of them may have
 * lost its disk, too: two at a time are more than is promised.) Whoever can show that the run has begun has the time of a greeting
 * for it. A new lapse is needed all the same, which makes void what this site may have said. */
static bool nobody_began(const struct neb_round *r)
{
    bool known = r->proven || r->commit || r->head || r->cfg.quorum == NEB_QUORUM_OLD;
    return r->empty && !known && (r->begins || r->now >= r->greet_end) && !NEB_MUTANT(believe_anybody) &&
           neb__members_remembers(&r->roster, r->self, r->blank);
}

/* Whether this site did give itself the number that a peer says it had. */
static bool own_lapse(const struct neb_round *r, const struct neb_round_frame *f)
{
    uint32_t lapse = (uint32_t)f->number;
    return r->cfg.quorum == NEB_QUORUM_OLD || lapse <= r->lapse[r->self] ||
           (r->greet_lapse && lapse <= r->greet_lapse) ||
           neb__lapse_genuine(&r->cfg.genesis, &r->cfg.seal, r->self, lapse, f->signature);
}

void neb__view_greet_answered(struct neb_round *r, unsigned from, const struct neb_round_frame *f)
{
    if (r->state != NEB_ROUND_BOOT || f->nonce != r->greet_nonce || f->phase != r->greet_phase) return;
    /* Nobody signs this flag, so it counts only for an empty disk, which has no promise to stand by. */
    bool doubted = r->empty && !NEB_MUTANT(trust_empty_disk) && !NEB_MUTANT(demand_proof);
    bool word_counts = doubted || r->cfg.quorum == NEB_QUORUM_OLD;
    if ((f->flags & NEB_FLAG_FORGOT) && word_counts && !NEB_MUTANT(vote_after_rollback)) r->forgot = true;
    bool own = own_lapse(r, f);
    if (lost(r, f, own)) r->forgot = true;
    neb__lapses_learn(r, from, f); /* a lost disk knew them: they are known again before this site counts */
    if (own && f->number > r->greet_known && f->phase == 1) r->greet_known = (uint32_t)f->number;
    if (!(f->flags & NEB_FLAG_INTACT) || r->now < r->peer[from].unbacked_until) return;
    if (f->commit > r->commit) neb__log_ask(r, from, r->commit + 1, false);
    if (f->epoch > r->roster.epoch)
        return; /* first this site learns its roster: until then it cannot tell which log is better */
    r->greeted |= neb__bit(from);
    r->greet_any |= neb__bit(from);
    if (f->view > r->best.view) r->best.view = f->view;
    const bool unforced = f->epoch < r->forced_epoch || (f->flags & NEB_FLAG_UNFORCED);
    bool better = unforced != r->best.unforced
                      ? r->best.unforced
                      : f->normal > r->best.normal || (f->normal == r->best.normal && f->head > r->best.head);
    if (better || r->best.site == NEB_NO_SITE) {
        r->best.unforced = unforced;
        r->best.normal = f->normal;
        r->best.head = f->head;
        r->best.hash = f->hash;
        r->best.site = (uint16_t)from;
    }
    if (r->greet_phase < 3 && greeted_enough(r)) greet_enough(r);
}

/* The site did not give the log that it said it has: for a while its word for it does not count. An honest site may have started
 * again since, or follow another leader; a liar does it every time. */
void neb__view_greet_not_backed(struct neb_round *r, unsigned site)
{
    if (site >= NEB_SITES_MAX || site == r->self) return;
    struct neb_core_peer *p = &r->peer[site];
    p->unbacked_until = r->now + (r->cfg.elect_ms << (p->unbacked < 3 ? p->unbacked : 3));
    p->unbacked++;
}

/* Whether the site may have taken part: a record here names an update of it, or there are records, which it may have acknowledged
 * as a voter. If it greets without any record or lapse, its disk may have been lost. (At a first start it then needs as many
 * answers as after a loss. Sites that began without a lapse and were restarted since have nothing else to tell by.) */
static bool took_part(const struct neb_round *r, unsigned site)
{
    if (r->commit && (r->roster.voters & neb__bit(site))) return true;
    for (uint32_t c = 0; c < r->cfg.cells; c++)
        if (r->lastk[c * NEB_SITES_MAX + site] || (r->rekeyed & neb__bit(site))) return true;
    for (uint64_t i = r->commit; i < r->head; i++)
        if (r->log[i].record->type == NEB_RECORD_ROUND && neb__record_of(r->log[i].record, site)) return true;
    return false;
}

/* A certificate that holds: the run has begun, and perhaps not without this site. What this process has heard and said itself
 * since it began with an empty disk it has not forgotten. */
void neb__view_greet_begun(struct neb_round *r)
{
    bool first = r->state == NEB_ROUND_BOOT && r->empty && !r->spoke;
    if (first && !NEB_MUTANT(trust_empty_disk)) r->forgot = r->proven = true;
}

void neb__view_greet_tick(struct neb_round *r)
{
    bool alone = !(r->roster.members & ~neb__bit(r->self));
    if (r->empty && took_part(r, r->self)) neb__view_greet_begun(r); /* by the records that have come */
    if (r->forgot && nobody_began(r)) r->forgot = false, r->begins = true;
    bool trust = !r->damaged && !r->forgot && !r->begins &&
                 (r->now >= r->greet_end || alone || NEB_MUTANT(vote_after_rollback));
    if (trust && neb__core_quorum(r, r->greet_any | neb__bit(r->self))) {
        greet_done(r, r->greet_known);
        return;
    }
    if (r->greet_phase == 3) {
        if (r->now >= r->greet_end + 2 * r->cfg.greet_ms) {
            neb__view_greet_not_backed(r, r->sync_from);
            r->greet_end = r->now, greet_phase(r, 1);
        }
    } else if (r->now >= r->greet_at)
        greet_send(r);
}

/* The log that was asked for in the last phase. */
void neb__view_greet_tail(struct neb_round *r, unsigned from, const struct neb_round_frame *f)
{
    if (r->sync_normal > r->normal && !neb__autograph_backs(r, f, r->sync_normal)) return;
    const bool lower = neb__log_frame_forced(r, f, r->sync_index) < neb__log_forced(r, r->head);
    if (lower && neb__log_leads_to(r, f, r->sync_index, &r->sync_hash)) {
        greet_done(r, r->greet_lapse); /* this site's own is the better one: it has a later forced roster */
        return;
    }
    if (!neb__log_install(r, f, r->sync_index, &r->sync_hash, false)) return;
    r->peer[from].unbacked = 0;
    if (r->sync_normal > r->normal) r->normal = r->sync_normal;
    if (r->normal > r->view) r->view = r->normal; /* a greeting that says less would be absurd */
    if (greeted_enough(r)) {
        greet_done(r, r->greet_lapse);
        return;
    }
    /* The log told of another roster, and the answers are not enough for that one. */
    r->greet_end = r->now + r->cfg.greet_ms;
    greet_phase(r, 1);
}

/* ---- what is remembered of others ---------------------------------------------------------------------- */

/* The peer lives under a newer lapse. It may have begun with an empty disk, whose lives count from one, and
 * its older promises are void. */
static void new_lapse(struct neb_core_peer *p, uint32_t lapse, uint64_t life)
{
    p->lapse_seen = lapse;
    p->life = life;
    p->view_seen = p->head_seen = 0;
}

/* Whether a greeting shows that the sender's disk went back in time. Either it has promised more than it
 * says, or it begins a life that was heard of before under the same lapse (each start counts up on disk
 * before it says anything). A greeting names the lapse on the sender's disk. */
static bool went_back(struct neb_core_peer *p, const struct neb_round_frame *f)
{
    p->greeted = f->start;
    if (f->lapse > p->lapse_seen) {
        new_lapse(p, f->lapse, f->start);
        p->spoke = false;
        return false;
    }
    bool again = f->lapse < p->lapse_seen || f->start < p->life || (f->start == p->life && p->spoke);
    if (f->start > p->life) p->life = f->start, p->spoke = false;
    return again || p->view_seen > f->view || (p->view_seen == f->view && p->head_seen > f->head);
}

/* Remembers the promises that a peer's frame shows. A leader's view is on its disk before it leads, a
 * voter's before it votes. A report acknowledges something only with its flag: without it, the view
 * it names may be in memory only. */
void neb__view_greet_remember(struct neb_core_peer *p, const struct neb_round_frame *f)
{
    bool vote = f->type == NEB_ROUND_FRAME_VOTE,
         ack = f->type == NEB_ROUND_FRAME_REPORT && (f->flags & NEB_FLAG_NORMAL);
    uint64_t view = vote ? f->number : f->view;
    if (!vote && !ack && f->type != NEB_ROUND_FRAME_PING) return;
    p->spoke = true;
    p->greets = false;
    if (f->lapse > p->lapse_seen) new_lapse(p, f->lapse, p->greeted < p->life ? p->greeted : p->life);
    if (view > p->view_seen) p->view_seen = view, p->head_seen = 0;
    if (ack && view == p->view_seen && f->head > p->head_seen) p->head_seen = f->head;
}

/* Whether the sender has joined a view: before that it has promised nothing. */
void neb__view_greet_blank(struct neb_round *r, unsigned from, const struct neb_round_frame *f)
{
    if (f->view || f->commit)
        r->blank &= ~neb__bit(from);
    else
        r->blank |= neb__bit(from);
}

/* Shows a site with an empty disk that the run has begun: by the first certificate there is, because the site knows the first
 * roster only. */
static void show_begin(struct neb_round *r, unsigned to)
{
    struct neb_round_frame f = {.type = NEB_ROUND_FRAME_GUILT, .prepared = r->kepts ? r->kept[0] : r->newest};
    if (f.prepared.n) neb__core_send(r, to, &f);
}

/* A site greets. */
void neb__view_greet_asked(struct neb_round *r, unsigned from, const struct neb_round_frame *f)
{
    struct neb_core_peer *p = &r->peer[from];
    const bool blank = !f->lapse && !f->normal && !f->head;
    p->forgot = went_back(p, f) || (blank && took_part(r, from));
    p->odd = p->in_view = false;
    p->greets = true;
    for (size_t i = 0; i < r->updates; i++) /* it will report the updates it has now */
        r->update[i].have &= ~neb__bit(from);
    neb__guilt_remind(r, from, f);
    if (blank && took_part(r, from)) show_begin(r, from);
    hello(r, from, f);
}

/* Answers that had to wait for the disk. */
void neb__view_greet_durable(struct neb_round *r)
{
    for (unsigned i = 0; i < NEB_SITES_MAX; i++) {
        struct neb_core_peer *p = &r->peer[i];
        struct neb_round_frame f = {
            .nonce = p->hello_nonce, .number = p->hello_lapse, .phase = p->hello_lapse ? 2 : 1};
        if (p->hello_nonce) hello(r, i, &f);
    }
}
