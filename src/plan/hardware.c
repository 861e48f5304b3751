/* hardware.c: see hardware.h.
 *
 * The constants are makers' figures times the share of them that training reaches. A layer of a tensor group of t takes
 *
 *     6 * multiplications * rows / t / (peak * reached)        forward 2, backward 4 operations each
 *
 * an update moves 30 bytes of a value through the device's memory, and a ring of n ranks moves 2 (n - 1) / n of a sum's bytes,
 * half of that for a scattered sum or a gather. A group uses the links inside a machine if all ranks from its first to its last one fit
 * into it, else the network: ranks of one machine are next to each other, and those of a group are `stride` apart (group/layout.c). */
#include "plan/hardware.h"
#include "nn/stage.h"
#include "plan/measure.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct hardware {
    const char *name;
    double bf16, f32;         /* operations a second, dense */
    double reached;           /* share of them in a layer of a large model */
    double memory, bandwidth; /* bytes, bytes a second */
    int near;                 /* devices of a machine */
    double link, network;     /* bytes a second of one device: inside a machine, between machines */
    double link_call, network_call, bus; /* seconds; bytes a second to the host */
};

static const struct hardware kinds[] = {
    {"a100", 312e12, 19.5e12, 0.45, 80e9, 2.0e12, 8, 250e9, 25e9, 10e-6, 20e-6, 25e9},
    {"h100", 989e12, 67e12, 0.42, 80e9, 3.35e12, 8, 370e9, 50e9, 10e-6, 20e-6, 50e9},
    {"h200", 989e12, 67e12, 0.42, 141e9, 4.8e12, 8, 370e9, 50e9, 10e-6, 20e-6, 50e9},
    {"b200", 2250e12, 80e12, 0.40, 180e9, 8.0e12, 8, 750e9, 50e9, 10e-6, 20e-6, 50e9},
};
enum { KINDS = (int)(sizeof kinds / sizeof *kinds) };
static const double moved_by_update = 30;

static neb_status read_scale(const char *text, int *count, const struct hardware **out)
{
    char name[32] = "";
    char list[128] = "";
    *count = 0;
    (void)sscanf(text, "%dx%31s", count, name);
    for (int i = 0; i < KINDS; i++) {
        if (*count > 0 && !strcmp(name, kinds[i].name)) {
            *out = &kinds[i];
            if (*count <= NEB_JOB_RANKS) return NEB_OK;
            return neb__fail(NEB_ERR_CONFIG, "--scale %s: a site has at most %d processes", text,
                             NEB_JOB_RANKS);
        }
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "", kinds[i].name);
    }
    return neb__fail(NEB_ERR_CONFIG,
                     "--scale %s: name how many of what, such as 1024xh200; there are constants for %s", text,
                     list);
}

static struct neb_group_cost group_of(const struct hardware *h, int size, int stride)
{
    const bool near = size * stride <= h->near;
    const double bytes = near ? h->link : h->network, call = near ? h->link_call : h->network_call;
    const double part = (double)(size - 1) / size / bytes, hops = ceil(log2(size));
    struct neb_group_cost g = {.size = size, .stride = stride, .beside = true};
    const double byte[NEB_TRAFFIC_KINDS] = {2 * part, part, part, 1 / bytes};
    for (int k = 0; k < NEB_TRAFFIC_KINDS; k++) {
        g.call[k] = call * (k == NEB_TRAFFIC_MESSAGE ? 1 : hops);
        g.byte[k] = byte[k];
    }
    return g;
}

static struct neb_layer_cost layer_of(const struct hardware *h, const struct neb_job *job,
                                      const struct neb_arch *a, int tensor, int threads, int ranks)
{
    const bool half = !strcmp(job->train.dtype, "bf16"), both = a->kind == NEB_ENCODER_DECODER;
    const double speed = (half ? h->bf16 : h->f32) * h->reached, rows = (double)job->train.tokens;
    struct neb_layer_cost c = {.tensor = tensor, .threads = threads, .ranks = ranks};
    c.layer[0] = 6 * neb__stage_layer_work(a, false) * rows / tensor / speed;
    c.layer[1] = both ? 6 * neb__stage_layer_work(a, true) * rows / tensor / speed : 0;
    c.ends = 6 * neb__stage_ends_work(a) * rows / tensor / speed;
    c.update = moved_by_update / h->bandwidth;
    return c;
}

neb_status neb__hardware_scale(const char *text, const struct neb_data *data, struct neb_planner_place *place,
                               struct neb_planner_costs *costs)
{
    const struct hardware *h = NULL;
    struct neb_arch arch;
    int count;
    NEB_TRY(read_scale(text, &count, &h));
    NEB_TRY(neb__model_config_check(&data->models.model, &arch));
    *place = (struct neb_planner_place){.slots = count,
                                        .exactly = true,
                                        .near = count < h->near ? count : h->near,
                                        .machine = HUGE_VAL,
                                        .device = h->memory,
                                        .cap = (double)data->job->train.memory};
    *costs = (struct neb_planner_costs){.stated = true, .bus = 1 / h->bus, .memory = h->memory};
    snprintf(costs->device, sizeof costs->device,
             "%d x %s, from stated constants: nothing of it was measured", count, h->name);
    const int threads = neb__planner_threads(data->job, place->near); /* what plan.c gives its layouts */
    for (int n = 2; n <= count; n++)
        if (count % n == 0) {
            struct neb_group_cost g = group_of(h, n, 1);
            neb__costs_add_group(costs, &g);
            g = group_of(h, n, h->near / n + 1); /* the first stride with which it leaves a machine */
            neb__costs_add_group(costs, &g);
        }
    for (int t = 1; t <= place->near; t++)
        if (count % t == 0) {
            struct neb_layer_cost c = layer_of(h, data->job, &arch, t, threads, count);
            neb__costs_add_layer(costs, &c);
        }
    return NEB_OK;
}
