/* test_data.c: a job's text: which tokenizer cuts it,
 * which files are made again and which are used as they are. */
#include "check.h"
#include "words.h"
#include "base/file.h"
#include "task/data.h"
#include "task/folder.h"
#include "text/corpus.h"

#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[200];

struct scene {
    struct neb_job job;
    struct neb_data data;
};

static const char *in(const char *name)
{
    static char path[8][300];
    static int at;
    at = (at + 1) % 8;
    snprintf(path[at], sizeof path[at], "%s/%s", dir, name);
    return path[at];
}

static int next(void *arg, const char **text, size_t *n)
{
    static char line[1024];
    int *i = arg;
    *n = words_sentence(*i % 2, (uint64_t)*i, 0, line, sizeof line);
    *text = line;
    return ++*i <= 300;
}

static void save_tokenizer(const char *name, const char *const *langs)
{
    struct neb_tok_train cfg = {.type = "bpe", .vocab = 400, .langs = langs, .coverage = 1, .threads = 1};
    struct neb_buf model;
    int i = 0;
    neb__buf_init(&model, 16 << 20);
    assert_ok(neb__tok_train(&cfg, next, &i, &model));
    assert_ok(neb__file_replace(in(name), model.data, model.len, 0644));
    neb__buf_free(&model);
}

/* text: the job, in which @ stands for the folder. */
static void write_job(const char *text)
{
    FILE *f = fopen(in("job.yaml"), "w");
    assert_non_null(f);
    for (const char *c = text; *c; c++)
        if (*c == '@')
            fputs(dir, f);
        else
            fputc(*c, f);
    fclose(f);
}

/* NEB_OK owes a close. */
static neb_status prepare(const char *text, struct scene *s)
{
    write_job(text);
    assert_ok(neb__job_read(in("job.yaml"), NULL, 0, &s->job));
    neb_status status = neb__data_prepare(&s->job, &s->data);
    if (status != NEB_OK) neb__job_free(&s->job);
    return status;
}

static void close_scene(struct scene *s)
{
    neb__data_free(&s->data);
    neb__job_free(&s->job);
}

static void refused(const char *text, const char *says)
{
    struct scene s;
    check_log_quiet();
    assert_status(prepare(text, &s), NEB_ERR_CONFIG);
    check_log_restore();
    if (!strstr(neb_last_error(), says)) fail_msg("%s, expected: %s", neb_last_error(), says);
}

#define SMALL "train: {max_len: 32, tokens: 64, threads: 1}\n"

/* ---- which tokenizer ----------------------------------------------------------------------------------- */

static void other_options_are_noticed(void **state)
{
    (void)state;
    struct scene s;
    assert_ok(prepare("out: @/options\ntokenizer: {vocab: 60}\n" SMALL "data:\n  - {file: @/aa}\n", &s));
    int32_t n = neb__tok_vocab(s.data.tok);
    close_scene(&s);
    refused("out: @/options\ntokenizer: {vocab: 70}\n" SMALL "data:\n  - {file: @/aa}\n", "the job asks for");
    refused("out: @/options\ntokenizer: {vocab: 60, type: bpe}\n" SMALL "data:\n  - {file: @/aa}\n",
            "remove that file to train it anew");
    assert_int_equal(unlink(in("options/data/tokenizer.model")), 0);
    assert_ok(prepare("out: @/options\ntokenizer: {vocab: 70}\n" SMALL "data:\n  - {file: @/aa}\n", &s));
    assert_int_not_equal(neb__tok_vocab(s.data.tok), n);
    close_scene(&s);
    save_tokenizer("options/data/tokenizer.model", NULL); /* a user's own tokenizer is used as it is */
    assert_ok(prepare("out: @/options\ntokenizer: {vocab: 90}\n" SMALL "data:\n  - {file: @/aa}\n", &s));
    assert_int_equal(neb__tok_vocab(s.data.tok), 400);
    close_scene(&s);
}

/* Returns the ids of the first text of a job over one corpus. */
static int32_t first_ids(const char *text, int32_t ids[64])
{
    struct scene s;
    assert_ok(prepare(text, &s));
    int32_t n = neb__set_length(s.data.set[0], 0, 0);
    assert_true(n > 0 && n <= 64);
    assert_ok(neb__set_copy(s.data.set[0], 0, 0, 0, n, ids));
    close_scene(&s);
    return n;
}

