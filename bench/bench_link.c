/* bench_link.c: what a link gets out of a line, beside iperf3 over the same line in the same run.
 *
 * For every cell (bandwidth, round-trip time, loss) a laboratory line is built. Over it, by turns: two nodes of ours, one of
 * which sends bulk data as fast as it goes; iperf3 with as many connections as our link settled on. Both get the same time
 * to warm up and the same time to be measured, and each figure is the median over `repeat` turns. Behind the measured time
 * of our turn, with the bulk data still going, a small control message leaves every 50 ms; before that there are none, so
 * that the CPU's figure is that of the data alone.
 *
 *     share.CELL     acknowledged payload as a share of the line's rate (TCP/IP headers alone take 3.5 %)
 *     iperf3.CELL    the same for iperf3's payload; ratio.CELL is ours over that
 *     control.CELL   99th percentile of the one-way delay of control messages, beyond the round-trip time
 *     cpu.CELL       user + system seconds of both our processes per GB of payload */
#include "bench.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/opts.h"
#include "net/lab/lab.h"
#include "net/net.h"

#include <fcntl.h>
#include <jansson.h>
#include <nebula/log.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MESSAGE = 4 << 20, DELAYS_MAX = 1024, QUEUE_AHEAD = 6, REPEAT_MAX = 15 };

struct cell {
    double mbit, rtt_ms, loss;
    bool quick;
    double share_target; /* 0: only reported */
};

static const struct cell cells[] = {
    {10, 10, 0, false, 0.92},   {10, 100, 0, true, 0.92},    {100, 10, 0, true, 0.92},
    {100, 100, 0, false, 0.92}, {100, 100, 0.1, true, 0.92}, {100, 100, 1, true, 0.85},
    {1000, 10, 0, false, 0},    {1000, 100, 0, false, 0},
};

struct options {
    bool quick, sweep;
    double warm, time;
    int64_t stripes, repeat;
    char *cell;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, quick, NEB_OPT_BOOL, "no", NULL, "four cells in under a minute"),
    NEB_OPT(struct options, cell, NEB_OPT_TEXT, "", NULL,
            "only the cells whose name contains this, such as 100mbit.10ms"),
    NEB_OPT(struct options, warm, NEB_OPT_TIME, "0", NULL, "before measuring (0: by the round-trip time)"),
    NEB_OPT(struct options, time, NEB_OPT_TIME, "0", NULL, "measured (0: 10 s, quick 3 s)"),
    NEB_OPT(struct options, repeat, NEB_OPT_INT, "0", NULL,
            "turns of which the median counts (0: 3, quick 1)"),
    NEB_OPT(struct options, stripes, NEB_OPT_INT, "0", NULL, "fixed number of stripes (0: adaptive)"),
    NEB_OPT(struct options, sweep, NEB_OPT_BOOL, "no", NULL,
            "fixed numbers of stripes beside the adaptive one"),
    NEB_OPT_END,
};

/* Whole seconds, as iperf3 takes them. */
struct plan {
    double warm, time, control;
};

/* Shared by the processes of one measurement. */
struct result {
    volatile int measuring, probing, stop;
    double seconds;
    uint64_t bytes;
    int stripes;
    double cpu[2];
    int delays;
    double delay[DELAYS_MAX];
    double rtt, loss;
};

struct side {
    struct result *r;
    char dir[256];
    struct plan plan;
    int stripes;
    struct neb_net *net;
    struct neb_net_timer *timer;
    uint8_t *data;
    int ahead;
    int64_t began, first_at, last_at, control_at;
    uint64_t first_bytes, last_bytes;
    double cpu_then;
};

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

/* ---- the sender -------------------------------------------------------------------------------------------------- */

static void keep_busy(struct side *s);

static void bulk_sent(void *arg, neb_status status)
{
    struct side *s = arg;
    s->ahead--;
    if (status == NEB_OK) keep_busy(s);
}

static void keep_busy(struct side *s)
{
    while (s->ahead < QUEUE_AHEAD &&
           neb__net_send(s->net, 2, NEB_BULK, 1, s->data, MESSAGE, bulk_sent, s) == NEB_OK)
        s->ahead++;
}

