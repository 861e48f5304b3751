/* device.h: the boundary between Nebula-I and a compute device, and the ABI of device plug-ins.
 *
 * A device is a `const struct neb_device_ops` of function pointers and a context. The CPU device is built in;
 * any other (CUDA, an NPU) is a shared object that exports
 *
 *     const struct neb_device_ops *neb_device_plugin(uint32_t abi);
 *
 * and returns NULL when it cannot serve that ABI version. docs/device.md explains how to write one.
 *
 * This header defines the table. It includes the headers with the slots' argument structs: device_types.h,
 * device_compute.h (forward and backward), device_learn.h (losses, optimizer), device_narrow.h (weights in few
 * bits), device_exchange.h and device_generate.h.
 *
 * The contract
 *  - Every pointer in an argument struct points to memory of this device, unless its comment says host.
 *  - A call enqueues work on the device's one compute stream and returns; work runs in the order of the
 *    calls. A failure that shows later is returned by the next call or by sync(). Only sync(), download(),
 *    fence_wait() and the allocation calls wait for the device.
 *  - Matrices are row-major; `ld…` is the distance between rows in elements. "(a, b)" beside a pointer is its
 *    shape.
 *  - Activations are F32 or BF16, fixed at open(). Statistics, losses, gradients of parameters and optimizer
 *    state are always F32. Weights of matrix products come in the activations' type.
 *  - An `acc_…` flag beside a gradient says what happens to its memory: 0 overwrites it, 1 adds to it. The
 *    flag of a parameter's gradient is 0 for the first write of a step. A gradient without a flag is
 *    overwritten, except where its comment says `+=`.
 *  - Slots marked [fused] may be NULL: the engine then composes the op from the primitives if the job allows
 *    it, and refuses it otherwise. Slots marked [optional] may be NULL without loss of function.
 *  - `scratch` members: the engine calls scratch_bytes() with the arguments of the coming call and passes
 *    that much memory (256-byte aligned) to the call. scratch_bytes() may test a pointer for NULL but must
 *    not dereference it, except for a struct on the host. The content of scratch is undefined on entry and on exit.
 *
 * Dropout. An element is kept when its 16 random bits are >= threshold; kept values are multiplied by 65536 /
 * (65536 - threshold). The bits come from Philox4x32-10 with key {ctl->seed, op} and the counter
 *     activations:  {column / 8,                 position, sample, ctl->step}
 *     attention:    {head << 20 | key pos / 8,   query position, sample, ctl->step}
 * where positions count inside the sequence. The four output words hold eight 16-bit lanes: lane j = (column
 * or key pos) % 8 is (word[j / 2] >> 16 * (j % 2)) & 0xffff. So the mask depends on neither packing nor
 * device nor thread count.
 */
#ifndef NEBULA_DEVICE_H
#define NEBULA_DEVICE_H

#include <nebula/device_compute.h>
#include <nebula/device_exchange.h>
#include <nebula/device_generate.h>
#include <nebula/device_learn.h>
#include <nebula/device_narrow.h>
#include <nebula/device_slots.h>
#include <nebula/device_types.h>
#include <nebula/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NEB_DEVICE_ABI 9u

/* ---- the table ----------------------------------------------------------------------------------------- */

enum neb_slot { /* for scratch_bytes */
                NEB_SLOT_EMBED_BWD,
                NEB_SLOT_NORM_BWD,
                NEB_SLOT_LINEAR,
                NEB_SLOT_LINEAR_BWD,
                NEB_SLOT_ATTN,
                NEB_SLOT_ATTN_BWD,
                NEB_SLOT_LINEAR_XENT,
                NEB_SLOT_SUMSQ,
                NEB_SLOT_MUON,
                NEB_SLOT_ATTN_BIASED,
                NEB_SLOT_ATTN_BIASED_BWD,
};

/* Functions of the program that a plug-in may call; it cannot see the program's internals. Both may be called
 * from any thread and outlive the device. `fail` stores the message for neb_last_error(), logs it, and
 * returns the status it was given. `log` takes a neb_log_level (nebula/log.h) and one line. */
struct neb_device_host {
    neb_status (*fail)(neb_status status, const char *message);
    void (*log)(int level, const char *line);
};

struct neb_device_config {
    neb_dtype compute;                  /* activations: F32 or BF16 */
    int threads;                        /* CPU: 0 = one per core */
    int index;                          /* which device of this kind */
    int64_t memory_limit;               /* bytes; 0: the device's own size. A hard cap */
    int deterministic;                  /* 1: the same bits every time, at any cost in speed */
    int tf32;                           /* 1: F32 products may use TF32 */
    const char *isa;                    /* CPU: "avx512", "avx2", "plain"; NULL: the best this machine has */
    const struct neb_device_host *host; /* set by the loader; NULL: the plug-in reports no messages */
    int spread; /* 1: index counts round the devices that there are; processes of one machine share them out */
};

