/* launch.c: the ranks of a site, started and watched from one command.
 *
 * The launcher is mpirun. In a Slurm allocation it starts the ranks on the allocated machines by itself. This
 * process only waits: the ranks write checkpoints, and a new set of ranks goes on from the newest. mpirun ends
 * all ranks when one of them dies. A rank that hangs is noticed by the others, which end all of them. */
#include "train/launch.h"
#include "base/log.h"
#include "base/mem.h"
#include "group/group.h"
#include "store/checkpoint.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORDS = 512, OWN = 128 << 10, TRIES = 3 };

extern char **environ;

bool neb__launch_needed(const struct neb_job *job)
{
    return neb__job_ranks(job) > 1 && !neb__group_started();
}

/* ---- the command ----------------------------------------------------------------------------------------- */

struct command {
    const char *word[WORDS + 1];
    int n;
    char exe[PATH_MAX], ranks[16];
    char own[OWN]; /* this process's arguments, each ended by 0 */
};

static void add(struct command *c, const char *word)
{
    if (c->n < WORDS) c->word[c->n++] = word;
}

/* The arguments of this process, as the system keeps them. */
static neb_status read_own_words(struct command *c, size_t *n)
{
    FILE *f = fopen("/proc/self/cmdline", "rb");
    *n = f ? fread(c->own, 1, sizeof c->own - 1, f) : 0;
    if (f) fclose(f);
    ssize_t length = readlink("/proc/self/exe", c->exe, sizeof c->exe - 1);
    if (!*n || length <= 0) return neb__fail(NEB_ERR_IO, "/proc/self cannot be read: %s", strerror(errno));
    c->exe[length] = '\0';
    return NEB_OK;
}

static neb_status make_command(const struct neb_job *job, struct command *c)
{
    size_t own;
    NEB_TRY(read_own_words(c, &own));
    snprintf(c->ranks, sizeof c->ranks, "%d", neb__job_ranks(job));
    add(c, "mpirun");
    add(c, "--quiet"); /* the ranks say themselves what is wrong */
    add(c, "-n");
    add(c, c->ranks);
    add(c, "--bind-to"); /* a rank has threads of its own */
    add(c, "none");
    if (job->parallel.hosts) {
        add(c, "--host");
        add(c, job->parallel.hosts);
    } else if (!getenv("SLURM_JOB_ID")) {
        add(c, "--oversubscribe"); /* the user has said how many */
    }
    add(c, c->exe);
    for (const char *p = c->own + strlen(c->own) + 1; p < c->own + own; p += strlen(p) + 1) add(c, p);
    c->word[c->n] = NULL;
    if (c->n < WORDS) return NEB_OK;
    return neb__fail(NEB_ERR_INVALID, "the command has more than %d words", WORDS);
}

/* Slurm starts as many tasks as the allocation says, so another number is a mistake in one of the two. */
static neb_status check_allocation(const struct neb_job *job)
{
    const char *tasks = getenv("SLURM_NTASKS");
    int want = neb__job_ranks(job);
    if (!getenv("SLURM_JOB_ID") || job->parallel.hosts || !tasks || atoi(tasks) == want) return NEB_OK;
    return neb__fail(NEB_ERR_CONFIG,
                     "the Slurm allocation has %d tasks, but the job's layout has %d ranks: ask Slurm for "
                     "--ntasks=%d, or change parallel",
                     atoi(tasks), want, want);
}

/* ---- one start ------------------------------------------------------------------------------------------- */

static volatile sig_atomic_t asked_to_stop; /* by this signal; 0: not yet */
static volatile pid_t launcher;

/* mpirun passes SIGUSR1 on to the ranks; SIGINT and SIGTERM would end them without a checkpoint. */
static void on_signal(int number)
{
    if (asked_to_stop && launcher > 0) kill(launcher, SIGTERM);
    asked_to_stop = number;
    if (launcher > 0) kill(launcher, SIGUSR1);
}

static void catch_signals(void)
{
    static const int list[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction now, ours = {.sa_handler = on_signal};
    for (int i = 0; i < 3; i++)
        if (!sigaction(list[i], NULL, &now) && now.sa_handler != SIG_IGN) sigaction(list[i], &ours, NULL);
}

/* In a process group of its own, so that a terminal's Ctrl-C reaches this process alone. */
static neb_status start(struct command *c)
{
    posix_spawnattr_t a;
    pid_t pid;
    posix_spawnattr_init(&a);
    posix_spawnattr_setflags(&a, POSIX_SPAWN_SETPGROUP);
    int e = posix_spawnp(&pid, "mpirun", NULL, &a, (char *const *)c->word, environ);
    posix_spawnattr_destroy(&a);
    if (e == ENOENT)
        return neb__fail(
            NEB_ERR_NOTFOUND,
            "several processes of a site are started by mpirun, which is not installed (Debian: apt "
            "install openmpi-bin)");
    if (e) return neb__fail(NEB_ERR_IO, "mpirun cannot be started: %s", strerror(e));
    launcher = pid;
    return NEB_OK;
}

static neb_status wait_for(int *code)
{
    int status;
    while (waitpid(launcher, &status, 0) < 0)
        if (errno != EINTR) return neb__fail(NEB_ERR_IO, "waiting for mpirun: %s", strerror(errno));
    launcher = 0;
    *code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return NEB_OK;
}

/* ---- until the end --------------------------------------------------------------------------------------- */

static bool rank_was_lost(int code)
{
    return !asked_to_stop && (code == NEB_EXIT_RANK_LOST || (code > 128 && code != 130));
}

static int64_t newest_checkpoint(const struct neb_job *job)
{
    char dir[PATH_MAX];
    int64_t steps[1024];
    snprintf(dir, sizeof dir, "%s/checkpoints", job->out);
    int n = neb__ckpt_list(dir, steps, 1024);
    return n > 0 ? steps[n - 1] : -1;
}

static neb_status run(const struct neb_job *job, struct command *c, int *code)
{
    int64_t reached = newest_checkpoint(job);
    for (int tries = 0; tries < TRIES;) {
        NEB_TRY(start(c));
        NEB_TRY(wait_for(code));
        if (asked_to_stop && *code > 128) *code = 128 + asked_to_stop;
        if (!rank_was_lost(*code)) return NEB_OK;
        int64_t now = newest_checkpoint(job);
        tries = now > reached ? 0 : tries + 1;
        reached = now;
        neb__warn("a rank was lost (exit status %d): starting all %s again %s%.0" PRId64, *code, c->ranks,
                  now < 0 ? "from the beginning" : "from the checkpoint of step ", now < 0 ? 0 : now);
    }
    return neb__fail(
        NEB_ERR_PEER,
        "ranks were lost %d times without a new checkpoint in between; see %s/ranks/*.log and the lines "
        "above",
        TRIES, job->out);
}

neb_status neb__launch_run(const struct neb_job *job, int *code)
{
    struct command *c = NEB_NEW(struct command);
    if (!c) return neb__fail(NEB_ERR_NOMEM, "out of memory for a command");
    neb_status status = neb__job_check_parallel(job);
    if (status == NEB_OK) status = check_allocation(job);
    if (status == NEB_OK) status = make_command(job, c);
    if (status == NEB_OK && !geteuid()) { /* mpirun refuses root unless told twice */
        setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
        setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    }
    catch_signals();
    if (status == NEB_OK) status = run(job, c, code);
    neb__free(c);
    return status;
}
