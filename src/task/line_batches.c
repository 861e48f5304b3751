/* line_batches.c: tokenised lines in one growing array, an order over them, and packed batches of consecutive
 * ones. */
#include "task/line_batches.h"
#include "base/mem.h"
#include "base/rng.h"

#include <stdlib.h>
#include <string.h>

struct line {
    size_t at;         /* in tokens */
    int32_t n, second; /* tokens; where the second text begins, or n */
    int number;
};

struct neb_line_batches {
    struct neb_line_batches_config c;
    int32_t eos, pad;
    struct neb_buf tokens, text, other; /* text, other: of the line being added */
    struct line *lines;
    int count, room, next;
    int64_t cut;
    /* of the present batch */
    int32_t *ids, *position, *type, *starts, *in_sequence;
    uint32_t *sample;
    int *numbers;
};

neb_status neb__line_batches_create(const struct neb_line_batches_config *c, struct neb_line_batches **out)
{
    struct neb_line_batches *p = NEB_NEW(struct neb_line_batches);
    if (!p) return neb__fail(NEB_ERR_NOMEM, "out of memory for batches of text");
    size_t rows = (size_t)c->rows, seqs = 2 * (size_t)c->seqs + rows / (size_t)c->max_len + 2;
    p->c = *c;
    p->eos = neb__tok_special(c->tok, NEB_TOK_EOS);
    p->pad = neb__tok_special(c->tok, NEB_TOK_PAD);
    neb__buf_init(&p->tokens, (size_t)1 << 36);
    neb__buf_init(&p->text, 16u << 20);
    neb__buf_init(&p->other, 16u << 20);
    p->ids = NEB_NEW_ARRAY(int32_t, rows);
    p->position = NEB_NEW_ARRAY(int32_t, rows);
    p->type = NEB_NEW_ARRAY(int32_t, rows);
    p->in_sequence = NEB_NEW_ARRAY(int32_t, rows);
    p->sample = NEB_NEW_ARRAY(uint32_t, rows);
    p->starts = NEB_NEW_ARRAY(int32_t, seqs + 1);
    p->numbers = NEB_NEW_ARRAY(int, seqs);
    if (!p->ids || !p->position || !p->type || !p->in_sequence || !p->sample || !p->starts || !p->numbers) {
        neb__line_batches_destroy(p);
        return neb__fail(NEB_ERR_NOMEM, "out of memory for batches of %d rows", c->rows);
    }
    *out = p;
    return NEB_OK;
}

void neb__line_batches_destroy(struct neb_line_batches *p)
{
    if (!p) return;
    neb__buf_free(&p->tokens);
    neb__buf_free(&p->text);
    neb__buf_free(&p->other);
    neb__free(p->lines);
    neb__free(p->ids);
    neb__free(p->position);
    neb__free(p->type);
    neb__free(p->in_sequence);
    neb__free(p->sample);
    neb__free(p->starts);
    neb__free(p->numbers);
    neb__free(p);
}

/* ---- lines --------------------------------------------------------------------------------------------- */

static neb_status grow(struct neb_line_batches *p)
{
    if (p->count < p->room) return NEB_OK;
    int room = p->room ? 2 * p->room : 256;
    struct line *lines = neb__realloc(p->lines, (size_t)room * sizeof *lines);
    if (!lines) return neb__fail(NEB_ERR_NOMEM, "out of memory for %d lines", room);
    p->lines = lines;
    p->room = room;
    return NEB_OK;
}

/* How many tokens of each text stay; the longer one gives way. */
static void shorten(struct neb_line_batches *p, int32_t *a, int32_t *b, bool pair)
{
    int32_t room = p->c.max_len - (p->c.lead >= 0) - (p->c.tail > 0) - 1 - pair;
    if (*a + *b > room) p->cut++;
    while (*a + *b > room) {
        int32_t over = *a + *b - room, *longer = *a >= *b ? a : b, *shorter = *a >= *b ? b : a;
        int32_t less = *longer - *shorter > 0 ? *longer - *shorter : 1;
        *longer -= over < less ? over : less;
    }
}

