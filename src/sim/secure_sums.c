/* secure_sums.c: secure sums in the simulator: who offers, who holds which share, who reveals what, and what could be computed from it.
 *
 * Masks are symbols here. A site's two secrets of an attempt are functions of a number that nobody else has; a share is the right to name
 * one of them; codes travel in the clear, and the oracle pretends not to read them. What the protocol may not allow then becomes plain
 * bookkeeping on the shares that left their holders:
 *
 *   S1  the update of a site could be computed by itself if t shares of its own mask and t of its pair key were disclosed. Liars disclose
 *       all that they hold.
 *   S2  members reveal for one set of survivors in an attempt, and only when its record is committed; so two unmaskings never differ
 *   S3  an attempt is opened once, has survivors at most once, and ends once, as RESULT or as VOID; RESULT has the seeds that its OPEN
 *       promised; no sum has fewer than three updates
 *   S4  no two updates are made under one mask
 *   S5  every update in a sum holds work, or the others in it would be hidden by fewer than they think
 *
 * Messages are lost and come late like all others; sites crash between any two steps and keep what a real site keeps. */
#include "sim/world.h"
#include "base/bytes.h"
#include "base/mem.h"
#include "base/mutant.h"

#include <stdio.h>
#include <string.h>

enum { TURN_MS = 300, KEYS_MS = 1000, MISSED_MS = 3000, BAD_MS = 5000, LATE_MS = 1500 };
enum kind { OWN, PAIR };
enum { OUT = 1 }; /* the number of no secret: the sender is out of the attempt before this one */

struct message {
    enum { KEYS, OFFER, REVEAL } type;
    uint32_t c0;
    uint16_t attempt;
    uint64_t version, number;           /* number: of the sender's secrets */
    uint64_t shared, numbers[SITES];    /* OFFER: who gets shares, and for which numbers of theirs */
    bool bad;                           /* OFFER: the dealer promises a secret that it does not deal */
    uint64_t bad_for;                   /* OFFER: these cannot use the shares that they get */
    uint64_t index, mask, token[SITES]; /* REVEAL: of which contributors; the shares */
};

struct kept {
    uint64_t version, number, revealed, revealed_set;
    uint16_t attempt;
};

static void seed_of(uint64_t number, enum kind kind, uint8_t out[NEB_SEED_SIZE])
{
    memset(out, 0, NEB_SEED_SIZE);
    neb__put64(out, neb__mix64(number * 2 + kind));
    neb__put64(out + 8, neb__mix64(number * 2 + kind + 0x5eed));
}

static uint64_t share_of(uint64_t number, enum kind kind, unsigned holder)
{
    return neb__mix64(neb__mix64(number * 2 + kind) ^ (holder + 1));
}

static struct neb_sim_sum *sum_of(struct neb_sim_world *w, struct neb_sim_node *n, uint32_t c0)
{
    for (uint32_t f = 0; f < w->cfg.fragments; f++)
        if ((uint32_t)((uint64_t)f * w->cfg.cells / w->cfg.fragments) == c0) return &n->sum[f];
    return NULL;
}

static struct neb_sim_secret *secret_of(struct neb_sim_world *w, uint64_t number)
{
    for (size_t i = w->secrets; i-- > 0;)
        if (w->secret[i].number == number) return &w->secret[i];
    return NULL;
}

static struct neb_sim_secret *new_secret(struct neb_sim_world *w, int site)
{
    if (w->secrets == w->secret_cap) {
        size_t cap = w->secret_cap ? 2 * w->secret_cap : 64;
        struct neb_sim_secret *s = neb__realloc(w->secret, cap * sizeof *s);
        if (!s) {
            w->failed = NEB_ERR_NOMEM;
            return NULL;
        }
        w->secret = s, w->secret_cap = cap;
    }
    struct neb_sim_secret *s = &w->secret[w->secrets++];
    *s = (struct neb_sim_secret){.site = (uint16_t)site, .number = draw(w, UINT64_MAX - 1) + 1};
    return s;
}

static uint16_t next_of(uint16_t attempt)
{
    return attempt == UINT16_MAX ? 1 : (uint16_t)(attempt + 1);
}

