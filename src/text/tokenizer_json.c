/* tokenizer_json.c: a tokenizer.json as a tokenizer.
 *
 * The way of a text: bytes that are not UTF-8 become U+FFFD; added tokens that are looked for in the raw text are
 * cut out; the rest is normalised; added tokens that are looked for in normalised text are cut out; the rest is
 * split into pieces, and the model cuts each piece. Special added tokens (<s>, [MASK], …) are not looked for,
 * so no text can contain one, except T5's sentinels (<extra_id_0>, …), which are a part of its texts; only in a conversation's text they are, in raw text, where the template wrote them.
 *
 * The vocabulary is the model's, then the added tokens. tokenizer_config.json says which token is which. */
#include "text/tokenizer_json.h"
#include "base/mem.h"
#include "text/byte_chars.h"
#include "text/tokenizer_json_parts.h"

#include <stdlib.h>
#include <string.h>

struct added {
    int32_t id, order; /* order: in the file */
    char *text;        /* normalised, if it is looked for in normalised text */
    bool normalized, special;
    bool left, right, word; /* takes the white space on that side with it; only as a word of its own */
};

struct neb_tj {
    struct neb_vocabulary pieces;
    uint8_t *control; /* (size) */
    struct neb_tj_steps normalizer, splitter, decoder;
    struct neb_tj_model model;
    struct added *added; /* those that are looked for, sorted: in the raw text first, then by their bytes */
    int n_added, n_raw;
    int32_t special[NEB_TOK_SPECIALS];
    bool adds_start; /* a text begins with the start token */
    bool sentinels;  /* <extra_id_N> belong to the text */
};

static neb_status corrupt(const char *what)
{
    return neb__fail(NEB_ERR_CORRUPT, "tokenizer.json: %s", what);
}

/* ---- the vocabulary -------------------------------------------------------------------------------------- */

/* Calls fn for every piece of the model and every added token. */
typedef neb_status (*piece_fn)(struct neb_tj *t, const char *text, json_int_t id, void *arg);

static neb_status each_model_piece(struct neb_tj *t, const json_t *model, piece_fn fn, void *arg)
{
    const json_t *vocab = json_object_get(model, "vocab");
    const char *key;
    json_t *value;
    if (json_is_object(vocab)) {
        json_object_foreach((json_t *)vocab, key, value)
        {
            NEB_TRY(fn(t, key, json_is_integer(value) ? json_integer_value(value) : -1, arg));
        }
        return NEB_OK;
    }
    if (!json_is_array(vocab)) return corrupt("the model has no vocabulary");
    for (size_t i = 0; i < json_array_size(vocab); i++) {
        const char *text = json_string_value(json_array_get(json_array_get(vocab, i), 0));
        if (!text) return corrupt("a piece of the vocabulary is not a text with a score");
        NEB_TRY(fn(t, text, (json_int_t)i, arg));
    }
    return NEB_OK;
}

static neb_status each_piece(struct neb_tj *t, const json_t *j, piece_fn fn, void *arg)
{
    const json_t *list = json_object_get(j, "added_tokens");
    NEB_TRY(each_model_piece(t, json_object_get(j, "model"), fn, arg));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *a = json_array_get(list, i), *id = json_object_get(a, "id");
        const char *text = json_string_value(json_object_get(a, "content"));
        if (!text || !*text || !json_is_integer(id)) return corrupt("an added token has no content or no id");
        NEB_TRY(fn(t, text, json_integer_value(id), arg));
    }
    return NEB_OK;
}

struct extent {
    size_t size, bytes;
};

static neb_status measure(struct neb_tj *t, const char *text, json_int_t id, void *arg)
{
    struct extent *e = arg;
    (void)t;
    if (id < 0 || id >= NEB_VOCABULARY_MAX)
        return neb__fail(NEB_ERR_CORRUPT, "tokenizer.json: the number of piece '%.40s' is not possible",
                         text);
    if (e->size < (size_t)id + 1) e->size = (size_t)id + 1;
    e->bytes += strlen(text) + 1;
    return NEB_OK;
}

static neb_status take(struct neb_tj *t, const char *text, json_int_t id, void *arg)
{
    const char *there = neb__vocabulary_text(&t->pieces, (int32_t)id);
    (void)arg;
    if (!there) neb__vocabulary_put(&t->pieces, (int32_t)id, text, strlen(text));
    if (!there || !strcmp(there, text)) return NEB_OK;
    return neb__fail(NEB_ERR_CORRUPT, "tokenizer.json: '%.40s' and '%.40s' have the same number", there,
                     text);
}

