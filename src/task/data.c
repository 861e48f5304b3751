/* data.c: tokenizer and streams of a job; data_sets.c makes its token sets.
 *
 * Files that are there are taken without a lock, so that a cache may be read-only. Missing ones are made with
 * the cache's folder locked: one of several processes makes them, the others wait and find them. The
 * tokenizer's file and a set become visible whole, so a process that is killed leaves nothing that the next
 * one takes for finished.
 *
 * A site of a pipeline whose layers need no text (site_cut.c) may be without it: the job names no corpus for it, or the files are
 * not there. It takes a tokenizer that is here, and else its size from tokenizer.vocab; the sites with the text say in their
 * first message whether that is right. */
#include "task/data.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "task/data_files.h"
#include "task/data_sets.h"
#include "task/folder.h"
#include "task/memory_check.h"
#include "task/site_cut.h"
#include "text/corpus.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool neb__data_is_pair(const struct neb_job_data *c)
{
    return c->second || (c->lang && strchr(c->lang, '-'));
}

/* The i-th language of "en-de"; "" when not given. */
void neb__data_lang_of(const struct neb_job_data *c, int i, char out[NEB_LANG_SIZE])
{
    const char *s = c->lang ? c->lang : "", *dash = strchr(s, '-');
    if (i && !dash)
        s = "";
    else if (i)
        s = dash + 1;
    snprintf(out, NEB_LANG_SIZE, "%.*s", i || !dash ? NEB_LANG_SIZE - 1 : (int)(dash - s), s);
}

/* -1: not known yet. */
static int lang_index(const struct neb_data *d, const char *lang)
{
    for (int i = 0; i < d->n_langs; i++)
        if (!strcmp(d->langs[i], lang)) return i;
    return -1;
}

static void add_lang(struct neb_data *d, const char *lang)
{
    if (lang_index(d, lang) < 0) snprintf(d->langs[d->n_langs++], NEB_LANG_SIZE, "%s", lang);
}

/* *lock: -1 before the first call; closing it unlocks. */
neb_status neb__data_lock(const struct neb_data *d, int *lock)
{
    if (*lock >= 0) return NEB_OK;
    neb_status status = neb__file_lock(d->dir, NEB_LOCK_FOLDER, lock);
    if (status == NEB_ERR_BUSY) {
        neb__info("another process prepares text in %s: waiting for it", d->dir);
        status = neb__file_lock(d->dir, NEB_LOCK_FOLDER_WAIT, lock);
    }
    return status == NEB_OK ? NEB_OK : neb__fail(status, "%s", neb_last_error());
}

/* ---- tokenizer ----------------------------------------------------------------------------------------- */

/* The options of a tokenizer that is trained, as text. */
static void options_of(const struct neb_job_tokenizer *t, char *out, size_t size)
{
    snprintf(out, size, "type %s, vocab %" PRId64 ", lines %" PRId64 ", coverage %g", t->type, t->vocab,
             t->lines, t->coverage);
}

/* A tokenizer that was trained here has a file beside it: its hash and the options that it was trained with.
 * A tokenizer without that file, or with another hash, is the user's own and taken as it is. */
static void options_path(const struct neb_data *d, char out[600])
{
    snprintf(out, 600, "%s/tokenizer.trained", d->dir);
}

static neb_status note_options(const struct neb_data *d, const struct neb_buf *model)
{
    char path[600], text[400], hex[2 * NEB_HASH_SIZE + 1], options[200];
    struct neb_hash h;
    NEB_TRY(neb__hash(model->data, model->len, &h));
    neb__hash_hex(&h, hex);
    options_of(&d->job->tokenizer, options, sizeof options);
    options_path(d, path);
    snprintf(text, sizeof text, "%s %s\n", hex, options);
    return neb__file_replace(path, text, strlen(text), 0600);
}