static void say(struct neb_sim_world *w, struct neb_sim_node *n, const struct message *m)
{
    struct neb_sim_event what = {.cell = m->c0};
    for (int i = 0; i < w->sites; i++)
        if (i != n->id && w->node[i].exists)
            neb__sim_send(w, n->id, i, EV_SUM, &what, (const uint8_t *)m, sizeof *m);
}

static struct neb_members roster_of(struct neb_sim_node *n)
{
    struct neb_round_status st;
    neb__round_status(n->core, &st);
    return st.roster;
}

/* ---- the oracle ---------------------------------------------------------------------------------------- */

/* S1 */
static void look(struct neb_sim_world *w, const struct neb_sim_secret *s)
{
    int own = __builtin_popcountll(s->revealed[OWN] | (w->liars & s->dealt));
    int pair = __builtin_popcountll(s->revealed[PAIR] | (w->liars & s->dealt));
    if (s->used && own >= s->threshold && pair >= s->threshold && s->threshold && !neb__sim_lies(w, s->site))
        neb__oracle_violated(
            w,
            "S1: %d shares of the own mask of site %u and %d of its pair key are out: its update can be "
            "read",
            own, s->site, pair);
}

static void disclose(struct neb_sim_world *w, uint64_t number, enum kind kind, int by)
{
    struct neb_sim_secret *s = secret_of(w, number);
    if (!s) return;
    s->revealed[kind] |= neb__bit((unsigned)by);
    look(w, s);
}

static struct neb_sim_attempt *attempt_of(struct neb_sim_world *w, uint32_t c0, uint16_t attempt)
{
    for (size_t i = w->attempts; i-- > 0;)
        if (w->attempt[i].c0 == c0 && w->attempt[i].attempt == attempt) return &w->attempt[i];
    return NULL;
}

/* S2 */
static void check_reveal(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_record *who)
{
    uint64_t set = 0;
    struct neb_sim_attempt *a = attempt_of(w, who->c0, who->attempt);
    if (w->forked || neb__sim_lies(w, n->id)) return;
    for (uint32_t i = 0; i < who->updates; i++) set |= neb__bit(who->update[i].site);
    if (!a || a->survivors != who->index)
        neb__oracle_violated(w, "S2: site %d reveals shares for record %llu, which nobody has committed",
                             n->id, (unsigned long long)who->index);
    else if (a->set != set)
        neb__oracle_violated(w, "S2: site %d reveals shares for another set of survivors", n->id);
}

static void check_result(struct neb_sim_world *w, const struct neb_sim_attempt *a,
                         const struct neb_record *rec)
{
    if (rec->updates < 3)
        neb__oracle_violated(w, "S3: record %llu is a sum of %u updates", (unsigned long long)rec->index,
                             rec->updates);
    for (uint32_t i = 0; i < rec->seeds && i < SITES; i++) {
        uint8_t right[NEB_SEED_SIZE];
        bool in = a->set & neb__bit(a->site[i]);
        seed_of(a->number[i], in ? OWN : PAIR, right);
        if (memcmp(right, rec->seed[i], NEB_SEED_SIZE))
            neb__oracle_violated(w, "S3: record %llu has a wrong seed of site %u",
                                 (unsigned long long)rec->index, a->site[i]);
    }
}

static void opened(struct neb_sim_world *w, const struct neb_record *rec)
{
    if (attempt_of(w, rec->c0, rec->attempt))
        neb__oracle_violated(w, "S3: attempt %u of cell %u is opened again", rec->attempt, rec->c0);
    if (w->attempts == w->attempt_cap) {
        size_t cap = w->attempt_cap ? 2 * w->attempt_cap : 64;
        struct neb_sim_attempt *a = neb__realloc(w->attempt, cap * sizeof *a);
        if (!a) {
            w->failed = NEB_ERR_NOMEM;
            return;
        }
        w->attempt = a, w->attempt_cap = cap;
    }
    struct neb_sim_attempt *a = &w->attempt[w->attempts++];
    *a = (struct neb_sim_attempt){.c0 = rec->c0, .attempt = rec->attempt, .open = rec->index};
    for (uint32_t i = 0; i < rec->contributors && i < SITES; i++) {
        a->site[i] = rec->contributor[i].site;
        a->number[i] = neb__get64(rec->contributor[i].key);
    }
}

