/* linear.c: building parameters by path, linear layers with LoRA, norms.
 *
 * LoRA (Hu et al. 2021): y = x W^T + b + alpha / rank * (x A^T) B^T with W frozen. A is drawn from the seed
 * and B is zero, so training starts at the unchanged model. When W is cut by rows (outputs), so is B; when W
 * is cut by columns (inputs), so is A. The low-rank product then needs no communication of its own.
 *
 * A weight that is made of several matrices (q, k and v) has one pair for all of them, or one for each that a pattern
 * names, as the peft library has. Such a pair adds to its own columns of the product.
 *
 * DoRA gives the sum of W and the pair's product a trained length for each row (tensor/op_columns.c). IA3 (Liu et al. 2022)
 * trains no matrix at all: factors for outputs, or for inputs, of a layer. */
#include "nn/layer.h"
#include "tensor/columns.h"
#include "tensor/tape.h"
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

static bool matches(const struct neb_builder *b, const char *list, const char *name)
{
    char full[NEB_PATH + 64], pattern[NEB_PATH];
    snprintf(full, sizeof full, "%s%s", b->path + b->root, name);
    for (int i = 0; neb__list_part(list, i, pattern, sizeof pattern); i++)
        if (!fnmatch(pattern, full, 0)) return true;
    return false;
}

static bool wants_lora(const struct neb_builder *b, const char *name)
{
    return b->peft->lora && matches(b, b->peft->lora_on, name);
}

static neb_param *build_length(struct neb_builder *b, int64_t n)
{
    return b->peft->dora ? neb__builder_vector(b, "lora.m", n, NEB_INIT_ONE, NEB_SPLIT_NONE) : NULL;
}

static neb_param *build_factors(struct neb_builder *b, const char *list, const char *layer, const char *name,
                                int64_t n)
{
    if (!b->peft->ia3 || !matches(b, list, layer)) return NULL;
    size_t mark = neb__builder_enter(b, "%s", layer);
    neb_param *p = neb__builder_vector(b, name, n, NEB_INIT_ONE, NEB_SPLIT_NONE);
    neb__builder_leave(b, mark);
    b->ia3_layers++;
    return p;
}

static void build_part_lora(struct neb_builder *b, const struct neb_lin_spec *s, int64_t rows,
                            struct neb_lin *l, struct neb_lora_part *p)
{
    const int64_t r = b->peft->lora_rank;
    size_t mark = neb__builder_enter(b, "%s", p->name);
    p->a = neb__builder_matrix(b, "lora.a", r, s->in, NEB_INIT_UNIFORM, 1.0f / sqrtf((float)s->in),
                               NEB_SPLIT_NONE);
    p->b = neb__builder_matrix(b, "lora.b", rows, r, NEB_INIT_ZERO, 0, s->split);
    p->m = build_length(b, rows);
    neb__builder_leave(b, mark);
    l->lora_scale = b->peft->lora_scale;
    l->lora_dropout = b->peft->lora_dropout;
    b->lora_layers++;
}

/* The matrices of the weight that have LoRA or factors of their own. They are siblings of the weight:
 * layers.0.attention.q. */
static void build_parts(struct neb_builder *b, const struct neb_lin_spec *s, struct neb_lin *l)
{
    int64_t at = 0;
    for (int i = 0; i < 3 && s->parts[i]; i++) {
        struct neb_lora_part *p = &l->part[i];
        *p = (struct neb_lora_part){
            .name = s->names[i], .first = at, .count = neb__builder_share(b, s->parts[i])};
        at += p->count;
        if (p->name && !l->lora_a && wants_lora(b, p->name)) build_part_lora(b, s, s->parts[i], l, p);
        if (p->name && !l->ia3_out)
            p->ia3 = build_factors(b, b->peft->ia3_on, p->name, "ia3.out", s->parts[i]);
    }
}

