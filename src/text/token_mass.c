/* token_mass.c: probability mass from a teacher's tokens onto a student's.
 *
 * Both read the same text, cut at different places. The student stands at place c of the text and wants a distribution over
 * its own next token. The teacher's last cut at or before c is where its answer comes from:
 *
 *     student   _the _tea|cher _spoke          row after `_tea` : c = 8
 *     teacher   _the _t|each|er _spoke         its cut before c: after `_t`, the bytes between are `ea`
 *
 * 1. A teacher's token that begins with the bytes between counts. Others are impossible, since those bytes are known: the
 *    teacher's distribution is conditioned on the text up to c.
 * 2. Such a token, less those bytes, is the beginning of what the teacher would write next. Its mass goes to the longest
 *    token of the student that this begins with. Tokens with a common beginning share one: a marginal.
 * 3. Where the teacher's token is the one in the text and ends before the student's token does, the teacher's next row says
 *    how it goes on. Its mass is split by that row, and so forth: the mass of the student's token in the text is the product
 *    over the teacher's tokens that it is made of (the likelihood of a chunk), and the alternatives branch off at each row.
 * 4. The teacher's end of text is the student's.
 *
 * So where cuts and tokens agree, the answer is the teacher's own. Rule 2 errs where a teacher's token off the text is shorter
 * than the student's that it would become: that needs rows which the teacher was not asked for. Methods that compare sorted
 * probabilities (ULD, Boizard et al. 2024) lose which token is meant; those that map tokens by edit distance (MinED, Wan et
 * al. 2024) give `_tea` the mass of an unlike word of the same length; likelihoods of chunks alone (ALM, Minixhofer et al.
 * 2025) say nothing about the alternatives, which is most of what a teacher of translation has to tell. Conditioning on bytes
 * follows Phan et al. 2024. */
#include "text/token_mass.h"
#include "base/mem.h"
#include "base/topk.h"

#include <math.h>
#include <string.h>

enum { PIECE = 1024 }; /* bytes of a text that a token may begin: far above any surface */

struct neb_token_mass {
    struct neb_surfaces *own, *its;
    int32_t own_eos, its_eos, its_vocab;
    int32_t *first; /* (its_vocab) the student's token that a teacher's token begins with; -1: none */
};

/* ---- making -------------------------------------------------------------------------------------------- */

static neb_status make(struct neb_token_mass *m, const struct neb_tok *own, const struct neb_tok *its)
{
    m->own_eos = neb__tok_special(own, NEB_TOK_EOS);
    m->its_eos = neb__tok_special(its, NEB_TOK_EOS);
    m->its_vocab = neb__tok_vocab(its);
    NEB_TRY(neb__surfaces_make(own, &m->own));
    NEB_TRY(neb__surfaces_make(its, &m->its));
    m->first = NEB_NEW_ARRAY(int32_t, (size_t)m->its_vocab);
    if (!m->first) return neb__fail(NEB_ERR_NOMEM, "out of memory for a map of %d tokens", (int)m->its_vocab);
    for (int32_t id = 0; id < m->its_vocab; id++) {
        size_t n;
        const char *p = neb__surface_of(m->its, id, &n);
        m->first[id] = n ? neb__surface_longest(m->own, p, n) : -1;
    }
    return NEB_OK;
}

neb_status neb__token_mass_make(const struct neb_tok *own, const struct neb_tok *teachers,
                                struct neb_token_mass **out)
{
    struct neb_token_mass *m = NEB_NEW(struct neb_token_mass);
    if (!m) return neb__fail(NEB_ERR_NOMEM, "out of memory for a map of tokens");
    neb_status status = make(m, own, teachers);
    if (status != NEB_OK) {
        neb__token_mass_free(m);
        return status;
    }
    *out = m;
    return NEB_OK;
}

void neb__token_mass_free(struct neb_token_mass *m)
{
    if (!m) return;
    neb__surfaces_free(m->own);
    neb__surfaces_free(m->its);
    neb__free(m->first);
    neb__free(m);
}

const struct neb_surfaces *neb__token_mass_own(const struct neb_token_mass *m)
{
    return m->own;
}

const struct neb_surfaces *neb__token_mass_teachers(const struct neb_token_mass *m)
{
    return m->its;
}

/* ---- a row --------------------------------------------------------------------------------------------- */

static void give(struct neb_token_sum *s, int32_t id, float p)
{
    if (id < 0 || !(p > 0)) return;
    int32_t at = 0;
    while (at < s->n && s->ids[at] != id) at++;
    if (at == s->n) s->ids[s->n] = id, s->p[s->n++] = 0;
    s->p[at] += p;
}

