/* alive.h: whether the process that writes a folder still lives, seen from another process.
 *
 * A trainer holds a shared lock on OUT/alive. The kernel takes it back when the process ends, however it
 * ends, and also shows it across containers and PID namespaces. Whoever looks tries to get the lock for
 * itself for a moment. */
#ifndef NEB_WATCH_ALIVE_H
#define NEB_WATCH_ALIVE_H

enum neb_alive { NEB_ALIVE_UNKNOWN, NEB_ALIVE_YES, NEB_ALIVE_NO };

/* Returns a descriptor that holds the lock, or -1: the file system has no locks. Training goes on without. */
int neb__alive_hold(const char *folder);
/* UNKNOWN: nobody has ever held it there, or it cannot be opened. */
enum neb_alive neb__alive_look(const char *folder);

#endif
