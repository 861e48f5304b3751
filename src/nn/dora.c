/* dora.c: where DoRA's lengths start: at those of the rows of W + s B A, so that training begins with the unchanged model.
 *
 * A length belongs to a row of a weight, or of one of the matrices that a weight is made of (q of qkv). */
#include "base/mem.h"
#include "nn/model.h"
#include "tensor/partition.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char tail[] = ".lora.m";

bool neb__dora_is_length(const char *name)
{
    const size_t n = strlen(name), k = strlen(tail);
    return n > k && !strcmp(name + n - k, tail);
}

/* The weight that the lengths of `stem` belong to, and its first row. */
static neb_param *weight_of(const struct neb_model *m, const char *stem, int64_t *first)
{
    static const char *const fused[] = {"qkv", "kv", "in"};
    char name[NEB_PATH + 128];
    struct neb_weight_part list[3];
    const char *dot = strrchr(stem, '.');
    *first = 0;
    snprintf(name, sizeof name, "%s.weight", stem);
    neb_param *p = neb_params_find(m->params, name);
    for (int i = 0; !p && dot && i < 3; i++) {
        int64_t at = 0;
        snprintf(name, sizeof name, "%.*s.%s", (int)(dot - stem), stem, fused[i]);
        const int n = neb__weight_parts(&m->arch, name, list);
        for (int k = 0; k < n; at += list[k++].rows) {
            if (strcmp(list[k].name, dot + 1)) continue;
            const size_t end = strlen(name);
            snprintf(name + end, sizeof name - end, ".weight");
            p = neb_params_find(m->params, name);
            *first = at;
            break;
        }
    }
    return p;
}

static neb_status read_new(const neb_param *p, float **out)
{
    float *x = neb__malloc((size_t)neb_param_values(p) * sizeof *x);
    if (!x) return neb__fail(NEB_ERR_NOMEM, "out of memory for '%s'", neb_param_name(p));
    neb_status status = neb_param_read(p, x);
    if (status != NEB_OK)
        neb__free(x);
    else
        *out = x;
    return status;
}

void neb__dora_lengths(const float *w, const float *a, const float *b, float scale, int64_t rows, int64_t in,
                       int64_t rank, float *out)
{
    for (int64_t r = 0; r < rows; r++) {
        double sum = 0;
        for (int64_t i = 0; i < in; i++) {
            double v = (double)w[r * in + i];
            for (int64_t k = 0; b && k < rank; k++)
                v += (double)scale * (double)b[r * rank + k] * (double)a[k * in + i];
            sum += v * v;
        }
        out[r] = (float)sqrt(sum);
    }
}

/* b NULL: it is zero. */
static bool is_zero(const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (x[i] != 0) return false;
    return true;
}

neb_status neb__dora_fill(struct neb_model *m, neb_param *p)
{
    char stem[NEB_PATH + 64], name[NEB_PATH + 96];
    neb_param *ab[2], *w;
    float *x[3] = {0}, *out = NULL;
    int64_t first, shape[4], rows = neb_param_values(p);
    if (p->elsewhere) return NEB_OK;
    if (neb__partition_of_masters(m->params))
        return neb__fail(
            NEB_ERR_UNSUPPORTED,
            "peft.lora_dora: the ranks share the weights, whose lengths it needs; use parallel.zero: 0");
    snprintf(stem, sizeof stem, "%.*s", (int)(strlen(neb_param_name(p)) - strlen(tail)), neb_param_name(p));
    for (int k = 0; k < 2; k++) {
        snprintf(name, sizeof name, "%s.lora.%c", stem, "ab"[k]);
        ab[k] = neb_params_find(m->params, name);
    }
    w = weight_of(m, stem, &first);
    if (!w || !ab[0] || !ab[1])
        return neb__fail(NEB_ERR_INTERNAL, "'%s' belongs to no weight", neb_param_name(p));
    neb_param_shape(w, shape);
    neb_status status = read_new(w, &x[0]);
    for (int k = 0; status == NEB_OK && k < 2; k++) status = read_new(ab[k], &x[k + 1]);
    out = NEB_NEW_ARRAY(float, (size_t)rows);
    if (status == NEB_OK && !out) status = neb__fail(NEB_ERR_NOMEM, "out of memory for '%s'", stem);
    if (status == NEB_OK) {
        const float *b = is_zero(x[2], neb_param_values(ab[1])) ? NULL : x[2];
        neb__dora_lengths(x[0] + first * shape[1], x[1], b, m->peft.lora_scale, rows, shape[1],
                          m->peft.lora_rank, out);
        status = neb_param_write(p, out);
    }
    for (int k = 0; k < 3; k++) neb__free(x[k]);
    neb__free(out);
    return status;
}

neb_status neb__dora_fill_all(struct neb_model *m)
{
    for (int i = 0; m->peft.dora && i < neb_params_count(m->params); i++) {
        neb_param *p = neb_params_at(m->params, i);
        const size_t n = strlen(m->prefix);
        if (strncmp(neb_param_name(p), m->prefix, n) || !neb__dora_is_length(neb_param_name(p))) continue;
        NEB_TRY(neb__dora_fill(m, p));
    }
    return NEB_OK;
}
