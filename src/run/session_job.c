/* session_job.c: a session from a job file, and its status as JSON.
 *
 * Native sites train with the same job file. A caller with a training loop of its own takes only `sites:` and
 * `wan:` from it. The folder of a site belongs to one run. A job that names other sites than the folder's
 * roster is a job of another run, and is refused before anything is sent. */
#include "run/session.h"
#include "base/mem.h"
#include "job/job.h"
#include "run/job_facts.h"
#include "run/secure.h"
#include "run/settings_fact.h"
#include "run/site_status.h"

#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static neb_status find_site(const struct neb_job *job, const char *name, int *out)
{
    for (int i = 0; name && i < job->n_sites; i++)
        if (!strcmp(job->site[i].name, name)) {
            *out = i;
            return NEB_OK;
        }
    return neb__doc_fail(&job->doc, "sites", "the job has no site '%s'", name ? name : "");
}

const char *neb__session_folder(const struct neb_job *job, int site)
{
    return job->site[site].folder ? job->site[site].folder : job->site[site].name;
}

struct neb_session_config neb__session_config(const struct neb_job *job, int site)
{
    const struct neb_job_wan *w = &job->wan;
    struct neb_session_config c = neb_session_defaults();
    c.interval = w->interval;
    c.fragments = w->fragments;
    c.drift_steps = w->drift_steps;
    c.drift_wait = w->wait;
    c.merge_after = w->merge_after;
    c.token_target = (uint64_t)w->tokens;
    c.outer_lr = (float)w->outer_lr;
    c.outer_momentum = (float)w->outer_momentum;
    c.rung = strcmp(job->privacy.aggregate, "secure") ? w->rung : "auto"; /* a sum has its own */
    c.prefer = w->prefer;
    c.max_bytes_per_hour = (double)w->max_bytes_per_hour;
    c.ledger_quota = (double)w->ledger_quota;
    c.archive = w->archive;
    c.clip = w->clip;
    c.noise = w->noise;
    c.listen = job->site[site].listen;
    c.proxy = job->site[site].proxy;
    c.dial = job->site[site].dial;
    c.round_ms = 1000 * w->round_seconds;
    c.max_rate = w->max_rate;
    c.end = w->merge_after >= 0 ? "keep" : w->end; /* a bounded end depends on the line */
    c.end_seconds = (double)w->end_seconds;
    c.end_bytes = (double)w->end_bytes;
    c.name = job->name;
    return c;
}

enum { RULES = 2 }; /* version of the rules by which records are made and accepted */

/* Hashes the settings that must be the same everywhere, and the genesis of a run that has a name. Interval, rung and rates
 * may differ from site to site. */
neb_status neb__session_settings_hash(const neb_session *s, struct neb_hash *out)
{
    const struct neb_session_config *c = &s->config;
    char text[160 + 2 * NEB_HASH_SIZE], hex[2 * NEB_HASH_SIZE + 1] = "";
    uint32_t lr, momentum;
    if (*s->run) neb__hash_hex(&s->genesis, hex);
    memcpy(&lr, &c->outer_lr, sizeof lr);
    memcpy(&momentum, &c->outer_momentum, sizeof momentum);
    int n = snprintf(text, sizeof text, "%d %" PRId64 " %" PRIu64 " %08x %08x%s%s%s", RULES, c->fragments,
                     c->token_target, lr, momentum, *hex ? " " : "", hex, s->secure ? " secure" : "");
    return neb__hash(text, (size_t)n, out);
}

