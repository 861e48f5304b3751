/* ter.c: the fewest edits that turn a hypothesis into a reference, where moving a phrase counts as one.
 *
 * Finding the fewest is NP-hard. The usual greedy search (Tercom) is followed here, with its limits, so that the numbers
 * are those that others report: the edit distance of the words is computed in a band around the diagonal; then every phrase
 * of the hypothesis that stands elsewhere in the reference is tried at the places that the alignment offers, and the move
 * that saves most is made, until no move saves anything. Words are 64-bit hashes. */
#include "text/ter.h"
#include "base/clamp.h"
#include "base/mem.h"
#include "base/rng.h"
#include "text/score_words.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BEAM = 25, MAX_SHIFT = 10, MAX_DISTANCE = 50, MAX_TRIES = 1000, FAR = 1 << 28 };
enum { KEEP, CHANGE, ADD, DROP }; /* from hypothesis to reference: ADD puts in a word of the reference */

struct words {
    uint64_t *h;
    int n;
};

struct search {
    const struct words *ref;
    struct words hyp, tried, best; /* room for the hypothesis' words each */
    int *cost;                     /* (hyp + 1, ref + 1) */
    uint8_t *op;                   /* likewise */
    int *align;                    /* (ref) the place in the hypothesis */
    uint8_t *hyp_wrong, *ref_wrong;
    int tries;
};

/* ---- words ------------------------------------------------------------------------------------------------------- */

static neb_status words_of(const char *text, bool cased, struct words *out)
{
    struct neb_chars t = {0};
    *out = (struct words){0};
    neb_status status = neb__chars_decode(&t, text, !cased);
    if (status == NEB_OK && t.n > INT32_MAX / 4)
        status = neb__fail(NEB_ERR_INVALID, "a sentence is too long");
    if (status == NEB_OK && !(out->h = NEB_NEW_ARRAY(uint64_t, t.n + 1)))
        status = neb__fail(NEB_ERR_NOMEM, "out of memory for a sentence");
    for (size_t i = 0, from = 0; status == NEB_OK && i <= t.n; i++) {
        if (i < t.n && !neb__chars_is_space(t.c[i])) continue;
        uint64_t h = 1;
        for (size_t k = from; k < i; k++) h = neb__mix64(h ^ (uint64_t)t.c[k]);
        if (i > from) out->h[out->n++] = h;
        from = i + 1;
    }
    neb__chars_free(&t);
    return status;
}

/* ---- edit distance -------------------------------------------------------------------------------------------------- */

static void consider(int cost, int op, int *best, uint8_t *best_op)
{
    if (cost >= *best) return;
    *best = cost;
    *best_op = (uint8_t)op;
}

/* The distance in a band around the diagonal. Among equal ways: keeping or changing a word, dropping, adding. */
static int distance(const struct search *s, const struct words *hyp)
{
    const struct words *ref = s->ref;
    const int width = ref->n + 1;
    const double ratio = hyp->n ? (double)ref->n / hyp->n : 1;
    const int beam = ratio > 2 ? (int)ceil(ratio / 2 + BEAM) : BEAM;
    for (int j = 0; j < width; j++) s->cost[j] = j, s->op[j] = ADD;
    for (int i = 1; i <= hyp->n; i++) {
        int *row = s->cost + (size_t)i * (size_t)width, *above = row - width;
        uint8_t *op = s->op + (size_t)i * (size_t)width;
        const int middle = (int)floor(i * ratio), from = middle > beam ? middle - beam : 0;
        const int to = i == hyp->n || middle + beam > width ? width : middle + beam;
        for (int j = 0; j < width; j++) row[j] = FAR, op[j] = KEEP;
        for (int j = from; j < to; j++) {
            if (!j) {
                row[0] = above[0] + 1;
                op[0] = DROP;
                continue;
            }
            const bool same = hyp->h[i - 1] == ref->h[j - 1];
            consider(above[j - 1] + !same, same ? KEEP : CHANGE, &row[j], &op[j]);
            consider(above[j] + 1, DROP, &row[j], &op[j]);
            consider(row[j - 1] + 1, ADD, &row[j], &op[j]);
        }
    }
    return s->cost[(size_t)hyp->n * (size_t)width + (size_t)ref->n];
}

