/* bench_auto.c: `strategy: auto` against choices by hand.
 *
 * Every strategy that roles lead to has at least one scenario. In each, several arms run for the same time in
 * the laboratory: the job as a user would write it (with only the nominal interval under `wan`), and the same
 * job with its choices made by hand. The arms follow each other `--turns` times, and each turn begins with
 * another one. Medians count.
 *
 *     auto.replica    Two sites over 10 Mbit/s and 100 ms, which carries only the cheaper rungs at the
 *                     nominal interval. It measures what the common model has learned in the time (logarithm
 *                     of the vocabulary less held-out loss). By hand: a rung and an interval.
 *     auto.relay      Generator and discriminator over 100 Mbit/s and 100 ms. It counts the discriminator's
 *                     tokens. By hand: the strategy and a window.
 *     auto.tutor      A frozen encoder's hidden states for a student over 100 Mbit/s and 100 ms. It counts
 *                     the student's tokens. By hand: the strategy, bits and a window.
 *     auto.tutor-thin The same for three times as long over 10 Mbit/s, which carries 4 bits at the student's
 *                     pace.
 *
 * The figure is that of `auto` over the best one made by hand. Tokens follow the machine's speed, which
 * changes from minute to minute. The choices change how long the receiving site waits, so `auto.NAME.busy` has the
 * share of its time in which it computed. The text is made up: each word allows four successors. */
#include "bench.h"
#include "base/file.h"
#include "base/opts.h"
#include "base/rng.h"
#include "store/metrics.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORDS = 1995, SPECIAL = 5, LINES = 8000, HELD_OUT = 200, TURNS_MAX = 5, ARMS = 7, KEYS = 4 };

struct options {
    char *dir, *only;
    double time;
    int64_t turns;
    bool quick;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, time, NEB_OPT_TIME, "20s", NULL, "time of training in every arm"),
    NEB_OPT(struct options, turns, NEB_OPT_INT, "3", NULL, "turns of each arm"),
    NEB_OPT(struct options, only, NEB_OPT_TEXT, "", NULL,
            "one scenario: replica, relay, tutor or tutor-thin"),
    NEB_OPT(struct options, dir, NEB_OPT_TEXT, "", NULL, "folder to work in (default: a new one under /tmp)"),
    NEB_OPT(struct options, quick, NEB_OPT_BOOL, "no", NULL, "one turn of 12 s: under four minutes"),
    NEB_OPT_END,
};

struct arm {
    const char *name, *keys[KEYS];
};

static const struct scenario {
    const char *name, *wan;
    bool learned; /* the held-out loss counts; else the tokens of site b */
    double longer;
    const char *job;
    struct arm arm[ARMS];
} scenarios[] = {
    {"replica",
     "10mbit,100ms",
     true,
     1,
     "replica",
     {{"auto", {0}},
      {"int8", {"strategy=replica", "wan.rung=int8"}},
      {"int4", {"strategy=replica", "wan.rung=int4"}},
      {"int2e", {"strategy=replica", "wan.rung=int2e"}},
      {"int4 at four times the interval", {"strategy=replica", "wan.rung=int4", "wan.interval=80"}},
      {"sparse2", {"strategy=replica", "wan.rung=sparse2"}}}},
    {"relay",
     "100mbit,100ms",
     false,
     1,
     "relay",
     {{"auto", {0}},
      {"window 8", {"strategy=relay", "wan.window=8"}},
      {"window 128", {"strategy=relay", "wan.window=128"}}}},
    {"tutor",
     "100mbit,100ms",
     false,
     1,
     "tutor",
     {{"auto", {0}},
      {"8 bits, window 8", {"strategy=tutor", "wan.bits=8", "wan.window=8"}},
      {"4 bits, window 128", {"strategy=tutor", "wan.bits=4", "wan.window=128"}}}},
    {"tutor-thin",
     "10mbit,100ms",
     false,
     3,
     "tutor",
     {{"auto", {0}},
      {"8 bits, window 64", {"strategy=tutor", "wan.bits=8", "wan.window=64"}},
      {"4 bits, window 64", {"strategy=tutor", "wan.bits=4", "wan.window=64"}}}},
};
enum { SCENARIOS = sizeof scenarios / sizeof *scenarios };

/* ---- the jobs ------------------------------------------------------------------------------------------ */

static void word(uint64_t i, char out[8])
{
    for (int k = 0; k < 4; k++, i /= 26) out[k] = (char)('a' + i % 26);
    out[4] = 0;
}

