/* link.h: the connections, peers and node that the files of src/net share. All other folders use net.h.
 *
 *     net.c                      the node: loop, thread, posts, timers, the functions of net.h
 *     listen_dial.c              listening, dialling
 *     lookup.c                   names become addresses
 *     stand.c                    relay hosts: standing there, calling, answering
 *     way.c, proxy.c             what the user says about dialling; the talk with a proxy (no I/O)
 *     tunnel.c                   has a proxy connect, before TLS
 *     dial_command.c                  commands that dial
 *     strangers.c                limits for connections that are not greeted yet
 *     greet.c                    from a TLS handshake to an accepted peer: HELLO, CHAIN, WELCOME, REFUSE
 *     conn.c                     one TLS connection on a socket
 *     read_wakeup.c              decides when a stripe is read
 *     pace.c                     reads TCP's figures about a stripe, and sets how fast it may send
 *     bbr_turns.c                two stripes that take turns
 *     link.c                     one peer: its control connection, its stripes, frames in and out
 *     control_copy.c             sends small control messages twice
 *     patience.c                 how long a peer may take, by the measured round trip
 *     timers.c                   heartbeats, deadlines, redialling, measuring
 *     stripes.c                  chooses the number of stripes (no I/O)
 *     outbox.c, inbox.c, wire.c  messages, chunks, frames (no I/O)
 *     stream*.c, journal.c       streams */
#ifndef NEB_NET_LINK_H
#define NEB_NET_LINK_H

#include "net/inbox.h"
#include "net/log_limit.h"
#include "net/net.h"
#include "net/outbox.h"
#include "net/stripes.h"
#include "net/way.h"
#include "net/wire.h"
#include "base/rng.h"
#include "seal/tls.h"

#include <uv.h>

enum {
    NEB_STRANGERS_MAX = 128,     /* connections that wait to be greeted: from anywhere, */
    NEB_STRANGERS_RESERVED = 64, /* … from the networks of the roster, */
    NEB_GREETINGS_PER_KEY = 32,  /* … with one roster key */
    NEB_CONN_BATCH = 128 << 10,  /* ciphertext gathered for one write to the socket */
    NEB_CONN_OUT_MAX = NEB_CONN_BATCH + 2 * 65536 + NEB_EPOCH_BYTES_MAX + 4096,
    NEB_SKIP = 64 << 10,
    NEB_READ_MAX = 3 << 20, /* bytes read from one connection before the others have their turn */
    NEB_TICK_MS = 100,      /* while a connection is being made */
    NEB_TICK_CALM_MS = 1000,
    NEB_STRIPE_RETRY_NS = 500000000, /* from a failed attempt to the next */
};

struct neb_peer;

enum neb_conn_state {
    NEB_CONN_CONNECTING,
    NEB_CONN_PROXY,
    NEB_CONN_RELAY, /* talks with a relay host (stand.c) */
    NEB_CONN_TLS,
    NEB_CONN_GREETING,
    NEB_CONN_READY,
    NEB_CONN_PARKED, /* another connection has taken its place; the peer may not know yet (link.c) */
    NEB_CONN_CLOSED
};

enum neb_stranger_class { NEB_STRANGER_OTHER, NEB_STRANGER_NEAR, NEB_STRANGER_MEMBER }; /* strangers.c */

/* Counters of TCP_INFO: microseconds with data to send, microseconds held back by the peer's window,
 * microseconds held back by our send buffer; bytes sent, and bytes sent again. */
struct neb_tcp_counts {
    uint64_t busy, window, buffer, sent, again;
};

/* One stripe's sending rate, limited so that the line's queue stays short (pace.c). */
struct neb_pace {
    int64_t at;         /* time of the last look; 0: none yet */
    uint32_t delivered; /* packets delivered until then */
    double rate;        /* bytes per second that TCP's acknowledgements report */
    double rtt_floor;   /* seconds; the round trip that sending less does not shorten */
    double excess;      /* seconds of queue when braking began */
    double in_flight;   /* bytes that TCP may have under way */
    double every;       /* seconds between the last two looks */
    int64_t braking;    /* since when; 0: not braking */
    double limit;       /* bytes per second, as set on the socket; 0: none */
};

