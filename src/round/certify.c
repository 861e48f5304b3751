/* certify.c: acknowledgements and certificates in the core: signing, collecting, keeping, believing.
 *
 * A site signs an acknowledgement of each record that is on its disk in the present view. The leader collects them and makes
 * a certificate of a quorum. Nobody is believed about a commit without one: a certificate for a record of this site's log
 * commits it and everything before it. It never leaps over a change of the roster, which needs a certificate of its own under
 * the roster before it. Under `byzantine` a first certificate only prepares a record, and the acknowledgements of that
 * certificate commit it.
 *
 * Some certificates stay in the ledger, so that each record is at most a chunk away from one that a peer can check; the newest
 * is always kept. */
#include "round/core.h"
#include "base/mutant.h"

enum {
    KEEP_EVERY = 16, /* records between two certificates in the ledger */
    FORGED = 4       /* signatures of a frame that may be wrong before the others are not looked at */
};

uint8_t neb__cert_kind(const struct neb_round *r)
{
    return neb__core_byzantine(r) ? NEB_SAID_PREPARED : NEB_SAID_HOLDS;
}

bool neb__core_quorum(const struct neb_round *r, uint64_t sites)
{
    return neb__quorum_has(&r->roster, r->cfg.quorum, sites);
}

/* ---- this site's own statements ------------------------------------------------------------------------ */

static void own_table(const struct neb_round *r, struct neb_lapse_table *t)
{
    t->n = 0;
    for (unsigned i = 0; i < NEB_SITES_MAX && t->n <= NEB_ROUND_VOTERS_MAX; i++) {
        uint32_t lapse = i == r->self ? r->lapse[i] : r->durable.lapse[i];
        if (!lapse || (i != r->self && !(r->roster.voters & neb__bit(i)))) continue;
        t->of[t->n].site = (uint8_t)i;
        t->of[t->n++].lapse = (uint16_t)lapse;
    }
}

static bool same_words(const struct neb_said *a, const struct neb_said *b)
{
    if (!neb__said_same_place(a, b) || a->normal != b->normal || a->life != b->life ||
        a->lapses.n != b->lapses.n || !neb__hash_equal(&a->more, &b->more))
        return false;
    for (int i = 0; i < a->lapses.n; i++)
        if (a->lapses.of[i].site != b->lapses.of[i].site || a->lapses.of[i].lapse != b->lapses.of[i].lapse)
            return false;
    return true;
}

/* Signs `s`, whose place is filled in, unless the same words were signed lately. */
bool neb__cert_say(struct neb_round *r, struct neb_said *s)
{
    s->site = (uint8_t)r->self;
    s->epoch = r->roster.epoch;
    s->life = r->incarnation;
    own_table(r, &s->lapses);
    for (int i = 0; i < SAID_KEPT; i++)
        if (r->said[i].kind && same_words(&r->said[i], s)) {
            *s = r->said[i];
            return true;
        }
    if (neb__said_sign(s, &r->cfg.genesis, &r->cfg.seal) != NEB_OK) return false;
    r->said[r->said_next++ % SAID_KEPT] = *s;
    return true;
}

static bool say_ack(struct neb_round *r, uint8_t kind, uint64_t index, struct neb_said *out)
{
    *out = (struct neb_said){
        .kind = kind, .view = r->view, .normal = r->view, .index = index, .hash = *neb__log_hash(r, index)};
    return neb__cert_say(r, out);
}

/* The last index of which this site may say so now; UINT64_MAX: of none. */
static uint64_t own_reach(const struct neb_round *r, uint8_t kind)
{
    struct neb_core_promise mine;
    if (!neb__log_acked(r, &mine) || !neb__view_joined(r)) return UINT64_MAX;
    if (kind == NEB_SAID_HOLDS) return mine.head;
    const struct neb_certificate *c = &r->prepared_durable;
    if (!c->n || c->view != r->view || c->index > mine.head) return UINT64_MAX;
    return neb__hash_equal(neb__log_hash(r, c->index), &c->hash) ? c->index : UINT64_MAX;
}

uint64_t neb__acks_reach(const struct neb_round *r)
{
    uint64_t reach = own_reach(r, NEB_SAID_HOLDS);
    return reach == UINT64_MAX ? 0 : reach;
}

