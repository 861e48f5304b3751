/* journal.c: an append-only list of numbered items in segment files.
 *
 *     segment   DIR/NAME.<16 hex digits: number of its first item>
 *     record    u32 size, u64 item, 8 bytes (the beginning of SHA-256 over size, item and data), data
 *
 * Items are consecutive within and across segments. A segment ends when it has grown past SEGMENT bytes. It
 * is synced then, so only the newest segment can have a torn end. The next open cuts it off: a torn item was
 * never durable, so it never left this site. Damage anywhere else is an error. The newest segment is never
 * removed: its name keeps the number that comes next even when everything before is forgotten. */
#include "net/journal.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "net/net.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { HEAD = 20, SEGMENT = 16 << 20, SEGMENTS_MAX = 1 << 16 };

struct segment {
    uint64_t first, count; /* items */
    uint64_t bytes;
    uint64_t *at; /* offset of each item's record */
    uint64_t room;
    int fd;
};

struct neb_journal {
    char prefix[PATH_MAX]; /* DIR/NAME */
    struct segment *segments;
    uint32_t count, room;
};

static neb_status io_error(const struct neb_journal *j, const char *what)
{
    int e = errno;
    return neb__fail(e == ENOSPC || e == EDQUOT ? NEB_ERR_NOSPACE : NEB_ERR_IO, "journal %s: cannot %s: %s",
                     j->prefix, what, strerror(e));
}

static void segment_path(const struct neb_journal *j, uint64_t first, char out[PATH_MAX + 24])
{
    snprintf(out, PATH_MAX + 24, "%s.%016" PRIx64, j->prefix, first);
}

static neb_status add_segment(struct neb_journal *j, uint64_t first)
{
    char path[PATH_MAX + 24];
    if (j->count == j->room) {
        uint32_t room = j->room ? 2 * j->room : 4;
        struct segment *more = neb__realloc(j->segments, room * sizeof *more);
        if (!more) return neb__fail(NEB_ERR_NOMEM, "out of memory for a journal");
        j->segments = more;
        j->room = room;
    }
    segment_path(j, first, path);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return io_error(j, "open a segment");
    j->segments[j->count++] = (struct segment){.first = first, .fd = fd};
    return neb__file_sync_parent(path);
}

static neb_status index_item(struct segment *s, uint64_t at)
{
    if (s->count == s->room) {
        uint64_t room = s->room ? 2 * s->room : 64;
        uint64_t *more = neb__realloc(s->at, room * sizeof *more);
        if (!more) return neb__fail(NEB_ERR_NOMEM, "out of memory for a journal");
        s->at = more;
        s->room = room;
    }
    s->at[s->count++] = at;
    return NEB_OK;
}

static neb_status digest(const uint8_t head[12], const uint8_t *data, size_t n, uint8_t out[8])
{
    struct neb_hasher h;
    struct neb_hash hash;
    NEB_TRY(neb__hasher_init(&h));
    neb_status status = neb__hasher_update(&h, head, 12);
    if (status == NEB_OK && n) status = neb__hasher_update(&h, data, n);
    neb_status t = neb__hasher_final(&h, status == NEB_OK ? &hash : NULL);
    if (status == NEB_OK) status = t;
    if (status == NEB_OK) memcpy(out, hash.b, 8);
    return status;
}

/* Appends the record at `at` to `out` after checking it. NEB_ERR_CORRUPT (not logged): no valid record is
 * there. */
static neb_status read_record(const struct neb_journal *j, const struct segment *s, uint64_t at,
                              uint64_t item, struct neb_buf *out)
{
    uint8_t head[HEAD], sum[8];
    ssize_t n = pread(s->fd, head, HEAD, (off_t)at);
    if (n < 0) return io_error(j, "read");
    if (n < HEAD || neb__get64(head + 4) != item || neb__get32(head) > NEB_STREAM_ITEM_MAX)
        return neb__quiet(NEB_ERR_CORRUPT, "journal %s: item %" PRIu64 " is damaged", j->prefix, item);
    size_t size = neb__get32(head), got = 0;
    NEB_TRY(neb__buf_reserve(out, size ? size : 1)); /* an empty item also needs an address */
    while (got < size) {
        n = pread(s->fd, out->data + out->len + got, size - got, (off_t)(at + HEAD + got));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return io_error(j, "read");
        if (n == 0) break;
        got += (size_t)n;
    }
    if (got == size) NEB_TRY(digest(head, out->data + out->len, size, sum));
    if (got < size || memcmp(sum, head + 12, 8))
        return neb__quiet(NEB_ERR_CORRUPT, "journal %s: item %" PRIu64 " is damaged", j->prefix, item);
    out->len += size;
    return NEB_OK;
}

