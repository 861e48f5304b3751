/* muon.c: see muon.h.
 *
 * A turn takes as many matrices of one shape as there are ranks that share the work, `copies` of the model times `members` of
 * a team:
 *
 *     momentum    of every matrix of the turn, or of the part of it that is here
 *     gather      members put together the matrices that fall to their copy
 *     compute     this rank's matrix
 *     share       the results, among the members and then among the copies
 *     step        of every matrix, or of the part of it that is here
 *
 * One process has turns of one matrix and exchanges nothing. A device that has the slot `muon` takes many matrices in one
 * call instead.
 *
 * Momentum and step are updates of SGD, with control blocks of their own: a copy of the training's with the learning rate
 * 1, and one with the clipping factor 1, because the gradient was clipped on its way into the momentum. All of them keep the
 * flag of a step that is not finite, so that nothing changes then. */
#include "optim/muon.h"
#include "base/mem.h"
#include "optim/orthogonal.h"
#include "tensor/matrices.h"
#include "tensor/team.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

enum { MOMENTUM, GRADIENT, STEP, SEGMENTS };
enum {
    FUSED_BYTES = 512 << 20
}; /* scratch memory of one call of the fused slot, unless one matrix needs more */

/* Matrices [first, end) of the list have this shape. */
struct shape {
    int64_t rows, cols;
    float decay;
    int first, end;
    int batch; /* of one call of the fused slot */
};

struct neb_muon {
    struct neb_matrix *list; /* by shape, and by their place in the slab */
    int n;
    struct shape *shape;
    int shapes;
    int copies, copy, members, member;
    struct neb_orthogonal orthogonal;
    /* device memory */
    struct neb_segment *segments; /* (n, SEGMENTS) */
    struct neb_ctl *momentum, *step;
    float *gathered; /* a matrix as the members' parts, one behind the other */
    float *mine;     /* the matrix that this rank orthogonalises */
    float *result;   /* (copies * members) matrices */
    /* the fused slot */
    int64_t *at; /* device: (n) */
    void *scratch;
};

static float step_factor(const struct shape *s)
{
    return 0.2f * sqrtf((float)(s->rows > s->cols ? s->rows : s->cols));
}

static bool fused(const neb_optimizer *o)
{
    return o->dev->ops->muon && o->muon->copies * o->muon->members == 1;
}

/* ---- the list ------------------------------------------------------------------------------------------------ */

static bool in_range(const neb_optimizer *o, const neb_param *p)
{
    return p->taken_as_matrix && p->values && p->offset >= o->first && p->offset < o->end;
}

static float decay_of(const neb_optimizer *o, const neb_param *p)
{
    return p->no_decay ? 0 : o->config.decay;
}

static bool has_shape(const neb_optimizer *o, const struct neb_matrix *m, const struct shape *s)
{
    return m->whole_rows == s->rows && m->whole_cols == s->cols && !(decay_of(o, m->param) < s->decay) &&
           !(decay_of(o, m->param) > s->decay);
}

/* All matrices of this rank's range, in the order of the slab. */
static neb_status list_all(const neb_optimizer *o, struct neb_matrix **out, int *n)
{
    const neb_params *ps = o->params;
    *n = 0;
    *out = NEB_NEW_ARRAY(struct neb_matrix, (size_t)ps->count * NEB_PARAM_PARTS);
    if (!*out) return neb__fail(NEB_ERR_NOMEM, "out of memory for the matrices of %d parameters", ps->count);
    for (int i = 0; i < ps->count; i++) {
        const neb_param *p = ps->list[i];
        if (!in_range(o, p)) continue;
        int here = neb__param_matrices(p, *out + *n);
        if (!here)
            return neb__fail(NEB_ERR_SHAPE,
                             "parameter '%s': the processes do not cut each of its %d matrices", p->name,
                             p->matrices);
        *n += here;
    }
    return NEB_OK;
}

