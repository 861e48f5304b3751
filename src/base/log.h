/* log.h (internal): one line to the sink. Secrets and key material are never logged. */
#ifndef NEB_BASE_LOG_H
#define NEB_BASE_LOG_H

#include <nebula/log.h>
#include <stdbool.h>

void neb__log(neb_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

bool neb__log_shows(neb_log_level level); /* false: messages of this level are left out */

/* Leaves out the lines of this thread while it only tries something. Returns what it was before. */
bool neb__log_hush(bool on);

#define neb__debug(...) neb__log(NEB_LOG_DEBUG, __VA_ARGS__)
#define neb__info(...)  neb__log(NEB_LOG_INFO, __VA_ARGS__)
#define neb__warn(...)  neb__log(NEB_LOG_WARN, __VA_ARGS__)

#endif
