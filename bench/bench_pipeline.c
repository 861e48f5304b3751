/* bench_pipeline.c: a model on two sites: how much speed the line costs, how much loss the bits cost, and the bytes.
 *
 * Speed. Each stage computes at a fixed pace (train.speed: it sleeps for the rest of a turn), so the figures do not depend on
 * how busy the machine is, as long as it can keep that pace. The pace is half of the tokens a second that the line carries
 * with 8 bits. The same job then runs over a line of 1 Gbit/s without delay, and the two take turns.
 *
 * A machine that is too slow or too busy for that pace gets --slower K: the pace and the rate of the line are divided by K and the
 * round trip is multiplied by it. All that a share depends on stays (a message and a round trip take as many turns, and the line
 * holds as many bytes), while each turn has K times as long. `pace.kept` says whether the machine kept the pace.
 *
 * --memory caps both sites. It changes more than what fits: a capped stage begins with one micro-batch in flight, and takes more when a
 * step has shown how much one needs. This model is nearly all activations, which a pipeline has more of than one process: a cap below
 * what one process needs keeps the depth at 1.
 *
 *     efficiency.LINE         tokens/s over the line, as a share of those over 1 Gbit/s without delay, both behind the first step
 *     pace.kept               tokens/s over 1 Gbit/s without delay over those of stages that keep their pace
 *     bytes.ahead, .back      what crossed, over what the sizes of the messages say
 *     share.WIDTH.LINE        (--arm table) the same share for three widths and six lines, at one pace for all
 *     formula.WIDTH.LINE      what docs/pipeline.md predicts for it
 *
 * Learning. One process, and two sites with 8 and with 4 bits, learn the same steps from the same text, with several seeds.
 *
 *     loss.int8, loss.int4    held-out loss above that of one process, per cent, mean over the seeds */
#include "bench.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/opts.h"
#include "base/rng.h"
#include "codec/stream.h"
#include "store/metrics.h"

#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TURNS_MAX = 9, WORDS = 3000, LINES = 4000, ROWS = 512, STAGES = 2 };

/* The reference of each line. The laboratory always has a line: over this one a message takes a tenth of a turn at most, and
 * no time to come. */
static const char reference_line[] = "1000mbit,0ms";

struct options {
    char *arm, *text, *wan, *widths, *lines, *dir, *mode, *memory;
    int64_t turns, steps, micro, seeds, loss_steps, port;
    double slower;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, arm, NEB_OPT_TEXT, "both", NULL, "what is measured",
            NEB_OPT_CHOICE("both", "speed", "loss", "table")),
    NEB_OPT(struct options, wan, NEB_OPT_TEXT, "100mbit,50ms", NULL, "the line of the speed"),
    NEB_OPT(struct options, widths, NEB_OPT_TEXT, "512 1024 2048", NULL,
            "of the table; the speed takes the second"),
    NEB_OPT(struct options, lines, NEB_OPT_TEXT,
            "10mbit,10ms 10mbit,100ms 100mbit,10ms 100mbit,100ms 1000mbit,10ms 1000mbit,100ms", NULL,
            "of the table"),
    NEB_OPT(struct options, turns, NEB_OPT_INT, "2", NULL, "of each arm", NEB_OPT_RANGE(1, TURNS_MAX)),
    NEB_OPT(struct options, slower, NEB_OPT_REAL, "1", NULL,
            "stages and lines are so many times slower, and round trips longer: the same shares on a busy "
            "machine",
            NEB_OPT_RANGE(1, 1000)),
    NEB_OPT(struct options, steps, NEB_OPT_INT, "5", "steps", "of an arm of the speed",
            NEB_OPT_RANGE(2, 1e6)),
    NEB_OPT(struct options, micro, NEB_OPT_INT, "32", NULL, "micro-batches of such a step",
            NEB_OPT_RANGE(2, 4096)),
    NEB_OPT(struct options, memory, NEB_OPT_TEXT, "0", NULL,
            "train.memory of both sites in the speed and the table, such as 40MiB; 0: no cap"),
    NEB_OPT(struct options, seeds, NEB_OPT_INT, "3", NULL, "of the learning", NEB_OPT_RANGE(1, 99)),
    NEB_OPT(struct options, loss_steps, NEB_OPT_INT, "300", "steps", "of the learning",
            NEB_OPT_RANGE(1, 1e9)),
    NEB_OPT(struct options, text, NEB_OPT_TEXT, "", NULL,
            "a file of real text to learn from (default: made-up words); its last lines are held out"),
    NEB_OPT(struct options, mode, NEB_OPT_TEXT, "auto", NULL, "of the laboratory"),
    NEB_OPT(struct options, port, NEB_OPT_INT, "7000", NULL, "of the laboratory", NEB_OPT_RANGE(1, 65000)),
    NEB_OPT(struct options, dir, NEB_OPT_TEXT, "", NULL, "folder to work in (default: a new one under /tmp)"),
    NEB_OPT_END,
};

