/* channel.h: messages between the neighbours of a line of ranks.
 *
 * Rank r of the group sends ahead to rank r + 1 and back to rank r - 1. Each of these ways is a channel: a
 * number of places for messages of a fixed size, used in turn. A message is written where it will be read, and
 * sending it only counts it, so a sender does not wait unless all places are in use. The receiver keeps a
 * message until it releases it; messages are released in their order. On several machines the places are
 * copies, and the engine moves the bytes while both sides go on.
 *
 * A successful open owes a close. One thread makes all calls. */
#ifndef NEB_GROUP_CHANNEL_H
#define NEB_GROUP_CHANNEL_H

#include "group/group.h"

struct neb_channel;

/* The four ends at this rank; NULL: there is no neighbour on that side. */
struct neb_channels {
    struct neb_channel *ahead_in, *ahead_out, *back_in, *back_out;
    void *memory; /* where the ranks do not share any */
};

/* What lies between rank r and rank r + 1, both ways. */
struct neb_channel_size {
    size_t bytes; /* of a message */
    int places;
};

/* Collective. `size` has an entry for each pair of neighbours. NEB_ERR_NOMEM; NEB_ERR_LIMIT: over 2 GiB */
neb_status neb__channels_open(struct neb_group *g, const struct neb_channel_size *size,
                              struct neb_channels *out);
void neb__channels_close(struct neb_channels *c);
/* This rank has failed and will neither send nor receive: its neighbours get NEB_ERR_PEER instead of waiting. */
void neb__channels_fail(struct neb_channels *c);

int neb__channel_places(const struct neb_channel *c);
void *neb__channel_place(const struct neb_channel *c, int place); /* its memory */
int64_t neb__channel_count(const struct neb_channel *c);          /* messages sent, or awaited, here so far */

/* The sender: waits until the next message's place is free; the message that was written there is sent. */
neb_status neb__channel_reserve(struct neb_channel *c);
neb_status neb__channel_post(struct neb_channel *c);
/* The receiver: waits for the next message; the oldest one that it holds is not needed any more. */
neb_status neb__channel_await(struct neb_channel *c);
void neb__channel_release(struct neb_channel *c);

#endif
