/* costs.c: see costs.h. The text has a line for each cost:
 *
 *     device CPU, 2 threads, avx512
 *     layer 1 1 2 : LAYER LAYER2 ENDS UPDATE        tensor, threads, ranks
 *     group 2 4 1 : CALL BYTE CALL BYTE CALL BYTE CALL BYTE    ranks, how far they are apart; 1: gradients are added up beside the
 *                                                              backward pass
 *     bus SECONDS */
#include "plan/costs.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const struct neb_layer_cost *neb__costs_layer(const struct neb_planner_costs *c, int tensor, int threads,
                                              int ranks)
{
    for (int i = 0; i < c->layers; i++) {
        const struct neb_layer_cost *l = &c->layer[i];
        if (l->tensor == tensor && l->threads == threads && l->ranks == ranks) return l;
    }
    return NULL;
}

const struct neb_group_cost *neb__costs_group(const struct neb_planner_costs *c, int size, int stride)
{
    const struct neb_group_cost *found = NULL;
    for (int i = 0; i < c->groups; i++) {
        const struct neb_group_cost *g = &c->group[i];
        if (g->size == size && g->stride <= stride && (!found || g->stride > found->stride)) found = g;
    }
    return found;
}

double neb__costs_exchange(const struct neb_group_cost *c, const struct neb_rank_traffic *t)
{
    double s = 0;
    for (int k = 0; c && k < NEB_TRAFFIC_KINDS; k++) s += t->calls[k] * c->call[k] + t->bytes[k] * c->byte[k];
    return s;
}

void neb__costs_add_layer(struct neb_planner_costs *c, const struct neb_layer_cost *l)
{
    struct neb_layer_cost *at = (struct neb_layer_cost *)neb__costs_layer(c, l->tensor, l->threads, l->ranks);
    if (!at && c->layers < NEB_PLAN_COSTS) at = &c->layer[c->layers++];
    if (at) *at = *l;
}

void neb__costs_add_group(struct neb_planner_costs *c, const struct neb_group_cost *g)
{
    struct neb_group_cost *at = (struct neb_group_cost *)neb__costs_group(c, g->size, g->stride);
    if (at && at->stride != g->stride) at = NULL;
    if (!at && c->groups < NEB_PLAN_GROUPS) at = &c->group[c->groups++];
    if (at) *at = *g;
}

/* ---- text ----------------------------------------------------------------------------------------------------- */

neb_status neb__costs_write(const struct neb_planner_costs *c, struct neb_buf *out)
{
    NEB_TRY(neb__buf_printf(out, "device %s\n", c->device));
    for (int i = 0; i < c->layers; i++) {
        const struct neb_layer_cost *l = &c->layer[i];
        NEB_TRY(neb__buf_printf(out, "layer %d %d %d : %.9g %.9g %.9g %.9g\n", l->tensor, l->threads,
                                l->ranks, l->layer[0], l->layer[1], l->ends, l->update));
    }
    for (int i = 0; i < c->groups; i++) {
        const struct neb_group_cost *g = &c->group[i];
        NEB_TRY(neb__buf_printf(out, "group %d %d %d :", g->size, g->stride, g->beside));
        for (int k = 0; k < NEB_TRAFFIC_KINDS; k++)
            NEB_TRY(neb__buf_printf(out, " %.9g %.9g", g->call[k], g->byte[k]));
        NEB_TRY(neb__buf_printf(out, "\n"));
    }
    return neb__buf_printf(out, "bus %.9g\n", c->bus);
}

static bool good(double x)
{
    return isfinite(x) && x >= 0;
}

static bool read_layer(const char *line, struct neb_planner_costs *c)
{
    struct neb_layer_cost l;
    if (sscanf(line, "layer %d %d %d : %lf %lf %lf %lf", &l.tensor, &l.threads, &l.ranks, &l.layer[0],
               &l.layer[1], &l.ends, &l.update) != 7)
        return false;
    if (l.tensor < 1 || l.threads < 1 || l.ranks < 1 || !good(l.layer[0]) || !good(l.layer[1]) ||
        !good(l.ends) || !good(l.update))
        return false;
    neb__costs_add_layer(c, &l);
    return true;
}

static bool read_group(const char *line, struct neb_planner_costs *c)
{
    struct neb_group_cost g;
    double x[8];
    int beside;
    if (sscanf(line, "group %d %d %d : %lf %lf %lf %lf %lf %lf %lf %lf", &g.size, &g.stride, &beside, &x[0],
               &x[1], &x[2], &x[3], &x[4], &x[5], &x[6], &x[7]) != 11 ||
        g.size < 2 || g.stride < 1)
        return false;
    g.beside = beside != 0;
    for (int k = 0; k < NEB_TRAFFIC_KINDS; k++) {
        if (!good(x[2 * k]) || !good(x[2 * k + 1])) return false;
        g.call[k] = x[2 * k];
        g.byte[k] = x[2 * k + 1];
    }
    neb__costs_add_group(c, &g);
    return true;
}

neb_status neb__costs_read(const char *text, struct neb_planner_costs *out)
{
    struct neb_planner_costs c = {0};
    char line[512];
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, "\n");
        snprintf(line, sizeof line, "%.*s", (int)(n < sizeof line ? n : sizeof line - 1), p);
        p += n + (p[n] == '\n');
        bool known = !strncmp(line, "device ", 7);
        if (known) snprintf(c.device, sizeof c.device, "%.127s", line + 7);
        if (!strncmp(line, "layer ", 6)) known = read_layer(line, &c);
        if (!strncmp(line, "group ", 6)) known = read_group(line, &c);
        if (!strncmp(line, "bus ", 4)) known = sscanf(line, "bus %lf", &c.bus) == 1 && good(c.bus);
        if (!known) return neb__quiet(NEB_ERR_CORRUPT, "not a list of measured costs: %.60s", line);
    }
    *out = c;
    return NEB_OK;
}