/* Puts matrices of one shape side by side. */
static void sort(const neb_optimizer *o, struct neb_muon *x, const struct neb_matrix *all)
{
    int to = 0;
    for (int i = 0; i < x->n; i++) {
        bool known = false;
        for (int s = 0; s < x->shapes; s++) known |= has_shape(o, &all[i], &x->shape[s]);
        if (known) continue;
        struct shape *s = &x->shape[x->shapes++];
        *s = (struct shape){all[i].whole_rows, all[i].whole_cols, decay_of(o, all[i].param), to, to, 1};
        for (int k = i; k < x->n; k++)
            if (has_shape(o, &all[k], s)) x->list[to++] = all[k];
        s->end = to;
    }
}

static neb_status make_list(neb_optimizer *o, struct neb_muon *x)
{
    struct neb_matrix *all = NULL;
    neb_status status = list_all(o, &all, &x->n);
    if (status == NEB_OK && x->n) {
        x->list = NEB_NEW_ARRAY(struct neb_matrix, (size_t)x->n);
        x->shape = NEB_NEW_ARRAY(struct shape, (size_t)x->n);
        if (x->list && x->shape)
            sort(o, x, all);
        else
            status = neb__fail(NEB_ERR_NOMEM, "out of memory for %d matrices", x->n);
    }
    neb__free(all);
    return status;
}

/* ---- memory -------------------------------------------------------------------------------------------------- */

static neb_status make_tables(neb_optimizer *o, struct neb_muon *x)
{
    neb_device *d = o->dev;
    const size_t bytes = (size_t)x->n * SEGMENTS * sizeof *x->segments;
    struct neb_segment *host = NEB_NEW_ARRAY(struct neb_segment, (size_t)x->n * SEGMENTS);
    int64_t *at = NEB_NEW_ARRAY(int64_t, (size_t)x->n);
    neb_status status = host && at ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for %d matrices", x->n);
    for (int i = 0; status == NEB_OK && i < x->n; i++) {
        const int64_t n = x->list[i].rows * x->list[i].cols;
        host[i * SEGMENTS + MOMENTUM] = (struct neb_segment){0, n, 0, -o->config.muon_momentum};
        host[i * SEGMENTS + GRADIENT] = (struct neb_segment){0, n, 0, -1};
        host[i * SEGMENTS + STEP] = (struct neb_segment){0, n, decay_of(o, x->list[i].param), 1};
        at[i] = x->list[i].at - o->first;
    }
    if (status == NEB_OK) status = d->ops->alloc(d->ctx, bytes, (void **)&x->segments);
    if (status == NEB_OK) status = d->ops->upload(d->ctx, x->segments, host, bytes);
    if (status == NEB_OK) status = d->ops->alloc(d->ctx, (size_t)x->n * sizeof *at, (void **)&x->at);
    if (status == NEB_OK) status = d->ops->upload(d->ctx, x->at, at, (size_t)x->n * sizeof *at);
    neb__free(host);
    neb__free(at);
    return status;
}

static neb_status make_composition(neb_optimizer *o, struct neb_muon *x)
{
    neb_device *d = o->dev;
    int64_t most = 1;
    int64_t(*shapes)[2] = neb__malloc((size_t)x->shapes * sizeof *shapes);
    if (!shapes) return neb__fail(NEB_ERR_NOMEM, "out of memory for %d shapes", x->shapes);
    for (int s = 0; s < x->shapes; s++) {
        const int64_t rows = shapes[s][0] = x->shape[s].rows, cols = shapes[s][1] = x->shape[s].cols;
        most = rows * cols > most ? rows * cols : most;
    }
    neb_status status = neb__orthogonal_create(d, o->config.muon_type, (const int64_t(*)[2])shapes, x->shapes,
                                               &x->orthogonal);
    neb__free(shapes);
    NEB_TRY(status);
    const size_t bytes = (size_t)most * sizeof(float);
    NEB_TRY(d->ops->alloc(d->ctx, sizeof *x->momentum, (void **)&x->momentum));
    NEB_TRY(d->ops->alloc(d->ctx, sizeof *x->step, (void **)&x->step));
    NEB_TRY(d->ops->alloc(d->ctx, bytes, (void **)&x->gathered));
    NEB_TRY(d->ops->alloc(d->ctx, bytes, (void **)&x->mine));
    return d->ops->alloc(d->ctx, bytes * (size_t)(x->copies * x->members), (void **)&x->result);
}

