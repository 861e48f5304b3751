/* tokenizer.c: one interface for all tokenizers, and the numbering of their ids.
 *
 * Callers see ids that are the rows of the model's vocabulary ("outside"). With layout XLMR they differ from
 * SentencePiece's own ("inside"): fairseq put <s> 0, <pad> 1, </s> 2, <unk> 3 in front, shifted the pieces by
 * one and added <mask> at the end. Layout T5 adds a hundred sentinels behind the pieces, which SentencePiece does not know: they are
 * cut out of a text before it, and stand for themselves in what it joins. */
#include "text/tokenizer.h"
#include "text/bpe.h"
#include "text/sp_shim.h"
#include "text/sp_vocab.h"
#include "text/tokenizer_json.h"
#include "text/wordpiece.h"
#include "base/file.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MAX_MODEL = 256 << 20, MAX_TRAIN_KEYS = 48, SENTINELS = 100, SENTINEL = 16 };

struct neb_tok {
    struct neb_sp *sp; /* one of the five */
    struct neb_wp *wp;
    struct neb_bpe *bpe;
    struct neb_tj *json;
    struct neb_spv *spv;
    enum neb_tok_layout layout;
    char sentinel[SENTINELS][SENTINEL]; /* with layout T5: the last ids, in their order */
    int32_t vocab, special[NEB_TOK_SPECIALS];
    uint8_t *special_map; /* (vocab) */
    struct neb_hash hash;
};

static const char *const layouts[] = {
    [NEB_TOK_PLAIN] = "plain", [NEB_TOK_XLMR] = "xlm-r", [NEB_TOK_T5] = "t5"};

enum neb_tok_layout neb__tok_layout_named(const char *name)
{
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
        if (!strcmp(layouts[i], name)) return (enum neb_tok_layout)i;
    return NEB_TOK_PLAIN;
}

const char *neb__tok_layout_name(enum neb_tok_layout layout)
{
    return layouts[layout];
}

int32_t neb__tok_vocab(const struct neb_tok *tok)
{
    return tok->vocab;
}

int32_t neb__tok_special(const struct neb_tok *tok, enum neb_special which)
{
    return tok->special[which];
}

const uint8_t *neb__tok_special_map(const struct neb_tok *tok)
{
    return tok->special_map;
}

const struct neb_hash *neb__tok_hash(const struct neb_tok *tok)
{
    return &tok->hash;
}

/* Turns SentencePiece's id into ours. */
static int32_t outside(const struct neb_tok *tok, int32_t id)
{
    if (tok->layout != NEB_TOK_XLMR) return id;
    static const int32_t front[3] = {3, 0, 2}; /* <unk> <s> </s> */
    return id < 3 ? front[id] : id + 1;
}

/* Turns our id into SentencePiece's; -1 for <pad>, <mask> and sentinels, which it does not know. */
static int32_t inside(const struct neb_tok *tok, int32_t id)
{
    if (tok->layout == NEB_TOK_T5 && id >= tok->vocab - SENTINELS) return -1;
    if (tok->layout != NEB_TOK_XLMR) return id;
    static const int32_t front[4] = {1, -1, 2, 0};
    if (id == tok->vocab - 1) return -1;
    return id < 4 ? front[id] : id - 1;
}

/* The sentinel at the front of the text, or -1. */
static int32_t sentinel_at(const struct neb_tok *tok, const char *text, size_t n, size_t *length)
{
    static const char begin[] = "<extra_id_";
    const size_t at = sizeof begin - 1;
    if (tok->layout != NEB_TOK_T5 || n < at || memcmp(text, begin, at)) return -1;
    for (int i = 0; i < SENTINELS; i++) {
        *length = strlen(tok->sentinel[i]);
        if (*length <= n && !memcmp(text, tok->sentinel[i], *length)) return tok->vocab - SENTINELS + i;
    }
    return -1;
}