static neb_status read_pieces(struct neb_tj *t, const json_t *j)
{
    struct extent e = {0};
    NEB_TRY(each_piece(t, j, measure, &e));
    if (!e.size) return corrupt("the vocabulary is empty");
    NEB_TRY(neb__vocabulary_init(&t->pieces, e.size, e.bytes + 1));
    t->control = NEB_NEW_ARRAY(uint8_t, e.size);
    if (!t->control) return neb__fail(NEB_ERR_NOMEM, "out of memory for a vocabulary of %zu", e.size);
    return each_piece(t, j, take, NULL);
}

/* ---- added tokens ---------------------------------------------------------------------------------------- */

/* <extra_id_0> and so on: they stand for a missing stretch of a text, in the text itself. So it is with T5's tokenizers (Unigram);
 * others have tokens of that name as marks that no text may hold. */
static bool is_sentinel(const char *text)
{
    static const char begin[] = "<extra_id_";
    const size_t at = sizeof begin - 1;
    if (strncmp(text, begin, at)) return false;
    const size_t digits = strspn(text + at, "0123456789");
    return digits && !strcmp(text + at + digits, ">");
}

static bool is_special(const struct neb_tj *t, const json_t *a)
{
    const char *text = json_string_value(json_object_get(a, "content"));
    return json_is_true(json_object_get(a, "special")) && text && !(t->sentinels && is_sentinel(text));
}

static neb_status keep_added(struct neb_tj *t, const json_t *a)
{
    const char *text = json_string_value(json_object_get(a, "content"));
    struct added *n = &t->added[t->n_added];
    struct neb_buf made;
    neb__buf_init(&made, 1 << 20);
    *n = (struct added){.id = (int32_t)json_integer_value(json_object_get(a, "id")),
                        .order = t->n_added,
                        .special = is_special(t, a),
                        .left = json_is_true(json_object_get(a, "lstrip")),
                        .right = json_is_true(json_object_get(a, "rstrip")),
                        .word = json_is_true(json_object_get(a, "single_word"))};
    n->normalized = !n->special && !json_is_false(json_object_get(a, "normalized"));
    neb_status status = n->normalized ? neb__tj_normalize(&t->normalizer, text, strlen(text), &made)
                                      : neb__buf_append(&made, text, strlen(text));
    if (status == NEB_OK) status = neb__buf_append(&made, "", 1);
    if (status == NEB_OK && !(n->text = neb__strdup((const char *)made.data)))
        status = neb__fail(NEB_ERR_NOMEM, "out of memory for a tokenizer");
    neb__buf_free(&made);
    if (status == NEB_OK) t->n_added++;
    return status;
}

static int by_bytes(const void *x, const void *y)
{
    const struct added *a = x, *b = y;
    if (a->normalized != b->normalized) return a->normalized ? 1 : -1;
    int c = strcmp(a->text, b->text);
    return c ? c : a->order - b->order;
}

static neb_status read_added(struct neb_tj *t, const json_t *list)
{
    size_t n = json_array_size(list);
    t->added = NEB_NEW_ARRAY(struct added, n + 1);
    if (!t->added) return neb__fail(NEB_ERR_NOMEM, "out of memory for a tokenizer");
    for (size_t i = 0; i < n; i++) {
        const json_t *a = json_array_get(list, i);
        if (is_special(t, a)) t->control[json_integer_value(json_object_get(a, "id"))] = 1;
        NEB_TRY(keep_added(t, a));
    }
    qsort(t->added, (size_t)t->n_added, sizeof *t->added, by_bytes);
    while (t->n_raw < t->n_added && !t->added[t->n_raw].normalized) t->n_raw++;
    return NEB_OK;
}

/* ---- which token is which -------------------------------------------------------------------------------- */

/* "…" or {"content": "…"} */
static int32_t named(const struct neb_tj *t, const json_t *config, const char *key)
{
    const json_t *v = json_object_get(config, key);
    const char *text = json_string_value(json_is_object(v) ? json_object_get(v, "content") : v);
    return text ? neb__tj_id(t, text, strlen(text)) : -1;
}

/* Old folders name no token: their classes know them by heart. */
static void find_usual(struct neb_tj *t)
{
    static const char *const usual[NEB_TOK_SPECIALS][3] = {{"[PAD]", "<pad>", ""},
                                                           {"[UNK]", "<unk>", ""},
                                                           {"[CLS]", "<s>", "<|endoftext|>"},
                                                           {"[SEP]", "</s>", "<|endoftext|>"},
                                                           {"[MASK]", "<mask>", ""}};
    for (int i = 0; i < NEB_TOK_SPECIALS; i++)
        for (int k = 0; k < 3 && t->special[i] < 0; k++) {
            const int32_t id = neb__tj_id(t, usual[i][k], strlen(usual[i][k]));
            if (id >= 0 && t->control[id]) t->special[i] = id;
        }
}

