/* audit.c: one folder, checked from the genesis to the last record.
 *
 *   rosters        each epoch of the chain is signed as roster.c demands (checked when the chain is read)
 *   records        canonical, numbered, chained by hash to the genesis of the run
 *   orders         signed by who may give them
 *   secure sums    opened, named and unmasked as the ones before them allow (audit_sums.c)
 *   certificates   a quorum of the voters of their epoch signed this very record
 *   updates        named by their hash, signed by their site under a key that it had, with the fields that the record says
 *   privacy        what each site says that it has spent follows from its own statements, and stays within its limit
 *   state          with all updates in the folder the outer state is computed again, from the initial values in the folder
 *   guilt          sites of which a proof of lying was kept; the proof itself is checked, not the name of its file
 *
 * A problem is noted and the audit goes on. An update that was cleaned up is no problem; its signature is then not checked. */
#include "run/audit.h"
#include "base/mem.h"
#include "round/certificate.h"
#include "round/proof.h"
#include "round/round.h"
#include "run/audit_sums.h"
#include "run/operator_parts.h"
#include "run/quorum_fact.h"
#include "run/replay.h"
#include "seal/site.h"
#include "store/ledger.h"
#include "store/update_files.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROOF_MAX = 1 << 20 };

/* What an update says of its site's privacy. */
struct stated {
    unsigned site;
    uint64_t k; /* of the update */
    bool any;   /* false: nothing */
    struct neb_privacy_statement statement;
};

struct audit {
    struct neb_audit *out;
    const char *folder;
    struct neb_chain *chain;
    struct neb_disk disk;
    struct neb_update_files updates;
    enum neb_quorum_rule quorum;
    struct neb_seal seal;
    struct neb_members first, now; /* of the log: at its beginning, and at the record in hand */
    uint64_t operators;            /* the set in force at the record in hand */
    struct neb_ledger_found log;
    struct neb_record **record; /* (log.records) NULL: not a record */
    struct neb_hash *hash;      /* (log.records) */
    struct {
        struct neb_public *list; /* every key that the site ever had, the newest last */
        uint64_t n;
    } key[NEB_SITES_MAX];
    struct neb_audit_sums sums;
    struct stated *stated; /* of the updates that were seen */
    size_t n_stated, room;
    neb_status status; /* of walking the chain */
    bool complete;     /* every update that is used was seen */
};

__attribute__((format(printf, 2, 3))) static void problem(struct audit *a, const char *fmt, ...)
{
    uint64_t n = a->out->problems++;
    va_list args;
    va_start(args, fmt);
    if (n < NEB_AUDIT_PROBLEMS) vsnprintf(a->out->problem[n], NEB_AUDIT_TEXT, fmt, args);
    va_end(args);
}

/* ---- keys ---------------------------------------------------------------------------------------------- */

static bool signed_by(const struct neb_public *key, const char *purpose, const void *p, size_t n,
                      const uint8_t signature[NEB_SEAL_SIZE])
{
    struct neb_signature given;
    memcpy(given.b, signature, NEB_SEAL_SIZE);
    return neb__key_verify(key, purpose, p, n, &given) == NEB_OK;
}

/* By any key that the site had in any epoch: the chain says which, and a record may be older than the newest. */
static bool verify(void *arg, unsigned signer, const char *purpose, const void *p, size_t n,
                   const uint8_t signature[NEB_SEAL_SIZE])
{
    struct audit *a = arg;
    signer &= ~NEB_BY_FORMER;
    if (signer >= NEB_SITES_MAX) return false;
    for (uint64_t i = a->key[signer].n; i-- > 0;)
        if (signed_by(&a->key[signer].list[i], purpose, p, n, signature)) return true;
    return false;
}

struct question {
    uint64_t since, set;
    bool first, answer; /* first: the set with which the log begins is looked for */
    const char *purpose;
    const void *p;
    size_t n;
    const struct neb_order *order;
};

static void ask_set(void *arg, uint64_t epoch, uint64_t head, const struct neb_operators *set)
{
    struct question *q = arg;
    if (q->first && !head) q->set = epoch;
    if (q->order && epoch >= q->since)
        q->answer |= neb__operators_signed(set, q->purpose, q->p, q->n, q->order);
    else if (!q->order)
        q->answer |= epoch == q->since;
}

