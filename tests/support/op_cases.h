/* op_cases.h: small models around every op of the engine, with what they read, for tests of the ops.
 *
 * What an op is given are parameters (through neb_weight), so their gradients can be read. A case ends in a loss. */
#ifndef NEB_TEST_OP_CASES_H
#define NEB_TEST_OP_CASES_H

#include "tensor/tape.h"

struct shape {
    int64_t rows, d, out, heads;
};

enum { MAX_PARAMS = 6, MAX_ROWS = 64 };

struct fixture {
    const struct kase *kase;
    struct shape s;
    neb_device *dev;
    neb_params *ps;
    neb_tape *tape;
    neb_param *p[MAX_PARAMS];
    int n_params;
    neb_buffer *ids, *ids2, *position, *sample, *starts, *starts_k, *seq_sample, *target, *weight, *fixed,
        *logits;
    neb_optimizer *opt;
    int64_t seqs, k_rows;
};

struct kase {
    const char *name;
    void (*params)(struct fixture *f);
    void (*model)(neb_tape *t, struct fixture *f);
};

enum { OP_SHAPES = 4, OP_CASES = 43 };
extern const struct shape op_shapes[OP_SHAPES];
extern const struct kase op_cases[OP_CASES];
const struct kase *op_case(const char *name);

/* For cases that a test brings along. */
neb_tensor *op_ints(neb_tape *t, neb_buffer *b, int64_t n);
void op_finish(neb_tape *t, struct fixture *f,
               neb_tensor *y); /* a loss whose gradient differs in every element */

void op_open(struct fixture *f, const struct kase *k, struct shape s);
void op_close(struct fixture *f);
void op_model(neb_tape *t, void *fixture);
double op_loss(struct fixture *f, bool grad);
float *op_read(struct fixture *f, bool grads, int64_t *n); /* owes neb__free() */
void op_write(struct fixture *f, const float *values);

#endif
