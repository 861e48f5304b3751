/* teacher_ensemble.c: several teachers on this site that answer as one.
 *
 * Each gives its k likeliest tokens at every row. Their probabilities, as if a teacher thought nothing else
 * possible, are added up token by token, and the k likeliest of the sum go on as logarithms: the mean of the
 * teachers' distributions, short of what lies below a teacher's k-th token. Rows are shared out to threads in
 * blocks. A teacher may have a weight; a row to which it has no answer is left to the others. Each thread has a table that finds a token's place in the sum, which a new row empties by counting
 * up. */
#include "base/mem.h"
#include "base/pool.h"
#include "base/topk.h"
#include "task/folder.h"
#include "task/teacher.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK = 64 };

/* The sum of one row. */
struct sum {
    uint32_t row;     /* places with another mark are empty */
    uint32_t *marked; /* (places) */
    int32_t *place;   /* (places) of the table: where in the sum */
    int32_t n;
    int32_t *ids; /* (n): the tokens so far */
    float *p;
};

struct ensemble {
    struct neb_teacher member[NEB_TEACHERS_MAX];
    struct neb_teacher_answer said[NEB_TEACHERS_MAX];
    float weight[NEB_TEACHERS_MAX];
    int members;
    int32_t k, rows; /* rows: of the present batch */
    uint32_t places; /* of a table: a power of two */
    struct neb_pool *pool;
    struct sum *sums; /* (threads) */
    int32_t *ids;
    float *top;
};

/* ---- a row --------------------------------------------------------------------------------------------- */

static void add(const struct ensemble *c, struct sum *s, int32_t id, float p)
{
    uint32_t at = (uint32_t)id * 2654435761u & (c->places - 1);
    while (s->marked[at] == s->row && s->ids[s->place[at]] != id) at = (at + 1) & (c->places - 1);
    if (s->marked[at] != s->row) {
        s->marked[at] = s->row;
        s->place[at] = s->n;
        s->ids[s->n] = id;
        s->p[s->n++] = 0;
    }
    s->p[s->place[at]] += p;
}

static void add_member(const struct ensemble *c, struct sum *s, int member, int64_t row)
{
    const struct neb_teacher *m = &c->member[member];
    const struct neb_teacher_answer *said = &c->said[member];
    const float weight = c->weight[member];
    const int32_t *ids = said->ids + row * m->k;
    const float *logits = said->logits + row * m->k;
    float max = -INFINITY, all = 0;
    for (int32_t j = 0; j < m->k; j++)
        if (ids[j] >= 0 && logits[j] > max) max = logits[j];
    for (int32_t j = 0; j < m->k; j++)
        if (ids[j] >= 0) all += expf(logits[j] - max);
    for (int32_t j = 0; j < m->k; j++)
        if (ids[j] >= 0) add(c, s, ids[j], weight * (expf(logits[j] - max) / all));
}

static void mix_row(struct ensemble *c, struct sum *s, int64_t row)
{
    float *top = c->top + row * c->k;
    int32_t *ids = c->ids + row * c->k;
    s->n = 0;
    s->row++;
    for (int m = 0; m < c->members; m++) add_member(c, s, m, row);
    neb__topk_heap_clear(top, ids, c->k);
    for (int32_t i = 0; i < s->n; i++)
        if (s->p[i] > 0) neb__topk_heap_offer(top, ids, c->k, logf(s->p[i]), s->ids[i]);
    neb__topk_zero_empty(top, ids, c->k);
}

static void mix_block(void *arg, int task, int worker)
{
    struct ensemble *c = arg;
    int32_t end = (task + 1) * BLOCK < c->rows ? (task + 1) * BLOCK : c->rows;
    for (int32_t row = task * BLOCK; row < end; row++) mix_row(c, &c->sums[worker], row);
}

static neb_status ask(void *arg, const struct neb_batch *b, struct neb_teacher_answer *out)
{
    struct ensemble *c = arg;
    for (int i = 0; i < c->members; i++) NEB_TRY(c->member[i].ask(c->member[i].arg, b, &c->said[i]));
    for (int i = 0; i < neb__pool_threads(c->pool); i++) {
        struct sum *s = &c->sums[i];
        if (s->row < UINT32_MAX / 2) continue;
        memset(s->marked, 0, c->places * sizeof *s->marked); /* long before a mark could come again */
        s->row = 0;
    }
    c->rows = b->loss.n;
    neb__pool_run(c->pool, mix_block, c, (c->rows + BLOCK - 1) / BLOCK);
    *out = (struct neb_teacher_answer){.ids = c->ids, .logits = c->top};
    return NEB_OK;
}

/* ---- opening ------------------------------------------------------------------------------------------- */

static void close_ensemble(void *arg)
{
    struct ensemble *c = arg;
    for (int i = 0; i < c->members; i++)
        if (c->member[i].close) c->member[i].close(c->member[i].arg);
    for (int i = 0; c->sums && i < neb__pool_threads(c->pool); i++) {
        neb__free(c->sums[i].marked);
        neb__free(c->sums[i].place);
        neb__free(c->sums[i].ids);
        neb__free(c->sums[i].p);
    }
    neb__free(c->sums);
    neb__pool_destroy(c->pool);
    neb__free(c->ids);
    neb__free(c->top);
    neb__free(c);
}

