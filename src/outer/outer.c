/* outer.c: the replicated state and its hashes.
 *
 * A cell's leaf is SHA-256 of (0, cell, version, theta bytes, m bytes), and in a run with a rule of influence
 * also of the lengths of the sites' last updates (norms.h). The root is that of a binary tree
 * over the leaves. A node is H(1, left, right), and an odd node goes up unchanged. Two sites with the same
 * root after the same record have the same bits everywhere. A single fetched cell is checked against a root
 * with a path of a few hashes.
 *
 * A record is applied in chunks that stay in the first-level cache, into a scratch copy of the cell. The copy
 * becomes the state only when all of it is finite.
 *
 * Hashing a cell takes longer than applying a record to it, and nobody asks for the roots of most records. So
 * a change only marks the cell as stale. It is hashed when somebody wants its leaf, a root or a path.
 *
 * Invariant: leaf[c] is the hash of the cell's content, or the cell is stale; theta and m are finite. */
#include "outer/outer.h"
#include "outer/arith.h"
#include "base/bytes.h"
#include "base/mem.h"
#include "base/mutant.h"

enum { CHUNK = 2048 };                                  /* values */
enum { COMBINE_MEAN, COMBINE_TRIMMED, COMBINE_MEDIAN }; /* as enum neb_combine of round/influence.h */

static neb_status leaf_hash(uint32_t cell, uint64_t version, const float *theta, const float *m, size_t n,
                            const struct neb_norms *norms, struct neb_hash *out)
{
    uint8_t head[13] = {0};
    neb__put32(head + 1, cell);
    neb__put64(head + 5, version);
    struct neb_hasher h;
    NEB_TRY(neb__hasher_init(&h));
    neb_status status = neb__hasher_update(&h, head, sizeof head);
    if (status == NEB_OK) status = neb__hasher_update(&h, theta, n * sizeof *theta);
    if (status == NEB_OK) status = neb__hasher_update(&h, m, n * sizeof *m);
    if (status == NEB_OK && norms) status = neb__hasher_update(&h, norms, sizeof *norms);
    neb_status f = neb__hasher_final(&h, status == NEB_OK ? out : NULL);
    return status != NEB_OK ? status : f;
}

static neb_status node_hash(const struct neb_hash *l, const struct neb_hash *r, struct neb_hash *out)
{
    uint8_t b[1 + 2 * NEB_HASH_SIZE] = {1};
    memcpy(b + 1, l->b, NEB_HASH_SIZE);
    memcpy(b + 1 + NEB_HASH_SIZE, r->b, NEB_HASH_SIZE);
    return neb__hash(b, sizeof b, out);
}

size_t neb__outer_cell(const struct neb_outer *o, uint32_t cell, size_t *first)
{
    *first = (size_t)cell * o->width;
    return o->values - *first < o->width ? o->values - *first : o->width;
}

static neb_status releaf(struct neb_outer *o, uint32_t cell)
{
    size_t at, n = neb__outer_cell(o, cell, &at);
    if (!o->stale[cell]) return NEB_OK;
    const struct neb_norms *norms = o->norms ? &o->norms[cell] : NULL;
    NEB_TRY(leaf_hash(cell, o->version[cell], o->theta + at, o->m + at, n, norms, &o->leaf[cell]));
    o->stale[cell] = false;
    return NEB_OK;
}

neb_status neb__outer_leaf(struct neb_outer *o, uint32_t cell, struct neb_hash *out)
{
    NEB_TRY(releaf(o, cell));
    *out = o->leaf[cell];
    return NEB_OK;
}

static bool finite_all(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &x[i], 4);
        if ((u & 0x7f800000u) == 0x7f800000u) return false;
    }
    return true;
}

void neb__outer_destroy(struct neb_outer *o)
{
    if (!o) return;
    neb__free(o->theta);
    neb__free(o->m);
    neb__free(o->version);
    neb__free(o->leaf);
    neb__free(o->stale);
    neb__free(o->scratch);
    neb__free(o->norms);
    neb__free(o);
}

