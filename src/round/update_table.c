/* update_table.c: the updates that the core knows by their hash: held here, named by a record, or only mentioned by
 * another site.
 *
 * The table is limited, and what another site mentions may not exist. So each site has a quota for hashes that are neither
 * here nor in a record, and all of them together leave room for those that are. A hash that nobody gives is forgotten after
 * a while, and sooner when the log has moved on so far that no record can name it.
 *
 * An honest site also mentions the updates of a site that signs too many. Once this site has seen such an update, the name
 * counts against its author, who signed it, and not against the site that mentioned it. */
#include "round/core.h"
#include "base/mutant.h"

enum {
    HEARD_BACK = 256,   /* records that are searched for an update that a peer mentions */
    UPDATES_MAX = 8192, /* updates known by their hash; of these */
    NAMES_MAX = 4096,   /* … neither here nor in a record, only named by other sites; of these */
    NAMES_LEAST = 64,   /* … one site may name so many at least, */
    NAMES_MOST = NEB_ROUND_FRAME_LIST, /* … and so many at most: what one frame of an honest site holds */
    NAMES_AHEAD = 2,   /* versions that an update may be ahead of the log of the site that mentions it */
    ERRAND = 4,        /* times fetch_ms: so long a neighbour is told that its update is coming */
    ERRAND_KEPT = 100, /* … and so long it is not begun again */
};

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The version of the fragment that is farthest on, or least. */
static uint64_t version(const struct neb_round *r, bool farthest)
{
    uint64_t most = 0, fewest = UINT64_MAX;
    for (uint32_t f = 0; f < r->cfg.fragments; f++) {
        uint64_t v = r->cell[neb__core_fragment_first(r, f)].v_log;
        if (v > most) most = v;
        fewest = least(fewest, v);
    }
    return farthest ? most : fewest;
}

struct neb_core_update *neb__core_update(struct neb_round *r, const struct neb_hash *h, bool make)
{
    for (size_t i = 0; i < r->updates; i++)
        if (neb__hash_equal(&r->update[i].hash, h)) return &r->update[i];
    if (!make || r->updates >= UPDATES_MAX) return NULL;
    if (r->updates == r->update_cap) {
        size_t cap = r->update_cap ? 2 * r->update_cap : 64;
        struct neb_core_update *p = neb__realloc(r->update, cap * sizeof *p);
        if (!p) {
            r->failed = NEB_ERR_NOMEM;
            return NULL;
        }
        r->update = p, r->update_cap = cap;
    }
    struct neb_core_update *p = &r->update[r->updates++];
    *p = (struct neb_core_update){.hash = *h,
                                  .by = NEB_NO_SITE,
                                  .seen = r->now,
                                  .seen_version = version(r, true),
                                  .fetch_at = r->now + r->cfg.fetch_ms,
                                  .fetch_from = NEB_NO_SITE};
    return p;
}

static bool is_hearsay(const struct neb_core_update *p)
{
    return p->by != NEB_NO_SITE && !p->held && !p->used && !p->needed;
}

/* A site may name a limited number of updates that are not here: it could name any number that do not exist. */
static size_t quota(const struct neb_round *r)
{
    size_t n = NAMES_MAX / (size_t)(__builtin_popcountll(r->roster.members) + 1);
    if (n < NAMES_LEAST) n = NAMES_LEAST;
    return n < NAMES_MOST ? n : NAMES_MOST;
}

static size_t names_of(const struct neb_round *r, unsigned site, size_t *all)
{
    size_t own = 0;
    *all = 0;
    for (size_t i = 0; i < r->updates; i++) {
        if (!is_hearsay(&r->update[i])) continue;
        ++*all;
        own += r->update[i].by == site;
    }
    return own;
}

static bool may_name(const struct neb_round *r, unsigned site)
{
    size_t all;
    return names_of(r, site, &all) < quota(r) && all < NAMES_MAX;
}

bool neb__round_is_fragment(const struct neb_round *r, uint32_t c0, uint32_t c1)
{
    for (uint32_t f = 0; f < r->cfg.fragments; f++)
        if (neb__core_fragment_first(r, f) == c0) return neb__core_fragment_first(r, f + 1) == c1;
    return false;
}

bool neb__round_needs(const struct neb_round *r, const struct neb_hash *hash)
{
    for (size_t i = 0; i < r->updates; i++)
        if (neb__hash_equal(&r->update[i].hash, hash)) return r->update[i].used || r->update[i].needed;
    return false;
}

