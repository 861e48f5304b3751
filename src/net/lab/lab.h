/* lab.h: a wide-area network on one machine.
 *
 * A lab is a set of sites, each with its own IPv4 address, and a line from every site to every other one. It
 * can be built in three modes, tried in this order:
 *
 *   namespaces   every site is a network namespace with a TAP device; the real kernel's TCP runs over it
 *                (needs root)
 *   user         the same inside a new user namespace (for an ordinary user, if the system allows it); the
 *                calling process must have only one thread; it stays in that user namespace, cut off from
 *                the host's network
 *   relay        for a machine that allows neither: TCP connections to named ports run over loopback through
 *                this process (loopback_lines.c), shaped by rate, delay, jitter and outages. There are no
 *                packets, so no loss, reordering or corruption, and no UDP or ping; a warning in the log
 *                says so.
 *
 * A namespace has no name and a TAP device belongs to an open file, so nothing is left behind, however this
 * process ends.
 *
 * Times are in seconds, rates in bits per second, shares in [0, 1], sizes in bytes of the IP packet. A
 * successful create owes a destroy; a successful config init/load owes a config free. */
#ifndef NEB_NET_LAB_H
#define NEB_NET_LAB_H

#include "base/opts.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { NEB_LAB_SITES = 64, NEB_LAB_NAME = 32, NEB_LAB_PORTS = 64 };

/* One direction between two sites. If all fields are zero, nothing is lost, late or limited. */
struct neb_lab_line {
    double rate;          /* 0: unlimited */
    double delay;         /* one way, propagation alone */
    double jitter;        /* deviation of the delay; order is kept */
    double loss;          /* probability, independent for each packet */
    double burst_loss;    /* share lost in bursts (Gilbert-Elliott) */
    double burst_length;  /* mean packets of such a burst; 0 means 8 */
    double reorder;       /* share of packets held back */
    double reorder_delay; /* by this much; 0 means 1 ms */
    double corrupt; /* share of packets with one flipped payload bit that TCP's checksum does not notice */
    int64_t queue; /* bytes that may wait for the line, more are dropped; 0: one round trip, at least 20 ms */
    int64_t burst; /* bytes an idle line lets through at once (token bucket); 0: none */
    bool down;     /* nothing gets through */
};

struct neb_lab_site {
    char name[NEB_LAB_NAME];
    double up, down; /* rate of the site's own access line, which all its lines share; 0: unlimited */
    int64_t up_queue, down_queue; /* bytes; 0: 50 ms at that rate */
    char *command;                /* for /bin/sh; may be NULL; owned by the config */
};

/* From `at` (seconds after the lab started), for `lasts` (0: for ever), again every `every` (0: once), the
 * fields in `set` take the values of `line` on the lines from -> to. */
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
    uint64_t seed;  /* for loss, jitter, reordering and corruption */
    int64_t memory; /* most bytes on the way at once; 256 MiB */
    bool
        offload; /* the kernel hands over trains of TCP segments (they are still lost and timed one by one) */
    bool calm;   /* the sites need the processors: wake seldom, never spin; packets come up to 1 ms late */
    enum neb_lab_mode mode;
    int ports; /* number of ports that mode relay listens on */
    uint16_t port[NEB_LAB_PORTS];
};

/* Describes `sites` sites named a, b, c … (or `names`, if not NULL) with the same line both ways between
 * every two of them. */
neb_status neb__lab_config_init(int sites, const char *const *names, const struct neb_lab_line *line,
                                struct neb_lab_config *out);
void neb__lab_config_free(struct neb_lab_config *cfg); /* an all-zero config is fine */

/* Reads a YAML file (docs/lab.md has its keys). NEB_ERR_NOTFOUND, NEB_ERR_IO, NEB_ERR_CONFIG,
 * NEB_ERR_NOMEM. */
neb_status neb__lab_config_load(const char *path, struct neb_lab_config *out);
neb_status neb__lab_config_parse(const char *name, const void *text, size_t n, struct neb_lab_config *out);

/* Adds events: "10s+5s down; 20s rate=10mbit; 30s+2s/60s a>b loss=5%". Each is AT[+FOR][/EVERY], then the
 * lines (a>b one way, a<>b both ways, a all lines of that site; if missing, every line), then `down` or
 * key=value. */
neb_status neb__lab_schedule_parse(const char *text, struct neb_lab_config *cfg);

/* Sets one field of an event by name. The readers of files and of text use these. */
neb_status neb__lab_event_set(struct neb_lab_event *e, const char *key, const char *value);
neb_status neb__lab_event_add(struct neb_lab_config *cfg, const struct neb_lab_event *e);
int neb__lab_config_site(const struct neb_lab_config *cfg, const char *name); /* -1 */

extern const struct neb_opt neb__lab_line_options[]; /* of a struct neb_lab_line */

/* Sets one field of a line by its name in a file: a field of the struct, or rtt (half of it is the delay). */
neb_status neb__lab_line_set(struct neb_lab_line *line, const char *key, const char *value);

/* Parses "100mbit,50ms,0.1%": rate, round-trip time (half of it each way), loss. Later parts may be
 * missing. */
