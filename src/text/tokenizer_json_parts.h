/* tokenizer_json_parts.h: the parts of a tokenizer.json, shared by its files and by nobody else.
 *
 *     tokenizer_json.c            loading, added tokens, the way of a text
 *     tokenizer_json_step.c       steps from JSON: which there are, what each needs
 *     tokenizer_json_normalize.c  normalisers: text to text
 *     tokenizer_json_split.c      pre-tokenisers: text to pieces of text
 *     tokenizer_json_model.c      models: a piece of text to ids
 *     tokenizer_json_decode.c     decoders: pieces to text
 */
#ifndef NEB_TEXT_TOKENIZER_JSON_PARTS_H
#define NEB_TEXT_TOKENIZER_JSON_PARTS_H

#include "text/charsmap.h"
#include "text/merges.h"
#include "text/regex.h"
#include "text/tokenizer_json.h"
#include "text/vocabulary.h"

#include <jansson.h>
#include <utf8proc.h>

enum { NEB_TJ_STEPS = 32, NEB_TJ_TEXT = 1 << 30 };

/* ---- steps --------------------------------------------------------------------------------------------- */

enum neb_tj_kind {
    /* normalisers */
    NEB_TJ_NFC,
    NEB_TJ_NFD,
    NEB_TJ_NFKC,
    NEB_TJ_NFKD,
    NEB_TJ_LOWER,
    NEB_TJ_STRIP_ACCENTS,
    NEB_TJ_STRIP,   /* left, right */
    NEB_TJ_REPLACE, /* also a decoder */
    NEB_TJ_PREPEND,
    NEB_TJ_NMT,
    NEB_TJ_CHARSMAP,
    NEB_TJ_BERT_NORMALIZER,
    /* pre-tokenisers */
    NEB_TJ_BERT_SPLIT,
    NEB_TJ_BYTE_LEVEL, /* also a decoder */
    NEB_TJ_METASPACE,  /* also a decoder */
    NEB_TJ_WHITESPACE,
    NEB_TJ_WHITESPACE_SPLIT,
    NEB_TJ_SPLIT,
    NEB_TJ_PUNCTUATION,
    NEB_TJ_DIGITS,
    NEB_TJ_DELIMITER,
    /* decoders */
    NEB_TJ_BYTE_FALLBACK,
    NEB_TJ_FUSE,
    NEB_TJ_STRIP_DECODER,
    NEB_TJ_WORDPIECE_DECODER,
    NEB_TJ_SUFFIX_DECODER,
};

enum neb_tj_behavior {
    NEB_TJ_REMOVED,
    NEB_TJ_ISOLATED,
    NEB_TJ_MERGED_WITH_PREVIOUS,
    NEB_TJ_MERGED_WITH_NEXT,
    NEB_TJ_CONTIGUOUS
};

enum neb_tj_prepend { NEB_TJ_NEVER, NEB_TJ_FIRST, NEB_TJ_ALWAYS };

struct neb_tj_step {
    enum neb_tj_kind kind;
    enum neb_tj_behavior behavior;
    enum neb_tj_prepend prepend;
    bool flag[4];            /* by kind: invert; left, right; clean, chinese, accents, lower; … */
    int64_t number[2];       /* by kind: start, stop */
    char *text, *by;         /* pattern or text; what replaces it */
    struct neb_regex *regex; /* instead of text */
    struct neb_charsmap *map;
};

struct neb_tj_steps {
    struct neb_tj_step step[NEB_TJ_STEPS];
    int n;
};

enum neb_tj_stage { NEB_TJ_NORMALIZER, NEB_TJ_PRE_TOKENIZER, NEB_TJ_DECODER };

/* j: an object of tokenizer.json, or null for no step. A Sequence becomes its steps. Owes a free, also after a
 * failure. */
neb_status neb__tj_steps_read(enum neb_tj_stage stage, const json_t *j, struct neb_tj_steps *out);
void neb__tj_steps_free(struct neb_tj_steps *s);

/* ---- text ---------------------------------------------------------------------------------------------- */

/* White_Space of Unicode. */
bool neb__tj_is_space(int32_t c);
bool neb__tj_is_punctuation(int32_t c);
/* The character at text[at] of checked UTF-8; *step: its bytes. */
int32_t neb__tj_char(const char *text, size_t n, size_t at, size_t *step);

/* NEB_ERR_NOSPACE, worded: a part of the file makes n bytes longer than `most`. */
neb_status neb__tj_too_long(const char *part, size_t n, size_t most);
neb_status neb__tj_normalize(const struct neb_tj_steps *s, const char *text, size_t n, struct neb_buf *out);
/* Replaces every match by step->by. */
neb_status neb__tj_replace(const struct neb_tj_step *step, const char *text, size_t n, struct neb_buf *out);

/* Pieces of text, one after the other. */
struct neb_tj_pieces {
    struct neb_buf text, ends; /* ends: size_t each */
    bool at_start;             /* the first one begins where the whole text does */
};

void neb__tj_pieces_init(struct neb_tj_pieces *p);
void neb__tj_pieces_free(struct neb_tj_pieces *p);
size_t neb__tj_pieces_count(const struct neb_tj_pieces *p);
const char *neb__tj_pieces_at(const struct neb_tj_pieces *p, size_t i, size_t *n);
neb_status neb__tj_pieces_add(struct neb_tj_pieces *p, const char *text, size_t n);

/* Cuts the pieces of *p, which are replaced. */
neb_status neb__tj_split(const struct neb_tj_steps *s, struct neb_tj_pieces *p);
neb_status neb__tj_join(const struct neb_tj_steps *s, struct neb_tj_pieces *p, struct neb_buf *out);

/* ---- models -------------------------------------------------------------------------------------------- */

enum neb_tj_model_kind { NEB_TJ_BPE, NEB_TJ_UNIGRAM, NEB_TJ_WORDPIECE };

struct neb_tj_model {
    enum neb_tj_model_kind kind;
    const struct neb_vocabulary *pieces;
    const uint8_t *control; /* (pieces) 1: never the result of a text */
    struct neb_merges *merges;
    char *prefix, *suffix; /* of a piece inside, at the end of a word; never NULL */
    bool byte_fallback, fuse_unk, ignore_merges;
    int32_t unk, byte[256]; /* -1: none */
    int64_t max_chars;      /* WordPiece */
    double *score, unk_score;
    int32_t *sorted; /* Unigram: pieces by their bytes */
    int32_t n_sorted;
};

/* out->pieces and out->control are set and stay. Owes a free, also after a failure. */
neb_status neb__tj_model_read(const json_t *model, struct neb_tj_model *out);
void neb__tj_model_free(struct neb_tj_model *m);
/* Appends the ids of one piece of text. */
neb_status neb__tj_model_cut(const struct neb_tj_model *m, const char *text, size_t n, struct neb_buf *out);

#endif