static void send_control(struct side *s, int64_t now)
{
    uint8_t m[16];
    if (now - s->control_at < 45000000) return;
    s->control_at = now;
    memcpy(m, &now, 8);
    memset(m + 8, 0, 8);
    neb__net_send_copy(s->net, 2, NEB_CONTROL, 2, m, sizeof m, NULL, NULL);
}

/* Between the first and the last acknowledgement seen in the measured time, so that whole chunks do not blur it. */
static void measure(struct side *s, int64_t now, const struct neb_line *line)
{
    if (!s->first_at && line->bytes_out != s->first_bytes) {
        s->first_at = s->last_at = now;
        s->first_bytes = s->last_bytes = line->bytes_out;
        s->cpu_then = cpu_seconds();
        s->r->measuring = 1;
    }
    if (line->bytes_out != s->last_bytes) {
        s->last_bytes = line->bytes_out;
        s->last_at = now;
    }
}

static void measured(struct side *s, const struct neb_line *line)
{
    struct result *r = s->r;
    r->cpu[0] = cpu_seconds() - s->cpu_then;
    r->seconds = (double)(s->last_at - s->first_at) * 1e-9;
    r->bytes = s->last_bytes - s->first_bytes;
    r->stripes = line->stripes;
    r->loss = line->loss;
    r->measuring = 0;
    r->probing = 1;
}

/* Seconds until the next look: often where the measured time begins and ends, for these looks are paid for too. */
static double next_look(const struct side *s, double t)
{
    double end = s->plan.warm + s->plan.time;
    if (t >= end) return 0.05;
    return t < s->plan.warm - 0.15 || (s->first_at && t < end - 0.4) ? 0.1 : 0.01;
}

static void watch(void *arg)
{
    struct side *s = arg;
    struct neb_line line = {0};
    int64_t now = neb__now_ns();
    bool up = neb__net_is_up(s->net, 2);
    if (up && !s->began) s->began = now;
    double t = s->began ? (double)(now - s->began) * 1e-9 : 0, end = s->plan.warm + s->plan.time;
    if (up) {
        keep_busy(s);
        neb__net_line(s->net, 2, &line);
        if (t < s->plan.warm)
            s->first_bytes = line.bytes_out;
        else if (t < end)
            measure(s, now, &line);
        else if (!s->r->probing)
            measured(s, &line);
        else
            send_control(s, now);
    }
    if (t > end + s->plan.control) {
        s->r->stop = 1;
        neb__net_stop(s->net);
        return;
    }
    neb__net_timer_stop(s->timer);
    s->timer = NULL;
    if (neb__net_timer_start(s->net, next_look(s, t), 0, watch, s, &s->timer) != NEB_OK)
        neb__net_stop(s->net);
}

/* ---- the receiver ------------------------------------------------------------------------------------------------ */

static neb_status got_message(void *arg, struct neb_message *m)
{
    struct side *s = arg;
    int64_t then;
    if (m->kind != 2 || m->size != 16 || !s->r->probing || s->r->delays == DELAYS_MAX) return NEB_OK;
    memcpy(&then, m->data, 8);
    s->r->delay[s->r->delays++] = (double)(neb__now_ns() - then) * 1e-9;
    return NEB_OK;
}

static void watch_stop(void *arg)
{
    struct side *s = arg;
    if (s->r->measuring && s->cpu_then == 0) s->cpu_then = cpu_seconds();
    if (s->r->probing && s->r->cpu[1] == 0) s->r->cpu[1] = cpu_seconds() - s->cpu_then;
    if (s->r->stop) neb__net_stop(s->net);
}

static int node_main(void *arg)
{
    struct side *s = arg;
    static const struct neb_net_events events = {.message = got_message};
    struct neb_net_config cfg = NEB_NET_CONFIG;
    struct neb_site *site;
    neb_log_set_level(getenv("NEBULA_LOG") ? NEB_LOG_INFO : NEB_LOG_WARN);
    if (neb__site_open(s->dir, &site) != NEB_OK) return 1;
    cfg.site = site;
    cfg.events = &events;
    cfg.arg = s;
    cfg.stripes = s->stripes;
    cfg.stripes_max = 32;
    bool sender = strstr(s->dir, "/a") != NULL;
    s->data = neb__calloc(MESSAGE, 1);
    if (!s->data || neb__net_open(&cfg, &s->net) != NEB_OK) return 1;
    neb__net_timer_start(s->net, 0.02, sender ? 0 : 0.1, sender ? watch : watch_stop, s, &s->timer);
    neb__net_run(s->net);
    neb__net_close(s->net);
    neb__site_close(site);
    neb__free(s->data);
    return 0;
}

