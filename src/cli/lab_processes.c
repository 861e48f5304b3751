/* lab_processes.c: see lab_processes.h.
 *
 * Every site writes into a pipe of its own. Whole lines go to this process's output, `NAME | ` in front, and as they are to
 * the site's log file; half a line waits for its end. A process that was killed by plan has not failed: it is started again
 * with the same command, and finds its own way back. */
#define _GNU_SOURCE
#include "cli/lab_processes.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/opts.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LINE = 4096, KILLS = 64 };
enum { PATIENCE = 30, STOPPING = 300, HURRY = 5, REVIVE = 2 }; /* seconds */

struct member {
    int handle, status, pipe, log; /* handle -1: does not run; status -1: has not ended */
    char line[LINE];
    size_t have;
    bool away; /* killed by plan, to be started again */
    int revived;
    double started; /* unix seconds */
};

struct killing {
    int site;
    double at, away; /* away 0: it stays dead */
    int stage;       /* 0 waits, 1 killed, 2 over */
};

struct neb_lab_processes {
    struct neb_lab *lab;
    const struct neb_site_command *command;
    const char *logs;
    int sites, width, kills;
    int panel;    /* lines of the panel on the screen */
    int revive;   /* how often a site that fails is started again */
    double limit; /* seconds; 0: none */
    int64_t begin_ns;
    bool stopping;
    void (*tick)(void *arg);
    void *arg;
    struct member *member;
    struct killing kill[KILLS];
};

static volatile sig_atomic_t signals, last_signal;

static void on_signal(int s)
{
    last_signal = s;
    signals++;
}

neb_status neb__lab_processes_create(struct neb_lab *lab, const struct neb_site_command *command,
                                     const char *logs, struct neb_lab_processes **out)
{
    struct neb_lab_processes *c = NEB_NEW(struct neb_lab_processes);
    int n = neb__lab_sites(lab);
    while (n > 1 && !command[n - 1].argv) n--; /* others run there */
    struct member *m = c ? NEB_NEW_ARRAY(struct member, (size_t)n) : NULL;
    if (!m) {
        neb__free(c);
        return neb__fail(NEB_ERR_NOMEM, "out of memory for %d sites", n);
    }
    *c = (struct neb_lab_processes){.lab = lab, .command = command, .logs = logs, .sites = n, .member = m};
    for (int i = 0; i < n; i++) {
        m[i].handle = m[i].status = m[i].pipe = m[i].log = -1;
        int len = (int)strlen(neb__lab_name(lab, i));
        c->width = len > c->width ? len : c->width;
    }
    *out = c;
    return NEB_OK;
}

void neb__lab_processes_free(struct neb_lab_processes *c)
{
    if (!c) return;
    for (int i = 0; i < c->sites; i++) {
        struct member *m = &c->member[i];
        if (m->handle >= 0) neb__lab_kill(c->lab, m->handle, SIGKILL);
        if (m->pipe >= 0) close(m->pipe);
        if (m->log >= 0) close(m->log);
    }
    neb__free(c->member);
    neb__free(c);
}

/* ---- killing by plan ------------------------------------------------------------------------------------------- */

static bool parse_time(const char *text, double *out)
{
    static const struct neb_opt table[] = {NEB_OPT_VALUE("time", NEB_OPT_TIME, "0", NULL, ""), NEB_OPT_END};
    char why[NEB_OPT_WHY];
    return neb__opts_try(table, out, "time", text, why) == NEB_OK;
}

static neb_status parse_kill(struct neb_lab_processes *c, char *text)
{
    char at[32], away[32] = "0", name[NEB_LAB_NAME];
    struct killing k = {0};
    bool both = sscanf(text, " %31[0-9.a-z]+%31[0-9.a-z] %31s", at, away, name) == 3;
    if (!both && sscanf(text, " %31[0-9.a-z] %31s", at, name) != 2) at[0] = 0;
    k.site = at[0] ? neb__lab_find(c->lab, name) : -1;
    if (c->kills == KILLS || k.site < 0 || !parse_time(at, &k.at) || !parse_time(both ? away : "0", &k.away))
        return neb__fail(NEB_ERR_CONFIG, "--kill '%s': it reads AT+AWAY SITE, such as '30s+10s %s; 60s %s'",
                         text, neb__lab_name(c->lab, 0), neb__lab_name(c->lab, c->sites - 1));
    c->kill[c->kills++] = k;
    return NEB_OK;
}

neb_status neb__lab_processes_plan_kills(struct neb_lab_processes *c, const char *text)
{
    char copy[1024], *rest = copy, *part;
    if (snprintf(copy, sizeof copy, "%s", text) >= (int)sizeof copy)
        return neb__fail(NEB_ERR_CONFIG, "--kill is too long");
    while ((part = strsep(&rest, ";"))) NEB_TRY(parse_kill(c, part));
    return NEB_OK;
}

void neb__lab_processes_limit(struct neb_lab_processes *c, double seconds)
{
    c->limit = seconds;
}

double neb__lab_processes_time(const struct neb_lab_processes *c)
{
    return neb__seconds_since(c->begin_ns);
}

