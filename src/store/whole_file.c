/* whole_file.c: temporary file, fsync, rename, fsync of the folder. The message about a refused write names
 * the file and the bytes written, because "no space left" alone does not say what to delete. */
#include "store/whole_file.h"
#include "base/file.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static neb_status refused(const struct neb_whole_file *f, const char *what)
{
    int e = errno;
    bool full = e == ENOSPC || e == EDQUOT || e == EFBIG;
    neb_status status = e == ENOENT ? NEB_ERR_NOTFOUND : NEB_ERR_IO;
    if (full) status = NEB_ERR_NOSPACE;
    return neb__fail(status, "cannot %s %s after %" PRIu64 " bytes: %s%s", what, f->path, f->written,
                     strerror(e), full ? "; free some space; the previous file is untouched" : "");
}

neb_status neb__whole_file_create(const char *path, mode_t mode, struct neb_whole_file *out)
{
    struct neb_whole_file f = {.fd = -1};
    size_t n = strlen(path) + 32;
    f.path = neb__strdup(path);
    f.tmp = neb__malloc(n);
    neb_status status = NEB_ERR_NOMEM;
    if (!f.path || !f.tmp) {
        neb__fail(status, "no memory to write %s", path);
        goto fail;
    }
    snprintf(f.tmp, n, "%s.%ld.tmp", path, (long)getpid());
    f.fd = open(f.tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    if (f.fd < 0) {
        status = refused(&f, "create");
        goto fail;
    }
    *out = f;
    return NEB_OK;
fail:
    neb__free(f.path);
    neb__free(f.tmp);
    return status;
}

neb_status neb__whole_file_write(struct neb_whole_file *f, const void *data, size_t n)
{
    const uint8_t *p = data;
    while (n) {
        ssize_t k = write(f->fd, p, n < (1u << 30) ? n : 1u << 30);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return refused(f, "write");
        p += k;
        n -= (size_t)k;
        f->written += (uint64_t)k;
    }
    return NEB_OK;
}

neb_status neb__whole_file_zeros(struct neb_whole_file *f, size_t n)
{
    static const uint8_t zeros[4096];
    return neb__whole_file_write(f, zeros, n < sizeof zeros ? n : sizeof zeros);
}

static void release(struct neb_whole_file *f)
{
    if (f->fd >= 0) close(f->fd);
    neb__free(f->path);
    neb__free(f->tmp);
    *f = (struct neb_whole_file){.fd = -1};
}

neb_status neb__whole_file_commit(struct neb_whole_file *f)
{
    neb_status status = fsync(f->fd) ? refused(f, "sync") : NEB_OK;
    int bad = close(f->fd);
    f->fd = -1;
    if (status == NEB_OK && bad) status = refused(f, "close");
    if (status == NEB_OK && rename(f->tmp, f->path)) status = refused(f, "rename to");
    if (status != NEB_OK)
        unlink(f->tmp);
    else
        status = neb__file_sync_parent(f->path);
    release(f);
    return status;
}

void neb__whole_file_abandon(struct neb_whole_file *f)
{
    if (!f->tmp) return;
    unlink(f->tmp);
    release(f);
}
