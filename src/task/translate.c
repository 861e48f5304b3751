/* translate.c: lines are tokenised, sorted by length, translated in batches of about equal lengths by beam
 * search, and put back in their order. The decoding keeps a memory plan for every shape it met, so it is made
 * anew now and then. */
#include "task/translate.h"
#include "base/log.h"
#include "base/mem.h"
#include "nn/decode.h"
#include "task/line_batches.h"

#include <string.h>

enum { SHAPES = 128, TURNS = 2 };

#define OPT(field, kind, fallback, unit, help) \
    NEB_OPT(struct neb_translate_config, field, kind, fallback, unit, help)

const struct neb_opt neb__translate_options[] = {
    OPT(beams, NEB_OPT_INT, "5", NULL, "sequences that are followed at once; 1: always the likeliest token"),
    OPT(length_penalty, NEB_OPT_REAL, "1", NULL,
        "scores are divided by length to this power; larger: longer"),
    OPT(batch, NEB_OPT_INT, "32", "sentences", "translated together"),
    OPT(max_len, NEB_OPT_INT, "256", "tokens", "longest translation; never more than the model's positions"),
    OPT(to, NEB_OPT_TEXT, "", NULL, "target language, for a model of several"),
    OPT(from, NEB_OPT_TEXT, "", NULL,
        "source language, for a model that wants to know it (M2M100, NLLB, mBART)"),
    OPT(scores, NEB_OPT_BOOL, "no", NULL,
        "beams 1: a line a token instead of text, its number and its log-probability; an empty line behind "
        "each "
        "sentence"),
    NEB_OPT_END,
};

/* A batch under way. */
struct turn {
    struct neb_decoding *decoding;
    struct neb_searching *search; /* NULL: none */
    int32_t *out, *lengths, width;
    float *logp; /* NULL: not asked for */
    int *numbers, n;
};

struct neb_translator {
    const struct neb_ready *m;
    struct neb_translate_config c; /* its text is not ours */
    struct neb_frame_tokens frame;
    bool bans_start;
    int32_t prompt_len, eos, max_len, rows, results;
    struct neb_line_batches *pack;
    int32_t *prompt, *prompt_starts, *most; /* of a batch */
    struct turn turn[TURNS];
    int turns;
};

/* ---- opening ------------------------------------------------------------------------------------------- */

static neb_status find_frame(struct neb_translator *t)
{
    const struct neb_frame *frame;
    NEB_TRY(neb__folder_frame(&t->m->folder, &frame));
    NEB_TRY(neb__frame_find(frame, t->m->tok, t->c.from, t->c.to, &t->frame));
    t->bans_start = neb__frame_bans_start(frame);
    t->prompt_len = 1 + (t->frame.first >= 0);
    return NEB_OK;
}

static neb_status check(struct neb_translator *t)
{
    const struct neb_ready *m = t->m;
    if (m->model->arch.kind != NEB_ENCODER_DECODER || !m->tok)
        return neb__fail(NEB_ERR_CONFIG, "the model in %s does not translate: it is not an encoder-decoder",
                         m->folder.path);
    if (t->c.beams < 1 || t->c.beams > 256 || t->c.batch < 1 || t->c.batch > 4096)
        return neb__fail(NEB_ERR_CONFIG, "beams must be from 1 to 256, batch from 1 to 4096");
    if (!(t->c.length_penalty >= 0 && t->c.length_penalty <= 10))
        return neb__fail(NEB_ERR_CONFIG, "length_penalty must be from 0 to 10");
    if (t->c.results < 0 || t->c.results > t->c.beams)
        return neb__fail(NEB_ERR_CONFIG, "at most as many translations of a line as beams");
    if (t->c.scores && t->c.beams != 1)
        return neb__fail(NEB_ERR_CONFIG, "scores of single tokens need --beams 1");
    t->eos = neb__tok_special(m->tok, NEB_TOK_EOS);
    if (t->eos < 0) return neb__fail(NEB_ERR_CONFIG, "the tokenizer in %s has no end token", m->folder.path);
    return find_frame(t);
}

static neb_status make_decoding(struct neb_translator *t, struct turn *u)
{
    neb__decoding_destroy(u->decoding);
    u->decoding = NULL;
    int32_t seqs = (int32_t)(t->c.batch * t->c.beams);
    struct neb_decode_limits l = {
        .seqs = seqs, .max_len = t->max_len, .prompt_rows = t->prompt_len * seqs, .source_rows = t->rows};
    return neb__decoding_create(t->m->device, t->m->model, &l, &u->decoding);
}