/* Which word of the reference belongs to which of the hypothesis, and which words are wrong; from the last distance(). */
static void align(struct search *s, const struct words *hyp)
{
    const int width = s->ref->n + 1;
    int i = hyp->n, j = s->ref->n;
    while (i > 0 || j > 0) {
        const int op = s->op[(size_t)i * (size_t)width + (size_t)j];
        if (i > 0 && (op == DROP || j == 0)) {
            s->hyp_wrong[--i] = 1;
        } else if (op == ADD || i == 0) {
            s->ref_wrong[--j] = 1;
            s->align[j] = i - 1;
        } else {
            i--, j--;
            s->align[j] = i;
            s->hyp_wrong[i] = s->ref_wrong[j] = op == CHANGE;
        }
    }
}

/* ---- shifts -------------------------------------------------------------------------------------------------------------- */

/* Moves `length` words from `start` to place `to`, into `out`. */
static void move(const struct words *in, int start, int length, int to, struct words *out)
{
    const int end = start + length;
    int n = 0;
    const int first = to < start ? to : start;
    /* the words between the old and the new place; a place inside the phrase counts from its end */
    const int from = to < start ? to : end;
    int until = to;
    if (to < start) until = start;
    if (to >= start && to <= end) until = length + to;
    if (until > in->n) until = in->n;
    for (int i = 0; i < first; i++) out->h[n++] = in->h[i];
    for (int i = start; to < start && i < end; i++) out->h[n++] = in->h[i];
    for (int i = from; i < until; i++) out->h[n++] = in->h[i];
    for (int i = start; to >= start && i < end; i++) out->h[n++] = in->h[i];
    for (int i = to < start ? end : until; i < in->n; i++) out->h[n++] = in->h[i];
    out->n = n;
}

struct move {
    int gain, length, start, to;
};

/* More saved edits, then longer phrases, then earlier ones, then earlier places. */
static bool better(const struct move *a, const struct move *b)
{
    if (a->gain != b->gain) return a->gain > b->gain;
    if (a->length != b->length) return a->length > b->length;
    if (a->start != b->start) return a->start < b->start;
    return a->to < b->to;
}

static bool any(const uint8_t *wrong, int from, int n)
{
    for (int i = 0; i < n; i++)
        if (wrong[from + i]) return true;
    return false;
}

/* Tries the phrase at each place that the alignment offers. */
static void try_places(struct search *s, int before, int h, int r, int length, struct move *best, bool *found)
{
    int last = -1;
    if (!any(s->hyp_wrong, h, length) || !any(s->ref_wrong, r, length)) return;
    if (s->align[r] >= h && s->align[r] < h + length) return;
    for (int k = -1; k < length; k++) {
        const int to = r + k < 0 ? 0 : s->align[r + k] + 1;
        if (to == last) continue;
        last = to;
        move(&s->hyp, h, length, to, &s->tried);
        const struct move m = {before - distance(s, &s->tried), length, h, to};
        s->tries++;
        if (*found && !better(&m, best)) continue;
        *found = true;
        *best = m;
        memcpy(s->best.h, s->tried.h, (size_t)s->tried.n * sizeof *s->best.h);
        s->best.n = s->tried.n;
    }
}