static void find_specials(struct neb_tj *t, const json_t *config)
{
    static const char *const keys[NEB_TOK_SPECIALS][2] = {{"pad_token", "pad_token"},
                                                          {"unk_token", "unk_token"},
                                                          {"bos_token", "cls_token"},
                                                          {"eos_token", "sep_token"},
                                                          {"mask_token", "mask_token"}};
    bool says = false;
    for (int i = 0; i < NEB_TOK_SPECIALS; i++) {
        t->special[i] = named(t, config, keys[i][0]);
        if (t->special[i] < 0) t->special[i] = named(t, config, keys[i][1]);
        says |= json_object_get(config, keys[i][0]) || json_object_get(config, keys[i][1]);
    }
    if (!says) find_usual(t);
    if (t->special[NEB_TOK_UNK] < 0) t->special[NEB_TOK_UNK] = t->model.unk;
    /* byte-level vocabularies need no unknown token, and many have one token for both ends of a text */
    int32_t end = t->special[NEB_TOK_EOS];
    if (t->special[NEB_TOK_UNK] < 0) t->special[NEB_TOK_UNK] = end;
    if (t->special[NEB_TOK_BOS] < 0) t->special[NEB_TOK_BOS] = end;
}

/* The first thing that a template puts before a text is the start token. */
static bool template_starts(const struct neb_tj *t, const json_t *p)
{
    const char *type = json_string_value(json_object_get(p, "type"));
    const json_t *list = json_object_get(p, "processors");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (template_starts(t, json_array_get(list, i))) return true;
    if (!type) return false;
    if (!strcmp(type, "RobertaProcessing") || !strcmp(type, "BertProcessing")) return true;
    if (strcmp(type, "TemplateProcessing")) return false;
    const json_t *first = json_array_get(json_object_get(p, "single"), 0);
    const char *id = json_string_value(json_object_get(json_object_get(first, "SpecialToken"), "id"));
    return id && neb__tj_id(t, id, strlen(id)) == t->special[NEB_TOK_BOS];
}

static bool finds_start(const struct neb_tj *t, const json_t *j, const json_t *config)
{
    const json_t *says = json_object_get(config, "add_bos_token");
    if (json_is_boolean(says)) return json_is_true(says) && named(t, config, "bos_token") >= 0;
    return template_starts(t, json_object_get(j, "post_processor"));
}

/* ---- loading ---------------------------------------------------------------------------------------------- */

static neb_status read_all(struct neb_tj *t, const json_t *j, const json_t *config)
{
    const json_t *model = json_object_get(j, "model");
    if (!json_is_object(model)) return corrupt("there is no model");
    NEB_TRY(read_pieces(t, j));
    NEB_TRY(neb__tj_steps_read(NEB_TJ_NORMALIZER, json_object_get(j, "normalizer"), &t->normalizer));
    NEB_TRY(neb__tj_steps_read(NEB_TJ_PRE_TOKENIZER, json_object_get(j, "pre_tokenizer"), &t->splitter));
    NEB_TRY(neb__tj_steps_read(NEB_TJ_DECODER, json_object_get(j, "decoder"), &t->decoder));
    const char *type = json_string_value(json_object_get(model, "type"));
    t->sentinels = type && !strcmp(type, "Unigram");
    NEB_TRY(read_added(t, json_object_get(j, "added_tokens")));
    t->model.pieces = &t->pieces;
    t->model.control = t->control;
    NEB_TRY(neb__tj_model_read(model, &t->model));
    find_specials(t, config);
    t->adds_start = finds_start(t, j, config);
    return NEB_OK;
}

static neb_status parse(const void *bytes, size_t n, const char *name, size_t flags, json_t **out)
{
    json_error_t e;
    *out = json_loadb(bytes, n, JSON_REJECT_DUPLICATES | flags, &e);
    if (json_is_object(*out)) return NEB_OK;
    return neb__fail(NEB_ERR_CORRUPT, "%s, line %d: %s", name, *out ? 1 : e.line,
                     *out ? "not an object" : e.text);
}

