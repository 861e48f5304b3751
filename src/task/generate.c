/* generate.c: continuing a text.
 *
 * The model gives the logits of the next token; the host chooses. Order: the repetition penalty lowers tokens that
 * the text contains already (Keskar et al. 2019), the temperature divides, top_k keeps the likeliest k, top_p the
 * likeliest ones that together have that probability (Holtzman et al. 2020), then one is drawn. Temperature 0
 * takes the likeliest.
 *
 * A character may be several tokens. So all new tokens are decoded anew after each, and the text is given as far
 * as it can no longer change: not the bytes of an unfinished character at its end. The last tokens of the prompt are
 * decoded with them, because many tokenizers drop the space before the first token of a text. */
#include "task/generate.h"
#include "base/mem.h"
#include "base/rng.h"
#include "nn/decode.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 1 << 20, TEXT = 64 << 20, BEFORE = 8, ROOM = 1024 };

#define OPT(field, ...) NEB_OPT(struct neb_generate_config, field, __VA_ARGS__)

const struct neb_opt neb__generate_options[] = {
    OPT(max_new, NEB_OPT_INT, "128", "tokens", "to add, at most", NEB_OPT_RANGE(1, MOST)),
    OPT(temperature, NEB_OPT_REAL, "0.8", NULL, "0: always the likeliest token; higher: more surprising",
        NEB_OPT_RANGE(0, 100)),
    OPT(top_k, NEB_OPT_INT, "0", "tokens", "draw from so many of the likeliest; 0: from all",
        NEB_OPT_RANGE(0, INT32_MAX)),
    OPT(top_p, NEB_OPT_SHARE, "0.95", NULL, "draw from the likeliest that together have this probability",
        NEB_OPT_RANGE(0, 1)),
    OPT(repetition, NEB_OPT_REAL, "1", NULL, "above 1: tokens that are there already become less likely",
        NEB_OPT_RANGE(0.01, 100)),
    OPT(seed, NEB_OPT_INT, "1", NULL, "another one gives another text", NEB_OPT_RANGE(0, 9e15)),
    OPT(start, NEB_OPT_TEXT, "auto", NULL,
        "put the token that begins a text before the prompt; auto: where the tokenizer says so",
        NEB_OPT_CHOICE("auto", "yes", "no")),
    NEB_OPT_END,
};

struct candidate {
    double value;
    int32_t id;
};

struct neb_generator {
    const struct neb_ready *m;
    struct neb_generate_config c;
    struct neb_decoding *decoding;
    int32_t vocab, begin, end;
    bool starts;
    int32_t longest, room;  /* tokens of a text: that the model reads, that the cache holds now */
    struct candidate *list; /* (vocab) */
    uint8_t *seen;          /* (vocab) */
    uint8_t *absent;        /* (vocab) 1: the table has a row for it, the tokenizer no token */
    struct neb_buf ids;     /* int32_t: the prompt, then the new tokens */
    struct neb_buf before;  /* the text of the prompt's last tokens */
    struct neb_buf text;    /* the same and the new tokens' */
    struct neb_rng rng;
};

/* ---- opening ----------------------------------------------------------------------------------------------- */

/* The cache is as long as a text can become, not as the model could read. */
static neb_status make_room(struct neb_generator *g, int64_t tokens)
{
    if (tokens <= g->room) return NEB_OK;
    tokens = (tokens + ROOM - 1) / ROOM * ROOM;
    int32_t room = tokens < g->longest ? (int32_t)tokens : g->longest;
    struct neb_decode_limits l = {.seqs = 1, .max_len = room, .prompt_rows = room};
    neb__decoding_destroy(g->decoding);
    g->decoding = NULL;
    g->room = 0;
    NEB_TRY(neb__decoding_create(g->m->device, g->m->model, &l, &g->decoding));
    g->room = room;
    return NEB_OK;
}

static neb_status prepare(struct neb_generator *g)
{
    const struct neb_ready *m = g->m;
    const struct neb_arch *a = &m->model->arch;
    if (a->kind != NEB_DECODER || !m->tok)
        return neb__fail(
            NEB_ERR_CONFIG, "the model in %s does not continue texts: it is not a decoder with a tokenizer%s",
            m->folder.path, a->kind == NEB_ENCODER_DECODER ? "; `nebula-i translate` uses it" : "");
    const int64_t most = a->max_positions - m->model->peft.prompt_length;
    g->longest = (int32_t)(most < MOST ? most : MOST);
    g->begin = neb__tok_special(m->tok, NEB_TOK_BOS);
    g->end = neb__tok_special(m->tok, NEB_TOK_EOS);
    g->starts = !strcmp(g->c.start, "auto") ? neb__tok_adds_start(m->tok) : !strcmp(g->c.start, "yes");
    NEB_TRY(make_room(g, 1));
    g->vocab = (int32_t)neb__decoding_vocab(g->decoding);
    g->list = NEB_NEW_ARRAY(struct candidate, (size_t)g->vocab);
    g->seen = NEB_NEW_ARRAY(uint8_t, (size_t)g->vocab);
    g->absent = NEB_NEW_ARRAY(uint8_t, (size_t)g->vocab);
    if (!g->list || !g->seen || !g->absent)
        return neb__fail(NEB_ERR_NOMEM, "out of memory for a vocabulary of %d", (int)g->vocab);
    for (int32_t i = 0; i < g->vocab; i++) g->absent[i] = !neb__tok_piece(m->tok, i);
    g->rng.state = (uint64_t)g->c.seed;
    return NEB_OK;
}

