/* launch.c: the launcher of a site's ranks, as a child of the gateway.
 *
 * The launcher is mpirun, or srun in a Slurm allocation. Either starts the ranks on the allocated machines by itself
 * and ends all of them when one dies. It runs in a process group of its own, so that a terminal's Ctrl-C reaches the
 * gateway alone, which then ends the training in good order.
 *
 * On one machine the launcher gets a folder of its own for the memory that its ranks share. Open MPI's names for that
 * memory come from process numbers. Two launchers in different PID namespaces (sites in the laboratory, containers)
 * may have the same number, and their ranks would write into each other's memory. Ranks that are killed leave files there;
 * they go with the folder. A gateway locks its folder; the next one removes what a killed one has left. */
#define _GNU_SOURCE /* nftw */
#include "train/launch.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "group/group.h"

#include <errno.h>
#include <ftw.h>
#include <glob.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORDS = 512, OWN = 128 << 10, LOOK_MS = 20 };
static const double grace_s = 2, patience_s = 5;

extern char **environ;

bool neb__launch_needed(const struct neb_job *job)
{
    return neb__job_ranks(job) > 1 && !neb__group_started();
}

static bool in_slurm(void)
{
    return getenv("SLURM_JOB_ID") != NULL;
}

/* ---- the command ----------------------------------------------------------------------------------------- */

struct neb_launch {
    pid_t pid; /* 0: none runs */
    const char *word[WORDS + 1];
    int n;
    char exe[PATH_MAX], ranks[16];
    int code;                                           /* with which the last one ended */
    char dir[64];                                       /* for shared memory; "": none */
    int lock;                                           /* of that folder; -1: none */
    char own[OWN];                                      /* this process's arguments, each ended by 0 */
    char layout[NEB_JOB_LAYOUT_WORDS][NEB_JOB_WORD];    /* what the planner has chosen */
    char setting[NEB_JOB_SETTINGS_WORDS][NEB_JOB_WORD]; /* what follows from the roster */
};

static void add(struct neb_launch *c, const char *word)
{
    if (c->n < WORDS) c->word[c->n++] = word;
}

/* The arguments of this process, as the system keeps them. */
static neb_status read_own_words(struct neb_launch *c, size_t *n)
{
    FILE *f = fopen("/proc/self/cmdline", "rb");
    *n = f ? fread(c->own, 1, sizeof c->own - 1, f) : 0;
    if (f) fclose(f);
    ssize_t length = readlink("/proc/self/exe", c->exe, sizeof c->exe - 1);
    if (!*n || length <= 0) return neb__fail(NEB_ERR_IO, "/proc/self cannot be read: %s", strerror(errno));
    c->exe[length] = '\0';
    return NEB_OK;
}

static void add_mpirun(const struct neb_job *job, struct neb_launch *c)
{
    add(c, "mpirun");
    add(c, "--quiet"); /* the ranks say themselves what is wrong */
    add(c, "-n");
    add(c, c->ranks);
    add(c, "-x"); /* by its name: the value is not in the command */
    add(c, getenv(NEB_PROBE_VARIABLE) ? NEB_PROBE_VARIABLE : "NEBULA_GATEWAY");
    add(c, "--bind-to"); /* a rank has threads of its own */
    add(c, "none");
    for (int i = 0; *c->dir && i < 3; i++) {
        static const char *const names[] = {"orte_tmpdir_base", "btl_vader_backing_directory",
                                            "osc_sm_backing_directory"};
        add(c, "--mca");
        add(c, names[i]);
        add(c, c->dir);
    }
    if (job->parallel.hosts) {
        add(c, "--host");
        add(c, job->parallel.hosts);
    } else if (!in_slurm()) {
        add(c, "--oversubscribe"); /* the user has said how many */
    }
}

static void add_srun(struct neb_launch *c)
{
    add(c, "srun");
    add(c, "--quiet");
    add(c, "--mpi=pmix");
    add(c, "-n");
    add(c, c->ranks);
    add(c, "--export=ALL");
    add(c, "--cpu-bind=none");
    add(c, "--kill-on-bad-exit=1"); /* the others could not go on */
}

/* Open MPI of Debian finds the other ranks of an srun by PMIx and by nothing else. */
static bool srun_speaks_pmix(void)
{
    char line[256];
    bool found = false;
    FILE *f = popen("srun --mpi=list 2>&1", "re");
    while (f && fgets(line, sizeof line, f)) found |= strstr(line, "pmix") != NULL;
    return f && !pclose(f) && found;
}

