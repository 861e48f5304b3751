/* verb_score.c: `nebula-i score REFERENCE… < TRANSLATION`: BLEU, spBLEU, chrF, chrF++ and TER, as sacreBLEU computes them,
 * each with the signature that sacreBLEU would print; with an encoder also BERTScore (score_encoder.h). */
#include "cli/verb.h"
#include "cli/score_encoder.h"
#include "base/mem.h"
#include "text/line_reader.h"
#include "text/score.h"
#include "text/score_pieces.h"
#include "text/ter.h"

#include <stdio.h>
#include <string.h>

struct options {
    char *tokenize, *hyp, *spm, *encoder, *estimator, *source, *device;
    int64_t layer, threads;
    bool lowercase, signature;
};
static const struct neb_opt table[] = {
    NEB_OPT(struct options, hyp, NEB_OPT_TEXT, "/dev/stdin", NULL, "file of translations, a sentence a line"),
    NEB_OPT(struct options, tokenize, NEB_OPT_TEXT, "13a", NULL,
            "how words are cut; none for text that is tokenised",
            NEB_OPT_CHOICE("13a", "intl", "zh", "char", "none")),
    NEB_OPT(struct options, spm, NEB_OPT_TEXT, "", NULL,
            "spBLEU as well: a SentencePiece model that cuts all texts, such as that of FLORES-200"),
    NEB_OPT(struct options, signature, NEB_OPT_BOOL, "no", NULL,
            "say how each score was computed, as sacreBLEU does"),
    NEB_OPT(struct options, lowercase, NEB_OPT_BOOL, "no", NULL, "compare without case"),
    NEB_OPT(struct options, encoder, NEB_OPT_TEXT, "", NULL,
            "BERTScore as well: the folder of an imported encoder, such as XLM-R"),
    NEB_OPT(struct options, layer, NEB_OPT_INT, "0", NULL,
            "encoder: hidden states of this layer, 9 for XLM-R base; 0: the last", NEB_OPT_RANGE(0, 4096)),
    NEB_OPT(
        struct options, estimator, NEB_OPT_TEXT, "", NULL,
        "encoder: the score of a COMET metric as well, by the file that tools/comet_folder.py made of it"),
    NEB_OPT(struct options, source, NEB_OPT_TEXT, "", NULL,
            "encoder: file of sources; how near the translations are to them"),
    NEB_OPT(struct options, device, NEB_OPT_TEXT, "cpu", NULL,
            "encoder: cpu, auto (the GPU where there is one) or a plug-in such as cuda"),
    NEB_OPT(struct options, threads, NEB_OPT_INT, "0", NULL, "encoder: CPU threads; 0: all cores",
            NEB_OPT_RANGE(0, 1024)),
    NEB_OPT_END,
};

struct scorer {
    struct neb_line_reader *hyp, *ref[NEB_SCORE_REFS], *source;
    struct neb_score_encoder *encoder;
    const char **names;
    int refs;
    struct neb_bleu bleu;
    struct neb_bleu sp; /* over the pieces of `pieces` */
    struct neb_score_pieces *pieces;
    struct neb_chrf chrf, chrf2;
    struct neb_ter ter;
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

static neb_status add_pieces(struct scorer *s, const char *hyp, char *const *ref)
{
    char *h = NULL, *r[NEB_SCORE_REFS] = {NULL};
    if (!s->pieces) return NEB_OK;
    neb_status status = neb__score_pieces_cut(s->pieces, hyp, &h);
    for (int i = 0; status == NEB_OK && i < s->refs; i++)
        status = neb__score_pieces_cut(s->pieces, ref[i], &r[i]);
    if (status == NEB_OK) status = neb__bleu_add(&s->sp, h, (const char *const *)r, s->refs);
    neb__free(h);
    for (int i = 0; i < s->refs; i++) neb__free(r[i]);
    return status;
}

static neb_status add_states(struct scorer *s, const char *hyp, char *const *ref)
{
    char *source = NULL;
    if (!s->encoder) return NEB_OK;
    neb_status status = s->source ? copy_line(s->source, &source) : NEB_OK;
    if (status == NEB_ERR_AGAIN)
        status = neb__fail(NEB_ERR_CONFIG, "the file of sources has fewer sentences than the translation");
    if (status == NEB_OK) status = neb__score_encoder_add(s->encoder, hyp, ref, source);
    neb__free(source);
    return status;
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
    if (st == NEB_OK) st = neb__ter_add(&s->ter, hyp, (const char *const *)ref, s->refs);
    if (st == NEB_OK) st = add_pieces(s, hyp, ref);
    if (st == NEB_OK) st = add_states(s, hyp, ref);
    s->sentences += st == NEB_OK;
    neb__free(hyp);
    for (int i = 0; i < s->refs; i++) neb__free(ref[i]);
    return st;
}

/* The name of the model in a signature: sacreBLEU's own for the files that it keeps, else that of the file, without its
 * ending. */
static void spm_name(const char *path, char out[64])
{
    static const char *const known[][2] = {{"flores200sacrebleuspm", "flores200"},
                                           {"sacrebleu_tokenizer_spm", "flores101"},
                                           {"spbleu-1k_tokenizer_spm", "spBLEU-1K"}};
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *dot = strrchr(name, '.');
    snprintf(out, 64, "%.*s", (int)(dot && dot - name < 60 ? dot - name : 60), name);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(out, known[i][0])) snprintf(out, 64, "%s", known[i][1]);
}

