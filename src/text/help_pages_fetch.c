/* help_pages_fetch.c: gets the pages of a language. They may be unpacked already, installed on this system or
 * in a package file in the folder; otherwise apt-get downloads them. Programs are run with their arguments,
 * never through a shell. */
#include "text/help_pages.h"
#include "base/file.h"
#include "base/log.h"

#include <ctype.h>
#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Runs argv in `dir`; 0 when it succeeded, -1 when there is no such program. */
static int run_in(const char *dir, const char *const *argv)
{
    pid_t child = fork();
    if (child < 0) return 1;
    if (!child) {
        if (chdir(dir)) _exit(126);
        execvp(argv[0], (char *const *)(uintptr_t)argv);
        _exit(errno == ENOENT ? 127 : 126);
    }
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) return 1;
    if (!WIFEXITED(status)) return 1;
    return WEXITSTATUS(status) == 127 ? -1 : WEXITSTATUS(status);
}

/* en is en-us in the package's name and en-US in its folders; zh is zh-cn and zh-CN. */
static void names(const char *lang, char package[32], char folder[32])
{
    const char *full = lang;
    if (!strcmp(lang, "en")) full = "en-us";
    if (!strcmp(lang, "zh")) full = "zh-cn";
    snprintf(package, 32, "%s", full);
    snprintf(folder, 32, "%s", full);
    char *dash = strchr(folder, '-');
    for (char *c = dash; c && *c; c++) *c = (char)toupper((unsigned char)*c);
}

static int is_folder(const char *path)
{
    struct stat st;
    return !stat(path, &st) && S_ISDIR(st.st_mode);
}

static int find_package(const char *packages, const char *package, char *out)
{
    char pattern[PATH_MAX];
    glob_t g;
    snprintf(pattern, sizeof pattern, "%s/libreoffice-help-%s_*.deb", packages, package);
    int found = !glob(pattern, 0, NULL, &g) && g.gl_pathc;
    if (found) found = snprintf(out, PATH_MAX, "%s", g.gl_pathv[g.gl_pathc - 1]) < PATH_MAX;
    globfree(&g);
    return found;
}

static neb_status explain(const char *packages, const char *package, const char *why)
{
    return neb__fail(
        NEB_ERR_CONFIG,
        "%s. What to do: get the Debian package libreoffice-help-%s on any machine (`apt-get download "
        "libreoffice-help-%s`, or from a Debian mirror's folder pool/main/libr/libreoffice/) and put the "
        ".deb "
        "file into %s; without dpkg-deb, unpack it there too: mkdir %s/%s; ar x FILE.deb; tar xf data.tar.xz "
        "-C %s/%s",
        why, package, package, packages, packages, package, packages, package);
}

static neb_status fetch(const char *packages, const char *package, char *deb)
{
    char name[64];
    snprintf(name, sizeof name, "libreoffice-help-%s", package);
    neb__info("fetching %s", name);
    const char *const argv[] = {"apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", name, NULL};
    int r = run_in(packages, argv);
    if (r < 0) return explain(packages, package, "this machine has no apt-get");
    if (r || !find_package(packages, package, deb))
        return explain(packages, package,
                       "apt-get could not download the package (is `apt-get update` needed?)");
    return NEB_OK;
}

neb_status neb__help_pages(const char *packages, const char *lang, char *out)
{
    char package[32], folder[32], unpacked[PATH_MAX], deb[PATH_MAX];
    names(lang, package, folder);
    if (strlen(packages) > PATH_MAX - 128)
        return neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", packages);
    NEB_TRY(neb__file_make_dir(packages, 0755));
    snprintf(unpacked, sizeof unpacked, "%s/%s", packages, package);
    snprintf(out, PATH_MAX, "%s/%s/usr/share/libreoffice/help/%s/text", packages, package, folder);
    if (is_folder(out)) return NEB_OK;
    if (!find_package(packages, package, deb)) NEB_TRY(fetch(packages, package, deb));
    const char *const argv[] = {"dpkg-deb", "-x", deb[0] == '/' ? deb : strrchr(deb, '/') + 1, package, NULL};
    int r = run_in(packages, argv);
    if (r < 0) return explain(packages, package, "this machine has no dpkg-deb");
    if (r || !is_folder(out)) return neb__fail(NEB_ERR_CORRUPT, "%s does not unpack to %s", deb, out);
    return NEB_OK;
}
