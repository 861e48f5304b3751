/* debian_package.c: asks apt which file holds a package and which hash it has, fetches the file unless it is there,
 * compares the hash and unpacks. Programs are run with their arguments, never through a shell.
 *
 * A package is unpacked beside its place and then renamed, so a folder of its name is always whole. */
#include "text/debian_package.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_ARGS = 16, MAX_ANSWER = 1 << 16, MAX_NAME = 128 };

struct fetch {
    const char *folder, *name;
    bool own_index; /* apt's index is the one in folder/apt */
    char lists[PATH_MAX], cache[PATH_MAX];
};

/* ---- programs ------------------------------------------------------------------------------------------ */

static void in_child(const char *dir, const char *const *argv, int out)
{
    if (chdir(dir) || (out >= 0 && dup2(out, 1) < 0)) _exit(126);
    if (out >= 0 && !freopen("/dev/null", "w", stderr)) _exit(126); /* the caller says what is wrong */
    execvp(argv[0], (char *const *)(uintptr_t)argv);
    _exit(errno == ENOENT ? 127 : 126);
}

static void read_answer(int fd, struct neb_buf *answer)
{
    char part[4096];
    for (;;) {
        ssize_t n = read(fd, part, sizeof part);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return;
        (void)neb__buf_append(answer, part, (size_t)n); /* an answer that is too long is cut */
    }
}

/* Runs argv in `dir`, its output into `answer` unless that is NULL. 0 when it succeeded, -1 when there is no such
 * program. */
static int run_in(const char *dir, const char *const *argv, struct neb_buf *answer)
{
    int pipe_ends[2] = {-1, -1}, status;
    if (answer && pipe(pipe_ends)) return 1;
    pid_t child = fork();
    if (!child) in_child(dir, argv, pipe_ends[1]);
    if (answer) close(pipe_ends[1]);
    if (answer && child > 0) read_answer(pipe_ends[0], answer);
    if (answer) close(pipe_ends[0]);
    if (child < 0) return 1;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) return 1;
    if (!WIFEXITED(status)) return 1;
    return WEXITSTATUS(status) == 127 ? -1 : WEXITSTATUS(status);
}

/* apt-get with its words; an index of our own needs three more options. As root, apt would give up its rights and
 * then could not write into the folder. */
static int apt(const struct fetch *f, const char *verb, const char *option, bool named,
               struct neb_buf *answer)
{
    const char *argv[MAX_ARGS] = {"apt-get", "-qq", "-o", "APT::Sandbox::User=root"};
    int n = 4;
    if (f->own_index) argv[n++] = "-o", argv[n++] = f->lists, argv[n++] = "-o", argv[n++] = f->cache;
    argv[n++] = verb;
    if (option) argv[n++] = option;
    if (named) argv[n++] = f->name;
    return run_in(f->folder, argv, answer);
}

/* ---- what apt knows ------------------------------------------------------------------------------------ */

static bool plain_name(const char *name)
{
    return *name && *name != '.' && *name != '-' && !strchr(name, '/');
}

neb_status neb__package_line(const char *text, struct neb_package_file *out)
{
    for (const char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        char name[256], hash[65];
        if (sscanf(line, "'%*[^'\n]' %255[^ \n] %*[0-9] SHA256:%64[0-9a-f]", name, hash) != 2) continue;
        if (!plain_name(name) || strlen(hash) != 64) continue;
        memcpy(out->name, name, sizeof name);
        memcpy(out->sha256, hash, sizeof hash);
        return NEB_OK;
    }
    return neb__quiet(NEB_ERR_CORRUPT, "apt-get names no file with a SHA-256");
}

/* Also -1: there is no apt-get. */
static int ask(const struct fetch *f, struct neb_package_file *out)
{
    struct neb_buf answer;
    neb__buf_init(&answer, MAX_ANSWER);
    int r = apt(f, "download", "--print-uris", true, &answer);
    if (!r && neb__buf_append(&answer, "", 1) != NEB_OK) r = 1;
    if (!r && neb__package_line((const char *)answer.data, out) != NEB_OK) r = 1;
    neb__buf_free(&answer);
    return r;
}

static neb_status explain(const struct fetch *f, const char *why)
{
    return neb__fail(
        NEB_ERR_CONFIG,
        "%s. What to do: get the Debian package %s on a machine with Debian 12 (`apt-get download %s`) and "
        "unpack it here: dpkg-deb -x FILE.deb %s/%s (without dpkg-deb: ar x FILE.deb; tar xf data.tar.xz)",
        why, f->name, f->name, f->folder, f->name);
}