/* The job file says `auto`: the ranks are told what that means here. */
static void add_layout(const struct neb_job *job, struct neb_launch *c)
{
    neb__job_layout_words(job, &job->parallel, c->layout);
    for (int i = 0; i < NEB_JOB_LAYOUT_WORDS; i++) add(c, c->layout[i]);
}

/* The ranks know no roster, by whose rules the gateway has filled in what the job leaves to the program. */
static void add_settings(const struct neb_job *job, struct neb_launch *c)
{
    const int n = neb__job_settings_words(job, c->setting);
    for (int i = 0; i < n; i++) add(c, c->setting[i]);
}

static neb_status make_command(const struct neb_job *job, int ranks, struct neb_launch *c)
{
    size_t own;
    const char *launcher = job->parallel.launcher;
    bool srun = !strcmp(launcher, "srun") ||
                (!strcmp(launcher, "auto") && in_slurm() && !job->parallel.hosts && srun_speaks_pmix());
    NEB_TRY(read_own_words(c, &own));
    snprintf(c->ranks, sizeof c->ranks, "%d", ranks);
    if (srun)
        add_srun(c);
    else
        add_mpirun(job, c);
    add(c, c->exe);
    for (const char *p = c->own + strlen(c->own) + 1; p < c->own + own; p += strlen(p) + 1) add(c, p);
    if (job->parallel.chosen) add_layout(job, c);
    add_settings(job, c);
    c->word[c->n] = NULL;
    if (c->n < WORDS) return NEB_OK;
    return neb__fail(NEB_ERR_INVALID, "the command has more than %d words", WORDS);
}

/* Slurm starts as many tasks as the allocation says, so another number is a mistake in one of the two. */
static neb_status check_allocation(const struct neb_job *job)
{
    const char *tasks = getenv("SLURM_NTASKS");
    int want = neb__job_ranks(job);
    if (!in_slurm() || job->parallel.hosts || !tasks || atoi(tasks) == want) return NEB_OK;
    return neb__fail(NEB_ERR_CONFIG,
                     "the Slurm allocation has %d tasks, but the job's layout has %d ranks: ask Slurm for "
                     "--ntasks=%d, or change parallel",
                     atoi(tasks), want, want);
}

/* ---- starting and ending ----------------------------------------------------------------------------------- */

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *f)
{
    (void)st, (void)type, (void)f;
    (void)remove(path);
    return 0;
}

