/* log_limit.h: warnings that strangers can provoke: at most ten a second, then a count. */
#ifndef NEB_NET_LOG_LIMIT_H
#define NEB_NET_LOG_LIMIT_H

#include <stdarg.h>
#include <stdint.h>

struct neb_log_limit {
    int64_t second;
    int lines, left_out;
};

void neb__log_limited(struct neb_log_limit *l, const char *fmt, va_list ap);

#endif