/* S3: a record of a sum is committed. */
void neb__toy_sums_committed(struct neb_sim_world *w, const struct neb_record *rec)
{
    if (rec->type == NEB_RECORD_OPEN) {
        opened(w, rec);
        return;
    }
    struct neb_sim_attempt *a = attempt_of(w, rec->c0, rec->attempt);
    bool survivors = rec->type == NEB_RECORD_SURVIVORS, empty = rec->type == NEB_RECORD_VOID;
    if (!a || a->end || (survivors || empty ? a->survivors != 0 : !a->survivors)) {
        neb__oracle_violated(w, "S3: record %llu of type %u does not follow from its attempt",
                             (unsigned long long)rec->index, rec->type);
        return;
    }
    if (survivors) {
        a->survivors = rec->index;
        for (uint32_t i = 0; i < rec->updates; i++) {
            a->set |= neb__bit(rec->update[i].site);
            if (!rec->update[i].tau)
                neb__oracle_violated(w, "S5: the update of site %u in record %llu holds no step",
                                     rec->update[i].site, (unsigned long long)rec->index);
        }
        return;
    }
    a->end = rec->index;
    w->out->sums += rec->type == NEB_RECORD_ROUND && rec->seeds;
    w->out->voids += empty || neb__record_is_void(rec);
    if (rec->type == NEB_RECORD_ROUND && rec->seeds) check_result(w, a, rec);
}

void neb__toy_sums_end(struct neb_sim_world *w)
{
    for (size_t i = 0; w->final_seen && i < w->attempts; i++)
        if (!w->attempt[i].end)
            neb__oracle_violated(w, "S3: attempt %u of cell %u has not ended with the run",
                                 w->attempt[i].attempt, w->attempt[i].c0);
}

/* ---- offers -------------------------------------------------------------------------------------------- */

static bool belongs(struct neb_sim_node *n, struct neb_sim_sum *s, uint32_t c0, uint16_t attempt,
                    uint64_t version)
{
    struct neb_round_attempt now;
    if (!neb__round_attempt(n->core, c0, &now)) return false;
    uint16_t present = now.open ? now.attempt : next_of(now.attempt);
    if (attempt != present || version != neb__round_version(n->core, c0)) return false;
    if (s->attempt == attempt && s->version == version) return true;
    uint16_t asked = s->asked;
    uint64_t asked_version = s->asked_version;
    int64_t turn_at = s->turn_at;
    int64_t avoided[SITES];
    memcpy(avoided, s->avoided, sizeof avoided);
    memset(s, 0, sizeof *s);
    memcpy(s->avoided, avoided, sizeof avoided);
    s->c0 = c0, s->attempt = attempt, s->version = version;
    s->asked = asked, s->asked_version = asked_version, s->turn_at = turn_at;
    return true;
}

/* What OPEN would say of this offer. */
static bool entry_of(struct neb_sim_offer *o, int site)
{
    uint8_t seed[NEB_SEED_SIZE], b[16 + 8 * SITES];
    struct neb_contributor *out = &o->entry;
    *out = (struct neb_contributor){.site = (uint16_t)site, .weight = 1 + (uint32_t)site % 3};
    neb__put64(out->key, o->number);
    seed_of(o->number + o->bad, OWN, seed);
    bool ok = neb__hash(seed, sizeof seed, &out->own) == NEB_OK;
    seed_of(o->number, PAIR, seed);
    neb__put64(b, o->number);
    neb__put64(b + 8, o->shared);
    for (int i = 0; i < SITES; i++) neb__put64(b + 16 + 8 * i, o->numbers[i]);
    return ok && neb__hash(seed, sizeof seed, &out->pair) == NEB_OK &&
           neb__hash(b, sizeof b, &out->offer) == NEB_OK;
}

