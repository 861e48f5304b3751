/* params.c: registering, placing and initialising parameters.
 *
 * An initial value comes from Philox, keyed by (seed, hash of the name) and counted by its index in the
 * global parameter. So neither the order of registration nor the layout over processes changes it. */
#include "tensor/pieces.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/rng.h"
#include "tensor/masters.h"
#include "tensor/narrow.h"
#include "tensor/partition.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { INIT_CHUNK = 1 << 16, MAX_NAME = 200 };

neb_status neb_params_create(neb_params **out)
{
    neb_params *ps = NEB_NEW(neb_params);
    if (!ps) return neb__fail(NEB_ERR_NOMEM, "out of memory for a parameter set");
    *out = ps;
    return NEB_OK;
}

static void release(neb_params *ps)
{
    void *memory[] = {ps->grad, ps->shadow};
    for (int i = 0; i < 2; i++)
        if (memory[i]) ps->dev->ops->free(ps->dev->ctx, memory[i]);
    if (ps->dev) neb__masters_free(ps);
    if (ps->dev) neb__narrow_free(ps);
    ps->grad = NULL;
    ps->shadow = NULL;
}

void neb_params_destroy(neb_params *ps)
{
    if (!ps) return;
    for (int i = 0; i < ps->count; i++) {
        neb__free(ps->list[i]->name);
        neb__free(ps->list[i]);
    }
    neb__free(ps->list);
    release(ps);
    neb__partition_free(ps->partition);
    neb__free(ps);
}

static int split_dimension(neb_split split)
{
    return split == NEB_SPLIT_ROW ? 0 : 1;
}

static neb_status check_parts(const struct neb_param_spec *s)
{
    int parts = s->parts ? s->parts : s->local_count != 0, dim = split_dimension(s->split);
    int64_t end = 0;
    if (s->split == NEB_SPLIT_NONE || !parts) return NEB_OK;
    if (dim >= s->ndim || parts < 0 || parts > NEB_PARAM_PARTS)
        return neb__fail(NEB_ERR_SHAPE, "parameter '%s' cannot be cut into %d parts of dimension %d", s->name,
                         parts, dim);
    for (int i = 0; i < parts; i++) {
        int64_t first = s->parts ? s->part_first[i] : s->local_first;
        int64_t count = s->parts ? s->part_count[i] : s->local_count;
        if (first < end || count < 1 || first > s->shape[dim] - count)
            return neb__fail(NEB_ERR_SHAPE,
                             "parameter '%s': part [%" PRId64 ", +%" PRId64 ") lies outside dimension %d",
                             s->name, first, count, dim);
        end = first + count;
    }
    return NEB_OK;
}

static neb_status check_matrices(const struct neb_param_spec *s)
{
    int64_t rows = 0;
    bool good =
        s->matrices >= 0 && s->matrices <= NEB_PARAM_PARTS && (s->ndim == 2 || (!s->hidden && !s->matrices));
    for (int i = 0; good && i < s->matrices; i++) {
        good = s->matrix_rows[i] > 0 && s->matrix_rows[i] <= s->shape[0] - rows;
        if (good) rows += s->matrix_rows[i];
    }
    if (good && (!s->matrices || rows == s->shape[0])) return NEB_OK;
    return neb__fail(NEB_ERR_SHAPE,
                     "parameter '%s' is no matrix, or its %d matrices do not have all of its rows", s->name,
                     s->matrices);
}

