/* bench_link.c: how well a link fills a line, beside iperf3 over the same line in the same run.
 *
 * For every cell (bandwidth, round-trip time, loss) a laboratory line is built. Two arms take turns over it:
 * two nodes of ours, one of which sends bulk data as fast as it can, and iperf3 with as many connections as
 * our link settled on. Both have the same time to warm up and the same measured time. Each figure is the
 * median over `repeat` turns. After the measured time of our turn, while the bulk data still flows, a small
 * control message leaves every 50 ms. Before that none leaves, so the CPU figure is that of
 * the data alone.
 *
 *     share.CELL     acknowledged payload as a share of the line's rate (TCP/IP headers alone take 3.5 %)
 *     iperf3.CELL    the same for iperf3's payload; ratio.CELL is ours over that
 *     control.CELL   99th percentile of the one-way delay of control messages, beyond the round-trip time
 * With --relay the second arm is our link once more, through a relay host at a third site. All lines are alike, so bytes
 * cross two of them, and the round trip is twice as long:
 *
 *     relayed.CELL   acknowledged payload as a share of the line's rate; relay-ratio.CELL is that over the direct link's
 *     relay-cpu.CELL seconds of the relay host per GB that it passes on
 *
 *     cpu.CELL       user + system seconds of both our processes per GB of payload; iperf3-cpu.CELL is that
 *                    of its two, which encrypt nothing */
#include "bench.h"
#include "link_sides.h"
#include "base/opts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { REPEAT_MAX = 15 };

struct cell {
    double mbit, rtt_ms, loss;
    bool quick;
    double share_target; /* 0: only reported */
};

static const struct cell cells[] = {
    {10, 10, 0, false, 0.92},  {10, 100, 0, true, 0.92},   {100, 10, 0, true, 0.92},
    {100, 50, 0, false, 0.92}, {100, 100, 0, false, 0.92}, {100, 100, 0.1, true, 0.92},
    {100, 100, 1, true, 0.85}, {1000, 10, 0, false, 0},    {1000, 100, 0, false, 0},
};

struct options {
    bool quick, sweep, relay;
    double warm, time;
    int64_t stripes, repeat;
    char *cell;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, quick, NEB_OPT_BOOL, "no", NULL, "measure four cells in under a minute"),
    NEB_OPT(struct options, cell, NEB_OPT_TEXT, "", NULL,
            "only the cells whose name contains this, such as 100mbit.10ms"),
    NEB_OPT(struct options, warm, NEB_OPT_TIME, "0", NULL,
            "warm-up before measuring (0: by the round-trip time)"),
    NEB_OPT(struct options, time, NEB_OPT_TIME, "0", NULL, "measured time (0: 10 s, quick 3 s)"),
    NEB_OPT(struct options, repeat, NEB_OPT_INT, "0", NULL, "turns; the median counts (0: 3, quick 1)"),
    NEB_OPT(struct options, stripes, NEB_OPT_INT, "0", NULL, "fixed number of stripes (0: adaptive)"),
    NEB_OPT(struct options, sweep, NEB_OPT_BOOL, "no", NULL, "also measure fixed numbers of stripes"),
    NEB_OPT(struct options, relay, NEB_OPT_BOOL, "no", NULL,
            "measure a link through a relay host beside a direct one, instead of iperf3"),
    NEB_OPT_END,
};

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
    neb__figures_add(f, name, value, unit, sense, target);
}

/* The results of one turn. Medians are taken field by field. */
struct turn {
    double share, iperf, ratio, stripes, control, cpu, iperf_cpu, loss;
};
enum { TURN_FIELDS = sizeof(struct turn) / sizeof(double) };

static double rate_of(const struct neb_link_result *r)
{
    return r->seconds > 0 ? 8 * (double)r->bytes / r->seconds : 0;
}