static struct neb_muon_args fused_args(const neb_optimizer *o, const struct shape *s, int first, int batch)
{
    return (struct neb_muon_args){.param = neb__ranks_values(o),
                                  .m = o->m,
                                  .grad = neb__ranks_grad(o),
                                  .shadow = neb__ranks_shadow(o, 0),
                                  .at = o->muon->at + first,
                                  .batch = batch,
                                  .rows = s->rows,
                                  .cols = s->cols,
                                  .momentum = o->config.muon_momentum,
                                  .scale = step_factor(s),
                                  .decay = s->decay,
                                  .coefficient = {NEB_ORTHOGONAL_A, NEB_ORTHOGONAL_B, NEB_ORTHOGONAL_C},
                                  .steps = NEB_ORTHOGONAL_STEPS,
                                  .type = o->config.muon_type,
                                  .scratch = o->muon->scratch};
}

static int64_t fused_bytes(const neb_optimizer *o, const struct shape *s, int batch)
{
    struct neb_muon_args a = fused_args(o, s, s->first, batch);
    return o->dev->ops->scratch_bytes ? o->dev->ops->scratch_bytes(o->dev->ctx, NEB_SLOT_MUON, &a) : 0;
}

static neb_status make_fused(neb_optimizer *o, struct neb_muon *x)
{
    int64_t most = 0;
    for (int i = 0; i < x->shapes; i++) {
        struct shape *s = &x->shape[i];
        s->batch = s->end - s->first;
        while (s->batch > 1 && fused_bytes(o, s, s->batch) > FUSED_BYTES) s->batch = (s->batch + 1) / 2;
        int64_t bytes = fused_bytes(o, s, s->batch);
        most = bytes > most ? bytes : most;
    }
    return most > 0 ? o->dev->ops->alloc(o->dev->ctx, (size_t)most, &x->scratch) : NEB_OK;
}

/* Who shares the work: with zero each matrix has one rank's range already. */
static void deal(neb_optimizer *o, struct neb_muon *x)
{
    const struct neb_team *team = o->params->team;
    struct neb_group *data = neb__layout_data(o->layout);
    x->copies = o->edge ? 1 : neb__group_size(data);
    x->copy = o->edge ? 0 : neb__group_rank(data);
    x->members = team ? team->size : 1;
    x->member = team ? team->rank : 0;
}

neb_status neb__muon_create(neb_optimizer *o)
{
    struct neb_muon *x = o->muon = NEB_NEW(struct neb_muon);
    if (!x) return neb__fail(NEB_ERR_NOMEM, "out of memory for an optimizer");
    deal(o, x);
    NEB_TRY(make_list(o, x));
    if (!x->n) {
        neb__muon_destroy(o);
        return NEB_OK;
    }
    NEB_TRY(make_tables(o, x));
    return fused(o) ? make_fused(o, x) : make_composition(o, x);
}

void neb__muon_destroy(neb_optimizer *o)
{
    struct neb_muon *x = o->muon;
    if (!x) return;
    void *memory[] = {x->segments, x->momentum, x->step, x->gathered, x->mine, x->result, x->at, x->scratch};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        if (memory[i]) o->dev->ops->free(o->dev->ctx, memory[i]);
    if (x->orthogonal.dev) neb__orthogonal_free(&x->orthogonal);
    neb__free(x->list);
    neb__free(x->shape);
    neb__free(x);
    o->muon = NULL;
}

/* ---- one turn ------------------------------------------------------------------------------------------------ */

/* Member r's share of n rows or columns is [first, first of r + 1). */
static int64_t first_of(const struct neb_muon *x, int r, int64_t n)
{
    return n * r / x->members;
}

