/* parallel_arm.c: a layout of ranks that steps on demand.
 *
 * The processes of an arm take the way of a training: the same job, data, layout and step. Only the loop is
 * another one: the first rank reads a line and tells the others. An arm that waits takes hardly any time from
 * the one that is measured. */
#include "parallel_arm.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/rng.h"
#include "group/layout.h"
#include "job/job.h"
#include "optim/beside.h"
#include "task/work.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LINES = 400, FIRST_WORD = 5 };

extern char **environ;

/* ---- the job ---------------------------------------------------------------------------------------------- */

static neb_status write_vocabulary(const char *path, int64_t vocab)
{
    FILE *f = fopen(path, "w");
    if (!f) return neb__fail(NEB_ERR_IO, "%s cannot be written: %s", path, strerror(errno));
    fprintf(f, "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n");
    for (int64_t i = FIRST_WORD; i < vocab; i++) fprintf(f, "w%" PRId64 "\n", i);
    return fclose(f) ? neb__fail(NEB_ERR_IO, "%s cannot be written: %s", path, strerror(errno)) : NEB_OK;
}

/* Lines that are as long as a sample without its two ends, so every batch is full. */
static neb_status write_text(const char *path, const struct neb_arm_job *j)
{
    struct neb_rng rng = {1};
    FILE *f = fopen(path, "w");
    if (!f) return neb__fail(NEB_ERR_IO, "%s cannot be written: %s", path, strerror(errno));
    for (int line = 0; line < LINES; line++) {
        for (int64_t i = 0; i < j->max_len - 2; i++)
            fprintf(f, "w%" PRId64 " ",
                    FIRST_WORD + (int64_t)neb__rng_below(&rng, (uint64_t)(j->vocab - FIRST_WORD)));
        fprintf(f, "\n");
    }
    return fclose(f) ? neb__fail(NEB_ERR_IO, "%s cannot be written: %s", path, strerror(errno)) : NEB_OK;
}

static neb_status write_job(const char *path, const struct neb_arm_job *j)
{
    FILE *f = fopen(path, "w");
    if (!f) return neb__fail(NEB_ERR_IO, "%s cannot be written: %s", path, strerror(errno));
    fprintf(f,
            "name: parallel\ntask: causal\nout: %s/out\ncache: %s/cache\n"
            "tokenizer: {file: %s/vocab.txt}\n"
            "model: {family: gpt2, hidden: %" PRId64 ", layers: %" PRId64 ", heads: %" PRId64
            ", max_positions: %" PRId64 "}\n"
            "train: {steps: 1000000, tokens: %" PRId64 ", micro: %" PRId64 ", max_len: %" PRId64
            ", lr: 1e-4, device: %s, dtype: %s}\n"
            "data: [{file: %s/text}]\n",
            j->folder, j->folder, j->folder, j->hidden, j->layers, j->heads, j->max_len, j->tokens, j->micro,
            j->max_len, j->device, j->dtype, j->folder);
    return fclose(f) ? neb__fail(NEB_ERR_IO, "%s cannot be written: %s", path, strerror(errno)) : NEB_OK;
}

neb_status neb__arm_job_make(const struct neb_arm_job *j)
{
    char path[PATH_MAX];
    struct neb_job job;
    struct neb_data data;
    NEB_TRY(neb__file_make_dir(j->folder, 0755));
    snprintf(path, sizeof path, "%s/vocab.txt", j->folder);
    NEB_TRY(write_vocabulary(path, j->vocab));
    snprintf(path, sizeof path, "%s/text", j->folder);
    NEB_TRY(write_text(path, j));
    snprintf(path, sizeof path, "%s/job.yaml", j->folder);
    NEB_TRY(write_job(path, j));
    NEB_TRY(neb__job_read(path, NULL, 0, &job));
    neb_status status = neb__data_prepare(&job, &data);
    if (status == NEB_OK) neb__data_free(&data);
    neb__job_free(&job);
    return status;
}

/* ---- the processes ---------------------------------------------------------------------------------------- */

struct server {
    struct neb_job job;
    struct neb_data data;
    struct neb_group *ranks;
    struct neb_layout layout;
    struct neb_work *work;
};

