/* map_guard.h: reading a mapped file that others may shorten meanwhile.
 *
 *     neb__map_guard_prepare();
 *     map = mmap(…);
 *     struct neb_map_guard g;
 *     neb__map_guard_begin(&g, map, length);
 *     … read from the map …
 *     if (!neb__map_guard_end(&g)) … what was read is partly zeros …
 *
 * Without a guard such a read is SIGBUS and the end of the process: behind the file's present end, and where the disk or the
 * server of a network file system fails. Guards of one thread may stand inside each other. */
#ifndef NEB_BASE_MAP_GUARD_H
#define NEB_BASE_MAP_GUARD_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

struct neb_map_guard {
    const char *map;
    size_t length;
    volatile sig_atomic_t lost;  /* a page could not be read */
    struct neb_map_guard *outer; /* of this thread */
};

/* Before a file is mapped whose reads are guarded. */
void neb__map_guard_prepare(void);

/* `map` is a read-only mapping of `length` bytes, and lives until the end, which this owes. */
void neb__map_guard_begin(struct neb_map_guard *g, const void *map, size_t length);

/* False: a page could not be read. It is zeros from now on, for every later reader of this mapping, too. */
bool neb__map_guard_end(struct neb_map_guard *g);

#endif
