/* verb_generate.c: `nebula-i generate FOLDER [PROMPT…]`: a decoder continues each prompt; the text appears as it is
 * made. Without prompts the lines of standard input are prompts. */
#include "cli/verb.h"
#include "base/clock.h"
#include "task/generate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct options {
    char *device, *dtype;
    int64_t threads;
    bool scores, stats;
    struct neb_generate_config how;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, device, NEB_OPT_TEXT, "cpu", NULL,
            "cpu, auto (the GPU where there is one) or a plug-in such as cuda"),
    NEB_OPT(struct options, dtype, NEB_OPT_TEXT, "f32", NULL, "compute type; bf16 on a GPU",
            NEB_OPT_CHOICE("f32", "bf16")),
    NEB_OPT(struct options, threads, NEB_OPT_INT, "0", NULL, "CPU threads; 0: all cores",
            NEB_OPT_RANGE(0, 1024)),
    NEB_OPT(struct options, scores, NEB_OPT_BOOL, "no", NULL,
            "a line a token instead of text: its number and its log-probability"),
    NEB_OPT(struct options, stats, NEB_OPT_BOOL, "no", NULL, "say how many tokens a second it made"),
    NEB_OPT_END,
};

struct output {
    const struct options *o;
    int64_t tokens;
};

static neb_status write_token(void *arg, const char *text, size_t n, int32_t id, double logp)
{
    struct output *out = arg;
    out->tokens += id >= 0;
    if (out->o->scores && id >= 0)
        printf("%d %.7g\n", (int)id, logp);
    else if (!out->o->scores)
        fwrite(text, 1, n, stdout);
    if (fflush(stdout) || ferror(stdout)) return neb__fail(NEB_ERR_IO, "cannot write the text");
    return NEB_OK;
}

static neb_status answer(struct neb_generator *g, const struct options *o, const char *prompt, size_t n)
{
    struct output out = {.o = o};
    const int64_t began = neb__now_ns();
    if (!o->scores && isatty(STDOUT_FILENO)) fwrite(prompt, 1, n, stdout); /* the text goes on from it */
    NEB_TRY(neb__generator_run(g, prompt, n, write_token, &out));
    putchar('\n');
    const double took = neb__seconds_since(began);
    if (o->stats)
        fprintf(stderr, "%" PRId64 " tokens in %.3f s, %.1f tokens/s\n", out.tokens, took,
                (double)out.tokens / took);
    return NEB_OK;
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
    return status;
}

static neb_status run(struct neb_call *c)
{
    const struct options *o = c->options;
    struct neb_device_config config = {.compute = strcmp(o->dtype, "bf16") ? NEB_F32 : NEB_BF16,
                                       .threads = (int)o->threads};
    neb_device *device;
    struct neb_ready model;
    struct neb_generator *g;
    NEB_TRY(neb_device_open(o->device, &config, &device));
    neb_status status = neb__ready_open(c->words[0], NULL, device, &model);
    if (status == NEB_OK) {
        status = neb__generator_open(&model, &o->how, &g);
        if (status == NEB_OK) {
            if (c->n == 1) status = answer_lines(g, o);
            for (int i = 1; status == NEB_OK && i < c->n; i++)
                status = answer(g, o, c->words[i], strlen(c->words[i]));
            neb__generator_close(g);
        }
        neb__ready_close(&model);
    }
    neb_device_close(device);
    return status;
}

const struct neb_verb neb__verb_generate = {
    .name = "generate",
    .args = "[options] FOLDER [PROMPT…]",
    .help = "continue texts with a trained decoder",
    .about = "Continues the prompts, or the lines of standard input, with the model in FOLDER.",
    .options = {{neb__generate_options, offsetof(struct options, how)}, {table, 0}},
    .size = sizeof(struct options),
    .least = 1,
    .missing = "give the folder of a trained or imported decoder",
    .most = NEB_ANY_NUMBER,
    .run = run,
};
