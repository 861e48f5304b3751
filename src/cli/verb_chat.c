/* verb_chat.c: `nebula-i chat FOLDER [MESSAGE…]`: a conversation with a decoder that was made for it. Each line of standard
 * input is a message, and the answer appears as it is made; messages on the command line are one conversation, too.
 *
 * Ctrl-C ends an answer, and the conversation goes on; between two messages it ends the program, as does the end of
 * input. */
#include "cli/verb.h"
#include "base/log.h"
#include "cli/decoder_model.h"
#include "task/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct options {
    char *template, *system;
    bool ids;
    struct neb_decoder_options model;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, template, NEB_OPT_TEXT, "auto", NULL,
            "auto: the folder's own; chatml, llama2, llama3, mistral, gemma, plain, or a file with a Jinja "
            "template"),
    NEB_OPT(struct options, system, NEB_OPT_TEXT, "", NULL,
            "tells the model who it is, before the first message"),
    NEB_OPT(struct options, ids, NEB_OPT_BOOL, "no", NULL,
            "instead of an answer, print the numbers of the tokens that the model would read"),
    NEB_OPT_END,
};

struct conversation {
    const struct options *o;
    struct neb_decoder_model m;
    struct neb_chat *chat;
    struct neb_buf ids, answer;
};

static neb_status begin(struct conversation *v)
{
    neb__chat_cut(v->chat, 0);
    const char *system = v->o->system;
    return system ? neb__chat_add(v->chat, "system", system, strlen(system)) : NEB_OK;
}

static neb_status print_ids(struct conversation *v)
{
    const int32_t *ids = (const int32_t *)(const void *)v->ids.data;
    const size_t n = v->ids.len / sizeof *ids;
    for (size_t i = 0; i < n; i++) printf("%d%c", (int)ids[i], i + 1 < n ? ' ' : '\n');
    return fflush(stdout) || ferror(stdout) ? neb__fail(NEB_ERR_IO, "cannot write the numbers") : NEB_OK;
}

/* An answer that Ctrl-C cut short is part of the conversation as far as it came. */
static neb_status answer(struct conversation *v, const char *message, size_t n)
{
    struct neb_decoder_output out = {.keep = &v->answer};
    const int before = neb__chat_count(v->chat);
    neb__buf_clear(&v->ids);
    neb__buf_clear(&v->answer);
    NEB_TRY(neb__chat_add(v->chat, "user", message, n));
    neb_status status = neb__chat_tokens(v->chat, &v->ids);
    if (status == NEB_OK && v->o->ids) return print_ids(v);
    neb__decoder_output_begin(&out);
    if (status == NEB_OK)
        status = neb__generator_run_ids(v->m.generator, (const int32_t *)(const void *)v->ids.data,
                                        v->ids.len / sizeof(int32_t), neb__decoder_output_write, &out);
    if (status != NEB_OK && status != NEB_ERR_CANCELLED) {
        neb__chat_cut(v->chat, before);
        return status;
    }
    NEB_TRY(neb__decoder_output_end(&out, &v->o->model));
    NEB_TRY(neb__chat_add(v->chat, "assistant", v->answer.len ? (const char *)v->answer.data : "",
                          v->answer.len));
    return status;
}

/* A message that the model has no room for does not end a conversation at a terminal. */
static neb_status answer_line(struct conversation *v, bool terminal, const char *line, size_t n)
{
    if (!strcmp(line, "/new")) return begin(v);
    neb_status status = answer(v, line, n);
    if (!terminal) return status;
    if (status == NEB_ERR_CANCELLED) {
        neb__interrupt_again();
        return NEB_OK;
    }
    if (status != NEB_ERR_RANGE) return status;
    neb__warn("%s; /new begins another conversation", neb_last_error());
    return NEB_OK;
}

static neb_status answer_lines(struct conversation *v)
{
    const bool terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    char *line = NULL;
    size_t cap = 0;
    neb_status status = NEB_OK;
    if (terminal) neb__info("a line is a message; /new begins another conversation, Ctrl-D ends");
    while (status == NEB_OK) {
        if (terminal) fputs("> ", stdout), fflush(stdout);
        ssize_t n = getline(&line, &cap, stdin);
        if (n < 0) break;
        if (n && line[n - 1] == '\n') line[--n] = 0;
        if (n) status = answer_line(v, terminal, line, (size_t)n);
    }
    if (terminal) putchar('\n');
    free(line); /* getline's own */
    return status == NEB_OK && neb__interrupt_asked() ? neb__quiet(NEB_ERR_CANCELLED, "interrupted") : status;
}

static neb_status converse(struct conversation *v, struct neb_call *c)
{
    const int32_t end = neb__chat_end_token(v->chat);
    const char *text = neb__chat_end_text(v->chat);
    neb__generator_end_at(v->m.generator, end);
    if (text) NEB_TRY(neb__generator_stop_at(v->m.generator, text, strlen(text)));
    NEB_TRY(begin(v));
    neb__interrupt_catch();
    if (c->n == 1) return answer_lines(v);
    neb_status status = NEB_OK;
    for (int i = 1; status == NEB_OK && i < c->n; i++) status = answer(v, c->words[i], strlen(c->words[i]));
    return status;
}

static neb_status run(struct neb_call *c)
{
    struct conversation v = {.o = c->options};
    NEB_TRY(neb__decoder_model_open(c->words[0], &v.o->model, &v.m));
    neb__buf_init(&v.ids, 64 << 20);
    neb__buf_init(&v.answer, 64 << 20);
    neb_status status = neb__chat_open(c->words[0], v.o->template, v.m.model.tok, &v.chat);
    if (status == NEB_OK) {
        status = converse(&v, c);
        neb__chat_close(v.chat);
    }
    neb__buf_free(&v.ids);
    neb__buf_free(&v.answer);
    neb__decoder_model_close(&v.m);
    return status;
}

const struct neb_verb neb__verb_chat = {
    .name = "chat",
    .args = "[options] FOLDER [MESSAGE…]",
    .help = "talk with a decoder that was made for conversations",
    .about = "Answers the messages, or the lines of standard input, with the model in FOLDER; all of them "
             "are one conversation.",
    .options = {{neb__generate_options, offsetof(struct options, model.how)},
                {neb__decoder_options, offsetof(struct options, model)},
                {table, 0}},
    .size = sizeof(struct options),
    .least = 1,
    .missing = "give the folder of a trained or imported decoder",
    .most = NEB_ANY_NUMBER,
    .run = run,
};