/* An index of our own: ordinary users may not change the machine's. */
static neb_status make_index(struct fetch *f)
{
    char path[PATH_MAX];
    neb__info("fetching the list of Debian's packages");
    snprintf(path, sizeof path, "%s/apt/lists/partial", f->folder);
    NEB_TRY(neb__file_make_dir(path, 0755));
    snprintf(path, sizeof path, "%s/apt/cache/archives/partial", f->folder);
    NEB_TRY(neb__file_make_dir(path, 0755));
    f->own_index = true;
    return apt(f, "update", NULL, false, NULL) ? explain(f, "apt-get could not fetch the list of packages")
                                               : NEB_OK;
}

/* ---- the file ------------------------------------------------------------------------------------------ */

static neb_status hash_file(const char *path, char hex[65])
{
    static const size_t part = 1 << 16;
    unsigned char bytes[1 << 16];
    struct neb_hasher h;
    struct neb_hash sum;
    FILE *file = fopen(path, "rb");
    if (!file) return neb__quiet(NEB_ERR_NOTFOUND, "%s is not there", path);
    neb_status status = neb__hasher_init(&h);
    size_t n = 1;
    while (status == NEB_OK && (n = fread(bytes, 1, part, file)) > 0)
        status = neb__hasher_update(&h, bytes, n);
    if (status == NEB_OK && ferror(file)) {
        (void)neb__hasher_final(&h, NULL);
        status = neb__fail(NEB_ERR_IO, "cannot read %s", path);
    } else if (status == NEB_OK) {
        status = neb__hasher_final(&h, &sum);
    }
    fclose(file);
    if (status == NEB_OK) neb__hash_hex(&sum, hex);
    return status;
}

static bool is_right(const char *path, const struct neb_package_file *file)
{
    char hex[65];
    return hash_file(path, hex) == NEB_OK && !strcmp(hex, file->sha256);
}

static neb_status get_file(const struct fetch *f, const struct neb_package_file *file)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", f->folder, file->name);
    if (is_right(path, file)) return NEB_OK;
    if (!unlink(path)) neb__warn("%s is not the file of apt's index: fetching it again", path);
    neb__info("fetching %s", f->name);
    if (apt(f, "download", NULL, true, NULL)) return explain(f, "apt-get could not download the package");
    return is_right(path, file) ? NEB_OK
                                : neb__fail(NEB_ERR_CORRUPT, "%s is not the file of apt's index", path);
}

static neb_status unpack(const struct fetch *f, const struct neb_package_file *file)
{
    char part[MAX_NAME + 16], from[PATH_MAX], to[PATH_MAX];
    snprintf(part, sizeof part, "%s.part", f->name);
    snprintf(from, sizeof from, "%s/%s", f->folder, part);
    snprintf(to, sizeof to, "%s/%s", f->folder, f->name);
    const char *const argv[] = {"dpkg-deb", "-x", file->name, part, NULL};
    int r = run_in(f->folder, argv, NULL);
    if (r < 0) return explain(f, "this machine has no dpkg-deb");
    if (r) return neb__fail(NEB_ERR_CORRUPT, "%s/%s does not unpack", f->folder, file->name);
    return rename(from, to) ? neb__fail(NEB_ERR_IO, "cannot rename %s to %s", from, to) : NEB_OK;
}

static neb_status obtain(struct fetch *f)
{
    struct neb_package_file file;
    int r = ask(f, &file);
    if (r < 0) return explain(f, "this machine has no apt-get");
    /* An index that is too old names a file that the mirror no longer has. */
    if (r || get_file(f, &file) != NEB_OK) {
        NEB_TRY(make_index(f));
        if (ask(f, &file)) return explain(f, "apt-get does not know the package");
        NEB_TRY(get_file(f, &file));
    }
    return unpack(f, &file);
}

/* The options hold absolute paths: apt takes others as relative to its own folders. */
static neb_status name_index(struct fetch *f)
{
    char full[PATH_MAX];
    if (!realpath(f->folder, full)) return neb__fail(NEB_ERR_IO, "cannot open the folder %s", f->folder);
    int a = snprintf(f->lists, sizeof f->lists, "Dir::State::Lists=%s/apt/lists", full);
    int b = snprintf(f->cache, sizeof f->cache, "Dir::Cache=%s/apt/cache", full);
    if (a >= (int)sizeof f->lists || b >= (int)sizeof f->cache)
        return neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", full);
    return NEB_OK;
}

neb_status neb__debian_package(const char *folder, const char *name)
{
    char to[PATH_MAX];
    struct stat st;
    struct fetch f = {.folder = folder, .name = name};
    if (!plain_name(name) || strlen(name) > MAX_NAME)
        return neb__fail(NEB_ERR_CONFIG, "\"%.80s\" is not the name of a package", name);
    if (strlen(folder) > PATH_MAX - 2 * MAX_NAME - 256)
        return neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", folder);
    snprintf(to, sizeof to, "%s/%s", folder, name);
    if (!stat(to, &st) && S_ISDIR(st.st_mode)) return NEB_OK;
    NEB_TRY(neb__file_make_dir(folder, 0755));
    NEB_TRY(name_index(&f));
    return obtain(&f);
}
