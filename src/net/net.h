/* net.h: one site's place in the WAN: its listening socket, its links to the other members, streams, timers.
 *
 * One thread, the loop's, runs everything in here: every callback is called on it, and every function below is called
 * on it, except those marked "any thread". A successful neb__net_open() owes a neb__net_close().
 *
 *     struct neb_net_config cfg = NEB_NET_CONFIG;
 *     cfg.site = site; cfg.events = &my_events; cfg.arg = me;
 *     NEB_TRY(neb__net_open(&cfg, &net));      // listens, dials; nothing is called back yet
 *     NEB_TRY(neb__net_start(net));            // the loop on a thread of its own; or neb__net_run(net) on this one
 *     neb__net_post(net, do_something, arg);   // any thread: runs do_something(arg) on the loop's thread
 *     neb__net_close(net);                     // any thread but the loop's: stops, joins, releases
 *
 * Peers are named by their member id in the roster (seal/roster.h). Between two sites there is one link: a TLS
 * connection for control messages and heartbeats, and several ("stripes") for the rest. Links are made, kept alive,
 * re-made and resumed without the caller; peer_up and peer_down tell when.
 *
 * MESSAGES are delivered whole, once, and in order within their priority, as long as neither process restarts; a broken
 * connection or an outage of any length only delays them. When the peer's process restarts (or leaves the roster), what
 * it had not acknowledged ends with NEB_ERR_PEER: whether it arrived is unknown, and sending again is the caller's
 * decision (the messages of rounds are idempotent). STREAMS survive restarts too; see below.
 *
 * Memory is bounded on both sides by the windows of the configuration, whatever the peer does. */
#ifndef NEB_NET_NET_H
#define NEB_NET_NET_H

#include "base/status.h"
#include "seal/site.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct neb_net;
struct neb_net_timer;
struct neb_net_stream;

/* Lower goes first. CONTROL has a connection of its own and is never behind data; the other three share the stripes
 * (one chunk in sixteen goes to the lowest that has something, so nothing starves). */
enum neb_priority { NEB_CONTROL, NEB_STREAM, NEB_ROUND, NEB_BULK, NEB_PRIORITIES };

enum {
    NEB_KIND_USER_MAX = 0xffff,        /* kinds of messages above this one are the links' own */
    NEB_CONTROL_MESSAGE_MAX = 1 << 20, /* bytes; for the others the peer's window is the limit */
};

/* A message that arrived. `data` is valid during the callback, or for good once taken. */
struct neb_message {
    uint16_t peer;
    enum neb_priority priority;
    uint32_t kind; /* the sender's, 0 to NEB_KIND_USER_MAX */
    uint8_t *data;
    size_t size;
};

/* Any may be NULL. */
struct neb_net_events {
    void (*peer_up)(void *arg, uint16_t peer, uint64_t incarnation);
    /* NEB_ERR_PEER closed or restarted, NEB_ERR_TIMEOUT silent or one-way, NEB_ERR_PROTOCOL, NEB_ERR_AUTH evicted… */
    void (*peer_down)(void *arg, uint16_t peer, neb_status why);
    /* NEB_OK: taken in; the sender is told. NEB_ERR_AGAIN: not now; it and all behind it of its priority wait, holding
     * the sender's window, until neb__net_resume(). Anything else drops the peer. */
    neb_status (*message)(void *arg, struct neb_message *m);
    /* A peer offers a stream that is not open here. To have it, open its consumer end. */
    void (*stream_offered)(void *arg, uint16_t peer, uint32_t stream);
    /* The roster has a newer epoch (from a peer, already verified and saved in the site's folder). */
    void (*roster)(void *arg, const struct neb_chain *chain);
    /* Two rosters are signed for one epoch: all commits must stop until the operator chooses (nebula-i adopt). */
    void (*roster_fork)(void *arg, uint16_t peer, uint64_t epoch);
};

struct neb_net_config {
    struct neb_site *site; /* borrowed; its folder holds the roster */
    const char *listen;    /* HOST:PORT to listen on; NULL: the first address of this site in the roster */
    const struct neb_net_events *events;
    void *arg;
    int stripes;     /* 0: adaptive */
    int stripes_max; /* for adaptive, 1 to 63 */
    int twice; /* small control messages leave twice: 0 on a line that loses packets, 1 always, -1 never */
    size_t window[NEB_PRIORITIES]; /* bytes of incomplete or undelivered messages that a peer may have here */
    size_t queue_max;              /* bytes a caller may have queued per peer and priority */
    double max_rate;               /* bits per second a link may send; 0: what the line gives */
    double heartbeat;              /* seconds between two */
    double dead_after;             /* seconds without an answer until a peer is down */
    double dial_min, dial_max;     /* seconds between two attempts, growing, with jitter */
    const char *congestion;        /* asked for on each connection; NULL: bbr where the kernel has it */
};

