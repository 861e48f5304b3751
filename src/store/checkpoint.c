/* checkpoint.c: reading and writing one checkpoint file, and the folder of the last N.
 *
 * A file that has its name is complete: it is written under a temporary name, synced and renamed.
 * Reading trusts nothing: header, table and every section are checked against their CRC-32C before a
 * pointer is given out. So a torn or rotten file is found here, and the one before it is used. The file
 * is read, not mapped: if the disk cannot give a page, a read returns an error, where a mapping would
 * raise a signal that ends the process. */
#include "store/checkpoint.h"
#include "store/checkpoint_format.h"
#include "store/whole_file.h"
#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_LISTED = 4096 };

/* ---- the folder ---------------------------------------------------------------------------------------- */

neb_status neb__ckpt_path(const char *dir, int64_t step, char *out, size_t size)
{
    if (step < 0 || snprintf(out, size, "%s/checkpoint-%012" PRId64 ".neb", dir, step) >= (int)size)
        return neb__fail(NEB_ERR_INVALID, "cannot name a checkpoint of step %" PRId64 " in the folder %.80s",
                         step, dir);
    return NEB_OK;
}

static int ascending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

int neb__ckpt_list(const char *dir, int64_t *steps, int cap)
{
    DIR *d = opendir(dir);
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        int64_t step;
        char again[64];
        if (sscanf(e->d_name, "checkpoint-%" SCNd64 ".neb", &step) != 1 || step < 0) continue;
        snprintf(again, sizeof again, "checkpoint-%012" PRId64 ".neb", step);
        if (strcmp(again, e->d_name)) continue;
        if (n < cap) steps[n] = step;
        n++;
    }
    if (d) closedir(d);
    qsort(steps, (size_t)(n < cap ? n : cap), sizeof *steps, ascending);
    return n;
}

static void prune(const char *dir, int keep)
{
    char path[PATH_MAX];
    int64_t *steps = NEB_NEW_ARRAY(int64_t, MAX_LISTED);
    if (!steps) return; /* the next write will prune */
    int n = neb__ckpt_list(dir, steps, MAX_LISTED);
    if (n > MAX_LISTED) n = MAX_LISTED;
    for (int i = 0; keep > 0 && i < n - keep; i++)
        if (neb__ckpt_path(dir, steps[i], path, sizeof path) == NEB_OK && unlink(path))
            neb__warn("cannot remove the old checkpoint %s: %s", path, strerror(errno));
    neb__free(steps);
}

/* ---- writing ------------------------------------------------------------------------------------------- */

static uint64_t aligned(uint64_t n)
{
    return (n + NEB_CKPT_ALIGN - 1) / NEB_CKPT_ALIGN * NEB_CKPT_ALIGN;
}

static neb_status check_sections(const struct neb_ckpt_section *list, int n)
{
    if (n < 0 || n > NEB_CKPT_SECTIONS)
        return neb__fail(NEB_ERR_INVALID, "a checkpoint cannot have %d sections", n);
    for (int i = 0; i < n; i++) {
        size_t len = strlen(list[i].name);
        if (!len || len >= NEB_CKPT_NAME)
            return neb__fail(NEB_ERR_INVALID, "section name '%.70s' is empty or too long", list[i].name);
        for (int k = 0; k < i; k++)
            if (!strcmp(list[k].name, list[i].name))
                return neb__fail(NEB_ERR_INVALID, "two sections are called '%s'", list[i].name);
    }
    return NEB_OK;
}

/* Header and table; returns the file's length. */
static uint64_t make_head(const struct neb_ckpt_id *id, const struct neb_ckpt_section *list, int n,
                          uint8_t *out)
{
    uint8_t *table = out + NEB_CKPT_HEAD;
    size_t table_size = (size_t)n * NEB_CKPT_ENTRY;
    uint64_t at = NEB_CKPT_HEAD + table_size;
    for (int i = 0; i < n; i++) {
        uint8_t *e = table + (size_t)i * NEB_CKPT_ENTRY;
        at = aligned(at);
        memcpy(e, list[i].name, strlen(list[i].name));
        neb__put64(e + 64, at);
        neb__put64(e + 72, list[i].size);
        neb__put32(e + 80, neb__crc32c(0, list[i].data, list[i].size));
        at += list[i].size;
    }
    memcpy(out, NEB_CKPT_MAGIC, 8);
    neb__put32(out + 8, NEB_CKPT_VERSION);
    neb__put32(out + 12, (uint32_t)n);
    neb__put64(out + 16, (uint64_t)id->step);
    neb__put64(out + 24, at);
    memcpy(out + 32, id->model.b, NEB_HASH_SIZE);
    neb__put32(out + 64, neb__crc32c(0, table, table_size));
    neb__put32(out + 68, neb__crc32c(0, out, 68));
    return at;
}

