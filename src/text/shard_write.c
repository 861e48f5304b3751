/* shard_write.c: writes a set of shards.
 *
 * Tokens stream through one buffer to GENERATION-NUMBER.tok.tmp; only the present shard's index is held in
 * memory. A full shard gets its index and header, is synced and renamed. The set becomes visible when the
 * manifest, written last and atomically, names the new generation. A crash before that leaves the old set
 * unchanged, and files that the next writer removes. The folder is locked as long as a writer exists. */
#include "text/shard_format.h"
#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { BUFFER = 1 << 20, DEFAULT_SHARD = 256 << 20 };

struct neb_set_writer {
    char *dir;
    int lock, fd; /* fd -1: no shard open */
    uint64_t generation;
    int64_t shard_tokens;       /* a shard ends here */
    struct neb_shard_head head; /* of the open shard; number: how many are finished */
    uint32_t *index;            /* start of each text */
    size_t texts, cap;
    uint8_t *buffer;
    size_t held;
};

static neb_status io_failed(const struct neb_set_writer *w, const char *what)
{
    int e = errno;
    return neb__fail(e == ENOSPC || e == EDQUOT ? NEB_ERR_NOSPACE : NEB_ERR_IO,
                     "cannot %s a token shard in %s: %s", what, w->dir, strerror(e));
}

static neb_status write_out(struct neb_set_writer *w, const uint8_t *p, size_t n)
{
    while (n) {
        ssize_t k = write(w->fd, p, n);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return io_failed(w, "write");
        p += k;
        n -= (size_t)k;
    }
    return NEB_OK;
}

static neb_status flush(struct neb_set_writer *w)
{
    NEB_TRY(write_out(w, w->buffer, w->held));
    w->held = 0;
    return NEB_OK;
}

static neb_status temporary(const struct neb_set_writer *w, char *path)
{
    NEB_TRY(neb__shard_path(w->dir, w->generation, w->head.number, path));
    if (strlen(path) + 5 > PATH_MAX) return neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", w->dir);
    strcat(path, ".tmp");
    return NEB_OK;
}

/* Removes every shard file of another generation than `keep`. */
static void sweep(const char *dir, uint64_t keep)
{
    DIR *d = opendir(dir);
    char prefix[20], path[PATH_MAX];
    snprintf(prefix, sizeof prefix, "%016" PRIx64, keep);
    for (struct dirent *e; d && (e = readdir(d));) {
        size_t n = strlen(e->d_name);
        int shard =
            (n == 26 && !strcmp(e->d_name + 22, ".tok")) || (n == 30 && !strcmp(e->d_name + 22, ".tok.tmp"));
        if (!shard || !strncmp(e->d_name, prefix, 16)) continue;
        if (snprintf(path, sizeof path, "%s/%s", dir, e->d_name) < (int)sizeof path) unlink(path);
    }
    if (d) closedir(d);
}

static neb_status open_shard(struct neb_set_writer *w)
{
    char path[PATH_MAX];
    NEB_TRY(temporary(w, path));
    w->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (w->fd < 0) return io_failed(w, "create");
    w->texts = 0;
    w->head.samples = w->head.tokens = 0;
    w->head.crc_tokens = w->head.crc_index = 0;
    memset(w->buffer, 0, NEB_SHARD_HEAD);
    w->held = NEB_SHARD_HEAD; /* the header comes last */
    return NEB_OK;
}

static neb_status put_index(struct neb_set_writer *w)
{
    static const uint8_t zero[4];
    size_t pad =
        (size_t)(neb__shard_index_at(&w->head) - NEB_SHARD_HEAD - w->head.tokens * (uint64_t)w->head.width);
    NEB_TRY(flush(w));
    NEB_TRY(write_out(w, zero, pad));
    for (size_t i = 0; i <= w->texts; i++) {
        uint32_t at = i < w->texts ? w->index[i] : (uint32_t)w->head.tokens;
        if (w->held + 4 > BUFFER) NEB_TRY(flush(w));
        neb__put32(w->buffer + w->held, at);
        w->head.crc_index = neb__crc32c(w->head.crc_index, w->buffer + w->held, 4);
        w->held += 4;
    }
    return flush(w);
}

