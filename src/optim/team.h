/* team.h: the ranks of a tensor group as the team that shares a model's layers (tensor/team.h). */
#ifndef NEB_OPTIM_TEAM_H
#define NEB_OPTIM_TEAM_H

#include "group/layout.h"
#include "tensor/team.h"

/* Makes the layout's tensor group the team of these parameters. Before any parameter is added. team must outlive them;
 * a group of one rank makes none. */
void neb__ranks_team(neb_params *ps, const struct neb_layout *layout, bool sequence, struct neb_team *team);

#endif
