/* hf_config_seq2seq.c: config.json of Marian, M2M100 (NLLB), BART and mBART.
 *
 * They are one architecture with four differences: how a token knows its place, whether norms stand before a sublayer or
 * behind it, whether the embeddings are normalised, whether the output has a bias. Old files say these things
 * themselves; where they contradict their family they are refused. So is a key that is not known here. */
#include "task/hf.h"

#include <jansson.h>
#include <string.h>

struct family {
    const char *type, *positions, *norm_place;
    bool embedding_norm, bias, scaled; /* scaled: where the file does not say */
    int64_t skip;                      /* rows of the position table that are never read */
};

static const struct family *family_of(enum neb_hf_kind kind)
{
    static const struct family families[] = {{"marian", "sinusoidal", "post", false, true, false, 0},
                                             {"m2m_100", "fairseq", "pre", false, false, true, 0},
                                             {"bart", "learned", "post", true, true, false, 2},
                                             {"mbart", "learned", "pre", true, true, false, 2}};
    return &families[kind - NEB_HF_MARIAN];
}

/* ---- what may stand there ---------------------------------------------------------------------------------- */

/* Keys that are read below, or that change nothing that is computed here: training, generation, housekeeping. */
static const char *const known[] = {
    "decoder_vocab_size",
    "d_model",
    "hidden_size",
    "encoder_layers",
    "decoder_layers",
    "num_hidden_layers",
    "encoder_attention_heads",
    "decoder_attention_heads",
    "num_attention_heads",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "max_position_embeddings",
    "activation_function",
    "scale_embedding",
    "normalize_before",
    "normalize_embedding",
    "add_final_layer_norm",
    "static_position_embeddings",
    "share_encoder_decoder_embeddings",
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "classif_dropout",
    "classifier_dropout",
    "encoder_layerdrop",
    "decoder_layerdrop",
    "init_std",
    "force_bos_token_to_be_generated",
    "add_bias_logits",
    "extra_pos_embeddings",
    "save_step",
    "language_codes",
    "normalization",
};

/* What the family says anyway. */
static neb_status check_family(const json_t *j, const struct family *f)
{
    const struct {
        const char *key;
        bool value;
    } says[] = {{"normalize_before", !strcmp(f->norm_place, "pre")},
                {"normalize_embedding", f->embedding_norm},
                {"add_final_layer_norm", !strcmp(f->norm_place, "pre")},
                {"static_position_embeddings", strcmp(f->positions, "learned") != 0},
                {"share_encoder_decoder_embeddings", true},
                {"tie_encoder_decoder", false},
                {"is_encoder_decoder", true}};
    for (size_t i = 0; i < sizeof says / sizeof *says; i++)
        NEB_TRY(neb__hf_only(j, says[i].key, says[i].value));
    return NEB_OK;
}

/* Encoder and decoder have equal widths here. */
static neb_status check_equal(const json_t *j, const char *key, int64_t value)
{
    int64_t other;
    char what[120];
    NEB_TRY(neb__hf_whole(j, key, value, &other));
    snprintf(what, sizeof what, "%" PRId64 " is not supported, only the encoder's %" PRId64, other, value);
    return other == value ? NEB_OK : neb__hf_refuse(key, what);
}

/* ---- reading -------------------------------------------------------------------------------------------------- */

static neb_status read_sizes(const json_t *j, struct neb_model_config *m)
{
    NEB_TRY(neb__hf_whole(j, "vocab_size", -1, &m->vocab));
    NEB_TRY(neb__hf_whole(j, "d_model", -1, &m->hidden));
    NEB_TRY(neb__hf_whole(j, "encoder_layers", -1, &m->layers));
    NEB_TRY(neb__hf_whole(j, "decoder_layers", -1, &m->decoder_layers));
    NEB_TRY(neb__hf_whole(j, "encoder_attention_heads", -1, &m->heads));
    NEB_TRY(neb__hf_whole(j, "encoder_ffn_dim", -1, &m->ffn));
    NEB_TRY(neb__hf_whole(j, "max_position_embeddings", 1024, &m->max_positions));
    NEB_TRY(check_equal(j, "decoder_attention_heads", m->heads));
    NEB_TRY(check_equal(j, "decoder_ffn_dim", m->ffn));
    NEB_TRY(check_equal(j, "decoder_vocab_size", m->vocab));
    if (!m->decoder_layers) return neb__hf_refuse("decoder_layers", "0 is not supported");
    return NEB_OK;
}

