/* verb_generate.c: `nebula-i generate FOLDER [PROMPT…]`: a decoder continues each prompt; the text appears as it is
 * made. Without prompts the lines of standard input are prompts; --file gives one prompt of many lines. */
#include "cli/verb.h"
#include "base/file.h"
#include "cli/decoder_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_PROMPT = 64 << 20 };

struct options {
    bool scores;
    char *file;
    struct neb_decoder_options model;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, file, NEB_OPT_TEXT, "", NULL,
            "a file whose whole text is the prompt; -: all of standard input"),
    NEB_OPT(struct options, scores, NEB_OPT_BOOL, "no", NULL,
            "a line a token instead of text: its number and its log-probability"),
    NEB_OPT_END,
};

static neb_status answer(struct neb_generator *g, const struct options *o, const char *prompt, size_t n)
{
    struct neb_decoder_output out = {.scores = o->scores};
    if (!o->scores && isatty(STDOUT_FILENO)) fwrite(prompt, 1, n, stdout); /* the text goes on from it */
    neb__decoder_output_begin(&out);
    neb_status status = neb__generator_run(g, prompt, n, neb__decoder_output_write, &out);
    if (status != NEB_OK && status != NEB_ERR_CANCELLED) return status;
    NEB_TRY(neb__decoder_output_end(&out, &o->model));
    return status;
}

static neb_status answer_lines(struct neb_generator *g, const struct options *o)
{
    char *line = NULL;
    size_t cap = 0;
    neb_status status = NEB_OK;
    for (ssize_t n; status == NEB_OK && (n = getline(&line, &cap, stdin)) >= 0;) {
        if (n && line[n - 1] == '\n') line[--n] = 0;
        status = answer(g, o, line, (size_t)n);
    }
    free(line); /* getline's own */
    return status == NEB_OK && neb__interrupt_asked() ? neb__quiet(NEB_ERR_CANCELLED, "interrupted") : status;
}

static neb_status read_all_of(FILE *in, struct neb_buf *out)
{
    char part[65536];
    for (size_t n; (n = fread(part, 1, sizeof part, in)) > 0;) NEB_TRY(neb__buf_append(out, part, n));
    return ferror(in) ? neb__fail(NEB_ERR_IO, "cannot read standard input") : NEB_OK;
}

/* The line end behind the last line is not part of the prompt. */
static neb_status answer_file(struct neb_generator *g, const struct options *o)
{
    struct neb_buf text;
    neb__buf_init(&text, MAX_PROMPT);
    neb_status status = strcmp(o->file, "-") ? neb__file_read(o->file, &text) : read_all_of(stdin, &text);
    if (status == NEB_OK && text.len && text.data[text.len - 1] == '\n') text.len--;
    if (status == NEB_OK) status = answer(g, o, text.len ? (const char *)text.data : "", text.len);
    neb__buf_free(&text);
    return status;
}

static neb_status run(struct neb_call *c)
{
    const struct options *o = c->options;
    struct neb_decoder_model m;
    if (o->file && c->n > 1)
        return neb__fail(NEB_ERR_INVALID, "--file and '%.40s' are both prompts; give one of them",
                         c->words[1]);
    NEB_TRY(neb__decoder_model_open(c->words[0], &o->model, &m));
    neb__interrupt_catch();
    neb_status status = NEB_OK;
    if (o->file)
        status = answer_file(m.generator, o);
    else if (c->n == 1)
        status = answer_lines(m.generator, o);
    for (int i = 1; status == NEB_OK && i < c->n; i++)
        status = answer(m.generator, o, c->words[i], strlen(c->words[i]));
    neb__decoder_model_close(&m);
    return status;
}

const struct neb_verb neb__verb_generate = {
    .name = "generate",
    .args = "[options] FOLDER [PROMPT…]",
    .help = "continue texts with a trained decoder",
    .about =
        "Continues the prompts, the lines of standard input, or the text of --file with the model in FOLDER.",
    .options = {{neb__generate_options, offsetof(struct options, model.how)},
                {neb__decoder_options, offsetof(struct options, model)},
                {table, 0}},
    .size = sizeof(struct options),
    .least = 1,
    .missing = "give the folder of a trained or imported decoder",
    .most = NEB_ANY_NUMBER,
    .run = run,
};
