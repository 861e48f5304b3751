/* nli.c: fine-tuning an encoder on sentence pairs, and testing it.
 *
 * Pairs are packed as in pre-training (<s> a </s> b </s>, positions and segments starting anew at b) into
 * batches of one shape: padding sequences have no target. The learning rate rises over a tenth of the steps
 * and falls linearly. */
#include "task/nli.h"
#include "base/doc.h"
#include "base/mem.h"
#include "task/line_batches.h"
#include "task/objectives.h"
#include "text/line_reader.h"

#include <stdio.h>
#include <string.h>

enum { CLASSES = 3 };

#define OPT(field, kind, fallback, unit, help) \
    NEB_OPT(struct neb_nli_config, field, kind, fallback, unit, help)

const struct neb_opt neb__nli_options[] = {
    OPT(epochs, NEB_OPT_INT, "3", NULL, "nli: times through the training pairs"),
    OPT(tokens, NEB_OPT_INT, "1024", "tokens", "nli: of a batch"),
    OPT(pair_len, NEB_OPT_INT, "128", "tokens", "nli: longest pair; longer ones are cut"),
    OPT(lr, NEB_OPT_REAL, "1e-4", NULL, "nli: peak learning rate"),
    OPT(weight_decay, NEB_OPT_REAL, "0.01", NULL, "nli: decoupled"),
    OPT(dropout, NEB_OPT_REAL, "-1", NULL, "nli: while training; -1: the model's own"),
    OPT(pooling, NEB_OPT_TEXT, "mean", NULL, "nli: first (token) or mean"),
    OPT(method, NEB_OPT_TEXT, "full", NULL, "nli: full, frozen (the head alone), lora, adapter …"),
    OPT(seed, NEB_OPT_INT, "1", NULL, "nli: of the head, the order and dropout"),
    NEB_OPT_END,
};

struct neb_nli {
    struct neb_nli_config c; /* its texts are the caller's */
    struct neb_model_yaml folder;
    neb_params *params;
    struct neb_model *model;
    struct neb_tok *tok;
    struct neb_line_batches *pack;
    struct neb_model_input *input;
    neb_tape *tape;
    neb_optimizer *opt;
    int32_t *label; /* (room) of every pair */
    int room;
    int32_t *target; /* (sequences of a batch) */
    int seqs;
    struct neb_micro micro;
};

/* ---- opening ------------------------------------------------------------------------------------------- */

static neb_status make_model(struct neb_nli *n, neb_device *device)
{
    struct neb_model_yaml *f = &n->folder;
    int loaded;
    NEB_TRY(neb__objective_adopt(&neb__objective_nli, &f->model));
    NEB_TRY(neb__opts_set(neb__model_options, &f->model, "pooling", n->c.pooling));
    if (n->c.dropout >= 0) f->model.dropout = n->c.dropout;
    if (strcmp(f->model.kind, neb__objective_nli.kind))
        return neb__fail(NEB_ERR_CONFIG, "the model in %s is of kind %s; nli needs a model of kind %s",
                         f->path, f->model.kind, neb__objective_nli.kind);
    struct neb_peft_config peft;
    NEB_TRY(neb__peft_config_init(&peft));
    neb_status status =
        neb__doc_copy(neb__peft_options, &f->peft, &peft); /* the sizes of what the folder has */
    if (status == NEB_OK) status = neb__opts_set(neb__peft_options, &peft, "method", n->c.method);
    if (status == NEB_OK) status = neb__opts_set(neb__peft_options, &peft, "freeze", "");
    if (status == NEB_OK)
        status =
            neb__opts_set(neb__peft_options, &peft, "train", strcmp(n->c.method, "full") ? "head.*" : "");
    if (status == NEB_OK) status = neb_params_create(&n->params);
    if (status == NEB_OK) status = neb__model_create(&f->model, &peft, "", NULL, n->params, &n->model);
    neb__peft_config_free(&peft);
    NEB_TRY(status);
    NEB_TRY(neb_params_ready(n->params, device, (uint64_t)n->c.seed));
    NEB_TRY(neb__model_ready(n->model));
    return neb__folder_load(f, n->model, "embed.*,encoder.*", false, &loaded);
}

static neb_status make_batches(struct neb_nli *n, neb_device *device)
{
    int32_t longest = (int32_t)(n->c.pair_len < n->model->arch.max_positions ? n->c.pair_len
                                                                             : n->model->arch.max_positions);
    n->seqs = (int)(n->c.tokens / 8);
    struct neb_line_batches_config c = {.tok = n->tok,
                                        .lead = neb__tok_special(n->tok, NEB_TOK_BOS),
                                        .max_len = longest,
                                        .rows = (int32_t)n->c.tokens,
                                        .seqs = n->seqs,
                                        .pad = true};
    int most = 2 * n->seqs + (int)n->c.tokens / longest + 2;
    struct neb_model_input_limits l = {.rows = {(int32_t)n->c.tokens},
                                       .seqs = most,
                                       .targets = most,
                                       .prefix = (int32_t)n->model->peft.prefix_length};
    n->target = NEB_NEW_ARRAY(int32_t, (size_t)most);
    if (!n->target) return neb__fail(NEB_ERR_NOMEM, "out of memory for a batch of pairs");
    NEB_TRY(neb__line_batches_create(&c, &n->pack));
    return neb__model_input_create(device, &l, &n->input);
}