int32_t neb__tok_id(const struct neb_tok *tok, const char *piece)
{
    if (tok->wp) return neb__wp_id(tok->wp, piece, strlen(piece));
    if (tok->bpe) return neb__bpe_id(tok->bpe, piece, strlen(piece));
    if (tok->json) return neb__tj_id(tok->json, piece, strlen(piece));
    if (tok->spv) return neb__spv_id(tok->spv, piece);
    if (tok->layout == NEB_TOK_XLMR && !strcmp(piece, "<pad>")) return tok->special[NEB_TOK_PAD];
    if (tok->layout == NEB_TOK_XLMR && !strcmp(piece, "<mask>")) return tok->special[NEB_TOK_MASK];
    size_t length;
    int32_t id = sentinel_at(tok, piece, strlen(piece), &length);
    if (id >= 0 && length == strlen(piece)) return id;
    id = neb__sp_id(tok->sp, piece);
    return id < 0 ? -1 : outside(tok, id);
}

const char *neb__tok_piece(const struct neb_tok *tok, int32_t id)
{
    if (id < 0 || id >= tok->vocab) return NULL;
    if (tok->wp) return neb__wp_piece(tok->wp, id);
    if (tok->bpe) return neb__bpe_piece(tok->bpe, id);
    if (tok->json) return neb__tj_piece(tok->json, id);
    if (tok->spv) return neb__spv_piece(tok->spv, id);
    int32_t in = inside(tok, id);
    if (in < 0 && tok->layout == NEB_TOK_T5) return tok->sentinel[id - (tok->vocab - SENTINELS)];
    if (in < 0) return id == tok->special[NEB_TOK_MASK] ? "<mask>" : "<pad>";
    return neb__sp_piece(tok->sp, in);
}

bool neb__tok_adds_start(const struct neb_tok *tok)
{
    return tok->special[NEB_TOK_BOS] >= 0 && (!tok->json || neb__tj_adds_start(tok->json));
}

int neb__tok_is_byte(const struct neb_tok *tok, int32_t id)
{
    int32_t in = tok->sp && id >= 0 && id < tok->vocab ? inside(tok, id) : -1;
    return in >= 0 && neb__sp_is_byte(tok->sp, in);
}

int neb__tok_merges_in_order(const struct neb_tok *tok)
{
    return tok->sp && neb__sp_merges_in_order(tok->sp);
}

int32_t neb__tok_lang(const struct neb_tok *tok, const char *lang)
{
    char piece[40];
    if (snprintf(piece, sizeof piece, "<2%s>", lang) >= (int)sizeof piece) return -1;
    return neb__tok_id(tok, piece);
}

static void find_specials_sp(struct neb_tok *tok)
{
    if (tok->layout == NEB_TOK_XLMR) {
        tok->vocab = neb__sp_size(tok->sp) + 2;
        const int32_t ids[NEB_TOK_SPECIALS] = {1, 3, 0, 2, tok->vocab - 1};
        memcpy(tok->special, ids, sizeof ids);
        return;
    }
    tok->vocab = neb__sp_size(tok->sp);
    if (tok->layout == NEB_TOK_T5) tok->vocab += SENTINELS;
    for (int i = 0; i < SENTINELS; i++)
        snprintf(tok->sentinel[i], SENTINEL, "<extra_id_%d>", SENTINELS - 1 - i);
    tok->special[NEB_TOK_PAD] = neb__sp_pad(tok->sp);
    tok->special[NEB_TOK_UNK] = neb__sp_unk(tok->sp);
    tok->special[NEB_TOK_BOS] = neb__sp_bos(tok->sp);
    tok->special[NEB_TOK_EOS] = neb__sp_eos(tok->sp);
    tok->special[NEB_TOK_MASK] = neb__sp_id(tok->sp, "<mask>");
}

static void find_specials_wp(struct neb_tok *tok)
{
    static const char *const names[NEB_TOK_SPECIALS] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
    tok->vocab = neb__wp_size(tok->wp);
    for (int i = 0; i < NEB_TOK_SPECIALS; i++) tok->special[i] = neb__tok_id(tok, names[i]);
}

/* Uses RoBERTa's names; GPT-2 has one token for all purposes. */
static void find_specials_bpe(struct neb_tok *tok)
{
    static const char *const names[NEB_TOK_SPECIALS] = {"<pad>", "<unk>", "<s>", "</s>", "<mask>"};
    int32_t all = neb__tok_id(tok, "<|endoftext|>");
    tok->vocab = neb__bpe_size(tok->bpe);
    for (int i = 0; i < NEB_TOK_SPECIALS; i++) {
        tok->special[i] = neb__tok_id(tok, names[i]);
        if (tok->special[i] < 0 && i != NEB_TOK_PAD && i != NEB_TOK_MASK) tok->special[i] = all;
    }
}

