/* site_processes.c: starts and ends threads and processes inside a site.
 *
 * A command does not run alone. This process forks a *keeper*, which is the first process of a new PID
 * namespace and has its own mount namespace (its /proc, and an /etc/hosts that knows the sites). The keeper
 * forks the command and waits. When the keeper ends, the kernel ends everything that the command ever
 * started. The keeper ends when the command does, when it is killed, or when the socket that ties it to this
 * process closes, which happens however this process dies. In mode relay there are no namespaces: the keeper
 * then kills the command's process group.
 *
 *     this process --tie--> keeper (pid 1 over there) --fork--> command (own process group)
 *
 * The tie also reports how the start went. The command sends one byte; from its credentials the kernel tells
 * us the command's pid as seen from here. A keeper that fails sends a line of text instead.
 */
#define _GNU_SOURCE
#include "net/lab/lab_internal.h"
#include "base/log.h"
#include "base/mem.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

/* ---- threads ------------------------------------------------------------------------------------------- */

neb_status neb__lab_enter(struct neb_lab *lab, int site)
{
    if (site < 0 || site >= lab->sites) return neb__fail(NEB_ERR_INVALID, "no site %d", site);
    return lab->loopback ? NEB_OK : neb__netns_enter(lab->tun[site].ns);
}

struct call {
    struct neb_lab *lab;
    int site, (*fn)(void *), result;
    void *arg;
    neb_status status;
};

static void *call(void *arg)
{
    struct call *c = arg;
    c->status = neb__lab_enter(c->lab, c->site);
    if (c->status == NEB_OK) c->result = c->fn(c->arg);
    return NULL;
}

neb_status neb__lab_call(struct neb_lab *lab, int site, int (*fn)(void *arg), void *arg, int *result)
{
    struct call c = {.lab = lab, .site = site, .fn = fn, .arg = arg};
    pthread_t thread;
    int e = pthread_create(&thread, NULL, call, &c);
    if (e) return neb__fail(NEB_ERR_IO, "cannot start a thread in site %s: %s", lab->name[site], strerror(e));
    pthread_join(thread, NULL);
    if (c.status == NEB_OK && result) *result = c.result;
    return c.status;
}

/* ---- a command's surroundings -------------------------------------------------------------------------- */

/* The command's environment and /etc/hosts, made before the fork. */
struct surroundings {
    char **env;
    int vars;
    char *hosts;
};

static void surroundings_free(struct surroundings *s)
{
    for (int i = 0; s->env && i < s->vars; i++) neb__free(s->env[i]);
    neb__free(s->env);
    neb__free(s->hosts);
}

__attribute__((format(printf, 2, 3))) static bool add(struct surroundings *s, const char *fmt, ...)
{
    char text[4096];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    s->env[s->vars] = neb__strdup(text);
    return s->env[s->vars] && ++s->vars;
}

static bool add_sites(struct surroundings *s, struct neb_lab *lab, int site)
{
    char all[NEB_LAB_SITES * (NEB_LAB_NAME + 1)] = "", upper[NEB_LAB_NAME];
    bool ok = true;
    for (int i = 0; i < lab->sites; i++) {
        size_t used = strlen(all);
        snprintf(all + used, sizeof all - used, "%s%s", i ? " " : "", lab->name[i]);
        snprintf(upper, sizeof upper, "%s", lab->name[i]);
        for (char *c = upper; *c; c++)
            *c = isalnum((unsigned char)*c) ? (char)toupper((unsigned char)*c) : '_';
        ok = ok && add(s, "NEBULA_WAN_ADDR_%s=%s", upper, neb__lab_address(lab, site, i));
    }
    return ok && add(s, "NEBULA_WAN_SITE=%s", lab->name[site]) && add(s, "NEBULA_WAN_INDEX=%d", site) &&
           add(s, "NEBULA_WAN_SITES=%s", all) &&
           add(s, "NEBULA_WAN_ADDR=%s", neb__lab_address(lab, site, site)) &&
           add(s, "NEBULA_WAN_MODE=%s", neb__lab_mode_name(lab->mode));
}

/* Whether `list` sets the variable that `entry` (NAME=VALUE) sets. */
static bool sets(char *const *list, const char *entry)
{
    size_t n = strcspn(entry, "=") + 1;
    for (; list && *list; list++)
        if (!strncmp(*list, entry, n)) return true;
    return false;
}

