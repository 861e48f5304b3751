/* disk.c: a real folder behind the disk operations, and whole files with a checksum.
 *
 * A blob file is its content followed by the content's SHA-256. It is written as `tmp-NAME`, synced and
 * renamed over the old one, and the folder is synced: after a power cut there is the old file or the new one.
 * An unfinished `tmp-NAME` is removed at once, or after a kill by the next start. */
#include "store/disk.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct folder {
    char path[PATH_MAX - 256];
    int lock, open_fd; /* open_fd: the file used last, kept open */
    bool only_reads;
    char open_name[256];
};

static neb_status io_error(const char *what, const char *name)
{
    int e = errno;
    if (e == ENOENT) return neb__quiet(NEB_ERR_NOTFOUND, "cannot %s %s: %s", what, name, strerror(e));
    neb_status status = e == ENOSPC || e == EDQUOT ? NEB_ERR_NOSPACE : NEB_ERR_IO;
    return neb__fail(status, "cannot %s %s: %s", what, name, strerror(e));
}

static void full(const struct folder *f, const char *name, char out[PATH_MAX])
{
    snprintf(out, PATH_MAX, "%s/%.250s", f->path, name);
}

static void forget(struct folder *f)
{
    if (f->open_fd >= 0) close(f->open_fd);
    f->open_fd = -1;
}

static neb_status use(struct folder *f, const char *name, bool make, int *fd)
{
    if (f->open_fd < 0 || strcmp(f->open_name, name)) {
        char path[PATH_MAX];
        full(f, name, path);
        forget(f);
        int how = make ? O_RDWR | O_CREAT : O_RDWR;
        if (f->only_reads) how = O_RDONLY;
        int opened = open(path, how | O_CLOEXEC, 0600);
        if (opened < 0) return io_error("open", name);
        f->open_fd = opened;
        snprintf(f->open_name, sizeof f->open_name, "%s", name);
    }
    *fd = f->open_fd;
    return NEB_OK;
}

static neb_status folder_size(void *ctx, const char *name, uint64_t *out)
{
    char path[PATH_MAX];
    struct stat st;
    full(ctx, name, path);
    if (stat(path, &st)) return io_error("look at", name);
    *out = (uint64_t)st.st_size;
    return NEB_OK;
}

static neb_status folder_read(void *ctx, const char *name, uint64_t at, void *to, size_t n)
{
    int fd;
    NEB_TRY(use(ctx, name, false, &fd));
    for (uint8_t *p = to; n;) {
        ssize_t r = pread(fd, p, n, (off_t)at);
        if (r < 0 && errno == EINTR) continue;
        if (r <= 0)
            return neb__fail(NEB_ERR_IO, "cannot read %s: %s", name,
                             r ? strerror(errno) : "it ends too early");
        p += r, at += (uint64_t)r, n -= (size_t)r;
    }
    return NEB_OK;
}

static neb_status folder_write(void *ctx, const char *name, uint64_t at, const void *from, size_t n)
{
    int fd;
    NEB_TRY(use(ctx, name, true, &fd));
    for (const uint8_t *p = from; n;) {
        ssize_t w = pwrite(fd, p, n, (off_t)at);
        if (w < 0 && errno == EINTR) continue;
        if (w <= 0) return io_error("write", name);
        p += w, at += (uint64_t)w, n -= (size_t)w;
    }
    return NEB_OK;
}

static neb_status folder_cut(void *ctx, const char *name, uint64_t size)
{
    int fd;
    NEB_TRY(use(ctx, name, true, &fd));
    return ftruncate(fd, (off_t)size) ? io_error("shorten", name) : NEB_OK;
}

static neb_status folder_sync(void *ctx, const char *name)
{
    int fd;
    NEB_TRY(use(ctx, name, false, &fd));
    return fsync(fd) ? io_error("sync", name) : NEB_OK;
}

static neb_status folder_rename(void *ctx, const char *from, const char *to)
{
    char a[PATH_MAX], b[PATH_MAX];
    full(ctx, from, a);
    full(ctx, to, b);
    forget(ctx);
    return rename(a, b) ? io_error("rename", from) : NEB_OK;
}

static neb_status folder_remove(void *ctx, const char *name)
{
    char path[PATH_MAX];
    full(ctx, name, path);
    forget(ctx);
    return unlink(path) && errno != ENOENT ? io_error("remove", name) : NEB_OK;
}