/* ---- files ------------------------------------------------------------------------------------------------ */

static neb_status made_up_text(struct neb_buf *b)
{
    static const char *const part[] = {"ka",  "lo", "mi", "ter", "un", "sa",
                                       "ber", "no", "vi", "rel", "do", "esh"};
    struct neb_rng r = {7};
    for (int line = 0; line < LINES; line++)
        for (int w = 0; w < 24; w++) {
            double u = neb__rng_uniform(&r);
            uint64_t word = (uint64_t)(WORDS * u * u * u);
            struct neb_rng spell = {word};
            for (uint64_t k = 2 + word % 3; k > 0; k--)
                NEB_TRY(neb__buf_printf(b, "%s", part[neb__rng_below(&spell, sizeof part / sizeof *part)]));
            NEB_TRY(neb__buf_printf(b, w < 23 ? " " : "\n"));
        }
    return NEB_OK;
}

/* The last twentieth, from the beginning of a line on, is held out. */
static neb_status write_text(const char *from)
{
    struct neb_buf b;
    neb__buf_init(&b, (size_t)1 << 30);
    neb_status status = from ? neb__file_read(from, &b) : made_up_text(&b);
    size_t cut = b.len - b.len / 20;
    while (status == NEB_OK && cut > 0 && b.data[cut - 1] != '\n') cut--;
    if (status == NEB_OK) status = neb__file_replace("text", b.data, cut, 0644);
    if (status == NEB_OK) status = neb__file_replace("valid", b.data + cut, b.len - cut, 0644);
    neb__buf_free(&b);
    return status;
}

/* A wide model that computes little: the line sees its width, and the machine keeps the pace. */
static neb_status write_jobs(const struct options *o)
{
    char text[2000];
    snprintf(text, sizeof text,
             "name: speed\ntask: mlm\ncache: data\nstrategy: pipeline\ntokenizer: {type: bpe, vocab: 300, "
             "lines: 2000}\n"
             "model: {family: bert, hidden: 512, layers: 2, heads: 1, head_dim: 16, ffn: 16, embedding: 32, "
             "tied: no, "
             "dropout: 0}\n"
             "train: {steps: %" PRId64 ", micro: %" PRId64
             ", tokens: %d, max_len: 128, log_every: 100000, save_every: 100000, threads: 1}\n"
             "sites: [{name: a, layers: 1}, {name: b, layers: 1}]\ndata: [{file: text}]\n",
             o->steps, o->micro, ROWS);
    NEB_TRY(neb__file_replace("speed.yaml", text, strlen(text), 0644));
    int n = snprintf(
        text, sizeof text,
        "name: loss\ntask: causal\ncache: data-loss\ntokenizer: {type: bpe, vocab: 2000, lines: 4000}\n"
        "model: {family: gpt2, hidden: 64, layers: 4, heads: 2, tied: no}\n"
        "train: {steps: %" PRId64
        ", micro: 4, tokens: 256, max_len: 64, lr: 3e-3, log_every: 100000, save_every: 100000, threads: 1}\n"
        "data: [{file: text}, {file: valid, use: valid}]\n",
        o->loss_steps);
    NEB_TRY(neb__file_replace("one.yaml", text, strlen(text), 0644));
    snprintf(text + n, sizeof text - (size_t)n, "strategy: pipeline\nsites: [{name: a}, {name: b}]\n");
    NEB_TRY(neb__file_replace("loss.yaml", text, strlen(text), 0644));
    return write_text(o->text);
}