static neb_status check_options(const struct neb_data *d)
{
    char path[600], hex[2 * NEB_HASH_SIZE + 1], asked[200];
    struct neb_buf text;
    options_path(d, path);
    if (access(path, F_OK)) return NEB_OK;
    neb__hash_hex(neb__tok_hash(d->tok), hex);
    options_of(&d->job->tokenizer, asked, sizeof asked);
    neb__buf_init(&text, 4096);
    neb_status status = neb__file_read(path, &text);
    if (status == NEB_OK) status = neb__buf_append(&text, "", 1);
    char *line = (char *)text.data;
    if (status == NEB_OK && !strncmp(line, hex, strlen(hex)) && line[strlen(hex)] == ' ') {
        line += strlen(hex) + 1;
        line[strcspn(line, "\n")] = 0;
        if (strcmp(line, asked))
            status = neb__fail(
                NEB_ERR_CONFIG,
                "%s was trained with %s; the job asks for %s: choose another cache or out, or remove "
                "that file to train it anew, or keep it by naming it as tokenizer.file",
                d->tok_path, line, asked);
    }
    neb__buf_free(&text);
    return status;
}

/* The files of all corpora to train on, ended by NULL. *out is owned, the names in it belong to `files`. */
static neb_status training_files(const struct neb_job *job, struct neb_data_files files[NEB_JOB_DATA],
                                 const char ***out)
{
    size_t n = 0, all = 1;
    for (int i = 0; i < job->n_data; i++) {
        const struct neb_job_data *c = &job->data[i];
        if (!neb__job_has(job, c) || strcmp(c->use, "train")) continue;
        neb_status status = neb__data_files_find(c, &files[i]);
        if (status != NEB_OK) return neb__fail(status, "%s", neb_last_error());
        all += 2 * (size_t)files[i].n;
    }
    const char **paths = NEB_NEW_ARRAY(const char *, all);
    if (!paths) return neb__fail(NEB_ERR_NOMEM, "out of memory for %zu names", all);
    for (int i = 0; i < job->n_data; i++) {
        for (int side = 0; side < 2; side++)
            for (int k = 0; files[i].path[side] && k < files[i].n; k++) paths[n++] = files[i].path[side][k];
    }
    *out = paths;
    return NEB_OK;
}

static neb_status train_on(const struct neb_data *d, const char *const *paths, struct neb_pool *pool)
{
    const struct neb_job *job = d->job;
    const char *langs[2 * NEB_JOB_DATA + 1] = {0};
    for (int i = 0, k = 0; i < d->n_langs; i++)
        if (*d->langs[i]) langs[k++] = d->langs[i];
    neb__info("training a %s tokenizer of %" PRId64 " pieces", job->tokenizer.type, job->tokenizer.vocab);
    struct neb_line_feed *feed = NULL;
    NEB_TRY(neb__line_feed_create(paths, job->tokenizer.lines, &feed));
    struct neb_tok_train cfg = {.type = job->tokenizer.type,
                                .vocab = (int32_t)job->tokenizer.vocab,
                                .langs = langs[0] ? langs : NULL,
                                .coverage = job->tokenizer.coverage,
                                .threads = neb__pool_threads(pool)};
    struct neb_buf model;
    neb__buf_init(&model, 256u << 20);
    neb_status status = neb__tok_train(&cfg, neb__line_feed_next, feed, &model);
    if (status == NEB_OK) status = neb__line_feed_status(feed);
    if (status == NEB_OK)
        status = note_options(d, &model); /* first: a model without them would be taken for the user's own */
    if (status == NEB_OK) status = neb__file_replace(d->tok_path, model.data, model.len, 0600);
    neb__buf_free(&model);
    neb__line_feed_free(feed);
    return status;
}

