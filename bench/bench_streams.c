/* bench_streams.c: how much speed the slower site of a split job loses to the line.
 *
 * Two arms take turns, and the laboratory's emulator runs in both. One is the job over the line. In the other
 * the same two sites run at the same time with a recorded stream in place of each other: the sending site
 * makes items that are already recorded, and the receiving site reads them. The order of the arms changes from turn
 * to turn. The slower site is the discriminator in `relay` and the student in `tutor`. A rate counts from the
 * first step to the last, with waiting.
 *
 *     efficiency.JOB.LINE   rate of the slower site over the line as a share of its rate on the record
 *     work.JOB.LINE         the same by processor time instead of the clock: the cost of a token on the
 *                           record over its cost over the line. With `waited` it shows the cost of the line
 *                           even while the machine's speed changes
 *     waited.JOB.LINE       share of its time in which it waited for items, with the first one
 *     credit.JOB.LINE       share of its time in which the faster site waited for credit
 *     bytes.JOB.LINE        bytes that crossed for each token trained on; item bytes, before TLS and TCP */
#include "bench.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/opts.h"
#include "base/rng.h"
#include "store/metrics.h"

#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { REPEATS_MAX = 9, WORDS = 3000, LINES = 6000 };

struct options {
    char *wan, *only, *dir;
    int64_t repeats, relay_steps, tutor_steps;
    bool quick;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, wan, NEB_OPT_TEXT, "10mbit,100ms 100mbit,10ms 100mbit,100ms", NULL, "lines"),
    NEB_OPT(struct options, only, NEB_OPT_TEXT, "", NULL, "one job: relay or tutor"),
    NEB_OPT(struct options, repeats, NEB_OPT_INT, "3", NULL, "turns of each arm"),
    NEB_OPT(struct options, relay_steps, NEB_OPT_INT, "150", "steps", "steps of an arm of relay"),
    NEB_OPT(struct options, tutor_steps, NEB_OPT_INT, "150", "steps", "steps of an arm of tutor"),
    NEB_OPT(struct options, dir, NEB_OPT_TEXT, "", NULL, "folder to work in (default: a new one under /tmp)"),
    NEB_OPT(struct options, quick, NEB_OPT_BOOL, "no", NULL, "one line, two turns: under two minutes a job"),
    NEB_OPT_END,
};

static const char tokenizer[] = "tokenizer: {type: unigram, vocab: 4000, lines: 6000}\n";
static const char train[] =
    "tokens: 512, max_len: 64, lr: 1e-3, log_every: 100000, save_every: 100000, threads: 1";

/* ---- files
 *
 * ---------------------------------------------------------------------------------------------------------- */

/* Words of made-up syllables, some far more frequent than others, so that a tokenizer has something to
 * learn. */
static neb_status write_text(const char *path)
{
    static const char *const part[] = {"ka",  "lo", "mi", "ter", "un", "sa",
                                       "ber", "no", "vi", "rel", "do", "esh"};
    struct neb_rng r = {7};
    struct neb_buf b;
    neb__buf_init(&b, 64 << 20);
    neb_status status = NEB_OK;
    for (int line = 0; status == NEB_OK && line < LINES; line++) {
        for (int w = 0; status == NEB_OK && w < 24; w++) {
            double u = neb__rng_uniform(&r);
            uint64_t word = (uint64_t)(WORDS * u * u * u);
            struct neb_rng spell = {word};
            for (uint64_t k = 2 + word % 3; status == NEB_OK && k > 0; k--)
                status = neb__buf_printf(&b, "%s", part[neb__rng_below(&spell, sizeof part / sizeof *part)]);
            if (status == NEB_OK) status = neb__buf_printf(&b, w < 23 ? " " : "\n");
        }
    }
    if (status == NEB_OK) status = neb__file_replace(path, b.data, b.len, 0644);
    neb__buf_free(&b);
    return status;
}

static neb_status write_jobs(const struct options *o)
{
    struct {
        const char *file;
        char text[1400];
    } jobs[3] = {{.file = "teacher.yaml"}, {.file = "relay.yaml"}, {.file = "tutor.yaml"}};
    snprintf(jobs[0].text, sizeof jobs[0].text,
             "name: teacher\ntask: causal\nout: teacher\n%smodel: {family: gpt2, hidden: 256, layers: 4, "
             "heads: 4}\n"
             "train: {steps: 2, %s}\ndata: [{file: text}]\n",
             tokenizer, train);
    snprintf(
        jobs[1].text, sizeof jobs[1].text,
        "name: relay\ntask: rtd\ncache: data\n%smodel: {family: electra, hidden: 256, layers: 4, heads: 4}\n"
        "generator: {family: bert, hidden: 64, layers: 2, heads: 2}\ntrain: {steps: %" PRId64 ", %s}\n"
        "sites: [{name: a, role: generator}, {name: b, role: discriminator}]\ndata: [{file: text}]\n",
        tokenizer, o->relay_steps, train);
    snprintf(jobs[2].text, sizeof jobs[2].text,
             "name: tutor\ntask: causal\ncache: data2\ntokenizer: {file: teacher/tokenizer.model}\n"
             "model: {family: gpt2, hidden: 256, layers: 4, heads: 4}\ntrain: {steps: %" PRId64 ", %s}\n"
             "distill: {teacher: teacher, top_k: 8}\n"
             "sites: [{name: a, role: teacher}, {name: b, role: student}]\ndata: [{file: text}]\n",
             o->tutor_steps, train);
    for (int i = 0; i < 3; i++)
        NEB_TRY(neb__file_replace(jobs[i].file, jobs[i].text, strlen(jobs[i].text), 0644));
    return write_text("text");
}

