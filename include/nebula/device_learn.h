/* device_learn.h: the arguments of the losses and of the optimizer's slots. Part of nebula/device.h, which
 * states the rules. */
#ifndef NEBULA_DEVICE_LEARN_H
#define NEBULA_DEVICE_LEARN_H

#include <nebula/status.h>
#include <nebula/device_types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- losses -------------------------------------------------------------------------------------------- */

/* Shared by the losses below: row r counts weight[r] (1 if NULL) * scale * ctl->loss_scale. The sum is added
 * to ctl->loss[slot], and its gradient goes to d…. A non-finite sum sets ctl->nonfinite. */
struct neb_loss {
    struct neb_ctl *ctl;
    const float *weight; /* (rows) or NULL */
    float scale;
    int slot;
};

/* Cross-entropy and distillation over rows of logits:
 *   ce * [ (1 - smoothing) * -log p[target] + smoothing * mean over classes of -log p ]
 *   + kd * T^2 * KL(teacher || student), both at temperature T,
 * where the teacher is given by top-k logits (renormalised over the k; ids outside [0, classes) are left out)
 * or by dense logits. A row whose target lies outside [0, classes) counts 0, and its gradient is 0. With NULL
 * targets all rows count. counts[0] += rows whose largest logit is the target's, counts[1] += rows counted
 * (weight > 0).
 *
 * `judged` (only by a device whose flags say NEB_DEVICE_JUDGED; ce is 0, teacher_k at most NEB_JUDGED_MAX): the targets are the
 * student's own samples, and the teacher's logits are log-probabilities. In place of the T^2 KL stands the generalised
 * Jensen-Shannon divergence of P (student) and Q (teacher) over k + 1 parts, the k tokens and all others together:
 *   beta 0: KL(Q || P);  beta 1: KL(P || Q);  else beta KL(Q || M) + (1 - beta) KL(P || M), M = beta Q + (1 - beta) P
 * Q of all others is what the k leave, at least 1e-4, and Q of a token at least 1e-9, after which Q is divided by its
 * sum; at beta 0 P of all others counts as at least 1e-6; where the k are all classes, there are no others. A row without ids counts 0. */
#define NEB_JUDGED_MAX 256
struct neb_targets {
    const int32_t *target; /* (rows); NULL when ce is 0 */
    float ce, smoothing;
    float kd, temperature;       /* kd 0: no teacher */
    const int32_t *teacher_ids;  /* (rows, teacher_k) */
    const float *teacher_logits; /* (rows, teacher_k); dense: (rows, classes) with teacher_ids NULL */
    int64_t teacher_k;
    int32_t judged;
    float beta; /* 0 to 1 */
};

/* On logits (rows, classes), which are overwritten with their gradient when want_grad. */
struct neb_xent {
    void *logits;
    int64_t rows, classes, ld;
    int want_grad;
    struct neb_targets t;
    struct neb_loss loss;
    neb_dtype type;
};

/* Binary cross-entropy with logits x (rows), target 0 or 1; a row with target < 0 counts 0. dx (rows) or
 * NULL. counts[0] += rows classified correctly, counts[1] += rows counted, counts[2] += counted rows with
 * target 1, counts[3] += correct rows with target 1. */
struct neb_bce {
    const void *x;
    const int32_t *target;
    void *dx;
    int64_t rows;
    int acc_dx;
    struct neb_loss loss;
    neb_dtype type;
};

/* MSE: mean over columns of (x - y)^2 per row. Cosine: 1 - x·y / (|x| |y|) per row; it is 1 with gradient 0
 * when either vector is zero. dx, dy may be NULL. */
struct neb_pair_loss {
    const void *x, *y; /* (rows, d) */
    void *dx, *dy;
    int64_t rows, d;
    int acc_dx, acc_dy;
    struct neb_loss loss;
    neb_dtype type;
};

/* Several processes share out the classes. For each row a process knows, of its classes: */
struct neb_class_sums {
    double max, sum;    /* the largest logit; the sum of exp(logit - max) */
    double target, all; /* the target's logit, or 0 if it is elsewhere; the sum of all logits */
};
struct neb_class_share {
    int64_t first, total; /* this process has classes [first, first + classes) of `total` */
    int rank, ranks;      /* of the processes; they have total / ranks classes, or one more */
    void *arg;
    /* every (ranks, n), memory of the device: this process has written row `rank`; afterwards all are there, in the
     * order of the device's stream. All processes make as many calls, with the same n. */
    neb_status (*gather)(void *arg, struct neb_class_sums *every, int64_t n);
};

