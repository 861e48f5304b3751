/* search.c: choosing tokens: greedy, sampled, beam search.
 *
 * Beam search keeps `beams` unfinished sequences per prompt. A step scores the likeliest continuations of
 * each and takes the best 2 * beams of all. That is enough: at most `beams` of those end, and no more can
 * come from one sequence. (Where several tokens end a sequence it takes twice as many.) Ended sequences that beat the result replace it, and the search continues with the
 * best of the others. A prompt is done when `beams` sequences have ended, or when no unfinished one can beat
 * the result any more (scores only fall, so the bound is the best unfinished sum divided by the largest
 * length its divisor can reach), or when it has reached its maximal length; unfinished sequences then compete
 * as they are. Each prompt has its own limit, so its result does not depend on the other prompts in the
 * batch. */
#include "nn/decode.h"
#include "base/mem.h"
#include "base/rng.h"

#include <math.h>
#include <string.h>

struct candidate {
    double score; /* sum of log-probabilities */
    int32_t beam, token;
};

struct neb_searching {
    struct neb_search copy;
    const struct neb_search *how; /* the copy */
    struct neb_decoding *d;
    int32_t count, beams, results, seqs, vocab;
    int32_t *tokens, *other; /* (seqs, max_new) tokens of unfinished sequences; and room to reorder them */
    double *score;           /* (seqs) */
    double *best;            /* (count, results) scores of the results, length penalty included, best first */
    int32_t *most;           /* (count) tokens, at most */
    bool *done;              /* (count) */
    int32_t *ended;          /* (count) sequences that reached their end */
    int32_t *next, *from, *one;
    struct candidate *top; /* (as many as are looked at) */
    /* of the present step: all logits when tokens are drawn, otherwise the k best */
    const float *logits;
    struct neb_best_tokens choice;
    int32_t k; /* 0: drawn */
    int32_t *out, *lengths;
    int32_t at; /* tokens chosen so far */
    struct neb_rng rng;
};

/* ---- one sequence a prompt ----------------------------------------------------------------------------- */

