/* batches.c: the order of the samples and how they are packed.
 *
 * A batch is made from a queue of draws, oldest first. Each draw that still fits (rows of both sides, masked
 * rows, sequences) is taken; the others keep their place at the front for the next batch. With a queue of two
 * batches the gap that remains is smaller than the shortest waiting sample, so padding is far below the 5 %
 * allowed. The rows are then rounded up to the smallest of at most eight buckets that fits.
 *
 * Invariant: the position (step, next draw, numbers of the waiting draws) is a function of the configuration
 * and the step, because only lengths and draws decide. So a saved position and a replayed one are equal.
 *
 * Saved position: magic "NEBPOS\r\n", u32 version (2; 1: the shares are by source), 32 bytes fingerprint of the configuration, u64 step, u64
 * next draw, four u64 statistics, u32 n, then n u64 waiting draws. Little-endian. */
#include "text/batches_internal.h"
#include "base/clamp.h"
#include "base/bytes.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

enum { POSITION_BY_SOURCE = 1, POSITION_BY_LANGUAGE = 2, ROW_ALIGN = 8, MAX_SKIPS = 1 << 20 };
#define POSITION_MAGIC "NEBPOS\r\n"

void neb__vocab_of(const struct neb_tok *tok, struct neb_vocab *out)
{
    *out = (struct neb_vocab){neb__tok_vocab(tok),
                              neb__tok_special(tok, NEB_TOK_PAD),
                              neb__tok_special(tok, NEB_TOK_BOS),
                              neb__tok_special(tok, NEB_TOK_EOS),
                              neb__tok_special(tok, NEB_TOK_MASK),
                              neb__tok_special_map(tok)};
    if (out->pad < 0) out->pad = out->eos; /* padding is never looked at */
}

/* ---- set-up -------------------------------------------------------------------------------------------- */

static neb_status check_source(const struct neb_batches_cfg *c, int i)
{
    const struct neb_source *src = &c->source[i];
    const struct neb_set_info *info = neb__set_info(src->set);
    if (info->vocab > c->vocab.size)
        return neb__fail(NEB_ERR_CONFIG,
                         "source %d was tokenised with a vocabulary of %d, but the model's vocabulary has %d",
                         i, (int)info->vocab, (int)c->vocab.size);
    if ((c->kind == NEB_BATCH_PAIR && info->sides != 2) || (c->kind == NEB_BATCH_CAUSAL && info->sides != 1))
        return neb__fail(NEB_ERR_CONFIG, "source %d has %d text(s) per sample; this task cannot use it", i,
                         info->sides);
    if (c->vocab.bos < 0 && (c->kind != NEB_BATCH_PAIR || src->frame.start < 0))
        return neb__fail(
            NEB_ERR_CONFIG,
            "the tokenizer has no start token, with which a text of this task begins; take one that has "
            "(<s>), or for translation name a frame that starts with padding (tokenizer.frame: t5 or "
            "marian)");
    if (!neb__set_count(src->set)) return neb__fail(NEB_ERR_CONFIG, "source %d is empty", i);
    return NEB_OK;
}

static neb_status check_cfg(const struct neb_batches_cfg *c)
{
    if (c->sources < 1 || c->tokens < 16 || c->max_len < 8 || c->max_len > c->tokens || c->parts < 1 ||
        c->part < 0 || c->part >= c->parts || c->max_seqs < 0)
        return neb__fail(NEB_ERR_INVALID,
                         "a stream of %d sources, batches of %d tokens, sequences up to %d, part %" PRId64
                         " of %" PRId64 " is not possible",
                         c->sources, (int)c->tokens, (int)c->max_len, c->part, c->parts);
    if (c->kind == NEB_BATCH_MLM && (c->vocab.mask < 0 || !(c->mask_share < 0.9)))
        return neb__fail(NEB_ERR_CONFIG, "masking needs a mask token and a share below 0.9");
    for (int i = 0; i < c->sources; i++) NEB_TRY(check_source(c, i));
    return NEB_OK;
}

static int32_t rounded(double rows)
{
    return ((int32_t)ceil(rows) + ROW_ALIGN - 1) / ROW_ALIGN * ROW_ALIGN;
}

