/* log.h: where Nebula-I's messages go: to stderr by default, level `info` and above. */
#ifndef NEBULA_LOG_H
#define NEBULA_LOG_H

#include <nebula/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum neb_log_level {
    NEB_LOG_DEBUG = 0,
    NEB_LOG_INFO = 1,
    NEB_LOG_WARN = 2,
    NEB_LOG_ERROR = 3,
    NEB_LOG_NONE = 4, /* as a threshold: say nothing */
} neb_log_level;

/* Receives one complete line without its newline. It may be called from any thread, one call at a time. */
typedef void (*neb_log_fn)(void *arg, neb_log_level level, const char *line);

/* fn NULL restores the default (stderr). */
NEB_API void neb_log_set_sink(neb_log_fn fn, void *arg);

/* Messages below `level` are not even formatted. The environment variable NEBULA_LOG (debug, info, warn,
 * error, none) sets the initial level. */
NEB_API void neb_log_set_level(neb_log_level level);

#ifdef __cplusplus
}
#endif
#endif
