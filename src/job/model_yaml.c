/* model_yaml.c: model.yaml from the option tables, and back. */
#include "job/model_yaml.h"
#include "base/doc.h"
#include "base/file.h"

#include <stdio.h>
#include <string.h>

#define FIELD(field, kind, fallback, ...) \
    NEB_OPT(struct neb_model_yaml, field, kind, fallback, NULL, __VA_ARGS__)

static const struct neb_opt table[] = {
    FIELD(task, NEB_OPT_TEXT, "", "what it was trained for: the name of an objective"),
    FIELD(tokenizer, NEB_OPT_TEXT, "", "file in the folder"),
    FIELD(numbering, NEB_OPT_TEXT, "plain", "ids of a SentencePiece model",
          NEB_OPT_CHOICE("plain", "xlm-r", "t5")),
    FIELD(cased, NEB_OPT_BOOL, "no", "WordPiece: upper case and accents are kept"),
    FIELD(frame, NEB_OPT_TEXT, "", "translation: special tokens around the texts (text/frame.h)"),
    FIELD(starts, NEB_OPT_TEXT, "auto",
          "decoder: its texts begin with the start token; auto: as the tokenizer says",
          NEB_OPT_CHOICE("auto", "yes", "no")),
    FIELD(tagged, NEB_OPT_BOOL, "no", "translation: sources begin with the target language's token"),
    NEB_OPT_END,
};
static const char *const sections[] = {"model", "peft", NULL};

neb_status neb__model_yaml_init(struct neb_model_yaml *out)
{
    memset(out, 0, sizeof *out);
    neb_status status = neb__opts_init(table, out);
    if (status == NEB_OK) status = neb__model_config_init(NULL, &out->model);
    if (status == NEB_OK) status = neb__peft_config_init(&out->peft);
    if (status != NEB_OK) neb__model_yaml_free(out);
    return status;
}

void neb__model_yaml_free(struct neb_model_yaml *f)
{
    neb__opts_free(table, f);
    neb__model_config_free(&f->model);
    neb__peft_config_free(&f->peft);
}

neb_status neb__model_yaml_set_task(struct neb_model_yaml *f, const char *task)
{
    return neb__opts_set(table, f, "task", task);
}

neb_status neb__model_yaml_set_frame(struct neb_model_yaml *f, const char *frame)
{
    return neb__opts_set(table, f, "frame", frame);
}

neb_status neb__model_yaml_set_numbering(struct neb_model_yaml *f, const char *numbering)
{
    return neb__opts_set(table, f, "numbering", numbering);
}

neb_status neb__model_yaml_set_starts(struct neb_model_yaml *f, const char *starts)
{
    return neb__opts_set(table, f, "starts", starts);
}

static neb_status bind(struct neb_doc *doc, struct neb_model_yaml *f)
{
    NEB_TRY(neb__doc_bind(doc, "", table, f, sections));
    NEB_TRY(neb__doc_bind(doc, "model", neb__model_options, &f->model, NULL));
    NEB_TRY(neb__doc_bind(doc, "peft", neb__peft_options, &f->peft, NULL));
    NEB_TRY(neb__doc_all_used(doc));
    if (f->tokenizer && (strchr(f->tokenizer, '/') || *f->tokenizer == '.'))
        return neb__doc_fail(doc, "tokenizer", "tokenizer: '%s' must be a file in the folder", f->tokenizer);
    return NEB_OK;
}

neb_status neb__model_yaml_read(const char *path, struct neb_model_yaml *out)
{
    char file[NEB_MODEL_PATH + 32];
    struct neb_doc doc;
    if (strlen(path) >= sizeof out->path)
        return neb__fail(NEB_ERR_INVALID, "the path of a model folder is longer than %zu bytes",
                         sizeof out->path - 1);
    snprintf(file, sizeof file, "%s/model.yaml", path);
    NEB_TRY(neb__doc_read(file, &doc));
    neb_status status = neb__model_yaml_init(out);
    if (status == NEB_OK) {
        snprintf(out->path, sizeof out->path, "%s", path);
        status = bind(&doc, out);
        if (status != NEB_OK) neb__model_yaml_free(out);
    }
    neb__doc_free(&doc);
    return status;
}

neb_status neb__model_yaml_set_tokenizer(struct neb_model_yaml *f, const char *tokenizer)
{
    return neb__opts_set(table, f, "tokenizer", tokenizer);
}

neb_status neb__model_yaml_write(const struct neb_model_yaml *f, const char *path)
{
    char file[NEB_MODEL_PATH + 32];
    struct neb_buf text;
    neb__buf_init(&text, 1 << 20);
    neb_status status = neb__opts_write(table, f, "", &text);
    if (status == NEB_OK) status = neb__buf_printf(&text, "model:\n");
    if (status == NEB_OK) status = neb__opts_write(neb__model_options, &f->model, "  ", &text);
    if (status == NEB_OK) status = neb__buf_printf(&text, "peft:\n  method: \"%s\"\n", f->peft.method);
    if (status == NEB_OK && strcmp(f->peft.method, "full"))
        status = neb__opts_write(neb__peft_options + 1, &f->peft, "  ", &text);
    snprintf(file, sizeof file, "%s/model.yaml", path);
    if (status == NEB_OK) status = neb__file_replace(file, text.data, text.len, 0600);
    neb__buf_free(&text);
    return status;
}