static int32_t likeliest(const float *logits, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* The k-th largest value; k = 0: the smallest possible. It bisects over values, because k passes over a large
 * vocabulary would be slow. */
static float threshold_of(const float *logits, int32_t n, int32_t k)
{
    if (k <= 0 || k >= n) return -INFINITY;
    float low = INFINITY, high = -INFINITY;
    for (int32_t i = 0; i < n; i++) low = fminf(low, logits[i]), high = fmaxf(high, logits[i]);
    for (int round = 0; round < 40 && low < high; round++) {
        float mid = low + (high - low) / 2;
        int32_t above = 0;
        for (int32_t i = 0; i < n; i++) above += logits[i] >= mid;
        if (above >= k && mid > low)
            low = mid;
        else if (above < k && mid < high)
            high = mid;
        else
            break;
    }
    return low;
}

static int32_t sampled(const struct neb_search *how, const float *logits, int32_t n, struct neb_rng *rng)
{
    float least = threshold_of(logits, n, how->top_k);
    const int32_t never = how->bans ? how->never : -1;
    double top = -INFINITY, sum = 0;
    for (int32_t i = 0; i < n; i++) top = fmax(top, logits[i]);
    for (int32_t i = 0; i < n; i++)
        if (logits[i] >= least && i != never) sum += exp((logits[i] - top) / how->temperature);
    double left = neb__rng_uniform(rng) * sum;
    int32_t chosen = likeliest(logits, n);
    for (int32_t i = 0; i < n; i++) {
        if (logits[i] < least || i == never) continue;
        chosen = i;
        left -= exp((logits[i] - top) / how->temperature);
        if (left < 0) break;
    }
    return chosen;
}

static bool is_banned(const struct neb_searching *s, int32_t token)
{
    return s->how->bans && token == s->how->never;
}

static bool is_end(const struct neb_searching *s, int32_t token)
{
    return token == s->how->eos || (s->how->ends && token >= 0 && s->how->ends[token]);
}

/* Which of the k best tokens of row i is taken: the first that may be. */
static int64_t first_allowed(const struct neb_searching *s, int32_t i)
{
    const int64_t at = (int64_t)i * s->k;
    return s->k > 1 && is_banned(s, s->choice.id[at]) ? at + 1 : at;
}

static void choose_singly(struct neb_searching *s, int32_t at)
{
    for (int32_t i = 0; i < s->count; i++) {
        const int64_t best = s->k ? first_allowed(s, i) : 0;
        s->next[i] =
            s->k ? s->choice.id[best] : sampled(s->how, s->logits + (int64_t)i * s->vocab, s->vocab, &s->rng);
        if (s->k && s->how->logp)
            s->how->logp[(int64_t)i * s->how->max_new + at] = s->choice.logit[best] - s->choice.logsum[i];
        if (is_end(s, s->next[i])) s->done[i] = true;
        if (s->done[i]) continue;
        s->out[(int64_t)i * s->how->max_new + at] = s->next[i];
        s->lengths[i] = at + 1;
        s->done[i] = at + 1 == s->most[i];
    }
}

/* ---- beams --------------------------------------------------------------------------------------------- */

static double with_length(const struct neb_searching *s, double score, int32_t length)
{
    return score / pow(length > 0 ? length : 1, s->how->length_penalty);
}

/* How many continuations of a prompt are looked at. */
static int32_t wide(const struct neb_search *how, int32_t beams)
{
    return (how->ends ? 4 : 2) * beams;
}

/* The best continuations of prompt i, best first; returns how many there are. */
static int32_t best_continuations(struct neb_searching *s, int32_t i, int32_t at)
{
    int32_t n = 0, most = wide(s->how, s->beams),
            live = at ? s->beams : 1; /* in the first step all beams are the same */
    for (int32_t b = 0; b < live; b++) {
        const int64_t seq = i * s->beams + b;
        if (!isfinite(s->score[seq])) continue;
        for (int32_t c = 0; c < s->k && s->choice.id[seq * s->k + c] >= 0; c++) {
            double score = s->score[seq] + s->choice.logit[seq * s->k + c] - s->choice.logsum[seq];
            if (is_banned(s, s->choice.id[seq * s->k + c])) continue;
            if (n == most && score <= s->top[n - 1].score)
                break; /* the other candidates of this beam are not better */
            int32_t j = n < most ? n++ : n - 1;
            for (; j > 0 && s->top[j - 1].score < score; j--) s->top[j] = s->top[j - 1];
            s->top[j] = (struct candidate){score, b, s->choice.id[seq * s->k + c]};
        }
    }
    return n;
}

/* `scored`: the tokens that the score counts, the end token among them. */
static void take_result(struct neb_searching *s, int32_t i, int32_t seq, double score, int32_t length,
                        int32_t scored)
{
    const int64_t width = s->how->max_new, first = (int64_t)i * s->results;
    double final = with_length(s, score, scored), *best = s->best + first;
    int32_t at = s->results - 1;
    if (final <= best[at]) return;
    for (; at > 0 && final > best[at - 1]; at--) { /* worse ones move down */
        best[at] = best[at - 1];
        s->lengths[first + at] = s->lengths[first + at - 1];
        memcpy(s->out + (first + at) * width, s->out + (first + at - 1) * width,
               (size_t)width * sizeof *s->out);
    }
    best[at] = final;
    s->lengths[first + at] = length;
    memcpy(s->out + (first + at) * width, s->tokens + seq * width, (size_t)length * sizeof *s->out);
}

static void choose_beams(struct neb_searching *s, int32_t at, int32_t i)
{
    int32_t n = best_continuations(s, i, at), kept = 0, first = i * s->beams;
    int64_t width = s->how->max_new;
    for (int32_t j = 0; j < n && kept < s->beams; j++) {
        const struct candidate *c = &s->top[j];
        if (is_end(s, c->token)) {
            take_result(s, i, first + c->beam, c->score, at, at + 1);
            s->ended[i]++;
            continue;
        }
        int32_t seq = first + kept++;
        s->from[seq] = first + c->beam;
        s->next[seq] = c->token;
        memcpy(s->other + seq * width, s->tokens + (first + c->beam) * width, (size_t)at * sizeof *s->other);
        s->other[seq * width + at] = c->token;
        s->top[kept - 1].score = c->score; /* kept - 1 <= j: read already */
    }
    for (int32_t b = 0; b < s->beams; b++) {
        s->score[first + b] = b < kept ? s->top[b].score : -INFINITY;
        if (b < kept) continue;
        s->from[first + b] = first;
        s->next[first + b] = 0;
    }
    double reach =
        with_length(s, s->score[first],
                    s->most[i]); /* sums are negative, so the largest length gives the best quotient */
    const double worst = s->best[(int64_t)(i + 1) * s->results - 1];
    s->done[i] = kept == 0 || reach <= worst || s->ended[i] >= s->beams;
}

static neb_status step_beams(struct neb_searching *s, int32_t at)
{
    for (int32_t i = 0; i < s->count; i++) {
        if (!s->done[i]) {
            choose_beams(s, at, i);
            continue;
        }
        for (int32_t q = i * s->beams; q < (i + 1) * s->beams; q++) s->from[q] = q, s->next[q] = 0;
    }
    int32_t *swap = s->tokens;
    s->tokens = s->other;
    s->other = swap;
    for (int32_t i = 0; i < s->count; i++) {
        if (s->done[i] || at + 1 < s->most[i]) continue;
        for (int32_t q = i * s->beams; q < i * s->beams + s->results; q++)
            if (isfinite(s->score[q])) take_result(s, i, q, s->score[q], at + 1, at + 1);
        s->done[i] = true;
    }
    return neb__decoding_reorder(s->d, s->from);
}

/* ---- the steps ----------------------------------------------------------------------------------------- */

static neb_status ask(struct neb_searching *s, const int32_t *ids)
{
    return s->k ? neb__decoding_ask(s->d, s->one, ids, s->k)
                : neb__decoding_step(s->d, s->one, ids, &s->logits);
}

static neb_status prefill(struct neb_searching *s, const int32_t *prompt, const int32_t *starts)
{
    int64_t total = 0;
    for (int32_t i = 0; i < s->count; i++) total += (int64_t)(starts[i + 1] - starts[i]) * s->beams;
    int32_t *ids = NEB_NEW_ARRAY(int32_t, (size_t)total);
    if (!ids) return neb__fail(NEB_ERR_NOMEM, "out of memory for %" PRId64 " prompt tokens", total);
    int64_t at = 0;
    for (int32_t q = 0; q < s->seqs; q++) {
        int32_t i = q / s->beams, n = starts[i + 1] - starts[i];
        s->one[q] = n;
        memcpy(ids + at, prompt + starts[i], (size_t)n * sizeof *ids);
        at += n;
    }
    neb_status status = ask(s, ids);
    for (int32_t q = 0; q < s->seqs; q++) s->one[q] = 1;
    neb__free(ids);
    return status;
}

static bool all_done(const struct neb_searching *s)
{
    for (int32_t i = 0; i < s->count; i++)
        if (!s->done[i]) return false;
    return true;
}

neb_status neb__search_step(struct neb_searching *s, bool *done)
{
    if (s->k) NEB_TRY(neb__decoding_answer(s->d, &s->choice));
    if (s->beams > 1)
        NEB_TRY(step_beams(s, s->at));
    else
        choose_singly(s, s->at);
    s->at++;
    *done = all_done(s);
    return *done ? NEB_OK : ask(s, s->next);
}

static neb_status check(const struct neb_search *how, int32_t count, const int32_t *starts)
{
    if (how->max_new < 1 || how->beams < 0 || how->beams > 1024 || how->top_k < 0 || how->results < 0 ||
        how->results > (how->beams > 1 ? how->beams : 1) || !(how->temperature >= 0) ||
        !isfinite(how->length_penalty) || how->length_penalty < 0 || count < 1)
        return neb__fail(
            NEB_ERR_INVALID,
            "a search for %d tokens of %d prompts with %d beams, temperature %g and length penalty %g is not "
            "possible",
            how->max_new, count, how->beams, how->temperature, how->length_penalty);
    for (int32_t i = 0; i < count; i++) {
        if (starts[i + 1] <= starts[i]) return neb__fail(NEB_ERR_INVALID, "prompt %d is empty", i);
        if (how->most && (how->most[i] < 1 || how->most[i] > how->max_new))
            return neb__fail(NEB_ERR_INVALID, "prompt %d: its limit of %d tokens is not between 1 and %d", i,
                             how->most[i], how->max_new);
    }
    return NEB_OK;
}

static neb_status make_room(struct neb_searching *s)
{
    size_t seqs = (size_t)s->seqs, width = (size_t)s->how->max_new;
    s->tokens = NEB_NEW_ARRAY(int32_t, seqs * width);
    s->other = NEB_NEW_ARRAY(int32_t, seqs * width);
    s->score = NEB_NEW_ARRAY(double, seqs);
    const size_t results = (size_t)s->count * (size_t)s->results;
    s->best = NEB_NEW_ARRAY(double, results);
    s->most = NEB_NEW_ARRAY(int32_t, (size_t)s->count);
    s->done = NEB_NEW_ARRAY(bool, (size_t)s->count);
    s->ended = NEB_NEW_ARRAY(int32_t, (size_t)s->count);
    s->next = NEB_NEW_ARRAY(int32_t, seqs);
    s->from = NEB_NEW_ARRAY(int32_t, seqs);
    s->one = NEB_NEW_ARRAY(int32_t, seqs);
    s->top = NEB_NEW_ARRAY(struct candidate, (size_t)wide(s->how, s->beams));
    if (!s->tokens || !s->other || !s->score || !s->best || !s->most || !s->done || !s->ended || !s->next ||
        !s->from || !s->one || !s->top)
        return neb__fail(NEB_ERR_NOMEM, "out of memory for a search over %d sequences", s->seqs);
    for (size_t i = 0; i < results; i++) {
        s->best[i] = -INFINITY;
        s->lengths[i] = i % (size_t)s->results ? -1 : 0;
    }
    for (int32_t i = 0; i < s->count; i++) {
        s->most[i] = s->how->most ? s->how->most[i] : s->how->max_new;
    }
    s->copy.most = NULL; /* it belongs to the caller */
    return NEB_OK;
}

void neb__search_end(struct neb_searching *s)
{
    if (!s) return;
    neb__free(s->tokens);
    neb__free(s->other);
    neb__free(s->score);
    neb__free(s->best);
    neb__free(s->most);
    neb__free(s->done);
    neb__free(s->ended);
    neb__free(s->next);
    neb__free(s->from);
    neb__free(s->one);
    neb__free(s->top);
    neb__free(s);
}

static neb_status begin(struct neb_searching *s, const struct neb_model_input_side *source,
                        const int32_t *prompt, const int32_t *starts)
{
    int32_t longest = 0, most = 1 << 24;
    for (int32_t i = 0; i < s->count; i++)
        if (starts[i + 1] - starts[i] > longest) longest = starts[i + 1] - starts[i];
    NEB_TRY(make_room(s));
    NEB_TRY(neb__decoding_start_short(s->d, s->seqs,
                                      longest + (s->how->max_new < most ? s->how->max_new : most), source));
    return prefill(s, prompt, starts);
}

/* How many of the likeliest tokens each row offers; 0: a token is drawn. */
static int32_t candidates(const struct neb_search *how, int32_t beams)
{
    if (beams > 1) return wide(how, beams) + how->bans;
    return how->temperature > 0 ? 0 : 1 + how->bans;
}

neb_status neb__search_begin(struct neb_decoding *d, const struct neb_search *how,
                             const struct neb_model_input_side *source, int32_t count, const int32_t *prompt,
                             const int32_t *starts, int32_t *out, int32_t *lengths,
                             struct neb_searching **search)
{
    NEB_TRY(check(how, count, starts));
    struct neb_searching *s = NEB_NEW(struct neb_searching);
    if (!s) return neb__fail(NEB_ERR_NOMEM, "out of memory for a search");
    int32_t beams = how->beams > 1 ? how->beams : 1;
    *s = (struct neb_searching){.copy = *how,
                                .how = &s->copy,
                                .d = d,
                                .count = count,
                                .beams = beams,
                                .results = how->results > 1 ? how->results : 1,
                                .seqs = count * beams,
                                .vocab = (int32_t)neb__decoding_vocab(d),
                                .out = out,
                                .lengths = lengths,
                                .k = candidates(how, beams),
                                .rng = {how->seed}};
    neb_status status = begin(s, source, prompt, starts);
    if (status != NEB_OK) {
        neb__search_end(s);
        return status;
    }
    *search = s;
    return NEB_OK;
}

neb_status neb__decoding_generate(struct neb_decoding *d, const struct neb_search *how,
                                  const struct neb_model_input_side *source, int32_t count,
                                  const int32_t *prompt, const int32_t *starts, int32_t *out,
                                  int32_t *lengths)
{
    struct neb_searching *s;
    bool done = false;
    NEB_TRY(neb__search_begin(d, how, source, count, prompt, starts, out, lengths, &s));
    neb_status status = NEB_OK;
    while (status == NEB_OK && !done) status = neb__search_step(s, &done);
    neb__search_end(s);
    return status;
}