/* Where the members' parts begin in a matrix of parts. */
static void edges_of(const struct neb_muon *x, const struct neb_matrix *m, int64_t edge[NEB_TEAM_MEMBERS + 1])
{
    const bool by_rows = m->cut == NEB_SPLIT_ROW;
    for (int r = 0; r <= x->members; r++)
        edge[r] = first_of(x, r, by_rows ? m->whole_rows : m->whole_cols) *
                  (by_rows ? m->whole_cols : m->whole_rows);
}

/* g + momentum m of the values that are here, to `to`. */
static neb_status momentum(neb_optimizer *o, int i, float *to)
{
    neb_device *d = o->dev;
    const struct neb_muon *x = o->muon;
    const struct neb_matrix *m = &x->list[i];
    const int64_t at = m->at - o->first, n = m->rows * m->cols;
    struct neb_update u = {.param = to,
                           .m = o->m + at,
                           .grad = neb__ranks_grad(o) + at,
                           .segments = x->segments + i * SEGMENTS + MOMENTUM,
                           .n_segments = 1,
                           .n = n,
                           .beta1 = o->config.muon_momentum,
                           .ctl = x->momentum};
    NEB_TRY(d->ops->fill(d->ctx, to, 0, (size_t)n * sizeof *to));
    NEB_TRY(d->ops->update(d->ctx, &u));
    u.m = NULL;
    u.segments = x->segments + i * SEGMENTS + GRADIENT;
    return d->ops->update(d->ctx, &u);
}

/* Between a matrix and its columns as the members have them. */
static neb_status turn_columns(neb_optimizer *o, const struct neb_matrix *m, int r, float *whole,
                               float *parts, bool together)
{
    neb_device *d = o->dev;
    const int64_t first = first_of(o->muon, r, m->whole_cols);
    const int64_t cols = first_of(o->muon, r + 1, m->whole_cols) - first;
    struct neb_copy2d c = {parts, whole + first, m->whole_rows, cols, cols, m->whole_cols, NEB_F32, NEB_F32};
    if (!together)
        c = (struct neb_copy2d){whole + first, parts, m->whole_rows, cols,
                                m->whole_cols, cols,  NEB_F32,       NEB_F32};
    return d->ops->copy2d(d->ctx, &c);
}

/* The momentum of matrix i of the list. keep: this rank will orthogonalise it; gather: its team will. */
static neb_status collect(neb_optimizer *o, int i, bool gather, bool keep)
{
    struct neb_muon *x = o->muon;
    const struct neb_matrix *m = &x->list[i];
    const struct neb_team *team = o->params->team;
    int64_t edge[NEB_TEAM_MEMBERS + 1];
    if (x->members == 1 || m->cut == NEB_SPLIT_NONE) return momentum(o, i, keep ? x->mine : x->gathered);
    edges_of(x, m, edge);
    NEB_TRY(momentum(o, i, x->gathered + edge[x->member]));
    if (!gather) return NEB_OK;
    NEB_TRY(team->exchange(team->arg, NEB_TEAM_GATHER, x->gathered, edge[x->members], edge, NEB_F32));
    if (!keep) return NEB_OK;
    if (m->cut == NEB_SPLIT_ROW)
        return o->dev->ops->copy(o->dev->ctx, x->mine, x->gathered, (size_t)edge[x->members] * sizeof(float));
    for (int r = 0; r < x->members; r++) NEB_TRY(turn_columns(o, m, r, x->mine, x->gathered + edge[r], true));
    return NEB_OK;
}

/* Every rank gets the results of all. */
static neb_status share(neb_optimizer *o, int64_t values)
{
    struct neb_muon *x = o->muon;
    const struct neb_team *team = o->params->team;
    int64_t edge[NEB_TEAM_MEMBERS + 1], *copies = NULL;
    const int64_t own = (int64_t)x->members * values;
    for (int r = 0; r <= x->members; r++) edge[r] = r * values;
    if (x->members > 1)
        NEB_TRY(team->exchange(team->arg, NEB_TEAM_GATHER, x->result + x->copy * own, own, edge, NEB_F32));
    if (x->copies == 1) return NEB_OK;
    copies = NEB_NEW_ARRAY(int64_t, (size_t)x->copies + 1);
    if (!copies) return neb__fail(NEB_ERR_NOMEM, "out of memory for %d copies of a model", x->copies);
    for (int r = 0; r <= x->copies; r++) copies[r] = r * own;
    neb_status status = neb__device_gather(neb__layout_data(o->layout), x->result, copies, NEB_F32);
    neb__free(copies);
    return status;
}