static neb_status open_server(struct server *s)
{
    const struct neb_job_parallel *p = &s->job.parallel;
    NEB_TRY(neb__job_check_parallel(&s->job));
    if (neb__job_ranks(&s->job) > 1) NEB_TRY(neb__group_join(p->timeout, &s->ranks));
    NEB_TRY(neb__layout_open(s->ranks, (int)p->data, (int)p->pipeline, (int)p->tensor, &s->layout));
    NEB_TRY(neb__data_prepare(&s->job, &s->data));
    return neb__work_open_ranks(&s->data, 0, 1, NULL, s->ranks ? &s->layout : NULL, &s->work);
}

static void close_server(struct server *s)
{
    neb__work_close(s->work);
    neb__layout_close(&s->layout);
    neb__data_free(&s->data);
    neb__group_close(s->ranks);
    neb__job_free(&s->job);
}

/* Steps as a training makes them: the host does not wait for a device between them. idle: the mean over the ranks of
 * the share in which they waited for other stages. */
static neb_status make_steps(struct server *s, int64_t steps, struct neb_arm_step *out)
{
    struct neb_work_step result;
    double all[2], idle[2];
    int64_t since = neb__now_ns();
    neb__work_stage_times(s->work, &all[0], &idle[0]);
    for (int64_t i = 0; i < steps; i++) NEB_TRY(neb__work_step(s->work, 1e-4f, &result));
    NEB_TRY(neb_device_sync(neb__work_device(s->work)));
    NEB_TRY(neb__group_barrier(s->ranks));
    out->seconds = neb__seconds_since(since) / (double)steps;
    neb__work_stage_times(s->work, &all[1], &idle[1]);
    double share = all[1] > all[0] ? (idle[1] - idle[0]) / (all[1] - all[0]) : 0;
    NEB_TRY(neb__group_sum_doubles(s->ranks, &share, 1));
    out->idle = share / neb__group_size(s->ranks);
    struct neb_work_memory memory;
    neb__work_memory(s->work, &memory);
    int64_t most[2] = {memory.state, memory.runs};
    NEB_TRY(neb__group_max(s->ranks, most, 2));
    out->state = (double)most[0];
    out->runs = (double)most[1];
    out->values = (double)memory.values;
    return NEB_OK;
}

struct order {
    int64_t steps, behind; /* steps 0: the end */
};

/* The first rank reads it. */
static neb_status next_order(struct server *s, struct order *o)
{
    char line[32];
    neb__group_busy(s->ranks, true); /* ranks on other machines wait without a limit, too */
    if (!neb__group_rank(s->ranks)) {
        *o = (struct order){0};
        if (fgets(line, sizeof line, stdin)) *o = (struct order){atoll(line), strstr(line, "behind") != NULL};
    }
    neb_status status = neb__group_broadcast(s->ranks, o, sizeof *o, 0);
    neb__group_busy(s->ranks, false);
    NEB_TRY(status);
    if (o->behind && !neb__device_sums_beside(s->layout.data))
        return neb__fail(NEB_ERR_CONFIG,
                         "the ranks are on one machine, where CPUs never make sums beside the "
                         "backward pass: bench/beside.sh has two");
    neb__beside_behind(neb__work_optimizer(s->work), o->behind);
    return NEB_OK;
}

static neb_status serve(struct server *s)
{
    bool first = !neb__group_rank(s->ranks);
    struct order o = {0};
    if (first) printf("ready\n");
    for (;;) {
        struct neb_arm_step r;
        if (first) fflush(stdout);
        NEB_TRY(next_order(s, &o));
        if (o.steps < 1) return NEB_OK;
        NEB_TRY(make_steps(s, o.steps, &r));
        if (first) printf("%.9g %.9g %.12g %.12g %.12g\n", r.seconds, r.idle, r.state, r.runs, r.values);
    }
}

int neb__arm_serve(const char *folder, const char *layout)
{
    char path[PATH_MAX], text[256], *words[8], *rest = NULL;
    struct server s = {0};
    int n = 0;
    snprintf(path, sizeof path, "%s/job.yaml", folder);
    snprintf(text, sizeof text, "%s", layout);
    for (char *w = strtok_r(text, " ", &rest); w && n < 8; w = strtok_r(NULL, " ", &rest)) words[n++] = w;
    if (neb__job_read(path, words, n, &s.job) != NEB_OK) return 1;
    neb_status status = neb__group_agree(s.ranks, open_server(&s));
    if (status == NEB_OK) status = serve(&s);
    if (status != NEB_OK && s.ranks) neb__group_abort(s.ranks, 1);
    close_server(&s);
    return status != NEB_OK;
}

