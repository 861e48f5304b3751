/* bench_wan.c: how much speed two sites lose to the wide-area network between them: tokens a second of a
 * replica run as a share of those of the same two sites without communication.
 *
 * Two arms take turns, `nebula-i lab JOB` and `nebula-i lab JOB --apart`; the emulator and both sites run in
 * both. Each is killed after a while. The model is an encoder of about 25 million parameters with 512 tokens
 * a step and a sweep of its 8 fragments every half minute at least. A rate comes from the tokens between two
 * samples of the sites' own metrics, without the first ten seconds. The text is made up and has a vocabulary
 * of its own, so nothing is trained before.
 *
 *     efficiency.replica.LINE   share of the speed without communication, both sites together (target 0.97)
 *     work.replica.LINE         the same by the sites' processor time instead of the clock: the cost of a
 *                               token without communication over its cost with it. It leaves out the emulator
 *                               and the system's own threads, and it is also right while others use the
 *                               machine
 *     commits.replica.LINE      records that were committed in the counted time (at least 8)
 *     cpu.replica.LINE          processor seconds a site and sweep of all fragments: neb_step() itself, the
 *                               session's own thread, the links' (the efficiency lacks at least their share
 *                               of a sweep)
 *     bytes.replica.LINE        bytes sent for each token trained on; fp32_ratio: those of fp32 gradients at
 *                               every step over it
 *
 * On a busy machine the speed changes more from one arm to the next than the line costs. `--turns` says how
 * often the two follow each other. `--together` runs them at the same time, and each is stopped every other
 * second (wan_turns.c). So both meet the same disturbances, and a rate is that of the arm's own seconds. A
 * site's timers then run twice as often for each of its steps.
 *
 * `nebula-i bench streams` measures relay and tutor. */
#include "bench.h"
#include "wan_turns.h"
#include "base/file.h"
#include "base/mem.h"
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

enum { WORDS = 11995, LINES = 20000, TURNS_MAX = 9, SITES = 2, FRAGMENTS = 8 };
static const double lead_in = 10;

struct options {
    char *wan, *dir, *rung;
    double time;
    int64_t turns, hidden, layers, interval;
    bool quick, together;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, wan, NEB_OPT_TEXT,
            "10mbit,10ms 10mbit,100ms 100mbit,10ms 100mbit,100ms 1000mbit,10ms 1000mbit,100ms", NULL,
            "lines"),
    NEB_OPT(struct options, time, NEB_OPT_TIME, "90s", NULL, "time of one arm"),
    NEB_OPT(struct options, turns, NEB_OPT_INT, "2", NULL, "turns of each arm"),
    NEB_OPT(struct options, hidden, NEB_OPT_INT, "512", NULL, "width of the encoder"),
    NEB_OPT(struct options, layers, NEB_OPT_INT, "6", NULL, "layers of the encoder"),
    NEB_OPT(struct options, interval, NEB_OPT_INT, "0", "steps",
            "interval H (0: as many as take 30 s at the measured speed)"),
    NEB_OPT(struct options, rung, NEB_OPT_TEXT, "auto", NULL, "wan.rung"),
    NEB_OPT(struct options, dir, NEB_OPT_TEXT, "", NULL, "folder to work in (default: a new one under /tmp)"),
    NEB_OPT(struct options, together, NEB_OPT_BOOL, "no", NULL,
            "run both arms at once, in turns of a second"),
    NEB_OPT(struct options, quick, NEB_OPT_BOOL, "no", NULL, "one line, one turn: under four minutes"),
    NEB_OPT_END,
};

/* ---- the job ------------------------------------------------------------------------------------------- */

static void word(uint64_t i, char out[8])
{
    for (int k = 0; k < 4; k++, i /= 26) out[k] = (char)('a' + i % 26);
    out[4] = 0;
}

