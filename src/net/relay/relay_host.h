/* relay_host.h: a relay host: a machine that joins connections of members who cannot reach each other, and is no member.
 *
 * Members dial out to it and prove a key of a roster that it was shown; it proves its own key, which the roster pins in the
 * address `relay://HOST:PORT#KEY`. One of two members stands there, the other calls. The host then passes
 * bytes between the two sockets. These bytes are the members' own TLS, end to end: the host sees records, and can neither
 * read nor forge them, nor join. Strangers may meet for a few short messages (meeting.h). docs/relay.md tells more.
 *
 * One thread, the loop's, runs everything. A successful open owes a close. */
#ifndef NEB_NET_RELAY_RELAY_HOST_H
#define NEB_NET_RELAY_RELAY_HOST_H

#include "seal/roster.h"

struct neb_relay_host;

/* What one run, one member and strangers may use. A number of 0: no limit, where that is said. */
struct neb_relay_limits {
    int64_t rosters;            /* that guests may show; 0: only those of the operator's files */
    int64_t run_connections;    /* joined pairs of one run */
    int64_t member_connections; /* connections of one member, waiting and joined */
    double run_rate;            /* bits per second that a run's members may send; 0: no limit */
    double member_rate;         /* … that one member may send; 0: no limit */
    double idle;                /* seconds after which a joined pair without a byte is closed */
    int64_t meetings;           /* strangers that wait or talk at one time; 0: nobody may meet here */
    double meetings_per_minute; /* attempts from one network (/24, /64) */
    double meeting_seconds;     /* the longest meeting */
};

#define NEB_RELAY_LIMITS                                                                               \
    {                                                                                                  \
        .rosters = 64, .run_connections = 512, .member_connections = 128, .idle = 900, .meetings = 64, \
        .meetings_per_minute = 12, .meeting_seconds = 600                                              \
    }

enum { NEB_MEETING_MESSAGES = 16 /* of each of the two */ };

struct neb_relay_host_config {
    const struct neb_key *key; /* the host's own; must outlive it */
    const char *name;          /* in its certificate; means nothing */
    const char *listen;        /* HOST:PORT; port 0: any */
    const char *const *files;  /* rosters of the operator's, `files_n` of them; read again when they change */
    int files_n;
    const char
        *folder; /* every file in it is a roster, and those that guests show are kept here; NULL: none */
    struct neb_relay_limits limits;
};

struct neb_relay_counts {
    uint64_t bytes;  /* passed on */
    uint64_t joined; /* pairs, since the start */
    uint64_t refused;
    uint32_t runs, standing, pairs, meetings, strangers; /* now */
    double cpu;                                          /* seconds of the loop's thread */
};

/* NEB_ERR_CONFIG, NEB_ERR_NET (cannot listen), NEB_ERR_NOMEM; a roster that cannot be read is NEB_ERR_… of it. */
neb_status neb__relay_host_open(const struct neb_relay_host_config *config, struct neb_relay_host **out);
neb_status neb__relay_host_start(struct neb_relay_host *h); /* the loop on its own thread */
neb_status neb__relay_host_run(struct neb_relay_host *h);   /* the loop on this thread, until it is stopped */
void neb__relay_host_stop(struct neb_relay_host *h);        /* any thread, or a signal handler */
bool neb__relay_host_is_stopping(const struct neb_relay_host *h); /* any thread */
void neb__relay_host_close(struct neb_relay_host *h);             /* NULL is fine */

uint16_t neb__relay_host_port(const struct neb_relay_host *h);
void neb__relay_host_counts(struct neb_relay_host *h, struct neb_relay_counts *out); /* any thread */

#endif
