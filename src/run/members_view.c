/* members_view.c: what this site knows of the run's members: see members_view.h.
 *
 * The roster belongs to the links' thread, the core to the driver's. So the public keys and names are copied
 * at the start, with every new epoch, and whenever a peer appears. */
#include "run/members_view.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

void neb__members_init(struct neb_members_view *v)
{
    pthread_mutex_init(&v->lock, NULL);
    v->leader = NEB_NO_SITE;
}

void neb__members_free(struct neb_members_view *v)
{
    neb__free(v->operators);
    pthread_mutex_destroy(&v->lock);
}

/* ---- by the chain of rosters --------------------------------------------------------------------------- */

/* A key that the site had when the chain was walked to here. It may be among the former ones, because the chain is walked from
 * its beginning each time. */
static void keep_former(struct neb_members_view *v, unsigned site)
{
    struct neb_public *f = v->former[site];
    for (int i = 0; i < v->formers[site]; i++)
        if (neb__public_equal(&f[i], &v->key[site])) return;
    if (v->formers[site] == NEB_FORMER_KEYS)
        memmove(f, f + 1, (NEB_FORMER_KEYS - 1) * sizeof *f);
    else
        v->formers[site]++;
    f[v->formers[site] - 1] = v->key[site];
}

/* A site that has left the roster keeps its key here: its updates in the log are still asked for and checked.
 * The links and the core decide whether it may say anything new. */
static void learn(void *arg, uint64_t epoch, uint64_t head, const struct neb_roster *r)
{
    struct neb_members_view *v = arg;
    (void)epoch;
    (void)head;
    v->present = v->witnesses = v->observers = 0;
    for (uint32_t i = 0; i < r->count; i++) {
        const struct neb_member *m = &r->members[i];
        if (m->id >= NEB_SITES_MAX) continue;
        v->present |= neb__bit(m->id);
        if (m->flags & NEB_MEMBER_WITNESS) v->witnesses |= neb__bit(m->id);
        if (m->flags & NEB_MEMBER_OBSERVER) v->observers |= neb__bit(m->id);
        if (v->has_key[m->id] && !neb__public_equal(&v->key[m->id], &m->key)) keep_former(v, m->id);
        v->key[m->id] = m->key;
        v->has_key[m->id] = true;
        snprintf(v->names[m->id], sizeof *v->names, "%s", m->name);
    }
}

/* Out of memory: the set is not known, so what it signed waits. */
static void learn_operators(void *arg, uint64_t epoch, uint64_t head, const struct neb_operators *set)
{
    struct neb_members_view *v = arg;
    if (v->operator_sets && v->operators[v->operator_sets - 1].epoch >= epoch) return;
    struct neb_operator_set *more = neb__realloc(v->operators, (v->operator_sets + 1) * sizeof *more);
    if (!more) return;
    v->operators = more;
    more[v->operator_sets++] = (struct neb_operator_set){epoch, head, *set};
}

bool neb__members_operators(struct neb_members_view *v, size_t n, struct neb_operator_set *out)
{
    pthread_mutex_lock(&v->lock);
    bool known = n < v->operator_sets;
    if (known) *out = v->operators[v->operator_sets - 1 - n];
    pthread_mutex_unlock(&v->lock);
    return known;
}

uint64_t neb__members_epoch(struct neb_members_view *v)
{
    pthread_mutex_lock(&v->lock);
    uint64_t epoch = v->epoch;
    pthread_mutex_unlock(&v->lock);
    return epoch;
}

bool neb__members_rekeyed(struct neb_members_view *v, unsigned site)
{
    pthread_mutex_lock(&v->lock);
    bool rekeyed = site < NEB_SITES_MAX && v->formers[site];
    pthread_mutex_unlock(&v->lock);
    return rekeyed;
}

void neb__members_learn(struct neb_members_view *v, const struct neb_chain *chain)
{
    pthread_mutex_lock(&v->lock);
    v->epoch = chain->epoch;
    if (neb__chain_walk_operators(chain, learn_operators, v) != NEB_OK)
        learn_operators(v, chain->operators_epoch, 0, &chain->operators);
    if (neb__chain_walk(chain, learn, v) != NEB_OK) learn(v, chain->epoch, 0, &chain->now);
    pthread_mutex_unlock(&v->lock);
}

void neb__members_name(struct neb_members_view *v, uint16_t site, char out[NEB_NAME_SIZE])
{
    pthread_mutex_lock(&v->lock);
    snprintf(out, NEB_NAME_SIZE, "%s", site < NEB_SITES_MAX && v->has_key[site] ? v->names[site] : "?");
    pthread_mutex_unlock(&v->lock);
}

bool neb__members_key(struct neb_members_view *v, unsigned signer, struct neb_public *out)
{
    pthread_mutex_lock(&v->lock);
    bool known = signer < NEB_SITES_MAX && v->has_key[signer];
    if (known) *out = v->key[signer];
    pthread_mutex_unlock(&v->lock);
    return known;
}

