/* link.h: what the files of src/net share: connections, peers, the node. Not for anybody else; they use net.h.
 *
 *     net.c      the node: loop, thread, posts, timers, the functions of net.h
 *     listen_dial.c   listening, strangers, dialling
 *     greet.c    from a TLS handshake to an accepted peer: HELLO, CHAIN, WELCOME, REFUSE
 *     conn.c     one TLS connection on a socket
 *     read_wakeup.c     when a stripe is read
 *     pace.c     what TCP says of a stripe, and how fast it may send
 *     bbr_turns.c    two stripes that take turns
 *     link.c     one peer: its control connection, its stripes, frames in and out
 *     control_copy.c     control messages that leave twice
 *     timers.c     heartbeats, deadlines, redialling, measuring
 *     stripes.c  how many stripes (no I/O)
 *     outbox.c, inbox.c, wire.c   messages, chunks, frames (no I/O)
 *     stream.c, stream_out.c, stream_in.c, journal.c   streams */
#ifndef NEB_NET_LINK_H
#define NEB_NET_LINK_H

#include "net/inbox.h"
#include "net/net.h"
#include "net/outbox.h"
#include "net/stripes.h"
#include "net/wire.h"
#include "base/rng.h"
#include "seal/tls.h"

#include <uv.h>

enum {
    NEB_STRANGERS_MAX = 128,    /* connections that are not (yet) a peer's */
    NEB_GREET_SECONDS = 10,     /* from connect to WELCOME */
    NEB_CONN_BATCH = 128 << 10, /* ciphertext gathered for one write to the socket */
    NEB_CONN_OUT_MAX = NEB_CONN_BATCH + 2 * 65536 + NEB_EPOCH_BYTES_MAX + 4096,
    NEB_SKIP = 64 << 10,
    NEB_READ_MAX = 3 << 20, /* bytes, then others have their turn */
    NEB_TICK_MS = 100,      /* while something is being made */
    NEB_TICK_CALM_MS = 1000,
    NEB_STRIPE_RETRY_NS = 500000000, /* from one that failed to the next */
};

struct neb_peer;

enum neb_conn_state { NEB_CONN_CONNECTING, NEB_CONN_TLS, NEB_CONN_GREETING, NEB_CONN_READY, NEB_CONN_CLOSED };

/* What TCP_INFO counts: microseconds with data to send, and held back by the peer's window, by our send buffer; bytes sent,
 * and of these sent again. */
struct neb_tcp_counts {
    uint64_t busy, window, buffer, sent, again;
};

/* One stripe's sending rate, held to what keeps the line's queue short (pace.c). */
struct neb_pace {
    int64_t at;         /* of the last look; 0: none */
    uint32_t delivered; /* packets, until then */
    double rate;        /* bytes per second that TCP's acknowledgements bring */
    double rtt_floor;   /* seconds; the round trip that does not get shorter by sending less */
    double excess;      /* seconds of queue when braking began */
    double in_flight;   /* bytes that TCP may have under way */
    double every;       /* seconds between the last two looks */
    int64_t braking;    /* since when; 0: not */
    double limit;       /* as told to the socket, bytes per second; 0: none */
};