static bool by_operators(void *arg, uint64_t since, const char *purpose, const void *p, size_t n,
                         const struct neb_order *o)
{
    struct audit *a = arg;
    struct question q = {.since = since, .purpose = purpose, .p = p, .n = n, .order = o};
    return neb__chain_walk_operators(a->chain, ask_set, &q) == NEB_OK && q.answer;
}

/* From the record behind this one on, orders are signed by other operators, whom the chain must have. */
static void follow_operators(struct audit *a, const struct neb_record *rec)
{
    struct question q = {.since = rec->order->value};
    if (neb__chain_walk_operators(a->chain, ask_set, &q) != NEB_OK || !q.answer || q.since <= a->operators)
        problem(a, "record %" PRIu64 ": the roster does not have the operators that it names", rec->index);
    else
        a->operators = q.since;
}

static void learn_member(struct audit *a, const struct neb_member *m)
{
    struct neb_audit_site *site = &a->out->site[m->id];
    uint64_t n = a->key[m->id].n;
    site->member = true;
    snprintf(site->name, sizeof site->name, "%s", m->name);
    if (n && neb__public_equal(&a->key[m->id].list[n - 1], &m->key)) return;
    struct neb_public *list = neb__realloc(a->key[m->id].list, (n + 1) * sizeof *list);
    if (!list) {
        a->status = neb__fail(NEB_ERR_NOMEM, "out of memory for an audit");
        return;
    }
    list[n] = m->key;
    a->key[m->id].list = list;
    site->keys = a->key[m->id].n = n + 1;
}

static void learn_epoch(void *arg, uint64_t epoch, uint64_t head, const struct neb_roster *r)
{
    struct audit *a = arg;
    (void)head;
    a->out->epochs = epoch;
    for (uint32_t i = 0; i < r->count; i++)
        if (r->members[i].id < NEB_SITES_MAX) learn_member(a, &r->members[i]);
}

/* ---- records ------------------------------------------------------------------------------------------- */

static void check_order(struct audit *a, const struct neb_record *rec)
{
    a->out->orders++;
    if (!neb__order_genuine(rec->order, &a->out->genesis, &a->seal, a->operators))
        problem(a, "record %" PRIu64 ": the order is not signed by who gives it", rec->index);
    else if (!neb__order_may(rec->order, &a->now))
        problem(a, "record %" PRIu64 ": its signer may not give this order", rec->index);
    else if (rec->type == NEB_RECORD_ORDER && rec->order->op == NEB_OP_OPERATORS)
        follow_operators(a, rec);
}

static void follow_roster(struct audit *a, const struct neb_record *rec)
{
    if (rec->type == NEB_RECORD_FORCED) {
        a->out->forced++;
        if (!neb__members_equal(&rec->order->roster, &rec->roster))
            problem(a, "record %" PRIu64 ": the forced roster is not the one that was ordered", rec->index);
    } else if (!neb__members_follows(&a->now, &rec->roster) &&
               !(rec->ordered && rec->order->op == NEB_OP_REKEY &&
                 neb__members_renews(&a->now, &rec->roster))) {
        problem(a, "record %" PRIu64 ": the roster does not follow from the one before", rec->index);
    }
    a->out->rosters++;
    a->now = rec->roster;
}

static void count_site(struct audit *a, const struct neb_record *rec, const struct neb_named *p)
{
    struct neb_audit_site *site = &a->out->site[p->site];
    site->named++;
    if (p->reject) site->rejected++, a->out->rejected++;
    site->steps += p->tau;
    site->tokens += p->tokens;
    if (!(a->now.members & neb__bit(p->site)))
        problem(a, "record %" PRIu64 " names an update of site %u, which was not a member", rec->index,
                p->site);
    else if (!(a->now.trains & neb__bit(p->site)))
        problem(a, "record %" PRIu64 " names an update of site %u, which does not train", rec->index,
                p->site);
}

