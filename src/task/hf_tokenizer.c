/* hf_tokenizer.c: the tokenizer files of a Hugging Face folder, in and out.
 *
 * tokenizer_config.json says what the files mean: the class of the tokenizer decides how SentencePiece's ids are numbered
 * and which special tokens stand around a translation. Files that mean nothing here are carried along, so that an export
 * gives them back. M2M100's languages stand in no file of theirs: its vocab.json gets them here and loses them on the way
 * out. */
#include "task/hf.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "task/end_tokens.h"
#include "task/hf_tokenizer.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_JSON = 64 << 20, MAX_COPY = 256 << 20 };

/* The last one tells the export whether the tokenizer is described. */
static const char *const carried[] = {
    "tokenizer.json", "special_tokens_map.json", "vocab.txt",           "vocab.json",
    "merges.txt",     "generation_config.json",  "chat_template.jinja", "tokenizer_config.json"};
enum { CARRIED = sizeof carried / sizeof *carried };

static bool is_there(const char *folder, const char *name)
{
    char path[NEB_MODEL_PATH + 300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return !access(path, F_OK);
}

static neb_status copy(const char *from, const char *name, const char *to, const char *as, bool *there)
{
    char path[NEB_MODEL_PATH + 300];
    struct neb_buf bytes;
    *there = is_there(from, name);
    if (!*there) return NEB_OK;
    neb__buf_init(&bytes, MAX_COPY);
    snprintf(path, sizeof path, "%s/%s", from, name);
    neb_status status = neb__file_read_plain(path, &bytes);
    snprintf(path, sizeof path, "%s/%s", to, as);
    if (status == NEB_OK) status = neb__file_replace(path, bytes.data, bytes.len, 0644);
    neb__buf_free(&bytes);
    return status;
}

static neb_status write_json(const json_t *j, const char *to, const char *name)
{
    char path[NEB_MODEL_PATH + 64], *text = json_dumps(j, JSON_INDENT(2));
    if (!text) return neb__fail(NEB_ERR_NOMEM, "out of memory for %s", name);
    snprintf(path, sizeof path, "%s/%s", to, name);
    neb_status status = neb__file_replace(path, text, strlen(text), 0644);
    free(text); /* jansson's own */
    return status;
}

static bool begins(const char *text, const char *with)
{
    return !strncmp(text, with, strlen(with));
}

/* Many models carry XLM-R's tokenizer; multilingual MiniLM is a BERT. */
static bool numbers_as_xlmr(const char *file, const char *class)
{
    return !strcmp(file, "sentencepiece.bpe.model") ||
           (strstr(file, ".model") && begins(class, "XLMRoberta"));
}

/* ---- encoder-decoders ------------------------------------------------------------------------------------------ */

/* M2M100 has a SentencePiece model and a vocab.json; NLLB has the same architecture and a tokenizer.json. */
static bool is_m2m100(const char *from, const struct neb_hf_config *c)
{
    return c->kind == NEB_HF_M2M100 && is_there(from, "sentencepiece.bpe.model") &&
           is_there(from, "vocab.json");
}

static neb_status refuse_start(const struct neb_hf_config *c)
{
    return neb__fail(NEB_ERR_UNSUPPORTED,
                     "config.json, 'decoder_start_token_id': %" PRId64
                     " is not the token with which such a model starts a target",
                     c->start);
}

/* The special tokens around a translation. */
static neb_status choose_frame(const char *from, const struct neb_hf_config *c,
                               const struct neb_hf_tokenizer_config *t, struct neb_model_yaml *out)
{
    const bool eos = c->start < 0 || c->start == c->eos;
    const char *frame = "bart";
    if (c->kind == NEB_HF_MARIAN) {
        if (c->start == c->pad)
            frame = "marian";
        else if (c->start >= 0 && c->start == c->bos)
            frame = "plain";
        else
            return refuse_start(c);
        return neb__model_yaml_set_frame(out, frame);
    }
    if (neb__hf_is_t5(c->kind))
        return c->start == c->pad ? neb__model_yaml_set_frame(out, "t5") : refuse_start(c);
    const bool old = c->kind == NEB_HF_MBART && (begins(t->class, "MBartTokenizer") || (!*t->class && !eos));
    if (!eos && !old) return refuse_start(c);
    if (c->kind == NEB_HF_MBART) frame = old ? "mbart" : "mbart50";
    if (c->kind == NEB_HF_M2M100) frame = t->legacy ? "nllb-tail" : "nllb";
    if (is_m2m100(from, c)) frame = "m2m100";
    return neb__model_yaml_set_frame(out, frame);
}

/* ---- in -------------------------------------------------------------------------------------------------------- */

/* The names to look for, best first. */
static const char *const *names_for(const struct neb_hf_config *c)
{
    static const char *const usual[] = {"sentencepiece.bpe.model",
                                        "spiece.model",
                                        "tokenizer.model",
                                        "tokenizer.json",
                                        "vocab.txt",
                                        "vocab.json",
                                        NULL};
    /* Llama and Qwen do not cut as GPT-2 does: their vocab.json alone would give other ids. */
    static const char *const llama[] = {"tokenizer.json", "tokenizer.model", NULL};
    static const char *const marian[] = {"source.spm", NULL};
    /* fairseq's SentencePiece files lack the languages, which tokenizer.json has */
    static const char *const fairseq[] = {"tokenizer.json", NULL};
    static const char *const t5[] = {"tokenizer.json", "spiece.model", NULL};
    static const char *const bart[] = {"tokenizer.json", "vocab.json", NULL};
    if (c->kind == NEB_HF_MARIAN) return marian;
    if (c->kind == NEB_HF_M2M100 || c->kind == NEB_HF_MBART) return fairseq;
    if (neb__hf_is_t5(c->kind)) return t5;
    if (c->kind == NEB_HF_BART) return bart;
    return neb__hf_is_llama(c->kind) ? llama : usual;
}

/* A hundred sentinels follow the pieces, unless the file says that there are none (mT5, whose model has them). */
static neb_status number_as_t5(const struct neb_hf_tokenizer_config *t, struct neb_model_yaml *out)
{
    if (t->sentinels < 0 || (t->sentinels > 99.5 && t->sentinels < 100.5))
        return neb__model_yaml_set_numbering(out, "t5");
    if (t->sentinels < 0.5) return neb__model_yaml_set_numbering(out, "plain");
    return neb__fail(NEB_ERR_UNSUPPORTED,
                     "tokenizer_config.json, 'extra_ids': %g is not 0 or 100; save the tokenizer again with "
                     "save_pretrained(), which writes a tokenizer.json",
                     t->sentinels);
}

/* The file stands there with the one that belongs to it. */
static bool is_whole(const char *from, const char *name)
{
    char path[NEB_MODEL_PATH + 300], second[NEB_MODEL_PATH + 300];
    snprintf(path, sizeof path, "%s/%s", from, name);
    return !access(path, F_OK) && neb__tok_second_file(path, second, sizeof second) == NEB_OK &&
           (!*second || !access(second, F_OK));
}

/* Whether a text would be cut as it is there. The tokenizer.json is also opened, because there may be another file. */
static neb_status try_file(const char *from, const char *name, bool opened)
{
    char path[NEB_MODEL_PATH + 300];
    struct neb_tok *tok = NULL;
    NEB_TRY(neb__hf_tokenizer_config_check(from, name));
    if (!opened) return NEB_OK;
    snprintf(path, sizeof path, "%s/%s", from, name);
    neb_status status = neb__tok_open(path, NULL, &tok);
    if (status == NEB_OK) neb__tok_close(tok);
    return status;
}

/* The first file of the list that does; NULL: there is none. */
static neb_status choose_file(const char *from, const char *const *list, const char **out)
{
    for (const char *const *name = list; *name; name++) {
        const char *const *other = name + 1;
        if (!is_whole(from, *name)) continue;
        while (*other && !is_whole(from, *other)) other++;
        const bool before = neb__log_hush(*other != NULL);
        neb_status status = try_file(from, *name, *other != NULL);
        neb__log_hush(before);
        *out = *name;
        if (status == NEB_OK || !*other) return status;
        neb__warn("%s is taken instead of %s: %s", *other, *name, neb_last_error());
    }
    return NEB_OK;
}

static neb_status describe_file(const char *name, const struct neb_hf_config *c,
                                const struct neb_hf_tokenizer_config *t, struct neb_model_yaml *out)
{
    const bool bytes = !strcmp(name, "vocab.json"), own = !strcmp(name, "tokenizer.json");
    if (!strcmp(name, "vocab.txt")) out->cased = t->cased;
    /* tokenizer.json says it itself; GPT2Tokenizer adds nothing unless it is told to */
    if (!own && (t->starts >= 0 || (bytes && c->kind == NEB_HF_GPT2)))
        NEB_TRY(neb__model_yaml_set_starts(out, t->starts > 0 ? "yes" : "no"));
    if (neb__hf_is_t5(c->kind) && !strcmp(name, "spiece.model")) return number_as_t5(t, out);
    return numbers_as_xlmr(name, t->class) ? neb__model_yaml_set_numbering(out, "xlm-r") : NEB_OK;
}

neb_status neb__hf_tokenizer_find(const char *from, const struct neb_hf_config *c, struct neb_model_yaml *out,
                                  char *path, size_t size)
{
    struct neb_hf_tokenizer_config t;
    *path = 0;
    NEB_TRY(neb__hf_tokenizer_config_read(from, &t));
    if (t.separate)
        return neb__fail(NEB_ERR_UNSUPPORTED,
                         "tokenizer_config.json, 'separate_vocabs': true is not supported");
    if (neb__hf_is_seq2seq(c->kind)) NEB_TRY(choose_frame(from, c, &t, out));
    if (is_m2m100(from, c)) return NEB_OK; /* brought later */
    if (c->kind == NEB_HF_XLMR) NEB_TRY(neb__model_yaml_set_numbering(out, "xlm-r"));
    const char *name = NULL;
    NEB_TRY(choose_file(from, names_for(c), &name));
    if (name) {
        snprintf(path, size, "%s/%s", from, name);
        return describe_file(name, c, &t, out);
    }
    neb__warn("%s has no tokenizer that can be read here (%s): only the weights are taken", from,
              c->kind == NEB_HF_MARIAN
                  ? "source.spm with vocab.json"
                  : "tokenizer.json with tokenizer_config.json, vocab.txt, vocab.json with merges.txt, "
                    "or a SentencePiece model; save the tokenizer again with save_pretrained()");
    return NEB_OK;
}

/* The languages of M2M100 follow the pieces of vocab.json, in this order. */
static neb_status add_languages(const char *to, const char *list)
{
    static const char m2m100[] =
        "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he "
        "hi hr ht hu hy "
        "id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl "
        "ps pt ro ru "
        "sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu",
                      wmt21[] = "en ha is ja cs ru zh de";
    char path[NEB_MODEL_PATH + 64], word[16], piece[24];
    json_error_t e;
    if (strcmp(list, "m2m100") && strcmp(list, "wmt21"))
        return neb__fail(NEB_ERR_UNSUPPORTED,
                         "tokenizer_config.json, 'language_codes': '%.20s' is not m2m100 or wmt21", list);
    const char *p = strcmp(list, "wmt21") ? m2m100 : wmt21;
    snprintf(path, sizeof path, "%s/vocab.json", to);
    json_t *j = json_load_file(path, JSON_REJECT_DUPLICATES, &e);
    if (!json_is_object(j)) {
        json_decref(j);
        return neb__fail(NEB_ERR_CORRUPT, "%s: %s", path, j ? "not an object" : e.text);
    }
    bool bad = false;
    json_int_t next = (json_int_t)json_object_size(j);
    for (size_t n; *p; p += n + (p[n] == ' ')) {
        n = strcspn(p, " ");
        snprintf(word, sizeof word, "%.*s", (int)n, p);
        snprintf(piece, sizeof piece, "__%s__", word);
        if (!json_object_get(j, piece)) bad |= json_object_set_new(j, piece, json_integer(next++)) != 0;
    }
    neb_status status =
        bad ? neb__fail(NEB_ERR_NOMEM, "out of memory for vocab.json") : write_json(j, to, "vocab.json");
    json_decref(j);
    return status;
}

neb_status neb__hf_tokenizer_carry(const char *from, const char *to)
{
    bool there;
    for (int i = 0; i < CARRIED; i++) NEB_TRY(copy(from, carried[i], to, carried[i], &there));
    return copy(from, "token_numbers.json", to, "token_numbers.json", &there);
}

/* A tokenizer that cannot be opened is of no use, and one with more tokens than the model belongs to another model. */
static neb_status open_once(struct neb_model_yaml *out, const char *to)
{
    char path[NEB_MODEL_PATH + 300];
    const struct neb_tok_cfg cfg = neb__folder_tok_cfg(out);
    struct neb_tok *tok;
    if (!out->tokenizer || !*out->tokenizer) return NEB_OK;
    snprintf(path, sizeof path, "%s/%s", to, out->tokenizer);
    const bool before = neb__log_hush(true);
    neb_status status = neb__tok_open(path, &cfg, &tok);
    neb__log_hush(before);
    if (status == NEB_ERR_NOMEM) return status;
    if (status != NEB_OK) {
        neb__warn("only the weights are taken, without the tokenizer: %s", neb_last_error());
        return neb__model_yaml_set_tokenizer(out, "");
    }
    const int32_t tokens = neb__tok_vocab(tok);
    neb__tok_close(tok);
    if (tokens <= out->model.vocab) return NEB_OK;
    return neb__fail(NEB_ERR_CONFIG,
                     "%s has %d tokens, the model only %" PRId64
                     ": it is another model's; remove the tokenizer's files to "
                     "take the weights only",
                     path, (int)tokens, out->model.vocab);
}

neb_status neb__hf_tokenizer_bring(const char *from, const struct neb_hf_config *c,
                                   struct neb_model_yaml *out, const char *to)
{
    bool there;
    struct neb_hf_tokenizer_config t;
    for (int i = 0; i < CARRIED; i++) {
        NEB_TRY(copy(from, carried[i], to, carried[i], &there));
    }
    if (!neb__hf_is_seq2seq(c->kind) && neb__hf_has_decoder(c->kind))
        NEB_TRY(neb__end_tokens_bring(from, to));
    if (!is_m2m100(from, c)) return open_once(out, to);
    NEB_TRY(neb__hf_tokenizer_config_read(from, &t));
    NEB_TRY(copy(from, "sentencepiece.bpe.model", to, "source.spm", &there));
    NEB_TRY(add_languages(to, *t.languages ? t.languages : "m2m100"));
    NEB_TRY(neb__model_yaml_set_tokenizer(out, "source.spm"));
    return open_once(out, to);
}

/* ---- out ------------------------------------------------------------------------------------------------------- */

static const char *piece(const struct neb_tok *tok, enum neb_special which)
{
    int32_t id = neb__tok_special(tok, which);
    const char *p = id < 0 ? NULL : neb__tok_piece(tok, id);
    return p ? p : "<unk>";
}

/* tokenizer_config.json tells AutoTokenizer how to read the file. It is written where no import has brought
 * one. */
static neb_status describe(const struct neb_tok *tok, const char *class, bool lower, const char *to)
{
    json_t *j = json_pack("{s:s, s:b, s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "tokenizer_class", class,
                          "do_lower_case", lower, "pad_token", piece(tok, NEB_TOK_PAD), "unk_token",
                          piece(tok, NEB_TOK_UNK), "bos_token", piece(tok, NEB_TOK_BOS), "eos_token",
                          piece(tok, NEB_TOK_EOS), "cls_token", piece(tok, NEB_TOK_BOS), "sep_token",
                          piece(tok, NEB_TOK_EOS), "mask_token", piece(tok, NEB_TOK_MASK));
    if (!j) return neb__fail(NEB_ERR_NOMEM, "out of memory for tokenizer_config.json");
    neb_status status = write_json(j, to, "tokenizer_config.json");
    json_decref(j);
    return status;
}

static neb_status describe_short(const struct neb_tok *tok, const char *class, bool starts, const char *to)
{
    static const char *const names[NEB_TOK_SPECIALS] = {"pad_token", "unk_token", "bos_token", "eos_token",
                                                        "mask_token"};
    json_t *j = json_pack("{s:s}", "tokenizer_class", class);
    bool bad = !j;
    for (int i = 0; i < NEB_TOK_SPECIALS; i++)
        if (neb__tok_special(tok, (enum neb_special)i) >= 0)
            bad |= json_object_set_new(j, names[i], json_string(piece(tok, (enum neb_special)i))) != 0;
    if (starts) bad |= json_object_set_new(j, "add_bos_token", json_true()) != 0;
    neb_status status = bad ? neb__fail(NEB_ERR_NOMEM, "out of memory for a tokenizer")
                            : write_json(j, to, "tokenizer_config.json");
    json_decref(j);
    return status;
}

static neb_status describe_t5(const struct neb_model_yaml *f, const struct neb_tok *tok, const char *to)
{
    json_t *j = json_pack("{s:s, s:s, s:s, s:s, s:i}", "tokenizer_class", "T5Tokenizer", "pad_token",
                          piece(tok, NEB_TOK_PAD), "unk_token", piece(tok, NEB_TOK_UNK), "eos_token",
                          piece(tok, NEB_TOK_EOS), "extra_ids", strcmp(f->numbering, "t5") ? 0 : 100);
    neb_status status = j ? write_json(j, to, "tokenizer_config.json")
                          : neb__fail(NEB_ERR_NOMEM, "out of memory for a tokenizer");
    json_decref(j);
    return status;
}

/* vocab.json with the pieces of a tokenizer; languages: those in __ stay. */
static neb_status write_vocab(const struct neb_tok *tok, bool languages, const char *to)
{
    json_t *j = json_object();
    bool bad = !j;
    for (int32_t i = 0; i < neb__tok_vocab(tok); i++) {
        const char *p = neb__tok_piece(tok, i);
        if (p && (languages || strncmp(p, "__", 2) || !neb__tok_special_map(tok)[i]))
            bad |= json_object_set_new(j, p, json_integer(i)) != 0;
    }
    neb_status status = bad ? neb__fail(NEB_ERR_NOMEM, "out of memory, or a piece that is not UTF-8")
                            : write_json(j, to, "vocab.json");
    json_decref(j);
    return status;
}

/* Marian's three files, from its own or from one SentencePiece model that serves both sides. */
static neb_status write_marian(const struct neb_model_yaml *f, const struct neb_tok *tok, bool described,
                               const char *to)
{
    bool there;
    NEB_TRY(copy(f->path, f->tokenizer, to, "source.spm", &there));
    NEB_TRY(copy(f->path, "target.spm", to, "target.spm", &there));
    if (!there) NEB_TRY(copy(f->path, f->tokenizer, to, "target.spm", &there));
    NEB_TRY(write_vocab(tok, true, to));
    return described ? NEB_OK : describe_short(tok, "MarianTokenizer", false, to);
}

static neb_status write_m2m100(const struct neb_model_yaml *f, const struct neb_tok *tok, bool described,
                               const char *to)
{
    bool there;
    NEB_TRY(copy(f->path, f->tokenizer, to, "sentencepiece.bpe.model", &there));
    NEB_TRY(write_vocab(tok, false, to));
    return described ? NEB_OK : describe_short(tok, "M2M100Tokenizer", false, to);
}

static bool is_sentencepiece(const char *file)
{
    size_t n = strlen(file);
    return !strcmp(file, "source.spm") || (n > 6 && !strcmp(file + n - 6, ".model"));
}

neb_status neb__hf_tokenizer_write(const struct neb_model_yaml *f, enum neb_hf_kind kind,
                                   const struct neb_tok *tok, const char *to)
{
    bool there = false, copied;
    for (int i = 0; i < CARRIED; i++) NEB_TRY(copy(f->path, carried[i], to, carried[i], &there));
    if (!tok) return NEB_OK;
    if (kind == NEB_HF_MARIAN && is_sentencepiece(f->tokenizer)) return write_marian(f, tok, there, to);
    if (kind == NEB_HF_M2M100 && !strcmp(f->tokenizer, "source.spm")) return write_m2m100(f, tok, there, to);
    if (!strcmp(f->tokenizer, "tokenizer.json")) return NEB_OK; /* both files were copied */
    if (!strcmp(f->tokenizer, "vocab.json")) {
        const char *class = kind == NEB_HF_GPT2 ? "GPT2Tokenizer" : "RobertaTokenizer";
        const bool starts = kind == NEB_HF_GPT2 && strcmp(f->starts, "no") != 0;
        return there ? NEB_OK
                     : describe_short(tok, kind == NEB_HF_BART ? "BartTokenizer" : class, starts, to);
    }
    if (neb__hf_is_t5(kind) && is_sentencepiece(f->tokenizer)) {
        NEB_TRY(copy(f->path, f->tokenizer, to, "spiece.model", &copied));
        return there ? NEB_OK : describe_t5(f, tok, to);
    }
    const bool wordpiece = !strcmp(f->tokenizer, "vocab.txt"), xlmr = !strcmp(f->numbering, "xlm-r");
    const char *as = xlmr ? "sentencepiece.bpe.model" : "spiece.model";
    const char *class = xlmr ? "XLMRobertaTokenizer" : "BertGenerationTokenizer";
    NEB_TRY(copy(f->path, f->tokenizer, to, wordpiece ? "vocab.txt" : as, &copied));
    if (there) return NEB_OK;
    return describe(tok, wordpiece ? "BertTokenizer" : class, wordpiece && !f->cased, to);
}
