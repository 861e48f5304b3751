#define _XOPEN_SOURCE 700
#include "check.h"

#include <ftw.h>
#include <nebula/log.h>
#include <stdio.h>
#include <unistd.h>

void check_log_quiet(void)
{
    neb_log_set_level(NEB_LOG_NONE);
}

void check_log_restore(void)
{
    neb_log_set_level(NEB_LOG_INFO);
}

void check_make_dir(char *path, size_t size)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(path, size, "%s/nebula-test-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(path));
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st, (void)flag, (void)ftw;
    return remove(path);
}

void check_remove_dir(const char *path)
{
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}