/* ---- running ---------------------------------------------------------------------------------------------- */

/* The words end with NULL. */
static bool run(const char *const *words)
{
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        int fd = open("log", O_WRONLY | O_CREAT | O_APPEND, 0644);
        if (fd >= 0) dup2(fd, 1), dup2(fd, 2);
        execv("/proc/self/exe", (char **)(uintptr_t)words);
        _exit(127);
    }
    int status = -1;
    while (child > 0 && waitpid(child, &status, 0) < 0) continue;
    if (status) fprintf(stderr, "%s %s ended with status %x; see log\n", words[1], words[2], status);
    return !status;
}

/* The number before `after` in a site's log; NAN: it is not there. */
static double from_log(const char *site, const char *after)
{
    char path[64];
    struct neb_buf b;
    double value = NAN;
    snprintf(path, sizeof path, "run/%s/log", site);
    neb__buf_init(&b, 64 << 20);
    if (neb__file_read(path, &b) == NEB_OK && neb__buf_append(&b, "", 1) == NEB_OK) {
        const char *text = (const char *)b.data, *at = strstr(text, after), *number = at;
        while (number && number > text && number[-1] != ' ' && number[-1] != '(') number--;
        if (number) value = atof(number);
    }
    neb__buf_free(&b);
    return value;
}

struct arm {
    double rate, ahead, back; /* tokens/s; megabytes sent */
};

/* Of a line such as 100mbit,50ms. */
static void parse(const char *wan, double *bits, double *seconds)
{
    const char *comma = strchr(wan, ',');
    *bits = 1e6 * atof(wan);
    *seconds = comma ? 1e-3 * atof(comma + 1) : 0;
}

struct span {
    int64_t steps;
    double first, last; /* ends of the first and the last step, unix seconds */
};

static int take_span(void *arg, int64_t step, double time, double value)
{
    struct span *s = arg;
    (void)step, (void)value;
    if (!s->steps++) s->first = time;
    s->last = time;
    return 1;
}

/* Tokens a second behind the first step, in which stages start and plan. */
static double steady_rate(const struct options *o)
{
    struct span s = {0};
    struct neb_metrics *m;
    if (neb__metrics_read("run/a", &m) != NEB_OK) return NAN;
    (void)neb__metrics_each(m, "loss", take_span, &s);
    neb__metrics_close(m);
    if (s.steps != o->steps || !(s.last > s.first)) return NAN;
    return from_log("a", " tokens in") * (double)(s.steps - 1) / (double)s.steps / (s.last - s.first);
}

static bool speed_arm(const struct options *o, const char *wan, int64_t width, double pace, struct arm *out)
{
    char hidden[40], speed[40], port[16], line[64], memory[60];
    double bits, rtt;
    parse(wan, &bits, &rtt);
    snprintf(line, sizeof line, "%.6gmbit,%.6gms", 1e-6 * bits / o->slower, 1e3 * rtt * o->slower);
    snprintf(hidden, sizeof hidden, "model.hidden=%" PRId64, width);
    snprintf(speed, sizeof speed, "train.speed=%.6g", pace / o->slower);
    snprintf(port, sizeof port, "%" PRId64, o->port);
    snprintf(memory, sizeof memory, "train.memory=%.40s", o->memory);
    (void)!system("rm -rf run");
    const char *words[] = {"nebula-i", "lab",   "speed.yaml", "--wan", line,
                           "--mode",   o->mode, "--port",     port,    "out=run",
                           hidden,     speed,   "wan.bits=8", memory,  NULL};
    if (!run(words)) return false;
    *out = (struct arm){o->slower * steady_rate(o), from_log("a", " MB ahead"),
                        from_log("b", " MB back") - from_log("b", " MB of those sent")};
    return out->rate > 0;
}

static double line_tokens(const char *wan, int64_t width)
{
    double bits, rtt;
    parse(wan, &bits, &rtt);
    return 0.92 * bits / 8 / ((double)neb__activations_size(ROWS, (uint32_t)width, 8) / ROWS);
}

