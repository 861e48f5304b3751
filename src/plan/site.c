/* site.c: see site.h. The sections `train` and `parallel` of all sites, and on top of them those of the site. */
#include "plan/site.h"
#include "base/log.h"

#include <stdio.h>
#include <string.h>

static void take(const struct neb_job *job, const char *section, const struct neb_opt *table, void *to)
{
    const size_t n = strlen(section);
    for (int i = 0; i < job->doc.n; i++) {
        const struct neb_doc_entry *e = &job->doc.list[i];
        if (strncmp(e->path, section, n) || e->path[n] != '.' || strchr(e->path + n + 1, '.')) continue;
        (void)neb__opts_set(table, to, e->path + n + 1, e->value); /* the job was checked when it was read */
    }
}

static neb_status read_section(const struct neb_job *job, int site, const char *name,
                               const struct neb_opt *table, void *out)
{
    char own[48];
    snprintf(own, sizeof own, "sites[%d].%s", site, name);
    NEB_TRY(neb__opts_init(table, out));
    const bool before = neb__log_hush(true);
    take(job, name, table, out);
    take(job, own, table, out);
    neb__log_hush(before);
    return NEB_OK;
}

neb_status neb__planner_site(const struct neb_job *job, int i, struct neb_planner_site *out)
{
    struct neb_job_train t;
    struct neb_job_parallel p;
    NEB_TRY(read_section(job, i, "train", neb__job_train_options, &t));
    struct neb_planner_site s = {
        .memory = (double)t.memory, .speed = t.speed, .half = !strcmp(t.dtype, "bf16")};
    const int threads = (int)t.threads;
    neb__opts_free(neb__job_train_options, &t);
    NEB_TRY(read_section(job, i, "parallel", neb__job_parallel_options, &p));
    s.automatic = p.automatic;
    s.layout = p.automatic ? (struct neb_planner_layout){.data = 1, .tensor = 1, .pipeline = 1}
                           : neb__planner_layout_from(&p);
    s.layout.threads = threads;
    neb__opts_free(neb__job_parallel_options, &p);
    *out = s;
    return NEB_OK;
}
