/* verb_corpus.c: `nebula-i corpus …`: getting text, training a tokenizer, tokenising into shards, checking them;
 * or all of it for a job, ahead of its training. */
#include "cli/verb.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "cli/reference.h"
#include "task/data.h"
#include "task/folder.h"
#include "text/corpus.h"
#include "text/help_pages.h"
#include "text/interface_strings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LANGS = 256, MAX_MODEL = 256 << 20 };

/* Cuts "en,de,fr" in place; the list ends with NULL. Returns how many, or -1 when there are too many. */
static int cut_list(char *text, const char **out, int cap)
{
    int n = 0;
    for (char *p = text ? strtok(text, ",") : NULL; p; p = strtok(NULL, ",")) {
        if (n == cap - 1) return -1;
        out[n++] = p;
    }
    out[n] = NULL;
    return n;
}

/* argv's first n entries as a list that ends with NULL; release with neb__free(). */
static const char **file_list(int n, char **argv)
{
    const char **list = NEB_NEW_ARRAY(const char *, (size_t)n + 1);
    for (int i = 0; list && i < n; i++) list[i] = argv[i];
    return list;
}

/* ---- debian --------------------------------------------------------------------------------------------------- */

struct debian {
    char *text, *langs, *from, *out, *packages;
};
static const struct neb_opt debian_table[] = {
    NEB_OPT(struct debian, text, NEB_OPT_TEXT, "help", NULL,
            "help: pages of LibreOffice's help; interface: translated strings of programs",
            NEB_OPT_CHOICE("help", "interface")),
    NEB_OPT(struct debian, langs, NEB_OPT_TEXT, "en,de,fr", NULL,
            "languages; pairs are made with the first one"),
    NEB_OPT(struct debian, from, NEB_OPT_TEXT, NEB_INTERFACE_PACKAGES, NULL,
            "interface: packages, separated by commas; LANG becomes each language"),
    NEB_OPT(struct debian, out, NEB_OPT_TEXT, "corpus", NULL, "folder of the result"),
    NEB_OPT(struct debian, packages, NEB_OPT_TEXT, "", NULL,
            "folder of the packages; OUT/packages by default"),
    NEB_OPT_END,
};

static neb_status debian(struct neb_call *c)
{
    const struct debian *o = c->options;
    struct neb_help_cfg cfg = {.out = o->out, .packages = o->packages};
    struct neb_help_stats stats;
    const char *langs[NEB_HELP_LANGS + 1];
    cfg.n = cut_list(o->langs, langs, NEB_HELP_LANGS + 1);
    if (cfg.n < 2)
        return neb__fail(NEB_ERR_CONFIG, "nebula-i corpus debian: --langs needs 2 to %d languages",
                         NEB_HELP_LANGS);
    for (int l = 0; l < cfg.n; l++) cfg.langs[l] = langs[l];
    NEB_TRY(strcmp(o->text, "help") ? neb__interface_corpus(&cfg, o->from, &stats)
                                    : neb__help_corpus(&cfg, &stats));
    for (int l = 0; l < cfg.n; l++) {
        printf("%s/%s.train.txt: %" PRId64 " texts\n", o->out, langs[l], stats.texts[l]);
        if (l)
            printf("%s/%s-%s.{train,valid,test}.tsv: %" PRId64 ", %" PRId64 ", %" PRId64 " pairs\n", o->out,
                   langs[0], langs[l], stats.train[l], stats.valid[l], stats.test[l]);
    }
    return NEB_OK;
}

/* ---- tokenizer ------------------------------------------------------------------------------------------------ */

struct train {
    char *out, *type, *langs;
    int64_t vocab, lines, threads;
    double coverage;
    bool byte_fallback;
};
static const struct neb_opt train_table[] = {
    NEB_OPT(struct train, out, NEB_OPT_TEXT, "tokenizer.model", NULL, "file of the trained model"),
    NEB_OPT(struct train, type, NEB_OPT_TEXT, "unigram", NULL, "its kind", NEB_OPT_CHOICE("unigram", "bpe")),
    NEB_OPT(struct train, vocab, NEB_OPT_INT, "8000", "pieces",
            "size of the vocabulary, special tokens included", NEB_OPT_RANGE(16, 1000000)),
    NEB_OPT(struct train, langs, NEB_OPT_TEXT, "", NULL, "languages that get a token <2LANG>: en,de,fr"),
    NEB_OPT(struct train, lines, NEB_OPT_INT, "1000000", "lines",
            "train on so many, spread evenly over the files"),
    NEB_OPT(struct train, coverage, NEB_OPT_REAL, "0.9995", NULL, "share of the characters that get a piece"),
    NEB_OPT(struct train, byte_fallback, NEB_OPT_BOOL, "no", NULL,
            "rare characters become bytes, not unknown"),
    NEB_OPT(struct train, threads, NEB_OPT_INT, "0", NULL, "0: all cores"),
    NEB_OPT_END,
};

