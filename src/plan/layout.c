/* layout.c: see layout.h. */
#include "plan/layout.h"
#include "base/log.h"

#include <stdio.h>
#include <string.h>

static char offloads[][12] = {"none", "moments", "optimizer"}; /* a job's texts are not const */

int neb__planner_ranks(const struct neb_planner_layout *l)
{
    return l->data * l->tensor * l->pipeline;
}

const char *neb__planner_offload_name(enum neb_offload_kind k)
{
    return offloads[k];
}

void neb__planner_layout_text(const struct neb_planner_layout *l, char *out, size_t size)
{
    size_t n = 0;
    *out = '\0';
    const struct {
        const char *name;
        int value, least;
    } parts[] = {
        {"data", l->data, 2}, {"tensor", l->tensor, 2}, {"pipeline", l->pipeline, 2}, {"zero", l->zero, 1}};
    for (int i = 0; i < 4; i++)
        if (parts[i].value >= parts[i].least && n < size)
            n += (size_t)snprintf(out + n, size - n, "%s%s %d", n ? ", " : "", parts[i].name, parts[i].value);
    if (l->sequence && n < size) n += (size_t)snprintf(out + n, size - n, "%ssequence", n ? ", " : "");
    if (l->offload && n < size)
        n += (size_t)snprintf(out + n, size - n, "%soffload %s", n ? ", " : "", offloads[l->offload]);
    if (!n || (n < size && neb__planner_ranks(l) == 1))
        snprintf(out + n, size - n, "%sone process", n ? ", " : "");
}

struct neb_planner_layout neb__planner_layout_from(const struct neb_job_parallel *p)
{
    struct neb_planner_layout l = {.data = (int)p->data,
                                   .tensor = (int)p->tensor,
                                   .pipeline = (int)p->pipeline,
                                   .zero = (int)p->zero,
                                   .sequence = p->sequence};
    for (int i = 0; i < 3; i++)
        if (!strcmp(p->offload, offloads[i])) l.offload = (enum neb_offload_kind)i;
    return l;
}

struct neb_planner_layout neb__planner_layout_of(const struct neb_job *job)
{
    return neb__planner_layout_from(&job->parallel);
}

static char no_privacy[] = "none";

void neb__planner_set_layout(struct neb_job *job, const struct neb_planner_layout *l)
{
    struct neb_job_parallel *p = &job->parallel;
    p->automatic = false;
    p->data = l->data;
    p->tensor = l->tensor;
    p->pipeline = l->pipeline;
    p->zero = l->zero;
    p->sequence = l->sequence;
    p->offload = offloads[l->offload];
    if (l->threads) job->train.threads = l->threads;
}

void neb__planner_job(const struct neb_data *data, const struct neb_planner_layout *l,
                      struct neb_planner_job *out)
{
    out->job = *data->job;
    out->data = *data;
    out->data.job = &out->job;
    out->job.privacy.unit = no_privacy; /* private steps draw samples that are charged to an account */
    neb__planner_set_layout(&out->job, l);
}

neb_status neb__planner_layout_check(const struct neb_job *job, const struct neb_planner_layout *l)
{
    struct neb_job copy = *job;
    neb__planner_set_layout(&copy, l);
    const bool before = neb__log_hush(true);
    neb_status status = neb__job_check_parallel(&copy);
    neb__log_hush(before);
    return status;
}
