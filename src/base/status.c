/* status.c: names of the status codes and the thread's last error message.
 *
 * The message lives in a thread-local buffer of fixed size, so that wording an out-of-memory error needs no
 * memory. */
#include "base/status.h"
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char last_error[1024];

const char *neb_status_name(neb_status status)
{
    switch (status) {
#define NEB__X(name, value, text) \
    case name: return #name;
        NEB_STATUS_MAP(NEB__X)
#undef NEB__X
    }
    return "NEB_ERR_?";
}

const char *neb_status_text(neb_status status)
{
    switch (status) {
#define NEB__X(name, value, text) \
    case name: return text;
        NEB_STATUS_MAP(NEB__X)
#undef NEB__X
    }
    return "unknown status";
}

const char *neb_last_error(void)
{
    return last_error;
}

static void word(const char *fmt, va_list ap)
{
    char text[sizeof last_error]; /* the arguments may point into last_error */
    vsnprintf(text, sizeof text, fmt, ap);
    memcpy(last_error, text, sizeof text);
}

neb_status neb__fail(neb_status status, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    word(fmt, ap);
    va_end(ap);
    if (neb__log_shows(NEB_LOG_DEBUG))
        neb__log(NEB_LOG_ERROR, "%s (%s)", last_error, neb_status_name(status));
    else
        neb__log(NEB_LOG_ERROR, "%s", last_error);
    return status;
}

neb_status neb__quiet(neb_status status, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    word(fmt, ap);
    va_end(ap);
    return status;
}

void neb__error_prefix(const char *fmt, ...)
{
    char old[sizeof last_error], prefix[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(prefix, sizeof prefix, fmt, ap);
    va_end(ap);
    memcpy(old, last_error, sizeof old);
    snprintf(last_error, sizeof last_error, "%s: %.*s", prefix, (int)(sizeof old - sizeof prefix - 3), old);
}
