/* whole.c: collecting the whole slab at the first rank, and sharing it out again.
 *
 * A rank tells the first one which pieces it holds and then sends or receives their values run by run. Only
 * the ranks of the first copy of the model talk to the first rank; the other copies get their values from the
 * rank of the first copy that holds the same parts. The first rank takes the others in turn, and they wait for it, for a checkpoint
 * without a limit. So a rank that fails in between gives up the groups. */
#include "optim/whole.h"
#include "base/mem.h"

#include <string.h>

struct list {
    struct neb_piece *piece;
    int64_t n;
};

/* The pieces of this rank; counted: only those which no other rank counts. */
static neb_status list_pieces(const neb_params *ps, bool trainable, bool counted, struct list *out)
{
    *out = (struct list){NEB_NEW_ARRAY(struct neb_piece, (size_t)ps->count * NEB_PARAM_PARTS), 0};
    if (!out->piece)
        return neb__fail(NEB_ERR_NOMEM, "out of memory for the pieces of %d parameters", ps->count);
    for (int i = 0; i < ps->count; i++) {
        const neb_param *p = ps->list[i];
        if ((trainable && !p->trainable) || (counted && !p->counted)) continue;
        out->n += neb__param_pieces(p, out->piece + out->n);
    }
    return NEB_OK;
}

static neb_status send_list(struct neb_group *g, const struct list *l)
{
    NEB_TRY(neb__group_send(g, &l->n, sizeof l->n, 0));
    return neb__group_send(g, l->piece, (size_t)l->n * sizeof *l->piece, 0);
}

static bool fits(const struct neb_piece *p, int64_t values)
{
    return p->whole >= 0 && p->count > 0 && p->rows > 0 && p->whole_step >= 0 && p->count <= values &&
           p->rows <= values && p->whole_step <= values &&
           p->whole <= values - p->count - (p->rows - 1) * p->whole_step;
}

static neb_status receive_list(struct neb_group *g, int from, int64_t values, int64_t most, struct list *out)
{
    int64_t n = 0;
    NEB_TRY(neb__group_receive(g, &n, sizeof n, from));
    if (n < 0 || n > most) return neb__fail(NEB_ERR_PEER, "rank %d names %" PRId64 " pieces", from, n);
    *out = (struct list){NEB_NEW_ARRAY(struct neb_piece, (size_t)(n ? n : 1)), n};
    if (!out->piece) return neb__fail(NEB_ERR_NOMEM, "out of memory for %" PRId64 " pieces", n);
    neb_status status = neb__group_receive(g, out->piece, (size_t)n * sizeof *out->piece, from);
    for (int64_t i = 0; status == NEB_OK && i < n; i++)
        if (!fits(&out->piece[i], values))
            status =
                neb__fail(NEB_ERR_PEER, "rank %d names a piece outside the %" PRId64 " values", from, values);
    if (status != NEB_OK) neb__free(out->piece);
    return status;
}

static neb_status exchange_runs(struct neb_group *g, int with, const struct list *l, bool send, bool at_first,
                                float *values)
{
    for (int64_t i = 0; i < l->n; i++) {
        const struct neb_piece *p = &l->piece[i];
        int64_t at = at_first ? p->whole : p->here, step = at_first ? p->whole_step : p->here_step;
        for (int64_t r = 0; r < p->rows; r++) {
            float *run = values + at + r * step;
            size_t bytes = (size_t)p->count * sizeof *run;
            NEB_TRY(send ? neb__group_send(g, run, bytes, with) : neb__group_receive(g, run, bytes, with));
        }
    }
    return NEB_OK;
}

static void copy_own(const struct list *l, const float *here, float *whole)
{
    for (int64_t i = 0; i < l->n; i++) {
        const struct neb_piece *p = &l->piece[i];
        for (int64_t r = 0; r < p->rows; r++)
            memcpy(whole + p->whole + r * p->whole_step, here + p->here + r * p->here_step,
                   (size_t)p->count * sizeof *whole);
    }
}