/* The target's rows follow the ratio of the two sides in the corpora, weighted as they are drawn. */
static double target_ratio(const struct neb_batches *s)
{
    double a = 0, b = 0;
    for (int i = 0; i < s->cfg.sources; i++) {
        const struct neb_source *src = &s->source[i];
        double n = (double)neb__set_count(src->set), share = s->mix ? neb__mix_share(s->mix, i) : n;
        double in = (double)neb__set_tokens(src->set, src->flip) / n + 1 + (src->frame.lead >= 0) +
                    (src->frame.tail >= 0);
        double out = (double)neb__set_tokens(src->set, !src->flip) / n + 1 + (src->frame.first >= 0);
        a += share * in;
        b += share * out;
    }
    return neb__clamp(b / a, 0.25, 4);
}

static void make_buckets(const struct neb_batches *s, struct neb_bucket bucket[NEB_MAX_BUCKETS])
{
    static const double one[NEB_MAX_BUCKETS] = {1, 31. / 32, 15. / 16, 7. / 8, .75, .5, .25, .125};
    static const double two[NEB_MAX_BUCKETS][2] = {{1, 1},        {1, 31. / 32}, {31. / 32, 1}, {1, 15. / 16},
                                                   {15. / 16, 1}, {1, 7. / 8},   {7. / 8, 1},   {.5, .5}};
    double t = s->cfg.tokens, u = s->cfg.kind == NEB_BATCH_PAIR ? t * target_ratio(s) : 0;
    for (int i = 0; i < NEB_MAX_BUCKETS; i++) {
        bool pair = s->cfg.kind == NEB_BATCH_PAIR;
        int32_t a = rounded(t * (pair ? two[i][0] : one[i])), b = pair ? rounded(u * two[i][1]) : 0;
        if (pair && b < s->cfg.max_len) b = rounded(s->cfg.max_len);
        bucket[i] = (struct neb_bucket){{a, b}};
    }
}

/* The first source of the same language. */
static int language_of(const struct neb_batches *s, int i)
{
    int language = s->source[i].language, k = i;
    for (int j = i - 1; language && j >= 0; j--)
        if (s->source[j].language == language) k = j;
    return k;
}

static neb_status make_fingerprint(const struct neb_batches *s, enum neb_mix_rule rule, struct neb_hash *out)
{
    const struct neb_batches_cfg *c = &s->cfg;
    struct neb_buf b;
    neb__buf_init(&b, 1 << 22);
    neb_status status =
        neb__buf_printf(&b, "%d %" PRIu64 " %" PRId64 "/%" PRId64 " %d %d %d %d %.17g %.17g %d %d\n",
                        (int)c->kind, c->seed, c->part, c->parts, c->sources, (int)c->tokens, (int)c->max_len,
                        (int)c->max_seqs, c->temperature, c->mask_share, c->once, (int)c->vocab.size);
    for (int i = 0; status == NEB_OK && i < c->sources; i++) {
        const struct neb_source *src = &s->source[i];
        char hex[2 * NEB_HASH_SIZE + 1];
        neb__hash_hex(&neb__set_info(src->set)->tokenizer, hex);
        status =
            neb__buf_printf(&b, "%" PRId64 " %" PRId64 " %" PRId64 " %.17g %d %d %s\n",
                            neb__set_count(src->set), neb__set_tokens(src->set, 0),
                            neb__set_tokens(src->set, 1), src->weight, src->flip, (int)src->frame.lead, hex);
        /* frames without these have the fingerprint they always had */
        if (status == NEB_OK && (src->frame.tail >= 0 || src->frame.start >= 0 || src->frame.first >= 0))
            status = neb__buf_printf(&b, "%d %d %d\n", (int)src->frame.tail, (int)src->frame.start,
                                     (int)src->frame.first);
    }
    for (int i = 0; status == NEB_OK && rule == NEB_MIX_BY_LANGUAGE && i < s->cfg.sources; i++)
        status = neb__buf_printf(&b, "language %d\n", language_of(s, i));
    if (status == NEB_OK) status = neb__hash(b.data, b.len, out);
    neb__buf_free(&b);
    return status;
}

static neb_status make_mix(const struct neb_batches *s, enum neb_mix_rule rule, struct neb_mix **out)
{
    int n = s->cfg.sources;
    struct neb_mix_source *list = NEB_NEW_ARRAY(struct neb_mix_source, (size_t)n);
    if (!list) return neb__fail(NEB_ERR_NOMEM, "out of memory for %d sources", n);
    for (int i = 0; i < n; i++) {
        const struct neb_set *set = s->source[i].set;
        int64_t second = neb__set_info(set)->sides == 2 ? neb__set_tokens(set, 1) : 0;
        list[i] = (struct neb_mix_source){.samples = neb__set_count(set),
                                          .tokens = neb__set_tokens(set, 0) + second,
                                          .weight = s->source[i].weight,
                                          .language = language_of(s, i)};
    }
    neb_status status = neb__mix_create(s->cfg.seed, n, list, s->cfg.temperature, rule, out);
    neb__free(list);
    return status;
}