/* Makes the best move; the edits that it saves. 0 or less: none was made. */
static int shift(struct search *s)
{
    struct move best = {0};
    bool found = false;
    const int before = distance(s, &s->hyp);
    align(s, &s->hyp);
    for (int h = 0; h < s->hyp.n && s->tries < MAX_TRIES; h++)
        for (int r = 0; r < s->ref->n && s->tries < MAX_TRIES; r++) {
            if (abs(r - h) > MAX_DISTANCE) continue;
            for (int n = 0; n < MAX_SHIFT && h + n < s->hyp.n && r + n < s->ref->n && s->tries < MAX_TRIES;
                 n++) {
                if (s->hyp.h[h + n] != s->ref->h[r + n]) break;
                try_places(s, before, h, r, n + 1, &best, &found);
            }
        }
    return found ? best.gain : 0;
}

static int edits(struct search *s)
{
    int shifts = 0;
    while (true) {
        const int gain = shift(s);
        if (s->tries >= MAX_TRIES || gain <= 0) break;
        shifts++;
        memcpy(s->hyp.h, s->best.h, (size_t)s->best.n * sizeof *s->hyp.h);
    }
    return shifts + distance(s, &s->hyp);
}

static neb_status count(const struct words *hyp, const struct words *ref, int64_t *out)
{
    if (!ref->n) {
        *out = hyp->n;
        return NEB_OK;
    }
    const size_t h = (size_t)hyp->n + 1, r = (size_t)ref->n + 1;
    struct search s = {.ref = ref, .hyp = {.n = hyp->n}};
    s.hyp.h = NEB_NEW_ARRAY(uint64_t, h);
    s.tried.h = NEB_NEW_ARRAY(uint64_t, h);
    s.best.h = NEB_NEW_ARRAY(uint64_t, h);
    s.cost = NEB_NEW_ARRAY(int, h *r);
    s.op = NEB_NEW_ARRAY(uint8_t, h * r);
    s.align = NEB_NEW_ARRAY(int, r);
    s.hyp_wrong = NEB_NEW_ARRAY(uint8_t, h);
    s.ref_wrong = NEB_NEW_ARRAY(uint8_t, r);
    neb_status status = NEB_OK;
    if (!s.hyp.h || !s.tried.h || !s.best.h || !s.cost || !s.op || !s.align || !s.hyp_wrong || !s.ref_wrong)
        status = neb__fail(NEB_ERR_NOMEM, "out of memory for a sentence of %d words", hyp->n);
    if (status == NEB_OK) {
        memcpy(s.hyp.h, hyp->h, (size_t)hyp->n * sizeof *hyp->h);
        *out = edits(&s);
    }
    neb__free(s.hyp.h);
    neb__free(s.tried.h);
    neb__free(s.best.h);
    neb__free(s.cost);
    neb__free(s.op);
    neb__free(s.align);
    neb__free(s.hyp_wrong);
    neb__free(s.ref_wrong);
    return status;
}

/* ---- texts ----------------------------------------------------------------------------------------------------------------- */

void neb__ter_init(struct neb_ter *t, bool cased)
{
    *t = (struct neb_ter){.cased = cased};
}

neb_status neb__ter_add(struct neb_ter *t, const char *hyp, const char *const *refs, int n)
{
    struct words h, r;
    double words = 0;
    int64_t fewest = INT64_MAX, one;
    if (n < 1) return neb__fail(NEB_ERR_INVALID, "a translation is compared with at least one reference");
    NEB_TRY(words_of(hyp, t->cased, &h));
    neb_status status = NEB_OK;
    for (int i = 0; status == NEB_OK && i < n; i++) {
        status = words_of(refs[i], t->cased, &r);
        if (status == NEB_OK) status = count(&h, &r, &one);
        if (status == NEB_OK && one < fewest) fewest = one;
        words += r.n;
        neb__free(r.h);
    }
    neb__free(h.h);
    NEB_TRY(status);
    t->ref_words += words / n;
    t->edits += fewest;
    return NEB_OK;
}

double neb__ter_score(const struct neb_ter *t)
{
    if (t->ref_words > 0) return 100 * (double)t->edits / t->ref_words;
    return t->edits ? 100 : 0;
}