struct neb_conn {
    uv_poll_t poll;
    struct neb_net *net;
    struct neb_conn *next, *prev; /* list of all connections of the node */
    int fd;
    enum neb_conn_state state;
    bool dialled;
    bool blocked;    /* the socket takes no more for now */
    bool by_clock;   /* read by the clock, not by events */
    int wake_at;     /* bytes that must have arrived before an event comes (0: never set) */
    int wake_max;    /* upper bound of wake_at: an eighth of the receive buffer */
    int64_t read_at; /* when it was last read, and how fast data came until then */
    double bytes_per_s;
    int polling;      /* events asked for */
    char remote[64];  /* address, for log lines */
    uint64_t network; /* of the address; strangers are counted by it */
    enum neb_stranger_class class;
    struct neb_tls *tls;
    size_t out_at; /* bytes of the ciphertext that the socket has taken */
    size_t taken;  /* bytes read in this turn */
    bool drained;  /* the socket has nothing more to read in this turn */
    int ended;     /* errno with which the socket ended; -1: the peer closed it */
    struct neb_framer framer;
    struct neb_peer *peer;               /* dialled: the peer we dialled; accepted: NULL until it is known */
    struct neb_stand *stand;             /* the relay host at the other end of the socket; or NULL */
    struct neb_talk *talk;               /* with that host, until it has joined us with the peer; or NULL */
    struct neb_tunnel *tunnel;           /* until the proxy has connected; or NULL */
    struct neb_dial_command *by_command; /* the command that carries the connection; or NULL */
    int slot;
    int64_t opened_at;
    /* greeting */
    enum neb_conn_role role;
    uint8_t stripe;
    uint64_t token;
    bool hello_in, hello_out, welcome_in, welcome_out;
    uint64_t tell;  /* control: the first epoch that the peer neither holds nor was sent; 0: not yet */
    bool contested; /* two rosters for one epoch: each side shows its chain, then refuses */
    bool fork_seen; /* the peer's chain has proved the fork */
    bool refuse_in, refuse_out; /* only for a contested connection */
    struct neb_hello theirs;
    struct neb_tcp_counts tcp; /* as of the last look */
    struct neb_pace pace;
    int unsent,
        unsent_low;      /* bytes that may wait unsent in the socket; the level at which it is filled again */
    int tide;            /* TCP_NOTSENT_LOWAT as set on the socket */
    int room;            /* size of the send buffer as last asked for; 0: the kernel's choice */
    uint32_t round_trip; /* the shortest round trip that BBR knows, in microseconds; 0: unknown */
    int64_t round_trip_at; /* since when BBR has known it, as far as we can tell */
    bool had_turn;
};

struct neb_measure {
    int64_t acked_at;    /* time of the last acknowledgement of new data */
    uint64_t acked_then; /* acknowledged bytes when the present period began; then = 0: no period has begun */
    int64_t then;
    bool dry;       /* the queue has been empty since */
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
    bool closing; /* that stripe is given no more chunks */
    double busy;  /* seconds of a full queue, counted until `on` */
};