static neb_status close_shard(struct neb_set_writer *w)
{
    char from[PATH_MAX], to[PATH_MAX];
    NEB_TRY(put_index(w));
    w->head.length = neb__shard_index_at(&w->head) + 4 * (w->texts + 1);
    uint8_t head[NEB_SHARD_HEAD];
    neb__shard_head_put(&w->head, head);
    if (pwrite(w->fd, head, sizeof head, 0) != (ssize_t)sizeof head) return io_failed(w, "write");
    if (fsync(w->fd)) return io_failed(w, "sync");
    int bad = close(w->fd);
    w->fd = -1;
    if (bad) return io_failed(w, "close");
    NEB_TRY(temporary(w, from));
    NEB_TRY(neb__shard_path(w->dir, w->generation, w->head.number, to));
    if (rename(from, to)) return io_failed(w, "rename");
    w->head.number++;
    return NEB_OK;
}

static neb_status begin(struct neb_set_writer *w)
{
    NEB_TRY(neb__file_make_dir(w->dir, 0700));
    neb_status status = neb__file_lock(w->dir, NEB_LOCK_FOLDER, &w->lock);
    if (status == NEB_ERR_BUSY)
        return neb__fail(status, "another process is writing the token set in %s; wait for it", w->dir);
    if (status != NEB_OK) return neb__fail(status, "%s", neb_last_error());
    uint32_t shards;
    status = neb__set_read(w->dir, &w->generation, &shards);
    if (status != NEB_OK && status != NEB_ERR_NOTFOUND && status != NEB_ERR_CORRUPT &&
        status != NEB_ERR_VERSION)
        return status;
    if (status == NEB_OK) sweep(w->dir, w->generation);
    if (status == NEB_ERR_NOTFOUND)
        sweep(w->dir, 0); /* removes the files of a killed writer: there is no generation 0 */
    w->generation = status == NEB_OK ? w->generation + 1 : 1;
    return NEB_OK;
}

neb_status neb__set_create(const char *dir, const struct neb_set_info *info, int64_t shard_bytes,
                           struct neb_set_writer **out)
{
    if (info->sides < 1 || info->sides > 2 || info->vocab <= 0 || shard_bytes < 0 ||
        memchr(info->lang[0], 0, NEB_LANG_SIZE) == NULL || memchr(info->lang[1], 0, NEB_LANG_SIZE) == NULL)
        return neb__fail(NEB_ERR_INVALID, "a token set with %d sides and a vocabulary of %d is not possible",
                         info->sides, (int)info->vocab);
    struct neb_set_writer *w = NEB_NEW(struct neb_set_writer);
    if (!w) return neb__fail(NEB_ERR_NOMEM, "not enough memory to write a token set");
    w->lock = w->fd = -1;
    w->head.info = *info;
    w->head.width = info->vocab <= 65536 ? 2 : 4;
    w->shard_tokens = (shard_bytes ? shard_bytes : DEFAULT_SHARD) / w->head.width;
    if (w->shard_tokens > NEB_SHARD_MAX_TOKENS) w->shard_tokens = NEB_SHARD_MAX_TOKENS;
    w->dir = neb__strdup(dir);
    w->buffer = neb__malloc(BUFFER);
    neb_status status = NEB_ERR_NOMEM;
    if (!w->dir || !w->buffer)
        neb__fail(status, "not enough memory to write a token set");
    else
        status = begin(w);
    if (status != NEB_OK) {
        w->generation = 0; /* nothing of it is on disk */
        neb__set_abandon(w);
        return status;
    }
    *out = w;
    return NEB_OK;
}