static neb_status make_room(struct ensemble *c, int threads, int32_t targets)
{
    size_t most = 0, kept = (size_t)targets * (size_t)c->k;
    for (int i = 0; i < c->members; i++) most += (size_t)c->member[i].k;
    for (c->places = 16; c->places < 2 * most;) c->places *= 2;
    NEB_TRY(neb__pool_create(threads, &c->pool));
    int n = neb__pool_threads(c->pool);
    c->ids = NEB_NEW_ARRAY(int32_t, kept ? kept : 1);
    c->top = NEB_NEW_ARRAY(float, kept ? kept : 1);
    c->sums = NEB_NEW_ARRAY(struct sum, (size_t)n);
    bool ok = c->ids && c->top && c->sums;
    for (int i = 0; ok && i < n; i++) {
        struct sum *s = &c->sums[i];
        s->marked = NEB_NEW_ARRAY(uint32_t, c->places);
        s->place = NEB_NEW_ARRAY(int32_t, c->places);
        s->ids = NEB_NEW_ARRAY(int32_t, most);
        s->p = NEB_NEW_ARRAY(float, most);
        ok = s->marked && s->place && s->ids && s->p;
    }
    return ok ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for %d teachers", c->members);
}

/* distill.weights, one for each teacher; without it they count the same. */
static neb_status read_weights(struct ensemble *c, const struct neb_teacher_config *cfg)
{
    const struct neb_job *j = cfg->data ? cfg->data->job : NULL;
    const char *list = j ? j->distill.weights : NULL;
    char word[32], *end;
    int n = 0;
    for (int i = 0; i < c->members; i++) c->weight[i] = 1;
    for (; list && neb__list_part(list, n, word, sizeof word); n++) {
        double weight = strtod(word, &end);
        if (n >= c->members || *end || !(weight > 0 && weight < 1e6)) break;
        c->weight[n] = (float)weight;
    }
    if (!list || (n == c->members && !neb__list_part(list, n, word, sizeof word))) return NEB_OK;
    return neb__doc_fail(&j->doc, "distill.weights",
                         "distill.weights: '%s' is not a positive number for each of %d teachers", list,
                         c->members);
}

static neb_status open_members(struct ensemble *c, neb_device *device, const struct neb_teacher_config *cfg,
                               const struct neb_model_input_limits *limits)
{
    char folder[NEB_MODEL_PATH + 1];
    struct neb_teacher_config one = *cfg;
    one.folder = folder;
    for (; neb__list_part(cfg->folder, c->members, folder, sizeof folder); c->members++) {
        struct neb_teacher *m = &c->member[c->members];
        if (c->members == NEB_TEACHERS_MAX)
            return neb__fail(NEB_ERR_CONFIG, "at most %d teachers at a time: %s", NEB_TEACHERS_MAX,
                             cfg->folder);
        NEB_TRY(neb__teacher_open(device, &one, limits, m));
        if (m->k > c->k) c->k = m->k;
    }
    return read_weights(c, cfg);
}

neb_status neb__teacher_mix_open(const struct neb_teacher *members, const double *weights, int n, int threads,
                                 int32_t targets, struct neb_teacher *out)
{
    if (n > NEB_TEACHERS_MAX)
        return neb__fail(NEB_ERR_CONFIG, "at most %d teachers at a time", NEB_TEACHERS_MAX);
    struct ensemble *c = NEB_NEW(struct ensemble);
    if (!c) return neb__fail(NEB_ERR_NOMEM, "out of memory for several teachers");
    for (; c->members < n; c->members++) {
        c->member[c->members] = members[c->members];
        c->weight[c->members] = (float)weights[c->members];
        if (members[c->members].k > c->k) c->k = members[c->members].k;
    }
    neb_status status = make_room(c, threads, targets);
    if (status != NEB_OK) {
        c->members = 0; /* they stay the caller's */
        close_ensemble(c);
        return status;
    }
    *out = (struct neb_teacher){.k = c->k, .ask = ask, .close = close_ensemble, .arg = c};
    return NEB_OK;
}

neb_status neb__teacher_ensemble_open(neb_device *device, const struct neb_teacher_config *cfg,
                                      const struct neb_model_input_limits *limits, struct neb_teacher *out)
{
    char second[2];
    if (!neb__list_part(cfg->folder, 1, second, sizeof second))
        return neb__teacher_open(device, cfg, limits, out);
    if (cfg->logp)
        return neb__fail(NEB_ERR_CONFIG, "distill.on_policy: one teacher judges, but there are several: %s",
                         cfg->folder);
    struct ensemble *c = NEB_NEW(struct ensemble);
    if (!c) return neb__fail(NEB_ERR_NOMEM, "out of memory for several teachers");
    neb_status status = open_members(c, device, cfg, limits);
    if (status == NEB_OK) status = make_room(c, cfg->threads, limits->targets);
    if (status != NEB_OK) {
        close_ensemble(c);
        return status;
    }
    *out = (struct neb_teacher){.k = c->k, .ask = ask, .close = close_ensemble, .arg = c};
    return NEB_OK;
}
