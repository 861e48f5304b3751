/* dial_command.c: a command that dials for this site, such as `ssh login -W %h:%p`. Its standard input and output are one
 * socket, which carries the connection as a TCP socket would.
 *
 * The command runs in a session of its own, without a terminal: nobody can answer a question there, and the Ctrl-C that
 * ends a training must not cut its links before the goodbye. It inherits nothing but its three descriptors. When its
 * connection is closed it reads the end of its input. A command that stays is asked to leave by SIGTERM and then killed.
 *
 * No signal handler is used, since the process belongs to the program that trains: children are reaped one by one, by
 * the clock. What a command writes to its standard error goes to the log, made printable, at most LINES_MAX lines a
 * child, and once for a row of attempts that fail alike.
 *
 * Invariant: a command is in net->dial_commands from its start until it is reaped. */
#define _GNU_SOURCE /* pipe2, posix_spawn_file_actions_addclosefrom_np */
#include "net/link.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/printable.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LINE = 240, LINES_MAX = 20 };
static const double leave_s = 2, kill_s = 4; /* from the end of its connection to SIGTERM, to SIGKILL */
static const double close_leave_s = 1,
                    close_kill_s = 1.5; /* the same while the node closes, which waits for them */

struct neb_dial_command {
    struct neb_dial_command *next;
    struct neb_net *net;
    uint16_t peer;
    pid_t pid;
    uv_poll_t poll;
    int err; /* reads its standard error; -1: closed */
    char line[LINE];
    size_t len;
    int lines;
    bool linked;     /* its connection got as far as a link */
    int64_t left_at; /* when its connection was closed; 0: it is open */
    bool ended;      /* the process is reaped: its number may be another's */
    bool asked;      /* SIGTERM was sent */
    int code;
};

/* ---- what it says -------------------------------------------------------------------------------------- */

static void say_line(struct neb_dial_command *d)
{
    struct neb_peer *p = neb__peer_find(d->net, d->peer);
    d->line[d->len] = 0;
    d->len = 0;
    neb__text_clean(d->line);
    if (!*d->line || d->lines++ >= LINES_MAX) return;
    if (p && (p->dial_quiet || d->linked)) /* that its link broke is told already */
        neb__debug("the command that dials %s says: %s", p->name, d->line);
    else
        neb__info("the command that dials %s says: %s", p ? p->name : "?", d->line);
}

/* Returns how many bytes came; 0: the end; -1: none now. */
static ssize_t read_error(struct neb_dial_command *d)
{
    char bytes[1024];
    ssize_t n = read(d->err, bytes, sizeof bytes);
    if (n < 0) return errno == EAGAIN || errno == EINTR ? -1 : 0;
    for (ssize_t i = 0; i < n; i++) {
        if (bytes[i] == '\n')
            say_line(d);
        else if (bytes[i] != '\r' && d->len + 1 < LINE)
            d->line[d->len++] = bytes[i];
    }
    return n;
}

static void release(uv_handle_t *handle)
{
    struct neb_dial_command *d = handle->data;
    close(d->err);
    neb__free(d);
}

static void on_error_output(uv_poll_t *handle, int status, int events)
{
    struct neb_dial_command *d = handle->data;
    (void)events;
    if (status < 0 || read_error(d) == 0) uv_poll_stop(handle);
}

/* ---- starting ------------------------------------------------------------------------------------------ */

static int spawn(char **argv, int io, int err, pid_t *pid)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none, usual;
    sigemptyset(&none);
    sigemptyset(&usual);
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGCHLD};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) sigaddset(&usual, signals[i]);
    if (posix_spawn_file_actions_init(&files)) return ENOMEM;
    if (posix_spawnattr_init(&attr)) {
        posix_spawn_file_actions_destroy(&files);
        return ENOMEM;
    }
    int e = posix_spawn_file_actions_adddup2(&files, io, 0);
    if (!e) e = posix_spawn_file_actions_adddup2(&files, io, 1);
    if (!e) e = posix_spawn_file_actions_adddup2(&files, err, 2);
    if (!e) e = posix_spawn_file_actions_addclosefrom_np(&files, 3);
    if (!e) e = posix_spawnattr_setsigmask(&attr, &none);
    if (!e) e = posix_spawnattr_setsigdefault(&attr, &usual);
    if (!e)
        e = posix_spawnattr_setflags(&attr,
                                     POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID);
    if (!e) e = posix_spawnp(pid, argv[0], &files, &attr, argv, environ);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&files);
    return e;
}