static neb_status write_file(struct neb_whole_file *f, const uint8_t *head, size_t head_size,
                             const struct neb_ckpt_section *list, int n)
{
    NEB_TRY(neb__whole_file_write(f, head, head_size));
    for (int i = 0; i < n; i++) {
        NEB_TRY(neb__whole_file_zeros(f, (size_t)(aligned(f->written) - f->written)));
        NEB_TRY(neb__whole_file_write(f, list[i].data, list[i].size));
    }
    return NEB_OK;
}

neb_status neb__ckpt_write(const char *dir, const struct neb_ckpt_id *id, const struct neb_ckpt_section *list,
                           int n, int keep)
{
    char path[PATH_MAX];
    NEB_TRY(check_sections(list, n));
    NEB_TRY(neb__ckpt_path(dir, id->step, path, sizeof path));
    size_t head_size = NEB_CKPT_HEAD + (size_t)n * NEB_CKPT_ENTRY;
    uint8_t *head = neb__calloc(1, head_size);
    if (!head) return neb__fail(NEB_ERR_NOMEM, "no memory to write a checkpoint of %d sections", n);
    make_head(id, list, n, head);
    struct neb_whole_file f;
    neb_status status = neb__whole_file_create(path, 0600, &f);
    if (status == NEB_OK) {
        status = write_file(&f, head, head_size, list, n);
        if (status == NEB_OK)
            status = neb__whole_file_commit(&f);
        else
            neb__whole_file_abandon(&f);
    }
    neb__free(head);
    if (status == NEB_OK) prune(dir, keep);
    return status;
}

/* ---- reading ------------------------------------------------------------------------------------------- */

struct neb_ckpt {
    struct neb_ckpt_id id;
    uint8_t *bytes;
    size_t length;
    uint32_t n;
};

static const uint8_t *entry_of(const struct neb_ckpt *c, uint32_t i)
{
    return c->bytes + NEB_CKPT_HEAD + (size_t)i * NEB_CKPT_ENTRY;
}

static neb_status check_head(struct neb_ckpt *c)
{
    const uint8_t *p = c->bytes;
    if (c->length < NEB_CKPT_HEAD || memcmp(p, NEB_CKPT_MAGIC, 8))
        return neb__quiet(NEB_ERR_CORRUPT, "not a checkpoint");
    if (neb__get32(p + 8) != NEB_CKPT_VERSION)
        return neb__quiet(NEB_ERR_VERSION, "it has format version %u, this build reads version %d",
                          (unsigned)neb__get32(p + 8), NEB_CKPT_VERSION);
    if (neb__get32(p + 68) != neb__crc32c(0, p, 68))
        return neb__quiet(NEB_ERR_CORRUPT, "the checksum of its header is wrong");
    c->n = neb__get32(p + 12);
    c->id.step = (int64_t)neb__get64(p + 16);
    memcpy(c->id.model.b, p + 32, NEB_HASH_SIZE);
    if (neb__get64(p + 24) != c->length)
        return neb__quiet(NEB_ERR_CORRUPT, "it has %zu bytes instead of %" PRIu64, c->length,
                          neb__get64(p + 24));
    if (c->n > NEB_CKPT_SECTIONS || (uint64_t)c->n * NEB_CKPT_ENTRY > c->length - NEB_CKPT_HEAD ||
        c->id.step < 0)
        return neb__quiet(NEB_ERR_CORRUPT, "its header is impossible");
    if (neb__get32(p + 64) != neb__crc32c(0, entry_of(c, 0), (size_t)c->n * NEB_CKPT_ENTRY))
        return neb__quiet(NEB_ERR_CORRUPT, "the checksum of its table is wrong");
    return NEB_OK;
}

static neb_status check_section(const struct neb_ckpt *c, uint32_t i)
{
    const uint8_t *e = entry_of(c, i);
    uint64_t at = neb__get64(e + 64), size = neb__get64(e + 72);
    if (e[NEB_CKPT_NAME - 1] || at % NEB_CKPT_ALIGN || at > c->length || size > c->length - at)
        return neb__quiet(NEB_ERR_CORRUPT, "section %u lies outside the file", (unsigned)i);
    if (neb__crc32c(0, c->bytes + at, size) != neb__get32(e + 80))
        return neb__quiet(NEB_ERR_CORRUPT, "the checksum of section '%s' is wrong", (const char *)e);
    return NEB_OK;
}

static neb_status read_all(int fd, uint8_t *to, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t r = pread(fd, to + at, n - at < (1u << 30) ? n - at : 1u << 30, (off_t)at);
        if (r < 0 && errno == EINTR) continue;
        if (r < 0) return neb__quiet(NEB_ERR_IO, "cannot read it from byte %zu on: %s", at, strerror(errno));
        if (!r) return neb__quiet(NEB_ERR_CORRUPT, "it ends too early");
        at += (size_t)r;
    }
    return NEB_OK;
}

