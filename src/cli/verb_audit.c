/* verb_audit.c: `nebula-i audit`: checks a run from one site's folder, says what it found, and signs it.
 *
 *     nebula-i audit berlin
 *     nebula-i audit berlin --roster roster.sealed --json --sign auditor > audit.json
 *     nebula-i audit --verify audit.json
 *
 * The signature covers the object `audit` as compact JSON with sorted keys. The exit status is 0 if nothing is wrong. */
#include "cli/verb.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/printable.h"
#include "run/audit.h"
#include "seal/site.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char purpose[] = "nebula-i audit";

struct options {
    char *roster, *run, *sign, *verify;
    bool json;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, roster, NEB_OPT_TEXT, "", NULL,
            "a file with the sealed roster that you trust (default: the folder's own)"),
    NEB_OPT(struct options, run, NEB_OPT_TEXT, "", NULL, "which run (default: the last one)"),
    NEB_OPT(struct options, json, NEB_OPT_BOOL, "no", NULL, "print what was found as JSON"),
    NEB_OPT(struct options, sign, NEB_OPT_TEXT, "", NULL,
            "site folder of the auditor: its key signs what was found (with --json)"),
    NEB_OPT(struct options, verify, NEB_OPT_TEXT, "", NULL,
            "a signed audit: check its signature, and nothing else"),
    NEB_OPT_END,
};

/* ---- as JSON ----------------------------------------------------------------------------------------------------- */

static json_t *hash_json(const struct neb_hash *h)
{
    char hex[2 * NEB_HASH_SIZE + 1];
    neb__hash_hex(h, hex);
    return json_string(hex);
}

static json_t *privacy_json(const struct neb_audit_site *s)
{
    const struct neb_privacy_sum *p = &s->privacy;
    if (!p->updates) return json_null();
    return json_pack("{s:s, s:f, s:f, s:f, s:f, s:I, s:b}", "unit", neb__privacy_unit_name(s->unit),
                     "epsilon", p->epsilon, "epsilon_stated", p->said, "epsilon_limit", p->limit, "delta",
                     p->delta, s->unit == NEB_PRIVACY_SITE ? "updates" : "steps", (json_int_t)p->count,
                     "holds", !p->understated && !p->beyond && !p->fell && !s->silent);
}

static json_t *site_json(const struct neb_audit_site *s)
{
    char name[NEB_NAME_SIZE];
    snprintf(name, sizeof name, "%s", s->name);
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:o}", "name", name, "updates",
                     (json_int_t)s->named, "updates_checked", (json_int_t)s->seen, "rejected",
                     (json_int_t)s->rejected, "steps", (json_int_t)s->steps, "tokens", (json_int_t)s->tokens,
                     "keys", (json_int_t)s->keys, "guilty", s->guilty, "privacy", privacy_json(s));
}

static json_t *audit_json(const struct neb_audit *a)
{
    json_t *sites = json_array(), *problems = json_array();
    for (int i = 0; i < NEB_SITES_MAX; i++)
        if (a->site[i].member) json_array_append_new(sites, site_json(&a->site[i]));
    for (uint64_t i = 0; i < a->problems && i < NEB_AUDIT_PROBLEMS; i++) {
        char text[NEB_AUDIT_TEXT];
        snprintf(text, sizeof text, "%s", a->problem[i]);
        neb__text_clean(text);
        json_array_append_new(problems, json_string(text));
    }
    return json_pack("{s:s, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:o, s:o, s:I, s:o}",
                     "run", a->run, "genesis", hash_json(&a->genesis), "head", hash_json(&a->head), "records",
                     (json_int_t)a->records, "rounds", (json_int_t)a->rounds, "epochs", (json_int_t)a->epochs,
                     "orders", (json_int_t)a->orders, "forced", (json_int_t)a->forced, "rejected",
                     (json_int_t)a->rejected, "certificates", (json_int_t)a->certificates, "certified",
                     (json_int_t)a->certified, "ended", a->ended, "root",
                     a->replayed ? hash_json(&a->root) : json_null(), "sites", sites, "problem_count",
                     (json_int_t)a->problems, "problems", problems);
}

static neb_status sign(const char *folder, const json_t *audit, json_t *out)
{
    struct neb_key *key;
    struct neb_public public;
    struct neb_signature signature;
    char name[NEB_NAME_SIZE], identity[NEB_IDENTITY_SIZE], hex[2 * NEB_SIGNATURE_SIZE + 1];
    NEB_TRY(neb__site_identity(folder, name, &public));
    NEB_TRY(neb__site_key(folder, &key));
    char *text = json_dumps(audit, JSON_COMPACT | JSON_SORT_KEYS);
    neb_status status = text ? neb__key_sign(key, purpose, text, strlen(text), &signature)
                             : neb__fail(NEB_ERR_NOMEM, "out of memory for an audit");
    free(text);
    neb__key_free(key);
    NEB_TRY(status);
    for (int i = 0; i < NEB_SIGNATURE_SIZE; i++) snprintf(hex + 2 * i, 3, "%02x", signature.b[i]);
    neb__identity_format(name, &public, identity);
    json_object_set_new(out, "auditor", json_string(identity));
    json_object_set_new(out, "signature", json_string(hex));
    return NEB_OK;
}

static neb_status print_json(const struct options *o, const struct neb_audit *a)
{
    json_t *out = json_object(), *audit = audit_json(a);
    neb_status status = out && audit ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for an audit");
    if (status == NEB_OK && o->sign) status = sign(o->sign, audit, out);
    if (status == NEB_OK) {
        json_object_set(out, "audit", audit);
        char *text = json_dumps(out, JSON_INDENT(2) | JSON_SORT_KEYS);
        if (text) printf("%s\n", text);
        free(text);
    }
    json_decref(audit);
    json_decref(out);
    return status;
}