bool neb__acks_own(struct neb_round *r, uint64_t index, struct neb_said *out)
{
    return index <= neb__acks_reach(r) && say_ack(r, NEB_SAID_HOLDS, index, out);
}

void neb__acks_report(struct neb_round *r, struct neb_round_frame *f)
{
    uint64_t low = r->commit < r->leader_commit ? r->commit : r->leader_commit;
    if (!r->leader_begun && r->start_index && low >= r->start_index) low = r->start_index - 1;
    for (uint8_t kind = NEB_SAID_HOLDS; kind <= neb__cert_kind(r); kind++) {
        uint64_t top = own_reach(r, kind);
        if (top == UINT64_MAX) continue;
        if (low >= top && r->leader_begun) continue; /* all of it is committed */
        uint64_t first = low + 1 < top ? low + 1 : top;
        if (top - first >= ACKS) first = top - ACKS + 1;
        if (!r->leader_begun && !r->start_index && first) /* the view began with an empty log */
            if (f->saids < NEB_ROUND_FRAME_SAID && say_ack(r, kind, 0, &f->said[f->saids])) f->saids++;
        for (uint64_t i = first; i <= top && f->saids < NEB_ROUND_FRAME_SAID; i++)
            if (say_ack(r, kind, i, &f->said[f->saids])) f->saids++;
    }
}

/* ---- the leader's collection --------------------------------------------------------------------------- */

static struct neb_said *slot(struct neb_said *acks, uint8_t kind, uint64_t index)
{
    return &acks[(kind == NEB_SAID_PREPARED ? ACKS : 0) + index % ACKS];
}

void neb__acks_heard(struct neb_round *r, unsigned from, const struct neb_round_frame *f)
{
    struct neb_core_peer *p = &r->peer[from];
    int forged = 0;
    for (int i = 0; i < f->saids && forged < FORGED; i++) {
        const struct neb_said *s = &f->said[i];
        if (s->site != from || (s->kind != NEB_SAID_HOLDS && s->kind != neb__cert_kind(r))) continue;
        if (p->acks && !neb__guilt_compare(r, s)) {
            forged++;
            continue;
        }
        if (s->epoch != r->roster.epoch || s->view != r->view || s->normal != s->view || s->index > r->head)
            continue;
        if (!neb__hash_equal(&s->hash, neb__log_hash(r, s->index))) continue;
        if (!p->acks) p->acks = NEB_NEW_ARRAY(struct neb_said, 2 * ACKS);
        if (!p->acks) {
            r->failed = NEB_ERR_NOMEM;
            return;
        }
        struct neb_said *at = slot(p->acks, s->kind, s->index);
        if (at->kind == s->kind && same_words(at, s) && !memcmp(at->signature, s->signature, NEB_SEAL_SIZE))
            continue;
        bool older = at->kind == s->kind && at->view == s->view && at->index >= s->index &&
                     neb__said_lapse(at, from) > neb__said_lapse(s, from);
        if (older) continue;
        if (NEB_MUTANT(trust_acks) || neb__said_genuine(s, &r->cfg.genesis, &r->cfg.seal))
            *at = *s;
        else
            forged++;
    }
    if (forged) neb__core_doubt(r, from);
}

/* Whether the statement shows a lapse of a voter that this site has no word of. It counts once the word is here. */
static bool ahead_of_us(const struct neb_round *r, const struct neb_said *s)
{
    for (int i = 0; i < s->lapses.n; i++)
        if (s->lapses.of[i].site != r->self && s->lapses.of[i].lapse > r->lapse[s->lapses.of[i].site] &&
            s->lapses.of[i].site != s->site)
            return true;
    return false;
}

static bool counts(const struct neb_round *r, unsigned site, uint8_t kind, uint64_t index,
                   struct neb_said **out)
{
    const struct neb_core_peer *p = &r->peer[site];
    struct neb_said *s = p->acks ? slot(p->acks, kind, index) : NULL;
    if (!s || s->kind != kind || s->index != index || s->view != r->view || s->epoch != r->roster.epoch ||
        p->odd)
        return false;
    if (!neb__hash_equal(&s->hash, neb__log_hash(r, index))) return false;
    if (neb__said_lapse(s, site) < r->lapse[site] || ahead_of_us(r, s)) return false;
    if (neb__said_lapse(s, r->self) > r->lapse[r->self]) return false;
    *out = s;
    return true;
}

