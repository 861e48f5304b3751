/* step.c: a step's numbers on their way to the device and back.
 *
 * On an asynchronous device the results come back one step late: they are copied aside in stream order,
 * fetched over the side stream, and read after the next step has been enqueued. So the host never waits for a
 * step. Whoever waits (an evaluation between two steps) gets the newest results past them: those of the step
 * before stay for the end of the next step. */
#include "tensor/tape.h"

#include <string.h>

neb_status neb_tape_begin_step(neb_tape *t, const struct neb_ctl *in)
{
    struct neb_ctl c = *in;
    memset(c.loss, 0, sizeof c - offsetof(struct neb_ctl, loss));
    c.clip = 1;
    return t->dev->ops->upload(t->dev->ctx, t->ctl, &c, sizeof c);
}

static neb_status collect(neb_tape *t, int slot)
{
    if (!t->pending[slot]) return NEB_OK;
    NEB_TRY(t->dev->ops->fence_wait(t->dev->ctx, t->fence[slot]));
    t->pending[slot] = false;
    t->arrived = *t->ctl_host[slot];
    return NEB_OK;
}

neb_status neb_tape_end_step(neb_tape *t, bool wait, struct neb_ctl *out)
{
    const struct neb_device_ops *ops = t->dev->ops;
    if (!ops->side_download || wait) {
        NEB_TRY(collect(t, t->turn ^ 1));
        return ops->download(t->dev->ctx, out, t->ctl, sizeof *out);
    }
    int slot = t->turn;
    NEB_TRY(ops->copy(t->dev->ctx, t->ctl_copy[slot], t->ctl, sizeof *t->ctl));
    NEB_TRY(ops->side_download(t->dev->ctx, t->ctl_host[slot], t->ctl_copy[slot], sizeof *t->ctl,
                               &t->fence[slot]));
    t->pending[slot] = true;
    t->turn ^= 1;
    NEB_TRY(collect(t, t->turn));
    *out = t->arrived;
    return NEB_OK;
}