struct neb_conn {
    uv_poll_t poll;
    struct neb_net *net;
    struct neb_conn *next, *prev; /* all connections of the node */
    int fd;
    enum neb_conn_state state;
    bool dialled;
    bool blocked;    /* the socket takes no more for now */
    bool resting;    /* is read by the clock, not by events */
    int wake_at;     /* bytes that must be there for an event (0: never set) */
    int wake_max;    /* the most that this may be: an eighth of the receive buffer */
    int64_t read_at; /* when it was last read, and how fast data came until then */
    double bytes_per_s;
    int polling;     /* events asked for */
    char remote[64]; /* address, for log lines */
    char subnet[48]; /* without the port: whose it is among strangers */
    struct neb_tls *tls;
    size_t out_at; /* of the ciphertext, how much the socket has taken */
    size_t taken;  /* bytes read in this turn */
    bool drained;  /* nothing more is there to read in this turn */
    int ended;     /* errno of the socket's end, -1: the peer closed it */
    struct neb_framer framer;
    struct neb_peer *peer; /* dialled: whom; accepted: NULL until known */
    int slot;
    int64_t opened_at;
    /* greeting */
    enum neb_conn_role role;
    uint8_t stripe;
    uint64_t token;
    bool hello_in, hello_out, welcome_in, welcome_out;
    uint64_t tell;  /* control: the first epoch that the peer neither holds nor was sent; 0: not yet */
    bool contested; /* two rosters for one epoch: each side shows its chain, then refuses */
    bool fork_seen; /* the peer's chain has proved it */
    bool refuse_in, refuse_out; /* of a contested one */
    struct neb_hello theirs;
    struct neb_tcp_counts tcp; /* as of the last look */
    struct neb_pace pace;
    int unsent, unsent_low; /* bytes that may wait in the socket, and at which it is to be filled again */
    int tide;               /* as told to the socket */
    int room;               /* of the send buffer, as last asked for; 0: the kernel's choice */
    uint32_t round_trip;    /* the shortest one that BBR knows, in microseconds; 0: unknown */
    int64_t round_trip_at;  /* since when, as far as can be told */
    bool had_turn;
};

struct neb_measure {
    int64_t acked_at;    /* when an acknowledgement last brought something */
    uint64_t acked_then; /* when the period under way began; then = 0: none is */
    int64_t then;
    bool dry;       /* the queue was empty since */
    double goodput; /* bits per second, 0: unknown */
    int64_t goodput_at;
    double goodput_in;
    double rtt, rtt_min; /* seconds; 0: unknown */
    double loss;
    double sent_recent, again_recent;
};

struct neb_bbr_turns {
    bool on;
    int now;      /* the stripe whose turn it is */
    bool closing; /* it is given no more */
    double busy;  /* seconds of a full queue until `on` */
};

struct neb_peer {
    struct neb_net *net;
    struct neb_peer *next;
    uint16_t id;
    char name[NEB_NAME_SIZE];
    struct neb_public key;    /* as the roster has it; to this key incarnation and boot belong */
    struct neb_conn *control; /* READY */
    struct neb_conn *making;  /* control connection being dialled */
    struct neb_conn *stripe[NEB_STRIPES_MAX]; /* READY or being made */
    uint64_t token, incarnation, boot;
    int version;      /* of the protocol, that both speak */
    bool up, resumed; /* resumed: the peer has told what it holds */
    bool dirty;       /* something may be sendable */
    bool resolving;
    struct neb_outbox out;
    struct neb_inbox in;
    bool held[NEB_PRIORITIES],
        again[NEB_PRIORITIES]; /* a message waits for the layer above; is to be offered again */
    int64_t ack_due;           /* 0: nothing to acknowledge */
    int64_t acked_at;          /* when the last acknowledgement was written */
    bool resume_due;
    /* heartbeats */
    uint32_t ping_number;
    int64_t ping_at, pong_at, looked_at;
    bool ping_due, pong_due, bye_due;
    struct neb_pong pong;
    int64_t pinged_at; /* when the ping came that it answers */
    uint32_t their_stripes;
    int64_t urgent_at;               /* when a stream's item last went by */
    int64_t sent_at[NEB_PRIORITIES]; /* when a chunk last left */
    bool twin_due;                   /* the twin has something to send */
    uint64_t copies;                 /* of control messages, ever */
    bool top_up; /* an acknowledgement woke us: whatever sockets take now saves a wake-up for them */
    /* dialling */
    int64_t dial_at;
    double backoff;
    int address; /* counts the attempts that failed: they go through the roster's addresses, and through those of a name */
    uint64_t reconnects;
    /* measuring, adapting */
    struct neb_measure measure;
    struct neb_stripes stripes;
    struct neb_bbr_turns turns;
    struct neb_net_stream *streams;
    uint32_t stream_round;
};