static void case_makes_other_tokens(void **state)
{
    (void)state;
    static const char vocab[] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nabend\nAbend\n", text[] = "Abend\n";
    int32_t ids[64];
    assert_ok(neb__file_replace(in("vocab.txt"), vocab, strlen(vocab), 0644));
    assert_ok(neb__file_replace(in("abend"), text, strlen(text), 0644));
    assert_int_equal(
        first_ids("out: @/case\ntokenizer: {file: @/vocab.txt}\n" SMALL "data:\n  - {file: @/abend}\n", ids),
        1);
    assert_int_equal(ids[0], 5);
    assert_int_equal(first_ids("out: @/case\ntokenizer: {file: @/vocab.txt, cased: yes}\n" SMALL
                               "data:\n  - {file: @/abend}\n",
                               ids),
                     1);
    assert_int_equal(ids[0], 6);
}

/* Makes the folder of an encoder whose tokenizer is numbered as XLM-R's. */
static void save_folder(const char *name)
{
    struct neb_model_yaml f;
    struct neb_device_config one = {.threads = 1};
    struct neb_model *model;
    neb_device *device;
    neb_params *params;
    struct neb_tok_cfg how = {.layout = NEB_TOK_XLMR};
    struct neb_peft_config peft;
    struct neb_model_config config;
    assert_ok(neb__model_config_init("bert", &config));
    config.vocab = 402, config.hidden = 8, config.layers = 1, config.heads = 2, config.ffn = 8;
    assert_ok(neb__peft_config_init(&peft));
    assert_ok(neb_device_open("cpu", &one, &device));
    assert_ok(neb_params_create(&params));
    assert_ok(neb__model_create(&config, &peft, "", NULL, params, &model));
    assert_ok(neb_params_ready(params, device, 1));
    assert_ok(neb__model_yaml_init(&f));
    assert_ok(neb__folder_describe(&f, "mlm", &config, &peft, &how));
    assert_ok(neb__folder_write(&f, in(name), model, in("tok.model")));
    neb__model_yaml_free(&f);
    neb__model_destroy(model);
    neb_params_destroy(params);
    neb_device_close(device);
    neb__model_config_free(&config);
    neb__peft_config_free(&peft);
}

#define LINES SMALL "data:\n  - {file: @/aa}\n"

/* The ids are the model's, whichever way a job comes to the tokenizer of its folder.
 * Another numbering makes another tokenizer. */
static void numbers_come_with_the_folder(void **state)
{
    (void)state;
    static const char *const shifted[] = {
        "out: @/n\ninit: {from: @/model}\n" LINES,
        "out: @/n\ntokenizer: {file: @/model/tokenizer.model}\n" LINES,
        "out: @/n\ntokenizer: {file: @/tok.model}\ninit: {from: @/model}\n" LINES,
        "out: @/n\ntokenizer: {file: @/tok.model, numbering: xlm-r}\n" LINES,
    };
    int32_t want[64], got[64], n;
    save_folder("model");
    n = first_ids("out: @/n\ntokenizer: {file: @/tok.model}\n" LINES, want);
    for (size_t i = 0; i < sizeof shifted / sizeof *shifted; i++) {
        assert_int_equal(first_ids(shifted[i], got), n);
        for (int32_t k = 0; k < n; k++) assert_int_equal(got[k], want[k] + 1);
    }
    first_ids("out: @/n\ntokenizer: {file: @/model/tokenizer.model, numbering: plain}\n" LINES, got);
    assert_memory_equal(got, want, (size_t)n * sizeof *got);
}

/* ---- languages ----------------------------------------------------------------------------------------- */

#define TRANSLATE "task: translate\ntrain: {max_len: 256, tokens: 256, threads: 1}\n"

/* A model for several target languages is told which one to use. Each language must have its token, or the
 * job is refused. */
static void each_target_language_has_its_token(void **state)
{
    (void)state;
    struct scene s;
    struct neb_batches *stream;
    struct neb_batch *b;
    assert_ok(prepare("out: @/tags\ntokenizer: {vocab: 60}\n" TRANSLATE
                      "data:\n  - {file: @/pairs, lang: aa-bb}\n  - {file: @/pairs, lang: aa-cc}\n",
                      &s));
    assert_true(neb__data_tagged(&s.data));
    assert_ok(neb__data_stream(&s.data, "train", 0, 1, &stream));
    assert_ok(neb__batches_batch(stream, &b));
    assert_ok(neb__batches_next(stream, b));
    int32_t first = b->side[0].ids[0];
    assert_true(first == neb__tok_lang(s.data.tok, "bb") || first == neb__tok_lang(s.data.tok, "cc"));
    neb__batch_free(b);
    neb__batches_free(stream);
    close_scene(&s);
    refused("out: @/tags2\ntokenizer: {file: @/tok.model}\n" TRANSLATE
            "data:\n  - {file: @/pairs, lang: aa-bb}\n  - {file: @/pairs, lang: aa-cc}\n",
            "no token <2cc>");
    refused("out: @/tags2\ntokenizer: {file: @/tok.model}\n" TRANSLATE
            "data:\n  - {file: @/pairs, lang: aa-bb}\n  - {file: @/pairs, lang: bb-aa}\n"
            "  - {file: @/aa, second: @/aa}\n",
            "every corpus must say into which");
}