static void find_specials_spv(struct neb_tok *tok)
{
    static const char *const names[NEB_TOK_SPECIALS] = {"<pad>", "<unk>", "<s>", "</s>", "<mask>"};
    tok->vocab = neb__spv_size(tok->spv);
    for (int i = 0; i < NEB_TOK_SPECIALS; i++) tok->special[i] = neb__spv_id(tok->spv, names[i]);
}

static void find_specials_json(struct neb_tok *tok)
{
    tok->vocab = neb__tj_size(tok->json);
    for (int i = 0; i < NEB_TOK_SPECIALS; i++)
        tok->special[i] = neb__tj_special(tok->json, (enum neb_special)i);
}

static neb_status mark_specials(struct neb_tok *tok)
{
    static const char *const names[NEB_TOK_SPECIALS] = {"padding", "unknown", "start", "end", "mask"};
    /* T5's and Marian's have no start token: their targets start with padding (frame.h) */
    const bool may_lack_start = tok->sp || tok->spv;
    for (int i = 0; i < NEB_TOK_MASK; i++)
        if (tok->special[i] < 0 && i != NEB_TOK_PAD && (i != NEB_TOK_BOS || !may_lack_start))
            return neb__fail(NEB_ERR_CORRUPT, "the tokenizer has no %s token", names[i]);
    tok->special_map = NEB_NEW_ARRAY(uint8_t, (size_t)tok->vocab);
    if (!tok->special_map)
        return neb__fail(NEB_ERR_NOMEM, "out of memory for a vocabulary of %d", (int)tok->vocab);
    for (int i = 0; i < NEB_TOK_SPECIALS; i++)
        if (tok->special[i] >= 0) tok->special_map[tok->special[i]] = 1;
    for (int32_t id = 0; tok->sp && id < neb__sp_size(tok->sp); id++)
        if (neb__sp_is_special(tok->sp, id)) tok->special_map[outside(tok, id)] = 1;
    for (int32_t id = 0; tok->json && id < tok->vocab; id++)
        if (neb__tj_is_control(tok->json, id)) tok->special_map[id] = 1;
    for (int32_t id = 0; tok->spv && id < tok->vocab; id++)
        if (neb__spv_is_language(tok->spv, id)) tok->special_map[id] = 1;
    return NEB_OK;
}

/* Mixes a setting into the hash, because the same file gives other ids when it is numbered or cut
 * differently. */
static neb_status mix_in(struct neb_tok *tok, const char *setting)
{
    char both[2 * NEB_HASH_SIZE + 32];
    neb__hash_hex(&tok->hash, both);
    snprintf(both + 2 * NEB_HASH_SIZE, 32, " %s", setting);
    return neb__hash(both, strlen(both), &tok->hash);
}

neb_status neb__tok_open_bytes(const void *bytes, size_t n, int wordpiece, const struct neb_tok_cfg *cfg,
                               struct neb_tok **out)
{
    struct neb_tok *tok = NEB_NEW(struct neb_tok);
    if (!tok) return neb__fail(NEB_ERR_NOMEM, "out of memory for a tokenizer");
    neb_status status;
    NEB_TRY_GOTO(status, neb__hash(bytes, n, &tok->hash), fail);
    if (wordpiece) {
        NEB_TRY_GOTO(status, neb__wp_load(bytes, n, cfg && cfg->cased, &tok->wp), fail);
        find_specials_wp(tok);
        if (cfg && cfg->cased) NEB_TRY_GOTO(status, mix_in(tok, "cased"), fail);
    } else {
        char error[NEB_SP_ERROR];
        status = neb__sp_load(bytes, n, &tok->sp, error);
        if (status != NEB_OK) {
            neb__fail(status, "not a SentencePiece model: %s", error);
            goto fail;
        }
        if (cfg) tok->layout = cfg->layout;
        if (tok->layout != NEB_TOK_PLAIN)
            NEB_TRY_GOTO(status, mix_in(tok, neb__tok_layout_name(tok->layout)), fail);
        find_specials_sp(tok);
    }
    NEB_TRY_GOTO(status, mark_specials(tok), fail);
    *out = tok;
    return NEB_OK;
fail:
    neb__tok_close(tok);
    return status;
}