/* tokenizer_config.json may have a model_max_length beyond 64 bits; whole numbers mean nothing there. */
neb_status neb__tj_load(const struct neb_tj_files *f, struct neb_tj **out)
{
    json_t *j = NULL, *config = NULL;
    struct neb_tj *t = NEB_NEW(struct neb_tj);
    if (!t) return neb__fail(NEB_ERR_NOMEM, "out of memory for a tokenizer");
    neb_status status = parse(f->json, f->json_bytes, "tokenizer.json", 0, &j);
    if (status == NEB_OK)
        status = parse(f->config, f->config_bytes, "tokenizer_config.json", JSON_DECODE_INT_AS_REAL, &config);
    if (status == NEB_OK) status = read_all(t, j, config);
    json_decref(j);
    json_decref(config);
    if (status != NEB_OK) {
        neb__tj_free(t);
        return status;
    }
    *out = t;
    return NEB_OK;
}

void neb__tj_free(struct neb_tj *t)
{
    if (!t) return;
    for (int i = 0; i < t->n_added; i++) neb__free(t->added[i].text);
    neb__free(t->added);
    neb__tj_steps_free(&t->normalizer);
    neb__tj_steps_free(&t->splitter);
    neb__tj_steps_free(&t->decoder);
    neb__tj_model_free(&t->model);
    neb__vocabulary_free(&t->pieces);
    neb__free(t->control);
    neb__free(t);
}

int32_t neb__tj_size(const struct neb_tj *t)
{
    return t->pieces.size;
}

int32_t neb__tj_id(const struct neb_tj *t, const char *piece, size_t n)
{
    return neb__vocabulary_id(&t->pieces, piece, n);
}

const char *neb__tj_piece(const struct neb_tj *t, int32_t id)
{
    return neb__vocabulary_text(&t->pieces, id);
}

int32_t neb__tj_special(const struct neb_tj *t, enum neb_special which)
{
    return t->special[which];
}

int neb__tj_adds_start(const struct neb_tj *t)
{
    return t->adds_start;
}

int neb__tj_is_control(const struct neb_tj *t, int32_t id)
{
    return t->control[id];
}

/* ---- encoding --------------------------------------------------------------------------------------------- */

