/* tape.h (internal): everything that the code of an op needs.
 *
 * An op's function checks its inputs, makes its outputs with neb__tensor_new(), fetches pointers with
 * neb__tensor_data() and calls the device with NEB_CALL. When a gradient may be wanted, it records a node.
 * Its backward fetches the outputs' gradients with neb__tensor_grad() and gives the inputs theirs with
 * neb__grad_out().
 *
 * Planning. Every allocation of a run has a number. Fetching a pointer marks the allocation as alive at the
 * present tick, and every device call ends a tick; so a run without the device calls (a "dry" run) yields the
 * exact lifetime of everything in forward and backward. No op declares a lifetime.
 *
 * Gradients. A gradient belongs to a root tensor and has its layout; a view's gradient is the same view of
 * the root's. Several tensors may share one gradient allocation (a residual sum passes its gradient on to
 * both sides); an op that adds to it copies it first. */
#ifndef NEB_TENSOR_TAPE_H
#define NEB_TENSOR_TAPE_H

#include "base/status.h"
#include "tensor/buffer.h"
#include "tensor/params.h"
#include "tensor/plan.h"

enum { NEB_NODE_IN = 8, NEB_NODE_OUT = 2, NEB_NODE_SAVED = 3, NEB_SCOPE = 96 };

struct neb_tensor {
    neb_dtype type;
    int ndim;
    int64_t shape[4];
    int64_t ld;       /* distance between rows in elements; rows = the first dimension */
    int alloc;        /* arena allocation, or -1: fixed */
    char *fixed;      /* memory outside the arena */
    size_t offset;    /* bytes into either */
    neb_param *param; /* a parameter's leaf, or NULL */
    neb_tensor *root; /* whose memory this is; itself unless a view */
    neb_tensor *pre;  /* with act: the pre-activation this tensor was made from */
    neb_act act;
    neb_param *bias;  /* with act: bias of the layer that made this tensor */
    bool needs_grad;  /* at root */
    bool grad_is_pre; /* the gradient has passed `act` already, and the bias has its share */
    int uses;         /* how many ops read it */
    int grad;         /* allocation of the gradient, or -1; at root */
};

struct neb_node {
    uint8_t op;
    uint8_t n_in, n_out;
    bool flag[3];
    neb_tensor *in[NEB_NODE_IN], *out[NEB_NODE_OUT], *saved[NEB_NODE_SAVED];
    neb_param *param[4];
    int64_t i[6];
    float f[4];
    uint32_t drop_op;
    void (*fn)(void);
    void *arg;
    char scope[NEB_SCOPE];
};

struct neb_op_def {
    const char *name;
    neb_status (*backward)(neb_tape *t, struct neb_node *n); /* NULL: the gradient was given in the forward */
};

struct neb_scope_frame {
    int length;     /* of the scope's text before this frame */
    uint32_t drops; /* dropouts seen in the enclosing frame */
};

/* A weight in the layout that the device's products read (packed.h). */
struct neb_packed {
    void *data; /* device; NULL: not packed yet */
    uint64_t generation;
};

/* Gradients that ranks add up while the last run of a step goes backwards. On a device that adds up in its streams, a recording of that
 * run contains all of it; a launch then takes the place of these calls. */
struct neb_grad_sums {
    void *arg;
    void (*begin)(
        void *
            arg); /* nothing of this run is added up: not by a recording that has yet to be launched, either */
    void (*ready)(void *arg, neb_param *p); /* p's gradient is complete */
    neb_status (*over)(void *arg); /* all are: the stream waits for all sums. NULL: runs cannot be recorded */
    void (*launched)(void *arg);   /* a recording did all of this */
};

struct neb_tape_slot;

struct neb_tape {
    neb_device *dev;
    neb_params *params;

    /* These belong to the present slot (slot.h), as do `run`, `plan`, `life` and the arena. */
    neb_tensor **chunks; /* of CHUNK tensors each; addresses never change */
    int n_chunks, n_tensors;
    struct neb_node *nodes;
    int n_nodes, cap_nodes;

    /* the run */
    const struct neb_run *run;
    neb_status failed;
    bool dry;       /* planning: no device calls */
    bool recording; /* nodes are kept */
    bool in_recompute;
    bool replaying; /* a recomputed block runs once more, in the backward: nobody reads its result */
    bool unread;    /* linear, linear_onto and residual record their nodes and compute nothing */
    int hold;       /* > 0: device calls belong to one tick */
    struct neb_plan *plan;
    struct neb_lifetimes life;
    char *arena;
    size_t arena_bytes;
    neb_tensor *row_sample, *row_position;
    int64_t team_rows; /* rows that a team shares (team.h); 0: every member has all */

    char scope[NEB_SCOPE];
    int scope_length;
    struct neb_scope_frame frames[16];
    int n_frames;
    uint32_t drops;

    struct neb_tape_slot
        *slots;        /* (n_slots) for micro-batches in flight; NULL: there is one, and it is here */
    int n_slots, slot; /* the present one */

