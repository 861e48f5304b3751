/* stage_ways.c: a stage's messages to its neighbours, by a channel of the host or from device to device.
 *
 * By a channel: on a device that computes in the host's memory the model reads and writes a message right in its place of the channel.
 * Other devices have a buffer for each place, and a message is copied: the host waits for the device before it sends.
 *
 * From device to device: each way of each pair of neighbours is a group of two with a communicator of its own, so a message of one way
 * never stands behind one of another. A message is received in the stream that computes, where it is needed next. It is sent beside
 * that stream. Before the next message is written, the stream waits for all that were sent this way before. That costs nothing: the
 * neighbour takes a message when it has computed the one before it, and so it has taken message n when this stage is about to
 * write message n + 1. Nor can stages wait for each other in a ring: the forward of micro-batch n at the next stage needs nothing that
 * this stage does later than its own forward of n, and likewise backwards. */
#include "optim/stage_ways.h"
#include "base/mem.h"
#include "group/on_device.h"
#include "tensor/buffer.h"
#include "tensor/device.h"

#include <string.h>

/* ---- opening ---------------------------------------------------------------------------------------------- */

static neb_status make_places(struct neb_line_way *w, int n, size_t bytes)
{
    if (!n) return NEB_OK;
    w->list = NEB_NEW_ARRAY(neb_buffer, (size_t)n);
    if (!w->list) return neb__fail(NEB_ERR_NOMEM, "out of memory for %d messages", n);
    w->n = n;
    const size_t step = (bytes + 255) / 256 * 256;
    if (!w->channel || strcmp(w->dev->ops->name, "cpu"))
        NEB_TRY(w->dev->ops->alloc(w->dev->ctx, (size_t)n * (step ? step : 256), (void **)&w->memory));
    for (int i = 0; i < n; i++) {
        void *at = w->memory ? w->memory + (size_t)i * step : neb__channel_place(w->channel, i);
        w->list[i] = (neb_buffer){w->dev, at, bytes};
    }
    return NEB_OK;
}

static neb_status make_all_places(struct neb_group *g, const size_t *bytes, struct neb_line_ways *w)
{
    const int stage = neb__group_rank(g), stages = neb__group_size(g);
    const int before = stage ? stages - stage + 1 : 0, behind = stage < stages - 1 ? stages - stage : 0;
    NEB_TRY(make_places(&w->ahead_in, before, before ? bytes[stage - 1] : 0));
    NEB_TRY(make_places(&w->back_out, before, before ? bytes[stage - 1] : 0));
    NEB_TRY(make_places(&w->ahead_out, behind, bytes[stage]));
    return make_places(&w->back_in, behind, bytes[stage]);
}

static neb_status open_channels(struct neb_group *g, const size_t *bytes, struct neb_line_ways *w)
{
    const int stages = neb__group_size(g);
    struct neb_channel_size *size = NEB_NEW_ARRAY(struct neb_channel_size, (size_t)stages);
    neb_status status = size ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for %d stages", stages);
    for (int s = 0; size && s < stages - 1; s++) size[s] = (struct neb_channel_size){bytes[s], stages - s};
    status = neb__group_agree(g, status);
    if (status == NEB_OK) status = neb__channels_open(g, size, &w->channels);
    neb__free(size);
    NEB_TRY(status);
    w->ahead_in.channel = w->channels.ahead_in;
    w->ahead_out.channel = w->channels.ahead_out;
    w->back_in.channel = w->channels.back_in;
    w->back_out.channel = w->channels.back_out;
    return NEB_OK;
}

