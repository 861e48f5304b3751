/* matrices.c: see matrices.h. A weight may be several matrices one below the other (q, k, v). A team cuts each of them
 * alike, by rows or by columns. */
#include "tensor/matrices.h"
#include "base/status.h"
#include "tensor/partition.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

static neb_status take_matching(neb_params *ps, const char *pattern)
{
    int found = 0;
    for (int i = 0; i < ps->count; i++) {
        neb_param *p = ps->list[i];
        if (p->ndim != 2 || !p->trainable || fnmatch(pattern, p->name, 0)) continue;
        p->taken_as_matrix = true;
        found++;
    }
    if (found) return NEB_OK;
    return neb__fail(NEB_ERR_CONFIG, "muon_also: '%s' matches no trainable matrix of the model", pattern);
}

static neb_status take_also(neb_params *ps, const char *also)
{
    while (also && *also) {
        char pattern[256];
        size_t n = strcspn(also, ",");
        const char *from = also + strspn(also, " ");
        if (n >= sizeof pattern) return neb__fail(NEB_ERR_CONFIG, "muon_also: a pattern is too long");
        snprintf(pattern, sizeof pattern, "%.*s", (int)(also + n - from > 0 ? also + n - from : 0), from);
        for (size_t end = strlen(pattern); end && pattern[end - 1] == ' ';) pattern[--end] = 0;
        if (*pattern) NEB_TRY(take_matching(ps, pattern));
        also += n + (also[n] == ',');
    }
    return NEB_OK;
}

neb_status neb__params_take_matrices(neb_params *ps, const char *also)
{
    if (ps->matrices_taken) return NEB_OK;
    if (ps->ready && (neb__partition_of_grads(ps) || neb__partition_of_masters(ps)))
        return neb__fail(NEB_ERR_STATE,
                         "the ranks have shared out the parameters, perhaps in the middle of a matrix");
    for (int i = 0; i < ps->count; i++)
        ps->list[i]->taken_as_matrix = ps->list[i]->hidden && ps->list[i]->trainable;
    NEB_TRY(take_also(ps, also));
    ps->matrices_taken = true;
    return NEB_OK;
}

int neb__param_matrices(const neb_param *p, struct neb_matrix out[NEB_PARAM_PARTS])
{
    const bool by_rows = p->parts && p->split == NEB_SPLIT_ROW;
    int64_t at = p->offset;
    if (!p->values || (by_rows && p->parts != p->matrices)) return 0;
    for (int i = 0; i < p->matrices; i++) {
        out[i] = (struct neb_matrix){.param = p,
                                     .at = at,
                                     .rows = by_rows ? p->part_count[i] : p->matrix_rows[i],
                                     .cols = p->shape[1],
                                     .whole_rows = p->matrix_rows[i],
                                     .whole_cols = p->global[1],
                                     .cut = p->parts ? p->split : NEB_SPLIT_NONE};
        at += out[i].rows * out[i].cols;
    }
    return p->matrices;
}