/* ---- one cell ---------------------------------------------------------------------------------------------------- */

static neb_status make_sites(const char *dir, struct neb_lab *lab)
{
    struct neb_member members[2];
    struct neb_chain *chain = NULL;
    char path[300], identity[NEB_IDENTITY_SIZE];
    memset(members, 0, sizeof members);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%c", dir, 'a' + i);
        NEB_TRY(neb__site_init(path, i ? "b" : "a", identity));
        NEB_TRY(neb__site_identity(path, members[i].name, &members[i].key));
        members[i].votes = members[i].addresses = 1;
        snprintf(members[i].address[0], NEB_ADDRESS_SIZE, "%s:7400", neb__lab_address(lab, i, i));
    }
    NEB_TRY(neb__chain_create(&members[0].key, NULL, 0, &(struct neb_roster){members, 2}, &chain));
    neb_status s = NEB_OK;
    for (int i = 0; i < 2 && s == NEB_OK; i++) {
        snprintf(path, sizeof path, "%s/%c", dir, 'a' + i);
        s = neb__site_roster_save(path, chain);
    }
    neb__chain_free(chain);
    return s;
}

static void remove_dir(const char *dir)
{
    static const char *const files[] = {"site.key", "site.id", "lock", "incarnation", "roster", ""};
    char path[400];
    for (int i = 0; i < 2; i++)
        for (int f = 0; f < 6; f++) {
            snprintf(path, sizeof path, "%s/%c/%s", dir, 'a' + i, files[f]);
            remove(path);
        }
    remove(dir);
}

static int run_link(struct neb_lab *lab, const struct plan *plan, int stripes, struct result *r)
{
    char dir[] = "/tmp/nebula-bench-XXXXXX";
    struct side side[2];
    int handle[2] = {-1, -1}, status[2] = {1, 1};
    memset(r, 0, sizeof *r);
    memset(side, 0, sizeof side);
    if (!mkdtemp(dir) || make_sites(dir, lab) != NEB_OK) return 1;
    for (int i = 1; i >= 0; i--) {
        side[i].r = r, side[i].plan = *plan, side[i].stripes = stripes;
        snprintf(side[i].dir, sizeof side[i].dir, "%s/%c", dir, 'a' + i);
        struct neb_lab_command c = {.out = -1, .err = -1, .fn = node_main, .arg = &side[i]};
        if (neb__lab_start(lab, i, &c, &handle[i]) != NEB_OK) return 1;
        if (i) usleep(100000); /* it listens before the other dials */
    }
    for (int i = 0; i < 2; i++)
        if (neb__lab_wait(lab, handle[i], plan->warm + plan->time + plan->control + 20, &status[i]) != NEB_OK)
            neb__lab_kill(lab, handle[i], 9);
    remove_dir(dir);
    return status[0] || status[1];
}

/* From the server's intervals: what arrived in which time. (The summary's seconds are the sender's, while the bytes include
 * what was still on the way when it stopped.) The last interval is a remainder and left out. */
static double iperf_result(const char *path)
{
    json_error_t e;
    json_t *root = json_load_file(path, 0, &e), *list = json_object_get(root, "intervals");
    double bytes = 0, seconds = 0;
    for (size_t i = 0; i + 1 < json_array_size(list); i++) {
        json_t *sum = json_object_get(json_array_get(list, i), "sum");
        if (json_is_true(json_object_get(sum, "omitted"))) continue;
        bytes += json_number_value(json_object_get(sum, "bytes"));
        seconds += json_number_value(json_object_get(sum, "seconds"));
    }
    json_decref(root);
    return seconds > 0 ? 8 * bytes / seconds : 0;
}

