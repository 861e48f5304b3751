/* tokenizer_json_split.c: pre-tokenisers: they cut a text into pieces that the model sees one by one. */
#define _GNU_SOURCE
#include "text/tokenizer_json_parts.h"
#include "base/mem.h"
#include "text/bpe_split.h"
#include "text/byte_chars.h"

#include <string.h>

/* ---- pieces -------------------------------------------------------------------------------------------- */

void neb__tj_pieces_init(struct neb_tj_pieces *p)
{
    neb__buf_init(&p->text, NEB_TJ_TEXT);
    neb__buf_init(&p->ends, NEB_TJ_TEXT);
    p->at_start = false;
}

void neb__tj_pieces_free(struct neb_tj_pieces *p)
{
    neb__buf_free(&p->text);
    neb__buf_free(&p->ends);
}

size_t neb__tj_pieces_count(const struct neb_tj_pieces *p)
{
    return p->ends.len / sizeof(size_t);
}

static size_t end_of(const struct neb_tj_pieces *p, size_t i)
{
    size_t end;
    memcpy(&end, p->ends.data + i * sizeof end, sizeof end);
    return end;
}

const char *neb__tj_pieces_at(const struct neb_tj_pieces *p, size_t i, size_t *n)
{
    size_t start = i ? end_of(p, i - 1) : 0;
    *n = end_of(p, i) - start;
    return p->text.data ? (const char *)p->text.data + start : "";
}

neb_status neb__tj_pieces_add(struct neb_tj_pieces *p, const char *text, size_t n)
{
    NEB_TRY(neb__buf_append(&p->text, text, n));
    return neb__buf_append(&p->ends, &p->text.len, sizeof p->text.len);
}

static neb_status add(struct neb_tj_pieces *p, const char *text, size_t n)
{
    return n ? neb__tj_pieces_add(p, text, n) : NEB_OK;
}

/* ---- stretches: the text between matches, and the matches ----------------------------------------------- */

struct cutter {
    const char *text;
    struct neb_tj_pieces *out;
    enum neb_tj_behavior behavior;
    bool invert;
    size_t start, end;     /* the stretch that is held back */
    bool held, held_match; /* whether there is one, and whether it is a match */
    bool closed;           /* nothing joins it any more */
};

static neb_status flush(struct cutter *c)
{
    if (c->held) NEB_TRY(add(c->out, c->text + c->start, c->end - c->start));
    c->held = false;
    return NEB_OK;
}

/* Whether the stretch that is held back and a new one form one piece. */
static bool joins(const struct cutter *c, bool match)
{
    if (!c->held || c->closed) return false;
    switch (c->behavior) {
    case NEB_TJ_CONTIGUOUS: return c->held_match == match;
    case NEB_TJ_MERGED_WITH_PREVIOUS: return match && !c->held_match;
    case NEB_TJ_MERGED_WITH_NEXT: return !match && c->held_match;
    default: return false;
    }
}

static neb_status stretch(struct cutter *c, size_t start, size_t end, bool match)
{
    if (start == end) return NEB_OK;
    match ^= c->invert;
    if (c->behavior == NEB_TJ_REMOVED && match) return flush(c);
    if (joins(c, match)) {
        c->end = end;
        c->closed = c->behavior != NEB_TJ_CONTIGUOUS;
        c->held_match = match;
        return NEB_OK;
    }
    NEB_TRY(flush(c));
    c->start = start;
    c->end = end;
    c->held = true;
    c->held_match = match;
    c->closed = false;
    return NEB_OK;
}

/* ---- what matches --------------------------------------------------------------------------------------- */

static neb_status by_regex(struct cutter *c, const struct neb_regex *regex, size_t n)
{
    struct neb_regex_search search;
    size_t at = 0, start = 0, end = 0;
    bool found = true;
    NEB_TRY(neb__regex_begin(regex, c->text, n, &search));
    neb_status status = NEB_OK;
    while (status == NEB_OK && found) {
        status = neb__regex_next(&search, &found, &start, &end);
        if (status != NEB_OK || !found) break;
        status = stretch(c, at, start, false);
        if (status == NEB_OK) status = stretch(c, start, end, true);
        at = end;
    }
    neb__regex_end(&search);
    return status == NEB_OK ? stretch(c, at, n, false) : status;
}

