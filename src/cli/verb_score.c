/* verb_score.c: `nebula-i score REFERENCE… < TRANSLATION`: BLEU and chrF, as sacreBLEU computes them. */
#include "cli/verb.h"
#include "base/mem.h"
#include "text/line_reader.h"
#include "text/score.h"

#include <stdio.h>
#include <string.h>

struct options {
    char *tokenize, *hyp;
    bool lowercase;
};
static const struct neb_opt table[] = {
    NEB_OPT(struct options, hyp, NEB_OPT_TEXT, "/dev/stdin", NULL, "file of translations, a sentence a line"),
    NEB_OPT(struct options, tokenize, NEB_OPT_TEXT, "13a", NULL,
            "how words are cut; none for text that is tokenised", NEB_OPT_CHOICE("13a", "intl", "none")),
    NEB_OPT(struct options, lowercase, NEB_OPT_BOOL, "no", NULL, "compare without case"),
    NEB_OPT_END,
};

struct scorer {
    struct neb_line_reader *hyp, *ref[NEB_SCORE_REFS];
    const char **names;
    int refs;
    struct neb_bleu bleu;
    struct neb_chrf chrf, chrf2;
    int64_t sentences;
};

static neb_status copy_line(struct neb_line_reader *l, char **out)
{
    const char *text;
    size_t n;
    NEB_TRY(neb__line_reader_next(l, &text, &n));
    char *p = neb__malloc(n + 1);
    if (!p) return neb__fail(NEB_ERR_NOMEM, "out of memory for a sentence");
    memcpy(p, text, n);
    p[n] = 0;
    *out = p;
    return NEB_OK;
}

/* One sentence; NEB_ERR_AGAIN at the common end of all files. */
static neb_status score_next(struct scorer *s)
{
    char *hyp = NULL, *ref[NEB_SCORE_REFS] = {NULL};
    neb_status end = copy_line(s->hyp, &hyp), st = end;
    for (int i = 0; i < s->refs && (st == NEB_OK || end == NEB_ERR_AGAIN); i++) {
        st = copy_line(s->ref[i], &ref[i]);
        if ((st == NEB_ERR_AGAIN) != (end == NEB_ERR_AGAIN) && (st == NEB_OK || st == NEB_ERR_AGAIN)) {
            st = neb__fail(NEB_ERR_CONFIG, "the translation and %s have different numbers of sentences",
                           s->names[i]);
            end = st;
        }
    }
    if (st == NEB_OK) st = neb__bleu_add(&s->bleu, hyp, (const char *const *)ref, s->refs);
    if (st == NEB_OK) st = neb__chrf_add(&s->chrf, hyp, (const char *const *)ref, s->refs);
    if (st == NEB_OK) st = neb__chrf_add(&s->chrf2, hyp, (const char *const *)ref, s->refs);
    s->sentences += st == NEB_OK;
    neb__free(hyp);
    for (int i = 0; i < s->refs; i++) neb__free(ref[i]);
    return st;
}

static neb_status score(struct scorer *s, const struct options *o)
{
    enum neb_word_split split;
    NEB_TRY(neb__chars_split_parse(o->tokenize, &split));
    neb__bleu_init(&s->bleu, split, o->lowercase);
    neb__chrf_init(&s->chrf, 0, o->lowercase);
    neb__chrf_init(&s->chrf2, 2, o->lowercase);
    NEB_TRY(neb__line_reader_open(o->hyp, &s->hyp));
    for (int i = 0; i < s->refs; i++) NEB_TRY(neb__line_reader_open(s->names[i], &s->ref[i]));
    neb_status status;
    while ((status = score_next(s)) == NEB_OK) continue;
    if (status != NEB_ERR_AGAIN) return status;
    printf("BLEU %.2f (brevity penalty %.3f, %" PRId64 " words against %" PRId64 ", tokenizer %s)\n",
           neb__bleu_score(&s->bleu), neb__bleu_brevity(&s->bleu), s->bleu.hyp_len, s->bleu.ref_len,
           o->tokenize);
    printf("chrF %.2f, chrF++ %.2f; %" PRId64 " sentences\n", neb__chrf_score(&s->chrf),
           neb__chrf_score(&s->chrf2), s->sentences);
    return NEB_OK;
}

static neb_status run(struct neb_call *c)
{
    struct scorer s = {.names = (const char **)(uintptr_t)c->words, .refs = c->n};
    neb_status status = score(&s, c->options);
    neb__line_reader_close(s.hyp);
    for (int i = 0; i < NEB_SCORE_REFS; i++) neb__line_reader_close(s.ref[i]);
    return status;
}

const struct neb_verb neb__verb_score = {
    .name = "score",
    .args = "[options] REFERENCE… < TRANSLATION",
    .help = "BLEU and chrF of a translation",
    .options = {{table, 0}},
    .size = sizeof(struct options),
    .least = 1,
    .most = NEB_SCORE_REFS,
    .run = run,
};