static void take_own(const struct list *l, const float *whole, float *here)
{
    for (int64_t i = 0; i < l->n; i++) {
        const struct neb_piece *p = &l->piece[i];
        for (int64_t r = 0; r < p->rows; r++)
            memcpy(here + p->here + r * p->here_step, whole + p->whole + r * p->whole_step,
                   (size_t)p->count * sizeof *here);
    }
}

/* The first rank with each of the others in turn. */
static neb_status serve(struct neb_group *g, const neb_params *ps, bool trainable, bool send, float *whole)
{
    const int64_t values = trainable ? ps->whole_trainable : ps->whole_all;
    for (int r = 1; r < neb__group_size(g); r++) {
        struct list l = {0};
        NEB_TRY(receive_list(g, r, values, (int64_t)ps->count * NEB_PARAM_PARTS, &l));
        neb_status status = exchange_runs(g, r, &l, send, true, whole);
        neb__free(l.piece);
        NEB_TRY(status);
    }
    return NEB_OK;
}

static neb_status collect(const struct neb_layout *l, const neb_params *ps, bool trainable, const float *here,
                          float *whole)
{
    struct neb_group *g = neb__layout_model(l);
    struct list own;
    NEB_TRY(list_pieces(ps, trainable, true, &own));
    neb_status status;
    if (neb__group_rank(g)) {
        status = send_list(g, &own);
        if (status == NEB_OK) status = exchange_runs(g, 0, &own, true, false, (float *)(uintptr_t)here);
    } else {
        memset(whole, 0, (size_t)(trainable ? ps->whole_trainable : ps->whole_all) * sizeof *whole);
        copy_own(&own, here, whole);
        status = serve(g, ps, trainable, false, whole);
    }
    neb__free(own.piece);
    return status;
}

static neb_status over(const struct neb_layout *l, neb_status status)
{
    if (status != NEB_OK) neb__layout_give_up(l);
    return status;
}

neb_status neb__pieces_collect(const struct neb_layout *l, const neb_params *ps, bool trainable,
                               const float *here, float *whole)
{
    if (neb__group_rank(neb__layout_data(l))) return NEB_OK;
    return over(l, collect(l, ps, trainable, here, whole));
}

static neb_status distribute(const struct neb_layout *l, const neb_params *ps, bool trainable,
                             const float *whole, float *here)
{
    struct neb_group *g = neb__layout_model(l);
    struct list own;
    NEB_TRY(list_pieces(ps, trainable, false, &own));
    neb_status status;
    if (neb__group_rank(g)) {
        status = send_list(g, &own);
        if (status == NEB_OK) status = exchange_runs(g, 0, &own, false, false, here);
    } else {
        take_own(&own, whole, here);
        status = serve(g, ps, trainable, true, (float *)(uintptr_t)whole);
    }
    neb__free(own.piece);
    return status;
}

neb_status neb__pieces_distribute_first(const struct neb_layout *l, const neb_params *ps, bool trainable,
                                        const float *whole, float *here)
{
    return over(l, distribute(l, ps, trainable, whole, here));
}

neb_status neb__pieces_distribute(const struct neb_layout *l, const neb_params *ps, bool trainable,
                                  const float *whole, float *here)
{
    struct neb_group *data = neb__layout_data(l);
    int64_t n = trainable ? ps->trainable_values : ps->all_values;
    if (!neb__group_rank(data)) NEB_TRY(neb__pieces_distribute_first(l, ps, trainable, whole, here));
    return neb__group_broadcast(data, here, (size_t)n * sizeof *here, 0);
}

neb_status neb__pieces_take(const neb_params *ps, bool trainable, const float *whole, float *here)
{
    struct list own;
    NEB_TRY(list_pieces(ps, trainable, false, &own));
    take_own(&own, whole, here);
    neb__free(own.piece);
    return NEB_OK;
}