static neb_status check_spec(const neb_params *ps, const struct neb_param_spec *s)
{
    if (ps->ready)
        return neb__fail(NEB_ERR_STATE, "parameter '%s' comes too late: the parameter set is already in use",
                         s->name ? s->name : "");
    if (!s->name || !*s->name || strlen(s->name) > MAX_NAME)
        return neb__fail(NEB_ERR_INVALID, "a parameter needs a name of 1 to %d bytes", MAX_NAME);
    if (neb_params_find(ps, s->name))
        return neb__fail(NEB_ERR_EXISTS, "two parameters are named '%s'; names must be unique", s->name);
    if (s->ndim < 1 || s->ndim > 4)
        return neb__fail(NEB_ERR_SHAPE, "parameter '%s' has %d dimensions; 1 to 4 are possible", s->name,
                         s->ndim);
    int64_t n = 1;
    for (int i = 0; i < s->ndim; i++) {
        if (s->shape[i] < 1 || s->shape[i] > INT64_C(1) << 40 || n > (INT64_C(1) << 40) / s->shape[i])
            return neb__fail(NEB_ERR_SHAPE,
                             "parameter '%s': dimension %d is %" PRId64
                             "; sizes are at least 1, all values at most 2^40",
                             s->name, i, s->shape[i]);
        n *= s->shape[i];
    }
    if (!isfinite(s->scale)) return neb__fail(NEB_ERR_RANGE, "parameter '%s': scale is not finite", s->name);
    NEB_TRY(check_matrices(s));
    return check_parts(s);
}

static neb_status make_room(neb_params *ps)
{
    if (ps->count < ps->cap) return NEB_OK;
    int cap = ps->cap ? ps->cap * 2 : 64;
    struct neb_param **list = neb__realloc(ps->list, (size_t)cap * sizeof *list);
    if (!list) return neb__fail(NEB_ERR_NOMEM, "out of memory for %d parameters", cap);
    ps->list = list;
    ps->cap = cap;
    return NEB_OK;
}

static void set_parts(neb_param *p, const struct neb_param_spec *s)
{
    int dim = split_dimension(p->split);
    if (p->split != NEB_SPLIT_NONE) p->parts = s->parts ? s->parts : s->local_count != 0;
    if (p->parts) p->shape[dim] = 0;
    for (int i = 0; i < p->parts; i++) {
        p->part_first[i] = s->parts ? s->part_first[i] : s->local_first;
        p->part_count[i] = s->parts ? s->part_count[i] : s->local_count;
        p->shape[dim] += p->part_count[i];
    }
    p->values = !p->elsewhere;
    for (int i = 0; i < p->ndim; i++) {
        p->values *= p->shape[i];
        p->whole_values *= p->global[i];
    }
}

static neb_status add(neb_params *ps, const struct neb_param_spec *s, neb_param **out)
{
    NEB_TRY(check_spec(ps, s));
    NEB_TRY(make_room(ps));
    neb_param *p = NEB_NEW(neb_param);
    char *name = neb__strdup(s->name);
    if (!p || !name) {
        neb__free(p);
        neb__free(name);
        return neb__fail(NEB_ERR_NOMEM, "out of memory for parameter '%s'", s->name);
    }
    *p = (neb_param){.name = name,
                     .number = ps->count,
                     .ndim = s->ndim,
                     .split = s->split,
                     .init = s->init,
                     .scale = s->scale,
                     .no_decay = s->no_decay,
                     .trainable = true,
                     .set = ps,
                     .elsewhere = s->elsewhere,
                     .counted = !s->elsewhere && !s->copy,
                     .hidden = s->hidden,
                     .matrices = s->matrices,
                     .whole_values = 1};
    memcpy(p->global, s->shape, sizeof p->global);
    memcpy(p->matrix_rows, s->matrix_rows, sizeof p->matrix_rows);
    if (p->ndim == 2 && !p->matrices) p->matrices = 1, p->matrix_rows[0] = s->shape[0];
    memcpy(p->shape, s->shape, sizeof p->shape);
    set_parts(p, s);
    ps->list[ps->count++] = p;
    *out = p;
    return NEB_OK;
}

neb_param *neb_params_add(neb_params *ps, const struct neb_param_spec *spec)
{
    neb_param *p = NULL;
    neb_status status = add(ps, spec, &p);
    if (status != NEB_OK && ps->failed == NEB_OK) ps->failed = status;
    return p;
}

int neb_params_trainable(neb_params *ps, const char *pattern, bool trainable)
{
    int n = 0;
    for (int i = 0; !ps->ready && i < ps->count; i++)
        if (!fnmatch(pattern, ps->list[i]->name, 0)) {
            ps->list[i]->trainable = trainable;
            n++;
        }
    return n;
}

