/* keyed_file.c: the keyed file: entries that are only ever appended, and an index of them in memory.
 *
 *     header   "NEBCACH1", hash of what the entries depend on (32)
 *     entry    u32 size, u32 CRC-32C of all that follows, u64 tag, key (16), bytes
 *
 * Little-endian. Opening walks over the entries without reading their bytes, because a cache may have
 * gigabytes. The checksum is checked when an entry is read. */
#include "store/keyed_file.h"
#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { HEAD = 8 + NEB_HASH_SIZE, ENTRY = 32 };
#define MAGIC "NEBCACH1"

struct neb_keyed_file {
    char *path;
    int fd;
    uint64_t bytes, last;    /* of the file; newest tag */
    struct neb_keyset index; /* where each entry begins */
};

static neb_status io_error(const struct neb_keyed_file *c, const char *what)
{
    int e = errno;
    return neb__fail(e == ENOSPC || e == EDQUOT ? NEB_ERR_NOSPACE : NEB_ERR_IO, "%s: cannot %s: %s", c->path,
                     what, strerror(e));
}

/* False: the file ends before that. */
static bool read_at(const struct neb_keyed_file *c, void *out, size_t n, uint64_t at)
{
    for (size_t got = 0; got < n;) {
        ssize_t k = pread(c->fd, (char *)out + got, n - got, (off_t)(at + got));
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return false;
        got += (size_t)k;
    }
    return true;
}

/* Finds the end of the entries that count. */
static neb_status walk(struct neb_keyed_file *c, uint64_t size, uint64_t upto)
{
    uint8_t e[ENTRY];
    for (c->bytes = HEAD; c->bytes + ENTRY <= size;) {
        if (!read_at(c, e, ENTRY, c->bytes)) break;
        uint64_t n = neb__get32(e), tag = neb__get64(e + 8);
        if (n > NEB_KEYED_FILE_ENTRY_MAX || c->bytes + ENTRY + n > size || tag < c->last || tag > upto) break;
        struct neb_keyset_key key;
        memcpy(key.b, e + 16, NEB_KEY);
        NEB_TRY(neb__keyset_add(&c->index, &key, c->bytes));
        c->last = tag;
        c->bytes += ENTRY + n;
    }
    return NEB_OK;
}

static neb_status begin(struct neb_keyed_file *c, const struct neb_hash *of)
{
    uint8_t head[HEAD];
    memcpy(head, MAGIC, 8);
    memcpy(head + 8, of->b, NEB_HASH_SIZE);
    if (ftruncate(c->fd, 0) || pwrite(c->fd, head, HEAD, 0) != HEAD || fsync(c->fd))
        return io_error(c, "begin");
    c->bytes = HEAD;
    return neb__file_sync_parent(c->path);
}

