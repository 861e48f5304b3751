/* log_limit.c: whoever can reach a listening socket can make it complain. The log must stay readable, and the disk must not
 * fill: ten lines a second, and the number of those that were left out. */
#include "net/log_limit.h"
#include "base/clock.h"
#include "base/log.h"

#include <stdio.h>

enum { LINES_PER_SECOND = 10 };

void neb__log_limited(struct neb_log_limit *l, const char *fmt, va_list ap)
{
    char line[512];
    int64_t second = neb__now_ns() / 1000000000;
    if (second != l->second) {
        if (l->left_out) neb__warn("%d more refusals were not logged", l->left_out);
        *l = (struct neb_log_limit){.second = second};
    }
    if (l->lines++ >= LINES_PER_SECOND) {
        l->left_out++;
        return;
    }
    vsnprintf(line, sizeof line, fmt, ap);
    neb__warn("%s", line);
}