/* Reads a segment through once. Only the newest may end in the middle of a record. */
static neb_status scan(struct neb_journal *j, struct segment *s, bool newest)
{
    struct stat st;
    struct neb_buf b;
    neb_status status = NEB_OK;
    if (fstat(s->fd, &st)) return io_error(j, "inspect a segment");
    neb__buf_init(&b, NEB_STREAM_ITEM_MAX);
    while (status == NEB_OK && s->bytes < (uint64_t)st.st_size) {
        neb__buf_clear(&b);
        status = read_record(j, s, s->bytes, s->first + s->count, &b);
        if (status == NEB_OK) status = index_item(s, s->bytes);
        if (status == NEB_OK) s->bytes += HEAD + b.len;
    }
    neb__buf_free(&b);
    if (status != NEB_ERR_CORRUPT) return status;
    if (!newest) return neb__fail(status, "%s", neb_last_error());
    neb__info("journal %s: removing what a crash left unfinished behind item %" PRIu64, j->prefix,
              s->first + s->count - 1);
    if (ftruncate(s->fd, (off_t)s->bytes) || fsync(s->fd)) return io_error(j, "cut off a torn end");
    return NEB_OK;
}

static int by_number(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Lists the numbers of the segments on disk, ascending. */
static neb_status list_segments(const char *dir, const char *name, uint64_t **out, uint32_t *count)
{
    size_t n = strlen(name);
    uint64_t *list = NEB_NEW_ARRAY(uint64_t, SEGMENTS_MAX);
    DIR *d = opendir(dir);
    uint32_t found = 0;
    if (!list || !d) {
        if (d) closedir(d);
        neb__free(list);
        return neb__fail(d ? NEB_ERR_NOMEM : NEB_ERR_IO, "cannot list %s", dir);
    }
    for (struct dirent *e; (e = readdir(d)) && found < SEGMENTS_MAX;) {
        if (strncmp(e->d_name, name, n) || e->d_name[n] != '.' || strlen(e->d_name) != n + 17) continue;
        if (strspn(e->d_name + n + 1, "0123456789abcdef") != 16) continue;
        list[found++] = strtoull(e->d_name + n + 1, NULL, 16);
    }
    closedir(d);
    qsort(list, found, sizeof *list, by_number);
    *out = list;
    *count = found;
    return NEB_OK;
}

static neb_status load(struct neb_journal *j, const char *dir, const char *name, uint64_t begin)
{
    uint64_t *list = NULL;
    uint32_t n = 0;
    NEB_TRY(list_segments(dir, name, &list, &n));
    neb_status status = NEB_OK;
    for (uint32_t i = 0; i < n && status == NEB_OK; i++) {
        if (i && list[i] != neb__journal_next(j))
            status = neb__fail(NEB_ERR_CORRUPT, "journal %s: items %" PRIu64 " to %" PRIu64 " are missing",
                               j->prefix, neb__journal_next(j), list[i] - 1);
        if (status == NEB_OK) status = add_segment(j, list[i]);
        if (status == NEB_OK) status = scan(j, &j->segments[j->count - 1], i + 1 == n);
    }
    if (status == NEB_OK && !n) status = add_segment(j, begin);
    /* the items that were read back may be only in the page cache */
    if (status == NEB_OK && fdatasync(neb__journal_fd(j))) status = io_error(j, "sync");
    neb__free(list);
    return status;
}

neb_status neb__journal_open(const char *dir, const char *name, uint64_t begin, struct neb_journal **out)
{
    struct neb_journal *j = NEB_NEW(struct neb_journal);
    if (!j) return neb__fail(NEB_ERR_NOMEM, "out of memory for a journal");
    neb_status status = NEB_OK;
    if (snprintf(j->prefix, sizeof j->prefix, "%s/%s", dir, name) >= (int)sizeof j->prefix)
        status = neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", dir);
    if (status == NEB_OK) status = neb__file_make_dir(dir, 0700);
    if (status == NEB_OK) status = load(j, dir, name, begin);
    if (status != NEB_OK) {
        neb__journal_close(j);
        return status;
    }
    *out = j;
    return NEB_OK;
}

static void release(struct segment *s)
{
    if (s->fd >= 0) close(s->fd);
    neb__free(s->at);
}

void neb__journal_close(struct neb_journal *j)
{
    if (!j) return;
    for (uint32_t i = 0; i < j->count; i++) release(&j->segments[i]);
    neb__free(j->segments);
    neb__free(j);
}

uint64_t neb__journal_first(const struct neb_journal *j)
{
    return j->segments[0].first;
}

uint64_t neb__journal_next(const struct neb_journal *j)
{
    const struct segment *s = &j->segments[j->count - 1];
    return s->first + s->count;
}

uint64_t neb__journal_bytes(const struct neb_journal *j)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < j->count; i++) n += j->segments[i].bytes;
    return n;
}