static neb_status train_tokenizer(const struct neb_data *d, struct neb_pool *pool)
{
    const struct neb_job *job = d->job;
    int n = 0;
    for (int i = 0; i < job->n_data; i++) {
        const struct neb_job_data *c = &job->data[i];
        if (!neb__job_has(job, c)) continue;
        if (neb__data_is_prepared(c))
            return neb__doc_fail(&job->doc, "tokenizer",
                                 "corpus %s is tokenised already: name its tokenizer as tokenizer.file",
                                 c->file);
        if (c->copies > 1 && (!job->tokenizer.type || strcmp(job->tokenizer.type, "bpe")))
            return neb__doc_fail(&job->doc, "tokenizer", "a corpus with copies needs tokenizer.type: bpe");
        n += !strcmp(c->use, "train");
    }
    if (!n) return neb__doc_fail(&job->doc, "data", "no corpus to train on (use: train)");
    struct neb_data_files files[NEB_JOB_DATA] = {0};
    const char **paths = NULL;
    neb_status status = training_files(job, files, &paths);
    if (status == NEB_OK) status = train_on(d, paths, pool);
    neb__free(paths);
    for (int i = 0; i < job->n_data; i++) neb__data_files_free(&files[i]);
    return status;
}

/* A model that starts from another, or is taught by it, reads the same tokens. */
static neb_status tokenizer_of(struct neb_data *d, const char *folder)
{
    struct neb_model_yaml f;
    NEB_TRY(neb__model_yaml_read(folder, &f));
    int n = snprintf(d->tok_path, sizeof d->tok_path, "%s/%s", folder, f.tokenizer ? f.tokenizer : "");
    d->tok_cfg = neb__folder_tok_cfg(&f);
    neb_status status = NEB_OK;
    if (!f.tokenizer || n >= (int)sizeof d->tok_path)
        status = neb__fail(NEB_ERR_CONFIG, "the model in %s has no tokenizer; set tokenizer.file", folder);
    neb__model_yaml_free(&f);
    return status;
}

static neb_status same_bytes(const char *a, const char *b, bool *same)
{
    struct neb_buf x, y;
    neb__buf_init(&x, 256u << 20);
    neb__buf_init(&y, 256u << 20);
    neb_status status = neb__file_read(a, &x);
    if (status == NEB_OK) status = neb__file_read(b, &y);
    *same = status == NEB_OK && x.len == y.len && !memcmp(x.data, y.data, x.len);
    neb__buf_free(&x);
    neb__buf_free(&y);
    return status;
}

/* tokenizer.file may be a copy of the tokenizer in the folder that the job starts from or learns from. That
 * folder may be on another site only. */
static neb_status copy_of(const char *folder, const char *file, struct neb_tok_cfg *out)
{
    char path[NEB_MODEL_PATH + 256];
    struct neb_model_yaml f;
    bool same = false;
    snprintf(path, sizeof path, "%s/model.yaml", folder);
    if (access(path, F_OK)) return NEB_OK;
    NEB_TRY(neb__model_yaml_read(folder, &f));
    snprintf(path, sizeof path, "%s/%s", folder, f.tokenizer ? f.tokenizer : "");
    neb_status status = f.tokenizer && !access(path, F_OK) ? same_bytes(path, file, &same) : NEB_OK;
    if (same) *out = neb__folder_tok_cfg(&f);
    neb__model_yaml_free(&f);
    return status;
}

/* A tokenizer's file says neither how ids are numbered nor whether case is kept. The folder of a model does,
 * or the job. */
static neb_status settle_file(struct neb_data *d, const char *folder)
{
    const struct neb_job_tokenizer *t = &d->job->tokenizer;
    bool found;
    snprintf(d->tok_path, sizeof d->tok_path, "%s", t->file);
    NEB_TRY(neb__folder_tok_cfg_of(t->file, &d->tok_cfg, &found));
    if (!found && folder) NEB_TRY(copy_of(folder, t->file, &d->tok_cfg));
    if (t->numbering) d->tok_cfg.layout = neb__tok_layout_named(t->numbering);
    if (t->cased) d->tok_cfg.cased = true;
    return NEB_OK;
}