uint64_t neb__acks_of(struct neb_round *r, uint8_t kind, uint64_t index)
{
    uint64_t reach = own_reach(r, kind), set = 0;
    struct neb_said *s;
    if (reach != UINT64_MAX && reach >= index) set = neb__bit(r->self);
    for (unsigned i = 0; i < NEB_SITES_MAX; i++)
        if (i != r->self && counts(r, i, kind, index, &s)) set |= neb__bit(i);
    return set;
}

/* The fewest that are a quorum, in site order. */
static bool assemble(struct neb_round *r, uint8_t kind, uint64_t index, struct neb_certificate *out)
{
    uint64_t set = neb__acks_of(r, kind, index) & r->roster.voters, taken = 0;
    out->n = 0;
    if (!index || !neb__core_quorum(r, set)) return false;
    for (unsigned i = 0; i < NEB_SITES_MAX; i++) {
        struct neb_said own, *s = &own;
        if (!(set & neb__bit(i)) || neb__core_quorum(r, taken)) continue;
        if (i == r->self ? !say_ack(r, kind, index, &own) : !counts(r, i, kind, index, &s)) return false;
        if (!neb__certificate_add(out, s)) return false;
        taken |= neb__bit(i);
    }
    return neb__core_quorum(r, taken);
}

/* A certificate of the present view from the acknowledgements here. */
bool neb__acks_certificate(struct neb_round *r, uint64_t index, struct neb_certificate *out)
{
    return assemble(r, neb__cert_kind(r), index, out);
}

/* … of the first phase. A site that is behind cannot use the newest one. */
bool neb__acks_prepared(struct neb_round *r, uint64_t index, struct neb_certificate *out)
{
    return assemble(r, NEB_SAID_HOLDS, index, out);
}

void neb__acks_prepare(struct neb_round *r)
{
    struct neb_certificate c;
    if (!neb__core_byzantine(r)) return;
    uint64_t low = r->prepared.view == r->view ? r->prepared.index : r->start_index ? r->start_index - 1 : 0;
    for (uint64_t i = r->head; i > low; i--)
        if (assemble(r, NEB_SAID_HOLDS, i, &c)) {
            r->prepared = c;
            return;
        }
}

/* ---- keeping ------------------------------------------------------------------------------------------- */

static bool worth_storing(const struct neb_round *r, const struct neb_certificate *c)
{
    uint64_t last = r->kepts ? r->kept[r->kepts - 1].index : 0;
    if (c->index <= last) return false;
    if (c->index >= last + KEEP_EVERY) return true;
    for (uint64_t i = last; i < c->index; i++) {
        const struct neb_record *rec = r->log[i].record;
        if (neb__record_is_change(rec) || rec->type == NEB_RECORD_END || rec->type == NEB_RECORD_FINAL)
            return true;
    }
    return false;
}

bool neb__cert_store(struct neb_round *r, const struct neb_certificate *c)
{
    if (r->kepts == r->kept_cap) {
        size_t cap = r->kept_cap ? 2 * r->kept_cap : 16;
        struct neb_certificate *p = neb__realloc(r->kept, cap * sizeof *p);
        if (!p) {
            r->failed = NEB_ERR_NOMEM;
            return false;
        }
        r->kept = p, r->kept_cap = cap;
    }
    r->kept[r->kepts++] = *c;
    return true;
}

/* The newest certificate was found on the disk, beside the ledger. If it belongs into the ledger, the process ended before it was
 * there: without it a site that is behind could never pass a change of the roster. */
void neb__cert_found(struct neb_round *r)
{
    if (r->newest.n && r->newest.index <= r->head && worth_storing(r, &r->newest))
        (void)neb__cert_store(r, &r->newest);
}

/* The record that it certifies is in the log here. */
void neb__cert_keep(struct neb_round *r, const struct neb_certificate *c)
{
    if (r->newest.n && c->index <= r->newest.index) return;
    r->newest = *c;
    if (worth_storing(r, c)) (void)neb__cert_store(r, c);
    struct neb_buf b;
    neb__buf_init(&b, NEB_CERTIFICATE_MAX);
    if (neb__certificate_put(c, &b) != NEB_OK) {
        r->failed = NEB_ERR_NOMEM;
        neb__buf_free(&b);
        return;
    }
    struct neb_action *a = neb__core_act(r, NEB_ACT_CERTIFICATE);
    a->bytes = b.data;
    a->length = b.len;
}

