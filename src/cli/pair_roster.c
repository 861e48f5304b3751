/* pair_roster.c: the roster that a pairing makes or takes. The site that made the code is the operator: it seals the genesis with
 * the settings of `nebula-i roster seal`, or signs an epoch with one more member. Whoever was given the code takes what it
 * gets, after checking that it is a member there and that the site it was paired with is the operator: the signatures of the
 * chain prove the rest. */
#include "cli/pair_roster.h"
#include "cli/log_head.h"
#include "run/influence.h"
#include "run/quorum_fact.h"
#include "run/settings_fact.h"
#include "seal/operators.h"
#include "seal/site.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool has_roster(const char *dir)
{
    char path[PATH_MAX];
    return snprintf(path, sizeof path, "%s/roster", dir) < (int)sizeof path && !access(path, F_OK);
}

static neb_status check_operator(const struct neb_chain *c, const struct neb_member *self)
{
    if (neb__operators_find(&c->operators, &self->key) < 0)
        return neb__quiet(
            NEB_ERR_AUTH,
            "%s has a roster whose operator is somebody else, who alone can add a site: make the code "
            "there, or use another folder",
            self->name);
    if (c->operators.threshold > 1)
        return neb__quiet(
            NEB_ERR_AUTH,
            "%u operators must sign this roster: add the site with `nebula-i roster admit` instead",
            c->operators.threshold);
    return NEB_OK;
}

static neb_status check_beginning(const char *dir, const struct neb_member *self)
{
    struct neb_rekey_head head;
    neb__log_head(dir, &head);
    if (!head.index) return NEB_OK;
    return neb__quiet(
        NEB_ERR_STATE,
        "a run has begun in %s: add a site to it with `nebula-i order %s admit IDENTITY`, and give the "
        "new site the roster",
        self->name, dir);
}

neb_status neb__pair_roster_may(const char *dir, const struct neb_member *self)
{
    struct neb_chain *c;
    if (!has_roster(dir)) return NEB_OK;
    NEB_TRY(check_beginning(dir, self));
    NEB_TRY(neb__site_roster_load(dir, &c));
    neb_status status = check_operator(c, self);
    neb__chain_free(c);
    return status;
}

static neb_status begin(const char *dir, const struct neb_member *self, const struct neb_member *other,
                        struct neb_chain **out)
{
    struct neb_member members[2] = {*self, *other};
    struct neb_roster r = {members, 2};
    struct neb_fact fact[4];
    uint32_t train = 0;
    for (int i = 0; i < 2; i++) train += !(members[i].flags & NEB_MEMBER_WITNESS);
    if (!train) return neb__quiet(NEB_ERR_INVALID, "both sites are witnesses: one must train");
    neb__fact_runs(&fact[0]);
    NEB_TRY(neb__influence_fact(NEB_INFLUENCE_DEFAULT, train, &fact[1]));
    NEB_TRY(neb__quorum_fact("majority", 2, &fact[2]));
    neb__settings_fact(&fact[3]);
    NEB_TRY(neb__roster_meets(&r));
    NEB_TRY(neb__chain_create(&self->key, fact, 4, &r, out));
    neb_status status = neb__site_roster_save(dir, *out);
    if (status != NEB_OK) neb__chain_free(*out);
    return status;
}

static bool same_member(const struct neb_member *a, const struct neb_member *b)
{
    bool same = a->flags == b->flags && a->addresses == b->addresses;
    for (int i = 0; same && i < a->addresses; i++) same = !strcmp(a->address[i], b->address[i]);
    return same;
}

/* `next` has room for one more. Sets *changed. */
static neb_status put_member(struct neb_roster *next, const struct neb_member *other, bool *changed)
{
    struct neb_member *has = NULL;
    for (uint32_t i = 0; i < next->count; i++)
        if (!strcmp(next->members[i].name, other->name)) has = &next->members[i];
    if (has && !neb__public_equal(&has->key, &other->key))
        return neb__quiet(
            NEB_ERR_EXISTS,
            "the roster has another site named '%s', with another key: give the new one another name",
            other->name);
    *changed = !has || !same_member(has, other);
    if (has) {
        uint16_t id = has->id;
        uint8_t votes = has->votes;
        *has = *other;
        has->id = id;
        has->votes = votes;
    } else {
        next->members[next->count++] = *other;
    }
    return NEB_OK;
}