neb_status neb__session_tell_job(neb_session *s, const struct neb_job *job, const struct neb_hash *tokenizer,
                                 const struct neb_hash *frozen, bool textless, const char *cut)
{
    struct neb_buf facts;
    char hex[2 * NEB_HASH_SIZE + 1];
    if (tokenizer) neb__hash_hex(tokenizer, hex);
    neb__buf_init(&facts, NEB_FACTS_TEXT_MAX);
    neb_status status = neb__job_facts(job, &facts);
    if (status == NEB_OK) status = neb__job_settings_fact(job, &facts);
    if (status == NEB_OK && tokenizer) status = neb__buf_printf(&facts, "(the tokenizer)=%.16s\n", hex);
    if (status == NEB_OK && textless) status = neb__buf_printf(&facts, NEB_FACT_TEXTLESS "\n");
    if (status == NEB_OK && cut) status = neb__buf_printf(&facts, NEB_FACT_CUT "=%s\n", cut);
    if (frozen) neb__hash_hex(frozen, hex);
    if (status == NEB_OK && frozen) status = neb__buf_printf(&facts, "(the frozen weights)=%.16s\n", hex);
    if (status == NEB_OK) status = neb__session_facts(s, (const char *)facts.data, facts.len);
    neb__buf_free(&facts);
    return status;
}

static const struct neb_member *member_named(const struct neb_roster *r, const char *name)
{
    for (uint32_t i = 0; i < r->count; i++)
        if (!strcmp(r->members[i].name, name)) return &r->members[i];
    return NULL;
}

/* owner: the site whose key lies in the folder. */
static neb_status check_members(const struct neb_job *job, int site, const char *owner,
                                const struct neb_roster *r)
{
    const struct neb_job_site *me = &job->site[site];
    const char *folder = neb__session_folder(job, site);
    if (strcmp(owner, me->name))
        return neb__doc_fail(&job->doc, "sites",
                             "folder '%s' belongs to site '%s', but the job gives it to site '%s'; name the "
                             "right folder with sites[].folder, or make one: nebula-i site init %s",
                             folder, owner, me->name, me->name);
    for (int i = 0; i < job->n_sites; i++) {
        const struct neb_member *m = member_named(r, job->site[i].name);
        if (!m)
            return neb__doc_fail(
                &job->doc, "sites",
                "site '%s' of the job is not in the roster that '%s' joined (nebula-i roster show %s lists "
                "its "
                "members); admit it with nebula-i roster admit, or name the folder of the right run with "
                "sites[].folder",
                job->site[i].name, folder, folder);
        if (job->site[i].does == NEB_ROLE_WITNESS && !(m->flags & NEB_MEMBER_WITNESS))
            return neb__doc_fail(
                &job->doc, "sites",
                "site '%s' is a witness in the job, but the roster that '%s' joined lets it train: leave out "
                "its role, or seal a roster with `nebula-i roster add DRAFT %s --witness`",
                job->site[i].name, folder, job->site[i].name);
        if ((job->site[i].does == NEB_ROLE_OBSERVER) != ((m->flags & NEB_MEMBER_OBSERVER) != 0) &&
            (job->site[i].does == NEB_ROLE_OBSERVER || job->site[i].role))
            return neb__doc_fail(
                &job->doc, "sites",
                "the job and the roster that '%s' joined do not agree on whether site '%s' is an "
                "observer: change its role, or seal a roster with `nebula-i roster add DRAFT %s "
                "--observer`",
                folder, job->site[i].name, job->site[i].name);
    }
    return NEB_OK;
}

neb_status neb__session_check_roster(const neb_session *s, const struct neb_job *job, int site)
{
    return check_members(job, site, s->site->name, &neb__net_roster(s->net)->now);
}

/* One machine or several: both ways from here are said, since the folder is missing in both cases. */
static neb_status no_folder(const struct neb_job *job, int site)
{
    const char *name = job->site[site].name, *folder = neb__session_folder(job, site);
    char dir[200] = "";
    if (strcmp(name, folder)) snprintf(dir, sizeof dir, " --dir %.180s", folder);
    return neb__doc_fail(
        &job->doc, "sites",
        "site '%s' has no folder '%s' here. `nebula-i lab %s` runs all sites on this machine and "
        "makes what they need. For a site of its own: `nebula-i site init %s%s`, then, with the "
        "sealed roster, `nebula-i roster join ROSTER %s` (docs/sessions.md)",
        name, folder, job->doc.file, name, dir, folder);
}

