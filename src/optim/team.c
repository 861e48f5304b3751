/* team.c: exchanges of a team through the operations of a group on the memory of its ranks' devices. */
#include "optim/team.h"

static neb_status exchange(void *group, enum neb_team_op op, void *values, int64_t n, const int64_t *edge,
                           neb_dtype type)
{
    switch (op) {
    case NEB_TEAM_SUM: return neb__device_sum(group, values, n, type);
    case NEB_TEAM_GATHER: return neb__device_gather(group, values, edge, type);
    case NEB_TEAM_SUM_SCATTER: return neb__device_sum_scatter(group, values, edge, type);
    }
    return neb__fail(NEB_ERR_INTERNAL, "unknown exchange %d", (int)op);
}

void neb__ranks_team(neb_params *ps, const struct neb_layout *layout, bool sequence, struct neb_team *team)
{
    struct neb_group *g = neb__layout_tensor(layout);
    if (neb__group_size(g) < 2) return;
    *team = (struct neb_team){neb__group_rank(g), neb__group_size(g), sequence, g, exchange};
    ps->team = team;
}
