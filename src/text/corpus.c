/* corpus.c: tokenising files into shards.
 *
 * Lines are read into a chunk of some megabytes. The pool encodes the chunk in pieces of lines, each piece
 * into its own buffer. Then the samples are written in the order of the lines. So the set is the same for any
 * number of threads, and a corpus of any size needs the memory of a few chunks. */
#include "text/corpus.h"
#include "text/line_reader.h"
#include "text/bpe_dropout.h"
#include "base/mem.h"
#include "base/rng.h"

#include <stdbool.h>
#include <string.h>

enum {
    CHUNK_LINES = 16384,
    CHUNK_BYTES = 8 << 20,
    PIECE = 128,
    PIECES = CHUNK_LINES / PIECE,
    MAX_IDS = 1 << 28
};

struct span {
    size_t at, n;
};

struct piece {
    struct neb_buf ids, plain;   /* int32_t; plain: the usual cut of one text */
    struct span text[2 * PIECE]; /* of each text: first id, number */
    neb_status status;
    char why[200];
};

struct job {
    const struct neb_corpus_cfg *cfg;
    const struct neb_tok *tok;
    struct neb_set_writer *writer;
    struct neb_corpus_stats *stats;
    int32_t max_tokens;
    struct neb_buf bytes;             /* of the chunk */
    struct span line[CHUNK_LINES][2]; /* into bytes */
    int lines;
    int64_t copy, before; /* before: lines of this copy in earlier chunks */
    struct neb_bpe_dropout *vary;
    struct piece piece[PIECES];
};

/* ---- encoding ------------------------------------------------------------------------------------------ */

/* The first copy is cut by the tokenizer itself, every other copy in its own way. */
static neb_status encode_text(const struct job *j, int side, const char *text, size_t n, uint64_t number,
                              struct piece *p)
{
    if (!j->copy) return neb__tok_encode_side(j->tok, side, text, n, &p->ids);
    neb__buf_clear(&p->plain);
    NEB_TRY(neb__tok_encode(j->tok, text, n, &p->plain));
    return neb__bpe_dropout_cut(j->vary, (const int32_t *)(const void *)p->plain.data,
                                p->plain.len / sizeof(int32_t), neb__mix64((uint64_t)j->copy) + number,
                                &p->ids);
}

static neb_status encode_line(const struct job *j, int line, struct piece *p)
{
    for (int s = 0; s < j->cfg->sides; s++) {
        size_t before = p->ids.len / sizeof(int32_t);
        const struct span *t = &j->line[line][s];
        NEB_TRY(encode_text(j, s != (j->cfg->flip != 0), (const char *)j->bytes.data + t->at, t->n,
                            2 * (uint64_t)(j->before + line) + (uint64_t)s, p));
        p->text[2 * (line % PIECE) + s] = (struct span){before, p->ids.len / sizeof(int32_t) - before};
    }
    return NEB_OK;
}

static void encode_piece(void *arg, int task, int worker)
{
    (void)worker;
    struct job *j = arg;
    struct piece *p = &j->piece[task];
    neb__buf_clear(&p->ids);
    p->status = NEB_OK;
    for (int i = task * PIECE; i < (task + 1) * PIECE && i < j->lines && p->status == NEB_OK; i++)
        p->status = encode_line(j, i, p);
    if (p->status != NEB_OK) {
        strncpy(p->why, neb_last_error(), sizeof p->why - 1);
        p->why[sizeof p->why - 1] = 0;
    }
}

/* ---- writing ------------------------------------------------------------------------------------------- */

static neb_status write_pair(struct job *j, const int32_t *const ids[2], const int32_t n[2])
{
    bool together = j->cfg->max_both > 0 && (int64_t)n[0] + n[1] > j->cfg->max_both;
    if (together || n[0] > j->max_tokens || n[1] > j->max_tokens) {
        j->stats->too_long++;
        return NEB_OK;
    }
    double ratio = n[0] > n[1] ? (double)n[0] / n[1] : (double)n[1] / n[0];
    if (j->cfg->max_ratio > 0 && ratio > j->cfg->max_ratio) {
        j->stats->too_uneven++;
        return NEB_OK;
    }
    NEB_TRY(neb__set_add(j->writer, ids, n));
    j->stats->samples++;
    j->stats->tokens[0] += n[0];
    j->stats->tokens[1] += n[1];
    return NEB_OK;
}

