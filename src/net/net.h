/* net.h: one site's place in the WAN: its listening socket, its links to the other members, streams, timers.
 *
 * One thread, the loop's, runs everything in here. It calls every callback, and every function below must be
 * called on it, except those marked "any thread". A successful neb__net_open() owes a neb__net_close().
 *
 *     struct neb_net_config cfg = NEB_NET_CONFIG;
 *     cfg.site = site; cfg.events = &my_events; cfg.arg = me;
 *     NEB_TRY(neb__net_open(&cfg, &net));      // listens, dials; no callback runs yet
 *     NEB_TRY(neb__net_start(net));            // runs the loop on its own thread; neb__net_run() on this one
 *     neb__net_post(net, do_something, arg);   // any thread: runs do_something(arg) on the loop's thread
 *     neb__net_close(net);                     // any thread but the loop's: stops, joins, releases
 *
 * Peers are named by their member id in the roster (seal/roster.h). Between two sites there is one link: a
 * TLS connection for control messages and heartbeats, and several ("stripes") for everything else. Links are
 * made, kept alive, re-made and resumed without the caller; peer_up and peer_down report it.
 *
 * MESSAGES are delivered whole, once, and in order within their priority, as long as neither process
 * restarts; a broken connection or an outage of any length only delays them. When the peer's process restarts
 * (or leaves the roster), messages that it had not acknowledged end with NEB_ERR_PEER. They may or may not
 * have arrived, and the caller decides whether to send them again (the messages of rounds are idempotent).
 * STREAMS survive restarts too; see below.
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

/* A lower number goes first. CONTROL has its own connection and never waits behind data. The other three
 * share the stripes; one chunk in sixteen goes to the lowest priority that has something, so nothing
 * starves. */
enum neb_priority { NEB_CONTROL, NEB_STREAM, NEB_ROUND, NEB_BULK, NEB_PRIORITIES };

enum {
    NEB_KIND_USER_MAX = 0xffff,        /* larger kinds of messages belong to the links themselves */
    NEB_CONTROL_MESSAGE_MAX = 1 << 20, /* bytes; for the others the peer's window is the limit */
    NEB_CONTROL_QUEUE_MAX =
        16 << 20, /* bytes of control messages queued for a peer that does not take them */
};

/* A message that arrived. `data` is valid during the callback, or for good once taken. */
struct neb_message {
    uint16_t peer;
    enum neb_priority priority;
    uint32_t kind; /* as the sender gave it, 0 to NEB_KIND_USER_MAX */
    uint8_t *data;
    size_t size;
};

/* Any of them may be NULL. */
struct neb_net_events {
    void (*peer_up)(void *arg, uint16_t peer, uint64_t incarnation);
    /* NEB_ERR_PEER: closed or restarted; NEB_ERR_TIMEOUT: silent, or the line is cut one way;
     * NEB_ERR_PROTOCOL; NEB_ERR_AUTH: evicted… */
    void (*peer_down)(void *arg, uint16_t peer, neb_status why);
    /* NEB_OK: taken in; the sender is told. NEB_ERR_AGAIN: not now; the message and all behind it in its
     * priority wait until neb__net_resume(), and occupy the sender's window. Any other status drops the
     * peer. */
    neb_status (*message)(void *arg, struct neb_message *m);
    /* A peer offers a stream that is not open here. Open its consumer end to receive it. */
    void (*stream_offered)(void *arg, uint16_t peer, uint32_t stream);
    /* The roster has a newer epoch (from a peer, already verified and saved in the site's folder). */
    void (*roster)(void *arg, const struct neb_chain *chain);
    /* Two rosters are signed for one epoch. All commits must stop until the operator chooses one (nebula-i
     * adopt). */
    void (*roster_fork)(void *arg, uint16_t peer, uint64_t epoch);
};

struct neb_net_config {
    struct neb_site *site; /* borrowed; its folder holds the roster */
    const char *listen;    /* HOST:PORT to listen on; NULL: the first address of this site in the roster */
    const struct neb_net_events *events;
    void *arg;
    int stripes;     /* a fixed number; 0: adaptive */
    int stripes_max; /* the most if adaptive, 1 to 63 */
    int twice; /* send small control messages twice: 0 on a line that loses packets, 1 always, -1 never */
    size_t window[NEB_PRIORITIES]; /* bytes of incomplete or undelivered messages that a peer may have here */
    size_t queue_max;              /* bytes a caller may have queued per peer and priority */
    double max_rate;               /* bits per second that a link may send; 0: as fast as the line allows */
    double heartbeat;              /* seconds between two heartbeats */
    double dead_after;             /* seconds without an answer until a peer is down */
    double dial_min, dial_max;     /* seconds between two attempts, growing, with jitter */
    double greet;           /* seconds from connect to WELCOME; more on a line that is known to be slow */
    const char *congestion; /* congestion control of each connection; NULL: bbr if the kernel has it */
    const char *proxy; /* dial through http://… or socks5://…; "none": never; NULL: as `environment` says */
    const char *dial; /* dial by this command, with %h and %p for host and port; NULL: none */
    bool environment; /* without `proxy` and `dial`: heed https_proxy, all_proxy and no_proxy */
};