/* Version 2.6.0 of sacreBLEU is the one whose numbers these are. */
static void say_signatures(const struct scorer *s, const struct options *o)
{
    static const char version[] = "version:2.6.0";
    const char *letters = o->lowercase ? "lc" : "mixed";
    char name[64];
    printf("BLEU nrefs:%d|case:%s|eff:no|tok:%s|smooth:exp|%s\n", s->refs, letters, o->tokenize, version);
    if (s->pieces) {
        spm_name(o->spm, name);
        printf("spBLEU nrefs:%d|case:%s|eff:no|tok:%s|smooth:exp|%s\n", s->refs, letters, name, version);
    }
    for (int words = 0; words < 3; words += 2)
        printf("chrF2%s nrefs:%d|case:%s|eff:yes|nc:6|nw:%d|space:no|%s\n", words ? "++" : "", s->refs,
               letters, words, version);
    printf("TER nrefs:%d|case:lc|tok:tercom|norm:no|punct:yes|asian:no|%s\n", s->refs, version);
}

static neb_status open_encoder(struct scorer *s, const struct options *o)
{
    const bool source = o->source && *o->source;
    struct neb_score_encoder_config c = {.folder = o->encoder,
                                         .device = o->device,
                                         .estimator = o->estimator && *o->estimator ? o->estimator : NULL,
                                         .layer = o->layer,
                                         .threads = o->threads,
                                         .refs = s->refs,
                                         .source = source};
    if (!o->encoder || !*o->encoder)
        return source || c.estimator
                   ? neb__fail(NEB_ERR_CONFIG,
                               "--source and --estimator need an encoder; name its folder with --encoder")
                   : NEB_OK;
    if (source) NEB_TRY(neb__line_reader_open(o->source, &s->source));
    return neb__score_encoder_open(&c, &s->encoder);
}

static neb_status score(struct scorer *s, const struct options *o)
{
    enum neb_word_split split;
    NEB_TRY(neb__chars_split_parse(o->tokenize, &split));
    neb__bleu_init(&s->bleu, split, o->lowercase);
    neb__chrf_init(&s->chrf, 0, o->lowercase);
    neb__chrf_init(&s->chrf2, 2, o->lowercase);
    neb__bleu_init(&s->sp, NEB_WORDS_SPACE, o->lowercase);
    neb__ter_init(&s->ter, false);
    if (o->spm && *o->spm) NEB_TRY(neb__score_pieces_open(o->spm, &s->pieces));
    NEB_TRY(open_encoder(s, o));
    NEB_TRY(neb__line_reader_open(o->hyp, &s->hyp));
    for (int i = 0; i < s->refs; i++) NEB_TRY(neb__line_reader_open(s->names[i], &s->ref[i]));
    neb_status status;
    while ((status = score_next(s)) == NEB_OK) continue;
    if (status != NEB_ERR_AGAIN) return status;
    printf("BLEU %.2f (brevity penalty %.3f, %" PRId64 " words against %" PRId64 ", tokenizer %s)\n",
           neb__bleu_score(&s->bleu), neb__bleu_brevity(&s->bleu), s->bleu.hyp_len, s->bleu.ref_len,
           o->tokenize);
    if (s->pieces) printf("spBLEU %.2f\n", neb__bleu_score(&s->sp));
    printf("chrF %.2f, chrF++ %.2f, TER %.2f; %" PRId64 " sentences\n", neb__chrf_score(&s->chrf),
           neb__chrf_score(&s->chrf2), neb__ter_score(&s->ter), s->sentences);
    if (s->encoder) NEB_TRY(neb__score_encoder_say(s->encoder));
    if (o->signature) say_signatures(s, o);
    return NEB_OK;
}

static neb_status run(struct neb_call *c)
{
    struct scorer s = {.names = (const char **)(uintptr_t)c->words, .refs = c->n};
    neb_status status = score(&s, c->options);
    neb__line_reader_close(s.hyp);
    neb__score_pieces_close(s.pieces);
    neb__score_encoder_close(s.encoder);
    neb__line_reader_close(s.source);
    for (int i = 0; i < NEB_SCORE_REFS; i++) neb__line_reader_close(s.ref[i]);
    return status;
}

const struct neb_verb neb__verb_score = {
    .name = "score",
    .args = "[options] REFERENCE… < TRANSLATION",
    .help = "BLEU, spBLEU, chrF, TER and BERTScore of a translation",
    .options = {{table, 0}},
    .size = sizeof(struct options),
    .least = 1,
    .most = NEB_SCORE_REFS,
    .run = run,
};
