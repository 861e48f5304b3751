/* generate.c: continuing a text.
 *
 * The model gives the logits of the next token; choose_token.c chooses. A character may be several tokens. So all new
 * tokens are decoded anew after each, and the text is given as far as it can no longer change: not the bytes of an
 * unfinished character at its end, and nothing that may become the beginning of a stop string. The last tokens of the
 * prompt are decoded with them, because many tokenizers drop the space before the first token of a text.
 *
 * The keys and values of a text stay in the cache. A prompt that goes on from it, as the next turn of a conversation
 * does, computes its own new tokens only. */
#include "task/generate.h"
#include "base/mem.h"
#include "nn/decode.h"
#include "task/choose_token.h"
#include "task/end_tokens.h"

#include <math.h>
#include <string.h>

enum { MOST = 1 << 20, TEXT = 64 << 20, BEFORE = 8, ROOM = 1024, STOPS = 16 };

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
    OPT(stop, NEB_OPT_TEXT, "", NULL,
        "ends a text where it appears; several: one|another; \\| stands for the character |, \\n for a line "
        "end"),
    OPT(start, NEB_OPT_TEXT, "auto", NULL,
        "put the token that begins a text before the prompt; auto: as the model learned it, or as its "
        "tokenizer says",
        NEB_OPT_CHOICE("auto", "yes", "no")),
    NEB_OPT_END,
};

struct neb_generator {
    const struct neb_ready *m;
    struct neb_generate_config c;
    struct neb_decoding *decoding;
    int32_t vocab, begin;
    bool starts;
    int32_t longest, room; /* tokens of a text: that the model reads, that the cache holds now */
    int32_t cached;        /* of ids: that the cache has */
    struct neb_token_chooser choose;
    uint8_t *absent;   /* (vocab) 1: the table has a row for it, the tokenizer no token */
    uint8_t *ends;     /* (vocab) 1: ends a text */
    char *stop[STOPS]; /* as does each of these */
    int stops;
    struct neb_buf prompt; /* int32_t */
    struct neb_buf ids;    /* int32_t: the prompt, then the new tokens */
    struct neb_buf before; /* the text of the prompt's last tokens */
    struct neb_buf text;   /* the same and the new tokens' */
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
    g->room = g->cached = 0;
    NEB_TRY(neb__decoding_create(g->m->device, g->m->model, &l, &g->decoding));
    g->room = room;
    return NEB_OK;
}

neb_status neb__generator_stop_at(struct neb_generator *g, const char *text, size_t n)
{
    if (!n) return NEB_OK;
    if (g->stops == STOPS) return neb__fail(NEB_ERR_RANGE, "more than %d stop strings", STOPS);
    char *copy = neb__malloc(n + 1);
    if (!copy) return neb__fail(NEB_ERR_NOMEM, "out of memory for a stop string");
    memcpy(copy, text, n);
    copy[n] = 0;
    g->stop[g->stops++] = copy;
    return NEB_OK;
}

void neb__generator_end_at(struct neb_generator *g, int32_t id)
{
    if (id >= 0 && id < g->vocab) g->ends[id] = 1;
}

/* A special token shows in no text, so it is looked for among the tokens. */
static neb_status take_stop(struct neb_generator *g, struct neb_buf *text)
{
    NEB_TRY(neb__generator_stop_at(g, (const char *)text->data, text->len));
    NEB_TRY(neb__buf_append(text, "", 1));
    const int32_t id = neb__tok_id(g->m->tok, (const char *)text->data);
    if (id >= 0 && neb__tok_special_map(g->m->tok)[id]) neb__generator_end_at(g, id);
    neb__buf_clear(text);
    return NEB_OK;
}

/* one|another, in which \| stands for the character and \n for a line end */
static neb_status read_stops(struct neb_generator *g, const char *list)
{
    struct neb_buf text;
    neb__buf_init(&text, TEXT);
    neb_status status = NEB_OK;
    for (const char *p = list; status == NEB_OK && p && *p; p++) {
        const bool escape = *p == '\\' && p[1] && strchr("|n", p[1]);
        if (*p == '|')
            status = take_stop(g, &text);
        else
            status = neb__buf_append(&text, escape ? (*++p == 'n' ? "\n" : "|") : p, 1);
    }
    if (status == NEB_OK) status = take_stop(g, &text);
    neb__buf_free(&text);
    return status;
}

/* What the command line says, else the folder, else the tokenizer. */
static bool puts_start(const struct neb_generator *g)
{
    const char *says[] = {g->c.start, g->m->folder.starts};
    for (int i = 0; i < 2; i++)
        if (says[i] && strcmp(says[i], "auto")) return !strcmp(says[i], "yes");
    return neb__tok_adds_start(g->m->tok);
}