struct neb_device_info {
    char description[128];
    int64_t memory_total, memory_used, memory_peak;
    int asynchronous; /* calls return before the work is done */
};

struct neb_device_ops {
    uint32_t abi;     /* NEB_DEVICE_ABI */
    uint32_t size;    /* sizeof(struct neb_device_ops) */
    const char *name; /* "cpu", "cuda", "opencl" */

    neb_status (*open)(const struct neb_device_config *config, void **dev);
    void (*close)(void *dev);
    void (*info)(void *dev, struct neb_device_info *out);

    /* Memory, 256-byte aligned, not cleared. The message of NEB_ERR_NOMEM says how much was requested and how
     * much is held. */
    neb_status (*alloc)(void *dev, size_t bytes, void **out);
    void (*free)(void *dev, void *p);
    /* Host memory that copies fast to and from the device. [optional] */
    neb_status (*host_alloc)(void *dev, size_t bytes, void **out);
    void (*host_free)(void *dev, void *p);
    /* upload returns when `src` (host) may be reused; the copy runs in stream order. download waits for the
     * stream and for the copy. */
    neb_status (*upload)(void *dev, void *dst, const void *src, size_t bytes);
    neb_status (*download)(void *dev, void *dst, const void *src, size_t bytes);
    neb_status (*copy)(void *dev, void *dst, const void *src, size_t bytes); /* both on the device */
    neb_status (*fill)(void *dev, void *dst, uint8_t byte, size_t bytes);
    neb_status (*sync)(void *dev);

    /* Asynchronous copies to and from host_alloc memory on a side stream. They start when everything enqueued
     * so far is done, and they do not hold up the compute stream. A copy is complete when `fence_done` says
     * so (1 done, 0 not yet) or after fence_wait. `fence_join` makes the compute stream wait for it.
     * [optional, all or none] */
    neb_status (*side_download)(void *dev, void *dst, const void *src, size_t bytes, uint64_t *fence);
    neb_status (*side_upload)(void *dev, void *dst, const void *src, size_t bytes, uint64_t *fence);
    neb_status (*fence_done)(void *dev, uint64_t fence, int *done);
    neb_status (*fence_wait)(void *dev, uint64_t fence);
    neb_status (*fence_join)(void *dev, uint64_t fence);

    /* Record a sequence of calls once and replay it. Between begin and end no call may allocate, upload,
     * download or sync. [optional, all or none] */
    neb_status (*graph_begin)(void *dev);
    neb_status (*graph_end)(void *dev, void **graph);
    neb_status (*graph_launch)(void *dev, void *graph);
    void (*graph_free)(void *dev, void *graph);

    int64_t (*scratch_bytes)(void *dev, enum neb_slot slot, const void *args); /* [optional]: NULL means 0 */

    /* primitives: all required, unless flags say NEB_DEVICE_HOST_PRIMITIVES */
    neb_status (*gemm)(void *dev, const struct neb_gemm *);
    neb_status (*copy2d)(void *dev, const struct neb_copy2d *);
    neb_status (*axpby)(void *dev, const struct neb_axpby *);
    neb_status (*mul)(void *dev, const struct neb_mul *);
    neb_status (*act)(void *dev, const struct neb_act_args *);
    neb_status (*act_bwd)(void *dev, const struct neb_act_args *);
    neb_status (*bias)(void *dev, const struct neb_bias *);
    neb_status (*colsum)(void *dev, const struct neb_colsum *);
    neb_status (*swiglu)(void *dev, const struct neb_swiglu *);
    neb_status (*swiglu_bwd)(void *dev, const struct neb_swiglu *);
    neb_status (*embed)(void *dev, const struct neb_embed *);
    neb_status (*embed_bwd)(void *dev, const struct neb_embed *);
    neb_status (*gather_rows)(void *dev, const struct neb_rows *);
    neb_status (*scatter_rows)(void *dev, const struct neb_rows *);
    neb_status (*pool)(void *dev, const struct neb_pool_args *);
    neb_status (*pool_bwd)(void *dev, const struct neb_pool_args *);
    neb_status (*rope)(void *dev, const struct neb_rope *);
    neb_status (*dropout)(void *dev, const struct neb_dropout_args *);
    neb_status (*attn_softmax)(void *dev, const struct neb_attn_softmax *);
    neb_status (*attn_softmax_bwd)(void *dev, const struct neb_attn_softmax *);
    neb_status (*attn_dropout)(void *dev, const struct neb_attn_dropout *);
    neb_status (*norm)(void *dev, const struct neb_norm *); /* residual NULL: the primitive */
    neb_status (*norm_bwd)(void *dev,
                           const struct neb_norm_bwd *); /* ds_in NULL, no dropout: the primitive */
    neb_status (*xent)(void *dev, const struct neb_xent *);
    neb_status (*bce)(void *dev, const struct neb_bce *);
    neb_status (*mse)(void *dev, const struct neb_pair_loss *);
    neb_status (*cosine)(void *dev, const struct neb_pair_loss *);
    neb_status (*sumsq)(void *dev, const struct neb_sumsq *);
    neb_status (*clip)(void *dev, const struct neb_clip *);
    neb_status (*update)(void *dev,
                         const struct neb_update *); /* multi-tensor, fused: one pass over the slab */

