/* wire.h: the frames that cross a connection, and the reader that parses them.
 *
 * docs/links.md has the layout of version 5, which differs from 3 and 4 in the messages of the rounds alone. Everything is little-endian. A frame is a header of 8
 * bytes (u32 length of the body, u8 type, 3 bytes zero) and its body. Lengths are checked against the type's
 * maximum before anything is allocated. */
#ifndef NEB_NET_WIRE_H
#define NEB_NET_WIRE_H

#include "base/buf.h"
#include "net/net.h"

enum { NEB_WIRE_VERSION_MIN = 5, NEB_WIRE_VERSION = 5 };

enum neb_frame_type {
    NEB_FRAME_HELLO = 1,   /* the first frame of either side */
    NEB_FRAME_WELCOME = 2, /* the sender accepts the receiver */
    NEB_FRAME_REFUSE = 3,  /* the sender does not; the last frame */
    NEB_FRAME_CHAIN = 4,   /* epochs that the receiver lacks */
    NEB_FRAME_PING = 5,
    NEB_FRAME_PONG = 6,
    NEB_FRAME_CHUNK = 7,
    NEB_FRAME_ACK = 8,
    NEB_FRAME_BYE = 9, /* the sender closes on purpose */
    NEB_FRAME_TYPES,
};

enum {
    NEB_FRAME_HEADER = 8,
    NEB_HELLO_SIZE = 192,
    NEB_HELLO_MAX = 1024, /* a later version may append fields; unknown ones are skipped */
    NEB_PING_SIZE = 32,
    NEB_PONG_SIZE = 16,
    NEB_REFUSE_MAX = 258,
    NEB_CHUNK_HEADER = 32,
    NEB_CHUNK =
        65536 - NEB_FRAME_HEADER - NEB_CHUNK_HEADER, /* payload: a full frame is four full TLS records */
    NEB_ACK_HEADER = 40,
    NEB_ACK_ENTRY = 16,
    NEB_ACK_ENTRIES_MAX = 4096,
    NEB_MESSAGES_OPEN = 1024, /* per priority: messages begun and not delivered */
    NEB_STRIPES_MAX = 64,
    NEB_CONTROL_COPY = NEB_STRIPES_MAX -
                       1, /* since version 2: the stripe with copies of control messages (control_copy.c) */
    NEB_CONTROL_COPY_MESSAGE_MAX = 1024,
};

enum neb_conn_role { NEB_CONN_CONTROL = 0, NEB_CONN_STRIPE = 1 };

struct neb_hello {
    uint16_t version_min, version_max;
    uint8_t role;
    uint8_t stripe;
    uint8_t run_id[NEB_RUN_ID_SIZE];
    struct neb_hash genesis;
    uint64_t epoch;
    struct neb_hash head; /* hash of that epoch */
    uint64_t incarnation, boot;
    uint64_t token; /* the dialler chooses it for a control connection; its stripes repeat it */
    uint32_t chunk;
    uint64_t window[NEB_PRIORITIES];
};

struct neb_ping {
    uint32_t number;
    uint32_t stripes; /* how many the sender would like to send on */
    uint64_t time;    /* the sender's clock; the pong repeats it */
    uint64_t goodput; /* bits per second, as the sender measures towards the receiver; 0: unknown */
    uint64_t queued;
};

struct neb_pong {
    uint32_t number;
    uint32_t held; /* microseconds that the pong waited at its sender; 0 before version 3 */
    uint64_t time;
};

struct neb_chunk {
    uint8_t priority;
    uint32_t kind;
    uint64_t message; /* number within the priority, counted from 1 */
    uint64_t size;    /* bytes of the whole message */
    uint32_t index;   /* the chunk begins at index * NEB_CHUNK */
    uint32_t length;  /* bytes of payload, known from the frame's length */
};

/* Chunks [index, index + count) of a message have arrived. */
struct neb_ack {
    uint8_t priority;
    uint64_t message;
    uint32_t index, count;
};

enum neb_refuse_code {
    NEB_REFUSE_VERSION = 1,
    NEB_REFUSE_RUN = 2,
    NEB_REFUSE_GENESIS = 3,
    NEB_REFUSE_KEY = 4,
    NEB_REFUSE_INCARNATION = 5,
    NEB_REFUSE_FORK = 6,
    NEB_REFUSE_TOKEN = 7,
    NEB_REFUSE_PROTOCOL = 8,
};

