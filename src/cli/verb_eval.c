/* verb_eval.c: `nebula-i eval KIND …`: how good a trained model is.
 *
 *     loss       a job's model on its held-out corpora
 *     bleu       translations of a file against references
 *     retrieval  nearest neighbours across languages (Tatoeba's files, or any two aligned ones)
 *     nli        fine-tuned on sentence pairs, accuracy per file, so per language */
#include "cli/verb.h"
#include "base/mem.h"
#include "task/nli.h"
#include "task/retrieve.h"
#include "task/translate.h"
#include "task/work.h"
#include "text/line_reader.h"
#include "text/score.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct options {
    char *use, *site, *device, *dtype, *tokenize, *train, *write;
    int64_t threads, layer;
    bool centre;
    struct neb_translate_config translate;
    struct neb_nli_config nli;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, device, NEB_OPT_TEXT, "cpu", NULL,
            "cpu, auto (the GPU where there is one) or a plug-in such as cuda"),
    NEB_OPT(struct options, dtype, NEB_OPT_TEXT, "f32", NULL, "compute type; bf16 on a GPU",
            NEB_OPT_CHOICE("f32", "bf16")),
    NEB_OPT(struct options, threads, NEB_OPT_INT, "0", NULL, "CPU threads; 0: all cores",
            NEB_OPT_RANGE(0, 1024)),
    NEB_OPT(struct options, use, NEB_OPT_TEXT, "valid", NULL, "which corpora of the job, for loss",
            NEB_OPT_CHOICE("train", "valid", "test")),
    NEB_OPT(struct options, site, NEB_OPT_TEXT, "", NULL,
            "loss: with that site's own settings and corpora; empty: with all corpora of the job"),
    NEB_OPT(struct options, tokenize, NEB_OPT_TEXT, "13a", NULL,
            "how bleu cuts words; none for text that is tokenised",
            NEB_OPT_CHOICE("13a", "intl", "zh", "char", "none")),
    NEB_OPT(struct options, write, NEB_OPT_TEXT, "", NULL, "bleu: file for the translations"),
    NEB_OPT(struct options, layer, NEB_OPT_INT, "0", NULL,
            "retrieval: hidden states of this layer; 0: the last", NEB_OPT_RANGE(0, 4096)),
    NEB_OPT(struct options, centre, NEB_OPT_BOOL, "no", NULL,
            "retrieval: take from each sentence what all sentences of its file have in common"),
    NEB_OPT(struct options, train, NEB_OPT_TEXT, "", NULL,
            "nli: files to train on, with commas between them"),
    NEB_OPT_END,
};

/* ---- lines ------------------------------------------------------------------------------------------------------ */

struct text {
    char **line;
    int n, room;
};

static void free_text(struct text *t)
{
    for (int i = 0; i < t->n; i++) neb__free(t->line[i]);
    neb__free(t->line);
    *t = (struct text){0};
}

static neb_status add_line(struct text *t, const char *text, size_t n)
{
    if (t->n == t->room) {
        int room = t->room ? 2 * t->room : 1024;
        char **lines = neb__realloc(t->line, (size_t)room * sizeof *lines);
        if (!lines) return neb__fail(NEB_ERR_NOMEM, "out of memory for %d lines", room);
        t->line = lines;
        t->room = room;
    }
    char *copy = neb__malloc(n + 1);
    if (!copy) return neb__fail(NEB_ERR_NOMEM, "out of memory for a line");
    memcpy(copy, text, n);
    copy[n] = 0;
    t->line[t->n++] = copy;
    return NEB_OK;
}

/* Owes a free_text() in every case. */
static neb_status read_text(const char *path, struct text *t)
{
    struct neb_line_reader *l;
    const char *text;
    size_t n;
    *t = (struct text){0};
    NEB_TRY(neb__line_reader_open(path, &l));
    neb_status status;
    while ((status = neb__line_reader_next(l, &text, &n)) == NEB_OK &&
           (status = add_line(t, text, n)) == NEB_OK)
        continue;
    neb__line_reader_close(l);
    return status == NEB_ERR_AGAIN ? NEB_OK : status;
}