static void take_offer(struct neb_sim_world *w, struct neb_sim_node *n, struct neb_sim_sum *s,
                       const struct message *m, int from)
{
    struct neb_sim_offer *list = s->offer[from],
                         o = {.number = m->number, .shared = m->shared, .bad = m->bad, .bad_for = m->bad_for};
    struct neb_event ev = {.type = NEB_EV_OFFER,
                           .site = (uint16_t)from,
                           .cell = s->c0,
                           .version = s->version,
                           .attempt = s->attempt,
                           .offer = &list[0].entry};
    memcpy(o.numbers, m->numbers, sizeof o.numbers);
    if (!entry_of(&o, from)) {
        w->failed = NEB_ERR_NOMEM;
        return;
    }
    s->keys[from] = m->number;
    if (!neb__hash_equal(&list[0].entry.offer, &o.entry.offer)) list[1] = list[0], list[0] = o;
    for (int i = 0; i < SITES; i++)
        if ((m->shared & neb__bit((unsigned)i)) && s->keys[i] == m->numbers[i])
            ev.count |= neb__bit((unsigned)i);
    struct neb_contributor other = list[0].entry;
    other.offer.b[0] ^= 1;
    if (w->false_opens && neb__sim_lies(w, n->id)) ev.offer = &other; /* nobody has such an offer */
    neb__node_feed(w, n, &ev);
}

static void say_offer(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_sim_sum *s,
                      const struct neb_sim_offer *o, struct message *m)
{
    *m = (struct message){
        .type = OFFER, .c0 = s->c0, .attempt = s->attempt, .version = s->version, .number = o->number};
    m->shared = o->shared;
    m->bad = o->bad;
    m->bad_for = o->bad_for;
    memcpy(m->numbers, o->numbers, sizeof m->numbers);
    say(w, n, m);
}

static uint64_t partners(const struct neb_sim_world *w, const struct neb_sim_sum *s, uint64_t trains)
{
    uint64_t set = trains;
    for (unsigned i = 0; i < SITES; i++)
        if (w->now < s->avoided[i]) set &= ~neb__bit(i);
    return __builtin_popcountll(set) < neb__sum_least(__builtin_popcountll(trains)) ? trains : set;
}

static void deal_if_due(struct neb_sim_world *w, struct neb_sim_node *n, struct neb_sim_sum *s)
{
    struct neb_round_attempt now;
    const uint64_t trains = roster_of(n).trains;
    const uint64_t may = partners(w, s, trains);
    struct neb_sim_offer o = {.number = s->number};
    struct message m;
    if (!s->number || s->used || !neb__round_attempt(n->core, s->c0, &now) || now.open) return;
    for (unsigned i = 0; i < SITES; i++) {
        if ((may & neb__bit(i)) && s->keys[i]) o.shared |= neb__bit(i), o.numbers[i] = s->keys[i];
    }
    int sites = __builtin_popcountll(trains);
    const struct neb_sim_offer *last = &s->offer[n->id][0];
    bool same = s->dealt == o.shared && !memcmp(last->numbers, o.numbers, sizeof o.numbers);
    if (same || __builtin_popcountll(o.shared) < neb__sum_least(sites) ||
        (o.shared != may && w->now < s->keyed_at + KEYS_MS))
        return;
    o.bad = neb__sim_lies(w, n->id) && !w->healed && !draw(w, 4);
    if (neb__sim_lies(w, n->id) && !w->healed && !draw(w, 2))
        o.bad_for = draw(w, neb__bit(SITES)) & ~neb__bit((unsigned)n->id);
    s->dealt = o.shared;
    struct neb_sim_secret *secret = secret_of(w, s->number);
    if (secret) secret->dealt |= o.shared, secret->threshold = neb__sum_threshold(sites);
    say_offer(w, n, s, &o, &m);
    take_offer(w, n, s, &m, n->id);
}

static void say_keys(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_sim_sum *s,
                     uint16_t attempt, uint64_t version, uint64_t number)
{
    struct message m = {.type = KEYS, .c0 = s->c0, .attempt = attempt, .version = version, .number = number};
    say(w, n, &m);
}

static void begin(struct neb_sim_world *w, struct neb_sim_node *n, struct neb_sim_sum *s)
{
    if (s->number && s->attempt == s->asked && s->version == s->asked_version) return;
    if (!belongs(n, s, s->c0, s->asked, s->asked_version)) return;
    struct neb_sim_secret *secret = new_secret(w, n->id);
    if (!secret) return;
    s->number = s->keys[n->id] = secret->number;
    s->keyed_at = w->now;
    say_keys(w, n, s, s->attempt, s->version, s->number);
    deal_if_due(w, n, s);
}