static neb_status write_lines(const char *path, int lines, uint64_t seed)
{
    struct neb_rng r = {seed};
    struct neb_buf b;
    char w[8];
    neb__buf_init(&b, 64 << 20);
    neb_status status = NEB_OK;
    for (int i = 0; status == NEB_OK && i < lines; i++) {
        uint64_t at = neb__rng_below(&r, WORDS);
        for (int k = 0; status == NEB_OK && k < 30; k++) {
            word(at, w);
            status = neb__buf_printf(&b, "%s%c", w, k == 29 ? '\n' : ' ');
            at = (at * 7 + 13 + neb__rng_below(&r, 4)) % WORDS;
        }
    }
    if (status == NEB_OK) status = neb__file_replace(path, b.data, b.len, 0644);
    neb__buf_free(&b);
    return status;
}

static neb_status write_text(void)
{
    static const char *const special[SPECIAL] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
    struct neb_buf b;
    char w[8];
    neb__buf_init(&b, 1 << 20);
    neb_status status = NEB_OK;
    for (int i = 0; status == NEB_OK && i < SPECIAL; i++) status = neb__buf_printf(&b, "%s\n", special[i]);
    for (uint64_t i = 0; status == NEB_OK && i < WORDS; i++)
        word(i, w), status = neb__buf_printf(&b, "%s\n", w);
    if (status == NEB_OK) status = neb__file_replace("vocab.txt", b.data, b.len, 0644);
    neb__buf_free(&b);
    if (status == NEB_OK) status = write_lines("text", LINES, 7);
    return status == NEB_OK ? write_lines("held-out", HELD_OUT, 8) : status;
}

static neb_status write_job(const char *name, const char *head, const char *tail)
{
    struct neb_buf b;
    char path[64];
    snprintf(path, sizeof path, "%s.yaml", name);
    neb__buf_init(&b, 1 << 16);
    neb_status status =
        neb__buf_printf(&b,
                        "name: %s\n%scache: tokens\ntokenizer: {file: vocab.txt}\n"
                        "train: {steps: 1000000, minutes: 0.05, tokens: 256, max_len: 32, lr: 2e-3, "
                        "warmup: 50, schedule: constant, "
                        "save_every: 1000000, log_every: 1000000, threads: 1}\n%s"
                        "data: [{file: text}, {file: held-out, use: valid}]\n",
                        name, head, tail);
    if (status == NEB_OK) status = neb__file_replace(path, b.data, b.len, 0644);
    neb__buf_free(&b);
    return status;
}

static neb_status write_jobs(void)
{
    NEB_TRY(write_text());
    NEB_TRY(write_job("teacher",
                      "task: mlm\nout: teacher\nmodel: {family: xlm-r, hidden: 128, heads: 4, layers: 2}\n",
                      ""));
    NEB_TRY(write_job("replica", "task: mlm\nmodel: {family: xlm-r, hidden: 128, heads: 4, layers: 2}\n",
                      "wan: {interval: 20}\nsites: [{name: a}, {name: b}]\n"));
    NEB_TRY(write_job("relay",
                      "task: rtd\nmodel: {family: electra, hidden: 128, heads: 4, layers: 2}\n"
                      "generator: {family: bert, hidden: 32, heads: 2, layers: 1}\n",
                      "sites: [{name: a, role: generator}, {name: b, role: discriminator}]\n"));
    return write_job("tutor",
                     "task: mlm\nmodel: {family: xlm-r, hidden: 128, heads: 4, layers: 2}\n"
                     "distill: {encoder: teacher, width: 128}\n",
                     "sites: [{name: a, role: teacher}, {name: b, role: student}]\n");
}

/* ---- an arm -------------------------------------------------------------------------------------------- */

