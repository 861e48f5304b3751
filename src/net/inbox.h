/* inbox.h: the messages coming from one peer, put together again. No I/O. */
#ifndef NEB_NET_INBOX_H
#define NEB_NET_INBOX_H

#include "net/wire.h"

struct neb_in {
    uint64_t number;
    uint32_t kind;
    uint64_t size;
    uint8_t *data;
    uint32_t chunks, have;
    uint8_t *state; /* per chunk: IN_MISSING, IN_HAVE, or 1 + the slot that is writing it */
    uint8_t few[8];
};

struct neb_inbox_queue {
    struct neb_in *open[NEB_MESSAGES_OPEN];
    uint64_t delivered; /* all up to this one */
    uint64_t bytes;     /* of messages open */
    uint64_t window;
};

struct neb_inbox {
    struct neb_inbox_queue queue[NEB_PRIORITIES];
    struct neb_ack *acks; /* not yet sent */
    uint32_t ack_count, ack_room;
    bool progress;  /* `delivered` moved since the last time it was sent */
    uint64_t bytes; /* payload received, ever */
};

void neb__inbox_init(struct neb_inbox *in, const size_t window[NEB_PRIORITIES]);
void neb__inbox_free(struct neb_inbox *in);
void neb__inbox_new_session(struct neb_inbox *in); /* forgets everything but the windows */

/* A chunk begins to arrive on `slot`. NEB_ERR_PROTOCOL, NEB_ERR_LIMIT (beyond the window), NEB_ERR_NOMEM. */
neb_status neb__inbox_begin(struct neb_inbox *in, const struct neb_chunk *c, int slot);
/* Where its payload goes; NULL when it is not wanted (any more). */
uint8_t *neb__inbox_place(struct neb_inbox *in, const struct neb_chunk *c, int slot);
/* It has arrived. NEB_ERR_NOMEM. */
neb_status neb__inbox_end(struct neb_inbox *in, const struct neb_chunk *c, int slot);
/* The connection is gone: what it was writing is missing again. */
void neb__inbox_drop_slot(struct neb_inbox *in, int slot);

/* The next message in order if it is complete, else NULL. */
struct neb_in *neb__inbox_peek(struct neb_inbox *in, enum neb_priority priority);
/* It is delivered (data NULL: taken). */
void neb__inbox_pop(struct neb_inbox *in, enum neb_priority priority);

/* Takes up to `max` acknowledgements out. */
uint32_t neb__inbox_take_acks(struct neb_inbox *in, struct neb_ack *out, uint32_t max);
/* Acknowledges everything held again: for a resumption. NEB_ERR_NOMEM. */
neb_status neb__inbox_ack_all(struct neb_inbox *in);

#endif
