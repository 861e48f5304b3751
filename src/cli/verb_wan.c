/* verb_wan.c: `nebula-i wan`: a wide-area network on this machine, and commands inside it.
 *
 *     nebula-i wan run --wan 100mbit,50ms,0.1% -- iperf3 -s -1 : iperf3 -c a
 *
 * One command for every site, or one for all; `:` alone stands between two. The exit status is that of the first site
 * whose command failed. INT, TERM and HUP are passed on to the commands; five seconds later, or at a second signal,
 * they are killed.
 */
#include "cli/verb.h"
#include "net/lab/lab.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/opts.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct wan {
    char *wan, *back, *sites, *mode, *ports, *until, *logs;
    int64_t seed, mtu;
    bool stats, offload;
};

static const struct neb_opt options[] = {
    NEB_OPT(struct wan, wan, NEB_OPT_TEXT, "", NULL, "every line: RATE,RTT,LOSS such as 100mbit,50ms,0.1%"),
    NEB_OPT(struct wan, back, NEB_OPT_TEXT, "", NULL,
            "lines to an earlier site, if they differ: RATE,RTT,LOSS"),
    NEB_OPT(struct wan, sites, NEB_OPT_TEXT, "a,b", NULL, "their names"),
    NEB_OPT(struct wan, mode, NEB_OPT_TEXT, "auto", NULL, "auto, namespaces, user or relay"),
    NEB_OPT(struct wan, ports, NEB_OPT_TEXT, "", NULL, "TCP ports that a relay carries: 7000,5201"),
    NEB_OPT(struct wan, mtu, NEB_OPT_INT, "1500", "bytes", "largest IP packet"),
    NEB_OPT(struct wan, seed, NEB_OPT_INT, "1", NULL, "of loss, jitter and reordering"),
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

static int usage(FILE *to)
{
    fprintf(to, "usage: nebula-i wan run [options] -- COMMAND [: COMMAND …]\n\n");
    neb__opts_help(options, to);
    return to == stdout ? 0 : 2;
}

/* ---- the description --------------------------------------------------------------------------------------------- */

static neb_status parse_mode(const char *text, enum neb_lab_mode *out)
{
    for (enum neb_lab_mode m = NEB_LAB_AUTO; m <= NEB_LAB_RELAY; m++)
        if (!strcmp(text, neb__lab_mode_name(m))) {
            *out = m;
            return NEB_OK;
        }
    return neb__fail(NEB_ERR_CONFIG, "option 'mode': '%s' is not auto, namespaces, user or relay", text);
}

static neb_status parse_ports(const char *text, struct neb_lab_config *cfg)
{
    char copy[512], *rest = copy, *part;
    snprintf(copy, sizeof copy, "%s", text);
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

static neb_status describe(const struct wan *o, struct neb_lab_config *out)
{
    struct neb_lab_line line = {0}, back;
    const char *names[NEB_LAB_SITES];
    char list[NEB_LAB_SITES * NEB_LAB_NAME], *rest = list;
    int n = 0;
    snprintf(list, sizeof list, "%s", o->sites);
    for (char *name; n < NEB_LAB_SITES && (name = strsep(&rest, ","));) names[n++] = name;
    if (o->wan) NEB_TRY(neb__lab_line_parse(o->wan, &line));
    back = line;
    if (o->back) NEB_TRY(neb__lab_line_parse(o->back, &back));
    enum neb_lab_mode mode = NEB_LAB_AUTO;
    NEB_TRY(parse_mode(o->mode, &mode));
    NEB_TRY(neb__lab_config_init(n, names, &line, out));
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++) out->line[i * n + j] = back;
    out->mode = mode;
    out->seed = (uint64_t)o->seed;
    out->mtu = (int)o->mtu;
    out->offload = o->offload;
    return o->ports ? parse_ports(o->ports, out) : NEB_OK;
}

/* ---- the commands ------------------------------------------------------------------------------------------------ */

struct session {
    struct neb_lab *lab;
    const struct wan *opts;
    int sites, handle[NEB_LAB_SITES], status[NEB_LAB_SITES]; /* handle -1: none; status -1: runs */
    char **command[NEB_LAB_SITES];
};

/* Cuts argv at each lone `:`, in place. argv[argc] is NULL. */
static neb_status split_commands(struct session *s, char **argv)
{
    int n = 0;
    char **begin = argv;
    for (char **a = argv;; a++) {
        if (*a && strcmp(*a, ":")) continue;
        if (a == begin) return neb__fail(NEB_ERR_CONFIG, "an empty command");
        if (n == s->sites) return neb__fail(NEB_ERR_CONFIG, "more commands than the %d sites", s->sites);
        s->command[n++] = begin;
        begin = a + 1;
        if (!*a) break;
        *a = NULL;
    }
    if (n != 1 && n != s->sites) return neb__fail(NEB_ERR_CONFIG, "%d commands for %d sites", n, s->sites);
    for (int i = n; i < s->sites; i++) s->command[i] = s->command[0];
    return NEB_OK;
}

static neb_status start_site(struct session *s, int i)
{
    struct neb_lab_command c = {.argv = s->command[i], .out = -1, .err = -1};
    if (s->opts->logs) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s.log", s->opts->logs, neb__lab_name(s->lab, i));
        c.out = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        if (c.out < 0) return neb__fail(NEB_ERR_IO, "%s: %s", path, strerror(errno));
        c.err = c.out;
    }
    neb_status st = neb__lab_start(s->lab, i, &c, &s->handle[i]);
    if (c.out >= 0) close(c.out);
    return st;
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

/* Until all is done, or stopped by a signal; what is left then gets TERM and, five seconds later, KILL. */
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

static int run_commands(const struct wan *o, struct neb_lab_config *cfg, char **argv)
{
    struct session s = {.opts = o, .sites = cfg->sites};
    if (split_commands(&s, argv) != NEB_OK) return 2;
    watch_signals();
    if (neb__lab_create(cfg, &s.lab) != NEB_OK) return 1;
    neb_status st = NEB_OK;
    for (int i = 0; i < s.sites; i++) s.handle[i] = s.status[i] = -1;
    if (strcmp(o->until, "all") && strcmp(o->until, "any") && neb__lab_find(s.lab, o->until) < 0)
        st = neb__fail(NEB_ERR_CONFIG, "option 'until': no site '%s'", o->until);
    for (int i = 0; st == NEB_OK && !signals && i < s.sites; i++) st = start_site(&s, i);
    if (st == NEB_OK) supervise(&s);
    if (st == NEB_OK && o->stats) print_stats(s.lab);
    int code = st == NEB_OK ? exit_status(&s) : 1;
    neb__lab_destroy(s.lab);
    return code;
}

static int run(int argc, char **argv)
{
    struct wan o;
    struct neb_lab_config cfg = {0};
    int ours = 0, positional, code = 2;
    while (ours < argc && strcmp(argv[ours], "--")) ours++;
    if (argc < 1) return usage(stderr);
    for (int i = 0; i < ours; i++)
        if (!strcmp(argv[i], "--help")) return usage(stdout);
    if (strcmp(argv[0], "run")) {
        fprintf(stderr, "nebula-i wan: no '%s'\n", argv[0]);
        return usage(stderr);
    }
    if (neb__opts_init(options, &o) != NEB_OK) return 1;
    if (neb__opts_args(options, &o, ours - 1, argv + 1, &positional) == NEB_OK) {
        if (ours == argc)
            fprintf(stderr, "nebula-i wan run: no command; they stand behind --\n");
        else if (describe(&o, &cfg) == NEB_OK)
            code = run_commands(&o, &cfg, argv + ours + 1);
    }
    neb__lab_config_free(&cfg);
    neb__opts_free(options, &o);
    return code;
}

const struct neb_verb neb__verb_wan = {"wan", "run [options] -- COMMAND [: COMMAND …]",
                                       "a wide-area network on this machine, and commands inside it", run};