/* ---- starting them ---------------------------------------------------------------------------------------- */

static neb_status spawn(const char *const *words, struct neb_arm *out)
{
    int to[2], from[2];
    if (pipe(to) || pipe(from)) return neb__fail(NEB_ERR_IO, "no pipe: %s", strerror(errno));
    posix_spawn_file_actions_t f;
    posix_spawn_file_actions_init(&f);
    posix_spawn_file_actions_adddup2(&f, to[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&f, from[1], STDOUT_FILENO);
    int all[] = {to[0], to[1], from[0], from[1]};
    for (int i = 0; i < 4; i++) posix_spawn_file_actions_addclose(&f, all[i]);
    int e = posix_spawnp(&out->pid, words[0], &f, NULL, (char *const *)(uintptr_t)words, environ);
    posix_spawn_file_actions_destroy(&f);
    close(to[0]);
    close(from[1]);
    out->to = to[1];
    out->from = from[0];
    if (!e) return NEB_OK;
    close(out->to);
    close(out->from);
    return neb__fail(e == ENOENT ? NEB_ERR_NOTFOUND : NEB_ERR_IO, "%s cannot be started: %s", words[0],
                     strerror(e));
}

static neb_status read_line(const struct neb_arm *a, char *line, size_t size)
{
    size_t n = 0;
    while (n + 1 < size) {
        ssize_t got = read(a->from, line + n, 1);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return neb__fail(NEB_ERR_PEER, "the processes of a layout have ended early");
        if (line[n] == '\n') break;
        n++;
    }
    line[n] = 0;
    return NEB_OK;
}

neb_status neb__arm_start(const char *folder, const char *layout, int ranks, struct neb_arm *out)
{
    char exe[PATH_MAX], count[16], line[64];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0) return neb__fail(NEB_ERR_IO, "/proc/self/exe: %s", strerror(errno));
    exe[n] = 0;
    snprintf(count, sizeof count, "%d", ranks);
    const char *words[] = {"mpirun",          "--quiet", "-n",    count,      "--bind-to", "none",
                           "--oversubscribe", exe,       "bench", "parallel", "--out",     folder,
                           "--serve",         layout,    NULL};
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    signal(SIGPIPE, SIG_IGN);
    NEB_TRY(spawn(ranks > 1 ? words : words + 7, out));
    neb_status status = read_line(out, line, sizeof line);
    if (status == NEB_OK && strcmp(line, "ready"))
        status = neb__fail(NEB_ERR_PEER, "'%.40s' instead of 'ready'", line);
    if (status != NEB_OK) neb__arm_stop(out);
    return status;
}

void neb__arm_stop(struct neb_arm *a)
{
    if (a->pid <= 0) return;
    close(a->to);
    close(a->from);
    while (waitpid(a->pid, NULL, 0) < 0 && errno == EINTR) continue;
    *a = (struct neb_arm){0};
}

static neb_status step(struct neb_arm *a, int64_t steps, const char *how, struct neb_arm_step *out)
{
    char line[128];
    int length = snprintf(line, sizeof line, "%" PRId64 "%s\n", steps, how);
    if (write(a->to, line, (size_t)length) != length)
        return neb__fail(NEB_ERR_PEER, "a layout takes no orders any more");
    NEB_TRY(read_line(a, line, sizeof line));
    int n =
        sscanf(line, "%lf %lf %lf %lf %lf", &out->seconds, &out->idle, &out->state, &out->runs, &out->values);
    if (n == 5 && out->seconds > 0 && out->values > 0) return NEB_OK;
    return neb__fail(NEB_ERR_PEER, "'%.40s' is not the time of a step", line);
}

neb_status neb__arm_step(struct neb_arm *a, int64_t steps, struct neb_arm_step *out)
{
    return step(a, steps, "", out);
}

neb_status neb__arm_step_behind(struct neb_arm *a, int64_t steps, struct neb_arm_step *out)
{
    return step(a, steps, " behind", out);
}