static bool run_self(const char *const *argv, const char *log)
{
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        if (!freopen(log, "w", stdout) || dup2(1, 2) < 0) _exit(126);
        execv("/proc/self/exe", (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    int status = -1;
    while (child > 0 && waitpid(child, &status, 0) < 0) {}
    if (child > 0 && WIFEXITED(status) && !WEXITSTATUS(status)) return true;
    fprintf(stderr, "bench auto: %s %s failed; see %s\n", argv[1], argv[2], log);
    return false;
}

static int keep_last(void *arg, int64_t step, double time, double value)
{
    (void)step, (void)time;
    *(double *)arg = value;
    return 1;
}

static bool last_value(const char *folder, const char *name, double *out)
{
    struct neb_metrics *m;
    *out = NAN;
    if (neb__metrics_read(folder, &m) != NEB_OK) return false;
    neb_status status = neb__metrics_each(m, name, keep_last, out);
    neb__metrics_close(m);
    return status == NEB_OK && isfinite(*out);
}

/* The share of its time in which the site computed. */
static bool busy(const char *site, double *out)
{
    double compute, encode, wait;
    bool ok = last_value(site, "time/compute", &compute) && last_value(site, "time/encode", &encode) &&
              last_value(site, "time/wait", &wait);
    if (ok) *out = compute / (compute + encode + wait);
    return ok;
}

struct result {
    double got, busy; /* the more the better */
};

static bool run_arm(const struct scenario *s, int arm, int turn, double seconds, struct result *out)
{
    char job[64], name[64], folder[80], site[96], said[80], minutes[64];
    snprintf(job, sizeof job, "%s.yaml", s->job);
    snprintf(minutes, sizeof minutes, "train.minutes=%g", seconds * s->longer / 60);
    snprintf(name, sizeof name, "%s.%d.%d", s->name, arm, turn);
    snprintf(folder, sizeof folder, "out=%s", name);
    snprintf(said, sizeof said, "%s.log", name);
    snprintf(site, sizeof site, "%s/b", name);
    const char *argv[8 + KEYS] = {"nebula-i", "lab", job, folder, minutes, "--wan", s->wan};
    for (int i = 0; i < KEYS; i++) argv[7 + i] = s->arm[arm].keys[i];
    if (!run_self(argv, said) || !last_value(site, s->learned ? "valid/loss" : "tokens", &out->got) ||
        !busy(site, &out->busy))
        return false;
    if (s->learned) out->got = log((double)WORDS + SPECIAL) - out->got;
    fprintf(stderr, "%s, %s: %g, computing %.1f %%\n", s->name, s->arm[arm].name, out->got, 100 * out->busy);
    return true;
}

static void compare(const struct scenario *s, const char *what, double v[ARMS][TURNS_MAX], int arms,
                    int turns, struct neb_figures *f)
{
    double best = 0;
    int by = 1;
    char name[96];
    for (int a = 1; a < arms; a++) {
        double m = neb__figures_median(v[a], turns);
        if (m > best) best = m, by = a;
    }
    snprintf(name, sizeof name, "auto.%s%s", s->name, what);
    fprintf(stderr, "%s: the best by hand is %s\n", name, s->arm[by].name);
    neb__figures_add(f, name, neb__figures_median(v[0], turns) / best, "of the best", NEB_AT_LEAST, 0.95);
}

static bool measure(const struct scenario *s, const struct options *o, int turns, struct neb_figures *f)
{
    double got[ARMS][TURNS_MAX], share[ARMS][TURNS_MAX];
    int arms = 0;
    while (arms < ARMS && s->arm[arms].name) arms++;
    for (int t = 0; t < turns; t++)
        for (int i = 0; i < arms; i++) {
            struct result r;
            int a = (i + t) % arms;
            if (!run_arm(s, a, t, o->time, &r)) return false;
            got[a][t] = r.got;
            share[a][t] = r.busy;
        }
    compare(s, "", got, arms, turns, f);
    if (!s->learned) compare(s, ".busy", share, arms, turns, f);
    return true;
}

static bool measure_all(const struct options *o, struct neb_figures *f)
{
    static const char *const teacher[] = {"nebula-i", "train", "teacher.yaml", NULL};
    int turns = (int)(o->turns < 1 ? 1 : o->turns > TURNS_MAX ? TURNS_MAX : o->turns);
    if (write_jobs() != NEB_OK || !run_self(teacher, "teacher.log")) return false;
    for (int i = 0; i < SCENARIOS; i++)
        if ((!o->only || !strcmp(o->only, scenarios[i].name)) && !measure(&scenarios[i], o, turns, f))
            return false;
    return true;
}

static int run(int argc, char **argv)
{
    struct options o;
    char made[] = "/tmp/nebula-auto-XXXXXX";
    int n = 0, code = 1;
    bool json = neb__bench_json(&argc, argv);
    if (neb__opts_init(table, &o) != NEB_OK) return 1;
    if (neb__opts_args(table, &o, argc, argv, &n) != NEB_OK || n || o.time < 1) {
        neb__opts_help(table, stderr);
        neb__opts_free(table, &o);
        return 2;
    }
    if (o.quick) o.turns = 1, o.time = 12;
    const char *dir = o.dir ? o.dir : mkdtemp(made);
    struct neb_figures *f = neb__figures_begin("auto", json);
    if (dir && f && neb__file_make_dir(dir, 0755) == NEB_OK && !chdir(dir) && measure_all(&o, f)) code = 0;
    if (f) neb__figures_end(f);
    if (dir) fprintf(stderr, "the sites' logs and metrics are in %s\n", dir);
    neb__opts_free(table, &o);
    return code;
}

const struct neb_bench neb__bench_auto = {"auto", "strategy: auto against the best choice by hand", run,
                                          table};
