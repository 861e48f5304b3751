/* prompted.c: answers of a decoder behind a prompt.
 *
 * Several lines are answered at once, by the search that translates. The answer is one line: what a model says behind it is the next
 * example of a prompt, or chat. So it ends at an end token, or at a token that is nothing but white space with a line end; a line end
 * inside a token cuts the text.
 *
 * A batch's sequences share their room: the longest prompt and the longest answer must fit together. A line that would cut the
 * others' answers, or its own, starts the next batch, so an answer does not depend on its neighbours. */
#include "task/prompted.h"
#include "base/log.h"
#include "base/mem.h"
#include "nn/decode.h"
#include "task/chat.h"
#include "task/end_tokens.h"

#include <string.h>

enum { BATCH = 8, SHAPES = 128, ROOM = 128, TEXT = 16 << 20 };
static const char mark[] = "{source}";

struct neb_prompted {
    const struct neb_ready *m;
    struct neb_prompted_config c;
    uint8_t *ends; /* (vocab) */
    char *stop;    /* the text with which the template ends an answer, or NULL */
    struct neb_decoding *decoding;
    int32_t room, longest;  /* of a sequence: of the decoding, of the model */
    struct neb_buf prompts; /* int32_t: of a batch */
    int32_t starts[BATCH + 1], most[BATCH], line[BATCH], n;
    int32_t prompt, width;  /* the longest prompt and answer of the batch */
    int32_t *out, *lengths; /* (n, results, max_new); (n, results) */
};

/* ---- what ends an answer --------------------------------------------------------------------------------------- */

static void end_at(struct neb_prompted *p, int32_t id)
{
    if (id >= 0 && id < neb__tok_vocab(p->m->tok)) p->ends[id] = 1;
}

/* Most decoders have no template, and one that is not known here says nothing. */
static neb_status ask_template(struct neb_prompted *p)
{
    struct neb_chat *chat;
    const bool before = neb__log_hush(true);
    neb_status status = neb__chat_open(p->m->folder.path, "auto", p->m->tok, &chat);
    neb__log_hush(before);
    if (status == NEB_ERR_NOMEM) return status;
    if (status != NEB_OK) return NEB_OK;
    end_at(p, neb__chat_end_token(chat));
    const char *text = neb__chat_end_text(chat);
    if (text && !(p->stop = neb__strdup(text)))
        status = neb__fail(NEB_ERR_NOMEM, "out of memory for a teacher");
    neb__chat_close(chat);
    return status;
}

/* White space with a line end in it. */
static neb_status find_line_ends(struct neb_prompted *p)
{
    struct neb_buf text;
    neb_status status = NEB_OK;
    neb__buf_init(&text, 1 << 20);
    for (int32_t id = 0; status == NEB_OK && id < neb__tok_vocab(p->m->tok); id++) {
        if (!neb__tok_piece(p->m->tok, id)) continue;
        neb__buf_clear(&text);
        status = neb__tok_decode(p->m->tok, &id, 1, &text);
        if (status == NEB_OK) status = neb__buf_append(&text, "", 1);
        const char *t = (const char *)text.data;
        if (status == NEB_OK && strchr(t, '\n') && !t[strspn(t, " \t\r\n")]) p->ends[id] = 1;
    }
    neb__buf_free(&text);
    return status;
}

