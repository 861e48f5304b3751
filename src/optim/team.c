/* team.c: exchanges of a team through the operations of a group. The CPU's memory is the host's, so a pointer of the
 * device can be handed on as it is. */
#include "optim/team.h"

static neb_status exchange(void *group, enum neb_team_op op, void *values, int64_t n, const int64_t *edge)
{
    switch (op) {
    case NEB_TEAM_SUM: return neb__group_sum(group, values, n);
    case NEB_TEAM_GATHER: return neb__group_gather(group, values, edge);
    case NEB_TEAM_GATHER_DOUBLES: return neb__group_gather_doubles(group, values, edge);
    case NEB_TEAM_SUM_SCATTER: return neb__group_sum_scatter(group, values, edge);
    }
    return neb__fail(NEB_ERR_INTERNAL, "unknown exchange %d", (int)op);
}

void neb__ranks_team(neb_params *ps, const struct neb_layout *layout, struct neb_team *team)
{
    struct neb_group *g = neb__layout_tensor(layout);
    if (neb__group_size(g) < 2) return;
    *team = (struct neb_team){neb__group_rank(g), neb__group_size(g), g, exchange};
    ps->team = team;
}