#define NEB_NET_CONFIG                                                                                \
    {                                                                                                 \
        .stripes_max = 16, .window = {4u << 20, 64u << 20, 256u << 20, 256u << 20},                   \
        .queue_max = (size_t)1 << 30, .heartbeat = 1, .dead_after = 6, .dial_min = 0.1, .dial_max = 5 \
    }

/* NEB_ERR_CONFIG, NEB_ERR_NOTFOUND (no roster), NEB_ERR_AUTH (this site is not in it), NEB_ERR_NET (cannot listen),
 * NEB_ERR_NOMEM. */
neb_status neb__net_open(const struct neb_net_config *config, struct neb_net **out);
neb_status neb__net_start(struct neb_net *net); /* the loop on its own thread */
neb_status neb__net_run(struct neb_net *net);   /* or on this one, until neb__net_stop() */
void neb__net_stop(struct neb_net *net);        /* any thread */
/* Says goodbye to the peers, stops, joins the thread, fails what is queued with NEB_ERR_CANCELLED, releases. */
void neb__net_close(struct neb_net *net);

/* Any thread. Runs fn(arg) on the loop's thread, in the order of the posts. NEB_ERR_NOMEM; NEB_ERR_STATE: closing. */
neb_status neb__net_post(struct neb_net *net, void (*fn)(void *arg), void *arg);

uint16_t neb__net_self(const struct neb_net *net); /* own member id */
uint16_t neb__net_port(const struct neb_net *net); /* listening on; 0: not */
const struct neb_chain *neb__net_roster(const struct neb_net *net);
/* Takes up a new epoch made here (by a record of the log); saved, and sent to every peer. */
neb_status neb__net_extend_roster(struct neb_net *net, const uint8_t *epochs, size_t n);
bool neb__net_is_up(const struct neb_net *net, uint16_t peer);

/* ---- messages ---------------------------------------------------------------------------------------------------- */

/* What becomes of a message: NEB_OK the peer's callback has taken it in; NEB_ERR_PEER; NEB_ERR_CANCELLED. */
typedef void (*neb_sent_fn)(void *arg, neb_status s);

/* Queues `size` bytes. They stay the caller's and must not change until `sent` is called, which happens exactly once if
 * and only if this returns NEB_OK (never from inside this call). The peer need not be up.
 *   NEB_ERR_NOTFOUND  no such member           NEB_ERR_LIMIT    larger than the peer's window ever allows
 *   NEB_ERR_AGAIN     the queue is full: wait for a `sent`      NEB_ERR_INVALID, NEB_ERR_NOMEM */
neb_status neb__net_send(struct neb_net *net, uint16_t peer, enum neb_priority priority, uint32_t kind,
                         const void *data, size_t size, neb_sent_fn sent, void *arg);
/* The same with a copy of the bytes, for small messages. `sent` may be NULL. */
neb_status neb__net_send_copy(struct neb_net *net, uint16_t peer, enum neb_priority priority, uint32_t kind,
                              const void *data, size_t size, neb_sent_fn sent, void *arg);

/* Inside the message callback: the bytes become the caller's, to be released with neb__free(). */
uint8_t *neb__message_take(struct neb_message *m);

/* Offers again what the message callback answered with NEB_ERR_AGAIN. */
void neb__net_resume(struct neb_net *net, uint16_t peer, enum neb_priority priority);

/* ---- streams: numbered items, exactly once across reconnects and crashes of either side --------------------------- */
/*
 * Items are numbered 1, 2, 3… by the producer. Two marks move: `received` (the consumer's callback took the item: its
 * credit returns) and `retained` (the consumer's checkpoint covers the item: the producer may forget it). The consumer
 * opens with the mark of its checkpoint and is given exactly the items above it, in order. The producer keeps what is
 * above `retained`: in a journal in its site folder (durable before the item leaves), or by being able to make it again.
 *
 * After a crash of the producer, neb__net_stream_next() says which item to produce next. */