neb_status neb__lab_line_parse(const char *text, struct neb_lab_line *out);

/* NEB_ERR_CONFIG: the message says what is wrong; `from` and `to` are for the message. */
neb_status neb__lab_line_check(const struct neb_lab_line *line, const char *from, const char *to);
neb_status neb__lab_config_check(const struct neb_lab_config *cfg);

struct neb_lab;

/* Copies the parts of cfg that it needs. The lab works at once: packets flow, the schedule starts.
 *   NEB_ERR_CONFIG; NEB_ERR_UNSUPPORTED: this machine does not allow cfg->mode; NEB_ERR_NOMEM; NEB_ERR_IO */
neb_status neb__lab_create(const struct neb_lab_config *cfg, struct neb_lab **out);
void neb__lab_destroy(struct neb_lab *lab); /* NULL is fine; kills commands that still run */

enum neb_lab_mode neb__lab_mode(const struct neb_lab *lab);
const char *neb__lab_mode_name(enum neb_lab_mode mode);
neb_status neb__lab_mode_parse(const char *text, enum neb_lab_mode *out);
int neb__lab_sites(const struct neb_lab *lab);
int neb__lab_find(const struct neb_lab *lab, const char *name); /* -1: no such site */
const char *neb__lab_name(const struct neb_lab *lab, int site);

/* Returns the address at which `viewer` reaches `site`; if viewer == site, the address to listen on. It is
 * the same for all viewers except in mode relay. Dotted IPv4, valid as long as the lab. */
const char *neb__lab_address(const struct neb_lab *lab, int viewer, int site);

/* ---- changing lines while the lab runs: any thread ----------------------------------------------------- */
neb_status neb__lab_set_line(struct neb_lab *lab, int from, int to, const struct neb_lab_line *line);
/* Gives the line as set, without the schedule. */
void neb__lab_get_line(struct neb_lab *lab, int from, int to, struct neb_lab_line *out);
neb_status neb__lab_set_rate(struct neb_lab *lab, int from, int to, double rate);
neb_status neb__lab_set_down(struct neb_lab *lab, int from, int to, bool down); /* only this direction */

struct neb_lab_stats {
    uint64_t sent, sent_bytes;           /* that `from` handed to the lab */
    uint64_t delivered, delivered_bytes; /* that the lab handed to `to` */
    uint64_t lost;                       /* at random or in a burst */
    uint64_t overflowed;                 /* dropped because a queue was full */
    uint64_t cut;                        /* dropped because the line was down */
    uint64_t refused;                    /* no memory, or the receiving host took no more */
    uint64_t reordered, corrupted;
    int64_t queued; /* bytes waiting for the line now */
    int64_t queued_most;
};
void neb__lab_stats(struct neb_lab *lab, int from, int to, struct neb_lab_stats *out);
double neb__lab_cpu_seconds(struct neb_lab *lab); /* CPU time of the forwarding thread */

/* ---- inside a site ------------------------------------------------------------------------------------- */

/* After this call, sockets that the calling thread makes belong to the site. leave() brings the thread back.
 * In mode relay both do nothing: bind to neb__lab_address(lab, site, site) yourself. */
neb_status neb__lab_enter(struct neb_lab *lab, int site);

/* Calls fn(arg) on a new thread inside the site and waits for it. */
neb_status neb__lab_call(struct neb_lab *lab, int site, int (*fn)(void *arg), void *arg, int *result);

struct neb_lab_command {
    char *const *argv;    /* ends with NULL; looked up in PATH */
    int out, err;         /* descriptors for stdout and stderr; -1: those of this process */
    char *const *env;     /* further variables, NAME=VALUE, ended by NULL; NULL: none */
    int (*fn)(void *arg); /* if argv is NULL: called in the new process; its value is the exit status */
    void *arg;
};

/* Starts a process inside the site, in its own process group, with stdin from /dev/null and the variables
 *   NEBULA_WAN_SITE, NEBULA_WAN_INDEX, NEBULA_WAN_SITES (names, space between),
 *   NEBULA_WAN_ADDR (own address), NEBULA_WAN_ADDR_NAME (address of NAME, upper case, other characters than
 *   letters and digits as _), NEBULA_WAN_MODE
 * and, except in mode relay, with the sites' names in its /etc/hosts. When the process ends, everything that
 * it started ends too. neb__lab_kill() and the end of this process, however it comes, also end them. *out is
 * a handle for wait and kill. */
neb_status neb__lab_start(struct neb_lab *lab, int site, const struct neb_lab_command *command, int *out);

/* Waits at most `seconds` (negative: for ever). *status: exit status, or 128 + the signal that ended it.
 * NEB_ERR_TIMEOUT: still running. A process can be waited for once. */
neb_status neb__lab_wait(struct neb_lab *lab, int handle, double seconds, int *status);
/* SIGKILL ends the command and everything that it started. */
neb_status neb__lab_kill(struct neb_lab *lab, int handle, int signal);
/* Returns the pid of the process itself, as seen from here; 0: it is gone. */
pid_t neb__lab_pid(struct neb_lab *lab, int handle);

#endif