int neb__journal_fd(const struct neb_journal *j)
{
    return j->segments[j->count - 1].fd;
}

neb_status neb__journal_append(struct neb_journal *j, const uint8_t *data, size_t size)
{
    uint8_t head[HEAD];
    struct segment *s = &j->segments[j->count - 1];
    if (size > NEB_STREAM_ITEM_MAX) return neb__fail(NEB_ERR_LIMIT, "an item of %zu bytes", size);
    if (s->bytes >= SEGMENT) {
        if (fdatasync(s->fd)) return io_error(j, "sync");
        NEB_TRY(add_segment(j, s->first + s->count));
        s = &j->segments[j->count - 1];
    }
    neb__put32(head, (uint32_t)size);
    neb__put64(head + 4, s->first + s->count);
    NEB_TRY(digest(head, data, size, head + 12));
    struct iovec v[2] = {{head, HEAD}, {(void *)(uintptr_t)data, size}};
    ssize_t n = pwritev(s->fd, v, 2, (off_t)s->bytes);
    if (n !=
        (ssize_t)(HEAD +
                  size)) { /* the next item overwrites a partial one, or an open cuts it off as a torn end */
        if (n >= 0) errno = ENOSPC;
        neb_status status = io_error(j, "write");
        if (ftruncate(s->fd, (off_t)s->bytes))
            neb__warn("journal %s: cannot cut off a torn end; the next open will", j->prefix);
        return status;
    }
    NEB_TRY(index_item(s, s->bytes));
    s->bytes += HEAD + size;
    return NEB_OK;
}

neb_status neb__journal_read(struct neb_journal *j, uint64_t item, struct neb_buf *out)
{
    for (uint32_t i = 0; i < j->count; i++) {
        struct segment *s = &j->segments[i];
        if (item < s->first || item >= s->first + s->count) continue;
        neb_status status = read_record(j, s, s->at[item - s->first], item, out);
        return status == NEB_ERR_CORRUPT ? neb__fail(status, "%s", neb_last_error()) : status;
    }
    return neb__quiet(NEB_ERR_NOTFOUND, "journal %s does not hold item %" PRIu64, j->prefix, item);
}

void neb__journal_retain(struct neb_journal *j, uint64_t item)
{
    char path[PATH_MAX + 24];
    while (j->count > 1 && j->segments[1].first <= item + 1) {
        segment_path(j, j->segments[0].first, path);
        if (unlink(path)) neb__warn("cannot remove %s: %s", path, strerror(errno));
        release(&j->segments[0]);
        memmove(j->segments, j->segments + 1, --j->count * sizeof *j->segments);
    }
}

neb_status neb__journal_segments(const char *dir, const char *name, uint32_t *out)
{
    uint64_t *list = NULL;
    NEB_TRY(list_segments(dir, name, &list, out));
    neb__free(list);
    return NEB_OK;
}

neb_status neb__journal_remove(const char *dir, const char *name)
{
    char path[PATH_MAX + 24] = "";
    uint64_t *list = NULL;
    uint32_t n = 0;
    neb_status status = NEB_OK;
    NEB_TRY(list_segments(dir, name, &list, &n));
    /* the newest goes first, so that an interrupted removal leaves no gap */
    while (status == NEB_OK && n) {
        if (snprintf(path, sizeof path, "%s/%s.%016" PRIx64, dir, name, list[--n]) >= (int)sizeof path)
            status = neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", dir);
        else if (unlink(path) && errno != ENOENT)
            status = neb__fail(NEB_ERR_IO, "cannot remove %s: %s", path, strerror(errno));
    }
    neb__free(list);
    return status == NEB_OK && *path ? neb__file_sync_parent(path) : status;
}