struct neb_net_stream_producer {
    void *arg;
    /* Room for more: after neb__net_stream_produce() returned NEB_ERR_AGAIN. */
    void (*ready)(void *arg, struct neb_net_stream *s);
    /* The consumer has everything up to `item`; less than before after it was replaced. */
    void (*received)(void *arg, struct neb_net_stream *s, uint64_t item);
    /* Everything up to `item` survives a crash here. */
    void (*durable)(void *arg, struct neb_net_stream *s, uint64_t item);
    /* The consumer's checkpoint covers everything up to `item`. */
    void (*retained)(void *arg, struct neb_net_stream *s, uint64_t item);
    /* Without a journal: appends item number `item` to `out` again, byte for byte. */
    neb_status (*remake)(void *arg, struct neb_net_stream *s, uint64_t item, struct neb_buf *out);
    /* No more of this stream: the consumer ended it (NEB_OK) or refused an item, the journal failed, or the peer left the
     * roster. The handle is gone when this returns. */
    void (*ended)(void *arg, struct neb_net_stream *s, neb_status why);
};

struct neb_net_stream_consumer {
    void *arg;
    /* NEB_OK: taken in. NEB_ERR_AGAIN: not now (credit stays out) until neb__net_stream_resume(). Else the stream ends. */
    neb_status (*item)(void *arg, struct neb_net_stream *s, uint64_t item, const uint8_t *data, size_t size);
    void (*ended)(void *arg, struct neb_net_stream *s,
                  neb_status why); /* the handle is gone when this returns */
};

enum { NEB_STREAM_ITEM_MAX = 16 << 20 };

/* `next`: the first item this producer will make that its own state does not cover (1 for a new stream). With a journal
 * it is only compared: items the journal holds are not produced again.
 * NEB_ERR_EXISTS, NEB_ERR_NOTFOUND (no such member), NEB_ERR_CORRUPT (journal), NEB_ERR_IO, NEB_ERR_NOMEM. */
neb_status neb__net_stream_open_producer(struct neb_net *net, uint16_t peer, uint32_t stream, bool journal,
                                         uint64_t next, const struct neb_net_stream_producer *p,
                                         struct neb_net_stream **out);
/* `retained`: what this site's checkpoint covers. `window`: bytes of items on their way or not yet taken in. */
neb_status neb__net_stream_open_consumer(struct neb_net *net, uint16_t peer, uint32_t stream,
                                         uint64_t retained, size_t window,
                                         const struct neb_net_stream_consumer *c,
                                         struct neb_net_stream **out);

uint64_t neb__net_stream_next(
    const struct neb_net_stream *s); /* producer: number of the next item to produce */
uint64_t neb__net_stream_durable(
    const struct neb_net_stream *s); /* producer: items up to this one survive a crash here */
/* Copies the item. NEB_ERR_AGAIN: no credit; NEB_ERR_LIMIT: too large; NEB_ERR_IO, NEB_ERR_NOSPACE: journal. */
neb_status neb__net_stream_produce(struct neb_net_stream *s, const void *data, size_t size, uint64_t *item);
/* Consumer: the checkpoint now on disk covers every item up to this one. */
neb_status neb__net_stream_retain(struct neb_net_stream *s, uint64_t item);
void neb__net_stream_resume(struct neb_net_stream *s);
void neb__net_stream_close(struct neb_net_stream *s); /* this end; a journal stays on disk */
/* Closes this end and ends the other, whose `ended` gets `why`. The handle is gone and none of its callbacks is called any
 * more; sent(arg, …): once the other end was told (which may have to wait for it to be opened), or cannot be. */
neb_status neb__net_stream_end(struct neb_net_stream *s, neb_status why, neb_sent_fn sent, void *arg);

/* ---- measurements ------------------------------------------------------------------------------------------------ */

struct neb_line {
    bool up;
    int stripes;
    double goodput_out; /* bits per second of acknowledged update, from periods with a non-empty queue only */
    double goodput_in;  /* the same, as the peer measures towards us */
    double goodput_age; /* seconds since goodput_out was last renewed; negative: never measured */
    double rtt, rtt_min;          /* seconds, by heartbeats on the control connection */
    double loss;                  /* share of bytes that TCP sent again, recent */
    uint64_t bytes_out, bytes_in; /* update acknowledged, update received */
    int64_t acked_at;             /* neb__now_ns() when bytes_out last grew; 0: never */
    uint64_t queued;              /* update bytes waiting or unacknowledged */
    uint64_t reconnects;
};

/* NEB_ERR_NOTFOUND. */
neb_status neb__net_line(const struct neb_net *net, uint16_t peer, struct neb_line *out);

/* ---- timers ------------------------------------------------------------------------------------------------------ */

/* fn(arg) after `first` seconds and then every `repeat` seconds (0: once). Owes a neb__net_timer_stop(), also after it
 * has run. NEB_ERR_NOMEM. */
neb_status neb__net_timer_start(struct neb_net *net, double first, double repeat, void (*fn)(void *arg),
                                void *arg, struct neb_net_timer **out);
void neb__net_timer_stop(struct neb_net_timer *t);

#endif
