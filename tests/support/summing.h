/* summing.h: a member of a run with secure sums, that trains on a thread of its own. */
#ifndef NEB_TEST_SUMMING_H
#define NEB_TEST_SUMMING_H

#include "run/session.h"
#include "base/buf.h"

#include <nebula/nebula.h>
#include <stdatomic.h>

enum { SUMMING_VALUES = 3000 };

struct summing {
    neb_session *session;
    const char *dir;
    float x[SUMMING_VALUES], target;
    atomic_bool stop;
    neb_status status;
    pthread_t thread;
    struct neb_buf checkpoint; /* of summing_save(): the next begin goes on from it */
};

/* Opens the session in the folder and trains towards `target`. */
void summing_begin(struct summing *m, const char *dir, float target);
void summing_halt(struct summing *m); /* no step more; the session stays */
void summing_end(struct summing *m);
void summing_save(struct summing *m);
/* Sums that this site has applied; `with` (0: any): only those with that site's update. */
int summing_sums(struct summing *m, unsigned with, int *voids);
/* Until there are `more` of them. */
void summing_wait(struct summing *m, unsigned with, int more);

#endif