neb_status neb__outer_create(uint32_t width, const float *theta, size_t values, struct neb_outer **out)
{
    if (!width || !values || values / width >= UINT32_MAX)
        return neb__fail(NEB_ERR_INVALID, "outer state of %zu values in cells of %u", values, width);
    if (!finite_all(theta, values))
        return neb__fail(NEB_ERR_RANGE, "the initial parameters are not all finite");
    struct neb_outer *o = NEB_NEW(struct neb_outer);
    if (!o) return neb__fail(NEB_ERR_NOMEM, "out of memory for the outer state");
    o->cells = (uint32_t)((values + width - 1) / width);
    o->width = width;
    o->values = values;
    o->theta = neb__aligned(values * sizeof(float));
    o->m = neb__aligned(values * sizeof(float));
    o->version = NEB_NEW_ARRAY(uint64_t, o->cells);
    o->leaf = NEB_NEW_ARRAY(struct neb_hash, o->cells);
    o->stale = NEB_NEW_ARRAY(bool, o->cells);
    o->scratch = neb__aligned((size_t)2 * width * sizeof(float));
    if (!o->theta || !o->m || !o->version || !o->leaf || !o->stale || !o->scratch) {
        neb__outer_destroy(o);
        return neb__fail(NEB_ERR_NOMEM, "out of memory for an outer state of %zu values", values);
    }
    memcpy(o->theta, theta, values * sizeof(float));
    memset(o->m, 0, values * sizeof(float));
    for (uint32_t c = 0; c < o->cells; c++) o->stale[c] = true;
    *out = o;
    return NEB_OK;
}

neb_status neb__outer_keep_norms(struct neb_outer *o)
{
    o->norms = NEB_NEW_ARRAY(struct neb_norms, o->cells);
    for (uint32_t c = 0; c < o->cells; c++) o->stale[c] = true;
    return o->norms ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for the lengths of updates");
}

bool neb__outer_enough(const struct neb_outer_step *step)
{
    return step->combine == COMBINE_MEAN || step->updates >= 2u * step->liars + 1;
}

/* The middle values of one coordinate: all but the `liars` lowest and highest (trimmed), or one or two (median). */
static void middle_range(const struct neb_outer_step *step, uint32_t *first, uint32_t *last)
{
    uint32_t n = step->updates;
    *first = step->combine == COMBINE_MEDIAN ? (n - 1) / 2 : step->liars;
    *last = n - 1 - *first;
}

/* g: the mean of the middle values of each coordinate, summed from the lowest. */
static void combine_middle(const struct neb_outer_step *step, size_t from, size_t n, float *g)
{
    uint32_t first, last;
    middle_range(step, &first, &last);
    const float share = neb__arith_share(1, last - first + 1);
    for (size_t i = 0; i < n; i++) {
        float v[NEB_NORM_SITES];
        for (uint32_t k = 0; k < step->updates; k++) {
            float x = step->values[k][from + i];
            uint32_t j = k;
            for (; j && v[j - 1] > x; j--) v[j] = v[j - 1];
            v[j] = x;
        }
        float sum = v[first];
        for (uint32_t k = first + 1; k <= last; k++) sum = sum + v[k];
        g[i] = share * sum;
    }
}

static void combine_mean(const struct neb_outer *o, const struct neb_outer_step *step, uint64_t sum,
                         size_t from, size_t n, float *g)
{
    for (uint32_t k = 0; k < step->updates; k++) {
        uint32_t i = NEB_MUTANT(sum_arrival_order) ? (k + (uint32_t)((uintptr_t)o >> 8)) % step->updates : k;
        neb__arith_add(g, step->values[i] + from, neb__arith_share(step->weight[i], sum), n, k == 0);
    }
}

/* Computes the next theta and m of values [from, from + n) of a cell. False: not finite. */
static bool next_chunk(const struct neb_outer *o, const struct neb_outer_step *step, uint64_t sum, size_t at,
                       size_t from, size_t n, float *t, float *m)
{
    float g[CHUNK];
    if (step->combine == COMBINE_MEAN)
        combine_mean(o, step, sum, from, n, g);
    else
        combine_middle(step, from, n, g);
    const float *theta = o->theta + at + from;
    return step->mode == NEB_OUTER_AVERAGE
               ? neb__arith_average(theta, g, n, t, m)
               : neb__arith_nesterov(theta, o->m + at + from, g, step->eta, step->mu, n, t, m);
}

static void take_over(float *restrict theta, const float *restrict next, float *restrict moved, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        moved[i] = next[i] - theta[i];
        theta[i] = next[i];
    }
}

void neb__outer_apply(struct neb_outer *o, uint32_t cell, const struct neb_outer_step *step, bool *finite)
{
    size_t at, n = neb__outer_cell(o, cell, &at);
    float *t = o->scratch, *m = t + o->width;
    uint64_t sum = 0;
    bool ok = true;
    for (uint32_t i = 0; i < step->updates && neb__outer_enough(step); i++) sum += step->weight[i];
    if (sum) {
        uint32_t saved;
        neb__arith_enter(&saved);
        for (size_t i = 0; ok && i < n; i += CHUNK)
            ok = next_chunk(o, step, sum, at, i, n - i < CHUNK ? n - i : CHUNK, t + i, m + i);
        if (ok && step->moved)
            take_over(o->theta + at, t, step->moved, n);
        else if (ok)
            memcpy(o->theta + at, t, n * sizeof *t);
        if (ok) memcpy(o->m + at, m, n * sizeof *m);
        neb__arith_leave(saved);
    }
    if (step->moved && (!sum || !ok)) memset(step->moved, 0, n * sizeof *step->moved);
    if (o->norms && step->norm) neb__norms_add(&o->norms[cell], step->norm, step->scale);
    o->version[cell]++;
    o->stale[cell] = !NEB_MUTANT(stale_leaf);
    *finite = ok;
}

