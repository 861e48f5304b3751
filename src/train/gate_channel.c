/* gate_channel.c: a socket of this machine, a secret, and descriptors that travel along: see gate_channel.h. */
#define _GNU_SOURCE /* struct ucred */
#include "train/gate_channel.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { TURN_MS = 200, SHOW_MS = 2000 };

static const char variable[] = "NEBULA_GATEWAY";

static neb_status fail(const char *what)
{
    return neb__fail(NEB_ERR_IO, "the channel to the ranks: %s: %s", what, strerror(errno));
}

static neb_status path_in(const struct neb_gate_channel *c, const char *name, char *out, size_t size)
{
    if (snprintf(out, size, "%s/%s", c->dir, name) < (int)size) return NEB_OK;
    return neb__fail(NEB_ERR_INVALID, "the folder for temporary files has a long name: %.60s… ($TMPDIR)",
                     c->dir);
}

static neb_status address(const struct neb_gate_channel *c, struct sockaddr_un *out)
{
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    return path_in(c, "socket", out->sun_path, sizeof out->sun_path);
}

/* ---- the gateway's end ------------------------------------------------------------------------------------- */

static void remove_folder(struct neb_gate_channel *c)
{
    char path[PATH_MAX + 16];
    if (!*c->dir) return;
    static const char *const names[] = {"socket", "secret"};
    for (int i = 0; i < 2; i++)
        if (snprintf(path, sizeof path, "%s/%s", c->dir, names[i]) < (int)sizeof path) unlink(path);
    rmdir(c->dir);
    *c->dir = '\0';
}

static neb_status write_secret(const struct neb_gate_channel *c)
{
    char path[PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/secret", c->dir);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return fail(path);
    ssize_t n = write(fd, c->secret, sizeof c->secret);
    close(fd);
    return n == (ssize_t)sizeof c->secret ? NEB_OK : fail(path);
}

static neb_status listen_there(struct neb_gate_channel *c)
{
    struct sockaddr_un a;
    NEB_TRY(address(c, &a));
    c->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->listener < 0 || bind(c->listener, (struct sockaddr *)&a, sizeof a) || listen(c->listener, 4))
        return fail(a.sun_path);
    return NEB_OK;
}

neb_status neb__gate_channel_offer(struct neb_gate_channel *c)
{
    const char *tmp = getenv("TMPDIR");
    *c = (struct neb_gate_channel){.fd = -1, .listener = -1};
    if (getrandom(c->secret, sizeof c->secret, 0) != (ssize_t)sizeof c->secret)
        return fail("no random bytes");
    snprintf(c->dir, sizeof c->dir, "%s/nebula-i-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(c->dir)) { /* 0700 */
        neb_status status = fail(c->dir);
        *c->dir = '\0';
        return status;
    }
    neb_status status = write_secret(c);
    if (status == NEB_OK) status = listen_there(c);
    if (status == NEB_OK && setenv(variable, c->dir, 1)) status = fail("the environment");
    if (status != NEB_OK) neb__gate_channel_close(c);
    return status;
}

static bool same_user(int fd)
{
    struct ucred who;
    socklen_t n = sizeof who;
    return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) && who.uid == geteuid();
}

/* Takes as long for a wrong secret as for the right one. */
static bool knows_secret(const struct neb_gate_channel *c, int fd)
{
    unsigned char shown[NEB_GATE_SECRET], differs = 0;
    size_t at = 0;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    while (at < sizeof shown && poll(&p, 1, SHOW_MS) > 0) {
        ssize_t n = recv(fd, shown + at, sizeof shown - at, 0);
        if (n <= 0) break;
        at += (size_t)n;
    }
    for (size_t i = 0; i < sizeof shown; i++) differs |= (unsigned char)(shown[i] ^ c->secret[i]);
    return at == sizeof shown && !differs;
}

neb_status neb__gate_channel_accept(struct neb_gate_channel *c, bool *there)
{
    *there = false;
    int fd = accept4(c->listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED)) return NEB_OK;
    if (fd < 0) return fail("accept");
    if (!same_user(fd) || !knows_secret(c, fd)) {
        neb__warn("a process that does not know the secret of this start tried to be the first rank");
        close(fd);
        return NEB_OK;
    }
    c->fd = fd;
    close(c->listener);
    c->listener = -1;
    remove_folder(c);
    *there = true;
    return NEB_OK;
}

/* ---- the rank's end ---------------------------------------------------------------------------------------- */

bool neb__gate_channel_offered(void)
{
    return getenv("NEBULA_GATEWAY") != NULL;
}