/* A teacher with another tokenizer has a frame of its own. */
static neb_status shares_frame(const struct neb_data *d, const struct neb_model_yaml *f, bool *shares)
{
    struct neb_tok *tok = NULL;
    *shares = f->frame && *f->frame;
    if (d->job->init.from || !*shares || !f->tokenizer) return NEB_OK;
    NEB_TRY(neb__folder_tokenizer(f, &tok));
    *shares = neb__hash_equal(neb__tok_hash(tok), neb__tok_hash(d->tok));
    neb__tok_close(tok);
    return NEB_OK;
}

/* A model that starts from another, or is taught by it in the same tokens, has its texts in the same frame. Ours with tags or
 * without them are as the job's languages demand. The folder may be on another site only. */
static neb_status find_frame(struct neb_data *d, const char *folder)
{
    char path[NEB_MODEL_PATH + 32];
    struct neb_model_yaml f;
    bool shares = false;
    snprintf(path, sizeof path, "%s/model.yaml", folder);
    if (d->job->objective->sides < 2 || access(path, F_OK)) return NEB_OK;
    NEB_TRY(neb__model_yaml_read(folder, &f));
    neb_status status = shares_frame(d, &f, &shares);
    if (status == NEB_OK && shares) status = neb__folder_frame(&f, &d->frame);
    neb__model_yaml_free(&f);
    return status;
}

static neb_status open_tokenizer(struct neb_data *d, struct neb_pool *pool, int *lock)
{
    const struct neb_job_tokenizer *t = &d->job->tokenizer;
    const struct neb_job *j = d->job;
    const char *folders = j->init.from;
    if (!folders) folders = j->distill.teacher;
    if (!folders) folders = j->distill.encoder;
    char folder[NEB_MODEL_PATH + 1];
    struct stat st;
    bool known = neb__list_part(folders, 0, folder, sizeof folder);
    if (t->own && !t->file) folders = NULL;
    if (t->frame) d->frame = neb__frame_named(t->frame);
    if (t->file)
        NEB_TRY(settle_file(d, known ? folder : NULL));
    else if (folders)
        NEB_TRY(tokenizer_of(d, folder));
    else
        snprintf(d->tok_path, sizeof d->tok_path, "%s/tokenizer.model", d->dir);
    if (!t->file && !folders && stat(d->tok_path, &st)) {
        NEB_TRY(neb__data_lock(d, lock));
        if (stat(d->tok_path, &st)) NEB_TRY(train_tokenizer(d, pool));
    }
    NEB_TRY(neb__tok_open(d->tok_path, &d->tok_cfg, &d->tok));
    if (!t->frame && known) NEB_TRY(find_frame(d, folder));
    return t->file || folders ? NEB_OK : check_options(d);
}

/* ---- the language to translate into -------------------------------------------------------------------- */

void neb__data_target_lang(const struct neb_job_data *c, char out[NEB_LANG_SIZE])
{
    neb__data_lang_of(c, !c->flip, out);
}

void neb__data_source_lang(const struct neb_job_data *c, char out[NEB_LANG_SIZE])
{
    neb__data_lang_of(c, c->flip, out);
}

/* With more than one target language, a token in front of the source tells the model which one is wanted. */
bool neb__data_tagged(const struct neb_data *d)
{
    char first[NEB_LANG_SIZE] = "", lang[NEB_LANG_SIZE];
    if (d->frame || d->job->objective->sides < 2) return false;
    for (int i = 0; i < d->job->n_data; i++) {
        neb__data_lang_of(&d->job->data[i], !d->job->data[i].flip, lang);
        if (*first && *lang && strcmp(first, lang)) return true;
        if (*lang) memcpy(first, lang, sizeof first);
    }
    return false;
}

/* The special tokens around the texts of a corpus. */
static neb_status frame_of(const struct neb_data *d, const struct neb_job_data *c,
                           struct neb_frame_tokens *out)
{
    char lang[2][NEB_LANG_SIZE];
    *out = NEB_NO_FRAME;
    neb__data_lang_of(c, 0, lang[0]);
    neb__data_lang_of(c, 1, lang[1]);
    if (d->frame) return neb__frame_find(d->frame, d->tok, lang[c->flip], lang[!c->flip], out);
    if (neb__data_tagged(d)) out->lead = neb__tok_lang(d->tok, lang[!c->flip]);
    return NEB_OK;
}