/* The first of the sorted tokens [lo, hi) whose byte `at` is c or more. */
static int first_at(const struct neb_tj *t, int lo, int hi, size_t at, int c)
{
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if ((uint8_t)t->added[mid].text[at] < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* The text that is being encoded. */
struct source {
    const uint8_t *plain; /* (bytes of the raw text) 0: a special token may begin here; NULL: nowhere */
    bool normalized, first;
};

/* The longest added token that stands at the front of the text, or NULL. A file may have thousands of them: the
 * range of those that go on like the text is narrowed byte by byte. */
static const struct added *added_at(const struct neb_tj *t, bool normalized, bool special, const char *p,
                                    size_t n)
{
    const struct added *best = NULL;
    int lo = normalized ? t->n_raw : 0, hi = normalized ? t->n_added : t->n_raw;
    for (size_t k = 0; k < n && p[k] && lo < hi; k++) {
        int c = (uint8_t)p[k];
        lo = first_at(t, lo, hi, k, c);
        hi = first_at(t, lo, hi, k, c + 1);
        if (lo < hi && !t->added[lo].text[k + 1] && (special || !t->added[lo].special)) best = &t->added[lo];
    }
    return best;
}

neb_status neb__tj_too_long(const char *part, size_t n, size_t most)
{
    return neb__fail(NEB_ERR_NOSPACE,
                     "the %s of tokenizer.json makes a text of %zu bytes longer than %zu bytes; give a "
                     "shorter text, or mend "
                     "the tokenizer",
                     part, n, most);
}

static neb_status pieces_to_ids(const struct neb_tj *t, const char *text, size_t n, bool first,
                                struct neb_buf *out)
{
    struct neb_tj_pieces p;
    neb__tj_pieces_init(&p);
    p.at_start = first;
    neb_status status = neb__tj_pieces_add(&p, text, n);
    if (status == NEB_OK) status = neb__tj_split(&t->splitter, &p);
    if (status == NEB_ERR_NOSPACE) status = neb__tj_too_long("pre_tokenizer", n, NEB_TJ_TEXT);
    for (size_t i = 0; status == NEB_OK && i < neb__tj_pieces_count(&p); i++) {
        size_t m;
        const char *piece = neb__tj_pieces_at(&p, i, &m);
        status = neb__tj_model_cut(&t->model, piece, m, out);
    }
    neb__tj_pieces_free(&p);
    return status;
}

static neb_status stretch(const struct neb_tj *t, struct source s, const char *text, size_t n,
                          struct neb_buf *out);

static bool is_word(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_ND) || k == UTF8PROC_CATEGORY_PC;
}

/* The character before place `at`, which is not 0, and where it begins. */
static int32_t char_before(const char *text, size_t at, size_t *begins)
{
    size_t i = at - 1, step;
    while (i > 0 && at - i < 4 && ((uint8_t)text[i] & 0xC0) == 0x80) i--;
    *begins = i;
    return neb__tj_char(text, at, i, &step);
}

/* Whether the token at [at, end) stands alone where it must. */
static bool stands_alone(const struct added *a, const char *text, size_t n, size_t at, size_t end)
{
    size_t unused;
    if (!a->word) return true;
    if (at > 0 && is_word(char_before(text, at, &unused))) return false;
    return end >= n || !is_word(neb__tj_char(text, n, end, &unused));
}

/* Makes [*at, *end) larger by the white space that the token takes with it, but not to the left of `from`. */
static void take_spaces(const struct added *a, const char *text, size_t n, size_t from, size_t *at,
                        size_t *end)
{
    size_t i;
    while (a->left && *at > from && neb__tj_is_space(char_before(text, *at, &i))) *at = i > from ? i : from;
    while (a->right && *end < n && neb__tj_is_space(neb__tj_char(text, n, *end, &i))) *end += i;
}

/* Cuts the added tokens out of the text. */
static neb_status cut_added(const struct neb_tj *t, struct source s, const char *text, size_t n,
                            struct neb_buf *out)
{
    size_t from = 0, at = 0;
    while (t->n_added && at < n) {
        const struct added *a =
            added_at(t, s.normalized, s.plain && !s.normalized && !s.plain[at], text + at, n - at);
        size_t end = at + (a ? strlen(a->text) : 1);
        if (!a || !stands_alone(a, text, n, at, end)) {
            at = end;
            continue;
        }
        take_spaces(a, text, n, from, &at, &end);
        NEB_TRY(stretch(t, s, text + from, at - from, out));
        NEB_TRY(neb__buf_append(out, &a->id, sizeof a->id));
        s.first = false;
        from = at = end;
    }
    return stretch(t, s, text + from, n - from, out);
}

static neb_status stretch(const struct neb_tj *t, struct source s, const char *text, size_t n,
                          struct neb_buf *out)
{
    if (!n) return NEB_OK;
    if (s.normalized) return pieces_to_ids(t, text, n, s.first, out);
    struct neb_buf made;
    neb__buf_init(&made, NEB_TJ_TEXT);
    neb_status status = NEB_OK;
    if (s.first) { /* a text whose first character vanishes does not begin where it began */
        size_t step;
        neb__tj_char(text, n, 0, &step);
        status = neb__tj_normalize(&t->normalizer, text, step, &made);
        s.first = made.len > 0;
        neb__buf_clear(&made);
    }
    s.normalized = true;
    if (status == NEB_OK) status = neb__tj_normalize(&t->normalizer, text, n, &made);
    if (status == NEB_OK && made.len) status = cut_added(t, s, (const char *)made.data, made.len, out);
    neb__buf_free(&made);
    return status;
}

neb_status neb__tj_encode(const struct neb_tj *t, const char *text, size_t n, struct neb_buf *out)
{
    struct neb_buf clean;
    neb__buf_init(&clean, NEB_TJ_TEXT);
    neb_status status = neb__utf8_repair((const uint8_t *)text, n, &clean);
    if (status == NEB_OK && clean.len)
        status = cut_added(t, (struct source){.first = true}, (const char *)clean.data, clean.len, out);
    neb__buf_free(&clean);
    return status;
}

neb_status neb__tj_encode_special(const struct neb_tj *t, const char *text, size_t n, const uint8_t *plain,
                                  struct neb_buf *out)
{
    return n ? cut_added(t, (struct source){.plain = plain, .first = true}, text, n, out) : NEB_OK;
}

neb_status neb__tj_decode(const struct neb_tj *t, const int32_t *ids, size_t n, struct neb_buf *out)
{
    struct neb_tj_pieces p;
    neb__tj_pieces_init(&p);
    neb_status status = NEB_OK;
    for (size_t i = 0; status == NEB_OK && i < n; i++) {
        const char *piece = neb__tj_piece(t, ids[i]);
        if (!piece)
            status = neb__fail(NEB_ERR_RANGE, "token %d is not in the vocabulary", (int)ids[i]);
        else if (!t->control[ids[i]])
            status = neb__tj_pieces_add(&p, piece, strlen(piece));
    }
    if (status == NEB_OK) status = neb__tj_join(&t->decoder, &p, out);
    if (status == NEB_ERR_NOSPACE) status = neb__tj_too_long("decoder", p.text.len, NEB_TJ_TEXT);
    neb__tj_pieces_free(&p);
    return status;
}
