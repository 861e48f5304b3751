/* verb_wan.c: `nebula-i wan`: a wide-area network on this machine, and commands inside it.
 *
 *     nebula-i wan run --wan 100mbit,50ms,0.1% -- iperf3 -s -1 : iperf3 -c a
 *     nebula-i wan run lab.yaml -- ./train.sh
 *
 * The network comes from a YAML file, from flags, or from a file with some of it changed by flags. One command for every
 * site, or one for all; `:` alone stands between two; without any, the file's own. The exit status is that of the first
 * site whose command failed. INT, TERM and HUP are passed on to the commands; five seconds later, or at a second
 * signal, they are killed.
 */
#include "cli/site_commands.h"
#include "cli/verb.h"
#include "net/lab/lab.h"
#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Fields of a line that a flag of the same name changes on every line. */
#define LINE_FLAGS(X)                                                             \
    X(rate, "bits a second each way, such as 100mbit")                            \
    X(rtt, "there and back, half of it each way")                                 \
    X(jitter, "deviation of the delay, each way")                                 \
    X(loss, "share of packets lost, each by itself, such as 0.1%")                \
    X(burst_loss, "share lost in bursts")                                         \
    X(burst_length, "packets of such a burst, on average (8)")                    \
    X(reorder, "share held back so that others overtake them")                    \
    X(reorder_delay, "for how long (1ms)")                                        \
    X(corrupt, "share with a bit of the data flipped, unseen by TCP")             \
    X(queue, "bytes that may wait for the line (one round trip, at least 20 ms)") \
    X(burst, "bytes that an idle line lets through at once (token bucket)")

struct wan {
    char *wan, *back, *sites, *up, *down, *schedule, *mode, *ports, *until, *logs;
#define NEB__X(name, help) char *name;
    LINE_FLAGS(NEB__X)
#undef NEB__X
    int64_t seed, mtu;
    bool stats, offload;
};

static const struct neb_opt options[] = {
    NEB_OPT(struct wan, wan, NEB_OPT_TEXT, "", NULL, "every line: RATE,RTT,LOSS such as 100mbit,50ms,0.1%"),
    NEB_OPT(struct wan, back, NEB_OPT_TEXT, "", NULL,
            "lines to an earlier site, if they differ: RATE,RTT,LOSS"),
#define NEB__X(name, help) NEB_OPT(struct wan, name, NEB_OPT_TEXT, "", NULL, help),
    LINE_FLAGS(NEB__X)
#undef NEB__X
        NEB_OPT(struct wan, schedule, NEB_OPT_TEXT, "", NULL, "such as '10s+5s down; 20s a>b rate=10mbit'"),
    NEB_OPT(struct wan, sites, NEB_OPT_TEXT, "", NULL, "their names (a,b)"),
    NEB_OPT(struct wan, up, NEB_OPT_TEXT, "", NULL, "every site's own uplink, shared by its lines"),
    NEB_OPT(struct wan, down, NEB_OPT_TEXT, "", NULL, "every site's own downlink"),
    NEB_OPT(struct wan, mode, NEB_OPT_TEXT, "", NULL,
            "how the network is made; without it: as the file says, or auto",
            NEB_OPT_CHOICE("auto", "namespaces", "user", "relay")),
    NEB_OPT(struct wan, ports, NEB_OPT_TEXT, "", NULL, "TCP ports that a relay carries: 7000,5201"),
    NEB_OPT(struct wan, mtu, NEB_OPT_INT, "0", NULL, "largest IP packet; 0: 1500, or the file's",
            NEB_OPT_ZERO_OR(576, 65535)),
    NEB_OPT(struct wan, seed, NEB_OPT_INT, "0", NULL, "of loss, jitter and reordering; 0: 1, or the file's"),
    NEB_OPT(struct wan, offload, NEB_OPT_BOOL, "yes", NULL, "trains of TCP segments to and from the kernel"),
    NEB_OPT(struct wan, until, NEB_OPT_TEXT, "all", NULL,
            "end when `all`, `any` or the named site's command ended"),
    NEB_OPT(struct wan, logs, NEB_OPT_TEXT, "", NULL, "a folder: output goes to SITE.log there"),
    NEB_OPT(struct wan, stats, NEB_OPT_BOOL, "no", NULL, "print what went over each line at the end"),
    NEB_OPT_END,
};