static neb_status open_bpe(struct neb_tok *tok, const struct neb_bpe_files *files)
{
    struct neb_hash both[2];
    NEB_TRY(neb__hash(files->vocab, files->vocab_bytes, &both[0]));
    NEB_TRY(neb__hash(files->merges, files->merges_bytes, &both[1]));
    NEB_TRY(neb__hash(both, sizeof both, &tok->hash));
    NEB_TRY(neb__bpe_load(files, &tok->bpe));
    find_specials_bpe(tok);
    return mark_specials(tok);
}

neb_status neb__tok_open_bpe(const struct neb_bpe_files *files, struct neb_tok **out)
{
    struct neb_tok *tok = NEB_NEW(struct neb_tok);
    if (!tok) return neb__fail(NEB_ERR_NOMEM, "out of memory for a tokenizer");
    neb_status status = open_bpe(tok, files);
    if (status != NEB_OK) {
        neb__tok_close(tok);
        return status;
    }
    *out = tok;
    return NEB_OK;
}

static neb_status open_json(struct neb_tok *tok, const struct neb_tj_files *files)
{
    struct neb_hash both[2];
    NEB_TRY(neb__hash(files->json, files->json_bytes, &both[0]));
    NEB_TRY(neb__hash(files->config, files->config_bytes, &both[1]));
    NEB_TRY(neb__hash(both, sizeof both, &tok->hash));
    NEB_TRY(neb__tj_load(files, &tok->json));
    find_specials_json(tok);
    return mark_specials(tok);
}

neb_status neb__tok_open_json(const struct neb_tj_files *files, struct neb_tok **out)
{
    struct neb_tok *tok = NEB_NEW(struct neb_tok);
    if (!tok) return neb__fail(NEB_ERR_NOMEM, "out of memory for a tokenizer");
    neb_status status = open_json(tok, files);
    if (status != NEB_OK) {
        neb__tok_close(tok);
        return status;
    }
    *out = tok;
    return NEB_OK;
}

static neb_status open_spv(struct neb_tok *tok, const struct neb_spv_files *f)
{
    struct neb_hash all[3] = {{{0}}};
    NEB_TRY(neb__hash(f->source, f->source_bytes, &all[0]));
    NEB_TRY(neb__hash(f->vocab, f->vocab_bytes, &all[1]));
    if (f->target) NEB_TRY(neb__hash(f->target, f->target_bytes, &all[2]));
    NEB_TRY(neb__hash(all, sizeof all, &tok->hash));
    NEB_TRY(neb__spv_load(f, &tok->spv));
    find_specials_spv(tok);
    return mark_specials(tok);
}

neb_status neb__tok_open_spv(const struct neb_spv_files *files, struct neb_tok **out)
{
    struct neb_tok *tok = NEB_NEW(struct neb_tok);
    if (!tok) return neb__fail(NEB_ERR_NOMEM, "out of memory for a tokenizer");
    neb_status status = open_spv(tok, files);
    if (status != NEB_OK) {
        neb__tok_close(tok);
        return status;
    }
    *out = tok;
    return NEB_OK;
}

/* The tokenizers that are several files; the third may be missing. */
enum { BPE_FILES, JSON_FILES, SPV_FILES, GROUPS };
static const char *const groups[GROUPS][3] = {
    [BPE_FILES] = {"vocab.json", "merges.txt", ""},
    [JSON_FILES] = {"tokenizer.json", "tokenizer_config.json", ""},
    [SPV_FILES] = {"source.spm", "vocab.json", "target.spm"},
};

/* The row of `groups` that the path's file is the first of, or -1. */
static int group_of(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    for (int i = 0; i < GROUPS; i++)
        if (!strcmp(name, groups[i][0])) return i;
    return -1;
}