double neb__lab_processes_started(const struct neb_lab_processes *c, int site)
{
    return c->member[site].handle >= 0 ? c->member[site].started : 0;
}

bool neb__lab_processes_stopping(const struct neb_lab_processes *c)
{
    return c->stopping;
}

static bool plan_kill(struct neb_lab_processes *c, const struct killing *k)
{
    int slot = 0;
    while (slot < c->kills && c->kill[slot].stage != 2) slot++;
    if (slot == KILLS) return false;
    if (slot == c->kills) c->kills++;
    c->kill[slot] = *k;
    return true;
}

void neb__lab_processes_revive(struct neb_lab_processes *c, int times)
{
    c->revive = times;
}

/* ---- output ---------------------------------------------------------------------------------------------------- */

static void erase_panel(struct neb_lab_processes *c)
{
    if (c->panel) printf("\033[%dA\033[J", c->panel);
    c->panel = 0;
}

void neb__lab_processes_panel(struct neb_lab_processes *c, char *const *lines, int n)
{
    erase_panel(c);
    for (int i = 0; i < n; i++) printf("\033[7m%s\033[0m\n", lines[i]);
    c->panel = n;
    fflush(stdout);
}

static void put_line(struct neb_lab_processes *c, int i)
{
    struct member *m = &c->member[i];
    erase_panel(c);
    printf("%-*s | %.*s\n", c->width, neb__lab_name(c->lab, i), (int)m->have, m->line);
    m->have = 0;
}

void neb__lab_processes_say(struct neb_lab_processes *c, int i, const char *what)
{
    struct member *m = &c->member[i];
    if (m->have) put_line(c, i);
    m->have = (size_t)snprintf(m->line, LINE, "%s", what);
    put_line(c, i);
    fflush(stdout);
}

/* Shows the output that has come, line by line; a line longer than the buffer is cut. */
static void drain(struct neb_lab_processes *c, int i)
{
    struct member *m = &c->member[i];
    char chunk[LINE];
    ssize_t n;
    while (m->pipe >= 0 && (n = read(m->pipe, chunk, sizeof chunk)) != 0) {
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return;
        if (m->log >= 0) (void)!write(m->log, chunk, (size_t)n);
        for (ssize_t k = 0; k < n; k++) {
            if (chunk[k] != '\n') m->line[m->have++] = chunk[k];
            if (chunk[k] == '\n' || m->have == LINE) put_line(c, i);
        }
        fflush(stdout);
    }
    if (m->pipe < 0) return;
    if (m->have) put_line(c, i);
    close(m->pipe);
    m->pipe = -1;
}

static void wait_for_output(struct neb_lab_processes *c, int ms)
{
    struct pollfd fds[NEB_LAB_SITES];
    int n = 0;
    for (int i = 0; i < c->sites; i++)
        if (c->member[i].pipe >= 0) fds[n++] = (struct pollfd){.fd = c->member[i].pipe, .events = POLLIN};
    poll(fds, (nfds_t)n, ms);
    for (int i = 0; i < c->sites; i++) drain(c, i);
}

/* ---- processes ------------------------------------------------------------------------------------------------- */