static bool add_copy(struct surroundings *s, const char *entry)
{
    s->env[s->vars] = neb__strdup(entry);
    return s->env[s->vars] && ++s->vars;
}

static neb_status surroundings_make(struct surroundings *s, struct neb_lab *lab, int site, char *const *more)
{
    size_t added = 0;
    while (more && more[added]) added++;
    size_t n = 0, size = 64 + (size_t)lab->sites * (NEB_LAB_NAME + 20), used;
    while (environ[n]) n++;
    *s = (struct surroundings){.env = NEB_NEW_ARRAY(char *, n + added + (size_t)lab->sites + 8),
                               .hosts = neb__malloc(size)};
    bool ok = s->env && s->hosts;
    for (size_t i = 0; ok && i < n; i++)
        if (strncmp(environ[i], "NEBULA_WAN_", 11) && !sets(more, environ[i])) ok = add_copy(s, environ[i]);
    for (size_t i = 0; ok && i < added; i++) ok = add_copy(s, more[i]);
    ok = ok && add_sites(s, lab, site);
    if (!ok) {
        surroundings_free(s);
        return neb__fail(NEB_ERR_NOMEM, "out of memory for a command's environment");
    }
    used = (size_t)snprintf(s->hosts, size, "127.0.0.1 localhost\n");
    for (int i = 0; i < lab->sites; i++)
        used += (size_t)snprintf(s->hosts + used, size - used, "%s %s\n", neb__lab_address(lab, site, i),
                                 lab->name[i]);
    return NEB_OK;
}

/* ---- the keeper ---------------------------------------------------------------------------------------- */

static _Noreturn void keeper_fails(int tie, const char *what)
{
    char line[256];
    int n = snprintf(line, sizeof line, "%s: %s", what, strerror(errno));
    (void)!write(tie, line, (size_t)n);
    _exit(125);
}

/* Mounts a /proc for the new PID namespace and an /etc/hosts with the sites' names. If a mount is refused the
 * command does without it; its environment has the addresses. The hosts file is written to a tmpfs that is on
 * /proc for a moment, so it needs no place on a disk and no cleanup. */
static void own_mounts(const char *hosts)
{
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) return;
    if (!mount("tmpfs", "/proc", "tmpfs", MS_NOSUID | MS_NODEV, "size=64k,mode=0755")) {
        int fd = open("/proc/hosts", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        if (fd >= 0) {
            if (write(fd, hosts, strlen(hosts)) == (ssize_t)strlen(hosts))
                mount("/proc/hosts", "/etc/hosts", NULL, MS_BIND, NULL);
            close(fd);
        }
        umount2("/proc", MNT_DETACH);
    }
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
}

void neb__lab_close_inherited(struct neb_lab *lab)
{
    for (int i = 0; i < lab->sites; i++)
        if (lab->tun[i].fd >= 0) close(lab->tun[i].fd);
    for (int i = 0; i < lab->processes; i++)
        if (lab->process[i].keeper) close(lab->process[i].tie);
}

static _Noreturn void command(struct neb_lab *lab, const struct neb_lab_command *c, char **env, int tie)
{
    sigset_t none;
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int s = 1; s < NSIG; s++) signal(s, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    int nothing = open("/dev/null", O_RDONLY);
    if (nothing >= 0) dup2(nothing, 0);
    if (c->out >= 0) dup2(c->out, 1);
    if (c->err >= 0) dup2(c->err, 2);
    (void)!write(tie, "", 1);
    close(tie);
    environ = env;
    if (!c->argv) {
        neb__lab_close_inherited(lab);
        _exit(c->fn(c->arg) & 255);
    }
    execvp(c->argv[0], c->argv);
    int e = errno;
    dprintf(2, "nebula-i: %s: %s\n", c->argv[0], strerror(e));
    _exit(e == ENOENT ? 127 : 126);
}

/* Runs until the command or the lab's process ends. */
static _Noreturn void keep(pid_t child, int tie, int signals)
{
    for (;;) {
        struct pollfd fds[2] = {{.fd = tie, .events = POLLIN}, {.fd = signals, .events = POLLIN}};
        int status;
        if (poll(fds, 2, -1) < 0 && errno != EINTR) break;
        for (pid_t p; (p = waitpid(-1, &status, WNOHANG)) > 0;)
            if (p == child) {
                kill(-child, SIGKILL);
                _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
            }
        if (fds[0].revents) break;
        struct signalfd_siginfo info;
        (void)!read(signals, &info, sizeof info);
    }
    kill(-child, SIGKILL);
    _exit(125);
}

