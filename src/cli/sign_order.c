/* sign_order.c: an order on its way from operator to operator (give_order.h).
 *
 * The file holds the order, the epoch of the links' roster that belongs to it, and the signatures of both so far. It came from
 * somebody else, so everything in it is checked: whoever signed it is an operator of this run, and what it demands is shown before
 * the next one signs. */
#include "cli/give_order.h"
#include "base/file.h"
#include "base/mem.h"
#include "run/operator_parts.h"
#include "seal/site.h"
#include "watch/status.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

struct paper {
    struct neb_chain *chain;
    struct neb_operators set;
    struct neb_hash genesis;
    struct neb_order_file file;
    struct neb_buf bytes, epoch;
};

/* ---- what it says ---------------------------------------------------------------------------------------------- */

static void print_member(const char *label, const struct neb_member *m)
{
    char identity[NEB_IDENTITY_SIZE];
    neb__identity_format(m->name, &m->key, identity);
    printf("  %s %s\n", label, identity);
}

/* What an epoch says of a member besides its key. A learner may get a vote from the log later. */
static void print_role(const struct neb_member *m)
{
    const char *role = m->flags & NEB_MEMBER_WITNESS ? "a witness" : "trains";
    if (m->flags & NEB_MEMBER_OBSERVER) role = "an observer";
    printf("    %s%s, votes %u, addresses", role, m->flags & NEB_MEMBER_LEARNER ? ", a learner" : "",
           m->votes);
    for (int i = 0; i < m->addresses; i++) printf(" %s", m->address[i]);
    printf("%s\n", m->addresses ? "" : " none");
}

static bool same_role(const struct neb_member *a, const struct neb_member *b)
{
    if (a->votes != b->votes || a->flags != b->flags || a->addresses != b->addresses) return false;
    for (int i = 0; i < a->addresses; i++)
        if (strcmp(a->address[i], b->address[i])) return false;
    return true;
}

static void compare_rosters(const struct neb_roster *now, const struct neb_roster *next)
{
    for (uint32_t i = 0; i < next->count; i++) {
        const struct neb_member *m = &next->members[i], *old = neb__roster_by_id(now, m->id);
        if (!old)
            print_member("comes", m);
        else if (!neb__public_equal(&old->key, &m->key))
            print_member("gets the key", m);
        else if (!same_role(old, m))
            print_member("changes", m);
        if (!old || !same_role(old, m)) print_role(m);
    }
    for (uint32_t i = 0; i < now->count; i++)
        if (!neb__roster_by_id(next, now->members[i].id)) print_member("goes", &now->members[i]);
}

static void print_operators(const struct neb_operators *set)
{
    printf("  %u of these operators must sign from then on:\n", set->threshold);
    for (int i = 0; i < set->count; i++) {
        printf("    ");
        for (int k = 0; k < NEB_PUBLIC_SIZE; k++) printf("%02x", set->key[i].b[k]);
        printf("\n");
    }
}

/* FORCE and ADOPT. A site that the roster of this folder does not have is shown by its number. */
static void print_forced(const struct neb_roster *now, const struct neb_members *next)
{
    for (unsigned i = 0; i < NEB_SITES_MAX; i++) {
        const struct neb_member *m = neb__roster_by_id(now, (uint16_t)i);
        const uint64_t bit = neb__bit(i);
        if (!(next->members & bit)) continue;
        if (m)
            print_member("goes on", m);
        else
            printf("  goes on: site %u\n", i);
        printf("    votes %d%s\n", neb__members_votes(next, bit), next->trains & bit ? ", trains" : "");
    }
}

static neb_status print_paper(const struct paper *p)
{
    static const char *const names[NEB_OP_ORDERS] = {
        [NEB_OP_ADMIT] = "admit", [NEB_OP_EVICT] = "evict",
        [NEB_OP_LEAVE] = "leave", [NEB_OP_FORCE] = "force",
        [NEB_OP_ADOPT] = "adopt", [NEB_OP_SURVIVOR] = "survivor",
        [NEB_OP_END] = "end",     [NEB_OP_BUDGET] = "budget",
        [NEB_OP_BOUND] = "bound", [NEB_OP_OPERATORS] = "operators",
        [NEB_OP_REKEY] = "rekey"};
    const struct neb_order *o = &p->file.order;
    const struct neb_member *m = neb__roster_by_id(&p->chain->now, o->site);
    printf("order      %s%s%s behind record %" PRIu64 "\n", names[o->op], m ? " " : "", m ? m->name : "",
           o->index);
    if (o->value && o->op == NEB_OP_BUDGET) printf("  %.1f %% of the lines\n", (double)o->value / 10);
    if (o->op == NEB_OP_BOUND) {
        float bound;
        uint32_t bits = (uint32_t)o->value;
        memcpy(&bound, &bits, sizeof bound);
        printf("  bound %g\n", (double)bound);
    }
    if (o->op == NEB_OP_FORCE || o->op == NEB_OP_ADOPT) print_forced(&p->chain->now, &o->roster);
    if (o->op == NEB_OP_ADMIT) printf("  site %u%s\n", o->site, o->flags & 1 ? " trains" : " does not train");
    if (!p->epoch.len) return NEB_OK;
    struct neb_roster next;
    struct neb_operators set = {.count = 0};
    NEB_TRY(neb__epoch_peek(p->epoch.data, p->epoch.len, &next, &set));
    compare_rosters(&p->chain->now, &next);
    if (set.count) print_operators(&set);
    neb__roster_free(&next);
    return NEB_OK;
}