void neb__data_wants(const struct neb_data *d, bool *from, bool *to)
{
    struct neb_frame_tokens t = NEB_NO_FRAME;
    *from = *to = false;
    if (!d->tok) return; /* nor is the whole model here */
    *from = d->frame && neb__frame_wants_from(d->frame);
    *to = d->frame ? neb__frame_wants_to(d->frame) : neb__data_tagged(d);
    if (d->frame && neb__frame_bans_start(d->frame) && d->job->n_data &&
        frame_of(d, &d->job->data[0], &t) == NEB_OK)
        *to = t.lead >= 0; /* Marian: where it knows several */
}

void neb__data_teachers_lang(const struct neb_data *d, int32_t index, char out[NEB_LANG_SIZE])
{
    const char *name = index >= 0 && index < d->n_langs ? d->langs[index] : "";
    const size_t n = strlen(name);
    char part[2 * NEB_LANG_SIZE + 2];
    snprintf(out, NEB_LANG_SIZE, "%s", name);
    for (int i = 0; n && neb__list_part(d->job->distill.langs, i, part, sizeof part); i++)
        if (!strncmp(part, name, n) && part[n] == '=')
            snprintf(out, NEB_LANG_SIZE, "%.*s", NEB_LANG_SIZE - 1, part + n + 1);
}

/* Every corpus of a model with languages has to name its two, and the tokenizer has to know them. */
static neb_status check_frames(const struct neb_data *d)
{
    struct neb_frame_tokens unused;
    for (int i = 0; d->frame && i < d->job->n_data; i++) {
        char path[32];
        snprintf(path, sizeof path, "data[%d]", i);
        if (frame_of(d, &d->job->data[i], &unused) != NEB_OK)
            return neb__doc_fail(&d->job->doc, path, "%s", neb_last_error());
    }
    return NEB_OK;
}

/* Without its token a model would learn to translate into whatever comes. */
static neb_status check_tags(const struct neb_data *d)
{
    if (!neb__data_tagged(d)) return NEB_OK;
    for (int i = 0; i < d->job->n_data; i++) {
        const struct neb_job_data *c = &d->job->data[i];
        char lang[NEB_LANG_SIZE], path[32];
        neb__data_lang_of(c, !c->flip, lang);
        snprintf(path, sizeof path, "data[%d]", i);
        if (!*lang)
            return neb__doc_fail(
                &d->job->doc, path,
                "the job translates into several languages: every corpus must say into which "
                "(lang: en-de)");
        if (neb__tok_lang(d->tok, lang) < 0)
            return neb__doc_fail(
                &d->job->doc, path,
                "the job translates into several languages, and %s has no token <2%s> to ask for this one: "
                "train a tokenizer that has it (without tokenizer.file, or with `nebula-i corpus tokenizer "
                "--langs …`), or train a model for each language",
                d->tok_path, lang);
    }
    return NEB_OK;
}

/* ---- what must be here ---------------------------------------------------------------------------------- */

/* Checks that every corpus can be read, before anything long begins. */
static neb_status all_there(const struct neb_data *d)
{
    int mine = 0;
    for (int i = 0; i < d->job->n_data; i++) {
        const struct neb_job_data *c = &d->job->data[i];
        if (!neb__job_has(d->job, c)) continue;
        mine += !strcmp(c->use, "train");
        neb_status status = neb__data_there(d, c);
        if (status != NEB_OK) return neb__fail(status, "%s", neb_last_error());
    }
    if (mine || d->job->at < 0 || d->job->plan != NEB_STRATEGY_PIPELINE) return NEB_OK;
    return neb__doc_fail(
        &d->job->doc, "data",
        "site '%s' has no corpus to train on (use: train): the last site of a pipeline has the loss, "
        "which needs the text, and the first one the embedding; only sites between them do without",
        d->job->site[d->job->at].name);
}

