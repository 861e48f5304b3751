/* forked.h: the ranks of a site as children of a test. Their engine has places, groups that are split off
 * (16 of few ranks), and shared memory. */
#ifndef NEB_TEST_FORKED_H
#define NEB_TEST_FORKED_H

#include "group/group.h"

/* Runs fn at `ranks` ranks, each a child of its own. Returns bits of the ranks whose fn did not return 0. */
unsigned forked_ranks(int ranks, double timeout_s, int (*fn)(struct neb_group *g, void *arg), void *arg);
/* Memory that the children and the test share, zeroed. */
void *forked_memory(size_t bytes);
void forked_free(void *p, size_t bytes);

#endif
