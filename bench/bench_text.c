/* bench_text.c: how fast text becomes batches, and whether training ever waits for it.
 *
 * The text is made up of words of two to four syllables, drawn by Zipf's law, so the benchmark needs no
 * download. --file measures a real text. Waiting is measured with a trainer that takes a batch of 8192 tokens
 * every `--step`. */
#define _XOPEN_SOURCE 700
#include "bench.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/opts.h"
#include "base/rng.h"
#include "text/corpus.h"
#include "text/prefetch.h"

#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { WORDS = 20000, LINES = 60000, TRAIN_LINES = 20000, BATCH = 8192, BATCHES = 400, STEPS = 100 };

struct options {
    char *file;
    double step;
};
static const struct neb_opt table[] = {
    NEB_OPT(struct options, file, NEB_OPT_TEXT, "", NULL,
            "measure this text, a sentence a line, instead of made-up text"),
    NEB_OPT(struct options, step, NEB_OPT_TIME, "20ms", NULL, "time of a training step of 8192 tokens"),
    NEB_OPT_END,
};

struct scratch {
    char dir[64], text[96], set[96];
    struct neb_tok *tok;
};

static void make_word(uint64_t i, char *out)
{
    static const char onset[] = "bdfgklmnprstvz", nucleus[] = "aeiou";
    struct neb_rng r = {i * 977 + 5};
    int n = 2 + (int)neb__rng_below(&r, 3);
    for (int k = 0; k < n; k++) {
        *out++ = onset[neb__rng_below(&r, sizeof onset - 1)];
        *out++ = nucleus[neb__rng_below(&r, sizeof nucleus - 1)];
    }
    *out = 0;
}

static int write_text(const char *path)
{
    FILE *f = fopen(path, "w");
    struct neb_rng r = {1};
    if (!f) return 1;
    for (int i = 0; i < LINES; i++) {
        int n = 4 + (int)neb__rng_below(&r, 40);
        for (int k = 0; k < n; k++) {
            char word[16];
            make_word((uint64_t)exp(neb__rng_uniform(&r) * log(WORDS)), word); /* density 1/rank */
            fprintf(f, "%s%s", k ? " " : "", word);
        }
        fputs(".\n", f);
    }
    return fclose(f);
}

static int train(struct scratch *s, const char *type)
{
    struct neb_tok_train cfg = {.type = type, .vocab = 8000, .threads = neb__cores()};
    struct neb_line_feed *feed;
    struct neb_buf model;
    const char *paths[] = {s->text, NULL};
    neb__tok_close(s->tok);
    s->tok = NULL;
    neb__buf_init(&model, 64 << 20);
    if (neb__line_feed_create(paths, TRAIN_LINES, &feed) != NEB_OK) return 1;
    neb_status status = neb__tok_train(&cfg, neb__line_feed_next, feed, &model);
    if (status == NEB_OK) status = neb__tok_open_bytes(model.data, model.len, 0, NULL, &s->tok);
    neb__line_feed_free(feed);
    neb__buf_free(&model);
    return status != NEB_OK;
}

/* Tokens a second and core, with reading and writing of files. */
static int tokenise(struct scratch *s, struct neb_figures *f, const char *name)
{
    const char *paths[] = {s->text, NULL};
    struct neb_corpus_cfg cfg = {.paths = paths, .sides = 1, .lang = {"xx"}};
    struct neb_corpus_stats t;
    struct neb_pool *pool;
    if (neb__pool_create(1, &pool) != NEB_OK) return 1;
    double rate[3];
    int bad = 0;
    for (int i = 0; i < 3 && !bad; i++) {
        int64_t start = neb__now_ns();
        bad = neb__corpus_tokenise(&cfg, s->tok, pool, s->set, &t) != NEB_OK;
        rate[i] = (double)t.tokens[0] / neb__seconds_since(start);
    }
    neb__pool_destroy(pool);
    if (!bad) neb__figures_add(f, name, neb__figures_median(rate, 3), "tokens/s", NEB_REPORT, 0);
    return bad;
}

static int open_stream(const struct scratch *s, struct neb_set **set, struct neb_batches **out)
{
    if (neb__set_open(s->set, set) != NEB_OK) return 1;
    struct neb_source source = {.set = *set, .frame = NEB_NO_FRAME};
    struct neb_batches_cfg cfg = {.kind = NEB_BATCH_MLM,
                                  .seed = 1,
                                  .parts = 1,
                                  .sources = 1,
                                  .source = &source,
                                  .tokens = BATCH,
                                  .max_len = 128};
    neb__vocab_of(s->tok, &cfg.vocab);
    return neb__batches_create(&cfg, out) != NEB_OK;
}