/* ---- loss ------------------------------------------------------------------------------------------------------- */

static neb_status load_trained(const char *path, struct neb_model *m)
{
    struct neb_model_yaml f;
    int n;
    NEB_TRY(neb__model_yaml_read(path, &f));
    neb_status status = neb__folder_load(&f, m, NULL, true, &n);
    neb__model_yaml_free(&f);
    return status;
}

static neb_status measure(const struct neb_job *job, struct neb_work *w, const char *use)
{
    char path[NEB_MODEL_PATH];
    struct neb_work_eval e;
    snprintf(path, sizeof path, "%s/generator", job->out);
    if (neb__work_generator(w)) NEB_TRY(load_trained(path, neb__work_generator(w)));
    NEB_TRY(
        load_trained(job->out, neb__work_model(w))); /* its table may be a difference to the generator's */
    neb_status status = neb__work_eval(w, use, 0, &e);
    if (status == NEB_ERR_NOTFOUND)
        return neb__fail(NEB_ERR_CONFIG, "the job has no corpus with use: %s", use);
    NEB_TRY(status);
    printf("%s loss %.4f, perplexity %.2f, accuracy %.2f %% over %" PRId64 " tokens\n", use, e.loss,
           exp(e.loss), 100 * e.accuracy, e.rows);
    if (!job->objective->describe_more) return NEB_OK;
    char more[200];
    job->objective->describe_more(&e, more, sizeof more);
    printf("%s\n", more);
    return NEB_OK;
}

static neb_status eval_loss(struct neb_call *c)
{
    const struct options *o = c->options;
    struct neb_job job;
    struct neb_data data;
    struct neb_work *work;
    NEB_TRY(neb__job_read(c->words[0], c->words + 1, c->n - 1, &job));
    neb_status status = o->site ? neb__job_at(&job, o->site) : NEB_OK;
    if (status == NEB_OK && o->site) neb__job_alone(&job);
    if (status == NEB_OK) status = neb__data_prepare(&job, &data);
    if (status == NEB_OK) {
        status = neb__work_open(&data, 0, 1, NULL, &work);
        if (status == NEB_OK) {
            status = measure(&job, work, o->use);
            neb__work_close(work);
        }
        neb__data_free(&data);
    }
    neb__job_free(&job);
    return status;
}

/* ---- bleu ------------------------------------------------------------------------------------------------------- */

/* each: (sentences) of BLEU. */
static neb_status score_each(const struct options *o, const struct text *hyp, const struct text *refs, int n,
                             struct neb_bleu *each)
{
    enum neb_word_split split;
    struct neb_bleu bleu;
    struct neb_chrf chrf;
    double low, high;
    NEB_TRY(neb__chars_split_parse(o->tokenize, &split));
    neb__bleu_init(&bleu, split, false);
    neb__chrf_init(&chrf, 0, false);
    for (int i = 0; i < hyp->n; i++) {
        const char *ref[NEB_SCORE_REFS];
        for (int k = 0; k < n; k++) ref[k] = refs[k].line[i];
        neb__bleu_init(&each[i], split, false);
        NEB_TRY(neb__bleu_add(&each[i], hyp->line[i], ref, n));
        neb__bleu_sum(&bleu, &each[i]);
        NEB_TRY(neb__chrf_add(&chrf, hyp->line[i], ref, n));
    }
    neb__bleu_interval(each, hyp->n, &low, &high);
    printf("BLEU %.2f (brevity penalty %.3f, tokenizer %s), chrF %.2f; %d sentences; 95 %% interval of BLEU "
           "%.2f to %.2f\n",
           neb__bleu_score(&bleu), neb__bleu_brevity(&bleu), o->tokenize, neb__chrf_score(&chrf), hyp->n, low,
           high);
    return NEB_OK;
}

