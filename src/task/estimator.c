/* estimator.c: see estimator.h. A file is read as any other: each tensor must have the shape that follows from those before it. */
#include "task/estimator.h"
#include "base/mem.h"
#include "store/safetensors.h"
#include "task/dot.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LAYERS = 16, WIDEST = 1 << 20 };

struct layer {
    float *w, *b; /* (out, in), (out) */
    int64_t in, out;
};

struct neb_estimator {
    float *mix;
    struct layer layer[LAYERS];
    int layers;
    int64_t width;
    bool reference;
    float *x, *y; /* (widest) */
};

void neb__estimator_close(struct neb_estimator *e)
{
    if (!e) return;
    for (int i = 0; i < LAYERS; i++) {
        neb__free(e->layer[i].w);
        neb__free(e->layer[i].b);
    }
    neb__free(e->mix);
    neb__free(e->x);
    neb__free(e->y);
    neb__free(e);
}

/* rows 0: any number of them. */
static neb_status read_tensor(const struct neb_st *st, const char *path, const char *name, int64_t rows,
                              int64_t cols, float **out, int64_t *found)
{
    const struct neb_st_tensor *t = neb__st_find(st, name);
    if (!t)
        return neb__fail(
            NEB_ERR_CONFIG,
            "%s is not an estimator: it has no tensor %s (tools/comet_folder.py makes one from a "
            "checkpoint of unbabel-comet)",
            path, name);
    const int64_t n = t->shape[0], m = t->rank > 1 ? t->shape[1] : 0;
    if (t->rank != (cols ? 2 : 1) || (rows && n != rows) || n < 1 || n > WIDEST || (cols && m != cols))
        return neb__fail(NEB_ERR_SHAPE,
                         "%s: %s has the shape (%" PRId64 ", %" PRId64 "), but %" PRId64 " by %" PRId64
                         " is needed: it was made for another encoder",
                         path, name, n, m, rows, cols);
    float *values = neb__malloc((size_t)n * (size_t)(cols ? cols : 1) * sizeof *values);
    if (!values) return neb__fail(NEB_ERR_NOMEM, "out of memory for %s", path);
    neb_status status = neb__st_to_f32(t, values);
    if (status != NEB_OK) {
        neb__free(values);
        return status;
    }
    *out = values;
    *found = n;
    return NEB_OK;
}

static neb_status read_layers(struct neb_estimator *e, const struct neb_st *st, const char *path)
{
    char name[32];
    int64_t in = (e->reference ? 6 : 4) * e->width, n;
    for (e->layers = 0; !e->layers || in != 1; e->layers++) {
        if (e->layers == LAYERS)
            return neb__fail(NEB_ERR_CONFIG, "%s: more than %d layers before a single number", path, LAYERS);
        struct layer *l = &e->layer[e->layers];
        snprintf(name, sizeof name, "%d.weight", e->layers);
        NEB_TRY(read_tensor(st, path, name, 0, in, &l->w, &l->out));
        l->in = in;
        snprintf(name, sizeof name, "%d.bias", e->layers);
        NEB_TRY(read_tensor(st, path, name, l->out, 0, &l->b, &n));
        in = l->out;
    }
    return NEB_OK;
}

static neb_status read_all(struct neb_estimator *e, const struct neb_st *st, const char *path, int64_t layers)
{
    const struct neb_st_tensor *first = neb__st_find(st, "0.weight");
    int64_t n, widest = 6 * e->width;
    e->reference = !(first && first->rank == 2 && first->shape[1] == 4 * e->width);
    NEB_TRY(read_tensor(st, path, "mix", layers + 1, 0, &e->mix, &n));
    NEB_TRY(read_layers(e, st, path));
    for (int i = 0; i < e->layers; i++) widest = e->layer[i].out > widest ? e->layer[i].out : widest;
    e->x = NEB_NEW_ARRAY(float, (size_t)widest);
    e->y = NEB_NEW_ARRAY(float, (size_t)widest);
    return e->x && e->y ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for %s", path);
}

neb_status neb__estimator_open(const char *path, int64_t layers, int64_t width, struct neb_estimator **out)
{
    struct neb_st *st;
    NEB_TRY(neb__st_open(path, &st));
    struct neb_estimator *e = NEB_NEW(struct neb_estimator);
    neb_status status = e ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for %s", path);
    if (e) e->width = width;
    if (status == NEB_OK) status = read_all(e, st, path, layers);
    neb__st_close(st);
    if (status != NEB_OK) {
        neb__estimator_close(e);
        return status;
    }
    *out = e;
    return NEB_OK;
}

const float *neb__estimator_mix(const struct neb_estimator *e)
{
    return e->mix;
}

bool neb__estimator_wants_reference(const struct neb_estimator *e)
{
    return e->reference;
}

/* Product and absolute difference of two vectors. */
static float *compare(float *to, const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] = a[i] * b[i], to[n + i] = fabsf(a[i] - b[i]);
    return to + 2 * n;
}

double neb__estimator_score(struct neb_estimator *e, const float *source, const float *translation,
                            const float *reference)
{
    const int64_t n = e->width;
    float *to = e->x;
    memcpy(to, translation, (size_t)n * sizeof *to);
    memcpy(to + n, e->reference ? reference : source, (size_t)n * sizeof *to);
    to += 2 * n;
    if (e->reference) to = compare(to, translation, reference, n);
    compare(to, translation, source, n);
    for (int i = 0; i < e->layers; i++) {
        const struct layer *l = &e->layer[i];
        for (int64_t r = 0; r < l->out; r++) {
            const float y = neb__dot(l->w + r * l->in, e->x, l->in) + l->b[r];
            e->y[r] = i + 1 < e->layers ? tanhf(y) : y;
        }
        float *keep = e->x;
        e->x = e->y;
        e->y = keep;
    }
    return (double)e->x[0];
}
