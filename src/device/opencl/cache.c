/* cache.c: compiled kernels and measured choices, kept on disk: $XDG_CACHE_HOME/nebula-i/opencl, or ~/.cache/nebula-i/opencl.
 *
 * A file's name is the hash of its key; the key names platform, device, driver, options and the hash of the source. The
 * file repeats the key and has a hash of its content. A compiled kernel is code that this process will run, so a file is
 * read only when it and its folder belong to this user and nobody else may write them. Anything else about a file that is
 * not right makes it as good as missing: the kernels are compiled again.
 *
 *     "NEBOCL1\n"   8 bytes
 *     hash         32 bytes: SHA-256 of all that follows
 *     key size      8 bytes, little-endian
 *     key, content */
#include "opencl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEAD = 48, LARGEST = 64 << 20 };
static const char magic[9] = "NEBOCL1\n";

/* Makes the folder if needed; false unless it is ours alone to write. */
static bool own_folder(const char *path, bool strict)
{
    struct stat st;
    if (mkdir(path, 0700) && errno != EEXIST) return false;
    if (stat(path, &st) || !S_ISDIR(st.st_mode)) return false;
    return !strict || (st.st_uid == geteuid() && !(st.st_mode & 022));
}

void neb__ocl_cache_open(struct neb_ocl *dev)
{
    char *folder = dev->kernels.folder;
    const size_t size = sizeof dev->kernels.folder;
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = -1;
    if (base && base[0] == '/')
        n = snprintf(folder, size, "%s", base);
    else if (home && home[0] == '/')
        n = snprintf(folder, size, "%s/.cache", home);
    if (n < 0 || (size_t)n + 32 > size || !own_folder(folder, false)) {
        folder[0] = 0;
        return;
    }
    strcat(folder, "/nebula-i");
    bool ok = own_folder(folder, true);
    strcat(folder, "/opencl");
    if (ok && own_folder(folder, true)) return;
    neb__ocl_log(
        dev, 2,
        "opencl: %s is not a folder that only this user can write; kernels are compiled anew each time",
        folder);
    folder[0] = 0;
}

static void path_of(const struct neb_ocl *dev, const char *key, char path[700])
{
    unsigned char digest[32];
    char hex[65];
    neb__ocl_sha256(key, strlen(key), digest);
    for (int i = 0; i < 32; i++) snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    snprintf(path, 700, "%s/%s", dev->kernels.folder, hex);
}

static unsigned char *read_whole(const char *path, size_t *n)
{
    struct stat st;
    unsigned char *bytes = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return NULL;
    if (!fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & 022) &&
        st.st_size >= HEAD && st.st_size <= LARGEST)
        bytes = malloc((size_t)st.st_size);
    size_t got = 0;
    while (bytes && got < (size_t)st.st_size) {
        ssize_t r = read(fd, bytes + got, (size_t)st.st_size - got);
        if (r < 0 && errno == EINTR) continue;
        if (r <= 0) break;
        got += (size_t)r;
    }
    close(fd);
    if (bytes && got < (size_t)st.st_size) {
        free(bytes);
        return NULL;
    }
    *n = got;
    return bytes;
}

bool neb__ocl_cache_read(const struct neb_ocl *dev, const char *key, unsigned char **bytes, size_t *n)
{
    char path[700];
    unsigned char digest[32];
    size_t all = 0;
    uint64_t key_size = 0;
    if (!dev->kernels.folder[0]) return false;
    path_of(dev, key, path);
    unsigned char *file = read_whole(path, &all);
    if (!file) return false;
    neb__ocl_sha256(file + 40, all - 40, digest);
    for (int i = 0; i < 8; i++) key_size |= (uint64_t)file[40 + i] << 8 * i;
    bool ok = !memcmp(file, magic, 8) && !memcmp(file + 8, digest, 32) && key_size == strlen(key) &&
              key_size <= all - HEAD && !memcmp(file + HEAD, key, key_size);
    if (!ok) {
        free(file);
        unlink(path);
        return false;
    }
    *n = all - HEAD - key_size;
    memmove(file, file + HEAD + key_size, *n);
    *bytes = file;
    return true;
}

static bool write_whole(int fd, const unsigned char *bytes, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t w = write(fd, bytes + done, n - done);
        if (w < 0 && errno == EINTR) continue;
        if (w <= 0) return false;
        done += (size_t)w;
    }
    return true;
}

/* A cache that cannot be written costs time, nothing else. Two processes may write one file: rename() makes each whole. */
void neb__ocl_cache_write(const struct neb_ocl *dev, const char *key, const void *content, size_t n)
{
    char path[700], draft[720];
    const size_t key_size = strlen(key), all = HEAD + key_size + n;
    if (!dev->kernels.folder[0] || all > LARGEST) return;
    unsigned char *file = malloc(all);
    if (!file) return;
    path_of(dev, key, path);
    snprintf(draft, sizeof draft, "%s.XXXXXX", path);
    memcpy(file, magic, 8);
    for (int i = 0; i < 8; i++) file[40 + i] = (unsigned char)((uint64_t)key_size >> 8 * i);
    memcpy(file + HEAD, key, key_size);
    if (n) memcpy(file + HEAD + key_size, content, n);
    neb__ocl_sha256(file + 40, all - 40, file + 8);
    int fd = mkstemp(draft); /* mode 0600 */
    if (fd >= 0) {
        bool ok = write_whole(fd, file, all);
        if (close(fd)) ok = false;
        if (!ok || rename(draft, path)) unlink(draft);
    }
    free(file);
}