neb_status neb__generator_open(const struct neb_ready *model, const struct neb_generate_config *c,
                               struct neb_generator **out)
{
    struct neb_generator *g = NEB_NEW(struct neb_generator);
    if (!g) return neb__fail(NEB_ERR_NOMEM, "out of memory for generating");
    g->m = model;
    g->c = *c;
    neb__buf_init(&g->ids, TEXT);
    neb__buf_init(&g->before, TEXT);
    neb__buf_init(&g->text, TEXT);
    neb_status status = prepare(g);
    if (status != NEB_OK) {
        neb__generator_close(g);
        return status;
    }
    *out = g;
    return NEB_OK;
}

void neb__generator_close(struct neb_generator *g)
{
    if (!g) return;
    neb__decoding_destroy(g->decoding);
    neb__buf_free(&g->ids);
    neb__buf_free(&g->before);
    neb__buf_free(&g->text);
    neb__free(g->list);
    neb__free(g->seen);
    neb__free(g->absent);
    neb__free(g);
}

/* ---- choosing ---------------------------------------------------------------------------------------------- */

static int likelier(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->value != y->value) return x->value < y->value ? 1 : -1;
    return x->id < y->id ? -1 : 1;
}

static double penalised(const struct neb_generator *g, float logit, int32_t id)
{
    double x = (double)logit;
    if (g->absent[id]) return -INFINITY;
    if (g->c.repetition == 1 || !g->seen[id]) return x;
    return x > 0 ? x / g->c.repetition : x * g->c.repetition;
}

static int32_t likeliest(const struct neb_generator *g, const float *logits)
{
    int32_t best = 0;
    double most = -INFINITY;
    for (int32_t i = 0; i < g->vocab; i++) {
        double x = penalised(g, logits[i], i);
        if (x > most) most = x, best = i;
    }
    return best;
}

/* How many of the sorted candidates take part in the draw; their values become probabilities. */
static int32_t keep(struct neb_generator *g)
{
    int32_t n = g->vocab, kept = 0;
    double top = g->list[0].value, all = 0, sum = 0;
    if (g->c.top_k && g->c.top_k < n) n = (int32_t)g->c.top_k;
    for (int32_t i = 0; i < n; i++) all += g->list[i].value = exp(g->list[i].value - top);
    while (kept < n && (kept == 0 || sum < g->c.top_p * all)) sum += g->list[kept++].value;
    return kept;
}

static int32_t drawn(struct neb_generator *g, const float *logits)
{
    for (int32_t i = 0; i < g->vocab; i++)
        g->list[i] = (struct candidate){penalised(g, logits[i], i) / g->c.temperature, i};
    qsort(g->list, (size_t)g->vocab, sizeof *g->list, likelier);
    int32_t n = keep(g);
    double sum = 0, at;
    for (int32_t i = 0; i < n; i++) sum += g->list[i].value;
    at = neb__rng_uniform(&g->rng) * sum;
    for (int32_t i = 0; i + 1 < n; i++)
        if ((at -= g->list[i].value) < 0) return g->list[i].id;
    return g->list[n - 1].id;
}

/* The logarithm of the sum of all exponentials; not finite: the logits are not. */
static double log_sum(const struct neb_generator *g, const float *logits)
{
    double top = -INFINITY, sum = 0;
    for (int32_t i = 0; i < g->vocab; i++) top = fmax(top, (double)logits[i]);
    for (int32_t i = 0; i < g->vocab; i++) sum += exp((double)logits[i] - top);
    return top + log(sum);
}

/* ---- the text ------------------------------------------------------------------------------------------------ */

/* How much of the text can no longer change: an unfinished character shows as U+FFFD at the end. */
static size_t settled(const char *text, size_t n)
{
    static const char unfinished[] = "\xEF\xBF\xBD";
    while (n >= 3 && !memcmp(text + n - 3, unfinished, 3)) n -= 3;
    return n;
}

static neb_status remember(struct neb_generator *g, int32_t id)
{
    if (id >= 0 && id < g->vocab) g->seen[id] = 1;
    return neb__buf_append(&g->ids, &id, sizeof id);
}

