/* layout.h: the ranks of a site by what they do.
 *
 * A site of data * pipeline * tensor ranks holds `data` copies of the model. Each copy is cut into `pipeline`
 * stages of consecutive layers, and each stage's matrices are cut among `tensor` ranks:
 *
 *     rank = (d * pipeline + p) * tensor + t
 *
 * so the ranks of a tensor group, which exchange the most, are neighbours. A group of one rank is NULL: its
 * operations do nothing. */
#ifndef NEB_GROUP_LAYOUT_H
#define NEB_GROUP_LAYOUT_H

#include "group/on_device.h"

struct neb_layout {
    struct neb_group *world;    /* all ranks of the site; not owned */
    struct neb_group *data;     /* the same part of each copy of the model; rank d */
    struct neb_group *pipeline; /* the stages of this copy with the same t; rank p */
    struct neb_group *tensor;   /* the parts of this stage; rank t */
    struct neb_group *model;    /* one copy of the model: rank p * tensor + t */
    bool dry;                   /* a rehearsal: the device of this rank computes nothing (pretend.h) */
    bool several;               /* a rehearsal of ranks on several machines */
    bool gpu;                   /* a rehearsal of a GPU, also where there is none */
};

/* A collective call of all ranks of `world` (NULL: this process alone, all sizes are 1).
 *   NEB_ERR_CONFIG  the sizes do not multiply to the number of ranks */
neb_status neb__layout_open(struct neb_group *world, int data, int pipeline, int tensor,
                            struct neb_layout *out);
void neb__layout_close(struct neb_layout *l); /* all but world */

/* The groups exchange memory of this device from now on (on_device.h). A collective call; NULL: this process alone.
 * The device is closed after neb__layout_detach() or neb__layout_close(). */
neb_status neb__layout_attach(const struct neb_layout *l, const struct neb_device_ops *ops, void *dev);
void neb__layout_detach(const struct neb_layout *l);
/* Exchanges of some group go through the host. */
bool neb__layout_staged(const struct neb_layout *l);

/* This rank cannot go on: neb__group_give_up() in every group. */
void neb__layout_give_up(const struct neb_layout *l);

/* The groups of a layout that may be NULL. */
struct neb_group *neb__layout_world(const struct neb_layout *l);
struct neb_group *neb__layout_data(const struct neb_layout *l);
struct neb_group *neb__layout_pipeline(const struct neb_layout *l);
struct neb_group *neb__layout_tensor(const struct neb_layout *l);
struct neb_group *neb__layout_model(const struct neb_layout *l);

#endif
