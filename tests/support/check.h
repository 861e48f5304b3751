/* check.h: cmocka with what our tests share. */
#ifndef NEB_TEST_CHECK_H
#define NEB_TEST_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#include <nebula/status.h>

/* A status, shown by name and with the last message when it is another one. */
#define assert_status(expr, want)                                                             \
    do {                                                                                      \
        neb_status check_s = (expr);                                                          \
        if (check_s != (want))                                                                \
            fail_msg("%s: %s instead of %s; last error: %s", #expr, neb_status_name(check_s), \
                     neb_status_name(want), neb_last_error());                                \
    } while (0)
#define assert_ok(expr) assert_status(expr, NEB_OK)

/* Silences the log while errors are provoked on purpose; check_log_restore() brings it back. */
void check_log_quiet(void);
void check_log_restore(void);

/* A fresh folder under the temporary directory, removed with everything in it by check_remove_dir(). */
void check_make_dir(char *path, size_t size);
void check_remove_dir(const char *path);

/* By how many milliseconds this machine wakes one sleeper in ten too late just now: a virtual machine whose host is busy
 * cannot show a bar of one millisecond. For that one kind of check, never for what must hold on a slow machine too. */
double check_late_ms(void);

#endif