/* Turns of a step with and without the line. */
static double formula(const struct options *o, const char *wan, int64_t width, double pace)
{
    double bits, rtt, m = (double)o->micro, turn = ROWS / pace, transfer = ROWS / line_tokens(wan, width);
    parse(wan, &bits, &rtt);
    double alone = (m + STAGES - 1) * turn, with = alone + rtt + 2 * transfer,
           full = m * transfer + STAGES * turn + rtt + transfer;
    return alone / fmax(with, full);
}

/* The median share of turns in which both arms ran. */
static bool share_of(const struct options *o, const char *wan, int64_t width, double pace, double *share,
                     double *kept, struct arm *last)
{
    double all[TURNS_MAX], paces[TURNS_MAX], m = (double)o->micro;
    struct arm with = {0}, without = {0};
    for (int64_t i = 0; i < o->turns; i++) {
        for (int64_t k = 0; k < 2; k++)
            if ((i + k) % 2 ? !speed_arm(o, reference_line, width, pace, &without)
                            : !speed_arm(o, wan, width, pace, &with))
                return false;
        all[i] = with.rate / without.rate;
        paces[i] = without.rate / (pace * m / (m + STAGES - 1));
    }
    *share = neb__figures_median(all, (int)o->turns);
    *kept = neb__figures_median(paces, (int)o->turns);
    *last = with;
    return true;
}

static void name_line(const char *what, int64_t width, const char *wan, char *out, size_t size)
{
    char line[64];
    snprintf(line, sizeof line, "%s", wan);
    for (char *c = line; *c; c++)
        if (*c == ',') *c = '.';
    if (width)
        snprintf(out, size, "%s.%" PRId64 ".%s", what, width, line);
    else
        snprintf(out, size, "%s.%s", what, line);
}

static int64_t width_at(const struct options *o, int n)
{
    char *end = o->widths;
    int64_t width = 0;
    for (int i = 0; i <= n; i++) width = strtoll(end, &end, 10);
    return width;
}

static bool measure_speed(struct neb_figures *f, const struct options *o)
{
    char name[128];
    int64_t width = width_at(o, 1);
    double pace = 0.5 * line_tokens(o->wan, width), share, kept;
    struct arm a;
    if (!share_of(o, o->wan, width, pace, &share, &kept, &a)) return false;
    name_line("efficiency", 0, o->wan, name, sizeof name);
    neb__figures_add(f, name, share, "of the speed at 1 Gbit", NEB_AT_LEAST, 0.9);
    neb__figures_add(f, "pace.kept", kept, "of the pace at 1 Gbit", NEB_REPORT, 0);
    neb__figures_add(f, "formula", formula(o, o->wan, width, pace), "predicted", NEB_REPORT, 0);
    neb__figures_add(f, "rate", a.rate, "tokens/s", NEB_REPORT, 0);
    neb__figures_add(f, "pace", pace, "tokens/s of a stage alone", NEB_REPORT, 0);
    /* the rate of the rows that hold tokens is known, so the bytes are those of the tokens of all steps */
    double tokens = from_log("a", " tokens in"),
           each = (double)neb__activations_size(ROWS, (uint32_t)width, 8) / ROWS;
    double said = tokens * each / 1e6;
    neb__figures_add(f, "bytes.ahead", a.ahead / said, "of those predicted", NEB_REPORT, 0);
    neb__figures_add(f, "bytes.back", a.back / said, "of those predicted", NEB_REPORT, 0);
    return true;
}

/* The pace is what a line of 100 Mbit/s carries of the middle width, halved: 10 Mbit/s are too slow for it. */
static bool measure_table(struct neb_figures *f, const struct options *o)
{
    double pace = 0.5 * line_tokens("100mbit,0ms", width_at(o, 1));
    for (int w = 0; w < 3; w++) {
        char lines[400], *rest = NULL;
        snprintf(lines, sizeof lines, "%s", o->lines);
        for (char *wan = strtok_r(lines, " ", &rest); wan; wan = strtok_r(NULL, " ", &rest)) {
            char name[128];
            double share, kept;
            struct arm a;
            if (!share_of(o, wan, width_at(o, w), pace, &share, &kept, &a)) return false;
            name_line("share", width_at(o, w), wan, name, sizeof name);
            neb__figures_add(f, name, share, "of the speed at 1 Gbit", NEB_REPORT, 0);
            name_line("kept", width_at(o, w), wan, name, sizeof name);
            neb__figures_add(f, name, kept, "of the pace at 1 Gbit", NEB_REPORT, 0);
            name_line("formula", width_at(o, w), wan, name, sizeof name);
            neb__figures_add(f, name, formula(o, wan, width_at(o, w), pace), "predicted", NEB_REPORT, 0);
        }
    }
    return true;
}

