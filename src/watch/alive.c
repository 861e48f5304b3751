/* alive.c: see alive.h. A look holds the lock for microseconds, so a trainer that meets one tries again. So does a look that
 * meets another one, or two pages would now and then take each other for the trainer. */
#include "watch/alive.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

static int open_in(const char *folder, int flags)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/alive", folder) >= (int)sizeof path) return -1;
    return open(path, flags | O_CLOEXEC, 0600);
}

int neb__alive_hold(const char *folder)
{
    const struct timespec moment = {.tv_nsec = 2000000};
    int fd = open_in(folder, O_RDWR | O_CREAT);
    for (int i = 0; fd >= 0 && i < 100; i++) {
        if (!flock(fd, LOCK_SH | LOCK_NB)) return fd;
        if (errno != EWOULDBLOCK && errno != EINTR) break;
        nanosleep(&moment, NULL);
    }
    if (fd >= 0) close(fd);
    return -1;
}

enum neb_alive neb__alive_look(const char *folder)
{
    int fd = open_in(folder, O_RDONLY);
    if (fd < 0) return NEB_ALIVE_UNKNOWN;
    const struct timespec moment = {.tv_nsec = 100000};
    enum neb_alive found = NEB_ALIVE_YES;
    for (int i = 0; i < 3 && found == NEB_ALIVE_YES; i++) {
        if (i) nanosleep(&moment, NULL);
        if (!flock(fd, LOCK_EX | LOCK_NB))
            found = NEB_ALIVE_NO;
        else if (errno != EWOULDBLOCK)
            found = NEB_ALIVE_UNKNOWN;
    }
    close(fd); /* gives the lock back */
    return found;
}