/* A site that needs no text has it if all its corpora are there. */
static bool lacks_text(const struct neb_data *d)
{
    char why[400] = "";
    int mine = 0;
    if (neb__site_needs_text(d->job)) return false;
    for (int i = 0; i < d->job->n_data; i++) {
        if (!neb__job_has(d->job, &d->job->data[i])) continue;
        if (!*why && neb__data_there(d, &d->job->data[i]) != NEB_OK)
            snprintf(why, sizeof why, "%s", neb_last_error());
        mine += !strcmp(d->job->data[i].use, "train");
    }
    if (!*why && mine) return false;
    neb__info("site '%s' has no text and needs none, since neither the embedding nor the loss is here (%s)",
              d->job->site[d->job->at].name, *why ? why : "the job has none for it");
    return true;
}

/* A site without text trains no tokenizer. Where it has one, its sites compare it. */
static neb_status find_tokenizer(struct neb_data *d)
{
    const struct neb_job *j = d->job;
    const struct neb_job_tokenizer *t = &j->tokenizer;
    struct stat st;
    int lock = -1;
    if (t->file && stat(t->file, &st))
        return neb__fail(
            NEB_ERR_NOTFOUND,
            "the tokenizer %s is not here: this site needs no text, but the size of the vocabulary; bring "
            "the file",
            t->file);
    snprintf(d->tok_path, sizeof d->tok_path, "%s/tokenizer.model", d->dir);
    if (t->file || (j->init.from && !t->own) || !stat(d->tok_path, &st))
        return open_tokenizer(d, NULL, &lock);
    neb__info("there is no tokenizer here: its size is taken to be tokenizer.vocab, %" PRId64, t->vocab);
    return NEB_OK;
}

static neb_status prepare_bare(struct neb_data *d)
{
    NEB_TRY(find_tokenizer(d));
    neb__settle_models(d->job, d->tok ? neb__tok_vocab(d->tok) : d->job->tokenizer.vocab, &d->models);
    return NEB_OK;
}

static neb_status prepare_text(struct neb_data *d, struct neb_pool *pool)
{
    int lock = -1;
    neb_status s = open_tokenizer(d, pool, &lock);
    if (s == NEB_OK) s = check_tags(d);
    if (s == NEB_OK) s = check_frames(d);
    if (s == NEB_OK) s = neb__data_open_sets(d, pool, &lock);
    if (lock >= 0) close(lock);
    if (s == NEB_OK) neb__settle_models(d->job, neb__tok_vocab(d->tok), &d->models);
    return s;
}

/* trains: the model is trained here, so it must fit. */
static neb_status prepare(struct neb_data *d, struct neb_pool *pool, bool trains)
{
    char lang[NEB_LANG_SIZE];
    snprintf(d->dir, sizeof d->dir, d->job->cache ? "%s" : "%s/data",
             d->job->cache ? d->job->cache : d->job->out);
    d->textless = lacks_text(d);
    if (!d->textless) NEB_TRY(all_there(d));
    if (trains) NEB_TRY(neb__memory_foresee(d->job));
    NEB_TRY(neb__file_make_dir(d->dir, 0700));
    for (int i = 0; i < d->job->n_data; i++)
        for (int s = 0; s <= neb__data_is_pair(&d->job->data[i]); s++) {
            neb__data_lang_of(&d->job->data[i], s, lang);
            add_lang(d, lang);
        }
    return d->textless ? prepare_bare(d) : prepare_text(d, pool);
}

static neb_status prepare_job(const struct neb_job *job, bool trains, struct neb_data *out)
{
    *out = (struct neb_data){.job = job};
    struct neb_pool *pool;
    NEB_TRY(neb__pool_create((int)job->train.threads, &pool));
    neb_status status = prepare(out, pool, trains);
    neb__pool_destroy(pool);
    if (status != NEB_OK) neb__data_free(out);
    return status;
}

