/* log.c: levelled, line-wise logging to one sink.
 *
 * A line is formatted on the caller's stack and handed to the sink under a lock, so lines of several threads
 * never mix. The live line of the console is taken away meanwhile, so no line is glued to it. Characters that are
 * not for printing are replaced: a peer's bytes that end up in a message cannot forge a second line or drive the
 * terminal. */
#include "base/log.h"
#include "base/console.h"
#include "base/printable.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t sink_lock = PTHREAD_MUTEX_INITIALIZER;
static neb_log_fn sink_fn;
static void *sink_arg;
static atomic_int threshold = -1;

static const char *const level_names[] = {"debug", "info", "warn", "error", "none"};

static int threshold_from_environment(void)
{
    const char *s = getenv("NEBULA_LOG");
    for (int i = 0; s && i < 5; i++)
        if (!strcmp(s, level_names[i])) return i;
    if (s && *s)
        fprintf(stderr,
                "NEBULA_LOG is '%.40s', which is not debug, info, warn, error or none; taking it as info\n",
                s);
    return NEB_LOG_INFO;
}

static void to_stderr(neb_log_level level, const char *line)
{
    static const enum neb_console_style styles[] = {[NEB_LOG_DEBUG] = NEB_STYLE_DIM,
                                                    [NEB_LOG_INFO] = NEB_STYLE_DIM,
                                                    [NEB_LOG_WARN] = NEB_STYLE_WARN,
                                                    [NEB_LOG_ERROR] = NEB_STYLE_ERROR};
    struct timespec ts;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    fprintf(stderr, "%s%02d:%02d:%02d.%03ld %-5s%s %s\n",
            neb__console_begin_style(STDERR_FILENO, styles[level]), tm.tm_hour, tm.tm_min, tm.tm_sec,
            ts.tv_nsec / 1000000, level_names[level], neb__console_end_style(STDERR_FILENO), line);
}

void neb_log_set_sink(neb_log_fn fn, void *arg)
{
    pthread_mutex_lock(&sink_lock);
    sink_fn = fn;
    sink_arg = arg;
    pthread_mutex_unlock(&sink_lock);
}

void neb_log_set_level(neb_log_level level)
{
    atomic_store(&threshold, (int)level);
}

static _Thread_local bool hushed;

bool neb__log_hush(bool on)
{
    const bool before = hushed;
    hushed = on;
    return before;
}

bool neb__log_shows(neb_log_level level)
{
    if (hushed) return false;
    int least = atomic_load_explicit(&threshold, memory_order_relaxed);
    if (least < 0) {
        least = threshold_from_environment();
        atomic_store(&threshold, least);
    }
    return (int)level >= least && level < NEB_LOG_NONE;
}

void neb__log(neb_log_level level, const char *fmt, ...)
{
    if (!neb__log_shows(level)) return;

    char line[2048];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    for (char *p = line; *p; p++)
        if (*p == '\n' || *p == '\t') *p = ' '; /* of a message of ours */
    neb__text_clean(line);

    pthread_mutex_lock(&sink_lock);
    neb__console_hold();
    if (sink_fn)
        sink_fn(sink_arg, level, line);
    else
        to_stderr(level, line);
    neb__console_release();
    pthread_mutex_unlock(&sink_lock);
}
