/* opencl.h (of the plug-in): the device's state and the functions that its files share. The plug-in includes nothing of
 * the program but nebula/device.h.
 *
 * Every call of the table takes the device's lock for the time in which it sets a kernel's arguments and enqueues it:
 * OpenCL allows one thread at a time to set a kernel's arguments. */
#ifndef NEB_OCL_OPENCL_H
#define NEB_OCL_OPENCL_H

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <nebula/device.h>
#include <pthread.h>
#include <stdbool.h>

#define NEB_TRY(call)                \
    do {                             \
        neb_status s_ = (call);      \
        if (s_ != NEB_OK) return s_; \
    } while (0)

/* ---- memory: an address stands for a place in a buffer ---- */

struct neb_ocl_block {
    char *base; /* addresses that nothing else in the process has */
    size_t bytes;
    cl_mem mem;
};

struct neb_ocl_memory {
    struct neb_ocl_block *block; /* by increasing address */
    size_t n, room, recent;      /* recent: the block found last */
    size_t limit, used, peak;
};

/* Memory of the plug-in's own, grown when needed. */
enum { NEB_OCL_WORK_A, NEB_OCL_WORK_B, NEB_OCL_WORK_SPLIT, NEB_OCL_WORK_PARTS, NEB_OCL_WORKS };
struct neb_ocl_work {
    cl_mem mem;
    size_t bytes;
};

/* ---- kernels ---- */

enum neb_ocl_module {
    NEB_OCL_ELEMENTWISE,
    NEB_OCL_ROWS,
    NEB_OCL_NORM,
    NEB_OCL_LOSS,
    NEB_OCL_UPDATE,
    NEB_OCL_ATTN,
    NEB_OCL_ATTN_REF,
    NEB_OCL_GEMM,
    NEB_OCL_MODULES
};

/* A program is a module compiled with a variant: bit 0 is set for bf16; what the others mean, its module says. */
struct neb_ocl_program {
    enum neb_ocl_module module;
    uint32_t variant;
    cl_program program;
};
struct neb_ocl_kernel {
    const char *name; /* a literal */
    enum neb_ocl_module module;
    uint32_t variant;
    cl_kernel kernel;
};
struct neb_ocl_kernels {
    struct neb_ocl_program *program;
    struct neb_ocl_kernel *kernel;
    size_t programs, program_room, kernels, kernel_room;
    char folder[512]; /* of the cache on disk; "": none */
    char key[600];    /* platform, device and driver */
};

/* How the kernels are cut for this device: see kernels/common.cl. */
struct neb_ocl_cut {
    int vw, wg, span, cols, aw, embed_block;
};

/* One launch: a kernel, its arguments and its range. */
enum { NEB_OCL_ARGS = 64 };
struct neb_ocl_arg {
    size_t size;
    union {
        cl_mem mem;
        cl_long l;
        cl_int i;
        cl_uint u;
        cl_float f;
    } v;
};
struct neb_ocl_launch {
    struct neb_ocl *dev;
    const char *name;
    cl_kernel kernel;
    neb_status status; /* the first error; later calls do nothing */
    int n;
    struct neb_ocl_arg arg[NEB_OCL_ARGS];
    size_t global[3], local[3];
    bool local_given;
};

/* ---- copies ---- */

enum { NEB_OCL_STAGES = 8, NEB_OCL_STAGE_BYTES = 1 << 20, NEB_OCL_FENCES = 256 };
struct neb_ocl_copies {
    char *stage;
    cl_event stage_free[NEB_OCL_STAGES];
    cl_event fence[NEB_OCL_FENCES];
    unsigned next_stage;
    uint64_t issued;
    cl_command_queue side[2];
    struct neb_ocl_pinned *pinned;
};

/* ---- products ---- */

enum { NEB_OCL_CHUNK = 16 }; /* steps of k that fp16 adds up before float takes over: KC in kernels/gemm.cl */
struct neb_ocl_tile {
    int a, b;          /* rows and columns of a panel: PA, PB */
    int lanes, mr, nv; /* CPU */
    int kt;            /* steps of k at a time; k is padded to them */
    bool half;         /* multiplies in fp16 */
};
enum neb_ocl_fp16 { NEB_OCL_FP16_NEVER, NEB_OCL_FP16_MEASURED, NEB_OCL_FP16_ALWAYS };
struct neb_ocl_tuning {
    bool ready, done; /* there are tiles; they were measured */
    int tile[2][2];   /* [a factor is bf16][few tiles] */
};

struct neb_ocl_recording;