static neb_status read_secret(struct neb_gate_channel *c)
{
    char path[PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/secret", c->dir);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return neb__fail(NEB_ERR_NOTFOUND,
                         "the first rank was not started on the machine of its gateway (no %s): the first of "
                         "parallel.hosts must be the machine where the command is typed",
                         path);
    ssize_t n = read(fd, c->secret, sizeof c->secret);
    close(fd);
    return n == (ssize_t)sizeof c->secret ? NEB_OK : fail(path);
}

neb_status neb__gate_channel_connect(struct neb_gate_channel *c)
{
    struct sockaddr_un a;
    const char *dir = getenv("NEBULA_GATEWAY");
    *c = (struct neb_gate_channel){.fd = -1, .listener = -1};
    if (!dir || snprintf(c->dir, sizeof c->dir, "%s", dir) >= (int)sizeof c->dir)
        return neb__fail(NEB_ERR_INVALID, "$NEBULA_GATEWAY is not a folder");
    NEB_TRY(read_secret(c));
    NEB_TRY(address(c, &a));
    c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&a, sizeof a)) return fail(a.sun_path);
    *c->dir = '\0'; /* the gateway removes it */
    return neb__gate_channel_send(c, c->secret, sizeof c->secret, -1);
}

/* ---- both -------------------------------------------------------------------------------------------------- */

void neb__gate_channel_close(struct neb_gate_channel *c)
{
    if (c->fd >= 0) close(c->fd);
    if (c->listener >= 0) close(c->listener);
    c->fd = c->listener = -1;
    remove_folder(c);
}

static neb_status gone(void)
{
    return neb__quiet(NEB_ERR_PEER, "the other end of the channel is gone");
}

static void attach(struct msghdr *m, void *room, size_t size, int pass)
{
    m->msg_control = room;
    m->msg_controllen = size;
    struct cmsghdr *h = CMSG_FIRSTHDR(m);
    h->cmsg_level = SOL_SOCKET;
    h->cmsg_type = SCM_RIGHTS;
    h->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(h), &pass, sizeof pass);
}

neb_status neb__gate_channel_send(struct neb_gate_channel *c, const void *bytes, size_t n, int pass)
{
    const char *p = bytes;
    while (n) {
        _Alignas(struct cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {0};
        struct iovec part = {(void *)(uintptr_t)p, n};
        struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
        if (pass >= 0) attach(&m, room, sizeof room, pass);
        ssize_t done = sendmsg(c->fd, &m, MSG_NOSIGNAL);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return gone();
        p += done, n -= (size_t)done;
        pass = -1; /* it has gone with the first bytes */
    }
    return NEB_OK;
}

neb_status neb__gate_channel_send_many(struct neb_gate_channel *c, const void *bytes, size_t n,
                                       neb_status (*turn)(void *), void *arg)
{
    const char *p = bytes;
    while (n) {
        ssize_t done = send(c->fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (done >= 0) {
            p += done, n -= (size_t)done;
            continue;
        }
        if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) return gone();
        struct pollfd room = {.fd = c->fd, .events = POLLOUT};
        if (poll(&room, 1, TURN_MS) < 1) NEB_TRY(turn(arg));
    }
    return NEB_OK;
}

static void detach(struct msghdr *m, int *passed)
{
    for (struct cmsghdr *h = CMSG_FIRSTHDR(m); h; h = CMSG_NXTHDR(m, h)) {
        int fd = -1;
        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS || h->cmsg_len < CMSG_LEN(sizeof fd))
            continue;
        memcpy(&fd, CMSG_DATA(h), sizeof fd);
        if (passed && *passed < 0)
            *passed = fd;
        else if (fd >= 0)
            close(fd);
    }
}

neb_status neb__gate_channel_receive(struct neb_gate_channel *c, void *bytes, size_t n, int *passed,
                                     neb_status (*turn)(void *), void *arg)
{
    char *p = bytes;
    if (passed) *passed = -1;
    while (n) {
        struct pollfd wait = {.fd = c->fd, .events = POLLIN};
        int ready = poll(&wait, 1, TURN_MS);
        if (ready < 0 && errno != EINTR) return fail("poll");
        if (ready <= 0) {
            if (turn) NEB_TRY(turn(arg));
            continue;
        }
        _Alignas(struct cmsghdr) char room[CMSG_SPACE(sizeof(int))];
        struct iovec part = {p, n};
        struct msghdr m = {
            .msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
        ssize_t got = recvmsg(c->fd, &m, MSG_CMSG_CLOEXEC);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return gone();
        detach(&m, passed);
        p += got, n -= (size_t)got;
    }
    return NEB_OK;
}