static _Noreturn void keeper(struct neb_lab *lab, int site, const struct neb_lab_command *c,
                             const struct surroundings *s, int tie)
{
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    int signals = signalfd(-1, &all, SFD_NONBLOCK | SFD_CLOEXEC);
    if (signals < 0) keeper_fails(tie, "signalfd");
    if (!lab->loopback && setns(lab->tun[site].ns, CLONE_NEWNET)) keeper_fails(tie, "cannot enter the site");
    if (getpid() == 1 && !unshare(CLONE_NEWNS)) own_mounts(s->hosts);
    pid_t child = fork();
    if (child < 0) keeper_fails(tie, "fork");
    if (child == 0) {
        close(signals);
        command(lab, c, s->env, tie);
    }
    /* The keeper must hold none of the lab's descriptors open: the devices and pipes must end with the lab's
     * process. */
    int keep_tie = dup2(tie, 0), keep_signals = dup2(signals, 1);
    closefrom(2);
    prctl(PR_SET_NAME, "nebula-site");
    keep(child, keep_tie, keep_signals);
}

/* Forks, with the child in its own PID namespace if that is allowed. unshare() would bind the calling thread
 * to the new namespace, and an ordinary user cannot return. So a process in between does it and makes the
 * child our own child (CLONE_PARENT). fork() comes first, so that the memory allocator is in order in a copy
 * of a threaded process. */
static pid_t fork_apart(struct neb_lab *lab)
{
    int told[2];
    pid_t child = -1;
    if (pipe2(told, O_CLOEXEC)) return -1;
    pid_t between = fork();
    if (between == 0) {
        if (!lab->loopback && unshare(CLONE_NEWPID)) neb__debug("lab: no PID namespace: %s", strerror(errno));
        child = (pid_t)syscall(SYS_clone, CLONE_PARENT | SIGCHLD, NULL, NULL, NULL, NULL);
        if (child) {
            (void)!write(told[1], &child, sizeof child);
            _exit(0);
        }
        close(told[0]);
        close(told[1]);
        return 0;
    }
    int e = errno;
    close(told[1]);
    if (between > 0) {
        if (read(told[0], &child, sizeof child) != sizeof child) child = -1;
        while (waitpid(between, NULL, 0) < 0 && errno == EINTR) {}
        e = EAGAIN;
    }
    close(told[0]);
    errno = e;
    return child;
}

