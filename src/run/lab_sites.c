/* lab_sites.c: folders, keys and a roster for all sites of a job on this machine, made at once. On several
 * machines `nebula-i site init`, `roster add`, `seal` and `join` do the same by hand. The first site's key is
 * the operator's. */
#include "run/lab_sites.h"
#include "base/file.h"
#include "base/mem.h"
#include "run/influence.h"
#include "run/quorum_fact.h"
#include "run/settings_fact.h"
#include "seal/site.h"

#include <limits.h>
#include <string.h>
#include <sys/stat.h>

void neb__lab_site_out(const struct neb_job *job, const char *dir, int site, char *out, size_t size)
{
    snprintf(out, size, "%s/%s", dir, job->site[site].name);
}

void neb__lab_site_folder(const struct neb_job *job, const char *dir, int site, char *out, size_t size)
{
    snprintf(out, size, "%s/%s/site", dir, job->site[site].name);
}

static bool exists(const char *folder, const char *name)
{
    char path[PATH_MAX + 16];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return !stat(path, &st);
}

/* Where the folders of all sites are. */
struct places {
    const struct neb_job *job;
    const char *dir;
    neb_site_folder_fn *folder;
};

static neb_status make_member(const struct places *p, int i, const char *address, struct neb_member *m)
{
    const struct neb_job_site *site = &p->job->site[i];
    char folder[PATH_MAX], identity[NEB_IDENTITY_SIZE];
    p->folder(p->job, p->dir, i, folder, sizeof folder);
    if (!exists(folder, "site.key")) NEB_TRY(neb__site_init(folder, site->name, identity));
    *m = (struct neb_member){.votes = i < NEB_VOTERS_MAX};
    if (site->does == NEB_ROLE_WITNESS) m->flags = NEB_MEMBER_WITNESS;
    if (site->does == NEB_ROLE_OBSERVER) m->flags = NEB_MEMBER_OBSERVES, m->votes = 0;
    NEB_TRY(neb__site_identity(folder, m->name, &m->key));
    while (*address && m->addresses < NEB_ADDRESSES_MAX) {
        size_t n = strcspn(address, " ");
        snprintf(m->address[m->addresses++], NEB_ADDRESS_SIZE, "%.*s", (int)n, address);
        address += n;
        address += strspn(address, " ");
    }
    return NEB_OK;
}

static bool same_addresses(const struct neb_member *a, const struct neb_member *b)
{
    bool same = a->addresses == b->addresses;
    for (int i = 0; same && i < a->addresses; i++) same = !strcmp(a->address[i], b->address[i]);
    return same;
}

/* If a folder has a roster already, it must be that of this run. */
static neb_status check_member(const struct places *p, int i, const struct neb_roster *want)
{
    char folder[PATH_MAX];
    struct neb_chain *c;
    p->folder(p->job, p->dir, i, folder, sizeof folder);
    NEB_TRY(neb__site_roster_load(folder, &c));
    bool same = c->now.count == want->count;
    for (uint32_t k = 0; same && k < want->count; k++)
        same = neb__public_equal(&c->now.members[k].key, &want->members[k].key) &&
               c->now.members[k].flags == want->members[k].flags &&
               same_addresses(&c->now.members[k], &want->members[k]);
    neb__chain_free(c);
    if (same) return NEB_OK;
    return neb__fail(
        NEB_ERR_CONFIG,
        "%s holds a run of other sites or addresses; remove %s, or give the job another folder with "
        "out=FOLDER",
        folder, p->dir);
}

static neb_status seal(const struct places *p, const struct neb_roster *r)
{
    struct neb_chain *chain;
    char folder[PATH_MAX];
    struct neb_fact fact[4];
    uint32_t facts = 0, train = 0, voters = 0;
    for (uint32_t i = 0; i < r->count; i++) train += !(r->members[i].flags & NEB_MEMBER_WITNESS);
    for (uint32_t i = 0; i < r->count; i++) voters += r->members[i].votes > 0;
    neb__fact_runs(&fact[facts++]);
    neb__settings_fact(&fact[facts++]);
    if (strcmp(p->job->wan.influence, "off"))
        NEB_TRY(neb__influence_fact(p->job->wan.influence, train, &fact[facts++]));
    NEB_TRY(neb__quorum_fact(p->job->wan.quorum, voters, &fact[facts++]));
    NEB_TRY(neb__chain_create(&r->members[0].key, fact, facts, r, &chain));
    neb_status status = NEB_OK;
    for (int i = 0; status == NEB_OK && i < p->job->n_sites; i++) {
        p->folder(p->job, p->dir, i, folder, sizeof folder);
        status = neb__site_roster_save(folder, chain);
    }
    neb__chain_free(chain);
    return status;
}

neb_status neb__sites_make(const struct neb_job *job, const char *dir, neb_site_folder_fn *folder_of,
                           char *const *address)
{
    const struct places p = {job, dir, folder_of};
    struct neb_roster r = {NEB_NEW_ARRAY(struct neb_member, (size_t)job->n_sites), (uint32_t)job->n_sites};
    if (!r.members) return neb__fail(NEB_ERR_NOMEM, "out of memory for %d sites", job->n_sites);
    neb_status status = NEB_OK;
    int joined = 0;
    if (strlen(dir) > PATH_MAX - 200)
        status =
            neb__fail(NEB_ERR_INVALID, "the path of folder '%.80s…' is too long; choose a shorter one", dir);
    for (int i = 0; status == NEB_OK && i < job->n_sites; i++) {
        char folder[PATH_MAX];
        status = make_member(&p, i, address[i], &r.members[i]);
        folder_of(job, dir, i, folder, sizeof folder);
        joined += status == NEB_OK && exists(folder, "roster");
    }
    /* Sealing writes the rosters one by one. If it was stopped in between, no site has started: do it
     * again. */
    if (status == NEB_OK && joined < job->n_sites) status = seal(&p, &r);
    for (int i = 0; status == NEB_OK && joined == job->n_sites && i < job->n_sites; i++)
        status = check_member(&p, i, &r);
    neb__free(r.members);
    return status;
}