static void remove_folder(const char *path)
{
    (void)nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* Folders of this user whose gateway was killed: nobody holds their lock. */
static void remove_left(void)
{
    glob_t found;
    struct stat st;
    int lock;
    if (glob("/dev/shm/nebula-i-ranks-??????", GLOB_NOSORT, NULL, &found)) return;
    for (size_t i = 0; i < found.gl_pathc; i++) {
        const char *path = found.gl_pathv[i];
        if (lstat(path, &st) || !S_ISDIR(st.st_mode) || st.st_uid != geteuid()) continue;
        if (neb__file_lock(path, NEB_LOCK_FOLDER, &lock) != NEB_OK) continue;
        remove_folder(path);
        close(lock);
    }
    globfree(&found);
}

/* Another gateway may take a folder without a lock for one that is left, and remove it. */
static bool made_and_locked(struct neb_launch *l)
{
    if (!mkdtemp(l->dir)) return false;
    if (neb__file_lock(l->dir, NEB_LOCK_FOLDER, &l->lock) == NEB_OK && !access(l->dir, F_OK)) return true;
    if (l->lock >= 0) close(l->lock);
    l->lock = -1;
    (void)rmdir(l->dir);
    return false;
}

/* In memory if possible. Without one the launcher uses its own. */
static void make_folder(struct neb_launch *l)
{
    static const char *const places[] = {"/dev/shm/nebula-i-ranks-XXXXXX", "/dev/shm/nebula-i-ranks-XXXXXX",
                                         "/tmp/nebula-i-ranks-XXXXXX"};
    remove_left();
    for (int i = 0; i < 3; i++) {
        snprintf(l->dir, sizeof l->dir, "%s", places[i]);
        if (made_and_locked(l)) return;
    }
    *l->dir = '\0';
}

neb_status neb__launch_open(const struct neb_job *job, struct neb_launch **out)
{
    NEB_TRY(neb__job_check_parallel(job));
    NEB_TRY(check_allocation(job));
    return neb__launch_open_ranks(job, neb__job_ranks(job), out);
}

static void use_network(const char *part, const char *network, bool asked)
{
    char include[64], exclude[64];
    snprintf(include, sizeof include, "OMPI_MCA_%s_tcp_if_include", part);
    snprintf(exclude, sizeof exclude, "OMPI_MCA_%s_tcp_if_exclude", part);
    if (asked) unsetenv(exclude); /* it takes one of the two */
    if (asked || (!getenv(include) && !getenv(exclude))) setenv(include, network, 1);
}

/* The engine authenticates and encrypts nothing. Ranks that are all on this machine get no network at all, others those that the
 * job names. What the user says in the environment stays. */
static void choose_networks(const struct neb_job *job)
{
    const char *network = job->parallel.network;
    bool here = !job->parallel.hosts && !in_slurm();
    if (here) {
        setenv("OMPI_MCA_pml", "ob1", 0); /* the one that btl is about */
        setenv("OMPI_MCA_btl", "self,vader", 0);
    }
    if (!network && !here)
        neb__info(
            "the ranks may talk over any network of their machines; parallel.network names those that they "
            "should use (docs/cluster.md)");
    if (here || network) use_network("btl", network ? network : "lo", network != NULL);
    if (here || network) use_network("oob", network ? network : "lo", network != NULL);
}

neb_status neb__launch_open_ranks(const struct neb_job *job, int ranks, struct neb_launch **out)
{
    struct neb_launch *l = NEB_NEW(struct neb_launch);
    if (!l) return neb__fail(NEB_ERR_NOMEM, "out of memory for a command");
    l->lock = -1;
    if (!job->parallel.hosts && !in_slurm()) make_folder(l);
    choose_networks(job);
    neb_status status = make_command(job, ranks, l);
    if (status == NEB_OK && !geteuid()) { /* mpirun refuses root unless told twice */
        setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
        setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    }
    if (status != NEB_OK) {
        neb__launch_close(l);
        return status;
    }
    *out = l;
    return NEB_OK;
}

void neb__launch_close(struct neb_launch *l)
{
    if (!l) return;
    if (*l->dir) remove_folder(l->dir);
    if (l->lock >= 0) close(l->lock);
    neb__free(l);
}

/* The child gets the signals' default actions, whatever the gateway does with them. */
neb_status neb__launch_start(struct neb_launch *l)
{
    posix_spawnattr_t a;
    sigset_t all;
    pid_t pid;
    sigemptyset(&all);
    static const int list[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) sigaddset(&all, list[i]);
    posix_spawnattr_init(&a);
    posix_spawnattr_setflags(&a, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setsigdefault(&a, &all);
    int e = posix_spawnp(&pid, l->word[0], NULL, &a, (char *const *)l->word, environ);
    posix_spawnattr_destroy(&a);
    if (e == ENOENT)
        return neb__fail(NEB_ERR_NOTFOUND,
                         "several processes of a site are started by %s, which is not installed (Debian: apt "
                         "install %s)",
                         l->word[0], strcmp(l->word[0], "srun") ? "openmpi-bin" : "slurm-client");
    if (e) return neb__fail(NEB_ERR_IO, "%s cannot be started: %s", l->word[0], strerror(e));
    l->pid = pid;
    return NEB_OK;
}

bool neb__launch_ended(struct neb_launch *l, int *code)
{
    int status = 0;
    *code = l->code;
    if (!l->pid) return true;
    pid_t pid = waitpid(l->pid, &status, WNOHANG);
    if (pid == 0 || (pid < 0 && errno == EINTR)) return false;
    l->pid = 0;
    l->code = *code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return true;
}

static bool ends_within(struct neb_launch *l, double seconds)
{
    int64_t since = neb__now_ns();
    int code;
    while (!neb__launch_ended(l, &code)) {
        if (neb__seconds_since(since) > seconds) return false;
        poll(NULL, 0, LOOK_MS);
    }
    return true;
}

/* The launcher ends the ranks, those that hang by force. */
void neb__launch_stop(struct neb_launch *l)
{
    if (ends_within(l, grace_s)) return; /* one that ends its ranks takes a second signal badly */
    kill(l->pid, SIGTERM);
    if (ends_within(l, patience_s)) return;
    kill(-l->pid, SIGKILL);
    (void)ends_within(l, patience_s);
}

bool neb__launch_lost(int code)
{
    return code == NEB_EXIT_RANK_LOST || code > 128;
}