static neb_status other_file(const char *path, int which, char *out, size_t size)
{
    int i = group_of(path);
    *out = 0;
    if (i < 0 || !*groups[i][which]) return NEB_OK;
    size_t head = strlen(path) - strlen(groups[i][0]);
    if (head + strlen(groups[i][which]) >= size)
        return neb__fail(NEB_ERR_INVALID, "%s: the path is too long", path);
    memcpy(out, path, head);
    strcpy(out + head, groups[i][which]);
    return NEB_OK;
}

neb_status neb__tok_second_file(const char *path, char *out, size_t size)
{
    return other_file(path, 1, out, size);
}

neb_status neb__tok_third_file(const char *path, char *out, size_t size)
{
    return other_file(path, 2, out, size);
}

static neb_status open_read(int group, struct neb_buf file[3], struct neb_tok **out)
{
    struct neb_bpe_files bpe = {file[0].data, file[0].len, file[1].data, file[1].len};
    struct neb_tj_files json = {file[0].data, file[0].len, file[1].data, file[1].len};
    struct neb_spv_files spv = {
        file[0].data, file[2].len ? file[2].data : NULL, file[1].data, file[0].len, file[2].len, file[1].len};
    if (group == SPV_FILES) return neb__tok_open_spv(&spv, out);
    return group == JSON_FILES ? neb__tok_open_json(&json, out) : neb__tok_open_bpe(&bpe, out);
}

static neb_status open_group(const char *path, const char *second, struct neb_tok **out)
{
    struct neb_buf file[3];
    char third[1024];
    NEB_TRY(neb__tok_third_file(path, third, sizeof third));
    for (int i = 0; i < 3; i++) neb__buf_init(&file[i], MAX_MODEL);
    neb_status status = neb__file_read_plain(path, &file[0]);
    if (status == NEB_OK) status = neb__file_read_plain(second, &file[1]);
    if (status == NEB_OK && *third && !access(third, F_OK)) status = neb__file_read_plain(third, &file[2]);
    if (status == NEB_OK) {
        status = open_read(group_of(path), file, out);
        if (status != NEB_OK) neb__error_prefix("%s", path);
    }
    for (int i = 0; i < 3; i++) neb__buf_free(&file[i]);
    return status;
}

neb_status neb__tok_open(const char *path, const struct neb_tok_cfg *cfg, struct neb_tok **out)
{
    char second[1024];
    NEB_TRY(neb__tok_second_file(path, second, sizeof second));
    if (*second) return open_group(path, second, out);
    size_t n = strlen(path);
    int wordpiece = n > 4 && !strcmp(path + n - 4, ".txt");
    struct neb_buf file;
    neb__buf_init(&file, MAX_MODEL);
    neb_status status = neb__file_read_plain(path, &file);
    if (status == NEB_OK &&
        (status = neb__tok_open_bytes(file.data, file.len, wordpiece, cfg, out)) != NEB_OK)
        neb__error_prefix("%s", path);
    neb__buf_free(&file);
    return status;
}

void neb__tok_close(struct neb_tok *tok)
{
    if (!tok) return;
    neb__sp_free(tok->sp);
    neb__wp_free(tok->wp);
    neb__bpe_free(tok->bpe);
    neb__tj_free(tok->json);
    neb__spv_free(tok->spv);
    neb__free(tok->special_map);
    neb__free(tok);
}

bool neb__tok_has_sides(const struct neb_tok *tok)
{
    return tok->spv && neb__spv_two(tok->spv);
}

neb_status neb__tok_encode_side(const struct neb_tok *tok, int side, const char *text, size_t n,
                                struct neb_buf *out)
{
    if (tok->spv) return neb__spv_encode(tok->spv, side, tok->special[NEB_TOK_UNK], text, n, out);
    return neb__tok_encode(tok, text, n, out);
}

static neb_status encode_sp(const struct neb_tok *tok, const char *text, size_t n, struct neb_buf *out)
{
    char error[NEB_SP_ERROR];
    const int *ids;
    size_t count;
    neb_status status = neb__sp_encode(tok->sp, text, n, &ids, &count, error);
    if (status != NEB_OK) return neb__fail(status, "cannot encode: %s", error);
    NEB_TRY(neb__buf_reserve(out, count * sizeof(int32_t)));
    for (size_t i = 0; i < count; i++) {
        int32_t id = outside(tok, ids[i]);
        memcpy(out->data + out->len, &id, sizeof id);
        out->len += sizeof id;
    }
    return NEB_OK;
}