static neb_status score(const struct options *o, const struct text *hyp, const struct text *refs, int n)
{
    struct neb_bleu *each = NEB_NEW_ARRAY(struct neb_bleu, (size_t)hyp->n + 1);
    if (!each) return neb__fail(NEB_ERR_NOMEM, "out of memory for the scores of %d sentences", hyp->n);
    neb_status status = score_each(o, hyp, refs, n, each);
    neb__free(each);
    return status;
}

static neb_status write_text(const char *path, const struct text *t)
{
    FILE *f = fopen(path, "w");
    if (!f) return neb__fail(NEB_ERR_IO, "cannot write %s", path);
    for (int i = 0; i < t->n; i++) fprintf(f, "%s\n", t->line[i]);
    bool bad = ferror(f);
    if (fclose(f) || bad) return neb__fail(NEB_ERR_IO, "cannot write %s", path);
    return NEB_OK;
}

static neb_status translate_text(const struct options *o, const struct neb_ready *m,
                                 const struct text *source, struct text *hyp)
{
    struct neb_translator *t;
    hyp->line = NEB_NEW_ARRAY(char *, (size_t)source->n + 1);
    if (!hyp->line) return neb__fail(NEB_ERR_NOMEM, "out of memory for %d lines", source->n);
    NEB_TRY(neb__translator_open(m, &o->translate, &t));
    neb_status status = neb__translator_translate(t, (const char *const *)source->line, source->n, hyp->line);
    if (status == NEB_OK) hyp->n = source->n;
    neb__translator_close(t);
    return status;
}

static neb_status bleu(const struct options *o, const struct neb_ready *m, char **files, int n)
{
    struct text source = {0}, hyp = {0}, refs[NEB_SCORE_REFS] = {{0}};
    neb_status status = read_text(files[0], &source);
    for (int i = 1; status == NEB_OK && i < n; i++) {
        status = read_text(files[i], &refs[i - 1]);
        if (status == NEB_OK && refs[i - 1].n != source.n)
            status = neb__fail(NEB_ERR_CONFIG, "%s has %d lines, %s %d", files[0], source.n, files[i],
                               refs[i - 1].n);
    }
    if (status == NEB_OK) status = translate_text(o, m, &source, &hyp);
    if (status == NEB_OK && o->write) status = write_text(o->write, &hyp);
    if (status == NEB_OK) status = score(o, &hyp, refs, n - 1);
    free_text(&source);
    free_text(&hyp);
    for (int i = 0; i < NEB_SCORE_REFS; i++) free_text(&refs[i]);
    return status;
}

/* ---- retrieval -------------------------------------------------------------------------------------------------- */

struct pairs {
    struct neb_embedder *e;
    bool centre;
    double sum; /* of the pairs' accuracies */
    int count;
};

static neb_status compare(const struct pairs *v, const char *one, const char *two, struct neb_retrieval *out)
{
    struct neb_embedder *e = v->e;
    struct text a, b;
    neb_status status = read_text(one, &a), t = read_text(two, &b);
    size_t width = (size_t)neb__embedder_width(e), n = (size_t)a.n;
    if (status == NEB_OK) status = t;
    if (status == NEB_OK && (a.n != b.n || !a.n))
        status =
            neb__fail(NEB_ERR_CONFIG, "%s has %d lines, %s %d: they must be aligned", one, a.n, two, b.n);
    float *va = status == NEB_OK ? neb__malloc(n * width * sizeof *va) : NULL;
    float *vb = status == NEB_OK ? neb__malloc(n * width * sizeof *vb) : NULL;
    if (status == NEB_OK && (!va || !vb))
        status = neb__fail(NEB_ERR_NOMEM, "out of memory for %zu sentence vectors", n);
    if (status == NEB_OK) status = neb__embedder_embed(e, (const char *const *)a.line, a.n, va);
    if (status == NEB_OK) status = neb__embedder_embed(e, (const char *const *)b.line, b.n, vb);
    if (status == NEB_OK && v->centre) status = neb__vectors_centre(va, a.n, (int64_t)width);
    if (status == NEB_OK && v->centre) status = neb__vectors_centre(vb, b.n, (int64_t)width);
    if (status == NEB_OK) status = neb__retrieve_pairs(va, vb, a.n, (int64_t)width, out);
    neb__free(va);
    neb__free(vb);
    free_text(&a);
    free_text(&b);
    return status;
}