/* A WordPiece vocabulary and lines of its words, some much more frequent than others. */
static bool write_text(const char *dir)
{
    static const char *const special[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
    char path[PATH_MAX], w[8];
    uint64_t state = 7;
    snprintf(path, sizeof path, "%s/vocab.txt", dir);
    FILE *f = fopen(path, "w");
    for (int i = 0; f && i < 5; i++) fprintf(f, "%s\n", special[i]);
    for (uint64_t i = 0; f && i < WORDS; i++) word(i, w), fprintf(f, "%s\n", w);
    bool ok = f && !fclose(f);
    snprintf(path, sizeof path, "%s/text", dir);
    f = fopen(path, "w");
    for (int i = 0; f && i < LINES * 40; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        double u = (double)(state >> 11) / 9007199254740992.0;
        word((uint64_t)(WORDS * u * u * u), w);
        fprintf(f, "%s%c", w, i % 40 == 39 ? '\n' : ' ');
    }
    return f && !fclose(f) && ok;
}

static bool write_job(const struct options *o, const char *dir)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/job.yaml", dir);
    FILE *f = fopen(path, "w");
    if (!f) return false;
    fprintf(f,
            "name: wan\ntask: mlm\ncache: %s/tokens\ntokenizer: {file: %s/vocab.txt}\n"
            "model: {family: xlm-r, hidden: %" PRId64 ", heads: 8, layers: %" PRId64 ", max_positions: 128}\n"
            "train: {steps: 1000000, tokens: 512, max_len: 64, lr: 1e-4, save_every: 1000000, log_every: "
            "100000}\n"
            "wan: {fragments: 8, rung: %s}\nsites: [{name: a}, {name: b}]\ndata: [{file: %s/text}]\n",
            dir, dir, o->hidden, o->layers, o->rung ? o->rung : "auto", dir);
    return !fclose(f);
}

/* ---- an arm -------------------------------------------------------------------------------------------- */

