/* relay_host_internal.h: what the files of a relay host share.
 *
 *     relay_host.c      the loop, the listening socket, the clock, what is logged
 *     relay_guest.c     one connection, from TLS to what it asks for
 *     relay_rosters.c   the runs, and rosters of files
 *     relay_shown.c     rosters that guests show: checked beside the loop, a bounded number of them
 *     relay_rate.c      how often one network may do something
 *     relay_joint.c     two sockets whose bytes are passed on
 *     relay_meet.c      strangers that meet
 *     relay_wire.c      the messages */
#ifndef NEB_NET_RELAY_RELAY_HOST_INTERNAL_H
#define NEB_NET_RELAY_RELAY_HOST_INTERNAL_H

#include "net/relay/relay_host.h"
#include "net/relay/relay_wire.h"
#include "net/log_limit.h"
#include "base/rng.h"
#include "seal/tls.h"

#include <stdatomic.h>
#include <sys/stat.h>
#include <uv.h>

enum {
    NEB_GUESTS_STRANGERS = 128, /* connections that have not proved a member's key, in all */
    NEB_GUESTS_MAX = 4096,      /* connections in all; fewer if the process may open fewer files */
    NEB_GUEST_SECONDS = 10,     /* from connect to an answer; of a call, until it is answered */
    NEB_GUEST_SHOW_MAX = NEB_EPOCH_BYTES_MAX, /* bytes of a roster that a guest shows */
    NEB_GUEST_OUT_MAX = 128 << 10,
    NEB_GUEST_TURN = 64 << 10, /* bytes of one guest's session that are read before others have their turn */
    NEB_SHOWS_PER_MINUTE = 60, /* rosters that one network may show */
    NEB_CALL_REFILL =
        8, /* seconds in which a member may call as often as it may have connections, a run as pairs */
    NEB_GUEST_PING_SECONDS =
        15, /* between two pings to one that stands; after three without an answer it is gone */
    NEB_JOINT_PIPE =
        1 << 20, /* bytes between the two sockets, each way; fewer where the system allows no more */
    NEB_JOINT_TURN = 2 << 20,     /* bytes passed on before other pairs have their turn */
    NEB_JOINT_CLOCK_MS = 64,      /* between two turns of the clock, at most, */
    NEB_JOINT_CLOCK_NEAR_MS = 10, /* … on short lines, */
    NEB_JOINT_CLOCK_LEAST_MS = 3, /* … and at least */
};

struct neb_relay_bucket {
    double level; /* bytes that may leave, or calls that may be made, now */
    int64_t at;
};

struct neb_relay_member {
    struct neb_relay_member *next;
    struct neb_public key;
    uint16_t id;
    int connections;
    struct neb_guest *standing;
    struct neb_relay_bucket bucket, calls;
    bool told_connections, told_rate, told_calls;
};

struct neb_relay_run {
    struct neb_relay_run *next;
    struct neb_chain *chain;
    char name[2 * NEB_HASH_SIZE + 1]; /* the genesis hash */
    bool shown;                       /* by a guest, */
    uint64_t network;                 /* … from here; 0: in an earlier life of this host */
    int64_t used_at;                  /* when a member's connection last came or went */
    int joints;
    struct neb_relay_bucket bucket, calls;
    struct neb_relay_member *members;
    bool told_connections, told_rate, told_calls;
};

/* A file that was read, or could not be; it is read again when it changes. */
struct neb_roster_file {
    struct neb_roster_file *next;
    struct timespec changed;
    char path[];
};

enum neb_guest_state {
    NEB_GUEST_TLS,
    NEB_GUEST_ASKING,
    NEB_GUEST_SHOWING,
    NEB_GUEST_CHECKING, /* what it showed is being checked, or waits for that */
    NEB_GUEST_STANDING,
    NEB_GUEST_CALLING, /* until the called one answers */
    NEB_GUEST_MEETING, /* waits for another, or talks with it */
    NEB_GUEST_JOINING, /* JOINED has not left yet */
    NEB_GUEST_JOINED,
    NEB_GUEST_PARTING, /* the last message has not left yet */
    NEB_GUEST_CLOSED,
};

struct neb_guest {
    uv_poll_t poll;
    struct neb_relay_host *host;
    struct neb_guest *next, *prev;
    int fd;
    enum neb_guest_state state;
    int polling;
    char remote[64];
    uint64_t network;
    int64_t since; /* in this state */
    struct neb_tls *tls;
    size_t out_at, pulled; /* pulled: bytes in this turn */
    int ended;             /* errno with which the socket ended; -1: closed by the guest */
    struct neb_relay_reader reader;
    struct neb_relay_ask ask;
    struct neb_public key;
    struct neb_buf shown;
    struct neb_roster_check *check;
    struct neb_relay_run *run;
    struct neb_relay_member *member; /* NULL: a stranger */
    uint64_t ticket;                 /* of a call */
    uint16_t called;
    int64_t ping_at, pong_at, ponged_at;
    /* a meeting */
    struct neb_guest *other;
    int said;
    struct neb_joint *joint;
    int side;
};

struct neb_joint_way {
    int pipe[2];
    bool wide;   /* the pipe is larger than the system's own size */
    size_t held; /* bytes in the pipe */
    bool ended;  /* the sender has closed */
    bool full;   /* the receiver's socket takes no more for now */
    bool by_clock, throttled;
    int still;     /* turns of the clock without a byte */
    size_t recent; /* bytes since the last look */
    double rate;   /* bytes per second, as of the last look */
    int unsent;    /* bytes that may wait unsent in the receiver's socket */
};