static neb_status find_ends(struct neb_prompted *p)
{
    struct neb_end_tokens list;
    NEB_TRY(neb__end_tokens_read(p->m->folder.path, neb__tok_vocab(p->m->tok), &list));
    for (int i = 0; i < list.n; i++) end_at(p, list.id[i]);
    end_at(p, neb__tok_special(p->m->tok, NEB_TOK_EOS));
    NEB_TRY(ask_template(p));
    return find_line_ends(p);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static neb_status prepare(struct neb_prompted *p)
{
    const struct neb_arch *a = &p->m->model->arch;
    if (a->kind != NEB_DECODER || !p->m->tok || !strstr(p->c.prompt, mark))
        return neb__fail(
            NEB_ERR_CONFIG,
            "the model in %s cannot answer behind a prompt: it is not a decoder with a tokenizer",
            p->m->folder.path);
    const int64_t most = a->max_positions - p->m->model->peft.prompt_length;
    p->longest = (int32_t)(most < 1 << 20 ? most : 1 << 20);
    p->ends = NEB_NEW_ARRAY(uint8_t, (size_t)neb__tok_vocab(p->m->tok));
    p->out = NEB_NEW_ARRAY(int32_t, (size_t)BATCH * (size_t)p->c.results * (size_t)p->c.max_new);
    p->lengths = NEB_NEW_ARRAY(int32_t, (size_t)BATCH * (size_t)p->c.results);
    if (!p->ends || !p->out || !p->lengths) return neb__fail(NEB_ERR_NOMEM, "out of memory for a teacher");
    return find_ends(p);
}

neb_status neb__prompted_open(const struct neb_ready *model, const struct neb_prompted_config *c,
                              struct neb_prompted **out)
{
    struct neb_prompted *p = NEB_NEW(struct neb_prompted);
    if (!p) return neb__fail(NEB_ERR_NOMEM, "out of memory for a teacher");
    p->m = model;
    p->c = *c;
    if (p->c.results < 1) p->c.results = 1;
    neb__buf_init(&p->prompts, TEXT);
    neb_status status = prepare(p);
    if (status != NEB_OK) {
        neb__prompted_close(p);
        return status;
    }
    *out = p;
    return NEB_OK;
}

void neb__prompted_close(struct neb_prompted *p)
{
    if (!p) return;
    neb__decoding_destroy(p->decoding);
    neb__buf_free(&p->prompts);
    neb__free(p->ends);
    neb__free(p->stop);
    neb__free(p->out);
    neb__free(p->lengths);
    neb__free(p);
}

/* ---- a batch ----------------------------------------------------------------------------------------------------- */

neb_status neb__prompted_tokens(const struct neb_tok *tok, const char *prompt, const char *line, size_t n,
                                struct neb_buf *out)
{
    const char *at = strstr(prompt, mark), *behind = at + sizeof mark - 1;
    int32_t start = neb__tok_special(tok, NEB_TOK_BOS);
    struct neb_buf text;
    if (start < 0) start = neb__tok_special(tok, NEB_TOK_EOS);
    NEB_TRY(neb__buf_append(out, &start, sizeof start));
    neb__buf_init(&text, TEXT);
    neb_status status = neb__buf_append(&text, prompt, (size_t)(at - prompt));
    if (status == NEB_OK) status = neb__buf_append(&text, line, n);
    if (status == NEB_OK) status = neb__buf_append(&text, behind, strlen(behind));
    if (status == NEB_OK) status = neb__tok_encode(tok, (const char *)text.data, text.len, out);
    neb__buf_free(&text);
    return status;
}

static void empty_batch(struct neb_prompted *p)
{
    p->n = p->prompt = p->width = 0;
    neb__buf_clear(&p->prompts);
}

/* The line is part of the batch, unless the model has no room for its answer. An answer is as long as a translation may be.
 * *full: the line does not fit beside the others, and the batch is as before. */
static neb_status add(struct neb_prompted *p, const char *line, int number, bool *full)
{
    const size_t before = p->prompts.len, n = strlen(line);
    NEB_TRY(neb__prompted_tokens(p->m->tok, p->c.prompt, line, n, &p->prompts));
    const int64_t tokens = (int64_t)((p->prompts.len - before) / sizeof(int32_t)), room = p->longest - tokens;
    int64_t most = 2 * tokens + 16;
    if (most > p->c.max_new) most = p->c.max_new;
    if (most > room) most = room;
    const int64_t prompt = tokens > p->prompt ? tokens : p->prompt, width = most > p->width ? most : p->width;
    *full = most > 0 && p->n > 0 && prompt + width > p->longest;
    if (most < 1 || *full) {
        p->prompts.len = before;
        return NEB_OK;
    }
    p->prompt = (int32_t)prompt;
    p->width = (int32_t)width;
    p->most[p->n] = (int32_t)most;
    p->line[p->n++] = number;
    p->starts[p->n] = (int32_t)(p->prompts.len / sizeof(int32_t));
    return NEB_OK;
}

static neb_status make_decoding(struct neb_prompted *p, int32_t need)
{
    if (p->decoding && need <= p->room && neb__decoding_shapes(p->decoding) < SHAPES) return NEB_OK;
    neb__decoding_destroy(p->decoding);
    p->decoding = NULL;
    if (need > p->room) p->room = (need + ROOM - 1) / ROOM * ROOM;
    if (p->room > p->longest) p->room = p->longest;
    const int32_t seqs = BATCH * (p->c.beams > 1 ? p->c.beams : 1);
    const struct neb_decode_limits l = {.seqs = seqs, .max_len = p->room, .prompt_rows = seqs * p->room};
    return neb__decoding_create(p->m->device, p->m->model, &l, &p->decoding);
}

/* The first line of the tokens' text, without the white space around it. */
static neb_status text_of(const struct neb_prompted *p, const int32_t *ids, int32_t n, char **out)
{
    struct neb_buf text;
    neb__buf_init(&text, TEXT);
    neb_status status = neb__tok_decode(p->m->tok, ids, (size_t)n, &text);
    if (status == NEB_OK) status = neb__buf_append(&text, "", 1);
    if (status == NEB_OK) {
        char *from = (char *)text.data + strspn((char *)text.data, " \t\r\n"), *stop;
        if (p->stop && (stop = strstr(from, p->stop))) *stop = 0;
        size_t k = strcspn(from, "\n");
        while (k && strchr(" \t\r", from[k - 1])) k--;
        from[k] = 0;
        *out = neb__strdup(from);
        if (!*out) status = neb__fail(NEB_ERR_NOMEM, "out of memory for an answer");
    }
    neb__buf_free(&text);
    return status;
}

static neb_status run(struct neb_prompted *p, char **out)
{
    const int32_t *prompts = (const int32_t *)(const void *)p->prompts.data;
    const int32_t width = p->width;
    if (!p->n) return NEB_OK;
    NEB_TRY(make_decoding(p, p->prompt + width));
    const struct neb_search how = {.max_new = width,
                                   .most = p->most,
                                   .eos = neb__tok_special(p->m->tok, NEB_TOK_EOS),
                                   .ends = p->ends,
                                   .beams = p->c.beams,
                                   .results = p->c.results,
                                   .length_penalty = 1};
    NEB_TRY(neb__decoding_generate(p->decoding, &how, NULL, p->n, prompts, p->starts, p->out, p->lengths));
    for (int i = 0; i < p->n * p->c.results; i++)
        if (p->lengths[i] >= 0)
            NEB_TRY(text_of(p, p->out + (int64_t)i * width, p->lengths[i],
                            &out[(int64_t)p->line[i / p->c.results] * p->c.results + i % p->c.results]));
    return NEB_OK;
}

static neb_status answer_all(struct neb_prompted *p, const char *const *lines, int n, char **out)
{
    for (int i = 0; i < n;) {
        bool full = false;
        empty_batch(p);
        while (i < n && p->n < BATCH && !full) {
            if (lines[i][strspn(lines[i], " \t\r")]) NEB_TRY(add(p, lines[i], i, &full));
            i += !full;
        }
        NEB_TRY(run(p, out));
    }
    for (int i = 0; i < n; i++)
        if (!out[(int64_t)i * p->c.results] && !(out[(int64_t)i * p->c.results] = neb__strdup("")))
            return neb__fail(NEB_ERR_NOMEM, "out of memory for an answer");
    return NEB_OK;
}

neb_status neb__prompted_answer(struct neb_prompted *p, const char *const *lines, int n, char **out)
{
    const int64_t all = (int64_t)n * p->c.results;
    char **texts = NEB_NEW_ARRAY(char *, (size_t)all + 1);
    neb_status status =
        texts ? answer_all(p, lines, n, texts) : neb__fail(NEB_ERR_NOMEM, "out of memory for %d lines", n);
    for (int64_t i = 0; texts && i < all; i++) {
        if (status == NEB_OK)
            out[i] = texts[i];
        else
            neb__free(texts[i]);
    }
    neb__free(texts);
    return status;
}