    /* fused slots */
    neb_status (*norm_residual)(void *dev, const struct neb_norm *); /* [fused] with residual, dropout */
    neb_status (*norm_residual_bwd)(void *dev, const struct neb_norm_bwd *); /* [fused] */
    neb_status (*linear)(void *dev, const struct neb_linear *);              /* [fused] */
    neb_status (*linear_bwd)(void *dev, const struct neb_linear_bwd *);      /* [fused] */
    neb_status (*attn)(void *dev, const struct neb_attn *);                  /* [fused] */
    neb_status (*attn_bwd)(void *dev, const struct neb_attn_bwd *);          /* [fused] */
    neb_status (*linear_xent)(void *dev, const struct neb_linear_xent *);    /* [fused] */

    /* for generating text */
    neb_status (*best)(void *dev, const struct neb_best *); /* [optional]: without it the host finds them */
    /* [optional, both or none] */
    int64_t (*packed_bytes)(void *dev, int64_t out, int64_t in, neb_dtype type);
    neb_status (*pack_linear)(void *dev, const struct neb_pack_linear *);
    neb_status (*attn_listed)(void *dev,
                              const struct neb_attn_listed *); /* [optional]: without it rows are moved */

    /* for replaced-token detection */
    neb_status (*sample)(void *dev, const struct neb_sample *); /* [optional]: without it the host draws */

    /* for Muon */
    neb_status (*muon)(void *dev,
                       const struct neb_muon_args *); /* [optional]: composed from primitives without it */

    /* Exchanges with the devices of other processes (device_exchange.h). comm_facts() and comm_id() return
     * NEB_ERR_NOTFOUND, without a message, where the library for it is missing. comm_open() waits for the other
     * ranks, at most `timeout_s`. comm_state() and comm_abort() may be called from any thread; after an abort,
     * exchanges that wait end with undefined values, and new ones fail. [optional, all or none: without them
     * values go through the host] */
    neb_status (*comm_facts)(void *dev, struct neb_comm_facts *out);
    neb_status (*comm_id)(void *dev, struct neb_comm_id *out);
    neb_status (*comm_open)(void *dev, const struct neb_comm_place *place, void **comm);
    neb_status (*exchange)(void *dev, void *comm, const struct neb_comm_exchange *);
    neb_status (*comm_state)(void *dev, void *comm, struct neb_comm_state *out);
    void (*comm_abort)(void *dev, void *comm);
    void (*comm_close)(void *dev, void *comm);

    /* Says what device number `index` is (0, 1, …) without opening it: its description, and in memory_total its
     * memory. NEB_ERR_NOTFOUND after the last one. `host` may be NULL. [optional]: without it only device 0 is
     * listed. */
    neb_status (*probe)(int index, const struct neb_device_host *host, struct neb_device_info *out);

    uint32_t flags; /* NEB_DEVICE_… or 0 */

    /* for frozen weights in few bits (device_narrow.h). Without `widen` there are none; without the other two
     * [optional, both or none] a weight is widened into memory of the run before each product. */
    neb_status (*widen)(void *dev, const struct neb_widen *);
    neb_status (*linear_narrow)(void *dev, const struct neb_linear_narrow *);
    neb_status (*linear_narrow_bwd)(void *dev, const struct neb_linear_narrow_bwd *);

    /* Exchanges beside the compute stream. One begins when everything enqueued so far is done and those that this comm began
     * beside it before are over; the compute stream goes on. exchange_join() has it wait for all of them. Until then nothing
     * else touches the values. A recording that contains one contains its join. [optional, both or none] */
    neb_status (*exchange_beside)(void *dev, void *comm, const struct neb_comm_exchange *);
    neb_status (*exchange_join)(void *dev, void *comm);

    /* for relative positions: attention with a bias for distances. [optional, both or none]: without them such a model is refused */
    neb_status (*attn_biased)(void *dev, const struct neb_attn_biased *);
    neb_status (*attn_biased_bwd)(void *dev, const struct neb_attn_biased_bwd *);
};

/* For a plug-in in the making: a primitive that is NULL is computed on the host, with copies in both directions. */
#define NEB_DEVICE_HOST_PRIMITIVES 1u
/* xent, and linear_xent where there is one, know neb_targets.judged; the engine asks no other device for it. */
#define NEB_DEVICE_JUDGED 2u

typedef const struct neb_device_ops *(*neb_device_plugin_fn)(uint32_t abi);

#ifdef __cplusplus
}
#endif
#endif