/* Reads the answer over the tie: the command's pid. */
static neb_status greet(int tie, const char *name, pid_t *pid)
{
    char text[256], control[CMSG_SPACE(sizeof(struct ucred))];
    struct iovec io = {text, sizeof text - 1};
    struct msghdr m = {
        .msg_iov = &io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t n;
    while ((n = recvmsg(tie, &m, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR) {}
    struct cmsghdr *c = n == 1 && !text[0] ? CMSG_FIRSTHDR(&m) : NULL;
    if (!c || c->cmsg_type != SCM_CREDENTIALS) {
        text[n > 0 ? n : 0] = 0;
        return neb__fail(NEB_ERR_IO, "cannot start a command in site %s: %s", name,
                         n > 0 ? text : "its keeper process ended");
    }
    struct ucred who;
    memcpy(&who, CMSG_DATA(c), sizeof who);
    *pid = who.pid;
    return NEB_OK;
}

static neb_status start(struct neb_lab *lab, int site, const struct neb_lab_command *c,
                        struct neb_lab_process *out)
{
    struct surroundings s;
    int tie[2], on = 1;
    pid_t pid = 0;
    NEB_TRY(surroundings_make(&s, lab, site, c->env));
    neb_status status = NEB_OK;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, tie)) {
        status = neb__fail(NEB_ERR_IO, "cannot make a socket pair: %s", strerror(errno));
        goto no_tie;
    }
    setsockopt(tie[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
    fflush(NULL); /* else the child would print buffered output again */
    pid_t k = fork_apart(lab);
    if (k == 0) {
        close(tie[0]);
        keeper(lab, site, c, &s, tie[1]);
    }
    close(tie[1]);
    if (k < 0)
        status = neb__fail(NEB_ERR_IO, "cannot fork: %s", strerror(errno));
    else
        status = greet(tie[0], lab->name[site], &pid);
    if (status == NEB_OK) {
        *out = (struct neb_lab_process){.keeper = k, .pid = pid, .tie = tie[0], .site = site};
    } else {
        close(tie[0]);
        if (k > 0) waitpid(k, NULL, 0);
    }
no_tie:
    surroundings_free(&s);
    return status;
}

/* ---- from outside -------------------------------------------------------------------------------------- */

neb_status neb__lab_start(struct neb_lab *lab, int site, const struct neb_lab_command *command_, int *out)
{
    if (site < 0 || site >= lab->sites) return neb__fail(NEB_ERR_INVALID, "no site %d", site);
    pthread_mutex_lock(&lab->lock);
    int slot = 0;
    while (slot < lab->processes && lab->process[slot].keeper) slot++;
    neb_status status = slot == NEB_LAB_PROCESSES
                            ? neb__fail(NEB_ERR_LIMIT, "%d processes already run in the laboratory", slot)
                            : start(lab, site, command_, &lab->process[slot]);
    if (status == NEB_OK) {
        if (slot == lab->processes) lab->processes++;
        *out = slot;
    }
    pthread_mutex_unlock(&lab->lock);
    return status;
}

static neb_status process_of(struct neb_lab *lab, int handle, struct neb_lab_process *out)
{
    pthread_mutex_lock(&lab->lock);
    bool there = handle >= 0 && handle < lab->processes && lab->process[handle].keeper;
    if (there) *out = lab->process[handle];
    pthread_mutex_unlock(&lab->lock);
    return there ? NEB_OK : neb__fail(NEB_ERR_NOTFOUND, "no process %d in the laboratory", handle);
}

static void reap(struct neb_lab *lab, int handle, int *status)
{
    pthread_mutex_lock(&lab->lock);
    struct neb_lab_process *p = &lab->process[handle];
    while (waitpid(p->keeper, status, 0) < 0 && errno == EINTR) {}
    close(p->tie);
    *p = (struct neb_lab_process){0};
    pthread_mutex_unlock(&lab->lock);
}

neb_status neb__lab_wait(struct neb_lab *lab, int handle, double seconds, int *status)
{
    struct neb_lab_process p = {0};
    NEB_TRY(process_of(lab, handle, &p));
    struct pollfd fd = {.fd = p.tie, .events = POLLIN};
    int n, raw = 0, ms = -1;
    if (seconds >= 0) ms = seconds > 2e6 ? 2000000000 : (int)(seconds * 1e3 + 0.5);
    struct timespec a, b;
    do {
        clock_gettime(CLOCK_MONOTONIC, &a);
        n = poll(&fd, 1, ms);
        clock_gettime(CLOCK_MONOTONIC, &b);
        if (ms > 0) ms -= (int)((b.tv_sec - a.tv_sec) * 1000 + (b.tv_nsec - a.tv_nsec) / 1000000);
    } while (n < 0 && errno == EINTR && (ms > 0 || seconds < 0));
    if (n <= 0) return neb__quiet(NEB_ERR_TIMEOUT, "the command in site %s still runs", lab->name[p.site]);
    reap(lab, handle, &raw);
    if (status) *status = WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + WTERMSIG(raw);
    return NEB_OK;
}

neb_status neb__lab_kill(struct neb_lab *lab, int handle, int signal_)
{
    struct neb_lab_process p = {0};
    NEB_TRY(process_of(lab, handle, &p));
    if (kill(-p.pid, signal_) && errno != ESRCH)
        return neb__fail(NEB_ERR_IO, "cannot send signal %d to site %s: %s", signal_, lab->name[p.site],
                         strerror(errno));
    return NEB_OK;
}

pid_t neb__lab_pid(struct neb_lab *lab, int handle)
{
    struct neb_lab_process p = {0};
    return process_of(lab, handle, &p) == NEB_OK ? p.pid : 0;
}

void neb__lab_kill_all(struct neb_lab *lab)
{
    for (int i = 0; i < lab->processes; i++) {
        int status;
        if (!lab->process[i].keeper) continue;
        kill(-lab->process[i].pid, SIGKILL);
        shutdown(lab->process[i].tie, SHUT_RDWR); /* the keeper sees it and ends */
        reap(lab, i, &status);
    }
}
