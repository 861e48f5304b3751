/* verb_translate.c: `nebula-i translate FOLDER [FILE…]`: a translation a line, in the order of the lines.
 *
 * Lines are taken a window at a time: a window sorted by length makes dense batches, and a pipe gets its first answers
 * after one window. */
#include "cli/verb.h"
#include "base/clock.h"
#include "base/mem.h"
#include "task/translate.h"
#include "text/line_reader.h"

#include <stdio.h>
#include <string.h>

struct options {
    int64_t window, threads;
    char *device, *dtype;
    bool stats;
    struct neb_translate_config how;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, window, NEB_OPT_INT, "2048", "lines", "read before the first is written",
            NEB_OPT_RANGE(1, 1 << 20)),
    NEB_OPT(struct options, device, NEB_OPT_TEXT, "cpu", NULL,
            "cpu, auto (the GPU where there is one) or a plug-in such as cuda"),
    NEB_OPT(struct options, dtype, NEB_OPT_TEXT, "f32", NULL, "compute type; bf16 on a GPU",
            NEB_OPT_CHOICE("f32", "bf16")),
    NEB_OPT(struct options, threads, NEB_OPT_INT, "0", NULL, "CPU threads; 0: all cores",
            NEB_OPT_RANGE(0, 1024)),
    NEB_OPT(struct options, stats, NEB_OPT_BOOL, "no", NULL, "say how long each file took"),
    NEB_OPT_END,
};

static neb_status write_window(struct neb_translator *t, char **lines, int n)
{
    char **out = NEB_NEW_ARRAY(char *, (size_t)n);
    if (!out) return neb__fail(NEB_ERR_NOMEM, "out of memory for %d lines", n);
    neb_status status = neb__translator_translate(t, (const char *const *)lines, n, out);
    for (int i = 0; status == NEB_OK && i < n; i++) {
        puts(out[i]);
        neb__free(out[i]);
    }
    neb__free(out);
    if (status == NEB_OK && (fflush(stdout) || ferror(stdout)))
        return neb__fail(NEB_ERR_IO, "cannot write the translations");
    return status;
}

static neb_status read_window(struct neb_line_reader *file, char **lines, int window, int *n)
{
    const char *text;
    size_t size;
    neb_status status = NEB_OK;
    for (*n = 0; *n < window && (status = neb__line_reader_next(file, &text, &size)) == NEB_OK; (*n)++) {
        lines[*n] = neb__malloc(size + 1);
        if (!lines[*n]) return neb__fail(NEB_ERR_NOMEM, "out of memory for a line");
        memcpy(lines[*n], text, size);
        lines[*n][size] = 0;
    }
    return status;
}

static neb_status translate_file(struct neb_translator *t, const char *path, const struct options *o)
{
    const int window = (int)o->window;
    const int64_t began = neb__now_ns();
    int64_t count = 0;
    struct neb_line_reader *file;
    char **lines = NEB_NEW_ARRAY(char *, (size_t)window);
    if (!lines) return neb__fail(NEB_ERR_NOMEM, "out of memory for %d lines", window);
    neb_status status = neb__line_reader_open(path, &file);
    bool opened = status == NEB_OK;
    while (status == NEB_OK) {
        int n;
        status = read_window(file, lines, window, &n);
        if (n && (status == NEB_OK || status == NEB_ERR_AGAIN)) {
            neb_status written = write_window(t, lines, n);
            count += n;
            if (written != NEB_OK) status = written;
        }
        for (int i = 0; i < n; i++) neb__free(lines[i]);
    }
    if (opened) neb__line_reader_close(file);
    neb__free(lines);
    const double took = neb__seconds_since(began);
    if (o->stats)
        fprintf(stderr, "%s: %" PRId64 " lines in %.3f s, %.1f lines/s\n", path, count, took,
                (double)count / took);
    return status == NEB_ERR_AGAIN ? NEB_OK : status;
}

static neb_status run(struct neb_call *c)
{
    const struct options *o = c->options;
    const bool bf16 = !strcmp(o->dtype, "bf16");
    struct neb_device_config config = {.compute = bf16 ? NEB_BF16 : NEB_F32, .threads = (int)o->threads};
    neb_device *device;
    struct neb_ready model;
    struct neb_translator *t;
    NEB_TRY(neb_device_open(o->device, &config, &device));
    neb_status status = neb__ready_open(c->words[0], NULL, device, &model);
    if (status == NEB_OK) {
        status = neb__translator_open(&model, &o->how, &t);
        if (status == NEB_OK) {
            if (c->n == 1) status = translate_file(t, "/dev/stdin", o);
            for (int i = 1; status == NEB_OK && i < c->n; i++) status = translate_file(t, c->words[i], o);
            neb__translator_close(t);
        }
        neb__ready_close(&model);
    }
    neb_device_close(device);
    return status;
}

const struct neb_verb neb__verb_translate = {
    .name = "translate",
    .args = "[options] FOLDER [FILE…]",
    .help = "translate with a trained model",
    .about = "Translates the files, or standard input, with the model that training left in FOLDER.",
    .options = {{neb__translate_options, offsetof(struct options, how)}, {table, 0}},
    .size = sizeof(struct options),
    .least = 1,
    .missing = "give the folder of a trained model",
    .most = NEB_ANY_NUMBER,
    .run = run,
};
