/* data_files.c: see data_files.h.
 *
 * What is known of a corpus stands in CACHE/HASH.text, HASH being of the names in the job. It is text:
 *
 *     nebula-i text 1
 *     SIZE MTIME CTIME INODE SHA-256 PATH      one line a file, the second side behind the first; times in nanoseconds
 *
 * A time of change (ctime) cannot be set, so an edit that restores size and date is noticed, too. The files of a cache that cannot
 * be written are hashed at every start. */
#include "task/data_files.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILES_MAX = 1 << 16, CHUNK = 1 << 20, NOTE_MAX = 64 << 20, LONG_READ = 1 << 30 };
static const char note_head[] = "nebula-i text 1\n";

/* ---- names --------------------------------------------------------------------------------------------- */

static void free_paths(char **path)
{
    for (int i = 0; path && path[i]; i++) neb__free(path[i]);
    neb__free(path);
}

void neb__data_files_free(struct neb_data_files *f)
{
    free_paths(f->path[0]);
    free_paths(f->path[1]);
    *f = (struct neb_data_files){.n = 0};
}

static neb_status copy_paths(char *const *from, size_t n, char ***out)
{
    char **path = n <= FILES_MAX ? NEB_NEW_ARRAY(char *, n + 1) : NULL;
    bool ok = path;
    for (size_t i = 0; ok && i < n; i++) ok = (path[i] = neb__strdup(from[i]));
    if (ok) {
        *out = path;
        return NEB_OK;
    }
    free_paths(path);
    if (n > FILES_MAX) return neb__fail(NEB_ERR_CONFIG, "%zu files match; at most %d can", n, FILES_MAX);
    return neb__fail(NEB_ERR_NOMEM, "out of memory for %zu names", n);
}

/* A file of that very name comes before those that it matches. */
static neb_status find(const char *pattern, char ***out, int *n)
{
    glob_t found;
    char *only = (char *)pattern;
    *n = 1;
    if (!access(pattern, R_OK)) return copy_paths(&only, 1, out);
    if (!strpbrk(pattern, "*?["))
        return neb__quiet(NEB_ERR_NOTFOUND, "corpus %s: %s", pattern, strerror(errno));
    int why = glob(pattern, 0, NULL, &found);
    if (why == GLOB_NOMATCH)
        return neb__quiet(NEB_ERR_NOTFOUND, "corpus %s: no file has such a name", pattern);
    if (why) return neb__fail(NEB_ERR_IO, "corpus %s: the files cannot be listed", pattern);
    neb_status status = NEB_OK;
    for (size_t i = 0; status == NEB_OK && i < found.gl_pathc; i++)
        if (access(found.gl_pathv[i], R_OK))
            status = neb__quiet(NEB_ERR_NOTFOUND, "corpus %s: %s", found.gl_pathv[i], strerror(errno));
    if (status == NEB_OK) status = copy_paths(found.gl_pathv, found.gl_pathc, out);
    *n = (int)found.gl_pathc;
    globfree(&found);
    return status;
}

neb_status neb__data_files_find(const struct neb_job_data *c, struct neb_data_files *out)
{
    struct neb_data_files f = {.n = 0};
    int second = 0;
    neb_status status = find(c->file, &f.path[0], &f.n);
    if (status == NEB_OK && c->second) status = find(c->second, &f.path[1], &second);
    if (status == NEB_OK && c->second && second != f.n)
        status = neb__fail(NEB_ERR_CONFIG,
                           "corpus %s has %d files, and its second side %s has %d: they belong together one "
                           "by one, in the order of their names",
                           c->file, f.n, c->second, second);
    if (status != NEB_OK)
        neb__data_files_free(&f);
    else
        *out = f;
    return status;
}

/* ---- what is known of a file --------------------------------------------------------------------------- */

struct known {
    long long size, mtime, ctime;
    unsigned long long inode;
    char hex[2 * NEB_HASH_SIZE + 1];
};

static long long nanoseconds(struct timespec t)
{
    return (long long)t.tv_sec * 1000000000 + t.tv_nsec;
}

