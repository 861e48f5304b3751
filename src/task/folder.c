/* folder.c: model folders: the parameters by name, the tokenizer's file. model.yaml is read and written by
 * job/model_yaml.c.
 *
 * Two models of one parameter set (generator and discriminator) are told apart by their prefix, which the
 * file does not show. A model whose token table is another's writes it as its own; a table kept as a
 * difference to another's (disentangled embeddings) is written as the sum, so a folder never depends on a
 * second one. */
#include "task/folder.h"
#include "base/doc.h"
#include "base/file.h"
#include "base/mem.h"
#include "tensor/params.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char token_name[] = "embed.token.weight";

/* ---- what the folder says of itself -------------------------------------------------------------------- */

neb_status neb__folder_describe(struct neb_model_yaml *f, const char *task,
                                const struct neb_model_config *model, const struct neb_peft_config *peft,
                                const struct neb_tok_cfg *tok)
{
    NEB_TRY(neb__model_yaml_set_task(f, task));
    NEB_TRY(neb__model_yaml_set_numbering(f, neb__tok_layout_name(tok->layout)));
    f->cased = tok->cased != 0;
    if (!strcmp(task, "causal")) NEB_TRY(neb__model_yaml_set_starts(f, "yes")); /* text/batches_fill.c */
    NEB_TRY(neb__doc_copy(neb__model_options, model, &f->model));
    return neb__doc_copy(neb__peft_options, peft, &f->peft);
}

struct neb_tok_cfg neb__folder_tok_cfg(const struct neb_model_yaml *f)
{
    return (struct neb_tok_cfg){.layout = neb__tok_layout_named(f->numbering), .cased = f->cased};
}

neb_status neb__folder_frame(const struct neb_model_yaml *f, const struct neb_frame **out)
{
    const char *name = f->frame;
    if (!name || !*name) name = f->tagged ? "tags" : "plain";
    const struct neb_frame *frame = neb__frame_named(name);
    if (!frame) return neb__fail(NEB_ERR_CONFIG, "%s/model.yaml: there is no frame '%.40s'", f->path, name);
    *out = frame;
    return NEB_OK;
}

neb_status neb__folder_tok_cfg_of(const char *file, struct neb_tok_cfg *out, bool *found)
{
    static const char *const parts[] = {"model.yaml", "model.safetensors"};
    char path[NEB_MODEL_PATH + 32], folder[NEB_MODEL_PATH] = ".";
    const char *slash = strrchr(file, '/'), *name = slash ? slash + 1 : file;
    struct neb_model_yaml f;
    *found = false;
    if (slash && slash - file >= NEB_MODEL_PATH) return NEB_OK;
    if (slash) snprintf(folder, sizeof folder, "%.*s", slash == file ? 1 : (int)(slash - file), file);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, parts[i]);
        if (access(path, F_OK)) return NEB_OK;
    }
    NEB_TRY(neb__model_yaml_read(folder, &f));
    *found = f.tokenizer && !strcmp(f.tokenizer, name);
    if (*found) *out = neb__folder_tok_cfg(&f);
    neb__model_yaml_free(&f);
    return NEB_OK;
}

neb_status neb__folder_tokenizer(const struct neb_model_yaml *f, struct neb_tok **out)
{
    char file[NEB_MODEL_PATH + 256];
    struct neb_tok_cfg cfg = neb__folder_tok_cfg(f);
    if (!f->tokenizer) return neb__fail(NEB_ERR_CONFIG, "the model in %s has no tokenizer", f->path);
    snprintf(file, sizeof file, "%s/%s", f->path, f->tokenizer);
    return neb__tok_open(file, &cfg, out);
}

/* ---- writing ------------------------------------------------------------------------------------------- */

const char *neb__folder_name(const struct neb_model *m, const neb_param *p)
{
    const char *name = neb_param_name(p);
    size_t n = strlen(m->prefix);
    if (p == m->token) return token_name;
    if (strncmp(name, m->prefix, n)) return NULL;
    if (!n && (!strncmp(name, "generator.", 10) || !strncmp(name, "distill.", 8))) return NULL;
    return name + n;
}

static neb_status copy_file(const char *from, const char *path, const char *name)
{
    char file[NEB_MODEL_PATH + 32];
    struct neb_buf bytes;
    neb__buf_init(&bytes, 256u << 20);
    neb_status status = neb__file_read_plain(from, &bytes);
    snprintf(file, sizeof file, "%s/%.31s", path, name);
    if (status == NEB_OK) status = neb__file_replace(file, bytes.data, bytes.len, 0600);
    neb__buf_free(&bytes);
    return status;
}

/* A file beside the tokenizer's, if there is one. */
static neb_status copy_beside(const char *path, const char *tokenizer, const char *name)
{
    char from[NEB_MODEL_PATH + 300];
    const char *slash = strrchr(tokenizer, '/');
    const int n =
        snprintf(from, sizeof from, "%.*s%s", slash ? (int)(slash - tokenizer) + 1 : 0, tokenizer, name);
    return n < (int)sizeof from && !access(from, F_OK) ? copy_file(from, path, name) : NEB_OK;
}