static int64_t aligned(int64_t values)
{
    return (values + NEB_PARAM_ALIGN - 1) / NEB_PARAM_ALIGN * NEB_PARAM_ALIGN;
}

/* A device that computes in BF16 reads F32 masters of vectors alone. So frozen matrices can do without them where memory
 * counts: frozen weights are kept in few bits, or the model is only used. */
static void halve_frozen(neb_params *ps)
{
    bool wanted = ps->only_used;
    for (int i = 0; i < ps->count; i++) wanted = wanted || ps->list[i]->narrow;
    if (!wanted || ps->dev->config.compute != NEB_BF16 || !ps->dev->ops->widen || ps->partition) return;
    for (int i = 0; i < ps->count; i++) {
        neb_param *p = ps->list[i];
        if (p->trainable || p->narrow || p->ndim != 2 || p->parts || p->elsewhere) continue;
        p->narrow = NEB_NARROW_BF16;
        p->halved = true;
    }
}

static void place(neb_params *ps, bool trainable, int64_t *at, int64_t *whole)
{
    for (int i = 0; i < ps->count; i++) {
        neb_param *p = ps->list[i];
        if (p->trainable != trainable) continue;
        p->offset = *at;
        p->whole_offset = *whole;
        *at += aligned(neb__param_slab_values(p));
        *whole += aligned(neb__param_slab_whole(p));
    }
}

static void place_all(neb_params *ps)
{
    int64_t at = 0, whole = 0;
    place(ps, true, &at, &whole);
    ps->trainable_values = at;
    ps->whole_trainable = whole;
    place(ps, false, &at, &whole);
    ps->all_values = at;
    ps->whole_all = whole;
}

static uint32_t name_hash(const char *s)
{
    uint64_t h = 14695981039346656037u;
    for (; *s; s++) h = (h ^ (uint8_t)*s) * 1099511628211u;
    return (uint32_t)(h ^ h >> 32);
}