neb_status neb__data_prepare(const struct neb_job *job, struct neb_data *out)
{
    return prepare_job(job, true, out);
}

neb_status neb__data_prepare_plan(const struct neb_job *job, struct neb_data *out)
{
    return prepare_job(job, false, out);
}

void neb__data_free(struct neb_data *d)
{
    for (int i = 0; i < NEB_JOB_DATA; i++) neb__set_close(d->set[i]);
    neb__tok_close(d->tok);
    memset(d, 0, sizeof *d);
}

neb_status neb__data_wanted(const struct neb_data *d, const char *what, const char *instead)
{
    if (!d->textless) return NEB_OK;
    return neb__fail(NEB_ERR_UNSUPPORTED, "%s reads batches of the job's text, and site '%s' has none: %s",
                     what, d->job->site[d->job->at].name, instead);
}

/* ---- streams ------------------------------------------------------------------------------------------- */

/* A number of the language for sampling, or of the two of a pair in the order of translation; 0: the job does not say. */
static int sampled_language(const struct neb_job_data *c, const struct neb_source *s)
{
    if (!c->lang) return 0;
    return 1 + s->lang[0] * (2 * NEB_JOB_DATA + 1) + (neb__data_is_pair(c) ? s->lang[1] + 1 : 0);
}

static neb_status collect(const struct neb_data *d, const char *use, struct neb_source *list, int *count)
{
    int n = 0;
    for (int i = 0; i < d->job->n_data; i++) {
        const struct neb_job_data *c = &d->job->data[i];
        if (strcmp(c->use, use) || !neb__job_has(d->job, c)) continue;
        char lang[2][NEB_LANG_SIZE];
        neb__data_lang_of(c, 0, lang[0]);
        neb__data_lang_of(c, 1, lang[1]);
        struct neb_source s = {.set = d->set[i], .weight = c->weight, .flip = c->flip};
        s.lang[0] = lang_index(d, lang[neb__data_is_pair(c) && c->flip]);
        s.lang[1] = neb__data_is_pair(c) ? lang_index(d, lang[!c->flip]) : 0;
        s.language = sampled_language(c, &s);
        NEB_TRY(frame_of(d, c, &s.frame));
        list[n++] = s;
    }
    *count = n;
    return NEB_OK;
}

static neb_status make_stream(const struct neb_data *d, const char *use, int64_t part, int64_t parts,
                              bool single, struct neb_batches **out)
{
    const struct neb_job_train *t = &d->job->train;
    struct neb_source sources[NEB_JOB_DATA];
    bool training = !strcmp(use, "train") && !single;
    struct neb_batches_cfg cfg = {.seed = (uint64_t)d->job->seed,
                                  .part = part,
                                  .parts = parts,
                                  .source = sources,
                                  .temperature = t->temperature,
                                  .once = !training,
                                  .tokens = (int32_t)t->tokens,
                                  .max_len = (int32_t)t->max_len,
                                  .mask_share = t->mask};
    if (d->textless) return neb__quiet(NEB_ERR_NOTFOUND, "this site has no text");
    NEB_TRY(collect(d, use, sources, &cfg.sources));
    if (!cfg.sources) return neb__quiet(NEB_ERR_NOTFOUND, "no corpus with use: %s", use);
    d->job->objective->set_batches(&cfg);
    neb__vocab_of(d->tok, &cfg.vocab);
    if (single) {
        cfg.tokens = cfg.max_len > 16 ? cfg.max_len : 16;
        cfg.max_seqs = 1;
    }
    return neb__batches_create(&cfg, out);
}

neb_status neb__data_stream(const struct neb_data *d, const char *use, int64_t part, int64_t parts,
                            struct neb_batches **out)
{
    return make_stream(d, use, part, parts, false, out);
}

neb_status neb__data_samples(const struct neb_data *d, struct neb_batches **out)
{
    return make_stream(d, "train", 0, 1, true, out);
}