struct neb_ocl {
    struct neb_device_config config;
    struct neb_device_host host;
    cl_platform_id platform;
    cl_device_id id;
    cl_context context;
    cl_command_queue queue;
    char name[96], platform_name[64], driver[64], version[64];
    cl_uint units;
    cl_ulong memory_total, largest;
    bool cpu, subgroups;
    const char *language; /* of the kernels */
    enum neb_ocl_fp16 fp16;
    struct neb_ocl_cut cut;
    pthread_mutex_t lock;
    struct neb_ocl_memory memory;
    struct neb_ocl_work work[NEB_OCL_WORKS];
    struct neb_ocl_work *retired; /* outgrown, but named by recordings */
    size_t n_retired;
    struct neb_ocl_kernels kernels;
    struct neb_ocl_copies copies;
    struct neb_ocl_tuning tuning;
    struct neb_ocl_rope *rope;
    struct neb_ocl_recording *recording; /* not NULL between graph_begin and graph_end */
};

static inline struct neb_ocl *neb__ocl(void *ctx)
{
    return (struct neb_ocl *)ctx;
}
static inline int64_t neb__ocl_ceil(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}
static inline size_t neb__ocl_size(neb_dtype t)
{
    if (t == NEB_F32 || t == NEB_I32) return 4;
    return t == NEB_BF16 ? 2 : 1;
}