static void check_record(struct audit *a, uint64_t i)
{
    const uint8_t *bytes = a->log.bytes.data + a->log.at[i];
    const struct neb_hash *before = i ? &a->hash[i - 1] : &a->out->genesis;
    if (neb__hash(bytes, a->log.size[i], &a->hash[i]) != NEB_OK ||
        neb__record_decode(bytes, a->log.size[i], &a->record[i]) != NEB_OK) {
        problem(a, "record %" PRIu64 " is not a record in canonical form", i + 1);
        return;
    }
    const struct neb_record *rec = a->record[i];
    if (rec->index != i + 1)
        problem(a, "record %" PRIu64 " says that it is number %" PRIu64, i + 1, rec->index);
    if (!neb__hash_equal(&rec->prev, before))
        problem(a, "record %" PRIu64 " does not continue the one before it: the log was changed", i + 1);
    if (rec->ordered) check_order(a, rec);
    if (rec->type == NEB_RECORD_ROSTER || rec->type == NEB_RECORD_FORCED) follow_roster(a, rec);
    const char *wrong = neb__audit_sums_add(&a->sums, rec, &a->now);
    if (wrong) problem(a, "record %" PRIu64 " %s", rec->index, wrong);
    if (rec->type == NEB_RECORD_FINAL) a->out->ended = true;
    if (rec->type != NEB_RECORD_ROUND) return;
    a->out->rounds++;
    for (uint32_t k = 0; k < rec->updates; k++) count_site(a, rec, &rec->update[k]);
}

/* ---- certificates -------------------------------------------------------------------------------------- */

static bool roster_of(const struct audit *a, uint32_t epoch, struct neb_members *out)
{
    for (uint64_t i = a->log.records; i > 0; i--) {
        const struct neb_record *rec = a->record[i - 1];
        if (!rec || (rec->type != NEB_RECORD_ROSTER && rec->type != NEB_RECORD_FORCED)) continue;
        *out = rec->roster;
        if (rec->roster.epoch == epoch) return true;
    }
    *out = a->first;
    return a->first.epoch == epoch;
}

static void check_certificate(struct audit *a, const uint8_t *bytes, size_t n)
{
    struct neb_certificate c;
    struct neb_members m;
    struct neb_reader in = {bytes, n, false};
    uint8_t kind = a->quorum == NEB_QUORUM_BYZANTINE ? NEB_SAID_PREPARED : NEB_SAID_HOLDS;
    if (!neb__certificate_get(&in, &c)) {
        problem(a, "a certificate is not in canonical form");
        return;
    }
    if (!c.n || c.kind != kind || c.index > a->log.records)
        return; /* of a first phase, or newer than the log */
    bool replaced = c.index && !neb__hash_equal(&c.hash, &a->hash[c.index - 1]);
    bool valid =
        roster_of(a, c.epoch, &m) && neb__certificate_valid(&c, &m, a->quorum, &a->out->genesis, &a->seal);
    if (replaced && valid && !a->out->forced) /* an operator who forces a roster may drop records */
        problem(a,
                "a quorum certified another record %" PRIu64
                ": the log was changed, or there are two histories",
                c.index);
    if (replaced) return;
    if (!valid) {
        problem(a, "the certificate of record %" PRIu64 " is not signed by a quorum of epoch %u", c.index,
                c.epoch);
        return;
    }
    a->out->certificates++;
    if (c.index > a->out->certified) a->out->certified = c.index;
}

static void check_certificates(struct audit *a)
{
    struct neb_buf newest;
    for (size_t i = 0; i < a->log.extras; i++)
        if (a->log.extra[i].kind == NEB_EXTRA_CERTIFICATE)
            check_certificate(a, a->log.extra[i].bytes, a->log.extra[i].length);
    neb__buf_init(&newest, NEB_CERTIFICATE_MAX);
    if (neb__blob_load(&a->disk, "certificate", &newest) == NEB_OK)
        check_certificate(a, newest.data, newest.len);
    neb__buf_free(&newest);
    if (a->quorum == NEB_QUORUM_OLD) return;
    if (a->log.records && !a->out->certified)
        problem(a,
                "no certificate covers any of the %" PRIu64 " records: nothing proves that a quorum has them",
                a->log.records);
    else if (a->out->ended && a->out->certified < a->log.records)
        problem(a,
                "the run has ended, and no certificate covers the records behind %" PRIu64
                ": nothing proves that a quorum has them",
                a->out->certified);
}

