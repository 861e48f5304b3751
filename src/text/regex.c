/* regex.c: PCRE2 behind a small interface.
 *
 * A pattern comes from a file that nobody vouches for. A search therefore has a limit on its work; beyond it the
 * text is refused instead of taking for ever. Text is checked UTF-8 before it comes here. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex.h"
#include "base/buf.h"
#include "base/mem.h"

#include <pcre2.h>
#include <string.h>

enum { MAX_PATTERN = 1 << 16, WORK = 10000000 };

struct neb_regex {
    pcre2_code *code;
    pcre2_match_context *limits;
    pcre2_general_context *memory;
};

static void *take(PCRE2_SIZE n, void *arg)
{
    (void)arg;
    return neb__malloc(n);
}

static void give(void *p, void *arg)
{
    (void)arg;
    neb__free(p);
}

/* PCRE2 takes the name of a script for all characters that this script uses, punctuation among them. */
static bool is_script(const char *p)
{
    static const char *const names[] = {"Han",    "Hiragana", "Katakana",   "Hangul",  "Thai",  "Lao",
                                        "Arabic", "Hebrew",   "Latin",      "Greek",   "Khmer", "Tibetan",
                                        "Tamil",  "Cyrillic", "Devanagari", "Bengali", "Common"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strncmp(p, names[i], strlen(names[i])) && p[strlen(names[i])] == '}') return true;
    return false;
}

/* Oniguruma's \w has marks and no other numbers than digits; \h is a hexadecimal digit there; its \s is Unicode's
 * White_Space, which U+180E has left. A class inside a class, or two with && between them, has no counterpart. */
static neb_status rewrite(const char *p, struct neb_buf *out)
{
    static const char word[] = "\\p{L}\\p{M}\\p{Nd}\\p{Pc}";
    bool inside = false;
    for (; *p; p++) {
        if (inside && ((*p == '[' && p[1] != ':') || (*p == '&' && p[1] == '&')))
            return neb__fail(NEB_ERR_UNSUPPORTED,
                             "the pattern has a class inside a class, which is not supported");
        if (*p == '\\' && p[1]) {
            char c = *++p;
            if (strchr("hHGKRXyYO", c) || (c == 'W' && inside))
                return neb__fail(NEB_ERR_UNSUPPORTED, "the pattern has '\\%c', which is not supported", c);
            if (c == 'w' || c == 'W')
                NEB_TRY(neb__buf_printf(out, inside ? "%s%s" : "[%s%s]", c == 'W' ? "^" : "", word));
            else if (c == 's' || c == 'S')
                NEB_TRY(neb__buf_printf(out, "\\%c{White_Space}", c == 's' ? 'p' : 'P'));
            else
                NEB_TRY(neb__buf_printf(out, "\\%c", c));
            if ((c == 'p' || c == 'P') && p[1] == '{' && is_script(p + 2)) {
                NEB_TRY(neb__buf_append(out, "{sc:", 4));
                p++;
            }
            continue;
        }
        if (*p == '[') inside = true;
        if (*p == ']') inside = false;
        NEB_TRY(neb__buf_append(out, p, 1));
    }
    return neb__buf_append(out, "", 1);
}

static neb_status compile(struct neb_regex *r, const char *pattern)
{
    int error = 0;
    PCRE2_SIZE at = 0;
    pcre2_compile_context *c = NULL;
    if (!(r->memory = pcre2_general_context_create(take, give, NULL)) ||
        !(c = pcre2_compile_context_create(r->memory)) ||
        !(r->limits = pcre2_match_context_create(r->memory))) {
        pcre2_compile_context_free(c);
        return neb__fail(NEB_ERR_NOMEM, "out of memory for a pattern");
    }
    pcre2_set_match_limit(r->limits, WORK);
    pcre2_set_depth_limit(r->limits, 10000);
    r->code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE /* as Oniguruma's ^ and $ */ |
                                PCRE2_NEVER_BACKSLASH_C,
                            &error, &at, c);
    pcre2_compile_context_free(c);
    if (r->code) {
        (void)pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE); /* without it searching is slower */
        return NEB_OK;
    }
    if (error == PCRE2_ERROR_HEAP_FAILED) return neb__fail(NEB_ERR_NOMEM, "out of memory for a pattern");
    PCRE2_UCHAR text[160];
    pcre2_get_error_message(error, text, sizeof text);
    return neb__fail(NEB_ERR_UNSUPPORTED, "the pattern '%.80s' cannot be used, at byte %zu: %s", pattern, at,
                     (const char *)text);
}

neb_status neb__regex_create(const char *pattern, struct neb_regex **out)
{
    struct neb_buf text;
    struct neb_regex *r = NEB_NEW(struct neb_regex);
    if (!r) return neb__fail(NEB_ERR_NOMEM, "out of memory for a pattern");
    neb__buf_init(&text, MAX_PATTERN);
    neb_status status = rewrite(pattern, &text);
    if (status == NEB_OK) status = compile(r, (const char *)text.data);
    neb__buf_free(&text);
    if (status != NEB_OK) {
        neb__regex_free(r);
        return status;
    }
    *out = r;
    return NEB_OK;
}

void neb__regex_free(struct neb_regex *r)
{
    if (!r) return;
    pcre2_code_free(r->code);
    pcre2_match_context_free(r->limits);
    pcre2_general_context_free(r->memory);
    neb__free(r);
}

neb_status neb__regex_begin(const struct neb_regex *r, const char *text, size_t n,
                            struct neb_regex_search *out)
{
    void *match = pcre2_match_data_create(1, r->memory);
    if (!match) return neb__fail(NEB_ERR_NOMEM, "out of memory for a search");
    *out = (struct neb_regex_search){.regex = r, .text = text, .n = n, .match = match};
    return NEB_OK;
}

neb_status neb__regex_next(struct neb_regex_search *s, bool *found, size_t *start, size_t *end)
{
    *found = false;
    while (s->at < s->n) {
        int k = pcre2_match(s->regex->code, (PCRE2_SPTR)s->text, s->n, s->at,
                            PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, s->match, s->regex->limits);
        if (k == PCRE2_ERROR_JIT_STACKLIMIT) /* without the JIT the heap is the stack */
            k = pcre2_match(s->regex->code, (PCRE2_SPTR)s->text, s->n, s->at,
                            PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY | PCRE2_NO_JIT, s->match, s->regex->limits);
        if (k == PCRE2_ERROR_NOMATCH) return NEB_OK;
        if (k == PCRE2_ERROR_NOMEMORY) return neb__fail(NEB_ERR_NOMEM, "out of memory for a search");
        if (k < 0)
            return neb__fail(NEB_ERR_RANGE, "the tokenizer's pattern takes too long on this text (%d)", k);
        const PCRE2_SIZE *v = pcre2_get_ovector_pointer(s->match);
        if (v[1] <= v[0]) return NEB_OK; /* \K may turn them round; rewrite() refuses it */
        *found = true;
        *start = v[0];
        *end = s->at = v[1];
        return NEB_OK;
    }
    return NEB_OK;
}

void neb__regex_end(struct neb_regex_search *s)
{
    pcre2_match_data_free(s->match);
}