static neb_status reserve(struct neb_batches *s)
{
    struct neb_batches_cfg *c = &s->cfg;
    if (!c->max_seqs) c->max_seqs = c->tokens / 4;
    if (!(c->temperature > 0)) c->temperature = 1;
    if (!(c->mask_share > 0)) c->mask_share = 0.15;
    if (c->keep_share == 0 && c->random_share == 0) c->keep_share = c->random_share = 0.1;
    s->source = NEB_NEW_ARRAY(struct neb_source, (size_t)c->sources);
    s->chosen = NEB_NEW_ARRAY(struct neb_pending, (size_t)c->max_seqs);
    s->queue_cap = 2 * c->max_seqs + 64;
    s->queue = NEB_NEW_ARRAY(struct neb_pending, (size_t)s->queue_cap);
    s->marks = NEB_NEW_ARRAY(uint8_t, (size_t)c->max_len);
    s->candidates = NEB_NEW_ARRAY(int32_t, (size_t)c->max_len);
    if (!s->source || !s->chosen || !s->queue || !s->marks || !s->candidates)
        return neb__fail(NEB_ERR_NOMEM, "out of memory for a stream of batches");
    for (int i = 0; i < c->sources; i++) {
        s->source[i] = c->source[i];
        if (!(s->source[i].weight > 0)) s->source[i].weight = 1;
    }
    c->source = s->source;
    s->loss = rounded(c->tokens * c->mask_share * 1.03 + 16);
    return NEB_OK;
}

neb_status neb__batches_create(const struct neb_batches_cfg *cfg, struct neb_batches **out)
{
    NEB_TRY(check_cfg(cfg));
    struct neb_batches *s = NEB_NEW(struct neb_batches);
    if (!s) return neb__fail(NEB_ERR_NOMEM, "out of memory for a stream of batches");
    s->cfg = *cfg;
    neb_status status;
    NEB_TRY_GOTO(status, reserve(s), fail);
    s->rule = cfg->rule;
    if (!cfg->once) NEB_TRY_GOTO(status, make_mix(s, s->rule, &s->mix), fail);
    make_buckets(s, s->bucket);
    s->buckets = NEB_MAX_BUCKETS;
    NEB_TRY_GOTO(status, make_fingerprint(s, s->rule, &s->fingerprint), fail);
    int32_t widest =
        s->bucket[0].tokens[0] > s->bucket[0].tokens[1] ? s->bucket[0].tokens[0] : s->bucket[0].tokens[1];
    s->nseq = s->cfg.max_seqs + widest / s->cfg.max_len + 1; /* room for the sequences of padding */
    *out = s;
    return NEB_OK;
fail:
    neb__batches_free(s);
    return status;
}

void neb__batches_free(struct neb_batches *s)
{
    if (!s) return;
    neb__mix_free(s->mix);
    neb__free(s->source);
    neb__free(s->chosen);
    neb__free(s->queue);
    neb__free(s->marks);
    neb__free(s->candidates);
    neb__free(s);
}

neb_status neb__batches_batch(const struct neb_batches *s, struct neb_batch **out)
{
    const int32_t *t = s->bucket[0].tokens;
    int32_t loss = s->cfg.kind == NEB_BATCH_PAIR ? t[1] : t[0];
    if (s->cfg.kind == NEB_BATCH_MLM) loss = s->loss;
    return neb__batch_create(s->cfg.kind, t, s->nseq, loss, out);
}

/* ---- the order ----------------------------------------------------------------------------------------- */

/* Returns false when there is no such draw (the end of `once`). */
static bool pick(struct neb_batches *s, uint64_t global, struct neb_pick *p)
{
    if (s->mix) {
        *p = neb__mix_draw(s->mix, global);
        return true;
    }
    for (int i = 0; i < s->cfg.sources; i++) {
        uint64_t n = (uint64_t)neb__set_count(s->source[i].set);
        if (global < n) {
            *p = (struct neb_pick){.source = i, .sample = (int64_t)global};
            return true;
        }
        global -= n;
    }
    return false;
}