/* Divides a long text into parts of nearly equal length, so there is no short tail. */
static neb_status write_text(struct job *j, const int32_t *ids, int32_t n)
{
    int32_t parts = (n + j->max_tokens - 1) / j->max_tokens;
    for (int32_t i = 0; i < parts; i++) {
        int32_t from = (int32_t)((int64_t)n * i / parts), to = (int32_t)((int64_t)n * (i + 1) / parts);
        const int32_t *const list[2] = {ids + from, NULL};
        const int32_t count[2] = {to - from, 0};
        NEB_TRY(neb__set_add(j->writer, list, count));
        j->stats->samples++;
        j->stats->tokens[0] += to - from;
    }
    return NEB_OK;
}

static neb_status write_line(struct job *j, int line)
{
    const struct piece *p = &j->piece[line / PIECE];
    const struct span *t = &p->text[2 * (line % PIECE)];
    const int32_t *all = (const int32_t *)(const void *)p->ids.data;
    if (!t[0].n || (j->cfg->sides == 2 && !t[1].n)) {
        j->stats->empty++;
        return NEB_OK;
    }
    if (j->cfg->sides == 1) return write_text(j, all + t[0].at, (int32_t)t[0].n);
    const int32_t *const ids[2] = {all + t[0].at, all + t[1].at};
    const int32_t n[2] = {(int32_t)t[0].n, (int32_t)t[1].n};
    return write_pair(j, ids, n);
}

static neb_status flush_chunk(struct job *j, struct neb_pool *pool)
{
    int pieces = (j->lines + PIECE - 1) / PIECE;
    neb__pool_run(pool, encode_piece, j, pieces);
    for (int i = 0; i < pieces; i++)
        if (j->piece[i].status != NEB_OK)
            return neb__fail(j->piece[i].status, "tokenising: %s", j->piece[i].why);
    for (int i = 0; i < j->lines; i++) NEB_TRY(write_line(j, i));
    j->before += j->lines;
    j->lines = 0;
    neb__buf_clear(&j->bytes);
    return NEB_OK;
}

/* ---- reading ------------------------------------------------------------------------------------------- */

static neb_status keep(struct job *j, int side, const char *text, size_t n)
{
    j->line[j->lines][side] = (struct span){j->bytes.len, n};
    return neb__buf_append(&j->bytes, text, n);
}

/* One line of a pair in a tab-separated file; further columns are ignored. */
static neb_status keep_columns(struct job *j, const char *text, size_t n, bool *kept)
{
    const char *tab = memchr(text, '\t', n);
    *kept = tab != NULL;
    if (!tab) {
        j->stats->no_tab++;
        return NEB_OK;
    }
    size_t first = (size_t)(tab - text), rest = n - first - 1;
    const char *more = memchr(tab + 1, '\t', rest);
    if (more) rest = (size_t)(more - tab - 1);
    NEB_TRY(keep(j, 0, text, first));
    return keep(j, 1, tab + 1, rest);
}

static neb_status uneven(const char *a, const char *b)
{
    return neb__fail(NEB_ERR_CONFIG,
                     "%s and %s have different numbers of lines, so they cannot be the two sides of pairs", a,
                     b);
}

static neb_status read_line(struct job *j, struct neb_line_reader *a, struct neb_line_reader *b,
                            const char *names[2], bool *end)
{
    const char *text;
    size_t n;
    bool kept = true;
    neb_status status = neb__line_reader_next(a, &text, &n);
    *end = status == NEB_ERR_AGAIN;
    if (*end && b && neb__line_reader_next(b, &text, &n) != NEB_ERR_AGAIN) return uneven(names[0], names[1]);
    if (*end) return NEB_OK;
    NEB_TRY(status);
    j->stats->lines++;
    if (j->cfg->sides == 2 && !b) {
        NEB_TRY(keep_columns(j, text, n, &kept));
    } else {
        NEB_TRY(keep(j, 0, text, n));
        if (b) {
            status = neb__line_reader_next(b, &text, &n);
            if (status == NEB_ERR_AGAIN) return uneven(names[0], names[1]);
            NEB_TRY(status);
            NEB_TRY(keep(j, 1, text, n));
        }
    }
    j->lines += kept;
    return NEB_OK;
}

