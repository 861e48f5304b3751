/* cuda.h: the CUDA device's own state and the declarations that its files share.
 *
 * The plug-in is one shared object that needs nothing of the program but include/nebula: errors and log lines
 * go through the host's callbacks. All work of the table goes to one compute stream, in the order of the
 * calls, so one workspace serves every kernel that needs memory for a moment (partial sums, cuBLASLt); only
 * large amounts are requested from the engine as scratch. "init succeeded => close is owed" holds for each
 * neb__cuda_X_init / _close pair. */
#ifndef NEB_CUDA_H
#define NEB_CUDA_H

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <nebula/device.h>
#include <nebula/log.h>
#include <pthread.h>
#include <stdio.h>

typedef __nv_bfloat16 bf16;

#define NEB_CUDA_FENCES      1024
#define NEB_CUDA_STAGES      16
#define NEB_CUDA_STAGE_BYTES ((size_t)1 << 20)
#define NEB_CUDA_WORK_BYTES  ((size_t)32 << 20)

struct neb_cuda_block {
    void *p;
    size_t bytes, asked;
    int used;
};

/* Memory obtained from the driver: blocks in use, and blocks kept for the next request of about their
 * size. */
struct neb_cuda_memory {
    pthread_mutex_t lock;
    struct neb_cuda_block *blocks;
    size_t n, cap;
    size_t limit, held, used, peak; /* bytes; held <= limit always */
};

/* Pinned buffers through which pageable uploads pass, and the fences of the side streams. */
struct neb_cuda_copies {
    char *stage; /* for uploads; the last one for downloads */
    cudaEvent_t stage_free[NEB_CUDA_STAGES];
    unsigned next_stage;
    pthread_mutex_t down_lock;
    cudaStream_t side[2]; /* downloads, uploads */
    cudaEvent_t reached[NEB_CUDA_FENCES], fence[NEB_CUDA_FENCES];
    uint64_t issued; /* fences handed out; the last is number `issued` */
    pthread_mutex_t lock;
};

struct neb_lt; /* matmul.cu */
struct comm;   /* exchange.cu */

struct neb_cuda {
    struct neb_device_config config;
    struct neb_device_host host;
    char name[96];
    int index; /* of the GPU */
    int sms, major, minor;
    size_t memory_total;
    cudaStream_t stream;
    int capturing;
    struct comm *forked; /* communicators whose side lane is not joined (exchange.cu) */
    int recorded_lanes;  /* the present recording has work of such a lane */
    struct neb_cuda_memory memory;
    struct neb_cuda_copies copies;
    void *work; /* NEB_CUDA_WORK_BYTES */
    struct neb_lt *lt;
};