static neb_status train_to(const struct train *o, const char *const *langs, const char *const *paths)
{
    struct neb_tok_train cfg = {.type = o->type,
                                .vocab = (int32_t)o->vocab,
                                .langs = langs,
                                .coverage = o->coverage,
                                .byte_fallback = o->byte_fallback,
                                .threads = o->threads > 0 ? (int)o->threads : neb__cores()};
    struct neb_line_feed *feed;
    struct neb_buf model;
    NEB_TRY(neb__line_feed_create(paths, o->lines, &feed));
    neb__buf_init(&model, MAX_MODEL);
    neb_status status = neb__tok_train(&cfg, neb__line_feed_next, feed, &model);
    if (neb__line_feed_status(feed) != NEB_OK) status = neb__line_feed_status(feed);
    if (status == NEB_OK) status = neb__file_replace(o->out, model.data, model.len, 0644);
    neb__buf_free(&model);
    neb__line_feed_free(feed);
    return status;
}

static neb_status tokenizer(struct neb_call *c)
{
    const struct train *o = c->options;
    const char *langs[MAX_LANGS];
    struct neb_tok *tok;
    if (cut_list(o->langs, langs, MAX_LANGS) < 0)
        return neb__fail(NEB_ERR_CONFIG, "nebula-i corpus tokenizer: --langs has at most %d languages",
                         MAX_LANGS - 1);
    NEB_TRY(train_to(o, langs, (const char *const *)c->words));
    NEB_TRY(neb__tok_open(o->out, NULL, &tok));
    printf("%s: %d pieces\n", o->out, (int)neb__tok_vocab(tok));
    neb__tok_close(tok);
    return NEB_OK;
}

/* ---- tokenise ------------------------------------------------------------------------------------------------- */

struct build {
    char *tokenizer, *out, *lang, *pair;
    int64_t max_tokens, threads;
    double max_ratio;
    bool two_files;
};
static const struct neb_opt build_table[] = {
    NEB_OPT(struct build, tokenizer, NEB_OPT_TEXT, "tokenizer.model", NULL,
            "a .model file, BERT's vocab.txt, or GPT-2's vocab.json (merges.txt beside it)"),
    NEB_OPT(struct build, out, NEB_OPT_TEXT, "tokens", NULL, "folder of the token set"),
    NEB_OPT(struct build, lang, NEB_OPT_TEXT, "", NULL, "language of a text a line: en"),
    NEB_OPT(struct build, pair, NEB_OPT_TEXT, "", NULL, "languages of tab-separated pairs: en-de"),
    NEB_OPT(struct build, two_files, NEB_OPT_BOOL, "no", NULL,
            "with --pair: files come in twos, line by line"),
    NEB_OPT(struct build, max_tokens, NEB_OPT_INT, "510", "tokens",
            "longer texts are divided, longer pairs left out", NEB_OPT_RANGE(1, 1 << 20)),
    NEB_OPT(struct build, max_ratio, NEB_OPT_REAL, "0", NULL,
            "leave out pairs that differ more in length; 0: none"),
    NEB_OPT(struct build, threads, NEB_OPT_INT, "0", NULL, "0: all cores", NEB_OPT_RANGE(0, 1024)),
    NEB_OPT_END,
};

static void report(const struct build *o, const struct neb_corpus_stats *t, double seconds)
{
    int64_t tokens = t->tokens[0] + t->tokens[1];
    printf("%s: %" PRId64 " samples, %" PRId64 " tokens from %" PRId64 " lines, %.0f tokens/s\n", o->out,
           t->samples, tokens, t->lines, (double)tokens / seconds);
    if (t->empty + t->too_long + t->too_uneven + t->no_tab + t->cut)
        printf("left out: %" PRId64 " empty, %" PRId64 " too long, %" PRId64 " too uneven, %" PRId64
               " without a tab; cut: %" PRId64 "\n",
               t->empty, t->too_long, t->too_uneven, t->no_tab, t->cut);
}

