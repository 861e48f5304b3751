/* kernels_body.h: all kernels, compiled once for each instruction set by the file that includes this one. */
#include "device/cpu/kernels.h"
#include "device/cpu/vec.h"
#include "device/cpu/math.h"
#include "device/cpu/philox.h"
#include "device/cpu/k_elem.h"
#include "device/cpu/k_rows.h"
#include "device/cpu/k_norm.h"
#include "device/cpu/k_loss.h"
#include "device/cpu/k_topk.h"
#include "device/cpu/k_sample.h"
#include "device/cpu/k_optim.h"
#include "device/cpu/k_narrow.h"
#include "device/cpu/k_gemm.h"
#include "device/cpu/k_attn.h"
#include "device/cpu/k_attn_bwd.h"

const struct neb_cpu_kernels KERNELS = {
    .name = KERNELS_NAME,
    .mr = MR,
    .nr = NR,
    .pack = k_pack,
    .micro = k_micro,
    .merge = k_merge,
    .attn_scratch = k_attn_scratch,
    .widen = k_widen,
    .copy2d = k_copy2d,
    .axpby = k_axpby,
    .mul = k_mul,
    .act = k_act,
    .act_bwd = k_act_bwd,
    .bias = k_bias,
    .colsum = k_colsum,
    .swiglu = k_swiglu,
    .swiglu_bwd = k_swiglu_bwd,
    .dropout = k_dropout,
    .embed = k_embed,
    .embed_bwd = k_embed_bwd,
    .gather = k_gather,
    .scatter = k_scatter,
    .pool = k_pool,
    .pool_bwd = k_pool_bwd,
    .rope = k_rope,
    .norm = k_norm,
    .norm_bwd = k_norm_bwd,
    .attn_softmax = k_attn_softmax,
    .attn_softmax_bwd = k_attn_softmax_bwd,
    .attn_dropout = k_attn_dropout,
    .attn = k_attn,
    .attn_bwd = k_attn_bwd,
    .attn_listed = k_attn_listed,
    .xent = k_xent,
    .bce = k_bce,
    .mse = k_mse,
    .cosine = k_cosine,
    .class_sums = k_class_sums,
    .class_loss = k_class_loss,
    .sumsq = k_sumsq,
    .update = k_update,
    .best = k_best,
    .sample = k_sample,
};