void neb__toy_sums_offer(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_action *a)
{
    struct neb_sim_sum *s = sum_of(w, n, a->c0);
    if (!s) return;
    s->c0 = a->c0;
    s->asked = a->attempt;
    s->asked_version = a->version;
    begin(w, n, s);
}

/* ---- the disk ------------------------------------------------------------------------------------------ */

static bool keep(struct neb_sim_node *n, const struct neb_sim_sum *s)
{
    struct kept k = {s->version, s->number, s->revealed, s->revealed_set, s->attempt};
    char name[32];
    snprintf(name, sizeof name, "sum-%u", s->c0);
    return neb__blob_save(&n->disk.disk, name, &k, sizeof k, true) == NEB_OK && !n->disk.dead;
}

static bool load(struct neb_sim_node *n, struct neb_sim_sum *s, uint16_t attempt)
{
    struct neb_buf b;
    struct kept k;
    char name[32];
    snprintf(name, sizeof name, "sum-%u", s->c0);
    neb__buf_init(&b, 4096);
    bool ok = neb__blob_load(&n->disk.disk, name, &b) == NEB_OK && b.len == sizeof k;
    if (ok) memcpy(&k, b.data, sizeof k);
    neb__buf_free(&b);
    if (!ok || k.attempt != attempt) return false;
    s->attempt = k.attempt, s->version = k.version, s->number = k.number;
    s->revealed = k.revealed, s->revealed_set = k.revealed_set;
    s->used = true;
    return true;
}

/* The offer that OPEN names of this contributor; NULL: not here. */
static const struct neb_sim_offer *offer_of(const struct neb_sim_sum *s, const struct neb_contributor *c)
{
    for (int k = 0; c->site < SITES && k < 2; k++)
        if (neb__hash_equal(&s->offer[c->site][k].entry.offer, &c->offer) && s->offer[c->site][k].number)
            return &s->offer[c->site][k];
    return NULL;
}

neb_status neb__toy_sums_use(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_action *a)
{
    struct neb_sim_sum *s = sum_of(w, n, a->c0);
    const struct neb_record *open = neb__round_record(n->core, a->index);
    bool again = NEB_MUTANT(mask_again) && s && open &&
                 load(n, s, a->attempt); /* a start has forgotten what it is for */
    if (!s || !open || s->attempt != a->attempt || s->version != open->v || !s->number) return NEB_ERR_STATE;
    if (s->used && !again) return NEB_ERR_STATE;
    for (uint32_t i = 0; i < open->contributors && !again; i++) {
        const struct neb_sim_offer *o = offer_of(s, &open->contributor[i]);
        if (!o && !s->missed_at) s->missed_at = w->now;
        bool late = w->now >= s->missed_at + MISSED_MS, bad = o && (o->bad_for & neb__bit((unsigned)n->id));
        if (open->contributor[i].site < SITES && (bad || (!o && late)))
            s->avoided[open->contributor[i].site] = w->now + (bad ? BAD_MS : LATE_MS);
        if (!o || bad) return late || bad ? NEB_ERR_STATE : NEB_ERR_NOTFOUND;
        if (o->numbers[n->id] != s->number || !neb__hash_equal(&o->entry.own, &open->contributor[i].own))
            return NEB_ERR_STATE;
    }
    s->used = true;
    if (!keep(n, s)) return NEB_ERR_STATE;
    struct neb_sim_secret *secret = secret_of(w, s->number);
    if (secret && secret->used)
        neb__oracle_violated(w, "S4: site %d makes a second update under the masks of attempt %u", n->id,
                             s->attempt);
    if (secret) secret->used = true;
    return NEB_OK;
}

/* ---- unmasking ----------------------------------------------------------------------------------------- */

