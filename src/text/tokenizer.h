/* tokenizer.h: text to token ids and back, with any of five kinds of files: SentencePiece (a .model file),
 * WordPiece (BERT's vocab.txt), byte-level BPE (GPT-2's and RoBERTa's vocab.json with merges.txt beside it),
 * a tokenizer.json with tokenizer_config.json beside it, or Marian's source.spm with vocab.json and target.spm beside it.
 * A successful open owes a close. Encoding and decoding are safe from several threads at once. */
#ifndef NEB_TEXT_TOKENIZER_H
#define NEB_TEXT_TOKENIZER_H

#include "base/buf.h"
#include "base/hash.h"

#include <stdbool.h>

enum neb_special {
    NEB_TOK_PAD,
    NEB_TOK_UNK,
    NEB_TOK_BOS, /* <s>, [CLS] */
    NEB_TOK_EOS, /* </s>, [SEP] */
    NEB_TOK_MASK,
    NEB_TOK_SPECIALS
};

/* How ids of a SentencePiece model are numbered. */
enum neb_tok_layout {
    NEB_TOK_PLAIN, /* as in the model */
    NEB_TOK_XLMR,  /* as in XLM-R: <s> 0, <pad> 1, </s> 2, <unk> 3, pieces shifted by one, <mask> last */
    NEB_TOK_T5, /* as in the model, and behind it T5's <extra_id_99> to <extra_id_0>, which a text may contain */
};
enum neb_tok_layout neb__tok_layout_named(const char *name); /* plain, xlm-r, t5; another name: plain */
const char *neb__tok_layout_name(enum neb_tok_layout layout);

struct neb_tok;

struct neb_tok_cfg {
    enum neb_tok_layout layout;
    int cased; /* WordPiece: 0 lower-cases and strips accents */
};

/* `path` ends in .model, or is a vocab.txt, a vocab.json, a tokenizer.json or a source.spm. cfg NULL: plain, lower-casing.
 *   NEB_ERR_NOTFOUND, NEB_ERR_IO, NEB_ERR_NOMEM
 *   NEB_ERR_CORRUPT: not a tokenizer, or a special token is missing */
neb_status neb__tok_open(const char *path, const struct neb_tok_cfg *cfg, struct neb_tok **out);
neb_status neb__tok_open_bytes(const void *bytes, size_t n, int wordpiece, const struct neb_tok_cfg *cfg,
                               struct neb_tok **out);
struct neb_bpe_files;
neb_status neb__tok_open_bpe(const struct neb_bpe_files *files, struct neb_tok **out);
struct neb_tj_files;
neb_status neb__tok_open_json(const struct neb_tj_files *files, struct neb_tok **out);
struct neb_spv_files;
neb_status neb__tok_open_spv(const struct neb_spv_files *files, struct neb_tok **out);
void neb__tok_close(struct neb_tok *tok); /* NULL is fine */

/* The path of the second file that belongs to the tokenizer at `path` (merges.txt for a vocab.json,
 * tokenizer_config.json for a tokenizer.json, vocab.json for a source.spm); empty when there is no second file. The
 * third is target.spm for a source.spm; it may be missing. NEB_ERR_INVALID: the path does not fit into out */
neb_status neb__tok_second_file(const char *path, char *out, size_t size);
neb_status neb__tok_third_file(const char *path, char *out, size_t size);

int32_t neb__tok_vocab(const struct neb_tok *tok);
int32_t neb__tok_special(const struct neb_tok *tok, enum neb_special which); /* -1: this tokenizer lacks it */
int32_t neb__tok_lang(const struct neb_tok *tok, const char *lang);          /* id of <2LANG>, or -1 */
int32_t neb__tok_id(const struct neb_tok *tok, const char *piece);           /* or -1 */
const char *neb__tok_piece(const struct neb_tok *tok, int32_t id);           /* or NULL */
const uint8_t *neb__tok_special_map(const struct neb_tok *tok); /* (vocab) 1: never masked, never drawn */
bool neb__tok_adds_start(const struct neb_tok *tok); /* texts of its models begin with the start token */
int neb__tok_is_byte(const struct neb_tok *tok,
                     int32_t id); /* SentencePiece: one byte of a character without a piece */
int neb__tok_merges_in_order(
    const struct neb_tok *tok); /* SentencePiece's BPE: pieces in the order of their merges */
/* Hash of the file's bytes, and of numbering and case when they differ from cfg NULL. Equal hashes mean equal
 * ids. */
const struct neb_hash *neb__tok_hash(const struct neb_tok *tok);

/* Appends the ids (int32_t) of one line of text to `out`; no special token is added. Bytes that are not UTF-8
 * become unknown (with byte-level BPE they stay as they are). NEB_ERR_NOSPACE: out->max; NEB_ERR_NOMEM */
neb_status neb__tok_encode(const struct neb_tok *tok, const char *text, size_t n, struct neb_buf *out);
/* The same for one side of a pair: 0 the source, 1 the target. It makes a difference to Marian's tokenizers only. */
neb_status neb__tok_encode_side(const struct neb_tok *tok, int side, const char *text, size_t n,
                                struct neb_buf *out);
/* The same for a text in which special tokens stand for themselves (<s>, <|im_end|>): the text of a whole
 * conversation, which is UTF-8. plain: (n) 1: no special token begins here, because somebody else wrote this. */
neb_status neb__tok_encode_special(const struct neb_tok *tok, const char *text, size_t n,
                                   const uint8_t *plain, struct neb_buf *out);
bool neb__tok_has_sides(const struct neb_tok *tok);

/* Appends the text; control tokens vanish. NEB_ERR_RANGE: an id is not in the vocabulary. */
neb_status neb__tok_decode(const struct neb_tok *tok, const int32_t *ids, size_t n, struct neb_buf *out);

struct neb_tok_train {
    const char *type; /* "unigram" or "bpe" */
    int32_t vocab;    /* pieces, the special ones included; unigram may end up with fewer on little text */
    const char *const *langs;  /* each gets a token <2LANG>; NULL-terminated, or NULL */
    const char *const *extras; /* further control tokens; NULL-terminated, or NULL */
    double coverage;           /* share of characters kept; 0: 0.9995 */
    int byte_fallback;         /* characters outside the vocabulary become bytes instead of <unk> */
    int threads;
};

/* `next` gives the sentences (see sp_shim.h); the model's bytes go to `out`: <pad> 0, <unk> 1, <s> 2, </s> 3,
 * <mask> 4, then languages and extras.
 *   NEB_ERR_INVALID: with SentencePiece's own message (vocabulary too large for the text, for instance) */
neb_status neb__tok_train(const struct neb_tok_train *cfg,
                          int (*next)(void *arg, const char **text, size_t *n), void *arg,
                          struct neb_buf *out);

#endif
