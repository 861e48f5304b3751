/* bench_round.c: the cost of rounds: whole sessions (links, ledger, codec, outer state) in the laboratory,
 * without a model.
 *
 * Every site is a process with a vector of parameters. Its step changes some of them by noise and takes two
 * milliseconds, so only the line, or this machine, limits how soon the next round follows. Each site has an
 * access line of its own, which all its links share, as the what-if mode of the simulator assumes.
 *
 *     small.commits     records a second for one small fragment on a fast line
 *     step.idle         nanoseconds of a neb_step() when nothing is due; step.share: of a step of one
 *                       millisecond
 *     CASE.seconds      seconds of a round: every fragment once
 *     CASE.bytes        bytes of the updates that a site sends in a round
 *     CASE.line         the reached share of the line's limit for these bytes
 *     CASE.encode, CASE.apply   seconds a round on the session's own thread, with waiting for the disk
 *     CASE.cpu.merge, .driver, .links   processor seconds a round and site: of neb_step(), the session's
 *                                       thread, the links'
 *     CASE.memory       most bytes a parameter that a site needs beyond the parameters themselves
 *     CASE.busy         seconds a round in which the busiest session's own thread had work, with waiting for
 *                       the disk
 *     CASE.what_if      the simulator's forecast of the seconds, from the line and from `busy`, over the
 *                       measured ones; what_if.line: from the line alone */
#include "bench.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/opts.h"
#include "base/rng.h"
#include "net/lab/lab.h"
#include "seal/site.h"
#include "sim/sim.h"

#include <math.h>
#include <nebula/log.h>
#include <nebula/nebula.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SITES_MAX = 8, PARTS = 160 };
enum { CPU_MERGE, CPU_DRIVER, CPU_LINKS, CPU };
static const char *const cpu_names[CPU] = {"cpu.merge", "cpu.driver", "cpu.links"};

struct options {
    char *only;
    double time;
    int64_t fragments;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, only, NEB_OPT_TEXT, "", NULL,
            "only the cases whose name contains this, such as 25m.2"),
    NEB_OPT(struct options, time, NEB_OPT_TIME, "0", NULL,
            "measured time of each case (0: about four rounds)"),
    NEB_OPT(struct options, fragments, NEB_OPT_INT, "16", NULL, "parts of the model"),
    NEB_OPT_END,
};

struct round_case {
    const char *name;
    int sites;
    double params, mbit, rtt; /* mbit 0: no limit */
    double share;             /* target share of the line; 0: only reported */
    double rounds;            /* to measure */
};

static const struct round_case cases[] = {
    {"small", 2, 4096, 0, 0.001, 0, 0},      {"25m.2", 2, 25e6, 100, 0.05, 0.9, 5},
    {"25m.3", 3, 25e6, 100, 0.05, 0.9, 4},   {"25m.4", 4, 25e6, 100, 0.05, 0.9, 3},
    {"124m.2", 2, 124e6, 100, 0.05, 0.9, 3},
};

/* Shared by the processes of one case. */
struct shared {
    volatile int stop, failed;
    struct {
        volatile int64_t records, out; /* applied; bytes of updates sent */
        volatile double cpu[CPU];      /* seconds so far */
        volatile double busy;          /* of the session's own thread, waiting for the disk included */
        double memory, idle;           /* bytes beyond the parameters; seconds of an idle step */
        double encode, apply;          /* seconds spent on the session's own thread, in all */
        int64_t total;                 /* records, in all */
    } site[SITES_MAX];
};

struct member {
    struct shared *shared;
    const struct round_case *c;
    int index, fragments;
    bool idle; /* nothing is ever due; only neb_step() itself is measured */
    char dir[300];
};

/* ---- a site -------------------------------------------------------------------------------------------- */

static double memory_of(const char *field)
{
    char line[200];
    double kb = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, field, strlen(field))) kb = atof(line + strlen(field) + 1);
    if (f) fclose(f);
    return kb * 1024;
}

static void measure_idle(neb_session *s, struct member *m)
{
    enum { CALLS = 200000 };
    bool changed;
    double best = 1;
    for (int rep = 0; rep < 5; rep++) {
        int64_t start = neb__now_ns();
        for (int i = 0; i < CALLS / 5; i++)
            if (neb_step(s, 1, &changed) != NEB_OK) m->shared->failed = 1;
        double each = neb__seconds_since(start) / (CALLS / 5);
        best = each < best ? each : best;
    }
    m->shared->site[m->index].idle = best;
}