/* A corpus without a language does not count as one of another language,
 * and does not hide a corpus that follows it. */
static void a_corpus_may_say_no_language(void **state)
{
    (void)state;
    struct scene s;
    assert_ok(prepare("out: @/quiet\ntokenizer: {vocab: 60}\n" TRANSLATE
                      "data:\n  - {file: @/aa, second: @/aa}\n  - {file: @/pairs, lang: aa-bb}\n",
                      &s));
    assert_false(neb__data_tagged(&s.data));
    assert_true(neb__tok_lang(s.data.tok, "aa") >= 0 && neb__tok_lang(s.data.tok, "bb") >= 0);
    close_scene(&s);
}

/* A site does not look for corpora that belong to another site. */
static void corpora_of_other_sites_may_be_elsewhere(void **state)
{
    (void)state;
    struct scene s;
    write_job("out: @/mine\ntask: mlm\ntokenizer: {file: @/tok.model}\n" SMALL
              "sites: [{name: a}, {name: b}]\n"
              "data:\n  - {file: @/aa, lang: aa, site: a}\n  - {file: @/elsewhere, lang: bb, site: b}\n");
    assert_ok(neb__job_read(in("job.yaml"), NULL, 0, &s.job));
    assert_ok(neb__job_at(&s.job, "a"));
    assert_ok(neb__data_prepare(&s.job, &s.data));
    assert_non_null(s.data.set[0]);
    assert_null(s.data.set[1]);
    close_scene(&s);
    assert_ok(neb__job_read(in("job.yaml"), NULL, 0, &s.job));
    assert_ok(neb__job_at(&s.job, "b"));
    check_log_quiet();
    assert_status(neb__data_prepare(&s.job, &s.data), NEB_ERR_NOTFOUND);
    check_log_restore();
    neb__job_free(&s.job);
}

