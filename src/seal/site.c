/* site.c: the folder that makes a process a site.
 *
 * The process that holds the lock is the site. Two processes with one key would displace each other's links
 * for ever and, worse, could promise different things under one name. The lock dies with its process, so
 * kill -9 leaves no stale lock. A folder copied to another machine escapes the lock; the peers
 * notice it by the boot number.
 *
 * The incarnation is written before the open returns, so no two opens ever share one. */
#include "seal/site.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static neb_status path_in(const char *dir, const char *file, char out[PATH_MAX])
{
    if (snprintf(out, PATH_MAX, "%s/%s", dir, file) >= PATH_MAX)
        return neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", dir);
    return NEB_OK;
}

neb_status neb__site_init(const char *dir, const char *name, char identity[NEB_IDENTITY_SIZE])
{
    char key_path[PATH_MAX], id_path[PATH_MAX], line[NEB_IDENTITY_SIZE + 1];
    struct neb_key *key = NULL;
    struct neb_public public;
    neb_status status;
    if (!neb__name_valid(name, strlen(name)))
        return neb__fail(NEB_ERR_INVALID, "'%s': a site's name is 1 to 31 characters of a-z, 0-9 and -",
                         name);
    NEB_TRY(path_in(dir, "site.key", key_path));
    NEB_TRY(path_in(dir, "site.id", id_path));
    NEB_TRY(neb__file_make_dir(dir, 0700));
    NEB_TRY(neb__key_create(&key));
    NEB_TRY_GOTO(status, neb__key_save(key, key_path), out);
    neb__key_public(key, &public);
    neb__identity_format(name, &public, identity);
    snprintf(line, sizeof line, "%s\n", identity);
    status = neb__file_replace(id_path, line, strlen(line), 0600);
out:
    neb__key_free(key);
    return status;
}

neb_status neb__site_identity(const char *dir, char name[NEB_NAME_SIZE], struct neb_public *key)
{
    char path[PATH_MAX];
    struct neb_buf b;
    NEB_TRY(path_in(dir, "site.id", path));
    neb__buf_init(&b, 4096);
    neb_status status = neb__file_read(path, &b);
    if (status == NEB_ERR_NOTFOUND)
        neb__error_prefix("'%s' is not a site folder; make one with: nebula-i site init", dir);
    if (status == NEB_OK) {
        while (b.len && (b.data[b.len - 1] == '\n' || b.data[b.len - 1] == ' ')) b.len--;
        status = neb__identity_parse((const char *)b.data, b.len, name, key);
        if (status != NEB_OK) status = neb__fail(NEB_ERR_CORRUPT, "%s: %s", path, neb_last_error());
    }
    neb__buf_free(&b);
    return status;
}

neb_status neb__site_key(const char *dir, struct neb_key **out)
{
    char path[PATH_MAX];
    NEB_TRY(path_in(dir, "site.key", path));
    return neb__key_load(path, out);
}

static neb_status in_use(const char *dir, const char *path)
{
    char holder[32];
    FILE *f = fopen(path, "re");
    bool known = f && fscanf(f, "%31s", holder) == 1;
    if (f) fclose(f);
    return neb__fail(NEB_ERR_BUSY, "the site folder %s is in use by process %s; one site is one process", dir,
                     known ? holder : "(unknown)");
}

/* The lock file holds the owner's process id, only for the message that names it. */
static neb_status take_lock(const char *dir, int *out)
{
    char path[PATH_MAX], holder[32];
    int fd;
    NEB_TRY(path_in(dir, "lock", path));
    neb_status status = neb__file_lock(path, NEB_LOCK_FILE, &fd);
    if (status == NEB_ERR_BUSY) return in_use(dir, path);
    if (status != NEB_OK) return neb__fail(status, "%s", neb_last_error());
    int n = snprintf(holder, sizeof holder, "%ld\n", (long)getpid());
    if (ftruncate(fd, 0) || pwrite(fd, holder, (size_t)n, 0) != n) {
        close(fd);
        return neb__fail(NEB_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    }
    *out = fd;
    return NEB_OK;
}

static neb_status next_incarnation(const char *dir, uint64_t *out)
{
    char path[PATH_MAX], text[32], *end;
    struct neb_buf b;
    struct stat st;
    uint64_t last = 0;
    NEB_TRY(path_in(dir, "incarnation", path));
    neb__buf_init(&b, sizeof text);
    if (!stat(path, &st)) {
        neb_status status = neb__file_read(path, &b);
        if (status == NEB_OK && (b.len == 0 || b.len >= sizeof text)) status = NEB_ERR_CORRUPT;
        if (status == NEB_OK) {
            memcpy(text, b.data, b.len);
            text[b.len] = 0;
            errno = 0;
            last = strtoull(text, &end, 10);
            if (errno || end == text || *end != '\n' || last >= UINT64_MAX >> 1) status = NEB_ERR_CORRUPT;
        }
        neb__buf_free(&b);
        if (status == NEB_ERR_CORRUPT)
            return neb__fail(status,
                             "%s is damaged; replace its content by a number larger than any that was in it",
                             path);
        if (status != NEB_OK) return status;
    }
    snprintf(text, sizeof text, "%" PRIu64 "\n", last + 1);
    NEB_TRY(neb__file_replace(path, text, strlen(text), 0600));
    *out = last + 1;
    return NEB_OK;
}

static neb_status open_locked(struct neb_site *site)
{
    struct neb_public named;
    NEB_TRY(neb__site_identity(site->dir, site->name, &named));
    NEB_TRY(take_lock(site->dir, &site->lock));
    NEB_TRY(neb__site_key(site->dir, &site->key));
    neb__key_public(site->key, &site->public);
    if (!neb__public_equal(&named, &site->public))
        return neb__fail(NEB_ERR_CORRUPT, "%s: site.id and site.key do not match; restore the matching pair",
                         site->dir);
    NEB_TRY(neb__random_bytes(&site->boot, sizeof site->boot));
    return next_incarnation(site->dir, &site->incarnation);
}

neb_status neb__site_open(const char *dir, struct neb_site **out)
{
    struct neb_site *site = NEB_NEW(struct neb_site);
    if (!site) return neb__fail(NEB_ERR_NOMEM, "out of memory for a site");
    site->lock = -1;
    site->dir = neb__strdup(dir);
    neb_status status = site->dir ? open_locked(site) : neb__fail(NEB_ERR_NOMEM, "out of memory for a site");
    if (status != NEB_OK) {
        neb__site_close(site);
        return status;
    }
    *out = site;
    return NEB_OK;
}

void neb__site_close(struct neb_site *site)
{
    if (!site) return;
    if (site->lock >= 0) close(site->lock);
    neb__key_free(site->key);
    neb__free(site->dir);
    neb__free(site);
}

neb_status neb__site_roster_load(const char *dir, struct neb_chain **out)
{
    char path[PATH_MAX];
    struct stat st;
    NEB_TRY(path_in(dir, "roster", path));
    if (stat(path, &st) && errno == ENOENT)
        return neb__fail(NEB_ERR_NOTFOUND, "the site %s has no roster yet; run: nebula-i roster join FILE %s",
                         dir, dir);
    return neb__chain_read(path, out);
}

neb_status neb__site_roster_save(const char *dir, const struct neb_chain *chain)
{
    char path[PATH_MAX];
    NEB_TRY(path_in(dir, "roster", path));
    return neb__chain_write(chain, path, 0600);
}