static volatile sig_atomic_t signals;
static volatile sig_atomic_t last_signal;

static void on_signal(int s)
{
    last_signal = s;
    signals++;
}

/* ---- the description --------------------------------------------------------------------------------------------- */

static neb_status parse_ports(const char *text, struct neb_lab_config *cfg)
{
    char copy[512], *rest = copy, *part;
    snprintf(copy, sizeof copy, "%s", text);
    cfg->ports = 0;
    while ((part = strsep(&rest, ","))) {
        char *end;
        long port = strtol(part, &end, 10);
        if (*end || end == part || port < 1 || port > 65535 || cfg->ports == NEB_LAB_PORTS)
            return neb__fail(NEB_ERR_CONFIG, "option 'ports': '%s' is not a list of at most %d ports", text,
                             NEB_LAB_PORTS);
        cfg->port[cfg->ports++] = (uint16_t)port;
    }
    return NEB_OK;
}

static neb_status plain_sites(const char *list, struct neb_lab_config *out)
{
    static const struct neb_lab_line free_line;
    const char *names[NEB_LAB_SITES];
    char copy[NEB_LAB_SITES * NEB_LAB_NAME], *rest = copy, *name;
    int n = 0;
    if (strlen(list) >= sizeof copy) return neb__fail(NEB_ERR_CONFIG, "option 'sites' is too long");
    snprintf(copy, sizeof copy, "%s", list);
    while ((name = strsep(&rest, ","))) {
        if (n == NEB_LAB_SITES || strlen(name) >= NEB_LAB_NAME)
            return neb__fail(NEB_ERR_CONFIG, "at most %d sites, names of at most %d letters", NEB_LAB_SITES,
                             NEB_LAB_NAME - 1);
        names[n++] = name;
    }
    return neb__lab_config_init(n, names, &free_line, out);
}

static neb_status change_lines(const struct wan *o, struct neb_lab_config *cfg)
{
    int n = cfg->sites;
    struct neb_lab_line line, back;
    const struct {
        const char *key, *value;
    } flags[] = {
#define NEB__X(name, help) {#name, o->name},
        LINE_FLAGS(NEB__X)
#undef NEB__X
    };
    if (o->wan) NEB_TRY(neb__lab_line_parse(o->wan, &line));
    if (o->back) NEB_TRY(neb__lab_line_parse(o->back, &back));
    for (int i = 0; i < n * n; i++) {
        if (i / n == i % n) continue;
        if (o->back && i / n > i % n)
            cfg->line[i] = back;
        else if (o->wan)
            cfg->line[i] = line;
        for (size_t k = 0; k < sizeof flags / sizeof *flags; k++)
            if (flags[k].value) NEB_TRY(neb__lab_line_set(&cfg->line[i], flags[k].key, flags[k].value));
    }
    return NEB_OK;
}

static neb_status change_sites(const struct wan *o, struct neb_lab_config *cfg)
{
    struct neb_lab_line up = {0}, down = {0};
    if (o->up) NEB_TRY(neb__lab_line_set(&up, "rate", o->up));
    if (o->down) NEB_TRY(neb__lab_line_set(&down, "rate", o->down));
    for (int i = 0; i < cfg->sites; i++) {
        if (o->up) cfg->site[i].up = up.rate;
        if (o->down) cfg->site[i].down = down.rate;
    }
    return NEB_OK;
}

static neb_status describe(const struct wan *o, const char *file, struct neb_lab_config *out)
{
    if (file && o->sites)
        return neb__fail(NEB_ERR_CONFIG, "%s names the sites: leave out option 'sites'", file);
    NEB_TRY(file ? neb__lab_config_load(file, out) : plain_sites(o->sites ? o->sites : "a,b", out));
    NEB_TRY(change_lines(o, out));
    NEB_TRY(change_sites(o, out));
    if (o->schedule) NEB_TRY(neb__lab_schedule_parse(o->schedule, out));
    if (o->mode) NEB_TRY(neb__lab_mode_parse(o->mode, &out->mode));
    if (o->ports) NEB_TRY(parse_ports(o->ports, out));
    if (o->seed) out->seed = (uint64_t)o->seed;
    if (o->mtu) out->mtu = (int)o->mtu;
    if (!o->offload) out->offload = false;
    return neb__lab_config_check(out);
}