neb_status neb__hf_seq2seq_read(const struct json_t *j, struct neb_hf_config *c, struct neb_model_config *m)
{
    const struct family *f = family_of(c->kind);
    NEB_TRY(neb__hf_known_keys(j, known, sizeof known / sizeof *known));
    NEB_TRY(check_family(j, f));
    NEB_TRY(read_sizes(j, m));
    NEB_TRY(neb__hf_real(j, "dropout", 0.1, &m->dropout));
    NEB_TRY(neb__hf_real(j, "attention_dropout", c->kind == NEB_HF_M2M100 ? 0.1 : 0, &m->attention_dropout));
    NEB_TRY(neb__hf_activation(j, "activation_function", m));
    if (c->kind == NEB_HF_M2M100 && c->pad >= 0 && c->pad != 1) /* its positions begin behind this number */
        return neb__hf_refuse("pad_token_id", "only 1 is supported for m2m_100");
    NEB_TRY(neb__hf_flag(j, "scale_embedding", f->scaled, &m->embedding_scale));
    m->embedding_norm = f->embedding_norm;
    m->head_bias = f->bias;
    m->norm_eps = 1e-5;
    m->label_smoothing = 0.1;
    c->skip = f->skip;
    NEB_TRY(neb__opts_set(neb__model_options, m, "kind", "encoder-decoder"));
    NEB_TRY(neb__opts_set(neb__model_options, m, "positions", f->positions));
    return neb__opts_set(neb__model_options, m, "norm_place", f->norm_place);
}

/* ---- writing -------------------------------------------------------------------------------------------------- */

/* The token with which a target starts; mBART's first models start with that of the language, which no file can say. */
int64_t neb__hf_start_of(const struct neb_model_yaml *f, const struct neb_tok *tok)
{
    const struct neb_frame *frame;
    struct neb_frame_tokens t = NEB_NO_FRAME;
    if (!tok || neb__folder_frame(f, &frame) != NEB_OK || neb__frame_wants_to(frame))
        return tok ? neb__tok_special(tok, NEB_TOK_EOS) : -1;
    if (neb__frame_find(frame, tok, NULL, NULL, &t) != NEB_OK) return -1;
    return t.start;
}

neb_status neb__hf_seq2seq_write(const struct neb_model_yaml *f, const struct neb_arch *a,
                                 enum neb_hf_kind kind, const struct neb_tok *tok, struct json_t *j)
{
    const struct neb_model_config *m = &f->model;
    const struct family *k = family_of(kind);
    json_t *more =
        json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:s, s:f, s:b, s:b}", "model_type",
                  k->type, "d_model", (json_int_t)a->hidden, "encoder_layers", (json_int_t)a->layers,
                  "decoder_layers", (json_int_t)a->decoder_layers, "encoder_attention_heads",
                  (json_int_t)a->heads, "decoder_attention_heads", (json_int_t)a->heads, "encoder_ffn_dim",
                  (json_int_t)a->ffn, "decoder_ffn_dim", (json_int_t)a->ffn, "max_position_embeddings",
                  (json_int_t)a->max_positions, "dropout", m->dropout, "attention_dropout",
                  m->attention_dropout, "activation_function", neb__hf_activation_name(m), "init_std",
                  m->init_deviation, "scale_embedding", a->embedding_scale, "is_encoder_decoder", 1);
    bool bad = !more || json_object_update(j, more);
    json_decref(more);
    const int64_t start = neb__hf_start_of(f, tok);
    if (start >= 0 && !json_object_get(j, "decoder_start_token_id"))
        bad |= json_object_set_new(j, "decoder_start_token_id", json_integer(start)) != 0;
    if (kind == NEB_HF_M2M100) bad |= json_object_set_new(j, "pad_token_id", json_integer(1)) != 0;
    if (kind == NEB_HF_MARIAN) {
        bad |= json_object_set_new(j, "decoder_vocab_size", json_integer(a->vocab)) != 0;
        bad |= json_object_set_new(j, "share_encoder_decoder_embeddings", json_true()) != 0;
    }
    return bad ? neb__fail(NEB_ERR_NOMEM, "out of memory for config.json") : NEB_OK;
}