static void note(const struct cell *c, struct neb_link_result *r, struct neb_iperf_result iperf,
                 struct turn *out)
{
    int n = r->delays;
    qsort(r->delay, (size_t)n, sizeof *r->delay, by_value);
    double p99 = n ? r->delay[n * 99 / 100 < n ? n * 99 / 100 : n - 1] : 9;
    *out = (struct turn){.share = 100 * rate_of(r) / (c->mbit * 1e6),
                         .iperf = 100 * iperf.bps / (c->mbit * 1e6),
                         .ratio = iperf.bps > 0 ? rate_of(r) / iperf.bps : 0,
                         .stripes = r->stripes,
                         .control = 1e3 * p99 - c->rtt_ms,
                         .cpu = r->cpu / ((double)r->bytes * 1e-9),
                         .iperf_cpu = iperf.cpu,
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
    if (t->iperf > 0) figure(f, "iperf3-cpu", name, t->iperf_cpu, "s/GB", NEB_REPORT, 0);
    figure(f, "loss", name, t->loss, "% resent", NEB_REPORT, 0);
}

static void cell_name(const struct cell *c, char out[64])
{
    snprintf(out, 64, "%gmbit.%gms.loss%g%%", c->mbit, c->rtt_ms, c->loss);
}

/* The adaptive number against fixed ones. */
static int sweep(struct neb_lab *lab, const struct cell *c, const struct options *o, const char *name,
                 struct neb_figures *f, struct neb_link_result *r)
{
    static const int fixed[] = {1, 2, 4, 8, 16};
    struct neb_link_plan plan = {.warm = 4, .time = o->time > 0 ? o->time : 10};
    double best = 0;
    for (int i = 0; i < 5; i++) {
        if (neb__link_run(lab, &plan, fixed[i], r)) return 1;
        char what[32];
        snprintf(what, sizeof what, "fixed%d", fixed[i]);
        figure(f, what, name, rate_of(r) / c->mbit / 1e4, "%", NEB_REPORT, 0);
        if (rate_of(r) > best) best = rate_of(r);
    }
    plan.warm = o->warm > 0 ? o->warm : 25;
    if (neb__link_run(lab, &plan, 0, r)) return 1;
    figure(f, "adaptive", name, rate_of(r) / best, "of best fixed", NEB_AT_LEAST, 0.95);
    figure(f, "stripes", name, r->stripes, "", NEB_REPORT, 0);
    return 0;
}

static int compare(struct neb_lab *lab, const struct cell *c, const struct options *o, const char *name,
                   struct neb_figures *f, struct neb_link_result *r)
{
    struct neb_link_plan plan = {.warm = o->warm > 0       ? o->warm
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
        if (neb__link_run(lab, &plan, (int)o->stripes, r)) return 1;
        note(c, r, neb__iperf_run(lab, &plan, r->stripes > 0 ? r->stripes : 1), &turns[i]);
    }
    middle = median(turns, repeat);
    report(f, c, name, &middle);
    return 0;
}

/* The two arms take turns; the median over them counts. */
static int compare_relayed(struct neb_lab *lab, const struct cell *c, const struct options *o,
                           const char *name, struct neb_figures *f, struct neb_link_result *r)
{
    struct neb_link_host host;
    struct neb_link_plan plan = {.warm = o->warm > 0 ? o->warm : 5, .time = o->time > 0 ? o->time : 10};
    double value[4][REPEAT_MAX];
    int repeat = o->repeat > 0 && o->repeat < REPEAT_MAX ? (int)o->repeat : 3, rc = 0;
    if (neb__link_host_start(lab, 2, &host) != NEB_OK) return 1;
    for (int i = 0; i < repeat && !rc; i++) {
        plan.host = NULL;
        rc = neb__link_run(lab, &plan, (int)o->stripes, r);
        value[0][i] = 100 * rate_of(r) / (c->mbit * 1e6);
        plan.host = &host;
        if (!rc) rc = neb__link_run(lab, &plan, (int)o->stripes, r);
        value[1][i] = 100 * rate_of(r) / (c->mbit * 1e6);
        value[2][i] = value[1][i] / value[0][i];
        value[3][i] = r->host_cpu / ((double)r->bytes * 1e-9);
    }
    neb__link_host_end(lab, &host);
    for (int k = 0; k < 4; k++) qsort(value[k], (size_t)repeat, sizeof **value, by_value);
    if (rc) return rc;
    figure(f, "share", name, value[0][repeat / 2], "%", NEB_REPORT, 0);
    figure(f, "relayed", name, value[1][repeat / 2], "%", NEB_REPORT, 0);
    figure(f, "relay-ratio", name, value[2][repeat / 2], "", NEB_AT_LEAST, 0.95);
    figure(f, "relay-cpu", name, value[3][repeat / 2], "s/GB", NEB_AT_MOST, 0.5);
    return 0;
}

static int run_cell(const struct cell *c, const struct options *o, struct neb_figures *f,
                    struct neb_link_result *r)
{
    struct neb_lab_line line = {.rate = c->mbit * 1e6, .delay = c->rtt_ms * 0.5e-3, .loss = c->loss / 100};
    struct neb_lab_config cfg;
    struct neb_lab *lab;
    char name[64];
    cell_name(c, name);
    if (neb__lab_config_init(o->relay ? 3 : 2, NULL, &line, &cfg) != NEB_OK) return 1;
    cfg.offload = true;
    neb_status status = neb__lab_create(&cfg, &lab);
    neb__lab_config_free(&cfg);
    if (status != NEB_OK) return 1;
    int (*measure)(struct neb_lab *, const struct cell *, const struct options *, const char *,
                   struct neb_figures *, struct neb_link_result *) = compare;
    if (o->sweep) measure = sweep;
    if (o->relay) measure = compare_relayed;
    int rc = measure(lab, c, o, name, f, r);
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
    struct neb_link_result *r =
        mmap(NULL, sizeof *r, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
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
                                          run, table};
