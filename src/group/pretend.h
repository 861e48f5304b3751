/* pretend.h: ranks that are not there.
 *
 * A pretended group has a rank and a size like any other, and its operations succeed at once, without the others and
 * without changing a value; what they would have moved is counted. With it one process goes the way of any rank of any
 * layout: it takes the memory of that rank (with a device that rehearses: tensor/device.h) or the time of its own
 * computing, and tells what the rank would exchange. */
#ifndef NEB_GROUP_PRETEND_H
#define NEB_GROUP_PRETEND_H

#include "group/layout.h"

enum neb_traffic_kind {
    NEB_TRAFFIC_SUM,
    NEB_TRAFFIC_SCATTER,
    NEB_TRAFFIC_GATHER,
    NEB_TRAFFIC_MESSAGE,
    NEB_TRAFFIC_KINDS
};

/* What a rank of a group has exchanged: calls, and bytes of the arrays that were given (of all ranks together). */
struct neb_rank_traffic {
    double calls[NEB_TRAFFIC_KINDS], bytes[NEB_TRAFFIC_KINDS];
};

neb_status neb__group_pretend(int rank, int size, struct neb_group **out);
/* Since the group was made; zeros for NULL and for a group that is real. */
struct neb_rank_traffic neb__group_traffic(const struct neb_group *g);

/* What a layout is, as numbers. */
struct neb_layout_sizes {
    int data, pipeline, tensor;
};
struct neb_layout_place {
    int data, pipeline, tensor; /* this rank's number in each direction */
    bool several;               /* the ranks are on several machines */
    bool gpu;                   /* each has a GPU, though there may be none here */
};

/* The groups of one rank of a layout. dry: the device that this rank opens computes nothing. Owes a
 * neb__layout_unpretend(). */
neb_status neb__layout_pretend(const struct neb_layout_sizes *sizes, const struct neb_layout_place *place,
                               bool dry, struct neb_layout *out);
void neb__layout_unpretend(struct neb_layout *l);

#endif
