/* unnamed.c: updates of other sites on disk that no record names yet.
 *
 * A member signs as many updates as it likes, so each has a quota: NEB_UPDATES_UNNAMED a fragment. An honest
 * site has one open update a fragment, and a second one for a moment when a record has just named the first.
 * What this site has reported to hold is never removed to make room, since a record may name it. It goes when
 * its cells are two versions on: then no record can name it. At the quota the new one is refused, and the
 * author alone loses by it. */
#include "run/unnamed.h"
#include "base/mem.h"
#include "run/quota.h"

static uint64_t version(const neb_session *s, const struct neb_update_header *h)
{
    return neb__round_version(s->core, h->c0);
}

bool neb__unnamed_is_ahead(const neb_session *s, const struct neb_update_header *h)
{
    return h->b > version(s, h) + NEB_UPDATES_AHEAD;
}

neb_status neb__unnamed_add(neb_session *s, const struct neb_update_header *h, const struct neb_hash *hash)
{
    struct neb_unnamed_list *l = &s->updates.unnamed;
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 32;
        struct neb_unnamed *all = neb__realloc(l->all, cap * sizeof *all);
        if (!all) return neb__fail(NEB_ERR_NOMEM, "out of memory for the list of updates");
        l->all = all;
        l->cap = cap;
    }
    l->all[l->n++] = (struct neb_unnamed){*hash, *h};
    return NEB_OK;
}

void neb__unnamed_free(neb_session *s)
{
    neb__free(s->updates.unnamed.all);
    s->updates.unnamed = (struct neb_unnamed_list){0};
}

/* By a record that may still need it here; the sweep of the log removes it afterwards. */
static bool is_named(const neb_session *s, const struct neb_unnamed *u)
{
    struct neb_round_status st;
    neb__round_status(s->core, &st);
    for (uint64_t i = st.head; i > s->updates.keep.swept; i--) {
        const struct neb_record *rec = neb__round_record(s->core, i);
        const struct neb_named *own =
            rec && rec->type == NEB_RECORD_ROUND ? neb__record_of(rec, u->header.site) : NULL;
        if (own && neb__hash_equal(&own->hash, &u->hash)) return true;
        if (rec && rec->type == NEB_RECORD_ROUND && rec->c0 == u->header.c0 && rec->v < u->header.b)
            break; /* older records cannot name it */
    }
    return false;
}

static bool is_over(const neb_session *s, const struct neb_unnamed *u)
{
    return u->header.b + 1 < version(s, &u->header) || neb__unnamed_is_ahead(s, &u->header) ||
           neb__sum_is_over(s->core, &u->header);
}

static int count(const neb_session *s, const struct neb_update_header *h)
{
    const struct neb_unnamed_list *l = &s->updates.unnamed;
    int n = 0;
    for (size_t i = 0; i < l->n; i++) n += l->all[i].header.site == h->site && l->all[i].header.c0 == h->c0;
    return n;
}

bool neb__unnamed_has_room(neb_session *s, const struct neb_update_header *h)
{
    struct neb_unnamed_list *l = &s->updates.unnamed;
    if (count(s, h) < NEB_UPDATES_UNNAMED) return true;
    for (size_t i = 0; i < l->n;) {
        const struct neb_unnamed *u = &l->all[i];
        bool mine = u->header.site == h->site, named = mine && is_named(s, u);
        if (mine && !named && is_over(s, u))
            (void)neb__update_remove(&s->updates.files, &u->hash);
        else if (!named) {
            i++;
            continue;
        }
        l->all[i] = l->all[--l->n];
    }
    return count(s, h) < NEB_UPDATES_UNNAMED;
}