static neb_status by_text(struct cutter *c, const char *pattern, size_t n)
{
    size_t m = strlen(pattern), at = 0;
    while (m && at < n) {
        const char *hit = memmem(c->text + at, n - at, pattern, m);
        size_t start = hit ? (size_t)(hit - c->text) : n;
        NEB_TRY(stretch(c, at, start, false));
        if (hit) NEB_TRY(stretch(c, start, start + m, true));
        at = start + (hit ? m : 0);
    }
    return stretch(c, at, n, false);
}

typedef bool (*class_fn)(int32_t c);

static bool is_number(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    return k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO;
}

static neb_status by_class(struct cutter *c, class_fn is, size_t n)
{
    size_t from = 0;
    for (size_t at = 0, step; at < n; at += step) {
        if (!is(neb__tj_char(c->text, n, at, &step))) continue;
        NEB_TRY(stretch(c, from, at, false));
        NEB_TRY(stretch(c, at, at + step, true));
        from = at + step;
    }
    return stretch(c, from, n, false);
}

/* ---- steps ---------------------------------------------------------------------------------------------- */

static neb_status cut_by(const struct neb_tj_step *s, class_fn is, enum neb_tj_behavior behavior,
                         const char *text, size_t n, struct neb_tj_pieces *out)
{
    struct cutter c = {
        .text = text, .out = out, .behavior = behavior, .invert = s->kind == NEB_TJ_SPLIT && s->flag[0]};
    if (is)
        NEB_TRY(by_class(&c, is, n));
    else if (s->regex)
        NEB_TRY(by_regex(&c, s->regex, n));
    else
        NEB_TRY(by_text(&c, s->text, n));
    return flush(&c);
}

/* Keeps the matches alone. */
static neb_status words(const struct neb_tj_step *s, const char *text, size_t n, struct neb_tj_pieces *out)
{
    struct cutter c = {.text = text, .out = out, .behavior = NEB_TJ_REMOVED, .invert = true};
    NEB_TRY(by_regex(&c, s->regex, n));
    return flush(&c);
}

static neb_status bert(const struct neb_tj_step *s, const char *text, size_t n, struct neb_tj_pieces *out)
{
    struct neb_tj_pieces parts;
    neb__tj_pieces_init(&parts);
    neb_status status = cut_by(s, neb__tj_is_space, NEB_TJ_REMOVED, text, n, &parts);
    for (size_t i = 0; status == NEB_OK && i < neb__tj_pieces_count(&parts); i++) {
        size_t m;
        const char *p = neb__tj_pieces_at(&parts, i, &m);
        status = cut_by(s, neb__tj_is_punctuation, NEB_TJ_ISOLATED, p, m, out);
    }
    neb__tj_pieces_free(&parts);
    return status;
}

static neb_status metaspace(const struct neb_tj_step *s, bool first, const char *text, size_t n,
                            struct neb_tj_pieces *out)
{
    struct neb_buf marked;
    struct neb_tj_step blanks = {.text = (char *)" ", .by = s->text};
    size_t m = strlen(s->text);
    neb__buf_init(&marked, NEB_TJ_TEXT);
    bool starts = n && (text[0] == ' ' || (n >= m && !memcmp(text, s->text, m)));
    neb_status status = NEB_OK;
    if (!starts && (s->prepend == NEB_TJ_ALWAYS || (s->prepend == NEB_TJ_FIRST && first)))
        status = neb__buf_append(&marked, s->text, m);
    if (status == NEB_OK) status = neb__tj_replace(&blanks, text, n, &marked);
    struct cutter c = {.text = (const char *)marked.data, .out = out, .behavior = NEB_TJ_MERGED_WITH_NEXT};
    if (status == NEB_OK)
        status = s->flag[0] ? by_text(&c, s->text, marked.len) : stretch(&c, 0, marked.len, false);
    if (status == NEB_OK) status = flush(&c);
    neb__buf_free(&marked);
    return status;
}

