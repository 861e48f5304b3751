/* lab_disk.c: see lab_disk.h.
 *
 * The disk is a tmpfs. Its size can be changed while files on it are open: a size of what is used makes it full, at once and
 * without a byte of ballast, and the sites' writes fail with ENOSPC as on any full disk. Opening and closing copy the folder's
 * files with `cp -a` through a folder beside it, DISK.moving, so that a laboratory goes on where the last one ended. The disks are
 * in a mount namespace of the laboratory and its sites. So a laboratory that is killed leaves none: the kernel takes them away with
 * the last of these processes, and what was on them is lost. */
#define _GNU_SOURCE
#include "cli/lab_disk.h"
#include "base/file.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TMPFS = 0x01021994 };

/* Runs NAME FLAG ONE [TWO], a program of every system. */
static neb_status run(const char *name, const char *flag, const char *one, const char *two)
{
    pid_t child = fork();
    int status = -1;
    if (child < 0) return neb__fail(NEB_ERR_IO, "the system refused a process");
    if (!child) {
        execlp(name, name, flag, "--", one, two, (char *)NULL);
        _exit(127);
    }
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    if (WIFEXITED(status) && !WEXITSTATUS(status)) return NEB_OK;
    return neb__fail(NEB_ERR_IO, "%s %s %s failed", name, flag, one);
}

/* Copies the files of one folder into another one. */
static neb_status copy(const char *from, const char *to)
{
    char inside[PATH_MAX];
    if (snprintf(inside, sizeof inside, "%s/.", from) >= (int)sizeof inside)
        return neb__fail(NEB_ERR_INVALID, "the path %s is too long", from);
    return run("cp", "-a", inside, to);
}

static bool is_mounted(const char *folder)
{
    char parent[PATH_MAX];
    struct stat here, above;
    struct statfs fs;
    snprintf(parent, sizeof parent, "%s/..", folder);
    return !stat(folder, &here) && !stat(parent, &above) && here.st_dev != above.st_dev &&
           !statfs(folder, &fs) && fs.f_type == TMPFS;
}

neb_status neb__lab_disk_alone(void)
{
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL))
        return neb__quiet(NEB_ERR_UNSUPPORTED, "no mounts of one's own: %s", strerror(errno));
    return NEB_OK;
}

neb_status neb__lab_disk_open(const char *folder)
{
    char aside[PATH_MAX];
    if (snprintf(aside, sizeof aside, "%s.moving", folder) >= (int)sizeof aside)
        return neb__fail(NEB_ERR_INVALID, "the path %s is too long", folder);
    if (is_mounted(folder)) NEB_TRY(neb__lab_disk_close(folder));
    NEB_TRY(neb__file_make_dir(aside, 0700));
    neb_status s = copy(folder, aside);
    if (s == NEB_OK && mount("tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0700"))
        s = neb__quiet(NEB_ERR_UNSUPPORTED, "%s cannot be mounted on: %s", folder, strerror(errno));
    if (s == NEB_OK) s = copy(aside, folder);
    (void)run("rm", "-rf", aside, NULL);
    return s;
}

neb_status neb__lab_disk_close(const char *folder)
{
    char aside[PATH_MAX];
    if (snprintf(aside, sizeof aside, "%s.moving", folder) >= (int)sizeof aside)
        return neb__fail(NEB_ERR_INVALID, "the path %s is too long", folder);
    NEB_TRY(neb__file_make_dir(aside, 0700));
    NEB_TRY(copy(folder, aside));
    /* the sites have ended, but whoever watches may still read here */
    if (umount2(folder, MNT_DETACH))
        return neb__fail(NEB_ERR_IO, "%s cannot be unmounted: %s; its files are in %s, too", folder,
                         strerror(errno), aside);
    NEB_TRY(copy(aside, folder));
    return run("rm", "-rf", aside, NULL);
}

neb_status neb__lab_disk_full(const char *folder, bool full)
{
    char size[64] = "size=50%";
    struct statfs fs;
    if (full) {
        if (statfs(folder, &fs)) return neb__fail(NEB_ERR_IO, "%s: %s", folder, strerror(errno));
        unsigned long long used = (unsigned long long)(fs.f_blocks - fs.f_bfree);
        snprintf(size, sizeof size, "size=%llu",
                 (used ? used : 1) * (unsigned long long)fs.f_bsize); /* 0 would be no limit */
    }
    if (!mount("tmpfs", folder, "tmpfs", MS_REMOUNT | MS_NOSUID | MS_NODEV, size)) return NEB_OK;
    return neb__fail(NEB_ERR_IO, "the disk of %s cannot be given another size: %s", folder, strerror(errno));
}
