#define _XOPEN_SOURCE 700
#include "check.h"

#include <ftw.h>
#include <nebula/log.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
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

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double check_late_ms(void)
{
    double late[100];
    for (int i = 0; i < 100; i++) {
        double start = now_ms();
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
        late[i] = now_ms() - start - 5;
    }
    qsort(late, 100, sizeof *late, by_size);
    return late[90];
}
