/* fuzz_facts.c: the facts of two sites, with a zero byte between them. Whether they differ does not depend on whose they are,
 * and what is said about it fits and has no control characters. */
#include "run/job_facts.h"

#include <nebula/log.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char why[128];
    const char *a = (const char *)data, *b = memchr(data, 0, size);
    neb_log_set_level(NEB_LOG_NONE);
    if (!b || size > 8192) return 0;
    size_t n = (size_t)(b - a), k = size - n - 1;
    b++;
    if (neb__facts_differ(a, n, a, n, "x", why, sizeof why)) {
        /* a key twice with different values: the first one counts */
    } else if (neb__facts_differ(b, k, b, k, "x", why, sizeof why)) {
        /* likewise */
    } else if (neb__facts_differ(a, n, b, k, "x", why, sizeof why) !=
               neb__facts_differ(b, k, a, n, "x", why, sizeof why)) {
        abort();
    }
    if (neb__facts_differ(a, n, b, k, "x", why, sizeof why))
        for (const char *c = why; *c; c++)
            if ((unsigned char)*c < 32 || *c == 127) abort();
    return 0;
}