static neb_status make_turn(struct neb_translator *t, struct turn *u)
{
    size_t batch = (size_t)t->c.batch;
    size_t results = batch * (size_t)t->results;
    u->out = NEB_NEW_ARRAY(int32_t, results * (size_t)t->max_len);
    u->lengths = NEB_NEW_ARRAY(int32_t, results);
    u->numbers = NEB_NEW_ARRAY(int, batch);
    if (t->c.scores) u->logp = NEB_NEW_ARRAY(float, batch *(size_t)t->max_len);
    if (!u->out || !u->lengths || !u->numbers || (t->c.scores && !u->logp))
        return neb__fail(NEB_ERR_NOMEM, "out of memory for translating %zu sentences at once", batch);
    return make_decoding(t, u);
}

static neb_status make_room(struct neb_translator *t)
{
    int64_t positions = t->m->model->arch.max_positions;
    size_t batch = (size_t)t->c.batch;
    t->results = t->c.results > 1 ? (int32_t)t->c.results : 1;
    t->max_len = (int32_t)(t->c.max_len > 0 && t->c.max_len < positions ? t->c.max_len : positions);
    t->rows = (int32_t)(positions > 64 * t->c.batch ? positions : 64 * t->c.batch);
    t->prompt = NEB_NEW_ARRAY(int32_t, 2 * batch);
    t->prompt_starts = NEB_NEW_ARRAY(int32_t, batch + 1);
    t->most = NEB_NEW_ARRAY(int32_t, batch);
    if (!t->prompt || !t->prompt_starts || !t->most)
        return neb__fail(NEB_ERR_NOMEM, "out of memory for translating %zu sentences at once", batch);
    for (size_t i = 0; i <= batch; i++) t->prompt_starts[i] = t->prompt_len * (int32_t)i;
    for (size_t i = 0; i < batch; i++) {
        int32_t *p = t->prompt + t->prompt_starts[i];
        p[0] = t->frame.start;
        if (t->prompt_len > 1) p[1] = t->frame.first;
    }
    struct neb_line_batches_config c = {.tok = t->m->tok,
                                        .lead = t->frame.lead,
                                        .tail = t->frame.tail,
                                        .max_len = (int32_t)positions,
                                        .rows = t->rows,
                                        .seqs = (int32_t)t->c.batch};
    NEB_TRY(neb__line_batches_create(&c, &t->pack));
    struct neb_device_info info;
    neb_device_get_info(t->m->device, &info);
    t->turns = info.asynchronous ? TURNS : 1;
    for (int i = 0; i < t->turns; i++) NEB_TRY(make_turn(t, &t->turn[i]));
    return NEB_OK;
}

neb_status neb__translator_open(const struct neb_ready *model, const struct neb_translate_config *c,
                                struct neb_translator **out)
{
    struct neb_translator *t = NEB_NEW(struct neb_translator);
    if (!t) return neb__fail(NEB_ERR_NOMEM, "out of memory for translating");
    t->m = model;
    t->c = *c;
    neb_status status = check(t);
    if (status == NEB_OK) status = make_room(t);
    if (status != NEB_OK) {
        neb__translator_close(t);
        return status;
    }
    *out = t;
    return NEB_OK;
}

void neb__translator_close(struct neb_translator *t)
{
    if (!t) return;
    for (int i = 0; i < TURNS; i++) {
        struct turn *u = &t->turn[i];
        neb__search_end(u->search);
        neb__decoding_destroy(u->decoding);
        neb__free(u->out);
        neb__free(u->lengths);
        neb__free(u->numbers);
        neb__free(u->logp);
    }
    neb__line_batches_destroy(t->pack);
    neb__free(t->prompt);
    neb__free(t->prompt_starts);
    neb__free(t->most);
    neb__free(t);
}

/* ---- a batch ------------------------------------------------------------------------------------------- */

static neb_status list_tokens(const int32_t *ids, const float *logp, int32_t n, struct neb_buf *out)
{
    for (int32_t i = 0; i < n; i++) NEB_TRY(neb__buf_printf(out, "%d %.7g\n", (int)ids[i], (double)logp[i]));
    return NEB_OK;
}

/* logp: the tokens are listed with these. */
static neb_status text_of(const struct neb_translator *t, const int32_t *ids, const float *logp, int32_t n,
                          char **out)
{
    struct neb_buf text;
    neb__buf_init(&text, 16u << 20);
    neb_status status =
        logp ? list_tokens(ids, logp, n, &text) : neb__tok_decode(t->m->tok, ids, (size_t)n, &text);
    if (status == NEB_OK) status = neb__buf_append(&text, "", 1);
    if (status != NEB_OK) {
        neb__buf_free(&text);
        return status;
    }
    *out = (char *)text.data;
    return NEB_OK;
}

