/* device_slots.h: the slots of a device's table that compute, each with the struct of its arguments, as lists of X(slot, struct).
 *
 *     #define DECLARE(slot, type) neb_status my_##slot(void *dev, const struct type *args);
 *     NEB_PRIMITIVE_SLOTS(DECLARE)
 *
 * All of them have this form: neb_status slot(void *dev, const struct type *args). A plug-in may declare, wrap and list its slots
 * with these, so that none is forgotten. The order is that of the table in nebula/device.h. */
#ifndef NEBULA_DEVICE_SLOTS_H
#define NEBULA_DEVICE_SLOTS_H

/* Required, unless the table's flags say NEB_DEVICE_HOST_PRIMITIVES. */
#define NEB_PRIMITIVE_SLOTS(X)            \
    X(gemm, neb_gemm)                     \
    X(copy2d, neb_copy2d)                 \
    X(axpby, neb_axpby)                   \
    X(mul, neb_mul)                       \
    X(act, neb_act_args)                  \
    X(act_bwd, neb_act_args)              \
    X(bias, neb_bias)                     \
    X(colsum, neb_colsum)                 \
    X(swiglu, neb_swiglu)                 \
    X(swiglu_bwd, neb_swiglu)             \
    X(embed, neb_embed)                   \
    X(embed_bwd, neb_embed)               \
    X(gather_rows, neb_rows)              \
    X(scatter_rows, neb_rows)             \
    X(pool, neb_pool_args)                \
    X(pool_bwd, neb_pool_args)            \
    X(rope, neb_rope)                     \
    X(dropout, neb_dropout_args)          \
    X(attn_softmax, neb_attn_softmax)     \
    X(attn_softmax_bwd, neb_attn_softmax) \
    X(attn_dropout, neb_attn_dropout)     \
    X(norm, neb_norm)                     \
    X(norm_bwd, neb_norm_bwd)             \
    X(xent, neb_xent)                     \
    X(bce, neb_bce)                       \
    X(mse, neb_pair_loss)                 \
    X(cosine, neb_pair_loss)              \
    X(sumsq, neb_sumsq)                   \
    X(clip, neb_clip)                     \
    X(update, neb_update)

/* Composed from primitives on a device that lacks them. */
#define NEB_FUSED_SLOTS(X)             \
    X(norm_residual, neb_norm)         \
    X(norm_residual_bwd, neb_norm_bwd) \
    X(linear, neb_linear)              \
    X(linear_bwd, neb_linear_bwd)      \
    X(attn, neb_attn)                  \
    X(attn_bwd, neb_attn_bwd)          \
    X(linear_xent, neb_linear_xent)

/* Optional: for generating text, for drawing tokens, for Muon, for frozen weights in few bits, for relative positions. */
#define NEB_OPTIONAL_SLOTS(X)                   \
    X(best, neb_best)                           \
    X(pack_linear, neb_pack_linear)             \
    X(attn_listed, neb_attn_listed)             \
    X(sample, neb_sample)                       \
    X(muon, neb_muon_args)                      \
    X(widen, neb_widen)                         \
    X(linear_narrow, neb_linear_narrow)         \
    X(linear_narrow_bwd, neb_linear_narrow_bwd) \
    X(attn_biased, neb_attn_biased)             \
    X(attn_biased_bwd, neb_attn_biased_bwd)

#endif