static pid_t start_lab(const char *dir, const char *wan, double time, int64_t interval, bool apart,
                       const char *out)
{
    char job[PATH_MAX + 16], folder[PATH_MAX + 16], seconds[32], every[48], log[PATH_MAX + 16];
    snprintf(job, sizeof job, "%s/job.yaml", dir);
    snprintf(folder, sizeof folder, "out=%s", out);
    snprintf(seconds, sizeof seconds, "%.0fs", time);
    snprintf(every, sizeof every, "wan.interval=%" PRId64, interval);
    snprintf(log, sizeof log, "%s.log", out);
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        if (!freopen(log, "w", stdout) || dup2(1, 2) < 0) _exit(126);
        const char *argv[] = {"nebula-i", "lab", job,      folder,  every,
                              "--wan",    wan,   "--time", seconds, apart ? "--apart" : NULL,
                              NULL};
        execv("/proc/self/exe", (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    return child;
}

static bool end_lab(pid_t child, const char *out)
{
    int status = -1;
    while (child > 0 && waitpid(child, &status, 0) < 0) {}
    if (child > 0 && WIFEXITED(status) && !WEXITSTATUS(status)) return true;
    fprintf(stderr, "bench wan: an arm failed; see %s.log\n", out);
    return false;
}

struct slope {
    double first, t0, t1, v0, v1; /* 0: where the lead-in ends; 1: the last sample */
    double end;                   /* later samples do not count; 0: all count */
    int n;
};

/* The folder of an arm's samples, and its turns. turns NULL: it had all the time. */
struct source {
    const char *out;
    const struct neb_turns *turns;
    int run;
};

static int take(void *arg, int64_t step, double time, double value)
{
    struct slope *s = arg;
    (void)step;
    if (s->end > 0 && time > s->end) return 1;
    if (!s->n++) s->first = time;
    if (s->n == 1 || time < s->first + lead_in) s->t0 = time, s->v0 = value;
    s->t1 = time;
    s->v1 = value;
    return 1;
}

/* The growth of a site's metric after the lead-in, and the arm's own seconds of it. */
static double growth(const struct source *from, const char *site, const char *name, double *seconds)
{
    char dir[PATH_MAX];
    struct neb_metrics *m;
    struct slope s = {.end = from->turns ? from->turns->at[from->turns->n] : 0};
    snprintf(dir, sizeof dir, "%s/%s", from->out, site);
    if (neb__metrics_read(dir, &m) != NEB_OK) return NAN;
    neb_status status = neb__metrics_each(m, name, take, &s);
    neb__metrics_close(m);
    *seconds = from->turns ? neb__bbr_turns_of(from->turns, from->run, s.t0, s.t1) : s.t1 - s.t0;
    return status == NEB_OK && *seconds > 1 ? s.v1 - s.v0 : NAN;
}

struct arm {
    double rate, commits, bytes, tokens;
    double work;   /* processor seconds for a token */
    double cpu[3]; /* seconds of a site: merge, driver, links */
};
static const char *const cpu_names[3] = {"merge", "driver", "links"};

static struct arm read_arm(const struct source *out, bool apart)
{
    static const char *const sites[SITES] = {"a", "b"};
    struct arm r = {0};
    for (int i = 0; i < SITES; i++) {
        double seconds = 1, tokens = growth(out, sites[i], "tokens", &seconds);
        r.rate += tokens / seconds;
        r.tokens += tokens;
        r.work += growth(out, sites[i], "cpu", &seconds);
        if (apart) continue;
        r.bytes += growth(out, sites[i], "wan/out", &seconds);
        r.commits = fmax(r.commits, growth(out, sites[i], "wan/records", &seconds));
        for (int k = 0; k < 3; k++) {
            char name[32];
            snprintf(name, sizeof name, "wan/cpu/%s", cpu_names[k]);
            r.cpu[k] += growth(out, sites[i], name, &seconds) / SITES;
        }
    }
    r.work /= r.tokens;
    return r;
}

/* ---- a cell -------------------------------------------------------------------------------------------- */

static void name_arm(const char *dir, const char *line, const char *arm, int k, char out[PATH_MAX])
{
    snprintf(out, PATH_MAX, "%s/%s.%s.%d", dir, line, arm, k);
}

/* A sweep of all fragments takes 30 s at least. */
static int64_t sweep_steps(const struct arm *apart)
{
    return (int64_t)ceil(30 * apart->rate / SITES / 512);
}

/* One after the other. arm[0] joined, arm[1] apart. */
static bool in_a_row(const struct options *o, const char *dir, const char *wan, const char *line, int k,
                     int64_t *interval, struct arm arm[2])
{
    for (int apart = 1; apart >= 0; apart--) {
        char out[PATH_MAX];
        name_arm(dir, line, apart ? "apart" : "joined", k, out);
        double time = o->time + (apart ? 0 : lead_in);
        if (!end_lab(start_lab(dir, wan, time, *interval ? *interval : 1000000, apart, out), out))
            return false;
        arm[apart] = read_arm(&(struct source){.out = out}, apart);
        if (apart && !*interval) *interval = sweep_steps(&arm[1]);
    }
    return true;
}

/* Both at once. Each has half of the time, so this takes twice as long. */
static bool together(const struct options *o, const char *dir, const char *wan, const char *line, int k,
                     int64_t *interval, struct arm arm[2])
{
    char out[3][PATH_MAX];
    name_arm(dir, line, "joined", k, out[0]);
    name_arm(dir, line, "apart", k, out[1]);
    name_arm(dir, line, "speed", k, out[2]);
    static bool prepared; /* else the two would read the text at the same time */
    if (!*interval || !prepared) {
        if (!end_lab(start_lab(dir, wan, 2.5 * lead_in, 1000000, true, out[2]), out[2])) return false;
        arm[1] = read_arm(&(struct source){.out = out[2]}, true);
        if (!*interval) *interval = sweep_steps(&arm[1]);
        prepared = true;
    }
    double time = 2 * o->time + lead_in;
    pid_t lab[2];
    for (int apart = 0; apart < 2; apart++)
        lab[apart] = start_lab(dir, wan, time, *interval, apart, out[apart]);
    static struct neb_turns turns;
    neb__take_turns(lab, time - 3, &turns);
    bool ok = true;
    for (int apart = 0; apart < 2; apart++) ok = end_lab(lab[apart], out[apart]) && ok;
    for (int apart = 0; ok && apart < 2; apart++)
        arm[apart] = read_arm(&(struct source){out[apart], &turns, apart}, apart);
    return ok;
}

static bool measure(const struct options *o, const char *dir, const char *wan, int64_t *interval,
                    struct neb_figures *f)
{
    double share[TURNS_MAX], work[TURNS_MAX], bytes[TURNS_MAX], cpu[3][TURNS_MAX], commits = INFINITY;
    char name[96], line[48];
    int turns = (int)(o->turns < 1 ? 1 : o->turns > TURNS_MAX ? TURNS_MAX : o->turns);
    snprintf(line, sizeof line, "%s", wan);
    for (char *c = line; *c; c++) *c = *c == ',' ? '.' : *c;
    for (int k = 0; k < turns; k++) {
        struct arm arm[2];
        if (!(o->together ? together : in_a_row)(o, dir, wan, line, k, interval, arm)) return false;
        share[k] = arm[0].rate / arm[1].rate;
        work[k] = arm[1].work / arm[0].work;
        bytes[k] = arm[0].bytes / arm[0].tokens;
        commits = fmin(commits, arm[0].commits);
        for (int i = 0; i < 3; i++) cpu[i][k] = arm[0].cpu[i] * FRAGMENTS / arm[0].commits;
        fprintf(stderr, "%s: %.0f tokens/s, %.0f apart, H %" PRId64 ", %.0f commits\n", line, arm[0].rate,
                arm[1].rate, *interval, arm[0].commits);
    }
    double values =
        12.0 * (double)(o->hidden * o->hidden * o->layers) + (double)((WORDS + 5 + 128) * o->hidden);
    double each = neb__figures_median(bytes, turns);
    snprintf(name, sizeof name, "efficiency.replica.%s", line);
    neb__figures_add(f, name, neb__figures_median(share, turns), "", NEB_AT_LEAST, 0.97);
    snprintf(name, sizeof name, "work.replica.%s", line);
    neb__figures_add(f, name, neb__figures_median(work, turns), "", NEB_REPORT, 0);
    snprintf(name, sizeof name, "commits.replica.%s", line);
    neb__figures_add(f, name, commits, "", NEB_AT_LEAST, 8);
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "cpu.replica.%s.%s", line, cpu_names[i]);
        neb__figures_add(f, name, neb__figures_median(cpu[i], turns), "s a sweep", NEB_REPORT, 0);
    }
    snprintf(name, sizeof name, "bytes.replica.%s", line);
    neb__figures_add(f, name, each, "B/token", NEB_REPORT, 0);
    snprintf(name, sizeof name, "fp32_ratio.replica.%s", line);
    neb__figures_add(f, name, 4 * values / 512 / each, "", NEB_REPORT, 0);
    return true;
}