/* ---- updates and privacy ------------------------------------------------------------------------------- */

static bool fields_agree(const struct neb_record *rec, const struct neb_named *p,
                         const struct neb_update_header *h)
{
    return h->site == p->site && h->k == p->k && h->b == p->b && h->c0 == rec->c0 && h->c1 == rec->c1 &&
           h->weight == p->weight && h->tau == p->tau && h->length == p->length && h->tokens == p->tokens &&
           h->attempt == rec->attempt;
}

static neb_status add_statement(struct audit *a, const struct neb_record *rec, const struct neb_named *p,
                                const struct neb_update_header *h, const uint8_t *bytes)
{
    struct stated s = {.site = p->site, .k = p->k, .any = h->before};
    if (s.any && neb__privacy_statement_get(bytes + NEB_UPDATE_HEADER_SIZE, 8 * (size_t)h->before,
                                            &s.statement) != NEB_OK) {
        problem(a, "record %" PRIu64 ": %s's statement of privacy cannot be read", rec->index,
                a->out->site[p->site].name);
        return NEB_OK;
    }
    if (a->n_stated == a->room) {
        size_t room = a->room ? 2 * a->room : 64;
        struct stated *more = neb__realloc(a->stated, room * sizeof *more);
        if (!more) return neb__fail(NEB_ERR_NOMEM, "out of memory for an audit");
        a->stated = more;
        a->room = room;
    }
    a->stated[a->n_stated++] = s;
    return NEB_OK;
}

static int by_number(const void *x, const void *y)
{
    const struct stated *a = x, *b = y;
    if (a->site != b->site) return a->site < b->site ? -1 : 1;
    if (a->k != b->k) return a->k < b->k ? -1 : 1;
    return 0;
}

/* Records name the updates of two fragments in any order. A site's account follows the numbers of its updates. */
static neb_status add_up(struct audit *a)
{
    if (a->n_stated) qsort(a->stated, a->n_stated, sizeof *a->stated, by_number);
    for (size_t i = 0; i < a->n_stated; i++) {
        struct neb_audit_site *site = &a->out->site[a->stated[i].site];
        if (a->stated[i].any) {
            site->unit = a->stated[i].statement.unit;
            NEB_TRY(neb__privacy_sum_add(&site->privacy, &a->stated[i].statement));
        } else {
            site->silent += site->privacy.updates > 0;
        }
    }
    return NEB_OK;
}

static neb_status check_update(struct audit *a, const struct neb_record *rec, const struct neb_named *p)
{
    struct neb_update_header h;
    struct neb_buf b;
    struct neb_audit_site *site = &a->out->site[p->site];
    neb__buf_init(&b, (size_t)1 << 31);
    neb_status status = neb__update_load(&a->updates, &p->hash, &b);
    if (status == NEB_OK) status = neb__update_header_get(b.data, b.len, &h);
    /* The ROUND that ends a sum names its updates once more, and says whether they are used. */
    const bool again = rec->type != NEB_RECORD_ROUND;
    if (status != NEB_OK) {
        neb__buf_free(&b);
        if (!p->reject && !again) a->complete = false;
        if (status == NEB_ERR_CORRUPT) problem(a, "record %" PRIu64 ": an update is damaged", rec->index);
        return status == NEB_ERR_NOMEM ? status : NEB_OK;
    }
    site->seen += !again;
    if (!fields_agree(rec, p, &h))
        problem(a, "record %" PRIu64 " says other things of %s's update than its header", rec->index,
                site->name);
    if (!neb__update_header_genuine(&h, b.data + NEB_UPDATE_HEADER_SIZE, &a->out->genesis, &a->seal))
        problem(a, "record %" PRIu64 ": %s did not sign its update", rec->index, site->name);
    if (!again) status = add_statement(a, rec, p, &h, b.data);
    neb__buf_free(&b);
    return status;
}