/* ---- running ------------------------------------------------------------------------------------------- */

static bool run(char *const *argv)
{
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        int fd = open("log", O_WRONLY | O_CREAT | O_APPEND, 0644);
        if (fd >= 0) dup2(fd, 1), dup2(fd, 2);
        execv("/proc/self/exe", argv);
        _exit(127);
    }
    int status = -1;
    while (child > 0 && waitpid(child, &status, 0) < 0) continue;
    if (status) fprintf(stderr, "%s %s ended with status %x; see log\n", argv[1], argv[2], status);
    return !status;
}

struct half {
    double rate, waited, per_row, rows, tokens, work; /* work: processor seconds for a token */
};

struct grown {
    double first, last;
    int n;
};

static int take(void *arg, int64_t step, double time, double value)
{
    struct grown *g = arg;
    (void)step, (void)time;
    if (!g->n++) g->first = value;
    g->last = value;
    return 1;
}

/* From the first sample of the site's metrics to the last. */
static double growth(const char *site, const char *name)
{
    char dir[300];
    struct neb_metrics *m;
    struct grown g = {0};
    snprintf(dir, sizeof dir, "run/%s", site);
    if (neb__metrics_read(dir, &m) != NEB_OK) return NAN;
    neb_status status = neb__metrics_each(m, name, take, &g);
    neb__metrics_close(m);
    return status == NEB_OK && g.n > 1 ? g.last - g.first : NAN;
}

/* The last lines of the site's log. */
static bool read_log(const char *job, const char *site, struct half *h)
{
    char path[300], *at;
    struct neb_buf b;
    *h = (struct half){0};
    snprintf(path, sizeof path, "run/%s/log", site);
    neb__buf_init(&b, 64 << 20);
    bool ok = neb__file_read(path, &b) == NEB_OK && neb__buf_append(&b, "", 1) == NEB_OK;
    char *text = ok ? (char *)b.data : NULL;
    if (ok && (at = strstr(text, " bytes for each of "))) {
        char *number = at;
        while (number > text && number[-1] != ' ') number--;
        h->per_row = atof(number);
        h->rows = atof(at + strlen(" bytes for each of "));
        at = strstr(at, " s waiting for ");
        for (number = at; number && number[-1] != ' ';) number--;
        if (number) h->waited = atof(number);
    }
    snprintf(path, sizeof path, "%s: ", job);
    for (at = ok ? strstr(text, path) : NULL; at; at = strstr(at + 1, path)) {
        double steps, tokens, seconds, rate;
        if (sscanf(at + strlen(path), "%lf steps, %lf tokens in %lf s (%lf tokens/s", &steps, &tokens,
                   &seconds, &rate) == 4)
            h->tokens = tokens, h->rate = rate;
    }
    h->work = growth(site, "cpu") / growth(site, "tokens");
    neb__buf_free(&b);
    return ok;
}

/* Runs one arm. `record` is an absolute path; NULL: over the line. */
static bool arm(const char *job, const char *wan, const char *record, struct half out[2])
{
    char file[64], words[PATH_MAX + 32];
    snprintf(file, sizeof file, "%s.yaml", job);
    snprintf(words, sizeof words, "wan.recorded=%s", record ? record : "");
    (void)!system("rm -rf run");
    char *argv[] = {(char *)(uintptr_t) "nebula-i",
                    (char *)(uintptr_t) "lab",
                    file,
                    (char *)(uintptr_t) "--wan",
                    (char *)(uintptr_t)wan,
                    (char *)(uintptr_t) "out=run",
                    record ? words : NULL,
                    NULL};
    return run(argv) && read_log(job, "a", &out[0]) && read_log(job, "b", &out[1]) && out[1].rate > 0;
}

static bool prepare(const char *job, char *record)
{
    char file[64], words[PATH_MAX + 32];
    snprintf(file, sizeof file, "%s.yaml", job);
    if (!getcwd(record, PATH_MAX - 40)) return false;
    snprintf(record + strlen(record), 40, "/record-%s", job);
    snprintf(words, sizeof words, "wan.recorded=%s", record);
    char *argv[] = {
        (char *)(uintptr_t) "nebula-i", (char *)(uintptr_t) "train",     file,  (char *)(uintptr_t) "--site",
        (char *)(uintptr_t) "a",        (char *)(uintptr_t) "out=first", words, NULL};
    return run(argv);
}