/* Counts the rows that the sample takes; false: the sample is too long to be used. */
static bool measure(const struct neb_batches *s, const struct neb_pick *p, struct neb_pending *out)
{
    const struct neb_source *src = &s->source[p->source];
    int32_t limit = s->cfg.max_len, a = neb__set_length(src->set, p->sample, src->flip), b = 0;
    if (neb__set_info(src->set)->sides == 2) b = neb__set_length(src->set, p->sample, !src->flip);
    out->masks = 0;
    out->rows[1] = 0;
    switch (s->cfg.kind) {
    case NEB_BATCH_PAIR:
        out->rows[0] = a + 1 + (src->frame.lead >= 0) + (src->frame.tail >= 0);
        out->rows[1] = b + 1 + (src->frame.first >= 0);
        return out->rows[0] <= limit && out->rows[1] <= limit;
    case NEB_BATCH_CAUSAL: out->rows[0] = a < limit - 1 ? a + 1 : limit; return true;
    case NEB_BATCH_MLM: break;
    }
    if (b) {
        if ((int64_t)a + b + 3 > limit) return false;
        out->rows[0] = a + b + 3;
        a += b;
    } else {
        if (a > limit - 2) a = limit - 2;
        out->rows[0] = a + 2;
    }
    /* rounded up or down at random, by the sample id, so the mean share is exact even for short texts */
    struct neb_rng r = {neb__mix64(s->cfg.seed ^ 0x6D61736Bu) + neb__mix64(out->global)};
    out->masks = (int32_t)(s->cfg.mask_share * a + neb__rng_uniform(&r));
    return true;
}

static bool look_up(struct neb_batches *s, uint64_t draw, struct neb_pending *out, bool *usable)
{
    struct neb_pick p;
    out->draw = draw;
    out->global = draw * (uint64_t)s->cfg.parts + (uint64_t)s->cfg.part;
    if (!pick(s, out->global, &p)) return false;
    out->source = p.source;
    out->sample = p.sample;
    *usable = measure(s, &p, out);
    return true;
}

static neb_status refill(struct neb_batches *s)
{
    int64_t rows[2] = {0, 0};
    int skips = 0;
    for (int i = 0; i < s->queued; i++) rows[0] += s->queue[i].rows[0], rows[1] += s->queue[i].rows[1];
    while (s->queued < s->queue_cap && rows[0] < 2 * (int64_t)s->bucket[0].tokens[0]) {
        struct neb_pending *p = &s->queue[s->queued];
        bool usable;
        if (!look_up(s, s->next, p, &usable)) break;
        s->next++;
        if (!usable) {
            s->stats.skipped++;
            if (++skips == MAX_SKIPS)
                return neb__fail(NEB_ERR_CONFIG,
                                 "a million samples in a row are longer than %d tokens; raise train.max_len",
                                 (int)s->cfg.max_len);
            continue;
        }
        rows[0] += p->rows[0];
        rows[1] += p->rows[1];
        s->queued++;
    }
    return NEB_OK;
}

struct room {
    int32_t rows[2], masks;
};

static void choose(struct neb_batches *s, struct room *used)
{
    struct room left = {{s->bucket[0].tokens[0], s->bucket[0].tokens[1]}, s->loss};
    int kept = 0;
    s->chosen_n = 0;
    for (int i = 0; i < s->queued; i++) {
        const struct neb_pending *p = &s->queue[i];
        if (s->chosen_n < s->cfg.max_seqs && p->rows[0] <= left.rows[0] && p->rows[1] <= left.rows[1] &&
            p->masks <= left.masks) {
            left.rows[0] -= p->rows[0];
            left.rows[1] -= p->rows[1];
            left.masks -= p->masks;
            s->chosen[s->chosen_n++] = *p;
        } else {
            s->queue[kept++] = *p;
        }
    }
    s->queued = kept;
    used->rows[0] = s->bucket[0].tokens[0] - left.rows[0];
    used->rows[1] = s->bucket[0].tokens[1] - left.rows[1];
    used->masks = s->loss - left.masks;
}

static int smallest_bucket(const struct neb_batches *s, const struct room *used)
{
    int best = 0;
    for (int i = 1; i < s->buckets; i++) {
        const int32_t *t = s->bucket[i].tokens, *b = s->bucket[best].tokens;
        if (t[0] >= used->rows[0] && t[1] >= used->rows[1] && t[0] + t[1] < b[0] + b[1]) best = i;
    }
    return best;
}