static neb_status read_file(struct job *j, struct neb_pool *pool, const char *path, const char *path2)
{
    struct neb_line_reader *a = NULL, *b = NULL;
    const char *names[2] = {path, path2};
    neb_status status = neb__line_reader_open(path, &a);
    if (status == NEB_OK && path2) status = neb__line_reader_open(path2, &b);
    for (bool end = false; status == NEB_OK && !end;) {
        status = read_line(j, a, b, names, &end);
        if (status == NEB_OK && (j->lines == CHUNK_LINES || j->bytes.len > CHUNK_BYTES))
            status = flush_chunk(j, pool);
    }
    if (a) j->stats->cut += neb__line_reader_cut(a);
    if (b) j->stats->cut += neb__line_reader_cut(b);
    neb__line_reader_close(a);
    neb__line_reader_close(b);
    return status;
}

static neb_status run_copy(struct job *j, struct neb_pool *pool)
{
    const struct neb_corpus_cfg *c = j->cfg;
    for (int i = 0; c->paths[i]; i++) {
        const char *second = c->paths2 ? c->paths2[i] : NULL;
        if (c->paths2 && !second)
            return neb__fail(NEB_ERR_CONFIG, "%s has no file with its second side", c->paths[i]);
        NEB_TRY(read_file(j, pool, c->paths[i], second));
    }
    return flush_chunk(j, pool);
}

static neb_status run(struct job *j, struct neb_pool *pool)
{
    const struct neb_corpus_cfg *c = j->cfg;
    if (c->copies > 1) NEB_TRY(neb__bpe_dropout_create(j->tok, c->vary, &j->vary));
    for (j->copy = 0; j->copy < (c->copies > 1 ? c->copies : 1); j->copy++) {
        j->before = 0;
        NEB_TRY(run_copy(j, pool));
    }
    if (!j->stats->samples && j->stats->too_long)
        return neb__fail(
            NEB_ERR_CONFIG,
            "none of the %" PRId64 " lines of %s%s is usable: %" PRId64
            " pairs are longer than the %d tokens allowed; raise that limit (train.max_len, --max-tokens)",
            j->stats->lines, c->paths[0], c->paths[1] ? ", …" : "", j->stats->too_long,
            (int)(c->max_both > 0 ? c->max_both : j->max_tokens));
    if (!j->stats->samples)
        return neb__fail(NEB_ERR_CONFIG, "none of the %" PRId64 " lines of %s%s is usable; is it %s?",
                         j->stats->lines, c->paths[0], c->paths[1] ? ", …" : "",
                         c->sides == 2 ? "tab-separated text in two columns"
                                       : "text with one sample per line");
    return NEB_OK;
}

neb_status neb__corpus_tokenise(const struct neb_corpus_cfg *cfg, const struct neb_tok *tok,
                                struct neb_pool *pool, const char *dir, struct neb_corpus_stats *stats)
{
    *stats = (struct neb_corpus_stats){0};
    if (!cfg->paths || !cfg->paths[0] || cfg->sides < 1 || cfg->sides > 2)
        return neb__fail(NEB_ERR_INVALID, "no files to tokenise were given");
    struct neb_set_info info = {
        .sides = cfg->sides, .vocab = neb__tok_vocab(tok), .tokenizer = *neb__tok_hash(tok)};
    for (int s = 0; s < cfg->sides; s++)
        if (cfg->lang[s]) strncpy(info.lang[s], cfg->lang[s], NEB_LANG_SIZE - 1);
    struct job *j = NEB_NEW(struct job);
    if (!j) return neb__fail(NEB_ERR_NOMEM, "not enough memory to tokenise");
    j->cfg = cfg;
    j->tok = tok;
    j->stats = stats;
    j->max_tokens = cfg->max_tokens > 0 ? cfg->max_tokens : 510;
    neb__buf_init(&j->bytes, CHUNK_BYTES + 4 * NEB_MAX_LINE);
    for (int i = 0; i < PIECES; i++) {
        neb__buf_init(&j->piece[i].ids, MAX_IDS);
        neb__buf_init(&j->piece[i].plain, MAX_IDS);
    }
    neb_status s = neb__set_create(dir, &info, cfg->shard_bytes, &j->writer);
    if (s == NEB_OK) {
        s = run(j, pool);
        if (s == NEB_OK)
            s = neb__set_finish(j->writer);
        else
            neb__set_abandon(j->writer);
    }
    neb__buf_free(&j->bytes);
    for (int i = 0; i < PIECES; i++) {
        neb__buf_free(&j->piece[i].ids);
        neb__buf_free(&j->piece[i].plain);
    }
    neb__bpe_dropout_free(j->vary);
    neb__free(j);
    return s;
}

