/* place.c: what a site has for its ranks: the cores or the devices of this machine, the tasks that Slurm gave, or the slots of
 * parallel.hosts. Other machines are taken to be like this one. */
#include "base/pool.h"
#include "plan/plan.h"
#include "task/memory_check.h"
#include "tensor/device.h"

#include <math.h>
#include <nebula/engine.h>
#include <stdlib.h>
#include <string.h>

/* "a:4,b:4": 8 slots, 4 at the first machine. */
static void count_hosts(const char *hosts, struct neb_planner_place *p)
{
    p->slots = p->near = 0;
    for (const char *at = hosts; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        const char *colon = strchr(at, ':'), *comma = strchr(at, ',');
        const int n = colon && (!comma || colon < comma) ? atoi(colon + 1) : 1;
        if (!p->near) p->near = n;
        p->slots += n;
    }
}

static int of_variable(const char *name, int fallback)
{
    const char *text = getenv(name);
    return text && atoi(text) > 0 ? atoi(text) : fallback;
}

neb_status neb__planner_find_place(const struct neb_job *job, int slots, struct neb_planner_place *out)
{
    struct neb_planner_place p = {.machine = neb__memory_of_host(), .cap = (double)job->train.memory};
    struct neb_device_config c = {.compute = NEB_F32, .threads = 1};
    struct neb_device_info info;
    neb_device *dev;
    const int devices = neb__device_count(job->train.device);
    bool here = true; /* all ranks are on this machine */
    NEB_TRY(neb_device_open(job->train.device, &c, &dev));
    neb_device_get_info(dev, &info);
    p.host = !strcmp(dev->ops->name, "cpu");
    /* what the device holds from the start is a part of each rehearsal (device/rehearse.c) */
    p.device = info.memory_total > 0 ? (double)info.memory_total : HUGE_VAL;
    neb_device_close(dev);
    p.slots = p.near = p.host ? neb__cores() : (devices > 0 ? devices : 1);
    p.devices = p.host ? 0 : p.near;
    if (job->parallel.hosts) {
        here = false;
        count_hosts(job->parallel.hosts, &p);
    } else if (getenv("SLURM_JOB_ID") && getenv("SLURM_NTASKS")) {
        p.slots = of_variable("SLURM_NTASKS", 1);
        p.near = (p.slots - 1) / of_variable("SLURM_JOB_NUM_NODES", 1) + 1;
        p.exactly = true;
        here = false;
    }
    if (job->n_sites && (job->plan == NEB_STRATEGY_RELAY || job->plan == NEB_STRATEGY_TUTOR))
        p.slots = 1; /* a site of these strategies is one process */
    if (slots > 0) p.slots = slots;
    if (p.slots > NEB_JOB_RANKS) p.slots = NEB_JOB_RANKS;
    if (here) p.near = p.slots; /* more ranks than cores or devices share them */
    if (p.near > p.slots) p.near = p.slots;
    *out = p;
    return NEB_OK;
}