static neb_status find_ends(struct neb_generator *g)
{
    struct neb_end_tokens ends;
    NEB_TRY(neb__end_tokens_read(g->m->folder.path, g->vocab, &ends));
    neb__generator_end_at(g, neb__tok_special(g->m->tok, NEB_TOK_EOS));
    for (int i = 0; i < ends.n; i++) neb__generator_end_at(g, ends.id[i]);
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
    g->starts = puts_start(g);
    if (g->begin < 0 && !strcmp(g->c.start, "yes"))
        return neb__fail(NEB_ERR_CONFIG, "the tokenizer of %s has no start token; leave out --start=yes",
                         m->folder.path);
    NEB_TRY(make_room(g, 1));
    g->vocab = (int32_t)neb__decoding_vocab(g->decoding);
    g->absent = NEB_NEW_ARRAY(uint8_t, (size_t)g->vocab);
    g->ends = NEB_NEW_ARRAY(uint8_t, (size_t)g->vocab);
    if (!g->ends || !g->absent)
        return neb__fail(NEB_ERR_NOMEM, "out of memory for a vocabulary of %d", (int)g->vocab);
    for (int32_t i = 0; i < g->vocab; i++) g->absent[i] = !neb__tok_piece(m->tok, i);
    NEB_TRY(find_ends(g));
    g->choose = (struct neb_token_chooser){.temperature = g->c.temperature,
                                           .top_p = g->c.top_p,
                                           .repetition = g->c.repetition,
                                           .top_k = g->c.top_k,
                                           .vocab = g->vocab,
                                           .absent = g->absent,
                                           .rng.state = (uint64_t)g->c.seed};
    NEB_TRY(neb__token_chooser_init(&g->choose));
    return read_stops(g, g->c.stop);
}

neb_status neb__generator_open(const struct neb_ready *model, const struct neb_generate_config *c,
                               struct neb_generator **out)
{
    struct neb_generator *g = NEB_NEW(struct neb_generator);
    if (!g) return neb__fail(NEB_ERR_NOMEM, "out of memory for generating");
    g->m = model;
    g->c = *c;
    neb__buf_init(&g->prompt, TEXT);
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
    neb__buf_free(&g->prompt);
    neb__buf_free(&g->ids);
    neb__buf_free(&g->before);
    neb__buf_free(&g->text);
    while (g->stops) neb__free(g->stop[--g->stops]);
    neb__token_chooser_free(&g->choose);
    neb__free(g->absent);
    neb__free(g->ends);
    neb__free(g);
}

/* ---- the text ------------------------------------------------------------------------------------------------ */

/* The logarithm of the sum of all exponentials; not finite: the logits are not. */
static double log_sum(const struct neb_generator *g, const float *logits)
{
    double top = -INFINITY, sum = 0;
    for (int32_t i = 0; i < g->vocab; i++) top = fmax(top, (double)logits[i]);
    for (int32_t i = 0; i < g->vocab; i++) sum += exp((double)logits[i] - top);
    return top + log(sum);
}

/* Where the text stands: what was given, and what is to be given with the next token. */
struct telling {
    neb_generate_fn fn;
    void *arg;
    int32_t prompt, before; /* tokens of the prompt; of these, that are decoded with the new ones */
    size_t shown;
    bool stopped; /* a stop string has come */
};

/* How much of the text can no longer change: an unfinished character shows as U+FFFD at the end. */
static size_t settled(const char *text, size_t n)
{
    static const char unfinished[] = "\xEF\xBF\xBD";
    while (n >= 3 && !memcmp(text + n - 3, unfinished, 3)) n -= 3;
    return n;
}

/* Where the first stop string begins in text[0, n), or n. What was shown without one is not searched again. */
static size_t find_stop(const struct neb_generator *g, const char *text, size_t shown, size_t n)
{
    size_t best = n;
    for (int k = 0; k < g->stops; k++) {
        const size_t m = strlen(g->stop[k]);
        for (size_t i = shown < n ? shown : n; i + m <= n && i < best; i++)
            if (!memcmp(text + i, g->stop[k], m)) best = i;
    }
    return best;
}

/* Where the end of the text that may yet become a stop string begins, or n. */
static size_t held_back(const struct neb_generator *g, const char *text, size_t shown, size_t n)
{
    size_t best = n;
    for (int k = 0; k < g->stops; k++) {
        const size_t m = strlen(g->stop[k]), least = n >= m ? n - m + 1 : 0;
        for (size_t i = least > shown ? least : shown; i < best; i++)
            if (!memcmp(text + i, g->stop[k], n - i)) best = i;
    }
    return best;
}

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
    const size_t stop = find_stop(g, text, t->shown, n);
    t->stopped |= stop < n;
    size_t end = stop;
    if (!t->stopped && id >= 0) end = held_back(g, text, t->shown, settled(text, n));
    size_t from = t->shown < end ? t->shown : end;
    while (from < end && ((uint8_t)text[from] & 0xC0) == 0x80) from++;
    if (t->shown < end) t->shown = end;
    if (id < 0 && from == end) return NEB_OK;
    return t->fn(t->arg, text + from, end - from, id, logp);
}