neb_status neb__line_batches_add(struct neb_line_batches *p, const char *text, const char *second, int number)
{
    NEB_TRY(grow(p));
    neb__buf_clear(&p->text);
    neb__buf_clear(&p->other);
    NEB_TRY(neb__tok_encode(p->c.tok, text, strlen(text), &p->text));
    if (second) NEB_TRY(neb__tok_encode(p->c.tok, second, strlen(second), &p->other));
    int32_t a = (int32_t)(p->text.len / sizeof(int32_t)), b = (int32_t)(p->other.len / sizeof(int32_t));
    shorten(p, &a, &b, second != NULL);
    size_t before = p->tokens.len, each = sizeof(int32_t);
    neb_status status = p->c.lead >= 0 ? neb__buf_append(&p->tokens, &p->c.lead, each) : NEB_OK;
    if (status == NEB_OK) status = neb__buf_append(&p->tokens, p->text.data, (size_t)a * each);
    if (status == NEB_OK) status = neb__buf_append(&p->tokens, &p->eos, each);
    if (status == NEB_OK && p->c.tail > 0) status = neb__buf_append(&p->tokens, &p->c.tail, each);
    int32_t at = (int32_t)((p->tokens.len - before) / each);
    if (status == NEB_OK && second) status = neb__buf_append(&p->tokens, p->other.data, (size_t)b * each);
    if (status == NEB_OK && second) status = neb__buf_append(&p->tokens, &p->eos, each);
    if (status != NEB_OK) {
        p->tokens.len = before;
        return status;
    }
    p->lines[p->count++] =
        (struct line){before / each, (int32_t)((p->tokens.len - before) / each), at, number};
    return NEB_OK;
}

void neb__line_batches_clear(struct neb_line_batches *p)
{
    neb__buf_clear(&p->tokens);
    p->count = p->next = 0;
}

int neb__line_batches_count(const struct neb_line_batches *p)
{
    return p->count;
}

int64_t neb__line_batches_cut(const struct neb_line_batches *p)
{
    return p->cut;
}

static int by_length(const void *a, const void *b)
{
    const struct line *x = a, *y = b;
    return x->n != y->n ? (x->n < y->n ? -1 : 1) : (x->number > y->number) - (x->number < y->number);
}

void neb__line_batches_order(struct neb_line_batches *p, uint64_t seed)
{
    p->next = 0;
    if (p->count) qsort(p->lines, (size_t)p->count, sizeof *p->lines, by_length);
    struct neb_rng rng = {seed};
    for (int i = p->count - 1; seed && i > 0; i--) {
        int j = (int)neb__rng_below(&rng, (uint64_t)i + 1);
        struct line t = p->lines[i];
        p->lines[i] = p->lines[j];
        p->lines[j] = t;
    }
}

/* ---- batches ------------------------------------------------------------------------------------------- */

static void put(struct neb_line_batches *p, int32_t row, int32_t id, int32_t at, int32_t second,
                uint32_t sample)
{
    p->ids[row] = id;
    p->in_sequence[row] = at;
    p->type[row] = at >= second;
    p->position[row] = at >= second ? at - second : at;
    p->sample[row] = sample;
}

/* Padding sequences, then empty ones, up to the fixed counts. */
static int32_t pad_out(struct neb_line_batches *p, int32_t row, int *seqs)
{
    int most = 2 * p->c.seqs, q = *seqs;
    while (row < p->c.rows) {
        for (int32_t at = 0; at < p->c.max_len && row < p->c.rows; at++, row++)
            put(p, row, p->pad, at, p->c.max_len, UINT32_MAX);
        p->starts[++q] = row;
    }
    while (q < most) p->starts[++q] = row;
    *seqs = q;
    return row;
}

int neb__line_batches_next(struct neb_line_batches *p, struct neb_model_input_side *side, const int **numbers)
{
    const int32_t *tokens = (const int32_t *)(const void *)p->tokens.data;
    int32_t row = 0, longest = 1;
    int used = 0;
    for (; p->next < p->count && used < p->c.seqs && row + p->lines[p->next].n <= p->c.rows; p->next++) {
        const struct line *l = &p->lines[p->next];
        p->starts[used] = row;
        for (int32_t i = 0; i < l->n; i++)
            put(p, row++, tokens[l->at + (size_t)i], i, l->second, (uint32_t)l->number);
        p->numbers[used++] = l->number;
        if (l->n > longest) longest = l->n;
    }
    if (!used) return 0;
    int seqs = used;
    p->starts[used] = row;
    if (p->c.pad) row = pad_out(p, row, &seqs);
    *side = (struct neb_model_input_side){.rows = row,
                                          .seqs = seqs,
                                          .max_len = p->c.pad ? p->c.max_len : longest,
                                          .ids = p->ids,
                                          .position = p->position,
                                          .type = p->type,
                                          .sample = p->sample,
                                          .at = p->in_sequence,
                                          .starts = p->starts};
    *numbers = p->numbers;
    return used;
}