static float initial(const neb_param *p, int64_t index, uint64_t seed, uint32_t hash)
{
    uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)(seed >> 32), 0};
    uint32_t key[2] = {(uint32_t)seed, hash}, r[4];
    neb__philox(counter, key, r);
    double u = ((double)r[0] + 0.5) * 0x1p-32, v = (double)r[1] * 0x1p-32;
    if (p->init == NEB_INIT_UNIFORM) return (float)(p->scale * (2 * u - 1));
    return (float)(p->scale * sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

struct filling {
    neb_param *p;
    uint64_t seed;
    float *values; /* (INIT_CHUNK) host */
};

/* Values that lie together in the whole parameter, and here. */
static neb_status fill_run(void *arg, int64_t whole, int64_t here, int64_t n)
{
    struct filling *f = arg;
    neb_param *p = f->p;
    uint32_t hash = name_hash(p->name);
    for (int64_t at = 0; at < n; at += INIT_CHUNK) {
        int64_t m = n - at < INIT_CHUNK ? n - at : INIT_CHUNK;
        for (int64_t i = 0; i < m; i++) {
            if (p->init == NEB_INIT_ZERO)
                f->values[i] = 0;
            else if (p->init == NEB_INIT_ONE)
                f->values[i] = 1;
            else
                f->values[i] = initial(p, whole - p->whole_offset + at + i, f->seed, hash);
        }
        NEB_TRY(neb__masters_put(p->set, here + at, f->values, m));
    }
    return NEB_OK;
}

/* All of a narrow weight: its scales need whole rows. */
static neb_status fill_narrow(neb_param *p, uint64_t seed)
{
    float *values = neb__malloc((size_t)p->values * sizeof *values);
    if (!values) return neb__fail(NEB_ERR_NOMEM, "out of memory while filling '%s'", p->name);
    const uint32_t hash = name_hash(p->name);
    for (int64_t i = 0; i < p->values; i++) {
        if (p->init == NEB_INIT_ZERO || p->init == NEB_INIT_ONE)
            values[i] = p->init == NEB_INIT_ONE;
        else
            values[i] = initial(p, i, seed, hash);
    }
    neb_status status = neb__narrow_write(p, values);
    neb__free(values);
    return status;
}

static neb_status fill(neb_param *p, uint64_t seed, float *chunk)
{
    if (p->narrow) return fill_narrow(p, seed);
    return neb__param_runs(p, fill_run, &(struct filling){p, seed, chunk});
}

static neb_status allocate(neb_params *ps)
{
    neb_device *d = ps->dev;
    const struct neb_partition *part = ps->partition;
    size_t all = (size_t)ps->all_values,
           train = (size_t)(neb__partition_of_grads(ps) ? part->end - part->first : ps->trainable_values),
           copy = (neb__partition_of_values(ps) ? (size_t)neb__partition_held(ps) : all) * 2;
    if (!all) return neb__fail(NEB_ERR_INVALID, "the parameter set has no parameter with values");
    NEB_TRY(neb__masters_alloc(ps));
    NEB_TRY(neb__narrow_alloc(ps));
    if (train) {
        NEB_TRY(d->ops->alloc(d->ctx, train * sizeof(float), (void **)&ps->grad));
        NEB_TRY(d->ops->fill(d->ctx, ps->grad, 0, train * sizeof(float)));
    }
    if (d->config.compute != NEB_BF16) return NEB_OK;
    NEB_TRY(d->ops->alloc(d->ctx, copy ? copy : 2, &ps->shadow));
    return d->ops->fill(d->ctx, ps->shadow, 0, copy);
}

neb_status neb_params_ready(neb_params *ps, neb_device *d, uint64_t seed)
{
    if (ps->failed != NEB_OK) return ps->failed;
    if (ps->ready) return neb__fail(NEB_ERR_STATE, "the parameter set is already in use");
    if (!ps->count) return neb__fail(NEB_ERR_INVALID, "the parameter set has no parameters");
    ps->dev = d;
    ps->seed = seed;
    halve_frozen(ps);
    place_all(ps);
    neb_status status = neb__partition_place(ps);
    if (status == NEB_OK) status = allocate(ps);
    float *chunk = neb__malloc(INIT_CHUNK * sizeof *chunk);
    if (status == NEB_OK && !chunk)
        status = neb__fail(NEB_ERR_NOMEM, "out of memory while filling parameters");
    const int n = neb__device_rehearses(d) || ps->only_used ? 0 : ps->count; /* nobody will read the values */
    for (int i = 0; status == NEB_OK && i < n; i++)
        if (!ps->awaited || !ps->list[i]->narrow) status = fill(ps->list[i], seed, chunk);
    neb__free(chunk);
    if (status == NEB_OK && n) status = neb_params_refresh(ps, 0, ps->all_values);
    if (status != NEB_OK) release(ps);
    ps->ready = status == NEB_OK;
    return status;
}

void neb__params_only_use(neb_params *ps)
{
    neb_params_trainable(ps, "*", false);
    ps->only_used = true;
}

void neb__params_await(neb_params *ps)
{
    ps->awaited = true;
}

/* The caller has not written p so far. */
static neb_status draw_awaited(neb_param *p)
{
    if (!p->narrow || p->coded || !p->set->awaited || neb__device_rehearses(p->set->dev)) return NEB_OK;
    return fill_narrow(p, p->set->seed);
}

neb_status neb__params_fill_rest(neb_params *ps)
{
    for (int i = 0; i < ps->count; i++) NEB_TRY(draw_awaited(ps->list[i]));
    ps->awaited = false;
    return NEB_OK;
}

neb_status neb_params_refresh(neb_params *ps, int64_t first, int64_t n)
{
    if (first < 0 || n < 0 || first > ps->all_values - n)
        return neb__fail(NEB_ERR_RANGE,
                         "range [%" PRId64 ", +%" PRId64 ") lies outside the slab of %" PRId64 " values",
                         first, n, ps->all_values);
    return neb__masters_refresh(ps, first, n);
}

int neb_params_count(const neb_params *ps)
{
    return ps->count;
}

neb_param *neb_params_at(const neb_params *ps, int i)
{
    return i >= 0 && i < ps->count ? ps->list[i] : NULL;
}

neb_param *neb_params_find(const neb_params *ps, const char *name)
{
    for (int i = 0; i < ps->count; i++)
        if (!strcmp(ps->list[i]->name, name)) return ps->list[i];
    return NULL;
}

int64_t neb_params_values(const neb_params *ps, bool trainable_only)
{
    int64_t n = 0;
    for (int i = 0; i < ps->count; i++)
        if (!trainable_only || ps->list[i]->trainable) n += ps->list[i]->whole_values;
    return n;
}

float *neb_params_slab(neb_params *ps, int64_t *n)
{
    *n = ps->trainable_values;
    return ps->value;
}

const char *neb_param_name(const neb_param *p)
{
    return p->name;
}

int neb_param_shape(const neb_param *p, int64_t shape[4])
{
    memcpy(shape, p->global, sizeof p->global);
    return p->ndim;
}

int64_t neb_param_values(const neb_param *p)
{
    return p->whole_values;
}

bool neb_param_trainable(const neb_param *p)
{
    return p->trainable;
}

int64_t neb_param_offset(const neb_param *p)
{
    return p->whole_offset;
}

static neb_status must_be_ready(const neb_param *p)
{
    if (p->set->ready) return NEB_OK;
    return neb__fail(NEB_ERR_STATE, "parameter '%s' has no memory before neb_params_ready()", p->name);
}

struct transfer {
    const neb_param *p;
    float *to;         /* host, of the whole parameter; or NULL */
    const float *from; /* or NULL */
    const float *slab; /* device: where to read; NULL: the masters */
};

static neb_status read_run(void *arg, int64_t whole, int64_t here, int64_t n)
{
    struct transfer *x = arg;
    neb_device *d = x->p->set->dev;
    if (!x->slab) return neb__masters_get(x->p->set, here, x->to + whole - x->p->whole_offset, n);
    return d->ops->download(d->ctx, x->to + whole - x->p->whole_offset, x->slab + here,
                            (size_t)n * sizeof(float));
}

static neb_status write_run(void *arg, int64_t whole, int64_t here, int64_t n)
{
    struct transfer *x = arg;
    return neb__masters_put(x->p->set, here, x->from + whole - x->p->whole_offset, n);
}

static neb_status read_parts(const neb_param *p, const float *slab, float *host)
{
    if (p->values < p->whole_values) memset(host, 0, (size_t)p->whole_values * sizeof *host);
    return neb__param_runs(p, read_run, &(struct transfer){.p = p, .to = host, .slab = slab});
}

neb_status neb_param_read(const neb_param *p, float *host)
{
    NEB_TRY(must_be_ready(p));
    NEB_TRY(draw_awaited(p->set->list[p->number])); /* a mean of folders reads what none of them has, too */
    if (p->narrow) return neb__narrow_read(p, host);
    if (!p->set->whole) return read_parts(p, NULL, host);
    memcpy(host, p->set->whole + p->whole_offset, (size_t)p->whole_values * sizeof *host);
    return NEB_OK;
}

neb_status neb_param_write(neb_param *p, const float *host)
{
    NEB_TRY(must_be_ready(p));
    if (p->narrow) return neb__narrow_write(p, host);
    NEB_TRY(neb__param_runs(p, write_run, &(struct transfer){.p = p, .from = host}));
    p->set->whole = NULL;
    return neb_params_refresh(p->set, p->offset, p->values);
}

neb_status neb_param_read_grad(const neb_param *p, float *host)
{
    NEB_TRY(must_be_ready(p));
    if (!p->trainable)
        return neb__fail(NEB_ERR_STATE, "parameter '%s' is frozen: it has no gradient", p->name);
    if (neb__partition_of_grads(p->set))
        return neb__fail(NEB_ERR_STATE, "the gradient of '%s' is not at one rank", p->name);
    return read_parts(p, p->set->grad, host);
}