/* The last certificate here for a record in [first, last]; NULL: none. */
const struct neb_certificate *neb__cert_for(const struct neb_round *r, uint64_t first, uint64_t last)
{
    if (r->newest.n && r->newest.index <= last) return r->newest.index >= first ? &r->newest : NULL;
    for (size_t i = r->kepts; i > 0; i--)
        if (r->kept[i - 1].index <= last) return r->kept[i - 1].index >= first ? &r->kept[i - 1] : NULL;
    return NULL;
}

const struct neb_certificate *neb__cert_at(const struct neb_round *r, uint64_t index)
{
    const struct neb_certificate *c = neb__cert_for(r, index, index);
    return c && c->index == index ? c : NULL;
}

/* ---- believing ----------------------------------------------------------------------------------------- */

/* The roster of `epoch` by the committed log, or the one in effect. False: not known here. */
bool neb__roster_of(const struct neb_round *r, uint32_t epoch, struct neb_members *out)
{
    *out = r->roster;
    if (r->roster.epoch == epoch) return true;
    for (uint64_t i = r->commit; i > 0; i--) {
        const struct neb_record *rec = r->log[i - 1].record;
        if (!neb__record_is_change(rec) || rec->roster.epoch != epoch) continue;
        *out = rec->roster;
        return true;
    }
    *out = r->cfg.roster;
    return r->cfg.roster.epoch == epoch;
}

/* Whether the view may begin with a shorter log than the best of its votes, which has a roster forced in epoch `forced`. Until an
 * operator's roster is in the log its leaders cut records whose updates are gone, and sites that learn of the roster later must not
 * take them for liars. Under `byzantine` a prepared record does not tell what the log was: there the views up to that of the
 * roster's record count. */
bool neb__start_may_cut(const struct neb_round *r, const struct neb_said *start, uint32_t forced)
{
    const bool majority = !neb__core_byzantine(r), lacks = forced < start->epoch;
    if (r->forced) return !majority || lacks;
    for (uint64_t i = r->forced_index; i > 0; i--) {
        const struct neb_record *rec = r->log[i - 1].record;
        if (rec->type != NEB_RECORD_FORCED || rec->roster.epoch != start->epoch) continue;
        return majority ? lacks : i > r->commit || start->view <= rec->view;
    }
    return false;
}

bool neb__cert_valid_under(const struct neb_round *r, const struct neb_certificate *c,
                           const struct neb_members *m)
{
    return c->kind == neb__cert_kind(r) &&
           neb__certificate_valid(c, m, r->cfg.quorum, &r->cfg.genesis, &r->cfg.seal);
}

/* A forced roster that is not committed here, and that the operator has replaced since. */
static bool forced_ahead(const struct neb_round *r, uint32_t epoch, struct neb_members *out)
{
    for (uint64_t i = r->forced_index; i > r->commit; i--) {
        const struct neb_record *rec = r->log[i - 1].record;
        if (rec->type != NEB_RECORD_FORCED || rec->roster.epoch != epoch) continue;
        *out = rec->roster;
        return true;
    }
    return false;
}

bool neb__prepared_valid(const struct neb_round *r, const struct neb_certificate *c)
{
    struct neb_members m;
    return c->kind == NEB_SAID_HOLDS && (neb__roster_of(r, c->epoch, &m) || forced_ahead(r, c->epoch, &m)) &&
           neb__certificate_valid(c, &m, r->cfg.quorum, &r->cfg.genesis, &r->cfg.seal);
}

/* Whether an operator's order explains the forced roster of the record. */
bool neb__forced_genuine(const struct neb_round *r, const struct neb_record *rec)
{
    const struct neb_order *o = rec->order;
    return rec->type == NEB_RECORD_FORCED && o->signer == NEB_BY_OPERATOR &&
           neb__members_equal(&o->roster, &rec->roster) &&
           neb__order_genuine(o, &r->cfg.genesis, &r->cfg.seal,
                              neb__order_operators(r, rec->index <= r->commit ? rec->index : r->commit));
}

