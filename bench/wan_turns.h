/* wan_turns.h: two runs at once that take turns of a second, for a machine whose speed changes from minute to minute. */
#ifndef NEB_WAN_TURNS_H
#define NEB_WAN_TURNS_H

#include <sys/types.h>

/* Until `seconds` have passed: the training processes below a[0] go on while those below a[1] are stopped, then the other way
 * round. In the end all of them go on. */
void neb__take_turns(const pid_t a[2], double seconds);

#endif