#define NEB_NET_CONFIG                                                                                 \
    {                                                                                                  \
        .stripes_max = 16, .window = {4u << 20, 64u << 20, 256u << 20, 256u << 20},                    \
        .queue_max = (size_t)1 << 30, .heartbeat = 1, .dead_after = 6, .dial_min = 0.1, .dial_max = 5, \
        .greet = 10                                                                                    \
    }

/* NEB_ERR_CONFIG, NEB_ERR_NOTFOUND (no roster), NEB_ERR_AUTH (this site is not in it), NEB_ERR_NET (cannot
 * listen), NEB_ERR_NOMEM. */
neb_status neb__net_open(const struct neb_net_config *config, struct neb_net **out);
neb_status neb__net_start(struct neb_net *net); /* the loop on its own thread */
neb_status neb__net_run(struct neb_net *net);   /* the loop on this thread, until neb__net_stop() */
void neb__net_stop(struct neb_net *net);        /* any thread */
/* Says goodbye to the peers, stops, joins the thread, ends queued messages with NEB_ERR_CANCELLED. The memory
 * stays, so other threads may still post; they are refused. */
void neb__net_end(struct neb_net *net);
void neb__net_close(struct neb_net *net); /* ends it and releases; NULL is fine */

/* Any thread. Runs fn(arg) on the loop's thread, in the order of the posts. NEB_ERR_NOMEM; NEB_ERR_STATE:
 * closing. */
neb_status neb__net_post(struct neb_net *net, void (*fn)(void *arg), void *arg);

uint16_t neb__net_self(const struct neb_net *net); /* own member id */
const struct neb_chain *neb__net_roster(const struct neb_net *net);
/* Adds a new epoch that was made here (by a record of the log), saves it and sends it to every peer. */
neb_status neb__net_extend_roster(struct neb_net *net, const uint8_t *epochs, size_t n);
/* Connections that were closed because too many waited to be greeted. */
uint64_t neb__net_dropped(const struct neb_net *net);
bool neb__net_is_up(const struct neb_net *net, uint16_t peer);

/* ---- messages ------------------------------------------------------------------------------------------ */

/* Tells how a message ended. NEB_OK: the peer's callback has taken it in; NEB_ERR_PEER; NEB_ERR_CANCELLED. */
typedef void (*neb_sent_fn)(void *arg, neb_status s);

/* Queues `size` bytes. The caller keeps them and must not change them until `sent` is called. That happens
 * exactly once if this returns NEB_OK, else never, and never from inside this call. The peer need not be up.
 *   NEB_ERR_NOTFOUND  no such member           NEB_ERR_LIMIT    larger than the peer's window ever allows
 *   NEB_ERR_AGAIN     the queue is full: wait for a `sent`      NEB_ERR_INVALID, NEB_ERR_NOMEM */
neb_status neb__net_send(struct neb_net *net, uint16_t peer, enum neb_priority priority, uint32_t kind,
                         const void *data, size_t size, neb_sent_fn sent, void *arg);
/* Does the same with a copy of the bytes, for small messages. `sent` may be NULL. */
neb_status neb__net_send_copy(struct neb_net *net, uint16_t peer, enum neb_priority priority, uint32_t kind,
                              const void *data, size_t size, neb_sent_fn sent, void *arg);

/* Called inside the message callback: the bytes then belong to the caller, who releases them with
 * neb__free(). */
uint8_t *neb__message_take(struct neb_message *m);

/* Offers again the message that the callback answered with NEB_ERR_AGAIN. */
void neb__net_resume(struct neb_net *net, uint16_t peer, enum neb_priority priority);

/* ---- streams: numbered items, exactly once across reconnects and crashes of either side ---------------- */
/* Items are numbered 1, 2, 3… by the producer. Two marks move: `received` (the consumer's callback took the
 * item: its credit returns) and `retained` (the consumer's checkpoint covers the item: the producer may
 * forget it). The consumer opens with the mark of its checkpoint and gets exactly the items above it, in
 * order. The producer keeps the items above `retained`, in a journal in its site folder (durable before the
 * item leaves), or it can make them again.
 *
 * After a crash of the producer, neb__net_stream_next() says which item to produce next. */

struct neb_net_stream_producer {
    void *arg;
    /* There is room again, after neb__net_stream_produce() returned NEB_ERR_AGAIN. */
    void (*ready)(void *arg, struct neb_net_stream *s);
    /* The consumer has everything up to `item`. The number may fall when the consumer's process was
     * replaced. */
    void (*received)(void *arg, struct neb_net_stream *s, uint64_t item);
    /* Everything up to `item` survives a crash here. */
    void (*durable)(void *arg, struct neb_net_stream *s, uint64_t item);
    /* The consumer's checkpoint covers everything up to `item`. */
    void (*retained)(void *arg, struct neb_net_stream *s, uint64_t item);
    /* For a stream without a journal: appends item number `item` to `out` again, byte for byte. */
    neb_status (*remake)(void *arg, struct neb_net_stream *s, uint64_t item, struct neb_buf *out);
    /* The stream is over: the consumer ended it (NEB_OK) or refused an item, the journal failed, or the peer
     * left the roster. The handle is gone when this returns. */
    void (*ended)(void *arg, struct neb_net_stream *s, neb_status why);
};

