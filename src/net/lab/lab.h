/* lab.h: a wide-area network on one machine.
 *
 * A lab is a set of sites, each with an IPv4 address of its own, and a line from every site to every other one.
 * Three ways to build it, tried in this order:
 *
 *   namespaces   every site is a network namespace with a TUN device; real kernels' TCP runs over it (needs root)
 *   user         the same inside a new user namespace (an ordinary user, where the system allows it); the calling
 *                process must still have one thread; it stays in that user namespace, cut off from the host's network
 *   relay        none of the above is allowed: TCP connections to named ports are relayed over loopback inside this
 *                process, shaped by rate, delay, jitter and outages. There are no packets, so no loss, reordering or
 *                corruption, and no UDP or ping; creating it says so in the log.
 *
 * A namespace has no name and a TUN device belongs to an open file, so nothing is left behind however this process
 * ends.
 *
 * Times are in seconds, rates in bits per second, shares in [0, 1], sizes in bytes of the IP packet.
 * A successful create owes a destroy; a successful config init/load owes a config free. */
#ifndef NEB_NET_LAB_H
#define NEB_NET_LAB_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { NEB_LAB_SITES = 64, NEB_LAB_NAME = 32, NEB_LAB_PORTS = 64 };

/* One direction between two sites. All zero: nothing is lost, late or limited. */
struct neb_lab_line {
    double rate;          /* 0: unlimited */
    double delay;         /* one way, propagation alone */
    double jitter;        /* deviation of the delay; order is kept */
    double loss;          /* each packet by itself */
    double burst_loss;    /* share lost in bursts (Gilbert-Elliott) */
    double burst_length;  /* mean packets of such a burst; 0 means 8 */
    double reorder;       /* share of packets held back */
    double reorder_delay; /* by this much; 0 means 1 ms */
    double corrupt; /* share of packets with one bit of their payload flipped, unseen by TCP's checksum */
    int64_t queue;  /* bytes that wait for the line, the rest is dropped; 0: one round trip, at least 20 ms */
    int64_t burst;  /* bytes an idle line lets through at once (token bucket); 0: none */
    bool down;      /* nothing gets through */
};

struct neb_lab_site {
    char name[NEB_LAB_NAME];
    double up, down;              /* the site's own access line, shared by all its lines; 0: unlimited */
    int64_t up_queue, down_queue; /* 0: 50 ms of it */
    char *command;                /* for /bin/sh; may be NULL; owned by the config */
};

/* From `at` on (seconds after the lab started), for `lasts` (0: for ever), again `every` (0: once), the fields named
 * by `set` have the values of `line` on the lines from -> to. */
struct neb_lab_event {
    double at, lasts, every;
    int from, to; /* -1: any site */
    bool both;    /* also to -> from */
    uint32_t set; /* bits 1 << NEB_LAB_SET_… */
    struct neb_lab_line line;
};
enum { NEB_LAB_SET_RATE, NEB_LAB_SET_DELAY, NEB_LAB_SET_JITTER, NEB_LAB_SET_LOSS, NEB_LAB_SET_DOWN };

enum neb_lab_mode { NEB_LAB_AUTO, NEB_LAB_NAMESPACES, NEB_LAB_USER, NEB_LAB_RELAY };

struct neb_lab_config {
    int sites;
    struct neb_lab_site *site;
    struct neb_lab_line *line;   /* (sites, sites): line[from * sites + to] */
    struct neb_lab_event *event; /* (events) */
    int events;
    int mtu;        /* 1500 */
    int overhead;   /* bytes a packet costs on the line beyond its IP length; 0 */
    uint64_t seed;  /* of loss, jitter, reordering and corruption */
    int64_t memory; /* most bytes on the way at once; 256 MiB */
    bool
        offload; /* let the kernel hand over trains of TCP segments (they are still lost and timed one by one) */
    bool
        calm; /* the sites need the processors: wake seldom, never wait awake; packets come up to 1 ms late */
    enum neb_lab_mode mode;
    int ports; /* what a relay listens on */
    uint16_t port[NEB_LAB_PORTS];
};

/* `sites` sites named a, b, c … (or `names`, if not NULL), the same line both ways between every two of them. */
neb_status neb__lab_config_init(int sites, const char *const *names, const struct neb_lab_line *line,
                                struct neb_lab_config *out);
void neb__lab_config_free(struct neb_lab_config *cfg); /* also fine on an all-zero one */

/* A YAML file (docs/lab.md has its keys). NEB_ERR_NOTFOUND, NEB_ERR_IO, NEB_ERR_CONFIG, NEB_ERR_NOMEM. */
neb_status neb__lab_config_load(const char *path, struct neb_lab_config *out);
neb_status neb__lab_config_parse(const char *name, const void *text, size_t n, struct neb_lab_config *out);

/* Adds events: "10s+5s down; 20s rate=10mbit; 30s+2s/60s a>b loss=5%". Each is AT[+FOR][/EVERY], then where (a>b one
 * way, a<>b both, a alone: all its lines; nothing: every line), then `down` or key=value. */
neb_status neb__lab_schedule_parse(const char *text, struct neb_lab_config *cfg);

/* One event, its fields set by name; the pieces from which file and text are read. */
neb_status neb__lab_event_set(struct neb_lab_event *e, const char *key, const char *value);
neb_status neb__lab_event_add(struct neb_lab_config *cfg, const struct neb_lab_event *e);
int neb__lab_config_site(const struct neb_lab_config *cfg, const char *name); /* -1 */