static neb_status build_set(const struct build *o, int n, char **argv)
{
    char *dash = o->pair ? strchr(o->pair, '-') : NULL;
    struct neb_corpus_cfg cfg = {
        .sides = o->pair ? 2 : 1, .max_tokens = (int32_t)o->max_tokens, .max_ratio = o->max_ratio};
    if (o->pair && !dash) return neb__fail(NEB_ERR_CONFIG, "--pair takes two languages, such as en-de");
    if (dash) *dash = 0;
    cfg.lang[0] = o->pair ? o->pair : o->lang;
    cfg.lang[1] = dash ? dash + 1 : NULL;
    const char **list = file_list(n, argv), **first = file_list(n, argv), **second = file_list(n, argv);
    struct neb_tok *tok = NULL;
    struct neb_pool *pool = NULL;
    struct neb_corpus_stats stats;
    neb_status status =
        list && first && second ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for %d names", n);
    for (int i = 0; status == NEB_OK && o->two_files && i <= n; i++) first[i] = second[i] = NULL;
    for (int i = 0; status == NEB_OK && o->two_files && i + 1 < n; i += 2) {
        first[i / 2] = list[i];
        second[i / 2] = list[i + 1];
    }
    cfg.paths = first;
    cfg.paths2 = o->two_files ? second : NULL;
    struct neb_tok_cfg how = {0};
    bool found;
    if (status == NEB_OK) status = neb__folder_tok_cfg_of(o->tokenizer, &how, &found);
    if (status == NEB_OK) status = neb__tok_open(o->tokenizer, &how, &tok);
    if (status == NEB_OK) status = neb__pool_create((int)o->threads, &pool);
    int64_t start = neb__now_ns();
    if (status == NEB_OK) status = neb__corpus_tokenise(&cfg, tok, pool, o->out, &stats);
    if (status == NEB_OK) report(o, &stats, neb__seconds_since(start));
    neb__pool_destroy(pool);
    neb__tok_close(tok);
    neb__free(list), neb__free(first), neb__free(second);
    return status;
}

static neb_status tokenise(struct neb_call *c)
{
    const struct build *o = c->options;
    if (o->two_files && (c->n % 2 || !o->pair))
        return neb__fail(NEB_ERR_CONFIG,
                         "nebula-i corpus tokenise: --two-files needs --pair, and the text files in twos");
    return build_set(o, c->n, c->words);
}

/* ---- encode, decode ---------------------------------------------------------------------------------------- */

struct codes {
    char *tokenizer;
};
static const struct neb_opt codes_table[] = {
    NEB_OPT(struct codes, tokenizer, NEB_OPT_TEXT, "", NULL,
            "a .model file, a vocab.txt, a vocab.json or a tokenizer.json"),
    NEB_OPT_END,
};

static neb_status encode_line(const struct neb_tok *tok, const char *line, size_t n, struct neb_buf *made)
{
    NEB_TRY(neb__tok_encode(tok, line, n, made));
    for (size_t i = 0; i < made->len / sizeof(int32_t); i++) {
        int32_t id;
        memcpy(&id, made->data + i * sizeof id, sizeof id);
        printf("%s%d", i ? " " : "", (int)id);
    }
    putchar('\n');
    return NEB_OK;
}

static neb_status decode_line(const struct neb_tok *tok, const char *line, size_t n, struct neb_buf *made)
{
    struct neb_buf ids;
    neb_status status = NEB_OK;
    neb__buf_init(&ids, MAX_MODEL);
    for (const char *p = line; status == NEB_OK && p < line + n;) {
        char *end;
        long id = strtol(p, &end, 10);
        if (end == p && strspn(p, " \t\r") == (size_t)(line + n - p)) break;
        if (end == p || id < 0 || id > INT32_MAX)
            status = neb__fail(NEB_ERR_INVALID, "'%.20s' is not the number of a token", p);
        else
            status = neb__buf_append(&ids, &(int32_t){(int32_t)id}, sizeof(int32_t));
        p = end;
    }
    if (status == NEB_OK)
        status =
            neb__tok_decode(tok, (const int32_t *)(const void *)ids.data, ids.len / sizeof(int32_t), made);
    if (status == NEB_OK) printf("%.*s\n", (int)made->len, made->len ? (const char *)made->data : "");
    neb__buf_free(&ids);
    return status;
}

typedef neb_status (*line_fn)(const struct neb_tok *tok, const char *line, size_t n, struct neb_buf *made);

static neb_status each_line(struct neb_call *c, line_fn fn)
{
    const struct codes *o = c->options;
    struct neb_tok_cfg how = {0};
    struct neb_tok *tok;
    struct neb_buf made;
    char *line = NULL;
    size_t cap = 0;
    bool found;
    if (!*o->tokenizer) return neb__fail(NEB_ERR_CONFIG, "nebula-i corpus: --tokenizer FILE is missing");
    NEB_TRY(neb__folder_tok_cfg_of(o->tokenizer, &how, &found));
    NEB_TRY(neb__tok_open(o->tokenizer, &how, &tok));
    neb__buf_init(&made, MAX_MODEL);
    neb_status status = NEB_OK;
    for (ssize_t n; status == NEB_OK && (n = getline(&line, &cap, stdin)) >= 0;) {
        if (n && line[n - 1] == '\n') line[--n] = 0;
        neb__buf_clear(&made);
        status = fn(tok, line, (size_t)n, &made);
    }
    free(line); /* getline's own */
    neb__buf_free(&made);
    neb__tok_close(tok);
    return status;
}

