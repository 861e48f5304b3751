/* rungs.c: the ladder as a table.
 *
 * Ids are on the wire. Dense: 1 fp32, 2 bf16, 3/4 int8, 5/6 int4, 7/8 2-bit (the even one of each pair with
 * the scale of least squared error), 9 int8 with scales from outside. Sparse: 32 + 4 * (0: 64, 1: 32, 2: 16,
 * 3: 8, 4: 128, 5: 256 kept of 4096) + (bits - 1).
 *
 * 10 is the statistical code of 2 bits.
 *
 * `nebula-i bench codec` measures `bytes` and `error` on Gaussian data. They are a first guess for the rate
 * controller, which replaces both by what it sees. The rows of a class are ordered by error. */
#include "codec/codec.h"

#include <string.h>

/* The last argument is the error. Behind it a row may set further fields: `0.0f, .exact = true`. */
#define DENSE(id_, name_, kind_, bits_, optimal_, block_, bytes_, ...)                                 \
    {                                                                                                  \
        .id = id_, .name = name_, .cls = NEB_DENSE, .kind = kind_, .bits = bits_, .optimal = optimal_, \
        .block = block_, .bytes = bytes_, .error = __VA_ARGS__                                         \
    }
#define SPARSE(id_, name_, bits_, k_, bytes_, ...)                                                  \
    {                                                                                               \
        .id = id_, .name = name_, .cls = NEB_SPARSE, .kind = NEB_RUNG_TOPK, .bits = bits_, .k = k_, \
        .bytes = bytes_, .error = __VA_ARGS__                                                       \
    }

const struct neb_rung neb__rung_table[] = {
    DENSE(1, "fp32", NEB_RUNG_FP32, 32, false, 1, 4.0f, 0.0f, .exact = true),
    DENSE(2, "bf16", NEB_RUNG_BF16, 16, false, 1, 2.0f, 0.0017f),
    DENSE(4, "int8e", NEB_RUNG_INT, 8, true, 256, 1.0078f, 0.0070f),
    DENSE(3, "int8", NEB_RUNG_INT, 8, false, 256, 1.0078f, 0.0070f),
    DENSE(9, "int8x", NEB_RUNG_EXTERN, 8, false, NEB_CODEC_EXT_BLOCK, 1.0f, 0.014f, .outside_scales = true),
    DENSE(6, "int4e", NEB_RUNG_INT, 4, true, 128, 0.5156f, 0.11f),
    DENSE(5, "int4", NEB_RUNG_INT, 4, false, 128, 0.5156f, 0.12f),
    DENSE(10, "stat2", NEB_RUNG_STAT, 2, true, 64, 0.2481f, 0.311f),
    DENSE(8, "int2e", NEB_RUNG_INT, 2, true, 64, 0.2813f, 0.34f),
    DENSE(7, "int2", NEB_RUNG_INT, 2, false, 64, 0.2813f, 0.51f),
    SPARSE(55, "sparse4.k256", 4, 256, 0.0697f, 0.822f),
    SPARSE(54, "sparse3.k256", 3, 256, 0.0639f, 0.823f),
    SPARSE(53, "sparse2.k256", 2, 256, 0.0571f, 0.824f),
    SPARSE(52, "sparse1.k256", 1, 256, 0.0503f, 0.827f),
    SPARSE(51, "sparse4.k128", 4, 128, 0.0392f, 0.895f),
    SPARSE(50, "sparse3.k128", 3, 128, 0.0361f, 0.895f),
    SPARSE(49, "sparse2.k128", 2, 128, 0.0328f, 0.895f),
    SPARSE(48, "sparse1.k128", 1, 128, 0.0293f, 0.896f),
    SPARSE(35, "sparse4", 4, 64, 0.0219f, 0.939f),
    SPARSE(34, "sparse3", 3, 64, 0.0203f, 0.939f),
    SPARSE(33, "sparse2", 2, 64, 0.0186f, 0.939f),
    SPARSE(32, "sparse1", 1, 64, 0.0168f, 0.940f),
    SPARSE(39, "sparse4.k32", 4, 32, 0.0122f, 0.965f),
    SPARSE(38, "sparse3.k32", 3, 32, 0.0114f, 0.965f),
    SPARSE(37, "sparse2.k32", 2, 32, 0.0105f, 0.965f),
    SPARSE(36, "sparse1.k32", 1, 32, 0.0095f, 0.966f),
    SPARSE(43, "sparse4.k16", 4, 16, 0.0069f, 0.981f),
    SPARSE(42, "sparse3.k16", 3, 16, 0.0064f, 0.981f),
    SPARSE(41, "sparse2.k16", 2, 16, 0.0059f, 0.981f),
    SPARSE(40, "sparse1.k16", 1, 16, 0.0054f, 0.981f),
    SPARSE(47, "sparse4.k8", 4, 8, 0.0039f, 0.989f),
    SPARSE(46, "sparse3.k8", 3, 8, 0.0037f, 0.989f),
    SPARSE(45, "sparse2.k8", 2, 8, 0.0034f, 0.989f),
    SPARSE(44, "sparse1.k8", 1, 8, 0.0031f, 0.989f),
};
const int neb__rung_count = (int)(sizeof neb__rung_table / sizeof *neb__rung_table);

const struct neb_rung *neb__rung_by_id(uint8_t id)
{
    for (int i = 0; i < neb__rung_count; i++)
        if (neb__rung_table[i].id == id) return &neb__rung_table[i];
    return NULL;
}

const struct neb_rung *neb__rung_by_name(const char *name)
{
    for (int i = 0; i < neb__rung_count; i++)
        if (!strcmp(neb__rung_table[i].name, name)) return &neb__rung_table[i];
    return NULL;
}

const struct neb_rung *neb__rung_exact(void)
{
    const struct neb_rung *r = neb__rung_table;
    while (!r->exact) r++; /* fp32 is */
    return r;
}