static neb_status note_text(struct neb_set_writer *w)
{
    if (w->texts == w->cap) {
        size_t cap = w->cap ? w->cap * 2 : 4096;
        uint32_t *index = neb__realloc(w->index, cap * sizeof *index);
        if (!index) return neb__fail(NEB_ERR_NOMEM, "out of memory for the index of a token shard");
        w->index = index;
        w->cap = cap;
    }
    w->index[w->texts++] = (uint32_t)w->head.tokens;
    return NEB_OK;
}

static neb_status add_text(struct neb_set_writer *w, const int32_t *ids, int32_t n)
{
    NEB_TRY(note_text(w));
    for (int32_t i = 0; i < n; i++) {
        if (w->held + 4 > BUFFER) NEB_TRY(flush(w));
        uint8_t *to = w->buffer + w->held;
        if (w->head.width == 2)
            neb__put16(to, (uint16_t)ids[i]);
        else
            neb__put32(to, (uint32_t)ids[i]);
        w->head.crc_tokens = neb__crc32c(w->head.crc_tokens, to, (size_t)w->head.width);
        w->held += (size_t)w->head.width;
    }
    w->head.tokens += (uint64_t)n;
    return NEB_OK;
}

neb_status neb__set_add(struct neb_set_writer *w, const int32_t *const ids[2], const int32_t n[2])
{
    int sides = w->head.info.sides;
    int64_t all = 0;
    for (int s = 0; s < sides; s++) {
        if (n[s] <= 0) return neb__fail(NEB_ERR_INVALID, "an empty text cannot be a sample");
        for (int32_t i = 0; i < n[s]; i++)
            if (ids[s][i] < 0 || ids[s][i] >= w->head.info.vocab)
                return neb__fail(NEB_ERR_RANGE, "token %d is outside the vocabulary of %d", (int)ids[s][i],
                                 (int)w->head.info.vocab);
        all += n[s];
    }
    if (all > NEB_SHARD_MAX_TOKENS)
        return neb__fail(NEB_ERR_LIMIT, "a sample of %" PRId64 " tokens is too long", all);
    int full = (int64_t)w->head.tokens + all > w->shard_tokens || w->texts + 2 > NEB_SHARD_MAX_TEXTS;
    if (w->fd >= 0 && full && w->head.samples) NEB_TRY(close_shard(w));
    if (w->head.number == NEB_SET_MAX_SHARDS)
        return neb__fail(NEB_ERR_LIMIT, "%s would have too many shards; use larger shards", w->dir);
    if (w->fd < 0) NEB_TRY(open_shard(w));
    for (int s = 0; s < sides; s++) NEB_TRY(add_text(w, ids[s], n[s]));
    w->head.samples++;
    return NEB_OK;
}

static void release(struct neb_set_writer *w)
{
    if (w->fd >= 0) close(w->fd);
    if (w->lock >= 0) close(w->lock); /* and unlocks */
    neb__free(w->index);
    neb__free(w->buffer);
    neb__free(w->dir);
    neb__free(w);
}

neb_status neb__set_finish(struct neb_set_writer *w)
{
    neb_status status = NEB_OK;
    if (w->fd < 0 && !w->head.number) status = open_shard(w); /* an empty set has a header, too */
    if (status == NEB_OK && w->fd >= 0) status = close_shard(w);
    if (status == NEB_OK) status = neb__file_sync_parent(w->dir);
    if (status == NEB_OK) status = neb__set_write(w->dir, w->generation, w->head.number);
    if (status != NEB_OK) {
        neb__set_abandon(w);
        return status;
    }
    sweep(w->dir, w->generation);
    release(w);
    return NEB_OK;
}

void neb__set_abandon(struct neb_set_writer *w)
{
    if (!w) return;
    char path[PATH_MAX];
    if (w->generation) {
        if (temporary(w, path) == NEB_OK) unlink(path);
        for (uint32_t i = 0; i < w->head.number; i++)
            if (neb__shard_path(w->dir, w->generation, i, path) == NEB_OK) unlink(path);
    }
    release(w);
}