/* A sentence of n tokens becomes one of 2 n + 16 at most: a search that finds no end ends, too. */
static int32_t longest(const struct neb_translator *t, int32_t n)
{
    const int32_t most = 2 * n + 16, room = t->max_len - t->prompt_len;
    return most < room ? most : room;
}

/* The next batch, if there is one: u->search stays NULL otherwise. */
static neb_status begin_batch(struct neb_translator *t, struct turn *u)
{
    struct neb_model_input_side side;
    const int *numbers;
    u->n = neb__line_batches_next(t->pack, &side, &numbers);
    if (u->n <= 0) return NEB_OK;
    memcpy(u->numbers, numbers, (size_t)u->n * sizeof *numbers);
    if (neb__decoding_shapes(u->decoding) >= SHAPES) NEB_TRY(make_decoding(t, u));
    for (int i = 0; i < u->n; i++) t->most[i] = longest(t, side.starts[i + 1] - side.starts[i]);
    struct neb_search how = {.max_new = longest(t, side.max_len),
                             .most = t->most,
                             .eos = t->eos,
                             .beams = (int32_t)t->c.beams,
                             .results = t->results,
                             .bans = t->bans_start,
                             .never = t->frame.start,
                             .logp = u->logp,
                             .length_penalty = (float)t->c.length_penalty};
    u->width = how.max_new;
    return neb__search_begin(u->decoding, &how, &side, u->n, t->prompt, t->prompt_starts, u->out, u->lengths,
                             &u->search);
}

static neb_status step_batch(struct neb_translator *t, struct turn *u, char **out)
{
    bool done;
    NEB_TRY(neb__search_step(u->search, &done));
    if (!done) return NEB_OK;
    neb__search_end(u->search);
    u->search = NULL;
    for (int i = 0; i < u->n * t->results; i++) {
        char **to = &out[(int64_t)u->numbers[i / t->results] * t->results + i % t->results];
        if (u->lengths[i] < 0) continue;
        NEB_TRY(text_of(t, u->out + (int64_t)i * u->width, u->logp ? u->logp + (int64_t)i * u->width : NULL,
                        u->lengths[i], to));
    }
    return NEB_OK;
}

/* All batches. On an asynchronous device two take turns: the host weighs the candidates of one while the
 * other runs. */
static neb_status take_turns(struct neb_translator *t, char **out)
{
    for (bool busy = true; busy;) {
        busy = false;
        for (int i = 0; i < t->turns; i++) {
            struct turn *u = &t->turn[i];
            if (u->search) NEB_TRY(step_batch(t, u, out));
            if (!u->search) NEB_TRY(begin_batch(t, u));
            busy = busy || u->search;
        }
    }
    return NEB_OK;
}

static void stop(struct neb_translator *t)
{
    for (int i = 0; i < t->turns; i++) {
        neb__search_end(t->turn[i].search);
        t->turn[i].search = NULL;
    }
}

/* ---- lines --------------------------------------------------------------------------------------------- */

static bool is_empty(const char *line)
{
    return line[strspn(line, " \t\r")] == 0;
}

static neb_status translate_all(struct neb_translator *t, const char *const *lines, int n, char **out)
{
    int64_t cut = neb__line_batches_cut(t->pack);
    neb__line_batches_clear(t->pack);
    for (int i = 0; i < n; i++) {
        if (!is_empty(lines[i])) {
            NEB_TRY(neb__line_batches_add(t->pack, lines[i], NULL, i));
            continue;
        }
        if (!(out[(int64_t)i * t->results] = neb__strdup("")))
            return neb__fail(NEB_ERR_NOMEM, "out of memory for a line");
    }
    cut = neb__line_batches_cut(t->pack) - cut;
    if (cut)
        neb__warn("%" PRId64 " lines are longer than the model can read and were cut to %" PRId64 " tokens",
                  cut, t->m->model->arch.max_positions);
    neb__line_batches_order(t->pack, 0);
    return take_turns(t, out);
}

neb_status neb__translator_translate(struct neb_translator *t, const char *const *lines, int n, char **out)
{
    const int64_t all = (int64_t)n * t->results;
    char **texts = NEB_NEW_ARRAY(char *, (size_t)all + 1);
    neb_status status =
        texts ? translate_all(t, lines, n, texts) : neb__fail(NEB_ERR_NOMEM, "out of memory for %d lines", n);
    if (status != NEB_OK) stop(t);
    for (int64_t i = 0; texts && i < all; i++) {
        if (status == NEB_OK)
            out[i] = texts[i];
        else
            neb__free(texts[i]);
    }
    neb__free(texts);
    return status;
}