/* Spells out every line of a file. */
static neb_status check(struct neb_call *call)
{
    struct neb_lab_config c = {0};
    NEB_TRY(neb__lab_config_load(call->words[0], &c));
    printf("%d sites, %d events, mtu %d, seed %" PRIu64 "\n", c.sites, c.events, c.mtu, c.seed);
    for (int i = 0; i < c.sites * c.sites; i++) {
        const struct neb_lab_line *l = &c.line[i];
        if (i / c.sites == i % c.sites) continue;
        printf("%s > %s: rate %g Mbit/s, delay %g ms, jitter %g ms, loss %g %%%s\n", c.site[i / c.sites].name,
               c.site[i % c.sites].name, l->rate * 1e-6, l->delay * 1e3, l->jitter * 1e3,
               (l->loss + l->burst_loss) * 100, l->down ? ", down" : "");
    }
    neb__lab_config_free(&c);
    return NEB_OK;
}

/* ---- the commands ------------------------------------------------------------------------------------------------ */

struct session {
    struct neb_lab *lab;
    const struct wan *opts;
    int sites, handle[NEB_LAB_SITES], status[NEB_LAB_SITES]; /* handle -1: none; status -1: runs */
    char **command[NEB_LAB_SITES], *shell[NEB_LAB_SITES][4];
};

/* Those of the file, by a shell. */
static neb_status file_commands(struct session *s, const struct neb_lab_config *cfg)
{
    static char shell[] = "/bin/sh", flag[] = "-c";
    for (int i = 0; i < s->sites; i++) {
        if (!cfg->site[i].command)
            return neb__fail(NEB_ERR_CONFIG,
                             "site '%s' has no command; commands stand behind -- or in the file",
                             cfg->site[i].name);
        char **c = s->shell[i];
        c[0] = shell, c[1] = flag, c[2] = cfg->site[i].command, c[3] = NULL;
        s->command[i] = c;
    }
    return NEB_OK;
}

static neb_status start_site(struct session *s, int i)
{
    struct neb_lab_command c = {.argv = s->command[i], .out = -1, .err = -1};
    if (s->opts->logs) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s.log", s->opts->logs, neb__lab_name(s->lab, i));
        c.out = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (c.out < 0) return neb__fail(NEB_ERR_IO, "%s: %s", path, strerror(errno));
        c.err = c.out;
    }
    neb_status status = neb__lab_start(s->lab, i, &c, &s->handle[i]);
    if (c.out >= 0) close(c.out);
    return status;
}

static int running(const struct session *s)
{
    int n = 0;
    for (int i = 0; i < s->sites; i++) n += s->handle[i] >= 0 && s->status[i] < 0;
    return n;
}

static bool done(const struct session *s)
{
    const char *until = s->opts->until;
    if (!strcmp(until, "all")) return running(s) == 0;
    if (!strcmp(until, "any")) return running(s) < s->sites;
    int site = neb__lab_find(s->lab, until);
    return site >= 0 && s->status[site] >= 0;
}

static void signal_all(struct session *s, int sig)
{
    for (int i = 0; i < s->sites; i++)
        if (s->handle[i] >= 0 && s->status[i] < 0) neb__lab_kill(s->lab, s->handle[i], sig);
}

static void collect(struct session *s, double seconds)
{
    for (int i = 0; i < s->sites; i++)
        if (s->handle[i] >= 0 && s->status[i] < 0 &&
            neb__lab_wait(s->lab, s->handle[i], seconds, &s->status[i]) == NEB_OK && s->status[i])
            fprintf(stderr, "wan: site %s ended with status %d\n", neb__lab_name(s->lab, i), s->status[i]);
}

/* Waits until all is done, or a signal stops it; commands that still run get TERM and, five seconds later, KILL. */
static void supervise(struct session *s)
{
    while (!done(s) && !signals) collect(s, 0.02);
    int seen = signals;
    int64_t since = neb__now_ns();
    signal_all(s, seen ? last_signal : SIGTERM);
    while (running(s) && signals == seen && neb__seconds_since(since) < 5) collect(s, 0.02);
    if (running(s)) signal_all(s, SIGKILL);
    while (running(s)) collect(s, 0.1);
}