/* Chooses the samples of the next batch and moves the position past it. */
static neb_status plan(struct neb_batches *s, int *bucket)
{
    NEB_TRY(refill(s));
    /* lengths that could not be read would give a plan, and so a position, of their own */
    for (int i = 0; i < s->cfg.sources; i++) NEB_TRY(neb__set_check(s->source[i].set));
    struct room used;
    choose(s, &used);
    if (!s->chosen_n) return NEB_ERR_AGAIN;
    *bucket = smallest_bucket(s, &used);
    const int32_t *t = s->bucket[*bucket].tokens;
    s->stats.rows += t[0] + t[1];
    s->stats.padding += t[0] + t[1] - used.rows[0] - used.rows[1];
    s->stats.samples += s->chosen_n;
    s->step++;
    return NEB_OK;
}

neb_status neb__batches_next(struct neb_batches *s, struct neb_batch *b)
{
    int bucket;
    NEB_TRY(plan(s, &bucket));
    b->step = s->step - 1;
    return neb__batches_fill(s, bucket, b);
}

int64_t neb__batches_samples(const struct neb_batches *s)
{
    int64_t n = 0;
    for (int i = 0; i < s->cfg.sources; i++) n += neb__set_count(s->source[i].set);
    return n;
}

neb_status neb__batches_one(struct neb_batches *s, int64_t at, uint64_t salt, struct neb_batch *b)
{
    struct neb_pick p;
    struct neb_pending *one = s->chosen;
    if (s->mix || at < 0 || !pick(s, (uint64_t)at, &p))
        return neb__fail(NEB_ERR_INVALID, "the stream has no sample %" PRId64, at);
    *one = (struct neb_pending){.draw = salt, .global = salt, .sample = p.sample, .source = p.source};
    if (!measure(s, &p, one) || one->rows[0] > s->bucket[0].tokens[0] ||
        one->rows[1] > s->bucket[0].tokens[1] || one->masks > s->loss)
        return NEB_ERR_AGAIN;
    s->chosen_n = 1;
    b->step = s->step;
    return neb__batches_fill(s, smallest_bucket(s, &(struct room){{one->rows[0], one->rows[1]}, one->masks}),
                             b);
}

int64_t neb__batches_step(const struct neb_batches *s)
{
    return s->step;
}

struct neb_batches_stats neb__batches_stats(const struct neb_batches *s)
{
    return s->stats;
}

/* ---- the position -------------------------------------------------------------------------------------- */

neb_status neb__batches_seek(struct neb_batches *s, int64_t step)
{
    if (step < 0) return neb__fail(NEB_ERR_INVALID, "no batch %" PRId64, step);
    if (step < s->step) {
        s->step = 0;
        s->next = 0;
        s->queued = 0;
        s->stats = (struct neb_batches_stats){0};
    }
    for (int bucket; s->step < step;) NEB_TRY(plan(s, &bucket));
    return NEB_OK;
}

neb_status neb__batches_save(const struct neb_batches *s, struct neb_buf *out)
{
    size_t n = 8 + 4 + NEB_HASH_SIZE + 6 * 8 + 4 + 8 * (size_t)s->queued;
    NEB_TRY(neb__buf_reserve(out, n));
    uint8_t *p = out->data + out->len;
    memcpy(p, POSITION_MAGIC, 8);
    neb__put32(p + 8, s->rule == NEB_MIX_BY_SOURCE ? POSITION_BY_SOURCE : POSITION_BY_LANGUAGE);
    memcpy(p + 12, s->fingerprint.b, NEB_HASH_SIZE);
    p += 12 + NEB_HASH_SIZE;
    const uint64_t numbers[6] = {(uint64_t)s->step,          s->next,
                                 (uint64_t)s->stats.rows,    (uint64_t)s->stats.padding,
                                 (uint64_t)s->stats.samples, (uint64_t)s->stats.skipped};
    for (int i = 0; i < 6; i++, p += 8) neb__put64(p, numbers[i]);
    neb__put32(p, (uint32_t)s->queued);
    p += 4;
    for (int i = 0; i < s->queued; i++, p += 8) neb__put64(p, s->queue[i].draw);
    out->len += n;
    return NEB_OK;
}