/* Where the student stands, and its token in the text (-1 at the end). */
struct stand {
    const struct neb_token_mass *m;
    const struct neb_token_cuts *cuts;
    int32_t at, until, token;
};

/* The place of the teacher's cut j; nothing of the text is before the first one. */
static int32_t cut(const struct neb_token_cuts *c, int32_t j)
{
    return j ? c->its_ends[j] : 0;
}

/* The student's token that the teacher's token `id`, written at cut j, begins with at the student's place; -1: it
 * contradicts the text before, or writes nothing new. */
static int32_t token_for(const struct stand *s, int32_t j, int32_t id)
{
    const struct neb_token_cuts *c = s->cuts;
    size_t n;
    const char *p = neb__surface_of(s->m->its, id, &n);
    const int32_t from = cut(c, j);
    if (!n) return -1;
    if (j && from == s->at) return s->m->first[id];
    char piece[PIECE];
    size_t m = 0, known = from > s->at ? (size_t)(from - s->at) : 0; /* bytes since the student's place */
    if (known + n + 1 > sizeof piece) return -1;
    memcpy(piece, c->text + s->at, known);
    m = known;
    if (!j && *p != ' ') piece[m++] = ' '; /* a text begins with a word, however the tokenizer spells that */
    memcpy(piece + m, p, n);
    m += n;
    const size_t before = from < s->at ? (size_t)(s->at - from) : 0;
    if (m <= before || memcmp(piece, c->text + from, before) != 0) return -1;
    return neb__surface_longest(s->m->own, piece + before, m - before);
}

/* The teacher's text ends at cut j. */
static int32_t token_at_end(const struct stand *s, int32_t j)
{
    const int32_t from = cut(s->cuts, j);
    if (from == s->at || (!j && s->at <= 1)) return s->m->own_eos;
    if (from < s->at) return -1;
    return neb__surface_longest(s->m->own, s->cuts->text + s->at, (size_t)(from - s->at));
}

/* Shares out `mass` by row j. Returns what stays on the teacher's own token in the text, if that one does not yet decide the
 * student's. */
static float share_out(const struct stand *s, const struct neb_token_says *says, int32_t j, float mass,
                       struct neb_token_sum *sum)
{
    const int32_t *ids = says->ids + (int64_t)j * says->k;
    const float *logits = says->logits + (int64_t)j * says->k;
    const int32_t text = j < s->cuts->its_n ? s->cuts->its[j] : -1;
    float most = -INFINITY, all = 0, left = 0;
    for (int32_t i = 0; i < says->k; i++)
        if (ids[i] >= 0 && logits[i] > most) most = logits[i];
    for (int32_t i = 0; i < says->k; i++)
        if (ids[i] >= 0) all += expf(logits[i] - most);
    if (says->whole) most = 0, all = 1;
    for (int32_t i = 0; i < says->k; i++) {
        if (ids[i] < 0) continue;
        const float p = mass * expf(logits[i] - most) / all;
        if (ids[i] == s->m->its_eos)
            give(sum, token_at_end(s, j), p);
        else if (ids[i] != text || s->token < 0)
            give(sum, token_for(s, j, ids[i]), p);
        else if (cut(s->cuts, j + 1) >= s->until)
            give(sum, s->token, p);
        else
            left += p;
    }
    return left;
}

void neb__token_mass_row(const struct neb_token_mass *m, const struct neb_token_cuts *cuts,
                         const struct neb_token_says *says, int32_t row, struct neb_token_sum *sum, int32_t k,
                         int32_t *ids, float *logits)
{
    struct stand s = {.m = m, .cuts = cuts, .at = cuts->own_ends[row], .until = INT32_MAX, .token = -1};
    if (row < cuts->own_n) s.until = cuts->own_ends[row + 1], s.token = cuts->own[row];
    int32_t j = 0;
    while (j < cuts->its_n && cut(cuts, j + 1) <= s.at) j++;
    float mass = 1;
    sum->n = 0;
    for (int hop = 0; hop < NEB_TOKEN_MASS_HOPS && j <= cuts->its_n && mass > 0; hop++)
        mass = share_out(&s, says, j++, mass, sum);
    neb__topk_heap_clear(logits, ids, k);
    for (int32_t i = 0; i < sum->n; i++) neb__topk_heap_offer(logits, ids, k, logf(sum->p[i]), sum->ids[i]);
    neb__topk_zero_empty(logits, ids, k);
}