/* Bits per second; 0 when it could not be had (iperf3 is not installed, say). */
static double run_iperf(struct neb_lab *lab, const struct plan *plan, int streams)
{
    char out[] = "/tmp/nebula-iperf-XXXXXX", t[16], o[16], p[16];
    const char *server[] = {"iperf3", "-s", "-1", "-J", NULL};
    const char *client[] = {"iperf3", "-c", neb__lab_address(lab, 0, 1), "-J", "-t", t, "-O", o, "-P",
                            p,        NULL};
    int fd = mkstemp(out), null = open("/dev/null", O_RDWR), a, b, status;
    snprintf(t, sizeof t, "%d", (int)(plan->time + 0.5));
    snprintf(o, sizeof o, "%d", (int)(plan->warm + 0.5));
    snprintf(p, sizeof p, "%d", streams);
    struct neb_lab_command cb = {.argv = (char *const *)(uintptr_t)server, .out = fd, .err = null},
                           ca = {.argv = (char *const *)(uintptr_t)client, .out = null, .err = null};
    double bps = 0;
    if (neb__lab_start(lab, 1, &cb, &b) == NEB_OK) {
        usleep(300000);
        if (neb__lab_start(lab, 0, &ca, &a) == NEB_OK &&
            neb__lab_wait(lab, a, plan->warm + plan->time + 20, &status) == NEB_OK)
            if (neb__lab_wait(lab, b, 5, &status) != NEB_OK)
                neb__lab_kill(lab, b, 9); /* it reports when it is over */
        bps = iperf_result(out);
    }
    close(fd);
    close(null);
    remove(out);
    return bps;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void figure(struct neb_figures *f, const char *what, const char *cell, double value, const char *unit,
                   enum neb_figure_sense sense, double target)
{
    char name[112];
    snprintf(name, sizeof name, "%.31s.%s", what, cell);
    neb__figure(f, name, value, unit, sense, target);
}

/* What one turn gave; medians are taken field by field. */
struct turn {
    double share, iperf, ratio, stripes, control, cpu, loss;
};
enum { TURN_FIELDS = sizeof(struct turn) / sizeof(double) };

static double rate_of(const struct result *r)
{
    return r->seconds > 0 ? 8 * (double)r->bytes / r->seconds : 0;
}

static void note(const struct cell *c, struct result *r, double iperf, struct turn *out)
{
    int n = r->delays;
    qsort(r->delay, (size_t)n, sizeof *r->delay, by_value);
    double p99 = n ? r->delay[n * 99 / 100 < n ? n * 99 / 100 : n - 1] : 9;
    *out = (struct turn){.share = 100 * rate_of(r) / (c->mbit * 1e6),
                         .iperf = 100 * iperf / (c->mbit * 1e6),
                         .ratio = iperf > 0 ? rate_of(r) / iperf : 0,
                         .stripes = r->stripes,
                         .control = 1e3 * p99 - c->rtt_ms,
                         .cpu = (r->cpu[0] + r->cpu[1]) / ((double)r->bytes * 1e-9),
                         .loss = 100 * r->loss};
}

static struct turn median(const struct turn *turns, int n)
{
    struct turn out;
    double values[REPEAT_MAX];
    for (int f = 0; f < TURN_FIELDS; f++) {
        for (int i = 0; i < n; i++) values[i] = ((const double *)&turns[i])[f];
        qsort(values, (size_t)n, sizeof *values, by_value);
        ((double *)&out)[f] = n % 2 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
    }
    return out;
}

static void report(struct neb_figures *f, const struct cell *c, const char *name, const struct turn *t)
{
    bool bar = c->share_target > 0;
    figure(f, "share", name, t->share, "%", bar ? NEB_AT_LEAST : NEB_REPORT, 100 * c->share_target);
    figure(f, "iperf3", name, t->iperf, "%", NEB_REPORT, 0);
    if (t->iperf > 0) figure(f, "ratio", name, t->ratio, "", NEB_AT_LEAST, 1);
    figure(f, "stripes", name, t->stripes, "", NEB_REPORT, 0);
    figure(f, "control", name, t->control, "ms over RTT", NEB_AT_MOST, 20);
    figure(f, "cpu", name, t->cpu, "s/GB", NEB_AT_MOST, 1.5);
    figure(f, "loss", name, t->loss, "% resent", NEB_REPORT, 0);
}

static void cell_name(const struct cell *c, char out[64])
{
    snprintf(out, 64, "%gmbit.%gms.loss%g%%", c->mbit, c->rtt_ms, c->loss);
}

/* The adaptive number against fixed ones. */
static int sweep(struct neb_lab *lab, const struct cell *c, const struct options *o, const char *name,
                 struct neb_figures *f, struct result *r)
{
    static const int fixed[] = {1, 2, 4, 8, 16};
    struct plan plan = {.warm = 4, .time = o->time > 0 ? o->time : 10};
    double best = 0;
    for (int i = 0; i < 5; i++) {
        if (run_link(lab, &plan, fixed[i], r)) return 1;
        char what[32];
        snprintf(what, sizeof what, "fixed%d", fixed[i]);
        figure(f, what, name, rate_of(r) / c->mbit / 1e4, "%", NEB_REPORT, 0);
        if (rate_of(r) > best) best = rate_of(r);
    }
    plan.warm = o->warm > 0 ? o->warm : 25;
    if (run_link(lab, &plan, 0, r)) return 1;
    figure(f, "adaptive", name, rate_of(r) / best, "of best fixed", NEB_AT_LEAST, 0.95);
    figure(f, "stripes", name, r->stripes, "", NEB_REPORT, 0);
    return 0;
}

static int compare(struct neb_lab *lab, const struct cell *c, const struct options *o, const char *name,
                   struct neb_figures *f, struct result *r)
{
    struct plan plan = {.warm = o->warm > 0       ? o->warm
                                : o->quick        ? 3
                                : c->mbit >= 1000 ? 10
                                                  : 5,
                        .time = o->time > 0 ? o->time
                                : o->quick  ? 3
                                            : 10,
                        .control = o->quick ? 2 : 5};
    struct turn turns[REPEAT_MAX], middle;
    int repeat = o->repeat > 0 ? (int)o->repeat : o->quick ? 1 : 3;
    if (repeat > REPEAT_MAX) repeat = REPEAT_MAX;
    for (int i = 0; i < repeat; i++) {
        if (run_link(lab, &plan, (int)o->stripes, r)) return 1;
        note(c, r, run_iperf(lab, &plan, r->stripes > 0 ? r->stripes : 1), &turns[i]);
    }
    middle = median(turns, repeat);
    report(f, c, name, &middle);
    return 0;
}

static int run_cell(const struct cell *c, const struct options *o, struct neb_figures *f, struct result *r)
{
    struct neb_lab_line line = {.rate = c->mbit * 1e6, .delay = c->rtt_ms * 0.5e-3, .loss = c->loss / 100};
    struct neb_lab_config cfg;
    struct neb_lab *lab;
    char name[64];
    cell_name(c, name);
    if (neb__lab_config_init(2, NULL, &line, &cfg) != NEB_OK) return 1;
    cfg.offload = true;
    neb_status s = neb__lab_create(&cfg, &lab);
    neb__lab_config_free(&cfg);
    if (s != NEB_OK) return 1;
    int rc = o->sweep ? sweep(lab, c, o, name, f, r) : compare(lab, c, o, name, f, r);
    neb__lab_destroy(lab);
    return rc;
}

static int run(int argc, char **argv)
{
    struct options o;
    bool json = neb__bench_json(&argc, argv);
    int n = 0, rc = 0;
    if (neb__opts_init(table, &o) != NEB_OK) return 1;
    if (neb__opts_args(table, &o, argc, argv, &n) != NEB_OK || n) {
        neb__opts_help(table, stderr);
        neb__opts_free(table, &o);
        return 2;
    }
    struct result *r = mmap(NULL, sizeof *r, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct neb_figures *f = neb__figures_begin("link", json);
    if (r == MAP_FAILED || !f) return 1;
    for (size_t i = 0; i < sizeof cells / sizeof *cells && !rc; i++) {
        char name[64];
        cell_name(&cells[i], name);
        if (o.cell ? !strstr(name, o.cell) : o.quick && !cells[i].quick) continue;
        rc = run_cell(&cells[i], &o, f, r);
    }
    munmap(r, sizeof *r);
    neb__opts_free(table, &o);
    int end = neb__figures_end(f);
    return rc ? rc : end;
}

const struct neb_bench neb__bench_link = {"link", "goodput of a link over laboratory lines, beside iperf3",
                                          run};
