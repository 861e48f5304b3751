/* file.c: atomic replacement and bounded reading of whole files; folders and locks. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static neb_status status_of(int e)
{
    if (e == ENOSPC || e == EDQUOT) return NEB_ERR_NOSPACE;
    return e == ENOENT ? NEB_ERR_NOTFOUND : NEB_ERR_IO;
}

static neb_status io_error(const char *what, const char *path)
{
    int e = errno;
    return neb__fail(status_of(e), "%s %s: %s", what, path, strerror(e));
}

static bool write_all(int fd, const uint8_t *p, size_t n)
{
    while (n) {
        ssize_t w = write(fd, p, n);
        if (w < 0 && errno == EINTR) continue;
        if (w <= 0) return false;
        p += w;
        n -= (size_t)w;
    }
    return true;
}

neb_status neb__file_sync_parent(const char *path)
{
    char dir[PATH_MAX];
    const char *slash = strrchr(path, '/');
    if (!slash)
        strcpy(dir, ".");
    else
        snprintf(dir, sizeof dir, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return io_error("cannot open the folder", dir);
    int bad = fsync(fd);
    neb_status status = bad ? io_error("cannot sync the folder", dir) : NEB_OK;
    close(fd);
    return status;
}

neb_status neb__file_replace(const char *path, const void *data, size_t n, mode_t mode)
{
    char tmp[PATH_MAX];
    if (snprintf(tmp, sizeof tmp, "%s.%ld.tmp", path, (long)getpid()) >= (int)sizeof tmp)
        return neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", path);
    int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    if (fd < 0) return io_error("cannot create", tmp);
    neb_status status = NEB_OK;
    if (!write_all(fd, data, n))
        status = io_error("cannot write", tmp);
    else if (fsync(fd))
        status = io_error("cannot sync", tmp);
    if (close(fd) && status == NEB_OK) status = io_error("cannot close", tmp);
    if (status == NEB_OK && rename(tmp, path)) status = io_error("cannot rename to", path);
    if (status != NEB_OK) {
        unlink(tmp);
        return status;
    }
    return neb__file_sync_parent(path);
}

static neb_status read_all(int fd, const char *path, struct neb_buf *out)
{
    struct stat st;
    neb_status status = NEB_OK;
    if (!fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_size > 0)
        status = neb__buf_reserve(out, (size_t)st.st_size);
    while (status == NEB_OK) {
        if (out->cap == out->len && (status = neb__buf_reserve(out, 1)) != NEB_OK) {
            char extra;
            if (read(fd, &extra, 1) == 0) status = NEB_OK; /* exactly full is not too large */
            break;
        }
        ssize_t r = read(fd, out->data + out->len, out->cap - out->len);
        if (r < 0 && errno == EINTR) continue;
        if (r < 0) status = io_error("cannot read", path);
        if (r <= 0) break;
        out->len += (size_t)r;
    }
    if (status == NEB_ERR_NOSPACE)
        return neb__fail(status, "%s is larger than the %zu bytes allowed", path, out->max);
    return status;
}

neb_status neb__file_read(const char *path, struct neb_buf *out)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return io_error("cannot open", path);
    neb_status status = read_all(fd, path, out);
    close(fd);
    return status;
}

neb_status neb__file_open_plain(const char *path, int *out)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* opening a pipe would wait for its writer */
    if (fd < 0) return io_error("cannot open", path);
    if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
        close(fd);
        return neb__fail(NEB_ERR_IO, "%s is not a plain file", path);
    }
    *out = fd;
    return NEB_OK;
}

neb_status neb__file_read_plain(const char *path, struct neb_buf *out)
{
    int fd;
    NEB_TRY(neb__file_open_plain(path, &fd));
    neb_status status = read_all(fd, path, out);
    close(fd);
    return status;
}

neb_status neb__file_make_dir(const char *path, mode_t mode)
{
    char p[PATH_MAX];
    if (!*path || snprintf(p, sizeof p, "%s", path) >= (int)sizeof p)
        return neb__fail(NEB_ERR_INVALID, "not a usable folder name: '%.80s'", path);
    for (char *c = p + 1;; c++) {
        if (*c && *c != '/') continue;
        char was = *c;
        *c = 0;
        if (mkdir(p, mode) && errno != EEXIST) return io_error("cannot make the folder", p);
        *c = was;
        if (!was) break;
    }
    struct stat st;
    if (stat(p, &st) || !S_ISDIR(st.st_mode)) return neb__fail(NEB_ERR_IO, "%s is not a folder", p);
    return NEB_OK;
}

neb_status neb__file_lock(const char *path, enum neb_lock how, int *out)
{
    static const struct {
        int open, lock;
    } modes[] = {
        [NEB_LOCK_FILE] = {O_RDWR | O_CREAT, LOCK_EX | LOCK_NB},
        [NEB_LOCK_SHARED] = {O_RDONLY, LOCK_SH | LOCK_NB},
        [NEB_LOCK_FOLDER] = {O_RDONLY | O_DIRECTORY, LOCK_EX | LOCK_NB},
        [NEB_LOCK_FOLDER_WAIT] = {O_RDONLY | O_DIRECTORY, LOCK_EX},
    };
    int fd = open(path, modes[how].open | O_CLOEXEC, 0600), bad = -1;
    while (fd >= 0 && (bad = flock(fd, modes[how].lock)) && errno == EINTR) continue;
    if (!bad) {
        *out = fd;
        return NEB_OK;
    }
    int e = errno;
    neb_status status = fd >= 0 && e == EWOULDBLOCK ? NEB_ERR_BUSY : status_of(e);
    if (fd >= 0) close(fd);
    return neb__quiet(status, "cannot lock %s: %s", path, strerror(e));
}