struct neb_peer {
    struct neb_net *net;
    struct neb_peer *next;
    uint16_t id;
    char name[NEB_NAME_SIZE];
    struct neb_public key;            /* as the roster has it; incarnation and boot belong to this key */
    uint64_t home[NEB_ADDRESSES_MAX]; /* networks of its addresses; 0: none, or an address by name */
    uint64_t linked_from;             /* the network that it last linked from; 0: none */
    struct neb_conn *control;         /* READY */
    struct neb_conn *making;          /* the control connection that is being dialled */
    struct neb_conn *calling;         /* the one that is being made through a relay host */
    struct neb_conn *stripe[NEB_STRIPES_MAX]; /* READY or being made */
    uint64_t token, incarnation, boot;
    int version;      /* protocol version that both sides speak */
    bool up, resumed; /* resumed: the peer has told what it holds */
    bool dirty;       /* something may be sendable */
    bool resolving;
    struct neb_outbox out;
    struct neb_inbox in;
    bool held[NEB_PRIORITIES],
        again[NEB_PRIORITIES]; /* held: a message waits for the layer above; again: it is to be offered
                                * again */
    int64_t ack_due;           /* 0: nothing to acknowledge */
    int64_t acked_at;          /* when the last acknowledgement was written */
    bool resume_due;
    /* heartbeats */
    uint32_t ping_number;
    int64_t ping_at, pong_at, looked_at;
    bool ping_due, pong_due, bye_due;
    struct neb_pong pong;
    int64_t pinged_at; /* when the ping that `pong` answers came */
    uint32_t their_stripes;
    int64_t urgent_at;               /* when a stream item was last sent or received */
    int64_t sent_at[NEB_PRIORITIES]; /* when a chunk last left */
    bool copy_due;                   /* the control copy connection has something to send */
    uint64_t copies;                 /* copies of control messages sent so far */
    bool top_up; /* an acknowledgement woke us: filling the sockets now saves a wake-up for each */
    /* dialling */
    int64_t dial_at, down_at;
    double backoff;
    char goal[NEB_ADDRESS_SIZE]; /* the address that the control connection was last dialled to */
    bool by_proxy;               /* … through the proxy */
    double patience;             /* seconds that a dialled connection gets until WELCOME */
    double greeted_in;           /* seconds that the last greeting took */
    char trouble[256];           /* what was last said about dialling; "" since a link was up */
    bool dial_quiet;             /* the command's words have been in the log */
    int address; /* number of failed attempts; it selects the next roster address, and the next address of a
                  * name */
    int64_t call_at; /* when the peer is next called at a relay host */
    double call_backoff;
    int64_t path_at; /* since when the link has had its control connection */
    int brief;       /* direct paths in a row that did not last */
    int call_turn;   /* number of failed calls; it selects the relay host */
    uint64_t reconnects;
    /* measuring, adapting */
    struct neb_measure measure;
    struct neb_stripes stripes;
    struct neb_bbr_turns turns;
    struct neb_net_stream *streams;
    uint32_t stream_round;
};

/* A relay host that the roster names: this site stands there, or calls others (stand.c). It stays until the node closes. */
struct neb_stand {
    struct neb_stand *next;
    struct neb_net *net;
    uint16_t number;
    struct neb_relay_address at;
    char goal[NEB_ADDRESS_SIZE]; /* HOST:PORT */
    bool ours;                   /* others call this site here */
    bool by_proxy, resolving;
    struct sockaddr_storage sa; /* of the host, or of the proxy */
    socklen_t sa_len;           /* 0: unknown */
    int turn;                   /* number of failed attempts; it selects the address of a name */
    struct neb_conn *standing;  /* being made, or there */
    bool here;                  /* the host has accepted it */
    uint64_t epoch;             /* of the roster when it stood up */
    int64_t dial_at, heard_at;
    double backoff;
    int answering; /* connections that answer calls, until they are joined */
    char trouble[200];
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
    uv_timer_t ack_timer, read_timer, turn_timer;
    bool ack_timer_on, read_timer_on;
    bool hurried; /* ticks come every NEB_TICK_MS */
    int64_t ticked_at;
    uv_poll_t listener;
    int listen_fd;
    struct neb_conn *conns;
    struct neb_peer *peers;
    struct neb_stand *stands;
    bool roster_changed;
    uint8_t *skip; /* NEB_SKIP bytes, for unwanted payload */
    struct neb_rng jitter;
    struct neb_log_limit log; /* lines about strangers */
    uint64_t dropped;         /* connections that went because too many waited to be greeted */
    /* for other threads */
    uv_mutex_t lock;
    struct neb_post *posts, **posts_end;
    bool stopping, closed;
    struct neb_lookup *lookups; /* lookup.c */
    struct neb_way way;
    struct neb_dial_command *dial_commands;
    uv_thread_t thread;
    bool threaded;
};