bool neb__members_former_key(struct neb_members_view *v, unsigned signer, int i, struct neb_public *out)
{
    unsigned site = signer & ~NEB_BY_FORMER;
    pthread_mutex_lock(&v->lock);
    bool known = site < NEB_SITES_MAX && i < v->formers[site];
    if (known) *out = v->former[site][i];
    pthread_mutex_unlock(&v->lock);
    return known;
}

uint16_t neb__members_find(struct neb_members_view *v, uint16_t self, const char *name)
{
    unsigned i = 0;
    pthread_mutex_lock(&v->lock);
    while (i < NEB_SITES_MAX && (i == self || !(v->present & neb__bit(i)) || strcmp(v->names[i], name))) i++;
    pthread_mutex_unlock(&v->lock);
    return i == NEB_SITES_MAX ? NEB_NO_SITE : (uint16_t)i;
}

uint64_t neb__members_witnesses(struct neb_members_view *v)
{
    pthread_mutex_lock(&v->lock);
    uint64_t witnesses = v->witnesses;
    pthread_mutex_unlock(&v->lock);
    return witnesses;
}

uint64_t neb__members_observers(struct neb_members_view *v)
{
    pthread_mutex_lock(&v->lock);
    uint64_t observers = v->observers;
    pthread_mutex_unlock(&v->lock);
    return observers;
}

uint64_t neb__members_present(struct neb_members_view *v)
{
    pthread_mutex_lock(&v->lock);
    uint64_t present = v->present;
    pthread_mutex_unlock(&v->lock);
    return present;
}

/* ---- links and log ------------------------------------------------------------------------------------- */

void neb__members_link(struct neb_members_view *v, uint16_t site, bool up)
{
    uint64_t bit = site < 64 ? (uint64_t)1 << site : 0;
    pthread_mutex_lock(&v->lock);
    v->linked = up ? v->linked | bit : v->linked & ~bit;
    pthread_mutex_unlock(&v->lock);
}

uint64_t neb__members_links(struct neb_members_view *v)
{
    pthread_mutex_lock(&v->lock);
    uint64_t linked = v->linked;
    pthread_mutex_unlock(&v->lock);
    return linked;
}

bool neb__members_linked(struct neb_members_view *v, uint16_t site)
{
    pthread_mutex_lock(&v->lock);
    bool linked = site < 64 && (v->linked >> site & 1);
    pthread_mutex_unlock(&v->lock);
    return linked;
}

void neb__members_set_via(struct neb_members_view *v, uint16_t site, uint16_t via)
{
    if (site >= NEB_SITES_MAX) return;
    pthread_mutex_lock(&v->lock);
    v->far = via == NEB_NO_SITE ? v->far & ~neb__bit(site) : v->far | neb__bit(site);
    v->via[site] = via;
    pthread_mutex_unlock(&v->lock);
}

uint16_t neb__members_via(struct neb_members_view *v, uint16_t site)
{
    pthread_mutex_lock(&v->lock);
    bool far = v->far & ~v->linked & neb__bit(site);
    uint16_t via = far ? v->via[site] : NEB_NO_SITE;
    pthread_mutex_unlock(&v->lock);
    return via;
}

uint64_t neb__members_far(struct neb_members_view *v)
{
    pthread_mutex_lock(&v->lock);
    uint64_t far = v->far & ~v->linked;
    pthread_mutex_unlock(&v->lock);
    return far;
}

uint64_t neb__members_reached(struct neb_members_view *v)
{
    pthread_mutex_lock(&v->lock);
    uint64_t reached = v->linked | v->far;
    pthread_mutex_unlock(&v->lock);
    return reached;
}

void neb__members_tell(struct neb_members_view *v, uint16_t site)
{
    if (site >= NEB_SITES_MAX) return;
    pthread_mutex_lock(&v->lock);
    v->untold[site]++;
    pthread_mutex_unlock(&v->lock);
}

void neb__members_told(struct neb_members_view *v, uint16_t site)
{
    if (site >= NEB_SITES_MAX) return;
    pthread_mutex_lock(&v->lock);
    v->untold[site]--;
    pthread_mutex_unlock(&v->lock);
}

bool neb__members_untold(struct neb_members_view *v)
{
    bool untold = false;
    pthread_mutex_lock(&v->lock);
    for (unsigned i = 0; i < NEB_SITES_MAX; i++) untold |= v->untold[i] && (v->linked & neb__bit(i));
    pthread_mutex_unlock(&v->lock);
    return untold;
}

void neb__members_set_roster(struct neb_members_view *v, const struct neb_members *roster, uint16_t leader)
{
    pthread_mutex_lock(&v->lock);
    v->roster = *roster;
    v->leader = leader;
    pthread_mutex_unlock(&v->lock);
}

struct neb_members neb__members_roster(struct neb_members_view *v, uint16_t *leader)
{
    pthread_mutex_lock(&v->lock);
    struct neb_members roster = v->roster;
    if (leader) *leader = v->leader;
    pthread_mutex_unlock(&v->lock);
    return roster;
}