/* One field of a line by the name it has in a file: those of the struct, or rtt (half of it is the delay). */
neb_status neb__lab_line_set(struct neb_lab_line *line, const char *key, const char *value);

/* "100mbit,50ms,0.1%": rate, round-trip time (half of it each way), loss; later parts may be missing. */
neb_status neb__lab_line_parse(const char *text, struct neb_lab_line *out);

/* NEB_ERR_CONFIG names what is wrong; `from` and `to` are for the message. */
neb_status neb__lab_line_check(const struct neb_lab_line *line, const char *from, const char *to);
neb_status neb__lab_config_check(const struct neb_lab_config *cfg);

struct neb_lab;

/* Copies what it needs of cfg. Works at once: packets flow, the schedule starts.
 *   NEB_ERR_CONFIG; NEB_ERR_UNSUPPORTED: cfg->mode names a way this machine does not allow; NEB_ERR_NOMEM; NEB_ERR_IO */
neb_status neb__lab_create(const struct neb_lab_config *cfg, struct neb_lab **out);
void neb__lab_destroy(struct neb_lab *lab); /* NULL is fine; commands that still run are killed */

enum neb_lab_mode neb__lab_mode(const struct neb_lab *lab);
const char *neb__lab_mode_name(enum neb_lab_mode mode);
neb_status neb__lab_mode_parse(const char *text, enum neb_lab_mode *out);
int neb__lab_sites(const struct neb_lab *lab);
int neb__lab_find(const struct neb_lab *lab, const char *name); /* -1: no such site */
const char *neb__lab_name(const struct neb_lab *lab, int site);

/* Where `viewer` reaches `site`; viewer == site: the address to listen on. The same for all viewers except in a
 * relay. Dotted IPv4, valid as long as the lab. */
const char *neb__lab_address(const struct neb_lab *lab, int viewer, int site);

/* ---- the lines, while it runs: from any thread ------------------------------------------------------------------ */
neb_status neb__lab_set_line(struct neb_lab *lab, int from, int to, const struct neb_lab_line *line);
void neb__lab_get_line(struct neb_lab *lab, int from, int to,
                       struct neb_lab_line *out); /* without the schedule */
neb_status neb__lab_set_rate(struct neb_lab *lab, int from, int to, double rate);
neb_status neb__lab_set_down(struct neb_lab *lab, int from, int to, bool down); /* this direction alone */

struct neb_lab_stats {
    uint64_t sent, sent_bytes;           /* handed to the lab by `from` */
    uint64_t delivered, delivered_bytes; /* handed to `to` */
    uint64_t lost;                       /* random, burst */
    uint64_t overflowed;                 /* a queue was full */
    uint64_t cut;                        /* the line was down */
    uint64_t refused;                    /* memory, or the receiving host took no more */
    uint64_t reordered, corrupted;
    int64_t queued; /* bytes waiting for the line now */
    int64_t queued_most;
};
void neb__lab_stats(struct neb_lab *lab, int from, int to, struct neb_lab_stats *out);
double neb__lab_cpu_seconds(struct neb_lab *lab); /* of the thread that forwards */

/* ---- inside a site ---------------------------------------------------------------------------------------------- */

/* From here on sockets that the calling thread makes belong to the site. leave() brings it back. In a relay both do
 * nothing: bind to neb__lab_address(lab, site, site) yourself. */
neb_status neb__lab_enter(struct neb_lab *lab, int site);
neb_status neb__lab_leave(struct neb_lab *lab);

/* Calls fn(arg) on a new thread inside the site and waits for it. */
neb_status neb__lab_call(struct neb_lab *lab, int site, int (*fn)(void *arg), void *arg, int *result);

struct neb_lab_command {
    char *const *argv;    /* ends with NULL; looked up in PATH */
    int out, err;         /* descriptors for stdout and stderr; -1: those of this process */
    int (*fn)(void *arg); /* if argv is NULL: call this in the new process, its value is the exit status */
    void *arg;
};

/* Starts a process inside the site: own process group, stdin from /dev/null, with the variables
 *   NEBULA_WAN_SITE, NEBULA_WAN_INDEX, NEBULA_WAN_SITES (names, space between), NEBULA_WAN_ADDR (own address),
 *   NEBULA_WAN_ADDR_NAME (address of NAME, upper case, other characters than letters and digits as _), NEBULA_WAN_MODE
 * and, except in a relay, with the sites' names in its /etc/hosts. The process and all that it started end with it,
 * with neb__lab_kill() and with this process, whatever ends that. *out is a handle for wait and kill. */
neb_status neb__lab_start(struct neb_lab *lab, int site, const struct neb_lab_command *command, int *out);

/* Waits at most `seconds` (negative: for ever). *status: exit status, or 128 + the signal that ended it.
 * NEB_ERR_TIMEOUT: still running. A process can be waited for once. */
neb_status neb__lab_wait(struct neb_lab *lab, int handle, double seconds, int *status);
neb_status neb__lab_kill(struct neb_lab *lab, int handle,
                         int signal); /* SIGKILL ends the whole site's command */
pid_t neb__lab_pid(struct neb_lab *lab,
                   int handle); /* of the process itself, as seen from here; 0 when gone */

#endif
