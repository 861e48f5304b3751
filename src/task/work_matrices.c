/* work_matrices.c: which matrices Muon steps, as a checkpoint has it.
 *
 * The two optimizers keep different things of a parameter: AdamW both moments, Muon one. A matrix that went from one to the
 * other in the middle would have a large first moment beside a second of zero, long after AdamW's correction of its
 * beginning, and its first step would be thousands of times too long. So a checkpoint has the names of the matrices, one a
 * line, and a training goes on with the same ones only. Where a checkpoint has no names, its moments tell: a matrix with a
 * first and no second one is Muon's.
 *
 * A matrix of Muon's has no second moment, so a checkpoint leaves that out: its second moments are those of all other trainable
 * parameters, one behind the other. Without matrices they are the slab as it is. */
#include "task/work_internal.h"
#include "base/buf.h"

#include <string.h>

static bool is_taken(const struct neb_work *w, const neb_param *p)
{
    return w->params->matrices_taken && p->trainable && p->taken_as_matrix;
}

static bool may_be_taken(const struct neb_work *w, const neb_param *p)
{
    return p->trainable && p->ndim == 2 && !(neb__work_has_stage(w) && p->elsewhere);
}

static neb_status other(const neb_param *p, bool now)
{
    return neb__fail(
        NEB_ERR_CONFIG,
        "the checkpoint was written with another train.muon_also: %s made the steps of '%s', and "
        "now %s would; write train.muon_also as it was, or begin anew in another folder (out), from "
        "the trained model if you like (init.from)",
        now ? "AdamW" : "Muon", p->name, now ? "Muon" : "AdamW");
}

neb_status neb__work_list_matrices(const struct neb_work *w, struct neb_buf *out)
{
    for (int i = 0; i < w->params->count; i++) {
        const neb_param *p = w->params->list[i];
        if (!may_be_taken(w, p) || !is_taken(w, p)) continue;
        NEB_TRY(neb__buf_append(out, p->name, strlen(p->name)));
        NEB_TRY(neb__buf_append(out, "\n", 1));
    }
    return NEB_OK;
}

static bool is_listed(const char *name, const char *list, size_t n)
{
    const size_t length = strlen(name);
    for (const char *end; n; n -= (size_t)(end + 1 - list), list = end + 1) {
        end = memchr(list, '\n', n);
        if (!end) return false;
        if ((size_t)(end - list) == length && !memcmp(list, name, length)) return true;
    }
    return false;
}

neb_status neb__work_same_matrices(const struct neb_work *w, const char *list, size_t n)
{
    for (int i = 0; i < w->params->count; i++) {
        const neb_param *p = w->params->list[i];
        if (!may_be_taken(w, p)) continue;
        if (is_listed(p->name, list, n) != is_taken(w, p)) return other(p, is_taken(w, p));
    }
    return NEB_OK;
}

static bool any(const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (x[i] < 0 || x[i] > 0) return true;
    return false;
}

neb_status neb__work_same_moments(const struct neb_work *w, const float *m, const float *v)
{
    int64_t at = 0, end;
    for (int i = 0; i < w->params->count; i++, at = end) {
        const neb_param *p = w->params->list[i];
        end = neb__work_place_behind(w, p, &at);
        if (!may_be_taken(w, p)) continue;
        const int64_t n = neb__param_slab_whole(p);
        const bool second = any(v + at, n);
        if (is_taken(w, p) ? second : !second && any(m + at, n)) return other(p, is_taken(w, p));
    }
    return NEB_OK;
}

int64_t neb__work_pack_second(const struct neb_work *w, float *v)
{
    int64_t at = 0, end, n = 0;
    bool any_taken = false;
    for (int i = 0; i < w->params->count; i++) any_taken |= is_taken(w, w->params->list[i]);
    if (!any_taken) return neb__work_slab_values(w);
    for (int i = 0; i < w->params->count; i++, at = end) {
        const neb_param *p = w->params->list[i];
        end = neb__work_place_behind(w, p, &at);
        if (end == at || is_taken(w, p)) continue;
        const int64_t values = neb__param_slab_whole(p);
        if (v) memmove(v + n, v + at, (size_t)values * sizeof *v);
        n += values;
    }
    return n;
}

void neb__work_unpack_second(const struct neb_work *w, const float *packed, float *v)
{
    int64_t at = 0, end;
    memset(v, 0, (size_t)neb__work_slab_values(w) * sizeof *v);
    for (int i = 0; i < w->params->count; i++, at = end) {
        const neb_param *p = w->params->list[i];
        end = neb__work_place_behind(w, p, &at);
        if (end == at || is_taken(w, p)) continue;
        const int64_t values = neb__param_slab_whole(p);
        memcpy(v + at, packed, (size_t)values * sizeof *v);
        packed += values;
    }
}
