/* pieces.c: the parts of a parameter that this process holds, in the coordinates of the whole slab.
 *
 * A parameter of shape (a, b, …) that is cut by its second dimension has, for each index of the first one, a
 * run of part_count * (b's inner values). The parts of one row lie one after the other in the local slab. */
#include "tensor/pieces.h"
#include "base/status.h"

int neb__param_pieces(const neb_param *p, struct neb_piece *out)
{
    if (p->elsewhere || p->narrow) return 0;
    if (!p->parts) {
        out[0] = (struct neb_piece){p->whole_offset, p->offset, p->values, 1, p->values, p->values};
        return 1;
    }
    const bool by_rows = p->split == NEB_SPLIT_ROW;
    const int64_t rows = by_rows ? 1 : p->shape[0];
    const int64_t whole_row = p->whole_values / rows, here_row = p->values / rows;
    const int64_t inner = whole_row / p->global[by_rows ? 0 : 1];
    int64_t here = p->offset;
    for (int i = 0; i < p->parts; i++) {
        out[i] = (struct neb_piece){.whole = p->whole_offset + p->part_first[i] * inner,
                                    .here = here,
                                    .count = p->part_count[i] * inner,
                                    .rows = rows,
                                    .whole_step = whole_row,
                                    .here_step = here_row};
        here += out[i].count;
    }
    return p->parts;
}

neb_status neb__param_runs(const neb_param *p,
                           neb_status (*fn)(void *arg, int64_t whole, int64_t here, int64_t n), void *arg)
{
    struct neb_piece piece[NEB_PARAM_PARTS];
    int n = neb__param_pieces(p, piece);
    for (int64_t r = 0; n && r < piece[0].rows; r++)
        for (int i = 0; i < n; i++)
            NEB_TRY(fn(arg, piece[i].whole + r * piece[i].whole_step, piece[i].here + r * piece[i].here_step,
                       piece[i].count));
    return NEB_OK;
}