/* The values of matrix i that are here make their step. */
static neb_status step(neb_optimizer *o, int i, float *result)
{
    neb_device *d = o->dev;
    struct neb_muon *x = o->muon;
    const struct neb_matrix *m = &x->list[i];
    const int64_t at = m->at - o->first;
    int64_t edge[NEB_TEAM_MEMBERS + 1];
    if (x->members > 1 && m->cut != NEB_SPLIT_NONE) {
        edges_of(x, m, edge);
        if (m->cut == NEB_SPLIT_COLUMN) NEB_TRY(turn_columns(o, m, x->member, result, x->gathered, false));
        result = m->cut == NEB_SPLIT_COLUMN ? x->gathered : result + edge[x->member];
    }
    struct neb_update u = {
        .param = neb__ranks_values(o) + at,
        .grad = result,
        .shadow = neb__ranks_shadow(o, at),
        .segments = x->segments + i * SEGMENTS + STEP,
        .n_segments = 1,
        .n = m->rows * m->cols,
        .ctl = x->step,
    };
    return d->ops->update(d->ctx, &u);
}

static neb_status turn(neb_optimizer *o, int s, int first)
{
    struct neb_muon *x = o->muon;
    const struct shape *shape = &x->shape[s];
    const int all = x->copies * x->members, own = x->copy * x->members + x->member;
    const int64_t values = shape->rows * shape->cols;
    for (int k = 0; k < all && first + k < shape->end; k++)
        NEB_TRY(collect(o, first + k, k / x->members == x->copy, k == own));
    if (first + own < shape->end)
        NEB_TRY(
            neb__orthogonal_run(&x->orthogonal, s, x->mine, step_factor(shape), x->result + own * values));
    NEB_TRY(share(o, values));
    for (int k = 0; k < all && first + k < shape->end; k++)
        NEB_TRY(step(o, first + k, x->result + k * values));
    if (o->layout) neb__group_beat(neb__layout_world(o->layout));
    return NEB_OK;
}

/* ---- a step -------------------------------------------------------------------------------------------------- */

static neb_status update_fused(neb_optimizer *o, neb_tape *t)
{
    const struct neb_muon *x = o->muon;
    for (int i = 0; i < x->shapes; i++) {
        const struct shape *s = &x->shape[i];
        for (int first = s->first; first < s->end; first += s->batch) {
            int batch = s->end - first < s->batch ? s->end - first : s->batch;
            struct neb_muon_args a = fused_args(o, s, first, batch);
            a.ctl = t->ctl;
            NEB_TRY(o->dev->ops->muon(o->dev->ctx, &a));
        }
    }
    return NEB_OK;
}

/* The training's control block with one number changed. */
static neb_status change_ctl(neb_optimizer *o, const struct neb_ctl *from, size_t field, struct neb_ctl *to)
{
    static const float one = 1;
    neb_device *d = o->dev;
    NEB_TRY(d->ops->copy(d->ctx, to, from, sizeof *to));
    return d->ops->upload(d->ctx, (char *)to + field, &one, sizeof one);
}

neb_status neb__muon_update(neb_optimizer *o, neb_tape *t)
{
    struct neb_muon *x = o->muon;
    if (!x) return NEB_OK;
    if (fused(o)) return update_fused(o, t);
    NEB_TRY(change_ctl(o, t->ctl, offsetof(struct neb_ctl, lr), x->momentum));
    NEB_TRY(change_ctl(o, t->ctl, offsetof(struct neb_ctl, clip), x->step));
    for (int s = 0; s < x->shapes; s++)
        for (int first = x->shape[s].first; first < x->shape[s].end; first += x->copies * x->members)
            NEB_TRY(turn(o, s, first));
    return NEB_OK;
}