static neb_status as_bytes(const char *text, size_t n, struct neb_tj_pieces *out)
{
    NEB_TRY(neb__byte_chars_encode(text, n, &out->text));
    return neb__buf_append(&out->ends, &out->text.len, sizeof out->text.len);
}

static neb_status byte_level(const struct neb_tj_step *s, const char *text, size_t n,
                             struct neb_tj_pieces *out)
{
    struct neb_buf led;
    neb__buf_init(&led, NEB_TJ_TEXT);
    neb_status status = NEB_OK;
    if (s->flag[0] && n && text[0] != ' ') {
        status = neb__buf_append(&led, " ", 1);
        if (status == NEB_OK) status = neb__buf_append(&led, text, n);
        text = (const char *)led.data;
        n = led.len;
    }
    for (size_t at = 0, part; status == NEB_OK && at < n; at += part) {
        part = s->flag[1] ? neb__bpe_part(text + at, n - at) : n;
        status = as_bytes(text + at, part, out);
    }
    neb__buf_free(&led);
    return status;
}

static neb_status cut(const struct neb_tj_step *s, bool first, const char *text, size_t n,
                      struct neb_tj_pieces *out)
{
    switch (s->kind) {
    case NEB_TJ_BERT_SPLIT: return bert(s, text, n, out);
    case NEB_TJ_BYTE_LEVEL: return byte_level(s, text, n, out);
    case NEB_TJ_METASPACE: return metaspace(s, first, text, n, out);
    case NEB_TJ_WHITESPACE: return words(s, text, n, out);
    case NEB_TJ_WHITESPACE_SPLIT: return cut_by(s, neb__tj_is_space, NEB_TJ_REMOVED, text, n, out);
    case NEB_TJ_PUNCTUATION: return cut_by(s, neb__tj_is_punctuation, s->behavior, text, n, out);
    case NEB_TJ_DIGITS: return cut_by(s, is_number, s->behavior, text, n, out);
    case NEB_TJ_SPLIT:
    case NEB_TJ_DELIMITER: return cut_by(s, NULL, s->behavior, text, n, out);
    default: return neb__fail(NEB_ERR_INTERNAL, "step %d is not a pre-tokeniser", (int)s->kind);
    }
}

static neb_status cut_all(const struct neb_tj_step *s, const struct neb_tj_pieces *in,
                          struct neb_tj_pieces *out)
{
    for (size_t i = 0; i < neb__tj_pieces_count(in); i++) {
        size_t n;
        const char *text = neb__tj_pieces_at(in, i, &n);
        NEB_TRY(cut(s, in->at_start && i == 0, text, n, out));
    }
    /* a step that drops what comes first leaves no piece at the start */
    size_t n = 0;
    const char *first = neb__tj_pieces_count(in) ? neb__tj_pieces_at(in, 0, &n) : NULL;
    out->at_start = in->at_start;
    if (s->kind == NEB_TJ_BERT_SPLIT || s->kind == NEB_TJ_WHITESPACE_SPLIT || s->kind == NEB_TJ_WHITESPACE) {
        size_t step;
        if (n && neb__tj_is_space(neb__tj_char(first, n, 0, &step))) out->at_start = false;
    }
    return NEB_OK;
}

neb_status neb__tj_split(const struct neb_tj_steps *s, struct neb_tj_pieces *p)
{
    for (int i = 0; i < s->n; i++) {
        struct neb_tj_pieces next;
        neb__tj_pieces_init(&next);
        neb_status status = cut_all(&s->step[i], p, &next);
        neb__tj_pieces_free(p);
        *p = next;
        if (status != NEB_OK) return status;
    }
    return NEB_OK;
}