static neb_status check(const struct neb_nli_config *c)
{
    if (c->epochs < 1 || c->epochs > 1000 || c->pair_len < 8 || c->tokens < c->pair_len ||
        c->tokens > 1 << 20)
        return neb__fail(NEB_ERR_CONFIG, "nli: epochs from 1 to 1000; pair_len from 8 up to tokens");
    if (!(c->dropout <= 0.9)) return neb__fail(NEB_ERR_CONFIG, "nli: dropout must be at most 0.9");
    if (!(c->lr > 0 && c->lr < 1)) return neb__fail(NEB_ERR_CONFIG, "nli: lr must be between 0 and 1");
    return NEB_OK;
}

static neb_status open_nli(struct neb_nli *n, const char *folder, neb_device *device)
{
    struct neb_optimizer_config o = neb_optimizer_defaults();
    NEB_TRY(check(&n->c));
    o.decay = (float)n->c.weight_decay;
    NEB_TRY(neb__model_yaml_read(folder, &n->folder));
    NEB_TRY(neb__folder_tokenizer(&n->folder, &n->tok));
    NEB_TRY(make_model(n, device));
    NEB_TRY(make_batches(n, device));
    NEB_TRY(neb_tape_create(device, n->params, &n->tape));
    return neb_optimizer_create(device, n->params, &o, &n->opt);
}

neb_status neb__nli_open(const char *folder, const struct neb_nli_config *c, neb_device *device,
                         struct neb_nli **out)
{
    struct neb_nli *n = NEB_NEW(struct neb_nli);
    if (!n) return neb__fail(NEB_ERR_NOMEM, "out of memory for fine-tuning");
    n->c = *c;
    neb_status status = open_nli(n, folder, device);
    if (status != NEB_OK) {
        neb__nli_close(n);
        return status;
    }
    *out = n;
    return NEB_OK;
}

void neb__nli_close(struct neb_nli *n)
{
    if (!n) return;
    neb_optimizer_destroy(n->opt);
    neb_tape_destroy(n->tape);
    neb__model_input_destroy(n->input);
    neb__line_batches_destroy(n->pack);
    neb__model_destroy(n->model);
    neb_params_destroy(n->params);
    neb__tok_close(n->tok);
    neb__model_yaml_free(&n->folder);
    neb__free(n->label);
    neb__free(n->target);
    neb__free(n);
}

/* ---- pairs --------------------------------------------------------------------------------------------- */

enum { COLUMNS = 16 };

/* Cuts a line at its tabs, in place. */
static int cut(char *line, char **column)
{
    int n = 0;
    for (char *at = line; at && n < COLUMNS; n++) {
        column[n] = at;
        at = strchr(at, '\t');
        if (at) *at++ = 0;
    }
    return n;
}

static int label_of(const char *word)
{
    static const char *const words[] = {"entailment", "neutral", "contradiction"};
    for (int i = 0; i < CLASSES; i++)
        if ((word[0] == '0' + i && !word[1]) || !strncmp(word, words[i], strlen(words[i]) - 3)) return i;
    return -1;
}

struct columns {
    int premise, hypothesis, label, most;
};

static neb_status read_header(char *line, const char *file, struct columns *out)
{
    char *column[COLUMNS];
    int n = cut(line, column);
    *out = (struct columns){-1, -1, -1, 0};
    for (int i = 0; i < n; i++) {
        if (!strcmp(column[i], "premise")) out->premise = i;
        if (!strncmp(column[i], "hypo", 4)) out->hypothesis = i;
        if (!strcmp(column[i], "label")) out->label = i;
    }
    if (out->premise < 0 || out->hypothesis < 0 || out->label < 0)
        return neb__fail(NEB_ERR_CORRUPT,
                         "%s: the first line must name the columns premise, hypothesis, label", file);
    out->most = n;
    return NEB_OK;
}

static neb_status add_pair(struct neb_nli *n, char **column, const struct columns *c, const char *where,
                           int64_t line)
{
    int label = label_of(column[c->label]), number = neb__line_batches_count(n->pack);
    if (label < 0)
        return neb__fail(NEB_ERR_CORRUPT,
                         "%s:%" PRId64
                         ": '%.40s' is not a label: 0, 1, 2 or entailment, neutral, contradiction",
                         where, line, column[c->label]);
    if (number >= n->room) {
        int room = n->room ? 2 * n->room : 1024;
        int32_t *labels = neb__realloc(n->label, (size_t)room * sizeof *labels);
        if (!labels) return neb__fail(NEB_ERR_NOMEM, "out of memory for %d pairs", room);
        n->label = labels;
        n->room = room;
    }
    NEB_TRY(neb__line_batches_add(n->pack, column[c->premise], column[c->hypothesis], number));
    n->label[number] = label;
    return NEB_OK;
}

