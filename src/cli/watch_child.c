/* watch_child.c: see watch_child.h. Called before the training has any thread, so fork() is safe. The process has a lower
 * priority: it must not take time from the training. */
#include "cli/watch_child.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PATIENCE_S = 15 };

static void become_watch(const struct neb_job *job, int port, pid_t parent)
{
    const struct neb_job_watch *w = &job->watch;
    char number[16], stalled[40], disk[40], egress[40], path[] = "/proc/self/exe";
    snprintf(number, sizeof number, "%d", port);
    snprintf(stalled, sizeof stalled, "%.3fs", w->stalled);
    snprintf(disk, sizeof disk, "%lld", (long long)w->disk);
    snprintf(egress, sizeof egress, "%.9g", w->egress);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(0);                       /* it has ended already */
    if (nice(10) == -1) errno = 0;                           /* a pity, no more */
    if (w->alert) setenv("NEBULA_WATCH_ALERT", w->alert, 1); /* other users see the words of a command */
    execl(path, "nebula-i", "watch", job->out, "--port", number, "--stalled", stalled, "--disk", disk,
          "--egress", egress, (char *)NULL);
    _exit(127);
}

void neb__watch_child_start(struct neb_watch_child *c, const struct neb_job *job, int port)
{
    pid_t parent = getpid();
    if (neb__file_make_dir(job->out, 0700) != NEB_OK) return; /* the training says so, too */
    c->pid = fork();
    if (c->pid == 0) become_watch(job, port, parent);
    if (c->pid < 0) neb__warn("there is no live page: %s; training goes on", strerror(errno));
    if (c->pid < 0) c->pid = 0;
}

/* It ends at its next look. One that hangs, on a disk that does not answer, must not keep the training from its end. */
void neb__watch_child_stop(struct neb_watch_child *c)
{
    const struct timespec moment = {.tv_nsec = 20000000};
    int64_t since = neb__now_ns();
    if (!c->pid) return;
    kill(c->pid, SIGTERM);
    for (pid_t ended = 0; !ended && neb__seconds_since(since) < PATIENCE_S;) {
        ended = waitpid(c->pid, NULL, WNOHANG);
        if (!ended) nanosleep(&moment, NULL);
        if (ended) c->pid = 0;
    }
    if (c->pid) kill(c->pid, SIGKILL);
    c->pid = 0;
}