/* ---- as text ----------------------------------------------------------------------------------------------------- */

static void print_site(const struct neb_audit_site *s)
{
    const struct neb_privacy_sum *p = &s->privacy;
    printf("  %-16s %" PRIu64 " updates, %" PRIu64 " of them checked, %" PRIu64 " rejected, %" PRIu64
           " steps",
           s->name, s->named, s->seen, s->rejected, s->steps);
    if (s->keys > 1) printf(", %" PRIu64 " keys", s->keys);
    if (p->updates && p->limit > 0)
        printf("; privacy (%s): epsilon %.4g of %.4g at delta %.3g", neb__privacy_unit_name(s->unit),
               p->epsilon, p->limit, p->delta);
    else if (p->updates)
        printf("; privacy (%s): epsilon %.4g at delta %.3g, no limit", neb__privacy_unit_name(s->unit),
               p->epsilon, p->delta);
    printf("\n");
}

static void print_text(const struct neb_audit *a)
{
    char hex[2 * NEB_HASH_SIZE + 1];
    neb__hash_hex(&a->head, hex);
    printf("%" PRIu64 " records, %" PRIu64 " rounds, %" PRIu64 " epochs, %" PRIu64 " orders%s; head %.16s\n",
           a->records, a->rounds, a->epochs, a->orders, a->ended ? ", the run has ended" : "", hex);
    printf("%" PRIu64 " certificates hold; they cover the records up to %" PRIu64 "\n", a->certificates,
           a->certified);
    neb__hash_hex(&a->root, hex);
    if (a->replayed)
        printf("replayed: state root %s\n", hex);
    else
        printf("not replayed: the folder lacks updates (wan.archive: yes keeps them)\n");
    for (int i = 0; i < NEB_SITES_MAX; i++)
        if (a->site[i].member) print_site(&a->site[i]);
    for (uint64_t i = 0; i < a->problems && i < NEB_AUDIT_PROBLEMS; i++) {
        char text[NEB_AUDIT_TEXT];
        snprintf(text, sizeof text, "%s", a->problem[i]);
        neb__text_clean(text);
        printf("problem: %s\n", text);
    }
    if (!a->problems) printf("nothing is wrong\n");
}

/* ---- the verb ---------------------------------------------------------------------------------------------------- */

static bool read_signature(const char *hex, struct neb_signature *out)
{
    if (!hex || strlen(hex) != 2 * NEB_SIGNATURE_SIZE) return false;
    for (int i = 0; i < NEB_SIGNATURE_SIZE; i++)
        if (sscanf(hex + 2 * i, "%2hhx", &out->b[i]) != 1) return false;
    return true;
}

static neb_status verify(const char *file)
{
    json_error_t error;
    struct neb_public key;
    struct neb_signature signature;
    char name[NEB_NAME_SIZE];
    json_t *in =
        json_load_file(file, JSON_REJECT_DUPLICATES, &error); /* readers differ in which one they take */
    const char *identity = json_string_value(json_object_get(in, "auditor"));
    json_t *audit = json_object_get(in, "audit");
    char *text = audit ? json_dumps(audit, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    neb_status status = NEB_OK;
    if (!text || !identity || json_object_size(in) != 3 || /* nothing beside what is signed */
        !read_signature(json_string_value(json_object_get(in, "signature")), &signature))
        status = neb__fail(NEB_ERR_CORRUPT,
                           "%s is not a signed audit (nebula-i audit FOLDER --json --sign DIR)", file);
    if (status == NEB_OK) status = neb__identity_parse(identity, strlen(identity), name, &key);
    if (status == NEB_OK && neb__key_verify(&key, purpose, text, strlen(text), &signature) != NEB_OK)
        status = neb__fail(NEB_ERR_AUTH,
                           "%s: the signature does not fit: the audit was changed after it was signed", file);
    if (status == NEB_OK)
        printf("signed by %s; problems: %" JSON_INTEGER_FORMAT "\n", identity,
               json_integer_value(json_object_get(audit, "problem_count")));
    free(text);
    json_decref(in);
    return status;
}

static neb_status run(struct neb_call *c)
{
    const struct options *o = c->options;
    struct neb_audit *a;
    if (o->verify) return verify(o->verify);
    if (!c->n) return neb__fail(NEB_ERR_INVALID, "name a site's folder, or --verify FILE");
    if (o->sign && !o->json) return neb__fail(NEB_ERR_INVALID, "--sign needs --json: it signs that form");
    NEB_TRY(neb__run_audit(c->words[0], o->roster, o->run, &a));
    neb_status status = NEB_OK;
    if (o->json)
        status = print_json(o, a);
    else
        print_text(a);
    if (status == NEB_OK && a->problems) c->code = 1;
    neb__free(a);
    return status;
}

const struct neb_verb neb__verb_audit = {
    .name = "audit",
    .args = "FOLDER [--roster FILE] [--run NAME] [--json] [--sign DIR]",
    .help = "check a run's log, signatures and privacy from a site's folder",
    .about = "Replays the ledger in FOLDER and checks certificates, orders, signatures of updates and what "
             "the sites\n"
             "say of their privacy. Nothing but the roster is trusted. The exit status is 1 if something is "
             "wrong.",
    .options = {{table, 0}},
    .size = sizeof(struct options),
    .least = 0,
    .most = 1,
    .run = run,
};