/* ---- conn.c -------------------------------------------------------------------------------------------- */
/* Sets what every connection of the WAN needs: no delay, keep-alive, time-outs; congestion: its control, NULL: bbr. */
void neb__conn_socket_options(int fd, const char *congestion);
/* Takes over fd, even when it fails. */
neb_status neb__conn_open(struct neb_net *net, int fd, bool dialled, struct neb_conn **out);
/* Begins TLS anew on the same socket: behind a relay host is the peer. */
neb_status neb__conn_renew(struct neb_conn *c, bool dialled);
/* Takes no more events; the socket stays open for a moment. */
void neb__conn_park(struct neb_conn *c);
/* Closes the socket and forgets the connection. The peer only sees a TLS goodbye. Idempotent. */
void neb__conn_close(struct neb_conn *c);
neb_status neb__conn_write(struct neb_conn *c, const void *p, size_t n);
neb_status neb__conn_frame(struct neb_conn *c, enum neb_frame_type type, const void *body, size_t n);
/* Returns how many bytes of ciphertext wait for the socket. */
size_t neb__conn_waiting(const struct neb_conn *c);
/* Sends the waiting bytes and, as long as the socket takes them, those that neb__link_fill() adds. */
void neb__conn_pump(struct neb_conn *c);
/* Reads from the socket, up to NEB_READ_MAX bytes. Returns how many; 0: nothing came, or the connection is
 * closed. */
size_t neb__conn_read(struct neb_conn *c);
void neb__conn_watch(struct neb_conn *c, bool writable); /* asks for events */
/* Lets at most about `bytes` wait unsent in the socket. It is filled again once fewer than `low` wait. */
void neb__conn_unsent(struct neb_conn *c, int bytes, int low);
/* Makes the send buffer at least this large, if the system allows. */
void neb__conn_room(struct neb_conn *c, int bytes);

/* ---- read_wakeup.c ------------------------------------------------------------------------------------- */
/* Decides when to read again, after `got` bytes were read. */
void neb__conn_plan_read(struct neb_conn *c, size_t got);
void neb__conn_read_by_clock(struct neb_net *net); /* called by the clock */
/* Called at every tick. `all`: also reads stripes whose data is not late yet. */
void neb__conn_read_waiting(struct neb_net *net, bool all);
void neb__conn_read_others(struct neb_conn *c); /* reads the link's other stripes, after c was woken */

/* ---- pace.c -------------------------------------------------------------------------------------------- */
void neb__link_pace(struct neb_peer *p, int64_t now); /* several times a second while data flows */
void neb__pace_look(struct neb_peer *p);              /* once a second */

double neb__pace_unsent(const struct neb_conn *c); /* bytes that wait in the socket; 0 also: unknown */
bool neb__pace_is_bbr(const struct neb_conn *c);
double neb__pace_rtt(const struct neb_conn *c); /* as TCP knows it, in seconds; 0: unknown */

/* ---- bbr_turns.c --------------------------------------------------------------------------------------- */
int neb__bbr_turns_stripes(const struct neb_peer *p); /* how many connections the target needs */
bool neb__bbr_turns_may_send(const struct neb_conn *c);
bool neb__bbr_turns_is_in_use(const struct neb_conn *c); /* it may send, or has just sent */
/* An acknowledgement came `seconds` after the last one; 0: the queue was empty in between. */
void neb__bbr_turns_acked(struct neb_peer *p, double seconds, int64_t now);
void neb__bbr_turns_hand_over(struct neb_net *net, int64_t now); /* called by the clock */

