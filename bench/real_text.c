/* real_text.c: see real_text.h. Novels, some 33,000 paragraphs in each language. */
#include "real_text.h"
#include "base/buf.h"
#include "base/file.h"

#include <stdio.h>

enum { USUAL = 3, MOST = 6 };
static const char *const langs[MOST] = {"en", "de", "fr", "es", "cs", "ru"};

static int count(const struct neb_real_text *t)
{
    if (!t->languages) return USUAL;
    return t->languages < MOST ? t->languages : MOST;
}

static neb_status split(const struct neb_real_text *t, const char *lang)
{
    char from[600], to[600];
    struct neb_buf text;
    snprintf(from, sizeof from, "%s/mono/eltec.%s.txt", t->data, lang);
    neb__buf_init(&text, (size_t)1 << 30);
    neb_status status = neb__file_read(from, &text);
    size_t cut = text.len * 97 / 100;
    while (status == NEB_OK && cut < text.len && text.data[cut - 1] != '\n') cut++;
    for (int part = 0; status == NEB_OK && part < 2; part++) {
        snprintf(to, sizeof to, "%s/%s.%s.txt", t->out, part ? "valid" : "train", lang);
        status = neb__file_replace(to, text.data + (part ? cut : 0), part ? text.len - cut : cut, 0644);
    }
    neb__buf_free(&text);
    return status;
}

static neb_status write_job(const struct neb_real_text *t, char path[600])
{
    struct neb_buf y;
    neb__buf_init(&y, 1 << 16);
    neb_status status = neb__buf_printf(
        &y,
        "name: %s\ntask: mlm\nout: %s\ntokenizer: {vocab: %d, lines: %d}\n"
        "model: {family: bert, hidden: %d, layers: %d, heads: 4, ffn: %d, dropout: 0}\n"
        "train: {steps: %d, tokens: %d, max_len: %d, lr: %g, beta2: %g, device: %s, threads: %d, "
        "optimizer: %s, deterministic: yes}\ndata:\n",
        t->name, t->out, t->vocab, t->lines, t->hidden, t->layers, 4 * t->hidden, (int)t->steps,
        (int)t->tokens, (int)t->max_len, t->lr, t->beta2, t->device, (int)t->threads,
        t->optimizer ? t->optimizer : "adamw");
    for (int i = 0; i < 2 * count(t) && status == NEB_OK; i++)
        status =
            neb__buf_printf(&y, "  - {file: %s/%s.%s.txt, lang: %s, use: %s}\n", t->out,
                            i % 2 ? "valid" : "train", langs[i / 2], langs[i / 2], i % 2 ? "valid" : "train");
    snprintf(path, 600, "%s/job.yaml", t->out);
    if (status == NEB_OK) status = neb__file_replace(path, y.data, y.len, 0644);
    neb__buf_free(&y);
    return status;
}

neb_status neb__real_text_open(const struct neb_real_text *t, struct neb_job *job, struct neb_data *data)
{
    char path[600];
    NEB_TRY(neb__file_make_dir(t->out, 0755));
    for (int i = 0; i < count(t); i++) NEB_TRY(split(t, langs[i]));
    NEB_TRY(write_job(t, path));
    NEB_TRY(neb__job_read(path, NULL, 0, job));
    neb_status status = neb__data_prepare(job, data);
    if (status != NEB_OK) neb__job_free(job);
    return status;
}

int neb__real_text_missing(void)
{
    fprintf(stderr, "text is missing: set NEBULA_DATA or --data to a folder with mono/eltec.en.txt\n");
    return 1;
}