    struct neb_plan *plans;
    struct neb_ctl *ctl;         /* device */
    struct neb_ctl *ctl_copy[2]; /* device, for downloading while the next step runs */
    struct neb_ctl *ctl_before;  /* device: as it was before the run */
    struct neb_ctl *ctl_host[2];
    uint64_t fence[2];
    bool pending[2];
    int turn;
    struct neb_ctl arrived;

    bool keep_packed;
    struct {
        struct neb_packed *list; /* (count), by the parameters' numbers */
        int count;
        uint64_t generation;
    } packed;

    bool fallback, force_reference, poison, graphs;
    uint32_t warned; /* slots whose fallback was announced */
    neb_grad_ready_fn grad_ready;
    void *grad_ready_arg;
    const struct neb_grad_sums *sums; /* NULL: none */
    bool some_complete;               /* a parameter waits to be announced */
    bool announced;                   /* grad_ready was called in this run */
    void (*on_call)(void *arg);       /* neb__tape_on_call() */
    void *on_call_arg;
    neb_status (*may_run)(void *arg); /* neb__tape_ask_first() */
    void *may_run_arg;
};

/* Reports an error with scope and op in front, and makes the run fail with it. Returns the status. */
neb_status neb__tape_fail(neb_tape *t, neb_status s, const char *op, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* A tensor in the arena, contiguous. NULL on failure (sticky). */
neb_tensor *neb__tensor_new(neb_tape *t, neb_dtype type, int ndim, const int64_t *shape);
neb_tensor *neb__tensor_new2(neb_tape *t, neb_dtype type, int64_t rows, int64_t cols);
neb_tensor *neb__tensor_new1(neb_tape *t, neb_dtype type, int64_t n);
/* A contiguous tensor over memory outside the arena. */
neb_tensor *neb__tensor_fixed(neb_tape *t, neb_dtype type, int ndim, const int64_t *shape,
                              const void *memory);
/* A view of x; shape, ld and offset are then set by the caller. */
neb_tensor *neb__tensor_alias(neb_tape *t, neb_tensor *x);

void *neb__tensor_data(neb_tape *t, neb_tensor *x);        /* NULL for NULL */
const float *neb__param_master(neb_tape *t, neb_param *p); /* F32 values of a parameter; NULL for NULL */
const void *neb__param_working(neb_tape *t, neb_param *p); /* its values in the compute type; NULL for NULL */

/* Inside a block of neb_op_recompute(): `on` says that nobody reads the values of the products and sums that follow, not even
 * their own backward. They are left out where the block runs once more in the backward. */
void neb__tape_unread(neb_tape *t, bool on);

/* Ops read a narrow weight's code as it is: BF16 where the device computes in BF16. */
bool neb__param_direct(const neb_tape *t, const neb_param *p);

const void *neb__packed_weight(neb_tape *t, neb_param *w); /* its copy for products, or NULL (packed.h) */
void neb__tape_free_packed(neb_tape *t);

int64_t neb__tensor_rows(const neb_tensor *x);
int64_t neb__tensor_cols(const neb_tensor *x); /* product of all dimensions but the first */
int64_t neb__tensor_count(const neb_tensor *x);
bool neb__tensor_contiguous(const neb_tensor *x);
bool neb__tensor_is_whole(const neb_tensor *x); /* covers its root, in the root's layout */

/* Shape and type checks with messages; false: the run has failed. A tensor that is NULL comes from a failed
 * op or is the caller's mistake. */
bool neb__tape_require(neb_tape *t, const char *op, const char *what, const void *x);
bool neb__tape_want(neb_tape *t, const char *op, const char *what, const neb_tensor *x, neb_dtype type,
                    int64_t rows, int64_t cols); /* rows or cols -1: any */
bool neb__tape_want_act(neb_tape *t, const char *op, const char *what, const neb_tensor *x, int64_t rows,
                        int64_t cols);

int neb__tape_take(neb_tape *t, size_t bytes);        /* an allocation's number, or -1 (sticky) */
char *neb__tape_address(neb_tape *t, int allocation); /* and that it is alive now */

/* Scratch memory for one call: lives for this tick only. */
void *neb__tape_temp(neb_tape *t, int64_t bytes);
void *neb__tape_scratch(neb_tape *t, enum neb_slot slot, const void *args);

/* Records a node for outputs that need a gradient. Returns NULL when there is nothing to record, or on
 * failure. Counts uses. */
struct neb_node *neb__tape_record(neb_tape *t, int op, int n_in, neb_tensor *const *in, int n_out,
                                  neb_tensor *const *out);
bool neb__tape_wants_grad(const neb_tape *t); /* this run records */
void neb__tensor_use(neb_tensor *x);          /* x is read by something that leaves no node */

/* The gradient of x for reading, or NULL when nothing reached it. */
void *neb__tensor_grad(neb_tape *t, neb_tensor *x);
/* Returns the memory for x's gradient, or NULL when x needs no gradient. *acc: add to its content. */
void *neb__grad_out(neb_tape *t, neb_tensor *x, int *acc);
/* The same for a device call that can only overwrite: *temp is set to an allocation that neb__grad_add()
 * adds. */
void *neb__grad_overwrite(neb_tape *t, neb_tensor *x, int *temp);
neb_status neb__grad_add(neb_tape *t, neb_tensor *x, int temp);
/* Gives x the gradient of `from`, which is whole, to share. Adds when x has a gradient already. */
neb_status neb__grad_share(neb_tape *t, neb_tensor *x, neb_tensor *from);
/* Makes x's gradient its own, so that it may be changed in place. NULL when nothing reached it. */
void *neb__grad_own(neb_tape *t, neb_tensor *x);
/* A gradient for x, content undefined. The caller writes all of it; x has no gradient yet. */
void *neb__grad_new(neb_tape *t, neb_tensor *x);
/* A parameter's gradient; NULL when frozen or absent. It counts a contribution, so call it once per backward
 * of a node. */
float *neb__param_grad(neb_tape *t, neb_param *p, int *acc);

struct neb_dropout neb__dropout_spec(neb_tape *t, float p, uint32_t op, neb_tensor *sample,
                                     neb_tensor *position);
uint32_t neb__tape_drop_op(neb_tape *t); /* a name for the next dropout */

/* The outcome of a device call; `called` ends the tick as well. */
neb_status neb__tape_done(neb_tape *t, neb_status s);
neb_status neb__tape_called(neb_tape *t, neb_status s);
#define NEB_CALL(t, slot, args) \
    neb__tape_called(t, (t)->dry ? NEB_OK : (t)->dev->ops->slot((t)->dev->ctx, args))

/* The status of a failed run; NEB_OK in a dry one; else that of the call. */
#define NEB_UNLESS_FAILED(t, slot, args) \
    ((t)->failed != NEB_OK || (t)->dry ? (t)->failed : (t)->dev->ops->slot((t)->dev->ctx, args))

/* A fused slot, or its reference (fallback.h). */
#define NEB_FUSED(t, slot, args)                                    \
    (neb__tape_use_reference(t, (t)->dev->ops->slot != NULL, #slot) \
         ? neb__tape_called(t, neb__reference_##slot(t, args))      \
         : neb__tape_called(t, NEB_UNLESS_FAILED(t, slot, args)))
bool neb__tape_use_reference(neb_tape *t, bool has, const char *slot);

/* From the next run on; NULL: no more. `sums` stays where it is. */
void neb__tape_add_up(neb_tape *t, const struct neb_grad_sums *sums);

/* fn is called after every device call of a run. NULL: nothing is. */
void neb__tape_on_call(neb_tape *t, void (*fn)(void *arg), void *arg);

/* fn is asked before every run, and a run that it refuses does not begin: a recording may hold exchanges with ranks that are lost
 * by now. NULL: nobody is asked. */
void neb__tape_ask_first(neb_tape *t, neb_status (*fn)(void *arg), void *arg);

/* For tests: every fused slot is composed from primitives. */
void neb__tape_force_reference(neb_tape *t, bool on);

void neb__tape_announce(neb_tape *t); /* gradients that are complete now */
void neb__tape_announce_one(neb_tape *t, neb_param *p);

/* Parts of a run (tape.c), for slot.c. neb__tape_planned() finds the plan of a run, or makes it, and calls
 * `compute` with it. A model that does something else under a known key is planned anew, once. */
typedef neb_status (*neb_compute_fn)(neb_tape *t, const struct neb_run *run, struct neb_plan *plan);
neb_status neb__tape_planned(neb_tape *t, const struct neb_run *run, neb_compute_fn compute);
neb_status neb__tape_forward_part(neb_tape *t, const struct neb_run *run, struct neb_plan *plan);
neb_status neb__tape_backward_part(neb_tape *t);

/* The backward of nodes [first, n_nodes), last to first. */
neb_status neb__tape_backward(neb_tape *t, int first);

enum neb_op_code {
#define NEB_OPS(X) \
    X(embed)       \
    X(linear)      \
    X(linear_onto) \
    X(matmul)      \
    X(norm)        \
    X(residual)    \
    X(dropout)     \
    X(mul)         \
    X(scale)       \
    X(act)         \
    X(swiglu)      \
    X(copy)        \
    X(gather)      \
    X(scatter)     \
    X(pool)        \
    X(rope) X(attention) X(recompute) X(weight) X(stage_in) X(stage_out) X(enter) X(leave) X(scale_columns)
#define NEB__X(name) NEB_OPCODE_##name,
    NEB_OPS(NEB__X)
#undef NEB__X
        NEB_OPCODES
};
#define NEB__X(name) neb_status neb__backward_##name(neb_tape *t, struct neb_node *n);
NEB_OPS(NEB__X)
#undef NEB__X

#endif