static neb_status folder_sync_dir(void *ctx)
{
    char path[PATH_MAX];
    full(ctx, "x", path);
    return neb__file_sync_parent(path);
}

static neb_status folder_list(void *ctx, const char *prefix, void (*each)(void *arg, const char *name),
                              void *arg)
{
    struct folder *f = ctx;
    DIR *d = opendir(f->path);
    if (!d) return io_error("list", f->path);
    for (struct dirent *e; (e = readdir(d));)
        if (!strncmp(e->d_name, prefix, strlen(prefix))) each(arg, e->d_name);
    closedir(d);
    return NEB_OK;
}

static const struct neb_disk_ops folder_ops = {folder_size,   folder_read,     folder_write,
                                               folder_cut,    folder_sync,     folder_rename,
                                               folder_remove, folder_sync_dir, folder_list};

/* ---- a folder that is only read ------------------------------------------------------------------------ */

static neb_status refuse(const char *name)
{
    return neb__quiet(NEB_ERR_STATE, "cannot change %s: its folder was opened for reading only", name);
}

static neb_status refuse_write(void *ctx, const char *name, uint64_t at, const void *from, size_t n)
{
    (void)ctx, (void)at, (void)from, (void)n;
    return refuse(name);
}

static neb_status refuse_cut(void *ctx, const char *name, uint64_t size)
{
    (void)ctx, (void)size;
    return refuse(name);
}

static neb_status refuse_rename(void *ctx, const char *from, const char *to)
{
    (void)ctx, (void)to;
    return refuse(from);
}

static neb_status refuse_remove(void *ctx, const char *name)
{
    (void)ctx;
    return refuse(name);
}

static neb_status nothing_to_sync(void *ctx, const char *name)
{
    (void)ctx, (void)name;
    return NEB_OK;
}

static neb_status no_names_to_sync(void *ctx)
{
    (void)ctx;
    return NEB_OK;
}

static const struct neb_disk_ops reading_ops = {folder_size,   folder_read,      refuse_write,
                                                refuse_cut,    nothing_to_sync,  refuse_rename,
                                                refuse_remove, no_names_to_sync, folder_list};

/* ---- opening ------------------------------------------------------------------------------------------- */

/* A reader shares the lock, and makes no file for it. */
static neb_status take_lock(struct folder *f)
{
    char path[PATH_MAX];
    full(f, "lock", path);
    neb_status status = neb__file_lock(path, f->only_reads ? NEB_LOCK_SHARED : NEB_LOCK_FILE, &f->lock);
    if (status == NEB_OK || (f->only_reads && status == NEB_ERR_NOTFOUND)) return NEB_OK;
    if (status != NEB_ERR_BUSY) return neb__fail(status, "%s", neb_last_error());
    return neb__fail(status, "the site folder %s is in use by another process; stop that process first",
                     f->path);
}

static neb_status open_folder(const char *path, bool only_reads, struct neb_disk *out)
{
    struct folder *f = NEB_NEW(struct folder);
    if (!f) return neb__fail(NEB_ERR_NOMEM, "out of memory");
    f->open_fd = -1;
    f->lock = -1;
    f->only_reads = only_reads;
    neb_status status = snprintf(f->path, sizeof f->path, "%s", path) < (int)sizeof f->path
                            ? take_lock(f)
                            : neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", path);
    struct neb_disk d = {only_reads ? &reading_ops : &folder_ops, f};
    if (status != NEB_OK)
        neb__disk_close(&d);
    else
        *out = d;
    return status;
}

neb_status neb__disk_open(const char *path, struct neb_disk *out)
{
    return open_folder(path, false, out);
}

neb_status neb__disk_open_to_read(const char *path, struct neb_disk *out)
{
    return open_folder(path, true, out);
}

void neb__disk_close(struct neb_disk *d)
{
    struct folder *f = d->ctx;
    if (!f) return;
    forget(f);
    if (f->lock >= 0) close(f->lock);
    neb__free(f);
    d->ctx = NULL;
}

static neb_status hash_pieces(const struct neb_disk_piece *pieces, int count, struct neb_hash *out)
{
    struct neb_hasher h;
    neb_status status = NEB_OK;
    NEB_TRY(neb__hasher_init(&h));
    for (int i = 0; i < count && status == NEB_OK; i++)
        status = neb__hasher_update(&h, pieces[i].data, pieces[i].n);
    neb_status f = neb__hasher_final(&h, status == NEB_OK ? out : NULL);
    return status != NEB_OK ? status : f;
}