static neb_status report(struct pairs *v, const char *name, const char *one, const char *two)
{
    struct neb_retrieval r;
    NEB_TRY(compare(v, one, two, &r));
    printf("%-12s %5d sentences: %5.1f %% there, %5.1f %% back\n", name, r.n, 100 * r.forth, 100 * r.back);
    fflush(stdout);
    v->sum += (r.forth + r.back) / 2;
    v->count++;
    return NEB_OK;
}

/* `tatoeba.deu-eng.deu` and its other half, for every pair in the folder; in the order of the names. */
static neb_status scan(struct pairs *v, const char *dir)
{
    struct dirent **list;
    int n = scandir(dir, &list, NULL, alphasort);
    neb_status status = n < 0 ? neb__fail(NEB_ERR_IO, "cannot read the folder %s", dir) : NEB_OK;
    for (int i = 0; i < n; i++) {
        char a[16], b[16], c[16], end, one[1200], two[1200];
        if (status == NEB_OK &&
            sscanf(list[i]->d_name, "tatoeba.%15[a-z]-%15[a-z].%15[a-z]%c", a, b, c, &end) == 3 &&
            !strcmp(a, c) && strcmp(a, b)) {
            snprintf(one, sizeof one, "%s/%s", dir, list[i]->d_name);
            snprintf(two, sizeof two, "%s/tatoeba.%s-%s.%s", dir, a, b, b);
            status = report(v, a, one, two);
        }
        free(list[i]); /* scandir's own */
    }
    if (n >= 0) free(list);
    return status;
}

static neb_status retrieval(const struct options *o, const struct neb_ready *m, char **files, int n)
{
    struct pairs v = {.centre = o->centre};
    struct stat st;
    NEB_TRY(neb__embedder_open(m, &v.e));
    neb_status status = NEB_OK;
    if (n == 1 && !stat(files[0], &st) && S_ISDIR(st.st_mode))
        status = scan(&v, files[0]);
    else if (n < 2 || n % 2)
        status = neb__fail(NEB_ERR_CONFIG, "eval retrieval FOLDER DIR, or FOLDER and pairs of aligned files");
    else
        for (int i = 0; status == NEB_OK && i < n; i += 2)
            status = report(&v, strrchr(files[i], '/') ? strrchr(files[i], '/') + 1 : files[i], files[i],
                            files[i + 1]);
    if (status == NEB_OK && v.count) printf("mean of %d: %.1f %%\n", v.count, 100 * v.sum / v.count);
    neb__embedder_close(v.e);
    return status;
}

/* ---- nli -------------------------------------------------------------------------------------------------------- */

static void show_step(void *arg, int64_t step, int64_t steps, double loss)
{
    (void)arg;
    if (step % 50 == 0 || step == steps)
        fprintf(stderr, "nli  step %" PRId64 "/%" PRId64 "  loss %.4f\n", step, steps, loss);
}