static int pack(struct neb_batches *stream, struct neb_figures *f)
{
    struct neb_batch *b;
    if (neb__batches_batch(stream, &b) != NEB_OK) return 1;
    int64_t start = neb__now_ns(), rows = 0;
    int bad = 0;
    for (int i = 0; i < BATCHES && !bad; i++) {
        bad = neb__batches_next(stream, b) != NEB_OK;
        rows += b->side[0].used;
    }
    struct neb_batches_stats t = neb__batches_stats(stream);
    neb__figures_add(f, "batches.masked", (double)rows / neb__seconds_since(start), "tokens/s", NEB_REPORT,
                     0);
    neb__figures_add(f, "batches.padding", 100.0 * (double)t.padding / (double)t.rows, "%", NEB_AT_MOST, 5);
    start = neb__now_ns();
    if (!bad) bad = neb__batches_seek(stream, 1) != NEB_OK || neb__batches_seek(stream, BATCHES) != NEB_OK;
    neb__figures_add(f, "seek", (double)BATCHES / neb__seconds_since(start), "steps/s", NEB_REPORT, 0);
    neb__batch_free(b);
    return bad;
}

static int wait_share(struct neb_batches *stream, double step, struct neb_figures *f)
{
    struct neb_prefetch *p;
    struct neb_batch *b;
    if (neb__prefetch_start(stream, 4, &p) != NEB_OK) return 1;
    int bad = neb__prefetch_get(p, &b) != NEB_OK; /* the first one is not ahead yet */
    if (!bad) neb__prefetch_done(p, b);
    double before = neb__prefetch_waited(p);
    int64_t start = neb__now_ns();
    for (int i = 0; i < STEPS && !bad; i++) {
        bad = neb__prefetch_get(p, &b) != NEB_OK;
        struct timespec t = {(time_t)step, (long)((step - (double)(time_t)step) * 1e9)};
        nanosleep(&t, NULL);
        neb__prefetch_done(p, b);
    }
    double share = (neb__prefetch_waited(p) - before) / neb__seconds_since(start);
    neb__prefetch_stop(p);
    neb__figures_add(f, "waiting for data", 100 * share, "% of step", NEB_AT_MOST, 1);
    return bad;
}

static int measure(struct scratch *s, const struct options *o, struct neb_figures *f)
{
    struct neb_set *set = NULL;
    struct neb_batches *stream = NULL;
    int bad = train(s, "bpe") || tokenise(s, f, "tokenise.bpe (one core)");
    bad = bad || train(s, "unigram") || tokenise(s, f, "tokenise.unigram (one core)");
    bad = bad || open_stream(s, &set, &stream) || pack(stream, f) || wait_share(stream, o->step, f);
    neb__batches_free(stream);
    neb__set_close(set);
    return bad;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st, (void)flag, (void)ftw;
    return remove(path);
}

static void clean_up(struct scratch *s)
{
    neb__tok_close(s->tok);
    nftw(s->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static int use_file(const char *file, const char *as)
{
    char *path = realpath(file, NULL);
    int bad = !path || symlink(path, as);
    free(path);
    return bad;
}

static int run(int argc, char **argv)
{
    bool json = neb__bench_json(&argc, argv);
    struct options o = {0};
    struct scratch s = {.dir = "/tmp/nebula-bench-XXXXXX"};
    int rest;
    if (neb__opts_init(table, &o) != NEB_OK || neb__opts_args(table, &o, argc, argv, &rest) != NEB_OK)
        return 2;
    struct neb_figures *f = neb__figures_begin("text", json);
    if (!f || !mkdtemp(s.dir)) return 1;
    snprintf(s.text, sizeof s.text, "%s/text", s.dir);
    snprintf(s.set, sizeof s.set, "%s/set", s.dir);
    int bad = o.file ? use_file(o.file, s.text) : write_text(s.text);
    bad = bad || measure(&s, &o, f);
    clean_up(&s);
    neb__opts_free(table, &o);
    return bad ? (neb__figures_end(f), 1) : neb__figures_end(f);
}

const struct neb_bench neb__bench_text = {"text", "tokenising, packing, waiting for data", run, table};