/* Which sites need the text follows from where the model is cut. Those that do not go without where it is not there. */
static void a_stage_between_the_ends_needs_no_text(void **state)
{
    (void)state;
    static const struct {
        const char *model, *sites, *site;
        bool needs;
    } cases[] = {
        {"tied: no", "{name: a}, {name: b}", "b", true},
        {"tied: no", "{name: a}, {name: b}, {name: c}", "a", true},
        {"tied: no", "{name: a}, {name: b}, {name: c}", "b", false},
        {"tied: no", "{name: a}, {name: b}, {name: c}", "c", true},
        {"tied: yes", "{name: a}, {name: b}", "b", false}, /* paris -> tokyo -> paris */
        {"tied: no", "{name: a, layers: 2, last_layers: 2}, {name: b, layers: 4}", "b", false},
        {"tied: no", "{name: a, layers: 2}, {name: b, layers: 6}", "b", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[700];
        struct scene s;
        snprintf(text, sizeof text,
                 "out: @/stage%zu\ntask: causal\nstrategy: pipeline\ntokenizer: {vocab: 321}\n"
                 "model: {family: gpt2, layers: 8, hidden: 32, heads: 2, %s}\n" SMALL "sites: [%s]\n"
                 "data:\n  - {file: @/elsewhere}\n",
                 i, cases[i].model, cases[i].sites);
        write_job(text);
        assert_ok(neb__job_read(in("job.yaml"), NULL, 0, &s.job));
        assert_ok(neb__job_at(&s.job, cases[i].site));
        check_log_quiet();
        neb_status status = neb__data_prepare(&s.job, &s.data);
        check_log_restore();
        if (status != (cases[i].needs ? NEB_ERR_NOTFOUND : NEB_OK))
            fail_msg("case %zu: %s", i, neb_last_error());
        if (status == NEB_OK) {
            assert_true(s.data.textless && !s.data.tok);
            assert_int_equal(s.data.models.model.vocab, 321);
            neb__data_free(&s.data);
        }
        neb__job_free(&s.job);
    }
}

/* ---- copies -------------------------------------------------------------------------------------------- */

static void no_tokenizer_is_trained_that_copies_cannot_use(void **state)
{
    (void)state;
    refused("out: @/unigram\ntokenizer: {vocab: 60}\n" SMALL "data:\n  - {file: @/aa, copies: 2}\n",
            "needs tokenizer.type: bpe");
    assert_int_not_equal(access(in("unigram/data/tokenizer.model"), F_OK), 0);
    struct scene s;
    assert_ok(prepare("out: @/unigram\ntokenizer: {vocab: 60, type: bpe}\n" SMALL
                      "data:\n  - {file: @/aa, copies: 2}\n",
                      &s));
    close_scene(&s);
}

/* ---- processes that end early, and several at once ----------------------------------------------------- */

static const char plain[] =
    "out: @/plain\ntokenizer: {vocab: 60}\n" SMALL "data:\n  - {file: @/aa, lang: aa}\n";

static void a_killed_tokenising_is_made_again(void **state)
{
    (void)state;
    struct scene s;
    glob_t sets;
    char left[2][400];
    assert_ok(prepare(plain, &s));
    int64_t n = neb__set_count(s.data.set[0]);
    close_scene(&s);
    assert_int_equal(glob(in("plain/data/*/set.neb"), 0, NULL, &sets), 0);
    assert_int_equal(sets.gl_pathc, 1);
    char *manifest = sets.gl_pathv[0];
    assert_int_equal(unlink(manifest), 0); /* kill -9 leaves shards, one of them unfinished */
    *strrchr(manifest, '/') = 0;
    snprintf(left[0], sizeof left[0], "%s/0000000000000001-00007.tok", manifest);
    snprintf(left[1], sizeof left[1], "%s/0000000000000001-00008.tok.tmp", manifest);
    for (int i = 0; i < 2; i++) assert_ok(neb__file_replace(left[i], "x", 1, 0644));
    globfree(&sets);
    assert_ok(prepare(plain, &s));
    assert_int_equal(neb__set_count(s.data.set[0]), n);
    close_scene(&s);
    for (int i = 0; i < 2; i++) assert_int_not_equal(access(left[i], F_OK), 0);
}

/* ---- text that moves, changes or goes --------------------------------------------------------------------------------- */

static const char moving[] =
    "out: @/moving\ntokenizer: {file: @/tok.model}\n" SMALL "data:\n  - {file: @/text, lang: aa}\n";

static int sets_in(const char *folder)
{
    glob_t sets;
    char pattern[400];
    snprintf(pattern, sizeof pattern, "%s/*/set.neb", in(folder));
    int n = glob(pattern, 0, NULL, &sets) ? 0 : (int)sets.gl_pathc;
    if (n) globfree(&sets);
    return n;
}

static void put_text(const char *name, const char *text)
{
    assert_ok(neb__file_replace(in(name), text, strlen(text), 0644));
}

static void date_back(const char *name)
{
    const struct timespec then[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
    assert_int_equal(utimensat(AT_FDCWD, in(name), then, 0), 0);
}

/* The tokens follow the bytes of the text, not its name or date. */
static void text_is_known_by_its_bytes(void **state)
{
    (void)state;
    struct scene s;
    put_text("text", "ba be bi\nbo bu\n");
    date_back("text");
    assert_ok(prepare(moving, &s));
    close_scene(&s);
    assert_int_equal(sets_in("moving/data"), 1);
    put_text("text", "ba be bi\nbo bu\n"); /* another date */
    assert_ok(prepare(moving, &s));
    close_scene(&s);
    put_text("elsewhere.text", "ba be bi\nbo bu\n"); /* another name */
    assert_ok(prepare(
        "out: @/moving\ntokenizer: {file: @/tok.model}\n" SMALL "data:\n  - {file: @/elsewhere.text}\n", &s));
    close_scene(&s);
    assert_int_equal(sets_in("moving/data"), 1);
    put_text("text", "ba be bi\nbo bo\n"); /* of equal size and date */
    date_back("text");
    assert_ok(prepare(moving, &s));
    close_scene(&s);
    assert_int_equal(sets_in("moving/data"), 2);
}

static void prepared_text_may_be_taken_away(void **state)
{
    (void)state;
    struct scene s;
    put_text("text", "ba be bi\nbo bu\n");
    assert_ok(prepare(moving, &s));
    close_scene(&s);
    assert_int_equal(unlink(in("text")), 0);
    assert_ok(prepare(moving, &s));
    assert_int_equal(neb__set_count(s.data.set[0]), 2);
    close_scene(&s);
    check_log_quiet(); /* with other limits it was never tokenised */
    assert_status(prepare("out: @/moving\ntokenizer: {file: @/tok.model}\n"
                          "train: {max_len: 40, tokens: 64}\ndata:\n  - {file: @/text, lang: aa}\n",
                          &s),
                  NEB_ERR_NOTFOUND);
    check_log_restore();
    if (!strstr(neb_last_error(), "bring the text back")) fail_msg("%s", neb_last_error());
}

static void a_pattern_is_one_text_of_several_files(void **state)
{
    (void)state;
    struct scene s;
    static const char job[] =
        "out: @/many\ntokenizer: {vocab: 60}\n" SMALL "data:\n  - {file: '@/part*.txt'}\n";
    words_file(in("part2.txt"), 0, -1, 100);
    words_file(in("part1.txt"), 1, -1, 50);
    assert_ok(prepare(job, &s));
    int64_t n = neb__set_count(s.data.set[0]);
    assert_true(n >= 150);
    close_scene(&s);
    words_file(in("part3.txt"), 0, -1, 30);
    assert_ok(prepare(job, &s));
    assert_true(neb__set_count(s.data.set[0]) > n);
    close_scene(&s);
    check_log_quiet();
    assert_status(prepare("out: @/many\n" SMALL "data:\n  - {file: '@/none*.txt'}\n", &s), NEB_ERR_NOTFOUND);
    check_log_restore();
    refused("out: @/many2\ntokenizer: {file: @/tok.model}\n" TRANSLATE
            "data:\n  - {file: '@/part*.txt', second: @/aa, lang: aa-bb}\n",
            "belong together one by one");
}

/* ---- sets that were prepared elsewhere -------------------------------------------------------------------- */

static void tokenise(const char *tokenizer, const char *text, const char *lang2, const char *set)
{
    struct neb_tok *tok;
    struct neb_pool *pool;
    struct neb_corpus_stats stats;
    const char *paths[] = {in(text), NULL};
    struct neb_corpus_cfg cfg = {
        .paths = paths, .sides = lang2 ? 2 : 1, .lang = {"aa", lang2}, .max_tokens = 30};
    assert_ok(neb__tok_open(in(tokenizer), NULL, &tok));
    assert_ok(neb__pool_create(1, &pool));
    assert_ok(neb__corpus_tokenise(&cfg, tok, pool, in(set), &stats));
    neb__pool_destroy(pool);
    neb__tok_close(tok);
}

#define SET_JOB(data) "out: @/ready\ntokenizer: {file: @/tok.model}\n" SMALL "data:\n  - {" data "}\n"

static void a_prepared_set_needs_no_text(void **state)
{
    (void)state;
    struct scene s;
    struct neb_batches *stream;
    struct neb_batch *b;
    tokenise("tok.model", "aa", NULL, "set");
    assert_ok(prepare(SET_JOB("file: @/set, lang: aa"), &s));
    assert_ok(neb__data_stream(&s.data, "train", 0, 1, &stream));
    assert_ok(neb__batches_batch(stream, &b));
    assert_ok(neb__batches_next(stream, b));
    neb__batch_free(b);
    neb__batches_free(stream);
    close_scene(&s);
    assert_int_equal(sets_in("ready/data"), 0); /* it is used where it is */
    refused(SET_JOB("file: @/set, lang: bb"), "tokenised as language 'aa'");
    refused(SET_JOB("file: @/set, lang: aa-bb"), "a set of single texts");
    refused(SET_JOB("file: @/set, copies: 2"), "leave them out");
    refused("out: @/ready2\n" SMALL "data:\n  - {file: @/set}\n", "name its tokenizer as tokenizer.file");
    refused("out: @/ready\ntokenizer: {file: @/other.model}\n" SMALL "data:\n  - {file: @/set}\n",
            "with another tokenizer");
    tokenise("tok.model", "pairs", "bb", "pair-set");
    refused(SET_JOB("file: @/pair-set"), "a set of pairs");
    refused(SET_JOB("file: @/ready"), "no token set");
    assert_int_equal(truncate(in("set/0000000000000001-00000.tok"), 300), 0);
    check_log_quiet();
    assert_status(prepare(SET_JOB("file: @/set"), &s), NEB_ERR_CORRUPT);
    check_log_restore();
}

static void several_processes_share_a_cache(void **state)
{
    (void)state;
    enum { PROCESSES = 4 };
    pid_t child[PROCESSES];
    write_job("out: @/shared\ntokenizer: {vocab: 60}\ntrain: {max_len: 256, tokens: 256, threads: 1}\n"
              "data:\n  - {file: @/aa, lang: aa}\n  - {file: @/pairs, lang: aa-bb}\n");
    fflush(NULL);
    for (int i = 0; i < PROCESSES; i++) {
        struct scene s;
        if ((child[i] = fork())) continue;
        bool well = neb__job_read(in("job.yaml"), NULL, 0, &s.job) == NEB_OK &&
                    neb__data_prepare(&s.job, &s.data) == NEB_OK;
        if (well) close_scene(&s);
        _exit(!well);
    }
    for (int i = 0; i < PROCESSES; i++) {
        int end;
        assert_int_equal(waitpid(child[i], &end, 0), child[i]);
        assert_true(WIFEXITED(end) && WEXITSTATUS(end) == 0);
    }
}

/* ---- lengths ------------------------------------------------------------------------------------------- */

#define PAIRS                                                                               \
    "tokenizer: {file: @/tok.model}\ntrain: {max_len: 40, tokens: 64, threads: 1}\ndata:\n" \
    "  - {file: @/pairs, lang: aa-bb}\n"

/* One limit holds for two texts that form one sequence together, and for each of two sequences by itself.
 * Every sample of a set can be drawn. */
static void pairs_too_long_together_are_left_out(void **state)
{
    (void)state;
    struct scene s;
    int64_t n[2];
    for (int apart = 0; apart < 2; apart++) {
        struct neb_batches *stream;
        struct neb_batch *b;
        int32_t longest = 0;
        assert_ok(prepare(apart ? "task: translate\nout: @/lengths\n" PAIRS : "out: @/lengths\n" PAIRS, &s));
        n[apart] = neb__set_count(s.data.set[0]);
        for (int64_t i = 0; i < n[apart]; i++) {
            int32_t both = neb__set_length(s.data.set[0], i, 0) + neb__set_length(s.data.set[0], i, 1);
            if (both > longest) longest = both;
        }
        assert_true(apart ? longest > 37 : longest <= 37 && longest > 30);
        assert_ok(neb__data_stream(&s.data, "train", 0, 1, &stream));
        assert_ok(neb__batches_batch(stream, &b));
        for (int i = 0; i < 200; i++) assert_ok(neb__batches_next(stream, b));
        assert_int_equal(neb__batches_stats(stream).skipped, 0);
        neb__batch_free(b);
        neb__batches_free(stream);
        close_scene(&s);
    }
    assert_true(n[0] > 0 && n[0] < n[1]);
    refused("out: @/lengths\ntokenizer: {file: @/tok.model}\ntrain: {max_len: 6, tokens: 64, threads: 1}\n"
            "data:\n  - {file: @/pairs, lang: aa-bb}\n",
            "pairs are longer than the 3 tokens allowed");
}

static int set_up(void **state)
{
    (void)state;
    check_make_dir(dir, sizeof dir);
    words_file(in("aa"), 0, -1, 200);
    words_file(in("pairs"), 0, 1, 200);
    save_tokenizer("tok.model", (const char *const[]){"aa", "bb", NULL});
    save_tokenizer("other.model", (const char *const[]){"aa", NULL});
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    check_remove_dir(dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_tokenising_is_made_again),
        cmocka_unit_test(several_processes_share_a_cache),
        cmocka_unit_test(text_is_known_by_its_bytes),
        cmocka_unit_test(prepared_text_may_be_taken_away),
        cmocka_unit_test(a_pattern_is_one_text_of_several_files),
        cmocka_unit_test(a_prepared_set_needs_no_text),
        cmocka_unit_test(pairs_too_long_together_are_left_out),
        cmocka_unit_test(other_options_are_noticed),
        cmocka_unit_test(case_makes_other_tokens),
        cmocka_unit_test(numbers_come_with_the_folder),
        cmocka_unit_test(each_target_language_has_its_token),
        cmocka_unit_test(a_corpus_may_say_no_language),
        cmocka_unit_test(corpora_of_other_sites_may_be_elsewhere),
        cmocka_unit_test(a_stage_between_the_ends_needs_no_text),
        cmocka_unit_test(no_tokenizer_is_trained_that_copies_cannot_use),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