/* ---- learning --------------------------------------------------------------------------------------------- */

static int take_last(void *arg, int64_t step, double time, double value)
{
    (void)step, (void)time;
    *(double *)arg = value;
    return 1;
}

static double held_out(const char *dir)
{
    double loss = NAN;
    struct neb_metrics *m;
    if (neb__metrics_read(dir, &m) != NEB_OK) return NAN;
    (void)neb__metrics_each(m, "valid/loss", take_last, &loss);
    neb__metrics_close(m);
    return loss;
}

static double learned(const struct options *o, int64_t seed, int bits)
{
    char seeds[40], code[40], port[16];
    snprintf(seeds, sizeof seeds, "seed=%" PRId64, seed);
    snprintf(code, sizeof code, "wan.bits=%d", bits);
    snprintf(port, sizeof port, "%" PRId64, o->port);
    (void)!system("rm -rf run");
    const char *alone[] = {"nebula-i", "train", "one.yaml", "out=run", seeds, NULL};
    const char *sites[] = {"nebula-i", "lab", "loss.yaml", "--wan", "1000mbit,1ms", "--mode", o->mode,
                           "--port",   port,  "out=run",   seeds,   code,           NULL};
    if (!run(bits ? sites : alone)) return NAN;
    return held_out(bits ? "run/a" : "run");
}

static bool measure_loss(struct neb_figures *f, const struct options *o)
{
    double above[2] = {0};
    for (int64_t seed = 1; seed <= o->seeds; seed++) {
        double one = learned(o, seed, 0);
        for (int i = 0; i < 2; i++) {
            double here = learned(o, seed, i ? 4 : 8);
            above[i] += 100 * (here / one - 1) / (double)o->seeds;
            fprintf(stderr, "seed %" PRId64 ": one process %.4f, %d bits %.4f\n", seed, one, i ? 4 : 8, here);
        }
    }
    neb__figures_add(f, "loss.int8", above[0], "% above one process", NEB_AT_MOST, 0.5);
    neb__figures_add(f, "loss.int4", above[1], "% above one process", NEB_AT_MOST, 1);
    return isfinite(above[0]) && isfinite(above[1]);
}

/* ---- the benchmark ---------------------------------------------------------------------------------------- */

static bool measure_all(struct neb_figures *f, const struct options *o)
{
    bool both = !strcmp(o->arm, "both");
    if (write_jobs(o) != NEB_OK) return false;
    if ((both || !strcmp(o->arm, "speed")) && !measure_speed(f, o)) return false;
    if ((both || !strcmp(o->arm, "loss")) && !measure_loss(f, o)) return false;
    return strcmp(o->arm, "table") || measure_table(f, o);
}

/* A relative path means the same after the change of the folder. */
static bool keep_path(struct options *o)
{
    char path[PATH_MAX];
    if (!o->text) return true;
    return realpath(o->text, path) && neb__opts_set(table, o, "text", path) == NEB_OK;
}

static int run_bench(int argc, char **argv)
{
    bool json = neb__bench_json(&argc, argv);
    struct options o;
    int rest;
    char dir[] = "/tmp/nebula-pipeline-XXXXXX";
    if (neb__opts_init(table, &o) != NEB_OK) return 1;
    if (neb__opts_args(table, &o, argc, argv, &rest) != NEB_OK || rest || width_at(&o, 2) < 1 ||
        !keep_path(&o)) {
        neb__opts_help(table, stderr);
        neb__opts_free(table, &o);
        return 2;
    }
    struct neb_figures *f = neb__figures_begin("pipeline", json);
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

const struct neb_bench neb__bench_pipeline = {
    "pipeline", "a model on two sites: its speed over a line, its loss with few bits, its bytes", run_bench,
    table};