static void build_lora(struct neb_builder *b, const struct neb_lin_spec *s, struct neb_lin *l)
{
    int64_t r = b->peft->lora_rank;
    l->lora_a = neb__builder_matrix(b, "lora.a", r, s->in, NEB_INIT_UNIFORM, 1.0f / sqrtf((float)s->in),
                                    s->split == NEB_SPLIT_COLUMN ? NEB_SPLIT_COLUMN : NEB_SPLIT_NONE);
    l->lora_b = neb__builder_matrix(b, "lora.b", s->out, r, NEB_INIT_ZERO, 0,
                                    s->split == NEB_SPLIT_ROW ? NEB_SPLIT_ROW : NEB_SPLIT_NONE);
    l->lora_m = build_length(b, s->out);
    l->lora_scale = b->peft->lora_scale;
    l->lora_dropout = b->peft->lora_dropout;
    b->lora_layers++;
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
    if (lora) build_lora(b, s, &l);
    b->parts = NULL;
    neb__builder_leave(b, mark);
    l.ia3_out = build_factors(b, b->peft->ia3_on, s->name, "ia3.out", s->out);
    l.ia3_in = build_factors(b, b->peft->ia3_in, s->name, "ia3.in", s->in);
    if (b->peft->lora || b->peft->ia3) build_parts(b, s, &l);
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

/* DoRA: columns get the lengths of the rows, and the bias comes behind. */
static neb_tensor *set_lengths(neb_tape *t, const struct neb_lin *l, neb_tensor *y)
{
    struct neb_column_part parts[NEB_COLUMN_PARTS] = {{0}};
    if (l->lora_m)
        parts[0] = (struct neb_column_part){
            l->lora_m, neb__op_row_lengths(t, l->weight, 0, l->lora_a, l->lora_b, l->lora_scale), 0};
    for (int i = 0; i < 3; i++) {
        const struct neb_lora_part *p = &l->part[i];
        if (p->m)
            parts[i] = (struct neb_column_part){
                p->m, neb__op_row_lengths(t, l->weight, p->first, p->a, p->b, l->lora_scale), p->first};
    }
    return neb__op_scale_columns(t, y, parts, l->bias);
}

static neb_tensor *scale_outputs(neb_tape *t, const struct neb_lin *l, neb_tensor *y)
{
    struct neb_column_part parts[NEB_COLUMN_PARTS] = {{l->ia3_out, NULL, 0}};
    for (int i = 0; i < 3; i++)
        if (l->part[i].ia3) parts[i] = (struct neb_column_part){l->part[i].ia3, NULL, l->part[i].first};
    return neb__op_scale_columns(t, y, parts, NULL);
}

static bool has_lora(const struct neb_lin *l)
{
    return l->lora_a || l->part[0].a || l->part[1].a || l->part[2].a;
}

static bool has_lengths(const struct neb_lin *l)
{
    return l->lora_m || l->part[0].m || l->part[1].m || l->part[2].m;
}

static bool has_factors(const struct neb_lin *l)
{
    return l->ia3_out || l->part[0].ia3 || l->part[1].ia3 || l->part[2].ia3;
}

bool neb__lin_is_product(const struct neb_lin *l)
{
    return !l->bias && !l->ia3_in && !has_lora(l) && !has_factors(l);
}

neb_tensor *neb__lin_run(neb_tape *t, const struct neb_lin *l, neb_tensor *x, neb_act act)
{
    const bool lengths = has_lengths(l), factors = has_factors(l);
    const neb_act now = has_lora(l) || factors || l->split == NEB_SPLIT_COLUMN ? NEB_ACT_NONE : act;
    neb_param *bias = lengths ? NULL : l->bias;
    neb_tensor *y;
    if (l->ia3_in)
        x = neb__op_scale_columns(t, x, (struct neb_column_part[NEB_COLUMN_PARTS]){{l->ia3_in, NULL, 0}},
                                  NULL);
    if (l->split == NEB_SPLIT_COLUMN)
        y = neb__op_leave(t, neb__op_linear_part(t, x, l->weight, bias));
    else
        y = neb_op_linear(t, l->split == NEB_SPLIT_ROW ? neb__op_enter(t, x) : x, l->weight, bias, now);
    if (l->lora_a) y = add_lora(t, l, x, y);
    for (int i = 0; i < 3; i++)
        if (l->part[i].a) add_part(t, l, &l->part[i], x, y);
    if (lengths) y = set_lengths(t, l, y);
    if (factors) y = scale_outputs(t, l, y);
    return act == now ? y : neb_op_act(t, y, act);
}

bool neb__lin_may_be_unread(const struct neb_lin *l)
{
    return !l->ia3_in && !has_lengths(l) && !has_factors(l) && !l->part[0].a && !l->part[1].a &&
           !l->part[2].a;
}

neb_tensor *neb__lin_run_unread(neb_tape *t, const struct neb_lin *l, neb_tensor *x)
{
    neb__tape_unread(t, true);
    neb_tensor *y = neb_op_linear(t, x, l->weight, l->bias, NEB_ACT_NONE);
    neb__tape_unread(t, false);
    if (!l->lora_a) return y;
    neb_tensor *in = l->lora_dropout > 0 ? neb_op_dropout(t, x, l->lora_dropout) : x;
    neb_tensor *low =
        neb_op_linear(t, in, l->lora_a, NULL, NEB_ACT_NONE); /* the gradient of lora_b reads it */
    neb__tape_unread(t, true);
    y = neb_op_linear_onto(t, y, low, l->lora_b, l->lora_scale);
    neb__tape_unread(t, false);
    return y;
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