static neb_status check_updates(struct audit *a)
{
    a->complete = true;
    for (uint64_t i = 0; i < a->log.records; i++)
        for (uint32_t k = 0; a->record[i] && k < a->record[i]->updates; k++)
            NEB_TRY(check_update(a, a->record[i], &a->record[i]->update[k]));
    return add_up(a);
}

static void judge_privacy(struct audit *a)
{
    for (int i = 0; i < NEB_SITES_MAX; i++) {
        const struct neb_audit_site *s = &a->out->site[i];
        const struct neb_privacy_sum *p = &s->privacy;
        if (p->understated)
            problem(a, "%s stated less than it spent: epsilon %.6g follows from its updates, it said %.6g",
                    s->name, p->epsilon, p->said);
        if (p->beyond) problem(a, "%s went on beyond its privacy budget of epsilon %.6g", s->name, p->limit);
        if (p->fell) problem(a, "%s counted less than it sent, or counted down", s->name);
        if (s->silent)
            problem(a, "%s sent %" PRIu64 " updates without a statement of privacy after others with one",
                    s->name, s->silent);
    }
}

/* ---- the rest ------------------------------------------------------------------------------------------ */

static const struct neb_hash *court_hash(const void *arg, uint64_t index)
{
    const struct audit *a = arg;
    return index && index <= a->log.records ? &a->hash[index - 1] : &a->out->genesis;
}

static bool court_roster(const void *arg, uint32_t epoch, struct neb_members *out)
{
    return roster_of(arg, epoch, out);
}

static uint32_t court_forced(const void *arg, uint64_t index)
{
    const struct audit *a = arg;
    for (uint64_t i = index < a->log.records ? index : a->log.records; i > 0; i--) {
        const struct neb_record *rec = a->record[i - 1];
        if (rec && rec->type == NEB_RECORD_FORCED) return rec->roster.epoch;
    }
    return 0;
}

/* As neb__start_may_cut() has it, for a log that is at its end. */
static bool court_may_cut(const void *arg, const struct neb_said *start, uint32_t forced)
{
    const struct audit *a = arg;
    for (uint64_t i = a->log.records; i > 0; i--) {
        const struct neb_record *rec = a->record[i - 1];
        if (!rec || rec->type != NEB_RECORD_FORCED || rec->roster.epoch != start->epoch) continue;
        return a->quorum == NEB_QUORUM_BYZANTINE ? start->view <= rec->view : forced < start->epoch;
    }
    return false;
}

/* Whom the statements in the file convict, or NEB_NO_SITE. */
static unsigned convicted(const struct audit *a, const struct neb_buf *file)
{
    const struct neb_court court = {.genesis = &a->out->genesis,
                                    .seal = &a->seal,
                                    .quorum = a->quorum,
                                    .head = a->log.records,
                                    .hash = court_hash,
                                    .roster = court_roster,
                                    .forced = court_forced,
                                    .may_cut = court_may_cut,
                                    .log = a};
    struct neb_said *said = NEB_NEW_ARRAY(struct neb_said, NEB_PROOF_SAID_MAX);
    struct neb_reader in = {file->data, file->len, false};
    unsigned site = NEB_NO_SITE;
    int n = 0;
    while (said && n < NEB_PROOF_SAID_MAX && in.left && neb__said_get(&in, &said[n])) n++;
    if (said && n >= 2 && !in.left) site = neb__proof_convicts(&court, said, n);
    neb__free(said);
    return site;
}

static void one_guilty(void *arg, const char *file)
{
    struct audit *a = arg;
    struct neb_buf proof;
    unsigned site;
    char end;
    if (sscanf(file, "guilt-%u%c", &site, &end) != 1 || site >= NEB_SITES_MAX) return;
    neb__buf_init(&proof, PROOF_MAX);
    bool proven = neb__blob_load(&a->disk, file, &proof) == NEB_OK && convicted(a, &proof) == site;
    neb__buf_free(&proof);
    a->out->site[site].guilty |= proven;
    if (proven)
        problem(a, "site %s is proven to lie: it signed statements that contradict each other (%s)",
                a->out->site[site].name, file);
    else
        problem(a,
                "%s proves nothing against site %u: it is damaged, forged, or of records that were replaced",
                file, site);
}

