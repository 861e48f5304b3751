/* recorder.h: the CPU device with recordings, so that what a GPU does with recorded runs is tested on every machine. Between
 * graph_begin and graph_end calls are kept and not made; a launch makes them. What the contract forbids while recording
 * (allocating, uploading, downloading, waiting) fails. A side copy happens when its fence is waited for, not before. One
 * device at a time. */
#ifndef NEB_TEST_RECORDER_H
#define NEB_TEST_RECORDER_H

#include <nebula/engine.h>

/* d, opened as "cpu", records from now on. Like a GPU, it has no weights of its own layout. */
void recorder_take(neb_device *d);
int recorder_launches(void); /* since then */

#endif
