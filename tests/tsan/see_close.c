/* see_close.c: tells ThreadSanitizer of the descriptors that libuv closes. Linked into the thread build's tests alone.
 *
 * TSan follows each descriptor from the call that makes it to close(). Debian's libuv closes with syscall(SYS_close),
 * which TSan does not watch. The kernel then gives the number to another thread, and TSan reports a race between two
 * calls that have nothing to do with each other. The linker sends every call of syscall() here (--wrap=syscall).
 */
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);

long __wrap_syscall(long number, ...)
{
    va_list list;
    long a[6];
    va_start(list, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(list, long);
    va_end(list);
    if (number == SYS_close) return close((int)a[0]);
    return __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