struct neb_joint {
    struct neb_joint *next, *prev;
    struct neb_guest *side[2];
    struct neb_joint_way way[2]; /* way[i]: from side i to the other */
    struct neb_relay_run *run;
    int64_t moved_at, looked_at;
    double wait_ms; /* between two turns of the clock */
    int64_t due_at; /* the next one; 0: none is needed */
};

struct neb_meeting_over {
    struct neb_hash id;
    int64_t at;
};

struct neb_network_rate {
    uint64_t network;
    double level;
    int64_t at;
    bool told;
};

enum { NEB_MEETINGS_REMEMBERED = 1024, NEB_RATE_NETWORKS = 512 };

struct neb_relay_host {
    struct neb_relay_limits limits;
    struct neb_relay_host_config config;
    struct neb_public public;
    struct neb_tls_context *tls;
    uv_loop_t loop;
    bool loop_ready;
    uv_async_t wake;
    uv_timer_t tick, clock;
    uint64_t clock_ms; /* for which `clock` was set */
    uv_poll_t listener;
    int listen_fd;
    bool resting, told_full; /* no descriptor is left for a connection */
    bool told_pipes;         /* the system gives no more pages for pipes */
    uint16_t port;
    struct neb_guest *guests;
    int guest_count, guests_max;
    struct neb_joint *joints;
    struct neb_relay_run *runs;
    struct neb_roster_file *files; /* that were looked at */
    struct neb_rng rng;
    struct neb_log_limit log;
    struct neb_meeting_over over[NEB_MEETINGS_REMEMBERED];
    int over_next;
    struct neb_network_rate meets[NEB_RATE_NETWORKS], shows[NEB_RATE_NETWORKS];
    struct neb_roster_check *check; /* under way */
    int ticks;
    uint64_t told_bytes;
    int64_t told_at;
    atomic_bool stopping;
    uv_thread_t thread;
    bool threaded;
    uv_mutex_t lock; /* of `counts` */
    struct neb_relay_counts counts;
};

/* ---- relay_guest.c --- */
void neb__guest_open(struct neb_relay_host *h, int fd, const struct sockaddr *sa, socklen_t n);
void neb__guest_close(struct neb_guest *g);
void neb__guest_watch(struct neb_guest *g, int events);
neb_status neb__guest_say(struct neb_guest *g, enum neb_relay_type type, const void *body, size_t n);
/* Tells the guest and the log; the guest goes when it has been told. */
void neb__guest_refuse(struct neb_guest *g, enum neb_relay_refuse_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void neb__guest_tick(struct neb_relay_host *h, int64_t now);
bool neb__guest_is_stranger(const struct neb_guest *g);
void neb__guest_enter(struct neb_guest *g, enum neb_guest_state state);
void neb__guest_serve(struct neb_guest *g); /* what it asked for, now that its roster may be known */

/* ---- relay_rosters.c --- */
neb_status neb__relay_rosters_load(struct neb_relay_host *h);
void neb__relay_rosters_look(struct neb_relay_host *h); /* files that changed or came */
void neb__relay_rosters_free(struct neb_relay_host *h);
struct neb_relay_run *neb__relay_run_find(struct neb_relay_host *h, const struct neb_hash *genesis);
/* NULL: the key is no member's of the newest epoch; or no memory. */
struct neb_relay_member *neb__relay_run_member(struct neb_relay_run *r, const struct neb_public *key);
/* Takes the checked chain over: a new run, or the newer roster of one that is held. NEB_ERR_EXISTS: another branch of it. */
neb_status neb__relay_run_add(struct neb_relay_host *h, struct neb_chain *chain, struct neb_relay_run **out);
void neb__relay_run_keep(struct neb_relay_host *h, const struct neb_relay_run *r); /* in the folder */
void neb__relay_run_drop(struct neb_relay_host *h, struct neb_relay_run *r);       /* no guest may be of it */

/* ---- relay_shown.c --- */
bool neb__shown_may(struct neb_guest *g);   /* false: it has been refused */
void neb__shown_check(struct neb_guest *g); /* g->shown is whole; neb__guest_serve() or a refusal follows */
void neb__shown_gone(struct neb_guest *g);

/* ---- relay_rate.c --- */
/* False: too often. *tell: for the first time in this row. */
bool neb__relay_within_rate(struct neb_network_rate *table, uint64_t network, double per_minute, bool *tell);
/* Takes one from the bucket. False: it is empty. */
bool neb__relay_within_burst(struct neb_relay_bucket *b, double burst, double per_second, int64_t now);

/* ---- relay_joint.c --- */
neb_status neb__joint_create(struct neb_guest *caller, struct neb_guest *answerer);
void neb__joint_begin(struct neb_joint *j); /* when both have been told */
void neb__joint_event(struct neb_guest *g, int events);
void neb__joint_close(struct neb_joint *j, const char *why);
void neb__joint_clock(struct neb_relay_host *h);
/* How long the bytes of a fast way wait for the clock. rate: bytes per second; round_trip_ms: of the pair's two lines together. */
double neb__joint_wait_ms(double rate, double round_trip_ms);
void neb__joint_tick(struct neb_relay_host *h, int64_t now);

/* ---- relay_meet.c --- */
void neb__meet_ask(struct neb_guest *g);
void neb__meet_say(struct neb_guest *g, const uint8_t *p, size_t n);
void neb__meet_gone(struct neb_guest *g);

#endif
