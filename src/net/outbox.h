/* outbox.h: the messages on their way to one peer. No I/O: it decides which chunk goes next and what is
 * finished.
 *
 * A successful push leads to exactly one call of its `sent`. */
#ifndef NEB_NET_OUTBOX_H
#define NEB_NET_OUTBOX_H

#include "net/wire.h"

enum { NEB_SLOT_CONTROL = NEB_STRIPES_MAX, NEB_SLOTS };

struct neb_out {
    struct neb_out *next;
    uint64_t number; /* 0: not begun */
    uint32_t kind;
    uint8_t priority;
    bool owned; /* we must free `data` */
    const uint8_t *data;
    uint64_t size;
    uint32_t chunks, acked;
    uint32_t scan;  /* no chunk below it is queued */
    uint8_t *state; /* per chunk: CHUNK_QUEUED, CHUNK_ACKED, or 1 + the slot it is in flight on */
    uint8_t few[8]; /* `state` of small messages */
    neb_sent_fn sent;
    void *arg;
};

struct neb_outbox_queue {
    struct neb_out *first, *last; /* in order: the begun messages, then the others */
    struct neb_out *cursor;       /* no message before it has a queued chunk */
    struct neb_out *begun[NEB_MESSAGES_OPEN];
    uint64_t next_number, delivered;
    uint64_t window;       /* the peer's window */
    uint64_t begun_bytes;  /* total size of messages begun and not delivered */
    uint64_t queued_bytes; /* total size of all messages held */
    uint64_t unsent;       /* queued chunks of all messages held */
};

struct neb_outbox {
    struct neb_outbox_queue queue[NEB_PRIORITIES];
    uint32_t in_flight[NEB_SLOTS]; /* chunks */
    uint32_t turn;
    uint64_t acked_bytes; /* so far */
};

void neb__outbox_init(struct neb_outbox *o, const size_t window[NEB_PRIORITIES]);
/* Ends every message with `s`. */
void neb__outbox_free(struct neb_outbox *o, neb_status s);

neb_status neb__outbox_push(struct neb_outbox *o, enum neb_priority priority, uint32_t kind,
                            const uint8_t *data, uint64_t size, bool owned, neb_sent_fn sent, void *arg);

/* Picks the next chunk for a connection and marks it as in flight on `slot`. NEB_SLOT_CONTROL gets chunks of
 * NEB_CONTROL, a stripe gets those of the other priorities. False: nothing may be sent now. */
bool neb__outbox_pick(struct neb_outbox *o, int slot, struct neb_chunk *chunk, const uint8_t **payload);
bool neb__outbox_has(const struct neb_outbox *o, int slot); /* would pick find one? */

/* The acknowledgement comes from the peer and is hostile. NEB_ERR_PROTOCOL: its chunk was never sent. */
neb_status neb__outbox_ack(struct neb_outbox *o, const struct neb_ack *a);
neb_status neb__outbox_delivered(struct neb_outbox *o, enum neb_priority priority, uint64_t number);

/* The connection of `slot` is gone: its chunks are queued again. */
void neb__outbox_requeue(struct neb_outbox *o, int slot);
/* The peer's process has changed: messages that were begun end with NEB_ERR_PEER, the others stay. */
void neb__outbox_new_session(struct neb_outbox *o);

uint64_t neb__outbox_bytes(const struct neb_outbox *o); /* held, all priorities */

#endif