/* x w^T + bias → cross-entropy and distillation, chunk by chunk; logits are never kept. With want_grad the
 * gradients are computed in the same call: dx (overwritten; NULL: not wanted), dw (+)=, db (+)=. */
struct neb_linear_xent {
    const void *x;    /* (rows, in) */
    const void *w;    /* (classes, in) */
    const void *bias; /* (classes) or NULL */
    void *dx;         /* (rows, in) */
    float *dw, *db;
    int64_t rows, in, classes;
    int want_grad, acc_dw, acc_db;
    struct neb_targets t;
    struct neb_loss loss;
    void *scratch;
    neb_dtype type;
    /* Host. NULL: all classes are here. Else targets count over all processes, dx is this process's part of a sum, and
     * there is no teacher; a device that cannot do it returns NEB_ERR_UNSUPPORTED. */
    const struct neb_class_share *share;
};

/* ---- optimizer ----------------------------------------------------------------------------------------- */

/* A piece of the parameter slab with its own settings. In device memory, in increasing order of offset. */
struct neb_segment {
    int64_t offset, n; /* in values */
    float decay;       /* weight decay */
    float lr_scale;
};

/* Adds the sum of squares of x over [0, n) to ctl->norm2, in an order that does not depend on the thread
 * count. With `blocks` it writes the sum of each NEB_SUMSQ_BLOCK values there instead, so that several
 * processes can each take some of the blocks and add them up in one order; a device that cannot do it returns
 * NEB_ERR_UNSUPPORTED. */
#define NEB_SUMSQ_BLOCK 65536
struct neb_sumsq {
    const float *x;
    int64_t n;
    struct neb_ctl *ctl;
    void *scratch;
    double *blocks; /* (n / NEB_SUMSQ_BLOCK, rounded up) or NULL */
};

/* Computes ctl->clip and ctl->nonfinite from ctl->norm2, the losses and max_norm. nonfinite is set (never
 * cleared) when norm2 or a loss is not finite. clip = 0 when nonfinite is set, else max_norm / norm if
 * max_norm > 0 and norm > max_norm, else 1. */
struct neb_clip {
    struct neb_ctl *ctl;
};

/* AdamW (decoupled decay) or SGD with momentum over all segments. g is multiplied by ctl->clip; nothing
 * changes when ctl->nonfinite is set. With r = lr * lr_scale:
 *   AdamW  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
 *          p -= r ((m / bias1) / (sqrt(v / bias2) + eps) + decay p)
 *   SGD    m = beta1 m + g;  p -= r (m + decay p);  without momentum g stands for m
 * lr and the bias corrections come from ctl. `shadow` (BF16 copy of param) is written when not NULL. */
struct neb_update {
    float *param, *m, *v; /* v NULL: SGD; m NULL too: SGD without momentum */
    const float *grad;
    void *shadow;
    const struct neb_segment *segments; /* device */
    int64_t n_segments, n;              /* n: values covered, from the first offset to the last end */
    float beta1, beta2, eps;            /* SGD: beta1 is the momentum */
    const struct neb_ctl *ctl;
};

/* Muon over `batch` matrices (rows, cols) of the slab. Matrix i begins at value at[i] of param, m, grad and shadow. With g
 * multiplied by ctl->clip:
 *   m = momentum m + g;  x = g + momentum m, divided by its norm (zeros stay zeros)
 *   `steps` times, with A = x x^T:  x = c0 x + c1 A x + c2 A^2 x,  in products of `type`
 *   p -= ctl->lr (scale x + decay p)
 * Nothing changes when ctl->nonfinite is set. src/optim/orthogonal.c has the composition from primitives. */
struct neb_muon_args {
    float *param, *m;
    const float *grad;
    void *shadow;      /* BF16 copy of param or NULL */
    const int64_t *at; /* (batch) device */
    int64_t batch, rows, cols;
    float momentum, scale, decay;
    float coefficient[3];
    int steps;
    neb_dtype type; /* F32 or BF16 */
    void *scratch;
    const struct neb_ctl *ctl;
};

#ifdef __cplusplus
}
#endif
#endif