/* ---- errors (device.cu) ---- */
neb_status neb__cuda_fail(const struct neb_cuda *dev, neb_status s, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void neb__cuda_log(const struct neb_cuda *dev, int level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
neb_status neb__cuda_error(const struct neb_cuda *dev, cudaError_t e, const char *what);

#define CUDA_TRY(dev, call)                                              \
    do {                                                                 \
        cudaError_t e_ = (call);                                         \
        if (e_ != cudaSuccess) return neb__cuda_error((dev), e_, #call); \
    } while (0)
#define NEB_TRY(expr)                \
    do {                             \
        neb_status s_ = (expr);      \
        if (s_ != NEB_OK) return s_; \
    } while (0)
/* After a kernel launch. */
#define CUDA_LAUNCHED(dev, what)                                        \
    do {                                                                \
        cudaError_t e_ = cudaGetLastError();                            \
        if (e_ != cudaSuccess) return neb__cuda_error((dev), e_, what); \
    } while (0)

static inline struct neb_cuda *neb__cuda(void *dev)
{
    return (struct neb_cuda *)dev;
}

static inline int64_t neb__ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static inline size_t neb__type_size(neb_dtype t)
{
    if (t == NEB_F32 || t == NEB_I32) return 4;
    return t == NEB_BF16 ? 2 : 1;
}

/* Runs `body` with T bound to the C++ type of an activation type. */
#define NEB_BY_TYPE(dev, type, what, ...)                                                               \
    do {                                                                                                \
        if ((type) == NEB_F32) {                                                                        \
            typedef float T;                                                                            \
            __VA_ARGS__;                                                                                \
        } else if ((type) == NEB_BF16) {                                                                \
            typedef bf16 T;                                                                             \
            __VA_ARGS__;                                                                                \
        } else                                                                                          \
            return neb__cuda_fail(dev, NEB_ERR_DTYPE, "cuda %s: type %d is neither F32 nor BF16", what, \
                                  (int)(type));                                                         \
    } while (0)

/* ---- memory, copies, graphs ---- */
neb_status neb__cuda_memory_init(struct neb_cuda *dev);
void neb__cuda_memory_close(struct neb_cuda *dev);
neb_status neb__cuda_alloc(void *dev, size_t bytes, void **out);
neb_status neb__cuda_try_alloc(struct neb_cuda *dev, size_t bytes, void **out); /* does not report failures */
void neb__cuda_free(void *dev, void *p);
neb_status neb__cuda_copies_init(struct neb_cuda *dev);
void neb__cuda_copies_close(struct neb_cuda *dev);
neb_status neb__cuda_host_alloc(void *dev, size_t bytes, void **out);
void neb__cuda_host_free(void *dev, void *p);
neb_status neb__cuda_upload(void *dev, void *dst, const void *src, size_t bytes);
neb_status neb__cuda_download(void *dev, void *dst, const void *src, size_t bytes);
neb_status neb__cuda_copy(void *dev, void *dst, const void *src, size_t bytes);
neb_status neb__cuda_fill(void *dev, void *dst, uint8_t byte, size_t bytes);
neb_status neb__cuda_sync(void *dev);
neb_status neb__cuda_side_download(void *dev, void *dst, const void *src, size_t bytes, uint64_t *fence);
neb_status neb__cuda_side_upload(void *dev, void *dst, const void *src, size_t bytes, uint64_t *fence);
neb_status neb__cuda_fence_done(void *dev, uint64_t fence, int *done);
neb_status neb__cuda_fence_wait(void *dev, uint64_t fence);
neb_status neb__cuda_fence_join(void *dev, uint64_t fence);
neb_status neb__cuda_graph_begin(void *dev);
neb_status neb__cuda_graph_end(void *dev, void **graph);
neb_status neb__cuda_graph_launch(void *dev, void *graph);
void neb__cuda_graph_free(void *dev, void *graph);
int64_t neb__cuda_scratch_bytes(void *dev, enum neb_slot slot, const void *args);

/* ---- matrix products (matmul.cu) ---- */

enum neb_cuda_epilogue {
    NEB_EPI_NONE,
    NEB_EPI_BIAS,          /* D = AB + bias over the rows of D */
    NEB_EPI_GELU_AUX_BIAS, /* aux = AB + bias; D = gelu_tanh(aux); bias may be NULL */
    NEB_EPI_DGELU,         /* D = AB * gelu_tanh'(aux) */
    NEB_EPI_DGELU_BGRAD,   /* and bias = row sums of D */
    NEB_EPI_RELU_BIAS,     /* D = max(AB + bias, 0); bias may be NULL */
};

/* Column-major, as in cuBLASLt: D (m, n) = alpha op(A) op(B) + beta D. */
struct neb_matmul {
    const void *a, *b;
    void *d;
    int64_t m, n, k, lda, ldb, ldd;
    int64_t batch, stride_a, stride_b, stride_d;
    int ta, tb;
    float alpha, beta;
    neb_dtype ab_type, d_type;
    enum neb_cuda_epilogue epilogue;
    void *bias; /* BIAS: input in D's type; BGRAD…: output in D's type */
    void *aux;  /* in D's type, ld_aux */
    int64_t ld_aux;
};

neb_status neb__lt_open(struct neb_cuda *dev);
void neb__lt_close(struct neb_cuda *dev);
neb_status neb__cuda_product(struct neb_cuda *dev, const struct neb_matmul *p);
/* 1 when the epilogue works for these shapes and pointers (and its algorithm is chosen); else 0. */
int neb__matmul_supported(struct neb_cuda *dev, const struct neb_matmul *p);
/* Microseconds that the product took when its algorithm was chosen; 0: not timed, < 0: not supported. */
float neb__matmul_micros(struct neb_cuda *dev, const struct neb_matmul *p);

/* The linear layer for at most four rows (few_rows.cu): 1 when it takes these shapes and pointers. */
int neb__cuda_is_few_rows(const struct neb_linear *l);
neb_status neb__cuda_few_rows(struct neb_cuda *dev, const struct neb_linear *l);

/* ---- reductions that several files finish with (reduce.cu) ---- */

/* out[c] (+)= sum over b in [0, n) of partial[b * stride + c], b increasing. */
neb_status neb__sum_partials(struct neb_cuda *dev, const float *partial, int64_t n, int64_t stride,
                             int64_t cols, float *out, int acc);
/* Adds per-row losses and marks to ctl, in row order. marks: bit 0 counts[0], bit 1 counts[1], 2, 3
 * likewise. */
neb_status neb__sum_losses(struct neb_cuda *dev, const float *loss, const uint8_t *marks, int64_t rows,
                           struct neb_ctl *ctl, int slot);
/* One launch of the cross-entropy over rows; losses and marks (rows) are written, not added up. */
neb_status neb__xent_rows(struct neb_cuda *dev, const struct neb_xent *a, float *loss, uint8_t *marks);
/* The same where processes share out the classes. every: (processes, rows). */
neb_status neb__class_rows(struct neb_cuda *dev, const struct neb_xent *a,
                           const struct neb_class_share *share, struct neb_class_sums *every, float *loss,
                           uint8_t *marks);

/* ---- the slots ---- */
neb_status neb__cuda_gemm(void *dev, const struct neb_gemm *);
neb_status neb__cuda_copy2d(void *dev, const struct neb_copy2d *);
neb_status neb__cuda_axpby(void *dev, const struct neb_axpby *);
neb_status neb__cuda_mul(void *dev, const struct neb_mul *);
neb_status neb__cuda_act(void *dev, const struct neb_act_args *);
neb_status neb__cuda_act_bwd(void *dev, const struct neb_act_args *);
neb_status neb__cuda_bias(void *dev, const struct neb_bias *);
neb_status neb__cuda_colsum(void *dev, const struct neb_colsum *);
neb_status neb__cuda_swiglu(void *dev, const struct neb_swiglu *);
neb_status neb__cuda_swiglu_bwd(void *dev, const struct neb_swiglu *);
neb_status neb__cuda_embed(void *dev, const struct neb_embed *);
neb_status neb__cuda_embed_bwd(void *dev, const struct neb_embed *);
neb_status neb__cuda_gather_rows(void *dev, const struct neb_rows *);
neb_status neb__cuda_scatter_rows(void *dev, const struct neb_rows *);
neb_status neb__cuda_pool(void *dev, const struct neb_pool_args *);
neb_status neb__cuda_pool_bwd(void *dev, const struct neb_pool_args *);
neb_status neb__cuda_rope(void *dev, const struct neb_rope *);
neb_status neb__cuda_dropout(void *dev, const struct neb_dropout_args *);
neb_status neb__cuda_attn_softmax(void *dev, const struct neb_attn_softmax *);
neb_status neb__cuda_attn_softmax_bwd(void *dev, const struct neb_attn_softmax *);
neb_status neb__cuda_attn_dropout(void *dev, const struct neb_attn_dropout *);
neb_status neb__cuda_norm(void *dev, const struct neb_norm *);
neb_status neb__cuda_norm_bwd(void *dev, const struct neb_norm_bwd *);
neb_status neb__cuda_xent(void *dev, const struct neb_xent *);
neb_status neb__cuda_bce(void *dev, const struct neb_bce *);
neb_status neb__cuda_mse(void *dev, const struct neb_pair_loss *);
neb_status neb__cuda_cosine(void *dev, const struct neb_pair_loss *);
neb_status neb__cuda_sumsq(void *dev, const struct neb_sumsq *);
neb_status neb__cuda_clip(void *dev, const struct neb_clip *);
neb_status neb__cuda_update(void *dev, const struct neb_update *);
neb_status neb__cuda_linear(void *dev, const struct neb_linear *);
neb_status neb__cuda_linear_bwd(void *dev, const struct neb_linear_bwd *);
neb_status neb__cuda_attn(void *dev, const struct neb_attn *);
neb_status neb__cuda_attn_bwd(void *dev, const struct neb_attn_bwd *);
neb_status neb__cuda_linear_xent(void *dev, const struct neb_linear_xent *);
neb_status neb__cuda_best(void *dev, const struct neb_best *);
neb_status neb__cuda_attn_listed(void *dev, const struct neb_attn_listed *);
neb_status neb__cuda_sample(void *dev, const struct neb_sample *);
neb_status neb__cuda_muon(void *dev, const struct neb_muon_args *);
neb_status neb__cuda_widen(void *dev, const struct neb_widen *);
neb_status neb__cuda_comm_facts(void *dev, struct neb_comm_facts *out);
neb_status neb__cuda_comm_id(void *dev, struct neb_comm_id *out);
neb_status neb__cuda_comm_open(void *dev, const struct neb_comm_place *place, void **comm);
neb_status neb__cuda_exchange(void *dev, void *comm, const struct neb_comm_exchange *);
neb_status neb__cuda_exchange_beside(void *dev, void *comm, const struct neb_comm_exchange *);
neb_status neb__cuda_exchange_join(void *dev, void *comm);
neb_status neb__cuda_join_lanes(struct neb_cuda *dev); /* all that are not */
neb_status neb__cuda_comm_state(void *dev, void *comm, struct neb_comm_state *out);
void neb__cuda_comm_abort(void *dev, void *comm);
void neb__cuda_comm_close(void *dev, void *comm);
int64_t neb__embed_bwd_scratch(struct neb_cuda *dev, const struct neb_embed *);
int64_t neb__attn_bwd_scratch(struct neb_cuda *dev, const struct neb_attn_bwd *);
int64_t neb__linear_bwd_scratch(struct neb_cuda *dev, const struct neb_linear_bwd *);
int64_t neb__linear_xent_scratch(struct neb_cuda *dev, const struct neb_linear_xent *);
int64_t neb__norm_bwd_scratch(struct neb_cuda *dev, const struct neb_norm_bwd *);
int64_t neb__muon_scratch(struct neb_cuda *dev, const struct neb_muon_args *);

#endif
