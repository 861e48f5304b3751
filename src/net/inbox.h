/* inbox.h: puts the messages of one peer together from their chunks. No I/O. */
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
    uint64_t delivered; /* every message up to this one is delivered */
    uint64_t bytes;     /* total size of open messages */
    uint64_t window;
};

struct neb_inbox {
    struct neb_inbox_queue queue[NEB_PRIORITIES];
    struct neb_ack *acks; /* not yet sent */
    uint32_t ack_count, ack_room;
    bool progress;  /* `delivered` has moved since it was last sent */
    uint64_t bytes; /* payload received so far */
};

void neb__inbox_init(struct neb_inbox *in, const size_t window[NEB_PRIORITIES]);
void neb__inbox_free(struct neb_inbox *in);
void neb__inbox_new_session(struct neb_inbox *in); /* forgets everything but the windows */

/* A chunk begins to arrive on `slot`. NEB_ERR_PROTOCOL, NEB_ERR_LIMIT (beyond the window), NEB_ERR_NOMEM. */
neb_status neb__inbox_begin(struct neb_inbox *in, const struct neb_chunk *c, int slot);
/* Returns the place for its payload; NULL: the payload is not wanted, or no longer. */
uint8_t *neb__inbox_place(struct neb_inbox *in, const struct neb_chunk *c, int slot);
/* The chunk has arrived. NEB_ERR_NOMEM. */
neb_status neb__inbox_end(struct neb_inbox *in, const struct neb_chunk *c, int slot);
/* The connection of `slot` is gone: the chunk that it was writing is missing again. */
void neb__inbox_drop_slot(struct neb_inbox *in, int slot);

/* Returns the next message in order if it is complete, else NULL. */
struct neb_in *neb__inbox_peek(struct neb_inbox *in, enum neb_priority priority);
/* The message that peek returned is delivered (data NULL: the callback took the bytes). */
void neb__inbox_pop(struct neb_inbox *in, enum neb_priority priority);

/* Moves up to `max` acknowledgements to `out`. */
uint32_t neb__inbox_take_acks(struct neb_inbox *in, struct neb_ack *out, uint32_t max);
/* Acknowledges again everything that the inbox holds, for a resumption. NEB_ERR_NOMEM. */
neb_status neb__inbox_ack_all(struct neb_inbox *in);

#endif
