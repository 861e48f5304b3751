/* kernels.h: functions that are compiled once per instruction set. Each works in one thread on a range of an
 * op's rows, columns or values. The drivers (gemm.c, norm.c, …) check arguments, cut the work, run the pieces
 * in the pool and combine partial results in a fixed order. */
#ifndef NEB_CPU_KERNELS_H
#define NEB_CPU_KERNELS_H

#include <nebula/device.h>

struct neb_span {
    int64_t lo, hi;   /* the piece */
    int task, worker; /* its number; the worker that runs it */
    void *aux;        /* from the driver: partial results, scratch, tables */
};

typedef void (*neb_kernel)(const void *args, const struct neb_span *s);

/* Result of some rows of a loss. */
struct neb_partial {
    double loss, count[4];
};

/* One side of a matrix product: element (p, k) is at p * ld + k, or, when `straight`, at k * ld + p. */
struct neb_operand {
    const void *data;
    int64_t ld;
    int straight;
    neb_dtype type; /* NEB_I8: a narrow weight of rows of ld; data is its struct neb_narrow. Only for B */
};

/* The work on a tile of C = alpha * A B after the last k. Every field but c is optional. */
struct neb_epilogue {
    void *c;
    int64_t ldc;
    neb_dtype type;
    float alpha;
    int acc;          /* C += */
    const void *bias; /* (n) */
    neb_dtype bias_type;
    neb_act act;
    void *pre;         /* (m, n), as c: value before the activation */
    const void *x_pre; /* (m, n), as c: the result is multiplied by x_act'(x_pre) */
    neb_act x_act;
    float *colsum; /* (n): column sums of the final values of a block of rows are added here */
};

/* Cross-entropy over logits (F32) of which this process has some classes. */
struct neb_class_rows {
    struct neb_xent x;
    int64_t first, total;
    struct neb_class_sums *own, *all; /* (rows) each */
    struct neb_class_sums *every;     /* (processes, rows) */
};

struct neb_cpu_kernels {
    const char *name;
    int mr, nr; /* size of the micro-kernel's tile */
    /* Packs `count` <= width vectors of one side, from (p0, k0), kc deep, into a panel [kc][width], padded
     * with zeros. sum, when not NULL: sum[i] += sum over the depth. */
    void (*pack)(const struct neb_operand *side, int64_t p0, int count, int64_t k0, int64_t kc, int width,
                 float *panel, float *sum);
    /* out (mr, nr) = product of two panels */
    void (*micro)(int64_t kc, const float *a, const float *b, float *out, int64_t ldo);
    /* Merges a tile (rows x cols, at row i and column j of C) of one block of k into C. */
    void (*merge)(const struct neb_epilogue *e, const float *tile, int64_t i, int64_t j, int rows, int cols,
                  int first, int last);

    /* floats of scratch a worker of attention needs */
    int64_t (*attn_scratch)(const struct neb_attn *a, int backward);

    neb_kernel widen, copy2d, axpby, mul, act, act_bwd, bias, colsum, swiglu, swiglu_bwd, dropout;
    neb_kernel embed, embed_bwd, gather, scatter, pool, pool_bwd, rope;
    neb_kernel norm, norm_bwd, attn_softmax, attn_softmax_bwd, attn_dropout, attn, attn_bwd, attn_listed;
    neb_kernel class_sums, class_loss; /* args: struct neb_class_rows */
    neb_kernel xent, bce, mse, cosine, sumsq, update, best, sample;
};

extern const struct neb_cpu_kernels neb__cpu_kernels_plain, neb__cpu_kernels_avx2, neb__cpu_kernels_avx512;

/* aux of rope: cos and sin, [position][head_dim / 2] each. */
struct neb_rope_table {
    const float *cosine, *sine;
};

/* aux of norm_bwd: per task, a row of dgamma and a row of dbeta sums. */
struct neb_norm_sums {
    float *dgamma, *dbeta; /* (tasks, d); dbeta NULL: not wanted */
};

/* aux of attn and attn_bwd: memory per worker. The task is a (sequence, key head) pair. */
struct neb_attn_aux {
    float *scratch;
    int64_t per_worker; /* floats */
    const float *
        bias; /* (heads, 2 reach + 1): of distances -reach … reach, beyond which nothing changes; NULL: none */
    float *dbias; /* (sequences, heads, 2 reach + 1), cleared: its gradient, by sequences; NULL: not wanted */
    int64_t reach;
};
#endif
