/* give_order.c: an order is worded, signed and left for a site (give_order.h).
 *
 * The folder of one site of the run says where the log ends (run/status.json). The order holds only behind that record, and lies
 * in run/orders until the site's process passes it on to whoever leads. So an order means one thing in one history, works once,
 * and can be given at any site, even by copying the file there. */
#include "cli/give_order.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "cli/member_words.h"
#include "cli/operator_words.h"
#include "seal/rekey.h"
#include "seal/site.h"
#include "watch/status.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The run that an order is for, as one site knows it. */
struct place {
    const char *folder;
    struct neb_chain *chain;
    struct neb_operator_keys keys; /* sign */
    struct neb_operators set;      /* of whom enough must sign */
    struct neb_members roster;     /* of the log */
    uint64_t index;
    struct neb_hash head, genesis;
};

/* ---- where the log ends ------------------------------------------------------------------------------------------ */

static bool read_hash(const char *hex, struct neb_hash *out)
{
    if (!hex || strlen(hex) != 2 * NEB_HASH_SIZE) return false;
    for (int i = 0; i < NEB_HASH_SIZE; i++)
        if (sscanf(hex + 2 * i, "%2hhx", &out->b[i]) != 1) return false;
    return true;
}

static neb_status check_log_end(struct place *p, const struct neb_status_log *log, const char *path)
{
    p->index = (uint64_t)log->record;
    p->roster = (struct neb_members){.epoch = (uint32_t)log->epoch,
                                     .members = (uint64_t)log->members,
                                     .voters = (uint64_t)log->voters,
                                     .trains = (uint64_t)log->trains,
                                     .heavy = (uint16_t)log->heavy};
    if (!read_hash(log->hash, &p->head))
        return neb__fail(NEB_ERR_NOTFOUND, "%s: no run has been under way in this folder (%s)", p->folder,
                         path);
    NEB_TRY(neb__chain_run_genesis(p->chain, log->run, &p->genesis));
    if (p->index) return NEB_OK;
    return neb__fail(NEB_ERR_STATE, "the run has no record yet that an order could name: wait for the first "
                                    "round, or change the roster before the sites start (nebula-i roster)");
}

static neb_status read_log_end(struct place *p)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/run/status.json", p->folder) >= (int)sizeof path)
        return neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", p->folder);
    struct neb_status_file *f = NEB_NEW(struct neb_status_file);
    if (!f) return neb__fail(NEB_ERR_NOMEM, "out of memory for a status");
    neb_status status = neb__status_file_read(path, f);
    if (status == NEB_OK || status == NEB_ERR_NOTFOUND) status = check_log_end(p, &f->log, path);
    neb__free(f);
    return status;
}

/* ---- wording ----------------------------------------------------------------------------------------------------- */

static neb_status site_named(const struct place *p, const char *name, uint16_t *id)
{
    const struct neb_member *m = neb__roster_by_name(&p->chain->now, name);
    if (!m || !(p->roster.members & neb__bit(m->id)))
        return neb__fail(NEB_ERR_NOTFOUND, "the run has no member '%s' (nebula-i roster show %s)", name,
                         p->folder);
    *id = m->id;
    return NEB_OK;
}

/* The next epoch of the links' roster, without the members whose bit is in `gone`, with *add. */
static neb_status new_epoch(struct place *p, uint64_t gone, const struct neb_member *add, struct neb_buf *out)
{
    struct neb_roster next = {0};
    NEB_TRY(neb__roster_copy(&p->chain->now, &next)); /* with room for one more */
    uint32_t n = 0;
    for (uint32_t i = 0; i < next.count; i++)
        if (!(neb__bit(next.members[i].id) & gone)) next.members[n++] = next.members[i];
    if (add) next.members[n++] = *add;
    next.count = n;
    neb_status status =
        neb__chain_propose(p->chain, gone ? NEB_EPOCH_EVICT : NEB_EPOCH_CHANGE, p->index, &p->head, &next,
                           (const struct neb_key *const *)p->keys.key, p->keys.n, out);
    neb__roster_free(&next);
    return status;
}