/* Two rounds for each direction: first the stages 0 and 1, 2 and 3, …, then 1 and 2, 3 and 4, … */
static neb_status open_pairs(struct neb_group *g, neb_device *d, struct neb_line_ways *w)
{
    for (int i = 0; i < 4; i++) {
        const int round = i % 2;
        const bool back = i > 1, first = (neb__group_rank(g) + round) % 2 == 0;
        struct neb_line_way *ends[2][2] = {{&w->ahead_in, &w->ahead_out}, {&w->back_out, &w->back_in}};
        struct neb_group *pair;
        NEB_TRY(neb__group_split(g, (neb__group_rank(g) + round) / 2, &pair));
        neb_status status = NEB_OK;
        if (neb__group_size(pair) == 2) {
            ends[back][first]->pair = pair;
            status = neb__group_attach(pair, d->ops, d->ctx);
        } else {
            neb__group_close(pair);
        }
        NEB_TRY(neb__group_agree(g, status));
    }
    return NEB_OK;
}

neb_status neb__ways_open(struct neb_group *g, neb_device *d, const size_t *bytes, struct neb_line_ways *w)
{
    *w = (struct neb_line_ways){0};
    w->ahead_in.dev = w->ahead_out.dev = w->back_in.dev = w->back_out.dev = d;
    NEB_TRY(neb__device_sends(g) ? open_pairs(g, d, w) : open_channels(g, bytes, w));
    return make_all_places(g, bytes, w);
}

void neb__ways_close(struct neb_line_ways *w)
{
    struct neb_line_way *all[] = {&w->ahead_in, &w->ahead_out, &w->back_in, &w->back_out};
    for (int i = 0; i < 4; i++) {
        neb__group_close(all[i]->pair);
        if (all[i]->memory) all[i]->dev->ops->free(all[i]->dev->ctx, all[i]->memory);
        neb__free(all[i]->list);
    }
    neb__channels_close(&w->channels);
    *w = (struct neb_line_ways){0};
}

void neb__ways_fail(struct neb_line_ways *w)
{
    struct neb_line_way *all[] = {&w->ahead_in, &w->ahead_out, &w->back_in, &w->back_out};
    for (int i = 0; i < 4; i++)
        if (all[i]->pair) neb__group_give_up(all[i]->pair);
    neb__channels_fail(&w->channels);
}

/* ---- messages --------------------------------------------------------------------------------------------- */

static int64_t count_of(const struct neb_line_way *w)
{
    return w->channel ? neb__channel_count(w->channel) : w->count;
}

neb_buffer *neb__way_buffer(const struct neb_line_way *w, int behind)
{
    return w->n ? &w->list[(count_of(w) + behind) % w->n] : NULL;
}

neb_status neb__way_reserve(struct neb_line_way *w)
{
    if (!w->n) return NEB_OK;
    return w->channel ? neb__channel_reserve(w->channel) : neb__device_send_join(w->pair);
}

neb_status neb__way_send(struct neb_line_way *w)
{
    if (!w->n) return NEB_OK;
    const int i = (int)(count_of(w) % w->n);
    const neb_buffer *b = &w->list[i];
    if (!w->channel) {
        w->count++;
        return neb__device_send_begin(w->pair, b->data, b->bytes, 1 - neb__group_rank(w->pair));
    }
    if (w->memory)
        NEB_TRY(w->dev->ops->download(w->dev->ctx, neb__channel_place(w->channel, i), b->data, b->bytes));
    return neb__channel_post(w->channel);
}

neb_status neb__way_await(struct neb_line_way *w)
{
    return w->channel ? neb__channel_await(w->channel) : NEB_OK;
}

neb_status neb__way_take(struct neb_line_way *w)
{
    if (!w->n) return NEB_OK;
    if (!w->channel) {
        const neb_buffer *b = &w->list[w->count++ % w->n];
        return neb__device_receive(w->pair, b->data, b->bytes, 1 - neb__group_rank(w->pair));
    }
    const int i = (int)((count_of(w) - 1) % w->n); /* it has been awaited */
    const neb_buffer *b = &w->list[i];
    return w->memory ? w->dev->ops->upload(w->dev->ctx, b->data, neb__channel_place(w->channel, i), b->bytes)
                     : NEB_OK;
}

void neb__way_release(struct neb_line_way *w)
{
    if (w->channel) neb__channel_release(w->channel);
}