static neb_status write_pieces(const struct neb_disk *d, const char *name,
                               const struct neb_disk_piece *pieces, int count, bool keep)
{
    uint64_t at = 0;
    for (int i = 0; i < count; at += pieces[i++].n)
        NEB_TRY(d->ops->write(d->ctx, name, at, pieces[i].data, pieces[i].n));
    return keep ? d->ops->sync(d->ctx, name) : NEB_OK;
}

neb_status neb__disk_replace(const struct neb_disk *d, const char *name, const struct neb_disk_piece *pieces,
                             int count, bool keep)
{
    char tmp[300];
    snprintf(tmp, sizeof tmp, "tmp-%s", name);
    (void)d->ops->remove(d->ctx, tmp);
    neb_status status = write_pieces(d, tmp, pieces, count, keep);
    if (status == NEB_OK) status = d->ops->rename(d->ctx, tmp, name);
    if (status != NEB_OK) { /* the log needs the room it took */
        (void)d->ops->remove(d->ctx, tmp);
        return status;
    }
    return keep ? d->ops->sync_dir(d->ctx) : NEB_OK;
}

struct first_name {
    char name[256];
};

static void note_first(void *arg, const char *name)
{
    struct first_name *f = arg;
    if (!f->name[0]) snprintf(f->name, sizeof f->name, "%s", name);
}

void neb__disk_sweep(const struct neb_disk *d)
{
    for (neb_status status = NEB_OK;
         status == NEB_OK;) { /* one file a turn: none is removed while names are listed */
        struct first_name f = {""};
        status = d->ops->list(d->ctx, "tmp-", note_first, &f);
        if (!f.name[0]) return;
        if (status == NEB_OK) status = d->ops->remove(d->ctx, f.name);
    }
}

neb_status neb__blob_join(const struct neb_disk *d, const char *name, const struct neb_disk_piece *pieces,
                          int count, bool keep)
{
    struct neb_disk_piece all[8];
    struct neb_hash h;
    if (count < 0 || count > 7) return neb__fail(NEB_ERR_INVALID, "a file cannot have %d pieces", count);
    NEB_TRY(hash_pieces(pieces, count, &h));
    memcpy(all, pieces, (size_t)count * sizeof *all);
    all[count] = (struct neb_disk_piece){h.b, NEB_HASH_SIZE};
    return neb__disk_replace(d, name, all, count + 1, keep);
}

neb_status neb__blob_save(const struct neb_disk *d, const char *name, const void *data, size_t n, bool keep)
{
    return neb__blob_join(d, name, &(struct neb_disk_piece){data, n}, 1, keep);
}

neb_status neb__disk_overwrite(const struct neb_disk *d, const char *name, const void *data, size_t n)
{
    uint64_t size;
    if (d->ops->size(d->ctx, name, &size) == NEB_OK && size > n) NEB_TRY(d->ops->cut(d->ctx, name, n));
    return d->ops->write(d->ctx, name, 0, data, n);
}

neb_status neb__disk_load(const struct neb_disk *d, const char *name, struct neb_buf *out)
{
    uint64_t size;
    NEB_TRY(d->ops->size(d->ctx, name, &size));
    NEB_TRY(neb__buf_reserve(out, (size_t)size + 1));
    NEB_TRY(d->ops->read(d->ctx, name, 0, out->data + out->len, (size_t)size));
    out->len += (size_t)size;
    return NEB_OK;
}

neb_status neb__blob_load(const struct neb_disk *d, const char *name, struct neb_buf *out)
{
    uint64_t size;
    struct neb_hash h;
    NEB_TRY(d->ops->size(d->ctx, name, &size));
    if (size < NEB_HASH_SIZE)
        return neb__quiet(NEB_ERR_CORRUPT, "%s is damaged: it has only %" PRIu64 " bytes", name, size);
    size_t n = (size_t)size - NEB_HASH_SIZE;
    NEB_TRY(neb__buf_reserve(out, (size_t)size));
    uint8_t *p = out->data + out->len;
    NEB_TRY(d->ops->read(d->ctx, name, 0, p, (size_t)size));
    NEB_TRY(neb__hash(p, n, &h));
    if (memcmp(p + n, h.b, NEB_HASH_SIZE)) return neb__quiet(NEB_ERR_CORRUPT, "%s is damaged", name);
    out->len += n;
    return NEB_OK;
}