static neb_status look(const char *path, struct known *out)
{
    struct stat st;
    if (stat(path, &st)) return neb__fail(NEB_ERR_NOTFOUND, "corpus %s: %s", path, strerror(errno));
    *out = (struct known){.size = (long long)st.st_size,
                          .mtime = nanoseconds(st.st_mtim),
                          .ctime = nanoseconds(st.st_ctim),
                          .inode = (unsigned long long)st.st_ino};
    return NEB_OK;
}

static neb_status hash_bytes(int fd, const char *path, struct neb_hasher *h)
{
    uint8_t *chunk = neb__malloc(CHUNK);
    neb_status status = chunk ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for reading %s", path);
    for (ssize_t n = 1; status == NEB_OK && n > 0;) {
        n = read(fd, chunk, CHUNK);
        if (n < 0 && errno == EINTR)
            n = 1;
        else if (n < 0)
            status = neb__fail(NEB_ERR_IO, "corpus %s: %s", path, strerror(errno));
        else
            status = neb__hasher_update(h, chunk, (size_t)n);
    }
    neb__free(chunk);
    return status;
}

static neb_status hash_file(const char *path, long long size, char hex[2 * NEB_HASH_SIZE + 1])
{
    struct neb_hasher h;
    struct neb_hash hash;
    if (size > LONG_READ) neb__info("reading %s once, to know it again", path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return neb__fail(NEB_ERR_NOTFOUND, "corpus %s: %s", path, strerror(errno));
    neb_status status = neb__hasher_init(&h);
    if (status == NEB_OK) {
        status = hash_bytes(fd, path, &h);
        neb_status ended = neb__hasher_final(&h, status == NEB_OK ? &hash : NULL);
        if (status == NEB_OK) status = ended;
    }
    close(fd);
    if (status == NEB_OK) neb__hash_hex(&hash, hex);
    return status;
}

/* ---- the note ------------------------------------------------------------------------------------------ */

static neb_status note_path(const char *cache, const struct neb_job_data *c, char *out, size_t size)
{
    struct neb_hasher h;
    struct neb_hash hash;
    char hex[2 * NEB_HASH_SIZE + 1];
    NEB_TRY(neb__hasher_init(&h));
    neb_status status = neb__hasher_update(&h, c->file, strlen(c->file) + 1);
    if (status == NEB_OK && c->second) status = neb__hasher_update(&h, c->second, strlen(c->second) + 1);
    neb_status ended = neb__hasher_final(&h, status == NEB_OK ? &hash : NULL);
    NEB_TRY(status);
    NEB_TRY(ended);
    neb__hash_hex(&hash, hex);
    snprintf(out, size, "%s/%.16s.text", cache, hex);
    return NEB_OK;
}

/* The note's text, ended by a zero; empty if there is none, or it is of another program. */
static neb_status read_note(const char *path, struct neb_buf *out)
{
    neb_status status = access(path, R_OK) ? NEB_OK : neb__file_read(path, out);
    if (status == NEB_OK) status = neb__buf_append(out, "", 1);
    if (status != NEB_OK) return status;
    if (strncmp((const char *)out->data, note_head, sizeof note_head - 1)) out->data[0] = 0;
    return NEB_OK;
}

/* Reads the line at *at and goes on to the next. *path is not ended by a zero. */
static bool next_line(const char **at, struct known *k, const char **path, size_t *length)
{
    int n = 0;
    if (sscanf(*at, "%lld %lld %lld %llu %64[0-9a-f] %n", &k->size, &k->mtime, &k->ctime, &k->inode, k->hex,
               &n) < 5 ||
        !n || strlen(k->hex) != 2 * NEB_HASH_SIZE)
        return false;
    *path = *at + n;
    *length = strcspn(*path, "\n");
    *at = *path + *length + ((*path)[*length] == '\n');
    return true;
}

/* The first line of the note, or NULL. */
static const char *lines_of(const struct neb_buf *note)
{
    const char *text = (const char *)note->data;
    return *text ? text + sizeof note_head - 1 : text;
}

static bool recall(const struct neb_buf *note, const char *path, struct known *file)
{
    const char *at = lines_of(note), *name;
    struct known k;
    size_t n;
    while (next_line(&at, &k, &name, &n)) {
        if (n != strlen(path) || memcmp(name, path, n)) continue;
        if (k.size != file->size || k.mtime != file->mtime || k.ctime != file->ctime ||
            k.inode != file->inode)
            return false;
        memcpy(file->hex, k.hex, sizeof k.hex);
        return true;
    }
    return false;
}

/* Appends the files of one side to the new note. */
static neb_status note_side(const struct neb_buf *old, char *const *paths, struct neb_buf *made)
{
    for (; paths && *paths; paths++) {
        struct known k;
        if (strchr(*paths, '\n'))
            return neb__fail(NEB_ERR_CONFIG, "corpus %s: a name with a line end", *paths);
        NEB_TRY(look(*paths, &k));
        if (!recall(old, *paths, &k)) NEB_TRY(hash_file(*paths, k.size, k.hex));
        NEB_TRY(neb__buf_printf(made, "%lld %lld %lld %llu %s %s\n", k.size, k.mtime, k.ctime, k.inode, k.hex,
                                *paths));
    }
    return NEB_OK;
}

/* Names do not count, nor do times. */
static neb_status sum_up(const struct neb_buf *note, struct neb_hash *out)
{
    const char *at = lines_of(note), *name;
    struct neb_buf all;
    struct known k;
    size_t n;
    neb_status status = NEB_OK;
    neb__buf_init(&all, NOTE_MAX);
    while (status == NEB_OK && next_line(&at, &k, &name, &n))
        status = neb__buf_printf(&all, "%lld %s\n", k.size, k.hex);
    if (status == NEB_OK) status = neb__hash(all.data, all.len, out);
    neb__buf_free(&all);
    return status;
}

static neb_status make_note(const char *path, const struct neb_buf *old, const struct neb_data_files *f,
                            struct neb_buf *made)
{
    NEB_TRY(neb__buf_append(made, note_head, sizeof note_head - 1));
    NEB_TRY(note_side(old, f->path[0], made));
    NEB_TRY(note_side(old, f->path[1], made));
    NEB_TRY(neb__buf_append(made, "", 1));
    if (old->len == made->len && !memcmp(old->data, made->data, made->len)) return NEB_OK;
    const bool before = neb__log_hush(true); /* a cache may be read-only */
    (void)neb__file_replace(path, made->data, made->len - 1, 0600);
    neb__log_hush(before);
    return NEB_OK;
}

static neb_status content(const char *path, const struct neb_job_data *c, struct neb_buf *old,
                          struct neb_buf *made, struct neb_hash *out, bool *gone)
{
    struct neb_data_files files = {.n = 0};
    NEB_TRY(read_note(path, old));
    neb_status status = neb__data_files_find(c, &files);
    *gone = status == NEB_ERR_NOTFOUND && *lines_of(old);
    if (*gone) return sum_up(old, out);
    if (status == NEB_OK) status = make_note(path, old, &files, made);
    if (status == NEB_OK) status = sum_up(made, out);
    neb__data_files_free(&files);
    return status;
}

neb_status neb__data_content(const char *cache, const struct neb_job_data *c, struct neb_hash *out,
                             bool *gone)
{
    char path[640];
    struct neb_buf old, made;
    NEB_TRY(note_path(cache, c, path, sizeof path));
    neb__buf_init(&old, NOTE_MAX);
    neb__buf_init(&made, NOTE_MAX);
    neb_status status = content(path, c, &old, &made, out, gone);
    neb__buf_free(&old);
    neb__buf_free(&made);
    return status;
}

bool neb__data_content_known(const char *cache, const struct neb_job_data *c)
{
    char path[640];
    return note_path(cache, c, path, sizeof path) == NEB_OK && !access(path, R_OK);
}