/* ---- lines for a tokenizer ----------------------------------------------------------------------------- */

struct neb_line_feed {
    const char *const *paths;
    int files, file;
    int64_t total, keep, seen; /* lines of the present file; lines to give, evenly spread; lines read */
    int64_t quota;
    struct neb_line_reader *lines;
    const char *rest; /* the present line after its tab */
    size_t rest_n;
    neb_status status;
};

neb_status neb__line_feed_create(const char *const *paths, int64_t limit, struct neb_line_feed **out)
{
    struct neb_line_feed *f = NEB_NEW(struct neb_line_feed);
    if (!f) return neb__fail(NEB_ERR_NOMEM, "not enough memory to read text");
    f->paths = paths;
    while (paths[f->files]) f->files++;
    if (!f->files || limit < f->files) {
        neb__free(f);
        return neb__fail(NEB_ERR_INVALID,
                         "no files were given, or the limit allows fewer lines than there are files");
    }
    f->quota = limit / f->files;
    *out = f;
    return NEB_OK;
}

/* Corpora are often sorted, and the first lines would cover only a few topics. So the lines are counted first
 * and taken from the whole file. */
static neb_status open_file(struct neb_line_feed *f)
{
    const char *text;
    size_t n;
    neb_status status;
    f->total = f->seen = 0;
    NEB_TRY(neb__line_reader_open(f->paths[f->file], &f->lines));
    while ((status = neb__line_reader_next(f->lines, &text, &n)) == NEB_OK) f->total++;
    neb__line_reader_close(f->lines);
    f->lines = NULL;
    if (status != NEB_ERR_AGAIN) return status;
    f->keep = f->total < f->quota ? f->total : f->quota;
    return neb__line_reader_open(f->paths[f->file], &f->lines);
}

/* The next line to give: NEB_ERR_AGAIN at the end of the last file. */
static neb_status next_line(struct neb_line_feed *f, const char **line, size_t *n)
{
    while (f->file < f->files) {
        if (!f->lines) NEB_TRY(open_file(f));
        neb_status status = neb__line_reader_next(f->lines, line, n);
        if (status == NEB_ERR_AGAIN) {
            neb__line_reader_close(f->lines);
            f->lines = NULL;
            f->file++;
            continue;
        }
        NEB_TRY(status);
        int64_t i = f->seen++;
        if ((i + 1) * f->keep / f->total > i * f->keep / f->total) return NEB_OK;
    }
    return NEB_ERR_AGAIN;
}

int neb__line_feed_next(void *feed, const char **text, size_t *n)
{
    struct neb_line_feed *f = feed;
    while (f->status == NEB_OK) {
        const char *line = f->rest;
        size_t len = f->rest_n;
        f->rest = NULL;
        if (!line && (f->status = next_line(f, &line, &len)) != NEB_OK) break;
        const char *tab = memchr(line, '\t', len);
        if (tab) {
            f->rest = tab + 1;
            f->rest_n = len - (size_t)(tab - line) - 1;
            len = (size_t)(tab - line);
        }
        *text = line;
        *n = len;
        if (len && !memchr(line, 0, len)) return 1;
    }
    return 0;
}

neb_status neb__line_feed_status(const struct neb_line_feed *f)
{
    return f->status == NEB_ERR_AGAIN ? NEB_OK : f->status;
}

void neb__line_feed_free(struct neb_line_feed *f)
{
    if (!f) return;
    neb__line_reader_close(f->lines);
    neb__free(f);
}