static neb_status admit(struct place *p, const struct neb_demand *d, struct neb_order *order,
                        struct neb_buf *epoch)
{
    struct neb_member m = {.flags = (uint8_t)(NEB_MEMBER_LEARNER | (d->witness ? NEB_MEMBER_WITNESS : 0))};
    if (d->observer) m.flags = NEB_MEMBER_OBSERVES;
    NEB_TRY(neb__member_identity(d->words[0], &m));
    for (int i = 1; i < d->n; i++) NEB_TRY(neb__member_address(&m, d->words[i]));
    if (neb__roster_by_name(&p->chain->now, m.name))
        return neb__fail(NEB_ERR_EXISTS, "'%s' is a member already", m.name);
    NEB_TRY(new_epoch(p, 0, &m, epoch));
    order->site = (uint16_t)(p->chain->last_id + 1);
    order->flags = d->witness || d->observer ? 0 : 1;
    if (order->site >= NEB_SITES_MAX)
        return neb__fail(NEB_ERR_LIMIT, "a run has at most %d sites over its life", NEB_SITES_MAX);
    return NEB_OK;
}

static neb_status evict(struct place *p, const char *name, struct neb_order *order, struct neb_buf *epoch)
{
    NEB_TRY(site_named(p, name, &order->site));
    struct neb_members next;
    neb__order_roster(order, &p->roster, &next);
    if (!neb__members_follows(&p->roster, &next))
        return neb__fail(NEB_ERR_INVALID, "without '%s' the others cannot be sure of a majority: see `force`",
                         name);
    return new_epoch(p, neb__bit(order->site), NULL, epoch);
}

static uint64_t observers(const struct neb_chain *chain)
{
    uint64_t set = 0;
    for (uint32_t i = 0; i < chain->now.count; i++)
        if (chain->now.members[i].flags & NEB_MEMBER_OBSERVER) set |= neb__bit(chain->now.members[i].id);
    return set;
}

/* FORCE and ADOPT: a whole roster. */
static neb_status restrict_to(struct place *p, int n, char **names, struct neb_order *order,
                              struct neb_buf *epoch)
{
    uint64_t left = 0;
    for (int i = 0; i < n; i++) {
        uint16_t id = 0;
        NEB_TRY(site_named(p, names[i], &id));
        left |= neb__bit(id);
    }
    struct neb_members r = p->roster;
    r.members &= left, r.voters &= left, r.trains &= left;
    if (!(r.trains & r.members)) r.trains |= r.members & ~observers(p->chain);
    if (!(left & neb__bit(r.heavy))) r.heavy = NEB_NO_SITE;
    r.epoch += 2; /* one for a change that may be under way */
    if (!n || !neb__members_valid(&r))
        return neb__fail(NEB_ERR_INVALID, "name the sites that go on, at least one of them with a vote");
    order->epoch = r.epoch;
    order->roster = r;
    uint64_t gone = p->roster.members & ~left;
    return gone ? new_epoch(p, gone, NULL, epoch) : NEB_OK;
}

/* An epoch that a first try has brought into the chain already is not made again; the order still is the old operators'. */
static neb_status operators(struct place *p, const struct neb_demand *d, struct neb_order *order,
                            struct neb_buf *epoch)
{
    struct neb_operators next;
    NEB_TRY(neb__operator_set(d->words[0], d->threshold, &next));
    order->value = p->chain->epoch + 1;
    if (!neb__operators_equal(&next, &p->chain->operators))
        return neb__chain_propose_operators(p->chain, &next, p->index, &p->head,
                                            (const struct neb_key *const *)p->keys.key, p->keys.n, epoch);
    order->value = p->chain->operators_epoch;
    if (!order->value) return neb__fail(NEB_ERR_EXISTS, "these are the operators of the run already");
    return neb__operators_before(p->chain, order->value, &p->set);
}