/* Every member puts the seeds together when it can. */
static void join(struct neb_sim_world *w, struct neb_sim_node *n, struct neb_sim_sum *s)
{
    struct neb_round_attempt now;
    if (s->joined || !neb__round_attempt(n->core, s->c0, &now) || !now.survivors) return;
    const struct neb_record *open = neb__round_record(n->core, now.open),
                            *who = neb__round_record(n->core, now.survivors);
    struct neb_event ev = {.type = NEB_EV_SEEDS, .index = now.survivors, .bytes = s->seed[0]};
    ev.length = open->contributors * (size_t)NEB_SEED_SIZE;
    for (uint32_t i = 0; i < open->contributors; i++) {
        const struct neb_contributor *c = &open->contributor[i];
        const enum kind kind = neb__record_of(who, c->site) ? OWN : PAIR;
        const uint64_t number = neb__get64(c->key);
        struct neb_hash h;
        int shares = 0;
        bool wrong = false;
        for (unsigned by = 0; by < SITES; by++) {
            if (s->reveal[by].index != now.survivors || !(s->reveal[by].mask & neb__bit(c->site))) continue;
            bool right = s->reveal[by].token[c->site] == share_of(number, kind, by);
            wrong |= !right;
            shares += right || NEB_MUTANT(any_seeds);
        }
        if (shares < open->threshold) return;
        seed_of(number, kind, s->seed[i]);
        if (wrong && NEB_MUTANT(any_seeds)) s->seed[i][20] = 1;
        if (neb__hash(s->seed[i], NEB_SEED_SIZE, &h) != NEB_OK) w->failed = NEB_ERR_NOMEM;
        if (!neb__hash_equal(&h, kind == OWN ? &c->own : &c->pair) && !NEB_MUTANT(any_seeds))
            ev.status = NEB_ERR_CORRUPT;
    }
    if (w->voiders && neb__sim_lies(w, n->id)) ev.status = NEB_ERR_CORRUPT; /* says a liar of right seeds */
    s->joined = true;
    neb__node_feed(w, n, &ev);
}

static void say_reveal(struct neb_sim_world *w, struct neb_sim_node *n, struct neb_sim_sum *s,
                       const struct neb_record *open, const struct neb_record *who, bool other)
{
    struct message m = {.type = REVEAL, .c0 = s->c0, .attempt = who->attempt, .index = who->index};
    for (uint32_t i = 0; i < open->contributors; i++) {
        const struct neb_contributor *c = &open->contributor[i];
        enum kind kind = (neb__record_of(who, c->site) != NULL) != other ? OWN : PAIR;
        m.mask |= neb__bit(c->site);
        m.token[c->site] = share_of(neb__get64(c->key), kind, (unsigned)n->id);
        if (neb__sim_lies(w, n->id) && !w->healed && !draw(w, 3)) m.token[c->site]++; /* not a share */
        disclose(w, neb__get64(c->key), kind, n->id);
    }
    s->reveal[n->id].index = m.index;
    s->reveal[n->id].mask = m.mask;
    memcpy(s->reveal[n->id].token, m.token, sizeof m.token);
    say(w, n, &m);
}

void neb__toy_sums_reveal(struct neb_sim_world *w, struct neb_sim_node *n, uint64_t index)
{
    const struct neb_record *who = neb__round_record(n->core, index);
    struct neb_sim_sum *s = who ? sum_of(w, n, who->c0) : NULL;
    struct neb_round_attempt now;
    if (!s || !neb__round_attempt(n->core, who->c0, &now) || !now.open) return;
    const struct neb_record *open = neb__round_record(n->core, now.open);
    s->c0 = who->c0;
    if (!neb__record_contributor(open, (unsigned)n->id)) return;
    bool here = s->attempt == who->attempt && s->used;
    if (!here && !load(n, s, who->attempt)) return;
    uint64_t set = 0;
    for (uint32_t i = 0; i < who->updates; i++) set |= neb__bit(who->update[i].site);
    if (s->revealed && s->revealed_set != set && !NEB_MUTANT(reveal_early)) return;
    s->revealed = index, s->revealed_set = set;
    if (!keep(n, s)) return;
    neb__oracle_see(w, n);
    check_reveal(w, n, who);
    say_reveal(w, n, s, open, who, false);
    if (NEB_MUTANT(reveal_both)) say_reveal(w, n, s, open, who, true);
    join(w, n, s);
}