/* ---- running ------------------------------------------------------------------------------------------------------- */

static neb_status remember(struct neb_generator *g, int32_t id)
{
    if (id >= 0 && id < g->vocab) g->choose.seen[id] = 1;
    return neb__buf_append(&g->ids, &id, sizeof id);
}

/* Makes the prompt the text; *kept: how many of its tokens the cache has. */
static neb_status take_prompt(struct neb_generator *g, const int32_t *prompt, size_t n, int32_t *kept)
{
    const size_t size = (size_t)g->cached * sizeof *prompt;
    *kept = g->cached && n > (size_t)g->cached && !memcmp(prompt, g->ids.data, size) ? g->cached : 0;
    neb__buf_clear(&g->ids);
    memset(g->choose.seen, 0, (size_t)g->vocab);
    if (!n || n >= (size_t)g->longest)
        return neb__fail(NEB_ERR_RANGE,
                         "the prompt has %zu tokens; there must be at least one, and fewer than %d", n,
                         (int)g->longest);
    for (size_t i = 0; i < n; i++) NEB_TRY(remember(g, prompt[i]));
    return NEB_OK;
}

/* *kept: tokens of the text that need not be computed; *most: how many are to be made. */
static neb_status begin(struct neb_generator *g, struct telling *t, const int32_t *prompt, size_t n,
                        int32_t *kept, int64_t *most)
{
    neb_status status = take_prompt(g, prompt, n, kept);
    if (status != NEB_OK) g->cached = 0;
    NEB_TRY(status);
    t->prompt = (int32_t)n;
    t->before = t->prompt < BEFORE ? t->prompt : BEFORE;
    const int32_t *ids = (const int32_t *)(const void *)g->ids.data + t->prompt - t->before;
    neb__buf_clear(&g->before);
    NEB_TRY(neb__tok_decode(g->m->tok, ids, (size_t)t->before, &g->before));
    int32_t room = g->longest - t->prompt;
    *most = g->c.max_new < room ? g->c.max_new : room;
    NEB_TRY(make_room(g, t->prompt + *most));
    if (!g->cached) *kept = 0;
    g->cached = *kept;
    return *kept ? NEB_OK : neb__decoding_start(g->decoding, 1, NULL);
}

/* One more token. *over: the text ended instead. */
static neb_status go_on(struct neb_generator *g, struct telling *t, bool *over)
{
    const float *logits;
    const int32_t *ids = (const int32_t *)(const void *)g->ids.data;
    const int32_t add = (int32_t)(g->ids.len / sizeof *ids) - g->cached, from = g->cached;
    g->cached = 0; /* nobody knows what the cache has after an error */
    NEB_TRY(neb__decoding_step(g->decoding, &add, ids + from, &logits));
    g->cached = from + add;
    const double all = log_sum(g, logits);
    if (!isfinite(all))
        return neb__fail(NEB_ERR_RANGE, "the model in %s gives numbers that are not finite",
                         g->m->folder.path);
    const int32_t id = neb__token_choose(&g->choose, logits);
    *over = g->ends[id];
    if (*over) return NEB_OK;
    NEB_TRY(remember(g, id));
    return tell(g, t, id, (double)logits[id] - all);
}

neb_status neb__generator_run_ids(struct neb_generator *g, const int32_t *prompt, size_t n,
                                  neb_generate_fn fn, void *arg)
{
    struct telling t = {.fn = fn, .arg = arg};
    int64_t most;
    int32_t kept;
    bool over = false;
    NEB_TRY(begin(g, &t, prompt, n, &kept, &most));
    for (int64_t made = 0; made < most && !over && !t.stopped; made++) NEB_TRY(go_on(g, &t, &over));
    return t.stopped ? NEB_OK : tell(g, &t, -1, 0);
}

neb_status neb__generator_run(struct neb_generator *g, const char *prompt, size_t n, neb_generate_fn fn,
                              void *arg)
{
    neb__buf_clear(&g->prompt);
    if (g->starts && g->begin >= 0) NEB_TRY(neb__buf_append(&g->prompt, &g->begin, sizeof g->begin));
    NEB_TRY(neb__tok_encode(g->m->tok, prompt, n, &g->prompt));
    if (!g->prompt.len && g->begin >= 0) /* it has to begin with something */
        NEB_TRY(neb__buf_append(&g->prompt, &g->begin, sizeof g->begin));
    return neb__generator_run_ids(g, (const int32_t *)(const void *)g->prompt.data,
                                  g->prompt.len / sizeof(int32_t), fn, arg);
}
