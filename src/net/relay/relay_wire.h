/* relay_wire.h: the messages between a relay host and its guests. docs/relay.md has the layout.
 *
 * A guest is anybody who connects to a relay host (`nebula-i relay`). Both ends prove a key by TLS; inside it go messages of a
 * header (u16 length of the body, u8 type, u8 zero) and a body of at most 4 KiB. The guest speaks first: ASK. After JOINED
 * a member's connection leaves this TLS: what follows on the socket are the bytes of the other member, which the relay
 * host passes on as they are. */
#ifndef NEB_NET_RELAY_RELAY_WIRE_H
#define NEB_NET_RELAY_RELAY_WIRE_H

#include "base/buf.h"
#include "base/hash.h"
#include "seal/tls.h"

enum { NEB_RELAY_VERSION_MIN = 1, NEB_RELAY_VERSION = 1 };

enum neb_relay_type {
    NEB_RELAY_ASK = 1,    /* guest: what it wants */
    NEB_RELAY_HERE = 2,   /* host: you stand here */
    NEB_RELAY_RING = 3,   /* host, to one that stands: a member calls */
    NEB_RELAY_JOINED = 4, /* host: the other is there */
    NEB_RELAY_REFUSE = 5, /* host: no, and why; the last message */
    NEB_RELAY_PING = 6,   /* either */
    NEB_RELAY_PONG = 7,
    NEB_RELAY_WANT = 8, /* host: show me the roster */
    NEB_RELAY_SHOW = 9, /* guest: a piece of the roster */
    NEB_RELAY_SAY = 10, /* guest: a message to the other of a meeting; host: one from it */
    NEB_RELAY_TYPES,
};

enum {
    NEB_RELAY_HEADER = 4,
    NEB_RELAY_BODY_MAX = 4096,
    NEB_RELAY_ASK_SIZE = 72,
    NEB_RELAY_RING_SIZE = 16,
    NEB_RELAY_TEXT_MAX = 200,
    NEB_RELAY_SHOW_PIECE = NEB_RELAY_BODY_MAX - 1,
    NEB_RELAY_MEETING_ID = 32,
};

enum neb_relay_what {
    NEB_RELAY_STAND = 1,  /* wait here for calls of other members */
    NEB_RELAY_CALL = 2,   /* be joined with a member that stands here */
    NEB_RELAY_ANSWER = 3, /* be joined with the caller of a RING */
    NEB_RELAY_MEET = 4,   /* be joined with whoever names the same meeting */
};

struct neb_relay_ask {
    uint16_t version_min, version_max;
    uint8_t what;        /* enum neb_relay_what */
    struct neb_hash run; /* genesis hash; of a meeting: its id */
    uint64_t epoch;      /* the guest's newest */
    uint16_t peer;       /* CALL: the member that is called */
    uint64_t ticket;     /* ANSWER: as the RING had it */
};

struct neb_relay_ring {
    uint64_t ticket;
    uint16_t caller;
};

enum neb_relay_refuse_code {
    NEB_RELAY_REFUSE_VERSION = 1,
    NEB_RELAY_REFUSE_RUN = 2,    /* the relay host was not shown this run's roster, or does not take it */
    NEB_RELAY_REFUSE_KEY = 3,    /* the key is no member's */
    NEB_RELAY_REFUSE_ABSENT = 4, /* the called member does not stand here */
    NEB_RELAY_REFUSE_QUOTA = 5,
    NEB_RELAY_REFUSE_TICKET = 6,  /* nobody waits for this answer, or no longer */
    NEB_RELAY_REFUSE_MEETING = 7, /* nobody may meet here, or not now */
    NEB_RELAY_REFUSE_PROTOCOL = 8,
    NEB_RELAY_REFUSE_MET = 9,   /* two have met under this id */
    NEB_RELAY_REFUSE_GONE = 10, /* the other of a meeting is gone, or its time is over */
};

struct neb_relay_refusal {
    uint16_t code;
    char text[NEB_RELAY_TEXT_MAX + 1]; /* printable */
};

void neb__relay_ask_put(const struct neb_relay_ask *a, uint8_t out[NEB_RELAY_ASK_SIZE]);
void neb__relay_ring_put(const struct neb_relay_ring *r, uint8_t out[NEB_RELAY_RING_SIZE]);

/* These parse bodies from outside. NEB_ERR_PROTOCOL, NEB_ERR_VERSION: neb_last_error() says what is wrong (not logged). */
neb_status neb__relay_ask_get(const uint8_t *p, size_t n, struct neb_relay_ask *out);
neb_status neb__relay_ring_get(const uint8_t *p, size_t n, struct neb_relay_ring *out);
neb_status neb__relay_refusal_get(const uint8_t *p, size_t n, struct neb_relay_refusal *out);

/* Seals one message into the session's outgoing bytes. */
neb_status neb__relay_send(struct neb_tls *tls, enum neb_relay_type type, const void *body, size_t n);
neb_status neb__relay_send_refusal(struct neb_tls *tls, enum neb_relay_refuse_code code, const char *text);

/* Puts messages together from plaintext in pieces of any length. */
struct neb_relay_reader {
    uint8_t bytes[NEB_RELAY_HEADER + NEB_RELAY_BODY_MAX];
    size_t have;
};

struct neb_relay_message {
    enum neb_relay_type type;
    const uint8_t *body; /* valid until the next call */
    size_t size;
};

/* Reads the next whole message of a session. `allowed` is a bit set of the types that may come now.
 *   NEB_ERR_AGAIN     it has not arrived yet
 *   NEB_ERR_PROTOCOL  malformed, or not allowed now;  NEB_ERR_PEER: the other end closed;  others as neb__tls_read() */
neb_status neb__relay_next(struct neb_tls *tls, struct neb_relay_reader *r, uint32_t allowed,
                           struct neb_relay_message *out);
/* The same from bytes without a session; *used: how many of them were taken. */
neb_status neb__relay_reader_feed(struct neb_relay_reader *r, uint32_t allowed, const uint8_t *p, size_t n,
                                  size_t *used, struct neb_relay_message *out);

#endif