/* ---- listen_dial.c ------------------------------------------------------------------------------------- */
neb_status neb__net_listen(struct neb_net *net);
void neb__net_name_address(struct neb_conn *c, const struct sockaddr *sa, socklen_t n); /* for log lines */
/* Listens on the first address of the list that works. Returns 0, or the errno of the last one. */
int neb__net_bind(const struct addrinfo *list, int *fd);
void neb__net_dial(struct neb_peer *p, enum neb_conn_role role, int stripe);
/* A lookup for the peer has ended: `error` of getaddrinfo(), or the list, of which address `turn` is tried. */
void neb__net_resolved(struct neb_peer *p, int error, const struct addrinfo *list, int turn);
void neb__net_stranger_log(struct neb_net *net, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Tells why a peer cannot be reached, once for a row of attempts that fail alike. */
void neb__net_dial_trouble(struct neb_peer *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- tunnel.c ------------------------------------------------------------------------------------------ */
/* The connection to the proxy will be asked for one to `goal`. NEB_ERR_INVALID, NEB_ERR_NOMEM */
neb_status neb__tunnel_open(struct neb_conn *c, const char *goal);
/* The socket can be written to or read. NEB_OK: TLS may begin; NEB_ERR_AGAIN; else the proxy failed. */
neb_status neb__tunnel_go_on(struct neb_conn *c);

/* ---- dial_command.c ----------------------------------------------------------------------------------------- */
/* Runs the command of net->way. `fd` becomes this end of the connection. NEB_ERR_INVALID, NEB_ERR_NOTFOUND, NEB_ERR_NET,
 * NEB_ERR_NOMEM; none is logged. */
neb_status neb__dial_command_start(struct neb_net *net, uint16_t peer, const char *host, uint16_t port,
                                   int *fd, struct neb_dial_command **out);
void neb__dial_command_left(struct neb_dial_command *d, bool linked); /* its connection is closed */
void neb__dial_commands_reap(struct neb_net *net);                    /* at every tick */
void neb__dial_commands_end(struct neb_net *net); /* after the connections: waits, a second or two */

/* ---- strangers.c --------------------------------------------------------------------------------------- */
uint64_t neb__net_network(
    const struct sockaddr *sa); /* its /24 or /64 as a number; 0: neither IPv4 nor IPv6 */
void neb__strangers_learn(struct neb_peer *p, const struct neb_member *m); /* where the member lives */
/* A connection has come in, its TLS handshake is done: it takes a slot, and another may be closed for it, or
 * itself. */
void neb__strangers_admit(struct neb_conn *c);
void neb__strangers_proved(struct neb_conn *c);

/* ---- lookup.c ------------------------------------------------------------------------------------------ */
/* Looks the name up and calls neb__net_resolved() later, on the loop's thread. NEB_ERR_NOMEM */
neb_status neb__lookup_start(struct neb_peer *p, const char *host, uint16_t port, int turn);
void neb__lookup_take(struct neb_net *net); /* tells the peers of those that have ended */
void neb__lookup_end(struct neb_net *net);  /* after the loop: waits for the rest and drops them */

/* The same for a relay host: neb__stand_resolved(). */
neb_status neb__lookup_stand(struct neb_stand *s, const char *host, uint16_t port);

/* ---- stand.c ------------------------------------------------------------------------------------------- */
void neb__stand_follow(struct neb_net *net); /* the roster may have changed */
void neb__stand_free(struct neb_net *net);   /* after the loop */
void neb__stand_tick(struct neb_net *net, int64_t now);
void neb__stand_resolved(struct neb_stand *s, int error, const struct addrinfo *list);
/* Calls the peer at one of its relay hosts; a stripe at that of the control connection. */
void neb__stand_call(struct neb_peer *p, enum neb_conn_role role, int stripe);
/* The socket is connected, or has bytes. An error closes the connection. */
neb_status neb__stand_talk(struct neb_conn *c);
void neb__stand_lost(struct neb_conn *c,
                     const char *why); /* a connection to a relay host ended before it was joined */
bool neb__stand_is_quiet(const struct neb_conn *c); /* it stands, and need not be looked after every tick */

/* ---- greet.c ------------------------------------------------------------------------------------------- */
neb_status neb__greet_begin(struct neb_conn *c); /* after the TLS handshake */
neb_status neb__greet_frame(struct neb_conn *c, enum neb_frame_type type, const uint8_t *body, size_t n);
/* Sends the next part of the chain that the peer lacks, if the connection has room for it. */
neb_status neb__greet_fill(struct neb_conn *c);
/* The chain grew: connections that wait for it are judged again, and peers that are no longer members are
 * closed. */
void neb__greet_roster_changed(struct neb_net *net);

/* ---- link.c -------------------------------------------------------------------------------------------- */
extern const struct neb_framer_events neb__link_frames; /* arg: the connection */
/* Joins a greeted connection to its peer. NEB_ERR_…: the caller must close it. */
neb_status neb__link_attach(struct neb_conn *c);
/* Takes a closed connection off its peer, whatever its state was. */
void neb__link_detach(struct neb_conn *c, neb_status s);
void neb__link_fill(struct neb_conn *c);
neb_status neb__link_write_chunk(struct neb_conn *c, const struct neb_chunk *chunk, const uint8_t *payload);
void neb__link_down(struct neb_peer *p, neb_status why);
/* A control connection could not be made. The next attempt goes to the next address, after a longer wait each
 * time. */
void neb__link_unreachable(struct neb_peer *p);
void neb__link_uncallable(struct neb_peer *p);    /* the same through a relay host */
void neb__link_touch(struct neb_peer *p);         /* something may be sendable */
bool neb__link_is_calm(const struct neb_peer *p); /* nobody waits for a stream item */
void neb__link_deliver(struct neb_peer *p, enum neb_priority priority);
neb_status neb__peer_add(struct neb_net *net, const struct neb_member *m);
void neb__peer_remove(struct neb_peer *p, neb_status why);
int neb__peer_stripes(const struct neb_peer *p); /* connected stripes, at least 1 */
struct neb_peer *neb__peer_find(const struct neb_net *net, uint16_t id);

/* ---- control_copy.c ------------------------------------------------------------------------------------ */
bool neb__control_copy_is(const struct neb_conn *c);
bool neb__control_copy_is_wanted(const struct neb_peer *p);
/* A chunk of a control message has been written to the control connection. */
void neb__control_copy_send(struct neb_peer *p, const struct neb_chunk *chunk, const uint8_t *payload);
void neb__control_copy_pump(struct neb_peer *p);

/* ---- patience.c ---------------------------------------------------------------------------------------- */
double neb__patience_greet(const struct neb_conn *c);  /* seconds from connect to WELCOME */
double neb__patience_answer(const struct neb_peer *p); /* seconds without an answer until the peer is down */
void neb__patience_dialled(struct neb_conn *c);        /* a connection is being made */
void neb__patience_late(struct neb_conn *c);           /* it was not greeted in time */
void neb__patience_linked(struct neb_conn *c);         /* it has become a link */
/* The clock comes `late` seconds late, because this process stood still: its peers were not silent. */
void neb__patience_slept(struct neb_net *net, double late);

/* ---- timers.c ------------------------------------------------------------------------------------------ */
void neb__net_tick(struct neb_net *net);
void neb__net_tick_early(struct neb_net *net); /* called when the loop is awake and the next tick is near */
void neb__net_hurry(struct neb_net *net); /* a connection is being made, or must be: ticks come quickly */
void neb__measure_acked(struct neb_peer *p, int64_t now); /* an acknowledgement confirmed new data */
double neb__net_jitter(struct neb_net *net);              /* uniform in [0, 1) */

/* ---- stream.c ------------------------------------------------------------------------------------------ */
enum { NEB_KIND_STREAM_ITEM = 0x10000, NEB_KIND_STREAM_MARK = 0x10001 };
neb_status neb__net_stream_message(struct neb_peer *p, const struct neb_message *m);
void neb__net_stream_peer_up(struct neb_peer *p, bool new_session);
void neb__net_stream_peer_gone(struct neb_peer *p);
void neb__net_stream_flush(struct neb_peer *p); /* sends marks and items, wakes producers */

#endif