static neb_status sign(const char *dir, struct neb_chain *c, const struct neb_roster *next)
{
    struct neb_key *key = NULL;
    struct neb_hash none = {{0}};
    struct neb_buf b;
    NEB_TRY(neb__site_key(dir, &key));
    const struct neb_key *signers[] = {key};
    neb__buf_init(&b, NEB_EPOCH_BYTES_MAX + 4);
    neb_status status = neb__chain_propose(c, NEB_EPOCH_CHANGE, 0, &none, next, signers, 1, &b);
    if (status == NEB_OK) status = neb__chain_extend(c, b.data, b.len);
    if (status == NEB_OK) status = neb__site_roster_save(dir, c);
    neb__buf_free(&b);
    neb__key_free(key);
    return status;
}

static neb_status admit(const char *dir, const struct neb_member *self, const struct neb_member *other,
                        struct neb_chain *c)
{
    struct neb_roster next = {0};
    bool changed = false;
    NEB_TRY(check_operator(c, self));
    NEB_TRY(neb__roster_copy(&c->now, &next));
    neb_status status = put_member(&next, other, &changed);
    if (status == NEB_OK && changed) status = neb__roster_meets(&next);
    if (status == NEB_OK && changed) status = sign(dir, c, &next);
    neb__roster_free(&next);
    return status;
}

neb_status neb__pair_roster_make(const char *dir, const struct neb_member *self,
                                 const struct neb_member *other, struct neb_chain **out)
{
    struct neb_chain *c;
    if (!has_roster(dir)) return begin(dir, self, other, out);
    NEB_TRY(check_beginning(dir, self));
    NEB_TRY(neb__site_roster_load(dir, &c));
    neb_status status = admit(dir, self, other, c);
    if (status == NEB_OK)
        *out = c;
    else
        neb__chain_free(c);
    return status;
}

/* ---- taking -------------------------------------------------------------------------------------------- */

static neb_status give_up(const char *dir, const struct neb_chain *old, bool replace)
{
    char path[PATH_MAX];
    if (!replace)
        return neb__quiet(
            NEB_ERR_EXISTS,
            "%s takes part in another run already, with another roster; use another site folder, or "
            "--replace to give up that roster and keep the key",
            dir);
    if (snprintf(path, sizeof path, "%s/roster.before", dir) >= (int)sizeof path)
        return neb__quiet(NEB_ERR_INVALID, "path too long: %.80s…", dir);
    return neb__chain_write(old, path, 0600);
}

/* The same roster may be longer there or here. */
static neb_status join(const char *dir, const struct neb_chain *chain, bool replace)
{
    struct neb_chain *old;
    if (!has_roster(dir)) return neb__site_roster_save(dir, chain);
    NEB_TRY(neb__site_roster_load(dir, &old));
    bool same = neb__hash_equal(&old->genesis_hash, &chain->genesis_hash);
    neb_status status =
        same ? neb__chain_extend(old, chain->tail.data, chain->tail.len) : give_up(dir, old, replace);
    if (status == NEB_OK) status = neb__site_roster_save(dir, same ? old : chain);
    neb__chain_free(old);
    return status;
}

neb_status neb__pair_roster_take(const char *dir, const struct neb_member *self,
                                 const struct neb_member *creator, const struct neb_chain *chain,
                                 bool replace)
{
    const struct neb_member *m = neb__roster_by_key(&chain->now, &self->key);
    if (!m || strcmp(m->name, self->name))
        return neb__quiet(NEB_ERR_NOTFOUND, "the roster that came does not name this site");
    if (neb__operators_find(&chain->operators, &creator->key) < 0)
        return neb__quiet(NEB_ERR_AUTH, "the roster that came is not that of %s", creator->name);
    return join(dir, chain, replace);
}
