/* status.h (internal): saying what went wrong.
 *
 *     return neb__fail(NEB_ERR_SHAPE, "%s: expected %" PRId64 " columns, got %" PRId64, name, want, got);
 *
 * neb__fail() words the error for neb_last_error(), logs it once at level `error`, and returns the code. Callers
 * further up pass the code on with NEB_TRY and add nothing. */
#ifndef NEB_BASE_STATUS_H
#define NEB_BASE_STATUS_H

#include <inttypes.h>
#include <nebula/status.h>

neb_status neb__fail(neb_status s, const char *fmt, ...) __attribute__((format(printf, 2, 3), cold));

/* As neb__fail, without the log line: for outcomes the caller is expected to handle (a probe, a retry). */
neb_status neb__quiet(neb_status s, const char *fmt, ...) __attribute__((format(printf, 2, 3), cold));

/* Puts `prefix: ` in front of the present message: for adding the layer's name on the way up. */
void neb__error_prefix(const char *fmt, ...) __attribute__((format(printf, 1, 2), cold));

#define NEB_TRY(expr)                        \
    do {                                     \
        neb_status neb__s = (expr);          \
        if (neb__s != NEB_OK) return neb__s; \
    } while (0)

/* The same with cleanup: `NEB_TRY_GOTO(status, call(), fail);` sets `status` and jumps. */
#define NEB_TRY_GOTO(var, expr, label)   \
    do {                                 \
        (var) = (expr);                  \
        if ((var) != NEB_OK) goto label; \
    } while (0)

#endif