/* ---- checking -------------------------------------------------------------------------------------------------- */

/* Who has signed so far: operators, but perhaps too few. */
static bool so_far(void *arg, uint64_t since, const char *purpose, const void *b, size_t n,
                   const struct neb_order *o)
{
    struct neb_operators set = *(const struct neb_operators *)arg;
    (void)since;
    set.threshold = 1;
    return neb__operators_signed(&set, purpose, b, n, o);
}

static neb_status read_genesis(const char *folder, struct paper *p)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/run/status.json", folder) >= (int)sizeof path)
        return neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", folder);
    struct neb_status_file *f = NEB_NEW(struct neb_status_file);
    if (!f) return neb__fail(NEB_ERR_NOMEM, "out of memory for a status");
    neb_status status = neb__status_file_read(path, f);
    if (status == NEB_OK) status = neb__chain_run_genesis(p->chain, f->log.run, &p->genesis);
    neb__free(f);
    return status;
}

static neb_status check_paper(struct paper *p, const char *file)
{
    const struct neb_order *o = &p->file.order;
    const struct neb_seal seal = {.arg = &p->set, .by_operators = so_far};
    unsigned signed_by;
    if (o->signer != NEB_BY_OPERATOR)
        return neb__fail(NEB_ERR_INVALID, "%s: a site gives this order for itself; no operator signs it",
                         file);
    if (o->op == NEB_OP_OPERATORS && !p->epoch.len)
        NEB_TRY(neb__operators_before(p->chain, o->value, &p->set));
    if (p->set.count < 2)
        return neb__fail(NEB_ERR_STATE, "the run has one operator, who gives orders alone: nothing to sign");
    if (!neb__order_genuine(o, &p->genesis, &seal, 0))
        return neb__fail(
            NEB_ERR_AUTH,
            "%s: the order is for another run, or somebody signed it who is no operator of this one", file);
    if (!p->epoch.len) return NEB_OK;
    neb_status status = neb__chain_cosign(p->chain, NULL, &p->epoch, &signed_by);
    if (status == NEB_OK) return NEB_OK;
    return neb__fail(status, "%s: its roster does not follow that of the folder (%s): give the order again",
                     file, neb_last_error());
}

static neb_status open_paper(const char *folder, const char *file, struct paper *p)
{
    NEB_TRY(neb__site_roster_load(folder, &p->chain));
    p->set = p->chain->operators;
    NEB_TRY(read_genesis(folder, p));
    NEB_TRY(neb__file_read(file, &p->bytes));
    if (!neb__order_file_read(p->bytes.data, p->bytes.len, &p->file))
        return neb__fail(NEB_ERR_CORRUPT, "%s is not an order file; `nebula-i order … --to FILE` writes one",
                         file);
    if (p->file.epoch_size) NEB_TRY(neb__buf_append(&p->epoch, p->file.epoch, p->file.epoch_size));
    return check_paper(p, file);
}

/* ---- signing --------------------------------------------------------------------------------------------------- */

static neb_status add(struct paper *p, const struct neb_operator_keys *keys)
{
    unsigned signed_by;
    NEB_TRY(neb__order_sign_with(&p->set, keys, &p->genesis, &p->file.order));
    for (uint32_t i = 0; p->epoch.len && i < keys->n; i++)
        NEB_TRY(neb__chain_cosign(p->chain, keys->key[i], &p->epoch, &signed_by));
    p->file.epoch = p->epoch.data;
    return NEB_OK;
}

neb_status neb__order_cosign(const char *folder, const char *operator_, const char *file, char *path,
                             size_t size, unsigned *missing)
{
    struct paper p = {.chain = NULL};
    struct neb_operator_keys keys = {.n = 0};
    if (!operator_ || !*operator_)
        return neb__fail(NEB_ERR_INVALID, "--operator DIR is needed: an operator signs orders");
    neb__buf_init(&p.bytes, NEB_ORDER_FILE_MAX);
    neb__buf_init(&p.epoch, NEB_EPOCH_BYTES_MAX + 4);
    neb_status status = open_paper(folder, file, &p);
    if (status == NEB_OK) status = print_paper(&p);
    if (status == NEB_OK) status = neb__operator_keys(operator_, &keys);
    if (status == NEB_OK) status = add(&p, &keys);
    if (status == NEB_OK) {
        unsigned have = p.file.order.parts, need = p.set.threshold;
        p.file.epoch_size = p.epoch.len;
        *missing = have < need ? need - have : 0;
        snprintf(path, size, "%s", file);
        status = *missing ? neb__order_file_save(file, &p.file)
                          : neb__order_file_write(folder, &p.file, path, size);
    }
    neb__operator_keys_free(&keys);
    neb__buf_free(&p.bytes);
    neb__buf_free(&p.epoch);
    neb__chain_free(p.chain);
    return status;
}
