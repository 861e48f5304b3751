/* linear.c: building parameters by path, linear layers with LoRA, norms.
 *
 * LoRA (Hu et al. 2021): y = x W^T + b + alpha / rank * (x A^T) B^T with W frozen. A is drawn from the seed
 * and B is zero, so training starts at the unchanged model. When W is cut by rows (outputs), so is B; when W
 * is cut by columns (inputs), so is A. The low-rank product then needs no communication of its own.
 *
 * A weight that is made of several matrices (q, k and v) has one pair for all of them, or one for each that a pattern
 * names, as the peft library has. Such a pair adds to its own columns of the product. */
#include "nn/layer.h"
#include "tensor/team.h"

#include <fnmatch.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

size_t neb__builder_enter(struct neb_builder *b, const char *fmt, ...)
{
    size_t mark = strlen(b->path);
    va_list args;
    va_start(args, fmt);
    vsnprintf(b->path + mark, sizeof b->path - mark, fmt, args);
    va_end(args);
    size_t end = strlen(b->path);
    snprintf(b->path + end, sizeof b->path - end, ".");
    return mark;
}

void neb__builder_leave(struct neb_builder *b, size_t mark)
{
    b->path[mark] = 0;
}

int64_t neb__builder_share(const struct neb_builder *b, int64_t n)
{
    return neb__team_count(b->params->team, n);
}

/* This process's part of each of the matrices that lie one behind the other. What is not cut is the first member's to
 * count. */
static void cut(const struct neb_builder *b, struct neb_param_spec *s)
{
    const struct neb_team *team = b->params->team;
    const int64_t one[3] = {s->shape[s->split == NEB_SPLIT_COLUMN]};
    const int64_t *parts = b->parts && b->parts[0] && s->split == NEB_SPLIT_ROW ? b->parts : one;
    int64_t at = 0;
    if (!team) return;
    if (s->split == NEB_SPLIT_NONE && team->rank) s->copy = true;
    for (int i = 0; s->split != NEB_SPLIT_NONE && i < 3 && parts[i]; i++) {
        s->part_first[i] = at + neb__team_first(team, parts[i]);
        s->part_count[i] = neb__team_count(team, parts[i]);
        s->parts = i + 1;
        at += parts[i];
    }
}

/* q, k and v, or gate and up, are matrices of their own to an optimizer. */
static void name_matrices(const struct neb_builder *b, struct neb_param_spec *s)
{
    s->hidden = b->hidden;
    for (int i = 0; s->split == NEB_SPLIT_ROW && b->parts && i < 3 && b->parts[i]; i++)
        s->matrix_rows[s->matrices++] = b->parts[i];
}

static neb_param *add(struct neb_builder *b, const char *name, struct neb_param_spec spec)
{
    char full[NEB_PATH + 64];
    snprintf(full, sizeof full, "%s%s", b->path, name);
    spec.name = full;
    spec.elsewhere = b->elsewhere;
    spec.copy = b->copy;
    cut(b, &spec);
    if (spec.ndim == 2) name_matrices(b, &spec);
    neb_param *p = neb_params_add(b->params, &spec);
    if (p && b->some_rows && spec.split == NEB_SPLIT_NONE) p->partial = true;
    return p;
}

neb_param *neb__builder_matrix(struct neb_builder *b, const char *name, int64_t rows, int64_t cols,
                               neb_init init, float scale, neb_split split)
{
    return add(b, name,
               (struct neb_param_spec){
                   .ndim = 2, .shape = {rows, cols}, .init = init, .scale = scale, .split = split});
}

neb_param *neb__builder_vector(struct neb_builder *b, const char *name, int64_t n, neb_init init,
                               neb_split split)
{
    return add(
        b, name,
        (struct neb_param_spec){.ndim = 1, .shape = {n}, .init = init, .no_decay = true, .split = split});
}

/* ---- linear -------------------------------------------------------------------------------------------- */

static bool wants_lora(const struct neb_builder *b, const char *name)
{
    char full[NEB_PATH + 64], pattern[NEB_PATH];
    if (!b->peft->lora) return false;
    snprintf(full, sizeof full, "%s%s", b->path + b->root, name);
    for (int i = 0; neb__list_part(b->peft->lora_on, i, pattern, sizeof pattern); i++)
        if (!fnmatch(pattern, full, 0)) return true;
    return false;
}

/* The matrices of the weight that have LoRA of their own. They are siblings of the weight: layers.0.attention.q. */
static void build_parts(struct neb_builder *b, const struct neb_lin_spec *s, struct neb_lin *l)
{
    int64_t r = b->peft->lora_rank, at = 0;
    for (int i = 0; i < 3 && s->parts[i]; i++) {
        struct neb_lora_part *p = &l->part[i];
        *p = (struct neb_lora_part){
            .name = s->names[i], .first = at, .count = neb__builder_share(b, s->parts[i])};
        at += p->count;
        if (!p->name || !wants_lora(b, p->name)) continue;
        size_t mark = neb__builder_enter(b, "%s", p->name);
        p->a = neb__builder_matrix(b, "lora.a", r, s->in, NEB_INIT_UNIFORM, 1.0f / sqrtf((float)s->in),
                                   NEB_SPLIT_NONE);
        p->b = neb__builder_matrix(b, "lora.b", s->parts[i], r, NEB_INIT_ZERO, 0, s->split);
        neb__builder_leave(b, mark);
        l->lora_scale = b->peft->lora_scale;
        l->lora_dropout = b->peft->lora_dropout;
        b->lora_layers++;
    }
}

