/* merges.c: joining pairs (Sennrich et al. 2016).
 *
 * A word begins as a list of tokens. The adjacent pair with the smallest rank is joined (the leftmost among
 * equal ones) until no listed pair is left. The word is a doubly linked list over its places. The pairs are a
 * heap ordered by (rank, place); a pair that changed after it was put there is recognised by its two tokens. So
 * a word of n tokens costs n log n with any list of merges. */
#include "text/merges.h"
#include "base/mem.h"

#include <stdbool.h>

enum { SHORT = 64 }; /* longest word that needs no allocation */

struct merge {
    int32_t left, right, result, rank; /* left -1: free slot */
};

struct neb_merges {
    uint32_t mask;
    struct merge slot[]; /* (mask + 1) open addressing by (left, right), at most half full */
};

static uint32_t hash_pair(int32_t left, int32_t right)
{
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9E3779B97F4A7C15u;
    return (uint32_t)(h >> 32);
}

static const struct merge *find(const struct neb_merges *m, int32_t left, int32_t right)
{
    for (uint32_t at = hash_pair(left, right) & m->mask;; at = (at + 1) & m->mask) {
        const struct merge *s = &m->slot[at];
        if (s->left < 0 || (s->left == left && s->right == right)) return s;
    }
}

neb_status neb__merges_create(size_t count, struct neb_merges **out)
{
    uint32_t slots = 16;
    while (slots < 2 * count && slots < 1u << 31) slots *= 2;
    struct neb_merges *m =
        slots < 2 * count ? NULL : neb__malloc(sizeof *m + (size_t)slots * sizeof(struct merge));
    if (!m) return neb__fail(NEB_ERR_NOMEM, "out of memory for %zu merges", count);
    m->mask = slots - 1;
    for (uint32_t i = 0; i < slots; i++) m->slot[i].left = -1;
    *out = m;
    return NEB_OK;
}

void neb__merges_free(struct neb_merges *m)
{
    neb__free(m);
}

void neb__merges_put(struct neb_merges *m, int32_t left, int32_t right, int32_t result, int32_t rank)
{
    *(struct merge *)find(m, left, right) = (struct merge){left, right, result, rank};
}

/* ---- one word ------------------------------------------------------------------------------------------ */

struct symbol {
    int32_t token, before, behind; /* places; -1: no neighbour */
};

struct pair {
    int32_t rank, at, left, right, result;
};

struct word {
    struct symbol *symbols; /* (tokens) */
    struct pair *heap;      /* (3 tokens): every join adds two at most */
    int32_t pairs;
};

static bool sooner(const struct pair *x, const struct pair *y)
{
    return x->rank != y->rank ? x->rank < y->rank : x->at < y->at;
}

static void push(struct word *w, struct pair p)
{
    int32_t i = w->pairs++;
    for (; i > 0 && sooner(&p, &w->heap[(i - 1) / 2]); i = (i - 1) / 2) w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = p;
}

static struct pair pop(struct word *w)
{
    struct pair top = w->heap[0], last = w->heap[--w->pairs];
    int32_t i = 0;
    for (int32_t child; (child = 2 * i + 1) < w->pairs; i = child) {
        if (child + 1 < w->pairs && sooner(&w->heap[child + 1], &w->heap[child])) child++;
        if (!sooner(&w->heap[child], &last)) break;
        w->heap[i] = w->heap[child];
    }
    w->heap[i] = last;
    return top;
}

/* Puts the symbol at `at` and the next one into the heap if they are a listed pair. */
static void offer(const struct neb_merges *m, struct word *w, int32_t at)
{
    if (at < 0 || w->symbols[at].behind < 0) return;
    int32_t left = w->symbols[at].token, right = w->symbols[w->symbols[at].behind].token;
    if (left < 0 || right < 0) return;
    const struct merge *s = find(m, left, right);
    if (s->left >= 0) push(w, (struct pair){s->rank, at, left, right, s->result});
}

static void join(const struct neb_merges *m, struct word *w, const struct pair *p)
{
    struct symbol *left = &w->symbols[p->at];
    if (left->token != p->left || left->behind < 0 || w->symbols[left->behind].token != p->right) return;
    struct symbol *right = &w->symbols[left->behind];
    left->token = p->result;
    left->behind = right->behind;
    if (right->behind >= 0) w->symbols[right->behind].before = p->at;
    right->token = INT32_MIN; /* no pair contains it */
    offer(m, w, left->before);
    offer(m, w, p->at);
}

static void join_all(const struct neb_merges *m, struct word *w, int32_t *tokens, size_t *n)
{
    int32_t count = (int32_t)*n;
    for (int32_t i = 0; i < count; i++)
        w->symbols[i] = (struct symbol){tokens[i], i - 1, i + 1 < count ? i + 1 : -1};
    for (int32_t i = 0; i < count; i++) offer(m, w, i);
    while (w->pairs) {
        struct pair p = pop(w);
        join(m, w, &p);
    }
    *n = 0;
    for (int32_t i = 0; i >= 0; i = w->symbols[i].behind) tokens[(*n)++] = w->symbols[i].token;
}

neb_status neb__merges_join(const struct neb_merges *m, int32_t *tokens, size_t *n)
{
    struct symbol symbols[SHORT];
    struct pair heap[3 * SHORT];
    struct word w = {symbols, heap, 0};
    if (*n < 2) return NEB_OK;
    if (*n <= SHORT) {
        join_all(m, &w, tokens, n);
        return NEB_OK;
    }
    if (*n > INT32_MAX / 4)
        return neb__fail(NEB_ERR_NOSPACE, "a word of %zu bytes is too long to encode", *n);
    w.symbols = NEB_NEW_ARRAY(struct symbol, *n);
    w.heap = NEB_NEW_ARRAY(struct pair, 3 * *n);
    neb_status status = NEB_OK;
    if (w.symbols && w.heap)
        join_all(m, &w, tokens, n);
    else
        status = neb__fail(NEB_ERR_NOMEM, "not enough memory to encode a word of %zu bytes", *n);
    neb__free(w.symbols);
    neb__free(w.heap);
    return status;
}