/* The text between sentinels goes to SentencePiece, each stretch as a text of its own. */
static neb_status encode_sentinels(const struct neb_tok *tok, const char *text, size_t n, struct neb_buf *out)
{
    size_t from = 0, length = 0;
    for (size_t at = 0; at < n;) {
        const int32_t id = text[at] == '<' ? sentinel_at(tok, text + at, n - at, &length) : -1;
        if (id < 0) {
            at++;
            continue;
        }
        if (at > from) NEB_TRY(encode_sp(tok, text + from, at - from, out));
        NEB_TRY(neb__buf_append(out, &id, sizeof id));
        from = at += length;
    }
    return n > from || !n ? encode_sp(tok, text + from, n - from, out) : NEB_OK;
}

neb_status neb__tok_encode(const struct neb_tok *tok, const char *text, size_t n, struct neb_buf *out)
{
    if (tok->spv) return neb__tok_encode_side(tok, 0, text, n, out);
    if (tok->wp) return neb__wp_encode(tok->wp, tok->special[NEB_TOK_UNK], text, n, out);
    if (tok->bpe) return neb__bpe_encode(tok->bpe, tok->special[NEB_TOK_UNK], text, n, out);
    if (tok->json) return neb__tj_encode(tok->json, text, n, out);
    return tok->layout == NEB_TOK_T5 ? encode_sentinels(tok, text, n, out) : encode_sp(tok, text, n, out);
}

/* The longest special token that stands at the front of the text, or -1. */
static int32_t special_at(const struct neb_tok *tok, const char *p, size_t n, size_t *length)
{
    int32_t best = -1;
    *length = 0;
    for (int32_t id = 0; id < tok->vocab; id++) {
        const char *piece = tok->special_map[id] ? neb__tok_piece(tok, id) : NULL;
        const size_t m = piece ? strlen(piece) : 0;
        if (m > *length && m <= n && !memcmp(piece, p, m)) *length = m, best = id;
    }
    return best;
}

neb_status neb__tok_encode_special(const struct neb_tok *tok, const char *text, size_t n,
                                   const uint8_t *plain, struct neb_buf *out)
{
    if (tok->json) return neb__tj_encode_special(tok->json, text, n, plain, out);
    size_t from = 0, length;
    for (size_t at = 0; at < n;) {
        /* special tokens begin with a bracket in every vocabulary; all ids are tried only there */
        int32_t id = !plain[at] && strchr("<[", text[at]) ? special_at(tok, text + at, n - at, &length) : -1;
        if (id < 0) {
            at++;
            continue;
        }
        if (at > from) NEB_TRY(neb__tok_encode(tok, text + from, at - from, out));
        NEB_TRY(neb__buf_append(out, &id, sizeof id));
        from = at += length;
    }
    return n > from ? neb__tok_encode(tok, text + from, n - from, out) : NEB_OK;
}

/* Pieces and sentinels, joined as texts. */
static neb_status decode_sentinels(const struct neb_tok *tok, const int32_t *ids, size_t n,
                                   struct neb_buf *out)
{
    const char **kept = NEB_NEW_ARRAY(const char *, n + 1);
    if (!kept) return neb__fail(NEB_ERR_NOMEM, "not enough memory to decode %zu tokens", n);
    neb_status status = NEB_OK;
    char error[NEB_SP_ERROR];
    size_t m = 0;
    for (size_t i = 0; i < n && status == NEB_OK; i++) {
        if (ids[i] < 0 || ids[i] >= tok->vocab)
            status = neb__fail(NEB_ERR_RANGE, "token %d is not in the vocabulary of %d", (int)ids[i],
                               (int)tok->vocab);
        else if (!tok->special_map[ids[i]])
            kept[m++] = neb__tok_piece(tok, ids[i]);
    }
    if (status == NEB_OK && (status = neb__sp_join(tok->sp, kept, m, out, error)) != NEB_OK)
        neb__fail(status, "cannot decode: %s", error);
    neb__free(kept);
    return status;
}

