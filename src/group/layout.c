/* layout.c: the groups of a layout, split off the group of all ranks. */
#include "group/layout.h"

neb_status neb__layout_open(struct neb_group *world, int data, int pipeline, int tensor,
                            struct neb_layout *out)
{
    const int size = neb__group_size(world), rank = neb__group_rank(world);
    struct neb_layout l = {.world = world};
    if (data < 1 || pipeline < 1 || tensor < 1 || (int64_t)data * pipeline * tensor != size)
        return neb__fail(NEB_ERR_CONFIG,
                         "a layout of data %d, pipeline %d and tensor %d does not have %d ranks", data,
                         pipeline, tensor, size);
    const int t = rank % tensor, p = rank / tensor % pipeline, d = rank / (tensor * pipeline);
    const struct {
        int size, color;
        struct neb_group **group;
    } parts[] = {{data, p * tensor + t, &l.data},
                 {pipeline, d * tensor + t, &l.pipeline},
                 {tensor, d * pipeline + p, &l.tensor},
                 {pipeline * tensor, d, &l.model}};
    neb_status status = NEB_OK;
    for (int i = 0; status == NEB_OK && i < 4; i++)
        if (parts[i].size > 1) status = neb__group_split(world, parts[i].color, parts[i].group);
    if (status != NEB_OK) {
        neb__layout_close(&l);
        return status;
    }
    *out = l;
    return NEB_OK;
}

void neb__layout_close(struct neb_layout *l)
{
    neb__group_close(l->data);
    neb__group_close(l->pipeline);
    neb__group_close(l->tensor);
    neb__group_close(l->model);
    *l = (struct neb_layout){.world = l->world};
}

neb_status neb__layout_attach(const struct neb_layout *l, const struct neb_device_ops *ops, void *dev)
{
    if (!l) return NEB_OK;
    struct neb_group *all[] = {l->data, l->pipeline, l->tensor, l->model};
    /* a refusal in one group must not leave its ranks' other groups waiting for them */
    for (int i = 0; i < 4; i++) NEB_TRY(neb__group_agree(l->world, neb__group_attach(all[i], ops, dev)));
    return NEB_OK;
}

void neb__layout_detach(const struct neb_layout *l)
{
    if (!l) return;
    neb__group_detach(l->data);
    neb__group_detach(l->pipeline);
    neb__group_detach(l->tensor);
    neb__group_detach(l->model);
}

bool neb__layout_staged(const struct neb_layout *l)
{
    if (!l) return false;
    return neb__group_staged(l->data) || neb__group_staged(l->pipeline) || neb__group_staged(l->tensor) ||
           neb__group_staged(l->model);
}

void neb__layout_give_up(const struct neb_layout *l)
{
    if (!l) return;
    neb__group_give_up(l->data);
    neb__group_give_up(l->pipeline);
    neb__group_give_up(l->tensor);
    neb__group_give_up(l->model);
}

struct neb_group *neb__layout_world(const struct neb_layout *l)
{
    return l ? l->world : NULL;
}

struct neb_group *neb__layout_data(const struct neb_layout *l)
{
    return l ? l->data : NULL;
}

struct neb_group *neb__layout_pipeline(const struct neb_layout *l)
{
    return l ? l->pipeline : NULL;
}

struct neb_group *neb__layout_tensor(const struct neb_layout *l)
{
    return l ? l->tensor : NULL;
}

struct neb_group *neb__layout_model(const struct neb_layout *l)
{
    return l ? l->model : NULL;
}