/* pair[0] and err[0] are ours, the others the child's. */
static bool make_ends(int pair[2], int err[2])
{
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) return false;
    if (pipe2(err, O_CLOEXEC)) {
        close(pair[0]);
        close(pair[1]);
        return false;
    }
    fcntl(pair[0], F_SETFL, O_NONBLOCK);
    fcntl(err[0], F_SETFL, O_NONBLOCK);
    return true;
}

neb_status neb__dial_command_start(struct neb_net *net, uint16_t peer, const char *host, uint16_t port,
                                   int *fd, struct neb_dial_command **out)
{
    struct neb_command command;
    char *argv[NEB_COMMAND_WORDS + 1];
    int pair[2], err[2];
    NEB_TRY(neb__command_fill(&net->way.command, host, port, &command));
    neb__command_words(&command, argv);
    struct neb_dial_command *d = NEB_NEW(struct neb_dial_command);
    if (!d) return neb__quiet(NEB_ERR_NOMEM, "out of memory for a command");
    if (!make_ends(pair, err)) {
        neb__free(d);
        return neb__quiet(NEB_ERR_NET, "no descriptors for the command that dials: %s", strerror(errno));
    }
    *d = (struct neb_dial_command){.next = net->dial_commands, .net = net, .peer = peer, .err = err[0]};
    int e = spawn(argv, pair[1], err[1], &d->pid);
    close(pair[1]);
    close(err[1]);
    if (e || uv_poll_init(&net->loop, &d->poll, err[0])) {
        close(pair[0]);
        close(err[0]);
        if (!e) kill(d->pid, SIGKILL), waitpid(d->pid, NULL, 0);
        neb__free(d);
        return neb__quiet(NEB_ERR_NOTFOUND, "cannot run '%s', which dials (sites[].dial): %s", argv[0],
                          e ? strerror(e) : "it cannot be watched");
    }
    d->poll.data = d;
    uv_poll_start(&d->poll, UV_READABLE, on_error_output);
    net->dial_commands = d;
    *fd = pair[0];
    *out = d;
    return NEB_OK;
}

/* ---- ending -------------------------------------------------------------------------------------------- */

void neb__dial_command_left(struct neb_dial_command *d, bool linked)
{
    d->left_at = neb__now_ns();
    d->linked = linked;
}

/* A row of failures is told once (neb__net_dial_trouble). */
static void say_end(struct neb_dial_command *d)
{
    struct neb_peer *p = neb__peer_find(d->net, d->peer);
    for (int i = 0; i < LINES_MAX && read_error(d) > 0; i++) {} /* somebody else may go on writing */
    if (d->len) say_line(d);
    if (!p || d->linked || d->asked) return;
    char what[64];
    if (WIFSIGNALED(d->code))
        snprintf(what, sizeof what, "was ended by signal %d", WTERMSIG(d->code));
    else
        snprintf(what, sizeof what, "ended with status %d", WEXITSTATUS(d->code));
    neb__net_dial_trouble(p, "the command that dials (sites[].dial) %s before there was a link%s%s", what,
                          *d->line ? "; it said: " : "", d->line);
    p->dial_quiet = true;
}

/* Returns true once the process is gone. */
static bool has_ended(struct neb_dial_command *d)
{
    if (d->ended) return true;
    pid_t pid = waitpid(d->pid, &d->code, WNOHANG);
    d->ended = pid == d->pid || (pid < 0 && errno == ECHILD); /* the program may reap every child itself */
    return d->ended;
}

static void hasten(struct neb_dial_command *d, double since, double leave, double end)
{
    if (d->ended) return;
    if (since > leave && !d->asked) {
        d->asked = true;
        kill(-d->pid, SIGTERM);
    }
    if (since > end) kill(-d->pid, SIGKILL);
}

static void forget(struct neb_dial_command **at)
{
    struct neb_dial_command *d = *at;
    *at = d->next;
    uv_poll_stop(&d->poll);
    uv_close((uv_handle_t *)&d->poll, release);
}

void neb__dial_commands_reap(struct neb_net *net)
{
    for (struct neb_dial_command **at = &net->dial_commands; *at;) {
        struct neb_dial_command *d = *at;
        if (has_ended(d) && d->left_at) {
            say_end(d);
            forget(at);
            continue;
        }
        if (d->left_at) hasten(d, neb__seconds_since(d->left_at), leave_s, kill_s);
        at = &d->next;
    }
}

void neb__dial_commands_end(struct neb_net *net)
{
    int64_t since = neb__now_ns();
    while (net->dial_commands) {
        for (struct neb_dial_command **at = &net->dial_commands; *at;) {
            if (has_ended(*at)) {
                forget(at);
                continue;
            }
            hasten(*at, neb__seconds_since(since), close_leave_s, close_kill_s);
            at = &(*at)->next;
        }
        if (net->dial_commands) nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
}
