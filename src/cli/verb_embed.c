/* verb_embed.c: `nebula-i embed FOLDER [FILE]`: a line's sentence vector a line, numbers with blanks between them. */
#include "cli/verb.h"
#include "base/mem.h"
#include "task/retrieve.h"
#include "text/line_reader.h"

#include <stdio.h>
#include <string.h>

enum { WINDOW = 1024 };

struct options {
    char *device;
    int64_t threads, layer;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, device, NEB_OPT_TEXT, "cpu", NULL,
            "cpu, auto (the GPU where there is one) or a plug-in such as cuda"),
    NEB_OPT(struct options, threads, NEB_OPT_INT, "0", NULL, "CPU threads; 0: all cores",
            NEB_OPT_RANGE(0, 1024)),
    NEB_OPT(struct options, layer, NEB_OPT_INT, "0", NULL, "hidden states of this layer; 0: the last",
            NEB_OPT_RANGE(0, 4096)),
    NEB_OPT_END,
};

static void print(const float *v, int n, int64_t width)
{
    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < width; k++)
            printf("%.7g%c", (double)v[i * width + k], k + 1 < width ? ' ' : '\n');
}

static neb_status embed_window(struct neb_embedder *e, struct neb_line_reader *l, float *vectors, bool *end)
{
    char *lines[WINDOW];
    const char *text;
    size_t size;
    int n = 0;
    neb_status status = NEB_OK;
    for (; n < WINDOW && (status = neb__line_reader_next(l, &text, &size)) == NEB_OK; n++) {
        lines[n] = neb__malloc(size + 1);
        if (!lines[n]) {
            status = neb__fail(NEB_ERR_NOMEM, "out of memory for a line");
            break;
        }
        memcpy(lines[n], text, size);
        lines[n][size] = 0;
    }
    *end = status == NEB_ERR_AGAIN;
    if (*end) status = NEB_OK;
    if (status == NEB_OK && n) status = neb__embedder_embed(e, (const char *const *)lines, n, vectors);
    if (status == NEB_OK) print(vectors, n, neb__embedder_width(e));
    for (int i = 0; i < n; i++) neb__free(lines[i]);
    return status;
}

static neb_status embed_file(struct neb_embedder *e, const char *path)
{
    struct neb_line_reader *l;
    bool end = false;
    float *vectors = neb__malloc(WINDOW * (size_t)neb__embedder_width(e) * sizeof *vectors);
    if (!vectors) return neb__fail(NEB_ERR_NOMEM, "out of memory for sentence vectors");
    neb_status status = neb__line_reader_open(path, &l);
    if (status == NEB_OK) {
        while (status == NEB_OK && !end) status = embed_window(e, l, vectors, &end);
        neb__line_reader_close(l);
    }
    neb__free(vectors);
    return status;
}

static neb_status embed(const struct options *o, const char *folder, const char *file)
{
    struct neb_device_config config = {.threads = (int)o->threads};
    neb_device *device;
    struct neb_ready m;
    struct neb_embedder *e;
    NEB_TRY(neb_device_open(o->device, &config, &device));
    neb_status status = neb__ready_open_layers(folder, "none", o->layer, device, &m);
    if (status == NEB_OK) {
        status = neb__embedder_open(&m, &e);
        if (status == NEB_OK) {
            status = embed_file(e, file);
            neb__embedder_close(e);
        }
        neb__ready_close(&m);
    }
    neb_device_close(device);
    return status;
}

static neb_status run(struct neb_call *c)
{
    return embed(c->options, c->words[0], c->n > 1 ? c->words[1] : "/dev/stdin");
}

const struct neb_verb neb__verb_embed = {
    .name = "embed",
    .args = "[options] FOLDER [FILE]",
    .help = "lines as sentence vectors",
    .about = "The mean of the last hidden states of each line, or what the folder says (LaBSE: its dense "
             "layer), scaled to length 1.",
    .options = {{table, 0}},
    .size = sizeof(struct options),
    .least = 1,
    .missing = "give the folder of a trained model",
    .most = 2,
    .run = run,
};