/* ---- messages and time --------------------------------------------------------------------------------- */

static void heard_keys(struct neb_sim_world *w, struct neb_sim_node *n, struct neb_sim_sum *s,
                       const struct message *m, int from)
{
    static const struct neb_contributor nothing;
    struct neb_round_attempt now;
    if (!neb__round_attempt(n->core, m->c0, &now)) return;
    if (now.open && m->attempt == next_of(now.attempt) && m->version == neb__round_version(n->core, m->c0)) {
        neb__node_feed(w, n,
                       &(struct neb_event){.type = NEB_EV_OFFER,
                                           .site = (uint16_t)from,
                                           .cell = m->c0,
                                           .version = m->version,
                                           .attempt = m->attempt,
                                           .offer = &nothing});
        return;
    }
    if (now.open || m->number == OUT || !belongs(n, s, m->c0, m->attempt, m->version) ||
        s->keys[from] == m->number)
        return;
    s->keys[from] = m->number;
    if (s->number) say_keys(w, n, s, s->attempt, s->version, s->number);
    deal_if_due(w, n, s);
}

void neb__toy_sums_message(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_sim_event *ev)
{
    struct message m;
    struct neb_round_attempt now;
    if (!w->cfg.secure || ev->length != sizeof m) return;
    memcpy(&m, ev->bytes, sizeof m);
    struct neb_sim_sum *s = sum_of(w, n, m.c0);
    if (!s || !(roster_of(n).members & neb__bit((unsigned)ev->from))) return;
    s->c0 = m.c0;
    if (m.type == KEYS) heard_keys(w, n, s, &m, ev->from);
    if (m.type == OFFER && belongs(n, s, m.c0, m.attempt, m.version) && !s->used) {
        take_offer(w, n, s, &m, ev->from);
        if (n->alive) deal_if_due(w, n, s);
    }
    if (m.type == REVEAL && neb__round_attempt(n->core, m.c0, &now) && now.survivors &&
        now.survivors == m.index && s->reveal[ev->from].index != m.index) {
        s->reveal[ev->from].index = m.index;
        s->reveal[ev->from].mask = m.mask;
        memcpy(s->reveal[ev->from].token, m.token, sizeof m.token);
        join(w, n, s);
    }
}

static void turn(struct neb_sim_world *w, struct neb_sim_node *n, struct neb_sim_sum *s)
{
    struct neb_round_attempt now;
    struct message m;
    if (!neb__round_attempt(n->core, s->c0, &now)) return;
    if (!now.survivors) s->joined = false;
    if (now.open && s->asked == next_of(now.attempt))
        say_keys(w, n, s, s->asked, s->asked_version, OUT); /* it is out of the present one */
    const struct neb_record *open = now.open ? neb__round_record(n->core, now.open) : NULL;
    const struct neb_contributor *own = open ? neb__record_contributor(open, (unsigned)n->id) : NULL;
    const struct neb_sim_offer *named = own && s->attempt == now.attempt ? offer_of(s, own) : NULL;
    if (named && !now.survivors) say_offer(w, n, s, named, &m); /* OPEN may have come to a site before it */
    if (now.survivors && s->revealed == now.survivors)
        say_reveal(w, n, s, neb__round_record(n->core, now.open), neb__round_record(n->core, now.survivors),
                   false);
    if (now.survivors) join(w, n, s);
    if (!n->alive || now.open || !s->asked) return;
    begin(w, n, s);
    if (!n->alive || !s->number) return;
    say_keys(w, n, s, s->attempt, s->version, s->number);
    deal_if_due(w, n, s);
    if (!n->alive || !s->dealt) return;
    say_offer(w, n, s, &s->offer[n->id][0], &m);
}

void neb__toy_sums_turn(struct neb_sim_world *w, struct neb_sim_node *n)
{
    for (uint32_t f = 0; w->cfg.secure && n->alive && f < w->cfg.fragments; f++) {
        struct neb_sim_sum *s = &n->sum[f];
        if (w->now < s->turn_at + TURN_MS) continue;
        s->turn_at = w->now;
        s->c0 = (uint32_t)((uint64_t)f * w->cfg.cells / w->cfg.fragments);
        turn(w, n, s);
    }
}
