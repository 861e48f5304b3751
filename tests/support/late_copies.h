/* late_copies.h: the CPU device with side copies that take their time: a copy is made when somebody waits for it or has asked for it a
 * third time, from what then lies at its source. */
#ifndef NEB_TESTS_SUPPORT_LATE_COPIES_H
#define NEB_TESTS_SUPPORT_LATE_COPIES_H

#include "tensor/device.h"

#include <nebula/engine.h>

enum { LATE_DEVICES = 2 };

struct late {
    neb_device *cpu[LATE_DEVICES];
    neb_device device[LATE_DEVICES]; /* the same with late copies */
};

/* One at a time. Owes a close. */
void late_open(struct late *l);
void late_open_as(struct late *l, neb_dtype compute);
void late_close(struct late *l);
int late_copies(void); /* issued since late_open() */

#endif