/* Each step changes the next part of the parameters, by noise that no lossless stage can pack. */
static void change(float *x, size_t n, uint64_t step, struct neb_rng *rng)
{
    size_t part = (n / PARTS + 2) & ~(size_t)1, first = step % (PARTS + 1) * part;
    for (size_t i = first; i < first + part && i + 1 < n; i += 2) {
        uint64_t bits = neb__rng_next(rng);
        x[i] += 0x1p-41f * (float)(int32_t)(uint32_t)bits;
        x[i + 1] += 0x1p-41f * (float)(int32_t)(uint32_t)(bits >> 32);
    }
}

static void train(neb_session *s, struct member *m, float *x, size_t n)
{
    struct neb_rng rng = {(uint64_t)m->index + 1};
    bool changed;
    struct neb_session_status st;
    for (uint64_t step = 0; !m->shared->stop; step++) {
        change(x, n, step, &rng);
        usleep(m->c->mbit > 0 ? 2000 : 100);
        if (neb_step(s, 1, &changed) != NEB_OK) {
            m->shared->failed = 1;
            break;
        }
        neb_session_get_status(s, &st);
        m->shared->site[m->index].records = st.applied;
        m->shared->site[m->index].out = st.out[NEB_TRAFFIC_UPDATES];
        m->shared->site[m->index].busy = st.busy_s;
        m->shared->site[m->index].cpu[CPU_MERGE] = st.merge_cpu_s;
        m->shared->site[m->index].cpu[CPU_DRIVER] = st.driver_cpu_s;
        m->shared->site[m->index].cpu[CPU_LINKS] = st.links_cpu_s;
    }
}

static int site_main(void *arg)
{
    struct member *m = arg;
    size_t n = (size_t)m->c->params;
    neb_session *s;
    neb_log_set_level(getenv("NEBULA_LOG") ? NEB_LOG_INFO : NEB_LOG_ERROR);
    float *x = neb__malloc(n * sizeof *x);
    if (!x) return 1;
    for (size_t i = 0; i < n; i++) x[i] = (float)(i % 251) * 1e-3f;
    double before = memory_of("VmRSS:");
    struct neb_session_config c = neb_session_defaults();
    c.interval = m->idle ? 1 << 29 : 1;
    c.fragments = m->fragments;
    c.drift_steps = 1 << 30;
    c.rung = "int4";
    if (neb_session_open(m->dir, &c, &s) != NEB_OK) return 1;
    struct neb_session_param p = {.name = "x", .ndim = 1, .shape = {(int64_t)n}, .values = x};
    neb_status status = neb_session_register(s, &p);
    if (status == NEB_OK) status = neb_session_start(s, 30);
    if (status == NEB_OK && m->idle)
        measure_idle(s, m);
    else if (status == NEB_OK)
        train(s, m, x, n);
    struct neb_session_status end;
    neb_session_get_status(s, &end);
    m->shared->site[m->index].encode = end.encode_s;
    m->shared->site[m->index].apply = end.apply_s;
    m->shared->site[m->index].total = end.applied;
    m->shared->site[m->index].memory = memory_of("VmHWM:") - before;
    neb_session_close(s);
    neb__free(x);
    return status != NEB_OK;
}

/* ---- one case ------------------------------------------------------------------------------------------ */

static neb_status make_sites(const char *dir, const struct neb_lab *lab, int n)
{
    struct neb_member members[SITES_MAX];
    struct neb_chain *chain = NULL;
    char path[300], identity[NEB_IDENTITY_SIZE], name[8];
    memset(members, 0, sizeof members);
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s/%c", dir, 'a' + i);
        snprintf(name, sizeof name, "%c", 'a' + i);
        NEB_TRY(neb__site_init(path, name, identity));
        NEB_TRY(neb__site_identity(path, members[i].name, &members[i].key));
        members[i].votes = members[i].addresses = 1;
        snprintf(members[i].address[0], NEB_ADDRESS_SIZE, "%s:7400", neb__lab_address(lab, i, i));
    }
    NEB_TRY(neb__chain_create(&members[0].key, NULL, 0, &(struct neb_roster){members, (uint32_t)n}, &chain));
    neb_status status = NEB_OK;
    for (int i = 0; i < n && status == NEB_OK; i++) {
        snprintf(path, sizeof path, "%s/%c", dir, 'a' + i);
        status = neb__site_roster_save(path, chain);
    }
    neb__chain_free(chain);
    return status;
}