struct neb_post {
    struct neb_post *next;
    void (*fn)(void *arg);
    void *arg;
};

struct neb_net {
    struct neb_net_config config;
    char *listen, *congestion;
    struct neb_chain *chain;
    uint16_t self;
    struct neb_tls_context *tls;
    uv_loop_t loop;
    bool loop_ready;
    uv_async_t wake;
    uv_prepare_t prepare;
    uv_timer_t tick;
    uv_timer_t ack_timer, rest_timer, turn_timer;
    bool ack_timer_on, rest_timer_on;
    bool hurried; /* ticks come quickly */
    uv_poll_t listener;
    int listen_fd;
    uint16_t port;
    struct neb_conn *conns;
    struct neb_peer *peers;
    bool roster_changed;
    uint8_t *skip; /* NEB_SKIP bytes, for unwanted payload */
    struct neb_rng jitter;
    /* log lines about strangers: at most a few a second */
    int64_t log_second;
    int log_lines, log_left_out;
    /* other threads */
    uv_mutex_t lock;
    struct neb_post *posts, **posts_end;
    bool stopping, closed;
    uv_thread_t thread;
    bool threaded;
};

/* ---- conn.c ------------------------------------------------------------------------------------------------------ */
/* Takes over fd in every case. */
neb_status neb__conn_open(struct neb_net *net, int fd, bool dialled, struct neb_conn **out);
/* Forgets it; closes the socket. `why` goes to the peer only as a TLS goodbye. Idempotent. */
void neb__conn_close(struct neb_conn *c);
neb_status neb__conn_write(struct neb_conn *c, const void *p, size_t n);
neb_status neb__conn_frame(struct neb_conn *c, enum neb_frame_type type, const void *body, size_t n);
/* How much ciphertext waits for the socket. */
size_t neb__conn_waiting(const struct neb_conn *c);
/* Sends what waits and, as long as the socket takes it, what neb__link_fill() adds. */
void neb__conn_pump(struct neb_conn *c);
/* Takes in what the socket has, up to a few buffers full. Bytes; 0: nothing, or the connection lives no more. */
size_t neb__conn_read(struct neb_conn *c);
void neb__conn_watch(struct neb_conn *c, bool writable); /* asks for events */
/* No more than about `bytes` wait unsent in the socket; once they are fewer than `low` it is filled again. */
void neb__conn_unsent(struct neb_conn *c, int bytes, int low);
void neb__conn_room(struct neb_conn *c,
                    int bytes); /* the send buffer has at least this, if the system allows */

/* ---- read_wakeup.c ------------------------------------------------------------------------------------------------------ */
void neb__conn_rest(struct neb_conn *c,
                    size_t got); /* after `got` bytes were read: decides when to read again */
void neb__conn_read_resting(struct neb_net *net); /* by the clock */
void neb__conn_read_waiting(struct neb_net *net,
                            bool all);          /* at every tick; all: also what is not late yet */
void neb__conn_read_others(struct neb_conn *c); /* after c was woken: what its link's other stripes have */

/* ---- pace.c ------------------------------------------------------------------------------------------------------ */
void neb__link_pace(struct neb_peer *p, int64_t now); /* several times a second while data flows */
void neb__pace_look(struct neb_peer *p);              /* once a second */

double neb__pace_unsent(const struct neb_conn *c); /* bytes that wait in the socket; 0 also: not told */
bool neb__pace_is_bbr(const struct neb_conn *c);

/* ---- bbr_turns.c ----------------------------------------------------------------------------------------------------- */
int neb__bbr_turns_stripes(const struct neb_peer *p); /* how many connections are wanted for the target */
bool neb__bbr_turns_may_send(const struct neb_conn *c);
bool neb__bbr_turns_is_in_use(const struct neb_conn *c); /* it may send, or has just done so */
/* An acknowledgement came; `seconds` since the last one, 0: the queue was empty in between. */
void neb__bbr_turns_acked(struct neb_peer *p, double seconds, int64_t now);
void neb__bbr_turns_hand_over(struct neb_net *net, int64_t now); /* by the clock */