/* The roster under which a certificate for a record behind the last committed one must be signed. */
static bool roster_behind(const struct neb_round *r, const struct neb_certificate *c, struct neb_members *out)
{
    for (uint64_t i = c->index; i > r->commit; i--) {
        const struct neb_record *rec = r->log[i - 1].record;
        if (rec->type == NEB_RECORD_ROSTER && i < c->index && r->log[i].record->type != NEB_RECORD_FORCED)
            return false; /* it needs a certificate of its own */
        if (rec->type != NEB_RECORD_FORCED || rec->roster.epoch != c->epoch || !neb__forced_genuine(r, rec))
            continue;
        *out = rec->roster;
        return true;
    }
    *out = r->roster;
    if (c->epoch == out->epoch)
        return !neb__log_before_force(r, c->index); /* a forced roster commits nothing without its record */
    *out = neb__log_roster(r);
    return c->epoch == out->epoch;
}

/* Since the epoch of the certificate an operator has forced a roster, for the history that this site has. The operator has
 * decided, and who was left out must not stop the others with what they did not commit. */
static bool overruled(const struct neb_round *r, const struct neb_certificate *c)
{
    if (r->forced && r->force.roster.epoch > c->epoch) return true;
    for (uint64_t i = r->commit; i > 0; i--) {
        const struct neb_record *rec = r->log[i - 1].record;
        if (rec->type == NEB_RECORD_FORCED) return rec->roster.epoch > c->epoch; /* the newest of them */
    }
    return false;
}

/* A valid certificate contradicts a committed record of this site. */
void neb__cert_two_histories(struct neb_round *r, const struct neb_certificate *c)
{
    struct neb_members m;
    if (!neb__roster_of(r, c->epoch, &m) || !neb__cert_valid_under(r, c, &m) || overruled(r, c)) return;
    for (size_t i = 0; i < r->kepts; i++) neb__guilt_certificates(r, &r->kept[i], c);
    neb__guilt_certificates(r, &r->newest, c);
    for (int i = 0; i < c->n;
         i++) { /* who votes with less than it has acknowledged makes two histories, too */
        struct neb_said s;
        neb__certificate_said(c, i, &s);
        (void)neb__guilt_compare(r, &s);
    }
    /* others may have the vote, the acknowledgement or the autograph that shows who lied */
    neb__guilt_show(r, &r->newest);
    neb__guilt_show(r, c);
    neb__core_halt_by(
        r,
        "a quorum certified another record at an index that this site has committed, so there are two "
        "histories; ask the operators which roster is right (nebula-i adopt)",
        c);
}

static bool in_log(const struct neb_round *r, const struct neb_certificate *c)
{
    return c->index <= r->head && neb__hash_equal(neb__log_hash(r, c->index), &c->hash);
}

/* A valid certificate bears this site's own name, under its present lapse, for a record that it does not have. Nobody else
 * can make such a thing: the disk of this site went back in time. */
void neb__cert_remembers(struct neb_round *r, const struct neb_certificate *c)
{
    for (int i = 0; i < c->n; i++) {
        struct neb_said s;
        neb__certificate_said(c, i, &s);
        if (s.site == r->self && neb__said_lapse(&s, r->self) == r->lapse[r->self] && !in_log(r, c))
            r->forgets = true;
    }
}

bool neb__cert_take(struct neb_round *r, const struct neb_certificate *c)
{
    struct neb_members m;
    if (!c->n || c->kind != neb__cert_kind(r)) return false;
    if (c->index > r->head) {
        bool own = neb__certificate_sites(c) & neb__bit(r->self);
        if (own && c->epoch == r->roster.epoch && neb__cert_valid_under(r, c, &r->roster))
            neb__cert_remembers(r, c);
        return false;
    }
    bool same = neb__hash_equal(neb__log_hash(r, c->index), &c->hash);
    if (!same && c->index <= r->commit) neb__cert_two_histories(r, c);
    if (!same || (r->newest.n && c->index <= r->newest.index)) return false;
    if (c->index <= r->commit) {
        if (neb__roster_of(r, c->epoch, &m) && neb__cert_valid_under(r, c, &m)) neb__cert_keep(r, c);
        return false;
    }
    if (!roster_behind(r, c, &m) || !neb__cert_valid_under(r, c, &m)) return false;
    neb__log_commit_to(r, c->index);
    neb__cert_keep(r, c);
    return true;
}