/* As with operators: a first try may have brought the key into the chain already. */
static neb_status renew(struct place *p, const char *text, size_t n, struct neb_order *order,
                        struct neb_buf *epoch)
{
    struct neb_roster next;
    struct neb_rekey_head head;
    uint16_t site = 0;
    if (neb__rekey_taken(text, n, p->chain, &site)) {
        order->site = site;
        order->value = p->chain->epoch;
        return NEB_OK;
    }
    NEB_TRY(neb__rekey_check(text, n, p->chain, &next, &head));
    for (uint32_t i = 0; i < next.count; i++)
        if (!neb__public_equal(&next.members[i].key, &p->chain->now.members[i].key))
            site = next.members[i].id;
    order->site = site;
    order->value = p->chain->epoch + 1;
    neb_status status = neb__chain_propose(p->chain, NEB_EPOCH_CHANGE, p->index, &p->head, &next,
                                           (const struct neb_key *const *)p->keys.key, p->keys.n, epoch);
    neb__roster_free(&next);
    return status;
}

static neb_status rekey(struct place *p, const char *file, struct neb_order *order, struct neb_buf *epoch)
{
    struct neb_buf text;
    neb__buf_init(&text, 4096);
    neb_status status = neb__file_read(file, &text);
    if (status == NEB_OK) status = renew(p, (const char *)text.data, text.len, order, epoch);
    neb__buf_free(&text);
    if (status == NEB_OK && !(p->roster.members & neb__bit(order->site)))
        return neb__fail(NEB_ERR_NOTFOUND, "the site is no member of the run");
    return status;
}

static neb_status bound(const char *text, uint64_t *out)
{
    char *end;
    float x = strcmp(text, "none") ? strtof(text, &end) : 0;
    if (strcmp(text, "none") && (*end || !(x > 0) || !isfinite(x)))
        return neb__fail(NEB_ERR_INVALID, "'%s' is not a bound: a positive number, or none", text);
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    *out = bits;
    return NEB_OK;
}

static neb_status budget(const char *text, uint64_t *out)
{
    char *end;
    double x = strtod(text, &end);
    if (*end == '%') end++;
    if (*end || !(x >= 0.1 && x <= 100))
        return neb__fail(NEB_ERR_INVALID, "'%s' is not a share: 0.1 to 100 percent", text);
    *out = (uint64_t)lround(10 * x);
    return NEB_OK;
}

static neb_status word(struct place *p, const struct neb_demand *d, struct neb_order *order,
                       struct neb_buf *epoch)
{
    char **words = d->words;
    *order = (struct neb_order){
        .op = d->op, .signer = NEB_BY_OPERATOR, .epoch = p->roster.epoch, .index = p->index, .head = p->head};
    switch (d->op) {
    case NEB_OP_ADMIT: return admit(p, d, order, epoch);
    case NEB_OP_EVICT: return evict(p, words[0], order, epoch);
    case NEB_OP_FORCE:
    case NEB_OP_ADOPT: return restrict_to(p, d->n, words, order, epoch);
    case NEB_OP_OPERATORS: return operators(p, d, order, epoch);
    case NEB_OP_REKEY: return rekey(p, words[0], order, epoch);
    case NEB_OP_BUDGET: return budget(words[0], &order->value);
    case NEB_OP_BOUND: return bound(words[0], &order->value);
    case NEB_OP_SURVIVOR:
        order->site = NEB_NO_SITE;
        return strcmp(words[0], "none") ? site_named(p, words[0], &order->site) : NEB_OK;
    case NEB_OP_LEAVE: {
        char name[NEB_NAME_SIZE];
        struct neb_public key;
        NEB_TRY(neb__site_identity(p->folder, name, &key));
        NEB_TRY(site_named(p, name, &order->site));
        order->signer = order->site;
        return NEB_OK;
    }
    default: return NEB_OK;
    }
}

/* ---- giving ------------------------------------------------------------------------------------------------------ */

static neb_status sign(void *arg, const char *purpose, const void *b, size_t n, uint8_t out[NEB_SEAL_SIZE])
{
    struct neb_signature s;
    NEB_TRY(neb__key_sign(arg, purpose, b, n, &s));
    memcpy(out, s.b, NEB_SEAL_SIZE);
    return NEB_OK;
}

