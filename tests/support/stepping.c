/* stepping.c: see stepping.h. */
#include "stepping.h"

neb_status step_until(neb_session *s, int64_t tokens, atomic_bool *stop)
{
    bool changed;
    neb_status status = neb_step_within(s, tokens, 0.1, &changed);
    while (status == NEB_ERR_AGAIN && !atomic_load(stop))
        status = neb_step_within(s, NEB_NO_STEP, 0.1, &changed);
    return status == NEB_ERR_AGAIN ? NEB_OK : status;
}