static bool norms_are_valid(const struct neb_norms *norms)
{
    const float *v = &norms->last[0][0][0];
    for (size_t i = 0; i < sizeof *norms / sizeof *v; i++)
        if (!(v[i] >= 0 && v[i] <= 3e38f)) return false;
    return true;
}

neb_status neb__outer_install(struct neb_outer *o, uint32_t cell, uint64_t version, const float *theta,
                              const float *m, const struct neb_norms *norms)
{
    size_t at, n = neb__outer_cell(o, cell, &at);
    if (!finite_all(theta, n) || !finite_all(m, n))
        return neb__fail(NEB_ERR_RANGE, "cell %u has values that are not finite", cell);
    if (o->norms && (!norms || !norms_are_valid(norms)))
        return neb__fail(NEB_ERR_RANGE, "cell %u lacks valid lengths of updates", cell);
    if (o->norms) o->norms[cell] = *norms;
    memcpy(o->theta + at, theta, n * sizeof *theta);
    memcpy(o->m + at, m, n * sizeof *m);
    o->version[cell] = version;
    o->stale[cell] = true;
    return NEB_OK;
}

/* Goes one level up, in place. The sibling of `follow` goes to *beside if it has one. */
static neb_status level_up(struct neb_hash *h, uint32_t n, uint32_t follow, struct neb_hash *beside,
                           bool *had)
{
    *had = (follow ^ 1) < n;
    if (*had) *beside = h[follow ^ 1];
    for (uint32_t i = 0; i < n / 2; i++) NEB_TRY(node_hash(&h[2 * i], &h[2 * i + 1], &h[i]));
    if (n & 1) h[n / 2] = h[n - 1];
    return NEB_OK;
}

static neb_status climb(struct neb_outer *o, uint32_t cell, struct neb_hash *path, int *steps,
                        struct neb_hash *root)
{
    struct neb_hash few[16], *h = o->cells <= 16 ? few : NEB_NEW_ARRAY(struct neb_hash, o->cells);
    if (!h) return neb__fail(NEB_ERR_NOMEM, "out of memory for a hash tree");
    neb_status status = NEB_OK;
    for (uint32_t c = 0; c < o->cells && status == NEB_OK; c++) status = neb__outer_leaf(o, c, &h[c]);
    *steps = 0;
    for (uint32_t n = o->cells; n > 1 && status == NEB_OK; n = (n + 1) / 2, cell /= 2) {
        struct neb_hash beside;
        bool had;
        status = level_up(h, n, cell, &beside, &had);
        if (had && path) path[(*steps)++] = beside;
    }
    *root = h[0];
    if (h != few) neb__free(h);
    return status;
}

neb_status neb__outer_root(struct neb_outer *o, struct neb_hash *out)
{
    int n;
    return climb(o, 0, NULL, &n, out);
}

neb_status neb__outer_prove(struct neb_outer *o, uint32_t cell, struct neb_hash path[NEB_PROOF_MAX], int *n)
{
    struct neb_hash root;
    return climb(o, cell, path, n, &root);
}

neb_status neb__outer_proved(uint32_t cells, uint32_t cell, uint64_t version, const float *theta,
                             const float *m, size_t values, const struct neb_norms *norms,
                             const struct neb_hash *path, int n, struct neb_hash *root)
{
    struct neb_hash h;
    int used = 0;
    if (cell >= cells) return neb__quiet(NEB_ERR_CORRUPT, "cell %u of %u", cell, cells);
    NEB_TRY(leaf_hash(cell, version, theta, m, values, norms, &h));
    for (uint32_t width = cells, at = cell; width > 1; width = (width + 1) / 2, at /= 2) {
        if ((at ^ 1) >= width) continue;
        if (used == n) return neb__quiet(NEB_ERR_CORRUPT, "proof of cell %u is too short", cell);
        const struct neb_hash *beside = &path[used++];
        NEB_TRY(at & 1 ? node_hash(beside, &h, &h) : node_hash(&h, beside, &h));
    }
    if (used != n) return neb__quiet(NEB_ERR_CORRUPT, "proof of cell %u is too long", cell);
    *root = h;
    return NEB_OK;
}