static neb_status copy_tokenizer(struct neb_model_yaml *f, const char *path, const char *from)
{
    char second[NEB_MODEL_PATH + 300], third[NEB_MODEL_PATH + 300];
    size_t n = strlen(from);
    NEB_TRY(neb__tok_second_file(from, second, sizeof second));
    NEB_TRY(neb__tok_third_file(from, third, sizeof third));
    const char *name = "tokenizer.model";
    if (n > 4 && !strcmp(from + n - 4, ".txt")) name = "vocab.txt";
    if (*third && !access(third, F_OK))
        NEB_TRY(copy_file(third, path, strrchr(third, '/') ? strrchr(third, '/') + 1 : third));
    if (*second) { /* files that keep their names */
        const char *slash = strrchr(from, '/');
        name = slash ? slash + 1 : from;
        NEB_TRY(copy_file(second, path, strrchr(second, '/') ? strrchr(second, '/') + 1 : second));
    }
    /* how conversations are written belongs to the tokenizer, and so do the tokens that end a text */
    NEB_TRY(copy_beside(path, from, "chat_template.jinja"));
    NEB_TRY(copy_beside(path, from, "token_numbers.json"));
    if (f->task && !strcmp(f->task, "causal")) NEB_TRY(copy_beside(path, from, "generation_config.json"));
    NEB_TRY(copy_file(from, path, name));
    return neb__model_yaml_set_tokenizer(f, name);
}

neb_status neb__folder_begin(struct neb_model_yaml *f, const char *path, const char *tokenizer_file)
{
    if (strlen(path) >= NEB_MODEL_PATH)
        return neb__fail(NEB_ERR_INVALID, "the path of a model folder is longer than %d bytes",
                         NEB_MODEL_PATH - 1);
    NEB_TRY(neb__file_make_dir(path, 0700));
    return tokenizer_file ? copy_tokenizer(f, path, tokenizer_file) : NEB_OK;
}

neb_status neb__folder_write(struct neb_model_yaml *f, const char *path, const struct neb_model *m,
                             const char *tokenizer_file)
{
    char file[NEB_MODEL_PATH + 32];
    NEB_TRY(neb__folder_begin(f, path, tokenizer_file));
    snprintf(file, sizeof file, "%s/model.safetensors", path);
    NEB_TRY(neb__folder_write_values(file, m, false, NULL));
    return neb__model_yaml_write(f, path);
}

neb_status neb__folder_write_part(struct neb_model_yaml *f, const char *path, const struct neb_model *m,
                                  const char *tokenizer_file, const struct neb_folder_part *part)
{
    char file[NEB_MODEL_PATH + 48], number[24];
    snprintf(number, sizeof number, "%" PRId64, part->step);
    const char *const meta[] = {"run", part->run, "step", number, NULL};
    NEB_TRY(neb__folder_begin(f, path, tokenizer_file));
    neb__folder_part_name(path, part->number, part->parts, file, sizeof file);
    NEB_TRY(neb__folder_write_values(file, m, true, meta));
    neb__folder_other_parts(path, part->number, part->parts);
    return neb__model_yaml_write(f, path);
}

/* ---- ready for use ------------------------------------------------------------------------------------- */

/* DoRA and IA3 cost more than a product when a model is only used; loading merges them into weights that are not coded. */
static neb_status merges(const struct neb_model_yaml *f, bool *out)
{
    struct neb_peft p;
    NEB_TRY(neb__peft_config_check(&f->peft, &p));
    *out = (p.dora || p.ia3) && !p.adapter && !p.prefix && !p.prompt && !p.keep;
    return NEB_OK;
}

static neb_status open_ready(struct neb_ready *r, const char *head)
{
    int loaded;
    bool merged;
    NEB_TRY(merges(&r->folder, &merged));
    if (head) NEB_TRY(neb__opts_set(neb__model_options, &r->folder.model, "head", head));
    NEB_TRY(neb_params_create(&r->params));
    NEB_TRY(
        neb__model_create(&r->folder.model, merged ? NULL : &r->folder.peft, "", NULL, r->params, &r->model));
    neb__params_only_use(r->params);
    NEB_TRY(neb_params_ready(r->params, r->device, 1));
    NEB_TRY(neb__folder_load(&r->folder, r->model, NULL, true, &loaded));
    return r->folder.tokenizer ? neb__folder_tokenizer(&r->folder, &r->tok) : NEB_OK;
}

neb_status neb__ready_open(const char *path, const char *head, neb_device *device, struct neb_ready *out)
{
    return neb__ready_open_layers(path, head, 0, device, out);
}

neb_status neb__ready_open_layers(const char *path, const char *head, int64_t layers, neb_device *device,
                                  struct neb_ready *out)
{
    memset(out, 0, sizeof *out);
    NEB_TRY(neb__model_yaml_read(path, &out->folder));
    out->device = device;
    neb_status status = NEB_OK;
    if (layers < 0 || layers > out->folder.model.layers)
        status = neb__fail(NEB_ERR_CONFIG, "%s: the model has %" PRId64 " layers, not %" PRId64, path,
                           out->folder.model.layers, layers);
    else if (layers)
        out->cut = layers < out->folder.model.layers, out->folder.model.layers = layers;
    if (status == NEB_OK) status = open_ready(out, head);
    if (status == NEB_OK && out->tok && neb__tok_vocab(out->tok) > out->model->arch.vocab)
        status = neb__fail(NEB_ERR_CONFIG, "%s: the tokenizer has %d tokens, the model %" PRId64, path,
                           neb__tok_vocab(out->tok), out->model->arch.vocab);
    if (status == NEB_OK && out->tok) neb__model_set_outputs(out->model, neb__tok_vocab(out->tok));
    if (status != NEB_OK) neb__ready_close(out);
    return status;
}

void neb__ready_close(struct neb_ready *r)
{
    neb__model_destroy(r->model);
    neb_params_destroy(r->params);
    neb__tok_close(r->tok);
    neb__model_yaml_free(&r->folder);
    memset(r, 0, sizeof *r);
}
