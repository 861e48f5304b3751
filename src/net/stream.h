/* stream.h (inside src/net): shared by the three files of streams.
 *
 *     stream.c       the list of a peer's streams, marks, beginning and end
 *     stream_out.c   the producing end: journal, credit, sending (again)
 *     stream_in.c    the consuming end: handing over, marks */
#ifndef NEB_NET_STREAM_H
#define NEB_NET_STREAM_H

#include "net/journal.h"
#include "net/link.h"

enum { NEB_OP_OFFER = 1, NEB_OP_MARK = 2, NEB_OP_END = 3, NEB_ITEM_HEAD = 16 };
enum { NEB_STREAM_ITEMS_OPEN = 4096 }; /* most items above `received`, however small they are */

struct neb_stream_item {
    struct neb_stream_item *next;
    uint64_t number;
    size_t size;
    uint8_t *message; /* NEB_ITEM_HEAD + size bytes (consumer: size bytes); NULL: only in the journal */
};

struct neb_net_stream {
    struct neb_net_stream *next;
    struct neb_peer *peer;
    uint32_t id;
    bool producing, attached, full, closing;
    bool tell;    /* a mark (or offer) must be sent */
    bool offered; /* consumer: the producer's end was open in this session */
    bool ending;  /* consumer: must tell the producer that the stream ends, with `why` */
    neb_status why;
    neb_sent_fn end_sent;
    void *end_arg;
    struct neb_net_stream_producer producer;
    struct neb_net_stream_consumer consumer;
    struct neb_journal *journal;
    struct neb_stream_item *first,
        *last;        /* producer: the newest unsent items, in order; consumer: items not yet taken in */
    uint64_t backlog; /* bytes in them */
    uint64_t received, retained, window;
    /* producer */
    uint64_t next_item, cursor; /* next item to produce; next item to send */
    uint64_t durable;
    uint64_t quota;  /* bytes of the journal, beyond which it takes no item */
    uint64_t *sizes; /* a ring: sizes of the items in flight */
    uint64_t sizes_room, in_flight;
    struct neb_stream_sync *sync;
    uint8_t *recalled; /* an item that was fetched again and waits for credit */
    size_t recalled_size;
    uint64_t recalled_item;
    /* consumer */
    uint64_t queued; /* the newest item in the list or taken in */
    bool held;
    bool in_callback;
    uint32_t round;
};

/* ---- stream.c ------------------------------------------------------------------------------------------ */
struct neb_net_stream *neb__net_stream_find(struct neb_peer *p, uint32_t id, bool producing);
neb_status neb__net_stream_new(struct neb_net *net, uint16_t peer, uint32_t id, bool producing,
                               struct neb_net_stream **out);
void neb__net_stream_enlist(struct neb_net_stream *s);
void neb__net_stream_release(struct neb_net_stream *s);              /* frees its memory */
void neb__net_stream_stop(struct neb_net_stream *s, neb_status why); /* tells the layer above; s is gone */
neb_status neb__net_stream_tell(struct neb_peer *p, uint8_t op, uint32_t id, uint64_t a, uint64_t b,
                                uint64_t c);
bool neb__net_stream_tell_end(struct neb_net_stream *s); /* true: told, s is gone */
void neb__net_stream_add(struct neb_net_stream *s, struct neb_stream_item *i);
struct neb_stream_item *neb__net_stream_remove(struct neb_net_stream *s);

/* ---- stream_out.c -------------------------------------------------------------------------------------- */
neb_status neb__net_stream_mark(struct neb_net_stream *s, uint64_t received, uint64_t retained,
                                uint64_t window);
void neb__net_stream_flush_producer(struct neb_net_stream *s);

/* ---- stream_in.c --------------------------------------------------------------------------------------- */
neb_status neb__net_stream_item(struct neb_peer *p, const struct neb_message *m);
neb_status neb__net_stream_offer(struct neb_peer *p, uint32_t id, uint64_t first);
void neb__net_stream_flush_consumer(struct neb_net_stream *s);

#endif