/* ---- listen_dial.c ---------------------------------------------------------------------------------------------------- */
neb_status neb__net_listen(struct neb_net *net);
void neb__net_dial(struct neb_peer *p, enum neb_conn_role role, int stripe);
void neb__net_stranger_log(struct neb_net *net, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- greet.c ----------------------------------------------------------------------------------------------------- */
neb_status neb__greet_begin(struct neb_conn *c); /* after the TLS handshake */
neb_status neb__greet_frame(struct neb_conn *c, enum neb_frame_type type, const uint8_t *body, size_t n);
/* The next part of the chain that the peer lacks, if the connection has room for it. */
neb_status neb__greet_fill(struct neb_conn *c);
/* The chain grew: whoever waits for that is judged again; peers of former members are closed. */
void neb__greet_roster_changed(struct neb_net *net);

/* ---- link.c ------------------------------------------------------------------------------------------------------ */
extern const struct neb_framer_events neb__link_frames; /* arg: the connection */
/* A greeted connection joins its peer. NEB_ERR_…: it is to be closed. */
neb_status neb__link_attach(struct neb_conn *c);
/* A connection is closed (whatever its state). */
void neb__link_detach(struct neb_conn *c, neb_status s);
void neb__link_fill(struct neb_conn *c);
neb_status neb__link_write_chunk(struct neb_conn *c, const struct neb_chunk *chunk, const uint8_t *payload);
void neb__link_down(struct neb_peer *p, neb_status why);
/* A control connection could not be made: the next one goes to the next address, ever later. */
void neb__link_unreachable(struct neb_peer *p);
void neb__link_touch(struct neb_peer *p);         /* something may be sendable */
bool neb__link_is_calm(const struct neb_peer *p); /* nobody waits for a stream's item */
void neb__link_deliver(struct neb_peer *p, enum neb_priority priority);
neb_status neb__peer_add(struct neb_net *net, const struct neb_member *m);
void neb__peer_remove(struct neb_peer *p, neb_status why);
int neb__peer_stripes(const struct neb_peer *p); /* connected ones, at least 1 */
struct neb_peer *neb__peer_find(const struct neb_net *net, uint16_t id);

/* ---- control_copy.c ------------------------------------------------------------------------------------------------------ */
bool neb__control_copy_is(const struct neb_conn *c);
bool neb__control_copy_is_wanted(const struct neb_peer *p);
/* A chunk of a control message has been written to the control connection. */
void neb__control_copy_send(struct neb_peer *p, const struct neb_chunk *chunk, const uint8_t *payload);
void neb__control_copy_pump(struct neb_peer *p);

/* ---- timers.c ------------------------------------------------------------------------------------------------------ */
void neb__net_tick(struct neb_net *net);
void neb__net_tick_early(struct neb_net *net); /* where the loop is awake and the next tick not far */
void neb__net_hurry(struct neb_net *net);      /* something is being made, or is to be: ticks come quickly */
void neb__measure_acked(struct neb_peer *p, int64_t now); /* an acknowledgement brought something */
double neb__net_jitter(struct neb_net *net);              /* uniform in [0, 1) */

/* ---- stream.c ---------------------------------------------------------------------------------------------------- */
enum { NEB_KIND_STREAM_ITEM = 0x10000, NEB_KIND_STREAM_MARK = 0x10001 };
neb_status neb__net_stream_message(struct neb_peer *p, const struct neb_message *m);
void neb__net_stream_peer_up(struct neb_peer *p, bool new_session);
void neb__net_stream_peer_gone(struct neb_peer *p);
void neb__net_stream_flush(struct neb_peer *p); /* marks to send, items to send, producers to wake */

#endif