static neb_status nli(const struct options *o, neb_device *device, char **argv, int n)
{
    char name[512];
    const char *files[64];
    char *names[64] = {0};
    int count = 0;
    struct neb_nli *tuned;
    if (!o->train) return neb__fail(NEB_ERR_CONFIG, "eval nli: --train FILE[,FILE…] is needed");
    neb_status status = neb__nli_open(argv[0], &o->nli, device, &tuned);
    if (status != NEB_OK) return status;
    for (; status == NEB_OK && count < 64 && neb__list_part(o->train, count, name, sizeof name); count++) {
        files[count] = names[count] = neb__strdup(name);
        if (!names[count]) status = neb__fail(NEB_ERR_NOMEM, "out of memory for a name");
    }
    if (status == NEB_OK) status = neb__nli_train(tuned, files, count, show_step, NULL);
    double sum = 0;
    for (int i = 1; status == NEB_OK && i < n; i++) {
        struct neb_nli_result r;
        status = neb__nli_test(tuned, argv[i], &r);
        if (status != NEB_OK) break;
        double share = r.pairs ? (double)r.right / (double)r.pairs : 0;
        printf("%s: accuracy %.2f %%, loss %.4f, %" PRId64 " pairs\n", argv[i], 100 * share, r.loss, r.pairs);
        fflush(stdout);
        sum += share;
    }
    if (status == NEB_OK) printf("mean of %d files: %.2f %%\n", n - 1, 100 * sum / (n - 1));
    for (int i = 0; i < count; i++) neb__free(names[i]);
    neb__nli_close(tuned);
    return status;
}

/* ---- the verb --------------------------------------------------------------------------------------------------- */

static neb_status open_device(const struct options *o, neb_device **out)
{
    bool bf16 = !strcmp(o->dtype, "bf16");
    struct neb_device_config config = {.compute = bf16 ? NEB_BF16 : NEB_F32, .threads = (int)o->threads};
    return neb_device_open(o->device, &config, out);
}

static neb_status eval_bleu(struct neb_call *c)
{
    const struct options *o = c->options;
    neb_device *device;
    struct neb_ready m;
    NEB_TRY(open_device(o, &device));
    neb_status status = neb__ready_open_layers(c->words[0], NULL, 0, device, &m);
    if (status == NEB_OK) {
        status = bleu(o, &m, c->words + 1, c->n - 1);
        neb__ready_close(&m);
    }
    neb_device_close(device);
    return status;
}

static neb_status eval_retrieval(struct neb_call *c)
{
    const struct options *o = c->options;
    neb_device *device;
    struct neb_ready m;
    NEB_TRY(open_device(o, &device));
    neb_status status = neb__ready_open_layers(c->words[0], "none", o->layer, device, &m);
    if (status == NEB_OK) {
        status = retrieval(o, &m, c->words + 1, c->n - 1);
        neb__ready_close(&m);
    }
    neb_device_close(device);
    return status;
}

static neb_status eval_nli(struct neb_call *c)
{
    const struct options *o = c->options;
    neb_device *device;
    NEB_TRY(open_device(o, &device));
    neb_status status = nli(o, device, c->words, c->n);
    neb_device_close(device);
    return status;
}

static const struct neb_verb parts[] = {
    {.name = "loss",
     .args = "JOB.yaml [section.key=value …]",
     .help = "held-out loss, accuracy, RTD accuracy",
     .least = 1,
     .most = NEB_ANY_NUMBER,
     .run = eval_loss},
    {.name = "bleu",
     .args = "FOLDER SOURCE REFERENCE…",
     .help = "of translations",
     .least = 3,
     .most = 2 + NEB_SCORE_REFS,
     .run = eval_bleu},
    {.name = "retrieval",
     .args = "FOLDER DIR | FOLDER A B …",
     .help = "nearest neighbour across languages",
     .least = 2,
     .most = NEB_ANY_NUMBER,
     .run = eval_retrieval},
    {.name = "nli",
     .args = "FOLDER --train FILE[,FILE…] TEST…",
     .help = "fine-tuned, accuracy per file",
     .least = 2,
     .most = NEB_ANY_NUMBER,
     .run = eval_nli},
    {0},
};

const struct neb_verb neb__verb_eval = {
    .name = "eval",
    .args = "",
    .help = "how good a trained model is",
    .options = {{table, 0},
                {neb__translate_options, offsetof(struct options, translate)},
                {neb__nli_options, offsetof(struct options, nli)}},
    .size = sizeof(struct options),
    .parts = parts,
};