struct neb_lin neb__lin_build(struct neb_builder *b, const struct neb_lin_spec *s)
{
    struct neb_lin l = {.split = s->split};
    bool lora = wants_lora(b, s->name);
    size_t mark = neb__builder_enter(b, "%s", s->name);
    b->parts = s->parts;
    l.weight = neb__builder_matrix(b, "weight", s->out, s->in, NEB_INIT_NORMAL, s->deviation, s->split);
    b->hidden = false; /* a low-rank pair is no such weight */
    /* When a weight is cut by columns, every process holds a part of each sum. The bias is added once, so it
     * is not cut. */
    const bool some_rows = b->some_rows;
    b->some_rows = some_rows && s->split == NEB_SPLIT_NONE; /* its gradient comes from all rows elsewhere */
    if (s->bias)
        l.bias = neb__builder_vector(b, "bias", s->out, NEB_INIT_ZERO,
                                     s->split == NEB_SPLIT_ROW ? NEB_SPLIT_ROW : NEB_SPLIT_NONE);
    b->some_rows = some_rows;
    if (lora) {
        int64_t r = b->peft->lora_rank;
        l.lora_a = neb__builder_matrix(b, "lora.a", r, s->in, NEB_INIT_UNIFORM, 1.0f / sqrtf((float)s->in),
                                       s->split == NEB_SPLIT_COLUMN ? NEB_SPLIT_COLUMN : NEB_SPLIT_NONE);
        l.lora_b = neb__builder_matrix(b, "lora.b", s->out, r, NEB_INIT_ZERO, 0,
                                       s->split == NEB_SPLIT_ROW ? NEB_SPLIT_ROW : NEB_SPLIT_NONE);
        l.lora_scale = b->peft->lora_scale;
        l.lora_dropout = b->peft->lora_dropout;
        b->lora_layers++;
    }
    b->parts = NULL;
    neb__builder_leave(b, mark);
    if (!lora && b->peft->lora) build_parts(b, s, &l);
    return l;
}

/* The low-rank product reads x before it enters: its gradient there is whole at every member. Where A is cut, it
 * makes a part of each sum; where B is cut, the gradients of its input are added up. */
static neb_tensor *add_lora(neb_tape *t, const struct neb_lin *l, neb_tensor *x, neb_tensor *y)
{
    neb_tensor *in = l->lora_dropout > 0 ? neb_op_dropout(t, x, l->lora_dropout) : x;
    neb_tensor *low = neb_op_linear(t, in, l->lora_a, NULL, NEB_ACT_NONE);
    if (l->split == NEB_SPLIT_COLUMN) low = neb__op_leave(t, low);
    if (l->split == NEB_SPLIT_ROW) low = neb__op_enter(t, low);
    return neb_op_linear_onto(t, y, low, l->lora_b, l->lora_scale);
}

/* y: the product with the whole weight, whose columns are views of it. */
static void add_part(neb_tape *t, const struct neb_lin *l, const struct neb_lora_part *p, neb_tensor *x,
                     neb_tensor *y)
{
    neb_push(t, "%s", p->name);
    neb_tensor *in = l->lora_dropout > 0 ? neb_op_dropout(t, x, l->lora_dropout) : x;
    neb_tensor *low = neb_op_linear(t, in, p->a, NULL, NEB_ACT_NONE);
    if (l->split == NEB_SPLIT_ROW) low = neb__op_enter(t, low);
    neb_op_linear_onto(t, neb_op_columns(t, y, p->first, p->count), low, p->b, l->lora_scale);
    neb_pop(t);
}

static bool has_parts(const struct neb_lin *l)
{
    return l->part[0].a || l->part[1].a || l->part[2].a;
}

neb_tensor *neb__lin_run(neb_tape *t, const struct neb_lin *l, neb_tensor *x, neb_act act)
{
    const neb_act now = l->lora_a || has_parts(l) || l->split == NEB_SPLIT_COLUMN ? NEB_ACT_NONE : act;
    neb_tensor *y;
    if (l->split == NEB_SPLIT_COLUMN)
        y = neb__op_leave(t, neb__op_linear_part(t, x, l->weight, l->bias));
    else
        y = neb_op_linear(t, l->split == NEB_SPLIT_ROW ? neb__op_enter(t, x) : x, l->weight, l->bias, now);
    if (l->lora_a) y = add_lora(t, l, x, y);
    for (int i = 0; i < 3; i++)
        if (l->part[i].a) add_part(t, l, &l->part[i], x, y);
    return act == now ? y : neb_op_act(t, y, act);
}

/* ---- norm ---------------------------------------------------------------------------------------------- */

struct neb_norm_layer neb__norm_build(struct neb_builder *b, const char *name, int64_t n)
{
    struct neb_norm_layer l = {.kind = b->arch->norm, .eps = b->arch->eps};
    size_t mark = neb__builder_enter(b, "%s", name);
    l.gamma = neb__builder_vector(b, "weight", n, NEB_INIT_ONE, NEB_SPLIT_NONE);
    if (l.kind == NEB_NORM_LAYER && b->arch->bias)
        l.beta = neb__builder_vector(b, "bias", n, NEB_INIT_ZERO, NEB_SPLIT_NONE);
    neb__builder_leave(b, mark);
    return l;
}

neb_tensor *neb__norm_run(neb_tape *t, const struct neb_norm_layer *n, neb_tensor *x)
{
    return neb_op_norm(t, x, n->gamma, n->beta, n->kind, n->eps);
}