neb_status neb__tok_decode(const struct neb_tok *tok, const int32_t *ids, size_t n, struct neb_buf *out)
{
    if (tok->wp) return neb__wp_decode(tok->wp, tok->special_map, ids, n, out);
    if (tok->bpe) return neb__bpe_decode(tok->bpe, tok->special_map, ids, n, out);
    if (tok->json) return neb__tj_decode(tok->json, ids, n, out);
    if (tok->spv) return neb__spv_decode(tok->spv, tok->special_map, ids, n, out);
    if (tok->layout == NEB_TOK_T5) return decode_sentinels(tok, ids, n, out);
    int32_t *kept = NEB_NEW_ARRAY(int32_t, n);
    if (!kept) return neb__fail(NEB_ERR_NOMEM, "not enough memory to decode %zu tokens", n);
    neb_status status = NEB_OK;
    size_t m = 0;
    for (size_t i = 0; i < n && status == NEB_OK; i++) {
        if (ids[i] < 0 || ids[i] >= tok->vocab)
            status = neb__fail(NEB_ERR_RANGE, "token %d is not in the vocabulary of %d", (int)ids[i],
                               (int)tok->vocab);
        else if (!tok->special_map[ids[i]] || ids[i] == tok->special[NEB_TOK_UNK])
            kept[m++] = inside(tok, ids[i]);
    }
    char error[NEB_SP_ERROR];
    if (status == NEB_OK && (status = neb__sp_decode(tok->sp, kept, m, out, error)) != NEB_OK)
        neb__fail(status, "cannot decode: %s", error);
    neb__free(kept);
    return status;
}

/* ---- training ------------------------------------------------------------------------------------------ */

static neb_status control_tokens(const struct neb_tok_train *cfg, struct neb_buf *list)
{
    NEB_TRY(neb__buf_printf(list, "<mask>"));
    for (const char *const *l = cfg->langs; l && *l; l++) NEB_TRY(neb__buf_printf(list, ",<2%s>", *l));
    for (const char *const *l = cfg->extras; l && *l; l++) NEB_TRY(neb__buf_printf(list, ",%s", *l));
    return neb__buf_append(list, "", 1);
}

neb_status neb__tok_train(const struct neb_tok_train *cfg,
                          int (*next)(void *arg, const char **text, size_t *n), void *arg,
                          struct neb_buf *out)
{
    if (strcmp(cfg->type, "unigram") && strcmp(cfg->type, "bpe"))
        return neb__fail(NEB_ERR_CONFIG, "tokenizer type '%s' is not one of unigram, bpe", cfg->type);
    struct neb_buf controls;
    neb__buf_init(&controls, 1 << 16);
    neb_status status = control_tokens(cfg, &controls);
    char vocab[16], coverage[32], threads[16], error[NEB_SP_ERROR];
    snprintf(vocab, sizeof vocab, "%d", (int)cfg->vocab);
    snprintf(coverage, sizeof coverage, "%.6f", cfg->coverage > 0 ? cfg->coverage : 0.9995);
    snprintf(threads, sizeof threads, "%d", cfg->threads > 0 ? cfg->threads : 1);
    if (status == NEB_OK) {
        const char *kv[MAX_TRAIN_KEYS] = {"model_type",
                                          cfg->type,
                                          "vocab_size",
                                          vocab,
                                          "character_coverage",
                                          coverage,
                                          "num_threads",
                                          threads,
                                          "control_symbols",
                                          (const char *)controls.data,
                                          "pad_id",
                                          "0",
                                          "unk_id",
                                          "1",
                                          "bos_id",
                                          "2",
                                          "eos_id",
                                          "3",
                                          "unk_surface",
                                          " \xE2\x81\x87 ",
                                          "hard_vocab_limit",
                                          !strcmp(cfg->type, "unigram") ? "false" : "true",
                                          "byte_fallback",
                                          cfg->byte_fallback ? "true" : "false",
                                          "minloglevel",
                                          "2",
                                          "max_sentence_length",
                                          "16384",
                                          NULL};
        status = neb__sp_train(kv, next, arg, out, error);
        if (status != NEB_OK) neb__fail(status, "the tokenizer cannot be trained: %s", error);
    }
    neb__buf_free(&controls);
    return status;
}