static neb_status make_lab(const struct round_case *c, struct neb_lab **out)
{
    static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    struct neb_lab_line line = {.delay = c->rtt / 2};
    struct neb_lab_config cfg;
    NEB_TRY(neb__lab_config_init(c->sites, names, &line, &cfg));
    for (int i = 0; i < c->sites; i++) cfg.site[i].up = cfg.site[i].down = c->mbit * 1e6;
    cfg.port[0] = 7400;
    cfg.ports = 1;
    neb_status status = neb__lab_create(&cfg, out);
    neb__lab_config_free(&cfg);
    return status;
}

/* The smallest number of records that a site has applied, and the bytes that the median site has sent. */
static int64_t progress(const struct shared *sh, int sites, double *out)
{
    int64_t least = INT64_MAX;
    double bytes[SITES_MAX];
    for (int i = 0; i < sites; i++) {
        if (sh->site[i].records < least) least = sh->site[i].records;
        bytes[i] = (double)sh->site[i].out;
    }
    *out = neb__figures_median(bytes, sites);
    return least;
}

struct outcome {
    double records, seconds, bytes; /* in the measured time */
    double cpu[CPU];                /* likewise, mean of the sites */
    double busy;                    /* likewise, of the busiest site */
    double memory, idle;
    double encode, apply; /* seconds a record */
};

static void cpu_so_far(const struct shared *sh, int sites, double out[CPU])
{
    for (int k = 0; k < CPU; k++) {
        out[k] = 0;
        for (int i = 0; i < sites; i++) out[k] += sh->site[i].cpu[k] / sites;
    }
}

/* Warms up for a round and a half, then measures for so many rounds or seconds. */
static bool watch(const struct round_case *c, const struct options *o, int fragments, struct shared *sh,
                  struct outcome *out)
{
    double nominal = c->mbit > 0 ? (c->sites - 1) * c->params * 0.516 * 8 / (c->mbit * 1e6) : 0;
    double limit = 60 + 8 * nominal, time = o->time > 0 ? o->time : c->mbit > 0 ? 1e9 : 5, bytes0 = 0, bytes;
    double cpu0[CPU] = {0}, busy0[SITES_MAX] = {0};
    int64_t start = neb__now_ns(), began = 0, first = 0;
    while (neb__seconds_since(start) < limit && !sh->failed) {
        usleep(5000);
        int64_t now = progress(sh, c->sites, &bytes);
        if (!began && now >= 3 * fragments / 2 + 2) {
            began = neb__now_ns(), first = now, bytes0 = bytes;
            cpu_so_far(sh, c->sites, cpu0);
            for (int i = 0; i < c->sites; i++) busy0[i] = sh->site[i].busy;
        }
        if (!began) continue;
        out->records = (double)(now - first);
        out->seconds = neb__seconds_since(began);
        out->bytes = bytes - bytes0;
        cpu_so_far(sh, c->sites, out->cpu);
        for (int k = 0; k < CPU; k++) out->cpu[k] -= cpu0[k];
        out->busy = 0;
        for (int i = 0; i < c->sites; i++) out->busy = fmax(out->busy, sh->site[i].busy - busy0[i]);
        if ((c->rounds > 0 && out->records >= c->rounds * fragments) || out->seconds > time) return true;
    }
    return began && out->records > fragments;
}

static int run_case(const struct round_case *c, const struct options *o, int fragments, bool idle,
                    struct outcome *out)
{
    char dir[] = "/tmp/nebula-round-XXXXXX", command[300];
    struct neb_lab *lab;
    struct member m[SITES_MAX];
    int handle[SITES_MAX], status, rc = 0;
    struct shared *sh = mmap(NULL, sizeof *sh, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    memset(out, 0, sizeof *out);
    if (sh == MAP_FAILED || !mkdtemp(dir) || make_lab(c, &lab) != NEB_OK) return 1;
    if (make_sites(dir, lab, c->sites) != NEB_OK) rc = 1;
    for (int i = 0; i < c->sites && !rc; i++) {
        m[i] = (struct member){.shared = sh, .c = c, .index = i, .fragments = fragments, .idle = idle};
        snprintf(m[i].dir, sizeof m[i].dir, "%s/%c", dir, 'a' + i);
        struct neb_lab_command cmd = {.out = -1, .err = -1, .fn = site_main, .arg = &m[i]};
        if (neb__lab_start(lab, i, &cmd, &handle[i]) != NEB_OK) rc = 1;
    }
    if (!rc && !idle && !watch(c, o, fragments, sh, out)) rc = 1;
    sh->stop = 1;
    for (int i = 0; i < c->sites; i++)
        if (neb__lab_wait(lab, handle[i], 60, &status) != NEB_OK) neb__lab_kill(lab, handle[i], 9);
    for (int i = 0; i < c->sites; i++) {
        if (sh->site[i].memory > out->memory) out->memory = sh->site[i].memory;
        if (sh->site[i].idle > out->idle) out->idle = sh->site[i].idle;
        double total = sh->site[i].total > 0 ? (double)sh->site[i].total : 1;
        out->encode = fmax(out->encode, sh->site[i].encode / total);
        out->apply = fmax(out->apply, sh->site[i].apply / total);
    }
    neb__lab_destroy(lab);
    munmap(sh, sizeof *sh);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command) ? 1 : rc;
}

