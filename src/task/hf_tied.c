/* hf_tied.c: whether the output of a folder's model is its token table.
 *
 * config.json says it (tie_word_embeddings, or the default of its class), but the tensors win, as in transformers 5: two that
 * are both there with different values are not tied. T5's config does not say it at all. An output that is not tied and not there
 * is a tensor that got lost; transformers would start with a random one. The stacks of an encoder-decoder must share one
 * table, since there is one here. */
#include "task/hf.h"
#include "base/log.h"

static neb_status check_stacks(const struct neb_hf_files *f, const char *folder,
                               const struct neb_st_tensor *table)
{
    static const char *const copies[] = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight",
                                         "model.encoder.embed_tokens.weight",
                                         "model.decoder.embed_tokens.weight"};
    for (size_t i = 0; i < sizeof copies / sizeof *copies; i++) {
        const struct neb_st_tensor *t = neb__hf_files_find(f, copies[i]);
        if (t && !neb__hf_files_same(f, t, table))
            return neb__fail(
                NEB_ERR_UNSUPPORTED,
                "%s: '%s' differs from the token table; stacks with token tables of their own are "
                "not supported",
                folder, copies[i]);
    }
    return NEB_OK;
}

neb_status neb__hf_settle_output(const struct neb_hf_files *f, const char *folder, struct neb_hf_config *c)
{
    struct neb_hf_source source;
    const struct neb_st_tensor *t[3];
    const bool t5 = neb__hf_is_t5(c->kind);
    if (!neb__hf_files_locate(f, c->kind, "embed.token.weight", &source, t))
        return neb__fail(NEB_ERR_NOTFOUND, "%s has no tensor '%s'", folder, source.name[0]);
    const struct neb_st_tensor *table = t[0];
    if (neb__hf_is_seq2seq(c->kind)) NEB_TRY(check_stacks(f, folder, table));
    const struct neb_st_tensor *own =
        neb__hf_files_locate(f, c->kind, "head.weight", &source, t) && t[0] != table ? t[0] : NULL;
    if (!c->tied && !own && !t5)
        return neb__fail(NEB_ERR_NOTFOUND,
                         "%s: config.json does not tie the output to the token table "
                         "('tie_word_embeddings'), but the files have no '%s' beside it; save the "
                         "model again with its output, or set the key to true if the output is the table",
                         folder, source.name[0]);
    const bool same = !own || neb__hf_files_same(f, own, table);
    if (c->tied && !same && !t5)
        neb__warn("%s: config.json ties the output to the token table, but '%s' has other values: they are "
                  "not tied, as in transformers",
                  folder, own->name);
    if (c->tied || t5) c->tied = same;
    return NEB_OK;
}
