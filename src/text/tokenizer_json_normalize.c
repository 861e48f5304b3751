/* tokenizer_json_normalize.c: normalisers: text to text, as the tokenizers library does it. Unicode's tables are
 * those of utf8proc. All text here is UTF-8 that was checked. */
#define _GNU_SOURCE
#include "text/tokenizer_json_parts.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

bool neb__tj_is_space(int32_t c)
{
    return (c >= 9 && c <= 13) || c == 32 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
           c == 0x3000;
}

bool neb__tj_is_punctuation(int32_t c)
{
    if ((c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) || (c >= 123 && c <= 126))
        return true;
    utf8proc_category_t k = utf8proc_category(c);
    return k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO;
}

int32_t neb__tj_char(const char *text, size_t n, size_t at, size_t *step)
{
    utf8proc_int32_t c;
    utf8proc_ssize_t k =
        utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(n - at), &c);
    *step = k > 0 ? (size_t)k : 1;
    return k > 0 ? c : 0xFFFD;
}

static neb_status put(struct neb_buf *out, int32_t c)
{
    utf8proc_uint8_t bytes[4];
    utf8proc_ssize_t n = utf8proc_encode_char(c, bytes);
    return neb__buf_append(out, bytes, (size_t)n);
}

/* ---- by character: what a character becomes, appended --------------------------------------------------- */

typedef neb_status (*each_fn)(int32_t c, struct neb_buf *out);

static neb_status each(const char *text, size_t n, each_fn fn, struct neb_buf *out)
{
    for (size_t at = 0, step; at < n; at += step) NEB_TRY(fn(neb__tj_char(text, n, at, &step), out));
    return NEB_OK;
}

static neb_status lower(int32_t c, struct neb_buf *out)
{
    if (c == 0x130) return neb__buf_append(out, "i\xCC\x87", 3); /* the one that becomes two */
    return put(out, utf8proc_tolower(c));
}

static neb_status without_accent(int32_t c, struct neb_buf *out)
{
    return utf8proc_category(c) == UTF8PROC_CATEGORY_MN ? NEB_OK : put(out, c);
}

/* StripAccents removes every kind of mark, BERT's normaliser those without a width. */
static neb_status without_mark(int32_t c, struct neb_buf *out)
{
    utf8proc_category_t k = utf8proc_category(c);
    return k >= UTF8PROC_CATEGORY_MN && k <= UTF8PROC_CATEGORY_ME ? NEB_OK : put(out, c);
}

static neb_status nmt(int32_t c, struct neb_buf *out)
{
    static const int32_t gone[][2] = {{1, 8},       {0xB, 0xB},   {0xE, 0x1F},
                                      {0x7F, 0x7F}, {0x8F, 0x8F}, {0x9F, 0x9F}};
    static const int32_t blank[][2] = {{9, 0xA},         {0xC, 0xD},       {0x1680, 0x1680},
                                       {0x200B, 0x200F}, {0x2028, 0x2029}, {0x2581, 0x2581},
                                       {0xFEFF, 0xFEFF}, {0xFFFD, 0xFFFD}};
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++)
        if (c >= gone[i][0] && c <= gone[i][1]) return NEB_OK;
    for (size_t i = 0; i < sizeof blank / sizeof *blank; i++)
        if (c >= blank[i][0] && c <= blank[i][1]) return neb__buf_append(out, " ", 1);
    return put(out, c);
}

static neb_status clean(int32_t c, struct neb_buf *out)
{
    if (c == '\t' || c == '\n' || c == '\r') return neb__buf_append(out, " ", 1);
    utf8proc_category_t k = utf8proc_category(c);
    if (!c || c == 0xFFFD || k == UTF8PROC_CATEGORY_CN || k >= UTF8PROC_CATEGORY_CC) return NEB_OK;
    return neb__tj_is_space(c) ? neb__buf_append(out, " ", 1) : put(out, c);
}

