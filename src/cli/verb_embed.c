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
    NEB_OPT(struct options, device, NEB_OPT_TEXT, "cpu", NULL, "cpu, or a plug-in such as cuda"),
    NEB_OPT(struct options, threads, NEB_OPT_INT, "0", NULL, "CPU threads; 0: all cores"),
    NEB_OPT(struct options, layer, NEB_OPT_INT, "0", NULL, "hidden states of this layer; 0: the last"),
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
    neb_status s = NEB_OK;
    for (; n < WINDOW && (s = neb__line_reader_next(l, &text, &size)) == NEB_OK; n++) {
        lines[n] = neb__malloc(size + 1);
        if (!lines[n]) {
            s = neb__fail(NEB_ERR_NOMEM, "out of memory for a line");
            break;
        }
        memcpy(lines[n], text, size);
        lines[n][size] = 0;
    }
    *end = s == NEB_ERR_AGAIN;
    if (*end) s = NEB_OK;
    if (s == NEB_OK && n) s = neb__embedder_embed(e, (const char *const *)lines, n, vectors);
    if (s == NEB_OK) print(vectors, n, neb__embedder_width(e));
    for (int i = 0; i < n; i++) neb__free(lines[i]);
    return s;
}

static neb_status embed_file(struct neb_embedder *e, const char *path)
{
    struct neb_line_reader *l;
    bool end = false;
    float *vectors = neb__malloc(WINDOW * (size_t)neb__embedder_width(e) * sizeof *vectors);
    if (!vectors) return neb__fail(NEB_ERR_NOMEM, "out of memory for sentence vectors");
    neb_status s = neb__line_reader_open(path, &l);
    if (s == NEB_OK) {
        while (s == NEB_OK && !end) s = embed_window(e, l, vectors, &end);
        neb__line_reader_close(l);
    }
    neb__free(vectors);
    return s;
}

static neb_status embed(const struct options *o, const char *folder, const char *file)
{
    struct neb_device_config config = {.threads = (int)o->threads};
    neb_device *device;
    struct neb_ready m;
    struct neb_embedder *e;
    NEB_TRY(neb_device_open(o->device, &config, &device));
    neb_status s = neb__ready_open_layers(folder, "none", o->layer, device, &m);
    if (s == NEB_OK) {
        s = neb__embedder_open(&m, &e);
        if (s == NEB_OK) {
            s = embed_file(e, file);
            neb__embedder_close(e);
        }
        neb__ready_close(&m);
    }
    neb_device_close(device);
    return s;
}

static int run(int argc, char **argv)
{
    struct options o = {0};
    int n = 0;
    bool help = argc && !strcmp(argv[0], "--help");
    if (neb__opts_init(table, &o) != NEB_OK) return 1;
    neb_status s = help ? NEB_OK : neb__opts_args(table, &o, argc, argv, &n);
    bool wrong = s == NEB_OK && (n < 1 || n > 2);
    if (wrong) {
        fprintf(help ? stdout : stderr,
                "usage: nebula-i embed [options] FOLDER [FILE]\n"
                "The mean of the last hidden states of each line, scaled to length 1.\n\n");
        neb__opts_help(table, help ? stdout : stderr);
    } else if (s == NEB_OK) {
        s = embed(&o, argv[0], n > 1 ? argv[1] : "/dev/stdin");
    }
    neb__opts_free(table, &o);
    return help ? 0 : wrong ? 2 : s == NEB_OK ? 0 : s == NEB_ERR_CONFIG ? 2 : 1;
}

const struct neb_verb neb__verb_embed = {"embed", "FOLDER [FILE]", "lines as sentence vectors", run};