static void open_log(struct neb_lab_processes *c, int i)
{
    char path[4096];
    struct member *m = &c->member[i];
    if (!c->logs || m->log >= 0) return;
    snprintf(path, sizeof path, "%s/%s/log", c->logs, neb__lab_name(c->lab, i));
    m->log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static neb_status start(struct neb_lab_processes *c, int i)
{
    struct member *m = &c->member[i];
    int ends[2];
    open_log(c, i);
    if (pipe2(ends, O_CLOEXEC)) return neb__fail(NEB_ERR_IO, "pipe: %s", strerror(errno));
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    struct neb_lab_command command = {
        .argv = c->command[i].argv, .env = c->command[i].env, .out = ends[1], .err = ends[1]};
    neb_status status = neb__lab_start(c->lab, i, &command, &m->handle);
    close(ends[1]);
    if (status != NEB_OK) {
        close(ends[0]);
        return status;
    }
    drain(c, i);
    if (m->pipe >= 0) close(m->pipe);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    m->started = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    m->pipe = ends[0];
    m->status = -1;
    m->away = false;
    return NEB_OK;
}

/* Plans what the third stage of a killing does: the site starts again. */
static bool revive(struct neb_lab_processes *c, int i)
{
    struct member *m = &c->member[i];
    if (c->stopping || m->revived >= c->revive) return false;
    m->revived++;
    m->away = plan_kill(
        c, &(struct killing){.site = i, .at = neb__lab_processes_time(c), .away = REVIVE, .stage = 1});
    return m->away;
}

static void reap(struct neb_lab_processes *c)
{
    for (int i = 0; i < c->sites; i++) {
        struct member *m = &c->member[i];
        if (m->handle < 0 || neb__lab_wait(c->lab, m->handle, 0, &m->status) != NEB_OK) continue;
        m->handle = -1;
        drain(c, i);
        if (!m->status || m->away) continue;
        char text[80];
        snprintf(text, sizeof text, "ended with status %d%s", m->status,
                 revive(c, i) ? "; it is started again" : "");
        neb__lab_processes_say(c, i, text);
    }
}

static int running(const struct neb_lab_processes *c)
{
    int n = 0;
    for (int i = 0; i < c->sites; i++) n += c->member[i].handle >= 0;
    for (int k = 0; k < c->kills; k++) n += c->kill[k].stage == 1 && c->kill[k].away > 0;
    return n;
}

bool neb__lab_processes_signal(struct neb_lab_processes *c, int site, int sig)
{
    const int handle = c->member[site].handle;
    if (handle < 0) return false;
    return neb__lab_kill(c->lab, handle, sig) == NEB_OK;
}

bool neb__lab_processes_kill(struct neb_lab_processes *c, int site, double away)
{
    if (c->stopping || c->member[site].handle < 0) return false;
    return plan_kill(c, &(struct killing){.site = site, .at = neb__lab_processes_time(c), .away = away});
}

static neb_status carry_out_kills(struct neb_lab_processes *c, double now)
{
    for (int k = 0; k < c->kills; k++) {
        struct killing *q = &c->kill[k];
        struct member *m = &c->member[q->site];
        if (q->stage == 0 && now >= q->at) {
            q->stage = m->handle >= 0 && q->away > 0 ? 1 : 2;
            if (m->handle < 0) continue;
            m->away = true;
            neb__lab_kill(c->lab, m->handle, SIGKILL);
            neb__lab_processes_say(c, q->site, "killed, as planned");
        } else if (q->stage == 1 && now >= q->at + q->away && m->handle < 0) {
            q->stage = 2;
            neb__lab_processes_say(c, q->site, "started again");
            NEB_TRY(start(c, q->site));
        }
    }
    return NEB_OK;
}

static void signal_all(struct neb_lab_processes *c, int sig)
{
    for (int i = 0; i < c->sites; i++)
        if (c->member[i].handle >= 0) neb__lab_kill(c->lab, c->member[i].handle, sig);
}

static int first_failure(const struct neb_lab_processes *c)
{
    for (int i = 0; i < c->sites; i++)
        if (c->member[i].handle < 0 && c->member[i].status > 0 && !c->member[i].away)
            return c->member[i].status;
    return 0;
}

/* Until all have ended, another signal comes, or so many seconds have passed. */
static void await_all(struct neb_lab_processes *c, int seen, double seconds)
{
    int64_t since = neb__now_ns();
    while (running(c) && signals == seen && neb__seconds_since(since) < seconds) {
        wait_for_output(c, 50);
        reap(c);
        if (c->tick) c->tick(c->arg);
    }
}

/* One of them has failed: the others may end by themselves for a while. Then, or at a signal, they are asked to, once: a site
 * writes a checkpoint when its step is made, however long that takes. A user who cannot wait sends another signal. */
static void stop_all(struct neb_lab_processes *c, double patience)
{
    for (int k = 0; k < c->kills; k++) c->kill[k].stage = 2;
    c->stopping = true;
    await_all(c, signals, patience);
    int seen = signals;
    if (running(c)) signal_all(c, SIGTERM);
    if (seen && running(c)) {
        printf("stopping: each site writes a checkpoint; a second signal ends them without\n");
        fflush(stdout);
    }
    await_all(c, seen, seen ? INFINITY : STOPPING);
    await_all(c, signals, HURRY);
    if (running(c)) signal_all(c, SIGKILL);
    while (running(c)) await_all(c, signals, HURRY);
}

/* A signal that is ignored (nohup) stays ignored, here and in the sites. */
static void watch_signals(void)
{
    static const int list[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction a = {.sa_handler = on_signal}, old;
    for (int i = 0; i < 3; i++)
        if (!sigaction(list[i], NULL, &old) && old.sa_handler != SIG_IGN) sigaction(list[i], &a, NULL);
}

neb_status neb__lab_processes_run(struct neb_lab_processes *c, void (*tick)(void *arg), void *arg,
                                  int *status)
{
    neb_status s = NEB_OK;
    watch_signals();
    c->begin_ns = neb__now_ns();
    c->tick = tick;
    c->arg = arg;
    for (int i = 0; s == NEB_OK && i < c->sites; i++) s = start(c, i);
    bool timely = true;
    while (s == NEB_OK && running(c) && !signals && !first_failure(c) && timely) {
        wait_for_output(c, 100);
        reap(c);
        s = carry_out_kills(c, neb__lab_processes_time(c));
        if (tick) tick(arg);
        timely = !(c->limit > 0) || neb__lab_processes_time(c) < c->limit;
    }
    for (int i = 0; i < c->sites && !timely; i++) c->member[i].away = true;
    if (!timely) signal_all(c, SIGKILL);
    erase_panel(c);
    stop_all(c, s != NEB_OK || signals || !timely ? 0 : PATIENCE);
    if (s == NEB_OK) *status = signals ? 128 + last_signal : first_failure(c);
    return s;
}