void neb__frame_header(uint8_t out[NEB_FRAME_HEADER], enum neb_frame_type type, uint32_t length);
void neb__hello_put(const struct neb_hello *h, uint8_t out[NEB_HELLO_SIZE]);
void neb__ping_put(const struct neb_ping *p, uint8_t out[NEB_PING_SIZE]);
void neb__pong_put(const struct neb_pong *p, uint8_t out[NEB_PONG_SIZE]);
void neb__chunk_put(const struct neb_chunk *c, uint8_t out[NEB_CHUNK_HEADER]);
void neb__ack_head_put(const uint64_t delivered[NEB_PRIORITIES], bool resume, uint32_t entries,
                       uint8_t out[NEB_ACK_HEADER]);
void neb__ack_put(const struct neb_ack *a, uint8_t out[NEB_ACK_ENTRY]);

/* These parse bodies from outside. NEB_ERR_PROTOCOL: neb_last_error() says what is wrong (not logged). */
neb_status neb__hello_get(const uint8_t *p, size_t n, struct neb_hello *out);
neb_status neb__ping_get(const uint8_t *p, size_t n, struct neb_ping *out);
neb_status neb__pong_get(const uint8_t *p, size_t n, struct neb_pong *out);
neb_status neb__refuse_get(const uint8_t *p, size_t n, uint16_t *code, char text[257]);
neb_status neb__ack_head_get(const uint8_t *p, size_t n, uint64_t delivered[NEB_PRIORITIES], bool *resume,
                             uint32_t *entries);
neb_status neb__ack_get(const uint8_t *p, struct neb_ack *out);

/* Number of chunks of a message; an empty message is one empty chunk. */
static inline uint64_t neb__chunks_of(uint64_t size)
{
    return size ? (size + NEB_CHUNK - 1) / NEB_CHUNK : 1;
}

/* ---- the reader ---------------------------------------------------------------------------------------- */

/* The caller feeds it plaintext in pieces of any length: it asks where the next bytes go and how many at
 * most, puts some there, and says how many. A chunk's payload goes straight to its place. */
struct neb_framer_events {
    neb_status (*frame)(void *arg, enum neb_frame_type type, const uint8_t *body, size_t n);
    neb_status (*chunk_begin)(void *arg, const struct neb_chunk *c);
    /* Returns where the chunk's payload begins in memory; NULL: nobody wants it, or no longer. Called again
     * for every piece. */
    uint8_t *(*chunk_place)(void *arg, const struct neb_chunk *c);
    neb_status (*chunk_end)(void *arg, const struct neb_chunk *c);
};

struct neb_framer {
    const struct neb_framer_events *events;
    void *arg;
    enum { NEB_FRAMER_HEAD, NEB_FRAMER_CHUNK_HEAD, NEB_FRAMER_PAYLOAD, NEB_FRAMER_BODY } state;
    uint8_t head[NEB_CHUNK_HEADER];
    uint8_t *skip; /* takes unwanted payload; shared by all framers of a thread */
    size_t skip_size;
    struct neb_buf body;
    struct neb_chunk chunk;
    uint8_t type;
    uint32_t length, have;
    uint32_t allowed; /* bit set of the frame types allowed at this point of the conversation */
};

void neb__framer_init(struct neb_framer *f, const struct neb_framer_events *events, void *arg, uint8_t *skip,
                      size_t skip_size);
void neb__framer_free(struct neb_framer *f);
/* Returns how many bytes the present frame still lacks; 0: no frame has begun. */
size_t neb__framer_missing(const struct neb_framer *f);
/* Returns the payload size of the chunk that most likely comes next, if the last chunk's message goes on; 0:
 * it does not. */
uint32_t neb__framer_next_chunk(const struct neb_framer *f);
/* Never gives n = 0. */
void neb__framer_want(struct neb_framer *f, uint8_t **p, size_t *n);
/* NEB_ERR_PROTOCOL, NEB_ERR_NOMEM, or the status of an event: the caller must close the connection. */
neb_status neb__framer_got(struct neb_framer *f, size_t n);

#endif
