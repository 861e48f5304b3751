/* frame.c: the frames, one row each.
 *
 * Marian starts a target with the padding token, which is never part of a text, so it must not be chosen. Its language
 * token is optional: most models know one target language only. T5 starts with the padding token, too, but may choose it. fairseq's models start with </s> and then get the
 * language to write in; older ones of them (mbart, nllb-tail) have the source's language behind the source. */
#include "text/frame.h"

#include <stdio.h>
#include <string.h>

enum part { NONE, PAD, BOS, EOS, FROM, TO, TO_IF_KNOWN };

struct neb_frame {
    const char *name;
    enum part lead, tail, start, first;
    const char *before, *behind; /* of a language in its token */
};

static const struct neb_frame frames[] = {
    {"plain", NONE, NONE, BOS, NONE, "", ""},
    {"tags", TO, NONE, BOS, NONE, "<2", ">"},
    {"marian", TO_IF_KNOWN, NONE, PAD, NONE, ">>", "<<"},
    {"m2m100", FROM, NONE, EOS, TO, "__", "__"},
    {"nllb", FROM, NONE, EOS, TO, "", ""},
    {"nllb-tail", NONE, FROM, EOS, TO, "", ""},
    {"mbart", NONE, FROM, TO, NONE, "", ""},
    {"mbart50", FROM, NONE, EOS, TO, "", ""},
    {"bart", BOS, NONE, EOS, BOS, "", ""},
    {"t5", NONE, NONE, PAD, NONE, "", ""},
};

const struct neb_frame *neb__frame_named(const char *name)
{
    for (size_t i = 0; i < sizeof frames / sizeof *frames; i++)
        if (!strcmp(frames[i].name, name)) return &frames[i];
    return NULL;
}

const char *neb__frame_name(const struct neb_frame *f)
{
    return f->name;
}

static bool has(const struct neb_frame *f, enum part part)
{
    return f->lead == part || f->tail == part || f->start == part || f->first == part;
}

bool neb__frame_wants_from(const struct neb_frame *f)
{
    return has(f, FROM);
}

bool neb__frame_wants_to(const struct neb_frame *f)
{
    return has(f, TO);
}

bool neb__frame_bans_start(const struct neb_frame *f)
{
    return f->start == PAD && f->lead == TO_IF_KNOWN;
}

static neb_status language(const struct neb_frame *f, const struct neb_tok *tok, const char *lang,
                           bool target, int32_t *out)
{
    const char *side = target ? "target" : "source";
    char piece[64];
    if (!lang || !*lang)
        return neb__fail(NEB_ERR_CONFIG,
                         "this model translates between several languages: say which is the %s with "
                         "--%s (a job: lang: FROM-TO of its corpora)",
                         side, target ? "to" : "from");
    if (snprintf(piece, sizeof piece, "%s%s%s", f->before, lang, f->behind) >= (int)sizeof piece ||
        (*out = neb__tok_id(tok, piece)) < 0)
        return neb__fail(NEB_ERR_CONFIG, "the tokenizer has no token '%.60s' for the %s language '%.40s'",
                         piece, side, lang);
    return NEB_OK;
}

/* Whether the tokenizer has a token for any language. */
static bool knows_languages(const struct neb_frame *f, const struct neb_tok *tok)
{
    for (int32_t i = 0; i < neb__tok_vocab(tok); i++) {
        const char *piece = neb__tok_piece(tok, i);
        if (piece && neb__tok_special_map(tok)[i] && !strncmp(piece, f->before, strlen(f->before)))
            return true;
    }
    return false;
}

static neb_status find(const struct neb_frame *f, enum part part, const struct neb_tok *tok, const char *from,
                       const char *to, int32_t *out)
{
    static const enum neb_special specials[] = {
        [PAD] = NEB_TOK_PAD, [BOS] = NEB_TOK_BOS, [EOS] = NEB_TOK_EOS};
    *out = -1;
    if (part == NONE || (part == TO_IF_KNOWN && (!to || !*to || !knows_languages(f, tok)))) return NEB_OK;
    if (part == FROM) return language(f, tok, from, false, out);
    if (part == TO || part == TO_IF_KNOWN) return language(f, tok, to, true, out);
    *out = neb__tok_special(tok, specials[part]);
    if (*out < 0 && part == BOS)
        return neb__fail(NEB_ERR_CONFIG,
                         "the tokenizer has no start token, which the frame '%s' needs; take one that has "
                         "(<s>), or name a "
                         "frame that starts with padding (t5 or marian)",
                         f->name);
    if (*out < 0)
        return neb__fail(NEB_ERR_CONFIG, "the tokenizer lacks a special token of the frame '%s'", f->name);
    return NEB_OK;
}

neb_status neb__frame_find(const struct neb_frame *f, const struct neb_tok *tok, const char *from,
                           const char *to, struct neb_frame_tokens *out)
{
    struct neb_frame_tokens t;
    NEB_TRY(find(f, f->lead, tok, from, to, &t.lead));
    NEB_TRY(find(f, f->tail, tok, from, to, &t.tail));
    NEB_TRY(find(f, f->start, tok, from, to, &t.start));
    NEB_TRY(find(f, f->first, tok, from, to, &t.first));
    *out = t;
    return NEB_OK;
}