struct neb_net_stream_consumer {
    void *arg;
    /* NEB_OK: taken in. NEB_ERR_AGAIN: not now, until neb__net_stream_resume(); its credit does not return.
     * Any other status ends the stream. */
    neb_status (*item)(void *arg, struct neb_net_stream *s, uint64_t item, const uint8_t *data, size_t size);
    void (*ended)(void *arg, struct neb_net_stream *s,
                  neb_status why); /* the handle is gone when this returns */
};

enum { NEB_STREAM_ITEM_MAX = 16 << 20 };

/* `next` is the first item that this producer's own state does not cover (1 for a new stream). With a journal
 * it is only compared: items that the journal holds are not produced again. NEB_ERR_EXISTS, NEB_ERR_NOTFOUND
 * (no such member), NEB_ERR_CORRUPT (journal), NEB_ERR_IO, NEB_ERR_NOMEM. */
neb_status neb__net_stream_open_producer(struct neb_net *net, uint16_t peer, uint32_t stream, bool journal,
                                         uint64_t next, const struct neb_net_stream_producer *p,
                                         struct neb_net_stream **out);
/* `retained` is the last item that this site's checkpoint covers. `window` is the most bytes of items that
 * may be on their way or not yet taken in. */
neb_status neb__net_stream_open_consumer(struct neb_net *net, uint16_t peer, uint32_t stream,
                                         uint64_t retained, size_t window,
                                         const struct neb_net_stream_consumer *c,
                                         struct neb_net_stream **out);

/* For a producer: returns the number of the next item to produce. */
uint64_t neb__net_stream_next(const struct neb_net_stream *s);
/* Copies the item. NEB_ERR_AGAIN: no credit; NEB_ERR_LIMIT: too large; NEB_ERR_IO, NEB_ERR_NOSPACE:
 * journal. */
neb_status neb__net_stream_produce(struct neb_net_stream *s, const void *data, size_t size, uint64_t *item);
/* The journal may hold that many bytes; it may hold 4 GiB in any case. */
void neb__net_stream_allow(struct neb_net_stream *s, uint64_t bytes);
/* Appends an item that the journal holds to `out`. NEB_ERR_NOTFOUND: it does not hold it */
neb_status neb__net_stream_recall(const struct neb_net_stream *s, uint64_t item, struct neb_buf *out);
/* For a consumer: the checkpoint on disk now covers every item up to this one. */
neb_status neb__net_stream_retain(struct neb_net_stream *s, uint64_t item);
/* For a consumer, right after its opening: the producer keeps the items behind this one, though it was opened at a later one. */
void neb__net_stream_keep(struct neb_net_stream *s, uint64_t retained);
void neb__net_stream_resume(struct neb_net_stream *s);
void neb__net_stream_close(struct neb_net_stream *s); /* this end; a journal stays on disk */
/* Closes this end and ends the other, whose `ended` gets `why`. The handle is gone and none of its callbacks
 * is called any more. sent(arg, …) is called once the other end was told, which may have to wait until it is
 * opened, or cannot be told. */
neb_status neb__net_stream_end(struct neb_net_stream *s, neb_status why, neb_sent_fn sent, void *arg);

/* ---- measurements -------------------------------------------------------------------------------------- */

struct neb_line {
    bool up;
    bool relayed; /* through a relay host */
    int stripes;
    double goodput_out;  /* bits per second of acknowledged payload, while the queue was never empty */
    double goodput_in;   /* the same from the peer towards us, as the peer measures it */
    double goodput_age;  /* seconds since goodput_out was last measured; negative: never */
    double rtt, rtt_min; /* seconds, by heartbeats on the control connection */
    double loss;         /* recent share of bytes that TCP sent again */
    double silent;       /* seconds since it last answered a heartbeat; 0 while the line is down */
    uint64_t bytes_out, bytes_in; /* payload acknowledged, payload received */
    int64_t acked_at;             /* neb__now_ns() when bytes_out last grew; 0: never */
    uint64_t queued;              /* payload bytes waiting or unacknowledged */
    uint64_t reconnects;
};

/* NEB_ERR_NOTFOUND. */
neb_status neb__net_line(const struct neb_net *net, uint16_t peer, struct neb_line *out);

/* ---- timers -------------------------------------------------------------------------------------------- */

/* Calls fn(arg) after `first` seconds and then every `repeat` seconds (0: once). Owes a
 * neb__net_timer_stop(), even after it has run. NEB_ERR_NOMEM. */
neb_status neb__net_timer_start(struct neb_net *net, double first, double repeat, void (*fn)(void *arg),
                                void *arg, struct neb_net_timer **out);
void neb__net_timer_stop(struct neb_net_timer *t);

#endif