static neb_status read_prompt(struct neb_generator *g, const char *prompt, size_t n, int32_t *count)
{
    neb__buf_clear(&g->ids);
    memset(g->seen, 0, (size_t)g->vocab);
    if (g->starts && g->begin >= 0) NEB_TRY(remember(g, g->begin));
    NEB_TRY(neb__tok_encode(g->m->tok, prompt, n, &g->ids));
    if (!g->ids.len && g->begin >= 0) NEB_TRY(remember(g, g->begin)); /* it has to begin with something */
    size_t all = g->ids.len / sizeof(int32_t);
    if (!all || all >= (size_t)g->longest)
        return neb__fail(NEB_ERR_RANGE,
                         "the prompt has %zu tokens; there must be at least one, and fewer than %d", all,
                         (int)g->longest);
    const int32_t *ids = (const int32_t *)(const void *)g->ids.data;
    for (size_t i = 0; i < all; i++)
        if (ids[i] >= 0 && ids[i] < g->vocab) g->seen[ids[i]] = 1;
    *count = (int32_t)all;
    return NEB_OK;
}

/* Where the text stands: what was given, and what is to be given with the next token. */
struct telling {
    neb_generate_fn fn;
    void *arg;
    int32_t prompt, before; /* tokens of the prompt; of these, that are decoded with the new ones */
    size_t shown;
};

/* The text of the new tokens: *n bytes of g->text from *from on. */
static neb_status new_text(struct neb_generator *g, const struct telling *t, size_t *from, size_t *n)
{
    const int32_t *ids = (const int32_t *)(const void *)g->ids.data + t->prompt;
    const size_t made = g->ids.len / sizeof *ids - (size_t)t->prompt;
    neb__buf_clear(&g->text);
    NEB_TRY(neb__tok_decode(g->m->tok, ids - t->before, made + (size_t)t->before, &g->text));
    *from = g->before.len;
    if (*from &&
        (g->text.len < *from || memcmp(g->text.data, g->before.data, *from))) { /* they do not part there */
        neb__buf_clear(&g->text);
        NEB_TRY(neb__tok_decode(g->m->tok, ids, made, &g->text));
        *from = 0;
    }
    *n = g->text.len - *from;
    return NEB_OK;
}

/* Gives the text that `id` completes. id -1: the text is over, and whatever is left is given. What was given stays given,
 * even if the bytes of one more character make the last ones look unfinished again. */
static neb_status tell(struct neb_generator *g, struct telling *t, int32_t id, double logp)
{
    size_t at, n;
    NEB_TRY(new_text(g, t, &at, &n));
    const char *text = g->text.len ? (const char *)g->text.data + at : "";
    size_t end = id < 0 ? n : settled(text, n), from = t->shown < end ? t->shown : end;
    while (from < end && ((uint8_t)text[from] & 0xC0) == 0x80) from++;
    if (t->shown < end) t->shown = end;
    if (id < 0 && from == end) return NEB_OK;
    return t->fn(t->arg, text + from, end - from, id, logp);
}

static neb_status begin(struct neb_generator *g, struct telling *t, const char *prompt, size_t n,
                        int64_t *most)
{
    NEB_TRY(read_prompt(g, prompt, n, &t->prompt));
    t->before = t->prompt < BEFORE ? t->prompt : BEFORE;
    const int32_t *ids = (const int32_t *)(const void *)g->ids.data + t->prompt - t->before;
    neb__buf_clear(&g->before);
    NEB_TRY(neb__tok_decode(g->m->tok, ids, (size_t)t->before, &g->before));
    int32_t room = g->longest - t->prompt;
    *most = g->c.max_new < room ? g->c.max_new : room;
    NEB_TRY(make_room(g, t->prompt + *most));
    return neb__decoding_start(g->decoding, 1, NULL);
}

neb_status neb__generator_run(struct neb_generator *g, const char *prompt, size_t n, neb_generate_fn fn,
                              void *arg)
{
    struct telling t = {.fn = fn, .arg = arg};
    int64_t most;
    NEB_TRY(begin(g, &t, prompt, n, &most));
    int32_t add = t.prompt;
    for (int64_t made = 0; made < most; made++) {
        const float *logits;
        const int32_t *ids = (const int32_t *)(const void *)g->ids.data;
        NEB_TRY(neb__decoding_step(g->decoding, &add, ids + g->ids.len / sizeof *ids - (size_t)add, &logits));
        const double all = log_sum(g, logits);
        if (!isfinite(all))
            return neb__fail(NEB_ERR_RANGE, "the model in %s gives numbers that are not finite",
                             g->m->folder.path);
        int32_t id = g->c.temperature > 0 ? drawn(g, logits) : likeliest(g, logits);
        if (id == g->end) break;
        NEB_TRY(remember(g, id));
        NEB_TRY(tell(g, &t, id, (double)logits[id] - all));
        add = 1;
    }
    return tell(g, &t, -1, 0);
}