neb_status neb__session_check_folder(const struct neb_job *job, int site)
{
    const char *folder = neb__session_folder(job, site);
    char owner[NEB_NAME_SIZE], path[PATH_MAX];
    struct neb_public key;
    struct neb_chain *chain;
    snprintf(path, sizeof path, "%s/site.id", folder);
    if (access(path, F_OK)) return no_folder(job, site);
    NEB_TRY(neb__site_identity(folder, owner, &key));
    NEB_TRY(neb__site_roster_load(folder, &chain));
    neb_status status = check_members(job, site, owner, &chain->now);
    neb__chain_free(chain);
    return status;
}

neb_status neb__session_settings(struct neb_job *job, int site)
{
    struct neb_chain *chain;
    int rules;
    NEB_TRY(neb__site_roster_load(neb__session_folder(job, site), &chain));
    neb_status status = neb__settings_read(chain, &rules);
    neb__chain_free(chain);
    NEB_TRY(status);
    return neb__job_set_rules(job, (enum neb_settings_rules)rules);
}

/* A loop of one's own makes its steps without noise. */
static neb_status set_privacy(neb_session *s, const struct neb_job *job)
{
    struct neb_privacy_rule rule;
    if (!strcmp(job->privacy.aggregate, "secure")) NEB_TRY(neb__session_set_secure(s));
    if (!strcmp(job->privacy.unit, "none")) return NEB_OK;
    if (!strcmp(job->privacy.unit, "sample"))
        return neb__doc_fail(
            &job->doc, "privacy.unit",
            "privacy.unit: sample needs noise in every step, which this training loop does not "
            "make; train with `nebula-i train`, or use unit: site");
    NEB_TRY(neb__session_site_rule(job, &rule));
    return neb__session_set_privacy(s, &rule);
}

static neb_status open_job(struct neb_job *job, const char *site, neb_session **out)
{
    int at = 0;
    neb_session *s = NULL;
    NEB_TRY(find_site(job, site, &at));
    NEB_TRY(neb__session_check_folder(job, at));
    NEB_TRY(neb__session_settings(job, at));
    struct neb_session_config c = neb__session_config(job, at);
    NEB_TRY(neb_session_open(neb__session_folder(job, at), &c, &s));
    if (job->settings.outer_lr) neb__session_keep_outer(s);
    neb_status status = neb__session_check_roster(s, job, at);
    if (status == NEB_OK) status = set_privacy(s, job);
    if (status != NEB_OK)
        neb_session_close(s);
    else
        *out = s;
    return status;
}

neb_status neb_session_open_job(const char *job, const char *site, const char *const *words,
                                neb_session **out)
{
    struct neb_job j;
    int n = 0;
    while (words && words[n]) n++;
    NEB_TRY(neb__job_names(&job, &site));
    NEB_TRY(neb__job_read_as(job, site, (char *const *)(uintptr_t)words, n, &j));
    neb_status status = open_job(&j, site, out);
    neb__job_free(&j);
    return status;
}

/* ---- status -------------------------------------------------------------------------------------------- */

static json_t *members_json(neb_session *s)
{
    json_t *list = json_array();
    struct neb_members_view *v = &s->members;
    pthread_mutex_lock(&v->lock);
    for (unsigned i = 0; list && i < NEB_SITES_MAX; i++)
        if (v->present & ~v->witnesses & neb__bit(i)) json_array_append_new(list, json_string(v->names[i]));
    pthread_mutex_unlock(&v->lock);
    return list;
}

static json_t *status_json(neb_session *s)
{
    struct neb_site_status own;
    neb__session_own_status(s, &own);
    json_t *o = neb__status_object(&own, NEB_STATUS_OLD_API);
    if (o) json_object_set_new(o, "sites", members_json(s));
    return o;
}

neb_status neb_session_status_json(neb_session *s, char *out, size_t *n)
{
    json_t *j = status_json(s);
    char *text = j ? json_dumps(j, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(j);
    if (!text) return neb__fail(NEB_ERR_NOMEM, "out of memory for the status");
    size_t room = *n, length = strlen(text);
    bool fits = out && room > length;
    if (fits) memcpy(out, text, length + 1);
    *n = fits ? length : length + 1;
    free(text);
    return fits ? NEB_OK : neb__quiet(NEB_ERR_NOSPACE, "the status needs %zu bytes, %zu are there", *n, room);
}