static neb_status read_file(const char *path, struct neb_ckpt *c)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st)) {
        int e = errno;
        if (fd >= 0) close(fd);
        return neb__quiet(e == ENOENT ? NEB_ERR_NOTFOUND : NEB_ERR_IO, "%s", strerror(e));
    }
    c->length = st.st_size > 0 ? (size_t)st.st_size : 0;
    neb_status status = c->length ? NEB_OK : neb__quiet(NEB_ERR_CORRUPT, "it is empty");
    if (status == NEB_OK && !(c->bytes = neb__aligned(c->length)))
        status = neb__quiet(NEB_ERR_NOMEM, "no memory for %zu bytes", c->length);
    if (status == NEB_OK) status = read_all(fd, c->bytes, c->length);
    close(fd);
    return status;
}

/* Quiet: the caller decides whether a bad file is an error or a warning. */
static neb_status open_quietly(const char *path, struct neb_ckpt **out)
{
    struct neb_ckpt *c = NEB_NEW(struct neb_ckpt);
    if (!c) return neb__quiet(NEB_ERR_NOMEM, "no memory");
    neb_status status = read_file(path, c);
    if (status == NEB_OK) status = check_head(c);
    for (uint32_t i = 0; status == NEB_OK && i < c->n; i++) status = check_section(c, i);
    if (status != NEB_OK) {
        neb__ckpt_close(c);
        return status;
    }
    *out = c;
    return NEB_OK;
}

neb_status neb__ckpt_open(const char *path, struct neb_ckpt **out)
{
    neb_status status = open_quietly(path, out);
    if (status == NEB_OK) return status;
    char why[160];
    snprintf(why, sizeof why, "%s", neb_last_error());
    return neb__fail(status, "checkpoint %s: %s", path, why);
}

static neb_status open_newest_good(const char *dir, const int64_t *steps, int n, struct neb_ckpt **out)
{
    char path[PATH_MAX];
    for (int i = n - 1; i >= 0; i--) {
        NEB_TRY(neb__ckpt_path(dir, steps[i], path, sizeof path));
        neb_status status = open_quietly(path, out);
        if (status == NEB_OK && i < n - 1) neb__warn("going on from the older checkpoint %s", path);
        if (status == NEB_OK) return status;
        if (status == NEB_ERR_NOMEM) return neb__fail(status, "no memory to read %s", path);
        neb__warn("checkpoint %s is not usable: %s", path, neb_last_error());
    }
    if (!n) return neb__quiet(NEB_ERR_NOTFOUND, "no checkpoint in %s", dir);
    return neb__fail(NEB_ERR_CORRUPT, "none of the %d checkpoints in %s is usable", n, dir);
}

neb_status neb__ckpt_open_latest(const char *dir, const struct neb_hash *model, struct neb_ckpt **out)
{
    int64_t *steps = NEB_NEW_ARRAY(int64_t, MAX_LISTED);
    if (!steps) return neb__fail(NEB_ERR_NOMEM, "no memory to look for checkpoints");
    struct neb_ckpt *c = NULL;
    int n = neb__ckpt_list(dir, steps, MAX_LISTED);
    neb_status status = open_newest_good(dir, steps, n < MAX_LISTED ? n : MAX_LISTED, &c);
    neb__free(steps);
    if (status != NEB_OK) return status;
    if (model && !neb__hash_equal(model, &c->id.model)) {
        status = neb__fail(NEB_ERR_CONFIG,
                           "the checkpoint of step %" PRId64
                           " in %s is of another model: use another folder, or the job that made it",
                           c->id.step, dir);
        neb__ckpt_close(c);
        return status;
    }
    *out = c;
    return NEB_OK;
}

void neb__ckpt_close(struct neb_ckpt *c)
{
    if (!c) return;
    neb__free(c->bytes);
    neb__free(c);
}

const struct neb_ckpt_id *neb__ckpt_id(const struct neb_ckpt *c)
{
    return &c->id;
}

bool neb__ckpt_has(const struct neb_ckpt *c, const char *name)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (!strcmp((const char *)entry_of(c, i), name)) return true;
    return false;
}

neb_status neb__ckpt_get(const struct neb_ckpt *c, const char *name, const void **data, size_t *size)
{
    for (uint32_t i = 0; i < c->n; i++) {
        const uint8_t *e = entry_of(c, i);
        if (strcmp((const char *)e, name)) continue;
        *data = c->bytes + neb__get64(e + 64);
        *size = neb__get64(e + 72);
        return NEB_OK;
    }
    return neb__fail(NEB_ERR_NOTFOUND, "the checkpoint of step %" PRId64 " has no section '%s'", c->id.step,
                     name);
}