static neb_status encode(struct neb_call *c)
{
    return each_line(c, encode_line);
}

static neb_status decode(struct neb_call *c)
{
    return each_line(c, decode_line);
}

/* ---- check ---------------------------------------------------------------------------------------------------- */

/* Looks at all of them, whatever the first one is like. */
static neb_status check(struct neb_call *c)
{
    for (int i = 0; i < c->n; i++) {
        struct neb_set *set;
        neb_status status = neb__set_open(c->words[i], &set);
        if (status != NEB_OK) {
            c->code = neb__exit_of(status);
            continue;
        }
        const struct neb_set_info *info = neb__set_info(set);
        if ((status = neb__set_verify(set)) != NEB_OK)
            c->code = neb__exit_of(status);
        else
            printf("%s: ok, %s%s%s, %" PRId64 " samples, %" PRId64 " tokens, vocabulary %d\n", c->words[i],
                   info->lang[0], info->sides == 2 ? "-" : "", info->lang[1], neb__set_count(set),
                   neb__set_tokens(set, 0) + neb__set_tokens(set, 1), (int)info->vocab);
        neb__set_close(set);
    }
    return NEB_OK;
}

/* ---- prepare -------------------------------------------------------------------------------------------------- */

/* The first part of a training; several trainings with one `cache` then find it done. */
static neb_status prepare(struct neb_call *c)
{
    struct neb_job job;
    struct neb_data data;
    NEB_TRY(neb__job_read(c->words[0], c->words + 1, c->n - 1, &job));
    neb_status status = neb__file_make_dir(job.out, 0700);
    if (status == NEB_OK) status = neb__data_prepare(&job, &data);
    if (status == NEB_OK) {
        int64_t tokens = 0;
        for (int i = 0; i < job.n_data; i++)
            for (int k = 0; data.set[i] && k < neb__set_info(data.set[i])->sides; k++)
                tokens += neb__set_tokens(data.set[i], k);
        printf("%s: vocabulary %d, %" PRId64 " tokens in %d corpora, in %s\n", job.name,
               (int)neb__tok_vocab(data.tok), tokens, job.n_data, data.dir);
        neb__data_free(&data);
    }
    neb__job_free(&job);
    return status;
}

static const struct neb_verb parts[] = {
    {.name = "debian",
     .args = "[--text help|interface] [--langs en,de,fr] [--out corpus]",
     .help = "aligned help texts or interface strings from Debian's packages, for trying things out",
     .options = {{debian_table, 0}},
     .size = sizeof(struct debian),
     .run = debian},
    {.name = "tokenizer",
     .args = "--out FILE.model [options] TEXT…",
     .help = "train a SentencePiece tokenizer on text files",
     .options = {{train_table, 0}},
     .size = sizeof(struct train),
     .least = 1,
     .most = NEB_ANY_NUMBER,
     .run = tokenizer},
    {.name = "tokenise",
     .args = "--tokenizer FILE --out DIR (--lang en | --pair en-de) TEXT…",
     .help = "turn text files (.gz, .xz, .zst too) into a set of token shards",
     .options = {{build_table, 0}},
     .size = sizeof(struct build),
     .least = 1,
     .most = NEB_ANY_NUMBER,
     .run = tokenise},
    {.name = "encode",
     .args = "--tokenizer FILE <TEXT",
     .help = "lines of text to numbers of tokens, without special tokens",
     .options = {{codes_table, 0}},
     .size = sizeof(struct codes),
     .run = encode},
    {.name = "decode",
     .args = "--tokenizer FILE <NUMBERS",
     .help = "lines of numbers to text",
     .options = {{codes_table, 0}},
     .size = sizeof(struct codes),
     .run = decode},
    {.name = "prepare",
     .args = "JOB.yaml [section.key=value …]",
     .help = "tokenizer and token sets of a job, ahead of its training",
     .least = 1,
     .most = NEB_ANY_NUMBER,
     .run = prepare},
    {.name = "check",
     .args = "DIR…",
     .help = "verify token sets to the last byte",
     .least = 1,
     .most = NEB_ANY_NUMBER,
     .run = check},
    {0},
};

const struct neb_verb neb__verb_corpus = {
    .name = "corpus",
    .args = "",
    .help = "get text, train a tokenizer, tokenise",
    .about = "nebula-i corpus PART --help has the options of a part.",
    .parts = parts,
};