/* The record that names the update, if its updates may still be needed somewhere; 0: none. */
static uint64_t named_by(const struct neb_round *r, const struct neb_hash *h)
{
    uint64_t first = r->commit > HEARD_BACK ? r->commit - HEARD_BACK : 0;
    for (uint64_t i = r->commit; i > first && i > r->floor; i--) {
        const struct neb_record *rec = r->log[i - 1].record;
        for (uint32_t k = 0; rec->type == NEB_RECORD_ROUND && k < rec->updates; k++)
            if (neb__hash_equal(&rec->update[k].hash, h)) return i;
    }
    return 0;
}

bool neb__round_asked(struct neb_round *r, unsigned site, const struct neb_hash *h)
{
    uint64_t index = NEB_MUTANT(no_errands) ? 0 : named_by(r, h), others = 0;
    if (!index || site >= NEB_SITES_MAX || !(r->roster.members & neb__bit(site))) return false;
    struct neb_core_update *p = neb__core_update(r, h, true);
    if (!p || p->held) return false;
    if (!p->errand) p->errand = r->now ? r->now : 1;
    if (!p->used) p->used = true, p->index = index;
    p->lack |= neb__bit(site);
    for (unsigned i = 0; i < NEB_SITES_MAX; i++)
        if (neb__core_gives(r, i)) others |= neb__bit(i) & ~p->lack;
    if (!p->needed && others) p->fetch_at = r->now;
    if (others) p->needed = p->looked = true;
    return p->needed && r->now < p->errand + ERRAND * r->cfg.fetch_ms;
}

struct neb_core_update *neb__core_update_heard(struct neb_round *r, unsigned from, const struct neb_hash *h,
                                               uint64_t *refused)
{
    struct neb_core_update *p = neb__core_update(r, h, false);
    uint64_t first = r->cursor > HEARD_BACK ? r->cursor - HEARD_BACK : 0;
    for (uint64_t i = r->cursor; !p && i > first; i--) {
        const struct neb_record *rec = r->log[i - 1].record;
        for (uint32_t k = 0; rec->type == NEB_RECORD_ROUND && k < rec->updates; k++)
            if (neb__hash_equal(&rec->update[k].hash, h)) return NULL;
    }
    if (p) return p;
    if (!may_name(r, from)) {
        ++*refused;
        return NULL;
    }
    if ((p = neb__core_update(r, h, true))) p->by = (uint16_t)from;
    return p;
}

void neb__core_unwanted(struct neb_round *r, const struct neb_hash *h, unsigned author)
{
    struct neb_core_update *p = neb__core_update(r, h, false);
    if (!p || !is_hearsay(p) || author >= NEB_SITES_MAX || p->by == author) return;
    p->by = (uint16_t)author;
    p->unwanted = true;
    size_t all;
    if (names_of(r, author, &all) <= quota(r)) return;
    *p = r->update[--r->updates];
    neb__core_refused(r, author, 1);
}

void neb__core_refused(struct neb_round *r, unsigned site, uint64_t names)
{
    if (!names) return;
    struct neb_action *a = neb__core_act(r, NEB_ACT_REFUSED);
    a->site = (uint16_t)site;
    a->count = names;
}

/* No record can name it any more, whatever its fragment: every one has moved on since it was mentioned. */
static bool overtaken(const struct neb_round *r, const struct neb_core_update *p)
{
    return p->by != NEB_NO_SITE && version(r, false) > p->seen_version + r->cfg.staleness + NAMES_AHEAD;
}

static bool outlived(const struct neb_round *r, const struct neb_core_update *p)
{
    bool errand = p->errand && r->now < p->errand + ERRAND_KEPT * r->cfg.fetch_ms; /* for a neighbour */
    if (p->used) return p->index <= r->cursor && !errand;
    if (p->needed) return false;
    if (!p->held) return r->now - p->seen > 20 * r->cfg.fetch_ms || overtaken(r, p);
    if (neb__sum_is_over(r, &p->header)) return true;
    for (uint32_t c = p->header.c0; c < p->header.c1 && c < r->cfg.cells; c++) {
        if (r->cell[c].v_log > p->header.b + r->cfg.staleness) return !NEB_MUTANT(keep_expired);
        if (neb__log_counted(r, c, p->header.site, p->header.k, p->header.b)) return true;
    }
    return false;
}

void neb__core_updates_prune(struct neb_round *r)
{
    for (size_t i = 0; i < r->updates;)
        if (outlived(r, &r->update[i]))
            r->update[i] = r->update[--r->updates];
        else
            i++;
}