/* One operator signs the order as a whole, several one by one. */
neb_status neb__order_sign_with(const struct neb_operators *set, const struct neb_operator_keys *keys,
                                const struct neb_hash *genesis, struct neb_order *order)
{
    for (uint32_t i = 0; i < keys->n; i++) {
        const struct neb_seal seal = {.arg = keys->key[i], .sign = sign};
        struct neb_public key;
        if (set->count == 1 || order->signer != NEB_BY_OPERATOR)
            return neb__order_sign(order, genesis, &seal);
        neb__key_public(keys->key[i], &key);
        int who = neb__operators_find(set, &key);
        if (who < 0)
            return neb__fail(NEB_ERR_AUTH,
                             "not a key of the run's %u operators: --operator DIR, the folder of "
                             "one of them",
                             set->count);
        neb_status status = neb__order_sign_part(order, (uint8_t)who, genesis, &seal);
        if (status != NEB_OK) return neb__fail(status, "%s", neb_last_error());
    }
    return NEB_OK;
}

/* The file goes away when the order is carried out, and gets another name when it is refused. */
enum neb_order_fate neb__order_fate(const char *path)
{
    char refused[PATH_MAX + 16], late[PATH_MAX + 16];
    snprintf(refused, sizeof refused, "%s.refused", path);
    snprintf(late, sizeof late, "%s.late", path);
    bool gone = access(path, F_OK) != 0; /* looked at first: once it is gone, its new name is there */
    if (!access(refused, F_OK)) return NEB_FATE_REFUSED;
    if (!unlink(late)) return NEB_FATE_LATE;
    return gone ? NEB_FATE_DONE : NEB_FATE_WAITING;
}

/* In the site's folder when enough have signed, else in a file for the other operators. */
static neb_status leave(const struct place *p, const struct neb_demand *d, const struct neb_order_file *f,
                        char *path, size_t size, unsigned *missing)
{
    const struct neb_operators *set = &p->set;
    bool parts = f->order.signer == NEB_BY_OPERATOR && set->count > 1;
    unsigned have = f->order.parts, need = set->threshold;
    *missing = parts && have < need ? need - have : 0;
    if (!*missing) return neb__order_file_write(p->folder, f, path, size);
    if (!d->to || !*d->to)
        return neb__fail(NEB_ERR_INVALID,
                         "%u of %u operators must sign: give the folders of %u (--operator DIR,DIR), or --to "
                         "FILE, which the others sign with `nebula-i order FOLDER sign FILE`",
                         set->threshold, set->count, set->threshold);
    snprintf(path, size, "%s", d->to);
    return neb__order_file_save(path, f);
}

neb_status neb__order_give(const char *folder, const char *operator_, const struct neb_demand *d, char *path,
                           size_t size, unsigned *missing)
{
    struct place p = {.folder = folder};
    struct neb_order order;
    struct neb_buf epoch;
    bool own = d->op == NEB_OP_LEAVE;
    if (!own && (!operator_ || !*operator_))
        return neb__fail(NEB_ERR_INVALID, "--operator DIR is needed: the operator signs orders");
    neb__buf_init(&epoch, NEB_EPOCH_BYTES_MAX + 4);
    neb_status status = neb__site_roster_load(folder, &p.chain);
    if (status == NEB_OK) p.set = p.chain->operators;
    if (status == NEB_OK) status = read_log_end(&p);
    if (status == NEB_OK) status = neb__operator_keys(own ? folder : operator_, &p.keys);
    if (status == NEB_OK) status = word(&p, d, &order, &epoch);
    if (status == NEB_OK) status = neb__order_sign_with(&p.set, &p.keys, &p.genesis, &order);
    const struct neb_order_file f = {.order = order, .epoch = epoch.data, .epoch_size = epoch.len};
    if (status == NEB_OK) status = leave(&p, d, &f, path, size, missing);
    neb__buf_free(&epoch);
    neb__operator_keys_free(&p.keys);
    neb__chain_free(p.chain);
    return status;
}
