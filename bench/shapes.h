/* shapes.h: the training jobs with which the engine's speed is measured, ready to step. A successful create
 * owes a destroy. */
#ifndef NEB_BENCH_SHAPES_H
#define NEB_BENCH_SHAPES_H

#include "base/status.h"

#include <nebula/engine.h>

struct neb_shape {
    const char *name, *family;
    int64_t layers, decoder_layers, hidden, heads, ffn, vocab, seq, batch;
    double share_target; /* of sgemm's speed */
};

extern const struct neb_shape neb__shapes[], neb__gpu_shapes[],
    neb__tiny_shapes[]; /* tiny: for tests, never measured */
const struct neb_shape *neb__shape_find(const struct neb_shape *list, const char *name); /* NULL: unknown */

enum { NEB_SHAPE_MICROS = 64 };

struct neb_shape_options {
    int threads;
    double dropout, attention_dropout;
    bool recompute;
    const char *device; /* NULL: cpu */
    neb_dtype compute;
    bool deterministic, no_graphs, reference; /* reference: ops composed of primitives */
    double lr;
    neb_optimizer_kind optimizer;
    int micro; /* micro-batches a step, all alike; 0: one */
};

struct neb_shape_run;

neb_status neb__shape_create(const struct neb_shape *s, const struct neb_shape_options *o,
                             struct neb_shape_run **out);
void neb__shape_destroy(struct neb_shape_run *r);

neb_status neb__shape_step(struct neb_shape_run *r, float *loss);
double neb__shape_grad_norm(const struct neb_shape_run *r); /* of the same step as the last loss */
/* The step of the last loss. An asynchronous device is one step late; 0: before the first loss. */
int64_t neb__shape_loss_step(const struct neb_shape_run *r);
neb_params *neb__shape_params(struct neb_shape_run *r);
neb_device *neb__shape_device(struct neb_shape_run *r);
void neb__shape_memory(struct neb_shape_run *r, struct neb_memory *out);

/* FLOPs of a step: 6 N tokens + 12 L d T tokens (causal halved), the output layer only for scored
 * positions. */
double neb__shape_flops(const struct neb_shape *s);
int64_t neb__shape_tokens(const struct neb_shape *s);

#endif