static bool measure(struct neb_figures *f, const char *job, const char *wan, const char *record,
                    int64_t repeats)
{
    double live[REPEATS_MAX], share[REPEATS_MAX], work[REPEATS_MAX];
    struct half h[2] = {{0}}, r[2] = {{0}};
    char line[64], name[128];
    for (int64_t i = 0; i < repeats; i++) { /* in turns, so that a noisy moment meets both */
        for (int64_t k = 0; k < 2; k++)
            if ((i + k) % 2 ? !arm(job, wan, NULL, h) : !arm(job, wan, record, r)) return false;
        live[i] = h[1].rate;
        share[i] = live[i] / r[1].rate;
        work[i] = r[1].work / h[1].work;
    }
    snprintf(line, sizeof line, "%s", wan);
    for (char *c = line; *c; c++)
        if (*c == ',') *c = '.';
    snprintf(name, sizeof name, "efficiency.%s.%s", job, line);
    neb__figures_add(f, name, 100 * neb__figures_median(share, (int)repeats), "%", NEB_AT_LEAST, 97);
    snprintf(name, sizeof name, "work.%s.%s", job, line);
    neb__figures_add(f, name, 100 * neb__figures_median(work, (int)repeats), "%", NEB_REPORT, 0);
    snprintf(name, sizeof name, "rate.%s.%s", job, line);
    neb__figures_add(f, name, neb__figures_median(live, (int)repeats), "tokens/s", NEB_REPORT, 0);
    snprintf(name, sizeof name, "waited.%s.%s", job, line);
    neb__figures_add(f, name, 100 * h[1].waited / (h[1].tokens / h[1].rate), "%", NEB_AT_MOST, 3);
    snprintf(name, sizeof name, "credit.%s.%s", job, line);
    neb__figures_add(f, name, 100 * h[0].waited / (h[1].tokens / h[1].rate), "%", NEB_REPORT, 0);
    snprintf(name, sizeof name, "bytes.%s.%s", job, line);
    neb__figures_add(f, name, h[1].per_row * h[1].rows / h[1].tokens, "bytes/token", NEB_REPORT, 0);
    if (!strcmp(job, "relay")) {
        snprintf(name, sizeof name, "masked.%s.%s", job, line);
        neb__figures_add(f, name, h[1].per_row, "bytes/masked token", NEB_AT_MOST, 3);
    }
    return true;
}

static bool measure_all(struct neb_figures *f, const struct options *o)
{
    static const char *const jobs[] = {"relay", "tutor"};
    char *const teacher[] = {(char *)(uintptr_t) "nebula-i", (char *)(uintptr_t) "train",
                             (char *)(uintptr_t) "teacher.yaml", NULL};
    if (write_jobs(o) != NEB_OK || !run(teacher)) return false;
    for (int j = 0; j < 2; j++) {
        char record[PATH_MAX], lines[256], *rest = NULL;
        if (o->only && strcmp(o->only, jobs[j])) continue;
        if (!prepare(jobs[j], record)) return false;
        snprintf(lines, sizeof lines, "%s", o->quick ? "100mbit,100ms" : o->wan);
        for (char *wan = strtok_r(lines, " ", &rest); wan; wan = strtok_r(NULL, " ", &rest))
            if (!measure(f, jobs[j], wan, record, o->quick ? 2 : o->repeats)) return false;
    }
    return true;
}

static int run_bench(int argc, char **argv)
{
    bool json = neb__bench_json(&argc, argv);
    struct options o;
    int rest;
    char dir[] = "/tmp/nebula-streams-XXXXXX";
    if (neb__opts_init(table, &o) != NEB_OK) return 1;
    if (neb__opts_args(table, &o, argc, argv, &rest) != NEB_OK || rest || o.repeats < 1 ||
        o.repeats > REPEATS_MAX) {
        neb__opts_help(table, stderr);
        neb__opts_free(table, &o);
        return 2;
    }
    struct neb_figures *f = neb__figures_begin("streams", json);
    bool made = !o.dir && mkdtemp(dir);
    if (o.dir) (void)neb__file_make_dir(o.dir, 0755);
    bool ok = f && !chdir(o.dir ? o.dir : dir) && measure_all(f, &o);
    char clean[80];
    snprintf(clean, sizeof clean, "rm -rf %s", dir);
    if (made && ok && chdir("/") == 0) (void)!system(clean);
    neb__opts_free(table, &o);
    int status = f ? neb__figures_end(f) : 1;
    return ok ? status : 1;
}

const struct neb_bench neb__bench_streams = {
    "streams", "relay and tutor in the laboratory: the slower site's rate over the line and on a record",
    run_bench, table};