static neb_status read_pairs(struct neb_nli *n, const char *file)
{
    struct neb_line_reader *l;
    struct columns c = {0};
    const char *text;
    size_t size;
    NEB_TRY(neb__line_reader_open(file, &l));
    neb_status status;
    while ((status = neb__line_reader_next(l, &text, &size)) == NEB_OK) {
        char *line = neb__malloc(size + 1), *column[COLUMNS];
        if (!line) {
            status = neb__fail(NEB_ERR_NOMEM, "out of memory for a line");
            break;
        }
        memcpy(line, text, size);
        line[size] = 0;
        if (!c.most)
            status = read_header(line, file, &c);
        else if (cut(line, column) < c.most)
            status = neb__fail(NEB_ERR_CORRUPT, "%s:%" PRId64 ": fewer columns than the first line", file,
                               neb__line_reader_number(l));
        else
            status = add_pair(n, column, &c, file, neb__line_reader_number(l));
        neb__free(line);
        if (status != NEB_OK) break;
    }
    neb__line_reader_close(l);
    return status == NEB_ERR_AGAIN ? NEB_OK : status;
}

/* ---- training and testing ------------------------------------------------------------------------------ */

static void run_fn(neb_tape *t, void *arg)
{
    struct neb_nli *n = arg;
    const struct neb_input *in = neb__model_input_tensors(n->input, t);
    neb__model_loss(n->model, t, neb__model_run(n->model, t, in), in, NULL);
}

/* The next batch on the device; how many pairs it has. */
static neb_status load_next(struct neb_nli *n, int *used)
{
    struct neb_model_input_side side;
    const int *numbers;
    *used = neb__line_batches_next(n->pack, &side, &numbers);
    if (!*used) return NEB_OK;
    for (int i = 0; i < side.seqs; i++) n->target[i] = i < *used ? n->label[numbers[i]] : -1;
    struct neb_model_input_data d = {.sides = 1, .side = {side}, .targets = side.seqs, .target = n->target};
    return neb__model_input_load(n->input, &d);
}

/* How many batches an epoch has, without making them on the device. */
static int64_t count_batches(struct neb_nli *n, uint64_t seed)
{
    struct neb_model_input_side side;
    const int *numbers;
    int64_t batches = 0;
    neb__line_batches_order(n->pack, seed);
    while (neb__line_batches_next(n->pack, &side, &numbers)) batches++;
    return batches;
}

static neb_status train_epoch(struct neb_nli *n, int64_t epoch, int64_t steps, int64_t *step, neb_nli_fn show,
                              void *arg)
{
    struct neb_schedule schedule = {
        .kind = NEB_LINEAR, .peak = (float)n->c.lr, .warmup = steps / 10, .total = steps};
    neb__line_batches_order(n->pack, (uint64_t)(n->c.seed * 1000 + epoch + 1));
    for (int used;;) {
        struct neb_step_info info = {0};
        NEB_TRY(load_next(n, &used));
        if (!used) return NEB_OK;
        n->micro = (struct neb_micro){NULL, run_fn, n, neb__model_input_key(n->input), used};
        float lr = neb_schedule_lr(&schedule, *step < steps ? *step : steps - 1);
        neb_status status =
            neb_train_step(n->opt, n->tape, &n->micro, 1, lr, (uint32_t)n->c.seed, NULL, &info);
        if (status != NEB_OK && status != NEB_ERR_NONFINITE) return status;
        if (show) show(arg, ++*step, steps, (double)info.loss[0]);
    }
}

neb_status neb__nli_train(struct neb_nli *n, const char *const *files, int count, neb_nli_fn show, void *arg)
{
    neb__line_batches_clear(n->pack);
    for (int i = 0; i < count; i++) NEB_TRY(read_pairs(n, files[i]));
    if (!neb__line_batches_count(n->pack)) return neb__fail(NEB_ERR_CONFIG, "no pairs to train on");
    int64_t steps = n->c.epochs * count_batches(n, 1), step = 0;
    for (int64_t e = 0; e < n->c.epochs; e++) NEB_TRY(train_epoch(n, e, steps, &step, show, arg));
    return NEB_OK;
}

neb_status neb__nli_test(struct neb_nli *n, const char *file, struct neb_nli_result *out)
{
    struct neb_nli_result r = {0};
    neb__line_batches_clear(n->pack);
    NEB_TRY(read_pairs(n, file));
    neb__line_batches_order(n->pack, 0);
    for (int used;;) {
        struct neb_ctl c = {.step = 1, .seed = 1, .loss_scale = 1};
        NEB_TRY(load_next(n, &used));
        if (!used) break;
        struct neb_run run = {.fn = run_fn, .arg = n, .key = neb__model_input_key(n->input)};
        NEB_TRY(neb_tape_begin_step(n->tape, &c));
        NEB_TRY(neb_tape_run(n->tape, &run));
        NEB_TRY(neb_tape_end_step(n->tape, true, &c));
        r.loss += (double)c.loss[0];
        r.right += (int64_t)c.counts[0];
        r.pairs += used;
    }
    if (r.pairs) r.loss /= (double)r.pairs;
    *out = r;
    return NEB_OK;
}