/* device.c */
neb_status neb__ocl_fail(const struct neb_ocl *dev, neb_status s, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void neb__ocl_log(const struct neb_ocl *dev, int level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
neb_status neb__ocl_error(const struct neb_ocl *dev, cl_int e, const char *what);
const char *neb__ocl_error_name(cl_int e);
neb_status neb__ocl_type(const struct neb_ocl *dev, const char *op, neb_dtype type);

/* choose.c: devices are numbered over all platforms, in the order in which OpenCL lists them. */
neb_status neb__ocl_choose(struct neb_ocl *dev);
neb_status neb__ocl_probe(int index, const struct neb_device_host *host, struct neb_device_info *out);

/* memory.c */
neb_status neb__ocl_memory_open(struct neb_ocl *dev);
void neb__ocl_memory_close(struct neb_ocl *dev);
neb_status neb__ocl_alloc(void *ctx, size_t bytes, void **out);
void neb__ocl_free(void *ctx, void *p);
/* The buffer and the offset of p; with the lock held. Fails when [p, p + bytes) is no part of one allocation. */
neb_status neb__ocl_find(struct neb_ocl *dev, const void *p, size_t bytes, cl_mem *mem, size_t *offset);
neb_status neb__ocl_work(struct neb_ocl *dev, int which, size_t bytes, cl_mem *out);

/* program.c, cache.c, sha256.c */
neb_status neb__ocl_kernel(struct neb_ocl *dev, enum neb_ocl_module module, uint32_t variant,
                           const char *name, cl_kernel *out);
void neb__ocl_kernels_close(struct neb_ocl *dev);
void neb__ocl_cache_open(struct neb_ocl *dev);
/* *bytes is malloc'ed; false: not there, or not to be trusted. `key` is the whole text that the bytes belong to. */
bool neb__ocl_cache_read(const struct neb_ocl *dev, const char *key, unsigned char **bytes, size_t *n);
void neb__ocl_cache_write(const struct neb_ocl *dev, const char *key, const void *bytes, size_t n);
void neb__ocl_sha256(const void *bytes, size_t n, unsigned char digest[32]);

/* launch.c */
struct neb_ocl_launch neb__ocl_begin(struct neb_ocl *dev, enum neb_ocl_module module, uint32_t variant,
                                     const char *name);
void neb__ocl_ptr(struct neb_ocl_launch *l, const void *p, size_t size); /* of one value; NULL is allowed */
void neb__ocl_mem(struct neb_ocl_launch *l, cl_mem mem);
void neb__ocl_mem_at(struct neb_ocl_launch *l, cl_mem mem, int64_t first); /* its value `first` */
void neb__ocl_long(struct neb_ocl_launch *l, int64_t v);
void neb__ocl_int(struct neb_ocl_launch *l, int v);
void neb__ocl_uint(struct neb_ocl_launch *l, uint32_t v);
void neb__ocl_float(struct neb_ocl_launch *l, float v);
/* Work-items; with a local size they are groups times that size. */
neb_status neb__ocl_run(struct neb_ocl_launch *l, int64_t x, int64_t y, int64_t z);
neb_status neb__ocl_run_groups(struct neb_ocl_launch *l, int64_t gx, int64_t gy, int64_t gz, int lx, int ly);
/* An element-wise kernel over `rows` rows of n values; a row kernel over `rows` rows and `more` planes. */
neb_status neb__ocl_run_each(struct neb_ocl_launch *l, int64_t n, int64_t rows);
neb_status neb__ocl_run_rows(struct neb_ocl_launch *l, int64_t rows, int64_t more);
neb_status neb__ocl_enqueue(const struct neb_ocl_launch *l);

/* copies.c */
neb_status neb__ocl_copies_open(struct neb_ocl *dev);
void neb__ocl_copies_close(struct neb_ocl *dev);
neb_status neb__ocl_host_alloc(void *ctx, size_t bytes, void **out);
void neb__ocl_host_free(void *ctx, void *p);
neb_status neb__ocl_upload(void *ctx, void *dst, const void *src, size_t bytes);
neb_status neb__ocl_download(void *ctx, void *dst, const void *src, size_t bytes);
neb_status neb__ocl_copy(void *ctx, void *dst, const void *src, size_t bytes);
neb_status neb__ocl_fill(void *ctx, void *dst, uint8_t byte, size_t bytes);
neb_status neb__ocl_sync(void *ctx);
neb_status neb__ocl_side_download(void *ctx, void *dst, const void *src, size_t bytes, uint64_t *fence);
neb_status neb__ocl_side_upload(void *ctx, void *dst, const void *src, size_t bytes, uint64_t *fence);
neb_status neb__ocl_fence_done(void *ctx, uint64_t fence, int *done);
neb_status neb__ocl_fence_wait(void *ctx, uint64_t fence);
neb_status neb__ocl_fence_join(void *ctx, uint64_t fence);

/* record.c */
neb_status neb__ocl_graph_begin(void *ctx);
neb_status neb__ocl_graph_end(void *ctx, void **graph);
neb_status neb__ocl_graph_launch(void *ctx, void *graph);
void neb__ocl_graph_free(void *ctx, void *graph);
/* While recording, the three remember instead of enqueueing. */
neb_status neb__ocl_record_launch(struct neb_ocl *dev, const struct neb_ocl_launch *l);
neb_status neb__ocl_record_copy(struct neb_ocl *dev, cl_mem dst, size_t to, cl_mem src, size_t from,
                                size_t bytes);
neb_status neb__ocl_record_fill(struct neb_ocl *dev, cl_mem dst, size_t to, uint8_t byte, size_t bytes);
void neb__ocl_record_drop(struct neb_ocl *dev);
neb_status neb__ocl_not_recording(struct neb_ocl *dev, const char *what);

/* gemm.c: c = epilogue(alpha op(a) op(b)); see kernels/gemm.cl */
struct neb_ocl_product {
    const void *a, *b;
    neb_dtype a_type, b_type, c_type;
    int64_t m, n, k, lda, ldb, ldc;
    int trans_a, trans_b;
    float alpha, beta;
    void *c;
    const void *bias;
    neb_dtype bias_type;
    void *pre;
    const void *x_pre;
    neb_act act, slope;
};
neb_status neb__ocl_product(struct neb_ocl *dev, const struct neb_ocl_product *p);
neb_status neb__ocl_product_by(struct neb_ocl *dev, const struct neb_ocl_product *p, int tile);

/* tiles.c */
const struct neb_ocl_tile *neb__ocl_tile(const struct neb_ocl *dev, int tile);
/* Of kernels/gemm.cl; tile -1: packing alone, which `half` then describes. */
uint32_t neb__ocl_tile_variant(const struct neb_ocl *dev, neb_dtype type, int tile, bool half, neb_act act,
                               neb_act slope);
void neb__ocl_tile_options(const struct neb_ocl *dev, uint32_t variant, char *out, size_t size);
int neb__ocl_tile_of(struct neb_ocl *dev, const struct neb_ocl_product *p);
void neb__ocl_tune(struct neb_ocl *dev); /* measures, once; not while recording */

/* the slots */
#define NEB_OCL_SLOTS(X)            \
    NEB_PRIMITIVE_SLOTS(X)          \
    X(linear, neb_linear)           \
    X(linear_bwd, neb_linear_bwd)   \
    X(attn, neb_attn)               \
    X(attn_bwd, neb_attn_bwd)       \
    X(linear_xent, neb_linear_xent) \
    X(widen, neb_widen)
#define NEB_OCL_DECLARE(slot, type) neb_status neb__ocl_##slot(void *ctx, const struct type *a);
NEB_OCL_SLOTS(NEB_OCL_DECLARE)
#undef NEB_OCL_DECLARE
void neb__ocl_rope_close(struct neb_ocl *dev);
int64_t neb__ocl_scratch_bytes(void *ctx, enum neb_slot slot, const void *args);
int64_t neb__ocl_xent_rows(const struct neb_linear_xent *a); /* of one chunk */

#endif