static neb_status chinese(int32_t c, struct neb_buf *out)
{
    bool han = (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
               (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
               (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
               (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
    if (!han) return put(out, c);
    NEB_TRY(neb__buf_append(out, " ", 1));
    NEB_TRY(put(out, c));
    return neb__buf_append(out, " ", 1);
}

/* ---- the whole text ------------------------------------------------------------------------------------ */

static int class_of(int32_t c)
{
    return utf8proc_get_property(c)->combining_class;
}

/* Orders the marks behind a letter by their classes. utf8proc_map() does so too, but in quadratic time, and a text may
 * be one letter with a million marks. */
static void order_marks(int32_t *c, int32_t *room, size_t n)
{
    size_t count[257] = {0};
    for (size_t i = 0; i < n; i++) count[class_of(c[i]) + 1]++;
    for (int k = 0; k < 256; k++) count[k + 1] += count[k];
    memcpy(room, c, n * sizeof *c);
    for (size_t i = 0; i < n; i++) c[count[class_of(room[i])]++] = room[i];
}

static void order_all(int32_t *c, int32_t *room, size_t n)
{
    for (size_t i = 0, end; i < n; i = end) {
        bool sorted = true;
        end = i + 1;
        if (!class_of(c[i])) continue;
        for (; end < n && class_of(c[end]); end++) sorted &= class_of(c[end]) >= class_of(c[end - 1]);
        if (!sorted) order_marks(c + i, room, end - i);
    }
}

static neb_status decompose(const char *text, size_t n, utf8proc_option_t how, struct neb_buf *out)
{
    int bounds = 0;
    for (size_t at = 0, step; at < n; at += step) {
        int32_t made[32];
        utf8proc_ssize_t k =
            utf8proc_decompose_char(neb__tj_char(text, n, at, &step), made, 32, how, &bounds);
        if (k < 0 || k > 32)
            return neb__fail(NEB_ERR_CORRUPT, "a text cannot be normalised: %s", utf8proc_errmsg(k));
        NEB_TRY(neb__buf_append(out, made, (size_t)k * sizeof *made));
    }
    return NEB_OK;
}

static neb_status compose(const char *text, size_t n, utf8proc_option_t how, struct neb_buf *out)
{
    struct neb_buf made;
    neb__buf_init(&made, 8 * (size_t)NEB_TJ_TEXT);
    neb_status status = decompose(text, n, how | UTF8PROC_STABLE, &made);
    const size_t count = made.len / sizeof(int32_t);
    if (status == NEB_OK)
        status = neb__buf_reserve(&made, made.len + sizeof(int32_t)); /* and room to order them */
    int32_t *c = (int32_t *)(void *)made.data;
    if (status == NEB_OK) order_all(c, c + count, count);
    utf8proc_ssize_t k =
        status == NEB_OK ? utf8proc_normalize_utf32(c, (utf8proc_ssize_t)count, how | UTF8PROC_STABLE) : 0;
    for (utf8proc_ssize_t i = 0; status == NEB_OK && i < k; i++) status = put(out, c[i]);
    neb__buf_free(&made);
    return status;
}

static neb_status strip(const struct neb_tj_step *s, const char *text, size_t n, struct neb_buf *out)
{
    size_t from = 0, end = n, step;
    while (s->flag[0] && from < n && neb__tj_is_space(neb__tj_char(text, n, from, &step))) from += step;
    while (s->flag[1] && end > from) {
        size_t last = end - 1;
        while (last > from && ((uint8_t)text[last] & 0xC0) == 0x80) last--;
        if (!neb__tj_is_space(neb__tj_char(text, n, last, &step))) break;
        end = last;
    }
    return neb__buf_append(out, text + from, end - from);
}

static neb_status replace_text(const struct neb_tj_step *s, const char *text, size_t n, struct neb_buf *out)
{
    size_t m = strlen(s->text), by = strlen(s->by), at = 0;
    while (at < n) {
        const char *hit = m ? memmem(text + at, n - at, s->text, m) : NULL;
        size_t until = hit ? (size_t)(hit - text) : n;
        NEB_TRY(neb__buf_append(out, text + at, until - at));
        if (hit) NEB_TRY(neb__buf_append(out, s->by, by));
        at = until + (hit ? m : 0);
    }
    return NEB_OK;
}

neb_status neb__tj_replace(const struct neb_tj_step *s, const char *text, size_t n, struct neb_buf *out)
{
    struct neb_regex_search search;
    size_t at = 0, start = 0, end = 0;
    bool found = true;
    if (!s->regex) return replace_text(s, text, n, out);
    NEB_TRY(neb__regex_begin(s->regex, text, n, &search));
    neb_status status = NEB_OK;
    while (status == NEB_OK && found) {
        status = neb__regex_next(&search, &found, &start, &end);
        if (status != NEB_OK || !found) break;
        status = neb__buf_append(out, text + at, start - at);
        if (status == NEB_OK) status = neb__buf_append(out, s->by, strlen(s->by));
        at = end;
    }
    neb__regex_end(&search);
    return status == NEB_OK ? neb__buf_append(out, text + at, n - at) : status;
}

static neb_status prepend(const struct neb_tj_step *s, const char *text, size_t n, struct neb_buf *out)
{
    if (n) NEB_TRY(neb__buf_append(out, s->text, strlen(s->text)));
    return neb__buf_append(out, text, n);
}

static neb_status one(const struct neb_tj_step *s, const char *text, size_t n, struct neb_buf *out)
{
    switch (s->kind) {
    case NEB_TJ_NFC: return compose(text, n, UTF8PROC_COMPOSE, out);
    case NEB_TJ_NFD: return compose(text, n, UTF8PROC_DECOMPOSE, out);
    case NEB_TJ_NFKC: return compose(text, n, UTF8PROC_COMPOSE | UTF8PROC_COMPAT, out);
    case NEB_TJ_NFKD: return compose(text, n, UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT, out);
    case NEB_TJ_LOWER: return each(text, n, lower, out);
    case NEB_TJ_STRIP_ACCENTS: return each(text, n, without_mark, out);
    case NEB_TJ_STRIP: return strip(s, text, n, out);
    case NEB_TJ_REPLACE: return neb__tj_replace(s, text, n, out);
    case NEB_TJ_PREPEND: return prepend(s, text, n, out);
    case NEB_TJ_NMT: return each(text, n, nmt, out);
    case NEB_TJ_CHARSMAP: return neb__charsmap_apply(s->map, text, n, out);
    default: return neb__fail(NEB_ERR_INTERNAL, "step %d is not a normaliser", (int)s->kind);
    }
}

/* How many times longer a text may become: no character has so long a decomposition. Steps that replace a letter by many would
 * fill the memory. */
enum { GROWTH = 256, SMALL = 1 << 20 };

struct two { /* two buffers that take turns */
    struct neb_buf b[2];
    int now;
};

static struct neb_buf *other(struct two *t)
{
    neb__buf_clear(&t->b[!t->now]);
    return &t->b[!t->now];
}

static const char *text_of(const struct two *t)
{
    return (const char *)t->b[t->now].data;
}

/* BERT's normaliser is five passes, each of which the file may switch off. */
static neb_status bert(const struct neb_tj_step *s, struct two *t)
{
    const struct {
        bool on;
        each_fn fn; /* NULL: decompose */
    } passes[] = {{s->flag[0], clean},
                  {s->flag[1], chinese},
                  {s->flag[2], NULL},
                  {s->flag[2], without_accent},
                  {s->flag[3], lower}};
    for (size_t i = 0; i < sizeof passes / sizeof *passes; i++) {
        if (!passes[i].on) continue;
        const char *text = text_of(t);
        size_t n = t->b[t->now].len;
        struct neb_buf *out = other(t);
        NEB_TRY(passes[i].fn ? each(text, n, passes[i].fn, out) : compose(text, n, UTF8PROC_DECOMPOSE, out));
        t->now = !t->now;
    }
    return NEB_OK;
}

neb_status neb__tj_normalize(const struct neb_tj_steps *s, const char *text, size_t n, struct neb_buf *out)
{
    struct two t = {.now = 0};
    const size_t most = n < (NEB_TJ_TEXT - SMALL) / GROWTH ? n * GROWTH + SMALL : NEB_TJ_TEXT;
    neb__buf_init(&t.b[0], most);
    neb__buf_init(&t.b[1], most);
    neb_status status = neb__buf_append(&t.b[0], text, n);
    for (int i = 0; status == NEB_OK && i < s->n; i++) {
        const struct neb_tj_step *step = &s->step[i];
        if (!t.b[t.now].len) break;
        if (step->kind == NEB_TJ_BERT_NORMALIZER) {
            status = bert(step, &t);
            continue;
        }
        status = one(step, text_of(&t), t.b[t.now].len, other(&t));
        t.now = !t.now;
    }
    if (status == NEB_OK) status = neb__buf_append(out, t.b[t.now].data, t.b[t.now].len);
    neb__buf_free(&t.b[0]);
    neb__buf_free(&t.b[1]);
    if (status == NEB_ERR_NOSPACE) return neb__tj_too_long("normalizer", n, most);
    return status;
}