static void print_stats(struct neb_lab *lab)
{
    fprintf(stderr, "%-24s %12s %14s %12s %10s %10s %8s %8s\n", "line", "packets", "bytes", "delivered",
            "lost", "overflow", "cut", "refused");
    for (int i = 0; i < neb__lab_sites(lab); i++)
        for (int j = 0; j < neb__lab_sites(lab); j++) {
            struct neb_lab_stats s;
            char name[2 * NEB_LAB_NAME + 4];
            if (i == j) continue;
            neb__lab_stats(lab, i, j, &s);
            snprintf(name, sizeof name, "%s > %s", neb__lab_name(lab, i), neb__lab_name(lab, j));
            fprintf(stderr,
                    "%-24s %12" PRIu64 " %14" PRIu64 " %12" PRIu64 " %10" PRIu64 " %10" PRIu64 " %8" PRIu64
                    " %8" PRIu64 "\n",
                    name, s.sent, s.sent_bytes, s.delivered, s.lost, s.overflowed, s.cut, s.refused);
        }
    fprintf(stderr, "forwarding took %.3f s of one core\n", neb__lab_cpu_seconds(lab));
}

/* The first failure in the order of the sites. Commands that the end of another one stopped don't count. */
static int exit_status(const struct session *s)
{
    int named = neb__lab_find(s->lab, s->opts->until);
    if (signals) return 128 + last_signal;
    if (named >= 0) return s->status[named];
    for (int i = 0; i < s->sites; i++)
        if (s->status[i] > 0 && (strcmp(s->opts->until, "any") || s->status[i] != 128 + SIGTERM))
            return s->status[i];
    return 0;
}

static void watch_signals(void)
{
    static const int list[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction a = {.sa_handler = on_signal};
    for (int i = 0; i < 3; i++) sigaction(list[i], &a, NULL);
}

static neb_status run_commands(const struct wan *o, struct neb_lab_config *cfg, char **argv, int *code)
{
    struct session s = {.opts = o, .sites = cfg->sites};
    NEB_TRY(argv ? neb__site_commands(argv, s.sites, s.command) : file_commands(&s, cfg));
    watch_signals();
    NEB_TRY(neb__lab_create(cfg, &s.lab));
    neb_status status = NEB_OK;
    for (int i = 0; i < s.sites; i++) s.handle[i] = s.status[i] = -1;
    if (strcmp(o->until, "all") && strcmp(o->until, "any") && neb__lab_find(s.lab, o->until) < 0)
        status = neb__fail(NEB_ERR_CONFIG, "option 'until': no site '%s'", o->until);
    for (int i = 0; status == NEB_OK && !signals && i < s.sites; i++) status = start_site(&s, i);
    if (status == NEB_OK) supervise(&s);
    if (status == NEB_OK && o->stats) print_stats(s.lab);
    if (status == NEB_OK) *code = exit_status(&s);
    neb__lab_destroy(s.lab);
    return status;
}

static neb_status run(struct neb_call *c)
{
    struct neb_lab_config cfg = {0};
    neb_status status = describe(c->options, c->n ? c->words[0] : NULL, &cfg);
    if (status == NEB_OK) status = run_commands(c->options, &cfg, c->command, &c->code);
    neb__lab_config_free(&cfg);
    return status;
}

static const struct neb_verb parts[] = {
    {.name = "run",
     .args = "[FILE] [options] [-- COMMAND [: COMMAND …]]",
     .help = "commands inside it",
     .most = 1,
     .run = run},
    {.name = "check",
     .args = "FILE",
     .help = "what a file says, every line spelled out",
     .least = 1,
     .most = 1,
     .run = check},
    {0},
};

const struct neb_verb neb__verb_wan = {
    .name = "wan",
    .args = "",
    .help = "a wide-area network on this machine, and commands inside it",
    .options = {{options, 0}},
    .size = sizeof(struct wan),
    .command = true,
    .parts = parts,
};
