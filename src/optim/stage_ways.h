/* stage_ways.h (internal): the ways of messages between a stage and its neighbours at other ranks.
 *
 * Hidden states go ahead, to the next stage, and gradients come back. A way has a number of places, which are used in turn; each is a
 * buffer of the device. Where the devices of the ranks send by themselves, a message goes from device to device in the order of their
 * streams, and the host waits for nothing. Otherwise it lies in a channel (group/channel.h). */
#ifndef NEB_OPTIM_STAGE_WAYS_H
#define NEB_OPTIM_STAGE_WAYS_H

#include "group/channel.h"

#include <nebula/engine.h>

/* One end of a way. There is no neighbour on that side: n is 0, and all calls do nothing. */
struct neb_line_way {
    neb_device *dev;
    struct neb_channel *channel; /* NULL: the devices send by themselves … */
    struct neb_group *pair;      /* … in this group of two */
    neb_buffer *list;            /* (n) the places */
    int n;
    char *memory;  /* of the device, for all places; NULL: the channel's */
    int64_t count; /* messages sent, or taken, between devices */
};

struct neb_line_ways {
    struct neb_line_way ahead_in, ahead_out, back_in, back_out;
    struct neb_channels channels;
};

/* Collective over `g`, whose ranks are the stages in their order. bytes: of the largest message between stage s and stage s + 1. As many
 * places as micro-batches are in flight at the stage before: it never waits to send. A close is owed in any case.
 *   NEB_ERR_NOMEM, NEB_ERR_LIMIT, NEB_ERR_DEVICE, NEB_ERR_PEER */
neb_status neb__ways_open(struct neb_group *g, neb_device *d, const size_t *bytes, struct neb_line_ways *out);
void neb__ways_close(struct neb_line_ways *w);
/* This rank has failed: its neighbours do not wait for its messages. */
void neb__ways_fail(struct neb_line_ways *w);

/* The buffer of the message that comes after the next `behind` ones. NULL: there is no neighbour. */
neb_buffer *neb__way_buffer(const struct neb_line_way *w, int behind);

/* Out: the place of the next message is free; the message that was written there is sent. */
neb_status neb__way_reserve(struct neb_line_way *w);
neb_status neb__way_send(struct neb_line_way *w);
/* In: the next message is there, then in its buffer; the oldest one that is kept is not needed any more. */
neb_status neb__way_await(struct neb_line_way *w);
neb_status neb__way_take(struct neb_line_way *w);
void neb__way_release(struct neb_line_way *w);

#endif