static double forecast(const struct round_case *c, double bytes, double work)
{
    struct neb_sim_whatif w = {.sites = c->sites,
                               .voters = c->sites,
                               .rounds = 20,
                               .steps = 1,
                               .params = c->params,
                               .bits = 8 * bytes / (c->sites - 1) / c->params,
                               .up = c->mbit * 1e6,
                               .down = c->mbit * 1e6,
                               .rtt = c->rtt,
                               .step = 0.002,
                               .work = work,
                               .slow = 1,
                               .seed = 1};
    struct neb_sim_forecast f;
    return neb__sim_whatif(&w, &f) == NEB_OK ? f.round_s : 0;
}

static void report(struct neb_figures *f, const struct round_case *c, const struct outcome *r, int fragments)
{
    char name[64];
    double rounds = r->records / fragments, seconds = r->seconds / rounds, bytes = r->bytes / rounds;
    if (c->mbit == 0) {
        neb__figures_add(f, "small.commits", r->records / r->seconds, "/s", NEB_REPORT, 0);
        return;
    }
#define FIGURE(what, value, unit, sense, target)         \
    snprintf(name, sizeof name, "%s.%s", c->name, what); \
    neb__figures_add(f, name, value, unit, sense, target)
    FIGURE("seconds", seconds, "s", NEB_REPORT, 0);
    FIGURE("bytes", bytes / 1e6, "MB", NEB_REPORT, 0);
    FIGURE("line", bytes * 8 / (c->mbit * 1e6) / seconds, "of its limit", NEB_AT_LEAST, c->share);
    FIGURE("encode", r->encode * fragments, "s a round", NEB_REPORT, 0);
    FIGURE("apply", r->apply * fragments, "s a round", NEB_REPORT, 0);
    for (int k = 0; k < CPU; k++) {
        FIGURE(cpu_names[k], r->cpu[k] / rounds, "s a round", NEB_REPORT, 0);
    }
    FIGURE("memory", r->memory / c->params, "B/parameter", NEB_AT_MOST, 16);
    FIGURE("busy", r->busy / rounds, "s a round", NEB_REPORT, 0);
    FIGURE("what_if", forecast(c, bytes, r->busy / rounds) / seconds, "of measured", NEB_REPORT, 0);
    FIGURE("what_if.line", forecast(c, bytes, 0) / seconds, "of measured", NEB_REPORT, 0);
#undef FIGURE
}

static int run(int argc, char **argv)
{
    struct options o;
    int n = 0, rc = 0;
    bool json = neb__bench_json(&argc, argv);
    if (neb__opts_init(table, &o) != NEB_OK || neb__opts_args(table, &o, argc, argv, &n) != NEB_OK || n) {
        neb__opts_help(table, stderr);
        return 2;
    }
    struct neb_figures *f = neb__figures_begin("round", json);
    struct outcome r;
    if (f && (!o.only || strstr("step", o.only))) {
        static const struct round_case still = {"step", 2, 4e6, 0, 0.001, 0, 0};
        if ((rc = run_case(&still, &o, (int)o.fragments, true, &r)) == 0) {
            neb__figures_add(f, "step.idle", r.idle * 1e9, "ns", NEB_REPORT, 0);
            neb__figures_add(f, "step.share", r.idle / 1e-3, "of 1 ms", NEB_AT_MOST, 0.01);
        }
    }
    for (size_t i = 0; f && i < sizeof cases / sizeof *cases && !rc; i++) {
        const struct round_case *c = &cases[i];
        if (o.only && !strstr(c->name, o.only)) continue;
        int fragments = c->mbit > 0 ? (int)o.fragments : 1;
        rc = run_case(c, &o, fragments, false, &r);
        if (rc)
            fprintf(stderr, "bench round: case %s did not end\n", c->name);
        else
            report(f, c, &r, fragments);
    }
    neb__opts_free(table, &o);
    if (f) neb__figures_end(f);
    return rc || !f;
}

const struct neb_bench neb__bench_round = {
    "round", "rounds over a line: seconds, bytes, memory, commits a second", run, table};