static bool measure_all(const struct options *o, const char *dir, struct neb_figures *f)
{
    char lines[512], *rest = lines, *wan;
    int64_t interval = o->interval;
    snprintf(lines, sizeof lines, "%s", o->wan);
    while ((wan = strsep(&rest, " ")))
        if (*wan && !measure(o, dir, wan, &interval, f)) return false;
    return true;
}

static int run(int argc, char **argv)
{
    struct options o;
    char made[] = "/tmp/nebula-wan-XXXXXX";
    int n = 0, code = 1;
    bool json = neb__bench_json(&argc, argv);
    if (neb__opts_init(table, &o) != NEB_OK) return 1;
    neb_status status = neb__opts_args(table, &o, argc, argv, &n);
    if (status == NEB_OK && o.quick) {
        status = neb__opts_set(table, &o, "wan", "100mbit,100ms");
        o.turns = 1;
    }
    const char *dir = status == NEB_OK ? (o.dir ? o.dir : mkdtemp(made)) : NULL;
    if (dir && neb__file_make_dir(dir, 0755) == NEB_OK && write_text(dir) && write_job(&o, dir)) {
        struct neb_figures *f = neb__figures_begin("wan", json);
        if (f && measure_all(&o, dir, f)) code = 0;
        if (f) neb__figures_end(f);
    }
    if (dir) fprintf(stderr, "the sites' logs and metrics are in %s\n", dir);
    neb__opts_free(table, &o);
    return status == NEB_OK ? code : 2;
}

const struct neb_bench neb__bench_wan = {
    "wan", "speed of two sites with a WAN between them, against no communication", run, table};