/* A certificate of the first phase for the log here: this site may say that it has it once it is on disk. */
void neb__prepared_take(struct neb_round *r, const struct neb_certificate *c)
{
    if (!neb__core_byzantine(r) || !c->n || c->index > r->head || c->view > r->view || !neb__view_joined(r))
        return;
    if (r->prepared.n &&
        (c->view < r->prepared.view || (c->view == r->prepared.view && c->index <= r->prepared.index)))
        return;
    if (!neb__hash_equal(neb__log_hash(r, c->index), &c->hash) || !neb__prepared_valid(r, c)) return;
    r->prepared = *c;
}

/* Under a new lapse this site need not stand by a record that was replaced. Under the old one a vote without it would look
 * like a lie. */
void neb__prepared_forget(struct neb_round *r)
{
    if (r->prepared.n && !in_log(r, &r->prepared)) r->prepared.n = r->prepared_durable.n = 0;
}

/* Another log has taken the place of the prepared record: a certified one, or the one with which a view begins. The votes for
 * that view are a quorum's, and one of any quorum that committed the record would have shown it. So nobody committed it, and
 * this site stands by what the view begins with, `c`. Otherwise it would vote for a record that nobody has any more. */
void neb__prepared_replace(struct neb_round *r, const struct neb_certificate *c)
{
    if (!neb__core_byzantine(r) || !r->prepared.n || in_log(r, &r->prepared)) return;
    if (c->n && in_log(r, c) && neb__prepared_valid(r, c))
        r->prepared = *c;
    else
        r->prepared.n = r->prepared_durable.n = 0;
}

/* ---- lapses -------------------------------------------------------------------------------------------- */

/* Tells only the lapses on this site's disk. A site that speaks under a number must not be given it again because this
 * site forgot it. The words go with those that the peer does not know yet. */
void neb__lapses_tell(const struct neb_round *r, unsigned to, struct neb_round_frame *f)
{
    memcpy(f->lapses, r->durable.lapse, sizeof f->lapses);
    f->words = 0;
    for (unsigned i = 0; i < NEB_SITES_MAX; i++) {
        uint32_t lapse = r->durable.lapse[i];
        if (!lapse || r->word_durable[i].lapse != lapse ||
            (to < NEB_SITES_MAX && r->peer[to].knows[i] >= lapse))
            continue;
        f->word[f->words++] = r->word_durable[i];
    }
}

/* Takes a site's signed word for its lapse. */
bool neb__lapse_take(struct neb_round *r, unsigned site, uint32_t lapse,
                     const uint8_t signature[NEB_SEAL_SIZE])
{
    struct neb_round_frame_word *w = &r->word[site];
    if (lapse <= w->lapse && lapse <= r->lapse[site]) return lapse == w->lapse;
    if (!neb__lapse_genuine(&r->cfg.genesis, &r->cfg.seal, site, lapse, signature)) return false;
    if (lapse > r->lapse[site]) r->lapse[site] = lapse;
    if (lapse >= w->lapse) {
        *w = (struct neb_round_frame_word){.site = (uint8_t)site, .lapse = lapse};
        memcpy(w->signature, signature, NEB_SEAL_SIZE);
        r->lapse_unsaved |= neb__bit(site);
    }
    return true;
}

void neb__lapses_learn(struct neb_round *r, unsigned from, const struct neb_round_frame *f)
{
    for (unsigned i = 0; i < NEB_SITES_MAX; i++) r->peer[from].knows[i] = (uint16_t)f->lapses[i];
    for (int i = 0, forged = 0; i < f->words && forged < FORGED; i++) {
        const struct neb_round_frame_word *w = &f->word[i];
        if (w->lapse > NEB_LAPSE_MAX || (w->site == r->self && r->state == NEB_ROUND_BOOT)) continue;
        if (w->lapse <= r->lapse[w->site] || neb__lapse_take(r, w->site, w->lapse, w->signature)) continue;
        neb__core_doubt(r, from);
        forged++;
    }
    for (unsigned i = 0; r->cfg.quorum == NEB_QUORUM_OLD && i < NEB_SITES_MAX;
         i++) /* as such a run always did */
        if (f->lapses[i] > r->lapse[i] && (i != r->self || r->state != NEB_ROUND_BOOT))
            r->lapse[i] = f->lapses[i];
}