static void replay(struct audit *a)
{
    struct neb_replay r;
    if (!a->complete) return;
    neb_status status = neb__run_replay_under(a->chain, a->folder, *a->out->run ? a->out->run : NULL, 0, &r);
    if (status == NEB_ERR_CORRUPT) problem(a, "the log cannot be replayed: %s", neb_last_error());
    if (status != NEB_OK) return;
    a->out->replayed = true;
    a->out->root = r.root;
}

static neb_status check_log(struct audit *a)
{
    struct neb_ledger ledger;
    NEB_TRY(neb__ledger_open(&a->disk, &ledger, &a->log));
    if (a->log.damaged) problem(a, "the ledger is damaged: records are missing at its end");
    a->out->records = a->log.records;
    a->record = NEB_NEW_ARRAY(struct neb_record *, a->log.records + 1);
    a->hash = NEB_NEW_ARRAY(struct neb_hash, a->log.records + 1);
    if (!a->record || !a->hash) return neb__fail(NEB_ERR_NOMEM, "out of memory for an audit");
    a->now = a->first;
    for (uint64_t i = 0; i < a->log.records; i++) check_record(a, i);
    a->out->head = a->log.records ? a->hash[a->log.records - 1] : a->out->genesis;
    check_certificates(a);
    NEB_TRY(neb__update_files_open(&a->disk, 0, &a->updates));
    NEB_TRY(check_updates(a));
    judge_privacy(a);
    return a->disk.ops->list(a->disk.ctx, "guilt-", one_guilty, a);
}

struct wanted {
    const char *folder;
    char *name;
};

static void note_name(void *arg, const char *folder, const char *name)
{
    struct wanted *w = arg;
    if (!strcmp(folder, w->folder)) snprintf(w->name, NEB_RUN_NAME_SIZE, "%s", name);
}

static neb_status open_run(struct audit *a, const char *roster, const char *run)
{
    char dir[PATH_MAX];
    struct wanted w = {dir, a->out->run};
    NEB_TRY(roster ? neb__chain_read(roster, &a->chain) : neb__site_roster_load(a->folder, &a->chain));
    NEB_TRY(neb__run_folder_find(a->folder, run, dir, sizeof dir));
    neb__run_folder_each(a->folder, note_name, &w);
    NEB_TRY(neb__chain_run_genesis(a->chain, a->out->run, &a->out->genesis));
    NEB_TRY(neb__quorum_read(a->chain, &a->quorum));
    NEB_TRY(neb__members_at_beginning(a->chain, &a->first));
    NEB_TRY(neb__chain_walk(a->chain, learn_epoch, a));
    NEB_TRY(a->status);
    struct question first = {.first = true};
    NEB_TRY(neb__chain_walk_operators(a->chain, ask_set, &first));
    a->operators = first.set;
    return neb__disk_open_to_read(dir, &a->disk);
}

static void close_run(struct audit *a)
{
    for (uint64_t i = 0; a->record && i < a->log.records; i++) neb__free(a->record[i]);
    neb__free(a->record);
    neb__free(a->hash);
    neb__free(a->stated);
    neb__ledger_found_free(&a->log);
    for (int i = 0; i < NEB_SITES_MAX; i++) neb__free(a->key[i].list);
    if (a->disk.ops) neb__disk_close(&a->disk);
    neb__chain_free(a->chain);
}

neb_status neb__run_audit(const char *folder, const char *roster, const char *run, struct neb_audit **out)
{
    struct audit *a = NEB_NEW(struct audit);
    struct neb_audit *result = NEB_NEW(struct neb_audit);
    neb_status status = a && result ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for an audit");
    if (status == NEB_OK) {
        a->out = result;
        a->folder = folder;
        a->seal = (struct neb_seal){.arg = a, .verify = verify, .by_operators = by_operators};
        status = open_run(a, roster, run);
        if (status == NEB_OK) status = check_log(a);
        if (status == NEB_OK) replay(a);
        close_run(a);
    }
    neb__free(a);
    if (status == NEB_OK)
        *out = result;
    else
        neb__free(result);
    return status;
}
