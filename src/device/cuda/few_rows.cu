/* few_rows.cu: the linear layer for at most four rows, as a decoder computes for one token.
 *
 * Such a product reads the whole weight for a handful of sums, so the memory's bandwidth is all that counts, and tensor
 * cores do not help. A warp makes the sums of OUTPUTS neighbouring outputs. A lane reads 16 bytes of each weight row at a
 * time, TURNS of them before it uses the first, which keeps enough bytes under way. Weights pass the first-level cache,
 * where the rows of x stay: every warp reads these. Lanes are added up in a fixed order, so the result is the same
 * every time. Bias, activation and the sum with y cost nothing here. */
#include "kernel.cuh"

#define WARPS   8
#define OUTPUTS 2
#define TURNS   4
#define WIDTH   256 /* columns a warp reads at a time */

static __device__ __forceinline__ uint4 stream16(const bf16 *p)
{
    uint4 u;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(u.x), "=r"(u.y), "=r"(u.z), "=r"(u.w)
                 : "l"(__cvta_generic_to_global(p)));
    return u;
}

static __device__ __forceinline__ float any_act(int act, float x)
{
    switch (act) {
    case NEB_ACT_GELU: return act_value<NEB_ACT_GELU, bf16>(x);
    case NEB_ACT_GELU_TANH: return act_value<NEB_ACT_GELU_TANH, bf16>(x);
    case NEB_ACT_SILU: return act_value<NEB_ACT_SILU, bf16>(x);
    case NEB_ACT_RELU: return act_value<NEB_ACT_RELU, bf16>(x);
    case NEB_ACT_TANH: return act_value<NEB_ACT_TANH, bf16>(x);
    }
    return x;
}

/* One output of one row. */
static __device__ __forceinline__ void put(const struct neb_linear &l, int64_t r, int64_t o, float sum)
{
    bf16 *y = (bf16 *)l.y + r * l.ldy + o;
    sum *= l.alpha;
    if (l.bias) sum += to_float(((const bf16 *)l.bias)[o]);
    if (l.acc_y) sum += to_float(*y);
    if (l.pre) ((bf16 *)l.pre)[r * l.ldy + o] = from_float<bf16>(sum);
    *y = from_float<bf16>(any_act(l.act, sum));
}

template <int ROWS> static __global__ void __launch_bounds__(WARPS * 32) few_rows_kernel(struct neb_linear l)
{
    const int lane = threadIdx.x % 32;
    const int64_t first = ((int64_t)blockIdx.x * WARPS + threadIdx.x / 32) * OUTPUTS;
    const bf16 *x = (const bf16 *)l.x, *w[OUTPUTS];
    float sum[ROWS][OUTPUTS] = {};
    if (first >= l.out) return;
#pragma unroll
    for (int i = 0; i < OUTPUTS; i++) /* behind the last output the last one is made again */
        w[i] = (const bf16 *)l.w + min(first + i, l.out - 1) * l.in;
    for (int64_t at = lane * 8; at < l.in; at += WIDTH * TURNS) {
        uint4 some[TURNS][OUTPUTS];
#pragma unroll
        for (int t = 0; t < TURNS; t++)
#pragma unroll
            for (int i = 0; i < OUTPUTS; i++)
                some[t][i] = at + t * WIDTH < l.in ? stream16(w[i] + at + t * WIDTH) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int t = 0; t < TURNS; t++) {
            const int64_t c = at + t * WIDTH;
            float wide[OUTPUTS][8];
            if (c >= l.in) break;
#pragma unroll
            for (int i = 0; i < OUTPUTS; i++) load8((const bf16 *)&some[t][i], wide[i]);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                float v[8];
                load8(x + r * l.ldx + c, v);
#pragma unroll
                for (int i = 0; i < OUTPUTS; i++)
#pragma unroll
                    for (int j = 0; j < 8; j++) sum[r][i] = fmaf(v[j], wide[i][j], sum[r][i]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int i = 0; i < OUTPUTS; i++) {
            const float all = warp_sum(sum[r][i]);
            if (lane == 0 && first + i < l.out) put(l, r, first + i, all);
        }
}

int neb__cuda_is_few_rows(const struct neb_linear *l)
{
    return l->type == NEB_BF16 && l->rows <= 4 && l->in > 0 && l->in % 8 == 0 && aligned16(l->w) &&
           wide_rows((const bf16 *)l->x, l->ldx);
}

neb_status neb__cuda_few_rows(struct neb_cuda *dev, const struct neb_linear *l)
{
    const unsigned blocks = (unsigned)neb__ceil_div(l->out, WARPS * OUTPUTS);
    switch (l->rows) {
    case 1: few_rows_kernel<1><<<blocks, WARPS * 32, 0, dev->stream>>>(*l); break;
    case 2: few_rows_kernel<2><<<blocks, WARPS * 32, 0, dev->stream>>>(*l); break;
    case 3: few_rows_kernel<3><<<blocks, WARPS * 32, 0, dev->stream>>>(*l); break;
    default: few_rows_kernel<4><<<blocks, WARPS * 32, 0, dev->stream>>>(*l);
    }
    CUDA_LAUNCHED(dev, "linear of few rows");
    return NEB_OK;
}
