/* stepping.h: steps of a training thread that another thread may stop at any time. */
#ifndef NEB_TEST_STEPPING_H
#define NEB_TEST_STEPPING_H

#include <nebula/nebula.h>
#include <stdatomic.h>

/* As neb_step(), but it also returns, with NEB_OK, soon after *stop is set: a site without rounds may wait in a step for ever. */
neb_status step_until(neb_session *s, int64_t tokens, atomic_bool *stop);

#endif