/* The numbers of a saved position, before its waiting draws. */
struct position {
    enum neb_mix_rule rule;
    const uint8_t *print;
    uint64_t numbers[6];
    uint32_t queued;
};

static neb_status read_position(struct neb_reader *r, struct position *out)
{
    const uint8_t *magic = neb__read(r, 8);
    uint32_t version = neb__read32(r);
    out->print = neb__read(r, NEB_HASH_SIZE);
    for (int i = 0; i < 6; i++) out->numbers[i] = neb__read64(r);
    out->queued = neb__read32(r);
    if (r->bad || memcmp(magic, POSITION_MAGIC, 8) || r->left != 8 * (uint64_t)out->queued)
        return neb__fail(NEB_ERR_CORRUPT, "the saved data position is damaged");
    if (version != POSITION_BY_SOURCE && version != POSITION_BY_LANGUAGE)
        return neb__fail(NEB_ERR_VERSION, "the saved data position has version %u, this build reads 1 to %d",
                         (unsigned)version, POSITION_BY_LANGUAGE);
    out->rule = version == POSITION_BY_SOURCE ? NEB_MIX_BY_SOURCE : NEB_MIX_BY_LANGUAGE;
    return NEB_OK;
}

/* What the shares decide beside the draws: the shapes of the batches, for which memory is there already. */
static neb_status same_shapes(const struct neb_batches *s, struct neb_mix *mix)
{
    struct neb_batches other = *s;
    struct neb_bucket bucket[NEB_MAX_BUCKETS];
    other.mix = mix;
    make_buckets(&other, bucket);
    if (!memcmp(bucket, s->bucket, sizeof bucket)) return NEB_OK;
    return neb__fail(
        NEB_ERR_CONFIG,
        "the data position was saved by a version that sampled corpora, not languages, and these "
        "corpora cannot go on from it: end the training with that version, or begin anew in "
        "another folder (out), from the trained model if you like (init.from)");
}

/* The stream with the draws of the position; s->mix and s->queue are the caller's to keep. */
static neb_status take_position(struct neb_batches *s, struct neb_reader *r, const struct position *p)
{
    for (uint32_t i = 0; i < p->queued; i++) {
        bool usable;
        uint64_t draw = neb__read64(r);
        if (draw >= p->numbers[1] || !look_up(s, draw, &s->queue[i], &usable) || !usable)
            return neb__fail(NEB_ERR_CORRUPT, "the saved data position is impossible");
    }
    s->queued = (int)p->queued;
    s->step = (int64_t)p->numbers[0];
    s->next = p->numbers[1];
    s->stats = (struct neb_batches_stats){(int64_t)p->numbers[2], (int64_t)p->numbers[3],
                                          (int64_t)p->numbers[4], (int64_t)p->numbers[5]};
    return NEB_OK;
}

neb_status neb__batches_restore(struct neb_batches *s, const void *bytes, size_t n)
{
    struct neb_reader r = {bytes, n, false};
    struct position p = {.queued = 0};
    struct neb_batches made = *s;
    NEB_TRY(read_position(&r, &p));
    made.rule = p.rule;
    NEB_TRY(make_fingerprint(s, p.rule, &made.fingerprint));
    if (memcmp(p.print, made.fingerprint.b, NEB_HASH_SIZE))
        return neb__fail(NEB_ERR_CONFIG,
                         "the data position was saved with other corpora or settings (seed, ranks, batch "
                         "tokens, lengths, languages, sampling): restore those, or start the data from the "
                         "beginning");
    if (p.queued > (uint32_t)s->queue_cap || p.numbers[0] > INT64_MAX)
        return neb__fail(NEB_ERR_CORRUPT, "the saved data position is impossible");
    const bool other = s->mix && p.rule != s->rule;
    neb_status status = other ? make_mix(s, p.rule, &made.mix) : NEB_OK;
    if (status != NEB_OK) return status;
    made.queue = NEB_NEW_ARRAY(struct neb_pending, (size_t)s->queue_cap);
    if (!made.queue) status = neb__fail(NEB_ERR_NOMEM, "out of memory for a data position");
    if (status == NEB_OK && other) status = same_shapes(s, made.mix);
    if (status == NEB_OK) status = take_position(&made, &r, &p);
    struct neb_batches *drop = status == NEB_OK ? s : &made;
    neb__free(drop->queue);
    if (other) neb__mix_free(drop->mix);
    if (status == NEB_OK) *s = made;
    return status;
}