static neb_status load(struct neb_keyed_file *c, const struct neb_hash *of, uint64_t upto)
{
    struct stat st;
    uint8_t head[HEAD];
    c->fd = open(c->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (c->fd < 0 || fstat(c->fd, &st)) return io_error(c, "open");
    (void)fchmod(c->fd, 0600); /* one that was there; its owner may be somebody else */
    if (!st.st_size) return begin(c, of);
    bool ours = read_at(c, head, HEAD, 0) && !memcmp(head, MAGIC, 8);
    if (!ours || memcmp(head + 8, of->b, NEB_HASH_SIZE)) {
        neb__warn("replacing %s, which %s", c->path,
                  ours ? "belongs to another model or job" : "is not a cache of Nebula-I");
        return begin(c, of);
    }
    NEB_TRY(walk(c, (uint64_t)st.st_size, upto));
    if (c->bytes < (uint64_t)st.st_size && ftruncate(c->fd, (off_t)c->bytes))
        return io_error(c, "cut off the end");
    return NEB_OK;
}

neb_status neb__keyed_file_open(const char *path, const struct neb_hash *of, uint64_t upto,
                                struct neb_keyed_file **out)
{
    struct neb_keyed_file *c = NEB_NEW(struct neb_keyed_file);
    if (c) c->fd = -1;
    if (c) c->path = neb__strdup(path);
    neb_status status =
        c && c->path ? load(c, of, upto) : neb__fail(NEB_ERR_NOMEM, "out of memory for a cache");
    if (status != NEB_OK) {
        neb__keyed_file_close(c);
        return status;
    }
    *out = c;
    return NEB_OK;
}

void neb__keyed_file_close(struct neb_keyed_file *c)
{
    if (!c) return;
    if (c->fd >= 0) close(c->fd);
    neb__keyset_free(&c->index);
    neb__free(c->path);
    neb__free(c);
}

static uint32_t sum(const uint8_t entry[ENTRY], const void *bytes, size_t n)
{
    return neb__crc32c(neb__crc32c(0, entry + 8, ENTRY - 8), bytes, n);
}

neb_status neb__keyed_file_get(struct neb_keyed_file *c, const struct neb_keyset_key *key,
                               struct neb_buf *out)
{
    const uint64_t *at = neb__keyset_find(&c->index, key);
    uint8_t e[ENTRY];
    if (!at || !*at) return neb__quiet(NEB_ERR_NOTFOUND, "%s: no such entry", c->path);
    bool good = read_at(c, e, ENTRY, *at) && neb__get32(e) <= NEB_KEYED_FILE_ENTRY_MAX &&
                !memcmp(e + 16, key->b, NEB_KEY);
    size_t n = good ? neb__get32(e) : 0;
    NEB_TRY(neb__buf_reserve(out, n + 1));
    good = good && read_at(c, out->data + out->len, n, *at + ENTRY) &&
           neb__get32(e + 4) == sum(e, out->data + out->len, n);
    if (!good) {
        NEB_TRY(neb__keyset_add(&c->index, key, 0));
        return neb__fail(NEB_ERR_CORRUPT, "%s: an entry is damaged", c->path);
    }
    out->len += n;
    return NEB_OK;
}

neb_status neb__keyed_file_put(struct neb_keyed_file *c, const struct neb_keyset_key *key, uint64_t tag,
                               const void *bytes, size_t n)
{
    uint8_t e[ENTRY];
    if (tag < c->last || n > NEB_KEYED_FILE_ENTRY_MAX)
        return neb__fail(NEB_ERR_INVALID,
                         "%s: refusing an entry of %zu bytes with tag %" PRIu64 " after tag %" PRIu64,
                         c->path, n, tag, c->last);
    const uint64_t *old = neb__keyset_find(&c->index, key);
    if (old && *old) return NEB_OK;
    neb__put32(e, (uint32_t)n);
    neb__put64(e + 8, tag);
    memcpy(e + 16, key->b, NEB_KEY);
    neb__put32(e + 4, sum(e, bytes, n));
    struct iovec v[2] = {{e, ENTRY}, {(void *)(uintptr_t)bytes, n}};
    ssize_t done = pwritev(c->fd, v, 2, (off_t)c->bytes);
    if (done != (ssize_t)(ENTRY + n)) {
        if (done >= 0) errno = ENOSPC;
        neb_status status = io_error(c, "write");
        if (ftruncate(c->fd, (off_t)c->bytes))
            neb__warn("%s: cannot cut off a torn end; the next start will", c->path);
        return status;
    }
    NEB_TRY(neb__keyset_add(&c->index, key, c->bytes));
    c->last = tag;
    c->bytes += ENTRY + n;
    return NEB_OK;
}

neb_status neb__keyed_file_sync(struct neb_keyed_file *c)
{
    return fdatasync(c->fd) ? io_error(c, "sync") : NEB_OK;
}

uint64_t neb__keyed_file_bytes(const struct neb_keyed_file *c)
{
    return c->bytes;
}
